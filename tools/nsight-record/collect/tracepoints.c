// SPDX-License-Identifier: GPL-2.0-only
#include "tracepoints.h"

#include "output.h"

#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <stdio.h>
#include <string.h>

enum purpose { BOTH = 0, RX = 1, TX = 2, ACTIVITY = 4, NEEDED = 8 };

static const struct {
	const char *name;
	int purpose;
} known[] = {
	{"netif_receive_skb", RX | NEEDED},
	{"sk_data_ready", RX | NEEDED},
	{"sock_recv_length", RX | NEEDED},
	{"sock_send_length", TX | NEEDED},
	{"net_dev_start_xmit", BOTH | NEEDED},
	{"inet_sock_set_state", BOTH | NEEDED},
	/* names of threads */
	{"sched_process_fork", BOTH},
	{"sched_process_exec", BOTH},
	{"sched_process_exit", BOTH},
	{"task_rename", BOTH},
	{"sched_switch", ACTIVITY | NEEDED},
	{"sched_waking", ACTIVITY | NEEDED},
	{"softirq_entry", ACTIVITY | NEEDED},
	{"softirq_exit", ACTIVITY | NEEDED},
	{"irq_handler_entry", ACTIVITY | NEEDED},
	{"irq_handler_exit", ACTIVITY | NEEDED},
	{"sys_enter", ACTIVITY | NEEDED},
	{"sys_exit", ACTIVITY | NEEDED},
};

static int purpose_of(const char *name)
{
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (!strcmp(known[i].name, name))
			return known[i].purpose;
	return ACTIVITY;
}

/* If the cores have only one idle state, idle records would add nothing to the switches. */
static bool has_idle_states(void)
{
	FILE *file = fopen("/sys/devices/system/cpu/cpuidle/current_driver", "re");
	char driver[64] = "none";

	if (file && !fgets(driver, sizeof(driver), file))
		strcpy(driver, "none");
	if (file)
		fclose(file);
	return strncmp(driver, "none", 4) != 0;
}

/* Names and numbers of drop reasons differ between kernels. */
static void tell_drop_reasons(const struct btf *kernel)
{
	static const char prefix[] = "SKB_DROP_REASON_";
	int id = btf__find_by_name_kind(kernel, "skb_drop_reason", BTF_KIND_ENUM);
	const struct btf_type *type = id < 0 ? NULL : btf__type_by_id(kernel, id);

	for (int i = 0; type && i < btf_vlen(type); i++) {
		const struct btf_enum *reason = btf_enum(type) + i;
		const char *name = btf__name_by_offset(kernel, reason->name_off);

		if (!strncmp(name, prefix, sizeof(prefix) - 1))
			printf("reason %d %s\n", reason->val, name + sizeof(prefix) - 1);
	}
}

struct btf *kernel_types(void)
{
	struct btf *kernel = btf__load_vmlinux_btf();

	if (!kernel)
		fail(EXIT_REFUSED,
		     "use a kernel with CONFIG_DEBUG_INFO_BTF, or --recorder bpftrace",
		     "this kernel does not describe its types (/sys/kernel/btf/vmlinux)");
	return kernel;
}

bool kernel_has(const struct btf *kernel, const char *function)
{
	return btf__find_by_name_kind(kernel, function, BTF_KIND_FUNC) >= 0;
}

void tracepoints_choose(const struct btf *kernel, struct bpf_object *object, bool activity,
			bool syscalls, bool rx, bool tx)
{
	struct bpf_program *program;

	bpf_object__for_each_program(program, object)
	{
		const char *name = bpf_program__section_name(program);
		int purpose;
		char type[128];
		bool wanted = true;

		if (strncmp(name, "tp_btf/", 7)) /* for marks and sockets: chosen elsewhere */
			continue;
		name += 7;
		purpose = purpose_of(name);
		if (purpose & ACTIVITY)
			wanted = activity;
		else if (purpose & RX)
			wanted = rx;
		else if (purpose & TX)
			wanted = tx;
		if (!strncmp(name, "sys_", 4) && !syscalls)
			wanted = false;
		if (!strcmp(name, "cpu_idle") && !has_idle_states())
			wanted = false;
		snprintf(type, sizeof(type), "btf_trace_%s", name);
		if (wanted && btf__find_by_name_kind(kernel, type, BTF_KIND_TYPEDEF) < 0) {
			if (purpose & NEEDED)
				fail(EXIT_REFUSED, "use a newer kernel, or --recorder bpftrace",
				     "this kernel lacks tracepoint %s", name);
			printf("missing %s\n", name);
			wanted = false;
		}
		bpf_program__set_autoload(program, wanted);
	}
	if (!kernel_has(kernel, "bpf_rdonly_cast"))
		fail(EXIT_REFUSED, "use a newer kernel, or --recorder bpftrace",
		     "this kernel lacks function bpf_rdonly_cast");
	if (activity)
		tell_drop_reasons(kernel);
}
