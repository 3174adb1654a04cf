# SPDX-License-Identifier: GPL-2.0-only
"""perf.data in mode tracepoints: its tracepoint samples and side-band records as one array.

The decoding is native (``nsight-perfdata``): perf's own Python callback costs about 10 us per
event, and a busy second has 100 000 events.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import files
from ..errors import BadInput, OutputError
from ..losses import Ledger
from . import native

# Mirrors struct nsight_event of native/events.h.
EVENT = np.dtype(
    [
        ("ts", "<u8"),
        ("kind", "<u2"),
        ("cpu", "<u2"),
        ("pid", "<i4"),
        ("tid", "<i4"),
        ("pad", "<i4"),
        ("a", "<i8"),
        ("b", "<i8"),
        ("c", "<i8"),
    ]
)

# Mirrors NSIGHT_KINDS of native/events.h, which describes a, b and c.
KINDS = (
    "sched_switch",
    "sched_waking",
    "sched_wakeup",
    "sched_wakeup_new",
    "sched_migrate_task",
    "sched_process_fork",
    "sched_process_exec",
    "sched_process_exit",
    "irq_handler_entry",
    "irq_handler_exit",
    "softirq_entry",
    "softirq_exit",
    "sys_enter",
    "sys_exit",
    "napi_poll",
    "page_fault_user",
    "page_fault_kernel",
    "vector_entry",
    "vector_exit",
    "cpu_idle",
    "hrtimer_expire_entry",
    "hrtimer_expire_exit",
    "timer_expire_entry",
    "timer_expire_exit",
    "comm",
    "fork",
    "exit",
    "switch_in",
    "switch_out",
    "lost",
    "throttle",
    "unthrottle",
    "block_io",
    "cpu_frequency",
    "steal",
    "net_drop",
    "tcp_retransmit",
    "cpu_quota",
    "memory_work",
    "counter",
    "net_drop_source",
    "net_drop_destination",
)
CODE = {name: code for code, name in enumerate(KINDS)}

NO_CPU = 0xFFFF

# Mirrors struct nsight_wide of native/tracepoint_events.h.
WIDE = np.dtype(
    [
        ("ts", "<u8"),
        ("kind", "<u2"),
        ("cpu", "<u2"),
        ("pid", "<i4"),
        ("tid", "<i4"),
        ("order", "<i4"),
        ("v", "<i8", (11,)),
    ]
)

# Mirrors NSIGHT_WIDE_KINDS of native/tracepoint_events.h, which describes the values.
WIDE_KINDS = (
    "timekeeping_update",
    "sock_data_queued",
    "sock_data_read",
    "netif_receive_skb",
    "tcp_addresses",
    "clock_map",
    "sock_state",
)
WIDE_CODE = {name: code for code, name in enumerate(WIDE_KINDS)}

# Converts ns of the named clock to monotonic ns; also returns which could be converted.
Convert = Callable[[npt.NDArray[np.int64], str], tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]]


@dataclass(frozen=True)
class Decoded:
    """The events of a perf.data file, or of the records of the BPF recorder.

    ``events``: array of EVENT in time order; records that perf wrote about the state
    before the recording have ts 0 and come first. ``strings``: strings by number.
    ``clock``: time domain of ts (``monotonic`` after a conversion; ``perf`` for a file that
    was recorded without -k and not converted). ``info``: the rest of perf-events.json.
    ``source``: the file of the capture that they come from, for messages.
    """

    events: npt.NDArray[np.void]
    strings: list[str]
    clock: str
    info: dict[str, Any]
    source: str = "perf.data"


def load(path: Path, formats: Path | None = None, convert: Convert | None = None) -> tuple[Decoded, pa.Table]:
    """Decode a perf.data file (or the directory of perf record --kcore).

    ``formats`` is a directory with copies of the recorded tracepoints' formats as
    SYSTEM/EVENT, needed if perf was killed; by default ``formats`` beside ``path``.
    ``convert`` converts times of another clock to monotonic ones; events that it cannot convert
    are dropped and counted. Returns the events and a losses table. Raises BadInput for a file
    that is not usable at all; a file that was cut is decoded as far as possible.
    """
    events, _wide, info = _read(Path(path), formats, False)
    ledger = Ledger("capture")
    account(info, ledger)
    strings, clock = info.pop("strings"), info["clock"]
    if convert is not None and clock != "monotonic":
        events = _convert(events, clock, convert, ledger)
        clock = "monotonic"
    return Decoded(events, strings, clock, info), ledger.table()


def load_wide(path: Path, formats: Path | None = None) -> tuple[Decoded, npt.NDArray[np.void]]:
    """Like ``load`` without conversion; also returns the events from which message events and clock readings are made.

    These are an array of WIDE in time order. Losses are in ``info["losses"]`` only: the
    stage that makes contexts from the same file enters them.
    """
    events, wide, info = _read(Path(path), formats, True)
    return Decoded(events, info.pop("strings"), info["clock"], info), wide


def _read(
    path: Path, formats: Path | None, with_wide: bool
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void], dict[str, Any]]:
    """Arrays of EVENT and WIDE, and perf-events.json."""
    data = path / "data" if path.is_dir() else path
    if formats is None and (path.parent / "formats").is_dir():
        formats = path.parent / "formats"
    try:
        with files.opened(data) as opened:
            size = os.fstat(opened.fileno()).st_size
    except OSError as error:
        raise BadInput(f"{data}: {error.strerror}", "copy the whole capture directory") from None
    wide = np.zeros(0, WIDE)
    try:
        with tempfile.TemporaryDirectory(prefix="nsight-") as directory:
            args = [str(path.resolve()), directory]
            if with_wide:
                args = ["--wide", *args]
            if formats is not None:
                args = [f"--formats={formats}", *args]
            native.run("nsight-perfdata", args, size)
            events = np.fromfile(f"{directory}/perf-events.bin", dtype=EVENT)
            if with_wide:
                wide = np.fromfile(f"{directory}/perf-wide.bin", dtype=WIDE)
            with open(f"{directory}/perf-events.json", encoding="utf-8") as file:
                info = json.load(file)
    except OSError as error:
        raise OutputError(
            f"{error.filename}: {error.strerror}", "free some disk space, or set TMPDIR"
        ) from None
    if tuple(info["kinds"]) != KINDS or tuple(info.get("wide_kinds", ())) != WIDE_KINDS:
        raise BadInput("nsight-perfdata is of another version than this package", "run: make build")
    return events, wide, info


def _convert(
    events: npt.NDArray[np.void], clock: str, convert: Convert, ledger: Ledger
) -> npt.NDArray[np.void]:
    timed = events["ts"] > 0
    converted, good = convert(events["ts"][timed].astype(np.int64), clock)
    ledger.add("perf_events_outside_clock_map", int((~good).sum()), clock=clock)
    before, timed_events = events[~timed], events[timed][good]
    timed_events["ts"] = converted[good]
    # a mapping is monotonic only up to its error: restore the order
    timed_events = timed_events[np.argsort(timed_events["ts"], kind="stable")]
    return np.concatenate([before, timed_events])


def account(info: dict[str, Any], ledger: Ledger) -> None:
    """Enter the losses that nsight-perfdata counted."""
    counted = dict(info["losses"])
    # at the end perf adds per-event totals of the losses that its LOST records have already reported
    counted["lost_samples"] = max(0, counted.get("lost_samples", 0) - counted.get("lost_events", 0))
    ledger.counted("perf_data_", counted, but=["lost_records"])  # these announce lost_events
    if info["cut"]:
        ledger.add("perf_file_cut", 1)
