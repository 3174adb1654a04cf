/* SPDX-License-Identifier: GPL-2.0-only */
/* Merges the records of all cores by time. */
#ifndef NSIGHT_RAW_MERGE_H
#define NSIGHT_RAW_MERGE_H

#include "raw_events.h"

/* Write the events of all files in order of time, first the threads that existed already. */
void raw_write_events(struct raw_recording *rec, FILE *out);

#endif
