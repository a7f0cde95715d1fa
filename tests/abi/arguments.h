/* SPDX-License-Identifier: MIT */
/* A call to be tried: its arguments, and all memory that they point to, with a copy from before. */
#ifndef GSC_ARGUMENTS_H
#define GSC_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>

#include "foreign.h"

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
