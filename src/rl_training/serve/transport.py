"""One call of the operating system per answer."""

from __future__ import annotations

import asyncio
from typing import Any


class JoinedWrites:
    """A transport that sends together what is written in one turn of the event loop: a call of
    the operating system costs more than the rest of a small answer."""

    def __init__(self, transport: Any) -> None:
        self._transport, self._waiting = transport, list[bytes]()
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        data, self._waiting = b"".join(self._waiting), []
        if data and not self._transport.is_closing():  # else the client has gone
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def joining_protocol() -> Any:
    """uvicorn's quicker HTTP protocol with joined writes; its choice where that is missing."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:  # httptools has no wheel for this Python
        return "auto"

    class JoiningProtocol(HttpToolsProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]

    return JoiningProtocol
