# SPDX-License-Identifier: GPL-2.0-only
"""Makes an ordinary capture directory from a perf.data that was recorded without BPF.

There, tracepoints provide what the bpftrace program and nsight-clock write: sock:sock_data_queued and
sock:sock_data_read (kernel-patches/net) and timekeeping:timekeeping_update (kernel-patches/timekeeping).
"""

from .capture import Imported, import_perf_data

__all__ = ["Imported", "import_perf_data"]
