"""`each` runs every case and reports all that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from .each import each


def test_every_case_runs_and_all_failures_are_named(tmp_path: Path) -> None:
    seen = []

    @each(("a", "b"), [(1, 2), (3, 3), (4, 4)])
    @each("c", [True, False])
    def differ(a: int, b: int, c: bool, tmp_path: Path) -> None:
        seen.append((a, b, c, tmp_path))
        if a == 4 and c:
            pytest.skip("not this one")
        with pytest.raises(ValueError, match="two"):
            raise ValueError("two" if a != b else "one")

    with pytest.raises(AssertionError, match=r"2 of 3 cases failed(?s:.)*\(3, 3\)(?s:.)*\(4, 4\)"):
        differ(tmp_path=tmp_path)
    assert [case[:3] for case in seen] == [
        (a, b, c) for a, b in ((1, 2), (3, 3), (4, 4)) for c in (True, False)
    ]
    assert len({case[3] for case in seen}) == 6, "a folder for each"


def test_only_skipped_cases_skip_the_test() -> None:
    @each("a", [1, 2])
    def never(a: int) -> None:
        pytest.skip("no")

    with pytest.raises(pytest.skip.Exception):
        never()
