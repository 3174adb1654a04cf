/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * edge-stream.h: Write an edge stream (Documentation/formats.md) from within a perf filter
 */
#ifndef NSIGHT_EDGE_STREAM_H
#define NSIGHT_EDGE_STREAM_H

#include <linux/types.h>
#include <stdbool.h>

enum edge_kind {
	EDGE_NONE,
	EDGE_CALL,
	EDGE_RETURN,
	EDGE_SYSCALL,
	EDGE_SYSRET,
	EDGE_INTERRUPT,
	EDGE_IRET,
	EDGE_BEGIN,
	EDGE_END,
	EDGE_TAIL_CALL,
	EDGE_SOFTWARE_INTERRUPT,
};

enum event_code {
	EVENT_PTWRITE = 5,
	EVENT_POWER,
	EVENT_CBR,
};

struct edge {
	__u64 time, from, to;
	__s32 pid, tid, cpu;
	__u32 from_sym, to_sym;
	enum edge_kind kind;
};

struct event {
	__u64 time;
	__s32 cpu, pid, tid;
	enum event_code code;
	__u64 value;
};

struct edge_stream;

/* All of them print what goes wrong, once; stream_failed() tells. */
struct edge_stream *stream_open(const char *path);
bool stream_failed(const struct edge_stream *s);
void stream_edge(struct edge_stream *s, const struct edge *edge);
void stream_event(struct edge_stream *s, const struct event *event);
/* The number of a symbol. The names may be those of another symbol later. */
__u32 stream_symbol(struct edge_stream *s, const char *sym, const char *dso);
/* Returns 0, or -1 if anything failed since it was opened. */
int stream_close(struct edge_stream *s);

#endif
