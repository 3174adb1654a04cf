/* SPDX-License-Identifier: GPL-2.0-only */
/* Which threads belong to processes that messages reach, and the system call that each of them is
 * in */
#ifndef NSIGHT_THREADS_BPF_H
#define NSIGHT_THREADS_BPF_H

#include "kernel.bpf.h"

struct thread {
	__u64 entered; /* when it entered its system call; 0: not in one */
	__u64 number;
	__u64 argument;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/* System calls are not recorded. Instead, a switch names the system call that its thread is in, for
 * threads of every process. */
const volatile bool only_waits;
/* Record the system calls of every process, not only of those that messages reach. */
const volatile bool all_syscalls;

/* The programs at system calls are detached: a thread in a call then seems to stay in it. */
volatile bool syscalls_left;

/* What is known about the thread; NULL: its process has nothing to do with messages. */
static __always_inline struct thread *thread_of(struct task_struct *task)
{
	/* Most threads have no BPF storage at all, and the helper takes longer to find that out. */
	if (!task->bpf_storage)
		return NULL;
	return bpf_task_storage_get(&threads, task, NULL, 0);
}

/* Messages reach the process of the current thread: its system calls are recorded from now on. */
static __always_inline void mark_process(struct task_struct *current)
{
	struct task_struct *leader = current->group_leader;

	bpf_task_storage_get(&threads, current, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (leader)
		bpf_task_storage_get(&threads, leader, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

#define PF_KTHREAD 0x00200000

/* Like thread_of, for the current thread; the first thread of its process may make it of
 * interest. */
static __always_inline struct thread *current_thread(struct task_struct *current)
{
	struct thread *thread = thread_of(current);
	struct task_struct *leader;

	if (thread)
		return thread;
	if (!all_syscalls) {
		leader = current->group_leader;
		if (!leader || !thread_of(leader))
			return NULL;
	}
	return bpf_task_storage_get(&threads, current, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

#endif
