// SPDX-License-Identifier: GPL-2.0-only
#include "raw_file.h"

#include "events.h"
#include "util.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define TIME_MASK ((1ull << NSR_TIME_BITS) - 1)
#define MAX_TIME  ((uint64_t)INT64_MAX / 2) /* 146 years of ns, as in records.c */
/* 64 GiB for one core; an item has 32 bits for the position of its record */
#define MAX_UNITS UINT32_MAX
/*
 * Maximum growth of a compressed block. Each record differs from the one before, if only in its
 * time, which takes about a byte, and the longest has 112 bytes. A larger factor would let a small
 * file fill the memory.
 */
#define MAX_GROWTH 128

#define ADD(file, list, ...)                                                                       \
	do {                                                                                       \
		GROW((file)->list, (file)->n_##list, (file)->cap_##list);                          \
		(file)->list[(file)->n_##list++] = (struct raw_item){__VA_ARGS__};                 \
	} while (0)

static void add_item(struct raw_file *file, uint64_t ts, size_t unit, unsigned int type,
		     enum raw_role role)
{
	ADD(file, items, .ts = ts, .unit = unit, .type = type, .role = role);
}

/* A begin that is dur before the end. */
static bool add_pair(struct raw_file *file, uint64_t ts, size_t unit, unsigned int type,
		     struct raw_losses *losses)
{
	uint64_t dur = raw_dur(file->units + unit * NSR_UNIT);

	if (dur >= ts)
		return false;
	losses->saturated += dur == RAW_DUR_MASK;
	add_item(file, ts - dur, unit, type, ROLE_BEGIN);
	add_item(file, ts, unit, type, ROLE_END);
	return true;
}

/* Thread numbers are below PID_MAX_LIMIT; the idle thread does not count. */
static bool add_task(struct raw_file *file, uint64_t ts, unsigned int type, const unsigned char *p)
{
	uint32_t tid = load32(p + 8), pid = load32(p + 12);
	struct raw_task *task;

	if (!tid || tid > RAW_TID_MASK || pid > RAW_TID_MASK)
		return false;
	if (type == NSR_TASK && (p[32] > NSR_TASK_EXEC || load32(p + 36) > RAW_TID_MASK))
		return false;
	GROW(file->tasks, file->n_tasks, file->cap_tasks);
	task = &file->tasks[file->n_tasks++];
	*task = (struct raw_task){.ts = ts, .tid = tid, .pid = pid, .is_exit = type == NSR_EXIT};
	if (type == NSR_TASK) {
		memcpy(task->text, p + 16, sizeof(task->text));
		task->why = p[32];
	}
	return true;
}

/* Records were lost between the last record and this one. */
static void end_gap(struct raw_file *file, uint64_t ts)
{
	uint64_t units = file->pending_units;

	file->pending_units = 0;
	if (!file->want_activity)
		return;
	GROW(file->gaps, file->n_gaps, file->cap_gaps);
	file->gaps[file->n_gaps] = (struct raw_gap){.units = units, .tid = -1};
	if (ts > file->latest) {
		if (file->latest)
			add_item(file, file->latest, file->n_gaps, NSR_NONE, ROLE_GAP);
	} else {
		ts = file->latest; /* the time of a record that was written late */
	}
	add_item(file, ts, file->n_gaps++, NSR_NONE, ROLE_LOST);
}

/* false: the record contradicts itself */
static bool add_activity(struct raw_file *file, uint64_t ts, size_t unit, unsigned int type,
			 struct raw_losses *losses)
{
	const unsigned char *p = file->units + unit * NSR_UNIT;
	uint64_t entered, ago;

	switch (type) {
	case NSR_SWITCH_SYSCALL:
		entered = raw_word(p, 2) & TIME_MASK;
		ago = (ts - entered) & TIME_MASK;
		if (entered && ago >= ts)
			return false;
		if (entered)
			add_item(file, ts - ago, unit, type, ROLE_BEGIN);
		break;
	case NSR_VECTOR:
		if (raw_word(p, 1) >> NSR_DUR_BITS >= NSR_N_VECTORS)
			return false;
		return add_pair(file, ts, unit, type, losses);
	case NSR_SOFTIRQ:
	case NSR_IRQ:
	case NSR_IDLE:
	case NSR_SYSCALL:
		return add_pair(file, ts, unit, type, losses);
	case NSR_MEMORY:
		if (raw_memory(p) >= NSR_N_MEMORY || raw_dur(p) >= ts)
			return false;
	}
	add_item(file, ts, unit, type, ROLE_AT);
	return true;
}

static void add_record(struct raw_file *file, uint64_t ts, size_t unit, unsigned int type,
		       struct raw_losses *losses)
{
	const unsigned char *p = file->units + unit * NSR_UNIT;
	bool of_machine = type == NSR_TASK || type == NSR_STEAL || type == NSR_FREQUENCY;

	if (file->cpu == NSR_NO_CPU && !of_machine) {
		losses->misplaced++;
		return;
	}
	if ((type == NSR_TASK || type == NSR_EXIT) && !add_task(file, ts, type, p)) {
		losses->malformed++;
		return;
	}
	if (file->pending_units)
		end_gap(file, ts);
	if (type >= NSR_MESSAGE) {
		if (file->want_messages)
			ADD(file, messages, .ts = ts, .unit = unit, .type = type);
	} else if (type == NSR_INTERVAL && raw_dur(p) < ts && raw_syscall_tid(p)) {
		losses->saturated += raw_dur(p) == RAW_DUR_MASK;
		if (file->want_intervals)
			ADD(file, intervals, .ts = ts, .unit = unit, .type = type);
	} else if (type == NSR_INTERVAL ||
		   (file->want_activity && !add_activity(file, ts, unit, type, losses))) {
		losses->malformed++;
		return;
	}
	if (ts > file->latest)
		file->latest = ts;
}

/* The full time, whose lower bits are in head, near to that of the block; 0: impossible. */
static uint64_t full_time(uint64_t head, uint64_t near)
{
	uint64_t later = ((head >> 16) - near) & TIME_MASK, ts = near + later;

	if (later >> (NSR_TIME_BITS - 1))
		ts -= TIME_MASK + 1;
	return ts <= MAX_TIME ? ts : 0; /* a time before 0 wraps around to a huge one */
}

/* Units of the record at p; left is the rest of the block; 0: unknown. */
static size_t record_units(const unsigned char *p, unsigned int type, size_t left)
{
	if (type != NSR_PAD)
		return nsr_units(type);
	/* the padding of a page: more means damage */
	if (left && load32(p + 8) <= NSR_PAGE_UNITS)
		return load32(p + 8);
	return 0;
}

/*
 * Reads the records in the units from first on. cut: the block goes on after them. If a record does
 * not show where the next one begins, reading goes on with the next page.
 */
static void read_records(struct raw_file *file, size_t first, const struct nsr_block *block,
			 bool cut, struct raw_losses *losses)
{
	size_t end = file->n_units, unit = first;

	while (unit < end) {
		const unsigned char *p = file->units + unit * NSR_UNIT;
		uint64_t head = load64(p), place = block->number + (unit - first), ts;
		unsigned int type = head & 0xff;
		size_t n = record_units(p, type, end - unit);

		if (!n) {
			n = NSR_PAGE_UNITS - place % NSR_PAGE_UNITS;
			n = n < end - unit ? n : end - unit;
			losses->unknown_records++;
			losses->undecodable_bytes += n * NSR_UNIT;
			unit += n;
			continue;
		}
		if (n > end - unit) {
			if (cut)
				losses->truncated_bytes += (end - unit) * NSR_UNIT;
			else
				losses->malformed++;
			return;
		}
		if (type != NSR_PAD) {
			file->n_records++;
			file->present[nsr_counted(type)]++;
			ts = full_time(head, block->time);
			if (ts)
				add_record(file, ts, unit, type, losses);
			else
				losses->malformed++;
		}
		unit += n;
	}
}

/* Counts are totals: the last block's are valid. */
static void read_counts(struct raw_file *file, const unsigned char *p, size_t bytes,
			struct raw_losses *losses)
{
	const size_t of_counts = NSR_MULTIPATH * sizeof(uint64_t);
	size_t n = bytes < of_counts ? 0 : (bytes - of_counts) / sizeof(struct nsr_tally);

	/* The last count, or, in older files, 8 bytes that make a block a multiple of 16 */
	if (bytes < of_counts || (bytes - of_counts) % sizeof(struct nsr_tally) > 8 ||
	    n > NSR_N_TYPES) {
		losses->bad_blocks++;
		return;
	}
	for (size_t i = 0; i < n; i++, p += sizeof(struct nsr_tally)) {
		uint64_t type = load64(p), produced = load64(p + 8), lost = load64(p + 16);

		if (type >= NSR_N_TYPES || !nsr_units(type) || lost > produced ||
		    produced > MAX_TIME) {
			losses->bad_blocks++;
			continue;
		}
		file->told[type] = true;
		file->produced[type] = produced;
		file->lost[type] = lost;
	}
	for (size_t i = 0; i < NSR_N_COUNTS && i < (bytes - n * sizeof(struct nsr_tally)) / 8; i++)
		file->counts[i] = load64(p + 8 * i) & MAX_TIME;
}

/* Make room for bytes more after the units. */
static unsigned char *make_room(struct raw_file *file, size_t bytes)
{
	size_t need = file->n_units + bytes / NSR_UNIT + 1;

	while (file->cap_units < need) {
		file->cap_units = file->cap_units ? file->cap_units * 2 : 1024;
		file->units = xrealloc(file->units, file->cap_units, NSR_UNIT);
	}
	return file->units + file->n_units * NSR_UNIT;
}

/* Decompress the block after the units; false: damaged. */
static bool unpack(struct raw_file *file, const struct nsr_block *block, const unsigned char *p)
{
	unsigned char *to = make_room(file, block->bytes);
	size_t got;

	if (!(block->flags & NSR_ZSTD)) {
		memcpy(to, p, block->bytes);
		return true;
	}
	got = ZSTD_decompress(to, block->bytes, p, block->stored_bytes);
	return !ZSTD_isError(got) && got == block->bytes;
}

static bool sane(const struct nsr_block *block)
{
	bool packed = block->flags & NSR_ZSTD;

	if (block->flags & ~NSR_ZSTD || block->bytes > NSR_MAX_BLOCK || block->time > MAX_TIME ||
	    block->number > UINT64_MAX / 2)
		return false;
	if (block->kind == NSR_RECORDS && block->bytes % NSR_UNIT)
		return false;
	return packed ? block->bytes / MAX_GROWTH <= block->stored_bytes
		      : block->stored_bytes == block->bytes;
}

/* Units that were in the ring but are not in the file */
static void find_gap(struct raw_file *file, const struct nsr_block *block,
		     struct raw_losses *losses)
{
	if (file->have_number && block->number > file->next_number) {
		file->pending_units += block->number - file->next_number;
		losses->lost_units += block->number - file->next_number;
	} else if (file->have_number && block->number < file->next_number) {
		losses->bad_blocks++;
	}
	file->have_number = true;
	file->next_number = block->number + block->bytes / NSR_UNIT;
}

static void read_block(struct raw_file *file, struct nsr_block *block, const unsigned char *p,
		       bool cut, struct raw_losses *losses)
{
	size_t first = file->n_units;

	if (block->kind < NSR_RECORDS || block->kind > NSR_END) {
		losses->unknown_blocks++;
		return;
	}
	if (!sane(block) || !unpack(file, block, p)) {
		losses->bad_blocks++;
		losses->undecodable_bytes += block->stored_bytes;
		return;
	}
	if (block->kind != NSR_RECORDS) {
		read_counts(file, file->units + first * NSR_UNIT, block->bytes, losses);
		file->ended = block->kind == NSR_END;
		return;
	}
	if (block->bytes / NSR_UNIT > MAX_UNITS - file->n_units)
		die(EXIT_BAD_INPUT, "record for a shorter time", "cpu-%u.records: too large",
		    file->cpu);
	find_gap(file, block, losses);
	file->n_units += block->bytes / NSR_UNIT;
	read_records(file, first, block, cut, losses);
}

/* Read blocks from off to the end of the file, as far as possible. */
static void read_blocks(struct raw_file *file, struct reader *r, struct raw_losses *losses)
{
	/* incompressible data may grow by this in compression */
	const uint32_t max_stored = ZSTD_compressBound(NSR_MAX_BLOCK);
	uint64_t off = sizeof(struct nsr_file);

	while (off < r->size) {
		const unsigned char *p = reader_at(r, off, sizeof(struct nsr_block));
		uint64_t left = r->size - off;
		struct nsr_block block;

		if (!p) {
			losses->truncated_bytes += left;
			return;
		}
		memcpy(&block, p, sizeof(block));
		if (block.mark != NSR_BLOCK_MARK || block.stored_bytes > max_stored) {
			losses->bad_blocks++;
			losses->undecodable_bytes += left;
			return;
		}
		file->ended = false;
		left -= sizeof(block);
		off += sizeof(block);
		if (block.stored_bytes <= left) {
			p = reader_at(r, off, block.stored_bytes);
			if (!p)
				return; /* the file shrank */
			read_block(file, &block, p, false, losses);
			off += block.stored_bytes;
			continue;
		}
		/* cut: whole records can be used */
		if (block.kind != NSR_RECORDS || !sane(&block) || block.flags & NSR_ZSTD) {
			losses->truncated_bytes += sizeof(block) + left;
			return;
		}
		losses->truncated_bytes += left % NSR_UNIT;
		block.stored_bytes = block.bytes = left - left % NSR_UNIT;
		p = reader_at(r, off, block.bytes);
		if (p)
			read_block(file, &block, p, true, losses);
		return;
	}
}

bool raw_file_read(struct raw_file *file, int dir, const char *name, uint32_t cpu,
		   struct raw_losses *losses)
{
	struct nsr_file head;
	const unsigned char *p;
	struct reader r;

	file->cpu = cpu;
	file->tid = -1;
	reader_open_at(&r, dir, name);
	p = reader_at(&r, 0, sizeof(head));
	if (p)
		memcpy(&head, p, sizeof(head));
	else
		losses->truncated_bytes += r.size;
	if (p && (memcmp(head.magic, NSR_MAGIC, sizeof(head.magic)) || head.cpu != cpu)) {
		losses->bad_files++;
		losses->undecodable_bytes += r.size;
		p = NULL;
	}
	if (p && (!head.version || head.version > NSR_VERSION))
		die(EXIT_BAD_INPUT, "use the nsight-report of the release that recorded it",
		    "%s: version %u of records is unknown (known: 1 to %d)", name, head.version,
		    NSR_VERSION);
	if (p)
		read_blocks(file, &r, losses);
	reader_close(&r);
	return p;
}
