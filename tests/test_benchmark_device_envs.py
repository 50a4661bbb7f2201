"""The suite of worlds on the device: its peers, and what its report says without results."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from benchmarks import run
from benchmarks.jobs import Record, Records
from benchmarks.peers.environment import BRAX, PeerEnvironmentError, ThisEnvironment
from benchmarks.speed import device_envs
from benchmarks.suites import Options, load_suite

MISSING = "a_package_that_nobody_has"


def test_brax_runs_on_the_gpu_for_the_minutes_and_from_the_states_of_ours(tmp_path: Path) -> None:
    jobs = {job.name: job for job in load_suite("device_envs").jobs(Options((0,), False, tmp_path))}
    brax = [name for name in jobs if name.startswith("brax-")]
    assert brax == ["brax-ppo-halfcheetah", "brax-ppo-ant"]
    for name in brax:
        job, ours, peer = (
            jobs[name.replace("brax-", kind)] for kind in ("brax-", "goal-", "peer-")
        )
        assert (job.gpu, job.peer) == (True, BRAX)
        assert job.spec["minutes"] == ours.spec["minutes"]
        assert job.spec["env_id"] == peer.spec["env_id"]
        assert job.inputs == peer.inputs
        assert len(job.inputs["reset_seeds"]) == ours.spec["episodes"]


def test_report_says_what_brax_has_reached_or_that_it_has_not_run(tmp_path: Path) -> None:
    report = device_envs.device_envs_report(Records([]), tmp_path)
    row = "| Brax's PPO on {} in MJX | "
    for task in ("HalfCheetah-v5", "Ant-v5"):
        assert row.format(task) + "not run | not run | not run |" in report.markdown
    result = {"return_mean": 1234.0, "env_steps": 600, "train_seconds": 2.0}
    result["env_steps_per_second"] = 200.0  # without those of compilation
    values = ("brax-ppo-ant", 0, "", "", {}, result, {}, {}, "", 1.0, "2026")
    report = device_envs.device_envs_report(Records([Record(*values)]), tmp_path)
    assert row.format("Ant-v5") + "1,234 | 600 | 200 |" in report.markdown
    assert row.format("HalfCheetah-v5") + "not run" in report.markdown


@pytest.mark.parametrize("name", [MISSING, f"{MISSING}.part", f"json.{MISSING}"])
def test_a_peer_that_is_not_installed_is_named_with_what_to_do(name: str) -> None:
    with pytest.raises(PeerEnvironmentError, match=f"^{name} is not installed here; get it$"):
        ThisEnvironment("", (name,), advice="get it").ensure(print)


@pytest.mark.parametrize("optional", [True, False])
def test_jobs_of_an_optional_peer_are_left_out_and_of_others_fail(
    optional: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = ThisEnvironment("", (MISSING,), optional=optional, advice="get it")
    monkeypatch.setattr(device_envs, "BRAX", peer)
    monkeypatch.setattr(run, "has_gpu", lambda: True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    quick = ["device_envs", "--quick", "--only", "device_envs/brax-ppo-ant*"]
    assert run.main(quick) == (0 if optional else 1)
