/* SPDX-License-Identifier: MIT */
/* What the files of the core share: errors, growing structs, and the argument checks. */
#ifndef GSC_INTERNAL_H
#define GSC_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "gradscaler.h"

#if defined(__GNUC__)
#define GSC_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define GSC_NOINLINE            __attribute__((noinline))
#else
#define GSC_PRINTF(text, first)
#define GSC_NOINLINE
#endif

/* Fills *err (NULL: nothing) and returns status, so that a check is one return statement. */
gsc_status gsc_fail(gsc_error *err, gsc_status status, int argument, int64_t index,
                    const char *name, const char *format, ...) GSC_PRINTF(6, 7);
gsc_status gsc_fail_null(gsc_error *err, int argument, const char *name);

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
gsc_status gsc_struct_read(const void *from, void *full, uint32_t size, int argument,
                           const char *name, gsc_error *err);
gsc_status gsc_struct_write(const void *full, uint32_t size, void *to, bool truncate, int argument,
                            const char *name, gsc_error *err);

/* The caller's policy in full, checked. */
gsc_status gsc_policy_read(const gsc_policy *from, gsc_policy *full, int argument, gsc_error *err);
gsc_status gsc_policy_check_full(const gsc_policy *full, int argument, gsc_error *err);
/* Where a call runs, in full and checked; argument 0. */
gsc_status gsc_exec_read(const gsc_exec *on, gsc_exec *full, gsc_error *err);
/* Whether a factor can multiply: refused with a sentence on how it got there. */
gsc_status gsc_factor_check(const gsc_factor *factor, int argument, gsc_error *err);
gsc_status gsc_state_check(const gsc_state *state, int argument, gsc_error *err);

/* A dtype, by its GSC_* constant, as real numbers of a dtype of convert.h. */
struct gsc_real {
    uint8_t real, parts, size;
};
extern const struct gsc_real gsc_reals[];

enum { GSC_BINS = sizeof((gsc_report *)0)->histogram / sizeof(int64_t) };

struct gsc_context {
    uint32_t threads;
    gsc_parallel_for *parallel_for;
    void *pool;
    struct gsc_cuda *cuda; /* NULL: threads and host memory */
};

#endif
