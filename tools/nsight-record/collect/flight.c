// SPDX-License-Identifier: GPL-2.0-only
#include "flight.h"

#include "budget.h"
#include "programs.h"
#include "services.h"
#include "triggers.h"
#include "window.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND	      1000000000ull
#define MOST_PER_HOUR 3600
#define MOST_JOINED   64
#define BESIDE_BYTES  (16u << 20) /* clock readings, manifest */
#define BESIDE_FILES  32
/* Latencies lose half their weight in this many seconds. */
#define HALF_LIFE_S 60
/* The programs' cost is checked once a minute, so the longest window has fewer pauses. */
#define MOST_PAUSES 16

enum reason { LATENCY, DROPS, RETRANSMITS, ASKED };
static const char *const reasons[] = {"latency", "drops", "retransmissions", "asked"};

struct cause {
	enum reason reason;
	uint64_t time, value, limit; /* value and limit in ns, or per second */
	struct flight_trigger message;
};

struct flight {
	struct rings *rings;
	const struct flight_options *options;
	const struct flight_shared *shared;
	bool activity;
	uint64_t rings_bytes; /* total of all cores: a window is not larger */
	struct budget budget;
	struct steal steal;
	/* The window that is still to be written */
	struct cause causes[MOST_JOINED];
	uint64_t n_causes, from, until, most_until;
	/* What was seen at the last look */
	uint64_t n_seen, n_asked, second, minute, drops, retransmits;
	uint64_t paused_until;
	struct {
		uint64_t from, until; /* until 0: it has not ended */
	} pauses[MOST_PAUSES];
	uint64_t n_pauses;
	bool dropping, retransmitting, no_service, no_room;
	/* When the last windows were written, and the total size */
	uint64_t written[MOST_PER_HOUR], n_windows, bytes;
	/* Triggers that got no window */
	uint64_t n_triggers, over_hour, over_bytes, unseen;
};

/* Records that passed through the rings so far */
static uint64_t n_produced(const struct rings *rings)
{
	uint64_t n = 0;

	for (int type = 0; type < NSR_N_TYPES; type++)
		n += rings_produced(rings, type);
	return n;
}

/* The programs do not see the end of anything that was under way when they were stopped. */
static void forget_begun(const struct rings *rings)
{
	for (int i = 0; i < rings->n; i++) {
		struct nsr_control *c = rings->of[i].control;

		c->softirq = c->irq = c->idle = c->steal = 0;
		memset(c->vector, 0, sizeof(c->vector));
		memset(&c->arrival, 0, sizeof(c->arrival));
		memset(&c->packets, 0, sizeof(c->packets));
	}
}

static void pause_programs(struct flight *f, uint64_t now)
{
	*f->shared->stopped = true;
	f->paused_until = now + f->options->pause_ns;
	f->pauses[f->n_pauses % MOST_PAUSES].from = now;
	f->pauses[f->n_pauses++ % MOST_PAUSES].until = 0;
}

static void resume_programs(struct flight *f, uint64_t now)
{
	f->paused_until = 0;
	f->pauses[(f->n_pauses - 1) % MOST_PAUSES].until = now;
	forget_begun(f->rings);
	*f->shared->watched_from = now;
	*f->shared->stopped = false;
}

/* ns between ``from`` and ``until`` in which nothing was recorded */
static uint64_t paused_ns(const struct flight *f, uint64_t from, uint64_t until)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < f->n_pauses && i < MOST_PAUSES; i++) {
		uint64_t begin = f->pauses[i].from, end = f->pauses[i].until;

		begin = begin > from ? begin : from;
		end = end && end < until ? end : until;
		sum += end > begin ? end - begin : 0;
	}
	return sum;
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

/* Whether a window fits, together with nsight-record's other files; if not, this is reported once.
 * With a name, its directory is made. */
static bool has_room(struct flight *f, const char *name)
{
	bool most = f->bytes >= f->options->most_bytes;
	uint64_t room_bytes = output_free_bytes(f->rings->n + BESIDE_FILES);
	bool room;

	errno = 0;
	room = !most && room_bytes >= f->rings_bytes + BESIDE_BYTES &&
	       (!name || output_window(name));

	if (!room && !f->no_room) {
		printf("{\"no_room\": \"%s\", \"why\": \"%s\"}\n", most ? "most_disk" : "disk",
		       errno ? strerror(errno) : "");
		fflush(stdout);
	}
	f->no_room = !room;
	return room;
}

/* Write the window that is waiting. */
static void write_window(struct flight *f)
{
	struct window w;
	char name[32];

	snprintf(name, sizeof(name), ".window-%" PRIu64, f->n_windows + 1);
	/* There was room when the window began. */
	if (!has_room(f, name)) {
		f->over_bytes += f->n_causes;
		f->n_causes = 0;
		return;
	}
	/* Before everything else: perf's buffers hold less time than the rings. */
	if (f->options->snapshot_pidfd)
		syscall(SYS_pidfd_send_signal, f->options->snapshot_pidfd, SIGUSR2, NULL, 0);
	if (f->paused_until)
		forget_begun(f->rings);
	w = window_write(f->rings, f->activity ? &f->steal : NULL, f->from);
	printf("{\"window\": \"%s\", \"from_ns\": %" PRIu64 ", \"to_ns\": %" PRIu64
	       ", \"short_ns\": %" PRIu64 ", \"paused_ns\": %" PRIu64
	       ", \"left_out_units\": %" PRIu64 ", \"no_steal_ns\": %" PRIu64
	       ", \"records\": %" PRIu64 ", \"so_far\": %" PRIu64 ", \"bytes\": %" PRIu64
	       ", \"missed\": %" PRIu64 ", \"unwritten\": %s, \"unreserved\": \"%s\", ",
	       name, w.from, w.until, w.from - f->from, paused_ns(f, w.from, w.until), w.left_out,
	       w.no_steal_ns, w.records, n_produced(f->rings), w.bytes,
	       programs_missed(f->shared->object), output_failed() ? "true" : "false",
	       output_unreserved());
	print_causes(f);
	printf("}\n");
	fflush(stdout);
	output_forgive();
	f->written[f->n_windows % MOST_PER_HOUR] = w.until;
	f->n_windows++;
	f->bytes += w.bytes + f->options->snapshot_bytes;
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

/* A trigger: begin a window, or join the one that is waiting. */
static void trigger(struct flight *f, const struct cause *cause)
{
	const struct flight_options *o = f->options;
	uint64_t before = o->before_ns + (cause->reason == LATENCY ? cause->value : 0),
		 from = cause->time > before ? cause->time - before : 1,
		 until = cause->time + o->after_ns;

	f->n_triggers++;
	if (!f->n_causes) {
		if (cause->reason != ASKED && of_last_hour(f, cause->time) >= o->per_hour) {
			f->over_hour++;
			return;
		}
		if (!has_room(f, NULL)) {
			f->over_bytes++;
			return;
		}
		f->from = from;
		f->until = until;
		f->most_until = until + o->before_ns;
	}
	if (f->n_causes < MOST_JOINED)
		f->causes[f->n_causes] = *cause;
	f->n_causes++;
	/* A cause that is found later may be older. */
	if (from < f->from)
		f->from = from;
	/* The rings hold windows of limited length only. */
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
		struct cause cause = {.reason = LATENCY};
		const struct flight_trigger *m = &cause.message;
		enum trigger_copy found =
			trigger_copy(f->shared->triggers, f->n_seen, &cause.message);

		if (found == TRIGGER_UNFINISHED)
			return; /* until the next look */
		if (found == TRIGGER_REPLACED) {
			f->unseen++;
			continue;
		}
		cause.time = m->time;
		cause.value = m->latency;
		cause.limit = m->limit;
		trigger(f, &cause);
	}
}

/* A rate triggers once, and again only after it was below the limit. */
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
	uint64_t drops = rings_drops(f->rings),
		 retransmits = rings_produced(f->rings, NSR_RETRANSMIT);

	rate(f, DROPS, now, drops - f->drops, f->options->drops, &f->dropping);
	rate(f, RETRANSMITS, now, retransmits - f->retransmits, f->options->retransmits,
	     &f->retransmitting);
	f->drops = drops;
	f->retransmits = retransmits;
}

/* Services that get no place are reported at once, and only once: the end may be months away. */
static void look_at_services(struct flight *f)
{
	uint64_t minute = f->second / HALF_LIFE_S;

	services_limit(f->shared->services, f->options->percentile);
	if (minute != f->minute)
		services_halve(f->shared->services, minute % 2);
	f->minute = minute;
	if (*f->shared->n_no_service && !f->no_service) {
		f->no_service = true;
		printf("{\"no_percentile\": true}\n");
		fflush(stdout);
	}
}

/* Record less when the programs take more than they may: first no system calls, then nothing. */
static void keep_budget(struct flight *f, uint64_t now)
{
	/* There is a ring for each possible core, also for those that are offline. */
	double share, cores = sysconf(_SC_NPROCESSORS_ONLN),
		      most = f->options->most_cpu / 100 * cores;

	if (f->paused_until && now >= f->paused_until) {
		resume_programs(f, now);
		printf("{\"resumed\": true}\n");
		fflush(stdout);
	}
	if (!most || !budget_look(&f->budget, now, &share) || share <= most)
		return;
	if (!f->shared->leave_syscalls())
		pause_programs(f, now);
	printf("{\"over_cpu\": %.4g, \"most_cpu\": %.4g, \"now\": \"%s\"}\n", share * 100 / cores,
	       f->options->most_cpu, f->paused_until ? "paused" : "without system calls");
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
		window_note(f->rings, now);
		if (f->options->percentile)
			look_at_services(f);
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

	if (!f)
		fail(EXIT_OUTPUT, "free some memory", "out of memory");
	f->rings = rings;
	f->options = options;
	f->shared = shared;
	f->activity = activity;
	f->rings_bytes = (rings->mask + 1) * NSR_UNIT * rings->n + options->snapshot_bytes;
	f->second = monotonic_ns() / SECOND;
	f->minute = f->second / HALF_LIFE_S;
	budget_begin(&f->budget, shared->object, monotonic_ns());
	steal_begin(&f->steal);
	for (uint64_t turn = 0; !*stop; turn++) {
		nanosleep(&pause, NULL);
		if (activity && turn % 10 == 9)
			steal_note(&f->steal, monotonic_ns());
		look(f, asked);
	}
	look_at_messages(f);
	if (f->n_causes)
		write_window(f);
	*shared->stopped = true;
	printf("{\"windows\": %" PRIu64 ", \"triggers\": %" PRIu64 ", \"over_hour\": %" PRIu64
	       ", \"over_disk\": %" PRIu64 ", \"unseen\": %" PRIu64 ", \"records\": %" PRIu64
	       ", \"no_percentile\": %" PRIu64 ", \"bytes\": %" PRIu64 "}\n",
	       f->n_windows, f->n_triggers, f->over_hour, f->over_bytes, f->unseen,
	       n_produced(rings), *shared->n_no_service, f->bytes);
	fflush(stdout);
}
