// SPDX-License-Identifier: GPL-2.0-only
#include "host.h"

#include "arguments.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <fcntl.h>
#include <mntent.h>
#include <string.h>
#include <unistd.h>

static const struct {
	const char *name, *from, *to, *tracepoints, *field, *earlier;
} stages[] = {
#define X(id, name, from, to, tracepoints, field, ...)                                             \
	[STAGE_##id] = {name, from, to, tracepoints, field, "" __VA_ARGS__},
	STAGES(X)
#undef X
};

static bool has_tracepoint(const struct btf *kernel, const char *name)
{
	char type[128];

	snprintf(type, sizeof(type), "btf_trace_%s", name);
	return btf__find_by_name_kind(kernel, type, BTF_KIND_TYPEDEF) >= 0;
}

/* A program that does nothing but return a value; -1: the kernel does not take it. */
static int load_nothing(enum bpf_prog_type type, const struct bpf_prog_load_opts *options,
			int returns)
{
	const struct bpf_insn nothing[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = returns},
		{.code = BPF_JMP | BPF_EXIT},
	};

	return bpf_prog_load(type, NULL, "GPL", nothing, sizeof(nothing) / sizeof(*nothing),
			     options);
}

/* Only a trial shows whether the kernel takes a program at a function: it may have been built
 * without function probes, or not permit them. */
static bool has_probe(const struct btf *kernel, const char *function)
{
	LIBBPF_OPTS(bpf_prog_load_opts, options, .expected_attach_type = BPF_TRACE_FENTRY);
	int id = btf__find_by_name_kind(kernel, function, BTF_KIND_FUNC), program, link;

	if (id < 0)
		return false;
	options.attach_btf_id = id;
	program = load_nothing(BPF_PROG_TYPE_TRACING, &options, 0);
	link = program < 0 ? -1 : bpf_raw_tracepoint_open(NULL, program);
	close(link);
	close(program);
	return link >= 0;
}

static int root_cgroup(void)
{
	FILE *mounts = setmntent("/proc/self/mounts", "r");
	struct mntent *mount;
	int fd = -1;

	while (mounts && fd < 0 && (mount = getmntent(mounts)))
		if (!strcmp(mount->mnt_type, "cgroup2"))
			fd = open(mount->mnt_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (mounts)
		endmntent(mounts);
	return fd;
}

/* The root control group, if a program there gets the packets of all sockets as the kernel
 * describes them (Linux 6.2); else -1. */
static int cgroup_of_sockets(const struct btf *kernel)
{
	int cgroup, program, link;

	if (btf__find_by_name_kind(kernel, "bpf_cast_to_kern_ctx", BTF_KIND_FUNC) < 0)
		return -1;
	cgroup = root_cgroup();
	if (cgroup < 0)
		return -1;
	program = load_nothing(BPF_PROG_TYPE_CGROUP_SKB, NULL, 1); /* 0 would drop packets */
	link = program < 0 ? -1 : bpf_link_create(program, cgroup, BPF_CGROUP_INET_INGRESS, NULL);
	close(program);
	if (link < 0) {
		close(cgroup);
		return -1;
	}
	close(link);
	return cgroup;
}

static bool is_function(const char *name)
{
	return strchr(name, '(');
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

void host_look(struct host *host, bool no_probes)
{
	struct btf *kernel = btf__load_vmlinux_btf();

	if (!kernel)
		fail(EXIT_MISSING, "use a kernel with CONFIG_DEBUG_INFO_BTF",
		     "this kernel does not describe its types (/sys/kernel/btf/vmlinux)");
	host->has_probes = !no_probes && !geteuid() && has_probe(kernel, "udp_rcv") &&
			   has_probe(kernel, "udpv6_rcv");
	host->cgroup = host->has_probes || geteuid() ? -1 : cgroup_of_sockets(kernel);
	for (int i = 0; i < N_STAGES; i++) {
		char names[256], *missing = host->missing[i];

		*missing = 0;
		snprintf(names, sizeof(names), "%s", stages[i].tracepoints);
		for (char *name = strtok(names, " "); name; name = strtok(NULL, " "))
			if (*missing)
				continue;
			else if (is_function(name) && geteuid())
				snprintf(missing, sizeof(host->missing[i]), "root to find out");
			else if (is_function(name) && !host->has_probes && host->cgroup < 0)
				snprintf(missing, sizeof(host->missing[i]),
					 "function probes, or Linux 6.2 and control groups v2");
			else if (!is_function(name) && !has_tracepoint(kernel, name))
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

uint32_t host_stages_by_name(const struct host *host)
{
	return STAGES_BY_NAME | (host->cgroup >= 0 ? 1u << STAGE_UDP_START : 0);
}

/* hook: the name of a tracepoint, or that of a function with "()" */
static bool is_needed(const char *hook, uint32_t chosen)
{
	for (int i = 0; i < N_STAGES; i++) {
		char names[256];

		if (!(chosen & 1u << i))
			continue;
		snprintf(names, sizeof(names), "%s", stages[i].tracepoints);
		for (char *name = strtok(names, " "); name; name = strtok(NULL, " "))
			/* For packets over a virtual device, the sender knows when they arrived. */
			if (!strcmp(name, hook) || (!strcmp(name, "netif_receive_skb") &&
						    !strcmp(hook, "net_dev_start_xmit")))
				return true;
	}
	return false;
}

void host_choose_programs(const struct host *host, struct bpf_object *object, uint32_t chosen)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, object)
	{
		const char *section = bpf_program__section_name(program);
		const char *name = strchr(section, '/') + 1;
		char function[64];
		bool load;

		snprintf(function, sizeof(function), "%s()", name);
		if (bpf_program__type(program) == BPF_PROG_TYPE_CGROUP_SKB)
			load = host->cgroup >= 0 && chosen & 1u << STAGE_UDP_START;
		else if (!strncmp(section, "fentry", strlen("fentry")))
			load = host->has_probes && is_needed(function, chosen);
		else
			load = is_needed(name, chosen);
		bpf_program__set_autoload(program, load);
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
	fputs("]", to);
}
