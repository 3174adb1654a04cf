// SPDX-License-Identifier: GPL-2.0-only
#include "snapshot.h"

#include "clocks.h"
#include "programs.h"

#include <bpf/bpf.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *const stage_names[] = {
#define X(id, name, ...) [STAGE_##id] = name,
	STAGES(X)
#undef X
};

static const char *const count_names[] = {
#define X(id, name) [COUNT_##id] = name,
	COUNTS(X)
#undef X
};

/* A process name may contain any bytes. */
static void print_name(const char *name, size_t most)
{
	putchar('"');
	for (size_t i = 0; i < most && name[i]; i++) {
		unsigned char c = name[i];

		if (c < ' ' || c > '~' || c == '"' || c == '\\')
			printf("\\u%04x", c);
		else
			putchar(c);
	}
	putchar('"');
}

static void print_groups(const struct snapshot *s)
{
	const struct groups *g = &s->groups;
	const char *comma = "";

	fputs("\"groups\":{", stdout);
	for (int place = GROUP_FIRST; place < g->n; place++) {
		const struct group *group = &g->of[place];

		if (!group_is_printed(g, place))
			continue;
		printf("%s\"%" PRIu64 "\":", comma, group->number);
		if (s->group_by == BY_COMM)
			print_name((const char *)&group->key, sizeof(group->key));
		else
			printf("%" PRIu64, (uint64_t)group->key.a);
		comma = ",";
	}
	fputs("}", stdout);
}

static uint64_t load(const __u64 *counter)
{
	return *(const volatile __u64 *)counter;
}

static uint64_t count_of(const struct histogram *h)
{
	uint64_t count = 0;

	for (int b = 0; b < N_BUCKETS; b++)
		count += h->n[b];
	return count;
}

/* Without the end of the object */
static void print_histogram(const char *comma, int stage, const struct histogram *h)
{
	const char *between = "";

	printf("%s{\"stage\":\"%s\",\"sum_ns\":%" PRIu64 ",\"n\":{", comma, stage_names[stage],
	       (uint64_t)h->sum_ns);
	for (int b = 0; b < N_BUCKETS; b++) {
		if (!h->n[b])
			continue;
		printf("%s\"%d\":%" PRIu64, between, b, (uint64_t)h->n[b]);
		between = ",";
	}
	putchar('}');
}

static struct histogram of_all_cores(const struct groups *g, int place, int stage)
{
	struct histogram sum = {0};

	for (int core = 0; core < g->n_cores; core++) {
		const struct histogram *h = groups_histogram(g, core, place, stage);

		for (int b = 0; b < N_BUCKETS; b++)
			sum.n[b] += load(&h->n[b]);
		sum.sum_ns += load(&h->sum_ns);
	}
	return sum;
}

static void print_histograms(const struct snapshot *s)
{
	const struct groups *g = &s->groups;
	const char *comma = "";

	fputs("\"histograms\":[", stdout);
	for (int place = 0; place < g->n; place++) {
		s->seen[place] = 0;
		if (!group_is_printed(g, place))
			continue; /* its first latency has just come */
		for (int stage = 0; stage < N_STAGES; stage++) {
			struct histogram h = of_all_cores(g, place, stage);

			if (!count_of(&h))
				continue;
			s->seen[place] += count_of(&h);
			print_histogram(comma, stage, &h);
			printf(",\"group\":%" PRIu64 "}", g->of[place].number);
			comma = ",";
		}
	}
	fputs("]", stdout);
}

/* Only of groups that have the place of another one. */
static void print_began(const struct groups *g)
{
	const char *comma = "";

	fputs("\"group_began_ns\":{", stdout);
	for (int place = GROUP_FIRST; place < g->n; place++) {
		const struct group *group = &g->of[place];

		if (!group_is_printed(g, place) || !group->began)
			continue;
		printf("%s\"%" PRIu64 "\":%" PRIu64, comma, group->number, group->began);
		comma = ",";
	}
	fputs("}", stdout);
}

static void print_ended(const struct histograms *ended)
{
	const char *comma = "";

	fputs("\"ended\":[", stdout);
	for (int stage = 0; stage < N_STAGES; stage++) {
		if (!count_of(&ended->of[stage]))
			continue;
		print_histogram(comma, stage, &ended->of[stage]);
		putchar('}');
		comma = ",";
	}
	fputs("]", stdout);
}

static void print_counts(const struct snapshot *s)
{
	fputs("\"counts\":{", stdout);
	for (int i = 0; i < N_COUNTS; i++) {
		uint64_t sum = 0;

		for (int core = 0; core < s->groups.n_cores; core++) {
			const struct core *c = (const void *)(s->cores + core * s->core_stride);

			sum += load(&c->counts[i]);
		}
		printf("%s\"%s\":%" PRIu64, i ? "," : "", count_names[i], sum);
	}
	fputs("}", stdout);
}

int snapshot_print_slow(void *context, void *data, size_t size)
{
	const struct groups *g = &((const struct snapshot *)context)->groups;
	const struct slow_latency *slow = data;
	uint64_t age = clock_ns(CLOCK_MONOTONIC) - slow->end;

	if (size < sizeof(*slow) || slow->stage >= N_STAGES || slow->group >= (__u32)g->n)
		return 0;
	printf("{\"slow\":{\"stage\":\"%s\",\"group\":%" PRIu64 ",\"ns\":%" PRIu64
	       ",\"monotonic_ns\":%" PRIu64 ",\"realtime_ns\":%" PRIu64 "}}\n",
	       stage_names[slow->stage], g->of[slow->group].number, (uint64_t)slow->ns,
	       (uint64_t)slow->end, clock_ns(CLOCK_REALTIME) - age);
	return fflush(stdout) ? -1 : 0;
}

bool snapshot_print(struct snapshot *s, bool last)
{
	groups_look(&s->groups);
	printf("{\"monotonic_ns\":%" PRIu64 ",\"realtime_ns\":%" PRIu64 ",\"last\":%s,",
	       clock_ns(CLOCK_MONOTONIC), clock_ns(CLOCK_REALTIME), last ? "true" : "false");
	print_groups(s);
	putchar(',');
	print_histograms(s);
	putchar(',');
	print_ended(s->groups.ended);
	putchar(',');
	print_began(&s->groups);
	putchar(',');
	print_counts(s);
	printf(",\"missed\":%" PRIu64 ",\"missed_by\":", programs_missed(s->object));
	programs_print_missed_json(s->object);
	if (s->cost) {
		fputs(",\"cost\":", stdout);
		programs_print_cost(s->object);
	}
	puts("}");
	if (!last)
		groups_age(&s->groups, s->seen, clock_ns(CLOCK_MONOTONIC));
	return !fflush(stdout);
}
