# SPDX-License-Identifier: GPL-2.0-only
"""Compares nsight-monitor with the kernel's own counters, and repeats the runs of an article; each is a command."""
