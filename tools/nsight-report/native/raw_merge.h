/* SPDX-License-Identifier: GPL-2.0-only */
/* The records of all cores in one order of time. */
#ifndef NSIGHT_RAW_MERGE_H
#define NSIGHT_RAW_MERGE_H

#include "raw_events.h"

/* The events of all files in order of time; what was there before the recording comes first. */
void raw_write_events(struct raw_recording *rec, FILE *out);

#endif
