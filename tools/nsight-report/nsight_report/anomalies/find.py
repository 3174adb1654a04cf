# SPDX-License-Identifier: GPL-2.0-only
"""The stage: tables in, anomalies of the target messages out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from .. import schema
from ..frames import to_pandas
from ..losses import Ledger
from . import exposure, functions
from .deviation import deviations
from .exposure import KINDS, UNSEEN, Machine
from .intervals import Int
from .options import Options
from .paths import Trace
from .population import select
from .windows import SIDES, column


def find(
    messages: pa.Table,
    calls: pa.Table,
    contexts: pa.Table,
    thread_states: pa.Table,
    options: Options,
    seen: tuple[int, int] | None = None,
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Compare the target slice of one application's messages with its reference slice.

    Returns ``(schema.COMPARED, schema.ANOMALIES with categories still empty, losses)``.
    The phases of section 5.2 of the paper: unexpected or longer contexts, gaps with what preceded them,
    functions where they are known, overlaps with other messages. Raises BadInput when a slice is empty.
    ``seen``: messages outside of that time are counted and not compared.
    """
    ledger = Ledger("anomalies")
    every, traced, around = (to_pandas(t) for t in (messages, calls, contexts))
    population = select(every, options, ledger, seen)
    states = to_pandas(thread_states)
    machine = Machine.build(around, traced, every, states)
    states = machine.resolve(states, np.unique(column(population.messages["tid"])))
    trace = Trace.build(traced, around) if (traced["kind"] == "function").any() else None
    parts, unseen = [], []
    for rows in population.groups():
        (target, in_target), (reference, in_reference) = (
            exposure.measure(population.messages, of, states, machine) for of in rows
        )
        unseen.append(target.ns[target.kind == UNSEEN])
        n_reference = len(rows[1])
        frame = deviations(target, reference, n_reference, machine, options.granularity_ns)
        if trace is not None:
            inside, looked_into = functions.find(
                trace, in_target, in_reference, n_reference, machine, options
            )
            frame = pd.concat([_without(frame, looked_into, machine), inside])
        parts.append(frame)
    lost = np.concatenate(unseen)
    ledger.add(
        "target messages with time nothing was recorded for",
        len(lost),
        "warning",
        f"{lost.sum()} ns of their lifetimes stay unexplained",
        "see the losses of the recording; record longer than the load runs",
    )
    frame = pd.concat(parts, ignore_index=True)
    ids = population.messages["message_id"].to_numpy(np.int64)
    frame["message_id"] = ids[frame.pop("row").to_numpy(np.int64)]
    frame["category"] = ""
    frame = frame.sort_values(["message_id", "side", "deviation_ns"], ascending=[True, True, False])
    table = pa.Table.from_pandas(_strings(frame), preserve_index=False)
    return population.table(), schema.conform("anomalies", table), ledger.table()


def _without(frame: pd.DataFrame, labels: Int, machine: Machine) -> pd.DataFrame:
    """Rows of ``frame`` but those of the labels (side, kind, subject), which functions stand for."""
    names = machine.names.list
    dropped = {(SIDES[side], KINDS[kind], names[subject]) for side, kind, subject in labels.tolist()}
    keys = zip(frame["side"], frame["kind"], frame["subject"], strict=True)
    return frame[[key not in dropped for key in keys]]


def _strings(frame: pd.DataFrame) -> pd.DataFrame:
    """Arrow cannot guess the type of an empty object column."""
    text = ["side", "anomaly", "subject", "kind", "category", "path", "dso"]
    return (
        frame.astype(dict.fromkeys(text, "category"))
        if len(frame)
        else frame.astype(dict.fromkeys(text, "str"))
    )
