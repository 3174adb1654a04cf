# SPDX-License-Identifier: GPL-2.0-only
"""Classes of points, and rules that choose for each packet the classes that stamp it (its annotation)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsight_record.errors import Usage

from . import settings

#: Kinds of devices in the order of their numbers, which capsules take from one kernel to the next: append only. Each
#: has two classes, in and out (NSC_KINDS in tools/bpf/capsule.h).
KINDS = ("nic", "veth", "bridge", "vlan", "bond", "macvlan", "tunnel", "tap", "other")
DIRECTIONS = ("in", "out")
EVERYWHERE = (1 << 32) - 1
MOST_RULES = 8
#: Kind of rtnl kinds that have another name; "" is a NIC.
_OF = {
    "": "nic", "netkit": "veth", "openvswitch": "bridge", "team": "bond", "ipvlan": "macvlan", "macvtap": "macvlan", "ipvtap": "macvlan",
    "tun": "tap", **dict.fromkeys(("vxlan", "geneve", "gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ipip", "ip6tnl", "sit", "vti", "vti6", "xfrm", "wireguard", "macsec", "bareudp", "gtp"), "tunnel"),
}  # fmt: skip


def kind(rtnl: str) -> int:
    """Number of a device's kind.

    >>> KINDS[kind("vxlan")], KINDS[kind("")], KINDS[kind("lo")]
    ('tunnel', 'nic', 'other')
    """
    name = _OF.get(rtnl, rtnl)
    return KINDS.index(name if name in KINDS else "other")


def _mask(word: str) -> int:
    """The classes of ``all``, ``none``, ``in``, ``veth`` or ``veth:out``. Raises ValueError."""
    if word in ("all", "none"):
        return EVERYWHERE * (word == "all")
    name, _, direction = word.partition(":")
    if name in DIRECTIONS and not direction:
        name, direction = "", name
    if (
        not word
        or (name and name not in KINDS)
        or (direction and direction not in DIRECTIONS)
        or word.endswith(":")
    ):
        raise ValueError(word)
    kinds = [KINDS.index(name)] if name else range(len(KINDS))
    ways = [DIRECTIONS.index(direction)] if direction else (0, 1)
    return sum(1 << 2 * k + way for k in kinds for way in ways)


@dataclass(frozen=True)
class Rule:
    """The classes of points that stamp packets with this port, address and protocol. ``text``: as the user gave it."""

    text: str
    at: int
    port: int = 0
    protocols: int = 3
    address: tuple[str, str] = ("0" * 32, "0" * 32)

    def word(self) -> str:
        """The value for nsight-stamp."""
        return ":".join((str(self.at), str(self.port), str(self.protocols), *self.address))


def rule(text: str) -> Rule:
    """``CLASS[,CLASS...][@FILTER]``; a FILTER is ``port=N``, ``address=PREFIX`` and ``protocol=NAME``, separated by commas.
    Raises ValueError.

    >>> rule("nic,veth:out@port=443,protocol=tcp").at, rule("none").at
    (11, 0)
    """
    names, at, filters = text.partition("@")
    mask = 0
    for word in names.split(","):
        mask |= _mask(word)
    found = dict(part.split("=", 1) for part in filters.split(",")) if at else {}
    if len(found) != (filters.count(",") + 1 if at else 0) or set(found) - {"port", "address", "protocol"}:
        raise ValueError(text)
    port = int(found.get("port", "0"))
    if not 0 <= port < 65536 or ("port" in found and not port):
        raise ValueError(text)
    protocol = found.get("protocol", "both")
    if protocol not in settings.PROTOCOLS:
        raise ValueError(text)
    address = settings.prefix(found["address"]) if "address" in found else Rule.address
    return Rule(text, mask, port, settings.PROTOCOLS[protocol], address)


rule.__name__ = "rule, such as nic,tunnel:out@port=443,protocol=tcp"


def words(rules: Sequence[Rule]) -> dict[str, str]:
    """Settings of nsight-stamp: these rules and no others. Raises Usage."""
    if len(rules) > MOST_RULES:
        raise Usage(f"--at: {len(rules)} rules, at most {MOST_RULES}", "leave some out")
    return {f"rule{i}": rules[i].word() if i < len(rules) else "0" for i in range(MOST_RULES)}
