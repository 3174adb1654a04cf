# SPDX-License-Identifier: GPL-2.0-only
"""Find the calls in the lifetimes of a capture's compared messages, in one of several ways: PEER CAPTURE."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools/nsight-report"))

from nsight_report.calls.call_tree import COLUMNS
from nsight_report.tables.intervals import IntervalTable


def intervals(tables: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Core, begin and end of the two halves of each compared message's lifetime."""
    names = ["message_id", "recv_cpu", "app_cpu", "first_ns", "handoff_ns", "app_ns"]
    messages = pq.read_table(tables / "messages.parquet", columns=names)
    compared = pq.read_table(tables / "compared.parquet", columns=["message_id"])
    rows = np.isin(messages["message_id"].to_numpy(), compared["message_id"].to_numpy())
    recv, app, first, handoff, last = (messages[n].to_numpy()[rows].astype(np.int64) for n in names[1:])
    return np.append(recv, app), np.append(first, handoff), np.append(handoff, last)


def main() -> None:
    """Print how many calls were found."""
    peer, tables = sys.argv[1], Path(sys.argv[2], "tables")
    path = tables / "calls.parquet"
    cpu, start, end = intervals(tables)
    windows = pa.table({"core": pa.array(cpu, pa.int32()), "low": start, "high": end})
    if peer == "nsight":
        found = IntervalTable(path).overlapping(cpu, start, end, COLUMNS).num_rows
    elif peer == "pandas":
        calls = pq.read_table(path, columns=list(COLUMNS)).to_pandas()
        frame = windows.to_pandas().sort_values(["core", "low"])
        begin, until = calls["start_ns"].to_numpy(), (calls["start_ns"] + calls["dur_ns"]).to_numpy()
        hit = np.zeros(len(calls), bool)
        for core, of in frame.groupby("core"):
            rows = np.flatnonzero(calls["cpu"].to_numpy() == core)
            low, high = of["low"].to_numpy(), np.maximum.accumulate(of["high"].to_numpy())
            at = np.searchsorted(high, begin[rows], "right")
            hit[rows] = np.append(low, 1 << 62)[at] < until[rows]
        found = len(calls[hit])
    elif peer == "polars":
        import polars as pl

        highest = pl.col("high").cum_max().over("core")
        frame = pl.from_arrow(windows).sort("core", "low").with_columns(highest).sort("high").lazy()
        calls = pl.scan_parquet(path).select(COLUMNS)
        joined = calls.join_asof(
            frame, left_on="start_ns", right_on="high", by_left="cpu", by_right="core", strategy="forward",
            check_sortedness=False,
        )  # fmt: skip
        found = (
            joined.filter(pl.col("start_ns") + pl.col("dur_ns") > pl.col("low"))
            .collect(engine="streaming")
            .height
        )
    else:
        import duckdb

        database = duckdb.connect()
        database.execute("set threads = 2; set memory_limit = '2GB'")
        query = (
            "with w as (select core, low, max(high) over (partition by core order by low) as high from windows) "
            f"select {', '.join(f'c.{c}' for c in COLUMNS)} from read_parquet('{path}') c "
            "asof join w on c.cpu = w.core and c.start_ns < w.high where c.start_ns + c.dur_ns > w.low"
        )
        found = database.sql(query).to_arrow_table().num_rows
    print(f"{found} calls")


if __name__ == "__main__":
    main()
