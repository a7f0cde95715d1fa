/* SPDX-License-Identifier: MIT */
/*
 * Every kernel, with vectors of 64 bytes: one register, or several. The file of an instruction set
 * defines what the list below names, then includes this file. Arguments such as dtypes, sizes and k
 * are constants after inlining. Compiled with -ffp-contract=off: only functions named fma fuse.
 *
 * Types
 *   ints          64 bytes of any integers; by default 16 of 4 bytes
 *   floats        16 floats, elements in order
 *   doubles       8 doubles
 *   half          32 bytes, 16 elements of 2
 *   quarter       16 bytes, 16 elements of 1
 * Memory, with any alignment; _first: fewer bytes than a whole, and a load fills up with zeros
 *   load, load_half, load_quarter(at); load_first(at, bytes)
 *   store, store_half, store_quarter(at, x)
 *   store_first, store_first_half, store_first_quarter(at, x, bytes)
 *   store_past_caches(at, x)          to a multiple of 64; store_past_caches_done() after the last
 * Elements of 1, 2, 4 or 8 bytes: `size`. A magnitude is |bits|
 *   magnitudes(size, x)
 *   larger, smaller(size, a, b)       of each pair, unsigned; smaller: up to 4 bytes
 *   sub(size, a, b)                   less a number, up to 4 bytes; wraps around
 *   largest(size, x)                  the largest, unsigned
 *   any_below(size, x, limit)         true if an element is, unsigned, up to 4 bytes
 *   any_at_least(size, x, least)      true if a magnitude is, or an unsigned element, up to 4 bytes
 *   at_least(size, x, least)          counts magnitudes
 *   between(size, x, low, high)       counts magnitudes from `low` on and below `high`
 *   before_first(size, x, least)      index of the first magnitude of `least` or more; there is one
 *   keep_below(size, x, limit)        elements with a magnitude of `limit` or more become zero
 * Integers of 4 bytes, unsigned
 *   ints_set(x); ints_add, ints_sub, ints_and, ints_or, ints_min(a, b); ints_shl, ints_shr(x, n)
 *   ints_select_ge(a, b, x, y)        a >= b ? x : y, of magnitudes
 *   add_bit(x, index)                 x + bit `index` of x
 * Integers of 2 bytes, unsigned
 *   add_where_not_zero2(x, b)         adds b where the magnitude is not 0
 *   any_above2(x, limit)
 *   merge_upper(even, odd)            joins the upper halves of words; `even` gives the lower ones
 *   merge_cb16(even, odd, bits)       joins 2 bytes, from bit 14 on, of words, with signs of `bits`
 * Widths
 *   half_of(x, k), quarter_of(x, k), ints_of_halves(low, high)
 *   widen2(half), narrow2(ints), narrow1(ints)    numbers that fit
 *   f16_widen(half), f16_narrow(floats)
 * Floats and doubles
 *   floats_set(x), floats_add, floats_sub, floats_mul(a, b), floats_fma(a, b, c)
 *   doubles_set(x), doubles_add, doubles_mul(a, b), doubles_fma(a, b, c)
 *   floats_clamp, doubles_clamp(x, least, most)   keep the bits of a NaN
 *   floats_of(ints), bits_of(floats), doubles_of(ints), bits_of_doubles(doubles)
 *   doubles_low, doubles_high(floats) 8 of them
 *   doubles_narrow(x)                 the bits of 8 floats
 *   doubles_fold(x)                   adds lane j + 4 to j, then lane j + 2, then lane 1 to lane 0
 * Bytes: f8_e4m3fn and f8_e5m2
 *   byte_widen(dtype, bits, k, from)  vector k of 64 elements; `from` is its quarter
 *   byte_values, byte_values_load(dtype)          a type, and its value, for byte_value
 *   byte_value(dtype, values, bits, k)            vector k of magnitudes; e4m3fn / BYTE_UNIT
 *   byte_order(a, b, c, d)            puts the lanes of four vectors of byte_value in order
 *   SUMS_AT_ONCE                      1: registers are enough to multiply and sum in one loop
 *   table, table_load(kind, from)     a gsc_table in registers
 *   table_kind(from)                  0 to 3: each kind of multiplier has its own loop
 *   table_results(dtype, kind, t, bits)           products of 64 elements
 *   REPEATS                           1: products of Inf and NaN need a kind with TAKES_ALL
 */
#include <math.h>

#include "install.h"
#include "kernels.h"

enum { GROUP = GSC_LANES /* elements of a group: one for each lane */ };
enum { AHEAD = 3072 /* bytes to prefetch ahead; measured: hides DRAM, does not slow data in L1 */ };

/* ---- memory: a vector, or its first bytes; a load fills the rest with zeros ---- */

GSC_INLINE ints take(const char *at, uint64_t bytes)
{
    return bytes >= 64 ? load(at) : load_first(at, bytes);
}

GSC_INLINE void put(char *at, ints x, uint64_t bytes)
{
    if (bytes >= 64)
        store(at, x);
    else
        store_first(at, x, bytes);
}

GSC_INLINE void put_half(char *at, half x, uint64_t bytes)
{
    if (bytes >= 32)
        store_half(at, x);
    else
        store_first_half(at, x, bytes);
}

GSC_INLINE void put_quarter(char *at, quarter x, uint64_t bytes)
{
    if (bytes >= 16)
        store_quarter(at, x);
    else
        store_first_quarter(at, x, bytes);
}

/* Returns to + bytes. If a kernel only reads, `to` is NULL, and NULL + bytes is undefined. */
GSC_INLINE char *past(unsigned does, char *to, uint64_t bytes)
{
    return does & GSC_WRITES ? to + bytes : to;
}

GSC_INLINE void prefetch(const char *from, uint64_t bytes)
{
    for (uint64_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(from + AHEAD + line);
}

/* ---- dtypes: to and from floats ---- */

/* Rounds to the upper half; the lower half is garbage. The lower half of a NaN must be 0. */
GSC_INLINE ints round_upper(floats x)
{
    return ints_add(add_bit(bits_of(x), 16), ints_set(0x7fff));
}

GSC_INLINE half bf16_narrow(floats x)
{
    const ints bits = bits_of(x), magnitude = ints_and(bits, ints_set(0x7fffffff));
    const ints quiet = ints_or(bits, ints_set(0x400000));
    const ints upper = ints_select_ge(magnitude, ints_set(f32_NAN), quiet, round_upper(x));
    return narrow2(ints_shr(upper, 16));
}

/* The layout of a narrow type that no instruction converts. */
typedef struct layout {
    uint32_t bits, mantissa, bias, infinity, nan;
} layout;

GSC_INLINE layout layout_of(enum gsc_real_dtype dtype)
{
    switch (dtype) {
    case gsc_f8_e4m3fn:
        return (layout){8, f8_e4m3fn_MANTISSA, f8_e4m3fn_BIAS, f8_e4m3fn_INF, f8_e4m3fn_NAN};
    case gsc_f8_e5m2:
        return (layout){8, f8_e5m2_MANTISSA, f8_e5m2_BIAS, f8_e5m2_INF, f8_e5m2_NAN};
    default:
        return (layout){16, cb16_MANTISSA, cb16_BIAS, cb16_INF, cb16_NAN};
    }
}

/*
 * To widen a subnormal, an exact float subtraction normalises it. To narrow one (small_narrow), a
 * float addition rounds at its last bit.
 */
GSC_INLINE floats small_widen(layout d, ints bits)
{
    const ints one = ints_set((128 - d.bias) << 23);
    const ints magnitude = ints_and(bits, ints_set((1u << (d.bits - 1)) - 1));
    const ints sign = ints_shl(ints_sub(bits, magnitude), 32 - d.bits);
    const ints shifted = ints_shl(magnitude, 23 - d.mantissa);
    const ints normal = ints_add(shifted, ints_set((127 - d.bias) << 23));
    const ints small = bits_of(floats_sub(floats_of(ints_add(shifted, one)), floats_of(one)));
    const ints finite = ints_select_ge(magnitude, ints_set(1u << d.mantissa), normal, small);
    const ints infinite =
        ints_select_ge(magnitude, ints_set(d.infinity), ints_set(f32_INF), finite);
    const ints quiet = ints_or(shifted, ints_set(f32_INF | 0x400000));
    return floats_of(ints_or(sign, ints_select_ge(magnitude, ints_set(d.nan), quiet, infinite)));
}

GSC_INLINE ints small_narrow(layout d, floats x)
{
    const uint32_t shift = 23 - d.mantissa;
    const ints bits = bits_of(x), magnitude = ints_and(bits, ints_set(0x7fffffff));
    const ints sign = ints_shl(ints_shr(bits, 31), d.bits - 1);
    const ints last = ints_and(ints_shr(magnitude, shift), ints_set(1));
    const ints middle = ints_add(last, ints_set((1u << (shift - 1)) - 1));
    const ints normal = ints_sub(ints_shr(ints_add(magnitude, middle), shift),
                                 ints_set((127 - d.bias) << d.mantissa));
    const ints unit = ints_set((128 - d.bias + shift) << 23);
    const ints small = ints_sub(bits_of(floats_add(floats_of(magnitude), floats_of(unit))), unit);
    const ints rounded = ints_select_ge(magnitude, ints_set((128 - d.bias) << 23), normal, small);
    const ints quiet = ints_or(ints_shr(ints_and(magnitude, ints_set(0x7fffff)), shift),
                               ints_set(d.infinity | 1u << (d.mantissa - 1)));
    const ints result = ints_select_ge(magnitude, ints_set(f32_NAN), quiet,
                                       ints_min(rounded, ints_set(d.infinity)));
    return ints_or(sign, result);
}

/*
 * Return vector k of a group's 64 elements, which are at `at` and in `bits`, the 64 bytes that were
 * read last. A whole vector is loaded again: that is faster than splitting a register.
 */
GSC_INLINE half half_at(const char *at, uint64_t left, ints bits, int k)
{
    return left >= 16 ? load_half(at) : half_of(bits, k % 2);
}

GSC_INLINE quarter quarter_at(const char *at, uint64_t left, ints bits, int k)
{
    return left >= 16 ? load_quarter(at) : quarter_of(bits, k);
}

GSC_INLINE floats widen(enum gsc_real_dtype dtype, const char *at, uint64_t left, ints bits, int k)
{
    switch (dtype) {
    case gsc_f32:
        return floats_of(bits);
    case gsc_f16:
        return f16_widen(half_at(at, left, bits, k));
    case gsc_bf16:
        return floats_of(ints_shl(widen2(half_at(at, left, bits, k)), 16));
    case gsc_cb16:
        return small_widen(layout_of(dtype), widen2(half_at(at, left, bits, k)));
    default:
        return byte_widen(dtype, bits, k, quarter_at(at, left, bits, k));
    }
}

/* Converts floats to a dtype of 2 bytes. */
GSC_INLINE half narrow_half(enum gsc_real_dtype dtype, floats x)
{
    return dtype == gsc_f16    ? f16_narrow(x)
           : dtype == gsc_bf16 ? bf16_narrow(x)
                               : narrow2(small_narrow(layout_of(dtype), x));
}

/* Writes `left` elements, 16 at most. */
GSC_INLINE void put_floats(enum gsc_real_dtype dtype, char *at, floats x, uint64_t left)
{
    switch (dtype) {
    case gsc_f32:
        put(at, bits_of(x), 4 * left);
        break;
    case gsc_f64:
        put(at, bits_of_doubles(doubles_low(x)), 8 * left);
        if (left > 8)
            put(at + 64, bits_of_doubles(doubles_high(x)), 8 * (left - 8));
        break;
    case gsc_f16:
    case gsc_bf16:
    case gsc_cb16:
        put_half(at, narrow_half(dtype, x), 2 * left);
        break;
    default:
        put_quarter(at, narrow1(small_narrow(layout_of(dtype), x)), left);
    }
}

/* ---- kernels that multiply in float ---- */

/* A number for each of the 64 lanes. */
typedef struct lanes {
    floats a, b, c, d;
} lanes;

GSC_INLINE lanes lanes_zero(void)
{
    const floats zero = floats_set(0);
    return (lanes){zero, zero, zero, zero};
}

/* A bit of `does`: copy the input to norm->input. */
enum { KEEPS = 16 };

/* Adds KEEPS for a kernel from a narrow dtype to itself that has a norm. */
GSC_INLINE unsigned keeping(unsigned does)
{
    return (does & GSC_WRITES) && (does & GSC_SUMS) ? does | KEEPS : does;
}
/* A bit of `does`: write 64 bytes at a time, for the last group. The second pass over a small bad
 * tensor reads these bytes next, and would wait for two stores. In a loop, joining is slower. */
enum { JOINS = 32 };

/* The position of a kernel in its block, and its results so far. */
typedef struct cursor {
    const char *from;
    char *to;
    unsigned char *kept;                       /* copy of the input, in norm->input */
    uint64_t limit, normal, zeros, subnormals; /* as in gsc_norm and its `small` */
    const gsc_small *limits;
    ints bits, most; /* bits: the 64 bytes that were read last; most: the largest |bits| */
    half first;      /* with JOINS, the half that waits for the next one */
} cursor;

GSC_INLINE cursor begin(unsigned does, const void *from, void *to, gsc_norm *norm)
{
    cursor at = {.from = from, .to = to, .bits = ints_set(0), .most = ints_set(0)};
    if (does & KEEPS)
        at.kept = norm->input;
    if (does & GSC_CLEANS)
        at.limit = norm->limit;
    if (does & GSC_COUNTS) {
        at.limits = &norm->small;
        at.normal = norm->small.normal;
    }
    return at;
}

GSC_INLINE uint64_t end(uint64_t size, unsigned does, const cursor *at, gsc_norm *norm)
{
    if (does & GSC_COUNTS) {
        norm->small.zeros = at->zeros;
        norm->small.subnormals = at->subnormals;
    }
    return largest(size, at->most);
}

typedef struct smalls {
    uint64_t zeros, subnormals;
} smalls;

/* Counts the elements that become zero, and those that become subnormal. */
GSC_INLINE smalls smalls_of(uint64_t size, const gsc_small *limits, const char *from,
                            uint64_t bytes)
{
    smalls found = {0, 0};
    for (uint64_t i = 0; i < bytes; i += 64) {
        const ints absolute = magnitudes(size, take(from + i, bytes - i));
        found.zeros += between(size, absolute, 1, limits->not_zero);
        found.subnormals += between(size, absolute, limits->least, limits->normal);
    }
    return found;
}

/* Counts the underflows of a group of floats, and finds the largest |bits|. The group has zeros or
 * small elements. Not inlined: it would take registers. */
static __attribute__((noinline)) smalls smalls_of_floats(const gsc_small *limits, const char *from,
                                                         uint64_t bytes, ints *most)
{
    ints least = ints_set(UINT32_MAX); /* of |bits| - 1: zero wraps around and is not the least */
    for (uint64_t i = 0; i < bytes; i += 64) {
        const ints absolute = magnitudes(4, take(from + i, bytes - i));
        *most = larger(4, *most, absolute);
        least = smaller(4, least, sub(4, absolute, 1));
    }
    if (!any_below(4, least, limits->normal - 1))
        return (smalls){0, 0};
    return smalls_of(4, limits, from, bytes);
}

/* As count_small, and finds the largest |bits|. */
GSC_INLINE void count_small_floats(cursor *at, uint64_t bytes)
{
    /* |bits| - normal: a small element wraps around and becomes the largest. */
    const uint32_t normal = (uint32_t)at->normal;
    ints most = sub(4, magnitudes(4, take(at->from, bytes)), normal);
    for (uint64_t i = 64; i < GROUP * 4; i += 64)
        if (i < bytes)
            most = larger(4, most, sub(4, magnitudes(4, take(at->from + i, bytes - i)), normal));
    if (__builtin_expect(any_at_least(4, most, UINT64_C(1) << 31), 0)) {
        most = ints_set(0);
        const smalls found = smalls_of_floats(at->limits, at->from, bytes, &most);
        at->zeros += found.zeros;
        at->subnormals += found.subnormals;
    } else {
        most = sub(4, most, 0 - normal);
    }
    at->most = larger(4, at->most, most);
}

/* Counts the underflows of a group, or of its `left` elements. Most groups have none. */
GSC_INLINE void count_small(uint64_t size, unsigned does, cursor *at, uint64_t left)
{
    const uint64_t bytes = left * size;
    if (!(does & GSC_COUNTS) || left == 0)
        return;
    if (size == 4) {
        count_small_floats(at, bytes);
        return;
    }
    /* |bits| - 1: zero wraps around and is not the least. */
    ints least = sub(size, magnitudes(size, take(at->from, bytes)), 1);
    for (uint64_t i = 64; i < GROUP * size; i += 64)
        if (i < bytes)
            least =
                smaller(size, least, sub(size, magnitudes(size, take(at->from + i, bytes - i)), 1));
    if (__builtin_expect(any_below(size, least, at->normal - 1), 0)) {
        const smalls found = smalls_of(size, at->limits, at->from, bytes);
        at->zeros += found.zeros;
        at->subnormals += found.subnormals;
    }
}

/* Writes vector k of a group as elements of 2 bytes; `left` elements are left. */
GSC_INLINE void put_joined(enum gsc_real_dtype dtype, int k, cursor *at, floats x, uint64_t left)
{
    const half next = narrow_half(dtype, x);
    char *to = at->to + 32 * k;
    if (k % 2 == 1)
        put(to - 32, ints_of_halves(at->first, next), 32 + 2 * left);
    else if (left <= 16)
        put_half(to, next, 2 * left);
    else
        at->first = next;
}

/* Multiplies vector k of a group that has `left` elements. Returns the lanes' sums. */
GSC_INLINE floats vector(enum gsc_real_dtype in, enum gsc_real_dtype out, unsigned does, int k,
                         cursor *at, uint64_t left, floats m, floats sum)
{
    const uint64_t done = 16 * (uint64_t)k, bytes = done * size_of(in);
    if (left <= done)
        return sum;
    if (bytes % 64 == 0) {
        at->bits = take(at->from + bytes, left * size_of(in) - bytes);
        if (does & GSC_CLEANS)
            at->bits = keep_below(size_of(in), at->bits, at->limit);
        if (in != gsc_f32 || !(does & GSC_COUNTS)) /* count_small_floats has found it */
            at->most = larger(size_of(in), at->most, magnitudes(size_of(in), at->bits));
        if (does & KEEPS)
            store(at->kept + bytes, at->bits);
    }
    const uint64_t in_memory = does & GSC_CLEANS ? 0 : left - done;
    const floats x = floats_mul(widen(in, at->from + bytes, in_memory, at->bits, k), m);
    if ((does & GSC_WRITES) && (does & JOINS) && size_of(out) == 2)
        put_joined(out, k, at, x, left - done);
    else if (does & GSC_WRITES)
        put_floats(out, at->to + done * size_of(out), x, left - done);
    return does & GSC_SUMS ? floats_fma(x, x, sum) : sum;
}

/* Multiplies a group of 64 elements, or the last `left`. Returns the lanes' sums. */
GSC_INLINE lanes group(enum gsc_real_dtype in, enum gsc_real_dtype out, unsigned does, cursor *at,
                       uint64_t left, floats m, lanes sums)
{
    count_small(size_of(in), does, at, left);
    sums.a = vector(in, out, does, 0, at, left, m, sums.a);
    sums.b = vector(in, out, does, 1, at, left, m, sums.b);
    sums.c = vector(in, out, does, 2, at, left, m, sums.c);
    sums.d = vector(in, out, does, 3, at, left, m, sums.d);
    return sums;
}

GSC_INLINE void advance(enum gsc_real_dtype in, enum gsc_real_dtype out, unsigned does, cursor *at)
{
    at->from += GROUP * size_of(in);
    if (does & GSC_WRITES)
        at->to += GROUP * size_of(out);
    if (does & KEEPS)
        at->kept += GROUP * size_of(in);
}

GSC_INLINE doubles low_sum(floats x, floats y)
{
    return doubles_add(doubles_low(x), doubles_low(y));
}

GSC_INLINE doubles high_sum(floats x, floats y)
{
    return doubles_add(doubles_high(x), doubles_high(y));
}

/* Adds the lanes as a balanced tree: lane j + 32 to lane j, then lane j + 16, ... */
GSC_INLINE double fold(lanes x)
{
    return doubles_fold(doubles_add(doubles_add(low_sum(x.a, x.c), low_sum(x.b, x.d)),
                                    doubles_add(high_sum(x.a, x.c), high_sum(x.b, x.d))));
}

GSC_INLINE uint64_t multiply_floats(enum gsc_real_dtype in, enum gsc_real_dtype out, unsigned does,
                                    const void *from, void *to, uint64_t n, double number,
                                    gsc_norm *norm)
{
    if (in == out && size_of(in) <= 2)
        does = keeping(does);
    const floats m = floats_set((float)number);
    cursor at = begin(does, from, to, norm);
    lanes sums = lanes_zero();
    for (; n >= GROUP; n -= GROUP) {
        prefetch(at.from, GROUP * size_of(in));
        sums = group(in, out, does, &at, GROUP, m, sums);
        advance(in, out, does, &at);
    }
    sums = group(in, out, does | JOINS, &at, n, m, sums);
    if (does & GSC_SUMS)
        norm->sum = fold(sums);
    return end(size_of(in), does, &at, norm);
}

/* ---- bytes: results come from a table; only the sum uses floats ---- */

/* How to sum bytes: multiply values by `m` if `multiplies`, and the sum by `after`. */
typedef struct byte_factor {
    floats m;
    bool multiplies;
    double after;
} byte_factor;

/*
 * A power of two can be left out of the sums if all squares and sums stay normal floats: the lanes
 * round at the same bits, and the folded sum times its square is exact.
 */
GSC_INLINE byte_factor byte_factor_of(enum gsc_real_dtype dtype, double number)
{
    const float by = (float)(number * (dtype == gsc_f8_e5m2 ? 1 : BYTE_UNIT));
    const bool is_power = (gsc_float_bits(by) & 0x7fffff) == 0;
    const bool multiplies = !(is_power && by >= 0x1p-40f && by <= 0x1p40f);
    return (byte_factor){floats_set(by), multiplies, multiplies ? 1 : (double)by * (double)by};
}

/* Adds the squares of vector k of 64 elements. One vector at a time: AVX2 has few registers. */
GSC_INLINE floats sum_vector(enum gsc_real_dtype dtype, bool multiplies, byte_values values,
                             ints bits, int k, floats m, floats sum)
{
    floats x = byte_value(dtype, values, bits, k); /* squares know no sign */
    if (multiplies)
        x = floats_mul(x, m);
    return floats_fma(x, x, sum);
}

GSC_INLINE lanes sum_group(enum gsc_real_dtype dtype, bool multiplies, byte_values values,
                           ints bits, floats m, lanes sums)
{
    sums.a = sum_vector(dtype, multiplies, values, bits, 0, m, sums.a);
    sums.b = sum_vector(dtype, multiplies, values, bits, 1, m, sums.b);
    sums.c = sum_vector(dtype, multiplies, values, bits, 2, m, sums.c);
    sums.d = sum_vector(dtype, multiplies, values, bits, 3, m, sums.d);
    return sums;
}

GSC_INLINE double fold_bytes(lanes sums)
{
    byte_order(&sums.a, &sums.b, &sums.c, &sums.d);
    return fold(sums);
}

GSC_INLINE uint64_t sum_groups(enum gsc_real_dtype dtype, bool multiplies, const char *from,
                               uint64_t n, floats m, lanes *sums)
{
    const byte_values values = byte_values_load(dtype);
    ints most = ints_set(0);
    for (uint64_t i = 0; i < n; i += GROUP) {
        const ints bits = take(from + i, n - i);
        prefetch(from + i, GROUP);
        *sums = sum_group(dtype, multiplies, values, bits, m, *sums);
        most = larger(1, most, magnitudes(1, bits));
    }
    return largest(1, most);
}

GSC_INLINE uint64_t sum_bytes(enum gsc_real_dtype dtype, const char *from, uint64_t n,
                              double number, gsc_norm *norm)
{
    const byte_factor by = byte_factor_of(dtype, number);
    lanes sums = lanes_zero();
    if (number > 0x1p100)
        return multiply_floats(dtype, dtype, GSC_SUMS, from, NULL, n, number, norm);
    const uint64_t most = by.multiplies ? sum_groups(dtype, true, from, n, by.m, &sums)
                                        : sum_groups(dtype, false, from, n, by.m, &sums);
    norm->sum = fold_bytes(sums) * by.after;
    return most;
}

GSC_INLINE ints table_group(enum gsc_real_dtype dtype, int kind, unsigned does, cursor *at,
                            uint64_t left, table results)
{
    const ints bits = take(at->from, left);
    count_small(1, does, at, left);
    if (does & KEEPS)
        store(at->kept, bits);
    put(at->to, table_results(dtype, kind, results, bits), left);
    at->most = larger(1, at->most, magnitudes(1, bits));
    return bits;
}

GSC_INLINE void table_groups(enum gsc_real_dtype dtype, int kind, unsigned does, cursor *at,
                             uint64_t n, const gsc_table *from, lanes *sums)
{
    const table results = table_load(kind, from);
    const byte_values values = byte_values_load(dtype);
    for (; n >= GROUP; n -= GROUP) {
        prefetch(at->from, GROUP);
        const ints bits = table_group(dtype, kind, does, at, GROUP, results);
        if (does & GSC_SUMS)
            *sums = sum_group(dtype, false, values, bits, floats_set(1), *sums);
        advance(dtype, dtype, does, at);
    }
    if (n == 0)
        return;
    const ints bits = table_group(dtype, kind, does, at, n, results);
    if (does & GSC_SUMS)
        *sums = sum_group(dtype, false, values, bits, floats_set(1), *sums);
}

/* Makes the results of a block again: they are wrong for elements that are not finite. */
GSC_INLINE void table_repeat(enum gsc_real_dtype dtype, int kind, const gsc_norm *norm, char *to,
                             uint64_t n)
{
    const table results = table_load(kind, norm->table);
    for (uint64_t i = 0; i < n; i += GROUP)
        put(to + i, table_results(dtype, kind, results, load((const char *)norm->input + i)),
            n - i);
}

GSC_INLINE uint64_t multiply_by_table(enum gsc_real_dtype dtype, unsigned does, const void *from,
                                      void *to, uint64_t n, double after, gsc_norm *norm)
{
    const int kind = table_kind(norm->table);
    cursor at = begin(does, from, to, norm);
    lanes sums = lanes_zero();
    if (kind == 3)
        table_groups(dtype, 3, does, &at, n, norm->table, &sums);
    else if (kind == 2)
        table_groups(dtype, 2, does, &at, n, norm->table, &sums);
    else if (kind == 1)
        table_groups(dtype, 1, does, &at, n, norm->table, &sums);
    else
        table_groups(dtype, 0, does, &at, n, norm->table, &sums);
    if (does & GSC_SUMS)
        norm->sum = fold_bytes(sums) * after;
    const uint64_t most = end(1, does, &at, norm);
    if (REPEATS && most >= layout_of(dtype).infinity) {
        if (norm->table->grows)
            table_repeat(dtype, TAKES_ALL | 1, norm, to, n);
        else
            table_repeat(dtype, TAKES_ALL, norm, to, n);
    }
    return most;
}

GSC_INLINE uint64_t look_up_as(enum gsc_real_dtype dtype, unsigned does, const void *from, void *to,
                               uint64_t n, gsc_norm *norm)
{
    if (REPEATS || norm->keeps_input)
        return multiply_by_table(dtype, does | KEEPS, from, to, n, 1, norm);
    return multiply_by_table(dtype, does, from, to, n, 1, norm);
}

/* Multiplies a group or more by a table, without a sum. Not inlined: a small tensor would have to
 * save its registers. */
static __attribute__((noinline)) uint64_t look_up(enum gsc_real_dtype dtype, bool counts,
                                                  const void *from, void *to, uint64_t n,
                                                  gsc_norm *norm)
{
    enum { UNSCALE = GSC_WRITES, COUNT = GSC_WRITES | GSC_COUNTS };
    if (dtype == gsc_f8_e4m3fn)
        return counts ? look_up_as(gsc_f8_e4m3fn, COUNT, from, to, n, norm)
                      : look_up_as(gsc_f8_e4m3fn, UNSCALE, from, to, n, norm);
    return counts ? look_up_as(gsc_f8_e5m2, COUNT, from, to, n, norm)
                  : look_up_as(gsc_f8_e5m2, UNSCALE, from, to, n, norm);
}

/* ---- bf16 and cb16 to themselves: a 32-bit word has two elements, an even and an odd one ---- */

/* A factor of bf16. A power of two (is_exact) adds `shift` to the bits of an element that stays
 * normal. */
typedef struct power {
    bool is_exact;
    uint16_t shift, smallest, largest; /* |bits| > smallest and <= largest stay normal */
} power;

GSC_INLINE power power_of(float number)
{
    const uint32_t bits = gsc_float_bits(number);
    const int exponent = (int)(bits >> 23) - 127;
    const unsigned down = exponent < 0 ? (unsigned)-exponent : 0;
    const unsigned up = exponent > 0 ? (unsigned)exponent : 0;
    return (power){(bits & 0x7fffff) == 0, (uint16_t)((unsigned)exponent << 7),
                   (uint16_t)(((down + 1) << 7) - 1), (uint16_t)(bf16_INF - 1 - (up << 7))};
}

/* Return the even or the odd of 32 elements, as floats. */
GSC_INLINE floats even(ints bits)
{
    return floats_of(ints_shl(bits, 16));
}

GSC_INLINE floats odd(ints bits)
{
    return floats_of(ints_and(bits, ints_set(0xffff0000)));
}

/* cb16 has 2 bits of exponent fewer than float: shifted |bits| are a float, 2^-85 of the value. */
enum { CB16_UP = f32_MANTISSA - cb16_MANTISSA };

GSC_INLINE floats cb16_even(ints absolute)
{
    return floats_of(ints_and(ints_shl(absolute, CB16_UP), ints_set(0x7fffu << CB16_UP)));
}

GSC_INLINE floats cb16_odd(ints absolute)
{
    return floats_of(ints_and(ints_shr(absolute, 16 - CB16_UP), ints_set(0x7fffu << CB16_UP)));
}

/* Adds the squares of the products x * by, of even or odd elements. */
GSC_INLINE floats cb16_add_squares(floats x, float by, floats sums)
{
    const floats product = by == 1 ? x : floats_mul(x, floats_set(by));
    return floats_fma(product, product, sums);
}

/* Elements of a span, which one test covers: enough to hide it, few enough to retry from L1. */
enum { SPAN = 8 * GROUP };

/* Stores 32 elements at byte i of a span, and their results. */
GSC_INLINE void shift_half(unsigned does, const cursor *at, uint64_t i, ints bits, ints result)
{
    if (does & KEEPS)
        store(at->kept + i, bits);
    if (does & GSC_WRITES)
        store(at->to + i, result);
}

/* Returns the results of 32 elements at byte i of a span. */
GSC_INLINE ints shifted(bool is_normal, unsigned does, const cursor *at, uint64_t i, power by)
{
    if (does & GSC_WRITES)
        return load(at->to + i);
    const ints bits = load(at->from + i);
    return is_normal ? sub(2, bits, (uint16_t)-by.shift) : add_where_not_zero2(bits, by.shift);
}

GSC_INLINE void add_pairs(enum gsc_real_dtype dtype, ints bits, floats *even_sums, floats *odd_sums)
{
    if (dtype == gsc_bf16) {
        *even_sums = floats_fma(even(bits), even(bits), *even_sums);
        *odd_sums = floats_fma(odd(bits), odd(bits), *odd_sums);
    } else {
        const ints absolute = magnitudes(2, bits);
        *even_sums = cb16_add_squares(cb16_even(absolute), 0x1p85f, *even_sums);
        *odd_sums = cb16_add_squares(cb16_odd(absolute), 0x1p85f, *odd_sums);
    }
}

/* Adds the squares of a span in a separate loop: 64 lanes take most registers. */
GSC_INLINE void add_shifted(enum gsc_real_dtype dtype, bool is_normal, unsigned does,
                            const cursor *at, uint64_t bytes, power by, lanes *sums)
{
    for (uint64_t i = 0; i < bytes; i += 128) {
        add_pairs(dtype, shifted(is_normal, does, at, i, by), &sums->a, &sums->b);
        add_pairs(dtype, shifted(is_normal, does, at, i + 64, by), &sums->c, &sums->d);
    }
}

/* Returns |bits| less the smallest that stays normal. Smaller |bits| wrap around to the largest. */
GSC_INLINE ints above_smallest(ints bits, power by)
{
    return sub(2, magnitudes(2, bits), (uint16_t)(by.smallest + 1));
}

/*
 * Shifts a span if every element stays normal. Else takes the shift back and returns false: a
 * result is not normal, or an input is not finite. In that case *none_small is true if no element
 * is zero or becomes too small.
 */
GSC_INLINE bool shift_normal(enum gsc_real_dtype dtype, unsigned does, cursor *at, uint64_t bytes,
                             power by, bool *none_small, lanes *sums)
{
    const lanes before = *sums;
    const uint16_t back = (uint16_t)-by.shift;
    ints most = ints_set(0);
    for (uint64_t i = 0; i < bytes; i += 128) {
        const ints first = load(at->from + i), last = load(at->from + i + 64);
        prefetch(at->from + i, 128);
        most = larger(2, most, above_smallest(first, by));
        most = larger(2, most, above_smallest(last, by));
        shift_half(does, at, i, first, sub(2, first, back));
        shift_half(does, at, i + 64, last, sub(2, last, back));
        if ((does & GSC_SUMS) && SUMS_AT_ONCE) {
            add_pairs(dtype, sub(2, first, back), &sums->a, &sums->b);
            add_pairs(dtype, sub(2, last, back), &sums->c, &sums->d);
        }
    }
    if (any_above2(most, (uint16_t)(by.largest - by.smallest - 1))) {
        for (uint64_t i = 0; (does & GSC_WRITES) && i < bytes; i += 64)
            store(at->to + i, sub(2, load(at->to + i), by.shift));
        *sums = before;
        *none_small = !any_above2(most, 0x7fff);
        return false;
    }
    at->most = larger(2, at->most, sub(2, most, (uint16_t)~by.smallest));
    if ((does & GSC_SUMS) && !SUMS_AT_ONCE)
        add_shifted(dtype, true, does, at, bytes, by, sums);
    return true;
}

/* Shifts a span if every element is zero or stays normal, else returns false. */
GSC_INLINE bool shift_with_zeros(enum gsc_real_dtype dtype, unsigned does, cursor *at,
                                 uint64_t bytes, power by, lanes *sums)
{
    ints most = at->most, least = ints_set(UINT32_MAX);
    for (uint64_t i = 0; i < bytes; i += 64) {
        const ints absolute = magnitudes(2, load(at->from + i));
        most = larger(2, most, absolute);
        least = smaller(2, least, sub(2, absolute, 1)); /* zero becomes the largest */
    }
    if (any_below(2, least, by.smallest) || any_above2(most, by.largest))
        return false;
    at->most = most;
    for (uint64_t i = 0; i < bytes; i += 64) {
        const ints bits = load(at->from + i);
        prefetch(at->from + i, 64);
        shift_half(does, at, i, bits, add_where_not_zero2(bits, by.shift));
    }
    if (does & GSC_SUMS)
        add_shifted(dtype, false, does, at, bytes, by, sums);
    return true;
}

/* Multiplies a span of n >= GROUP elements by a power of two. Returns how many are done, or 0. If
 * a span has small elements, the next mostly has some; after an Inf or NaN, mostly not. */
GSC_INLINE uint64_t shift_span(enum gsc_real_dtype dtype, unsigned does, cursor *at, uint64_t n,
                               power by, bool *none_small, lanes *sums)
{
    const uint64_t bytes = 2 * (n < SPAN ? n / GROUP * GROUP : SPAN);
    if (!(*none_small && shift_normal(dtype, does, at, bytes, by, none_small, sums)) &&
        (*none_small || !shift_with_zeros(dtype, does, at, bytes, by, sums)))
        return 0;
    at->from += bytes;
    at->to = past(does, at->to, bytes);
    at->kept = does & KEEPS ? at->kept + bytes : at->kept;
    return bytes / 2;
}

/* Rounds 32 elements, or the first `left`. A NaN stays a NaN: the lower half of its product is 0,
 * so rounding does not change the upper half. */
GSC_INLINE void bf16_round(unsigned does, ints bits, floats m, char *to, uint64_t left,
                           floats *even_sums, floats *odd_sums)
{
    const floats evens = floats_mul(even(bits), m), odds = floats_mul(odd(bits), m);
    if (does & GSC_WRITES)
        put(to, merge_upper(round_upper(evens), round_upper(odds)), 2 * left);
    if (does & GSC_SUMS) {
        *even_sums = floats_fma(evens, evens, *even_sums);
        *odd_sums = floats_fma(odds, odds, *odd_sums);
    }
}

/* Multiplies and rounds 64 elements, or the last `left`. */
GSC_INLINE void bf16_round_group(unsigned does, cursor *at, uint64_t left, floats m, lanes *sums)
{
    const uint64_t others = left > 32 ? left - 32 : 0;
    const ints first = take(at->from, 2 * left);
    const ints last = others ? take(at->from + 64, 2 * others) : ints_set(0);
    at->most = larger(2, at->most, larger(2, magnitudes(2, first), magnitudes(2, last)));
    count_small(2, does, at, left);
    if (does & KEEPS) {
        store(at->kept, first);
        store(at->kept + 64, last);
    }
    bf16_round(does, first, m, at->to, left, &sums->a, &sums->b);
    if (others)
        bf16_round(does, last, m, past(does, at->to, 64), others, &sums->c, &sums->d);
}

/* Shifts spans by a power of two; rounds other spans. Separate loops have all registers. */
GSC_INLINE void bf16_groups(unsigned does, cursor *at, uint64_t n, float number, lanes *sums)
{
    const power by = n < GROUP ? (power){0} : power_of(number);
    const floats m = floats_set(number);
    bool none_small = by.largest > by.smallest;
    while (n >= GROUP) {
        for (uint64_t done = by.is_exact; done && n >= GROUP; n -= done)
            done = shift_span(gsc_bf16, does, at, n, by, &none_small, sums);
        const uint64_t end = by.is_exact && n > SPAN ? n - SPAN : 0;
        for (; n > end && n >= GROUP; n -= GROUP) {
            prefetch(at->from, 2 * GROUP);
            bf16_round_group(does, at, GROUP, m, sums);
            advance(gsc_bf16, gsc_bf16, does, at);
        }
    }
    if (n)
        bf16_round_group(does, at, n, m, sums);
}

/* As fold, for even lanes in a and c, and odd lanes in b and d. */
GSC_INLINE double fold_pairs(lanes x)
{
    return doubles_fold(doubles_add(low_sum(x.a, x.c), high_sum(x.a, x.c))) +
           doubles_fold(doubles_add(low_sum(x.b, x.d), high_sum(x.b, x.d)));
}

GSC_INLINE uint64_t multiply_bf16(unsigned does, const void *from, void *to, uint64_t n,
                                  double number, gsc_norm *norm)
{
    does = keeping(does);
    cursor at = begin(does, from, to, norm);
    lanes sums = lanes_zero();
    bf16_groups(does, &at, n, (float)number, &sums);
    if (does & GSC_SUMS)
        norm->sum = fold_pairs(sums);
    return end(2, does, &at, norm);
}

/* ---- cb16 to itself: even and odd elements; groups that are normal and stay normal are quick ----
 */

/* Returns a factor of cb16: elements between smallest and largest are normal and stay normal. */
GSC_INLINE power cb16_power_of(float number)
{
    const uint32_t bits = gsc_float_bits(number);
    const int exponent = (int)(bits >> 23) - 127, most = (cb16_INF >> cb16_MANTISSA) - 1;
    const bool is_exact = (bits & 0x7fffff) == 0;
    const int up = exponent + !is_exact; /* an upper bound */
    const int lowest = exponent < 0 ? 1 - exponent : 1, highest = up > 0 ? most - up : most;
    return (power){is_exact, (uint16_t)((unsigned)exponent << cb16_MANTISSA),
                   (uint16_t)(((lowest < most + 1 ? lowest : most + 1) << cb16_MANTISSA) - 1),
                   (uint16_t)(((highest < 0 ? 0 : highest) + 1) * (1 << cb16_MANTISSA) - 1)};
}

/* Rounds floats to cb16. The result begins at bit CB16_UP; lower bits are garbage. */
GSC_INLINE ints cb16_round(floats x)
{
    return ints_add(add_bit(bits_of(x), CB16_UP), ints_set((1u << (CB16_UP - 1)) - 1));
}

/* Multiplies 32 elements, or the first `left`. */
GSC_INLINE void cb16_half(bool quick, unsigned does, ints bits, floats m, char *to, uint64_t left,
                          floats *even_sums, floats *odd_sums)
{
    const layout cb16 = layout_of(gsc_cb16);
    const ints absolute = magnitudes(2, bits);
    ints result;
    floats evens, odds;
    if (quick) {
        evens = floats_mul(cb16_even(absolute), m);
        odds = floats_mul(cb16_odd(absolute), m);
        result = merge_cb16(cb16_round(evens), cb16_round(odds), bits);
    } else {
        evens = floats_mul(small_widen(cb16, ints_and(bits, ints_set(0xffff))), m);
        odds = floats_mul(small_widen(cb16, ints_shr(bits, 16)), m);
        result = ints_or(small_narrow(cb16, evens), ints_shl(small_narrow(cb16, odds), 16));
    }
    if ((does & GSC_WRITES) && left)
        put(to, result, 2 * left);
    if (does & GSC_SUMS) {
        *even_sums = cb16_add_squares(evens, quick ? 0x1p85f : 1, *even_sums);
        *odd_sums = cb16_add_squares(odds, quick ? 0x1p85f : 1, *odd_sums);
    }
}

/* Multiplies 64 elements, or the last `left`. With `quick`, does nothing and returns false if an
 * element other than zero is not normal, or does not stay normal. */
GSC_INLINE bool cb16_group(bool quick, unsigned does, cursor *at, uint64_t left, float number,
                           power by, lanes *sums)
{
    const uint64_t others = left > 32 ? left - 32 : 0;
    const ints first = take(at->from, 2 * left);
    const ints last = others ? take(at->from + 64, 2 * others) : ints_set(0);
    const ints absolute = magnitudes(2, first), absolute_last = magnitudes(2, last);
    const ints most = larger(2, absolute, absolute_last);
    const floats m = floats_set(number);
    char *to = at->to, *to_last = past(does, to, 64);
    /* |bits| - 1: zero wraps around and is not the least. */
    if (quick &&
        (any_below(2, smaller(2, sub(2, absolute, 1), sub(2, absolute_last, 1)), by.smallest) ||
         any_above2(most, by.largest)))
        return false;
    at->most = larger(2, at->most, most);
    if (does & KEEPS) {
        store(at->kept, first);
        store(at->kept + 64, last);
    }
    if (!quick)
        count_small(2, does, at, left);
    cb16_half(quick, does, first, m, to, left, &sums->a, &sums->b);
    cb16_half(quick, does, last, m, to_last, others, &sums->c, &sums->d);
    return true;
}

/* Shifts spans by a power of two; multiplies other spans. Separate loops have all registers. */
GSC_INLINE void cb16_groups(unsigned does, cursor *at, uint64_t n, float number, lanes *sums)
{
    const power by = cb16_power_of(number);
    bool none_small = by.largest > by.smallest;
    while (n >= GROUP) {
        for (uint64_t done = by.is_exact; done && n >= GROUP; n -= done)
            done = shift_span(gsc_cb16, does, at, n, by, &none_small, sums);
        const uint64_t end = by.is_exact && n > SPAN ? n - SPAN : 0;
        for (; n > end && n >= GROUP; n -= GROUP) {
            for (; n > end && n >= GROUP && cb16_group(true, does, at, GROUP, number, by, sums);
                 n -= GROUP) {
                prefetch(at->from, 2 * GROUP);
                advance(gsc_cb16, gsc_cb16, does, at);
            }
            if (n <= end || n < GROUP)
                break;
            (void)cb16_group(false, does, at, GROUP, number, by, sums);
            advance(gsc_cb16, gsc_cb16, does, at);
        }
    }
    if (n && !cb16_group(true, does, at, n, number, by, sums))
        (void)cb16_group(false, does, at, n, number, by, sums);
}

GSC_INLINE uint64_t multiply_cb16(unsigned does, const void *from, void *to, uint64_t n,
                                  double number, gsc_norm *norm)
{
    does = keeping(does);
    cursor at = begin(does, from, to, norm);
    lanes sums = lanes_zero();
    cb16_groups(does, &at, n, (float)number, &sums);
    if (does & GSC_SUMS)
        norm->sum = fold_pairs(sums);
    return end(2, does, &at, norm);
}

/*
 * Makes a function that multiplies a group or more of a dtype. Not inlined: a small tensor would
 * have to save registers that it does not need. Measured: with one function for both dtypes, bf16
 * takes 1.05 times as long.
 */
#define MULTIPLY_GROUPS(name, multiply_dtype)                                                      \
    static __attribute__((noinline)) uint64_t name(unsigned does, const void *from, void *to,      \
                                                   uint64_t n, double number, gsc_norm *norm)      \
    {                                                                                              \
        enum { UNSCALE = GSC_WRITES, UNSCALE_NORM = GSC_WRITES | GSC_SUMS };                       \
        switch (does) {                                                                            \
        case UNSCALE:                                                                              \
            return multiply_dtype(UNSCALE, from, to, n, number, norm);                             \
        case UNSCALE | GSC_COUNTS:                                                                 \
            return multiply_dtype(UNSCALE | GSC_COUNTS, from, to, n, number, norm);                \
        case UNSCALE_NORM:                                                                         \
            return multiply_dtype(UNSCALE_NORM, from, to, n, number, norm);                        \
        case UNSCALE_NORM | GSC_COUNTS:                                                            \
            return multiply_dtype(UNSCALE_NORM | GSC_COUNTS, from, to, n, number, norm);           \
        default:                                                                                   \
            return multiply_dtype(GSC_SUMS, from, to, n, number, norm);                            \
        }                                                                                          \
    }
MULTIPLY_GROUPS(multiply_bf16_groups, multiply_bf16)
MULTIPLY_GROUPS(multiply_cb16_groups, multiply_cb16)

/* ---- doubles: 64 lanes do not fit into registers; they are in L1 ---- */

/* Multiplies 8 elements, or the last `left`. */
GSC_INLINE void wide_vector(enum gsc_real_dtype out, unsigned does, cursor *at, uint64_t left,
                            doubles m, char *sums)
{
    ints bits = take(at->from, 8 * left);
    if (does & GSC_CLEANS)
        bits = keep_below(8, bits, at->limit);
    const doubles x = doubles_mul(doubles_of(bits), m);
    at->most = larger(8, at->most, magnitudes(8, bits));
    if (does & GSC_COUNTS) {
        const smalls found = smalls_of(8, at->limits, at->from, 8 * left);
        at->zeros += found.zeros;
        at->subnormals += found.subnormals;
    }
    if ((does & GSC_WRITES) && out == gsc_f64)
        put(at->to, bits_of_doubles(x), 8 * left);
    else if (does & GSC_WRITES)
        put_half(at->to, doubles_narrow(x), 4 * left);
    if (does & GSC_SUMS)
        store(sums, bits_of_doubles(doubles_fma(x, x, doubles_of(load(sums)))));
    at->from += 64;
    at->to = past(does, at->to, 8 * size_of(out));
}

GSC_INLINE double wide_fold(char *sums)
{
    for (uint64_t distance = 8 * GSC_LANES / 2; distance >= 64; distance /= 2)
        for (uint64_t j = 0; j < distance; j += 64)
            store(sums + j, bits_of_doubles(doubles_add(doubles_of(load(sums + j)),
                                                        doubles_of(load(sums + j + distance)))));
    return doubles_fold(doubles_of(load(sums)));
}

GSC_INLINE uint64_t multiply_doubles(enum gsc_real_dtype out, unsigned does, const char *from,
                                     char *to, uint64_t n, double number, gsc_norm *norm)
{
    const doubles m = doubles_set(number);
    char sums[8 * GSC_LANES] = {0};
    cursor at = begin(does, from, to, norm);
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        prefetch(at.from, 64);
        wide_vector(out, does, &at, 8, m, sums + 8 * (i % GSC_LANES));
    }
    if (i < n)
        wide_vector(out, does, &at, n - i, m, sums + 8 * (i % GSC_LANES));
    if (does & GSC_SUMS)
        norm->sum = wide_fold(sums);
    return end(8, does, &at, norm);
}

/* Multiplies a dtype of one byte to itself. */
GSC_INLINE uint64_t multiply_bytes(enum gsc_real_dtype dtype, unsigned does, const void *from,
                                   void *to, uint64_t n, double number, gsc_norm *norm)
{
    if (does == GSC_SUMS)
        return sum_bytes(dtype, from, n, number, norm);
    if (!norm || !norm->table)
        return multiply_floats(dtype, dtype, does, from, to, n, number, norm);
    const byte_factor by = byte_factor_of(dtype, number);
    if ((does & GSC_SUMS) && SUMS_AT_ONCE && !by.multiplies)
        return multiply_by_table(dtype, does | KEEPS, from, to, n, by.after, norm);
    /* The sums first: for both in one loop there are too few registers. The input stays in L1. */
    if (does & GSC_SUMS)
        (void)sum_bytes(dtype, from, n, number, norm);
    if (!(does & GSC_SUMS) && n >= GROUP)
        return look_up(dtype, does & GSC_COUNTS, from, to, n, norm);
    /* To keep less than a group costs nothing. */
    return multiply_by_table(dtype, (does & ~(unsigned)GSC_SUMS) | KEEPS, from, to, n, 1, norm);
}

/*
 * Chooses the kernel of a pair, as a macro: with an inlined function, the compiler would have to
 * remove all other kernels from each kernel.
 */
/* clang-format off */
#define WHERE(condition, these, others) __builtin_choose_expr(condition, these, others)
#define multiply(in, out, does, from, to, n, number, norm)                                         \
    WHERE((in) == gsc_f64, multiply_doubles(out, does, from, to, n, number, norm),                 \
    WHERE((in) != (out) || ((does) & GSC_CLEANS),                                                  \
          multiply_floats(in, out, does, from, to, n, number, norm),                               \
    WHERE((in) == gsc_bf16,                                                                        \
          n >= GROUP ? multiply_bf16_groups(does, from, to, n, number, norm)                       \
                     : multiply_bf16(does, from, to, n, number, norm),                             \
    WHERE((in) == gsc_cb16,                                                                        \
          n >= GROUP ? multiply_cb16_groups(does, from, to, n, number, norm)                       \
                     : multiply_cb16(does, from, to, n, number, norm),                             \
    WHERE((in) == gsc_f8_e4m3fn || (in) == gsc_f8_e5m2,                                            \
          multiply_bytes(in, does, from, to, n, number, norm),                                     \
          multiply_floats(in, out, does, from, to, n, number, norm))))))
/* clang-format on */

/* ---- bits alone ---- */

/* Returns a vector that has the largest |bits| of a row in some element. */
GSC_INLINE ints most_of_row(uint64_t size, const char *at)
{
    const ints a = magnitudes(size, load(at)), b = magnitudes(size, load(at + 64));
    const ints c = magnitudes(size, load(at + 128)), d = magnitudes(size, load(at + 192));
    return larger(size, larger(size, a, b), larger(size, c, d));
}

GSC_INLINE uint64_t check(enum gsc_real_dtype dtype, const char *from, uint64_t n)
{
    const uint64_t size = size_of(dtype), bytes = n * size;
    ints most = ints_set(0);
    uint64_t i = 0;
    for (; i + GSC_ROW <= bytes; i += GSC_ROW) {
        prefetch(from + i, GSC_ROW);
        most = larger(size, most, most_of_row(size, from + i));
    }
    for (; i < bytes; i += 64)
        most = larger(size, most, magnitudes(size, take(from + i, bytes - i)));
    return largest(size, most);
}

/* Counts a row, or its first `bytes`. */
GSC_INLINE gsc_found count_row(uint64_t size, const char *at, uint64_t bytes, uint64_t low,
                               uint64_t high, gsc_found found)
{
    for (uint64_t i = 0; i < bytes; i += 64) {
        const ints absolute = magnitudes(size, take(at + i, bytes - i));
        found.low += at_least(size, absolute, low);
        found.high += at_least(size, absolute, high);
    }
    return found;
}

/* Tests 64 rows into a bit each, then counts the marked rows: their positions cannot be predicted,
 * so a branch for each row would be slow. */
GSC_INLINE gsc_found count(enum gsc_real_dtype dtype, const char *from, uint64_t n, uint64_t low,
                           uint64_t high, uint64_t *near)
{
    const uint64_t size = size_of(dtype), bytes = n * size, rows = near ? bytes / GSC_ROW : 0;
    uint64_t first = rows;
    gsc_found found = {0, 0};
    for (uint64_t i = 0, end; i < rows; i = end) {
        uint64_t bits = 0;
        end = rows - i < 64 ? rows : i + 64;
        for (uint64_t k = i; k < end; k++)
            bits |= (uint64_t)any_at_least(size, most_of_row(size, from + k * GSC_ROW), low)
                    << k % 64;
        first = found.low == 0 && bits ? i + (uint64_t)__builtin_ctzll(bits) : first;
        for (; bits; bits &= bits - 1)
            found = count_row(size, from + GSC_ROW * (i + (uint64_t)__builtin_ctzll(bits)), GSC_ROW,
                              low, high, found);
    }
    if (near)
        *near = first * GSC_ROW / size;
    return count_row(size, from + rows * GSC_ROW, bytes - rows * GSC_ROW, low, high, found);
}

/* Finds the first element without a branch on its position. */
GSC_INLINE uint64_t find(enum gsc_real_dtype dtype, const char *from, uint64_t n, uint64_t low)
{
    const uint64_t size = size_of(dtype), bytes = n * size;
    uint64_t first = 0;
    for (uint64_t i = (bytes + 63) / 64; i-- > 0;) {
        const ints absolute = magnitudes(size, take(from + 64 * i, bytes - 64 * i));
        first = any_at_least(size, absolute, low) ? 64 * i : first;
    }
    return first / size +
           before_first(size, magnitudes(size, take(from + first, bytes - first)), low);
}

/* ---- sums and limits ---- */

GSC_INLINE uint64_t add_doubles(const char *from, char *to, uint64_t n, double number)
{
    for (uint64_t i = 0; i < 8 * n; i += 64) {
        const doubles x = doubles_mul(doubles_of(take(from + i, 8 * n - i)), doubles_set(number));
        const doubles sum = doubles_add(doubles_of(take(to + i, 8 * n - i)), x);
        put(to + i, bits_of_doubles(sum), 8 * n - i);
    }
    return 0;
}

/* Adds vector k of a group that has `left` elements. *bits: the last 64 bytes read from `to`. */
GSC_INLINE void add_vector(enum gsc_real_dtype out, int k, const char *from, char *to,
                           uint64_t left, floats m, ints *bits)
{
    const uint64_t done = 16 * (uint64_t)k, bytes = done * size_of(out);
    if (left <= done)
        return;
    const floats x = floats_mul(floats_of(take(from + 4 * done, 4 * (left - done))), m);
    char *at = to + bytes;
    if (out == gsc_f64) {
        const doubles low = doubles_of(take(at, 8 * (left - done)));
        put(at, bits_of_doubles(doubles_add(low, doubles_low(x))), 8 * (left - done));
        if (left <= done + 8)
            return;
        const doubles high = doubles_of(take(at + 64, 8 * (left - done - 8)));
        put(at + 64, bits_of_doubles(doubles_add(high, doubles_high(x))), 8 * (left - done - 8));
    } else {
        if (bytes % 64 == 0)
            *bits = take(at, left * size_of(out) - bytes);
        put_floats(out, at, floats_add(widen(out, at, left - done, *bits, k), x), left - done);
    }
}

GSC_INLINE uint64_t add(enum gsc_real_dtype in, enum gsc_real_dtype out, const char *from, char *to,
                        uint64_t n, double number)
{
    if (in == gsc_f64)
        return add_doubles(from, to, n, number);
    const floats m = floats_set((float)number);
    ints bits = ints_set(0);
    for (uint64_t i = 0; i < n; i += GROUP, from += GROUP * 4, to += GROUP * size_of(out)) {
        add_vector(out, 0, from, to, n - i, m, &bits);
        add_vector(out, 1, from, to, n - i, m, &bits);
        add_vector(out, 2, from, to, n - i, m, &bits);
        add_vector(out, 3, from, to, n - i, m, &bits);
    }
    return 0;
}

GSC_INLINE uint64_t clamp(enum gsc_real_dtype dtype, const char *from, char *to, uint64_t n,
                          double number)
{
    const uint64_t bytes = n * size_of(dtype);
    const float limit = (float)number;
    for (uint64_t i = 0; i < bytes; i += 64) {
        const ints x = take(from + i, bytes - i);
        const ints clamped =
            dtype == gsc_f64
                ? bits_of_doubles(
                      doubles_clamp(doubles_of(x), doubles_set(-number), doubles_set(number)))
                : bits_of(floats_clamp(floats_of(x), floats_set(-limit), floats_set(limit)));
        put(to + i, clamped, bytes - i);
    }
    return 0;
}

static void stream(const void *in, void *out, uint64_t bytes)
{
    const char *from = in;
    char *to = out;
    const uint64_t odd_bytes = (uintptr_t)to % 64, head = odd_bytes ? 64 - odd_bytes : 0;
    uint64_t i = head < bytes ? head : bytes;
    memcpy(to, from, i);
    for (; i + 64 <= bytes; i += 64)
        store_past_caches(to + i, load(from + i));
    store_past_caches_done();
    memcpy(to + i, from + i, bytes - i);
}

/* ---- the table ---- */

GSC_FOR_DTYPES(GSC_READERS)
GSC_FOR_FAST_PAIRS(GSC_WRITERS)
GSC_FOR_COUNTED_PAIRS(GSC_COUNTERS)
GSC_FOR_FAST_SUMS(GSC_SUM)
GSC_KERNEL(clamp_f32, clamp(gsc_f32, from, to, n, number))
GSC_KERNEL(clamp_f64, clamp(gsc_f64, from, to, n, number))

static void install(gsc_kernels *kernels)
{
    GSC_FOR_DTYPES(GSC_INSTALL_READERS)
    GSC_FOR_FAST_PAIRS(GSC_INSTALL_WRITERS)
    GSC_FOR_COUNTED_PAIRS(GSC_INSTALL_COUNTERS)
    GSC_FOR_FAST_SUMS(GSC_INSTALL_SUM)
    kernels->clamp[gsc_f32] = clamp_f32;
    kernels->clamp[gsc_f64] = clamp_f64;
    kernels->stream = stream;
    kernels->looks_up = true;
}
