// SPDX-License-Identifier: GPL-2.0-only
#include "formats.h"

#include "format_text.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FORMAT  (256u << 10) /* the largest of a 6.18 kernel has 20 kB */
#define MAX_FORMATS 65536u

struct want {
	const char *field;
	enum slot_dest dest;
};

static const struct kind_desc {
	const char *system, *name;
	enum nsight_kind kind;
	struct want want[MAX_WANTS];
} kind_descs[] = {
	{"sched",
	 "sched_switch",
	 K_SCHED_SWITCH,
	 {{"prev_pid", TO_TID},
	  {"next_pid", TO_A},
	  {"prev_state", TO_B},
	  {"prev_comm", TO_STR},
	  {"next_comm", TO_STR2}}},
	{"sched",
	 "sched_waking",
	 K_SCHED_WAKING,
	 {{"pid", TO_A}, {"target_cpu", TO_B}, {"comm", TO_STR}}},
	{"sched",
	 "sched_wakeup",
	 K_SCHED_WAKEUP,
	 {{"pid", TO_A}, {"target_cpu", TO_B}, {"comm", TO_STR}}},
	{"sched",
	 "sched_wakeup_new",
	 K_SCHED_WAKEUP_NEW,
	 {{"pid", TO_A}, {"target_cpu", TO_B}, {"comm", TO_STR}}},
	{"sched",
	 "sched_migrate_task",
	 K_SCHED_MIGRATE_TASK,
	 {{"pid", TO_A}, {"dest_cpu", TO_B}, {"orig_cpu", TO_C}}},
	{"sched",
	 "sched_process_fork",
	 K_SCHED_PROCESS_FORK,
	 {{"child_pid", TO_A}, {"parent_pid", TO_B}, {"child_comm", TO_STR}}},
	{"sched",
	 "sched_process_exec",
	 K_SCHED_PROCESS_EXEC,
	 {{"pid", TO_A}, {"old_pid", TO_B}, {"filename", TO_STR}}},
	{"sched", "sched_process_exit", K_SCHED_PROCESS_EXIT, {{"pid", TO_A}, {"comm", TO_STR}}},
	{"irq", "irq_handler_entry", K_IRQ_HANDLER_ENTRY, {{"irq", TO_A}, {"name", TO_STR}}},
	{"irq", "irq_handler_exit", K_IRQ_HANDLER_EXIT, {{"irq", TO_A}, {"ret", TO_B}}},
	{"irq", "softirq_entry", K_SOFTIRQ_ENTRY, {{"vec", TO_A}}},
	{"irq", "softirq_exit", K_SOFTIRQ_EXIT, {{"vec", TO_A}}},
	{"raw_syscalls", "sys_enter", K_SYS_ENTER, {{"id", TO_A}, {"args", TO_B}}},
	{"raw_syscalls", "sys_exit", K_SYS_EXIT, {{"id", TO_A}, {"ret", TO_B}}},
	{"napi",
	 "napi_poll",
	 K_NAPI_POLL,
	 {{"work", TO_A}, {"budget", TO_B}, {"dev_name", TO_STR}}},
	{"exceptions",
	 "page_fault_user",
	 K_PAGE_FAULT_USER,
	 {{"address", TO_A}, {"ip", TO_B}, {"error_code", TO_C}}},
	{"exceptions",
	 "page_fault_kernel",
	 K_PAGE_FAULT_KERNEL,
	 {{"address", TO_A}, {"ip", TO_B}, {"error_code", TO_C}}},
	{"power", "cpu_idle", K_CPU_IDLE, {{"state", TO_A}, {"cpu_id", TO_B}}},
	{"timer",
	 "hrtimer_expire_entry",
	 K_HRTIMER_EXPIRE_ENTRY,
	 {{"hrtimer", TO_A}, {"function", TO_B}, {"now", TO_C}}},
	{"timer", "hrtimer_expire_exit", K_HRTIMER_EXPIRE_EXIT, {{"hrtimer", TO_A}}},
	{"timer",
	 "timer_expire_entry",
	 K_TIMER_EXPIRE_ENTRY,
	 {{"timer", TO_A}, {"function", TO_B}}},
	{"timer", "timer_expire_exit", K_TIMER_EXPIRE_EXIT, {{"timer", TO_A}}},
};

/* Every interrupt vector has a pair NAME_entry, NAME_exit with the vector's number. */
static const struct kind_desc vector_entry = {
	"irq_vectors", "_entry", K_VECTOR_ENTRY, {{"vector", TO_A}}};
static const struct kind_desc vector_exit = {
	"irq_vectors", "_exit", K_VECTOR_EXIT, {{"vector", TO_A}}};

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n > m && !strcmp(text + n - m, end);
}

static const struct kind_desc *find_kind(const char *system, const char *name)
{
	for (size_t i = 0; i < sizeof(kind_descs) / sizeof(*kind_descs); i++)
		if (!strcmp(kind_descs[i].name, name) && !strcmp(kind_descs[i].system, system))
			return &kind_descs[i];
	if (strcmp(system, vector_entry.system))
		return NULL;
	return ends_with(name, "_entry")  ? &vector_entry
	       : ends_with(name, "_exit") ? &vector_exit
					  : NULL;
}

bool make_slot(const struct format_field *field, enum slot_dest dest, struct slot *slot)
{
	bool elsewhere = field->flags & (FIELD_DATA_LOC | FIELD_REL_LOC);
	uint32_t size = field->flags & FIELD_ARRAY ? field->element : field->size;

	*slot = (struct slot){.off = field->offset, .dest = dest};
	if (!field->size || field->offset > 65535 || field->size > 65535)
		return false;
	if (dest == TO_STR || dest == TO_STR2) {
		slot->type = field->flags & FIELD_REL_LOC    ? SLOT_REL_LOC
			     : field->flags & FIELD_DATA_LOC ? SLOT_DATA_LOC
							     : SLOT_CHARS;
		slot->size = field->size;
		return !elsewhere || slot->size == 4;
	}
	/* sys_enter: of args[6] the first is wanted */
	slot->type = SLOT_INT;
	slot->size = size;
	slot->is_signed = !!(field->flags & FIELD_SIGNED);
	return !elsewhere && (size == 1 || size == 2 || size == 4 || size == 8);
}

/* NULL: the event is not decoded; evt->fate says why. */
static const struct plan *make_plan(const struct format *event, struct perf_evt *evt,
				    struct strings *strings)
{
	const struct kind_desc *desc = find_kind(event->system, event->name);
	struct format_field field;
	struct plan *plan;

	evt->fate = FATE_UNUSED;
	if (!desc)
		return NULL;
	plan = xrealloc(NULL, 1, sizeof(*plan));
	memset(plan, 0, sizeof(*plan));
	plan->kind = desc->kind;
	if (desc == &vector_entry || desc == &vector_exit)
		plan->name = strings_intern(strings, event->name,
					    strlen(event->name) - strlen(desc->name));

	/*
	 * Who was current, as the tracepoint saw it: right for dying threads too, which the
	 * sample's own TID is not (it is -1 once the thread has no pid any more).
	 */
	if (format_field(event, "common_pid", &field) && make_slot(&field, TO_TID, &plan->slots[0]))
		plan->n_slots++;
	for (int i = 0; i < MAX_WANTS && desc->want[i].field; i++) {
		if (!format_field(event, desc->want[i].field, &field) ||
		    !make_slot(&field, desc->want[i].dest, &plan->slots[plan->n_slots])) {
			evt->fate = FATE_BAD_FORMAT;
			free(plan);
			return NULL;
		}
		plan->n_slots++;
	}
	for (int i = 0; i < plan->n_slots; i++)
		if (plan->slots[i].off + plan->slots[i].size > plan->raw_min)
			plan->raw_min = plan->slots[i].off + plan->slots[i].size;
	evt->fate = FATE_DECODED;
	return plan;
}

static void parse_format(struct format_list *list, const char *system, const char *text,
			 size_t size, struct formats *out)
{
	out->n_formats++;
	if (!format_list_add(list, system, text, size))
		out->n_broken++;
}

/* A place in the tracing data, which is read strictly forward. */
struct cursor {
	struct reader *r;
	uint64_t off, end;
	bool failed;
};

static const unsigned char *take(struct cursor *c, uint64_t len)
{
	const unsigned char *p = NULL;

	if (!c->failed && len <= c->end - c->off)
		p = reader_at(c->r, c->off, len);
	if (p)
		c->off += len;
	else
		c->failed = true;
	return p;
}

static uint32_t take32(struct cursor *c)
{
	const unsigned char *p = take(c, 4);

	return p ? load32(p) : 0;
}

/* Skip a blob with a u64 length. */
static void skip_blob(struct cursor *c)
{
	const unsigned char *p = take(c, 8);
	uint64_t len = p ? load64(p) : 0;

	if (c->failed || len > c->end - c->off)
		c->failed = true;
	else
		c->off += len;
}

/* A NUL-terminated string of at most max - 1 bytes. */
static void take_string(struct cursor *c, char *out, size_t max)
{
	for (size_t i = 0; i < max; i++) {
		const unsigned char *p = take(c, 1);

		out[i] = p ? *p : '\0';
		if (!out[i])
			return;
	}
	out[max - 1] = '\0';
	c->failed = true;
}

/*
 * The layout of trace.dat version 0.5/0.6 up to the event formats, see
 * tools/perf/util/trace-event-info.c of the kernel tree.
 */
static void read_tracing_data(struct perf_file *pf, struct format_list *list, struct formats *out)
{
	uint64_t off = pf->feature[FEAT_TRACING_DATA].off;
	struct cursor c = {&pf->r, off, off + pf->feature[FEAT_TRACING_DATA].size, false};
	const unsigned char *p = take(&c, 10);
	uint32_t n_systems;
	char text[256];

	if (!p || memcmp(p, "\x17\x08\x44tracing", 10)) {
		out->truncated = 1;
		return;
	}
	take_string(&c, text, sizeof(text)); /* version */
	take(&c, 1 + 1 + 4);		     /* byte order, size of long, page size */
	for (int i = 0; i < 2; i++) {	     /* header_page, header_event */
		take_string(&c, text, sizeof(text));
		skip_blob(&c);
	}
	for (uint32_t n = take32(&c); n && !c.failed; n--) /* ftrace's own events */
		skip_blob(&c);
	n_systems = take32(&c);
	for (uint32_t s = 0; s < n_systems && !c.failed; s++) {
		take_string(&c, text, sizeof(text));
		for (uint32_t n = take32(&c); n && !c.failed && out->n_formats < MAX_FORMATS; n--) {
			uint64_t size;

			p = take(&c, 8);
			size = p ? load64(p) : UINT64_MAX;
			p = size <= MAX_FORMAT ? take(&c, size) : NULL;
			if (p)
				parse_format(list, text, (const char *)p, size, out);
			else
				c.failed = true;
		}
	}
	out->truncated = c.failed;
}

/* dir/SYSTEM/EVENT */
static void read_format_file(int system_fd, const char *system, const char *name,
			     struct format_list *list, struct formats *out)
{
	int fd = openat(system_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	struct stat st;
	char *buf = NULL;
	ssize_t len = -1;

	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode)) {
		buf = xrealloc(NULL, MAX_FORMAT, 1);
		len = read(fd, buf, MAX_FORMAT);
	}
	if (len > 0)
		parse_format(list, system, buf, len, out);
	else
		out->n_broken++;
	free(buf);
	if (fd >= 0)
		close(fd);
}

static void read_format_dir(const char *path, struct format_list *list, struct formats *out)
{
	DIR *dir = opendir(path), *sub;
	struct dirent *d, *e;

	if (!dir)
		die(EXIT_BAD_INPUT,
		    "give the directory with copies of the recorded events' formats",
		    "%s: cannot be read as a directory", path);
	while ((d = readdir(dir))) {
		int fd;

		if (d->d_name[0] == '.')
			continue;
		fd = openat(dirfd(dir), d->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
		sub = fd < 0 ? NULL : fdopendir(fd);
		while (sub && (e = readdir(sub)) && out->n_formats < MAX_FORMATS)
			if (e->d_name[0] != '.')
				read_format_file(fd, d->d_name, e->d_name, list, out);
		if (sub)
			closedir(sub);
	}
	closedir(dir);
}

/* Give every tracepoint event without a format yet the one with its id; true: all have one. */
static bool assign(struct perf_file *pf, struct format_list *list, struct strings *strings,
		   bool wide)
{
	bool all = true;

	format_list_sort(list);
	for (uint32_t i = 0; i < pf->n_evts; i++) {
		struct perf_evt *evt = &pf->evts[i];
		const struct format *event;

		if (evt->attr.type != PERF_TYPE_TRACEPOINT || evt->fate != FATE_NO_FORMAT)
			continue;
		event = format_list_find(list, evt->attr.config);
		if (!event) {
			all = false;
			continue;
		}
		snprintf(evt->name, sizeof(evt->name), "%s:%s", event->system, event->name);
		evt->plan = make_plan(event, evt, strings);
		if (wide && !evt->plan)
			evt->plan = wide_plan(event, evt);
	}
	return all;
}

void formats_resolve(struct perf_file *pf, const char *dir, struct strings *strings, bool wide,
		     struct formats *out)
{
	struct format_list list = {0};
	bool all;

	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < pf->n_evts; i++)
		pf->evts[i].fate = pf->evts[i].attr.type == PERF_TYPE_TRACEPOINT ? FATE_NO_FORMAT
										 : FATE_UNUSED;
	if (pf->feature[FEAT_TRACING_DATA].size)
		read_tracing_data(pf, &list, out);
	all = assign(pf, &list, strings, wide);
	if (!all && dir) {
		read_format_dir(dir, &list, out);
		assign(pf, &list, strings, wide);
	}
	format_list_free(&list);
}
