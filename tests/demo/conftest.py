# SPDX-License-Identifier: GPL-2.0-only
"""What the demo needs is what a testbed needs."""

from machinery.testbed.conftest import needs, programs

__all__ = ["needs", "programs"]
