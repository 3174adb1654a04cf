# SPDX-License-Identifier: GPL-2.0-only
"""Compares the report's requests with those of a client."""
