# SPDX-License-Identifier: GPL-2.0-only
"""The summary for people, on a terminal (with colour and bars) or piped (plain text)."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, TextIO

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..counters import figure
from ..coverage import only_located
from ..drops import MEANING
from ..names import last_callers, printable
from ..report_text import confidence, next_steps, no_cause, phase_columns, requests_told, slowest_told
from ..stage import REQUEST
from ..summary import (
    RECORDED_WITH,
    SlowMessage,
    Summary,
    cause_with_subject,
    own_cost_line,
    peer_of,
    verdict,
)
from ..tables.data_frames import each
from ..units import counted, duration, percent

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables

_SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}
_BAR = 20
_CAUSES = 10  # maximum number printed
_BLOCKING, _TOLD = 5, 0.05  # maximum number of parts of head-of-line blocking, and their minimum share of it
_REQUESTS = 3  # number of the slowest ones that are printed
_CHAIN = 400  # characters
_PLAIN_WIDTH = 110
#: Text after a cause that is only a place.
LOCATED = " *"


def print_summary(capture: CaptureTables, summary: Summary, file: TextIO, hints: bool = True) -> None:
    """Write the summary to ``file``: the result in words, losses, latencies, causes, slowest messages."""
    console = plain_console(file)
    _head(console, capture, summary)
    _words(console, summary)
    _limitations(console, summary)
    _losses(console, summary)
    _drops(console, summary)
    _latencies(console, summary)
    _requests(console, summary)
    _causes(console, summary)
    _counters(console, summary)
    _blocking(console, summary)
    _slowest(console, summary)
    if hints:
        console.print(
            Text(
                f"\nFigures and the whole report: nsight-report {printable(capture.path)} -o DIR"
                f"\nOne message in detail: nsight-report show {printable(capture.path)} [MESSAGE]"
            ),
            soft_wrap=True,
        )


class _Console(Console):
    """rich would end the program with exit code 1 when the reader ends (head, less); ``cli`` handles that better."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def plain_console(file: TextIO) -> Console:
    """A console for ``file``: colour and the terminal's width on a terminal, else plain."""
    tty = file.isatty()
    # markup=False and Text objects throughout: names from the capture may look like rich markup.
    return _Console(
        file=file,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if tty else _PLAIN_WIDTH,
        no_color=not tty,
    )


def bar_width(console: Console) -> int:
    """Width of a bar that leaves room for names on a narrow terminal."""
    return _BAR if console.width >= 100 else _BAR // 4


def columns(console: Console, *titles: str) -> Table:
    """A table without lines; columns whose title begins with > are numbers, '' is for bars."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        number = title.startswith(">")
        table.add_column(
            title.removeprefix(">"),
            justify="right" if number else "left",
            no_wrap=number or not title,
            overflow="fold",
            width=None if title else bar_width(console),
            min_width=None if number or not title else min(len(title), 20),
        )
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table of ``columns``, indented like the lines around it."""
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def bar(console: Console, share: float, style: str = "cyan") -> Text:
    """``share`` of the whole as a bar."""
    return Text(
        "#" * max(1 if share > 0 else 0, round(min(max(share, 0.0), 1.0) * bar_width(console))), style=style
    )


def _head(console: Console, capture: CaptureTables, s: Summary) -> None:
    m = capture.manifest
    host = " ".join(x for x in (m.text("host", "hostname"), m.text("host", "kernel")) if x)
    console.print(Text(f"{printable(capture.name)}   {printable(host)}", style="bold"))


def _words(console: Console, s: Summary) -> None:
    """What, how much, confidence, what to do."""
    console.print()
    for title, sentences in (("", [verdict(s)]), ("Confidence: ", confidence(s))):
        if sentences:
            text = textwrap.fill(title + " ".join(sentences), console.width, break_on_hyphens=False)
            console.print(Text(text), soft_wrap=True)
    steps = next_steps(s)
    if steps:
        console.print("What to do:")
    for step in steps:
        _item(console, step)


def _limitations(console: Console, s: Summary) -> None:
    console.print()
    console.print(Text(f"Mode: {RECORDED_WITH[s.mode]}", style="bold"))
    console.print(Text("Limitations of this recording:"))
    for line in s.limitations:
        _item(console, line)


def _item(console: Console, text: str, style: str = "") -> None:
    filled = textwrap.fill(
        text, console.width, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False
    )
    console.print(Text(filled, style=style), soft_wrap=True)


def _title(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _losses(console: Console, s: Summary) -> None:
    bad = s.losses[s.losses["severity"].astype(str) != "info"]
    n_info = len(s.losses) - len(bad)
    _title(console, "Data quality")
    if s.cut:
        _item(console, "This capture was cut: the recorder, or a program it ran, did not finish.", "yellow")
    for row in each(bad):
        text = f"{row.severity}: {printable(row.stage)}: {printable(row.cause)}: {row.count:,}. {printable(row.detail, 400)}"
        if row.remedy:
            text += f" (fix: {printable(row.remedy, 200)})"
        _item(console, text, _SEVERITY_STYLE.get(str(row.severity), ""))
    if not len(bad) and not s.cut:
        _item(console, "Nothing that changes the result.")
    if n_info:
        _item(
            console,
            f"{counted(n_info, 'harmless entry', 'harmless entries')} more: see --json or the report.",
            "dim",
        )


def _drops(console: Console, s: Summary) -> None:
    if not len(s.drops):
        return
    _title(console, "Packets that this machine dropped")
    for row in each(s.drops.head(_CAUSES)):
        _item(console, described(row))


def _counters(console: Console, s: Summary) -> None:
    if not s.counted:
        return
    _title(console, f"Performance counters of the work on the median {s.thing}")
    table = columns(console, "counter", ">slow", ">baseline")
    for one in s.counted:
        table.add_row(printable(one.name), figure(one.slow), figure(one.baseline))
    print_table(console, table)


def described(row: Any) -> str:
    """The text for a row of ``drops.of_messages``.

    >>> from types import SimpleNamespace as Row
    >>> row = Row(direction="to", port=53, proto=17, reason="SOCKET_RCVBUFF", n_packets=1200, n_flows=3,
    ...           most_source="10.0.0.2:4000", most_destination="10.0.0.1:53", most_packets=900)
    >>> described(row)
    "1,200 packets to UDP port 53: SOCKET_RCVBUFF (the socket's receive buffer was full); 900 of them from 10.0.0.2:4000 to 10.0.0.1:53"
    """
    protocol = {6: "TCP", 17: "UDP"}.get(row.proto, "IP")
    meaning = MEANING.get(row.reason, "")
    most = ""
    if row.most_source:
        n = "" if row.n_flows == 1 else f"{row.most_packets:,} of them "
        most = f"; {n}from {printable(row.most_source)} to {printable(row.most_destination)}"
    return (
        f"{counted(row.n_packets, 'packet')} {row.direction} {protocol} port {row.port}: {printable(row.reason)}"
        + (f" ({meaning})" if meaning else "")
        + most
    )


def _latencies(console: Console, s: Summary) -> None:
    _title(console, f"{s.thing.capitalize()}s: {s.n:,}")
    parts = [f"p{p:g} {duration(ns)}" for p, ns in s.percentiles.items()]
    if s.max_ns is not None:
        parts.append(f"max {duration(s.max_ns)}")
    console.print("  latency: " + ", ".join(parts) if parts else "  no latency: none matches")
    if s.unsupported and s.n:
        missing = ", ".join(f"p{p:g}" for p in s.unsupported)
        console.print(f"  too few messages for {missing}", style="dim")
    console.print(f"  slow {s.thing}s: {s.slow} ({s.n_slow:,}), baseline: {s.baseline}")
    if s.covered is not None:
        explained, located, unexplained = s.covered.whole.percentages()
        console.print(
            f"  coverage: of the extra latency {explained}% explained, {located}% only located, {unexplained}% unexplained; of a "
            f"{s.thing}'s explained: median {percent(s.covered.median)}, lowest {percent(s.covered.least)}",
            soft_wrap=True,
        )
    elif s.n_slow and not s.n_beyond_noise:
        console.print("  coverage: undefined, as none was slower by more than measurement noise")
    if s.covered is not None and len(s.covered.worst):
        worst = [
            f"{row.message_id} ({row.coverage:.0%} of {duration(row.deviation_ns)})"
            for row in each(s.covered.worst)
        ]
        console.print(f"  explained least: {s.thing} {', '.join(worst)}", style="dim")


def _requests(console: Console, s: Summary) -> None:
    f = s.requests
    if f is None:
        return
    title, *sentences = requests_told(f, s.thing)
    _title(console, title)
    for sentence in sentences:
        console.print(Text("  " + sentence), soft_wrap=True)
    names, sent = phase_columns(f), [">requests it sent"] if f.n_sent else []
    table = columns(console, "mean of", ">n", ">latency", *(f">{name}" for name in names), *sent)
    for row in f.slices:
        parts = [row.latency_ns, *(row.phases_ns[name] for name in names), *([row.sent_ns] if sent else [])]
        table.add_row(Text(row.name), f"{row.n:,}", *(duration(ns) for ns in parts))
    if f.slices:
        print_table(console, table)
    for sentence in slowest_told(f)[:_REQUESTS]:
        console.print(Text("  slowest: " + sentence, style="dim"), soft_wrap=True)


def _causes(console: Console, s: Summary) -> None:
    _title(console, f"Causes of the slow {s.thing}s, by total delay")
    if not len(s.causes):
        console.print(
            "  none found"
            if s.n_beyond_noise
            else f"  none: no {s.thing} was slower by more than measurement noise"
        )
        return
    table = columns(console, "cause", ">share", "", f">{s.thing}s", ">median", ">max", ">total")
    shown = s.causes.head(_CAUSES)
    for row in each(shown):
        table.add_row(
            Text(cause_with_subject(row) + (LOCATED if only_located(row) else "")),
            percent(row.share),
            bar(console, float(row.share)),
            f"{row.n_messages:,}",
            duration(row.median_deviation_ns),
            duration(row.max_deviation_ns),
            duration(row.total_deviation_ns),
        )
    print_table(console, table)
    _chains(console, s, shown)
    rest = s.causes["share"].iloc[_CAUSES:]
    if len(rest):
        console.print(
            f"  and {len(rest)} smaller, together {percent(rest.sum())}: see --json or the report",
            style="dim",
        )
    if any(only_located(row) for row in each(shown)):
        console.print(f" {LOCATED} tells where the time went, and not why", style="dim")
    whose = f"the slow {s.thing}s" if s.n_beyond_noise == s.n_slow else "the slower ones"
    console.print(f"  shares are of {duration(s.extra_ns)}, the extra latency of {whose} in all", style="dim")
    if s.own_cost and s.own_cost.share:
        console.print("  " + own_cost_line(s.own_cost, s.thing))
    sides = "(R) receive core: before the hand-off. (A) application core: after it."
    out = " (T) transmit: from the send call on." if s.thing == "request" else ""
    console.print(f"  {sides}{out}", style="dim")


def _chains(console: Console, s: Summary, causes: pd.DataFrame) -> None:
    """What the requests waited for, and what those threads did meanwhile."""
    for row in each(causes[(causes["share"] >= _TOLD).to_numpy(bool)]):
        chain = s.chains.get(str(row.cause))
        if chain:
            text = f"{printable(row.cause)}, {chain.n:,} of {counted(row.n_messages, s.thing)}: {printable(chain.text, _CHAIN)}"
            _item(console, text)


def _blocking(console: Console, s: Summary) -> None:
    """What the messages or requests ahead did, as far as it matters."""
    rows = s.blocking[s.blocking["share"] >= _TOLD].head(_BLOCKING)
    if not len(rows):
        return
    _title(console, f"Head-of-line blocking: what the {s.thing}s ahead did meanwhile")
    table = columns(console, "what", ">share", "", f">{s.thing}s", ">total", ">the fastest take")
    for row in each(rows):
        name = printable(row.cause).removeprefix("Head-of-line blocking: ")
        what = Text(f"{name}: {printable(row.subject)}" if row.subject else name)
        if row.callers:
            what.append(f"\n  in {printable(last_callers(row.callers))}", style="dim")
        table.add_row(
            what,
            percent(row.share),
            bar(console, float(row.share)),
            f"{row.n_messages:,}",
            duration(row.observed_ns),
            duration(row.fastest_ns),
        )
    print_table(console, table)


def _slowest(console: Console, s: Summary) -> None:
    if not s.slowest:
        return
    _title(console, f"Slowest {s.thing}s (of those delayed together, the slowest)")
    for message in s.slowest:
        console.print(Text("  " + describe(message)), soft_wrap=True)
        explained = ", ".join(f"{printable(name)} +{duration(ns)}" for name, ns in message.causes[:4])
        covered = "" if message.coverage is None or not explained else f"  [{message.coverage:.0%} explained]"
        console.print(Text(f"      {explained or no_cause(message.coverage)}{covered}"), soft_wrap=True)


def describe(message: SlowMessage) -> str:
    """One line that identifies a message: number, latency, application, peer, cores."""
    row = message.row
    usual = f" (usual {duration(message.baseline_ns)})" if message.baseline_ns is not None else ""
    request = row["direction"] == REQUEST
    what = f"{'request' if request else 'message'} {row['message_id']}: {duration(int(row['latency_ns']))}{usual}"
    what += "" if request else f", {row['direction']}"
    who = f"{printable(row['comm'])}[{row['tid']}]"
    if row["direction"] == "interval":
        return f"{what} {printable(peer_of(row))}, {who}"
    return f"{what}, {who}, port {row['lport']} from {printable(peer_of(row))}, {row['nbytes']} bytes"
