"""What a recurrent policy keeps for each client between two requests."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

from rl_training.export.run_policy import State
from rl_training.serve.refusals import Refused


@dataclass
class Session:
    """One episode of one client."""

    name: str
    state: State
    rows: int = 1
    """Episodes that it is of."""
    step: int = 0
    busy: bool = False
    used: float = 0.0


class Sessions:
    """The newest sessions; names are given here, so that no two clients share one by chance."""

    def __init__(self, most: int, idle_s: float) -> None:
        self.most, self.idle_s = most, idle_s
        self.rows = 0
        self._kept: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, state: State, rows: int) -> Session:
        """A session of so many episodes."""
        self._forget_idle()
        if self.rows + rows > self.most:
            raise Refused(
                503, f"at most {self.most:,} episodes are kept at a time; try again later"
            )
        name = secrets.token_urlsafe(12)
        session = Session(name, state, rows, busy=True, used=time.monotonic())
        self._kept[name] = session
        self.rows += rows
        return session

    def take(self, name: object, step: object) -> Session:
        """The session of a request that goes on; `step` is the step that its client is at."""
        session = self._kept.get(name) if isinstance(name, str) else None
        if session is None:
            raise Refused(
                404, "'session' is not known here; begin an episode without one, as after a restart"
            )
        if session.busy:
            raise Refused(
                409,
                "'session' is answering another request; a second client needs one of its own",
            )
        if step is not None and step != session.step:
            raise Refused(
                409,
                f"'session' is at step {session.step}, the request at {str(step)[:20]}; a second "
                "client needs a session of its own",
            )
        session.busy = True
        return session

    def release(self, session: Session) -> None:
        session.busy, session.used = False, time.monotonic()
        if session.name in self._kept:
            self._kept.move_to_end(session.name)

    def end(self, name: object) -> bool:
        session = self._kept.pop(name, None) if isinstance(name, str) else None
        self.rows -= 0 if session is None else session.rows
        return session is not None

    def _forget_idle(self) -> None:
        old = time.monotonic() - self.idle_s
        while self._kept:
            first = next(iter(self._kept.values()))
            if first.busy or first.used > old:
                return
            self.end(first.name)
