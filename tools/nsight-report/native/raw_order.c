// SPDX-License-Identifier: GPL-2.0-only
/* Sorts the items of one core by time, with pairs nested. */
#include "raw_events.h"
#include "raw_file.h"
#include "util.h"

#include <stdlib.h>

#define DIGIT_BITS 11
#define N_DIGITS   (1u << DIGIT_BITS)
#define MAX_BACK   64

/* More switches and calls at the same time mean damage: their places are not searched. */
#define MAX_LOOKED_AT 256

/* How many items back the place of steal time is searched; how much its clock may differ. */
#define MAX_LOOKED_BACK 4096
#define STEAL_SLACK_NS	2000

/* Items with the same time, in their order within a thread's stay on the core */
enum rank {
	RANK_LOST,   /* nothing before it is known */
	RANK_ABSENT, /* the core was away, whatever goes on */
	RANK_END,
	RANK_AT,
	RANK_BEGIN,
	RANK_SWITCH, /* ends the stay */
	RANK_GAP,
};

struct placed {
	struct raw_item item;
	uint64_t key; /* within a rank: smallest first */
	size_t order; /* in the file */
	uint32_t stay;
	uint8_t rank;
};

struct group {
	struct placed *placed;
	size_t cap;
};

static bool is_switch(const struct raw_item *item)
{
	return item->role == ROLE_AT &&
	       (item->type == NSR_SWITCH || item->type == NSR_SWITCH_SYSCALL);
}

/* Radix sort, least significant digit first, stable: its time does not depend on the content. */
static void sort_far(struct raw_item **items, size_t n)
{
	struct raw_item *from = *items, *to = xrealloc(NULL, n + 1, sizeof(*to));
	uint64_t least = UINT64_MAX, most = 0;

	for (size_t i = 0; i < n; i++) {
		least = from[i].ts < least ? from[i].ts : least;
		most = from[i].ts > most ? from[i].ts : most;
	}
	for (int shift = 0; n && shift < 64 && (most - least) >> shift; shift += DIGIT_BITS) {
		size_t count[N_DIGITS] = {0}, at = 0;
		struct raw_item *swap = from;

		for (size_t i = 0; i < n; i++)
			count[(from[i].ts - least) >> shift & (N_DIGITS - 1)]++;
		for (unsigned int d = 0; d < N_DIGITS; d++) {
			size_t here = count[d];

			count[d] = at;
			at += here;
		}
		for (size_t i = 0; i < n; i++)
			to[count[(from[i].ts - least) >> shift & (N_DIGITS - 1)]++] = from[i];
		from = to;
		to = swap;
	}
	free(to);
	*items = from;
}

/*
 * Records are nearly in order, and most pairs are short, so an item moves back a few places. Items
 * that have to move farther (the begin of a call that slept) are sorted separately and merged.
 */
static void sort_by_time(struct raw_item *items, size_t n)
{
	size_t n_near = 0, n_far = 0, cap_far = 0;
	struct raw_item *far = NULL;

	for (size_t i = 0; i < n; i++) {
		struct raw_item item = items[i];
		size_t to = n_near, least = n_near > MAX_BACK ? n_near - MAX_BACK : 0;

		while (to > least && items[to - 1].ts > item.ts)
			to--;
		if (to && to == least && items[to - 1].ts > item.ts) {
			GROW(far, n_far, cap_far);
			far[n_far++] = item;
			continue;
		}
		for (size_t k = n_near++; k > to; k--)
			items[k] = items[k - 1];
		items[to] = item;
	}
	sort_far(&far, n_far);
	for (size_t to = n; n_far; to--)
		items[to - 1] = n_near && items[n_near - 1].ts > far[n_far - 1].ts ? items[--n_near]
										   : far[--n_far];
	free(far);
}

static int compare(const void *left, const void *right)
{
	const struct placed *a = left, *b = right;

	if (a->stay != b->stay)
		return a->stay < b->stay ? -1 : 1;
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	if (a->key != b->key)
		return a->key < b->key ? -1 : 1;
	return a->order < b->order ? -1 : a->order > b->order;
}

/* The thread of a system call, else -1 */
static int32_t caller(const struct raw_item *item, const unsigned char *p)
{
	if (item->type == NSR_SYSCALL)
		return raw_syscall_tid(p);
	return item->type == NSR_SWITCH_SYSCALL ? raw_prev_tid(p) : -1;
}

/*
 * Switches at this time divide it into stays. Returns the stay in which a system call of tid begins
 * (the last one) or ends (the first one). No other pair spans a switch.
 */
static uint32_t stay_of(const struct raw_file *file, const struct group *group, size_t n,
			uint32_t n_switches, bool begins, int32_t tid)
{
	uint32_t stay = 0, found = begins ? n_switches : 0;
	bool any = false;

	if (tid < 0 || !n_switches || n > MAX_LOOKED_AT)
		return found;
	for (size_t i = 0; i < n; i++) {
		const struct raw_item *item = &group->placed[i].item;

		if (!is_switch(item))
			continue;
		/* a thread that left with the first switch had the first stay */
		if (!stay && raw_prev_tid(raw_at(file, item)) == tid) {
			found = 0;
			any = true;
		}
		stay++;
		if (raw_next_tid(raw_at(file, item)) == tid && (begins || !any)) {
			found = stay;
			any = true;
		}
	}
	return found;
}

static void place(const struct raw_file *file, struct group *group, size_t n, uint32_t n_switches,
		  uint32_t stay, struct placed *placed)
{
	const struct raw_item *item = &placed->item;
	bool pair = item->role == ROLE_BEGIN || item->role == ROLE_END;
	const unsigned char *p = item->role < ROLE_GAP ? raw_at(file, item) : NULL;
	uint64_t dur = 0;

	placed->stay = stay;
	placed->rank = RANK_AT;
	placed->key = 0;
	if (pair) /* the end of a call in a switch record is unknown here */
		dur = item->type == NSR_SWITCH_SYSCALL ? UINT64_MAX : raw_dur(p);
	if (item->role == ROLE_LOST) {
		placed->stay = 0;
		placed->rank = RANK_LOST;
	} else if (item->role == ROLE_GAP) {
		placed->stay = n_switches;
		placed->rank = RANK_GAP;
	} else if (item->type == NSR_STEAL) {
		placed->rank = RANK_ABSENT;
	} else if (is_switch(item)) {
		placed->rank = RANK_SWITCH;
	} else if (pair) {
		placed->stay = dur || caller(item, p) >= 0
				       ? stay_of(file, group, n, n_switches,
						 item->role == ROLE_BEGIN || !dur, caller(item, p))
				       : stay;
		/* a pair of zero length stays together: it ends before others begin */
		if (dur && item->role == ROLE_END) {
			placed->rank = RANK_END;
			placed->key = dur;
		} else if (dur) {
			placed->rank = RANK_BEGIN;
			placed->key = ~dur;
			/* equal lengths: the outer one was written last */
			placed->order = n - placed->order;
		}
	}
}

/* Sort items of the same time: the last one begun ends first, and all ends come before begins. */
static void order_group(const struct raw_file *file, struct group *group, struct raw_item *items,
			size_t n)
{
	uint32_t n_switches = 0, stay = 0;

	if (group->cap < n) {
		group->cap = n * 2;
		group->placed = xrealloc(group->placed, group->cap, sizeof(*group->placed));
	}
	for (size_t i = 0; i < n; i++) {
		group->placed[i] = (struct placed){.item = items[i], .order = i};
		n_switches += is_switch(&items[i]);
	}
	for (size_t i = 0; i < n; i++) {
		place(file, group, n, n_switches, stay, &group->placed[i]);
		stay += is_switch(&items[i]);
	}
	qsort(group->placed, n, sizeof(*group->placed), compare);
	for (size_t i = 0; i < n; i++)
		items[i] = group->placed[i].item;
}

/*
 * The time of a switch that no tracepoint showed is the scheduler's, and may be some microseconds
 * late. What was written after the switch before it, and after the last record of the thread that
 * left, came after it. (Of a system call only its end did.)
 */
static void place_untraced(struct raw_file *file)
{
	uint64_t since = 0, first = UINT64_MAX, late;
	struct raw_item *woken = NULL; /* by nobody who is known, for the next switch */
	int32_t runs = -1, told;

	for (size_t i = 0; i < file->n_items; i++) {
		struct raw_item *item = &file->items[i];
		bool call = item->type == NSR_SYSCALL || item->type == NSR_SWITCH_SYSCALL;
		const unsigned char *p;

		if (item->role >= ROLE_GAP || item->type == NSR_STEAL)
			continue;
		p = raw_at(file, item);
		if (is_switch(item)) {
			late = raw_word(p, 1) >> (2 * NSR_TID_BITS) & NSR_UNTRACED &&
					       item->ts >= first
				       ? item->ts - first + 1
				       : 0;
			item->ts -= late;
			if (woken && woken->ts > late)
				woken->ts -= late;
			since = item->ts;
			first = UINT64_MAX;
			runs = raw_next_tid(p);
			woken = NULL;
			continue;
		}
		if (item->type == NSR_WAKING && raw_word(p, 1) & NSR_WAKING_UNTRACED) {
			woken = item;
			continue;
		}
		told = raw_told_thread(item, p);
		if (told >= 0 && told == runs)
			first = UINT64_MAX;
		else if (item->ts > since && item->ts < first &&
			 !(call && item->role == ROLE_BEGIN))
			first = item->ts;
	}
}

/* The thread that a record names on a core without any switch; it ran there all the time */
static int32_t only_thread(const struct raw_file *file)
{
	for (size_t i = 0; i < file->n_items; i++) {
		const struct raw_item *item = &file->items[i];

		if (item->type == NSR_SYSCALL)
			return raw_syscall_tid(raw_at(file, item));
		if (item->type == NSR_WAKING)
			return raw_told_thread(item, raw_at(file, item));
	}
	if (file->n_messages) {
		uint32_t tid = raw_message_tid(file, &file->messages[0]);

		return tid <= RAW_TID_MASK ? (int32_t)tid : -1;
	}
	return -1;
}

/* Until the first switch, and from a gap to the next switch, the running thread is the one that
 * this switch takes away. */
static void find_threads(struct raw_file *file)
{
	int32_t tid = -1;
	bool any = false;

	for (size_t i = file->n_items; i-- > 0;) {
		const struct raw_item *item = &file->items[i];

		if (is_switch(item)) {
			tid = raw_prev_tid(raw_at(file, item));
			any = true;
		} else if (item->role == ROLE_LOST) {
			file->gaps[item->unit].tid = tid;
			/* before it another one may have run: only earlier switches show that */
			tid = -1;
		}
	}
	file->tid = any || file->n_gaps ? tid : only_thread(file);
}

/*
 * A core that the host took away did nothing then. Since the steal time was last read (which
 * happens at each switch), the core was away at the end of the longest time without any item, if
 * that was long enough. A thread can have run in the rest of it: if that is more than the steal
 * time, no place is known. An idle core is different: the host owes it nothing until something
 * wakes it, and then it begins with that.
 */
static bool place_steal(struct raw_file *file, size_t at)
{
	struct raw_item *items = file->items;
	uint64_t ns = raw_word(raw_at(file, &items[at]), 1) & ((1ull << 48) - 1), longest = 0;
	size_t end = at, least = at > MAX_LOOKED_BACK ? at - MAX_LOOKED_BACK : 0;
	bool was_idle;

	for (size_t i = at; i > least && items[i - 1].type != NSR_STEAL; i--) {
		if (items[i].ts - items[i - 1].ts > longest) {
			longest = items[i].ts - items[i - 1].ts;
			end = i;
		}
		if (is_switch(&items[i - 1]))
			break;
	}
	was_idle = end && items[end - 1].type == NSR_IDLE && items[end - 1].role == ROLE_BEGIN;
	items[at].placed = ns && longest + STEAL_SLACK_NS >= ns &&
			   (was_idle || longest <= 2 * ns + STEAL_SLACK_NS);
	if (!items[at].placed || items[end].ts == items[at].ts)
		return false;
	items[at].ts = items[end].ts;
	return true;
}

static void place_steals(struct raw_file *file)
{
	bool moved = false;

	if (file->cpu == NSR_NO_CPU)
		return;
	for (size_t i = 0; i < file->n_items; i++)
		if (file->items[i].type == NSR_STEAL && file->items[i].role == ROLE_AT)
			moved |= place_steal(file, i);
	if (moved)
		sort_by_time(file->items, file->n_items);
}

void raw_file_order(struct raw_file *file)
{
	struct group group = {0};
	size_t n;

	place_untraced(file);
	sort_by_time(file->items, file->n_items);
	place_steals(file);
	for (size_t i = 0; i < file->n_items; i += n) {
		for (n = 1; i + n < file->n_items && file->items[i + n].ts == file->items[i].ts;)
			n++;
		if (n > 1)
			order_group(file, &group, &file->items[i], n);
	}
	free(group.placed);
	find_threads(file);
}
