// SPDX-License-Identifier: GPL-2.0-only
#include "records.h"

#include "samples.h"
#include "tracepoint_fields.h"

#include <string.h>

/* Record types above the kernel's: tools/lib/perf/include/perf/event.h of the kernel tree */
enum {
	USER_RECORD_FIRST = 64,
	USER_RECORD_AUXTRACE_INFO = 70,
	USER_RECORD_AUXTRACE = 71,
	USER_RECORD_AUXTRACE_ERROR = 72,
	USER_RECORD_TIME_CONV = 79,
	USER_RECORD_COMPRESSED = 81,
	USER_RECORD_COMPRESSED2 = 83,
	USER_RECORD_LAST_KNOWN = 86,
	KERNEL_RECORD_LAST_KNOWN = 22, /* PERF_RECORD_CALLCHAIN_DEFERRED, 6.19 */
};

/* The trailer that sample_id_all adds to every record that is not a sample */
static bool decode_trailer(struct perf_file *pf, const unsigned char *p, size_t words,
			   size_t body_words, struct sample_id *id)
{
	const struct perf_evt *evt = &pf->evts[0];
	uint64_t type = evt->attr.sample_type;
	size_t n;

	*id = (struct sample_id){.pid = -1, .tid = -1, .cpu = NSIGHT_NO_CPU};
	if (!evt->attr.sample_id_all)
		return words >= body_words;
	if (type & PERF_SAMPLE_IDENTIFIER && words) {
		evt = perf_file_evt(pf, load64(p + 8 * (words - 1)));
		type = evt ? evt->attr.sample_type : type;
	}
	n = __builtin_popcountll(type & (PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_ID |
					 PERF_SAMPLE_STREAM_ID | PERF_SAMPLE_CPU |
					 PERF_SAMPLE_IDENTIFIER));
	if (words < body_words + n)
		return false;
	p += 8 * (words - n);
	if (type & PERF_SAMPLE_TID) {
		id->pid = (int32_t)load32(p);
		id->tid = (int32_t)load32(p + 4);
		p += 8;
	}
	if (type & PERF_SAMPLE_TIME) {
		id->time = load64(p);
		p += 8;
	}
	p += 8 * (!!(type & PERF_SAMPLE_ID) + !!(type & PERF_SAMPLE_STREAM_ID));
	if (type & PERF_SAMPLE_CPU)
		id->cpu = load32(p);
	return true;
}

/* Decodes records other than samples that the kernel writes; p: the body, words u64s long. */
static void decode_other(struct perf_file *pf, struct decoded *out, uint32_t type, uint16_t misc,
			 const unsigned char *p, size_t words, struct strings *strings)
{
	/* u64s in each record before its trailer, without strings */
	static const uint8_t body[KERNEL_RECORD_LAST_KNOWN + 1] = {
		[PERF_RECORD_LOST] = 2,
		[PERF_RECORD_COMM] = 2,
		[PERF_RECORD_EXIT] = 3,
		[PERF_RECORD_FORK] = 3,
		[PERF_RECORD_THROTTLE] = 3,
		[PERF_RECORD_UNTHROTTLE] = 3,
		[PERF_RECORD_AUX] = 3,
		[PERF_RECORD_LOST_SAMPLES] = 1,
		[PERF_RECORD_SWITCH_CPU_WIDE] = 1,
	};
	struct nsight_event ev = {.cpu = NSIGHT_NO_CPU};
	struct sample_id id;

	if (!decode_trailer(pf, p, words, body[type], &id)) {
		out->n_malformed++;
		return;
	}
	ev.ts = id.time;
	ev.pid = id.pid;
	ev.tid = id.tid;
	/* perf itself writes records with time 0 and cpu 0 or -1: they belong to no core */
	ev.cpu = id.time && id.cpu < NSIGHT_NO_CPU ? id.cpu : NSIGHT_NO_CPU;

	switch (type) {
	case PERF_RECORD_LOST:
		out->n_lost_records++;
		out->n_lost_events += load64(p + 8);
		ev.kind = K_LOST;
		ev.a = (int64_t)load64(p + 8);
		break;
	case PERF_RECORD_LOST_SAMPLES:
		out->n_lost_samples += load64(p);
		return;
	case PERF_RECORD_AUX:
		out->n_aux_truncated += load64(p + 16) & PERF_AUX_FLAG_TRUNCATED ? 1 : 0;
		return;
	case PERF_RECORD_COMM:
		ev.kind = K_COMM;
		ev.pid = (int32_t)load32(p);
		ev.a = (int32_t)load32(p + 4);
		ev.b = misc & PERF_RECORD_MISC_COMM_EXEC ? 1 : 0;
		ev.c = strings_intern(strings, (const char *)p + 8, 8 * words - 8);
		break;
	case PERF_RECORD_FORK:
	case PERF_RECORD_EXIT: /* u32 pid, ppid, tid, ptid; u64 time */
		ev.kind = type == PERF_RECORD_FORK ? K_FORK : K_EXIT;
		ev.pid = (int32_t)load32(p);
		ev.c = (int32_t)load32(p + 4);
		ev.a = (int32_t)load32(p + 8);
		ev.b = (int32_t)load32(p + 12);
		break;
	case PERF_RECORD_SWITCH:
	case PERF_RECORD_SWITCH_CPU_WIDE:
		ev.kind = misc & PERF_RECORD_MISC_SWITCH_OUT ? K_SWITCH_OUT : K_SWITCH_IN;
		ev.a = ev.b = -1;
		if (type == PERF_RECORD_SWITCH_CPU_WIDE) {
			ev.b = (int32_t)load32(p);
			ev.a = (int32_t)load32(p + 4);
		}
		ev.c = misc & PERF_RECORD_MISC_SWITCH_OUT_PREEMPT ? 1 : 0;
		break;
	case PERF_RECORD_THROTTLE:
	case PERF_RECORD_UNTHROTTLE:
		ev.kind = type == PERF_RECORD_THROTTLE ? K_THROTTLE : K_UNTHROTTLE;
		out->n_throttled += type == PERF_RECORD_THROTTLE;
		break;
	default: /* mappings, programs, symbols: not contexts */
		return;
	}
	event_add(out, &ev);
}

static void decode_user(struct perf_file *pf, struct decoded *out, uint32_t type,
			const unsigned char *p, size_t words)
{
	switch (type) {
	case USER_RECORD_TIME_CONV: /* u64 shift, mult, zero */
		if (words < 3) {
			out->n_malformed++;
			return;
		}
		out->have_time_conv = true;
		out->time_shift = load64(p);
		out->time_mult = load64(p + 8);
		out->time_zero = load64(p + 16);
		if (out->want_wide)
			wide_clock(out, p, words);
		break;
	case USER_RECORD_AUXTRACE_INFO: /* u32 type */
		if (words)
			out->auxtrace_type = load32(p);
		break;
	case USER_RECORD_AUXTRACE_ERROR:
		out->n_aux_errors++;
		break;
	case USER_RECORD_COMPRESSED:
	case USER_RECORD_COMPRESSED2:
		die(EXIT_BAD_INPUT, "record again without perf record -z", "%s: compressed",
		    pf->r.path);
	}
}

void records_read(struct perf_file *pf, struct strings *strings, bool wide, struct decoded *out)
{
	uint64_t off = pf->data_start, end = pf->data_end;

	memset(out, 0, sizeof(*out));
	out->want_wide = wide;
	while (end - off >= 8) {
		const unsigned char *p = reader_at(&pf->r, off, 8);
		uint32_t type = p ? load32(p) : 0;
		uint16_t misc = p ? load16(p + 4) : 0, size = p ? load16(p + 6) : 0;
		uint64_t skip = size;

		if (!p || size > end - off)
			break; /* truncated in the middle of a record */
		if (size < 8 || size % 8) {
			/* nothing says where the next record starts */
			out->undecodable_bytes = end - off;
			return;
		}
		p = reader_at(&pf->r, off, size);
		if (!p)
			break;
		if (type == PERF_RECORD_SAMPLE)
			sample_decode(pf, out, p + 8, size / 8 - 1, strings);
		else if (type && type <= KERNEL_RECORD_LAST_KNOWN)
			decode_other(pf, out, type, misc, p + 8, size / 8 - 1, strings);
		else if (type >= USER_RECORD_FIRST && type <= USER_RECORD_LAST_KNOWN)
			decode_user(pf, out, type, p + 8, size / 8 - 1);
		else
			out->n_unknown_records++;
		if (type == USER_RECORD_AUXTRACE &&
		    size >= 16) { /* trace data follows the record */
			uint64_t aux = load64(p + 8);

			if (aux > end - off - size) {
				pf->truncated_bytes += aux - (end - off - size);
				aux = end - off - size;
			}
			out->auxtrace_bytes += aux;
			skip += aux;
		}
		off += skip;
	}
	/* the rest of a record that was being written when perf or the copy was cut */
	pf->truncated_bytes += end - off;
}
