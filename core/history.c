/* SPDX-License-Identifier: MIT */
/* The lines of a history: JSON, with numbers that read back exactly. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"
#include "layout.h"
#include "step.h"

/* ---- JSON ---- */

/* A text that grows from left to right; what does not fit is only counted. */
struct text {
    char *at;
    uint64_t capacity, length;
    char last;
};

static void put(struct text *t, const char *bytes, size_t size)
{
    if (t->length + size <= t->capacity)
        memcpy(t->at + t->length, bytes, size);
    t->length += size;
    t->last = bytes[size - 1];
}

static void put_text(struct text *t, const char *text)
{
    if (*text)
        put(t, text, strlen(text));
}

/* Writes a caller's text of at most `size` bytes, with U+FFFD for bytes that are no UTF-8. */
static void put_string(struct text *t, const char *text, size_t size)
{
    const char *const end = text + strnlen(text, size);
    char escaped[8];
    put_text(t, "\"");
    while (text < end) {
        const size_t bytes = gsc_character_length(text);
        if (!bytes)
            put_text(t, "\xef\xbf\xbd");
        else if (*text == '"' || *text == '\\') {
            put_text(t, "\\");
            put(t, text, 1);
        } else if ((unsigned char)*text < ' ') {
            (void)snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned char)*text);
            put_text(t, escaped);
        } else
            put(t, text, bytes);
        text += bytes ? bytes : 1;
    }
    put_text(t, "\"");
}

static void put_key(struct text *t, const char *key)
{
    if (t->last != '{')
        put_text(t, ",");
    put_text(t, "\"");
    put_text(t, key);
    put_text(t, "\":");
}

static void put_word(struct text *t, const char *key, const char *word)
{
    put_key(t, key);
    put_string(t, word, SIZE_MAX);
}

static void put_unsigned(struct text *t, uint64_t value)
{
    char digits[20];
    size_t i = sizeof digits;
    do
        digits[--i] = (char)('0' + value % 10);
    while (value /= 10);
    put(t, digits + i, sizeof digits - i);
}

static void put_integer(struct text *t, int64_t value)
{
    if (value < 0)
        put_text(t, "-");
    put_unsigned(t, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

static void put_number(struct text *t, double value)
{
    if (!isfinite(value))
        put_text(t, isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"");
    else if (fabs(value) < 0x1p53 && value == floor(value) && !(value == 0 && signbit(value)))
        put_integer(t, (int64_t)value);
    else
        put_text(t, GSC_EXACT(value));
}

/* Writes seconds with at most three decimals. */
static void put_time(struct text *t, double time)
{
    const uint64_t ms = (uint64_t)(time * 1000 + 0.5);
    char decimals[8];
    if (time == 0)
        return;
    put_key(t, "time");
    put_unsigned(t, ms / 1000);
    if (ms % 1000 == 0)
        return;
    int length = snprintf(decimals, sizeof decimals, ".%03u", (unsigned)(ms % 1000));
    while (decimals[length - 1] == '0')
        length--;
    put(t, decimals, (size_t)length);
}

/* ---- structs ---- */

struct line_field {
    const char *name;
    size_t offset, size;
    char kind; /* 'i': signed, 'u': unsigned, 'f': real */
    bool is_metric;
};
static const struct line_field policy_fields[] = {GSC_POLICY_FIELDS},
                               state_fields[] = {GSC_STATE_FIELDS},
                               report_fields[] = {GSC_REPORT_FIELDS};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static bool is_zero(const struct line_field *f, const void *of)
{
    return gsc_all_zero((const char *)of + f->offset, f->size);
}

static void put_field(struct text *t, const struct line_field *f, const void *of)
{
    uint64_t bits = 0;
    float narrow;
    double wide;
    memcpy(&bits, (const char *)of + f->offset, f->size); /* targets are little-endian */
    put_key(t, f->name);
    if (f->kind == 'u')
        put_unsigned(t, bits);
    else if (f->kind == 'i') {
        const uint64_t sign = 1ull << (8 * f->size - 1);
        put_integer(t, (int64_t)((bits ^ sign) - sign));
    } else if (f->size == sizeof narrow) {
        memcpy(&narrow, &bits, sizeof narrow);
        put_number(t, narrow);
    } else {
        memcpy(&wide, &bits, sizeof wide);
        put_number(t, wide);
    }
}

static void put_policy(struct text *t, const gsc_policy *policy, const char *preset)
{
    put_key(t, "policy");
    put_text(t, "{");
    if (preset)
        put_word(t, "preset", preset);
    for (size_t i = 0; i < COUNT(policy_fields); i++)
        put_field(t, &policy_fields[i], policy);
    put_text(t, "}");
}

static void put_events(struct text *t, const gsc_state *state)
{
    if (state->events)
        put_word(t, "events", GSC_NAME_OF("events", state->events));
}

/* Writes the fields that are not 0. `events` tells skip and skip_f32. */
static void put_state_fields(struct text *t, const gsc_state *state, bool with_metrics)
{
    for (size_t i = 0; i < COUNT(state_fields); i++) {
        const struct line_field *f = &state_fields[i];
        if ((with_metrics || !f->is_metric) && f->offset != offsetof(gsc_state, events) &&
            f->offset != offsetof(gsc_state, skip) && f->offset != offsetof(gsc_state, skip_f32) &&
            !is_zero(f, state))
            put_field(t, f, state);
    }
    if (state->next.scale != state->factor.scale) {
        put_key(t, "next_scale");
        put_number(t, state->next.scale);
    }
}

/* Returns true if a metric tells the field of the report. */
static bool is_told(size_t offset, const gsc_report *report, const gsc_entry *metrics)
{
    switch (offset) {
    case offsetof(gsc_report, amax):
        return metrics[GSC_METRIC_AMAX].kind != GSC_ENTRY_NULL;
    case offsetof(gsc_report, nan_count):
        return metrics[GSC_METRIC_NAN_COUNT].kind != GSC_ENTRY_NULL;
    case offsetof(gsc_report, inf_count):
        return metrics[GSC_METRIC_INF_COUNT].kind != GSC_ENTRY_NULL;
    case offsetof(gsc_report, loss):
        return metrics[GSC_METRIC_BAD_LOSS].kind != GSC_ENTRY_NULL;
    case offsetof(gsc_report, sum_squares):
        return gsc_tells_norm(report);
    default:
        return false;
    }
}

/* Writes the fields that are not 0 and that `metrics`, if given, do not tell. */
static void put_report_fields(struct text *t, const gsc_report *report, const gsc_entry *metrics)
{
    for (size_t i = 0; i < COUNT(report_fields); i++) {
        const struct line_field *f = &report_fields[i];
        if (!is_zero(f, report) && f->offset != offsetof(gsc_report, generation) &&
            f->offset != offsetof(gsc_report, digest) &&
            !(metrics && is_told(f->offset, report, metrics)))
            put_field(t, f, report);
    }
}

/* ---- the line of an update ---- */

struct tensors {
    const gsc_report *report, *each;
    const char *const *names;
    uint64_t n;
};

static void put_metrics(struct text *t, const gsc_entry *metrics)
{
    for (uint32_t i = 0; i < GSC_METRICS; i++) {
        const gsc_entry *m = &metrics[i];
        const bool is_count = i == GSC_METRIC_NAN_COUNT || i == GSC_METRIC_INF_COUNT;
        if (m->kind == GSC_ENTRY_NULL     ? !is_count
            : m->kind == GSC_ENTRY_NUMBER ? i == GSC_METRIC_GUARD_MULTIPLIER && m->value == 1
                                          : m->integer == 0 && i != GSC_METRIC_BAD_LOSS)
            continue;
        put_key(t, m->key);
        if (m->kind == GSC_ENTRY_NULL)
            put_text(t, "null");
        else if (m->kind == GSC_ENTRY_BOOLEAN)
            put_text(t, m->integer ? "true" : "false");
        else if (m->kind == GSC_ENTRY_INTEGER)
            put_integer(t, m->integer);
        else
            put_number(t, m->value);
    }
}

static void put_reason(struct text *t, const gsc_reason *r)
{
    if (r->outcome == GSC_OUTCOME_TAKEN)
        return;
    put_word(t, "outcome", GSC_NAME_OF("outcome", r->outcome));
    put_word(t, "cause", GSC_NAME_OF("cause", r->cause));
    put_key(t, "reason");
    put_string(t, r->message, sizeof r->message);
}

static void put_tensor(struct text *t, const struct tensors *list, int64_t i)
{
    put_text(t, t->last == '[' ? "{" : ",{");
    put_key(t, "tensor");
    put_integer(t, i);
    if (list->names && (uint64_t)i < list->n && list->names[i])
        put_word(t, "name", list->names[i]);
    if (list->each)
        put_report_fields(t, &list->each[i], NULL);
    put_text(t, "}");
}

/* The tensors that a diagnosis can name: the first bad ones and the last one, the one that lost the
 * largest share to zero, and the first with nothing but zeros. */
struct chosen {
    int64_t tensors[10];
    int count;
};

static void choose(struct chosen *chosen, int64_t tensor)
{
    for (int i = 0; i < chosen->count; i++)
        if (chosen->tensors[i] == tensor)
            return;
    if (tensor >= 0)
        chosen->tensors[chosen->count++] = tensor;
}

static struct chosen choose_tensors(const struct tensors *list)
{
    const gsc_report *r = list->report;
    struct chosen chosen = {{0}, 0};
    int64_t last = -1, worst = -1, zero = -1;
    if (!list->each) {
        if (r && gsc_has_bad(r) && r->kind != GSC_REPORT_NUMBER)
            choose(&chosen, r->last_tensor);
        return chosen;
    }
    for (uint64_t i = 0; i < list->n; i++) {
        const gsc_report *each = &list->each[i];
        if (gsc_has_bad(each)) {
            last = (int64_t)i;
            if (chosen.count < 7)
                choose(&chosen, last);
        }
        if (gsc_has_zero_share(each) && each->underflows_to_zero > 0 &&
            (worst < 0 || gsc_zero_share(each) > gsc_zero_share(&list->each[worst])))
            worst = (int64_t)i;
        if (zero < 0 && gsc_is_zero(each))
            zero = (int64_t)i;
    }
    choose(&chosen, last);
    choose(&chosen, worst);
    choose(&chosen, zero);
    return chosen;
}

static void put_tensors(struct text *t, const struct tensors *list)
{
    const struct chosen chosen = choose_tensors(list);
    if (chosen.count == 0)
        return;
    put_key(t, "tensors");
    put_text(t, "[");
    for (int i = 0; i < chosen.count; i++)
        put_tensor(t, list, chosen.tensors[i]);
    put_text(t, "]");
    if (!list->each)
        return;
    put_key(t, "tensor_count");
    put_unsigned(t, list->n);
    put_key(t, "zeros");
    put_text(t, "[");
    for (uint64_t i = 0; i < list->n; i++)
        if (gsc_is_zero(&list->each[i])) {
            if (t->last != '[')
                put_text(t, ",");
            put_unsigned(t, i);
        }
    put_text(t, "]");
}

/* ---- the calls ---- */

/* Checks the time and the memory for the line. `argument` is the position of `time`. */
static gsc_status line_begin(struct text *line, double time, void *bytes, uint64_t capacity,
                             const uint64_t *size, int argument, gsc_error *err)
{
    *line = (struct text){.at = bytes, .capacity = capacity, .last = '{'};
    if (!(time >= 0 && time < 0x1p43))
        return gsc_fail_number(err, GSC_ERROR_VALUE, argument, -1, "time", time, 0, 0x1p43,
                               "seconds since 1970, or 0");
    if (!bytes && capacity > 0)
        return gsc_fail_null(err, argument + 2, "bytes");
    return size ? GSC_OK : gsc_fail_null(err, argument + 4, "size");
}

static gsc_status line_end(struct text *line, uint64_t *size, int argument, gsc_error *err)
{
    put_text(line, "}\n");
    *size = line->length;
    if (line->length <= line->capacity || !line->at)
        return GSC_OK;
    return gsc_with_numbers(gsc_fail(err, GSC_ERROR_CAPACITY, argument + 3, -1, "capacity",
                                     "is %llu: the line takes %llu bytes",
                                     (unsigned long long)line->capacity,
                                     (unsigned long long)line->length),
                            err, (double)line->capacity, (double)line->length, NAN);
}

gsc_status gsc_history_start(const gsc_policy *policy, const char *preset, const gsc_state *state,
                             const char *const *names, uint64_t n, uint64_t step, uint32_t rank,
                             double time, const char *run, void *bytes, uint64_t capacity,
                             uint64_t *size, gsc_error *err)
{
    enum { TIME = 7 };
    gsc_begin(err);
    gsc_policy full;
    struct text line;
    GSC_TRY(gsc_policy_read(policy, &full, 0, err));
    GSC_REQUIRE(state, 2);
    GSC_TRY(gsc_state_check(state, 2, "state", err));
    GSC_TRY(line_begin(&line, time, bytes, capacity, size, TIME, err));
    put_text(&line, "{");
    put_word(&line, "start", GSC_VERSION_STRING);
    put_key(&line, "step");
    put_unsigned(&line, step);
    put_key(&line, "rank");
    put_unsigned(&line, rank);
    put_time(&line, time);
    if (run)
        put_word(&line, "run", run);
    put_policy(&line, &full, preset);
    put_key(&line, "state");
    put_text(&line, "{\"scale\":");
    put_number(&line, state->factor.scale);
    put_events(&line, state);
    put_state_fields(&line, state, true);
    put_text(&line, "}");
    if (names) {
        put_key(&line, "names");
        put_text(&line, "[");
        for (uint64_t i = 0; i < n; i++) {
            if (i > 0)
                put_text(&line, ",");
            if (names[i])
                put_string(&line, names[i], SIZE_MAX);
            else
                put_text(&line, "null");
        }
        put_text(&line, "]");
    }
    return line_end(&line, size, TIME, err);
}

static gsc_status reason_check(const gsc_reason *r, gsc_error *err)
{
    if (r->outcome > GSC_OUTCOME_STOPPED)
        return gsc_fail_number(err, GSC_ERROR_VALUE, 2, -1, "reason.outcome", r->outcome, 0,
                               GSC_OUTCOME_STOPPED, "an outcome");
    if (r->cause > GSC_CAUSE_LOSS_DTYPE)
        return gsc_fail_number(err, GSC_ERROR_VALUE, 2, -1, "reason.cause", r->cause, 0,
                               GSC_CAUSE_LOSS_DTYPE, "a cause");
    if (!GSC_RESERVED_IS_ZERO(r))
        return gsc_fail_reserved(err, GSC_ERROR_VALUE, 2, -1, "reason.reserved");
    return GSC_OK;
}

gsc_status gsc_history_line(const gsc_state *state, const gsc_report *report,
                            const gsc_reason *reason, const gsc_report *per_tensor,
                            const char *const *names, uint64_t n, uint64_t step, double time,
                            const char *run, void *bytes, uint64_t capacity, uint64_t *size,
                            gsc_error *err)
{
    enum { TIME = 7 };
    gsc_begin(err);
    gsc_reason made;
    gsc_entry metrics[GSC_METRICS];
    struct text line;
    const struct tensors list = {report, per_tensor, names, n};
    GSC_REQUIRE(state, 0);
    GSC_TRY(gsc_state_check(state, 0, "state", err));
    if (report)
        GSC_TRY(gsc_report_check(report, 1, -1, "report", err));
    if (reason)
        GSC_TRY(reason_check(reason, err));
    for (uint64_t i = 0; per_tensor && i < n; i++)
        GSC_TRY(gsc_report_check(&per_tensor[i], 3, (int64_t)i, "per_tensor", err));
    GSC_TRY(line_begin(&line, time, bytes, capacity, size, TIME, err));
    if (!reason) {
        GSC_TRY(gsc_state_reason(state, report, NULL, per_tensor, names, NULL, n, &made, err));
        reason = &made;
    }
    gsc_metrics_of(state, report, metrics);
    put_text(&line, "{\"step\":");
    put_unsigned(&line, step);
    put_time(&line, time);
    if (run)
        put_word(&line, "run", run);
    put_metrics(&line, metrics);
    put_events(&line, state);
    put_reason(&line, reason);
    put_tensors(&line, &list);
    put_key(&line, "state");
    put_text(&line, "{");
    put_state_fields(&line, state, false);
    put_text(&line, "}");
    if (report) {
        put_key(&line, "report");
        put_text(&line, "{");
        put_report_fields(&line, report, metrics);
        put_text(&line, "}");
    }
    return line_end(&line, size, TIME, err);
}
