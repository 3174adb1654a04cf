# SPDX-License-Identifier: GPL-2.0-only
"""Calls of nsight-decode become tables of the report: times in monotonic, names as in mode tracepoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nsight_report
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from machinery.pt_emulation.fixtures import decoded, unpack
from nsight_report.calls import decoder, functions
from nsight_report.capture import native
from nsight_report.errors import BadInput, Missing

from conftest import skip_or_fail

pytestmark = pytest.mark.tools

CORE1 = 1 << 40  # numbers of calls of core 1 begin here
#: (call_id, parent_id, depth, kind, symbol, cpu, start, dur)
ROWS = [
    (0, -1, 0, "thread", "server", 0, 1000, 100),
    (1, 0, 1, "function", "main", 0, 1000, 100),
    (2, 1, 2, "syscall", "entry_SYSCALL_64", 0, 1010, 50),
    (3, 2, 3, "function", "x64_sys_call", 0, 1010, 40),
    (4, 3, 4, "function", "__x64_sys_read", 0, 1012, 30),
    (5, 4, 5, "hardirq", "asm_sysvec_timer", 0, 1020, 20),
    (6, 5, 6, "function", "handle_softirqs", 0, 1022, 10),
    (7, 6, 7, "function", "net_rx_action", 0, 1024, 6),
    (CORE1, -1, 0, "idle", "swapper", 1, 1000, 80),
    (CORE1 + 1, CORE1, 1, "function", "net_rx_action", 1, 1010, 5),  # not called by the softirq runner
]


def table() -> pa.Table:
    names = ("call_id", "parent_id", "depth", "kind", "symbol", "cpu", "start_ns", "dur_ns")
    made = pa.table(dict(zip(names, map(list, zip(*ROWS, strict=True)), strict=True)))
    n = len(ROWS)
    for name, value in {"dso": "", "before": "", "gap_cause": ""}.items():
        made = made.append_column(name, pa.array([value] * n))
    for name, value in {"start_known": "measured", "end_known": "measured"}.items():
        made = made.append_column(name, pa.array([value] * n))
    for name in ("self_ns", "arg", "start_addr", "pid", "tid"):
        made = made.append_column(name, pa.array([0] * n))
    return made


def shifted(ns: npt.NDArray[np.int64], domain: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Monotonic is 500 behind the perf clock; the mapping covers times up to 1075."""
    assert domain == "perf"
    return ns - 500, ns <= 1075


def everything(ns: npt.NDArray[np.int64], domain: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    return ns - 500, np.ones(len(ns), bool)


def build(convert: object) -> tuple[list[dict[str, object]], list[dict[str, object]], int]:
    calls, contexts, outside = functions.build(table(), convert)
    return calls.to_pylist(), contexts.to_pylist(), outside


def test_calls_are_numbered_by_place_over_all_cores() -> None:
    calls, _, _ = build(everything)
    assert [c["call_id"] for c in calls] == list(range(10))
    assert calls[9]["parent_id"] == 8
    assert calls[0]["start_ns"] == 500


def test_own_time_is_what_children_leave() -> None:
    calls, _, _ = build(everything)
    # read: 30 less the interrupt's 20; main: 100 less the system call's 50
    assert (calls[4]["self_ns"], calls[1]["self_ns"]) == (10, 50)


def test_a_system_call_is_named_by_the_function_that_serves_it() -> None:
    calls, _, _ = build(everything)
    assert (calls[2]["kind"], calls[2]["symbol"]) == ("syscall", "read")
    assert calls[4]["symbol"] == "__x64_sys_read"  # the function keeps its name


def test_contexts_are_intervals_of_the_innermost_one() -> None:
    _, contexts, _ = build(everything)
    found = [(c["cpu"], c["kind"], c["symbol"], c["start_ns"], c["end_ns"], c["comm"]) for c in contexts]
    assert found == [
        (0, "thread", "server", 500, 510, "server"),
        (0, "syscall", "read", 510, 520, "server"),
        (0, "hardirq", "asm_sysvec_timer", 520, 524, "server"),
        (0, "softirq", "NET_RX", 524, 530, "server"),
        (0, "hardirq", "asm_sysvec_timer", 530, 540, "server"),
        (0, "syscall", "read", 540, 560, "server"),
        (0, "thread", "server", 560, 600, "server"),
        (1, "idle", "swapper", 500, 580, "swapper"),
    ]


def test_calls_outside_of_the_clock_mapping_are_counted_and_their_children_kept() -> None:
    calls, _, outside = build(shifted)
    # server, main and the idle thread end after 1075
    assert calls[0]["symbol"] == "read"
    assert calls[0]["parent_id"] == -1
    assert outside == 3


# -- a committed capture ----------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, nsight_report.Capture]:
    """Committed captures, analysed on first use."""
    try:
        native.find("nsight-decode")
    except Missing:
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")
    found = {}
    for name in ("slow-function", "overflow"):
        directory = decoded.decoded(name, tmp_path_factory.mktemp("pt"))
        found[name] = nsight_report.open(
            directory / "capture.nsight", symfs=str((directory / "symfs").resolve())
        )
    return found


def test_a_message_that_waited_has_the_function_that_it_waited_for_in_its_lifetime(
    opened: dict[str, nsight_report.Capture],
) -> None:
    capture = opened["slow-function"]
    truth = json.loads((capture.path / "truth.json").read_text())
    messages = capture.messages
    parts = []
    for request in truth["requests"]:
        marked = request["cause_ns"].get("slow-function")
        if marked is None:
            continue
        rx = messages[
            (messages["direction"] == "rx")
            & (messages["rport"] == request["lport"])
            & (messages["byte_end"] == request["bytes"][1])
        ]
        assert len(rx) == 1
        calls = capture.lifetime(int(rx.iloc[0]["message_id"]))
        assert calls["within_self_ns"].sum() == rx.iloc[0]["latency_ns"]
        parts.append(int(calls.loc[calls["symbol"] == "spin", "within_self_ns"].sum()) / marked)
    # The slow request is slow after its read; the one that waits behind it arrived after it had begun.
    assert 0.7 < max(parts) <= 1.001
    calls = capture.calls
    slow = calls[(calls["symbol"] == "spin") & (calls["self_ns"] > 10_000)]
    # 100,000 iterations of five instructions, one ns each; a call that a switch cut in two counts as one
    total = int(slow["self_ns"].sum())
    assert total > 400_000
    assert abs(total - 500_000 * round(total / 500_000)) < 2000


def test_what_is_decoded_around_chosen_messages_gives_the_same_diagnosis(
    opened: dict[str, nsight_report.Capture], tmp_path: Path
) -> None:
    capture = opened["slow-function"]
    # In the trace part of the committed capture these select one message, and one 0.9 ms before it.
    slices = {"target": "1ms-", "reference": "111.9us-112us"}
    choice = {"symfs": str(capture.path.parent / "symfs"), **slices}
    everything, chosen = (
        nsight_report.open(shutil.copytree(capture.path, tmp_path / name), decode=name, **choice)
        for name in ("all", "chosen")
    )
    assert len(chosen.calls) < 0.8 * len(everything.calls)
    skipped = chosen.calls["gap_cause"] == "outside of the windows"
    assert skipped.any()
    assert chosen.calls.loc[skipped, "dur_ns"].sum() > 200_000
    assert len(everything.coverage) == 1
    columns = ["message_id", "category", "side", "observed_ns", "deviation_ns"]
    assert len(everything.anomalies)
    assert chosen.anomalies[columns].values.tolist() == everything.anomalies[columns].values.tolist()
    for message in everything.coverage["message_id"]:
        parts = [c.lifetime(message)[["symbol", "within_self_ns"]] for c in (everything, chosen)]
        assert parts[0].values.tolist() == parts[1].values.tolist()


def test_messages_outside_of_the_trace_are_counted_and_not_compared(
    opened: dict[str, nsight_report.Capture],
) -> None:
    capture = opened["slow-function"]
    (trace,) = capture.trace.to_dict("records")
    calls = capture.calls
    assert trace["begin_ns"] <= calls["start_ns"].min()
    assert (calls["start_ns"] + calls["dur_ns"]).max() <= trace["end_ns"] < trace["begin_ns"] + 3_000_000
    assert 0 < trace["median_step_ns"] < trace["p99_step_ns"]
    compared = capture.messages.set_index("message_id").loc[capture.compared["message_id"]]
    assert (compared["first_ns"] >= trace["begin_ns"]).all()
    assert (compared["last_ns"] <= trace["end_ns"]).all()
    messages = capture.messages
    served = messages[(messages["direction"] == "rx") & (messages["comm"] == "pt-app")]
    inside = (served["first_ns"] >= trace["begin_ns"]) & (served["last_ns"] <= trace["end_ns"])
    lost = capture.losses.set_index("cause")["count"]
    assert lost["messages outside of the trace"] == (~inside).sum() > 0


def test_contexts_of_a_core_leave_nothing_out(opened: dict[str, nsight_report.Capture]) -> None:
    contexts = opened["slow-function"].contexts
    assert len(contexts) > 100
    for _, core in contexts.groupby("cpu"):
        assert (core["start_ns"].to_numpy()[1:] == core["end_ns"].to_numpy()[:-1]).all()
    assert {"recvfrom", "sendto"} <= set(contexts[contexts["kind"] == "syscall"]["symbol"])
    assert "NET_RX" in set(contexts[contexts["kind"] == "softirq"]["symbol"])


def test_an_overflow_is_a_gap_and_a_loss(opened: dict[str, nsight_report.Capture]) -> None:
    capture = opened["overflow"]
    gaps = capture.calls[capture.calls["kind"] == "gap"]
    assert list(gaps["gap_cause"]) == ["overflow"]
    assert 15_000 < gaps["dur_ns"].iloc[0] < 60_000  # 20 us were removed
    causes = capture.losses["cause"].astype(str)
    assert causes.str.contains("overflow|lost trace packets").sum() == 1


def test_a_file_without_intel_pt_is_an_error_with_its_fix(
    opened: dict[str, nsight_report.Capture], tmp_path: Path
) -> None:
    (tmp_path / "perf.data").write_bytes(b"PERFILE2" + bytes(200))
    with pytest.raises(BadInput) as error:
        decoder.decode(tmp_path / "perf.data", None, tmp_path)
    assert str(tmp_path / "perf.data") in str(error.value)
    assert error.value.hint


def test_without_the_decoder_the_losses_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native, "_BIN", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    tables, lost = functions.load(tmp_path / "perf.data", None, everything, tmp_path)
    assert tables == {}
    assert [(row["cause"], row["remedy"]) for row in lost.to_pylist()] == [
        ("functions not decoded", "make decoder")
    ]


def test_a_table_made_piece_by_piece_is_that_made_at_once(tmp_path: Path) -> None:
    try:
        native.find("nsight-decode")
    except Missing:
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")
    directory = unpack.unpack("slow-function", tmp_path)
    (tmp_path / "decoded").mkdir()
    decoded = decoder.decode(
        directory / "capture.nsight" / "perf.data", directory / "symfs", tmp_path / "decoded"
    )

    calls: list[dict[str, object]] = []
    contexts: list[dict[str, object]] = []
    pieces = 0
    for batch in functions.batches(decoded.files, 1000):
        of_batch, within, _ = functions.build(batch, everything, len(calls))
        calls += of_batch.to_pylist()
        contexts += within.to_pylist()
        pieces += 1
    at_once = functions.build(pa.concat_tables(map(pq.read_table, decoded.files)), everything)
    assert pieces > 10
    assert len(calls) > 10_000
    assert calls == at_once[0].to_pylist()
    assert contexts == at_once[1].to_pylist()
