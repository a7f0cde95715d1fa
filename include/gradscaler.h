/* SPDX-License-Identifier: MIT */
/* Generated from bindings/abi.toml by bindings/generate.py. Do not edit. */

/*
 * gradscaler: loss scaling for mixed-precision training.
 *
 * A training step in fp16 or bf16 multiplies its loss by a scale so that small gradients survive,
 * divides the gradients by it before the optimizer sees them, and when a gradient overflowed skips
 * the step and lowers the scale.
 *
 *     gsc_policy policy = GSC_POLICY_INIT;
 *     gsc_state state;
 *     gsc_report report;
 *     gsc_policy_preset("recommended", &policy, NULL);
 *     gsc_state_init(NULL, &policy, &state, NULL);
 *     for (;;) {
 *         ... gradients of loss * state.factor.scale ...
 *         gsc_unscale(NULL, &state.factor, gradients, gradients, count, 0, &report, NULL);
 *         if (!report.overflow) ... optimizer step ...
 *         gsc_update(NULL, &policy, &state, &report, &state, NULL);
 *     }
 *
 * Rules that hold for every function:
 * - Structs belong to the caller; nothing is kept after a call returns, but for a gsc_context.
 * - Functions return GSC_OK (0) or a negative GSC_ERROR_*. On an error nothing was written except
 *   *err, which, always last, may be NULL; gsc_exec has the exception, a launch that fails.
 * - A pointer may be NULL only where its function says so. Data pointers may have any alignment.
 * - Functions may be called from any thread at the same time, as long as no two calls write, or one
 *   writes and one reads, the same memory. Results hold in the default rounding mode. None prints,
 *   changes the floating-point environment, or allocates, but for gsc_context_create_*; the
 *   functions of the section Tensors need up to 120 KiB of stack.
 * - `on` says where the memory is: NULL is the calling thread and host memory.
 */
#ifndef GRADSCALER_H
#define GRADSCALER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GSC_API __attribute__((visibility("default")))
#else
#define GSC_API
#endif

#define GSC_VERSION_MAJOR 0
#define GSC_VERSION_MINOR 1
#define GSC_VERSION_PATCH 0
#define GSC_VERSION (GSC_VERSION_MAJOR << 16 | GSC_VERSION_MINOR << 8 | GSC_VERSION_PATCH)

/* ---- Status ---------------------------------------------------------------------------------- */

/* GSC_OK, or why a call did nothing. */
typedef int32_t gsc_status;

#define GSC_OK                0     /* done */
#define GSC_ERROR_NULL        (-1)  /* a pointer is NULL that may not be */
#define GSC_ERROR_STRUCT_SIZE (-2)  /* struct_size is not set or impossible, or fields of a newer version are set */
#define GSC_ERROR_PRESET      (-3)  /* no preset has this name */
#define GSC_ERROR_POLICY      (-4)  /* a field of the policy is out of range */
#define GSC_ERROR_STATE       (-5)  /* the state was not made by this library */
#define GSC_ERROR_REPORT      (-6)  /* the report failed, or lacks what the policy judges by */
#define GSC_ERROR_FACTOR      (-7)  /* a factor is zero, infinite or not a number */
#define GSC_ERROR_VALUE       (-8)  /* a number is out of range */
#define GSC_ERROR_DTYPE       (-9)  /* unknown dtype */
#define GSC_ERROR_COUNT       (-10) /* counts differ, or the byte size does not fit in 64 bits */
#define GSC_ERROR_OVERLAP     (-11) /* input and output overlap without being the same */
#define GSC_ERROR_WANT        (-12) /* unknown GSC_WANT_* bits */
#define GSC_ERROR_CAPACITY    (-13) /* the buffer is too small */
#define GSC_ERROR_CORRUPT     (-14) /* saved bytes are truncated, damaged or something else */
#define GSC_ERROR_VERSION     (-15) /* saved bytes need a newer version of the library */
#define GSC_ERROR_UNAVAILABLE (-16) /* this build or machine cannot do it */
#define GSC_ERROR_MEMORY      (-17) /* out of memory or threads */
#define GSC_ERROR_DEVICE      (-18) /* the CUDA driver failed, or the context is of another process */

/* What exactly was wrong. Written only when a call fails; pass NULL where the status is enough. */
typedef struct gsc_error {
    gsc_status status; /* what the call returned */
    int32_t argument;  /* position of the argument in the call, from 0; -1: none */
    int64_t index;     /* index of the tensor in its list; -1: no tensor */
    char name[48];     /* what was wrong, such as "policy.min_scale" or "out[3].count" */
    char message[192]; /* one sentence: what, and how to mend it */
} gsc_error;

/*
 * The meaning of a status in a few words; "unknown status" for a number that is none. Never NULL,
 * never freed.
 *
 * Threads: any, at the same time.
 */
GSC_API const char *gsc_status_string(gsc_status status);

/*
 * Version of the library that runs, as GSC_VERSION is that of this header.
 *
 * Threads: any, at the same time.
 */
GSC_API uint32_t gsc_version(void);

/* ---- Policy: the rules ----------------------------------------------------------------------- */

/*
 * A policy says when the scale grows, when it backs off and where it stops. Zero in a field
 * switches it off, so a policy of zeros is a scale of 1 that never moves. Start from a preset and
 * change what you need.
 */

/* growth_rule: when `good`, less growth_lag, makes a growth due. */
#define GSC_GROWTH_REACHED 0u /* at the interval or past it */
#define GSC_GROWTH_EXACT   1u /* at the interval only; a count already past it waits for an overflow */
#define GSC_GROWTH_EVERY   2u /* at each multiple; the count runs on over a growth */
#define GSC_GROWTH_STEPS   3u /* as REACHED, but counting `steps`, overflows included */

/* ceiling_rule, floor_rule: what a change does that would reach the limit. */
#define GSC_LIMIT_CLAMP  0u /* ends at the limit */
#define GSC_LIMIT_ALWAYS 1u /* as CLAMP, and every update enforces the limit */
#define GSC_LIMIT_KEEP   2u /* is dropped */
#define GSC_LIMIT_STOP   3u /* is dropped, with GSC_EVENT_STOPPED */

/* overflow_reset, bits: what sets the count of overflows to 0. */
#define GSC_RESET_ON_GROWTH    1u /* a growth */
#define GSC_RESET_ON_GOOD_STEP 2u /* a step without overflow */
#define GSC_RESET_ON_BACKOFF   4u /* a backoff */

/* arithmetic: the number format in which a new scale is computed. */
#define GSC_ARITHMETIC_F64       0u /* double */
#define GSC_ARITHMETIC_F32_ONCE  1u /* double product, rounded once to float */
#define GSC_ARITHMETIC_F32       2u /* factors rounded to float first, then a float operation */
#define GSC_ARITHMETIC_F32_FLUSH 3u /* as F32; a result below 2^-126 becomes 0 */

/* overflow_test: what of a report is an overflow. */
#define GSC_OVERFLOW_ELEMENT 0u /* an element that is not finite */
#define GSC_OVERFLOW_NORM    1u /* that, or a sum of squares above the largest float; needs GSC_WANT_NORM */

/* quirks, bits: what a peer does and no new policy should. */
#define GSC_QUIRK_TOLERATE_BELOW  1u /* a share equal to overflow_tolerance is not tolerated */
#define GSC_QUIRK_OVERFLOW_COUNTS 2u /* an overflow counts once more, as a good step */

/* The rules of one scaler. Initialise it, then fill it with gsc_policy_preset. */
typedef struct gsc_policy {
    uint32_t struct_size;      /* set by the initialiser */
    uint32_t arithmetic;       /* GSC_ARITHMETIC_* */
    double init_scale;         /* first scale; 0 is 1 */
    double growth_factor;      /* a growth multiplies by it; at least 1, 0 is 1 */
    double backoff_factor;     /* a backoff multiplies by it; in (0, 1]. 0: divides by
                                  growth_factor */
    uint64_t growth_interval;  /* good steps from one growth to the next; 0 never grows */
    uint32_t growth_rule;      /* GSC_GROWTH_* */
    uint32_t growth_lag;       /* steps a count needs beyond the interval */
    double max_scale;          /* ceiling; 0 is none (infinity) */
    double min_scale;          /* floor; 0 is none */
    uint32_t ceiling_rule;     /* GSC_LIMIT_* at max_scale; ALWAYS holds for the start, too */
    uint32_t floor_rule;       /* GSC_LIMIT_* at min_scale; the start itself is never raised */
    uint32_t overflow_test;    /* GSC_OVERFLOW_* */
    uint32_t hysteresis;       /* overflows, counted until overflow_reset, that make a backoff;
                                  the ones before are absorbed; 0 is 1 */
    uint32_t overflow_reset;   /* GSC_RESET_* bits: what refills the hysteresis */
    uint32_t apply_delay;      /* 1: a new scale is in force one update later */
    double overflow_tolerance; /* overflows, counted until overflow_reset, up to this share of
                                  the steps since the last change are absorbed; 0 to 1 */
    uint64_t stall_limit;      /* GSC_EVENT_STOPPED at this many overflows in a row that could
                                  not lower the scale; 0 never */
    uint32_t quirks;           /* GSC_QUIRK_* bits; 0 in any new policy */
    uint32_t reserved;         /* 0 */
    double target_amax;        /* not 0: the scale is predicted so that amax lands here, and
                                  nothing is counted; needs GSC_WANT_AMAX */
    double mean_decay;         /* decay of the running mean of log2(amax); 0 up to, not
                                  including, 1 */
    double variance_decay;     /* decay of its slower mean and of its square; likewise */
    double margin_sigmas;      /* standard deviations kept free above the mean */
    double overflow_log2;      /* the sample of log2(amax) that an overflow stands for */
} gsc_policy;

#define GSC_POLICY_SIZE 152u /* to the end of overflow_log2 */
#define GSC_POLICY_INIT \
    {GSC_POLICY_SIZE, 0, 0.0, 0.0, 0.0, 0, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0.0, \
     0.0, 0.0, 0.0, 0.0}

/*
 * What GSC_POLICY_INIT does, for languages without macros: zeros, and struct_size.
 *
 *     struct_size  bytes of *out
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_policy_init(uint32_t struct_size, gsc_policy *out, gsc_error *err);

/*
 * Fills *out with a named set of rules: "recommended" for new work, "none", "static", or the exact
 * rules of a framework, such as "torch" or "megatron" (gsc_preset_name lists them).
 * out->struct_size must be set; a struct of an older version that lacks a field the preset needs is
 * refused.
 *
 *     out  read and written
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_PRESET.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_policy_preset(const char *name, gsc_policy *out, gsc_error *err);

/*
 * Whether the policy can be used; the error names the field that cannot. Every call that takes a
 * policy checks it so.
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_policy_check(const gsc_policy *policy, gsc_error *err);

/*
 * Number of presets.
 *
 * Threads: any, at the same time.
 */
GSC_API uint32_t gsc_preset_count(void);

/*
 * Name of preset `index`, from 0; NULL past the last. Never freed.
 *
 * Threads: any, at the same time.
 */
GSC_API const char *gsc_preset_name(uint32_t index);

/*
 * What preset `index` does and where its rules come from, in a sentence; NULL past the last. Never
 * freed.
 *
 * Threads: any, at the same time.
 */
GSC_API const char *gsc_preset_summary(uint32_t index);

/* ---- Where a call runs ----------------------------------------------------------------------- */

/*
 * Threads or a CUDA device. Made by gsc_context_create_*; any number of calls may use it at a time.
 */
typedef struct gsc_context gsc_context;

/* One piece of a call's work. */
typedef void gsc_task(void *data, uint64_t index);

/*
 * The caller's thread pool: runs task(data, i) once for every i below count, in any order and on
 * any threads, and returns when all have returned. The tasks neither block nor call back, and need
 * up to 120 KiB of stack.
 */
typedef void gsc_parallel_for(void *pool, gsc_task *task, void *data, uint64_t count);

/*
 * Where the memory of a call is and what computes. Initialise with GSC_EXEC_INIT or gsc_exec_init.
 * A NULL gsc_exec, or one without context, is the calling thread and host memory. With a CUDA
 * context the data of tensors, factors, states, reports and the scale of gsc_set_scale are memory
 * of that device, while `on`, policies and the lists themselves are host memory that the call reads
 * before it returns; the call enqueues on `stream` and returns at once. Page-locked and managed
 * memory that the device sees does as well, but for the workspace; a pointer that it does not see
 * ends the process's use of CUDA when the kernel gets there. The workspace is in use until the
 * stream has done the call, or as long as a graph that captured it lives; calls in the order of one
 * stream may share one, of the largest size. A graph keeps policies, numbers and lists as they were
 * when it was captured.
 *
 * What is wrong in the memory of a device is found there: it is said in report.status or
 * state.status, and all else stays as it was, but for the events of an update, which then are
 * GSC_EVENT_SKIPPED; where a factor cannot be made, it is all zeros, which every call refuses; an
 * optimizer kernel that reads it in place must skip its step then, as it does at found_inf. A call
 * without a report has no place to say it: gsc_scale by such a factor leaves `out` as it was, and
 * the report of unscaling by the same factor has the error. The same call on the host, with copies
 * of these structs, says in a sentence what is wrong. A predictive policy needs the host.
 *
 * Pointers into the memory of a device, but for the data of tensors, must be multiples of 8. When
 * the driver refuses a launch (GSC_ERROR_DEVICE, GSC_ERROR_MEMORY), those before it are under way:
 * a part of a long list may be done.
 */
typedef struct gsc_exec {
    uint32_t struct_size;    /* set by the initialiser */
    uint32_t reserved;       /* 0 */
    gsc_context *context;    /* NULL: the calling thread */
    void *stream;            /* CUstream of that device's primary context; NULL is the legacy
                                default stream in any code, 2 that of the thread. Without a CUDA
                                context NULL */
    void *workspace;         /* scratch of a CUDA context, a multiple of 8; otherwise ignored */
    uint64_t workspace_size; /* its bytes; gsc_workspace_size says how many are needed */
} gsc_exec;

#define GSC_EXEC_SIZE 40u /* to the end of workspace_size */
#define GSC_EXEC_INIT \
    {GSC_EXEC_SIZE, 0, 0, 0, 0, 0}

/*
 * What GSC_EXEC_INIT does, for languages without macros.
 *
 *     struct_size  bytes of *out
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_exec_init(uint32_t struct_size, gsc_exec *out, gsc_error *err);

/*
 * A context that shares the work of a call among `threads` threads, the calling one included:
 * through the caller's pool, or threads of its own that sleep between calls and are made anew in a
 * forked process. The results have the same bits as with one thread. Lists below 4 MiB stay on the
 * calling thread, as does a call while another one has the context's own threads. More than 64
 * threads share no better.
 *
 *     threads       1 to 1,024
 *     parallel_for  NULL: the context makes threads - 1 of its own
 *     pool          NULL: handed to parallel_for as it is; without one, it must be NULL
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_VALUE, GSC_ERROR_MEMORY.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_context_create_cpu(uint32_t threads, gsc_parallel_for *parallel_for,
                                          void *pool, gsc_context **out, gsc_error *err);

/*
 * A context on a CUDA device, through the driver that is found at run time. Where there is none, or
 * it cannot be used, the answer is GSC_ERROR_UNAVAILABLE and gsc_info.cuda says why. The context is
 * the device's primary one, which frameworks share; the caller's current context stays as it was.
 * It needs compute capability 7.0 and a driver of CUDA 11.0. It loads the kernels, which takes
 * seconds the first time on a machine, as the driver compiles them then, and keeps them for later
 * processes if its cache, ~/.nv/ComputeCache, can be written: make one per device, not one per
 * call. Not in a process that was forked after CUDA was used: there it has ceased to work.
 * cudaDeviceReset ends it, too: destroy it before.
 *
 *     device  CUDA ordinal
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_VALUE, GSC_ERROR_UNAVAILABLE, GSC_ERROR_DEVICE,
 *   GSC_ERROR_MEMORY.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_context_create_cuda(int32_t device, gsc_context **out, gsc_error *err);

/*
 * Frees a context that neither a call, on a stream or in progress, nor a CUDA graph that captured
 * one uses any more.
 *
 *     context  NULL: does nothing
 *
 * Threads: any, at the same time.
 */
GSC_API void gsc_context_destroy(gsc_context *context);

/*
 * Loads what calls on `on` still lack, so that none of them is slow the first time or breaks a
 * stream capture; a CUDA context has loaded all when it was made.
 *
 * Errors: GSC_ERROR_STRUCT_SIZE, GSC_ERROR_VALUE, GSC_ERROR_DEVICE.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_prepare(const gsc_exec *on, gsc_error *err);

/* What runs here. The strings belong to the library and are never freed. */
typedef struct gsc_info {
    uint32_t struct_size;      /* set by the initialiser */
    uint32_t version;          /* as gsc_version */
    const char *cpu;           /* instruction set in use: "scalar", "avx2", "avx512" or "neon";
                                  GSC_CPU in the environment chooses */
    const char *cpu_available; /* those that this machine can run, separated by spaces */
    const char *cpu_note;      /* empty, or why GSC_CPU was not followed */
    const char *cuda;          /* "available", or why there is no CUDA, or which device refused
                                  the kernels first; finding out starts the driver, which a
                                  process forked later cannot use */
} gsc_info;

#define GSC_INFO_SIZE 40u /* to the end of cuda */
#define GSC_INFO_INIT \
    {GSC_INFO_SIZE, 0, 0, 0, 0, 0}

/*
 * What GSC_INFO_INIT does, for languages without macros.
 *
 *     struct_size  bytes of *out
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_info_init(uint32_t struct_size, gsc_info *out, gsc_error *err);

/*
 * Fills *out, whose struct_size must be set.
 *
 *     out  read and written
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_get_info(gsc_info *out, gsc_error *err);

/* ---- Factor: what one loss was multiplied by ------------------------------------------------- */

/*
 * The gradients of a loss are unscaled by the factor that the loss was scaled by, whatever update
 * ran in between. Where gradients arrive late (pipelines, an optimizer thread, offloading), copy
 * state.factor when the loss is scaled and keep it with them.
 */

/*
 * A snapshot of a scale. Copy it freely, to device memory too; fused optimizers read the float
 * members in place, of a state before its update, which overwrites them.
 */
typedef struct gsc_factor {
    double scale;      /* the loss is multiplied by this */
    double inverse;    /* the gradients are multiplied by this */
    float scale_f32;   /* scale, rounded */
    float inverse_f32; /* inverse, rounded */
    uint64_t serial;   /* updates and gsc_set_scale calls that led to it */
} gsc_factor;

/*
 * The factor of a given scale, with serial 0.
 *
 *     scale  finite, above 0, as its inverse must be
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_VALUE.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_factor_init(double scale, gsc_factor *out, gsc_error *err);

/*
 * *out is *factor with its scale multiplied by `by` and its inverse divided by it. The mean over k
 * micro-batches, or ranks, whose gradients were added, is what unscaling by k times the factor
 * gives. *out may be *factor.
 *
 *     by  finite, above 0
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_VALUE,
 *   GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
 * Threads: any, at the same time; may be captured in a CUDA graph.
 */
GSC_API gsc_status gsc_factor_multiply(const gsc_exec *on, const gsc_factor *factor, double by,
                                       gsc_factor *out, gsc_error *err);

/* ---- Report: what the gradients were like ---------------------------------------------------- */

/* Bits: what a report is to hold beside found_inf. What is not wanted costs nothing. */
#define GSC_WANT_COUNTS    1u  /* nan_count, inf_count */
#define GSC_WANT_FIRST_BAD 2u  /* first_bad */
#define GSC_WANT_NORM      4u  /* sum_squares */
#define GSC_WANT_AMAX      8u  /* amax */
#define GSC_WANT_UNDERFLOW 16u /* zeros_made, subnormals_made */
#define GSC_WANT_HISTOGRAM 32u /* histogram, of a sample: the first 4,096 of every 65,536 elements of a tensor, of complex ones half as many */

/*
 * Overwritten by the call that fills it. All zeros is the report of an empty list, and adds nothing
 * in a merge. The members stand in groups of 64-bit words that one collective each can reduce over
 * ranks that hold different gradients and want the same: words 0-3 as int64 MAX, 4-7 as int64 MIN,
 * 8-9 as double SUM, 10-31 as int64 SUM. gsc_merge does the same for two reports. A rank whose call
 * failed contributes zeros, the error in `status`, and overflow and found_inf of 1, which is also
 * what a device writes: nothing was unscaled, so nobody is to step. The update is then refused
 * everywhere.
 */
typedef struct gsc_report {
    float found_inf;            /* 1 if an element is Inf or NaN, or became so by unscaling, or
                                   the call failed; else 0 */
    int32_t overflow;           /* the same as an integer */
    double amax;                /* largest finite magnitude after unscaling, before rounding to
                                   the output's dtype; of a complex value its larger part */
    uint32_t absent;            /* GSC_WANT_* bits that were not asked for */
    uint32_t max_reserved[3];   /* 0 */
    int64_t first_bad;          /* 0: none, else GSC_BAD_TENSOR and GSC_BAD_ELEMENT of it say
                                   where */
    int64_t status;             /* GSC_OK, or the GSC_ERROR_* of a device or rank that failed */
    int64_t min_reserved[2];    /* 0 */
    double sum_squares;         /* of the finite elements after unscaling; its root is the global
                                   norm */
    double sum_reserved;        /* 0 */
    int64_t elements;           /* elements seen */
    int64_t nan_count;          /* elements that are NaN */
    int64_t inf_count;          /* elements that are Inf, or became so by unscaling */
    int64_t zeros_made;         /* outputs that are zero while their input was not */
    int64_t subnormals_made;    /* outputs that are subnormal while their input was not */
    int64_t histogram_elements; /* elements that the histogram looked at */
    int64_t histogram[16];      /* of them by magnitude after unscaling: [k] those from 2^(4k-48)
                                   up to 2^(4k-44); [0] all smaller ones but zeros, [15] all
                                   finite larger ones */
} gsc_report;

/*
 * Where report.first_bad points; a tensor past 2^23 - 2 or an element past 2^40 - 2 is given as
 * that limit.
 */
#define GSC_BAD_TENSOR(first_bad)  ((int64_t)((uint64_t)(first_bad) >> 40 & 0x7FFFFF)) /* index in the list */
#define GSC_BAD_ELEMENT(first_bad) ((int64_t)((uint64_t)(first_bad) & 0xFFFFFFFFFF))   /* index in the tensor */

/*
 * One report of two: of micro-batches, of optimizers that share a scale, of ranks. *out may be *a
 * or *b. It lacks what one of both lacks: ask for the same. first_bad is the earlier one, so it
 * points into the right list only when both reports are of the same list.
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_VALUE, GSC_ERROR_MEMORY,
 *   GSC_ERROR_DEVICE.
 * Threads: any, at the same time; may be captured in a CUDA graph.
 */
GSC_API gsc_status gsc_merge(const gsc_exec *on, const gsc_report *a, const gsc_report *b,
                             gsc_report *out, gsc_error *err);

/* ---- State: the scale and its counts --------------------------------------------------------- */

/* Bits of state.events: what the last update did. */
#define GSC_EVENT_GREW       1u   /* the scale became larger */
#define GSC_EVENT_BACKED_OFF 2u   /* the scale became smaller */
#define GSC_EVENT_SKIPPED    4u   /* an overflow, or an update that a device refused: leave the parameters alone */
#define GSC_EVENT_ABSORBED   8u   /* the overflow was absorbed by hysteresis or tolerance */
#define GSC_EVENT_AT_CEILING 16u  /* max_scale held a growth */
#define GSC_EVENT_AT_FLOOR   32u  /* min_scale held a backoff */
#define GSC_EVENT_STALLED    64u  /* the overflow could not lower the scale */
#define GSC_EVENT_STOPPED    128u /* the policy gives up: training on would only skip */

/*
 * One scaler. A value without pointers: copy it, store it, send it. Made by gsc_state_init; the
 * fields are for reading.
 */
typedef struct gsc_state {
    gsc_factor factor;     /* the scale in force */
    gsc_factor next;       /* the newest scale; another one only with apply_delay: what the next
                              loss is scaled by while the update for this one is still under way */
    double mean;           /* predictive policies: running mean of log2(amax) */
    double slow_mean;      /* with variance_decay */
    double mean_square;    /* of its square */
    double mean_start;     /* weight of the zero that mean began with */
    double slow_start;     /* likewise of slow_mean */
    int64_t good;          /* good steps since the last overflow or, but for GSC_GROWTH_EVERY,
                              growth */
    int64_t steps;         /* all steps since the last change */
    int64_t overflows;     /* overflows not reset yet */
    int64_t stalled;       /* overflows in a row that could not lower the scale */
    uint32_t events;       /* GSC_EVENT_* of the last update */
    gsc_status status;     /* GSC_OK, or the error of the last update on a device; the next good
                              one clears it */
    int64_t skipped;       /* overflows since the start */
    int64_t growths;       /* updates since the start that made the scale larger */
    int64_t backoffs;      /* updates since the start that made it smaller */
    uint64_t reserved[11]; /* 0 */
} gsc_state;

/*
 * The state before the first step.
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_VALUE,
 *   GSC_ERROR_UNAVAILABLE, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
 * Threads: any, at the same time; may be captured in a CUDA graph.
 */
GSC_API gsc_status gsc_state_init(const gsc_exec *on, const gsc_policy *policy, gsc_state *out,
                                  gsc_error *err);

/*
 * One step of the policy: *out is the state after the gradients of one optimizer step, whose report
 * is merged over all of them. *out may be *state. What happened is out->events. An overflow is not
 * an error.
 *
 * A report that lacks what the policy judges by (GSC_OVERFLOW_NORM, target_amax) is refused. A
 * predictive policy takes a report with amax 0 and no overflow as no sample: the scale stays.
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
 *   GSC_ERROR_REPORT, GSC_ERROR_VALUE, GSC_ERROR_UNAVAILABLE, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
 * Threads: any, at the same time; may be captured in a CUDA graph.
 */
GSC_API gsc_status gsc_update(const gsc_exec *on, const gsc_policy *policy, const gsc_state *state,
                              const gsc_report *report, gsc_state *out, gsc_error *err);

/*
 * *out is the state with another scale in force at once; the counts start anew, the totals stay.
 * *out may be *state.
 *
 *     scale  one value, above 0
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
 *   GSC_ERROR_VALUE, GSC_ERROR_UNAVAILABLE, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
 * Threads: any, at the same time; may be captured in a CUDA graph.
 */
GSC_API gsc_status gsc_set_scale(const gsc_exec *on, const gsc_policy *policy,
                                 const gsc_state *state, const double *scale, gsc_state *out,
                                 gsc_error *err);

/*
 * Writes policy and state as bytes that any later version on any machine reads: little-endian,
 * versioned, with a checksum. *size becomes the number of bytes needed or written; with bytes NULL
 * and capacity 0 only that. GSC_SAVED_SIZE always suffices. The state must be host memory.
 *
 *     bytes     NULL: with capacity 0: only the size
 *     capacity  bytes
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
 *   GSC_ERROR_CAPACITY.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_state_save(const gsc_policy *policy, const gsc_state *state, void *bytes,
                                  uint64_t capacity, uint64_t *size, gsc_error *err);

/*
 * Reads what gsc_state_save wrote. policy->struct_size must be set; fields that its struct lacks
 * must be 0 in the bytes.
 *
 *     size    bytes
 *     policy  NULL: the saved policy is not wanted; read and written
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_POLICY, GSC_ERROR_STATE,
 *   GSC_ERROR_CORRUPT, GSC_ERROR_VERSION.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_state_load(const void *bytes, uint64_t size, gsc_policy *policy,
                                  gsc_state *state, gsc_error *err);

#define GSC_SAVED_SIZE 1024ull /* bytes that hold any saved state of this major version */

/* ---- Tensors --------------------------------------------------------------------------------- */

/*
 * A call takes a whole list, of mixed dtypes and sizes, in any layout that is dense: elements are
 * independent. In each pair of entries, input and output have equal counts, and either the same
 * address and element size (in place) or no byte in common; outputs do not overlap other entries,
 * which is not checked. A count of 0 is legal, with a NULL data pointer too.
 *
 * Values are multiplied in float, doubles in double; where the factor is no normal float, all in
 * double. Narrow types are widened exactly and rounded to nearest even; NaN stays NaN; a multiplier
 * of exactly 1 into the same dtype copies the bits. A finite value beyond the range of its output
 * becomes Inf, in F8_E4M3FN, which has none, NaN; it counts as Inf. A complex value goes with
 * complex ones only; it is two real ones, but counts once, as its larger part does.
 */

/* dtype of a tensor. */
#define GSC_F32        1u /* IEEE binary32 */
#define GSC_F64        2u /* IEEE binary64 */
#define GSC_F16        3u /* IEEE binary16 */
#define GSC_BF16       4u /* bfloat16: the upper half of a binary32 */
#define GSC_F8_E4M3FN  5u /* 4 bits of exponent, 3 of mantissa, bias 7, no Inf; up to 448 (OCP FP8) */
#define GSC_F8_E5M2    6u /* 5 bits of exponent, 2 of mantissa, bias 15; the upper half of a binary16 (OCP FP8) */
#define GSC_CB16       7u /* Cerebras' 16 bits: 6 of exponent, 9 of mantissa, bias 42 */
#define GSC_COMPLEX64  8u /* two binary32: real, imaginary */
#define GSC_COMPLEX128 9u /* two binary64 */

/* A run of elements. An input is only read, although `data` is not const. */
typedef struct gsc_tensor {
    void *data;        /* first element, any alignment */
    uint64_t count;    /* elements */
    uint32_t dtype;    /* GSC_F32 ... */
    uint32_t reserved; /* 0 */
} gsc_tensor;

/*
 * Bytes of one element of a dtype; 0 for a number that is none.
 *
 * Threads: any, at the same time.
 */
GSC_API uint32_t gsc_dtype_size(uint32_t dtype);

/*
 * out = tensors * factor.scale: the loss, or the gradient that a backward pass starts from. No
 * check: what overflows here is found when the gradients are unscaled. `out` may be `tensors`.
 * Without factor it is a cast; gsc_clip_value casts with saturation.
 *
 *     factor   NULL: 1: a cast, or a copy
 *     tensors  NULL only with n = 0
 *     out      NULL only with n = 0
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_DTYPE,
 *   GSC_ERROR_COUNT, GSC_ERROR_OVERLAP, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY, GSC_ERROR_MEMORY,
 *   GSC_ERROR_DEVICE.
 * Threads: any, at the same time; the time grows with the bytes of the tensors; may be captured in
 * a CUDA graph.
 */
GSC_API gsc_status gsc_scale(const gsc_exec *on, const gsc_factor *factor,
                             const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n,
                             gsc_error *err);

/*
 * Reports on tensors * factor.inverse without writing it: what gsc_unscale in place would report.
 *
 *     factor   NULL: 1
 *     tensors  NULL only with n = 0
 *     want     GSC_WANT_* bits
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_DTYPE,
 *   GSC_ERROR_COUNT, GSC_ERROR_WANT, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY, GSC_ERROR_MEMORY,
 *   GSC_ERROR_DEVICE.
 * Threads: any, at the same time; the time grows with the bytes of the tensors; may be captured in
 * a CUDA graph.
 */
GSC_API gsc_status gsc_check(const gsc_exec *on, const gsc_factor *factor,
                             const gsc_tensor *tensors, uint64_t n, uint32_t want,
                             gsc_report *report, gsc_error *err);

/*
 * out = tensors * factor.inverse, in one pass with the check and whatever `want` asks for. `out`
 * may be `tensors`. All elements are written, also when report->overflow says not to use them.
 * float16 gradients are best unscaled into float32: in place most of what scaling saved is lost
 * again.
 *
 *     factor   NULL: 1
 *     tensors  NULL only with n = 0
 *     out      NULL only with n = 0
 *     want     GSC_WANT_* bits
 *     report   NULL: not wanted
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_DTYPE,
 *   GSC_ERROR_COUNT, GSC_ERROR_OVERLAP, GSC_ERROR_WANT, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY,
 *   GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
 * Threads: any, at the same time; the time grows with the bytes of the tensors; may be captured in
 * a CUDA graph.
 */
GSC_API gsc_status gsc_unscale(const gsc_exec *on, const gsc_factor *factor,
                               const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n,
                               uint32_t want, gsc_report *report, gsc_error *err);

/*
 * gsc_unscale with each product clamped to [-limit, limit] before it is rounded to its output, in
 * the same pass: what torch.nn.utils.clip_grad_value_ does after unscaling. The report is of the
 * products before they are clamped, so that an overflow is not hidden: Inf is clamped and counted,
 * NaN stays. A finite product is never bad, however narrow its output: with the largest value of a
 * dtype as limit this is a cast with saturation. Both parts of a complex value are clamped.
 *
 *     factor   NULL: 1
 *     limit    finite, above 0; rounded to the type that multiplies: past the largest float it clamps doubles only, below the smallest it is 0
 *     tensors  NULL only with n = 0
 *     out      NULL only with n = 0
 *     want     GSC_WANT_* bits
 *     report   NULL: not wanted
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_DTYPE,
 *   GSC_ERROR_COUNT, GSC_ERROR_OVERLAP, GSC_ERROR_WANT, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY,
 *   GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
 * Threads: any, at the same time; the time grows with the bytes of the tensors; may be captured in
 * a CUDA graph.
 */
GSC_API gsc_status gsc_clip_value(const gsc_exec *on, const gsc_factor *factor, double limit,
                                  const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n,
                                  uint32_t want, gsc_report *report, gsc_error *err);

/*
 * out += tensors * factor.inverse if every product is finite in the dtype of its output, else
 * nothing at all: a micro-batch that overflowed adds nothing to the good ones. The sums are made in
 * the type that multiplies, or in double if `out` is double, and rounded to `out`; that they are
 * finite is for the unscaling or check of the accumulated gradients to find. The report is of the
 * products. Reads the list twice. `out` and `tensors` have no byte in common.
 *
 *     factor   NULL: 1
 *     tensors  NULL only with n = 0
 *     out      NULL only with n = 0; read and written
 *     want     GSC_WANT_* bits
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_FACTOR, GSC_ERROR_DTYPE,
 *   GSC_ERROR_COUNT, GSC_ERROR_OVERLAP, GSC_ERROR_WANT, GSC_ERROR_VALUE, GSC_ERROR_CAPACITY,
 *   GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
 * Threads: any, at the same time; the time grows with the bytes of the tensors; may be captured in
 * a CUDA graph.
 */
GSC_API gsc_status gsc_accumulate(const gsc_exec *on, const gsc_factor *factor,
                                  const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n,
                                  uint32_t want, gsc_report *report, gsc_error *err);

/*
 * *out is *factor with its inverse multiplied by min(1, max_norm / (norm + 1e-6)), the clip
 * coefficient of torch.nn.utils.clip_grad_norm_, where norm is the root of report->sum_squares.
 * After gsc_check, unscaling by *out unscales and clips in one pass; after gsc_unscale, pass factor
 * NULL and multiply by out->inverse, or hand it to the optimizer.
 *
 *     report    with GSC_WANT_NORM
 *     factor    NULL: 1
 *     max_norm  finite, above 0
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_REPORT, GSC_ERROR_FACTOR,
 *   GSC_ERROR_VALUE, GSC_ERROR_MEMORY, GSC_ERROR_DEVICE.
 * Threads: any, at the same time; may be captured in a CUDA graph.
 */
GSC_API gsc_status gsc_clip_factor(const gsc_exec *on, const gsc_report *report,
                                   const gsc_factor *factor, double max_norm, gsc_factor *out,
                                   gsc_error *err);

/*
 * Bytes of gsc_exec.workspace that a call over this list needs: 0 on the CPU, and where there is no
 * list. It depends on counts and dtypes, not on data; gsc_accumulate needs it for `tensors`.
 *
 *     tensors  NULL only with n = 0
 *     want     GSC_WANT_* bits
 *
 * Errors: GSC_ERROR_NULL, GSC_ERROR_STRUCT_SIZE, GSC_ERROR_DTYPE, GSC_ERROR_COUNT, GSC_ERROR_WANT,
 *   GSC_ERROR_VALUE, GSC_ERROR_DEVICE.
 * Threads: any, at the same time.
 */
GSC_API gsc_status gsc_workspace_size(const gsc_exec *on, const gsc_tensor *tensors, uint64_t n,
                                      uint32_t want, uint64_t *size, gsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
