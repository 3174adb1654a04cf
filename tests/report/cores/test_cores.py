# SPDX-License-Identifier: GPL-2.0-only
"""Which programs had which core while messages were there, counted by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, table
from nsight_report import cores
from nsight_report.anomalies import Selection
from nsight_report.cores.occupancy import _Asked
from nsight_report.plots import cores as plot_cores
from nsight_report.recorder import Recorder
from nsight_report.timeline.recording import Recording

IDLE = ("idle", "idle", 0, "swapper")


def summary(scene: Scene, roles: list[str]) -> dict[tuple[str, int, str, str], dict[str, object]]:
    messages, _, contexts, _ = scene.tables()
    rows = [
        {"message_id": i, "role": role, "latency_ns": 1, "baseline_latency_ns": 1, "noise_ns": 0}
        for i, role in enumerate(roles)
    ]
    recorded = Recording(
        messages, table("calls", []), contexts, table("thread_states", []), recorder=Recorder(frozenset({51}))
    )
    found = cores.summarise(table("compared", rows), recorded, recorded, Selection())
    return {(r["role"], r["cpu"], r["context"], r["name"]): r for r in found.to_pylist()}


def two() -> Scene:
    """A usual message at 0 (see build.Scene), and one at 10,000 whose thread waits for 4,000 ns behind a hog and perf."""
    from machinery.made_up.tables import message

    scene = Scene()
    scene.quiet(1)
    t = 10_000
    scene.messages.append(message(1, t, t + 500, t + 5500))
    scene.cores(
        t,
        [(0, 800, "softirq", "NET_RX", 7, "client"), (800, 5500, *IDLE)],
        [(0, 600, *IDLE), (600, 3600, "thread", "hog", 50, "hog"), (3600, 4600, "syscall", "write", 51, "perf"),
         (4600, 5000, "gap", "", -1, ""), (5000, 5500, "syscall", "read", TID, "server")],
    )  # fmt: skip
    return scene


def test_each_ns_of_a_core_has_one_context_and_shares_add_up():
    found = summary(two(), ["baseline", "slow"])
    of = {k[1:]: r["ns"] for k, r in found.items() if k[0] == "slow"}
    assert of == {
        (0, "softirq", "NET_RX"): 800, (0, "idle", ""): 4700,
        (1, "idle", ""): 600, (1, "thread", "hog"): 3000, (1, "recording", "perf (this recording)"): 1000,
        (1, "untraced", ""): 400, (1, "application", "server"): 500,
    }  # fmt: skip
    for role in cores.ROLES:
        for cpu in (0, 1):
            assert abs(sum(r["share"] for k, r in found.items() if k[:2] == (role, cpu)) - 1) < 1e-9


def test_lifetimes_count_on_the_core_where_the_message_is():
    found = summary(two(), ["baseline", "slow"])
    # 500 ns on the receive core, up to the hand-off; then the application core, without its time before the hand-off.
    of = {k[1:]: r["lifetime_ns"] for k, r in found.items() if k[0] == "slow" and r["lifetime_ns"]}
    assert of == {
        (0, "softirq", "NET_RX"): 500, (1, "idle", ""): 100, (1, "thread", "hog"): 3000, (1, "recording", "perf (this recording)"): 1000,
        (1, "untraced", ""): 400, (1, "application", "server"): 500,
    }  # fmt: skip
    assert found["slow", 1, "thread", "hog"]["lifetime_share"] == 3000 / 5500


def test_messages_at_the_same_time_do_not_count_a_core_twice():
    scene = two()
    scene.messages.append({**scene.messages[1], "message_id": 2})
    found = summary(scene, ["baseline", "slow", "slow"])
    assert found["slow", 1, "thread", "hog"]["ns"] == 3000
    assert found["slow", 1, "thread", "hog"]["lifetime_ns"] == 6000


def test_the_whole_recording_has_what_no_message_met():
    found = summary(two(), ["baseline", "slow"])
    # Between the messages, that is after the usual one: 800 to 10,000.
    assert found["all", 0, "idle", ""]["ns"] == 9200 + 4700
    assert found["baseline", 0, "idle", ""]["ns"] == 200
    # Contexts of core 1 are known from 0 to 15,500.
    assert sum(r["ns"] for k, r in found.items() if k[:2] == ("all", 1)) == 15_500


def test_bars_of_every_core_add_up_even_where_two_processes_are_called_alike():
    from matplotlib.figure import Figure
    from nsight_report.plots import cores as plot
    from nsight_report.tables.data_frames import to_pandas

    scene = two()
    scene.contexts[-1] |= {"pid": 77, "tid": 77}  # another process "server"
    messages, _, contexts, _ = scene.tables()
    rows = [
        {"message_id": i, "role": r, "latency_ns": 1, "baseline_latency_ns": 1, "noise_ns": 0}
        for i, r in enumerate(("baseline", "slow"))
    ]
    recorded = Recording(
        messages, table("calls", []), contexts, table("thread_states", []), recorder=Recorder(frozenset({51}))
    )
    frame = plot.rows(to_pandas(cores.summarise(table("compared", rows), recorded, recorded, Selection())))
    assert {"server", "server (other process)"} <= set(frame["label"])
    ax = plot.plot(frame, "slow", ax=Figure().subplots())
    bars = [path.get_extents() for bars in ax.collections for path in bars.get_paths()]
    assert 99.9999 <= max(bar.y1 for bar in bars) <= 100.0001


def test_every_context_of_a_core_can_be_drawn() -> None:
    frame = pd.DataFrame(
        [
            {"role": "slow", "cpu": 0, "context": context, "name": "x", "share": 0.1, "lifetime_share": 0.1}
            for context in cores.CONTEXTS
        ]
    )
    rows = plot_cores.rows(frame)
    assert set(rows["context"]) == set(cores.CONTEXTS)
    assert len(plot_cores.legend(rows)) == len(cores.CONTEXTS)


def test_requested_times_near_a_part_of_the_recording_include_long_ones_that_began_before() -> None:
    """On core 1: [0, 90) and [80, 95), on core 2 [10, 20). What is near may include more."""
    asked = _Asked.of("slow", "ns", np.array([1, 1, 2]), np.array([80, 0, 10]), np.array([95, 90, 20]))
    cores_of = np.array([1, 2])

    def on(low: int, high: int) -> set[tuple[int, ...]]:
        return set(zip(*(of.tolist() for of in asked.on(cores_of, low, high)), strict=True))

    assert {(1, 0, 90), (1, 80, 95)} <= on(50, 85)
    assert on(0, 5) == {(1, 0, 90)}
    assert on(92, 99) == {(1, 80, 95)}
    assert on(95, 99) == set()
