/* SPDX-License-Identifier: MIT */
/* Declarations that the core's files share: errors, growing structs, argument checks. */
#ifndef GSC_INTERNAL_H
#define GSC_INTERNAL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "gradscaler_cuda.h"

#if defined(__GNUC__)
#define GSC_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define GSC_NOINLINE            __attribute__((noinline))
#else
#define GSC_PRINTF(text, first)
#define GSC_NOINLINE
#endif

/* "0.10.0" */
#define GSC_STRING_OF(x) #x
#define GSC_STRING(x)    GSC_STRING_OF(x)
#define GSC_VERSION_STRING                                                                         \
    GSC_STRING(GSC_VERSION_MAJOR)                                                                  \
    "." GSC_STRING(GSC_VERSION_MINOR) "." GSC_STRING(GSC_VERSION_PATCH)

/* The first line of every function of the ABI: a call that succeeds leaves GSC_OK in *err. */
static inline void gsc_begin(gsc_error *err)
{
    if (err)
        err->status = GSC_OK;
}

/*
 * Sentences are UTF-8 on one line, with a point in numbers, in every locale. What is too long is
 * cut at a character and ends with "...". Nothing reads a sentence: what code needs is a field.
 */
/* As vsnprintf, but marks a cut; returns the length of the text that was written. */
size_t gsc_write(char *to, size_t size, const char *format, va_list arguments);
/* Replaces a sentence by nonsense in the build of ci/test that looks for code that reads one. */
void gsc_scramble(char *sentence);

/* Returns the bytes of the character of UTF-8 at `text`, or 0 if there is none. */
size_t gsc_character_length(const char *text);
/* Writes the caller's text in quotes, for a sentence. `size` is at least 8. */
void gsc_quote(char *to, size_t size, const char *text);
/* A part of a sentence, made where an argument of a call needs it. */
struct gsc_text {
    char text[200]; /* room for every key of an entry, in quotes, and some words */
};
struct gsc_text gsc_quoted(const char *text);
#define GSC_QUOTED(name) (gsc_quoted(name).text)

/* Writes a number with `precision` digits; 0: as few as distinguish it from every other number. */
struct gsc_text gsc_digits(int precision, double value);
#define GSC_EXACT(value) (gsc_digits(0, value).text)
#define GSC_SHORT(value) (gsc_digits(6, value).text)
/* As GSC_SHORT, with as many digits as tell `value` apart from another number of the sentence. */
struct gsc_text gsc_digits_apart(double value, double other);
#define GSC_APART(value, other) (gsc_digits_apart(value, other).text)

/* Returns: before, `did you mean "torch"?`; or nothing if no name is like the unknown `name`. Each
 * name is `stride` bytes after the one before it, in an array of structs; NULL ends them. */
struct gsc_text gsc_did_you_mean(const char *before, const char *name, const char *const *names,
                                 size_t stride);
#define GSC_MEANT(...) (gsc_did_you_mean(__VA_ARGS__).text)

/*
 * Writes an error to *err, unless err is NULL, and returns `status`: a check is one return
 * statement. The message is a sentence: `subject`, such as "policy.min_scale", then `format`, such
 * as "is NULL: it must point to something".
 */
gsc_status gsc_fail(gsc_error *err, gsc_status status, int argument, int64_t index,
                    const char *subject, const char *format, ...) GSC_PRINTF(6, 7);
/* Fails because of a value: "is -1: it must be 0 or above". `format` begins behind "it must be". A
 * key is part of the subject; NULL: none. */
gsc_status gsc_fail_value(gsc_error *err, gsc_status status, int argument, int64_t index,
                          const char *subject, const char *key, const char *shown,
                          const char *format, ...) GSC_PRINTF(8, 9);
/* As gsc_fail_value, because of a number. A missing limit is NAN. */
gsc_status gsc_fail_number(gsc_error *err, gsc_status status, int argument, int64_t index,
                           const char *subject, double value, double low, double high,
                           const char *must);
/* Fails because of bits: "must be a union of the bits 1, 2 and 4", the bits in `all`. */
gsc_status gsc_fail_bits(gsc_error *err, gsc_status status, int argument, const char *subject,
                         uint32_t value, uint32_t all);
/* Adds the numbers to an error that gsc_fail wrote. Returns `status`. */
gsc_status gsc_with_numbers(gsc_status status, gsc_error *err, double value, double low,
                            double high);
/* As gsc_fail, but the message does not begin with the subject. */
gsc_status gsc_fail_otherwise(gsc_error *err, gsc_status status, int argument, const char *subject,
                              const char *format, ...) GSC_PRINTF(5, 6);
/* Fails because reserved words are not 0. */
gsc_status gsc_fail_reserved(gsc_error *err, gsc_status status, int argument, int64_t index,
                             const char *subject);
gsc_status gsc_fail_null(gsc_error *err, int argument, const char *subject);
gsc_status gsc_fail_memory(gsc_error *err);

#define GSC_REQUIRE(pointer, argument)                                                             \
    do {                                                                                           \
        if (!(pointer))                                                                            \
            return gsc_fail_null(err, argument, #pointer);                                         \
    } while (0)

#define GSC_TRY(call)                                                                              \
    do {                                                                                           \
        gsc_status status_ = (call);                                                               \
        if (status_ != GSC_OK)                                                                     \
            return status_;                                                                        \
    } while (0)

/*
 * Growing structs start with struct_size. gsc_struct_read copies the caller's struct and fills the
 * fields it lacks with zeros; it fails if the caller sets fields that this library does not know.
 * gsc_struct_write copies to the caller's struct; it fails if that struct lacks fields that are not
 * zero, unless `truncate` is set.
 */
bool gsc_struct_size_possible(uint32_t size);
bool gsc_all_zero(const void *bytes, size_t size);
gsc_status gsc_struct_read(const void *from, void *full, uint32_t size, int argument,
                           const char *name, gsc_error *err);
gsc_status gsc_struct_write(const void *full, uint32_t size, void *to, bool truncate, int argument,
                            const char *name, gsc_error *err);

/* Reads the caller's policy, with all fields of this version, and checks it. */
gsc_status gsc_policy_read(const gsc_policy *from, gsc_policy *full, int argument, gsc_error *err);
gsc_status gsc_policy_check_full(const gsc_policy *full, int argument, gsc_error *err);

/* Returns true if a step can change the first scale: a backoff, a growth or an enforced floor. */
bool gsc_moves(const gsc_policy *policy);

/* How an error about a state or saved bytes of a version before 0.10 goes on. */
#define GSC_SAVED_BY_CANDIDATE                                                                     \
    "cannot be read by this version (" GSC_VERSION_STRING                                          \
    "): 0.9 or an earlier candidate saved this; start anew, and set the old scale"

/* Check values in host memory. The error message says how to correct a value. */
gsc_status gsc_factor_check(const gsc_factor *factor, int argument, gsc_error *err);
gsc_status gsc_state_check(const gsc_state *state, int argument, const char *name, gsc_error *err);
gsc_status gsc_report_check(const gsc_report *report, int argument, int64_t index, const char *name,
                            gsc_error *err);

/* The number of metrics, and all of them. */
enum { GSC_METRICS = GSC_METRIC_TOTAL_BAD_LOSSES + 1 };
void gsc_metrics_of(const gsc_state *state, const gsc_report *report, gsc_entry *metrics);
/* Returns true if the metric of the norm is the report's. */
bool gsc_tells_norm(const gsc_report *report);
/* The share of the gradients that became zero by unscaling, if the report has one. */
bool gsc_has_zero_share(const gsc_report *report);
double gsc_zero_share(const gsc_report *report);
/* Returns true if all gradients are known to be 0; the norm and amax tell. */
bool gsc_is_zero(const gsc_report *report);

/* Returns the GSC_CAUSE_* of the last update, as far as the state alone tells it. */
uint32_t gsc_cause_of(const gsc_state *state);

/* The caller's list of notes. `n` counts all notes; the first `capacity` are written. */
typedef struct gsc_notes {
    gsc_note *at;
    uint64_t capacity, n;
    uint64_t of_kind[7]; /* notes of each kind; of a sorted list, the index of the next one */
    bool is_sorted;
} gsc_notes;
/* Sorts notes to come by their kinds, after a call that made the same notes counted them. */
void gsc_notes_sort(gsc_notes *notes, const gsc_notes *counted);
void gsc_note_add(gsc_notes *notes, uint32_t kind, int64_t entry, const char *field, double value,
                  const char *format, ...) GSC_PRINTF(6, 7);

/* The value of a field: the names of its rule or flags, such as "CLAMP", or a number. */
struct gsc_text gsc_name_of(const char *field, double value);
#define GSC_NAME_OF(field, value) (gsc_name_of(field, value).text)
/* Stands for note.value in the format of a sentence. */
#define GSC_VALUE_MARK '\1'
#define GSC_VALUE      "\1%s\1"
/* Notes a scale above max_scale or below min_scale. */
void gsc_note_outside_limits(gsc_notes *notes, const gsc_policy *policy, const gsc_state *state);
gsc_status gsc_notes_check(const gsc_notes *notes, int argument, gsc_error *err);
/* Sets *count to value, unless count is NULL. */
void gsc_tell(uint64_t *count, uint64_t value);

/* Checks an entry of the list `tensors` or `out`, not the data it points to. */
gsc_status gsc_tensor_check(const gsc_tensor *tensor, int argument, uint64_t index, bool is_out,
                            gsc_error *err);

#endif
