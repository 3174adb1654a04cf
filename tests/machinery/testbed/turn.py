# SPDX-License-Identifier: GPL-2.0-only
"""One measurement at a time on this machine: another run's measurement would distort the figures of this one.

Each run has its own namespaces, ports and files, but all runs share the cores. A measured test holds the machine's turn
while it measures. The turn ends with the process, however that ends. Other names are turns at other things of the machine.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

from nsight_demo.namespaces import run_dir, run_name
from nsight_demo.processes import BedError

from .locks import LockFile

#: Tells the programs that a holder starts who holds the turn: their measurements belong to the holder's.
HOLDER = "NSIGHT_TURN"
LIMIT_S = 1800
POLL_S = 0.05
# A waiting process reserves the next turn, so that a run with many measured tests lets another one in between.
_TURN, _NEXT = 0, 1
_WIDTH = 64  # of the holder's name in the file: always as long, so that it replaces the one before
_depth: Counter[str] = Counter()


@contextlib.contextmanager
def turn(name: str = "turn") -> Iterator[None]:
    """The machine's turn while inside; nested uses, also in programs started inside, do not wait.

    Raises BedError if it does not come within ``LIMIT_S``.
    """
    locks = LockFile(run_dir() / name)
    variable = HOLDER.replace("TURN", name.upper())
    before = os.environ.get(variable)
    try:
        if not _depth[name] and (not before or before != holder(locks)):
            _wait(locks)
            os.pwrite(locks.fd, run_name().ljust(_WIDTH).encode(), 0)
            os.environ[variable] = run_name()
        _depth[name] += 1
        try:
            yield
        finally:
            _depth[name] -= 1
            _restore(variable, before)
    finally:
        locks.close()


def holder(locks: LockFile) -> str:
    """Name of the process that holds the turn; "" if none does."""
    return os.pread(locks.fd, _WIDTH, 0).decode().strip() if locks.is_held(_TURN) else ""


def _restore(variable: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = before


def _wait(locks: LockFile) -> None:
    deadline, told = time.monotonic() + LIMIT_S, False
    for place in (_NEXT, _TURN):
        while not locks.take(place):
            pid = holder(locks).split("-")[2:3] or ["?"]
            if time.monotonic() > deadline:
                raise BedError(
                    f"another test run on this machine (pid {pid[0]}) has measured for {LIMIT_S} s; end it"
                )
            if not told:
                told = True
                text = f"waiting for another test run on this machine (pid {pid[0]})"
                print(text, file=sys.stderr, flush=True)
            time.sleep(POLL_S)
    locks.give(_NEXT)
