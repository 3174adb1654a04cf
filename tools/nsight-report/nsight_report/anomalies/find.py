# SPDX-License-Identifier: GPL-2.0-only
"""The stage: tables in, anomalies of the target messages out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from .. import schema
from ..frames import to_pandas
from ..losses import Ledger
from . import exposure
from .deviation import deviations
from .exposure import UNSEEN, Machine
from .options import Options
from .population import select


def find(
    messages: pa.Table, calls: pa.Table, contexts: pa.Table, thread_states: pa.Table, options: Options
) -> tuple[pa.Table, pa.Table]:
    """Compare the target slice of one application's messages with its reference slice.

    Returns ``(schema.ANOMALIES with categories still empty, losses)``.
    First, second and fourth phase of section 5.2 of the paper, on contexts: unexpected or longer contexts, gaps with
    what preceded them, overlaps with other messages. Raises BadInput when a slice is empty.
    """
    ledger = Ledger("anomalies")
    every = to_pandas(messages)
    population = select(every, options, ledger)
    states = to_pandas(thread_states)
    machine = Machine.build(to_pandas(contexts), to_pandas(calls), every, states)
    rows = {
        name: exposure.measure(population.messages, getattr(population, name), states, machine)
        for name in ("target", "reference")
    }
    unseen = rows["target"].ns[rows["target"].kind == UNSEEN]
    ledger.add(
        "target messages with time nothing was recorded for",
        len(unseen),
        "warning",
        f"{unseen.sum()} ns of their lifetimes stay unexplained",
        "see the losses of the recording; record longer than the load runs",
    )
    frame = deviations(
        rows["target"], rows["reference"], len(population.reference), machine, options.granularity_ns
    )
    ids = population.messages["message_id"].to_numpy(np.int64)
    frame["message_id"] = ids[frame.pop("row").to_numpy(np.int64)]
    frame["category"] = ""
    frame = frame.sort_values(["message_id", "side", "deviation_ns"], ascending=[True, True, False])
    table = pa.Table.from_pandas(_strings(frame), preserve_index=False)
    return schema.conform("anomalies", table), ledger.table()


def _strings(frame: pd.DataFrame) -> pd.DataFrame:
    """Arrow cannot guess the type of an empty object column."""
    text = ["side", "anomaly", "subject", "kind", "category"]
    return (
        frame.astype(dict.fromkeys(text, "category"))
        if len(frame)
        else frame.astype(dict.fromkeys(text, "str"))
    )
