/* SPDX-License-Identifier: MIT */
/*
 * Contexts and their memory as resources, and the library's life in the BEAM. By hand, as a pointer
 * means nothing to Elixir: a device is a context, memory keeps its device, and both are freed when
 * the last term that names them is gone, or memory earlier by memory_destroy.
 *
 * All calls wait until the device has done their work, on a dirty scheduler. Only freeing, which
 * the garbage collector does, runs where it must.
 */
#ifndef GSC_NIF_DEVICE_H
#define GSC_NIF_DEVICE_H

#include "terms.h"

/* ---- resources ---- */

static void free_device(ErlNifEnv *env, void *resource)
{
    struct device *device = resource;
    (void)env;
    for (struct block *block = device->blocks, *next; block; block = next) {
        next = block->next;
        gsc_memory_destroy(device->context, block->data);
        enif_free(block);
    }
    gsc_memory_destroy(device->context, device->workspace);
    gsc_context_destroy(device->context);
    if (device->turn)
        enif_mutex_destroy(device->turn);
}

static void free_memory(ErlNifEnv *env, void *resource)
{
    struct memory *memory = resource;
    (void)env;
    if (!memory->device)
        return;
    gsc_memory_destroy(memory->device->context, memory->data);
    enif_release_resource(memory->device);
}

/* The term of a resource, which alone keeps it from here on. */
static ERL_NIF_TERM make_resource(ErlNifEnv *env, void *resource)
{
    ERL_NIF_TERM term = enif_make_resource(env, resource);
    enif_release_resource(resource);
    return term;
}

static struct device *new_device(struct call *call, bool sees_host)
{
    struct device *device = enif_alloc_resource(device_type, sizeof *device);
    if (!device)
        return (void)out_of_memory(call), NULL;
    *device = (struct device){.sees_host = sees_host, .turn = enif_mutex_create("gradscaler")};
    if (device->turn)
        return device;
    enif_release_resource(device);
    return (void)out_of_memory(call), NULL;
}

static ERL_NIF_TERM opened(struct call *call, struct device *device, bool good)
{
    if (good) {
        const ERL_NIF_TERM terms[] = {make_resource(call->env, device)};
        return done(call, terms, 1);
    }
    if (device)
        enif_release_resource(device);
    return failed(call);
}

/* ---- functions ---- */

static ERL_NIF_TERM nif_context_create_cpu(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_cpu_options options = GSC_CPU_OPTIONS_INIT;
    struct device *device = NULL;
    bool good = get_uint32_t(&call, argv[0], 0, "options.threads", &options.threads) &&
                (device = new_device(&call, true)) &&
                gsc_context_create_cpu(&options, &device->context, &call.err) == GSC_OK;
    return opened(&call, device, good);
}

static ERL_NIF_TERM nif_context_create_cuda(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_cuda_options options = GSC_CUDA_OPTIONS_INIT;
    struct device *device = NULL;
    bool good = get_int32_t(&call, argv[0], 0, "options.device", &options.device) &&
                (device = new_device(&call, false)) &&
                gsc_context_create_cuda(&options, &device->context, &call.err) == GSC_OK;
    return opened(&call, device, good);
}

static ERL_NIF_TERM nif_memory_create(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint64_t size;
    if (!get_exec(&call, argv[0], 0, "context") || !get_uint64_t(&call, argv[1], 2, "size", &size))
        return failed(&call);
    if (!call.device) {
        refuse(&call, GSC_ERROR_VALUE, 0, -1, "context", "is nil: binaries are host memory");
        return failed(&call);
    }
    struct memory *memory = enif_alloc_resource(memory_type, sizeof *memory);
    if (!memory) {
        out_of_memory(&call);
        return failed(&call);
    }
    *memory = (struct memory){0};
    if (gsc_memory_create(call.device->context, GSC_MEMORY_DEVICE, size, &memory->data,
                          &call.err) != GSC_OK) {
        enif_release_resource(memory);
        return failed(&call);
    }
    memory->size = size;
    memory->device = call.device;
    enif_keep_resource(memory->device);
    const ERL_NIF_TERM terms[] = {make_resource(env, memory)};
    return done(&call, terms, 1);
}

/* The memory that a term names, with its device's turn. */
static struct memory *get_memory(struct call *call, ERL_NIF_TERM term, int argument,
                                 const char *name)
{
    void *resource;
    if (!enif_get_resource(call->env, term, memory_type, &resource))
        return (void)refuse(call, GSC_ERROR_VALUE, argument, -1, name,
                            "is not memory of a device of the loaded library"),
               NULL;
    struct memory *memory = resource;
    take_turn(call, memory->device);
    return memory;
}

static ERL_NIF_TERM nif_memory_destroy(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    struct memory *memory = get_memory(&call, argv[0], 1, "memory");
    if (!memory)
        return failed(&call);
    gsc_memory_destroy(memory->device->context, memory->data);
    memory->data = NULL;
    return done(&call, NULL, 0);
}

/* {offset, binary}, or {offset, memory, from, bytes} of the same device. */
static bool write_piece(struct call *call, struct memory *memory, ERL_NIF_TERM term, int64_t index)
{
    const ERL_NIF_TERM *fields;
    int arity;
    ErlNifUInt64 offset, start, size;
    ErlNifBinary bytes;
    void *to, *from, *source;
    if (!enif_get_tuple(call->env, term, &arity, &fields) || (arity != 2 && arity != 4) ||
        !enif_get_uint64(call->env, fields[0], &offset))
        return refuse(call, GSC_ERROR_VALUE, 2, index, "from", "is no piece to write");
    if (arity == 2) {
        if (!enif_inspect_binary(call->env, fields[1], &bytes))
            return refuse(call, GSC_ERROR_VALUE, 2, index, "from", "is not a binary");
        from = bytes.data;
        size = bytes.size;
    } else {
        if (!enif_get_resource(call->env, fields[1], memory_type, &source) ||
            !enif_get_uint64(call->env, fields[2], &start) ||
            !enif_get_uint64(call->env, fields[3], &size))
            return refuse(call, GSC_ERROR_VALUE, 2, index, "from", "is no part of memory");
        if (!get_range(call, source, 2, "from", index, start, size, &from))
            return false;
    }
    return get_range(call, memory, 1, "to", -1, offset, size, &to) &&
           gsc_memory_copy(call->exec, to, from, size, &call->err) == GSC_OK;
}

/* Host memory stays in use until the device is done, also where a later piece was refused. */
static bool waited(struct call *call, bool good)
{
    gsc_error ignored;
    return gsc_exec_wait(call->exec, good ? &call->err : &ignored) == GSC_OK && good;
}

/* memory_write(memory, pieces) */
static ERL_NIF_TERM nif_memory_write(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    struct memory *memory = get_memory(&call, argv[0], 1, "to");
    ERL_NIF_TERM head, list = argv[1];
    unsigned n;
    bool good = true;
    if (!memory)
        return failed(&call);
    if (!enif_get_list_length(env, list, &n))
        good = refuse(&call, GSC_ERROR_VALUE, 2, -1, "from", "is not a list");
    for (int64_t i = 0; good && enif_get_list_cell(env, list, &head, &list); i++)
        good = write_piece(&call, memory, head, i);
    return waited(&call, good) ? done(&call, NULL, 0) : failed(&call);
}

/* memory_read(memory, [{offset, bytes}]) */
static ERL_NIF_TERM nif_memory_read(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    struct memory *memory = get_memory(&call, argv[0], 2, "from");
    ERL_NIF_TERM head, term, list = argv[1], binaries = enif_make_list(env, 0);
    unsigned n;
    bool good = true;
    if (!memory)
        return failed(&call);
    if (!enif_get_list_length(env, list, &n))
        good = refuse(&call, GSC_ERROR_VALUE, 2, -1, "from", "is not a list");
    for (int64_t i = 0; good && enif_get_list_cell(env, list, &head, &list); i++) {
        const ERL_NIF_TERM *fields;
        int arity;
        ErlNifUInt64 offset, size;
        void *from;
        good =
            (enif_get_tuple(env, head, &arity, &fields) && arity == 2 &&
             enif_get_uint64(env, fields[0], &offset) && enif_get_uint64(env, fields[1], &size)) ||
            refuse(&call, GSC_ERROR_VALUE, 2, i, "from", "is not {offset, bytes}");
        good = good && get_range(&call, memory, 2, "from", i, offset, size, &from) &&
               gsc_memory_copy(call.exec, enif_make_new_binary(env, (size_t)size, &term), from,
                               size, &call.err) == GSC_OK;
        if (good)
            binaries = enif_make_list_cell(env, term, binaries);
    }
    if (!waited(&call, good) || !enif_make_reverse_list(env, binaries, &binaries))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {binaries};
    return done(&call, terms, 1);
}

/* ---- the library's life ---- */

/*
 * The names of the resource types are this library's own. Another file, which an upgrade loads,
 * takes over no resource, because the code that made a context runs it: the old library stays
 * until the last of them is freed. The same file loaded again is the same library, and takes over
 * its own.
 */
static bool open_types(ErlNifEnv *env)
{
    const ErlNifResourceFlags flags = ERL_NIF_RT_CREATE | ERL_NIF_RT_TAKEOVER;
    char name[64];
    snprintf(name, sizeof name, "device %p", (void *)&device_type);
    ErlNifResourceType *device = enif_open_resource_type(env, NULL, name, free_device, flags, NULL);
    snprintf(name, sizeof name, "memory %p", (void *)&device_type);
    ErlNifResourceType *memory = enif_open_resource_type(env, NULL, name, free_memory, flags, NULL);
    if (!device || !memory)
        return false; /* and what runs goes on with its own */
    device_type = device;
    memory_type = memory;
    return true;
}

/*
 * Elixir code and library must be of one version: the code knows the structs. The atoms are those
 * of the node; processes that run the old code finish in the old library.
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
    atoms.dirty = enif_make_atom(env, "dirty");
    atoms.yes = enif_make_atom(env, "true");
    atoms.no = enif_make_atom(env, "false");
    atoms.infinity = enif_make_atom(env, "infinity");
    atoms.neg_infinity = enif_make_atom(env, "neg_infinity");
    atoms.nan = enif_make_atom(env, "nan");
    return open_types(env) ? 0 : -1;
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
