// SPDX-License-Identifier: GPL-2.0-only
#include "spaces.h"
#include "links.h"
#include "namespaces.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_SPACES 4096

static struct space *spaces[MOST_SPACES];
static int n_spaces;

static bool is_watched(uint64_t inode)
{
	for (int i = 0; i < n_spaces; i++)
		if (spaces[i]->inode == inode)
			return true;
	return false;
}

/* False: there are too many. */
static bool watch(const char *path, void (*on_new)(const struct space *))
{
	struct space *space;
	struct stat is;

	if (stat(path, &is) || is_watched(is.st_ino))
		return true;
	if (n_spaces == MOST_SPACES)
		return false;
	if (!namespace_enter(path, 0, 0))
		return true;
	space = calloc(1, sizeof(*space));
	/* The path may lead to another namespace by now: what counts is where this thread is. */
	if (space && !stat("/proc/thread-self/ns/net", &is) && !is_watched(is.st_ino)) {
		*space = (struct space){.path = strdup(path),
					.inode = is.st_ino,
					.cookie = namespace_cookie(),
					.watch = links_watch("/proc/thread-self/ns/net")};
		spaces[n_spaces++] = space;
		if (on_new)
			on_new(space);
	}
	namespace_leave();
	return true;
}

bool spaces_find(void (*on_new)(const struct space *))
{
	bool all = true;
	glob_t found = {0};

	/* Names first: a process may end earlier. */
	glob("/run/netns/*", GLOB_NOSORT, NULL, &found);
	glob("/proc/[0-9]*/ns/net", GLOB_NOSORT | GLOB_APPEND, NULL, &found);
	for (size_t i = 0; i < found.gl_pathc; i++)
		all &= watch(found.gl_pathv[i], on_new);
	globfree(&found);
	return all;
}

const struct space *spaces_of(int watch)
{
	for (int i = 0; i < n_spaces; i++)
		if (spaces[i]->watch == watch)
			return spaces[i];
	return NULL;
}

void spaces_drop(const struct space *space)
{
	for (int i = 0; i < n_spaces; i++)
		if (spaces[i] == space)
			spaces[i] = spaces[--n_spaces];
}
