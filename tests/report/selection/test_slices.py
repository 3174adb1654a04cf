# SPDX-License-Identifier: GPL-2.0-only
"""Which messages belong to a slice."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from machinery.made_up.tables import message, table
from nsight_report.selection.slices import BadSlice, Slice
from nsight_report.tables.data_frames import to_pandas

# Ten messages, 1 s apart, of 100 to 1000 ns; odd ones are sets of connection 1.
TEN = to_pandas(
    table(
        "messages",
        [
            message(
                i, i * 10**9, i * 10**9 + 10, i * 10**9 + 100 * (i + 1), conn_id=i % 2, rport=40_000 + i % 2,
                request_type="set" if i % 2 else "get",
            )
            for i in range(10)
        ],
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p90-100", [9]),
        ("p0-20", [0, 1]),
        ("300ns-500ns", [2, 3, 4]),
        ("900ns-", [8, 9]),
        ("time:2s-4s", [2, 3, 4]),
        ("time:8500ms-", [9]),
        ("conn:1", [1, 3, 5, 7, 9]),
        ("peer:10.0.0.2:40001", [1, 3, 5, 7, 9]),
        ("peer:10.0.0.2", list(range(10))),
        ("peer:10.0.0.3", []),
        ("type:get,set", list(range(10))),
        ("id:7,2", [2, 7]),
        # Percentiles refer to the messages that meet the other conditions, in any order of the conditions.
        ("type:get+p80-100", [8]),
        ("p80-100+type:get", [8]),
        ("type:set+time:0s-5s+500ns-", [5]),
    ],
)
def test_rows(text: str, expected: list[int]) -> None:
    assert Slice.parse(text).rows(TEN, 0).tolist() == expected
    assert Slice.parse(str(Slice.parse(text))) == Slice.parse(text)


def test_times_are_since_the_origin_and_not_the_first_message_that_is_left() -> None:
    later = TEN.iloc[5:].reset_index(drop=True)
    assert Slice.parse("time:6s-7s").rows(later, 0).tolist() == [1, 2]


def test_numbers_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "slow").write_text("4\n9, 1\n")
    assert Slice.parse(f"id:@{tmp_path}/slow").rows(TEN, 0).tolist() == [1, 4, 9]


@pytest.mark.parametrize(
    ("content", "why"), [(" \n", "no number in it"), ("7 " * (9 << 20), "more than 16 MiB")]
)
def test_a_file_that_lists_no_messages_or_too_many_is_named(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "slow").write_text(content)
    with pytest.raises(BadSlice, match=f"slow: {why}"):
        Slice.parse(f"id:@{tmp_path}/slow")


def test_messages_without_request_type_are_of_none() -> None:
    untyped = TEN.assign(request_type=pd.Series([None] * 10, dtype="category"))
    assert Slice.parse("type:get").rows(untyped, 0).tolist() == []


@pytest.mark.parametrize(
    "text",
    ["p99", "99-100", "p100-99", "1ms", "p0-101", "5us-1us", "", "id:x", "conn:-1", "id:", "when:1", "p99-100+", "time:3",
     "id:1234567890123456789012"],
)  # fmt: skip
def test_what_is_no_slice_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(BadSlice, match="slice") as error:
        Slice.parse(text)
    assert "time:1.5s-2s" in error.value.hint


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(BadSlice, match="/nonexistent"):
        Slice.parse("id:@/nonexistent")


@pytest.mark.parametrize("text", ["p99.99999-100", "p99.12345-99.9999999"])
def test_percentiles_are_printed_as_they_were_given(text: str) -> None:
    assert str(Slice.parse(text)) == text
