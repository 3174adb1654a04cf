# SPDX-License-Identifier: GPL-2.0-only
"""Devices that come while nsight-capsule runs.

nsight-stamp learns of each one from the kernel and guards it at once. This module finds out what it is: a point, a
device that leads out, whose guard stays, or neither.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsight_record import netns
from nsight_record.capture import Capture
from nsight_record.errors import RecordError
from nsight_record.progress import Progress

from . import mtu, points, settings
from .points import Device
from .stamp import Stamp


class Late:
    """``devices``: the points; ``guards``: devices that lead out and are no points. Both grow, and ``save`` writes
    them into the manifest."""

    def __init__(
        self,
        args: argparse.Namespace,
        devices: Iterable[Device],
        guards: Iterable[Device],
        progress: Progress,
        run: Stamp,
        most_bytes: int,
    ) -> None:
        self.devices, self.guards = list(devices), list(guards)
        #: ``NETNS:DEV``: devices that may have sent packets before they had a guard; devices that were chosen when all
        #: numbers of points were in use.
        self.unguarded: list[str] = []
        self.no_points: list[str] = []
        self._args, self._progress, self._run = args, progress, run
        self._guarding = not (args.match or args.leave)
        self._port = points.vxlan_port(self.devices)
        self._missed = 0
        self._most_bytes = most_bytes
        self._spaces = {(d.netns.inum, d.cookie): d.netns for d in (*self.guards, *self.devices)}

    def look_at_all(self) -> None:
        """Find devices that came before nsight-stamp watched, or while there were too many changes at once."""
        if not self._guarding:
            return
        for device in points.guards([*self.devices, *self.guards], self._port, points.survey()[0]):
            with suppress(RecordError):  # it is gone
                self._guard(device)

    def look(self) -> bool:
        """Look at the devices that came since the last call; whether there was any. Raises RecordError."""
        answer = self._run.ask("late")
        if answer["missed"] != self._missed:
            self._missed = answer["missed"]
            self.look_at_all()
        there: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
        for row in answer["devices"]:
            path = bytes.fromhex(row["netns"]).decode(errors="surrogateescape")
            if row["gone"]:
                self._gone(path, row)
            else:
                there.setdefault((path, row["inode"], row["cookie"]), []).append(row)
        for (path, inode, cookie), rows in there.items():
            self._look_in(self._space(path, inode, cookie), cookie, {row["ifindex"] for row in rows})
        return bool(answer["devices"])

    def save(self, capture: Capture) -> None:
        """Update the manifest."""
        capture.manifest.update(
            points=points.manifest(self.devices), guards=[d.label() for d in self.guards],
            unguarded=self.unguarded, no_points=self.no_points,
        )  # fmt: skip
        capture.manifest["settings"]["most_bytes"] = self._most_bytes
        capture.save()

    def warn(self) -> None:
        """Say what is incomplete."""
        if self.unguarded:
            self._progress.warn(
                f"devices that lead out came up after the start: {', '.join(self.unguarded)}; capsules of packets that left before a guard was there stayed in them"
            )
        if self.no_points:
            self._progress.warn(
                f"devices that came when all {points.MOST_DEVICES} were in use: {', '.join(self.no_points)}; they took no times"
            )

    def _space(self, path: str, inode: int, cookie: int) -> netns.Netns:
        if known := self._spaces.get((inode, cookie)):
            return known
        if inode == netns.current().inum:
            return netns.current()
        found = Path(path)
        label = found.parts[2] if path.startswith("/proc/") else found.name
        return netns.Netns(label, inode, found)

    def _look_in(self, ns: netns.Netns, cookie: int, wanted: set[int]) -> None:
        try:
            links = netns.call_in(ns, points.links)
        except (RecordError, OSError):
            return  # the namespace is gone, or looked at again the next time
        for link in links:
            if link["ifindex"] in wanted and tuple(link["netns"]) == (ns.inum, cookie):
                with suppress(RecordError):  # it is gone: nsight-stamp knows that as well
                    self._place(link, ns)
                if link["mtu"] < self._most_bytes or mtu.is_vxlan(link):
                    self._fit()

    def _place(self, link: dict[str, Any], ns: netns.Netns) -> None:
        numbers = {d.netns.inum: d.space for d in self.devices}
        space = numbers.get(ns.inum, max(d.space for d in self.devices) + 1)
        device = points.device(link, ns, space)
        known = [d.label() for d in self.devices]
        if self._chosen(device, link):
            boundary = device.boundary or device.label() in self._args.boundary
            device = replace(device, boundary=boundary, wraps=device.wraps and self._guarding)
            at = known.index(device.label()) if device.label() in known else len(known)
            if at < points.MOST_DEVICES:
                self._point(device, at)
                return
            self.no_points.append(device.label())
        guard = points.guard(device, self._port)
        if self._guarding and guard:
            self._guard(guard)
        else:
            self._run.ask(f"pass {device.option()}")

    def _chosen(self, device: Device, link: dict[str, Any]) -> bool:
        """Whether the options that chose the points choose this device. VXLAN at another port is none: no point could
        parse its packets."""
        if device.vxlan_port not in (None, self._port):
            return False
        named = {device.label(), f"{device.netns.label}:{device.name}"} & set(self._args.point)
        return bool(named) or (points.by_itself(link) and device.netns.inum in self._inums())

    def _inums(self) -> Iterator[int]:
        """Inode numbers of the namespaces that --netns names now: one may be another than at the start."""
        for name in self._args.netns:
            with suppress(RecordError):
                yield netns.find(name).inum

    def _point(self, device: Device, at: int) -> None:
        self._run.ask(f"point {at} {device.option()}")
        self.devices[at : at + 1] = [device]
        self._progress.say(f"stamping at {device.label()} too")

    def _fit(self) -> None:
        """Packets must fit a device that came and is narrower."""
        self._most_bytes = mtu.most_bytes(self.devices, points.survey()[0])
        self._run.ask(settings.words(most_bytes=self._most_bytes))

    def _guard(self, device: Device) -> None:
        answer = self._run.ask(f"guard {device.option()}")
        self.guards.append(device)
        if answer["exposed"]:
            self.unguarded.append(device.label())

    def _gone(self, path: str, row: dict[str, Any]) -> None:
        name = bytes.fromhex(row["name"]).decode(errors="replace")
        label = self._space(path, row["inode"], row["cookie"]).label
        if points.kind_leads_out(row["kind"]):
            self.unguarded.append(f"{label}:{name}" if label else name)
