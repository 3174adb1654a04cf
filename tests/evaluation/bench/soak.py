#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Run the flight recorder until 10^8 records went through its memory, and check whether the memory grows.

    .venv/bin/python tests/evaluation/bench/soak.py                  make soak
    .venv/bin/python tests/evaluation/bench/soak.py --records 1e6    a short run of a minute

A generator sends datagrams as fast as it can; a window is requested every ten seconds. Each line: seconds, records so
far, resident memory of nsight-record, nsight-collect and nsight-clock in kB, their processor time, windows, disk.
Growth is the resident memory at the end minus that after 80 s, when the clock readings that it keeps are complete (with
fewer windows, after the third); it must stay below 4 MB. Exit codes: 0 it does not grow, 1 it grows or failed, 2 usage,
130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from machinery.testbed.bed import Testbed  # noqa: E402
from machinery.testbed.ports import reserved  # noqa: E402
from nsight_demo.processes import Process  # noqa: E402
from recorder_own import BATCH  # noqa: E402

ROOT = HERE.parents[2]
RECORD = ROOT / "tools/nsight-record/nsight-record"
MOST_GROWTH_KB = 4096
WINDOW_S = 10
HANGS_S = 60


def status(pid: int) -> tuple[int, float]:
    """Private resident memory of the process in kB, and its processor seconds."""
    text = Path(f"/proc/{pid}/status").read_text()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    m = re.search(r"RssAnon:\s+(\d+)", text)
    return int(m[1]) if m else 0, seconds


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def asked_window(recorder: Process, directory: Path) -> Path:
    """Request a window, and wait until it is complete."""
    recorder.signal(signal.SIGUSR1)
    deadline = time.monotonic() + HANGS_S
    while time.monotonic() < deadline:
        for path in directory.glob("*.nsight/manifest.json"):
            if json.loads(path.read_text())["state"] == "complete":
                return path.parent
        time.sleep(0.1)
    raise SystemExit(f"error: no window came: {recorder.output()}")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=float, default=1e8, help="(default 1e8)")
    args = parser.parse_args()
    with (
        Testbed() as bed,
        reserved() as (port,),
        tempfile.TemporaryDirectory(prefix="nsight-soak-") as directory,
    ):
        argv = [
            str(RECORD),
            "--flight",
            "-o",
            f"{directory}/f",
            "--port",
            str(port),
            "--trigger",
            "latency=10s",
        ]
        argv += ["--windows-per-hour", "3600", "--most-disk", "100G", "--most-cpu", "0", "--before", "0.2"]
        recorder = bed.start("nsight-record", argv, grace_s=20)
        while "flight recorder:" not in recorder.output():
            recorder.check_alive()
            time.sleep(0.1)
        pids = [recorder.pid, *children(recorder.pid)]
        generator = bed.start("batch", [str(BATCH), "-p", str(port), "-r", "2000000", "-d", "86400"])
        began, n_windows, rss, records, base = time.monotonic(), 0, 0, 0, 0
        while records < args.records or n_windows < 4:
            time.sleep(WINDOW_S)
            for running in (recorder, generator):
                running.check_alive()
            n_windows += 1
            window = asked_window(recorder, Path(directory, "f"))
            records = json.loads((window / "manifest.json").read_text())["flight"]["records_so_far"]
            size = sum(p.stat().st_size for p in window.rglob("*") if p.is_file())
            shutil.rmtree(window)  # this is not a test of the disk
            of = [status(pid) for pid in pids]
            rss = sum(kb for kb, _ in of)
            base = rss if n_windows in (3, 8) else base
            print(
                f"{time.monotonic() - began:6.0f} s  {records:>13,} records  {' '.join(f'{kb:>7}' for kb, _ in of)} kB  "
                f"{sum(s for _, s in of):7.1f} s of processors  window of {size / 1e6:,.0f} MB",
                flush=True,
            )
        recorder.signal(signal.SIGTERM)
        recorder.wait(HANGS_S)
        said = recorder.output().splitlines()[-2:]
    growth = rss - base
    print("\n".join(said))
    print(
        f"growth of resident memory: {growth} kB (at most {MOST_GROWTH_KB}): {'ok' if growth <= MOST_GROWTH_KB else 'MISSED'}"
    )
    return 0 if growth <= MOST_GROWTH_KB else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
