// SPDX-License-Identifier: GPL-2.0-only
#include "intervals.h"

#include "../../bpf/flight.h"
#include "nsight-collect.skel.h"
#include "output.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char forms[] = "write usdt:FILE:PROVIDER:MARK..MARK or uprobe:FILE:FUNCTION..FUNCTION";

static struct interval {
	bool is_usdt;
	char *file, *provider, *marks[2];
} intervals[NSR_INTERVALS];
static unsigned int n_intervals;

/* What is behind the last separator, which ends what is before it; exits if there is none. */
static char *cut(char *text, const char *separator, const char *spec)
{
	char *at = NULL, *next = text;

	while ((next = strstr(next, separator)))
		at = next++;
	if (!at || at == text || !at[strlen(separator)])
		fail(EXIT_USAGE, forms, "--interval %s is not understood", spec);
	*at = 0;
	return at + strlen(separator);
}

void intervals_add(const char *spec)
{
	struct interval *i = &intervals[n_intervals];
	char *text = strdup(spec);

	if (!text)
		fail(EXIT_OUTPUT, "free some memory", "out of memory");
	if (n_intervals == NSR_INTERVALS)
		fail(EXIT_USAGE, "record them in turn", "more than %d intervals", NSR_INTERVALS);
	i->is_usdt = !strncmp(text, "usdt:", 5);
	if (!i->is_usdt && strncmp(text, "uprobe:", 7))
		fail(EXIT_USAGE, forms, "--interval %s is not understood", spec);
	i->file = strchr(text, ':') + 1;
	i->marks[1] = cut(i->file, "..", spec);
	i->marks[0] = cut(i->file, ":", spec);
	if (i->is_usdt)
		i->provider = cut(i->file, ":", spec);
	n_intervals++;
}

void intervals_choose(struct nsight_collect_bpf *skel)
{
	bool usdt = false, function = false;

	for (unsigned int i = 0; i < n_intervals; i++) {
		usdt |= intervals[i].is_usdt;
		function |= !intervals[i].is_usdt;
	}
	bpf_program__set_autoload(skel->progs.on_usdt_mark, usdt);
	bpf_program__set_autoload(skel->progs.on_function_mark, function);
	if (n_intervals)
		return;
	/* Of maps that no program uses there is no need, nor may the kernel know them. */
	bpf_map__set_autocreate(skel->maps.begun, false);
}

static struct bpf_link *attach(struct nsight_collect_bpf *skel, const struct interval *interval,
			       const char *mark, uint64_t cookie)
{
	LIBBPF_OPTS(bpf_usdt_opts, usdt, .usdt_cookie = cookie);
	LIBBPF_OPTS(bpf_uprobe_opts, function, .bpf_cookie = cookie, .func_name = mark);

	if (interval->is_usdt)
		return bpf_program__attach_usdt(skel->progs.on_usdt_mark, -1, interval->file,
						interval->provider, mark, &usdt);
	return bpf_program__attach_uprobe_opts(skel->progs.on_function_mark, -1, interval->file, 0,
					       &function);
}

void intervals_attach(struct nsight_collect_bpf *skel)
{
	for (unsigned int i = 0; i < n_intervals; i++)
		for (int end = 0; end < 2; end++) {
			const char *mark = intervals[i].marks[end];
			const char *of = intervals[i].is_usdt ? intervals[i].provider : "";

			if (attach(skel, &intervals[i], mark, 2 * i + end))
				continue;
			fail(EXIT_REFUSED,
			     intervals[i].is_usdt
				     ? "readelf -n FILE lists the marks (stapsdt) that it has"
				     : "nm FILE lists its functions, nm -D those of a library",
			     "%s: no probe at %s%s%s: %s", intervals[i].file, of, *of ? ":" : "",
			     mark, strerror(errno));
		}
}

void intervals_print(const struct rings *rings)
{
	for (unsigned int i = 0; i < n_intervals; i++) {
		uint64_t begun = 0, again = 0, alone = 0;

		for (int k = 0; k < rings->n; k++) {
			begun += rings->of[k].control->intervals[i].begun;
			again += rings->of[k].control->intervals[i].again;
			alone += rings->of[k].control->intervals[i].alone;
		}
		printf("interval %u %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", i, begun, again, alone);
	}
}
