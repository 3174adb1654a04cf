# SPDX-License-Identifier: GPL-2.0-only
"""Lines of events.tsv with a whole message: a read or a send, its first packet, and its hand-off.

Each is split into the events that the probes saw, so that later steps handle only events.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..losses import Ledger
from ..tables.external_sort import Rows
from . import event_fields as fields
from .event_fields import Numbers, Words

#: Columns of the line; Documentation/formats.md describes them.
COLUMNS = [
    "kind", "ts", "cores", "thread", "comm0", "comm1", "fd", "call_ts", "sk", "socket", "laddr_hi", "laddr_lo",
    "raddr_hi", "raddr_lo", "ports", "seq", "len", "p_ts", "p_range", "p_hw", "p_sw", "p_aux", "h_ts", "p_laddr_hi",
    "p_laddr_lo", "p_raddr_hi", "p_raddr_lo", "p_peer",
]  # fmt: skip
#: Hexadecimal columns.
HEX = (
    "cores", "thread", "comm0", "comm1", "sk", "socket", "laddr_hi", "laddr_lo", "raddr_hi", "raddr_lo", "ports",
    "p_laddr_hi", "p_laddr_lo", "p_raddr_hi", "p_raddr_lo", "p_peer",
)  # fmt: skip
#: Maximum number of events in a line.
N_EVENTS = 3


def decode(table: pa.Table, words: Words, first: int, ledger: Ledger) -> Rows:
    """The events of a table of lines (``COLUMNS``), in the order of the lines; ``first``: the number of the first.

    A line with impossible timestamps (packet or hand-off after the message itself) is left out and entered as a loss.
    """
    line = fields.numbers_of_text(table, HEX)
    line["kind"] = fields.letters(table["kind"], words)
    known = {letter: words.of("kind").setdefault(letter, len(words.of("kind"))) for letter in "AHRSX"}
    is_read, is_send = line["kind"] == known["R"], line["kind"] == known["S"]
    good = (is_read | is_send) & (line["p_ts"] <= line["ts"]) & (line["h_ts"] <= line["ts"])
    ledger.add("message_lines_impossible", int(np.count_nonzero(~good)))
    line = {name: values[good] for name, values in line.items()}
    is_read = is_read[good]
    main = _main(line, words)
    packet = line["p_ts"] != 0
    handed = (line["h_ts"] != 0) & is_read
    parts = [
        (_packet(line, main, np.where(is_read, known["A"], known["X"]), is_read), packet, 0),
        (_hand_off(line, main, known["H"]), handed, 1),
        (main, np.ones(len(is_read), bool), 2),
    ]
    place = np.concatenate([np.flatnonzero(use) * N_EVENTS + rank for _, use, rank in parts])
    order = np.argsort(place, kind="stable")
    numbers = {name: np.concatenate([p[name][use] for p, use, _ in parts])[order] for name in main}
    rows = fields.decode(numbers, words, 0, ledger)
    rows["number"] = first + place[order][rows["number"]]
    return rows


def _main(line: Numbers, words: Words) -> Numbers:
    """The read or the send itself."""
    none = np.zeros(len(line["ts"]), np.int64)
    own = {name: line[name] for name in ("kind", "ts", "fd", "call_ts", "sk", "seq", "len")}
    own |= {name: line[name] for name in ("laddr_hi", "laddr_lo", "raddr_hi", "raddr_lo")}
    own |= {"cpu": _bits(line["cores"], 0, 16), "pid": _bits(line["thread"], 32, 32)}
    own |= {"tid": _bits(line["thread"], 0, 32), "netns": _bits(line["socket"], 16, 32)}
    own |= {"proto": _bits(line["socket"], 8, 8), "family": _bits(line["socket"], 0, 8)}
    own |= {"lport": _bits(line["ports"], 16, 16), "rport": _bits(line["ports"], 0, 16)}
    own |= {"hwstamp": none, "swstamp": none, "aux": none}
    own["comm"] = fields.names(line["comm0"], line["comm1"], words)
    return own


def _packet(line: Numbers, main: Numbers, kind: fields.I64, is_read: fields.Bool) -> Numbers:
    """Arrival of the first packet of a read, or its hand-over to the driver for a send.

    A datagram's line has the packet's own addresses, because its socket may have none.
    """
    reach = line["p_range"].view(np.uint64)
    length = _bits(reach, 0, 32)
    tcp = main["proto"] == 6
    packet = dict(main)
    packet |= {"kind": kind, "ts": line["p_ts"], "cpu": _bits(line["cores"], 16, 16)}
    packet |= {"hwstamp": line["p_hw"], "swstamp": line["p_sw"], "aux": line["p_aux"], "len": length}
    packet["seq"] = np.where(tcp, (_bits(reach, 32, 32) - length) & 0xFFFFFFFF, 0)
    packet["fd"], packet["call_ts"] = np.full(len(length), -1), np.zeros(len(length), np.int64)
    packet["sk"] = np.where(is_read, np.uint64(0), main["sk"])
    for name in ("pid", "tid"):
        # A packet that leaves in the call belongs to the thread; one that arrives belongs to no thread.
        packet[name] = np.where(is_read, 0, main[name])
    for name in ("laddr_hi", "laddr_lo", "raddr_hi", "raddr_lo"):
        packet[name] = np.where(tcp, main[name], line["p_" + name])
    packet["family"] = np.where(tcp, main["family"], _bits(line["p_peer"], 16, 16))
    packet["rport"] = np.where(tcp, main["rport"], _bits(line["p_peer"], 0, 16))
    return packet


def _hand_off(line: Numbers, main: Numbers, kind: int) -> Numbers:
    """Hand-off of the packet with the first byte: it extends to the end of that packet, or of the read."""
    none = np.zeros(len(line["ts"]), np.int64)
    handed = dict(main)
    handed |= {"kind": np.full(len(none), kind), "ts": line["h_ts"], "cpu": _bits(line["cores"], 32, 16)}
    handed |= dict.fromkeys(("pid", "tid", "call_ts", "len"), none)
    handed["fd"] = np.full(len(none), -1)
    ends = np.where(
        line["p_ts"] != 0, _bits(line["p_range"].view(np.uint64), 32, 32), main["seq"] + main["len"]
    )
    handed["seq"] = np.where(main["proto"] == 6, ends & 0xFFFFFFFF, 0)
    return handed


def _bits(word: fields.U64, shift: int, n: int) -> fields.I64:
    """``n`` of the 64 bits, from ``shift`` on, as signed integers."""
    found = (word >> np.uint64(shift)) & np.uint64((1 << n) - 1)
    return found.astype(np.int64)
