# SPDX-License-Identifier: GPL-2.0-only
"""Requests of the report held against those of a client."""
