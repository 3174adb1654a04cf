#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Print the accuracy of the diagnosis in one table: synthetic streams, emulated Intel PT, live injections; both modes.

    .venv/bin/python tests/evaluation/truth/scores.py [--family synthetic,emulated,live] [--captures DIR] [-o DIR]

For each: whether the largest cause of a message is the injected one (top-1, for messages where it is most of the delay;
without NSight's own cost), precision and recall of causes with at least a tenth of a message's delay, the error of the
attributed ns and the share of messages within 5 % or the clock bound, coverage, and on controls the causes with weight (false
alarms). ``first``: the same for all messages that the injection met, with nothing excluded.
~: the truth is the client's times or perf's switch records, not the emulator's log.

Emulated captures are those of tests/machinery/pt_emulation/fixtures, and those below DIR (--captures, made by
tests/machinery/pt_emulation/make-capture). Live injections need root and about five minutes; they use mode tracepoints.
Exit codes: 0 every goal is met, 1 a goal is missed, 2 usage, 3 a run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools/nsight-report")]

from evaluation.truth import table  # noqa: E402
from evaluation.truth.table import GOALS, Row  # noqa: E402

FAMILIES = ("synthetic", "emulated", "live")


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--family", default=",".join(FAMILIES), help="which, separated by commas (default: all)"
    )
    parser.add_argument(
        "--captures", type=Path, action="append", default=[], metavar="DIR", help="more emulated captures"
    )
    parser.add_argument(
        "--messages", type=int, default=20_000, metavar="N", help="of each synthetic stream (default: 20000)"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="synthetic streams (default: 3)")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="live injections whose 'name / server' matches"
    )
    parser.add_argument(
        "--draw", type=int, default=9, metavar="N", help="live injections drawn at random (default: 9)"
    )
    parser.add_argument("--seed", type=int, help="that they are drawn from (default: another one each time)")
    parser.add_argument("--seconds", type=float, default=3, help="load of each live injection (default: 3)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=ROOT / "build" / "truth",
        help="for scores.json and live captures",
    )
    args = parser.parse_args()
    if args.seed is None:
        args.seed = int.from_bytes(os.urandom(3))
    args.family = args.family.split(",")
    unknown = [name for name in args.family if name not in FAMILIES]
    if unknown:
        parser.error(f"no family {unknown[0]!r} (hint: {', '.join(FAMILIES)})")
    for directory in args.captures:
        if not list(directory.glob("*/capture.nsight/truth.json")):
            parser.error(
                f"{directory}: no emulated capture below it (hint: tests/machinery/pt_emulation/make-capture --out {directory})"
            )
    return args


def synthetic(args: argparse.Namespace) -> Iterator[Row]:
    """Streams with injected causes, and controls."""
    from machinery.made_up.stream import world

    from evaluation.truth.synthetic_scores import score

    for seed in range(1, args.seeds + 1):
        for name, share in (("injected", 0.02), ("control", 0.0)):
            made = world(args.messages, seed, share)
            for mode in ("intel-pt", "tracepoints"):
                s = score(made, mode)
                row = Row("synthetic", f"{name} {seed}", mode, n_slow=s.n_slow, n_injected=s.n_injected)
                row.coverage_median, row.coverage_min = s.coverage_median, s.coverage_min
                if share:
                    row.n_top, row.top, row.precision, row.recall = s.n_injected, s.top, s.precision, s.recall
                    row.first = s.top
                    row.error_median, row.within = s.error_median, s.within
                    row.wrong = [f"{w.injected} of {w.ns} ns: {w.largest}" for w in s.wrong.itertuples()]
                else:
                    row.alarms = s.weighty
                yield row


def emulated(args: argparse.Namespace) -> Iterator[Row]:
    """Committed captures, then those of the user."""
    from machinery.pt_emulation.fixtures import unpack

    from evaluation.truth import emulated as of

    with tempfile.TemporaryDirectory(prefix="nsight-truth-") as work:
        for name in unpack.every():
            for row in of.scores(unpack.unpack(name, Path(work)), Path(work) / "tables" / name):
                row.name += " (fixture)"
                yield row
        for number, captures in enumerate(args.captures):
            for directory in of.directories(captures):
                yield from of.scores(directory, Path(work) / "tables" / f"{number}-{directory.name}")


def live(args: argparse.Namespace) -> Iterator[Row]:
    """Injections into real traffic on this machine."""
    from evaluation.truth import run
    from evaluation.truth.draw import drawn
    from evaluation.truth.scenarios import SCENARIOS, label

    print(f"{args.draw} injections drawn with --seed {args.seed}")
    scores, agreed, unanswered, failed = run.suite(
        argparse.Namespace(
            scenarios=[
                s for s in (*SCENARIOS, *drawn(args.draw, args.seed)) if re.search(args.only, label(s))
            ],
            output=args.output,
            seconds=args.seconds,
            live_requests=10_000,
        )
    )
    run.print_live(agreed)
    for s in scores:
        row = Row(
            "live", f"{s.scenario} / {s.server}", "tracepoints", n_slow=s.n_slow, n_injected=s.n_affected
        )
        row.coverage_median, row.coverage_min = s.coverage_median, s.coverage_min
        if s.expected:
            # The same figure in its own terms: the truly affected messages that name it as their largest cause.
            row.n_top, row.top, row.precision, row.recall = s.n_affected, s.recall, s.precision, s.recall
            row.error_median, row.within = s.error_median, s.within
        else:
            row.alarms = [] if s.right else [s.top_cause]
        row.note = s.note if not s.expected else f"as read: {s.as_read['figures']}"
        yield row
    for name, why in unanswered.items():
        yield Row("live", name, "tracepoints", n_top=1, top=0.0, note=f"missed: {why}")
    for name, why in failed.items():
        yield Row("live", name, "tracepoints", note=f"failed: {why}")


def main() -> int:
    """Run the selected families, print, store."""
    args = parse()
    rows: list[Row] = []
    for name in args.family:
        for row in {"synthetic": synthetic, "emulated": emulated, "live": live}[name](args):
            print(f"{row.family}: {row.name}, mode {row.mode}", file=sys.stderr, flush=True)
            rows.append(row)
    print("\n".join(table.lines(rows)))
    print(
        "\ngoals: " + ", ".join(f"{name} >= {least:.0%}" for name, least in GOALS.items())
        + "; no cause of weight on controls"
    )  # fmt: skip
    for name in args.family:
        print(table.verdict([row for row in rows if row.family == name]))
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "scores.json"
    path.write_text(json.dumps([row.as_dict() for row in rows], indent=1) + "\n")
    print(path)
    if any(row.note.startswith("failed: ") for row in rows):
        return 3
    return 1 if any(row.missed() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
