# SPDX-License-Identifier: GPL-2.0-only
# nsight-framing: the message boundaries of memcached, Redis, HTTP/1.1, HTTP/2 and PostgreSQL in a pcap file.
FRAMING_SRC := nsight-framing.c framing_pcap.c framing_connections.c framing_streams.c framing_memcached.c framing_redis.c \
	framing_http.c framing_http2.c framing_postgres.c util.c keyed_hash.c
FRAMING_HDR := framing.h framing_connections.h util.h keyed_hash.h events.h

PROGRAMS      += nsight-framing
ASAN_PROGRAMS += build/asan/nsight-framing

nsight-framing: $(FRAMING_SRC) $(FRAMING_HDR)
	$(CC) $(BASE) $(HARDEN) $(CFLAGS) $(LDFLAGS) -o $@ $(FRAMING_SRC)

build/asan/nsight-framing: $(FRAMING_SRC) $(FRAMING_HDR)
	mkdir -p $(@D)
	$(CC) $(BASE) $(ASAN) -o $@ $(FRAMING_SRC)
