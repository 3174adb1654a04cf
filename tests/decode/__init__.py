# SPDX-License-Identifier: GPL-2.0-only
"""The routes from packets to calls, and their parity."""
