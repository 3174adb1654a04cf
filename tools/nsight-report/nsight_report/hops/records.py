# SPDX-License-Identifier: GPL-2.0-only
"""The file ``capsules`` as arrays; ``tools/bpf/capsule.h`` describes its contents. Anybody may have made it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import files
from ..errors import BadInput
from ..losses import Ledger

MAGIC = b"NSIGHTC1"
END, DUMP, LEFT, MATCH = 1, 2, 3, 4
N_SLOTS = 3
AGAIN = 0x8000
#: In place of a point, in the first slot: the packet came from another kernel, and left that kernel at this time.
ELSEWHERE = 31
#: In place of a point, in the second slot: the packet was counted as arrived before, at this time.
ARRIVED = 31
#: In place of a point, in the third slot: its time is the annotation, the classes of points that write to the capsule.
ANNOTATED = 31
TCP, UDP = 6, 17
#: One's-complement sums of a capsule's words in network byte order: in a segment, after an even and after an odd datagram.
SUM_TCP, SUM_UDP, SUM_UDP_ODD = 0x0E0E, 0xFFE3, 0xE3FF
#: Later times of CLOCK_MONOTONIC are not believed: 146 years.
_LAST_NS = 1 << 62

HEADER = np.dtype(
    [("magic", "S8"), ("record_size", "<u4"), ("session", "<u4"), ("started", "<u8"), ("reserved", "V40")]
)
CAPSULE = np.dtype(
    [("magic", "V4"), ("points", ">u2"), ("neutral", ">u2"), ("session", ">u2"), ("seq", ">u2"), ("birth", ">u4"),
     ("times", ">u4", (N_SLOTS,))]
)  # fmt: skip
RECORD = np.dtype(
    [("time", "<u8"), ("kind", "u1"), ("point", "u1"), ("proto", "u1"), ("flags", "u1"), ("sport", "<u2"), ("dport", "<u2"),
     ("seq", "<u4"), ("length", "<u4"), ("saddr", "V16"), ("daddr", "V16"), ("capsule", CAPSULE), ("unused", "V4"), ("cpu", "<u4"),
     ("pad", "V4")]
)  # fmt: skip
CAPSULE_MAGIC = bytes([254, 28]) + b"NS"

Records = npt.NDArray[np.void]


def read(path: Path, n_points: int, ledger: Ledger) -> Records:
    """The credible records, in the order of the file; the others are counted as lost. Raises BadInput.

    ``n_points``: points of the manifest have numbers below it.
    """
    try:
        with files.opened(path) as file:
            head, body = file.read(HEADER.itemsize), file.read()
    except OSError as error:
        raise BadInput(
            f"{path}: {error.strerror or error}", "copy the whole directory, or stamp again"
        ) from None
    if len(head) < HEADER.itemsize or head[:8] != MAGIC:
        raise BadInput(f"{path}: not what nsight-stamp writes", "copy the whole directory, or stamp again")
    header = np.frombuffer(head, HEADER)[0]
    if header["record_size"] != RECORD.itemsize:
        raise BadInput(
            f"{path}: its records have {header['record_size']} bytes, not {RECORD.itemsize}",
            "use the nsight-report that belongs to the nsight-capsule that made it",
        )
    n = len(body) // RECORD.itemsize
    ledger.add("hops_file_cut", int(n * RECORD.itemsize != len(body)))
    found = np.frombuffer(body, RECORD, n)
    good = _plausible(found, n_points)
    of_match = found["kind"] == MATCH
    whole = of_match | _whole(found, int(header["session"]), n_points)
    ledger.add("hops_records_impossible", int(np.count_nonzero(~good)))
    ledger.add("hops_capsules_damaged", int(np.count_nonzero(good & ~whole)))
    return found[good & whole]


def _plausible(r: Records, n_points: int) -> npt.NDArray[np.bool_]:
    kinds, protocols = np.isin(r["kind"], (END, DUMP, LEFT, MATCH)), np.isin(r["proto"], (TCP, UDP))
    known = (r["point"] > 0) & (r["point"] < n_points)
    made: npt.NDArray[np.bool_] = kinds & protocols & known & (r["time"] < _LAST_NS) & (r["time"] > 0)
    return made


def slots(capsule: Records) -> npt.NDArray[np.uint16]:
    """Numbers of points by record and slot; 0 for an empty slot."""
    points = capsule["points"].astype(np.uint16)
    return np.stack([points >> np.uint16(5 * i) & np.uint16(31) for i in range(N_SLOTS)], axis=1)


def came(capsule: Records) -> npt.NDArray[np.bool_]:
    """Whether each packet came from another kernel."""
    return np.asarray((capsule["points"] & 31) == ELSEWHERE, bool)


def arrived_before(capsule: Records) -> npt.NDArray[np.bool_]:
    """Whether each packet was counted as arrived in this kernel before the record."""
    return np.asarray((capsule["points"] >> 5 & 31) == ARRIVED, bool)


def _whole(r: Records, session: int, n_points: int) -> npt.NDArray[np.bool_]:
    """Whether each is of this session, with the right checksum, known points, and no slot after an empty one."""
    capsule = r["capsule"]
    words = np.frombuffer(np.ascontiguousarray(capsule).tobytes(), ">u2").reshape(-1, CAPSULE.itemsize // 2)
    sums = words.astype(np.uint32).sum(axis=1) % 0xFFFF
    wanted = np.where(r["proto"] == TCP, SUM_TCP, np.where(r["length"] & 1, SUM_UDP_ODD, SUM_UDP))
    numbers = slots(capsule)
    numbers[:, 0] = np.where(came(capsule), 1, numbers[:, 0])
    arrived = arrived_before(capsule)
    numbers[:, 1] = np.where(arrived, 0, numbers[:, 1])
    numbers[:, -1] = np.where(numbers[:, -1] == ANNOTATED, 0, numbers[:, -1])
    gap = (numbers[:, :-1] == 0) & (numbers[:, 1:] != 0)
    gap[:, 1] = np.where(arrived, (numbers[:, 0] == 0) & (numbers[:, 2] != 0), gap[:, 1])
    magic = np.frombuffer(CAPSULE_MAGIC, ">u2")
    good = (words[:, :2] == magic).all(axis=1) & (sums == wanted) & (capsule["session"] == session)
    made: npt.NDArray[np.bool_] = good & ~gap.any(axis=1) & (numbers < n_points).all(axis=1)
    return made
