/* SPDX-License-Identifier: GPL-2.0-only */
/* Which system call the current thread is in. 32-bit processes have numbers of their own. */
#ifndef NSIGHT_MONITOR_CALLS_BPF_H
#define NSIGHT_MONITOR_CALLS_BPF_H

#include "../../bpf/kernel.bpf.h"

#if defined(__TARGET_ARCH_x86)
#define NR_ACCEPT	43
#define NR_ACCEPT4	288
#define NR_SPLICE	275
#define NR_GETSOCKOPT	55
#define NR32_ACCEPT	-1 /* it has only the two others */
#define NR32_ACCEPT4	364
#define NR32_SPLICE	313
#define NR32_GETSOCKOPT 365
#define NR32_SOCKETCALL 102
#define TS_COMPAT	2 /* in thread_info.status */
#else
#define NR_ACCEPT	202
#define NR_ACCEPT4	242
#define NR_SPLICE	76
#define NR_GETSOCKOPT	209
#define NR32_ACCEPT	285
#define NR32_ACCEPT4	366
#define NR32_SPLICE	340
#define NR32_GETSOCKOPT 295
#define NR32_SOCKETCALL -1
#define TIF_32BIT	22 /* bit of thread_info.flags */
#endif
/* The first argument of socketcall */
#define SYS_ACCEPT     5
#define SYS_GETSOCKOPT 15
#define SYS_ACCEPT4    18

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct thread_info___compat {
	unsigned long flags;
	__u32 status;
};

struct task_struct___compat {
	struct thread_info___compat thread_info;
};

struct pt_regs___first {
	unsigned long bx;
};

#pragma clang attribute pop

/* Whether the current thread is in a system call of a 32-bit process */
static __always_inline bool is_compat(void)
{
	const struct task_struct___compat *task = (const void *)bpf_get_current_task_btf();

#if defined(__TARGET_ARCH_x86)
	return BPF_CORE_READ(task, thread_info.status) & TS_COMPAT;
#else
	return BPF_CORE_READ(task, thread_info.flags) >> TIF_32BIT & 1;
#endif
}

static __always_inline int call_number(const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return BPF_CORE_READ(regs, orig_ax);
#else
	return BPF_CORE_READ(regs, syscallno);
#endif
}

static __always_inline int first_argument(const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	const struct pt_regs___first *first = (const void *)regs;

	return BPF_CORE_READ(first, bx);
#else
	return 0; /* only of socketcall, which there is not */
#endif
}

static __always_inline bool is_accept(const struct pt_regs *regs)
{
	int number = call_number(regs), what;

	if (number == NR_ACCEPT || number == NR_ACCEPT4)
		return !is_compat();
	if (number == NR32_ACCEPT || number == NR32_ACCEPT4)
		return is_compat();
	if (number != NR32_SOCKETCALL || !is_compat())
		return false;
	what = first_argument(regs);
	return what == SYS_ACCEPT || what == SYS_ACCEPT4;
}

/* Whether the call reads a TCP socket without sock_recv_length: splice, and zero-copy receive,
 * which is an option of getsockopt. */
static __always_inline bool reads_without_length(void)
{
	const struct pt_regs *regs =
		(const struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	int number = call_number(regs);

	if (number == NR_SPLICE || number == NR_GETSOCKOPT)
		return !is_compat();
	if (number == NR32_SPLICE || number == NR32_GETSOCKOPT)
		return is_compat();
	return number == NR32_SOCKETCALL && is_compat() && first_argument(regs) == SYS_GETSOCKOPT;
}

#endif
