"""Requests that are answered with one sentence."""

from __future__ import annotations


class Refused(Exception):  # noqa: N818  (what happens to the request)
    """A request that is wrong, with the status of HTTP that says how."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
