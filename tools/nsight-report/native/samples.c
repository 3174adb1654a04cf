// SPDX-License-Identifier: GPL-2.0-only
#include "samples.h"

#include "event_fields.h"
#include "tracepoint_fields.h"

/* PERF_SAMPLE_READ: a value, or a group of values; returns its number of u64s, SIZE_MAX if too
 * long. */
static size_t read_words(const struct perf_event_attr *attr, const unsigned char *p, size_t words)
{
	uint64_t format = attr->read_format, nr = 1;
	size_t fixed = !!(format & PERF_FORMAT_TOTAL_TIME_ENABLED) +
		       !!(format & PERF_FORMAT_TOTAL_TIME_RUNNING);
	size_t each =
		1 + !!(format & PERF_FORMAT_ID) + !!(format & (1u << 4) /* PERF_FORMAT_LOST */);

	if (format & PERF_FORMAT_GROUP) {
		if (!words)
			return SIZE_MAX;
		nr = load64(p);
		fixed++;
	}
	if (fixed > words || nr > (words - fixed) / each)
		return SIZE_MAX;
	return fixed + nr * each;
}

/* The event of a sample: files with one event have no ids, newer files have the id first. */
static struct perf_evt *sample_evt(const struct perf_file *pf, const unsigned char *p, size_t words)
{
	uint64_t type = pf->evts[0].attr.sample_type;
	size_t at = 0;

	if (pf->n_evts == 1)
		return &pf->evts[0];
	if (!(type & PERF_SAMPLE_IDENTIFIER)) {
		if (!(type & PERF_SAMPLE_ID))
			return NULL;
		at = !!(type & PERF_SAMPLE_IP) + !!(type & PERF_SAMPLE_TID) +
		     !!(type & PERF_SAMPLE_TIME) + !!(type & PERF_SAMPLE_ADDR);
	}
	return at < words ? perf_file_evt(pf, load64(p + 8 * at)) : NULL;
}

void sample_decode(struct perf_file *pf, struct decoded *out, const unsigned char *p, size_t words,
		   struct strings *strings)
{
	const unsigned char *end = p + 8 * words;
	struct perf_evt *evt = sample_evt(pf, p, words);
	struct sample_id id = {.pid = -1, .tid = -1, .cpu = NSIGHT_NO_CPU};
	uint64_t type, fixed;
	size_t n;

	out->n_samples++;
	if (!evt) {
		out->n_unknown_ids++;
		return;
	}
	evt->n_samples++;
	switch (evt->fate) {
	case FATE_UNUSED:
		out->n_unused++;
		return;
	case FATE_NO_FORMAT:
		out->n_without_format++;
		return;
	case FATE_BAD_FORMAT:
		out->n_bad_format++;
		return;
	case FATE_DECODED:
		break;
	}

	type = evt->attr.sample_type;
	fixed = type & (PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_IP | PERF_SAMPLE_TID |
			PERF_SAMPLE_TIME | PERF_SAMPLE_ADDR | PERF_SAMPLE_ID |
			PERF_SAMPLE_STREAM_ID | PERF_SAMPLE_CPU | PERF_SAMPLE_PERIOD);
	if (!(type & PERF_SAMPLE_RAW) || words < (size_t)__builtin_popcountll(fixed))
		goto malformed;
	p += type & PERF_SAMPLE_IDENTIFIER ? 8 : 0;
	p += type & PERF_SAMPLE_IP ? 8 : 0;
	if (type & PERF_SAMPLE_TID) {
		id.pid = (int32_t)load32(p);
		id.tid = (int32_t)load32(p + 4);
		p += 8;
	}
	if (type & PERF_SAMPLE_TIME) {
		id.time = load64(p);
		p += 8;
	}
	p += 8 * (!!(type & PERF_SAMPLE_ADDR) + !!(type & PERF_SAMPLE_ID) +
		  !!(type & PERF_SAMPLE_STREAM_ID));
	if (type & PERF_SAMPLE_CPU) {
		id.cpu = load32(p);
		p += 8;
	}
	p += type & PERF_SAMPLE_PERIOD ? 8 : 0;
	if (type & PERF_SAMPLE_READ) {
		n = read_words(&evt->attr, p, (end - p) / 8);
		if (n == SIZE_MAX)
			goto malformed;
		p += 8 * n;
	}
	if (type & PERF_SAMPLE_CALLCHAIN) {
		if (end - p < 8 || load64(p) > (uint64_t)(end - p) / 8 - 1)
			goto malformed;
		p += 8 * (1 + load64(p));
	}
	if (end - p < 4 || load32(p) > end - p - 4)
		goto malformed;
	if (evt->plan->wide)
		wide_decode(out, evt->plan, &id, p + 4, load32(p));
	else
		event_decode(out, evt->plan, &id, p + 4, load32(p), strings);
	return;
malformed:
	out->n_malformed++;
}
