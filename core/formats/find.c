/* SPDX-License-Identifier: MIT */
/* Finds formats by their names, keys by their prefix, and scalers in a checkpoint. */
#include <stdio.h>
#include <string.h>

#include "formats.h"

/* ---- formats by name ---- */

const char *gsc_format_name(uint32_t index)
{
    return index < MOST_FORMATS ? gsc_formats[index].name : NULL;
}

const char *gsc_format_summary(uint32_t index)
{
    return index < MOST_FORMATS ? gsc_formats[index].summary : NULL;
}

static bool saves(const struct format *f)
{
    return f->rows->where & SAVED;
}

gsc_status gsc_find_format(const char *name, bool must_save, const struct format **format,
                           gsc_error *err)
{
    for (const struct format *f = gsc_formats; f->name; f++)
        if (strcmp(name, f->name) == 0) {
            *format = f;
            return saves(f) || !must_save ? GSC_OK
                                          : gsc_fail(err, GSC_ERROR_FORMAT, 0, -1, "format",
                                                     "is \"%s\", which saves no state", name);
        }
    return gsc_fail(err, GSC_ERROR_FORMAT, 0, -1, "format", "is %s, which is none%s",
                    GSC_QUOTED(name),
                    GSC_MEANT(": ", name, &gsc_formats->name, sizeof *gsc_formats));
}

static bool has_row(const struct row *rows, const char *key, unsigned where)
{
    for (; rows->key; rows++)
        if ((rows->where & where) && strcmp(rows->key, key) == 0)
            return true;
    return false;
}

int gsc_list_rows(const struct format *f, unsigned where, const struct row *list[MOST_ROWS])
{
    const struct row *const tables[] = {f->rows, gsc_common_rows, gsc_our_rows};
    int n = 0;
    for (int t = 0; t < 3; t++)
        for (const struct row *row = tables[t]; row->key && n < MOST_ROWS; row++)
            if (row->where & where & (t == 0 ? BOTH : SET) &&
                (t == 0 || !has_row(f->rows, row->key, SET)))
                list[n++] = row;
    return n;
}

static void list_key(gsc_format_key *key, const struct format *f, const struct row *row,
                     unsigned where)
{
    const size_t length = strlen(row->key);
    memset(key, 0, sizeof *key);
    memcpy(key->key, row->key, length);
    memcpy(key->field, gsc_fields[row->field].name, strlen(gsc_fields[row->field].name));
    key->uses = (where & SAVED ? GSC_KEY_SAVED : 0) | (where & SET ? GSC_KEY_SETTING : 0);
    if ((f->traits & NUMBERED) && length > 2 && strcmp(row->key + length - 2, "_0") == 0)
        key->uses |= GSC_KEY_NUMBERED;
}

gsc_status gsc_format_keys(const char *format, gsc_format_key *keys, uint64_t keys_capacity,
                           uint64_t *keys_count, gsc_error *err)
{
    gsc_begin(err);
    const struct format *f = NULL;
    const struct row *rows[MOST_ROWS];
    unsigned where = BOTH;
    uint64_t n = 0;
    GSC_REQUIRE(format, 0);
    GSC_TRY(gsc_find_format(format, false, &f, err));
    if (keys_capacity > 0)
        GSC_REQUIRE(keys, 1);
    const int n_rows = gsc_list_rows(f, BOTH, rows);
    for (int i = 0; i < n_rows; i++) {
        if (i > 0 && rows[i] != rows[i - 1] + 1) /* of another table, for settings only */
            where = SET;
        if (rows[i]->as != OFF && n++ < keys_capacity)
            list_key(&keys[n - 1], f, rows[i], rows[i]->where & where);
    }
    gsc_tell(keys_count, n);
    return GSC_OK;
}

/* ---- finding keys ---- */

static bool is_separator(char c)
{
    return c == '.' || c == '/';
}

static bool same_key(const struct format *f, const char *key, const char *text)
{
    if (!(f->traits & NUMBERED) || strlen(key) < 2)
        return strcmp(key, text) == 0;
    const size_t stem = strlen(key) - 2; /* without _0 */
    if (strcmp(key + stem, "_0") != 0)
        return strcmp(key, text) == 0;
    if (strncmp(key, text, stem) != 0)
        return false;
    text += stem;
    return !*text || (text[0] == '_' && text[1] && !text[1 + strspn(text + 1, "0123456789")]);
}

const char *gsc_key_after_prefix(const reading *r, const gsc_entry *entry)
{
    const size_t length = strlen(r->prefix);
    if (entry->kind == GSC_ENTRY_UNUSED)
        return NULL;
    if (!length)
        return entry->key;
    return strncmp(entry->key, r->prefix, length) == 0 && is_separator(entry->key[length])
               ? entry->key + length + 1
               : NULL;
}

int64_t gsc_find_entry(const reading *r, const char *key, uint64_t start)
{
    for (uint64_t i = start; i < r->n; i++) {
        const char *rest = gsc_key_after_prefix(r, &r->entries[i]);
        if (rest && same_key(r->format, key, rest))
            return (int64_t)i;
    }
    return -1;
}

const struct row *gsc_row_of(const reading *r, const char *rest)
{
    for (int i = 0; i < r->n_rows; i++)
        if (same_key(r->format, r->rows[i]->key, rest))
            return r->rows[i];
    return NULL;
}

const char *gsc_last_name(const char *key)
{
    const char *name = key;
    for (; *key; key++)
        name = is_separator(*key) ? key + 1 : name;
    return name;
}

size_t gsc_settings_prefix_length(const reading *r, const char *key)
{
    for (size_t at = 1; key[at]; at++)
        if (is_separator(key[at - 1]) && gsc_row_of(r, key + at))
            return at - 1;
    return 0;
}

/* ---- recognising ---- */

/* All keys of a scaler have the same prefix: empty, or names joined by separators. If no
 * prefix is given, a scaler is recognised below at most two names. If there is none, a search of
 * all prefixes makes the error message. */
enum { MOST_NAMES = 2, ANY_NAMES = KEY_SIZE };

/* The first prefixes that a search met. */
struct prefix_list {
    char prefix[3][54];
    int n;
};

static void list_prefix(struct prefix_list *p, const char *prefix, size_t length)
{
    if (length >= sizeof p->prefix[0])
        return;
    for (int i = 0; i < p->n; i++)
        if (strncmp(p->prefix[i], prefix, length) == 0 && !p->prefix[i][length])
            return;
    if (p->n < (int)(sizeof p->prefix / sizeof p->prefix[0])) {
        memcpy(p->prefix[p->n], prefix, length);
        p->prefix[p->n++][length] = '\0';
    }
}

/* A format, and how many of its keys are at a prefix. */
struct match {
    const struct format *format;
    bool has_scale;       /* the key of the scale is there */
    int present, missing; /* keys */
    char prefix[KEY_SIZE];
};

/* Counts a format's keys at the reading's prefix. ONLY_READ keys count only if all others are
 * there. */
static struct match match_format(reading *at, const struct format *f)
{
    struct match m = {.format = f};
    int optional = 0;
    at->format = f;
    memcpy(m.prefix, at->prefix, KEY_SIZE);
    for (const struct row *row = f->rows; row->key; row++)
        if ((row->where & SAVED) && row->as != OFF) {
            const bool there = gsc_find_entry(at, row->key, 0) >= 0;
            m.has_scale |= there && row == f->rows;
            if (row->where & ONLY_READ)
                optional += there;
            else
                there ? m.present++ : m.missing++;
        }
    m.present += m.missing ? 0 : optional;
    return m;
}

static bool is_better(const struct match *a, const struct match *b)
{
    return a->present > b->present || (a->present == b->present && a->missing < b->missing);
}

/* The results of a search for scalers in the entries. */
struct search {
    const struct format *named;  /* the only format to try; NULL: try all */
    struct match best, second;   /* second: a scaler at another prefix, an error */
    struct match alone;          /* a scale without other keys: perhaps not a scaler's */
    struct match lacking;        /* most keys of a format, but no scale */
    struct found found;          /* the formats that match as well as `best` */
    struct prefix_list prefixes; /* prefixes of all scalers */
};

/* Adds a scaler to a search. If a format was named, the scaler with the most keys wins. If not,
 * scalers with several keys are equal, and win over a scale alone. */
static void add_scaler(struct search *s, const struct match *m)
{
    const bool better = !s->found.n || is_better(m, &s->best), worse = is_better(&s->best, m);
    const bool same_prefix = strcmp(m->prefix, s->best.prefix) == 0;
    list_prefix(&s->prefixes, m->prefix, strlen(m->prefix));
    if (s->found.n && !same_prefix &&
        (!(better || worse) || (!s->named && m->present > 1 && s->best.present > 1))) {
        s->second = *m;
    } else if (better) {
        if (!same_prefix)
            s->second.format = NULL;
        s->best = *m;
        s->found.format[0] = m->format;
        s->found.n = 1;
    } else if (same_prefix && !worse) {
        s->found.format[s->found.n++] = m->format;
    }
}

/* Returns true if a checkpoint of the format can consist of the scale alone. */
static bool may_be_alone(const struct format *f)
{
    bool more = false;
    for (const struct row *row = f->rows + 1; row->key; row++)
        more |= (row->where & SAVED) && !(row->where & ONLY_READ);
    return !more || (f->traits & MAY_LACK);
}

/* Tries the formats at the reading's prefix. A scaler has the scale and most of its keys. A scale
 * alone is a scaler at the top, at a given prefix, or if no other format has its key. */
static void try_prefix(struct search *s, reading *at, bool given)
{
    for (const struct format *f = gsc_formats; f->name; f++) {
        if (s->named ? f != s->named : !saves(f) || (f->traits & BY_NAME))
            continue;
        const struct match m = match_format(at, f);
        const bool most = m.present > m.missing, distinct = f->traits & DISTINCT;
        const bool alone = m.present < 2 && !distinct && !given && *m.prefix;
        if (!m.has_scale) {
            if (most && m.present > 1 && is_better(&m, &s->lacking))
                s->lacking = m;
        } else if (most || distinct || s->named) {
            if (alone && !(s->named && may_be_alone(f)))
                s->alone = m;
            else
                add_scaler(s, &m);
        }
    }
    at->format = s->named;
}

static size_t prefix_length(const char *key)
{
    const char *name = gsc_last_name(key);
    return name > key ? (size_t)(name - key) - 1 : 0;
}

bool gsc_is_saved(const char *name)
{
    for (const struct format *f = gsc_formats; f->name; f++)
        for (const struct row *row = f->rows; row->key; row++)
            if ((row->where & SAVED) && same_key(f, row->key, name))
                return true;
    return false;
}

static bool has_prefix(const gsc_entry *e, const char *prefix, size_t length)
{
    return e->kind != GSC_ENTRY_UNUSED && strncmp(e->key, prefix, length) == 0 &&
           prefix_length(e->key) == length && gsc_is_saved(gsc_last_name(e->key));
}

/* Tries each prefix of at most `most_names` names once, at its first entry, with the entries from
 * the first to the last that have the prefix. */
static void search_prefixes(struct search *s, const reading *r, int most_names)
{
    reading at = *r;
    for (uint64_t i = 0; i < r->n; i++) {
        const gsc_entry *e = &r->entries[i];
        uint64_t before = i, last = r->n - 1;
        int names = 0;
        if (e->kind == GSC_ENTRY_UNUSED)
            continue;
        const size_t length = prefix_length(e->key);
        for (const char *c = e->key; *c; c++)
            names += is_separator(*c);
        if (names > most_names || !gsc_is_saved(gsc_last_name(e->key)))
            continue;
        while (before > 0 && !has_prefix(&r->entries[before - 1], e->key, length))
            before--;
        if (before > 0)
            continue;
        while (!has_prefix(&r->entries[last], e->key, length))
            last--;
        memcpy(at.prefix, e->key, length);
        at.prefix[length] = '\0';
        at.entries = e;
        at.n = last - i + 1;
        try_prefix(s, &at, false);
    }
}

gsc_status gsc_use_prefix(reading *r, const char *prefix, gsc_error *err)
{
    const size_t length = strnlen(prefix, sizeof r->prefix);
    if (length >= sizeof r->prefix)
        return gsc_fail(err, GSC_ERROR_VALUE, 1, -1, "prefix", "has more than %d bytes",
                        (int)sizeof r->prefix - 1);
    memcpy(r->prefix, prefix, length + 1);
    return GSC_OK;
}

/* Lists the prefixes of all settings or scalers in the entries: "; there is "optimizer.fp16"". */
static struct gsc_text list_prefixes(const reading *r)
{
    struct search s = {.named = r->format};
    struct gsc_text made = {""};
    size_t length = 0;
    for (uint64_t i = 0; i < r->n && r->where == SET; i++) {
        const gsc_entry *e = &r->entries[i];
        const size_t end = e->kind == GSC_ENTRY_UNUSED ? 0 : gsc_settings_prefix_length(r, e->key);
        if (end)
            list_prefix(&s.prefixes, e->key, end);
    }
    if (r->where == SAVED)
        search_prefixes(&s, r, ANY_NAMES);
    for (int i = 0; i < s.prefixes.n; i++)
        length += (size_t)snprintf(made.text + length, sizeof made.text - length, "%s%s",
                                   i ? ", " : "; there is ", GSC_QUOTED(s.prefixes.prefix[i]));
    return made;
}
#define PREFIXES(r) (list_prefixes(r).text)

/* Returns where the keys are: " below "optimizer.fp16"", or nothing at the top. */
static struct gsc_text below(const char *prefix)
{
    struct gsc_text made = {""};
    if (*prefix) {
        memcpy(made.text, " below ", 7);
        gsc_quote(made.text + 7, sizeof made.text - 7, prefix);
    }
    return made;
}
#define BELOW(prefix) (below(prefix).text)

gsc_status gsc_check_prefix(const reading *r, gsc_error *err)
{
    bool some = !*r->prefix;
    for (uint64_t i = 0; i < r->n && !some; i++)
        some = gsc_key_after_prefix(r, &r->entries[i]);
    return some ? GSC_OK
                : gsc_fail(err, GSC_ERROR_FORMAT, 1, -1, "prefix", "is %s: no key begins with it%s",
                           GSC_QUOTED(r->prefix), PREFIXES(r));
}

gsc_status gsc_fail_no_scale(const reading *r, gsc_error *err)
{
    return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, -1, "entries",
                    "have no \"%s\"%s, the scale of the format %s%s", r->format->rows->key,
                    BELOW(r->prefix), r->format->name, PREFIXES(r));
}

/* Fails because no scaler was recognised. The message names the most similar keys. */
static gsc_status fail_unknown(const reading *r, const struct search *s, const char *prefix,
                               gsc_error *err)
{
    const struct match *alone = &s->alone, *lacking = &s->lacking;
    if (alone->format)
        return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, -1, "entries",
                        "have only a \"%s\"%s: if it is a scaler's, give this prefix%s",
                        alone->format->rows->key, BELOW(alone->prefix),
                        s->named ? "" : " and the format");
    if (lacking->format)
        return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, -1, "entries",
                        "have the keys of no format that is known: they look like keys of %s, "
                        "without \"%s\"%s",
                        lacking->format->name, lacking->format->rows->key, BELOW(lacking->prefix));
    return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, -1, "entries",
                    "have the keys of no format that is known%s", prefix ? PREFIXES(r) : "");
}

gsc_status gsc_find_scaler(reading *r, const struct format *named, const char *prefix,
                           struct found *found, gsc_error *err)
{
    struct search search = {.named = named}, *s = &search;
    if (!prefix)
        search_prefixes(s, r, MOST_NAMES);
    else if (!named)
        try_prefix(s, r, true);
    if (s->second.format)
        return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, -1, "entries",
                        "hold several scalers, %s and %s: say which by prefix",
                        GSC_QUOTED(s->best.prefix), GSC_QUOTED(s->second.prefix));
    if (s->found.n > 0) {
        memcpy(r->prefix, s->best.prefix, KEY_SIZE);
        *found = s->found;
        return GSC_OK;
    }
    if (!prefix)
        search_prefixes(s, r, ANY_NAMES);
    if (s->found.n > 0)
        return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, -1, "entries",
                        "have a scaler below more than two names: give the prefix %s",
                        GSC_QUOTED(s->best.prefix));
    if (!named || s->alone.format)
        return fail_unknown(r, s, prefix, err);
    *found = (struct found){{named}, 1}; /* reading it fails with the missing key */
    return GSC_OK;
}
