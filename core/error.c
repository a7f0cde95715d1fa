/* SPDX-License-Identifier: MIT */
/* Errors, versions, and the structs that grow with them. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "layout.h"

const char *gsc_version_string(void)
{
    return GSC_VERSION_STRING;
}

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
        "tensors overlap",
        "buffer too small",
        "saved bytes are damaged",
        "saved by a newer version, or by a candidate before 0.10",
        "not available in this build or on this machine",
        "out of memory or threads",
        "the CUDA driver failed, or the context is of another process",
        "the entries are of no format, or of several, or no format has this name",
        "the policies or states of ranks differ",
    };
    int64_t index = -(int64_t)status;
    bool known = index >= 0 && index < (int64_t)(sizeof strings / sizeof *strings);
    return known ? strings[index] : "unknown status";
}

/* Sets all of *err except the message. The subject "tensors.count" is split into name and field. */
static void begin(gsc_error *err, gsc_status status, int argument, int64_t index,
                  const char *subject)
{
    const int stem = (int)strcspn(subject, ".");
    memset(err, 0, sizeof *err);
    err->status = status;
    err->argument = argument;
    err->index = index;
    err->value = err->low = err->high = NAN;
    (void)snprintf(err->name, sizeof err->name, "%.*s", stem, subject);
    (void)snprintf(err->field, sizeof err->field, "%s", subject[stem] ? subject + stem + 1 : "");
}

/* As `begin`, and begins the message with the subject, such as "tensors[3].count ". */
static void begin_with_subject(gsc_error *err, gsc_status status, int argument, int64_t index,
                               const char *subject)
{
    begin(err, status, argument, index, subject);
    char entry[24] = "";
    if (index >= 0)
        (void)snprintf(entry, sizeof entry, "[%lld]", (long long)index);
    const int length = snprintf(err->message, sizeof err->message, "%s%s%s%s ", err->name, entry,
                                *err->field ? "." : "", err->field);
    err->subject_length = (uint32_t)length;
}

gsc_status gsc_fail(gsc_error *err, gsc_status status, int argument, int64_t index,
                    const char *subject, const char *format, ...)
{
    if (err) {
        begin_with_subject(err, status, argument, index, subject);
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(err->message + err->subject_length,
                        sizeof err->message - err->subject_length, format, arguments);
        va_end(arguments);
    }
    return status;
}

gsc_status gsc_with_numbers(gsc_status status, gsc_error *err, double value, double low,
                            double high)
{
    if (err) {
        err->value = value;
        err->low = low;
        err->high = high;
    }
    return status;
}

const char *gsc_digits(char digits[GSC_DIGITS], double value)
{
    for (int precision = 6; precision <= 17; precision += precision == 6 ? 9 : 1) {
        (void)snprintf(digits, GSC_DIGITS, "%.*g", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    return digits;
}

gsc_status gsc_fail_number(gsc_error *err, gsc_status status, int argument, int64_t index,
                           const char *subject, double value, double low, double high,
                           const char *must)
{
    if (err) {
        char digits[GSC_DIGITS];
        (void)gsc_fail(err, status, argument, index, subject, "is %s: it must be %s",
                       gsc_digits(digits, value), must);
    }
    return gsc_with_numbers(status, err, value, low, high);
}

gsc_status gsc_fail_bits(gsc_error *err, gsc_status status, int argument, const char *subject,
                         uint32_t value, uint32_t all)
{
    char must[400] = "a union of the bits"; /* room for all 32 */
    size_t length = strlen(must);
    for (uint32_t left = all; left; left &= left - 1) {
        const char *before = left == all ? " " : left & (left - 1) ? ", " : " and ";
        length += (size_t)snprintf(must + length, sizeof must - length, "%s%u", before,
                                   (unsigned)(left & -left));
    }
    return gsc_fail_number(err, status, argument, -1, subject, value, 0, all, must);
}

gsc_status gsc_fail_otherwise(gsc_error *err, gsc_status status, int argument, const char *subject,
                              const char *format, ...)
{
    if (err) {
        begin(err, status, argument, -1, subject);
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(err->message, sizeof err->message, format, arguments);
        va_end(arguments);
    }
    return status;
}

gsc_status gsc_fail_reserved(gsc_error *err, gsc_status status, int argument, int64_t index,
                             const char *subject)
{
    return gsc_fail(err, status, argument, index, subject,
                    "is not 0: this version (" GSC_VERSION_STRING ") gives it no meaning");
}

gsc_status gsc_fail_null(gsc_error *err, int argument, const char *subject)
{
    return gsc_fail(err, GSC_ERROR_NULL, argument, -1, subject,
                    "is NULL: it must point to something");
}

gsc_status gsc_fail_memory(gsc_error *err)
{
    return gsc_fail_otherwise(err, GSC_ERROR_MEMORY, -1, "", "out of memory");
}

/* A larger size is uninitialised memory, not a future version. */
#define STRUCT_SIZE_LIMIT 4096u

/* Structs grow by 8 bytes, so that no size ends inside a field. */
bool gsc_struct_size_possible(uint32_t size)
{
    return size >= 8 && size <= STRUCT_SIZE_LIMIT && size % 8 == 0;
}

/* Writes "name.field" to `subject` and returns it. */
static const char *subject_of(char subject[48], const char *name, const char *field)
{
    (void)snprintf(subject, 48, "%s.%s", name, field);
    return subject;
}

static gsc_status struct_size_of(const void *from, uint32_t *size, int argument, const char *name,
                                 gsc_error *err)
{
    char subject[48];
    memcpy(size, from, sizeof *size);
    if (!gsc_struct_size_possible(*size))
        return gsc_fail_number(
            err, GSC_ERROR_STRUCT_SIZE, argument, -1, subject_of(subject, name, "struct_size"),
            *size, 8, STRUCT_SIZE_LIMIT, "the size of the struct, which its initialiser sets");
    return GSC_OK;
}

bool gsc_all_zero(const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < size; i++)
        if (at[i])
            return false;
    return true;
}

gsc_status gsc_struct_init(void *out, uint32_t struct_size, gsc_error *err)
{
    gsc_begin(err);
    GSC_REQUIRE(out, 0);
    if (!gsc_struct_size_possible(struct_size))
        return gsc_fail_number(err, GSC_ERROR_STRUCT_SIZE, 1, -1, "struct_size", struct_size, 8,
                               STRUCT_SIZE_LIMIT, "the size of a struct, a multiple of 8");
    memset(out, 0, struct_size);
    memcpy(out, &struct_size, sizeof struct_size);
    return GSC_OK;
}

gsc_status gsc_struct_read(const void *from, void *full, uint32_t size, int argument,
                           const char *name, gsc_error *err)
{
    uint32_t from_size;
    GSC_TRY(struct_size_of(from, &from_size, argument, name, err));
    if (from_size == size) {
        memcpy(full, from, size);
        return GSC_OK;
    }
    if (from_size > size && !gsc_all_zero((const char *)from + size, from_size - size))
        return gsc_fail(err, GSC_ERROR_STRUCT_SIZE, argument, -1, name,
                        "sets fields that this version (" GSC_VERSION_STRING ") does not know");
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
    if (!truncate && !gsc_all_zero((const char *)full + common, size - common))
        return gsc_fail(err, GSC_ERROR_STRUCT_SIZE, argument, -1, name,
                        "has %u bytes and lacks fields that are needed here (%u bytes)", to_size,
                        size);
    memset(to, 0, to_size);
    memcpy(to, full, common);
    memcpy(to, &to_size, sizeof to_size);
    return GSC_OK;
}

/* ---- names and lists of the caller ---- */

const char *gsc_quoted(char quoted[GSC_QUOTED], const char *name)
{
    enum { MOST = GSC_QUOTED - 6 }; /* two quotes, three points and the end */
    size_t length = strnlen(name, MOST + 1);
    const bool cut = length > MOST;
    if (cut)
        length = MOST;
    while (cut && length > 0 && ((unsigned char)name[length] & 0xc0) == 0x80)
        length--; /* not inside a character of UTF-8 */
    (void)snprintf(quoted, GSC_QUOTED, "\"%.*s%s\"", (int)length, name, cut ? "..." : "");
    for (char *c = quoted; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' '; /* a message is one line */
    return quoted;
}

void gsc_note_add(gsc_notes *notes, uint32_t kind, int64_t entry, const char *field, double value,
                  const char *format, ...)
{
    if (notes->n++ >= notes->capacity)
        return;
    gsc_note *note = &notes->at[notes->n - 1];
    memset(note, 0, sizeof *note);
    note->kind = kind;
    note->entry = entry;
    note->value = value;
    (void)snprintf(note->field, sizeof note->field, "%s", field);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(note->message, sizeof note->message, format, arguments);
    va_end(arguments);
}

gsc_status gsc_notes_check(const gsc_notes *notes, int argument, gsc_error *err)
{
    return notes->capacity > 0 && !notes->at ? gsc_fail_null(err, argument, "notes") : GSC_OK;
}

void gsc_tell(uint64_t *count, uint64_t value)
{
    if (count)
        *count = value;
}
