# SPDX-License-Identifier: GPL-2.0-only
"""``python -m nsight_report``: the command line without the launcher."""

from .cli import run

run()
