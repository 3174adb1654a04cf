# SPDX-License-Identifier: GPL-2.0-only
"""Hints for a perf.data that cannot be imported."""

from __future__ import annotations

#: The man page and Documentation/no-bpf.md have the whole command.
MESSAGES = (
    "perf record -a -e sock:sock_data_queued -e sock:sock_data_read ..., on a kernel with kernel-patches/net; "
    "Documentation/no-bpf.md has the whole command"
)
CORES = (
    "record also with -e sched:sched_switch and the others of Documentation/no-bpf.md, or with -e intel_pt//"
)
CLOCKS = (
    "record with -e timekeeping:timekeeping_update (a kernel with kernel-patches/timekeeping), with --clock-map "
    "(a perf with kernel-patches/perf), or, without Intel PT, with -k CLOCK_MONOTONIC"
)
TSC_ONLY = "record with -k CLOCK_MONOTONIC; with Intel PT the kernel's clocksource has to be the TSC"
