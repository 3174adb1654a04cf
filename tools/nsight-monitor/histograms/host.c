// SPDX-License-Identifier: GPL-2.0-only
#include "host.h"

#include "arguments.h"

#include <bpf/btf.h>
#include <string.h>

static const struct {
	const char *name, *from, *to, *tracepoints, *field, *earlier;
} stages[] = {
#define X(id, name, from, to, tracepoints, field, ...)                                             \
	[STAGE_##id] = {name, from, to, tracepoints, field, "" __VA_ARGS__},
	STAGES(X)
#undef X
};

static const struct {
	const char *name, *from, *to, *missing;
} absent[] = {
#define X(name, from, to, missing) {name, from, to, missing},
	ABSENT_STAGES(X)
#undef X
};

static bool has_tracepoint(const struct btf *kernel, const char *name)
{
	char type[128];

	snprintf(type, sizeof(type), "btf_trace_%s", name);
	return btf__find_by_name_kind(kernel, type, BTF_KIND_TYPEDEF) >= 0;
}

static bool has_member(const struct btf *kernel, const struct btf_type *type, const char *name)
{
	const struct btf_member *m = btf_members(type);

	for (int i = 0; i < btf_vlen(type); i++) {
		const char *of = btf__name_by_offset(kernel, m[i].name_off);
		const struct btf_type *inner = btf__type_by_id(kernel, m[i].type);

		if (!strcmp(of, name))
			return true;
		if (!*of && btf_is_composite(inner) && has_member(kernel, inner, name))
			return true;
	}
	return false;
}

static bool has_field(const struct btf *kernel, const char *name)
{
	const char *of = strcmp(name, "sched_info") ? "sk_buff" : "task_struct";
	int id = btf__find_by_name_kind(kernel, of, BTF_KIND_STRUCT);

	return id >= 0 && has_member(kernel, btf__type_by_id(kernel, id), name);
}

void host_look(struct host *host)
{
	struct btf *kernel = btf__load_vmlinux_btf();

	if (!kernel)
		fail(EXIT_REFUSED, "use a kernel with CONFIG_DEBUG_INFO_BTF",
		     "this kernel does not describe its types (/sys/kernel/btf/vmlinux)");
	for (int i = 0; i < N_STAGES; i++) {
		char names[256], *missing = host->missing[i];

		*missing = 0;
		snprintf(names, sizeof(names), "%s", stages[i].tracepoints);
		for (char *name = strtok(names, " "); name; name = strtok(NULL, " "))
			if (!*missing && !has_tracepoint(kernel, name))
				snprintf(missing, sizeof(host->missing[i]), "tracepoint %s", name);
		if (!*missing && *stages[i].field && !has_field(kernel, stages[i].field) &&
		    !(*stages[i].earlier && has_field(kernel, stages[i].earlier)))
			snprintf(missing, sizeof(host->missing[i]), "the kernel's field %s",
				 stages[i].field);
	}
	host->has_cast = btf__find_by_name_kind(kernel, "bpf_rdonly_cast", BTF_KIND_FUNC) >= 0;
	btf__free(kernel);
}

uint32_t host_stages(const struct host *host)
{
	uint32_t mask = 0;

	for (int i = 0; i < N_STAGES; i++)
		if (!*host->missing[i])
			mask |= 1u << i;
	return mask;
}

static bool is_needed(const char *tracepoint, uint32_t chosen)
{
	for (int i = 0; i < N_STAGES; i++) {
		char names[256];

		if (!(chosen & 1u << i))
			continue;
		snprintf(names, sizeof(names), "%s", stages[i].tracepoints);
		for (char *name = strtok(names, " "); name; name = strtok(NULL, " "))
			/* For packets over a virtual device, the sender knows when they arrived. */
			if (!strcmp(name, tracepoint) ||
			    (!strcmp(name, "netif_receive_skb") &&
			     !strcmp(tracepoint, "net_dev_start_xmit")))
				return true;
	}
	return false;
}

void host_choose_programs(struct bpf_object *object, uint32_t chosen)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, object)
	{
		const char *name = strchr(bpf_program__section_name(program), '/') + 1;

		bpf_program__set_autoload(program, is_needed(name, chosen));
	}
}

void host_print(const struct host *host, uint32_t chosen, FILE *to)
{
	fputs("\"stages\":[", to);
	for (int i = 0; i < N_STAGES; i++)
		fprintf(to,
			"%s{\"name\":\"%s\",\"from\":\"%s\",\"to\":\"%s\",\"missing\":\"%s\","
			"\"measured\":%s}",
			i ? "," : "", stages[i].name, stages[i].from, stages[i].to,
			host->missing[i], chosen & 1u << i ? "true" : "false");
	for (size_t i = 0; i < sizeof(absent) / sizeof(*absent); i++)
		fprintf(to,
			",{\"name\":\"%s\",\"from\":\"%s\",\"to\":\"%s\",\"missing\":\"%s\","
			"\"measured\":false}",
			absent[i].name, absent[i].from, absent[i].to, absent[i].missing);
	fputs("]", to);
}
