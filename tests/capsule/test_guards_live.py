# SPDX-License-Identifier: GPL-2.0-only
"""Guards: in the namespace that was looked at, whatever its path leads to now; and devices that came after the start."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nsight_capsule import stamp as stamp_program
from nsight_record import netns
from nsight_report import hops

from capsule.bed import Bed, guest_tap, run
from capsule.stamping import HANGS_S, PROGRAM, Stamping, total
from conftest import skip_or_fail

pytestmark = pytest.mark.live

SYS_BPF = {"x86_64": 321, "aarch64": 280}
PROG_QUERY, TCX_INGRESS, TCX_EGRESS = 16, 46, 47
_libc = ctypes.CDLL(None, use_errno=True)


def n_programs(bed: Bed, place: str, device: str, way: int = TCX_EGRESS) -> int:
    """Number of programs at the device's egress or ingress."""

    def asked() -> int:
        query = ctypes.create_string_buffer(struct.pack("=II56x", socket.if_nametoindex(device), way), 64)
        done = _libc.syscall(SYS_BPF[platform.machine()], PROG_QUERY, query, len(query))
        assert done == 0, os.strerror(ctypes.get_errno())
        return int(struct.unpack_from("=I", query, 24)[0])

    return bed.in_place(place, asked)


def identity(bed: Bed, place: str) -> tuple[int, int, int]:
    """Inode number and cookie of the namespace, and the index of d0 there."""
    return bed.in_place(
        place,
        lambda: (
            os.stat("/proc/thread-self/ns/net").st_ino, netns.cookie(), socket.if_nametoindex("d0"),
        ),
    )  # fmt: skip


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANGS_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def make(bed: Bed, place: str) -> None:
    run("ip", "netns", "add", bed.name(place))
    for words in ("link set lo up", "link add d0 type veth peer name d1", "link set d0 up"):
        bed.ip(place, *words.split())


@contextmanager
def replaced(bed: Bed) -> Iterator[tuple[int, int, int]]:
    """Name x leads to a new namespace with the same devices. A process, whose namespace has the name y, is in the one that had
    the name x before; yields the identity of that one."""
    make(bed, "x")
    holder = subprocess.Popen(["ip", "netns", "exec", bed.name("x"), "cat"], stdin=subprocess.PIPE)
    try:
        before = identity(bed, "x")
        while os.stat(f"/proc/{holder.pid}/ns/net").st_ino != before[0]:
            pass
        run("ip", "netns", "attach", bed.name("y"), str(holder.pid))
        run("ip", "netns", "del", bed.name("x"))
        make(bed, "x")
        after = identity(bed, "x")
        assert after[2] == before[2] and after[:2] != before[:2]
        yield before
    finally:
        holder.communicate(timeout=HANGS_S)
        for place in ("x", "y"):
            subprocess.run(["ip", "netns", "del", bed.name(place)], capture_output=True, check=False)


@contextmanager
def stamp(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """nsight-stamp itself, with no capsule at all."""
    if not PROGRAM.exists():
        skip_or_fail("bpf", "nsight-stamp is not built")
    directory.mkdir()
    argv = [str(PROGRAM), *options, "--set", "threshold=0", "--grace-ms", "0", str(directory)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=HANGS_S)


def test_the_guard_is_in_the_namespace_that_was_looked_at(bed: Bed, tmp_path: Path) -> None:
    index = bed.in_place("a", lambda: socket.if_nametoindex("eth0"))
    point = f"/run/netns/{bed.name('a')},{index},0,e"
    with replaced(bed) as (inode, cookie, d0):
        guard = f"/run/netns/{bed.name('x')},{d0},0,eb,{inode},{cookie}"
        with stamp(tmp_path / "out", "--point", point, "--guard", guard) as process:
            assert process.stdout and process.stdout.readline() == "stamping\n"
            assert (n_programs(bed, "y", "d0"), n_programs(bed, "x", "d0")) == (1, 0)


def test_a_point_in_a_namespace_that_is_gone_is_refused(bed: Bed, tmp_path: Path) -> None:
    """Its name leads to another namespace with the same devices."""
    make(bed, "x")
    try:
        inode, cookie, d0 = identity(bed, "x")
        run("ip", "netns", "del", bed.name("x"))
        make(bed, "x")
        point = f"/run/netns/{bed.name('x')},{d0},0,e,{inode},{cookie}"
        with stamp(tmp_path / "out", "--point", point) as process:
            assert process.stdout and process.stderr
            assert process.stdout.readline() == ""
            assert process.wait(HANGS_S) == 1
            said = process.stderr.read()
    finally:
        subprocess.run(["ip", "netns", "del", bed.name("x")], capture_output=True, check=False)
    assert (
        f"error: /run/netns/{bed.name('x')}: it is no longer the namespace that was looked at\nhint: " in said
    )


@pytest.mark.parametrize("options", [(), ("--match",), ("--leave",)], ids=["guarded", "match", "leave"])
def test_devices_that_lead_out_and_came_after_the_start_are_guarded(
    bed: Bed, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """At once, while it is still down: no packet can leave before that."""
    places = ("--netns", bed.name("a"), "--rate", "1", "--port", "7097")
    before, after = (f"{bed.name('h1')}:{name}" for name in ("before", "after"))
    with guest_tap(bed, "h1", "before"), Stamping(tmp_path / "out", *places, *options) as stamping:
        assert n_programs(bed, "h1", "before") == int(not options)
        with guest_tap(bed, "h1", "after", up=False):
            if not options:
                wait_until(lambda: n_programs(bed, "h1", "after") == 1)
            bed.ip("h1", "link", "set", "after", "up")
            if not options:
                wait_until(lambda: after in stamping.manifest()["guards"])
            manifest = stamping.end()
            assert n_programs(bed, "h1", "after") == 0
    assert manifest["guards"] == ([] if options else [*before_the_bed(manifest, bed), before, after])
    assert (manifest["unguarded"], manifest["no_points"]) == ([], [])
    assert not [line for line in stamping.said if "came up after the start" in line]


def before_the_bed(manifest: dict[str, Any], bed: Bed) -> list[str]:
    """Guards at devices of this machine."""
    return [name for name in manifest["guards"] if not name.startswith(bed.prefix)]


def test_a_device_in_a_namespace_that_came_after_the_start_is_guarded(bed: Bed, tmp_path: Path) -> None:
    """A container: its namespace, then a link to it, then a tunnel's device in it."""
    places = ("--netns", bed.name("a"), "--rate", "1", "--port", "7097")
    try:
        with Stamping(tmp_path / "out", *places) as stamping:
            run("ip", "netns", "add", bed.name("c"))
            bed.ip("h1", "link", "add", "vc", "type", "veth", "peer", "name", "eth0", "netns", bed.name("c"))
            with guest_tap(bed, "c", "vpn"):
                wait_until(lambda: f"{bed.name('c')}:vpn" in stamping.manifest()["guards"])
                assert n_programs(bed, "c", "vpn") == 1
                # Packets that pass there pass other devices of this kernel: no guard stays.
                for place, name in (("h1", "vc"), ("c", "eth0")):
                    bed.ip(place, "link", "set", name, "up")
                wait_until(lambda: n_programs(bed, "h1", "vc") == n_programs(bed, "c", "eth0") == 0)
                manifest = stamping.end()
    finally:
        subprocess.run(["ip", "netns", "del", bed.name("c")], capture_output=True, check=False)
    assert not [name for name in manifest["guards"] if name.endswith((":vc", ":eth0"))]


def one_ended(stamping: Stamping, client: socket.socket, server: socket.socket, to: tuple[str, int]) -> bool:
    """Send a datagram; whether its capsule reached its end."""

    def ended() -> int:
        counts = stamp_program.ask(stamping.directory, "counts")
        return sum(point.get("ended", 0) for point in counts.values())

    before = ended()
    client.sendto(b"late", to)
    assert server.recv(99) == b"late"
    return ended() > before


ENDS = [(*end, way) for end in (("h2", "vl"), ("b", "late")) for way in (TCX_INGRESS, TCX_EGRESS)]


def test_a_device_of_a_chosen_namespace_that_came_after_the_start_is_a_point(
    bed: Bed, tmp_path: Path
) -> None:
    """b's packets pass h2:vb from the start; then b gets another link, with another address. That one is deleted and made
    anew with the same index, and keeps its numbers."""
    places = [word for place in ("h2", "b") for word in ("--netns", bed.name(place))]
    try:
        with Stamping(tmp_path / "out", *places, "--rate", "1", "--port", "7098") as stamping:
            for _ in range(2):
                bed.ip(
                    "h2",
                    "link",
                    "add",
                    "vl",
                    "index",
                    "4711",
                    "type",
                    "veth",
                    "peer",
                    "name",
                    "late",
                    "netns",
                    bed.name("b"),
                )
                bed.ip("h2", "addr", "add", "10.95.0.1/24", "dev", "vl")
                bed.ip("h2", "link", "set", "vl", "up")
                bed.ip("b", "link", "set", "late", "up")
                # At first there is only a guard, at the egress; in between, there is one more program.
                wait_until(lambda: [n_programs(bed, *end) for end in ENDS] == [1] * 4)
                bed.ip("b", "addr", "add", "10.95.0.2/24", "dev", "late")
                with (
                    bed.socket("b", socket.AF_INET, socket.SOCK_DGRAM) as server,
                    bed.socket("h2", socket.AF_INET, socket.SOCK_DGRAM) as client,
                ):
                    server.bind(("10.95.0.2", 7098))
                    server.settimeout(HANGS_S)
                    # The kernel reports the address after it has it.
                    wait_until(partial(one_ended, stamping, client, server, ("10.95.0.2", 7098)))
                bed.ip("h2", "link", "del", "vl")
            manifest = stamping.end()
    finally:
        subprocess.run(["ip", "-n", bed.name("h2"), "link", "del", "vl"], capture_output=True, check=False)
    points = [f"{p['netns']}:{p['device']}" for p in manifest["points"] if p["direction"] == "in"]
    assert {f"{bed.name('h2')}:vl", f"{bed.name('b')}:late"} < set(points) and len(points) == len(set(points))
    assert total(manifest, "ended") == 2
    collection = hops.load(tmp_path / "out")
    assert collection.hops.groupby("packet").size().tolist() == [2, 2]


def test_a_device_that_came_and_went_before_its_guard_is_named(bed: Bed, tmp_path: Path) -> None:
    """nsight-stamp is stopped meanwhile, so that it learns of both at once. A veth pair does not lead out."""
    places = ("--netns", bed.name("a"), "--rate", "1", "--port", "7099")
    with Stamping(tmp_path / "out", *places) as stamping:
        child = stamping.child()
        os.kill(child, signal.SIGSTOP)
        try:
            with guest_tap(bed, "h1", "short"):
                pass
            bed.ip("h1", "link", "add", "short0", "type", "veth", "peer", "name", "short1")
            bed.ip("h1", "link", "del", "short0")
        finally:
            os.kill(child, signal.SIGCONT)
        manifest = stamping.end()
    assert manifest["unguarded"] == [f"{bed.name('h1')}:short"]
    assert [line for line in stamping.said if "came up after the start" in line and ":short;" in line]


def test_a_namespace_that_was_deleted_is_not_kept(bed: Bed, tmp_path: Path) -> None:
    """The kernel deletes the other end of its link with it."""
    places = ("--netns", bed.name("a"), "--rate", "1", "--port", "7099")
    with Stamping(tmp_path / "out", *places):
        run("ip", "netns", "add", bed.name("c"))
        bed.ip("h1", "link", "add", "vc", "type", "veth", "peer", "name", "eth0", "netns", bed.name("c"))
        bed.ip("h1", "link", "set", "vc", "up")
        wait_until(lambda: n_programs(bed, "h1", "vc") == 0)
        run("ip", "netns", "del", bed.name("c"))
        wait_until(lambda: " vc@" not in bed.ip("h1", "-o", "link", "show"))
