/* SPDX-License-Identifier: MIT */
/* Generated from include/gradscaler.toml by include/generate.py. Do not edit. */
/*
 * gradscaler: loss scaling for mixed-precision training.
 *
 * A training step in fp16 or bf16 multiplies its loss by a scale so that small gradients survive,
 * divides the gradients by it before the optimizer sees them, and skips the step and lowers the
 * scale when a gradient overflowed.
 *
 *     gsc_policy policy = GSC_POLICY_INIT;
 *     gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
 *     gsc_state state;
 *     gsc_report report;
 *     gsc_error err;
 *     if (gsc_policy_preset("recommended", &policy, &err) || gsc_state_init(NULL, &policy, &state, &err))
 *         ... err.message ...
 *     options.policy = &policy;
 *     while (!(state.events & GSC_EVENT_STOPPED)) {
 *         ... gradients of loss * state.factor.scale ...
 *         if (gsc_unscale(NULL, &state.factor, gradients, gradients, n, &options, &report, &err) ||
 *             gsc_state_update(NULL, &policy, &state, &report, &state, &err))
 *             ... err.message ...
 *         if (!state.skip) ... optimizer step ...
 *     }
 *
 * Rules for every function:
 * - The caller owns all structs. Only a gsc_context remembers anything between calls.
 * - A function returns GSC_OK (0) or a negative GSC_ERROR_*, and writes it to err->status. After an
 *   error only *err was written, unless the text says otherwise, after a success the rest of *err
 *   is as it was. `err` comes last and may be NULL.
 * - A pointer may be NULL only where the text says so. Tensor data may have any alignment.
 * - Any thread may call any function at any time, as long as no two calls write the same memory and
 *   none reads what another writes.
 * - No function prints. None changes the rounding mode or other settings of the floating-point
 *   unit; its status flags may be raised. Only calls that make a context, memory or threads
 *   allocate. The calls on tensors need up to 120 KiB of stack.
 * - `flags` and reserved words are 0 in what you make; other values are refused. Pass on whole
 *   structs, so that what a later version keeps in them is not lost.
 * - Later versions may add statuses, bits of events, kinds, dtypes, presets and formats. Treat
 *   every status that is not GSC_OK as a failure, and ignore an unknown bit that the library wrote.
 *   A preset keeps its rules, and a format what it reads, for as long as the major version stays.
 * - `exec` says where the memory is and what computes. NULL is host memory and the calling thread.
 */
#ifndef GRADSCALER_H
#define GRADSCALER_H

#include <stddef.h>
#include <stdint.h>

#if (defined(UINTPTR_MAX) && UINTPTR_MAX != 0xffffffffffffffff) || \
    (defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__)
#error "gradscaler is for 64-bit little-endian machines: its structs and saved bytes are laid out for those"
#endif

/*
 * How functions are declared. Define GSC_STATIC to link a static copy whose symbols stay inside
 * your own library or program, or define GSC_API yourself to decide otherwise.
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
#define GSC_VERSION_MINOR 9
#define GSC_VERSION_PATCH 0
#define GSC_VERSION (GSC_VERSION_MAJOR << 16 | GSC_VERSION_MINOR << 8 | GSC_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors ---------------------------------------------------------------------------------- */

/* GSC_OK, or why a call did nothing. */
typedef int32_t gsc_status;

/* What a call returns. */
#define GSC_OK                0   /* done */
#define GSC_ERROR_NULL        -1  /* a pointer is NULL that may not be */
#define GSC_ERROR_STRUCT_SIZE -2  /* struct_size is not set, or a field is set that this version
                                     lacks */
#define GSC_ERROR_PRESET      -3  /* no preset has this name */
#define GSC_ERROR_POLICY      -4  /* a field of the policy is out of range */
#define GSC_ERROR_STATE       -5  /* no update leads to this state */
#define GSC_ERROR_REPORT      -6  /* the report failed, or lacks what the policy judges by */
#define GSC_ERROR_FACTOR      -7  /* a factor is zero, infinite or not a number */
#define GSC_ERROR_VALUE       -8  /* a number is out of range */
#define GSC_ERROR_DTYPE       -9  /* unknown dtype */
#define GSC_ERROR_COUNT       -10 /* counts differ, or are too large */
#define GSC_ERROR_OVERLAP     -11 /* an output overlaps its input without being the same, or
                                     another entry */
#define GSC_ERROR_CAPACITY    -12 /* the buffer is too small */
#define GSC_ERROR_CORRUPT     -13 /* saved bytes are truncated, damaged or something else */
#define GSC_ERROR_VERSION     -14 /* saved bytes need a newer version of the library */
#define GSC_ERROR_UNAVAILABLE -15 /* this build or machine cannot do it */
#define GSC_ERROR_MEMORY      -16 /* out of memory or threads */
#define GSC_ERROR_DEVICE      -17 /* the driver failed, or the context is of another process */
#define GSC_ERROR_FORMAT      -18 /* the entries are of no format, or of several, or no format
                                     has this name */
#define GSC_ERROR_MISMATCH    -19 /* the reports are of ranks whose policies or states differ */

/* What was wrong. C programs print `message`; bindings make their own text from the rest. */
typedef struct gsc_error {
    gsc_status status;       /* what the call returned */
    int32_t argument;        /* position of the argument in the call, from 0; -1: none */
    int64_t index;           /* entry of the argument, if it is a list; else -1 */
    char name[24];           /* name of the argument, such as "tensors" or "policy" */
    char field[32];          /* its field, such as "min_scale"; empty: all of it */
    double value;            /* the number that was refused, or the other entry of an overlap;
                                NaN: none */
    double low;              /* its lower limit, which the message includes or excludes; NaN:
                                none */
    double high;             /* its upper limit, likewise */
    uint32_t subject_length; /* bytes of `message` that name the argument; what is wrong with it
                                begins at message + subject_length */
    char message[188];       /* such as "policy.min_scale is -1: it must be 0 or above" */
    uint64_t reserved[2];    /* 0 */
} gsc_error;

/* The meaning of a status in a few words. Never NULL, never freed. */
GSC_API const char *gsc_status_string(gsc_status status);

/* Version of the library that runs; GSC_VERSION is the version of this header. */
GSC_API uint32_t gsc_version(void);

/* The same as text, such as "1.0.2". Never NULL, never freed. */
GSC_API const char *gsc_version_string(void);

/* What a build of the library may lack. */
typedef uint32_t gsc_feature;
#define GSC_FEATURE_CUDA 1u /* contexts on CUDA devices, see gradscaler_cuda.h */

/* Returns 1 if the library that runs has the feature, else 0. */
GSC_API int32_t gsc_has(gsc_feature feature);

/*
 * Makes a struct that starts with struct_size ready to be filled in, for languages that cannot use
 * the macros GSC_..._INIT: sets struct_size and clears the rest.
 *
 *     struct_size  bytes of the struct, as the caller's language has it
 */
GSC_API gsc_status gsc_struct_init(void *out, uint32_t struct_size, gsc_error *err);

/* ---- Policy: the rules ----------------------------------------------------------------------- */

/*
 * A policy says when the scale grows, when it backs off and where it stops. Zero in a field
 * switches it off, so a policy of zeros is a scale of 1 that never moves. Start from a preset and
 * change what you need.
 *
 * The fields guard_* are a second rule, against steps whose gradients are finite but absurd. x is
 * the norm of all gradients after unscaling, the root of report.sum_squares:
 *
 *     overflow, or x is not finite: nothing of this; loss scaling alone decides
 *     threshold = the least of those that are on: guard_norm, guard_ratio * mean, mean + guard_sigmas * sqrt(variance)
 *     outlier = x > threshold, after guard_warmup samples
 *     outliers in a row: one more after an outlier, else 0; at guard_max_in_a_row it stops, or lets the outlier through
 *     sample = x, the threshold, or none, as guard_sample says
 *     weight = 1 / samples in the warm-up, then 1 - guard_decay; with guard_decay 0 always 1 / samples
 *         d = sample - mean; mean += weight * d; variance = (1 - weight) * (variance + weight * d * d)
 *     multiplier = 1 of a normal step, threshold / x if it is clipped, 0 if it is skipped
 *
 * While the mean is not above 0, guard_ratio gives no threshold. While the variance is 0,
 * guard_sigmas gives none, unless guard_init_mean is set. After a lasting change of level, a guard
 * that keeps its outliers out of the mean would skip every step from then on, and a rounding could
 * do the same if the threshold is as low as the norm. Without a guard_max_in_a_row gsc_policy_check
 * refuses both. A guard_norm alone needs none: such a limit is for you to watch. A policy that
 * guards judges by the norm. It takes a norm that is not finite, or above 2^500, for an overflow.
 */

/* growth_rule: when the scale grows. The count is `good_steps` less growth_extra_steps. */
typedef uint32_t gsc_growth;
#define GSC_GROWTH_REACHED   0u /* at the interval or past it */
#define GSC_GROWTH_EXACT     1u /* at the interval only; a count already past it waits for an
                                   overflow */
#define GSC_GROWTH_EVERY     2u /* at each multiple of it; a growth does not restart the count */
#define GSC_GROWTH_ALL_STEPS 3u /* as REACHED, but counting `steps_since_change`, overflows
                                   included */

/* ceiling_rule, floor_rule: what a change does that would reach the limit. */
typedef uint32_t gsc_limit_rule;
#define GSC_LIMIT_CLAMP             0u /* ends at the limit */
#define GSC_LIMIT_ENFORCE           1u /* as CLAMP, and every update enforces the limit */
#define GSC_LIMIT_REJECT            2u /* is dropped */
#define GSC_LIMIT_STOP              3u /* is dropped, with GSC_EVENT_STOPPED */
#define GSC_LIMIT_CLAMP_UNLESS_PAST 4u /* as CLAMP, except that a scale already past the limit
                                          stays where it is */

/* overflow_reset, bits: what sets the count of overflows to 0. */
typedef uint32_t gsc_overflow_reset;
#define GSC_RESET_ON_GROWTH    1u /* a growth */
#define GSC_RESET_ON_GOOD_STEP 2u /* a step without overflow */
#define GSC_RESET_ON_BACKOFF   4u /* a backoff */

/* arithmetic: the number format in which a new scale is computed. */
typedef uint32_t gsc_arithmetic;
#define GSC_ARITHMETIC_F64        0u /* double */
#define GSC_ARITHMETIC_F64_TO_F32 1u /* double product, rounded once to float */
#define GSC_ARITHMETIC_F32        2u /* factors rounded to float first, then a float operation */
#define GSC_ARITHMETIC_F32_FLUSH  3u /* as F32; a result below 2^-126 becomes 0 */

/* overflow_test: what of a report is an overflow. */
typedef uint32_t gsc_overflow_test;
#define GSC_TEST_ELEMENT 0u /* an element that is not finite */
#define GSC_TEST_NORM    1u /* that, or a sum of squares above the largest float */

/* quirks, bits: what a peer does and no new policy should. */
typedef uint32_t gsc_quirk;
#define GSC_QUIRK_TOLERANCE_EXCLUSIVE 1u /* a share equal to overflow_tolerance is not tolerated */
#define GSC_QUIRK_OVERFLOW_IS_GOOD    2u /* an overflow also counts as a good step */
#define GSC_QUIRK_ALLOW_LOCKOUT       4u /* the guard may skip all steps for good:
                                            gsc_policy_check asks for no guard_max_in_a_row */

/*
 * guard_sample: what an outlier adds to the mean and the variance that later steps are judged by.
 */
typedef uint32_t gsc_guard_sample;
#define GSC_SAMPLE_AS_IS     0u /* itself */
#define GSC_SAMPLE_NONE      1u /* nothing */
#define GSC_SAMPLE_THRESHOLD 2u /* the threshold, or what the outlier was clipped to */

/* guard_flags, bits: what becomes of an outlier. */
typedef uint32_t gsc_guard;
#define GSC_GUARD_CLIP                1u   /* its gradients are multiplied by threshold / norm,
                                              and the step is taken, unless the threshold is not
                                              above 0; without it the step is skipped */
#define GSC_GUARD_INCLUSIVE           2u   /* a norm equal to the threshold is also an outlier */
#define GSC_GUARD_STOP                4u   /* at guard_max_in_a_row GSC_EVENT_STOPPED; without it
                                              this outlier and those that follow it in the row
                                              are let through, and enter the mean as they are */
#define GSC_GUARD_SKIP_IS_GOOD        8u   /* a step that is skipped as an outlier counts as a
                                              good step of the scale; without it the scale and
                                              its counts stay */
#define GSC_GUARD_CLIP_PROGRESSIVE    16u  /* with CLIP: to mean + (threshold - mean)^2 / (norm -
                                              mean), the further out the lower */
#define GSC_GUARD_VARIANCE_AFTER_MEAN 32u  /* after the warm-up the variance takes (sample -
                                              mean)^2 with the mean that already has the sample */
#define GSC_GUARD_BIAS_CORRECTED      64u  /* a sample's weight is (1 - guard_decay) / (1 -
                                              guard_decay^n), n its number, from the first one on */
#define GSC_GUARD_CLIP_TO_MEAN        128u /* with CLIP: to the mean */

/* The rules of one scaler. Initialise it, then fill it with gsc_policy_preset. */
typedef struct gsc_policy {
    uint32_t struct_size;              /* set by the initialiser */
    gsc_arithmetic arithmetic;         /* GSC_ARITHMETIC_* */
    double init_scale;                 /* first scale; 0 is 1 */
    double growth_factor;              /* a growth multiplies by it; at least 1, 0 is 1 */
    double backoff_factor;             /* a backoff multiplies by it; in (0, 1]. 0: divides by
                                          growth_factor */
    uint64_t growth_interval;          /* good steps from one growth to the next; 0 never grows */
    gsc_growth growth_rule;            /* GSC_GROWTH_* */
    uint32_t growth_extra_steps;       /* steps a count needs beyond the interval */
    double max_scale;                  /* ceiling; 0 is none (infinity) */
    double min_scale;                  /* floor; 0 is none */
    gsc_limit_rule ceiling_rule;       /* GSC_LIMIT_* at max_scale; with ENFORCE also for the
                                          first scale */
    gsc_limit_rule floor_rule;         /* GSC_LIMIT_* at min_scale; the first scale is never
                                          raised */
    gsc_overflow_test overflow_test;   /* GSC_TEST_* */
    uint32_t hysteresis;               /* number of overflows that make a backoff; those before
                                          the last are absorbed; overflow_reset restarts the
                                          count; 0 is 1 */
    gsc_overflow_reset overflow_reset; /* GSC_RESET_* bits: what refills the hysteresis */
    uint32_t apply_delay;              /* 1: a new scale is in force one update later */
    double overflow_tolerance;         /* an overflow is absorbed while overflows are at most
                                          this share of the steps since the last change;
                                          overflow_reset restarts their count; below 1, or 1 with
                                          TOLERANCE_EXCLUSIVE */
    uint64_t max_failed_backoffs;      /* GSC_EVENT_STOPPED at this many overflows in a row that
                                          could not lower the scale; 0 never */
    gsc_quirk quirks;                  /* GSC_QUIRK_* bits; 0 in any new policy */
    uint32_t reserved;                 /* 0 */
    double target_amax;                /* not 0: the scale is predicted so that amax lands here,
                                          and nothing is counted */
    double log2_decay;                 /* decay of the running mean of log2(amax); 0 up to, not
                                          including, 1 */
    double log2_slow_decay;            /* decay of its slower mean and of its square; likewise */
    double log2_margin_sigmas;         /* standard deviations kept free above the mean */
    double overflow_sample_log2;       /* the sample of log2(amax) that an overflow stands for */
    double guard_norm;                 /* an outlier has a norm above this; 0: no such threshold */
    double guard_ratio;                /* or above this times the mean, where that is above 0;
                                          above 1, or 0 */
    double guard_sigmas;               /* or this many standard deviations above the mean; 0: no
                                          such threshold */
    double guard_decay;                /* what is left of the mean and the variance at each
                                          sample after the warm-up; below 1. 0: all samples weigh
                                          the same */
    double guard_init_mean;            /* the mean before the first sample, by which the first
                                          step is judged; 0: none */
    uint64_t guard_warmup;             /* samples before the first step is judged, which enter as
                                          they are and weigh the same */
    uint64_t guard_max_in_a_row;       /* at this many outliers in a row the guard accepts a new
                                          level: it lets this outlier and those that follow it in
                                          the row through, or with GSC_GUARD_STOP it stops; 0:
                                          never */
    gsc_guard_sample guard_sample;     /* GSC_SAMPLE_* */
    gsc_guard guard_flags;             /* GSC_GUARD_* bits */
} gsc_policy;

#define GSC_POLICY_SIZE 216u
#define GSC_POLICY_INIT \
    {GSC_POLICY_SIZE, 0, 0.0, 0.0, 0.0, 0, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0.0, \
     0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0}

/*
 * Fills *out, which GSC_POLICY_INIT made, with a named set of rules: "recommended" for new work,
 * "guard" for bf16, "none", "static", or the exact rules of a framework, such as "torch" or
 * "megatron".
 */
GSC_API gsc_status gsc_policy_preset(const char *name, gsc_policy *out, gsc_error *err);

/* Whether the policy can be used; every call that takes a policy asks the same. */
GSC_API gsc_status gsc_policy_check(const gsc_policy *policy, gsc_error *err);

/* What a policy does, for callers that prepare for it. */
typedef uint32_t gsc_trait;
#define GSC_TRAIT_MOVES      1u /* its scale can change */
#define GSC_TRAIT_GUARDS     2u /* it judges the norm of finite gradients */
#define GSC_TRAIT_NEEDS_NORM 4u /* its updates need sum_squares, or a number */
#define GSC_TRAIT_NEEDS_AMAX 8u /* its updates need amax */

/*
 * Says what a policy does. *out, which GSC_POLICY_INIT made, becomes the policy with what 0 stands
 * for: init_scale, growth_factor and hysteresis 1, and backoff_factor 1 / growth_factor, which a
 * backoff divides by. Other zeros stay. *out may be *policy.
 *
 *     out     NULL: not wanted
 *     traits  NULL: not wanted
 */
GSC_API gsc_status gsc_policy_resolve(const gsc_policy *policy, gsc_policy *out, gsc_trait *traits,
                                      gsc_error *err);

/* Name of preset `index`, from 0. NULL past the last. */
GSC_API const char *gsc_preset_name(uint32_t index);

/* What preset `index` does and where its rules come from, in a sentence. NULL past the last. */
GSC_API const char *gsc_preset_summary(uint32_t index);

/* ---- Where a call runs ----------------------------------------------------------------------- */

/* Threads or a device. Calls from any number of threads may use it at the same time. */
typedef struct gsc_context gsc_context;

/* One piece of a call's work. */
typedef void gsc_task(void *data, uint64_t index);

/*
 * The caller's thread pool. It runs task(data, i) for every i below count, in any order and on any
 * threads, and returns 0 when all have returned. If it cannot run them, it runs none and returns
 * another number. Then the call fails with GSC_ERROR_MEMORY and has written nothing. If the pool
 * has run other tasks of the same call before, the calling thread runs these tasks instead. Tasks
 * never block, call nothing back, and need 120 KiB of stack.
 */
typedef int32_t gsc_parallel_for(void *pool, gsc_task *task, void *data, uint64_t count);

/*
 * Where the memory of a call is and what computes. The header that made the context says what
 * pointers, stream and workspace are there, and which dtypes it takes; here that is host memory,
 * and neither stream nor workspace.
 */
typedef struct gsc_exec {
    uint32_t struct_size;    /* set by the initialiser */
    uint32_t reserved;       /* 0 */
    gsc_context *context;    /* NULL: the calling thread */
    void *stream;            /* the queue of a device; NULL on the CPU */
    void *workspace;         /* scratch memory of the device; NULL on the CPU */
    uint64_t workspace_size; /* its bytes; 0 on the CPU */
} gsc_exec;

#define GSC_EXEC_SIZE 40u
#define GSC_EXEC_INIT {GSC_EXEC_SIZE, 0, NULL, NULL, NULL, 0}

/* How many threads share the work of a call, and whose they are. */
typedef struct gsc_cpu_options {
    uint32_t struct_size;           /* set by the initialiser */
    uint32_t threads;               /* 1 to 1,024, the calling one included */
    gsc_parallel_for *parallel_for; /* the caller's pool; NULL: the context makes its own, one
                                       fewer than `threads` */
    void *pool;                     /* handed to parallel_for; NULL without one */
} gsc_cpu_options;

#define GSC_CPU_OPTIONS_SIZE 24u
#define GSC_CPU_OPTIONS_INIT {GSC_CPU_OPTIONS_SIZE, 0, NULL, NULL}

/*
 * Makes a context of threads. Its own threads sleep between calls and are made anew in a forked
 * process. Results have the same bits for any number of threads.
 */
GSC_API gsc_status gsc_context_create_cpu(const gsc_cpu_options *options, gsc_context **out,
                                          gsc_error *err);

/*
 * Frees a context that no call, stream or graph uses any more.
 *
 *     context  NULL: does nothing
 */
GSC_API void gsc_context_destroy(gsc_context *context);

/* What runs here. The strings are never freed. */
typedef struct gsc_info {
    uint32_t struct_size;      /* set by the initialiser */
    uint32_t version;          /* as gsc_version */
    const char *cpu;           /* instruction set in use; GSC_CPU in the environment chooses */
    const char *cpu_available; /* those that this machine can run, separated by spaces */
    const char *cpu_note;      /* empty, or why GSC_CPU was not followed */
} gsc_info;

#define GSC_INFO_SIZE 32u
#define GSC_INFO_INIT {GSC_INFO_SIZE, 0, NULL, NULL, NULL}

/* Fills *out, which GSC_INFO_INIT made. */
GSC_API gsc_status gsc_info_get(gsc_info *out, gsc_error *err);

/* ---- Factor: what one loss was multiplied by ------------------------------------------------- */

/*
 * A snapshot of a scale. Unscale gradients by the factor that their loss was scaled by: where they
 * arrive late (pipelines, an optimizer thread, offloading), copy state.factor when the loss is
 * scaled and keep it with them.
 */
typedef struct gsc_factor {
    double scale;        /* the loss is multiplied by this */
    double inverse;      /* the gradients are multiplied by this: 1 / scale, or less where they
                            are clipped */
    float scale_f32;     /* scale, rounded; fused optimizers read the floats in place */
    float inverse_f32;   /* inverse, rounded */
    uint64_t generation; /* tells the scales of a state apart, a later one has a larger number;
                            0: of no state */
} gsc_factor;

/*
 * Makes the factor of a scale, with generation 0.
 *
 *     scale  finite and above 0 as a float, as is its inverse
 */
GSC_API gsc_status gsc_factor_init(double scale, gsc_factor *out, gsc_error *err);

/*
 * Multiplies the scale by `by` and divides the inverse by it. To get the mean of k gradients that
 * were added, unscale their sum by the factor times k. *out may be *factor.
 *
 *     by  finite, above 0
 */
GSC_API gsc_status gsc_factor_multiply(const gsc_exec *exec, const gsc_factor *factor, double by,
                                       gsc_factor *out, gsc_error *err);

/* ---- Report: what the gradients were like ---------------------------------------------------- */

/* What a report can measure beside overflow, its place and its counts, which are always there. */
typedef uint32_t gsc_want;
#define GSC_WANT_NORM      1u /* sum_squares */
#define GSC_WANT_AMAX      2u /* amax */
#define GSC_WANT_UNDERFLOW 4u /* underflows_to_zero, underflows_to_subnormal */

/* report.kind: what a report is of. */
typedef uint32_t gsc_report_kind;
#define GSC_REPORT_NONE    0u /* nothing, it was not filled in; refused unless it says an
                                 overflow */
#define GSC_REPORT_TENSORS 1u /* the tensors of a call */
#define GSC_REPORT_NUMBER  2u /* a number */
#define GSC_REPORT_MERGED  3u /* other reports */
#define GSC_REPORT_FLAG    4u /* a flag: whether there was an overflow, and nothing else */

/*
 * Calls on tensors, gsc_report_from_number, gsc_report_from_flag and gsc_report_merge fill a report
 * in. A report of zeros is refused, as nobody filled it in. Zeros with `status` and `overflow` set
 * are the report of a rank whose call failed. Also refused: values that contradict each other, such
 * as elements that are NaN without an overflow.
 */
typedef struct gsc_report {
    float found_inf;                 /* `overflow` as the float that fused optimizers read; not 0
                                        is an overflow by itself */
    int32_t overflow;                /* 1: do not step. An element is Inf or NaN or became so, or
                                        options.policy says so, or the call failed */
    gsc_status status;               /* GSC_OK, or the error that a device or a rank met */
    gsc_want measured;               /* GSC_WANT_* bits */
    uint64_t generation;             /* of the factor; 0: unknown */
    double amax;                     /* largest finite magnitude after unscaling, before
                                        rounding; of a complex element its larger part */
    double sum_squares;              /* of the finite elements after unscaling; its root is the
                                        norm */
    int64_t elements;                /* elements seen */
    int64_t nan_count;               /* elements that are NaN */
    int64_t inf_count;               /* elements that are Inf, or became so by unscaling */
    int64_t first_tensor;            /* where the first of these is: index in the list ... */
    int64_t first_element;           /* ... and in the tensor; both 0 if both counts are */
    int64_t underflows_to_zero;      /* outputs that are zero while their input was not */
    int64_t underflows_to_subnormal; /* outputs that are subnormal while their input was not */
    int64_t clamped;                 /* elements that options.clamp changed */
    uint64_t digest;                 /* what gsc_report_set_rank left: a digest of policy and
                                        state; 0: none */
    uint32_t status_rank_plus_1;     /* 1 + the rank that status is of; 0: not known */
    uint32_t first_rank_plus_1;      /* 1 + the rank that first_tensor is of, or, where nothing
                                        was counted, of the first with overflow; 0: not known */
    gsc_report_kind kind;            /* GSC_REPORT_* */
    uint32_t flags;                  /* 0 */
    double number;                   /* with GSC_REPORT_NUMBER the number, which a policy judges
                                        as it judges a norm; 0 if it is not finite. Else 0 */
    uint64_t reserved[15];           /* 0 */
} gsc_report;

/*
 * Makes the report of a number, for a policy that guards something else than gradients, such as the
 * loss of each step. Its own state takes this report in gsc_state_update, and
 * gsc_state_combine_decisions says what both states decided. The number counts with its sign. Inf
 * and NaN are an overflow. If the loss is in the memory of a device, measure its magnitude with
 * gsc_measure and GSC_WANT_NORM instead. A report of a number cannot be merged.
 *
 *     number  any; magnitudes above 2^500 are taken for Inf
 */
GSC_API gsc_status gsc_report_from_number(double number, gsc_report *out, gsc_error *err);

/*
 * Makes a report of an overflow that was found elsewhere, such as a framework's found_inf. It
 * measures nothing else, so a policy that judges by the norm or by amax refuses it unless it says
 * an overflow.
 *
 *     overflow  not 0: an overflow
 */
GSC_API gsc_status gsc_report_from_flag(int32_t overflow, gsc_report *out, gsc_error *err);

/* What the merged reports are of. */
typedef uint32_t gsc_merge_kind;
#define GSC_MERGE_SHARDS  0u /* different gradients: shards, layers, optimizers. Their sums of
                                squares add up */
#define GSC_MERGE_ADDENDS 1u /* gradients that are added: micro-batches, data-parallel ranks. The
                                norm of their sum is not known */

/*
 * Makes one report of many. Ranks gather their reports and merge them in the order of the ranks, so
 * that all get the same bits. That each rank is there once, and in order, is not checked. The
 * result has measured what all of them have measured; the norm and amax of addends are not known:
 * measure their sum. first_tensor and first_element are those of the first report that has some,
 * the generation is the least that is known. *out may be one of the reports.
 *
 * Digests that differ are refused: GSC_ERROR_MISMATCH, with the index of the first report that has
 * another digest than those before it. A device returns no error: it makes a report with that
 * status and an overflow, so that nobody steps. A report without a digest agrees with all, such as
 * the report of a rank that failed or that has no gradients.
 *
 * Merged reports can be merged again, per node and then across nodes. The result is what one merge
 * of all reports gives, to the bit, except for sum_squares, which is then a sum of the sums of the
 * nodes. All ranks get the same sum if all merge the same groups. It is the sum of one merge if
 * each group but the last has 64 reports and there are at most 64 groups. Give the policy to the
 * last merge. If the merge of a group is refused, the group takes part in the next merge with a
 * report of that status and an overflow, so that the others do not wait for it.
 *
 *     reports  NULL only with n = 0
 *     n        0 gives the report of an empty list
 *     policy   NULL: an overflow in any report is one; with it, overflow is the policy's verdict
 */
GSC_API gsc_status gsc_report_merge(const gsc_exec *exec, const gsc_report *reports, uint64_t n,
                                    gsc_merge_kind kind, const gsc_policy *policy, gsc_report *out,
                                    gsc_error *err);

/*
 * *out is *factor with its inverse multiplied by min(1, max_norm / (norm + 1e-6)), as in
 * torch.nn.utils.clip_grad_norm_. The report has GSC_WANT_NORM. After gsc_measure, unscaling by
 * *out clips in the same pass; an optimizer that takes a multiplier takes out->inverse_f32. To clip
 * outliers as well, make both factors of the same one and unscale by the one with the smaller
 * inverse: one after the other they clip too much.
 *
 *     factor    NULL: 1
 *     max_norm  finite, above 0
 */
GSC_API gsc_status gsc_factor_clip_grad_norm(const gsc_exec *exec, const gsc_factor *factor,
                                             const gsc_report *report, double max_norm,
                                             gsc_factor *out, gsc_error *err);

/* ---- State: the scale and its counts --------------------------------------------------------- */

/*
 * The loop above unscales first. A policy that clips outliers decides first, and the pass that
 * unscales clips:
 *
 *     gsc_factor factor = state.factor;
 *     if (gsc_measure(NULL, &factor, gradients, n, &options, &report, &err) ||
 *         gsc_state_update(NULL, &policy, &state, &report, &state, &err) ||
 *         gsc_factor_clip_outlier(NULL, &factor, &state, &factor, &err) ||
 *         gsc_unscale(NULL, &factor, gradients, gradients, n, NULL, NULL, &err))
 *         ... err.message ...
 *     if (!state.skip) ... optimizer step ...
 */

/* Bits of state.events: what the last update did. */
typedef uint32_t gsc_event;
#define GSC_EVENT_GREW           1u    /* the scale became larger */
#define GSC_EVENT_BACKED_OFF     2u    /* the scale became smaller */
#define GSC_EVENT_SKIPPED        4u    /* an overflow, an outlier, or a failure on a device:
                                          leave the parameters alone */
#define GSC_EVENT_ABSORBED       8u    /* the overflow was absorbed by hysteresis or tolerance */
#define GSC_EVENT_AT_CEILING     16u   /* max_scale held a growth */
#define GSC_EVENT_AT_FLOOR       32u   /* min_scale held a backoff */
#define GSC_EVENT_BACKOFF_FAILED 64u   /* the overflow could not lower the scale */
#define GSC_EVENT_STOPPED        128u  /* the policy gives up: training on would only skip */
#define GSC_EVENT_STALE          256u  /* the report is of another factor than the one in force:
                                          late, or used before */
#define GSC_EVENT_OUTLIER        512u  /* the norm is above guard_threshold; neither SKIPPED nor
                                          CLIPPED: it was let through */
#define GSC_EVENT_CLIPPED        1024u /* multiply the gradients by guard_multiplier, as
                                          gsc_factor_clip_outlier does */

/* One scaler. A value without pointers: copy it, store it, send it. */
typedef struct gsc_state {
    gsc_factor factor;             /* the scale in force */
    gsc_factor next;               /* the newest scale. It differs from `factor` only with
                                      apply_delay: then the next loss is scaled by it while the
                                      update for this one is under way */
    double log2_mean;              /* predictive policies: running mean of log2(amax) */
    double log2_slow_mean;         /* slower mean of log2(amax), with log2_slow_decay */
    double log2_mean_square;       /* slower mean of its square */
    double log2_zero_weight;       /* weight in log2_mean of the zero that it began with */
    double log2_slow_zero_weight;  /* the same of log2_slow_mean */
    int64_t good_steps;            /* good steps since the last overflow or growth; with
                                      GSC_GROWTH_EVERY since the last overflow */
    int64_t steps_since_change;    /* all steps since the last change */
    int64_t overflows_since_reset; /* overflows not reset yet */
    int64_t failed_backoffs;       /* overflows in a row that could not lower the scale */
    gsc_event events;              /* GSC_EVENT_* of the last update */
    gsc_status status;             /* GSC_OK, or the error of the last update on a device */
    int64_t total_overflows;       /* overflows since the start; what the guard skipped is in
                                      total_guard_skips */
    int64_t total_growths;         /* updates since the start that made the scale larger */
    int64_t total_backoffs;        /* updates since the start that made it smaller */
    float skip_f32;                /* 1 with GSC_EVENT_SKIPPED, else 0: what a fused optimizer
                                      that runs after the update takes as found_inf */
    int32_t skip;                  /* 1 with GSC_EVENT_SKIPPED, else 0: leave the parameters
                                      alone */
    double guard_mean;             /* policies that guard: mean of the samples */
    double guard_variance;         /* their variance */
    int64_t guard_count;           /* their number */
    int64_t guard_in_a_row;        /* outliers in a row */
    int64_t total_guard_skips;     /* steps since the start that were skipped as outliers */
    double guard_multiplier;       /* of the last update: 1, below 1 where it clips, 0 with
                                      GSC_EVENT_SKIPPED */
    double guard_threshold;        /* what guard_value was held against; 0: against nothing */
    double guard_value;            /* the norm or the number that the last update judged; 0: none */
    uint64_t reserved[18];         /* 0 */
} gsc_state;

/* Makes the state before the first step. */
GSC_API gsc_status gsc_state_init(const gsc_exec *exec, const gsc_policy *policy, gsc_state *out,
                                  gsc_error *err);

/*
 * Makes a state that has the scale from->factor.scale at once, and the counts, means and totals of
 * `from`: to set the scale of a state or its counts, change a copy and hand it over. *out may be
 * *from. A scale of 0 or infinity, which some peers reach, is taken; its factor is refused by every
 * call that multiplies.
 */
GSC_API gsc_status gsc_state_init_from(const gsc_exec *exec, const gsc_policy *policy,
                                       const gsc_state *from, gsc_state *out, gsc_error *err);

/*
 * One step of the policy. Call it once for each optimizer step, also for a skipped one, with a
 * report on all of its gradients. *out may be *state. Then ask out->skip: if it is 1, leave the
 * parameters alone. Only the update knows outliers: report.overflow is about overflow alone.
 * out->events says what happened: with GSC_EVENT_CLIPPED the gradients are to be multiplied before
 * the step, see gsc_factor_clip_outlier; with GSC_EVENT_STOPPED the training should end, and an
 * update after that goes on as after any other; with GSC_EVENT_STALE the report has counted like
 * any other. A report that lacks what the policy judges by is refused; options.policy measures it.
 * A predictive policy takes a report with amax 0 and no overflow as no sample: the scale stays.
 */
GSC_API gsc_status gsc_state_update(const gsc_exec *exec, const gsc_policy *policy,
                                    const gsc_state *state, const gsc_report *report,
                                    gsc_state *out, gsc_error *err);

/*
 * *out is `state`, and skips, clips or stops also where `other` did in its last update: the state
 * of another signal, such as the loss, which a policy of its own judged. It has the events SKIPPED,
 * STOPPED, OUTLIER and CLIPPED of both, and the smaller multiplier. Its scale, counts and samples
 * are those of `state`. *out may be either. Combine several signals one after the other.
 */
GSC_API gsc_status gsc_state_combine_decisions(const gsc_exec *exec, const gsc_state *state,
                                               const gsc_state *other, gsc_state *out,
                                               gsc_error *err);

/* reason.outcome: what the last update decided of its step. */
typedef uint32_t gsc_outcome;
#define GSC_OUTCOME_TAKEN       0u /* take it; the gradients are as they are */
#define GSC_OUTCOME_LET_THROUGH 1u /* take it, although it is an outlier */
#define GSC_OUTCOME_CLIPPED     2u /* take it with gradients times `multiplier` */
#define GSC_OUTCOME_SKIPPED     3u /* leave the parameters alone */
#define GSC_OUTCOME_STOPPED     4u /* end the training */

/* reason.cause: why it decided so. */
typedef uint32_t gsc_cause;
#define GSC_CAUSE_NONE        0u /* nothing was wrong */
#define GSC_CAUSE_OVERFLOW    1u /* Inf or NaN */
#define GSC_CAUSE_OUTLIER     2u /* `value` is above `threshold` */
#define GSC_CAUSE_CEILING     3u /* the scale would pass max_scale, where ceiling_rule stops */
#define GSC_CAUSE_OTHER_STATE 4u /* a state that it was combined with found an outlier */
#define GSC_CAUSE_FAILURE     5u /* the update failed on a device; state.status says how */

/* Why the last update took, clipped or skipped its step. */
typedef struct gsc_reason {
    gsc_outcome outcome;  /* GSC_OUTCOME_* */
    gsc_cause cause;      /* GSC_CAUSE_* */
    double value;         /* with OUTLIER the norm or the number that was judged; 0: not known */
    double threshold;     /* with OUTLIER what it is above */
    double multiplier;    /* what the gradients are to be multiplied by */
    int64_t in_a_row;     /* with OUTLIER, how many in a row there were */
    char message[192];    /* a sentence for a log, such as "skipped: the norm, 3, is above 2, 1
                             in a row"; empty if the step is taken as it is */
    uint64_t reserved[3]; /* 0 */
} gsc_reason;

/* Says why the last update decided as it did. The state is in host memory. */
GSC_API gsc_status gsc_state_reason(const gsc_state *state, gsc_reason *out, gsc_error *err);

/*
 * *out is *factor with its inverse multiplied by state->guard_multiplier if the last update clips
 * (GSC_EVENT_CLIPPED), else *factor. `factor` is that of the gradients, copied before the update.
 * Unscaling by *out clips in the same pass; an optimizer that takes a multiplier takes
 * out->inverse_f32, and state->skip_f32 as found_inf.
 *
 *     factor  NULL: 1
 */
GSC_API gsc_status gsc_factor_clip_outlier(const gsc_exec *exec, const gsc_factor *factor,
                                           const gsc_state *state, gsc_factor *out, gsc_error *err);

/* Of gsc_state_save. */
#define GSC_SAVED_SIZE_MAX 1024u /* bytes that hold any saved state of this major version */

/*
 * Writes policy and state, which are host memory, as bytes that any later version on any machine
 * reads: versioned, with a checksum. *size becomes their number; with bytes NULL and capacity 0
 * only that.
 *
 *     bytes     NULL only with capacity = 0
 *     capacity  bytes; GSC_SAVED_SIZE_MAX always suffices
 */
GSC_API gsc_status gsc_state_save(const gsc_policy *policy, const gsc_state *state, void *bytes,
                                  uint64_t capacity, uint64_t *size, gsc_error *err);

/*
 * Reads what gsc_state_save wrote. Fields that the caller's *policy is too small for must be 0 in
 * the bytes.
 *
 *     policy  NULL: not wanted; else GSC_POLICY_INIT made it
 */
GSC_API gsc_status gsc_state_load(const void *bytes, uint64_t size, gsc_policy *policy,
                                  gsc_state *state, gsc_error *err);

/* ---- Ranks: all step, or none ---------------------------------------------------------------- */

/*
 * Ranks that hold parts or copies of one model each have a state, and it stays the same on all of
 * them. Each one writes its rank and a digest into the report of its own gradients, gathers those
 * of all in the order of the ranks, and merges them; a rank whose call failed does so with zeros,
 * `status` and `overflow`, instead of leaving the others to wait:
 *
 *     gsc_status status = gsc_unscale(NULL, &state.factor, gradients, gradients, n, &options, &report, &err);
 *     if (status != GSC_OK)
 *         report = (gsc_report){.status = status, .overflow = 1};
 *     gsc_report_set_rank(NULL, &report, &policy, &state, rank, &report, NULL);
 *     MPI_Allgather(&report, sizeof report, MPI_BYTE, all, sizeof report, MPI_BYTE, comm);
 *     if (gsc_report_merge(NULL, all, ranks, GSC_MERGE_SHARDS, &policy, &report, &err) != GSC_OK) ... all stop: err.message ...
 *     if (gsc_state_update(NULL, &policy, &state, &report, &state, &err) != GSC_OK) ... all stop: the call of one failed ...
 *     if (!state.skip) ... optimizer step ...
 *
 * Ranks that hold copies of the same gradients, as after an all-reduce, would count their norm once
 * for each rank: there rank 0 sends its report, and the others the report of an empty list
 * (gsc_measure with n = 0).
 *
 * A rank that loaded another checkpoint, missed a step or has other rules is found by the merge,
 * before anybody steps. After a merge that was refused nobody updates: the report is still that of
 * this rank alone.
 */

/*
 * A digest of all that decides later steps: rules, scales, counts, means; not of totals,
 * generations, events and init_scale. It is never 0, and the same on every device and in every
 * language; compare digests of one version of this library.
 *
 *     policy  NULL: of the state alone
 *     state   NULL: of the policy alone; one of both is there
 */
GSC_API gsc_status gsc_state_digest(const gsc_policy *policy, const gsc_state *state,
                                    uint64_t *digest, gsc_error *err);

/*
 * *out is the report with the rank that it is of and, as `digest`, what gsc_state_digest gives of
 * the policy and of the state that the step began with. *out may be *report.
 *
 *     policy  NULL: the digest is of the state alone
 *     state   NULL: the digest is of the policy alone; both NULL: only the rank is said, and digest
 *             is 0
 *     rank    from 0, below 2^32 - 1
 */
GSC_API gsc_status gsc_report_set_rank(const gsc_exec *exec, const gsc_report *report,
                                       const gsc_policy *policy, const gsc_state *state,
                                       uint32_t rank, gsc_report *out, gsc_error *err);

/* ---- Checkpoints and settings of frameworks -------------------------------------------------- */

/*
 * What a framework saves of its scaler, and how it is set up, are names with numbers: a list of
 * entries. The library reads those of every framework that it has a preset of, and writes a state
 * as a framework would, so that training goes on where it stopped, there or here:
 *
 *     gsc_entry entries[] = {{.key = "scale", .kind = GSC_ENTRY_NUMBER, .value = 2048.0},
 *                            {.key = "growth_interval", .kind = GSC_ENTRY_NUMBER, .value = 2000.0},
 *                            {.key = "_growth_tracker", .kind = GSC_ENTRY_NUMBER, .value = 3.0}};
 *     gsc_note notes[16];
 *     uint64_t count;
 *     if (gsc_state_import("torch", NULL, entries, 3, NULL, &policy, &state, notes, 16, &count, &err) != GSC_OK) ... err.message ...
 *     for (uint64_t i = 0; i < count && i < 16; i++)
 *         puts(notes[i].message);
 *
 * All of it is host memory. A call writes the entries and notes that there are, up to the capacity
 * of the list, and tells their number, which may be larger for notes.
 */

/*
 * entry.kind: what is at the key. All numbers are read alike; gsc_state_export says which ones a
 * loader expects.
 */
typedef uint32_t gsc_entry_kind;
#define GSC_ENTRY_UNUSED  0u /* no entry: it is passed over */
#define GSC_ENTRY_NUMBER  1u /* `value`, any number */
#define GSC_ENTRY_TEXT    2u /* `text` */
#define GSC_ENTRY_NULL    3u /* null, None, nil: switched off */
#define GSC_ENTRY_INTEGER 4u /* `integer`, and in `value` the same number, rounded */
#define GSC_ENTRY_BOOLEAN 5u /* 0 or 1, in `integer` and in `value` */

/* A key of a checkpoint or a configuration, and what is there. */
typedef struct gsc_entry {
    char key[160];        /* ends with a zero; nested keys are joined by dots, as in
                             "grad_scaler.scale" */
    gsc_entry_kind kind;  /* GSC_ENTRY_* */
    uint32_t flags;       /* 0 */
    double value;         /* the number */
    int64_t integer;      /* the number of an INTEGER or a BOOLEAN, exactly */
    char text[56];        /* the text, such as "dynamic"; ends with a zero */
    uint64_t reserved[2]; /* 0 */
} gsc_entry;

/* note.kind: what a call has to tell. */
typedef uint32_t gsc_note_kind;
#define GSC_NOTE_FORMAT              1u  /* the entries were recognised: `field` is the name of
                                            the format */
#define GSC_NOTE_MISSING             2u  /* the entries do not say `field`: `value` is that of
                                            the policy, or where a count starts */
#define GSC_NOTE_IGNORED             3u  /* the key of `entry` means nothing in this format */
#define GSC_NOTE_CHANGED             4u  /* `field` became `value`, which is what `entry` means
                                            to this policy */
#define GSC_NOTE_UNUSABLE            5u  /* the scale is 0 or infinity: no call multiplies by it;
                                            also of gsc_state_diagnose, with `value` the scale */
#define GSC_NOTE_LOST                6u  /* the format has no key for `field`, which is `value` */
#define GSC_NOTE_FAILURE             7u  /* diagnosis: a call failed on a device or on a rank,
                                            and nobody steps; `value` is its status */
#define GSC_NOTE_NOT_FINITE          8u  /* diagnosis: Inf or NaN that no scale cures; `value` is
                                            their number, 0 if not known, `entry` the first
                                            tensor that has some */
#define GSC_NOTE_BACKOFF_FAILED      9u  /* diagnosis: overflows cannot lower the scale, which is
                                            `value`; `entry` as above */
#define GSC_NOTE_OVERFLOWS_OFTEN     10u /* diagnosis: more steps overflowed than this policy
                                            causes by itself; `value` is their share, 0 to 1 */
#define GSC_NOTE_GUARD_SKIPS         11u /* diagnosis: the guard skipped more than half of the
                                            steps, or the last ones in a row; `value` is how many
                                            since the start */
#define GSC_NOTE_GUARD_IDLE          12u /* diagnosis: the guard judges no step of the planned
                                            ones: its warm-up is longer; `value` is its samples
                                            so far */
#define GSC_NOTE_UNDERFLOWS          13u /* diagnosis: gradients became zero; `value` is their
                                            share, 0 to 1, `entry` the tensor with the largest
                                            share */
#define GSC_NOTE_NEVER_GROWS         14u /* diagnosis: `value` steps are planned, fewer than a
                                            growth needs */
#define GSC_NOTE_CEILING_UNREACHABLE 15u /* diagnosis: the planned steps end before the scale can
                                            reach max_scale; `value` is the highest that it can
                                            reach */

/* Something that the caller may want to know of a call that succeeded. */
typedef struct gsc_note {
    gsc_note_kind kind;   /* GSC_NOTE_* */
    uint32_t flags;       /* 0 */
    int64_t entry;        /* index in the list that the call was given, entries or per_tensor,
                             from 0; -1: none */
    double value;         /* the number that counts from now on, or what `kind` says */
    char field[32];       /* field of the policy or the state, or empty; with FORMAT the name of
                             the format */
    char message[312];    /* a sentence, such as "growth_interval is not among the entries: it is
                             1000, as in the policy" */
    uint64_t reserved[2]; /* 0 */
} gsc_note;

/* Name of format `index`, from 0; most are those of presets. NULL past the last. */
GSC_API const char *gsc_format_name(uint32_t index);

/* Whose format `index` is and what it holds, in a sentence. NULL past the last. */
GSC_API const char *gsc_format_summary(uint32_t index);

/*
 * Reads a checkpoint. What is in out_policy, which GSC_POLICY_INIT made, is then `policy` with the
 * settings that are among the entries, and out_state goes on from the counts that are there. Both
 * policies may be one struct. Without `prefix` the scaler's keys stand at the top or below one or
 * two names, as in "scale", "scaler.scale" and "optimizer.grad_scaler.scale". If a scaler stands
 * only below more names, or several scalers are there, the call fails and names the prefixes.
 * Without `format` the keys tell the format. If several formats fit, they must read alike, else the
 * call fails and names them. Refused are a missing scale, and a value that cannot be a scale or a
 * count; the error names the key. What is not among the entries, has no place here, or means
 * something else to this policy, such as a count past its interval, is in the notes.
 *
 *     format          NULL: recognised by the keys
 *     prefix          what the keys begin with, up to a dot, such as "loss_scaler1"; "": nothing;
 *                     NULL: where a scaler is, at the top or below one or two names
 *     policy          NULL: the preset of the format
 *     notes           NULL only with notes_capacity = 0
 *     notes_capacity  notes that there is room for; further ones are only counted
 *     notes_count     number of notes; NULL: not wanted
 */
GSC_API gsc_status gsc_state_import(const char *format, const char *prefix,
                                    const gsc_entry *entries, uint64_t entries_count,
                                    const gsc_policy *policy, gsc_policy *out_policy,
                                    gsc_state *out_state, gsc_note *notes, uint64_t notes_capacity,
                                    uint64_t *notes_count, gsc_error *err);

/*
 * Writes a state, and of its policy the settings that belong to it, in the keys of a framework.
 * What they cannot hold is in the notes; all else comes back from gsc_state_import. A list with too
 * little room for the entries is refused; with a capacity of 0 the call only counts.
 *
 *     prefix            what the keys begin with; "": nothing; NULL: as the framework has it
 *     entries           NULL only with entries_capacity = 0
 *     entries_capacity  entries that there is room for
 *     entries_count     number of entries; NULL: not wanted
 *     notes             NULL only with notes_capacity = 0
 *     notes_capacity    notes that there is room for; further ones are only counted
 *     notes_count       number of notes; NULL: not wanted
 */
GSC_API gsc_status gsc_state_export(const char *format, const char *prefix,
                                    const gsc_policy *policy, const gsc_state *state,
                                    gsc_entry *entries, uint64_t entries_capacity,
                                    uint64_t *entries_count, gsc_note *notes,
                                    uint64_t notes_capacity, uint64_t *notes_count, gsc_error *err);

/*
 * Reads how a framework's scaler is set up: the arguments of its constructor or program, or its
 * part of a configuration. What is in out_policy, which GSC_POLICY_INIT made, is then `policy` with
 * these settings; both may be one struct. The fields of gsc_policy are read by their own names in
 * every format; `format` can also be the name of a preset of a guard, which has no other keys. If
 * DeepSpeed's section for bf16 is asked for, or is on while fp16 is not, the scale is 1 for good,
 * whatever `policy` starts with.
 *
 *     prefix          what the keys begin with, up to a dot, such as "fp16"; others are passed
 *                     over, but one that no key begins with is refused; NULL: nothing
 *     entries         NULL only with entries_count = 0
 *     policy          NULL: the preset of the format
 *     notes           NULL only with notes_capacity = 0
 *     notes_capacity  notes that there is room for; further ones are only counted
 *     notes_count     number of notes; NULL: not wanted
 */
GSC_API gsc_status gsc_policy_import(const char *format, const char *prefix,
                                     const gsc_entry *entries, uint64_t entries_count,
                                     const gsc_policy *policy, gsc_policy *out_policy,
                                     gsc_note *notes, uint64_t notes_capacity,
                                     uint64_t *notes_count, gsc_error *err);

/* ---- What a scaler did: for logs and for people ---------------------------------------------- */

/*
 * A line of a log for each step, with the same names in every language:
 *
 *     gsc_entry metrics[32];
 *     uint64_t count;
 *     if (gsc_state_metrics(&policy, &state, &report, metrics, 32, &count, &err) != GSC_OK) ... err.message ...
 *     for (uint64_t i = 0; i < count && i < 32; i++)
 *         if (metrics[i].kind != GSC_ENTRY_NULL)
 *             printf("%s=%.9g ", metrics[i].key, metrics[i].value);
 */

/*
 * What gsc_state_metrics gives, in this order, with these names in lower case as keys. Later
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
                                             it; NULL if some are not finite */
#define GSC_METRIC_ZERO_SHARE         5u  /* share of the gradients that became zero by
                                             unscaling, 0 to 1, if the report has it */
#define GSC_METRIC_TOTAL_OVERFLOWS    6u  /* overflows since the start */
#define GSC_METRIC_TOTAL_GUARD_SKIPS  7u  /* steps since the start that were skipped as outliers */
#define GSC_METRIC_TOTAL_GROWTHS      8u  /* growths since the start */
#define GSC_METRIC_TOTAL_BACKOFFS     9u  /* backoffs since the start */
#define GSC_METRIC_STEPS_SINCE_CHANGE 10u /* steps since the scale changed */
#define GSC_METRIC_NAN_COUNT          11u /* elements that are NaN, if there is a report */
#define GSC_METRIC_INF_COUNT          12u /* elements that are Inf, if there is a report */
#define GSC_METRIC_GUARD_THRESHOLD    13u /* threshold that the guard compared the norm with;
                                             NULL if it compared none */
#define GSC_METRIC_GUARD_MULTIPLIER   14u /* what the gradients are multiplied by: 1, less if
                                             clipped, 0 if skipped */

/*
 * Writes the state after an update, and the report of that update, as numbers with names: see
 * GSC_METRIC_*. That it is the report of that update is not checked. Counts are INTEGER, SKIP and
 * OVERFLOW BOOLEAN, and what is not known is NULL. All memory is host memory. The call writes as
 * many entries as there is room for, and tells how many there are.
 *
 *     report            NULL: metrics of a report are not known
 *     entries           NULL only with entries_capacity = 0
 *     entries_capacity  entries that there is room for; further ones are only counted
 *     entries_count     number of entries; NULL: not wanted
 */
GSC_API gsc_status gsc_state_metrics(const gsc_policy *policy, const gsc_state *state,
                                     const gsc_report *report, gsc_entry *entries,
                                     uint64_t entries_capacity, uint64_t *entries_count,
                                     gsc_error *err);

/*
 * Lists the faults of a run as notes, the most important first. Each message says what to do. A
 * count of 0 means that no fault was found. What the policy of a framework does by design is no
 * fault. All memory is host memory. A report with an error status is accepted. What counts as
 * often, or as most, may change with a version.
 *
 *     report            NULL: nothing is known of the last gradients
 *     per_tensor        NULL: only the first tensor that is not finite is named
 *     per_tensor_count  ignored if per_tensor is NULL
 *     steps             updates so far; 0: not known
 *     planned_steps     updates of the whole run; 0: not known
 *     notes             NULL only with notes_capacity = 0
 *     notes_capacity    notes that there is room for; further ones are only counted
 *     notes_count       number of notes; NULL: not wanted
 */
GSC_API gsc_status gsc_state_diagnose(const gsc_policy *policy, const gsc_state *state,
                                      const gsc_report *report, const gsc_report *per_tensor,
                                      uint64_t per_tensor_count, uint64_t steps,
                                      uint64_t planned_steps, gsc_note *notes,
                                      uint64_t notes_capacity, uint64_t *notes_count,
                                      gsc_error *err);

/* ---- Tensors --------------------------------------------------------------------------------- */

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
 * Name of a dtype, as NumPy and ml_dtypes spell it: "float32", "float8_e4m3fn", "cb16". NULL for a
 * number that is no dtype.
 */
GSC_API const char *gsc_dtype_name(gsc_dtype dtype);

/* Bits of one element; 0 for a number that is no dtype. */
GSC_API uint32_t gsc_dtype_bits(gsc_dtype dtype);

/*
 * Returns the bytes of one element; 0 for a number that is no dtype, and for a dtype that has
 * several elements in a byte.
 */
GSC_API uint32_t gsc_dtype_size(gsc_dtype dtype);

/*
 * Of options.histogram: word k counts magnitudes from 2^(4k-48) up to 2^(4k-44) after unscaling,
 * word 0 all smaller ones except zeros, word 15 all larger finite ones, word 16 the elements that
 * were counted: the first 4,096 of every 65,536 of a tensor, half as many of a complex one. The
 * call sets the words; add those of several calls to merge them.
 */
#define GSC_HISTOGRAM_LENGTH 17u /* words of a histogram */

/*
 * What a call on tensors measures beside overflow, where that goes, and whether it clamps. NULL and
 * GSC_TENSOR_OPTIONS_INIT: nothing more.
 */
typedef struct gsc_tensor_options {
    uint32_t struct_size;     /* set by the initialiser */
    gsc_want want;            /* GSC_WANT_* bits */
    const gsc_policy *policy; /* measures what this policy judges by, too, and report.overflow is
                                 its verdict; NULL: Inf and NaN are overflows */
    double clamp;             /* above 0: limits each output to the largest value of its dtype
                                 that is not above the clamp, which is refused if this value is
                                 0; the report is of the values before that. 0: no limit */
    gsc_report *per_tensor;   /* n reports: per_tensor[i] is of tensor i alone, and its overflow
                                 says whether that has an Inf or NaN; NULL: none */
    int64_t *histogram;       /* GSC_HISTOGRAM_LENGTH of them; NULL: none */
} gsc_tensor_options;

#define GSC_TENSOR_OPTIONS_SIZE 40u
#define GSC_TENSOR_OPTIONS_INIT {GSC_TENSOR_OPTIONS_SIZE, 0, NULL, 0.0, NULL, NULL}

/* ---- Calls on tensors ------------------------------------------------------------------------ */

/*
 * A call takes a whole list of mixed dtypes and sizes, in any layout that is dense. Input and
 * output of an entry have equal counts, and either the same address and element size (in place) or
 * no byte in common. No output may overlap another entry: only gsc_tensors_check_overlap checks
 * that. A complex tensor goes with a complex one only; each of its elements counts once, by its
 * larger part.
 *
 * Narrow types are widened exactly, multiplied in float (doubles, and all types where the factor is
 * no normal float, in double) and rounded to nearest even. NaN stays NaN; a multiplier of exactly 1
 * into the same dtype copies the bits. A finite value beyond the range of its output becomes Inf,
 * or NaN where there is no Inf, and counts as Inf. With a clamp both become the limit. An Inf of
 * the input still counts as Inf, and so does a product that is infinite before it is rounded to the
 * output. NaN stays NaN.
 *
 * A factor of NULL is 1: then gsc_scale and gsc_unscale are casts, and options.clamp makes them
 * saturate. Options and report may be NULL: nothing is wanted.
 */

/*
 * Reports on tensors * factor.inverse without writing it: what gsc_unscale in place would report.
 *
 *     factor   NULL: 1
 *     tensors  NULL only with n = 0
 *     options  NULL: nothing is wanted; its clamp must be 0
 */
GSC_API gsc_status gsc_measure(const gsc_exec *exec, const gsc_factor *factor,
                               const gsc_tensor *tensors, uint64_t n,
                               const gsc_tensor_options *options, gsc_report *report,
                               gsc_error *err);

/*
 * out = tensors * factor.inverse. Writes all elements, also when report->overflow is set. float16
 * gradients are best unscaled into float32: in place most of what scaling saved is lost again.
 *
 *     factor   NULL: 1
 *     tensors  NULL only with n = 0
 *     out      NULL only with n = 0
 *     options  NULL: nothing is wanted
 *     report   NULL: not wanted
 */
GSC_API gsc_status gsc_unscale(const gsc_exec *exec, const gsc_factor *factor,
                               const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n,
                               const gsc_tensor_options *options, gsc_report *report,
                               gsc_error *err);

/*
 * out = tensors * factor.scale: the loss, or what a backward pass starts from.
 *
 *     factor   NULL: 1
 *     tensors  NULL only with n = 0
 *     out      NULL only with n = 0
 *     options  NULL: nothing is wanted
 *     report   NULL: not wanted
 */
GSC_API gsc_status gsc_scale(const gsc_exec *exec, const gsc_factor *factor,
                             const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n,
                             const gsc_tensor_options *options, gsc_report *report, gsc_error *err);

/*
 * out += tensors * factor.inverse if every product is finite in the dtype of its output, else
 * nothing: a micro-batch that overflowed is left out, so divide the sums by the number of those
 * that were added. The report is of the products; whether the sums are finite shows when they are
 * unscaled or checked. Sums are made in the type that multiplies, or in double if `out` is double.
 * Reads `tensors` twice; `out` is other memory.
 *
 * A step of several micro-batches: merge their reports as addends, beginning with the merge of
 * none. Make a factor of the number of micro-batches that were added, and unscale the sums by it
 * with options.policy. Then update:
 * - Without an overflow in the merged report, update with the report of the sums, and leave the
 *   parameters alone if state.skip is 1.
 * - With one, update with the merged report, so that the scale backs off. state.skip is then 1
 *   because of the micro-batch that was left out: take the step of the others if the report of the
 *   sums has no overflow. A guard does not judge it.
 *
 *     factor   NULL: 1
 *     tensors  NULL only with n = 0
 *     out      NULL only with n = 0
 *     options  NULL: nothing is wanted; its clamp must be 0
 */
GSC_API gsc_status gsc_unscale_accumulate(const gsc_exec *exec, const gsc_factor *factor,
                                          const gsc_tensor *tensors, const gsc_tensor *out,
                                          uint64_t n, const gsc_tensor_options *options,
                                          gsc_report *report, gsc_error *err);

/*
 * Refuses lists in which an output shares memory with another output or with the input of another
 * entry. Call it with the lists of gsc_unscale, gsc_scale or gsc_unscale_accumulate. It compares
 * addresses and does not read the data, so the data can be on any device.
 *
 * This call does not compare an entry's input with its own output: those calls do.
 *
 * If it returns GSC_ERROR_OVERLAP, err->name is "tensors" or "out", err->index is the entry of that
 * list, and err->value is the index of the entry of `out` that overlaps it. Its time is O(n) if the
 * outputs are in the order of their addresses, else O(n log n).
 *
 *     tensors           NULL only with n = 0
 *     out               `tensors` itself for a call in place; NULL only with n = 0
 *     scratch           overwritten even if the call fails
 *     scratch_capacity  numbers that there is room for: 2 * n
 */
GSC_API gsc_status gsc_tensors_check_overlap(const gsc_tensor *tensors, const gsc_tensor *out,
                                             uint64_t n, uint64_t *scratch,
                                             uint64_t scratch_capacity, gsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
