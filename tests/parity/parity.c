/* SPDX-License-Identifier: MIT */
/* The C client of the parity test; README.md says what every client reads and prints. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <gradscaler.h>

#include "../replay/pairs.h"

static void check(gsc_status status, const gsc_error *err)
{
    if (status == GSC_OK)
        return;
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

static void read_exactly(void *to, uint64_t size, FILE *file)
{
    if (fread(to, 1, size, file) == size)
        return;
    fprintf(stderr, "the file ends too early\n");
    exit(1);
}

static void *allocate(uint64_t size)
{
    void *memory = calloc(1, size + 1);
    if (!memory)
        exit(1);
    return memory;
}

/* The CRC-32 of zlib. */
static void add(uint32_t *digest, const void *data, uint64_t size)
{
    const unsigned char *bytes = data;
    uint32_t crc = ~*digest;
    for (uint64_t i = 0; i < 8 * size; i++) {
        crc ^= i % 8 == 0 ? bytes[i / 8] : 0;
        crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    *digest = ~crc;
}

static void add_metrics(uint32_t *digest, const gsc_policy *policy, const gsc_state *state,
                        const gsc_report *report)
{
    gsc_entry metrics[32];
    uint64_t count = 0;
    gsc_error err;
    check(gsc_state_metrics(policy, state, report, metrics, 32, &count, &err), &err);
    for (uint64_t i = 0; i < count; i++)
        if (metrics[i].kind != GSC_ENTRY_NULL) {
            add(digest, metrics[i].key, strlen(metrics[i].key));
            add(digest, &metrics[i].value, sizeof metrics[i].value);
        }
}

/* The line of a history without time. */
static void add_line(uint32_t *digest, const gsc_state *state, const gsc_report *report,
                     uint64_t step)
{
    char line[4096];
    uint64_t size;
    gsc_error err;
    check(gsc_history_line(state, report, NULL, NULL, NULL, 0, step, 0, "parity", line, sizeof line,
                           &size, &err),
          &err);
    add(digest, line, size);
}

static void add_start(uint32_t *digest, const gsc_policy *policy, const gsc_state *state,
                      uint64_t step)
{
    char line[4096];
    uint64_t size;
    gsc_error err;
    check(gsc_history_start(policy, NULL, state, NULL, 0, step, 0, 0, "parity", line, sizeof line,
                            &size, &err),
          &err);
    add(digest, line, size);
}

/* One step; `back` receives the first tensor, scaled again. */
static void step(const gsc_policy *policy, gsc_state *state, uint32_t number, float loss,
                 const gsc_tensor *in, const gsc_tensor *out, const gsc_tensor *back, uint32_t n,
                 uint32_t *digest)
{
    int64_t histogram[GSC_HISTOGRAM_LENGTH];
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_report report;
    gsc_error err;
    options.want = GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW;
    options.histogram = histogram;
    options.loss = &(gsc_tensor){.data = &loss, .count = 1, .dtype = GSC_F32};
    check(gsc_unscale(NULL, &state->factor, in, out, n, &options, &report, &err), &err);
    check(gsc_scale(NULL, &state->factor, out, back, 1, NULL, NULL, &err), &err);
    check(gsc_state_update(NULL, policy, state, &report, state, &err), &err);
    for (uint32_t i = 0; i < n; i++)
        add(digest, out[i].data, out[i].count * 4);
    add(digest, back->data, back->count * gsc_dtype_size(back->dtype));
    add(digest, &report, offsetof(gsc_report, digest));
    add(digest, histogram, sizeof histogram);
    add(digest, state, offsetof(gsc_state, skip_f32) + sizeof state->skip_f32);
    add_metrics(digest, policy, state, &report);
    add_line(digest, state, &report, number);
}

static void save_and_reload(gsc_policy *policy, gsc_state *state)
{
    unsigned char bytes[GSC_SAVED_SIZE_MAX];
    uint64_t size;
    gsc_error err;
    check(gsc_state_save(policy, state, bytes, sizeof bytes, &size, &err), &err);
    memset(state, 0, sizeof *state);
    *policy = (gsc_policy)GSC_POLICY_INIT;
    check(gsc_state_load(bytes, size, policy, state, &err), &err);
}

int main(int count, char **arguments)
{
    char line[512], preset[64], settings[400];
    uint32_t sizes[2], digest = 0;
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_error err;
    FILE *file = count == 2 ? fopen(arguments[1], "rb") : NULL;
    if (!file || !fgets(line, sizeof line, file) ||
        sscanf(line, "%63s %399s", preset, settings) != 2) {
        fprintf(stderr, "usage: parity FILE, as tests/parity/README.md describes it\n");
        return 1;
    }
    check(read_policy(preset, settings, &policy, &err), &err);
    check(gsc_state_init(NULL, &policy, &state, &err), &err);

    read_exactly(sizes, sizeof sizes, file);
    gsc_tensor *in = allocate(sizes[1] * sizeof *in), *out = allocate(sizes[1] * sizeof *out);
    for (uint32_t i = 0; i < sizes[1]; i++) {
        read_exactly(&in[i].dtype, 8, file); /* and reserved */
        read_exactly(&in[i].count, 8, file);
        in[i].data = allocate(in[i].count * gsc_dtype_size(in[i].dtype));
        out[i] =
            (gsc_tensor){.data = allocate(in[i].count * 4), .count = in[i].count, .dtype = GSC_F32};
    }
    for (uint32_t i = 0; i < sizes[0]; i++) {
        float loss;
        read_exactly(&loss, sizeof loss, file);
        for (uint32_t j = 0; j < sizes[1]; j++)
            read_exactly(in[j].data, in[j].count * gsc_dtype_size(in[j].dtype), file);
        step(&policy, &state, i + 1, loss, in, out, &in[0], sizes[1], &digest);
        if (i + 1 == sizes[0] / 2) {
            save_and_reload(&policy, &state);
            add_start(&digest, &policy, &state, i + 2);
        }
    }
    printf("%08x %lld %.17g\n", digest, (long long)(state.total_overflows + state.total_bad_losses),
           state.factor.scale);
    for (uint32_t i = 0; i < sizes[1]; i++) {
        free(in[i].data);
        free(out[i].data);
    }
    free(in);
    free(out);
    return fclose(file);
}
