"""Requests that arrive together are answered by one call of the model."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import numpy as np

from rl_training.export.exported import trial_feeds
from rl_training.export.run_policy import Array, Policy, State
from rl_training.serve.metrics import Metrics

INLINE_S = 1e-3
"""A model that answers within this is called in the event loop; a thread would cost more."""


@dataclass(slots=True)
class Question:
    """Inputs of one request."""

    feeds: State
    rows: int
    state: State
    answer: asyncio.Future[dict[str, Array]] = field(repr=False)


class Batcher:
    """Collects what is asked while the event loop or the model is busy, and asks it at once."""

    def __init__(self, policy: Policy, metrics: Metrics, most_rows: int, seed: int | None) -> None:
        self.policy, self.metrics, self.most_rows = policy, metrics, most_rows
        self.rng = np.random.default_rng(seed)
        self.waiting: list[Question] = []
        self.scheduled = False
        self.inline = self._seconds_per_call() < INLINE_S
        self.task: asyncio.Task[None] | None = None

    def _seconds_per_call(self) -> float:
        feeds = trial_feeds(self.policy)
        state, times = self.policy.initial_state(1), []
        for _ in range(5):
            began = time.perf_counter()
            self.policy.outputs(feeds, state, self.policy.drawn(1, self.rng))
            times.append(time.perf_counter() - began)
        return min(times)

    async def ask(self, feeds: State, rows: int, state: State) -> dict[str, Array]:
        """Every output of the model for some rows."""
        loop = asyncio.get_running_loop()
        question = Question(feeds, rows, state, loop.create_future())
        self.waiting.append(question)
        if not self.scheduled:
            self.scheduled = True
            # behind everything that is ready now, so that it can join
            loop.call_soon(self._begin)
        return await question.answer

    def _begin(self) -> None:
        if self.inline:
            while self.waiting:
                self._answer(batch := self._next(), self._run(batch))
            self.scheduled = False
        else:
            self.task = asyncio.get_running_loop().create_task(self._in_thread())

    async def _in_thread(self) -> None:
        while self.waiting:
            batch = self._next()
            self._answer(batch, await asyncio.to_thread(self._run, batch))
        self.scheduled = False

    def _next(self) -> list[Question]:
        """Questions with at most `most_rows` rows together, one at least."""
        taken, rows = 0, 0
        for question in self.waiting:
            rows += question.rows
            if taken and rows > self.most_rows:
                break
            taken += 1
        batch, self.waiting = self.waiting[:taken], self.waiting[taken:]
        return batch

    def _run(self, batch: list[Question]) -> dict[str, Array] | Exception:
        try:
            feeds, state = batch[0].feeds, batch[0].state
            if len(batch) > 1:
                feeds = _joined([question.feeds for question in batch])
                state = _joined([question.state for question in batch])
            rows = sum(question.rows for question in batch)
            return self.policy.outputs(feeds, state, self.policy.drawn(rows, self.rng))
        except Exception as error:  # noqa: BLE001  (handed to every request; the server stays up)
            return error

    def _answer(self, batch: list[Question], outputs: dict[str, Array] | Exception) -> None:
        self.metrics.batched(len(batch), sum(question.rows for question in batch))
        at = 0
        for question in batch:
            end = at + question.rows
            if question.answer.cancelled():  # the client has gone
                pass
            elif isinstance(outputs, Exception):
                question.answer.set_exception(outputs)
            else:
                part = {name: values[at:end] for name, values in outputs.items()}
                question.answer.set_result(part)
            at = end


def _joined(parts: list[State]) -> State:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
