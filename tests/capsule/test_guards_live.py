# SPDX-License-Identifier: GPL-2.0-only
"""Guards: in the namespace that was looked at, whatever its path leads to now; and devices that came after the start."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nsight_record import netns

from capsule.bed import Bed, guest_tap, run
from capsule.stamping import HANGS_S, PROGRAM, Stamping
from conftest import skip_or_fail

pytestmark = [pytest.mark.live, pytest.mark.alone]

SYS_BPF = {"x86_64": 321, "aarch64": 280}
PROG_QUERY, TCX_EGRESS = 16, 47
_libc = ctypes.CDLL(None, use_errno=True)


def n_programs(bed: Bed, place: str, device: str) -> int:
    """Number of programs at the device's egress."""

    def asked() -> int:
        query = ctypes.create_string_buffer(
            struct.pack("=II56x", socket.if_nametoindex(device), TCX_EGRESS), 64
        )
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
def test_devices_that_lead_out_and_came_after_the_start_are_named(
    bed: Bed, tmp_path: Path, options: tuple[str, ...]
) -> None:
    places = ("--netns", bed.name("a"), "--rate", "1", "--port", "7097")
    before, after = (f"{bed.name('h1')}:{name}" for name in ("before", "after"))
    with guest_tap(bed, "h1", "before"), Stamping(tmp_path / "out", *places, *options) as stamping:
        with guest_tap(bed, "h1", "after"):
            manifest = stamping.end()
    said = [line for line in stamping.said if "came up after the start" in line]
    if options:
        assert (manifest["unguarded"], said) == ([], [])
        return
    assert before in manifest["guards"] and before not in manifest["unguarded"]
    assert after not in manifest["guards"] and after in manifest["unguarded"]
    assert len(said) == 1 and after in said[0] and before not in said[0]
