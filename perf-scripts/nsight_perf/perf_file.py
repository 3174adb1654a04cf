# SPDX-License-Identifier: GPL-2.0-only
"""What perf does not pass to scripts: losses and switches in the raw records of a perf.data.

perf passes the decoded branches to scripts. Full buffers of cores (AUX records), lost records
and thread switches are in the file itself, and are read from there without decoding.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from pathlib import Path

from . import clocks
from . import edge_stream as stream
from .problem import Unusable
from .recording import RECORD, Recording

# Types of records (include/uapi/linux/perf_event.h, tools/lib/perf/include/perf/event.h).
LOST, COMM, THROTTLE, AUX, LOST_SAMPLES, SWITCH, SWITCH_CPU_WIDE = 2, 3, 5, 11, 13, 14, 15
AUXTRACE_INFO, AUXTRACE, TIME_CONV, COMPRESSED, COMPRESSED2 = 70, 71, 79, 81, 83
AUX_TRUNCATED, AUX_OVERWRITE, AUX_PARTIAL = 1, 2, 4
AUX_COLLISION = 8

# PERF_SAMPLE_* fields at the end of a record that is not a sample, in this order, 8 bytes each.
TRAILER = {
    "tid": 1 << 1,
    "time": 1 << 2,
    "id": 1 << 6,
    "stream_id": 1 << 9,
    "cpu": 1 << 7,
    "identifier": 1 << 16,
}
# The same for struct: fields that are not read are padding.
_FIELDS = {"tid": "ii", "time": "Q", "id": "8x", "stream_id": "8x", "cpu": "i4x", "identifier": "8x"}
SAMPLE_ID_ALL = 1 << 18
FEATURE_ARCH = 6

AUXTRACE_TYPES = {
    1: "Intel PT",
    2: "Intel BTS",
    3: "ARM CoreSight",
    4: "ARM SPE",
    5: "s390",
    6: "HiSilicon PTT",
}

PSB, PSBEND, PIP = b"\2\x82" * 8, b"\2\x23", b"\2\x43"
PSBS_LOOKED_AT = 64  # of each piece, which perf takes from a buffer of some MiB

IMPOSSIBLE = 1 << 40  # bytes of one AUX buffer

HEADER = struct.Struct("<IHH")
U64 = struct.Struct("<Q")
PAIR = struct.Struct("<ii")
THREE = struct.Struct("<QQQ")


class _Trailer:
    """Positions of time, thread and core at the end of records that are not samples."""

    def __init__(self, sample_type: int) -> None:
        self.at: dict[str, int] = {}
        present = [name for name, bit in TRAILER.items() if sample_type & bit]
        self.size = 8 * len(present)
        for place, name in enumerate(present):
            self.at[name] = 8 * place - self.size

    def read(self, data: mmap.mmap | bytes, end: int) -> tuple[int, int, int, int]:
        """time, cpu, pid, tid of the record that ends at ``end``; 0 and -1 where not recorded."""
        at = self.at
        time = U64.unpack_from(data, end + at["time"])[0] if "time" in at else 0
        cpu = PAIR.unpack_from(data, end + at["cpu"])[0] if "cpu" in at else -1
        pid, tid = PAIR.unpack_from(data, end + at["tid"]) if "tid" in at else (-1, -1)
        return time, cpu, pid, tid


def _attributes(data: mmap.mmap | bytes, path: str) -> tuple[_Trailer, dict[int, _Trailer]]:
    """Trailer of the first event, and of each event by its ids."""
    attr_size, attrs, attrs_size = THREE.unpack_from(data, 16)
    if attr_size < 64 + 16 or attrs + attrs_size > len(data):
        raise Unusable(f"{path}: its header is damaged", "record or copy it again")
    trailers: list[_Trailer] = []
    by_id: dict[int, _Trailer] = {}
    left = len(data)  # an id belongs to one event: overlapping lists could be read for ever
    for at in range(attrs, attrs + attrs_size - attr_size + 1, attr_size):
        sample_type, _, flags = THREE.unpack_from(data, at + 24)
        trailer = _Trailer(sample_type if flags & SAMPLE_ID_ALL else 0)
        trailers.append(trailer)
        ids, size = struct.unpack_from("<QQ", data, at + attr_size - 16)
        left -= size
        if left < 0:
            raise Unusable(f"{path}: its header is damaged", "record or copy it again")
        if ids + size <= len(data):
            by_id.update((U64.unpack_from(data, i)[0], trailer) for i in range(ids, ids + size - 7, 8))
    if not trailers:
        raise Unusable(f"{path}: it has no events", RECORD)
    if all(t.at == trailers[0].at for t in trailers):
        by_id = {}
    return trailers[0], by_id


def _architecture(data: mmap.mmap | bytes, end: int) -> str:
    """Machine in the header's features, which perf writes when it ends; '' if it is missing."""
    bitmap = int.from_bytes(data[72:104], "little")
    if not bitmap >> FEATURE_ARCH & 1:
        return ""
    at = end + 16 * bin(bitmap & ((1 << FEATURE_ARCH) - 1)).count("1")
    if at + 16 > len(data):
        return ""
    offset, size = struct.unpack_from("<QQ", data, at)
    return bytes(data[offset + 4 : offset + size]).split(b"\0")[0].decode("ascii", "replace")


def read(name: str) -> Recording:
    """Read the raw records of ``name``, a perf.data or the directory of perf record --kcore."""
    path = Path(name)
    if path.is_dir():
        if (path / "data.0").exists():
            raise Unusable(f"{name}: recorded with --threads, which perf cannot decode", "record without it")
        path = path / "data"
    recording = Recording(name)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < 104:
                raise Unusable(f"{name}: it is empty or cut", "record or copy it again")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        denied = isinstance(error, PermissionError)
        hint = "read it as the user who recorded it, or as root" if denied else "name the perf.data with -i"
        raise Unusable(f"cannot read {name}: {error.strerror}", hint) from None
    with data:
        magic = data[:8]
        if magic == b"2ELIFREP":
            raise Unusable(f"{name}: recorded on a big-endian machine", "Intel PT is there on x86 only")
        if magic != b"PERFILE2":
            raise Unusable(f"{name}: not a perf.data", RECORD)
        if U64.unpack_from(data, 8)[0] < 104:
            raise Unusable(
                f"{name}: written by perf record -o -", "write it with: perf inject -i FILE -o perf.data"
            )
        _records(data, recording)
    return recording


def _records(data: mmap.mmap, recording: Recording) -> None:
    trailer, by_id = _attributes(data, recording.path)
    start, size = struct.unpack_from("<QQ", data, 40)
    at = start
    if size == 0:  # perf was killed: it writes the size when it ends
        end = len(data)
        recording.truncated_at = end
    else:
        end = min(at + size, len(data))
        recording.arch = _architecture(data, at + size)
    header = HEADER.unpack_from
    runs = None if by_id else _SwitchRuns(trailer)
    while at + 8 <= end:
        kind, misc, length = header(data, at)
        if runs and kind in (SWITCH, SWITCH_CPU_WIDE):
            after = runs.take(data, at, end, kind, recording)
            if after > at:
                at = after
                continue
        if length < 8 or at + length > end:
            recording.truncated_at = at
            break
        if kind == AUXTRACE and length >= 16:
            size_after = U64.unpack_from(data, at + 8)[0]
            if size_after > IMPOSSIBLE:  # perf would go around in circles
                raise Unusable(
                    f"{recording.path}: the record at byte {at:,} is damaged", "copy the file again"
                )
            length += size_after
            recording.trace_bytes += size_after
            recording.guest = recording.guest or _in_guest(data, at + length - size_after, at + length)
            if at + length > end:
                recording.truncated_at = at
                break
        elif kind in _HANDLERS and length >= 16:
            if by_id:
                trailer = by_id.get(U64.unpack_from(data, at + length - 8)[0], trailer)
            if length >= 16 + trailer.size:
                _HANDLERS[kind](data, at + 8, at + length, misc, trailer, recording)
        at += length
    if at + 8 > end and size and size + start > len(data):
        recording.truncated_at = len(data)
    _lost_totals(recording)


def _in_guest(data: mmap.mmap, begin: int, end: int) -> bool:
    """Whether one of the first synchronisation points of a piece of trace is in a virtual machine.

    A PSB is followed by packets with the state; bit 0 of PIP (NR) is set in guests.
    """
    for _ in range(PSBS_LOOKED_AT):
        begin = data.find(PSB, begin, end)
        if begin < 0:
            return False
        begin += len(PSB)
        state, ended, _ = data[begin : min(begin + 64, end)].partition(PSBEND)
        _, found, root = state.partition(PIP)
        if ended and found and root and root[0] & 1:
            return True
    return False


def _lost_totals(recording: Recording) -> None:
    """perf's totals per event at the end of the file include losses that LOST records reported when they happened."""
    told = sum(event.value for event in recording.events if event.code == stream.LOST)
    rest = sum(event.value for event in recording.lost_totals) - told
    if rest > 0:
        last = recording.lost_totals[-1]
        rest = min(rest, (1 << 64) - 1)  # more than the stream can hold means damage
        recording.events.append(stream.Event(last.time, -1, -1, -1, stream.LOST, rest))


def _switch(data: mmap.mmap, at: int, end: int, misc: int, trailer: _Trailer, recording: Recording) -> None:
    time, cpu, pid, tid = trailer.read(data, end)
    recording.switches.add((time,), (cpu,), (pid,), (tid,), (misc,))


class _SwitchRuns:
    """Reads runs of equal switch records together: one by one they would take longer than perf's decoding."""

    def __init__(self, trailer: _Trailer) -> None:
        layout = "".join(_FIELDS[name] for name in trailer.at)
        self._usable = all(name in trailer.at for name in ("tid", "time", "cpu"))
        self._kinds = {}
        for kind, body in ((SWITCH, 0), (SWITCH_CPU_WIDE, 8)):
            record = struct.Struct(f"<4xHH{body}x{layout}")
            head, size = re.escape(struct.pack("<I", kind)), re.escape(struct.pack("<H", record.size))
            run = re.compile(b"(?s:(?:%b..%b.{%d}){1,4096})" % (head, size, record.size - 8))
            self._kinds[kind] = (run, record)

    def take(self, data: mmap.mmap, at: int, end: int, kind: int, recording: Recording) -> int:
        """Read the run that begins at ``at``; returns its end, or ``at`` if there is none."""
        run, record = self._kinds[kind]
        found = run.match(data, at, end) if self._usable else None
        if not found:
            return at
        misc, _, pids, tids, times, cpus = zip(*record.iter_unpack(found[0]))
        recording.switches.add(times, cpus, pids, tids, misc)
        return found.end()


def _aux(data: mmap.mmap, at: int, end: int, misc: int, trailer: _Trailer, recording: Recording) -> None:
    if end - at < 24:
        return
    _, size, flags = THREE.unpack_from(data, at)
    time, cpu, pid, tid = trailer.read(data, end)
    if size:
        recording.last_aux[cpu] = [*recording.last_aux.get(cpu, [])[-1:], time]
    if flags & AUX_TRUNCATED:
        recording.events.append(stream.Event(time, cpu, pid, tid, stream.TRUNCATED, size))
    if flags & AUX_OVERWRITE:
        recording.snapshot = True
    if flags & (AUX_OVERWRITE | AUX_PARTIAL | AUX_COLLISION):
        recording.events.append(stream.Event(time, cpu, pid, tid, stream.PARTIAL, size))


def _lost(data: mmap.mmap, at: int, end: int, misc: int, trailer: _Trailer, recording: Recording) -> None:
    if end - at < trailer.size + 16:
        return
    count = U64.unpack_from(data, at + 8)[0]  # after the event's id
    time, cpu, pid, tid = trailer.read(data, end)
    recording.events.append(stream.Event(time, cpu, pid, tid, stream.LOST, count))


def _lost_samples(
    data: mmap.mmap, at: int, end: int, misc: int, trailer: _Trailer, recording: Recording
) -> None:
    if end - at < trailer.size + 8:
        return
    count = U64.unpack_from(data, at)[0]
    time, cpu, pid, tid = trailer.read(data, end)
    recording.lost_totals.append(stream.Event(time, cpu, pid, tid, stream.LOST, count))


def _throttle(data: mmap.mmap, at: int, end: int, misc: int, trailer: _Trailer, recording: Recording) -> None:
    time, cpu, pid, tid = trailer.read(data, end)
    recording.events.append(stream.Event(time, cpu, pid, tid, stream.LOST, 0))  # their number is unknown


def _comm(data: mmap.mmap, at: int, end: int, misc: int, trailer: _Trailer, recording: Recording) -> None:
    pid, tid = PAIR.unpack_from(data, at)
    name = bytes(data[at + 8 : end - trailer.size]).split(b"\0")[0]
    recording.names.append(stream.Name(trailer.read(data, end)[0], pid, tid, name))


def _info(data: mmap.mmap, at: int, end: int, misc: int, trailer: _Trailer, recording: Recording) -> None:
    kind = struct.unpack_from("<I", data, at)[0]
    recording.auxtrace = AUXTRACE_TYPES.get(kind, f"of an unknown type ({kind})")
    # u64 priv[]: the ninth shows snapshot mode (INTEL_PT_SNAPSHOT_MODE of tools/perf/util/intel-pt.h).
    if kind == 1 and end - at >= 8 + 8 * 9:
        recording.snapshot = U64.unpack_from(data, at + 8 + 8 * 8)[0] != 0
        mult, capable = (U64.unpack_from(data, at + 8 + 8 * word)[0] for word in (2, 4))
        recording.timed = mult != 0 and capable != 0


def _time_conv(
    data: mmap.mmap, at: int, end: int, misc: int, trailer: _Trailer, recording: Recording
) -> None:
    clock = clocks.parse(bytes(data[at:end]))
    if clock:
        recording.clocks.append(clock)


def _compressed(
    data: mmap.mmap, at: int, end: int, misc: int, trailer: _Trailer, recording: Recording
) -> None:
    recording.compressed = True


_HANDLERS = {
    SWITCH: _switch,
    SWITCH_CPU_WIDE: _switch,
    AUX: _aux,
    LOST: _lost,
    LOST_SAMPLES: _lost_samples,
    THROTTLE: _throttle,
    COMM: _comm,
    AUXTRACE_INFO: _info,
    TIME_CONV: _time_conv,
    COMPRESSED: _compressed,
    COMPRESSED2: _compressed,
}
