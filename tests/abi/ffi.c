/* SPDX-License-Identifier: MIT */
/*
 * A foreign client of the shared library that knows the signature table and nothing else: every
 * function with good arguments, with NULL in each place, with what no struct may hold, and with
 * structs of older and newer versions.
 */
#include <errno.h>
#include <fenv.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "foreign.h"

enum { OK = 0, ERROR_NULL = -1, ERROR_STRUCT_SIZE = -2, ERROR_UNAVAILABLE = -15 };

static int passed, failed;
static bool failing; /* the line under way has failed already */

static void complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    failing = true;
    printf("     ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

/* ---- what every call promises ---- */

static atomic_ulong allocations;

#if defined(__has_feature)
#define HAS_SANITIZER (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define HAS_SANITIZER 0
#endif
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) &&       \
    !HAS_SANITIZER
/* In the place of the C library's own for all of the process, the library under test included. */
extern void *__libc_malloc(size_t size), *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t size), *__libc_memalign(size_t to, size_t size);

#define COUNTED(name, parameters, call)                                                            \
    void *name parameters                                                                          \
    {                                                                                              \
        allocations++;                                                                             \
        return call;                                                                               \
    }
COUNTED(malloc, (size_t size), __libc_malloc(size))
COUNTED(calloc, (size_t n, size_t size), __libc_calloc(n, size))
COUNTED(realloc, (void *old, size_t size), __libc_realloc(old, size))
COUNTED(aligned_alloc, (size_t to, size_t size), __libc_memalign(to, size))

int posix_memalign(void **out, size_t alignment, size_t size)
{
    *out = aligned_alloc(alignment, size);
    return *out ? 0 : ENOMEM;
}
#endif

/* Rounding, and what else of the unit's settings there is; its status flags left out. */
static unsigned settings(void)
{
    unsigned control = 0;
#if defined(__x86_64__)
    control = _mm_getcsr() & ~0x3fu;
#endif
    return control << 16 | (unsigned)fegetround();
}

/* Those that make something, the one that starts the driver, and the one that compares. */
static bool may_allocate(const function *f)
{
    for (const argument *at = f->arguments; at->name; at++)
        if (at->pass == CREATE)
            return true;
    return strcmp(f->name, "gsc_cuda_start") == 0 || strcmp(f->name, "gsc_exec_compare") == 0;
}

/* A call under settings that no library would choose: it leaves them, and allocates nothing. */
static value watched_call(const function *f, const value *arguments)
{
    fenv_t usual;
    fegetenv(&usual);
    fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* subnormals are flushed, read and written */
#endif
    const unsigned before = settings();
    const unsigned long had = allocations;
    const value result = foreign_call(f, arguments);
    const unsigned long more = allocations - had;
    const unsigned after = settings();
    fesetenv(&usual);
    if (after != before)
        complain("the floating-point settings changed from %x to %x", before, after);
    if (more > 0 && !may_allocate(f))
        complain("allocated %lu times", more);
    return result;
}

/* Without which nothing above would be seen. */
static void check_watch(void)
{
    const unsigned long had = allocations;
    void *volatile memory = malloc(1);
    free(memory);
    if (allocations == had)
        printf("NOT RUN: whether calls allocate; a sanitizer has the place of malloc\n");
}

/* ---- calls ---- */

/* Returns whether a call with correct pointers can return this status. */
static bool acceptable(const function *f, int32_t status)
{
    if (strcmp(f->name, "gsc_context_create_cuda") == 0 || strcmp(f->name, "gsc_cuda_start") == 0)
        return status == OK || status == ERROR_UNAVAILABLE; /* no device here */
    return status == OK;
}

static void check_unwritten(const attempt *a, enum role role, const char *when)
{
    for (int i = 0; i < a->used; i++) {
        const block *b = &a->blocks[i];
        if (b->role == role && strcmp(b->argument, "scratch") != 0 &&
            memcmp(b->bytes, b->before, b->size) != 0)
            complain("%s: the memory of %s changed", when, b->argument);
    }
}

/* A call that succeeds writes the status of *err and nothing else of it. */
static void check_error_of_success(const attempt *a, const char *when)
{
    const int32_t ok = OK;
    for (int i = 0; i < a->used; i++)
        if (a->blocks[i].role == ERROR)
            memcpy(field_of(a->blocks[i].before, "gsc_error", "status"), &ok, sizeof ok);
    check_unwritten(a, ERROR, when);
}

/* Without a NULL: with one, a call may have nothing to write. */
static void check_written(const attempt *a)
{
    for (int i = 0; i < a->used; i++) {
        const block *b = &a->blocks[i];
        if (b->role == WRITTEN && memcmp(b->bytes, b->before, b->size) == 0)
            complain("good arguments: nothing was written to %s", b->argument);
    }
}

/* *err is always the last argument. */
static int error_position(const function *f)
{
    int last = 0;
    while (f->arguments[last + 1].name)
        last++;
    return last;
}

static void check_error(const attempt *a, const char *when, int32_t status, int null_at)
{
    void *error = a->arguments[error_position(a->function)].pointer;
    int32_t in_error, argument;
    uint32_t subject;
    if (!error)
        return;
    memcpy(&in_error, field_of(error, "gsc_error", "status"), 4);
    memcpy(&argument, field_of(error, "gsc_error", "argument"), 4);
    memcpy(&subject, field_of(error, "gsc_error", "subject_length"), 4);
    const char *name = field_of(error, "gsc_error", "name");
    const char *message = field_of(error, "gsc_error", "message");
    if (in_error != status)
        complain("%s: error.status is %d, %d was returned", when, in_error, status);
    if (status == ERROR_NULL && argument != null_at)
        complain("%s: error.argument is %d, not %d", when, argument, null_at);
    if (status == ERROR_NULL && strcmp(name, a->function->arguments[null_at].name) != 0)
        complain("%s: error.name is \"%s\"", when, name);
    if (!*message || !memchr(message, 0, find_field("gsc_error", "message")->count))
        complain("%s: error.message is no sentence", when);
    else if (subject && (subject >= strlen(message) || message[subject - 1] != ' ' ||
                         strncmp(message, name, strlen(name)) != 0))
        complain("%s: the first %u bytes of \"%s\" are no subject", when, subject, message);
}

/* A call that failed says why, wrote nothing, and fails alike for a caller who wants no details. */
static void check_failed(attempt *a, const char *when, int32_t status, int null_at)
{
    check_error(a, when, status, null_at);
    a->arguments[error_position(a->function)].pointer = NULL;
    const int32_t again = watched_call(a->function, a->arguments).s32;
    if (again != status)
        complain("%s: status %d, without error %d", when, status, again);
    check_unwritten(a, WRITTEN, when);
    check_unwritten(a, READ, when);
}

/* One call; `refused`: that it is for the NULL is what is expected. */
static void check_status_call(const function *f, int null_at, bool empty, bool refused)
{
    attempt a;
    char when[80] = "good arguments";
    if (null_at >= 0)
        snprintf(when, sizeof when, "%s = NULL%s", f->arguments[null_at].name,
                 empty ? " with a count of 0" : "");
    prepare(&a, f, null_at, empty);
    const int32_t status = watched_call(f, a.arguments).s32;
    if (refused ? status != ERROR_NULL : !acceptable(f, status))
        complain("%s: status %d", when, status);
    if (status == OK) {
        check_error_of_success(&a, when);
        check_unwritten(&a, READ, when);
        if (null_at < 0)
            check_written(&a);
    } else {
        check_failed(&a, when, status, null_at);
    }
    release(&a, status == OK);
}

/* A value that a struct must not hold. */
typedef struct wrong {
    const char *structure, *field;
    uint32_t word;  /* of an array */
    uint64_t value; /* its bits */
} wrong;

/* One or a few for each struct; tests/core has the rest. */
static const wrong wrongs[] = {
    {"gsc_policy", "init_scale", 0, UINT64_C(0xbff0000000000000)}, /* -1 */
    {"gsc_state", "good_steps", 0, UINT64_MAX},
    {"gsc_report", "elements", 0, UINT64_MAX},
    {"gsc_factor", "scale", 0, 0},
    {"gsc_tensor", "dtype", 0, 77},
    {"gsc_tensor_options", "want", 0, 8},
    {"gsc_cpu_options", "threads", 0, 0},
    {"gsc_exec", "flags", 0, 2},
    {"gsc_exec", "stream", 0, 8}, /* as the rest, of a GPU */
    {"gsc_exec", "workspace", 0, 8},
    {"gsc_exec", "workspace_size", 0, 8},
    {"gsc_entry", "kind", 0, 77},
    {"gsc_evidence", "loss_dtype", 0, 77},
    {0},
};

static block *block_of(attempt *a, int at)
{
    block *b = a->blocks;
    while (b->bytes != a->arguments[at].pointer)
        b++;
    return b;
}

/* A call with a wrong in the last struct of an argument. */
static void check_wrong_call(const function *f, int at, const wrong *w)
{
    attempt a;
    char when[80], expected[80], actual[80];
    const argument *argument = &f->arguments[at];
    const structure *s = find_structure(argument->type);
    const field *field = find_field(s->name, w->field);
    prepare(&a, f, -1, false);
    block *b = block_of(&a, at);
    const uint32_t last = (uint32_t)(b->size / s->size) - 1;
    const uint32_t size = (uint32_t)primitive(field->kind)->size;
    const size_t offset = last * s->size + field->offset + w->word * size;
    memcpy(b->bytes + offset, &w->value, size);
    memcpy(b->before + offset, &w->value, size);
    snprintf(when, sizeof when, "%s.%s[%u] = %llx", argument->name, w->field, w->word,
             (unsigned long long)w->value);
    const int32_t status = watched_call(f, a.arguments).s32;
    void *error = a.arguments[error_position(f)].pointer;
    if (status == OK) {
        complain("%s: is taken", when);
    } else {
        int64_t index;
        memcpy(&index, field_of(error, "gsc_error", "index"), 8);
        snprintf(expected, sizeof expected, "%s.%s, entry %d", argument->name, w->field,
                 argument->count < 0 ? -1 : (int)last);
        const char *name = field_of(error, "gsc_error", "name");
        const char *part = field_of(error, "gsc_error", "field");
        snprintf(actual, sizeof actual, "%s.%s, entry %d", name, part, (int)index);
        if (strcmp(expected, actual) != 0)
            complain("%s: %s is blamed", when, actual);
        check_failed(&a, when, status, -1);
    }
    release(&a, status == OK);
}

/*
 * A call of a client of another age: 8 bytes, which are filled, lie behind the older struct that
 * lacks them, or in the newer one. An older client's are none of the library's business; a newer
 * one's must be 0, and become 0 in what is written.
 */
static void check_age(const function *f, int at, bool is_older, int filled)
{
    enum { MORE = 8 };
    attempt a;
    char when[80];
    const argument *argument = &f->arguments[at];
    const uint32_t known = find_structure(argument->type)->size, start = known - is_older * MORE;
    const uint32_t size = is_older ? start : known + MORE;
    const unsigned char zeros[MORE] = {0};
    prepare(&a, f, -1, false);
    block *b = block_of(&a, at);
    b->size = start + MORE;
    b->bytes = realloc(b->bytes, b->size);
    b->before = realloc(b->before, b->size);
    memcpy(b->bytes, &size, sizeof size);
    memset(b->bytes + start, filled, MORE);
    memcpy(b->before, b->bytes, b->size);
    a.arguments[at].pointer = b->bytes;
    snprintf(when, sizeof when, "%s of %u bytes, then %u", argument->name, size, filled);
    const int32_t status = watched_call(f, a.arguments).s32;
    const bool is_refused = !is_older && filled && argument->pass == IN;
    if (is_refused ? status != ERROR_STRUCT_SIZE : !acceptable(f, status))
        complain("%s: status %d", when, status);
    if (status != OK)
        check_failed(&a, when, status, -1);
    else if (memcmp(b->bytes + start, is_older ? b->before + start : zeros, MORE) != 0)
        complain("%s: they became something else", when);
    check_unwritten(&a, READ, when);
    release(&a, status == OK);
}

/* A size that no struct has, a word of each array that must be 0, and the wrongs above. */
static int check_wrongs(const function *f, int at)
{
    static const uint32_t sizes[] = {0, 7, 42, UINT32_MAX};
    int calls = 0;
    const structure *s = find_structure(f->arguments[at].type);
    if (!s)
        return 0;
    for (int i = 0; s->grows && i < 4; i++, calls++)
        check_wrong_call(f, at, &(wrong){s->name, "struct_size", 0, sizes[i]});
    if (s->grows) {
        if (s->size > 8)
            check_age(f, at, true, 0xA5);
        check_age(f, at, false, 0);
        check_age(f, at, false, 1);
        calls += 2 + (s->size > 8);
    }
    if (f->arguments[at].pass != IN)
        return calls;
    for (const field *word = s->fields; word->name; word++)
        for (uint32_t i = 0; strcmp(word->name, "reserved") == 0 && i < word->count; i++, calls++)
            check_wrong_call(f, at, &(wrong){s->name, word->name, i, 1});
    for (const wrong *w = wrongs; w->structure; w++)
        if (strcmp(w->structure, s->name) == 0) {
            check_wrong_call(f, at, w);
            calls++;
        }
    return calls;
}

static int check_status_function(const function *f)
{
    int calls = 1;
    check_status_call(f, -1, false, false);
    for (int i = 0; f->arguments[i].name; i++) {
        const argument *at = &f->arguments[i];
        if (at->kind != POINTER)
            continue;
        check_status_call(f, i, false, at->nullable != ALWAYS);
        calls += 1 + check_wrongs(f, i);
        if (at->count < 0 || at->nullable == ALWAYS)
            continue;
        check_status_call(f, i, true, at->nullable == NEVER);
        calls++;
    }
    return calls;
}

/* A function that returns no status but a string, a number or nothing. */
static int check_plain_function(const function *f)
{
    attempt a;
    int calls = 1;
    prepare(&a, f, -1, false);
    const value result = watched_call(f, a.arguments);
    release(&a, false);
    if (f->result == POINTER && !result.pointer)
        complain("returned no string");
    if (f->result == U32 && result.u32 == 0)
        complain("returned 0");
    for (int i = 0; f->arguments[i].name; i++)
        if (f->arguments[i].kind == POINTER && f->arguments[i].nullable == ALWAYS) {
            prepare(&a, f, i, false);
            watched_call(f, a.arguments);
            release(&a, false);
            calls++;
        }
    return calls;
}

static void check_function(const function *f)
{
    const int calls = f->result == S32 ? check_status_function(f) : check_plain_function(f);
    printf("%s %s: %d calls\n", failing ? "FAIL" : "ok  ", f->name, calls);
    *(failing ? &failed : &passed) += 1;
    failing = false;
}

int main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "usage: ffi LIBRARY\n");
        return 255;
    }
    setvbuf(stdout, NULL, _IOLBF, 1 << 12); /* what a crash leaves behind says where it was */
    foreign_open(arguments[1]);
    check_watch();
    for (const function *f = functions; f->name; f++)
        check_function(f);
    printf("%d passed, %d failed\n", passed, failed);
    return failed < 255 ? failed : 255;
}
