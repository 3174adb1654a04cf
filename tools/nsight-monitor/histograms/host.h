/* SPDX-License-Identifier: GPL-2.0-only */
/* Which stages this kernel has. */
#ifndef NSIGHT_MONITOR_HOST_H
#define NSIGHT_MONITOR_HOST_H

#include "stages.h"

#include <bpf/libbpf.h>
#include <stdint.h>
#include <stdio.h>

struct host {
	char missing[N_STAGES][128]; /* what the kernel lacks for a stage; "": nothing */
	bool has_cast;		     /* bpf_rdonly_cast() */
	bool has_probes;	     /* at functions */
	int cgroup; /* its program serves instead of the probes, at a higher cost; -1: none does */
};

/* Exits if the kernel does not describe its types. */
void host_look(struct host *host, bool no_probes);
/* 1 << stage for each stage that the kernel has */
uint32_t host_stages(const struct host *host);
/* Those that are measured only if named on this kernel */
uint32_t host_stages_by_name(const struct host *host);
/* Load only programs that some of the stages need. */
void host_choose_programs(const struct host *host, struct bpf_object *object, uint32_t stages);
/* Print as members of a JSON object. */
void host_print(const struct host *host, uint32_t chosen, FILE *to);

#endif
