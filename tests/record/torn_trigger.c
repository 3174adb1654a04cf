// SPDX-License-Identifier: GPL-2.0-only
/*
 * Slow messages that are read while programs write them. Each one's fields lie in two pages: the
 * access to the second page faults, and the handler does what a program does meanwhile. Prints what
 * flight.c makes of it: the latency and the thread of each trigger, then how many it did not
 * examine.
 */
#include "flight.c"

#include <stddef.h>
#include <sys/mman.h>

#define PAGE 4096

static struct flight_trigger *triggers;
static uint64_t n_triggers;
static unsigned char *second;

/* Its latency is the number of its thread; they lie in different pages. */
static void put(uint64_t n)
{
	struct flight_trigger *t = flight_trigger_begin(triggers, n);

	if (!t)
		return;
	t->time = SECOND;
	t->latency = n;
	t->tid = n;
	flight_trigger_end(t, n);
}

static void on_fault(int sig)
{
	(void)sig;
	mprotect(second, PAGE, PROT_READ | PROT_WRITE);
	put(n_triggers - 1 + FLIGHT_TRIGGERS);
}

/* Number 127 is written while number 63 is. */
static void both(struct flight *f)
{
	mprotect(second, PAGE, PROT_NONE);
	put(n_triggers - 1);
	look_at_messages(f);
	/* Those in between have been examined. */
	f->n_seen = 2 * FLIGHT_TRIGGERS - 2;
	put(2 * FLIGHT_TRIGGERS - 2);
	put(2 * FLIGHT_TRIGGERS);
	n_triggers = 2 * FLIGHT_TRIGGERS + 1;
	look_at_messages(f);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "late";
	struct rings rings = {0};
	struct flight_options options = {.per_hour = MOST_PER_HOUR, .most_bytes = UINT64_MAX};
	struct flight_shared shared = {.n_triggers = &n_triggers};
	struct flight f = {.rings = &rings, .options = &options, .shared = &shared};
	unsigned char *pages =
		mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	/* Slot 63 has its fields up to the limit before the page boundary. */
	second = pages + 2 * PAGE;
	triggers = (struct flight_trigger *)(second - 63 * sizeof(*triggers) -
					     offsetof(struct flight_trigger, laddr));
	shared.triggers = triggers;
	signal(SIGSEGV, on_fault);
	for (n_triggers = 0; n_triggers < FLIGHT_TRIGGERS - 1; n_triggers++)
		put(n_triggers);
	n_triggers++;
	f.n_seen = FLIGHT_TRIGGERS - 2;
	if (!strcmp(what, "both")) {
		both(&f);
	} else if (!strcmp(what, "torn")) {
		put(n_triggers - 1);
		mprotect(second, PAGE, PROT_NONE);
		look_at_messages(&f);
	} else {
		put(n_triggers - 1);
		n_triggers++; /* counted, and not written yet */
		look_at_messages(&f);
		put(n_triggers - 1);
		look_at_messages(&f);
	}
	for (uint64_t i = 0; i < f.n_causes; i++)
		printf("%" PRIu64 " %" PRIu32 "\n", f.causes[i].value, f.causes[i].message.tid);
	printf("unseen %" PRIu64 "\n", f.unseen);
	return 0;
}

uint64_t monotonic_ns(void)
{
	return SECOND;
}

uint64_t output_free_bytes(uint64_t n_files)
{
	(void)n_files;
	return UINT64_MAX;
}

bool output_window(const char *name)
{
	(void)name;
	return true;
}
