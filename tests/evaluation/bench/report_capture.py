# SPDX-License-Identifier: GPL-2.0-only
"""A capture of any size, made block by block: raw clock readings and message events, and the tables of decoded calls.

    .venv/bin/python tests/evaluation/bench/report_capture.py DIR [--messages N] [--fan N] [--requests]

Its contents come from tests/machinery/made_up/stream.py. perf.data is a placeholder: another benchmark measures packets. With
--requests every message is answered, and the activity is that of mode tracepoints: 50 rows in all for each request.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[3]
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools/nsight-report")]

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from machinery.made_up.stream import APPLICATION, TID, Core, Track
from machinery.made_up.tables import table
from nsight_report import losses
from nsight_report.pipeline import Pipeline
from nsight_report.stages import BY_NAME
from nsight_report.tables import schema
from nsight_report.tables.store import Writer, Written

I64 = npt.NDArray[np.int64]

TRACKS = 4
#: Messages of a track that are in memory at once.
BLOCK = 2_500
#: Share of messages with an injected cause.
SHARE = 0.02
GRANULARITY_NS = 60
#: What an answered request's thread does: nine more system calls, between its work on the request and the reply.
_REPLY = next(i for i, row in enumerate(APPLICATION) if row[2] == "sendmsg")
ANSWERED = (*APPLICATION[:_REPLY], *[(1, "syscall", "pread64", 300)] * 9, *APPLICATION[_REPLY:])
#: Nanoseconds between clock readings; between wall clock and uptime.
READING_NS, REALTIME_NS = 100_000_000, 1_700_000_000 * 10**9


@dataclass
class Made:
    """What ``make`` wrote."""

    path: Path
    n_messages: int
    n_calls: int
    n_activity: int


def make(path: Path, n_messages: int, fan: int, seed: int, answered: bool = False) -> Made:
    """Write a capture with ``n_messages`` to ``path``. ``fan``: functions below each of the named ones.

    ``answered``: with a reply to each, and in mode tracepoints, which records no functions.
    """
    path.mkdir(parents=True)
    (path / "perf.data").write_text("stand-in: the calls are in tables/ already\n")
    (path / "tables").mkdir()
    stamps: list[pd.DataFrame] = []
    with (
        Writer(path / "tables" / "calls.parquet", schema.TABLES["calls"].arrow()) as calls,
        Writer(path / "tables" / "contexts.parquet", schema.TABLES["contexts"].arrow()) as contexts,
        Writer(path / "tables" / "thread_states.parquet", schema.TABLES["thread_states"].arrow()) as states,
        Writer(path / "tables" / "waits.parquet", schema.TABLES["waits"].arrow()) as waits,
    ):
        for track in range(TRACKS):
            for block in _blocks(track, n_messages // TRACKS, fan, seed, answered):
                _write(block.receive, calls, contexts, answered)
                stamps.append(_stamps(block, track))
                if answered:
                    of_thread = _woken(block)
                    states.write(table("thread_states", of_thread))
                    waits.write(table("waits", _waits(of_thread, block)))
                else:
                    states.write(table("thread_states", block.states()))
            # Drawn again with the same result: a table has one core after the other.
            for block in _blocks(track, n_messages // TRACKS, fan, seed, answered):
                _write(block.application, calls, contexts, answered)
        n_calls = calls.n_rows
        n_activity = n_calls + contexts.n_rows + states.n_rows + waits.n_rows
    times = pd.concat(stamps, ignore_index=True).sort_values("first", ignore_index=True)
    begin, end = int(times["first"].min()) - 10**8, int(times["app"].max()) + 10**8
    _write_clock(path / "clock.tsv", begin, end)
    _write_events(path / "events.tsv", times, answered)
    mode = "tracepoints" if answered else "intel-pt"
    manifest = {
        "format": "nsight-capture", "version": 1, "state": "complete", "mode": mode, "cut": [],
        "host": {"hostname": "synthetic", "kernel": "6.12.1", "cpu_model": "synthetic", "n_cpus": 2 * TRACKS},
        "command": ["synthetic"], "stopped_by": "duration", "losses": [],
        "start": {"monotonic_ns": begin, "realtime_ns": begin + REALTIME_NS}, "stop": {"monotonic_ns": end},
    }  # fmt: skip
    (path / "manifest.json").write_text(json.dumps(manifest))
    trace = {
        "begin_ns": begin,
        "end_ns": end,
        "median_step_ns": 10,
        "p99_step_ns": GRANULARITY_NS,
        "edges_per_time": 1.0,
    }
    with Writer(path / "tables" / "trace.parquet", schema.TABLES["trace"].arrow()) as writer:
        rows = schema.empty("trace") if answered else schema.conform("trace", pa.Table.from_pylist([trace]))
        writer.write(rows)
    decoded(path)
    return Made(path, len(times), n_calls, n_activity)


def decoded(path: Path) -> None:
    """Mark the decoding stage as run, with the current code."""
    pipeline = Pipeline(path)
    pipeline.run_alone("clocks")
    made_from = pipeline._made_from(BY_NAME["contexts"])
    tables: dict[str, pa.Table | Written] = {
        name: Written(path / "tables" / f"{name}.parquet") for name in BY_NAME["contexts"].tables
    }
    tables |= {
        name: schema.empty(name) for name in ("drops", "frequencies", "memory_work", "counters", "stolen")
    }  # nothing was dropped, and nothing is known of the others
    lost = {"losses-contexts": losses.Ledger("contexts").table()}
    pipeline.store.save("contexts", {**tables, **lost}, made_from)


def _blocks(track: int, n: int, fan: int, seed: int, answered: bool) -> Iterator[Track]:
    since = (10**12, 10**12)
    for number, first in enumerate(range(0, n, BLOCK)):
        random = np.random.default_rng([seed, track, number])
        work = ANSWERED if answered else APPLICATION
        block = Track(track, min(BLOCK, n - first), random, SHARE, fan, since, work=work)
        yield block
        since = block.until


def _write(core: Core, calls: Writer, contexts: Writer, traced: bool) -> None:
    rows, intervals = core.tables(calls.n_rows)
    if traced:
        rows, intervals = _without_functions(rows, intervals, calls.n_rows)
    calls.write(table("calls", rows))
    contexts.write(table("contexts", intervals))


def _without_functions(
    calls: pd.DataFrame, contexts: pd.DataFrame, first: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """As tracepoints show it; ``first``: number of the first call."""
    keep = ~calls["kind"].isin(["function", "stall"]).to_numpy(bool)
    number = np.append(np.cumsum(keep) - 1 + first, -1)
    kept = calls[keep]
    parent = np.where(kept["parent_id"] < 0, -1, kept["parent_id"] - first)
    within = kept.groupby("parent_id")["dur_ns"].sum()
    own = kept["dur_ns"].to_numpy() - within.reindex(kept["call_id"]).fillna(0).to_numpy(np.int64)
    kept = kept.assign(call_id=number[:-1][keep], parent_id=number[parent], self_ns=own)
    return kept, contexts.assign(call_id=number[contexts["call_id"].to_numpy() - first])


def _woken(block: Track) -> pd.DataFrame:
    """States as scheduler events show them: a waiting thread sleeps, and is ready from the hand-off on."""
    states = block.states()
    waits = (states["state"] == "waiting").to_numpy(bool)
    start, end = (states[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    at = np.searchsorted(block.handoff, start)
    woken = np.append(block.handoff, np.iinfo(np.int64).max)[at]
    ready = np.where(waits, np.clip(woken, start, end), end)
    parts = [
        states.assign(state=np.where(waits, "sleeping", "running"), end_ns=ready),
        states[waits].assign(state="runnable", start_ns=ready[waits]),
    ]
    every = pd.concat(parts)
    return every[every["end_ns"] > every["start_ns"]].sort_values("start_ns", kind="stable")


def _waits(states: pd.DataFrame, block: Track) -> pd.DataFrame:
    """The waits of ``states``: packets ended those in which the thread had no request, the next track's thread the others."""
    asleep = states[states["state"] == "sleeping"]
    packet = np.isin(asleep["end_ns"].to_numpy(np.int64), block.handoff)
    return pd.DataFrame({
        "tid": asleep["tid"].to_numpy(), "start_ns": asleep["start_ns"].to_numpy(), "end_ns": asleep["end_ns"].to_numpy(),
        "state": "sleeping", "cpu": asleep["cpu"].to_numpy(), "place": np.where(packet, "epoll_wait", "futex"), "arg": 0,
        "waker_tid": np.where(packet, 0, TID + (block.tid - TID + 1) % TRACKS), "waker_comm": np.where(packet, "swapper", "server"),
        "waker_cpu": np.where(packet, block.receive.cpu, block.application.cpu),
        "context": np.where(packet, "softirq", "thread"), "symbol": np.where(packet, "NET_RX", "server"),
        "from_thread": False, "device": -1, "operation": "", "nbytes": 0, "io_ns": 0,
    })  # fmt: skip


def _stamps(block: Track, track: int) -> pd.DataFrame:
    return pd.DataFrame(
        {"track": track, "first": block.first, "handoff": block.handoff, "call": block.call, "app": block.app,
         "send": block.send, "sent": block.sent}
    )  # fmt: skip


def _write_clock(path: Path, begin: int, end: int) -> None:
    """Readings of a machine whose TSC counts nanoseconds of uptime."""
    width = 80
    with path.open("w") as file:
        file.write("#nsight-clock 1 tsc_khz=1000000 clocksource=tsc\nC\t2147483648\t31\t0\n")
        for tsc in range(begin - 10 * READING_NS, end + 10 * READING_NS, READING_NS):
            for domain, offset in (
                ("realtime", REALTIME_NS),
                ("monotonic", 0),
                ("boottime", 0),
                ("tai", REALTIME_NS + 37 * 10**9),
            ):
                file.write(f"B\t{domain}\t{tsc}\t{tsc + width // 2 + offset}\t{tsc + width}\n")
        file.write("E\t10\t2\t0\t1000\t1000000\n")


def _write_events(path: Path, times: pd.DataFrame, answered: bool) -> None:
    """Events that the probes would have recorded: the peer sent it, it arrived, was handed off, was read; and was answered."""
    track = times["track"].to_numpy()
    names = ("first", "handoff", "call", "app", "send", "sent")
    first, handoff, call, app, send, sent = (times[c].to_numpy(np.int64) for c in names)
    seq = (times.groupby("track").cumcount().to_numpy() * 100 + 1) % (1 << 32)
    comm = int.from_bytes(b"server\0\0", "little")
    ours, theirs = 0x0100000A, 0x0200000A
    tid, port = TID + track, 40_000 + TID + track

    def event(kind: str, ts: I64, local: int, cpu: I64 | int, at: dict[str, I64 | int]) -> pd.DataFrame:
        here = local == ours
        fields = {
            "kind": kind, "ts": ts, "cpu": cpu, "pid": 0, "tid": 0, "comm0": "0", "comm1": "0", "fd": -1, "call": 0,
            "sk": "0", "netns": 1 if here else 2, "proto": 6, "family": 2,
            "laddr_hi": "0", "laddr_lo": f"{local:x}", "lport": 11211 if here else port,
            "raddr_hi": "0", "raddr_lo": f"{theirs if here else ours:x}", "rport": port if here else 11211,
            "seq": seq, "len": 100, "hwstamp": 0, "swstamp": 0, "aux": 0,
        }  # fmt: skip
        return pd.DataFrame(fields | at)

    sk = pd.Series(track).map("ff1100000000{:04x}".format)
    parts = [
        event("X", first, theirs, 0, {"aux": 3 << 8 | 0x18}),
        event("A", handoff - 1000, ours, 2 * track, {"aux": 2 << 8 | 0x18}),
        event("H", handoff, ours, 2 * track, {"len": 0, "seq": (seq + 100) % (1 << 32), "sk": sk}),
        event("R", app, ours, 2 * track + 1, {
            "pid": TID, "tid": tid, "comm0": f"{comm:x}", "fd": 5, "call": call, "sk": sk,
        }),
    ]  # fmt: skip
    if answered:
        thread = {"pid": TID, "tid": tid, "comm0": f"{comm:x}"}
        parts += [
            event("X", sent - 100, ours, 2 * track + 1, {"aux": 2 << 8 | 0x18, **thread}),
            event("S", sent, ours, 2 * track + 1, {"fd": 5, "call": send, "sk": sk, **thread}),
        ]
    events = pd.concat(parts).sort_values("ts", kind="stable")
    counts = {kind: len(times) for kind in "AHR"}
    counts |= {"X": 2 * len(times), "S": len(times)} if answered else {"X": len(times)}
    with path.open("w") as file:
        file.write("Attaching 4 probes...\n#nsight-events 1 clock=boottime\n\n")
        events.to_csv(file, sep="\t", header=False, index=False)
        file.writelines(f"@n[{kind}]: {n}\n" for kind, n in counts.items())
        file.write("#end\n")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Make a synthetic capture (see the module).")
    parser.add_argument("path", type=Path, metavar="DIR")
    parser.add_argument("--messages", type=int, default=100_000, metavar="N")
    parser.add_argument(
        "--fan", type=int, default=2, metavar="N", help="functions below each named one (default: 2)"
    )
    parser.add_argument("--requests", action="store_true", help="answered messages, in mode tracepoints")
    args = parser.parse_args()
    if args.path.exists():
        parser.error(f"{args.path} exists (hint: choose another name)")
    made = make(args.path, args.messages, args.fan, seed=1, answered=args.requests)
    print(
        f"{made.path}: {made.n_messages:,} messages, {made.n_calls:,} calls, {made.n_activity:,} rows of activity"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
