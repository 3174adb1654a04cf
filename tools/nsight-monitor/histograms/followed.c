// SPDX-License-Identifier: GPL-2.0-only
#include "followed.h"

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void take(struct followed *f, const char *line)
{
	uint32_t ifindex, netns;
	uint64_t cookie, cgroup;

	if (sscanf(line, "%" SCNu32 " %" SCNu32 " %" SCNu64 " %" SCNu64, &ifindex, &netns, &cookie,
		   &cgroup) != 4)
		return;
	*f->ifindex = ifindex;
	*f->netns = netns;
	*f->netns_cookie = cookie;
	*f->cgroup = cgroup;
}

void followed_read(struct followed *f)
{
	ssize_t n = read(f->fd, f->bytes + f->n_bytes, sizeof(f->bytes) - 1 - f->n_bytes);
	char *end;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		f->fd = -1;
		return;
	}
	f->n_bytes += n;
	f->bytes[f->n_bytes] = 0;
	while ((end = memchr(f->bytes, '\n', f->n_bytes))) {
		*end++ = 0;
		take(f, f->bytes);
		f->n_bytes -= end - f->bytes;
		memmove(f->bytes, end, f->n_bytes);
	}
	if (f->n_bytes == sizeof(f->bytes) - 1)
		f->n_bytes = 0; /* no line is that long */
}

bool followed_is_gone(const struct followed *f)
{
	return *f->ifindex == UINT32_MAX || *f->netns == UINT32_MAX || *f->cgroup == UINT64_MAX;
}
