/* SPDX-License-Identifier: GPL-2.0-only */
/* The formats of a recording's tracepoints, which define how their samples are read. */
#ifndef NSIGHT_FORMATS_H
#define NSIGHT_FORMATS_H

#include "perf_file.h"
#include "string_table.h"

struct formats {
	uint64_t n_formats; /* read from the file or the directory */
	uint64_t n_broken;  /* formats that could not be read */
	uint64_t truncated; /* tracing data could not be read to its end */
};

/*
 * Set evt->plan for every useful tracepoint event of pf (with wide: also those of
 * tracepoint_fields.h). Formats come from pf's tracing data, and missing ones from dir/SYSTEM/EVENT
 * (copies of tracefs' format files; dir may be NULL).
 */
void formats_resolve(struct perf_file *pf, const char *dir, struct strings *strings, bool wide,
		     struct formats *out);

#endif
