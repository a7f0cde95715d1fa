/* SPDX-License-Identifier: MIT */
/* Tables of the dtypes: the properties of convert.h, indexed by dtype. */
#ifndef GSC_DTYPES_H
#define GSC_DTYPES_H

#include <stdbool.h>

#include "bits.h"
#include "convert.h"
#include "gradscaler.h"

/* A GSC_* dtype as one or two real numbers of a dtype of convert.h. */
struct gsc_real {
    uint8_t real, parts, size; /* dtype of convert.h, numbers and bytes of an element */
    char name[16];
};
extern const struct gsc_real gsc_reals[GSC_COMPLEX128 + 1];

/* A dtype of convert.h: bytes, and the least |bits| that are not finite, NaN, normal. */
struct gsc_encoding {
    uint64_t size, infinity, nan, normal;
};
extern const struct gsc_encoding gsc_encodings[];

/* Returns the largest value of a dtype of convert.h that is at most `clamp` > 0; it can be 0. */
double gsc_clamp_limit(uint32_t dtype, double clamp);

/* Returns true if the value is finite after it is rounded to a dtype of convert.h. */
bool gsc_is_finite_as(uint32_t dtype, double value);

static inline bool gsc_is_dtype(uint64_t dtype)
{
    return dtype - 1 < sizeof gsc_reals / sizeof *gsc_reals - 1;
}

/* Returns the count of real numbers; a complex element has two. */
static inline uint64_t gsc_numbers_of(const gsc_tensor *tensor)
{
    return tensor->count * gsc_reals[tensor->dtype].parts;
}

static inline uint64_t gsc_chunks_of(const gsc_tensor *tensor)
{
    return (gsc_numbers_of(tensor) + GSC_CHUNK - 1) / GSC_CHUNK;
}

#endif
