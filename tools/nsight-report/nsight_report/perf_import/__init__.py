# SPDX-License-Identifier: GPL-2.0-only
"""A perf.data that was recorded without BPF, made into an ordinary capture directory.

Tracepoints give there what the bpftrace program and nsight-clock write down: sock:sock_data_queued and
sock:sock_data_read (kernel-patches/net) and timekeeping:timekeeping_update (kernel-patches/timekeeping).
"""

from .capture import Imported, import_perf_data

__all__ = ["Imported", "import_perf_data"]
