/* SPDX-License-Identifier: MIT */
/* Reads a policy and a state from entries: checks and converts them, and fills in the rest. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats.h"

/* ---- errors ---- */

static bool is_number(const gsc_entry *e)
{
    return e->kind == GSC_ENTRY_NUMBER || e->kind == GSC_ENTRY_INTEGER ||
           e->kind == GSC_ENTRY_BOOLEAN;
}

/* Returns the number in `integer`, rounded to a double. */
static double integer_of(const gsc_entry *e)
{
    return e->value > 0 ? (double)(uint64_t)e->integer : (double)e->integer;
}

/* Fails because of the value of an entry. `must` begins behind "it must be". */
static gsc_status fail_at(const reading *r, int64_t entry, double low, double high,
                          const char *must, gsc_error *err)
{
    const gsc_entry *e = &r->entries[entry];
    char integer[32];
    (void)snprintf(integer, sizeof integer, e->value > 0 ? "%" PRIu64 : "%" PRId64, e->integer);
    const gsc_status status =
        gsc_fail_value(err, GSC_ERROR_VALUE, ENTRIES, entry, "entries.value", e->key,
                       e->kind == GSC_ENTRY_TEXT      ? GSC_QUOTED(e->text)
                       : e->kind == GSC_ENTRY_INTEGER ? integer
                       : is_number(e)                 ? GSC_EXACT(e->value)
                                                      : "empty",
                       "%s", must);
    return is_number(e) ? gsc_with_numbers(status, err, e->value, low, high) : status;
}

/* Turns an error about a field of the policy or the state into an error about its entry. */
static gsc_status fail_for(const reading *r, const gsc_error *why, gsc_error *err)
{
    const char *must = why->requirement_start ? why->message + why->requirement_start : "possible";
    for (int f = 0; f < FIELDS; f++)
        if (r->from[f] >= 0 && strcmp(gsc_fields[f].name, why->field) == 0)
            return fail_at(r, r->from[f], why->low, why->high, must, err);
    return gsc_fail(err, GSC_ERROR_VALUE, ENTRIES, -1, "entries", "make no scaler: %s",
                    why->message);
}

/* Checks entries: texts end with a zero, kinds are known, reserved words are 0. */
static gsc_status check_entries(const gsc_entry *entries, uint64_t n, gsc_error *err)
{
    const uint64_t most = 65536;
    uint64_t saved = 0; /* the search for a scaler compares each of these with all entries */
    for (uint64_t i = 0; i < n; i++) {
        const gsc_entry *e = &entries[i];
        if (e->kind > GSC_ENTRY_BOOLEAN)
            return gsc_fail_number(err, GSC_ERROR_VALUE, ENTRIES, (int64_t)i, "entries.kind",
                                   e->kind, 0, GSC_ENTRY_BOOLEAN, "one of the kinds of entries");
        if (e->kind == GSC_ENTRY_UNUSED)
            continue;
        if (e->flags || !GSC_RESERVED_IS_ZERO(e))
            return gsc_fail_reserved(err, GSC_ERROR_VALUE, ENTRIES, (int64_t)i,
                                     e->flags ? "entries.flags" : "entries.reserved");
        const bool whole = e->kind == GSC_ENTRY_INTEGER || e->kind == GSC_ENTRY_BOOLEAN;
        if (whole && e->value != integer_of(e))
            return gsc_fail_number(err, GSC_ERROR_VALUE, ENTRIES, (int64_t)i, "entries.value",
                                   e->value, integer_of(e), integer_of(e),
                                   "the same number as entries.integer, rounded");
        if (e->kind == GSC_ENTRY_BOOLEAN && (uint64_t)e->integer > 1)
            return gsc_fail_number(err, GSC_ERROR_VALUE, ENTRIES, (int64_t)i, "entries.integer",
                                   e->value, 0, 1, "0 or 1, as its kind is a boolean");
        if (!memchr(e->key, 0, sizeof e->key))
            return gsc_fail(err, GSC_ERROR_VALUE, ENTRIES, (int64_t)i, "entries.key",
                            "does not end with a zero: a key has at most %d bytes",
                            (int)sizeof e->key - 1);
        if (e->kind == GSC_ENTRY_TEXT && !memchr(e->text, 0, sizeof e->text))
            return gsc_fail(err, GSC_ERROR_VALUE, ENTRIES, (int64_t)i, "entries.text",
                            "does not end with a zero: a text has at most %d bytes",
                            (int)sizeof e->text - 1);
        saved += n > most && gsc_is_saved(gsc_last_name(e->key));
    }
    return saved <= most ? GSC_OK
                         : gsc_fail_number(err, GSC_ERROR_COUNT, ENTRIES + 1, -1, "entries_count",
                                           (double)saved, 0, (double)most,
                                           "at most 65536: pass only the scaler's entries");
}

/* ---- reading ---- */

static gsc_status set(reading *r, enum field f, double x, int64_t entry, gsc_error *err)
{
    char must[240] = "a number";
    if (gsc_fields[f].type != F64)
        (void)snprintf(must, sizeof must, "a whole number from 0 to %s",
                       gsc_most_of(f) == (double)MOST_U64 ? "2^64 - 2^11"
                       : gsc_most_of(f) == GSC_COUNT_MOST ? "2^61"
                                                          : GSC_EXACT(gsc_most_of(f)));
    x += 0.0; /* not -0 */
    if (!gsc_put(&r->s, f, x))
        return fail_at(r, entry, gsc_fields[f].type == F64 ? NAN : 0,
                       gsc_fields[f].type == F64 ? NAN : gsc_most_of(f), must, err);
    r->from[f] = entry;
    r->read[f] = x;
    return GSC_OK;
}

/* Returns true if null at the key leaves the field unchanged: a factor or an interval cannot be
 * switched off. Null switches off a limit or a choice. */
static bool is_unset(const struct row *row)
{
    return (row->as == PLAIN || row->as == DERIVED || row->as == EXPONENT ||
            row->as == BOTH_WAYS) &&
           row->field != min_scale && row->field != max_scale && row->field != max_failed_backoffs;
}

/* The values that a conversion accepts, if not any number: from low to high, or a word that stands
 * for a number. low 1 and high 0: only words. */
/* clang-format off */
static const struct {
    const char *must;
    double low, high;
    struct {
        const char *text;
        double number;
    } words[3];
} values[OFF + 1] = {
    [EXPONENT] = {"an exponent of 2 from -1023 to 1023", -1023, 1023, {{0}}},
    [REMAINING] = {"a whole number", -GSC_COUNT_MOST, GSC_COUNT_MOST, {{0}}},
    [REMAINING_ONE] = {"a whole number", -GSC_COUNT_MOST, GSC_COUNT_MOST, {{0}}},
    [RAISES] = {"finite and 0 or above", 0, DBL_MAX, {{0}}},
    [FIXED_SCALE] = {"a number or \"dynamic\"", -DBL_MAX, DBL_MAX, {{"dynamic", 0}}},
    [FIXED_OR_ONE] = {"a number or \"dynamic\"", -DBL_MAX, DBL_MAX, {{"dynamic", 0}}},
    [REFILL] = {"\"growth\" or \"good_step\"", 1, 0,
                {{"growth", GSC_RESET_ON_GROWTH}, {"good_step", GSC_RESET_ON_GOOD_STEP}}},
    [HALF_TYPE] = {"\"float16\", \"bfloat16\" or \"cbfloat16\"", 1, 0,
                   {{"float16", 0}, {"bfloat16", 1}, {"cbfloat16", 0x1p31}}},
};
/* clang-format on */

/* Reads the number of an entry; null is 0. */
static gsc_status read_number(const reading *r, const struct row *row, int64_t entry, double *x,
                              gsc_error *err)
{
    const gsc_entry *e = &r->entries[entry];
    const bool of_state = row->field >= POLICY_FIELDS, text = e->kind == GSC_ENTRY_TEXT;
    const char *must = values[row->as].must;
    const double low = values[row->as].low, high = values[row->as].high;
    for (int i = 0; i < 3 && values[row->as].words[i].text && text; i++)
        if (strcmp(e->text, values[row->as].words[i].text) == 0) {
            *x = values[row->as].words[i].number;
            return GSC_OK;
        }
    *x = is_number(e) ? e->value : 0;
    if (of_state && e->kind == GSC_ENTRY_BOOLEAN)
        return fail_at(r, entry, NAN, NAN, "a number, and no boolean", err);
    if (isnan(*x) || (of_state && !is_number(e)) || (text && !must))
        return fail_at(r, entry, NAN, NAN, "a number", err);
    const bool whole = gsc_fields[row->field].type == F64 || *x == floor(*x);
    if (must && (text || !whole || !(*x >= low && *x <= high)))
        return fail_at(r, entry, low < high ? low : NAN, low < high ? high : NAN, must, err);
    if (row->field == scale && *x < 0)
        return fail_at(r, entry, 0, NAN, "a scale: 0 or above", err);
    if (row->as == FIXED_OR_ONE && *x == 0)
        *x = 1;
    return GSC_OK;
}

/* Returns the value of the row's field, or NAN if it stays. Sets other fields that x decides. */
static double value_read(reading *r, const struct row *row, int64_t entry, double x)
{
    gsc_policy *p = &r->s.policy;
    switch (row->as) {
    case EXPONENT:
        return gsc_exp2(x);
    case BOTH_WAYS:
        if (p->backoff_factor * x != 1)
            p->backoff_factor = 0;
        r->from[backoff_factor] = entry;
        return x;
    case REMAINING:
    case REMAINING_ONE:
        return fmax((double)gsc_hysteresis(p) - x, 0);
    case ITERATION:
        r->since_start = true;
        return x;
    case LAST_OVERFLOW:
        return r->since_start ? gsc_get(&r->s, good_steps) - x - 1 : NAN;
    case SWITCH:
        return x != 0;
    case CONSECUTIVE:
        return x != 0 ? GSC_RESET_ON_GOOD_STEP : GSC_RESET_ON_GROWTH;
    case OFF:
        return 0;
    case RAISES:
        if (x <= p->min_scale)
            return NAN;
        p->floor_rule = GSC_LIMIT_CLAMP;
        return x;
    case IS_DYNAMIC:
        if (x == 0)
            r->fixed = r->from[scale] >= 0 ? r->s.state.factor.scale : p->init_scale;
        return NAN;
    case IS_ON:
    case IS_OFF:
        if ((x != 0) == (row->as == IS_OFF))
            r->fixed = 1;
        return NAN;
    case FIXED_SCALE:
    case FIXED_OR_ONE:
        if (x == 0)
            return NAN;
        r->fixed = x;
        return x;
    case HALF_TYPE:
        if (x == 1)
            r->fixed = 1;
        if (x <= 1)
            return NAN;
        p->init_scale = x;
        return x;
    default:
        return x;
    }
}

static gsc_status convert(reading *r, const struct row *row, int64_t entry, gsc_error *err)
{
    double x;
    GSC_TRY(read_number(r, row, entry, &x, err));
    if (r->entries[entry].kind == GSC_ENTRY_NULL && is_unset(row)) {
        r->unset[row->field] = entry;
        return GSC_OK;
    }
    if (row->as == LAST_OVERFLOW && r->since_start && !(x >= -1 && x < gsc_get(&r->s, good_steps)))
        return fail_at(r, entry, -1, gsc_get(&r->s, good_steps) - 1,
                       "-1 or the number of a step before the present one", err);
    const double value = value_read(r, row, entry, x);
    if (isnan(value))
        return GSC_OK;
    const gsc_entry *e = &r->entries[entry];
    const bool exact =
        e->kind == GSC_ENTRY_INTEGER && (row->as == PLAIN || row->as == DERIVED) && x >= 0x1p53;
    const bool rounded_up = exact && gsc_fields[row->field].type == U64 && x > (double)MOST_U64;
    GSC_TRY(set(r, row->field, rounded_up ? (double)MOST_U64 : value, entry, err));
    if (exact)
        gsc_put_exact(&r->s, row->field, e->integer);
    if (row->as == REMAINING || row->as == REMAINING_ONE)
        r->read[row->field] = (double)gsc_hysteresis(&r->s.policy) - x;
    return GSC_OK;
}

static gsc_status read_rows(reading *r, gsc_error *err)
{
    for (int i = 0; i < r->n_rows; i++) {
        const int64_t entry = gsc_find_entry(r, r->rows[i]->key, 0);
        if (entry < 0)
            continue;
        if (gsc_find_entry(r, r->rows[i]->key, (uint64_t)entry + 1) >= 0)
            return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, entry, "entries.key",
                            "is %s, which is there twice", GSC_QUOTED(r->entries[entry].key));
        GSC_TRY(convert(r, r->rows[i], entry, err));
    }
    return GSC_OK;
}

/* Returns the policy with a scale that never moves. It keeps only the guard's rules, which are its
 * last fields. */
static gsc_policy fixed_at(const gsc_policy *p, double fixed)
{
    gsc_policy made = *p;
    memset(&made, 0, offsetof(gsc_policy, guard_norm));
    made.struct_size = GSC_POLICY_SIZE;
    made.init_scale = fixed;
    return made;
}

/*
 * Lowers init_scale to max_scale, unless a setting gives it: a scaler can save rules that no new
 * one can start with. Stops holding if the framework never stops: bad losses alone would never end.
 */
static void adapt_rules(reading *r)
{
    gsc_policy *p = &r->s.policy;
    r->lowered = gsc_starts_too_high(p) && (r->where == SAVED || r->from[init_scale] < 0);
    r->stopped_holding =
        r->where == SAVED && p->bad_loss_rule == GSC_BAD_LOSS_HOLD && p->max_failed_backoffs == 0;
    if (r->lowered)
        p->init_scale = p->max_scale;
    if (r->stopped_holding)
        p->bad_loss_rule = GSC_BAD_LOSS_OVERFLOW;
}

static gsc_status read_policy(reading *r, gsc_error *err)
{
    const gsc_policy asked = r->s.policy;
    gsc_error why;
    /* A state can have a scale that init_scale cannot have. */
    if (r->where == SAVED && !gsc_usable(gsc_rounded(&r->s.policy, r->fixed)))
        r->fixed = r->fixed == r->fixed ? 1 : NAN;
    if (r->fixed == r->fixed) {
        r->s.policy = (gsc_policy){.struct_size = GSC_POLICY_SIZE, .init_scale = r->fixed};
        if (r->where == SET) /* a checkpoint's own scaler had no guard */
            r->s.policy = fixed_at(&asked, r->fixed);
        r->s.policy.arithmetic = asked.arithmetic;
        r->s.policy.overflow_test = asked.overflow_test;
    }
    adapt_rules(r);
    const gsc_status status = gsc_policy_check_full(&r->s.policy, 0, &why);
    return status == GSC_OK ? GSC_OK : fail_for(r, &why, err);
}

static bool is_on(const reading *r, const char *key)
{
    const int64_t i = gsc_find_entry(r, key, 0);
    return i >= 0 && r->entries[i].value == 1;
}

/* Returns the section for bf16 if the prefix names it, or if it is on and fp16 is off; or NULL. */
static const char *bf16_section(const reading *r)
{
    const char *name = gsc_last_name(r->prefix);
    if (!(r->format->traits & FP16_ONLY))
        return NULL;
    if (*name)
        return strcmp(name, "bf16") == 0 || strcmp(name, "bfloat16") == 0 ? r->prefix : NULL;
    if (is_on(r, "fp16.enabled"))
        return NULL;
    return is_on(r, "bf16.enabled") ? "bf16" : is_on(r, "bfloat16.enabled") ? "bfloat16" : NULL;
}

static void begin_reading(reading *r, const struct format *f, const gsc_policy *policy,
                          unsigned where)
{
    r->format = f;
    r->where = where;
    r->n_rows = gsc_list_rows(f, where, r->rows);
    r->fixed = NAN;
    r->since_start = false;
    memset(r->from, -1, sizeof r->from);
    memset(r->unset, -1, sizeof r->unset);
    r->s.policy = policy ? *policy : (gsc_policy)GSC_POLICY_INIT;
    if (!policy)
        (void)gsc_policy_preset(f->preset, &r->s.policy, NULL);
    (void)gsc_state_made(&r->s.policy, NULL, &r->s.state);
}

/* Sets a count to `value` if it is not among the entries. */
static void count_from(reading *r, enum field f, int64_t value, gsc_notes *notes)
{
    if (r->from[f] >= 0)
        return;
    gsc_put_exact(&r->s, f, value);
    if (gsc_affects_training(&r->s.policy, f))
        gsc_note_add(notes, GSC_NOTE_MISSING, -1, gsc_fields[f].name, (double)value,
                     "%s is not among the entries: it starts at %" PRId64, gsc_fields[f].name,
                     value);
}

/* Makes the state: rounds the scale to the policy's format, and fills in missing counts. */
static gsc_status read_state(reading *r, gsc_notes *notes, gsc_error *err)
{
    const gsc_policy *p = &r->s.policy;
    gsc_state *s = &r->s.state, made;
    gsc_error why;
    if (r->from[scale] < 0) {
        if (!(r->format->traits & MAY_LACK))
            return gsc_fail_no_scale(r, err);
        (void)gsc_state_made(p, NULL, &made);
        s->factor = made.factor;
        gsc_note_add(notes, GSC_NOTE_MISSING, -1, "scale", s->factor.scale,
                     "the scale is not among the entries: it starts at %s",
                     GSC_EXACT(s->factor.scale));
    } else if (isfinite(s->factor.scale) && isinf(gsc_rounded(p, s->factor.scale))) {
        return fail_at(r, r->from[scale], 0, 0x1.fffffep127,
                       "at most the largest float, in which this policy computes", err);
    }
    const int64_t counted = s->overflows_since_reset == 0 ? s->steps_since_change : 0;
    count_from(r, good_steps, r->from[steps_since_change] >= 0 ? counted : 0, notes);
    count_from(r, steps_since_change, s->good_steps, notes); /* each good step is a step */
    count_from(r, overflows_since_reset, 0, notes);
    count_from(r, failed_backoffs, 0, notes);
    count_from(r, bad_losses_in_a_row, 0, notes);
    const double newest = r->from[next_scale] >= 0 ? s->next.scale : s->factor.scale;
    if (!(newest >= 0) || (isfinite(newest) && isinf(gsc_rounded(p, newest))))
        return fail_at(r, r->from[next_scale], 0, 0x1.fffffep127, "a scale of this policy", err);
    if (!p->apply_delay)
        s->factor.scale = newest;
    const uint64_t generation_to_come = s->next.generation;
    s->next.generation = 0;
    if (gsc_state_made(p, s, &made) != GSC_OK) {
        s->factor = s->next = gsc_factor_of(1, 1); /* valid: the check names the wrong field */
        (void)gsc_state_check(s, 0, "state", &why);
        return fail_for(r, &why, err);
    }
    if (p->apply_delay && r->from[next_scale] >= 0)
        made.next = gsc_factor_of(gsc_rounded(p, newest), 2);
    if (r->from[generation] >= 0 && r->from[next_generation] >= 0 &&
        s->factor.generation <= generation_to_come) {
        made.factor.generation = s->factor.generation;
        made.next.generation = generation_to_come;
    }
    made.events = s->events;
    made.guard_threshold = s->guard_threshold;
    made.guard_value = s->guard_value;
    made.guard_multiplier = s->guard_multiplier;
    gsc_set_skip(&made);
    if (!made.skip && made.guard_multiplier == 0) /* the events of a skip are not among them */
        made.guard_multiplier = 1;
    *s = made;
    if (p->apply_delay && r->from[next_scale] < 0 && r->from[scale] >= 0)
        gsc_note_add(notes, GSC_NOTE_MISSING, -1, "next_scale", s->next.scale,
                     "next_scale is not among the entries: it is %s, as the scale",
                     GSC_EXACT(s->next.scale));
    return GSC_OK;
}

static gsc_status read_all(reading *r, gsc_notes *notes, gsc_error *err)
{
    for (int i = 0; i < 2 && r->format->rows == gsc_our_rows; i++) { /* keys that 0.9 wrote */
        const int64_t old = gsc_find_entry(r, i == 0 ? "log2_mean" : "target_amax", 0);
        if (old >= 0)
            return gsc_fail(err, GSC_ERROR_VERSION, ENTRIES, old, "entries.key",
                            GSC_SAVED_BY_CANDIDATE);
    }
    GSC_TRY(read_rows(r, err));
    GSC_TRY(read_policy(r, err));
    if (r->where == SAVED)
        GSC_TRY(read_state(r, notes, err));
    gsc_note_read(r, notes);
    return GSC_OK;
}

static gsc_status check_not_empty(const reading *r, gsc_error *err)
{
    for (uint64_t i = 0; i < r->n; i++)
        if (r->entries[i].kind != GSC_ENTRY_UNUSED)
            return GSC_OK;
    return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, -1, "entries",
                    "are none: a scaler that is switched off saves none");
}

gsc_status gsc_read_as(reading *r, const struct format *f, const gsc_policy *policy,
                       gsc_notes *notes, gsc_error *err)
{
    begin_reading(r, f, policy, SAVED);
    return read_all(r, notes, err);
}

/* Reads the scaler in all formats that match, and fails if the results differ. */
static gsc_status import_alike(reading *r, const struct found *found, const gsc_policy *policy,
                               gsc_notes *counted, gsc_error *err)
{
    gsc_notes none = {0};
    GSC_TRY(gsc_read_as(r, found->format[0], policy, counted, err));
    for (int i = 1; i < found->n; i++) {
        reading other = *r;
        GSC_TRY(gsc_read_as(&other, found->format[i], policy, &none, err));
        if (memcmp(&r->s, &other.s, sizeof r->s) != 0)
            return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, -1, "entries",
                            "are of the format %s or %s, which go on differently: name the format",
                            found->format[0]->name, found->format[i]->name);
    }
    return GSC_OK;
}

gsc_status gsc_state_import(const char *format, const char *prefix, const gsc_entry *entries,
                            uint64_t entries_count, const gsc_policy *policy,
                            gsc_policy *out_policy, gsc_state *out_state, gsc_note *notes,
                            uint64_t notes_capacity, uint64_t *notes_count, gsc_error *err)
{
    gsc_begin(err);
    reading r = {.entries = entries, .n = entries_count, .where = SAVED};
    gsc_policy full;
    const struct format *f = NULL;
    struct found found;
    gsc_notes list = {.at = notes, .capacity = notes_capacity}, counted = {0};
    GSC_REQUIRE(entries, 2);
    GSC_REQUIRE(out_policy, 5);
    GSC_REQUIRE(out_state, 6);
    GSC_TRY(gsc_notes_check(&list, 7, err));
    if (format)
        GSC_TRY(gsc_find_format(format, true, &f, err));
    if (policy) {
        GSC_TRY(gsc_policy_read(policy, &full, 4, err));
        policy = &full;
    }
    GSC_TRY(check_entries(entries, entries_count, err));
    if (prefix)
        GSC_TRY(gsc_use_prefix(&r, prefix, err));
    r.format = f;
    if (!(f && (f->traits & MAY_LACK)))
        GSC_TRY(check_not_empty(&r, err));
    GSC_TRY(gsc_check_prefix(&r, err));
    GSC_TRY(gsc_find_scaler(&r, f, prefix, &found, err));
    /* The first time without notes: a call that fails writes none. */
    GSC_TRY(import_alike(&r, &found, policy, &counted, err));
    GSC_TRY(
        gsc_struct_write(&r.s.policy, GSC_POLICY_SIZE, out_policy, false, 5, "out_policy", err));
    if (!f)
        gsc_note_format(&found, prefix ? "" : r.prefix, &counted);
    gsc_notes_sort(&list, &counted);
    if (!f)
        gsc_note_format(&found, prefix ? "" : r.prefix, &list);
    (void)gsc_read_as(&r, found.format[0], policy, &list, NULL);
    gsc_tell(notes_count, list.n);
    *out_state = r.s.state;
    return GSC_OK;
}

gsc_status gsc_policy_import(const char *format, const char *prefix, const gsc_entry *entries,
                             uint64_t entries_count, const gsc_policy *policy,
                             gsc_policy *out_policy, gsc_note *notes, uint64_t notes_capacity,
                             uint64_t *notes_count, gsc_error *err)
{
    gsc_begin(err);
    reading r = {.entries = entries, .n = entries_count};
    gsc_policy full;
    const struct format *f = NULL;
    gsc_notes list = {.at = notes, .capacity = notes_capacity}, counted = {0};
    GSC_REQUIRE(format, 0);
    if (entries_count > 0)
        GSC_REQUIRE(entries, 2);
    GSC_REQUIRE(out_policy, 5);
    GSC_TRY(gsc_notes_check(&list, 6, err));
    if (gsc_find_format(format, false, &f, NULL) != GSC_OK) { /* a preset: keys are fields */
        full = (gsc_policy){.struct_size = GSC_POLICY_SIZE};
        if (gsc_policy_preset(format, &full, NULL) != GSC_OK)
            return gsc_find_format(format, false, &f, err);
        f = gsc_formats;
        policy = policy ? policy : &full;
    }
    if (policy && policy != &full) {
        GSC_TRY(gsc_policy_read(policy, &full, 4, err));
        policy = &full;
    }
    GSC_TRY(check_entries(entries, entries_count, err));
    if (prefix)
        GSC_TRY(gsc_use_prefix(&r, prefix, err));
    begin_reading(&r, f, policy, SET);
    GSC_TRY(gsc_check_prefix(&r, err));
    const char *bf16 = bf16_section(&r);
    if (!bf16)
        GSC_TRY(read_all(&r, &counted, err));
    else if (gsc_moves(&r.s.policy))
        r.s.policy = fixed_at(&r.s.policy, 0);
    else if (r.s.policy.init_scale != 0)
        r.s.policy.init_scale = 1;
    GSC_TRY(
        gsc_struct_write(&r.s.policy, GSC_POLICY_SIZE, out_policy, false, 5, "out_policy", err));
    if (bf16)
        gsc_note_add(&list, GSC_NOTE_CHANGED, -1, "init_scale", 1,
                     "%s is not scaled: the scale is 1 for good; the preset guard also skips "
                     "absurd norms",
                     GSC_QUOTED(bf16));
    else {
        gsc_notes_sort(&list, &counted);
        gsc_note_read(&r, &list);
    }
    gsc_tell(notes_count, list.n);
    return GSC_OK;
}
