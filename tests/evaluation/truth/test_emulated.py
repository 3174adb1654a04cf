# SPDX-License-Identifier: GPL-2.0-only
"""The emulated family of the truth suite on the committed captures, and its arithmetic checked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from machinery.pt_emulation.fixtures import decoded, unpack
from machinery.pt_emulation.scenarios import acted

from conftest import skip_or_fail
from evaluation.truth import emulated, emulated_truth, table
from evaluation.truth.table import Row

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module", params=unpack.every())
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Both modes of one capture."""
    if not (ROOT / "build/cargo/release/nsight-decode").exists():
        skip_or_fail("decoder", "nsight-decode is not built: make decoder")
    work = tmp_path_factory.mktemp("emulated")
    return list(emulated.scores(decoded.decoded(request.param, work), work / "tables"))


def test_causes_are_named_at_both_modes_and_controls_are_silent(rows: list[Row]) -> None:
    assert [row.mode for row in rows] == ["intel-pt", "tracepoints"]
    for row in rows:
        print("\n".join(table.lines([row])))
        assert row.n_slow >= 1  # the committed captures are short
        if row.alarms is not None:
            assert row.alarms == []
        elif row.n_top:
            assert row.top is not None and row.top >= 0.95, row.wrong
            assert row.first is not None  # on one core the recording itself is often larger: told, not judged
            assert row.within is None or row.within >= 0.95, row.off
            assert row.named is None or row.named >= table.GOALS["named"]
        assert row.coverage_min is not None and row.coverage_min >= 0.9
    # Only mode intel-pt records functions, but contexts explain as much of a message.
    assert abs(rows[0].coverage_median - rows[1].coverage_median) < 0.05


def test_time_of_others_is_not_the_marked_tasks() -> None:
    # 0x1 is switched out from 20 to 50, and marks from 10 to 70.
    text = (
        "0\t10\tmark\t18\t0x4\t0x0\n0\t20\twatch\t0xf\t0x1\t0x2\n"
        "0\t50\twatch\t0xf\t0x2\t0x1\n0\t70\tmark\t19\t0x4\t0x0\n"
    )
    assert acted.on_core(text, 4) == [(10, 20), (50, 70)]
    assert acted.on_core(text, 5) == []


def test_other_interrupts_are_not_the_deferral() -> None:
    # The timer of 90 fires in an interrupt that began at 88: of 10 to 88 another one took five, and one lies before.
    since, until, fired = np.array([10, 95, 10]), np.array([99, 99, 60]), np.array([5, 90])
    interrupts = [(2, 8), (30, 35), (88, 94)]
    # The second came after the timer had fired, the third arrived before it did.
    assert emulated_truth.deferred(since, until, fired, interrupts).tolist() == [73, 0, 0]


def test_who_waits_for_two_waits_for_the_service_of_two() -> None:
    first, read, done = np.array([0, 5, 20, 80]), np.array([10, 40, 60, 90]), np.array([30, 50, 70, 95])
    # The third came while the first was worked on (until 30), and the second was read before it; the fourth found nobody.
    assert emulated_truth.served_ahead(first, read, done).tolist() == [0, 1, 2, 0]


def test_requests_are_matched_to_the_message_with_their_first_byte() -> None:
    messages = pd.DataFrame(
        {
            "message_id": [7, 8],
            "rport": [40, 40],
            "byte_start": [0, 20],
            "byte_end": [20, 60],
            "latency_ns": [5, 6],
        }
    )
    request = {"lport": 40, "number": 3, "bytes": [40, 60], "cause_ns": {"hog": 9}}  # the second in one read
    found = emulated_truth.match([request, {**request, "lport": 41}], messages)
    assert found[["message_id", "cause_ns"]].to_numpy().tolist() == [[8, 9]]


def test_waiting_for_others_is_an_alarm_on_a_control() -> None:
    ids = [1, 2, 3]
    cause = ["Head-of-line blocking (A)", "load-client (R)", "NSight's own cost (A)"]
    rows = [(i, c, 20_000) for i in ids for c in cause]
    sums = pd.DataFrame(rows, columns=["message_id", "cause", "deviation_ns"])
    rest = pd.Series(40_000, index=ids)
    assert emulated._alarms(sums, rest) == ["Head-of-line blocking (A): 3 messages, 20000 ns"]


def test_the_largest_cause_of_a_message_must_name_what_was_injected() -> None:
    kept = pd.DataFrame(
        [
            (1, "Netfilter (R)", "Netfilter", "nft_do_chain", "", 500),
            (1, "spin (A)", "spin", "spin", "", 100),
            (2, "Head-of-line blocking (A)", "Head-of-line blocking", "same thread", "", 900),
            (3, "Head-of-line blocking (A)", "Head-of-line blocking", "same thread", "", 900),
            (4, "NSight's own cost (A)", "NSight's own cost", "spin", "", 900),
            (4, "TCP (R)", "TCP", "tcp_v4_rcv", "net_rx_action;spin", 9),
        ],
        columns=["message_id", "cause", "category", "subject", "path", "deviation_ns"],
    )
    hol = pd.DataFrame(
        [
            (2, "Application processing", "spin", "", 800),
            (2, "TCP", "x", "", 100),
            (3, "TCP", "x", "main > lookup > sendto", 800),
            (3, "y", "spin", "main > spin", 9),
        ],
        columns=["message_id", "category", "subject", "callers", "deviation_ns"],
    )
    assert emulated.names_one_of(kept, hol, ("spin",)).to_dict() == {1: False, 2: True, 3: False, 4: True}
    # Or a caller of the messages' ahead main activity.
    assert emulated.names_one_of(kept, hol, ("lookup",)).to_dict() == {1: False, 2: False, 3: True, 4: False}


def test_goals_that_are_missed_are_named() -> None:
    row = Row("emulated", "hog", "intel-pt", top=0.94, within=1.0, coverage_median=0.99, coverage_min=0.89)
    assert row.missed() == ["top", "coverage_min"]
    assert Row("emulated", "quiet", "intel-pt", alarms=["hog (A): 3 messages"]).missed() == ["alarms"]
    assert Row("emulated", "quiet", "intel-pt", alarms=[], coverage_min=0.1).missed() == []
