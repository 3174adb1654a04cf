# SPDX-License-Identifier: GPL-2.0-only
"""The command of the tutorial, as written; its output is compared with perf's own text."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise

import pytest
from machinery.pt_emulation.fixtures import unpack

from perf_scripts import runs

sys.path.insert(0, str(runs.SCRIPTS))
from nsight_perf import summary

pytestmark = pytest.mark.tools

CALLS, RETURNS = {1, 3, 5, 9, 10}, {2, 4, 6}
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def table(text: str, heading: str) -> list[str]:
    """Lines of one table of the summary, without the heading and the titles."""
    return text.partition(f"\n{heading}\n")[2].partition("\n\n")[0].splitlines()[1:]


def nanoseconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


def test_command_of_the_issue_works_from_the_top_of_the_tree(captures, tmp_path):
    # Where symfs is needed (programs of another machine) it is perf's own option; nothing else is added.
    command = "perf script -i perf.data --itrace=cr -s perf-scripts/nsight.py"
    assert command in (runs.TOP / "Documentation/tutorial.md").read_text()
    (tmp_path / "perf-scripts").symlink_to(runs.SCRIPTS)
    (tmp_path / "perf.data").symlink_to(captures["hog"] / "capture.nsight/perf.data")
    argv = [*shlex.split(command)[:2], "--symfs", str(captures["hog"] / "symfs"), *shlex.split(command)[2:]]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == runs.by_script(captures["hog"]).stdout
    assert done.stdout.startswith("Lost or not decoded\n  nothing\n\nCores\n")


@pytest.mark.parametrize("name", unpack.names())
def test_summary_agrees_with_the_text_of_perf(name, captures, edges):
    text = runs.by_script(captures[name], "--top", "100000").stdout
    made = edges[name]

    # One core: calls, returns, from the first edge to the last, share of the idle thread, threads.
    (core,) = table(text, "Cores")
    number, calls, returns, length, unit, idle, _, _, _, threads = core.split()
    assert number == "0"
    assert int(calls.replace(",", "")) == sum(e[8] in CALLS for e in made)
    assert int(returns.replace(",", "")) == sum(e[8] in RETURNS for e in made)
    assert float(length) == round((made[-1][0] - made[0][0]) / UNITS[unit], 3)
    assert int(threads) == len({e[4] for e in made})
    ran = sum(b[0] - a[0] for a, b in pairwise(made) if b[4] == 0)
    assert float(idle) == round(100 * ran / (made[-1][0] - made[0][0]), 1)

    # Self time: an edge's target runs until the next edge, unless trace was off or lost.
    self_time, n_calls = defaultdict(int), defaultdict(int)
    for edge, following in pairwise(made):
        if edge[8] != 8 and following[8] != 7:
            self_time[edge[7]] += following[0] - edge[0]
    for edge in made:
        n_calls[edge[7]] += edge[8] in CALLS
    rows = {}
    for row in table(text, "Functions by self time"):
        time, share, count, function = re.match(r" +([\d.]+ \w+) +([\d.]+)% +([\d,]+)  (.*)", row).groups()
        rows[function] = (nanoseconds(time), float(share), int(count.replace(",", "")))
    assert len(rows) == len(self_time) > 100
    total = sum(self_time.values())
    for (symbol, dso), ns in self_time.items():
        time, share, count = rows[f"{symbol or '[unknown]'}" + (f" ({dso})" if dso else "")]
        assert time == pytest.approx(ns, rel=0.001, abs=0.5)
        assert share == pytest.approx(100 * ns / total, abs=0.051)
        assert count == n_calls[symbol, dso]
    times = [row[0] for row in rows.values()]
    assert times == sorted(times, reverse=True)


def test_top_limits_the_list(captures):
    text = runs.by_script(captures["lock"], "--top", "3").stdout
    assert len(table(text, "Functions by self time")) == 3


def test_program_prints_the_same_summary(captures, tmp_path):
    done = runs.by_program(captures["lock"], tmp_path / "out", "--summary")
    assert done.stdout == runs.by_script(captures["lock"]).stdout
    short = runs.by_program(captures["lock"], tmp_path / "out")
    assert short.stdout == "Lost or not decoded\n  nothing\n"


def test_window_is_perfs_own_option(captures, edges, tmp_path):
    first = edges["lock"][0][0]
    window = [f"{t // 10**9}.{t % 10**9:09d}" for t in (first + 200_000, first + 400_000)]
    perf_options = [*runs.inputs(captures["lock"]), "--itrace=cr", "--time", ",".join(window)]
    done = runs.perf("script", *perf_options, "-s", runs.SCRIPT, "--", "-o", tmp_path / "script")
    assert done.returncode == 0, done.stderr
    assert "interrupted" not in done.stdout
    times = [e[0] for e in runs.read_stream(tmp_path / "script").edges]
    assert first + 200_000 <= min(times) and max(times) <= first + 400_000
    assert 0 < len(times) < len(edges["lock"]) / 2
    runs.by_program(captures["lock"], tmp_path / "program", perf_options=["--time", ",".join(window)])
    assert [e[0] for e in runs.read_stream(tmp_path / "program").edges] == times


def test_times_of_threads_and_of_the_idle_one_by_hand():
    # One core: thread 5 runs f from 100 to 130 and g until 150; idle from 150; nothing traced from 170 to 190,
    # idle until 200; an overflow from there to 260. Another core in the same block must not mix in.
    rows = [
        (100, 5, 0, 1, 1), (105, 9, 1, 7, 1), (130, 5, 0, 2, 1), (150, 0, 0, 3, 2), (170, 0, 0, 0, 8),
        (175, 9, 1, 8, 1), (190, 0, 0, 3, 7), (200, 0, 0, 4, 1), (260, 5, 0, 1, 7), (270, 5, 0, 2, 2),
    ]  # fmt: skip
    whole, parts = summary.Summary(), summary.Summary()

    def columns(some):
        return [[r[0] for r in some], [], [], [], *([r[i] for r in some] for i in (1, 2)), [], *(
            [r[i] for r in some] for i in (3, 4)
        )]  # fmt: skip

    whole.edges(columns(rows))
    for row in rows:  # one block each: what is carried from block to block
        parts.edges(columns([row]))
    for made in (whole, parts):
        # time up to an edge is that of the edge's thread: 5 from 100 to 130 and from 200 to 270
        assert made.thread_times(0) == {5: 30 + 70, 0: 70}
        assert made.thread_times(1) == {9: 70}
        assert made.cores[0].not_traced == 20 + 60
        assert dict(made.self_time) == {1: 30 + 10, 2: 20, 3: 20 + 10, 7: 70}
        assert dict(made.n_calls) == {1: 1, 2: 1, 4: 1, 7: 1, 8: 1}
        assert (made.cores[0].first, made.cores[0].last) == (100, 270)


def test_names_of_the_recorded_machine_do_not_write_on_the_terminal():
    made = summary.Summary()
    made.self_time[0] = 1000
    text = "\n".join(summary.report(made, [("f\x1b[2J\x07\u202e", "/lib\n\x9b/x.so")], 10))
    assert "f\\x1b[2J\\x07\\x202e (/lib\\x0a\\x9b/x.so)" in text
    assert all(c.isprintable() or c == "\n" for c in text)
