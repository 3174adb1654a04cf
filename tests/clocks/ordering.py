# SPDX-License-Identifier: GPL-2.0-only
"""Does the clock map keep events in order? The benchmark of section 6.1 of the NSight paper.

TSC and CLOCK_REALTIME are read alternately, millions of times, while nsight-clock records. Every
TSC reading is then converted to realtime: each converted value must not be later than the realtime
reading after it, nor earlier than the one before it, beyond the error bound the map gives it
(0 ns outside of updates; no further tolerance).

    python tests/clocks/ordering.py             # 10 million readings on this machine
    python tests/clocks/ordering.py --stale     # must fail where the clock is disciplined
    python tests/clocks/ordering.py --guest 6.12 --disturb   # on a clock bent and stepped all the time
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT / "tools/nsight-report")]

import ordering_record  # noqa: E402
from machinery.harness import built, retries  # noqa: E402
from nsight_report import clocks  # noqa: E402
from nsight_report.clocks import clock_readings  # noqa: E402
from nsight_report.clocks.segments import from_table  # noqa: E402


def build() -> None:
    """Compile the programs."""
    for place in (ordering_record.NSIGHT_CLOCK.parent, HERE):
        built.make(place)


@dataclasses.dataclass
class Result:
    """Outcome of one comparison; the claim is about ``violations``.

    ``undone``: other pairs out of order, in a bracket in which the poller missed an update: a step that was undone
    there is not known.
    """

    n_readings: int
    violations: int
    undone: int
    strict: int  # pairs whose error bound is 0 ns
    on_either_line: int  # other pairs that agree exactly with the line before or after the update
    worst_ns: int  # largest error in the order, beyond the bound
    max_error_ns: int  # largest bound used
    min_interval_ns: int
    median_interval_ns: float
    covered_s: float

    def __str__(self) -> str:
        n_pairs = self.n_readings // 2
        return (
            f"{self.n_readings} readings over {self.covered_s:.1f} s; tolerance 0 ns beyond the bound\n"
            f"out of order: {self.violations} (worst {self.worst_ns} ns)\n"
            f"out of order where the poller missed an update: {self.undone} of {n_pairs} pairs\n"
            f"bound of 0 ns: {self.strict} of {n_pairs} pairs; largest bound {self.max_error_ns} ns\n"
            f"within brackets of updates: {self.on_either_line} of {n_pairs - 1 - self.strict} agree exactly "
            "with the conversion before or after\n"
            f"interval between consecutive values: min {self.min_interval_ns} ns, "
            f"median {self.median_interval_ns:.0f} ns"
        )


def missed(readings: clock_readings.Readings) -> np.ndarray:
    """Begin and end (tsc) of the brackets in which the poller missed an update, in order."""
    polled = readings.polled
    skipped = np.flatnonzero(np.diff(polled.seq.astype(np.int64)) % (1 << 32) > 2) + 1
    return np.column_stack([polled.tsc_now[skipped - 1], polled.tsc_now[skipped]])


def compare(pairs: np.ndarray, clock_map: pa.Table, unknown: np.ndarray | None = None) -> Result:
    """Check the order of ``pairs`` (tsc, realtime ns read right after it).

    A realtime reading was made somewhere between its own TSC and the next pair's. So one of the segments between them
    must have shown it there, within its own bound. ``unknown``: the result of ``missed`` for the recording.
    """
    tsc, realtime = pairs[:, 0], pairs[:, 1]
    converted, _ = clocks.ClockMap(clock_map).convert(tsc, "tsc", "realtime")
    segments = from_table(clock_map)["realtime"]
    row = np.searchsorted(segments.tsc_start, tsc, side="right") - 1
    # Every segment of every pair: most pairs have one, pairs around a pause of the reader have many.
    n_segments = row[1:] - row[:-1] + 1
    first = np.cumsum(n_segments) - n_segments
    pair = np.repeat(np.arange(len(n_segments)), n_segments)
    of = np.arange(len(pair)) - first[pair] + row[pair]
    low = segments.ns(np.maximum(segments.tsc_start[of], tsc[pair]), of) - segments.error_ns[of]
    high = segments.ns(np.minimum(segments.tsc_end[of], tsc[pair + 1]), of) + segments.error_ns[of]
    error = np.maximum.reduceat(segments.error_ns[of], first)
    # By how much the reading is outside of all segments.
    beyond = np.minimum.reduceat(np.maximum(low - realtime[pair], realtime[pair] - high), first)
    late = converted[:-1] - realtime[:-1]  # > 0: the conversion is later than the reading after it
    early = realtime[:-1] - converted[1:]  # > 0: the next conversion is earlier than the reading before it
    unknown = np.zeros((0, 2), np.int64) if unknown is None else unknown
    touched = np.searchsorted(unknown[:, 1], tsc[:-1]) < np.searchsorted(unknown[:, 0], tsc[1:])
    undone, beyond = (
        np.count_nonzero((beyond > 0) & touched),
        np.where(touched, np.minimum(beyond, 0), beyond),
    )
    calm = error == 0
    # In a bracket the bound is loose, but without a missed update one of its two lines is exact.
    bracket = np.where(segments.error_ns[row[1:]] > 0, row[1:], row[:-1])
    either = np.zeros(len(calm), bool)
    for line in (bracket, np.maximum(bracket - 1, 0)):
        low, high = segments.ns(tsc[:-1], line), segments.ns(tsc[1:], line)
        either |= (low <= realtime[:-1]) & (realtime[:-1] <= high)
    intervals = np.concatenate([-late[calm], -early[calm]])
    return Result(
        n_readings=2 * len(pairs),
        violations=int(np.count_nonzero(beyond > 0)),
        undone=int(undone),
        strict=int(np.count_nonzero(calm)),
        on_either_line=int(np.count_nonzero(either & ~calm)),
        worst_ns=max(0, int(beyond.max())),
        max_error_ns=int(error.max()),
        min_interval_ns=int(intervals.min()) if len(intervals) else 0,
        median_interval_ns=float(np.median(intervals)) if len(intervals) else 0.0,
        covered_s=float((converted[-1] - converted[0]) / 1e9),
    )


def stale(clock_map: pa.Table) -> pa.Table:
    """The map as if the first state of each clock had been used for everything."""
    table = clock_map.to_pandas()
    last = table.groupby("domain", observed=True)["tsc_end"].transform("max")
    first = table.groupby("domain", observed=True)["tsc_start"].transform("min") == table["tsc_start"]
    table.loc[first, "tsc_end"] = last[first]
    return pa.Table.from_pandas(table[first], schema=clock_map.schema, preserve_index=False)


def paired_only(readings: clock_readings.Readings) -> clock_readings.Readings:
    """The recording as it would be on a machine whose timekeeper cannot be read."""
    none = readings.polled.take(np.zeros(0, np.int64))
    return dataclasses.replace(readings, polled=none, probed=none)


def changes(clock_map: pa.Table) -> tuple[int, int]:
    """The number of updates of the realtime clock, and how many of them changed the conversion."""
    s = from_table(clock_map)["realtime"]
    line = np.column_stack([s.anchor_tsc, s.anchor_ns, s.anchor_frac, s.mult])
    new = np.flatnonzero(np.any(line[1:] != line[:-1], axis=1)) + 1
    at = s.tsc_start[new]
    off = s.ns(at, new) != s.ns(at, new - 1)
    return len(new), int(np.count_nonzero(off | (s.mult[new] != s.mult[new - 1])))


def record_in_guest(directory: Path, kernel: str, args: argparse.Namespace) -> None:
    """Record on a stock kernel in an emulator; its clock may be disturbed at will."""
    command = ["env", "NSIGHT_GUEST=1", "python3", str(HERE / "ordering_record.py"), str(directory)]
    command += ["--pairs", str(args.pairs), "--seconds", str(args.seconds), "--poll-us", str(args.poll_us)]
    command += ["--disturb"] if args.disturb else []
    runner = [str(ROOT / "tests/machinery/guest/run"), "--kernel", kernel, "--rw", str(directory)]
    runner += ["--timeout", str(int(args.seconds * 5 + 240)), f"--append={args.guest_append}"]
    # 125: the guest died. Emulated kernels now and then crash while they patch their own code. 126: the guest cannot
    # be prepared, and another attempt would not help.
    for attempt in range(1, 4):
        done = subprocess.run([*runner, "--", *command])
        if done.returncode != 125 or attempt == 3:
            break
        print(f"the guest died; attempt {attempt + 1} of 3", file=sys.stderr)
        retries.note(f"guest {kernel}", "it died while clocks were recorded in it")
    if done.returncode:
        raise SystemExit(f"recording in the guest failed with exit code {done.returncode}")


def load(directory: Path) -> tuple[np.ndarray, clock_readings.Readings]:
    """The pairs and the clock readings that were recorded into ``directory``."""
    return np.fromfile(directory / "pairs.bin", "<i8").reshape(-1, 2), clock_readings.load(
        directory / "clock.tsv"
    )


def main() -> int:
    """Exit code 0: in order, 1: not in order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ordering_record.arguments(parser)
    parser.add_argument("--guest", metavar="KERNEL", help="record in a guest with this kernel, such as 6.12")
    parser.add_argument(
        "--guest-append", default="", metavar="WORDS", help="more for its kernel command line"
    )
    parser.add_argument("--stale", action="store_true", help="use only the first state of the clock")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the recording there")
    args = parser.parse_args()
    build()
    with tempfile.TemporaryDirectory() as scratch:
        directory = args.keep or Path(scratch)
        directory.mkdir(exist_ok=True)
        if args.guest:
            record_in_guest(directory.resolve(), args.guest, args)
        else:
            ordering_record.record(directory, args.pairs, args.seconds, args.poll_us, args.disturb)
        pairs, readings = load(directory)
    clock_map, losses = clocks.build(readings)
    n_new, n_bent = changes(clock_map)
    fresh, outdated = compare(pairs, clock_map, missed(readings)), compare(pairs, stale(clock_map))
    print(f"{n_new} timekeeper updates, {n_bent} of which changed the conversion")
    print(fresh)
    for loss in losses.to_pylist():
        print(f"loss: {loss['severity']}: {loss['cause']}: {loss['count']}")
    print(
        f"with a stale map (first state only): {outdated.violations} out of order (worst {outdated.worst_ns} ns)"
    )
    contradicted = "error" in losses["severity"].cast(pa.string()).to_pylist()
    failed = contradicted or (outdated if args.stale else fresh).violations > 0
    print("FAIL" if failed else "PASS")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
