/* SPDX-License-Identifier: GPL-2.0-only */
/* The records of a perf.data file. */
#ifndef NSIGHT_RECORDS_H
#define NSIGHT_RECORDS_H

#include "decoded_events.h"
#include "perf_file.h"
#include "string_table.h"

void records_read(struct perf_file *pf, struct strings *strings, bool wide, struct decoded *out);

#endif
