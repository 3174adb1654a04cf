/* SPDX-License-Identifier: GPL-2.0-only */
/* When peers acknowledged what was sent: a program of the sockets, where it is asked for. */
#ifndef NSIGHT_COLLECT_ACKNOWLEDGEMENTS_H
#define NSIGHT_COLLECT_ACKNOWLEDGEMENTS_H

struct btf;
struct nsight_collect_bpf;

/* cgroup: directory of version 2 whose processes' sockets are meant; NULL: not asked for. Before
 * the programs are loaded. */
void acknowledgements_choose(const struct btf *kernel, struct nsight_collect_bpf *skel,
			     const char *cgroup);
/* Afterwards; connections of this network namespace that are there are asked, too. */
void acknowledgements_attach(struct nsight_collect_bpf *skel, const char *cgroup);
/* At the end: connections are left as they were. */
void acknowledgements_end(struct nsight_collect_bpf *skel, const char *cgroup);

#endif
