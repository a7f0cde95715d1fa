/* SPDX-License-Identifier: MIT */
/*
 * Training in float16, on real data: a small network learns to read handwritten digits.
 *
 *     digits FILE
 *
 * FILE holds the 1,797 digits of scikit-learn's load_digits: 64 bytes of pixels (0 to 16) and a
 * byte of label each. It trains three times from the same start: in float32; with float16 weights,
 * activations and gradients; and in float16 with a scaler. The loss is weighted 1e-4, as for an
 * auxiliary head, so most gradients are too small for float16, which rounds them to zero.
 *
 * For a training loop of your own, read `step`; network and data are in network.h. The exit status
 * is 1 if float16 does not fail without scaling, or does not match float32 with it.
 */
#include "network.h"

/* One step of training: the place where a scaler works. */
static void step(network *net, const gsc_policy *policy, gsc_state *state, const digit *batch)
{
    gsc_report report;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_tensor wide[TENSORS], stored[TENSORS];
    for (size_t t = 0; t < TENSORS; t++) {
        wide[t] =
            (gsc_tensor){.data = net->gradients[t], .count = tensor_size(t), .dtype = GSC_F32};
        stored[t] = wide[t];
        if (net->dtype == GSC_F16)
            stored[t] =
                (gsc_tensor){.data = net->half[t], .count = tensor_size(t), .dtype = GSC_F16};
    }
    /* Forward and backward in dtype, from the loss's gradient times the scale. */
    forward(net, batch, BATCH);
    loss_gradient(net, batch, BATCH);
    round_to(net->dtype, &state->factor, net->delta, net->delta, BATCH * CLASSES);
    backward(net, BATCH);
    must(gsc_scale(NULL, NULL, wide, stored, TENSORS, NULL, NULL, NULL));

    /* All gradients in one call: check, divide by the scale, convert to float32. */
    options.policy = policy;
    must(gsc_unscale(NULL, &state->factor, stored, wide, TENSORS, &options, &report, NULL));
    must(gsc_state_update(NULL, policy, state, &report, state, NULL));
    if (!state->skip)
        adam(net, 0, TENSORS * LARGEST);
}

static double train(const char *name, uint32_t dtype, const gsc_policy *policy, const digit *digits)
{
    static network net; /* too large for the stack */
    digit batch[BATCH];
    gsc_state state;
    start(&net, dtype);
    must(gsc_state_init(NULL, policy, &state, NULL));
    for (int i = 0; i < STEPS; i++) {
        next_batch(&net, digits, batch);
        step(&net, policy, &state, batch);
    }
    const double percent = accuracy(&net, digits + TRAINING_SET);
    printf("%-16s %7.1f%% %9lld %9lld %13.0f\n", name, percent, (long long)state.total_overflows,
           (long long)state.total_growths, state.factor.scale);
    return percent;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: digits FILE\n");
        return 1;
    }
    const digit *digits = read_digits(argv[1]);
    gsc_policy none = GSC_POLICY_INIT, scaled = GSC_POLICY_INIT;
    must(gsc_policy_preset("none", &none, NULL));
    must(gsc_policy_preset("torch", &scaled, NULL));
    /* A start that is too high on purpose and a short interval show the scale move. */
    scaled.init_scale = 0x1p40;
    scaled.growth_interval = 25;

    printf("%-16s %8s %9s %9s %13s\n", "training", "accuracy", "skipped", "growths", "final scale");
    const double f32_alone = train("float32", GSC_F32, &none, digits);
    const double f16_alone = train("float16", GSC_F16, &none, digits);
    const double f16_scaled = train("float16, scaled", GSC_F16, &scaled, digits);
    if (f16_alone > f32_alone - 10 || fabs(f16_scaled - f32_alone) > 2) {
        fprintf(stderr, "float16 should fail without a scaler and match float32 with it\n");
        return 1;
    }
    return 0;
}
