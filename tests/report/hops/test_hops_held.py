# SPDX-License-Identifier: GPL-2.0-only
"""What held a packet in a layer, derived from what its core and threads did until it was taken out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from machinery.made_up.capture import manifest as told
from machinery.made_up.capture import write_capture
from machinery.made_up.tables import context, state, table
from nsight_report import hops
from nsight_report.cli import main
from nsight_report.hops import causes, cores, layers
from nsight_report.tables.intervals import IntervalTable
from report.hops.made_up import B_IN, GOOD_WAY, T0, VA_IN, directory
from report.hops.test_hops_kernels import AHEAD_B, way

DAEMON, HOG, SWITCH = 20, 30, 40


def activity(contexts: list[dict[str, object]], states: list[dict[str, object]]) -> cores.Activity:
    return cores.Activity(
        IntervalTable(table("contexts", contexts)), IntervalTable(table("thread_states", states), "tid")
    )


def what_held(contexts: list[dict[str, object]], states: list[dict[str, object]]) -> dict[str, int]:
    """For a packet from 0 to 1000 that core 1 took out; 'nobody': time before the packet waited for any core."""
    found = cores.held(activity(contexts, states), np.array([1]), np.array([0]), np.array([1000]))
    if not found.known[0]:
        return {}
    made = {"nobody": int(found.since[0])}
    for text, start, end in zip(found.parts.text, found.parts.start, found.parts.end):
        made[str(text)] = made.get(str(text), 0) + int(end - start)
    return made


def ksoftirqd(*rows: tuple[int, int, str]) -> list[dict[str, object]]:
    return [{**state(*row, tid=DAEMON), "comm": "ksoftirqd/1"} for row in rows]


def test_a_thread_holds_a_packet_only_while_ksoftirqd_is_ready() -> None:
    """The softirq was deferred to ksoftirqd at 300, which ran at 900 after the hog had ended."""
    contexts = [context(1, 0, 900, "thread", "hog", HOG, "hog"), context(1, 900, 950, "thread", "ksoftirqd/1", DAEMON, "ksoftirqd/1"),
                context(1, 950, 1100, "softirq", "NET_RX", DAEMON, "ksoftirqd/1")]  # fmt: skip
    ready = ksoftirqd((0, 300, "sleeping"), (300, 900, "runnable"), (900, 1100, "running"))
    assert what_held(contexts, ready) == {
        "nobody": 300, f"CPU contention with hog [{HOG}]": 600, "ksoftirqd": 50, "softirq NET_RX": 50,
    }  # fmt: skip
    # Without ksoftirqd, the hog's core could have run the softirq at any time: a queue discipline kept the packet.
    assert what_held(contexts, [])["nobody"] == 900


def test_time_before_the_core_was_idle_or_ran_something_else_is_nobodys() -> None:
    contexts = [context(1, 0, 400, "softirq", "NET_RX", 0, "swapper"), context(1, 400, 700, "idle", "", 0, "swapper"),
                context(1, 700, 800, "absent", "steal", 0, "swapper"), context(1, 800, 900, "hardirq", "timer", 0, "swapper"),
                context(1, 900, 1100, "softirq", "NET_RX", 0, "swapper")]  # fmt: skip
    assert what_held(contexts, []) == {
        "nobody": 700, "host took the core": 100, "interrupt timer": 100, "softirq NET_RX": 100,
    }  # fmt: skip


def test_a_thread_that_takes_packets_out_holds_them_while_it_is_ready_or_stopped() -> None:
    contexts = [context(1, 0, 500, "thread", "hog", HOG, "hog"), context(1, 500, 600, "idle", "", 0, "swapper"),
                context(1, 600, 1100, "thread", "switch", SWITCH, "switch")]  # fmt: skip
    rows = [(0, 200, "sleeping"), (200, 500, "runnable"), (500, 600, "stopped"), (600, 1100, "running")]
    states: list[dict[str, object]] = [{**state(*row, tid=SWITCH), "comm": "switch"} for row in rows]
    assert what_held(contexts, states) == {
        "nobody": 200, f"CPU contention with hog [{HOG}]": 300, "switch stopped": 100, "switch at work": 400,
    }  # fmt: skip


def test_the_only_core_in_a_softirq_of_packets_took_it_out() -> None:
    """The packet's next record is from another core, which was idle."""
    contexts = [context(0, 0, 1100, "softirq", "NET_RX", 0, "swapper"), context(1, 0, 1100, "idle", "", 0, "swapper")]  # fmt: skip
    assert what_held(contexts, []) == {"nobody": 0, "softirq NET_RX": 1000}
    assert what_held(contexts[1:], []) == {}


STALLED = (50, 100, 150)


@pytest.mark.parametrize("of", ["the hypervisor", "the second kernel"])
def test_between_kernels_the_process_behind_the_tap_counts_and_then_the_cores_of_the_second(
    tmp_path: Path, of: str
) -> None:
    """Three packets took 5 ms longer from a to b. Kernel b's clock is far from a's; each capture uses its kernel's clock."""
    paths = way(tmp_path, extra=dict.fromkeys(STALLED, 5_000_000))
    c = hops.load_all(paths)
    first, ahead = T0 - 1_000_000, AHEAD_B
    stalls = [T0 + n * 1_000_000 for n in STALLED]
    if of == "the hypervisor":
        edges = [first, *(t for stall in stalls for t in (stall + 1_000, stall + 5_000_000)), T0 + 10**9]
        names = ["sleeping", "stopped"] * 3 + ["sleeping"]
        found = [
            {**state(*edge, name, tid=SWITCH), "comm": "qemu"} for *edge, name in zip(edges, edges[1:], names)
        ]
        # It brings the replies, on the device on which the requests left.
        stored = {0: activity([context(3, first, T0 + 10**9, "thread", "qemu", SWITCH, "qemu")], found)}
        came = (c.hops["clock"] == 0) & (c.hops["number"] == B_IN)
        c = dataclasses.replace(c, hops=c.hops.assign(number=c.hops["number"].where(~came, VA_IN)))
    else:
        rows = []
        for n, at in enumerate(stalls):
            begin, end = at + ahead, at + ahead + 5_000_000
            after = stalls[n + 1] + ahead if n < 2 else T0 + ahead + 10**9
            rows += [context(3, begin, end, "absent", "steal", 0, "swapper"), context(3, end, end + 30_000, "softirq", "NET_RX", 0, "swapper"),
                     context(3, end + 30_000, after, "idle", "", 0, "swapper")]  # fmt: skip
        stored = {1: activity(rows, [])}
    table_of = layers.passages(c)
    slow = c.packets[c.packets["latency_ns"] > 1_000_000]
    assert len(slow) == 3
    usual = layers.usual(c)
    excess = layers.excess(c, table_of, slow, usual)
    causes_of = causes.of_layers(c, table_of, slow, usual, excess, stored)
    wanted = "qemu stopped" if of == "the hypervisor" else "host took the core"
    assert {row["layer"] for row in causes_of} == {"a/h:va out -> b/a:eth0 in"}
    assert (causes_of[0]["cause"], causes_of[0]["n"]) == (wanted, 3)
    assert causes_of[0]["excess_ns"] == pytest.approx(3 * 5_000_000, rel=0.01)
    assert causes_of[0]["share"] > 0.98


def test_captures_are_told_apart_by_their_kernels_boot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def capture(name: str, boot: str, **other: str) -> Path:
        host = {**told()["host"], "boot_id": boot}
        return write_capture(tmp_path / name, told=told(host=host, **other))

    capsules = directory(tmp_path / "way.capsules", GOOD_WAY, host={"boot_id": "here"})
    here = capture("here.nsight", "here")
    assert main(["hops", str(capsules), str(here), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["recorded"] == ["way"]
    # Only losses of the capture that can make these statements wrong are shown.
    of_capture = [row for row in made["losses"] if row["detail"].startswith("here.nsight: ")]
    assert "read_without_arrival" in {row["key"] for row in of_capture}
    assert "info" not in {row["severity"] for row in of_capture}
    for other, text in (
        (capture("there.nsight", "there"), "recorded on none of the kernels"),
        (capture("again.nsight", "here"), "recorded on the same kernel as"),
        (capture("pt.nsight", "here", mode="intel-pt"), "a capture of mode intel-pt"),
    ):
        assert main(["hops", str(capsules), str(here), str(other)]) == 3
        assert text in capsys.readouterr().err
    assert main(["hops", str(here)]) == 3
    assert "without a directory of nsight-capsule in it" in capsys.readouterr().err
    capsules.rename(here / "way.capsules")
    assert main(["hops", str(here), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_arrived"] == 1
