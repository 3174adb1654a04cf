/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory work that a thread has to do itself when it allocates memory: reclaim, compaction, pages
 * moved to another node. One record for each, at its end; nested work is part of the outer one.
 */
#ifndef NSIGHT_MEMORY_BPF_H
#define NSIGHT_MEMORY_BPF_H

#include "ring.bpf.h"

#define E2BIG 7 /* more threads do it than there is room for */

struct memory_work {
	__u64 began;
	__u32 what;
	__u32 depth; /* nested work of the same kind, such as moving pages to make room */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct memory_work);
} memory_works SEC(".maps");

static __always_inline int memory_begins(enum nsr_memory what)
{
	struct memory_work work = {.began = bpf_ktime_get_ns(), .what = what};
	__u32 tid = bpf_get_current_pid_tgid();
	struct memory_work *outer = bpf_map_lookup_elem(&memory_works, &tid);
	struct nsr_control *c = control();

	if (outer && outer->began < watched_from) {
		*outer = work; /* its end was not seen */
		return 0;
	}
	if (outer) {
		/* Only page moves nest. For others the end was missed: this begin replaces it. */
		if (outer->what == (__u32)what && what == NSR_PAGES_MOVED)
			outer->depth++;
		else if (outer->what == (__u32)what)
			outer->began = work.began;
		return 0;
	}
	if (bpf_map_update_elem(&memory_works, &tid, &work, BPF_NOEXIST) == -E2BIG && c) {
		__sync_fetch_and_add(&c->produced[NSR_MEMORY], 1);
		__sync_fetch_and_add(&c->lost[NSR_MEMORY], 1);
	}
	return 0;
}

static __always_inline int memory_ends(enum nsr_memory what)
{
	__u64 now = bpf_ktime_get_ns(), began;
	__u32 tid = bpf_get_current_pid_tgid();
	struct memory_work *work = bpf_map_lookup_elem(&memory_works, &tid);
	struct nsr_control *c = control();

	if (!work || work->what != (__u32)what)
		return 0;
	began = work->began;
	if (work->depth && began >= watched_from) {
		work->depth--;
		return 0;
	}
	bpf_map_delete_elem(&memory_works, &tid);
	if (c && began >= watched_from)
		put1(c, NSR_MEMORY, now,
		     since(began, now) | (__u64)(tid & 0x3fffff) << NSR_DUR_BITS |
			     (__u64)what << (NSR_DUR_BITS + NSR_TID_BITS));
	return 0;
}

/* Programs are attached in this order, so that every begin that is seen has its end seen, too. */
#define ENDS(tracepoint, what)                                                                     \
	SEC("tp_btf/" #tracepoint)                                                                 \
	int BPF_PROG(on_##tracepoint)                                                              \
	{                                                                                          \
		return memory_ends(what);                                                          \
	}

#define BEGINS(tracepoint, what)                                                                   \
	SEC("tp_btf/" #tracepoint)                                                                 \
	int BPF_PROG(on_##tracepoint)                                                              \
	{                                                                                          \
		return memory_begins(what);                                                        \
	}

ENDS(mm_vmscan_direct_reclaim_end, NSR_RECLAIM)
ENDS(mm_vmscan_memcg_reclaim_end, NSR_RECLAIM)
ENDS(mm_vmscan_node_reclaim_end, NSR_RECLAIM)
ENDS(mm_compaction_end, NSR_COMPACTION)
ENDS(mm_migrate_pages, NSR_PAGES_MOVED)
BEGINS(mm_vmscan_direct_reclaim_begin, NSR_RECLAIM)
BEGINS(mm_vmscan_memcg_reclaim_begin, NSR_RECLAIM)
BEGINS(mm_vmscan_node_reclaim_begin, NSR_RECLAIM)
BEGINS(mm_compaction_begin, NSR_COMPACTION)
BEGINS(mm_migrate_pages_start, NSR_PAGES_MOVED)

#endif
