// SPDX-License-Identifier: GPL-2.0-only
/*
 * Notes steal time as often as the first argument says, at the times 1, 2, ..., and writes what was
 * kept since the time in the second one. Prints the entries written and the ns that lack some.
 */
#include "threads.c"

static struct steal steal;
static uint64_t written;

int main(int argc, char **argv)
{
	uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
	uint64_t since = argc > 2 ? strtoull(argv[2], NULL, 10) : 0, missing;
	struct output out = {0};
	struct look look = {.steal = &steal};

	for (look.now = 1; look.now <= n; look.now++)
		compare(0, look.now * 10, &look);
	missing = steal_write(&steal, &out, since);
	printf("%" PRIu64 " %" PRIu64 "\n", written, missing);
	return 0;
}

bool output_block(struct output *out, enum nsr_block_kind kind, const void *data, size_t bytes,
		  uint64_t time, uint64_t number)
{
	(void)out, (void)kind, (void)data, (void)time, (void)number;
	written += bytes / NSR_UNIT;
	return true;
}
