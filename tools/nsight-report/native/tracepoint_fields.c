// SPDX-License-Identifier: GPL-2.0-only
#include "tracepoint_fields.h"

#include <stdlib.h>
#include <string.h>

struct wide_want {
	const char *field;
	uint32_t at; /* WORD(n): 8 bytes of an array from byte n on; 0: the field's number */
};

#define WORD(n) (1 + (n))

/* clang-format off */
#define SOCK_FIELDS \
	{{"sock_cookie", 0}, {"skbaddr", 0}, {"hwtstamp", 0}, {"tstamp", 0}, {"pos", 0}, {"len", 0}, \
	 {"sport", 0}, {"dport", 0}, {"family", 0}, {"protocol", 0}, {"skaddr", 0}}
#define ADDRESS_FIELDS \
	{{"sock_cookie", 0}, {"saddr_v6", WORD(0)}, {"saddr_v6", WORD(8)}, {"daddr_v6", WORD(0)}, \
	 {"daddr_v6", WORD(8)}}

static const struct wide_desc {
	const char *system, *name;
	enum wide_kind kind;
	struct wide_want want[WIDE_VALUES];
} wide_descs[] = {
	{"timekeeping", "timekeeping_update", W_TIMEKEEPING_UPDATE,
	 {{"cycle_last", 0}, {"xtime_nsec", 0}, {"base_mono", 0}, {"base_real", 0}, {"mult", 0},
	  {"shift", 0}, {"tai_offset", 0}, {"action", 0}, {"tk_id", 0}, {"cs_id", 0}}},
	{"sock", "sock_data_queued", W_SOCK_DATA_QUEUED, SOCK_FIELDS},
	{"sock", "sock_data_read", W_SOCK_DATA_READ, SOCK_FIELDS},
	{"net", "netif_receive_skb", W_NETIF_RECEIVE_SKB, {{"skbaddr", 0}, {"len", 0}}},
	{"tcp", "tcp_rcv_space_adjust", W_TCP_ADDRESSES, ADDRESS_FIELDS},
	{"tcp", "tcp_destroy_sock", W_TCP_ADDRESSES, ADDRESS_FIELDS},
	{"sock", "inet_sock_set_state", W_SOCK_STATE,
	 {{"skaddr", 0}, {"saddr_v6", WORD(0)}, {"saddr_v6", WORD(8)}, {"daddr_v6", WORD(0)},
	  {"daddr_v6", WORD(8)}, {"sport", 0}, {"dport", 0}}},
};
/* clang-format on */

const struct plan *wide_plan(const struct format *format, struct perf_evt *evt)
{
	const struct wide_desc *desc = NULL;
	struct plan *plan;

	for (size_t i = 0; i < sizeof(wide_descs) / sizeof(*wide_descs) && !desc; i++)
		if (!strcmp(wide_descs[i].name, format->name) &&
		    !strcmp(wide_descs[i].system, format->system))
			desc = &wide_descs[i];
	if (!desc)
		return NULL;
	plan = plan_new();
	plan->wide = true;
	plan->wide_kind = desc->kind;
	for (int i = 0; i < WIDE_VALUES && desc->want[i].field; i++) {
		const struct wide_want *want = &desc->want[i];

		if (!(want->at ? plan_add_word(plan, format, want->field, want->at - 1)
			       : plan_add(plan, format, want->field, TO_A))) {
			evt->fate = FATE_BAD_FORMAT;
			free(plan);
			return NULL;
		}
	}
	evt->fate = FATE_DECODED;
	return plan;
}

void wide_decode(struct decoded *out, const struct plan *plan, const struct sample_id *id,
		 const unsigned char *raw, uint32_t raw_len)
{
	struct nsight_wide ev = {
		.ts = id->time, .kind = plan->wide_kind, .pid = id->pid, .tid = id->tid};

	if (raw_len < plan->raw_min || id->cpu >= NSIGHT_NO_CPU) {
		out->n_malformed++;
		return;
	}
	ev.cpu = id->cpu;
	for (int i = 0; i < plan->n_slots; i++)
		ev.v[i] = (uint64_t)load_int(raw, &plan->slots[i]);
	wide_add(out, &ev);
}

/*
 * PERF_RECORD_TIME_CONV with a clock (kernel-patches/perf): u64 shift, mult, zero, cycles, mask,
 * caps; u64 clk_time, cycles, xtime_nsec, mono, real; u32 mult, shift, tai_offset, error, flags,
 * reserved
 */
#define CLOCK_WORDS 14

void wide_clock(struct decoded *out, const unsigned char *p, size_t words)
{
	struct nsight_wide ev = {.kind = W_CLOCK_MAP, .cpu = NSIGHT_NO_CPU, .pid = -1, .tid = -1};
	uint32_t mult;

	if (words < CLOCK_WORDS)
		return; /* from a perf without the patches */
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
	wide_add(out, &ev);
}
