# SPDX-License-Identifier: GPL-2.0-only
"""A Perfetto trace of chosen messages, for ui.perfetto.dev and trace_processor.

Tracks: the messages (one slice each, its segments inside, its causes as arguments), each core (its calls, and as
instants the timestamps and causes of messages), the threads (running, runnable, blocked). A flow leads from the NIC
via arrival and hand-off to the read, and for requests from thread to thread. Times are CLOCK_MONOTONIC of the recorded machine, as in the tables.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pandas as pd

from ..names import printable
from ..summary import peer_of
from ..tables.data_frames import cause_names, each, to_pandas
from ..units import duration
from .call_events import Nesting, names, uncertain
from .output_file import opened
from .perfetto_wire import (
    BEGIN,
    BOOTTIME,
    CLEARED,
    END,
    INSTANT,
    MAX_NAME,
    MONOTONIC,
    REALTIME,
    SEQUENCE,
    PacketForm,
    TracePacket,
    annotate,
    event,
    write,
)
from .perfetto_work import hands
from .selection import Chosen, Mark, choose, marks, tracks

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables

# Track identifiers. Threads and messages follow their bases.
_MESSAGES, _OTHERS, _CORES = 1, 2, 3
_CORE, _MESSAGE, _OTHER_MESSAGE, _PROCESS, _THREAD = 1 << 20, 2 << 20, 3 << 20, 1 << 33, 2 << 33
# The calls of each core are a sequence with its own names; everything else is another sequence (SEQUENCE).
_CORE_SEQUENCE = 16


def export(capture: CaptureTables, spec: str, path: Path) -> dict[str, int]:
    """Write the messages of ``spec`` to ``path`` (compressed if it ends in .gz); returns counts of its contents."""
    chosen = choose(capture, spec, with_work=True)
    with opened(path) as raw, _packed(raw, path) as file:
        write(file, _clock(capture))
        for packet in _tracks(chosen):
            write(file, packet)
        n_calls = _calls(capture, chosen, file)
        for packet in _messages(chosen):
            write(file, packet)
        for packet in _states(chosen):
            write(file, packet)
        for packet in _hands(chosen):
            write(file, packet)
    return {
        "messages": len(chosen.messages),
        "other_messages": len(chosen.others),
        "calls": n_calls,
        "thread_states": len(chosen.states),
        "anomalies": len(chosen.anomalies),
    }


@contextlib.contextmanager
def _packed(raw: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    if path.suffix == ".gz":
        with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3, mtime=0) as packed:
            yield packed  # type: ignore[misc]
    else:
        yield raw


def _clock(capture: CaptureTables) -> TracePacket:
    """Relates the clocks, and declares that the trace's own clock is the monotonic one."""
    packet = TracePacket(trusted_packet_sequence_id=SEQUENCE)
    snapshot = packet.clock_snapshot
    snapshot.primary_trace_clock = MONOTONIC
    base = capture.manifest.ns("start", "monotonic_ns") or 0
    for clock, name in ((MONOTONIC, "monotonic_ns"), (BOOTTIME, "boottime_ns"), (REALTIME, "realtime_ns")):
        at = capture.manifest.ns("start", name)
        # Without boottime the trace could not be placed, so a missing reading is replaced: only the time in suspend differs.
        if at is not None or clock != REALTIME:
            snapshot.clocks.add(clock_id=clock, timestamp=base if at is None else at)
    return packet


def _tracks(chosen: Chosen) -> Iterator[TracePacket]:
    first = True
    for uuid, name, rank in (
        (_MESSAGES, "Messages", -30),
        (_CORES, "Cores", -20),
        (_OTHERS, "Other messages", -10),
    ):
        packet = _track(uuid, None, name, rank)
        if first:
            packet.sequence_flags = CLEARED
            packet.trace_packet_defaults.timestamp_clock_id = MONOTONIC
            first = False
        yield packet
    for row in range(int(tracks(chosen.messages).max(initial=-1)) + 1):
        yield _track(_MESSAGE + row, _MESSAGES, "message", row)
    for row in range(int(tracks(chosen.others).max(initial=-1)) + 1):
        yield _track(_OTHER_MESSAGE + row, _OTHERS, "other message", row)
    roles = _roles(chosen.messages)
    for cpu in sorted({w.cpu for w in chosen.windows}):
        yield _track(_CORE + cpu, _CORES, f"core {cpu}{roles.get(cpu, '')}", cpu)
    threads = chosen.states[["pid", "tid", "comm"]].drop_duplicates("tid")
    named = threads.sort_values("tid").drop_duplicates(
        "pid"
    )  # the first thread is the process itself, if it is present
    for row in each(named[named["pid"] >= 0]):
        packet = TracePacket(trusted_packet_sequence_id=SEQUENCE)
        packet.track_descriptor.uuid = _PROCESS + int(row.pid)
        process = packet.track_descriptor.process
        process.pid, process.process_name = int(row.pid), printable(row.comm)
        yield packet
    for row in each(threads):
        packet = TracePacket(trusted_packet_sequence_id=SEQUENCE)
        packet.track_descriptor.uuid = _THREAD + int(row.tid)
        thread = packet.track_descriptor.thread
        thread.pid, thread.tid, thread.thread_name = int(row.pid), int(row.tid), printable(row.comm)
        yield packet


def _roles(messages: pd.DataFrame) -> dict[int, str]:
    found: dict[int, str] = {}
    for columns, letter in ((["recv_cpu", "handoff_cpu"], "R"), (["app_cpu"], "A")):
        for cpu in np.unique(messages[columns].stack().dropna().to_numpy(np.int64)):
            found[int(cpu)] = found.get(int(cpu), "") + f" ({letter})"
    return found


def _track(uuid: int, parent: int | None, name: str, rank: int) -> TracePacket:
    packet = TracePacket(trusted_packet_sequence_id=SEQUENCE)
    track = packet.track_descriptor
    track.uuid, track.name, track.sibling_order_rank = uuid, name, rank
    track.child_ordering = track.EXPLICIT
    if parent is not None:
        track.parent_uuid = parent
    return packet


# -- calls ------------------------------------------------------------------------------------


class _Names:
    """Texts of one sequence by number; ``new`` gives the texts that were not written yet."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._new: list[str] = []

    def numbers(self, texts: list[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
        for text in texts:
            if text not in self._known:
                self._known[text] = len(self._known) + 1
                self._new.append(text)
        return np.array([self._known[text] for text in texts], np.int64)

    def new(self) -> Iterator[tuple[int, str]]:
        for text in self._new:
            yield self._known[text], printable(text, MAX_NAME)
        self._new.clear()


class _Core:
    """Writes the calls of one core: begins and ends, in one sequence."""

    def __init__(self, cpu: int, file: BinaryIO) -> None:
        self._file = file
        self._nesting = Nesting()
        self._sequence = _CORE_SEQUENCE + cpu
        self._names, self._categories, self._notes = _Names(), _Names(), _Names()
        packet = TracePacket(trusted_packet_sequence_id=self._sequence, sequence_flags=CLEARED)
        defaults = packet.trace_packet_defaults
        defaults.timestamp_clock_id = MONOTONIC
        defaults.track_event_defaults.track_uuid = _CORE + cpu
        packet.interned_data.debug_annotation_names.add(iid=PacketForm.CALL_ID, name="call_id")
        packet.interned_data.debug_annotation_names.add(iid=PacketForm.ENDS, name="ends")
        write(file, packet)
        self._form = PacketForm(self._sequence)

    def piece(self, calls: pd.DataFrame) -> None:
        """Append calls, in table order after the earlier ones."""
        which, shown = names(calls)
        notes = uncertain(calls)
        name = self._names.numbers([n for _c, n in shown])[which]
        category = self._categories.numbers([c for c, _n in shown])[which]
        codes, texts = pd.factorize(notes)
        note = self._notes.numbers([str(t) for t in texts])[codes]
        self._intern()
        events = self._nesting.piece(*(calls[c].to_numpy(np.int64) for c in ("depth", "start_ns", "dur_ns")))
        call_id = calls["call_id"].to_numpy(np.int64)
        packets = np.empty(len(events.row), object)
        begin = np.flatnonzero(events.is_begin)
        row = events.row[begin]
        sure = notes[row] == ""
        for at, form in ((begin[sure], None), (begin[~sure], note)):
            r = events.row[at]
            packets[at] = self._form.begins(
                events.ns[at], name[r], category[r], call_id[r], None if form is None else form[r]
            )
        end = np.flatnonzero(~events.is_begin)
        packets[end] = self._form.ends(events.ns[end])
        self._file.write(b"".join(packets.tolist()))

    def close(self) -> None:
        """Write the ends of the calls that are still open."""
        self._file.write(b"".join(self._form.ends(self._nesting.rest().ns)))

    def _intern(self) -> None:
        packet = TracePacket(trusted_packet_sequence_id=self._sequence)
        data = packet.interned_data
        for iid, text in self._names.new():
            data.event_names.add(iid=iid, name=text)
        for iid, text in self._categories.new():
            data.event_categories.add(iid=iid, name=text)
        for iid, text in self._notes.new():
            data.debug_annotation_string_values.add(iid=iid, str=text.encode())
        if data.ByteSize():
            write(self._file, packet)


def _calls(capture: CaptureTables, chosen: Chosen, file: BinaryIO) -> int:
    core: _Core | None = None
    current, count = -1, 0
    for piece in capture.calls_within(chosen.windows):
        frame = to_pandas(piece)
        for cpu, calls in frame.groupby(frame["cpu"].to_numpy(np.int64), sort=True):
            if cpu != current:
                if core:
                    core.close()
                current = int(cpu)  # type: ignore[call-overload]
                core = _Core(current, file)
            assert core
            core.piece(calls)
            count += len(calls)
    if core:
        core.close()
    return count


# -- messages ---------------------------------------------------------------------------------


_FACTS = (
    "message_id",
    "direction",
    "conn_id",
    "nbytes",
    "latency_ns",
    "recv_cpu",
    "app_cpu",
    "pid",
    "tid",
    "comm",
    "fd",
)


def _messages(chosen: Chosen) -> Iterator[TracePacket]:
    causes = _causes(chosen.anomalies)
    coverage = {row.message_id: row for row in each(chosen.coverage)}
    for row, message in zip(tracks(chosen.messages).tolist(), each(chosen.messages)):
        number = int(message.message_id)
        track, stamps = _MESSAGE + row, marks(message)
        facts = {name: getattr(message, name) for name in _FACTS}
        facts = {k: v if not isinstance(v, str) else str(v) for k, v in facts.items() if not pd.isna(v)}
        if number in coverage:
            row = coverage[number]
            facts |= {
                "baseline_latency_ns": row.baseline_latency_ns,
                "deviation_ns": row.deviation_ns,
                "explained_ns": row.explained_ns,
                "located_ns": row.located_ns,
                "causes": causes.get(number, {}),
            }
        peer = peer_of(message)
        title = f"message {number}: {duration(int(message.latency_ns))}"
        yield annotate(event(BEGIN, track, int(message.first_ns), title, "message"), **facts, peer=peer)
        yield from _segments(track, stamps, int(message.first_ns), int(message.last_ns))
        yield event(END, track, int(message.last_ns))
        yield from _flow(number, track, stamps)
    row_of = dict(zip(chosen.messages["message_id"].tolist(), tracks(chosen.messages).tolist()))
    drawn = {w.cpu for w in chosen.windows}
    for a in each(chosen.anomalies):
        name = f"{a.category} ({a.side}) +{duration(int(a.deviation_ns))}"
        # Time on the path is on no core, and the thread may have waited for a core that is not drawn.
        track = _CORE + int(a.cpu) if a.cpu in drawn else _MESSAGE + row_of[a.message_id]
        yield annotate(
            event(INSTANT, track, int(a.start_ns), name, "cause"),
            **{c: getattr(a, c) for c in chosen.anomalies.columns if c != "start_ns"},
        )
    for row, message in zip(tracks(chosen.others).tolist(), each(chosen.others)):
        track = _OTHER_MESSAGE + row
        yield annotate(
            event(BEGIN, track, int(message.first_ns), f"message {message.message_id}", "other message"),
            message_id=int(message.message_id), latency_ns=int(message.latency_ns), comm=str(message.comm),
        )  # fmt: skip
        yield event(END, track, int(message.last_ns))


def _causes(anomalies: pd.DataFrame) -> dict[int, dict[str, int]]:
    """Message to its causes with their deviation."""
    found: dict[int, dict[str, int]] = {}
    ordered = anomalies.sort_values("deviation_ns", ascending=False, kind="stable")
    for number, cause, deviation in zip(
        ordered["message_id"].tolist(), cause_names(ordered), ordered["deviation_ns"].tolist()
    ):
        own = found.setdefault(number, {})
        own[cause] = own.get(cause, 0) + deviation
    return found


def _segments(track: int, stamps: list[Mark], first: int, last: int) -> Iterator[TracePacket]:
    inside = [mark for mark in stamps if first <= mark.ns <= last]
    for here, there in itertools.pairwise(inside):
        yield event(BEGIN, track, here.ns, f"{here.name} to {there.name}", "segment")
        yield event(END, track, there.ns)


def _flow(number: int, row: int, stamps: list[Mark]) -> Iterator[TracePacket]:
    """The timestamps as instants where they were taken, joined by a flow."""
    for i, mark in enumerate(stamps):
        track = row if mark.cpu is None else _CORE + mark.cpu
        packet = event(INSTANT, track, mark.ns, f"message {number}: {mark.name}", "timestamp")
        last = i == len(stamps) - 1
        # Flow 0 means no flow.
        (packet.track_event.terminating_flow_ids if last else packet.track_event.flow_ids).append(number + 1)
        yield annotate(packet, message_id=number)


def _hands(chosen: Chosen) -> Iterator[TracePacket]:
    rows = zip(chosen.messages["message_id"].tolist(), tracks(chosen.messages).tolist(), strict=True)
    threads = chosen.states["tid"].unique().tolist()
    return hands(chosen.work, {n: _MESSAGE + row for n, row in rows}, {t: _THREAD + t for t in threads})


def _states(chosen: Chosen) -> Iterator[TracePacket]:
    for row in each(chosen.states):
        track = _THREAD + int(row.tid)
        where = f" on core {row.cpu}" if row.cpu >= 0 and str(row.state) in ("running", "runnable") else ""
        packet = event(BEGIN, track, int(row.start_ns), f"{row.state}{where}", "thread state")
        yield annotate(packet, cpu=int(row.cpu), waker_tid=int(row.waker_tid))
        yield event(END, track, int(row.end_ns))
