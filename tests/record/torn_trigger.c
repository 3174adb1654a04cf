// SPDX-License-Identifier: GPL-2.0-only
/*
 * Slow messages that are read while programs write them. Each one's fields lie in two pages: the
 * access to the second page faults, and the handler does what a program does meanwhile. Prints what
 * flight.c makes of it: the latency and the thread of each trigger, then how many it did not
 * examine.
 */
#include "flight.c"

#include <sys/mman.h>

#define PAGE 4096

static struct flight_trigger *triggers;
static uint64_t n_triggers;
static unsigned char *second;

/* Its latency is the number of its thread. */
static void put(uint64_t n)
{
	struct flight_trigger *t = &triggers[n % FLIGHT_TRIGGERS];

	*t = (struct flight_trigger){.number = n + 1, .time = SECOND, .latency = n, .tid = n};
}

static void on_fault(int sig)
{
	(void)sig;
	mprotect(second, PAGE, PROT_READ | PROT_WRITE);
	put(n_triggers - 1 + FLIGHT_TRIGGERS);
}

int main(int argc, char **argv)
{
	bool torn = argc > 1 && !strcmp(argv[1], "torn");
	struct rings rings = {0};
	struct flight_options options = {.per_hour = MOST_PER_HOUR, .most_bytes = UINT64_MAX};
	struct flight_shared shared = {.n_triggers = &n_triggers};
	struct flight f = {.rings = &rings, .options = &options, .shared = &shared};
	unsigned char *pages =
		mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	/* Slot 63 has its first half before the page boundary. */
	second = pages + 2 * PAGE;
	triggers =
		(struct flight_trigger *)(second - 63 * sizeof(*triggers) - sizeof(*triggers) / 2);
	shared.triggers = triggers;
	signal(SIGSEGV, on_fault);
	for (n_triggers = 0; n_triggers < FLIGHT_TRIGGERS; n_triggers++)
		put(n_triggers);
	f.n_seen = FLIGHT_TRIGGERS - 2;
	if (torn)
		mprotect(second, PAGE, PROT_NONE);
	else
		n_triggers++; /* counted, and not written yet */
	look_at_messages(&f);
	if (!torn) {
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
