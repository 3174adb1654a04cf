// SPDX-License-Identifier: GPL-2.0-only
/* Names for numbers in records. */
#include "raw_events.h"

#include <stdio.h>

/* Numbers of x86's vectors (arch/x86/include/asm/irq_vectors.h), as the tracepoints print them */
static const struct {
	const char *name;
	int number;
} vectors[NSR_N_VECTORS] = {
	[NSR_LOCAL_TIMER] = {"local_timer", 0xec},
	[NSR_RESCHEDULE] = {"reschedule", 0xfd},
	[NSR_CALL_FUNCTION] = {"call_function", 0xfc},
	[NSR_CALL_FUNCTION_SINGLE] = {"call_function_single", 0xfb},
};

void raw_name_vectors(struct merge *m)
{
	for (int i = 0; i < NSR_N_VECTORS; i++)
		m->vector_names[i] =
			strings_intern(&m->rec->strings, vectors[i].name, STRINGS_MAX_LEN);
}

int raw_vector_number(uint32_t vector)
{
	return vectors[vector].number;
}

uint32_t raw_irq_name(struct raw_recording *rec, uint32_t number)
{
	uint32_t *name = &rec->irq_names[number];
	char text[32];

	if (!*name) {
		snprintf(text, sizeof(text), "irq %u", number);
		*name = strings_intern(&rec->strings, text, sizeof(text));
	}
	return *name;
}

uint32_t raw_reader_name(struct raw_recording *rec, uint32_t port)
{
	uint32_t *name = &rec->reader_names[port];
	char text[32] = "left out";

	if (!*name && port & 0xffff)
		snprintf(text, sizeof(text), "port %u", port & 0xffff);
	if (!*name)
		*name = strings_intern(&rec->strings, text, sizeof(text));
	return *name;
}
