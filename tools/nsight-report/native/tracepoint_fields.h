/* SPDX-License-Identifier: GPL-2.0-only */
/* Tracepoints and records from which struct nsight_wide is made, and the fields that it uses. */
#ifndef NSIGHT_TRACEPOINT_FIELDS_H
#define NSIGHT_TRACEPOINT_FIELDS_H

#include "decoded_events.h"
#include "perf_file.h"
#include "plans.h"

/* The plan of such a tracepoint; NULL: it is none, or lacks a field, as evt->fate shows. */
const struct plan *wide_plan(const struct format *format, struct perf_evt *evt);
void wide_decode(struct decoded *out, const struct plan *plan, const struct sample_id *id,
		 const unsigned char *raw, uint32_t raw_len);
/* The clock of a PERF_RECORD_TIME_CONV, if it has one; p: the record's body. */
void wide_clock(struct decoded *out, const unsigned char *p, size_t words);

#endif
