# SPDX-License-Identifier: GPL-2.0-only
"""The ``events`` table in parts; messages are built one part after the other, so that few events are in memory.

Both directions of TCP between two endpoints are in one part, whatever the namespace, so that nothing of TCP
depends on another part. All datagrams are in the last part: they have no sequence numbers, so events that share a core, a
socket or a peer must share a part.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..tables.store import writing
from .columns import FIELDS, GUEST, NONE, TCP, UDP, Events, Vocabulary

if TYPE_CHECKING:
    from ..tables.intervals import IntervalTable

I64 = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]

#: Average number of events per part, in recordings with enough connections.
PART_ROWS = 1 << 18
_ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104 (no socket is bound here)
_WORD = (1 << 32) - 1


class Numbers:
    """Numbers values by first occurrence, over any number of pieces."""

    def __init__(self) -> None:
        self._of: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self._of)

    def of(self, values: npt.NDArray[Any]) -> I64:
        """The number of each value; new ones are entered."""
        codes, distinct = pd.factorize(values)
        return self._enter(distinct.tolist())[codes]

    def of_texts(self, column: pa.ChunkedArray) -> I64:
        """The same for a dictionary column."""
        array = pa.concat_arrays(column.unify_dictionaries().chunks)
        return self._enter(array.dictionary.to_pylist())[array.indices.to_numpy()]

    def _enter(self, distinct: list[Any]) -> I64:
        return np.array([self._of.setdefault(value, len(self._of)) for value in distinct], np.int64)

    def values(self) -> list[Any]:
        """The numbered values, in the order of their numbers."""
        return list(self._of)


class Parts:
    """The parts of ``events``, written to directory ``scratch``; ``vocabulary``: what the numbers in them stand for."""

    def __init__(self, events: IntervalTable, scratch: Path, only_one: bool = False) -> None:
        self._n_tcp = 1 if only_one else max(1, -(-events.num_rows // PART_ROWS))
        self._path = scratch / "events.parts"
        self._chunks: list[list[tuple[int, int]]] = [[] for _ in range(self._n_tcp + 1)]
        self._kinds, self._comms, self._addresses = Numbers(), Numbers(), Numbers()
        self._namespaces, self._sockets, self._places, self._endpoints = (Numbers() for _ in range(4))
        self._as_local, self._as_remote = Numbers(), Numbers()
        self._pairs, self._ways, self._bases = Numbers(), Numbers(), Numbers()
        datagrams = False
        with writing(self._path), self._path.open("wb") as file:
            for table in events.batches():
                if not table.num_rows:
                    continue
                columns, part = self._numbered(table)
                arrival = columns["kind"] == ord("A")
                datagrams = datagrams or bool((arrival & (columns["proto"] == UDP)).any())
                rows = np.arange(table.num_rows)
                if datagrams:
                    # A TCP arrival ends the handling of the previous datagram on its core.
                    rows = np.sort(np.append(rows, np.flatnonzero(arrival & (part != self._n_tcp))))
                guest = np.diff(rows, prepend=-1) == 0
                part = np.where(guest, self._n_tcp, part[rows])
                order = np.argsort(part.astype(np.uint16), kind="stable")
                columns = {name: values[rows[order]] for name, values in columns.items()}
                columns["kind"][guest[order]] = ord(GUEST)
                self._write(file, part[order], columns)
        self.vocabulary = self._vocabulary()

    def tcp(self) -> list[int]:
        """Numbers of the parts that contain events of TCP connections."""
        return [part for part in range(self._n_tcp) if self._chunks[part]]

    def others(self) -> int:
        """Number of the part with datagrams and the TCP arrivals (kind GUEST) beside them."""
        return self._n_tcp

    def _numbered(self, table: pa.Table) -> tuple[Columns, I64]:
        """Columns of ``Events``, and the part of each row."""
        number = {
            name: table[name].to_numpy()
            for name in table.column_names
            if pa.types.is_integer(table[name].type) and name != "call_ns"
        }
        kinds = self._kinds.of_texts(table["kind"])
        letters = np.array([ord(name[:1] or "?") for name in self._kinds.values()], np.uint8)
        netns = self._namespaces.of(number["netns"])
        here, there = self._addresses.of_texts(table["laddr"]), self._addresses.of_texts(table["raddr"])
        lport, rport = (number[name].astype(np.int64) & 0xFFFF for name in ("lport", "rport"))
        local = self._endpoints.of(self._places.of(here) << 16 | lport)
        peer = self._endpoints.of(self._places.of(there) << 16 | rport)
        remote = self._apart(here, there, rport, number["sk"], peer)
        self._as_local.of(local)
        self._as_remote.of(remote)
        own = (number["proto"] == TCP) & (rport != 0) & (lport != 0)
        part = np.full(table.num_rows, self._n_tcp)
        pair = np.minimum(local[own], peer[own]) << 32 | np.maximum(local[own], peer[own])
        part[own] = self._pairs.of(pair) % self._n_tcp
        base = np.full(table.num_rows, NONE)
        base[own] = self._bases.of(self._ways.of(local[own] << 32 | remote[own]) << 32 | netns[own])
        columns = number | {
            "kind": letters[kinds],
            "ts": number["ts_ns"],
            "comm": self._comms.of_texts(table["comm"]),
            "call": table["call_ns"].fill_null(NONE).to_numpy(),
            "netns": netns,
            "local": local,
            "remote": remote,
            "length": number["len"],
            "hw": number["hw_timestamp"],
            "sw": number["sw_timestamp"],
            "base": base,
        }
        return {name: columns[name].astype(dtype) for name, dtype in FIELDS.items()}, part

    def _apart(
        self, here: I64, there: I64, rport: I64, sk: npt.NDArray[np.uint64], peer: I64
    ) -> npt.NDArray[np.int64]:
        """Endpoints of the peers; connections with unknown addresses get one per socket.

        An event of a connected socket with the any-address on both sides comes from a recording without
        addresses. The ports alone would join the connections of two clients.
        """
        is_any = np.array([name in _ANY for name in self._addresses.values()])
        unknown = is_any[here] & is_any[there] & (rport != 0)
        if not unknown.any():
            return peer
        socket = self._sockets.of(sk[unknown]) + 1
        apart = peer.copy()
        apart[unknown] = self._endpoints.of(
            self._places.of(there[unknown] | socket << 32) << 16 | rport[unknown]
        )
        return apart

    def _vocabulary(self) -> Vocabulary:
        places = np.array(self._places.values(), np.int64)
        endpoints = np.array(self._endpoints.values(), np.int64)
        rank = np.zeros(len(endpoints), np.int64)
        in_order = list(dict.fromkeys([*self._as_local.values(), *self._as_remote.values()]))
        rank[in_order] = np.arange(len(in_order))
        return Vocabulary(
            self._comms.values(),
            self._addresses.values(),
            np.array(self._namespaces.values(), np.uint32),
            (places & _WORD)[endpoints >> 16],
            endpoints & 0xFFFF,
            rank,
        )

    def _write(self, file: Any, part: I64, columns: Columns) -> None:
        """Append rows that are sorted by part."""
        starts = np.flatnonzero(np.diff(part, prepend=-1))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(part)], strict=True):
            self._chunks[int(part[start])].append((file.tell(), end - start))
            for values in columns.values():
                file.write(values[start:end].data)

    def read(self, part: int) -> Events:
        """The events of a part."""
        chunks = self._chunks[part]
        columns = {name: np.empty(sum(n for _, n in chunks), dtype) for name, dtype in FIELDS.items()}
        with writing(self._path), self._path.open("rb") as file:
            done = 0
            for place, n_rows in chunks:
                file.seek(place)
                for values in columns.values():
                    file.readinto(values[done : done + n_rows].data)
                done += n_rows
        return Events(**columns)
