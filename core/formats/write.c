/* SPDX-License-Identifier: MIT */
/* Writes a policy and a state as a framework's entries, and notes what these cannot hold. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats.h"

/* Returns a field, or its default if it is 0. */
static double meaning_of(const struct scaler *s, enum field f)
{
    return f == growth_factor    ? gsc_growth_factor(&s->policy)
           : f == backoff_factor ? gsc_backoff_factor(&s->policy)
           : f == hysteresis     ? (double)gsc_hysteresis(&s->policy)
                                 : gsc_get(s, f);
}

static double value_written(const struct format *f, const struct scaler *s, const struct row *row)
{
    const gsc_policy *p = &s->policy;
    const double x = gsc_get(s, row->field);
    switch (row->as) {
    case REMAINING:
        return (double)gsc_hysteresis(p) - x;
    case REMAINING_ONE:
        return (double)gsc_hysteresis(p) - x > 1 ? (double)gsc_hysteresis(p) - x : 1;
    case LAST_OVERFLOW:
        return -1; /* as if all steps were good */
    case WITHIN:
        return p->growth_interval ? (double)((uint64_t)s->state.good_steps % p->growth_interval)
                                  : x;
    case SWITCH:
        return x != 0;
    case CONSECUTIVE:
        return (p->overflow_reset & GSC_RESET_ON_GOOD_STEP) != 0;
    case IS_DYNAMIC:
        return gsc_moves(p);
    default:
        return f->rows == gsc_our_rows ? x : meaning_of(s, row->field);
    }
}

/* Returns the kind of entry that the framework's loader expects. */
static uint32_t kind_of(const struct row *row)
{
    return row->as == SWITCH || row->as == CONSECUTIVE || row->as == IS_DYNAMIC ? GSC_ENTRY_BOOLEAN
           : gsc_fields[row->field].type == F64                                 ? GSC_ENTRY_NUMBER
                                                                                : GSC_ENTRY_INTEGER;
}

/* Fills in an entry with the number of a row. */
static void fill(gsc_entry *e, const struct format *f, const struct scaler *s,
                 const struct row *row)
{
    e->value = value_written(f, s, row);
    e->kind = kind_of(row);
    if (e->kind == GSC_ENTRY_NUMBER)
        return;
    if (row->as == PLAIN && e->value >= 0x1p53) { /* it has 64 bits */
        memcpy(&e->integer, (const char *)s + gsc_fields[row->field].offset, sizeof e->integer);
        e->value = (double)(uint64_t)e->integer;
    } else {
        e->integer = (int64_t)e->value;
    }
}

/* Returns true if a field that was written from `a` and read into `b` acts the same. */
static bool same_field(const struct scaler *a, const struct scaler *b, enum field f)
{
    const double x = meaning_of(a, f), y = meaning_of(b, f);
    if (f == good_steps && a->policy.growth_rule == GSC_GROWTH_EVERY && a->policy.growth_interval &&
        a->policy.growth_extra_steps == 0)
        return fmod(x, (double)a->policy.growth_interval) ==
               fmod(y, (double)a->policy.growth_interval);
    const size_t at = gsc_fields[f].offset;
    const bool same =
        x == y && (fabs(x) < 0x1p53 ||
                   memcmp((const char *)a + at, (const char *)b + at, sizeof(int64_t)) == 0);
    return same || (f >= POLICY_FIELDS && !gsc_affects_training(&a->policy, f));
}

/* Notes the fields that a format loses. It reads the entries back: the state's fields with this
 * policy, the policy's fields with the format's preset. */
static void note_lost(const struct scaler *s, const struct format *f, const char *prefix,
                      const gsc_entry *entries, uint64_t n, gsc_notes *notes)
{
    gsc_notes none = {0};
    reading state = {.entries = entries, .n = n}, policy = state;
    (void)gsc_use_prefix(&state, prefix, NULL);
    (void)gsc_use_prefix(&policy, prefix, NULL);
    (void)gsc_read_as(&state, f, &s->policy, &none, NULL);
    (void)gsc_read_as(&policy, f, NULL, &none, NULL);
    for (int i = init_scale + 1; i < FIELDS; i++) { /* init_scale does not matter any more */
        const struct scaler *back = i < POLICY_FIELDS ? &policy.s : &state.s;
        if (!same_field(s, back, (enum field)i))
            gsc_note_add(notes, GSC_NOTE_LOST, -1, gsc_fields[i].name, gsc_get(s, (enum field)i),
                         "%s is " GSC_VALUE ", which the format %s cannot hold", gsc_fields[i].name,
                         GSC_NAME_OF(gsc_fields[i].name, gsc_get(s, (enum field)i)), f->name);
    }
}

gsc_status gsc_state_export(const char *format, const char *prefix, const gsc_policy *policy,
                            const gsc_state *state, gsc_entry *entries, uint64_t entries_capacity,
                            uint64_t *entries_count, gsc_note *notes, uint64_t notes_capacity,
                            uint64_t *notes_count, gsc_error *err)
{
    gsc_begin(err);
    struct scaler s;
    const struct format *f = NULL;
    gsc_notes list = {.at = notes, .capacity = notes_capacity};
    gsc_entry made[MOST_ROWS] = {0};
    uint32_t count = 0;
    GSC_REQUIRE(format, 0);
    GSC_TRY(gsc_find_format(format, true, &f, err));
    GSC_TRY(gsc_policy_read(policy, &s.policy, 2, err));
    GSC_REQUIRE(state, 3);
    if (entries_capacity > 0)
        GSC_REQUIRE(entries, 4);
    GSC_TRY(gsc_notes_check(&list, 7, err));
    GSC_TRY(gsc_state_check(state, 3, "state", err));
    s.state = *state;
    prefix = prefix ? prefix : f->prefix;
    for (const struct row *row = f->rows; row->key; row++) {
        if (!(row->where & SAVED) || (row->where & ONLY_READ) || row->as == OFF)
            continue;
        gsc_entry *e = &made[count++];
        const int length =
            snprintf(e->key, sizeof e->key, "%s%s%s", prefix, *prefix ? "." : "", row->key);
        if (length < 0 || (size_t)length >= sizeof e->key)
            return gsc_fail(err, GSC_ERROR_VALUE, 1, -1, "prefix",
                            "is too long: with it a key has more than %d bytes",
                            (int)sizeof e->key - 1);
        fill(e, f, &s, row);
    }
    if (entries_capacity > 0 && entries_capacity < count)
        return gsc_with_numbers(gsc_fail(err, GSC_ERROR_CAPACITY, 5, -1, "entries_capacity",
                                         "is %llu: there are %u entries",
                                         (unsigned long long)entries_capacity, count),
                                err, (double)entries_capacity, count, NAN);
    if (entries_capacity > 0)
        memcpy(entries, made, count * sizeof *made);
    note_lost(&s, f, prefix, made, count, &list);
    gsc_tell(entries_count, count);
    gsc_tell(notes_count, list.n);
    return GSC_OK;
}
