/* SPDX-License-Identifier: MIT */
/*
 * Registers the handler with the XLA that is in this process, by the interface that it exports for
 * that. EXLA's has it; JAX's hides it and registers handlers itself.
 */
#define _GNU_SOURCE /* dladdr */
#define _DARWIN_C_SOURCE
#if !defined(_WIN32)
#include <dlfcn.h>
#endif
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "xla.h"

#if !defined(_WIN32)
/* The interface of an XLA that is loaded: by the program for all, or by EXLA for itself. */
static const struct xla_api *loaded_api(void)
{
    static const char *const names[] = {NULL, "libxla_extension.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
        void *symbol = library ? dlsym(library, "XLA_FFI_GetApi") : NULL;
        const struct xla_api *(*get_api)(void);
        memcpy(&get_api, &symbol, sizeof symbol);
        if (library)
            dlclose(library); /* who loaded it keeps it */
        if (symbol)
            return get_api();
    }
    return NULL;
}
#endif

static gsc_status failed(gsc_error *err, const char *what, const char *why)
{
    if (err) {
        *err = (gsc_error){.status = GSC_ERROR_UNAVAILABLE, .argument = -1, .index = -1};
        snprintf(err->message, sizeof err->message, "%s%s", what, why);
    }
    return GSC_ERROR_UNAVAILABLE;
}

gsc_status gsc_xla_register(const char *name, gsc_error *err)
{
#if defined(_WIN32)
    (void)name;
    return failed(err, "there is no EXLA for Windows", "");
#else
    const struct xla_api *api = loaded_api();
    Dl_info here;
    if (!api)
        return failed(err, "no XLA that takes handlers is in this process: start EXLA first", "");
    if (api->version.major != XLA_MAJOR || api->version.minor < XLA_MINOR)
        return failed(err, "this XLA's interface for handlers is not of version 0.1 or newer", "");
    /* XLA keeps the handler for good, so this library may never be unloaded. */
    if (dladdr(__extension__(void *) gsc_xla_host, &here))
        (void)dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
    struct xla_register args = {.struct_size = sizeof args,
                                .name = {name, strlen(name)},
                                .platform = {"Host", 4},
                                .execute = gsc_xla_host};
    struct xla_error_destroy error = {.struct_size = sizeof error};
    error.error = api->handler_register(&args);
    if (!error.error)
        return GSC_OK;
    struct xla_error_message message = {.struct_size = sizeof message, .error = error.error};
    api->error_message(&message);
    gsc_status status = failed(err, "this XLA refuses the handler: ", message.message);
    api->error_destroy(&error);
    return status;
#endif
}
