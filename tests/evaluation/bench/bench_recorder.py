#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Overhead of recording on a server, compared with other recorders in the same run.

    .venv/bin/python tests/evaluation/bench/bench_recorder.py [--server memcached] [--rounds N] [--quick] [-o FILE]

--parts: ``servers``: memcached, redis and nginx on core 1, client and recorder on core 0; closed loops of 8 and 50 connections,
then Poisson arrivals at 2, 17 and 60 % of the capacity measured by these. Latency is measured at the client, from the time when a request
was due. Under each load, each round runs all recorders, and no recorder, in random order. Tables show medians and ranges of all rounds;
x is the median of each round's ratio to no recorder. ``reader``: processor time of nsight-record's processes at 100,000 messages/s.
``rate``: its losses at --rate messages/s.

A recorder that cannot run here has a row with the reason. Goals apply to nsight-record with its defaults. Needs root; five rounds take
20 minutes per server. Exit codes: 0 every goal is met, 1 a goal is missed or a program failed, 2 usage, 4 not root.
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
from nsight_demo.servers import KINDS  # noqa: E402
from recorder_figures import Goal  # noqa: E402
from recorder_own import Flood, flooded, programs  # noqa: E402
from recorder_servers import Servers, Sizes  # noqa: E402
from recorders import Recorder, RecorderError  # noqa: E402

PARTS = ("servers", "reader", "rate")
FULL, QUICK = Sizes(5, 3.0, 10_000), Sizes(1, 1.0, 1_100)
READER_RATE, READER_SHARE = 100_000, 0.05
#: A rate counts as reached from this share of it on.
REACHED = 0.99


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="separated by commas (default: all)")
    parser.add_argument("--server", default=",".join(KINDS), help="separated by commas (default: all)")
    parser.add_argument("--rounds", type=int, help=f"default {FULL.rounds}")
    parser.add_argument("--seconds", type=float, help=f"of a load, at least (default: {FULL.seconds:g})")
    parser.add_argument(
        "--requests", type=int, help=f"of a load in open loop, at least (default: {FULL.requests})"
    )
    parser.add_argument(
        "--recorder",
        metavar="NAME",
        help="that nsight-record is run with and judged by (default: its default)",
    )
    parser.add_argument("--rate", type=int, default=500_000, help="messages/s of part rate (default: 500000)")
    parser.add_argument(
        "--own-cost", action="store_true", help="also runs and ns a run of each BPF program of nsight-record"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"one round of {QUICK.seconds:g} s a load, only to try"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order of recorders (default: 1)")
    parser.add_argument(
        "--tcppktlat", metavar="PROGRAM", help="bcc's, of libbpf-tools or bpfcc-tools (default: on the path)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="every figure, as JSON")
    args = parser.parse_args()
    for name, known in (("parts", PARTS), ("server", tuple(KINDS))):
        chosen = [word for word in getattr(args, name).split(",") if word]
        if unknown := [word for word in chosen if word not in known]:
            parser.error(f"--{name}: no {unknown[0]!r} (hint: {', '.join(known)})")
        if name == "server" and not chosen:
            parser.error("--server: none (hint: --parts leaves servers out)")
        setattr(args, name, chosen)
    usual = QUICK if args.quick else FULL
    rounds, seconds, requests = (
        getattr(usual, name) if getattr(args, name) is None else getattr(args, name)
        for name in ("rounds", "seconds", "requests")
    )
    if rounds < 1 or seconds <= 0 or requests < 1 or args.rate < 2:
        parser.error("--rounds, --seconds, --requests and --rate have to be positive numbers")
    args.sizes = Sizes(rounds, seconds, requests)
    return args


def reader(bed: Testbed, recorder: Recorder, seconds: float, stored: dict[str, Any]) -> Goal:
    """Processor time of the recorder's processes while one core receives messages."""
    found = flooded(bed, Flood(READER_RATE, (bed.app_cpu,), seconds, False), recorder)
    assert found.outcome
    share = found.cpu_s / found.seconds
    out = found.outcome
    stored["reader"] = {"rate": found.rate, "cpu_share": share, "lost": out.lost, "kind": out.kind}
    print(
        f"\nreader: {share:.1%} of a core at {found.rate:,.0f} messages/s, of {READER_RATE:,}; "
        f"{out.written / max(found.received, 1):.1f} events a message, {out.lost:,} lost",
        flush=True,
    )
    # A recorder that slows the messages down has fewer to read.
    judged = share if found.rate >= REACHED * READER_RATE else None
    return Goal(f"reader, share of a core at {READER_RATE:,} messages/s", judged, READER_SHARE, at_most=True)


def rate(bed: Testbed, recorder: Recorder, asked: int, seconds: float, stored: dict[str, Any]) -> Goal:
    """The losses when all cores receive messages."""
    flood = Flood(asked, (bed.load_cpu, bed.app_cpu), seconds, True)
    bare, found = flooded(bed, flood, None), flooded(bed, flood, recorder)
    out = found.outcome
    assert out
    stored["rate"] = {"asked": asked, "bare": bare.rate, "rate": found.rate, "produced": out.produced}
    stored["rate"] |= {"written": out.written, "lost": out.lost, "losses": out.manifest.get("losses", [])}
    stored["rate"] |= {"kind": out.kind}
    print(
        f"\nrate: {found.rate:,.0f} messages/s, of {asked:,} (recorded by nothing {bare.rate:,.0f}); "
        f"{out.produced:,} events, {out.written:,} written, {out.lost:,} lost",
        flush=True,
    )
    return Goal(f"rate, events lost at {found.rate:,.0f} messages/s", out.lost, 0, at_most=True)


def run(args: argparse.Namespace, stored: dict[str, Any]) -> Iterator[Goal]:
    """Measure, print, and add to ``stored``."""
    ours = recorders.nsight(recorders.chooses_recorder(), args.recorder)
    default = next(recorder for recorder in ours if not recorder.missing)
    servers = Servers(args.sizes, args.seed, ours + recorders.others(args.tcppktlat))
    stored |= {"judged": default.name, "rows": servers.rows, "no_figures": servers.failed}
    stored["capacities"] = servers.capacities
    with tempfile.TemporaryDirectory(prefix="nsight-bench-") as name, Testbed() as bed:
        directory = Path(name)
        for kind in args.server if "servers" in args.parts else []:
            servers.run(bed, kind, directory)
            print("\n".join(servers.lines(kind)), flush=True)
            yield from servers.goals(kind, default.name)
        if args.own_cost:
            print()
            for line in programs(bed, default, args.server[0], args.sizes.seconds, directory):
                print(line, flush=True)
        if "reader" in args.parts:
            yield reader(bed, default, args.sizes.seconds, stored)
        if "rate" in args.parts:
            yield rate(bed, default, args.rate, args.sizes.seconds, stored)


def took(stored: dict[str, Any]) -> str:
    """The recorder that nsight-record used: if its preferred one cannot run, it uses another one."""
    rows = [row for row in stored["rows"] if row["recorder"] == stored["judged"]]
    rows += [stored[part] for part in ("reader", "rate") if part in stored]
    kinds = sorted({row["kind"] for row in rows if row["kind"]})
    return f", which recorded with {' and '.join(kinds)}" if kinds else ""


def main() -> int:
    """Entry point."""
    args = parse()
    if os.geteuid():
        print("error: recording needs root\nhint: sudo make bench", file=sys.stderr)
        return 4
    private.mounts()
    stored: dict[str, Any] = {}
    goals: list[Goal] = []
    failed = ""
    try:
        goals.extend(run(args, stored))
    except (RecorderError, BedError) as error:
        failed = str(error)
    if goals:
        print(f"\ngoals of {stored['judged']}{took(stored)}:")
    for goal in goals:
        print(f"  {goal}")
    if args.output:
        stored |= {"goals": [goal.as_dict() for goal in goals], "error": failed}
        args.output.write_text(json.dumps(stored, indent=1) + "\n")
    if failed:
        print(f"error: {failed}", file=sys.stderr)
    return 0 if not failed and all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
