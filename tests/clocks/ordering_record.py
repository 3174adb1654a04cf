# SPDX-License-Identifier: GPL-2.0-only
"""Record for ordering.py: nsight-clock and, at the same time, alternate readings of both clocks.

Standard library only, so that it starts quickly in an emulated guest. Writes ``clock.tsv`` and
``pairs.bin`` (pairs of little-endian int64: TSC cycles, CLOCK_REALTIME in ns) into a directory.

    ordering_record.py DIRECTORY [--pairs N] [--seconds S] [--poll-us N] [--disturb]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NSIGHT_CLOCK = HERE.parents[1] / "tools/nsight-record/clock/nsight-clock"
N_PAIRS = 5_000_000
SECONDS = 20.0
POLL_US = 1000  # of nsight-clock, unless an option changes it


def record(
    directory: Path, n_pairs: int, seconds: float, poll_us: int = POLL_US, disturb: bool = False
) -> None:
    """Record ``n_pairs`` over ``seconds``; with ``disturb`` (in a guest), the clock is slewed and stepped."""
    # Recorded locally, then moved: in a guest the directory may be a slow share.
    with tempfile.TemporaryDirectory() as scratch:
        _record(Path(scratch), n_pairs, seconds, poll_us, disturb)
        for name in ("clock.tsv", "pairs.bin"):
            shutil.copy(Path(scratch) / name, directory / name)


def _record(directory: Path, n_pairs: int, seconds: float, poll_us: int, disturb: bool) -> None:
    readings = directory / "clock.tsv"
    clock = subprocess.Popen([str(NSIGHT_CLOCK), "--poll-us", str(poll_us), "-o", str(readings)])
    disturber = None
    try:
        while not readings.exists() or readings.read_bytes().count(b"\n") < 6:  # until the map has begun
            if clock.poll() is not None:
                raise SystemExit("nsight-clock did not start")
            time.sleep(0.01)
        if disturb:
            disturber = subprocess.Popen([str(HERE / "disturb_clock"), str(seconds)])
        with (directory / "pairs.bin").open("wb") as out:
            subprocess.run([str(HERE / "ordering"), str(n_pairs), str(seconds)], stdout=out, check=True)
        if disturber and disturber.wait():
            raise SystemExit("the clock was not disturbed")
    finally:
        if disturber and disturber.poll() is None:
            disturber.kill()
        clock.terminate()
        clock.wait()


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options that recording and ordering.py share."""
    parser.add_argument(
        "--pairs", type=int, default=N_PAIRS, help="pairs of one TSC and one realtime reading"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="spread them over this time")
    parser.add_argument("--poll-us", type=int, default=POLL_US, help="nsight-clock --poll-us")
    parser.add_argument("--disturb", action="store_true", help="bend and step the clock (guests only)")


def main() -> int:
    """Record; the programs must have been built."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    arguments(parser)
    args = parser.parse_args()
    record(args.directory, args.pairs, args.seconds, args.poll_us, args.disturb)
    return 0


if __name__ == "__main__":
    sys.exit(main())
