/* SPDX-License-Identifier: MIT */
/*
 * The public calls on a CUDA device against the same calls on the CPU, bit for bit: every operation
 * and pair of dtypes, reports of each tensor, states and factors, what only the device finds wrong,
 * memory and copies, graphs after their list is gone and gradients changed, two threads and
 * streams. How fast it is gpu_bench.c measures.
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
#include <stddef.h>

#include "../replay/pairs.h"
#include "gpu.h"

/* ---- lists, on both sides ---- */

/* Inputs and outputs in one piece of memory each, on the host and on the device. */
typedef struct lists {
    uint64_t n, bytes[2];
    bool in_place;                   /* the outputs are where the inputs are */
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
    lists_add_at(l, count, in, out, in_past, l->in_place ? in_past : out_past);
}

static void lists_allocate(lists *l)
{
    for (int side = 0; side < 2; side++) {
        l->host_memory[side] = allocated(l->bytes[side]);
        l->start[side] = allocated(l->bytes[side]);
        l->device_memory[side] = device_memory(l->bytes[side]);
        l->device[side] = allocated(l->n * sizeof(gsc_tensor));
        const int at = l->in_place ? 0 : side;
        for (uint64_t i = 0; i < l->n; i++) {
            uint64_t offset = (uint64_t)(uintptr_t)l->host[side][i].data;
            l->device[side][i] = l->host[side][i];
            l->device[side][i].data = l->device_memory[at] + offset;
            l->host[side][i].data = l->host_memory[at] + offset;
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

static void lists_restart(lists *l)
{
    for (int side = 0; side < 2; side++) {
        memcpy(l->host_memory[side], l->start[side], l->bytes[side]);
        upload(l->device_memory[side], l->start[side], l->bytes[side]);
    }
}

/* Copies the host's memory to the device: every operation starts from it. */
static void lists_start(lists *l)
{
    for (int side = 0; side < 2; side++)
        memcpy(l->start[side], l->host_memory[side], l->bytes[side]);
    lists_restart(l);
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
    bool said = same(what, l->host_memory[side], gpu, l->bytes[side]);
    for (uint64_t i = 0; !said && i < l->n; i++) {
        const gsc_tensor *t = &l->host[side][i];
        const uint64_t start = (uint64_t)((unsigned char *)t->data - l->host_memory[side]);
        said = memcmp(t->data, gpu + start, t->count * gsc_dtype_size(t->dtype)) != 0;
        if (said)
            printf("  tensor %" PRIu64 ", %s to %s, %" PRIu64 " elements from byte %" PRIu64
                   " on\n",
                   i, dtype_names[l->host[0][i].dtype], dtype_names[l->host[1][i].dtype], t->count,
                   start);
    }
    free(gpu);
}

/* ---- conformance: the tensors ---- */

static const char *const operation_names[] = {"unscale", "check", "scale", "clamp", "accumulate"};
enum { WANT_ALL = GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW };

enum { MOST_LOSSES = 600 }; /* more than a block has threads */

/* The results that a call on tensors writes beside them, and the loss that it reads. */
typedef struct results {
    gsc_factor factor;
    gsc_report report;
    int64_t histogram[GSC_HISTOGRAM_LENGTH];
    unsigned char loss[(MOST_LOSSES + 1) * sizeof(double)];
    gsc_report each[];
} results;

static uint32_t seen_losses[GSC_CB16 + 1]; /* by dtype: a bit for each GSC_LOSS_* in a report */

/* Writes a loss of any real dtype and any address to `memory`; every second has bad elements. */
static gsc_tensor random_loss(unsigned char *memory)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    float values[MOST_LOSSES];
    const uint64_t count = random_bits() % (random_bits() % 4 ? 4 : MOST_LOSSES + 1);
    for (uint64_t i = 0; i < count; i++)
        values[i] = random_float();
    for (uint64_t i = random_bits() % 4; count > 0 && i < 2; i++)
        values[random_bits() % count] = bad[random_bits() % 3];
    const gsc_tensor from = {.data = values, .count = count, .dtype = GSC_F32};
    const gsc_tensor loss = {.data = memory + random_bits() % sizeof(double),
                             .count = count,
                             .dtype = 1 + (uint32_t)(random_bits() % GSC_CB16)};
    GSC(gsc_scale(NULL, NULL, &from, &loss, 1, NULL, NULL, &err));
    return loss;
}

/* Some of what a call may be given, by chance, or all: the rest is NULL. */
enum { FACTOR = 1, REPORT = 2, EACH = 4, HISTOGRAM = 8, POLICY = 16, LOSS = 32, ANYTHING = -1 };

/* The host writes what a device finds wrong. */
static const gsc_exec writing = {.struct_size = GSC_EXEC_SIZE, .flags = GSC_EXEC_WRITE_FAILURES};

/* One operation over the list on both sides. The policy judges by the norm, and can hold. */
static void compare_operation(const gsc_exec *on, lists *l, enum operation operation, uint32_t want,
                              double scale, int given, const char *data)
{
    const uint64_t bytes = sizeof(results) + l->n * sizeof(gsc_report);
    results *host = allocated(bytes), *got = allocated(bytes), *device = device_memory(bytes);
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_policy policy = GSC_POLICY_INIT;
    char what[128];
    given = given == ANYTHING ? (int)(random_bits() % 64) : given;
    given |= operation == CHECK_ONLY || operation == ACCUMULATE ? REPORT : 0;
    snprintf(what, sizeof what, "%s%s, want %" PRIu32 ", scale %a, given %d, %s",
             operation_names[operation], l->in_place ? " in place" : "", want, scale, given, data);
    policy.overflow_test = GSC_TEST_NORM;
    policy.bad_loss_rule = random_bits() % 2 ? GSC_BAD_LOSS_HOLD : GSC_BAD_LOSS_OVERFLOW;
    policy.max_failed_backoffs = 1;
    options.want = want;
    options.policy = given & POLICY ? &policy : NULL;
    /* As of a state: gsc_factor_init refuses what a float cannot hold. */
    host->factor = (gsc_factor){scale, 1 / scale, (float)scale, (float)(1 / scale), 7};
    gsc_tensor loss = random_loss(host->loss);
    const uint64_t loss_at = (uint64_t)((unsigned char *)loss.data - host->loss);
    options.loss = given & LOSS ? &loss : NULL;
    lists_restart(l);
    upload(device, host, bytes);
    for (int there = 0; there < 2; there++) {
        results *at = there ? device : host;
        gsc_tensor *const *list = there ? l->device : l->host;
        loss.data = at->loss + loss_at;
        options.per_tensor = given & EACH ? at->each : NULL;
        options.histogram = given & HISTOGRAM ? at->histogram : NULL;
        const bool fails = !there && given & FACTOR && !(scale > 0 && isfinite(scale));
        gsc_error err = {.status = GSC_OK};
        if (!CHECK(run_operation(operation, there ? on : &writing,
                                 given & FACTOR ? &at->factor : NULL, list[0], list[1], l->n,
                                 &options, given & REPORT ? &at->report : NULL,
                                 &err) == (fails ? GSC_ERROR_FACTOR : GSC_OK)))
            printf("  %s: %s\n", what, err.message);
    }
    GSC(gsc_exec_wait(on, &err));
    same_report(what, &host->report, &device->report);
    download(got, device, bytes);
    same(what, host, got, bytes);
    same_memory(what, l, 0);
    same_memory(what, l, 1);
    seen_losses[loss.dtype] |= 1u << host->report.loss;
    if (given & EACH && given & REPORT && l->n > 0) { /* of the parts the same */
        GSC(gsc_report_merge(on, device->each, l->n, GSC_MERGE_SHARDS, options.policy,
                             &device->report, &err));
        GSC(gsc_exec_wait(on, &err));
        host->report.kind = GSC_REPORT_MERGED;
        host->report.loss = GSC_LOSS_UNKNOWN;
        host->report.found_inf = (float)host->report.overflow;
        same_report("the reports of each, merged", &host->report, &device->report);
    }
    free(host);
    free(got);
    device_free(device);
}

static bool is_emulated; /* all scales take minutes there */

static void compare_tensors(void)
{
    /*
     * A power of two, one that rounds, two that drive a float sum of squares below 2^-80 and above
     * the largest float, one that is subnormal as a float.
     */
    static const double scales[] = {65536, 3, 0x1p60, 0x1p-80, 0x1.8p130};
    /* The third asks for what only the careful path counts. */
    static const uint32_t wants[] = {0, GSC_WANT_NORM | GSC_WANT_AMAX, WANT_ALL};
    static const uint64_t counts[] = {0, 1, 3, 63, 64, 65, 4095, 4096, 4097};
    lists all = {0}, in_place = {.in_place = true};
    for (uint32_t in = 1; gsc_dtype_size(in); in++)
        for (uint32_t out = 1; gsc_dtype_size(out); out++) {
            if (is_complex(in) != is_complex(out))
                continue;
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
                lists_add(&all, counts[i], in, out);
            /* At an address that suits the dtype, but not a vector of it. */
            lists_add_at(&all, 1000, in, out, gsc_dtype_size(in), gsc_dtype_size(out));
            const uint64_t of_others = (in + out) % 4 ? 300 : 65537;
            lists_add(&all, in == out ? 131072 + 4096 + 65 : of_others, in, out);
            for (uint64_t count = 1; count <= (in == out ? 70000 : 70); count *= 3)
                if (gsc_dtype_size(in) == gsc_dtype_size(out))
                    lists_add(&in_place, count + random_bits() % 7, in, out);
        }
    lists_allocate(&all);
    lists_allocate(&in_place);
    gsc_exec on = stream_exec(all.device[0], all.n),
             on_in_place = stream_exec(in_place.device[0], in_place.n);
    for (enum kind kind = 0; kind < KINDS; kind++) {
        lists_fill(&all, kind);
        lists_fill(&in_place, kind);
        const size_t first = is_emulated ? kind : 0;
        const size_t end =
            is_emulated ? first + 1 + (kind == TAME) : sizeof scales / sizeof *scales;
        for (size_t i = first; i < end; i++)
            for (enum operation operation = 0; operation < OPERATIONS; operation++)
                for (size_t j = operation == SCALE ? 2 : 0; j < sizeof wants / sizeof *wants; j++) {
                    const int given = j == 0 ? FACTOR | REPORT : ANYTHING;
                    compare_operation(&on, &all, operation, wants[j], scales[i], given,
                                      kind_names[kind]);
                    if (operation != ACCUMULATE)
                        compare_operation(&on_in_place, &in_place, operation, wants[j], scales[i],
                                          given, kind_names[kind]);
                }
    }
    stream_free(&on);
    stream_free(&on_in_place);
    lists_free(&all);
    lists_free(&in_place);
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
        const uint32_t all = size == 1 ? 16 * 256 : 2 * half; /* every thread has several rows */
        lists l = {0};
        lists_add_at(&l, all, dtype, GSC_F32, 0, 0);
        lists_add_at(&l, all, dtype, dtype, 0, 0);
        lists_add_at(&l, 6 * half, GSC_F32, dtype, 0, 0);
        lists_allocate(&l);
        float *values = allocated(half * sizeof *values), *floats = l.host[0][2].data;
        for (int i = 0; i < 2; i++)
            for (uint32_t bits = 0; bits < all; bits++)
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
            compare_operation(&on, &l, UNSCALE, i ? GSC_WANT_NORM : 0, i ? 1024 : 1,
                              FACTOR | REPORT, dtype_names[dtype]);
        compare_operation(&on, &l, CHECK_ONLY, GSC_WANT_NORM, 0x1p-10, FACTOR | EACH,
                          dtype_names[dtype]);
        stream_free(&on);
        lists_free(&l);
    }
}

static void compare_list(lists *l, const char *name)
{
    lists_allocate(l);
    gsc_exec on = stream_exec(l->device[0], l->n);
    lists_fill(l, WILD);
    for (int i = 0; i < 2; i++) {
        const int given = i ? ANYTHING : FACTOR | REPORT | EACH | HISTOGRAM | POLICY | LOSS;
        const uint32_t want = i ? GSC_WANT_AMAX : WANT_ALL;
        compare_operation(&on, l, UNSCALE, want, 1024, given, name);
        compare_operation(&on, l, ACCUMULATE, want, 1024, given, name);
    }
    stream_free(&on);
    lists_free(l);
}

/* Lists of many small tensors, of which the long ones take several launches, an empty one, and
 * tensors of several runs. */
static void compare_lists(void)
{
    static const uint64_t lengths[] = {0, 1, 149, 150, 151, 400, 1354, 1355, 1504, 3000};
    lists l = {0};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (uint64_t j = 0; j < lengths[i]; j++)
            lists_add(&l, random_bits() % 90, GSC_F16, j % 3 ? GSC_F32 : GSC_F16);
        compare_list(&l, "a long list");
    }
    for (uint64_t chunks = 64; chunks <= 65; chunks++) {
        lists_add(&l, 40 * 65536, GSC_F8_E5M2, GSC_F8_E5M2);
        lists_add(&l, (chunks - 40) * 65536 - 5, GSC_F8_E5M2, GSC_F8_E5M2);
        compare_list(&l, "a list of two tensors");
    }
    for (uint64_t i = 0; i < 40; i++)
        lists_add(&l, i % 2 * 1700000 + random_bits() % 90, GSC_F8_E5M2, GSC_F8_E5M2);
    compare_list(&l, "a list of many chunks");
}

/* Calls on no tensor and on one, with losses: enough of them for every dtype. */
static void compare_losses(void)
{
    for (uint64_t n = 0; n < 2; n++) {
        lists l = {0};
        if (n > 0)
            lists_add(&l, 100, GSC_F32, GSC_F32);
        lists_allocate(&l);
        gsc_exec on = stream_exec(l.device[0], l.n);
        for (int i = 0; i < 300; i++) {
            lists_fill(&l, i % 8 ? TAME : WILD);
            compare_operation(&on, &l, (enum operation)(i % OPERATIONS), 0, 2,
                              REPORT | LOSS | (i & (EACH | POLICY)), "a loss");
        }
        stream_free(&on);
        lists_free(&l);
    }
    for (uint32_t dtype = 1; dtype <= GSC_CB16; dtype++)
        CHECK(seen_losses[dtype] ==
              (1u << GSC_LOSS_UNKNOWN | 1u << GSC_LOSS_FINITE | 1u << GSC_LOSS_NOT_FINITE));
}

/* ---- conformance: reports, factors, states ---- */

/* The records that the calls below read and write, on the host and in device memory. */
typedef struct record {
    gsc_factor factor, product;
    gsc_report report, others[130];
    gsc_state state, from, made;
    double loss;
} record;

static record host, *device;
static gsc_exec stream;

/* Calls a function with records of zeros and a stream; its workspace is for calls without a list.
 */
static void with_records(void (*run)(void))
{
    stream = stream_exec(NULL, 0);
    device = device_memory(sizeof *device);
    memset(&host, 0, sizeof host);
    upload(device, &host, sizeof host);
    run();
    stream_free(&stream);
    device_free(device);
}

static void workspace_for(const gsc_tensor *list, uint64_t n)
{
    stream_free(&stream);
    stream = stream_exec(list, n);
}

/* Makes a call with `on` and the record `r` of the host, then with the device's. */
#define BOTH(call)                                                                                 \
    do {                                                                                           \
        const gsc_exec *on = NULL;                                                                 \
        record *r = &host;                                                                         \
        GSC(call);                                                                                 \
        on = &stream;                                                                              \
        r = device;                                                                                \
        GSC(call);                                                                                 \
    } while (0)

static void same_records(const char *what)
{
    static record copy;
    GSC(gsc_exec_wait(&stream, &err));
    download(&copy, device, sizeof copy);
    same(what, &host, &copy, sizeof copy);
}

static gsc_report random_report(void)
{
    gsc_report r = {.kind = GSC_REPORT_TENSORS, .measured = 7};
    r.inf_count = random_bits() % 4 == 0;
    r.overflow = (int32_t)r.inf_count;
    r.loss = (uint32_t)(random_bits() % 3);
    r.found_inf = (float)(r.overflow || (r.loss == GSC_LOSS_NOT_FINITE && random_bits() % 2));
    r.generation = random_bits() % 4;
    r.amax = fabs((double)random_float() * (double)random_float());
    r.sum_squares = (double)random_float() * 0x1p100;
    r.sum_squares *= r.sum_squares;
    r.elements = random_bits() % 8 ? (int64_t)(random_bits() >> 20) : 0;
    r.first_tensor = r.overflow ? (int64_t)(random_bits() >> 40) : 0;
    r.first_element = r.overflow ? (int64_t)(random_bits() >> 40) : 0;
    r.last_tensor = r.overflow ? (int64_t)(random_bits() >> 40) : 0;
    r.clamped = (int64_t)(random_bits() >> 40);
    r.status_rank_plus_1 = r.first_rank_plus_1 = (uint32_t)random_bits();
    r.last_rank_plus_1 = (uint32_t)random_bits();
    r.loss_rank_plus_1 = (uint32_t)random_bits();
    r.digest = random_bits() % 2;
    return r;
}

static void compare_small_calls(void)
{
    gsc_policy policy = GSC_POLICY_INIT;
    policy.overflow_test = GSC_TEST_NORM;
    policy.max_failed_backoffs = 1;
    for (int i = 0; i < 300; i++) {
        policy.bad_loss_rule = i % 4 == 3 ? GSC_BAD_LOSS_HOLD : GSC_BAD_LOSS_OVERFLOW;
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
            if (random_bits() % 500 == 0)
                host.others[j].measured = GSC_WANT_NORM | GSC_WANT_AMAX;
            if (!by && random_bits() % 100 == 0) {
                host.others[j].kind = GSC_REPORT_FLAG;
                host.others[j].measured = 0;
                host.others[j].loss = GSC_LOSS_UNKNOWN;
            }
        }
        if (i % 16 == 5 && n > 0)
            host.others[n - 1].status = GSC_ERROR_DEVICE;
        GSC(gsc_factor_init(1 + (double)(random_bits() >> 50), &host.factor, &err));
        host.factor.generation = 3;
        upload(device, &host, sizeof host);
        BOTH(gsc_report_merge(on, r->others, n, kind, by, &r->report, &err));
        BOTH(gsc_report_merge(on, r->others, 2, kind, by, &r->others[1], &err));
        BOTH(gsc_factor_multiply(on, &r->factor, 0.3, &r->factor, &err));
        if (host.report.status == GSC_OK && host.report.measured & GSC_WANT_NORM)
            BOTH(gsc_factor_clip_grad_norm(on, &r->factor, &r->report, 0.7, &r->factor, &err));
        same_records("report_merge, factor_multiply, factor_clip");
    }
}

static double unit(void)
{
    return (double)(random_bits() >> 11) * 0x1p-53;
}

static void set_random_guard(gsc_policy *policy, uint32_t round)
{
    policy->guard_norm = round % 5 == 0 ? 3 * unit() : 0;
    policy->guard_ratio = round % 3 == 0 ? 1.5 + unit() : 0;
    policy->guard_sigmas = round % 3 == 0 ? 0 : 1 + 2 * unit();
    policy->guard_decay = unit();
    policy->guard_init_mean = round % 4 == 0 ? unit() : 0;
    policy->guard_warmup = random_bits() % 10;
    policy->guard_max_in_a_row = random_bits() % 6;
    policy->guard_sample = (uint32_t)(random_bits() % 3);
    policy->guard_flags = (uint32_t)(random_bits() % 256);
    if (!(policy->guard_flags & GSC_GUARD_CLIP))
        policy->guard_flags &= ~(uint32_t)(GSC_GUARD_CLIP_PROGRESSIVE | GSC_GUARD_CLIP_TO_MEAN);
    policy->quirks |= GSC_QUIRK_ALLOW_LOCKOUT;
}

/* Every preset over random reports, many of them overflows in a row, and with a random guard over
   norms of all kinds; what is clipped, decisions that are combined, scales that are set. */
static void compare_policies(void)
{
    static const double scales[] = {384.3, 0, HUGE_VAL};
    const char *name;
    uint32_t seen = 0;
    for (uint32_t round = 0; (name = gsc_preset_name(round / 2)); round++) {
        const bool is_guarded = round % 2;
        gsc_policy policy = GSC_POLICY_INIT;
        GSC(gsc_policy_preset(name, &policy, &err));
        policy.growth_interval = policy.growth_interval > 5 ? 5 : policy.growth_interval;
        policy.max_failed_backoffs =
            policy.max_failed_backoffs > 3 ? 3 : policy.max_failed_backoffs;
        if (is_guarded)
            set_random_guard(&policy, round);
        BOTH(gsc_state_init(on, &policy, &r->state, &err));
        BOTH(gsc_state_init(on, &policy, &r->from, &err));
        for (int step = 0; step < (is_guarded ? 90 : 240); step++) {
            const uint64_t generation = host.state.factor.generation;
            const gsc_policy *of_policy = step % 3 ? &policy : NULL;
            const bool of_state = step % 4 != 1, by_factor = round % 4 == 3;
            host.report = random_report();
            if (is_guarded)
                GSC(gsc_report_from_number(unit() * (random_bits() % 8 ? 1 : 40), &host.report,
                                           &err));
            if (is_guarded && random_bits() % 10 == 0)
                host.report.sum_squares = random_bits() % 2 ? INFINITY : NAN;
            host.report.generation = is_guarded || step % 5 ? generation : host.report.generation;
            if (!is_guarded && step / 80 == 1)
                host.report.overflow = 1;
            upload(&device->report, &host.report, sizeof host.report);
            BOTH(gsc_report_set_rank(on, &r->report, of_policy, of_state ? &r->state : NULL,
                                     (uint32_t)step, &r->report, &err));
            BOTH(gsc_state_update(on, &policy, &r->state, &r->report, &r->state, &err));
            seen |= host.state.events;
            (void)gsc_factor_clip_outlier(&writing, by_factor ? &host.factor : NULL, &host.state,
                                          &host.product, NULL);
            GSC(gsc_factor_clip_outlier(&stream, by_factor ? &device->factor : NULL, &device->state,
                                        &device->product, &err));
            BOTH(gsc_state_combine_decisions(on, &r->from, &r->state, &r->from, &err));
            same_records(name);
            if (step % 80 != 79)
                continue;
            host.from = host.state;
            host.from.factor.scale = scales[step / 80];
            upload(&device->from, &host.from, sizeof host.from);
            BOTH(gsc_state_init_from(on, &policy, &r->from, &r->state, &err));
            host.factor = host.state.factor;
            host.from = host.state;
            upload(device, &host, sizeof host);
        }
    }
    CHECK(seen & GSC_EVENT_OUTLIER && seen & GSC_EVENT_CLIPPED && seen & GSC_EVENT_STOPPED);
    CHECK(seen & GSC_EVENT_BAD_LOSS && seen & GSC_EVENT_EMPTY);
}

/* ---- what only a device would find ---- */

/* Calls on tensors by factors that cannot be used write reports and no tensor. */
static void compare_bad_factors(void)
{
    static const double scales[] = {0, -1, HUGE_VAL, NAN};
    static const uint64_t lengths[] = {0, 1, 151};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        lists l = {0};
        for (uint64_t k = 0; k < lengths[i]; k++)
            lists_add(&l, 70, GSC_F16, GSC_F32);
        lists_allocate(&l);
        lists_fill(&l, TAME);
        gsc_exec on = stream_exec(l.device[0], l.n);
        for (enum operation operation = 0; operation < OPERATIONS; operation++)
            for (int k = 0; k < 4; k++) {
                const int given = FACTOR | REPORT | EACH | HISTOGRAM | POLICY | LOSS;
                compare_operation(&on, &l, operation, WANT_ALL, scales[k], given, "a bad factor");
                compare_operation(&on, &l, operation, 0, scales[k], ANYTHING, "a bad factor");
            }
        stream_free(&on);
        lists_free(&l);
    }
}

enum { MULTIPLY, CLIP, CLIP_OUTLIER, MERGE, SET_RANK, INIT_FROM, UPDATE, COMBINE, STRUCT_CALLS };

/* A call on structs that judges by the norm; its result replaces one of them, or is apart. */
static gsc_status call_on_structs(int call, const gsc_exec *on, record *r, bool in_place,
                                  gsc_error *err)
{
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_factor *factor = in_place ? &r->factor : &r->product;
    gsc_report *report = in_place ? &r->report : &r->others[9];
    gsc_state *state = in_place ? &r->state : &r->made;
    policy.overflow_test = GSC_TEST_NORM;
    switch (call) {
    case MULTIPLY:
        return gsc_factor_multiply(on, &r->factor, 3, factor, err);
    case CLIP:
        return gsc_factor_clip_grad_norm(on, &r->factor, &r->report, 0.5, factor, err);
    case CLIP_OUTLIER:
        return gsc_factor_clip_outlier(on, &r->factor, &r->state, factor, err);
    case MERGE:
        return gsc_report_merge(on, &r->report, 3, GSC_MERGE_SHARDS, &policy, report, err);
    case SET_RANK:
        return gsc_report_set_rank(on, &r->report, &policy, &r->state, 5, report, err);
    case INIT_FROM:
        return gsc_state_init_from(on, &policy, &r->state, state, err);
    case UPDATE:
        return gsc_state_update(on, &policy, &r->state, &r->report, state, err);
    default:
        return gsc_state_combine_decisions(on, &r->state, &r->from, in_place ? &r->from : state,
                                           err);
    }
}

/* Makes structs that every call takes, and a state that clips. */
static void make_structs(void)
{
    gsc_policy policy = GSC_POLICY_INIT;
    memset(&host, 0, sizeof host);
    GSC(gsc_factor_init(8, &host.factor, &err));
    GSC(gsc_state_init(NULL, &policy, &host.state, &err));
    host.state.events = GSC_EVENT_CLIPPED | GSC_EVENT_GREW;
    host.state.guard_multiplier = 0.5;
    host.from = host.state;
    for (uint32_t rank = 0; rank < 3; rank++)
        *(rank ? &host.others[rank - 1] : &host.report) =
            (gsc_report){.kind = GSC_REPORT_TENSORS,
                         .measured = GSC_WANT_NORM,
                         .sum_squares = 4,
                         .elements = 1,
                         .digest = 42,
                         .status_rank_plus_1 = rank + 1};
}

/* Makes a call on structs with one or two words of `bits`. If it fails, compares the device. */
static gsc_status compare_failure(int call, size_t at, uint64_t bits, bool two, bool in_place)
{
    gsc_error err;
    char what[96];
    snprintf(what, sizeof what, "call %d, %d of %" PRIx64 " at byte %zu%s", call, 1 + two, bits, at,
             in_place ? ", in place" : "");
    make_structs();
    memcpy((char *)&host + at, &bits, 8);
    if (two)
        memcpy((char *)&host + at + 8, &bits, 8);
    static record before;
    before = host;
    const gsc_status status = call_on_structs(call, &writing, &host, in_place, &err);
    if (status == GSC_OK) /* which other tests compare */
        return status;
    upload(device, &before, sizeof before);
    GSC(call_on_structs(call, &stream, device, in_place, &err));
    same_records(what);
    return status;
}

/* Compares failures for each word of each struct, of calls on structs and on tensors. */
static void errors(void)
{
    static const double numbers[] = {0, 5e-324, -1, HUGE_VAL, NAN};
    enum { VALUES = 1 + sizeof numbers / sizeof *numbers };
    uint64_t values[VALUES] = {UINT64_MAX};
    memcpy(values + 1, numbers, sizeof numbers);
    static const struct {
        size_t at, bytes;
    } structs[] = {{offsetof(record, factor), sizeof(gsc_factor)},
                   {offsetof(record, report), 3 * sizeof(gsc_report)},
                   {offsetof(record, state), 2 * sizeof(gsc_state)}};
#define STATUS_BIT(status) (1u << -(status))
#define STATUS(name)       STATUS_BIT(GSC_ERROR_##name)
    static const uint32_t expected[] = {
        [MULTIPLY] = STATUS(FACTOR) | STATUS(VALUE),
        [CLIP] = STATUS(FACTOR) | STATUS(REPORT),
        [CLIP_OUTLIER] = STATUS(FACTOR) | STATUS(STATE) | STATUS(VERSION),
        [MERGE] = STATUS(REPORT) | STATUS(MISMATCH),
        [SET_RANK] = STATUS(REPORT) | STATUS(STATE) | STATUS(VERSION),
        [INIT_FROM] = STATUS(STATE) | STATUS(VERSION),
        [UPDATE] = STATUS(REPORT) | STATUS(STATE) | STATUS(VERSION),
        [COMBINE] = STATUS(STATE) | STATUS(VERSION)};
    uint32_t failed[STRUCT_CALLS] = {0};
    for (size_t s = 0; s < sizeof structs / sizeof *structs; s++)
        for (size_t at = structs[s].at; at < structs[s].at + structs[s].bytes; at += 8)
            for (size_t i = 0; i < VALUES * 4; i++)
                for (int call = 0; call < STRUCT_CALLS; call++)
                    failed[call] |=
                        STATUS_BIT(compare_failure(call, at, values[i / 4], i / 2 % 2, i % 2));
    for (int call = 0; call < STRUCT_CALLS; call++)
        CHECK(failed[call] == (expected[call] | STATUS_BIT(GSC_OK)));
    compare_bad_factors();
}

/* ---- memory ---- */

/* Between any two kinds, in the order of the stream. */
static void copies(void)
{
    enum { WORDS = 1 << 16, BYTES = 4 * WORDS };
    uint32_t *from = allocated(BYTES), *to = allocated(BYTES);
    void *memory[3] = {allocated(BYTES), NULL, NULL}, *none = &none;
    GSC(gsc_memory_create(context, GSC_MEMORY_DEVICE, BYTES, &memory[1], &err));
    GSC(gsc_memory_create(context, GSC_MEMORY_HOST, BYTES, &memory[2], &err));
    CHECK((uintptr_t)memory[1] % 256 == 0 && (uintptr_t)memory[2] % 256 == 0);
    for (int i = 0; i < 9; i++) {
        void *first = memory[i / 3], *second = memory[i % 3];
        for (int k = 0; k < WORDS; k++)
            from[k] = (uint32_t)random_bits();
        GSC(gsc_memory_copy(&stream, first, from, BYTES, &err));
        GSC(gsc_memory_copy(&stream, second, first, first == second ? 0 : BYTES, &err));
        GSC(gsc_memory_copy(&stream, to, second, BYTES, &err));
        GSC(gsc_exec_wait(&stream, &err));
        same("a copy of a copy", from, to, BYTES);
        if (first == memory[2])
            same("memory that is shared", from, memory[2], BYTES);
    }
    /* After a wait the host reads what the device wrote to shared memory. */
    gsc_policy policy = GSC_POLICY_INIT;
    GSC(gsc_state_init(NULL, &policy, &host.state, &err));
    GSC(gsc_state_init(&stream, &policy, memory[2], &err));
    GSC(gsc_exec_wait(&stream, &err));
    same("a state in memory that is shared", &host.state, memory[2], sizeof host.state);

    GSC(gsc_memory_create(context, GSC_MEMORY_DEVICE, 0, &none, &err));
    CHECK(!none);
    device_free(none);
    device_free(memory[1]);
    device_free(memory[2]);
    free(memory[0]);
    free(from);
    free(to);
}

/* ---- graphs and streams ---- */

/* The graph has kernels, and nothing but kernels; it is gone afterwards. */
static void *instantiate(void *graph)
{
    void *executable, *nodes[64];
    uint64_t count = 64;
    CU(graph_nodes(graph, nodes, &count));
    CHECK(count > 0);
    for (uint64_t i = 0; i < count; i++) {
        int32_t type = -1;
        CU(node_type(nodes[i], &type));
        CHECK(type == 0);
    }
    CU(graph_instantiate(&executable, graph, 0));
    CU(graph_destroy(graph));
    return executable;
}

static void training_step(const gsc_exec *on, record *r, gsc_tensor *const list[2], uint64_t n,
                          const gsc_policy *policy)
{
    const gsc_tensor loss = {.data = &r->loss, .count = 1, .dtype = GSC_F64};
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.want = WANT_ALL;
    options.policy = policy;
    options.loss = &loss;
    GSC(gsc_scale(on, &r->state.factor, list[0], list[1], n, NULL, NULL, &err));
    GSC(gsc_unscale(on, &r->state.factor, list[1], list[0], n, &options, &r->report, &err));
    GSC(gsc_report_set_rank(on, &r->report, policy, &r->state, 3, &r->others[1], &err));
    GSC(gsc_report_merge(on, &r->others[1], 1, GSC_MERGE_SHARDS, policy, &r->others[0], &err));
    GSC(gsc_state_update(on, policy, &r->state, &r->others[0], &r->state, &err));
}

/* A training step with all its calls; a wait is refused while it is captured. The list on the host
   is overwritten and freed afterwards; the gradients and the loss change, and in every eighth step
   they overflow, or it is bad. */
static void replay_graph(void)
{
    lists l = {0};
    void *graph, *executable;
    gsc_error err;
    gsc_policy policy = GSC_POLICY_INIT;
    GSC(gsc_policy_preset("recommended", &policy, &err));
    policy.growth_interval = 3;
    for (int i = 0; i < 200; i++)
        lists_add(&l, random_bits() % 400, GSC_F32, GSC_F16);
    lists_allocate(&l);
    workspace_for(l.device[0], l.n);
    BOTH(gsc_state_init(on, &policy, &r->state, &err));
    CU(capture_begin(stream.stream, 0));
    CHECK(gsc_exec_wait(&stream, &err) == GSC_ERROR_UNAVAILABLE); /* and the capture goes on */
    CHECK_TEXT(err.message, "captured");
    training_step(&stream, device, l.device, l.n, &policy);
    CU(capture_end(stream.stream, &graph));
    executable = instantiate(graph);
    for (int side = 0; side < 2; side++) {
        memset(l.device[side], 0xa5, l.n * sizeof(gsc_tensor));
        free(l.device[side]);
        l.device[side] = NULL;
    }
    for (int step = 0; step < 20; step++) {
        lists_fill(&l, step % 8 == 7 ? WILD : TAME);
        host.loss = step % 8 == 4 ? (double)NAN : 1;
        upload(&device->loss, &host.loss, sizeof host.loss);
        CU(graph_launch(executable, stream.stream));
        GSC(gsc_exec_wait(&stream, &err));
        training_step(NULL, &host, l.host, l.n, &policy);
        same_report("graph, report", &host.report, &device->report);
        same_report("graph, report with a rank", &host.others[1], &device->others[1]);
        same_records("graph, all reports and the state");
        same_memory("graph, gradients", &l, 0);
    }
    CHECK(host.state.total_growths > 0 && host.state.total_backoffs > 0);
    CHECK(host.state.total_bad_losses == 2);
    CU(executable_destroy(executable));
    lists_free(&l);
}

typedef struct enqueuer {
    pthread_t thread;
    gsc_exec on;
    lists l;
    record *device;
    gsc_status status;
} enqueuer;

static void *enqueue_four(void *data)
{
    enqueuer *e = data;
    for (int round = 0; round < 4 && e->status == GSC_OK; round++)
        e->status = gsc_unscale(&e->on, &e->device->factor, e->l.device[0], e->l.device[1], e->l.n,
                                NULL, &e->device->report, NULL);
    return NULL;
}

/* One context; a thread of the host, a stream and a workspace each. */
static void two_streams(void)
{
    enqueuer both[2] = {0};
    gsc_factor factors[2];
    for (int i = 0; i < 2; i++) {
        enqueuer *e = &both[i];
        for (int j = 0; j < 40; j++)
            lists_add(&e->l, 3000 + random_bits() % 9000, i ? GSC_BF16 : GSC_F32, GSC_F32);
        lists_allocate(&e->l);
        lists_fill(&e->l, TAME);
        e->on = stream_exec(e->l.device[0], e->l.n);
        e->device = device_memory(sizeof *e->device);
        GSC(gsc_factor_init(i + 2, &factors[i], &err));
        upload(&e->device->factor, &factors[i], sizeof factors[i]);
    }
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&both[i].thread, NULL, enqueue_four, &both[i]) == 0);
    for (int i = 0; i < 2; i++) {
        enqueuer *e = &both[i];
        gsc_report report;
        CHECK(pthread_join(e->thread, NULL) == 0 && e->status == GSC_OK);
        GSC(gsc_exec_wait(&e->on, &err));
        GSC(gsc_unscale(NULL, &factors[i], e->l.host[0], e->l.host[1], e->l.n, NULL, &report,
                        &err));
        same_report("two streams, report", &report, &e->device->report);
        same_memory("two streams, gradients", &e->l, 1);
        stream_free(&e->on);
        lists_free(&e->l);
        device_free(e->device);
    }
}

/* The comparisons of `gradscaler doctor`. Prints each name first: a fault can end the process. */
static void compare_as_doctor(void)
{
    gsc_error err;
    uint64_t bytes;
    for (uint32_t i = 0; gsc_comparison_name(i); i++)
        for (uint64_t round = 0; round < (is_emulated ? 3 : 20); round++, checks++) {
            printf("%s, round %" PRIu64 "\n", gsc_comparison_name(i), round);
            fflush(stdout);
            if (!CHECK(gsc_exec_compare(&stream, i, round, &bytes, &err) == GSC_OK))
                printf("%s\n", err.message);
        }
}

/* A process runs each group, so that what one finds or breaks hides no other; the important ones
   are first. */
static const struct {
    const char *name;
    void (*run)(void);
} groups[] = {{"comparisons", compare_as_doctor},
              {"lists", compare_lists},
              {"tensors", compare_tensors},
              {"conversions", compare_conversions},
              {"losses", compare_losses},
              {"policies", compare_policies},
              {"small_calls", compare_small_calls},
              {"errors", errors},
              {"memory", copies},
              {"graph", replay_graph},
              {"streams", two_streams}};
enum { GROUPS = sizeof groups / sizeof *groups };

/* ---- recordings ---- */

static gsc_status replay(const gsc_policy *policy, gsc_state *state, char *steps, gsc_error *err)
{
    gsc_status status = GSC_OK;
    char *rest, *step = strtok_r(steps, ",", &rest);
    upload(&device->state, state, sizeof *state);
    for (; status == GSC_OK && step; step = strtok_r(NULL, ",", &rest)) {
        const gsc_report report = read_step(step);
        printf("%.17g", state->factor.scale);
        upload(&device->report, &report, sizeof report);
        status =
            gsc_state_update(&stream, policy, &device->state, &device->report, &device->state, err);
        GSC(gsc_exec_wait(&stream, &err));
        download(state, &device->state, sizeof *state);
        print_update(step, state);
    }
    return status;
}

static void answer(void)
{
    answer_lines(replay);
}

int main(int count, char **arguments)
{
    const char *mode = count > 1 ? arguments[1] : "", *note = cuda_note();
    char name[256];
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
        with_records(answer);
        close_device();
        return 0;
    }
    CU(device_name(name, sizeof name, 0));
    is_emulated = strcmp(name, "stand-in") == 0;
    for (int i = 0; i < GROUPS; i++)
        if (count == 1 || strcmp(mode, groups[i].name) == 0) {
            with_records(groups[i].run);
            found = true;
        }
    if (!found)
        die(mode, "no group of this name; --groups lists them");
    printf("%s: %ld comparisons with the CPU, %d failures\n", name, checks, check_failures);
    close_device();
    return check_failures > 0;
}
