/* SPDX-License-Identifier: GPL-2.0-only */
/* Copies from the programs' ring buffer to the file DIR/capsules. */
#ifndef NSIGHT_SPOOL_H
#define NSIGHT_SPOOL_H

#include <stdint.h>

struct spool {
	uint64_t written, unwritten; /* records; unwritten: those that could not be written to
				      * the disk */
};

/* Make DIR/capsules, which must not exist yet, and read the ring of this descriptor. */
void spool_open(const char *dir, int ring, uint16_t session);
/* Write new records. */
void spool_take(void);
/* Write the rest. */
struct spool spool_close(void);

#endif
