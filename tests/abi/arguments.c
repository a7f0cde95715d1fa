/* SPDX-License-Identifier: MIT */
/*
 * Good arguments, built from the types and how they are passed: what a call reads is made by the
 * library itself, what it writes is poison, so that a forbidden write shows.
 */
#include "foreign.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LIST = 2,     /* structs in a list */
    ENTRIES = 64, /* of entries that are written: they hold any state */
    ELEMENTS = 4, /* float32 in a tensor */
    SAVED = 1024, /* bytes for a saved state */
    POISON = 0x5A
};

static void *new_block(attempt *a, const char *argument, enum role role, size_t size)
{
    block *b = &a->blocks[a->used++];
    if (a->used > MOST_BLOCKS)
        foreign_die("too much memory is needed for", a->function->name);
    *b = (block){malloc(size), malloc(size), size, role, argument};
    memset(b->bytes, role == READ ? 0 : POISON, size);
    return b->bytes;
}

static void set_struct_size(const structure *s, void *object)
{
    if (s->grows)
        memcpy(object, &s->size, sizeof s->size);
}

static void fill_policy(void *policy)
{
    set_struct_size(find_structure("gsc_policy"), policy);
    foreign_do("gsc_policy_preset", (value[]){{.constant = "torch"}, {.pointer = policy}, {0}});
}

static void fill_state(void *state)
{
    void *policy = malloc(find_structure("gsc_policy")->size);
    fill_policy(policy);
    foreign_do("gsc_state_init", (value[]){{0}, {.pointer = policy}, {.pointer = state}, {0}});
    free(policy);
}

static void fill_tensors(attempt *a, const argument *at, char *list)
{
    /* A call without `exec` computes nothing. */
    const bool computes = strcmp(a->function->arguments[0].name, "exec") == 0;
    const enum role role = computes && strcmp(at->name, "out") == 0 ? WRITTEN : READ;
    for (int i = 0; i < LIST; i++, list += find_structure("gsc_tensor")->size) {
        void *data = new_block(a, at->name, role, ELEMENTS * sizeof(float));
        if (role == READ)
            memset(data, 0x6e, ELEMENTS * sizeof(float)); /* large: its sum with poison shows */
        memcpy(field_of(list, "gsc_tensor", "data"), &data, sizeof data);
        memcpy(field_of(list, "gsc_tensor", "count"), &(uint64_t){ELEMENTS}, 8);
        memcpy(field_of(list, "gsc_tensor", "dtype"), &(uint32_t){1}, 4);
    }
}

static uint32_t list_of(const argument *at)
{
    const bool all = strcmp(at->type, "gsc_entry") == 0 && at->pass == OUT;
    return at->count < 0 ? 1 : all ? ENTRIES : LIST;
}

/* Fills a list with reports on lists that were measured, and became zero. */
static void fill_reports(const argument *at, char *list)
{
    for (uint32_t i = 0; i < list_of(at); i++, list += find_structure("gsc_report")->size) {
        memcpy(field_of(list, "gsc_report", "kind"), &(uint32_t){1}, 4);
        memcpy(field_of(list, "gsc_report", "measured"), &(uint32_t){7}, 4);
        memcpy(field_of(list, "gsc_report", "elements"), &(int64_t){2}, 8);
        memcpy(field_of(list, "gsc_report", "underflows_to_zero"), &(int64_t){2}, 8);
    }
}

/* A scale and a count, which make a checkpoint. */
static void fill_entries(char *list)
{
    const char *const keys[LIST] = {"scale", "fin_steps"};
    for (int i = 0; i < LIST; i++, list += find_structure("gsc_entry")->size) {
        strcpy(field_of(list, "gsc_entry", "key"), keys[i]);
        memcpy(field_of(list, "gsc_entry", "kind"), &(uint32_t){1}, 4);
        memcpy(field_of(list, "gsc_entry", "value"), &(double){2}, 8);
    }
}

/* Returns an argument that a call reads; a struct that grows is all zeros once its size is set. */
static void *new_input(attempt *a, const argument *at, const structure *s)
{
    void *object = new_block(a, at->name, READ, s->size * list_of(at));
    set_struct_size(s, object);
    if (strcmp(s->name, "gsc_policy") == 0)
        fill_policy(object);
    else if (strcmp(s->name, "gsc_state") == 0)
        fill_state(object);
    else if (strcmp(s->name, "gsc_factor") == 0)
        foreign_do("gsc_factor_init", (value[]){{.number = 1024}, {.pointer = object}, {0}});
    else if (strcmp(s->name, "gsc_report") == 0)
        fill_reports(at, object);
    else if (strcmp(s->name, "gsc_tensor") == 0)
        fill_tensors(a, at, object);
    else if (strcmp(s->name, "gsc_entry") == 0)
        fill_entries(object);
    else if (strcmp(s->name, "gsc_cpu_options") == 0)
        memcpy(field_of(object, s->name, "threads"), &(uint32_t){1}, 4);
    return object;
}

/* Returns an argument that a call writes: poison, and the size if the struct has one. */
static void *new_output(attempt *a, const argument *at, const structure *s)
{
    const uint32_t size = s->size * list_of(at);
    enum role role = strcmp(s->name, "gsc_error") == 0 ? ERROR : WRITTEN;
    void *object = new_block(a, at->name, role, size);
    set_struct_size(s, object);
    return object;
}

/* A saved state; bytes NULL: only its size. */
static uint64_t save(void *bytes)
{
    uint64_t size = 0;
    void *policy = malloc(find_structure("gsc_policy")->size);
    void *state = malloc(find_structure("gsc_state")->size);
    fill_policy(policy);
    fill_state(state);
    foreign_do("gsc_state_save", (value[]){{.pointer = policy},
                                           {.pointer = state},
                                           {.pointer = bytes},
                                           {.u64 = bytes ? SAVED : 0},
                                           {.pointer = &size},
                                           {0}});
    free(policy);
    free(state);
    return size;
}

static void *new_context(void)
{
    void *context = NULL, *options = calloc(1, find_structure("gsc_cpu_options")->size);
    set_struct_size(find_structure("gsc_cpu_options"), options);
    memcpy(field_of(options, "gsc_cpu_options", "threads"), &(uint32_t){1}, 4);
    foreign_do("gsc_context_create_cpu",
               (value[]){{.pointer = options}, {.pointer = &context}, {0}});
    free(options);
    return context;
}

static void *new_memory(void *context)
{
    void *memory = NULL;
    foreign_do("gsc_memory_create",
               (value[]){{.pointer = context}, {0}, {.u64 = SAVED}, {.pointer = &memory}, {0}});
    return memory;
}

static void *good_pointer(attempt *a, const argument *at)
{
    const structure *s = find_structure(at->type);
    const enum role role = at->pass == IN ? READ : WRITTEN;
    void *result = NULL;
    if (s)
        return (at->pass == IN ? new_input : new_output)(a, at, s);
    if (strcmp(at->type, "gsc_context") == 0 && at->pass != CREATE) {
        result = new_context();
        if (at->pass == HANDLE)
            a->context = result;
    } else if (strcmp(at->type, "string") == 0 && at->pass == IN) { /* a list of them */
        static const char *const texts[LIST] = {"embed.weight", "head.weight"};
        result = memcpy(new_block(a, at->name, READ, sizeof texts), texts, sizeof texts);
    } else if (strcmp(at->type, "string") == 0) {
        const char *text = strcmp(at->name, "prefix") == 0   ? ""
                           : strcmp(at->name, "format") == 0 ? "megatron" /* lacks a key */
                                                             : "torch";
        result = strcpy(new_block(a, at->name, READ, sizeof "megatron"), text);
    } else if (strcmp(at->type, "pointer") == 0 && at->pass == DESTROY) {
        result = new_memory(a->arguments[0].pointer);
    } else if (at->pass != VALUE) { /* numbers, bytes, a place for a pointer */
        result = new_block(a, at->name, role, SAVED);
        if (strcmp(at->type, "bytes") == 0 && at->pass == IN)
            save(result);
        else if (strcmp(at->type, "double") == 0 && at->pass == IN)
            memcpy(result, &(double){1024}, 8);
    }
    return result;
}

/* The length of what a pointer of this type points to here. */
static uint64_t length_of(const argument *at)
{
    if (strcmp(at->type, "bytes") == 0 && at->pass == IN)
        return save(NULL);
    if (strcmp(at->type, "uint64_t") == 0)
        return SAVED / sizeof(uint64_t);
    const bool bytes = strcmp(at->type, "bytes") == 0 || strcmp(at->type, "pointer") == 0;
    return bytes ? SAVED : list_of(at);
}

static value good_number(const function *f, const argument *at)
{
    for (const argument *other = f->arguments; other->name; other++)
        if (other->count >= 0 && &f->arguments[other->count] == at)
            return (value){.u64 = length_of(other)};
    if (at->kind == DOUBLE)
        return (value){.number = 1024};
    if (at->kind == FLOAT)
        return (value){.single = 1024};
    if (strcmp(at->name, "dtype") == 0)
        return (value){.u32 = 1};
    return (value){.u64 = strcmp(at->name, "size") == 0 ? SAVED : 0}; /* an index, a kind */
}

void prepare(attempt *a, const function *f, int null_at, bool empty)
{
    *a = (attempt){.function = f};
    for (int i = 0; f->arguments[i].name; i++) {
        const argument *at = &f->arguments[i];
        if (i == null_at)
            a->arguments[i].pointer = NULL;
        else if (at->kind == POINTER)
            a->arguments[i].pointer = good_pointer(a, at);
        else
            a->arguments[i] = good_number(f, at);
    }
    if (empty)
        a->arguments[f->arguments[null_at].count].u64 = 0;
    for (int i = 0; i < a->used; i++)
        memcpy(a->blocks[i].before, a->blocks[i].bytes, a->blocks[i].size);
}

void release(attempt *a, bool succeeded)
{
    const argument *at = a->function->arguments;
    for (int i = 0; at[i].name && succeeded; i++) {
        if (at[i].pass != CREATE)
            continue;
        const value made = {.pointer = *(void **)a->arguments[i].pointer};
        if (strcmp(at[i].type, "gsc_context") == 0)
            foreign_call(find_function("gsc_context_destroy"), &made);
        else
            foreign_call(find_function("gsc_memory_destroy"), (value[]){a->arguments[0], made});
    }
    if (a->context)
        foreign_call(find_function("gsc_context_destroy"), &(value){.pointer = a->context});
    for (int i = 0; i < a->used; i++) {
        free(a->blocks[i].bytes);
        free(a->blocks[i].before);
    }
}
