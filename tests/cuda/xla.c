/* SPDX-License-Identifier: MIT */
/*
 * The handler for XLA in the hands of an XLA that misbehaves where the real one never did yet: what
 * it answers about itself, what it does with threads that come late or never, frames that are no
 * call, and the same calls on a CUDA device as on the host, bit for bit, on XLA's stream.
 */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "check.h"
#include "xla.h"

enum { CHECK_, UNSCALE, SCALE, ACCUMULATE, MERGE, UPDATE, CLIP, MULTIPLY, SET_RANK };
enum { WITH_FACTOR = 1, WITH_STATE = 2, WITH_EACH = 4, WITH_HISTOGRAM = 8, WITH_LOSS = 16 };
/* Belongs to a variant, not to the handler. */
enum { BROKEN_STATE = 32, OLD_STATE = 64, BAD_LOSS = 128, BROKEN_REPORT = 256 };

/* ---- an XLA ---- */

enum { AT_ONCE, LATE, NEVER };

static struct {
    char message[512]; /* of the last error; empty: none since it was cleared */
    int errors, destroyed, streams, scheduled;
    int schedules; /* AT_ONCE, LATE, NEVER */
    bool fails;
    void *stream;
    struct xla_schedule tasks[64];
    pthread_t threads[64];
} xla;

static void *error_create(struct xla_error_create *args)
{
    CHECK(args->struct_size == sizeof *args && args->code != 0);
    snprintf(xla.message, sizeof xla.message, "%s", args->message);
    xla.errors++;
    return &xla;
}

static void error_destroy(struct xla_error_destroy *args)
{
    CHECK(args->struct_size == sizeof *args && args->error == &xla);
    xla.destroyed++;
}

static void *stream_get(struct xla_stream_get *args)
{
    CHECK(args->struct_size == sizeof *args && args->context == &xla);
    xla.streams++;
    args->stream = xla.stream;
    return xla.fails ? &xla : NULL;
}

static void *run_task(void *scheduled)
{
    const struct xla_schedule *task = scheduled;
    task->task(task->data);
    return NULL;
}

static void *schedule(struct xla_schedule *args)
{
    CHECK(args->struct_size == sizeof *args && args->context == &xla);
    if (xla.schedules == NEVER)
        return &xla;
    const int i = xla.scheduled++;
    xla.tasks[i] = *args;
    if (xla.schedules == AT_ONCE)
        CHECK(pthread_create(&xla.threads[i], NULL, run_task, &xla.tasks[i]) == 0);
    return NULL;
}

static void *threads(struct xla_threads *args)
{
    CHECK(args->struct_size == sizeof *args && args->context == &xla);
    *args->threads = 4;
    return NULL;
}

static struct xla_api api = {.struct_size = sizeof api,
                             .version = {sizeof api.version, NULL, XLA_MAJOR, XLA_MINOR + 2},
                             .error_create = error_create,
                             .error_destroy = error_destroy,
                             .stream_get = stream_get,
                             .schedule = schedule,
                             .threads = threads};

/* ---- a call: buffers and attributes, which a test adds one after another ---- */

enum { STATE = sizeof(gsc_state) / 4, REPORT = sizeof(gsc_report) / 4 }; /* words */
enum { ROOM = 16 };

/* Each array is for operands, results and attributes. */
struct call {
    struct xla_frame frame;
    struct item {
        struct xla_buffer buffer;
        struct xla_name name;
        struct xla_scalar scalar;
        union number {
            int64_t integer;
            double real;
        } value;
    } parts[3][ROOM];
    void *items[3][ROOM];
    int32_t types[3][ROOM];
    struct xla_name *names[ROOM];
    struct xla_array array;
    gsc_policy policy;
};

static void begin(struct call *call)
{
    memset(call, 0, sizeof *call);
    call->frame = (struct xla_frame){
        .struct_size = sizeof call->frame,
        .api = &api,
        .context = &xla,
        .stage = XLA_EXECUTE,
        .operands = {.types = call->types[0], .items = call->items[0]},
        .results = {.types = call->types[1], .items = call->items[1]},
        .attributes = {.types = call->types[2], .names = call->names, .items = call->items[2]}};
}

/* An operand (0) or a result (1). */
static void buffer(struct call *call, int which, void *data, int32_t dtype, int64_t count)
{
    const int64_t i = which ? call->frame.results.size++ : call->frame.operands.size++;
    struct item *item = &call->parts[which][i];
    item->value.integer = count;
    item->buffer =
        (struct xla_buffer){sizeof item->buffer, NULL, dtype, data, 1, &item->value.integer};
    call->items[which][i] = &item->buffer;
    call->types[which][i] = XLA_BUFFER;
}

static void attribute(struct call *call, const char *text, int32_t kind, void *item)
{
    const int64_t i = call->frame.attributes.size++;
    call->names[i] = &call->parts[2][i].name;
    *call->names[i] = (struct xla_name){text, strlen(text)};
    call->items[2][i] = item;
    call->types[2][i] = kind;
}

static void scalar(struct call *call, const char *text, int32_t dtype, union number value)
{
    struct item *item = &call->parts[2][call->frame.attributes.size];
    item->value = value;
    item->scalar = (struct xla_scalar){dtype, &item->value};
    attribute(call, text, XLA_SCALAR, &item->scalar);
}
#define integer(call, text, value) scalar(call, text, XLA_S64, (union number){.integer = (value)})
#define real(call, text, value)    scalar(call, text, XLA_F64, (union number){.real = (value)})

static void policy(struct call *call, const char *preset)
{
    call->policy = (gsc_policy)GSC_POLICY_INIT;
    CHECK(gsc_policy_preset(preset, &call->policy, NULL) == GSC_OK);
    call->array = (struct xla_array){XLA_U8, sizeof call->policy, &call->policy};
    attribute(call, "policy", XLA_ARRAY, &call->array);
}

/* Checks that an error has these words; "": that there is no error. */
static void expect(void *error, const char *words)
{
    CHECK((error == &xla) == (*words != 0));
    if (*words)
        CHECK_TEXT(xla.message, words);
    else if (error)
        printf("%s\n", xla.message);
    xla.message[0] = 0;
}

/* ---- what it says of itself ---- */

static void answers_in_the_oldest_version(void)
{
    struct {
        struct xla_metadata metadata;
        int64_t state; /* of newer versions */
    } about = {{.struct_size = sizeof about}, 77};
    struct xla_metadata_extension extension = {{sizeof extension, XLA_METADATA, NULL},
                                               &about.metadata};
    struct xla_extension other = {sizeof other, XLA_METADATA + 1, &extension.base};
    struct call call;
    for (int cuda = 0; cuda < 2; cuda++) {
        memset(&about.metadata.version, 0xA5, sizeof about.metadata.version);
        begin(&call);
        call.frame.api = NULL;
        call.frame.extension = cuda ? &extension.base : &other;
        expect(cuda ? gsc_xla_cuda(&call.frame) : gsc_xla_host(&call.frame), "");
        CHECK(about.metadata.version.major == 0 && about.metadata.version.minor == 1);
        CHECK(about.metadata.version.struct_size == sizeof about.metadata.version);
        CHECK(!about.metadata.version.extension && about.metadata.traits == 1 && about.state == 77);
        begin(&call);
        call.frame.stage = XLA_EXECUTE - 1; /* another stage: nothing to do, and no stream yet */
        expect(cuda ? gsc_xla_cuda(&call.frame) : gsc_xla_host(&call.frame), "");
        CHECK(xla.streams == 0);
    }
}

/* ---- threads ---- */

static void threads_that_come_late_or_never_change_nothing(void)
{
    enum { COUNT = 3 << 20 }; /* 12 MiB are enough for threads */
    float *in = malloc(COUNT * sizeof *in), *out = malloc(COUNT * sizeof *out);
    float *expected = malloc(COUNT * sizeof *expected);
    gsc_factor factor;
    gsc_report report, expected_report;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    struct call call;
    const gsc_tensor from = {.data = in, .count = COUNT, .dtype = GSC_F32},
                     to = {.data = expected, .count = COUNT, .dtype = GSC_F32};
    for (int i = 0; i < COUNT; i++)
        in[i] = (float)(i % 1013) - 500;
    in[COUNT - 5] = HUGE_VALF;
    options.want = GSC_WANT_NORM;
    CHECK(gsc_factor_init(8, &factor, NULL) == GSC_OK);
    CHECK(gsc_unscale(NULL, &factor, &from, &to, 1, &options, &expected_report, NULL) == GSC_OK);
    for (int how = AT_ONCE; how <= NEVER + 1; how++) {
        memset(&xla, 0, sizeof xla);
        memset(out, 0, COUNT * sizeof *out);
        memset(&report, 0xA5, sizeof report);
        xla.schedules = how > NEVER ? AT_ONCE : how;
        api.struct_size = how > NEVER ? offsetof(struct xla_api, schedule) : sizeof api;
        begin(&call);
        integer(&call, "call", UNSCALE);
        integer(&call, "count", 1);
        integer(&call, "with", WITH_FACTOR);
        integer(&call, "want", GSC_WANT_NORM);
        buffer(&call, 0, in, XLA_F32, COUNT);
        buffer(&call, 0, &factor, XLA_U32, 8);
        buffer(&call, 1, out, XLA_F32, COUNT);
        buffer(&call, 1, &report, XLA_U32, REPORT);
        expect(gsc_xla_host(&call.frame), "");
        CHECK(memcmp(out, expected, COUNT * sizeof *out) == 0);
        CHECK(memcmp(&report, &expected_report, sizeof report) == 0);
        CHECK((how > NEVER || how == NEVER) == (xla.scheduled == 0));
        CHECK((how == NEVER) == (xla.destroyed > 0) && xla.errors == 0);
        for (int i = 0; i < xla.scheduled; i++)
            if (how == AT_ONCE)
                pthread_join(xla.threads[i], NULL);
            else /* the call is over, and its list is gone */
                run_task(&xla.tasks[i]);
    }
    api.struct_size = sizeof api;
    free(in);
    free(out);
    free(expected);
}

/* ---- the same on the host and on a device ---- */

enum { A = 1000, B = 33, N = 2, LOSSES = 300, WORKSPACE = 1 << 16 };

/* The memory that calls read and write; a device also reaches it. */
struct memory {
    uint16_t half[A];
    float single[B], sum_a[A], sum_b[B], out_a[A], out_b[B], loss[LOSSES];
    gsc_factor factor, new_factor;
    gsc_state state, new_state;
    gsc_report report, each[N], reports[N];
    int64_t histogram[GSC_HISTOGRAM_LENGTH];
    uint8_t workspace[WORKSPACE];
};

static gsc_context *context;

static struct memory *memory_of(void)
{
    void *room = NULL;
    CHECK(gsc_memory_create(context, GSC_MEMORY_HOST, sizeof(struct memory), &room, NULL) ==
          GSC_OK);
    struct memory *m = memset(room, 0x55, sizeof *m);
    gsc_policy rules = GSC_POLICY_INIT;
    for (int i = 0; i < A; i++) {
        m->half[i] = (uint16_t)(i * 29);
        m->sum_a[i] = (float)i;
    }
    for (int i = 0; i < B; i++)
        m->single[i] = m->sum_b[i] = (float)(i - 7) * 1.7f;
    m->single[5] = 1e-40f;
    for (int i = 0; i < LOSSES; i++)
        m->loss[i] = (float)i;
    CHECK(gsc_policy_preset("recommended", &rules, NULL) == GSC_OK);
    CHECK(gsc_state_init(NULL, &rules, &m->state, NULL) == GSC_OK);
    CHECK(gsc_factor_init(1024, &m->factor, NULL) == GSC_OK);
    const gsc_tensor tensor = {.data = m->single, .count = B, .dtype = GSC_F32};
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.want = GSC_WANT_NORM;
    for (int i = 0; i < N; i++)
        CHECK(gsc_measure(NULL, &m->factor, &tensor, 1, &options, &m->reports[i], NULL) == GSC_OK);
    return m;
}

/* One call that has all, on the host or on a device; its variants are in the tables below. */
struct variant {
    int call, with;
    double max_norm, clip_value;
    bool in_place;
};

static void *run_call(struct memory *m, const struct variant *v, bool cuda)
{
    struct call call;
    begin(&call);
    integer(&call, "call", v->call);
    policy(&call, "recommended");
    if (v->max_norm != 0)
        real(&call, "max_norm", v->max_norm);
    if (v->clip_value != 0)
        real(&call, "clip_value", v->clip_value);
    switch (v->call) {
    case MERGE:
        buffer(&call, 0, m->reports, XLA_U32, N * REPORT);
        buffer(&call, 1, &m->report, XLA_U32, REPORT);
        break;
    case UPDATE:
        buffer(&call, 0, &m->state, XLA_U32, STATE);
        buffer(&call, 0, m->reports, XLA_U32, REPORT);
        buffer(&call, 1, v->in_place ? &m->state : &m->new_state, XLA_U32, STATE);
        break;
    case CLIP:
        buffer(&call, 0, &m->factor, XLA_U32, 8);
        buffer(&call, 0, m->reports, XLA_U32, REPORT);
        buffer(&call, 1, &m->new_factor, XLA_U32, 8);
        break;
    case SET_RANK:
        buffer(&call, 0, m->reports, XLA_U32, REPORT);
        buffer(&call, 0, &m->state, XLA_U32, STATE);
        buffer(&call, 1, v->in_place ? m->reports : &m->report, XLA_U32, REPORT);
        break;
    case MULTIPLY:
        real(&call, "by", 3);
        buffer(&call, 0, &m->state, XLA_U32, STATE); /* its beginning */
        buffer(&call, 1, &m->new_factor, XLA_U32, 8);
        break;
    default:
        integer(&call, "count", N);
        integer(&call, "with", v->with & (BROKEN_STATE - 1));
        integer(&call, "want", GSC_WANT_NORM | GSC_WANT_AMAX);
        buffer(&call, 0, m->half, XLA_F16, A);
        buffer(&call, 0, m->single, XLA_F32, B);
        if (v->call == ACCUMULATE) {
            buffer(&call, 0, m->sum_a, XLA_F32, A);
            buffer(&call, 0, m->sum_b, XLA_F32, B);
        }
        if (v->with & WITH_FACTOR)
            buffer(&call, 0, &m->factor, XLA_U32, 8);
        if (v->with & WITH_STATE)
            buffer(&call, 0, &m->state, XLA_U32, STATE);
        if (v->with & WITH_LOSS)
            buffer(&call, 0, m->loss, XLA_F32, LOSSES);
        if (v->call != CHECK_ && v->in_place && v->call != ACCUMULATE) {
            buffer(&call, 1, m->half, XLA_F16, A);
            buffer(&call, 1, m->single, XLA_F32, B);
        } else if (v->call != CHECK_) {
            buffer(&call, 1, v->in_place ? m->sum_a : m->out_a, XLA_F32, A);
            buffer(&call, 1, v->in_place ? m->sum_b : m->out_b, XLA_F32, B);
        }
        buffer(&call, 1, &m->report, XLA_U32, REPORT);
        if (v->with & WITH_EACH)
            buffer(&call, 1, m->each, XLA_U32, N * REPORT);
        if (v->with & WITH_HISTOGRAM)
            buffer(&call, 1, m->histogram, XLA_U32, 2 * GSC_HISTOGRAM_LENGTH);
        if (v->with & WITH_STATE)
            buffer(&call, 1, v->in_place ? &m->state : &m->new_state, XLA_U32, STATE);
        if (cuda)
            buffer(&call, 1, m->workspace, XLA_U8, WORKSPACE);
    }
    return cuda ? gsc_xla_cuda(&call.frame) : gsc_xla_host(&call.frame);
}

static const struct variant variants[] = {
    {CHECK_, WITH_FACTOR, 0, 0, false},
    {CHECK_, WITH_LOSS | BAD_LOSS, 0, 0, false},
    {UNSCALE, WITH_STATE | WITH_EACH | WITH_LOSS, 0, 0, true},
    {UNSCALE, WITH_STATE | WITH_EACH | WITH_LOSS | BAD_LOSS, 0, 0, true},
    {UNSCALE, WITH_FACTOR | WITH_STATE | WITH_LOSS | BAD_LOSS, 0.25, 0, true},
    {SCALE, WITH_LOSS, 0, 0, false},
    {ACCUMULATE, WITH_FACTOR | WITH_LOSS | BAD_LOSS, 0, 0, true},
    {CHECK_, WITH_STATE | WITH_EACH | WITH_HISTOGRAM, 0, 0, false},
    {UNSCALE, 0, 0, 0, false},
    {UNSCALE, WITH_FACTOR, 0, 0, true},
    {UNSCALE, WITH_STATE | WITH_EACH | WITH_HISTOGRAM, 0, 0.5, true},
    {UNSCALE, WITH_FACTOR | WITH_STATE, 0, 0, true},
    {UNSCALE, WITH_STATE | WITH_EACH, 0.25, 0, true},
    {UNSCALE, WITH_FACTOR, 0.25, 1e-3, false},
    {SCALE, WITH_STATE, 0, 0, false},
    {ACCUMULATE, WITH_FACTOR, 0, 0, true},
    {ACCUMULATE, WITH_FACTOR, 0, 0, false},
    {MERGE, 0, 0, 0, false},
    {UPDATE, 0, 0, 0, false},
    {UPDATE, 0, 0, 0, true},
    {CLIP, 0, 0.25, 0, false},
    {MULTIPLY, 0, 0, 0, false},
    {SET_RANK, 0, 0, 0, false},
    {SET_RANK, 0, 0, 0, true},
    {SET_RANK, BROKEN_STATE, 0, 0, false},
    {SET_RANK, OLD_STATE, 0, 0, false},
    {SET_RANK, BROKEN_REPORT, 0, 0, true},
};

static void gives_the_bits_of_the_host(const struct variant *v)
{
    struct memory *both[2];
    for (int cuda = 0; cuda < 2; cuda++) {
        both[cuda] = memory_of();
        if (v->with & BROKEN_STATE)
            both[cuda]->state.factor.scale = NAN;
        if (v->with & BROKEN_REPORT)
            both[cuda]->reports[0].kind = 77;
        if (v->with & OLD_STATE) /* 0.9 had 1.0 as a double in these places */
            both[cuda]->state.failed_backoffs = both[cuda]->state.bad_losses_in_a_row =
                INT64_C(0x3FF) << 52;
        if (v->with & BAD_LOSS)
            both[cuda]->loss[LOSSES - 1] = -HUGE_VALF;
        expect(run_call(both[cuda], v, cuda), "");
    }
    const struct memory *m = both[0];
    if (v->with & OLD_STATE)
        CHECK(m->report.status == GSC_ERROR_VERSION && m->report.overflow);
    if (v->call <= ACCUMULATE) {
        CHECK(m->report.loss == (v->with & BAD_LOSS    ? GSC_LOSS_NOT_FINITE
                                 : v->with & WITH_LOSS ? GSC_LOSS_FINITE
                                                       : GSC_LOSS_UNKNOWN));
        CHECK(!(v->with & WITH_EACH) || m->each[0].loss == GSC_LOSS_UNKNOWN);
        const uint32_t events = (v->in_place ? &m->state : &m->new_state)->events;
        if (v->with & WITH_STATE)
            CHECK((events & GSC_EVENT_BAD_LOSS) == (v->with & BAD_LOSS ? GSC_EVENT_BAD_LOSS : 0));
    }
    CHECK(memcmp(both[0], both[1], offsetof(struct memory, workspace)) == 0);
    gsc_memory_destroy(context, both[0]);
    gsc_memory_destroy(context, both[1]);
}

static void fails_in_sentences(void)
{
    struct memory *m = memory_of();
    struct call call;
    uint64_t size = 0;
    gsc_error err;
    xla.fails = true; /* no stream: XLA's own error goes back */
    CHECK(run_call(m, &variants[0], true) == &xla && xla.errors == 0);
    xla.fails = false;

    begin(&call);
    expect(gsc_xla_cuda(&call.frame), "too few results");

    uint8_t on_host[STATE * 4] = {0};
    begin(&call);
    integer(&call, "call", MULTIPLY);
    real(&call, "by", 3);
    buffer(&call, 0, &m->factor, XLA_U32, 8);
    buffer(&call, 1, on_host, XLA_U32, 8);
    expect(gsc_xla_cuda(&call.frame), "gradscaler: |device");

    const gsc_tensor tensor = {.data = m->single, .count = B, .dtype = GSC_F32};
    CHECK(gsc_xla_workspace(0, &tensor, 1, &size, &err) == GSC_OK && size > 256);
    const int64_t enough = (int64_t)size, sizes[] = {0, 255, 256, enough - 1, enough};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        begin(&call);
        integer(&call, "call", CHECK_);
        integer(&call, "count", 1);
        buffer(&call, 0, m->single, XLA_F32, B);
        buffer(&call, 1, &m->report, XLA_U32, REPORT);
        buffer(&call, 1, m->workspace, XLA_U8, sizes[i]);
        expect(gsc_xla_cuda(&call.frame), sizes[i] < 256      ? "too small"
                                          : sizes[i] < enough ? "exec.workspace has"
                                                              : "");
    }
    CHECK(gsc_xla_workspace(7, &tensor, 1, &size, &err) != GSC_OK);
    CHECK(gsc_xla_workspace(-1, &tensor, 1, &size, &err) != GSC_OK);
    CHECK(gsc_xla_workspace(64, &tensor, 1, &size, &err) != GSC_OK);
    gsc_memory_destroy(context, m);
}

int main(void)
{
    answers_in_the_oldest_version();
    memset(&xla, 0, sizeof xla);
    threads_that_come_late_or_never_change_nothing();
    memset(&xla, 0, sizeof xla);
    gsc_error err;
    const gsc_cuda_options options = GSC_CUDA_OPTIONS_INIT;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    uint64_t (*stream_of_launch)(void);
    int32_t (*blocks)(void), (*create)(void **, uint32_t);
    if (!CHECK(driver && gsc_context_create_cuda(&options, &context, &err) == GSC_OK))
        return 1;
    *(void **)&stream_of_launch = dlsym(driver, "standin_stream");
    *(void **)&blocks = dlsym(driver, "standin_allocated");
    *(void **)&create = dlsym(driver, "cuStreamCreate");
    CHECK(create(&xla.stream, 0) == 0);
    struct memory *m = memory_of();
    expect(run_call(m, &variants[4], true), "");
    CHECK(stream_of_launch() == (uint64_t)(uintptr_t)xla.stream);
    const int32_t before = blocks();
    expect(run_call(m, &variants[4], true), "");
    CHECK(blocks() == before);
    gsc_memory_destroy(context, m);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        gives_the_bits_of_the_host(&variants[i]);
    fails_in_sentences();
    gsc_context_destroy(context);
    return check_failures != 0;
}
