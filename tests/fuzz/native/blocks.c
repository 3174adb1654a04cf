// SPDX-License-Identifier: GPL-2.0-only
/*
 * The program's memory. Each block comes from AddressSanitizer and has a poisoned head that links
 * it to the others, so that all can be freed after a run.
 *
 * Large blocks are mapped from the kernel, so that only touched pages exist, and are reused:
 * AddressSanitizer would mark 200 MB for each run. They end at an inaccessible page, and become
 * inaccessible themselves once they are freed; the bytes before a block of odd size are not
 * checked.
 */
#include "intercept.h"
#include "restart.h"

#include <sanitizer/asan_interface.h>

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define AREA_LEAST (256u << 10)
#define N_AREAS	   16
#define PAGE	   4096u
#define ALIGNMENT  16u

struct head {
	struct head *next, **link; /* link: what points to this one */
};

struct area {
	unsigned char *base; /* NULL: none */
	size_t mapped;
	unsigned char *block; /* NULL: free */
	size_t size;
	unsigned char *end, *beyond; /* poisoned from end to beyond */
};

_Static_assert(sizeof(struct head) == ALIGNMENT, "blocks stay aligned");

static struct head *blocks;
static struct area areas[N_AREAS];

static void add(struct head *head)
{
	head->next = blocks;
	head->link = &blocks;
	if (blocks)
		blocks->link = &head->next;
	blocks = head;
	__asan_poison_memory_region(head, sizeof(*head));
}

static void take_out(struct head *head)
{
	__asan_unpoison_memory_region(head, sizeof(*head));
	*head->link = head->next;
	if (head->next)
		head->next->link = head->link;
}

static struct head *head_of(void *block)
{
	return (struct head *)block - 1;
}

static struct area *area_of(const void *block)
{
	for (size_t i = 0; i < N_AREAS; i++)
		if (areas[i].block && areas[i].block == block)
			return &areas[i];
	return NULL;
}

/* A free area of this size, else a place for a new one; NULL: all are used. */
static struct area *find_area(size_t mapped)
{
	struct area *other = NULL;

	for (size_t i = 0; i < N_AREAS; i++) {
		if (areas[i].block)
			continue;
		if (areas[i].mapped == mapped)
			return &areas[i];
		if (!other || !areas[i].base)
			other = &areas[i];
	}
	return other;
}

static void map(struct area *area, size_t mapped)
{
	if (area->base)
		munmap(area->base, area->mapped + PAGE);
	area->base = mmap(NULL, mapped + PAGE, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (area->base == MAP_FAILED)
		restart_broken("no address space");
	madvise(area->base, mapped, MADV_NOHUGEPAGE);
	area->mapped = mapped;
}

/* NULL: not that large, or too many areas */
static void *take_area(size_t size, bool zero)
{
	size_t mapped = (size + PAGE - 1) & -(size_t)PAGE;
	struct area *area = size < AREA_LEAST ? NULL : find_area(mapped);

	if (!area)
		return NULL;
	if (area->mapped != mapped)
		map(area, mapped);
	else if (zero)
		madvise(area->base, mapped, MADV_DONTNEED);
	mprotect(area->base, mapped, PROT_READ | PROT_WRITE);
	area->size = size;
	area->block = area->base + mapped - ((size + ALIGNMENT - 1) & -(size_t)ALIGNMENT);
	return area->block;
}

static void free_area(struct area *area)
{
	if (area->end)
		__asan_unpoison_memory_region(area->end, area->beyond - area->end);
	area->end = NULL;
	area->block = NULL;
	mprotect(area->base, area->mapped, PROT_NONE);
}

void blocks_end_at(unsigned char *end, size_t beyond)
{
	for (size_t i = 0; i < N_AREAS; i++) {
		struct area *area = &areas[i];

		if (!area->block || end < area->block || end >= area->block + area->size)
			continue;
		if ((size_t)(area->block + area->size - end) < beyond)
			beyond = area->block + area->size - end;
		if (area->end)
			__asan_unpoison_memory_region(area->end, area->beyond - area->end);
		area->end = end;
		area->beyond = end + beyond;
		__asan_poison_memory_region(end, beyond);
	}
}

void *fuzz_calloc(size_t n, size_t size)
{
	size_t bytes;
	void *p;

	if (__builtin_mul_overflow(n, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	p = take_area(bytes, true);
	if (p)
		return p;
	p = fuzz_reallocarray(NULL, 1, bytes);
	return p ? memset(p, 0, bytes) : NULL;
}

static void *move_area(struct area *area, size_t bytes)
{
	void *p = fuzz_reallocarray(NULL, 1, bytes);

	if (p)
		memcpy(p, area->block, area->size < bytes ? area->size : bytes);
	free_area(area);
	return p;
}

void *fuzz_reallocarray(void *p, size_t n, size_t size)
{
	struct area *area = area_of(p);
	struct head *head;
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 2) {
		errno = ENOMEM;
		return NULL;
	}
	if (area)
		return move_area(area, bytes);
	if (!p) {
		void *large = take_area(bytes, false);

		if (large)
			return large;
	} else {
		take_out(head_of(p));
	}
	head = realloc(p ? head_of(p) : NULL, sizeof(*head) + bytes);
	if (!head)
		restart_broken("out of memory");
	add(head);
	return head + 1;
}

void fuzz_free(void *p)
{
	struct area *area = area_of(p);

	if (area) {
		free_area(area);
	} else if (p) {
		take_out(head_of(p));
		free(head_of(p));
	}
}

void blocks_release(void)
{
	while (blocks)
		fuzz_free(blocks + 1);
	for (size_t i = 0; i < N_AREAS; i++)
		if (areas[i].block)
			free_area(&areas[i]);
}
