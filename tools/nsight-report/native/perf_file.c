// SPDX-License-Identifier: GPL-2.0-only
#include "perf_file.h"

#include "keyed_hash.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* perf files have thousands of events, ids and arguments at most; more is not a perf.data file */
#define MAX_EVTS 65536u
#define MAX_IDS	 (16u << 20)
#define MAX_ARGV 65536u

static const char RECORD_HINT[] = "record again with: perf record -o FILE ... (no pipe, no -z)";

struct perf_header {
	char magic[8];
	uint64_t size;
	uint64_t attr_size;
	struct {
		uint64_t off, size;
	} attrs, data, event_types;
	uint64_t features[FEAT_BITS / 64];
};

static uint32_t id_hash(const struct perf_file *pf, uint64_t id)
{
	return keyed_hash(&id, sizeof(id)) & pf->ids_mask;
}

struct perf_evt *perf_file_evt(const struct perf_file *pf, uint64_t id)
{
	for (uint32_t h = id_hash(pf, id); pf->ids[h].evt; h = (h + 1) & pf->ids_mask)
		if (pf->ids[h].id == id)
			return &pf->evts[pf->ids[h].evt - 1];
	return NULL;
}

static void add_id(struct perf_file *pf, uint64_t id, uint32_t evt)
{
	uint32_t h;

	if (!pf->ids || pf->n_ids >= pf->ids_mask / 2) {
		struct id_slot *old = pf->ids;
		uint32_t old_size = old ? pf->ids_mask + 1 : 0;
		uint32_t size = old_size ? old_size * 2 : 256;

		pf->ids = xrealloc(NULL, size, sizeof(*pf->ids));
		memset(pf->ids, 0, size * sizeof(*pf->ids));
		pf->ids_mask = size - 1;
		pf->n_ids = 0;
		for (uint32_t i = 0; i < old_size; i++)
			if (old[i].evt)
				add_id(pf, old[i].id, old[i].evt);
		free(old);
	}
	for (h = id_hash(pf, id); pf->ids[h].evt; h = (h + 1) & pf->ids_mask)
		if (pf->ids[h].id == id)
			return; /* the first one wins, as in perf */
	pf->ids[h] = (struct id_slot){.id = id, .evt = evt};
	pf->n_ids++;
}

static void read_attrs(struct perf_file *pf, const struct perf_header *h)
{
	uint64_t attr_size = h->attr_size;
	/* perf writes the lists one after the other: together they are not longer than the file */
	uint64_t n, ids_left = pf->r.size / 8;

	/* a perf_event_attr (64 bytes in its first version) and a file section of ids */
	if (attr_size < PERF_ATTR_SIZE_VER0 + 16 || attr_size > 4096 || h->attrs.size % attr_size ||
	    !h->attrs.size)
		die(EXIT_BAD_INPUT, RECORD_HINT, "%s: damaged header (event size %llu)", pf->r.path,
		    (unsigned long long)attr_size);
	n = h->attrs.size / attr_size;
	if (n > MAX_EVTS)
		die(EXIT_BAD_INPUT, RECORD_HINT, "%s: damaged header (%llu events)", pf->r.path,
		    (unsigned long long)n);
	pf->evts = xrealloc(NULL, n, sizeof(*pf->evts));
	memset(pf->evts, 0, n * sizeof(*pf->evts));
	pf->n_evts = n;
	add_id(pf, 0, 1); /* records that perf itself writes have id 0: perf uses the first event */

	for (uint32_t i = 0; i < n; i++) {
		struct perf_evt *evt = &pf->evts[i];
		const unsigned char *p = reader_at(&pf->r, h->attrs.off + i * attr_size, attr_size);
		uint64_t ids_off, ids_size;
		size_t len = attr_size - 16;

		if (!p)
			die(EXIT_BAD_INPUT, RECORD_HINT, "%s: ends inside its list of events",
			    pf->r.path);
		ids_off = load64(p + len);
		ids_size = load64(p + len + 8);
		memcpy(&evt->attr, p, len < sizeof(evt->attr) ? len : sizeof(evt->attr));
		if (evt->attr.use_clockid && !pf->use_clockid) {
			pf->use_clockid = true;
			pf->clockid = evt->attr.clockid;
		}
		if (ids_size / 8 > MAX_IDS - pf->n_ids || ids_size / 8 > ids_left)
			die(EXIT_BAD_INPUT, RECORD_HINT, "%s: damaged list of event ids",
			    pf->r.path);
		ids_left -= ids_size / 8;
		for (uint64_t off = 0; off + 8 <= ids_size; off += 8) {
			p = reader_at(&pf->r, ids_off + off, 8);
			if (!p)
				die(EXIT_BAD_INPUT, RECORD_HINT, "%s: damaged list of event ids",
				    pf->r.path);
			add_id(pf, load64(p), i + 1);
		}
	}
}

/* A u32 length, then that many bytes that contain a NUL. Returns the bytes used, 0 on error. */
static uint64_t read_string(struct perf_file *pf, uint64_t off, uint64_t end, char *out, size_t max)
{
	const unsigned char *p = off + 4 <= end ? reader_at(&pf->r, off, 4) : NULL;
	uint32_t len = p ? load32(p) : 0;

	if (!p || len > end - off - 4)
		return 0;
	p = reader_at(&pf->r, off + 4, len);
	if (!p)
		return 0;
	snprintf(out, max, "%.*s", (int)strnlen((const char *)p, len), (const char *)p);
	return 4 + (uint64_t)len;
}

static void feature_string(struct perf_file *pf, int feature, char *out, size_t max)
{
	uint64_t off = pf->feature[feature].off, size = pf->feature[feature].size;

	if (size && !read_string(pf, off, off + size, out, max))
		pf->feature_errors++;
}

static const unsigned char *feature_bytes(struct perf_file *pf, int feature, size_t len)
{
	const unsigned char *p;

	if (!pf->feature[feature].size)
		return NULL;
	p = pf->feature[feature].size >= len ? reader_at(&pf->r, pf->feature[feature].off, len)
					     : NULL;
	if (!p)
		pf->feature_errors++;
	return p;
}

static void read_cmdline(struct perf_file *pf)
{
	const unsigned char *p = feature_bytes(pf, FEAT_CMDLINE, 4);
	uint64_t off = pf->feature[FEAT_CMDLINE].off + 4;
	uint64_t end = pf->feature[FEAT_CMDLINE].off + pf->feature[FEAT_CMDLINE].size;
	uint32_t n = p ? load32(p) : 0, cap = 0;

	for (uint32_t i = 0; i < n && i < MAX_ARGV; i++) {
		char arg[4096];
		uint64_t used = read_string(pf, off, end, arg, sizeof(arg));

		if (!used) {
			pf->feature_errors++;
			return;
		}
		off += used;
		GROW(pf->argv, pf->argc, cap);
		pf->argv[pf->argc++] = strcpy(xrealloc(NULL, strlen(arg) + 1, 1), arg);
	}
}

/* The features' file sections follow the data, one for each set bit, in bit order. */
static void read_features(struct perf_file *pf, const struct perf_header *h)
{
	uint64_t off = h->data.off + h->data.size;
	const unsigned char *p;

	if (pf->cut)
		return;
	for (int bit = 0; bit < FEAT_BITS; bit++) {
		if (!(h->features[bit / 64] >> (bit % 64) & 1))
			continue;
		p = reader_at(&pf->r, off, 16);
		off += 16;
		if (!p || load64(p) > pf->r.size || load64(p + 8) > pf->r.size - load64(p)) {
			pf->feature_errors++;
			continue;
		}
		pf->feature[bit].off = load64(p);
		pf->feature[bit].size = load64(p + 8);
	}

	feature_string(pf, FEAT_HOSTNAME, pf->hostname, sizeof(pf->hostname));
	feature_string(pf, FEAT_OSRELEASE, pf->osrelease, sizeof(pf->osrelease));
	feature_string(pf, FEAT_VERSION, pf->version, sizeof(pf->version));
	feature_string(pf, FEAT_ARCH, pf->arch, sizeof(pf->arch));
	read_cmdline(pf);
	p = feature_bytes(pf, FEAT_NRCPUS, 8);
	if (p) {
		/* perf writes "available" first */
		pf->nrcpus_avail = load32(p);
		pf->nrcpus_online = load32(p + 4);
	}
	p = feature_bytes(pf, FEAT_CLOCKID, 8);
	if (p)
		pf->clockid_resolution_ns = load64(p);
	p = feature_bytes(pf, FEAT_CLOCK_DATA, 24);
	if (p) { /* u32 version, u32 clockid, u64 wall clock, u64 clockid time */
		pf->have_clock_data = true;
		pf->wall_clock_ns = load64(p + 8);
		pf->clockid_time_ns = load64(p + 16);
	}
}

static void check_header(const struct perf_file *pf, const struct perf_header *h)
{
	const char *path = pf->r.path;

	if (!memcmp(h->magic, "2ELIFREP", 8))
		die(EXIT_BAD_INPUT, "analyse it on a machine of the same byte order",
		    "%s: recorded on a big-endian machine", path);
	if (!memcmp(h->magic, "PERFFILE", 8))
		die(EXIT_BAD_INPUT, "record it with a perf newer than 2.6.38",
		    "%s: perf.data of version 1", path);
	if (memcmp(h->magic, "PERFILE2", 8))
		die(EXIT_BAD_INPUT, "name the perf.data that perf record wrote",
		    "%s: not a perf.data file", path);
	if (h->size == 16)
		die(EXIT_BAD_INPUT, RECORD_HINT, "%s: recorded in pipe mode (perf record -o -)",
		    path);
	if (h->size != sizeof(*h))
		die(EXIT_BAD_INPUT, RECORD_HINT,
		    "%s: unknown version of perf.data (header of %llu bytes)", path,
		    (unsigned long long)h->size);
}

void perf_file_open(struct perf_file *pf, const char *path)
{
	char inside[PATH_MAX];
	struct stat st;
	struct perf_header h;
	const unsigned char *p;

	memset(pf, 0, sizeof(*pf));
	if (!stat(path, &st) && S_ISDIR(st.st_mode)) { /* perf record --kcore */
		if (snprintf(inside, sizeof(inside), "%s/data", path) >= (int)sizeof(inside))
			die(EXIT_BAD_INPUT, NULL, "path too long");
		path = strcpy(xrealloc(NULL, strlen(inside) + 1, 1), inside);
	}
	reader_open(&pf->r, path);
	if (!pf->r.size)
		die(EXIT_BAD_INPUT,
		    "perf record did not get as far as writing its header: see perf.log",
		    "%s: empty file", path);
	/* pipe mode has a header of 16 bytes: check what there is before reading the rest */
	p = reader_at(&pf->r, 0, pf->r.size < sizeof(h) ? pf->r.size : sizeof(h));
	memset(&h, 0, sizeof(h));
	if (p)
		memcpy(&h, p, pf->r.size < sizeof(h) ? pf->r.size : sizeof(h));
	check_header(pf, &h);
	if (pf->r.size < sizeof(h))
		die(EXIT_BAD_INPUT,
		    "perf record did not get as far as writing its header: see perf.log",
		    "%s: ends inside its header", path);

	pf->data_start = h.data.off;
	pf->data_end = h.data.off + h.data.size;
	if (h.data.off > pf->r.size || h.data.size > UINT64_MAX - h.data.off)
		die(EXIT_BAD_INPUT, "copy the file again, completely", "%s: ends before its data",
		    path);
	if (!h.data.size) {
		pf->cut = true;
		pf->data_end = pf->r.size;
	} else if (pf->data_end > pf->r.size) {
		pf->truncated_bytes = pf->data_end - pf->r.size;
		pf->data_end = pf->r.size;
	}
	read_attrs(pf, &h);
	read_features(pf, &h);
	if (pf->feature[FEAT_COMPRESSED].size)
		die(EXIT_BAD_INPUT, RECORD_HINT, "%s: compressed (perf record -z)", path);
	if (pf->feature[FEAT_DIR_FORMAT].size)
		die(EXIT_BAD_INPUT, "record again without --threads",
		    "%s: recorded with perf record --threads", path);
}
