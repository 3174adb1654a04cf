/* SPDX-License-Identifier: GPL-2.0-only */
/* The ring of each core: a record is reserved, filled, and completed by its first word. */
#ifndef NSIGHT_RING_BPF_H
#define NSIGHT_RING_BPF_H

#include "kernel.bpf.h"
#include "record.h"

/* Units of a ring (a power of two) minus one; its base-2 logarithm */
const volatile __u64 ring_mask = 0xff;
const volatile __u32 ring_shift = 8;
/* The base-2 logarithm of a chunk's units, and the number of chunks minus one */
const volatile __u32 chunk_shift = 8, chunks_mask;
/* Old records are overwritten, and none is lost for lack of room. */
const volatile bool overwrite;

/* Room for programs that interrupt a program between its look at the tail and its reservation: in
 * units, and in chunks that are taken twice. */
#define MARGIN_UNITS  256
#define MARGIN_CHUNKS 3

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);		 /* cores; set at load time, like the size of a value */
	__uint(key_size, sizeof(__u32)); /* no __type(): the size of the value changes */
	__uint(value_size, NSR_PAGE_UNITS *NSR_UNIT + NSR_MAX_UNITS * NSR_UNIT);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* cores; set at load time */
	__type(key, __u32);
	__type(value, struct nsr_control);
} controls SEC(".maps");

/* Set when no more records are wanted; the reader then drains the rest. */
volatile bool stopped;
/* When it was last cleared. The programs do not know how anything that began earlier went on. */
volatile __u64 watched_from;

/* NULL: no records are wanted, and the program has nothing to do. */
static __always_inline struct nsr_control *control(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return stopped ? NULL : bpf_map_lookup_elem(&controls, &cpu);
}

static __always_inline void count(struct nsr_control *c, enum nsr_count what)
{
	__sync_fetch_and_add(&c->counts[what], 1);
}

static __always_inline __u64 first_word(__u64 index, __u32 type, __u64 time)
{
	return time << 16 | (0x80 | ((index >> ring_shift) & 0x7f)) << 8 | type;
}

static __always_inline __u32 lowest_bit(__u64 word)
{
	__u32 bit = 0;

	for (__u32 half = 32; half; half >>= 1)
		if (!(word & ((1ull << half) - 1))) {
			word >>= half;
			bit += half;
		}
	return bit;
}

/*
 * Take the first free chunk for the units of number n. There always is one: see reserve(). Not
 * static, so that the verifier checks it once and not at every call.
 */
__noinline int take_chunk(struct nsr_control *c, __u64 n)
{
	__u64 *place, old, bit;

	if (!c)
		return 0;
	place = &c->place[n & chunks_mask & (NSR_CHUNKS - 1)];
	for (int i = 0; i < 2 * NSR_CHUNKS / 64; i++) {
		__u64 *word = &c->free[i & (NSR_CHUNKS / 64 - 1)], now = *word;
		__u32 found;

		if (!now)
			continue;
		found = lowest_bit(now);
		bit = 1ull << (found & 63);
		if (!(__sync_fetch_and_and(word, ~bit) & bit))
			continue; /* an interrupting program took it */
		old = *place;
		found |= (i & (NSR_CHUNKS / 64 - 1)) * 64;
		if (nsr_chunk(old, n) < 0 &&
		    __sync_val_compare_and_swap(place, old, (n + 1) << 8 | found) == old)
			return found;
		__sync_fetch_and_or(word, bit); /* an interrupting program was faster here, too */
		return *place & (NSR_CHUNKS - 1);
	}
	return 0;
}

/* Where the unit is in the ring */
static __always_inline __u64 *unit_at(struct nsr_control *c, void *ring, __u64 index)
{
	__u64 n = index >> chunk_shift, at;
	int chunk;

	if (overwrite)
		return ring + (index & ring_mask) * NSR_UNIT;
	chunk = nsr_chunk(c->place[n & chunks_mask & (NSR_CHUNKS - 1)], n);
	if (chunk < 0)
		chunk = take_chunk(c, n);
	at = ((__u64)(__u32)chunk << chunk_shift) | (index & ((1ull << chunk_shift) - 1));
	return ring + (at & ring_mask) * NSR_UNIT;
}

/* The first word goes last: the reader, on another core, then finds the others. x86 keeps stores in
 * order, other processors need an exchange for that. */
static __always_inline void commit(__u64 *record, __u64 index, __u32 type, __u64 time)
{
	barrier();
#if defined(__TARGET_ARCH_x86)
	record[0] = first_word(index, type, time);
#else
	__sync_lock_test_and_set(&record[0], first_word(index, type, time));
#endif
}

static __always_inline void pad(struct nsr_control *c, void *ring, __u64 index, __u64 units,
				__u64 time)
{
	__u64 *unit = unit_at(c, ring, index);

	unit[1] = units;
	commit(unit, index, NSR_PAD, time);
}

/*
 * Room for a record of this type. NULL: there is none, which is counted. *index is for commit().
 * Another program that writes to the same ring may interrupt the caller.
 */
static __always_inline __u64 *reserve(struct nsr_control *c, __u32 type, __u64 time, __u64 *index)
{
	__u32 units = nsr_units(type), cpu;
	void *ring;

	if (stopped)
		return NULL;
	__sync_fetch_and_add(&c->produced[nsr_counted(type)], 1);
	cpu = bpf_get_smp_processor_id();
	ring = bpf_map_lookup_elem(&rings, &cpu);
	if (!ring)
		return NULL;
	if (!overwrite && *(volatile __u64 *)&c->head + MARGIN_UNITS - *(volatile __u64 *)&c->tail >
				  ring_mask - ((__u64)MARGIN_CHUNKS << chunk_shift))
		goto lost;
	for (int i = 0; i < 2; i++) {
		__u64 at = __sync_fetch_and_add(&c->head, units),
		      left = NSR_PAGE_UNITS - at % NSR_PAGE_UNITS;

		if (units <= left) {
			*index = at;
			return unit_at(c, ring, at);
		}
		pad(c, ring, at, left, time);
		pad(c, ring, at + left, units - left, time);
	}
lost:
	__sync_fetch_and_add(&c->lost[nsr_counted(type)], 1);
	return NULL;
}

/* ns, limited to what fits into a record */
static __always_inline __u64 since(__u64 begin, __u64 now)
{
	__u64 took = now - begin;

	return took < 1ull << NSR_DUR_BITS ? took : (1ull << NSR_DUR_BITS) - 1;
}

/* A record of one or two units. */
static __always_inline void put1(struct nsr_control *c, __u32 type, __u64 time, __u64 a)
{
	__u64 index, *record = reserve(c, type, time, &index);

	if (!record)
		return;
	record[1] = a;
	commit(record, index, type, time);
}

static __always_inline void put2(struct nsr_control *c, __u32 type, __u64 time, __u64 a, __u64 b,
				 __u64 d)
{
	__u64 index, *record = reserve(c, type, time, &index);

	if (!record)
		return;
	record[1] = a;
	record[2] = b;
	record[3] = d;
	commit(record, index, type, time);
}

#endif
