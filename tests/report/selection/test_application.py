# SPDX-License-Identifier: GPL-2.0-only
"""Which application is diagnosed if none is named."""

from __future__ import annotations

import pytest
from machinery.made_up.tables import message, table
from nsight_report.selection.application import choose_app
from nsight_report.selection.options import Selection
from nsight_report.tables.messages import Messages


@pytest.mark.parametrize(("netns", "ids"), [(1, [0, 1, 2, 3, 4]), (2, [0, 1, 2])])
def test_servers_of_one_port_are_one_application_within_a_network_namespace(
    netns: int, ids: list[int]
) -> None:
    """Workers of one server share a port; several containers can each have a server on that port."""
    rows = [message(i, 100 * i, 100 * i + 10, 100 * i + 20) for i in range(5)]
    for row in rows[3:]:
        row |= {"pid": 200, "tid": 200, "netns": netns}
    assert choose_app(Messages(table("messages", rows)), Selection()).tolist() == ids
