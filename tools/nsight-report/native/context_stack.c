// SPDX-License-Identifier: GPL-2.0-only
#include "context_stack.h"

#include "util.h"

#include <string.h>

/* Close the interval of the innermost frame at ts. */
static void emit(struct core *core, uint64_t ts)
{
	struct nsight_interval *last =
		core->n_intervals ? &core->intervals[core->n_intervals - 1] : NULL;
	int64_t call;

	if (core->depth && ts > core->since) {
		call = core->frame[core->depth - 1].call;
		if (last && last->call == call && last->end == core->since) {
			last->end = ts; /* only a call of zero length came in between */
		} else {
			GROW(core->intervals, core->n_intervals, core->cap_intervals);
			core->intervals[core->n_intervals++] = (struct nsight_interval){
				.start = core->since, .end = ts, .call = call, .comm = core->comm};
		}
	}
	core->since = ts;
}

struct nsight_call *core_push(struct core *core, uint64_t ts, enum context_kind kind, uint64_t key,
			      uint32_t name, enum known start_known)
{
	struct nsight_call *call;

	emit(core, ts);
	GROW(core->calls, core->n_calls, core->cap_calls);
	call = &core->calls[core->n_calls];
	*call = (struct nsight_call){.start = ts,
				     .arg = -1,
				     .parent = -1,
				     .pid = -1,
				     .tid = -1,
				     .name = name,
				     .cpu = core->cpu,
				     .kind = kind,
				     .depth = core->depth,
				     .start_known = start_known};
	if (core->depth) {
		const struct nsight_call *below = core_call(core, core->depth - 1);

		call->parent = core->frame[core->depth - 1].call;
		call->pid = below->pid;
		call->tid = below->tid;
	}
	core->frame[core->depth++] = (struct frame){.call = core->n_calls++, .key = key};
	return call;
}

void core_pop(struct core *core, uint64_t ts, enum known end_known)
{
	struct nsight_call *call = core_call(core, core->depth - 1);

	emit(core, ts);
	call->end = ts;
	call->end_known = end_known;
	core->depth--;
	if (core->depth)
		core_call(core, core->depth - 1)->children += ts - call->start;
}

struct nsight_call *core_insert(struct core *core, uint64_t ts, enum context_kind kind,
				uint32_t name)
{
	/* since, not ts: nothing else is known to have happened in between */
	core_push(core, core->since, kind, 0, name, MISSING);
	core_pop(core, ts, MEASURED);
	return &core->calls[core->n_calls - 1];
}

int core_lift_irqs(struct core *core, struct frame *frames)
{
	int n = 0, first = core->depth;

	while (first && (core_call(core, first - 1)->kind == C_SOFTIRQ ||
			 core_call(core, first - 1)->kind == C_HARDIRQ))
		first--;
	for (int i = first; i < core->depth; i++)
		frames[n++] = core->frame[i];
	core->depth = first;
	return n;
}

/* Moves the calls that were pushed last before those from first on: parents come first. */
static void move_before(struct core *core, size_t first, size_t pushed)
{
	size_t n = core->n_calls - pushed, size = sizeof(*core->calls);
	struct nsight_call some[MAX_DEPTH], *calls = core->calls;

	memcpy(some, &calls[pushed], n * size);
	memmove(&calls[first + n], &calls[first], (pushed - first) * size);
	memcpy(&calls[first], some, n * size);
	for (size_t i = first; i < core->n_calls; i++)
		if (calls[i].parent >= (int64_t)pushed)
			calls[i].parent -= pushed - first;
		else if (calls[i].parent >= (int64_t)first)
			calls[i].parent += n;
	for (size_t i = core->n_intervals; i-- && core->intervals[i].start >= calls[first].start;)
		if (core->intervals[i].call >= (int64_t)first)
			core->intervals[i].call += n;
	for (int i = 0; i < core->depth; i++)
		core->frame[i].call -= pushed - first;
}

void core_put_irqs(struct core *core, const struct frame *frames, int n)
{
	size_t first = n ? frames[0].call : 0, pushed = core->frame[0].call, moved;
	const struct nsight_call *below;
	int deeper;

	if (!n)
		return;
	moved = core->n_calls - pushed;
	move_before(core, first, pushed);
	below = core_call(core, core->depth - 1);
	deeper = core->depth - core->calls[first + moved].depth;
	core->calls[first + moved].parent = core->frame[core->depth - 1].call;
	for (size_t i = core->n_intervals;
	     i-- && core->intervals[i].start >= core->calls[first].start;)
		core->intervals[i].comm = core->comm;
	/* also for calls that ended inside them: the thread underneath was pushed later */
	for (size_t i = first + moved; i < core->n_calls; i++) {
		core->calls[i].pid = below->pid;
		core->calls[i].tid = below->tid;
		core->calls[i].depth += deeper;
	}
	for (int i = 0; i < n; i++) {
		core->frame[core->depth] = frames[i];
		core->frame[core->depth++].call += moved;
	}
}
