"""Processes that tests start, and may kill: forked from one server that has only imported things.

A process is ready in milliseconds instead of the seconds that an interpreter and torch take. There
is one server for each test process, so there is also one list of what it imports.
"""

from __future__ import annotations

import multiprocessing

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.preload"])
