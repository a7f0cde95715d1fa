/* SPDX-License-Identifier: MIT */
/*
 * The public calls on a CUDA device against the same calls on the CPU, bit for bit: every operation
 * and pair of dtypes, reports of each tensor, states and factors, memory and copies, graphs whose
 * list is gone and whose gradients change, two threads and streams, a training step in one graph.
 * How fast it is gpu_bench.c measures.
 *
 *     gpu             all of it
 *     gpu GROUP       one group of gpu --groups
 *     gpu --replay    a client of tests/replay/replay.py, with its states on the device
 *
 * Without CUDA it says so and does nothing.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>

#include "../replay/pairs.h"
#include "gpu.h"

/* ---- lists, on both sides ---- */

/* Inputs and outputs in one piece of memory each, on the host and on the device. */
typedef struct lists {
    uint64_t n, bytes[2];
    gsc_tensor *host[2], *device[2]; /* [0] the inputs, [1] the outputs */
    unsigned char *host_memory[2], *device_memory[2], *start[2];
} lists;

/* Each so many bytes past a multiple of 16. */
static void lists_add_at(lists *l, uint64_t count, uint32_t in, uint32_t out, uint64_t in_past,
                         uint64_t out_past)
{
    const uint32_t dtypes[] = {in, out};
    const uint64_t past[] = {in_past, out_past};
    for (int side = 0; side < 2; side++) {
        l->host[side] = realloc(l->host[side], (l->n + 1) * sizeof(gsc_tensor));
        if (!l->host[side])
            die("out of memory", "host");
        l->bytes[side] += 16 - l->bytes[side] % 16 + past[side];
        l->host[side][l->n] = (gsc_tensor){
            .data = (void *)(uintptr_t)l->bytes[side], .count = count, .dtype = dtypes[side]};
        l->bytes[side] += count * gsc_dtype_size(dtypes[side]);
    }
    l->n++;
}

/* At any address, mostly at one that suits the dtype. */
static void lists_add(lists *l, uint64_t count, uint32_t in, uint32_t out)
{
    uint64_t in_past = random_bits() % 4 ? 0 : random_bits() % 16;
    uint64_t out_past = random_bits() % 4 ? 0 : random_bits() % 16;
    lists_add_at(l, count, in, out, in_past, out_past);
}

static void lists_allocate(lists *l)
{
    for (int side = 0; side < 2; side++) {
        l->host_memory[side] = allocated(l->bytes[side]);
        l->start[side] = allocated(l->bytes[side]);
        l->device_memory[side] = device_memory(l->bytes[side]);
        l->device[side] = allocated(l->n * sizeof(gsc_tensor));
        for (uint64_t i = 0; i < l->n; i++) {
            uint64_t offset = (uint64_t)(uintptr_t)l->host[side][i].data;
            l->device[side][i] = l->host[side][i];
            l->device[side][i].data = l->device_memory[side] + offset;
            l->host[side][i].data = l->host_memory[side] + offset;
        }
    }
}

static void lists_free(lists *l)
{
    for (int side = 0; side < 2; side++) {
        free(l->host[side]);
        free(l->device[side]);
        free(l->host_memory[side]);
        free(l->start[side]);
        device_free(l->device_memory[side]);
    }
    memset(l, 0, sizeof *l);
}

/* Ordinary values, cast to each dtype; with a few bad ones among them; any bits. */
enum kind { TAME, RARELY_BAD, WILD, KINDS };
static const char *const kind_names[] = {"ordinary values", "a few bad values", "any bits"};

/* What is on the host is where every operation starts. */
static void lists_start(lists *l)
{
    for (int side = 0; side < 2; side++) {
        memcpy(l->start[side], l->host_memory[side], l->bytes[side]);
        upload(l->device_memory[side], l->start[side], l->bytes[side]);
    }
}

static void lists_fill(lists *l, enum kind kind)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN, 3e38f};
    for (int side = 0; side < 2; side++) {
        for (uint64_t i = 0; kind == WILD && i < l->bytes[side]; i++)
            l->host_memory[side][i] = (unsigned char)(random_bits() >> 32);
        for (uint64_t i = 0; kind != WILD && i < l->n; i++) {
            const gsc_tensor *t = &l->host[side][i];
            uint64_t parts = is_complex(t->dtype) ? 2 * t->count : t->count;
            float *values = allocated(parts * sizeof *values);
            for (uint64_t j = 0; j < parts; j++)
                values[j] = kind == RARELY_BAD && random_bits() % 1500 == 0 ? bad[random_bits() % 4]
                                                                            : random_float();
            gsc_tensor from = {.data = values,
                               .count = t->count,
                               .dtype = is_complex(t->dtype) ? GSC_COMPLEX64 : GSC_F32};
            GSC(gsc_scale(NULL, NULL, &from, t, 1, NULL, NULL, &err));
            free(values);
        }
    }
    lists_start(l);
}

static void lists_restart(lists *l)
{
    for (int side = 0; side < 2; side++) {
        memcpy(l->host_memory[side], l->start[side], l->bytes[side]);
        upload(l->device_memory[side], l->start[side], l->bytes[side]);
    }
}

static long checks;

static bool same(const char *what, const void *cpu, const void *gpu, uint64_t bytes)
{
    checks++;
    if (memcmp(cpu, gpu, bytes) == 0)
        return true;
    uint64_t at = 0;
    while (((const unsigned char *)cpu)[at] == ((const unsigned char *)gpu)[at])
        at++;
    printf("%s: byte %" PRIu64 " of %" PRIu64 " differs\n", what, at, bytes);
    check_failures++;
    return false;
}

static void same_report(const char *what, const gsc_report *cpu, const void *device_report)
{
    gsc_report gpu;
    download(&gpu, device_report, sizeof gpu);
    if (!same(what, cpu, &gpu, sizeof gpu))
        printf("  cpu, gpu: overflow %d %d, amax %a %a, squares %a %a, nan %" PRId64 " %" PRId64
               ", inf %" PRId64 " %" PRId64 ", status %d %d\n",
               cpu->overflow, gpu.overflow, cpu->amax, gpu.amax, cpu->sum_squares, gpu.sum_squares,
               cpu->nan_count, gpu.nan_count, cpu->inf_count, gpu.inf_count, cpu->status,
               gpu.status);
}

/* The memory of one side; names the tensor that differs. */
static void same_memory(const char *what, const lists *l, int side)
{
    unsigned char *gpu = allocated(l->bytes[side]);
    download(gpu, l->device_memory[side], l->bytes[side]);
    if (!same(what, l->host_memory[side], gpu, l->bytes[side]))
        for (uint64_t i = 0; i < l->n; i++) {
            const gsc_tensor *t = &l->host[side][i];
            uint32_t size = gsc_dtype_size(t->dtype);
            const unsigned char *mine = t->data;
            const unsigned char *its = gpu + (mine - l->host_memory[side]);
            if (memcmp(mine, its, t->count * size) == 0)
                continue;
            uint64_t at = 0;
            while (memcmp(mine + at * size, its + at * size, size) == 0)
                at++;
            printf("  tensor %" PRIu64 ", %s to %s, %" PRIu64 " elements: element %" PRIu64 "\n", i,
                   dtype_names[l->host[0][i].dtype], dtype_names[l->host[1][i].dtype], t->count,
                   at);
            break;
        }
    free(gpu);
}

/* ---- conformance: the tensors ---- */

enum operation { SCALE, CHECK_ONLY, UNSCALE, CLAMP, ACCUMULATE, OPERATIONS };
static const char *const operation_names[] = {"scale", "check", "unscale", "clamp", "accumulate"};
enum { WANT_ALL = GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW };

/* `options` has no clamp. */
static gsc_status run_operation(enum operation operation, const gsc_exec *on,
                                const gsc_factor *factor, const gsc_tensor *in,
                                const gsc_tensor *out, uint64_t n,
                                const gsc_tensor_options *options, gsc_report *report,
                                gsc_error *err)
{
    gsc_tensor_options clamped = *options;
    clamped.clamp = 0.75;
    switch (operation) {
    case SCALE:
        return gsc_scale(on, factor, in, out, n, options, report, err);
    case CHECK_ONLY:
        return gsc_measure(on, factor, in, n, options, report, err);
    case UNSCALE:
        return gsc_unscale(on, factor, in, out, n, options, report, err);
    case CLAMP:
        return gsc_unscale(on, factor, in, out, n, &clamped, report, err);
    default:
        return gsc_unscale_accumulate(on, factor, in, out, n, options, report, err);
    }
}

/* What a call on tensors writes beside them. */
typedef struct results {
    gsc_factor factor;
    gsc_report report;
    int64_t histogram[GSC_HISTOGRAM_LENGTH];
    gsc_report each[];
} results;

/* One operation over the list on both sides; `side` 0 is in place. All that is wanted is that, a
 * report of each tensor, a histogram, and a policy that judges by the norm. */
static void compare_operation(const gsc_exec *on, lists *l, enum operation operation, int side,
                              uint32_t want, double scale, const char *data)
{
    const uint64_t bytes = sizeof(results) + l->n * sizeof(gsc_report);
    results *host = allocated(bytes), *got = allocated(bytes), *device = device_memory(bytes);
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT, on_device;
    gsc_policy policy = GSC_POLICY_INIT;
    char what[128];
    snprintf(what, sizeof what, "%s%s, want %" PRIu32 ", scale %a, %s", operation_names[operation],
             side ? "" : " in place", want, scale, data);
    policy.overflow_test = GSC_TEST_NORM;
    options.want = want;
    on_device = options;
    if (want == WANT_ALL) {
        options.policy = on_device.policy = &policy;
        options.per_tensor = host->each;
        options.histogram = host->histogram;
        on_device.per_tensor = device->each;
        on_device.histogram = device->histogram;
    }
    /* As of a state: gsc_factor_init refuses what a float cannot hold. */
    host->factor = (gsc_factor){scale, 1 / scale, (float)scale, (float)(1 / scale), 7};
    lists_restart(l);
    upload(device, host, bytes);
    GSC(run_operation(operation, NULL, &host->factor, l->host[0], l->host[side], l->n, &options,
                      &host->report, &err));
    GSC(run_operation(operation, on, &device->factor, l->device[0], l->device[side], l->n,
                      &on_device, &device->report, &err));
    GSC(gsc_exec_wait(on, &err));
    same_report(what, &host->report, &device->report);
    download(got, device, bytes);
    same(what, host, got, bytes);
    same_memory(what, l, 0);
    if (side)
        same_memory(what, l, 1);
    if (want == WANT_ALL) { /* of the parts the same */
        GSC(gsc_report_merge(on, device->each, l->n, GSC_MERGE_SHARDS, &policy, &device->report,
                             &err));
        GSC(gsc_exec_wait(on, &err));
        host->report.kind = GSC_REPORT_MERGED;
        same_report("the reports of each, merged", &host->report, &device->report);
    }
    free(host);
    free(got);
    device_free(device);
}

static void compare_tensors(void)
{
    /*
     * A power of two, one that rounds, two that drive a float sum of squares below 2^-80 and above
     * the largest float, one whose float form is subnormal.
     */
    static const double scales[] = {65536, 3, 0x1p60, 0x1p-80, 0x1.8p130};
    /* The third asks for what only the careful path counts. */
    static const uint32_t wants[] = {0, GSC_WANT_NORM | GSC_WANT_AMAX, WANT_ALL};
    static const uint64_t counts[] = {0, 1, 63, 65, 4097};
    lists all = {0}, same_dtypes = {0};
    for (uint32_t in = 1; gsc_dtype_size(in); in++)
        for (uint32_t out = 1; gsc_dtype_size(out); out++)
            if (is_complex(in) == is_complex(out)) {
                for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
                    lists_add(&all, counts[i], in, out);
                /* At an address that suits the dtype, but not a vector of it. */
                lists_add_at(&all, 1000, in, out, gsc_dtype_size(in), gsc_dtype_size(out));
                if (in == out)
                    lists_add(&all, 131072 + 4096 + 65, in, out);
            }
    for (uint32_t dtype = 1; gsc_dtype_size(dtype); dtype++)
        for (uint64_t count = 1; count <= 70000; count = 3 * count + random_bits() % 7)
            lists_add(&same_dtypes, count, dtype, dtype);
    lists_allocate(&all);
    lists_allocate(&same_dtypes);
    gsc_exec on = stream_exec(all.device[0], all.n),
             on_same = stream_exec(same_dtypes.device[0], same_dtypes.n);
    for (enum kind kind = 0; kind < KINDS; kind++) {
        lists_fill(&all, kind);
        lists_fill(&same_dtypes, kind);
        for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
            for (enum operation operation = 0; operation < OPERATIONS; operation++)
                for (size_t j = operation == SCALE ? 2 : 0; j < sizeof wants / sizeof *wants; j++) {
                    compare_operation(&on, &all, operation, 1, wants[j], scales[i],
                                      kind_names[kind]);
                    if (operation != ACCUMULATE)
                        compare_operation(&on_same, &same_dtypes, operation, 0, wants[j], scales[i],
                                          kind_names[kind]);
                }
    }
    stream_free(&on);
    stream_free(&on_same);
    lists_free(&all);
    lists_free(&same_dtypes);
}

/*
 * Every pattern of the narrow dtypes to float and to themselves; to them from every float halfway
 * between two of their values, and its neighbours: all ways that a conversion can round.
 */
static void compare_conversions(void)
{
    for (uint32_t dtype = 1; gsc_dtype_size(dtype); dtype++) {
        const uint32_t size = gsc_dtype_size(dtype);
        if (size > 2)
            continue;
        const uint32_t half = 1u << (8 * size - 1);
        lists l = {0};
        lists_add_at(&l, 2 * half, dtype, GSC_F32, 0, 0);
        lists_add_at(&l, 2 * half, dtype, dtype, 0, 0);
        lists_add_at(&l, 6 * half, GSC_F32, dtype, 0, 0);
        lists_allocate(&l);
        float *values = allocated(half * sizeof *values), *floats = l.host[0][2].data;
        for (int i = 0; i < 2; i++)
            for (uint32_t bits = 0; bits < 2 * half; bits++)
                memcpy((unsigned char *)l.host[0][i].data + bits * size, &bits, size);
        const gsc_tensor positive = {.data = l.host[0][0].data, .count = half, .dtype = dtype};
        const gsc_tensor widened = {.data = values, .count = half, .dtype = GSC_F32};
        GSC(gsc_scale(NULL, NULL, &positive, &widened, 1, NULL, NULL, &err));
        for (uint32_t i = 0; i < half; i++) {
            /* Past the largest, as far as from the one before. */
            const float next = i + 1 < half && isfinite(values[i + 1]) ? values[i + 1] : INFINITY;
            const float step = isfinite(next) ? next - values[i]
                               : i            ? values[i] - values[i - 1]
                                              : 0;
            uint32_t bits;
            const float middle = values[i] + step / 2;
            memcpy(&bits, &middle, sizeof bits);
            for (uint32_t k = 0; k < 3; k++) {
                const uint32_t near = bits + k - 1, negative = near | 1u << 31;
                memcpy(floats + 3 * i + k, &near, sizeof near);
                memcpy(floats + 3 * (half + i) + k, &negative, sizeof negative);
            }
        }
        free(values);
        lists_start(&l);
        gsc_exec on = stream_exec(l.device[0], l.n);
        for (int i = 0; i < 2; i++)
            compare_operation(&on, &l, UNSCALE, 1, i ? GSC_WANT_NORM : 0, i ? 1024 : 1,
                              dtype_names[dtype]);
        stream_free(&on);
        lists_free(&l);
    }
}

/* Long lists of small tensors, which take several launches. */
static void compare_long_lists(void)
{
    static const uint64_t lengths[] = {1, 161, 162, 163, 400, 1356, 1357, 1600};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        lists l = {0};
        for (uint64_t j = 0; j < lengths[i]; j++)
            lists_add(&l, random_bits() % 90, GSC_F16, j % 3 ? GSC_F32 : GSC_F16);
        lists_allocate(&l);
        gsc_exec on = stream_exec(l.device[0], l.n);
        lists_fill(&l, WILD);
        compare_operation(&on, &l, UNSCALE, 1, WANT_ALL, 1024, "a long list");
        compare_operation(&on, &l, ACCUMULATE, 1, WANT_ALL, 1024, "a long list");
        stream_free(&on);
        lists_free(&l);
    }
}

/* ---- conformance: reports, factors, states ---- */

/* What the calls below read and write, all in device memory. */
typedef struct record {
    gsc_factor factor;
    gsc_report report, others[130];
    gsc_state state, from;
} record;

static gsc_report random_report(void)
{
    gsc_report r = {.kind = GSC_REPORT_TENSORS, .measured = 7};
    r.inf_count = random_bits() % 4 == 0;
    r.overflow = (int32_t)r.inf_count;
    r.found_inf = (float)r.overflow;
    r.generation = random_bits() % 4;
    r.amax = (double)random_float() * (double)random_float();
    r.amax = r.amax < 0 ? -r.amax : r.amax;
    r.sum_squares = (double)random_float() * 0x1p100;
    r.sum_squares *= r.sum_squares;
    r.elements = (int64_t)(random_bits() >> 20);
    r.first_tensor = r.overflow ? (int64_t)(random_bits() >> 40) : 0;
    r.first_element = r.overflow ? (int64_t)(random_bits() >> 40) : 0;
    r.clamped = (int64_t)(random_bits() >> 40);
    r.status_rank_plus_1 = r.first_rank_plus_1 = (uint32_t)random_bits();
    r.digest = random_bits() % 2;
    return r;
}

static void same_record(const char *what, const record *host, const record *device)
{
    static record copy;
    download(&copy, device, sizeof copy);
    same(what, host, &copy, sizeof copy);
}

static void compare_small_calls(void)
{
    gsc_exec own = stream_exec(&(gsc_tensor){0}, 0), *on = &own;
    static record host;
    record *device = device_memory(sizeof *device);
    gsc_policy policy = GSC_POLICY_INIT;
    policy.overflow_test = GSC_TEST_NORM;
    for (int i = 0; i < 50; i++) {
        const uint64_t n = random_bits() % 131;
        const uint32_t kind = i % 8 ? GSC_MERGE_SHARDS : GSC_MERGE_ADDENDS;
        const gsc_policy *by = kind == GSC_MERGE_SHARDS && i % 2 ? &policy : NULL;
        for (int j = 0; j < 130; j++) {
            host.others[j] = random_report();
            if (i % 3) {
                host.others[j].overflow = 0;
                host.others[j].found_inf = 0;
                host.others[j].inf_count = 0;
            }
        }
        GSC(gsc_factor_init(1 + (double)(random_bits() >> 50), &host.factor, &err));
        host.factor.generation = 3;
        upload(device, &host, sizeof host);
        GSC(gsc_report_merge(NULL, host.others, n, kind, by, &host.report, &err));
        GSC(gsc_report_merge(on, device->others, n, kind, by, &device->report, &err));
        GSC(gsc_report_merge(NULL, host.others, 2, kind, by, &host.others[1], &err));
        GSC(gsc_report_merge(on, device->others, 2, kind, by, &device->others[1], &err));
        GSC(gsc_factor_multiply(NULL, &host.factor, 0.3, &host.factor, &err));
        GSC(gsc_factor_multiply(on, &device->factor, 0.3, &device->factor, &err));
        if (host.report.measured & GSC_WANT_NORM) {
            GSC(gsc_factor_clip_grad_norm(NULL, &host.factor, &host.report, 0.7, &host.factor,
                                          &err));
            GSC(gsc_factor_clip_grad_norm(on, &device->factor, &device->report, 0.7,
                                          &device->factor, &err));
        }
        GSC(gsc_exec_wait(on, &err));
        same_record("report_merge, factor_multiply, factor_clip", &host, device);
    }
    device_free(device);
    stream_free(&own);
}

/* Every preset over random steps, and a scale that is set in between. */
static void compare_policies(void)
{
    gsc_exec own = stream_exec(&(gsc_tensor){0}, 0), *on = &own;
    static record host;
    record *device = device_memory(sizeof *device);
    const char *name;
    for (uint32_t preset = 0; (name = gsc_preset_name(preset)); preset++) {
        gsc_policy policy = GSC_POLICY_INIT;
        GSC(gsc_policy_preset(name, &policy, &err));
        policy.growth_interval = policy.growth_interval > 5 ? 5 : policy.growth_interval;
        GSC(gsc_state_init(NULL, &policy, &host.state, &err));
        GSC(gsc_state_init(on, &policy, &device->state, &err));
        for (int step = 0; step < 60; step++) {
            host.report = random_report();
            host.report.generation =
                step % 5 ? host.state.factor.generation : host.report.generation;
            upload(&device->report, &host.report, sizeof host.report);
            const gsc_policy *stamp_policy = step % 3 ? &policy : NULL;
            const int of_state = step % 4 != 1;
            GSC(gsc_report_set_rank(NULL, &host.report, stamp_policy, of_state ? &host.state : NULL,
                                    (uint32_t)step, &host.report, &err));
            GSC(gsc_report_set_rank(on, &device->report, stamp_policy,
                                    of_state ? &device->state : NULL, (uint32_t)step,
                                    &device->report, &err));
            GSC(gsc_state_update(NULL, &policy, &host.state, &host.report, &host.state, &err));
            GSC(gsc_state_update(on, &policy, &device->state, &device->report, &device->state,
                                 &err));
            if (step % 20 == 19) {
                host.from = host.state;
                host.from.factor.scale = (double)(1 + random_bits() % 1000);
                upload(&device->from, &host.from, sizeof host.from);
                GSC(gsc_state_init_from(NULL, &policy, &host.from, &host.state, &err));
                GSC(gsc_state_init_from(on, &policy, &device->from, &device->state, &err));
            }
            GSC(gsc_exec_wait(on, &err));
            gsc_state state;
            gsc_report report;
            download(&state, &device->state, sizeof state);
            same(name, &host.state, &state, sizeof state);
            download(&report, &device->report, sizeof report);
            same("a stamped report", &host.report, &report, sizeof report);
        }
    }
    device_free(device);
    stream_free(&own);
}

/* What only the device can find out is said in the report and the state, and nothing is changed. */
static void errors_on_the_device(void)
{
    static record host;
    record *device = device_memory(sizeof *device);
    gsc_state before;
    gsc_policy policy = GSC_POLICY_INIT;
    float value = 1;
    const gsc_tensor tensor = {.data = device_memory(sizeof value), .count = 1, .dtype = GSC_F32};
    gsc_exec own = stream_exec(&tensor, 1), *on = &own;
    GSC(gsc_policy_preset("recommended", &policy, &err));
    memset(&host, 0, sizeof host);
    upload(device, &host, sizeof host); /* a factor of zeros */
    upload(tensor.data, &value, sizeof value);
    GSC(gsc_state_init(on, &policy, &device->state, &err));
    GSC(gsc_exec_wait(on, &err));
    download(&before, &device->state, sizeof before);
    GSC(gsc_unscale(on, &device->factor, &tensor, &tensor, 1, NULL, &device->report, &err));
    GSC(gsc_state_update(on, &policy, &device->state, &device->report, &device->state, &err));
    GSC(gsc_exec_wait(on, &err));
    download(&host, device, sizeof host);
    download(&value, tensor.data, sizeof value);
    CHECK(host.report.status == GSC_ERROR_FACTOR);
    CHECK(host.report.overflow == 1 && host.report.found_inf == 1);
    CHECK(host.state.status == GSC_ERROR_REPORT);
    CHECK(value == 1);
    before.status = host.state.status;
    before.events = GSC_EVENT_SKIPPED;
    before.skip = 1;
    before.skip_f32 = 1;
    before.guard_multiplier = 0;
    same("a state that was refused", &before, &host.state, sizeof before);

    /* Ranks that differ: nobody steps, and the report says which. A stamp of what is no state. */
    gsc_state other = before;
    other.good_steps = 41;
    upload(&device->state, &before, sizeof before);
    upload(&device->from, &other, sizeof other);
    const gsc_state *states[] = {&device->state, &device->state, &device->from, &device->from};
    const gsc_report flags[4] = {{.kind = GSC_REPORT_FLAG},
                                 {.kind = GSC_REPORT_FLAG},
                                 {.kind = GSC_REPORT_FLAG},
                                 {.kind = GSC_REPORT_FLAG}};
    upload(device->others, flags, sizeof flags);
    for (uint32_t rank = 0; rank < 4; rank++)
        GSC(gsc_report_set_rank(on, &device->others[rank], &policy, states[rank], rank,
                                &device->others[rank], &err));
    GSC(gsc_report_merge(on, device->others, 2, GSC_MERGE_SHARDS, &policy, &device->report, &err));
    GSC(gsc_exec_wait(on, &err));
    download(&host, device, sizeof host);
    CHECK(host.report.status == GSC_OK && host.report.digest == host.others[0].digest);
    GSC(gsc_report_merge(on, device->others, 4, GSC_MERGE_SHARDS, &policy, &device->report, &err));
    GSC(gsc_state_update(on, &policy, &device->state, &device->report, &device->state, &err));
    other.good_steps = -1;
    upload(&device->from, &other, sizeof other);
    GSC(gsc_report_set_rank(on, &device->others[3], &policy, &device->from, 3, &device->others[3],
                            &err));
    GSC(gsc_exec_wait(on, &err));
    gsc_report disagreed = {0};
    disagreed.status = GSC_ERROR_MISMATCH;
    disagreed.status_rank_plus_1 = 3;
    disagreed.overflow = 1;
    disagreed.found_inf = 1;
    download(&host, device, sizeof host);
    same("a report of ranks that differ", &disagreed, &host.report, sizeof disagreed);
    CHECK(host.state.status == GSC_ERROR_REPORT && host.state.events == GSC_EVENT_SKIPPED);
    CHECK(host.others[3].status == GSC_ERROR_STATE && host.others[3].overflow == 1);
    CHECK(host.others[3].status_rank_plus_1 == 4 && host.others[3].digest == 0);
    stream_free(on);
    device_free(tensor.data);
    device_free(device);
}

/* ---- memory ---- */

/* Between any two kinds, in the order of the stream; and the wait, which a capture forbids. */
static void copies_and_waits(void)
{
    enum { WORDS = 1 << 16 };
    uint32_t *from = allocated(4 * WORDS), *to = allocated(4 * WORDS);
    void *memory[3] = {allocated(4 * WORDS), NULL, NULL}, *graph, *none = &none;
    const gsc_tensor empty = {0};
    gsc_exec on = stream_exec(&empty, 0);
    GSC(gsc_memory_create(context, GSC_MEMORY_DEVICE, 4 * WORDS, &memory[1], &err));
    GSC(gsc_memory_create(context, GSC_MEMORY_HOST, 4 * WORDS, &memory[2], &err));
    CHECK((uintptr_t)memory[1] % 256 == 0 && (uintptr_t)memory[2] % 256 == 0);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            for (int k = 0; k < WORDS; k++)
                from[k] = (uint32_t)random_bits();
            GSC(gsc_memory_copy(&on, memory[i], from, 4 * WORDS, &err));
            GSC(gsc_memory_copy(&on, memory[j], memory[i], i == j ? 0 : 4 * WORDS, &err));
            GSC(gsc_memory_copy(&on, to, memory[j], 4 * WORDS, &err));
            GSC(gsc_exec_wait(&on, &err));
            same("a copy of a copy", from, to, 4 * WORDS);
            if (i == 2)
                same("memory that is shared", from, memory[2], 4 * WORDS);
        }
    /* What the device writes to memory that is shared, the host reads after a wait. */
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    GSC(gsc_state_init(NULL, &policy, &state, &err));
    GSC(gsc_state_init(&on, &policy, memory[2], &err));
    GSC(gsc_exec_wait(&on, &err));
    same("a state in memory that is shared", &state, memory[2], sizeof state);

    gsc_error err;
    CU(capture_begin(on.stream, 0));
    CHECK(gsc_exec_wait(&on, &err) == GSC_ERROR_UNAVAILABLE);
    CHECK_TEXT(err.message, "captured");
    GSC(gsc_state_init(&on, &policy, memory[1], &err));
    CU(capture_end(on.stream, &graph)); /* which went on */
    CU(graph_destroy(graph));
    GSC(gsc_exec_wait(&on, &err));
    GSC(gsc_memory_create(context, GSC_MEMORY_DEVICE, 0, &none, &err));
    CHECK(!none);
    device_free(none);
    device_free(memory[1]);
    device_free(memory[2]);
    free(memory[0]);
    free(from);
    free(to);
    stream_free(&on);
}

/* ---- graphs and streams ---- */

/* Of what was captured: kernels, and nothing but kernels. */
static uint64_t launches_in(void *graph)
{
    void *nodes[64];
    uint64_t count = 64;
    CU(graph_nodes(graph, nodes, &count));
    for (uint64_t i = 0; i < count; i++) {
        int32_t type = -1;
        CU(node_type(nodes[i], &type));
        CHECK(type == 0);
    }
    return count;
}

static void *instantiate(void *graph)
{
    void *executable;
    CHECK(launches_in(graph) > 0);
    CU(graph_instantiate(&executable, graph, 0));
    CU(graph_destroy(graph));
    return executable;
}

/* At most one for every 162 tensors and one more, one each time that the list is read, and two. */
static void few_launches(void)
{
    static const uint64_t lengths[] = {1, 162, 163, 400};
    struct {
        gsc_factor factor;
        gsc_report report;
    } *device = device_memory(sizeof *device);
    lists l = {0};
    for (int i = 0; i < 400; i++)
        lists_add(&l, 10, GSC_F16, GSC_F32);
    lists_allocate(&l);
    gsc_exec on = stream_exec(l.device[0], l.n);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (enum operation operation = 0; operation < OPERATIONS; operation++) {
            void *graph;
            gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
            options.want = WANT_ALL;
            CU(capture_begin(on.stream, 0));
            GSC(run_operation(operation, &on, &device->factor, l.device[0], l.device[1], lengths[i],
                              &options, &device->report, &err));
            CU(capture_end(on.stream, &graph));
            const uint64_t passes = operation == ACCUMULATE ? 2 : 1;
            CHECK(launches_in(graph) <= lengths[i] / 162 + 1 + passes + 2);
            CU(graph_destroy(graph));
        }
    stream_free(&on);
    lists_free(&l);
    device_free(device);
}

/* The list on the host is overwritten and freed after the capture; the gradients change. */
static void replay_graph(void)
{
    lists l = {0};
    static record host;
    record *device = device_memory(sizeof *device);
    for (int i = 0; i < 200; i++)
        lists_add(&l, 1000 + random_bits() % 900, GSC_F16, GSC_F32);
    lists_allocate(&l);
    gsc_exec on = stream_exec(l.device[0], l.n);
    GSC(gsc_factor_init(8, &host.factor, &err));
    upload(&device->factor, &host.factor, sizeof host.factor);
    gsc_policy policy = GSC_POLICY_INIT;
    GSC(gsc_policy_preset("torch", &policy, &err));
    GSC(gsc_state_init(NULL, &policy, &host.state, &err));
    upload(&device->state, &host.state, sizeof host.state);
    void *graph, *executable;
    CU(capture_begin(on.stream, 0));
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.want = WANT_ALL;
    GSC(gsc_unscale(&on, &device->factor, l.device[0], l.device[1], l.n, &options, &device->report,
                    &err));
    GSC(gsc_report_set_rank(&on, &device->report, &policy, &device->state, 3, &device->others[1],
                            &err));
    GSC(gsc_report_merge(&on, &device->others[1], 1, GSC_MERGE_SHARDS, &policy, &device->others[0],
                         &err));
    CU(capture_end(on.stream, &graph));
    executable = instantiate(graph);
    for (int side = 0; side < 2; side++) {
        memset(l.device[side], 0xa5, l.n * sizeof(gsc_tensor));
        free(l.device[side]);
        l.device[side] = NULL;
    }
    for (int round = 0; round < 3; round++) {
        lists_fill(&l, round == 1 ? WILD : TAME);
        CU(graph_launch(executable, on.stream));
        GSC(gsc_exec_wait(&on, &err));
        GSC(gsc_unscale(NULL, &host.factor, l.host[0], l.host[1], l.n, &options, &host.report,
                        &err));
        same_report("graph, report", &host.report, &device->report);
        GSC(gsc_report_set_rank(NULL, &host.report, &policy, &host.state, 3, &host.report, &err));
        same_report("graph, stamped report", &host.report, &device->others[1]);
        GSC(gsc_report_merge(NULL, &host.report, 1, GSC_MERGE_SHARDS, &policy, &host.report, &err));
        same_report("graph, merged report", &host.report, &device->others[0]);
        same_memory("graph, gradients", &l, 1);
    }
    CU(executable_destroy(executable));
    stream_free(&on);
    lists_free(&l);
    device_free(device);
}

typedef struct enqueuer {
    const gsc_exec *on;
    const lists *l;
    record *device;
    gsc_status status;
} enqueuer;

static void *enqueue_four(void *data)
{
    enqueuer *e = data;
    for (int round = 0; round < 4 && e->status == GSC_OK; round++)
        e->status = gsc_unscale(e->on, &e->device->factor, e->l->device[0], e->l->device[1],
                                e->l->n, NULL, &e->device->report, NULL);
    return NULL;
}

/* One context; a thread of the host, a stream and a workspace each. */
static void two_streams(void)
{
    lists l[2] = {{0}, {0}};
    static record host[2];
    record *device[2];
    gsc_exec on[2];
    pthread_t threads[2];
    enqueuer enqueuers[2];
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 40; j++)
            lists_add(&l[i], 3000 + random_bits() % 9000, i ? GSC_BF16 : GSC_F32, GSC_F32);
        lists_allocate(&l[i]);
        lists_fill(&l[i], TAME);
        on[i] = stream_exec(l[i].device[0], l[i].n);
        device[i] = device_memory(sizeof **device);
        GSC(gsc_factor_init(i + 2, &host[i].factor, &err));
        upload(&device[i]->factor, &host[i].factor, sizeof host[i].factor);
    }
    for (int i = 0; i < 2; i++) {
        enqueuers[i] = (enqueuer){&on[i], &l[i], device[i], GSC_OK};
        CHECK(pthread_create(&threads[i], NULL, enqueue_four, &enqueuers[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0 && enqueuers[i].status == GSC_OK);
        GSC(gsc_exec_wait(&on[i], &err));
        GSC(gsc_unscale(NULL, &host[i].factor, l[i].host[0], l[i].host[1], l[i].n, NULL,
                        &host[i].report, &err));
        same_report("two streams, report", &host[i].report, &device[i]->report);
        same_memory("two streams, gradients", &l[i], 1);
        stream_free(&on[i]);
        lists_free(&l[i]);
        device_free(device[i]);
    }
}

/* Scale, unscale and update in one graph; every eighth step overflows. */
static void training_step(void)
{
    lists l = {0};
    static record host;
    record *device = device_memory(sizeof *device);
    gsc_policy policy = GSC_POLICY_INIT;
    GSC(gsc_policy_preset("recommended", &policy, &err));
    policy.growth_interval = 3;
    for (int i = 0; i < 20; i++)
        lists_add(&l, 500, GSC_F32, GSC_F16);
    lists_allocate(&l);
    gsc_exec on = stream_exec(l.device[0], l.n);
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.policy = &policy;
    GSC(gsc_state_init(NULL, &policy, &host.state, &err));
    GSC(gsc_state_init(&on, &policy, &device->state, &err));
    void *graph, *executable;
    CU(capture_begin(on.stream, 0));
    GSC(gsc_scale(&on, &device->state.factor, l.device[0], l.device[1], l.n, NULL, NULL, &err));
    GSC(gsc_unscale(&on, &device->state.factor, l.device[1], l.device[0], l.n, &options,
                    &device->report, &err));
    GSC(gsc_state_update(&on, &policy, &device->state, &device->report, &device->state, &err));
    CU(capture_end(on.stream, &graph));
    executable = instantiate(graph);
    for (int step = 0; step < 40; step++) {
        lists_fill(&l, step % 8 == 7 ? WILD : TAME);
        CU(graph_launch(executable, on.stream));
        GSC(gsc_exec_wait(&on, &err));
        GSC(gsc_scale(NULL, &host.state.factor, l.host[0], l.host[1], l.n, NULL, NULL, &err));
        GSC(gsc_unscale(NULL, &host.state.factor, l.host[1], l.host[0], l.n, &options, &host.report,
                        &err));
        GSC(gsc_state_update(NULL, &policy, &host.state, &host.report, &host.state, &err));
        gsc_state state;
        download(&state, &device->state, sizeof state);
        same("training step, state", &host.state, &state, sizeof state);
        same_report("training step, report", &host.report, &device->report);
        same_memory("training step, gradients", &l, 0);
    }
    CHECK(host.state.total_growths > 0 && host.state.total_backoffs > 0);
    CU(executable_destroy(executable));
    stream_free(&on);
    lists_free(&l);
    device_free(device);
}

/* A process runs each group, so that what one finds or breaks hides no other; the important ones
   are first. */
static const struct {
    const char *name;
    void (*run)(void);
} groups[] = {{"lists", compare_long_lists},
              {"tensors", compare_tensors},
              {"conversions", compare_conversions},
              {"policies", compare_policies},
              {"small_calls", compare_small_calls},
              {"errors", errors_on_the_device},
              {"memory", copies_and_waits},
              {"graph", replay_graph},
              {"training_step", training_step},
              {"launches", few_launches},
              {"streams", two_streams}};
enum { GROUPS = sizeof groups / sizeof *groups };

/* ---- recordings ---- */

static gsc_status replay(const gsc_policy *policy, const gsc_state *start, char *steps,
                         gsc_error *err)
{
    gsc_exec on = GSC_EXEC_INIT;
    gsc_state state, *device_state = device_memory(sizeof state);
    gsc_report *device_report = device_memory(sizeof *device_report);
    on.context = context;
    gsc_status status = GSC_OK;
    upload(device_state, start, sizeof *start);
    char *rest, *step = strtok_r(steps, ",", &rest);
    for (; status == GSC_OK; step = strtok_r(NULL, ",", &rest)) {
        download(&state, device_state, sizeof state);
        printf("%a", state.factor.scale);
        if (!step)
            break;
        const gsc_report report = read_step(step);
        upload(device_report, &report, sizeof report);
        status = gsc_state_update(&on, policy, device_state, device_report, device_state, err);
        download(&state, device_state, sizeof state);
        print_update(step, &state);
    }
    printf("\n");
    device_free(device_state);
    device_free(device_report);
    return status;
}

static void replay_recordings(void)
{
    static char line[1 << 16], preset[64], settings[4096], steps[1 << 16], checkpoint[4096];
    while (fgets(line, sizeof line, stdin)) {
        gsc_policy policy = GSC_POLICY_INIT;
        gsc_state state;
        gsc_error err = {0};
        *checkpoint = '\0';
        if (sscanf(line, "%63s %4095s %65535s %4095s", preset, settings, steps, checkpoint) < 3)
            puts("error three words expected");
        else if (read_policy(preset, settings, &policy, &err) != GSC_OK ||
                 read_state(preset, checkpoint, &policy, &state, &err) != GSC_OK ||
                 replay(&policy, &state, steps, &err) != GSC_OK)
            printf("error %d %s\n", err.status, err.message);
    }
}

int main(int count, char **arguments)
{
    const char *mode = count > 1 ? arguments[1] : "", *note = cuda_note();
    char device[256];
    bool found = count == 1;
    if (strcmp(mode, "--groups") == 0) {
        for (int i = 0; i < GROUPS; i++)
            puts(groups[i].name);
        return 0;
    }
    if (strcmp(note, "available") != 0) {
        printf("NOT RUN: %s\n", note);
        return 0;
    }
    open_device();
    if (strcmp(mode, "--replay") == 0) {
        replay_recordings();
        close_device();
        return 0;
    }
    CU(device_name(device, sizeof device, 0));
    for (int i = 0; i < GROUPS; i++)
        if (count == 1 || strcmp(mode, groups[i].name) == 0) {
            groups[i].run();
            found = true;
        }
    if (!found)
        die(mode, "no group of this name; --groups lists them");
    printf("%s: %ld comparisons with the CPU, %d failures\n", device, checks, check_failures);
    close_device();
    return check_failures > 0;
}
