# SPDX-License-Identifier: GPL-2.0-only
"""A whole capture in which one file comes from the fuzzer: opened, checked, and read up to table ``messages``.

The first byte selects the file, and whether it is bytes, a link, a pipe, a directory or missing. The tables after
``messages`` need perf.data, which programs in C read: they have separate targets.
"""

from __future__ import annotations

import os
import shutil

import guard
import samples

with guard.instrumented():
    # Modules that stages import only when they run would not be watched.
    from nsight_report import pipeline
    from nsight_report.capture import message_events, raw_records  # noqa: F401

PLACE = guard.directory()
CAPTURE = PLACE / "x.nsight"
STAGES = ("clocks", "events", "messages")
LINK, PIPE, DIRECTORY, ABSENT = 12, 13, 14, 15


def one(data: bytes) -> None:
    """Read a capture with a file of ``data``."""
    if not data:
        return
    _lay()
    _replace(samples.CAPTURE_FILES[data[0] % len(samples.CAPTURE_FILES)], data[0] >> 4, data[1:])
    made = pipeline.Pipeline(CAPTURE, diagnosed=False)
    for name in STAGES:
        made.run_alone(name)
    found = made.messages().columns(["first_ns", "last_ns", "latency_ns"])
    assert (found["latency_ns"] >= 0).all(), "a negative latency"
    made.losses()


def _lay() -> None:
    """The capture as it was recorded."""
    shutil.rmtree(CAPTURE, ignore_errors=True)
    (CAPTURE / "tables").mkdir(parents=True)
    for name, content in samples.capture().items():
        (CAPTURE / name).write_bytes(content)


def _replace(name: str, how: int, content: bytes) -> None:
    path = CAPTURE / name
    path.unlink()
    if how == PIPE:
        os.mkfifo(path)
    elif how == DIRECTORY:
        path.mkdir()
    elif how == LINK:
        (PLACE / "elsewhere").write_bytes(content)
        path.symlink_to(PLACE / "elsewhere")
    elif how != ABSENT:
        path.write_bytes(content)


guard.fuzz(one)
