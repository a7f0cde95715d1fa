/* SPDX-License-Identifier: MIT */
/* Generated from include/gradscaler.toml by include/generate.py. Do not edit. */
/*
 * gradscaler: loss scaling for mixed-precision training.
 *
 * A training step in fp16 or bf16 multiplies its loss by a scale so that small gradients survive,
 * divides the gradients by the scale before the optimizer sees them, and skips the step and lowers
 * the scale when a gradient overflowed.
 *
 *     gsc_policy policy = GSC_POLICY_INIT;
 *     gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
 *     gsc_state state;
 *     gsc_report report;
 *     gsc_error err;
 *     if (gsc_policy_preset("recommended", &policy, &err) ||
 *         gsc_state_init(NULL, &policy, &state, &err))
 *         ... err.message ...
 *     options.policy = &policy;
 *     options.loss = &loss; // a gsc_tensor
 *     while (!(state.events & GSC_EVENT_STOPPED)) {
 *         ... loss, and gradients of loss * state.factor.scale ...
 *         if (gsc_unscale(NULL, &state.factor, gradients, f32_gradients, n, &options, &report,
 *                         &err) ||
 *             gsc_state_update(NULL, &policy, &state, &report, &state, &err))
 *             ... err.message ...
 *         if (!state.skip) ... optimizer step ...
 *     }
 *
 * Rules for every function:
 * - The caller owns all structs. Only a gsc_context keeps data of a caller between calls.
 * - A function that returns a gsc_status returns GSC_OK (0) or a negative GSC_ERROR_*, and writes
 *   the same status to err->status. After an error, only *err was written, unless the text or
 *   exec.flags say otherwise. After a success, the rest of *err is unchanged. `err` is the last
 *   argument and can be NULL.
 * - A pointer can be NULL only if the text says so. Tensor data can have any alignment.
 * - Any thread can call any function at any time, as long as no two calls write the same memory and
 *   no call reads memory that another call writes. Outputs of one call overlap nothing else that it
 *   reads or writes, unless the text says so.
 * - Strings are UTF-8. Messages show other bytes as "?" and line breaks as spaces.
 * - No function prints. Only functions that create a context or memory, gsc_exec_compare,
 *   gsc_cuda_start, and the first call on a context after a fork allocate, and in other calls on a
 *   device the CUDA driver can. Calls on tensors need up to 120 KiB of stack in this version; 256
 *   KiB will do for every call in all of 1.x.
 * - Keep the memory that a call was given where it is until the call has returned, on a device
 *   until the stream has run the call: a host with a garbage collector pins it.
 * - Results have the same bits on every machine, instruction set and device, with any number of
 *   threads, and in every version of a major version. They are the bits that a floating-point unit
 *   gives if it rounds to nearest and does not flush to zero. In other modes bits differ, also
 *   between machines, and flushed numbers are zeros; nothing worse happens. No function changes
 *   settings of the floating-point unit, but calls raise its status flags: a program that traps
 *   floating-point exceptions masks the traps during a call.
 * - The library has these effects on a process. On ELF systems the shared library is never
 *   unloaded. Its threads block all signals except faults. After a fork, the next call on a context
 *   makes the context's threads again, and CUDA cannot be used if the parent process used it. The
 *   first call on tensors or of gsc_info_get reads the environment variable GSC_CPU; later calls do
 *   not.
 * - In structs that you make, set reserved words to 0, and `flags` to 0 or bits of this header:
 *   other values are refused, with the status of other wrong values of the struct. Copy and send
 *   whole structs, because a later version can keep data in reserved words.
 * - A struct that begins with struct_size can get more fields at its end; other structs keep their
 *   size within a major version. If a program was built with an older header, the fields that it
 *   lacks count as 0, and a result that needs one of them is refused with GSC_ERROR_STRUCT_SIZE;
 *   only gsc_info is cut instead. If a program was built with a newer header, the fields that the
 *   library lacks must be 0, and outputs set them to 0. A struct_size is a multiple of 8 from 8 to
 *   4,096.
 * - Later versions can add values to every group of constants, presets and formats, and accept what
 *   an earlier version refused. Treat every status except GSC_OK as a failure, and ignore an
 *   unknown bit that the library wrote. If a kind, an outcome or a cause is unknown, state.skip and
 *   GSC_EVENT_STOPPED still say what to do. If several arguments are wrong, the error is about any
 *   of them. From 1.0 on, a preset keeps its rules within a major version, and a format that is
 *   named still reads all that it read.
 * - `exec` says where the memory is and what runs the call. NULL: host memory and the calling
 *   thread. A function without `exec` takes host memory.
 */
#ifndef GRADSCALER_H
#define GRADSCALER_H

#include <stddef.h>
#include <stdint.h>

#if (defined(UINTPTR_MAX) && UINTPTR_MAX != 0xffffffffffffffff) || \
    (defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__)
#error "gradscaler is for 64-bit little-endian machines: the layout of its structs is for those"
#endif

/*
 * The attributes of functions. Define GSC_STATIC to link a static copy and keep its symbols inside
 * your own library or program, or define GSC_API yourself.
 */
#ifndef GSC_API
#if defined(_WIN32) && defined(GSC_STATIC)
#define GSC_API
#elif defined(_WIN32) && defined(GSC_BUILD)
#define GSC_API __declspec(dllexport)
#elif defined(_WIN32)
#define GSC_API __declspec(dllimport)
#elif defined(__GNUC__) && defined(GSC_STATIC)
#define GSC_API __attribute__((visibility("hidden")))
#elif defined(__GNUC__)
#define GSC_API __attribute__((visibility("default")))
#else
#define GSC_API
#endif
#endif

#define GSC_VERSION_MAJOR 0
#define GSC_VERSION_MINOR 10
#define GSC_VERSION_PATCH 0
#define GSC_VERSION (GSC_VERSION_MAJOR << 16 | GSC_VERSION_MINOR << 8 | GSC_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors ---------------------------------------------------------------------------------- */

/* A call that can fail returns a gsc_status. If it failed, a gsc_error says why. */

/* GSC_OK, or the reason why a call did nothing. */
typedef int32_t gsc_status;

/* Statuses that calls return. */
#define GSC_OK                0   /* done */
#define GSC_ERROR_NULL        -1  /* a required pointer is NULL */
#define GSC_ERROR_STRUCT_SIZE -2  /* struct_size is not set, or one version lacks a field that
                                     the other needs */
#define GSC_ERROR_PRESET      -3  /* no preset has this name */
#define GSC_ERROR_POLICY      -4  /* a field of the policy is out of range */
#define GSC_ERROR_STATE       -5  /* no update leads to this state */
#define GSC_ERROR_REPORT      -6  /* the report has an error, or lacks a measurement that the
                                     policy needs */
#define GSC_ERROR_FACTOR      -7  /* a factor is zero, infinite or not a number */
#define GSC_ERROR_VALUE       -8  /* a number is out of range */
#define GSC_ERROR_DTYPE       -9  /* unknown dtype */
#define GSC_ERROR_COUNT       -10 /* counts differ, or are too large */
#define GSC_ERROR_OVERLAP     -11 /* an output overlaps another entry, or overlaps its own input
                                     without being in place */
#define GSC_ERROR_CAPACITY    -12 /* the buffer is too small */
#define GSC_ERROR_CORRUPT     -13 /* the bytes are truncated, damaged or not a saved state */
#define GSC_ERROR_VERSION     -14 /* what was saved needs a newer version of the library, or is
                                     of a candidate before 0.10 */
#define GSC_ERROR_UNAVAILABLE -15 /* this build or machine cannot do it */
#define GSC_ERROR_MEMORY      -16 /* out of memory or threads */
#define GSC_ERROR_DEVICE      -17 /* the driver failed, or another process made the context */
#define GSC_ERROR_FORMAT      -18 /* the entries match no format, or several, or no format has
                                     this name */
#define GSC_ERROR_MISMATCH    -19 /* the reports are from ranks with different policies or states */

/*
 * An error. C programs print `message`; bindings make their own text from the other fields. A
 * message is one line of UTF-8, with a point in numbers in every locale. A message that is too long
 * is cut at a character and ends with "...". The words of a message can change with every version:
 * programs read the other fields.
 */
typedef struct gsc_error {
    gsc_status status;          /* what the call returned */
    int32_t argument;           /* position of the argument in the call, from 0; -1: none */
    int64_t index;              /* entry of the argument, if the argument is a list; else -1 */
    char name[24];              /* name of the argument, such as "tensors", or of a struct that
                                   it points to, such as "policy" of options.policy */
    char field[32];             /* field of the argument, such as "min_scale"; empty: the whole
                                   argument */
    double value;               /* the refused number, or the other entry of an overlap; NaN:
                                   none */
    double low;                 /* lower limit of the number; the message says if the limit
                                   itself is allowed; NaN: none */
    double high;                /* upper limit of the number, as `low` */
    uint32_t subject_length;    /* bytes at the beginning of `message` that name the argument,
                                   with the key of an entry and a space at their end; the rest
                                   says what is wrong. 0: the whole message does */
    uint32_t requirement_start; /* byte of `message` after "it must be ", from which it says what
                                   the value must be; 0: not marked */
    char message[392];          /* such as "policy.backoff_factor is 2: it must be from 0 to 1" */
    uint64_t reserved[2];       /* 0 */
} gsc_error;

/* Returns the meaning of a status in a few words. Never NULL, never freed. */
GSC_API const char *gsc_status_string(gsc_status status);

/*
 * Returns the version of the library that runs, as major << 16 | minor << 8 | patch, with minor and
 * patch below 256; GSC_VERSION is the version of this header.
 */
GSC_API uint32_t gsc_version(void);

/*
 * Returns the version of the library that runs as text, such as "1.0.2". Never NULL, never freed.
 */
GSC_API const char *gsc_version_string(void);

/* Features that a build of the library can lack. */
typedef uint32_t gsc_feature;
#define GSC_FEATURE_CUDA 1u /* contexts on CUDA devices, see gradscaler_cuda.h */

/*
 * `feature` is a number, not a union of bits. Returns 0 if the library that runs was built without
 * it or does not know it, else 1, and for GSC_FEATURE_CUDA the GSC_CUDA_VERSION of that library.
 * gsc_cuda_start checks for a device.
 */
GSC_API int32_t gsc_has(gsc_feature feature);

/*
 * Initialises a struct that starts with struct_size, for languages that cannot use the macros
 * GSC_..._INIT: sets struct_size and clears the rest.
 *
 *     struct_size  bytes of the struct, as the caller's language has it
 */
GSC_API gsc_status gsc_struct_init(void *out, uint32_t struct_size, gsc_error *err);

/* ---- Policy: the rules ----------------------------------------------------------------------- */

/*
 * A policy says when the scale grows, when it backs off and where it stops. In most fields 0
 * switches the field off. GSC_POLICY_INIT is a scale of 1 that never moves. Start from a preset and
 * change what you need.
 *
 * The fields guard_* are a second rule, the guard. It judges steps with gradients that are finite
 * but absurd. x is the norm of all gradients after unscaling, the square root of
 * report.sum_squares:
 *
 *     overflow, or x is not finite: the guard does nothing; loss scaling alone decides
 *     threshold = the least of those that are on:
 *         guard_norm, guard_ratio * mean, mean + guard_sigmas * sqrt(variance)
 *     outlier = x > threshold (INCLUSIVE: x >= threshold), after guard_warmup samples
 *     outliers in a row: one more after an outlier, else 0
 *         at guard_max_in_a_row the guard stops, or lets the outlier through
 *     sample = x; for outliers, guard_sample says: x, the threshold or none
 *     weight = 1 - guard_decay; in the warm-up or with guard_decay 0, 1 / samples
 *         d = sample - mean; mean += weight * d
 *         variance = (1 - weight) * (variance + weight * d * d)
 *     multiplier = 1 of a normal step, 0 of a skipped one
 *         of a clipped one threshold / x, or as guard_flags say
 *
 * If the mean is not above 0, guard_ratio gives no threshold. If the variance is 0, guard_sigmas
 * gives no threshold, unless guard_init_mean is set.
 *
 * A guard can skip every step forever. If outliers are kept out of the mean, this happens after a
 * lasting change of level. If a threshold is close to a constant norm, rounding can also cause it.
 * gsc_policy_check refuses both, unless guard_max_in_a_row or the quirk ALLOW_LOCKOUT is set. A
 * guard_norm alone needs no guard_max_in_a_row. A policy that guards needs the norm. It treats a
 * norm that is not finite, or above 2^500, as an overflow.
 */

/*
 * growth_rule: when the scale grows. The count is `good_steps` (ALL_STEPS: `steps_since_change`)
 * minus growth_extra_steps.
 */
typedef uint32_t gsc_growth;
#define GSC_GROWTH_REACHED   0u /* at the interval or past it */
#define GSC_GROWTH_EXACT     1u /* at the interval only; if the count is past it, the scale does
                                   not grow until an overflow resets the count */
#define GSC_GROWTH_EVERY     2u /* at each multiple of the interval; a growth does not restart
                                   the count */
#define GSC_GROWTH_ALL_STEPS 3u /* as REACHED, but the count is `steps_since_change`, which
                                   includes overflows */

/* ceiling_rule, floor_rule: what happens to a change that would reach or pass the limit. */
typedef uint32_t gsc_limit_rule;
#define GSC_LIMIT_CLAMP             0u /* the scale becomes the limit */
#define GSC_LIMIT_ENFORCE           1u /* as CLAMP, and every update moves a scale past the limit
                                          to the limit */
#define GSC_LIMIT_REJECT            2u /* the change is dropped */
#define GSC_LIMIT_STOP              3u /* the change is dropped, with GSC_EVENT_STOPPED */
#define GSC_LIMIT_CLAMP_UNLESS_PAST 4u /* as CLAMP, but a scale that is already past the limit
                                          stays */

/* overflow_reset, bits: events that set the count of overflows to 0. */
typedef uint32_t gsc_overflow_reset;
#define GSC_RESET_ON_GROWTH    1u /* a growth */
#define GSC_RESET_ON_GOOD_STEP 2u /* a good step */
#define GSC_RESET_ON_BACKOFF   4u /* a backoff */

/* arithmetic: the number format in which a new scale is computed. */
typedef uint32_t gsc_arithmetic;
#define GSC_ARITHMETIC_F64        0u /* double */
#define GSC_ARITHMETIC_F64_TO_F32 1u /* double product, rounded once to float */
#define GSC_ARITHMETIC_F32        2u /* factors rounded to float first, then a float operation */
#define GSC_ARITHMETIC_F32_FLUSH  3u /* as F32; a result below 2^-126 becomes 0 */

/* overflow_test: which reports are an overflow. */
typedef uint32_t gsc_overflow_test;
#define GSC_TEST_ELEMENT 0u /* an element that is not finite */
#define GSC_TEST_NORM    1u /* an element that is not finite, or a sum of squares above the
                               largest float */

/* quirks, bits: behaviour of some frameworks that no new policy should have. */
typedef uint32_t gsc_quirk;
#define GSC_QUIRK_TOLERANCE_EXCLUSIVE 1u /* a share equal to overflow_tolerance is not tolerated */
#define GSC_QUIRK_OVERFLOW_IS_GOOD    2u /* an overflow also counts as a good step */
#define GSC_QUIRK_ALLOW_LOCKOUT       4u /* the guard can skip all steps forever:
                                            gsc_policy_check does not require guard_max_in_a_row */

/*
 * bad_loss_rule: what a loss means that was Inf or NaN before it was scaled, see options.loss. No
 * scale cures such a loss.
 */
typedef uint32_t gsc_bad_loss;
#define GSC_BAD_LOSS_OVERFLOW 0u /* the gradients alone decide: if the loss made them Inf or NaN,
                                    they are an overflow as any other */
#define GSC_BAD_LOSS_HOLD     1u /* the step is skipped, also if the gradients are finite; the
                                    scale, the counts of the scale and the guard stay as they are */

/* guard_sample: the sample that an outlier adds to the mean and the variance. */
typedef uint32_t gsc_guard_sample;
#define GSC_SAMPLE_AS_IS     0u /* its norm */
#define GSC_SAMPLE_NONE      1u /* none */
#define GSC_SAMPLE_THRESHOLD 2u /* the threshold, or the norm that it was clipped to */

/* guard_flags, bits: what happens to an outlier, and how samples count. */
typedef uint32_t gsc_guard;
#define GSC_GUARD_CLIP                1u   /* multiply the gradients by threshold / norm and take
                                              the step; without it, or if the threshold is not
                                              above 0, skip the step */
#define GSC_GUARD_INCLUSIVE           2u   /* a norm equal to the threshold is also an outlier */
#define GSC_GUARD_STOP                4u   /* at guard_max_in_a_row: GSC_EVENT_STOPPED; without
                                              it, this outlier and later ones in the row are let
                                              through, and enter the mean as they are */
#define GSC_GUARD_SKIP_IS_GOOD        8u   /* a step skipped as an outlier counts as a good step
                                              of the scale; without it, the scale and its counts
                                              stay */
#define GSC_GUARD_CLIP_PROGRESSIVE    16u  /* with CLIP: clip to mean + (threshold - mean)^2 /
                                              (norm - mean): the larger the norm, the lower */
#define GSC_GUARD_VARIANCE_AFTER_MEAN 32u  /* after the warm-up, the variance takes (sample -
                                              mean)^2 with the mean that includes the sample */
#define GSC_GUARD_BIAS_CORRECTED      64u  /* sample n has the weight (1 - guard_decay) / (1 -
                                              guard_decay^n), from the first sample on */
#define GSC_GUARD_CLIP_TO_MEAN        128u /* with CLIP: clip to the mean */

/* The rules of one scaler. Initialise it, then fill it with gsc_policy_preset. */
typedef struct gsc_policy {
    uint32_t struct_size;              /* set by the initialiser */
    gsc_arithmetic arithmetic;         /* GSC_ARITHMETIC_* */
    double init_scale;                 /* first scale; 0 is 1; at most max_scale, except with
                                          GSC_LIMIT_ENFORCE, where the first scale is then
                                          max_scale */
    double growth_factor;              /* a growth multiplies by this; at least 1; 0 is 1 */
    double backoff_factor;             /* a backoff multiplies by this, in (0, 1]; 0: divides by
                                          growth_factor */
    uint64_t growth_interval;          /* good steps from one growth to the next; 0 never grows */
    gsc_growth growth_rule;            /* GSC_GROWTH_* */
    uint32_t growth_extra_steps;       /* steps that a growth needs beyond the interval */
    double max_scale;                  /* ceiling; 0 is none (infinity) */
    double min_scale;                  /* floor; 0 is none */
    gsc_limit_rule ceiling_rule;       /* GSC_LIMIT_* at max_scale */
    gsc_limit_rule floor_rule;         /* GSC_LIMIT_* at min_scale; the first scale can be below
                                          it: CLAMP raises it at the first backoff, ENFORCE at
                                          the first update */
    gsc_overflow_test overflow_test;   /* GSC_TEST_* */
    uint32_t hysteresis;               /* number of overflows that make a backoff; the overflows
                                          before the last are absorbed; overflow_reset says what
                                          restarts the count; 0 is 1 */
    gsc_overflow_reset overflow_reset; /* GSC_RESET_* bits: events that set that count to 0; 0:
                                          none, so after the first backoff every overflow backs
                                          off */
    uint32_t apply_delay;              /* 1: a new scale is in force one update later */
    double overflow_tolerance;         /* an overflow is absorbed if overflows_since_reset is at
                                          most this share of steps_since_change; below 1, or 1
                                          with TOLERANCE_EXCLUSIVE */
    uint64_t max_failed_backoffs;      /* GSC_EVENT_STOPPED after this many overflows in a row
                                          that could not lower the scale, or, with
                                          GSC_BAD_LOSS_HOLD, after this many bad losses in a row;
                                          0: never */
    gsc_quirk quirks;                  /* GSC_QUIRK_* bits; 0 in any new policy */
    gsc_bad_loss bad_loss_rule;        /* GSC_BAD_LOSS_*; HOLD needs max_failed_backoffs above 0 */
    double guard_norm;                 /* a norm above this is an outlier; 0: no such threshold */
    double guard_ratio;                /* a norm above this times a mean above 0 is an outlier;
                                          must be above 1; 0: no such threshold */
    double guard_sigmas;               /* a norm this many standard deviations above the mean is
                                          an outlier; 0: no such threshold */
    double guard_decay;                /* factor of the old mean and variance at each sample
                                          after the warm-up; below 1; 0: all samples weigh the
                                          same */
    double guard_init_mean;            /* mean before the first sample, used to judge the first
                                          step; 0: none */
    uint64_t guard_warmup;             /* samples before the first step is judged; they enter as
                                          they are and weigh the same */
    uint64_t guard_max_in_a_row;       /* at this many outliers in a row, the guard accepts a new
                                          level: it lets this outlier and later ones in the row
                                          through; with GSC_GUARD_STOP it stops instead; 0: never */
    gsc_guard_sample guard_sample;     /* GSC_SAMPLE_* */
    gsc_guard guard_flags;             /* GSC_GUARD_* bits */
} gsc_policy;

#define GSC_POLICY_SIZE 176u
#define GSC_POLICY_INIT \
    {GSC_POLICY_SIZE, 0, 0.0, 0.0, 0.0, 0, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0.0, \
     0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0}

/*
 * Fills *out, made by GSC_POLICY_INIT, with a named set of rules: "recommended" for new work,
 * "guard" for bf16, "none", "static", or the exact rules of the version of a framework that
 * gsc_preset_summary names, such as "torch" or "megatron".
 */
GSC_API gsc_status gsc_policy_preset(const char *name, gsc_policy *out, gsc_error *err);

/* Checks that the policy can be used. Every call that takes a policy makes the same check. */
GSC_API gsc_status gsc_policy_check(const gsc_policy *policy, gsc_error *err);

/* Traits of a policy, for callers that prepare for them. */
typedef uint32_t gsc_trait;
#define GSC_TRAIT_MOVES      1u /* the scale can change from the first one on */
#define GSC_TRAIT_GUARDS     2u /* the policy judges the norm of finite gradients */
#define GSC_TRAIT_NEEDS_NORM 4u /* updates need sum_squares, or a number */
#define GSC_TRAIT_HOLDS      8u /* a bad loss holds the scale: give calls on tensors the loss */

/*
 * Writes the traits of a policy, and a copy of the policy that has its defaults as numbers, for
 * display. In *out, which GSC_POLICY_INIT made, init_scale, growth_factor and hysteresis are 1 if
 * they were 0, and backoff_factor is 1 / growth_factor if it was 0. Other fields do not change.
 * Update with *policy, not *out: a backoff_factor of 0 divides by growth_factor, and that can round
 * differently. *out can be *policy.
 *
 *     out     NULL: not wanted
 *     traits  NULL: not wanted
 */
GSC_API gsc_status gsc_policy_resolve(const gsc_policy *policy, gsc_policy *out, gsc_trait *traits,
                                      gsc_error *err);

/* Returns the name of preset `index`, from 0, or NULL after the last. */
GSC_API const char *gsc_preset_name(uint32_t index);

/*
 * Returns a sentence on what preset `index` does and where its rules come from, or NULL after the
 * last.
 */
GSC_API const char *gsc_preset_summary(uint32_t index);

/* ---- Where a call runs ----------------------------------------------------------------------- */

/* A gsc_exec says where a call runs: on the calling thread, on threads or on a device. */

/*
 * Threads or a device that run calls. Any number of threads can use a context at the same time; its
 * own threads work for one call, other calls then run on their calling thread.
 */
typedef struct gsc_context gsc_context;

/* One task of a call. */
typedef void gsc_task(void *data, uint64_t index);

/*
 * The caller's thread pool. It runs task(data, i) for every i below count, in any order and on any
 * threads, and returns 0 when all tasks have returned. If it cannot run the tasks, it runs none and
 * returns another number. Several threads can call it at the same time, and one call on tensors can
 * call it several times. If it refuses the first tasks of a call, the call fails with
 * GSC_ERROR_MEMORY and has written nothing. If it refuses later tasks, the calling thread runs
 * them. It does not throw or jump out of the call. Tasks do not block, do not call the caller's
 * code, and need as much stack as calls on tensors.
 */
typedef int32_t gsc_parallel_for(void *pool, gsc_task *task, void *data, uint64_t count);

/*
 * Bits of exec.flags.
 *
 * A call on host memory with GSC_EXEC_WRITE_FAILURES that refuses a value of a factor, a report or
 * a state also writes the result that a device writes, and still returns the error. If this result
 * is sent to other ranks, no rank steps. After another error, send a report of zeros with `status`
 * and `overflow`.
 * - A factor becomes all zeros, which every call refuses.
 * - A report becomes all zeros except status, overflow and found_inf, and so does each report of
 *   options.per_tensor. If digests differ, status_rank_plus_1 is of the first report that differs.
 *   gsc_report_set_rank instead copies the report, then sets these three fields and the ranks, and
 *   sets digest to 0.
 * - A state becomes a copy of `state` or `from` with the status that the call returns, SKIPPED as
 *   its only event, skip and skip_f32 1, and guard_multiplier 0.
 * - Tensors and histograms are not written.
 *
 * This happens with GSC_ERROR_FACTOR, GSC_ERROR_REPORT, GSC_ERROR_STATE, GSC_ERROR_VERSION and
 * GSC_ERROR_MISMATCH, and with GSC_ERROR_VALUE if the product of gsc_factor_multiply is no factor.
 * A call that refuses another argument writes only *err. A call on a device refuses the flag.
 */
typedef uint32_t gsc_exec_flag;
#define GSC_EXEC_WRITE_FAILURES 1u /* also write an error to the result, as a device does */

/*
 * Where the memory of a call is, and what runs the call. A CPU context takes host memory, without
 * stream and workspace; gradscaler_cuda.h says what a CUDA context needs.
 */
typedef struct gsc_exec {
    uint32_t struct_size;    /* set by the initialiser */
    gsc_exec_flag flags;     /* GSC_EXEC_* bits */
    gsc_context *context;    /* NULL: the calling thread */
    void *stream;            /* the queue of a device; NULL on the CPU */
    void *workspace;         /* scratch memory of the device; NULL on the CPU */
    uint64_t workspace_size; /* bytes of the workspace; 0 on the CPU */
} gsc_exec;

#define GSC_EXEC_SIZE 40u
#define GSC_EXEC_INIT {GSC_EXEC_SIZE, 0, NULL, NULL, NULL, 0}

/* The number of threads that share the work of a call, and their pool. */
typedef struct gsc_cpu_options {
    uint32_t struct_size;           /* set by the initialiser */
    uint32_t threads;               /* 1 to 1,024, including the calling thread; lists below 4
                                       MiB run on the calling thread alone. With parallel_for:
                                       the number of threads to plan for */
    gsc_parallel_for *parallel_for; /* the caller's pool; NULL: the context makes `threads` - 1
                                       threads */
    void *pool;                     /* passed to parallel_for; NULL without parallel_for */
} gsc_cpu_options;

#define GSC_CPU_OPTIONS_SIZE 24u
#define GSC_CPU_OPTIONS_INIT {GSC_CPU_OPTIONS_SIZE, 0, NULL, NULL}

/*
 * Makes a context of threads. Its own threads sleep between calls. Results have the same bits for
 * any number of threads.
 */
GSC_API gsc_status gsc_context_create_cpu(const gsc_cpu_options *options, gsc_context **out,
                                          gsc_error *err);

/*
 * Frees a context that no call, stream or graph uses any more.
 *
 *     context  NULL: does nothing
 */
GSC_API void gsc_context_destroy(gsc_context *context);

/* The library that runs here. The strings are never freed. */
typedef struct gsc_info {
    uint32_t struct_size;      /* set by the initialiser */
    uint32_t version;          /* as gsc_version */
    const char *cpu;           /* instruction set in use; the environment variable GSC_CPU
                                  chooses it */
    const char *cpu_available; /* instruction sets that this machine can run, separated by spaces */
    const char *cpu_note;      /* empty, or why GSC_CPU has no effect */
} gsc_info;

#define GSC_INFO_SIZE 32u
#define GSC_INFO_INIT {GSC_INFO_SIZE, 0, NULL, NULL, NULL}

/* Fills *out, made by GSC_INFO_INIT. */
GSC_API gsc_status gsc_info_get(gsc_info *out, gsc_error *err);

/* ---- Factor: what one loss was multiplied by ------------------------------------------------- */

/*
 * A factor is a scale and its inverse: a loss is multiplied by it, and the gradients of that loss
 * are divided by it.
 */

/*
 * A snapshot of a scale. Unscale gradients with the factor that their loss was scaled with. If
 * gradients arrive late (pipelines, an optimizer thread, offloading), copy state.factor when the
 * loss is scaled, and keep the copy with the gradients.
 */
typedef struct gsc_factor {
    double scale;        /* the loss is multiplied by this */
    double inverse;      /* the gradients are multiplied by this: 1 / scale, or less if they are
                            clipped */
    float scale_f32;     /* scale, rounded; fused optimizers read the floats in place */
    float inverse_f32;   /* inverse, rounded */
    uint64_t generation; /* a number that rises at every update, also if the scale stays; 0: from
                            no state */
} gsc_factor;

/*
 * Makes the factor of a scale, with generation 0.
 *
 *     scale  finite and above 0 as a float, as is 1 / scale
 */
GSC_API gsc_status gsc_factor_init(double scale, gsc_factor *out, gsc_error *err);

/*
 * Multiplies the scale by `by` and divides the inverse by `by`. Both must stay above 0 and finite
 * as floats. To get the mean of k gradients that were added, unscale their sum with the factor
 * times k. *out can be *factor.
 *
 *     by  finite, above 0
 */
GSC_API gsc_status gsc_factor_multiply(const gsc_exec *exec, const gsc_factor *factor, double by,
                                       gsc_factor *out, gsc_error *err);

/* ---- Report: what the gradients were like ---------------------------------------------------- */

/*
 * A report describes the gradients of a call: their overflow, the first and the last bad element,
 * counts and the norm.
 */

/* Measurements that a report can have. Overflow, its position and the counts are always there. */
typedef uint32_t gsc_want;
#define GSC_WANT_NORM      1u /* sum_squares */
#define GSC_WANT_AMAX      2u /* amax */
#define GSC_WANT_UNDERFLOW 4u /* underflows_to_zero, underflows_to_subnormal */

/* report.kind: the source of a report. */
typedef uint32_t gsc_report_kind;
#define GSC_REPORT_NONE    0u /* none: no call filled the report in; refused unless it has an
                                 overflow */
#define GSC_REPORT_TENSORS 1u /* the tensors of a call */
#define GSC_REPORT_NUMBER  2u /* a number */
#define GSC_REPORT_MERGED  3u /* other reports */
#define GSC_REPORT_FLAG    4u /* a flag: only whether there was an overflow */

/* report.loss: the loss before it was scaled, see options.loss. */
typedef uint32_t gsc_loss;
#define GSC_LOSS_UNKNOWN    0u /* no loss was given */
#define GSC_LOSS_FINITE     1u /* all its elements are finite */
#define GSC_LOSS_NOT_FINITE 2u /* an element is Inf or NaN: no scale causes or cures that */

/*
 * The results of calls on gradients. Calls on tensors, gsc_report_from_number, gsc_report_from_flag
 * and gsc_report_merge fill a report in. A report that is all zeros is refused: no call filled it
 * in. If a call fails on a rank, make a report of zeros yourself and set `status` and `overflow`.
 * Contradictions are also refused, such as NaN elements without an overflow.
 */
typedef struct gsc_report {
    float found_inf;                 /* for fused optimizers that run before the update: not 0
                                        for an overflow, or for a bad loss if the policy that the
                                        call was given holds; never for an outlier. Merge the
                                        reports of ranks instead of reducing it */
    int32_t overflow;                /* 1: an element is Inf or NaN or became so, or
                                        options.policy says so, or a device or rank failed */
    gsc_status status;               /* GSC_OK, or the error of a call */
    gsc_want measured;               /* GSC_WANT_* bits */
    uint64_t generation;             /* generation of the factor; 0: unknown */
    double amax;                     /* largest finite magnitude after unscaling, before
                                        rounding; a complex element counts with its larger part */
    double sum_squares;              /* sum of squares of the finite elements after unscaling;
                                        its square root is the norm */
    int64_t elements;                /* number of elements */
    int64_t nan_count;               /* elements that are NaN */
    int64_t inf_count;               /* elements that are Inf, or became so by unscaling */
    int64_t first_tensor;            /* index of the tensor with the first NaN or Inf; 0 if there
                                        is none */
    int64_t first_element;           /* index of that element in the tensor; 0 if there is none */
    int64_t last_tensor;             /* index of the last tensor with NaN or Inf: in a list in
                                        the model's order, the one nearest to the cause of an
                                        overflow in the backward pass; 0 if there is none */
    int64_t underflows_to_zero;      /* outputs that are zero although their input was not */
    int64_t underflows_to_subnormal; /* outputs that are subnormal although their input was not */
    int64_t clamped;                 /* elements that options.clamp changed */
    uint64_t digest;                 /* digest of policy and state, set by gsc_report_set_rank;
                                        0: none */
    uint32_t status_rank_plus_1;     /* 1 + the rank of `status`; 0: unknown */
    uint32_t first_rank_plus_1;      /* 1 + the rank of first_tensor, or, if no element was
                                        counted, of the first report with an overflow; 0: unknown */
    uint32_t last_rank_plus_1;       /* 1 + the rank of last_tensor, or, if no element was
                                        counted, of the last report with an overflow; 0: unknown */
    uint32_t loss_rank_plus_1;       /* 1 + the rank of the first bad loss; 0: unknown */
    gsc_loss loss;                   /* GSC_LOSS_*: the loss before it was scaled; UNKNOWN in a
                                        FLAG, a NUMBER and a report of zeros */
    gsc_report_kind kind;            /* GSC_REPORT_* */
    uint32_t flags;                  /* 0 */
    uint32_t has_flag;               /* 1: a MERGED report with a FLAG among its reports, so 0
                                        elements do not mean that there were no gradients; else 0 */
    double number;                   /* the number of a GSC_REPORT_NUMBER, which a policy judges
                                        as a norm; 0 if it is not finite. 0 in other reports */
    uint64_t reserved[12];           /* 0 */
} gsc_report;

/*
 * Makes the report of a number, such as the loss of a step, for a policy that guards this number
 * instead of gradients. Update a separate state with this report; gsc_state_combine_decisions
 * combines the decisions of both states. The number keeps its sign. Inf and NaN are an overflow,
 * not a bad loss: see options.loss. If the loss is in device memory, measure its magnitude with
 * gsc_measure and GSC_WANT_NORM instead. A report of a number cannot be merged.
 *
 *     number  any; magnitudes above 2^500 count as Inf
 */
GSC_API gsc_status gsc_report_from_number(double number, gsc_report *out, gsc_error *err);

/*
 * Makes a report of the flag of other code, such as a framework's found_inf. It has no
 * measurements, so a policy that judges by the norm refuses it unless it has an overflow.
 *
 *     overflow  not 0: an overflow
 */
GSC_API gsc_status gsc_report_from_flag(int32_t overflow, gsc_report *out, gsc_error *err);

/* The relation between the gradients of merged reports. */
typedef uint32_t gsc_merge_kind;
#define GSC_MERGE_SHARDS  0u /* different gradients: shards, layers, optimizers; their sums of
                                squares are added */
#define GSC_MERGE_ADDENDS 1u /* gradients to add: micro-batches, ranks before an all-reduce; the
                                norm of their sum is unknown */

/*
 * Merges reports into one. Ranks gather their reports and merge them in the order of the ranks:
 * then all get the same bits. The call does not check that each rank is there once and in order.
 * The result has the measurements that all reports have. The norm and amax of addends are unknown:
 * measure the sum of the gradients. first_tensor and first_element come from the first report with
 * an element that is not finite, last_tensor from the last. The loss is bad if any known loss is
 * bad, and finite if all known losses are. The generation is the least that is known. *out can be
 * one of the reports.
 *
 * If digests differ, the call fails with GSC_ERROR_MISMATCH and the index of the first report that
 * differs from the reports before it. A report without a digest, such as the report of a rank that
 * failed or that has no gradients, agrees with all.
 *
 * Merged reports can be merged again: first in each node, then across nodes. The result has the
 * same bits as one merge of all reports, except sum_squares, which is then a sum of the nodes'
 * sums. If all ranks merge the same groups, all get the same sum. That sum equals one merge's bit
 * by bit if each group except the last has 64 reports and there are at most 64 groups. Give the
 * policy to the last merge. If the merge of a group is refused, the group sends the report of
 * GSC_EXEC_WRITE_FAILURES to the next merge, so that the other groups do not wait.
 *
 *     reports  NULL only with n = 0
 *     n        0 gives the report of an empty list
 *     policy   NULL: an overflow in any report is an overflow; with a policy, the policy judges
 */
GSC_API gsc_status gsc_report_merge(const gsc_exec *exec, const gsc_report *reports, uint64_t n,
                                    gsc_merge_kind kind, const gsc_policy *policy, gsc_report *out,
                                    gsc_error *err);

/*
 * Writes *factor with its inverse multiplied by min(1, max_norm / (norm + 1e-6)), as
 * torch.nn.utils.clip_grad_norm_ does. The report needs GSC_WANT_NORM. After gsc_measure, unscale
 * with *out to clip in the same pass. If an optimizer takes a multiplier, pass out->inverse_f32; it
 * becomes 0 if the inverse is too small for a float. To also clip outliers, make both factors from
 * the same factor, and unscale with the one that has the smaller inverse: one after the other, they
 * clip too much. *out can be *factor.
 *
 *     factor    NULL: 1
 *     max_norm  finite, above 0
 */
GSC_API gsc_status gsc_factor_clip_grad_norm(const gsc_exec *exec, const gsc_factor *factor,
                                             const gsc_report *report, double max_norm,
                                             gsc_factor *out, gsc_error *err);

/* ---- State: the scale and its counts --------------------------------------------------------- */

/*
 * A state is a scale and its counts: everything that a scaler remembers between steps. Each step
 * gsc_state_update makes the next state of a report.
 *
 * If a policy clips outliers, measure and update before you unscale and clip:
 *
 *     gsc_factor factor = state.factor;
 *     if (gsc_measure(NULL, &factor, gradients, n, &options, &report, &err) ||
 *         gsc_state_update(NULL, &policy, &state, &report, &state, &err) ||
 *         gsc_factor_clip_outlier(NULL, &factor, &state, &factor, &err) ||
 *         gsc_unscale(NULL, &factor, gradients, f32_gradients, n, NULL, NULL, &err))
 *         ... err.message ...
 *     if (!state.skip) ... optimizer step ...
 */

/* Bits of state.events: what the last update did. */
typedef uint32_t gsc_event;
#define GSC_EVENT_GREW           1u    /* the scale became larger */
#define GSC_EVENT_BACKED_OFF     2u    /* the scale became smaller */
#define GSC_EVENT_SKIPPED        4u    /* an overflow, a held bad loss, a skipped outlier, or a
                                          failure: leave the parameters alone */
#define GSC_EVENT_ABSORBED       8u    /* skipped, but hysteresis or tolerance kept the scale */
#define GSC_EVENT_AT_CEILING     16u   /* max_scale limited a growth */
#define GSC_EVENT_AT_FLOOR       32u   /* min_scale limited a backoff */
#define GSC_EVENT_BACKOFF_FAILED 64u   /* the overflow could not lower the scale */
#define GSC_EVENT_STOPPED        128u  /* the policy ends the training: by GSC_GUARD_STOP,
                                          max_failed_backoffs or GSC_LIMIT_STOP */
#define GSC_EVENT_STALE          256u  /* the report was made with another factor than the one in
                                          force: it is late, or was used twice */
#define GSC_EVENT_OUTLIER        512u  /* the guard found an outlier, see guard_threshold;
                                          without SKIPPED and CLIPPED, it was let through */
#define GSC_EVENT_CLIPPED        1024u /* still to do: multiply the gradients by
                                          guard_multiplier, or use gsc_factor_clip_outlier */
#define GSC_EVENT_BAD_LOSS       2048u /* only with GSC_BAD_LOSS_HOLD: the loss was not finite
                                          before it was scaled, so the step is skipped and the
                                          scale is kept */
#define GSC_EVENT_EMPTY          4096u /* the report has no elements: no tensor had a gradient;
                                          it counts as a good step, unless a bad loss is held */

/* The state of a scaler. It has no pointers: copy it, store it, send it. */
typedef struct gsc_state {
    gsc_factor factor;             /* the scale in force */
    gsc_factor next;               /* the newest scale. Without apply_delay it equals `factor`.
                                      With apply_delay the next update copies it to `factor`; a
                                      loss that you scale before that update needs `next` */
    int64_t good_steps;            /* good steps since the last overflow or growth; a growth that
                                      max_scale limited also counts; with GSC_GROWTH_EVERY since
                                      the last overflow */
    int64_t steps_since_change;    /* all steps since the scale changed */
    int64_t overflows_since_reset; /* overflows not reset yet */
    int64_t failed_backoffs;       /* overflows in a row that could not lower the scale */
    int64_t bad_losses_in_a_row;   /* bad losses in a row: a finite loss sets this to 0, and so
                                      does a step without overflow of an unknown loss */
    gsc_event events;              /* GSC_EVENT_* of the last update */
    gsc_status status;             /* GSC_OK, or the error of the last update */
    int64_t total_updates;         /* updates since the start */
    int64_t total_overflows;       /* overflows since the start, without the guard's skips and
                                      held bad losses */
    int64_t total_bad_losses;      /* updates since the start with a bad loss, held or not */
    int64_t total_growths;         /* updates since the start that made the scale larger */
    int64_t total_backoffs;        /* updates since the start that made the scale smaller */
    float skip_f32;                /* 1 with GSC_EVENT_SKIPPED, else 0: found_inf for a fused
                                      optimizer that runs after the update */
    int32_t skip;                  /* 1 with GSC_EVENT_SKIPPED, else 0: leave the parameters
                                      alone */
    double guard_mean;             /* policies that guard: mean of the samples */
    double guard_variance;         /* variance of the samples */
    int64_t guard_count;           /* number of samples */
    int64_t guard_in_a_row;        /* outliers in a row */
    int64_t total_guard_skips;     /* steps since the start that were skipped as outliers */
    double guard_multiplier;       /* multiplier of the last update: 1; below 1 if it clips; 0
                                      with GSC_EVENT_SKIPPED */
    double guard_threshold;        /* threshold that guard_value was compared with; 0: none */
    double guard_value;            /* norm or number that the last update judged; 0: none */
    int64_t total_guard_clips;     /* steps since the start that the guard clipped */
    int64_t nans_in_a_row;         /* updates in a row with a NaN among the gradients; an
                                      overflow without known elements does not change it */
    int64_t empty_in_a_row;        /* updates in a row with GSC_EVENT_EMPTY */
    int64_t updates_at_growth;     /* total_updates when the scale last grew; before any growth,
                                      at the first good step; 0: neither yet */
    int64_t overflows_at_growth;   /* total_overflows at the same update */
    uint64_t reserved[15];         /* 0 */
} gsc_state;

/* Makes the state before the first step. */
GSC_API gsc_status gsc_state_init(const gsc_exec *exec, const gsc_policy *policy, gsc_state *out,
                                  gsc_error *err);

/*
 * Makes a state with the scale from->factor.scale, in force immediately, and with the counts, means
 * and totals of `from`. To set the scale or the counts of a state, change a copy of the state and
 * pass it. *out can be *from. A scale of 0 or infinity, which some frameworks reach, is accepted,
 * but every call that multiplies refuses its factor.
 */
GSC_API gsc_status gsc_state_init_from(const gsc_exec *exec, const gsc_policy *policy,
                                       const gsc_state *from, gsc_state *out, gsc_error *err);

/*
 * Updates the state by one step of the policy. Call it once for each optimizer step, also for a
 * skipped one, with a report on all gradients of the step. *out can be *state. Then read out->skip:
 * if it is 1, leave the parameters alone. report.overflow only says if there was an overflow:
 * outliers are found by this update. out->events says what happened:
 * - GSC_EVENT_CLIPPED: multiply the gradients before the step, see gsc_factor_clip_outlier.
 * - GSC_EVENT_STOPPED: end the training. A further update works as any other.
 * - GSC_EVENT_STALE: the report was late or used twice, but it counted like any other.
 *
 * A report without a measurement that the policy needs is refused: set options.policy.
 */
GSC_API gsc_status gsc_state_update(const gsc_exec *exec, const gsc_policy *policy,
                                    const gsc_state *state, const gsc_report *report,
                                    gsc_state *out, gsc_error *err);

/*
 * Copies `state` to *out, with the decisions of `other` added: *out skips, clips or stops if either
 * state did in its last update. `other` is the state of another signal, such as the loss, with its
 * own policy. *out has the events SKIPPED, STOPPED, OUTLIER, CLIPPED and BAD_LOSS of both, and the
 * smaller multiplier. The scale, counts and samples come from `state`. *out can be either state.
 * Combine several signals one after the other.
 */
GSC_API gsc_status gsc_state_combine_decisions(const gsc_exec *exec, const gsc_state *state,
                                               const gsc_state *other, gsc_state *out,
                                               gsc_error *err);

/* reason.outcome: the decision of the last update about its step. */
typedef uint32_t gsc_outcome;
#define GSC_OUTCOME_TAKEN       0u /* take the step; the gradients stay as they are */
#define GSC_OUTCOME_LET_THROUGH 1u /* take the step, although it is an outlier */
#define GSC_OUTCOME_CLIPPED     2u /* take the step with gradients times `multiplier` */
#define GSC_OUTCOME_SKIPPED     3u /* leave the parameters alone */
#define GSC_OUTCOME_STOPPED     4u /* end the training */

/* reason.cause: the reason for the decision. */
typedef uint32_t gsc_cause;
#define GSC_CAUSE_NONE        0u /* nothing was wrong */
#define GSC_CAUSE_OVERFLOW    1u /* Inf or NaN that the backward pass made */
#define GSC_CAUSE_OUTLIER     2u /* `value` is above `threshold`, or equal to it with INCLUSIVE */
#define GSC_CAUSE_CEILING     3u /* a growth would reach max_scale, and ceiling_rule stops */
#define GSC_CAUSE_OTHER_STATE 4u /* a combined state decided this */
#define GSC_CAUSE_FAILURE     5u /* the update failed; see state.status */
#define GSC_CAUSE_BAD_LOSS    6u /* a loss was not finite before it was scaled */
#define GSC_CAUSE_PARAMETER   7u /* a parameter was not finite */
#define GSC_CAUSE_LOSS_DTYPE  8u /* the scale is Inf in the dtype of the loss */

/* The facts that a caller knows about a step beside its report. 0 is unknown. */
typedef struct gsc_evidence {
    int64_t bad_parameters;   /* tensors of the list with NaN or Inf in their parameter */
    int64_t parameter_plus_1; /* 1 + index of the first of them */
    double scale;             /* by which the losses of the step were multiplied */
    uint32_t loss_dtype;      /* dtype of the losses before they were scaled, GSC_F32 ... */
    uint32_t losses;          /* losses of this rank that were scaled in the step, if it is known
                                 which of them were finite */
    uint32_t bad_loss;        /* number, from 1, of the first of them that was not finite before
                                 it was scaled; 0: all were finite, or `losses` is 0 */
    uint32_t ranks;           /* ranks that share the gradients */
    uint64_t reserved[3];     /* 0 */
} gsc_evidence;

/* Why the last update took, clipped or skipped its step. */
typedef struct gsc_reason {
    gsc_outcome outcome;   /* GSC_OUTCOME_* */
    gsc_cause cause;       /* GSC_CAUSE_* */
    double value;          /* with OUTLIER, the norm or number that was judged; 0: unknown */
    double threshold;      /* with OUTLIER, the threshold that `value` is above */
    double multiplier;     /* 1; below 1 if clipped, 0 if skipped */
    int64_t in_a_row;      /* outliers in a row with OUTLIER, bad losses in a row with BAD_LOSS */
    int64_t nan_count;     /* elements that are NaN; 0 also if unknown */
    int64_t inf_count;     /* elements that are Inf; 0 also if unknown */
    int64_t bad_tensors;   /* tensors with NaN or Inf; 0: none, or unknown */
    int64_t tensor;        /* with PARAMETER, index of the first bad parameter; else index of the
                              bad tensor that is nearest to the cause, the first in `order` or
                              else the last of the list; -1: none, or unknown */
    int64_t tensor_before; /* index of the tensor before that one in `order`, which is finite;
                              -1: none, or unknown */
    int64_t rank;          /* rank of the bad tensor or, with BAD_LOSS, of the first bad loss;
                              without both, rank of the last report with an overflow; -1: unknown */
    char message[512];     /* a sentence for a log, such as "skipped: 3 NaN in
                              \"h.3.attn.weight\" alone"; empty if the step is taken as it is */
    uint64_t reserved[5];  /* 0 */
} gsc_reason;

/*
 * Explains the decision of the last update. `report` is the report of that update; the call does
 * not check this. The cause of an overflow is the first of these: a parameter is not finite; the
 * first loss; a later loss; the scale does not fit the dtype of the loss; else the backward pass
 * made Inf or NaN, and the sentence names the tensor that is nearest to the cause.
 *
 * The lists are about the same n tensors. `names` are UTF-8; names[i] can be NULL, and a name that
 * is too long is cut. `order` has the indices of the tensors in the order in which the backward
 * pass made their gradients: with `per_tensor`, the first bad one in it is nearest to the cause.
 * Without an order, list the tensors in the model's order: the last bad one is nearest. If reports
 * of ranks were merged, pass the lists of the rank that has this tensor. All memory is host memory.
 *
 *     report      NULL: the gradients and the loss are unknown
 *     evidence    NULL: nothing else is known
 *     per_tensor  NULL: the number of bad tensors is unknown
 *     names       NULL: the sentence has the index of the tensor
 *     order       NULL: the order of the backward pass is unknown
 *     n           tensors of the list
 */
GSC_API gsc_status gsc_state_reason(const gsc_state *state, const gsc_report *report,
                                    const gsc_evidence *evidence, const gsc_report *per_tensor,
                                    const char *const *names, const uint64_t *order, uint64_t n,
                                    gsc_reason *out, gsc_error *err);

/*
 * Writes a factor that unscales and clips the gradients of the last update in one pass. If the
 * update has GSC_EVENT_CLIPPED, *out is *factor with its inverse multiplied by
 * state->guard_multiplier, else *out is *factor. Pass the factor that the gradients were scaled by:
 * a copy of state->factor from before the update. If the optimizer itself multiplies the gradients,
 * pass it out->inverse_f32, which becomes 0 if the inverse is too small for a float, and
 * state->skip_f32 as found_inf. *out can be *factor.
 *
 *     factor  NULL: 1
 */
GSC_API gsc_status gsc_factor_clip_outlier(const gsc_exec *exec, const gsc_factor *factor,
                                           const gsc_state *state, gsc_factor *out, gsc_error *err);

/* Size of a saved state. */
#define GSC_SAVED_SIZE_MAX 1024u /* bytes that can hold any saved state of this major version */

/*
 * Writes policy and state, which are in host memory, as bytes with a version and a checksum. Bytes
 * of 1.0 or later can be read by every later version on every machine. *size becomes the number of
 * bytes; with bytes NULL and capacity 0, the call only sets *size.
 *
 *     bytes     NULL only with capacity = 0
 *     capacity  bytes; GSC_SAVED_SIZE_MAX always suffices
 */
GSC_API gsc_status gsc_state_save(const gsc_policy *policy, const gsc_state *state, void *bytes,
                                  uint64_t capacity, uint64_t *size, gsc_error *err);

/*
 * Reads bytes that gsc_state_save wrote. Bytes of a candidate before 0.10 are refused with
 * GSC_ERROR_VERSION. If the caller's gsc_policy is older and lacks fields, these must be 0 in the
 * bytes.
 *
 *     policy  NULL: not wanted; else GSC_POLICY_INIT made it
 */
GSC_API gsc_status gsc_state_load(const void *bytes, uint64_t size, gsc_policy *policy,
                                  gsc_state *state, gsc_error *err);

/* ---- Ranks: all step, or none ---------------------------------------------------------------- */

/*
 * Ranks that hold parts or copies of one model each have a state; all these states are equal. All
 * ranks use one version of this library. Each rank writes its rank and a digest into the report of
 * its own gradients, gathers the reports of all ranks in order, and merges them. If a call fails on
 * a rank, that rank sends a report of zeros with `status`, `overflow` and its rank: no rank waits
 * for it, and all ranks stop in this step, some at the merge, the others at the update:
 *
 *     gsc_status status = gsc_unscale(NULL, &state.factor, gradients, f32_gradients, n, &options,
 *                                     &report, &err);
 *     if (status == GSC_OK)
 *         status = gsc_report_set_rank(NULL, &report, &policy, &state, rank, &report, &err);
 *     if (status != GSC_OK)
 *         report = (gsc_report){.status = status, .overflow = 1, .status_rank_plus_1 = rank + 1};
 *     MPI_Allgather(&report, sizeof report, MPI_BYTE, all, sizeof report, MPI_BYTE, comm);
 *     if (gsc_report_merge(NULL, all, ranks, GSC_MERGE_SHARDS, &policy, &report, &err) != GSC_OK)
 *         ... stop: err.message ...
 *     if (gsc_state_update(NULL, &policy, &state, &report, &state, &err) != GSC_OK)
 *         ... stop: err.message ...
 *     if (!state.skip) ... optimizer step ...
 *
 * If ranks hold copies of the same gradients, as after an all-reduce, the merge would count their
 * norm once for each rank. Then rank 0 sends its report, and the others send the report of an empty
 * list (gsc_measure with n = 0 and the same options).
 *
 * The merge finds a rank that loaded another checkpoint, missed a step or has other rules, before
 * any rank steps. If the merge is refused, do not update: the report is still the report of this
 * rank alone.
 */

/*
 * Writes a digest of all that decides later steps: rules, scales, counts and means, but not totals,
 * generations, events, init_scale and the counts that only a diagnosis reads. It is never 0, and
 * the same on every device and in every language. Compare digests only if gsc_version is the same.
 *
 *     policy  NULL: digest of the state alone
 *     state   NULL: digest of the policy alone; one of both is required
 */
GSC_API gsc_status gsc_state_digest(const gsc_policy *policy, const gsc_state *state,
                                    uint64_t *digest, gsc_error *err);

/*
 * Copies *report to *out and sets the rank of the copy: first_rank_plus_1, last_rank_plus_1,
 * loss_rank_plus_1 and status_rank_plus_1 become rank + 1, and digest becomes the gsc_state_digest
 * of policy and state. Call it before the update: all ranks then have the same state, and
 * gsc_report_merge refuses reports with different digests. *out can be *report.
 *
 *     policy  NULL: the digest is of the state alone
 *     state   NULL: the digest is of the policy alone; if both are NULL, the digest is 0
 *     rank    from 0, below 2^32 - 1
 */
GSC_API gsc_status gsc_report_set_rank(const gsc_exec *exec, const gsc_report *report,
                                       const gsc_policy *policy, const gsc_state *state,
                                       uint32_t rank, gsc_report *out, gsc_error *err);

/* ---- Checkpoints and settings of frameworks -------------------------------------------------- */

/*
 * A framework saves its scaler, and its settings, as names with numbers: a list of entries. The
 * library reads the entries of every framework that it has a preset for, and writes a state as the
 * framework would. So training can continue in the framework or with this library:
 *
 *     gsc_entry entries[] = {{.key = "scale", .kind = GSC_ENTRY_NUMBER, .value = 2048.0},
 *                            {.key = "growth_interval", .kind = GSC_ENTRY_NUMBER, .value = 2000.0},
 *                            {.key = "_growth_tracker", .kind = GSC_ENTRY_NUMBER, .value = 3.0}};
 *     gsc_note notes[16];
 *     uint64_t count;
 *     if (gsc_state_import("torch", NULL, entries, 3, NULL, &policy, &state, notes, 16,
 *                          &count, &err) != GSC_OK)
 *         ... err.message ...
 *     for (uint64_t i = 0; i < count && i < 16; i++)
 *         puts(notes[i].message);
 *
 * All memory is host memory. A call writes the number of entries and notes. Notes are written up to
 * the capacity of the list; there can be more. Entries that do not fit are an error, except with a
 * capacity of 0.
 */

/*
 * entry.kind: the type of the value. All numbers are read alike; gsc_state_export writes the types
 * that a loader expects.
 */
typedef uint32_t gsc_entry_kind;
#define GSC_ENTRY_UNUSED  0u /* no entry: it is ignored */
#define GSC_ENTRY_NUMBER  1u /* `value`, any number */
#define GSC_ENTRY_TEXT    2u /* `text` */
#define GSC_ENTRY_NULL    3u /* null, None, nil: switched off */
#define GSC_ENTRY_INTEGER 4u /* `integer`, and in `value` the same number, rounded */
#define GSC_ENTRY_BOOLEAN 5u /* 0 or 1, in `integer` and in `value` */

/* A key of a checkpoint or a configuration, and its value. */
typedef struct gsc_entry {
    char key[160];        /* ends with a zero; nested keys are joined by dots, as in
                             "grad_scaler.scale" */
    gsc_entry_kind kind;  /* GSC_ENTRY_* */
    uint32_t flags;       /* 0 */
    double value;         /* the number */
    int64_t integer;      /* the number of an INTEGER or a BOOLEAN, exactly; if `value` is above
                             0, as uint64_t */
    char text[56];        /* the text, such as "dynamic"; ends with a zero */
    uint64_t reserved[2]; /* 0 */
} gsc_entry;

/* note.kind: the subject of a note. */
typedef uint32_t gsc_note_kind;
#define GSC_NOTE_FORMAT              1u  /* the entries were recognised: `field` is the name of
                                            the format */
#define GSC_NOTE_MISSING             2u  /* `field` is not among the entries: `value` is in
                                            force, the policy's or the start of a count */
#define GSC_NOTE_IGNORED             3u  /* the key of `entry` has no meaning in this format */
#define GSC_NOTE_CHANGED             4u  /* `field` became `value`, the meaning of `entry` in
                                            this policy */
#define GSC_NOTE_UNUSABLE            5u  /* the scale is 0 or infinity: no call multiplies by it;
                                            also from gsc_state_diagnose, with the scale as
                                            `value` */
#define GSC_NOTE_LOST                6u  /* the format has no key for `field`; `value` is lost */
#define GSC_NOTE_FAILURE             7u  /* diagnosis: a call failed, here or on another rank,
                                            and no rank steps; `value` is the status */
#define GSC_NOTE_NOT_FINITE          8u  /* diagnosis: Inf or NaN that no scale cures; `value` is
                                            their number, 0 if unknown; `entry` is the last
                                            tensor with one, the nearest to the cause; `field` is
                                            nans_in_a_row if NaN alone came several times in a
                                            row, which is found at every scale, else
                                            failed_backoffs */
#define GSC_NOTE_BACKOFF_FAILED      9u  /* diagnosis: overflows cannot lower the scale, `value`;
                                            `entry` is the last tensor with Inf or NaN, the
                                            nearest to the cause */
#define GSC_NOTE_OVERFLOWS_OFTEN     10u /* diagnosis: too many steps overflowed since the last
                                            growth, or since the first good step if there was
                                            none; `value` is their share, 0 to 1. If `field` is
                                            growth_interval, growths caused them, and the share
                                            is of all steps */
#define GSC_NOTE_GUARD_SKIPS         11u /* diagnosis: the guard skipped more than half of the
                                            steps, or the last ones in a row; `value` is the
                                            number since the start */
#define GSC_NOTE_GUARD_IDLE          12u /* diagnosis: the guard judges none of the steps that
                                            are left, because its warm-up is longer; `value` is
                                            its samples so far */
#define GSC_NOTE_UNDERFLOWS          13u /* diagnosis: gradients became zero; `value` is their
                                            share, 0 to 1; `entry` is the tensor with the largest
                                            share */
#define GSC_NOTE_NEVER_GROWS         14u /* diagnosis: `value` steps are planned, fewer than a
                                            growth needs, and the scale is low; if `field` is
                                            good_steps, this count is past the interval of
                                            GSC_GROWTH_EXACT */
#define GSC_NOTE_CEILING_UNREACHABLE 15u /* diagnosis: the planned steps end before the scale
                                            reaches 2^15, or max_scale if that is lower; `value`
                                            is the scale at the end if no step overflows */
#define GSC_NOTE_OUTSIDE_LIMITS      16u /* `value`, the scale, is above max_scale or below
                                            min_scale: `field` is that limit; from
                                            gsc_state_import, and in a diagnosis */
#define GSC_NOTE_BAD_LOSSES          17u /* diagnosis: losses were not finite before they were
                                            scaled, the last one or too many; `value` is their
                                            share of the steps, 0 to 1 */
#define GSC_NOTE_START_TOO_HIGH      18u /* diagnosis: every step so far overflowed, because
                                            init_scale, `value`, is too high */
#define GSC_NOTE_NO_GRADIENTS        19u /* diagnosis: in the last `value` steps no tensor had a
                                            gradient */
#define GSC_NOTE_ZEROS               20u /* diagnosis: in the last step `value` tensors had only
                                            gradients of 0, and `entry` is the first of them; -1:
                                            all gradients were 0. Reports with the norm or amax
                                            tell */
#define GSC_NOTE_GUARD_CLIPS         21u /* diagnosis: the guard clipped the last steps in a row,
                                            and its threshold stays below the norms; `value` is
                                            the number since the start */

/*
 * A message from a call that succeeded. Its text is like the text of a gsc_error: programs read the
 * other fields. Notes on entries come in this order: UNUSABLE, OUTSIDE_LIMITS, CHANGED, LOST,
 * FORMAT, IGNORED, MISSING.
 */
typedef struct gsc_note {
    gsc_note_kind kind;    /* GSC_NOTE_* */
    uint32_t flags;        /* 0 */
    int64_t entry;         /* index in the call's list, entries or per_tensor, or of a tensor of
                              the report, from 0; -1: none */
    double value;          /* the number in force from now on, or as `kind` says */
    char field[32];        /* field of the policy or the state, or empty; with FORMAT the name of
                              the format */
    uint32_t value_start;  /* byte of `message` at which `value` stands by its name, such as
                              "CLAMP" or "CLIP|INCLUSIVE", or as a number: bindings can write
                              their own name there. Set in MISSING and LOST, and in CHANGED if
                              the field is a rule */
    uint32_t value_length; /* bytes of that name; 0: none is marked, as in other notes */
    char message[432];     /* a sentence, such as "growth_interval is not among the entries: it
                              is 1000, as in the policy" */
    uint64_t reserved[2];  /* 0 */
} gsc_note;

/*
 * Returns the name of format `index`, from 0, or NULL after the last. Most formats have the name of
 * a preset.
 */
GSC_API const char *gsc_format_name(uint32_t index);

/* Returns a sentence on the framework and the content of format `index`, or NULL after the last. */
GSC_API const char *gsc_format_summary(uint32_t index);

/* format_key.uses: where a key occurs. */
typedef uint32_t gsc_key_use;
#define GSC_KEY_SAVED    1u /* checkpoints: gsc_state_import reads it */
#define GSC_KEY_SETTING  2u /* settings: gsc_policy_import reads it */
#define GSC_KEY_NUMBERED 4u /* the key can end with another number instead of 0, or without _0 */

/* A key that a format reads. */
typedef struct gsc_format_key {
    char key[64];         /* without a prefix; ends with a zero */
    char field[32];       /* field that it sets or decides, by the key that the format
                             "gradscaler" has for it: a field of the policy, `scale`, or a count
                             of the state */
    gsc_key_use uses;     /* GSC_KEY_* bits */
    uint32_t flags;       /* 0 */
    uint64_t reserved[1]; /* 0 */
} gsc_format_key;

/*
 * Lists the keys that a format reads, the format's own first. A key is there twice if it sets one
 * field in checkpoints and another one in settings.
 *
 *     keys           NULL only with keys_capacity = 0
 *     keys_capacity  capacity of the list; further keys are only counted
 *     keys_count     number of keys; NULL: not wanted
 */
GSC_API gsc_status gsc_format_keys(const char *format, gsc_format_key *keys, uint64_t keys_capacity,
                                   uint64_t *keys_count, gsc_error *err);

/*
 * Reads a checkpoint. *out_policy, made by GSC_POLICY_INIT, becomes `policy` with the settings in
 * the entries. *out_state continues with the counts in the entries. Both policies can be one
 * struct.
 *
 * If `prefix` is NULL, the scaler's keys are at the top or below one or two names, as in "scale",
 * "scaler.scale" and "optimizer.grad_scaler.scale". If a scaler is only below more names, or if
 * there are several scalers, the call fails and names the prefixes. If `format` is NULL, the keys
 * tell the format. If several formats fit, they must give the same result, else the call fails and
 * names the formats.
 *
 * If the scale is missing, or if a value cannot be a scale or a count, the call fails and names the
 * key. The notes list everything that is not among the entries, has no meaning here, or has another
 * meaning in this policy, such as a count past its interval.
 *
 *     format          NULL: recognised by the keys
 *     prefix          beginning of the keys, up to a dot, such as "loss_scaler1"; "": the keys have
 *                     no prefix; NULL: search at the top and below one or two names
 *     policy          NULL: the preset of the format
 *     notes           NULL only with notes_capacity = 0
 *     notes_capacity  capacity of the list; further notes are only counted
 *     notes_count     number of notes; NULL: not wanted
 */
GSC_API gsc_status gsc_state_import(const char *format, const char *prefix,
                                    const gsc_entry *entries, uint64_t entries_count,
                                    const gsc_policy *policy, gsc_policy *out_policy,
                                    gsc_state *out_state, gsc_note *notes, uint64_t notes_capacity,
                                    uint64_t *notes_count, gsc_error *err);

/*
 * Writes a state, and the settings of its policy that belong to it, with the keys of a framework.
 * The notes list what these keys cannot hold; gsc_state_import restores everything else, except
 * counts that only a diagnosis reads. If the list is too small for the entries, the call fails;
 * with a capacity of 0 it only counts.
 *
 *     prefix            beginning of the keys, without a dot at its end; "": the keys have no
 *                       prefix; NULL: the framework's own prefix
 *     entries           NULL only with entries_capacity = 0
 *     entries_capacity  capacity of the list
 *     entries_count     number of entries; NULL: not wanted
 *     notes             NULL only with notes_capacity = 0
 *     notes_capacity    capacity of the list; further notes are only counted
 *     notes_count       number of notes; NULL: not wanted
 */
GSC_API gsc_status gsc_state_export(const char *format, const char *prefix,
                                    const gsc_policy *policy, const gsc_state *state,
                                    gsc_entry *entries, uint64_t entries_capacity,
                                    uint64_t *entries_count, gsc_note *notes,
                                    uint64_t notes_capacity, uint64_t *notes_count, gsc_error *err);

/*
 * Reads the settings of a framework's scaler: the arguments of its constructor or program, or its
 * section of a configuration. *out_policy, made by GSC_POLICY_INIT, becomes `policy` with these
 * settings; both can be one struct. Every format also reads the fields of gsc_policy by their own
 * names. `format` can also be the name of a preset that is no format, such as "guard": it has no
 * other keys. If the prefix is DeepSpeed's section for bf16, or if that section is on and fp16 is
 * off, the scale is 1 forever, whatever `policy` starts with.
 *
 *     prefix          beginning of the keys, up to a dot, such as "fp16"; other keys are ignored,
 *                     but a prefix that no key has is refused; NULL: as "": none
 *     entries         NULL only with entries_count = 0
 *     policy          NULL: the preset of the format
 *     notes           NULL only with notes_capacity = 0
 *     notes_capacity  capacity of the list; further notes are only counted
 *     notes_count     number of notes; NULL: not wanted
 */
GSC_API gsc_status gsc_policy_import(const char *format, const char *prefix,
                                     const gsc_entry *entries, uint64_t entries_count,
                                     const gsc_policy *policy, gsc_policy *out_policy,
                                     gsc_note *notes, uint64_t notes_capacity,
                                     uint64_t *notes_count, gsc_error *err);

/* ---- Metrics and diagnosis ------------------------------------------------------------------- */

/*
 * Metrics are the numbers of a step, for a log. A diagnosis lists the faults of a run.
 *
 * Metrics have the same names in every language:
 *
 *     gsc_entry metrics[32];
 *     uint64_t count;
 *     if (gsc_state_metrics(&policy, &state, &report, metrics, 32, &count, &err) != GSC_OK)
 *         ... err.message ...
 *     for (uint64_t i = 0; i < count && i < 32; i++)
 *         if (metrics[i].kind != GSC_ENTRY_NULL)
 *             printf("%s=%.9g ", metrics[i].key, metrics[i].value);
 */

/*
 * Metrics of gsc_state_metrics, in this order; the keys are these names in lower case. Later
 * versions add some at the end.
 */
typedef uint32_t gsc_metric;
#define GSC_METRIC_LOSS_SCALE         0u  /* the scale in force, state.factor.scale */
#define GSC_METRIC_SKIP               1u  /* 1 if the last update skipped its step, else 0 */
#define GSC_METRIC_OVERFLOW           2u  /* 1 if the last update skipped its step because of an
                                             overflow, else 0 */
#define GSC_METRIC_NORM               3u  /* norm of all gradients after unscaling, or the number
                                             that the policy judged; NULL if it is not known or
                                             some are not finite */
#define GSC_METRIC_AMAX               4u  /* largest magnitude after unscaling, if the report has
                                             amax; NULL if some are not finite */
#define GSC_METRIC_ZERO_SHARE         5u  /* share of the gradients that became zero by
                                             unscaling, 0 to 1; NULL unless the report measured
                                             underflows */
#define GSC_METRIC_TOTAL_OVERFLOWS    6u  /* overflows since the start */
#define GSC_METRIC_TOTAL_GUARD_SKIPS  7u  /* steps since the start that were skipped as outliers */
#define GSC_METRIC_TOTAL_GROWTHS      8u  /* growths since the start */
#define GSC_METRIC_TOTAL_BACKOFFS     9u  /* backoffs since the start */
#define GSC_METRIC_STEPS_SINCE_CHANGE 10u /* steps since the scale changed */
#define GSC_METRIC_NAN_COUNT          11u /* elements that are NaN; NULL unless report.kind is
                                             TENSORS */
#define GSC_METRIC_INF_COUNT          12u /* elements that are Inf; NULL unless report.kind is
                                             TENSORS */
#define GSC_METRIC_GUARD_THRESHOLD    13u /* threshold that the guard compared the norm with;
                                             NULL if it compared none */
#define GSC_METRIC_GUARD_MULTIPLIER   14u /* state.guard_multiplier: 1, less if clipped, 0 if
                                             skipped */
#define GSC_METRIC_BAD_LOSS           15u /* 1 if the loss was not finite before it was scaled,
                                             else 0; NULL if the loss is not known */
#define GSC_METRIC_TOTAL_BAD_LOSSES   16u /* bad losses since the start */

/*
 * Writes the state after an update, and the report of that update, as numbers with names: see
 * GSC_METRIC_*. The call does not check that the report belongs to the update. Counts are INTEGER,
 * SKIP, OVERFLOW and BAD_LOSS are BOOLEAN, and unknown values are NULL. All memory is host memory.
 * The call writes as many entries as the list has room for, and writes the number of all.
 *
 *     report            NULL: metrics that only a report has are NULL
 *     entries           NULL only with entries_capacity = 0
 *     entries_capacity  capacity of the list; further entries are only counted
 *     entries_count     number of entries; NULL: not wanted
 */
GSC_API gsc_status gsc_state_metrics(const gsc_policy *policy, const gsc_state *state,
                                     const gsc_report *report, gsc_entry *entries,
                                     uint64_t entries_capacity, uint64_t *entries_count,
                                     gsc_error *err);

/*
 * Lists the faults of a run as notes, the most important first. Each message says what to do. A
 * count of 0 means that no fault was found. Behaviour that a framework's policy has by design is no
 * fault. All memory is host memory. A report with an error status is accepted. Shares are of
 * state.total_updates. The state tells what earlier steps did, so no earlier report is needed. The
 * limits, such as the share of overflows, can change with a version.
 *
 *     report            NULL: the last gradients are unknown
 *     per_tensor        NULL: the notes name only the last tensor that is not finite, and none of
 *                       zeros
 *     per_tensor_count  ignored if per_tensor is NULL
 *     steps             updates so far, of planned_steps; 0: state.total_updates
 *     planned_steps     updates of the whole run; 0: not known
 *     notes             NULL only with notes_capacity = 0
 *     notes_capacity    capacity of the list; further notes are only counted
 *     notes_count       number of notes; NULL: not wanted
 */
GSC_API gsc_status gsc_state_diagnose(const gsc_policy *policy, const gsc_state *state,
                                      const gsc_report *report, const gsc_report *per_tensor,
                                      uint64_t per_tensor_count, uint64_t steps,
                                      uint64_t planned_steps, gsc_note *notes,
                                      uint64_t notes_capacity, uint64_t *notes_count,
                                      gsc_error *err);

/* ---- History: a file with a line for each step ----------------------------------------------- */

/*
 * A history is a file of lines of JSON that is only appended to. Each line is complete in itself: a
 * line of gsc_history_start when a run begins, goes on, goes back to an earlier step, or changes
 * its policy, and a line of gsc_history_line after each update:
 *
 *     char line[4096];
 *     uint64_t size;
 *     if (gsc_history_line(&state, &report, NULL, NULL, NULL, 0, step, time, run,
 *                          line, sizeof line, &size, &err) != GSC_OK)
 *         ... err.message ...
 *     fwrite(line, 1, size, file);
 *
 * Counts of 0, false, and a multiplier of 1 are left out and mean just that. Other numbers are left
 * out if they were not measured, and a count that was not measured is null. Infinity and NaN are
 * texts, "inf", "-inf" and "nan", because JSON has no such numbers. A reader takes the newest line
 * of each step, ignores a last line without line feed, and keeps keys that it does not know.
 */

/*
 * Writes the line `start` of a history: the version of the library, all fields of the policy, and
 * the whole state. The line ends with a line feed, not with a zero. *size becomes the number of
 * bytes, also if the call fails with GSC_ERROR_CAPACITY; with bytes NULL and capacity 0, the call
 * only sets *size.
 *
 *     preset    name of the preset that the policy was made from; NULL: left out
 *     state     before the first update that has a line
 *     names     of all tensors; NULL: left out
 *     n         number of names
 *     step      number of the next step
 *     rank      rank of this process
 *     time      seconds since 1970; 0: left out
 *     run       name that tells this writer apart from other writers of the file; NULL: left out
 *     bytes     overwritten even if the call fails; NULL only with capacity = 0
 *     capacity  bytes
 */
GSC_API gsc_status gsc_history_start(const gsc_policy *policy, const char *preset,
                                     const gsc_state *state, const char *const *names, uint64_t n,
                                     uint64_t step, uint32_t rank, double time, const char *run,
                                     void *bytes, uint64_t capacity, uint64_t *size,
                                     gsc_error *err);

/*
 * Writes the line of one update: the metrics of gsc_state_metrics, the events by name, the reason
 * unless the step was taken as it is, and in `state` and `report` all other fields that are not 0,
 * so that gsc_state_diagnose finds the same in the line as in the structs. `tensors` lists tensors
 * by name: with `per_tensor` the first seven tensors and the last one that are not finite, the one
 * that lost the largest share to zero, and the first of `zeros`, which had only zeros; else the
 * last one that is not finite. The line ends with a line feed, not with a zero. *size becomes the
 * number of bytes, also if the call fails with GSC_ERROR_CAPACITY; with bytes NULL and capacity 0,
 * the call only sets *size.
 *
 *     state       after the update
 *     report      NULL: only the state is known
 *     reason      NULL: the call makes it of the other arguments
 *     per_tensor  NULL: the reports of single tensors are unknown
 *     names       NULL: tensors have numbers; so have those with a name that is NULL
 *     n           tensors of the lists
 *     step        number of the step
 *     time        seconds since 1970; 0: left out
 *     run         as in gsc_history_start; NULL: left out
 *     bytes       overwritten even if the call fails; NULL only with capacity = 0
 *     capacity    bytes
 */
GSC_API gsc_status gsc_history_line(const gsc_state *state, const gsc_report *report,
                                    const gsc_reason *reason, const gsc_report *per_tensor,
                                    const char *const *names, uint64_t n, uint64_t step,
                                    double time, const char *run, void *bytes, uint64_t capacity,
                                    uint64_t *size, gsc_error *err);

/* ---- Tensors --------------------------------------------------------------------------------- */

/* A tensor is a run of elements in memory: an address, a count and a dtype. */

/* dtype of a tensor. */
typedef uint32_t gsc_dtype;
#define GSC_F32        1u /* IEEE binary32 */
#define GSC_F64        2u /* IEEE binary64 */
#define GSC_F16        3u /* IEEE binary16 */
#define GSC_BF16       4u /* bfloat16: the upper half of a binary32 */
#define GSC_F8_E4M3FN  5u /* OCP FP8 without Inf; up to 448 */
#define GSC_F8_E5M2    6u /* OCP FP8: the upper half of a binary16 */
#define GSC_CB16       7u /* Cerebras' 16 bits: 6 of exponent, 9 of mantissa, bias 42 */
#define GSC_COMPLEX64  8u /* two binary32: real, imaginary */
#define GSC_COMPLEX128 9u /* two binary64 */

/* A run of elements. An input is only read, although `data` is not const. */
typedef struct gsc_tensor {
    void *data;           /* first element, any alignment; NULL only if count is 0 */
    uint64_t count;       /* elements */
    gsc_dtype dtype;      /* GSC_F32 ... */
    uint32_t flags;       /* 0 */
    uint64_t reserved[2]; /* 0 */
} gsc_tensor;

/*
 * Returns the name of a dtype, as NumPy and ml_dtypes spell it, such as "float32", "float8_e4m3fn"
 * or "cb16"; NULL if the number is no dtype.
 */
GSC_API const char *gsc_dtype_name(gsc_dtype dtype);

/* Returns the bits of one element; 0 if the number is no dtype. */
GSC_API uint32_t gsc_dtype_bits(gsc_dtype dtype);

/*
 * Returns the bytes of one element; 0 if the number is no dtype, or if a byte holds several
 * elements of the dtype.
 */
GSC_API uint32_t gsc_dtype_size(gsc_dtype dtype);

/*
 * Size of options.histogram. Word k counts magnitudes from 2^(4k-48) up to 2^(4k-44) after
 * unscaling. Word 0 also counts all smaller ones except zeros, and word 15 all larger finite ones.
 * Word 16 is the size of the sample, with zeros, Inf and NaN: the first 4,096 of every 65,536
 * elements of a tensor, half as many of a complex tensor. The call sets the words; to merge several
 * calls, add their words.
 */
#define GSC_HISTOGRAM_LENGTH 17u /* words of a histogram */

/*
 * Measurements of a call on tensors besides overflow, and a clamp. NULL is the same as
 * GSC_TENSOR_OPTIONS_INIT: overflow only, no clamp.
 */
typedef struct gsc_tensor_options {
    uint32_t struct_size;     /* set by the initialiser */
    gsc_want want;            /* GSC_WANT_* bits */
    const gsc_policy *policy; /* also measures what this policy needs; the policy decides
                                 report.overflow; NULL: Inf and NaN are overflows */
    double clamp;             /* above 0: limits each output to the clamp, rounded down in the
                                 dtype of the output; a clamp that rounds to 0 is refused; the
                                 report is of the values before the clamp. 0: no limit */
    gsc_report *per_tensor;   /* n reports: per_tensor[i] is of tensor i alone, and its
                                 first_tensor is i; it is judged without the policy and the loss:
                                 its overflow says if the tensor has an Inf or NaN; NULL: none */
    int64_t *histogram;       /* GSC_HISTOGRAM_LENGTH words; NULL: none */
    const gsc_tensor *loss;   /* the loss before it was scaled, of any real dtype; its data is
                                 where the tensors are, and is no output of the call. report.loss
                                 says if all its elements are finite. NULL, or no elements:
                                 unknown. Do not give a loss that the scale made */
} gsc_tensor_options;

#define GSC_TENSOR_OPTIONS_SIZE 48u
#define GSC_TENSOR_OPTIONS_INIT {GSC_TENSOR_OPTIONS_SIZE, 0, NULL, 0.0, NULL, NULL, NULL}

/* ---- Calls on tensors ------------------------------------------------------------------------ */

/*
 * A call takes a whole list of mixed dtypes and sizes, in any dense layout. Input and output of an
 * entry have equal counts, and either the same address and element size (in place) or no byte in
 * common. No output may overlap another entry; only gsc_tensors_check_overlap checks this. A
 * complex tensor needs a complex output. A complex element is one element in counts and in amax,
 * with its larger part; sum_squares adds both parts.
 *
 * Narrow types are widened exactly, multiplied in float and rounded to nearest even. Doubles are
 * multiplied in double; so are all types if the factor is no normal float. NaN stays NaN. A
 * multiplier of exactly 1 into the same dtype copies the bits. A finite value beyond the range of
 * its output becomes Inf, or NaN if the dtype has no Inf, and counts as Inf. With a clamp, every
 * product beyond the limit, Inf included, is written as the limit, and NaN stays NaN; only a
 * product that is Inf or NaN before it is rounded to the output counts as such.
 *
 * A factor of NULL is 1: then gsc_scale and gsc_unscale are casts, and options.clamp makes them
 * saturate. `options` can be NULL; `report` can be NULL if the function says so.
 */

/*
 * Writes the report that gsc_unscale would make in place, each product rounded to its input's
 * dtype. Writes no tensor.
 *
 *     factor   NULL: 1
 *     tensors  NULL only with n = 0
 *     options  NULL: no options; their clamp must be 0
 */
GSC_API gsc_status gsc_measure(const gsc_exec *exec, const gsc_factor *factor,
                               const gsc_tensor *tensors, uint64_t n,
                               const gsc_tensor_options *options, gsc_report *report,
                               gsc_error *err);

/*
 * Writes tensors * factor.inverse to `out`. Writes all elements, even if report->overflow is set.
 * Unscale float16 gradients into float32: in place, most of what scaling saved is lost again.
 *
 *     factor   NULL: 1
 *     tensors  NULL only with n = 0
 *     out      NULL only with n = 0
 *     options  NULL: no options
 *     report   NULL: not wanted
 */
GSC_API gsc_status gsc_unscale(const gsc_exec *exec, const gsc_factor *factor,
                               const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n,
                               const gsc_tensor_options *options, gsc_report *report,
                               gsc_error *err);

/*
 * Writes tensors * factor.scale to `out`: the loss, or the first gradients of a backward pass.
 *
 *     factor   NULL: 1
 *     tensors  NULL only with n = 0
 *     out      NULL only with n = 0
 *     options  NULL: no options
 *     report   NULL: not wanted
 */
GSC_API gsc_status gsc_scale(const gsc_exec *exec, const gsc_factor *factor,
                             const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n,
                             const gsc_tensor_options *options, gsc_report *report, gsc_error *err);

/*
 * Adds tensors * factor.inverse to `out` if every product is finite in the dtype of its output, and
 * options.loss, if given, is finite; else adds nothing. A micro-batch that overflowed, or had a bad
 * loss, is thus left out: divide the sums by the number of micro-batches that were added. The
 * report is of the products. Unscale or check the sums to see whether they are finite. Sums are
 * made in the multiplying type, or in double if `out` is double. The call reads `tensors` twice;
 * `out` must be other memory.
 *
 * For a step of several micro-batches, call this without options.policy: the micro-batch was added
 * if report.overflow is 0 and report.loss is not GSC_LOSS_NOT_FINITE. Keep one merged report: start
 * it by gsc_report_merge with n = 0, then merge it with each new report as addends. If any were
 * added, unscale the sums with options.policy and with the factor that gsc_factor_init makes of
 * their number. Then update:
 * - If the merged report has no overflow and, with GSC_BAD_LOSS_HOLD, no bad loss, update with the
 *   report of the sums, and leave the parameters alone if state.skip is 1.
 * - Else update with the merged report, so that the scale backs off or, with GSC_BAD_LOSS_HOLD,
 *   stays. Do not read state.skip of this update: it is about the micro-batches that were left out.
 *   The update still counts for max_failed_backoffs. Take the step of the other micro-batches, if
 *   there are any and the report of the sums has no overflow. A guard does not judge this step.
 *
 *     factor   NULL: 1
 *     tensors  NULL only with n = 0
 *     out      NULL only with n = 0
 *     options  NULL: no options; their clamp must be 0
 */
GSC_API gsc_status gsc_unscale_accumulate(const gsc_exec *exec, const gsc_factor *factor,
                                          const gsc_tensor *tensors, const gsc_tensor *out,
                                          uint64_t n, const gsc_tensor_options *options,
                                          gsc_report *report, gsc_error *err);

/*
 * Copies `tensors` to `out` if the last update of `state` takes its step. If state->skip is 1,
 * writes nothing. So a program that does not wait for its device still skips: the optimizer writes
 * new parameters and its new state to other memory, and after the update one call copies them all
 * over the old ones. Bits are copied, NaN included; if the dtypes differ, values are rounded as by
 * gsc_unscale with a factor of NULL. Pass integers as GSC_F32 or GSC_F64, by their size.
 *
 * On a device the call reads `state` when it runs. A state that is refused there counts as a skip.
 *
 *     tensors  NULL only with n = 0
 *     out      NULL only with n = 0
 */
GSC_API gsc_status gsc_copy_unless_skipped(const gsc_exec *exec, const gsc_state *state,
                                           const gsc_tensor *tensors, const gsc_tensor *out,
                                           uint64_t n, gsc_error *err);

/*
 * Refuses lists in which an output shares memory with another output or with the input of another
 * entry. Call it with the lists of a call that writes tensors. It compares addresses and does not
 * read the data, so the data can be on any device.
 *
 * It does not compare an entry's input with its own output: the calls on tensors do this
 * themselves.
 *
 * If it returns GSC_ERROR_OVERLAP, err->name is "tensors" or "out", err->index is the entry of that
 * list, and err->value is the index of the entry of `out` that overlaps it. Its time is O(n) if the
 * outputs are in the order of their addresses, else O(n log n).
 *
 *     tensors           NULL only with n = 0
 *     out               `tensors` itself for a call in place; NULL only with n = 0
 *     scratch           overwritten even if the call fails
 *     scratch_capacity  capacity of `scratch`, in numbers: at least 2 * n
 */
GSC_API gsc_status gsc_tensors_check_overlap(const gsc_tensor *tensors, const gsc_tensor *out,
                                             uint64_t n, uint64_t *scratch,
                                             uint64_t scratch_capacity, gsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
