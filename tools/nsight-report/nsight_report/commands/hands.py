# SPDX-License-Identifier: GPL-2.0-only
"""The threads that worked on a request, in the output of ``show``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..export.terminal import bar, columns, print_table
from ..names import printable
from ..tables.data_frames import each, record
from ..units import duration
from ..waits.phrases import certain, handed

if TYPE_CHECKING:
    from rich.console import Console

    from ..capture_tables import CaptureTables

_COLUMNS = ("tid", "comm", "start_ns", "end_ns", "how", "sure")


def make(capture: CaptureTables, request: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Rows of table ``request_work``; none for requests that the process sent."""
    if request is None or request["role"] != "server":
        return []
    return [record(row, *_COLUMNS) for row in each(capture.work([request["request_id"]]))]


def print_for_people(work: list[dict[str, Any]], console: Console) -> None:
    """Prints nothing if one thread did all the work and had nothing else in hand."""
    if len(work) < 2 and all(row["sure"] == "measured" for row in work):
        return
    console.print()
    console.print(Text("In whose hands it was between its read and its reply", style="bold"))
    begin, end = work[0]["start_ns"], work[-1]["end_ns"]
    table = columns(console, ">from", ">time", "thread", "how it came there", "", "")
    for row in work:
        took = row["end_ns"] - row["start_ns"]
        table.add_row(
            duration(row["start_ns"] - begin), duration(took), Text(f"{printable(row['comm'])}[{row['tid']}]"), Text(handed(row["how"])), Text(certain(row["sure"])),
            bar(console, took / (end - begin)),
        )  # fmt: skip
    print_table(console, table)
