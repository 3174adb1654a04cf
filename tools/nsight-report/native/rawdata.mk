# SPDX-License-Identifier: GPL-2.0-only
# nsight-rawdata: from the files of the BPF recorder to the events and messages of the others.
RAWDATA_SRC := nsight-rawdata.c raw_file.c raw_order.c raw_threads.c raw_events.c raw_drops.c raw_merge.c raw_names.c raw_stamps.c output.c util.c keyed_hash.c string_table.c
RAWDATA_HDR := events.h stamps.h output.h util.h keyed_hash.h string_table.h raw_file.h raw_threads.h raw_events.h raw_merge.h ../../bpf/record.h

PROGRAMS      += nsight-rawdata
ASAN_PROGRAMS += build/asan/nsight-rawdata

nsight-rawdata: $(RAWDATA_SRC) $(RAWDATA_HDR)
	$(CC) $(BASE) $(HARDEN) $(CFLAGS) $(LDFLAGS) -o $@ $(RAWDATA_SRC) -lzstd

build/asan/nsight-rawdata: $(RAWDATA_SRC) $(RAWDATA_HDR)
	mkdir -p $(@D)
	$(CC) $(BASE) $(ASAN) -o $@ $(RAWDATA_SRC) -lzstd
