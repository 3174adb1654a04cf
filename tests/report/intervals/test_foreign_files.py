# SPDX-License-Identifier: GPL-2.0-only
"""Intervals from other tools: spans of OpenTelemetry, and pairs of events printed by perf script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nsight_report.capture import raw_records
from nsight_report.errors import BadInput
from nsight_report.intervals import otlp, perf_script
from nsight_report.intervals.read import Reader
from nsight_report.lifetimes.intervals import of_records
from nsight_report.losses import Ledger
from nsight_report.manifest import Manifest
from test_interval_csv import CLOCK, EPOCH, intervals

from conftest import ROOT

# -- spans ------------------------------------------------------------------------------------


def attribute(key: str, value: Any) -> dict[str, Any]:
    return {
        "key": key,
        "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
    }


def span(name: str, start: int, stop: int, *attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": stop,
        "attributes": list(attributes),
    }


def batch(*spans: dict[str, Any], pid: int | None = 40) -> dict[str, Any]:
    resource = {"attributes": [attribute("process.pid", pid)] if pid else []}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_span_is_an_interval_of_its_thread_or_of_its_process_first_one(
    tmp_path: Path, indent: int | None
) -> None:
    spans = batch(
        span("GET /", EPOCH + 7000, EPOCH + 7250, attribute("thread.id", 41)),
        span("query", EPOCH + 7100, EPOCH + 7200),
    )
    found, counted = intervals(tmp_path / "i", json.dumps(spans, indent=indent))
    assert found == [("GET /", 7000, 7250, 41, -1), ("query", 7100, 7200, 40, -1)]
    assert counted == {}


def test_batches_stand_in_lines_and_comments_before_them_hold_for_all(tmp_path: Path) -> None:
    lines = [json.dumps(batch(span(name, at, at + 50), pid=None)) for name, at in (("a", 100), ("b", 200))]
    text = "# clock theirs\n# offset theirs 100 monotonic 7000\n# thread 9\n" + "\n\n".join(lines)
    found, counted = intervals(tmp_path / "i", text)
    # The spans do not name the thread; the file names it for all of them.
    assert found == [("a", 7000, 7050, 9, -1), ("b", 7100, 7150, 9, -1)]
    assert counted == {"interval_clock_by_offset": 4}


@pytest.mark.parametrize(
    "spans",
    [
        batch(span("a", -5, 7), span("a", 9, 8), {"name": "a"}, span("a", 5, 1 << 80)),
        batch(span("a", "x", None), {"name": "a", "startTimeUnixNano": True, "endTimeUnixNano": 1.5}),
    ],
)  # fmt: skip
def test_spans_of_impossible_times_are_counted(tmp_path: Path, spans: dict[str, Any]) -> None:
    found, counted = intervals(tmp_path / "i", json.dumps(spans))
    assert found == []
    n = len(spans["resourceSpans"][0]["scopeSpans"][0]["spans"])
    assert counted == {"interval_impossible": n}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", ":1: not a batch of spans in JSON"),
        ('{"resourceSpans": []}\n[]\n', ":2: not a batch of spans in JSON"),
        ('{"resourceSpans": 7}', ":1: resourceSpans is not a list of objects"),
        ('{"resourceSpans": [{"scopeSpans": [null]}]}', ":1: scopeSpans is not a list of objects"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": []}]}]}]}', ":1: a span without a name"),
        ('{"a":' + "[" * 100_000, ":1: not a batch of spans in JSON"),
        (b'{"a": "\xff"}', ":1: not a batch of spans in JSON"),
    ],
)
def test_what_is_no_batch_of_spans_is_an_error_that_names_its_line(
    tmp_path: Path, text: Any, says: str
) -> None:
    with pytest.raises(BadInput) as error:
        intervals(tmp_path / "i", text)
    assert says in str(error.value)


def test_hostile_attributes_and_names_are_no_error(tmp_path: Path) -> None:
    odd = [None, {"key": "thread.id"}, {"key": "thread.id", "value": {}}, {"key": 5, "value": []}]
    text = json.dumps(batch({**span("\ud800", EPOCH + 7000, EPOCH + 7001), "attributes": odd}))
    found, counted = intervals(tmp_path / "i", text)
    # A thread.id that is not a number: the interval belongs to the process, but its thread is unknown (0).
    assert found == [("?", 7000, 7001, 0, -1)]
    assert counted == {}


def test_a_document_that_is_too_large_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(otlp, "MOST_BYTES", 1000)
    for text in (
        json.dumps(batch(*[span("a", 1, 2)] * 50)),
        json.dumps(batch(*[span("a", 1, 2)] * 50), indent=1),
    ):
        with pytest.raises(BadInput, match="more than 0 MiB in one JSON document"):
            intervals(tmp_path / "i", text)


# -- perf script ------------------------------------------------------------------------------

PROBES = """\
# made by perf script --ns
my server  41/42   [003]     0.000007000:  probe_server:order: (55d0c8a01189)
           42 [003]     0.000007100:  probe_server:order: (55d0c8a01189)
            55d0c8a01189 order+0x0 (/usr/bin/server)
my server  41/43   [001]     0.000007150:  probe_server:order: (55d0c8a01189)
my server  41/42   [003]     0.000007200:  probe_server:order__return: (55d0c8a0118e <- 55d0c8a011f0)
my server  41/42   [002]     0.000007300:  probe_server:order__return: (55d0c8a0118e <- 55d0c8a011f0)
my server  41/44   [000]     0.000007400:  probe_server:order__return: (55d0c8a0118e <- 55d0c8a011f0)
"""


def test_a_probe_and_its_return_are_an_interval_and_nest(tmp_path: Path) -> None:
    found, counted = intervals(tmp_path / "i", PROBES)
    # Thread 42 calls itself: the inner call ends first. For thread 43 the end is missing, for 44 the begin.
    assert found == [("order", 7000, 7300, 42, 2), ("order", 7100, 7200, 42, 3)]
    assert counted == {"interval_end_alone": 1, "interval_not_ended": 1, "perf_script_line_without_event": 1}


def test_pairs_are_what_the_file_says_and_ptwrite_is_named_after_its_payload(tmp_path: Path) -> None:
    text = (
        "# clock tsc\n# pair order ptwrite:0x1 ptwrite:0x2\n"
        "srv 7 [000] 0.000002000:  ptwrite:  IP: 0 payload: 0x1  401136 main (/srv)\n"
        "srv 7 [000] 0.000002100:  ptwrite:  IP: 0 payload: 0x3  401136 main (/srv)\n"
        "srv 7 [000] 0.000002250:  ptwrite:  IP: 0 payload: 0x2  401140 main (/srv)\n"
    )
    found, counted = intervals(tmp_path / "i", text)
    assert found == [("order", 7000, 7250, 7, 0)]
    assert counted == {}


@pytest.mark.parametrize(("begin", "end"), perf_script._ENDS)
def test_names_of_events_say_which_belong_together(tmp_path: Path, begin: str, end: str) -> None:
    text = f"x 7 [000] 1.000001: sdt_x:step{begin}: (1)\nx 7 [000] 1.000002: sdt_x:step{end}: (1)\n"
    found, _ = intervals(tmp_path / "i", text)
    assert found == [("step", 1_000_001_000, 1_000_002_000, 7, 0)]


def test_events_that_do_not_belong_together_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no two events in it belong together \(sdt_x:a\)"):
        intervals(tmp_path / "i", "x 7 [000] 1.000001: sdt_x:a: (1)\n")


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a line is longer than 65536 bytes"):
        intervals(tmp_path / "i", "x 7 [000] 1.000001: a:b: (1)\n" + "y" * (9 << 20))


def test_brackets_pair_as_a_stack_does_thread_by_thread() -> None:
    """Compared with one stack per thread, for 200 random sequences."""
    rng = np.random.default_rng(7)
    for n in rng.integers(0, 40, 200):
        tid, begins = rng.integers(1, 4, n), rng.random(n) < 0.5
        time = np.sort(rng.integers(0, 30, n))
        stacks: dict[int, list[int]] = {}
        pairs, alone = [], 0
        for i in range(n):
            stack = stacks.setdefault(int(tid[i]), [])
            if begins[i]:
                stack.append(i)
            elif stack:
                pairs.append((stack.pop(), i))
            else:
                alone += 1
        first, last, n_alone, n_open = perf_script.nested(tid, time, begins)
        assert list(zip(first.tolist(), last.tolist(), strict=True)) == sorted(pairs)
        assert (n_alone, n_open) == (alone, sum(map(len, stacks.values())))


# -- CSV with hand-overs ----------------------------------------------------------------------


def test_a_hand_over_lies_within_its_interval_in_its_clock(tmp_path: Path) -> None:
    text = (
        "name,start,stop,clock,thread,begin_thread,handover,begin_core\n"
        "a,2000,2250,tsc,1,2,2100,3\n"  # 5000 later in monotonic
        "a,2000,2250,tsc,1,2,2251,3\n"  # after its end
        "a,2000,2250,tsc,1,,2100,\n"  # no begin thread
        "a,2000,2250,tsc,1,99999999,2100,3\n"  # no thread has that number
        "a,2000,2250,tsc,1,,,\n"  # not handed over
    )
    (file := tmp_path / "i").write_text(text)
    ledger = Ledger("lifetimes")
    (some,) = Reader(file, CLOCK, ledger)
    assert some.handover is not None
    assert some.begin_tid is not None
    assert some.begin_cpu is not None
    assert list(zip(some.handover, some.begin_tid, some.begin_cpu, strict=True)) == [
        (7100, 2, 3),
        *[(-1, -1, -1)] * 4,
    ]
    assert [(row["key"], row["count"]) for row in ledger.table().to_pylist()] == [
        ("interval_handover_impossible", 3)
    ]


@pytest.mark.parametrize("columns", ["begin_thread", "handover", "begin_core", "handover,begin_core"])
def test_a_column_of_a_hand_over_that_says_nothing_alone_is_refused(tmp_path: Path, columns: str) -> None:
    (file := tmp_path / "i").write_text(f"name,start,stop,thread,{columns}\n")
    with pytest.raises(BadInput, match=r"without column (handover|begin_thread)"):
        Reader(file, CLOCK, Ledger("lifetimes"))


def test_a_mark_of_byte_order_may_come_first(tmp_path: Path) -> None:
    spans = json.dumps(batch(span("GET", EPOCH + 7000, EPOCH + 7250)))
    for form, text in (
        ("csv", "name,start,stop,clock,thread\na,2000,2250,tsc,1\n"),
        ("perf", "x 7 [000] 1.000001: x:a_begin:\nx 7 [000] 1.000002: x:a_end:\n"),
        ("spans", f"{spans}\n"),
    ):
        found, _ = intervals(tmp_path / form, "\ufeff" + text)
        assert [row[0] for row in found] == ["GET" if form == "spans" else "a"], form


def test_events_of_one_name_in_two_groups_are_two_kinds_of_intervals(tmp_path: Path) -> None:
    text = "".join(
        f"x 7 [000] 1.00000{at}: probe_{program}:send{end}: (1)\n"
        for program, at in (("client", 1), ("server", 5))
        for at, end in ((at, ""), (at + 2, "__return"))
    )
    found, counted = intervals(tmp_path / "i", text)
    assert [(name, stop - start) for name, start, stop, *_ in found] == [
        ("probe_client:send", 2000),
        ("probe_server:send", 2000),
    ]
    assert counted == {}


def test_a_pair_of_an_event_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    text = "# pair a x:begin x:end\n# pair b x:begin x:edn\nx 7 [000] 1.000001: x:begin: (1)\nx 7 [000] 1.000002: x:end: (1)\n"
    with pytest.raises(BadInput, match="no event 'x:edn'"):
        intervals(tmp_path / "i", text)


def test_lines_may_end_as_on_windows_and_a_blank_one_may_come_first(tmp_path: Path) -> None:
    text = "x 7 [000] 1.000001: x:a_begin:\r\nx 7 [000] 1.000002: x:a_end:\r\n"
    assert [row[0] for row in intervals(tmp_path / "i", text)[0]] == ["a"]
    spans = "\n" + json.dumps(batch(span("GET", EPOCH + 7000, EPOCH + 7250)), indent=2)
    assert [row[0] for row in intervals(tmp_path / "j", "# clock realtime\n" + spans)[0]] == ["GET"]


_SPACES = """
import sys
sys.path.insert(0, sys.argv[1])
from nsight_report.intervals.perf_script import EVENT
print(len(EVENT.findall(b"x" + b" " * 60_000 + b"\\nx 7 [000] 1.000002: x:a_end: (1)\\n")))
"""


def test_a_line_of_spaces_is_passed_over() -> None:
    """Searching for the thread from each space took minutes."""
    argv = [sys.executable, "-c", _SPACES, str(ROOT / "tools/nsight-report")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout == "1\n", done.stderr


def test_each_event_is_in_one_pair_and_what_is_in_none_is_counted(tmp_path: Path) -> None:
    words = ("begin", "end", "start", "stop", "other")
    text = "".join(f"x 7 [000] 1.00000{at}: g:x_{word}: (1)\n" for at, word in enumerate(words))
    found, counted = intervals(tmp_path / "i", text)
    assert [(row[0], row[2] - row[1]) for row in found] == [("g:x_begin", 1000), ("g:x_start", 1000)]
    assert counted == {"perf_script_event_without_pair": 1}


def test_marks_without_a_key_are_no_ends_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [{"name": "a", "begun": 1000}, {"name": "b", "begun": 0, "unpaired": 2000}]
    monkeypatch.setattr(raw_records, "intervals", lambda _: iter(()))
    ledger = Ledger("lifetimes")
    assert list(of_records(tmp_path, Manifest("trace", False, {"intervals": kinds}), ledger)) == []
    counted = {row["key"]: row["count"] for row in ledger.table().to_pylist()}
    assert counted == {"interval_not_ended": 1000, "interval_unpaired": 2000}
