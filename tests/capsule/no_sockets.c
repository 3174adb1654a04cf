// SPDX-License-Identifier: GPL-2.0-only
/* bind(2) of a file system without sockets: 9p. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int bind(int fd, const struct sockaddr *to, socklen_t size)
{
	int (*next)(int, const struct sockaddr *, socklen_t) =
		(int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");

	if (to->sa_family == AF_UNIX &&
	    strstr(((const struct sockaddr_un *)to)->sun_path, "/control")) {
		errno = ENXIO;
		return -1;
	}
	return next(fd, to, size);
}
