# SPDX-License-Identifier: GPL-2.0-only
"""Commands besides the report: show, top, compare, export."""
