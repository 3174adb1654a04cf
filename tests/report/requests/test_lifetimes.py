# SPDX-License-Identifier: GPL-2.0-only
"""Requests in the form of messages: their timestamps, their sections, and which ones belong to the application."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from machinery.made_up.tables import table
from made_messages import as_messages, received, sent
from nsight_report.arguments import parser
from nsight_report.cli import _direction
from nsight_report.errors import BadInput, UsageError
from nsight_report.export.selection import marks
from nsight_report.requests.build import build
from nsight_report.requests.lifetimes import Lifetimes
from nsight_report.selection.application import choose_app
from nsight_report.selection.options import Selection
from nsight_report.tables.messages import Messages
from nsight_report.timeline import SIDES, sections
from nsight_report.timeline.sections import Place

#: A request in at 0, handed off at 100, read at 300; the reply's send call at 1000 returns at 1200; the driver has it at 1500.
ONE = [received(0, 0, 100, 300), sent(0, 1000, 1500, tid=101)]


def lifetimes(rows: list[dict[str, object]], tmp_path: Path, role: str = "server") -> Lifetimes:
    messages = Messages(as_messages(rows))
    written, _ = build(messages, tmp_path)
    requests = Messages(written if not hasattr(written, "path") else written.path, "requests")
    return Lifetimes(requests, messages, role)


def parts(frame: pd.DataFrame) -> list[tuple[str, str, int, int]]:
    s = sections(frame)
    return [
        (Place(p).name, SIDES[side], a, b)
        for p, side, a, b in zip(
            s.place.tolist(), s.side.tolist(), s.start.tolist(), s.end.tolist(), strict=True
        )
    ]


def test_sections_of_a_request_tile_it_from_arrival_to_driver(tmp_path: Path) -> None:
    frame = lifetimes(ONE, tmp_path).rows(np.array([0]))
    assert parts(frame) == [
        ("RECEIVE", "R", 0, 100),
        ("APPLICATION", "A", 100, 300),
        ("SERVICE", "A", 300, 1000),
        ("SEND", "T", 1000, 1200),
        ("TRANSMIT_QUEUE", "T", 1200, 1500),
    ]
    row = frame.iloc[0]
    assert (row["direction"], row["latency_ns"], row["tid"], row["send_tid"]) == ("request", 1500, 100, 101)


def test_completion_of_the_reply_is_that_of_the_request(tmp_path: Path) -> None:
    """The NIC was done with the reply at 1900; what was received has no such timestamp."""
    rows = [received(0, 0, 100, 300), sent(0, 1000, 1500, completion_ns=1900, last_ns=1900, latency_ns=900)]
    row = lifetimes(rows, tmp_path).rows(np.array([0])).iloc[0]
    assert (row["completion_ns"], row["last_ns"]) == (1900, 1500)
    shown = [(mark.name, mark.ns) for mark in marks(row)]
    assert shown[-2:] == [("driver", 1500), ("NIC done", 1900)]


def test_request_that_was_sent_begins_with_the_send_and_waits_for_its_peer(tmp_path: Path) -> None:
    """One peer port and two local ones: a client. The reply comes at 2000."""
    rows = [
        row | {"rport": 5432, "lport": 40000 + row["conn_id"], "raddr": "10.0.0.9"}
        for conn in (0, 1)
        for row in (sent(conn, 1000, 1500), received(conn, 2000, 2100, 2400))
    ]
    of = lifetimes(rows, tmp_path, "client")
    ids = of.columns(["message_id"])["message_id"].to_numpy()
    assert parts(of.rows(ids[:1])) == [
        ("SEND", "T", 1000, 1200),
        ("TRANSMIT_QUEUE", "T", 1200, 1500),
        ("PEER", "T", 1500, 2000),
        ("RECEIVE", "R", 2000, 2100),
        ("APPLICATION", "A", 2100, 2400),
    ]


def test_columns_are_of_the_request_or_of_what_it_received_last(tmp_path: Path) -> None:
    """It came in two calls: the receive core is that of the second one; the first byte is that of the first one."""
    rows = [received(0, 0, 100, 300, recv_cpu=3), received(0, 400, 500, 600, recv_cpu=2), sent(0, 1000, 1500)]
    of = lifetimes(rows, tmp_path)
    frame = of.columns(["message_id", "first_ns", "latency_ns", "recv_cpu", "app_ns", "tid", "direction"])
    assert frame.drop(columns="direction").to_numpy().tolist() == [[0, 0, 1500, 2, 600, 100, 100]]
    assert frame["direction"].tolist() == ["request"]
    row = of.rows(np.array([0])).iloc[0]
    assert (row["first_id"], row["last_id"], row["handoff_ns"], row["arrival_ns"]) == (0, 1, 500, 400)


def test_other_roles_and_unknown_numbers_are_left_out(tmp_path: Path) -> None:
    of = lifetimes(ONE, tmp_path)
    assert len(of.rows(np.array([1, 99]))) == 0
    assert len(lifetimes(ONE, tmp_path, "client").columns(["message_id"])) == 0
    assert len(of.columns(["latency_ns"], lambda rows: (rows["latency_ns"] > 1500).to_numpy())) == 0


def test_nothing_was_joined(tmp_path: Path) -> None:
    empty = Lifetimes(Messages(table("requests", []), "requests"), Messages(as_messages(ONE)), "server")
    assert len(empty.columns(["message_id", "recv_cpu", "tid"])) == 0
    assert len(empty.rows(np.zeros(0, np.int64))) == 0
    with pytest.raises(BadInput, match="no request was joined"):
        choose_app(empty, Selection(direction="request"))


def test_option_says_what_is_diagnosed_and_does_not_go_with_another_direction() -> None:
    def direction(*words: str) -> str:
        return _direction(parser().parse_args(["x.nsight", *words]))

    assert direction() == "rx"
    assert [direction("--latency", word) for word in ("receive", "request", "transmit")] == [
        "rx",
        "request",
        "tx",
    ]
    assert direction("--latency", "transmit", "--direction", "tx") == "tx"
    for other in (("--direction", "rx"), ("--intervals", "x.csv")):
        with pytest.raises(UsageError, match="--latency request does not go with"):
            direction("--latency", "request", *other)
