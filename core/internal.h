/* SPDX-License-Identifier: MIT */
/* What the files of the core share: errors, growing structs, and the argument checks. */
#ifndef GSC_INTERNAL_H
#define GSC_INTERNAL_H

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

/* "0.9.0", for sentences. Rust's build.rs searches libraries for "this version (0.9.0)". */
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
 * What is wrong, in *err (NULL: nobody asks); each returns status, so that a check is one return
 * statement. `place` is what the sentence is about, "policy.min_scale" or, with an index,
 * "tensors.count"; the sentence goes on where it ends: "is NULL: it must point to something".
 */
gsc_status gsc_fail(gsc_error *err, gsc_status status, int argument, int64_t index,
                    const char *place, const char *format, ...) GSC_PRINTF(6, 7);
/* A number: "is -1: it must be 0 or above". A limit that there is not is NAN. */
gsc_status gsc_fail_number(gsc_error *err, gsc_status status, int argument, int64_t index,
                           const char *place, double value, double low, double high,
                           const char *must);
/* "must be a union of the bits 1, 2 and 4", which are those of `all`. */
gsc_status gsc_fail_bits(gsc_error *err, gsc_status status, int argument, const char *place,
                         uint32_t value, uint32_t all);
/* The numbers of a sentence of gsc_fail. */
gsc_status gsc_with_numbers(gsc_status status, gsc_error *err, double value, double low,
                            double high);
/* A sentence that does not start with its place. */
gsc_status gsc_fail_otherwise(gsc_error *err, gsc_status status, int argument, const char *place,
                              const char *format, ...) GSC_PRINTF(5, 6);
/* Reserved words that are not 0. */
gsc_status gsc_fail_reserved(gsc_error *err, gsc_status status, int argument, int64_t index,
                             const char *place);
/* As few digits as tell a number from all others. */
enum { GSC_DIGITS = 32 };
const char *gsc_digits(char digits[GSC_DIGITS], double value);
gsc_status gsc_fail_null(gsc_error *err, int argument, const char *place);
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
 * Growing structs, all of which start with struct_size. read: the caller's struct in this
 * library's size, zero-extended; refused if it sets fields that the library does not know.
 * write: the other way; refused if fields that the caller's struct lacks are not zero, unless
 * `truncate` says that they may be left out.
 */
bool gsc_struct_size_possible(uint32_t size);
bool gsc_all_zero(const void *bytes, size_t size);
gsc_status gsc_struct_read(const void *from, void *full, uint32_t size, int argument,
                           const char *name, gsc_error *err);
gsc_status gsc_struct_write(const void *full, uint32_t size, void *to, bool truncate, int argument,
                            const char *name, gsc_error *err);

/* The caller's policy in full, checked. */
gsc_status gsc_policy_read(const gsc_policy *from, gsc_policy *full, int argument, gsc_error *err);
gsc_status gsc_policy_check_full(const gsc_policy *full, int argument, gsc_error *err);

/* What a wrong name may mean: one that it contains or begins, else the most alike; or NULL. */
const char *gsc_nearest(const char *name,
                        const char *(*name_of)(const void *context, uint32_t index),
                        const void *context);

/* Values in host memory: refused with a sentence that tells how to mend them. */
gsc_status gsc_factor_check(const gsc_factor *factor, int argument, gsc_error *err);
gsc_status gsc_state_check(const gsc_state *state, int argument, const char *name, gsc_error *err);
gsc_status gsc_report_check(const gsc_report *report, int argument, int64_t index, const char *name,
                            gsc_error *err);

/* GSC_CAUSE_* of what the last update decided. */
uint32_t gsc_cause_of(const gsc_state *state);

/* The caller's list of notes; `n` of them, of which the first `capacity` are written. */
typedef struct gsc_notes {
    gsc_note *at;
    uint64_t capacity, n;
} gsc_notes;
void gsc_note_add(gsc_notes *notes, uint32_t kind, int64_t entry, const char *field, double value,
                  const char *format, ...) GSC_PRINTF(6, 7);
gsc_status gsc_notes_check(const gsc_notes *notes, int argument, gsc_error *err);
/* *count = value, if the caller wants it. */
void gsc_tell(uint64_t *count, uint64_t value);

/* An entry of the list `tensors` or `out`, without what it points to. */
gsc_status gsc_tensor_check(const gsc_tensor *tensor, int argument, uint64_t index, bool is_out,
                            gsc_error *err);

#endif
