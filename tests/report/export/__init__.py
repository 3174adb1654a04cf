# SPDX-License-Identifier: GPL-2.0-only
"""Exports of a diagnosis: page, JSON, Perfetto."""
