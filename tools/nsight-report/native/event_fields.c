// SPDX-License-Identifier: GPL-2.0-only
#include "event_fields.h"

#include <stdlib.h>
#include <string.h>

#define MAX_WANTS 5

struct want {
	const char *field;
	enum slot_dest dest;
};

/* clang-format off */
static const struct kind_desc {
	const char *system, *name;
	enum nsight_kind kind;
	struct want want[MAX_WANTS];
} kind_descs[] = {
	{"sched", "sched_switch", K_SCHED_SWITCH,
	 {{"prev_pid", TO_TID}, {"next_pid", TO_A}, {"prev_state", TO_B}, {"prev_comm", TO_STR},
	  {"next_comm", TO_STR2}}},
	{"sched", "sched_waking", K_SCHED_WAKING, {{"pid", TO_A}, {"target_cpu", TO_B}, {"comm", TO_STR}}},
	{"sched", "sched_wakeup", K_SCHED_WAKEUP, {{"pid", TO_A}, {"target_cpu", TO_B}, {"comm", TO_STR}}},
	{"sched", "sched_wakeup_new", K_SCHED_WAKEUP_NEW,
	 {{"pid", TO_A}, {"target_cpu", TO_B}, {"comm", TO_STR}}},
	{"sched", "sched_migrate_task", K_SCHED_MIGRATE_TASK,
	 {{"pid", TO_A}, {"dest_cpu", TO_B}, {"orig_cpu", TO_C}}},
	{"sched", "sched_process_fork", K_SCHED_PROCESS_FORK,
	 {{"child_pid", TO_A}, {"parent_pid", TO_B}, {"child_comm", TO_STR}}},
	{"sched", "sched_process_exec", K_SCHED_PROCESS_EXEC,
	 {{"pid", TO_A}, {"old_pid", TO_B}, {"filename", TO_STR}}},
	{"sched", "sched_process_exit", K_SCHED_PROCESS_EXIT, {{"pid", TO_A}, {"comm", TO_STR}}},
	{"irq", "irq_handler_entry", K_IRQ_HANDLER_ENTRY, {{"irq", TO_A}, {"name", TO_STR}}},
	{"irq", "irq_handler_exit", K_IRQ_HANDLER_EXIT, {{"irq", TO_A}, {"ret", TO_B}}},
	{"irq", "softirq_entry", K_SOFTIRQ_ENTRY, {{"vec", TO_A}}},
	{"irq", "softirq_exit", K_SOFTIRQ_EXIT, {{"vec", TO_A}}},
	{"raw_syscalls", "sys_enter", K_SYS_ENTER, {{"id", TO_A}, {"args", TO_B}}},
	{"raw_syscalls", "sys_exit", K_SYS_EXIT, {{"id", TO_A}, {"ret", TO_B}}},
	{"napi", "napi_poll", K_NAPI_POLL, {{"work", TO_A}, {"budget", TO_B}, {"dev_name", TO_STR}}},
	{"exceptions", "page_fault_user", K_PAGE_FAULT_USER,
	 {{"address", TO_A}, {"ip", TO_B}, {"error_code", TO_C}}},
	{"exceptions", "page_fault_kernel", K_PAGE_FAULT_KERNEL,
	 {{"address", TO_A}, {"ip", TO_B}, {"error_code", TO_C}}},
	{"power", "cpu_idle", K_CPU_IDLE, {{"state", TO_A}, {"cpu_id", TO_B}}},
	{"timer", "hrtimer_expire_entry", K_HRTIMER_EXPIRE_ENTRY,
	 {{"hrtimer", TO_A}, {"function", TO_B}, {"now", TO_C}}},
	{"timer", "hrtimer_expire_exit", K_HRTIMER_EXPIRE_EXIT, {{"hrtimer", TO_A}}},
	{"timer", "timer_expire_entry", K_TIMER_EXPIRE_ENTRY, {{"timer", TO_A}, {"function", TO_B}}},
	{"timer", "timer_expire_exit", K_TIMER_EXPIRE_EXIT, {{"timer", TO_A}}},
};
/* clang-format on */

/* Every interrupt vector has a pair NAME_entry, NAME_exit with the vector's number. */
static const struct kind_desc vector_entry = {
	"irq_vectors", "_entry", K_VECTOR_ENTRY, {{"vector", TO_A}}};
static const struct kind_desc vector_exit = {
	"irq_vectors", "_exit", K_VECTOR_EXIT, {{"vector", TO_A}}};

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n > m && !strcmp(text + n - m, end);
}

static const struct kind_desc *find_kind(const char *system, const char *name)
{
	for (size_t i = 0; i < sizeof(kind_descs) / sizeof(*kind_descs); i++)
		if (!strcmp(kind_descs[i].name, name) && !strcmp(kind_descs[i].system, system))
			return &kind_descs[i];
	if (strcmp(system, vector_entry.system))
		return NULL;
	return ends_with(name, "_entry")  ? &vector_entry
	       : ends_with(name, "_exit") ? &vector_exit
					  : NULL;
}

const struct plan *event_plan(const struct format *format, struct perf_evt *evt,
			      struct strings *strings)
{
	const struct kind_desc *desc = find_kind(format->system, format->name);
	struct plan *plan;

	evt->fate = FATE_UNUSED;
	if (!desc)
		return NULL;
	plan = plan_new();
	plan->kind = desc->kind;
	if (desc == &vector_entry || desc == &vector_exit)
		plan->name = strings_intern(strings, format->name,
					    strlen(format->name) - strlen(desc->name));

	/*
	 * The current thread as the tracepoint saw it. It is also right for dying threads; the
	 * sample's own TID is -1 once the thread has no pid any more.
	 */
	plan_add(plan, format, "common_pid", TO_TID);
	for (int i = 0; i < MAX_WANTS && desc->want[i].field; i++) {
		if (!plan_add(plan, format, desc->want[i].field, desc->want[i].dest)) {
			evt->fate = FATE_BAD_FORMAT;
			free(plan);
			return NULL;
		}
	}
	evt->fate = FATE_DECODED;
	return plan;
}

static uint32_t load_string(const unsigned char *raw, uint32_t raw_len, const struct slot *slot,
			    struct strings *strings)
{
	uint32_t off = slot->off, len = slot->size;

	if (slot->type != SLOT_CHARS) { /* u16 offset, u16 length */
		uint32_t loc = load32(raw + slot->off);

		off = loc & 0xffff;
		len = loc >> 16;
		if (slot->type == SLOT_REL_LOC)
			off += slot->off + slot->size;
		if (off > raw_len || len > raw_len - off)
			return UINT32_MAX;
	}
	return strings_intern(strings, (const char *)raw + off, len);
}

void event_decode(struct decoded *out, const struct plan *plan, const struct sample_id *id,
		  const unsigned char *raw, uint32_t raw_len, struct strings *strings)
{
	struct nsight_event ev = {
		.ts = id->time, .kind = plan->kind, .pid = id->pid, .tid = id->tid};
	uint64_t str = plan->name;

	if (raw_len < plan->raw_min || id->cpu >= NSIGHT_NO_CPU) {
		out->n_malformed++;
		return;
	}
	ev.cpu = id->cpu;
	for (int i = 0; i < plan->n_slots; i++) {
		const struct slot *slot = &plan->slots[i];
		uint32_t s;

		switch (slot->dest) {
		case TO_TID:
			ev.tid = load_int(raw, slot);
			break;
		case TO_A:
			ev.a = load_int(raw, slot);
			break;
		case TO_B:
			ev.b = load_int(raw, slot);
			break;
		case TO_C:
			ev.c = load_int(raw, slot);
			break;
		default:
			s = load_string(raw, raw_len, slot, strings);
			if (s == UINT32_MAX) {
				out->n_malformed++;
				return;
			}
			str |= (uint64_t)s << (slot->dest == TO_STR2 ? 32 : 0);
		}
	}
	if (str)
		ev.c = (int64_t)str;
	if (plan->kind == K_CPU_IDLE && ev.a == 0xffffffff)
		ev.a = -1; /* PWR_EVENT_EXIT */
	event_add(out, &ev);
}
