/* SPDX-License-Identifier: MIT */
/*
 * The parts that a handler without state needs of XLA's foreign function interface, in C: the
 * interface of a program, major version 0, not its headers, so nothing of JAX is needed to build. A
 * test compares it with the header in several jaxlibs. Structs may be longer than here: their size
 * comes first.
 */
#ifndef GSC_XLA_H
#define GSC_XLA_H

#include <stddef.h>
#include <stdint.h>

#include "gradscaler_cuda.h"

enum {
    XLA_MAJOR = 0,
    XLA_MINOR = 1, /* the oldest that XLA still takes; what is used here has not moved since */
    XLA_METADATA = 1,
    XLA_BUFFER = 1,
    XLA_ARRAY = 1,
    XLA_SCALAR = 3,
    XLA_EXECUTE = 3,
    XLA_GRAPHS = 1, /* trait: may be captured in a graph of the device */
    XLA_INVALID_ARGUMENT = 3,
    XLA_RESOURCE_EXHAUSTED = 8,
    XLA_INTERNAL = 13,
};

enum {
    XLA_S32 = 4,
    XLA_S64 = 5,
    XLA_U8 = 6,
    XLA_U32 = 8,
    XLA_F16 = 10,
    XLA_F32 = 11,
    XLA_F64 = 12,
    XLA_C64 = 15,
    XLA_BF16 = 16,
    XLA_C128 = 18,
    XLA_F8E5M2 = 19,
    XLA_F8E4M3FN = 20,
};

struct xla_extension {
    size_t struct_size;
    int32_t type;
    struct xla_extension *next;
};

struct xla_version {
    size_t struct_size;
    struct xla_extension *extension;
    int32_t major, minor;
};

/* A handler's description of itself. Newer versions have another member, of handlers with state. */
struct xla_metadata {
    size_t struct_size;
    struct xla_version version;
    uint32_t traits;
};

struct xla_metadata_extension {
    struct xla_extension base;
    struct xla_metadata *metadata;
};

struct xla_buffer {
    size_t struct_size;
    struct xla_extension *extension;
    int32_t dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
};

/* Operands or results. */
struct xla_list {
    size_t struct_size;
    struct xla_extension *extension;
    int64_t size;
    int32_t *types;
    void **items;
};

struct xla_name {
    const char *text; /* not ended by 0 */
    size_t size;
};

struct xla_scalar {
    int32_t dtype;
    void *value;
};

struct xla_array {
    int32_t dtype;
    size_t size; /* elements */
    void *data;
};

struct xla_attributes {
    size_t struct_size;
    struct xla_extension *extension;
    int64_t size;
    int32_t *types;
    struct xla_name **names;
    void **items;
};

struct xla_error_create {
    size_t struct_size;
    struct xla_extension *extension;
    const char *message; /* copied */
    int32_t code;
};

struct xla_error_destroy {
    size_t struct_size;
    struct xla_extension *extension;
    void *error;
};

struct xla_stream_get {
    size_t struct_size;
    struct xla_extension *extension;
    void *context;
    void *stream; /* out */
};

struct xla_schedule {
    size_t struct_size;
    struct xla_extension *extension;
    void *context;
    void (*task)(void *data);
    void *data;
};

struct xla_threads {
    size_t struct_size;
    struct xla_extension *extension;
    void *context;
    int64_t *threads; /* out */
};

/* Functions that may fail return an error, or NULL. */
struct xla_api {
    size_t struct_size;
    struct xla_extension *extension;
    struct xla_version version;
    const void *internal;
    void *(*error_create)(struct xla_error_create *);
    const void *error_message;
    void (*error_destroy)(struct xla_error_destroy *);
    const void *handler_register;
    void *(*stream_get)(struct xla_stream_get *);
    void *others[6];
    void *(*schedule)(struct xla_schedule *);
    void *(*threads)(struct xla_threads *);
};

/* The argument of a handler. */
struct xla_frame {
    size_t struct_size;
    struct xla_extension *extension;
    const struct xla_api *api;
    void *context;
    int32_t stage;
    struct xla_list operands, results;
    struct xla_attributes attributes;
};

/* Handlers of calls on host memory and on CUDA memory. They return an error of XLA, or NULL. */
void *gsc_xla_host(struct xla_frame *frame);
void *gsc_xla_cuda(struct xla_frame *frame);

/* Bytes of the last result of a call on a list in CUDA memory. Makes the device's context. */
gsc_status gsc_xla_workspace(int32_t device, const gsc_tensor *tensors, uint64_t n, uint64_t *size,
                             gsc_error *err);

#endif
