#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Inject known causes into real traffic, diagnose each, and print how often the diagnosis is right.

Each scenario is recorded once, and this recording determines its score. Steal time of the host is printed beside it, and
does not excuse a wrong answer. If the server never ran, it answered nothing, as the client's log shows: there is nothing to
diagnose, and its scenario counts as missed. Prints a table on stdout and writes score.json, whatever the score. Exit
codes: 0 the suite ran (whatever the score), 1 a run failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "tools/nsight-demo")]

from nsight_demo.processes import BedError  # noqa: E402

from evaluation.truth.draw import drawn  # noqa: E402
from evaluation.truth.live import Agreement, agreement  # noqa: E402
from evaluation.truth.measure import ROOT, Recording, Run, diagnose, record  # noqa: E402
from evaluation.truth.scenarios import ALWAYS, SCENARIOS, label, sample  # noqa: E402
from evaluation.truth.score import Score, score  # noqa: E402


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "build" / "truth", help="captures and score.json"
    )
    parser.add_argument("-d", "--seconds", type=float, default=3, help="load per scenario (default 3)")
    parser.add_argument("--only", default="", metavar="REGEX", help="scenarios whose 'name / server' matches")
    parser.add_argument(
        "--sample",
        type=int,
        default=len(SCENARIOS),
        metavar="N",
        help="so many of them, with two that are always in it, and one control",
    )
    parser.add_argument(
        "--draw",
        type=int,
        default=0,
        metavar="N",
        help="and N that are drawn at random: servers, loads, intensities, times and names",
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="of the sample (default 0) and of what is drawn (default: another one each time)",
    )
    parser.add_argument(
        "--live-requests", type=int, default=10000, help="requests of each message count check"
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios and stop")
    args = parser.parse_args()
    if not len(ALWAYS) < args.sample <= len(SCENARIOS):
        parser.error(f"--sample {args.sample} is not from {len(ALWAYS) + 1} to {len(SCENARIOS)}")
    args.scenarios = sample(args.sample, args.seed or 0) if args.sample < len(SCENARIOS) else list(SCENARIOS)
    args.scenarios = [s for s in args.scenarios if re.search(args.only, label(s))]
    if args.draw:
        seed = int.from_bytes(os.urandom(3)) if args.seed is None else args.seed
        print(f"{args.draw} scenarios drawn with --seed {seed}", file=sys.stderr)
        args.scenarios += drawn(args.draw, seed)
    return args


def number(value: float | None, form: str = "{:.2f}") -> str:
    """A value that may be undefined."""
    return "-" if value is None else form.format(value)


def print_scores(scores: list[Score], unanswered: dict[str, str], failed: dict[str, str]) -> None:
    """The score table."""
    head = (
        "scenario",
        "server",
        "first cause",
        "right",
        "ns: precision",
        "recall",
        "of affected",
        "share",
        "right",
        "precision",
        "recall",
        "affected/slow",
        "median us",
        "host absent ms",
    )
    rows = [
        (s.scenario, s.server, s.as_read["first"], "yes" if s.right else "NO", number(s.as_read["precision"]),
         number(s.as_read["recall"]), s.top_cause, f"{s.top_share:.2f}", "yes" if s.right_of_affected else "NO",
         number(s.precision), number(s.recall), f"{s.n_affected}/{s.n_slow}", f"{s.slow_median_us:.0f}", str(s.stolen_ms))
        for s in scores
    ]  # fmt: skip
    widths = [max(len(r[i]) for r in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for s in scores:
        if s.note:
            print(f"note: {s.scenario} / {s.server}: {s.note}")
    for name, why in unanswered.items():
        print(f"{name}: missed: {why}")
    for name, why in failed.items():
        print(f"{name}: failed: {why}")
    injected = [s for s in scores if s.expected]
    quiet = [s for s in scores if not s.expected]
    n_planned = len(scores) + len(unanswered) + len(failed)
    print(
        f"\nfirst cause right: {sum(s.right for s in scores)} of {n_planned}; with injection "
        f"{sum(s.right for s in injected)}/{len(injected)}, without {sum(s.right for s in quiet)}/{len(quiet)}"
    )
    print(
        f"largest cause of affected messages right: {sum(s.right_of_affected for s in injected)}/{len(injected)}"
    )
    for s in scores:
        if s.as_read["beside"]:
            print(f"in the list of {s.scenario} / {s.server}, beside it: {', '.join(s.as_read['beside'])}")
    for what in ("precision", "recall"):
        values = [v for s in injected if (v := getattr(s, what)) is not None]
        if values:
            print(f"mean {what} of affected messages: {sum(values) / len(values):.2f}")


def print_live(rows: list[Agreement]) -> None:
    """Messages against the client's log."""
    print("\nmessages against the client's own log")
    for a in rows:
        print(
            f"{a.server:10} {a.injection}: requests {a.n_requests}  messages {a.n_messages}  same bytes {a.n_joined}  all timestamps "
            f"{a.n_all_stamps}  outside the client's times {a.n_outside_client_times}  p50 us client "
            f"{a.p50_client_us:.1f} message {a.p50_message_us:.1f}  of requests over 1 ms at the client "
            f"({a.n_slow}) the message explains {number(a.slow_share)}  {'exact' if a.exact() else 'NOT EXACT'}"
        )


def suite(
    args: argparse.Namespace,
) -> tuple[list[Score], list[Agreement], dict[str, str], dict[str, str]]:
    """Run all of ``args.scenarios``; returns also, by label, those whose server answered nothing, and the failures.

    First everything is recorded, then everything is diagnosed on all cores: nothing else runs during a recording.
    """
    chosen = args.scenarios
    failed: dict[str, str] = {}
    unanswered: dict[str, str] = {}
    scored: list[Recording] = []
    compared: list[Recording] = []
    begin = time.monotonic()
    for i, scenario in enumerate(chosen):
        print(
            f"[{i + 1}/{len(chosen)} {time.monotonic() - begin:5.0f} s] {label(scenario)}",
            file=sys.stderr,
            flush=True,
        )
        directory = args.output / re.sub(r"\W+", "-", label(scenario))
        try:
            recording = record(scenario, directory, args.seconds)
            if why := recording.unanswered():
                unanswered[label(scenario)] = why
            else:
                scored.append(recording)
            if scenario.live:
                # Closed loop, one request in flight on each connection: one read each.
                options = ["-c", "4", "-n", str(args.live_requests), "--start-delay", "300"]
                compared.append(record(scenario, directory / "live", args.seconds, options))
        except BedError as error:
            failed[label(scenario)] = str(error)
    print(f"[{time.monotonic() - begin:5.0f} s] diagnosing", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        scores = list(zip(scored, pool.map(partial(_answer, score), scored), strict=True))
        live = list(zip(compared, pool.map(partial(_answer, agreement), compared), strict=True))
    failed |= {label(r.scenario): str(e) for r, e in [*scores, *live] if isinstance(e, BedError)}
    return (
        [s for _, s in scores if isinstance(s, Score)],
        [a for _, a in live if isinstance(a, Agreement)],
        unanswered,
        failed,
    )


def _answer(of: Callable[[Run], Any], recording: Recording) -> Any:
    try:
        return of(diagnose(recording))
    except BedError as error:
        return error


def as_json(
    scores: list[Score], live: list[Agreement], unanswered: dict[str, str], failed: dict[str, str]
) -> dict[str, Any]:
    """The content of score.json."""
    return {
        "scores": [s.as_dict() for s in scores],
        "live": [a.as_dict() for a in live],
        "unanswered": unanswered,
        "failed": failed,
        "right": sum(s.right for s in scores),
        "planned": len(scores) + len(unanswered) + len(failed),
    }


def main() -> int:
    """Entry point."""
    args = parse()
    if args.list:
        print("\n".join(label(s) for s in args.scenarios))
        return 0
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        scores, live, unanswered, failed = suite(args)
    except KeyboardInterrupt:
        return 130
    print_scores(scores, unanswered, failed)
    if live:
        print_live(live)
    path = args.output / "score.json"
    path.write_text(json.dumps(as_json(scores, live, unanswered, failed), indent=1))
    print(f"\n{path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
