#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Makes the kernel reclaim, compact and move memory. Writes for each time: what, begin, end, and this thread's time on a core, in ns.

memory_work.py FILE [GROUP]   GROUP: directory of a control group, which the program enters; without it, nothing is reclaimed.
                              Pages are moved if there are two memory nodes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20
_MIGRATE_PAGES = 256  # of x86-64
_TIMES = 3


def timed(what: str, act: Callable[[], object]) -> str:
    """A line of the file."""
    begin, had = time.monotonic_ns(), time.thread_time_ns()
    act()
    return f"{what} {begin} {time.monotonic_ns()} {time.thread_time_ns() - had}\n"


def reclaim(group: Path) -> None:
    """Reclaim mapped pages of a file, as far as there are any."""
    ask = group / "memory.reclaim"
    fd = os.open(ask if ask.exists() else group / "memory.force_empty", os.O_WRONLY)
    try:
        os.write(fd, b"16M")
    except BlockingIOError:  # it reclaimed less than requested
        pass
    finally:
        os.close(fd)


def compact() -> None:
    """Compact all memory."""
    Path("/proc/sys/vm/compact_memory").write_text("1")


def move(libc: ctypes.CDLL, to: int) -> None:
    """Move every page of this process here from the other one of two nodes."""
    sets = [ctypes.c_ulong(1 << node) for node in (1 - to, to)]
    libc.syscall(_MIGRATE_PAGES, 0, ctypes.c_ulong(8), *map(ctypes.byref, sets))


def main() -> None:
    """Entry point."""
    out = Path(sys.argv[1])
    lines = []
    if len(sys.argv) > 2:
        group, file = Path(sys.argv[2]), out.with_suffix(".data")
        (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
        with file.open("w+b") as f:
            f.truncate(16 * MIB)
            mapped = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
            for _ in range(_TIMES):
                sum(mapped[n] for n in range(0, 16 * MIB, mmap.PAGESIZE))
                lines.append(timed("reclaim", lambda: reclaim(group)))
        file.unlink()
    lines += [timed("compaction", compact) for _ in range(_TIMES)]
    if Path("/sys/devices/system/node/node1").exists():
        libc = ctypes.CDLL(None)
        lines += [timed("migration", lambda to=n % 2: move(libc, to)) for n in range(_TIMES)]  # type: ignore[misc]
    out.write_text("".join(lines))


if __name__ == "__main__":
    main()
