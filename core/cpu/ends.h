/* SPDX-License-Identifier: MIT */
/* Loads and stores of up to 16 bytes and no other byte, for instruction sets without masks. */
#ifndef GSC_ENDS_H
#define GSC_ENDS_H

#include <stdint.h>
#include <string.h>

typedef struct gsc_end {
    uint64_t low, high;
} gsc_end;

/* Loads 8 bytes, or the first `bytes` with two loads that can overlap. */
static inline uint64_t gsc_load_word(const void *at, uint64_t bytes)
{
    const char *from = at;
    uint64_t x = 0;
    uint32_t low = 0, high = 0;
    if (bytes >= 8) {
        memcpy(&x, from, 8);
        return x;
    }
    if (bytes >= 4) {
        memcpy(&low, from, 4);
        memcpy(&high, from + bytes - 4, 4);
        return low | (uint64_t)high << (8 * (bytes - 4));
    }
    if (bytes >= 2) {
        memcpy(&low, from, 2);
        memcpy(&high, from + bytes - 2, 2);
        return low | (uint64_t)high << (8 * (bytes - 2));
    }
    memcpy(&low, from, bytes);
    return low;
}

static inline void gsc_store_word(void *at, uint64_t x, uint64_t bytes)
{
    char *to = at;
    if (bytes >= 8) {
        memcpy(to, &x, 8);
    } else if (bytes >= 4) {
        const uint32_t low = (uint32_t)x, high = (uint32_t)(x >> (8 * (bytes - 4)));
        memcpy(to, &low, 4);
        memcpy(to + bytes - 4, &high, 4);
    } else if (bytes >= 2) {
        const uint16_t low = (uint16_t)x, high = (uint16_t)(x >> (8 * (bytes - 2)));
        memcpy(to, &low, 2);
        memcpy(to + bytes - 2, &high, 2);
    } else {
        memcpy(to, &x, bytes);
    }
}

static inline gsc_end gsc_load_end(const void *at, uint64_t bytes)
{
    gsc_end x = {gsc_load_word(at, bytes), 0};
    if (bytes > 8)
        x.high = gsc_load_word((const char *)at + 8, bytes - 8);
    return x;
}

static inline void gsc_store_end(void *at, gsc_end x, uint64_t bytes)
{
    gsc_store_word(at, x.low, bytes);
    if (bytes > 8)
        gsc_store_word((char *)at + 8, x.high, bytes - 8);
}

#endif
