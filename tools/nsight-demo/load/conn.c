// SPDX-License-Identifier: GPL-2.0-only
/* Connections of nsight-load: one request log entry for every request they carry. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mark.h"
#include "conn.h"

#define MAX_ANSWER (256u << 20)

struct conn *conns;
int n_conns, n_base, epoll_fd;
uint64_t n_stray;

static uint16_t local_port(int fd)
{
	struct sockaddr_storage addr;
	socklen_t len = sizeof(addr);

	if (getsockname(fd, (struct sockaddr *)&addr, &len))
		return 0;
	return ntohs(addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&addr)->sin6_port
						: ((struct sockaddr_in *)&addr)->sin_port);
}

void write_log(void)
{
	uint16_t *lports = calloc((size_t)n_conns, sizeof(*lports));

	if (!lports)
		die("", "out of memory");
	for (int i = 0; i < n_conns; i++)
		lports[i] = conns[i].lport;
	record_write_log(&opts, lports);
	free(lports);
}

/* Marks for an emulator's observer, which tell requests apart. */
static void mark(const struct conn *c, const struct request *r, bool sent)
{
	uint64_t which = (uint64_t)c->lport << 32 | r->number;

	if (!r->counted)
		return;
	if (opts.marks >= 0 && sent)
		pt_mark(PT_MARK_SENT, which, r->byte_start);
	else if (opts.marks >= 0)
		pt_mark(PT_MARK_RECEIVED, which, r->byte_start);
	if (opts.mark_cause >= 0 && sent)
		pt_mark(PT_MARK_BEGIN, opts.mark_cause, which);
	else if (opts.mark_cause >= 0)
		pt_mark(PT_MARK_END, opts.mark_cause, which);
}

/* The log of a failed load is still useful: it is written first. */
static void __attribute__((noreturn)) fail(const char *what, int conn)
{
	write_log();
	die("see the server's own log", "connection %d: %s", conn, what);
}

static void watch(struct conn *c, bool write)
{
	struct epoll_event ev = {.events = EPOLLIN | (write ? EPOLLOUT : 0), .data.ptr = c};

	c->wants_write = write;
	if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &ev))
		fail(strerror(errno), c->index);
}

/* Hands over what the kernel takes; a request's send time is that of the call with its first
 * byte. */
void flush_out(struct conn *c)
{
	bool dgram = opts.proto->socktype == SOCK_DGRAM;

	for (unsigned int i = 0; c->out_len && i < c->count; i++) {
		const struct request *r = record_at(c->queue[(c->head + i) % MAX_IN_FLIGHT]);

		if (!r->send_ns)
			mark(c, r, true);
	}
	while (c->out_len) {
		int64_t before = monotonic_ns();
		ssize_t n = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN && errno != ENOBUFS)
				fail(strerror(errno), c->index);
			if (!c->wants_write)
				watch(c, true);
			return;
		}
		c->sent += dgram ? 1 : (uint64_t)n;
		for (unsigned int i = 0; i < c->count; i++) {
			struct request *r = record_at(c->queue[(c->head + i) % MAX_IN_FLIGHT]);

			if (!r->send_ns && r->byte_start < c->sent)
				r->send_ns = before;
		}
		c->out_len -= (size_t)n;
		memmove(c->out, c->out + n, c->out_len);
	}
	if (c->wants_write)
		watch(c, false);
}

void enqueue(struct conn *c, enum kind kind, uint32_t key, int64_t intended, bool counted)
{
	struct request *r = record_new();
	size_t len;

	r->kind = (uint8_t)kind;
	r->key = key;
	r->conn = c->index;
	r->intended_ns = intended;
	r->counted = counted;
	r->byte_start = c->built;
	len = opts.proto->build(c->out + c->out_len, c->out_cap - c->out_len, r, &opts);
	if (!len)
		fail("request does not fit the buffer", c->index);
	r->nbytes = (uint32_t)len;
	c->out_len += len;
	c->built += opts.proto->socktype == SOCK_DGRAM ? 1 : len;
	c->queue[(c->head + c->count++) % MAX_IN_FLIGHT] = r->number;
}

struct request *front(struct conn *c)
{
	return record_at(c->queue[c->head]);
}

static void dequeue(struct conn *c, int64_t recv_ns, uint32_t nbytes)
{
	struct request *r = front(c);

	mark(c, r, false);
	r->recv_ns = recv_ns;
	r->response_bytes = nbytes;
	c->head = (c->head + 1) % MAX_IN_FLIGHT;
	c->count--;
}

static void make_room(struct conn *c)
{
	if (c->in_len < c->in_cap)
		return;
	c->in_cap *= 2;
	c->in = c->in_cap <= MAX_ANSWER ? realloc(c->in, c->in_cap) : NULL;
	if (!c->in)
		fail("answer too large", c->index);
}

static void receive_stream(struct conn *c)
{
	int64_t now;
	size_t used = 0;
	ssize_t n;
	bool more;

	make_room(c);
	n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
	now = monotonic_ns();
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0)
		fail(n ? strerror(errno) : "closed by the server", c->index);
	c->in_len += (size_t)n;
	while (c->count && used < c->in_len) {
		ssize_t len =
			opts.proto->parse(c->in + used, c->in_len - used, front(c), &opts, &more);

		if (len < 0)
			fail("unexpected answer", c->index);
		if (!len)
			break;
		dequeue(c, now, (uint32_t)len);
		used += (size_t)len;
	}
	c->in_len -= used;
	memmove(c->in, c->in + used, c->in_len);
	if (!c->count && c->in_len)
		fail("bytes that answer no request", c->index);
}

static void receive_datagrams(struct conn *c)
{
	for (;;) {
		ssize_t n = recv(c->fd, c->in, c->in_cap, 0), len;
		bool more = false;

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n < 0)
			fail(strerror(errno), c->index);
		len = c->count ? opts.proto->parse(c->in, (size_t)n, front(c), &opts, &more) : -1;
		if (len < 0) {
			n_stray++; /* answer to a request that was given up as lost */
			continue;
		}
		c->datagram_bytes += (uint32_t)n;
		if (more)
			continue;
		dequeue(c, monotonic_ns(), c->datagram_bytes);
		c->datagram_bytes = 0;
	}
}

void receive(struct conn *c)
{
	if (opts.proto->socktype == SOCK_DGRAM)
		receive_datagrams(c);
	else
		receive_stream(c);
}

/* Gives up requests in datagrams whose answer did not come; over TCP the answer always comes, or
 * the connection fails. */
void expire_datagrams(int64_t now)
{
	if (opts.proto->socktype != SOCK_DGRAM)
		return;
	for (int i = 0; i < n_conns; i++) {
		struct conn *c = &conns[i];

		if (c->count && front(c)->send_ns &&
		    now - front(c)->send_ns > opts.udp_timeout_ms * 1000000LL) {
			dequeue(c, 0, 0);
			c->datagram_bytes = 0;
		}
	}
}

/* With a known port, a firewall rule can pick out one connection. */
static void bind_port(struct conn *c, int family)
{
	struct sockaddr_in6 any6 = {.sin6_family = AF_INET6};
	struct sockaddr_in any4 = {.sin_family = AF_INET};
	uint16_t port = htons((uint16_t)(opts.bind_port + c->index));
	int one = 1, rc;

	setsockopt(c->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	any4.sin_port = any6.sin6_port = port;
	rc = family == AF_INET6 ? bind(c->fd, (struct sockaddr *)&any6, sizeof(any6))
				: bind(c->fd, (struct sockaddr *)&any4, sizeof(any4));
	if (rc)
		die("choose another --bind-port", "local port %d: %s", ntohs(port),
		    strerror(errno));
}

/* A signal ends the wait for the connection, but not the connection: the log is to be complete. */
static int connect_whole(int fd, const struct addrinfo *ai)
{
	struct pollfd wait = {.fd = fd, .events = POLLOUT};
	int error = ETIMEDOUT, n;
	socklen_t size = sizeof(error);

	if (!connect(fd, ai->ai_addr, ai->ai_addrlen))
		return 0;
	if (errno != EINTR)
		return -1;
	do
		n = poll(&wait, 1, 2000);
	while (n < 0 && errno == EINTR);
	if (n > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size))
		return -1;
	errno = error;
	return error ? -1 : 0;
}

void open_connections(void)
{
	struct addrinfo hints = {.ai_socktype = opts.proto->socktype,
				 .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
	struct addrinfo *ai;
	size_t big =
		opts.burst_value_size > opts.value_size ? opts.burst_value_size : opts.value_size;
	int one = 1, rc = getaddrinfo(opts.host, opts.port, &hints, &ai);

	if (rc)
		die("give a numeric address and port", "%s port %s: %s", opts.host, opts.port,
		    gai_strerror(rc));
	n_base = opts.conns;
	n_conns = n_base + (opts.burst ? opts.burst_conns : 0);
	conns = calloc((size_t)n_conns, sizeof(*conns));
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (!conns || epoll_fd < 0)
		die("", "out of memory or file descriptors");
	for (int i = 0; i < n_conns; i++) {
		struct conn *c = &conns[i];
		size_t in_flight = i < n_base ? (size_t)opts.pipeline
					      : (size_t)(opts.burst + opts.burst_conns - 1) /
							(size_t)opts.burst_conns;
		struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};

		c->index = i;
		c->in_cap = big + 65536;
		c->out_cap = in_flight * (big + 512) + 4096;
		c->in = malloc(c->in_cap);
		c->out = malloc(c->out_cap);
		c->fd = socket(ai->ai_family, opts.proto->socktype | SOCK_CLOEXEC, 0);
		if (!c->in || !c->out || c->fd < 0)
			die("use fewer --connections", "connection %d: %s", i, strerror(errno));
		if (opts.bind_port)
			bind_port(c, ai->ai_family);
		if (connect_whole(c->fd, ai))
			die("is the server running, and in this network namespace?",
			    "%s port %s: %s", opts.host, opts.port, strerror(errno));
		if (opts.proto->socktype == SOCK_STREAM)
			setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		c->lport = local_port(c->fd);
		/* Non-blocking only now: this way connect() reports an absent server at once. */
		if (fcntl(c->fd, F_SETFL, O_NONBLOCK) ||
		    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &ev))
			die("", "connection %d: %s", i, strerror(errno));
	}
	freeaddrinfo(ai);
}
