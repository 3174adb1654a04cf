// SPDX-License-Identifier: GPL-2.0-only
#include "groups.h"

#include "clocks.h"
#include "fail.h"

#include <bpf/bpf.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* For this long after a group has ended, latencies may still be counted in its place: by a program
 * that has looked it up already, or for a packet under way that carries it. */
#define LEAVING_NS 10000000000ull

struct histogram *groups_histogram(const struct groups *g, int core, int place, int stage)
{
	return &((struct histograms *)(g->histograms + core * g->of_core))[place].of[stage];
}

void groups_begin(struct groups *g)
{
	g->of = calloc(g->n, sizeof(*g->of));
	g->ended = calloc(1, sizeof(*g->ended));
	if (!g->of || !g->ended)
		fail(EXIT_REFUSED, "take fewer --groups", "no memory for the groups");
	g->next_number = g->n;
	for (__u32 place = g->n; place-- > 0;) {
		g->of[place].number = place;
		if (place >= GROUP_FIRST &&
		    bpf_map_update_elem(g->free_places, NULL, &place, BPF_ANY))
			fail(EXIT_REFUSED, "", "the kernel has no place for a group");
	}
	*g->epoch = 1;
}

void groups_look(struct groups *g)
{
	struct group_key key, next, *before = NULL;
	uint32_t place;

	while (!bpf_map_get_next_key(g->map, before, &next)) {
		key = next;
		before = &key;
		if (bpf_map_lookup_elem(g->map, &key, &place) || place >= (uint32_t)g->n)
			continue;
		g->of[place].key = key;
		g->of[place].state = GROUP_IN_USE;
	}
}

static int n_taken(const struct groups *g)
{
	int n = 0;

	for (int place = GROUP_FIRST; place < g->n; place++)
		n += g->of[place].state != GROUP_FREE;
	return n;
}

/* Exchanged, and not read and then cleared: a program may still count here. */
static void move(struct histogram *to, struct histogram *from)
{
	for (int bucket = 0; bucket < N_BUCKETS; bucket++)
		to->n[bucket] += __atomic_exchange_n(&from->n[bucket], 0, __ATOMIC_RELAXED);
	to->sum_ns += __atomic_exchange_n(&from->sum_ns, 0, __ATOMIC_RELAXED);
}

static void free_place(struct groups *g, __u32 place)
{
	struct group *group = &g->of[place];

	for (int core = 0; core < g->n_cores; core++)
		for (int stage = 0; stage < N_STAGES; stage++)
			move(&g->ended->of[stage], groups_histogram(g, core, place, stage));
	*group = (struct group){.number = g->next_number++, .began = clock_ns(CLOCK_REALTIME)};
	bpf_map_update_elem(g->free_places, NULL, &place, BPF_ANY);
}

void groups_age(struct groups *g, const uint64_t *seen_now, uint64_t now)
{
	bool crowded = n_taken(g) * 4 >= (g->n - GROUP_FIRST) * 3, changed = false;

	for (int place = GROUP_FIRST; place < g->n; place++) {
		struct group *group = &g->of[place];

		if (group->state == GROUP_LEAVING && now - group->changed >= LEAVING_NS) {
			free_place(g, place);
			changed = true;
		}
		if (group->state != GROUP_IN_USE)
			continue;
		if (group->seen != seen_now[place] || !group->changed) {
			group->seen = seen_now[place];
			group->changed = now;
		} else if (crowded && now - group->changed >= g->idle_ns &&
			   !bpf_map_delete_elem(g->map, &group->key)) {
			group->state = GROUP_LEAVING;
			group->changed = now;
			++*g->n_ended;
			changed = true;
		}
	}
	/* After the keys are deleted: a later look-up gets another place, and groups without a
	 * place try again. */
	if (changed)
		++*g->epoch;
}

bool group_is_printed(const struct groups *g, int place)
{
	return place < GROUP_FIRST || g->of[place].state != GROUP_FREE;
}
