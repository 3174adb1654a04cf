# SPDX-License-Identifier: GPL-2.0-only
"""Files and words of the user's own: categories, lists of sockets, slices, numbers of messages, readings beside a perf.data, intervals."""

from __future__ import annotations

from collections.abc import Callable

import guard

with guard.instrumented():
    from nsight_report.attribution import categories
    from nsight_report.clocks import ClockMap
    from nsight_report.intervals.read import Reader
    from nsight_report.losses import Ledger
    from nsight_report.perf_import import clock, sockets
    from nsight_report.selection.slices import Slice
    from nsight_report.tables import schema

PATH = guard.directory() / "file"
CLOCK = ClockMap(schema.empty("clock_map"))
NAMES = ("nginx", "kworker", "tcp_v4_rcv", "a" * 200, "\x1b[31m", "")


def _categories() -> None:
    known = categories.load(PATH)
    for name in NAMES:
        categories.categorise(known, "thread", name)
        categories.categorise(known, "function", name, "[kernel.kallsyms]")


def _sockets() -> None:
    cookies, words = sockets.load([PATH])
    assert words.shape == (len(cookies), 4)


def _numbers() -> None:
    str(Slice.parse(f"id:@{PATH}"))


def _slice() -> None:
    text = PATH.read_bytes().decode("utf-8", "surrogateescape").replace("@", "")  # a file of any name
    chosen = Slice.parse(text)
    chosen.columns()
    str(chosen)


def _beside() -> None:
    clock._beside(PATH, 2_000_000)


def _intervals() -> None:
    reader = Reader(PATH, CLOCK, Ledger("lifetimes"))
    for some in reader:
        assert ((some.start >= 0) & (some.start <= some.stop)).all()
        assert ((some.tid > 0) | (some.cpu >= 0) | (some.pid is not None)).all()
        assert (some.name < len(reader.names)).all()


READERS: tuple[Callable[[], None], ...] = (_categories, _sockets, _numbers, _slice, _beside, _intervals)


def one(data: bytes) -> None:
    """Read the bytes after the first one, as the first byte says."""
    if data:
        PATH.write_bytes(data[1:])
        READERS[data[0] % len(READERS)]()


guard.fuzz(one)
