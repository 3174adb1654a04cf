// SPDX-License-Identifier: GPL-2.0-only
/* The program's files: input files are memory files, output files are kept up to a limit. */
#include "intercept.h"
#include "restart.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define N_INPUTS   8
#define N_OUTPUTS  8
#define N_OPEN	   32
#define OUTPUT_MAX (64u << 20) /* more of an input of some KB is a finding */
#define BEYOND	   (64u << 10) /* inaccessible bytes after a file */

static struct input {
	const char *name; /* NULL: none */
	int fd;
	size_t size;
} inputs[N_INPUTS];

static struct output {
	char name[32]; /* empty: none */
	uint8_t *data;
	size_t size, capacity;
} outputs[N_OUTPUTS];

static FILE *streams[N_OPEN];
static int descriptors[N_OPEN];
static int n_descriptors, n_listed;
static bool prepared;

FILE *fuzz_stdout, *fuzz_stderr;

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static struct input *input_of(const char *name)
{
	for (int i = 0; i < N_INPUTS; i++)
		if (inputs[i].name && !strcmp(inputs[i].name, name))
			return &inputs[i];
	return NULL;
}

static void prepare(void)
{
	for (int i = 0; i < N_INPUTS && !prepared; i++)
		inputs[i].fd = memfd_create("input", MFD_CLOEXEC);
	prepared = true;
}

void restart_no_files(void)
{
	for (int i = 0; i < N_INPUTS; i++)
		inputs[i].name = NULL;
}

void restart_file(const char *name, const uint8_t *data, size_t size)
{
	struct input *to = inputs;

	prepare();
	while (to->name)
		if (++to == inputs + N_INPUTS)
			restart_broken("too many inputs");
	to->name = name;
	if (to->size != size && ftruncate(to->fd, size))
		restart_broken("ftruncate");
	to->size = size;
	if (pwrite(to->fd, data, size, 0) != (ssize_t)size)
		restart_broken("pwrite");
}

static int remember(int fd)
{
	if (fd < 0 || n_descriptors == N_OPEN)
		restart_broken("too many open files");
	descriptors[n_descriptors++] = fd;
	return fd;
}

int fuzz_openat(int dir, const char *name, int flags)
{
	const struct input *input = input_of(last_part(name));

	(void)dir;
	if (flags & O_DIRECTORY)
		return remember(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
	if (!input) {
		errno = ENOENT;
		return -1;
	}
	lseek(input->fd, 0, SEEK_SET);
	return remember(dup(input->fd));
}

int fuzz_open(const char *path, int flags)
{
	return fuzz_openat(AT_FDCWD, path, flags);
}

static bool forget(int fd)
{
	for (int i = 0; i < n_descriptors; i++) {
		if (descriptors[i] != fd)
			continue;
		descriptors[i] = descriptors[--n_descriptors];
		return true;
	}
	return false;
}

int fuzz_close(int fd)
{
	if (!forget(fd))
		restart_broken("a descriptor is closed that is not open");
	return close(fd);
}

/* Not pread(): AddressSanitizer would check the buffer, which may be poisoned after its contents.
 */
ssize_t fuzz_pread(int fd, void *buf, size_t n, off_t off)
{
	ssize_t got = syscall(SYS_pread64, fd, buf, n, off);

	if (got > 0)
		blocks_end_at((unsigned char *)buf + got, BEYOND);
	return got;
}

int fuzz_fstatat(int dir, const char *name, struct stat *st, int flags)
{
	const struct input *input = input_of(name);

	(void)dir;
	(void)flags;
	errno = ENOENT;
	return input ? fstat(input->fd, st) : -1;
}

/* There is one directory, with all inputs. */
DIR *fuzz_fdopendir(int fd)
{
	fuzz_close(fd);
	n_listed = 0;
	return (DIR *)inputs;
}

struct dirent *fuzz_readdir(DIR *dir)
{
	static struct dirent entry;

	(void)dir;
	if (n_listed == N_INPUTS || !inputs[n_listed].name)
		return NULL;
	strcpy(entry.d_name, inputs[n_listed++].name);
	return &entry;
}

int fuzz_closedir(DIR *dir)
{
	(void)dir;
	return 0;
}

static ssize_t keep(void *cookie, const char *data, size_t n)
{
	struct output *out = cookie;

	if (out->size + n > OUTPUT_MAX)
		restart_broken("a small input makes a large output");
	if (out->size + n > out->capacity) {
		out->capacity = 2 * (out->size + n);
		out->data = realloc(out->data, out->capacity);
	}
	memcpy(out->data + out->size, data, n);
	out->size += n;
	return n;
}

static FILE *remember_stream(FILE *f)
{
	for (int i = 0; i < N_OPEN; i++) {
		if (streams[i])
			continue;
		streams[i] = f;
		return f;
	}
	restart_broken("too many open files");
}

static FILE *create(const char *name)
{
	struct output *out = outputs;

	while (*out->name && strcmp(out->name, name))
		if (++out == outputs + N_OUTPUTS)
			restart_broken("too many outputs");
	strncpy(out->name, name, sizeof(out->name) - 1);
	out->size = 0;
	return remember_stream(fopencookie(out, "w", (cookie_io_functions_t){.write = keep}));
}

FILE *fuzz_fopen(const char *path, const char *mode)
{
	int fd;

	if (*mode == 'w')
		return create(last_part(path));
	fd = fuzz_open(path, O_RDONLY);
	if (fd < 0)
		return NULL;
	forget(fd); /* fclose() closes it */
	return remember_stream(fdopen(fd, mode));
}

int fuzz_fclose(FILE *f)
{
	for (int i = 0; i < N_OPEN; i++) {
		if (streams[i] != f)
			continue;
		streams[i] = NULL;
		return fclose(f);
	}
	restart_broken("a file is closed that is not open");
}

struct written restart_written(const char *name)
{
	for (int i = 0; i < N_OUTPUTS; i++)
		if (!strcmp(outputs[i].name, name))
			return (struct written){outputs[i].data, outputs[i].size};
	return (struct written){0};
}

void files_begin(void)
{
	for (int i = 0; i < N_OUTPUTS; i++)
		outputs[i].size = 0;
	fuzz_stdout = create("stdout");
	fuzz_stderr = create("stderr");
}

void files_release(void)
{
	for (int i = 0; i < N_OPEN; i++)
		if (streams[i])
			fuzz_fclose(streams[i]);
	while (n_descriptors)
		fuzz_close(descriptors[0]);
}
