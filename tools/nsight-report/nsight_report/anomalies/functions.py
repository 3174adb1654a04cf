# SPDX-License-Identifier: GPL-2.0-only
"""Third phase: functions that are slower, more frequent or unexpected, in the context of their call path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..interval_joins import Int
from ..names import ARROW
from ..timeline import SIDES
from ..timeline.labelled import KINDS, OWN
from . import nesting
from .nesting import Baseline, Usual
from .paths import Nodes, Paths

#: Number of nodes of slow messages that are searched at a time.
BATCH = 1 << 19


@dataclass(frozen=True)
class Measured:
    """What messages called: ``paths``, and nodes whose labels are numbers (``label``) of ``labels``, in ascending order.

    ``parts``: some messages each, in order, because they hold most of the memory.
    """

    paths: Paths
    parts: list[Nodes]
    labels: Int

    @staticmethod
    def join(parts: list[tuple[Paths, Nodes, Int]]) -> Measured:
        """Joins parts, each with its own paths."""
        paths, numbers = Paths.join([p[0] for p in parts])
        renumbered = [replace(p[1], path=n[p[1].path]) for p, n in zip(parts, numbers, strict=True)]
        return Measured(paths, renumbered, np.unique(np.concatenate([p[2] for p in parts])))

    def batches(self) -> Iterator[Nodes]:
        """All nodes in batches; those of one message stay together."""
        held: list[Nodes] = []
        for n_parts, part in enumerate(self.parts, 1):
            held.append(part)
            if n_parts == len(self.parts) or sum(map(len, held)) >= BATCH:
                yield Nodes.join(held)
                held = []


def label(side: Int, kind: Int, subject: Int) -> Int:
    """One number for the three."""
    return (subject * len(KINDS) + kind) * len(SIDES) + side


def of_label(number: Int) -> tuple[Int, Int, Int]:
    """Side, kind and subject of a label."""
    rest, side = np.divmod(number, len(SIDES))
    subject, kind = np.divmod(rest, len(KINDS))
    return side, kind, subject


def find(
    slow: Measured, baseline: Measured, n_baseline: int, names: list[str], noise_ns: Int, explained: float
) -> tuple[pd.DataFrame, npt.NDArray[np.int64]]:
    """Anomalous functions of the slow messages, and the labels (side, kind, subject) that they stand for.

    Columns as in deviation.deviations, plus ``path``, ``dso``, ``n_calls``, ``baseline_n_calls``.
    Only labels that baseline messages have too are searched: a label that is unexpected as a whole is one anomaly.
    A thread's own intervals are always searched. ``slow`` and ``baseline`` may come from different captures. ``names``: names of
    subjects; ``noise_ns``: by row, the size up to which a deviation is ignored; ``explained``: see ``nesting.claims``.
    """
    every = np.union1d(slow.labels, baseline.labels)
    known = every[np.isin(every, baseline.labels) | (of_label(every)[1] == OWN)]
    usually = _of_labels(Nodes.join(baseline.parts), known)
    if slow.paths is not baseline.paths:
        usually = slow.paths.translate(usually, baseline.paths)
    usual, labels, found = Baseline(usually, n_baseline), np.stack(of_label(known)), []
    for batch in slow.batches():
        nodes = _of_labels(batch, known)
        expected = usual.at(nodes)
        claimed = nesting.claims(nodes, slow.paths, expected, noise_ns[nodes.row], explained)
        found.append(_rows(nodes, expected, claimed, np.flatnonzero(claimed), labels, slow.paths, names))
    return pd.concat(found, ignore_index=True), labels.T


def _of_labels(nodes: Nodes, known: Int) -> Nodes:
    """The nodes of some labels; the labels become positions in ``known``."""
    chosen = nodes.take(np.isin(nodes.label, known))
    return replace(chosen, label=np.searchsorted(known, chosen.label))


def _rows(
    nodes: Nodes, usual: Usual, claimed: Int, at: Int, labels: Int, paths: Paths, names: list[str]
) -> pd.DataFrame:
    side, kind, subject = labels[:, nodes.label[at]]
    path = nodes.path[at]
    whole = path < 0  # the label itself, without a function
    symbol, dso, before = (np.append(w, "")[path] for w in (paths.symbol, paths.dso, paths.before))
    stall = before != ""
    words = np.array([*names, ""], dtype=object)
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
            "subject": np.where(whole, words[subject], subjects),
            "kind": np.where(whole, own_word, np.where(stall, "stall", "function")),
            "observed_ns": nodes.total[at],
            "baseline_ns": expected,
            "deviation_ns": claimed[at],
            "start_ns": nodes.start[at],
            "end_ns": nodes.end[at],
            "cpu": nodes.cpu[at],
            "other_message_id": np.full(len(at), -1),
            "path": _texts(path, words[subject], paths),
            "dso": np.where(whole, "", dso),
            "n_calls": calls_now,
            "baseline_n_calls": calls_usual,
        }
    )


def _texts(path: Int, context: npt.NDArray[np.object_], paths: Paths) -> list[str]:
    """Each path as text, starting with its context."""
    known: dict[int, str] = {-1: ""}

    def text(of: int) -> str:
        chain = []
        while of not in known:
            chain.append(of)
            of = int(paths.up[of])
        for part in reversed(chain):
            known[part] = known[of] + ARROW + paths.symbol[part]
            of = part
        return known[of]

    # One text per distinct path among the anomalies.
    return [f"{c}{text(int(p))}" for c, p in zip(context, path)]
