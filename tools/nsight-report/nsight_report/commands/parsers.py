# SPDX-License-Identifier: GPL-2.0-only
"""Options of the commands; a test compares the manual page with them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

#: The formats of ``export``, with the meaning of FILE.
FORMATS = {
    "perfetto": "a trace for ui.perfetto.dev and trace_processor; compressed if FILE ends in .gz",
    "chrome": "a trace in Chrome's JSON, for viewers that do not read Perfetto's",
    "folded": "stacks and their time, for flamegraph.pl: baseline and slow messages, ns a message",
    "parquet": "tables, one file each; FILE is a directory",
    "csv": "the same as CSV",
}
CAUSE_KEYS = ("deviation", "pervasiveness", "median", "max")
MESSAGE_KEYS = ("deviation", "coverage", "time")

_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_TIME = re.compile(r"^(?P<number>\d{1,9}(?:\.\d{1,9})?)(?P<unit>ns|us|ms|s)$", re.ASCII)
_DEEPEST = 64

Common = Callable[[argparse.ArgumentParser], None]


def _new(name: str, what: str, usage: str, examples: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"nsight-report {name}",
        description=what,
        usage=f"nsight-report {name} {usage} [OPTIONS]",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def top(common: Common) -> argparse.ArgumentParser:
    """``nsight-report top``."""
    p = _new(
        "top", "Rank the causes of delay, or the slow messages.", "CAPTURE",
        "  nsight-report top web.nsight --sort pervasiveness\n"
        "  nsight-report top web.nsight --by message -n 20",
    )  # fmt: skip
    p.add_argument("capture", metavar="CAPTURE", type=Path, help="directory written by nsight-record")
    p.add_argument(
        "--by", choices=("cause", "message"), default="cause", help="what a row is (default: cause)"
    )
    p.add_argument(
        "--sort",
        metavar="KEY",
        choices=sorted({*CAUSE_KEYS, *MESSAGE_KEYS}),
        default="deviation",
        help="causes: deviation (total, the default), pervasiveness (how many messages), median or max; "
        "messages: deviation, coverage (least explained first) or time",
    )
    p.add_argument(
        "-n", "--rows", metavar="N", type=_count, default=25, help="rows to print (default: 25); 0: all"
    )
    common(p)
    return p


def show(common: Common) -> argparse.ArgumentParser:
    """``nsight-report show``."""
    p = _new(
        "show", "Show one message: its timestamps, segments, causes with evidence, slow calls and neighbours.",
        "CAPTURE [MESSAGE]",
        "  nsight-report show web.nsight              the slowest message\n"
        "  nsight-report show web.nsight 4711\n"
        "  nsight-report show web.nsight 4711 --slow id:4711    explain one that is not slow",
    )  # fmt: skip
    p.add_argument("capture", metavar="CAPTURE", type=Path, help="directory written by nsight-record")
    p.add_argument(
        "message",
        metavar="MESSAGE",
        nargs="?",
        default="slowest",
        help="its number, or slowest (the default)",
    )
    p.add_argument(
        "--least",
        metavar="PERCENT",
        type=_count,
        default=3,
        help="leave out calls that took less than this of the message's latency (default: 3)",
    )
    common(p)
    return p


def compare(common: Common) -> argparse.ArgumentParser:
    """``nsight-report compare``."""
    p = _new(
        "compare", "Compare two captures: latencies side by side, causes that came, went and stayed.",
        "BEFORE AFTER",
        "  nsight-report compare before.nsight after.nsight\n"
        "  nsight-report compare before.nsight after.nsight --slow p25-75",
    )  # fmt: skip
    p.add_argument(
        "before", metavar="BEFORE", type=Path, help="capture with whose baseline messages both are compared"
    )
    p.add_argument("capture", metavar="AFTER", type=Path, help="the other capture")
    common(p)
    return p


def export(common: Common) -> argparse.ArgumentParser:
    """``nsight-report export``."""
    formats = "\n".join(f"  {name:<9} {what}" for name, what in FORMATS.items())
    p = _new(
        "export", f"Write a capture in another program's format:\n{formats}", "FORMAT CAPTURE -o FILE",
        "  nsight-report export perfetto web.nsight -o web.pftrace\n"
        "  nsight-report export perfetto web.nsight -o one.pftrace.gz --messages 4711\n"
        "  nsight-report export folded web.nsight -o web.folded && flamegraph.pl web.folded > web.svg\n"
        "  nsight-report export csv web.nsight -o tables --tables messages,causes",
    )  # fmt: skip
    p.add_argument("format", metavar="FORMAT", choices=tuple(FORMATS), help="one of the above")
    p.add_argument("capture", metavar="CAPTURE", type=Path, help="directory written by nsight-record")
    p.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="where to write")
    p.add_argument(
        "--messages",
        metavar="SPEC",
        help="perfetto, chrome, folded: slow (the default), baseline, all, numbers such as 17,18, "
        "or what --slow takes; folded: without it baseline and slow messages side by side",
    )
    p.add_argument("--tables", metavar="NAME,...", help="parquet, csv: only these tables (default: all)")
    common(p)
    return p


def waits(common: Common) -> argparse.ArgumentParser:
    """``nsight-report waits``, which needs no messages and has no options to choose them."""
    p = _new(
        "waits", "Show what a thread did, and what ended its waits: threads, disks, timers, packets.",
        "CAPTURE [--thread NAME|TID]",
        "  nsight-report waits web.nsight                            which threads there were\n"
        "  nsight-report waits web.nsight --thread 4711\n"
        "  nsight-report waits web.nsight --thread postgres --from 1.5s --to 1520ms",
    )  # fmt: skip
    p.add_argument("capture", metavar="CAPTURE", type=Path, help="directory written by nsight-record")
    p.add_argument(
        "--thread", metavar="NAME|TID", help="its number, or a name that no other has; without it: a list"
    )
    p.add_argument(
        "--from",
        dest="since",
        metavar="TIME",
        type=_time,
        help="from then on, since the begin of the recording: 1.5s, 20ms",
    )
    p.add_argument("--to", dest="until", metavar="TIME", type=_time, help="until then")
    p.add_argument(
        "--depth",
        metavar="N",
        type=_depth,
        default=8,
        help="threads that a chain of waits names beside the first (default: 8; at most 64)",
    )
    p.add_argument(
        "--least",
        metavar="PERCENT",
        type=_count,
        default=1,
        help="merge what took less than this share of the time (default: 1)",
    )
    p.add_argument(
        "--longest",
        metavar="N",
        type=_count,
        default=3,
        help="number of waits to print one by one, the longest first (default: 3)",
    )
    p.add_argument(
        "-n",
        "--rows",
        metavar="N",
        type=_count,
        default=25,
        help="threads to list, or chains in JSON (default: 25); 0: all",
    )
    p.add_argument(
        "--json", action="store_true", help="print one JSON object on standard output, nothing else"
    )
    p.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return p


def import_(common: Common) -> argparse.ArgumentParser:
    """``nsight-report import``, which has no options to choose messages."""
    p = _new(
        "import", "Make a capture from a perf.data that was recorded without BPF.", "PERF_DATA",
        "  nsight-report import perf.data                  makes perf.nsight\n"
        "  nsight-report import perf.data -o web.nsight --clock clock.tsv",
    )  # fmt: skip
    p.add_argument(
        "perf_data",
        metavar="PERF_DATA",
        type=Path,
        help="file, or directory of perf record --kcore; Documentation/no-bpf.md says how to record it",
    )
    p.add_argument(
        "-o",
        "--output",
        metavar="CAPTURE",
        type=Path,
        help="directory to make (default: PERF_DATA's name with .nsight instead of .data)",
    )
    p.add_argument(
        "--clock",
        metavar="FILE",
        type=Path,
        help="clock.tsv that nsight-clock wrote meanwhile: for timestamps of NICs (nsight-clock --phc)",
    )
    p.add_argument(
        "--sockets",
        metavar="FILE",
        type=Path,
        action="append",
        help="what ss -tunae printed meanwhile: addresses of sockets; once for each network namespace",
    )
    p.add_argument(
        "--json", action="store_true", help="print one JSON object on standard output, nothing else"
    )
    p.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return p


def hops(common: Common) -> argparse.ArgumentParser:
    """``nsight-report hops``, whose packets are not messages."""
    p = _new(
        "hops", "Say which layer delayed which packet, from what nsight-capsule collected.", "DIRECTORY...",
        "  nsight-report hops slow.capsules\n"
        "  nsight-report hops sender.capsules host.capsules receiver.capsules\n"
        "  nsight-report hops slow.capsules slow.nsight\n"
        "  nsight-report hops slow.capsules --slowest 0.1 -n 20 -o tables",
    )  # fmt: skip
    p.add_argument(
        "directories",
        metavar="DIRECTORY",
        type=Path,
        nargs="+",
        help="directory written by nsight-capsule; with one per kernel on the packets' path, times are in the first one's clock; captures that nsight-record made meanwhile show which cores and threads held the packets",
    )
    p.add_argument(
        "--slowest",
        metavar="PERCENT",
        dest="slow",
        type=_share,
        default=1.0,
        help="packets to explain: this share of those that arrived (default: 1)",
    )
    p.add_argument(
        "-n",
        "--rows",
        metavar="N",
        type=_count,
        default=10,
        help="slow packets to print (default: 10); 0: all",
    )
    p.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="write tables packets and hops to DIR, as Parquet"
    )
    p.add_argument(
        "--json", action="store_true", help="print one JSON object on standard output, nothing else"
    )
    p.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return p


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 50:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage (above 0, up to 50)")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def _depth(text: str) -> int:
    value = _count(text)
    if value > _DEEPEST:
        raise argparse.ArgumentTypeError(f"{text} is more than {_DEEPEST}")
    return value


def _time(text: str) -> int:
    found = _TIME.match(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 1.5s, 20ms or 300us")
    return int(Decimal(found["number"]) * _UNITS[found["unit"]])


MAKERS = {
    "top": top,
    "show": show,
    "waits": waits,
    "compare": compare,
    "export": export,
    "import": import_,
    "hops": hops,
}
