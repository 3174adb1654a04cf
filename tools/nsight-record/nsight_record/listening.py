# SPDX-License-Identifier: GPL-2.0-only
"""Connection attempts that met a full accept queue during a recording.

No probe sees them: the kernel drops such a SYN without a drop reason (tcp_conn_request), and no message begins before the client
tries again, a second later. Only a counter of the network namespace shows them.
"""

from __future__ import annotations

import math
import time
from collections import deque
from pathlib import Path

_GROUP, _NAME = "TcpExt:", "ListenOverflows"


def overflows(root: Path, only: int = 0) -> dict[int, int]:
    """The counter of each network namespace that has a process, by inode number; ``only``: of that one."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    for process in (root / "proc").glob("[0-9]*"):
        try:
            inum = (process / "ns/net").stat().st_ino
            if inum in seen or only not in (0, inum):
                continue
            lines = (process / "net/netstat").read_text().splitlines()
        except OSError:  # it ended in the meantime, or belongs to somebody else
            continue
        seen.add(inum)
        # A line of names, then a line of values.
        rows: list[list[str]] = [line.split() for line in lines if line.startswith(_GROUP)]
        counters = dict(zip(rows[0], rows[1], strict=False)) if len(rows) > 1 else {}
        if counters.get(_NAME, "").isdecimal():
            found[inum] = int(counters[_NAME])
    return found


def between(before: dict[int, int], after: dict[int, int]) -> int:
    """Growth of the counters. A namespace that is only in one reading had no process at the other, and is not counted."""
    return sum(max(count - before[inum], 0) for inum, count in after.items() if inum in before)


class Watch:
    """Readings of the counters: the newest one and the one before."""

    def __init__(self, root: Path, only: int = 0, every_s: float = math.inf) -> None:
        self._root = root
        self._only = only
        self._every_s = every_s
        self._readings = deque([(time.monotonic(), overflows(root, only))], maxlen=2)

    def tick(self) -> None:
        """Read again when it is time."""
        if time.monotonic() - self._readings[-1][0] >= self._every_s:
            self._readings.append((time.monotonic(), overflows(self._root, self._only)))

    def told(self) -> int:
        """``manifest.listen_overflows`` for at least the last ``every_s`` seconds, or since the beginning."""
        return between(self._readings[0][1], overflows(self._root, self._only))
