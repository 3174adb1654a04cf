/* SPDX-License-Identifier: GPL-2.0-only */
/* Established connections that wait for accept. */
#ifndef NSIGHT_MONITOR_CONNECTIONS_BPF_H
#define NSIGHT_MONITOR_CONNECTIONS_BPF_H

#include "calls.bpf.h"
#include "sockets.bpf.h"

#define CONNECTIONS	  4096 /* a power of two */
#define CONNECTIONS_SHIFT (64 - 12)
#define TCP_SYN_RECV	  3

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct socket {
	struct sock *sk;
};

struct file {
	void *private_data;
};

struct fdtable {
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct___files {
	struct files_struct *files;
};

#pragma clang attribute pop

struct connection {
	__u64 sk; /* its address; 0: none */
	__u64 time;
	__u32 group, group_epoch;
};

static struct connection connections[CONNECTIONS];

static __always_inline struct connection *place_of_connection(__u64 sk)
{
	return &connections[(sk * 0x9e3779b97f4a7c15ull) >> CONNECTIONS_SHIFT & (CONNECTIONS - 1)];
}

/* The third segment of the handshake: from now on accept can return the connection. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_inet_sock_set_state, struct sock *sk, int oldstate, int newstate)
{
	struct connection *c;
	struct core *core;
	__u64 number;

	if (oldstate != TCP_SYN_RECV || newstate != TCP_ESTABLISHED || !is_asked_for(sk))
		return 0;
	core = this_core();
	if (!core)
		return 0;
	number = as_number(core, AT_ESTABLISHED, sk);
	c = place_of_connection(number);
	c->sk = 0;
	barrier();
	c->time = bpf_ktime_get_ns();
	c->group_epoch = group_epoch;
	c->group = group_by == BY_COMM ? GROUP_NONE : group_of_socket(core, sk);
	barrier();
	c->sk = number;
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_sys_exit, struct pt_regs *regs, long fd)
{
	struct task_struct___files *task;
	struct group_key key = {};
	struct file **files, *file = NULL;
	struct connection *c;
	struct socket *socket;
	struct core *core;
	__u64 now, number;

	if (fd < 0 || !is_accept(regs))
		return 0;
	now = bpf_ktime_get_ns();
	core = this_core();
	if (!core || (only_process && !is_process_asked_for()))
		return 0;
	task = (void *)bpf_get_current_task();
	files = BPF_CORE_READ(task, files, fdt, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), &files[fd]))
		return 0;
	socket = BPF_CORE_READ(file, private_data);
	number = (__u64)BPF_CORE_READ(socket, sk);
	c = place_of_connection(number);
	/* It may not be a TCP connection, or another one took its place in the table. */
	if (!number || c->sk != number) {
		count(core, COUNT_ACCEPT_UNKNOWN);
		return 0;
	}
	c->sk = 0;
	if (group_by == BY_COMM && !bpf_get_current_comm(&key, sizeof(key)))
		observe(core, STAGE_ACCEPT, group_of_key(core, &key), now - c->time);
	else
		observe(core, STAGE_ACCEPT, c->group_epoch == group_epoch ? c->group : GROUP_OTHER,
			now - c->time);
	return 0;
}

#endif
