/* SPDX-License-Identifier: MIT */
/* Plain C: every kernel, as the numerics are defined. All other rungs are compared with it. */
#include <math.h>

#include "convert.h"

#define f32_fma        fmaf
#define f64_fma        fma
#define f16_fma        fmaf
#define bf16_fma       fmaf

#define f32_from(out)  out##_from_float
#define f64_from(out)  out##_from_double
#define f16_from(out)  out##_from_float
#define bf16_from(out) out##_from_float

#define STORE(in, out)                                                                             \
    out##_bits stored = in##_from(out)(x);                                                         \
    memcpy((char *)to + i * sizeof stored, &stored, sizeof stored);

#define ADD_SQUARE(in) sums[i % GSC_LANES] = in##_fma(x, x, sums[i % GSC_LANES]);

/* The loop of every kernel; `body` sees element i and its product x. */
#define KERNEL(name, in, body)                                                                     \
    static uint64_t name(const void *from, void *to, uint64_t n, double multiplier, void *lanes)   \
    {                                                                                              \
        const in##_wide m = (in##_wide)multiplier;                                                 \
        in##_wide *sums = lanes;                                                                   \
        in##_bits bits, most = 0;                                                                  \
        (void)to;                                                                                  \
        if (sums)                                                                                  \
            memset(sums, 0, GSC_LANES * sizeof *sums);                                             \
        for (uint64_t i = 0; i < n; i++) {                                                         \
            memcpy(&bits, (const char *)from + i * sizeof bits, sizeof bits);                      \
            const in##_wide x = in##_load(bits) * m;                                               \
            (void)x;                                                                               \
            body;                                                                                  \
            bits = GSC_MAGNITUDE(in, bits);                                                        \
            most = bits > most ? bits : most;                                                      \
        }                                                                                          \
        return most;                                                                               \
    }

#define READERS(in)                                                                                \
    KERNEL(check_##in, in, )                                                                       \
    KERNEL(norm_##in, in, ADD_SQUARE(in))
#define WRITERS(in, out)                                                                           \
    KERNEL(unscale_##in##_##out, in, STORE(in, out))                                               \
    KERNEL(unscale_norm_##in##_##out, in, STORE(in, out) ADD_SQUARE(in))
GSC_FOR_DTYPES(READERS)
GSC_FOR_PAIRS(WRITERS)

void gsc_install_scalar(gsc_kernels *kernels)
{
    GSC_FOR_DTYPES(GSC_INSTALL_READERS)
    GSC_FOR_PAIRS(GSC_INSTALL_WRITERS)
}
