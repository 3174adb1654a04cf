// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-rawdata. The input is a directory's files one after the other: irqs.tsv, which may be
 * absent, then up to three that begin with the magic of record files: of core 0, of core 1, of
 * the machine. Bytes that an insertion moves stay in their file.
 */
#include "restart.h"

#include "../../../tools/bpf/record.h"
#include "stamps.h"

#include <string.h>

static const uint8_t *next_file(const uint8_t *p, const uint8_t *end)
{
	const uint8_t *found = p < end ? memmem(p, end - p, NSR_MAGIC, 8) : NULL;

	return found ? found : end;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const names[] = {"cpu-0.records", "cpu-1.records", "machine.records"};
	char *argv[] = {"nsight-rawdata", "/records", "/out", NULL};
	const uint8_t *end = data + size, *p = next_file(data, end);

	restart_no_files();
	if (p > data)
		restart_file("irqs.tsv", data, p - data);
	for (int i = 0; i < 3 && p < end; i++) {
		const uint8_t *next = i < 2 ? next_file(p + 8, end) : end;

		restart_file(names[i], p, next - p);
		p = next;
	}
	if (!restart_run(argv))
		return 0;
	restart_check_events(restart_written("perf-events.bin"));
	if (restart_written("messages.bin").size % sizeof(struct nsight_stamp))
		restart_broken("a part of a stamp");
	return 0;
}
