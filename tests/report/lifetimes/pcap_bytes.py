# SPDX-License-Identifier: GPL-2.0-only
"""Small hand-made pcap files: raw IPv4 packets with TCP payload."""

from __future__ import annotations

import struct
from ipaddress import ip_address

LINKTYPE_RAW = 101
SYN, ACK = 0x02, 0x10


def packet(
    source: tuple[str, int], target: tuple[str, int], seq: int, payload: bytes, flags: int = ACK
) -> bytes:
    """One IPv4 packet; checksums stay 0, as in captures with offloads."""
    tcp = struct.pack("!HHIIBBHHH", source[1], target[1], seq % 2**32, 0, 5 << 4, flags, 1000, 0, 0) + payload
    ends = ip_address(source[0]).packed + ip_address(target[0]).packed
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + ends + tcp


def pcap(packets: list[bytes], magic: int = 0xA1B2C3D4, order: str = "<") -> bytes:
    """A classic pcap file, one second between packets."""
    head = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 262144, LINKTYPE_RAW)
    records = [struct.pack(order + "IIII", i, 0, len(p), len(p)) + p for i, p in enumerate(packets)]
    return head + b"".join(records)
