// SPDX-License-Identifier: GPL-2.0-only
/* The programs of nsight-collect: timestamps of messages, and what the cores do. */
#include "../../bpf/activity.bpf.h"
#include "../../bpf/messages.bpf.h"

char LICENSE[] SEC("license") = "GPL";
