# SPDX-License-Identifier: GPL-2.0-only
"""Nothing of nsight-capsule stays, whatever way it ends; and data that others put into packets is left alone."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nsight_capsule import cli

from capsule.bed import DEVICES, V4, Bed, exchange, run
from capsule.stamping import TOOL, Stamping, first_sent, total

pytestmark = pytest.mark.live

ETH_P_ALL = 3
BPFTOOL = next((p for p in ("/usr/sbin/bpftool", "/usr/bin/bpftool") if os.path.exists(p)), "bpftool")


def loaded(pid: int) -> set[int]:
    """Ids of the BPF programs that a process holds. Another run on this machine has other programs."""
    texts = (path.read_text() for path in Path(f"/proc/{pid}/fdinfo").iterdir())
    return {int(n) for text in texts for n in re.findall(r"^prog_id:\s+(\d+)$", text, re.M)}


def traces(bed: Bed, programs: set[int]) -> list[str]:
    """What is left of these programs, and in the network. The kernel frees programs a moment after their last user ends."""
    deadline = time.monotonic() + 30
    while (
        left := programs & {p["id"] for p in json.loads(run(BPFTOOL, "-j", "prog", "show"))}
    ) and time.monotonic() < deadline:
        time.sleep(0.05)
    found = [f"program {n}" for n in left]
    for place, dev in DEVICES:
        text = run("tc", "-n", bed.name(place), "qdisc", "show", "dev", dev)
        text += "".join(
            run("tc", "-n", bed.name(place), "filter", "show", "dev", dev, way)
            for way in ("ingress", "egress")
        )
        if "clsact" in text or "ingress" in text or "bpf" in text:
            found.append(f"{place} {dev}: {text}")
    return found


def headers(bed: Bed, send: int = 3) -> set[int]:
    """Lengths of the TCP headers of a new connection's segments with payload, as they arrive in b."""
    seen: set[int] = set()
    with bed.socket("b", socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as tap:
        tap.bind(("eth0", ETH_P_ALL))
        tap.settimeout(30)
        client, server = bed.connection(socket.AF_INET, 7011)
        for _ in range(send):
            assert exchange(client, server, b"z" * 100) == b"z" * 100
        while len(seen) < 1 or send:
            frame = tap.recv(1 << 16)
            if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
                continue
            header = (frame[46] >> 4) * 4
            if struct.unpack(">H", frame[16:18])[0] - 20 - header == 100:
                seen.add(header)
                send -= 1
    return seen


@pytest.mark.parametrize("how", ["ended", "nsight-stamp killed", "nsight-capsule killed"])
def test_nothing_is_left(bed: Bed, everywhere: list[str], tmp_path: Path, how: str) -> None:
    """A TCP header has 32 bytes with timestamps; with a capsule, it has 60."""
    with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "7011") as run:
        programs = loaded(run.child())
        # Two for each device, two for sockets, and two for guards of devices without and with Ethernet.
        assert len(programs) == 2 * len(DEVICES) + 2 + 2
        assert headers(bed) == {60}
        if how == "ended":
            run.end()
        elif how == "nsight-stamp killed":
            os.kill(run.child(), signal.SIGKILL)
            assert run.finish() == 5
            assert run.manifest()["state"] == "cut"
            assert any(line.startswith("hint: ") for line in run.said), run.said
        else:
            run.process.kill()
            run.process.wait()
    assert traces(bed, programs) == []
    assert headers(bed) == {32}


def test_marks_of_a_killed_one_are_taken_from_connections(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """For each segment of a marked connection, the kernel calls a program that no longer exists."""
    client, server = bed.connection(socket.AF_INET, 7012)
    with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "7012") as run:
        assert exchange(client, server, b"a") == b"a"
        os.kill(run.child(), signal.SIGKILL)
        run.finish()
    assert exchange(client, server, b"b" * 5000) == b"b" * 5000

    def restore() -> str:
        done = subprocess.run(
            [sys.executable, str(TOOL), *everywhere, "--restore"], capture_output=True, text=True, check=True
        )
        return done.stderr.strip()

    assert restore() == "marks taken from 2 connections"
    assert restore() == "marks taken from 0 connections"
    assert exchange(client, server, b"c" * 5000) == b"c" * 5000


def test_packets_of_other_runs_and_forged_capsules_pass_unharmed(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """After a datagram: a capsule of another session, one of this session with a wrong sum, and 28 bytes that are no capsule."""
    with Stamping(tmp_path / "out", *everywhere, "--rate", "1", "--port", "1") as run:
        session = run.manifest()["settings"]["session"]
        magic = bytes([254, 28]) + b"NS"
        trailers = [
            magic + struct.pack(">HHHHI12x", 0, 0, session ^ 1, 7, 1),
            magic + struct.pack(">HHHHI12x", 0, 1234, session, 7, 1),
            b"\xff" * 28,
        ]
        server = bed.socket("b", socket.AF_INET, socket.SOCK_DGRAM)
        server.bind((V4[1], 7013))
        server.settimeout(30)
        tap = bed.socket("b", socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        tap.bind(("eth0", ETH_P_ALL))
        tap.settimeout(30)
        raw = bed.socket("a", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
        for i, trailer in enumerate(trailers):
            payload = b"payload %d" % i
            raw.sendto(struct.pack(">HHHH", 9, 7013, 8 + len(payload), 0) + payload + trailer, (V4[1], 0))
            assert server.recv(1 << 16) == payload
        arrived = [f for f in (tap.recv(1 << 16) for _ in range(3)) if f[23] == socket.IPPROTO_UDP]
        manifest = run.end()
    assert [frame[-28:] for frame in arrived] == trailers
    # The first two pass 8 devices each.
    assert total(manifest, "foreign") == 8
    assert total(manifest, "forged") == 8
    assert total(manifest, "ended") == 0


def test_capsules_are_taken_off_where_packets_leave_the_host(
    bed: Bed, everywhere: list[str], tmp_path: Path
) -> None:
    """u0 is the boundary. After it, a segment has NOPs in place of its capsule, and a datagram's capsule is zeros or cut off."""
    before = bed.errors()
    with Stamping(
        tmp_path / "out", *everywhere, "--rate", "1", "--port", "7014", "--boundary", f"{bed.name('h1')}:u0"
    ) as run:
        tap = bed.socket("b", socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        tap.bind(("eth0", ETH_P_ALL))
        tap.settimeout(30)
        client, server = bed.connection(socket.AF_INET, 7014)
        assert exchange(client, server, b"s" * 100) == b"s" * 100
        sender, receiver = bed.datagrams(socket.AF_INET, 7014)
        sender.send(b"datagram")
        assert receiver.recv(99) == b"datagram"
        frames: list[bytes] = []
        while not frames or b"datagram" not in frames[-1]:
            frames.append(tap.recv(1 << 16))
        manifest = run.end()
    assert not [frame for frame in frames if bytes([254, 28]) + b"NS" in frame]
    segment = next(frame for frame in frames if frame.endswith(b"s" * 100))
    assert segment[14 + 20 + 20 + 12 :][:28] == b"\x01" * 28
    assert first_sent(tmp_path / "out") == 2
    assert total(manifest, "born") == total(manifest, "left")
    assert total(manifest, "ended") == 0
    assert bed.errors() == before


def marked(*places: str) -> str:
    """The output of --restore with these options for points."""
    done = subprocess.run(
        [sys.executable, str(TOOL), *places, "--restore"], capture_output=True, text=True, check=True
    )
    return done.stderr.strip()


def test_marks_are_taken_in_a_namespace_whose_name_has_gone(bed: Bed, tmp_path: Path) -> None:
    """A process is still in the namespace, and so are its connections."""
    name = bed.name("x")
    run("ip", "netns", "add", name)
    holder = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "1000"])
    try:
        for words in ("link set lo up", "link add d0 type veth peer name d1", "link set d0 up"):
            bed.ip("x", *words.split())
        listener = bed.socket("x", socket.AF_INET, socket.SOCK_STREAM)
        client = bed.socket("x", socket.AF_INET, socket.SOCK_STREAM)
        with (
            Stamping(tmp_path / "out", "--netns", name, "--rate", "1", "--port", "7015") as stamping,
            listener,
            client,
        ):
            listener.bind(("127.0.0.1", 7015))
            listener.listen()
            client.connect(("127.0.0.1", 7015))
            with listener.accept()[0]:
                run("ip", "netns", "del", name)
                stamping.change("--rate", "1/2")
                stamping.end()
                assert marked("--netns", str(holder.pid)) == "marks taken from 0 connections"
    finally:
        holder.kill()
        holder.wait()
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_marks_are_taken_when_nsight_capsule_is_killed_in_its_own_namespace(bed: Bed, tmp_path: Path) -> None:
    """The process of nsight-capsule was the name of that namespace."""
    stamping = bed.in_place(
        "a", lambda: Stamping(tmp_path / "out", "--point", "eth0", "--rate", "1", "--port", "7016")
    )
    with stamping:
        client, server = bed.connection(socket.AF_INET, 7016)
        assert exchange(client, server, b"a") == b"a"
        stamping.process.kill()
        stamping.process.wait()
        assert marked("--netns", bed.name("a")) == "marks taken from 0 connections"


def test_marks_are_taken_when_the_manifest_cannot_be_written(
    bed: Bed, everywhere: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsight-stamp gets a request to end before it is killed."""
    ends = []

    def fail(*_: object) -> str:
        ends.append(bed.connection(socket.AF_INET, 7017))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cli, "_wait", fail)
    assert cli.main([*everywhere, "--rate", "1", "--port", "7017", "-o", str(tmp_path / "out")]) == 5
    assert ends
    assert marked(*everywhere) == "marks taken from 0 connections"
