// SPDX-License-Identifier: GPL-2.0-only
/*
 * Each step lies between two marks. In each step, this thread touches new memory: 512 pages in
 * every eighth step, 32 in the others. It prints a line for each step: the step's number, the
 * thread, and the page faults that the kernel counted.
 */
#include <nsight/interval.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static long faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_minflt;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 0;
	long *found = calloc(n, sizeof(*found));
	long tid = syscall(SYS_gettid);

	for (int i = 0; i < n; i++) {
		size_t bytes = (i % 8 == 7 ? 512 : 32) * 4096;
		char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (memory == MAP_FAILED || madvise(memory, bytes, MADV_NOHUGEPAGE))
			return 1;
		found[i] = -faults();
		NSIGHT_BEGIN(step);
		for (size_t k = 0; k < bytes; k += 4096)
			memory[k] = 1;
		NSIGHT_END(step);
		found[i] += faults();
		munmap(memory, bytes);
	}
	for (int i = 0; i < n; i++)
		printf("%d %ld %ld\n", i, tid, found[i]);
	return 0;
}
