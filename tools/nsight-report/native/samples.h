/* SPDX-License-Identifier: GPL-2.0-only */
/* PERF_RECORD_SAMPLE of tracepoints. */
#ifndef NSIGHT_SAMPLES_H
#define NSIGHT_SAMPLES_H

#include "decoded_events.h"
#include "perf_file.h"
#include "string_table.h"

/* Decode one sample; p: the record's body, words u64s long. */
void sample_decode(struct perf_file *pf, struct decoded *out, const unsigned char *p, size_t words,
		   struct strings *strings);

#endif
