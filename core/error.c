/* SPDX-License-Identifier: MIT */
/* Errors, versions, and the structs that grow with them. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"
#include "layout.h"

uint32_t gsc_version(void)
{
    return GSC_VERSION;
}

const char *gsc_status_string(gsc_status status)
{
    static const char *const strings[] = {
        "ok",
        "a pointer is NULL that may not be",
        "struct_size is not set or impossible, or fields of a newer version are set",
        "unknown preset",
        "policy out of range",
        "not a state of this library",
        "the report failed or lacks what the policy needs",
        "factor is zero, infinite or not a number",
        "value out of range",
        "unknown dtype",
        "counts differ or are too large",
        "input and output overlap",
        "unknown want bits",
        "buffer too small",
        "saved bytes are damaged",
        "saved bytes are of a newer version",
        "not available in this build or on this machine",
        "out of memory or threads",
        "the CUDA driver failed, or the context is of another process",
    };
    int64_t index = -(int64_t)status;
    bool known = index >= 0 && index < (int64_t)(sizeof strings / sizeof *strings);
    return known ? strings[index] : "unknown status";
}

gsc_status gsc_fail(gsc_error *err, gsc_status status, int argument, int64_t index,
                    const char *name, const char *format, ...)
{
    if (err) {
        memset(err, 0, sizeof *err);
        err->status = status;
        err->argument = argument;
        err->index = index;
        if (index >= 0) { /* "out.count" of tensor 3 is "out[3].count" */
            int stem = (int)strcspn(name, ".");
            snprintf(err->name, sizeof err->name, "%.*s[%lld]%s", stem, name, (long long)index,
                     name + stem);
        } else {
            snprintf(err->name, sizeof err->name, "%s", name);
        }
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(err->message, sizeof err->message, format, arguments);
        va_end(arguments);
    }
    return status;
}

gsc_status gsc_fail_null(gsc_error *err, int argument, const char *name)
{
    return gsc_fail(err, GSC_ERROR_NULL, argument, -1, name,
                    "%s is NULL: it must point to something here", name);
}

/* Sizes beyond this are dirt, not a future version. */
#define STRUCT_SIZE_LIMIT 4096u

/* Structs grow by 8 bytes, so that no size ends inside a field. */
bool gsc_struct_size_possible(uint32_t size)
{
    return size >= 8 && size <= STRUCT_SIZE_LIMIT && size % 8 == 0;
}

static gsc_status struct_size_of(const void *from, uint32_t *size, int argument, const char *name,
                                 gsc_error *err)
{
    memcpy(size, from, sizeof *size);
    if (!gsc_struct_size_possible(*size))
        return gsc_fail(err, GSC_ERROR_STRUCT_SIZE, argument, -1, name,
                        "%s.struct_size is %u: initialise the struct first", name, *size);
    return GSC_OK;
}

static bool all_zero(const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < size; i++)
        if (at[i])
            return false;
    return true;
}

gsc_status gsc_struct_read(const void *from, void *full, uint32_t size, int argument,
                           const char *name, gsc_error *err)
{
    uint32_t from_size;
    GSC_TRY(struct_size_of(from, &from_size, argument, name, err));
    if (from_size > size && !all_zero((const char *)from + size, from_size - size))
        return gsc_fail(err, GSC_ERROR_STRUCT_SIZE, argument, -1, name,
                        "%s sets fields that this version (0x%x) does not know", name, GSC_VERSION);
    memset(full, 0, size);
    memcpy(full, from, from_size < size ? from_size : size);
    memcpy(full, &size, sizeof size);
    return GSC_OK;
}

gsc_status gsc_struct_write(const void *full, uint32_t size, void *to, bool truncate, int argument,
                            const char *name, gsc_error *err)
{
    uint32_t to_size;
    GSC_TRY(struct_size_of(to, &to_size, argument, name, err));
    uint32_t common = to_size < size ? to_size : size;
    if (!truncate && !all_zero((const char *)full + common, size - common))
        return gsc_fail(err, GSC_ERROR_STRUCT_SIZE, argument, -1, name,
                        "%s has %u bytes and lacks fields that are needed here (%u bytes)", name,
                        to_size, size);
    memset(to, 0, to_size);
    memcpy(to, full, common);
    memcpy(to, &to_size, sizeof to_size);
    return GSC_OK;
}

/* gsc_<struct>_init: zeros and the size, of a client that may be older or newer. */
static gsc_status struct_init(uint32_t struct_size, void *out, gsc_error *err)
{
    GSC_REQUIRE(out, 1);
    if (!gsc_struct_size_possible(struct_size))
        return gsc_fail(err, GSC_ERROR_STRUCT_SIZE, 0, -1, "struct_size",
                        "struct_size is %u, not the size of a struct", struct_size);
    memset(out, 0, struct_size);
    memcpy(out, &struct_size, sizeof struct_size);
    return GSC_OK;
}

gsc_status gsc_policy_init(uint32_t struct_size, gsc_policy *out, gsc_error *err)
{
    return struct_init(struct_size, out, err);
}

gsc_status gsc_exec_init(uint32_t struct_size, gsc_exec *out, gsc_error *err)
{
    return struct_init(struct_size, out, err);
}

gsc_status gsc_info_init(uint32_t struct_size, gsc_info *out, gsc_error *err)
{
    return struct_init(struct_size, out, err);
}
