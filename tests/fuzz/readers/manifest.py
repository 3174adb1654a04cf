# SPDX-License-Identifier: GPL-2.0-only
"""manifest.json: read, and queried for everything that a report needs."""

from __future__ import annotations

import guard
import json_mutator

with guard.instrumented():
    from nsight_report import losses, manifest
    from nsight_report.capture import check
    from nsight_report.lifetimes.stage import phc_converter
    from nsight_report.names import printable
    from nsight_report.recorder import Recorder
    from nsight_report.timeline.recording import host

CAPTURE = guard.directory() / "x.nsight"
HOST = ("hostname", "kernel", "cpu_model", "n_cpus", "clocksource")
SPAN = (5_000_000_000_000, 5_001_000_000_000)


def one(data: bytes) -> None:
    """Read ``data`` as the manifest of a capture."""
    (CAPTURE / "manifest.json").write_bytes(data)
    told = manifest.load(CAPTURE)
    for text in (told.command(), told.text("stopped_by"), *(told.text("host", key) for key in HOST)):
        assert printable(text, 400).isprintable()
        text.encode()
    losses.merge([told.losses().table()])
    told.syscall_names()
    host(told)
    Recorder.of(told)
    phc_converter(_Clock(), told)  # type: ignore[arg-type]
    check.check_together(told, SPAN, SPAN)


class _Clock:
    """Two NIC clocks were read."""

    domains = ("phc:ptp0", "phc:ptp1")


CAPTURE.mkdir()
guard.fuzz(one, custom_mutator=json_mutator.mutate)
