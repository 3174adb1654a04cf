#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Run a case study: record, diagnose, change what the diagnosis says, and repeat; compare at the end.

For each setup of the story nsight-record and nsight-report run on live traffic, and the latency at the client
is measured without any recording, alternating between the setups. Prints the story as Markdown on stdout, and
keeps it with the captures in the output directory. Ends everything that it started.

Exit codes: 0; 1 something failed; 2 usage; 4 root, a program or a library is missing; 130 interrupted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS))

from machinery.testbed.bed import BedError, on_path  # noqa: E402
from nsight_demo.processes import run as run_short  # noqa: E402

from evaluation.case_study import measure  # noqa: E402
from evaluation.case_study.page import LOWER, UPPER, Iteration, effect, story_page  # noqa: E402
from evaluation.case_study.stories import STORIES, Story  # noqa: E402

PROGRAMS = ("perf", "bpftrace", "ip", "ss", "nsenter", "setpriv", "taskset", "chrt", "ethtool", "make", "gcc")
LWIP_HEADER = Path("/usr/include/lwip/netif/tapif.h")


class Progress:
    """Lines on stderr with the time since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        """One line."""
        print(f"[{time.monotonic() - self._start:5.0f} s] {text}", file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("story", choices=(*STORIES, "all"), help="which one")
    parser.add_argument("-d", "--seconds", type=float, default=5, help="of each recording (default 5)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="runs without recording for each setup (default 5)"
    )
    parser.add_argument("--tail-seconds", type=float, default=4, help="of each of these runs (default 4)")
    parser.add_argument("--port", type=int, help="the server's, in its namespace (default: its usual one)")
    parser.add_argument("--first", action="store_true", help="only the first two setups, no comparison")
    parser.add_argument(
        "--reuse",
        action="store_true",
        help="take the captures and tails that the output directory has, if any",
    )
    parser.add_argument("--figures", action="store_true", help="write every report with its figures, too")
    parser.add_argument(
        "-o", "--output", type=Path, default=measure.ROOT / "build" / "case-study", help="directory"
    )
    args = parser.parse_args()
    for name, value, low in (("seconds", args.seconds, 1), ("tail-seconds", args.tail_seconds, 1)):
        if not low <= value <= 600:
            parser.error(f"--{name} {value:g} is not between {low} and 600")
    if not 0 <= args.rounds <= 1000:
        parser.error(f"--rounds {args.rounds} is not between 0 and 1000")
    return args


def preflight(stories: list[Story]) -> str | None:
    """What is missing, with the fix; None if nothing is missing."""
    if os.geteuid():
        return "error: namespaces and recording need root\nhint: sudo make case-study"
    if (os.cpu_count() or 1) < 2:
        return "error: the stories need two cores"
    missing = [
        p for p in dict.fromkeys((*PROGRAMS, *(p for s in stories for p in s.programs))) if not on_path(p)
    ]
    if missing:
        return f"error: not installed: {' '.join(missing)}\nhint: make deps-test"
    if any("--lwip" in s.record for s in stories) and not LWIP_HEADER.exists():
        return "error: lwIP is not installed\nhint: apt install liblwip-dev (make deps-test)"
    return None


def recorded(capture: Path) -> str:
    """Contents of a capture, in one line."""
    manifest = json.loads((capture / "manifest.json").read_text())
    seconds = (manifest["stop"]["monotonic_ns"] - manifest["start"]["monotonic_ns"]) / 1e9
    events = sum(manifest["events"]["written"].values())
    lost = "; ".join(f"{x['tool']}: {x['what']}: {x['count']}" for x in manifest["losses"]) or "nothing"
    return f"{seconds:.1f} s, {events:,} message events, mode {manifest['mode']}, lost {lost}"


def measure_tails(
    story: Story, iterations: list[Iteration], args: argparse.Namespace, progress: Progress
) -> None:
    """Measure the tails, alternating between the setups, so that other work on the machine affects all of them."""
    kept = args.output / story.name / "tails.json"
    before = json.loads(kept.read_text()) if args.reuse and kept.exists() else {}
    for it in iterations:
        it.tails += [{float(p): v for p, v in t.items()} for t in before.get(it.setup.name, [])]
    for n in range(args.rounds):
        for it in iterations:
            if len(it.tails) > n:
                continue
            progress.say(
                f"{story.name}: tail without recording, round {n + 1}/{args.rounds}, {it.setup.name}"
            )
            it.tails.append(measure.tail(story, it.setup, args.port or story.port, args.tail_seconds))
            kept.write_text(json.dumps({i.setup.name: i.tails for i in iterations}))


def play(story: Story, args: argparse.Namespace, progress: Progress) -> str:
    """One story; its page."""
    setups = story.setups[:2] if args.first else story.setups
    port = args.port or story.port
    iterations = []
    captures = []
    for i, setup in enumerate(setups):
        progress.say(f"{story.name}: iteration {i + 1}, {setup.name}")
        capture = args.output / story.name / f"{i + 1}-{setup.name.replace(' ', '-')}.nsight"
        capture.parent.mkdir(parents=True, exist_ok=True)
        if not (args.reuse and capture.exists()):
            measure.record(story, setup, port, capture, args.seconds)
        diagnosis = measure.diagnose(capture, port)
        if args.figures:
            measure.figures(capture, port, capture.with_suffix(".report"))
        captures.append(capture)
        iterations.append(Iteration(setup, recorded(capture), diagnosis))
    measure_tails(story, iterations, args, progress)
    comparisons = []
    if not args.first:
        progress.say(f"{story.name}: comparing the first with the last capture")
        for slow in (f"p{LOWER}-{UPPER}", "p99-100"):
            options = ("--slow", slow, "--against", str(captures[0]), "--baseline", slow)
            comparisons.append(measure.diagnose(captures[-1], port, *options, with_json=False))
        options = ("--slow", "p99-100", "--against", str(captures[-1]), "--baseline", "p99-100")
        comparisons.append(measure.diagnose(captures[0], port, *options, with_json=False))
    page = story_page(story, iterations, comparisons, args.rounds, args.tail_seconds)
    (args.output / f"{story.name}.md").write_text(page)
    summary = {it.setup.name: {"diagnosis": it.diagnosis.summary, "tails_us": it.tails} for it in iterations}
    (args.output / f"{story.name}.json").write_text(json.dumps(summary, indent=1))
    for before, after in itertools.pairwise(iterations):
        if after.tails:
            progress.say(f"{story.name}: {before.setup.name} -> {after.setup.name}: {effect(before, after)}")
    return page


def main() -> int:
    """Entry point."""
    args = parse()
    stories = list(STORIES.values()) if args.story == "all" else [STORIES[args.story]]
    problem = preflight(stories)
    if problem:
        print(problem, file=sys.stderr)
        return 4
    args.output.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    try:
        if any("--lwip" in s.record for s in stories):
            run_short(["make", "-s", "-C", str(Path(__file__).parent)])
        for story in stories:
            print(play(story, args, progress), flush=True)
    except BedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was left running", file=sys.stderr)
        return 130
    print(f"{args.output}: captures, pages and JSON", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
