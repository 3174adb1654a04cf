# SPDX-License-Identifier: GPL-2.0-only
"""Message boundaries that nsight-framing found in captured packets."""

from __future__ import annotations

import ipaddress
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ..capture import native
from ..errors import BadInput, OutputError
from ..losses import Ledger
from .columns import I64, NONE

_NO_LOSSES = ("packets", "other_packets", "hole_bytes", "duplicate_bytes")
_FIELDS = ("kind", "a", "b", "c", "d", "e", "f", "g")


@dataclass(frozen=True)
class Frames:
    """One row per framed message: byte range ``[offset, offset + length)`` of ``stream``; ``nbytes`` excludes other messages' frames.

    HTTP/2 messages overlap; ``key`` is the number of the message's stream in the protocol, NONE for other protocols.
    ``type``: index into ``types``. Per stream (one direction of one TCP connection): ``source`` and ``target`` as
    (address, port), ``base``: the 32-bit sequence number of its byte 0.
    """

    stream: I64
    offset: I64
    length: I64
    nbytes: I64
    key: I64
    type: I64
    types: list[str]
    source: list[tuple[str, int]]
    target: list[tuple[str, int]]
    base: I64


def load(payload: Path, protocol: str, ledger: Ledger) -> Frames:
    """Frame the packets of ``payload`` (pcap) as ``protocol``. Raises BadInput when it is no pcap file."""
    try:
        size = payload.stat().st_size
        with tempfile.TemporaryFile() as out:
            native.run("nsight-framing", [protocol, str(payload)], size, out)
            out.seek(0)
            return _parse(out.fileno(), payload, ledger)
    except OSError as error:
        raise OutputError(
            f"{payload}: {error.strerror}", "is there space in the temporary directory?"
        ) from error


def _parse(descriptor: int, payload: Path, ledger: Ledger) -> Frames:
    with os.fdopen(os.dup(descriptor), "rb") as out:
        try:
            table = pyarrow.csv.read_csv(
                out,
                read_options=pyarrow.csv.ReadOptions(column_names=_FIELDS),
                parse_options=pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
                convert_options=pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(_FIELDS, pa.string())),
            )
        except pa.ArrowInvalid as error:
            raise BadInput(
                f"{payload}: framing gave nothing usable: {error}", "record again with --payload"
            ) from None
    kind = table["kind"]
    if not table.num_rows or kind[-1].as_py() != "E":
        raise BadInput(
            f"{payload}: framing was cut short", "run again; is there space in the temporary directory?"
        )
    counts = table.filter(pc.equal(kind, "L")).to_pylist()  # about a dozen rows
    ledger.counted("framing_", {row["a"]: int(row["b"]) for row in counts}, but=_NO_LOSSES)
    streams = table.filter(pc.equal(kind, "C")).to_pydict()
    messages = table.filter(pc.equal(kind, "M"))
    types = messages["d"].combine_chunks().dictionary_encode()
    number = {int(name): i for i, name in enumerate(streams["a"])}
    known = np.full(max(number, default=0) + 1, -1)
    known[list(number)] = list(number.values())
    return Frames(
        known[_integers(messages["a"])],
        _integers(messages["b"]),
        _integers(messages["c"]),
        _integers(messages["f"]),
        np.where(_integers(messages["e"]) > 0, _integers(messages["e"]), NONE),
        types.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        types.dictionary.to_pylist(),
        _endpoints(streams["b"], streams["c"]),
        _endpoints(streams["d"], streams["e"]),
        np.array([int(base) for base in streams["f"]], np.int64),
    )


def _integers(column: pa.ChunkedArray) -> I64:
    values: I64 = column.cast(pa.int64()).to_numpy()
    return values


def _endpoints(addresses: list[str], ports: list[str]) -> list[tuple[str, int]]:
    text = {a: _address(a) for a in set(addresses)}
    return [(text[a], int(port)) for a, port in zip(addresses, ports)]


def _address(text: str) -> str:
    """As in table ``events``: IPv4-mapped addresses become IPv4."""
    address = ipaddress.ip_address(bytes.fromhex(text))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
