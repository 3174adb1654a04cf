#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Inject causes of jitter into steps of a program, one at a time, record each, and print its diagnosis.

Causes that need hardware a virtual machine does not have, or that cannot be triggered, are in generated recordings (emulated.py).
The program logs when each cause acted: a slow step that lies in that time is affected. Printed are the first cause of the slow steps,
whether it is a right one, and the share of the right causes in the affected steps' extra time. Wrong answers fail nothing: how often
a correct tree is wrong here has not been counted yet (tests/machinery/harness/gate.py). Exit codes: 0 it ran, 1 a run failed.
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
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parents[1]), str(ROOT / "tools/nsight-report"), str(ROOT / "tools/nsight-demo")]

from machinery.testbed.host import stolen_ms  # noqa: E402
from machinery.testbed.limits import memory_group  # noqa: E402
from nsight_demo.processes import BedError  # noqa: E402
from nsight_report.errors import NsightError  # noqa: E402

from evaluation.jitter import emulated  # noqa: E402
from evaluation.jitter.score import EVERY, Cause, Score, lines, score  # noqa: E402

RECORDER = ROOT / "tools/nsight-record/nsight-record"
STEPS = 2000
MEMORY = 64 << 20
JAVA = ("-XX:+UseParallelGC", "-XX:ParallelGCThreads=2", "-Xms16m", "-Xmx16m", "-Xmn6m")


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
#: Causes that cannot be injected or shown here.
ABSENT = (
    "kswapd and kcompactd: as any other program these threads are named, category Paging",
    "SMI: nothing that mode tracepoints records tells it from the thread's own work",
    "interrupts and softirqs of devices: make truth injects them into messages",
)


def command(cause: Cause, file: Path, programs: Path) -> list[str | Path]:
    """The program that makes the steps."""
    if cause.name == "garbage collector":
        log = f"-Xlog:safepoint:file={file}.gc:tn"
        return ["taskset", "-c", "1", "java", *JAVA, log, "-cp", programs, "Steps", str(2 * STEPS), file]
    return [programs / "victim", cause.name, str(STEPS), str(EVERY), file]


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


def show(scores: list[Score], made_up: list[Score]) -> None:
    """Both tables, with remarks."""
    print("\n".join(lines(scores)))
    for cause in CAUSES:
        if cause.note and any(s.cause == cause.name for s in scores):
            print(f"{cause.name}: {cause.note}")
    if made_up:
        print("\nin recordings that were made up:", *lines(made_up), sep="\n")
    print("\nnot shown here:", *ABSENT, sep="\n  ")


def build(to: Path) -> None:
    """Build the programs. Raises CalledProcessError."""
    subprocess.run(
        ["gcc", "-O2", "-D_GNU_SOURCE", "-Wall", HERE / "victim.c", "-o", to / "victim", "-pthread"],
        check=True,
    )
    if shutil.which("javac"):
        subprocess.run(["javac", "-d", to, HERE / "Steps.java"], check=True)


def missing(cause: Cause, programs: Path) -> str:
    """Why this cannot be injected here; '' if it can."""
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
    scores: list[Score] = []
    made_up: list[Score] = []
    failed = 0
    with tempfile.TemporaryDirectory(prefix="nsight-jitter-") as scratch:
        output = args.output or Path(scratch)
        output.mkdir(parents=True, exist_ok=True)
        build(output)
        for cause in (*CAUSES, *emulated.CAUSES):
            if not re.search(args.only, cause.name):
                continue
            if lacks := missing(cause, output):
                print(f"{cause.name}: not run: {lacks}", file=sys.stderr)
                continue
            directory = output / re.sub(r"\W+", "-", cause.name)
            directory.mkdir(exist_ok=True)
            try:
                if cause in emulated.CAUSES:
                    made_up.append(score(cause, *emulated.write(directory, cause, STEPS), 0))
                else:
                    scores.append(measure(cause, directory, output))
            except (subprocess.CalledProcessError, NsightError, BedError, OSError) as error:
                failed = 1
                said = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
                print(f"{cause.name}: failed: {said}", file=sys.stderr)
        show(scores, made_up)
        (output / "score.json").write_text(json.dumps([asdict(s) for s in (*scores, *made_up)], indent=1))
    return failed


if __name__ == "__main__":
    sys.exit(main())
