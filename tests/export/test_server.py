"""Serving an export: what is answered, what is refused, and that the server stays up."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.export.exported import ExportedPolicy, load_policy
from rl_training.serve.app import PolicyServer
from rl_training.serve.batching import Batcher
from rl_training.serve.metrics import Metrics
from rl_training.serve.run import listen

from ..conftest import Command
from .serving import served

httpx = pytest.importorskip("httpx")
websockets = pytest.importorskip("websockets.sync.client")

OBS = [0.6, 0.8, 1.5]
TOKEN = "a token of some length"


def test_requests_over_http_and_websocket_without_pytorch(bc_export: Path) -> None:
    policy = load_policy(bc_export)
    expected = policy(np.array(OBS, np.float32))[0].tolist()
    with served(bc_export) as (address, process), httpx.Client(base_url=f"http://{address}") as web:
        assert web.post("/act", json={"observation": OBS}).json() == {"action": expected}
        many = web.post("/act", json={"observations": [OBS, OBS]}).json()
        assert many == {"actions": [pytest.approx(expected, abs=1e-6)] * 2}
        raw = np.array(OBS, "<f4").tobytes()
        binary = {"content-type": "application/octet-stream"}
        assert web.post("/act", content=raw, headers=binary).json() == {"action": expected}

        wrong: list[tuple[Any, int, str]] = [
            (b"{", 400, "is not JSON"),
            (b"[" * 100_000, 400, "is not JSON"),
            (b"3", 400, "must be an object"),
            (b"{}", 400, "give 'observation' for one"),
            (b'{"obs": 3}', 400, "'obs' is not known"),
            (b'{"observation": [1, 2]}', 400, r"must have the shape \[3\], got \[2\]"),
            (b'{"observation": [1, [2], 3]}', 400, "must hold numbers"),
            (b'{"observation": ["1", 2, 3]}', 400, "must hold numbers"),
            (b'{"observation": [0.1, 0.2, NaN]}', 400, "NaN, infinity"),
            (b'{"observation": [0.1, 0.2, 1e99]}', 400, "beyond float32"),
            (b'{"observation": [0.1, 0.2, 9.0]}', 400, r"component 2 of row 0 is 9, outside"),
            (b'{"observations": []}', 400, "must have the shape"),
            (b'{"observation": [0, 0, 0], "session": "x"}', 400, "keeps no state"),
            (b'{"observation": [0, 0, 0], "episode_start": 3}', 400, "true or false"),
            (json.dumps({"observations": [OBS] * 1025}).encode(), 413, "1,025 rows"),
            (b" " * 1_000_000, 413, "at most"),
        ]
        for body, status, sentence in wrong:
            reply = web.post("/act", content=body)
            assert reply.status_code == status, body[:80]
            said = reply.json()["error"]
            assert re.search(sentence, said), said
            assert "\n" not in said
        assert web.get("/act").status_code == 405
        assert web.get("/nothing").status_code == 404
        for name, value in (("Host", "elsewhere.example"), ("Origin", "http://elsewhere.example")):
            assert web.get("/contract", headers={name: value}).status_code == 403

        assert web.get("/contract").json()["inputs"][0]["name"] == "observation"
        assert web.get("/health").json()["status"] == "ok"
        shown = web.get("/metrics").text
        assert 'policy_requests_total{route="http",status="200"} 3' in shown
        assert 'policy_answer_seconds_bucket{le="+Inf"}' in shown

        with websockets.connect(f"ws://{address}/act") as connection:
            connection.send(json.dumps({"observation": OBS}))
            assert json.loads(connection.recv()) == {"action": expected}
            connection.send(raw)
            assert np.frombuffer(connection.recv(), "<f4").tolist() == expected
            connection.send("nonsense")
            assert "is not JSON" in json.loads(connection.recv())["error"]
            connection.send(b"123")
            assert "12 bytes each, got 3" in json.loads(connection.recv())["error"]
            connection.send(json.dumps({"observation": OBS}))
            assert json.loads(connection.recv()) == {"action": expected}

        process.send_signal(signal.SIGTERM)
        process.wait(10)
    with served(bc_export) as (address, _):  # after a restart, the same
        reply = httpx.post(f"http://{address}/act", json={"observation": OBS})
        assert reply.json() == {"action": expected}


def test_every_client_of_a_recurrent_policy_has_its_own_state(dreamer_export: Path) -> None:
    policy = ExportedPolicy(dreamer_export)
    episodes = np.random.default_rng(0).uniform(-1, 1, (2, 4, 3)).astype(np.float32)
    expected = []
    for episode in episodes:
        state, actions = None, []
        for obs in episode:
            action, state = policy.predict(obs, state)
            actions.append(pytest.approx(action.tolist(), abs=1e-5))
        expected.append(actions)

    options = ("--max-episodes", "4")
    with (
        served(dreamer_export, *options) as (address, _),
        httpx.Client(base_url=f"http://{address}") as web,
    ):
        first, second = (
            websockets.connect(f"ws://{address}/act"),
            websockets.connect(f"ws://{address}/act"),
        )
        with first, second:
            names: list[str | None] = [None, None]
            held: list[Any] = [None, None]
            for step in range(4):
                for i, connection in enumerate((first, second)):
                    asked = {"observation": episodes[i, step].tolist()}
                    connection.send(json.dumps(asked))
                    assert json.loads(connection.recv())["action"] == expected[i][step]
                    connection.send(json.dumps({**asked, "session": "x"}))
                    assert "leave out 'session'" in json.loads(connection.recv())["error"]

                    session = {} if names[i] is None else {"session": names[i], "step": step}
                    said = web.post("/act", json={**asked, **session}).json()
                    assert said["action"] == expected[i][step]
                    assert said["step"] == step + 1
                    names[i] = said["session"]

                    kept = {"return_state": True, "state": held[i]}
                    said = web.post("/act", json={**asked, **kept}).json()
                    assert said["action"] == expected[i][step]
                    held[i] = said["state"]
        assert names[0] != names[1]
        obs = episodes[0, 0].tolist()
        again = {"observation": obs, "session": names[0], "episode_start": True}
        assert web.post("/act", json=again).json()["action"] == expected[0][0]
        for asked, status, sentence in (
            ({"observation": obs, "session": names[0], "step": 7}, 409, "at step 1, the request"),
            ({"observation": obs, "session": "unknown"}, 404, "not known here"),
            ({"observation": obs, "session": 3}, 404, "not known here"),
            ({"observations": [obs] * 2, "session": names[0]}, 409, "is of 1 episodes"),
            ({"observation": obs, "state": {"x": 1}}, 400, "'state' must hold"),
            ({"observation": obs, "state": dict.fromkeys(held[0], 1)}, 400, "must hold finite"),
        ):
            reply = web.post("/act", json=asked)
            assert (reply.status_code, sentence in reply.json()["error"]) == (status, True), asked
        full = web.post("/act", json={"observations": [obs] * 3})
        assert (full.status_code, "at most 4 episodes" in full.text) == (503, True)
        assert web.request("DELETE", "/act", json={"session": names[0]}).json() == {"ended": True}
        assert web.post("/act", json={**again, "episode_start": False}).status_code == 404
        assert "policy_sessions 1" in web.get("/metrics").text


def test_a_server_for_others_needs_a_token(cli: Command, bc_export: Path) -> None:
    refused = cli("serve", bc_export, "--host", "0.0.0.0")
    assert refused.code == 2
    assert "needs a token" in refused.error_lines[0]
    with served(bc_export, "--host", "0.0.0.0", token=TOKEN) as (address, _):
        web = httpx.Client(base_url=f"http://{address}")
        with web:
            assert web.get("/health").status_code == 200
            assert web.get("/contract").status_code == 401
            assert web.get("/contract", headers={"Authorization": "Bearer no"}).status_code == 401
            allowed = {"Authorization": f"Bearer {TOKEN}"}
            assert web.get("/contract", headers=allowed).status_code == 200
            reply = web.post("/act", json={"observation": OBS}, headers=allowed)
            assert reply.status_code == 200
        with pytest.raises(Exception, match="403"):
            websockets.connect(f"ws://{address}/act")
        with websockets.connect(f"ws://{address}/act", additional_headers=allowed) as connection:
            connection.send(json.dumps({"observation": OBS}))
            assert "action" in json.loads(connection.recv())


def test_requests_that_come_together_share_a_call(bc_export: Path) -> None:
    policy, metrics = load_policy(bc_export), Metrics()
    rows = np.random.default_rng(0).uniform(-1, 1, (40, 3)).astype(np.float32)
    expected = policy(rows)[0]

    async def together(batcher: Batcher) -> list[Any]:
        asked = (batcher.ask({"observation": rows[i : i + 1]}, 1, {}) for i in range(40))
        return [outputs["action"][0].tolist() for outputs in await asyncio.gather(*asked)]

    for inline in (True, False):
        metrics = Metrics()
        batcher = Batcher(policy, metrics, most_rows=16, seed=0)
        batcher.inline = inline
        actions = asyncio.run(together(batcher))
        np.testing.assert_allclose(actions, expected, atol=1e-6)
        assert metrics.batch_rows.number == 3  # of 16, 16 and 8 rows
        assert metrics.joined == 37


def test_a_request_that_fails_does_not_end_the_server(bc_export: Path) -> None:
    policy_class: Any = type(load_policy(bc_export))

    class Breaking(policy_class):  # type: ignore[misc]
        is_broken = False

        def outputs(self, *given: Any) -> Any:
            return 1 / 0 if self.is_broken else super().outputs(*given)

    server = PolicyServer(Breaking(bc_export))
    server.policy.is_broken = True  # type: ignore[attr-defined]

    async def ask(path: str) -> int:
        sent: list[dict[str, Any]] = []
        body = {"type": "http.request", "body": json.dumps({"observation": OBS}).encode()}

        async def receive() -> dict[str, Any]:
            return body

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        method = "POST" if path == "/act" else "GET"
        scope = {"type": "http", "method": method, "path": path, "headers": []}
        await server(scope, receive, send)
        status: int = sent[0]["status"]
        return status

    async def both() -> list[int]:
        return [await ask("/act"), await ask("/health")]

    assert asyncio.run(both()) == [500, 200]


def test_small_answers_are_sent_at_once() -> None:
    """Else the kernel waits 40 ms for the client's acknowledgement of an answer's first half."""
    with listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # what asyncio asks before TCP_NODELAY


def test_what_cannot_be_served_is_said_in_one_sentence(
    cli: Command, bc_export: Path, tmp_path: Path
) -> None:
    (tmp_path / "short").write_text("abc")
    for options, sentence in (
        ((tmp_path / "nowhere",), "cannot be read"),
        ((bc_export, "--token-file", tmp_path / "none"), "cannot be read"),
        ((bc_export, "--token-file", tmp_path / "short"), "at least 16"),
        ((bc_export, "--host", "256.1.1.1"), "needs a token"),
        ((bc_export, "--host", "127.0.0.1", "--port", 1_000_000), "65535"),
    ):
        outcome = cli("serve", *options)
        assert outcome.code == 2, options
        assert sentence in outcome.error_lines[0], outcome.err
