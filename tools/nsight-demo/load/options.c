// SPDX-License-Identifier: GPL-2.0-only
/* Command line of nsight-load. */
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "load.h"

static const char usage_text[] =
	"usage: nsight-load -s ADDRESS [-p PORT] -P PROTOCOL [options]\n"
	"Sends requests from one epoll loop and logs each with its byte range and times.\n"
	"\n"
	"  -s, --server ADDRESS       IPv4 or IPv6 address of the server\n"
	"  -p, --port PORT            default: the protocol's usual port\n"
	"  -P, --protocol NAME        memcached, memcached-binary, memcached-udp, redis, http, "
	"echo, echo-udp\n"
	"  -c, --connections N        default 1\n"
	"  -r, --rate N               open loop: N requests a second over all connections;\n"
	"                             default: closed loop\n"
	"      --fixed                open loop with equal gaps instead of Poisson arrivals\n"
	"      --pipeline N           requests in flight per connection at most, default 1\n"
	"      --bind-port N          connection i is bound to local port N + i\n"
	"      --burst N              also send N requests at once, repeatedly\n"
	"      --burst-every MS       gap between the bursts, default 100\n"
	"      --burst-connections N  connections that share a burst, besides -c; default 1:\n"
	"                             the whole burst is one write on one connection\n"
	"      --burst-kind get|set   default get\n"
	"      --burst-value-size N   bytes of the values that a burst reads or stores\n"
	"      --value-size N         bytes of a value (echo: of a message), default 100\n"
	"      --set                  requests store values instead of reading them\n"
	"      --keys N               distinct keys, default 100\n"
	"      --path PATH            http: default /\n"
	"  -d, --duration SECONDS     after the warm-up; default 5\n"
	"  -n, --count N              stop after N requests instead, setup and bursts not counted\n"
	"  -w, --warmup SECONDS       requests in this time are logged with counted=0; default 0\n"
	"      --start-delay MS       pause between the setup and the load; default 0\n"
	"      --udp-timeout MS       datagrams without an answer are lost after that; default "
	"500\n"
	"  -C, --cpu N                run on that core only\n"
	"      --marks N              marks for emulated Intel PT: log N begins with the load and\n"
	"                             ends with it, requests and answers are marked\n"
	"      --mark-cause N         mark the time from request to answer as disturbance N\n"
	"      --seed N               seed of the Poisson arrivals; default 1\n"
	"  -l, --log FILE             one line a request (tab-separated, header line, #end)\n"
	"\n"
	"The latency summary goes to stderr. Exit codes: 0, 1 connection or protocol error,\n"
	"2 usage. SIGINT and SIGTERM end the load early; the log is complete.\n";

void die(const char *hint, const char *fmt, ...)
{
	va_list ap;

	fputs("error: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	if (hint[0])
		fprintf(stderr, "hint: %s\n", hint);
	exit(1);
}

static void __attribute__((noreturn)) usage_error(const char *name, const char *value)
{
	fprintf(stderr, "error: --%s: %s is not valid\nhint: see nsight-load --help\n", name,
		value);
	exit(2);
}

static double number(const char *name, const char *text, double min, double max)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= min && value <= max))
		usage_error(name, text);
	return value;
}

static const struct proto *find_proto(const char *name)
{
	for (size_t i = 0; i < n_protos; i++)
		if (strcmp(protos[i].name, name) == 0)
			return &protos[i];
	usage_error("protocol", name);
}

enum {
	O_FIXED = 256,
	O_PIPELINE,
	O_BURST,
	O_EVERY,
	O_BCONNS,
	O_BKIND,
	O_BSIZE,
	O_SIZE,
	O_SET,
	O_KEYS,
	O_PATH,
	O_DELAY,
	O_UDP,
	O_SEED,
	O_BIND,
	O_MARKS,
	O_CAUSE
};

static const struct option long_options[] = {
	{"server", 1, 0, 's'},
	{"port", 1, 0, 'p'},
	{"protocol", 1, 0, 'P'},
	{"connections", 1, 0, 'c'},
	{"rate", 1, 0, 'r'},
	{"duration", 1, 0, 'd'},
	{"count", 1, 0, 'n'},
	{"warmup", 1, 0, 'w'},
	{"cpu", 1, 0, 'C'},
	{"log", 1, 0, 'l'},
	{"help", 0, 0, 'h'},
	{"fixed", 0, 0, O_FIXED},
	{"pipeline", 1, 0, O_PIPELINE},
	{"burst", 1, 0, O_BURST},
	{"burst-every", 1, 0, O_EVERY},
	{"burst-connections", 1, 0, O_BCONNS},
	{"burst-kind", 1, 0, O_BKIND},
	{"burst-value-size", 1, 0, O_BSIZE},
	{"value-size", 1, 0, O_SIZE},
	{"set", 0, 0, O_SET},
	{"keys", 1, 0, O_KEYS},
	{"path", 1, 0, O_PATH},
	{"start-delay", 1, 0, O_DELAY},
	{"udp-timeout", 1, 0, O_UDP},
	{"seed", 1, 0, O_SEED},
	{"bind-port", 1, 0, O_BIND},
	{"marks", 1, 0, O_MARKS},
	{"mark-cause", 1, 0, O_CAUSE},
	{0, 0, 0, 0},
};

void parse_options(int argc, char **argv, struct options *opt)
{
	const double many = 1 << 20;
	int o, index = 0;

	*opt = (struct options){.conns = 1,
				.cpu = -1,
				.marks = -1,
				.mark_cause = -1,
				.keys = 100,
				.pipeline = 1,
				.udp_timeout_ms = 500,
				.poisson = true,
				.burst_every_ms = 100,
				.burst_conns = 1,
				.burst_kind = KIND_GET,
				.value_size = 100,
				.burst_value_size = 100,
				.duration_s = 5,
				.seed = 1,
				.path = "/"};
	while ((o = getopt_long(argc, argv, "s:p:P:c:r:d:n:w:C:l:h", long_options, &index)) != -1) {
		switch (o) {
		case 's':
			opt->host = optarg;
			break;
		case 'p':
			opt->port = optarg;
			break;
		case 'P':
			opt->proto = find_proto(optarg);
			break;
		case 'c':
			opt->conns = (int)number("connections", optarg, 1, 1024);
			break;
		case 'r':
			opt->rate = number("rate", optarg, 0, 1e7);
			break;
		case 'd':
			opt->duration_s = number("duration", optarg, 0.001, 86400);
			break;
		case 'n':
			opt->count = (uint64_t)number("count", optarg, 1, 1e8);
			break;
		case 'w':
			opt->warmup_s = number("warmup", optarg, 0, 3600);
			break;
		case 'C':
			opt->cpu = (int)number("cpu", optarg, 0, 1023);
			break;
		case 'l':
			opt->log = optarg;
			break;
		case O_FIXED:
			opt->poisson = false;
			break;
		case O_PIPELINE:
			opt->pipeline = (int)number("pipeline", optarg, 1, 256);
			break;
		case O_BURST:
			opt->burst = (int)number("burst", optarg, 1, 256);
			break;
		case O_EVERY:
			opt->burst_every_ms = (int)number("burst-every", optarg, 1, 1e6);
			break;
		case O_BCONNS:
			opt->burst_conns = (int)number("burst-connections", optarg, 1, 256);
			break;
		case O_BKIND:
			if (strcmp(optarg, "get") && strcmp(optarg, "set"))
				usage_error("burst-kind", optarg);
			opt->burst_kind = strcmp(optarg, "set") ? KIND_GET : KIND_SET;
			break;
		case O_BSIZE:
			opt->burst_value_size = (size_t)number("burst-value-size", optarg, 1, many);
			break;
		case O_SIZE:
			opt->value_size = (size_t)number("value-size", optarg, 1, many);
			break;
		case O_SET:
			opt->sets = true;
			break;
		case O_KEYS:
			opt->keys = (int)number("keys", optarg, 1, 1e6);
			break;
		case O_PATH:
			opt->path = optarg;
			break;
		case O_DELAY:
			opt->start_delay_ms = (int)number("start-delay", optarg, 0, 1e6);
			break;
		case O_UDP:
			opt->udp_timeout_ms = (int)number("udp-timeout", optarg, 1, 1e6);
			break;
		case O_MARKS:
			opt->marks = (int)number("marks", optarg, 0, 1e6);
			break;
		case O_CAUSE:
			opt->mark_cause = (int)number("mark-cause", optarg, 0, 1e6);
			break;
		case O_BIND:
			opt->bind_port = (int)number("bind-port", optarg, 1024, 64000);
			break;
		case O_SEED:
			opt->seed = (uint64_t)number("seed", optarg, 1, 1e15);
			break;
		case 'h':
			fputs(usage_text, stdout);
			exit(0);
		default:
			fputs("hint: see nsight-load --help\n", stderr);
			exit(2);
		}
	}
	if (optind < argc)
		usage_error("protocol", argv[optind]);
	if (!opt->host || !opt->proto) {
		fputs("error: --server and --protocol are needed\nhint: see nsight-load --help\n",
		      stderr);
		exit(2);
	}
	if (!opt->port)
		opt->port = opt->proto->default_port;
	if (opt->proto->socktype == SOCK_DGRAM)
		opt->pipeline =
			1; /* answers to lost requests would be taken for those to later ones */
	if (opt->proto->socktype == SOCK_DGRAM && opt->burst && opt->burst_conns < opt->burst)
		usage_error("burst-connections", "fewer than --burst over UDP");
	opt->big_setup = opt->burst && opt->burst_kind == KIND_GET && opt->proto->has_setup;
}
