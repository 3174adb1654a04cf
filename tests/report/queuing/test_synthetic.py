# SPDX-License-Identifier: GPL-2.0-only
"""Queues and blocking on synthetic streams, where it is known which message waited behind which."""

from __future__ import annotations

import numpy as np
import pytest
from machinery.made_up.stream import CAUSES, world
from nsight_report import queuing
from nsight_report.anomalies import Recording, Selection, Slice, find
from nsight_report.attribution import attribute


@pytest.mark.parametrize("mode", ["intel-pt", "tracepoints"])
def test_only_messages_behind_another_have_one_ahead_of_them(mode):
    made = world(3000, seed=5, share=0.1, fan=0)
    tables = (made if mode == "intel-pt" else made.at_trace()).tables
    recorded = [tables[name] for name in ("messages", "calls", "contexts", "thread_states")]
    options = Selection(slow=Slice.parse("p90-100"), granularity_ns=200)
    compared, found, *_ = find(Recording(*recorded), options)
    anomalies, *_ = attribute(found, compared, options)
    rows = queuing.find(Recording(*recorded), compared)[0].to_pandas()
    socket = rows[(rows["queue"] == "Socket") & (rows["role"] == "slow")].set_index("message_id")
    behind = np.flatnonzero(made.cause == list(CAUSES).index("head-of-line blocking"))
    assert socket["depth"].to_dict() == {i: int(i in behind) for i in socket.index}
    assert len(set(behind) & set(socket.index)) >= 3
    # The waiting messages waited for the whole time of the message ahead, up to its end.
    hol = queuing.break_down(Recording(*recorded), anomalies, options).to_pandas()
    waited = hol[hol["message_id"].isin(behind)].groupby("message_id")["observed_ns"].sum()
    assert (waited == socket.loc[waited.index, "ahead_ns"]).all()
