/* SPDX-License-Identifier: GPL-2.0-only */
/* Shared by the modules of nsight-load. */
#ifndef NSIGHT_LOAD_H
#define NSIGHT_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum kind { KIND_SETUP, KIND_GET, KIND_SET, KIND_BURST };

struct options {
	const char *host, *port, *log, *path;
	const struct proto *proto;
	int bind_port; /* 0: the kernel chooses */
	int conns, cpu, keys, pipeline, udp_timeout_ms, start_delay_ms;
	int marks, mark_cause; /* for emulated Intel PT; -1: no */
	double rate;	       /* requests per second over all connections; 0: closed loop */
	bool poisson, big_setup, sets;
	int burst, burst_every_ms, burst_conns;
	enum kind burst_kind; /* KIND_GET or KIND_SET */
	size_t value_size, burst_value_size;
	double duration_s, warmup_s;
	uint64_t count, seed;
};

/* One request, from its bytes to its log line. */
struct request {
	uint64_t number;		       /* the protocol carries it back where it can */
	int64_t intended_ns, send_ns, recv_ns; /* CLOCK_MONOTONIC; recv_ns 0: no answer */
	uint64_t byte_start;		       /* offset in the connection; UDP: datagram number */
	uint32_t nbytes, response_bytes;
	uint32_t key;
	int32_t conn;
	uint8_t kind;
	bool counted; /* false during setup and warm-up */
};

struct proto {
	const char *name;
	int socktype;
	const char *default_port;
	bool has_setup; /* keys are stored before they are read */
	/* Writes one request to buf (cap bytes) and returns its length, 0 if it does not fit. */
	size_t (*build)(char *buf, size_t cap, const struct request *req,
			const struct options *opt);
	/*
	 * Returns the length of the first complete response in buf, 0 when bytes are missing, -1
	 * when it is not the answer to req. For datagrams buf is one datagram, and *more is set
	 * when further datagrams of the same answer follow.
	 */
	ssize_t (*parse)(const char *buf, size_t len, const struct request *req,
			 const struct options *opt, bool *more);
};

extern const struct proto protos[];
extern const size_t n_protos;
#define BIG_KEY 99999999u /* the key with a value of burst_value_size bytes */

void parse_options(int argc, char **argv, struct options *opt);
size_t value_size_of(const struct request *req, const struct options *opt);
const char *kind_name(const struct request *req, const struct options *opt);

struct request *record_new(void);
struct request *record_at(uint64_t number);
uint64_t record_count(void);
void record_begin_log(const struct options *opt);
void record_write_log(const struct options *opt, const uint16_t *lports);
void record_print_summary(const struct options *opt);

int64_t monotonic_ns(void);
void die(const char *hint, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));

#endif
