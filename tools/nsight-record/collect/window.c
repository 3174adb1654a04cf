// SPDX-License-Identifier: GPL-2.0-only
#include "window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TIME_MASK    ((1ull << NSR_TIME_BITS) - 1)
#define MARGIN_UNITS NSR_PAGE_UNITS
#define CHUNK_UNITS  (NSR_MAX_BLOCK / NSR_UNIT)

/* A copy of units of a ring, to which the programs go on writing */
static uint64_t chunk[NSR_MAX_BLOCK / 8];

static uint64_t full_time(uint64_t word, uint64_t now)
{
	uint64_t ago = (now - (word >> 16)) & TIME_MASK;

	/* A record that was just written may have a time after now. */
	return ago >> (NSR_TIME_BITS - 1) ? now + (TIME_MASK + 1 - ago) : now - ago;
}

/* Units of the record with this first word, at ``at``; 0: there is no record. */
static uint32_t units_of(const struct rings *rings, const uint64_t *unit, uint64_t at)
{
	uint64_t word = unit[0];
	uint32_t type = word & 0xff;

	if ((word >> 8 & 0xff) != (0x80 | ((at >> rings->shift) & 0x7f)))
		return 0;
	if (type != NSR_PAD)
		return nsr_units(type);
	return unit[1] && unit[1] <= NSR_PAGE_UNITS ? (uint32_t)unit[1] : 0;
}

static const uint64_t *unit_at(const struct rings *rings, int cpu, uint64_t at)
{
	return (const uint64_t *)(rings->of[cpu].data + (at & rings->mask) * NSR_UNIT);
}

void window_note(struct rings *rings, uint64_t now)
{
	for (int i = 0; i < rings->n; i++) {
		struct ring *ring = &rings->of[i];
		uint64_t head = __atomic_load_n(&ring->control->head, __ATOMIC_ACQUIRE);

		if (head != ring->noted)
			ring->moved = now;
		ring->noted = head;
	}
}

/* The first unit that the ring still holds from ``from`` on; *since: its time. */
static uint64_t first_unit(const struct rings *rings, int cpu, uint64_t from, uint64_t head,
			   uint64_t now, uint64_t *since)
{
	uint64_t size = rings->mask + 1, page = head / NSR_PAGE_UNITS, least = 0, at;

	*since = from;
	/* For example, a core that is offline. Its newest records may be older than the 48-bit time
	 * can express; they would be taken for times 78 hours later. */
	if (head == rings->of[cpu].noted && rings->of[cpu].moved < from)
		return head;
	if (head + MARGIN_UNITS > size)
		least = (head + MARGIN_UNITS - size + NSR_PAGE_UNITS - 1) / NSR_PAGE_UNITS;
	/* The page that contains ``from``: the last one that begins before it. */
	for (;; page--) {
		const uint64_t *unit = unit_at(rings, cpu, page * NSR_PAGE_UNITS);
		uint64_t begins;

		if (!units_of(rings, unit, page * NSR_PAGE_UNITS)) {
			if (page <= least)
				break;
			continue;
		}
		begins = full_time(*unit, now);
		if (begins < from)
			break;
		if (page <= least) {
			if (least)
				*since = begins;
			break;
		}
	}
	at = page * NSR_PAGE_UNITS;
	while (at < head) {
		const uint64_t *unit = unit_at(rings, cpu, at);
		uint32_t units = units_of(rings, unit, at);

		if (!units || full_time(*unit, now) >= from)
			break;
		at += units;
	}
	return at;
}

/* Write the records in a copy of the units from ``at`` on; incomplete ones are left out. */
static uint64_t write_chunk(const struct rings *rings, struct output *out, uint64_t at, uint64_t n,
			    uint64_t now)
{
	uint64_t begin = 0, unit = 0, left_out = 0;

	while (begin < n) {
		uint64_t found[256] = {0}, end;
		uint32_t units;

		for (unit = begin; unit < n; unit += units) {
			uint64_t *record = chunk + unit * NSR_UNIT / 8;

			units = units_of(rings, record, at + unit);
			if (!units || unit + units > n)
				break;
			found[nsr_counted(*record & 0xff)]++;
		}
		if (unit > begin && output_block(out, NSR_RECORDS, chunk + begin * NSR_UNIT / 8,
						 (unit - begin) * NSR_UNIT, now, at + begin))
			for (int type = 0; type < NSR_N_TYPES; type++)
				out->written[type] += found[type];
		if (unit >= n)
			break;
		/* An interrupted program has not filled this yet: go on with the next page. */
		end = NSR_PAGE_UNITS - (at + unit) % NSR_PAGE_UNITS;
		begin = unit + end;
		left_out += begin < n ? end : n - unit;
	}
	return left_out;
}

struct part {
	struct output *out;
	uint64_t at, head, left_out;
	uint64_t since; /* from this time on nothing is left out; 0: from now on */
};

/* The next piece of a core, oldest first, because the programs go on writing. */
static void write_part(const struct rings *rings, int cpu, struct part *part, uint64_t now)
{
	uint64_t n = part->head - part->at, size = rings->mask + 1, in_ring, gone, head;

	in_ring = size - (part->at & rings->mask);
	n = n < in_ring ? n : in_ring;
	if (n > CHUNK_UNITS - part->at % NSR_PAGE_UNITS)
		n = CHUNK_UNITS - part->at % NSR_PAGE_UNITS;
	memcpy(chunk, unit_at(rings, cpu, part->at), n * NSR_UNIT);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	head = __atomic_load_n(&rings->of[cpu].control->head, __ATOMIC_ACQUIRE);
	gone = head + MARGIN_UNITS > size ? head + MARGIN_UNITS - size : 0;
	if (gone > part->at) {
		gone = (gone + NSR_PAGE_UNITS - 1) / NSR_PAGE_UNITS * NSR_PAGE_UNITS;
		gone = gone < part->at + n ? gone : part->at + n;
		part->left_out += gone - part->at;
		part->since = 0;
		memmove(chunk, chunk + (gone - part->at) * NSR_UNIT / 8,
			(part->at + n - gone) * NSR_UNIT);
		n -= gone - part->at;
		part->at = gone;
	}
	if (n && !part->since)
		part->since = full_time(*chunk, now);
	if (n)
		part->left_out += write_chunk(rings, part->out, part->at, n, now);
	part->at += n;
}

/* A core that is idle now writes its idle record only when it wakes up, which is too late. */
static void write_idle(struct output *out, const struct nsr_control *control, uint64_t at,
		       uint64_t now)
{
	uint64_t began = __atomic_load_n(&control->idle, __ATOMIC_RELAXED), took, record[2];

	if (!began || began >= now)
		return;
	record[0] = now << 16 | 0x80 << 8 | NSR_IDLE;
	took = now - began < 1ull << NSR_DUR_BITS ? now - began : (1ull << NSR_DUR_BITS) - 1;
	record[1] = took | (control->idle_state & 0xff) << NSR_DUR_BITS;
	if (output_block(out, NSR_RECORDS, record, sizeof(record), now, at))
		out->written[NSR_IDLE]++;
}

static void end_file(struct output *out, uint64_t now)
{
	struct nsr_control control = {0};

	memcpy(control.produced, out->written, sizeof(control.produced));
	control.produced[NSR_PAD] = 0; /* no record */
	output_counts(out, &control, NSR_END, now);
	output_close(out);
}

/* Write what each core's ring holds from the window's begin on. */
static void write_cores(const struct rings *rings, struct part *parts, struct window *w)
{
	bool more = true;

	for (int i = 0; i < rings->n; i++)
		parts[i].head = __atomic_load_n(&rings->of[i].control->head, __ATOMIC_ACQUIRE);
	/* Wait until the units reserved by then are filled: unfilled memory may hold anything. */
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	for (int i = 0; i < rings->n; i++) {
		struct part *part = &parts[i];

		part->out = output_open(i);
		part->at = first_unit(rings, i, w->from, part->head, w->until, &part->since);
	}
	while (more) {
		more = false;
		for (int i = 0; i < rings->n; i++)
			if (parts[i].at < parts[i].head) {
				write_part(rings, i, &parts[i], w->until);
				more = true;
			}
	}
}

/* End each core's file. */
static void end_cores(const struct rings *rings, struct part *parts, struct window *w)
{
	for (int i = 0; i < rings->n; i++) {
		struct part *part = &parts[i];

		write_idle(part->out, rings->of[i].control, part->head, w->until);
		if (!part->since)
			part->since = w->until;
		w->from = part->since > w->from ? part->since : w->from;
		w->left_out += part->left_out;
		for (int type = NSR_PAD + 1; type < NSR_N_TYPES; type++)
			w->records += part->out->written[type];
		end_file(part->out, w->until);
		w->bytes += part->out->size;
		free(part->out);
	}
}

struct window window_write(const struct rings *rings, struct steal *steal, uint64_t from)
{
	struct part *parts = calloc(rings->n, sizeof(*parts));
	struct window w = {.from = from, .until = monotonic_ns()};
	struct output *machine;

	if (!parts)
		fail(EXIT_OUTPUT, "free some memory", "out of memory");
	write_cores(rings, parts, &w);
	end_cores(rings, parts, &w);
	free(parts);
	machine = output_open(NSR_NO_CPU);
	threads_were_there(machine, w.from);
	if (steal)
		w.no_steal_ns = steal_write(steal, machine, w.from);
	end_file(machine, w.until);
	w.bytes += machine->size;
	free(machine);
	return w;
}
