# SPDX-License-Identifier: GPL-2.0-only
"""Which devices of which namespaces become points, and what nsight-stamp must know about each."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nsight_record import netns
from nsight_record.errors import Missing, RecordError, Usage
from nsight_record.netns import Netns

from . import classes

#: Points have 5-bit numbers, two for each device; 0 is the sender's socket.
MOST_DEVICES = 15
VXLAN_PORT = 4789
#: Devices whose packets next pass other devices of this kernel, as they are or in VXLAN. All others lead to
#: another kernel (NICs, taps of guests), or make packets that no point can parse (tunnels, encryption).
_WITHIN = ("veth", "netkit", "bridge", "vlan", "bond", "team", "macvlan", "ipvlan", "vrf", "dummy", "ifb", "vxlan", "openvswitch")  # fmt: skip
#: Devices that hand packets to a guest at their ingress; at their egress, the guest's packets come.
_INWARD = ("macvtap", "ipvtap")
_SWITCHES = tuple(Path("/proc/sys/net") / name for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"))
_NETLINK_XFRM, _XFRM_MSG_GETSPDINFO = 6, 0x25
DIRECTIONS = classes.DIRECTIONS
ALL_POINTS = (1 << 32) - 1


@dataclass(frozen=True)
class Device:
    """``kind`` is rtnl's (veth, bridge, vxlan, ...), "" for a physical device. ``boundary``: packets that
    leave there are not seen again.

    ``inward``: they leave at its ingress. ``wraps``: its namespace forwards packets, and has IPsec policies that
    may encrypt them, before a device sees them.

    ``qdisc``: its current queueing discipline. ``cookie``: of the namespace, which tells it from a later one
    with the same name and inode number.
    """

    netns: Netns
    space: int
    name: str
    ifindex: int
    kind: str
    mtu: int
    ethernet: bool
    bridged: bool
    boundary: bool
    vxlan_port: int | None
    qdisc: str = ""
    cookie: int = 0
    inward: bool = False
    wraps: bool = False

    def option(self) -> str:
        """The value of nsight-stamp's --point."""
        flags = (
            "e" * self.ethernet
            + "b" * self.boundary
            + "i" * self.inward
            + "s" * self.bridged
            + "w" * self.wraps
            + chr(ord("A") + classes.kind(self.kind))
        )
        return f"{self.netns.path},{self.ifindex},{self.space},{flags},{self.netns.inum},{self.cookie}"

    def label(self) -> str:
        """``NETNS:DEV``."""
        return f"{self.netns.label}:{self.name}" if self.netns.label else self.name


def links() -> list[dict[str, Any]]:
    """The ``ip`` command's description of the devices of this namespace; ``netns``: which one that was, its
    inode number and cookie, as the path that led here may lead to another one later; ``routes``: whether it
    forwards IP packets; ``ipsec``: whether it encrypts some of them."""
    done = subprocess.run(["ip", "-j", "-d", "addr", "show"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip() or "ip failed")
    links: list[dict[str, Any]] = json.loads(
        done.stdout, strict=False
    )  # ip writes control characters of names as they are
    here = (Path("/proc/thread-self/ns/net").stat().st_ino, netns.cookie())
    routes = any(path.read_text().strip() != "0" for path in _SWITCHES if path.exists())
    more = {"netns": here, "routes": routes, "ipsec": routes and _has_policies()}
    return [link | more for link in links if link.get("ifname")]


def _has_policies() -> bool:
    """Whether this namespace has IPsec policies for packets that leave it."""
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_XFRM) as s:
        s.settimeout(1)
        s.send(struct.pack("=IHHIII", 20, _XFRM_MSG_GETSPDINFO, 1, 1, 0, 0))
        answer = s.recv(4096)
        # Header, flags, header of the attribute; number of policies for input, output, forwarding.
        if len(answer) >= 36 and struct.unpack_from("=H", answer, 4)[0] == _XFRM_MSG_GETSPDINFO - 1:
            return bool(struct.unpack_from("=I", answer, 16 + 4 + 4 + 4)[0])
    return False


def kind_leads_out(kind: str) -> bool:
    """Whether packets that leave by such a device are not seen again."""
    return kind not in _WITHIN


def leads_out(device: Device, port: int) -> bool:
    """Whether capsules must be taken off at the device. ``port``: UDP port of the VXLAN that points parse."""
    return device.boundary or device.vxlan_port not in (None, port)


def device(link: dict[str, Any], ns: Netns, space: int) -> Device:
    """What a description of ``links`` says. ``space``: number of the namespace."""
    info = link.get("linkinfo") or {}
    kind, data = info.get("info_kind", ""), info.get("info_data") or {}
    loopback = link.get("link_type") == "loopback"
    inode, cookie = link.get("netns", (ns.inum, 0))
    return Device(
        replace(ns, inum=inode), space, link["ifname"], link["ifindex"], kind or ("lo" if loopback else ""), link.get("mtu", 1500),
        ethernet=link.get("link_type") in ("ether", "loopback"), bridged=info.get("info_slave_kind") == "bridge",
        boundary=not loopback and (kind_leads_out(kind) or bool(data.get("gpe"))),
        vxlan_port=data.get("port", VXLAN_PORT) if kind == "vxlan" else None,
        qdisc=link.get("qdisc", ""), cookie=cookie, inward=kind in _INWARD,
        wraps=bool(link.get("ipsec")) and not loopback and info.get("info_slave_kind") != "bridge",
    )  # fmt: skip


def by_itself(link: dict[str, Any]) -> bool:
    """Whether a device becomes a point without being named: it is up, not loopback, and not a bridge that
    only forwards."""
    if "UP" not in link.get("flags", ()) or link.get("link_type") == "loopback":
        return False
    kind = (link.get("linkinfo") or {}).get("info_kind")
    addresses = [a for a in link.get("addr_info", ()) if a.get("scope") != "link"]
    return kind != "bridge" or bool(addresses)


def split(text: str) -> tuple[str, str]:
    """NETNS and DEV of ``NETNS:DEV``; NETNS is "" for this namespace.

    >>> split("web:eth0"), split("eth0.7")
    (('web', 'eth0'), ('', 'eth0.7'))
    """
    space, _, device = text.rpartition(":")
    return space, device


class Spaces:
    """The namespaces in use, each looked up once."""

    def __init__(self) -> None:
        if not shutil.which("ip"):
            raise Missing("ip is not installed", "apt install iproute2")
        self._seen: dict[int, tuple[Netns, int, list[dict[str, Any]]]] = {}

    def of(self, name: str) -> tuple[Netns, int, list[dict[str, Any]]]:
        """The namespace of this name, its number, and its devices. Raises RecordError."""
        ns = netns.find(name) if name else netns.current()
        if ns.inum not in self._seen:
            self._seen[ns.inum] = (ns, len(self._seen), netns.call_in(ns, links))
        return self._seen[ns.inum]

    def named(self, text: str) -> Device:
        """The device of ``NETNS:DEV``. Raises Usage."""
        space, name = split(text)
        ns, number, links = self.of(space)
        for link in links:
            if link["ifname"] == name:
                return device(link, ns, number)
        names = ", ".join(link["ifname"] for link in links)
        raise Usage(f"--point {text}: no such device", f"{space or 'this namespace'} has {names}")

    def all(self, name: str) -> list[Device]:
        """The devices of a namespace that become points without being named."""
        ns, number, links = self.of(name)
        return [device(link, ns, number) for link in links if by_itself(link)]


@dataclass(frozen=True)
class Space:
    """A namespace and the description of its devices (``links``)."""

    netns: Netns
    links: list[dict[str, Any]]


def survey() -> tuple[list[Space], list[str]]:
    """All namespaces, each once, and the names of existing ones that could not be examined."""
    found: dict[tuple[int, int], Space] = {}
    unseen = []
    for ns in netns.everywhere():
        try:
            rows = netns.call_in(ns, links)
        except (RecordError, OSError):
            if ns.path and ns.path.exists():
                unseen.append(ns.label or str(ns.inum))
            continue
        # A process may have moved from one that is gone now into another that is also in the list.
        inode, cookie = rows[0].get("netns", (ns.inum, 0)) if rows else (ns.inum, 0)
        found.setdefault((inode, cookie), Space(replace(ns, inum=inode), rows))
    return list(found.values()), unseen


def guard(device: Device, port: int) -> Device | None:
    """The device as a guard, where capsules are taken off; None if packets stay in this kernel. ``port``: UDP port of the
    VXLAN that points parse."""
    if leads_out(device, port):
        return replace(device, boundary=True, wraps=False)
    return replace(device, boundary=True, inward=True, wraps=False) if device.wraps else None


def guards(points: Sequence[Device], port: int, spaces: Sequence[Space]) -> list[Device]:
    """Guards at the devices of these namespaces that are no points."""
    known = {(d.netns.inum, d.cookie, d.ifindex) for d in points}
    devices = [device(row, s.netns, 0) for s in spaces for row in s.links if "UP" in row.get("flags", ())]
    found = [guard(d, port) for d in devices if (d.netns.inum, d.cookie, d.ifindex) not in known]
    return [d for d in found if d]


def choose(points: Sequence[str], spaces: Sequence[str]) -> list[Device]:
    """The devices of ``--point`` and those of every ``--netns``, each once. Raises Usage."""
    known = Spaces()
    found = [known.named(text) for text in points]
    for name in spaces:
        found += known.all(name)
    devices = list({(d.netns.inum, d.ifindex): d for d in found}.values())
    if not devices:
        raise Usage("no device to put points on", "give --netns NAME, or --point NETNS:DEV")
    if len(devices) > MOST_DEVICES:
        names = ", ".join(d.label() for d in devices)
        raise Usage(
            f"{len(devices)} devices, at most {MOST_DEVICES} can be points: {names}", "choose with --point"
        )
    return devices


def with_boundary(devices: Iterable[Device], boundary: Sequence[str]) -> list[Device]:
    """The same devices; those of ``--boundary`` are marked as leading out of the host. Raises Usage."""
    wanted, made = set(boundary), []
    for device in devices:
        marked = {device.label(), f":{device.name}"} & wanted
        wanted -= marked
        made.append(Device(**{**device.__dict__, "boundary": device.boundary or bool(marked)}))
    if wanted:
        raise Usage(f"--boundary {min(wanted)}: not among the points", "give it as --point as well")
    return made


def mask(labels: Sequence[str], only: Sequence[str]) -> int:
    """The points of some devices, one bit each; ``labels``: of all devices, in order. ``all`` means every
    device. Raises Usage.

    >>> bin(mask(["web:eth0", "web:eth1"], ["web:eth1"]))
    '0b11000'
    """
    if "all" in only:
        return ALL_POINTS
    places = {label: i for i, label in enumerate(labels)}
    if unknown := [name for name in only if name not in places]:
        raise Usage(f"--only {unknown[0]}: not among the points", f"one of {', '.join(labels)}, or all")
    return sum(3 << (1 + 2 * places[name]) for name in set(only))


def labels(manifest_points: object) -> list[str]:
    """``NETNS:DEV`` of each device in ``manifest.points``. Raises Usage."""
    rows = manifest_points if isinstance(manifest_points, list) else []
    found = [row for row in rows if isinstance(row, dict) and row.get("direction") == DIRECTIONS[0]]
    if not found:
        raise Usage("its manifest.json has no points", "give the directory of an nsight-capsule that runs")
    return [
        f"{row.get('netns')}:{row.get('device')}" if row.get("netns") else str(row.get("device"))
        for row in found
    ]


def vxlan_port(devices: Iterable[Device]) -> int:
    """The UDP port of the tunnels among the points. Raises Usage if they differ."""
    ports = {d.vxlan_port for d in devices if d.vxlan_port}
    if len(ports) > 1:
        raise Usage(
            f"VXLAN at several ports: {', '.join(map(str, sorted(ports)))}", "leave out some with --point"
        )
    return ports.pop() if ports else VXLAN_PORT


def manifest(devices: Sequence[Device]) -> list[dict[str, Any]]:
    """``manifest.points``: the sender's socket, and two points for each device."""
    rows: list[dict[str, Any]] = [
        {"number": 0, "netns": None, "device": None, "direction": "socket", "kind": "socket"}
    ]
    for i, d in enumerate(devices):
        rows += (
            {"number": 1 + 2 * i + way, "netns": d.netns.label, "netns_inum": d.netns.inum, "device": d.name, "direction": direction,
             "kind": d.kind or "physical", "mtu": d.mtu, "boundary": d.boundary, "qdisc": d.qdisc}
            for way, direction in enumerate(DIRECTIONS)
        )  # fmt: skip
    return rows
