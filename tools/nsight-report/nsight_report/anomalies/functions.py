# SPDX-License-Identifier: GPL-2.0-only
"""Third phase: functions that are slower, more frequent or unexpected, in the context of their call path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from . import nesting
from .exposure import KINDS, OWN, Machine, Stretches
from .intervals import Int
from .nesting import Usual
from .options import Options
from .paths import Calls, Nodes, Trace
from .windows import SIDES

#: Between the functions of a path.
ARROW = " > "


@dataclass(frozen=True)
class Measured:
    """Messages of one capture: its trace, and their stretches (kinds exposure.WITHIN)."""

    trace: Trace
    stretches: Stretches


def find(
    target: Measured, reference: Measured, n_reference: int, machine: Machine, options: Options
) -> tuple[pd.DataFrame, npt.NDArray[np.int64]]:
    """Anomalous functions of the target messages, and the labels (side, kind, subject) that they stand for.

    Columns as deviation.deviations gives them, and ``path``, ``dso``, ``n_calls``, ``reference_n_calls``.
    Only labels that reference messages have too are looked into: what is unexpected as a whole is one anomaly.
    A thread's own stretches always are. The two may be of one capture or of two.
    """
    every = Stretches.join([target.stretches, reference.stretches])
    labels, of = np.unique(np.stack([every.side, every.kind, every.subject]), axis=1, return_inverse=True)
    split = np.split(of.reshape(-1), [len(target.stretches.row)])
    known = np.isin(np.arange(labels.shape[1]), split[1]) | (labels[1] == OWN)
    if target.trace is reference.trace:
        calls = others = Calls(target.trace, every.cpu, every.start, every.end)
    else:
        calls, others = (
            Calls(s.trace, s.stretches.cpu, s.stretches.start, s.stretches.end) for s in (target, reference)
        )
    nodes, usually = (
        found.measure(s.row, label[known[label]], s.cpu, s.start, s.end)
        for found, whole, label in ((calls, target, split[0]), (others, reference, split[1]))
        for s in [whole.stretches.take(known[label])]
    )
    usual = nesting.usual(nodes, calls.paths.translate(usually, others.paths), n_reference)
    claimed = nesting.claims(nodes, calls.paths, usual, options.granularity_ns, options.explained)
    at = np.flatnonzero(claimed)
    return _rows(nodes, usual, claimed, at, labels, calls, machine), labels[:, known].T


def _rows(
    nodes: Nodes, usual: Usual, claimed: Int, at: Int, labels: Int, calls: Calls, machine: Machine
) -> pd.DataFrame:
    side, kind, subject = labels[:, nodes.label[at]]
    path = nodes.path[at]
    of_label = path < 0
    # Of labels as a whole there is no name: that of any stands in.
    symbol, dso, before = calls.names.of(np.append(calls.paths.name, 0)[path])
    stall = ~of_label & (before != "")
    words = np.array([*machine.names.list, ""], dtype=object)
    own_word = np.array(KINDS, dtype=object)[kind]
    subjects = np.where(stall, before + " (" + symbol + ")", symbol)
    expected, calls_now, calls_usual = usual.total[at], nodes.calls[at], usual.calls[at]
    more = (calls_now - calls_usual) * expected >= np.maximum(calls_usual, 1) * claimed[at] / 2
    anomaly = np.where(expected == 0, "unexpected", np.where((calls_usual > 0) & more, "frequent", "slower"))
    return pd.DataFrame(
        {
            "row": nodes.row[at],
            "side": np.array(SIDES, dtype=object)[side],
            "anomaly": np.where(stall, "gap", anomaly),
            "subject": np.where(of_label, words[subject], subjects),
            "kind": np.where(of_label, own_word, np.where(stall, "stall", "function")),
            "observed_ns": nodes.total[at],
            "reference_ns": expected,
            "deviation_ns": claimed[at],
            "start_ns": nodes.start[at],
            "end_ns": nodes.end[at],
            "cpu": nodes.cpu[at],
            "other_message_id": np.full(len(at), -1),
            "path": _texts(path, words[subject], calls),
            "dso": np.where(of_label, "", dso),
            "n_calls": calls_now,
            "reference_n_calls": calls_usual,
        }
    )


def _texts(path: Int, context: npt.NDArray[np.object_], calls: Calls) -> list[str]:
    """Each path as text, from its context on."""
    symbols, _, _ = calls.names.of(calls.paths.name)
    known: dict[int, str] = {-1: ""}

    def text(of: int) -> str:
        chain = []
        while of not in known:
            chain.append(of)
            of = int(calls.paths.up[of])
        for part in reversed(chain):
            known[part] = known[of] + ARROW + symbols[part]
            of = part
        return known[of]

    # As many as there are different paths among the anomalies.
    return [f"{c}{text(int(p))}" for c, p in zip(context, path)]
