"""The documentation says what is true: defaults, links, examples and commands."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from docs import write_tables
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rl_training.algorithms.params import Params
from rl_training.cli import app
from rl_training.envs.make import env_spaces
from rl_training.experiment import registry
from rl_training.experiment.config import (
    CHANGEABLE_ON_RESUME,
    DataSource,
    MixPart,
    Schedule,
    TrainConfig,
    load_config,
)
from rl_training.experiment.config_errors import section_in
from rl_training.experiment.config_files import packaged_config_names, parse_yaml
from rl_training.experiment.renames import older_names
from rl_training.runtime.build import build_algorithm
from rl_training.search.grid import configs_of, plan_of

from .blocks import LANGUAGES, NOT_RUN, PRINTS, RUN, blocks, run_page
from .conftest import Command
from .each import each

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
REQUIRED = "required"


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def section(text: str, title: str) -> str:
    """The part of a page under the heading `## title`."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found, f"no section '{title}'"
    return found[1]


# --- tables of knobs and keys ----------------------------------------------------------------


def documented_defaults(text: str) -> dict[str, Any]:
    """Name to default, from rows such as "| `beta` | `1.0` | ..."."""
    rows: dict[str, Any] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) < 3 or not cells[0].startswith("`"):
            continue
        name = cells[0].strip("`")
        assert name not in rows, f"'{name}' is there twice"
        assert all(cells), f"'{name}' has an empty cell"
        rows[name] = parsed_default(cells[1].strip("`"))
    return rows


def parsed_default(text: str) -> Any:
    if re.fullmatch(r"\d+/\d+", text):
        return float(Fraction(text))
    return parse_yaml(text, "a default")


def plain(value: Any) -> Any:
    if value is PydanticUndefined:
        return REQUIRED
    if isinstance(value, Schedule):
        return value.kind
    if isinstance(value, Params):  # another algorithm's knobs, explained on its page
        assert value == type(value)()
        return {}
    return list(value) if isinstance(value, tuple) else value


def config_keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key below a section with its default; a section that is always there has none."""
    for name, field in model.model_fields.items():
        key, inner = prefix + name, section_in(field.annotation)
        if inner is None or not isinstance(field.default, BaseModel):
            yield key, plain(field.default)
        if inner in (MixPart, DataSource):  # other keys are those of any source
            own = set(inner.model_fields) - set(DataSource.model_fields)
            yield from ((f"{key}[].{n}", inner.model_fields[n].default) for n in sorted(own))
        elif inner is not None:
            yield from config_keys(inner, f"{key}.")


@each("algo", registry.algorithm_names())
def test_the_knob_table_is_the_truth(algo: str) -> None:
    text = (DOCS / "algorithms" / f"{algo}.md").read_text(encoding="utf-8")
    fields = registry.algorithm_class(algo).Params.model_fields
    expected = {name: plain(field.default) for name, field in fields.items()}
    assert documented_defaults(section(text, "Knobs")) == expected


def test_the_table_of_keys_is_the_truth() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert documented_defaults(section(text, "Every key")) == dict(config_keys(TrainConfig))


def test_the_optimisers_are_listed() -> None:
    """Of every algorithm: they are what `lr_schedule.optimizers` may name."""
    from .contract.small_runs import small_config

    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    table = section(page, "Learning-rate schedules")
    rows = re.findall(r"^\| ([A-Z][\w, -]+) \| (`.*) \|$", table, re.M)
    listed = {name.replace("-", ""): row for names, row in rows for name in names.split(", ")}
    for algo in registry.algorithm_names():
        config = small_config(algo)
        learner = build_algorithm(config, env_spaces(config.env_id, config.env_kwargs))
        named = set(re.findall(r"`(\w+)`", listed[learner.name()]))
        extra = {"lagrange_threshold", "multiplier"} if algo == "cql" else set()
        extra |= {"critics", "temperature"} if algo == "gail" else set()
        assert named - extra == set(learner.optimizers), algo


def test_keys_that_may_change_on_resume_are_listed() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+)`", section(text, "What may change on resume").split("```")[0])
    assert set(named) == CHANGEABLE_ON_RESUME


@each("algo", registry.algorithm_names())
def test_every_metric_is_explained(algo: str) -> None:
    """Each name that the algorithm's update reports stands in the table of metrics."""
    from .contract.small_runs import small_config, small_learner

    text = (DOCS / "algorithms" / f"{algo}.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`train/(\w+)`", section(text, "Metrics")))
    knobs = {"lagrange_threshold": 1.0} if algo == "cql" else {}
    algorithm, table = small_learner(small_config(algo, algo_kwargs=knobs))
    assert explained == set(algorithm.step(table.sample(8)))


# --- links -----------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as code-hosting sites make them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@each("page", [ROOT / "README.md", *PAGES], ids=label)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        missing = not path.exists()
        if not missing and anchor and path.suffix == ".md":
            missing = anchor not in anchors(path.read_text(encoding="utf-8"))
        if missing:
            broken.append(link)
    assert not broken, f"{label(page)} links to nothing: {broken}"


def test_the_older_names_of_knobs_are_listed() -> None:
    text = section((DOCS / "configuration.md").read_text(encoding="utf-8"), "Older names of knobs")
    listed = re.findall(r"^\| (\w+) \| `(\w+)` \| `(\w+)`", text, re.M)
    read = [
        (algo, older, change.name)
        for algo in registry.algorithm_names()
        for older, change in older_names(registry.algorithm_class(algo).Params).items()
    ]
    assert sorted(listed) == sorted(read)


def test_the_tables_of_algorithms_are_up_to_date() -> None:
    for place, form in write_tables.PLACES.items():
        text = place.read_text(encoding="utf-8")
        assert write_tables.with_table(text, form) == text, "write them anew with: make generated"


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    unlisted = [label(p) for p in PAGES if f"({p.relative_to(DOCS).as_posix()})" not in index]
    assert unlisted == ["docs/README.md"]


# --- code ------------------------------------------------------------------------------------


PROGRAMS = [b for p in PAGES for b in blocks(p) if b.language in LANGUAGES]


def test_every_program_runs_or_says_why_not() -> None:
    """And gives a run's values in tests only where they differ from those that stand there."""
    unmarked = [b.where for b in PROGRAMS if not (b.runs or b.not_run_because)]
    assert not unmarked, "mark them with <!-- runs --> or <!-- not run: reason -->"
    misspelt = [
        f"{label(page)}:{number}"
        for page in (ROOT / "README.md", *PAGES)
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
        if re.match(r"<!-- ?(runs|not run|prints)", line)
        and not any(form.fullmatch(line) for form in (RUN, NOT_RUN, PRINTS))
    ]
    assert not misspelt


def test_what_a_program_prints_stands_below_it() -> None:
    """Of every Python block that runs and prints, unless it is a module that others import."""
    silent = []
    for page in (ROOT / "README.md", *PAGES):
        for block, below in pairwise([*blocks(page), None]):
            assert block is not None
            prints = block.runs and block.language == "python" and "print(" in block.code
            said = "# prints: " in block.code or (below and PRINTS.fullmatch(below.mark))
            if prints and not (said or block.module):
                silent.append(block.where)
    assert not silent, "say what they print, in a block below with <!-- prints -->"


def test_settings_in_pages_are_keys_of_a_config_or_of_a_sweep() -> None:
    known = {*TrainConfig.model_fields, "config", "set", "grid", "list"}
    for block in (b for p in PAGES for b in blocks(p) if b.language == "yaml"):
        unknown = set(parse_yaml(block.code, block.where)) - known
        assert not unknown, block.where


@each("page", [p for p in PAGES if any(b.language == "python" for b in blocks(p))], ids=label)
def test_python_examples_compile_and_name_what_exists(page: Path) -> None:
    for block in (b for b in blocks(page) if b.language == "python"):
        for node in ast.walk(ast.parse(block.code, block.where)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rl_training"):
                for alias in node.names:
                    module = importlib.import_module(str(node.module))
                    assert hasattr(module, alias.name), (block.where, alias.name)


RUNNING = [p for p in PAGES if any(b.runs for b in blocks(p))]


def test_the_guides_have_examples_that_run() -> None:
    guides = {"adding_an_algorithm.md", "runs.md", "data.md", "metrics.md", "networks.md"}
    tutorials = {page.name for page in (DOCS / "tutorials").glob("*.md")}
    assert {p.name for p in RUNNING} >= guides | tutorials


@pytest.mark.usefixtures("own_names")
@pytest.mark.parametrize("page", RUNNING, ids=label)
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Command
) -> None:
    run_page(page, tmp_path, monkeypatch, cli)


def test_what_a_block_prints_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Command
) -> None:
    """A wrong number, a missing line, a wrong comment and a failing command are all noticed."""

    def page(*lines: str) -> Path:
        (tmp_path / "page.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return tmp_path / "page.md"

    code = ("<!-- runs -->", "```python", "x = 20", "print('got', x)", "```", "")
    quick = ("<!-- runs, in tests with x=3 -->", "```python", "x=20", "print('got', x)", "```", "")
    listing = ("<!-- runs -->", "```sh", "rl-training list --json  # none", "```", "")

    def printed(mark: str, text: str) -> tuple[str, ...]:
        return (mark, "```text", text, "```")

    right = (
        (*code, *printed("<!-- prints -->", "got 20")),
        (*code, *printed("<!-- prints -->", "g... 20")),
        (*code, *printed("<!-- prints, numbers within 5 -->", "got 24")),
        (*quick, *printed("<!-- prints -->", "got 20")),
        (*listing, *printed("<!-- prints -->", "[]")),
        ("<!-- runs -->", "```python", "print(7)  # prints: 7", "```"),
    )
    wrong = (
        (*code, *printed("<!-- prints -->", "got 21")),
        (*code, *printed("<!-- prints -->", "got 20\nmore")),
        (*code, *printed("<!-- prints, numbers within 5 -->", "got 26")),
        (*quick, *printed("<!-- prints -->", "had 20")),
        ("<!-- runs, in tests with y=3 -->", *code[1:]),
        ("<!-- runs -->", "```python", "print(7)  # prints: 8", "```"),
        ("<!-- runs -->", "```sh", "rl-training eval nothing", "```"),
        printed("<!-- prints -->", "got 20"),
    )
    for lines in right:
        run_page(page(*lines), tmp_path, monkeypatch, cli)
    for lines in wrong:
        with pytest.raises(AssertionError, match=r"page\.md:\d"):
            run_page(page(*lines), tmp_path, monkeypatch, cli)


# --- commands --------------------------------------------------------------------------------


def commands(page: Path) -> list[list[str]]:
    """The words of every `rl-training` line in shell blocks and inline code."""
    found = []
    for block in (b for b in blocks(page) if b.language in LANGUAGES - {"python"}):
        lines = block.code.replace("\\\n", " ").splitlines()
        found += [line for line in lines if line.startswith("rl-training")]
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found += re.findall(r"`(rl-training [a-z][^`]*)`", prose)
    return [shlex.split(line, comments=True)[1:] for line in found]


@cache
def tool() -> Any:
    """The command line; making it from its functions takes as long as parsing many commands."""
    return typer.main.get_command(app)


def parse_command(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a command line, parsed as the tool would but not run."""
    command: Any = tool()
    context, names = None, []
    while hasattr(command, "commands"):
        word, *words = words
        assert word in command.commands, f"no command '{' '.join([*names, word])}'"
        context = command.make_context(word, [], parent=context, resilient_parsing=True)
        command = command.commands[word]
        names.append(word)
    return " ".join(names), command.make_context(names[-1], words, parent=context).params


@each("page", [p for p in (ROOT / "README.md", *PAGES) if commands(p)], ids=label)
def test_commands_exist_with_their_options_and_keys(page: Path) -> None:
    for words in commands(page):
        try:
            name, params = parse_command(words)
        except Exception as error:  # noqa: BLE001  (whatever the parser objects to)
            pytest.fail(f"rl-training {shlex.join(words)}: {error}")
        overrides = params.get("overrides") or []
        if name == "sweep" and params["config"] in packaged_config_names():
            configs_of(plan_of(params["config"], overrides, None))
        elif params.get("config") in packaged_config_names():
            load_config(params["config"], list(overrides))
        if name == "resume":
            changed = {text.partition("=")[0] for text in overrides}
            assert changed <= CHANGEABLE_ON_RESUME | {"dataset.home"}


def test_every_argument_of_atari_is_documented() -> None:
    from rl_training.envs.atari_rules import PROTOCOLS, UNNAMED

    page = (DOCS / "environments.md").read_text(encoding="utf-8")
    assert "| `game` | required |" in page
    for name, value in {"protocol": None, "render_mode": None, **UNNAMED}.items():
        default = repr(value).replace("_", "")
        assert f"| `{name}` | `{default}` |" in page, name
    for name in PROTOCOLS:
        assert f"| `{name}` | " in page, name
