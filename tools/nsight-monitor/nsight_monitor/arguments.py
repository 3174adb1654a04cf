# SPDX-License-Identifier: GPL-2.0-only
"""Options of nsight-monitor."""

from __future__ import annotations

import argparse
import ipaddress

from . import __version__
from .flight import DEFAULT_TRIGGERS

#: The port for Prometheus.
DEFAULT_PORT = 9435

_EPILOG = """\
exit codes:
  0    done
  2    wrong usage
  4    something this machine lacks
  5    the programs in the kernel, or the input, ended too early
  130  stopped by Ctrl-C or SIGTERM

examples:
  nsight-monitor --port 11211
  nsight-monitor --once --interval 5 --group-by comm
  nsight-monitor --top --interval 1
  nsight-monitor --prometheus --group-by port
  nsight-monitor --list-stages
"""


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.01 <= value <= 86400:
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


def _peer(text: str) -> str:
    network = ipaddress.ip_network(text, strict=False)
    if not network.prefixlen:
        raise ValueError  # all of them
    return str(network)


_seconds.__name__, _port.__name__, _positive.__name__ = "number of seconds", "port", "number"
_peer.__name__ = "address"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="nsight-monitor",
        description="Show continuously how long network messages take from stage to stage of this host, from histograms in the "
        "kernel that are read every interval. Needs root.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "-i",
        "--interval",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="time between two outputs (default: 10)",
    )
    p.add_argument("-d", "--duration", type=_seconds, metavar="SECONDS", help="stop after this time")
    p.add_argument("--once", action="store_true", help="stop after one interval")
    p.add_argument(
        "--total", action="store_true", help="everything since the start, not only the last interval"
    )
    p.add_argument(
        "--list-stages", action="store_true", help="list the stages that this kernel has, and exit"
    )
    p.add_argument(
        "--stages", metavar="NAME,...", help="measure only these stages (default: all that this kernel has)"
    )
    filters = p.add_argument_group("filters")
    filters.add_argument("--port", type=_port, metavar="N", help="only this TCP or UDP port, on either side")
    filters.add_argument(
        "--peer",
        type=_peer,
        metavar="ADDRESS",
        help="only connections with this address, or with addresses in ADDRESS/BITS",
    )
    filters.add_argument("--pid", type=_positive, metavar="PID", help="only messages that this process reads")
    filters.add_argument("--comm", metavar="NAME", help="only messages that threads with this name read")
    filters.add_argument("--cgroup", metavar="PATH", help="only sockets of this cgroup (version 2)")
    filters.add_argument("--iface", metavar="NAME", help="only packets of this interface")
    filters.add_argument(
        "--netns", metavar="NS", help="only this network namespace: name, process in it, or inode number"
    )
    filters.add_argument(
        "--min-queue",
        type=_positive,
        metavar="PACKETS",
        help="only messages of sockets in which at least this many packets wait: at a hand-off including its own, after a read the remaining ones",
    )
    filters.add_argument(
        "--nonempty-queue", action="store_const", const=1, dest="min_queue", help="the same as --min-queue 1"
    )
    groups = p.add_argument_group("groups")
    groups.add_argument(
        "--group-by",
        choices=("port", "comm", "cgroup", "netns", "iface"),
        help="histograms for each port (the lower one of a connection), name of the first reader of a socket, ...",
    )
    groups.add_argument(
        "--groups",
        type=_positive,
        default=64,
        metavar="N",
        help="maximum number of groups; the rest is counted together (default: 64)",
    )
    groups.add_argument(
        "--group-idle",
        type=_positive,
        default=600,
        metavar="SECONDS",
        help="when three quarters of the groups are taken, groups without new latencies for this time end (default: 600)",
    )
    out = p.add_argument_group("output")
    out.add_argument("--top", action="store_true", help="redraw the table in place, slowest stage first")
    out.add_argument(
        "--json", action="store_true", help="print the lines of nsight-histograms: sums since the start"
    )
    out.add_argument(
        "--prometheus",
        nargs="?",
        const=str(DEFAULT_PORT),
        metavar="HOST:PORT",
        help=f"serve the histograms to Prometheus, as user nobody (default: 127.0.0.1:{DEFAULT_PORT})",
    )
    out.add_argument(
        "--input",
        metavar="FILE",
        help="show the output of --json; -: standard input. Needs no root, allows no filters",
    )
    out.add_argument(
        "--native-histograms",
        action="store_true",
        help="with --prometheus: also native histograms, for clients that request protobuf",
    )
    out.add_argument(
        "--web-config",
        metavar="FILE",
        help="with --prometheus: TLS and passwords, from a file in the format of Prometheus's exporters",
    )
    out.add_argument(
        "--listen",
        metavar="PATH",
        help="serve the lines of --json at a socket of this host, for --input PATH",
    )
    flight = p.add_argument_group("flight recorder")
    flight.add_argument(
        "--flight",
        metavar="DIR",
        help="make the flight recorder that writes to DIR write a window when a latency reaches its trigger",
    )
    flight.add_argument(
        "--trigger",
        action="append",
        metavar="STAGE=LATENCY",
        help="such as handoff-to-read=10ms; can be repeated (default: the limits of the alerts, "
        + ", ".join(DEFAULT_TRIGGERS)
        + ")",
    )
    flight.add_argument(
        "--windows-per-hour",
        type=_positive,
        default=20,
        metavar="N",
        help="maximum number of windows, evenly spread: one every 3600/N seconds (default: 20)",
    )
    p.add_argument(
        "--receive-stamps",
        choices=("auto", "on", "off"),
        default="auto",
        help="let the kernel timestamp every received packet (default: auto, if there is a NIC)",
    )
    p.add_argument(
        "--cost",
        action="store_true",
        help="with --json: print the cost of the BPF programs; this makes them slower",
    )
    p.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return p
