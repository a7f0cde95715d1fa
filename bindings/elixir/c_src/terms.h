/* SPDX-License-Identifier: MIT */
/*
 * What the generated functions of gradscaler_nif.c share: terms to C and back, errors, and which
 * scheduler a call belongs on. Written by hand: this is about the BEAM, not about the ABI.
 *
 * A get_* function converts one argument; where it cannot, it fills call->err, as the library does
 * for what it refuses, and returns false. Binaries of the caller are read where they lie, but
 * structs are copied out of them: a part of a binary has any alignment.
 */
#ifndef GSC_NIF_TERMS_H
#define GSC_NIF_TERMS_H

#include <erl_nif.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <gradscaler.h>

/*
 * What a call may take on a normal scheduler, whose limit is 1 ms, and what its parts cost at
 * worst, in nanoseconds: a subnormal element that is accumulated, with everything looked at. Usual
 * elements take a fiftieth of that; but a dirty scheduler costs only 10 us more.
 */
enum {
    NORMAL_NS = 900 * 1000,
    TENSOR_NS = 500,
    TENSOR_LIMITS_NS = 20 * 1000, /* finds the limits between what is counted apart */
    ELEMENT_NS = 24,
    ELEMENT_WIDE_NS = 72, /* a double, or two parts */
    PLAIN_C_FACTOR = 12,  /* without vector units */
    SLAB_BYTES = 1024 * 1024,
    MOST_RESULTS = 4
};

/* One call: its tensors, and what went wrong. */
struct call {
    ErlNifEnv *env;
    gsc_tensor *in, *out;
    ERL_NIF_TERM *binaries; /* where `out` points to */
    uint64_t n;
    ERL_NIF_TERM results; /* list of `binaries` */
    gsc_error err;
};

static struct {
    ERL_NIF_TERM ok, error, nil, infinity, neg_infinity, nan;
} atoms;
static unsigned slowness = 1; /* of this machine: PLAIN_C_FACTOR or 1 */

/* ---- errors and results ---- */

/* Fills call->err as the library would; false, so that a check is one return statement. */
__attribute__((format(printf, 6, 7))) static bool refuse(struct call *call, gsc_status status,
                                                         int argument, int64_t index,
                                                         const char *name, const char *format, ...)
{
    gsc_error *err = &call->err;
    err->status = status;
    err->argument = argument;
    err->index = index;
    int length = snprintf(err->name, sizeof err->name, "%s", name);
    if (index >= 0)
        snprintf(err->name + length, sizeof err->name - (size_t)length, "[%lld]", (long long)index);
    va_list arguments;
    va_start(arguments, format);
    length = snprintf(err->message, sizeof err->message, "%s ", err->name);
    vsnprintf(err->message + length, sizeof err->message - (size_t)length, format, arguments);
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

static ERL_NIF_TERM make_map(ErlNifEnv *env, ERL_NIF_TERM keys[], ERL_NIF_TERM values[], size_t n)
{
    ERL_NIF_TERM map;
    enif_make_map_from_arrays(env, keys, values, n, &map);
    return map;
}

static void release(struct call *call)
{
    enif_free(call->in); /* the one allocation of get_tensors */
}

static ERL_NIF_TERM failed(struct call *call)
{
    ErlNifEnv *env = call->env;
    const gsc_error *err = &call->err;
    release(call);
    return enif_make_tuple2(
        env, atoms.error,
        enif_make_tuple5(env, enif_make_int(env, err->status), enif_make_int(env, err->argument),
                         enif_make_int64(env, err->index), make_string(env, err->name),
                         make_string(env, err->message)));
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

/* ---- numbers, strings, structs ---- */

static bool is_nil(ERL_NIF_TERM term)
{
    return enif_is_identical(term, atoms.nil);
}

static inline bool get_uint32(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                              uint32_t *value)
{
    return enif_get_uint(call->env, term, value) ||
           refuse(call, GSC_ERROR_VALUE, argument, -1, name, "is not an integer from 0 to 2^32-1");
}

static inline bool get_int32(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                             int32_t *value)
{
    return enif_get_int(call->env, term, value) ||
           refuse(call, GSC_ERROR_VALUE, argument, -1, name, "is not an integer of 32 bits");
}

/* A float or an integer, or one of the atoms for what Erlang's floats cannot be. */
static bool get_double(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
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

static bool get_struct(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                       void *to, size_t size)
{
    ErlNifBinary bytes;
    if (!get_bytes(call, term, argument, name, &bytes))
        return false;
    if (bytes.size != size)
        return refuse(call, GSC_ERROR_STRUCT_SIZE, argument, -1, name, "has %zu bytes, not %zu",
                      bytes.size, size);
    memcpy(to, bytes.data, size);
    return true;
}

/* A struct that starts with its size; an older version's is shorter. */
static bool get_growing(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                        void *to, size_t size)
{
    ErlNifBinary bytes;
    uint32_t stated = 0;
    if (!get_bytes(call, term, argument, name, &bytes))
        return false;
    if (bytes.size >= sizeof stated)
        memcpy(&stated, bytes.data, sizeof stated);
    if (bytes.size != stated || bytes.size > size)
        return refuse(call, GSC_ERROR_STRUCT_SIZE, argument, -1, name,
                      "has %zu bytes and says %u; this version's has %zu", bytes.size, stated,
                      size);
    memcpy(to, bytes.data, bytes.size);
    return true;
}

/* ---- lists of tensors ---- */

/* Room for n inputs, outputs and result binaries, in one allocation. */
static bool allocate(struct call *call, unsigned n)
{
    size_t each = 2 * sizeof(gsc_tensor) + sizeof(ERL_NIF_TERM);
    call->in = enif_alloc(n * each + 1);
    if (!call->in)
        return refuse(call, GSC_ERROR_MEMORY, -1, -1, "the list", "does not fit into memory");
    call->out = call->in + n;
    call->binaries = (ERL_NIF_TERM *)(call->out + n);
    call->n = n;
    return true;
}

static bool get_tensor(struct call *call, ERL_NIF_TERM term, int argument, const char *name,
                       int64_t index, gsc_tensor *tensor)
{
    const ERL_NIF_TERM *pair;
    int arity;
    unsigned dtype;
    ErlNifBinary bytes;
    if (!enif_get_tuple(call->env, term, &arity, &pair) || arity != 2 ||
        !enif_get_uint(call->env, pair[0], &dtype) ||
        !enif_inspect_binary(call->env, pair[1], &bytes))
        return refuse(call, GSC_ERROR_VALUE, argument, index, name, "is not {dtype, binary}");
    uint32_t size = gsc_dtype_size(dtype);
    if (!size)
        return refuse(call, GSC_ERROR_DTYPE, argument, index, name, "has the unknown dtype %u",
                      dtype);
    if (bytes.size % size)
        return refuse(call, GSC_ERROR_COUNT, argument, index, name,
                      "has %zu bytes, which is no multiple of the %u of an element", bytes.size,
                      size);
    *tensor = (gsc_tensor){bytes.data, bytes.size / size, dtype, 0};
    return true;
}

/* [{dtype, binary}] */
static bool get_tensors(struct call *call, ERL_NIF_TERM list, int argument, const char *name)
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
 * Memory for the outputs, with a copy of what they hold so far, if anything: small neighbours share
 * a binary, which is several times faster than one each; a result that is kept alone keeps at most
 * SLAB_BYTES with it.
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
            call->binaries[i] =
                size == total ? slab : enif_make_sub_binary(call->env, slab, at, size);
            at += padded(size);
        }
    }
    call->results = enif_make_list_from_array(call->env, call->binaries, (unsigned)call->n);
}

static bool get_length(struct call *call, ERL_NIF_TERM list, int argument, const char *name)
{
    unsigned n;
    if (!enif_get_list_length(call->env, list, &n))
        return refuse(call, GSC_ERROR_VALUE, argument, -1, name, "is not a list");
    return n == call->n ||
           refuse(call, GSC_ERROR_COUNT, argument, -1, name, "has %u entries for %llu tensors", n,
                  (unsigned long long)call->n);
}

/* [dtype], one per tensor: the results, in new binaries, of as many elements. */
static inline bool get_outputs(struct call *call, ERL_NIF_TERM list, int argument, const char *name)
{
    unsigned dtype;
    ERL_NIF_TERM head;
    if (!get_length(call, list, argument, name))
        return false;
    for (unsigned i = 0; enif_get_list_cell(call->env, list, &head, &list); i++) {
        if (!enif_get_uint(call->env, head, &dtype) || !gsc_dtype_size(dtype))
            return refuse(call, GSC_ERROR_DTYPE, argument, i, name, "is not a dtype");
        call->out[i] = (gsc_tensor){NULL, call->in[i].count, dtype, 0};
    }
    make_outputs(call);
    return true;
}

/* [{dtype, binary}], one per tensor: what the results, in new binaries, are before the call. */
static inline bool get_sums(struct call *call, ERL_NIF_TERM list, int argument, const char *name)
{
    ERL_NIF_TERM head;
    if (!get_length(call, list, argument, name))
        return false;
    for (unsigned i = 0; enif_get_list_cell(call->env, list, &head, &list); i++) {
        if (!get_tensor(call, head, argument, name, i, &call->out[i]))
            return false;
        if (call->out[i].count != call->in[i].count) /* before they are copied */
            return refuse(
                call, GSC_ERROR_COUNT, argument, i, name, "has %llu elements, its tensor %llu",
                (unsigned long long)call->out[i].count, (unsigned long long)call->in[i].count);
    }
    make_outputs(call);
    return true;
}

/* ---- schedulers ---- */

static uint64_t element_ns(uint32_t dtype)
{
    bool wide = dtype == GSC_F64 || dtype == GSC_COMPLEX64 || dtype == GSC_COMPLEX128;
    return (wide ? ELEMENT_WIDE_NS : ELEMENT_NS) * slowness;
}

/*
 * Whether a call over these tensors would hold up a normal scheduler; if not, tells that scheduler
 * how much of its time the call may take. What is no list of tensors is refused by the call itself.
 */
static bool takes_long(ErlNifEnv *env, ERL_NIF_TERM list, uint32_t want)
{
    unsigned n;
    ERL_NIF_TERM head;
    if (enif_thread_type() != ERL_NIF_THR_NORMAL_SCHEDULER || !enif_get_list_length(env, list, &n))
        return false;
    bool limits = want & (GSC_WANT_UNDERFLOW | GSC_WANT_HISTOGRAM);
    uint64_t ns = (uint64_t)n * (limits ? TENSOR_LIMITS_NS : TENSOR_NS);
    if (ns > NORMAL_NS)
        return true; /* without looking at each */
    while (enif_get_list_cell(env, list, &head, &list)) {
        const ERL_NIF_TERM *pair;
        int arity;
        unsigned dtype;
        ErlNifBinary binary;
        if (enif_get_tuple(env, head, &arity, &pair) && arity == 2 &&
            enif_get_uint(env, pair[0], &dtype) && gsc_dtype_size(dtype) &&
            enif_inspect_binary(env, pair[1], &binary))
            ns += binary.size / gsc_dtype_size(dtype) * element_ns(dtype);
    }
    if (ns > NORMAL_NS)
        return true;
    enif_consume_timeslice(env, 1 + (int)(ns * 99 / NORMAL_NS));
    return false;
}

/* The bits of a want argument that may not be one. */
static uint32_t peek_want(ErlNifEnv *env, ERL_NIF_TERM term)
{
    unsigned want;
    return enif_get_uint(env, term, &want) ? want : 0;
}

/* ---- the library's life ---- */

/*
 * Elixir code and library must be of one version: the code knows the structs. The atoms are those
 * of the node; nothing else is kept, so an upgrade has nothing to hand over, and processes that
 * run the old code finish in the old library.
 */
static int load(ErlNifEnv *env, void **private_data, ERL_NIF_TERM version)
{
    unsigned expected;
    (void)private_data;
    if (!enif_get_uint(env, version, &expected) || expected != gsc_version())
        return -1;
    atoms.ok = enif_make_atom(env, "ok");
    atoms.error = enif_make_atom(env, "error");
    atoms.nil = enif_make_atom(env, "nil");
    atoms.infinity = enif_make_atom(env, "infinity");
    atoms.neg_infinity = enif_make_atom(env, "neg_infinity");
    atoms.nan = enif_make_atom(env, "nan");
    gsc_info info = GSC_INFO_INIT;
    if (gsc_get_info(&info, NULL) != GSC_OK)
        return -1;
    slowness = strcmp(info.cpu, "scalar") == 0 ? PLAIN_C_FACTOR : 1;
    return 0;
}

static int upgrade(ErlNifEnv *env, void **private_data, void **old_private_data,
                   ERL_NIF_TERM version)
{
    (void)old_private_data;
    return load(env, private_data, version);
}

static void unload(ErlNifEnv *env, void *private_data)
{
    (void)env;
    (void)private_data;
}

#endif
