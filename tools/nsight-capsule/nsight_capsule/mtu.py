# SPDX-License-Identifier: GPL-2.0-only
"""How long a packet may be that fits every device to which packets of the points can go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .points import Device, Space

#: Bytes that VXLAN puts around a packet: IPv6, UDP, VXLAN and Ethernet.
_AROUND = 70
#: Each device of a pair names the other one; others (macvlan, ipvlan, VLAN) name the device below them.
_PAIRS = ("veth", "netkit")


def _kind(link: dict[str, Any]) -> str:
    return str((link.get("linkinfo") or {}).get("info_kind", ""))


def is_vxlan(link: dict[str, Any]) -> bool:
    """Whether packets get longer behind it."""
    return _kind(link) == "vxlan"


def _neighbours(spaces: Sequence[Space]) -> dict[int, set[int]]:
    """By position in ``spaces``: the namespaces that a device connects with it.

    A device tells the index of its other end, but not in which namespace that is. So a macvlan may be connected with
    more namespaces than its own, never with fewer.
    """
    devices: dict[int, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for i, space in enumerate(spaces):
        for link in space.links:
            devices[link["ifindex"]].append((i, link))
    found: dict[int, set[int]] = defaultdict(set)
    for i, space in enumerate(spaces):
        for link in space.links:
            if "link_netnsid" not in link:
                continue
            for j, end in devices[link.get("link_index", 0)]:
                if j != i and (_kind(link) not in _PAIRS or end.get("link_index") == link["ifindex"]):
                    found[i].add(j)
                    found[j].add(i)
    return found


def reached(devices: Iterable[Device], spaces: Sequence[Space]) -> Iterator[Space]:
    """The namespaces of the devices, and all that their packets can reach."""
    inums, neighbours = {d.netns.inum for d in devices}, _neighbours(spaces)
    todo = [i for i, space in enumerate(spaces) if space.netns.inum in inums]
    seen = set(todo)
    while todo:
        i = todo.pop()
        yield spaces[i]
        new = neighbours[i] - seen
        seen |= new
        todo += new


def _narrowest(space: Space) -> int | None:
    """The smallest MTU among its devices, if it forwards packets."""
    rows = [r for r in space.links if "UP" in r.get("flags", ()) and r.get("link_type") != "loopback"]
    forwards = any(r.get("routes") or _kind(r) == "bridge" for r in rows)
    return min((r["mtu"] for r in rows), default=None) if forwards else None


def most_bytes(devices: Iterable[Device], spaces: Sequence[Space]) -> int:
    """Length of the longest packet that all devices take, and all others to which it may be forwarded on its way: there
    it would be dropped. NICs may carry it in VXLAN, where a longer packet is fragmented, and no boundary finds a capsule
    in fragments. ``spaces``: all namespaces.
    """
    devices = list(devices)
    around = _AROUND if any(d.vxlan_port for d in devices) else 0
    others = [_narrowest(space) for space in reached(devices, spaces)]
    return min([65535, *(d.mtu - (around if d.boundary else 0) for d in devices), *(n for n in others if n)])
