"""A release as an index would serve it: sdist, the wheel made from it, an empty environment.

The environment has the packages that the core dependencies ask for and nothing else, as links
to this environment's, so that nothing is downloaded or copied.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "src" / "rl_training" / "assets" / "configs"

WHAT_IS_THERE = """
import importlib.util, pathlib, rl_training
from rl_training.experiment.errors import install_command
print(rl_training.__file__)
print(pathlib.Path(rl_training.__file__).with_name("py.typed").is_file())
print([m for m in ("h5py", "minari", "mujoco", "ale_py") if importlib.util.find_spec(m)])
print(install_command("atari"))
print(install_command("dmc"))
"""


def run(*command: object, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def core_packages(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """The distributions that some requirements bring, theirs included, without further extras."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(Requirement(line), "") for line in requirements]
    while waiting:
        needed, of_extra = waiting.pop()
        if needed.marker and not needed.marker.evaluate(
            {**default_environment(), "extra": of_extra}
        ):
            continue
        name = canonicalize_name(needed.name)
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # not for this build, as CUDA for a CPU's PyTorch
            continue
        for extra in ("", *needed.extras):
            waiting += [(Requirement(line), extra) for line in found[name].requires or []]
    return found


def link_packages(distributions: Iterator[metadata.Distribution], target: Path) -> None:
    for distribution in distributions:
        for file in distribution.files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (target / top).exists():
                (target / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from the sdist, which is what a release does."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
    run(*pip, "--no-index", "-w", folder, sdist, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_a_release_has_every_config_and_works_without_extras(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    (site,) = (home / "lib").glob("python*/site-packages")
    requires = [
        line.partition(": ")[2]
        for line in zipfile_metadata(wheel).splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    ]
    link_packages(iter(core_packages(requires).values()), site)
    install = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps")
    run(*install, "--no-index", wheel, cwd=tmp_path)

    known = run(python, "-c", WHAT_IS_THERE, cwd=tmp_path).splitlines()
    file, typed, extras, *hints = known
    assert Path(file).is_relative_to(site)
    assert typed == "True"
    assert extras == "[]", "the environment was to be without extras"
    # not `rl-training[x]`, which works only where this package itself comes from an index
    assert hints[0].startswith("pip install 'gymnasium[atari]>=")
    assert re.fullmatch(r"pip install 'dm[_-]control>=\S+' 'mujoco<4'", hints[1])

    command = home / "bin" / "rl-training"
    listed = run(command, "list", cwd=tmp_path)
    configs = {f"{path.parent.name}/{path.stem}" for path in CONFIGS.glob("*/*.yaml")}
    assert len(configs) >= 35
    assert configs <= set(re.findall(r"\w+/\w+", listed))
    quick = ("total_updates=20", "eval_episodes=1", "algo_kwargs.hidden_sizes=[8]")
    run(command, "train", "bc/pendulum", *quick, "--output-dir", "runs", "-q", cwd=tmp_path)
    assert list(tmp_path.glob("runs/bc-*/result.json"))


def zipfile_metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def test_the_sources_and_the_wheel_hold_the_same_files(wheel: Path) -> None:
    tracked = run("git", "ls-files", "src/rl_training", cwd=ROOT).splitlines()
    expected = {name.removeprefix("src/") for name in tracked if (ROOT / name).is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("rl_training/")}
    assert expected <= packed
    assert not {name for name in packed if "__pycache__" in name}


def test_the_version_is_the_same_everywhere() -> None:
    """Of the package, of the newest entry in the changelog, and of what to cite."""
    import rl_training

    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    newest = re.findall(r"^## (\S+)(?: - (\S+))?$", changelog, re.M)[0]
    assert newest == (rl_training.__version__, str(citation["date-released"]))
    assert citation["version"] == rl_training.__version__
    assert citation["license"] == "MIT"
