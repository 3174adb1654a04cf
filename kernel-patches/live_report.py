#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Report the live recordings, and fail unless their messages have every stamp, in order, in one clock.

``live_report.py FOLDER``: FOLDER is the output of guest-live.sh. Each recording is imported into a capture
next to it (``nsight-report import``, no BPF), and gets a report with its page. Runs with the project's
Python.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REPORT = Path(__file__).resolve().parent.parent / "tools" / "nsight-report"
sys.path.insert(0, str(REPORT))

import nsight_report  # noqa: E402
import pandas as pd  # noqa: E402

RECORDINGS = ("map", "mono")
STAMPS = ["nic_ns", "arrival_ns", "handoff_ns", "app_ns"]
#: Share of data that may lack a stamp: it came before perf recorded, or TCP's backlog merged its skb.
MOST_WITHOUT = 0.01


def run(*argv: object) -> None:
    """Run nsight-report and show its output."""
    subprocess.run([REPORT / "nsight-report", *map(str, argv)], check=True)


def count(messages: pd.DataFrame, stamps: list[str]) -> tuple[int, int]:
    """How many messages have all of ``stamps``, and how many of these have them in another order.

    >>> count(pd.DataFrame({"a": [1, 5, None], "b": [2, 4, 3]}, dtype="Int64"), ["a", "b"])
    (2, 1)
    """
    whole = messages[stamps].dropna().astype("int64")
    return len(whole), int((whole.diff(axis=1).iloc[:, 1:] < 0).any(axis=1).sum())


def report(recording: Path, hardware: bool) -> bool:
    """Import and report one; True if its messages are complete and in order."""
    folder = recording.parent
    capture = folder / f"{recording.name}.nsight"
    sockets = [word for side in ("srv", "cli") for word in ("--sockets", recording / f"sockets-{side}.txt")]
    run("import", recording / "perf.data", "-o", capture, "--clock", recording / "clock.tsv", *sockets)
    run(capture, "--port", 11211, "-o", folder / f"{recording.name}-report")
    made = nsight_report.open(capture)
    messages = made.messages[made.messages["lport"] == 11211]
    stamps = STAMPS if hardware else STAMPS[1:]
    whole, wrong = count(messages, stamps)
    lines = made.losses
    errors = int(lines.loc[lines["severity"].astype(str) == "error", "count"].sum())
    names = ", ".join(name.removesuffix("_ns") for name in stamps)
    print(f"{recording.name}: {whole} of {len(messages)} messages of the server with {names} in CLOCK_MONOTONIC, "
          f"{wrong} out of order; {errors} errors", flush=True)  # fmt: skip
    return bool(whole >= (1 - MOST_WITHOUT) * len(messages) and len(messages) and not wrong and not errors)


def main() -> int:
    """Entry point."""
    folder = Path(sys.argv[1])
    # Without the test-only patch no device of the guest makes timestamps.
    hardware = bool(json.loads((folder / "facts.json").read_text())["phc_truth"])
    try:
        good = [report(folder / name, hardware) for name in RECORDINGS]
    except subprocess.CalledProcessError:
        return 1  # nsight-report has printed why
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
