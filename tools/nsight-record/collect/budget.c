// SPDX-License-Identifier: GPL-2.0-only
#include "budget.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <unistd.h>

#define EVERY_NS 60000000000ull
#define FOR_NS	 1000000000ull

/* ns that the programs have run while the kernel measured it */
static uint64_t run_ns(struct bpf_object *object)
{
	struct bpf_program *program;
	uint64_t sum = 0;

	bpf_object__for_each_program(program, object)
	{
		struct bpf_prog_info info = {0};
		uint32_t size = sizeof(info);
		int fd = bpf_program__fd(program);

		if (fd >= 0 && !bpf_obj_get_info_by_fd(fd, &info, &size))
			sum += info.run_time_ns;
	}
	return sum;
}

void budget_begin(struct budget *budget, struct bpf_object *object, uint64_t now)
{
	*budget = (struct budget){.object = object, .next = now + FOR_NS, .stats = -1};
}

bool budget_look(struct budget *budget, uint64_t now, double *share)
{
	if (now < budget->next)
		return false;
	if (budget->stats < 0) {
		/* Measuring costs every program some 20 ns, so it is not always on. */
		budget->stats = bpf_enable_stats(BPF_STATS_RUN_TIME);
		budget->run_ns = run_ns(budget->object);
		budget->began = now;
		budget->next = now + (budget->stats < 0 ? EVERY_NS : FOR_NS);
		return false;
	}
	*share = (double)(run_ns(budget->object) - budget->run_ns) / (now - budget->began);
	close(budget->stats);
	budget->stats = -1;
	budget->next = now + EVERY_NS;
	return true;
}
