// SPDX-License-Identifier: GPL-2.0-only
/*
 * spsc: how long a packet takes from one thread to another through a queue without locks that has
 * one producer and one consumer. Each packet is an interval with marks: it begins before it is put
 * into the queue, in the producer, and what the consumer did until it had it is one as well.
 *
 * A packet's latency is from the producer's stamp, taken when the packet is due, to the consumer's,
 * when it has it. Outliers lie beyond three times the interquartile range above the upper quartile.
 */
#include "../nsight/interval.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
	"usage: spsc [-c PRODUCER,CONSUMER] [-i FILE] PACKETS SLOTS PER_SECOND\n"
	"\n"
	"Send packets through a queue of SLOTS places (a power of two) between two threads, and\n"
	"print the statistics of their latencies in microseconds.\n"
	"  -c A,B   cores of the two threads\n"
	"  -i FILE  write each packet's way through the queue as an interval of the consumer, a\n"
	"           CSV for nsight-report --intervals\n";

#define LINE 64

struct packet {
	uint64_t sent;
};

/*
 * Each side writes one counter, and keeps a copy of the other's so that it reads that line only
 * when the queue looks full (or empty): the two counters are on lines of their own.
 */
static struct {
	_Alignas(LINE) _Atomic uint64_t head; /* packets put in */
	uint64_t tail_seen;
	_Alignas(LINE) _Atomic uint64_t tail; /* packets taken out */
	uint64_t head_seen;
	_Alignas(LINE) struct packet *slots;
	uint64_t mask;
} queue;

static uint64_t n_packets, period_ns;
static uint64_t *sent, *latency;
static int cores[2] = {-1, -1};
static long consumer_tid;
static atomic_bool ready;

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* On one core, who waits stands in the way of who is waited for. */
static inline void wait_turn(void)
{
	if (cores[0] == cores[1] && cores[0] >= 0)
		sched_yield();
	else
		relax();
}

static void stay_on(int core)
{
	cpu_set_t set;

	if (core < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (!sched_setaffinity(0, sizeof(set), &set))
		return;
	fprintf(stderr, "error: core %d: %s\nhint: nproc says how many there are\n", core,
		strerror(errno));
	exit(2);
}

static bool put(struct packet packet)
{
	uint64_t head = atomic_load_explicit(&queue.head, memory_order_relaxed);

	if (head - queue.tail_seen > queue.mask) {
		queue.tail_seen = atomic_load_explicit(&queue.tail, memory_order_acquire);
		if (head - queue.tail_seen > queue.mask)
			return false;
	}
	queue.slots[head & queue.mask] = packet;
	atomic_store_explicit(&queue.head, head + 1, memory_order_release);
	return true;
}

static bool take(struct packet *packet)
{
	uint64_t tail = atomic_load_explicit(&queue.tail, memory_order_relaxed);

	if (tail == queue.head_seen) {
		queue.head_seen = atomic_load_explicit(&queue.head, memory_order_acquire);
		if (tail == queue.head_seen)
			return false;
	}
	*packet = queue.slots[tail & queue.mask];
	atomic_store_explicit(&queue.tail, tail + 1, memory_order_release);
	return true;
}

static void *produce(void *unused)
{
	uint64_t due;

	stay_on(cores[0]);
	while (!atomic_load(&ready))
		wait_turn();
	due = now();
	for (uint64_t i = 0; i < n_packets; i++, due += period_ns) {
		struct packet packet;

		while (now() < due)
			wait_turn();
		NSIGHT_BEGIN(put);
		packet.sent = now();
		while (!put(packet))
			wait_turn();
		NSIGHT_END(put);
	}
	return unused;
}

static void *consume(void *unused)
{
	stay_on(cores[1]);
	consumer_tid = syscall(SYS_gettid);
	atomic_store(&ready, true);
	for (uint64_t i = 0; i < n_packets; i++) {
		struct packet packet;

		NSIGHT_BEGIN(take);
		while (!take(&packet))
			wait_turn();
		sent[i] = packet.sent;
		latency[i] = now() - packet.sent;
		NSIGHT_END(take);
	}
	return unused;
}

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return a < b ? -1 : a > b;
}

struct statistics {
	double mean, deviation;
};

/* Of ns, in microseconds; the deviation is that of the latencies, not of their mean. */
static struct statistics of(const uint64_t *ns, uint64_t n)
{
	double sum = 0, squares = 0;

	for (uint64_t i = 0; i < n; i++)
		sum += ns[i];
	for (uint64_t i = 0; i < n; i++)
		squares += (ns[i] - sum / n) * (ns[i] - sum / n);
	return (struct statistics){sum / n / 1000, n > 1 ? sqrt(squares / (n - 1)) / 1000 : 0};
}

static void print(uint64_t *sorted)
{
	uint64_t limit, n_usual = n_packets;
	struct statistics every, usual;

	qsort(sorted, n_packets, sizeof(*sorted), compare);
	limit = sorted[n_packets * 3 / 4] + 3 * (sorted[n_packets * 3 / 4] - sorted[n_packets / 4]);
	while (n_usual && sorted[n_usual - 1] > limit)
		n_usual--;
	every = of(sorted, n_packets);
	usual = of(sorted, n_usual);
	printf("average %.3f us, without outliers %.3f us, lowest %.3f us, highest %.3f us\n"
	       "outliers %" PRIu64 " (above %.3f us), standard deviation %.3f us, without outliers "
	       "%.3f us\n",
	       every.mean, usual.mean, sorted[0] / 1e3, sorted[n_packets - 1] / 1e3,
	       n_packets - n_usual, limit / 1e3, every.deviation, usual.deviation);
}

/* What delays a packet is what keeps the consumer from taking it. */
static int write_intervals(const char *path)
{
	FILE *f = fopen(path, "w");

	if (!f)
		return -1;
	fprintf(f, "# thread %ld\nname,start,stop\n", consumer_tid);
	for (uint64_t i = 0; i < n_packets; i++)
		fprintf(f, "packet,%" PRIu64 ",%" PRIu64 "\n", sent[i], sent[i] + latency[i]);
	return fclose(f);
}

static uint64_t number(const char *text, uint64_t most)
{
	char *end;
	uint64_t value = strtoull(text, &end, 10);

	if (end == text || *end || *text == '-' || !value || value > most) {
		fprintf(stderr, "error: %s is not a number from 1 to %" PRIu64 "\n%s", text, most,
			usage);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	const char *file = NULL;
	pthread_t threads[2];
	uint64_t n_slots;
	int o;

	while ((o = getopt(argc, argv, "c:i:h")) >= 0) {
		if (o == 'i')
			file = optarg;
		else if (o == 'h')
			return fputs(usage, stdout) < 0;
		else if (o != 'c' || sscanf(optarg, "%d,%d", &cores[0], &cores[1]) != 2)
			return fputs(usage, stderr), 2;
	}
	if (argc - optind != 3)
		return fputs(usage, stderr), 2;
	n_packets = number(argv[optind], 100000000);
	n_slots = number(argv[optind + 1], 1 << 20);
	period_ns = 1000000000 / number(argv[optind + 2], 1000000000);
	if (n_slots & (n_slots - 1))
		return fputs("error: SLOTS is no power of two\nhint: 8 or 16, say\n", stderr), 2;
	queue.mask = n_slots - 1;
	queue.slots = calloc(n_slots, sizeof(*queue.slots));
	sent = malloc(n_packets * sizeof(*sent));
	latency = malloc(n_packets * sizeof(*latency));
	if (!queue.slots || !sent || !latency)
		return fputs("error: out of memory\nhint: fewer packets\n", stderr), 1;
	/* Their first use would be a page fault each. */
	memset(sent, 0, n_packets * sizeof(*sent));
	memset(latency, 0, n_packets * sizeof(*latency));
	if (pthread_create(&threads[0], NULL, produce, NULL) ||
	    pthread_create(&threads[1], NULL, consume, NULL))
		return fputs("error: no thread can be made\nhint: ulimit -u\n", stderr), 1;
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	if (file && write_intervals(file))
		return fprintf(stderr, "error: %s: %s\nhint: name another file\n", file,
			       strerror(errno)),
		       1;
	print(latency);
	return 0;
}
