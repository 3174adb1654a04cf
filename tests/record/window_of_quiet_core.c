// SPDX-License-Identifier: GPL-2.0-only
/*
 * The window of the last second of a core that wrote one record, as many ns ago as the argument
 * says, and has been idle since. Prints the types of its records, and how long an idle state took.
 */
#include "window.c"

#define NOW    (1ull << 50)
#define SECOND 1000000000ull
#define SHIFT  12

static uint64_t ring[(NSR_UNIT / 8) << SHIFT];

int main(int argc, char **argv)
{
	uint64_t ago = argc > 1 ? strtoull(argv[1], NULL, 10) : 0, then = NOW - ago;
	struct nsr_control control = {.head = 1, .idle = then};
	struct ring of = {.control = &control, .data = (unsigned char *)ring};
	struct rings rings = {.of = &of, .n = 1, .mask = (1 << SHIFT) - 1, .shift = SHIFT};

	ring[0] = then << 16 | 0x80 << 8 | NSR_SWITCH;
	window_note(&rings, then);
	window_note(&rings, NOW);
	window_write(&rings, NULL, NOW - SECOND);
	return 0;
}

bool output_block(struct output *out, enum nsr_block_kind kind, const void *data, size_t bytes,
		  uint64_t time, uint64_t number)
{
	const uint64_t *word = data;

	for (size_t i = 0; kind == NSR_RECORDS && i < bytes / NSR_UNIT; i++)
		printf("%llu %llu\n", (unsigned long long)(word[2 * i] & 0xff),
		       (unsigned long long)(word[2 * i + 1] & ((1ull << NSR_DUR_BITS) - 1)));
	(void)out, (void)time, (void)number;
	return true;
}

struct output *output_open(uint32_t cpu)
{
	struct output *out = calloc(1, sizeof(*out));

	out->cpu = cpu;
	return out;
}

void output_close(struct output *out)
{
	(void)out;
}

void output_counts(struct output *out, const struct nsr_control *control, enum nsr_block_kind kind,
		   uint64_t time)
{
	(void)out, (void)control, (void)kind, (void)time;
}

void threads_were_there(struct output *out, uint64_t now)
{
	(void)out, (void)now;
}

uint64_t steal_write(struct steal *steal, struct output *out, uint64_t since)
{
	(void)steal, (void)out, (void)since;
	return 0;
}

uint64_t monotonic_ns(void)
{
	return NOW;
}
