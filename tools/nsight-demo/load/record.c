// SPDX-License-Identifier: GPL-2.0-only
/* The request log of nsight-load: kept in memory while the load runs, written when it ends. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "load.h"

/*
 * Chunks, not one growing array: connections hold pointers to requests in flight, and a realloc of
 * a large array would stall the load for milliseconds.
 */
#define CHUNK	   65536
#define MAX_CHUNKS 4096
static struct request *chunks[MAX_CHUNKS];
static uint64_t n_requests;

int64_t monotonic_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

struct request *record_new(void)
{
	uint64_t chunk = n_requests / CHUNK;
	struct request *req;

	if (chunk >= MAX_CHUNKS)
		die("use a lower --rate, --duration or --count", "more than %d requests",
		    CHUNK * MAX_CHUNKS);
	if (!chunks[chunk]) {
		chunks[chunk] = calloc(CHUNK, sizeof(struct request));
		if (!chunks[chunk])
			die("", "out of memory after %" PRIu64 " requests", n_requests);
	}
	req = &chunks[chunk][n_requests % CHUNK];
	req->number = n_requests++;
	return req;
}

struct request *record_at(uint64_t number)
{
	return &chunks[number / CHUNK][number % CHUNK];
}

uint64_t record_count(void)
{
	return n_requests;
}

static FILE *open_log(const struct options *opt)
{
	FILE *file = fopen(opt->log, "w");

	if (!file)
		die("choose another --log", "%s: %s", opt->log, strerror(errno));
	return file;
}

/* An empty log shows that signals are handled from now on: whoever ends the client then gets a
 * log. */
void record_begin_log(const struct options *opt)
{
	if (opt->log)
		fclose(open_log(opt));
}

void record_write_log(const struct options *opt, const uint16_t *lports)
{
	FILE *file;

	if (!opt->log)
		return;
	file = open_log(opt);
	fprintf(file, "#nsight-load 1 clock=monotonic proto=%s server=%s port=%s\n",
		opt->proto->name, opt->host, opt->port);
	fprintf(file, "number\tconn\tlport\tintended_ns\tsend_ns\trecv_ns\tbyte_"
		      "start\tnbytes\tresponse_bytes\tkind\tcounted\n");
	for (uint64_t i = 0; i < n_requests; i++) {
		const struct request *r = record_at(i);

		fprintf(file,
			"%" PRIu64 "\t%d\t%u\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRIu64
			"\t%u\t%u\t%s\t%d\n",
			r->number, r->conn, lports[r->conn], r->intended_ns, r->send_ns, r->recv_ns,
			r->byte_start, r->nbytes, r->response_bytes, kind_name(r, opt), r->counted);
	}
	fputs("#end\n", file);
	if (ferror(file) | fclose(file))
		die("free space or choose another --log", "%s: %s", opt->log, strerror(errno));
}

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* Nearest rank: the smallest latency that at least a share p of all latencies do not exceed. */
static double percentile_us(const int64_t *sorted, uint64_t n, double p)
{
	uint64_t rank = (uint64_t)(p * (double)n + 0.999999);

	return (double)sorted[rank ? rank - 1 : 0] / 1000.0;
}

void record_print_summary(const struct options *opt)
{
	int64_t *latency = malloc((n_requests + 1) * sizeof(*latency)), first = INT64_MAX, last = 0;
	uint64_t n = 0, lost = 0, uncounted = 0;

	if (!latency)
		die("", "out of memory");
	for (uint64_t i = 0; i < n_requests; i++) {
		const struct request *r = record_at(i);

		if (!r->counted) {
			uncounted++;
		} else if (!r->recv_ns) {
			lost++;
		} else {
			latency[n++] = r->recv_ns - r->send_ns;
			if (r->send_ns < first)
				first = r->send_ns;
			if (r->recv_ns > last)
				last = r->recv_ns;
		}
	}
	qsort(latency, n, sizeof(*latency), compare);
	fprintf(stderr,
		"%s: %" PRIu64 " requests answered, %" PRIu64 " unanswered, %" PRIu64
		" setup or warm-up\n",
		opt->proto->name, n, lost, uncounted);
	if (n)
		fprintf(stderr,
			"rate %.0f/s  latency us: p50 %.1f  p99 %.1f  p99.9 %.1f  max %.1f\n",
			last > first ? (double)n * 1e9 / (double)(last - first) : 0.0,
			percentile_us(latency, n, 0.5), percentile_us(latency, n, 0.99),
			percentile_us(latency, n, 0.999), (double)latency[n - 1] / 1000.0);
	free(latency);
}
