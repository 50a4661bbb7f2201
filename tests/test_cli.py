"""The command line: what a person types, what comes back, and what survives a rough end."""

from __future__ import annotations

import functools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from rl_training import BC, load
from rl_training.data.convert import save_dataset
from rl_training.data.sources import load_transition_dataset
from rl_training.data.table_files import write_table
from rl_training.experiment.config import load_config
from rl_training.experiment.config_files import packaged_config_names
from rl_training.experiment.registry import algorithm_names
from tests.conftest import PATIENCE_S, QUICK, Command

from .each import each

COMMANDS = (
    (),
    ("train",),
    ("resume",),
    ("eval",),
    ("predict",),
    ("list",),
    ("show",),
    ("data",),
    ("data", "inspect"),
    ("data", "pack"),
    ("data", "make"),
    ("data", "collect"),
    ("data", "convert"),
    ("export",),
    ("serve",),
    ("ope",),
    ("select",),
    ("compare",),
    ("report",),
    ("watch",),
    ("sweep",),
    ("tune",),
    ("doctor",),
)


def events(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


# --- help ----------------------------------------------------------------------------------------


def test_every_command_is_listed_above() -> None:
    import typer.main

    from rl_training.cli import app

    def walk(command: Any, path: tuple[str, ...]) -> set[tuple[str, ...]]:
        children = getattr(command, "commands", {})
        return {path}.union(*(walk(child, (*path, name)) for name, child in children.items()))

    assert walk(typer.main.get_command(app), ()) == set(COMMANDS)


@each("command", COMMANDS, ids=" ".join)
def test_help_is_complete(cli: Command, command: tuple[str, ...]) -> None:
    import typer.main

    from rl_training.cli import app

    node: Any = typer.main.get_command(app)
    for name in command:
        node = node.commands[name]
    assert node.help
    for parameter in node.params:
        assert getattr(parameter, "help", None), f"{command}: {parameter.name} has no help"
    for flag in ("--help", "-h"):
        shown = cli(*command, flag)
        assert shown.code == 0
        assert "Usage: rl-training" in shown.out
        assert shown.err == ""


USAGE_MISTAKES = [
    (("train",), "CONFIG"),
    (("train", "bc/pendulum", "--beta", "3"), "--beta"),
    (("train", "bc/pendulum", "--seed", "x"), "--seed"),
    (("trian",), "trian"),
    (("resume",), "RUN"),
    (("eval",), "RUN_OR_CHECKPOINT"),
    (("eval", "run", "--episodes", "0"), "--episodes"),
    (("predict",), "CHECKPOINT"),
    (("data", "make", "random"), "--out"),
    (("data", "make", "random", "--out", "x.npz", "--steps", "0"), "--steps"),
    (("data", "make", "random", "--out", "x.npz", "--seed", "-1"), "--seed"),
    (("data", "collect", "run", "--episodes", "1"), "--out"),
    (("data", "collect", "run", "--out", "x.npz", "--episodes", "0"), "--episodes"),
    (("data", "collect", "run", "--out", "x.npz", "--noise", "-1"), "--noise"),
    (("data", "collect", "run", "--out", "x.npz", "--epsilon", "1.5"), "--epsilon"),
    (("data", "collect", "--out", "x.npz"), "CHECKPOINT"),
    (("data", "convert", "one.npz"), "TARGET"),
    (("data", "nope"), "nope"),
    (("doctor", "--fix"), "--fix"),
]


@each(("arguments", "named"), USAGE_MISTAKES)
def test_usage_mistakes(cli: Command, arguments: tuple[str, ...], named: str) -> None:
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert named.lower() in outcome.err.lower()
    assert re.fullmatch(
        r"error: rl-training[a-z ]*: .*; 'rl-training[a-z ]* --help' .*\n", outcome.err
    )
    assert not outcome.out


def test_without_arguments_help_is_shown(cli: Command) -> None:
    for command in ((), ("data",)):
        outcome = cli(*command)
        assert outcome.code == 2
        assert "Usage: rl-training" in outcome.out + outcome.err


def test_version(cli: Command) -> None:
    from rl_training import __version__

    assert cli("--version").out == f"rl-training {__version__}\n"


# --- looking around ------------------------------------------------------------------------------


def test_list(cli: Command, bc_run: Path, tmp_path: Path) -> None:
    for name, content in {"odd": "[]", "odder": '{"status": 3}', "torn": "{"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("", encoding="utf-8")
        (tmp_path / name / "result.json").write_text(content, encoding="utf-8")
    shown = cli("list", "--runs", tmp_path)
    assert shown.code == 0
    run = "bc-run  finished, 20 of 20, eval/return_mean"
    for word in (*algorithm_names(), "pendulum-mixed", run):
        assert word in shown.out
    assert shown.out.count("dead, 0; go on with") == 3
    for name in packaged_config_names():
        assert name in shown.out.replace("\n", " ")
    assert "none yet" in cli("list", "--runs", tmp_path / "nowhere").out


def test_doctor(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = cli("doctor")
    assert shown.code == 0
    for word in ("torch", "cuda", "engine=compile", "extra minari", "extra video", "is writable"):
        assert word in shown.out
    (tmp_path / "runs").write_text("in the way", encoding="utf-8")
    assert "runs is NOT writable" in cli("doctor").out


@each("name", packaged_config_names())
def test_show_prints_the_resolved_config_as_yaml(cli: Command, name: str) -> None:
    odd = ["algo_kwargs.batch_size=96", "env_kwargs={g: 9.81, name: 'a: b # c'}", "seed=3"]
    shown = cli("show", name, *odd)
    assert shown.code == 0
    assert yaml.safe_load(shown.out) == load_config(name, odd).to_dict()


def test_show_prints_small_numbers_and_mixes_as_yaml(cli: Command) -> None:
    changes = [
        "algo_kwargs.policy_lr=1e-5",
        "early_stopping={target: -1e-7}",
        "dataset={mix: [{kind: random, steps: 9}, {kind: scripted, name: pendulum-mixed}]}",
        "lr_schedule.optimizers=[policy]",
    ]
    shown = cli("show", "awr/pendulum", *changes)
    assert yaml.safe_load(shown.out) == load_config("awr/pendulum", changes).to_dict()
    comments = [line for line in shown.out.splitlines() if "  # " in line]
    assert len(comments) > 40


# --- data ----------------------------------------------------------------------------------------


def test_make_inspect_convert(cli: Command, tmp_path: Path) -> None:
    made, converted = tmp_path / "made.npz", tmp_path / "converted.npz"
    options = ("--env", "Pendulum-v1", "--steps", "250")
    assert "wrote 250 steps" in cli("data", "make", "random", "--out", made, *options).out
    inspected = cli("data", "inspect", made, "--env", "Pendulum-v1")
    assert inspected.code == 0
    for word in ("250", "awr", "Box(1,)", "truncations"):
        assert word in inspected.out
    assert cli("data", "convert", made, converted).code == 0
    with np.load(made) as first, np.load(converted) as second:
        for name in first.files:
            np.testing.assert_array_equal(first[name], second[name])
    assert cli("data", "make", "random", "--out", made, *options, "--overwrite").code == 0


def test_paths_that_look_like_markup(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich would read [/b] as a closing tag and :smile: as a picture."""
    monkeypatch.chdir(tmp_path)
    folder = Path("a[b]:smile:[") / "b]"
    made = cli("data", "make", "random", "--env", "Pendulum-v1", "--out", folder / "x.npz")
    assert str(folder) in made.out
    assert str(folder) in cli("data", "inspect", folder / "x.npz").out
    trained = cli("train", "bc/pendulum", *QUICK, "final_eval=false", "--output-dir", folder)
    assert trained.code == 0
    assert str(folder) in trained.out
    assert str(folder) in trained.err


# --- training, evaluating, predicting ------------------------------------------------------------


def test_folders_of_any_alphabet(cli: Command, tmp_path: Path) -> None:
    folder = tmp_path / "l\u00e4ufe \U0001f600"
    assert cli("train", "bc/pendulum", *QUICK, "--output-dir", folder, "--quiet").code == 0
    (run,) = folder.iterdir()
    assert yaml.safe_load((run / "config.yaml").read_text("utf-8"))["output_dir"] == str(folder)


def test_train_eval_predict(cli: Command, tmp_path: Path) -> None:
    flags = ("--seed", 3, "--device", "cpu", "--output-dir", tmp_path)
    trained = cli("train", "bc/pendulum", *QUICK, *flags, "--quiet")
    assert trained.code == 0
    assert trained.err == ""
    (run,) = tmp_path.iterdir()
    assert run.name.startswith("bc-Pendulum_v1-s3-")
    assert str(run) in trained.out
    stored = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    assert stored["seed"] == 3
    assert stored["algo_kwargs"]["hidden_sizes"] == [8]

    scored = cli("eval", run, "-n", 2, "--json")
    assert len(json.loads(scored.out)["eval/returns"]) == 2
    drawn = [cli("eval", run, "-n", 2, "--json", "--stochastic").out for _ in range(2)]
    assert drawn[0] == drawn[1] != scored.out
    assert "return" in cli("eval", run, "-n", 1, "--checkpoint", "best").out
    assert cli("eval", run, "-n", 1, "--checkpoint", "20").code == 0

    (action,) = json.loads(cli("predict", run, "[1, 0, 0]").out)
    assert action == pytest.approx(load(run).predict([1, 0, 0])[0].item())
    np.savez(tmp_path / "many.npz", observations=np.zeros((4, 3)))
    out = tmp_path / "actions.npz"
    assert cli("predict", run, "--npz", tmp_path / "many.npz", "--out", out).code == 0
    with np.load(out) as written:
        assert written["actions"].shape == (4, 1)


def test_actions_for_a_table(cli: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    log = pd.DataFrame({
        "age": rng.integers(20, 90, 60),
        "ward": rng.choice(["icu", "surgery"], 60),
        "labs": rng.normal(size=(60, 2)).tolist(),
        "drug": rng.choice(["none", "low", "high"], 60),
        "stay": np.repeat(np.arange(6), 10),
    })  # fmt: skip
    log.to_parquet(tmp_path / "log.parquet")
    columns = {"observations": ["age", "ward", "labs"], "actions": "drug"}
    source = {"path": str(tmp_path / "log.parquet"), "columns": columns, "episode": "stay"}
    agent = BC(
        dataset=source, total_updates=3, hidden_sizes=[8], device="cpu", tensorboard=False,
        output_dir=str(tmp_path / "runs"),
    )  # fmt: skip
    run = agent.learn(progress=False).run_dir
    wanted = agent.predict(log)[0].tolist()
    assert {type(name) for name in wanted} == {str}
    assert cli("export", run, "--out", tmp_path / "policy").code == 0
    for policy in (run, tmp_path / "policy"):
        for ending in (".csv", ".parquet", ".npz"):
            out = tmp_path / f"{policy.name}-actions{ending}"
            done = cli("predict", policy, "--file", tmp_path / "log.parquet", "--out", out)
            assert done.code == 0, done
            read = {".csv": pd.read_csv, ".parquet": pd.read_parquet, ".npz": np.load}[ending]
            assert list(read(out)["actions"]) == wanted
        log.drop(columns="ward").to_parquet(tmp_path / "less.parquet")
        done = cli("predict", policy, "--file", tmp_path / "less.parquet")
        assert (done.code, len(done.error_lines)) == (2, 1)
        assert "'ward'" in done.err
    explained = tmp_path / "explained.csv"
    many = ("--file", tmp_path / "log.parquet", "--explain", "--out", explained)
    assert cli("predict", run, *many).code == 0
    shares = pd.read_csv(explained)[[f"action_probabilities_{i}" for i in range(3)]]
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 2])
def test_actions_of_several_axes_are_written_as_rows(tmp_path: Path, rows: int) -> None:
    actions = np.arange(rows * 6.0).reshape(rows, 2, 3)
    write_table({"actions": actions}, tmp_path / "a.csv", "csv")
    write_table({"actions": actions}, tmp_path / "a.parquet", "parquet")
    flat = actions.reshape(rows, 6)
    np.testing.assert_array_equal(pd.read_csv(tmp_path / "a.csv").to_numpy(), flat)
    listed = pd.read_parquet(tmp_path / "a.parquet")["actions"].tolist()
    assert [row.tolist() for row in listed] == flat.tolist()


def test_numbered_columns_are_the_observations_of_a_table(
    cli: Command, bc_run: Path, tmp_path: Path
) -> None:
    rows = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    columns = {f"observations_{i}": rows[:, i] for i in range(3)}
    pd.DataFrame(columns).to_csv(tmp_path / "many.csv", index=False)
    pd.DataFrame({"observations": rows.tolist()}).to_parquet(tmp_path / "many.parquet")
    for file in ("many.csv", "many.parquet"):
        out = tmp_path / f"{file}-actions.csv"
        done = cli("predict", bc_run, "--file", tmp_path / file, "--out", out)
        assert done.code == 0, done
        found = pd.read_csv(out)["actions_0"]
        np.testing.assert_allclose(found, load(bc_run).predict(rows)[0][:, 0], atol=1e-5)


def test_an_observation_from_stdin(cli: Command, bc_run: Path) -> None:
    command = [sys.executable, "-m", "rl_training", "predict", bc_run, "-"]
    done = subprocess.run(command, input="[1, 0, 0]\n", capture_output=True, text=True, check=True)
    assert done.stdout == cli("predict", bc_run, "[1, 0, 0]").out


def test_numbers_are_read_as_numbers(cli: Command) -> None:
    for text, value in (("3e-4", 3e-4), ("1E+2", 100.0), ("-.inf", None), ("1_000", 1000)):
        shown = cli("show", "bc/pendulum", f"env_kwargs.x={text}")
        if value is not None:
            assert yaml.safe_load(shown.out)["env_kwargs"]["x"] == value
    assert load_config("bc/pendulum", ["algo_kwargs.lr=3e-4"]).params.lr == 3e-4


def test_an_interval_larger_than_the_budget_is_no_mistake(cli: Command, tmp_path: Path) -> None:
    overrides = ["eval_interval=1000", "checkpoint_interval=1000", "log_interval=1000"]
    outcome = cli("train", "bc/pendulum", *QUICK, *overrides, "--output-dir", tmp_path)
    assert outcome.code == 0
    (run,) = tmp_path.iterdir()
    assert [(event["event"], event["tick"]) for event in events(run)] == [
        ("train", 20),
        ("eval", 20),
    ]


def test_collect_then_train_offline(cli: Command, tmp_path: Path) -> None:
    tiny = ("algo_kwargs.hidden_sizes=[8]", "algo_kwargs.learning_starts=40", "final_eval=false")
    few = ("total_timesteps=80", "tensorboard=false", "algo_kwargs.train_frequency=4")
    folder = ("--output-dir", tmp_path / "runs", "-q")
    assert cli("train", "dqn/cartpole", *few, *tiny, *folder).code == 0
    (run,) = (tmp_path / "runs").iterdir()
    out = tmp_path / "data.npz"
    options = ("--epsilon", 0.5, "--seed", 3, "--out", out)
    made = cli("data", "collect", run, "--episodes", 12, *options)
    assert made.code == 0, made.err
    data = load_transition_dataset(out, env_id="CartPole-v1")
    assert data.fingerprint() == load(run).collect(12, epsilon=0.5, seed=3).fingerprint()
    returns = data.episode_returns()
    assert made.out.splitlines() == [
        f"wrote 12 whole episodes, {len(data):,} steps, return {returns.mean():,.1f} ± "
        f"{returns.std():,.1f} to {out}"
    ]

    cut = cli("data", "collect", run, "--steps", 50, *options, "--overwrite", "-q")
    assert (cut.code, cut.err) == (0, "")
    assert "50 steps" in cut.out
    assert "note: the last episode has no end" in cut.out
    assert len(load_transition_dataset(out)) == 50

    command = ["train", "bc", *QUICK, "env_id=CartPole-v1", *folder]
    trained = cli(*command, f"dataset={{kind: npz, path: '{out}'}}")
    assert trained.code == 0, trained.err


def test_eval_records_a_video_of_the_first_episode(
    cli: Command, bc_run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    film = tmp_path / "film[b].mp4"
    shown = cli("eval", bc_run, "-n", 1, "--video", film)
    assert shown.code == 0, shown.err
    assert film.read_bytes()[4:8] == b"ftyp"
    assert re.search(rf"return -[\d,.]+ in 200 steps: {re.escape(str(film))}$", shown.out, re.M)
    printed = json.loads(cli("eval", bc_run, "-n", 1, "--video", film, "--overwrite", "--json").out)
    assert printed["video"] == {"path": str(film), "return": printed["eval/returns"][0]}
    assert "video" not in json.loads(cli("eval", bc_run, "-n", 1, "--json").out)


# --- resuming ------------------------------------------------------------------------------------


def test_resume_with_a_larger_budget(cli: Command, bc_run: Path) -> None:
    resumed = cli("resume", bc_run, "total_updates=40")
    assert resumed.code == 0
    assert "at 20 of 40" in resumed.err
    assert load_config(bc_run / "config.yaml").total_updates == 40
    ticks = [event["tick"] for event in events(bc_run)]
    assert ticks == sorted(ticks)
    assert ticks[-1] == 40
    result = json.loads((bc_run / "result.json").read_text(encoding="utf-8"))
    assert (result["status"], result["updates"]) == ("finished", 40)


def test_resume_skips_a_damaged_checkpoint_and_forgets_what_came_after(
    cli: Command, bc_run: Path
) -> None:
    before = events(bc_run)
    for name, tick in (("algorithm.pt", 20), ("manifest.json", 15)):
        path = bc_run / "checkpoints" / f"{tick:012d}" / name
        path.write_bytes(path.read_bytes()[:-9])
    with (bc_run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "train", "tick": 9999}\n{"event": "tra')
    resumed = cli("resume", bc_run)
    assert resumed.code == 0
    assert resumed.err.count("warning: checkpoint") == 2
    assert "at 10 of 20" in resumed.err
    after = events(bc_run)
    assert [event["tick"] for event in after] == [event["tick"] for event in before]
    for old, new in zip(before, after, strict=True):  # and the second half is the same again
        for key in old:
            assert key.startswith("time/") or old[key] == new[key]


def test_resuming_a_finished_run_changes_nothing(cli: Command, bc_run: Path) -> None:
    before = events(bc_run)
    resumed = cli("resume", bc_run)
    assert resumed.code == 0
    assert events(bc_run) == before


def test_a_run_that_died_before_its_first_checkpoint_starts_again(
    cli: Command, bc_run: Path
) -> None:
    before = events(bc_run)
    shutil.rmtree(bc_run / "checkpoints")
    resumed = cli("resume", bc_run)
    assert resumed.code == 0
    assert "starting from the beginning" in resumed.err
    assert [event.get("eval/returns") for event in events(bc_run)] == [
        event.get("eval/returns") for event in before
    ]


def test_data_in_memory_stay_with_the_run(cli: Command, tmp_path: Path) -> None:
    data = load_transition_dataset("pendulum-expert").to_arrays()
    options: dict[str, Any] = {"hidden_sizes": (8,), "tensorboard": False, "final_eval": False}
    agent = BC("Pendulum-v1", dataset=data, output_dir=str(tmp_path), **options)
    first = agent.learn(total_updates=5, progress=False)
    assert cli("resume", first.run_dir, "total_updates=9").code == 0
    again = agent.learn(total_updates=12, progress=False)
    assert (again.run_dir, again.updates) == (first.run_dir, 12)
    assert agent.learn(total_epochs=1, progress=False).updates == -(-20_000 // 256)


def test_data_may_move_but_not_change(cli: Command, tmp_path: Path) -> None:
    data, other = tmp_path / "data.npz", tmp_path / "other.npz"
    save_dataset(load_transition_dataset("pendulum-expert"), data)
    save_dataset(load_transition_dataset("pendulum-random"), other)
    command = ["train", "bc/pendulum", *QUICK, f"dataset={{kind: npz, path: '{data}'}}"]
    assert cli(*command, "final_eval=false", "--output-dir", tmp_path / "runs").code == 0
    (run,) = (tmp_path / "runs").iterdir()
    moved = data.rename(tmp_path / "moved.npz")
    gone = cli("resume", run, "total_updates=25")
    assert (gone.code, len(gone.error_lines)) == (2, 1)
    assert "does not exist" in gone.err
    wrong = cli("resume", run, "total_updates=25", f"dataset.path={other}")
    assert (wrong.code, len(wrong.error_lines)) == (2, 1)
    assert "contents differ" in wrong.err
    assert load_config(run / "config.yaml").total_updates == 20
    assert cli("resume", run, "total_updates=25", f"dataset.path={moved}").code == 0
    assert cli("resume", run, "total_updates=30").code == 0


# --- real processes ------------------------------------------------------------------------------

COMMAND = (sys.executable, "-m", "rl_training")
LONG = (
    "total_updates=1000000",
    "engine=eager",
    "checkpoint_interval=50",
    "eval_interval=0",
    "final_eval=false",
    "tensorboard=false",
    "eval_episodes=1",
    "algo_kwargs.hidden_sizes=[8]",
    "lr_schedule.kind=constant",
)


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[str]) -> Path:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        if list(folder.glob("*/checkpoints/[0-9]*")):
            (run,) = folder.iterdir()
            return run
        time.sleep(0.02)
    process.kill()
    raise AssertionError(process.communicate())


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_signal_saves_and_resume_finishes(
    cli: Command, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    default = functools.partial(signal.signal, number, signal.SIG_DFL)  # `nohup` ignores SIGHUP
    process = start("train", "bc/pendulum", *LONG, "--output-dir", tmp_path, preexec_fn=default)
    run = wait_for_checkpoint(tmp_path, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert f"go on with: rl-training resume {run}" in out
    assert number.name in out
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result["status"] == "interrupted"
    saved = max(int(path.name) for path in (run / "checkpoints").glob("[0-9]*"))
    assert saved == result["updates"]

    resumed = cli("resume", run, f"total_updates={saved + 7}", "checkpoint_interval=0")
    assert resumed.code == 0
    assert f"at {saved:,} of {saved + 7:,}" in resumed.err
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert (result["status"], result["updates"]) == ("finished", saved + 7)
    ticks = [event["tick"] for event in events(run)]
    assert ticks == sorted(ticks)


def test_a_reader_that_goes_away_does_not_end_a_run(tmp_path: Path) -> None:
    """As with `| head -1`, and with everything in ASCII, where not every sign can be said."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": environment}
    short = ("total_updates=60", "eval_interval=20", "final_eval=true", "eval_episodes=1")
    quick = ("tensorboard=false", "algo_kwargs.hidden_sizes=[8]", "--output-dir", str(tmp_path))
    command = [*COMMAND, "train", "bc/pendulum", *short, *quick]
    with subprocess.Popen(command, text=True, **options) as process:
        assert process.stdout is not None
        assert "run folder" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=PATIENCE_S) == 0
    (run,) = tmp_path.iterdir()
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert (result["status"], result["updates"]) == ("finished", 60)


def test_a_killed_run_leaves_a_usable_checkpoint(cli: Command, tmp_path: Path) -> None:
    process = start("train", "bc/pendulum", *LONG, "log_interval=7", "--output-dir", tmp_path)
    run = wait_for_checkpoint(tmp_path, process)
    time.sleep(0.2)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    (run / "checkpoints" / ".draft-killed").mkdir()
    (run / "checkpoints" / ".draft-killed" / "algorithm.pt").write_bytes(b"half")
    saved = max(int(path.name) for path in (run / "checkpoints").glob("[0-9]*"))
    resumed = cli("resume", run, f"total_updates={saved + 50}", "-q")
    assert resumed.code == 0, resumed.err
    ticks = [event["tick"] for event in events(run) if event["event"] == "train"]
    assert ticks == sorted(set(ticks))  # rows after the checkpoint were written by the resumed run
    assert saved < ticks[-1] <= saved + 50
    assert not list((run / "checkpoints").glob(".draft-*"))


def _no_large_files() -> None:
    """As on a full disk: writing beyond 6 KB fails, whoever asks."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000))


def test_a_full_disk_leaves_the_previous_checkpoint_usable(
    cli: Command, bc_run: Path, tmp_path: Path
) -> None:
    before = sorted(path.name for path in (bc_run / "checkpoints").iterdir())
    sizes = [path.stat().st_size for path in (bc_run / "checkpoints").rglob("*.pt")]
    assert max(sizes) > 6_000, "the limit must hit"
    process = start("resume", bc_run, "total_updates=40", "-q", preexec_fn=_no_large_files)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2, err
    assert err.startswith("error: checkpoint ")
    assert len(err.splitlines()) == 1
    assert "the disk is full" in err
    assert "make room and resume" in err
    assert sorted(path.name for path in (bc_run / "checkpoints").iterdir()) == before
    assert cli("eval", bc_run, "-n", 1).code == 0
    resumed = cli("resume", bc_run)
    assert resumed.code == 0
    assert "at 20 of 40" in resumed.err


def test_a_full_disk_spares_a_saved_agent(bc_run: Path, tmp_path: Path) -> None:
    target = tmp_path / "agent"
    load(bc_run).save(target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    code = (
        "import sys; from rl_training import load\n"
        "try: load(sys.argv[1]).save(sys.argv[2])\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(bc_run), str(target)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        preexec_fn=_no_large_files,
        check=False,
    )
    assert done.stdout.startswith("CheckpointError checkpoint "), done
    assert "the disk is full" in done.stdout
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert not list(tmp_path.glob(".draft-*"))
    load(target)


@pytest.mark.parametrize("as_module", [False, True])
def test_the_installed_command_refuses_without_a_traceback(as_module: bool, tmp_path: Path) -> None:
    script: list[str | Path] = [Path(sys.executable).with_name("rl-training")]
    command = [sys.executable, "-m", "rl_training"] if as_module else script
    done = subprocess.run(
        [
            *command,
            "train",
            "awr/pendulum",
            "algo_kwargs.temprature=1",
            "--output-dir",
            tmp_path / "runs",
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(
        r"error: algo_kwargs\.temprature: .*did you mean 'temperature'\?\)\n", done.stderr
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("module", ["typer", "rl_training.reports.runs"])
def test_ctrl_c_while_modules_are_imported_is_one_word(module: str, tmp_path: Path) -> None:
    """Of the program, and of a command that says nothing itself."""
    code = f"""
import runpy, sys

class CtrlC:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
sys.argv = ["rl-training", "list", "--runs", {str(tmp_path)!r}]
runpy.run_module("rl_training", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    shell = f"{' '.join(COMMAND)} show awr/pendulum | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert done.stdout.startswith("algo: awr")
    assert "Traceback" not in done.stderr


def test_the_end_names_the_metric_of_the_best_evaluation(cli: Command, tmp_path: Path) -> None:
    data = {"kind": "scripted", "name": "pendulum-mixed", "max_episodes": 6}
    settings = {"dataset": {**data, "split": {"holdout": 0.5}}, "env_id": None, "seed": 3}
    arguments = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    arguments += ["total_updates=4", "eval_interval=2", f"output_dir={tmp_path}"]
    arguments += ["algo_kwargs.hidden_sizes=[8]", "algo_kwargs.batch_size=8"]
    for more, named in (([], "best evaluation: td error "), (["--seeds", "2"], "best td error")):
        done = cli("train", "iql/pendulum", *arguments, *more)
        assert done.code == 0, done.err
        assert named in done.out, done.out


def test_a_named_run_is_started_or_gone_on_with(cli: Command, tmp_path: Path) -> None:
    """For schedulers, which start the same command again."""
    knobs = ("eval_episodes=1", "eval_max_steps=20", "algo_kwargs.hidden_sizes=[8]")
    command = ("train", "bc/pendulum", "total_updates=40", *knobs)
    named = (*command, "run_name=mine", "-q", "--output-dir", tmp_path)
    assert cli(*named, "--resume").code == 0
    run = tmp_path / "mine"
    checkpoints = sorted(path.name for path in (run / "checkpoints").iterdir())
    again = cli(*named, "--resume")
    assert again.code == 0, again.err
    assert "budget of 40 updates spent" in again.out
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == checkpoints
    for arguments, words in (
        (named, "holds a run already"),
        ((*named, "--resume", "seed=3"), "begun with another seed"),
        ((*command, "--resume"), "name the run"),
        ((*command, "run_name=a/b"), "without slashes"),
    ):
        refused = cli(*arguments)
        assert refused.code == 2
        assert words in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
