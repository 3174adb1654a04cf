# SPDX-License-Identifier: GPL-2.0-only
"""Random walks of the program, each with its packets and their meaning."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from decode import packets as pt
from decode.orders import program as prog
from decode.orders.encoder import Encoder, Options, Slot
from decode.parity import BEGIN, CALL, END, INTERRUPT, IRET, RETURN, SOFT, SYSCALL, SYSRET, TAIL

TIP, PGE, PGD = 0x0D, 0x11, 0x01
#: Entries of the return stack ("Indirect Transfer Compression for Returns").
DEPTH = 64
BRANCH, OVERFLOW = 0, -1
ABORT, DIRECT = 1, 2
PROGRAM = prog.build()
KERNEL = PROGRAM.start("entry")
FAR = {prog.SYSCALL: SYSCALL, prog.SYSRET: SYSRET, prog.INT: SOFT, prog.IRET: IRET}


@dataclass(slots=True)
class Step:
    """A branch or event in order of execution. ``kind``: of an edge, BRANCH if it is no edge, or OVERFLOW.

    ``slot``: offset of its packet; None if it needs no packet, empty if the packet was lost. ``to`` of an overflow: 1 without a FUP.
    """

    kind: int
    start: int
    to: int
    slot: Slot | None
    #: perf has another row: none for an abort, and the branch itself for a direct branch out of the filter.
    special: int = 0


@dataclass
class Sequence:
    """``trace`` begins at a PSB and ends with tracing off; ``begin`` to ``end``: TSC."""

    seed: int
    trace: bytes
    steps: list[Step]
    begin: int
    end: int


@dataclass
class Walk:
    """One sequence in the making."""

    options: Options
    rng: Random
    encoder: Encoder
    ip: int = PROGRAM.start("main")
    #: Return addresses, and the addresses for which the processor would compress returns.
    frames: list[int] = field(default_factory=list)
    returns: deque[int] = field(default_factory=lambda: deque(maxlen=DEPTH))
    steps: list[Step] = field(default_factory=list)
    on: bool = False
    transaction: bool = False
    interrupted: int = 0

    def traced(self, ip: int) -> bool:
        return ip < KERNEL or not self.options.user_only

    # Tracing on and off

    def begin(self) -> None:
        """TIP.PGE; MODE.Exec before it if the processor has not recorded the mode yet."""
        e, rng = self.encoder, self.rng
        if rng.random() < 0.3:
            e.tell_time()
        if rng.random() < 0.5:
            e.timed(b"\x99\x01")
        self.steps.append(Step(BEGIN, 0, self.ip, e.event(PGE, self.ip)))
        self.on = True

    def end(self, start: int, to: int | None) -> None:
        """TIP.PGD, after a FUP or a branch."""
        self.steps.append(Step(END, start, to or 0, self.encoder.event(PGD, to)))
        self.returns.clear()
        self.on = self.transaction = False

    def stop(self) -> None:
        """Tracing is switched off between two instructions."""
        self.encoder.flush()
        self.encoder.fup(self.ip)
        self.encoder.advance(self.rng.choice((0, 0, 3)))
        self.end(self.ip, None)

    def unseen(self) -> None:
        """Instructions without packets, up to one that may be traced."""
        n = self.rng.randrange(1, 8)
        while n > 0 or not self.traced(self.ip):
            n -= 1
            self.encoder.advance(self.rng.choice((1, 5, 20, 300)))
            self.step()

    # Instructions

    def step(self) -> None:
        """Executes one instruction."""
        rng, insn = self.rng, PROGRAM.insns[self.ip]
        kind, at = insn.kind, self.ip
        if kind in (prog.NONE, prog.PTWRITE, prog.MWAIT, prog.MOV_CR3, prog.VMPTRLD):
            if self.on and self.options.events and kind != prog.NONE:
                self.told_by(kind)
            self.ip = insn.next
        elif kind == prog.JCC:
            taken = rng.random() < 0.5
            self.ip = insn.targets[0] if taken else insn.next
            if self.on:
                slot: Slot = []
                self.steps.append(Step(BRANCH, at, self.ip, slot))
                self.encoder.bit(taken, slot)
        else:
            self.transfer(insn)

    def transfer(self, insn: prog.Insn) -> None:
        """Executes a branch that is always taken."""
        kind, at, rng = insn.kind, insn.at, self.rng
        calls = kind in (prog.CALL, prog.ICALL)
        if calls or kind in (prog.SYSCALL, prog.INT):
            self.frames.append(insn.next)
        if kind in (prog.RET, prog.SYSRET, prog.IRET):
            to = self.frames.pop() if self.frames else PROGRAM.start("main")
            self.interrupted -= kind == prog.IRET and self.interrupted > 0
        else:
            to = rng.choice(insn.targets)
        self.ip = to
        if not self.on:
            return
        compressed = False
        if calls:
            self.returns.append(insn.next)
        elif kind == prog.RET:
            compressed = bool(self.returns) and self.returns.pop() == to and self.options.compressed
        e = self.encoder
        if not self.traced(to):
            e.flush()
            self.end(at, None)
            return
        if self.options.filters and kind not in FAR and rng.random() < 0.02:
            # Out of an address range ("Filtering by IP").
            e.flush()
            self.end(at, to)
            self.steps[-1].special = DIRECT if kind in (prog.CALL, prog.JMP) else 0
            return
        edge = FAR.get(kind) or (CALL if calls else RETURN if kind == prog.RET else BRANCH)
        if kind == prog.JMP and to in PROGRAM.starts and PROGRAM.function(at) != PROGRAM.function(to):
            edge = TAIL
        slot: Slot | None = None if kind in (prog.CALL, prog.JMP) else []
        self.steps.append(Step(edge, at, to, slot))
        if slot is None:
            return
        if compressed:
            e.bit(True, slot)
        elif kind in FAR:
            self.far(kind, at, to, slot)
        elif kind == prog.RET:
            # "... uncompressed, in which case there will be no in-progress TNT and thus a TIP should be consumed."
            e.flush()
            e.tip(to, slot)
        else:
            e.tip(to, slot)

    def far(self, kind: int, at: int, to: int, slot: Slot) -> None:
        """A far transfer: packets of its state changes precede its TIP ("Packet Generation Scenarios")."""
        e, rng = self.encoder, self.rng
        e.flush()
        if kind == prog.IRET and self.options.events and rng.random() < 0.3:
            # Event trace: a FUP of its own.
            e.timed(b"\x02\x13\x82\0")
            e.fup(at)
        if rng.random() < 0.3:
            e.timed(pip(rng))
        if rng.random() < 0.3:
            e.timed(b"\x99\x01")
        e.advance(rng.choice((0, 0, 2)))
        slot.extend(e.event(TIP, to))

    def told_by(self, kind: int) -> None:
        """Packets of instructions that write packets themselves."""
        e, rng, ip = self.encoder, self.rng, self.ip
        if kind == prog.MWAIT and rng.random() < 0.5:
            e.flush()
            self.power(ip)
        elif kind == prog.PTWRITE and rng.random() < 0.7:
            e.flush()
            bare = rng.random() < 0.3
            wide = rng.random() < 0.5
            head = 0x12 | (0x20 if wide else 0) | (0 if bare else 0x80)
            e.timed(bytes([2, head]) + rng.randbytes(8 if wide else 4))
            if not bare:
                e.fup(ip)
        elif kind == prog.MOV_CR3:
            e.flush()
            e.timed(pip(rng))
        elif kind == prog.VMPTRLD and rng.random() < 0.5:
            e.flush()
            e.timed(b"\x02\xc8" + rng.randbytes(5))

    def power(self, ip: int) -> None:
        """Into a C-state and out of it; MWAIT, PWRE and EXSTOP share a FUP ("Power Event Tracing")."""
        e, rng = self.encoder, self.rng
        told = rng.random() < 0.6
        if told:
            e.timed(b"\x02\xc2" + bytes(8))
        e.timed(b"\x02\x22\0\x10")
        if told:
            e.timed(b"\x02\xe2")
            e.fup(ip)
        elif rng.random() < 0.5:
            e.timed(b"\x02\x62")
        e.sleep(rng.choice((500, 5_000)))
        e.tell_time()
        e.timed(b"\x02\xa2\x11\0\0\0\0")

    # Between instructions

    def between(self) -> None:
        """Something that happens between two instructions, or nothing."""
        rng, options = self.rng, self.options
        dice = rng.random()
        if dice < 0.05 and self.interrupted < 2:
            self.interrupt()
        elif dice < 0.08:
            self.encoder.psb(self.ip, tsx=self.transaction if rng.random() < 0.3 else None)
            self.returns.clear()
        elif dice < 0.10 and options.overflows:
            self.overflow()
        elif dice < 0.12:
            self.stop()
            self.unseen()
            self.begin()
        elif dice < 0.15 and options.events:
            self.other()
        elif dice < 0.16:
            self.encoder.out += bytes(rng.randrange(1, 9))
        elif dice < 0.17 and options.frequencies:
            self.encoder.frequency(rng.choice((10, 20, 25, 40)))

    def interrupt(self) -> None:
        """FUP and TIP, with what changes between; event trace before them."""
        e, rng, ip = self.encoder, self.rng, self.ip
        handler = PROGRAM.start("handler")
        e.flush()
        abort = self.transaction and rng.random() < 0.7
        if abort:
            # Its TIP leads to the address that the transaction specifies.
            e.timed(b"\x99\x22")
            self.transaction = False
        elif self.options.events and rng.random() < 0.3:
            if rng.random() < 0.5:
                e.timed(b"\x02\x53\0" + rng.randbytes(6) + b"\0\0")
            e.timed(b"\x02\x13\x01\x0e")
        e.fup(ip)
        self.frames.append(ip)
        self.interrupted += 1
        e.advance(rng.choice((0, 0, 1, 40)))
        self.ip = handler
        if not self.traced(handler):
            self.end(ip, None)
            return
        if rng.random() < 0.2:
            e.timed(pip(rng))
        if rng.random() < 0.2:
            e.timed(b"\x99\x01")
        self.steps.append(Step(INTERRUPT, ip, handler, e.event(TIP, handler), ABORT if abort else 0))

    def overflow(self) -> None:
        """Packets are lost for a while ("Overflow (OVF) Packet")."""
        e, rng = self.encoder, self.rng
        if rng.random() < 0.5:
            e.flush()
        e.drop()
        overflow = Step(OVERFLOW, 0, 0, None)
        self.steps.append(overflow)
        self.on = self.transaction = False
        self.returns.clear()
        for _ in range(rng.randrange(1, 12)):
            e.advance(rng.choice((1, 10, 100)), quiet=True)
            self.step()
        while not self.traced(self.ip):
            self.step()
        e.timed(pt.OVF)
        overflow.slot = [len(e.out) - len(pt.OVF)]
        e.whole = True
        if rng.random() < 0.3:
            # No FUP: its own packet shows when it ended.
            overflow.to = 1
            self.unseen()
            if rng.random() < 0.3:
                e.psb(None)
            self.begin()
            return
        if rng.random() < 0.3:
            e.tell_time()
        at = e.fup(self.ip)
        self.steps.append(Step(BEGIN, 0, self.ip, [at]))
        self.on = True
        if rng.random() < 0.3:
            e.psb(self.ip)

    def other(self) -> None:
        """Packets with a FUP of their own, which are no branches."""
        e, rng = self.encoder, self.rng
        e.flush()
        dice = rng.random()
        if dice < 0.5:
            self.transaction = not self.transaction
            e.timed(bytes([0x99, 0x20 | self.transaction]))
            e.fup(self.ip)
        elif dice < 0.7:
            e.timed(b"\x02\xe2")
            e.fup(self.ip)
            e.sleep(700)
            e.tell_time()
        elif dice < 0.85:
            # Event trace: the interrupt flag.
            e.timed(bytes([0x99, 0x01 | rng.choice((0, 4))]))
            e.fup(self.ip)
        else:
            e.timed(b"\x02\x13\x83\0")
            e.fup(self.ip)


def pip(rng: Random) -> bytes:
    """PIP with one of a few CR3."""
    return b"\x02\x43" + (rng.randrange(1, 4) << 12 + 1 - 5).to_bytes(6, "little")


def sequence(seed: int, options: Options, begin: int) -> Sequence:
    """A walk that begins at a TSC."""
    rng = Random(seed)
    encoder = Encoder(options, rng, begin)
    walk = Walk(options, rng, encoder)
    encoder.psb(None)
    for _ in range(rng.randrange(4)):
        walk.step()
    while not walk.traced(walk.ip):
        walk.step()
    walk.begin()
    for _ in range(rng.randrange(10, 100)):
        if not walk.on:
            walk.unseen()
            walk.begin()
        walk.between()
        if walk.on:
            encoder.advance(rng.choice((0, 0, 1, 1, 2, 7, 30, 400)))
            walk.step()
    # So that the sequence itself contains the times of everything before.
    if not walk.on:
        walk.unseen()
        walk.begin()
    encoder.advance(100)
    encoder.psb(walk.ip)
    walk.returns.clear()
    walk.stop()
    return Sequence(seed, bytes(encoder.out), walk.steps, begin, encoder.tsc)
