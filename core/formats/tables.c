/* SPDX-License-Identifier: MIT */
/* The formats, and their keys, which are read in order: a conversion can use the rows before it. */
#include "formats.h"

/* clang-format off */
const struct row gsc_our_rows[] = {
#define X(name, member, type) {#name, name, PLAIN, BOTH},
#define Y(name, member, type) {#name, name, PLAIN, SAVED},
    FOR_STATE(Y)
    FOR_POLICY(X)
#undef X
#undef Y
    {0},
};

/* Keys that settings of every framework can have, besides the names of the fields. */
const struct row gsc_common_rows[] = {
    {"hysteresis_refill", overflow_reset,      REFILL, SET},
    {"raise_at_min",      max_failed_backoffs, SWITCH, SET},
    {0},
};

static const struct row torch[] = {
    {"scale",           scale,           PLAIN, SAVED},
    {"growth_factor",   growth_factor,   PLAIN, BOTH},
    {"backoff_factor",  backoff_factor,  PLAIN, BOTH},
    {"growth_interval", growth_interval, PLAIN, BOTH},
    {"_growth_tracker", good_steps,      PLAIN, SAVED},
    {"init_scale",      init_scale,      PLAIN, SET},
    {"enabled",         init_scale,      IS_ON, SET},
    {0},
};

static const struct row oneflow[] = {
    {"init_scale",      init_scale,      PLAIN,     SET},
    {"growth_factor",   growth_factor,   BOTH_WAYS, SET},
    {"growth_interval", growth_interval, PLAIN,     SET},
    {0},
};

/* NeMo's loader reads the tracker from a misspelt key, which NeMo does not save. */
static const struct row nemo[] = {
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

static const struct row apex[] = {
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

static const struct row megatron[] = {
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

static const struct row colossalai[] = {
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
static const struct row deepspeed[] = {
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
static const struct row deepspeed_fp16[] = {
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

static const struct row fairseq[] = {
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

static const struct row paddle[] = {
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

static const struct row paddle_dygraph[] = {
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

static const struct row cerebras[] = {
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

static const struct row jmp[] = {
    {"loss_scale", scale,      PLAIN,  SAVED},
    {"counter",    good_steps, WITHIN, SAVED},
    {"period",                  growth_interval, PLAIN,         BOTH | ONLY_READ},
    {"factor",                  growth_factor,   BOTH_WAYS,     BOTH | ONLY_READ},
    {"min_loss_scale",          min_scale,       PLAIN,         BOTH | ONLY_READ},
    {"init_scale", init_scale, PLAIN, SET},
    {"loss_scale", init_scale, PLAIN, SET},
    {0},
};

static const struct row axon[] = {
    {"loss_scale",     scale,           PLAIN,     SAVED},
    {"counter",        good_steps,      WITHIN,    SAVED},
    {"period",         growth_interval, PLAIN,     SET},
    {"factor",         growth_factor,   BOTH_WAYS, SET},
    {"min_loss_scale", min_scale,       PLAIN,     SET},
    {"init_scale",     init_scale,      PLAIN,     SET},
    {0},
};

static const struct row eformer[] = {
    {"loss_scale",     scale,           PLAIN,     SAVED},
    {"counter",        good_steps,      WITHIN,    SAVED},
    {"period",         growth_interval, PLAIN,     BOTH},
    {"factor",         growth_factor,   BOTH_WAYS, BOTH},
    {"min_loss_scale", min_scale,       PLAIN,     BOTH},
    {"initial_scale",  init_scale,      PLAIN,     SET},
    {"scale_factor",   growth_factor,   BOTH_WAYS, SET},
    {0},
};

static const struct row mindspore[] = {
    {"scale_value",  scale,           PLAIN,     SAVED},
    {"counter",      good_steps,      WITHIN,    SAVED},
    {"scale_factor", growth_factor,   BOTH_WAYS, SET},
    {"scale_window", growth_interval, PLAIN,     SET},
    {"scale_value",  init_scale,      PLAIN,     SET},
    {0},
};

static const struct row flax[] = {
    {"scale",     scale,      PLAIN, SAVED},
    {"fin_steps", good_steps, PLAIN, SAVED},
    {"growth_factor",           growth_factor,   PLAIN,         BOTH | ONLY_READ},
    {"backoff_factor",          backoff_factor,  PLAIN,         BOTH | ONLY_READ},
    {"growth_interval",         growth_interval, PLAIN,         BOTH | ONLY_READ},
    {"minimum_scale",           min_scale,       PLAIN,         BOTH | ONLY_READ},
    {"scale", init_scale, PLAIN, SET},
    {0},
};

static const struct row keras[] = {
    {"dynamic_scale",        scale,           PLAIN, SAVED},
    {"step_counter",         good_steps,      PLAIN, SAVED},
    {"initial_scale",        init_scale,      PLAIN, SET},
    {"dynamic_growth_steps", growth_interval, PLAIN, SET},
    {0},
};

static const struct row tf_keras[] = {
    {"current_loss_scale",   scale,           PLAIN,      SAVED},
    {"good_steps",           good_steps,      PLAIN,      SAVED},
    {"initial_scale",        init_scale,      PLAIN,      SET},
    {"dynamic_growth_steps", growth_interval, PLAIN,      SET},
    {"dynamic",              init_scale,      IS_DYNAMIC, SET},
    {0},
};

static const struct row mxnet[] = {
    {"_loss_scale",      scale,           PLAIN, SAVED},
    {"_next_loss_scale", next_scale,      PLAIN, SAVED},
    {"_max_loss_scale",  max_scale,       PLAIN, BOTH},
    {"_scale_seq_len",   growth_interval, PLAIN, BOTH},
    {"_unskipped",       good_steps,      PLAIN, SAVED},
    {0},
};

static const struct row emily[] = {
    {"scale",           scale,           PLAIN, SAVED},
    {"counter",         good_steps,      PLAIN, SAVED},
    {"growth_factor",   growth_factor,   PLAIN, BOTH},
    {"backoff_factor",  backoff_factor,  PLAIN, BOTH},
    {"growth_interval", growth_interval, PLAIN, BOTH},
    {"min_scale",       min_scale,       PLAIN, BOTH},
    {"init_scale",      init_scale,      PLAIN, SET},
    {0},
};

static const struct row guided_diffusion[] = {
    {"initial_lg_scale",  init_scale,    EXPONENT, SET},
    {"lg_growth",         growth_factor, EXPONENT, SET},
    {"fp16_scale_growth", growth_factor, EXPONENT, SET},
    {0},
};

/* ---- formats ---- */

const struct format gsc_formats[MOST_FORMATS + 1] = {
    {"gradscaler", "none", "", gsc_our_rows, 0,
     "This library's own: every field of the state and the policy by its name."},
    {"torch", "torch", "", torch, 0, "torch.amp.GradScaler.state_dict(), also FSDP's sharded one."},
    {"roundpipe", "roundpipe", "", torch, BY_NAME,
     "RoundPipe GradScaler.state_dict(): torch's keys; the next scale is not in it."},
    {"oneflow", "oneflow", "", oneflow, 0,
     "OneFlow amp.GradScaler: the arguments of its constructor; it saves no state."},
    {"nemo", "nemo", "", nemo, 0, "NeMo GradScaler.state_dict(): torch's keys and the hysteresis."},
    {"apex", "apex", "loss_scaler0", apex, 0,
     "apex amp.state_dict(): an entry loss_scaler0, loss_scaler1, ... for each loss."},
    {"megatron", "megatron", "", megatron, 0,
     "Megatron-LM DynamicGradScaler.state_dict(): scale and counts, no settings."},
    {"colossalai", "colossalai", "", colossalai, 0,
     "ColossalAI DynamicGradScaler.state_dict(): scale and settings, no counts."},
    {"deepspeed", "deepspeed", "", deepspeed, DISTINCT | FP16_ONLY,
     "DeepSpeed DynamicLossScaler, the attributes that ZeRO pickles; fp16 settings."},
    {"deepspeed_fp16", "deepspeed", "", deepspeed_fp16, DISTINCT | FP16_ONLY,
     "DeepSpeed FP16_Optimizer.state_dict(), without ZeRO: no hysteresis."},
    {"fairseq", "fairseq", "", fairseq, 0, "fairseq FP16Optimizer.state_dict(): the scale alone."},
    {"fairscale", "fairscale", "", fairseq, 0,
     "fairscale DynamicLossScaler.state_dict(): the scale alone."},
    {"paddle", "paddle", "", paddle, NUMBERED | DISTINCT,
     "PaddlePaddle static.amp: the variables of a program, with any number at their end."},
    {"paddle_dygraph", "paddle_dygraph", "", paddle_dygraph, 0,
     "PaddlePaddle amp.GradScaler.state_dict(): everything."},
    {"cerebras", "cerebras", "", cerebras, MAY_LACK | SAYS_2E15,
     "Cerebras amp.GradScaler.state_dict(); without dynamic scaling the scale alone."},
    {"cerebras_cb16", "cerebras_cb16", "", cerebras, BY_NAME | MAY_LACK | SAYS_2E15,
     "Cerebras amp.GradScaler.state_dict() where the half type is cb16."},
    {"jmp", "jmp", "", jmp, 0, "jmp.DynamicLossScale, its leaves."},
    {"eformer", "eformer", "", eformer, 0, "eFormer DynamicLossScale, its fields."},
    {"axon", "axon", "", axon, 0, "Axon.LossScale.dynamic, its state."},
    {"mindspore", "mindspore", "", mindspore, DISTINCT,
     "MindSpore amp.DynamicLossScaler, its parameters."},
    {"flax", "flax", "", flax, 0, "flax DynamicScale, flax.serialization.to_state_dict()."},
    {"keras", "keras", "", keras, DISTINCT, "keras LossScaleOptimizer, its variables."},
    {"tf_keras", "tf_keras", "", tf_keras, DISTINCT, "tf_keras LossScaleOptimizer, its variables."},
    {"mxnet", "mxnet", "", mxnet, DISTINCT, "MXNet amp LossScaler, its attributes."},
    {"emily", "emily", "", emily, 0, "Emily.MixedPrecision.LossScaler, its fields."},
    {"guided_diffusion", "guided_diffusion", "", guided_diffusion, 0,
     "guided-diffusion MixedPrecisionTrainer: its arguments; no state."},
};
/* clang-format on */
