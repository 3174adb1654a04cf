/* SPDX-License-Identifier: GPL-2.0-only */
/* What became of packets, as the points' programs counted it. */
#ifndef NSIGHT_COUNTS_H
#define NSIGHT_COUNTS_H

#include <stdint.h>

/* Print the counts of this map, of all cores together, as JSON. */
void counts_print(int map, char *to, uint32_t bytes);

#endif
