# SPDX-License-Identifier: GPL-2.0-only
"""A small analysed capture, and its summary with a name from the fuzzer wherever a capture can have one."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import guard

sys.path.insert(0, str(guard.ROOT / "tests"))

with guard.instrumented():
    from machinery.made_up import capture as synthetic
    from nsight_report import api, summary
    from nsight_report.api import Capture
    from nsight_report.manifest import Manifest
    from nsight_report.summary import SlowMessage, Summary
    from nsight_report.tables import data_frames

#: As thread names have it: what precedes the fuzzer's bytes is never empty.
HARMLESS = "name"


def analysed() -> Capture:
    """One of 400 messages, four of which are slow, and its tables stored."""
    path = synthetic.write_capture(guard.directory() / "x.nsight", synthetic.World(400))
    capture = api.open_capture(path)
    capture.analyse()
    return capture


def decoded(data: bytes) -> str:
    """A name as a reader makes it from bytes, or (every other one) from UTF-16, in which any character is easy to reach."""
    if data[:1] and data[0] & 1:
        return HARMLESS + data[1:].decode("utf-16-le", "surrogatepass" if len(data) % 2 else "replace")
    return HARMLESS + data[1:].decode("utf-8", "backslashreplace")


def written(name: str) -> str:
    """As a manifest that was read and the tables have it: without half characters, which only paths may have."""
    return name.encode("utf-8", "replace").decode()


def manifest(name: str) -> Manifest:
    """Data from another program: every text in it is ``name``."""
    host = dict.fromkeys(("hostname", "kernel", "cpu_model", "clocksource"), name)
    tools = {name: {"version": name, "argv": [name, name]}}
    told = {"host": host, "command": [name, name], "stopped_by": name, "tools": tools}
    return Manifest("tracepoints", True, told)


def named(of: Summary, name: str) -> Summary:
    """``of`` with ``name`` in causes, subjects, advice, losses, blocking and the slowest messages."""
    causes = of.causes.assign(cause=name, subject=name, category=name, advice=name)
    losses = of.losses.assign(stage=name, cause=name, detail=name, remedy=name)
    blocking = BLOCKING.assign(**dict.fromkeys(BLOCKING.select_dtypes(exclude="number"), name))
    slowest = [dataclasses.replace(slow, row=_row(slow, name), causes=[(name, 5)]) for slow in of.slowest]
    return dataclasses.replace(of, causes=causes, losses=losses, slowest=slowest, blocking=blocking)


def _row(slow: SlowMessage, name: str) -> Any:
    row = slow.row.copy()
    row["comm"] = row["raddr"] = name
    return row


def _blocking() -> Any:
    """Waits of one message that waited for two things."""
    waits = synthetic.blocking_of(7, first=(300, 200), second=(100, 100))
    return summary.blocking(data_frames.to_pandas(waits))


BLOCKING = _blocking()
CAPTURE = analysed()
SUMMARY = summary.summarise(CAPTURE)
