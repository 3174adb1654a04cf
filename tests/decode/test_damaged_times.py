# SPDX-License-Identifier: GPL-2.0-only
"""A TSC packet that others contradict is counted and not used: neither does it hold the clock of its core, nor change the order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import skip_or_fail
from decode import packets as pt
from decode import parity
from decode.test_gaps import BEGIN, END, Row, calls, of

pytestmark = pytest.mark.tools

FAR = 1 << 40
REST = pt.psb(50_000, pt.LOOP) + END


@pytest.fixture(autouse=True)
def decoder() -> None:
    if not parity.NATIVE.exists():
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")


def rows(directory: Path, trace: bytes, *options: str) -> tuple[list[Row], dict[str, int]]:
    """Calls, and what was lost. Another core runs the same code meanwhile, from 500 ns later on."""
    traces = {(0, 7): [trace], (1, 7): [pt.psb(1500) + pt.cyc(10) + pt.tip(pt.LOOP) + pt.loop(20, 500)]}
    found = calls(directory, pt.Recording(traces), *options)
    losses = json.loads((directory / "out/calls.json").read_text())["losses"]
    return found, {row["key"]: row["count"] for row in losses}


@pytest.mark.parametrize(
    "options", [(), ("--slice-bytes", "1"), ("--jobs", "1")], ids=["one", "slices", "thread"]
)
@pytest.mark.parametrize("damaged", [FAR, 1 << 55, 100_000_000], ids=["far", "very far", "100 ms"])
def test_a_psb_with_a_wrong_time_takes_none_from_what_follows(
    tmp_path: Path, damaged: int, options: tuple[str, ...]
) -> None:
    """``main`` goes round its loop from 11,010 to 12,010 behind that PSB, by cycles or not timed at all, and nothing is a gap."""
    trace = BEGIN + pt.psb(damaged, pt.LOOP) + pt.loop(2, 500) + REST
    found, losses = rows(tmp_path, trace, *options)
    assert not of("gap", found)
    assert ("leaf", 60_010, 60_030) in of("function", found)
    assert ("main", 1500, 11_510) in of("function", found)
    assert max(end for *_, end in found) == 60_040
    assert losses == {"times_damaged": 1}


def test_a_psb_that_goes_back_does_not_stop_the_clock(tmp_path: Path) -> None:
    """1 ms back: ``leaf`` is called 10 cycles behind it, and returns 20 later."""
    call = pt.cyc(10) + pt.tnt(False) + pt.cyc(20) + pt.tip(pt.LOOP)
    begin = pt.psb(1_000_500) + BEGIN.replace(pt.tsc(1000), pt.tsc(1_001_000))
    rest = REST.replace(pt.tsc(50_000), pt.tsc(1_050_000))
    found, losses = rows(tmp_path, begin + pt.psb(11_010, pt.LOOP) + call + rest)
    assert ("leaf", 1_011_020, 1_011_040) in of("function", found)
    assert losses == {"times_damaged": 1}


def test_a_tsc_packet_between_two_psbs_is_not_after_the_second(tmp_path: Path) -> None:
    """Cycles go on from the time before it; at the end of the trace, nothing contradicts it."""
    call = pt.cyc(10) + pt.tnt(False) + pt.cyc(20) + pt.tip(pt.LOOP)
    middle = pt.tsc(FAR) + call
    found, losses = rows(tmp_path, BEGIN + middle + REST)
    assert ("leaf", 11_020, 11_040) in of("function", found)
    assert max(end for *_, end in found) == 60_040
    assert losses == {"times_damaged": 1}
    found, losses = rows(tmp_path, BEGIN + REST + pt.tsc(FAR) + pt.loop(1, 10))
    assert max(end for *_, end in found) == FAR + 10
    assert losses == {}


def test_a_tsc_packet_behind_a_psb_that_has_none_is_used(tmp_path: Path) -> None:
    """Its header was cut by an overflow, say."""
    trace = pt.psb(None) + pt.tsc(1000) + BEGIN.removeprefix(pt.psb(1000)) + pt.psb(400_000, pt.LOOP) + END
    found, losses = rows(tmp_path, trace)
    assert of("function", found)[:2] == [("main", 1000, 410_040), ("leaf", 1000, 1010)]
    assert losses == {}


def test_ticks_between_cores_are_no_contradiction(tmp_path: Path) -> None:
    """A thread's own buffer goes from core to core, whose TSCs differ by some ticks."""
    trace = BEGIN + pt.psb(11_000, pt.LOOP) + pt.tsc(10_990) + pt.loop(2, 500) + pt.psb(12_000, pt.LOOP) + END
    found = calls(tmp_path, pt.Recording({(-1, 7): [trace]}))
    assert max(end for *_, end in found) == 12_000 + 10_040
    assert json.loads((tmp_path / "out/calls.json").read_text())["losses"] == []
