// SPDX-License-Identifier: GPL-2.0-only
#include "intervals.h"

#include "../../bpf/flight_triggers.h"
#include "nsight-collect.skel.h"
#include "output.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char forms[] =
	"write usdt:FILE:PROVIDER:MARK..MARK[,argN], uprobe:FILE:FUNCTION..FUNCTION[,argN] or "
	"timer:PID|THREAD";

enum { MARKS = 3, MOST_ARGUMENTS = 12, FUNCTION_ARGUMENTS = 6 };

static struct interval {
	enum { USDT, FUNCTION, TIMER } kind;
	char *file, *provider;
	unsigned int n_marks;
	char *marks[MARKS];	  /* in order of time: the last one ends the interval */
	unsigned int keys[MARKS]; /* argument numbers, from 1; 0: the thread pairs the marks */
} intervals[NSR_INTERVALS];
static unsigned int n_intervals;

static void not_understood(const char *spec)
{
	fail(EXIT_USAGE, forms, "--interval %s is not understood", spec);
}

/* Cuts the text at the last separator and returns what follows; exits if there is none. */
static char *cut(char *text, char separator, const char *spec)
{
	char *at = strrchr(text, separator);

	if (!at || at == text || !at[1])
		not_understood(spec);
	*at = 0;
	return at + 1;
}

/* Stores the words between ".." in at most MARKS places; returns how many. */
static unsigned int words(char *text, char **to, const char *spec)
{
	unsigned int n = 0;

	while (text) {
		char *end = strstr(text, "..");

		if (end)
			*end = 0;
		if (!*text || n == MARKS)
			not_understood(spec);
		to[n++] = text;
		text = end ? end + 2 : NULL;
	}
	return n;
}

/* argN for all marks, or one argN for each mark. */
static void set_keys(struct interval *i, char *text, const char *spec)
{
	unsigned int most = i->kind == USDT ? MOST_ARGUMENTS : FUNCTION_ARGUMENTS, n;
	char *of[MARKS], *end;

	n = words(text, of, spec);
	if (n != 1 && n != i->n_marks)
		not_understood(spec);
	for (unsigned int k = 0; k < i->n_marks; k++) {
		const char *word = of[n == 1 ? 0 : k];
		unsigned long number;

		if (strncmp(word, "arg", 3) || word[3] < '0' || word[3] > '9')
			not_understood(spec);
		number = strtoul(word + 3, &end, 10);
		if (*end || number >= most)
			fail(EXIT_USAGE, forms, "--interval %s: arguments are arg0 to arg%u", spec,
			     most - 1);
		i->keys[k] = number + 1;
	}
}

void intervals_add(const char *spec)
{
	struct interval *i = &intervals[n_intervals];
	char *text = strdup(spec), *keys;

	if (!text)
		fail(EXIT_OUTPUT, "free some memory", "out of memory");
	if (n_intervals == NSR_INTERVALS)
		fail(EXIT_USAGE, "record them in turn", "more than %d intervals", NSR_INTERVALS);
	if (!strchr(text, ':'))
		not_understood(spec);
	i->file = strchr(text, ':') + 1;
	n_intervals++;
	if (!strncmp(text, "timer:", 6)) {
		i->kind = TIMER;
		if (!*i->file)
			not_understood(spec);
		return;
	}
	if (strncmp(text, "usdt:", 5) && strncmp(text, "uprobe:", 7))
		not_understood(spec);
	i->kind = text[1] == 's' ? USDT : FUNCTION;
	keys = strstr(i->file, ",arg");
	if (keys)
		*keys++ = 0;
	i->n_marks = words(cut(i->file, ':', spec), i->marks, spec);
	if (i->n_marks < 2)
		not_understood(spec);
	if (i->kind == USDT)
		i->provider = cut(i->file, ':', spec);
	if (keys)
		set_keys(i, keys, spec);
}

static bool any(int kind)
{
	for (unsigned int i = 0; i < n_intervals; i++)
		if ((int)intervals[i].kind == kind)
			return true;
	return false;
}

void intervals_choose(struct nsight_collect_bpf *skel)
{
	struct bpf_program *of_timers[] = {
		skel->progs.on_timer_expires,
		skel->progs.on_timer_expired,
		skel->progs.on_timer_wakes,
		skel->progs.on_timers_thread_runs,
	};

	bpf_program__set_autoload(skel->progs.on_usdt_mark, any(USDT));
	bpf_program__set_autoload(skel->progs.on_function_mark, any(FUNCTION));
	for (size_t i = 0; i < sizeof(of_timers) / sizeof(*of_timers); i++)
		bpf_program__set_autoload(of_timers[i], any(TIMER));
	/* Maps that no program uses are not needed, and the kernel may not support them. */
	if (!any(USDT) && !any(FUNCTION)) {
		bpf_map__set_autocreate(skel->maps.begun, false);
		bpf_map__set_autocreate(skel->maps.begun_keys, false);
	}
	if (!any(TIMER)) {
		bpf_map__set_autocreate(skel->maps.firing, false);
		bpf_map__set_autocreate(skel->maps.timer_woke, false);
	}
	for (unsigned int i = 0; i < n_intervals; i++) {
		struct nsr_timers *of = &skel->bss->timers[i];
		char *end;

		if (intervals[i].kind != TIMER)
			continue;
		of->pid = strtoul(intervals[i].file, &end, 10);
		if (*end) /* a name that begins with digits */
			of->pid = 0;
		snprintf(of->comm, sizeof(of->comm), "%s", of->pid ? "" : intervals[i].file);
	}
}

static struct bpf_link *attach(struct nsight_collect_bpf *skel, const struct interval *interval,
			       const char *mark, uint64_t cookie)
{
	LIBBPF_OPTS(bpf_usdt_opts, usdt, .usdt_cookie = cookie);
	LIBBPF_OPTS(bpf_uprobe_opts, function, .bpf_cookie = cookie, .func_name = mark);

	if (interval->kind == USDT)
		return bpf_program__attach_usdt(skel->progs.on_usdt_mark, -1, interval->file,
						interval->provider, mark, &usdt);
	return bpf_program__attach_uprobe_opts(skel->progs.on_function_mark, -1, interval->file, 0,
					       &function);
}

static void attach_marks(struct nsight_collect_bpf *skel, unsigned int number)
{
	const struct interval *i = &intervals[number];
	const char *of = i->kind == USDT ? i->provider : "";

	for (unsigned int k = 0; k < i->n_marks; k++) {
		int which = !k			  ? NSR_MARK_BEGIN
			    : k + 1 == i->n_marks ? NSR_MARK_END
						  : NSR_MARK_HANDOVER;

		if (attach(skel, i, i->marks[k], NSR_COOKIE(number, which, i->keys[k])))
			continue;
		fail(EXIT_REFUSED,
		     i->kind == USDT ? "readelf -n FILE lists the marks (stapsdt) that it has"
				     : "nm FILE lists its functions, nm -D those of a library",
		     "%s: no probe at %s%s%s: %s", i->file, of, *of ? ":" : "", i->marks[k],
		     strerror(errno));
	}
}

void intervals_attach(struct nsight_collect_bpf *skel)
{
	for (unsigned int i = 0; i < n_intervals; i++)
		if (intervals[i].kind != TIMER)
			attach_marks(skel, i);
}

void intervals_print(const struct rings *rings)
{
	for (unsigned int i = 0; i < n_intervals; i++) {
		uint64_t begun = 0, again = 0, alone = 0, unpaired = 0;

		for (int k = 0; k < rings->n; k++) {
			begun += rings->of[k].control->intervals[i].begun;
			again += rings->of[k].control->intervals[i].again;
			alone += rings->of[k].control->intervals[i].alone;
			unpaired += rings->of[k].control->intervals[i].unpaired;
		}
		printf("interval %u %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", i, begun,
		       again, alone, unpaired);
	}
}
