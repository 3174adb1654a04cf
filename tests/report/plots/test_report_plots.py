# SPDX-License-Identifier: GPL-2.0-only
"""The plots show what the CSV contains; same cause, same look; hostile names are only names."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import nsight_report
import numpy as np
import pandas as pd
import pytest
from machinery.made_up.capture import START, World, write_capture
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from nsight_report.api import Capture
from nsight_report.calls import stacks
from nsight_report.commands.call_tree import tree
from nsight_report.export import page_data
from nsight_report.plots import (
    balloon,
    causes,
    cdf,
    figures,
    flame,
    folding,
    queuing,
    style,
    timeline,
    timeline_axes,
)
from nsight_report.plots.figures import Sheet, draw
from nsight_report.plots.style import (
    _COLOURS,
    _MARKERS,
    NOT_SLOWER,
    RC,
    SMALL_TICKS,
    UNEXPLAINED,
    VERMILLION,
    looks,
)
from nsight_report.summary import summarise

US = 1_000


@pytest.fixture
def world(capture: Path) -> Capture:
    """The analysed synthetic capture."""
    return nsight_report.open(capture)


def axes() -> mpl.axes.Axes:
    """Empty axes in the style of the report."""
    with mpl.rc_context(RC):
        return Figure(figsize=(11, 5)).subplots()


def of_data(ax: mpl.axes.Axes) -> list[PathCollection]:
    """The drawn rows, without the tick marks of a log axis."""
    return [c for c in ax.collections if isinstance(c, PathCollection) and c.get_gid() != SMALL_TICKS]


# --- one look per cause


def test_a_cause_has_one_look_in_every_figure(world: Capture) -> None:
    look = looks(["hog (A)", "Head-of-line blocking (A)", UNEXPLAINED])
    ax1, ax2 = axes(), axes()
    balloon.plot(balloon.rows(world.messages, world.coverage, world.anomalies), look, ax=ax1)
    causes.plot(causes.rows(world.anomalies), look, ax=ax2)
    balloons = of_data(ax1)
    assert {to_hex(b.get_facecolor()[0]) for b in balloons} == {look["hog (A)"].colour.lower()}
    boxes = [to_hex(p.get_facecolor()) for p in ax2.patches]
    assert boxes == [look["Head-of-line blocking (A)"].colour.lower(), look["hog (A)"].colour.lower()]


def test_known_categories_look_the_same_in_every_report() -> None:
    one = looks(["Head-of-line blocking (A)"])
    other = looks(["nginx (A)", "CPU idle (A)", "Head-of-line blocking (A)"])
    assert one["Head-of-line blocking (A)"] == other["Head-of-line blocking (A)"]


def test_a_name_keeps_its_look_when_lesser_causes_join() -> None:
    assert looks(["hog (A)"])["hog (A)"] == looks(["hog (A)", "nginx (A)", "redis (A)"])["hog (A)"]


def test_no_two_causes_of_a_report_look_alike() -> None:
    names = [f"program{i} (A)" for i in range(len(_COLOURS) * len(_MARKERS))]
    assert len(set(looks(names).values())) == len(names)


def test_the_first_causes_differ_in_colour_not_only_in_marker() -> None:
    names = [f"program{i} (A)" for i in range(len(_COLOURS))]
    assert len({look.colour for look in looks(names).values()}) == len(_COLOURS)


# --- the CSV is what is drawn


def test_balloons_are_the_rows(world: Capture) -> None:
    rows = balloon.rows(world.messages, world.coverage, world.anomalies)
    ax = axes()
    balloon.plot(rows, looks(["hog (A)"]), ax=ax)
    dots = ax.lines[0].get_xydata()
    drawn = np.vstack([dots, *[c.get_offsets() for c in of_data(ax)]])
    drawn = drawn[np.argsort(drawn[:, 0])]
    assert np.array_equal(drawn, rows[["message_id", "latency_ns"]].to_numpy(dtype=float))
    assert len(ax.collections[0].get_offsets()) == 20  # 1 % of 2000 messages
    assert ax.get_yscale() == "log"
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["other messages (n=1,980)", "hog (A) (n=20, max 1.01 ms)"]


def test_control_characters_in_the_legend_of_balloons_are_written_out(world: Capture) -> None:
    rows = balloon.rows(world.messages, world.coverage, world.anomalies)
    rows["cause"] = rows["cause"].astype(str).replace("hog (A)", "x\x1b]0;t\x07 (A)")
    ax = axes()
    balloon.plot(rows, looks(["x\x1b]0;t\x07 (A)"]), ax=ax)
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend[1] == "x\\x1b]0;t\\x07 (A) (n=20, max 1.01 ms)"


def test_balloon_takes_the_largest_cause_of_a_message(world: Capture) -> None:
    rows = balloon.rows(world.messages, world.coverage, world.anomalies).set_index("message_id")
    assert rows.loc[200, "cause"] == "hog (A)"
    assert rows.loc[200, "cause_ns"] == 995 * US
    assert not rows.loc[0, "slow"]


def test_slow_message_without_anomaly_is_unexplained_or_no_slower_than_usual(world: Capture) -> None:
    of = world.coverage.assign(coverage=[0.0] * 12 + [1.0] * 8)
    rows = balloon.rows(world.messages, of, world.anomalies.iloc[:0])
    causes = rows[rows["slow"]].set_index("message_id")["cause"]
    assert list(causes[of["message_id"]]) == [UNEXPLAINED] * 12 + [NOT_SLOWER] * 8
    assert "coverage" not in rows
    balloon.plot(rows, looks([UNEXPLAINED, NOT_SLOWER]), ax=axes())


def test_balloon_area_grows_with_the_deviation() -> None:
    areas = balloon.sizes(pd.Series([0, 500, 1000], dtype="Int64"))
    assert list(areas) == [20.0, 220.0, 420.0]  # 20 + 400 * deviation / largest


def test_distribution_line_is_the_rows(world: Capture) -> None:
    rows = cdf.rows(world.messages)
    ax = axes()
    cdf.plot(rows, ax=ax)
    line = ax.lines[0]
    assert np.array_equal(line.get_xdata(), rows["latency_ns"].to_numpy(dtype=float))
    assert np.array_equal(line.get_ydata(), rows["percent"].to_numpy())
    assert ax.get_legend().get_texts()[0].get_text() == "messages (n=2,000)"


def test_distribution_keeps_the_whole_tail_of_many_messages() -> None:
    n = 50_000
    rows = cdf.rows(pd.DataFrame({"latency_ns": pd.array(np.arange(1, n + 1), dtype="Int64")}))
    assert len(rows) < n  # thinned
    assert list(rows["latency_ns"].tail(1000)) == list(range(n - 999, n + 1))  # but not in the tail
    assert rows["percent"].iloc[-1] == 100.0


def test_tail_is_dotted_where_fewer_than_ten_messages_are(world: Capture) -> None:
    ax = axes()
    cdf.plot_tail(cdf.rows(world.messages), ax=ax)
    solid, dotted = ax.lines
    # "At least as slow": the solid line ends at 10 of 2000 (0.5 %), the dotted one at 1 (0.05 %).
    assert min(solid.get_ydata()) == pytest.approx(0.5)
    assert min(dotted.get_ydata()) == pytest.approx(0.05)
    assert dotted.get_linestyle() == ":"


def test_cause_boxes_are_the_rows(world: Capture) -> None:
    rows = causes.rows(world.anomalies)
    ax = axes()
    causes.plot(rows, looks(["hog (A)", "Head-of-line blocking (A)"]), ax=ax)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["Head-of-line blocking (A)\n11 messages", "hog (A)\n20 messages"]
    medians = [
        line.get_xdata()[0] for line in ax.lines if line.get_color() == "black" and len(line.get_xdata()) == 2
    ]
    assert rows.loc[rows["cause"] == "hog (A)", "deviation_ns"].median() in medians


def anomalies_of(*found: tuple[int, str, str, int]) -> pd.DataFrame:
    """Anomalies as (message, category, subject, ns)."""
    frame = pd.DataFrame(found, columns=["message_id", "category", "subject", "deviation_ns"])
    return frame.assign(side="A", anomaly="slower")


def test_causes_sort_by_what_they_add_or_by_how_many_messages_they_hit() -> None:
    found = anomalies_of(
        (1, "rare", "x", 900), (1, "common", "y", 10), (2, "common", "y", 20), (3, "common", "y", 30)
    )
    assert list(dict.fromkeys(causes.rows(found)["cause"])) == [
        "common (A)",
        "rare (A)",
    ]  # the last one is on top
    assert list(dict.fromkeys(causes.rows(found, "messages")["cause"])) == ["rare (A)", "common (A)"]


def test_few_values_are_drawn_one_by_one_with_the_causes_marker() -> None:
    found = anomalies_of((1, "rare", "x", 900), (2, "rare", "x", 700))
    ax = axes()
    causes.plot(causes.rows(found), looks(["rare (A)"]), ax=ax)
    assert not ax.patches  # no box of two values
    assert sorted(ax.collections[0].get_offsets()[:, 0]) == [700, 900]


def test_one_cause_is_split_into_what_is_behind_it() -> None:
    found = anomalies_of((1, "Locks", "mutex_lock", 900), (1, "Locks", "down_read", 50), (2, "Other", "z", 5))
    rows = causes.rows_of_cause(found, "Locks (A)")
    assert list(rows["cause"]) == ["down_read (slower)", "mutex_lock (slower)"]


def test_one_message_stands_beside_all_slow_messages() -> None:
    found = anomalies_of(
        (1, "Locks", "mutex_lock", 900), (2, "Locks", "mutex_lock", 100), (2, "Other", "z", 5)
    )
    rows = causes.rows_of_message(found, 1)
    assert list(rows["cause"].unique()) == ["Locks (A): mutex_lock (slower)"]
    assert dict(zip(rows["deviation_ns"], rows["this"])) == {900: True, 100: False}
    causes.plot(rows, looks(["Locks (A)"]), ax=axes())


def test_two_captures_are_two_lines_that_differ_without_colour(world: Capture) -> None:
    rows = pd.concat([cdf.rows(world.messages, "before"), cdf.rows(world.messages.head(500), "after")])
    ax = axes()
    cdf.plot(rows, ax=ax)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["before (n=2,000)", "after (n=500)"]
    assert len({line.get_linestyle() for line in ax.lines}) == 2


def test_what_holds_for_every_tail_stands_last_and_once(world: Capture) -> None:
    parts = [cdf.rows(world.messages, f"capture {i}") for i in range(7)]
    ax = axes()
    cdf.plot_tail(pd.concat(parts), ax=ax)
    legend = [t.get_text() for t in ax.get_legend().get_texts()]
    assert legend == [*(f"capture {i} (n=2,000)" for i in range(7)), "fewer than 10 messages"]


# --- queues


def queuing_of(**deviations: list[int]) -> pd.DataFrame:
    """Slow messages of each queue with these deviations, each with one message more ahead than usual."""
    return pd.DataFrame(
        [
            {"role": "slow", "message_id": i, "queue": queue, "side": "R", "function": f"serve_{queue.lower()}",
             "depth": 3, "baseline_depth": 2, "deviation_ns": ns}
            for queue, values in deviations.items()
            for i, ns in enumerate(values)
        ]
    )  # fmt: skip


def test_queues_are_slow_messages_with_more_ahead_than_usual() -> None:
    found = queuing_of(Socket=[10, 20], Driver=[30])
    other = found.assign(role="baseline", message_id=9)
    fewer = found.assign(message_id=8, depth=2)
    rows = queuing.rows(pd.concat([found, other, fewer], ignore_index=True))
    assert list(zip(rows["queue"], rows["message_id"], rows["more"])) == [
        ("Driver (R)", 0, 1), ("Socket (R)", 0, 1), ("Socket (R)", 1, 1),
    ]  # fmt: skip
    ax = axes()
    queuing.plot_depth(rows, ax=ax)
    assert [t.get_text() for t in ax.texts] == ["1", "2"]  # messages of each queue


def test_boxes_of_queues_are_of_all_messages_whatever_it_cost_them() -> None:
    rows = queuing.rows(queuing_of(Driver=[-5, -5, 100], Protocol=[-7, 0], Socket=[40, 100, 400, 500]))
    ax = axes()
    queuing.plot_delay(rows, ax=ax)
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["Driver (R)\nserve_driver", "Protocol (R)\nserve_protocol", "Socket (R)\nserve_socket"]
    width = queuing._WIDTH / 2  # caps of whiskers are narrower
    medians = [line.get_ydata()[0] for line in ax.lines if np.ptp(line.get_xdata()) == pytest.approx(width)]
    # Values not above 0 are at the foot of the axis, half the least positive value (40): medians are -5, -3.5, 250.
    assert medians == [20, 20, 250]
    tops = [patch.get_path().vertices[:, 1].max() for patch in ax.patches]
    assert tops == [47.5, 20, 425]  # upper quartiles of -5 -5 100, -7 0, and 40 100 400 500
    assert "not longer than usual" in [t.get_text() for t in ax.texts]


# --- call paths and flame graphs


def lifetime_of(*rows: tuple[int, int, str, int, int]) -> pd.DataFrame:
    """A lifetime on the application core, as (number, caller, name, ns, own ns)."""
    frame = pd.DataFrame(rows, columns=["call_id", "parent_id", "symbol", "within_dur_ns", "within_self_ns"])
    return frame.assign(side="A", kind="function")


def test_call_paths_are_means_over_all_messages() -> None:
    one = lifetime_of((5, -1, "read", 100, 40), (6, 5, "copy", 30, 30), (7, 5, "copy", 30, 30))
    other = lifetime_of((9, 2, "read", 50, 50))  # its caller began before the lifetime
    paths = stacks.mean_stacks([one, other]).set_index("path")
    core = "application core (A)"
    assert list(paths.index) == [core, f"{core};read", f"{core};read;copy"]
    assert list(paths["total_ns"]) == [75, 75, 30]  # (100 + 50) / 2, (30 + 30 + 0) / 2
    assert list(paths["self_ns"]) == [0, 45, 30]
    assert paths.loc[f"{core};read;copy", "n_calls"] == 1


def test_a_flame_graph_of_the_difference_shows_what_is_longer() -> None:
    slow = stacks.mean_stacks([lifetime_of((1, -1, "read", 1000, 400), (2, 1, "copy", 600, 600))])
    usual = stacks.mean_stacks([lifetime_of((1, -1, "read", 500, 400), (2, 1, "copy", 100, 100))])
    rows = flame.rows(stacks.compared(slow, usual)).set_index("name")
    assert (rows.loc["copy", "slow_ns"], rows.loc["copy", "baseline_ns"]) == (600, 100)
    ax = axes()
    flame.plot(rows.reset_index(), 1, ax=ax, n_baseline=1)
    colours = {to_hex(c) for c in ax.collections[0].get_facecolor()}
    assert to_hex(style.MORE) in colours
    assert "copy +500 ns" in [t.get_text() for t in ax.texts]


# --- the timeline


def rows_of(world: Capture, number: int) -> pd.DataFrame:
    return timeline.rows(world, number)


def drawn_with(
    world: Capture, number: int, calls: pd.DataFrame | None = None, anomalies: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The same rows with other calls or other anomalies."""
    found = world.stored_messages.rows(np.array([number]))
    timelines = timeline.Timelines(world.messages, world.anomalies if anomalies is None else anomalies)
    calls = world.lifetime(number) if calls is None else calls
    return timeline.as_table(timelines.parts(found.iloc[0], world.intervals(found)[0], calls))


def test_timeline_has_the_stamps_the_calls_and_the_cause(world: Capture) -> None:
    rows = rows_of(world, 200)
    nic = START + 200 * 100 * US
    marks = rows[rows["what"] == "mark"].set_index("name")
    assert list(marks.index) == ["NIC", "arrival", "hand-off", "read"]
    # The NIC timestamp has an error of 200 ns: the band is nic - 200 .. nic + 200.
    assert (marks.loc["NIC", "start_ns"], marks.loc["NIC", "end_ns"]) == (nic - 200, nic + 200)
    assert marks.loc["read", "start_ns"] == nic + 1010 * US
    cause = rows[rows["what"] == "anomaly"].iloc[0]
    assert (cause["name"], cause["note"], cause["cpu"]) == ("hog (A)", "+995 us", 1)
    hog = rows[(rows["what"] == "call") & (rows["name"] == "hog")].iloc[0]
    # From the hand-off on (5 us after the NIC): before that, the application core did not belong to the message.
    assert (hog["track"], hog["end_ns"] - hog["start_ns"]) == ("A", 995 * US)
    assert (hog["red"], hog["start_known"]) == ("red", "cut")
    others = rows[rows["what"] == "message"]
    # 201 ... 210 wait behind it (100 us apart, until the hog ends): ten messages.
    assert list(others["name"]) == [f"message {n}" for n in range(201, 211)]


def test_the_cause_that_adds_most_keeps_its_label(world: Capture) -> None:
    """Two intervals of 40 us of one cause are more than one of 50 of another cause, which lies between them."""
    message = world.messages.set_index("message_id", drop=False).loc[200]
    first = int(message["first_ns"])
    one = world.anomalies[world.anomalies["message_id"] == 200].head(1)
    parts = [("Small", 50, 500), ("Large", 40, 480), ("Large", 40, 700)]
    anomalies = pd.concat(
        [
            one.assign(
                category=name, deviation_ns=us * US, start_ns=first + at * US, end_ns=first + (at + us) * US
            )
            for name, us, at in parts
        ]
    )
    rows = drawn_with(world, 200, anomalies=anomalies)
    assert list(rows.loc[rows["what"] == "anomaly", "name"]) == ["Large (A)", "Large (A)", "Small (A)"]
    ax = axes()
    timeline_axes.plot(rows, "x", ax=ax)
    labels = [t.get_text() for t in ax.texts if "(A) +" in t.get_text()]
    assert labels == ["Large (A) +40.0 us", "Large (A) +40.0 us"]  # there is no room for the small one


def test_an_interval_that_is_not_all_of_a_cause_says_so(world: Capture) -> None:
    message = world.messages.set_index("message_id", drop=False).loc[200]
    first = int(message["first_ns"])
    one = world.anomalies[world.anomalies["message_id"] == 200].head(1)
    notes = []
    for us in (40, 79, 80, 100):
        end = first + us * US
        anomaly = one.assign(category="Locks", deviation_ns=100 * US, start_ns=first, end_ns=end)
        rows = drawn_with(world, 200, anomalies=anomaly)
        notes += list(rows.loc[rows["what"] == "anomaly", "note"])
    assert notes == ["+100 us (longest: 40.0 us)", "+100 us (longest: 79.0 us)", "+100 us", "+100 us"]


@pytest.mark.parametrize(
    ("cpu", "side", "track"), [(-1, "R", 0), (-1, "A", 1), (7, "A", 1), (1, "A", 1), (0, "R", 0)]
)
def test_cause_without_a_core_is_drawn_in_the_track_of_its_side(
    world: Capture, cpu: int, side: str, track: int
) -> None:
    """Time on the way has core -1; the thread waited for core 7. Tracks: core 0 is R, core 1 is A."""
    one = world.anomalies[world.anomalies["message_id"] == 200].head(1)
    world._frames["anomalies"] = one.assign(cpu=np.int32(cpu), side=side)
    rows = rows_of(world, 200)
    ax = axes()
    timeline_axes.plot(rows, "x", ax=ax)
    bases, _top = timeline_axes._layout(rows)
    base, levels, _name = bases[track]
    brackets = [line.get_ydata()[1] for line in ax.lines if line.get_color() == VERMILLION]
    assert brackets == [base + levels + 0.1]
    sheet = Sheet.of(world, summarise(world))
    life = json.loads(page_data.lifetimes(sheet)[200])
    assert [life["tracks"][at][0] for at, *_ in life["anomalies"]] == [track]


def test_timeline_boxes_are_the_rows(world: Capture) -> None:
    rows = rows_of(world, 200)
    ax = axes()
    timeline_axes.plot(rows, "x", ax=ax)
    calls = rows[(rows["what"] == "call") & (rows["kind"] != "idle")]
    boxes = next(c for c in ax.collections if isinstance(c, PolyCollection))
    extents = [path.get_extents() for path in boxes.get_paths()]
    nic = START + 200 * 100 * US
    assert [e.x0 for e in extents] == pytest.approx([(at - nic) / 1e3 for at in calls["start_ns"]])
    assert [e.x1 for e in extents] == pytest.approx([(at - nic) / 1e3 for at in calls["end_ns"]])
    assert "(us)" in ax.get_xlabel()


def test_idle_and_undecoded_time_is_no_box(world: Capture) -> None:
    rows = rows_of(world, 200)
    assert (rows["kind"] == "idle").any()
    assert set(timeline_axes.FILL) & {"idle", "gap"} == set()


def test_a_kernel_thread_is_red_by_the_name_that_anomalies_give_its_kind(tmp_path: Path) -> None:
    capture = nsight_report.open(write_capture(tmp_path / "kworker.nsight", World(hog="kworker/u8:3")))
    capture._frames["anomalies"] = capture.anomalies.assign(
        subject=capture.anomalies["subject"].astype(str).replace("kworker/u8:3", "kworker")
    )
    rows = rows_of(capture, 200)
    boxes = rows[(rows["what"] == "call") & (rows["name"] == "kworker/u8:3")]
    assert len(boxes) and (boxes["red"] == "red").all()
    roots = tree(capture.lifetime(200), capture.anomalies[capture.anomalies["message_id"] == 200])
    assert [n.cause for n in roots if n.name == "kworker/u8:3"] == ["kworker/u8:3 (A)"]


def test_inferred_end_is_dashed(world: Capture) -> None:
    calls = world.lifetime(200)
    calls["end_known"] = calls["end_known"].cat.add_categories(["inferred"])
    calls.loc[(calls["symbol"] == "hog").fillna(False), "end_known"] = "inferred"
    rows = drawn_with(world, 200, calls=calls)
    ax = axes()
    timeline_axes.plot(rows, "x", ax=ax)
    boxes = next(c for c in ax.collections if isinstance(c, PolyCollection))
    drawn = rows[(rows["what"] == "call") & (rows["kind"] != "idle")]
    dashed = [style[1] is not None for style in boxes.get_linestyle()]
    assert dashed == list(drawn["end_known"] == "inferred")
    assert sum(dashed) == 1


@pytest.mark.parametrize("n", [1, 2, 3])
def test_timeline_of_few_boxes_is_drawn(world: Capture, n: int) -> None:
    """matplotlib turns a tuple of two line styles into one style."""
    rows = rows_of(world, 200)
    calls = rows[(rows["what"] == "call") & ~rows["kind"].isin(["idle", "gap"])]
    few = rows[(rows["what"] != "call") | rows.index.isin(calls.index[:n])]
    ax = axes()
    timeline_axes.plot(few, "x", ax=ax)
    boxes = next(c for c in ax.collections if isinstance(c, PolyCollection))
    assert len(boxes.get_paths()) == n


def test_timeline_says_what_it_leaves_out(world: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "NARROWEST", 0.5)
    monkeypatch.setattr(timeline, "_MOST_MESSAGES", 3)
    rows = rows_of(world, 200)
    ax = axes()
    timeline_axes.plot(rows, "x", ax=ax)
    # Core 0 keeps the interrupt (4 us of 5) and the softirq in it (3.5), core 1 keeps the hog (995 us of 1005),
    # but not its timer interrupt (10), the softirq in that, the thread (4), or its read (2).
    assert "4 calls too short" in ax.get_title(loc="left")
    assert "7 other messages" in ax.get_title(loc="left")  # ten, three of which are drawn
    shown = rows[(rows["what"] == "call") & (rows["kind"] != "idle")]
    assert list(shown["name"]) == ["virtio0-input", "NET_RX", "hog"]


def test_a_short_interval_keeps_its_red_boxes_and_the_title_counts_the_others(world: Capture) -> None:
    """Core 0 has 5 of 1010 us: boxes of 100 ns are smaller than a point there (0.12 %)."""
    rows = rows_of(world, 200)
    irq = rows[(rows["what"] == "call") & (rows["kind"] == "hardirq") & (rows["cpu"] == 0)].iloc[[0]]
    start = int(irq["start_ns"].iloc[0])
    short = [
        irq.assign(level=level, start_ns=start, end_ns=start + 100, red=red, name=f"level {level}")
        for level, red in ((2, ""), (3, "red"), (4, ""), (5, ""))
    ]
    ax = axes()
    frame = pd.concat([rows, *short], ignore_index=True)
    timeline_axes.plot(frame, "x", ax=ax)
    bases, _top = timeline_axes._layout(frame)
    assert bases[0][1] == 4  # levels 0 to 3: the red box is on the last one
    calls = frame[(frame["what"] == "call") & (frame["kind"] != "idle")]
    boxes = next(c for c in ax.collections if isinstance(c, PolyCollection))
    assert len(boxes.get_paths()) == len(calls) - 2
    reds = [to_hex(c) == to_hex(timeline_axes.RED) for c in boxes.get_facecolor()]
    assert sum(reds) == (calls["red"] != "").sum() == 2
    assert "not drawn: 2 calls too short beside the longer interval" in ax.get_title(loc="left")


# --- deep stacks


def stack(*rows: tuple[int, int, str, str, int, int]) -> pd.DataFrame:
    """Calls as (number, caller, kind, name, begin, end)."""
    return pd.DataFrame(rows, columns=["call_id", "parent_id", "kind", "symbol", "begin", "end"])


def folded(calls: pd.DataFrame, red: set[int] = frozenset()) -> tuple[list[tuple[str, int]], int]:
    mask = calls["call_id"].isin(red).to_numpy()
    boxes, left_out = folding.fold(calls, 1000, mask)
    return [(" > ".join(calls["symbol"].iloc[b.calls]), b.level) for b in boxes], left_out


WRAPPED = stack(
    (0, -1, "thread", "server", 0, 1000),
    (1, 0, "function", "outer", 0, 1000),
    (2, 1, "function", "wrapper", 0, 990),
    (3, 2, "function", "work", 0, 950),
    (4, 3, "function", "half", 0, 475),
    (5, 3, "function", "rest", 480, 940),
)


def test_callers_that_only_call_share_a_box() -> None:
    assert folded(WRAPPED) == ([("server", 0), ("outer > wrapper > work", 1), ("half", 2), ("rest", 2)], 0)


def test_an_anomalous_call_keeps_its_own_box() -> None:
    assert folded(WRAPPED, {2}) == (
        [("server", 0), ("outer", 1), ("wrapper", 2), ("work", 3), ("half", 4), ("rest", 4)], 0
    )  # fmt: skip


def test_narrow_calls_are_counted_and_their_callees_hang_on_the_next_caller() -> None:
    calls = stack(
        (0, -1, "thread", "server", 0, 1000), (1, 0, "function", "short", 10, 11), (2, 1, "function", "shorter", 10, 11),
        (3, 0, "function", "long", 20, 900),
    )  # fmt: skip
    assert folded(calls) == ([("server", 0), ("long", 1)], 2)
    assert folded(calls, {2}) == ([("server", 0), ("shorter", 1), ("long", 1)], 1)


def test_a_deep_stack_is_drawn_up_to_a_level_and_the_rest_is_counted() -> None:
    calls = stack(*((i, i - 1, "softirq", f"n{i}", 0, 1000) for i in range(50)))
    boxes, left_out = folded(calls)
    assert (len(boxes), left_out) == (folding.LEVELS, 50 - folding.LEVELS)


def test_undecoded_time_is_blank_and_says_so(world: Capture) -> None:
    calls = world.lifetime(200)
    calls["kind"] = calls["kind"].cat.add_categories(["gap"])
    calls.loc[(calls["symbol"] == "hog").fillna(False), "kind"] = "gap"
    rows = drawn_with(world, 200, calls=calls)
    ax = axes()
    timeline_axes.plot(rows, "x", ax=ax)
    boxes = next(c for c in ax.collections if isinstance(c, PolyCollection))
    assert (
        max(path.get_extents().width for path in boxes.get_paths()) < 100
    )  # us: nothing is drawn where the hog's 995 were
    assert timeline_axes.UNTRACED in [t.get_text() for t in ax.texts]


@pytest.mark.parametrize("receive", [None, 1])
def test_one_core_has_one_track(world: Capture, receive: int | None) -> None:
    message = world.messages.set_index("message_id", drop=False).loc[200].copy()
    message["recv_cpu"] = message["handoff_cpu"] = pd.NA if receive is None else receive
    assert timeline.tracks(message) == {1: "A" if receive is None else "R and A"}


def test_a_core_that_only_handed_it_off_has_a_track(world: Capture) -> None:
    message = world.messages.set_index("message_id", drop=False).loc[200].copy()
    assert timeline.tracks(message) == {0: "R", 1: "A"}
    message["handoff_cpu"] = 3
    assert timeline.tracks(message) == {0: "R", 3: "R", 1: "A"}


# --- files


@pytest.mark.slow
def test_each_figure_has_caption_csv_and_both_formats(world: Capture, tmp_path: Path) -> None:
    figures = draw(world, summarise(world))
    assert [f.name for f in figures if not f.name.endswith("-timeline")] == [
        "balloon", "causes", "causes-by-messages", "cdf", "largest-cause", "message-200-causes", "flame", "flame-difference"
    ]  # fmt: skip
    assert sum(f.name.endswith("-timeline") for f in figures) == 5
    for figure in figures:
        figure.save(tmp_path)
        for word in (
            "host db7",
            "kernel 6.12.1",
            "mc-worker",
            "coverage 99%",
            "nsight-record -d 1 --port 11211",
        ):
            assert word in figure.caption
        assert (tmp_path / f"{figure.name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (tmp_path / f"{figure.name}.svg").read_bytes()
        saved = pd.read_csv(tmp_path / f"{figure.name}.csv")
        again = pd.read_csv(io.StringIO(figure.data.to_csv(index=False)))
        pd.testing.assert_frame_equal(saved, again)
        assert len(saved) == len(figure.data) > 0


def test_names_are_drawn_as_they_are_not_as_mathematics(tmp_path: Path) -> None:
    """``$\\frac$`` is an error for matplotlib's formula parser, and a legal thread name."""
    hostile = write_capture(tmp_path / "h.nsight", World(n=300, app="$\\frac$", hog="$x^$<b>"))
    c = nsight_report.open(hostile)
    figures = draw(c, summarise(c))
    assert figures
    assert all(b"<b>" not in f.svg for f in figures)


@pytest.mark.slow
def test_capture_without_causes_still_has_its_figures(world: Capture) -> None:
    for name in ("anomalies", "causes"):
        world._frames[name] = getattr(world, name).iloc[:0]
    figures = draw(world, summarise(world))
    assert [f.name for f in figures[:2]] == ["balloon", "cdf"]


def test_both_axes_of_every_figure_have_a_title(world: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, list[tuple[str, str]]] = {}

    def titles(name: str, *_words: object) -> None:
        fig = Figure()
        plot = _words[-1]
        assert callable(plot)
        plot(fig)
        found[name] = [(ax.get_xlabel(), ax.get_ylabel()) for ax in fig.axes]
        for ax, (_x, y) in zip(fig.axes, found[name]):  # panels that share an axis share its title
            assert y or ax.get_shared_y_axes().joined(ax, fig.axes[0]), name

    monkeypatch.setattr(figures, "_figure", titles)
    sheet = Sheet.of(world, summarise(world))
    for make in figures.DRAWN:
        list(make(sheet))
    assert {"balloon", "causes", "cdf", "flame", "flame-difference"} <= found.keys()
    assert [name for name, axes in found.items() if not axes[0][1] or not all(x for x, _y in axes)] == []


def test_legends_and_captions_of_long_names_stay_in_the_figure(
    world: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of box in one timeline, and a caption of wide letters: a reader cannot read what is cut off."""
    outside = []

    class Canvas(FigureCanvasAgg):
        def print_png(self, *_args: Any, **_options: Any) -> None:
            self.draw()
            fig = self.figure
            texts = [*fig.texts, *(legend for ax in fig.axes if (legend := ax.get_legend()))]
            for artist in texts:
                box = artist.get_window_extent(self.get_renderer())
                if box.x0 < 0 or box.x1 > fig.bbox.x1 or box.y0 < 0:
                    outside.append((artist, box))

    monkeypatch.setattr(figures, "FigureCanvasAgg", Canvas)
    sheet = Sheet.of(world, summarise(world))
    sheet.note = "workload Wwwwwww, mode tracepoints; " * 12
    rows = rows_of(world, 200)
    every = rows[rows["what"] == "call"].head(1)
    more = [every.assign(kind=kind, track="R and A") for kind in [*timeline_axes.FILL, "gap", "idle"]]
    inferred = every.assign(end_known="inferred", track="R and A")
    rows = pd.concat([rows.assign(track="R and A"), *more, inferred], ignore_index=True)
    figures._timeline(sheet, sheet.summary.slowest[0], rows)
    list(figures._balloons(sheet))
    assert outside == []
