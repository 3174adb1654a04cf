// SPDX-License-Identifier: GPL-2.0-only
#include "control.h"
#include "fail.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const struct {
	const char *name;
	size_t offset, bytes;
	uint64_t most;
} keys[] = {
#define KEY(field, most)                                                                           \
	{                                                                                          \
#field, offsetof(struct nsc_config, field),                                        \
			sizeof(((struct nsc_config *)0)->field), most                              \
	}
	KEY(threshold, 1ull << 32),
	KEY(every_ns, UINT64_MAX),
	KEY(cgroup, UINT64_MAX),
	KEY(cgroup_level, 255),
	KEY(points, UINT32_MAX),
	KEY(protocols, 3),
	KEY(port, 65535),
	KEY(most_bytes, 65535),
	KEY(vxlan_port, 65535),
	KEY(leave, 1),
	KEY(keep, 1),
#undef KEY
};

static bool number(const char *text, uint64_t most, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	return !errno && end != text && !*end && *text != '-' && *value <= most;
}

/* 32 hexadecimal digits: 16 bytes in network byte order */
static bool address(const char *text, __u32 *to)
{
	unsigned char *bytes = (unsigned char *)to;

	if (strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
		return false;
	for (int i = 0; i < 16; i++)
		sscanf(text + 2 * i, "%2hhx", &bytes[i]);
	return true;
}

/* "RULE=0": none; or AT:PORT:PROTOCOLS:ADDRESS:MASK */
static bool rule(const char *text, struct nsc_rule *to)
{
	struct nsc_rule made = {0};
	char words[128], *rest, *parts[5];
	uint64_t at, port, protocols;

	if (!strcmp(text, "0")) {
		*to = made;
		return true;
	}
	if (strlen(text) >= sizeof(words))
		return false;
	strcpy(words, text);
	for (int i = 0; i < 5; i++)
		parts[i] = strtok_r(i ? NULL : words, ":", &rest);
	if (!parts[4] || !number(parts[0], UINT32_MAX, &at) || !number(parts[1], 65535, &port) ||
	    !number(parts[2], 3, &protocols) || !protocols || !address(parts[3], made.address) ||
	    !address(parts[4], made.mask))
		return false;
	made.at = at;
	made.port = port;
	made.protocols = protocols;
	*to = made;
	return true;
}

static bool set_one(struct nsc_config *config, const char *name, const char *value)
{
	uint64_t n;

	if (!strcmp(name, "address"))
		return address(value, config->address);
	if (!strcmp(name, "mask"))
		return address(value, config->mask);
	if (!strncmp(name, "rule", 4))
		return number(name + 4, NSC_RULES - 1, &n) && rule(value, &config->rules[n]);
	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
		if (strcmp(name, keys[i].name))
			continue;
		if (!number(value, keys[i].most, &n))
			return false;
		memcpy((char *)config + keys[i].offset, &n, keys[i].bytes); /* little endian */
		return true;
	}
	return false;
}

bool control_set(struct nsc_config *config, char *text, const char **wrong)
{
	struct nsc_config changed = *config;
	char *rest, *word, *value;

	for (word = strtok_r(text, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
		value = strchr(word, '=');
		*wrong = word;
		if (!value)
			return false;
		*value++ = 0;
		if (!set_one(&changed, word, value))
			return false;
	}
	*config = changed;
	return true;
}

static char elsewhere[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* "": it is in DIR */

/*
 * Where the socket is if the file system of DIR has none, such as 9p and some of FUSE: a name that
 * nsight-capsule --change can compute from DIR. One that is there was left by a process that was
 * killed: two cannot write to one DIR.
 */
static bool open_elsewhere(int fd, int of)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	struct stat is;

	if (fstat(of, &is))
		return false;
	snprintf(to.sun_path, sizeof(to.sun_path), "/run/nsight-capsule.%" PRIx64 "-%" PRIx64,
		 (uint64_t)is.st_dev, (uint64_t)is.st_ino);
	unlink(to.sun_path);
	if (bind(fd, (struct sockaddr *)&to, sizeof(to)))
		return false;
	strcpy(elsewhere, to.sun_path);
	return true;
}

int control_open(const char *dir)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int of = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	mode_t mask = umask(0077);
	bool done;

	/* A socket's name has at most 107 bytes, a directory's more. */
	snprintf(to.sun_path, sizeof(to.sun_path), "/proc/self/fd/%d/control", of);
	done = fd >= 0 && of >= 0 && !bind(fd, (struct sockaddr *)&to, sizeof(to));
	if (!done) {
		int error = errno;

		if (fd < 0 || of < 0 || !open_elsewhere(fd, of))
			fail(EXIT_OUTPUT,
			     "give a directory of a file system that has sockets (-o), or mount "
			     "/run",
			     "%s/control: %s", dir, strerror(error));
	}
	umask(mask);
	close(of);
	return fd;
}

void control_close(const char *dir)
{
	char path[PATH_MAX];

	if (*elsewhere)
		unlink(elsewhere);
	else if (snprintf(path, sizeof(path), "%s/control", dir) < (int)sizeof(path))
		unlink(path);
}
