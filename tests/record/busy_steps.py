#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""busy_steps.py FILE WANTED: steps of equal work without a pause on core 0; writes when each began and ended. WANTED exists meanwhile."""

import os
import sys
import threading
import time
from pathlib import Path

STEPS, STEP_NS, TRIED = 400, 20_000_000, 100_000


def work(n: int) -> int:
    """Ns that n rounds took."""
    begin = time.monotonic_ns()
    for _ in range(n):
        pass
    return time.monotonic_ns() - begin


file, wanted = Path(sys.argv[1]), Path(sys.argv[2])
os.sched_setaffinity(0, [0])
rounds = TRIED * STEP_NS // min(work(TRIED) for _ in range(5))
wanted.touch()
lines = [f"# thread {threading.get_native_id()}", "name,start,stop"]
for _ in range(STEPS):
    start = time.monotonic_ns()
    work(rounds)
    lines.append(f"step,{start},{time.monotonic_ns()}")
wanted.unlink()
file.write_text("\n".join(lines) + "\n")
