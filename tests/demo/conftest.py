# SPDX-License-Identifier: GPL-2.0-only
"""The demo needs what a testbed needs."""

from machinery.testbed.conftest import needs, programs

__all__ = ["needs", "programs"]
