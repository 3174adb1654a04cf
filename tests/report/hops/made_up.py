# SPDX-License-Identifier: GPL-2.0-only
"""Hand-made directories of nsight-capsule."""

from __future__ import annotations

import ipaddress
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nsight_report.hops import records

SESSION = 77
#: Points 1 and 2 are in and out of a's eth0, 3 and 4 of h's va, 5 and 6 of h's vb, 7 and 8 of b's eth0.
DEVICES = (("a", "eth0"), ("h", "va"), ("h", "vb"), ("b", "eth0"))
A_OUT, VA_IN, VB_OUT, B_IN = 2, 3, 6, 7
#: A time shortly before its low 32 bits wrap around.
T0 = (5 << 32) - 1_000


def points() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"number": 0, "netns": None, "device": None, "direction": "socket", "kind": "socket"}
    ]
    for netns, device in DEVICES:
        for way in ("in", "out"):
            rows.append(
                {"number": len(rows), "netns": netns, "device": device, "direction": way, "kind": "veth"}
            )
    return rows


def manifest(**changed: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"format": "nsight-capsules", "version": 1, "state": "complete", "points": points(),
                            "counted": {"counts": {"0": {"drawn": 2, "born": 2}, "7": {"ended": 2}}}}  # fmt: skip
    return made | changed


def address(text: str) -> bytes:
    of = ipaddress.ip_address(text)
    return of.packed if of.version == 6 else b"\0" * 10 + b"\xff\xff" + of.packed


def capsule(
    birth: int, stamps: Sequence[tuple[int, int]], seq: int, proto: int, length: int = 100, **wrong: int
) -> bytes:
    """``stamps``: (point, ns). ``wrong``: a different session, or a number added to the sum."""
    numbers = sum(number << 5 * i for i, (number, _) in enumerate(stamps)) | wrong.get("again", 0) << 15
    times = [ns & 0xFFFFFFFF for _, ns in stamps] + [0] * (3 - len(stamps))

    def packed(neutral: int) -> bytes:
        session = wrong.get("session", SESSION)
        return (
            bytes([254, 28])
            + b"NS"
            + struct.pack(">HHHHI3I", numbers, neutral, session, seq & 0xFFFF, birth & 0xFFFFFFFF, *times)
        )

    total = sum(struct.unpack(">14H", packed(0)))
    wanted = records.SUM_TCP if proto == 6 else records.SUM_UDP_ODD if length & 1 else records.SUM_UDP
    return packed((wanted - total + wrong.get("sum", 0)) % 0xFFFF)


def record(
    now: int,
    kind: int,
    point: int,
    body: bytes,
    proto: int = 6,
    seq: int = 1000,
    length: int = 100,
    flags: int = 0,
) -> bytes:
    head = struct.pack("<QBBBBHHII", now, kind, point, proto, flags, 4000, 80, seq, length)
    made = head + address("10.0.0.1") + address("10.0.0.2") + body.ljust(32, b"\0") + struct.pack("<II", 3, 0)
    assert len(made) == records.RECORD.itemsize
    return made


def segment(birth: int, out: int, va: int, vb: int, b: int, seq: int = 1000, **wrong: int) -> bytes:
    """A segment on the whole way: its slots are full after vb, so one record holds everything."""
    body = capsule(birth, [(A_OUT, out), (VA_IN, va), (VB_OUT, vb)], seq, 6, **wrong)
    return record(b, records.END, B_IN, body, seq=seq)


def directory(path: Path, body: bytes, session: int = SESSION, **changed: Any) -> Path:
    path.mkdir()
    (path / "manifest.json").write_text(json.dumps(manifest(**changed)))
    head = np.zeros(1, records.HEADER)
    head["magic"], head["record_size"], head["session"] = records.MAGIC, records.RECORD.itemsize, session
    (path / "capsules").write_bytes(head.tobytes() + body)
    return path


#: One segment's record.
GOOD_WAY = segment(T0, T0 + 1, T0 + 2, T0 + 3, T0 + 4)
