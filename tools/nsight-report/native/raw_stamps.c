// SPDX-License-Identifier: GPL-2.0-only
#include "raw_events.h"
#include "stamps.h"

#include <netinet/in.h>
#include <string.h>

/* The message of a record, whichever form it has; returns what follows it. */
static const unsigned char *message(const unsigned char *p, const struct raw_item *item,
				    struct nsr_message *m)
{
	unsigned int kind = nsr_counted(item->type) >> 2 & 7;
	bool of_packet = kind == NSR_ARRIVAL || kind == NSR_XMIT;
	struct nsr_short s;

	if (!(item->type & NSR_SHORT)) {
		memcpy(m, p, sizeof(*m));
		return p + sizeof(*m);
	}
	memcpy(&s, p, sizeof(s));
	*m = (struct nsr_message){
		.sk = s.sk,
		.seq = s.seq,
		.len = s.len,
		.laddr = s.laddr,
		.raddr = s.raddr,
		.lport = s.lport,
		.rport = s.rport,
		.netns = s.netns,
		.tid = s.tid & RAW_TID_MASK,
		.fd = (int16_t)(s.sk >> 48),
		.aux = of_packet ? s.tid >> NSR_TID_BITS & ((1 << NSR_SHORT_AUX_BITS) - 1)
				 : (uint32_t)s.aux,
		.proto = s.tid >> 31 ? IPPROTO_UDP : IPPROTO_TCP,
		.stamp = of_packet && s.aux ? item->ts - s.aux : 0,
	};
	return p + sizeof(s);
}

uint32_t raw_message_tid(const struct raw_file *file, const struct raw_item *item)
{
	struct nsr_message m;

	message(raw_at(file, item), item, &m);
	return m.tid;
}

static void fill(struct raw_recording *rec, const struct raw_file *file,
		 const struct raw_item *item, struct nsight_stamp *s)
{
	struct nsr_message m;
	const unsigned char *more = message(raw_at(file, item), item, &m);

	*s = (struct nsight_stamp){
		.ts = item->ts,
		.sk = raw_socket(m.sk),
		.laddr_lo = m.laddr,
		.raddr_lo = m.raddr,
		.aux = m.aux,
		.len = (int32_t)m.len,
		.seq = m.seq,
		.netns = m.netns,
		.tid = m.tid,
		.fd = -1,
		.cpu = file->cpu,
		.lport = m.lport,
		.rport = m.rport,
		.kind = nsr_counted(item->type) >> 2 & 7,
		.family = item->type & NSR_V6 ? 10 : 2,
		.proto = m.proto,
	};
	switch (s->kind) {
	case NSR_ARRIVAL:
	case NSR_XMIT: /* the TCP header's flags are one byte */
		s->aux = (int64_t)(uint32_t)m.fd << 8 | (m.aux & 0xff);
		s->swstamp = m.stamp;
		break;
	case NSR_READ:
	case NSR_SEND:
		s->fd = m.fd;
		s->call_ts = m.stamp;
		break;
	case NSR_COMPLETION:
		s->swstamp = m.stamp;
		break;
	case NSR_STATE:
		s->len = m.old_state;
		break;
	}
	if (item->type & NSR_V6) {
		s->laddr_hi = load64(more);
		s->laddr_lo = load64(more + 8);
		s->raddr_hi = load64(more + 16);
		s->raddr_lo = load64(more + 24);
		more += 32;
	}
	if (item->type & NSR_HW)
		s->hwstamp = load64(more);
	raw_threads_at(&rec->threads, m.tid, item->ts, &s->comm, &s->pid);
	if (!m.tid) {
		s->comm = file->idle;
		s->pid = 0;
	}
}

void raw_write_stamps(struct raw_recording *rec, FILE *out)
{
	for (size_t i = 0; i < rec->n_files; i++) {
		const struct raw_file *file = &rec->files[i];

		for (size_t k = 0; k < file->n_messages; k++) {
			struct nsight_stamp stamp;

			fill(rec, file, &file->messages[k], &stamp);
			fwrite(&stamp, sizeof(stamp), 1, out);
			rec->n_messages++;
		}
	}
}

void raw_write_intervals(struct raw_recording *rec, FILE *out)
{
	for (size_t i = 0; i < rec->n_files; i++) {
		const struct raw_file *file = &rec->files[i];

		for (size_t k = 0; k < file->n_intervals; k++) {
			const unsigned char *p = raw_at(file, &file->intervals[k]);
			struct nsight_interval interval = {
				.stop = file->intervals[k].ts,
				.tid = raw_syscall_tid(p),
				.cpu = file->cpu,
				.name = (uint16_t)raw_word(p, 2),
				.begin_tid = raw_word(p, 2) >> 16 & RAW_TID_MASK,
				.begin_cpu = (uint16_t)(raw_word(p, 2) >> (16 + NSR_TID_BITS)),
			};
			uint64_t after = raw_word(p, 3);

			interval.start = interval.stop - raw_dur(p);
			if (after >> 63 && (after & RAW_DUR_MASK) <= raw_dur(p))
				interval.handover = interval.start + (after & RAW_DUR_MASK);
			raw_threads_at(&rec->threads, interval.tid, interval.stop, &interval.comm,
				       &interval.pid);
			fwrite(&interval, sizeof(interval), 1, out);
			rec->n_intervals++;
		}
	}
}
