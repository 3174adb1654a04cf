#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Inject causes of jitter into steps of a program, one at a time, record each, and print what the diagnosis says of it.

The program says when each cause acted: a slow step that lies in that time is affected. Printed are the first cause of the slow steps
and whether it is a right one, and which share of the affected steps' extra time the right ones have. Nothing fails: how often a
correct tree is wrong here was not counted yet (tests/machinery/harness/gate.py). Exit codes: 0 it ran, 1 a run failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parents[1]), str(ROOT / "tools/nsight-report"), str(ROOT / "tools/nsight-demo")]

import nsight_report  # noqa: E402
import numpy as np  # noqa: E402
from machinery.testbed.host import stolen_ms  # noqa: E402
from machinery.testbed.limits import memory_group  # noqa: E402
from nsight_demo.processes import BedError  # noqa: E402
from nsight_report.errors import NsightError  # noqa: E402

RECORDER = ROOT / "tools/nsight-record/nsight-record"
STEPS, EVERY = 2000, 50
MEMORY = 64 << 20
#: The slowest of them, as far as every one can be affected.
SLOW = f"p{100 - 100 / EVERY:g}-100"
JAVA = ("-XX:+UseParallelGC", "-XX:ParallelGCThreads=2", "-Xms16m", "-Xmx16m", "-Xmn6m")
_SAFEPOINT = re.compile(r"^\[(\d+)ns\] Safepoint .*Total:\s*(\d+) ns", re.MULTILINE)


@dataclass(frozen=True)
class Cause:
    """``right``: a pattern of causes that name it; ``wrong``: of causes that must not come first. With neither it is not judged."""

    name: str
    right: str = ""
    note: str = ""
    wrong: str = ""


CAUSES = (
    Cause("none", note="not judged: whatever this machine does by itself is slow"),
    Cause("oversubscription", r"crowd \(A\)"),
    Cause("garbage collector", r"Garbage collection \(A\)|Lock wait \(A\)", "Java, its collector's threads on the same core"),
    Cause("page faults", r"Page faults \(A\)", "each as long as the recorder measured one"),
    Cause("reclaim", r"Memory reclaim \(A\)", "of 16 MiB of a mapped file, as memory.reclaim or memory.force_empty asks for it"),
    Cause("compaction", r"Memory compaction \(A\)", "of all memory, as /proc/sys/vm/compact_memory asks for it"),
    Cause("page migration", r"NUMA balancing and page migration \(A\)", "to the other memory node"),
    Cause("TLB shootdown", r"Inter-processor interrupts \(A\)|TLB flushes \(A\)", "what it costs a virtual machine lies outside of the interrupt's handler"),
    Cause("timers", r"Timer interrupt \(A\)|Timers \(A\)", "4,000 timers at once"),
    Cause("I/O", r"Blocked on I/O or memory \(A\)|Disk I/O \(A\)"),
    Cause("lock convoy", r"Lock wait \(A\)", "the lock's holder is on the other core"),
    Cause("lock-free", note="the same holder, and no lock: right is any first cause but a lock", wrong=r"Lock wait \(A\)"),
    Cause("sleep", r"Lock wait \(A\)|Wake-up \(A\)|CPU idle \(A\)", "it sleeps for what comes 100 us later, where it spins otherwise"),
)  # fmt: skip
#: What nothing here can inject or show.
ABSENT = (
    "kworker: no work queue runs on a core of one's choice without a module; as any other program its thread is named, category OS threads",
    "kswapd and kcompactd: as any other program these threads are named, category Paging",
    "steal: the host's doing; what it took of each run is in the last column",
    "C-states, frequency, SMI: a virtual machine of one idle state has none of them",
    "interrupts and softirqs of devices: make truth injects them into messages",
)


@dataclass
class Score:
    """One run. ``right``: None if not judged; ``share``: of the extra time of affected slow steps, what right causes have; None without any."""

    cause: str
    first: str
    right: bool | None
    share: float | None
    n_affected: int
    n_slow: int
    usual_us: float
    slow_us: float
    stolen_ms: int


def command(cause: Cause, file: Path, programs: Path) -> list[str | Path]:
    """What makes the steps."""
    if cause.name == "garbage collector":
        log = f"-Xlog:safepoint:file={file}.gc:tn"
        return ["taskset", "-c", "1", "java", *JAVA, log, "-cp", programs, "Steps", str(2 * STEPS), file]
    return [programs / "victim", cause.name, str(STEPS), str(EVERY), file]


def acted(file: Path) -> np.ndarray:
    """Begin and end of each time that the cause acted."""
    log = Path(f"{file}.gc")
    if log.exists():
        found = [(int(end) - int(took), int(end)) for end, took in _SAFEPOINT.findall(log.read_text())]
    else:
        found = [tuple(map(int, line.split())) for line in Path(f"{file}.log").read_text().splitlines()]
    return np.array(found, np.int64).reshape(-1, 2)


def score(cause: Cause, capture: Path, file: Path, stolen: int) -> Score:
    """Diagnose a recording and compare."""
    opened = nsight_report.open(
        capture, intervals=str(file), direction="interval", slow=SLOW, baseline="p25-75"
    )
    causes, steps = opened.causes, opened.messages
    steps = steps[(steps["direction"] == "interval").to_numpy(bool)].set_index("message_id")
    coverage = opened.coverage
    slow = steps.loc[coverage["message_id"].to_numpy(np.int64)]
    begin, end = (slow[of].to_numpy(np.int64) for of in ("first_ns", "last_ns"))
    hit = np.zeros(len(slow), bool)
    for low, high in acted(file):
        hit |= (begin < high) & (end > low)
    found = opened.anomalies
    names = found["category"].astype(str) + " (" + found["side"].astype(str) + ")"
    right = names.str.fullmatch(cause.right) if cause.right else names == ""
    ids = slow.index.to_numpy()[hit]
    mine = np.isin(found["message_id"].to_numpy(np.int64), ids)
    whole = int(coverage.loc[np.isin(coverage["message_id"].to_numpy(np.int64), ids), "deviation_ns"].sum())
    first = str(causes["cause"].iloc[0]) if len(causes) else "-"
    judged = None
    if cause.right:
        judged = bool(re.fullmatch(cause.right, first))
    elif cause.wrong and hit.any():
        judged = not re.fullmatch(cause.wrong, first)
    return Score(
        cause.name, first, judged,
        int(found.loc[mine & right.to_numpy(bool), "deviation_ns"].sum()) / whole if whole and cause.right else None,
        int(hit.sum()), len(slow), float(steps["latency_ns"].median()) / 1000, float(slow["latency_ns"].median()) / 1000, stolen,
    )  # fmt: skip


def measure(cause: Cause, directory: Path, programs: Path) -> Score:
    """Record and score one cause. Raises CalledProcessError, BedError."""
    file, capture = directory / "steps.csv", directory / "steps.nsight"
    record = [
        RECORDER,
        "-q",
        "-f",
        "--recorder",
        "bpf",
        "--mode",
        "tracepoints",
        "--cpus",
        "0",
        "-o",
        capture,
        "--",
    ]
    stolen = stolen_ms()
    with contextlib.ExitStack() as stack:
        if cause.name == "reclaim":
            members = stack.enter_context(memory_group(MEMORY))
            files = [members.parent / name for name in ("memory.reclaim", "memory.force_empty")]
            ask = next((file for file in files if file.exists()), None)
            if not ask:
                raise BedError("this kernel reclaims a control group's memory for nobody who asks")
            record += ["env", f"RECLAIM={ask}", "sh", "-c", 'echo $$ > "$0" && exec "$@"', members]
        subprocess.run([*record, *command(cause, file, programs)], check=True, capture_output=True, text=True)
    return score(cause, capture, file, stolen_ms() - stolen)


def show(scores: list[Score]) -> None:
    """The table."""
    head = (
        "injected",
        "first cause",
        "right",
        "share of extra time",
        "affected/slow",
        "usual us",
        "slow us",
        "host absent ms",
    )
    rows = [
        (s.cause, s.first, {True: "yes", False: "NO", None: "-"}[s.right], "-" if s.share is None else f"{s.share:.2f}",
         f"{s.n_affected}/{s.n_slow}", f"{s.usual_us:.0f}", f"{s.slow_us:.0f}", str(s.stolen_ms))
        for s in scores
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    judged = [s for s in scores if s.right is not None]
    print(f"\nfirst cause right: {sum(bool(s.right) for s in judged)} of {len(judged)}")
    for cause in CAUSES:
        if cause.note and any(s.cause == cause.name for s in scores):
            print(f"{cause.name}: {cause.note}")
    print("\nnot shown here:")
    for line in ABSENT:
        print(f"  {line}")


def build(to: Path) -> None:
    """The programs. Raises CalledProcessError."""
    subprocess.run(
        ["gcc", "-O2", "-D_GNU_SOURCE", "-Wall", HERE / "victim.c", "-o", to / "victim", "-pthread"],
        check=True,
    )
    if shutil.which("javac"):
        subprocess.run(["javac", "-d", to, HERE / "Steps.java"], check=True)


def missing(cause: Cause, programs: Path) -> str:
    """Why this cannot be injected here; '' it can."""
    if cause.name == "garbage collector" and not (programs / "Steps.class").exists():
        return "javac is not installed"
    if cause.name == "page migration" and not Path("/sys/devices/system/node/node1").exists():
        return "this machine has one memory node"
    return ""


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="causes whose name matches")
    parser.add_argument("-o", "--output", type=Path, help="keep captures and score.json there")
    args = parser.parse_args()
    scores, failed = [], 0
    with tempfile.TemporaryDirectory(prefix="nsight-jitter-") as scratch:
        output = args.output or Path(scratch)
        output.mkdir(parents=True, exist_ok=True)
        build(output)
        for cause in CAUSES:
            if not re.search(args.only, cause.name):
                continue
            if lacks := missing(cause, output):
                print(f"{cause.name}: not run: {lacks}", file=sys.stderr)
                continue
            directory = output / re.sub(r"\W+", "-", cause.name)
            directory.mkdir(exist_ok=True)
            try:
                scores.append(measure(cause, directory, output))
            except (subprocess.CalledProcessError, NsightError, BedError) as error:
                failed = 1
                said = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
                print(f"{cause.name}: failed: {said}", file=sys.stderr)
        show(scores)
        (output / "score.json").write_text(json.dumps([asdict(s) for s in scores], indent=1))
    return failed


if __name__ == "__main__":
    sys.exit(main())
