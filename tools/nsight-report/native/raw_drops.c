// SPDX-License-Identifier: GPL-2.0-only
/* Packets that the kernel dropped. */
#include "raw_events.h"

/* An address of the drop before. */
static void put_address(struct merge *m, struct nsight_event *ev, enum nsight_kind kind,
			uint64_t high, uint64_t low)
{
	ev->kind = kind;
	ev->a = (int64_t)high;
	ev->b = (int64_t)low;
	raw_put(m, ev);
}

void raw_put_drop(struct merge *m, struct nsight_event *ev, const unsigned char *p,
		  unsigned int type)
{
	uint64_t w = raw_word(p, 1);

	ev->kind = K_NET_DROP;
	ev->a = (int64_t)((w & 0xffff) | (raw_word(p, 3) >> 48 & 0xff) << 16 |
			  raw_word(p, 2) >> 32 << 32);
	/* Kernel code address: in the upper half of the address space. */
	ev->b = (int64_t)(raw_word(p, 3) << 16) >> 16;
	ev->c = load32(p + 16);
	raw_put(m, ev);
	ev->c = type == NSR_DROP_V4;
	if (type == NSR_DROP_V4) {
		put_address(m, ev, K_NET_DROP_SOURCE, 0, load32(p + 32));
		put_address(m, ev, K_NET_DROP_DESTINATION, 0, load32(p + 36));
	} else if (type == NSR_DROP_V6) {
		put_address(m, ev, K_NET_DROP_SOURCE, raw_word(p, 4), raw_word(p, 5));
		put_address(m, ev, K_NET_DROP_DESTINATION, raw_word(p, 6), raw_word(p, 7));
	}
}
