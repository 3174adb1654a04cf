// SPDX-License-Identifier: GPL-2.0-only
#include "flight.h"

#include "budget.h"
#include "programs.h"
#include "threads.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND	      1000000000ull
#define TIME_MASK     ((1ull << NSR_TIME_BITS) - 1)
#define MARGIN_UNITS  NSR_PAGE_UNITS
#define CHUNK_UNITS   (NSR_MAX_BLOCK / NSR_UNIT)
#define MOST_PER_HOUR 3600
#define MOST_JOINED   64
/* A percentile is known when so many messages were above it. */
#define LEAST_ABOVE 10
/* Latencies count half after so many seconds. */
#define HALF_LIFE_S 60

enum reason { LATENCY, DROPS, RETRANSMITS, ASKED };
static const char *const reasons[] = {"latency", "drops", "retransmissions", "asked"};

struct cause {
	enum reason reason;
	uint64_t time, value, limit; /* ns, or a second */
	struct flight_trigger message;
};

struct flight {
	struct rings *rings;
	const struct flight_options *options;
	const struct flight_shared *shared;
	bool activity;
	uint64_t *chunk;
	uint64_t rings_bytes; /* of all cores: a window is not larger */
	struct budget budget;
	struct steal steal;
	/* Of the window that is still to be written */
	struct cause causes[MOST_JOINED];
	uint64_t n_causes, from, until, most_until;
	/* What was looked at last */
	uint64_t n_seen, n_asked, second, drops, retransmits;
	uint64_t paused_until;
	bool dropping, retransmitting;
	/* When the last windows were written, and how much in all */
	uint64_t written[MOST_PER_HOUR], n_windows, bytes;
	/* What was refused */
	uint64_t n_triggers, over_hour, over_bytes, unseen;
};

static uint64_t full_time(uint64_t word, uint64_t now)
{
	uint64_t ago = (now - (word >> 16)) & TIME_MASK;

	/* A record that was just written may be later than now. */
	return ago >> (NSR_TIME_BITS - 1) ? now + (TIME_MASK + 1 - ago) : now - ago;
}

/* Units of the record with this first word, which is the one at ``at``; 0: it is not there. */
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

/* The first unit of what the ring still holds from ``from`` on; *since: when that begins. */
static uint64_t first_unit(const struct rings *rings, int cpu, uint64_t from, uint64_t head,
			   uint64_t now, uint64_t *since)
{
	uint64_t size = rings->mask + 1, page = head / NSR_PAGE_UNITS, least = 0, at;

	*since = from;
	if (head + MARGIN_UNITS > size)
		least = (head + MARGIN_UNITS - size + NSR_PAGE_UNITS - 1) / NSR_PAGE_UNITS;
	/* The page in which ``from`` is: the last one that begins before it. */
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

/* Write the records of a copy of the units from ``at`` on; what is not complete is left out. */
static uint64_t write_chunk(struct flight *f, struct output *out, uint64_t at, uint64_t n,
			    uint64_t now)
{
	uint64_t begin = 0, unit = 0, left_out = 0;

	while (begin < n) {
		uint64_t found[256] = {0}, end;
		uint32_t units;

		for (unit = begin; unit < n; unit += units) {
			uint64_t *record = f->chunk + unit * NSR_UNIT / 8;

			units = units_of(f->rings, record, at + unit);
			if (!units || unit + units > n)
				break;
			found[*record & 0xff]++;
		}
		if (unit > begin && output_block(out, NSR_RECORDS, f->chunk + begin * NSR_UNIT / 8,
						 (unit - begin) * NSR_UNIT, now, at + begin))
			for (int type = 0; type < NSR_N_TYPES; type++)
				out->written[type] += found[type];
		if (unit >= n)
			break;
		/* What a program that was interrupted has not filled yet: on with the next page. */
		end = NSR_PAGE_UNITS - (at + unit) % NSR_PAGE_UNITS;
		begin = unit + end;
		left_out += begin < n ? end : n - unit;
	}
	return left_out;
}

struct part {
	struct output *out;
	uint64_t at, head, left_out;
	uint64_t since; /* when that begins from which on nothing is left out; 0: now */
};

/* Records that went through the rings so far */
static uint64_t n_produced(const struct rings *rings)
{
	uint64_t n = 0;

	for (int i = 0; i < rings->n; i++)
		for (int type = 0; type < NSR_N_TYPES; type++)
			n += rings->of[i].control->produced[type];
	return n;
}

/* The next piece of a core, the oldest first, for the programs go on writing. */
static void write_part(struct flight *f, int cpu, struct part *part, uint64_t now)
{
	uint64_t n = part->head - part->at, size = f->rings->mask + 1, in_ring, gone, head;

	in_ring = size - (part->at & f->rings->mask);
	n = n < in_ring ? n : in_ring;
	if (n > CHUNK_UNITS - part->at % NSR_PAGE_UNITS)
		n = CHUNK_UNITS - part->at % NSR_PAGE_UNITS;
	memcpy(f->chunk, unit_at(f->rings, cpu, part->at), n * NSR_UNIT);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	head = __atomic_load_n(&f->rings->of[cpu].control->head, __ATOMIC_ACQUIRE);
	gone = head + MARGIN_UNITS > size ? head + MARGIN_UNITS - size : 0;
	if (gone > part->at) {
		gone = (gone + NSR_PAGE_UNITS - 1) / NSR_PAGE_UNITS * NSR_PAGE_UNITS;
		gone = gone < part->at + n ? gone : part->at + n;
		part->left_out += gone - part->at;
		part->since = 0;
		memmove(f->chunk, f->chunk + (gone - part->at) * NSR_UNIT / 8,
			(part->at + n - gone) * NSR_UNIT);
		n -= gone - part->at;
		part->at = gone;
	}
	if (n && !part->since)
		part->since = full_time(*f->chunk, now);
	if (n)
		part->left_out += write_chunk(f, part->out, part->at, n, now);
	part->at += n;
}

/* A core that is idle now writes its record of that when it wakes up, which is too late. */
static void write_idle(struct output *out, const struct nsr_control *control, uint64_t at,
		       uint64_t now)
{
	uint64_t began = __atomic_load_n(&control->idle, __ATOMIC_RELAXED), record[2];

	if (!began || began >= now)
		return;
	record[0] = now << 16 | 0x80 << 8 | NSR_IDLE;
	record[1] = ((now - began) & ((1ull << NSR_DUR_BITS) - 1)) | (control->idle_state & 0xff)
									     << NSR_DUR_BITS;
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

static void print_address(const char *name, uint32_t address)
{
	const unsigned char *a = (const unsigned char *)&address;

	printf(", \"%s\": \"%u.%u.%u.%u\"", name, a[0], a[1], a[2], a[3]);
}

static void print_causes(const struct flight *f)
{
	uint64_t n = f->n_causes < MOST_JOINED ? f->n_causes : MOST_JOINED;

	printf("\"n_triggers\": %" PRIu64 ", \"triggers\": [", f->n_causes);
	for (uint64_t i = 0; i < n; i++) {
		const struct cause *c = &f->causes[i];
		const struct flight_trigger *m = &c->message;

		printf("%s{\"reason\": \"%s\", \"monotonic_ns\": %" PRIu64, i ? ", " : "",
		       reasons[c->reason], c->time);
		if (c->reason == LATENCY) {
			printf(", \"latency_ns\": %" PRIu64 ", \"limit_ns\": %" PRIu64
			       ", \"tid\": %" PRIu32 ", \"cpu\": %" PRIu32
			       ", \"local_port\": %u, \"remote_port\": %u, \"netns\": %" PRIu32,
			       c->value, c->limit, m->tid, m->cpu, m->lport, m->rport, m->netns);
			if (m->raddr) {
				print_address("local", m->laddr);
				print_address("remote", m->raddr);
			}
		} else if (c->reason != ASKED) {
			printf(", \"per_second\": %" PRIu64 ", \"limit_per_second\": %" PRIu64,
			       c->value, c->limit);
		}
		printf("}");
	}
	printf("]");
}

/* Write the window that is waiting. */
static void write_window(struct flight *f)
{
	struct rings *rings = f->rings;
	struct part *parts = calloc(rings->n, sizeof(*parts));
	uint64_t now = monotonic_ns(), since = f->from, left_out = 0, bytes = 0, records = 0;
	char name[32];
	struct output *machine;
	bool more = true;

	if (!parts)
		fail(EXIT_OUTPUT, "free some memory", "out of memory");
	/* First of all: perf's buffers hold less time than the rings. */
	if (f->options->snapshot_pidfd)
		syscall(SYS_pidfd_send_signal, f->options->snapshot_pidfd, SIGUSR2, NULL, 0);
	snprintf(name, sizeof(name), ".window-%" PRIu64, f->n_windows + 1);
	output_window(name);
	for (int i = 0; i < rings->n; i++)
		parts[i].head = __atomic_load_n(&rings->of[i].control->head, __ATOMIC_ACQUIRE);
	/* What was reserved by then is filled: memory that was not may hold anything. */
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	for (int i = 0; i < rings->n; i++) {
		struct part *part = &parts[i];

		part->out = output_open(i);
		part->at = first_unit(rings, i, f->from, part->head, now, &part->since);
	}
	while (more) {
		more = false;
		for (int i = 0; i < rings->n; i++)
			if (parts[i].at < parts[i].head) {
				write_part(f, i, &parts[i], now);
				more = true;
			}
	}
	for (int i = 0; i < rings->n; i++) {
		struct part *part = &parts[i];

		write_idle(part->out, rings->of[i].control, part->head, now);
		if (!part->since)
			part->since = now;
		since = part->since > since ? part->since : since;
		left_out += part->left_out;
		for (int type = NSR_PAD + 1; type < NSR_N_TYPES; type++)
			records += part->out->written[type];
		end_file(part->out, now);
		bytes += part->out->size;
		free(part->out);
	}
	machine = output_open(NSR_NO_CPU);
	if (f->activity) {
		threads_were_there(machine, since);
		steal_write(&f->steal, machine, since);
	}
	end_file(machine, now);
	bytes += machine->size;
	free(machine);
	free(parts);

	printf("{\"window\": \"%s\", \"from_ns\": %" PRIu64 ", \"to_ns\": %" PRIu64
	       ", \"short_ns\": %" PRIu64 ", \"left_out_units\": %" PRIu64 ", \"records\": %" PRIu64
	       ", \"so_far\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"missed\": %" PRIu64
	       ", \"unwritten\": %s, ",
	       name, since, now, since - f->from, left_out, records, n_produced(rings), bytes,
	       programs_missed(f->shared->object), output_failed() ? "true" : "false");
	print_causes(f);
	printf("}\n");
	fflush(stdout);
	output_forgive();
	f->written[f->n_windows % MOST_PER_HOUR] = now;
	f->n_windows++;
	f->bytes += bytes + f->options->snapshot_bytes;
	f->n_causes = 0;
}

/* Windows of the last hour */
static uint64_t of_last_hour(const struct flight *f, uint64_t now)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < f->n_windows && i < MOST_PER_HOUR; i++)
		n += now - f->written[i] < 3600 * SECOND;
	return n;
}

/* Something is worth a window: begin one, or join the one that is waiting. */
static void trigger(struct flight *f, const struct cause *cause)
{
	const struct flight_options *o = f->options;
	uint64_t before = o->before_ns + (cause->reason == LATENCY ? cause->value : 0),
		 until = cause->time + o->after_ns;

	f->n_triggers++;
	if (!f->n_causes) {
		if (cause->reason != ASKED && of_last_hour(f, cause->time) >= o->per_hour) {
			f->over_hour++;
			return;
		}
		if (f->bytes >= o->most_bytes || output_free_bytes() < f->rings_bytes) {
			f->over_bytes++;
			return;
		}
		f->from = cause->time > before ? cause->time - before : 1;
		f->until = until;
		f->most_until = until + o->before_ns;
	}
	if (f->n_causes < MOST_JOINED)
		f->causes[f->n_causes] = *cause;
	f->n_causes++;
	/* The rings do not hold a window of any length. */
	if (until > f->until)
		f->until = until < f->most_until ? until : f->most_until;
}

/* Slow messages that the programs found since the last look */
static void look_at_messages(struct flight *f)
{
	uint64_t n = __atomic_load_n(f->shared->n_triggers, __ATOMIC_ACQUIRE);

	if (n - f->n_seen > FLIGHT_TRIGGERS) {
		f->unseen += n - f->n_seen - FLIGHT_TRIGGERS;
		f->n_seen = n - FLIGHT_TRIGGERS;
	}
	for (; f->n_seen < n; f->n_seen++) {
		const struct flight_trigger *t = &f->shared->triggers[f->n_seen % FLIGHT_TRIGGERS];
		struct cause cause = {.reason = LATENCY};
		uint64_t number = __atomic_load_n(&t->number, __ATOMIC_ACQUIRE);

		if (!number && f->n_seen + FLIGHT_TRIGGERS > n)
			return; /* it is just being written */
		cause.message = *t;
		if (number != f->n_seen + 1) {
			f->unseen++;
			continue;
		}
		cause.time = t->time;
		cause.value = t->latency;
		cause.limit = t->limit;
		trigger(f, &cause);
	}
}

static uint64_t total(const struct rings *rings, enum nsr_type type)
{
	uint64_t sum = 0;

	for (int i = 0; i < rings->n; i++)
		sum += rings->of[i].control->produced[type];
	return sum;
}

/* A rate is a trigger once, and again when it has been below the limit. */
static void rate(struct flight *f, enum reason reason, uint64_t now, uint64_t n, uint64_t limit,
		 bool *above)
{
	struct cause cause = {.reason = reason, .time = now, .value = n, .limit = limit};

	if (limit && n >= limit && !*above)
		trigger(f, &cause);
	*above = limit && n >= limit;
}

static void look_at_rates(struct flight *f, uint64_t now)
{
	uint64_t drops = total(f->rings, NSR_DROP), retransmits = total(f->rings, NSR_RETRANSMIT);

	rate(f, DROPS, now, drops - f->drops, f->options->drops, &f->dropping);
	rate(f, RETRANSMITS, now, retransmits - f->retransmits, f->options->retransmits,
	     &f->retransmitting);
	f->drops = drops;
	f->retransmits = retransmits;
}

/* The limit of each service from its own latencies; old ones count less and less. */
static void set_limits(struct flight *f, uint64_t n_seconds)
{
	for (int i = 0; i < FLIGHT_SERVICES; i++) {
		struct flight_service *s = &f->shared->services[i];
		uint64_t n = 0, above = 0, most;
		int bucket = FLIGHT_BUCKETS;

		if (!s->key)
			continue;
		for (int b = 0; b < FLIGHT_BUCKETS; b++)
			n += s->n[b];
		most = (uint64_t)(n * (1 - f->options->percentile / 100));
		if (most >= LEAST_ABOVE) {
			while (bucket > 0 && above + s->n[bucket - 1] <= most)
				above += s->n[--bucket];
			s->limit = bucket < FLIGHT_BUCKETS ? flight_above(bucket - 1) : 0;
		}
		if (n_seconds % HALF_LIFE_S == 0)
			for (int b = 0; b < FLIGHT_BUCKETS; b++)
				__atomic_fetch_sub(&s->n[b], s->n[b] / 2, __ATOMIC_RELAXED);
	}
}

/* Take less when the programs take more than they may: first no system calls, then nothing. */
static void keep_budget(struct flight *f, uint64_t now)
{
	double share, most = f->options->most_cpu / 100 * f->rings->n;

	if (f->paused_until && now >= f->paused_until) {
		f->paused_until = 0;
		*f->shared->stopped = false;
		printf("{\"resumed\": true}\n");
		fflush(stdout);
	}
	if (!most || !budget_look(&f->budget, now, &share) || share <= most)
		return;
	if (!f->shared->leave_syscalls()) {
		*f->shared->stopped = true;
		f->paused_until = now + 60 * SECOND;
	}
	printf("{\"over_cpu\": %.4g, \"most_cpu\": %.4g, \"now\": \"%s\"}\n",
	       share * 100 / f->rings->n, f->options->most_cpu,
	       f->paused_until ? "paused for a minute" : "without system calls");
	fflush(stdout);
}

static void look(struct flight *f, const volatile sig_atomic_t *asked)
{
	uint64_t now = monotonic_ns();

	look_at_messages(f);
	for (; f->n_asked < (uint64_t)*asked; f->n_asked++) {
		struct cause cause = {.reason = ASKED, .time = now};

		trigger(f, &cause);
	}
	if (now / SECOND != f->second) {
		f->second = now / SECOND;
		look_at_rates(f, now);
		if (f->options->percentile)
			set_limits(f, f->second);
		keep_budget(f, now);
	}
	if (f->n_causes && now >= f->until)
		write_window(f);
}

void flight_run(struct rings *rings, const struct flight_options *options,
		const struct flight_shared *shared, bool activity, uint64_t every_ms,
		const volatile sig_atomic_t *stop, const volatile sig_atomic_t *asked)
{
	struct timespec pause = {every_ms / 1000, every_ms % 1000 * 1000000};
	struct flight *f = calloc(1, sizeof(*f));

	if (f)
		f->chunk = malloc(NSR_MAX_BLOCK);
	if (!f || !f->chunk)
		fail(EXIT_OUTPUT, "free some memory", "out of memory");
	f->rings = rings;
	f->options = options;
	f->shared = shared;
	f->activity = activity;
	f->rings_bytes = (rings->mask + 1) * NSR_UNIT * rings->n + options->snapshot_bytes;
	f->second = monotonic_ns() / SECOND;
	budget_begin(&f->budget, shared->object, monotonic_ns());
	steal_begin(&f->steal);
	for (uint64_t turn = 0; !*stop; turn++) {
		nanosleep(&pause, NULL);
		if (activity && turn % 10 == 9)
			steal_note(&f->steal, monotonic_ns());
		look(f, asked);
	}
	if (f->n_causes)
		write_window(f);
	*shared->stopped = true;
	printf("{\"windows\": %" PRIu64 ", \"triggers\": %" PRIu64 ", \"over_hour\": %" PRIu64
	       ", \"over_disk\": %" PRIu64 ", \"unseen\": %" PRIu64 ", \"records\": %" PRIu64
	       ", \"bytes\": %" PRIu64 "}\n",
	       f->n_windows, f->n_triggers, f->over_hour, f->over_bytes, f->unseen,
	       n_produced(rings), f->bytes);
	fflush(stdout);
}
