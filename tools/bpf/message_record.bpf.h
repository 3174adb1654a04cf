/* SPDX-License-Identifier: GPL-2.0-only */
/* The record of a message, in its short form if all values have room. */
#ifndef NSIGHT_MESSAGE_RECORD_BPF_H
#define NSIGHT_MESSAGE_RECORD_BPF_H

#include "headers.bpf.h"
#include "ring.bpf.h"

/* The last word of a short record; false: a value has no room. */
static __always_inline bool fits(enum nsr_stamp stamp, __u64 now, const struct nsr_message *m,
				 __u64 *last)
{
	__u64 aux = 0, rest = m->aux;

	if (stamp > NSR_XMIT || (m->proto != IPPROTO_TCP && m->proto != IPPROTO_UDP))
		return false;
	if (m->fd < -32768 || m->fd > 32767 || m->tid >> NSR_TID_BITS)
		return false;
	if (stamp == NSR_ARRIVAL || stamp == NSR_XMIT) {
		aux = m->aux;
		rest = m->stamp ? now - m->stamp : 0;
		if (aux >> NSR_SHORT_AUX_BITS || (m->stamp && !rest) ||
		    (__s64)(rest << 32) >> 32 != (__s64)rest)
			return false;
	} else if (m->stamp) {
		return false;
	}
	*last = m->tid | aux << NSR_TID_BITS | (__u64)(m->proto == IPPROTO_UDP) << 31 | rest << 32;
	return true;
}

/* Fill and commit a record of a message; ``m`` has everything but the first word and the addresses.
 */
static __always_inline void put_message(struct nsr_control *c, enum nsr_stamp stamp, __u64 now,
					bool v6, const struct nsr_message *m,
					const struct addresses *a, __u64 hardware)
{
	__u64 index, *record, last;
	__u32 type;

	/* The verifier needs constant sizes, so each type has its own reservation. */
#define PUT_SHORT(flags)                                                                           \
	type = NSR_MESSAGE | stamp << 2 | NSR_SHORT | (flags);                                     \
	record = reserve(c, type, now, &index);                                                    \
	if (!record)                                                                               \
		return;                                                                            \
	record[1] = m->sk; /* the verifier forbids arithmetic with an address */                   \
	((__s16 *)&record[1])[3] = m->fd;                                                          \
	record[2] = m->seq | (__u64)m->len << 32;                                                  \
	record[3] = (flags)&NSR_V6 ? 0 : (__u32)a->l_lo | a->r_lo << 32;                           \
	record[4] = m->lport | (__u64)m->rport << 16 | (__u64)m->netns << 32;                      \
	record[5] = last;                                                                          \
	if ((flags)&NSR_V6) {                                                                      \
		record[6] = a->l_hi;                                                               \
		record[7] = a->l_lo;                                                               \
		record[8] = a->r_hi;                                                               \
		record[9] = a->r_lo;                                                               \
	}                                                                                          \
	commit(record, index, type, now);

	if (!hardware && fits(stamp, now, m, &last)) {
		if (v6) {
			PUT_SHORT(NSR_V6)
		} else {
			PUT_SHORT(0)
		}
		return;
	}
#undef PUT_SHORT
#define PUT(flags)                                                                                 \
	type = NSR_MESSAGE | stamp << 2 | (flags);                                                 \
	record = reserve(c, type, now, &index);                                                    \
	if (!record)                                                                               \
		return;                                                                            \
	record[1] = m->sk;                                                                         \
	record[2] = m->seq | (__u64)m->len << 32;                                                  \
	record[3] = (flags)&NSR_V6 ? 0 : (__u32)a->l_lo | a->r_lo << 32;                           \
	record[4] = m->lport | (__u64)m->rport << 16 | (__u64)m->netns << 32;                      \
	record[5] = m->tid | (__u64)(__u32)m->fd << 32;                                            \
	record[6] = m->aux | (__u64)m->proto << 32 | (__u64)m->old_state << 40;                    \
	record[7] = m->stamp;                                                                      \
	if ((flags)&NSR_V6) {                                                                      \
		record[8] = a->l_hi;                                                               \
		record[9] = a->l_lo;                                                               \
		record[10] = a->r_hi;                                                              \
		record[11] = a->r_lo;                                                              \
	}                                                                                          \
	if ((flags)&NSR_HW) {                                                                      \
		record[(flags)&NSR_V6 ? 12 : 8] = hardware;                                        \
		record[(flags)&NSR_V6 ? 13 : 9] = 0;                                               \
	}                                                                                          \
	commit(record, index, type, now);

	if (stamp == NSR_ARRIVAL && hardware) {
		if (v6) {
			PUT(NSR_V6 | NSR_HW)
		} else {
			PUT(NSR_HW)
		}
	} else if (v6) {
		PUT(NSR_V6)
	} else {
		PUT(0)
	}
#undef PUT
}

#endif
