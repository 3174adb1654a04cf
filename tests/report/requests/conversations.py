# SPDX-License-Identifier: GPL-2.0-only
"""What two ends of one connection say, as events and packets; and the requests that are made from both."""

from __future__ import annotations

from pathlib import Path

from made_messages import join
from nsight_report.lifetimes import LifetimeOptions
from report.lifetimes.event_builder import CLIENT, SERVER, Recording
from report.lifetimes.pcap_bytes import ACK, SYN, packet, pcap

FIN = 0x01
Said = tuple[str, bytes]


def talk(
    protocol: str,
    said: list[Said],
    tmp_path: Path,
    by_byte: bool = False,
    lost: frozenset[int] = frozenset(),
    begin: int = 0,
) -> tuple[list[tuple[int, int, str, bool]], dict[str, int]]:
    """``([(position of the request's end, of the reply's begin, type, certain)], losses)``.

    ``said``: (C or S, what the client or the server said), one call each, one after the other; with ``by_byte`` a call for each byte.
    ``lost``: what the packets lack; ``begin``: what was said before is in no recording.
    """
    recording, packets, at, places = Recording(), [], 1000, []
    seq = {"C": 1000, "S": 5000}
    if not begin:
        packets += [packet(CLIENT, SERVER, 999, b"", SYN), packet(SERVER, CLIENT, 4999, b"", SYN | ACK)]
    for place, (who, every) in enumerate(said):
        for one in [bytes([b]) for b in every] if by_byte else [every]:
            here, seq[who] = seq[who], seq[who] + len(one)
            if place < begin:
                continue
            if place not in lost:
                ends = (CLIENT, SERVER) if who == "C" else (SERVER, CLIENT)
                packets.append(packet(*ends, here, one))
            if who == "C":
                recording.arrive(at, here, len(one)).hand_off(at + 10, here + len(one)).read(
                    at + 20, here, len(one)
                )
            else:
                recording.send(at + 20, here, len(one), call_ns=at).drive(at + 10, here, len(one))
            at += 100
        places.append(at)
    packets += [packet(SERVER, CLIENT, seq["S"], b"", FIN | ACK)]
    payload = tmp_path / "payload.pcap"
    payload.write_bytes(pcap(packets))
    messages, _ = recording.build(LifetimeOptions(framing=protocol, payload=payload))
    made, losses = join(
        [{k: v for k, v in m.items() if k != "message_id"} for m in messages], tmp_path, protocol
    )

    def place_of(ns: int) -> int:
        return next(i for i, end in enumerate(places) if ns < end)

    found = [
        (place_of(r["read_ns"]), place_of(r["first_send_ns"]), r["request_type"], r["certain"]) for r in made
    ]
    return found, losses
