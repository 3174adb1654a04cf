#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Connects two taps, each in a separate namespace, like a hypervisor between guests: NETNS DEV NETNS DEV CPU."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import struct
import sys
from pathlib import Path

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
CLONE_NEWNET = 0x40000000


def tap(space: str, device: str) -> int:
    """File descriptor of the tap, opened in the namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{space}").open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), space)
    made = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(made, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    return made


def pass_on(packet: bytes, to: int) -> None:
    """Send a packet through the other tap; drop it while that tap is down, as a switch does. A tap that comes up first sends at once."""
    try:
        os.write(to, packet)
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def main() -> None:
    """Run until it is ended."""
    space_a, device_a, space_b, device_b, cpu = sys.argv[1:]
    os.sched_setaffinity(0, {int(cpu)})
    Path("/proc/self/comm").write_text("switch")
    a, b = tap(space_a, device_a), tap(space_b, device_b)
    print("ready", flush=True)
    other = {a: b, b: a}
    poll = select.poll()
    for file in other:
        poll.register(file, select.POLLIN)
    while True:
        for file, _ in poll.poll():
            pass_on(os.read(file, 1 << 16), other[file])


if __name__ == "__main__":
    main()
