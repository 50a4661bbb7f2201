"""Many small cases inside one test: `each` instead of `pytest.mark.parametrize`.

For grids of numbers and tables of wrong values, where one test per point says nothing more. Cases
that need fixtures of their own, run long or deserve a name on the command line stay parametrised.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

CAUGHT = (Exception, pytest.fail.Exception)  # the second is raised by `pytest.raises`


def each(
    names: str | tuple[str, ...], values: Iterable[Any], ids: Any = None
) -> Callable[[Any], Callable[..., None]]:
    """Run the test for every value; all cases that fail are reported together.

    Several on top of each other run the product, as `pytest.mark.parametrize` does. `ids` label
    the cases: a list, or a function of one value. Each case has a `tmp_path` of its own.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = list(values)
    assert cases, f"{names}: no cases"

    def fold(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def folded(**arguments: Any) -> None:
            failed = []
            skipped = []
            for number, case in enumerate(cases):
                parts = (case,) if isinstance(names, str) and len(wanted) == 1 else tuple(case)
                if "tmp_path" in arguments:
                    own = arguments["tmp_path"] / str(number)
                    own.mkdir()
                    fixtures = {**arguments, "tmp_path": own}
                else:
                    fixtures = arguments
                try:
                    test(**fixtures, **dict(zip(wanted, parts, strict=True)))
                except pytest.skip.Exception as error:
                    skipped.append(error)
                except CAUGHT as error:
                    label = _label(ids, number, case, parts)
                    sentence = f"{', '.join(wanted)} = {label}: {type(error).__name__}: {error}"
                    failed.append((sentence, error))
            if failed:
                text = "\n".join(sentence for sentence, _ in failed)
                raise AssertionError(
                    f"{len(failed)} of {len(cases)} cases failed:\n{text}"
                ) from failed[0][1]
            if len(skipped) == len(cases):
                raise skipped[0]

        signature = inspect.signature(test)
        left = [p for name, p in signature.parameters.items() if name not in wanted]
        folded.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return folded

    return fold


def _label(ids: Any, number: int, case: Any, parts: tuple[Any, ...]) -> str:
    if callable(ids):
        return ", ".join(str(ids(part)) for part in parts)
    return str(ids[number]) if ids is not None else repr(case)
