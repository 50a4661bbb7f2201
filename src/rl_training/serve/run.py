"""Listening: where, for whom, and until when."""

from __future__ import annotations

import gc
import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path

from rl_training.experiment.errors import ConfigError, MissingExtraError
from rl_training.export.exported import load_policy

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
GRACE_S = 5


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    folder: Path,
    host: str,
    port: int,
    token: str | None,
    *,
    say: Callable[[str], None],
    threads: int = 1,
    most_rows: int = 1024,
    most_episodes: int = 10_000,
    idle_s: float = 600.0,
    bounds: bool = True,
    seed: int | None = None,
) -> None:
    """Serve an export folder until a signal ends it; open requests are answered first."""
    local = is_loopback(host)
    if token is not None and not (token.isascii() and token.isprintable() and len(token) >= 16):
        raise ConfigError(
            "--token: expected at least 16 printable ASCII characters; make one with: python -c "
            "'import secrets; print(secrets.token_urlsafe())'"
        )
    if not local and token is None:
        raise ConfigError(
            f"--host: '{host}' can be reached from other machines, so the server needs a token; "
            "set RL_TRAINING_TOKEN or give --token-file FILE, or listen at 127.0.0.1"
        )
    policy = load_policy(folder, threads)
    try:
        import uvicorn
        import websockets  # noqa: F401

        from rl_training.serve.app import Limits, PolicyServer
        from rl_training.serve.transport import joining_protocol
    except ImportError as error:
        raise MissingExtraError(str(error.name), "serve", "serving a policy") from None
    limits = Limits(most_rows, most_episodes, idle_s)
    hosts = LOOPBACK_NAMES if local else None
    server = PolicyServer(policy, token=token, hosts=hosts, limits=limits, bounds=bounds, seed=seed)
    listening = listen(host, port)
    config = uvicorn.Config(
        server,
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws_max_size=server.reader.most_bytes,
        http=joining_protocol(),
        proxy_headers=False,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
    )
    gc.collect()
    gc.freeze()  # what lives as long as the server is not looked through between requests
    shown = f"[{host}]" if ":" in host else host
    say(f"serving {folder} at http://{shown}:{listening.getsockname()[1]} (Ctrl-C stops)")
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol by name: only then asyncio sends small answers at once (TCP_NODELAY)
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)  # who asks before the server is ready waits
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"--port: cannot listen at {host}:{port} ({reason}); choose another port or host"
        ) from None
    return listening
