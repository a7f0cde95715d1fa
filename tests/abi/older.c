/* SPDX-License-Identifier: MIT */
/*
 * A client of this version meets an older library, which is simulated by its size limits: the
 * library's reader and writer of structs that grow, told each size that such a struct may have had.
 * What was set and the older one lacks is refused by name; all else goes on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foreign.h"
#include "internal.h"

enum { DIRT = 0x5A, ROOM = 8 };

static int failed;

static void check(int holds, const char *what, const char *name, unsigned size)
{
    if (!holds)
        printf("FAIL %s: %s, for a library that knows %u bytes\n", name, what, size);
    failed += !holds;
}

/* One field set to something; 0 if the older reader took the struct. */
static gsc_status read_with(const structure *s, const field *f, uint32_t known, gsc_error *err)
{
    unsigned char *client = calloc(1, s->size), *full = malloc(known + ROOM);
    memcpy(client, &s->size, sizeof s->size);
    memset(full, DIRT, known + ROOM);
    if (f)
        client[f->offset] = 1;
    const gsc_status status = gsc_struct_read(client, full, known, 0, s->name, err);
    int kept = status != GSC_OK || memcmp(full + 4, client + 4, known - 4) == 0;
    for (int i = 0; i < ROOM; i++)
        kept &= full[known + (uint32_t)i] == DIRT;
    check(kept, "is not read as it is", s->name, known);
    free(client);
    free(full);
    return status;
}

static void check_write(const structure *s, uint32_t known)
{
    unsigned char *full = malloc(known), *client = malloc(s->size);
    memset(full, DIRT, known);
    memset(client, DIRT, s->size);
    memcpy(client, &s->size, sizeof s->size);
    int done = gsc_struct_write(full, known, client, false, 0, s->name, NULL) == GSC_OK;
    done &= memcmp(client, &s->size, sizeof s->size) == 0;
    done &= memcmp(client + 4, full + 4, known - 4) == 0;
    for (uint32_t i = known; i < s->size; i++)
        done &= client[i] == 0;
    check(done, "is not filled with zeros", s->name, known);
    free(full);
    free(client);
}

static void check_struct(const structure *s)
{
    gsc_error err;
    int fields = 0, sizes = 0;
    for (uint32_t known = 8; known < s->size; known += 8, sizes++) {
        check(read_with(s, NULL, known, NULL) == GSC_OK, "is refused without need", s->name, known);
        check_write(s, known);
        for (const field *f = s->fields + 1; f->name; f++, fields++) {
            const gsc_status status = read_with(s, f, known, &err);
            if (f->offset < known)
                check(status == GSC_OK, f->name, s->name, known);
            else
                check(status == GSC_ERROR_STRUCT_SIZE && strcmp(err.name, s->name) == 0, f->name,
                      s->name, known);
        }
    }
    printf("     %s: %d sizes, %d fields\n", s->name, sizes, fields);
}

int main(void)
{
    for (const structure *s = structures; s->name; s++)
        if (s->grows)
            check_struct(s);
    printf("%d failed\n", failed);
    return failed > 0;
}
