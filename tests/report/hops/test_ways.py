# SPDX-License-Identifier: GPL-2.0-only
"""Packets of nsight-capsule are joined with messages of nsight-record by connection and byte range."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from machinery.made_up.capture import write_capture
from nsight_report.hops import ways
from report.conftest import Run
from report.hops.made_up import GOOD_WAY, T0, directory

ROWS = ("message_id", "direction", "conn_id", "proto", "laddr", "lport", "raddr", "rport", "byte_start", "byte_end", "nbytes", "arrival_ns", "call_ns")  # fmt: skip
HERE, PEER = ("10.0.0.2", 80), ("10.0.0.1", 4000)


def messages(*rows: tuple[Any, ...], direction: str = "rx", proto: int = 6, conn: int = 3) -> pd.DataFrame:
    """(number, first byte, end, time)."""
    return pd.DataFrame(
        [(n, direction, conn, proto, *HERE, *PEER, first, end, end - first, at if direction == "rx" else -1, at if direction == "tx" else -1)
         for n, first, end, at in rows], columns=list(ROWS),
    )  # fmt: skip


def packets(*rows: tuple[int, int, int], direction: str = "rx", proto: int = 6) -> pd.DataFrame:
    """(seq, length, time)."""
    ends = (*PEER, *HERE) if direction == "rx" else (*HERE, *PEER)
    return pd.DataFrame(
        [(i, proto, *ends, seq, length, at if direction == "tx" else at - 500, at, True) for i, (seq, length, at) in enumerate(rows)],
        columns=["packet", "proto", "saddr", "sport", "daddr", "dport", "seq", "length", "born_ns", "last_ns", "arrived"],
    )  # fmt: skip


def joined(p: pd.DataFrame, m: pd.DataFrame) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in ways.pairs(p, m).to_numpy()]


def test_a_message_gets_the_packets_that_carried_its_bytes() -> None:
    """Bytes count from 5000. Message 1 is in two packets; the second packet also has message 2; 3 had no capsule."""
    m = messages((1, 0, 150, T0), (2, 150, 180, T0 + 900), (3, 180, 200, T0 + 5000), (4, 200, 260, T0 + 9000))
    p = packets((5000, 100, T0 - 100), (5100, 80, T0 + 800), (5200, 60, T0 + 8990))
    assert joined(p, m) == [(1, 0), (1, 1), (2, 1), (4, 2)]


def test_numbers_that_begin_anew_after_4_gib_are_followed() -> None:
    """Byte 2^33 - 10 of the connection has the number (7 + 2^33 - 10) mod 2^32 = 2^32 - 3."""
    far = (1 << 33) - 10
    m = messages((1, far, far + 20, T0), (2, far + 20, far + 30, T0 + 9000))
    p = packets(((7 + far) % (1 << 32), 20, T0 - 10), ((7 + far + 20) % (1 << 32), 10, T0 + 8990))
    assert joined(p, m) == [(1, 0), (2, 1)]


def test_sent_messages_are_joined_with_what_left_after_the_call() -> None:
    m = messages((1, 0, 50, T0), (2, 50, 90, T0 + 9000), direction="tx")
    p = packets((1 << 31, 50, T0 + 40), ((1 << 31) + 50, 40, T0 + 9100), direction="tx")
    assert joined(p, m) == [(1, 0), (2, 1)]


def test_a_connection_whose_messages_do_not_agree_gets_none() -> None:
    """The two packets disagree about where byte 0 is."""
    m = messages((1, 0, 50, T0), (2, 50, 90, T0 + 9000))
    assert joined(packets((100, 50, T0 - 40), (777, 40, T0 + 8990)), m) == []


def test_datagrams_are_joined_by_length_and_time_and_each_once() -> None:
    m = messages((1, 0, 1, T0), (2, 1, 2, T0 + 9000), (3, 2, 3, T0 + 9010), proto=17).assign(
        nbytes=[40, 40, 40]
    )
    p = packets((0, 40, T0 - 10), (0, 40, T0 + 8990), (0, 39, T0 - 5), proto=17)
    assert joined(p[p["length"] == 40], m) == [(1, 0), (2, 1)]


def test_another_connection_s_packets_are_nobody_s() -> None:
    m = messages((1, 0, 50, T0))
    p = packets((100, 50, T0 - 40)).assign(sport=4001)
    assert joined(p, m) == []
    assert joined(p.iloc[:0], m) == []
    assert joined(p, m.iloc[:0]) == []


@pytest.mark.parametrize("wrong", ["other boot", "damaged"])
def test_directories_that_do_not_fit_are_told_and_stop_no_report(
    run: Run, tmp_path: Path, wrong: str
) -> None:
    capture = write_capture(tmp_path / "small.nsight")
    path = directory(capture / "x.capsules", GOOD_WAY, host={"boot_id": "another"})
    if wrong == "damaged":
        (path / "manifest.json").write_text("{")
    done = run("show", capture, "7", "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["ways"] == []
    assert ("another boot" if wrong == "other boot" else "manifest.json") in value["ways_problem"]
    assert "its packets are unknown" in run("show", capture, "7").stdout


def test_links_and_files_are_no_directories_of_nsight_capsule(tmp_path: Path) -> None:
    (tmp_path / "a.capsules").mkdir()
    (tmp_path / "b.capsules").symlink_to(tmp_path / "a.capsules")
    (tmp_path / "c.capsules").touch()
    assert [p.name for p in ways.find(tmp_path)] == ["a.capsules"]
