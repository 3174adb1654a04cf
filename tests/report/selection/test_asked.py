# SPDX-License-Identifier: GPL-2.0-only
"""Which application a user selects, by its pid or its name."""

from __future__ import annotations

import pandas as pd
import pytest
from nsight_report.selection.application import _asked
from nsight_report.selection.population import Selection

MESSAGES = pd.DataFrame(
    {"direction": "rx", "lport": 80, "pid": [7, 8, 9], "comm": ["a", "\u00b2", "1" * 5000]}
)


@pytest.mark.parametrize(("app", "row"), [("7", 0), ("\u00b2", 1), ("1" * 5000, 2)])
def test_a_name_of_digits_that_are_no_number_is_a_name(app: str, row: int) -> None:
    assert _asked(MESSAGES, Selection(app=app)).nonzero()[0].tolist() == [row]
