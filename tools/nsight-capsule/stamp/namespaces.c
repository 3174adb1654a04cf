// SPDX-License-Identifier: GPL-2.0-only
#include "namespaces.h"
#include "fail.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

static int home = -1;

static void remember_home(void)
{
	if (home < 0)
		home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

/* False: errno says why not. */
static bool enter_path(const char *netns)
{
	int fd = open(netns, O_RDONLY | O_CLOEXEC);
	int error;

	remember_home();
	if (fd < 0)
		return false;
	error = setns(fd, CLONE_NEWNET) ? errno : 0;
	close(fd);
	errno = error;
	return !error;
}

void namespace_leave(void)
{
	if (setns(home, CLONE_NEWNET))
		fail(EXIT_REFUSED, NULL, "cannot return to the network namespace: %s",
		     strerror(errno));
}

bool namespace_make(void)
{
	remember_home();
	return !unshare(CLONE_NEWNET);
}

uint64_t namespace_cookie(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t size = sizeof(uint64_t);
	uint64_t cookie = 0;

	if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size))
		cookie = 0;
	if (fd >= 0)
		close(fd);
	return cookie;
}

/* Whether the path leads to that namespace; if so, it is entered. */
static bool enter_by(const char *path, uint64_t cookie, uint64_t inode)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat is;
	bool entered;

	if (fd < 0)
		return false;
	entered = !fstat(fd, &is) && is.st_ino == inode && !setns(fd, CLONE_NEWNET);
	close(fd);
	if (entered && namespace_cookie() != cookie) { /* a later namespace has the same inode */
		namespace_leave();
		return false;
	}
	return entered;
}

bool namespace_enter_again(const char *netns, uint64_t cookie, uint64_t inode)
{
	bool entered = enter_by(netns, cookie, inode);
	glob_t all;

	if (entered || glob("/proc/[0-9]*/ns/net", GLOB_NOSORT, NULL, &all))
		return entered;
	for (size_t i = 0; i < all.gl_pathc && !entered; i++)
		entered = enter_by(all.gl_pathv[i], cookie, inode);
	globfree(&all);
	return entered;
}

bool namespace_enter(const char *netns, uint64_t cookie, uint64_t inode)
{
	if (enter_path(netns)) {
		if (!cookie || namespace_cookie() == cookie)
			return true;
		namespace_leave();
	} else if (errno != ENOENT && errno != ESRCH && errno != EINVAL) {
		fail(EXIT_REFUSED, "run it as root", "%s: %s", netns, strerror(errno));
	}
	return cookie && namespace_enter_again(netns, cookie, inode);
}
