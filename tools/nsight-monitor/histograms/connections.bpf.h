/* SPDX-License-Identifier: GPL-2.0-only */
/* Established connections that wait for accept. */
#ifndef NSIGHT_MONITOR_CONNECTIONS_BPF_H
#define NSIGHT_MONITOR_CONNECTIONS_BPF_H

#include "calls.bpf.h"
#include "sockets.bpf.h"

#define CONNECTIONS  16384 /* that wait at once */
#define TCP_SYN_RECV 3

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
	__u64 time;
	__u32 group, group_epoch;
};

/*
 * By the socket's address. A connection that is never accepted stays until others need its place.
 * It is no array with one place per hash: of 40 connections that waited, two took the place of
 * another one.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CONNECTIONS);
	__type(key, __u64);
	__type(value, struct connection);
} connections SEC(".maps");

/* The third segment of the handshake: from now on accept can return the connection. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_inet_sock_set_state, struct sock *sk, int oldstate, int newstate)
{
	struct connection c;
	struct core *core;
	__u64 number;

	if (oldstate != TCP_SYN_RECV || newstate != TCP_ESTABLISHED || !is_asked_for(sk))
		return 0;
	core = this_core();
	if (!core)
		return 0;
	number = as_number(core, AT_ESTABLISHED, sk);
	c.time = bpf_ktime_get_ns();
	c.group_epoch = group_epoch;
	c.group = group_by == BY_COMM ? GROUP_NONE : group_of_socket(core, sk);
	bpf_map_update_elem(&connections, &number, &c, BPF_ANY);
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
	c = bpf_map_lookup_elem(&connections, &number);
	/* It may not be a TCP connection. */
	if (!c) {
		count(core, COUNT_ACCEPT_UNKNOWN);
		return 0;
	}
	if (group_by == BY_COMM && !bpf_get_current_comm(&key, sizeof(key)))
		observe(core, STAGE_ACCEPT, group_of_key(core, &key), now - c->time);
	else
		observe(core, STAGE_ACCEPT, c->group_epoch == group_epoch ? c->group : GROUP_OTHER,
			now - c->time);
	bpf_map_delete_elem(&connections, &number);
	return 0;
}

#endif
