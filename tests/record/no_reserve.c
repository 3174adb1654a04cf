// SPDX-License-Identifier: GPL-2.0-only
/* A disk that has no room for the reserve of nsight-collect, which is its only file without a name.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

int posix_fallocate(int fd, off_t offset, off_t length)
{
	struct stat s;

	if (!fstat(fd, &s) && !s.st_nlink)
		return EDQUOT;
	return fallocate(fd, 0, offset, length) ? errno : 0;
}
