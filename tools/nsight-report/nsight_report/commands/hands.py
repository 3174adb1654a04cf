# SPDX-License-Identifier: GPL-2.0-only
"""Whose hands a request was in, as ``show`` tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..export.terminal import bar, columns, print_table
from ..names import printable
from ..tables.data_frames import each, record
from ..units import duration

if TYPE_CHECKING:
    from rich.console import Console

    from ..capture_tables import CaptureTables

_COLUMNS = ("tid", "comm", "start_ns", "end_ns", "how", "sure")
_WORDS = {
    "read": "read it",
    "memory": "took it up, awake",
    "queued": "had another request",
    "lock": "woken from a lock",
    "hand-over": "woken by what it waits for (pipe, eventfd, ...)",
    "socket": "woken by a socket",
}


def make(capture: CaptureTables, request: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Rows of table ``request_work``; none of requests that the process sent."""
    if request is None or request["role"] != "server":
        return []
    return [record(row, *_COLUMNS) for row in each(capture.work([request["request_id"]]))]


def print_for_people(work: list[dict[str, Any]], console: Console) -> None:
    """Nothing where one thread did it all, and had nothing else in hand."""
    if len(work) < 2 and all(row["sure"] == "measured" for row in work):
        return
    console.print()
    console.print(Text("In whose hands it was between its read and its reply", style="bold"))
    begin, end = work[0]["start_ns"], work[-1]["end_ns"]
    table = columns(console, ">from", ">time", "thread", "how it came there", "", "")
    for row in work:
        took = row["end_ns"] - row["start_ns"]
        how = _WORDS.get(row["how"], f"woken from {row['how']}")
        sure = {"measured": "", "shared": "of this request or of another one"}.get(row["sure"], row["sure"])
        table.add_row(
            duration(row["start_ns"] - begin), duration(took), Text(f"{printable(row['comm'])}[{row['tid']}]"), Text(how), Text(sure),
            bar(console, took / (end - begin)),
        )  # fmt: skip
    print_table(console, table)
