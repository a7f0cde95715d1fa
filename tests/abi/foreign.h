/* SPDX-License-Identifier: MIT */
/*
 * The library as a foreign language sees it: the signature table as data, and calls by name through
 * libffi. Nothing here knows gradscaler.h, so what works does so by the table alone.
 */
#ifndef GSC_FOREIGN_H
#define GSC_FOREIGN_H

#include <ffi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kind { S8, U8, S16, U16, S32, U32, S64, U64, FLOAT, DOUBLE, CHAR, POINTER, NESTED, VOID };

typedef struct field {
    const char *name;
    enum kind kind;
    uint32_t count, offset;
} field;

typedef struct structure {
    const char *name;
    uint32_t size;
    int grows;           /* its first member is its size */
    const field *fields; /* ended by one without name */
} structure;

enum nullable { NEVER, ALWAYS, WITHOUT_COUNT };
enum pass { VALUE, IN, OUT, INOUT, HANDLE, CREATE, DESTROY };

typedef struct argument {
    enum kind kind;
    const char *type;
    enum pass pass;
    const char *name;
    int nullable;
    int count; /* index of the argument that holds the length, or -1 */
} argument;

typedef struct function {
    const char *name;
    enum kind result;
    const argument *arguments; /* ended by one without name */
} function;

extern const structure structures[]; /* both ended by one without name */
extern const function functions[];

enum { MAX_ARGUMENTS = 32 };

typedef union value {
    void *pointer; /* first, so that {0} is NULL */
    int32_t s32;
    uint32_t u32;
    float single;
    uint64_t u64;
    double number;
    const void *constant;
    ffi_arg widened; /* libffi returns narrow integers so */
} value;

void foreign_die(const char *what, const char *detail);
/* These end the program with a message where the library or the table lacks what is asked for. */
void foreign_open(const char *path);
value foreign_call(const function *f, const value *arguments);
/* The same by name, for functions that return a status. */
int32_t foreign_do(const char *name, const value *arguments);

/* NULL where the table has none of the name. */
const structure *find_structure(const char *name);
const function *find_function(const char *name);
const field *find_field(const char *structure_name, const char *name);

/* Address of a field in an object of that struct. */
void *field_of(void *object, const char *structure_name, const char *name);
ffi_type *primitive(enum kind kind);

/* ---- a call to be tried: its arguments, and all memory that they point to ---- */

enum { MOST_BLOCKS = 32 };

enum role { READ, WRITTEN, ERROR };

/* Memory that a call is given, and what was in it before. */
typedef struct block {
    unsigned char *bytes, *before;
    size_t size;
    enum role role;
    const char *argument;
} block;

typedef struct attempt {
    const function *function;
    value arguments[MAX_ARGUMENTS];
    block blocks[MOST_BLOCKS];
    int used;
    void *context; /* a handle that the call only borrows */
} attempt;

/* Good arguments, except for NULL in place `null_at` (-1: nowhere); `empty`: its count is 0. */
void prepare(attempt *a, const function *f, int null_at, bool empty);
/* Frees the memory, and the context that a call which succeeded made. */
void release(attempt *a, bool succeeded);

#endif
