// SPDX-License-Identifier: GPL-2.0-only
/*
 * edge-stream.c: Write an edge stream, in blocks of columns
 */
#include "edge-stream.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_ROWS 16384
#define ROW_BYTES  45 /* of all columns of an edge */
#define SHORTCUTS  (1 << 14)

enum block_type {
	BLOCK_EDGES = 1,
	BLOCK_SYMBOLS,
	BLOCK_EVENTS,
};

struct block {
	__u32 type;
	__u32 n_rows;
	__u64 size;
};

/* The columns of a block of edges, in the order of the file. */
struct columns {
	__u64 time[BLOCK_ROWS];
	__u64 from[BLOCK_ROWS];
	__u64 to[BLOCK_ROWS];
	__s32 pid[BLOCK_ROWS];
	__s32 tid[BLOCK_ROWS];
	__s32 cpu[BLOCK_ROWS];
	__u32 from_sym[BLOCK_ROWS];
	__u32 to_sym[BLOCK_ROWS];
	__u8 kind[BLOCK_ROWS];
};

/* Events are few: each is a block of its own. */
struct event_block {
	struct block head;
	__u64 time;
	__s32 cpu, pid, tid;
	__u32 code;
	__u64 value;
};

struct symbol {
	char *text; /* "symbol\0dso\0" */
	__u32 size;
	__u32 hash;
};

/*
 * Names as perf gave them last, by their addresses. perf may free both and use the memory for
 * others, when a module or a BPF program goes, so the text is compared as well.
 */
struct shortcut {
	const char *sym;
	const char *dso;
	__u32 id;
};

struct edge_stream {
	FILE *file;
	char *path;
	bool failed;
	__u32 n_rows;
	__u32 n_symbols, n_allocated, n_written;
	struct symbol *symbols;
	__u32 *table; /* open hash table of ids + 1; its size is a power of two */
	__u32 table_size;
	struct shortcut shortcuts[SHORTCUTS];
	struct columns columns;
};

static int fail(struct edge_stream *s, const char *what, int error)
{
	if (!s->failed)
		fprintf(stderr, "nsight-edges: error: %s %s: %s\n", what, s->path, strerror(error));
	s->failed = true;
	return -1;
}

bool stream_failed(const struct edge_stream *s)
{
	return s->failed;
}

static int put(struct edge_stream *s, const void *data, size_t size)
{
	if (s->failed)
		return -1;
	if (size && fwrite(data, size, 1, s->file) != 1)
		return fail(s, "cannot write", errno);
	return 0;
}

static int put_head(struct edge_stream *s, enum block_type type, __u32 n_rows, __u64 size)
{
	struct block block = {
		.type = type,
		.n_rows = n_rows,
		.size = (size + 7) & ~7ULL,
	};

	return put(s, &block, sizeof(block));
}

static int put_padding(struct edge_stream *s, __u64 size)
{
	return put(s, "\0\0\0\0\0\0\0", -size & 7);
}

/* The symbols that came since the last block: a reader has each before the edges that name it. */
static int write_symbols(struct edge_stream *s)
{
	__u64 size = 0;
	__u32 i;

	if (s->n_written == s->n_symbols)
		return 0;
	for (i = s->n_written; i < s->n_symbols; i++)
		size += s->symbols[i].size;
	put_head(s, BLOCK_SYMBOLS, s->n_symbols - s->n_written, size);
	for (i = s->n_written; i < s->n_symbols; i++)
		put(s, s->symbols[i].text, s->symbols[i].size);
	s->n_written = s->n_symbols;
	return put_padding(s, size);
}

static int write_edges(struct edge_stream *s)
{
	__u64 size = (__u64)s->n_rows * ROW_BYTES;
	const struct columns *c = &s->columns;
	__u32 n = s->n_rows;

	write_symbols(s);
	if (!n)
		return s->failed ? -1 : 0;
	s->n_rows = 0;
	put_head(s, BLOCK_EDGES, n, size);
	put(s, c->time, n * sizeof(*c->time));
	put(s, c->from, n * sizeof(*c->from));
	put(s, c->to, n * sizeof(*c->to));
	put(s, c->pid, n * sizeof(*c->pid));
	put(s, c->tid, n * sizeof(*c->tid));
	put(s, c->cpu, n * sizeof(*c->cpu));
	put(s, c->from_sym, n * sizeof(*c->from_sym));
	put(s, c->to_sym, n * sizeof(*c->to_sym));
	put(s, c->kind, n * sizeof(*c->kind));
	return put_padding(s, size);
}

void stream_edge(struct edge_stream *s, const struct edge *edge)
{
	struct columns *c = &s->columns;
	__u32 n = s->n_rows++;

	c->time[n] = edge->time;
	c->from[n] = edge->from;
	c->to[n] = edge->to;
	c->pid[n] = edge->pid;
	c->tid[n] = edge->tid;
	c->cpu[n] = edge->cpu;
	c->from_sym[n] = edge->from_sym;
	c->to_sym[n] = edge->to_sym;
	c->kind[n] = edge->kind;
	if (s->n_rows == BLOCK_ROWS)
		write_edges(s);
}

void stream_event(struct edge_stream *s, const struct event *event)
{
	struct event_block block = {
		.head.type = BLOCK_EVENTS,
		.head.n_rows = 1,
		.head.size = sizeof(block) - sizeof(block.head),
		.time = event->time,
		.cpu = event->cpu,
		.pid = event->pid,
		.tid = event->tid,
		.code = event->code,
		.value = event->value,
	};

	write_edges(s);
	put(s, &block, sizeof(block));
}

static __u32 hash_text(const char *text, __u32 size)
{
	__u32 hash = 2166136261u; /* FNV-1a */

	while (size--)
		hash = (hash ^ (unsigned char)*text++) * 16777619u;
	return hash;
}

static bool is_text(const struct symbol *symbol, const char *sym, const char *dso)
{
	return !strcmp(symbol->text, sym) && !strcmp(symbol->text + strlen(sym) + 1, dso);
}

static int grow(struct edge_stream *s)
{
	__u32 size = s->table_size ? s->table_size * 2 : 1 << 14;
	__u32 *table = calloc(size, sizeof(*table));
	struct symbol *symbols = realloc(s->symbols, size / 2 * sizeof(*symbols));
	__u32 i, at;

	if (symbols)
		s->symbols = symbols;
	if (!table || !symbols) {
		free(table);
		return fail(s, "no memory for the symbols of", ENOMEM);
	}
	for (i = 0; i < s->n_symbols; i++) {
		for (at = s->symbols[i].hash & (size - 1); table[at]; at = (at + 1) & (size - 1))
			;
		table[at] = i + 1;
	}
	free(s->table);
	s->table = table;
	s->table_size = size;
	s->n_allocated = size / 2;
	return 0;
}

static __u32 symbol_by_text(struct edge_stream *s, const char *sym, const char *dso)
{
	__u32 sym_size = strlen(sym) + 1, size = sym_size + strlen(dso) + 1, hash, at;
	struct symbol *symbol;
	char *text;

	if (s->n_symbols == s->n_allocated && grow(s))
		return 0;
	text = malloc(size);
	if (!text) {
		fail(s, "no memory for the symbols of", ENOMEM);
		return 0;
	}
	memcpy(text, sym, sym_size);
	memcpy(text + sym_size, dso, size - sym_size);
	hash = hash_text(text, size);
	for (at = hash & (s->table_size - 1); s->table[at]; at = (at + 1) & (s->table_size - 1)) {
		symbol = &s->symbols[s->table[at] - 1];
		if (symbol->hash == hash && symbol->size == size &&
		    !memcmp(symbol->text, text, size)) {
			free(text);
			return s->table[at] - 1;
		}
	}
	symbol = &s->symbols[s->n_symbols];
	symbol->text = text;
	symbol->size = size;
	symbol->hash = hash;
	s->table[at] = ++s->n_symbols;
	return s->n_symbols - 1;
}

__u32 stream_symbol(struct edge_stream *s, const char *sym, const char *dso)
{
	uint64_t key = (uintptr_t)sym >> 4 ^ (uintptr_t)dso;
	struct shortcut *shortcut = &s->shortcuts[key * 0x9e3779b97f4a7c15ULL >> 50];

	if (shortcut->sym == sym && shortcut->dso == dso &&
	    is_text(&s->symbols[shortcut->id], sym, dso))
		return shortcut->id;
	shortcut->id = symbol_by_text(s, sym, dso);
	shortcut->sym = sym;
	shortcut->dso = dso;
	return shortcut->id;
}

struct edge_stream *stream_open(const char *path)
{
	struct edge_stream *s = calloc(1, sizeof(*s));

	if (!s || !(s->path = strdup(path))) {
		fprintf(stderr, "nsight-edges: error: no memory\n");
		free(s);
		return NULL;
	}
	s->file = fopen(path, "wbe");
	if (!s->file) {
		fail(s, "cannot write", errno);
		free(s->path);
		free(s);
		return NULL;
	}
	put(s, "NSEDGE01", 8);
	symbol_by_text(s, "", ""); /* the first number, 0: unknown */
	return s;
}

int stream_close(struct edge_stream *s)
{
	int ret;
	__u32 i;

	write_edges(s);
	if (fclose(s->file))
		fail(s, "cannot write", errno);
	ret = s->failed ? -1 : 0;
	for (i = 0; i < s->n_symbols; i++)
		free(s->symbols[i].text);
	free(s->symbols);
	free(s->table);
	free(s->path);
	free(s);
	return ret;
}
