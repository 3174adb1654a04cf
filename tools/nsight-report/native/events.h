/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The decoded event: nsight-perfdata and nsight-rawdata write it, nsight-contexts reads it, and
 * numpy maps it with np.fromfile. 48 bytes, little-endian, no holes.
 */
#ifndef NSIGHT_EVENTS_H
#define NSIGHT_EVENTS_H

#include <stdint.h>

struct nsight_event {
	uint64_t ts; /* ns, in the clock of the recorder; 0: before the recording */
	uint16_t kind;
	uint16_t cpu;
	int32_t pid; /* process that was running; -1 unknown */
	int32_t tid; /* thread that was running; -1 unknown */
	int32_t pad;
	int64_t a, b, c;
};

_Static_assert(sizeof(struct nsight_event) == 48, "np.fromfile relies on 48 bytes");

/* cpu in records that perf itself writes and that belong to no core */
#define NSIGHT_NO_CPU 0xffff

/*
 * Kinds, and what a, b and c hold. "str" is an index into strings[] of perf-events.json, 0 is
 * unknown. pid of COMM, FORK and EXIT is that of the thread in a. VECTOR stands for every pair
 * irq_vectors:NAME_entry, NAME_exit. The order is part of the format: append only.
 *
 * kind                  a                   b           c
 * SCHED_SWITCH          next tid            prev_state  prev str, next str << 32
 * SCHED_WAKING          woken tid           target cpu  comm str
 * SCHED_WAKEUP          woken tid           target cpu  comm str
 * SCHED_WAKEUP_NEW      woken tid           target cpu  comm str
 * SCHED_MIGRATE_TASK    tid                 dest cpu    orig cpu
 * SCHED_PROCESS_FORK    child tid           parent tid  child comm str
 * SCHED_PROCESS_EXEC    tid                 old tid     file name str
 * SCHED_PROCESS_EXIT    tid                             comm str
 * IRQ_HANDLER_ENTRY     irq                             name str
 * IRQ_HANDLER_EXIT      irq                 ret
 * SOFTIRQ_ENTRY         vec
 * SOFTIRQ_EXIT          vec                 packets     str of who got these
 * SYS_ENTER             id                  args[0]
 * SYS_EXIT              id                  ret
 * NAPI_POLL             work                budget      device str
 * PAGE_FAULT_USER       address             ip          error code
 * PAGE_FAULT_KERNEL     address             ip          error code
 * VECTOR_ENTRY          vector                          name str (local_timer)
 * VECTOR_EXIT           vector                          name str
 * CPU_IDLE              C-state; -1: left   cpu
 * HRTIMER_EXPIRE_ENTRY  timer               function    now
 * HRTIMER_EXPIRE_EXIT   timer
 * TIMER_EXPIRE_ENTRY    timer               function
 * TIMER_EXPIRE_EXIT     timer
 * COMM                  tid                 1 at exec   comm str
 * FORK                  child tid           parent tid  parent pid
 * EXIT                  tid                 parent tid  parent pid
 * SWITCH_IN             prev tid            prev pid
 * SWITCH_OUT            next tid            next pid    1: preempted
 * LOST                  events lost before ts (nsight-rawdata: units of 16 bytes)
 * THROTTLE
 * UNTHROTTLE
 * BLOCK_IO              device              ns          bytes, operation << 32, error << 40
 * CPU_FREQUENCY         kHz
 * STEAL                 ns before ts        1: right before; 2: as /proc/stat counts, in ticks;
 *                       3: the report's own, right before, by missed timer ticks
 * NET_DROP              reason              code        bytes
 *                       | protocol of IP << 16 | source port << 32 | destination port << 48
 * TCP_RETRANSMIT        sequence number     local port, remote port << 16   socket
 * CPU_QUOTA             tid that gets the core at ts, or leaves it   ns that it was ready and
 * without quota
 * MEMORY_WORK           0 reclaim, 1 compaction, 2 pages moved   ns before ts
 * COUNTER               its number          what it grew by since it was told last
 * NET_DROP_SOURCE       address, as loaded   the rest    1: IPv4 (0 and the address)
 * NET_DROP_DESTINATION  the same; both follow their NET_DROP
 */
/* clang-format off */
#define NSIGHT_KINDS(X) \
	X(SCHED_SWITCH, "sched_switch") \
	X(SCHED_WAKING, "sched_waking") \
	X(SCHED_WAKEUP, "sched_wakeup") \
	X(SCHED_WAKEUP_NEW, "sched_wakeup_new") \
	X(SCHED_MIGRATE_TASK, "sched_migrate_task") \
	X(SCHED_PROCESS_FORK, "sched_process_fork") \
	X(SCHED_PROCESS_EXEC, "sched_process_exec") \
	X(SCHED_PROCESS_EXIT, "sched_process_exit") \
	X(IRQ_HANDLER_ENTRY, "irq_handler_entry") \
	X(IRQ_HANDLER_EXIT, "irq_handler_exit") \
	X(SOFTIRQ_ENTRY, "softirq_entry") \
	X(SOFTIRQ_EXIT, "softirq_exit") \
	X(SYS_ENTER, "sys_enter") \
	X(SYS_EXIT, "sys_exit") \
	X(NAPI_POLL, "napi_poll") \
	X(PAGE_FAULT_USER, "page_fault_user") \
	X(PAGE_FAULT_KERNEL, "page_fault_kernel") \
	X(VECTOR_ENTRY, "vector_entry") \
	X(VECTOR_EXIT, "vector_exit") \
	X(CPU_IDLE, "cpu_idle") \
	X(HRTIMER_EXPIRE_ENTRY, "hrtimer_expire_entry") \
	X(HRTIMER_EXPIRE_EXIT, "hrtimer_expire_exit") \
	X(TIMER_EXPIRE_ENTRY, "timer_expire_entry") \
	X(TIMER_EXPIRE_EXIT, "timer_expire_exit") \
	X(COMM, "comm") \
	X(FORK, "fork") \
	X(EXIT, "exit") \
	X(SWITCH_IN, "switch_in") \
	X(SWITCH_OUT, "switch_out") \
	X(LOST, "lost") \
	X(THROTTLE, "throttle") \
	X(UNTHROTTLE, "unthrottle") \
	X(BLOCK_IO, "block_io") \
	X(CPU_FREQUENCY, "cpu_frequency") \
	X(STEAL, "steal") \
	X(NET_DROP, "net_drop") \
	X(TCP_RETRANSMIT, "tcp_retransmit") \
	X(CPU_QUOTA, "cpu_quota") \
	X(MEMORY_WORK, "memory_work") \
	X(COUNTER, "counter") \
	X(NET_DROP_SOURCE, "net_drop_source") \
	X(NET_DROP_DESTINATION, "net_drop_destination")
/* clang-format on */

enum nsight_kind {
#define X(id, name) K_##id,
	NSIGHT_KINDS(X)
#undef X
		K_COUNT
};

#endif
