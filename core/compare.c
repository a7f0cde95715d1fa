/* SPDX-License-Identifier: MIT */
/*
 * The comparisons with the host that a device must pass, bit for bit. The check of a new CUDA
 * context runs their rounds 0; `gradscaler doctor` and ci/gpu run more. A comparison is a list of
 * calls on one block of memory. The block is made on the host and copied to the device; then both
 * run the calls, and the whole blocks are compared.
 */
#include "compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"

enum {
    REPORTS = 130,
    MOST_ROUNDS = 1000,
    ALL = GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW
};

/* The memory that the calls read and write; the reports of each tensor and the tensors follow. */
typedef struct block {
    gsc_factor factor, product;
    gsc_state state, other;
    gsc_report report, ranked, merged, reports[REPORTS];
    gsc_state traces[64]; /* of each preset */
    int64_t histogram[GSC_HISTOGRAM_LENGTH];
    double losses[3];
    gsc_report each[];
} block;

typedef struct run {
    uint64_t round, random;
    uint64_t n, size;     /* tensors, and bytes of the block without the reports of each */
    gsc_tensor *in, *out; /* `data` is an offset behind these reports, until `place` */
    bool failed;          /* no memory for the lists */
} run;

static uint64_t random_bits(run *r) /* xorshift64* */
{
    r->random ^= r->random >> 12;
    r->random ^= r->random << 25;
    r->random ^= r->random >> 27;
    return r->random * UINT64_C(0x2545f4914f6cdd1d);
}

/* Returns a number of magnitude 2^-12 to 2^3, or zero. */
static float random_float(run *r)
{
    const uint64_t bits = random_bits(r);
    const float value = (float)(1 << (bits & 15)) * 0x1p-12f * (1 + (float)(bits >> 40) * 0x1p-24f);
    return bits >> 4 & 31 ? bits >> 9 & 1 ? value : -value : 0;
}

static double random_unit(run *r)
{
    return (double)(random_bits(r) >> 11) * 0x1p-53;
}

/* ---- lists ---- */

/* Adds room for a tensor; mostly at an address that suits the dtype. */
static void *add_data(run *r, uint64_t count, uint32_t dtype)
{
    r->size += 16 - r->size % 16 + (random_bits(r) % 4 ? 0 : random_bits(r) % 16);
    void *offset = (void *)(uintptr_t)r->size;
    r->size += count * gsc_reals[dtype].size;
    return offset;
}

static void add_tensor(run *r, uint64_t count, uint32_t in, uint32_t out, bool in_place)
{
    gsc_tensor *ins = realloc(r->in, (r->n + 1) * sizeof *ins), *outs;
    r->in = ins ? ins : r->in;
    outs = ins ? realloc(r->out, (r->n + 1) * sizeof *outs) : NULL;
    r->out = outs ? outs : r->out;
    r->failed |= !outs;
    if (r->failed)
        return;
    ins[r->n] = (gsc_tensor){.data = add_data(r, count, in), .count = count, .dtype = in};
    outs[r->n] = ins[r->n];
    outs[r->n].dtype = out;
    if (!in_place)
        outs[r->n].data = add_data(r, count, out);
    r->n++;
}

/* Makes the lists point to a block on the host or on the device. */
static void place(run *r, uintptr_t from, uintptr_t to)
{
    for (uint64_t i = 0; i < r->n; i++) {
        r->in[i].data = (void *)((uintptr_t)r->in[i].data - from + to);
        r->out[i].data = (void *)((uintptr_t)r->out[i].data - from + to);
    }
}

/* Sums must be in other memory. */
static bool can_be_in_place(const run *r)
{
    return r->round % 5 != 4;
}

static void add_dtypes(run *r)
{
    static const uint64_t counts[] = {1, 65, 0, 63, 64, 3, 4095, 4097, 4096, 65537};
    const uint64_t lengths = sizeof counts / sizeof *counts;
    for (uint32_t in = 1; gsc_is_dtype(in); in++)
        for (uint32_t out = 1; gsc_is_dtype(out); out++) {
            const bool in_place =
                can_be_in_place(r) && r->round % 2 && gsc_reals[in].size == gsc_reals[out].size;
            /* The large ones of equal dtypes only, so that a round is short. */
            const uint64_t most = in == out ? 2 + 2 * r->round : 2 + r->round;
            if (gsc_reals[in].parts == gsc_reals[out].parts)
                for (uint64_t i = 0; i < most && i < lengths - (in != out); i++)
                    add_tensor(r, counts[i], in, out, in_place);
        }
}

/* Lists that take one launch and several, and an empty one. */
static void add_short(run *r)
{
    static const uint64_t lengths[] = {400, 1, 151, 1355, 0, 149, 150, 1354, 1504, 3000};
    for (uint64_t i = 0; i < lengths[r->round % 10]; i++)
        add_tensor(r, random_bits(r) % 90, GSC_F16, i % 3 ? GSC_F32 : GSC_F16, false);
}

/* Tensors of one and of several runs of chunks. */
static void add_long(run *r)
{
    static const uint32_t dtypes[] = {GSC_F8_E5M2, GSC_F32, GSC_BF16, GSC_F16};
    const uint32_t dtype = dtypes[r->round % 4];
    const uint64_t chunks = r->round == 0 ? 1 : 64 + r->round / 2;
    add_tensor(r, chunks * GSC_CHUNK / 2 + 37, dtype, dtype, false);
    add_tensor(r, chunks * GSC_CHUNK - 5, dtype, dtype, can_be_in_place(r));
}

static void add_steps(run *r)
{
    for (uint64_t i = 0; i < 8; i++)
        add_tensor(r, 40 + i, GSC_F32, GSC_F32, true);
}

/* Ordinary values, one in `rarely` Inf, NaN or huge; 0: any bits. */
static void fill(run *r, uint64_t rarely)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN, 3e38f};
    float values[256];
    for (uint64_t i = 0; i < 2 * r->n; i++) {
        const gsc_tensor *t = i < r->n ? &r->in[i] : &r->out[i - r->n];
        const struct gsc_real *type = &gsc_reals[t->dtype];
        unsigned char *data = t->data;
        for (uint64_t j = 0; rarely == 0 && j < t->count * type->size; j++)
            data[j] = (unsigned char)(random_bits(r) >> 32);
        for (uint64_t done = 0; rarely != 0 && done < t->count; done += 128) {
            const uint64_t count = t->count - done < 128 ? t->count - done : 128;
            const uint32_t dtype = type->parts == 2 ? GSC_COMPLEX64 : GSC_F32;
            const gsc_tensor from = {.data = values, .count = count, .dtype = dtype},
                             to = {.data = data + done * type->size,
                                   .count = count,
                                   .dtype = t->dtype};
            for (uint64_t j = 0; j < 256; j++)
                values[j] = random_bits(r) % rarely ? random_float(r) : bad[random_bits(r) % 4];
            (void)gsc_scale(NULL, NULL, &from, &to, 1, NULL, NULL, NULL);
        }
    }
}

/* ---- calls: `b` is the block on the host or on the device, and is not read here ---- */

/* A device writes to its result why it refuses a value; the host is told to do so. */
#define CALL(call)                                                                                 \
    do {                                                                                           \
        const gsc_status status_ = (call);                                                         \
        if (status_ != GSC_OK && !(on->flags & GSC_EXEC_WRITE_FAILURES))                           \
            return status_;                                                                        \
    } while (0)

static gsc_status run_list(const gsc_exec *on, const run *r, block *b, gsc_error *err)
{
    static const uint32_t wants[] = {ALL, 0, GSC_WANT_NORM | GSC_WANT_AMAX};
    const gsc_tensor loss = {.data = &b->losses[r->round % 3], .count = 1, .dtype = GSC_F64};
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    policy.overflow_test = GSC_TEST_NORM;
    options.want = wants[r->round % 3];
    options.per_tensor = r->round % 4 != 3 ? b->each : NULL;
    options.histogram = r->round % 4 != 2 ? b->histogram : NULL;
    options.policy = r->round % 4 == 0 ? &policy : NULL;
    options.loss = r->round % 4 != 1 ? &loss : NULL;
    options.clamp = r->round % 5 == 3 ? 0.75 : 0;
    if (r->round % 5 == 1)
        CALL(gsc_measure(on, &b->factor, r->in, r->n, &options, &b->report, err));
    else
        CALL((r->round % 5 == 2 ? gsc_scale
              : r->round % 5 == 4
                  ? gsc_unscale_accumulate
                  : gsc_unscale)(on, &b->factor, r->in, r->out, r->n, &options, &b->report, err));
    return GSC_OK;
}

/* By a state that steps, one that skips and one that is refused. */
static gsc_status run_copies(const gsc_exec *on, const run *r, block *b, gsc_error *err)
{
    const gsc_state *const states[] = {&b->state, &b->other, &b->traces[0]};
    const uint64_t third = r->n / 3;
    gsc_policy policy = GSC_POLICY_INIT;
    CALL(gsc_state_init(on, &policy, &b->state, err));
    CALL(gsc_report_merge(on, b->reports, REPORTS, GSC_MERGE_SHARDS, NULL, &b->merged, err));
    CALL(gsc_state_update(on, &policy, &b->state, &b->merged, &b->other, err));
    for (uint64_t i = 0; i < 3; i++)
        CALL(gsc_copy_unless_skipped(on, states[(i + r->round) % 3], &r->in[i * third],
                                     &r->out[i * third], third, err));
    return GSC_OK;
}

static gsc_status run_factors(const gsc_exec *on, const run *r, block *b, gsc_error *err)
{
    for (uint64_t i = 0; i < 2 + r->round; i++) {
        CALL(gsc_factor_multiply(on, &b->factor, 0.3, &b->factor, err));
        CALL(gsc_factor_clip_grad_norm(on, &b->factor, &b->reports[i % REPORTS], 0.7, &b->product,
                                       err));
    }
    return GSC_OK;
}

static gsc_status run_merges(const gsc_exec *on, const run *r, block *b, gsc_error *err)
{
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t kind = i == 0 ? GSC_MERGE_SHARDS : GSC_MERGE_ADDENDS;
        const uint64_t n = r->round == 0 ? 5 : r->random % REPORTS;
        CALL(gsc_report_merge(on, b->reports, n, kind, NULL, &b->merged, err));
        CALL(gsc_report_merge(on, b->reports, 2, kind, NULL, &b->reports[1], err));
        CALL(gsc_report_set_rank(on, &b->merged, NULL, NULL, 7, &b->ranked, err));
    }
    return GSC_OK;
}

static void set_guard(run *r, gsc_policy *policy)
{
    policy->guard_ratio = r->round % 3 == 0 ? 1.5 + random_unit(r) : 0;
    policy->guard_sigmas = r->round % 3 == 0 ? 0 : 1 + random_unit(r);
    policy->guard_decay = random_unit(r);
    policy->guard_warmup = random_bits(r) % 3;
    policy->guard_max_in_a_row = random_bits(r) % 6;
    policy->guard_sample = (uint32_t)(random_bits(r) % 3);
    policy->guard_flags = (uint32_t)(random_bits(r) % 256) | GSC_GUARD_CLIP;
    policy->quirks |= GSC_QUIRK_ALLOW_LOCKOUT;
}

/* Training steps, in which the state is copied and made anew, of every preset or of one. */
static gsc_status train(const gsc_exec *on, const run *r, block *b, bool is_guarded, gsc_error *err)
{
    const char *name;
    run random = *r;
    for (uint32_t i = 0; (name = gsc_preset_name(i)); i++) {
        gsc_policy policy = GSC_POLICY_INIT;
        gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
        GSC_TRY(gsc_policy_preset(name, &policy, err));
        policy.growth_interval = policy.growth_interval > 5 ? 5 : policy.growth_interval;
        if (is_guarded)
            set_guard(&random, &policy);
        options.want = GSC_WANT_NORM | GSC_WANT_AMAX;
        options.policy = &policy;
        CALL(gsc_state_init(on, &policy, &b->state, err));
        CALL(gsc_state_init(on, &policy, &b->other, err));
        for (uint64_t step = 0; step < (r->round == 0 ? 1 : 16); step++) {
            const gsc_tensor loss = {
                .data = &b->losses[step % 7 == 5], .count = 1, .dtype = GSC_F64};
            options.loss = &loss;
            CALL(gsc_measure(on, &b->state.factor, &r->in[(step + i) % r->n], 1, &options,
                             &b->report, err));
            CALL(gsc_report_set_rank(on, &b->report, &policy, &b->state, 3, &b->ranked, err));
            CALL(gsc_report_merge(on, &b->ranked, 1, GSC_MERGE_SHARDS, &policy, &b->merged, err));
            CALL(gsc_state_update(on, &policy, &b->state, &b->merged, &b->state, err));
            CALL(gsc_factor_clip_outlier(on, &b->state.factor, &b->state, &b->product, err));
            CALL(gsc_state_combine_decisions(on, &b->other, &b->state, &b->other, err));
        }
        CALL(gsc_state_init_from(on, &policy, &b->state, &b->traces[i % 64], err));
        if (r->round == 0 && i == 2)
            break;
    }
    return GSC_OK;
}

static gsc_status run_updates(const gsc_exec *on, const run *r, block *b, gsc_error *err)
{
    return train(on, r, b, false, err);
}

static gsc_status run_guard(const gsc_exec *on, const run *r, block *b, gsc_error *err)
{
    return train(on, r, b, true, err);
}

/* By factors and states that cannot be used. */
static gsc_status run_errors(const gsc_exec *on, const run *r, block *b, gsc_error *err)
{
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.per_tensor = b->each;
    CALL(gsc_unscale(on, &b->product, r->in, r->out, r->n, &options, &b->report, err));
    CALL(gsc_factor_multiply(on, &b->product, 3, &b->factor, err));
    CALL(gsc_state_update(on, &policy, &b->other, &b->report, &b->state, err));
    return GSC_OK;
}

static const struct {
    const char *name;
    void (*lists)(run *r); /* NULL: no tensors */
    gsc_status (*calls)(const gsc_exec *on, const run *r, block *b, gsc_error *err);
} comparisons[] = {{"dtypes", add_dtypes, run_list},     {"short lists", add_short, run_list},
                   {"long tensors", add_long, run_list}, {"copies", add_dtypes, run_copies},
                   {"factors", NULL, run_factors},       {"merges", NULL, run_merges},
                   {"updates", add_steps, run_updates},  {"guard", add_steps, run_guard},
                   {"errors", add_steps, run_errors}};

const char *gsc_comparison_name(uint32_t index)
{
    return index < sizeof comparisons / sizeof *comparisons ? comparisons[index].name : NULL;
}

/* ---- a comparison ---- */

static gsc_report random_report(run *r)
{
    gsc_report report = {.kind = GSC_REPORT_TENSORS, .measured = ALL};
    report.inf_count = random_bits(r) % 8 == 0;
    report.overflow = (int32_t)report.inf_count;
    report.found_inf = (float)report.overflow;
    report.loss = (uint32_t)(random_bits(r) % 2);
    report.amax = fabs((double)random_float(r));
    report.sum_squares = report.amax * report.amax * 3;
    report.elements = 1 + (int64_t)(random_bits(r) >> 20);
    report.first_tensor = report.overflow ? (int64_t)(random_bits(r) >> 40) : 0;
    report.last_tensor = report.overflow ? report.first_tensor + 3 : 0;
    report.clamped = (int64_t)(random_bits(r) >> 40);
    report.underflows_to_zero = (int64_t)(random_bits(r) >> 40);
    report.underflows_to_subnormal = (int64_t)(random_bits(r) >> 40);
    return report;
}

static void fill_block(run *r, block *b)
{
    static const double scales[] = {3, 65536, 0x1p60, 0x1p-80, 0x1.8p130};
    static const double bad[] = {0, -1, (double)INFINITY, (double)NAN};
    const double scale = scales[r->round / 2 % 5];
    b->factor = (gsc_factor){scale, 1 / scale, (float)scale, (float)(1 / scale), 7};
    b->product.scale = b->other.factor.scale = bad[r->round % 4];
    b->losses[0] = 1;
    b->losses[1] = (double)NAN;
    b->losses[2] = (double)INFINITY;
    for (int i = 0; i < REPORTS; i++)
        b->reports[i] = random_report(r);
    fill(r, r->round == 0 ? 50 : r->round % 3 == 2 ? 0 : r->round % 3 == 1 ? 1500 : UINT64_MAX);
}

/* Fails because of the first byte that differs; says in which tensor, or that it is in a struct. */
static gsc_status differs(const run *r, uint32_t index, const unsigned char *host,
                          const unsigned char *device, uint64_t bytes, gsc_error *err)
{
    static const struct {
        size_t at;
        const char *name;
    } parts[] = {
        {offsetof(block, state), "a state"},   {offsetof(block, report), "a report"},
        {offsetof(block, traces), "a state"},  {offsetof(block, histogram), "the histogram"},
        {offsetof(block, losses), "the loss"}, {offsetof(block, each), "a tensor's report"}};
    char where[96] = "a factor";
    uint64_t at = 0;
    while (host[at] == device[at])
        at++;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && parts[i].at <= at; i++)
        (void)snprintf(where, sizeof where, "%s", parts[i].name);
    for (uint64_t i = 0; i < 2 * r->n; i++) {
        const gsc_tensor *t = i < r->n ? &r->in[i] : &r->out[i - r->n];
        const uint64_t past = (uint64_t)((uintptr_t)(host + at) - (uintptr_t)t->data);
        if (past < t->count * gsc_reals[t->dtype].size)
            (void)snprintf(where, sizeof where, "element %llu of %llu, %s to %s",
                           (unsigned long long)(past / gsc_reals[t->dtype].size),
                           (unsigned long long)t->count, gsc_reals[r->in[i % r->n].dtype].name,
                           gsc_reals[r->out[i % r->n].dtype].name);
    }
    return gsc_fail_otherwise(
        err, GSC_ERROR_DEVICE, 0, "exec",
        "the comparison \"%s\" finds other bits than the host's: byte %llu of "
        "%llu is %02x instead of %02x, in %s",
        comparisons[index].name, (unsigned long long)at, (unsigned long long)bytes, device[at],
        host[at], where);
}

/* Runs the calls on both sides. `host` and `copy` have `bytes`, `memory` has a workspace behind. */
static gsc_status run_both(const gsc_exec *exec, run *r, uint32_t index, block *host, void *copy,
                           void *memory, uint64_t bytes, gsc_error *err)
{
    const gsc_exec here = {.struct_size = GSC_EXEC_SIZE, .flags = GSC_EXEC_WRITE_FAILURES};
    gsc_exec there = *exec;
    const uintptr_t device = (uintptr_t)memory;
    GSC_TRY(gsc_memory_copy(&there, memory, host, bytes, err));
    GSC_TRY(gsc_exec_wait(&there, err)); /* the host's block is about to change */
    place(r, (uintptr_t)host, device);
    gsc_status status = comparisons[index].calls(&there, r, memory, err);
    if (status == GSC_OK)
        status = gsc_memory_copy(&there, copy, memory, bytes, err);
    place(r, device, (uintptr_t)host);
    GSC_TRY(status);
    GSC_TRY(comparisons[index].calls(&here, r, host, err));
    GSC_TRY(gsc_exec_wait(&there, err));
    return memcmp(host, copy, bytes) == 0
               ? GSC_OK
               : differs(r, index, (void *)host, (void *)copy, bytes, err);
}

gsc_status gsc_compare(const gsc_exec *exec, uint32_t index, uint64_t round, void *memory,
                       uint64_t *size, gsc_error *err)
{
    run r = {.round = round, .random = (round + 1) * UINT64_C(0x9e3779b97f4a7c15) + index};
    gsc_exec on = *exec;
    if (comparisons[index].lists)
        comparisons[index].lists(&r);
    const uint64_t head = sizeof(block) + r.n * sizeof(gsc_report);
    const uint64_t bytes = (head + r.size + 15) / 16 * 16;
    uint64_t room = 0;
    gsc_status status = r.failed ? gsc_fail_memory(err) : GSC_OK;
    on.struct_size = GSC_EXEC_SIZE; /* 0 of the caller's NULL */
    on.workspace = NULL;
    on.workspace_size = 0;
    on.flags = GSC_EXEC_WRITE_FAILURES;
    if (on.context && on.context->backend->check(&on, NULL) != GSC_OK)
        on.flags = 0; /* a device always writes them */
    block *host = calloc(1, bytes);
    void *copy = malloc(bytes);
    if (!host || !copy)
        status = gsc_fail_memory(err);
    else
        place(&r, 0, (uintptr_t)host + head);
    if (status == GSC_OK)
        status = gsc_workspace_size(&on, r.in, r.n, NULL, &room, err);
    if (status == GSC_OK && *size < bytes + room) {
        *size = bytes + room;
        status = GSC_ERROR_CAPACITY;
    } else if (status == GSC_OK) {
        on.workspace = room ? (unsigned char *)memory + bytes : NULL;
        on.workspace_size = room;
        fill_block(&r, host);
        status = run_both(&on, &r, index, host, copy, memory, bytes, err);
    }
    free(r.in);
    free(r.out);
    free(host);
    free(copy);
    return status;
}

gsc_status gsc_exec_compare(const gsc_exec *exec, uint32_t index, uint64_t round, uint64_t *size,
                            gsc_error *err)
{
    gsc_target on;
    uint64_t bytes = 0;
    void *memory = NULL;
    GSC_TRY(gsc_begin_on(exec, &on, err));
    if (!gsc_comparison_name(index))
        return gsc_fail_number(err, GSC_ERROR_VALUE, 1, -1, "index", index, 0,
                               sizeof comparisons / sizeof *comparisons - 1, "a comparison");
    if (round > MOST_ROUNDS)
        return gsc_fail_number(err, GSC_ERROR_VALUE, 2, -1, "round", (double)round, 0, MOST_ROUNDS,
                               "at most 1000");
    GSC_REQUIRE(size, 3);
    GSC_TRY(on.backend->wait(&on.exec, err)); /* refuses a stream that is being captured */
    gsc_status status = gsc_compare(&on.exec, index, round, NULL, &bytes, err);
    if (status == GSC_ERROR_CAPACITY)
        status = gsc_memory_create(on.exec.context, GSC_MEMORY_DEVICE, bytes, &memory, err);
    if (status == GSC_OK)
        status = gsc_compare(&on.exec, index, round, memory, &bytes, err);
    gsc_memory_destroy(on.exec.context, memory);
    if (status == GSC_OK)
        *size = bytes;
    return status;
}
