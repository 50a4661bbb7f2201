"""The server as an ASGI application: endpoints, the checks at each, and the answers."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from rl_training.export.run_policy import Array, Policy
from rl_training.serve.batching import Batcher
from rl_training.serve.metrics import Metrics
from rl_training.serve.refusals import Refused
from rl_training.serve.requests import Asked, Reader, answer
from rl_training.serve.sessions import Session, Sessions

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON, TEXT = b"application/json", b"text/plain; version=0.0.4; charset=utf-8"
PAGES = {
    "/": ("page.html", b"text/html; charset=utf-8"),
    "/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "/page.css": ("page.css", b"text/css; charset=utf-8"),
}
OPEN = {"/health", *PAGES}
"""Paths that need no token: they say nothing about the policy."""
ENDPOINTS = {
    "GET": (*PAGES, "/health", "/contract", "/metrics"),
    "POST": ("/act",),
    "DELETE": ("/act",),
}
SECURITY = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
FOR_PAGES = (
    b"content-security-policy",
    b"default-src 'self'; img-src data:; frame-ancestors 'none'",
)


@dataclass(frozen=True)
class Limits:
    """What one client may ask of the server."""

    most_rows: int = 1024
    most_episodes: int = 10_000
    idle_s: float = 600.0


class PolicyServer:
    """Answers for one policy."""

    def __init__(
        self,
        policy: Policy,
        *,
        token: str | None = None,
        hosts: frozenset[str] | None = None,
        limits: Limits | None = None,
        bounds: bool = True,
        seed: int | None = None,
    ) -> None:
        """`hosts` are the names under which a browser may ask for it; None for any."""
        limits = limits or Limits()
        self.policy, self.token, self.hosts = policy, token, hosts
        self.metrics = Metrics()
        self.reader = Reader(policy, limits.most_rows, bounds)
        self.batcher = Batcher(policy, self.metrics, limits.most_rows, seed)
        self.sessions = Sessions(limits.most_episodes, limits.idle_s)
        self.sockets = 0
        self.stopping = False
        folder = resources.files("rl_training.serve")
        self.pages = {
            path: (folder.joinpath(name).read_bytes(), kind) for path, (name, kind) in PAGES.items()
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.stopping = True
                await send({"type": "lifespan.shutdown.complete"})
                return
            await send({"type": "lifespan.startup.complete"})

    # --- HTTP -----------------------------------------------------------------------------------

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        began, path = time.perf_counter(), scope["path"]
        status, kind = 200, JSON
        try:
            headers = dict(scope["headers"])
            self._admit(path, headers)
            body, kind = await self._respond(scope["method"], path, headers, receive)
        except Refused as refusal:
            status, body = refusal.status, _error(refusal.sentence)
        except Exception:  # noqa: BLE001  (one request failed; the server stays up)
            status, body = 500, _error("the policy could not be run for this request")
        route = "http" if path == "/act" else "other"
        self.metrics.answered(route, str(status), time.perf_counter() - began)
        length = (b"content-length", str(len(body)).encode())
        headers_out = [(b"content-type", kind), length, *SECURITY]
        if kind is not JSON:
            headers_out.append(FOR_PAGES)
        if status == 413:  # the rest of the body is not read
            headers_out.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers_out})
        await send({"type": "http.response.body", "body": body})

    async def _respond(
        self, method: str, path: str, headers: dict[bytes, bytes], receive: Receive
    ) -> tuple[bytes, bytes]:
        if path == "/act" and method == "POST":
            body = await self._body(headers, receive)
            binary = headers.get(b"content-type", JSON).startswith(b"application/octet-stream")
            asked = self.reader.from_bytes(body) if binary else self.reader.asked(body)
            return _json(await self._act(asked)), JSON
        if path == "/act" and method == "DELETE":
            body = await self._body(headers, receive)
            try:
                name = json.loads(body)["session"]
            except (ValueError, KeyError, TypeError, RecursionError):
                raise Refused(400, 'expected {"session": "..."}') from None
            return _json({"ended": self.sessions.end(name)}), JSON
        if method == "GET" and path in self.pages:
            return self.pages[path]
        if method == "GET" and path == "/health":
            if self.stopping:
                raise Refused(503, "the server is stopping")
            uptime = round(time.time() - self.metrics.began, 3)
            return _json({"status": "ok", "uptime_s": uptime}), JSON
        if method == "GET" and path == "/contract":
            return _json(self.policy.contract), JSON
        if method == "GET" and path == "/metrics":
            return self.metrics.text(len(self.sessions), self.sockets).encode(), TEXT
        if any(path in paths for paths in ENDPOINTS.values()):
            raise Refused(405, f"{method[:10]} is not answered at this address")
        raise Refused(404, "nothing is here; see /, /contract, /health, /metrics and POST /act")

    def _admit(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Refuse foreign pages in a browser, and requests without the token."""
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts is not None and _name(host) not in self.hosts:
            raise Refused(403, "this server answers under the names of this machine alone")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and urlsplit(origin).netloc != host:
            raise Refused(403, "a page of another site may not use this server")
        if self.token is None or path in OPEN:
            return
        given = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if not hmac.compare_digest(given, self.token.encode()):
            raise Refused(401, "this server needs its token, as the header Authorization: Bearer")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        most = self.reader.most_bytes
        too_large = Refused(413, f"a request may have at most {most:,} bytes")
        said = headers.get(b"content-length", b"0")
        if said.isdigit() and int(said) > most:
            raise too_large
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the request ended early")
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise too_large
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    # --- acting ---------------------------------------------------------------------------------

    async def _act(self, asked: Asked, own: Session | None = None) -> dict[str, Any]:
        """Answer one request; `own` is the session of a WebSocket."""
        values, rows = asked.values, asked.rows
        first, held = values.get("episode_start", False), values.get("return_state", False)
        if not isinstance(first, bool) or not isinstance(held, bool):
            raise Refused(400, "'episode_start' and 'return_state' must be true or false")
        if not self.policy.states:
            if values.get("session") is not None or values.get("state") is not None:
                raise Refused(400, "this policy keeps no state; leave out 'session' and 'state'")
            return answer(self.policy, asked, await self.batcher.ask(asked.feeds, rows, {}))
        if held or values.get("state") is not None:
            before = self.reader.state(None if first else values.get("state"), rows)
            outputs = await self.batcher.ask(asked.feeds, rows, before)
            after = self.policy.next_state(outputs)
            said = answer(self.policy, asked, outputs)
            return {**said, "state": {name: value.tolist() for name, value in after.items()}}
        return await self._continue(asked, first, own)

    async def _continue(self, asked: Asked, first: bool, own: Session | None) -> dict[str, Any]:
        """Answer a request whose state is kept here."""
        rows, values = asked.rows, asked.values
        initial = self.policy.initial_state(rows)
        if own is not None:
            if values.get("session") is not None:
                raise Refused(400, "a WebSocket has a state of its own; leave out 'session'")
            session = own
        elif values.get("session") is None:
            session = self.sessions.begin(initial, rows)
        else:
            session = self.sessions.take(values["session"], values.get("step"))
        try:
            fresh = own is not None and (first or not own.state)
            if fresh:
                session.rows = rows
            if session.rows != rows:
                raise Refused(
                    409,
                    f"'session' holds {session.rows} episodes, but the request has {rows}; begin "
                    "another session for them",
                )
            if first or fresh:
                session.state, session.step = initial, 0
            outputs = await self.batcher.ask(asked.feeds, rows, session.state)
            session.state = self.policy.next_state(outputs)
            session.step += 1
        finally:
            if own is None:
                self.sessions.release(session)
        said = answer(self.policy, asked, outputs)
        named = {} if own is not None else {"session": session.name}
        return {**said, **named, "step": session.step}

    # --- WebSocket ------------------------------------------------------------------------------

    async def _websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        """A connection has a session of its own; binary frames are answered by binary ones."""
        await receive()
        try:
            if scope["path"] != "/act":
                raise Refused(404, "the WebSocket is at /act")
            self._admit(scope["path"], dict(scope["headers"]))
        except Refused as refusal:
            self.metrics.answered("websocket_opened", str(refusal.status), 0.0)
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.sentence[:120]})
            return
        await send({"type": "websocket.accept"})
        self.sockets += 1
        session = Session("", {})
        try:
            while (message := await receive())["type"] == "websocket.receive":
                await send(await self._frame(message, session))
        finally:
            self.sockets -= 1

    async def _frame(self, message: Message, session: Session) -> Message:
        began, status = time.perf_counter(), "200"
        binary: bytes | None = message.get("bytes")
        reply: Message
        try:
            if binary is not None:
                said = await self._binary(self.reader.from_bytes(binary), session)
                reply = {"type": "websocket.send", "bytes": said}
            else:
                asked = self.reader.asked(message.get("text") or "")
                reply = _text(await self._act(asked, session))
        except Refused as refusal:
            status, reply = str(refusal.status), _text({"error": refusal.sentence})
        except Exception:  # noqa: BLE001  (one request failed; the server stays up)
            status = "500"
            reply = _text({"error": "the policy could not be run for this request"})
        self.metrics.answered("websocket", status, time.perf_counter() - began)
        return reply

    async def _binary(self, asked: Asked, session: Session) -> bytes:
        """The bytes of the actions, in the types of the contract and little-endian."""
        state = session.state or self.policy.initial_state(asked.rows)
        if any(len(kept) != asked.rows for kept in state.values()):
            raise Refused(
                409, "this connection began with another number of episodes; open a new one"
            )
        outputs = await self.batcher.ask(asked.feeds, asked.rows, state)
        session.state, session.rows = self.policy.next_state(outputs), asked.rows
        session.step += 1
        action: Array = outputs["action"]
        return action.astype(action.dtype.newbyteorder("<"), copy=False).tobytes()


def _name(host: str) -> str:
    """The name in `name:port`, also where it is an IPv6 address in brackets."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _json(values: Any) -> bytes:
    return _encode(values).encode()


def _text(values: Any) -> Message:
    return {"type": "websocket.send", "text": _encode(values)}


def _error(sentence: str) -> bytes:
    return _json({"error": sentence})
