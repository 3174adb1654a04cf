# SPDX-License-Identifier: GPL-2.0-only
"""Speed of the different ways to decode an Intel PT recording into calls and returns, in one interleaved run.

    .venv/bin/python tests/evaluation/bench/bench_pt.py [--capture DIRECTORY] [--repeats N] [--sizes 1,4,16]

Without a capture, a committed one is used (hog: two minutes). Only its trace was cut, so most of the data read are side-band
records of the whole recording. Therefore the decoder's aims apply only to whole captures (make-capture wake-up). Cores are multiplied to
get larger recordings; beyond 4 times, only some ways are measured, and perf's slow one once. The peer is what perf users do today: a
script with process_event, here an empty one, so that only perf's part is counted. `bare libipt` decodes blocks in the same slices
and threads, and produces no output; it has this tree's patches. Windows are 10 % and 1 % of the time in the middle, and the lifetimes of 1 % of the
messages (of truth.json), chosen at random several times.

Exit code 1 when an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pt_scale

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "perf-scripts"))

from machinery.pt_emulation.fixtures import unpack  # noqa: E402
from nsight_perf import edge_stream, perf_file  # noqa: E402

SCRIPT = ROOT / "perf-scripts/nsight.py"
FILTER = ROOT / "perf-scripts/dlfilters/nsight-edges.so"
NATIVE = ROOT / "build/cargo/release/nsight-decode"
PEER = "process_event, doing nothing"
OURS = "dlfilter"
ALL = str(os.cpu_count())
THREADS = {"1": "1 thread", ALL: f"{ALL} threads"}
BARE = {jobs: f"bare libipt, {name}" for jobs, name in THREADS.items()}
CALLS = {jobs: f"nsight-decode calls, {name}" for jobs, name in THREADS.items()}
#: Ways that are measured at every size; above this size, no others are.
MOST_OFTEN = (PEER, OURS, *BARE.values(), *CALLS.values())
LARGE = 4
#: Share of the messages, and how often they are chosen.
PART, PICKS, SEED = 0.01, 5, 20261121
AIM_FILTER, AIM_NATIVE, AIM_BARE, AIM_PART = 8, 30, 1, 0.03
#: Processor time per byte of trace at most so many times that of another size; and memory, MiB.
AIM_GROWTH, AIM_MEMORY = 1.1, 256

AUXTRACE_INFO = 70

T = TypeVar("T")

NO_OP = "def process_event(sample):\n    pass\n"
CALL_RETURN = """perf_db_export_mode = True
perf_db_export_calls = True
def call_return_table(*row):
    pass
"""


@dataclass
class Cost:
    """Least wall-clock and processor seconds over the repeats, and peak memory."""

    wall: float = float("inf")
    cpu: float = float("inf")
    memory: int = 0


@dataclass
class Input:
    """A recording, and a window of it in the notation of perf and of the decoder."""

    data: Path
    symfs: Path
    window: tuple[int, int] | None = None
    #: More windows, for the decoder only.
    windows: tuple[tuple[int, int], ...] = ()

    def perf(self) -> list[str]:
        """Options of perf script."""
        made = ["-i", str(self.data), "--symfs", str(self.symfs)]
        if self.window:
            made += ["--time", ",".join(f"{t // 10**9}.{t % 10**9:09d}" for t in self.window)]
        return made

    def native(self) -> list[str]:
        """Options of nsight-decode."""
        made = [str(self.data), "--symfs", str(self.symfs)]
        for window in (*self.windows, *([self.window] if self.window else [])):
            made += ["--time", "-".join(map(str, window))]
        return made


def routes(given: Input, directory: Path) -> dict[str, list[str]]:
    """Command of each way."""
    perf = ["perf", "script", *given.perf()]
    out = str(directory / "out.edges")
    found = {
        PEER: [*perf, "--itrace=cr", "-s", str(directory / "no_op.py")],
        "nsight.py --api process_event": [
            *perf, "--itrace=cre", "-s", str(SCRIPT), "--", "--api", "process_event", "-o", out,
        ],
        "nsight.py": [*perf, "--itrace=cre", "-s", str(SCRIPT), "--", "-o", out],
        "perf pairs calls (db-export)": [*perf, "--itrace=cr", "-s", str(directory / "call_return.py")],
        "perf text": [*perf, "--itrace=cr", "-F", "pid,tid,cpu,time,flags,ip,sym,addr,dso"],
        OURS: [*perf, "--itrace=cr", "--dlfilter", str(FILTER), "--dlarg", out],
        "nsight-edges (dlfilter and losses)": [
            sys.executable, str(ROOT / "perf-scripts/nsight-edges"), "-i", str(given.data), "-o", out,
            "--", *given.perf()[2:], "--itrace=cr",
        ],
        "perf decodes, no samples": [*perf, "--itrace=e"],
    }  # fmt: skip
    if NATIVE.exists():
        found |= native_routes(given, directory)
    return found


def native_routes(given: Input, directory: Path) -> dict[str, list[str]]:
    """The ways that use nsight-decode."""
    found = {}
    for jobs, name in THREADS.items():
        options = [*given.native(), "--quiet", "--jobs", jobs]
        edges = [str(NATIVE), "edges", *options, "-o", str(directory / "out.edges")]
        found[BARE[jobs]] = [*edges, "--bare"]
        found[f"nsight-decode edges, {name}"] = edges
        found[CALLS[jobs]] = [str(NATIVE), "calls", *options, "--out", str(directory / "calls")]
    return found


def run(argv: Sequence[str], cost: Cost) -> None:
    """Run it once, and record its cost, including the processes that it waited for."""
    start = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"bench_pt: error: exit status {process.returncode}: {' '.join(argv)}")
    cost.wall = min(cost.wall, wall)
    cost.cpu = min(cost.cpu, used.ru_utime + used.ru_stime)
    cost.memory = max(cost.memory, used.ru_maxrss)


def measure(given: Input, directory: Path, repeats: int, only: Sequence[str] = ()) -> dict[str, Cost]:
    """Every way in turn, ``repeats`` times over."""
    commands = {name: argv for name, argv in routes(given, directory).items() if not only or name in only}
    costs = {name: Cost() for name in commands}
    for turn in range(repeats):
        for name, argv in commands.items():
            if turn == 0 or not (only and name == PEER):
                run(argv, costs[name])
    return costs


def show(title: str, costs: dict[str, Cost], n_edges: int, trace_bytes: int) -> None:
    """One table."""
    print(f"\n{title}: {trace_bytes / 1e6:.2f} MB of trace, {n_edges:,} edges")
    columns = f"{'wall s':>7} {'CPU s':>7} {'us/edge':>8} {'MB/s':>7} {'x wall':>7} {'x CPU':>7} {'/ bare':>7} {'MiB':>6}"
    print(f"  {'':34} {columns}")
    for name, cost in costs.items():
        bare = costs.get(BARE["1" if name.endswith("1 thread") else ALL], Cost())
        native = f"{cost.wall / bare.wall:7.2f}" if "thread" in name else f"{'':7}"
        print(
            f"  {name:34} {cost.wall:7.2f} {cost.cpu:7.2f} {1e6 * cost.cpu / max(n_edges, 1):8.2f}"
            f" {trace_bytes / 1e6 / cost.wall:7.2f} {costs[PEER].wall / cost.wall:7.1f}"
            f" {costs[PEER].cpu / cost.cpu:7.1f} {native} {cost.memory >> 10:6}"
        )


def trace_bytes(data: Path) -> int:
    """Size of the Intel PT data in the recording."""
    return perf_file.read(str(data)).trace_bytes


def count_edges(given: Input, directory: Path) -> tuple[int, int, int]:
    """Edges, and the times of the first and the last, from the dlfilter's stream."""
    subprocess.run(routes(given, directory)[OURS], check=True, capture_output=True)
    n, first, last = 0, sys.maxsize, 0
    with (directory / "out.edges").open("rb") as file:
        for kind, columns in edge_stream.read(file):
            if kind == edge_stream.EDGES and len(columns[0]):
                n += len(columns[0])
                first, last = min(first, *columns[0]), max(last, *columns[0])
    return n, min(first, last), last


def apart(function: Callable[..., T], *args: object) -> T:
    """Call it in another process: the kernel never reports less memory for children than this process ever had."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def lifetimes(capture: Path, data: Path) -> list[tuple[int, int]]:
    """First and last time of each message of truth.json, in ns of perf's clock."""
    content = (data / "data").read_bytes()
    at = struct.unpack_from("<Q", content, 40)[0]
    while struct.unpack_from("<I", content, at)[0] != AUXTRACE_INFO:
        at += struct.unpack_from("<H", content, at + 6)[0]
    shift, mult, zero = struct.unpack_from("<QQQ", content, at + 24)

    def ns(tsc: int) -> int:
        low = tsc & ((1 << shift) - 1)
        return (zero + (tsc >> shift) * mult + (low * mult >> shift)) % (1 << 64)

    truth = json.loads((capture / "capture.nsight/truth.json").read_text())
    return [(ns(r["sent_tsc"]), ns(r["received_tsc"])) for r in truth["requests"] if r["received_tsc"]]


def around_messages(
    given: Input, messages: Sequence[tuple[int, int]], full: dict[str, Cost], directory: Path, repeats: int
) -> float:
    """Decode around some messages: print the cost, and return it as a share of the full processor time."""
    rng = random.Random(SEED)
    n = math.ceil(PART * len(messages))
    picks = [tuple(rng.sample(list(messages), n)) for _ in range(PICKS)]
    worst = 0.0
    print(f"  around {n} of {len(messages)} messages, mean of {PICKS} picks, against all of it:")
    for name in CALLS.values():
        each = [
            measure(Input(given.data, given.symfs, None, pick), directory, repeats, [name])[name]
            for pick in picks
        ]
        cpu = sum(cost.cpu for cost in each) / PICKS / full[name].cpu
        wall = sum(cost.wall for cost in each) / PICKS / full[name].wall
        print(f"  {name:34} {100 * cpu:6.1f} % of CPU {100 * wall:6.1f} % of wall clock")
        worst = max(worst, cpu)
    return worst


def verdict(what: str, found: float, aim: float, met: bool) -> bool:
    """One line about an aim."""
    print(f"{what}: {found:.3g}; aim {aim:g}: {'met' if met else 'MISSED'}")
    return met


def bench(capture: Path, directory: Path, repeats: int, sizes: Sequence[int], whole: bool) -> bool:
    """Measure everything; returns whether the aims were met. The decoder's aims apply only to a ``whole`` capture."""
    (directory / "no_op.py").write_text(NO_OP)
    (directory / "call_return.py").write_text(CALL_RETURN)
    source = Input(capture / "capture.nsight/perf.data", capture / "symfs")
    trace = apart(trace_bytes, source.data)
    messages = apart(lifetimes, capture, source.data)
    last_size = max(sizes)
    results: dict[int, dict[str, Cost]] = {}
    parts: dict[int, float] = {}
    for size in sizes:
        given = Input(directory / f"x{size}", source.symfs)
        apart(pt_scale.multiply, source.data, given.data, size)
        n_edges, first, last = apart(count_edges, given, directory)
        costs = measure(given, directory, repeats, MOST_OFTEN if size > LARGE else ())
        show(f"{size} times the cores", costs, n_edges, size * trace)
        results[size] = costs
        if NATIVE.exists():
            parts[size] = around_messages(given, messages, costs, directory, repeats)
        if size == last_size:
            for percent in (10, 1):
                half = (last - first) * percent // 200
                narrow = Input(
                    given.data, given.symfs, ((first + last) // 2 - half, (first + last) // 2 + half)
                )
                n_in_window, *_ = apart(count_edges, narrow, directory)
                found = measure(narrow, directory, repeats, MOST_OFTEN)
                n_bytes = size * trace * percent // 100
                show(
                    f"{size} times the cores, window of {percent} % of the time", found, n_in_window, n_bytes
                )
        shutil.rmtree(given.data)
    costs = results[last_size]
    print(f"\nat {last_size} times the cores:")
    ratio = costs[PEER].cpu / costs[OURS].cpu
    met = verdict("dlfilter, times faster than process_event", ratio, AIM_FILTER, ratio >= AIM_FILTER)
    if not NATIVE.exists():
        print("nsight-decode is not built: left out")
        return met
    if not whole:
        print("the decoder's aims: give a whole capture with --capture")
        return met
    native, bare = costs[CALLS[ALL]], costs[BARE[ALL]]
    ratio = costs[PEER].wall / native.wall
    met &= verdict("calls, times faster than process_event", ratio, AIM_NATIVE, ratio >= AIM_NATIVE)
    for what, of in (("wall clock", native.wall / bare.wall), ("processor", native.cpu / bare.cpu)):
        met &= verdict(f"calls, {what} of bare libipt, {ALL} threads", of, AIM_BARE, of <= AIM_BARE)
    part = parts[last_size]
    met &= verdict("calls around 1 % of the messages, part of all", part, AIM_PART, part <= AIM_PART)
    small, large = min(sizes), last_size
    each = [results[size][CALLS[ALL]].cpu / size for size in sizes]
    growth = max(each) / min(each)
    met &= verdict(
        f"calls, processor time per byte at {small} to {large} times the cores",
        growth,
        AIM_GROWTH,
        growth <= AIM_GROWTH,
    )
    memory = max(found[CALLS[ALL]].memory for found in results.values()) >> 10
    met &= verdict("calls, MiB", memory, AIM_MEMORY, memory <= AIM_MEMORY)
    return met


def main() -> int:
    """Parse arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--capture", type=Path, metavar="DIRECTORY", help="(default: the committed one, hog)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="(default: 3)")
    parser.add_argument("--sizes", default="1,4,16", help="numbers of cores (default: 1,4,16)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsight-bench-") as name:
        directory = Path(name)
        capture = options.capture or unpack.unpack("hog", directory)
        sizes = [int(size) for size in options.sizes.split(",")]
        return 0 if bench(capture, directory, options.repeats, sizes, options.capture is not None) else 1


if __name__ == "__main__":
    sys.exit(main())
