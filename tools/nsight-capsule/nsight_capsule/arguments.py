# SPDX-License-Identifier: GPL-2.0-only
"""Options of nsight-capsule."""

from __future__ import annotations

import argparse
from fractions import Fraction

from . import __version__, classes, clocks, settings

_EPILOG = """\
exit codes:
  0    stamped; with --change, --restore: done
  2    wrong usage
  4    something this machine lacks
  5    the directory could not be written, or nsight-stamp died; what was
       collected is kept
  130  stopped by Ctrl-C or SIGTERM; what was collected is kept

examples:
  nsight-capsule --netns web --netns router --port 80 --rate 1/16 -d 5 -o slow.capsules
  nsight-capsule --point web:eth0 --point router:veth1 --address 10.1.0.0/16 -d 5
  nsight-capsule --match --netns web --port 53 -d 5
  nsight-capsule --change slow.capsules --rate 1/4 --at nic,tunnel@port=443 --at none
"""


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86400 * 7:
        raise ValueError
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65536:
        raise ValueError
    return value


def _power(text: str) -> int:
    value = int(text)
    if value < 64 or value > 1 << 20 or value & (value - 1):
        raise ValueError
    return value


def _session(text: str) -> int:
    value = int(text)
    if not 0 < value < 65536:
        raise ValueError
    return value


_session.__name__ = "number from 1 to 65535"
_seconds.__name__, _port.__name__, _power.__name__ = "number of seconds", "port", "power of two from 64"

DEFAULT_RATE = Fraction(1, 100)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="nsight-capsule",
        usage="nsight-capsule (--netns NS | --point NETNS:DEV)... [OPTIONS]",
        description="Write into chosen packets when they pass each virtual device, and collect these times where the packets arrive. They "
        "show which layer delayed which packet. Needs root and Linux 6.6.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_places(p)
    _add_filter(p)
    p.add_argument(
        "--match",
        action="store_true",
        help="change no packet: record packets at each point, and identify the same packet by its fields",
    )
    p.add_argument(
        "--keep",
        action="store_true",
        help="leave capsules behind datagrams for the receiver's kernel to cut off",
    )
    p.add_argument(
        "--leave",
        action="store_true",
        help="let capsules leave this kernel (default: they are taken off where packets leave)",
    )
    p.add_argument(
        "--session",
        type=_session,
        metavar="N",
        help="the number that marks capsules as ours, the same in each kernel on their way (default: random)",
    )
    p.add_argument(
        "--clock",
        type=clocks.common,
        metavar="CLOCK,BOUND",
        help="a clock that the other kernels have, too: realtime, tai or a PTP clock (/dev/ptp0), and how far it can be off here, such as 1us",
    )
    p.add_argument(
        "--guest",
        action="append",
        type=clocks.guest,
        default=[],
        metavar="NAME=PID",
        help="process of the KVM guest that writes NAME.capsules: take the difference of its clock from debugfs",
    )
    p.add_argument(
        "-d", "--duration", type=_seconds, metavar="SECONDS", help="stop after SECONDS (default: at Ctrl-C)"
    )
    p.add_argument(
        "-o", "--output", metavar="DIR", help="directory to create (default: nsight-HOST-TIME.capsules)"
    )
    p.add_argument(
        "--ring-kb",
        type=_power,
        default=4096,
        metavar="N",
        help="memory of the ring buffer (default %(default)s)",
    )
    p.add_argument(
        "--change",
        metavar="DIR",
        help="change --rate, --every, --port, --address, --protocol, --only, --at of the nsight-capsule that writes to DIR; other settings stay",
    )
    p.add_argument(
        "--restore",
        action="store_true",
        help="remove the marks that a killed nsight-capsule left on connections of these namespaces, and exit",
    )
    p.add_argument("-q", "--quiet", action="store_true", help="print warnings and errors only")
    p.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return p


def _add_places(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--netns",
        action="append",
        default=[],
        metavar="NS",
        help="points on every device of this network namespace: name, process in it, or inode number",
    )
    p.add_argument(
        "--point",
        action="append",
        default=[],
        metavar="NETNS:DEV",
        help="points on this device, one for each direction; DEV alone is in this namespace",
    )
    p.add_argument(
        "--boundary",
        action="append",
        default=[],
        metavar="NETNS:DEV",
        help="packets that go out here leave this kernel (default: physical devices, taps of guests, tunnels except VXLAN)",
    )


def _add_filter(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--rate",
        type=settings.rate,
        metavar="1/N",
        help="share of the packets (default 1/100; with --every all of them)",
    )
    p.add_argument(
        "--every",
        type=settings.period,
        metavar="TIME",
        help="of these at most one in this time, such as 10ms, however many there are; with --change 0 means all",
    )
    p.add_argument(
        "--port",
        type=_port,
        metavar="N",
        help="only this TCP or UDP port, on either side; with --change 0 means any",
    )
    p.add_argument(
        "--address",
        type=settings.prefix,
        metavar="PREFIX",
        help="only this address or prefix, on either side",
    )
    p.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NETNS:DEV",
        help="take times only at these points, and where packets begin and end; all: at every point (default)",
    )
    p.add_argument(
        "--at",
        action="append",
        type=classes.rule,
        default=[],
        metavar="CLASSES[@FILTER]",
        help="chosen packets that pass FILTER (port=N,address=PREFIX,protocol=NAME) are stamped only at these classes of points, and where "
        "they begin and end: "
        + ", ".join(classes.KINDS)
        + ", each with :in or :out or neither; in, out, all, none. The first rule that fits counts; without one it is all",
    )
    p.add_argument("--cgroup", metavar="PATH", help="only senders of this cgroup (version 2)")
    p.add_argument("--protocol", choices=tuple(settings.PROTOCOLS), help="(default: both)")
