# SPDX-License-Identifier: GPL-2.0-only
"""Options of nsight-record."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from . import __version__, collect, payload, probes
from .flight_options import AFTER_S, Options

_EPILOG = """\
exit codes:
  0    recorded; with --restore: all is as it was
  2    wrong usage
  4    something this machine lacks (nsight-record --preflight lists it)
  5    the capture could not be written, or a recording program died; what was
       recorded is kept; with --restore: a setting could not be put back
  130  stopped by Ctrl-C or SIGTERM; what was recorded is kept

examples:
  nsight-record -d 5 --port 11211
  nsight-record --netns web --iface eth0 --rx -- ./load-test
  nsight-record --flight --trigger latency=2ms --port 11211
  nsight-record --preflight
  nsight-record --restore
"""


#: Modes by their former names.
_GRADES = {"auto": "auto", "pt": "intel-pt", "trace": "tracepoints"}


class _Grade(argparse.Action):
    """``--grade``, the former name of ``--mode``: accepted for one release, with a warning."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        mode = _GRADES[values]
        print(
            f"{parser.prog}: warning: {option} {values} is called --mode {mode} now, and will be removed",
            file=sys.stderr,
        )
        namespace.mode = mode


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86400 * 7:
        raise ValueError
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 < value < 65536:
        raise ValueError
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError
    return value


def _cpu_list(text: str) -> list[int]:
    cpus: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high < 8192:
            raise ValueError
        cpus.extend(range(low, high + 1))
    return cpus


def _size(text: str) -> int:
    m = re.fullmatch(r"(\d+(?:\.\d+)?)([MGT])B?", text)
    if not m:
        raise ValueError
    return int(float(m[1]) * {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[m[2]])


def _per_cent(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 100:
        raise ValueError
    return value


_seconds.__name__, _port.__name__ = "number of seconds", "port"
_positive.__name__, _cpu_list.__name__ = "number", "list of cores, such as 0,2-3"
_size.__name__, _per_cent.__name__ = "size, such as 512M or 2G", "percentage"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="nsight-record",
        usage="nsight-record [OPTIONS] [-- COMMAND ...]",
        description="Record what every core does and when network messages reach the host, the socket and the "
        "application, in one capture directory for nsight-report. Needs root.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "-d", "--duration", type=_seconds, metavar="SECONDS", help="stop after SECONDS (default: at Ctrl-C)"
    )
    p.add_argument(
        "-o", "--output", metavar="DIR", help="capture directory (default: nsight-HOST-TIME.nsight)"
    )
    p.add_argument("-f", "--force", action="store_true", help="replace DIR if it is a capture")
    p.add_argument(
        "--port", type=_port, metavar="N", help="only messages with this TCP or UDP port, on either side"
    )
    p.add_argument(
        "--clients",
        action="store_true",
        help="if --port belongs to a server on this machine: also record messages of its clients on this machine "
        "(default: only the server's messages; recorder bpftrace: both)",
    )
    p.add_argument("--pid", type=_positive, metavar="PID", help="only messages read and sent by this process")
    p.add_argument("--cgroup", metavar="PATH", help="only sockets of this cgroup (version 2)")
    p.add_argument("--iface", metavar="NAME", help="only packets of this interface")
    p.add_argument(
        "--netns", metavar="NS", help="only this network namespace: name, process in it, or inode number"
    )
    p.add_argument("--rx", action="store_true", help="received messages only")
    p.add_argument("--tx", action="store_true", help="sent messages only")
    p.add_argument(
        "--mode",
        choices=("auto", "intel-pt", "tracepoints"),
        default="auto",
        help="intel-pt: every function call; tracepoints: contexts only (default: auto, intel-pt where Intel PT is available)",
    )
    p.add_argument(
        "--grade",
        choices=_GRADES,
        dest="mode",
        action=_Grade,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    p.add_argument(
        "--recorder",
        choices=("auto", "bpf", "bpftrace"),
        default="auto",
        help="bpf: NSight's own BPF programs, which cost a server the least; bpftrace: its bpftrace scripts and perf, which need "
        "no build (default: auto, bpf if it is built and the kernel supports it)",
    )
    p.add_argument(
        "--syscalls",
        choices=tuple(collect.SYSCALLS),
        help="system calls that recorder bpf records. waits: those in which a thread lost its core; messages: all "
        "system calls of processes that messages reach, which slows every system call of the machine; all; none "
        "(default: waits; recorder bpftrace records all)",
    )
    p.add_argument(
        "--interval",
        action="append",
        metavar="[NAME=]WHERE",
        help="also record intervals of threads, from one place of a program to another: usdt:FILE:PROVIDER:MARK..MARK or "
        "uprobe:FILE:FUNCTION..FUNCTION, with ,argN after it if that argument is the key; or from the time when a timer was due: "
        "timer:PID|THREAD (recorder bpf; can be given several times)",
    )
    p.add_argument(
        "--counters",
        nargs="?",
        const=collect.USUAL_COUNTERS,
        metavar="LIST",
        help=f"also record performance counters of each core, read at each context switch and mark of an interval, at most "
        f"{collect.MOST_COUNTERS}: {', '.join(collect.COUNTERS)} (recorder bpf, mode tracepoints; default LIST: "
        f"{collect.USUAL_COUNTERS})",
    )
    p.add_argument(
        "--compress",
        action="store_true",
        help="compress the records of recorder bpf with zstd, to two fifths of the bytes or less; takes CPU time",
    )
    p.add_argument(
        "--acknowledgements",
        action="store_true",
        help="also record when the driver was done with data sent by TCP and when peers acknowledged it (recorder bpf, Linux 6.15); runs a BPF program up to four times per send call",
    )
    p.add_argument(
        "--payload",
        nargs="?",
        type=_positive,
        const=payload.DEFAULT_SNAPLEN,
        metavar="BYTES",
        help="also store the first BYTES of every packet with tcpdump, for message framing. This stores your "
        f"users' data (default: no; without a number {payload.DEFAULT_SNAPLEN})",
    )
    p.add_argument(
        "--lwip",
        nargs="?",
        const=probes.SYSTEMS_LWIP,
        metavar="LIBRARY",
        help="also record messages of programs that use lwIP, a TCP library inside the process. LIBRARY: the library file, or the "
        f"program that it is linked into (default: no; without a name {probes.SYSTEMS_LWIP}, the system's liblwip.so.N)",
    )
    p.add_argument("--cpus", type=_cpu_list, metavar="LIST", help="cores on which the recording programs run")
    p.add_argument(
        "--fix", action="store_true", help="change what preflight can change; put it back afterwards"
    )
    p.add_argument(
        "--restore",
        action="store_true",
        help="put back what a killed recorder changed with --fix; record nothing",
    )
    p.add_argument(
        "--preflight", action="store_true", help="print what is missing and how to get it; record nothing"
    )
    _add_flight(p)
    p.add_argument("-q", "--quiet", action="store_true", help="print warnings and errors only")
    p.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    p.add_argument("command", nargs="*", metavar="COMMAND", help="record until this program ends")
    return p


def _add_flight(p: argparse.ArgumentParser) -> None:
    default = Options()
    g = p.add_argument_group(
        "flight recorder",
        "Keep the last seconds in memory; a trigger writes the time around it as a capture.",
    )
    g.add_argument(
        "--flight",
        action="store_true",
        help="run as a flight recorder; DIR then holds a capture for each window",
    )
    g.add_argument(
        "--trigger",
        action="append",
        metavar="WHAT",
        help="latency=2ms (a message took longer), latency=p99.9 (longer than this percentile of its service), drops=100/s, "
        "retransmissions=10/s; may be given once for each kind. SIGUSR1 always triggers",
    )
    g.add_argument(
        "--before",
        type=_seconds,
        default=default.before,
        metavar="SECONDS",
        help="how much to keep before a trigger (default %(default)s)",
    )
    g.add_argument(
        "--after",
        type=_seconds,
        metavar="SECONDS",
        help=f"how much to record after it (default {AFTER_S['tracepoints']}; {AFTER_S['intel-pt']} with Intel PT)",
    )
    g.add_argument(
        "--memory",
        type=_size,
        metavar="SIZE",
        help="memory for all cores (default: 64M a core, at most 1/32 of the available memory)",
    )
    g.add_argument(
        "--windows-per-hour",
        type=_positive,
        default=default.per_hour,
        metavar="N",
        help="at most this many windows per hour (default %(default)s)",
    )
    g.add_argument(
        "--most-disk",
        type=_size,
        default="2G",
        metavar="SIZE",
        help="disk space for all windows (default %(default)s)",
    )
    g.add_argument(
        "--most-cpu",
        type=_per_cent,
        default=default.most_cpu,
        metavar="PERCENT",
        help="CPU time limit for the BPF programs, of all cores: above it they leave out system calls, then everything for a minute "
        "(default %(default)s, 0 no limit)",
    )
    g.add_argument(
        "--write-window", action="store_true", help="make every running flight recorder write a window now"
    )
