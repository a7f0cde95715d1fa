/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "standin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Declares every function that is defined below, so that the lists and the definitions agree. */
#define EXPORT                     __attribute__((visibility("default")))
#define X(name, symbol, signature) EXPORT int32_t symbol signature;
#include "cuda/driver.def"
#include "device.def"
#undef X

/* Results: the name behind CUDA_ERROR_, the number, the text. */
#define ERRORS(X)                                                                                  \
    X(INVALID_VALUE, 1, "invalid argument")                                                        \
    X(OUT_OF_MEMORY, 2, "out of memory")                                                           \
    X(NOT_INITIALIZED, 3, "initialization error")                                                  \
    X(NO_DEVICE, 100, "no CUDA-capable device is detected")                                        \
    X(INVALID_DEVICE, 101, "invalid device ordinal")                                               \
    X(INVALID_CONTEXT, 201, "invalid device context")                                              \
    X(INVALID_PTX, 218, "a PTX JIT compilation failed")                                            \
    X(UNSUPPORTED_PTX_VERSION, 222,                                                                \
      "the provided PTX was compiled with an unsupported toolchain.")                              \
    X(INVALID_HANDLE, 400, "invalid resource handle")                                              \
    X(NOT_FOUND, 500, "named symbol not found")                                                    \
    X(LAUNCH_FAILED, 719, "unspecified launch failure")                                            \
    X(STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing")         \
    X(STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture")  \
    X(STREAM_CAPTURE_IMPLICIT, 906,                                                                \
      "operation would make the legacy stream depend on a capturing blocking stream")

enum { OK = 0, CAPTURE_RELAXED = 2, MAX_DEVICES = 4, MAX_DEPTH = 16, MAX_NODES = 256 };
enum { MAX_FUNCTIONS = 64 };
#define NUMBER(name, number, text) name = number,
enum { ERRORS(NUMBER) };

typedef struct context {
    atomic_int retained;
} context;

typedef struct function {
    const struct module *module;
    char name[64];
    uint64_t size; /* of its parameter */
} function;

typedef struct module {
    struct module *next; /* of all, so that they stay reachable: a forked process unloads none */
    const context *context;
    uint64_t parameters; /* bytes that a kernel may have of them */
    uint32_t count;
    function functions[MAX_FUNCTIONS]; /* that were asked for */
    char image[];
} module;

typedef struct work {
    const function *function; /* NULL: a copy, with `copied` as its parameter */
    uint32_t blocks, threads;
    uint64_t size;
    const void *parameter;
} work;

typedef struct node {
    struct graph *of;
    work work;
    unsigned char parameter[]; /* as it was when captured */
} node;

typedef struct copied {
    uint64_t to, from, bytes;
} copied;

typedef struct graph {
    node *nodes[MAX_NODES];
    uint64_t count;
    bool broken;
} graph;

typedef struct stream {
    bool is_non_blocking; /* and so independent of the legacy stream */
    graph *captured;      /* NULL: none */
} stream;

static standin state = {.version = 12040, .devices = 1, .capability = 75};
static context contexts[MAX_DEVICES];
static module *modules;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of modules, memory and work */
static pid_t process;                                    /* that started the driver */
static graph *_Atomic capture;        /* that is under way; one at a time is enough here */
static atomic_bool is_legacy_refused; /* while a stream that waits for it is captured */
static _Thread_local int32_t capture_mode;
static _Thread_local struct { /* the contexts that were pushed */
    context *contexts[MAX_DEPTH];
    int depth;
} stack;

EXPORT standin *standin_state(void)
{
    return &state;
}

EXPORT void standin_devices(int32_t devices)
{
    state.devices = devices;
}

EXPORT int32_t standin_allocated(void)
{
    return state.allocated;
}

EXPORT uint64_t standin_stream(void)
{
    return (uint64_t)(uintptr_t)state.stream;
}

EXPORT void *standin_current(void)
{
    return stack.depth ? stack.contexts[stack.depth - 1] : NULL;
}

EXPORT int standin_depth(void)
{
    return stack.depth;
}

static int32_t told_to_fail(const char *symbol)
{
    if (!state.failing || strcmp(state.failing, symbol) != 0)
        return OK;
    return state.good_calls-- > 0 ? OK : state.failure;
}

/* Begins every function except the first three. */
static int32_t enter(const char *symbol)
{
    if (process != getpid()) {
        state.after_fork += process != 0;
        return NOT_INITIALIZED;
    }
    return told_to_fail(symbol);
}

#define ENTER(...)                                                                                 \
    do {                                                                                           \
        int32_t result_ = enter(__func__);                                                         \
        if (result_ != OK)                                                                         \
            return result_;                                                                        \
        if (!(__VA_ARGS__))                                                                        \
            return INVALID_VALUE;                                                                  \
    } while (0)

/* A call that is forbidden while a stream is captured also breaks the capture, except in that mode.
 */
#define FORBID_CAPTURE()                                                                           \
    do {                                                                                           \
        graph *under_way = capture;                                                                \
        if (under_way && capture_mode != CAPTURE_RELAXED) {                                        \
            under_way->broken = true;                                                              \
            return STREAM_CAPTURE_UNSUPPORTED;                                                     \
        }                                                                                          \
    } while (0)

static int32_t make(void **out, uint64_t bytes)
{
    *out = calloc(1, bytes);
    return *out ? OK : OUT_OF_MEMORY;
}

/* ---- the driver and its devices ---- */

int32_t cuGetErrorName(int32_t result, const char **name)
{
#define NAME(word, number, text) result == number ? "CUDA_ERROR_" #word:
    return (*name = ERRORS(NAME) NULL) ? OK : INVALID_VALUE;
}

int32_t cuGetErrorString(int32_t result, const char **text)
{
#define TEXT(word, number, text) result == number ? text:
    return (*text = ERRORS(TEXT) NULL) ? OK : INVALID_VALUE;
}

int32_t cuDriverGetVersion(int32_t *version)
{
    *version = state.version;
    return told_to_fail(__func__);
}

int32_t cuInit(uint32_t flags)
{
    int32_t result = process && process != getpid() ? NOT_INITIALIZED : told_to_fail(__func__);
    if (result == OK)
        result = flags ? INVALID_VALUE : state.devices == 0 ? NO_DEVICE : OK;
    if (result == OK)
        process = getpid();
    return result;
}

int32_t cuDeviceGetCount(int32_t *count)
{
    ENTER(count);
    *count = state.devices;
    return OK;
}

int32_t cuDeviceGet(int32_t *device, int32_t ordinal)
{
    ENTER(device);
    if (ordinal < 0 || ordinal >= state.devices)
        return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}

int32_t cuDeviceGetAttribute(int32_t *value, int32_t attribute, int32_t device)
{
    ENTER(value && device >= 0 && device < state.devices);
    switch (attribute) {
    case 16: /* processors: few, so that short lists have more chunks than blocks */
        *value = 3;
        return OK;
    case 75: /* major and minor compute capability */
        *value = state.capability / 10;
        return OK;
    case 76:
        *value = state.capability % 10;
        return OK;
    default:
        return INVALID_VALUE;
    }
}

int32_t cuDeviceGetName(char *name, int32_t bytes, int32_t device)
{
    ENTER(device >= 0 && device < state.devices);
    snprintf(name, (size_t)bytes, "stand-in");
    return OK;
}

int32_t cuDevicePrimaryCtxRetain(void **out, int32_t device)
{
    ENTER(device >= 0 && device < state.devices);
    contexts[device].retained++;
    state.retained++;
    *out = &contexts[device];
    return OK;
}

int32_t cuDevicePrimaryCtxRelease_v2(int32_t device)
{
    ENTER(device >= 0 && device < state.devices);
    if (contexts[device].retained == 0)
        return INVALID_CONTEXT;
    contexts[device].retained--;
    state.retained--;
    return OK;
}

int32_t cuCtxPushCurrent_v2(void *pushed)
{
    ENTER(pushed && stack.depth < MAX_DEPTH);
    context *c = pushed;
    if (c->retained == 0)
        return INVALID_CONTEXT;
    stack.contexts[stack.depth++] = c;
    return OK;
}

int32_t cuCtxPopCurrent_v2(void **popped)
{
    ENTER(popped);
    if (stack.depth == 0)
        return INVALID_CONTEXT;
    *popped = stack.contexts[--stack.depth];
    return OK;
}

int32_t cuCtxCreate_v2(void **out, uint32_t flags, int32_t device)
{
    ENTER(out && flags == 0 && device >= 0 && device < state.devices && stack.depth < MAX_DEPTH);
    if (make(out, sizeof(context)) != OK)
        return OUT_OF_MEMORY;
    ((context *)*out)->retained = 1;
    stack.contexts[stack.depth++] = *out;
    return OK;
}

int32_t cuCtxGetCurrent(void **out)
{
    ENTER(out);
    *out = standin_current();
    return OK;
}

/* Where it is current it is so no more. */
int32_t cuCtxDestroy_v2(void *destroyed)
{
    ENTER(destroyed);
    stack.depth -= standin_current() == destroyed;
    free(destroyed);
    return OK;
}

/* ---- modules ---- */

int32_t cuModuleLoadDataEx(void **out, const void *image, uint32_t options, int32_t *option,
                           void **value)
{
    int32_t told = enter(__func__);
    if (told != OK) {
        for (uint32_t i = 0; state.log && i + 1 < options; i++)
            if (option[i] == 5 && option[i + 1] == 6) /* the log for errors and its size */
                snprintf(value[i], (size_t)(uintptr_t)value[i + 1], "%s", state.log);
        return told;
    }
    FORBID_CAPTURE();
    if (!standin_current())
        return INVALID_CONTEXT;
    /* CUDA 11.0 brought PTX 7.0, 12.1 8.1 and so on. */
    int32_t major, minor;
    if (sscanf(image, ".version %d.%d", &major, &minor) != 2)
        return INVALID_PTX;
    const int32_t version = 10 * major + minor;
    const int32_t compiler = state.compiler ? state.compiler : state.version;
    if (version > compiler / 100 - 40 + compiler / 10 % 10)
        return UNSUPPORTED_PTX_VERSION;
    module *m;
    if (make((void **)&m, sizeof *m + strlen(image) + 1) != OK)
        return OUT_OF_MEMORY;
    m->context = standin_current();
    m->parameters = version < 81 ? 4352 : 32764;
    strcpy(m->image, image);
    pthread_mutex_lock(&lock);
    m->next = modules;
    modules = m;
    pthread_mutex_unlock(&lock);
    state.loaded++;
    state.loads++;
    *out = m;
    return OK;
}

int32_t cuModuleUnload(void *unloaded)
{
    ENTER(unloaded);
    FORBID_CAPTURE();
    module *m = unloaded;
    if (m->context != standin_current())
        return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    module **at = &modules;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    pthread_mutex_unlock(&lock);
    state.loaded--;
    free(m);
    return OK;
}

/* The text behind the name of an entry; NULL if the PTX has none of this name. */
static const char *find_entry(const char *text, const char *name)
{
    size_t length = strlen(name);
    while ((text = strstr(text, ".entry"))) {
        text += strlen(".entry");
        text += strspn(text, " \t\n");
        if (strncmp(text, name, length) == 0 && strchr(" \t\n(", text[length]))
            return text + length;
    }
    return NULL;
}

int32_t cuModuleGetFunction(void **out, void *from, const char *name)
{
    ENTER(from && name);
    module *m = from;
    function *f = &m->functions[m->count];
    const char *parameters = find_entry(m->image, name);
    if (!parameters || strlen(name) >= sizeof f->name || m->count == MAX_FUNCTIONS)
        return NOT_FOUND;
    const char *size = strchr(parameters, '['), *end = strchr(parameters, ')');
    *f = (function){.module = m, .size = size && size < end ? strtoull(size + 1, NULL, 10) : 8};
    if (f->size > m->parameters) /* which a real driver sees when it loads the module */
        return INVALID_PTX;
    strcpy(f->name, name);
    m->count++;
    *out = f;
    return OK;
}

int32_t cuFuncLoad(void *loaded)
{
    ENTER(loaded);
    FORBID_CAPTURE();
    return OK;
}

/* ---- work ---- */

/* Returns a stream. The legacy stream is NULL or 1, each thread's own is 2. */
static stream *stream_of(void *handle)
{
    return (uintptr_t)handle <= 2 ? NULL : handle;
}

/* Memory of the devices: a block has pages of its own, and its addresses are not used again. */
static struct {
    unsigned char *start;
    uint64_t used;
} pages;
enum { PAGE = 1 << 12 };

/* Nobody reaches it but what runs on a device. */
static void reach(bool reached)
{
    mprotect(pages.start, pages.used, reached ? PROT_READ | PROT_WRITE : PROT_NONE);
}

/* The devices do one thing after another. */
static void run(const work *w)
{
    const copied *c = w->parameter;
    pthread_mutex_lock(&lock);
    reach(true);
    if (!w->function)
        memmove((void *)(uintptr_t)c->to, (const void *)(uintptr_t)c->from, c->bytes);
    else if (state.execute)
        state.execute(w->function->name, w->blocks, w->threads, w->parameter);
    reach(false);
    pthread_mutex_unlock(&lock);
}

static int32_t record(graph *to, const work *w)
{
    node *n;
    if (to->broken)
        return STREAM_CAPTURE_INVALIDATED;
    if (to->count == MAX_NODES || make((void **)&n, sizeof *n + w->size) != OK)
        return OUT_OF_MEMORY;
    *n = (node){to, *w};
    n->work.parameter = memcpy(n->parameter, w->parameter, w->size);
    to->nodes[to->count++] = n;
    return OK;
}

static int32_t enqueue(void *on, const work *w)
{
    const stream *s = stream_of(on);
    if (s && s->captured)
        return record(s->captured, w);
    if (!s && is_legacy_refused)
        return STREAM_CAPTURE_IMPLICIT;
    run(w);
    return OK;
}

int32_t cuLaunchKernel(void *launched, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
                       uint32_t block_x, uint32_t block_y, uint32_t block_z, uint32_t shared_bytes,
                       void *on, void **parameters, void **extra)
{
    ENTER(launched && grid_x && grid_y == 1 && grid_z == 1 && block_x && block_x <= 1024 &&
          block_y == 1 && block_z == 1 && shared_bytes <= 48 << 10 && parameters && !extra);
    const function *f = launched;
    if (f->module->context != standin_current())
        return INVALID_HANDLE;
    state.launches++;
    snprintf(state.kernel, sizeof state.kernel, "%s", f->name);
    state.blocks = grid_x;
    state.threads = block_x;
    state.stream = on;
    return enqueue(on, &(work){f, grid_x, block_x, f->size, parameters[0]});
}

/* Blocks of memory by their addresses: of the device, or of the host for devices. */
static struct block {
    void *memory;
    uint64_t bytes;
    bool of_host;
    int32_t device;
} blocks[1 << 12], *unused_blocks = blocks;
enum { BLOCKS = sizeof blocks / sizeof *blocks };

/* The block that has this byte; of NULL one that is free. */
static struct block *block_of(const void *byte)
{
    struct block *b = blocks;
    while (b < unused_blocks &&
           !(b->memory ? (uintptr_t)byte - (uintptr_t)b->memory < b->bytes : !byte))
        b++;
    return b < unused_blocks || (!byte && b < blocks + BLOCKS) ? b : NULL;
}

EXPORT bool standin_block(uint64_t address, uint64_t *start, uint64_t *end)
{
    const struct block *b = address ? block_of((const void *)(uintptr_t)address) : NULL;
    *start = b ? (uint64_t)(uintptr_t)b->memory : 0;
    *end = b ? *start + b->bytes : 0;
    return b != NULL;
}

EXPORT uint64_t standin_pages(void)
{
    return (uint64_t)(uintptr_t)pages.start;
}

/* Full of garbage. */
static void *device_block(uint64_t bytes)
{
    const uint64_t size = (bytes + PAGE - 1) / PAGE * PAGE;
    if (!pages.start)
        pages.start = mmap(NULL, STANDIN_MEMORY, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages.start == MAP_FAILED || size > STANDIN_MEMORY - pages.used)
        return NULL;
    unsigned char *made = pages.start + pages.used;
    pages.used += size;
    reach(true);
    memset(made, 0xa5, bytes);
    reach(false);
    return made;
}

static int32_t allocate(void **out, uint64_t bytes, bool of_host)
{
    FORBID_CAPTURE();
    if (!standin_current())
        return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    /* More than any device has is refused here: a sanitizer's allocator would end the process. */
    struct block *b = bytes >> 39 ? NULL : block_of(NULL);
    *out = !b        ? NULL
           : of_host ? aligned_alloc(256, (bytes + 255) / 256 * 256)
                     : device_block(bytes);
    if (*out) {
        unused_blocks += b == unused_blocks;
        *b = (struct block){*out, bytes, of_host,
                            (int32_t)((context *)standin_current() - contexts)};
        state.allocated++;
    }
    pthread_mutex_unlock(&lock);
    return *out ? OK : OUT_OF_MEMORY;
}

static int32_t deallocate(void *memory, bool of_host)
{
    FORBID_CAPTURE();
    pthread_mutex_lock(&lock);
    struct block *b = block_of(memory);
    const bool is_known = b && b->memory == memory && b->of_host == of_host;
    if (is_known) {
        if (of_host)
            free(memory);
        else
            madvise(memory, b->bytes, MADV_DONTNEED);
        b->memory = NULL;
        state.allocated--;
    }
    pthread_mutex_unlock(&lock);
    return is_known ? OK : INVALID_VALUE;
}

int32_t cuMemHostAlloc(void **memory, uint64_t bytes, uint32_t flags)
{
    ENTER(memory && bytes && flags <= 7);
    return allocate(memory, bytes, true);
}

int32_t cuMemAlloc_v2(uint64_t *address, uint64_t bytes)
{
    void *memory = NULL;
    ENTER(address && bytes);
    const int32_t result = allocate(&memory, bytes, false);
    *address = (uint64_t)(uintptr_t)memory;
    return result;
}

int32_t cuMemFree_v2(uint64_t address)
{
    ENTER(address);
    return deallocate((void *)(uintptr_t)address, false);
}

int32_t cuMemFreeHost(void *memory)
{
    ENTER(memory);
    return deallocate(memory, true);
}

int32_t cuPointerGetAttribute(void *value, int32_t attribute, uint64_t address)
{
    enum { TYPE = 2 /* 1 host, 2 device */, ORDINAL = 9 };
    ENTER(value && (attribute == TYPE || attribute == ORDINAL));
    pthread_mutex_lock(&lock);
    const struct block *b = block_of((void *)(uintptr_t)address);
    if (b)
        *(int32_t *)value = attribute == ORDINAL ? b->device : b->of_host ? 1 : 2;
    pthread_mutex_unlock(&lock);
    return b ? OK : INVALID_VALUE;
}

int32_t cuMemcpyAsync(uint64_t to, uint64_t from, uint64_t bytes, void *on)
{
    ENTER(to && from && bytes);
    if (!standin_current())
        return INVALID_CONTEXT;
    state.copies++;
    return enqueue(on, &(work){NULL, 0, 0, sizeof(copied), &(copied){to, from, bytes}});
}

int32_t cuStreamCreate(void **out, uint32_t flags)
{
    ENTER(out && flags <= 1);
    if (make(out, 1 << 20) != OK) /* of that size it is mapped, above 4 GiB, as a test wants it */
        return OUT_OF_MEMORY;
    ((stream *)*out)->is_non_blocking = flags;
    return OK;
}

int32_t cuStreamSynchronize(void *on)
{
    ENTER(true);
    const stream *s = stream_of(on);
    if (!s && !standin_current())
        return INVALID_CONTEXT;
    if (s && s->captured) { /* in any mode */
        s->captured->broken = true;
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    FORBID_CAPTURE();
    return OK;
}

/* ---- graphs ---- */

/* 1: its capture is under way, 2: it is broken. */
int32_t cuStreamIsCapturing(void *on, int32_t *status)
{
    ENTER(status);
    const stream *s = stream_of(on);
    if (!s && !standin_current())
        return INVALID_CONTEXT;
    if (!s && is_legacy_refused)
        return STREAM_CAPTURE_IMPLICIT;
    *status = s && s->captured ? 1 + s->captured->broken : 0;
    return OK;
}

int32_t cuThreadExchangeStreamCaptureMode(int32_t *mode)
{
    ENTER(mode && *mode >= 0 && *mode <= CAPTURE_RELAXED);
    const int32_t before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return OK;
}

int32_t cuStreamBeginCapture_v2(void *on, int32_t mode)
{
    ENTER(on && mode >= 0 && mode <= 2);
    FORBID_CAPTURE();
    stream *s = on;
    if (make((void **)&s->captured, sizeof *s->captured) != OK)
        return OUT_OF_MEMORY;
    capture = s->captured;
    is_legacy_refused = !s->is_non_blocking;
    return OK;
}

int32_t cuStreamEndCapture(void *on, void **out)
{
    ENTER(on && out);
    stream *s = on;
    if (!s->captured)
        return INVALID_VALUE;
    graph *g = s->captured;
    s->captured = NULL;
    capture = NULL;
    is_legacy_refused = false;
    if (g->broken) {
        *out = NULL;
        (void)cuGraphDestroy(g);
        return STREAM_CAPTURE_INVALIDATED;
    }
    *out = g;
    return OK;
}

int32_t cuGraphGetNodes(void *of, void **nodes, uint64_t *count)
{
    ENTER(of && count);
    const graph *g = of;
    if (nodes)
        memcpy(nodes, g->nodes, (g->count < *count ? g->count : *count) * sizeof *nodes);
    *count = g->count;
    return OK;
}

int32_t cuGraphNodeGetType(void *of, int32_t *type)
{
    ENTER(of && type);
    *type = ((const node *)of)->work.function ? 0 : 1; /* a kernel, a copy */
    return OK;
}

int32_t cuGraphDestroyNode(void *destroyed)
{
    ENTER(destroyed);
    graph *g = ((node *)destroyed)->of;
    uint64_t at = 0;
    while (g->nodes[at] != destroyed)
        at++;
    memmove(g->nodes + at, g->nodes + at + 1, (--g->count - at) * sizeof *g->nodes);
    free(destroyed);
    return OK;
}

/* An executable graph is a copy: the graph may be destroyed first. */
int32_t cuGraphInstantiateWithFlags(void **out, void *from, uint64_t flags)
{
    ENTER(out && from && flags == 0);
    graph *g;
    int32_t result = make((void **)&g, sizeof *g);
    for (uint64_t i = 0; i < ((graph *)from)->count && result == OK; i++)
        result = record(g, &((graph *)from)->nodes[i]->work);
    *out = g;
    return result;
}

int32_t cuGraphLaunch(void *executable, void *on)
{
    ENTER(executable);
    (void)on;
    for (uint64_t i = 0; i < ((graph *)executable)->count; i++)
        run(&((graph *)executable)->nodes[i]->work);
    return OK;
}

int32_t cuGraphDestroy(void *destroyed)
{
    ENTER(destroyed);
    for (uint64_t i = 0; i < ((graph *)destroyed)->count; i++)
        free(((graph *)destroyed)->nodes[i]);
    free(destroyed);
    return OK;
}

int32_t cuGraphExecDestroy(void *executable)
{
    return cuGraphDestroy(executable);
}

/* ---- events ---- */

int32_t cuEventCreate(void **out, uint32_t flags)
{
    ENTER(out && flags == 0);
    return make(out, sizeof(double));
}

int32_t cuEventRecord(void *event, void *on)
{
    struct timespec now;
    ENTER(event && clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    (void)on;
    *(double *)event = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
    return OK;
}

int32_t cuEventSynchronize(void *event)
{
    ENTER(event);
    return OK;
}

int32_t cuEventElapsedTime(float *milliseconds, void *start, void *end)
{
    ENTER(milliseconds && start && end);
    *milliseconds = (float)(*(double *)end - *(double *)start);
    return OK;
}

#define FREES(symbol)                                                                              \
    int32_t symbol(void *freed)                                                                    \
    {                                                                                              \
        ENTER(freed);                                                                              \
        free(freed);                                                                               \
        return OK;                                                                                 \
    }
FREES(cuEventDestroy_v2)
FREES(cuStreamDestroy_v2)
