# SPDX-License-Identifier: GPL-2.0-only
"""Which received request each sent request belongs to."""

from __future__ import annotations

import numpy as np
from nsight_report.requests.tree import InHands, Sent, parents


def hands(*rows: tuple[int, int, int]) -> InHands:
    """(request, start, end), all of thread 1."""
    request, start, end = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return InHands(request, np.ones(len(rows), np.int64), start, end)


ASKED = Sent(np.array([1]), np.array([60]), np.array([70]))


def test_a_request_that_was_answered_before_it_was_read_whole_is_in_nobodys_hands() -> None:
    """HTTP/2 sends the end of a reply while the body of the request is still arriving."""
    early = (7, 100, 20)
    found, n_several = parents(hands(early, (8, 0, 90), (9, 10, 90)), ASKED)
    assert (found.tolist(), n_several) == ([-1], 1)
    found, n_several = parents(hands(early, (8, 0, 90)), ASKED)
    assert (found.tolist(), n_several) == ([8], 0)
