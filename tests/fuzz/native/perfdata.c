// SPDX-License-Identifier: GPL-2.0-only
/* nsight-perfdata --wide. The input is a perf.data file. */
#include "restart.h"

#include "tracepoint_events.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *argv[] = {"nsight-perfdata", "--wide", "/nowhere/perf.data", "/out", NULL};

	restart_no_files();
	restart_file("perf.data", data, size);
	if (!restart_run(argv))
		return 0;
	restart_check_events(restart_written("perf-events.bin"));
	if (restart_written("perf-wide.bin").size % sizeof(struct nsight_wide))
		restart_broken("a part of an event");
	return 0;
}
