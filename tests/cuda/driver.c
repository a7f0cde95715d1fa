/* SPDX-License-Identifier: MIT */
/*
 * The driver layer on the stand-in: every failure has a status and a sentence, nothing leaks, and
 * the CPU works on. The library starts the driver once in a process, so each test has its own.
 */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "cuda/driver.h"
#include "cuda/launch.h"
#include "standin.h"

#define X(name, symbol, signature) int32_t symbol signature;
#include "cuda/driver.def"
#include "device.def"
#undef X

/* ---- what the tests share ---- */

static standin *driver;
static gsc_context *context; /* of the tests that have them from the start */
static void *stream;
static gsc_error err;

static gsc_status create(int32_t device, gsc_context **out)
{
    *out = NULL;
    memset(&err, 0, sizeof err);
    const gsc_cuda_options options = {GSC_CUDA_OPTIONS_SIZE, device};
    gsc_status status = gsc_context_create_cuda(&options, out, &err);
    CHECK(err.status == status);
    CHECK((status == GSC_OK) == (*out != NULL));
    CHECK(status == GSC_OK || (err.argument == 0 && strcmp(err.field, "device") == 0));
    return status;
}

/* No context can be had of the device, for this reason. */
static void check_refused(int32_t device, gsc_status status, const char *words)
{
    gsc_context *none;
    CHECK(create(device, &none) == status);
    CHECK_TEXT(err.message, words);
}

static gsc_context *created(int32_t device)
{
    gsc_context *made;
    if (create(device, &made) != GSC_OK) {
        printf("no context: %s\n", err.message);
        exit(1);
    }
    return made;
}

#define COUNT(kernel) +1
enum { LAST_KERNEL = -1 GSC_FOR_CUDA_KERNELS(COUNT) };

static gsc_exec exec_of(gsc_context *of, void *stream)
{
    gsc_exec on = GSC_EXEC_INIT;
    on.context = of;
    on.stream = stream;
    return on;
}

static gsc_status launch(gsc_context *of, void *stream)
{
    static const unsigned char parameter[1 << 15];
    const gsc_exec on = exec_of(of, stream);
    memset(&err, 0, sizeof err);
    return gsc_cuda_launch(&on, LAST_KERNEL, 3, 32, parameter, &err);
}

static void fail_at(const char *symbol, int32_t result, int32_t good_calls)
{
    driver->failing = symbol;
    driver->failure = result;
    driver->good_calls = good_calls;
}

static void check_nothing_held(void)
{
    CHECK(driver->retained == 0 && driver->loaded == 0 && driver->allocated == 0);
    CHECK(standin_depth() == 0);
}

/* ---- the driver ---- */

typedef struct missing {
    const char *name, *words;
    int32_t version, devices;
    const char *failing;
    int32_t failure;
} missing;

static const missing missings[] = {
    {"too old", "too old|10.2|11.0", 10020, 1, NULL, 0},
    {"no device", "no CUDA device|CUDA_VISIBLE_DEVICES", 12040, 0, NULL, 0},
    {"does not start", "does not start|initialization error|CUDA_ERROR_NOT_INITIALIZED|forked",
     12040, 1, "cuInit", 3},
    {"cannot count devices", "does not start|unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED",
     12040, 1, "cuDeviceGetCount", 719},
    {"unknown result", "does not start|unknown error|unknown CUresult", 12040, 1, "cuInit", 12345},
};
static const missing *reason;

static void unavailable(void)
{
    driver->version = reason->version;
    driver->devices = reason->devices;
    fail_at(reason->failing, reason->failure, 0);
    CHECK_TEXT(cuda_note(), reason->words);
    check_refused(0, GSC_ERROR_UNAVAILABLE, cuda_note());
}

static void available(void)
{
    CHECK(strcmp(cuda_note(), "available") == 0);
    gsc_context *made = created(0);
    CHECK(driver->retained == 1 && driver->loaded == 1 && driver->loads == 1);
    gsc_context_destroy(made);
    check_nothing_held();
}

/* ---- devices ---- */

static void several_devices(void)
{
    driver->devices = 2;
    check_refused(-1, GSC_ERROR_VALUE, "device is -1|below 2");
    check_refused(2, GSC_ERROR_VALUE, "device is 2|below 2");
    gsc_context *first = created(0), *second = created(1), *again = created(0);
    CHECK(driver->retained == 3 && driver->loaded == 3);
    /* The stand-in refuses a kernel of another device's context. */
    CHECK(launch(first, NULL) == GSC_OK);
    CHECK(launch(second, NULL) == GSC_OK);
    gsc_context_destroy(first);
    CHECK(launch(again, NULL) == GSC_OK);
    gsc_context_destroy(second);
    gsc_context_destroy(again);
}

/* Whatever fails while a context is made: a status, the driver's words, nothing held. */
static void creation_fails(void)
{
    static const char *const symbols[] = {
        "cuDeviceGet",         "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2", "cuModuleLoadDataEx",   "cuModuleGetFunction",
        "cuFuncLoad"};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        fail_at(symbols[i], 2, 0);
        check_refused(0, GSC_ERROR_MEMORY,
                      "device 0|could not|out of memory (CUDA_ERROR_OUT_OF_MEMORY)");
        fail_at(symbols[i], 719, 0);
        check_refused(0, GSC_ERROR_DEVICE, "unspecified launch failure (CUDA_ERROR_LAUNCH_FAILED)");
        CHECK(driver->good_calls == -1); /* asked once */
        check_nothing_held();
        check_cpu();
    }
    fail_at("cuDeviceGetAttribute", 719, 1);
    check_refused(0, GSC_ERROR_DEVICE, "could not open the device");
    fail_at("cuModuleGetFunction", 719, 1); /* the second one */
    check_refused(0, GSC_ERROR_DEVICE, "could not load the kernels' ");
    driver->failing = NULL;
    CHECK(strcmp(cuda_note(), "available") == 0);
    gsc_context_destroy(created(0));
}

static void kernels_refused(void)
{
    driver->devices = 2;
    CHECK(strcmp(cuda_note(), "available") == 0);
    fail_at("cuModuleLoadDataEx", 218, 0);
    driver->log = "line 7: fatal\nUnsupported .version";
    check_refused(1, GSC_ERROR_UNAVAILABLE,
                  "device 1 refused the kernels|(CUDA_ERROR_INVALID_PTX)|; the CUDA log has more");
    CHECK(driver->good_calls == -1); /* older PTX is for an older compiler alone */
    CHECK_TEXT(gsc_cuda_log(), "device 1|a PTX JIT compilation failed|line 7: fatal Unsupported");
    CHECK_TEXT(gsc_cuda_log(), "other devices may work");
    driver->log = NULL;
    check_refused(0, GSC_ERROR_UNAVAILABLE, "device 0 refused the kernels");
    CHECK(!strstr(err.message, "log"));
    CHECK_TEXT(gsc_cuda_log(), "device 1"); /* the first stays */
    /* A driver that compiles late. */
    fail_at("cuFuncLoad", 222, 0);
    check_refused(0, GSC_ERROR_UNAVAILABLE, "device 0 refused the kernels");
}

/* A driver with the compiler of an older one takes what that takes; some devices are too old. */
static void device_or_compiler_is_older(void)
{
    driver->compiler = 12000;
    const gsc_exec on = exec_of(created(0), NULL);
    CHECK(gsc_cuda_has(&on, GSC_CUDA_chunks));
    CHECK(!gsc_cuda_has(&on, GSC_CUDA_many));
    gsc_context_destroy(on.context);
    driver->capability = 61;
    check_refused(0, GSC_ERROR_UNAVAILABLE, "device 0 has compute capability 6.1: 7.0 is needed");
}

static void current_context_stays(void)
{
    void *mine, *popped;
    driver->devices = 2;
    CHECK(strcmp(cuda_note(), "available") == 0);
    CHECK(cuDevicePrimaryCtxRetain(&mine, 1) == 0 && cuCtxPushCurrent_v2(mine) == 0);
    gsc_context *made = created(0);
    CHECK(standin_current() == mine && standin_depth() == 1);
    CHECK(launch(made, NULL) == GSC_OK);
    CHECK(standin_current() == mine && standin_depth() == 1);
    fail_at("cuLaunchKernel", 719, 0);
    CHECK(launch(made, NULL) == GSC_ERROR_DEVICE);
    CHECK(standin_current() == mine && standin_depth() == 1);
    gsc_context_destroy(made);
    CHECK(standin_current() == mine && standin_depth() == 1);
    CHECK(cuCtxPopCurrent_v2(&popped) == 0 && cuDevicePrimaryCtxRelease_v2(1) == 0);
}

/* ---- the check at the first use ---- */

/* This device computes nothing. */
static void first_use(void)
{
    static const char words[] = "device 0 (stand-in, driver for CUDA 12.4) is not used|\"dtypes\"|"
                                "GSC_CUDA_CHECK=0";
    void *captured = NULL, *independent = NULL, *graph = NULL;
    CHECK(strcmp(cuda_note(), "available") == 0 && cuDevicePrimaryCtxRetain(&captured, 0) == 0);
    CHECK(cuCtxPushCurrent_v2(captured) == 0 && cuStreamCreate(&captured, 0) == 0);
    setenv("GSC_CUDA_CHECK", "1", 1);
    CHECK(cuStreamBeginCapture_v2(captured, 0) == 0);
    gsc_context_destroy(created(0)); /* not checked: the legacy stream is in the capture */
    CHECK(driver->launches == 0 && cuStreamEndCapture(captured, &graph) == 0);
    CHECK(cuGraphDestroy(graph) == 0 && cuStreamDestroy_v2(captured) == 0);
    fail_at("cuMemAlloc_v2", 2, 0);
    gsc_context_destroy(created(0)); /* not checked: no memory */
    driver->failing = NULL;

    CHECK(cuStreamCreate(&independent, 1) == 0 && cuStreamBeginCapture_v2(independent, 0) == 0);
    check_refused(0, GSC_ERROR_DEVICE, words);
    CHECK(driver->launches > 0 && driver->stream != independent && driver->stream != NULL);
    CHECK(cuStreamEndCapture(independent, &graph) == 0); /* which the check left alone */
    CHECK(cuGraphDestroy(graph) == 0 && cuStreamDestroy_v2(independent) == 0);
    const int launches = driver->launches;
    check_refused(0, GSC_ERROR_DEVICE, words);
    CHECK(driver->launches == launches && driver->allocated == 0); /* once in a process */
    setenv("GSC_CUDA_CHECK", "0", 1);
    gsc_context_destroy(created(0));
    CHECK(driver->launches == launches);
    CHECK(cuCtxPopCurrent_v2(&graph) == 0 && cuDevicePrimaryCtxRelease_v2(0) == 0);
}

/* ---- launches ---- */

static void launch_is_as_asked(void)
{
    int loads = driver->loads;
    const gsc_exec on = exec_of(context, stream);
    CHECK(gsc_exec_wait(&on, &err) == GSC_OK);
    CHECK(launch(context, stream) == GSC_OK);
    CHECK(driver->launches == 1 && driver->blocks == 3 && driver->threads == 32);
    CHECK(driver->stream == stream);
    CHECK(driver->loads == loads && driver->copies == 0);
}

/* Returns the launches for a list of `n` tensors, with a report and a loss. */
static int launches(int32_t version, uint64_t n)
{
    static double data;
    static gsc_report report;
    static gsc_tensor tensors[1505];
    const gsc_tensor loss = {.data = (char *)&data + 1, .count = 3, .dtype = GSC_BF16};
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.loss = &loss;
    driver->version = version;
    const int before = driver->launches;
    gsc_exec on = exec_of(created(0), NULL);
    for (uint64_t i = 0; i < n; i++)
        tensors[i] = (gsc_tensor){.data = &data, .count = 1, .dtype = GSC_F64};
    CHECK(gsc_workspace_size(&on, tensors, n, NULL, &on.workspace_size, &err) == GSC_OK);
    CHECK((on.workspace = calloc(1, on.workspace_size)));
    CHECK(gsc_scale(&on, NULL, tensors, tensors, n, &options, &report, &err) == GSC_OK);
    free(on.workspace);
    gsc_context_destroy(on.context);
    CHECK(strcmp(driver->kernel, "gsc_cuda_chunks") == 0 && driver->copies == 0);
    return driver->launches - before;
}

static void small_parameters(void)
{
    CHECK(launches(12000, 0) == 1);
    CHECK(launches(12000, 150) == 1);
    CHECK(launches(12000, 151) == 2 + 1);
    CHECK(launches(12000, 1500) == 10 + 1);
}

static void large_parameters(void)
{
    CHECK(launches(12010, 151) == 1 + 1);
    CHECK(launches(12010, 1354) == 1 + 1);
    CHECK(launches(12010, 1504) == 2 + 1);
    CHECK(launches(12010, 1505) == 2 + 1);
}

/* A kernel that could only fail, in a way that ends CUDA for the process, is not launched. */
static void refused_before_a_launch(void)
{
    static _Alignas(8) unsigned char memory[4096];
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_tensor_options each = GSC_TENSOR_OPTIONS_INIT, counts = GSC_TENSOR_OPTIONS_INIT;
    void *good = memory, *odd = memory + 4;
    const gsc_tensor t = {good, 16, GSC_F32, 0, {0}},
                     large = {good, UINT64_C(1) << 50, GSC_F8_E5M2, 0, {0}};
    gsc_exec on = exec_of(context, NULL);
    uint64_t size;
    each.per_tensor = odd;
    counts.histogram = odd;
    on.workspace = memory;
    on.workspace_size = sizeof memory;
    CHECK(gsc_measure(&on, NULL, &t, 1, NULL, good, &err) == GSC_OK);
    const int before = driver->launches;
#define REFUSED(call, number, of, in)                                                              \
    CHECK((call) == GSC_ERROR_VALUE && err.argument == (number) && strcmp(err.name, of) == 0 &&    \
          strcmp(err.field, in) == 0)
    REFUSED(gsc_scale(&on, odd, &t, &t, 1, NULL, good, &err), 1, "factor", "");
    REFUSED(gsc_scale(&on, good, &t, &t, 1, NULL, odd, &err), 6, "report", "");
    REFUSED(gsc_measure(&on, good, &t, 1, NULL, odd, &err), 5, "report", "");
    REFUSED(gsc_unscale(&on, good, &t, &t, 1, NULL, odd, &err), 6, "report", "");
    REFUSED(gsc_unscale_accumulate(&on, good, &t, &t, 0, NULL, odd, &err), 6, "report", "");
    REFUSED(gsc_measure(&on, good, &t, 1, &each, good, &err), 4, "options", "per_tensor");
    REFUSED(gsc_unscale(&on, good, &t, &t, 1, &each, good, &err), 5, "options", "per_tensor");
    REFUSED(gsc_measure(&on, good, &t, 1, &counts, good, &err), 4, "options", "histogram");
    REFUSED(gsc_state_init(&on, &policy, odd, &err), 2, "out", "");
    REFUSED(gsc_state_init_from(&on, &policy, odd, good, &err), 2, "from", "");
    REFUSED(gsc_state_update(&on, &policy, odd, good, good, &err), 2, "state", "");
    REFUSED(gsc_state_update(&on, &policy, good, odd, good, &err), 3, "report", "");
    REFUSED(gsc_state_update(&on, &policy, good, good, odd, &err), 4, "out", "");
    REFUSED(gsc_factor_multiply(&on, odd, 2, good, &err), 1, "factor", "");
    REFUSED(gsc_factor_multiply(&on, good, 2, odd, &err), 3, "out", "");
    REFUSED(gsc_report_merge(&on, odd, 1, 0, NULL, good, &err), 1, "reports", "");
    REFUSED(gsc_report_merge(&on, good, 1, 0, NULL, odd, &err), 5, "out", "");
    REFUSED(gsc_factor_clip_grad_norm(&on, odd, good, 1, good, &err), 1, "factor", "");
    REFUSED(gsc_factor_clip_grad_norm(&on, good, odd, 1, good, &err), 2, "report", "");
    REFUSED(gsc_factor_clip_grad_norm(&on, good, good, 1, odd, &err), 4, "out", "");
    REFUSED(gsc_factor_clip_outlier(&on, odd, good, good, &err), 1, "factor", "");
    REFUSED(gsc_factor_clip_outlier(&on, good, odd, good, &err), 2, "state", "");
    REFUSED(gsc_factor_clip_outlier(&on, good, good, odd, &err), 3, "out", "");
    REFUSED(gsc_state_combine_decisions(&on, odd, good, good, &err), 1, "state", "");
    REFUSED(gsc_state_combine_decisions(&on, good, odd, good, &err), 2, "other", "");
    REFUSED(gsc_state_combine_decisions(&on, good, good, odd, &err), 3, "out", "");
    on.flags = GSC_EXEC_WRITE_FAILURES;
    REFUSED(gsc_measure(&on, NULL, &t, 1, NULL, good, &err), 0, "exec", "flags");
    REFUSED(gsc_exec_wait(&on, &err), 0, "exec", "flags");
    on.flags = 0;
    on.workspace = odd;
    REFUSED(gsc_measure(&on, NULL, &t, 1, NULL, good, &err), 0, "exec", "workspace");
    CHECK(gsc_workspace_size(&on, &t, 1, NULL, &size, &err) == GSC_OK);
    for (int i = 0; i < 2; i++) {
        on.workspace = i ? memory : NULL;
        on.workspace_size = size - (uint64_t)i;
        CHECK(gsc_measure(&on, NULL, &t, 1, NULL, good, &err) == GSC_ERROR_CAPACITY);
    }
    CHECK(gsc_workspace_size(&on, &large, 1, NULL, &size, &err) == GSC_ERROR_COUNT);
    CHECK(err.argument == 1 && driver->launches == before);
}

enum action { LAUNCH, WAIT, COPY, DEVICE_MEMORY, HOST_MEMORY };

static gsc_status act(enum action action)
{
    static char from[8], to[8];
    const gsc_exec on = exec_of(context, NULL);
    void *memory = &err;
    memset(&err, 0, sizeof err);
    if (action == LAUNCH)
        return launch(context, NULL);
    if (action == WAIT)
        return gsc_exec_wait(&on, &err);
    if (action == COPY) {
        CHECK(gsc_memory_copy(&on, to, from, 0, &err) == GSC_OK); /* which asks no driver */
        return gsc_memory_copy(&on, to, from, 8, &err);
    }
    const uint32_t kind = action == HOST_MEMORY ? GSC_MEMORY_HOST : GSC_MEMORY_DEVICE;
    const gsc_status status = gsc_memory_create(context, kind, 1000, &memory, &err);
    if (status == GSC_OK) {
        CHECK(driver->allocated == 1 && memory != &err && (uintptr_t)memory % 256 == 0);
        gsc_memory_destroy(context, memory); /* by its kind: the other would not free it */
        gsc_memory_destroy(context, NULL);
    }
    CHECK(driver->allocated == 0 && (status == GSC_OK || memory == &err));
    return status;
}

static void calls_fail(void)
{
    static const struct {
        enum action action;
        const char *symbol;
        int32_t result;
        gsc_status status;
        const char *words;
    } rows[] = {
        {LAUNCH, "cuLaunchKernel", 2, GSC_ERROR_MEMORY, "out of memory (CUDA_ERROR_OUT_OF_MEMORY)"},
        {LAUNCH, "cuLaunchKernel", 719, GSC_ERROR_DEVICE,
         "CUDA device 0: the driver could not launch the kernel |unspecified launch failure"},
        {LAUNCH, "cuLaunchKernel", 400, GSC_ERROR_DEVICE, "is exec.stream of this device|HANDLE)"},
        {LAUNCH, "cuLaunchKernel", 700, GSC_ERROR_DEVICE, "does not see; start the process anew"},
        {LAUNCH, "cuLaunchKernel", 901, GSC_ERROR_DEVICE, "capture again (CUDA_ERROR_STREAM"},
        {LAUNCH, "cuLaunchKernel", 906, GSC_ERROR_DEVICE,
         "legacy stream while another is captured: pass that one"},
        {LAUNCH, "cuCtxPushCurrent_v2", 201, GSC_ERROR_DEVICE,
         "enter its context|make the context anew|CUDA_ERROR_INVALID_CONTEXT"},
        {WAIT, "cuStreamSynchronize", 700, GSC_ERROR_DEVICE,
         "could not wait for the stream|start the process anew"},
        {WAIT, "cuStreamIsCapturing", 719, GSC_ERROR_DEVICE, ""},
        {WAIT, "cuThreadExchangeStreamCaptureMode", 719, GSC_ERROR_DEVICE, ""},
        {WAIT, "cuCtxPushCurrent_v2", 201, GSC_ERROR_DEVICE, "make the context anew"},
        {COPY, "cuMemcpyAsync", 400, GSC_ERROR_DEVICE,
         "could not copy memory|is exec.stream of this device"},
        {DEVICE_MEMORY, "cuMemAlloc_v2", 2, GSC_ERROR_MEMORY,
         "could not allocate 1000 bytes|out of memory"},
        {DEVICE_MEMORY, "cuMemAlloc_v2", 700, GSC_ERROR_DEVICE, ""},
        {HOST_MEMORY, "cuMemHostAlloc", 2, GSC_ERROR_MEMORY,
         "could not allocate 1000 bytes|out of memory"},
        {HOST_MEMORY, "cuMemHostAlloc", 700, GSC_ERROR_DEVICE, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *subject = rows[i].action >= DEVICE_MEMORY ? "context" : "exec";
        fail_at(rows[i].symbol, rows[i].result, 0);
        CHECK(act(rows[i].action) == rows[i].status);
        CHECK_TEXT(err.message, rows[i].words);
        CHECK(strcmp(err.name, subject) == 0 && err.argument == 0 && standin_depth() == 0);
        driver->failing = NULL;
        CHECK(act(rows[i].action) == GSC_OK && standin_depth() == 0);
    }
}

/* The capture ends well; the graph has so many nodes. */
static void *end_capture(void *captured, uint64_t wanted_nodes)
{
    void *graph = NULL;
    uint64_t nodes = 0;
    CHECK(cuStreamEndCapture(captured, &graph) == 0);
    CHECK(cuGraphGetNodes(graph, NULL, &nodes) == 0 && nodes == wanted_nodes);
    return graph;
}

/* Launches and copies are part of a capture. It forbids no memory and no loading, is broken by none
   of them, nor by a wait, and the thread stays as it was. */
static void capture(void)
{
    char from[8] = "gradient", to[8] = "";
    void *independent, *graph, *executable, *memory;
    int32_t mode = 0;
    gsc_context *late;
    const gsc_exec on = exec_of(context, stream), legacy = exec_of(context, NULL);
    CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
    CHECK(launch(context, stream) == GSC_OK);
    CHECK(launch(context, NULL) == GSC_ERROR_DEVICE);
    CHECK_TEXT(err.message, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT");
    CHECK(gsc_memory_copy(&on, to, from, 8, &err) == GSC_OK && to[0] == 0);
    CHECK(gsc_memory_copy(&legacy, to, from, 8, &err) == GSC_ERROR_DEVICE);
    CHECK_TEXT(err.message, "legacy stream while another is captured");
    for (uint32_t kind = GSC_MEMORY_DEVICE; kind <= GSC_MEMORY_HOST; kind++) {
        CHECK(gsc_memory_create(context, kind, 64, &memory, &err) == GSC_OK);
        gsc_memory_destroy(context, memory);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(gsc_exec_wait(i ? &on : &legacy, &err) == GSC_ERROR_UNAVAILABLE);
        CHECK(strcmp(err.name, "exec") == 0 && strcmp(err.field, "stream") == 0);
        CHECK_TEXT(err.message, "exec.stream is being captured");
    }
    gsc_context_destroy(created(0));
    CHECK(driver->retained == 1 && driver->loaded == 1 && driver->allocated == 0);
    CHECK(launch(context, stream) == GSC_OK);
    CHECK(cuThreadExchangeStreamCaptureMode(&mode) == 0 && mode == 0);
    graph = end_capture(stream, 3);
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0) == 0);
    CHECK(cuGraphLaunch(executable, stream) == 0 && memcmp(to, from, 8) == 0);
    CHECK(cuGraphDestroy(graph) == 0 && cuGraphExecDestroy(executable) == 0);
    CHECK(gsc_exec_wait(&on, &err) == GSC_OK);

    /* The legacy stream does not depend on a non-blocking one, captured or not. */
    CHECK(cuStreamCreate(&independent, 1) == 0);
    CHECK(cuStreamBeginCapture_v2(independent, 0) == 0);
    CHECK(launch(context, NULL) == GSC_OK && gsc_exec_wait(&legacy, &err) == GSC_OK);
    CHECK(cuGraphDestroy(end_capture(independent, 0)) == 0);
    CHECK(cuStreamDestroy_v2(independent) == 0);

    CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
    fail_at("cuThreadExchangeStreamCaptureMode", 1, 0);
    CHECK(create(0, &late) == GSC_ERROR_DEVICE);
    CHECK_TEXT(err.message, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED|do it before");
    driver->failing = NULL;
    CHECK(cuStreamEndCapture(stream, &graph) == 901); /* which the creation broke, as it would */
    CHECK(driver->retained == 1 && driver->loaded == 1);
}

/* ---- fork ---- */

/* Runs a test in a process of its own; returns whether it passed. */
static bool passes(void (*run)(void))
{
    int status;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        check_failures = 0;
        run();
        check_cpu();
        exit(check_failures > 0);
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void *memory_before;

static void in_a_child(void)
{
    void *other = NULL;
    const gsc_exec on = exec_of(context, NULL);
    CHECK(gsc_exec_wait(&on, &err) == GSC_ERROR_DEVICE);
    CHECK(err.argument == 0 && strcmp(err.name, "exec") == 0);
    CHECK(strcmp(err.field, "context") == 0);
    CHECK_TEXT(err.message, "before this process was forked");
    CHECK_TEXT(cuda_note(), "forked after CUDA was used");
    check_refused(0, GSC_ERROR_UNAVAILABLE, "forked after CUDA was used");
    CHECK(gsc_memory_create(context, GSC_MEMORY_DEVICE, 8, &other, &err) == GSC_ERROR_DEVICE);
    CHECK(strcmp(err.name, "context") == 0 && !other);
    gsc_memory_destroy(context, memory_before);
    gsc_context_destroy(context);
    CHECK(driver->after_fork == 0 && driver->allocated == 1);
}

static void forked(void)
{
    CHECK(gsc_memory_create(context, GSC_MEMORY_DEVICE, 8, &memory_before, &err) == GSC_OK);
    CHECK(passes(in_a_child));
    CHECK(launch(context, NULL) == GSC_OK);
    gsc_memory_destroy(context, memory_before);
}

/* A process that forks first has CUDA in the child. */
static void forked_before(void)
{
    CHECK(passes(available));
    available();
}

static void (*wanted)(void);
static bool has_context;

static void run_wanted(void)
{
    context = has_context ? created(0) : NULL;
    CHECK(!has_context || cuStreamCreate(&stream, 0) == 0);
    wanted();
    driver->failing = NULL;
    CHECK(!has_context || cuStreamDestroy_v2(stream) == 0);
    gsc_context_destroy(context);
    check_nothing_held();
}

static void test(const char *name, void (*run)(void), bool with_context)
{
    wanted = run;
    has_context = with_context;
    const bool passed = passes(run_wanted);
    printf("%-24s %s\n", name, passed ? "ok" : "FAILED");
    check_failures += !passed;
}

int main(void)
{
    driver = standin_state();
    setenv("GSC_CUDA_CHECK", "0", 1); /* it computes nothing */
    for (reason = missings; reason < missings + sizeof missings / sizeof *missings; reason++)
        test(reason->name, unavailable, false);
#define WITHOUT(name) test(#name, name, false)
    WITHOUT(available);
    WITHOUT(several_devices);
    WITHOUT(creation_fails);
    WITHOUT(kernels_refused);
    WITHOUT(device_or_compiler_is_older);
    WITHOUT(small_parameters);
    WITHOUT(large_parameters);
    WITHOUT(current_context_stays);
    WITHOUT(first_use);
    WITHOUT(forked_before);
#define WITH(name) test(#name, name, true)
    WITH(launch_is_as_asked);
    WITH(refused_before_a_launch);
    WITH(calls_fail);
    WITH(capture);
    WITH(forked);
    return check_failures > 0;
}
