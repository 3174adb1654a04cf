# SPDX-License-Identifier: GPL-2.0-only
"""Packets of a Perfetto trace: from the published classes, and as arrays for the millions of calls.

Packets of calls differ only in a few numbers. These are written as varints of fixed width (a varint may have leading
zero bits), so all packets of one form have equal length and numpy makes them together. Field numbers are
those of the published descriptors.
"""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
from google.protobuf.message import Message
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as published

from ..names import printable

_p: Any = published  # made at import: a type checker cannot know it
TracePacket: Any = _p.TracePacket
TrackEvent: Any = _p.TrackEvent
MONOTONIC, BOOTTIME, REALTIME = (
    _p.BUILTIN_CLOCK_MONOTONIC, _p.BUILTIN_CLOCK_BOOTTIME, _p.BUILTIN_CLOCK_REALTIME,
)  # fmt: skip
BEGIN, END, INSTANT = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END, TrackEvent.TYPE_INSTANT

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]

_VARINT, _BYTES = 0, 2  # wire types
_ANY = 9  # octets that are enough for every non-negative int64


#: Sequence of everything but the calls of cores.
SEQUENCE = 1
#: Maximum number of characters.
MAX_NAME = 400
#: Depth of the outermost message.
CLEARED = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
PACKET = _p.Trace.DESCRIPTOR.fields_by_name["packet"].number


def write(file: BinaryIO, packet: Message) -> None:
    """Append one packet."""
    body = packet.SerializeToString()
    file.write(_tag(PACKET, _BYTES) + _varint(len(body)) + body)


def event(kind: int, track: int, ns: int, name: str = "", category: str = "") -> TracePacket:
    """An event of a track; names are made printable."""
    packet = TracePacket(trusted_packet_sequence_id=SEQUENCE, timestamp=ns)
    told = packet.track_event
    told.type, told.track_uuid = kind, track
    if name:
        told.name = printable(name, MAX_NAME)
    if category:
        told.categories.append(category)
    return packet


def annotate(packet: TracePacket, **values: Any) -> TracePacket:
    """``packet`` with arguments; dicts become nested entries, and missing values are shown as unknown."""
    for name, value in values.items():
        _value(packet.track_event.debug_annotations.add(name=name), value)
    return packet


def _value(annotation: Any, value: Any) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _value(annotation.dict_entries.add(name=printable(name)), inner)
    elif isinstance(value, str):
        annotation.string_value = printable(value, MAX_NAME)
    elif isinstance(value, float):
        annotation.double_value = value
    elif pd.isna(value):
        annotation.string_value = "unknown"
    else:
        annotation.int_value = int(value)


class PacketForm:
    """Makes the packets of one sequence whose track and clock are set as defaults."""

    CALL_ID, ENDS = 1, 2  # names of annotations in interned data

    def __init__(self, sequence: int) -> None:
        self._sequence = _field(TracePacket, "trusted_packet_sequence_id") + _varint(sequence)

    def begins(self, ns: Ints, name: Ints, category: Ints, call_id: Ints, ends: Ints | None) -> list[bytes]:
        """A slice begins. ``name``, ``category`` and ``ends`` are numbers of interned texts."""
        event: list[bytes | Octets] = [
            _field(TrackEvent, "type") + _varint(BEGIN),
            _field(TrackEvent, "name_iid"), _padded(name, 4),
            _field(TrackEvent, "category_iids"), _padded(category, 1),
            *self._annotation(self.CALL_ID, "uint_value", _padded(call_id, 6)),
        ]  # fmt: skip
        if ends is not None:
            event += self._annotation(self.ENDS, "string_value_iid", _padded(ends, 1))
        return self._packets(ns, event)

    def ends(self, ns: Ints) -> list[bytes]:
        """A slice ends."""
        return self._packets(ns, [_field(TrackEvent, "type") + _varint(END)])

    def _annotation(self, name: int, kind: str, value: Octets) -> list[bytes | Octets]:
        annotation = _p.DebugAnnotation
        inner: list[bytes | Octets] = [
            _field(annotation, "name_iid") + _varint(name), _field(annotation, kind), value,
        ]  # fmt: skip
        return [_field(TrackEvent, "debug_annotations", _BYTES) + _varint(_width(inner)), *inner]

    def _packets(self, ns: Ints, event: list[bytes | Octets]) -> list[bytes]:
        body: list[bytes | Octets] = [
            _field(TracePacket, "timestamp"), _padded(ns, _ANY), self._sequence,
            _field(TracePacket, "track_event", _BYTES) + _varint(_width(event)), *event,
        ]  # fmt: skip
        whole: list[bytes | Octets] = [_tag(PACKET, _BYTES) + _varint(_width(body)), *body]
        n, width = len(ns), _width(whole)
        made = np.empty((n, width), np.uint8)
        at = 0
        for part in whole:
            size = _width([part])
            made[:, at : at + size] = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
            at += size
        return list(made.reshape(-1).view(f"V{width}").tolist()) if n else []


def _field(message: Any, name: str, wire: int = _VARINT) -> bytes:
    return _tag(message.DESCRIPTOR.fields_by_name[name].number, wire)


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _padded(values: Ints, width: int) -> Octets:
    """Varints of ``width`` octets, one per row."""
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < 1 << 7 * width:
        raise OverflowError(f"a number does not fit in {width} octets")
    shifts = 7 * np.arange(width, dtype=np.int64)
    octets = (values[:, None] >> shifts & 0x7F).astype(np.uint8)
    octets[:, :-1] |= 0x80
    return octets


def _width(parts: list[bytes | Octets]) -> int:
    return sum(len(p) if isinstance(p, bytes) else p.shape[1] for p in parts)
