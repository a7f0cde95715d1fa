/* SPDX-License-Identifier: MIT */
/*
 * Client and library of different ages: the library's reader and writer of structs that grow, told
 * each size that such a struct can have had. What was set, and the older one lacks, is refused by
 * name; all else goes on, and nothing behind a struct is touched.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foreign.h"
#include "internal.h"

enum { DIRT = 0x5A, ROOM = 8, MOST = 1024 };

static int failed;

static void check(int holds, const char *what, const char *name, unsigned size)
{
    if (!holds)
        printf("FAIL %s: %s, for one who knows %u bytes\n", name, what, size);
    failed += !holds;
}

static int all(const unsigned char *bytes, int value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return 0;
    return 1;
}

/* A struct of that size in dirty memory; filled: it is dirty, too, else zeros. */
static void make(unsigned char *bytes, uint32_t size, bool filled)
{
    memset(bytes, DIRT, MOST);
    if (!filled)
        memset(bytes, 0, size);
    memcpy(bytes, &size, sizeof size);
}

/* From a client that knows `from_size` bytes to a library that knows `size`, one field set. */
static void check_read(const structure *s, const field *f, uint32_t from_size, uint32_t size)
{
    unsigned char client[MOST], full[MOST];
    const uint32_t common = from_size < size ? from_size : size;
    const char *what = f ? f->name : "no field";
    gsc_error err;
    make(client, from_size, false);
    make(full, 0, true);
    if (f && f->offset < from_size)
        client[f->offset] = 1;
    const gsc_status status = gsc_struct_read(client, full, size, 0, s->name, &err);
    if (f && f->offset < from_size && f->offset >= size) {
        check(status == GSC_ERROR_STRUCT_SIZE && strcmp(err.name, s->name) == 0, what, s->name,
              common);
        return;
    }
    check(status == GSC_OK, what, s->name, common);
    check(memcmp(full, &size, sizeof size) == 0 && memcmp(full + 4, client + 4, common - 4) == 0 &&
              all(full + common, 0, size - common),
          "is not read as it is", s->name, common);
    check(all(full + size, DIRT, ROOM), "is read beyond its end", s->name, common);
}

/* To a client that knows `to_size` bytes from a library that knows `size`. */
static void check_write(const structure *s, uint32_t to_size, uint32_t size, bool truncate)
{
    unsigned char full[MOST], client[MOST], before[MOST];
    const uint32_t common = to_size < size ? to_size : size;
    gsc_error err;
    make(full, size, true);
    make(client, to_size, true);
    memcpy(before, client, MOST);
    const gsc_status status = gsc_struct_write(full, size, client, truncate, 0, s->name, &err);
    if (to_size < size && !truncate) {
        check(status == GSC_ERROR_STRUCT_SIZE && strcmp(err.name, s->name) == 0 &&
                  memcmp(client, before, MOST) == 0,
              "is written though it lacks fields", s->name, to_size);
        return;
    }
    check(status == GSC_OK && memcmp(client, &to_size, sizeof to_size) == 0 &&
              memcmp(client + 4, full + 4, common - 4) == 0 &&
              all(client + common, 0, to_size - common) && all(client + to_size, DIRT, ROOM),
          "is not filled with zeros", s->name, to_size);
}

static void check_struct(const structure *s)
{
    for (uint32_t older = 8; older < s->size; older += 8) {
        for (const field *f = s->fields; f->name; f++) {
            const field *set = f == s->fields ? NULL : f; /* the first is the size */
            check_read(s, set, s->size, older);
            check_read(s, set, older, s->size);
        }
        for (int truncate = 0; truncate < 2; truncate++) {
            check_write(s, s->size, older, truncate);
            check_write(s, older, s->size, truncate);
        }
    }
}

int main(void)
{
    for (const structure *s = structures; s->name; s++)
        if (s->grows)
            check_struct(s);
    printf("%d failed\n", failed);
    return failed > 0;
}
