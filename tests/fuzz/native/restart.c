// SPDX-License-Identifier: GPL-2.0-only
/*
 * Runs a program's main() repeatedly. This directory's sources are built without checks: a fuzzer
 * need not count their branches, and they may access poisoned memory.
 */
#include "restart.h"

#include "events.h"
#include "intercept.h"
#include "util.h"

#include <getopt.h>
#include <setjmp.h>
#include <string.h>

/* Of the program's variables; none in one that has no such variables */
extern char __start_fuzz_bss[] __attribute__((weak)), __stop_fuzz_bss[] __attribute__((weak));
extern char __start_fuzz_data[] __attribute__((weak)), __stop_fuzz_data[] __attribute__((weak));

static jmp_buf ended;
static char *first_data; /* as the program was linked */

/* The programs do not free their memory before they exit; blocks.c frees it after each run. */
const char *__asan_default_options(void)
{
	return "detect_leaks=0:malloc_context_size=8:quarantine_size_mb=16:allocator_may_return_"
	       "null=0";
}

const char *__ubsan_default_options(void)
{
	return "print_stacktrace=1";
}

/* No memcpy(): redzones lie between variables, and it would complain. */
static void copy(char *to, const char *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = from ? from[i] : 0;
}

static void set_variables_back(void)
{
	size_t n = __stop_fuzz_data - __start_fuzz_data;

	if (n && !first_data) {
		first_data = malloc(n);
		copy(first_data, __start_fuzz_data, n);
	}
	copy(__start_fuzz_data, first_data, n);
	copy(__start_fuzz_bss, NULL, __stop_fuzz_bss - __start_fuzz_bss);
	optind = 0; /* glibc: begin again */
}

void fuzz_exit(int code)
{
	longjmp(ended, code + 1);
}

void restart_broken(const char *why)
{
	fprintf(stderr, "broken: %s\n", why);
	abort();
}

/* Whether the exit code and the messages match. */
static void check_end(int code)
{
	struct written said = restart_written("stderr");

	if ((code == 0 && !said.size) || (code == EXIT_BAD_INPUT && said.size))
		return;
	fprintf(stderr, "exit code %d\n%.*s\n", code, (int)said.size, (const char *)said.data);
	restart_broken("a program ends with 0 and says nothing, or with 3 and says why");
}

bool restart_run(char **argv)
{
	int argc = 0, code;

	while (argv[argc])
		argc++;
	set_variables_back();
	files_begin();
	code = setjmp(ended);
	code = code ? code - 1 : program_main(argc, argv);
	files_release();
	blocks_release();
	check_end(code);
	return !code;
}

void restart_check_events(struct written events)
{
	struct nsight_event ev;
	uint64_t last = 0;

	if (events.size % sizeof(ev))
		restart_broken("a part of an event");
	for (size_t at = 0; at < events.size; at += sizeof(ev)) {
		memcpy(&ev, events.data + at, sizeof(ev));
		if (ev.kind >= K_COUNT)
			restart_broken("an event of an unknown kind");
		if (ev.ts < last || ev.ts > INT64_MAX / 2)
			restart_broken("events out of order, or beyond all times");
		last = ev.ts;
	}
}
