# SPDX-License-Identifier: GPL-2.0-only
"""Emulated Intel PT: captures of a whole kernel without the hardware."""
