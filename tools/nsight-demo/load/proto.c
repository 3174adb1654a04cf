// SPDX-License-Identifier: GPL-2.0-only
/* The protocols of nsight-load: how a request is written and where its response ends. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "load.h"

#define KEY_FMT "key:%08u"
#define KEY_LEN 12

static bool is_set(const struct request *req, const struct options *opt)
{
	if (req->kind == KIND_BURST)
		return opt->burst_kind == KIND_SET;
	return req->kind == KIND_SETUP || req->kind == KIND_SET;
}

size_t value_size_of(const struct request *req, const struct options *opt)
{
	bool big = req->key == BIG_KEY || req->kind == KIND_BURST;

	return big ? opt->burst_value_size : opt->value_size;
}

const char *kind_name(const struct request *req, const struct options *opt)
{
	if (req->kind == KIND_SETUP)
		return "setup";
	if (req->kind == KIND_BURST)
		return "burst";
	if (strcmp(opt->proto->name, "http") == 0)
		return "GET";
	if (strcmp(opt->proto->name, "echo") == 0 || strcmp(opt->proto->name, "echo-udp") == 0)
		return "echo";
	return req->kind == KIND_SET ? "set" : "get";
}

/* Head, value, tail: every text protocol's set command consists of these. */
static size_t join(char *buf, size_t cap, int head, size_t value, const char *tail)
{
	size_t tail_len = strlen(tail);

	if (head < 0 || (size_t)head + value + tail_len > cap)
		return 0;
	memset(buf + head, 'v', value);
	memcpy(buf + head + value, tail, tail_len);
	return (size_t)head + value + tail_len;
}

/* Length up to and including the first CRLF, 0 if there is none yet. */
static size_t line_len(const char *buf, size_t len)
{
	const char *lf = memchr(buf, '\n', len);

	return lf ? (size_t)(lf - buf) + 1 : 0;
}

static size_t text_build(char *buf, size_t cap, const struct request *req,
			 const struct options *opt)
{
	if (is_set(req, opt)) {
		size_t value = value_size_of(req, opt);
		int head = snprintf(buf, cap, "set " KEY_FMT " 0 0 %zu\r\n", req->key, value);

		return join(buf, cap, head, value, "\r\n");
	}
	return (size_t)snprintf(buf, cap, "get " KEY_FMT "\r\n", req->key);
}

static ssize_t text_parse(const char *buf, size_t len, const struct request *req,
			  const struct options *opt, bool *more)
{
	char want[40], line[128];
	size_t head = line_len(buf, len), value;
	int n;

	*more = false;
	if (!head)
		return len > 512 ? -1 : 0;
	if (is_set(req, opt))
		return strncmp(buf, "STORED\r\n", 8) == 0 ? (ssize_t)head : -1;
	if (strncmp(buf, "END\r\n", 5) == 0)
		return (ssize_t)head;
	n = snprintf(want, sizeof(want), "VALUE " KEY_FMT " 0 ", req->key);
	if (head >= sizeof(line) || strncmp(buf, want, (size_t)n) != 0)
		return -1;
	memcpy(line, buf, head);
	line[head] = '\0';
	value = strtoul(line + n, NULL, 10);
	if (len < head + value + 7)
		return 0;
	return memcmp(buf + head + value, "\r\nEND\r\n", 7) == 0 ? (ssize_t)(head + value + 7) : -1;
}

/* Binary memcached header, see protocol_binary.h of memcached. */
struct binary_header {
	uint8_t magic, opcode;
	uint16_t key_len;
	uint8_t extras_len, data_type;
	uint16_t status;
	uint32_t body_len, opaque;
	uint64_t cas;
};

static size_t binary_build(char *buf, size_t cap, const struct request *req,
			   const struct options *opt)
{
	bool set = is_set(req, opt);
	size_t value = set ? value_size_of(req, opt) : 0, extras = set ? 8 : 0;
	size_t len = sizeof(struct binary_header) + extras + KEY_LEN + value;
	struct binary_header head = {
		.magic = 0x80,
		.opcode = set ? 0x01 : 0x00,
		.key_len = htons(KEY_LEN),
		.extras_len = (uint8_t)extras,
		.body_len = htonl((uint32_t)(extras + KEY_LEN + value)),
		.opaque = htonl((uint32_t)req->number),
	};
	char key[KEY_LEN + 1];

	if (len > cap)
		return 0;
	snprintf(key, sizeof(key), KEY_FMT, req->key);
	memcpy(buf, &head, sizeof(head));
	memset(buf + sizeof(head), 0, extras);
	memcpy(buf + sizeof(head) + extras, key, KEY_LEN);
	memset(buf + sizeof(head) + extras + KEY_LEN, 'v', value);
	return len;
}

static ssize_t binary_parse(const char *buf, size_t len, const struct request *req,
			    const struct options *opt, bool *more)
{
	struct binary_header head;
	size_t total;

	(void)opt;
	*more = false;
	if (len < sizeof(head))
		return 0;
	memcpy(&head, buf, sizeof(head));
	total = sizeof(head) + ntohl(head.body_len);
	if (head.magic != 0x81 || ntohl(head.opaque) != (uint32_t)req->number)
		return -1;
	return len < total ? 0 : (ssize_t)total;
}

static size_t redis_build(char *buf, size_t cap, const struct request *req,
			  const struct options *opt)
{
	if (is_set(req, opt)) {
		size_t value = value_size_of(req, opt);
		int head = snprintf(buf, cap, "*3\r\n$3\r\nSET\r\n$%d\r\n" KEY_FMT "\r\n$%zu\r\n",
				    KEY_LEN, req->key, value);

		return join(buf, cap, head, value, "\r\n");
	}
	return (size_t)snprintf(buf, cap, "*2\r\n$3\r\nGET\r\n$%d\r\n" KEY_FMT "\r\n", KEY_LEN,
				req->key);
}

static ssize_t redis_parse(const char *buf, size_t len, const struct request *req,
			   const struct options *opt, bool *more)
{
	size_t head = line_len(buf, len), total;
	char line[32];
	long value;

	*more = false;
	if (!head)
		return len > 512 ? -1 : 0;
	if (is_set(req, opt))
		return strncmp(buf, "+OK\r\n", 5) == 0 ? (ssize_t)head : -1;
	if (buf[0] != '$' || head >= sizeof(line))
		return -1;
	memcpy(line, buf, head);
	line[head] = '\0';
	value = strtol(line + 1, NULL, 10);
	if (value < 0)
		return (ssize_t)head; /* nil */
	total = head + (size_t)value + 2;
	return len < total ? 0 : (ssize_t)total;
}

static size_t http_build(char *buf, size_t cap, const struct request *req,
			 const struct options *opt)
{
	(void)req;
	return (size_t)snprintf(
		buf, cap, "GET %s HTTP/1.1\r\nHost: testbed\r\nUser-Agent: nsight-load\r\n\r\n",
		opt->path);
}

static ssize_t http_parse(const char *buf, size_t len, const struct request *req,
			  const struct options *opt, bool *more)
{
	const char *end = memmem(buf, len, "\r\n\r\n", 4), *p = buf;
	long body = -1;
	size_t head;

	(void)req;
	(void)opt;
	*more = false;
	if (!end)
		return len > 65536 ? -1 : 0;
	head = (size_t)(end - buf) + 4;
	if (strncmp(buf, "HTTP/1.1 200", 12) != 0)
		return -1;
	while (p < end) {
		const char *lf = memchr(p, '\n', (size_t)(buf + head - p));

		if (strncasecmp(p, "content-length:", 15) == 0)
			body = strtol(p + 15, NULL, 10); /* ends at the CR, which is inside buf */
		p = lf + 1;
	}
	if (body < 0)
		return -1; /* chunked answers are not requested */
	return len < head + (size_t)body ? 0 : (ssize_t)(head + (size_t)body);
}

static size_t echo_build(char *buf, size_t cap, const struct request *req,
			 const struct options *opt)
{
	size_t len = value_size_of(req, opt);
	uint64_t number = req->number;

	if (len < sizeof(number))
		len = sizeof(number);
	if (len > cap)
		return 0;
	memset(buf, 'e', len);
	memcpy(buf, &number, sizeof(number));
	return len;
}

static ssize_t echo_parse(const char *buf, size_t len, const struct request *req,
			  const struct options *opt, bool *more)
{
	uint64_t number;

	(void)opt;
	*more = false;
	if (len < req->nbytes)
		return 0;
	memcpy(&number, buf, sizeof(number));
	return number == req->number ? (ssize_t)req->nbytes : -1;
}

/* memcached's UDP frame: request id, datagram number, number of datagrams, reserved. */
struct udp_frame {
	uint16_t id, seq, total, reserved;
};

static size_t udp_build(char *buf, size_t cap, const struct request *req, const struct options *opt)
{
	struct udp_frame frame = {.id = htons((uint16_t)req->number), .total = htons(1)};
	size_t len = text_build(buf + sizeof(frame), cap - sizeof(frame), req, opt);

	memcpy(buf, &frame, sizeof(frame));
	return len ? len + sizeof(frame) : 0;
}

static ssize_t udp_parse(const char *buf, size_t len, const struct request *req,
			 const struct options *opt, bool *more)
{
	struct udp_frame frame;

	(void)opt;
	*more = false;
	if (len < sizeof(frame))
		return -1;
	memcpy(&frame, buf, sizeof(frame));
	if (ntohs(frame.id) != (uint16_t)req->number)
		return -1;
	*more = ntohs(frame.seq) + 1 < ntohs(frame.total);
	return (ssize_t)len;
}

const struct proto protos[] = {
	{"memcached", SOCK_STREAM, "11211", true, text_build, text_parse},
	{"memcached-binary", SOCK_STREAM, "11211", true, binary_build, binary_parse},
	{"memcached-udp", SOCK_DGRAM, "11211", true, udp_build, udp_parse},
	{"redis", SOCK_STREAM, "6379", true, redis_build, redis_parse},
	{"http", SOCK_STREAM, "80", false, http_build, http_parse},
	{"echo", SOCK_STREAM, "7", false, echo_build, echo_parse},
	{"echo-udp", SOCK_DGRAM, "7", false, echo_build, echo_parse},
};
const size_t n_protos = sizeof(protos) / sizeof(protos[0]);
