# SPDX-License-Identifier: GPL-2.0-only
"""Threads that wait for each other in known ways (machinery/load/waiting.c), recorded as nsight-record does it by default.

The host of a virtual machine can take a core away during the recording. Then a round may lack its wake-up, and its cause is
unknown. So of ten rounds of each case, some are there, and what is known is right in every one.
"""

import json
import os
import shutil
from itertools import takewhile
from pathlib import Path

import nsight_report
import numpy as np
import pandas as pd
import pytest
from machinery.harness import built
from nsight_report import cli
from nsight_report.waits import Activity, explain
from nsight_report.waits.tiles import WAITING
from recorder_run import record, require_live

from conftest import ROOT, skip_or_fail

pytestmark = pytest.mark.live

LOAD = ROOT / "tests/machinery/load"
SLEPT_NS = 5_000_000  # by the thread that ends a wait, after the wait began


class Recorded:
    """The recording, and what the program printed: per case who waited, who ended the wait, and a number."""

    def __init__(self, directory: Path, told: dict[str, tuple[int, int, int]]) -> None:
        self.directory, self.told = directory, told
        self.capture = nsight_report.open(directory)
        names = ("thread_states", "contexts", "waits")
        self.capture.pipeline.run_for(names)
        states, contexts, waits = (self.capture.pipeline.stored(name) for name in names)
        self.activity = Activity(states, contexts, waits)
        self._known: dict[int, pd.DataFrame] = {}

    def pieces(self, tid: int) -> pd.DataFrame:
        """Pieces of all that the thread did in the recording, by piece_id."""
        if tid not in self._known:
            begin, end = self.activity.span()
            asked = {"interval_id": [0], "tid": [tid], "start_ns": [begin], "end_ns": [end]}
            found = explain(pd.DataFrame(asked), self.activity)[0].to_pandas()
            found["ns"] = found["end_ns"] - found["start_ns"]
            assert found.loc[found["is_leaf"], "ns"].sum() == end - begin
            below = found[found["depth"] > 0]
            sums = below.groupby("parent_id")["ns"].sum()
            assert (sums == found.set_index("piece_id")["ns"].reindex(sums.index)).all()
            self._known[tid] = found.set_index("piece_id")
        return self._known[tid]

    def waits(self, tid: int, place: str) -> pd.DataFrame:
        """Known waits of the thread itself in a system call or page fault."""
        pieces = self.pieces(tid)
        chosen = (pieces["depth"] == 0) & (pieces["name"] == place) & (pieces["kind"] != "unknown")
        return pieces[chosen & pieces["doing"].isin(WAITING)]

    def slept_below(self, tid: int, waits: pd.DataFrame) -> np.ndarray:
        """For each wait: how long the thread that ended it slept by a timer meanwhile."""
        below = self.pieces(tid)
        below = below[(below["kind"] == "timer") & (below["name"] == "clock_nanosleep")]
        return below.groupby("parent_id")["ns"].sum().reindex(waits.index, fill_value=0).to_numpy()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    require_live("bpf")
    if not shutil.which("make") or not shutil.which("gcc"):
        skip_or_fail("compiler", "make or gcc is not installed")
    built.make(LOAD, "build/waiting")
    directory = tmp_path_factory.mktemp("waits") / "a.nsight"
    # Files in memory need no disk.
    data = ROOT / "build/waits-live"
    data.mkdir(parents=True, exist_ok=True)
    told = directory.parent / "told"
    command = ("sh", "-c", 'exec "$0" "$1" >"$2"', str(LOAD / "build/waiting"), str(data), str(told))
    try:
        code, said = record(directory, "--", *command)
    finally:
        shutil.rmtree(data)
    assert code == 0, said
    assert json.loads((directory / "manifest.json").read_text())["syscalls"] == "waits"
    lines = [line.split() for line in told.read_text().splitlines()]
    return Recorded(directory, {name: (int(a), int(b), int(c)) for name, a, b, c in lines})


def ended_by(waits: pd.DataFrame, kind: str, tid: int) -> None:
    assert len(waits) > 0
    assert set(waits["kind"]) == {kind}
    assert set(waits["other_tid"]) == {tid}
    assert set(waits["sure"]) == {"measured"}


def test_lock_is_explained_by_the_sleep_of_its_holder(recorded):
    """The holder sleeps 5 ms after its waiter has begun to wait, and then releases the lock."""
    waiter, holder, address = recorded.told["lock"]
    waits = recorded.waits(waiter, "futex")
    waits = waits[waits["arg"] == address]
    ended_by(waits, "lock", holder)
    slept = recorded.slept_below(waiter, waits)
    assert slept.max() >= SLEPT_NS
    assert (slept <= waits["ns"]).all()


@pytest.mark.parametrize(
    ("case", "place", "kind"), [("pipe", "read", "hand-over"), ("unix", "recvfrom", "socket")]
)
def test_hand_over_is_explained_by_the_sleep_of_the_other_process(recorded, case, place, kind):
    reader, writer, descriptor = recorded.told[case]
    waits = recorded.waits(reader, place)
    waits = waits[waits["arg"] == descriptor]
    ended_by(waits, kind, writer)
    assert recorded.slept_below(reader, waits).max() >= SLEPT_NS


def test_data_over_loopback_come_from_who_sent_them(recorded):
    """The sender's own system call runs the receive softirq; where ksoftirqd or another core does, the chain ends at the packet."""
    reader, writer, descriptor = recorded.told["tcp"]
    waits = recorded.waits(reader, "recvfrom")
    waits = waits[waits["arg"] == descriptor]
    assert set(waits["kind"]) <= {"socket", "packet"}
    sent = waits[waits["kind"] == "socket"]
    assert len(sent) > 0
    assert set(sent["other_tid"]) == {writer}
    assert set(sent["sure"]) == {"inferred"}
    assert recorded.slept_below(reader, sent).max() >= SLEPT_NS


def test_stopped_process_is_explained_by_who_lets_it_go_on(recorded):
    """The process is stopped once. If the record of that is missing, nothing else is reported instead."""
    stopped, parent, _ = recorded.told["stop"]
    pieces = recorded.pieces(stopped)
    waits = pieces[(pieces["depth"] == 0) & (pieces["doing"] == "stopped")]
    known = waits[waits["kind"] != "unknown"]
    assert set(known["kind"]) <= {"stopped"}
    assert set(known["other_tid"]) <= {parent}
    assert recorded.slept_below(stopped, known).max(initial=SLEPT_NS) >= SLEPT_NS


def disks() -> set[str]:
    return {path.read_text().strip() for path in Path("/sys/block").glob("*/dev")}


def on_disk() -> bool:
    """Files in memory or on another machine make nobody wait for a disk."""
    return os.major((ROOT / "build").stat().st_dev) != 0


def test_sync_ends_in_the_disk(recorded):
    """A page is written and synchronised ten times: by the thread itself, or by a file system thread that waits for the disk."""
    writer, _, _ = recorded.told["fsync"]
    pieces = recorded.pieces(writer)
    waits = recorded.waits(writer, "fsync")
    assert len(waits) > 0 or not on_disk()
    assert set(waits["kind"]) <= {"disk", "kernel", "hand-over"}
    above = pieces["parent_id"].isin(waits.index)
    found = pieces[
        (pieces["kind"] == "disk") & (above | pieces.index.isin(waits.index)) & (pieces["device"] != "")
    ]
    assert len(found) > 0 or not on_disk()
    assert set(found["device"]) <= disks()
    assert found["operation"].isin(["write", "flush"]).all()


def test_page_that_is_not_in_memory_is_a_page_fault_that_waits_for_the_disk(recorded):
    reader, _, n_cold = recorded.told["fault"]
    waits = recorded.waits(reader, "page fault")
    found = waits[waits["kind"] == "disk"]
    assert len(found) > 0 or not on_disk() or not n_cold
    assert set(found["device"]) <= disks()
    assert (found["operation"] == "read").all()


def depth(line: str) -> int:
    """Depth of a line in the tree: the spaces after the share."""
    text = line.split("%", 1)[-1]
    return len(text) - len(text.lstrip())


def test_command_tells_the_chain_in_words_and_as_json(recorded, capsys):
    waiter, holder, _ = recorded.told["lock"]
    chain = f"waited in futex for waiting[{holder}] (lock)"
    assert cli.main(["waits", str(recorded.directory), "--thread", str(waiter)]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(i for i, line in enumerate(lines) if chain in line)
    # On a busy machine, the holder was ready longer than it slept, and then the wait for a core comes first.
    below = takewhile(lambda line: depth(line) > depth(lines[place]), lines[place + 1 :])
    assert any("which slept in clock_nanosleep" in line for line in below)
    assert cli.main(["waits", str(recorded.directory), "--thread", "lock-waiter", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["thread"]["tid"] == waiter
    assert [chain, "slept in clock_nanosleep"] in [each["links"] for each in made["chains"]]
    assert sum(node["ns"] for node in made["tree"]) == made["to_ns"] - made["from_ns"]
    assert made["longest"][0]["tree"][0]["ns"] == made["longest"][0]["ns"]
