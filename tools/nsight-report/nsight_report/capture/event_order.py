# SPDX-License-Identifier: GPL-2.0-only
"""Which events are far out of the order in which their core wrote them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

ROW_SPACING_NS = 10_000_000_000  # more disorder than any ring buffer of the probes can cause
_NEAR = 5  # number of events before and after an event that its verdict depends on
_Rows = tuple[npt.NDArray[np.uint16], I64, I64, Bool, Bool]


class Order:
    """Judges events while they are read, in pieces; the last ones of a core wait for the next piece.

    The events of one core are in the file in the order in which they happened. An event is rejected
    if it is more than 10 s before the preceding ones or after the following ones. These neighbours are
    represented by medians of five, so that one absurd timestamp does not cause rejection of the events around it.
    """

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        self._held: _Rows = none.astype(np.uint16), none, none, none.astype(bool), none.astype(bool)
        self._rejected: list[I64] = []
        self.n_rejected = self.n_marked = 0

    def take(self, cpu: I64, ts: I64, number: I64, marked: Bool) -> None:
        """Judge events of the cores ``cpu``, in the order of the file. ``marked``: counted separately when rejected."""
        self._judge((cpu.astype(np.uint16), ts, number, marked, np.zeros(len(ts), bool)), last=False)

    def rejected(self) -> I64:
        """Numbers of the rejected events, ascending, after all have been taken."""
        none = self._held[1][:0]
        self._judge((self._held[0][:0], none, none, none.astype(bool), none.astype(bool)), last=True)
        return np.sort(np.concatenate([none, *self._rejected]))

    def _judge(self, more: _Rows, last: bool) -> None:
        order = np.argsort(np.concatenate((self._held[0], more[0])), kind="stable")
        cpu = np.concatenate((self._held[0], more[0]))[order]
        ts = np.concatenate((self._held[1], more[1]))[order]
        number = np.concatenate((self._held[2], more[2]))[order]
        marked = np.concatenate((self._held[3], more[3]))[order]
        judged = np.concatenate((self._held[4], more[4]))[order]
        at = np.arange(len(ts))
        starts = np.flatnonzero(np.concatenate(([True], cpu[1:] != cpu[:-1]))) if len(ts) else at
        n_rows = np.diff(np.append(starts, len(ts)))
        first, final = np.repeat(starts, n_rows), np.repeat(starts + n_rows - 1, n_rows)
        medians = _median(*(ts[np.clip(at + shift, first, final)] for shift in range(-2, 3)))
        before, after = medians[np.maximum(at - 3, first)], medians[np.minimum(at + 3, final)]
        good = (ts >= before - ROW_SPACING_NS) & (ts <= after + ROW_SPACING_NS)
        # Too few to decide which one is wrong.
        good |= np.repeat(n_rows < _NEAR, n_rows)
        settled = (at + _NEAR <= final) | last
        bad = settled & ~judged & ~good
        self._rejected.append(number[bad])
        self.n_rejected += int(np.count_nonzero(bad))
        self.n_marked += int(np.count_nonzero(bad & marked))
        keep = at > final - 2 * _NEAR
        self._held = cpu[keep], ts[keep], number[keep], marked[keep], (judged | settled)[keep]


def _median(a: I64, b: I64, c: I64, d: I64, e: I64) -> I64:
    """Median of five values each: without the least and the greatest of four, three remain."""
    low = np.maximum(np.minimum(a, b), np.minimum(c, d))
    high = np.minimum(np.maximum(a, b), np.maximum(c, d))
    return np.asarray(np.maximum(np.minimum(low, high), np.minimum(np.maximum(low, high), e)))
