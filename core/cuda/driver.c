/* SPDX-License-Identifier: MIT */
/*
 * The CUDA driver, loaded at run time and never unloaded: when the process ends, the driver itself
 * frees what is still in use.
 */
#include "driver.h"

#include <float.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include "compare.h"
#include "launch.h"

#if defined(_WIN32) /* loads from the system's folder only */
#define LIBRARY             "nvcuda.dll"
#define LOAD(name)          ((void *)LoadLibraryExA(name, NULL, LOAD_LIBRARY_SEARCH_SYSTEM32))
#define FIND(library, name) ((void *)GetProcAddress((HMODULE)(library), name))
#define WHY()               NULL
#undef OPTIONAL
#else
#define LIBRARY             "libcuda.so.1"
#define LOAD(name)          dlopen(name, RTLD_NOW | RTLD_LOCAL)
#define FIND(library, name) dlsym(library, name)
#define WHY()               dlerror()
#endif

/* Versions as 1000 * major + 10 * minor: the first with all of driver.def, and the first that takes
 * 32 KiB of parameters. */
#define LEAST_VERSION 11000
#define MANY_VERSION  12010
/* The PTX needs this major compute capability. */
#define LEAST_CAPABILITY 7

/* Results of the driver, options of its loader, and attributes. */
enum {
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_IMAGE = 200, /* see is_refusal: the driver cannot run the kernels */
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_PTX = 218,
    JIT_COMPILER_NOT_FOUND = 221,
    UNSUPPORTED_PTX_VERSION = 222,
    JIT_COMPILATION_DISABLED = 223,
    INVALID_HANDLE = 400,
    ILLEGAL_ADDRESS = 700,
    CONTEXT_IS_DESTROYED = 709,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_IMPLICIT = 906,
    OPTION_ERROR_LOG = 5,
    OPTION_ERROR_LOG_SIZE = 6,
    PROCESSORS = 16,
    CAPABILITY_MAJOR = 75,
    CAPABILITY_MINOR = 76,
    CAPTURE_RELAXED = 2, /* mode of a thread: loading is allowed and does not break a capture */
    PORTABLE_MAPPED = 3, /* host memory pinned for all contexts, with the same device address */
    MEMORY_TYPE = 2,     /* attribute of an address */
    MEMORY_TYPE_HOST = 1,
    NON_BLOCKING = 1, /* a stream that does not wait for the legacy one */
};

static struct {
#define X(name, symbol, signature) int32_t(*name) signature;
#include "driver.def"
#undef X
    int32_t version, devices;
    pid_t process; /* the process that started the driver */
    bool available;
    char note[256];
    struct outcome {
        bool is_known;
        char wrong[512]; /* empty: the device's bits were right */
    } * outcomes;        /* of the check of each device, at its first use in this process */
} driver;

static const char *const kernel_names[] = {
#define NAME(kernel) GSC_CUDA_PREFIX #kernel,
    GSC_FOR_CUDA_KERNELS(NAME)
#undef NAME
};
enum { KERNELS = sizeof kernel_names / sizeof *kernel_names };

struct gsc_cuda {
    int32_t device, processors;
    pid_t process;
    void *context, *module;
    void *functions[KERNELS];
    void *check_memory; /* freed with the context, as freeing it waits for the device; or NULL */
};

/* ---- errors ---- */

static const char *name_of(int32_t result)
{
    const char *name = NULL;
    return driver.error_name(result, &name) == 0 && name ? name : "unknown CUresult";
}

/* Returns what to do about a result, or the driver's own text. */
static const char *explain(int32_t result)
{
    const char *text = NULL;
    switch (result) {
    case DEVICE_UNAVAILABLE:
        return "another process has it for itself";
    case INVALID_CONTEXT:
    case CONTEXT_IS_DESTROYED:
        return "was the device reset? make the context anew";
    case JIT_COMPILER_NOT_FOUND:
        return "install the driver's libnvidia-ptxjitcompiler.so";
    case UNSUPPORTED_PTX_VERSION:
        return "update the driver";
    case JIT_COMPILATION_DISABLED:
        return "unset CUDA_DISABLE_PTX_JIT";
    case INVALID_HANDLE:
        return "is exec.stream of this device's primary context?";
    case ILLEGAL_ADDRESS:
        return "work before used memory that the device does not see; start the process anew";
    case CAPTURE_UNSUPPORTED:
        return "not while a stream is captured: do it before";
    case CAPTURE_INVALIDATED:
        return "the capture was broken before; end it and capture again";
    case CAPTURE_IMPLICIT:
        return "exec.stream is the legacy stream while another is captured: pass that one";
    default:
        return driver.error_string(result, &text) == 0 && text ? text : "unknown error";
    }
}

/* Fails because a driver call failed: "the driver could not <action><detail>". */
static gsc_status fail(gsc_error *err, int32_t result, const char *name, int32_t device,
                       const char *action, const char *detail)
{
    return gsc_fail_otherwise(err, result == OUT_OF_MEMORY ? GSC_ERROR_MEMORY : GSC_ERROR_DEVICE, 0,
                              name, "CUDA device %d: the driver could not %s%s: %s (%s)", device,
                              action, detail, explain(result), name_of(result));
}

/* ---- the driver library ---- */

/* Finds the driver's functions. Returns the first required one that is missing, or NULL. */
static const char *find_functions(void *library)
{
    const char *missing = NULL;
    void *symbol;
#define OPTIONAL(name, function, signature)                                                        \
    symbol = FIND(library, #function);                                                             \
    memcpy(&driver.name, &symbol, sizeof symbol);
#define X(name, function, signature)                                                               \
    OPTIONAL(name, function, signature)                                                            \
    if (!symbol && !missing)                                                                       \
        missing = #function;
#include "driver.def"
#undef X
    return missing;
}

#define NOTE(...) (void)snprintf(driver.note, sizeof driver.note, __VA_ARGS__)

static void start_driver(void)
{
    void *library = LOAD(LIBRARY);
    if (!library) {
        const char *why = WHY();
        NOTE("no CUDA driver: %s; install NVIDIA's, or give the container its GPUs",
             why && *why ? why : LIBRARY " cannot be loaded");
        return;
    }
    const char *missing = find_functions(library);
    /* Before `missing`: an old driver lacks functions because it is old. */
    if (driver.driver_version && driver.driver_version(&driver.version) == 0 &&
        driver.version < LEAST_VERSION) {
        NOTE("the CUDA driver is too old: it is of CUDA %d.%d, %d.%d is needed",
             driver.version / 1000, driver.version / 10 % 100, LEAST_VERSION / 1000,
             LEAST_VERSION / 10 % 100);
        return;
    }
    if (missing) {
        NOTE("the CUDA driver lacks %s: " LIBRARY " is damaged or not NVIDIA's", missing);
        return;
    }
    int32_t result = driver.init(0);
    if (result == 0)
        result = driver.device_count(&driver.devices);
    if (result == NO_DEVICE || (result == 0 && driver.devices == 0)) {
        NOTE("no CUDA device: there is none, or CUDA_VISIBLE_DEVICES hides it");
        return;
    }
    if (result != 0) {
        NOTE("the CUDA driver does not start: %s (%s)%s", explain(result), name_of(result),
             result == NOT_INITIALIZED ? "; was CUDA used before this process was forked?" : "");
        return;
    }
    driver.outcomes = calloc((size_t)driver.devices, sizeof *driver.outcomes);
    if (!driver.outcomes) {
        NOTE("the CUDA driver does not start: out of memory");
        return;
    }
    driver.process = getpid();
    driver.available = true;
}

/* The reason of the first device that refused the kernels; empty until then. */
static pthread_mutex_t refusal_lock = PTHREAD_MUTEX_INITIALIZER;
static char refusal[1024];
static _Atomic(const char *) refused;

const char *gsc_cuda_missing(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, start_driver);
    if (driver.available && driver.process != getpid())
        return "this process was forked after CUDA was used, and CUDA does not survive that: "
               "start it anew (in Python, multiprocessing's \"spawn\")";
    return driver.available ? NULL : driver.note;
}

const char *gsc_cuda_refusal(void)
{
    const char *why = atomic_load(&refused);
    return why ? why : "";
}

/* ---- a device ---- */

static bool is_refusal(int32_t result)
{
    switch (result) {
    case INVALID_IMAGE:
    case NO_BINARY_FOR_GPU:
    case INVALID_PTX:
    case JIT_COMPILER_NOT_FOUND:
    case UNSUPPORTED_PTX_VERSION:
    case JIT_COMPILATION_DISABLED:
        return true;
    default:
        return false;
    }
}

/* Fails because a device refused the kernels. Keeps the compiler's log for gsc_cuda_log. */
static gsc_status refuse(gsc_error *err, int32_t result, int32_t device, char *log)
{
    char text[sizeof err->message];
    for (char *at = log; (at = strchr(at, '\n')); at++)
        *at = ' ';
    snprintf(text, sizeof text, "CUDA device %d refused the kernels: %s (%s)", device,
             explain(result), name_of(result));
    pthread_mutex_lock(&refusal_lock);
    if (!atomic_load(&refused)) {
        snprintf(refusal, sizeof refusal, "%s%s%s%s", text, *log ? ": " : "", log,
                 driver.devices > 1 ? "; other devices may work" : "");
        atomic_store(&refused, refusal);
    }
    pthread_mutex_unlock(&refusal_lock);
    return gsc_fail_otherwise(err, GSC_ERROR_UNAVAILABLE, 0, "options.device", "%s%s", text,
                              *log ? "; the CUDA log has more" : "");
}

/* Loads the module: its version, the kernels for all drivers and, if `many`, the newer kernel. */
static int32_t load_module(gsc_cuda *cuda, bool many, int32_t *options, void **values)
{
    const char *const texts[] = {many ? GSC_CUDA_PTX_VERSION_MANY : GSC_CUDA_PTX_VERSION,
                                 gsc_cuda_ptx, many ? gsc_cuda_ptx_many : ""};
    const size_t size = strlen(texts[0]) + strlen(texts[1]) + strlen(texts[2]) + 1;
    char *ptx = malloc(size);
    if (!ptx)
        return OUT_OF_MEMORY;
    (void)snprintf(ptx, size, "%s%s%s", texts[0], texts[1], texts[2]);
    int32_t result = driver.module_load(&cuda->module, ptx, 2, options, values);
    free(ptx);
    return result;
}

/* Loads the kernels. The context of `cuda` is current. */
static gsc_status load_kernels(gsc_cuda *cuda, gsc_error *err)
{
    char log[512] = "";
    int32_t options[] = {OPTION_ERROR_LOG, OPTION_ERROR_LOG_SIZE};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    const char *kernel = "module";
    bool many = driver.version >= MANY_VERSION;
    int32_t result = load_module(cuda, many, options, values);
    if (many && result == UNSUPPORTED_PTX_VERSION) { /* the compiler is an older driver's */
        many = false;
        log[0] = 0;
        result = load_module(cuda, many, options, values);
    }
    for (int i = 0; i < (many ? KERNELS : GSC_CUDA_many) && result == 0; i++) {
        kernel = kernel_names[i] + sizeof GSC_CUDA_PREFIX - 1;
        result = driver.module_function(&cuda->functions[i], cuda->module, kernel_names[i]);
        /* Newer drivers load a function at its first use; this loads it now. */
        if (result == 0 && driver.function_load)
            result = driver.function_load(cuda->functions[i]);
    }
    if (is_refusal(result))
        return refuse(err, result, cuda->device, log);
    if (result != 0)
        return fail(err, result, "options.device", cuda->device, "load the kernels' ", kernel);
    return GSC_OK;
}

static gsc_status open_device(gsc_cuda *cuda, gsc_error *err)
{
    int32_t device, major = 0, minor = 0;
    void *popped;
    int32_t result = driver.device_get(&device, cuda->device);
    if (result == 0)
        result = driver.device_attribute(&major, CAPABILITY_MAJOR, device);
    if (result == 0)
        result = driver.device_attribute(&minor, CAPABILITY_MINOR, device);
    if (result == 0)
        result = driver.device_attribute(&cuda->processors, PROCESSORS, device);
    if (result == 0 && major < LEAST_CAPABILITY)
        return gsc_fail_otherwise(err, GSC_ERROR_UNAVAILABLE, 0, "options.device",
                                  "CUDA device %d has compute capability %d.%d: %d.0 is needed",
                                  cuda->device, major, minor, LEAST_CAPABILITY);
    if (result == 0)
        result = driver.context_retain(&cuda->context, device);
    if (result != 0)
        return fail(err, result, "options.device", cuda->device, "open the device", "");
    result = driver.context_push(cuda->context);
    if (result != 0)
        return fail(err, result, "options.device", cuda->device, "enter its context", "");
    gsc_status status = load_kernels(cuda, err);
    (void)driver.context_pop(&popped);
    return status;
}

/* Makes every comparison of compare.h in memory of its own on a stream that waits for no other. */
static gsc_status compare(gsc_cuda *cuda, void *stream, gsc_error *err)
{
    gsc_context context = {&gsc_cuda_backend, cuda};
    const gsc_exec on = {.struct_size = GSC_EXEC_SIZE, .context = &context, .stream = stream};
    uint64_t most = 0;
    for (uint32_t i = 0; gsc_comparison_name(i); i++) {
        uint64_t size = 0;
        const gsc_status status = gsc_compare(&on, i, 0, NULL, &size, err);
        if (status != GSC_ERROR_CAPACITY)
            return status;
        most = size > most ? size : most;
    }
    GSC_TRY(gsc_cuda_memory_create(cuda, GSC_MEMORY_DEVICE, most, &cuda->check_memory, err));
    for (uint32_t i = 0; gsc_comparison_name(i); i++)
        GSC_TRY(gsc_compare(&on, i, 0, cuda->check_memory, &most, err));
    return GSC_OK;
}

/*
 * Writes the outcome of the check at a device's first use, unless it is known. It stays unknown
 * while the legacy stream is captured, if there is no memory, and if this thread's arithmetic
 * flushes subnormal numbers, which would be a difference.
 */
static void check_device(gsc_cuda *cuda, struct outcome *outcome)
{
    volatile double least = DBL_MIN;
    gsc_error err = {.status = GSC_OK};
    int32_t capturing = 0;
    void *stream = NULL, *popped;
    char name[128] = "unknown";
    if (outcome->is_known || least / 2 == 0 || driver.context_push(cuda->context) != 0)
        return;
    if (driver.stream_capturing(NULL, &capturing) == 0 && !capturing &&
        driver.stream_create(&stream, NON_BLOCKING) == 0) {
        const gsc_status status = compare(cuda, stream, &err);
        (void)driver.stream_destroy(stream);
        outcome->is_known = status == GSC_OK || status == GSC_ERROR_DEVICE;
        if (status == GSC_ERROR_DEVICE) {
            (void)driver.device_name(name, sizeof name, cuda->device);
            (void)snprintf(outcome->wrong, sizeof outcome->wrong,
                           "CUDA device %d (%.60s, driver for CUDA %d.%d) is not used, because "
                           "%.220s; GSC_CUDA_CHECK=0 in the environment switches this off",
                           cuda->device, name, driver.version / 1000, driver.version / 10 % 100,
                           err.message);
        }
    }
    (void)driver.context_pop(&popped);
}

static gsc_status first_use(gsc_cuda *cuda, gsc_error *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const char *wanted = getenv("GSC_CUDA_CHECK");
    struct outcome *outcome = &driver.outcomes[cuda->device];
    if (wanted && strcmp(wanted, "0") == 0)
        return GSC_OK;
    pthread_mutex_lock(&lock);
    check_device(cuda, outcome);
    pthread_mutex_unlock(&lock);
    return outcome->wrong[0] ? gsc_fail_otherwise(err, GSC_ERROR_DEVICE, 0, "options.device", "%s",
                                                  outcome->wrong)
                             : GSC_OK;
}

static void close_device(gsc_cuda *cuda)
{
    void *popped;
    int32_t device;
    if (cuda->module && driver.context_push(cuda->context) == 0) {
        if (cuda->check_memory)
            (void)driver.deallocate((uintptr_t)cuda->check_memory);
        (void)driver.module_unload(cuda->module);
        (void)driver.context_pop(&popped);
    }
    if (driver.device_get(&device, cuda->device) == 0)
        (void)driver.context_release(device);
}

gsc_status gsc_cuda_open(int32_t device, gsc_cuda **out, gsc_error *err)
{
    const char *why = gsc_cuda_missing();
    if (why)
        return gsc_fail_otherwise(err, GSC_ERROR_UNAVAILABLE, 0, "options.device",
                                  "CUDA device %d: %s", device, why);
    if (device < 0 || device >= driver.devices) {
        char must[64];
        (void)snprintf(must, sizeof must, "0 or above and below %d, as many as CUDA has here",
                       driver.devices);
        return gsc_fail_number(err, GSC_ERROR_VALUE, 0, -1, "options.device", device, 0,
                               driver.devices - 1, must);
    }
    gsc_cuda *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return gsc_fail_memory(err);
    cuda->device = device;
    cuda->process = driver.process;
    int32_t mode = CAPTURE_RELAXED;
    const bool relaxed = driver.capture_mode(&mode) == 0;
    gsc_status status = open_device(cuda, err);
    if (status == GSC_OK && relaxed)
        status = first_use(cuda, err);
    if (relaxed)
        (void)driver.capture_mode(&mode); /* restores the thread's mode */
    if (status == GSC_OK)
        *out = cuda;
    else
        gsc_cuda_close(cuda);
    return status;
}

void gsc_cuda_close(void *data)
{
    gsc_cuda *cuda = data;
    /* In a forked process the driver has nothing to give back. */
    if (cuda->context && cuda->process == getpid()) {
        int32_t mode = CAPTURE_RELAXED;
        const bool relaxed = driver.capture_mode(&mode) == 0;
        close_device(cuda);
        if (relaxed)
            (void)driver.capture_mode(&mode);
    }
    free(cuda);
}

/* ---- use of a device ---- */

static gsc_status process_check(const gsc_cuda *cuda, const char *name, gsc_error *err)
{
    if (cuda->process != getpid())
        return gsc_fail(err, GSC_ERROR_DEVICE, 0, -1, name,
                        "was made before this process was forked, and CUDA does not survive that: "
                        "start it anew");
    return GSC_OK;
}

gsc_status gsc_cuda_check(const gsc_exec *exec, gsc_error *err)
{
    if (exec->flags & GSC_EXEC_WRITE_FAILURES)
        return gsc_fail_number(err, GSC_ERROR_VALUE, 0, -1, "exec.flags", exec->flags, 0, 0,
                               "0 on a device, which always writes failures");
    return process_check(exec->context->data, "exec.context", err);
}

bool gsc_cuda_has(const gsc_exec *exec, int kernel)
{
    const gsc_cuda *cuda = exec->context->data;
    return cuda->functions[kernel];
}

uint32_t gsc_cuda_blocks(const gsc_exec *exec)
{
    const gsc_cuda *cuda = exec->context->data;
    return GSC_CUDA_BLOCKS_PER_PROCESSOR * (uint32_t)cuda->processors;
}

gsc_status gsc_cuda_launch(const gsc_exec *exec, int kernel, uint32_t blocks, uint32_t threads,
                           const void *parameter, gsc_error *err)
{
    const gsc_cuda *cuda = exec->context->data;
    void *parameters[] = {(void *)(uintptr_t)parameter}; /* the driver copies the parameter */
    void *popped;
    int32_t result = driver.context_push(cuda->context);
    if (result != 0)
        return fail(err, result, "exec", cuda->device, "enter its context", "");
    result = driver.launch(cuda->functions[kernel], blocks, 1, 1, threads, 1, 1, 0, exec->stream,
                           parameters, NULL);
    (void)driver.context_pop(&popped);
    if (result != 0)
        return fail(err, result, "exec", cuda->device, "launch the kernel ",
                    kernel_names[kernel] + sizeof GSC_CUDA_PREFIX - 1);
    return GSC_OK;
}

/* ---- memory and wait: allowed during a capture, and do not break it ---- */

static int32_t enter(const gsc_cuda *cuda, int32_t *mode)
{
    *mode = CAPTURE_RELAXED;
    int32_t result = driver.capture_mode(mode);
    if (result != 0)
        return result;
    result = driver.context_push(cuda->context);
    if (result != 0)
        (void)driver.capture_mode(mode);
    return result;
}

static void leave(int32_t mode)
{
    void *popped;
    (void)driver.context_pop(&popped);
    (void)driver.capture_mode(&mode);
}

gsc_status gsc_cuda_memory_create(void *data, uint32_t kind, uint64_t size, void **out,
                                  gsc_error *err)
{
    const gsc_cuda *cuda = data;
    int32_t mode;
    uint64_t address = 0;
    void *memory = NULL;
    GSC_TRY(process_check(cuda, "context", err));
    int32_t result = enter(cuda, &mode);
    if (result == 0) {
        if (kind == GSC_MEMORY_HOST)
            result = driver.allocate_host(&memory, size, PORTABLE_MAPPED);
        else
            result = driver.allocate(&address, size);
        leave(mode);
    }
    if (result != 0) {
        char bytes[32];
        (void)snprintf(bytes, sizeof bytes, "%llu bytes", (unsigned long long)size);
        return fail(err, result, "context", cuda->device, "allocate ", bytes);
    }
    *out = memory ? memory : (void *)(uintptr_t)address;
    return GSC_OK;
}

void gsc_cuda_memory_destroy(void *data, void *memory)
{
    const gsc_cuda *cuda = data;
    const uint64_t address = (uintptr_t)memory;
    int32_t mode, type = 0;
    if (cuda->process != getpid() || enter(cuda, &mode) != 0)
        return;
    (void)driver.pointer_attribute(&type, MEMORY_TYPE, address);
    if (type == MEMORY_TYPE_HOST)
        (void)driver.deallocate_host(memory);
    else
        (void)driver.deallocate(address);
    leave(mode);
}

gsc_status gsc_cuda_memory_copy(const gsc_exec *exec, void *to, const void *from, uint64_t size,
                                gsc_error *err)
{
    const gsc_cuda *cuda = exec->context->data;
    int32_t mode;
    int32_t result = enter(cuda, &mode);
    if (result == 0) {
        result = driver.copy((uintptr_t)to, (uintptr_t)from, size, exec->stream);
        leave(mode);
    }
    return result == 0 ? GSC_OK : fail(err, result, "exec", cuda->device, "copy memory", "");
}

gsc_status gsc_cuda_wait(const gsc_exec *exec, gsc_error *err)
{
    const gsc_cuda *cuda = exec->context->data;
    int32_t mode, capturing = 0;
    int32_t result = enter(cuda, &mode);
    if (result == 0) {
        result = driver.stream_capturing(exec->stream, &capturing);
        if (result == 0 && !capturing)
            result = driver.stream_synchronize(exec->stream);
        leave(mode);
    }
    if (capturing || result == CAPTURE_IMPLICIT)
        return gsc_fail(err, GSC_ERROR_UNAVAILABLE, 0, -1, "exec.stream",
                        "is being captured, or another stream is and this is the legacy one: wait "
                        "for what the graph is launched on");
    return result == 0 ? GSC_OK
                       : fail(err, result, "exec", cuda->device, "wait for the stream", "");
}
