# SPDX-License-Identifier: GPL-2.0-only
"""An independent reader of packets: lists the packets and the time at each.

It shares nothing with nsight-decode except the rule in the man page: between two packets with a TSC, cycle counts are scaled so
that the clock is right at both, unless CBR's ratio differs by more than an eighth.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Names of packets that record a branch or event.
TNT, TIP, PGE, PGD, FUP, OVF, PSB = "TNT", "TIP", "PGE", "PGD", "FUP", "OVF", "PSB"
ADDRESSED = {0x0D: TIP, 0x11: PGE, 0x01: PGD, 0x1D: FUP}
SIZES = (0, 2, 4, 6, 6, 0, 8, 0)
#: Second byte of those that begin with 2: name, length.
EXTENDED = {
    0xA3: (TNT, 8),
    0xF3: (OVF, 2),
    0x23: ("PSBEND", 2),
    0x03: ("CBR", 4),
    0x73: ("TMA", 7),
    0x43: ("PIP", 8),
    0xC8: ("VMCS", 7),
    0x83: ("STOP", 2),
    0x62: ("EXSTOP", 2),
    0xE2: ("EXSTOP", 2),
    0xC2: ("MWAIT", 10),
    0x22: ("PWRE", 4),
    0xA2: ("PWRX", 7),
    0x13: ("CFE", 4),
    0x53: ("EVD", 11),
    0x12: ("PTW", 6),
    0x92: ("PTW", 6),
    0x32: ("PTW", 10),
    0xB2: ("PTW", 10),
    0xC3: ("MNT", 11),
}
MAGIC = bytes([2, 0x82]) * 8
#: The ratio between two TSCs differs from CBR's by one part in so many at most, or the core slept.
STEP = 8


@dataclass(frozen=True, slots=True)
class Packet:
    """``value``: address (None: suppressed), branches of a TNT, cycles, or the number that it tells; ``header``: within PSB+."""

    name: str
    at: int
    size: int
    value: int | None
    header: bool


class Damaged(Exception):
    """An unknown packet; ``args``: where."""


def _cycles(trace: bytes, at: int) -> tuple[int, int]:
    """(value, length) of a CYC packet."""
    value, shift, end, more = trace[at] >> 3, 5, at + 1, trace[at] & 4
    while more:
        byte = trace[end]
        value |= byte >> 1 << shift
        shift, more, end = shift + 7, byte & 1, end + 1
    return value, end - at


def _address(kind: int, payload: int, last: int) -> int:
    """An address, completed by the last one."""
    if kind in (1, 2, 4):
        bits = {1: 16, 2: 32, 4: 48}[kind]
        return last >> bits << bits | payload
    if kind == 3:
        return payload | (0xFFFF << 48 if payload >> 47 else 0)
    return payload


def packets(trace: bytes, at: int = 0) -> list[Packet]:
    """All packets from a PSB on."""
    found = []
    last, header, end = 0, False, len(trace)
    while at < end:
        first = trace[at]
        name, size, value = "", 1, None
        if first == 0:
            name = "PAD"
        elif first & 3 == 3:
            name = "CYC"
            value, size = _cycles(trace, at)
        elif first == 0x19:
            name, size, value = "TSC", 8, int.from_bytes(trace[at + 1 : at + 8], "little")
        elif first == 0x59:
            name, size, value = "MTC", 2, trace[at + 1]
        elif first == 0x99:
            name, size, value = "MODE", 2, trace[at + 1]
        elif first == 2:
            if trace.startswith(MAGIC, at):
                name, size, last, header = PSB, 16, 0, True
            else:
                name, size = EXTENDED.get(trace[at + 1], ("", 0))
                payload = int.from_bytes(trace[at + 2 : at + size], "little")
                value = payload.bit_length() - 1 if name == TNT else payload
                header = header and name not in ("PSBEND", OVF)
        elif first & 1 == 0:
            name, value = TNT, (first >> 1).bit_length() - 1
        elif first & 0x1F in ADDRESSED:
            name, kind = ADDRESSED[first & 0x1F], first >> 5
            size = 1 + SIZES[kind]
            if size > 1:
                value = last = _address(kind, int.from_bytes(trace[at + 1 : at + size], "little"), last)
        if not name:
            raise Damaged(at)
        if at + size > end:
            break
        found.append(Packet(name, at, size, value, header))
        at += size
    return found


class _Line:
    """A clock that continues from a known TSC by counting cycles."""

    def __init__(self, nominal: int) -> None:
        self.nominal, self.ratio = nominal, 0
        self.tsc: int | None = None
        self.cycles = 0
        self.ctc: tuple[int, int] | None = None

    def ticks(self, cycles: int) -> int:
        return cycles * self.nominal // (self.ratio or self.nominal)


def times(
    found: list[Packet], nominal: int, tsc_ctc: tuple[int, int] = (0, 0), mtc: int | None = None
) -> list[int | None]:
    """TSC at each packet; None before the first packet with a TSC."""
    at: list[int | None] = []
    line = _Line(nominal)
    #: Cycles up to each packet since the last one that told a TSC, or since the frequency changed.
    counts: list[int] = []
    #: Where the last one that told a TSC is; whether frequency and losses between forbid to spread cycles up to the next.
    begin, plain = 0, False

    def close(to: int | None) -> None:
        """Times of what came since: up to the TSC of the next packet that tells one, if that is known."""
        if line.tsc is None:
            at.extend([None] * len(counts))
            return
        by_cbr, near = line.ticks(line.cycles), False
        if to is not None and not plain and line.cycles:
            ticks = max(to - line.tsc, 0)
            near = abs(ticks - by_cbr) <= by_cbr // STEP
            by_cbr = ticks if near else by_cbr
        exact = to is not None and not plain and line.cycles
        for cycles in counts:
            at.append(line.tsc + (cycles * by_cbr // line.cycles if exact else line.ticks(cycles)))
        if to is not None:
            for n in range(begin, len(at)):
                at[n] = min(at[n], to) if at[n] is not None else None

    for packet in found:
        if packet.name == "CYC":
            line.cycles += packet.value or 0
        elif packet.name == "CBR" and line.ratio and line.cycles and line.ratio != packet.value & 0xFF:
            close(None)
            if line.tsc is not None:
                line.tsc += line.ticks(line.cycles)
            line.cycles, counts, plain, line.ratio = 0, [], True, packet.value & 0xFF
        elif packet.name == "CBR":
            line.ratio = packet.value & 0xFF
        elif packet.name == OVF:
            # The lost part had cycles of its own.
            plain = True
        elif packet.name == "TMA" and line.tsc is not None:
            fast = packet.value >> 24 & 0x1FF
            line.ctc = (packet.value & 0xFFFF, line.tsc - fast)
        told = None
        if packet.name == "TSC":
            told = packet.value
        elif packet.name == "MTC" and mtc is not None and line.ctc and tsc_ctc[1]:
            ctc, tsc = line.ctc
            ticks = ((packet.value << mtc) - ctc) & ((1 << min(mtc + 8, 16)) - 1)  # TMA has 16 bits
            told = tsc + ticks * tsc_ctc[0] // tsc_ctc[1]
            line.ctc = ((ctc + ticks) & 0xFFFF, told)
        if told is not None:
            close(told)
            line.tsc, line.cycles, counts, plain, begin = told, 0, [], False, len(at)
            if packet.name == "TSC":
                line.ctc = None
        counts.append(line.cycles)
    close(None)
    return at
