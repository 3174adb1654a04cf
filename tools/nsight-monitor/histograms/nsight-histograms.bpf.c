// SPDX-License-Identifier: GPL-2.0-only
/* The programs of nsight-histograms: one for each tracepoint or function. */
#include "connections.bpf.h"
#include "packets.bpf.h"
#include "reads.bpf.h"
#include "udp.bpf.h"

char LICENSE[] SEC("license") = "GPL";
