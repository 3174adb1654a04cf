#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Inject known causes into real traffic, diagnose each, and print how often the diagnosis is right.

Prints a table on stdout and writes score.json, whatever the score. Exit codes: 0 the suite
ran (however it scored), 1 a run failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from testbed.processes import TestbedError  # noqa: E402

from truth.live import Agreement, agreement  # noqa: E402
from truth.measure import ROOT, run  # noqa: E402
from truth.scenarios import SCENARIOS, Scenario  # noqa: E402
from truth.score import Score, score  # noqa: E402

#: Recordings of a scenario, at most, until one tells something.
RUNS = 4


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
        "--live-requests", type=int, default=10000, help="requests of each message count check"
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios and stop")
    return parser.parse_args()


def label(scenario: Scenario) -> str:
    """Name of a scenario for people."""
    return f"{scenario.name} / {scenario.server}"


def number(value: float | None, form: str = "{:.2f}") -> str:
    """A value that may be undefined."""
    return "-" if value is None else form.format(value)


def print_scores(scores: list[Score], failed: dict[str, str]) -> None:
    """The score table."""
    head = (
        "scenario",
        "server",
        "top cause",
        "share",
        "right",
        "precision",
        "recall",
        "affected/target",
        "median us",
    )
    rows = [
        (s.scenario, s.server, s.top_cause, f"{s.top_share:.2f}", "yes" if s.right else "NO", number(s.precision),
         number(s.recall), f"{s.n_affected}/{s.n_target}", f"{s.target_median_us:.0f}")
        for s in scores
    ]  # fmt: skip
    widths = [max(len(r[i]) for r in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for s in scores:
        if s.note:
            print(f"note: {s.scenario} / {s.server}: {s.note}")
    for name, why in failed.items():
        print(f"{name}: failed: {why}")
    injected = [s for s in scores if s.expected]
    quiet = [s for s in scores if not s.expected]
    n_planned = len(scores) + len(failed)
    print(
        f"\nright: {sum(s.right for s in scores)} of {n_planned}; with injection "
        f"{sum(s.right for s in injected)}/{len(injected)}, without {sum(s.right for s in quiet)}/{len(quiet)}"
    )
    for what in ("precision", "recall"):
        values = [v for s in injected if (v := getattr(s, what)) is not None]
        if values:
            print(f"mean {what} of affected messages: {sum(values) / len(values):.2f}")


def print_live(rows: list[Agreement]) -> None:
    """Messages against the client's log."""
    print("\nmessages against the client's own log")
    for a in rows:
        print(
            f"{a.server:10} {a.injection}: requests {a.n_requests}  messages {a.n_messages}  same bytes {a.n_joined}  all stamps "
            f"{a.n_all_stamps}  outside the client's times {a.n_outside_client_times}  p50 us client "
            f"{a.p50_client_us:.1f} message {a.p50_message_us:.1f}  of requests over 1 ms at the client "
            f"({a.n_slow}) the message explains {number(a.slow_share)}  {'exact' if a.exact() else 'NOT EXACT'}"
        )


def suite(args: argparse.Namespace) -> tuple[list[Score], list[Agreement], dict[str, str]]:
    """All runs that --only selects; failures by label."""
    scores: list[Score] = []
    live: list[Agreement] = []
    failed: dict[str, str] = {}
    chosen = [s for s in SCENARIOS if re.search(args.only, label(s))]
    begin = time.monotonic()
    for i, scenario in enumerate(chosen):
        print(
            f"[{i + 1}/{len(chosen)} {time.monotonic() - begin:5.0f} s] {label(scenario)}",
            file=sys.stderr,
            flush=True,
        )
        folder = args.output / re.sub(r"\W+", "-", label(scenario))
        try:
            scores.append(_scored(scenario, folder, args.seconds))
            if scenario.live:
                # Closed loop, one request in flight on each connection: one read each.
                options = ["-c", "4", "-n", str(args.live_requests), "--start-delay", "300"]
                live.append(_agreement(scenario, folder / "live", args.seconds, options))
        except TestbedError as error:
            failed[label(scenario)] = str(error)
    return scores, live, failed


def _scored(scenario: Scenario, folder: Path, seconds: float) -> Score:
    """The score of the first of some runs that tells something.

    A host that leaves a virtual CPU out for milliseconds makes messages wait behind each other, and saying so is
    right: of a run without injection, only what is accused each time is a false alarm. And its absences may be all of
    the slowest percent; then the injection is not what was diagnosed. An answer that can be judged is final, if it is
    right or the machine was there all the time.
    """
    before: list[str] = []
    for number in range(RUNS):
        into = folder if not number else folder.with_name(f"{folder.name}-{number + 1}")
        measured = run(scenario, into, seconds)
        found = score(measured)
        if found.right or (not measured.disturbed and (found.tells() if scenario.causes else number)):
            break
        before.append(
            f"run {number + 1}: {found.top_cause}, {found.n_affected} of {found.n_target} met by the injection, "
            f"host absent for {found.stolen_ms} ms"
        )
    return replace(found, note="; ".join(filter(None, [found.note, *before])))


def _agreement(scenario: Scenario, folder: Path, seconds: float, options: list[str]) -> Agreement:
    """That of the first of some runs during which the machine was there: only then client and messages are late together."""
    for number in range(RUNS):
        measured = run(
            scenario, folder if not number else folder.with_name(f"live-{number + 1}"), seconds, options
        )
        if not measured.disturbed:
            break
    return agreement(measured)


def as_json(scores: list[Score], live: list[Agreement], failed: dict[str, str]) -> dict[str, Any]:
    """The content of score.json."""
    return {
        "scores": [s.as_dict() for s in scores],
        "live": [a.as_dict() for a in live],
        "failed": failed,
        "right": sum(s.right for s in scores),
        "planned": len(scores) + len(failed),
    }


def main() -> int:
    """Entry point."""
    args = parse()
    if args.list:
        print("\n".join(label(s) for s in SCENARIOS))
        return 0
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        scores, live, failed = suite(args)
    except KeyboardInterrupt:
        return 130
    print_scores(scores, failed)
    if live:
        print_live(live)
    path = args.output / "score.json"
    path.write_text(json.dumps(as_json(scores, live, failed), indent=1))
    print(f"\n{path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
