/* SPDX-License-Identifier: GPL-2.0-only */
/* When the driver was done with sent data and when peers acknowledged it, if requested. */
#ifndef NSIGHT_COLLECT_ACKNOWLEDGEMENTS_H
#define NSIGHT_COLLECT_ACKNOWLEDGEMENTS_H

struct btf;
struct nsight_collect_bpf;

/* Call it before the programs are loaded. cgroup: directory of a version 2 group, whose processes'
 * sockets are recorded; NULL: acknowledgements are not requested. */
void acknowledgements_choose(const struct btf *kernel, struct nsight_collect_bpf *skel,
			     const char *cgroup);
/* Call it afterwards. It also includes existing connections of this network namespace. */
void acknowledgements_attach(struct nsight_collect_bpf *skel, const char *cgroup);
/* Call it at the end: connections are left as they were found. */
void acknowledgements_end(struct nsight_collect_bpf *skel, const char *cgroup);

#endif
