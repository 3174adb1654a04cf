# SPDX-License-Identifier: GPL-2.0-only
"""top, show, compare and export on the command line, with captures whose numbers are known (machinery/made_up/capture.py)."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nsight_report
import numpy as np
import pyarrow.parquet as pq
import pytest
from machinery.made_up.capture import HOG_FOR, START, US, World, write_capture
from nsight_report import arguments
from nsight_report.commands import show
from nsight_report.commands.call_tree import Node, lines
from nsight_report.commands.compare import _interval
from nsight_report.export import chrome
from nsight_report.export.terminal import plain_console
from nsight_report.tables import schema

from ..conftest import Run

ROOT = Path(__file__).resolve().parents[3]
FORMATS = (ROOT / "Documentation/formats.md").read_text()
MAN = (
    (ROOT / "Documentation/man/nsight-report.1")
    .read_text()
    .replace("\\-", "-")
    .replace("\\fI", "")
    .replace("\\fR", "")
)


def read(run: Run, *args: object) -> dict[str, Any]:
    done = run(*args, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def documented(heading: str) -> set[str]:
    table = FORMATS.partition(f"### {heading}\n")[2].partition("\n#")[0]
    first = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.M)
    return {word for cell in first for word in re.findall(r"`(\w+)`", cell)}


# -- top --------------------------------------------------------------------------------


def test_top_ranks_causes_by_what_was_asked(run: Run, capture: Path) -> None:
    value = read(run, "top", capture)
    assert set(value) == documented("nsight-report top --json")
    assert [r["cause"] for r in value["rows"]] == ["hog (A)", "Head-of-line blocking (A)"]
    hog, hol = value["rows"]
    assert (hog["n_messages"], hog["pervasiveness"]) == (20, 1.0)
    # The messages of 920 and 830 us wait for one or two before them; the nine of 1010 us wait for none.
    assert (hol["n_messages"], hol["pervasiveness"]) == (11, 0.55)
    by_max = read(run, "top", capture, "--sort", "max")["rows"]
    assert [r["max_deviation_ns"] for r in by_max] == sorted(
        (r["max_deviation_ns"] for r in by_max), reverse=True
    )


def test_top_by_message_lists_the_slow_messages_with_its_causes(run: Run, capture: Path) -> None:
    value = read(run, "top", capture, "--by", "message", "-n", "3")
    assert (value["n_rows"], len(value["rows"])) == (20, 3)
    first = value["rows"][0]
    assert (first["message_id"], first["latency_ns"], first["causes"]) == (
        200,
        1010 * US,
        {"hog (A)": 995 * US},
    )
    in_time = read(run, "top", capture, "--by", "message", "--sort", "time", "-n", "0")["rows"]
    assert [r["message_id"] for r in in_time] == sorted(r["message_id"] for r in in_time)
    assert len(in_time) == 20


def test_top_refuses_an_order_that_its_rows_do_not_have(run: Run, capture: Path) -> None:
    done = run("top", capture, "--sort", "coverage")
    assert done.returncode == 2
    assert "--by cause cannot be sorted by coverage" in done.stderr
    assert "hint: --sort is one of deviation" in done.stderr


# -- show -------------------------------------------------------------------------------


def test_show_tells_stamps_segments_causes_and_neighbours(run: Run, capture: Path) -> None:
    value = read(run, "show", capture, "201")
    assert set(value) == documented("nsight-report show --json")
    nic = START + 201 * 100 * US
    assert [(m["name"], m["since_first_ns"], m["cpu"]) for m in value["marks"]] == [
        ("NIC", 0, None), ("arrival", 2 * US, 0), ("hand-off", 5 * US, 0), ("read", 920 * US, 1),
    ]  # fmt: skip
    receive, application = value["segments"]
    assert (receive["side"], receive["dur_ns"], receive["known_ns"]) == ("R", 5 * US, 5 * US)
    assert (application["side"], application["cpu"], application["dur_ns"]) == ("A", 1, 915 * US)
    # The hog runs for another 895 us after the hand-off; then the thread reads message 200 and this one.
    assert application["on_core"][0] == {"kind": "thread", "name": "hog", "ns": 895 * US}
    hog = value["causes"][0]
    assert (hog["cause"], hog["deviation_ns"], hog["end_ns"]) == (
        "hog (A)",
        895 * US,
        nic - 100 * US + HOG_FOR,
    )
    near = value["neighbours"]
    assert (near["before"]["message_id"], near["after"]["message_id"]) == (197, 205)
    assert near["n_finished_first"] == 1  # 200, read 10 us before
    assert {m["message_id"] for m in near["meanwhile"]} >= {200, 202}


def test_show_takes_the_slowest_and_says_when_there_is_no_diagnosis(run: Run, capture: Path) -> None:
    assert "message 200: 1.01 ms" in run("show", capture).stdout
    text = run("show", capture, "7").stdout
    assert "--slow id:7 explains it" in text
    assert "Causes" not in text


def test_show_marks_the_calls_that_are_the_cause(run: Run, capture: Path) -> None:
    text = run("show", capture, "200").stdout
    assert re.search(r"^! +995 us +99%  \(A\) thread hog +<- hog \(A\)", text, re.M)
    # The timer that interrupted the hog (10 of 1010 us) is below 3 %, so it is shown only on request.
    assert "local_timer" not in text
    assert "local_timer" in run("show", capture, "200", "--least", "0").stdout


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (("{c}", "99999"), "no message 99999: messages are 0 to 1999", "top CAPTURE --by message"),
        (("200", "{c}"), "the capture comes first", "show {c} 200"),
        (("{c}", "first"), "'first' is not a message ID", "its number, or slowest"),
    ],
)
def test_show_says_what_is_wrong_with_its_arguments(
    run: Run, capture: Path, args: tuple[str, ...], message: str, hint: str
) -> None:
    done = run("show", *(a.format(c=capture) for a in args))
    assert done.returncode in (2, 3)
    error, fix = done.stderr.splitlines()
    assert message in error
    assert hint.format(c=capture) in fix


def test_call_tree_may_be_deeper_than_python_allows() -> None:
    depth = 3 * sys.getrecursionlimit()
    root = node = Node("A", "function", "f", ns=depth)
    for ns in range(depth - 1, 0, -1):
        node.children["function", "f"] = node = Node("A", "function", "f", ns=ns)
    # Of the nodes of 1 to 3,000 ns, those of 100 ns or more, each one level below its caller.
    assert [(n.ns, at) for n, at in root.walk(100)] == [(depth - at, at) for at in range(depth - 99)]


def test_role_of_a_message_is_not_that_of_its_namesake_in_the_other_capture(
    run: Run, capture: Path, calm: Path
) -> None:
    numbers = read(
        run, "export", "csv", calm, "-o", calm / "out", "--tables", "compared", "--against", capture
    )
    assert numbers
    with (calm / "out/compared.csv").open() as file:
        usual = next(r["message_id"] for r in csv.DictReader(file) if r["role"] == "baseline")
    assert read(run, "show", capture, usual)["role"] == "baseline"
    assert read(run, "show", calm, usual, "--against", capture)["role"] is None


def test_callers_that_do_nothing_else_share_a_line() -> None:
    def call(depth: int, name: str, ns: int, n: int = 1) -> dict[str, Any]:
        return {
            "side": "A",
            "depth": depth,
            "kind": "function",
            "name": name,
            "ns": ns,
            "n_calls": n,
            "cause": None,
        }

    # b has 98 of a's 100 ns and shares its line; c and d have half of that each; e is called twice.
    calls = [call(0, "a", 100), call(1, "b", 98), call(2, "c", 50), call(3, "e", 49, 2), call(2, "d", 48)]
    assert [re.sub(" +", " ", text.strip()) for text, _ in lines(calls, 200)] == [
        "100 ns 50% (A) a > b", "50 ns 25% c", "49 ns 24% e x2", "48 ns 24% d",
    ]  # fmt: skip


# -- compare ----------------------------------------------------------------------------


@pytest.fixture
def calm(tmp_path: Path, capture: Path) -> Path:
    """As ``capture`` but without a hog; stored as if compared with it."""
    world = World()
    world.messages = [m | {"app_ns": m["nic_ns"] + 10 * US, "last_ns": m["nic_ns"] + 10 * US, "latency_ns": 10 * US}
                      for m in world.messages]  # fmt: skip
    return write_capture(tmp_path / "calm.nsight", world, against=str(capture))


def test_compare_names_what_went_and_what_got_faster(run: Run, capture: Path, calm: Path) -> None:
    value = read(run, "compare", capture, calm)
    assert set(value) == documented("nsight-report compare --json")
    assert value["baseline"] == "p25-75 of small.nsight"
    hog = value["causes"][0]
    assert (hog["cause"], hog["change"]) == ("hog (A)", "went")
    # 20 slow messages: (9 * 995 + 9 * 895 + 2 * 795) us together.
    assert (hog["before_ns"], hog["after_ns"]) == ((9 * 995 + 9 * 895 + 2 * 795) * US // 20, 0)
    at = {p["percentile"]: p for p in value["percentiles"]}
    assert at[50.0]["change"] == "not clear"
    assert (at[99.0]["before_ns"], at[99.0]["after_ns"], at[99.0]["change"]) == (830 * US, 10 * US, "faster")
    text = run("compare", capture, calm).stdout
    assert "p99 faster: 830 us to 10.0 us (/83.00)" in text
    assert "went: hog (A) (930 us)" in text


def test_interval_of_a_percentile_is_two_deviations_of_its_rank() -> None:
    # 10,000 values, p99: rank 9900, deviation sqrt(10000 * 0.99 * 0.01) = 9.95: ranks 9880 to 9920.
    assert _interval(np.arange(1, 10_001, dtype=np.int64), 99.0) == (9880, 9920)


def test_compare_refuses_against(run: Run, capture: Path) -> None:
    done = run("compare", capture, capture, "--against", capture)
    assert done.returncode == 2
    assert "AFTER is compared with BEFORE already" in done.stderr


# -- export -----------------------------------------------------------------------------


def test_folded_stacks_are_mean_times_of_baseline_and_slow_messages(
    run: Run, capture: Path, tmp_path: Path
) -> None:
    done = run("export", "folded", capture, "-o", tmp_path / "f")
    assert done.returncode == 0, done.stderr
    stacks = {}
    for line in (tmp_path / "f").read_text().splitlines():
        stack, baseline, slow = line.rsplit(" ", 2)
        stacks[stack] = (int(baseline), int(slow))
    # Self time of the hog: the average wait for it (930 us) less its timer interrupt of 10 us.
    assert stacks["(A);thread:_hog"] == (0, 920 * US)
    assert stacks["(A);thread:_hog;hardirq:_local_timer"] == (0, 5 * US)
    assert stacks["(A);thread:_hog;hardirq:_local_timer;softirq:_TIMER"] == (0, 5 * US)
    # A usual message takes 10 us: all of them are there.
    assert sum(r for r, _t in stacks.values()) == 10 * US
    one = run("export", "folded", capture, "-o", tmp_path / "g", "--messages", "200")
    assert one.returncode == 0
    assert sum(int(x.rsplit(" ", 1)[1]) for x in (tmp_path / "g").read_text().splitlines()) == 1010 * US


def test_chrome_trace_has_calls_messages_and_flows(run: Run, capture: Path, tmp_path: Path) -> None:
    assert run("export", "chrome", capture, "-o", tmp_path / "c.json", "--messages", "200").returncode == 0
    events = json.loads((tmp_path / "c.json").read_text())["traceEvents"]
    origin = events[-1]["args"]["monotonic_ns"]
    message = next(e for e in events if e.get("cat") == "message")
    assert (round(message["ts"] * 1000) + origin, message["dur"]) == (START + 200 * 100 * US, 1010.0)
    assert [e["ph"] for e in events if e["name"] == "message"] == ["s", "t", "t", "f"]
    assert any(e["name"] == "hog" and e["dur"] == 1000.0 for e in events)


def test_cause_without_a_core_is_on_no_core(capture: Path, tmp_path: Path) -> None:
    """Time on the way has core -1: the export says so and draws it with its message."""
    c = nsight_report.open(capture)
    c._frames["anomalies"] = c.anomalies.assign(cpu=np.int32(-1))
    chrome.export(c, "200", tmp_path / "c.json")
    events = json.loads((tmp_path / "c.json").read_text())["traceEvents"]
    message = next(e for e in events if e.get("cat") == "message")
    causes = [e for e in events if e.get("cat") == "cause"]
    assert [(e["pid"], e["tid"]) for e in causes] == [(message["pid"], message["tid"])]
    with io.StringIO() as text:
        made = show.make(c, arguments.command_parser("show").parse_args([str(capture), "200"]))
        show.print_for_people(made, plain_console(text))
        assert "from +0 ns on no core" in text.getvalue()
        assert "core -1" not in text.getvalue()


def test_every_table_as_csv_and_parquet(run: Run, capture: Path, tmp_path: Path) -> None:
    made = read(run, "export", "csv", capture, "-o", tmp_path / "csv")
    assert set(made) == documented("nsight-report export --json")
    assert set(made["written"]) == set(schema.STORED)
    with (tmp_path / "csv/messages.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == made["written"]["messages"] == 2000
    assert list(rows[0]) == schema.TABLES["messages"].names()
    assert (rows[0]["nic_ns"], rows[0]["driver_ns"], rows[0]["comm"]) == (str(START), "", "mc-worker")
    assert (
        run("export", "parquet", capture, "-o", tmp_path / "pq", "--tables", "calls,losses").returncode == 0
    )
    assert sorted(p.name for p in (tmp_path / "pq").iterdir()) == ["calls.parquet", "losses.parquet"]
    assert pq.read_table(tmp_path / "pq/calls.parquet").equals(
        pq.read_table(capture / "tables/calls.parquet")
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("csv", "{c}", "-o", "{o}", "--tables", "calls,packets"), "no table 'packets'"),
        (("csv", "{c}", "-o", "{o}", "--messages", "all"), "--messages does not go with csv"),
        (("folded", "{c}", "-o", "{o}", "--tables", "calls"), "--tables does not go with folded"),
        (("perfetto", "{c}", "-o", "{o}/no/such/directory"), "No such file"),
        (("perfetto", "{c}", "-o", "{c}"), "small.nsight: is a directory"),
        (("chrome", "{c}", "-o", "/"), "/: is a directory"),
        (("folded", "{c}", "-o", ""), ".: is a directory"),
        (("perfetto", "{c}", "-o", "{o}", "--messages", "p1-"), "slice 'p1-' is not understood"),
        (("perfetto", "{c}", "-o", "{o}", "--messages", "conn:77"), "no message is conn:77"),
    ],
)
def test_export_names_the_mistake_and_the_fix(
    run: Run, capture: Path, tmp_path: Path, args: tuple[str, ...], message: str
) -> None:
    done = run("export", *(a.format(c=capture, o=tmp_path / "out") for a in args))
    assert done.returncode in (2, 3, 5)
    assert message in done.stderr.splitlines()[0]
    assert done.stderr.splitlines()[1].startswith("hint: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("top", "{c}", "--sort", "coverage"), "--by cause cannot be sorted by coverage"),
        (("top", "{c}", "--by", "message", "--sort", "max"), "--by message cannot be sorted by max"),
        (("export", "csv", "{c}", "-o", "{c}.out", "--tables", "calls,packets"), "no table 'packets'"),
        (
            ("export", "perfetto", "{c}", "-o", "{c}.out", "--messages", "p1-"),
            "slice 'p1-' is not understood",
        ),
    ],
)
def test_what_no_capture_has_is_refused_before_the_capture_is_looked_at(
    run: Run, tmp_path: Path, args: tuple[str, ...], message: str
) -> None:
    """The capture does not exist: to analyse one of a few seconds would take minutes."""
    done = run(*(a.format(c=tmp_path / "none.nsight") for a in args))
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[0]


def test_capture_that_is_called_like_a_command(run: Run, capture: Path, tmp_path: Path) -> None:
    shutil.copytree(capture, tmp_path / "top")
    assert "Messages: 2,000" in run("./top", wrap=("env", "-C", str(tmp_path))).stdout


# -- the summary and the manual page -----------------------------------------------------


def test_summary_begins_with_words(run: Run, capture: Path) -> None:
    text = run(capture).stdout
    order = [
        "Of 2,000 messages",
        "Confidence: ",
        "What to do:",
        "pin it to another core",
        "Limitations of this recording",
    ]
    assert [text.index(w) for w in order] == sorted(text.index(w) for w in order)
    assert "1 loss can hide something" in text


def test_summary_of_few_messages_says_that_they_are_few(run: Run, tmp_path: Path) -> None:
    few = write_capture(tmp_path / "few.nsight", World(n=300))
    assert "There are only 3 slow messages" in run(few).stdout


@pytest.mark.parametrize("command", arguments.COMMANDS)
def test_manual_page_has_the_options_of_each_command(command: str) -> None:
    section = MAN.partition(f'.SS "nsight-report {command} ')[2]
    section = re.split(r"^\.S[SH] ", section, flags=re.M)[0]
    common = {s for a in arguments.parser()._actions for s in a.option_strings}
    own = {
        s: a
        for a in arguments.command_parser(command)._actions
        for s in a.option_strings
        if s not in common or (command in ("export", "import", "hops") and s in ("-o", "--output"))
    }
    told = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", "\n".join(re.findall(r"\.TP\n(.*)", section))))
    assert told == set(own)
    for action in own.values():
        for choice in action.choices or ():
            assert re.search(rf"\b{choice}\b", section), choice
        if action.default not in (None, False):
            assert str(action.default) in section


@pytest.mark.parametrize("command", arguments.COMMANDS)
def test_commands_help_has_examples_that_parse(command: str) -> None:
    parser = arguments.command_parser(command)
    examples = re.findall(
        r"^  nsight-report (.*?)(?: {3,}.*| && .*)?$", parser.format_help().partition("examples:")[2], re.M
    )
    assert examples
    for example in examples:
        words = example.split()
        assert words[0] == command
        parser.parse_args(words[1:])


def test_a_slow_message_that_is_not_slower_is_not_called_unexplained(run: Run, tmp_path: Path) -> None:
    """Before the hog first runs, every message takes 10 us."""
    calm = write_capture(tmp_path / "calm.nsight", World(n=150))
    words = "within measurement noise"
    for argv in ([calm], ["top", calm, "--by", "message"], ["show", calm]):
        done = run(*argv)
        assert done.returncode == 0, done.stderr
        assert words in " ".join(done.stdout.split()), argv
        assert "no cause found" not in done.stdout


def test_compare_says_when_the_messages_are_of_different_programs() -> None:
    from nsight_report.commands.compare import verdict

    side = {"coverage_median": None, "n_errors": 0, "mode": "tracepoints", "programs": ["worker", "redis"]}
    other = {"percentiles": [], "causes": [], "settings": [], "before": side}
    said = "The messages are of different programs: worker and redis before, nginx after."
    assert said in verdict({**other, "after": {**side, "programs": ["nginx"]}})
    assert not any(
        "programs" in line for line in verdict({**other, "after": {**side, "programs": ["redis"]}})
    )


def test_compare_explains_nothing_of_a_side_that_is_not_slower() -> None:
    from nsight_report.commands.compare import verdict

    side = {"coverage_median": None, "n_errors": 0, "mode": "tracepoints", "programs": []}
    quiet = {"percentiles": [], "causes": [], "settings": [], "before": side, "after": side}
    assert (
        verdict(quiet)[-1]
        == "Confidence: no slow message is slower than usual, so there is nothing to explain."
    )
    one = verdict({**quiet, "before": {**side, "coverage_median": 0.9}})
    assert one[-1] == "Confidence: of the slow messages' delays (medians) the causes explain 90% before."


def test_options_by_their_former_names_still_work_with_a_warning(run: Run, capture: Path) -> None:
    now = run(capture, "--slow", "p99-100", "--baseline", "p25-75", "--json")
    before = run(capture, "--target", "p99-100", "--reference", "p25-75", "--json")
    assert (before.returncode, before.stdout) == (0, now.stdout)
    assert now.stderr.count("warning") == 0
    for old, new in (("--target", "--slow"), ("--reference", "--baseline")):
        assert f"nsight-report: warning: {old} is called {new} now" in before.stderr
        assert "gold" in run(capture, old, "gold").stderr
