# SPDX-License-Identifier: GPL-2.0-only
"""Names chosen by programs, symbols and hosts, on the terminal, in folded stacks and in JSON.

The output has no control characters for a terminal, and no more lines than with a harmless name.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json

import guard
import shown

with guard.instrumented():
    from nsight_report import cli
    from nsight_report.capture.event_fields import comm_text
    from nsight_report.export import folded, page_data, terminal
    from nsight_report.names import printable, thread_name

LIMITS = (1, 15, 80, 1000)


def one(data: bytes) -> None:
    """Show ``data`` as a name."""
    name = shown.decoded(data)
    for limit in LIMITS:
        made = printable(name, limit)
        assert made.isprintable() and len(made) <= max(limit, 1)
    assert comm_text(name).isprintable()
    assert printable(thread_name(name)).isprintable()
    frame = folded._frame("thread", name)
    assert frame.isprintable() and not set("; ") & set(frame)
    _embedded(name)
    _error(name)
    _summary(name)


def _embedded(name: str) -> None:
    """In the page's data nothing begins a tag or a comment, and the data are complete."""
    made = page_data.embedded({"name": name})
    assert not set("<>&") & set(made)
    assert json.loads(made) == {"name": name}
    made.encode()


def _error(name: str) -> None:
    """An error is one line and its fix another."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        cli._fail(argparse.Namespace(debug=False), name, name, 3)
    _check(said.getvalue(), 2)


def _summary(name: str) -> None:
    said = io.StringIO()
    name = shown.written(name)
    shown.CAPTURE.pipeline.manifest = shown.manifest(name)
    terminal.print_summary(shown.CAPTURE, shown.named(shown.SUMMARY, name), said)
    _check(said.getvalue())


def _check(said: str, n_lines: int | None = None) -> None:
    lines = said.split("\n")
    assert all(line.isprintable() for line in lines), "what a terminal obeys"
    assert n_lines is None or len(lines) == n_lines + 1, "more lines than an error has"
    said.encode()


guard.fuzz(one)
