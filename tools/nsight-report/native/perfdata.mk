# SPDX-License-Identifier: GPL-2.0-only
# nsight-perfdata and nsight-contexts: from perf.data to events, from events to contexts.
PERFDATA_SRC := nsight-perfdata.c perf_file.c format_text.c formats.c plans.c event_fields.c tracepoint_fields.c samples.c \
                records.c decoded_events.c output.c util.c keyed_hash.c string_table.c
CONTEXTS_SRC := nsight-contexts.c nesting.c context_stack.c thread_table.c output.c util.c keyed_hash.c string_table.c
PERFDATA_HDR := events.h tracepoint_events.h output.h util.h keyed_hash.h string_table.h perf_file.h format_text.h formats.h plans.h event_fields.h tracepoint_fields.h \
                samples.h records.h decoded_events.h nesting.h context_stack.h thread_table.h

PROGRAMS      += nsight-perfdata nsight-contexts
ASAN_PROGRAMS += build/asan/nsight-perfdata build/asan/nsight-contexts

nsight-perfdata: $(PERFDATA_SRC) $(PERFDATA_HDR)
	$(CC) $(BASE) $(HARDEN) $(CFLAGS) $(LDFLAGS) -o $@ $(PERFDATA_SRC)

nsight-contexts: $(CONTEXTS_SRC) $(PERFDATA_HDR)
	$(CC) $(BASE) $(HARDEN) $(CFLAGS) $(LDFLAGS) -o $@ $(CONTEXTS_SRC)

build/asan/nsight-perfdata: $(PERFDATA_SRC) $(PERFDATA_HDR)
	mkdir -p $(@D)
	$(CC) $(BASE) $(ASAN) -o $@ $(PERFDATA_SRC)

build/asan/nsight-contexts: $(CONTEXTS_SRC) $(PERFDATA_HDR)
	mkdir -p $(@D)
	$(CC) $(BASE) $(ASAN) -o $@ $(CONTEXTS_SRC)
