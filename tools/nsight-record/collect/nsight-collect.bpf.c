// SPDX-License-Identifier: GPL-2.0-only
/* The programs of nsight-collect: messages, drops, activity of the cores, intervals of threads. */
#include "../../bpf/acknowledgements.bpf.h"
#include "../../bpf/activity.bpf.h"
#include "../../bpf/drops.bpf.h"
#include "../../bpf/intervals.bpf.h"
#include "../../bpf/memory.bpf.h"
#include "../../bpf/messages.bpf.h"

char LICENSE[] SEC("license") = "GPL";
