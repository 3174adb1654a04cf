#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Record 10^8 records: does the flight recorder's memory grow, and is each record written or counted as lost?

    .venv/bin/python tests/evaluation/bench/soak.py                  make soak
    .venv/bin/python tests/evaluation/bench/soak.py --records 1e6    a short run of four minutes

A generator sends datagrams as fast as it can.

--parts memory: the flight recorder; a window is requested every ten seconds. Each line: seconds, records so far, resident
memory of nsight-record, nsight-collect and nsight-clock in kB, their processor time, windows, disk. Growth is the resident
memory at the end minus that after 80 s, when the clock readings that it keeps are complete (with fewer windows, after the
third); it must stay below 4 MB.

--parts accounting: a recording to disk (compressed, 1 to 2 GB for 10^8 records), whose reader is stopped for three seconds now
and then, so that records are lost. Of each core and type, the BPF programs' counts of produced and lost records, and the
records that nsight-rawdata finds in the files, must agree exactly, and so must the programs' count of sends with the
generator's. Each line: seconds, records produced and lost so far, bytes of the files.

Exit codes: 0 the goals are met, 1 one is missed or a program failed, 2 usage, 130 interrupted.
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
from record_counts import RecordCounts  # noqa: E402
from recorder_own import BATCH  # noqa: E402

ROOT = HERE.parents[2]
RECORD = ROOT / "tools/nsight-record/nsight-record"
MOST_GROWTH_KB = 4096
#: At least; memory is compared with that after half of them.
WINDOWS = 16
WINDOW_S = 10
STOPPED_S = 3
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


def collector_of(pid: int) -> int:
    """The process that empties the rings."""
    for child in children(pid):
        if Path(f"/proc/{child}/comm").read_text().strip() == "nsight-collect":
            return child
    raise SystemExit("error: nsight-record runs no nsight-collect")


def generate(bed: Testbed, port: int) -> Process:
    """Datagrams as fast as one core can, until it is stopped."""
    return bed.start("batch", [str(BATCH), "-p", str(port), "-r", "2000000", "-d", "86400"])


def memory(bed: Testbed, port: int, directory: Path, most: float) -> bool:
    """Whether the flight recorder's memory stays as it is."""
    argv = [
        str(RECORD),
        "--flight",
        "-o",
        str(directory / "f"),
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
    generator = generate(bed, port)
    began, n_windows, rss, records, base = time.monotonic(), 0, 0, 0, 0
    while records < most or n_windows < WINDOWS:
        time.sleep(WINDOW_S)
        for running in (recorder, generator):
            running.check_alive()
        n_windows += 1
        window = asked_window(recorder, directory / "f")
        records = json.loads((window / "manifest.json").read_text())["flight"]["records_so_far"]
        size = sum(p.stat().st_size for p in window.rglob("*") if p.is_file())
        shutil.rmtree(window)  # this is not a test of the disk
        of = [status(pid) for pid in pids]
        rss = sum(kb for kb, _ in of)
        base = rss if n_windows == WINDOWS // 2 else base
        print(
            f"{time.monotonic() - began:6.0f} s  {records:>13,} records  {' '.join(f'{kb:>7}' for kb, _ in of)} kB  "
            f"{sum(s for _, s in of):7.1f} s of processors  window of {size / 1e6:,.0f} MB",
            flush=True,
        )
    recorder.signal(signal.SIGTERM)
    recorder.wait(HANGS_S)
    generator.stop()
    growth = rss - base
    print("\n".join(recorder.output().splitlines()[-2:]))
    met = growth <= MOST_GROWTH_KB
    print(f"growth of resident memory: {growth} kB (at most {MOST_GROWTH_KB}): {'ok' if met else 'MISSED'}")
    return met


def accounting(bed: Testbed, port: int, directory: Path, most: float) -> bool:
    """Whether each record that was produced is in a file or counted as lost."""
    capture = directory / "capture.nsight"
    argv = [str(RECORD), "-o", str(capture), "--port", str(port), "--compress", "--clients"]
    recorder = bed.start("nsight-record", argv, grace_s=20)
    while not (capture / "manifest.json").exists() or not json.loads(
        (capture / "manifest.json").read_text()
    ).get("start"):
        recorder.check_alive()
        time.sleep(0.1)
    collector = collector_of(recorder.pid)
    generator = generate(bed, port)
    counts, began = RecordCounts(capture / "records"), time.monotonic()
    while counts.produced() < most:
        os.kill(collector, signal.SIGSTOP)
        time.sleep(STOPPED_S)
        os.kill(collector, signal.SIGCONT)
        time.sleep(WINDOW_S)
        for running in (recorder, generator):
            running.check_alive()
        counts.read()
        print(
            f"{time.monotonic() - began:6.0f} s  {counts.produced():>13,} records, {counts.lost():>11,} lost  "
            f"{counts.bytes() / 1e6:,.0f} MB",
            flush=True,
        )
    generator.signal(signal.SIGTERM)
    generator.wait(HANGS_S)
    sent = int(generator.output().split()[0])
    recorder.signal(signal.SIGINT)
    recorder.wait(HANGS_S)
    counts.read()
    wrong = [*counts.wrong(directory / "decoded"), *counts.wrong_sends(sent)]
    print("\n".join(wrong))
    print(
        f"{counts.produced():,} records produced = {counts.produced() - counts.lost():,} written + {counts.lost():,} lost; "
        f"{sent:,} datagrams sent, of each core and type: {'MISSED' if wrong else 'ok'}"
    )
    return not wrong


PARTS = {"memory": memory, "accounting": accounting}


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=float, default=1e8, help="(default 1e8)")
    parser.add_argument("--parts", default=",".join(PARTS), help="separated by commas (default: all)")
    args = parser.parse_args()
    parts = [word for word in args.parts.split(",") if word]
    if unknown := [word for word in parts if word not in PARTS]:
        parser.error(f"--parts: no {unknown[0]!r} (hint: {', '.join(PARTS)})")
    met = []
    with (
        Testbed() as bed,
        reserved() as (port,),
        tempfile.TemporaryDirectory(prefix="nsight-soak-") as directory,
    ):
        for part in parts:
            print(f"{part}:", flush=True)
            met.append(PARTS[part](bed, port, Path(directory), args.records))
    return 0 if all(met) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
