// SPDX-License-Identifier: GPL-2.0-only
/* What nsight-stamp loads: a program for each point, and those of the senders' sockets. */
#include "match.bpf.h"
#include "points.bpf.h"
#include "sockets.bpf.h"

char LICENSE[] SEC("license") = "GPL";
