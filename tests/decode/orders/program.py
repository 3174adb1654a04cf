# SPDX-License-Identifier: GPL-2.0-only
"""A small program with every kind of transfer, and a description of its instructions.

Calls only lead downwards (main, outer, middle, leaf), so that no walk nests without end. A system call or ``int`` leads to ``entry``,
an interrupt leads to ``handler``; both call ``below``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BASE = 0x401000

# What an instruction does.
NONE, JCC, JMP, CALL, ICALL, IJMP, RET, SYSCALL, SYSRET, INT, IRET, PTWRITE, MWAIT, MOV_CR3, VMPTRLD = range(
    15
)

#: Kind, bytes without displacement, bytes of displacement.
FORMS = {
    "nop": (NONE, "90", 0),
    "add": (NONE, "4801d8", 0),
    "jne": (JCC, "75", 1),
    "jne32": (JCC, "0f85", 4),
    "jmp": (JMP, "eb", 1),
    "jmp32": (JMP, "e9", 4),
    "call": (CALL, "e8", 4),
    "call*": (ICALL, "ffd0", 0),
    "jmp*": (IJMP, "ffe0", 0),
    "ret": (RET, "c3", 0),
    "syscall": (SYSCALL, "0f05", 0),
    "sysret": (SYSRET, "480f07", 0),
    "int": (INT, "cd80", 0),
    "iret": (IRET, "48cf", 0),
    "ptwrite": (PTWRITE, "f3480faee0", 0),
    "mwait": (MWAIT, "0f01c9", 0),
    "mov cr3": (MOV_CR3, "0f22d8", 0),
    "vmptrld": (VMPTRLD, "0fc730", 0),
}

#: Functions, each a list of ``label:``, or instruction and where it may lead.
SOURCE = {
    "main": """
        loop: add
        jne skip
        call outer
        skip: call* outer middle leaf
        ptwrite
        jne32 loop
        jmp* first second third
        first: syscall
        nop
        jmp third
        second: int
        add
        third: call middle
        call leaf
        jne loop
        call* outer
        jmp loop
    """,
    "outer": """
        jne over
        call middle
        add
        over: call* middle leaf
        jne over
        call leaf
        jmp32 middle
    """,
    "middle": """
        again: add
        jne again
        call leaf
        ptwrite
        jmp* half whole
        whole: call* leaf
        half: jne again
        ret
    """,
    "leaf": """
        nop
        jne out
        turn: add
        jne turn
        out: ret
    """,
    "entry": """
        add
        mov cr3
        jne no
        call below
        no: vmptrld
        mwait
        call* below
        jne32 no
        sysret
    """,
    "handler": """
        call below
        jne fast
        add
        call* below
        fast: iret
    """,
    "below": """
        jne end
        nop
        end: ret
    """,
    "soft": """
        nop
        call below
        iret
    """,
}


@dataclass(frozen=True)
class Insn:
    """One instruction. ``targets``: where it may lead, a branch not taken aside."""

    at: int
    kind: int
    next: int
    targets: tuple[int, ...]


@dataclass
class Program:
    """``insns`` by address; ``functions``: name, begin, end."""

    code: bytes
    insns: dict[int, Insn]
    functions: list[tuple[str, int, int]]
    starts: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.starts = {begin: name for name, begin, _ in self.functions}
        self._of = {at: name for name, begin, end in self.functions for at in range(begin, end)}

    def function(self, ip: int) -> str:
        """Name of the function that contains an address."""
        return self._of[ip]

    def start(self, name: str) -> int:
        """Where a function begins."""
        return next(begin for found, begin, _ in self.functions if found == name)


def _lines() -> list[tuple[str, list[str], str, list[str]]]:
    """(function, its labels here, mnemonic, operands)"""
    found = []
    for function, text in SOURCE.items():
        for line in text.strip().splitlines():
            words = line.split()
            labels = [words.pop(0)[:-1]] if words[0].endswith(":") else []
            mnemonic = "mov cr3" if words[:2] == ["mov", "cr3"] else words[0]
            found.append((function, labels, mnemonic, words[len(mnemonic.split()) :]))
    return found


def build() -> Program:
    """The program, with its functions aligned to 16 bytes."""
    at, names, places, functions = BASE, {}, [], {}
    for function, labels, mnemonic, operands in _lines():
        if function not in functions:
            at = (at + 15) & ~15
            functions[function] = [at, at]
            names[function] = at
        _, opcode, width = FORMS[mnemonic]
        names |= {f"{function}.{label}": at for label in labels}
        size = len(opcode) // 2 + width
        places.append((function, at, mnemonic, operands, size))
        at += size
        functions[function][1] = at
    code = bytearray(at - BASE)
    insns = {}
    for function, begin, mnemonic, operands, size in places:
        kind, opcode, width = FORMS[mnemonic]
        end = begin + size
        targets = tuple(names.get(f"{function}.{name}", names.get(name, 0)) for name in operands)
        targets = {SYSCALL: (names["entry"],), INT: (names["soft"],)}.get(kind, targets)
        content = bytes.fromhex(opcode)
        content += (targets[0] - end).to_bytes(width, "little", signed=True) if width else b""
        code[begin - BASE : end - BASE] = content
        insns[begin] = Insn(begin, kind, end, targets)
    return Program(bytes(code), insns, [(name, begin, end) for name, (begin, end) in functions.items()])
