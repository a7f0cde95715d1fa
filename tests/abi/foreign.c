/* SPDX-License-Identifier: MIT */
/* The signature table, and calls of what it describes. */
#include "foreign.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <signatures.inc>

static void *library;

void foreign_die(const char *what, const char *detail)
{
    fprintf(stderr, "%s: %s\n", what, detail);
    exit(255);
}

void foreign_open(const char *path)
{
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        foreign_die("cannot load the library", dlerror());
}

ffi_type *primitive(enum kind kind)
{
    static ffi_type *const types[] = {
        [S8] = &ffi_type_sint8,      [U8] = &ffi_type_uint8,   [S16] = &ffi_type_sint16,
        [U16] = &ffi_type_uint16,    [S32] = &ffi_type_sint32, [U32] = &ffi_type_uint32,
        [S64] = &ffi_type_sint64,    [U64] = &ffi_type_uint64, [FLOAT] = &ffi_type_float,
        [DOUBLE] = &ffi_type_double, [CHAR] = &ffi_type_schar, [POINTER] = &ffi_type_pointer,
        [VOID] = &ffi_type_void};
    return types[kind];
}

value foreign_call(const function *f, const value *arguments)
{
    ffi_cif cif;
    ffi_type *types[MAX_ARGUMENTS];
    void *pointers[MAX_ARGUMENTS], *symbol = dlsym(library, f->name);
    void (*code)(void);
    value result = {0};
    unsigned n = 0;
    if (!symbol)
        foreign_die("the library lacks", f->name);
    memcpy(&code, &symbol, sizeof code); /* ISO C has no such cast */
    for (; f->arguments[n].name; n++) {
        if (n == MAX_ARGUMENTS)
            foreign_die("too many arguments for", f->name);
        types[n] = primitive(f->arguments[n].kind);
        pointers[n] = (void *)&arguments[n];
    }
    if (ffi_prep_cif(&cif, FFI_DEFAULT_ABI, n, primitive(f->result), types) != FFI_OK)
        foreign_die("libffi refuses the signature of", f->name);
    ffi_call(&cif, code, &result, pointers);
    if (f->result <= U32)
        result.u32 = (uint32_t)result.widened;
    return result;
}

int32_t foreign_do(const char *name, const value *arguments)
{
    const function *f = find_function(name);
    if (!f)
        foreign_die("the table lacks", name);
    return foreign_call(f, arguments).s32;
}

const structure *find_structure(const char *name)
{
    for (const structure *s = structures; s->name; s++)
        if (strcmp(s->name, name) == 0)
            return s;
    return NULL;
}

const function *find_function(const char *name)
{
    for (const function *f = functions; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

const field *find_field(const char *structure_name, const char *name)
{
    const structure *s = find_structure(structure_name);
    for (const field *f = s ? s->fields : NULL; f && f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

void *field_of(void *object, const char *structure_name, const char *name)
{
    const field *f = find_field(structure_name, name);
    if (!f)
        foreign_die("the table lacks the field", name);
    return (char *)object + f->offset;
}
