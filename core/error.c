/* SPDX-License-Identifier: MIT */
/* Errors, versions, and the structs that grow with them. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "layout.h"

/* The tool `what`, and build scripts that cannot run the library, find this mark in its file. */
static const char what[] = "@(#)gradscaler " GSC_VERSION_STRING;

const char *gsc_version_string(void)
{
    return strchr(what, ' ') + 1;
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

/* ---- sentences ---- */

size_t gsc_character_length(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    const size_t length = c[0] < 0x80                   ? 1
                          : c[0] >= 0xc2 && c[0] < 0xe0 ? 2
                          : c[0] >= 0xe0 && c[0] < 0xf0 ? 3
                          : c[0] >= 0xf0 && c[0] < 0xf5 ? 4
                                                        : 0;
    for (size_t i = 1; i < length; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    const bool is_long_form = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90);
    const bool is_no_code = (c[0] == 0xed && c[1] > 0x9f) || (c[0] == 0xf4 && c[1] > 0x8f);
    return is_long_form || is_no_code ? 0 : length;
}

#define CUT_MARK "..."

/* Ends a text of `length` bytes in `size` bytes of memory: cuts it at a character. */
static void end_text(char *text, size_t size, size_t length)
{
    if (length < size)
        return;
    length = size - sizeof CUT_MARK;
    while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80)
        length--;
    memcpy(text + length, CUT_MARK, sizeof CUT_MARK);
}

/* Returns true if the character breaks a line or controls a terminal. */
static bool is_control(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    return c[0] < ' ' || c[0] == 0x7f || (c[0] == 0xc2 && c[1] < 0xa0) ||
           (c[0] == 0xe2 && c[1] == 0x80 && (c[2] == 0xa8 || c[2] == 0xa9));
}

void gsc_quote(char *to, size_t size, const char *text)
{
    size_t length = 1;
    *to = '"';
    while (*text) {
        const size_t bytes = gsc_character_length(text), taken = bytes ? bytes : 1;
        const size_t after = text[taken] ? sizeof CUT_MARK : 1; /* room for a mark, and a quote */
        if (length + taken + after >= size) {
            memcpy(to + length, CUT_MARK, strlen(CUT_MARK));
            length += strlen(CUT_MARK);
            break;
        }
        if (!bytes || is_control(text)) {
            to[length++] = bytes ? ' ' : '?';
        } else {
            memcpy(to + length, text, taken);
            length += taken;
        }
        text += taken;
    }
    to[length] = '"';
    to[length + 1] = '\0';
}

struct gsc_text gsc_quoted(const char *text)
{
    struct gsc_text made;
    gsc_quote(made.text, 168, text);
    return made;
}

/* Writes a point for what the locale has between a number and its fraction. */
static void write_point(char *digits)
{
    const size_t whole = strspn(digits, "-0123456789");
    const size_t point = strcspn(digits + whole, "0123456789einf");
    if (point == 0 || !digits[whole + point])
        return;
    digits[whole] = '.';
    memmove(digits + whole + 1, digits + whole + point, strlen(digits + whole + point) + 1);
}

struct gsc_text gsc_digits(int precision, double value)
{
    struct gsc_text made;
    int at_most = precision ? precision : 17;
    for (precision = precision ? precision : 6; precision <= at_most;
         precision += precision == 6 ? 9 : 1) {
        (void)snprintf(made.text, sizeof made.text, "%.*g", precision, value);
        if (strtod(made.text, NULL) == value)
            break;
    }
    write_point(made.text);
    return made;
}

struct gsc_text gsc_digits_apart(double value, double other)
{
    int precision = 6;
    while (precision < 17 && value != other &&
           strcmp(gsc_digits(precision, value).text, gsc_digits(precision, other).text) == 0)
        precision++;
    return gsc_digits(precision, value);
}

/* Returns the edit distance of two words: letters inserted, deleted or replaced. */
static uint32_t edit_distance(const char *a, const char *b)
{
    enum { MAX_LENGTH = 24 };
    uint32_t row[MAX_LENGTH + 1];
    const size_t length = strlen(b);
    if (length > MAX_LENGTH)
        return MAX_LENGTH;
    for (uint32_t j = 0; j <= length; j++)
        row[j] = j;
    for (uint32_t i = 0; a[i]; i++) {
        uint32_t diagonal = row[0];
        row[0] = i + 1;
        for (uint32_t j = 1; j <= length; j++) {
            const uint32_t exchanged = diagonal + (a[i] != b[j - 1]);
            diagonal = row[j];
            row[j] = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            row[j] = row[j] < exchanged ? row[j] : exchanged;
        }
    }
    return row[length];
}

/* The name that the unknown one contains or begins is meant, or else the most similar. */
struct gsc_text gsc_did_you_mean(const char *before, const char *name, const char *const *names,
                                 size_t stride)
{
    struct gsc_text made = {""};
    const size_t length = strnlen(name, 40);
    const char *best = NULL;
    uint32_t least = 3; /* with 3 edits or more, it is another word */
    for (; *names && least > 0; names = (const void *)((const char *)names + stride)) {
        const bool similar =
            strstr(name, *names) || (length >= 3 && strncmp(*names, name, length) == 0);
        const uint32_t edits = similar ? 0 : length < 40 ? edit_distance(name, *names) : least;
        best = edits < least ? *names : best;
        least = edits < least ? edits : least;
    }
    if (best)
        (void)snprintf(made.text, sizeof made.text, "%sdid you mean \"%s\"?", before, best);
    return made;
}

size_t gsc_write(char *to, size_t size, const char *format, va_list arguments)
{
    const int length = vsnprintf(to, size, format, arguments);
    end_text(to, size, (size_t)length);
    char *c = to;
    for (size_t bytes; *c; c += bytes ? bytes : 1)
        if (!(bytes = gsc_character_length(c))) /* of the system, in the charset of its locale */
            *c = '?';
    return (size_t)(c - to);
}

void gsc_scramble(char *sentence)
{
#if defined(GSC_SCRAMBLE_SENTENCES)
    for (char *c = sentence; *c; c++)
        if (*c > ' ' && *c < 0x7f)
            *c = (char)('!' + (*c - '!' + 31) % 94);
#else
    (void)sentence;
#endif
}

/* ---- errors ---- */

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

static void write_message(gsc_error *err, const char *format, va_list arguments)
{
    char *rest = err->message + err->subject_length;
    (void)gsc_write(rest, sizeof err->message - err->subject_length, format, arguments);
    gsc_scramble(rest);
}

/* As `begin`, and begins the message with the subject: "entries[3].value of "scale" ". */
static void begin_with_subject(gsc_error *err, gsc_status status, int argument, int64_t index,
                               const char *subject, const char *key)
{
    begin(err, status, argument, index, subject);
    char entry[24] = "";
    if (index >= 0)
        (void)snprintf(entry, sizeof entry, "[%lld]", (long long)index);
    const int length = snprintf(err->message, sizeof err->message, "%s%s%s%s %s%s%s", err->name,
                                entry, *err->field ? "." : "", err->field, key ? "of " : "",
                                key ? GSC_QUOTED(key) : "", key ? " " : "");
    err->subject_length = (uint32_t)length;
}

gsc_status gsc_fail(gsc_error *err, gsc_status status, int argument, int64_t index,
                    const char *subject, const char *format, ...)
{
    if (err) {
        begin_with_subject(err, status, argument, index, subject, NULL);
        va_list arguments;
        va_start(arguments, format);
        write_message(err, format, arguments);
        va_end(arguments);
    }
    return status;
}

gsc_status gsc_fail_value(gsc_error *err, gsc_status status, int argument, int64_t index,
                          const char *subject, const char *key, const char *shown,
                          const char *format, ...)
{
    if (err) {
        begin_with_subject(err, status, argument, index, subject, key);
        char *rest = err->message + err->subject_length;
        const size_t room = sizeof err->message - err->subject_length;
        const int before = snprintf(rest, room, "is %s: it must be ", shown);
        err->requirement_start = err->subject_length + (uint32_t)before;
        va_list arguments;
        va_start(arguments, format);
        (void)gsc_write(rest + before, room - (size_t)before, format, arguments);
        va_end(arguments);
        gsc_scramble(rest);
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

gsc_status gsc_fail_number(gsc_error *err, gsc_status status, int argument, int64_t index,
                           const char *subject, double value, double low, double high,
                           const char *must)
{
    (void)gsc_fail_value(err, status, argument, index, subject, NULL, GSC_EXACT(value), "%s", must);
    return gsc_with_numbers(status, err, value, low, high);
}

gsc_status gsc_fail_bits(gsc_error *err, gsc_status status, int argument, const char *subject,
                         uint32_t value, uint32_t all)
{
    char must[400]; /* room for all 32 */
    const bool is_one = (all & (all - 1)) == 0;
    size_t length =
        (size_t)snprintf(must, sizeof must, "%s", is_one ? "0 or" : "a union of the bits");
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
        write_message(err, format, arguments);
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

/* ---- notes ---- */

/* The order of the notes on a list of entries. */
static const uint32_t kinds[] = {GSC_NOTE_UNUSABLE, GSC_NOTE_OUTSIDE_LIMITS, GSC_NOTE_CHANGED,
                                 GSC_NOTE_LOST,     GSC_NOTE_FORMAT,         GSC_NOTE_IGNORED,
                                 GSC_NOTE_MISSING};
enum { KINDS = sizeof kinds / sizeof *kinds };
_Static_assert(KINDS <= sizeof((gsc_notes *)0)->of_kind / sizeof(uint64_t), "room for all kinds");

static int order_of(uint32_t kind)
{
    int order = 0;
    while (order < KINDS - 1 && kinds[order] != kind)
        order++;
    return order;
}

void gsc_notes_sort(gsc_notes *notes, const gsc_notes *counted)
{
    uint64_t before = 0;
    notes->is_sorted = true;
    for (int order = 0; order < KINDS; order++) {
        notes->of_kind[order] = before;
        before += counted->of_kind[order];
    }
}

/* Removes the marks of GSC_VALUE, and writes down what is between them. */
static void find_value(gsc_note *note)
{
    char *start = strchr(note->message, GSC_VALUE_MARK);
    char *end = start ? strchr(start + 1, GSC_VALUE_MARK) : NULL;
    if (!end)
        return;
    note->value_start = (uint32_t)(start - note->message);
    note->value_length = (uint32_t)(end - start - 1);
    memmove(start, start + 1, note->value_length);
    memmove(end - 1, end + 1, strlen(end + 1) + 1);
}

void gsc_note_add(gsc_notes *notes, uint32_t kind, int64_t entry, const char *field, double value,
                  const char *format, ...)
{
    uint64_t *of_kind = &notes->of_kind[order_of(kind)];
    const uint64_t at = notes->is_sorted ? *of_kind : notes->n;
    notes->n++;
    ++*of_kind;
    if (at >= notes->capacity)
        return;
    gsc_note *note = &notes->at[at];
    memset(note, 0, sizeof *note);
    note->kind = kind;
    note->entry = entry;
    note->value = value;
    (void)snprintf(note->field, sizeof note->field, "%s", field);
    va_list arguments;
    va_start(arguments, format);
    (void)gsc_write(note->message, sizeof note->message, format, arguments);
    va_end(arguments);
    find_value(note);
    gsc_scramble(note->message);
}

static const struct {
    const char *field;
    uint32_t value;
    bool is_bit;
    const char *name;
} value_names[] = {GSC_VALUE_NAMES};

struct gsc_text gsc_name_of(const char *field, double value)
{
    struct gsc_text made = {""};
    size_t length = 0;
    for (size_t i = 0; i < sizeof value_names / sizeof *value_names; i++)
        if (strcmp(value_names[i].field, field) == 0 && value >= 0 && value <= UINT32_MAX &&
            (value_names[i].is_bit ? ((uint32_t)value & value_names[i].value) != 0
                                   : value == value_names[i].value))
            length += (size_t)snprintf(made.text + length, sizeof made.text - length, "%s%s",
                                       length ? "|" : "", value_names[i].name);
    if (!length)
        length = (size_t)snprintf(made.text, sizeof made.text, "%s", GSC_EXACT(value));
    return made;
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
