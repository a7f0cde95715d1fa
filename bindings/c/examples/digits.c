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
 * For a training loop of your own, read `step`; the rest is network and data. The exit status is 1
 * if float16 does not fail without scaling, or does not match float32 with it.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gradscaler.h>

enum { PIXELS = 64, WIDTH = 64, CLASSES = 10, LAYERS = 3, SEED = 1 };
enum { STEPS = 400, BATCH = 256, DIGITS = 1797, TRAINING_SET = 1280 };
enum { TEST_SET = DIGITS - TRAINING_SET, TENSORS = 2 * LAYERS, LARGEST = WIDTH * WIDTH };
static const float LEARNING_RATE = 0.01f, LOSS_WEIGHT = 1e-4f;
static const size_t SIZES[LAYERS + 1] = {PIXELS, WIDTH, WIDTH, CLASSES};

/* A tensor each for weight, bias, weight, bias, ...; the small ones leave the rest unused. */
typedef float parameters[TENSORS][LARGEST];

typedef struct digit {
    uint8_t pixels[PIXELS], label;
} digit;

typedef struct network {
    uint32_t dtype;                                  /* of everything but the master weights */
    parameters master, rounded;                      /* float32, and as dtype holds them */
    parameters gradients, mean, square;              /* float32, and Adam's moments */
    uint16_t half[TENSORS][LARGEST];                 /* the gradients as float16 */
    float activations[LAYERS + 1][TEST_SET * WIDTH]; /* the images first, the logits last */
    float delta[BATCH * WIDTH];                      /* gradient of a layer's output */
    int updates;
    uint64_t random;
} network;

static void must(gsc_status status)
{
    if (status != GSC_OK) {
        fprintf(stderr, "gradscaler: %s\n", gsc_status_string(status));
        exit(1);
    }
}

static size_t tensor_size(size_t t)
{
    return t % 2 ? SIZES[t / 2 + 1] : SIZES[t / 2] * SIZES[t / 2 + 1];
}

/*
 * Multiplies by the factor and rounds to dtype. C has no float16 to compute with: the results are
 * floats again, but only such as float16 can hold. `to` may be `from`.
 */
static void round_to(uint32_t dtype, const gsc_factor *factor, float *from, float *to, size_t count)
{
    uint16_t half[TEST_SET * WIDTH];
    const gsc_tensor in = {from, count, GSC_F32, 0}, out = {to, count, GSC_F32, 0};
    const gsc_tensor stored = dtype == GSC_F16 ? (gsc_tensor){half, count, GSC_F16, 0} : out;
    must(gsc_scale(NULL, factor, &in, &stored, 1, NULL, NULL, NULL));
    must(gsc_scale(NULL, NULL, &stored, &out, 1, NULL, NULL, NULL));
}

/* ---- The network ---- */

/* Sums in float32, as the matrix units of accelerators do. */
static void matmul(const float *a, const float *b, size_t rows, size_t inner, size_t columns,
                   float *restrict out)
{
    memset(out, 0, rows * columns * sizeof *out);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < inner; i++)
            for (size_t c = 0; c < columns; c++)
                out[r * columns + c] += a[r * inner + i] * b[i * columns + c];
}

static void transpose(const float *a, size_t rows, size_t columns, float *restrict out)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            out[c * rows + r] = a[r * columns + c];
}

static void forward(network *net, const digit *digits, size_t rows)
{
    for (size_t t = 0; t < TENSORS; t++)
        round_to(net->dtype, NULL, net->master[t], net->rounded[t], tensor_size(t));
    for (size_t i = 0; i < rows * PIXELS; i++) /* exact in float16, too */
        net->activations[0][i] = (float)digits[i / PIXELS].pixels[i % PIXELS] / 16;
    for (size_t l = 0; l < LAYERS; l++) {
        const size_t columns = SIZES[l + 1];
        float *out = net->activations[l + 1];
        matmul(net->activations[l], net->rounded[2 * l], rows, SIZES[l], columns, out);
        for (size_t i = 0; i < rows * columns; i++) {
            const float z = out[i] + net->rounded[2 * l + 1][i % columns];
            out[i] = l + 1 < LAYERS ? 0.5f * tanhf(0.5f * z) + 0.5f : z; /* the sigmoid */
        }
        round_to(net->dtype, NULL, out, out, rows * columns);
    }
}

/* d loss / d logits of the weighted mean cross-entropy. */
static void loss_gradient(network *net, const digit *digits)
{
    for (size_t r = 0; r < BATCH; r++) {
        const float *logits = &net->activations[LAYERS][r * CLASSES];
        float most = -INFINITY, sum = 0;
        for (size_t c = 0; c < CLASSES; c++)
            most = fmaxf(most, logits[c]);
        for (size_t c = 0; c < CLASSES; c++)
            sum += expf(logits[c] - most);
        for (size_t c = 0; c < CLASSES; c++) {
            const float target = c == digits[r].label ? 1 : 0;
            net->delta[r * CLASSES + c] =
                (expf(logits[c] - most) / sum - target) * LOSS_WEIGHT / BATCH;
        }
    }
}

static void backward(network *net)
{
    float turned[BATCH * WIDTH], next[BATCH * WIDTH], ones[BATCH];
    for (size_t r = 0; r < BATCH; r++)
        ones[r] = 1;
    for (size_t l = LAYERS; l-- > 0;) {
        const size_t in = SIZES[l], out = SIZES[l + 1];
        transpose(net->activations[l], BATCH, in, turned);
        matmul(turned, net->delta, in, BATCH, out, net->gradients[2 * l]);
        matmul(ones, net->delta, 1, BATCH, out, net->gradients[2 * l + 1]);
        if (l == 0)
            return; /* the images have no gradient */
        transpose(net->rounded[2 * l], in, out, turned);
        matmul(net->delta, turned, BATCH, out, in, next);
        for (size_t i = 0; i < BATCH * in; i++)
            next[i] *= net->activations[l][i] * (1 - net->activations[l][i]);
        round_to(net->dtype, NULL, next, net->delta, BATCH * in);
    }
}

static void adam(network *net)
{
    net->updates++;
    const float mean_share = 1 - powf(0.9f, (float)net->updates),
                square_share = 1 - powf(0.999f, (float)net->updates);
    /*
     * Adam divides by the size of gradients: an epsilon with the loss's weight in it leaves
     * float16's rounding as the only difference between the runs.
     */
    const float epsilon = 1e-8f * LOSS_WEIGHT;
    for (size_t t = 0; t < TENSORS; t++)
        for (size_t i = 0; i < tensor_size(t); i++) {
            const float g = net->gradients[t][i];
            float *mean = &net->mean[t][i], *square = &net->square[t][i];
            *mean += 0.1f * (g - *mean);
            *square += 0.001f * (g * g - *square);
            net->master[t][i] -=
                LEARNING_RATE * *mean / mean_share / (sqrtf(*square / square_share) + epsilon);
        }
}

/* ---- Training ---- */

/* A xorshift generator: the same numbers in every run. */
static uint64_t next_random(network *net)
{
    net->random ^= net->random << 13;
    net->random ^= net->random >> 7;
    net->random ^= net->random << 17;
    return net->random;
}

/* One step of training: the place where a scaler works. */
static void step(network *net, const gsc_policy *policy, gsc_state *state, const digit *batch)
{
    gsc_report report;
    gsc_options options = GSC_OPTIONS_INIT;
    gsc_tensor wide[TENSORS], stored[TENSORS];
    for (size_t t = 0; t < TENSORS; t++) {
        wide[t] = (gsc_tensor){net->gradients[t], tensor_size(t), GSC_F32, 0};
        stored[t] = wide[t];
        if (net->dtype == GSC_F16)
            stored[t] = (gsc_tensor){net->half[t], tensor_size(t), GSC_F16, 0};
    }
    /* Forward and backward in dtype, from the loss's gradient times the scale. */
    forward(net, batch, BATCH);
    loss_gradient(net, batch);
    round_to(net->dtype, &state->factor, net->delta, net->delta, BATCH * CLASSES);
    backward(net);
    must(gsc_scale(NULL, NULL, wide, stored, TENSORS, NULL, NULL, NULL));

    /* All gradients in one call: check, divide by the scale, convert to float32. */
    options.policy = policy;
    must(gsc_unscale(NULL, &state->factor, stored, wide, TENSORS, &options, &report, NULL));
    if (!report.overflow)
        adam(net);
    must(gsc_state_update(NULL, policy, state, &report, state, NULL));
}

/* The share of the test digits, in percent, that are read right. */
static double accuracy(network *net, const digit *digits)
{
    size_t right = 0;
    forward(net, digits, TEST_SET);
    for (size_t i = 0; i < TEST_SET; i++) {
        const float *logits = &net->activations[LAYERS][i * CLASSES];
        size_t best = 0;
        for (size_t c = 1; c < CLASSES; c++)
            best = logits[c] > logits[best] ? c : best;
        right += best == digits[i].label;
    }
    return 100 * (double)right / TEST_SET;
}

static double train(const char *name, uint32_t dtype, const gsc_policy *policy, const digit *digits)
{
    static network net; /* too large for the stack */
    digit batch[BATCH];
    gsc_state state;
    memset(&net, 0, sizeof net);
    net.dtype = dtype;
    net.random = SEED;
    for (size_t l = 0; l < LAYERS; l++) {
        const float limit = sqrtf(6 / (float)(SIZES[l] + SIZES[l + 1]));
        for (size_t i = 0; i < tensor_size(2 * l); i++)
            net.master[2 * l][i] = limit * ((float)(next_random(&net) >> 40) / 0x1p23f - 1);
    }
    must(gsc_state_init(NULL, policy, NULL, &state, NULL));
    for (int i = 0; i < STEPS; i++) {
        for (size_t r = 0; r < BATCH; r++)
            batch[r] = digits[next_random(&net) % TRAINING_SET];
        step(&net, policy, &state, batch);
    }
    const double percent = accuracy(&net, digits + TRAINING_SET);
    printf("%-16s %7.1f%% %9lld %9lld %13.0f\n", name, percent, (long long)state.skipped,
           (long long)state.growths, state.factor.scale);
    return percent;
}

int main(int argc, char **argv)
{
    static digit digits[DIGITS + 1]; /* one more, to notice a file that is too long */
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (!file || fread(digits, sizeof *digits, DIGITS + 1, file) != DIGITS) {
        fprintf(stderr, "usage: digits FILE, of 1,797 records of %d bytes\n", PIXELS + 1);
        return 1;
    }
    fclose(file);

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
    if (f16_alone > f32_alone - 10 || fabs(f16_scaled - f32_alone) > 1) {
        fprintf(stderr, "float16 should fail without a scaler and match float32 with it\n");
        return 1;
    }
    return 0;
}
