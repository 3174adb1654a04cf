// SPDX-License-Identifier: GPL-2.0-only
/* bpf(2) of a kernel without TCX. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/bpf.h>
#include <stdarg.h>
#include <sys/syscall.h>

#define TCX_INGRESS 46 /* the first kind of attachment that Linux 6.5 does not know */

long syscall(long number, ...)
{
	long (*next)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	long a[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_bpf) {
		const union bpf_attr *attr = (const void *)a[1];

		if ((a[0] == BPF_PROG_QUERY && attr->query.attach_type >= TCX_INGRESS) ||
		    (a[0] == BPF_LINK_CREATE && attr->link_create.attach_type >= TCX_INGRESS)) {
			errno = EINVAL;
			return -1;
		}
	}
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
