/* SPDX-License-Identifier: GPL-2.0-only */
/* Tracepoints from which contexts are made, and their fields that go into struct nsight_event. */
#ifndef NSIGHT_EVENT_FIELDS_H
#define NSIGHT_EVENT_FIELDS_H

#include "decoded_events.h"
#include "perf_file.h"
#include "plans.h"
#include "string_table.h"

/* The plan of such a tracepoint; NULL: it is none, or lacks a field. evt->fate shows which. */
const struct plan *event_plan(const struct format *format, struct perf_evt *evt,
			      struct strings *strings);
void event_decode(struct decoded *out, const struct plan *plan, const struct sample_id *id,
		  const unsigned char *raw, uint32_t raw_len, struct strings *strings);

#endif
