# SPDX-License-Identifier: GPL-2.0-only
"""Messages that are built part by part equal those that are built at once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from event_builder import SERVER, SYN, Recording
from nsight_report import lifetimes
from nsight_report.lifetimes import assemble, parts
from nsight_report.tables import external_sort, schema, store
from nsight_report.tables.intervals import IntervalTable

ANY, NOBODY = ("0.0.0.0", 53), ("0.0.0.0", 0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair of endpoints is a part, if there are that many; few rows are sorted at a time."""
    monkeypatch.setattr(parts, "PART_ROWS", 1)
    monkeypatch.setattr(external_sort, "UNIT_ROWS", 3)
    monkeypatch.setattr(external_sort, "PIECE_ROWS", 5)


def client(number: int) -> tuple[str, int]:
    return f"10.0.1.{number}", 40000 + number


def request(r: Recording, number: int, ts: int, seq: int, **fields: object) -> None:
    """A message of 10 bytes from a client, by the socket 0x100 + ``number``."""
    peer, sk = client(number), 0x100 + number
    r.peer_sends(ts, seq, 10, local=peer, remote=SERVER)
    r.arrive(ts + 1, seq, 10, remote=peer)
    r.hand_off(ts + 2, seq + 10, remote=peer, sk=sk)
    r.read(ts + 5, seq, 10, remote=peer, sk=sk, **fields)


def mixed() -> Recording:
    """Seven TCP clients that take turns, reused ports, replies, and datagrams between TCP arrivals."""
    r = Recording()
    for turn in range(12):
        for number in range(7):
            at = 1000 * turn + 7 * number
            if turn == 6 and number == 3:
                r.arrive(at - 2, 5_000_000 - 1, 0, flags=SYN, remote=client(3))
            seq = 10 * turn + (5_000_000 if turn >= 6 and number == 3 else 0)
            request(r, number, at, seq)
            r.send(at + 9, 30 * turn, 30, remote=client(number), sk=0x100 + number)
            r.drive(at + 8, 30 * turn, 30, remote=client(number))
        at = 1000 * turn + 500
        for number in (1, 9):
            peer = client(number)
            server = (SERVER[0], ANY[1])
            r.arrive(at, 0, 20, proto=17, local=server, remote=peer)
            if turn == 4:
                r.arrive(at + 1, 10_000, 5, remote=client(2))  # TCP: it ends the handling of the datagram
            r.hand_off(at + 2, 0, proto=17, local=ANY, remote=NOBODY, sk=0x53)
            r.read(at + 9, 0, 20, proto=17, local=ANY, remote=NOBODY, sk=0x53)
            at += 50
    r.rows += [dict(row) for row in r.rows[40:44]]
    return r


def test_parts_give_the_messages_and_losses_of_the_whole(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts = mixed().build()
    monkeypatch.undo()
    whole = mixed().build()
    assert in_parts == whole
    rows, losses = whole
    # 12 turns: 7 requests, 7 replies, 2 datagrams
    assert len(rows) == 12 * 16 and [m["message_id"] for m in rows] == list(range(len(rows)))
    assert losses["events recorded twice"] == 4
    assert losses["datagrams dropped before the socket"] == 2
    assert {m["nic_source"] for m in rows if m["proto"] == 6 and m["direction"] == "rx"} == {"peer_xmit"}


def test_connections_are_numbered_by_their_first_event_whatever_their_part(small: None) -> None:
    r = Recording()
    for number in (4, 2, 7, 2, 4, 1):
        request(r, number, 1000 * len(r.rows) + 1, 100 * len(r.rows))
    rows, _ = r.build()
    # The first event of client 4 is X, so the client's connection comes before the server's.
    by_client = {m["raddr"]: m["conn_id"] for m in rows}
    assert [by_client[client(n)[0]] for n in (4, 2, 7, 1)] == [1, 3, 5, 7]


def test_losses_of_all_parts_add_up_to_one_entry(small: None, tmp_path: Path) -> None:
    r = Recording()
    for number in (1, 2, 3):
        # The reads of bytes 10 to 20 are missing, and for client 3 also those of 30 to 40.
        for turn in (0, 2, 4) if number == 3 else (0, 2):
            request(r, number, 100 * number + 1000 * turn, 10 * turn)
    _, table = lifetimes.build(IntervalTable(r.table()), tmp_path)
    (entry,) = [row for row in table.to_pylist() if row["cause"] == "bytes that no read event took"]
    assert entry["count"] == 40
    assert entry["detail"] == "in 4 places read events are missing: so are their messages"


def test_few_connections_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, rows in (
        (store, "GROUP_ROWS", 400),
        (external_sort, "UNIT_ROWS", 20),
        (external_sort, "PIECE_ROWS", 200),
    ):
        monkeypatch.setattr(module, name, rows)
    r = Recording()
    for turn in range(40):
        for number in range(100):
            request(r, number, 10_000 * turn + 20 * number, 10 * turn)
    path = tmp_path / "events.parquet"
    with store.Writer(path, schema.TABLES["events"].arrow()) as writer:
        writer.write(r.table())
    most = []
    for part_rows in (400, 400, 1 << 18):  # modules are loaded in the first pass
        monkeypatch.setattr(parts, "PART_ROWS", part_rows)
        tracemalloc.start()
        messages, _ = lifetimes.build(IntervalTable(path), tmp_path)
        most.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert messages.n_rows() == 4000
    assert 3 * most[1] < most[2], most


def test_names_may_grow_while_they_are_looked_at(tmp_path: Path) -> None:
    """A reader that reads ahead appends to the list."""

    class Growing(list[str]):
        def __iter__(self) -> Iterator[str]:
            found = list.__iter__(self[:])
            self.append(f"name {len(self)}")
            return found

    of = object.__new__(assemble.Messages)
    of._words = {"comm": ["other"]}
    assert of._places("comm", Growing(["a", "b"])).tolist() == [1, 2]
