// SPDX-License-Identifier: GPL-2.0-only
/* struct perf_event_mmap_page, time_mult and following fields: see
 * include/uapi/linux/perf_event.h. */
#include <linux/perf_event.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "perf_clock.h"

bool perf_clock_read(struct perf_clock *c)
{
	/* A dummy event of this process counts nothing; it is opened for its page. */
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_DUMMY,
		.exclude_kernel = 1,
		.exclude_hv = 1,
	};
	long size = sysconf(_SC_PAGESIZE);
	volatile struct perf_event_mmap_page *page;
	uint32_t seq;
	bool have;
	int fd;

	fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (fd < 0)
		return false;
	page = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (page == MAP_FAILED)
		return false;
	do {
		seq = page->lock;
		atomic_thread_fence(memory_order_acquire);
		have = page->cap_user_time_zero;
		c->mult = page->time_mult;
		c->shift = page->time_shift;
		c->zero = page->time_zero;
		atomic_thread_fence(memory_order_acquire);
	} while (page->lock != seq || (seq & 1));
	munmap((void *)page, size);
	return have;
}
