# SPDX-License-Identifier: GPL-2.0-only
"""Translates a user's settings into the words that nsight-stamp accepts, at its start and while it runs."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from nsight_record import cgroups
from nsight_record.errors import Usage

_ALL = 1 << 32
_HOUR_NS = 3600 * 10**9
PROTOCOLS = {"tcp": 1, "udp": 2, "both": 3}


def rate(text: str) -> Fraction:
    """``1/16``, ``1``, ``0`` or ``0.01``: the share of packets. Raises ValueError.

    >>> rate("1/16")
    Fraction(1, 16)
    """
    if not re.fullmatch(r"\d{1,9}(/[1-9]\d{0,8})?|0?\.\d{1,9}", text):
        raise ValueError(text)
    value = Fraction(text)
    if value > 1:
        raise ValueError(text)
    return value


rate.__name__ = "rate, such as 1/16"


def threshold(share: Fraction) -> int:
    """Of 2^32: a packet is chosen if a 32-bit number, random or (``--match``) a hash of its fields, is below it.

    >>> threshold(Fraction(1, 16))
    268435456
    """
    return int(share * _ALL)


def period(text: str) -> int:
    """``100us``, ``10ms``, ``1s``, or ``0``: ns. Raises ValueError.

    >>> period("10ms")
    10000000
    """
    if text == "0":
        return 0
    match = re.fullmatch(r"(\d{1,9})(us|ms|s)", text)
    ns = int(match[1]) * {"us": 10**3, "ms": 10**6, "s": 10**9}[match[2]] if match else 0
    if not 0 < ns <= _HOUR_NS:
        raise ValueError(text)
    return ns


period.__name__ = "time, such as 10ms"


def prefix(text: str) -> tuple[str, str]:
    """An address or prefix as (address, mask), 32 hexadecimal digits each; IPv4 as ::ffff:a.b.c.d. Raises ValueError.

    >>> prefix("10.1.0.0/16")
    ('00000000000000000000ffff0a010000', 'ffffffffffffffffffffffffffff0000')
    """
    network = ipaddress.ip_network(text, strict=False)
    bits = network.prefixlen
    value = int(network.network_address)
    if network.version == 4:
        bits += 96
        value |= 0xFFFF << 32
    mask = ((1 << bits) - 1) << (128 - bits)
    return f"{value & mask:032x}", f"{mask:032x}"


prefix.__name__ = "address or prefix, such as 10.1.0.0/16"


@dataclass(frozen=True)
class Cgroup:
    """A cgroup of version 2: its directory, its id and its depth below the root."""

    path: Path
    id: int
    level: int


def cgroup_root() -> Path:
    """Where cgroup version 2 is mounted. Raises Usage."""
    if found := cgroups.root():
        return found
    raise Usage("cgroup version 2 is not mounted", "mount -t cgroup2 none DIR, or --protocol udp")


def cgroup(text: str, root: Path | None = None) -> Cgroup:
    """The cgroup of a path, absolute or below the root. Raises Usage."""
    root = root or cgroup_root()
    path = Path(text) if Path(text).is_relative_to(root) else root / text.lstrip("/")
    if not (path / "cgroup.controllers").exists():
        raise Usage(f"--cgroup {text}: no such cgroup of version 2", f"give a directory of {root}")
    return Cgroup(path, path.stat().st_ino, len(path.relative_to(root).parts))


def words(**chosen: int | str | None) -> str:
    """``KEY=VALUE KEY=VALUE`` for the settings that are given.

    >>> words(port=80, threshold=None)
    'port=80'
    """
    return " ".join(f"{key}={value}" for key, value in chosen.items() if value is not None)
