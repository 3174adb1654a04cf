# SPDX-License-Identifier: GPL-2.0-only
"""The Python API: DataFrames whose times are integers."""

import json
import re
from pathlib import Path

import nsight_report
import numpy as np
import pandas as pd
import pytest
from machinery.made_up.capture import START
from nsight_report.tables import schema


def test_every_table_is_a_dataframe_with_the_columns_of_the_schema(capture: Path) -> None:
    c = nsight_report.open(capture)
    for name in schema.STORED:
        frame = getattr(c, name)
        assert isinstance(frame, pd.DataFrame)
        assert list(frame.columns) == schema.TABLES[name].names()


def test_no_time_is_a_float(capture: Path) -> None:
    c = nsight_report.open(capture)
    for name in schema.STORED:
        frame = getattr(c, name)
        times = [column for column in frame.columns if column.endswith("_ns")]
        assert all(frame[column].dtype == pd.Int64Dtype() for column in times), name


def test_null_stamp_stays_null_beside_exact_times(capture: Path) -> None:
    first = nsight_report.open(capture).messages.iloc[0]
    assert first["nic_ns"] == START  # odd and above 2**52: a float32 or a division would change it
    assert first["driver_ns"] is pd.NA


def test_null_stamp_is_minus_one_in_columns_and_null_in_rows(capture: Path) -> None:
    stored = nsight_report.open(capture).stored_messages
    assert set(stored.columns(["message_id", "driver_ns"])["driver_ns"]) == {-1}
    assert stored.rows(np.array([0]))["driver_ns"].isna().all()
    told = (Path(__file__).resolve().parents[2] / "Documentation/api.md").read_text()
    assert "There, a timestamp that was not measured is -1" in told


def test_summary_is_what_json_prints(capture: Path) -> None:
    summary = nsight_report.open(capture).summary()
    assert summary["messages"]["n"] == 2000
    assert summary["causes"][0]["cause"] == "hog (A)"


def test_keys_of_the_summary_and_of_its_rows_are_documented(capture: Path) -> None:
    """Each key has a row, which names the keys in its value."""
    told = (Path(__file__).resolve().parents[2] / "Documentation/formats.md").read_text()
    told = told.partition("### nsight-report CAPTURE --json\n")[2].partition("\n#")[0]
    rows = dict(re.findall(r"^\| (`.*?`) \| (.*) \|$", told, re.M))
    documented = {key: text for keys, text in rows.items() for key in re.findall(r"`(\w+)`", keys)}
    summary = nsight_report.open(capture).summary()
    assert set(summary) == set(documented)
    for key, value in summary.items():
        row = value[0] if isinstance(value, list) and value else value
        if isinstance(row, dict):
            assert set(row) <= set(re.findall(r"`(\w+)`", documented[key])), key


def test_unknown_option_and_table_are_named(capture: Path) -> None:
    with pytest.raises(TypeError, match="prot"):
        nsight_report.open(capture, prot=11211)
    with pytest.raises(AttributeError, match="packets"):
        nsight_report.open(capture).packets  # noqa: B018


def test_bad_capture_raises_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(nsight_report.BadInput, match="no such capture") as caught:
        nsight_report.open(tmp_path / "absent")
    assert "nsight-record" in caught.value.hint


def test_options_by_their_former_names_still_work_with_a_warning(capture: Path) -> None:
    with pytest.warns(DeprecationWarning, match="'target' is called 'slow' now"):
        old = nsight_report.open(capture, target="p90-100")
    assert old.options == nsight_report.open(capture, slow="p90-100").options


@pytest.mark.parametrize(("grade", "mode"), [("pt", "intel-pt"), ("trace", "tracepoints")])
def test_capture_of_before_modes_were_called_so_is_read(capture: Path, grade: str, mode: str) -> None:
    manifest = json.loads((capture / "manifest.json").read_text())
    del manifest["mode"]
    (capture / "manifest.json").write_text(json.dumps({**manifest, "grade": grade}))
    assert nsight_report.open(capture).manifest.mode == mode
