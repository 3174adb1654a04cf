# SPDX-License-Identifier: GPL-2.0-only
"""perf.data as the perf scripts read it, up to the stream and the summary that they make of its records."""

from __future__ import annotations

import io

import guard

with guard.instrumented():
    from nsight_perf import clocks, edge_stream, perf_file, summary
    from nsight_perf.problem import Unusable
    from nsight_perf.recording import Recording

PATH = guard.directory() / "perf.data"


def one(data: bytes) -> None:
    """Read ``data`` as a perf.data, and write and print its contents, as nsight-edges and nsight.py do."""
    PATH.write_bytes(data)
    recording = perf_file.read(str(PATH))
    _write(recording)
    assert all(line.isprintable() for line in summary.losses(recording.events, recording.remarks()))
    if recording.clocks:
        clocks.summary(recording.clocks)
        clocks.clock_tsv(recording.clocks, max(clock.time for clock in recording.clocks) + 1)
    recording.check()


def _write(recording: Recording) -> None:
    writer = edge_stream.Writer(io.BytesIO())
    writer.events(list(zip(*recording.events)))
    writer.events(recording.switches.columns)
    writer.thread_names(recording.names)


guard.fuzz(one, (Unusable,))
