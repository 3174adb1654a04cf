// SPDX-License-Identifier: GPL-2.0-only
/* Programs that nsight-stamp loads: one for each point, and those for the senders' sockets. */
#include "match.bpf.h"
#include "points.bpf.h"
#include "sockets.bpf.h"

char LICENSE[] SEC("license") = "GPL";
