# SPDX-License-Identifier: GPL-2.0-only
"""``nsight-report export``: which exporter, with which options."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..errors import UsageError
from ..export import output_file
from ..names import printable

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables

_TABLES = ("parquet", "csv")


def check(args: argparse.Namespace) -> None:
    """Raises UsageError or OutputError for what would certainly fail, before anything is computed."""
    if args.format in _TABLES:
        if args.messages is not None:
            raise UsageError(f"--messages does not go with {args.format}", "choose tables with --tables")
        if args.tables:
            from ..export.tables import check as check_tables

            check_tables(args.tables.split(","))
        return
    if args.tables is not None:
        raise UsageError(f"--tables does not go with {args.format}", "choose messages with --messages")
    if args.messages is not None:
        from ..export.selection import check as check_messages

        check_messages(args.messages)
    output_file.check(args.output)
    if args.json and output_file.is_stdout(args.output):
        raise UsageError(f"--json does not go with -o {args.output}", "both are standard output")


def make(capture: CaptureTables, args: argparse.Namespace) -> dict[str, Any]:
    """Write FILE; returns the object of ``export --json``."""
    if args.format in _TABLES:
        from ..export.tables import export as export_tables

        wanted = args.tables.split(",") if args.tables else None
        counts = export_tables(capture, args.format, args.output, wanted)
    else:
        counts = _messages(capture, args)
    return {"capture": str(capture.path), "format": args.format, "file": str(args.output), "written": counts}


def _messages(capture: CaptureTables, args: argparse.Namespace) -> dict[str, int]:
    if args.format == "folded":
        from ..export.folded import export as folded

        return folded(capture, args.messages, args.output)
    spec = args.messages or "slow"
    if args.format == "chrome":
        from ..export.chrome import export as chrome

        return chrome(capture, spec, args.output)
    from ..export.perfetto import export as perfetto

    return perfetto(capture, spec, args.output)


_NEXT = {
    "perfetto": "open it at https://ui.perfetto.dev, or query it with trace_processor",
    "chrome": "open it at https://ui.perfetto.dev or in chrome://tracing",
    "folded": "flamegraph.pl draws it",
}


def print_for_people(made: dict[str, Any], console: Console) -> None:
    """What was written."""
    counts = ", ".join(f"{name.replace('_', ' ')}: {n:,}" for name, n in made["written"].items())
    console.print(f"{printable(made['file'], 400)}: {counts}", soft_wrap=True)
    if made["format"] in _NEXT:
        console.print(f"  {_NEXT[made['format']]}", style="dim")
