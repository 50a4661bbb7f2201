"""A stored result is stale when a module that its job imported changed in substance."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

from benchmarks.jobs import Records, ResultStore
from benchmarks.process import ROOT
from benchmarks.sources import SourceBook, Sources, commit, substance

CODE = '''"""A module."""
import math  # of numbers


def area(radius):
    """Of a circle."""
    # why: it is round
    return math.pi * radius**2


LIMIT = 3
"""What it may be."""
'''


def test_comments_docstrings_and_layout_do_not_count_and_all_else_does() -> None:
    quieter = CODE.replace('    """Of a circle."""\n    # why: it is round\n', "")
    quieter = quieter.replace('"""What it may be."""\n', "").replace("radius**2", "(radius ** 2)")
    assert substance(quieter) == substance(CODE)
    for before, after in (("**2", "**3"), ("radius", "r"), ("LIMIT = 3", "LIMIT = 4")):
        assert substance(CODE.replace(before, after)) != substance(CODE)
    assert substance('def f():\n    """Only text."""\n') == substance(
        'def f():\n    "Other text"\n'
    )


def test_digests_are_the_same_in_every_python() -> None:
    code = CODE + "x = [1, 2.5, 'a', b'c', None, True, ..., 3j, '', f'{LIMIT:>{LIMIT}}']\n"
    assert substance(code) == "6fcc02c8cb", "other versions of Python would call every result stale"


def test_a_state_names_what_changed_since(tmp_path: Path) -> None:
    package = tmp_path / "rl_training"
    package.mkdir()
    for name in ("__init__", "used", "gone", "foreign"):
        (package / f"{name}.py").write_text(CODE)
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a commit -qm first"):
        subprocess.run(["git", "-C", tmp_path, *command.split()], check=True)
    book = SourceBook(tmp_path / "results", package)
    code = book.note(["rl_training", "rl_training.used", "rl_training.gone"])
    assert book.note(["rl_training", "rl_training.used", "rl_training.gone"]) == code
    (state,) = book.read().values()
    assert re.fullmatch("[0-9a-f]{10}", state.commit or "")
    assert (state.digest, state.changed(package)) == (code, [])

    # a machine without git noted the same modules, and one that has changed since
    elsewhere, here = (SourceBook(tmp_path / name, package) for name in ("elsewhere", "here"))
    other = Sources(None, {**state.modules, "rl_training.used": "another"})
    elsewhere.write({code: replace(state, commit=None), other.digest: other})
    here.take_over(elsewhere)
    assert here.read() == {code: state, other.digest: other}

    (package / "used.py").write_text(CODE.replace("3", "4"))
    (package / "foreign.py").write_text("")
    (package / "gone.py").unlink()
    assert state.changed(package) == ["rl_training.gone", "rl_training.used"]
    assert commit(package) == state.commit, "asked for once"
    commit.cache_clear()
    assert commit(package) is None


def test_stored_results_are_read_and_their_states_are_known_by_commit() -> None:
    store = ResultStore(ROOT / "benchmarks" / "results")
    states = store.sources.read()
    suites = [path.name for path in store.root.iterdir() if path.is_dir()]
    read: list[Records] = [store.load(suite) for suite in suites]
    files = [path for suite in suites for path in store.folder(suite).glob("*.json")]
    records = [record for suite in read for record in suite.all]
    assert len(records) == len(files), "a result that cannot be read would be left out in silence"
    known = [record for record in records if record.code in states]
    assert len(known) > 0.8 * len(records)
    assert all(isinstance(state, Sources) for state in states.values())
    # a peer, and the table of counts beside the networks
    others = re.compile("sb3|d3rlpy|icu-table|^peer-|^brax-|^rounding")
    ours = {record.code for record in known if not others.search(record.job)}
    assert all(states[code].modules for code in ours), "only others import nothing of ours"
    assert json.loads(store.sources.path.read_text(encoding="utf-8"))
