# SPDX-License-Identifier: GPL-2.0-only
"""Options and commands of nsight-report, as argparse parsers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from . import __version__

#: The value of --direction that each value of --latency corresponds to.
LATENCIES = {"receive": "rx", "request": "request", "transmit": "tx"}
COMMANDS = ("top", "show", "waits", "compare", "export", "import", "hops")

_EPILOG = """\
other commands (nsight-report COMMAND --help lists their options):
  top CAPTURE                    rank causes, or messages
  show CAPTURE [MESSAGE]         one message: timestamps, causes with evidence, calls, neighbours
  waits CAPTURE                  threads: what each did, and what or whom it waited for
  compare BEFORE AFTER           two captures: latencies, causes that came, went, stayed
  export FORMAT CAPTURE -o FILE  perfetto, chrome, folded, parquet or csv
  import PERF_DATA               make a capture from a perf.data that was recorded without BPF
  hops DIRECTORY                 which layer delayed which packet, from nsight-capsule
A capture directory that has the name of a command is written ./top.

stages, in order: STAGES

exit codes:
  0    the report was made
  1    internal error (a bug in nsight-report)
  2    wrong usage
  3    the capture, or a file in it, cannot be used
  4    this installation lacks something
  5    writing failed (disk full, no permission); recorded data is intact
  130  interrupted

examples:
  nsight-report web.nsight                     what delayed the slowest 1 %
  nsight-report web.nsight -o report           the same as HTML, with figures
  nsight-report web.nsight --slow 1ms-       what delayed messages slower than 1 ms
  nsight-report web.nsight --json | jq .causes
"""


class _Stages(Container[str]):
    """Names of the stages, in order. The modules that make tables are loaded only when the names are needed."""

    def __iter__(self) -> Iterator[str]:
        from .stages import BY_NAME

        return iter(BY_NAME)

    def __contains__(self, name: object) -> bool:
        return name in list(self)


class _Renamed(argparse.Action):
    """An option under its old name: accepted for one release, with a warning that gives the new name."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        print(f"{parser.prog}: warning: {option} is called --{self.dest} now, and will go", file=sys.stderr)
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    def format_help(self) -> str:
        return super().format_help().replace("STAGES", ", ".join(_Stages()))


def parser() -> argparse.ArgumentParser:
    """The command line of a report; a test compares the manual page with its help."""
    p = options()
    p.add_argument("capture", metavar="CAPTURE", type=Path, help="directory written by nsight-record")
    return p


def options() -> argparse.ArgumentParser:
    """The options alone: completions need them, because a command may stand where the capture is expected."""
    p = _Parser(
        prog="nsight-report",
        description="Say what delayed the slow messages of a capture, on which core, and by how much.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="write report.html and its figures to DIR"
    )
    p.add_argument(
        "--lifetimes",
        metavar="N",
        type=_lifetimes,
        help="with -o: messages whose lifetime and call tree the page holds, as far as they fit in 8 MB (default: 150)",
    )
    _common(p)
    p.add_argument(
        "--stage",
        metavar="NAME",
        choices=_Stages(),
        help="run only this stage, from its stored input, and make no report; with -o: tables of a read-only capture go to DIR",
    )
    p.add_argument(
        "--rerun", metavar="NAME", choices=_Stages(), help="run this stage and those after it again"
    )
    p.add_argument("--version", action="version", version=f"nsight-report {__version__}")
    return p


def _common(p: argparse.ArgumentParser) -> None:
    """Options of every command: which messages are compared, with what, and how it is printed."""
    p.add_argument(
        "--json", action="store_true", help="print one JSON object on standard output, nothing else"
    )
    p.add_argument(
        "--slow",
        metavar="SPEC",
        default="p99-100",
        help="messages to explain: percentiles such as p99-100 (the default), latencies such as 1ms- or 20us-2ms, "
        "time:1.5s-2s since the first message, conn:4, peer:10.0.0.2:41000, type:get, id:17,18 or id:@FILE; joined by +",
    )
    p.add_argument(
        "--baseline",
        metavar="SPEC",
        default="p25-75",
        help="messages to compare with, likewise (default: p25-75)",
    )
    for old, new in (("--target", "slow"), ("--reference", "baseline")):
        p.add_argument(old, dest=new, action=_Renamed, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    p.add_argument(
        "--against",
        metavar="CAPTURE",
        help="compare with the baseline messages of another capture (before a change, say) instead of this one's",
    )
    p.add_argument("--app", metavar="NAME|PID", help="only messages of this program")
    p.add_argument("--port", metavar="N", type=_port, help="only messages of this port of the application")
    p.add_argument(
        "--direction",
        choices=("rx", "tx", "interval"),
        help="received (default) or sent messages, or intervals (the default with --intervals)",
    )
    p.add_argument(
        "--latency",
        choices=tuple(LATENCIES),
        help="what is explained: received messages up to the read (as --direction rx), requests from arrival to reply, or sent "
        "messages up to the driver (as --direction tx)",
    )
    p.add_argument(
        "--intervals",
        metavar="FILE",
        help="CSV of intervals of threads to explain in place of messages: name,start,stop,clock,thread,core; "
        "default: intervals.csv in the capture, if it has one",
    )
    p.add_argument(
        "--role",
        choices=("server", "client"),
        default="server",
        help="which requests to report phases for: received ones (default), or those that the application sent",
    )
    p.add_argument(
        "--framing",
        choices=("memcached", "redis", "http", "http2", "postgres", "none"),
        default="none",
        help="cut messages by protocol (needs a capture made with --payload); none: one read or write is one message",
    )
    p.add_argument(
        "--categories",
        metavar="FILE",
        help="CSV of cause categories and advice whose rows come before the built-in ones",
    )
    p.add_argument(
        "--symfs",
        metavar="DIR",
        help="mode intel-pt: directory with the recorded machine's programs, if this machine is another one, or its name has changed",
    )
    p.add_argument(
        "--nested",
        metavar="PERCENT",
        type=_percent,
        default=80,
        help="mode intel-pt: leave out a function when nested functions explain this much of its deviation (default: 80)",
    )
    p.add_argument(
        "--decode",
        choices=("all", "chosen"),
        default="all",
        help="mode intel-pt: decode all of the trace (default), or only around the messages that are compared, which is faster",
    )
    p.add_argument("--debug", action="store_true", help="show the traceback of an error")


def command_parser(name: str) -> argparse.ArgumentParser:
    """The options of one of the other commands."""
    from .commands.parsers import MAKERS

    return MAKERS[name](_common)


def _port(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 0 < value < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (1 to 65535)")
    return value


def _lifetimes(text: str) -> int:
    value = int(text) if text.isdecimal() and len(text) < 6 else -1
    if not 0 <= value <= 5000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of messages (0 to 5000)")
    return value


def _percent(text: str) -> int:
    value = int(text) if text.isdecimal() and len(text) < 4 else 0
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage (1 to 100)")
    return value
