# SPDX-License-Identifier: GPL-2.0-only
"""Packets as a processor writes them: TNT bits wait for each other, TIPs wait for TNT bits, and CYC precedes the packet that it times.

Quoted sections are from the Intel SDM, volume 3, chapter "Intel Processor Trace". Recordings of processors also show: no CYC
directly before a FUP (CYC does not time it), but before the TIP or TIP.PGD after it; TNT after TIP or MTC without CYC if both
are in the same cycle; CYC between PSB and TSC.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from decode import packets as pt

NOMINAL = pt.RATIO
#: Offset of the packet of a branch or event, in a list that is filled when the packet is written.
Slot = list[int]


@dataclass(frozen=True)
class Options:
    """How a recording is made.

    ``mtc``: shift of the MTC period, in ticks of CTC; None without. ``threshold``: cycles below which no CYC is written.
    ``deferred``: TIPs may wait ("Deferred TIPs"). ``events``: PTWRITE, power, TSX, VMCS and event trace packets.
    """

    cyc: bool = True
    threshold: int = 1
    mtc: int | None = None
    tsc_ctc: tuple[int, int] = (84, 2)
    compressed: bool = True
    long_tnt: bool = False
    deferred: bool = False
    events: bool = True
    overflows: bool = True
    user_only: bool = False
    filters: bool = True
    frequencies: bool = True


class Encoder:
    """Writes packets; ``tsc`` is the time."""

    def __init__(self, options: Options, rng: Random, tsc: int) -> None:
        self.options, self.rng, self.tsc = options, rng, tsc
        self.out = bytearray()
        self.ratio = NOMINAL
        self.owed = 0  # cycles since the last CYC, times NOMINAL
        self.last_ip = 0
        self.whole = False  # the next address is
        self.bits: list[tuple[bool, Slot]] = []
        self.tips: list[tuple[int, Slot]] = []

    # Time

    def ctc(self) -> int:
        return self.tsc * self.options.tsc_ctc[1] // self.options.tsc_ctc[0]

    def advance(self, ticks: int, *, quiet: bool = False) -> None:
        """Time passes while instructions execute. ``quiet``: packets are lost."""
        if self.options.mtc is None or quiet:
            self.tsc += ticks
            self.owed += ticks * self.ratio
            return
        end, (of, by), shift = self.tsc + ticks, self.options.tsc_ctc, self.options.mtc
        while True:
            count = (self.ctc() >> shift) + 1
            at = -(-(count << shift) * of // by)  # the first tick with that count
            if at > end:
                break
            self.owed += (at - self.tsc) * self.ratio
            self.tsc = at
            self.stamp()
            self.out += bytes([0x59, count & 0xFF])
        self.owed += (end - self.tsc) * self.ratio
        self.tsc = end

    def sleep(self, ticks: int) -> None:
        """Time passes without cycles and MTC ("C-states")."""
        self.tsc += ticks

    def stamp(self) -> None:
        """CYC, if there were enough cycles ("CYC: Dependencies")."""
        cycles = self.owed // NOMINAL
        if not self.options.cyc or cycles < self.options.threshold:
            return
        self.owed -= cycles * NOMINAL
        first = (cycles & 31) << 3 | 3
        rest = cycles >> 5
        self.out.append(first | (4 if rest else 0))
        while rest:
            self.out.append((rest & 127) << 1 | (1 if rest >> 7 else 0))
            rest >>= 7

    def tell_time(self) -> None:
        """TSC, followed by TMA ("TMA: Generation Scenario")."""
        self.stamp()
        self.out += pt.tsc(self.tsc)
        if self.options.mtc is not None:
            of, by = self.options.tsc_ctc
            ctc = self.ctc()
            fast = self.tsc - -(-ctc * of // by)
            self.out += (
                b"\x02\x73" + (ctc & 0xFFFF).to_bytes(2, "little") + b"\0" + fast.to_bytes(2, "little")
            )

    def frequency(self, ratio: int) -> None:
        """CBR; earlier cycles have the previous frequency."""
        self.stamp()
        self.out += bytes([2, 3, ratio, 0])
        self.ratio = ratio

    # Packets with an address

    def address(self, kind: int, ip: int | None) -> int:
        """TIP or a related packet, in the shortest form or a longer one ("IP Compression"); returns its offset."""
        at = len(self.out)
        if ip is None:
            self.out.append(kind)
            return at
        changed = ip ^ self.last_ip
        forms = [(6, 8), (3, 6)]
        if not self.whole:
            forms += [(2, 4)] if changed >> 32 == 0 else []
            forms += [(1, 2)] if changed >> 16 == 0 else []
        form, n = forms[-1] if self.rng.random() < 0.95 else self.rng.choice(forms)
        self.out += bytes([form << 5 | kind]) + (ip & ((1 << 8 * n) - 1)).to_bytes(n, "little")
        self.last_ip, self.whole = ip, False
        return at

    def event(self, kind: int, ip: int | None) -> Slot:
        """TIP.PGE, TIP.PGD or the TIP of an interrupt."""
        self.stamp()
        return [self.address(kind, ip)]

    def fup(self, ip: int) -> int:
        return self.address(0x1D, ip)

    # Branches

    def bit(self, taken: bool, slot: Slot) -> None:
        """A conditional branch or compressed return."""
        self.bits.append((taken, slot))
        if len(self.bits) >= (47 if self.options.long_tnt else 6):
            self.flush()

    def tip(self, ip: int, slot: Slot) -> None:
        """An indirect branch."""
        self.tips.append((ip, slot))
        # "Deferred TIPs": the TIP waits until the TNT is full or another packet must be written.
        if not (self.options.deferred and self.bits and self.rng.random() < 0.7):
            self.flush()

    def flush(self) -> None:
        """TNT, then the TIPs that waited."""
        if self.bits:
            self.stamp()
            n, payload = len(self.bits), 1
            for taken, slot in self.bits:
                payload = payload << 1 | taken
                slot.append(len(self.out))
            if n > 6 or (self.options.long_tnt and self.rng.random() < 0.3):
                self.out += b"\x02\xa3" + payload.to_bytes(6, "little")
            else:
                self.out.append(payload << 1)
            self.bits = []
        for ip, slot in self.tips:
            self.stamp()
            slot.append(self.address(0x0D, ip))
        self.tips = []

    def drop(self) -> None:
        """Waiting packets are lost."""
        self.bits, self.tips = [], []

    # Groups

    def psb(self, ip: int | None, *, tsx: bool | None = None) -> None:
        """PSB+ ("PSB+"): its packets may come in any order, except TSC and TMA. ``ip``: None if tracing is off."""
        rng = self.rng
        self.flush()
        self.stamp()
        self.out += b"\x02\x82" * 8
        self.last_ip, self.whole = 0, True
        groups = [
            self.tell_time,
            lambda: self._raw(bytes([2, 3, self.ratio, 0])),
            lambda: self._raw(b"\x99\x01"),
        ]
        if self.options.events and rng.random() < 0.3:
            groups.append(lambda: self._raw(b"\x02\xc8\x01\0\0\0\0"))
        if tsx is not None:
            groups.append(lambda: self._raw(bytes([0x99, 0x20 | tsx])))
        if rng.random() < 0.5:
            rng.shuffle(groups)
        if rng.random() < 0.2:
            self.out += bytes(rng.randrange(4))
        for group in groups:
            group()
        if ip is not None:
            self.fup(ip)
        self.out += pt.PSBEND

    def _raw(self, packet: bytes) -> None:
        self.out += packet

    def timed(self, packet: bytes) -> None:
        """A packet that is preceded by CYC."""
        self.stamp()
        self.out += packet
