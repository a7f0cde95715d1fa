/* SPDX-License-Identifier: MIT */
/*
 * What the file of a rung makes of the list of kernels. It writes a kernel once, as an inlined
 * function whose first arguments are constants: dtypes, and what it does. These macros expand the
 * lists: each makes the functions of the table for a dtype or a pair, by calls of the functions
 * that the file has under these names.
 */
#define GSC_KERNEL(name, call)                                                                     \
    static uint64_t name(const void *from, void *to, uint64_t n, double number, gsc_norm *norm)    \
    {                                                                                              \
        (void)to, (void)number, (void)norm;                                                        \
        return call;                                                                               \
    }
#define GSC_READERS(in)                                                                            \
    GSC_KERNEL(check_##in, check(gsc_##in, from, n))                                               \
    GSC_KERNEL(norm_##in, multiply(gsc_##in, gsc_##in, GSC_SUMS, from, to, n, number, norm))       \
    static uint64_t count_##in(const void *from, uint64_t n, uint64_t least)                       \
    {                                                                                              \
        return count(gsc_##in, from, n, least);                                                    \
    }                                                                                              \
    static void clean_##in(const void *from, void *to, uint64_t n, uint64_t limit)                 \
    {                                                                                              \
        clean(gsc_##in, from, to, n, limit);                                                       \
    }
#define GSC_WRITERS(in, out)                                                                       \
    GSC_KERNEL(unscale_##in##_##out,                                                               \
               multiply(gsc_##in, gsc_##out, GSC_WRITES, from, to, n, number, norm))               \
    GSC_KERNEL(unscale_norm_##in##_##out,                                                          \
               multiply(gsc_##in, gsc_##out, GSC_WRITES | GSC_SUMS, from, to, n, number, norm))
#define GSC_SUM(in, out) GSC_KERNEL(add_##in##_##out, add(gsc_##in, gsc_##out, from, to, n, number))

/* In an install function: the kernels of a dtype, or of a pair. */
#define GSC_INSTALL_READERS(in)                                                                    \
    kernels->count[gsc_##in] = count_##in;                                                         \
    kernels->clean[gsc_##in] = clean_##in;                                                         \
    kernels->check[gsc_##in] = check_##in;                                                         \
    kernels->norm[gsc_##in] = norm_##in;
#define GSC_INSTALL_WRITERS(in, out)                                                               \
    kernels->unscale[gsc_##in][gsc_##out] = unscale_##in##_##out;                                  \
    kernels->unscale_norm[gsc_##in][gsc_##out] = unscale_norm_##in##_##out;
#define GSC_INSTALL_SUM(in, out) kernels->add[gsc_##in][gsc_##out] = add_##in##_##out;
