# SPDX-License-Identifier: GPL-2.0-only
"""Which reads are one record of TLS, from their lengths and times: no payload is needed.

OpenSSL reads the five bytes of a record's header, and then the rest of the record. So a request that came in one record takes two
reads, and is as certain as a request of another protocol that took one. A program that takes five bytes although more were there
takes a header: one that reads lines or messages takes what is there. A connection counts as TLS if almost all of its turns (what
was received between two sends) begin like this.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .rows import I64, Rows

Bool = npt.NDArray[np.bool_]

_HEADER = 5
#: The rest of a record: ChangeCipherSpec is one byte, an alert two. What is encrypted has a tag of at least 16 bytes, and from TLS 1.3 on
#: a type. RFC 8446, section 5.2, and RFC 5246, section 6.2.3: at most 2^14 bytes and what encryption adds.
_CHANGE_CIPHER, _ALERT, _ENCRYPTED, _MOST = 1, 2, 17, (1 << 14) + 2048
#: Of ten turns, how many must look like records. The others may lack a lost event.
_OF_TEN = 9


def pieces(rows: Rows, is_plain: Bool) -> tuple[I64, Bool]:
    """By row (in order of connection and time), ``(counts, in_handshake)``.

    ``counts``: 1 for a call that may be a request or reply of its own, and for the first read of a record; 0 for every other read of a
    record, and for a record of ChangeCipherSpec. At least one row of a turn counts. ``in_handshake``: it belongs to the turns before the
    first encrypted data, whose records are no requests. ``is_plain``: rows to look at; the others are not of TCP, or framed.
    """
    n = len(rows)
    counts, in_handshake = np.ones(n, np.int64), np.zeros(n, bool)
    nbytes = rows["nbytes"]
    if not (is_plain & (rows["tx"] == 0) & (nbytes == _HEADER)).any():
        return counts, in_handshake
    conn, received = rows["conn_id"], rows["tx"] == 0
    begins = np.append(True, (conn[1:] != conn[:-1]) | (received[1:] != received[:-1]))
    turn = np.cumsum(begins) - 1
    follows = np.append(~begins[1:], False)
    after = np.append(nbytes[1:], 0)
    fits = (after == _CHANGE_CIPHER) | (after == _ALERT) | (after >= _ENCRYPTED)
    was_there = np.append(rows["first_ns"][1:], 0) <= rows["at_ns"]
    header = is_plain & received & (nbytes == _HEADER) & follows & fits
    start = np.flatnonzero(begins)
    # Every read of the turn belongs to the record whose header was read before it.
    record = np.cumsum(header | begins)
    of_record = np.bincount(record, nbytes, minlength=int(record[-1]) + 1)
    regular = header[start] & was_there[start]
    regular &= np.maximum.reduceat(of_record[record], start) <= _HEADER + _MOST
    is_tls = _mostly(conn[start], regular, received[start] & is_plain[start])
    told = (is_tls & regular)[turn] & received
    counts[told] = header[told]
    change = told & header & (after == _CHANGE_CIPHER)
    counts[change] = 0
    # A turn with nothing but ChangeCipherSpec is still one.
    counts[start] = np.maximum(counts[start], np.add.reduceat(counts, start) == 0)
    last = np.full(int(conn.max()) + 1, -1)
    np.maximum.at(last, conn[change], turn[change])
    return counts, turn <= last[conn]


def _mostly(conn: I64, regular: Bool, asked: Bool) -> Bool:
    """By turn, whether its connection's turns (those that are ``asked`` for) are ``regular``.

    The first one may be of a protocol that changes to TLS, or begin inside a record; the last one may be cut off.
    """
    size = int(conn.max()) + 1
    place = np.arange(len(conn))
    first, last = np.full(size, len(conn)), np.full(size, -1)
    np.minimum.at(first, conn[asked], place[asked])
    np.maximum.at(last, conn[asked], place[asked])
    inner = asked & (regular | ((place != first[conn]) & (place != last[conn])))
    good, of = (np.bincount(conn[rows], minlength=size) for rows in (inner & regular, inner))
    return ((good > 0) & (10 * good >= _OF_TEN * of))[conn]
