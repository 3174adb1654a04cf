// SPDX-License-Identifier: GPL-2.0-only
#include "programs.h"

#include <bpf/bpf.h>
#include <inttypes.h>
#include <stdio.h>

/* All 0 where the program was not loaded, or the kernel says nothing. */
static struct bpf_prog_info info_of(const struct bpf_program *program)
{
	struct bpf_prog_info info = {0};
	uint32_t size = sizeof(info);
	int fd = bpf_program__fd(program);

	if (fd < 0 || bpf_obj_get_info_by_fd(fd, &info, &size))
		return (struct bpf_prog_info){0};
	return info;
}

uint64_t programs_run_ns(struct bpf_object *object)
{
	struct bpf_program *program;
	uint64_t sum = 0;

	bpf_object__for_each_program(program, object) sum += info_of(program).run_time_ns;
	return sum;
}

uint64_t programs_missed(struct bpf_object *object)
{
	struct bpf_program *program;
	uint64_t sum = 0;

	bpf_object__for_each_program(program, object) sum += info_of(program).recursion_misses;
	return sum;
}

void programs_print_missed(struct bpf_object *object)
{
	struct bpf_program *program;
	uint64_t n;

	bpf_object__for_each_program(program, object)
	{
		n = info_of(program).recursion_misses;
		if (n)
			printf("missed %s %" PRIu64 "\n", bpf_program__name(program), n);
	}
}

void programs_print_missed_json(struct bpf_object *object)
{
	struct bpf_program *program;
	const char *comma = "";
	uint64_t n;

	putchar('{');
	bpf_object__for_each_program(program, object)
	{
		n = info_of(program).recursion_misses;
		if (!n)
			continue;
		printf("%s\"%s\":%" PRIu64, comma, bpf_program__name(program), n);
		comma = ",";
	}
	putchar('}');
}

void programs_print_cost(struct bpf_object *object)
{
	struct bpf_program *program;
	const char *comma = "";

	putchar('{');
	bpf_object__for_each_program(program, object)
	{
		struct bpf_prog_info info = info_of(program);

		if (bpf_program__fd(program) < 0)
			continue;
		printf("%s\"%s\":{\"runs\":%" PRIu64 ",\"ns\":%" PRIu64 "}", comma,
		       bpf_program__name(program), (uint64_t)info.run_cnt,
		       (uint64_t)info.run_time_ns);
		comma = ",";
	}
	putchar('}');
}
