# SPDX-License-Identifier: GPL-2.0-only
"""The decoding routes from packets to calls, and their parity."""
