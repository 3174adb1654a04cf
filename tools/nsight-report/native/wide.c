// SPDX-License-Identifier: GPL-2.0-only
/* Tracepoints with many fields: plans from their formats, and samples decoded by them. */
#include "wide.h"

#include "format_text.h"
#include "formats.h"
#include "records.h"

#include <stdlib.h>
#include <string.h>

const char *const nsight_wide_names[W_COUNT] = {
#define X(id, name) [W_##id] = name,
	NSIGHT_WIDE_KINDS(X)
#undef X
};

struct wide_want {
	const char *field;
	uint32_t at; /* WORD(n): 8 bytes of an array, from its n-th on; 0: the number */
};

#define WORD(n) (1 + (n))

/* clang-format off */
#define SOCK_FIELDS \
	{{"sock_cookie", 0}, {"skbaddr", 0}, {"hwtstamp", 0}, {"tstamp", 0}, {"pos", 0}, {"len", 0}, \
	 {"sport", 0}, {"dport", 0}, {"family", 0}, {"protocol", 0}, {"skaddr", 0}}
#define ADDRESS_FIELDS \
	{{"sock_cookie", 0}, {"saddr_v6", WORD(0)}, {"saddr_v6", WORD(8)}, {"daddr_v6", WORD(0)}, \
	 {"daddr_v6", WORD(8)}}
/* clang-format on */

static const struct wide_desc {
	const char *system, *name;
	enum wide_kind kind;
	struct wide_want want[WIDE_VALUES];
} wide_descs[] = {
	{"timekeeping",
	 "timekeeping_update",
	 W_TIMEKEEPING_UPDATE,
	 {{"cycle_last", 0},
	  {"xtime_nsec", 0},
	  {"base_mono", 0},
	  {"base_real", 0},
	  {"mult", 0},
	  {"shift", 0},
	  {"tai_offset", 0},
	  {"action", 0},
	  {"tk_id", 0},
	  {"cs_id", 0}}},
	{"sock", "sock_data_queued", W_SOCK_DATA_QUEUED, SOCK_FIELDS},
	{"sock", "sock_data_read", W_SOCK_DATA_READ, SOCK_FIELDS},
	{"net", "netif_receive_skb", W_NETIF_RECEIVE_SKB, {{"skbaddr", 0}, {"len", 0}}},
	{"tcp", "tcp_rcv_space_adjust", W_TCP_ADDRESSES, ADDRESS_FIELDS},
	{"tcp", "tcp_destroy_sock", W_TCP_ADDRESSES, ADDRESS_FIELDS},
	{"sock",
	 "inet_sock_set_state",
	 W_SOCK_STATE,
	 {{"skaddr", 0},
	  {"saddr_v6", WORD(0)},
	  {"saddr_v6", WORD(8)},
	  {"daddr_v6", WORD(0)},
	  {"daddr_v6", WORD(8)},
	  {"sport", 0},
	  {"dport", 0}}},
};

/* A word within an array of bytes. */
static bool word_slot(const struct format_field *field, uint32_t at, struct slot *slot)
{
	*slot = (struct slot){.off = field->offset + at, .size = 8, .type = SLOT_INT};
	return field->offset <= 65535 && field->size <= 65535 && at + 8 <= field->size &&
	       field->flags & FIELD_ARRAY && field->element == 1;
}

const struct plan *wide_plan(const struct format *event, struct perf_evt *evt)
{
	const struct wide_desc *desc = NULL;
	struct plan *plan;

	for (size_t i = 0; i < sizeof(wide_descs) / sizeof(*wide_descs) && !desc; i++)
		if (!strcmp(wide_descs[i].name, event->name) &&
		    !strcmp(wide_descs[i].system, event->system))
			desc = &wide_descs[i];
	if (!desc)
		return NULL;
	plan = xrealloc(NULL, 1, sizeof(*plan));
	memset(plan, 0, sizeof(*plan));
	plan->wide = true;
	plan->wide_kind = desc->kind;
	for (int i = 0; i < WIDE_VALUES && desc->want[i].field; i++) {
		const struct wide_want *want = &desc->want[i];
		struct slot *slot = &plan->slots[i];
		struct format_field field;

		if (!format_field(event, want->field, &field) ||
		    !(want->at ? word_slot(&field, want->at - 1, slot)
			       : make_slot(&field, TO_A, slot))) {
			evt->fate = FATE_BAD_FORMAT;
			free(plan);
			return NULL;
		}
		plan->n_slots++;
		if (slot->off + slot->size > plan->raw_min)
			plan->raw_min = slot->off + slot->size;
	}
	evt->fate = FATE_DECODED;
	return plan;
}

static void add(struct records *rec, const struct nsight_wide *ev)
{
	if (ev->ts > INT64_MAX / 2 || !ev->ts) {
		rec->n_malformed++;
		return;
	}
	GROW(rec->wide, rec->n_wide, rec->cap_wide);
	rec->wide[rec->n_wide] = *ev;
	rec->wide[rec->n_wide].order = (int32_t)rec->n_wide;
	rec->n_wide++;
}

void wide_decode(struct records *rec, const struct plan *plan, const struct sample_id *id,
		 const unsigned char *raw, uint32_t raw_len)
{
	struct nsight_wide ev = {
		.ts = id->time, .kind = plan->wide_kind, .pid = id->pid, .tid = id->tid};

	if (raw_len < plan->raw_min || id->cpu >= NSIGHT_NO_CPU) {
		rec->n_malformed++;
		return;
	}
	ev.cpu = id->cpu;
	for (int i = 0; i < plan->n_slots; i++)
		ev.v[i] = (uint64_t)load_int(raw + plan->slots[i].off, &plan->slots[i]);
	add(rec, &ev);
}

/*
 * PERF_RECORD_TIME_CONV with a clock (kernel-patches/perf): u64 shift, mult, zero, cycles, mask,
 * caps; u64 clk_time, cycles, xtime_nsec, mono, real; u32 mult, shift, tai_offset, error, flags,
 * reserved
 */
#define CLOCK_WORDS 14

void wide_clock(struct records *rec, const unsigned char *p, size_t words)
{
	struct nsight_wide ev = {.kind = W_CLOCK_MAP, .cpu = NSIGHT_NO_CPU, .pid = -1, .tid = -1};
	uint32_t mult;

	if (words < CLOCK_WORDS)
		return; /* of a perf without the patches */
	ev.ts = load64(p + 48);
	mult = load32(p + 88);
	ev.v[0] = load64(p + 56);
	ev.v[1] = mult ? load64(p + 64) : load32(p + 100);
	ev.v[2] = load64(p + 72);
	ev.v[3] = load64(p + 80);
	ev.v[4] = mult;
	ev.v[5] = load32(p + 92);
	ev.v[6] = (uint64_t)(int64_t)(int32_t)load32(p + 96);
	ev.v[7] = load32(p + 104) & 1 ? WIDE_CLOCK_SET : 0;
	add(rec, &ev);
}

static int by_time(const void *a, const void *b)
{
	const struct nsight_wide *x = a, *y = b;

	if (x->ts != y->ts)
		return x->ts > y->ts ? 1 : -1;
	return (x->order > y->order) - (x->order < y->order);
}

void wide_sort(struct records *rec)
{
	if (rec->n_wide)
		qsort(rec->wide, rec->n_wide, sizeof(*rec->wide), by_time);
}
