# SPDX-License-Identifier: GPL-2.0-only
"""Addresses of sockets from a list that ``ss -tunae`` printed while perf recorded.

The tracepoints give a socket's cookie and ports, and the list has the cookie (``sk:``, in hexadecimal) beside the addresses.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import BadInput

I64 = npt.NDArray[np.int64]

_MAX_BYTES = 64 << 20  # a million sockets take half of it
# Two endpoints with ports among the columns, and the cookie somewhere after them.
_END = r"(\[[0-9a-f:.]+\]|[0-9.]+|\*)(?:%[\w.@-]+)?:(\d+|\*)"
_LINE = re.compile(rf"\s{_END}\s+{_END}\s(?:.*\s)?sk:([0-9a-f]{{1,16}})(?:\s|$)")
_HINT = "give what ss -tunae printed, or record tcp:tcp_rcv_space_adjust instead"


def load(paths: Iterable[Path]) -> tuple[I64, npt.NDArray[np.uint64]]:
    """Cookies, and four words for each as in events.tsv: local, remote address.

    Listening and unconnected sockets are left out: they have no peer. Raises BadInput for a file that lists no sockets.
    """
    cookies: list[int] = []
    words: list[tuple[int, ...]] = []
    for path in paths:
        text = _read(path)
        n_before = len(cookies)
        n_sockets = 0
        for line in text.splitlines():
            match = _LINE.search(line)
            n_sockets += match is not None
            if match and match[4] not in ("*", "0"):
                cookie = int(match[5], 16)
                cookies.append(cookie - (1 << 64 if cookie >> 63 else 0))
                words.append((*_words(match[1]), *_words(match[3])))
        if not n_sockets and len(cookies) == n_before:
            raise BadInput(f"{path}: no socket with its cookie (sk:) in it", _HINT)
    return np.array(cookies, np.int64), np.array(words, np.uint64).reshape(-1, 4)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", _HINT) from None
    if len(data) > _MAX_BYTES:
        raise BadInput(f"{path}: larger than {_MAX_BYTES >> 20} MiB, no list of sockets", _HINT)
    return data.decode("ascii", "replace")


def _words(text: str) -> tuple[int, int]:
    """An address as two words that a little-endian machine loads, an IPv4 address mapped; 0, 0: none.

    >>> [hex(word) for word in _words("10.0.0.1")]
    ['0x0', '0x100000affff0000']
    """
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return 0, 0
    packed = address.packed
    if address.version == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    first, second = struct.unpack("<QQ", packed)
    return int(first), int(second)
