// SPDX-License-Identifier: GPL-2.0-only
#include "budget.h"

#include "programs.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <unistd.h>

#define EVERY_NS 60000000000ull
#define FOR_NS	 1000000000ull

void budget_begin(struct budget *budget, struct bpf_object *object, uint64_t now)
{
	*budget = (struct budget){.object = object, .next = now + FOR_NS, .stats = -1};
}

bool budget_look(struct budget *budget, uint64_t now, double *share)
{
	if (now < budget->next)
		return false;
	if (budget->stats < 0) {
		/* The measurement costs every program some 20 ns, so it is not always on. */
		budget->stats = bpf_enable_stats(BPF_STATS_RUN_TIME);
		budget->run_ns = programs_run_ns(budget->object);
		budget->began = now;
		budget->next = now + (budget->stats < 0 ? EVERY_NS : FOR_NS);
		return false;
	}
	*share = (double)(programs_run_ns(budget->object) - budget->run_ns) / (now - budget->began);
	close(budget->stats);
	budget->stats = -1;
	budget->next = now + EVERY_NS;
	return true;
}
