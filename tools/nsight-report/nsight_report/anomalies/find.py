# SPDX-License-Identifier: GPL-2.0-only
"""The stage: tables in, anomalies of the target messages out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from .. import schema
from ..frames import to_pandas
from ..losses import Ledger
from . import exposure, functions
from .deviation import deviations
from .exposure import KINDS, UNSEEN, Machine, Names
from .intervals import Int
from .options import Options
from .paths import Trace
from .population import select, select_against
from .windows import SIDES, column


class Recorded(NamedTuple):
    """Tables of schema.py of one capture; ``seen``: messages outside of that time are not compared."""

    messages: pa.Table
    calls: pa.Table
    contexts: pa.Table
    thread_states: pa.Table
    seen: tuple[int, int] | None = None


def find(
    recorded: Recorded, options: Options, against: Recorded | None = None
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Compare the target slice of one application's messages with its reference slice, of the same capture or of ``against``.

    Returns ``(schema.COMPARED, schema.ANOMALIES with categories still empty, losses)``.
    The phases of section 5.2 of the paper: unexpected or longer contexts, gaps with what preceded them,
    functions where both captures have them, overlaps with other messages. Raises BadInput when a slice is empty.
    """
    ledger = Ledger("anomalies")
    names = Names()
    messages = to_pandas(recorded.messages)
    if against is None:
        population = select(messages, options, ledger, recorded.seen)
        here = there = _Side(recorded, population.messages, names)
    else:
        others = to_pandas(against.messages)
        population = select_against(messages, others, options, ledger, recorded.seen, against.seen)
        here = _Side(recorded, population.messages, names)
        there = _Side(against, population.others, names)
    parts, unseen = [], []
    for of, by in population.groups():
        target, in_target = exposure.measure(here.messages, of, here.states, here.machine)
        reference, in_reference = exposure.measure(there.messages, by, there.states, there.machine)
        unseen.append(target.ns[target.kind == UNSEEN])
        frame = deviations(target, reference, len(by), here.machine, options.granularity_ns)
        if here.trace is not None and there.trace is not None:
            inside, looked_into = functions.find(
                functions.Measured(here.trace, in_target),
                functions.Measured(there.trace, in_reference),
                len(by),
                here.machine,
                options,
            )
            frame = pd.concat([_without(frame, looked_into, here.machine), inside])
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


class _Side:
    """One capture, ready to be measured: the messages of its application, its cores, threads and functions."""

    def __init__(self, recorded: Recorded, messages: pd.DataFrame | None, names: Names) -> None:
        every, calls, contexts, states = (to_pandas(t) for t in recorded[:4])
        self.messages = every if messages is None else messages
        self.machine = Machine.build(contexts, calls, every, states, names)
        self.states = self.machine.resolve(states, np.unique(column(self.messages["tid"])))
        self.trace = Trace.build(calls, contexts) if (calls["kind"] == "function").any() else None


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
