/* SPDX-License-Identifier: MIT */
/* What a dtype is made of: convert.h by number. */
#ifndef GSC_DTYPES_H
#define GSC_DTYPES_H

#include <stdbool.h>

#include "bits.h"
#include "convert.h"
#include "gradscaler.h"

/* A dtype, by its GSC_* constant, as real numbers of a dtype of convert.h. */
struct gsc_real {
    uint8_t real, parts, size; /* size: bytes of an element */
    char name[16];
};
extern const struct gsc_real gsc_reals[GSC_COMPLEX128 + 1];

/* A dtype of convert.h: bytes; least |bits| that are not finite, are NaN, are normal. */
struct gsc_encoding {
    uint64_t size, infinity, nan, normal;
};
extern const struct gsc_encoding gsc_encodings[];

/* The largest value of a dtype of convert.h that is not above `clamp` > 0; 0 if only 0 is not. */
double gsc_clamp_limit(uint32_t dtype, double clamp);

static inline bool gsc_is_dtype(uint64_t dtype)
{
    return dtype - 1 < sizeof gsc_reals / sizeof *gsc_reals - 1;
}

/* In numbers: real ones, or the parts of complex ones. */
static inline uint64_t gsc_numbers_of(const gsc_tensor *tensor)
{
    return tensor->count * gsc_reals[tensor->dtype].parts;
}

static inline uint64_t gsc_chunks_of(const gsc_tensor *tensor)
{
    return (gsc_numbers_of(tensor) + GSC_CHUNK - 1) / GSC_CHUNK;
}

#endif
