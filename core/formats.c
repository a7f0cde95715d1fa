/* SPDX-License-Identifier: MIT */
/*
 * Reads and writes checkpoints and settings of frameworks. A framework is a row of `formats` and a
 * table of keys. A row of the table maps a key to a field; if the number at the key is not the
 * field's value, a conversion says how to compute it.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"
#include "step.h"

/* A policy and a state, to read into and to write from. */
struct scaler {
    gsc_policy policy;
    gsc_state state;
};

enum type { F64, U32, U64, I64 };

/* The fields by name. The state's scales have the names that users of entries know. */
#define FOR_POLICY(X)                                                                              \
    X(init_scale, F64)                                                                             \
    X(growth_factor, F64)                                                                          \
    X(backoff_factor, F64)                                                                         \
    X(growth_interval, U64)                                                                        \
    X(growth_rule, U32)                                                                            \
    X(growth_extra_steps, U32)                                                                     \
    X(max_scale, F64)                                                                              \
    X(min_scale, F64)                                                                              \
    X(ceiling_rule, U32)                                                                           \
    X(floor_rule, U32)                                                                             \
    X(overflow_test, U32)                                                                          \
    X(hysteresis, U32)                                                                             \
    X(overflow_reset, U32)                                                                         \
    X(apply_delay, U32)                                                                            \
    X(overflow_tolerance, F64)                                                                     \
    X(max_failed_backoffs, U64)                                                                    \
    X(quirks, U32)                                                                                 \
    X(arithmetic, U32)                                                                             \
    X(bad_loss_rule, U32)                                                                          \
    X(guard_norm, F64)                                                                             \
    X(guard_ratio, F64)                                                                            \
    X(guard_sigmas, F64)                                                                           \
    X(guard_decay, F64)                                                                            \
    X(guard_init_mean, F64)                                                                        \
    X(guard_warmup, U64)                                                                           \
    X(guard_max_in_a_row, U64)                                                                     \
    X(guard_sample, U32)                                                                           \
    X(guard_flags, U32)
#define FOR_STATE(X)                                                                               \
    X(scale, factor.scale, F64)                                                                    \
    X(next_scale, next.scale, F64)                                                                 \
    X(good_steps, good_steps, I64)                                                                 \
    X(steps_since_change, steps_since_change, I64)                                                 \
    X(overflows_since_reset, overflows_since_reset, I64)                                           \
    X(failed_backoffs, failed_backoffs, I64)                                                       \
    X(bad_losses_in_a_row, bad_losses_in_a_row, I64)                                               \
    X(total_updates, total_updates, I64)                                                           \
    X(total_overflows, total_overflows, I64)                                                       \
    X(total_bad_losses, total_bad_losses, I64)                                                     \
    X(total_growths, total_growths, I64)                                                           \
    X(total_backoffs, total_backoffs, I64)                                                         \
    X(guard_mean, guard_mean, F64)                                                                 \
    X(guard_variance, guard_variance, F64)                                                         \
    X(guard_count, guard_count, I64)                                                               \
    X(guard_in_a_row, guard_in_a_row, I64)                                                         \
    X(total_guard_skips, total_guard_skips, I64)                                                   \
    X(total_guard_clips, total_guard_clips, I64)                                                   \
    X(nans_in_a_row, nans_in_a_row, I64)                                                           \
    X(empty_in_a_row, empty_in_a_row, I64)                                                         \
    X(updates_at_growth, updates_at_growth, I64)                                                   \
    X(overflows_at_growth, overflows_at_growth, I64)                                               \
    X(guard_multiplier, guard_multiplier, F64)                                                     \
    X(guard_threshold, guard_threshold, F64)                                                       \
    X(guard_value, guard_value, F64)                                                               \
    X(generation, factor.generation, U64)                                                          \
    X(next_generation, next.generation, U64)                                                       \
    X(events, events, U32)

enum field {
#define X(name, type) name,
    FOR_POLICY(X)
#undef X
#define X(name, member, type) name,
        FOR_STATE(X)
#undef X
            FIELDS,
    POLICY_FIELDS = scale,
};

static const struct {
    const char *name;
    enum type type;
    size_t offset;
} fields[FIELDS] = {
#define X(name, type) {#name, type, offsetof(struct scaler, policy.name)},
    FOR_POLICY(X)
#undef X
#define X(name, member, type) {#name, type, offsetof(struct scaler, state.member)},
        FOR_STATE(X)
#undef X
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

typedef struct row {
    const char *key; /* NULL: the end */
    enum field field;
    enum conversion as;
    unsigned where;
} row;

/* The rows are read in order: a conversion can use the rows before it. */
/* clang-format off */
static const row ours[] = {
#define X(name, type) {#name, name, PLAIN, BOTH},
#define Y(name, member, type) {#name, name, PLAIN, SAVED},
    FOR_STATE(Y)
    FOR_POLICY(X)
#undef X
#undef Y
    {0},
};

/* Keys that settings of every framework can have, besides the names of the fields. */
static const row common[] = {
    {"hysteresis_refill", overflow_reset,      REFILL, SET},
    {"raise_at_min",      max_failed_backoffs, SWITCH, SET},
    {0},
};

static const row torch[] = {
    {"scale",           scale,           PLAIN, SAVED},
    {"growth_factor",   growth_factor,   PLAIN, BOTH},
    {"backoff_factor",  backoff_factor,  PLAIN, BOTH},
    {"growth_interval", growth_interval, PLAIN, BOTH},
    {"_growth_tracker", good_steps,      PLAIN, SAVED},
    {"init_scale",      init_scale,      PLAIN, SET},
    {"enabled",         init_scale,      IS_ON, SET},
    {0},
};

static const row oneflow[] = {
    {"init_scale",      init_scale,      PLAIN,     SET},
    {"growth_factor",   growth_factor,   BOTH_WAYS, SET},
    {"growth_interval", growth_interval, PLAIN,     SET},
    {0},
};

/* NeMo's loader reads the tracker from a misspelt key, which NeMo does not save. */
static const row nemo[] = {
    {"scale",               scale,                 PLAIN,     SAVED},
    {"growth_factor",       growth_factor,         PLAIN,     BOTH},
    {"backoff_factor",      backoff_factor,        PLAIN,     BOTH},
    {"growth_interval",     growth_interval,       PLAIN,     BOTH},
    {"_growth_tracker",     good_steps,            PLAIN,     SAVED},
    {"hysteresis",          hysteresis,            PLAIN,     SET},
    {"_hysterisis_tracker", overflows_since_reset, REMAINING, SAVED},
    {"_hysteresis_tracker", overflows_since_reset, REMAINING, SAVED},
    {"init_scale",          init_scale,            PLAIN,     SET},
    {"enabled",             init_scale,            IS_ON,     SET},
    {0},
};

static const row apex[] = {
    {"loss_scale",     scale,           PLAIN,       SAVED},
    {"unskipped",      good_steps,      PLAIN,       SAVED},
    {"init_scale",     init_scale,      PLAIN,       SET},
    {"scale_window",   growth_interval, PLAIN,       SET},
    {"min_loss_scale", min_scale,       PLAIN,       SET},
    {"max_loss_scale", max_scale,       PLAIN,       SET},
    {"loss_scale",     init_scale,      FIXED_SCALE, SET},
    {"enabled",        init_scale,      IS_ON,       SET},
    {0},
};

static const row megatron[] = {
    {"scale",              scale,                 PLAIN,     SAVED},
    {"growth_tracker",     good_steps,            PLAIN,     SAVED},
    {"growth_factor",      growth_factor,         PLAIN,     SET},
    {"backoff_factor",     backoff_factor,        PLAIN,     SET},
    {"growth_interval",    growth_interval,       PLAIN,     SET},
    {"loss_scale_window",  growth_interval,       PLAIN,     SET},
    {"min_scale",          min_scale,             PLAIN,     SET},
    {"min_loss_scale",     min_scale,             PLAIN,     SET},
    {"hysteresis",         hysteresis,            PLAIN,     SET},
    {"hysteresis_tracker", overflows_since_reset, REMAINING, SAVED},
    {"initial_scale",      init_scale,            PLAIN,     SET},
    {"initial_loss_scale", init_scale,            PLAIN,     SET},
    {"fp16",               init_scale,            IS_ON,     SET},
    {"bf16",               init_scale,            IS_OFF,    SET},
    {"loss_scale",              init_scale,      FIXED_SCALE,   SET}, /* also applies to bf16 */
    {0},
};

static const row colossalai[] = {
    {"scale",           scale,           PLAIN, SAVED},
    {"growth_factor",   growth_factor,   PLAIN, BOTH},
    {"backoff_factor",  backoff_factor,  PLAIN, BOTH},
    {"hysteresis",      hysteresis,      PLAIN, BOTH},
    {"growth_interval", growth_interval, PLAIN, SET},
    {"min_scale",       min_scale,       PLAIN, SET},
    {"max_scale",       max_scale,       PLAIN, SET},
    {"initial_scale",   init_scale,      PLAIN, SET},
    {0},
};

/* The attributes that ZeRO pickles. */
static const row deepspeed[] = {
    {"cur_scale",                scale,                 PLAIN,         SAVED},
    {"cur_iter",                 good_steps,            ITERATION,     SAVED},
    {"last_overflow_iter",       good_steps,            LAST_OVERFLOW, SAVED},
    {"scale_factor",             growth_factor,         BOTH_WAYS,     BOTH},
    {"scale_window",             growth_interval,       PLAIN,         BOTH},
    {"loss_scale_window",        growth_interval,       PLAIN,         SET},
    {"min_scale",                min_scale,             PLAIN,         BOTH},
    {"min_loss_scale",           min_scale,             PLAIN,         SET},
    {"delayed_shift",            hysteresis,            PLAIN,         BOTH},
    {"hysteresis",               hysteresis,            PLAIN,         SET},
    {"cur_hysteresis",           overflows_since_reset, REMAINING_ONE, SAVED},
    {"consecutive_hysteresis",   overflow_reset,        CONSECUTIVE,   BOTH},
    {"raise_error_at_min_scale", max_failed_backoffs,   SWITCH,        BOTH},
    {"init_scale",               init_scale,            PLAIN,         SET},
    {"initial_scale_power",      init_scale,            EXPONENT,      SET},
    {"loss_scale",               init_scale,            FIXED_SCALE,   SET},
    {"dynamic",                  init_scale,            IS_DYNAMIC,    SAVED},
    {"enabled",                  init_scale,            IS_ON,         SET},
    {0},
};

/* The optimizer without ZeRO: every overflow backs off; none stops. */
static const row deepspeed_fp16[] = {
    {"cur_scale",          scale,               PLAIN,         SAVED},
    {"cur_scale",          hysteresis,          OFF,           SAVED},
    {"cur_scale",          max_failed_backoffs, OFF,           SAVED},
    {"cur_iter",           good_steps,          ITERATION,     SAVED},
    {"last_overflow_iter", good_steps,          LAST_OVERFLOW, SAVED},
    {"scale_factor",       growth_factor,       BOTH_WAYS,     SAVED},
    {"scale_window",       growth_interval,     PLAIN,         SAVED},
    {"min_loss_scale",     min_scale,           PLAIN,         SET},
    {"dynamic_loss_scale", init_scale,          IS_DYNAMIC,    SAVED},
    {0},
};

static const row fairseq[] = {
    {"loss_scale",           scale,              PLAIN,     SAVED},
    {"init_scale",           init_scale,         PLAIN,     SET},
    {"fp16_init_scale",      init_scale,         PLAIN,     SET},
    {"scale_factor",         growth_factor,      BOTH_WAYS, SET},
    {"scale_window",         growth_interval,    PLAIN,     SET},
    {"fp16_scale_window",    growth_interval,    DERIVED,   SET},
    {"tolerance",            overflow_tolerance, PLAIN,     SET},
    {"fp16_scale_tolerance", overflow_tolerance, PLAIN,     SET},
    {"min_scale",            min_scale,          PLAIN,     SET},
    {"min_loss_scale",       min_scale,          PLAIN,     SET},
    {"threshold",            min_scale,          RAISES,    SET},
    {"threshold_loss_scale", min_scale,          RAISES,    SET},
    {"fp16",                 init_scale,         IS_ON,     SET},
    {"bf16",                 init_scale,         IS_OFF,    SET},
    {0},
};

static const row paddle[] = {
    {"loss_scaling_0",           scale,                 PLAIN,      SAVED},
    {"num_good_steps_0",         good_steps,            PLAIN,      SAVED},
    {"num_bad_steps_0",          overflows_since_reset, PLAIN,      SAVED},
    {"init_loss_scaling",        init_scale,            PLAIN,      SET},
    {"incr_ratio",               growth_factor,         PLAIN,      SET},
    {"decr_ratio",               backoff_factor,        PLAIN,      SET},
    {"incr_every_n_steps",       growth_interval,       PLAIN,      SET},
    {"decr_every_n_nan_or_inf",  hysteresis,            PLAIN,      SET},
    {"use_dynamic_loss_scaling", init_scale,            IS_DYNAMIC, SET},
    {0},
};

static const row paddle_dygraph[] = {
    {"scale",                    scale,                 PLAIN,      SAVED},
    {"incr_ratio",               growth_factor,         PLAIN,      BOTH},
    {"decr_ratio",               backoff_factor,        PLAIN,      BOTH},
    {"incr_every_n_steps",       growth_interval,       PLAIN,      BOTH},
    {"decr_every_n_nan_or_inf",  hysteresis,            PLAIN,      BOTH},
    {"incr_count",               good_steps,            PLAIN,      SAVED},
    {"decr_count",               overflows_since_reset, PLAIN,      SAVED},
    {"init_loss_scaling",        init_scale,            PLAIN,      SET},
    {"use_dynamic_loss_scaling", init_scale,            IS_DYNAMIC, BOTH},
    {"enable",                   init_scale,            IS_ON,      SET},
    {0},
};

static const row cerebras[] = {
    {"loss_scale",              scale,                 PLAIN,        SAVED},
    {"steps_since_rescale",     steps_since_change,    PLAIN,        SAVED},
    {"overflows_since_rescale", overflows_since_reset, PLAIN,        SAVED},
    {"num_skipped_steps",       total_overflows,       PLAIN,        SAVED},
    {"fp16_type",               max_scale,             HALF_TYPE,    SET},
    {"init_scale",              init_scale,            PLAIN,        SET},
    {"initial_loss_scale",      init_scale,            PLAIN,        SET},
    {"steps_per_increase",      growth_interval,       PLAIN,        SET},
    {"min_loss_scale",          min_scale,             PLAIN,        SET},
    {"max_loss_scale",          max_scale,             PLAIN,        SET},
    {"overflow_tolerance",      overflow_tolerance,    PLAIN,        SET},
    {"loss_scale",              init_scale,            FIXED_OR_ONE, SET},
    {"loss_scaling_factor",     init_scale,            FIXED_OR_ONE, SET},
    {0},
};

static const row jmp[] = {
    {"loss_scale", scale,      PLAIN,  SAVED},
    {"counter",    good_steps, WITHIN, SAVED},
    {"period",                  growth_interval, PLAIN,         BOTH | ONLY_READ},
    {"factor",                  growth_factor,   BOTH_WAYS,     BOTH | ONLY_READ},
    {"min_loss_scale",          min_scale,       PLAIN,         BOTH | ONLY_READ},
    {"init_scale", init_scale, PLAIN, SET},
    {"loss_scale", init_scale, PLAIN, SET},
    {0},
};

static const row axon[] = {
    {"loss_scale",     scale,           PLAIN,     SAVED},
    {"counter",        good_steps,      WITHIN,    SAVED},
    {"period",         growth_interval, PLAIN,     SET},
    {"factor",         growth_factor,   BOTH_WAYS, SET},
    {"min_loss_scale", min_scale,       PLAIN,     SET},
    {"init_scale",     init_scale,      PLAIN,     SET},
    {0},
};

static const row eformer[] = {
    {"loss_scale",     scale,           PLAIN,     SAVED},
    {"counter",        good_steps,      WITHIN,    SAVED},
    {"period",         growth_interval, PLAIN,     BOTH},
    {"factor",         growth_factor,   BOTH_WAYS, BOTH},
    {"min_loss_scale", min_scale,       PLAIN,     BOTH},
    {"initial_scale",  init_scale,      PLAIN,     SET},
    {"scale_factor",   growth_factor,   BOTH_WAYS, SET},
    {0},
};

static const row mindspore[] = {
    {"scale_value",  scale,           PLAIN,     SAVED},
    {"counter",      good_steps,      WITHIN,    SAVED},
    {"scale_factor", growth_factor,   BOTH_WAYS, SET},
    {"scale_window", growth_interval, PLAIN,     SET},
    {"scale_value",  init_scale,      PLAIN,     SET},
    {0},
};

static const row flax[] = {
    {"scale",     scale,      PLAIN, SAVED},
    {"fin_steps", good_steps, PLAIN, SAVED},
    {"growth_factor",           growth_factor,   PLAIN,         BOTH | ONLY_READ},
    {"backoff_factor",          backoff_factor,  PLAIN,         BOTH | ONLY_READ},
    {"growth_interval",         growth_interval, PLAIN,         BOTH | ONLY_READ},
    {"minimum_scale",           min_scale,       PLAIN,         BOTH | ONLY_READ},
    {"scale", init_scale, PLAIN, SET},
    {0},
};

static const row keras[] = {
    {"dynamic_scale",        scale,           PLAIN, SAVED},
    {"step_counter",         good_steps,      PLAIN, SAVED},
    {"initial_scale",        init_scale,      PLAIN, SET},
    {"dynamic_growth_steps", growth_interval, PLAIN, SET},
    {0},
};

static const row tf_keras[] = {
    {"current_loss_scale",   scale,           PLAIN,      SAVED},
    {"good_steps",           good_steps,      PLAIN,      SAVED},
    {"initial_scale",        init_scale,      PLAIN,      SET},
    {"dynamic_growth_steps", growth_interval, PLAIN,      SET},
    {"dynamic",              init_scale,      IS_DYNAMIC, SET},
    {0},
};

static const row mxnet[] = {
    {"_loss_scale",      scale,           PLAIN, SAVED},
    {"_next_loss_scale", next_scale,      PLAIN, SAVED},
    {"_max_loss_scale",  max_scale,       PLAIN, BOTH},
    {"_scale_seq_len",   growth_interval, PLAIN, BOTH},
    {"_unskipped",       good_steps,      PLAIN, SAVED},
    {0},
};

static const row emily[] = {
    {"scale",           scale,           PLAIN, SAVED},
    {"counter",         good_steps,      PLAIN, SAVED},
    {"growth_factor",   growth_factor,   PLAIN, BOTH},
    {"backoff_factor",  backoff_factor,  PLAIN, BOTH},
    {"growth_interval", growth_interval, PLAIN, BOTH},
    {"min_scale",       min_scale,       PLAIN, BOTH},
    {"init_scale",      init_scale,      PLAIN, SET},
    {0},
};

static const row guided_diffusion[] = {
    {"initial_lg_scale",  init_scale,    EXPONENT, SET},
    {"lg_growth",         growth_factor, EXPONENT, SET},
    {"fp16_scale_growth", growth_factor, EXPONENT, SET},
    {0},
};

/* ---- formats ---- */

enum {
    BY_NAME = 1,  /* never recognised: a far more common format has the same keys */
    MAY_LACK = 2, /* the scale can be missing; it then starts anew */
    NUMBERED = 4, /* keys can end with a number */
    DISTINCT = 8, /* the scale's key is enough: no other framework has it */
    FP16_ONLY = 16, /* settings have a section for bf16, which has no scaling */
};

static const struct format {
    const char *name, *summary, *preset;
    const row *rows;
    const char *prefix; /* the framework's prefix of one scaler */
    unsigned traits;
} formats[] = {
    {"gradscaler", "This library's own: every field of the state and the policy by its name.",
     "none", ours, "", 0},
    {"torch", "torch.amp.GradScaler.state_dict(), also FSDP's sharded one.",
     "torch", torch, "", 0},
    {"roundpipe", "RoundPipe GradScaler.state_dict(): torch's keys; the next scale is not in it.",
     "roundpipe", torch, "", BY_NAME},
    {"oneflow", "OneFlow amp.GradScaler: the arguments of its constructor; it saves no state.",
     "oneflow", oneflow, "", 0},
    {"nemo", "NeMo GradScaler.state_dict(): torch's keys and the hysteresis.",
     "nemo", nemo, "", 0},
    {"apex", "apex amp.state_dict(): an entry loss_scaler0, loss_scaler1, ... for each loss.",
     "apex", apex, "loss_scaler0", 0},
    {"megatron", "Megatron-LM DynamicGradScaler.state_dict(): scale and counts, no settings.",
     "megatron", megatron, "", 0},
    {"colossalai", "ColossalAI DynamicGradScaler.state_dict(): scale and settings, no counts.",
     "colossalai", colossalai, "", 0},
    {"deepspeed", "DeepSpeed DynamicLossScaler, the attributes that ZeRO pickles; fp16 settings.",
     "deepspeed", deepspeed, "", DISTINCT | FP16_ONLY},
    {"deepspeed_fp16", "DeepSpeed FP16_Optimizer.state_dict(), without ZeRO: no hysteresis.",
     "deepspeed", deepspeed_fp16, "", DISTINCT | FP16_ONLY},
    {"fairseq", "fairseq FP16Optimizer.state_dict(): the scale alone.",
     "fairseq", fairseq, "", 0},
    {"fairscale", "fairscale DynamicLossScaler.state_dict(): the scale alone.",
     "fairscale", fairseq, "", 0},
    {"paddle", "PaddlePaddle static.amp: the variables of a program, with any number at their end.",
     "paddle", paddle, "", NUMBERED | DISTINCT},
    {"paddle_dygraph", "PaddlePaddle amp.GradScaler.state_dict(): everything.",
     "paddle_dygraph", paddle_dygraph, "", 0},
    {"cerebras", "Cerebras amp.GradScaler.state_dict(); without dynamic scaling the scale alone.",
     "cerebras", cerebras, "", MAY_LACK},
    {"cerebras_cb16", "Cerebras amp.GradScaler.state_dict() where the half type is cb16.",
     "cerebras_cb16", cerebras, "", BY_NAME | MAY_LACK},
    {"jmp", "jmp.DynamicLossScale, its leaves.",
     "jmp", jmp, "", 0},
    {"eformer", "eFormer DynamicLossScale, its fields.",
     "eformer", eformer, "", 0},
    {"axon", "Axon.LossScale.dynamic, its state.",
     "axon", axon, "", 0},
    {"mindspore", "MindSpore amp.DynamicLossScaler, its parameters.",
     "mindspore", mindspore, "", DISTINCT},
    {"flax", "flax DynamicScale, flax.serialization.to_state_dict().",
     "flax", flax, "", 0},
    {"keras", "keras LossScaleOptimizer, its variables.",
     "keras", keras, "", DISTINCT},
    {"tf_keras", "tf_keras LossScaleOptimizer, its variables.",
     "tf_keras", tf_keras, "", DISTINCT},
    {"mxnet", "MXNet amp LossScaler, its attributes.",
     "mxnet", mxnet, "", DISTINCT},
    {"emily", "Emily.MixedPrecision.LossScaler, its fields.",
     "emily", emily, "", 0},
    {"guided_diffusion", "guided-diffusion MixedPrecisionTrainer: its arguments; no state.",
     "guided_diffusion", guided_diffusion, "", 0},
};
/* clang-format on */

enum { FORMATS = sizeof formats / sizeof *formats };

const char *gsc_format_name(uint32_t index)
{
    return index < FORMATS ? formats[index].name : NULL;
}

const char *gsc_format_summary(uint32_t index)
{
    return index < FORMATS ? formats[index].summary : NULL;
}

static gsc_status find_format(const char *name, const struct format **format, gsc_error *err)
{
    for (const struct format *f = formats; f < formats + FORMATS; f++)
        if (strcmp(name, f->name) == 0) {
            *format = f;
            return GSC_OK;
        }
    return gsc_fail(err, GSC_ERROR_FORMAT, 0, -1, "format", "is %s, which is none%s",
                    GSC_QUOTED(name),
                    GSC_MEANT(": ", name, &formats->name, sizeof *formats, FORMATS));
}

static bool saves(const struct format *f)
{
    return f->rows->where & SAVED;
}

/* ---- fields ---- */

#define MOST_U64 0xfffffffffffff800u /* the largest that a double holds exactly */

static double get(const struct scaler *s, enum field f)
{
    const char *at = (const char *)s + fields[f].offset;
    uint32_t u32;
    uint64_t u64;
    int64_t i64;
    double f64;
    switch (fields[f].type) {
    case U32:
        memcpy(&u32, at, sizeof u32);
        return u32;
    case U64:
        memcpy(&u64, at, sizeof u64);
        return u64 < MOST_U64 ? (double)u64 : (double)MOST_U64;
    case I64:
        memcpy(&i64, at, sizeof i64);
        return (double)i64;
    default:
        memcpy(&f64, at, sizeof f64);
        return f64;
    }
}

/* Returns the largest value that a field of whole numbers can hold. */
static double most_of(enum field f)
{
    return f == events             ? GSC_EVENTS
           : fields[f].type == U32 ? 0xffffffffp0
           : fields[f].type == U64 ? (double)MOST_U64
                                   : GSC_COUNT_MOST;
}

/* Returns true if the field's type can hold x. */
static bool holds(enum field f, double x)
{
    return fields[f].type == F64 ? !isnan(x) : x >= 0 && x <= most_of(f) && x == floor(x);
}

static void put(struct scaler *s, enum field f, double x)
{
    char *at = (char *)s + fields[f].offset;
    switch (fields[f].type) {
    case U32:
        memcpy(at, &(uint32_t){(uint32_t)x}, 4);
        break;
    case U64:
        memcpy(at, &(uint64_t){(uint64_t)x}, 8);
        break;
    case I64:
        memcpy(at, &(int64_t){(int64_t)x}, 8);
        break;
    default:
        memcpy(at, &x, 8);
    }
}

/* Sets a field to an integer exactly; a double would round it from 2^53 on. */
static void put_exact(struct scaler *s, enum field f, int64_t integer)
{
    if (fields[f].type == I64 || fields[f].type == U64)
        memcpy((char *)s + fields[f].offset, &integer, sizeof integer);
}

/* Returns true if later steps depend on this field of the state. */
static bool affects_training(const gsc_policy *p, enum field f)
{
    switch (f) {
    case good_steps:
        return p->growth_interval != 0 && p->growth_rule != GSC_GROWTH_ALL_STEPS && gsc_moves(p);
    case steps_since_change:
        return (p->growth_interval != 0 && p->growth_rule == GSC_GROWTH_ALL_STEPS) ||
               p->overflow_tolerance > 0;
    case overflows_since_reset:
        return p->hysteresis > 1 || p->overflow_tolerance > 0;
    case failed_backoffs:
        return p->max_failed_backoffs > 1; /* with 1, the first one stops */
    case bad_losses_in_a_row:
        return p->bad_loss_rule == GSC_BAD_LOSS_HOLD && p->max_failed_backoffs > 1;
    case next_scale:
        return p->apply_delay != 0;
    case guard_mean:
    case guard_variance:
    case guard_count:
        return p->guard_ratio != 0 || p->guard_sigmas != 0 || p->guard_warmup != 0 ||
               p->guard_flags & (GSC_GUARD_CLIP_TO_MEAN | GSC_GUARD_CLIP_PROGRESSIVE);
    case guard_in_a_row:
        return p->guard_max_in_a_row != 0;
    case guard_multiplier:
    case guard_threshold:
    case guard_value:
    case total_updates:
    case nans_in_a_row:
    case empty_in_a_row:
    case updates_at_growth:
    case overflows_at_growth:
    case generation:
    case next_generation:
    case events:
        return false; /* later steps do not read them */
    default:
        return true;
    }
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

enum { KEY_SIZE = sizeof((gsc_entry *)0)->key };

typedef struct reading {
    const struct format *format;
    const gsc_entry *entries;
    uint64_t n;
    char prefix[KEY_SIZE];
    unsigned where;                /* SAVED or SET */
    struct scaler s;               /* the fields read so far */
    int64_t from[FIELDS];          /* the entry that a field came from, or -1 */
    double read[FIELDS];           /* the field's value by that entry */
    int64_t unset[POLICY_FIELDS];  /* the null entry that leaves a field unchanged, or -1 */
    double fixed;                  /* a scale that never moves, or NAN */
    bool since_start;              /* good_steps is the number of an iteration */
    bool lowered, stopped_holding; /* by adapt_rules */
} reading;

/* Returns the key after the prefix, or NULL if the prefix differs. */
static const char *key_after_prefix(const reading *r, const gsc_entry *entry)
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

/* Returns the first entry from `start` on with this key, or -1. */
static int64_t find_entry(const reading *r, const char *key, uint64_t start)
{
    for (uint64_t i = start; i < r->n; i++) {
        const char *rest = key_after_prefix(r, &r->entries[i]);
        if (rest && same_key(r->format, key, rest))
            return (int64_t)i;
    }
    return -1;
}

/* ---- errors ---- */

enum {
    ENTRIES = 2,      /* position of the argument `entries` */
    MOST_ENTRIES = 64 /* most entries of a state in any format */
};

static bool is_number(const gsc_entry *e)
{
    return e->kind == GSC_ENTRY_NUMBER || e->kind == GSC_ENTRY_INTEGER ||
           e->kind == GSC_ENTRY_BOOLEAN;
}

/* Fails because of the value of an entry. `must` begins behind "it must be". */
static gsc_status fail_at(const reading *r, int64_t entry, double low, double high,
                          const char *must, gsc_error *err)
{
    const gsc_entry *e = &r->entries[entry];
    char integer[32];
    (void)snprintf(integer, sizeof integer, "%" PRId64, e->integer);
    const gsc_status status =
        gsc_fail_value(err, GSC_ERROR_VALUE, ENTRIES, entry, "entries.value", e->key,
                       e->kind == GSC_ENTRY_TEXT      ? GSC_QUOTED(e->text)
                       : e->kind == GSC_ENTRY_INTEGER ? integer
                       : is_number(e)                 ? GSC_EXACT(e->value)
                                                      : "empty",
                       "%s", must);
    return is_number(e) ? gsc_with_numbers(status, err, e->value, low, high) : status;
}

/* Turns an error about a field of the policy or the state into an error about its entry. */
static gsc_status fail_for(const reading *r, const gsc_error *why, gsc_error *err)
{
    const char *must = why->requirement_start ? why->message + why->requirement_start : "possible";
    for (int f = 0; f < FIELDS; f++)
        if (r->from[f] >= 0 && strcmp(fields[f].name, why->field) == 0)
            return fail_at(r, r->from[f], why->low, why->high, must, err);
    return gsc_fail(err, GSC_ERROR_VALUE, ENTRIES, -1, "entries", "make no scaler: %s",
                    why->message);
}

/* Checks entries: texts end with a zero, kinds are known, reserved words are 0. */
static gsc_status check_entries(const gsc_entry *entries, uint64_t n, gsc_error *err)
{
    const uint64_t most = 65536;
    if (n > most)
        return gsc_fail_number(err, GSC_ERROR_COUNT, ENTRIES + 1, -1, "entries_count", (double)n, 0,
                               (double)most, "at most 65536: pass only the scaler's entries");
    for (uint64_t i = 0; i < n; i++) {
        const gsc_entry *e = &entries[i];
        if (e->kind > GSC_ENTRY_BOOLEAN)
            return gsc_fail_number(err, GSC_ERROR_VALUE, ENTRIES, (int64_t)i, "entries.kind",
                                   e->kind, 0, GSC_ENTRY_BOOLEAN, "one of the kinds of entries");
        if (e->kind == GSC_ENTRY_UNUSED)
            continue;
        if (e->flags || !GSC_RESERVED_IS_ZERO(e))
            return gsc_fail_reserved(err, GSC_ERROR_VALUE, ENTRIES, (int64_t)i,
                                     e->flags ? "entries.flags" : "entries.reserved");
        const bool whole = e->kind == GSC_ENTRY_INTEGER || e->kind == GSC_ENTRY_BOOLEAN;
        if (whole && e->value != (double)e->integer)
            return gsc_fail_number(err, GSC_ERROR_VALUE, ENTRIES, (int64_t)i, "entries.value",
                                   e->value, (double)e->integer, (double)e->integer,
                                   "the same number as entries.integer, rounded");
        if (e->kind == GSC_ENTRY_BOOLEAN && (uint64_t)e->integer > 1)
            return gsc_fail_number(err, GSC_ERROR_VALUE, ENTRIES, (int64_t)i, "entries.integer",
                                   e->value, 0, 1, "0 or 1, as its kind is a boolean");
        if (!memchr(e->key, 0, sizeof e->key))
            return gsc_fail(err, GSC_ERROR_VALUE, ENTRIES, (int64_t)i, "entries.key",
                            "does not end with a zero: a key has at most %d bytes",
                            (int)sizeof e->key - 1);
        if (e->kind == GSC_ENTRY_TEXT && !memchr(e->text, 0, sizeof e->text))
            return gsc_fail(err, GSC_ERROR_VALUE, ENTRIES, (int64_t)i, "entries.text",
                            "does not end with a zero: a text has at most %d bytes",
                            (int)sizeof e->text - 1);
    }
    return GSC_OK;
}

/* ---- reading ---- */

static gsc_status set(reading *r, enum field f, double x, int64_t entry, gsc_error *err)
{
    char must[240] = "a number";
    if (fields[f].type != F64)
        (void)snprintf(must, sizeof must, "a whole number from 0 to %s",
                       most_of(f) == (double)MOST_U64 ? "2^64 - 2^11"
                       : most_of(f) == GSC_COUNT_MOST ? "2^61"
                                                      : GSC_EXACT(most_of(f)));
    if (!holds(f, x))
        return fail_at(r, entry, fields[f].type == F64 ? NAN : 0,
                       fields[f].type == F64 ? NAN : most_of(f), must, err);
    x += 0.0; /* not -0 */
    put(&r->s, f, x);
    r->from[f] = entry;
    r->read[f] = x;
    return GSC_OK;
}

static bool is_text(const gsc_entry *e, const char *text)
{
    return e->kind == GSC_ENTRY_TEXT && strcmp(e->text, text) == 0;
}

/* Returns true if null at the key leaves the field unchanged: a factor or an interval cannot be
 * switched off. Null switches off a limit or a choice. */
static bool is_unset(const row *row)
{
    return (row->as == PLAIN || row->as == DERIVED || row->as == EXPONENT ||
            row->as == BOTH_WAYS) &&
           row->field != min_scale && row->field != max_scale && row->field != max_failed_backoffs;
}

/* The values that a conversion accepts, if not any number: from low to high, or a word that stands
 * for a number. low 1 and high 0: only words. */
/* clang-format off */
static const struct {
    const char *must;
    double low, high;
    struct {
        const char *text;
        double number;
    } words[3];
} values[OFF + 1] = {
    [EXPONENT] = {"an exponent of 2 from -1023 to 1023", -1023, 1023, {{0}}},
    [REMAINING] = {"a whole number", -GSC_COUNT_MOST, GSC_COUNT_MOST, {{0}}},
    [REMAINING_ONE] = {"a whole number", -GSC_COUNT_MOST, GSC_COUNT_MOST, {{0}}},
    [RAISES] = {"finite and 0 or above", 0, DBL_MAX, {{0}}},
    [FIXED_SCALE] = {"a number or \"dynamic\"", -DBL_MAX, DBL_MAX, {{"dynamic", 0}}},
    [FIXED_OR_ONE] = {"a number or \"dynamic\"", -DBL_MAX, DBL_MAX, {{"dynamic", 0}}},
    [REFILL] = {"\"growth\" or \"good_step\"", 1, 0,
                {{"growth", GSC_RESET_ON_GROWTH}, {"good_step", GSC_RESET_ON_GOOD_STEP}}},
    [HALF_TYPE] = {"\"float16\", \"bfloat16\" or \"cbfloat16\"", 1, 0,
                   {{"float16", 0}, {"bfloat16", 1}, {"cbfloat16", 0x1p31}}},
};
/* clang-format on */

/* Reads the number of an entry; null is 0. */
static gsc_status read_number(const reading *r, const row *row, int64_t entry, double *x,
                              gsc_error *err)
{
    const gsc_entry *e = &r->entries[entry];
    const bool of_state = row->field >= POLICY_FIELDS, text = e->kind == GSC_ENTRY_TEXT;
    const char *must = values[row->as].must;
    const double low = values[row->as].low, high = values[row->as].high;
    for (int i = 0; i < 3 && values[row->as].words[i].text; i++)
        if (is_text(e, values[row->as].words[i].text)) {
            *x = values[row->as].words[i].number;
            return GSC_OK;
        }
    *x = is_number(e) ? e->value : 0;
    if (of_state && e->kind == GSC_ENTRY_BOOLEAN)
        return fail_at(r, entry, NAN, NAN, "a number, and no boolean", err);
    if (isnan(*x) || (of_state && !is_number(e)) || (text && !must))
        return fail_at(r, entry, NAN, NAN, "a number", err);
    const bool whole = fields[row->field].type == F64 || *x == floor(*x);
    if (must && (text || !whole || !(*x >= low && *x <= high)))
        return fail_at(r, entry, low < high ? low : NAN, low < high ? high : NAN, must, err);
    if (row->field == scale && *x < 0)
        return fail_at(r, entry, 0, NAN, "a scale: 0 or above", err);
    if (row->as == FIXED_OR_ONE && *x == 0)
        *x = 1;
    return GSC_OK;
}

/* Returns the value of the row's field, or NAN if it stays. Sets other fields that x decides. */
static double value_read(reading *r, const row *row, int64_t entry, double x)
{
    gsc_policy *p = &r->s.policy;
    switch (row->as) {
    case EXPONENT:
        return gsc_exp2(x);
    case BOTH_WAYS:
        if (p->backoff_factor * x != 1)
            p->backoff_factor = 0;
        r->from[backoff_factor] = entry;
        return x;
    case REMAINING:
    case REMAINING_ONE:
        return fmax((double)gsc_hysteresis(p) - x, 0);
    case ITERATION:
        r->since_start = true;
        return x;
    case LAST_OVERFLOW:
        return r->since_start ? get(&r->s, good_steps) - x - 1 : NAN;
    case SWITCH:
        return x != 0;
    case CONSECUTIVE:
        return x != 0 ? GSC_RESET_ON_GOOD_STEP : GSC_RESET_ON_GROWTH;
    case OFF:
        return 0;
    case RAISES:
        if (x <= p->min_scale)
            return NAN;
        p->floor_rule = GSC_LIMIT_CLAMP;
        return x;
    case IS_DYNAMIC:
        if (x == 0)
            r->fixed = r->from[scale] >= 0 ? r->s.state.factor.scale : p->init_scale;
        return NAN;
    case IS_ON:
    case IS_OFF:
        if ((x != 0) == (row->as == IS_OFF))
            r->fixed = 1;
        return NAN;
    case FIXED_SCALE:
    case FIXED_OR_ONE:
        if (x == 0)
            return NAN;
        r->fixed = x;
        return x;
    case HALF_TYPE:
        if (x == 1)
            r->fixed = 1;
        if (x <= 1)
            return NAN;
        p->init_scale = x;
        return x;
    default:
        return x;
    }
}

static gsc_status convert(reading *r, const row *row, int64_t entry, gsc_error *err)
{
    double x;
    GSC_TRY(read_number(r, row, entry, &x, err));
    if (r->entries[entry].kind == GSC_ENTRY_NULL && is_unset(row)) {
        r->unset[row->field] = entry;
        return GSC_OK;
    }
    if (row->as == LAST_OVERFLOW && r->since_start && !(x >= -1 && x < get(&r->s, good_steps)))
        return fail_at(r, entry, -1, get(&r->s, good_steps) - 1,
                       "-1 or the number of a step before the present one", err);
    const double value = value_read(r, row, entry, x);
    if (isnan(value))
        return GSC_OK;
    GSC_TRY(set(r, row->field, value, entry, err));
    const gsc_entry *e = &r->entries[entry];
    if (e->kind == GSC_ENTRY_INTEGER && (row->as == PLAIN || row->as == DERIVED) && x >= 0x1p53)
        put_exact(&r->s, row->field, e->integer);
    if (row->as == REMAINING || row->as == REMAINING_ONE)
        r->read[row->field] = (double)gsc_hysteresis(&r->s.policy) - x;
    return GSC_OK;
}

static bool has_row(const row *rows, const char *key, unsigned where)
{
    for (; rows->key; rows++)
        if ((rows->where & where) && strcmp(rows->key, key) == 0)
            return true;
    return false;
}

static gsc_status read_rows(reading *r, const row *rows, gsc_error *err)
{
    for (const row *row = rows; row->key; row++) {
        if (!(row->where & r->where) ||
            (rows != r->format->rows && has_row(r->format->rows, row->key, r->where)))
            continue;
        const int64_t entry = find_entry(r, row->key, 0);
        if (entry < 0)
            continue;
        if (find_entry(r, row->key, (uint64_t)entry + 1) >= 0)
            return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, entry, "entries.key",
                            "is %s, which is there twice", GSC_QUOTED(r->entries[entry].key));
        GSC_TRY(convert(r, row, entry, err));
    }
    return GSC_OK;
}

/* Returns the row of a key, or NULL if the key has no meaning. */
static const row *row_of(const reading *r, const char *rest)
{
    const row *const tables[] = {r->format->rows, common, ours};
    for (int t = 0; t < (r->where == SET ? 3 : 1); t++)
        for (const row *row = tables[t]; row->key; row++)
            if ((row->where & r->where) && same_key(r->format, row->key, rest))
                return row;
    return NULL;
}

/* Returns the length of the prefix of a key that ends with a settings key of the format; 0: none.
 */
static size_t settings_prefix_length(const reading *r, const char *key)
{
    for (size_t at = 1; key[at]; at++)
        if (is_separator(key[at - 1]) && row_of(r, key + at))
            return at - 1;
    return 0;
}

enum { MOST_SETTINGS = 96 };

/* Lists the settings keys that are not among the entries: a misspelt key can mean one. */
static size_t list_unused_settings(const reading *r, const char *unused[MOST_SETTINGS])
{
    const row *const tables[] = {r->format->rows, common, ours};
    size_t n = 0;
    for (int t = 0; t < 3; t++)
        for (const row *row = tables[t]; row->key; row++)
            if ((row->where & SET) && n < MOST_SETTINGS && find_entry(r, row->key, 0) < 0)
                unused[n++] = row->key;
    return n;
}

/* Notes this scaler's keys without meaning. In a checkpoint, deeper keys are not the scaler's; in
 * settings, the caller perhaps forgot the prefix. */
static void note_ignored(const reading *r, gsc_notes *notes)
{
    const char *unused[MOST_SETTINGS] = {NULL};
    const size_t n_unused = r->where == SET ? list_unused_settings(r, unused) : 0;
    for (uint64_t i = 0; i < r->n; i++) {
        const gsc_entry *e = &r->entries[i];
        const char *rest = key_after_prefix(r, e);
        if (!rest || row_of(r, rest))
            continue;
        if (strpbrk(rest, "./")) {
            const size_t length = r->where == SET ? settings_prefix_length(r, rest) : 0;
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
                     r->format->name, GSC_MEANT("; ", rest, unused, sizeof *unused, n_unused));
    }
}

/* Notes keys with a null that leaves the field unchanged. */
static void note_unset(const reading *r, gsc_notes *notes)
{
    for (int f = 0; f < POLICY_FIELDS && isnan(r->fixed); f++) {
        if (r->unset[f] < 0 || r->from[f] >= 0)
            continue;
        const gsc_entry *e = &r->entries[r->unset[f]];
        const double x = get(&r->s, (enum field)f);
        gsc_note_add(notes, GSC_NOTE_MISSING, r->unset[f], fields[f].name, x,
                     "%s is empty: %s stays " GSC_VALUE "%s", GSC_QUOTED(e->key), fields[f].name,
                     GSC_NAME_OF(fields[f].name, x),
                     row_of(r, key_after_prefix(r, e))->as == DERIVED
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
                gsc_note_add(notes, GSC_NOTE_CHANGED, r->from[f], fields[f].name, get(&r->s, f),
                             "%s is %s: if 2^%d is meant, write %s",
                             GSC_QUOTED(r->entries[r->from[f]].key), GSC_EXACT(meant[i].written),
                             meant[i].exponent, GSC_EXACT(ldexp(1, meant[i].exponent)));
}

/* Returns the policy with a scale that never moves. It keeps only the guard's rules, which are its
 * last fields. */
static gsc_policy fixed_at(const gsc_policy *p, double scale)
{
    gsc_policy made = *p;
    memset(&made, 0, offsetof(gsc_policy, guard_norm));
    made.struct_size = GSC_POLICY_SIZE;
    made.init_scale = scale;
    return made;
}

/*
 * Lowers init_scale to max_scale, unless a setting gives it: a scaler can save rules that no new
 * one can start with. Stops holding if the framework never stops: bad losses alone would never end.
 */
static void adapt_rules(reading *r)
{
    gsc_policy *p = &r->s.policy;
    r->lowered = gsc_starts_too_high(p) && (r->where == SAVED || r->from[init_scale] < 0);
    r->stopped_holding =
        r->where == SAVED && p->bad_loss_rule == GSC_BAD_LOSS_HOLD && p->max_failed_backoffs == 0;
    if (r->lowered)
        p->init_scale = p->max_scale;
    if (r->stopped_holding)
        p->bad_loss_rule = GSC_BAD_LOSS_OVERFLOW;
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

static void note_entries(const reading *r, gsc_notes *notes)
{
    note_adapted(r, notes);
    note_unset(r, notes);
    note_ignored(r, notes);
    if (r->where == SET && r->format->rows == cerebras)
        note_misread_exponents(r, notes);
}

static gsc_status read_policy(reading *r, gsc_error *err)
{
    const gsc_policy asked = r->s.policy;
    gsc_error why;
    /* A state can have a scale that init_scale cannot have. */
    if (r->where == SAVED && !gsc_usable(gsc_rounded(&r->s.policy, r->fixed)))
        r->fixed = r->fixed == r->fixed ? 1 : NAN;
    if (r->fixed == r->fixed) {
        r->s.policy = (gsc_policy){.struct_size = GSC_POLICY_SIZE, .init_scale = r->fixed};
        if (r->where == SET) /* a checkpoint's own scaler had no guard */
            r->s.policy = fixed_at(&asked, r->fixed);
        r->s.policy.arithmetic = asked.arithmetic;
        r->s.policy.overflow_test = asked.overflow_test;
    }
    adapt_rules(r);
    const gsc_status status = gsc_policy_check_full(&r->s.policy, 0, &why);
    return status == GSC_OK ? GSC_OK : fail_for(r, &why, err);
}

static bool is_on(const reading *r, const char *key)
{
    const int64_t i = find_entry(r, key, 0);
    return i >= 0 && r->entries[i].value == 1;
}

/* Returns the section for bf16 if the prefix names it, or if it is on and fp16 is off; or NULL. */
static const char *bf16_section(const reading *r)
{
    const char *name = r->prefix + strlen(r->prefix);
    if (!(r->format->traits & FP16_ONLY))
        return NULL;
    while (name > r->prefix && !is_separator(name[-1]))
        name--;
    if (*name)
        return strcmp(name, "bf16") == 0 || strcmp(name, "bfloat16") == 0 ? r->prefix : NULL;
    if (is_on(r, "fp16.enabled"))
        return NULL;
    return is_on(r, "bf16.enabled") ? "bf16" : is_on(r, "bfloat16.enabled") ? "bfloat16" : NULL;
}

static void begin_reading(reading *r, const struct format *f, const gsc_policy *policy,
                          unsigned where)
{
    r->format = f;
    r->where = where;
    r->fixed = NAN;
    r->since_start = false;
    for (int i = 0; i < FIELDS; i++)
        r->from[i] = -1;
    for (int i = 0; i < POLICY_FIELDS; i++)
        r->unset[i] = -1;
    r->s.policy = (gsc_policy)GSC_POLICY_INIT;
    if (policy)
        r->s.policy = *policy;
    else
        (void)gsc_policy_preset(f->preset, &r->s.policy, NULL);
    (void)gsc_state_made(&r->s.policy, NULL, &r->s.state);
}

/* Sets a count to `value` if it is not among the entries. */
static void count_from(reading *r, enum field f, int64_t value, gsc_notes *notes)
{
    if (r->from[f] >= 0)
        return;
    put_exact(&r->s, f, value);
    if (affects_training(&r->s.policy, f))
        gsc_note_add(notes, GSC_NOTE_MISSING, -1, fields[f].name, (double)value,
                     "%s is not among the entries: it starts at %" PRId64, fields[f].name, value);
}

static void note_missing_fields(const reading *r, gsc_notes *notes)
{
    struct scaler preset = {.policy = GSC_POLICY_INIT};
    (void)gsc_policy_preset(r->format->preset, &preset.policy, NULL);
    for (int f = init_scale + 1; f < POLICY_FIELDS; f++) {
        const double x = get(&r->s, (enum field)f);
        bool asked = x != get(&preset, (enum field)f);
        for (const row *row = r->format->rows; row->key; row++)
            asked |= row->field == (enum field)f && (row->where & BOTH);
        if (r->from[f] < 0 && r->unset[f] < 0 && asked)
            gsc_note_add(notes, GSC_NOTE_MISSING, -1, fields[f].name, x,
                         "%s is not among the entries: it is " GSC_VALUE ", as in the policy",
                         fields[f].name, GSC_NAME_OF(fields[f].name, x));
    }
}

static void note_changed(const reading *r, enum field f, gsc_notes *notes)
{
    const double x = get(&r->s, f);
    if (r->from[f] >= 0 && x != r->read[f])
        gsc_note_add(notes, GSC_NOTE_CHANGED, r->from[f], fields[f].name, x,
                     "%s makes %s %s: in this policy it is %s",
                     GSC_QUOTED(r->entries[r->from[f]].key), fields[f].name, GSC_EXACT(r->read[f]),
                     GSC_EXACT(x));
}

static void note_past_interval(const reading *r, gsc_notes *notes)
{
    const gsc_policy *p = &r->s.policy;
    const enum field f = p->growth_rule == GSC_GROWTH_ALL_STEPS ? steps_since_change : good_steps;
    const double count = get(&r->s, f), due = (double)p->growth_interval + p->growth_extra_steps;
    if (p->growth_rule == GSC_GROWTH_EVERY || !p->growth_interval || !gsc_moves(p) || count < due ||
        r->from[f] < 0)
        return;
    gsc_note_add(notes, GSC_NOTE_CHANGED, r->from[f], fields[f].name, count,
                 "%s makes %s %s, where growth_interval is %s: the scale grows %s",
                 GSC_QUOTED(r->entries[r->from[f]].key), fields[f].name, GSC_EXACT(count),
                 GSC_EXACT((double)p->growth_interval),
                 p->growth_rule == GSC_GROWTH_EXACT ? "only after an overflow, which starts it anew"
                                                    : "with the next step");
}

static gsc_status fail_no_scale(const reading *r, gsc_error *err);

/* Makes the state: rounds the scale to the policy's format, and fills in missing counts. */
static gsc_status read_state(reading *r, gsc_notes *notes, gsc_error *err)
{
    const gsc_policy *p = &r->s.policy;
    gsc_state *s = &r->s.state, made;
    gsc_error why;
    if (r->from[scale] < 0) {
        if (!(r->format->traits & MAY_LACK))
            return fail_no_scale(r, err);
        (void)gsc_state_made(p, NULL, &made);
        s->factor = made.factor;
        gsc_note_add(notes, GSC_NOTE_MISSING, -1, "scale", s->factor.scale,
                     "the scale is not among the entries: it starts at %s",
                     GSC_EXACT(s->factor.scale));
    } else if (isfinite(s->factor.scale) && isinf(gsc_rounded(p, s->factor.scale))) {
        return fail_at(r, r->from[scale], 0, 0x1.fffffep127,
                       "at most the largest float, in which this policy computes", err);
    }
    const int64_t counted = s->overflows_since_reset == 0 ? s->steps_since_change : 0;
    if (r->from[good_steps] < 0)
        count_from(r, good_steps, r->from[steps_since_change] >= 0 ? counted : 0, notes);
    if (r->from[steps_since_change] < 0) /* each good step is a step */
        count_from(r, steps_since_change, s->good_steps, notes);
    count_from(r, overflows_since_reset, 0, notes);
    count_from(r, failed_backoffs, 0, notes);
    count_from(r, bad_losses_in_a_row, 0, notes);
    const double newest = r->from[next_scale] >= 0 ? s->next.scale : s->factor.scale;
    if (!(newest >= 0) || (isfinite(newest) && isinf(gsc_rounded(p, newest))))
        return fail_at(r, r->from[next_scale], 0, 0x1.fffffep127, "a scale of this policy", err);
    if (!p->apply_delay)
        s->factor.scale = newest;
    const uint64_t generation_to_come = s->next.generation;
    s->next.generation = 0;
    if (gsc_state_made(p, s, &made) != GSC_OK) {
        s->factor = s->next = gsc_factor_of(1, 1); /* valid: the check names the wrong field */
        (void)gsc_state_check(s, 0, "state", &why);
        return fail_for(r, &why, err);
    }
    if (p->apply_delay && r->from[next_scale] >= 0)
        made.next = gsc_factor_of(gsc_rounded(p, newest), 2);
    if (r->from[generation] >= 0 && r->from[next_generation] >= 0 &&
        s->factor.generation <= generation_to_come) {
        made.factor.generation = s->factor.generation;
        made.next.generation = generation_to_come;
    }
    made.events = s->events;
    made.guard_threshold = s->guard_threshold;
    made.guard_value = s->guard_value;
    made.guard_multiplier = s->guard_multiplier;
    gsc_set_skip(&made);
    if (!made.skip && made.guard_multiplier == 0) /* the events of a skip are not among them */
        made.guard_multiplier = 1;
    *s = made;
    if (p->apply_delay && r->from[next_scale] < 0 && r->from[scale] >= 0)
        gsc_note_add(notes, GSC_NOTE_MISSING, -1, "next_scale", s->next.scale,
                     "next_scale is not among the entries: it is %s, as the scale",
                     GSC_EXACT(s->next.scale));
    for (int f = POLICY_FIELDS; f < generation; f++)
        note_changed(r, (enum field)f, notes);
    note_past_interval(r, notes);
    if (!gsc_usable(s->factor.scale) || !gsc_usable(s->next.scale))
        gsc_note_add(notes, GSC_NOTE_UNUSABLE, r->from[scale], "scale", s->factor.scale,
                     "the scale is %s: no call multiplies by it; start a state with another",
                     GSC_SHORT(s->factor.scale));
    gsc_note_outside_limits(notes, p, s);
    return GSC_OK;
}

static gsc_status read_all(reading *r, gsc_notes *notes, gsc_error *err)
{
    for (int i = 0; i < 2 && r->format->rows == ours; i++) { /* keys that 0.9 wrote */
        const int64_t old = find_entry(r, i == 0 ? "log2_mean" : "target_amax", 0);
        if (old >= 0)
            return gsc_fail(err, GSC_ERROR_VERSION, ENTRIES, old, "entries.key",
                            GSC_SAVED_BY_CANDIDATE);
    }
    GSC_TRY(read_rows(r, r->format->rows, err));
    if (r->where == SET) {
        GSC_TRY(read_rows(r, common, err));
        GSC_TRY(read_rows(r, ours, err));
    }
    GSC_TRY(read_policy(r, err));
    if (r->where == SAVED) {
        GSC_TRY(read_state(r, notes, err));
        if (!(r->fixed == r->fixed))
            note_missing_fields(r, notes);
    }
    note_entries(r, notes);
    return GSC_OK;
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
    for (const row *row = f->rows; row->key; row++)
        if ((row->where & SAVED) && row->as != OFF) {
            const bool there = find_entry(at, row->key, 0) >= 0;
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
    const struct format *named;           /* the only format to try; NULL: try all */
    struct match best, second;            /* second: a scaler at another prefix, an error */
    struct match alone;                   /* a scale without other keys: perhaps not a scaler's */
    struct match lacking;                 /* most keys of a format, but no scale */
    const struct format *format[FORMATS]; /* formats that match as well as `best`, at its prefix */
    int n;
    struct prefix_list prefixes; /* prefixes of all scalers */
};

/* Adds a scaler to a search. If a format was named, the scaler with the most keys wins. If not,
 * scalers with several keys are equal, and win over a scale alone. */
static void add_scaler(struct search *s, const struct match *m)
{
    const bool better = !s->n || is_better(m, &s->best), worse = is_better(&s->best, m);
    const bool same_prefix = strcmp(m->prefix, s->best.prefix) == 0;
    list_prefix(&s->prefixes, m->prefix, strlen(m->prefix));
    if (s->n && !same_prefix &&
        (!(better || worse) || (!s->named && m->present > 1 && s->best.present > 1))) {
        s->second = *m;
    } else if (better) {
        if (!same_prefix)
            s->second.format = NULL;
        s->best = *m;
        s->format[0] = m->format;
        s->n = 1;
    } else if (same_prefix && !worse) {
        s->format[s->n++] = m->format;
    }
}

/* Returns true if a checkpoint of the format can consist of the scale alone. */
static bool may_be_alone(const struct format *f)
{
    bool more = false;
    for (const row *row = f->rows + 1; row->key; row++)
        more |= (row->where & SAVED) && !(row->where & ONLY_READ);
    return !more || (f->traits & MAY_LACK);
}

/* Tries the formats at the reading's prefix. A scaler has the scale and most of its keys. A scale
 * alone is a scaler at the top, at a given prefix, or if no other format has its key. */
static void try_prefix(struct search *s, reading *at, bool given)
{
    for (const struct format *f = formats; f < formats + FORMATS; f++) {
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

/* Returns the length of a key before its last separator, and how many names that part has. */
static size_t prefix_length(const char *key, int *names)
{
    size_t length = 0;
    *names = 0;
    for (size_t i = 0; key[i]; i++)
        if (is_separator(key[i])) {
            length = i;
            ++*names;
        }
    return length;
}

/* Returns true if some format saves the last name of the key: true for few keys of a checkpoint. */
static bool ends_with_scaler_key(const gsc_entry *e)
{
    int names;
    const size_t length = prefix_length(e->key, &names);
    const char *name = e->key + (names ? length + 1 : 0);
    for (const struct format *f = formats; f < formats + FORMATS; f++)
        for (const row *row = f->rows; row->key; row++)
            if ((row->where & SAVED) && same_key(f, row->key, name))
                return true;
    return false;
}

static bool has_prefix(const gsc_entry *e, const char *prefix, size_t length)
{
    int names;
    return e->kind != GSC_ENTRY_UNUSED && strncmp(e->key, prefix, length) == 0 &&
           prefix_length(e->key, &names) == length && ends_with_scaler_key(e);
}

/* Tries each prefix of at most `most_names` names once, at its first entry, with the entries from
 * the first to the last that have the prefix. */
static void search_prefixes(struct search *s, const reading *r, int most_names)
{
    reading at = *r;
    for (uint64_t i = 0; i < r->n; i++) {
        const gsc_entry *e = &r->entries[i];
        uint64_t before = i, last = r->n - 1;
        int names;
        if (e->kind == GSC_ENTRY_UNUSED)
            continue;
        const size_t length = prefix_length(e->key, &names);
        if (names > most_names || !ends_with_scaler_key(e))
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

static gsc_status use_prefix(reading *r, const char *prefix, gsc_error *err)
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
        const size_t end = e->kind == GSC_ENTRY_UNUSED ? 0 : settings_prefix_length(r, e->key);
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

static gsc_status check_not_empty(const reading *r, gsc_error *err)
{
    for (uint64_t i = 0; i < r->n; i++)
        if (r->entries[i].kind != GSC_ENTRY_UNUSED)
            return GSC_OK;
    return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, -1, "entries",
                    "are none: a scaler that is switched off saves none");
}

/* Refuses a prefix that no key begins with: nothing would be read. */
static gsc_status check_prefix(const reading *r, gsc_error *err)
{
    for (uint64_t i = 0; i < r->n; i++)
        if (key_after_prefix(r, &r->entries[i]))
            return GSC_OK;
    if (!*r->prefix)
        return GSC_OK;
    return gsc_fail(err, GSC_ERROR_FORMAT, 1, -1, "prefix", "is %s: no key begins with it%s",
                    GSC_QUOTED(r->prefix), PREFIXES(r));
}

static gsc_status fail_no_scale(const reading *r, gsc_error *err)
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

/* Finds the scaler if no prefix is given, and its formats if none is named. */
static gsc_status find_scaler(reading *r, const struct format *named, const char *prefix,
                              struct search *s, gsc_error *err)
{
    *s = (struct search){.named = named};
    if (!prefix)
        search_prefixes(s, r, MOST_NAMES);
    else if (!named)
        try_prefix(s, r, true);
    if (s->second.format)
        return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, -1, "entries",
                        "hold several scalers, %s and %s: say which by prefix",
                        GSC_QUOTED(s->best.prefix), GSC_QUOTED(s->second.prefix));
    if (s->n > 0) {
        memcpy(r->prefix, s->best.prefix, KEY_SIZE);
        return GSC_OK;
    }
    if (!prefix)
        search_prefixes(s, r, ANY_NAMES);
    if (s->n > 0)
        return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, -1, "entries",
                        "have a scaler below more than two names: give the prefix %s",
                        GSC_QUOTED(s->best.prefix));
    if (!named || s->alone.format)
        return fail_unknown(r, s, prefix, err);
    s->format[s->n++] = named; /* reading it fails with the missing key */
    return GSC_OK;
}

static gsc_status import_as(reading *r, const struct format *f, const gsc_policy *policy,
                            gsc_notes *notes, gsc_error *err)
{
    begin_reading(r, f, policy, SAVED);
    return read_all(r, notes, err);
}

/* Reads the scaler in all formats that match, and fails if the results differ. */
static gsc_status import_alike(reading *r, const struct search *s, const gsc_policy *policy,
                               gsc_notes *counted, gsc_error *err)
{
    gsc_notes none = {0};
    GSC_TRY(import_as(r, s->format[0], policy, counted, err));
    for (int i = 1; i < s->n; i++) {
        reading other = *r;
        GSC_TRY(import_as(&other, s->format[i], policy, &none, err));
        if (memcmp(&r->s, &other.s, sizeof r->s) != 0)
            return gsc_fail(err, GSC_ERROR_FORMAT, ENTRIES, -1, "entries",
                            "are of the format %s or %s, which go on differently: name the format",
                            s->format[0]->name, s->format[i]->name);
    }
    return GSC_OK;
}

/* Notes the recognised format, its prefix, and other formats with the same keys. */
static void note_format(const struct search *s, const char *prefix, gsc_notes *notes)
{
    const struct format *best = s->format[0];
    char others[96] = "";
    for (const struct format *f = formats; f < formats + FORMATS; f++) {
        const size_t end = strlen(others);
        bool listed = (f->traits & BY_NAME) && f->rows == best->rows;
        for (int i = 1; i < s->n; i++)
            listed |= f == s->format[i];
        if (listed && end < 72)
            (void)snprintf(others + end, sizeof others - end, "%s%s",
                           end ? ", " : "; same keys: ", f->name);
    }
    gsc_note_add(notes, GSC_NOTE_FORMAT, -1, best->name, NAN, "read as %s%s%s%s", best->name,
                 *prefix ? " from " : "", *prefix ? GSC_QUOTED(prefix) : "", others);
}

/* ---- the calls ---- */

static void list_key(gsc_format_key *key, const struct format *f, const row *row, unsigned where)
{
    const size_t length = strlen(row->key);
    memset(key, 0, sizeof *key);
    memcpy(key->key, row->key, length);
    memcpy(key->field, fields[row->field].name, strlen(fields[row->field].name));
    key->uses = (where & SAVED ? GSC_KEY_SAVED : 0) | (where & SET ? GSC_KEY_SETTING : 0);
    if ((f->traits & NUMBERED) && length > 2 && strcmp(row->key + length - 2, "_0") == 0)
        key->uses |= GSC_KEY_NUMBERED;
}

gsc_status gsc_format_keys(const char *format, gsc_format_key *keys, uint64_t keys_capacity,
                           uint64_t *keys_count, gsc_error *err)
{
    gsc_begin(err);
    const struct format *f = NULL;
    uint64_t n = 0;
    GSC_REQUIRE(format, 0);
    GSC_TRY(find_format(format, &f, err));
    if (keys_capacity > 0)
        GSC_REQUIRE(keys, 1);
    const row *const tables[] = {f->rows, common, ours};
    for (int t = 0; t < 3; t++)
        for (const row *row = tables[t]; row->key; row++) {
            const unsigned where = row->where & (t == 0 ? BOTH : SET);
            if (!where || row->as == OFF || (t > 0 && has_row(f->rows, row->key, SET)))
                continue;
            if (n < keys_capacity)
                list_key(&keys[n], f, row, where);
            n++;
        }
    gsc_tell(keys_count, n);
    return GSC_OK;
}

gsc_status gsc_state_import(const char *format, const char *prefix, const gsc_entry *entries,
                            uint64_t entries_count, const gsc_policy *policy,
                            gsc_policy *out_policy, gsc_state *out_state, gsc_note *notes,
                            uint64_t notes_capacity, uint64_t *notes_count, gsc_error *err)
{
    gsc_begin(err);
    reading r = {.entries = entries, .n = entries_count};
    gsc_policy full;
    const struct format *f = NULL;
    struct search search;
    gsc_notes list = {.at = notes, .capacity = notes_capacity}, counted = {0};
    GSC_REQUIRE(entries, 2);
    GSC_REQUIRE(out_policy, 5);
    GSC_REQUIRE(out_state, 6);
    GSC_TRY(gsc_notes_check(&list, 7, err));
    if (format)
        GSC_TRY(find_format(format, &f, err));
    if (policy) {
        GSC_TRY(gsc_policy_read(policy, &full, 4, err));
        policy = &full;
    }
    GSC_TRY(check_entries(entries, entries_count, err));
    if (f && !saves(f))
        return gsc_fail(err, GSC_ERROR_FORMAT, 0, -1, "format", "is \"%s\", which saves no state",
                        f->name);
    if (prefix)
        GSC_TRY(use_prefix(&r, prefix, err));
    r.format = f;
    r.where = SAVED;
    if (!(f && (f->traits & MAY_LACK)))
        GSC_TRY(check_not_empty(&r, err));
    GSC_TRY(check_prefix(&r, err));
    GSC_TRY(find_scaler(&r, f, prefix, &search, err));
    /* The first time without notes: a call that fails writes none. */
    GSC_TRY(import_alike(&r, &search, policy, &counted, err));
    GSC_TRY(
        gsc_struct_write(&r.s.policy, GSC_POLICY_SIZE, out_policy, false, 5, "out_policy", err));
    if (!f)
        note_format(&search, prefix ? "" : r.prefix, &counted);
    gsc_notes_sort(&list, &counted);
    if (!f)
        note_format(&search, prefix ? "" : r.prefix, &list);
    (void)import_as(&r, search.format[0], policy, &list, NULL);
    gsc_tell(notes_count, list.n);
    *out_state = r.s.state;
    return GSC_OK;
}

gsc_status gsc_policy_import(const char *format, const char *prefix, const gsc_entry *entries,
                             uint64_t entries_count, const gsc_policy *policy,
                             gsc_policy *out_policy, gsc_note *notes, uint64_t notes_capacity,
                             uint64_t *notes_count, gsc_error *err)
{
    gsc_begin(err);
    reading r = {.entries = entries, .n = entries_count};
    gsc_policy full;
    const struct format *f = NULL;
    gsc_notes list = {.at = notes, .capacity = notes_capacity}, counted = {0};
    GSC_REQUIRE(format, 0);
    if (entries_count > 0)
        GSC_REQUIRE(entries, 2);
    GSC_REQUIRE(out_policy, 5);
    GSC_TRY(gsc_notes_check(&list, 6, err));
    if (find_format(format, &f, NULL) != GSC_OK) { /* a preset without a format: keys are fields */
        full = (gsc_policy){.struct_size = GSC_POLICY_SIZE};
        if (gsc_policy_preset(format, &full, NULL) != GSC_OK)
            return find_format(format, &f, err);
        f = formats;
        policy = policy ? policy : &full;
    }
    if (policy && policy != &full) {
        GSC_TRY(gsc_policy_read(policy, &full, 4, err));
        policy = &full;
    }
    GSC_TRY(check_entries(entries, entries_count, err));
    if (prefix)
        GSC_TRY(use_prefix(&r, prefix, err));
    begin_reading(&r, f, policy, SET);
    GSC_TRY(check_prefix(&r, err));
    const char *bf16 = bf16_section(&r);
    if (!bf16)
        GSC_TRY(read_all(&r, &counted, err));
    else if (gsc_moves(&r.s.policy))
        r.s.policy = fixed_at(&r.s.policy, 0);
    else if (r.s.policy.init_scale != 0)
        r.s.policy.init_scale = 1;
    GSC_TRY(
        gsc_struct_write(&r.s.policy, GSC_POLICY_SIZE, out_policy, false, 5, "out_policy", err));
    if (bf16)
        gsc_note_add(&list, GSC_NOTE_CHANGED, -1, "init_scale", 1,
                     "%s is not scaled: the scale is 1 for good; the preset guard also skips "
                     "absurd norms",
                     GSC_QUOTED(bf16));
    else {
        gsc_notes_sort(&list, &counted);
        note_entries(&r, &list);
    }
    gsc_tell(notes_count, list.n);
    return GSC_OK;
}

/* ---- writing ---- */

static double value_written(const struct format *f, const struct scaler *s, const row *row)
{
    const gsc_policy *p = &s->policy;
    const double x = get(s, row->field);
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
        return f->rows == ours                ? x /* 0 stays 0 */
               : row->field == growth_factor  ? gsc_growth_factor(p)
               : row->field == backoff_factor ? gsc_backoff_factor(p)
               : row->field == hysteresis     ? (double)gsc_hysteresis(p)
                                              : x;
    }
}

/* Returns the kind of entry that the framework's loader expects. */
static uint32_t kind_of(const row *row)
{
    return row->as == SWITCH || row->as == CONSECUTIVE || row->as == IS_DYNAMIC ? GSC_ENTRY_BOOLEAN
           : fields[row->field].type == F64                                     ? GSC_ENTRY_NUMBER
                                                                                : GSC_ENTRY_INTEGER;
}

/* Fills in an entry with the number of a row. */
static void fill(gsc_entry *e, const struct format *f, const struct scaler *s, const row *row)
{
    e->value = value_written(f, s, row);
    e->kind = kind_of(row);
    if (e->kind == GSC_ENTRY_INTEGER && e->value >= 0x1p63)
        e->kind = GSC_ENTRY_NUMBER; /* only a policy's field can be so large */
    if (e->kind == GSC_ENTRY_NUMBER)
        return;
    e->integer = (int64_t)e->value;
    if (row->as == PLAIN && e->value == get(s, row->field) && e->value >= 0x1p53)
        memcpy(&e->integer, (const char *)s + fields[row->field].offset, sizeof e->integer);
}

/* Returns true if a field that was written from `a` and read into `b` acts the same. */
static bool same_field(const struct scaler *a, const struct scaler *b, enum field f)
{
    const double x = get(a, f), y = get(b, f);
    if (f == growth_factor)
        return gsc_growth_factor(&a->policy) == gsc_growth_factor(&b->policy);
    if (f == backoff_factor)
        return gsc_backoff_factor(&a->policy) == gsc_backoff_factor(&b->policy);
    if (f == hysteresis)
        return (double)gsc_hysteresis(&a->policy) == (double)gsc_hysteresis(&b->policy);
    if (f == good_steps && a->policy.growth_rule == GSC_GROWTH_EVERY && a->policy.growth_interval &&
        a->policy.growth_extra_steps == 0)
        return fmod(x, (double)a->policy.growth_interval) ==
               fmod(y, (double)a->policy.growth_interval);
    const size_t at = fields[f].offset;
    const bool same =
        x == y && (fabs(x) < 0x1p53 ||
                   memcmp((const char *)a + at, (const char *)b + at, sizeof(int64_t)) == 0);
    return same || (f >= POLICY_FIELDS && !affects_training(&a->policy, f));
}

/* Notes the fields that a format loses. It reads the entries back: the state's fields with this
 * policy, the policy's fields with the format's preset. */
static void note_lost(const struct scaler *s, const struct format *f, const char *prefix,
                      const gsc_entry *entries, uint64_t n, gsc_notes *notes)
{
    gsc_notes none = {0};
    reading state = {.entries = entries, .n = n}, policy = state;
    (void)use_prefix(&state, prefix, NULL);
    (void)use_prefix(&policy, prefix, NULL);
    (void)import_as(&state, f, &s->policy, &none, NULL);
    (void)import_as(&policy, f, NULL, &none, NULL);
    for (int i = init_scale + 1; i < FIELDS; i++) { /* init_scale does not matter any more */
        const struct scaler *back = i < POLICY_FIELDS ? &policy.s : &state.s;
        if (!same_field(s, back, (enum field)i))
            gsc_note_add(notes, GSC_NOTE_LOST, -1, fields[i].name, get(s, (enum field)i),
                         "%s is " GSC_VALUE ", which the format %s cannot hold", fields[i].name,
                         GSC_NAME_OF(fields[i].name, get(s, (enum field)i)), f->name);
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
    gsc_entry made[MOST_ENTRIES] = {0};
    uint32_t count = 0;
    GSC_REQUIRE(format, 0);
    GSC_TRY(find_format(format, &f, err));
    GSC_TRY(gsc_policy_read(policy, &s.policy, 2, err));
    GSC_REQUIRE(state, 3);
    if (entries_capacity > 0)
        GSC_REQUIRE(entries, 4);
    GSC_TRY(gsc_notes_check(&list, 7, err));
    GSC_TRY(gsc_state_check(state, 3, "state", err));
    s.state = *state;
    if (!saves(f))
        return gsc_fail(err, GSC_ERROR_FORMAT, 0, -1, "format", "is \"%s\", which saves no state",
                        f->name);
    prefix = prefix ? prefix : f->prefix;
    for (const row *row = f->rows; row->key; row++) {
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
