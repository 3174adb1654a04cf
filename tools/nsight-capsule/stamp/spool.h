/* SPDX-License-Identifier: GPL-2.0-only */
/* From the ring buffer of the programs to the file DIR/capsules. */
#ifndef NSIGHT_SPOOL_H
#define NSIGHT_SPOOL_H

#include <stdint.h>

struct spool {
	uint64_t written, unwritten; /* records; what the disk did not take */
};

/* Make DIR/capsules, which must not be there, and read the ring of this descriptor. */
void spool_open(const char *dir, int ring, uint16_t session);
/* Write what is new. */
void spool_take(void);
/* The rest. */
struct spool spool_close(void);

#endif
