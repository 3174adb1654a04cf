# SPDX-License-Identifier: GPL-2.0-only
"""Speed of the ways from an Intel PT recording to calls and returns, in one interleaved run.

    .venv/bin/python tests/bench/bench_pt.py [--capture FOLDER] [--repeats N] [--sizes 1,4,16]

Without a capture, a committed one is taken. Its one core is multiplied to get larger recordings. The peer is
what perf users do today: a script with process_event, here one that does nothing, so that only perf's part is
counted. Aim: the dlfilter takes at most an eighth of its processor time. Exit code 1 when that is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pt_scale

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "perf-scripts"))

from nsight_perf import edge_stream, perf_file  # noqa: E402
from pt_emulation.fixtures import unpack  # noqa: E402

SCRIPT = ROOT / "perf-scripts/nsight.py"
FILTER = ROOT / "perf-scripts/dlfilters/nsight-edges.so"
NATIVE = ROOT / "build/cargo/release/nsight-decode"
AIM = 8
PEER = "process_event, doing nothing"
OURS = "dlfilter"

NO_OP = "def process_event(sample):\n    pass\n"
CALL_RETURN = """perf_db_export_mode = True
perf_db_export_calls = True
def call_return_table(*row):
    pass
"""


@dataclass
class Cost:
    """Least seconds of wall clock and of processor over the repeats, and most memory."""

    wall: float = float("inf")
    cpu: float = float("inf")
    memory: int = 0


@dataclass
class Input:
    """A recording, and a window of it as perf and as the decoder name it."""

    data: Path
    symfs: Path
    window: tuple[int, int] | None = None

    def perf(self) -> list[str]:
        """Options of perf script."""
        made = ["-i", str(self.data), "--symfs", str(self.symfs)]
        if self.window:
            made += ["--time", ",".join(f"{t // 10**9}.{t % 10**9:09d}" for t in self.window)]
        return made

    def native(self) -> list[str]:
        """Options of nsight-decode."""
        made = [str(self.data), "--symfs", str(self.symfs)]
        return made + (["--time", "-".join(map(str, self.window))] if self.window else [])


def routes(given: Input, folder: Path) -> dict[str, list[str]]:
    """Command of each way."""
    perf = ["perf", "script", *given.perf()]
    out = str(folder / "out.edges")
    found = {
        PEER: [*perf, "--itrace=cr", "-s", str(folder / "no_op.py")],
        "nsight.py --api process_event": [
            *perf, "--itrace=cre", "-s", str(SCRIPT), "--", "--api", "process_event", "-o", out,
        ],
        "nsight.py": [*perf, "--itrace=cre", "-s", str(SCRIPT), "--", "-o", out],
        "perf pairs calls (db-export)": [*perf, "--itrace=cr", "-s", str(folder / "call_return.py")],
        "perf text": [*perf, "--itrace=cr", "-F", "pid,tid,cpu,time,flags,ip,sym,addr,dso"],
        OURS: [*perf, "--itrace=cr", "--dlfilter", str(FILTER), "--dlarg", out],
        "nsight-edges (dlfilter and losses)": [
            sys.executable, str(ROOT / "perf-scripts/nsight-edges"), "-i", str(given.data), "-o", out,
            "--", *given.perf()[2:], "--itrace=cr",
        ],
        "perf decodes, no samples": [*perf, "--itrace=e"],
    }  # fmt: skip
    if NATIVE.exists():
        native = [str(NATIVE), "edges", *given.native(), "-o", out]
        found |= {"nsight-decode, one thread": [*native, "--jobs", "1"], "nsight-decode": native}
    return found


def run(argv: Sequence[str], cost: Cost) -> None:
    """Run it once, and keep what it cost, with the processes it waited for."""
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


def measure(given: Input, folder: Path, repeats: int, only: Sequence[str] = ()) -> dict[str, Cost]:
    """Every way in turn, ``repeats`` times over."""
    commands = {name: argv for name, argv in routes(given, folder).items() if not only or name in only}
    costs = {name: Cost() for name in commands}
    for _ in range(repeats):
        for name, argv in commands.items():
            run(argv, costs[name])
    return costs


def show(title: str, costs: dict[str, Cost], n_edges: int, trace_bytes: int) -> None:
    """One table."""
    print(f"\n{title}: {trace_bytes / 1e6:.2f} MB of trace, {n_edges:,} edges")
    print(f"  {'':34} {'wall s':>7} {'CPU s':>7} {'us/edge':>8} {'MB/s':>7} {'x faster':>8} {'MiB':>6}")
    for name, cost in costs.items():
        print(
            f"  {name:34} {cost.wall:7.2f} {cost.cpu:7.2f} {1e6 * cost.cpu / max(n_edges, 1):8.2f}"
            f" {trace_bytes / 1e6 / cost.wall:7.2f} {costs[PEER].cpu / cost.cpu:8.1f} {cost.memory >> 10:6}"
        )


def count_edges(given: Input, folder: Path) -> tuple[int, int, int]:
    """Edges, and the times of the first and the last, from the dlfilter's stream."""
    subprocess.run(routes(given, folder)[OURS], check=True, capture_output=True)
    times: list[int] = []
    with (folder / "out.edges").open("rb") as file:
        for kind, columns in edge_stream.read(file):
            if kind == edge_stream.EDGES:
                times += columns[0]
    return len(times), min(times, default=0), max(times, default=0)


def bench(capture: Path, folder: Path, repeats: int, sizes: Sequence[int]) -> bool:
    """Everything; whether the aim was met."""
    (folder / "no_op.py").write_text(NO_OP)
    (folder / "call_return.py").write_text(CALL_RETURN)
    source = Input(capture / "capture.nsight/perf.data", capture / "symfs")
    trace = perf_file.read(str(source.data)).trace_bytes
    met = True
    middle = sizes[len(sizes) // 2]
    for size in sizes:
        given = Input(folder / f"x{size}", source.symfs)
        pt_scale.multiply(source.data, given.data, size)
        n_edges, first, last = count_edges(given, folder)
        costs = measure(given, folder, repeats)
        show(f"{size} core(s)", costs, n_edges, size * trace)
        if size == middle:
            met = costs[PEER].cpu >= AIM * costs[OURS].cpu
            ratio = costs[PEER].cpu / costs[OURS].cpu
            for percent in (10, 1):
                half = (last - first) * percent // 200
                window = ((first + last) // 2 - half, (first + last) // 2 + half)
                narrow = Input(given.data, given.symfs, window)
                n_in_window, *_ = count_edges(narrow, folder)
                found = measure(narrow, folder, repeats)
                show(
                    f"{size} core(s), window of {percent} %",
                    found,
                    n_in_window,
                    size * trace * percent // 100,
                )
    print(f"\ndlfilter against {PEER}: {ratio:.1f} times; aim {AIM}: {'met' if met else 'MISSED'}")
    if not NATIVE.exists():
        print("nsight-decode is not built: left out")
    return met


def main() -> int:
    """Parse arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--capture", type=Path, metavar="FOLDER", help="(default: the committed one, hog)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="(default: 3)")
    parser.add_argument("--sizes", default="1,4,16", help="numbers of cores (default: 1,4,16)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsight-bench-") as name:
        folder = Path(name)
        capture = options.capture or unpack.unpack("hog", folder)
        sizes = [int(size) for size in options.sizes.split(",")]
        return 0 if bench(capture, folder, options.repeats, sizes) else 1


if __name__ == "__main__":
    sys.exit(main())
