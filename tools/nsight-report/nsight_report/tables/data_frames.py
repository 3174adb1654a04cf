# SPDX-License-Identifier: GPL-2.0-only
"""Arrow tables as pandas DataFrames that keep integers integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

# Nullable types, so that a null timestamp never turns a column of ns into floats (which lose
# nanoseconds beyond 2**53). Dictionary columns become Categorical automatically.
_PANDAS: dict[pa.DataType, Any] = {
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint32(): pd.UInt32Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
    pa.string(): pd.StringDtype(),
}


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """An Arrow table of ``schema.py`` as a DataFrame; integers stay integers, nulls are pd.NA."""
    return table.to_pandas(types_mapper=_PANDAS.get)


def column(series: pd.Series[Any]) -> npt.NDArray[np.int64]:
    """An integer column as int64, nulls as -1."""
    return np.asarray(series.astype("Int64").fillna(-1), dtype=np.int64)


def numbers(column: pa.ChunkedArray, words: dict[str, int]) -> npt.NDArray[np.int64]:
    """Numbers, and for words their positions in ``words``, which grows; -1 for null."""
    if not pa.types.is_dictionary(column.type):
        return pc.fill_null(column.cast(pa.int64()), -1).to_numpy()  # type: ignore[no-any-return]
    parts = [np.zeros(0, np.int32)]
    for chunk in column.chunks:
        places = [words.setdefault(word, len(words)) for word in chunk.dictionary.to_pylist()]
        parts.append(np.array([*places, -1], np.int32)[pc.fill_null(chunk.indices, -1).to_numpy()])
    return np.concatenate(parts)


def each(frame: pd.DataFrame) -> Iterator[Any]:
    """Rows with columns as attributes: for the few rows that are printed or drawn, never for events."""
    return iter(frame.itertuples(index=False))


def plain(value: Any) -> Any:
    """A value of a table as a JSON type; null becomes None."""
    if pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def record(row: Any, *names: str) -> dict[str, Any]:
    """Some attributes of a row, or of any object, as plain types."""
    return {name: plain(getattr(row, name)) for name in names}


def cause_names(anomalies: pd.DataFrame) -> pd.Series[str]:
    """The cause of each anomaly as in table ``causes``: category with (R) or (A)."""
    return anomalies["category"].astype(str) + " (" + anomalies["side"].astype(str) + ")"


def words(column: pd.Series[Any]) -> npt.NDArray[np.object_]:
    """A column of names as plain strings, fast to compare; null becomes the word nan."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        known = np.append(column.cat.categories.astype(str).to_numpy(object), "nan")
        return known[column.cat.codes.to_numpy()]  # type: ignore[no-any-return]
    return column.astype(str).to_numpy(object)  # type: ignore[no-any-return]
