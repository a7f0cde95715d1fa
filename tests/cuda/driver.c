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

static gsc_status create(int32_t device, gsc_context **out, gsc_error *err)
{
    *out = NULL;
    memset(err, 0, sizeof *err);
    const gsc_cuda_options options = {GSC_CUDA_OPTIONS_SIZE, device};
    gsc_status status = gsc_context_create_cuda(&options, out, err);
    CHECK(err->status == status);
    CHECK((status == GSC_OK) == (*out != NULL));
    return status;
}

static gsc_context *created(int32_t device)
{
    gsc_context *context;
    gsc_error err;
    if (create(device, &context, &err) != GSC_OK) {
        printf("no context: %s\n", err.message);
        exit(1);
    }
    return context;
}

#define COUNT(kernel) +1
enum { LAST_KERNEL = -1 GSC_FOR_CUDA_KERNELS(COUNT) };

static gsc_status launch(gsc_context *context, void *stream, gsc_error *err)
{
    static const unsigned char parameter[1 << 15];
    gsc_exec on = GSC_EXEC_INIT;
    on.context = context;
    on.stream = stream;
    memset(err, 0, sizeof *err);
    return gsc_cuda_launch(&on, LAST_KERNEL, 3, 32, parameter, err);
}

static void fail_at(const char *symbol, int32_t result, int32_t good_calls)
{
    driver->failing = symbol;
    driver->failure = result;
    driver->good_calls = good_calls;
}

static void check_nothing_held(void)
{
    CHECK(driver->retained == 0);
    CHECK(driver->loaded == 0);
    CHECK(standin_depth() == 0);
}

/* No context can be had, and gsc_cuda_start says why. */
static void check_unavailable(const char *words)
{
    gsc_context *context;
    gsc_error err;
    CHECK_TEXT(cuda_note(), words);
    CHECK(create(0, &context, &err) == GSC_ERROR_UNAVAILABLE);
    CHECK(err.argument == 0 && strcmp(err.field, "device") == 0);
    CHECK_TEXT(err.message, cuda_note());
    check_nothing_held();
}

/* ---- the driver ---- */

static void available(void)
{
    CHECK(strcmp(cuda_note(), "available") == 0);
    gsc_context *context = created(0);
    CHECK(driver->retained == 1 && driver->loaded == 1 && driver->loads == 1);
    gsc_context_destroy(context);
    check_nothing_held();
}

static void too_old(void)
{
    driver->version = 10020;
    check_unavailable("too old|10.2|11.0");
}

static void no_device(void)
{
    driver->devices = 0;
    check_unavailable("no CUDA device|CUDA_VISIBLE_DEVICES");
}

static void does_not_start(void)
{
    fail_at("cuInit", 3, 0);
    check_unavailable("does not start|initialization error|CUDA_ERROR_NOT_INITIALIZED|forked");
}

static void cannot_count_devices(void)
{
    fail_at("cuDeviceGetCount", 719, 0);
    check_unavailable("does not start|unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED");
}

static void unknown_result(void)
{
    fail_at("cuInit", 12345, 0);
    check_unavailable("does not start|unknown error|unknown CUresult");
}

/* ---- devices ---- */

static void device_out_of_range(void)
{
    gsc_context *context;
    gsc_error err;
    driver->devices = 2;
    for (int32_t device = -1; device <= 2; device += 3) {
        CHECK(create(device, &context, &err) == GSC_ERROR_VALUE);
        CHECK(err.argument == 0 && strcmp(err.field, "device") == 0);
        CHECK_TEXT(err.message, device < 0 ? "device is -1|below 2" : "device is 2|below 2");
    }
    check_nothing_held();
}

static void several_devices(void)
{
    gsc_error err;
    driver->devices = 2;
    gsc_context *first = created(0), *second = created(1), *again = created(0);
    CHECK(driver->retained == 3 && driver->loaded == 3);
    /* The stand-in refuses a kernel of another device's context. */
    CHECK(launch(first, NULL, &err) == GSC_OK);
    CHECK(launch(second, NULL, &err) == GSC_OK);
    CHECK(launch(again, NULL, &err) == GSC_OK);
    gsc_context_destroy(first);
    CHECK(launch(again, NULL, &err) == GSC_OK);
    gsc_context_destroy(second);
    gsc_context_destroy(again);
    check_nothing_held();
}

/* Whatever fails while a context is made: a status, the driver's words, nothing held. */
static void creation_fails(void)
{
    static const char *const symbols[] = {
        "cuDeviceGet",         "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2", "cuModuleLoadDataEx",   "cuModuleGetFunction",
        "cuFuncLoad"};
    gsc_context *context;
    gsc_error err;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        fail_at(symbols[i], 2, 0);
        CHECK(create(0, &context, &err) == GSC_ERROR_MEMORY);
        CHECK_TEXT(err.message, "device 0|could not|out of memory (CUDA_ERROR_OUT_OF_MEMORY)");
        fail_at(symbols[i], 719, 0);
        CHECK(create(0, &context, &err) == GSC_ERROR_DEVICE);
        CHECK_TEXT(err.message, "unspecified launch failure (CUDA_ERROR_LAUNCH_FAILED)");
        CHECK(err.argument == 0 && strcmp(err.field, "device") == 0);
        CHECK(driver->good_calls == -1); /* asked once */
        check_nothing_held();
        check_cpu();
    }
    fail_at("cuDeviceGetAttribute", 719, 1);
    CHECK(create(0, &context, &err) == GSC_ERROR_DEVICE);
    CHECK_TEXT(err.message, "could not open the device");
    fail_at("cuModuleGetFunction", 719, 1); /* the second one */
    CHECK(create(0, &context, &err) == GSC_ERROR_DEVICE);
    CHECK_TEXT(err.message, "could not load the kernels' ");
    check_nothing_held();
    driver->failing = NULL;
    CHECK(strcmp(cuda_note(), "available") == 0);
    gsc_context_destroy(created(0));
    check_nothing_held();
}

static void kernels_refused(void)
{
    gsc_context *context;
    gsc_error err;
    driver->devices = 2;
    CHECK(strcmp(cuda_note(), "available") == 0);
    fail_at("cuModuleLoadDataEx", 218, 0);
    driver->log = "line 7: fatal\nUnsupported .version";
    CHECK(create(1, &context, &err) == GSC_ERROR_UNAVAILABLE);
    CHECK_TEXT(err.message, "device 1 refused the kernels|(CUDA_ERROR_INVALID_PTX)");
    CHECK_TEXT(err.message, "; the CUDA log has more");
    CHECK(driver->good_calls == -1); /* older PTX is for an older compiler alone */
    CHECK_TEXT(gsc_cuda_log(), "device 1|a PTX JIT compilation failed|line 7: fatal Unsupported");
    CHECK_TEXT(gsc_cuda_log(), "other devices may work");
    driver->log = NULL;
    CHECK(create(0, &context, &err) == GSC_ERROR_UNAVAILABLE);
    CHECK_TEXT(err.message, "device 0 refused the kernels");
    CHECK(!strstr(err.message, "log"));
    CHECK_TEXT(gsc_cuda_log(), "device 1"); /* the first stays */
    /* A driver that compiles late. */
    fail_at("cuFuncLoad", 222, 0);
    CHECK(create(0, &context, &err) == GSC_ERROR_UNAVAILABLE);
    CHECK_TEXT(err.message, "device 0 refused the kernels");
    check_nothing_held();
}

static void device_is_too_old(void)
{
    gsc_context *context;
    gsc_error err;
    driver->capability = 61;
    CHECK(create(0, &context, &err) == GSC_ERROR_UNAVAILABLE);
    CHECK_TEXT(err.message, "device 0 has compute capability 6.1: 7.0 is needed");
    check_nothing_held();
}

/* A driver whose compiler is of an older one: it takes what that takes. */
static void compiler_is_older(void)
{
    driver->compiler = 12000;
    gsc_context *context = created(0);
    gsc_exec on = GSC_EXEC_INIT;
    on.context = context;
    CHECK(gsc_cuda_has(&on, GSC_CUDA_chunks));
    CHECK(!gsc_cuda_has(&on, GSC_CUDA_many));
    gsc_context_destroy(context);
    check_nothing_held();
}

static void current_context_stays(void)
{
    void *mine, *popped;
    gsc_error err;
    driver->devices = 2;
    CHECK(strcmp(cuda_note(), "available") == 0);
    CHECK(cuDevicePrimaryCtxRetain(&mine, 1) == 0 && cuCtxPushCurrent_v2(mine) == 0);
    gsc_context *context = created(0);
    CHECK(standin_current() == mine && standin_depth() == 1);
    CHECK(launch(context, NULL, &err) == GSC_OK);
    CHECK(standin_current() == mine && standin_depth() == 1);
    fail_at("cuLaunchKernel", 719, 0);
    CHECK(launch(context, NULL, &err) == GSC_ERROR_DEVICE);
    CHECK(standin_current() == mine && standin_depth() == 1);
    gsc_context_destroy(context);
    CHECK(standin_current() == mine && standin_depth() == 1);
    CHECK(cuCtxPopCurrent_v2(&popped) == 0 && cuDevicePrimaryCtxRelease_v2(1) == 0);
    check_nothing_held();
}

/* ---- launches ---- */

static void launch_is_as_asked(void)
{
    gsc_error err;
    void *stream;
    gsc_context *context = created(0);
    int loads = driver->loads;
    CHECK(cuStreamCreate(&stream, 0) == 0);
    gsc_exec on = GSC_EXEC_INIT;
    on.context = context;
    on.stream = stream;
    CHECK(gsc_exec_wait(&on, &err) == GSC_OK);
    CHECK(launch(context, stream, &err) == GSC_OK);
    CHECK(driver->launches == 1 && driver->blocks == 3 && driver->threads == 32);
    CHECK(driver->stream == stream);
    CHECK(driver->loads == loads && driver->copies == 0);
    CHECK(cuStreamDestroy_v2(stream) == 0);
    gsc_context_destroy(context);
    check_nothing_held();
}

/* A list of 1,500 tensors; returns its launches. */
static int launches(int32_t version)
{
    enum { TENSORS = 1500 };
    static double data;
    gsc_error err;
    gsc_exec on = GSC_EXEC_INIT;
    gsc_tensor tensors[TENSORS];
    driver->version = version;
    gsc_context *context = on.context = created(0);
    for (int i = 0; i < TENSORS; i++)
        tensors[i] = (gsc_tensor){.data = &data, .count = 1, .dtype = GSC_F64};
    CHECK(gsc_workspace_size(&on, tensors, TENSORS, NULL, &on.workspace_size, &err) == GSC_OK);
    CHECK((on.workspace = calloc(1, on.workspace_size)));
    CHECK(gsc_scale(&on, NULL, tensors, tensors, TENSORS, NULL, NULL, &err) == GSC_OK);
    free(on.workspace);
    gsc_context_destroy(context);
    check_nothing_held();
    return driver->launches;
}

static void small_parameters(void)
{
    CHECK(launches(12000) == 10 + 1);
}

static void large_parameters(void)
{
    CHECK(launches(12010) == 2 + 1);
    CHECK(strcmp(driver->kernel, "gsc_cuda_chunks") == 0); /* for the last 136 */
}

static void launch_fails(void)
{
    static const struct {
        int32_t result;
        gsc_status status;
        const char *words;
    } rows[] = {
        {2, GSC_ERROR_MEMORY, "out of memory (CUDA_ERROR_OUT_OF_MEMORY)"},
        {719, GSC_ERROR_DEVICE, "unspecified launch failure (CUDA_ERROR_LAUNCH_FAILED)"},
        {400, GSC_ERROR_DEVICE, "is exec.stream of this device|(CUDA_ERROR_INVALID_HANDLE)"},
        {700, GSC_ERROR_DEVICE, "the device does not see; start the process anew"},
        {901, GSC_ERROR_DEVICE, "capture again (CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)"},
        {906, GSC_ERROR_DEVICE, "legacy stream while another is captured: pass that one"},
    };
    gsc_error err;
    gsc_context *context = created(0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fail_at("cuLaunchKernel", rows[i].result, 0);
        CHECK(launch(context, NULL, &err) == rows[i].status);
        CHECK_TEXT(err.message, "CUDA device 0: the driver could not launch the kernel ");
        CHECK_TEXT(err.message, rows[i].words);
        CHECK(strcmp(err.name, "exec") == 0 && standin_depth() == 0);
    }
    fail_at("cuCtxPushCurrent_v2", 201, 0);
    CHECK(launch(context, NULL, &err) == GSC_ERROR_DEVICE);
    CHECK_TEXT(err.message, "enter its context|make the context anew|CUDA_ERROR_INVALID_CONTEXT");
    driver->failing = NULL;
    CHECK(launch(context, NULL, &err) == GSC_OK);
    check_cpu();
    gsc_context_destroy(context);
    check_nothing_held();
}

static void capture(void)
{
    gsc_error err;
    void *stream, *independent, *graph = NULL;
    uint64_t nodes = 0;
    int32_t mode = 0;
    gsc_context *context = created(0), *late;
    CHECK(cuStreamCreate(&stream, 0) == 0);
    CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
    CHECK(launch(context, stream, &err) == GSC_OK);
    CHECK(launch(context, stream, &err) == GSC_OK);
    CHECK(cuStreamEndCapture(stream, &graph) == 0);
    CHECK(cuGraphGetNodes(graph, NULL, &nodes) == 0 && nodes == 2);
    CHECK(cuGraphDestroy(graph) == 0);

    CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
    CHECK(launch(context, NULL, &err) == GSC_ERROR_DEVICE);
    CHECK_TEXT(err.message, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT");
    CHECK(cuStreamEndCapture(stream, &graph) == 0 && cuGraphDestroy(graph) == 0);

    /* The legacy stream does not depend on a non-blocking one, captured or not. */
    gsc_exec legacy = GSC_EXEC_INIT;
    legacy.context = context;
    CHECK(cuStreamCreate(&independent, 1) == 0);
    CHECK(cuStreamBeginCapture_v2(independent, 0) == 0);
    CHECK(launch(context, NULL, &err) == GSC_OK && gsc_exec_wait(&legacy, &err) == GSC_OK);
    CHECK(cuStreamEndCapture(independent, &graph) == 0 && cuGraphDestroy(graph) == 0);
    CHECK(cuStreamDestroy_v2(independent) == 0);

    /* Loading and unloading leave a capture alone, and the thread as it was. */
    CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
    gsc_context_destroy(created(0));
    CHECK(driver->retained == 1 && driver->loaded == 1);
    CHECK(launch(context, stream, &err) == GSC_OK);
    CHECK(cuThreadExchangeStreamCaptureMode(&mode) == 0 && mode == 0);
    CHECK(cuStreamEndCapture(stream, &graph) == 0 && cuGraphDestroy(graph) == 0);

    CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
    fail_at("cuThreadExchangeStreamCaptureMode", 1, 0);
    CHECK(create(0, &late, &err) == GSC_ERROR_DEVICE);
    CHECK_TEXT(err.message, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED|do it before");
    driver->failing = NULL;
    CHECK(cuStreamEndCapture(stream, &graph) == 901); /* which the creation broke, as it would */
    CHECK(driver->retained == 1 && driver->loaded == 1);
    CHECK(cuStreamDestroy_v2(stream) == 0);
    gsc_context_destroy(context);
    check_nothing_held();
}

/* ---- memory ---- */

static void memory_kinds(void)
{
    gsc_error err;
    gsc_context *context = created(0);
    for (uint32_t kind = GSC_MEMORY_DEVICE; kind <= GSC_MEMORY_HOST; kind++) {
        void *memory = NULL;
        CHECK(gsc_memory_create(context, kind, 1000, &memory, &err) == GSC_OK && memory);
        CHECK(driver->allocated == 1 && (uintptr_t)memory % 256 == 0);
        gsc_memory_destroy(context, memory); /* by its kind: the other would not free it */
        CHECK(driver->allocated == 0 && standin_depth() == 0);
    }
    gsc_memory_destroy(context, NULL);
    gsc_context_destroy(context);
    check_nothing_held();
}

static void memory_fails(void)
{
    static const struct {
        uint32_t kind;
        const char *symbol;
    } rows[] = {{GSC_MEMORY_DEVICE, "cuMemAlloc_v2"}, {GSC_MEMORY_HOST, "cuMemHostAlloc"}};
    gsc_error err;
    gsc_context *context = created(0);
    for (int i = 0; i < 2; i++) {
        void *memory = &err;
        fail_at(rows[i].symbol, 2, 0);
        CHECK(gsc_memory_create(context, rows[i].kind, 1000, &memory, &err) == GSC_ERROR_MEMORY);
        CHECK_TEXT(err.message, "could not allocate 1000 bytes|out of memory");
        fail_at(rows[i].symbol, 700, 0);
        CHECK(gsc_memory_create(context, rows[i].kind, 1000, &memory, &err) == GSC_ERROR_DEVICE);
        CHECK(strcmp(err.name, "context") == 0 && err.argument == 0);
        CHECK(memory == &err && driver->allocated == 0 && standin_depth() == 0);
    }
    driver->failing = NULL;
    gsc_context_destroy(context);
    check_nothing_held();
}

static void copy_and_wait_fail(void)
{
    char from[8] = "gradient", to[8] = "";
    gsc_error err;
    gsc_exec on = GSC_EXEC_INIT;
    gsc_context *context = on.context = created(0);
    CHECK(gsc_memory_copy(&on, to, from, 8, &err) == GSC_OK && memcmp(to, from, 8) == 0);
    CHECK(gsc_exec_wait(&on, &err) == GSC_OK);
    fail_at("cuMemcpyAsync", 400, 0);
    CHECK(gsc_memory_copy(&on, to, from, 8, &err) == GSC_ERROR_DEVICE);
    CHECK_TEXT(err.message, "could not copy memory|is exec.stream of this device");
    CHECK(gsc_memory_copy(&on, to, from, 0, &err) == GSC_OK); /* which asks no driver */
    fail_at("cuStreamSynchronize", 700, 0);
    CHECK(gsc_exec_wait(&on, &err) == GSC_ERROR_DEVICE);
    CHECK_TEXT(err.message, "could not wait for the stream|start the process anew");
    fail_at("cuStreamIsCapturing", 719, 0);
    CHECK(gsc_exec_wait(&on, &err) == GSC_ERROR_DEVICE);
    fail_at("cuThreadExchangeStreamCaptureMode", 719, 0);
    CHECK(gsc_exec_wait(&on, &err) == GSC_ERROR_DEVICE);
    fail_at("cuCtxPushCurrent_v2", 201, 0);
    CHECK(gsc_exec_wait(&on, &err) == GSC_ERROR_DEVICE);
    CHECK_TEXT(err.message, "make the context anew");
    CHECK(standin_depth() == 0);
    driver->failing = NULL;
    gsc_context_destroy(context);
    check_nothing_held();
}

/* A capture neither forbids memory nor is broken by it, nor by a wait; copies are part of it. */
static void memory_while_captured(void)
{
    char from[8] = "gradient", to[8] = "";
    void *graph = NULL, *executable, *memory;
    int32_t mode = 0;
    gsc_error err;
    gsc_exec on = GSC_EXEC_INIT, legacy = GSC_EXEC_INIT;
    gsc_context *context = on.context = legacy.context = created(0);
    CHECK(cuStreamCreate(&on.stream, 0) == 0);
    CHECK(cuStreamBeginCapture_v2(on.stream, 0) == 0);
    for (uint32_t kind = GSC_MEMORY_DEVICE; kind <= GSC_MEMORY_HOST; kind++) {
        CHECK(gsc_memory_create(context, kind, 64, &memory, &err) == GSC_OK);
        gsc_memory_destroy(context, memory);
    }
    CHECK(driver->allocated == 0);
    CHECK(gsc_memory_copy(&on, to, from, 8, &err) == GSC_OK && to[0] == 0);
    CHECK(gsc_memory_copy(&legacy, to, from, 8, &err) == GSC_ERROR_DEVICE);
    CHECK_TEXT(err.message, "legacy stream while another is captured");
    for (int i = 0; i < 2; i++) {
        CHECK(gsc_exec_wait(i ? &on : &legacy, &err) == GSC_ERROR_UNAVAILABLE);
        CHECK(strcmp(err.name, "exec") == 0 && strcmp(err.field, "stream") == 0);
        CHECK_TEXT(err.message, "exec.stream is being captured");
    }
    CHECK(cuThreadExchangeStreamCaptureMode(&mode) == 0 && mode == 0);
    CHECK(cuStreamEndCapture(on.stream, &graph) == 0);
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0) == 0);
    CHECK(cuGraphLaunch(executable, on.stream) == 0 && memcmp(to, from, 8) == 0);
    CHECK(cuGraphDestroy(graph) == 0 && cuGraphExecDestroy(executable) == 0);
    CHECK(gsc_exec_wait(&on, &err) == GSC_OK);
    CHECK(cuStreamDestroy_v2(on.stream) == 0);
    gsc_context_destroy(context);
    check_nothing_held();
}

/* ---- fork ---- */

static int status_of(pid_t child)
{
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

static void forked(void)
{
    gsc_error err;
    gsc_context *context = created(0);
    void *memory, *other = NULL;
    CHECK(gsc_memory_create(context, GSC_MEMORY_DEVICE, 8, &memory, &err) == GSC_OK);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        gsc_exec on = GSC_EXEC_INIT;
        gsc_context *own;
        on.context = context;
        CHECK(gsc_exec_wait(&on, &err) == GSC_ERROR_DEVICE);
        CHECK(err.argument == 0 && strcmp(err.name, "exec") == 0);
        CHECK(strcmp(err.field, "context") == 0);
        CHECK_TEXT(err.message, "before this process was forked");
        CHECK_TEXT(cuda_note(), "forked after CUDA was used");
        CHECK(create(0, &own, &err) == GSC_ERROR_UNAVAILABLE);
        CHECK_TEXT(err.message, "forked after CUDA was used");
        CHECK(gsc_memory_create(context, GSC_MEMORY_DEVICE, 8, &other, &err) == GSC_ERROR_DEVICE);
        CHECK(strcmp(err.name, "context") == 0 && !other);
        check_cpu();
        gsc_memory_destroy(context, memory);
        gsc_context_destroy(context);
        CHECK(driver->after_fork == 0 && driver->allocated == 1);
        exit(check_failures > 0);
    }
    CHECK(status_of(child) == 0);
    CHECK(launch(context, NULL, &err) == GSC_OK);
    gsc_memory_destroy(context, memory);
    CHECK(driver->allocated == 0);
    gsc_context_destroy(context);
    check_nothing_held();
}

/* A process that forks first has CUDA in the child. */
static void forked_before(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        available();
        exit(check_failures > 0);
    }
    CHECK(status_of(child) == 0);
    available();
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
#define TEST(name) {#name, name}
        TEST(available),
        TEST(too_old),
        TEST(no_device),
        TEST(does_not_start),
        TEST(unknown_result),
        TEST(cannot_count_devices),
        TEST(device_out_of_range),
        TEST(several_devices),
        TEST(creation_fails),
        TEST(kernels_refused),
        TEST(device_is_too_old),
        TEST(compiler_is_older),
        TEST(launch_is_as_asked),
        TEST(small_parameters),
        TEST(large_parameters),
        TEST(current_context_stays),
        TEST(launch_fails),
        TEST(capture),
        TEST(memory_kinds),
        TEST(memory_fails),
        TEST(copy_and_wait_fail),
        TEST(memory_while_captured),
        TEST(forked),
        TEST(forked_before),
#undef TEST
    };
    driver = standin_state();
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            check_failures = 0;
            tests[i].run();
            check_cpu();
            exit(check_failures > 0);
        }
        int status = status_of(child);
        printf("%-24s %s\n", tests[i].name, status == 0 ? "ok" : "FAILED");
        check_failures += status != 0;
    }
    return check_failures > 0;
}
