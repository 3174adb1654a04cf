# SPDX-License-Identifier: GPL-2.0-only
"""Which stages run: only the stale ones, each from stored tables."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import nsight_report
import numpy as np
import pyarrow as pa
import pytest
from machinery.made_up.capture import World
from nsight_report import losses, pipeline, stages
from nsight_report.attribution.stage import own as of_this_capture
from nsight_report.errors import BadInput
from nsight_report.export.html import write_report
from nsight_report.export.json import summary_object
from nsight_report.pipeline import Pipeline
from nsight_report.stage import RECORDS, Context, Options, Result, Stage
from nsight_report.summary import summarise
from nsight_report.tables import schema
from nsight_report.timeline.recording import granularity_ns, noise_of


def instead(stage: Stage, run: Callable[[Context], Result]) -> Stage:
    """The stage with a different function but its original identity."""
    made = replace(stage, run=run)
    made.__dict__["identity"] = stage.identity
    return made


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Real stages whose functions are replaced by the synthetic tables; records which stages ran."""
    tables = World(n=200).tables()
    calls: list[str] = []

    def fake(stage: Stage) -> Stage:
        def run(ctx: Context) -> Result:
            calls.append(stage.name)
            for name in stage.raw:
                if name not in ("payload.pcap", RECORDS):
                    ctx.raw(name)
            for needed in stage.needs:
                for name in stages.BY_NAME[needed].tables:
                    ctx.table(name)
            return {name: tables[name] for name in stage.tables}, losses.Ledger(stage.name).table()

        return instead(stage, run)

    faked = tuple(fake(stage) for stage in stages.STAGES)
    monkeypatch.setattr(pipeline, "STAGES", faked)
    monkeypatch.setattr(pipeline, "BY_NAME", {stage.name: stage for stage in faked})
    return calls


ALL = ["clocks", "events", "messages", "requests", "contexts", "anomalies", "attribution", "queuing", "cores"]


def touch(path: Path) -> None:
    """Make a file newer by one second."""
    ns = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(ns, ns))


def test_second_run_runs_nothing(capture: Path, ran: list[str]) -> None:
    assert Pipeline(capture).run(rerun="clocks") == ALL
    ran.clear()
    assert Pipeline(capture).run() == []
    assert ran == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("clock.tsv", ALL),  # everything builds on the clocks
        ("events.tsv", ["events", "messages", "requests", "anomalies", "attribution", "queuing", "cores"]),
        ("perf.data", ["contexts", "anomalies", "attribution", "queuing", "cores"]),
    ],
)
def test_newer_file_reruns_its_stage_and_those_after_it(
    capture: Path, ran: list[str], changed: str, expected: list[str]
) -> None:
    Pipeline(capture).run(rerun="clocks")
    ran.clear()
    touch(capture / changed)
    assert Pipeline(capture).run() == expected
    assert ran == expected


def test_option_reruns_only_the_stages_that_use_it(capture: Path, ran: list[str]) -> None:
    Pipeline(capture).run(rerun="clocks")
    assert Pipeline(capture, Options(slow="p90-100")).run() == [
        "anomalies",
        "attribution",
        "queuing",
        "cores",
    ]
    assert Pipeline(capture, Options(slow="p90-100", framing="redis")).run() == [
        "messages", "requests", "anomalies", "attribution", "queuing", "cores",
    ]  # fmt: skip


def test_what_is_decoded_around_the_messages_depends_on_which_are_chosen(
    capture: Path, ran: list[str]
) -> None:
    Pipeline(capture).run(rerun="clocks")
    after = ["contexts", "anomalies", "attribution", "queuing", "cores"]
    assert Pipeline(capture, Options(decode="chosen")).run() == after
    assert Pipeline(capture, Options(decode="chosen")).run() == []
    assert Pipeline(capture, Options(decode="chosen", slow="p90-100")).run() == after
    touch(capture / "events.tsv")
    chosen = Options(decode="chosen", slow="p90-100")
    assert Pipeline(capture, chosen).run() == ["events", "messages", "requests", *after]


def test_another_run_of_the_other_capture_reruns_the_comparison(
    capture: Path, ran: list[str], tmp_path: Path
) -> None:
    other = shutil.copytree(capture, tmp_path / "other")
    Pipeline(capture).run(rerun="clocks")
    against = Options(against=str(other))
    assert Pipeline(capture, against).run() == ["anomalies", "attribution", "queuing", "cores"]
    assert Pipeline(capture, against).run() == []
    # Nothing of the other capture's diagnosis is read.
    assert Pipeline(other, Options(slow="p90-100")).run(rerun="anomalies")
    assert Pipeline(capture, against).run() == []
    touch(other / "perf.data")
    assert Pipeline(capture, against).run() == ["anomalies", "attribution", "queuing", "cores"]
    assert Pipeline(capture).run() == ["anomalies", "attribution", "queuing", "cores"]


def test_long_list_of_messages_does_not_make_the_store_forget(capture: Path, ran: list[str]) -> None:
    every = Options(baseline="id:" + ",".join(map(str, range(1_000_000, 1_300_000))))
    assert Pipeline(capture, every).run(rerun="clocks") == ALL
    assert Pipeline(capture, every).run() == []
    fewer = Options(baseline=every.baseline.removesuffix(",1299999"))
    assert Pipeline(capture, fewer).run() == ["anomalies", "attribution", "queuing", "cores"]


def test_tables_of_a_diagnosis_that_is_not_made_are_not_to_be_had(capture: Path, ran: list[str]) -> None:
    Pipeline(capture).run(rerun="clocks")
    only = Pipeline(capture, diagnosed=False)
    only.run()
    assert only.table("messages").num_rows
    with pytest.raises(BadInput, match="table causes belongs to a diagnosis"):
        only.table("causes")


@pytest.mark.parametrize(("against", "own"), [(None, [3, 7, 9]), ("other", [7, 9])])
def test_baseline_of_another_capture_are_no_messages_of_this_one(against: str | None, own: list[int]) -> None:
    compared = pa.table({"message_id": [7, 9, 3], "role": ["slow", "slow", "baseline"]})
    assert sorted(of_this_capture(compared, Options(against=against)).tolist()) == own


def test_other_capture_is_not_diagnosed_itself(capture: Path, ran: list[str], tmp_path: Path) -> None:
    # With the same slice for both, as in section 7.4 of the paper, a diagnosis of the other capture would have no baseline left.
    other = shutil.copytree(capture, tmp_path / "other")
    Pipeline(capture).run(rerun="clocks")
    touch(other / "perf.data")
    ran.clear()
    same = Options(slow="p25-30", baseline="p25-30", against=str(other))
    assert Pipeline(capture, same).run() == ["anomalies", "attribution", "queuing", "cores"]
    assert ran == ["contexts", "anomalies", "attribution", "queuing", "cores"]


def test_edited_categories_rerun_only_the_attribution(capture: Path, ran: list[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("*,*,Mine,\n")
    Pipeline(capture).run(rerun="clocks")
    options = Options(categories=str(mine))
    assert Pipeline(capture, options).run() == ["attribution", "queuing", "cores"]
    assert Pipeline(capture, options).run() == []
    touch(mine)
    assert Pipeline(capture, options).run() == ["attribution", "queuing", "cores"]


def test_schema_version_reruns_everything(
    capture: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Pipeline(capture).run(rerun="clocks")
    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    assert Pipeline(capture).run() == ALL


def test_rerun_runs_the_stage_and_those_after_it(capture: Path, ran: list[str]) -> None:
    Pipeline(capture).run(rerun="clocks")
    assert Pipeline(capture).run(rerun="messages") == [
        "messages",
        "requests",
        "anomalies",
        "attribution",
        "queuing",
        "cores",
    ]


def test_truncated_table_is_made_again(capture: Path, ran: list[str]) -> None:
    Pipeline(capture).run(rerun="clocks")
    path = capture / "tables/messages.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    after = ["requests", "anomalies", "attribution", "queuing", "cores"]
    assert Pipeline(capture).run() == ["messages", *after]


def test_deleted_tables_are_made_again(capture: Path, ran: list[str]) -> None:
    for path in (capture / "tables").iterdir():
        path.unlink()
    assert Pipeline(capture).run() == ALL


def test_broken_stages_json_costs_only_time(capture: Path, ran: list[str]) -> None:
    (capture / "tables/stages.json").write_text("{")
    assert Pipeline(capture).run() == ALL


def test_stage_runs_alone_from_its_stored_input(capture: Path, ran: list[str]) -> None:
    Pipeline(capture).run(rerun="clocks")
    ran.clear()
    made = Pipeline(capture).run_alone("messages")
    assert ran == ["messages"]
    assert made == {"messages": 200}
    # The stages after it were made from the previous run and are stale now.
    assert Pipeline(capture).run() == ["requests", "anomalies", "attribution", "queuing", "cores"]


@pytest.mark.slow
def test_no_stage_and_no_report_has_every_message_in_memory(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    table = Pipeline.table

    def told(self: Pipeline, name: str) -> pa.Table:
        asked.append(name)
        return table(self, name)

    monkeypatch.setattr(Pipeline, "table", told)
    c = nsight_report.open(capture)
    summary = summarise(c)
    summary_object(c, summary)
    write_report(c, summary, tmp_path / "out")
    for stage in ("attribution", "queuing", "cores"):
        c.pipeline.run_alone(stage)
    assert {"compared", "anomalies"} <= set(asked)
    assert "messages" not in asked
    assert len(c.messages) == 2000  # a caller that wants all messages gets them
    assert "messages" in asked and "messages" not in c.pipeline._tables


def test_stage_alone_without_stored_input_says_which_table_lacks(capture: Path, ran: list[str]) -> None:
    for path in (capture / "tables").iterdir():
        path.unlink()
    with pytest.raises(BadInput, match=r"table (events|clock_map) is not stored") as caught:
        Pipeline(capture).run_alone("messages")
    assert "without --stage" in caught.value.hint


def test_failed_stage_does_not_count_as_done(
    capture: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Pipeline(capture).run(rerun="clocks")
    real = pipeline.STAGES

    def fails(_ctx: Context) -> Result:
        raise BadInput("no")

    broken = tuple(instead(s, fails) if s.name == "anomalies" else s for s in real)
    monkeypatch.setattr(pipeline, "STAGES", broken)
    touch(capture / "perf.data")
    with pytest.raises(BadInput):
        Pipeline(capture).run()
    monkeypatch.setattr(pipeline, "STAGES", real)
    assert Pipeline(capture).run() == ["anomalies", "attribution", "queuing", "cores"]


def test_losses_of_all_stages_are_merged_worst_first(capture: Path) -> None:
    rows = Pipeline(capture).losses().to_pylist()
    assert [(r["stage"], r["severity"], r["count"]) for r in rows] == [
        ("messages", "warning", 3),
        ("messages", "info", 2),
    ]


def test_recorders_losses_are_in_the_ledger(capture: Path) -> None:
    import json

    from machinery.made_up.capture import manifest

    lost = [
        {"tool": "perf", "what": "lost samples", "count": 7},
        {"tool": "perf", "what": "x", "count": "NaN"},
    ]
    (capture / "manifest.json").write_text(json.dumps(manifest(losses=lost)))
    rows = Pipeline(capture).losses().to_pylist()
    assert ("record", "perf: lost samples", 7) in [(r["stage"], r["cause"], r["count"]) for r in rows]
    assert len(rows) == 3  # the entry without a number does not count


@pytest.mark.parametrize(("step", "expected"), [(None, 1000), (141, 141)])  # mode tracepoints; the packets
def test_granularity_is_that_of_the_recording(step: int | None, expected: int) -> None:
    trace = [] if step is None else [(0, 1, 16, step, 1.5)]
    names = schema.TABLES["trace"].names()
    columns = {name: [row[i] for row in trace] for i, name in enumerate(names)}
    tables = {"trace": pa.table(columns, schema.TABLES["trace"].arrow())}
    context = SimpleNamespace(table=tables.__getitem__)
    assert granularity_ns(cast(Context, context)) == expected


def test_clocks_that_were_bad_for_a_while_hide_only_what_was_then() -> None:
    # TSC counts ns. The error of the perf clock is 3 ns, but 700 from 1000 to 2000; that of tai, which no call uses, is 9999.
    parts = [("monotonic", 0, 9000, 1), ("boottime", 0, 9000, 2), ("tai", 0, 9000, 9999)]
    parts += [("perf", 0, 1000, 3), ("perf", 1000, 2000, 700), ("perf", 2000, 9000, 3)]
    line = {"anchor_tsc": 0, "anchor_ns": 0, "anchor_frac": 0, "mult": 1, "shift": 0, "source": "bracket"}
    rows = [{"domain": d, "tsc_start": a, "tsc_end": b, "error_ns": e, **line} for d, a, b, e in parts]
    # The last message began after the last clock reading.
    messages = [(100, 200), (900, 1100), (1900, 2100), (1200, 0), (3000, 3100), (9500, 9600)]
    clock = schema.TABLES["clock_map"].arrow()
    plain = [pa.field(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in clock]
    tables = {"clock_map": schema.conform("clock_map", pa.Table.from_pylist(rows, schema=pa.schema(plain)))}
    first, last = (np.array(of) for of in zip(*messages, strict=True))
    context = SimpleNamespace(table=tables.__getitem__)
    assert noise_of(cast(Context, context))(first, last).tolist() == [6, 1400, 1400, 1400, 6, 1400]
