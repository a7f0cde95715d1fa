/* SPDX-License-Identifier: MIT */
/*
 * The network and the data of the examples that learn to read handwritten digits, in plain C:
 * float16 weights, activations and gradients, float32 master weights, Adam. What the examples show
 * is not in here.
 */
#ifndef NETWORK_H
#define NETWORK_H

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
    const gsc_tensor in = {.data = from, .count = count, .dtype = GSC_F32},
                     out = {.data = to, .count = count, .dtype = GSC_F32};
    const gsc_tensor stored =
        dtype == GSC_F16 ? (gsc_tensor){.data = half, .count = count, .dtype = GSC_F16} : out;
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
    for (size_t i = 0; i < rows * PIXELS; i++) /* also exact in float16 */
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

/* d loss / d logits of the weighted mean cross-entropy of a batch, for `rows` of its rows. */
static void loss_gradient(network *net, const digit *digits, size_t rows)
{
    for (size_t r = 0; r < rows; r++) {
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

static void backward(network *net, size_t rows)
{
    float turned[BATCH * WIDTH], next[BATCH * WIDTH], ones[BATCH];
    for (size_t r = 0; r < rows; r++)
        ones[r] = 1;
    for (size_t l = LAYERS; l-- > 0;) {
        const size_t in = SIZES[l], out = SIZES[l + 1];
        transpose(net->activations[l], rows, in, turned);
        matmul(turned, net->delta, in, rows, out, net->gradients[2 * l]);
        matmul(ones, net->delta, 1, rows, out, net->gradients[2 * l + 1]);
        if (l == 0)
            return; /* the images have no gradient */
        transpose(net->rounded[2 * l], in, out, turned);
        matmul(net->delta, turned, rows, out, in, next);
        for (size_t i = 0; i < rows * in; i++)
            next[i] *= net->activations[l][i] * (1 - net->activations[l][i]);
        round_to(net->dtype, NULL, next, net->delta, rows * in);
    }
}

/* Adam on elements `begin` to `end` of all parameters, as they lie one after the other. */
static void adam(network *net, size_t begin, size_t end)
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
            if (t * LARGEST + i < begin || t * LARGEST + i >= end)
                continue;
            const float g = net->gradients[t][i];
            float *mean = &net->mean[t][i], *square = &net->square[t][i];
            *mean += 0.1f * (g - *mean);
            *square += 0.001f * (g * g - *square);
            net->master[t][i] -=
                LEARNING_RATE * *mean / mean_share / (sqrtf(*square / square_share) + epsilon);
        }
}

/* A xorshift generator: the same numbers in every run. */
static uint64_t next_random(network *net)
{
    net->random ^= net->random << 13;
    net->random ^= net->random >> 7;
    net->random ^= net->random << 17;
    return net->random;
}

/* The weights before the first step. */
static void start(network *net, uint32_t dtype)
{
    memset(net, 0, sizeof *net);
    net->dtype = dtype;
    net->random = SEED;
    for (size_t l = 0; l < LAYERS; l++) {
        const float limit = sqrtf(6 / (float)(SIZES[l] + SIZES[l + 1]));
        for (size_t i = 0; i < tensor_size(2 * l); i++)
            net->master[2 * l][i] = limit * ((float)(next_random(net) >> 40) / 0x1p23f - 1);
    }
}

static void next_batch(network *net, const digit *digits, digit *batch)
{
    for (size_t r = 0; r < BATCH; r++)
        batch[r] = digits[next_random(net) % TRAINING_SET];
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

/* The 1,797 digits of a file, or the end of the program. */
static const digit *read_digits(const char *path)
{
    static digit digits[DIGITS + 1]; /* one more, to notice a file that is too long */
    FILE *file = fopen(path, "rb");
    if (!file || fread(digits, sizeof *digits, DIGITS + 1, file) != DIGITS) {
        fprintf(stderr, "%s is not 1,797 records of %d bytes\n", path, PIXELS + 1);
        exit(1);
    }
    fclose(file);
    return digits;
}

#endif
