/* SPDX-License-Identifier: MIT */
/* Policies: the table of presets, and the check of a policy's fields. */
#include <string.h>

#include "internal.h"
#include "policy.h"

#define RESET_BITS (GSC_RESET_ON_GROWTH | GSC_RESET_ON_GOOD_STEP | GSC_RESET_ON_BACKOFF)
#define QUIRK_BITS                                                                                 \
    (GSC_QUIRK_TOLERANCE_EXCLUSIVE | GSC_QUIRK_OVERFLOW_IS_GOOD | GSC_QUIRK_ALLOW_LOCKOUT)
#define GUARD_BITS                                                                                 \
    (GSC_GUARD_CLIP | GSC_GUARD_INCLUSIVE | GSC_GUARD_STOP | GSC_GUARD_SKIP_IS_GOOD |              \
     GSC_GUARD_CLIP_PROGRESSIVE | GSC_GUARD_VARIANCE_AFTER_MEAN | GSC_GUARD_BIAS_CORRECTED |       \
     GSC_GUARD_CLIP_TO_MEAN)
#define MAX_F32 0x1.fffffep127

/* The scale doubles every `interval` good steps; an overflow halves it. */
#define TWO_FACTORS(init, interval)                                                                \
    .init_scale = init, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = interval
/* As above, but a backoff divides by growth_factor. */
#define ONE_FACTOR(init) .init_scale = init, .growth_factor = 2, .growth_interval = 2000
#define USUAL            TWO_FACTORS(0x1p16, 2000)
#define TORCH                                                                                      \
    USUAL, .growth_rule = GSC_GROWTH_EXACT, .ceiling_rule = GSC_LIMIT_REJECT,                      \
           .arithmetic = GSC_ARITHMETIC_F64_TO_F32
#define JMP(init, format)                                                                          \
    ONE_FACTOR(init), .growth_rule = GSC_GROWTH_EVERY, .ceiling_rule = GSC_LIMIT_REJECT,           \
                      .min_scale = 1, .arithmetic = GSC_ARITHMETIC_##format
#define FAIRSEQ                                                                                    \
    ONE_FACTOR(0x1p15), .growth_rule = GSC_GROWTH_EVERY, .min_scale = 0.0001,                      \
                        .floor_rule = GSC_LIMIT_STOP, .overflow_reset = GSC_RESET_ON_BACKOFF,      \
                        .overflow_test = GSC_TEST_NORM
#define MEGATRON                                                                                   \
    TWO_FACTORS(0x1p32, 1000), .growth_rule = GSC_GROWTH_EXACT, .min_scale = 1, .hysteresis = 2,   \
                               .overflow_reset = GSC_RESET_ON_GROWTH,                              \
                               .arithmetic = GSC_ARITHMETIC_F32
#define ZCLIP(flags)                                                                               \
    .guard_sigmas = 2.5, .guard_decay = 0.97, .guard_warmup = 25,                                  \
    .guard_sample = GSC_SAMPLE_THRESHOLD,                                                          \
    .guard_flags = GSC_GUARD_CLIP | GSC_GUARD_VARIANCE_AFTER_MEAN | (flags)
#define CEREBRAS(limit)                                                                            \
    TWO_FACTORS(limit, 2000), .growth_rule = GSC_GROWTH_ALL_STEPS, .growth_extra_steps = 1,        \
                              .max_scale = limit, .ceiling_rule = GSC_LIMIT_ENFORCE,               \
                              .min_scale = 0x1p-14, .floor_rule = GSC_LIMIT_ENFORCE,               \
                              .overflow_reset = GSC_RESET_ON_GROWTH | GSC_RESET_ON_BACKOFF,        \
                              .overflow_test = GSC_TEST_NORM, .arithmetic = GSC_ARITHMETIC_F32

static const struct preset {
    const char *name, *summary;
    gsc_policy policy;
} presets[] = {
    {"recommended",
     "For new work in fp16: torch's numbers from 2^-14 to 2^24. A loss that is not finite keeps "
     "the scale. Stops after ten such losses in a row, or ten overflows at the floor.",
     {USUAL, .max_scale = 0x1p24, .ceiling_rule = GSC_LIMIT_CLAMP_UNLESS_PAST, .min_scale = 0x1p-14,
      .floor_rule = GSC_LIMIT_CLAMP_UNLESS_PAST, .max_failed_backoffs = 10,
      .bad_loss_rule = GSC_BAD_LOSS_HOLD,
      .overflow_reset = GSC_RESET_ON_GROWTH | GSC_RESET_ON_BACKOFF,
      .arithmetic = GSC_ARITHMETIC_F64_TO_F32}},
    {"none", "Only checks and reports: the scale is always 1.", {0}},
    {"guard",
     "For bf16, which needs no scaling. Skips a norm above ten times the mean, before the tenth in "
     "a row. Stops after ten overflows, or ten losses that are not finite, in a row.",
     {.max_failed_backoffs = 10,
      .bad_loss_rule = GSC_BAD_LOSS_HOLD,
      .guard_ratio = 10,
      .guard_decay = 0.99,
      .guard_warmup = 100,
      .guard_max_in_a_row = 10,
      .guard_sample = GSC_SAMPLE_THRESHOLD}},
    {"static",
     "A scale that never moves; set init_scale. Overflows are skipped.",
     {.init_scale = 0x1p16}},
    {"torch",
     "torch.amp.GradScaler 2.15: a growth past the largest float is dropped; a count past "
     "growth_interval grows only after an overflow.",
     {TORCH}},
    {"roundpipe",
     "RoundPipe 0.1 GradScaler: torch's rule, in force one step later.",
     {TORCH, .apply_delay = 1}},
    {"nemo",
     "NeMo GradScaler: torch's rule with hysteresis that any good step refills.",
     {TORCH, .hysteresis = 1, .overflow_reset = GSC_RESET_ON_GOOD_STEP}},
    {"jmp",
     "jmp.DynamicLossScale 0.0.4: one factor for both directions, floor 1.",
     {JMP(0x1p15, F32_FLUSH)}},
    {"eformer", "eFormer DynamicLossScale 0.0.101: jmp's rule.", {JMP(0x1p15, F32_FLUSH)}},
    {"axon", "Axon.LossScale.dynamic: jmp's rule, with subnormal scales kept.", {JMP(0x1p15, F32)}},
    {"mindspore", "MindSpore 2.10 DynamicLossScaler: jmp's rule from 2^16.", {JMP(0x1p16, F32)}},
    {"oneflow",
     "OneFlow 0.9 amp.GradScaler: one factor; growth is clamped to the largest float.",
     {ONE_FACTOR(0x1p16), .max_scale = MAX_F32, .min_scale = 1, .arithmetic = GSC_ARITHMETIC_F32}},
    {"emily",
     "Emily.MixedPrecision: in doubles; stops where the scale would pass the largest.",
     {USUAL, .ceiling_rule = GSC_LIMIT_STOP, .min_scale = 1}},
    {"flax",
     "flax DynamicScale 0.12: grows after growth_interval + 1 good steps.",
     {USUAL, .growth_rule = GSC_GROWTH_EXACT, .growth_extra_steps = 1, .max_scale = MAX_F32,
      .min_scale = 0x1p-126, .arithmetic = GSC_ARITHMETIC_F32}},
    {"keras",
     "keras 3.15 LossScaleOptimizer: an infinite scale stays.",
     {TWO_FACTORS(0x1p15, 2000), .arithmetic = GSC_ARITHMETIC_F32}},
    {"tf_keras",
     "tf_keras 2.21 LossScaleOptimizer: a growth past the largest float is dropped.",
     {TWO_FACTORS(0x1p15, 2000), .ceiling_rule = GSC_LIMIT_REJECT, .min_scale = 1,
      .arithmetic = GSC_ARITHMETIC_F32}},
    {"megatron",
     "Megatron-LM 0.16 DynamicGradScaler: hysteresis 2, refilled by a growth.",
     {MEGATRON}},
    {"colossalai",
     "ColossalAI DynamicGradScaler: hysteresis 2, refilled by a growth; optional limits.",
     {TWO_FACTORS(0x1p16, 1000), .hysteresis = 2, .overflow_reset = GSC_RESET_ON_GROWTH,
      .arithmetic = GSC_ARITHMETIC_F32}},
    {"deepspeed",
     "DeepSpeed 0.19 DynamicLossScaler: hysteresis 2; an overflow at the floor stops.",
     {TWO_FACTORS(0x1p16, 1000), .growth_rule = GSC_GROWTH_EVERY, .growth_extra_steps = 1,
      .min_scale = 1, .hysteresis = 2, .overflow_reset = GSC_RESET_ON_GROWTH,
      .max_failed_backoffs = 1}},
    {"paddle",
     "PaddlePaddle 3.3 update_loss_scaling: backs off after `hysteresis` overflows in a row.",
     {USUAL, .growth_rule = GSC_GROWTH_EXACT, .ceiling_rule = GSC_LIMIT_REJECT, .min_scale = 1,
      .hysteresis = 1, .overflow_reset = GSC_RESET_ON_GOOD_STEP | GSC_RESET_ON_BACKOFF,
      .arithmetic = GSC_ARITHMETIC_F32}},
    {"paddle_dygraph",
     "PaddlePaddle 3.3 amp.GradScaler: paddle's rule without limits.",
     {USUAL, .growth_rule = GSC_GROWTH_EXACT, .hysteresis = 1,
      .overflow_reset = GSC_RESET_ON_GOOD_STEP | GSC_RESET_ON_BACKOFF,
      .arithmetic = GSC_ARITHMETIC_F32}},
    {"apex",
     "apex amp LossScaler: its ceiling also limits the start.",
     {USUAL, .max_scale = 0x1p24, .ceiling_rule = GSC_LIMIT_ENFORCE}},
    {"mxnet",
     "MXNet 1.9 amp LossScaler: a new scale is in force one step later.",
     {USUAL, .max_scale = 0x1p24, .apply_delay = 1}},
    {"fairseq",
     "fairseq 0.12 DynamicLossScaler: tolerates a share of overflows; stops at the floor.",
     {FAIRSEQ, .quirks = GSC_QUIRK_TOLERANCE_EXCLUSIVE}},
    {"fairscale",
     "fairscale 0.4 DynamicLossScaler: fairseq's rule, but a skipped step counts once more as "
     "good. It judges the norm of the scaled gradients, this preset the norm of the unscaled ones.",
     {FAIRSEQ, .quirks = GSC_QUIRK_TOLERANCE_EXCLUSIVE | GSC_QUIRK_OVERFLOW_IS_GOOD}},
    {"cerebras", "Cerebras 2.10 amp.GradScaler for fp16: counts all steps.", {CEREBRAS(0x1p15)}},
    {"cerebras_cb16",
     "Cerebras 2.10 amp.GradScaler for cb16: counts all steps.",
     {CEREBRAS(0x1p31)}},
    {"guided_diffusion",
     "guided-diffusion MixedPrecisionTrainer: grows by 2^0.001 every good step.",
     {.init_scale = 0x1p20,
      .growth_factor = 0x1.002d711c79a96p0,
      .backoff_factor = 0.5,
      .growth_interval = 1}},
    {"megatron_skip",
     "Megatron-LM of August 2026, grad_norm_skip_threshold: skips a norm above guard_norm, which "
     "you set, and counts it as a good step.",
     {MEGATRON, .guard_flags = GSC_GUARD_SKIP_IS_GOOD}},
    {"metaseq_skip",
     "metaseq skip_gradient_update_on_clip_norm: skips a norm above guard_norm, which you set.",
     {.guard_sample = GSC_SAMPLE_NONE}},
    {"optax_skip",
     "optax 0.2 skip_large_updates: skips a norm of at least guard_norm, which you set.",
     {.guard_flags = GSC_GUARD_INCLUSIVE}},
    {"minfm",
     "minFM of October 2025: skips a norm above 2, from its step 2000 on.",
     {.guard_norm = 2, .guard_warmup = 1999}},
    {"axlearn",
     "axlearn of July 2026, drop_norm_by_grad_norm_ema: skips a norm of at least 20 times the "
     "mean, and keeps it out of the mean, which begins at 1.",
     {.guard_ratio = 20,
      .guard_decay = 0.99,
      .guard_init_mean = 1,
      .guard_sample = GSC_SAMPLE_NONE,
      .guard_flags = GSC_GUARD_INCLUSIVE | GSC_GUARD_BIAS_CORRECTED,
      .quirks = GSC_QUIRK_ALLOW_LOCKOUT}},
    {"zclip",
     "ZClip 1.0: clips a norm above mean + 2.5 sigmas, more if it is larger; for its clip_option "
     "mean take CLIP_TO_MEAN in place of CLIP_PROGRESSIVE.",
     {ZCLIP(GSC_GUARD_CLIP_PROGRESSIVE), .quirks = GSC_QUIRK_ALLOW_LOCKOUT}},
    {"zclip_percentile",
     "ZClip 1.0 in its mode percentile: clips a norm above mean + 2.5 sigmas to that.",
     {ZCLIP(0)}},
    {"open_sora_plan",
     "Open-Sora Plan's AdaptiveGradClipper: clips a norm above mean + 3 sigmas to that, and keeps "
     "it out of both. The mean begins at 1.",
     {.guard_sigmas = 3,
      .guard_decay = 0.99,
      .guard_init_mean = 1,
      .guard_sample = GSC_SAMPLE_NONE,
      .guard_flags = GSC_GUARD_CLIP | GSC_GUARD_VARIANCE_AFTER_MEAN,
      .quirks = GSC_QUIRK_ALLOW_LOCKOUT}},
    {"olmo_like",
     "Nearly OLMo-core 3.0's SkipStepOptimizer, which has a window of 128 norms: skips a norm "
     "above mean + 6 sigmas, which enters both.",
     {.guard_sigmas = 6, .guard_decay = 127.0 / 129, .guard_warmup = 63}},
    {0},
};

#define PRESET_COUNT (sizeof presets / sizeof *presets - 1)

const char *gsc_preset_name(uint32_t index)
{
    return index < PRESET_COUNT ? presets[index].name : NULL;
}

const char *gsc_preset_summary(uint32_t index)
{
    return index < PRESET_COUNT ? presets[index].summary : NULL;
}

gsc_status gsc_policy_preset(const char *name, gsc_policy *out, gsc_error *err)
{
    gsc_begin(err);
    GSC_REQUIRE(name, 0);
    GSC_REQUIRE(out, 1);
    for (const struct preset *p = presets; p->name; p++)
        if (strcmp(name, p->name) == 0)
            return gsc_struct_write(&p->policy, GSC_POLICY_SIZE, out, false, 1, "out", err);
    return gsc_fail(err, GSC_ERROR_PRESET, 0, -1, "name", "is %s, which is no preset%s",
                    GSC_QUOTED(name), GSC_MEANT(": ", name, &presets->name, sizeof *presets));
}

bool gsc_moves(const gsc_policy *p)
{
    const double first = gsc_first_scale(p);
    gsc_state s = {0};
    return gsc_above_floor(p, first) != first || gsc_back_off(p, &s, first) != first ||
           (p->growth_interval != 0 && gsc_grow(p, &s, first) != first);
}

static bool within(double x, double low, double high)
{
    return x >= low && x <= high; /* false for NaN */
}

gsc_status gsc_policy_check_full(const gsc_policy *p, int argument, gsc_error *err)
{
#define CHECK_BITS(name, all)                                                                      \
    if (p->name & ~(all))                                                                          \
    return gsc_fail_bits(err, GSC_ERROR_POLICY, argument, "policy." #name, p->name, all)
#define CHECK(name, low, high, holds, must)                                                        \
    if (!(holds))                                                                                  \
    return gsc_fail_number(err, GSC_ERROR_POLICY, argument, -1, "policy." #name, (double)p->name,  \
                           low, high, must)
    const double largest = 0x1.fffffffffffffp1023;
    CHECK(arithmetic, 0, GSC_ARITHMETIC_F32_FLUSH, p->arithmetic <= GSC_ARITHMETIC_F32_FLUSH,
          "one of the arithmetics");
    CHECK(init_scale, 0, largest, p->init_scale == 0 || gsc_usable(gsc_rounded(p, p->init_scale)),
          "above 0 and finite in the policy's arithmetic, as its inverse, or 0");
    CHECK(growth_factor, 1, largest,
          p->growth_factor == 0 || (within(p->growth_factor, 1, largest) &&
                                    gsc_usable(gsc_rounded_factor(p, p->growth_factor))),
          "finite and at least 1, or 0");
    CHECK(backoff_factor, 0, 1, within(p->backoff_factor, 0, 1), "from 0 to 1");
    CHECK(backoff_factor, 0, 1,
          p->backoff_factor == 0 || gsc_usable(gsc_rounded_factor(p, p->backoff_factor)),
          "above 0 in the policy's arithmetic, or 0");
    CHECK(growth_rule, 0, GSC_GROWTH_ALL_STEPS, p->growth_rule <= GSC_GROWTH_ALL_STEPS,
          "one of the rules of growth");
    const bool unlimited = p->max_scale == 0 || p->max_scale > largest;
    CHECK(max_scale, 0, largest,
          unlimited || (gsc_usable(gsc_rounded(p, p->max_scale)) && gsc_usable(gsc_max_scale(p))),
          "above 0 and finite in the policy's arithmetic, as its inverse, or 0 or infinity");
    if (p->min_scale != 0 && gsc_min_scale(p) > gsc_max_scale(p)) {
        (void)gsc_fail_value(err, GSC_ERROR_POLICY, argument, -1, "policy.min_scale", NULL,
                             GSC_EXACT(p->min_scale), "at most max_scale, which is %s",
                             GSC_EXACT(p->max_scale));
        return gsc_with_numbers(GSC_ERROR_POLICY, err, p->min_scale, 0, gsc_max_scale(p));
    }
    CHECK(min_scale, 0, gsc_max_scale(p),
          p->min_scale == 0 ||
              (gsc_usable(gsc_rounded(p, p->min_scale)) && gsc_usable(gsc_min_scale(p))),
          "above 0, finite and at most max_scale, all in the policy's arithmetic, or 0");
    if (gsc_starts_too_high(p)) {
        (void)gsc_fail_value(err, GSC_ERROR_POLICY, argument, -1, "policy.init_scale", NULL,
                             GSC_EXACT(p->init_scale),
                             "at most max_scale, which is %s, unless ceiling_rule is ENFORCE (1)",
                             GSC_EXACT(p->max_scale));
        return gsc_with_numbers(GSC_ERROR_POLICY, err, p->init_scale, 0, gsc_max_scale(p));
    }
    CHECK(ceiling_rule, 0, GSC_LIMIT_CLAMP_UNLESS_PAST,
          p->ceiling_rule <= GSC_LIMIT_CLAMP_UNLESS_PAST, "one of the rules of limits");
    CHECK(floor_rule, 0, GSC_LIMIT_CLAMP_UNLESS_PAST, p->floor_rule <= GSC_LIMIT_CLAMP_UNLESS_PAST,
          "one of the rules of limits");
    CHECK(overflow_test, 0, GSC_TEST_NORM, p->overflow_test <= GSC_TEST_NORM,
          "one of the tests of overflow");
    CHECK_BITS(overflow_reset, RESET_BITS);
    CHECK(apply_delay, 0, 1, p->apply_delay <= 1, "0 or 1");
    CHECK(overflow_tolerance, 0, 1, within(p->overflow_tolerance, 0, 1), "from 0 to 1");
    CHECK_BITS(quirks, QUIRK_BITS);
    CHECK(overflow_tolerance, 0, 1,
          p->overflow_tolerance < 1 || p->quirks & GSC_QUIRK_TOLERANCE_EXCLUSIVE,
          "below 1, or overflows alone would never lower the scale, unless quirks has "
          "TOLERANCE_EXCLUSIVE (1)");
    CHECK(bad_loss_rule, 0, GSC_BAD_LOSS_HOLD, p->bad_loss_rule <= GSC_BAD_LOSS_HOLD,
          "one of the rules of bad losses");
    CHECK(max_failed_backoffs, 1, 0x1p64,
          p->bad_loss_rule != GSC_BAD_LOSS_HOLD || p->max_failed_backoffs != 0,
          "above 0 if bad_loss_rule is HOLD (1), or a run with bad losses alone would never end");
    CHECK(guard_norm, 0, GSC_GUARD_MAX_VALUE, within(p->guard_norm, 0, GSC_GUARD_MAX_VALUE),
          "from 0 to 2^500");
    CHECK(guard_ratio, 1, 0x1p20,
          p->guard_ratio == 0 || (p->guard_ratio > 1 && p->guard_ratio <= 0x1p20),
          "above 1 and at most 2^20, or 0: at 1 every second step would be an outlier");
    CHECK(guard_sigmas, 0, 0x1p20, within(p->guard_sigmas, 0, 0x1p20), "from 0 to 2^20");
    CHECK(guard_decay, 0, 1, p->guard_decay >= 0 && p->guard_decay < 1, "at least 0 and below 1");
    CHECK(guard_init_mean, 0, GSC_GUARD_MAX_VALUE,
          within(p->guard_init_mean, 0, GSC_GUARD_MAX_VALUE), "from 0 to 2^500");
    CHECK(guard_sample, 0, GSC_SAMPLE_THRESHOLD, p->guard_sample <= GSC_SAMPLE_THRESHOLD,
          "one of the samples");
    CHECK_BITS(guard_flags, GUARD_BITS);
    CHECK(guard_flags, 0, GUARD_BITS,
          p->guard_flags & GSC_GUARD_CLIP ||
              !(p->guard_flags & (GSC_GUARD_CLIP_PROGRESSIVE | GSC_GUARD_CLIP_TO_MEAN)),
          "with CLIP (1), where CLIP_PROGRESSIVE (16) or CLIP_TO_MEAN (128) says how far: alone "
          "they would "
          "skip");
    /*
     * Outliers can move the mean and the variance so little that the threshold stays below them for
     * good. There are three cases. The outlier is not a sample. Or the sample is far below the
     * threshold, because the outlier is clipped to less. Or the threshold is the sample and makes
     * the variance smaller: guard_sigmas, multiplied by the decay or its root, is at most 1.
     */
    const double decay = p->guard_decay == 0 ? 1 : p->guard_decay;
    const double decayed_sigmas = p->guard_flags & GSC_GUARD_VARIANCE_AFTER_MEAN
                                      ? p->guard_sigmas * decay
                                      : p->guard_sigmas * sqrt(decay);
    const bool variance_grows =
        p->guard_sigmas == 0 || (decayed_sigmas > 1 && p->guard_init_mean == 0);
    const uint32_t clip =
        p->guard_flags & (GSC_GUARD_CLIP | GSC_GUARD_CLIP_PROGRESSIVE | GSC_GUARD_CLIP_TO_MEAN);
    const bool threshold_can_stay =
        p->guard_sample == GSC_SAMPLE_NONE ||
        (p->guard_sample == GSC_SAMPLE_THRESHOLD && !(clip == GSC_GUARD_CLIP && variance_grows));
    /*
     * Rounding can keep a constant norm an outlier. The mean stops moving when its change is less
     * than half a unit in the last place; the norm must be below the threshold by then. If samples
     * enter as they are, the variance becomes the square of the norm's distance from the mean. When
     * the mean reaches the norm, the variance is 0, and the threshold equals the norm.
     */
    const bool ratio_rounds = p->guard_ratio != 0 && p->guard_decay != 0 &&
                              (1 - p->guard_decay) * (p->guard_ratio - 1) < 0x1p-52;
    const double sigmas_at_mean =
        p->guard_flags & GSC_GUARD_VARIANCE_AFTER_MEAN ? p->guard_sigmas : decayed_sigmas;
    const bool sigmas_round =
        p->guard_sigmas != 0 &&
        ((p->guard_sample == GSC_SAMPLE_AS_IS && p->guard_decay != 0 && sigmas_at_mean <= 1) ||
         (p->guard_flags & GSC_GUARD_INCLUSIVE &&
          (p->guard_decay != 0 || p->guard_init_mean != 0)));
    CHECK(guard_max_in_a_row, 1, 0x1p64,
          p->guard_max_in_a_row != 0 || !(ratio_rounds || sigmas_round) ||
              p->quirks & GSC_QUIRK_ALLOW_LOCKOUT,
          "above 0: roundings could make all steps outliers while the norm stays the same");
    CHECK(guard_max_in_a_row, 1, 0x1p64,
          p->guard_max_in_a_row != 0 || !threshold_can_stay ||
              (p->guard_ratio == 0 && p->guard_sigmas == 0) || p->quirks & GSC_QUIRK_ALLOW_LOCKOUT,
          "above 0: guard_sample keeps outliers out, so after a lasting change of level all steps "
          "would be outliers");
#undef CHECK
#undef CHECK_BITS
    return GSC_OK;
}

gsc_status gsc_policy_read(const gsc_policy *from, gsc_policy *full, int argument, gsc_error *err)
{
    if (!from)
        return gsc_fail_null(err, argument, "policy");
    GSC_TRY(gsc_struct_read(from, full, GSC_POLICY_SIZE, argument, "policy", err));
    return gsc_policy_check_full(full, argument, err);
}

gsc_status gsc_policy_check(const gsc_policy *policy, gsc_error *err)
{
    gsc_begin(err);
    gsc_policy full;
    return gsc_policy_read(policy, &full, 0, err);
}

gsc_status gsc_policy_resolve(const gsc_policy *policy, gsc_policy *out, gsc_trait *traits,
                              gsc_error *err)
{
    gsc_begin(err);
    gsc_policy full;
    GSC_TRY(gsc_policy_read(policy, &full, 0, err));
    const uint32_t wants = gsc_policy_wants(&full);
    const uint32_t found_traits = (gsc_moves(&full) ? GSC_TRAIT_MOVES : 0u) |
                                  (gsc_guards(&full) ? GSC_TRAIT_GUARDS : 0u) |
                                  (wants & GSC_WANT_NORM ? GSC_TRAIT_NEEDS_NORM : 0u) |
                                  (full.bad_loss_rule == GSC_BAD_LOSS_HOLD ? GSC_TRAIT_HOLDS : 0u);
    full.backoff_factor = gsc_backoff_factor(&full);
    full.growth_factor = gsc_growth_factor(&full);
    full.init_scale = full.init_scale == 0 ? 1 : full.init_scale;
    full.hysteresis = gsc_hysteresis(&full);
    if (out)
        GSC_TRY(gsc_struct_write(&full, GSC_POLICY_SIZE, out, false, 1, "out", err));
    if (traits)
        *traits = found_traits;
    return GSC_OK;
}
