/* SPDX-License-Identifier: MIT */
/*
 * Reads and writes checkpoints and settings of frameworks. A framework is a row of gsc_formats and
 * a table of keys. A row of the table maps a key to a field; if the number at the key is not the
 * field's value, a conversion says how to compute it. Read tables.c first, then fields.c, find.c,
 * read.c and write.c.
 */
#ifndef GSC_FORMATS_H
#define GSC_FORMATS_H

#include "internal.h"
#include "step.h"

/* ---- fields ---- */

/* A policy and a state, to read into and to write from. */
struct scaler {
    gsc_policy policy;
    gsc_state state;
};

enum type { F64, U32, U64, I64 };

/* The fields by name. The state's scales have the names that users of entries know. */
#define FOR_POLICY(X)                                                                              \
    X(init_scale, policy.init_scale, F64)                                                          \
    X(growth_factor, policy.growth_factor, F64)                                                    \
    X(backoff_factor, policy.backoff_factor, F64)                                                  \
    X(growth_interval, policy.growth_interval, U64)                                                \
    X(growth_rule, policy.growth_rule, U32)                                                        \
    X(growth_extra_steps, policy.growth_extra_steps, U32)                                          \
    X(max_scale, policy.max_scale, F64)                                                            \
    X(min_scale, policy.min_scale, F64)                                                            \
    X(ceiling_rule, policy.ceiling_rule, U32)                                                      \
    X(floor_rule, policy.floor_rule, U32)                                                          \
    X(overflow_test, policy.overflow_test, U32)                                                    \
    X(hysteresis, policy.hysteresis, U32)                                                          \
    X(overflow_reset, policy.overflow_reset, U32)                                                  \
    X(apply_delay, policy.apply_delay, U32)                                                        \
    X(overflow_tolerance, policy.overflow_tolerance, F64)                                          \
    X(max_failed_backoffs, policy.max_failed_backoffs, U64)                                        \
    X(quirks, policy.quirks, U32)                                                                  \
    X(arithmetic, policy.arithmetic, U32)                                                          \
    X(bad_loss_rule, policy.bad_loss_rule, U32)                                                    \
    X(guard_norm, policy.guard_norm, F64)                                                          \
    X(guard_ratio, policy.guard_ratio, F64)                                                        \
    X(guard_sigmas, policy.guard_sigmas, F64)                                                      \
    X(guard_decay, policy.guard_decay, F64)                                                        \
    X(guard_init_mean, policy.guard_init_mean, F64)                                                \
    X(guard_warmup, policy.guard_warmup, U64)                                                      \
    X(guard_max_in_a_row, policy.guard_max_in_a_row, U64)                                          \
    X(guard_sample, policy.guard_sample, U32)                                                      \
    X(guard_flags, policy.guard_flags, U32)
#define FOR_STATE(X)                                                                               \
    X(scale, state.factor.scale, F64)                                                              \
    X(next_scale, state.next.scale, F64)                                                           \
    X(good_steps, state.good_steps, I64)                                                           \
    X(steps_since_change, state.steps_since_change, I64)                                           \
    X(overflows_since_reset, state.overflows_since_reset, I64)                                     \
    X(failed_backoffs, state.failed_backoffs, I64)                                                 \
    X(bad_losses_in_a_row, state.bad_losses_in_a_row, I64)                                         \
    X(total_updates, state.total_updates, I64)                                                     \
    X(total_overflows, state.total_overflows, I64)                                                 \
    X(total_bad_losses, state.total_bad_losses, I64)                                               \
    X(total_growths, state.total_growths, I64)                                                     \
    X(total_backoffs, state.total_backoffs, I64)                                                   \
    X(guard_mean, state.guard_mean, F64)                                                           \
    X(guard_variance, state.guard_variance, F64)                                                   \
    X(guard_count, state.guard_count, I64)                                                         \
    X(guard_in_a_row, state.guard_in_a_row, I64)                                                   \
    X(total_guard_skips, state.total_guard_skips, I64)                                             \
    X(total_guard_clips, state.total_guard_clips, I64)                                             \
    X(nans_in_a_row, state.nans_in_a_row, I64)                                                     \
    X(empty_in_a_row, state.empty_in_a_row, I64)                                                   \
    X(updates_at_growth, state.updates_at_growth, I64)                                             \
    X(overflows_at_growth, state.overflows_at_growth, I64)                                         \
    X(guard_multiplier, state.guard_multiplier, F64)                                               \
    X(guard_threshold, state.guard_threshold, F64)                                                 \
    X(guard_value, state.guard_value, F64)                                                         \
    X(generation, state.factor.generation, U64)                                                    \
    X(next_generation, state.next.generation, U64)                                                 \
    X(events, state.events, U32)

/* step.h has variables of the same names: it is included before. */
enum field {
#define X(name, member, type) name,
    FOR_POLICY(X) FOR_STATE(X)
#undef X
        FIELDS,
    POLICY_FIELDS = scale,
};

/* ---- keys ---- */

/* The meaning of the number at a key. */
enum conversion {
    PLAIN,         /* the field */
    DERIVED,       /* the field; null: the framework computes it from data that no scaler has */
    EXPONENT,      /* log2 of the field */
    BOTH_WAYS,     /* growth_factor; a backoff divides by it */
    REMAINING,     /* 1 + overflows that the hysteresis still absorbs */
    REMAINING_ONE, /* as REMAINING, but never written below 1 */
    ITERATION,     /* steps since the start; the steps after LAST_OVERFLOW are good */
    LAST_OVERFLOW, /* the step of the last overflow, -1 before the first */
    WITHIN,        /* good steps modulo the interval */
    SWITCH,        /* 1: a limit of 1; 0: no limit */
    CONSECUTIVE,   /* overflow_reset: 1 by a good step, 0 by a growth */
    REFILL,        /* overflow_reset: "good_step" or "growth" */
    RAISES,        /* a floor that clamps, if it is above the present floor */
    IS_DYNAMIC,    /* 0: the scale never moves */
    IS_ON,         /* 0: there is no scaling */
    IS_OFF,        /* 1: there is no scaling */
    FIXED_SCALE,   /* a scale that never moves; 0, null or "dynamic": it moves */
    FIXED_OR_ONE,  /* as FIXED_SCALE, but 0 and null are a scale of 1 that never moves */
    HALF_TYPE,     /* "float16", "cbfloat16" (scales up to 2^31) or "bfloat16" (no scaling) */
    OFF,           /* a format with this key has no such rule: the field is 0 */
};

/* Where a key occurs: in checkpoints, in settings, in both. ONLY_READ: the export omits it. */
enum { SAVED = 1, SET = 2, BOTH = 3, ONLY_READ = 4 };

struct row {
    const char *key; /* NULL: the end */
    enum field field;
    enum conversion as;
    unsigned where;
};

/* ---- formats: tables.c ---- */

enum {
    BY_NAME = 1,    /* never recognised: a far more common format has the same keys */
    MAY_LACK = 2,   /* the scale can be missing; it then starts anew */
    NUMBERED = 4,   /* keys can end with a number */
    DISTINCT = 8,   /* the scale's key is enough: no other framework has it */
    FP16_ONLY = 16, /* settings have a section for bf16, which has no scaling */
    SAYS_2E15 = 32, /* the documentation of the settings writes 2e15 and means 2^15 */
};

struct format {
    const char *name, *preset, *prefix; /* the framework's prefix of one scaler */
    const struct row *rows;
    unsigned traits;
    const char *summary;
};

enum { MOST_FORMATS = 64 };
extern const struct format gsc_formats[MOST_FORMATS + 1]; /* the name is NULL: the end */
extern const struct row
    gsc_our_rows[]; /* of this library's own format: the fields by their names */
extern const struct row
    gsc_common_rows[]; /* of settings in every format, as are the fields' names */

/* ---- fields.c ---- */

extern const struct gsc_field {
    const char *name;
    enum type type;
    size_t offset;
} gsc_fields[FIELDS];

#define MOST_U64 0xfffffffffffff800u /* the largest that a double holds exactly */

double gsc_get(const struct scaler *s, enum field f);
/* Returns false if the field's type cannot hold x. */
bool gsc_put(struct scaler *s, enum field f, double x);
/* Sets a field to an integer exactly; a double would round it from 2^53 on. */
void gsc_put_exact(struct scaler *s, enum field f, int64_t integer);
/* Returns the largest value that a field of whole numbers can hold. */
double gsc_most_of(enum field f);
/* Returns true if later steps depend on this field of the state. */
bool gsc_affects_training(const gsc_policy *p, enum field f);

/* ---- find.c ---- */

enum {
    ENTRIES = 2, /* position of the argument `entries` */
    MOST_ROWS = 96,
    KEY_SIZE = sizeof((gsc_entry *)0)->key,
};

typedef struct reading {
    const struct format *format;
    const gsc_entry *entries;
    uint64_t n;
    char prefix[KEY_SIZE];
    unsigned where;                    /* SAVED or SET */
    const struct row *rows[MOST_ROWS]; /* of the keys that these entries can have */
    int n_rows;                        /* their number */
    struct scaler s;                   /* the fields read so far */
    int64_t from[FIELDS];              /* the entry that a field came from, or -1 */
    double read[FIELDS];               /* the field's value by that entry */
    int64_t unset[POLICY_FIELDS];      /* the null entry that leaves a field unchanged, or -1 */
    double fixed;                      /* a scale that never moves, or NAN */
    bool since_start;                  /* good_steps is the number of an iteration */
    bool lowered, stopped_holding;     /* by adapt_rules */
} reading;

gsc_status gsc_find_format(const char *name, bool must_save, const struct format **format,
                           gsc_error *err);
/* Lists the rows of the keys that SAVED or SET entries, or BOTH, can have; returns their number. */
int gsc_list_rows(const struct format *f, unsigned where, const struct row *list[MOST_ROWS]);
gsc_status gsc_use_prefix(reading *r, const char *prefix, gsc_error *err);
/* Refuses a prefix that no key begins with: nothing would be read. */
gsc_status gsc_check_prefix(const reading *r, gsc_error *err);
/* Returns the key after the prefix, or NULL if the prefix differs. */
const char *gsc_key_after_prefix(const reading *r, const gsc_entry *entry);
/* Returns the last name of a key or a prefix. */
const char *gsc_last_name(const char *key);
/* Returns true if some format saves this name: true for few names of a checkpoint. */
bool gsc_is_saved(const char *name);
/* Returns the first entry from `start` on with this key, or -1. */
int64_t gsc_find_entry(const reading *r, const char *key, uint64_t start);
/* Returns the row of a key, or NULL if the key has no meaning. */
const struct row *gsc_row_of(const reading *r, const char *rest);
/* Returns the length of the prefix of a settings key of the format; 0: none. */
size_t gsc_settings_prefix_length(const reading *r, const char *key);

/* The formats in which a scaler can be read. */
struct found {
    const struct format *format[MOST_FORMATS];
    int n;
};
/* Finds the scaler if no prefix is given, and its formats if none is named. */
gsc_status gsc_find_scaler(reading *r, const struct format *named, const char *prefix,
                           struct found *found, gsc_error *err);
gsc_status gsc_fail_no_scale(const reading *r, gsc_error *err);

/* ---- notes.c ---- */

/* Notes what the reading left out, filled in or changed. */
void gsc_note_read(const reading *r, gsc_notes *notes);
/* Notes the recognised format, its prefix, and other formats with the same keys. */
void gsc_note_format(const struct found *found, const char *prefix, gsc_notes *notes);

/* ---- read.c ---- */

/* Reads the entries of a checkpoint at the reading's prefix. */
gsc_status gsc_read_as(reading *r, const struct format *f, const gsc_policy *policy,
                       gsc_notes *notes, gsc_error *err);

#endif
