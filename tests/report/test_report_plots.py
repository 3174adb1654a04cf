# SPDX-License-Identifier: GPL-2.0-only
"""What is drawn is what the CSV says; same cause, same look; hostile names are only names."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
import nsight_report
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PatchCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from nsight_report.api import Capture
from nsight_report.plots import balloon, causes, cdf, timeline, timeline_axes
from nsight_report.plots.figures import draw
from nsight_report.plots.style import _COLOURS, _MARKERS, RC, UNEXPLAINED, looks
from nsight_report.summary import summarise

from .synthetic import START, World, write_capture

US = 1_000


@pytest.fixture
def world(capture: Path) -> Capture:
    """The analysed synthetic capture."""
    return nsight_report.open(capture)


def axes() -> mpl.axes.Axes:
    """Empty axes in the style of the report."""
    with mpl.rc_context(RC):
        return Figure(figsize=(11, 5)).subplots()


# --- one look per cause


def test_a_cause_has_one_look_in_every_figure(world: Capture) -> None:
    look = looks(["hog (A)", "Head-of-line blocking (A)", UNEXPLAINED])
    ax1, ax2 = axes(), axes()
    balloon.plot(balloon.rows(world.messages, world.coverage, world.anomalies), look, ax=ax1)
    causes.plot(causes.rows(world.anomalies), look, ax=ax2)
    balloons = [c for c in ax1.collections if isinstance(c, PathCollection)]
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
    drawn = np.vstack([dots, *[c.get_offsets() for c in ax.collections]])
    drawn = drawn[np.argsort(drawn[:, 0])]
    assert np.array_equal(drawn, rows[["message_id", "latency_ns"]].to_numpy(dtype=float))
    assert len(ax.collections[0].get_offsets()) == 20  # 1 % of 2000 messages
    assert ax.get_yscale() == "log"
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["other messages (n=1,980)", "hog (A) (n=20, max 1.01 ms)"]


def test_balloon_takes_the_largest_cause_of_a_message(world: Capture) -> None:
    rows = balloon.rows(world.messages, world.coverage, world.anomalies).set_index("message_id")
    assert rows.loc[200, "cause"] == "hog (A)"
    assert rows.loc[200, "cause_ns"] == 995 * US
    assert not rows.loc[0, "target"]


def test_target_without_anomaly_is_drawn_as_unexplained(world: Capture) -> None:
    rows = balloon.rows(world.messages, world.coverage, world.anomalies.iloc[:0])
    assert set(rows.loc[rows["target"], "cause"]) == {UNEXPLAINED}
    balloon.plot(rows, looks([UNEXPLAINED]), ax=axes())


def test_balloon_area_grows_with_the_deviation() -> None:
    areas = balloon.sizes(pd.Series([0, 500, 1000], dtype="Int64"))
    assert list(areas) == [20.0, 220.0, 420.0]  # 20 + 400 * deviation / largest


def test_distribution_line_is_the_rows(world: Capture) -> None:
    rows = cdf.rows(world.messages)
    ax = axes()
    cdf.plot(rows, "messages", ax=ax)
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
    # At least as slow: the solid line ends at 10 of 2000 (0.5 %), the dotted one at 1 (0.05 %).
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


# --- the timeline


def rows_of(world: Capture, number: int) -> pd.DataFrame:
    message = world.messages.set_index("message_id", drop=False).loc[number]
    return timeline.rows(message, world.calls, world.messages, world.anomalies)


def test_timeline_has_the_stamps_the_calls_and_the_cause(world: Capture) -> None:
    rows = rows_of(world, 200)
    nic = START + 200 * 100 * US
    marks = rows[rows["what"] == "mark"].set_index("name")
    assert list(marks.index) == ["NIC", "arrival", "hand-off", "read"]
    # The NIC stamp has an error of 200 ns: the band is nic - 200 .. nic + 200.
    assert (marks.loc["NIC", "start_ns"], marks.loc["NIC", "end_ns"]) == (nic - 200, nic + 200)
    assert marks.loc["read", "start_ns"] == nic + 1010 * US
    cause = rows[rows["what"] == "anomaly"].iloc[0]
    assert (cause["name"], cause["note"], cause["cpu"]) == ("hog (A)", "+995 us", 1)
    hog = rows[(rows["what"] == "call") & (rows["name"] == "hog")].iloc[0]
    assert (hog["lane"], hog["end_ns"] - hog["start_ns"]) == ("A", 1000 * US)
    others = rows[rows["what"] == "message"]
    # 201 ... 210 wait behind it (100 us apart, until the hog ends): ten messages.
    assert list(others["name"]) == [f"message {n}" for n in range(201, 211)]


def test_timeline_boxes_are_the_rows(world: Capture) -> None:
    rows = rows_of(world, 200)
    ax = axes()
    timeline_axes.plot(rows, "x", ax=ax)
    calls = rows[(rows["what"] == "call") & (rows["kind"] != "idle")]
    boxes = next(c for c in ax.collections if isinstance(c, PatchCollection))
    extents = [path.get_extents() for path in boxes.get_paths()]
    nic = START + 200 * 100 * US
    assert [e.x0 for e in extents] == pytest.approx([(at - nic) / 1e3 for at in calls["start_ns"]])
    assert [e.x1 for e in extents] == pytest.approx([(at - nic) / 1e3 for at in calls["end_ns"]])
    assert "(us)" in ax.get_xlabel()


def test_idle_and_undecoded_time_is_no_box(world: Capture) -> None:
    rows = rows_of(world, 200)
    assert (rows["kind"] == "idle").any()
    assert set(timeline_axes._FILL) & {"idle"} == set()


def test_inferred_end_is_dashed(world: Capture) -> None:
    calls = world.calls.copy()
    calls["end_known"] = calls["end_known"].cat.add_categories(["inferred"])
    calls.loc[(calls["symbol"] == "hog").fillna(False), "end_known"] = "inferred"
    message = world.messages.set_index("message_id", drop=False).loc[200]
    rows = timeline.rows(message, calls, world.messages, world.anomalies)
    ax = axes()
    timeline_axes.plot(rows, "x", ax=ax)
    boxes = next(c for c in ax.collections if isinstance(c, PatchCollection))
    drawn = rows[(rows["what"] == "call") & (rows["kind"] != "idle")]
    dashed = [style[1] is not None for style in boxes.get_linestyle()]
    assert dashed == list(drawn["end_known"] == "inferred")
    assert sum(dashed) == 1


def test_timeline_says_what_it_leaves_out(world: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_MOST_BOXES", 5)
    monkeypatch.setattr(timeline, "_MOST_MESSAGES", 3)
    rows = rows_of(world, 200)
    ax = axes()
    timeline_axes.plot(rows, "x", ax=ax)
    assert "shorter calls" in ax.get_title(loc="left")
    assert "7 other messages" in ax.get_title(loc="left")  # ten, of which three are drawn
    assert (rows["what"] == "call").sum() == 5


@pytest.mark.parametrize("receive", [None, 1])
def test_one_core_has_one_lane(world: Capture, receive: int | None) -> None:
    message = world.messages.set_index("message_id", drop=False).loc[200].copy()
    message["recv_cpu"] = pd.NA if receive is None else receive
    assert timeline.lanes(message) == {1: "A" if receive is None else "R and A"}


# --- files


def test_each_figure_has_caption_csv_and_both_formats(world: Capture, tmp_path: Path) -> None:
    figures = draw(world, summarise(world))
    assert [f.name for f in figures[:3]] == ["balloon", "causes", "cdf"]
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
    """``$\\frac$`` is an error to matplotlib's formula parser, and a legal thread name."""
    hostile = write_capture(tmp_path / "h.nsight", World(n=300, app="$\\frac$", hog="$x^$<b>"))
    c = nsight_report.open(hostile)
    figures = draw(c, summarise(c))
    assert figures
    assert all(b"<b>" not in f.svg for f in figures)


def test_capture_without_causes_still_has_its_figures(world: Capture) -> None:
    for name in ("anomalies", "causes"):
        world._frames[name] = getattr(world, name).iloc[:0]
    figures = draw(world, summarise(world))
    assert [f.name for f in figures[:2]] == ["balloon", "cdf"]
