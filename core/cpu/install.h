/* SPDX-License-Identifier: MIT */
/*
 * Makes the kernels of an instruction set, in a file with one inlined function for each kind of
 * kernel: multiply, check, count, find, add. Its first arguments are constants: dtypes, and bits
 * that say what to do. These macros call it for each dtype or pair, and install the result.
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
    GSC_KERNEL(finite_norm_##in,                                                                   \
               multiply(gsc_##in, gsc_##in, GSC_SUMS | GSC_CLEANS, from, to, n, number, norm))     \
    static gsc_found count_##in(const void *from, uint64_t n, uint64_t low, uint64_t high,         \
                                uint64_t *near)                                                    \
    {                                                                                              \
        return count(gsc_##in, from, n, low, high, near);                                          \
    }                                                                                              \
    static uint64_t find_##in(const void *from, uint64_t n, uint64_t low)                          \
    {                                                                                              \
        return find(gsc_##in, from, n, low);                                                       \
    }
#define GSC_WRITERS(in, out)                                                                       \
    GSC_KERNEL(unscale_0_##in##_##out,                                                             \
               multiply(gsc_##in, gsc_##out, GSC_WRITES, from, to, n, number, norm))               \
    GSC_KERNEL(unscale_1_##in##_##out,                                                             \
               multiply(gsc_##in, gsc_##out, GSC_WRITES | GSC_SUMS, from, to, n, number, norm))
#define GSC_COUNTERS(in, out)                                                                      \
    GSC_KERNEL(unscale_2_##in##_##out,                                                             \
               multiply(gsc_##in, gsc_##out, GSC_WRITES | GSC_COUNTS, from, to, n, number, norm))  \
    GSC_KERNEL(unscale_3_##in##_##out,                                                             \
               multiply(gsc_##in, gsc_##out, GSC_WRITES | GSC_COUNTS | GSC_SUMS, from, to, n,      \
                        number, norm))
#define GSC_SUM(in, out) GSC_KERNEL(add_##in##_##out, add(gsc_##in, gsc_##out, from, to, n, number))

/* For install functions: put the kernels of a dtype or a pair into the table. */
#define GSC_INSTALL_READERS(in)                                                                    \
    kernels->count[gsc_##in] = count_##in;                                                         \
    kernels->find[gsc_##in] = find_##in;                                                           \
    kernels->check[gsc_##in] = check_##in;                                                         \
    kernels->norm[gsc_##in] = norm_##in;                                                           \
    kernels->finite_norm[gsc_##in] = finite_norm_##in;
#define GSC_INSTALL_WRITERS(in, out)                                                               \
    kernels->unscale[0][gsc_##in][gsc_##out] = unscale_0_##in##_##out;                             \
    kernels->unscale[1][gsc_##in][gsc_##out] = unscale_1_##in##_##out;
#define GSC_INSTALL_COUNTERS(in, out)                                                              \
    kernels->unscale[2][gsc_##in][gsc_##out] = unscale_2_##in##_##out;                             \
    kernels->unscale[3][gsc_##in][gsc_##out] = unscale_3_##in##_##out;
#define GSC_INSTALL_SUM(in, out) kernels->add[gsc_##in][gsc_##out] = add_##in##_##out;
