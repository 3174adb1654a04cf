# SPDX-License-Identifier: GPL-2.0-only
"""Network interfaces: driver, interrupt coalescing, timestamping; read (and set) through ioctl.

Source: include/uapi/linux/ethtool.h and net_tstamp.h. ethtool(8) is not needed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from typing import Any

_SIOCETHTOOL = 0x8946
_SIOCSHWTSTAMP = 0x89B0
_SIOCGHWTSTAMP = 0x89B1
_GDRVINFO = 0x03
_GCOALESCE = 0x0E
_GET_TS_INFO = 0x41
_IFNAMSIZ = 16

HWTSTAMP_FILTER_NONE = 0
HWTSTAMP_FILTER_ALL = 1
_SOF_RX_HARDWARE = 1 << 2
_SOF_RAW_HARDWARE = 1 << 6

# struct ethtool_coalesce after cmd, all __u32
_COALESCE = (
    "rx_coalesce_usecs",
    "rx_max_coalesced_frames",
    "rx_coalesce_usecs_irq",
    "rx_max_coalesced_frames_irq",
    "tx_coalesce_usecs",
    "tx_max_coalesced_frames",
    "tx_coalesce_usecs_irq",
    "tx_max_coalesced_frames_irq",
    "stats_block_coalesce_usecs",
    "use_adaptive_rx_coalesce",
    "use_adaptive_tx_coalesce",
    "pkt_rate_low",
    "rx_coalesce_usecs_low",
    "rx_max_coalesced_frames_low",
    "tx_coalesce_usecs_low",
    "tx_max_coalesced_frames_low",
    "pkt_rate_high",
    "rx_coalesce_usecs_high",
    "rx_max_coalesced_frames_high",
    "tx_coalesce_usecs_high",
    "tx_max_coalesced_frames_high",
    "rate_sample_interval",
)


def _ifreq(sock: socket.socket, request: int, iface: str, data: bytes) -> bytes:
    """One ioctl whose struct ifreq points to ``data``; returns the answer. Raises OSError."""
    buffer = ctypes.create_string_buffer(data, len(data))
    ifreq = struct.pack("16sP16x", iface.encode()[: _IFNAMSIZ - 1], ctypes.addressof(buffer))
    fcntl.ioctl(sock, request, ifreq)
    return buffer.raw


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def describe(iface: str) -> dict[str, Any]:
    """One interface of the current namespace, as in ``manifest.nics`` (without ``netns``).

    A setting that the driver does not offer is null.
    """
    found: dict[str, Any] = {
        "name": iface,
        "ifindex": socket.if_nametoindex(iface),
        "driver": None,
        "coalescing": None,
        "timestamping": None,
        "phc": None,
    }
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            info = _ifreq(s, _SIOCETHTOOL, iface, struct.pack("I", _GDRVINFO).ljust(196, b"\0"))
            found["driver"] = _text(info[4:36])
            found["driver_version"] = _text(info[36:68])
            found["bus"] = _text(info[100:132])
        except OSError:
            pass
        try:
            raw = _ifreq(s, _SIOCETHTOOL, iface, struct.pack("I", _GCOALESCE).ljust(92, b"\0"))
            found["coalescing"] = dict(zip(_COALESCE, struct.unpack_from("22I", raw, 4), strict=True))
        except OSError:
            pass
        try:
            raw = _ifreq(s, _SIOCETHTOOL, iface, struct.pack("I", _GET_TS_INFO).ljust(44, b"\0"))
            so, phc, tx_types, rx_filters = struct.unpack_from("IiI12xI", raw, 4)
            found["timestamping"] = {
                "capabilities": so,
                "hardware_rx": bool(so & _SOF_RX_HARDWARE and so & _SOF_RAW_HARDWARE),
                "tx_types": tx_types,
                "rx_filters": rx_filters,
                "rx_filter": hwtstamp_filter(iface),
            }
            found["phc"] = phc if phc >= 0 else None
        except OSError:
            pass
    return found


def describe_all() -> list[dict[str, Any]]:
    """Every interface of the current namespace."""
    found = []
    for _, name in socket.if_nameindex():
        try:
            found.append(describe(name))
        except OSError:  # it was removed after it was listed
            continue
    return found


def hwtstamp_filter(iface: str) -> int | None:
    """The receive filter in force (0 none, 1 all packets); None if the driver does not report it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            raw = _ifreq(s, _SIOCGHWTSTAMP, iface, bytes(12))
        except OSError:
            return None
    return int(struct.unpack("iii", raw)[2])


def set_hwtstamp_filter(iface: str, rx_filter: int) -> int:
    """Set the receive filter, keep the transmit type; returns what the driver chose.

    A driver may choose a wider filter than requested. Raises OSError.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        _, tx_type, _ = struct.unpack("iii", _ifreq(s, _SIOCGHWTSTAMP, iface, bytes(12)))
        raw = _ifreq(s, _SIOCSHWTSTAMP, iface, struct.pack("iii", 0, tx_type, rx_filter))
    chosen = int(struct.unpack("iii", raw)[2])
    if rx_filter != HWTSTAMP_FILTER_NONE and chosen == HWTSTAMP_FILTER_NONE:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), iface)
    return chosen
