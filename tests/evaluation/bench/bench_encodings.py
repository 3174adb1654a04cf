#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Cost of reading numbers of table ``calls``, by encoding and compression: processor time and bytes per call.

    python tests/evaluation/bench/bench_encodings.py [--calls FILE] [--rows N]

Without a file, a capture of the report's benchmark is made. Each column is written in row groups, like those of the store, and
read alone; the better of two reads counts. The choice of nsight-report's store.py is marked with *.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
for part in ("tools/nsight-report", "tests", "tests/evaluation/bench"):
    sys.path.insert(0, str(ROOT / part))

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from nsight_report.tables.store import ASCENDING, COMPRESSION, GROUP_ROWS  # noqa: E402
from report_capture import make  # noqa: E402

COLUMNS = ("call_id", "parent_id", "start_ns", "dur_ns")
ENCODINGS = {"BYTE_STREAM_SPLIT": "split by bytes", "DELTA_BINARY_PACKED": "differences", "PLAIN": "plain"}
COMPRESSIONS = ("zstd", "lz4")


def measure(values: pa.Table, encoding: str, compression: str, path: Path) -> tuple[float, float]:
    """Seconds of processor time to read one column, and its bytes per row."""
    (name,) = values.column_names
    pq.write_table(
        values,
        path,
        row_group_size=GROUP_ROWS,
        compression=compression,
        use_dictionary=False,
        column_encoding={name: encoding},
    )
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group, use_threads=False)
        best = min(best, time.process_time() - start)
    metadata = pq.read_metadata(path)
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return best, sum(group.column(0).total_compressed_size for group in groups) / values.num_rows


def read(path: Path, most: int) -> pa.Table:
    """The first rows of a table of calls."""
    with pq.ParquetFile(path) as file:
        parts, n = [], 0
        for group in range(file.num_row_groups):
            parts.append(file.read_row_group(group, columns=list(COLUMNS)))
            n += parts[-1].num_rows
            if n >= most:
                break
    return pa.concat_tables(parts).slice(0, most)


def main() -> int:
    """Measure every column with each encoding, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=Path, help="a calls.parquet (default: made)")
    parser.add_argument(
        "--rows", type=int, default=5_000_000, metavar="N", help="at most (default: 5 million)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsight-bench-") as scratch:
        path = args.calls
        if path is None:
            path = make(Path(scratch) / "made.nsight", 10_080, 22, seed=1).path / "tables" / "calls.parquet"
        table = read(path, args.rows)
        print(f"{table.num_rows:,} calls; seconds to read 50 million by that rate, and bytes a call")
        print(f"  {'':24}" + "".join(f"{name:>16}" for name in COLUMNS))
        for encoding, words in ENCODINGS.items():
            for compression in COMPRESSIONS:
                cells = []
                for name in COLUMNS:
                    seconds, size = measure(
                        table.select([name]), encoding, compression, Path(scratch) / "x.parquet"
                    )
                    ours = "DELTA_BINARY_PACKED" if name in ASCENDING else "BYTE_STREAM_SPLIT"
                    mark = "*" if (encoding, compression) == (ours, COMPRESSION) else " "
                    cells.append(f"{seconds / table.num_rows * 50e6:9.2f} {size:5.2f}{mark}")
                print(f"  {words + ', ' + compression:24}" + "".join(cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
