/* SPDX-License-Identifier: GPL-2.0-only */
/* Connections of nsight-load: requests in flight, and bytes on their way in and out. */
#ifndef NSIGHT_LOAD_CONN_H
#define NSIGHT_LOAD_CONN_H

#include "load.h"

#define MAX_IN_FLIGHT 256

struct conn {
	int fd, index;
	uint64_t queue[MAX_IN_FLIGHT]; /* numbers of the requests in flight, oldest at head */
	unsigned int head, count;
	char *in, *out;
	size_t in_cap, in_len, out_cap, out_len;
	uint64_t built, sent;	 /* bytes since the connection began; UDP: datagrams */
	uint32_t datagram_bytes; /* of the answer so far */
	bool wants_write;
	uint16_t lport;
};

/* The first n_base carry the base load, the others only bursts. */
extern struct conn *conns;
extern int n_conns, n_base, epoll_fd;
extern struct options opts;
extern uint64_t n_stray; /* datagrams that answer no request in flight */

void open_connections(void);
void write_log(void);
void enqueue(struct conn *c, enum kind kind, uint32_t key, int64_t intended, bool counted);
void flush_out(struct conn *c);
void receive(struct conn *c);
void expire_datagrams(int64_t now);
struct request *front(struct conn *c);

#endif
