/* SPDX-License-Identifier: MIT */
/*
 * An XLA for the tests of GradScaler.EXLA, loaded as EXLA loads its own: a library of that name,
 * for itself. It keeps what registers, and calls it.
 */
#include <erl_nif.h>
#include <string.h>

#include "xla.h"

static struct xla_register registered;
static char message[512];

static void *handler_register(struct xla_register *args)
{
    if (registered.execute && registered.execute != args->execute)
        return &registered;
    registered = *args;
    return NULL;
}

static void error_message(struct xla_error_message *args)
{
    args->message = "the name is taken";
}

static void error_destroy(struct xla_error_destroy *args)
{
    (void)args;
}

static void *error_create(struct xla_error_create *args)
{
    strncpy(message, args->message, sizeof message - 1);
    return message;
}

static struct xla_api api = {.struct_size = offsetof(struct xla_api, schedule),
                             .version = {sizeof api.version, NULL, XLA_MAJOR, XLA_MINOR},
                             .error_create = error_create,
                             .error_message = error_message,
                             .error_destroy = error_destroy,
                             .handler_register = handler_register};

__attribute__((visibility("default"))) const struct xla_api *XLA_FFI_GetApi(void)
{
    return &api;
}

static ERL_NIF_TERM text(ErlNifEnv *env, const char *bytes, size_t size)
{
    ERL_NIF_TERM term;
    memcpy(enif_make_new_binary(env, size, &term), bytes, size);
    return term;
}

/* {name, platform} */
static ERL_NIF_TERM standin_registered(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc, (void)argv;
    return enif_make_tuple2(env, text(env, registered.name.text, registered.name.size),
                            text(env, registered.platform.text, registered.platform.size));
}

/* unscale(factor, gradient, policy): {gradient, report} of float32, or the handler's message */
static ERL_NIF_TERM standin_unscale(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    ErlNifBinary factor, gradient, policy;
    ERL_NIF_TERM unscaled, report;
    if (argc != 3 || !enif_inspect_binary(env, argv[0], &factor) ||
        !enif_inspect_binary(env, argv[1], &gradient) ||
        !enif_inspect_binary(env, argv[2], &policy))
        return enif_make_badarg(env);
    int64_t numbers[] = {1, 1, 1},
            counts[] = {(int64_t)gradient.size / 4, 8, sizeof(gsc_report) / 4};
    static const char *const names[] = {"call", "with", "count", "policy"};
    uint64_t aligned[4];
    memcpy(aligned, factor.data, sizeof aligned);
    struct xla_buffer buffers[] = {
        {sizeof *buffers, NULL, XLA_F32, gradient.data, 1, &counts[0]},
        {sizeof *buffers, NULL, XLA_U32, aligned, 1, &counts[1]},
        {sizeof *buffers, NULL, XLA_F32, enif_make_new_binary(env, gradient.size, &unscaled), 1,
         &counts[0]},
        {sizeof *buffers, NULL, XLA_U32, enif_make_new_binary(env, sizeof(gsc_report), &report), 1,
         &counts[2]},
    };
    struct xla_scalar scalars[3];
    struct xla_array array = {XLA_U8, policy.size, policy.data};
    struct xla_name spans[4], *named[4];
    void *items[] = {&buffers[0], &buffers[1], &buffers[2], &buffers[3]}, *attributes[4];
    int32_t types[] = {XLA_BUFFER, XLA_BUFFER}, kinds[4];
    for (int i = 0; i < 4; i++) {
        spans[i] = (struct xla_name){names[i], strlen(names[i])};
        named[i] = &spans[i];
        kinds[i] = i < 3 ? XLA_SCALAR : XLA_ARRAY;
        if (i < 3)
            scalars[i] = (struct xla_scalar){XLA_S64, &numbers[i]};
        attributes[i] = i < 3 ? (void *)&scalars[i] : &array;
    }
    struct xla_frame frame = {
        .struct_size = sizeof frame,
        .api = &api,
        .stage = XLA_EXECUTE,
        .operands = {sizeof frame.operands, NULL, 2, types, items},
        .results = {sizeof frame.results, NULL, 2, types, items + 2},
        .attributes = {sizeof frame.attributes, NULL, 4, kinds, named, attributes}};
    if (registered.execute(&frame))
        return text(env, message, strlen(message));
    return enif_make_tuple2(env, unscaled, report);
}

static ErlNifFunc functions[] = {
    {"registered", 0, standin_registered, 0},
    {"unscale", 3, standin_unscale, 0},
};

ERL_NIF_INIT(Elixir.GradScaler.EXLATest.Standin, functions, NULL, NULL, NULL, NULL)
