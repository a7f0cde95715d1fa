/* SPDX-License-Identifier: MIT */
/* Notes what reading entries left out, filled in or changed. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats.h"

static void note_changed(const reading *r, enum field f, gsc_notes *notes)
{
    const double x = gsc_get(&r->s, f);
    if (r->from[f] >= 0 && x != r->read[f])
        gsc_note_add(notes, GSC_NOTE_CHANGED, r->from[f], gsc_fields[f].name, x,
                     "%s makes %s %s: in this policy it is %s",
                     GSC_QUOTED(r->entries[r->from[f]].key), gsc_fields[f].name,
                     GSC_EXACT(r->read[f]), GSC_EXACT(x));
}

static void note_past_interval(const reading *r, gsc_notes *notes)
{
    const gsc_policy *p = &r->s.policy;
    const enum field f = p->growth_rule == GSC_GROWTH_ALL_STEPS ? steps_since_change : good_steps;
    const double count = gsc_get(&r->s, f),
                 due = (double)p->growth_interval + p->growth_extra_steps;
    if (p->growth_rule == GSC_GROWTH_EVERY || !p->growth_interval || !gsc_moves(p) || count < due ||
        r->from[f] < 0)
        return;
    gsc_note_add(notes, GSC_NOTE_CHANGED, r->from[f], gsc_fields[f].name, count,
                 "%s makes %s %s, where growth_interval is %s: the scale grows %s",
                 GSC_QUOTED(r->entries[r->from[f]].key), gsc_fields[f].name, GSC_EXACT(count),
                 GSC_EXACT((double)p->growth_interval),
                 p->growth_rule == GSC_GROWTH_EXACT ? "only after an overflow, which starts it anew"
                                                    : "with the next step");
}

static void note_missing_fields(const reading *r, gsc_notes *notes)
{
    struct scaler preset = {.policy = GSC_POLICY_INIT};
    (void)gsc_policy_preset(r->format->preset, &preset.policy, NULL);
    for (int f = init_scale + 1; f < POLICY_FIELDS; f++) {
        const double x = gsc_get(&r->s, (enum field)f);
        bool asked = x != gsc_get(&preset, (enum field)f);
        for (const struct row *row = r->format->rows; row->key; row++)
            asked |= row->field == (enum field)f && (row->where & BOTH);
        if (r->from[f] < 0 && r->unset[f] < 0 && asked)
            gsc_note_add(notes, GSC_NOTE_MISSING, -1, gsc_fields[f].name, x,
                         "%s is not among the entries: it is " GSC_VALUE ", as in the policy",
                         gsc_fields[f].name, GSC_NAME_OF(gsc_fields[f].name, x));
    }
}

static void note_adapted(const reading *r, gsc_notes *notes)
{
    const double first = r->s.policy.init_scale;
    if (r->lowered)
        gsc_note_add(notes, GSC_NOTE_CHANGED, r->from[init_scale], "init_scale", first,
                     "init_scale becomes %s, which is max_scale: no first scale is above it",
                     GSC_EXACT(first));
    if (r->stopped_holding)
        gsc_note_add(notes, GSC_NOTE_CHANGED, r->from[max_failed_backoffs], "bad_loss_rule",
                     GSC_BAD_LOSS_OVERFLOW,
                     "bad_loss_rule becomes " GSC_VALUE ": max_failed_backoffs is 0 here, and a "
                     "policy that holds needs it",
                     GSC_NAME_OF("bad_loss_rule", GSC_BAD_LOSS_OVERFLOW));
}

/* Notes this scaler's keys without meaning. In a checkpoint, deeper keys are not the scaler's; in
 * settings, the caller perhaps forgot the prefix. */
static void note_ignored(const reading *r, gsc_notes *notes)
{
    const char *unused[MOST_ROWS + 1] = {NULL}; /* a misspelt key can mean one of them */
    for (int i = 0, n = 0; i < r->n_rows && r->where == SET; i++)
        if (gsc_find_entry(r, r->rows[i]->key, 0) < 0)
            unused[n++] = r->rows[i]->key;
    for (uint64_t i = 0; i < r->n; i++) {
        const gsc_entry *e = &r->entries[i];
        const char *rest = gsc_key_after_prefix(r, e);
        if (!rest || gsc_row_of(r, rest))
            continue;
        if (strpbrk(rest, "./")) {
            const size_t length = r->where == SET ? gsc_settings_prefix_length(r, rest) : 0;
            char prefix[KEY_SIZE] = "";
            memcpy(prefix, e->key, length ? (size_t)(rest - e->key) + length : 0);
            if (length)
                gsc_note_add(notes, GSC_NOTE_IGNORED, (int64_t)i, "", e->value,
                             "%s is left out: it is read with the prefix %s", GSC_QUOTED(e->key),
                             GSC_QUOTED(prefix));
            continue;
        }
        gsc_note_add(notes, GSC_NOTE_IGNORED, (int64_t)i, "", e->value,
                     "%s means nothing in the format %s: it is left out%s", GSC_QUOTED(e->key),
                     r->format->name, GSC_MEANT("; ", rest, unused, sizeof *unused));
    }
}

/* Notes keys with a null that leaves the field unchanged. */
static void note_unset(const reading *r, gsc_notes *notes)
{
    for (int f = 0; f < POLICY_FIELDS && isnan(r->fixed); f++) {
        if (r->unset[f] < 0 || r->from[f] >= 0)
            continue;
        const gsc_entry *e = &r->entries[r->unset[f]];
        const double x = gsc_get(&r->s, (enum field)f);
        gsc_note_add(notes, GSC_NOTE_MISSING, r->unset[f], gsc_fields[f].name, x,
                     "%s is empty: %s stays " GSC_VALUE "%s", GSC_QUOTED(e->key),
                     gsc_fields[f].name, GSC_NAME_OF(gsc_fields[f].name, x),
                     gsc_row_of(r, gsc_key_after_prefix(r, e))->as == DERIVED
                         ? ", where fairseq takes 2^14 / data-parallel size / update_freq: set it"
                         : ", as in the policy");
    }
}

/* Notes numbers such as 2e15: Cerebras' documentation writes it and means 2^15. */
static void note_misread_exponents(const reading *r, gsc_notes *notes)
{
    static const struct {
        double written;
        int exponent;
    } meant[] = {{2e15, 15}, {2e31, 31}, {2e-14, -14}};
    for (enum field f = 0; f < FIELDS; f++)
        for (size_t i = 0; i < sizeof meant / sizeof meant[0]; i++)
            if (r->from[f] >= 0 && r->entries[r->from[f]].value == meant[i].written)
                gsc_note_add(notes, GSC_NOTE_CHANGED, r->from[f], gsc_fields[f].name,
                             gsc_get(&r->s, f), "%s is %s: if 2^%d is meant, write %s",
                             GSC_QUOTED(r->entries[r->from[f]].key), GSC_EXACT(meant[i].written),
                             meant[i].exponent, GSC_EXACT(ldexp(1, meant[i].exponent)));
}

void gsc_note_read(const reading *r, gsc_notes *notes)
{
    const gsc_state *s = &r->s.state;
    if (r->where == SAVED) {
        for (int f = POLICY_FIELDS; f < generation; f++)
            note_changed(r, (enum field)f, notes);
        note_past_interval(r, notes);
        if (!gsc_usable(s->factor.scale) || !gsc_usable(s->next.scale))
            gsc_note_add(notes, GSC_NOTE_UNUSABLE, r->from[scale], "scale", s->factor.scale,
                         "the scale is %s: no call multiplies by it; start a state with another",
                         GSC_SHORT(s->factor.scale));
        gsc_note_outside_limits(notes, &r->s.policy, s);
        if (isnan(r->fixed))
            note_missing_fields(r, notes);
    }
    note_adapted(r, notes);
    note_unset(r, notes);
    note_ignored(r, notes);
    if (r->where == SET && r->format->traits & SAYS_2E15)
        note_misread_exponents(r, notes);
}

void gsc_note_format(const struct found *found, const char *prefix, gsc_notes *notes)
{
    const struct format *best = found->format[0];
    char others[96] = "";
    for (const struct format *f = gsc_formats; f->name; f++) {
        const size_t end = strlen(others);
        bool listed = (f->traits & BY_NAME) && f->rows == best->rows;
        for (int i = 1; i < found->n; i++)
            listed |= f == found->format[i];
        if (listed && end < 72)
            (void)snprintf(others + end, sizeof others - end, "%s%s",
                           end ? ", " : "; same keys: ", f->name);
    }
    gsc_note_add(notes, GSC_NOTE_FORMAT, -1, best->name, NAN, "read as %s%s%s%s", best->name,
                 *prefix ? " from " : "", *prefix ? GSC_QUOTED(prefix) : "", others);
}
