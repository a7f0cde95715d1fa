/* SPDX-License-Identifier: MIT */
/*
 * Shared by the generated functions of gradscaler_nif.c: terms to C and back, and errors. Written
 * by hand: this is about the BEAM, not about the ABI.
 *
 * A get_* function converts one argument; where it cannot, it fills call->err, as the library does
 * for what it refuses, and returns false. Tensors of the caller are read where they lie, but
 * structs are copied out of binaries: a part of a binary has any alignment, and a device sees only
 * memory of its own.
 */
#ifndef GSC_NIF_TERMS_H
#define GSC_NIF_TERMS_H

#include <erl_nif.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <gradscaler_cuda.h>

enum { SLAB_BYTES = 1024 * 1024, SHARED_BYTES = 64 * 1024, MOST_RESULTS = 8 };

/* Memory that only one call at a time uses; `next` lies behind it. */
struct block {
    struct block *next;
    size_t size, used;
    unsigned char *data;
};

/*
 * A resource: a context of the library, and memory of it for what calls need beside their tensors.
 * Calls on one device take turns. `sees_host` says that its memory is host memory, as for threads.
 */
struct device {
    gsc_context *context;
    bool sees_host;
    ErlNifMutex *turn;
    struct block *blocks; /* host memory that it sees, for structs; kept for later calls */
    void *workspace;
    uint64_t workspace_size;
};

/* A resource: memory of a device, which lives at least as long. */
struct memory {
    struct device *device;
    void *data; /* NULL once it is freed; changed only in the device's turn */
    uint64_t size;
};

/* One call: its tensors, and what went wrong. */
struct call {
    ErlNifEnv *env;
    struct device *device; /* the call has its turn on it */
    const gsc_exec *exec;  /* NULL without a device */
    gsc_exec own;          /* what it points to, else */
    struct block *blocks;  /* host memory, freed with the call */
    gsc_tensor *in, *out;
    ERL_NIF_TERM *binaries; /* which `out` points into; there are `made` of them */
    uint64_t n, made;
    size_t used;
    _Alignas(8) unsigned char local[512];
    gsc_error err;
};

/* Memory that the library writes: in a new binary, or first in memory that the device sees. */
struct result {
    void *data;
    size_t size;
    ERL_NIF_TERM term;
};

static struct {
    ERL_NIF_TERM ok, error, nil, dirty, yes, no, infinity, neg_infinity, nan;
} atoms;
static ErlNifResourceType *device_type, *memory_type;

/* ---- errors and results ---- */

/* Fills call->err as the library would; false, so that a check is one return statement. `name` is
 * an argument's field, `argument.field`, or empty. */
__attribute__((format(printf, 6, 7))) static bool refuse(struct call *call, gsc_status status,
                                                         int argument, int64_t index,
                                                         const char *name, const char *format, ...)
{
    gsc_error *err = &call->err;
    const char *field = strchr(name, '.');
    int length = field ? (int)(field - name) : (int)strlen(name), subject;
    *err = (gsc_error){.status = status, .argument = argument, .index = index};
    err->value = err->low = err->high = NAN;
    snprintf(err->name, sizeof err->name, "%.*s", length, name);
    snprintf(err->field, sizeof err->field, "%s", field ? field + 1 : "");
    if (index < 0)
        subject = snprintf(err->message, sizeof err->message, "%s%s", name, *name ? " " : "");
    else
        subject = snprintf(err->message, sizeof err->message, "%s[%lld] ", name, (long long)index);
    err->subject_length = (uint32_t)subject;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(err->message + subject, sizeof err->message - (size_t)subject, format, arguments);
    va_end(arguments);
    return false;
}

static ERL_NIF_TERM make_bytes(ErlNifEnv *env, const void *bytes, size_t size)
{
    ERL_NIF_TERM term;
    memcpy(enif_make_new_binary(env, size, &term), bytes, size);
    return term;
}

static ERL_NIF_TERM make_string(ErlNifEnv *env, const char *string)
{
    return string ? make_bytes(env, string, strlen(string)) : atoms.nil;
}

static inline ERL_NIF_TERM make_double(ErlNifEnv *env, double x)
{
    if (isfinite(x))
        return enif_make_double(env, x);
    return isnan(x) ? atoms.nan : x > 0 ? atoms.infinity : atoms.neg_infinity;
}

static ERL_NIF_TERM make_map(ErlNifEnv *env, ERL_NIF_TERM keys[], ERL_NIF_TERM values[], size_t n)
{
    ERL_NIF_TERM map;
    enif_make_map_from_arrays(env, keys, values, n, &map);
    return map;
}

static ERL_NIF_TERM make_error(ErlNifEnv *env, const gsc_error *from); /* generated */

/* Ends the call: others may have the device, and what get_* allocated is freed. */
static void release(struct call *call)
{
    for (struct block *block = call->blocks, *next; block; block = next) {
        next = block->next;
        enif_free(block);
    }
    enif_free(call->in); /* the one allocation of allocate() */
    if (call->device)
        enif_mutex_unlock(call->device->turn);
}

static ERL_NIF_TERM failed(struct call *call)
{
    ErlNifEnv *env = call->env;
    release(call);
    return enif_make_tuple2(env, atoms.error, make_error(env, &call->err));
}

/* :ok, or {:ok, terms...} */
static ERL_NIF_TERM done(struct call *call, const ERL_NIF_TERM *terms, unsigned count)
{
    ERL_NIF_TERM tuple[1 + MOST_RESULTS] = {atoms.ok};
    for (unsigned i = 0; i < count; i++)
        tuple[1 + i] = terms[i];
    release(call);
    return count ? enif_make_tuple_from_array(call->env, tuple, 1 + count) : atoms.ok;
}

/* ---- memory for structs ---- */

static bool out_of_memory(struct call *call)
{
    return refuse(call, GSC_ERROR_MEMORY, -1, -1, "", "the call does not fit into memory");
}

/* Returns whether the call's structs are memory that only a device sees. */
static bool apart(const struct call *call)
{
    return call->device && !call->device->sees_host;
}

/* Memory for a struct of the call, where the library sees it; NULL where there is none. */
static void *room(struct call *call, size_t size)
{
    bool shared = apart(call);
    struct block **blocks = shared ? &call->device->blocks : &call->blocks, *block = *blocks;
    void *data;
    size = (size + 7) & ~(size_t)7;
    if (!shared && size <= sizeof call->local - call->used) {
        call->used += size;
        return call->local + call->used - size;
    }
    while (block && block->size - block->used < size)
        block = block->next;
    if (!block) {
        size_t bytes = shared && size < SHARED_BYTES ? SHARED_BYTES : size;
        block = enif_alloc(sizeof *block + (shared ? 0 : bytes));
        if (!block)
            return (void)out_of_memory(call), NULL;
        data = block + 1;
        if (shared && gsc_memory_create(call->device->context, GSC_MEMORY_HOST, bytes, &data,
                                        &call->err) != GSC_OK) {
            enif_free(block);
            return NULL;
        }
        *block = (struct block){*blocks, bytes, 0, data};
        *blocks = block;
    }
    block->used += size;
    return block->data + block->used - size;
}

/* Memory for what the library writes. */
static inline bool make_room(struct call *call, size_t size, struct result *result)
{
    result->size = size;
    result->data =
        apart(call) ? room(call, size) : enif_make_new_binary(call->env, size, &result->term);
    if (!result->data && !call->err.status)
        out_of_memory(call);
    return result->data;
}

static inline ERL_NIF_TERM make_result(struct call *call, const struct result *result)
{
    if (!result->data)
        return atoms.nil;
    return apart(call) ? make_bytes(call->env, result->data, result->size) : result->term;
}

/* Returns whether the work is done; calls on a device only enqueue it. */
static inline bool finish(struct call *call)
{
    return !apart(call) || gsc_exec_wait(call->exec, &call->err) == GSC_OK;
}

/* ---- numbers, strings, structs ---- */

static bool is_nil(ERL_NIF_TERM term)
{
    return enif_is_identical(term, atoms.nil);
}

/* get_int8_t(call, term, argument, name, &value) and so on, and make_int8_t(env, value). */
#define INTEGER(type, low, high)                                                                   \
    static inline bool get_##type(struct call *call, ERL_NIF_TERM term, int argument,              \
                                  const char *name, type *value)                                   \
    {                                                                                              \
        ErlNifSInt64 x;                                                                            \
        *value = 0;                                                                                \
        if (!enif_get_int64(call->env, term, &x) || x < (low) || x > (high))                       \
            return refuse(call, GSC_ERROR_VALUE, argument, -1, name,                               \
                          "is not an integer from %lld to %lld", (long long)(low),                 \
                          (long long)(high));                                                      \
        *value = (type)x;                                                                          \
        return true;                                                                               \
    }                                                                                              \
    static inline ERL_NIF_TERM make_##type(ErlNifEnv *env, type value)                             \
    {                                                                                              \
        return enif_make_int64(env, value);                                                        \
    }
INTEGER(int8_t, INT8_MIN, INT8_MAX)
INTEGER(uint8_t, 0, UINT8_MAX)
INTEGER(int16_t, INT16_MIN, INT16_MAX)
INTEGER(uint16_t, 0, UINT16_MAX)
INTEGER(int32_t, INT32_MIN, INT32_MAX)
INTEGER(uint32_t, 0, UINT32_MAX)
INTEGER(int64_t, INT64_MIN, INT64_MAX)

static inline bool get_uint64_t(struct call *call, ERL_NIF_TERM term, int argument,
                                const char *name, uint64_t *value)
{
    ErlNifUInt64 x;
    *value = 0;
    if (!enif_get_uint64(call->env, term, &x))
        return refuse(call, GSC_ERROR_VALUE, argument, -1, name,
                      "is not an integer from 0 to 2^64-1");
    *value = x;
    return true;
}

static inline ERL_NIF_TERM make_uint64_t(ErlNifEnv *env, uint64_t value)
{
    return enif_make_uint64(env, value);
}

/* A float or an integer, or one of the atoms for what Erlang's floats cannot be. */
static inline bool get_double(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                              double *value)
{
    ErlNifSInt64 integer;
    if (enif_get_double(call->env, term, value))
        return true;
    if (enif_get_int64(call->env, term, &integer))
        *value = (double)integer;
    else if (enif_is_identical(term, atoms.infinity))
        *value = INFINITY;
    else if (enif_is_identical(term, atoms.neg_infinity))
        *value = -INFINITY;
    else if (enif_is_identical(term, atoms.nan))
        *value = NAN;
    else
        return refuse(call, GSC_ERROR_VALUE, argument, -1, name, "is not a number");
    return true;
}

static inline bool get_float(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                             float *value)
{
    double x;
    bool good = get_double(call, term, argument, name, &x);
    *value = good ? (float)x : 0;
    return good;
}

static inline ERL_NIF_TERM make_float(ErlNifEnv *env, float x)
{
    return make_double(env, (double)x);
}

static inline bool get_flag(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                            bool *value)
{
    *value = enif_is_identical(term, atoms.yes);
    return *value || enif_is_identical(term, atoms.no) ||
           refuse(call, GSC_ERROR_VALUE, argument, -1, name, "is neither true nor false");
}

static bool get_bytes(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                      ErlNifBinary *bytes)
{
    return enif_inspect_binary(call->env, term, bytes) ||
           refuse(call, GSC_ERROR_VALUE, argument, -1, name, "is not a binary");
}

static bool get_string(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                       char *string, size_t capacity)
{
    ErlNifBinary bytes;
    if (!get_bytes(call, term, argument, name, &bytes))
        return false;
    if (bytes.size >= capacity || memchr(bytes.data, 0, bytes.size))
        return refuse(call, GSC_ERROR_VALUE, argument, -1, name,
                      "has a zero byte or %zu bytes or more", capacity);
    memcpy(string, bytes.data, bytes.size);
    string[bytes.size] = '\0';
    return true;
}

/* The number of entries of a list before the list is read; lists can share one. */
#define NOT_COUNTED UINT64_MAX

static inline uint64_t counted(uint64_t count)
{
    return count == NOT_COUNTED ? 0 : count; /* nil in place of the list */
}

static inline bool get_count(struct call *call, int argument, const char *name, uint64_t entries,
                             uint64_t *count)
{
    if (*count == NOT_COUNTED)
        *count = entries;
    return *count == entries ||
           refuse(call, GSC_ERROR_COUNT, argument, -1, name, "has %llu entries, not %llu",
                  (unsigned long long)entries, (unsigned long long)*count);
}

/* A struct of a fixed size, or with `count` structs or numbers one after the other and how many,
 * where the library sees them; NULL where there are none. */
static inline void *get_values(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                               size_t size, uint64_t *count)
{
    ErlNifBinary bytes;
    if (!get_bytes(call, term, argument, name, &bytes))
        return NULL;
    if (count ? bytes.size % size : bytes.size != size) {
        refuse(call, GSC_ERROR_STRUCT_SIZE, argument, -1, name, "has %zu bytes, %s %zu", bytes.size,
               count ? "which is no multiple of" : "not", size);
        return NULL;
    }
    if (count && !get_count(call, argument, name, bytes.size / size, count))
        return NULL;
    void *to = room(call, bytes.size);
    return to ? memcpy(to, bytes.data, bytes.size) : NULL;
}

/* Returns the bytes of a list of names with the pointers to them and the zero behind each; 0 if an
 * entry is neither a name nor nil. */
static inline size_t names_size(struct call *call, ERL_NIF_TERM list, int argument,
                                const char *name)
{
    ErlNifBinary bytes;
    ERL_NIF_TERM head;
    size_t size = 1;
    for (int64_t i = 0; enif_get_list_cell(call->env, list, &head, &list); i++) {
        bytes.size = 0;
        if (!is_nil(head) &&
            (!enif_inspect_binary(call->env, head, &bytes) || memchr(bytes.data, 0, bytes.size))) {
            refuse(call, GSC_ERROR_VALUE, argument, i, name,
                   "is neither nil nor a binary without zeros");
            return 0;
        }
        size += sizeof(char *) + bytes.size + 1;
    }
    return size;
}

/* A list of names, with nil for one that is not known, in host memory. */
static inline const char *const *get_names(struct call *call, ERL_NIF_TERM list, int argument,
                                           const char *name, uint64_t *count)
{
    unsigned n;
    if (!enif_get_list_length(call->env, list, &n)) {
        refuse(call, GSC_ERROR_VALUE, argument, -1, name, "is not a list");
        return NULL;
    }
    const char **names = NULL;
    size_t size = names_size(call, list, argument, name);
    if (!size || !get_count(call, argument, name, n, count) || !(names = room(call, size)))
        return NULL;
    char *at = (char *)(names + n);
    ErlNifBinary bytes;
    ERL_NIF_TERM head;
    for (unsigned i = 0; enif_get_list_cell(call->env, list, &head, &list); i++) {
        names[i] = NULL;
        if (is_nil(head) || !enif_inspect_binary(call->env, head, &bytes))
            continue;
        names[i] = memcpy(at, bytes.data, bytes.size);
        at[bytes.size] = '\0';
        at += bytes.size + 1;
    }
    return names;
}

/* Fails as the library does with a state that a candidate before 0.10 saved. */
static bool refuse_candidate(struct call *call, int argument, const char *name)
{
    const gsc_state state = {.failed_backoffs = INT64_MAX, .bad_losses_in_a_row = INT64_MAX};
    gsc_reason reason;
    gsc_error why;
    gsc_status status = gsc_state_reason(&state, NULL, NULL, NULL, NULL, NULL, 0, &reason, &why);
    return refuse(call, status, argument, -1, name, "%s", why.message + why.subject_length);
}

enum { CANDIDATE_POLICY_SIZE = 216 }; /* in 0.9 */

/* A struct that starts with its size, always host memory. An older version's is shorter, but at
 * least as long as in the first version. */
static inline bool get_growing(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                               void *to, size_t size, size_t first)
{
    ErlNifBinary bytes;
    uint32_t stated = 0;
    if (!get_bytes(call, term, argument, name, &bytes))
        return false;
    if (bytes.size >= sizeof stated)
        memcpy(&stated, bytes.data, sizeof stated);
    if (bytes.size != stated)
        return refuse(call, GSC_ERROR_STRUCT_SIZE, argument, -1, name,
                      "has %zu bytes and says %u; this version's has %zu", bytes.size, stated,
                      size);
    if ((bytes.size && bytes.size < first) ||
        (bytes.size > size && bytes.size == CANDIDATE_POLICY_SIZE))
        return refuse_candidate(call, argument, name);
    if (bytes.size > size)
        return refuse(call, GSC_ERROR_VERSION, argument, -1, name,
                      "has %zu bytes, this version's has %zu: a newer version made it", bytes.size,
                      size);
    memset(to, 0, size); /* the library also reads the size of an empty one */
    memcpy(to, bytes.data, bytes.size);
    return true;
}

/* The fields of a tuple that stands for a struct of options. */
static inline const ERL_NIF_TERM *get_fields(struct call *call, ERL_NIF_TERM term, int argument,
                                             const char *name, int count)
{
    const ERL_NIF_TERM *fields;
    int arity;
    if (enif_get_tuple(call->env, term, &arity, &fields) && arity == count)
        return fields;
    refuse(call, GSC_ERROR_VALUE, argument, -1, name, "is not a tuple of %d, nor nil", count);
    return NULL;
}

/* Room for what an option asks for, if it does. */
static inline bool get_result(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                              size_t size, struct result *result)
{
    bool wanted;
    *result = (struct result){0};
    return get_flag(call, term, argument, name, &wanted) &&
           (!wanted || make_room(call, size, result));
}

/* ---- devices ---- */

/* The call has the device to itself from here to release(). */
static void take_turn(struct call *call, struct device *device)
{
    call->device = device;
    enif_mutex_lock(device->turn);
    for (struct block *block = device->blocks; block; block = block->next)
        block->used = 0;
    call->own = (gsc_exec)GSC_EXEC_INIT;
    call->own.context = device->context;
    call->own.workspace = device->workspace;
    call->own.workspace_size = device->workspace_size;
    call->exec = &call->own;
}

/* `exec`: nil, :dirty, or a device. */
static inline bool get_exec(struct call *call, ERL_NIF_TERM term, int argument, const char *name)
{
    void *device;
    if (is_nil(term) || enif_is_identical(term, atoms.dirty))
        return true;
    if (!enif_get_resource(call->env, term, device_type, &device))
        return refuse(call, GSC_ERROR_VALUE, argument, -1, name,
                      "is neither nil nor a device of the loaded library");
    take_turn(call, device);
    return true;
}

/* Makes the device's workspace large enough for the call. */
static inline bool get_workspace(struct call *call, const gsc_tensor_options *options)
{
    struct device *device = call->device;
    uint64_t size;
    if (!apart(call))
        return true;
    if (gsc_workspace_size(call->exec, call->in, call->n, options, &size, &call->err) != GSC_OK)
        return false;
    if (size <= device->workspace_size)
        return true;
    gsc_memory_destroy(device->context, device->workspace);
    device->workspace = NULL;
    device->workspace_size = 0;
    if (gsc_memory_create(device->context, GSC_MEMORY_DEVICE, size, &device->workspace,
                          &call->err) != GSC_OK)
        return false;
    call->own.workspace = device->workspace;
    call->own.workspace_size = device->workspace_size = size;
    return true;
}

/* ---- lists of tensors ---- */

/* Room for n inputs, outputs and result binaries, in one allocation. */
static bool allocate(struct call *call, unsigned n)
{
    size_t each = 2 * sizeof(gsc_tensor) + sizeof(ERL_NIF_TERM);
    call->in = enif_alloc(n * each + 1);
    if (!call->in)
        return out_of_memory(call);
    call->out = call->in + n;
    call->binaries = (ERL_NIF_TERM *)(call->out + n);
    call->n = n;
    return true;
}

/* Returns whether a dtype's number and a length in bytes make a tensor. */
static bool get_elements(struct call *call, int argument, const char *name, int64_t index,
                         uint32_t dtype, uint64_t size, gsc_tensor *tensor)
{
    uint32_t element = gsc_dtype_size(dtype);
    if (!element)
        return refuse(call, GSC_ERROR_DTYPE, argument, index, name, "has the unknown dtype %u",
                      dtype);
    if (size % element)
        return refuse(call, GSC_ERROR_COUNT, argument, index, name,
                      "has %llu bytes, which is no multiple of the %u of an element",
                      (unsigned long long)size, element);
    tensor->count = size / element;
    tensor->dtype = dtype;
    return true;
}

/* Where `size` bytes of memory of the call's device lie, from `offset` on; NULL for none. */
static bool get_range(struct call *call, void *resource, int argument, const char *name,
                      int64_t index, uint64_t offset, uint64_t size, void **at)
{
    struct memory *memory = resource;
    if (memory->device != call->device)
        return refuse(call, GSC_ERROR_VALUE, argument, index, name, "is memory of another device");
    if (!memory->data && size)
        return refuse(call, GSC_ERROR_VALUE, argument, index, name, "is memory that was freed");
    if (offset > memory->size || size > memory->size - offset)
        return refuse(call, GSC_ERROR_COUNT, argument, index, name,
                      "takes %llu bytes from %llu on of %llu", (unsigned long long)size,
                      (unsigned long long)offset, (unsigned long long)memory->size);
    *at = memory->data ? (char *)memory->data + offset : NULL;
    return true;
}

/* {dtype, memory, offset, bytes}: a part of the memory of a device. */
static bool get_part(struct call *call, const ERL_NIF_TERM *fields, int argument, const char *name,
                     int64_t index, gsc_tensor *tensor)
{
    void *resource;
    ErlNifUInt64 offset, size;
    unsigned dtype;
    if (!enif_get_uint(call->env, fields[0], &dtype) ||
        !enif_get_resource(call->env, fields[1], memory_type, &resource) ||
        !enif_get_uint64(call->env, fields[2], &offset) ||
        !enif_get_uint64(call->env, fields[3], &size))
        return refuse(call, GSC_ERROR_VALUE, argument, index, name,
                      "is not {dtype, memory, offset, bytes}");
    *tensor = (gsc_tensor){0};
    return get_range(call, resource, argument, name, index, offset, size, &tensor->data) &&
           get_elements(call, argument, name, index, dtype, size, tensor);
}

/* {dtype, binary} */
static bool get_pair(ErlNifEnv *env, ERL_NIF_TERM term, unsigned *dtype, ErlNifBinary *bytes)
{
    const ERL_NIF_TERM *pair;
    int arity;
    return enif_get_tuple(env, term, &arity, &pair) && arity == 2 &&
           enif_get_uint(env, pair[0], dtype) && enif_inspect_binary(env, pair[1], bytes);
}

static bool get_tensor(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                       int64_t index, gsc_tensor *tensor)
{
    const ERL_NIF_TERM *fields;
    int arity;
    unsigned dtype;
    ErlNifBinary bytes;
    if (enif_get_tuple(call->env, term, &arity, &fields) && arity == 4)
        return get_part(call, fields, argument, name, index, tensor);
    if (!get_pair(call->env, term, &dtype, &bytes))
        return refuse(call, GSC_ERROR_VALUE, argument, index, name, "is not {dtype, binary}");
    if (apart(call))
        return refuse(call, GSC_ERROR_VALUE, argument, index, name,
                      "is a binary, which the device does not see");
    *tensor = (gsc_tensor){.data = bytes.data};
    return get_elements(call, argument, name, index, dtype, bytes.size, tensor);
}

/* [{dtype, binary}], or on a device [{dtype, memory, offset, bytes}] */
static inline bool get_tensors(struct call *call, ERL_NIF_TERM list, int argument, const char *name)
{
    unsigned n;
    ERL_NIF_TERM head;
    if (!enif_get_list_length(call->env, list, &n))
        return refuse(call, GSC_ERROR_VALUE, argument, -1, name, "is not a list");
    if (!allocate(call, n))
        return false;
    for (unsigned i = 0; enif_get_list_cell(call->env, list, &head, &list); i++)
        if (!get_tensor(call, head, argument, name, i, &call->in[i]))
            return false;
    return true;
}

/* Results begin where vector units like it. */
static size_t padded(uint64_t size)
{
    return (size_t)((size + 63) & ~(uint64_t)63);
}

static uint64_t bytes_of(const gsc_tensor *tensor)
{
    return tensor->count * gsc_dtype_size(tensor->dtype);
}

/*
 * New binaries for the outputs, with a copy of what they hold so far, if anything: small neighbours
 * share a binary, which is several times faster than one each; a result that is kept alone keeps at
 * most SLAB_BYTES with it.
 */
static void make_outputs(struct call *call)
{
    for (uint64_t first = 0, end; first < call->n; first = end) {
        size_t total = 0, at = 0;
        for (end = first; end < call->n; end++) {
            size_t size = padded(bytes_of(&call->out[end]));
            if (end > first && total + size > SLAB_BYTES)
                break;
            total += size;
        }
        if (end == first + 1)
            total = (size_t)bytes_of(&call->out[first]);
        ERL_NIF_TERM slab;
        unsigned char *data = enif_make_new_binary(call->env, total, &slab);
        for (uint64_t i = first; i < end; i++) {
            size_t size = (size_t)bytes_of(&call->out[i]);
            if (call->out[i].data && size)
                memcpy(data + at, call->out[i].data, size);
            call->out[i].data = data + at;
            call->binaries[i] = slab;
            at += padded(size);
        }
    }
    call->made = call->n;
}

/* Returns what the library has written: from OTP 27 on a small part of a binary is a copy. */
static ERL_NIF_TERM make_results(struct call *call)
{
    for (uint64_t i = 0; i < call->made; i++) {
        ErlNifBinary slab;
        size_t size = (size_t)bytes_of(&call->out[i]);
        if (enif_inspect_binary(call->env, call->binaries[i], &slab) && size != slab.size) {
            size_t at = (size_t)((unsigned char *)call->out[i].data - slab.data);
            call->binaries[i] = enif_make_sub_binary(call->env, call->binaries[i], at, size);
        }
    }
    return enif_make_list_from_array(call->env, call->binaries, (unsigned)call->made);
}

/* One output: a dtype, or what it holds before the call where that is `read`. */
static bool get_output(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                       int64_t index, bool read)
{
    unsigned dtype;
    uint64_t count = call->in[index].count;
    gsc_tensor *out = &call->out[index];
    if (!read && enif_get_uint(call->env, term, &dtype)) {
        if (!gsc_dtype_size(dtype))
            return refuse(call, GSC_ERROR_DTYPE, argument, index, name, "is not a dtype");
        *out = (gsc_tensor){.data = NULL, .count = count, .dtype = dtype};
        return true;
    }
    if (!get_tensor(call, term, argument, name, index, out))
        return false;
    return out->count == count || /* before they are copied */
           refuse(call, GSC_ERROR_COUNT, argument, index, name,
                  "has %llu elements, its tensor %llu", (unsigned long long)out->count,
                  (unsigned long long)count);
}

static bool is_part(ErlNifEnv *env, ERL_NIF_TERM term)
{
    const ERL_NIF_TERM *fields;
    int arity;
    return enif_get_tuple(env, term, &arity, &fields) && arity == 4;
}

/*
 * One for each tensor: all of them parts of a device's memory, which are written in place; or
 * dtypes, or where outputs are `read` [{dtype, binary}], what they are before the call: then the
 * results are new binaries.
 */
static inline bool get_outputs(struct call *call, ERL_NIF_TERM list, int argument, const char *name,
                               bool read)
{
    unsigned n;
    ERL_NIF_TERM head;
    if (!enif_get_list_length(call->env, list, &n))
        return refuse(call, GSC_ERROR_VALUE, argument, -1, name, "is not a list");
    if (n != call->n)
        return refuse(call, GSC_ERROR_COUNT, argument, -1, name, "has %u entries for %llu tensors",
                      n, (unsigned long long)call->n);
    unsigned parts = 0;
    for (unsigned i = 0; enif_get_list_cell(call->env, list, &head, &list); i++) {
        if (!get_output(call, head, argument, name, i, read || apart(call)))
            return false;
        parts += is_part(call->env, head);
    }
    if (parts && parts < n)
        return refuse(call, GSC_ERROR_VALUE, argument, -1, name,
                      "has %u parts of memory among its %u entries: all or none", parts, n);
    if (!parts)
        make_outputs(call);
    return true;
}

/* Returns how a call leaves a normal scheduler: with :dirty, or to wait for a device. 0: it stays.
 */
static inline int leaves(ERL_NIF_TERM exec)
{
    if (is_nil(exec) || enif_thread_type() != ERL_NIF_THR_NORMAL_SCHEDULER)
        return 0;
    return enif_is_identical(exec, atoms.dirty) ? ERL_NIF_DIRTY_JOB_CPU_BOUND
                                                : ERL_NIF_DIRTY_JOB_IO_BOUND;
}

#endif
