# SPDX-License-Identifier: GPL-2.0-only
"""What became of the chosen packets: the counts of all points, added up and printed one per line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

#: Why a chosen packet got no capsule.
SKIPPED = {
    "mtu": "would exceed an MTU on the way",
    "gso": "one send of many datagrams (UDP_SEGMENT)",
    "fragment": "a fragment, or may be cut into some (IPv4 without DF)",
    "multicast": "for several receivers",
    "padded": "something is behind the datagram already",
    "tunnel": "of a tunnel, with a packet inside whose checksum is not complete; or wrapped or encrypted by their route",
    "memory": "the packet's memory could not be extended",
    "room": "no room among the TCP options (SACK blocks)",
}
#: Counts that show a problem: the explanation, and the key of the loss.
TROUBLE = {
    "end_lost": "arrived, and lost: the ring buffer was full",
    "left_lost": "left this kernel, and lost: the ring buffer was full",
    "dump_lost": "parts of capsules lost: the ring buffer was full",
    "match_lost": "packets seen, and lost: the ring buffer was full",
    "foreign": "capsules of another run passed",
    "forged": "damaged or forged capsules rejected",
    "not_written": "stamps not written: the packet's memory is not ours",
    "not_stripped": "capsules that the receiver's kernel had to cut off",
    "taken_off": "packets left by a device that is no point: their capsules were taken off, and they have no end (give the device with --point)",
}

Counts = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Account:
    """``drawn`` = ``born`` + ``skipped``; ``born`` + ``came`` + ``went_on`` = ``ended`` + ``left`` + ``lost`` + ``open``.
    ``went_on``: counted as arrived, and then left or was lost. ``lost``: the ring buffer was full, or the capsule was taken off where there is no point.

    ``open``: dropped on the way, received where there is no point, or still on their way. It is negative when
    a network copied packets.
    """

    drawn: int
    born: int
    skipped: dict[str, int]
    came: int
    ended: int
    left: int
    went_on: int
    lost: int
    open: int
    matched: int
    trouble: dict[str, int]


def of(counts: Counts) -> Account:
    """Add up the counts of points.

    >>> account = of({"0": {"drawn": 5, "born": 4, "skip_room": 1}, "3": {"ended": 3, "end_lost": 1}})
    >>> account.ended, account.lost, account.open, account.skipped
    (3, 1, 0, {'room': 1})
    """
    total: dict[str, int] = {}
    for point in counts.values():
        for name, n in point.items():
            total[name] = total.get(name, 0) + n

    def get(name: str) -> int:
        return total.get(name, 0)

    skipped = {name: get(f"skip_{name}") for name in SKIPPED if get(f"skip_{name}")}
    lost = get("end_lost") + get("left_lost") + get("taken_off")
    opened = get("born") + get("came") + get("went_on") - get("ended") - get("left") - lost
    trouble = {name: get(name) for name in TROUBLE if get(name)}
    return Account(
        get("drawn"),
        get("born"),
        skipped,
        get("came"),
        get("ended"),
        get("left"),
        get("went_on"),
        lost,
        opened,
        get("matched"),
        trouble,
    )


def lines(account: Account) -> Iterator[str]:
    """Lines for people."""
    if account.matched and not account.drawn:
        yield f"{account.matched} sightings of packets"
        return
    came = f", and {account.came} that came from another kernel" if account.came else ""
    where = f", {account.left} left this kernel" if account.left else ""
    yield (
        f"{account.drawn} packets chosen: {account.born} stamped, {sum(account.skipped.values())} skipped; "
        f"of those stamped{came} {account.ended} arrived{where}, {account.lost} lost, {account.open} not seen to arrive"
    )
    for name, n in account.skipped.items():
        yield f"skipped: {n} {SKIPPED[name]}"
