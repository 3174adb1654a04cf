#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs inside a guest with QEMU's igb: nsight-record and nsight-monitor beside datagrams, some of which the NIC timestamps.

nic_in_guest.py DIRECTORY: there it writes nic.nsight, the monitor's lines, and what the kernel gave the receiver (stamps.json).

QEMU's NIC (an Intel 82576) stamps Sync messages of PTP over Ethernet, which are not messages of a socket: it compares the
Ethernet type with its filter 3, the first byte after the Ethernet header with TSYNCRXCFG, and the low half of the second byte
with 2. Here its registers are set, behind the driver, so that this is an IPv4 packet with type of service 2. As in hardware, one
stamp is kept at a time; the next packet gets one only if it was read. So the datagrams that are stamped are chosen by reading.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/nsight-record"))

from nsight_record import nic  # noqa: E402

HERE, PEER, PORT = "198.18.0.1", "198.18.0.2", 4000
#: Registers of the 82576: e1000_regs.h of the kernel, igb_regs.h of QEMU.
TSYNCRXCFG, ETQF3, RXSATRH = 0x5F50, 0x5CBC, 0xB630
IPV4_HEADER = 0x45
HWTSTAMP_FILTER_PTP_V2_EVENT = 12
SO_TIMESTAMPING, RX_HARDWARE, RAW_HARDWARE = 37, 1 << 2, 1 << 6
CLONE_NEWNET = 0x40000000
#: The NIC's clock is far from every other clock.
AHEAD_NS = 1_000_000_000_000
N, WITH, WITHOUT = 200, 100, 200  # datagrams; bytes of one that is timestamped, and of one that is not


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, timeout=300)


def driver(iface: str) -> str:
    return Path("/sys/class/net", iface, "device/driver").resolve().name


def peers_socket() -> socket.socket:
    """A socket of the namespace of the wire's other end; every packet has type of service 2."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    with open("/run/netns/peer") as peer:
        assert libc.setns(peer.fileno(), CLONE_NEWNET) == 0
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    assert libc.setns(own, CLONE_NEWNET) == 0
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)
    sender.connect((HERE, PORT))
    return sender


def put_ahead(clock: str) -> None:
    """Set the NIC's clock."""
    fd = os.open(clock, os.O_RDWR)
    dynamic = (~fd << 3) | 3  # FD_TO_CLOCKID
    time.clock_settime_ns(dynamic, time.time_ns() + AHEAD_NS)
    os.close(fd)


def hardware_stamp(receiver: socket.socket) -> int:
    """Read a datagram; the NIC's timestamp of it, ns, or 0."""
    _, control, _, _ = receiver.recvmsg(2048, 512)
    for _, kind, data in control:
        if kind == SO_TIMESTAMPING:
            s, ns = struct.unpack_from("qq", data, 32)  # the third of struct scm_timestamping
            return s * 10**9 + ns
    return 0


def wait_for_bytes(path: Path) -> None:
    while not (path.exists() and path.stat().st_size):
        time.sleep(0.1)


def main() -> int:
    out = Path(sys.argv[1])
    run("modprobe virtio_net")
    run("modprobe igb")
    (igb,) = (name for _, name in socket.if_nameindex() if driver(name) == "igb")
    (other,) = (name for _, name in socket.if_nameindex() if driver(name) == "virtio_net")
    for command in (
        "ip netns add peer", f"ip link set {other} netns peer", f"ip addr add {HERE}/24 dev {igb}", f"ip link set {igb} up",
        f"ip -n peer addr add {PEER}/24 dev {other}", f"ip -n peer link set {other} up",
    ):  # fmt: skip
        run(command)
    time.sleep(2)
    nic.set_hwtstamp_filter(igb, HWTSTAMP_FILTER_PTP_V2_EVENT)
    put_ahead("/dev/ptp0")
    fd = os.open(f"/sys/class/net/{igb}/device/resource0", os.O_RDWR)
    registers = memoryview(mmap.mmap(fd, 0x20000)).cast("I")
    registers[TSYNCRXCFG // 4] = IPV4_HEADER << 8
    registers[ETQF3 // 4] = registers[ETQF3 // 4] & ~0xFFFF | 0x0800

    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_HARDWARE | RAW_HARDWARE)
    receiver.bind((HERE, PORT))
    receiver.settimeout(60)
    sender = peers_socket()
    sender.send(b"first")  # takes the stamp that was free
    hardware_stamp(receiver)
    with open(out / "lines", "wb") as lines:
        monitor = subprocess.Popen(
            [ROOT / "tools/nsight-monitor/nsight-monitor", "--json", "--interval", "1", "--port", str(PORT)],
            stdout=lines,
        )
        capture = out / "nic.nsight"
        argv = [
            ROOT / "tools/nsight-record/nsight-record",
            "--recorder",
            "bpf",
            "--mode",
            "tracepoints",
            "--port",
            str(PORT),
        ]
        recorder = subprocess.Popen([*argv, "-o", capture], stderr=subprocess.PIPE, text=True)
        wait_for_bytes(out / "lines")
        assert recorder.stderr
        assert any(line.startswith("recording until") for line in recorder.stderr)
        stamps = []
        for i in range(N):
            if i % 2:
                registers[RXSATRH // 4]  # the next stamp may be taken
            sender.send(bytes(WITH if i % 2 else WITHOUT))
            # A reader on another core can take a datagram between its queueing and its hand-off, which is another matter.
            time.sleep(0.01)
            stamps.append((WITH if i % 2 else WITHOUT, hardware_stamp(receiver)))
        time.sleep(1)
        for process in (recorder, monitor):
            process.send_signal(signal.SIGINT)
        print(recorder.communicate(timeout=120)[1], file=sys.stderr)
        codes = [recorder.returncode, monitor.wait(120)]
    (out / "stamps.json").write_text(json.dumps(stamps))
    print(f"recorder, monitor: {codes}")
    return codes != [130, 130]


if __name__ == "__main__":
    sys.exit(main())
