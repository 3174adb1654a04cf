# SPDX-License-Identifier: GPL-2.0-only
"""Which stages run: only the stale ones, each from stored tables."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from nsight_report import losses, pipeline, schema, stages
from nsight_report.errors import BadInput
from nsight_report.pipeline import Pipeline
from nsight_report.stages import Context, Options, Result, Stage

from .synthetic import World


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Real stages with their work replaced by the synthetic tables; records which ran."""
    tables = World(n=200).tables()
    calls: list[str] = []

    def fake(stage: Stage) -> Stage:
        def run(ctx: Context) -> Result:
            calls.append(stage.name)
            for name in stage.raw:
                if name != "payload.pcap":
                    ctx.raw(name)
            for needed in stage.needs:
                for name in stages.BY_NAME[needed].tables:
                    ctx.table(name)
            return {name: tables[name] for name in stage.tables}, losses.Ledger(stage.name).table()

        return Stage(
            stage.name, run, stage.needs, stage.raw, stage.options, stage.tables, stage.code, stage.by_message
        )

    faked = tuple(fake(stage) for stage in stages.STAGES)
    monkeypatch.setattr(pipeline, "STAGES", faked)
    monkeypatch.setattr(pipeline, "BY_NAME", {stage.name: stage for stage in faked})
    return calls


ALL = ["clocks", "events", "messages", "contexts", "anomalies", "attribution"]


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
        ("events.tsv", ["events", "messages", "anomalies", "attribution"]),
        ("perf.data", ["contexts", "anomalies", "attribution"]),
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
    assert Pipeline(capture, Options(target="p90-100")).run() == ["anomalies", "attribution"]
    assert Pipeline(capture, Options(target="p90-100", framing="redis")).run() == [
        "messages", "anomalies", "attribution",
    ]  # fmt: skip


def test_what_is_decoded_around_the_messages_depends_on_which_are_chosen(
    capture: Path, ran: list[str]
) -> None:
    Pipeline(capture).run(rerun="clocks")
    after = ["contexts", "anomalies", "attribution"]
    assert Pipeline(capture, Options(decode="chosen")).run() == after
    assert Pipeline(capture, Options(decode="chosen")).run() == []
    assert Pipeline(capture, Options(decode="chosen", target="p90-100")).run() == after
    touch(capture / "events.tsv")
    chosen = Options(decode="chosen", target="p90-100")
    assert Pipeline(capture, chosen).run() == ["events", "messages", *after]


def test_another_run_of_the_other_capture_reruns_the_comparison(
    capture: Path, ran: list[str], tmp_path: Path
) -> None:
    other = shutil.copytree(capture, tmp_path / "other")
    Pipeline(capture).run(rerun="clocks")
    against = Options(against=str(other))
    assert Pipeline(capture, against).run() == ["anomalies", "attribution"]
    assert Pipeline(capture, against).run() == []
    touch(other / "perf.data")
    assert Pipeline(capture, against).run() == ["anomalies", "attribution"]
    assert Pipeline(capture).run() == ["anomalies", "attribution"]


def test_edited_categories_rerun_only_the_attribution(capture: Path, ran: list[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("*,*,Mine,\n")
    Pipeline(capture).run(rerun="clocks")
    options = Options(categories=str(mine))
    assert Pipeline(capture, options).run() == ["attribution"]
    assert Pipeline(capture, options).run() == []
    touch(mine)
    assert Pipeline(capture, options).run() == ["attribution"]


def test_schema_version_reruns_everything(
    capture: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Pipeline(capture).run(rerun="clocks")
    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    assert Pipeline(capture).run() == ALL


def test_rerun_runs_the_stage_and_those_after_it(capture: Path, ran: list[str]) -> None:
    Pipeline(capture).run(rerun="clocks")
    assert Pipeline(capture).run(rerun="messages") == ["messages", "anomalies", "attribution"]


def test_truncated_table_is_made_again(capture: Path, ran: list[str]) -> None:
    Pipeline(capture).run(rerun="clocks")
    path = capture / "tables/messages.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert Pipeline(capture).run() == ["messages", "anomalies", "attribution"]


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
    assert made["messages"].num_rows == 200
    # What follows it was made from the run before, and is stale now.
    assert Pipeline(capture).run() == ["anomalies", "attribution"]


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

    broken = tuple(
        Stage(s.name, fails if s.name == "anomalies" else s.run, s.needs, s.raw, s.options, s.tables, s.code)
        for s in real
    )
    monkeypatch.setattr(pipeline, "STAGES", broken)
    touch(capture / "perf.data")
    with pytest.raises(BadInput):
        Pipeline(capture).run()
    monkeypatch.setattr(pipeline, "STAGES", real)
    assert Pipeline(capture).run() == ["anomalies", "attribution"]


def test_losses_of_all_stages_are_merged_worst_first(capture: Path) -> None:
    rows = Pipeline(capture).losses().to_pylist()
    assert [(r["stage"], r["severity"], r["count"]) for r in rows] == [
        ("messages", "warning", 3),
        ("messages", "info", 2),
    ]


def test_recorders_losses_are_in_the_ledger(capture: Path) -> None:
    import json

    from .synthetic import manifest

    lost = [
        {"tool": "perf", "what": "lost samples", "count": 7},
        {"tool": "perf", "what": "x", "count": "NaN"},
    ]
    (capture / "manifest.json").write_text(json.dumps(manifest(losses=lost)))
    rows = Pipeline(capture).losses().to_pylist()
    assert ("record", "perf: lost samples", 7) in [(r["stage"], r["cause"], r["count"]) for r in rows]
    assert len(rows) == 3  # the entry without a number is not one


@pytest.mark.parametrize(
    ("step", "bound", "expected"),
    [
        (None, 3, 1000),  # grade trace
        (141, 3, 141),  # what the packets cannot tell apart
        (141, 200, 400),  # two times, each off by as much
        (None, 700, 1400),
    ],
)
def test_granularity_is_that_of_the_packets_or_the_clocks(
    step: int | None, bound: int, expected: int
) -> None:
    trace = [] if step is None else [(0, 1, 16, step, 1.5)]
    names = schema.TABLES["trace"].names()
    columns = {name: [row[i] for row in trace] for i, name in enumerate(names)}
    tables = {
        "trace": pa.table(columns, schema.TABLES["trace"].arrow()),
        # The bound of a clock that no call or message has does not count.
        "clock_map": pa.table({"domain": ["perf", "tai"], "error_ns": pa.array([bound, 9999], pa.int64())}),
    }
    context = SimpleNamespace(table=tables.__getitem__)
    assert stages._granularity(cast(Context, context)) == expected
