# SPDX-License-Identifier: GPL-2.0-only
"""What nsight-report does besides the summary: one module per command.

Each makes one object of plain values (what ``--json`` prints; Documentation/formats.md) and prints it as text for people.
"""
