#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Where the processor time of recording goes: ns a request by core and function, without a recorder and with nsight-record.

    .venv/bin/python tests/evaluation/bench/recorder_profile.py [--server memcached] [--connections 8] [--rounds 3]

Closed loop; server on core 1, client and recorder on core 0. perf samples cpu-clock on all cores in both cases. Prints the means of all
rounds for the functions whose time grew most, then the sum. A sample lands where interrupts are enabled next, so what runs with
interrupts off is seen at their end.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [
    str(HERE),
    *(str(ROOT / part) for part in ("tests", "tools/nsight-report", "tools/nsight-demo")),
]

import pandas as pd  # noqa: E402
import recorders  # noqa: E402
from machinery.testbed.bed import Server, Testbed  # noqa: E402
from nsight_demo.processes import BedError  # noqa: E402
from recorder_servers import answered, recording  # noqa: E402
from recorders import NOTHING, Recorder  # noqa: E402

HZ = 4000
LOADED_S = 3.0


def sampled(bed: Testbed, server: Server, connections: int, directory: Path) -> pd.Series:
    """ns a request by (core, function), of one run under load."""
    data = directory / "perf.data"
    command = [
        str(recorders.find("perf")),
        "record",
        "-q",
        "-e",
        "cpu-clock",
        "-F",
        str(HZ),
        "-a",
        "-o",
        str(data),
    ]
    options = ["-c", str(connections), "-d", str(LOADED_S)]
    perf = bed.start("perf", [*command, "--", "sleep", str(LOADED_S)], grace_s=30)
    read = answered(bed, server, options, directory / "load.tsv")
    if perf.wait():
        raise BedError(f"perf record failed: {perf.output()}")
    report = [
        str(recorders.find("perf")),
        "report",
        "-i",
        str(data),
        "--stdio",
        "-q",
        "-g",
        "none",
        "-F",
        "sample,cpu,sym",
        "-t",
        "|",
    ]
    text = subprocess.run(report, capture_output=True, text=True, check=True).stdout
    rows = pd.read_csv(io.StringIO(text), sep="|", names=["n", "cpu", "function"], skipinitialspace=True)
    # The number of a BPF program's build differs.
    rows["function"] = rows["function"].str.replace(r"bpf_prog_[0-9a-f]+_", "BPF program ", regex=True)
    return rows.groupby(["cpu", "function"])["n"].sum() * (1e9 / HZ / (read()["rate"] * LOADED_S))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", default="memcached", choices=("memcached", "redis", "nginx"))
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-n", "--lines", type=int, default=30, help="of functions (default: 30)")
    args = parser.parse_args()
    if not recorders.find("perf"):
        parser.error("perf is not installed (hint: apt install linux-perf)")
    ours: Recorder = recorders.nsight(recorders.chooses_recorder())[0]
    means = {}
    found: dict[str, list[pd.Series]] = {NOTHING: [], ours.name: []}
    with tempfile.TemporaryDirectory(prefix="nsight-bench-") as name, Testbed() as bed:
        server = bed.start_server(args.server)
        for _ in range(args.rounds):
            found[NOTHING].append(sampled(bed, server, args.connections, Path(name)))
            with recording(bed, ours, server.port) as running:
                found[ours.name].append(sampled(bed, server, args.connections, Path(name)))
                running.stop()
    for kind, runs in found.items():
        means[kind] = pd.concat(runs, axis=1).fillna(0).mean(axis=1)
    both = pd.DataFrame(means).fillna(0)
    both["more"] = both[ours.name] - both[NOTHING]
    print(
        f"{args.server}, {args.connections} connections: ns a request\n{'core':>4} {'nothing':>9} {'recorded':>9} {'more':>8}  function"
    )
    sums = both.groupby("cpu").sum().assign(function="all").set_index("function", append=True)
    shown = pd.concat([both.sort_values("more", ascending=False).head(args.lines), sums])
    for (cpu, function), *ns in shown[[NOTHING, ours.name, "more"]].itertuples():
        print(f"{cpu:>4} {ns[0]:9.0f} {ns[1]:9.0f} {ns[2]:8.0f}  {function}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
