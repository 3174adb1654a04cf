// SPDX-License-Identifier: GPL-2.0-only
#include "counts.h"
#include "../../bpf/capsule.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

static const char *const count_names[] = {
	[NSC_C_DRAWN] = "drawn",
	[NSC_C_BORN] = "born",
	[NSC_C_SKIP_MTU] = "skip_mtu",
	[NSC_C_SKIP_GSO] = "skip_gso",
	[NSC_C_SKIP_FRAGMENT] = "skip_fragment",
	[NSC_C_SKIP_MULTICAST] = "skip_multicast",
	[NSC_C_SKIP_PADDED] = "skip_padded",
	[NSC_C_SKIP_TUNNEL] = "skip_tunnel",
	[NSC_C_SKIP_MEMORY] = "skip_memory",
	[NSC_C_SKIP_ROOM] = "skip_room",
	[NSC_C_STAMPED] = "stamped",
	[NSC_C_DUMPED] = "dumped",
	[NSC_C_DUMP_LOST] = "dump_lost",
	[NSC_C_CAME] = "came",
	[NSC_C_ENDED] = "ended",
	[NSC_C_END_LOST] = "end_lost",
	[NSC_C_LEFT] = "left",
	[NSC_C_LEFT_LOST] = "left_lost",
	[NSC_C_COPIES] = "copies",
	[NSC_C_FOREIGN] = "foreign",
	[NSC_C_FORGED] = "forged",
	[NSC_C_NOT_WRITTEN] = "not_written",
	[NSC_C_NOT_STRIPPED] = "not_stripped",
	[NSC_C_TAKEN_OFF] = "taken_off",
	[NSC_C_MATCHED] = "matched",
	[NSC_C_MATCH_LOST] = "match_lost",
	[NSC_C_UNMATCHABLE] = "unmatchable",
	[NSC_C_ENDED_AGAIN] = "ended_again",
	[NSC_C_WENT_ON] = "went_on",
};

static uint64_t sum_of_cores(int map, uint32_t key)
{
	int cpus = libbpf_num_possible_cpus();
	uint64_t values[cpus > 0 ? cpus : 1], sum = 0;

	if (cpus <= 0 || bpf_map_lookup_elem(map, &key, values))
		return 0;
	for (int i = 0; i < cpus; i++)
		sum += values[i];
	return sum;
}

void counts_print(int map, char *to, uint32_t bytes)
{
	uint32_t at = snprintf(to, bytes, "{");
	bool more = false;

	for (uint32_t point = 0; point < NSC_POINTS; point++) {
		bool any = false;

		for (uint32_t what = 0; what < NSC_N_COUNTS; what++) {
			uint64_t n = sum_of_cores(map, point * NSC_N_COUNTS + what);

			if (!n || at + 64 > bytes)
				continue;
			if (!any)
				at += snprintf(to + at, bytes - at, "%s\"%u\": {", more ? ", " : "",
					       point);
			at += snprintf(to + at, bytes - at, "%s\"%s\": %" PRIu64, any ? ", " : "",
				       count_names[what], n);
			any = more = true;
		}
		if (any)
			at += snprintf(to + at, bytes - at, "}");
	}
	snprintf(to + at, bytes - at, "}");
}
