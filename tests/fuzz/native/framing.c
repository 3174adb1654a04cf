// SPDX-License-Identifier: GPL-2.0-only
/*
 * nsight-framing. The input is one byte, then a pcap file. The byte modulo 3 is the protocol, or
 * with bit 6 PostgreSQL, with bit 5 HTTP/2; from 128 on the program gets 11211 as the port of
 * servers.
 */
#include "restart.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char *const protocols[] = {"memcached", "redis", "http"};
	char *argv[] = {"nsight-framing", NULL, "/payload.pcap", NULL, NULL};
	struct written lines;

	if (!size)
		return 0;
	argv[1] = *data & 64 ? "postgres" : *data & 32 ? "http2" : protocols[*data % 3];
	argv[3] = *data & 128 ? "11211" : NULL;
	restart_no_files();
	restart_file("payload.pcap", data + 1, size - 1);
	if (!restart_run(argv))
		return 0;
	lines = restart_written("stdout");
	if (lines.size < 9 || memcmp(lines.data + lines.size - 9, "E\t\t\t\t\t\t\t\n", 9))
		restart_broken("output without an end");
	return 0;
}
