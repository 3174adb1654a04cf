# SPDX-License-Identifier: GPL-2.0-only
"""Records -> packets and hops. Every step processes whole arrays: a capture has millions of records."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..losses import Ledger
from . import point_classes, records
from .records import Records

_WRITTEN = 1
_MASK = np.int64(0xFFFFFFFF)
SOCKET = 0
#: A 32-bit time is completed from the time of its record: it is wrong for a packet that took longer than this.
LONGEST_NS = 1 << 32
#: No kernel has more cores.
MOST_CORES = 8192

Ints = npt.NDArray[np.int64]


@dataclass
class Found:
    """One row per hop, unordered: ``record`` is the row of ``records`` that it came from, ``place`` its order there.

    ``left``: the packet left its kernel there. ``written``: in the packet itself, which contains no core.
    """

    record: Ints
    number: Ints
    ts_ns: Ints
    place: Ints
    written: npt.NDArray[np.bool_]
    left: npt.NDArray[np.bool_]


def _completed(low: Ints, now: Ints) -> Ints:
    """Times from their low 32 bits, at most LONGEST_NS before ``now``."""
    return now - (now - low & _MASK)


def _in_capsules(r: Records) -> tuple[Found, Ints, npt.NDArray[np.bool_]]:
    """All stamps of records with a capsule; birth of each record; whether its times are in order.

    For a packet from another kernel, the birth is in that kernel's clock: only its low bits, since the rest is not known here.
    """
    now = r["time"].astype(np.int64)
    capsule = r["capsule"]
    came = records.came(capsule)
    birth = np.where(came, capsule["birth"], _completed(capsule["birth"].astype(np.int64), now))
    numbers = records.slots(capsule).astype(np.int64)
    numbers[came, 0] = 0
    arrived = records.arrived_before(capsule)
    numbers[arrived, 1] = 0
    numbers[point_classes.there(capsule), -1] = 0
    times = _completed(capsule["times"].astype(np.int64), now[:, None])
    used = numbers != 0
    line = np.column_stack([np.where(came, 0, birth), times, now])
    for i in range(1, line.shape[1] - 1):  # a free slot gets the time before it
        line[:, i] = np.where(used[:, i - 1], line[:, i], line[:, i - 1])
    # Low bits later than now are from before the kernel's boot.
    ordered = np.asarray((np.diff(line, axis=1) >= 0).all(axis=1) & (line[:, 0] >= 0), bool)
    # Slots were emptied at the arrival: what is in them came after it.
    ordered &= ~arrived | (times[:, 1] >= line[:, 0]) & (~used[:, 0] | (times[:, 0] >= times[:, 1]))
    rows = np.arange(len(r))
    row, slot = np.nonzero(used)
    born = np.flatnonzero((r["proto"] == records.TCP) & ~came)
    n_written = len(born) + len(row)
    made = Found(
        np.concatenate([born, row, rows]),
        np.concatenate([np.full(len(born), SOCKET), numbers[row, slot], r["point"].astype(np.int64)]),
        np.concatenate([birth[born], times[row, slot], now]),
        np.concatenate([np.zeros(len(born), np.int64), slot + 1, np.full(len(rows), 9)]),
        np.concatenate([np.ones(n_written, bool), np.zeros(len(rows), bool)]),
        np.concatenate([np.zeros(n_written, bool), r["kind"] == records.LEFT]),
    )
    return made, birth, ordered


def _numbered(*keys: Ints) -> Ints:
    """A number for each distinct combination of keys, in the order of the keys."""
    order = np.lexsort(keys[::-1])
    new = np.zeros(len(order), bool)
    for key in keys:
        new[1:] |= np.diff(key[order]) != 0
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(new)
    return numbers


def of_capsules(r: Records, ledger: Ledger) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Frames (packets, hops) of the records of a run that stamped. A packet is identified by birth and number.

    Besides the columns of the tables: ``birth`` and ``number16``, from the capsule; ``origin``, the low bits of when the
    packet left the kernel that it came from, -1 if it was born here; for hops ``left``, where it left this kernel.
    """
    found, birth, ordered = _in_capsules(r)
    ledger.add("hops_times_out_of_order", int(np.count_nonzero(~ordered)))
    keep = ordered[found.record]
    origin = np.where(records.came(r["capsule"]), r["capsule"]["times"][:, 0].astype(np.int64), -1)
    packet = _numbered(birth, r["capsule"]["seq"].astype(np.int64), r["proto"].astype(np.int64), origin)
    hops = pd.DataFrame(
        {"packet": packet[found.record], "number": found.number, "ts_ns": found.ts_ns, "place": found.place,
         "record": found.record, "left": found.left, "cpu": np.where(found.written, -1, _cores(r)[found.record]), "flags": (r["flags"][found.record] & 6).astype(np.int32) | found.written * _WRITTEN}
    )[keep]  # fmt: skip
    hops = hops.sort_values(["packet", "ts_ns", "place"], kind="stable")
    # A segment that arrives twice (DNAT) brings the same stamps again; a network may copy a packet.
    hops = hops.drop_duplicates(["packet", "number", "ts_ns"])
    return _finish(r, hops, np.isin(r["kind"], (records.END, records.LEFT)), origin)


def of_sightings(r: Records, ledger: Ledger, alone_too: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The same for the read-only mode: the n-th packet with a key at one point is the n-th with that key at another.

    If the points saw a key a different number of times (loss, retransmission, equal datagrams), the packets cannot be matched: they
    are counted as lost and left out, and so are packets that only one point saw, unless ``alone_too``. ``packets`` has ``key``.
    """
    point, now = r["point"].astype(np.int64), r["time"].astype(np.int64)
    frame = pd.DataFrame({"key": keys(r), "number": point, "ts_ns": now, "record": np.arange(len(r))})
    frame = frame.sort_values("ts_ns", kind="stable")
    frame["nth"] = frame.groupby(["key", "number"]).cumcount()
    times = frame.groupby(["key", "number"])["nth"].transform("size")
    by_key = times.groupby(frame["key"])
    doubtful = by_key.transform("min") != by_key.transform("max")
    alone = (frame.groupby("key")["number"].transform("nunique") == 1) & (not alone_too)
    ledger.add("hops_match_alone", int(alone.sum()))
    ledger.add("hops_match_doubtful", int((doubtful & ~alone).sum()))
    frame = frame[~doubtful & ~alone]
    _, code = np.unique(frame["key"].to_numpy(), return_inverse=True)
    frame["packet"] = _numbered(code.astype(np.int64), frame["nth"].to_numpy(np.int64))
    frame["place"] = 0
    frame["flags"] = (r["flags"][frame["record"]] & 6).astype(np.int32)
    frame["cpu"] = _cores(r)[frame["record"]]
    hops = frame.sort_values(["packet", "ts_ns"], kind="stable")
    return _finish(r, hops.assign(left=False), np.ones(len(r), bool), np.full(len(r), -1))


def _cores(r: Records) -> Ints:
    """Core of each record; -1 if no kernel can have that core."""
    cpu = r["cpu"].astype(np.int64)
    return np.where(cpu < MOST_CORES, cpu, -1)


def keys(r: Records) -> npt.NDArray[np.uint64]:
    """What identifies a packet in each record of the read-only mode."""
    raw = np.ascontiguousarray(r["capsule"]).view(np.uint8).reshape(len(r), records.CAPSULE.itemsize)[:, :8]
    return np.ascontiguousarray(raw).view("<u8").reshape(-1)


def _finish(
    r: Records, hops: pd.DataFrame, ends: npt.NDArray[np.bool_], origin: Ints
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Number packets by birth, and make their table from their last record."""
    by = hops.groupby("packet", sort=True)
    packets = pd.DataFrame(
        {"born_ns": by["ts_ns"].first(), "last_ns": by["ts_ns"].last(), "record": by["record"].last()}
    )
    packets = packets.sort_values("born_ns", kind="stable")
    number = pd.Series(np.arange(len(packets)), index=packets.index)
    hops = hops.assign(packet=number.reindex(hops["packet"]).to_numpy(np.int64))
    hops = hops.sort_values(["packet", "ts_ns", "place"], kind="stable").reset_index(drop=True)
    of = packets["record"].to_numpy(np.int64)
    again = (r["capsule"]["points"][of] & records.AGAIN != 0) & (r["kind"][of] != records.MATCH)
    packets = packets.reset_index(drop=True).assign(
        packet=np.arange(len(packets)), latency_ns=lambda p: p["last_ns"] - p["born_ns"], arrived=ends[of], again=again,
        proto=r["proto"][of].astype(np.int32), sport=r["sport"][of].astype(np.int32), dport=r["dport"][of].astype(np.int32),
        saddr=_addresses(r["saddr"][of]), daddr=_addresses(r["daddr"][of]),
        at=point_classes.texts(_annotations(r, of)),
        birth=r["capsule"]["birth"][of].astype(np.int64), number16=r["capsule"]["seq"][of].astype(np.int64), origin=origin[of],
        seq=r["seq"][of].astype(np.int64), length=r["length"][of].astype(np.int64), bound_ns=0,
        key=keys(r)[of],
    )  # fmt: skip
    return packets.drop(columns="record"), hops.drop(columns=["place", "record"], errors="ignore")


def _annotations(r: Records, rows: Ints) -> Ints:
    """The annotation of each of these records; the read-only mode has no capsules to carry one."""
    of_capsules = r["kind"][rows] != records.MATCH
    masks = point_classes.of(r["capsule"][rows])
    return np.where(of_capsules, masks, point_classes.EVERYWHERE).astype(np.int64)


def _addresses(raw: npt.NDArray[np.void]) -> pd.Categorical[str]:
    """As text; each distinct address is formatted once."""
    halves = np.ascontiguousarray(raw).view("<u8").reshape(-1, 2)
    different, codes = np.unique(halves, axis=0, return_inverse=True)
    return pd.Categorical.from_codes(codes.reshape(-1), pd.Index([_text(of.tobytes()) for of in different]))


def _text(raw: bytes) -> str:
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)
