# SPDX-License-Identifier: GPL-2.0-only
"""The stage: tables in, anomalies of the target messages out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from .. import schema
from ..frames import column
from ..losses import Ledger
from ..timeline import SIDES
from ..timeline.intervals import Int
from . import functions
from .deviation import adding_up, deviations, latencies, reference_medians, saved, without_saved
from .exposure import KINDS, UNSEEN, Names
from .options import Options
from .population import select, select_against
from .recorded import Recorded, Side


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
    if against is None:
        population = select(recorded.every(), options, ledger, recorded.seen).with_noise(
            recorded.noise_from(options.granularity_ns)
        )
        groups = list(population.groups())
        here = there = Side(recorded, population.messages, population.app, names)
        measured = here.measure([rows for pair in groups for rows in pair], here.has_functions)
        targets, references = measured[::2], measured[1::2]
    else:
        population = select_against(
            recorded.every(), against.every(), options, ledger, recorded.seen, against.seen
        ).with_noise(*(of.noise_from(options.granularity_ns) for of in (recorded, against)))
        assert population.others is not None and population.others_app is not None
        groups = list(population.groups())
        here = Side(recorded, population.messages, population.app, names)
        there = Side(against, population.others, population.others_app, names)
        both = here.has_functions and there.has_functions
        targets = here.measure([of for of, _ in groups], both)
        references = there.measure([by for _, by in groups], both)
    noise = column(population.messages["noise_ns"])
    parts, n_unseen, unseen_ns = [], 0, 0
    for (_, by), (target, called), (reference, usually) in zip(groups, targets, references, strict=True):
        unseen = target.kind == UNSEEN
        n_unseen += len(np.unique(target.row[unseen]))  # of a message several stretches
        unseen_ns += int(target.ns[unseen].sum())
        usual = adding_up(reference_medians(reference, len(by)), reference, len(by))
        frame = deviations(target, usual, here.machine, noise)
        if called is not None and usually is not None:
            inside, looked_into = functions.find(
                called, usually, len(by), names.list, noise, options.explained
            )
            frame = pd.concat([_without(frame, looked_into, names.list), inside])
        late = latencies(target) - int(np.median(latencies(reference)))
        parts.append(without_saved(frame, saved(target, usual), late))
    ledger.add("slow_messages_with_untraced_time", n_unseen, unseen_ns=unseen_ns)
    frame = pd.concat(parts, ignore_index=True)
    ids = population.messages["message_id"].to_numpy(np.int64)
    frame["message_id"] = ids[frame.pop("row").to_numpy(np.int64)]
    frame["category"], frame["located"] = "", False
    frame["took_ns"] = frame["deviation_ns"]
    frame = frame.sort_values(["message_id", "side", "deviation_ns"], ascending=[True, True, False])
    table = pa.Table.from_pandas(_strings(frame), preserve_index=False)
    return population.table(), schema.conform("anomalies", table), ledger.table()


def _without(frame: pd.DataFrame, labels: Int, names: list[str]) -> pd.DataFrame:
    """Rows of ``frame`` but those of the labels (side, kind, subject), which functions stand for."""
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
