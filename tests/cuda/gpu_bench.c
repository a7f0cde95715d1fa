/* SPDX-License-Identifier: MIT */
/*
 * How fast the calls are on a CUDA device, and what they do when things go wrong there. Each mode
 * is a process, so that what one breaks hides no other; it prints JSON, a line for each result.
 *
 *     gpu_bench info          the device
 *     gpu_bench open          milliseconds until the kernels are loaded
 *     gpu_bench rows [short]  every row; short: tiny lists, once, for an emulated device
 *     gpu_bench row NAME      enqueues one row a few times, for a profiler
 *     gpu_bench fault NAME    one of pointer, stream, memory, context
 *
 * Without CUDA it says so and does nothing.
 */
#include <inttypes.h>
#include <math.h>
#include <time.h>

#include "gpu.h"

/* ---- what is measured ---- */

enum shape { GPT2, SEVEN_B, ONE_MILLION, TINY };
static const char *const shape_names[] = {"GPT-2", "7B", "1M", "1000 x 32"};
enum { MOST_TENSORS = 1000, BLOCK = 1 << 22 };

static const char *const operation_names[] = {"unscale", "check", "scale", "unscale and clip",
                                              "accumulate"};

typedef struct row {
    enum shape shape;
    uint32_t in, out;
    enum operation operation;
    uint32_t want;
    bool histogram, each, misaligned;
    uint32_t bad; /* of a hundred elements so many are NaN */
} row;

static bool is_short;

/* The elements of each tensor; a short list has the first four of them, made small. */
static uint64_t counts_of(enum shape shape, uint64_t *counts)
{
    enum { D = 768, E = 4096, F = E * 11008 };
    static const struct {
        uint64_t first[3], block[13], blocks, last[3];
    } shapes[] = {
        {{50257 * D, 1024 * D},
         {D, D, 3 * D * D, 3 * D, D * D, D, D, D, 4 * D * D, 4 * D, 4 * D * D, D},
         12,
         {D, D}},
        {{32000 * E}, {E * E, E * E, E * E, E * E, F, F, F, E, E}, 32, {E, 32000 * E}},
        {{1 << 20}, {0}, 0, {0}},
        {{0}, {32}, MOST_TENSORS, {0}},
    };
    uint64_t n = 0;
    for (const uint64_t *c = shapes[shape].first; *c; c++)
        counts[n++] = *c;
    for (uint64_t i = 0; i < shapes[shape].blocks; i++)
        for (const uint64_t *c = shapes[shape].block; *c; c++)
            counts[n++] = *c;
    for (const uint64_t *c = shapes[shape].last; *c; c++)
        counts[n++] = *c;
    for (uint64_t i = 0; is_short && i < n; i++)
        counts[i] = counts[i] / (1 << 20) + 1;
    return is_short && n > 4 ? 4 : n;
}

static void name_of(const row *r, char *name, size_t size)
{
    char bad[16];
    snprintf(bad, sizeof bad, ", %" PRIu32 " %% NaN", r->bad);
    snprintf(name, size, "%s %s%s%s, %s%s%s%s%s%s%s%s", shape_names[r->shape], dtype_names[r->in],
             r->out != r->in ? " to " : "", r->out != r->in ? dtype_names[r->out] : "",
             operation_names[r->operation], r->want & GSC_WANT_NORM ? " + norm" : "",
             r->want & GSC_WANT_AMAX ? " + amax" : "",
             r->want & GSC_WANT_UNDERFLOW ? " + underflow" : "", r->histogram ? " + histogram" : "",
             r->each ? " + each" : "", r->misaligned ? ", misaligned" : "", r->bad ? bad : "");
}

/* ---- ceilings ---- */

/* Reads `vectors` of 16 bytes, four at a time in each thread, and writes nothing that it expects.
 */
static const char reader_ptx[] =
    ".version 6.3\n.target sm_70\n.address_size 64\n"
    ".visible .entry gsc_test_read(.param .align 8 .b8 p[24])\n{\n"
    ".reg .pred %p;\n.reg .b32 %a<17>;\n.reg .b32 %t<5>;\n.reg .b64 %d<12>;\n"
    "ld.param.u64 %d0, [p];\nld.param.u64 %d1, [p+8];\nld.param.u64 %d2, [p+16];\n"
    "cvta.to.global.u64 %d0, %d0;\ncvta.to.global.u64 %d2, %d2;\n"
    "mov.u32 %t0, %ctaid.x;\nmov.u32 %t1, %ntid.x;\nmov.u32 %t2, %tid.x;\nmov.u32 %t3, %nctaid.x;\n"
    "mul.wide.u32 %d3, %t0, %t1;\ncvt.u64.u32 %d4, %t2;\nadd.u64 %d3, %d3, %d4;\n"
    "mul.wide.u32 %d5, %t3, %t1;\nshl.b64 %d6, %d5, 4;\nmov.u32 %a16, 0;\n"
    "mul.lo.u64 %d7, %d5, 3;\n"
    "more:\nadd.u64 %d8, %d3, %d7;\nsetp.ge.u64 %p, %d8, %d1;\n@%p bra rest;\n"
    "shl.b64 %d9, %d3, 4;\nadd.u64 %d9, %d0, %d9;\n"
    "ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%d9];\nadd.u64 %d9, %d9, %d6;\n"
    "ld.global.v4.u32 {%a4, %a5, %a6, %a7}, [%d9];\nadd.u64 %d9, %d9, %d6;\n"
    "ld.global.v4.u32 {%a8, %a9, %a10, %a11}, [%d9];\nadd.u64 %d9, %d9, %d6;\n"
    "ld.global.v4.u32 {%a12, %a13, %a14, %a15}, [%d9];\n"
    "xor.b32 %a0, %a0, %a1;\nxor.b32 %a2, %a2, %a3;\nxor.b32 %a4, %a4, %a5;\n"
    "xor.b32 %a6, %a6, %a7;\nxor.b32 %a8, %a8, %a9;\nxor.b32 %a10, %a10, %a11;\n"
    "xor.b32 %a12, %a12, %a13;\nxor.b32 %a14, %a14, %a15;\nxor.b32 %a0, %a0, %a2;\n"
    "xor.b32 %a4, %a4, %a6;\nxor.b32 %a8, %a8, %a10;\nxor.b32 %a12, %a12, %a14;\n"
    "xor.b32 %a0, %a0, %a4;\nxor.b32 %a8, %a8, %a12;\nxor.b32 %a0, %a0, %a8;\n"
    "add.u32 %a16, %a16, %a0;\nshl.b64 %d10, %d5, 2;\nadd.u64 %d3, %d3, %d10;\nbra more;\n"
    "rest:\nsetp.ge.u64 %p, %d3, %d1;\n@%p bra done;\n"
    "shl.b64 %d9, %d3, 4;\nadd.u64 %d9, %d0, %d9;\n"
    "ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%d9];\nadd.u32 %a16, %a16, %a0;\n"
    "xor.b32 %a16, %a16, %a3;\nadd.u64 %d3, %d3, %d5;\nbra rest;\n"
    "done:\nsetp.ne.u32 %p, %a16, 305419896;\n@%p ret;\nst.global.u32 [%d2], %a16;\nret;\n}\n";

static void *reader;

enum enqueued { CALLS, REPLAYS, COPIES, READS };

/* Milliseconds of something that is enqueued `repeats` times, by events. */
typedef struct measurement {
    gsc_exec on;
    const row *row;
    const gsc_tensor *in, *out;
    uint64_t n, bytes;
    unsigned char *memory, *fresh; /* the inputs lie there; values that each batch starts with */
    unsigned char *results;        /* of outputs apart */
    void *executable;
    gsc_factor *factor;
    gsc_report *report;
    gsc_tensor_options options;
    enum enqueued what;
} measurement;

static void enqueue(const measurement *m)
{
    struct {
        const void *from;
        uint64_t vectors;
        void *to;
    } reads = {m->memory, m->bytes / 16, m->report};
    void *parameters[] = {&reads};
    if (m->what == REPLAYS)
        CU(graph_launch(m->executable, m->on.stream));
    else if (m->what == COPIES)
        GSC(gsc_memory_copy(&m->on, m->memory, m->fresh, m->bytes, &err));
    else if (m->what == READS)
        CU(launch(reader, 132 * 8, 1, 1, 512, 1, 1, 0, m->on.stream, parameters, NULL));
    else
        GSC(run_operation(m->row->operation, &m->on, m->factor, m->in, m->out, m->n, &m->options,
                          m->report, &err));
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Returns the time of one, the median of batches; sets *host to the microseconds that enqueueing
 * one took. */
static double milliseconds(measurement *m, enum enqueued what, double *host)
{
    enum { BATCHES = 7 };
    const int batches = is_short ? 1 : BATCHES;
    const int repeats = is_short ? 1 : m->bytes > 1 << 30 ? 4 : 20;
    double times[BATCHES], hosts[BATCHES];
    void *start, *end;
    CU(event_create(&start, 0));
    CU(event_create(&end, 0));
    for (int batch = -1; batch < batches; batch++) { /* -1 warms up */
        float elapsed;
        m->what = COPIES;
        enqueue(m);
        GSC(gsc_exec_wait(&m->on, &err));
        m->what = what;
        CU(event_record(start, m->on.stream));
        const double began = seconds();
        for (int i = 0; i < repeats; i++)
            enqueue(m);
        const double ended = seconds();
        CU(event_record(end, m->on.stream));
        CU(event_synchronize(end));
        CU(event_elapsed(&elapsed, start, end));
        if (batch >= 0) {
            times[batch] = (double)elapsed / repeats;
            hosts[batch] = (ended - began) * 1e6 / repeats;
        }
    }
    CU(event_destroy(start));
    CU(event_destroy(end));
    qsort(times, (size_t)batches, sizeof *times, ascending);
    qsort(hosts, (size_t)batches, sizeof *hosts, ascending);
    if (host)
        *host = hosts[batches / 2];
    return times[batches / 2];
}

/* Times a graph that has only node `only` of the call; -1: all. Returns how many the call has. */
static uint64_t replay(measurement *m, int only, double *time)
{
    void *nodes[64], *graph;
    uint64_t count = sizeof nodes / sizeof *nodes;
    m->what = CALLS;
    CU(capture_begin(m->on.stream, 0));
    enqueue(m);
    CU(capture_end(m->on.stream, &graph));
    CU(graph_nodes(graph, nodes, &count));
    for (uint64_t i = 0; only >= 0 && i < count; i++)
        if (i != (uint64_t)only)
            CU(node_destroy(nodes[i]));
    CU(graph_instantiate(&m->executable, graph, 0));
    CU(graph_destroy(graph));
    *time = milliseconds(m, REPLAYS, NULL);
    CU(executable_destroy(m->executable));
    return count;
}

/* ---- rows ---- */

/* One behind another, each at a multiple of 16 or one element past; returns the bytes up to the
 * end. */
static uint64_t lay_out(gsc_tensor *list, const uint64_t *counts, uint64_t n, uint32_t dtype,
                        bool misaligned)
{
    uint64_t used = 0;
    const uint32_t size = gsc_dtype_size(dtype);
    for (uint64_t i = 0; i < n; i++) {
        used = (used + 15) / 16 * 16 + (misaligned ? size : 0);
        list[i] = (gsc_tensor){.data = (void *)(uintptr_t)used, .count = counts[i], .dtype = dtype};
        used += counts[i] * size;
    }
    return (used + 15) / 16 * 16;
}

/* Fills memory with ordinary random values, over and over; `bad` in a hundred are NaN. */
static void fill(unsigned char *memory, uint64_t bytes, uint32_t dtype, uint32_t bad)
{
    const uint32_t size = gsc_dtype_size(dtype), parts = is_complex(dtype) ? 2 : 1;
    const uint64_t count = is_short ? 1 << 12 : BLOCK;
    float *values = allocated(count * parts * sizeof *values);
    unsigned char *block = allocated(count * size);
    for (uint64_t i = 0; i < count * parts; i++)
        values[i] = random_bits() % 100 < bad ? NAN : random_float();
    const gsc_tensor from = {
        .data = values, .count = count, .dtype = parts == 2 ? GSC_COMPLEX64 : GSC_F32};
    const gsc_tensor to = {.data = block, .count = count, .dtype = dtype};
    GSC(gsc_scale(NULL, NULL, &from, &to, 1, NULL, NULL, &err));
    uint64_t done = bytes < count * size ? bytes : count * size;
    upload(memory, block, done);
    for (uint64_t more; done < bytes; done += more) {
        more = bytes - done < done ? bytes - done : done;
        copy_now(memory + done, memory, more);
    }
    free(values);
    free(block);
}

/* Memory of the device, or NULL and why not. */
static void *try_memory(uint64_t bytes, gsc_error *err)
{
    void *memory = NULL;
    return gsc_memory_create(context, GSC_MEMORY_DEVICE, bytes, &memory, err) ? NULL : memory;
}

/* Without memory for it m->factor is NULL. */
static void set_up(measurement *m, const row *r, gsc_error *err)
{
    static gsc_tensor in[MOST_TENSORS], out[MOST_TENSORS];
    uint64_t counts[MOST_TENSORS];
    gsc_factor factor;
    memset(m, 0, sizeof *m);
    m->row = r;
    m->n = counts_of(r->shape, counts);
    m->in = in;
    m->out = r->out == r->in && r->operation != ACCUMULATE ? in : out;
    m->bytes = lay_out(in, counts, m->n, r->in, r->misaligned);
    const uint64_t written = lay_out(out, counts, m->n, r->out, r->misaligned);
    m->memory = try_memory(m->bytes, err);
    m->fresh = m->memory ? try_memory(m->bytes, err) : NULL;
    m->results = m->fresh && m->out == out ? try_memory(written, err) : NULL;
    if (!m->fresh || (m->out == out && !m->results))
        return;
    for (uint64_t i = 0; i < m->n; i++) {
        in[i].data = m->memory + (uintptr_t)in[i].data;
        if (m->results)
            out[i].data = m->results + (uintptr_t)out[i].data;
    }
    fill(m->fresh, m->bytes, r->in, r->bad);
    if (m->results)
        fill(m->results, written, r->out, 0);
    m->on = (gsc_exec)GSC_EXEC_INIT;
    m->on.context = context;
    CU(stream_create(&m->on.stream, 1));
    m->options = (gsc_tensor_options)GSC_TENSOR_OPTIONS_INIT;
    m->options.want = r->want;
    m->options.histogram =
        r->histogram ? device_memory(GSC_HISTOGRAM_LENGTH * sizeof *m->options.histogram) : NULL;
    m->options.per_tensor = r->each ? device_memory(m->n * sizeof *m->options.per_tensor) : NULL;
    m->factor = device_memory(sizeof *m->factor);
    m->report = device_memory(sizeof *m->report);
    /* So that many calls leave the values ordinary. */
    GSC(gsc_factor_init(1 + 0x1p-10, &factor, &err));
    upload(m->factor, &factor, sizeof factor);
    GSC(gsc_workspace_size(&m->on, m->in, m->n, &m->options, &m->on.workspace_size, &err));
    m->on.workspace = device_memory(m->on.workspace_size);
    m->what = COPIES;
    enqueue(m);
    m->what = CALLS;
    enqueue(m);
    GSC(gsc_exec_wait(&m->on, &err));
}

static void tear_down(measurement *m)
{
    void *const memory[] = {
        m->memory, m->fresh,  m->results,     m->options.histogram, m->options.per_tensor,
        m->factor, m->report, m->on.workspace};
    if (m->on.stream)
        CU(stream_destroy(m->on.stream));
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_free(memory[i]);
}

static void print_measured(measurement *m, const char *name)
{
    const row *r = m->row;
    double host, launches[64];
    /* The bytes that have to be moved at least: accumulate reads all before it adds any. */
    uint64_t count_of_all = 0;
    for (uint64_t i = 0; i < m->n; i++)
        count_of_all += m->in[i].count;
    const uint64_t read = count_of_all * gsc_dtype_size(r->in),
                   written = count_of_all * gsc_dtype_size(r->out);
    const uint64_t moved = r->operation == CHECK_ONLY   ? read
                           : r->operation == ACCUMULATE ? 2 * read + 2 * written
                                                        : read + written;
    const double copied = milliseconds(m, COPIES, NULL), reads = milliseconds(m, READS, NULL);
    const double called = milliseconds(m, CALLS, &host);
    double replayed;
    const uint64_t count = replay(m, -1, &replayed);
    const bool split = r->want == GSC_WANT_NORM && !r->bad && count <= 64;
    for (uint64_t i = 0; split && i < count; i++)
        (void)replay(m, (int)i, &launches[i]);
    const double rate = (double)moved / replayed * 1e-6;
    const double ceiling =
        r->operation == CHECK_ONLY ? (double)m->bytes / reads : 2 * (double)m->bytes / copied;
    printf("{\"name\": \"%s\", \"tensors\": %" PRIu64 ", \"moved_bytes\": %" PRIu64
           ", \"calls_ms\": %.6f, \"graph_ms\": %.6f, \"host_us\": %.3f, \"copy_gb_s\": %.2f, "
           "\"read_gb_s\": %.2f, \"gb_s\": %.2f, \"of_ceiling\": %.4f, \"launches_ms\": [",
           name, m->n, moved, called, replayed, host, 2e-6 * (double)m->bytes / copied,
           1e-6 * (double)m->bytes / reads, rate, rate / (ceiling * 1e-6));
    for (uint64_t i = 0; split && i < count; i++)
        printf("%s%.6f", i ? ", " : "", launches[i]);
    printf("]}\n");
    fflush(stdout);
}

static const char *wanted; /* the name of the only row, for a profiler; NULL: all are measured */
static bool found;

static void use_row(const row *r)
{
    char name[160];
    measurement m;
    gsc_error err = {0};
    name_of(r, name, sizeof name);
    if (wanted && strcmp(name, wanted) != 0)
        return;
    found = true;
    set_up(&m, r, &err);
    if (!m.factor && wanted)
        die(name, err.message);
    if (!m.factor) {
        printf("{\"name\": \"%s\", \"why_not\": \"%s\"}\n", name, err.message);
    } else if (wanted) {
        for (int i = 0; i < 2; i++)
            enqueue(&m);
        GSC(gsc_exec_wait(&m.on, &err));
    } else {
        print_measured(&m, name);
    }
    tear_down(&m);
}

static void each_row(void)
{
    static const uint32_t main_dtypes[] = {GSC_F32, GSC_F16, GSC_BF16};
    enum { NORM = GSC_WANT_NORM };
    for (int i = 0; i < 3; i++) {
        const uint32_t t = main_dtypes[i];
        const row rows[] = {
            {.in = t, .out = t},
            {.in = t, .out = t, .want = NORM},
            {.in = t, .out = t, .operation = CHECK_ONLY, .want = NORM},
            {.in = t, .out = GSC_F32, .want = NORM},
            {.in = t, .out = t, .operation = SCALE},
            {.in = t, .out = t, .operation = CLAMP, .want = NORM},
            {.in = t, .out = GSC_F32, .operation = ACCUMULATE, .want = NORM},
            {.in = t, .out = t, .want = NORM | GSC_WANT_AMAX},
            {.in = t, .out = t, .want = NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW},
            {.in = t, .out = t, .want = NORM, .histogram = true},
            {.in = t, .out = t, .want = NORM, .each = true},
            {.in = t, .out = t, .want = NORM, .bad = 1},
            {.in = t, .out = t, .want = NORM, .bad = 100},
            {.in = t, .out = t, .want = NORM, .misaligned = true},
            {.in = t, .out = t, .shape = ONE_MILLION, .want = NORM},
        };
        for (size_t j = 0; j < sizeof rows / sizeof *rows; j++)
            if (j != 3 || t != GSC_F32)
                use_row(&rows[j]);
    }
    for (uint32_t t = 1; gsc_dtype_size(t); t++)
        if (t != GSC_F32 && t != GSC_F16 && t != GSC_BF16) {
            use_row(&(row){.in = t, .out = t});
            use_row(&(row){.in = t, .out = t, .want = NORM});
        }
    use_row(&(row){.in = GSC_F32, .out = GSC_F32, .shape = TINY});
    use_row(&(row){.in = GSC_F32, .out = GSC_F32, .shape = TINY, .want = NORM, .each = true});
    for (int i = 0; i < 3; i++) {
        const uint32_t t = main_dtypes[i];
        use_row(&(row){.in = t, .out = t, .shape = SEVEN_B, .want = NORM});
        use_row(&(row){.in = t, .out = t, .shape = SEVEN_B, .operation = CHECK_ONLY, .want = NORM});
    }
}

/* ---- faults ---- */

static void say(const char *fault, gsc_status status, const char *message)
{
    printf("{\"fault\": \"%s\", \"status\": %d, \"message\": \"%s\"}\n", fault, status, message);
}

/* A call on one tensor that is fine divides it by 4. */
static void check_call(void)
{
    float values[] = {8, -2};
    const gsc_tensor tensor = {.data = device_memory(sizeof values), .count = 2, .dtype = GSC_F32};
    gsc_factor factor, *at = device_memory(sizeof factor);
    gsc_exec on = stream_exec(&tensor, 1);
    GSC(gsc_factor_init(4, &factor, &err));
    upload(at, &factor, sizeof factor);
    upload(tensor.data, values, sizeof values);
    GSC(gsc_unscale(&on, at, &tensor, &tensor, 1, NULL, NULL, &err));
    GSC(gsc_exec_wait(&on, &err));
    download(values, tensor.data, sizeof values);
    CHECK(values[0] == 2 && values[1] == -0.5f);
    stream_free(&on);
    device_free(at);
    device_free(tensor.data);
}

/* An address that nobody has: the wait says that the process has to be started anew. */
static void fault_pointer(void)
{
    const gsc_tensor tensor = {
        .data = (void *)(uintptr_t)0x7000dead0000, .count = 1 << 20, .dtype = GSC_F32};
    gsc_exec on = stream_exec(&tensor, 1);
    gsc_error err;
    GSC(gsc_unscale(&on, NULL, &tensor, &tensor, 1, NULL, NULL, &err));
    const gsc_status status = gsc_exec_wait(&on, &err);
    say("pointer", status, status ? err.message : "");
    if (CHECK(status == GSC_ERROR_DEVICE))
        CHECK_TEXT(err.message, "start the process anew");
    const gsc_status again = gsc_exec_wait(&on, &err);
    say("pointer, the next call", again, again ? err.message : "");
    CHECK(again == GSC_ERROR_DEVICE);
}

/* Shows what the driver says about a stream that was destroyed; some drivers crash. */
static void fault_stream(void)
{
    const gsc_tensor tensor = {.data = device_memory(4), .count = 1, .dtype = GSC_F32};
    gsc_exec on = stream_exec(&tensor, 1);
    gsc_error err;
    CU(stream_destroy(on.stream));
    const gsc_status status = gsc_unscale(&on, NULL, &tensor, &tensor, 1, NULL, NULL, &err);
    say("stream", status, status ? err.message : "");
}

/* More memory than there is: an error, after which all works. */
static void fault_memory(void)
{
    void *memory;
    gsc_error err;
    const gsc_status status =
        gsc_memory_create(context, GSC_MEMORY_DEVICE, UINT64_C(1) << 47, &memory, &err);
    say("memory", status, status ? err.message : "");
    CHECK(status == GSC_ERROR_MEMORY);
    check_call();
}

/* Another context than the primary one is current: calls use their own, and it stays. */
static void fault_context(void)
{
    void *foreign, *current;
    CU(context_create(&foreign, 0, 0));
    gsc_exec on = GSC_EXEC_INIT;
    void *from = allocated(64), *memory = device_memory(64);
    on.context = context;
    GSC(gsc_memory_copy(&on, memory, from, 64, &err));
    GSC(gsc_exec_wait(&on, &err));
    gsc_context_destroy(new_context());
    device_free(memory);
    CU(context_current(&current));
    CHECK(current == foreign);
    CU(context_destroy(foreign));
    free(from);
    check_call();
    say("context", GSC_OK, "");
}

static const struct {
    const char *name;
    void (*run)(void);
} faults[] = {{"pointer", fault_pointer},
              {"stream", fault_stream},
              {"memory", fault_memory},
              {"context", fault_context}};

/* ---- opening ---- */

static void open_times(void)
{
    void *primary;
    gsc_context *contexts[2];
    double at[5];
    load_driver();
    at[0] = seconds();
    CU(init(0));
    at[1] = seconds();
    CU(context_retain(&primary, 0));
    for (int i = 0; i < 2; i++) {
        at[2 + i] = seconds();
        contexts[i] = new_context();
    }
    at[4] = seconds();
    printf(
        "{\"driver_ms\": %.3f, \"context_ms\": %.3f, \"kernels_ms\": %.3f, \"again_ms\": %.3f}\n",
        (at[1] - at[0]) * 1e3, (at[2] - at[1]) * 1e3, (at[3] - at[2]) * 1e3, (at[4] - at[3]) * 1e3);
    gsc_context_destroy(contexts[0]);
    gsc_context_destroy(contexts[1]);
}

int main(int count, char **arguments)
{
    const char *mode = count > 1 ? arguments[1] : "info", *name = count > 2 ? arguments[2] : "";
    char device[256];
    int32_t version = 0;
    if (strcmp(mode, "open") == 0) {
        open_times();
        return 0;
    }
    const char *note = cuda_note();
    if (strcmp(note, "available") != 0) {
        printf("NOT RUN: %s\n", note);
        return 0;
    }
    open_device();
    if (strcmp(mode, "rows") == 0 || strcmp(mode, "row") == 0) {
        void *module;
        CU(module_load(&module, reader_ptx, 0, NULL, NULL));
        CU(module_function(&reader, module, "gsc_test_read"));
        is_short = strcmp(name, "short") == 0;
        wanted = strcmp(mode, "row") == 0 ? name : NULL;
        each_row();
        if (!found)
            die(name, "no row of this name");
    } else if (strcmp(mode, "fault") == 0) {
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
            if (strcmp(faults[i].name, name) == 0) {
                faults[i].run();
                return check_failures > 0; /* what failed is not to be closed */
            }
        die(name, "no such fault");
    } else {
        CU(device_name(device, sizeof device, 0));
        CU(driver_version(&version));
        printf("{\"device\": \"%s\", \"driver\": \"%d.%d\", \"gradscaler\": \"%d.%d.%d\"}\n",
               device, version / 1000, version / 10 % 100, GSC_VERSION_MAJOR, GSC_VERSION_MINOR,
               GSC_VERSION_PATCH);
    }
    close_device();
    return check_failures > 0;
}
