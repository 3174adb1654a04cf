#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Overhead of nsight-monitor on a server, compared with no monitor and with other monitors, in interleaved rounds.

    .venv/bin/python tests/evaluation/bench/bench_monitor.py [--server memcached] [--rounds N] [--quick] [-o FILE]

The server runs on core 1; the client and the monitors' own processes run on core 0. The loads and figures are those of
bench_recorder.py: closed loops of 8 and 50 connections, then Poisson arrivals at 2, 17 and 60 % of the capacity; x is the median of
each round's ratio to no monitor. A monitor that cannot run here has a row with the reason. Then, in one more closed loop, ns per
run of each BPF program, as measured by the kernel; about 60 ns of that are the cost of measuring.

Needs root. Exit codes: 0 every goal is met, 1 a goal is missed or a program failed, 2 usage, 4 not root.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import recorders  # noqa: E402
from machinery.harness import private  # noqa: E402
from machinery.testbed.bed import Testbed  # noqa: E402
from nsight_demo.processes import BedError  # noqa: E402
from recorder_figures import Goal  # noqa: E402
from recorder_servers import CLOSED, OPEN, Servers, Sizes, answered  # noqa: E402
from recorders import Recorder, RecorderError  # noqa: E402

ROOT = HERE.parents[2]
PROGRAM = ROOT / "tools/nsight-monitor/histograms/nsight-histograms"
FULL, QUICK = Sizes(5, 3.0, 10_000), Sizes(1, 1.0, 1_100)
#: The stages that netstacklat also has, and for which this kernel has tracepoints.
NETSTACKLAT_STAGES = (
    "ip-start,tcp-start,tcp-socket-enqueued,udp-socket-enqueued,tcp-socket-read,udp-socket-read"
)
ALL = "nsight-monitor, all stages"
THROUGHPUT_LEAST, TAIL_MOST = 0.99, 1.03


def _loaded(pid: int, directory: Path) -> bool:
    return bool(recorders.programs(pid))


def monitors(netstacklat: str | None) -> list[Recorder]:
    """Each monitors the whole machine, as in permanent use, except tcppktlat."""
    other = netstacklat or recorders.find("netstacklat") or recorders.find("netstacklat-libbpf")
    missing = "" if PROGRAM.exists() else "not built (make build)"
    ours = [str(PROGRAM), "--interval-ms", "1000"]
    return [
        Recorder(ALL, lambda f, port, cpu: ours, _loaded, missing),
        Recorder("nsight-monitor, by port", lambda f, port, cpu: [*ours, "--group-by", "port"], _loaded, missing),
        Recorder(
            "nsight-monitor, netstacklat's", lambda f, port, cpu: [*ours, "--stages", NETSTACKLAT_STAGES], _loaded, missing
        ),
        Recorder(
            "netstacklat",
            lambda f, port, cpu: [str(other), "-r", "1"],
            _loaded,
            "" if other else "netstacklat is not installed; it needs function probes, too",
        ),
        next(r for r in recorders.others() if r.name == "tcppktlat"),
    ]  # fmt: skip


def goals(servers: Servers, kind: str) -> Iterator[Goal]:
    """Sum over all stages."""
    load = CLOSED[-1]
    yield Goal(
        f"{kind}, {load}: throughput", servers.ratio(kind, load, ALL, "rate"), THROUGHPUT_LEAST, at_most=False
    )
    load = OPEN[-1]
    yield Goal(f"{kind}, {load}: p99.9", servers.ratio(kind, load, ALL, "p99.9"), TAIL_MOST, at_most=True)


def programs(bed: Testbed, kind: str, sizes: Sizes, directory: Path) -> list[dict[str, Any]]:
    """Runs and ns per run of each BPF program, over one closed loop."""
    server = bed.start_server(kind)
    argv = [str(PROGRAM), "--cost", "--port", str(server.port)]
    monitor = bed.start("monitor", argv, cpu=bed.load_cpu)
    try:
        figures = answered(bed, server, CLOSED[-1].options(sizes, 0, 1), directory / "load.tsv")()
    finally:
        monitor.signal(2)
        monitor.wait(60)
        server.process.stop()
    assert monitor.log
    last = json.loads(monitor.log.read_text().splitlines()[-1])
    found = [
        {
            "program": name,
            "runs_a_request": row["runs"] / max(figures["n"], 1),
            "ns": row["ns"] / max(row["runs"], 1),
        }
        for name, row in last["cost"].items()
    ]
    found.append({"program": "all", "runs_a_request": sum(f["runs_a_request"] for f in found),
                  "ns": sum(row["ns"] for row in last["cost"].values()) / max(figures["n"], 1)})  # fmt: skip
    return found


def run(args: argparse.Namespace, stored: dict[str, Any]) -> Iterator[Goal]:
    """Measure, print, and add to ``stored``."""
    servers = Servers(args.sizes, args.seed, monitors(args.netstacklat))
    stored |= {
        "rows": servers.rows,
        "no_figures": servers.failed,
        "capacities": servers.capacities,
        "programs": {},
    }
    with tempfile.TemporaryDirectory(prefix="nsight-bench-") as name, Testbed() as bed:
        for kind in args.server.split(","):
            servers.run(bed, kind, Path(name))
            print(*servers.lines(kind), sep="\n", flush=True)
            stored["programs"][kind] = found = programs(bed, kind, args.sizes, Path(name))
            print(f"\n{kind}: BPF programs with --cost, runs a request and ns a run (all: ns a request)")
            for row in found:
                print(f"  {row['program']:24} {row['runs_a_request']:6.2f} {row['ns']:7.0f}")
            yield from goals(servers, kind)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", default="memcached", help="separated by commas (default: memcached)")
    parser.add_argument("--rounds", type=int, help=f"default {FULL.rounds}")
    parser.add_argument(
        "--quick", action="store_true", help=f"one round of {QUICK.seconds:g} s a load, only to try"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order of monitors (default: 1)")
    parser.add_argument(
        "--netstacklat", metavar="PROGRAM", help="that of bpf-examples or bcc (default: on the path)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="every figure, as JSON")
    args = parser.parse_args()
    usual = QUICK if args.quick else FULL
    args.sizes = Sizes(args.rounds or usual.rounds, usual.seconds, usual.requests)
    if os.geteuid():
        print("error: BPF programs and namespaces need root\nhint: sudo make bench", file=sys.stderr)
        return 4
    private.mounts()
    stored: dict[str, Any] = {}
    try:
        found = list(run(args, stored))
    except (BedError, RecorderError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(*found, sep="\n")
    if args.output:
        args.output.write_text(json.dumps(stored | {"goals": [g.as_dict() for g in found]}, indent=1))
    return 0 if all(g.met for g in found) else 1


if __name__ == "__main__":
    sys.exit(main())
