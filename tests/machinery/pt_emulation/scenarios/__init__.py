# SPDX-License-Identifier: GPL-2.0-only
"""Scenarios with known causes, for emulated Intel PT."""
