// SPDX-License-Identifier: GPL-2.0-only
#include "acknowledgements.h"

#include "../../bpf/flight_triggers.h"
#include "../../bpf/record.h"
#include "nsight-collect.skel.h"
#include "output.h"
#include "tracepoints.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct bpf_link *sockets, *connections;

void acknowledgements_choose(const struct btf *kernel, struct nsight_collect_bpf *skel,
			     const char *cgroup)
{
	if (cgroup && !kernel_has(kernel, "bpf_sock_ops_enable_tx_tstamp"))
		fail(EXIT_REFUSED, "leave out --acknowledgements",
		     "BPF programs of sockets get no timestamps here: that needs Linux 6.15");
	bpf_program__set_autoload(skel->progs.on_sock_ops, cgroup);
	bpf_program__set_autoload(skel->progs.each_connection, cgroup);
	bpf_program__set_autoattach(skel->progs.on_sock_ops, false);
	bpf_program__set_autoattach(skel->progs.each_connection, false);
}

static void run_through(struct nsight_collect_bpf *skel)
{
	int fd = bpf_iter_create(bpf_link__fd(connections));
	char nothing[256];

	if (fd < 0)
		return;
	skel->bss->n_asked = skel->bss->n_not_asked = 0;
	while (read(fd, nothing, sizeof(nothing)) > 0)
		;
	close(fd);
}

void acknowledgements_attach(struct nsight_collect_bpf *skel, const char *cgroup)
{
	int fd;

	if (!cgroup)
		return;
	fd = open(cgroup, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0)
		sockets = bpf_program__attach_cgroup(skel->progs.on_sock_ops, fd);
	if (!sockets)
		fail(EXIT_REFUSED, "give a directory of cgroup version 2", "%s: %s", cgroup,
		     strerror(errno));
	close(fd);
	connections = bpf_program__attach_iter(skel->progs.each_connection, NULL);
	if (!connections)
		return;
	run_through(skel);
	printf("connections that were there: %" PRIu64 " asked, %" PRIu64 " not\n",
	       (uint64_t)skel->bss->n_asked, (uint64_t)skel->bss->n_not_asked);
}

void acknowledgements_end(struct nsight_collect_bpf *skel, const char *cgroup)
{
	if (!cgroup || !connections)
		return;
	bpf_link__destroy(sockets);
	skel->bss->ask_no_more = true;
	run_through(skel);
}
