/* SPDX-License-Identifier: MIT */
/*
 * Every kernel, over vectors of W floats. The file of an instruction set defines W, TARGET (what a
 * function needs to be compiled for it), OP (the same for a function to be inlined), the vector
 * types and operations that are used here, and includes this. `ints` is a whole register of any
 * integers; raw2 and raw1 are W integers of 2 and 1 bytes. What ends in a digit treats elements of
 * so many bytes. Compiled with -ffp-contract=off: only what is named fma is one. A `_first`
 * operation has only the first min(left, elements) elements in memory, the others are zero.
 */
#include "kernels.h"

enum { LINE = 64, AHEAD = 3072 /* bytes; measured: what hides DRAM and costs L1 nothing */ };

/* The 64 lanes as vectors, and as pairs of vectors; and a sum of them as the balanced tree. */
#define TREE2(T) doubles_add(T(0), T(1))
#define TREE4(T) doubles_add(doubles_add(T(0), T(2)), doubles_add(T(1), T(3)))
#define TREE8(T)                                                                                   \
    doubles_add(doubles_add(doubles_add(T(0), T(4)), doubles_add(T(2), T(6))),                     \
                doubles_add(doubles_add(T(1), T(5)), doubles_add(T(3), T(7))))
#define TREE16(T)                                                                                  \
    doubles_add(doubles_add(doubles_add(doubles_add(T(0), T(8)), doubles_add(T(4), T(12))),        \
                            doubles_add(doubles_add(T(2), T(10)), doubles_add(T(6), T(14)))),      \
                doubles_add(doubles_add(doubles_add(T(1), T(9)), doubles_add(T(5), T(13))),        \
                            doubles_add(doubles_add(T(3), T(11)), doubles_add(T(7), T(15)))))
#define EACH2(X, ...) X(0, __VA_ARGS__) X(1, __VA_ARGS__)
#define EACH4(X, ...) EACH2(X, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__)
#define EACH8(X, ...)                                                                              \
    EACH4(X, __VA_ARGS__)                                                                          \
    X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__) X(7, __VA_ARGS__)
#define EACH16(X, ...)                                                                             \
    EACH8(X, __VA_ARGS__)                                                                          \
    X(8, __VA_ARGS__)                                                                              \
    X(9, __VA_ARGS__)                                                                              \
    X(10, __VA_ARGS__)                                                                             \
    X(11, __VA_ARGS__) X(12, __VA_ARGS__) X(13, __VA_ARGS__) X(14, __VA_ARGS__) X(15, __VA_ARGS__)
#if W == 16
#define EACH       EACH4
#define EACH_PAIR  EACH2
#define TREE       TREE4
#define TREE_PAIRS TREE2
#elif W == 8
#define EACH       EACH8
#define EACH_PAIR  EACH4
#define TREE       TREE8
#define TREE_PAIRS TREE4
#else
#define EACH       EACH16
#define EACH_PAIR  EACH8
#define TREE       TREE16
#define TREE_PAIRS TREE8
#endif

#define AT(pointer, element, size) ((char *)(uintptr_t)(pointer) + (element) * (size))
#define PREFETCH(from, bytes)                                                                      \
    for (uint64_t line = 0; line < (bytes); line += LINE)                                          \
        __builtin_prefetch((const char *)(from) + AHEAD + line);

/* ---- dtypes: to and from floats ---- */

OP floats f32_widen(ints bits)
{
    return floats_of(bits);
}

OP ints f32_narrow(floats x)
{
    return bits_of(x);
}

/* NaN apart, one rounding to the upper half; the lower one is left as it comes. */
OP ints round_upper(floats x)
{
    return ints_add(add_bit16(bits_of(x)), ints_set(0x7fff));
}

OP floats bf16_widen(raw2 bits)
{
    return floats_of(ints_shl(widen2(bits), 16));
}

OP raw2 bf16_narrow(floats x)
{
    const ints bits = bits_of(x), magnitude = ints_and(bits, ints_set(0x7fffffff));
    const ints quiet = ints_or(bits, ints_set(0x400000));
    const ints upper = ints_select_ge(magnitude, ints_set(f32_NAN), quiet, round_upper(x));
    return narrow2(ints_shr(upper, 16));
}

/*
 * The narrow types with exponents of their own. Subnormal values are made by a float addition that
 * rounds at the place of their last bit, and taken apart by a subtraction that is exact.
 */
#define NARROW(d, size)                                                                            \
    OP floats d##_widen(raw##size raw)                                                             \
    {                                                                                              \
        const ints bits = widen##size(raw), one = ints_set((128u - d##_BIAS) << 23);               \
        const ints magnitude = ints_and(bits, ints_set((1u << (8 * size - 1)) - 1));               \
        const ints sign = ints_shl(ints_sub(bits, magnitude), 32 - 8 * size);                      \
        const ints shifted = ints_shl(magnitude, 23 - d##_MANTISSA);                               \
        const ints normal = ints_add(shifted, ints_set((127u - d##_BIAS) << 23));                  \
        const ints small = bits_of(floats_sub(floats_of(ints_add(shifted, one)), floats_of(one))); \
        const ints finite =                                                                        \
            ints_select_ge(magnitude, ints_set(1u << d##_MANTISSA), normal, small);                \
        const ints infinite =                                                                      \
            ints_select_ge(magnitude, ints_set(d##_INF), ints_set(f32_INF), finite);               \
        const ints quiet = ints_or(shifted, ints_set(f32_INF | 0x400000));                         \
        return floats_of(                                                                          \
            ints_or(sign, ints_select_ge(magnitude, ints_set(d##_NAN), quiet, infinite)));         \
    }                                                                                              \
    OP raw##size d##_narrow(floats x)                                                              \
    {                                                                                              \
        enum { SHIFT = 23 - d##_MANTISSA };                                                        \
        const ints bits = bits_of(x), magnitude = ints_and(bits, ints_set(0x7fffffff));            \
        const ints sign = ints_shl(ints_shr(bits, 31), 8 * size - 1);                              \
        const ints last = ints_and(ints_shr(magnitude, SHIFT), ints_set(1));                       \
        const ints half = ints_add(last, ints_set((1u << (SHIFT - 1)) - 1));                       \
        const ints normal = ints_sub(ints_shr(ints_add(magnitude, half), SHIFT),                   \
                                     ints_set((127u - d##_BIAS) << d##_MANTISSA));                 \
        const ints unit = ints_set((128u - d##_BIAS + SHIFT) << 23);                               \
        const ints small =                                                                         \
            ints_sub(bits_of(floats_add(floats_of(magnitude), floats_of(unit))), unit);            \
        const ints rounded =                                                                       \
            ints_select_ge(magnitude, ints_set((128u - d##_BIAS) << 23), normal, small);           \
        const ints quiet = ints_or(ints_shr(ints_and(magnitude, ints_set(0x7fffff)), SHIFT),       \
                                   ints_set(d##_INF | 1u << (d##_MANTISSA - 1)));                  \
        const ints result = ints_select_ge(magnitude, ints_set(f32_NAN), quiet,                    \
                                           ints_min(rounded, ints_set(d##_INF)));                  \
        return narrow##size(ints_or(sign, result));                                                \
    }
NARROW(f8_e4m3fn, 1)
NARROW(f8_e5m2, 1)
NARROW(cb16, 2)

/* Reading and writing W elements of a dtype. */
#define DTYPE(d, size, raw)                                                                        \
    OP raw d##_read(const void *at)                                                                \
    {                                                                                              \
        return read##size(at);                                                                     \
    }                                                                                              \
    OP raw d##_read_first(const void *at, uint64_t left)                                           \
    {                                                                                              \
        return read_first##size(at, left);                                                         \
    }                                                                                              \
    OP ints d##_most(ints most, raw bits)                                                          \
    {                                                                                              \
        return max##size(most, magnitudes##size(whole##size(bits)));                               \
    }                                                                                              \
    OP void d##_keep(void *at, raw bits)                                                           \
    {                                                                                              \
        write##size(at, bits);                                                                     \
    }                                                                                              \
    OP void d##_write(void *at, floats x)                                                          \
    {                                                                                              \
        write##size(at, d##_narrow(x));                                                            \
    }                                                                                              \
    OP void d##_write_first(void *at, floats x, uint64_t left)                                     \
    {                                                                                              \
        write_first##size(at, d##_narrow(x), left);                                                \
    }                                                                                              \
    OP uint64_t d##_largest(ints most)                                                             \
    {                                                                                              \
        return largest##size(most);                                                                \
    }
DTYPE(f32, 4, ints)
DTYPE(f16, 2, raw2)
DTYPE(bf16, 2, raw2)
DTYPE(f8_e4m3fn, 1, raw1)
DTYPE(f8_e5m2, 1, raw1)
DTYPE(cb16, 2, raw2)

OP void f64_write(void *at, floats x)
{
    write8(at, doubles_low(x));
    write8(AT(at, W / 2, 8), doubles_high(x));
}

OP void f64_write_first(void *at, floats x, uint64_t left)
{
    write_first8(at, doubles_low(x), left);
    if (left > W / 2)
        write_first8(AT(at, W / 2, 8), doubles_high(x), left - W / 2);
}

/* ---- kernels that multiply in float ---- */

#define STEP(k, in, out, READ, WRITE, SQUARE, KEEP)                                                \
    {                                                                                              \
        const __typeof__(in##_read(from)) bits = READ;                                             \
        most = in##_most(most, bits);                                                              \
        const floats x = floats_mul(in##_widen(bits), m);                                          \
        (void)x;                                                                                   \
        KEEP(k, in)                                                                                \
        WRITE(k, out)                                                                              \
        SQUARE(k)                                                                                  \
    }
#define FULL(k, in, out, WRITE, SQUARE, KEEP)                                                      \
    STEP(k, in, out, in##_read(AT(from, i + k * W, sizeof(in##_bits))), WRITE, SQUARE, KEEP)
#define END(k, in, out, WRITE, SQUARE, KEEP)                                                       \
    if (n - i > k * W) {                                                                           \
        const uint64_t left = n - i - k * W;                                                       \
        STEP(k, in, out, in##_read_first(AT(from, i + k * W, sizeof(in##_bits)), left),            \
             WRITE##_FIRST, SQUARE, KEEP)                                                          \
    }
#define NO_WRITE(k, out)
#define NO_WRITE_FIRST(k, out)
#define WRITE(k, out)       out##_write(AT(to, i + k * W, sizeof(out##_bits)), x);
#define WRITE_FIRST(k, out) out##_write_first(AT(to, i + k * W, sizeof(out##_bits)), x, left);
#define NO_KEEP(k, in)
#define KEEP(k, in) in##_keep(AT(norm->input, i + k * W, sizeof(in##_bits)), bits);
#define NO_SQUARE(k)
#define SQUARE(k)    sum##k = floats_fma(x, x, sum##k);
#define ZERO(k, ...) floats sum##k = floats_set(0);
#define NO_ZEROS
#define ZEROS   EACH(ZERO, )
#define LOW(k)  doubles_low(sum##k)
#define HIGH(k) doubles_high(sum##k)
#define NO_FOLD (void)norm
#define FOLD    norm->sum = doubles_fold(doubles_add(TREE(LOW), TREE(HIGH)))

#define KERNEL(name, in, out, WRITE, SQUARE, KEEP, ZEROS, FOLD)                                    \
    TARGET static uint64_t name(const void *from, void *to, uint64_t n, double number,             \
                                gsc_norm *norm)                                                    \
    {                                                                                              \
        const floats m = floats_set((float)number);                                                \
        ints most = ints_set(0);                                                                   \
        uint64_t i = 0;                                                                            \
        ZEROS(void) to;                                                                            \
        for (; i + 64 <= n; i += 64) {                                                             \
            PREFETCH(AT(from, i, sizeof(in##_bits)), 64 * sizeof(in##_bits))                       \
            EACH(FULL, in, out, WRITE, SQUARE, KEEP)                                               \
        }                                                                                          \
        EACH(END, in, out, WRITE, SQUARE, KEEP)                                                    \
        FOLD;                                                                                      \
        return in##_largest(most);                                                                 \
    }

#define NORM(in) KERNEL(norm_##in, in, none, NO_WRITE, SQUARE, NO_KEEP, ZEROS, FOLD)
#define WRITERS_AND(in, out, KEEP)                                                                 \
    KERNEL(unscale_##in##_##out, in, out, WRITE, NO_SQUARE, NO_KEEP, NO_ZEROS, NO_FOLD)            \
    KERNEL(unscale_norm_##in##_##out, in, out, WRITE, SQUARE, KEEP, ZEROS, FOLD)
#define WRITERS(in, out) WRITERS_AND(in, out, NO_KEEP)
#define WRITERS_TO(d)    WRITERS_AND(d, d, KEEP) WRITERS(d, f32) WRITERS(f32, d)
NORM(f32)
NORM(f16)
NORM(f8_e4m3fn)
NORM(f8_e5m2)
NORM(cb16)
WRITERS(f32, f32)
WRITERS(f32, f64)
WRITERS(bf16, f32)
WRITERS(f32, bf16)
WRITERS_TO(f16)
WRITERS_TO(f8_e4m3fn)
WRITERS_TO(f8_e5m2)
WRITERS_TO(cb16)

/* ---- bf16 to itself: two elements of a float's width, the even and the odd ---- */

KERNEL(contiguous_bf16, bf16, bf16, WRITE, NO_SQUARE, NO_KEEP, NO_ZEROS, NO_FOLD)

#define EVEN(v) floats_of(ints_shl(v, 16))
#define ODD(v)  floats_of(ints_and(v, ints_set(0xffff0000)))
#define WHOLE(k, KEEP)                                                                             \
    const ints v##k = read4(AT(from, i + 2 * k * W, 2)), absolute##k = magnitudes2(v##k);          \
    KEEP(k, v##k)                                                                                  \
    most = max2(most, absolute##k);
#define SOME(k, KEEP)                                                                              \
    const uint64_t left##k = n - i > 2 * k * W ? n - i - 2 * k * W : 0;                            \
    const uint64_t bytes##k = left##k < 2 * W ? 2 * left##k : 4 * W;                               \
    const ints v##k = read_bytes(AT(from, i + 2 * k * W, 2), bytes##k);                            \
    const ints absolute##k = magnitudes2(v##k);                                                    \
    KEEP(k, v##k)                                                                                  \
    most = max2(most, absolute##k);
#define LEAST(k, ...)         least = min2(least, sub2(absolute##k, 1)); /* zero is no least */
#define PAIR_WRITE(k, v)      write4(AT(to, i + 2 * k * W, 2), v);
#define PAIR_WRITE_SOME(k, v) write_bytes(AT(to, i + 2 * k * W, 2), v, bytes##k);
#define PAIR_NO_WRITE(k, v)
#define PAIR_NO_WRITE_SOME(k, v)
#define PAIR_KEEP(k, v) write4(AT(norm->input, i + 2 * k * W, 2), v);
#define PAIR_SQUARE(k, e, o)                                                                       \
    even##k = floats_fma(e, e, even##k);                                                           \
    odd##k = floats_fma(o, o, odd##k);
#define PAIR_NO_SQUARE(k, e, o)
#define PAIR_ZERO(k, ...) floats even##k = floats_set(0), odd##k = even##k;
#define PAIR_ZEROS        EACH_PAIR(PAIR_ZERO, )
#define EVEN_LOW(k)       doubles_low(even##k)
#define EVEN_HIGH(k)      doubles_high(even##k)
#define ODD_LOW(k)        doubles_low(odd##k)
#define ODD_HIGH(k)       doubles_high(odd##k)
#define PAIR_FOLD                                                                                  \
    norm->sum = doubles_fold(doubles_add(TREE_PAIRS(EVEN_LOW), TREE_PAIRS(EVEN_HIGH))) +           \
                doubles_fold(doubles_add(TREE_PAIRS(ODD_LOW), TREE_PAIRS(ODD_HIGH)))
#define SHIFTED(k, WRITE, SQUARE)                                                                  \
    {                                                                                              \
        const ints r = add_where_not_zero2(v##k, shift);                                           \
        const floats e = EVEN(r), o = ODD(r);                                                      \
        (void)e, (void)o;                                                                          \
        WRITE(k, r)                                                                                \
        SQUARE(k, e, o)                                                                            \
    }
#define ROUNDED(k, WRITE, SQUARE)                                                                  \
    {                                                                                              \
        const floats e = floats_mul(EVEN(v##k), m), o = floats_mul(ODD(v##k), m);                  \
        WRITE(k, merge_upper(round_upper(e), round_upper(o)))                                      \
        SQUARE(k, e, o)                                                                            \
    }
/* Rounding as it is for all but NaN. */
#define ROUNDED_GROUP(WRITE, SQUARE)                                                               \
    if (!any_above2(most, bf16_INF)) {                                                             \
        EACH_PAIR(ROUNDED, WRITE, SQUARE)                                                          \
    } else if (to) {                                                                               \
        contiguous_bf16(AT(from, i, 2), AT(to, i, 2), n - i < 64 ? n - i : 64, number, NULL);      \
    }
#define GROUP(READ, WRITE, SQUARE, KEEP)                                                           \
    EACH_PAIR(READ, KEEP)                                                                          \
    ROUNDED_GROUP(WRITE, SQUARE)
/* By a power of two, where every result is normal or zero: the exponents only. */
#define SHIFTED_GROUP(READ, WRITE, SQUARE, KEEP)                                                   \
    ints least = ints_set(0xffffffff);                                                             \
    EACH_PAIR(READ, KEEP)                                                                          \
    EACH_PAIR(LEAST, )                                                                             \
    if (!any_below2(least, smallest) && !any_above2(most, largest)) {                              \
        EACH_PAIR(SHIFTED, WRITE, SQUARE)                                                          \
    } else {                                                                                       \
        ROUNDED_GROUP(WRITE, SQUARE)                                                               \
    }
#define BF16_LOOP(GROUP, WRITE, SQUARE, KEEP)                                                      \
    for (; i + 64 <= n; i += 64) {                                                                 \
        PREFETCH(AT(from, i, 2), 128)                                                              \
        GROUP(WHOLE, WRITE, SQUARE, KEEP)                                                          \
    }                                                                                              \
    if (i < n) {                                                                                   \
        GROUP(SOME, WRITE##_SOME, SQUARE, KEEP)                                                    \
    }

#define BF16_KERNEL(name, WRITE, SQUARE, KEEP, ZEROS, FOLD)                                        \
    TARGET static uint64_t name(const void *from, void *to, uint64_t n, double number,             \
                                gsc_norm *norm)                                                    \
    {                                                                                              \
        const floats m = floats_set((float)number);                                                \
        const uint32_t m_bits = gsc_float_bits((float)number);                                     \
        const int exponent = (int)(m_bits >> 23) - 127;                                            \
        ints most = ints_set(0);                                                                   \
        uint64_t i = 0;                                                                            \
        ZEROS(void) to;                                                                            \
        if (m_bits & 0x7fffff) {                                                                   \
            BF16_LOOP(GROUP, WRITE, SQUARE, KEEP)                                                  \
        } else {                                                                                   \
            const int down = exponent < 0 ? -exponent : 0, up = exponent > 0 ? exponent : 0;       \
            const uint16_t shift = (uint16_t)((unsigned)exponent << 7);                            \
            const uint16_t smallest = (uint16_t)(((down + 1) << 7) - 1); /* of |bits| - 1 */       \
            const uint16_t largest = (uint16_t)(bf16_INF - 1 - ((unsigned)up << 7));               \
            BF16_LOOP(SHIFTED_GROUP, WRITE, SQUARE, KEEP)                                          \
        }                                                                                          \
        FOLD;                                                                                      \
        return largest2(most);                                                                     \
    }
BF16_KERNEL(norm_bf16, PAIR_NO_WRITE, PAIR_SQUARE, NO_KEEP, PAIR_ZEROS, PAIR_FOLD)
BF16_KERNEL(unscale_bf16_bf16, PAIR_WRITE, PAIR_NO_SQUARE, NO_KEEP, NO_ZEROS, NO_FOLD)
BF16_KERNEL(unscale_norm_bf16_bf16, PAIR_WRITE, PAIR_SQUARE, PAIR_KEEP, PAIR_ZEROS, PAIR_FOLD)

/* ---- doubles: 64 lanes of them do not fit into registers, they stay in L1 ---- */

#define WIDE_WRITE_f64(left)       write8(AT(to, i, 8), x);
#define WIDE_WRITE_FIRST_f64(left) write_first8(AT(to, i, 8), x, left);
#define WIDE_WRITE_f32(left)       write_half4(AT(to, i, 4), x);
#define WIDE_WRITE_FIRST_f32(left) write_first_half4(AT(to, i, 4), x, left);
#define WIDE_NO_WRITE(left)
#define WIDE_SQUARE write8(lanes + i % GSC_LANES, doubles_fma(x, x, read8(lanes + i % GSC_LANES)));
#define WIDE_NO_SQUARE
#define WIDE_ZEROS double lanes[GSC_LANES] = {0};
#define WIDE_FOLD                                                                                  \
    for (int half = GSC_LANES / 2; half >= W / 2; half /= 2)                                       \
        for (int j = 0; j < half; j += W / 2)                                                      \
            write8(lanes + j, doubles_add(read8(lanes + j), read8(lanes + j + half)));             \
    norm->sum = doubles_fold(read8(lanes))

#define WIDE_KERNEL(name, WRITE, WRITE_FIRST, SQUARE, ZEROS, FOLD)                                 \
    TARGET static uint64_t name(const void *from, void *to, uint64_t n, double number,             \
                                gsc_norm *norm)                                                    \
    {                                                                                              \
        const doubles m = doubles_set(number);                                                     \
        ints most = ints_set(0);                                                                   \
        uint64_t i = 0;                                                                            \
        ZEROS(void) to;                                                                            \
        for (; i + W / 2 <= n; i += W / 2) {                                                       \
            PREFETCH(AT(from, i, 8), 4 * W)                                                        \
            const ints bits = read4(AT(from, i, 8));                                               \
            const doubles x = doubles_mul(doubles_of(bits), m);                                    \
            (void)x;                                                                               \
            most = max8(most, magnitudes8(bits));                                                  \
            WRITE(0)                                                                               \
            SQUARE                                                                                 \
        }                                                                                          \
        if (i < n) {                                                                               \
            const ints bits = read_bytes(AT(from, i, 8), 8 * (n - i));                             \
            const doubles x = doubles_mul(doubles_of(bits), m);                                    \
            (void)x;                                                                               \
            most = max8(most, magnitudes8(bits));                                                  \
            WRITE_FIRST(n - i)                                                                     \
            SQUARE                                                                                 \
        }                                                                                          \
        FOLD;                                                                                      \
        return largest8(most);                                                                     \
    }
#define WIDE_WRITERS(out)                                                                          \
    WIDE_KERNEL(unscale_f64_##out, WIDE_WRITE_##out, WIDE_WRITE_FIRST_##out, WIDE_NO_SQUARE,       \
                NO_ZEROS, NO_FOLD)                                                                 \
    WIDE_KERNEL(unscale_norm_f64_##out, WIDE_WRITE_##out, WIDE_WRITE_FIRST_##out, WIDE_SQUARE,     \
                WIDE_ZEROS, WIDE_FOLD)
WIDE_KERNEL(norm_f64, WIDE_NO_WRITE, WIDE_NO_WRITE, WIDE_SQUARE, WIDE_ZEROS, WIDE_FOLD)
WIDE_WRITERS(f64)
WIDE_WRITERS(f32)

/* ---- bits alone ---- */

#define BITS_KERNELS(d, size)                                                                      \
    TARGET static uint64_t check_##d(const void *from, void *to, uint64_t n, double number,        \
                                     gsc_norm *norm)                                               \
    {                                                                                              \
        const uint64_t bytes = n * size;                                                           \
        ints most = ints_set(0);                                                                   \
        uint64_t i = 0;                                                                            \
        (void)to, (void)number, (void)norm;                                                        \
        for (; i + 4 * W <= bytes; i += 4 * W) {                                                   \
            PREFETCH(AT(from, i, 1), 4 * W)                                                        \
            most = max##size(most, magnitudes##size(read4(AT(from, i, 1))));                       \
        }                                                                                          \
        if (i < bytes)                                                                             \
            most = max##size(most, magnitudes##size(read_bytes(AT(from, i, 1), bytes - i)));       \
        return largest##size(most);                                                                \
    }                                                                                              \
    TARGET static uint64_t count_##d(const void *from, uint64_t n, uint64_t least)                 \
    {                                                                                              \
        const uint64_t bytes = n * size;                                                           \
        uint64_t i = 0, count = 0;                                                                 \
        for (; i + 4 * W <= bytes; i += 4 * W)                                                     \
            count += at_least##size(magnitudes##size(read4(AT(from, i, 1))), least);               \
        if (i < bytes)                                                                             \
            count +=                                                                               \
                at_least##size(magnitudes##size(read_bytes(AT(from, i, 1), bytes - i)), least);    \
        return count;                                                                              \
    }                                                                                              \
    TARGET static void clean_##d(const void *from, void *to, uint64_t n, uint64_t limit)           \
    {                                                                                              \
        const uint64_t bytes = n * size;                                                           \
        uint64_t i = 0;                                                                            \
        for (; i + 4 * W <= bytes; i += 4 * W)                                                     \
            write4(AT(to, i, 1), keep_below##size(read4(AT(from, i, 1)), limit));                  \
        if (i < bytes)                                                                             \
            write_bytes(AT(to, i, 1),                                                              \
                        keep_below##size(read_bytes(AT(from, i, 1), bytes - i), limit),            \
                        bytes - i);                                                                \
    }
BITS_KERNELS(f32, 4)
BITS_KERNELS(f64, 8)
BITS_KERNELS(f16, 2)
BITS_KERNELS(bf16, 2)
BITS_KERNELS(f8_e4m3fn, 1)
BITS_KERNELS(f8_e5m2, 1)
BITS_KERNELS(cb16, 2)

/* ---- sums and limits ---- */

#define SUM(in, out)                                                                               \
    TARGET static uint64_t add_##in##_##out(const void *from, void *to, uint64_t n, double number, \
                                            gsc_norm *norm)                                        \
    {                                                                                              \
        const floats m = floats_set((float)number);                                                \
        (void)norm;                                                                                \
        for (uint64_t i = 0; i < n; i += W) {                                                      \
            const uint64_t left = n - i;                                                           \
            const floats x = floats_mul(f32_widen(f32_read_first(AT(from, i, 4), left)), m);       \
            void *at = AT(to, i, sizeof(out##_bits));                                              \
            out##_write_first(at, floats_add(out##_widen(out##_read_first(at, left)), x), left);   \
        }                                                                                          \
        return 0;                                                                                  \
    }
SUM(f32, f32)
SUM(f32, f16)
SUM(f32, bf16)
SUM(f32, f8_e4m3fn)
SUM(f32, f8_e5m2)
SUM(f32, cb16)

TARGET static uint64_t add_f64_f64(const void *from, void *to, uint64_t n, double number,
                                   gsc_norm *norm)
{
    const doubles m = doubles_set(number);
    (void)norm;
    for (uint64_t i = 0; i < n; i += W / 2) {
        const doubles x = doubles_mul(read_first8(AT(from, i, 8), n - i), m);
        write_first8(AT(to, i, 8), doubles_add(read_first8(AT(to, i, 8), n - i), x), n - i);
    }
    return 0;
}

TARGET static uint64_t add_f32_f64(const void *from, void *to, uint64_t n, double number,
                                   gsc_norm *norm)
{
    const floats m = floats_set((float)number);
    (void)norm;
    for (uint64_t i = 0; i < n; i += W) {
        const floats x = floats_mul(f32_widen(f32_read_first(AT(from, i, 4), n - i)), m);
        void *low = AT(to, i, 8), *high = AT(to, i + W / 2, 8);
        write_first8(low, doubles_add(read_first8(low, n - i), doubles_low(x)), n - i);
        if (n - i > W / 2) {
            const uint64_t left = n - i - W / 2;
            write_first8(high, doubles_add(read_first8(high, left), doubles_high(x)), left);
        }
    }
    return 0;
}

TARGET static uint64_t clamp_f32(const void *from, void *to, uint64_t n, double number,
                                 gsc_norm *norm)
{
    const float limit = (float)number;
    (void)norm;
    for (uint64_t i = 0; i < n; i += W) {
        const floats x = f32_widen(f32_read_first(AT(from, i, 4), n - i));
        f32_write_first(AT(to, i, 4), floats_clamp(x, floats_set(-limit), floats_set(limit)),
                        n - i);
    }
    return 0;
}

TARGET static uint64_t clamp_f64(const void *from, void *to, uint64_t n, double number,
                                 gsc_norm *norm)
{
    (void)norm;
    for (uint64_t i = 0; i < n; i += W / 2) {
        const doubles x = read_first8(AT(from, i, 8), n - i);
        write_first8(AT(to, i, 8), doubles_clamp(x, doubles_set(-number), doubles_set(number)),
                     n - i);
    }
    return 0;
}

TARGET static void stream(const void *from, void *to, uint64_t bytes)
{
    const uint64_t past = (uintptr_t)to % (4 * W), head = past ? 4 * W - past : 0;
    uint64_t i = head < bytes ? head : bytes;
    memcpy(to, from, i);
    for (; i + 4 * W <= bytes; i += 4 * W)
        stream4(AT(to, i, 1), read4(AT(from, i, 1)));
    stream_end();
    memcpy(AT(to, i, 1), AT(from, i, 1), bytes - i);
}

/* All but doubles to narrow types, which stay in plain C: nobody trains that way. */
#define INSTALL_WRITERS_OF(d)                                                                      \
    GSC_INSTALL_WRITERS(d, d)                                                                      \
    GSC_INSTALL_WRITERS(d, f32) GSC_INSTALL_WRITERS(f32, d) GSC_INSTALL_SUM(f32, d)
#define INSTALL                                                                                    \
    GSC_FOR_DTYPES(GSC_INSTALL_READERS)                                                            \
    INSTALL_WRITERS_OF(f32)                                                                        \
    INSTALL_WRITERS_OF(f64)                                                                        \
    INSTALL_WRITERS_OF(f16)                                                                        \
    INSTALL_WRITERS_OF(bf16)                                                                       \
    INSTALL_WRITERS_OF(f8_e4m3fn)                                                                  \
    INSTALL_WRITERS_OF(f8_e5m2)                                                                    \
    INSTALL_WRITERS_OF(cb16)                                                                       \
    GSC_INSTALL_SUM(f64, f64)                                                                      \
    GSC_INSTALL_CLAMP(f32)                                                                         \
    GSC_INSTALL_CLAMP(f64)                                                                         \
    kernels->stream = stream;
