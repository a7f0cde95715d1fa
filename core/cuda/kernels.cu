/* SPDX-License-Identifier: MIT */
/*
 * The kernels, in CUDA C++. ci/generate compiles this file to PTX; the library itself does not.
 *
 * A block of 256 threads runs chunks: 16 threads for each of a chunk's blocks of 4,096 elements.
 * A thread has the same 4 of the 64 lanes in all 64 rows of its block, so one thread accumulates a
 * lane in order, in one pass. There are three functions for rows, with the same bits:
 *
 *   quick    finite rows that are stored, added or measured, for common pairs of dtypes
 *
 *   full     most pairs, with any content, counts and clamps
 *
 *   careful  every pair and every alignment, one element after the other
 *
 * Each lane has a float and a double sum. The double sums are used if a block's float sum cannot be
 * trusted: an input in place is already overwritten then.
 */
#define DEVICE       static __inline__ __device__
#define GSC_FUNCTION DEVICE /* the functions of the core's headers */
#define INLINED      DEVICE __attribute__((always_inline))
#define SLOW         static __device__ __noinline__
#define SHARED       __shared__
#define ONE_BY_ONE   _Pragma("unroll 1")
#define UNROLLED     _Pragma("unroll")
#define KERNEL(name)                                                                               \
    extern "C" __global__ void LAUNCH_BOUNDS gsc_cuda_##name(const gsc_cuda_##name##_parameter p)

#if defined(__CUDA__) && defined(__clang__) /* of the CUDA toolkit, which clang does without */
#define __device__   __attribute__((device))
#define __constant__ __attribute__((constant))
#define __global__   __attribute__((global))
#define __shared__   __attribute__((shared))
#define __noinline__ __attribute__((noinline))
#define LAUNCH_BOUNDS                                                                              \
    __attribute__((launch_bounds(GSC_CUDA_THREADS, GSC_CUDA_BLOCKS_PER_PROCESSOR)))
#pragma clang force_cuda_host_device begin
#include <math.h>
#include <string.h>
#pragma clang force_cuda_host_device end
#include "launch.h"
#include <__clang_cuda_builtin_vars.h>
DEVICE uint64_t __cvta_generic_to_global(const void *p)
{
    return (uint64_t)(const __attribute__((address_space(1))) void *)p;
}
DEVICE uint64_t __cvta_generic_to_shared(const void *p)
{
    return (uint64_t)(const __attribute__((address_space(3))) void *)p;
}
DEVICE uint32_t __shfl_down_sync(uint32_t lanes, uint32_t x, uint32_t by)
{
    return (uint32_t)__nvvm_shfl_sync_down_i32(lanes, (int)x, (int)by, 31);
}
DEVICE unsigned long long atomicAdd(unsigned long long *to, unsigned long long x)
{
    return (unsigned long long)__nvvm_atom_add_gen_ll((long long *)to, (long long)x);
}
DEVICE unsigned long long atomicCAS(unsigned long long *to, unsigned long long old,
                                    unsigned long long x)
{
    return (unsigned long long)__nvvm_atom_cas_gen_ll((long long *)to, (long long)old,
                                                      (long long)x);
}
#define __threadfence __nvvm_membar_gl
#define __byte_perm   __nvvm_prmt
#else
#define LAUNCH_BOUNDS __launch_bounds__(GSC_CUDA_THREADS, GSC_CUDA_BLOCKS_PER_PROCESSOR)
#include "launch.h"
#endif
#include "step.h"

/* Reductions without a result, in one address space: faster than generic ones. */
#define RED(space, name, suffix, type, constraint)                                                 \
    DEVICE void space##_##name(type *to, type x)                                                   \
    {                                                                                              \
        asm volatile("red." #space "." #suffix " [%0], %1;" ::"l"(__cvta_generic_to_##space(to)),  \
                     constraint(x)                                                                 \
                     : "memory");                                                                  \
    }
RED(global, add, add.u64, int64_t, "l")
RED(shared, add, add.u32, uint32_t, "r")
RED(shared, min, min.u32, uint32_t, "r")
RED(shared, max, max.u32, uint32_t, "r")
#undef RED

template <class T> DEVICE T least(T a, T b)
{
    return b < a ? b : a;
}

template <class T> DEVICE T most(T a, T b)
{
    return a < b ? b : a;
}

/* ---- conversions of quick and full: the bits of convert.h, except for NaNs ---- */

DEVICE uint32_t bits_of(float x)
{
    return gsc_float_bits(x);
}

DEVICE uint64_t bits_of(double x)
{
    return gsc_double_bits(x);
}

/* IEEE conversions, except for the payload of a NaN. */
DEVICE float f16_quick_load(f16_bits bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

DEVICE f16_bits f16_quick_store(float x)
{
    f16_bits bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

DEVICE float bf16_quick_load(bf16_bits bits)
{
    return gsc_float((uint32_t)bits << 16);
}

DEVICE bf16_bits bf16_quick_store(float x)
{
    const uint32_t bits = gsc_float_bits(x);
    return (bf16_bits)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define f32_quick_load  f32_load
#define f64_quick_load  f64_load
#define f32_quick_store f32_from_float
#define f64_quick_store f64_from_double

/* _OVERFLOW: the |bits| of the least multiplying number that is not finite in the dtype. */
#define f32_OVERFLOW f32_INF
#define f64_OVERFLOW f64_INF
/* The middle of the largest number and infinity; a tie is rounded to even. */
#define OVERFLOW_OF(dtype)                                                                         \
    ((dtype##_INF << (23 - dtype##_MANTISSA)) - (1u << (22 - dtype##_MANTISSA)) +                  \
     ((127u - dtype##_BIAS) << 23) + (dtype##_INF & 1))
#define f16_OVERFLOW       OVERFLOW_OF(f16)
#define bf16_OVERFLOW      OVERFLOW_OF(bf16)
#define f8_e4m3fn_OVERFLOW OVERFLOW_OF(f8_e4m3fn)
#define f8_e5m2_OVERFLOW   OVERFLOW_OF(f8_e5m2)
#define cb16_OVERFLOW      OVERFLOW_OF(cb16)

/*
 * Rounds to a dtype of `size` bytes: adds a power of two that is so large that the sum's last bit
 * is the last bit of the result. |bits| from `overflow` on are infinite.
 */
DEVICE uint32_t quick_round(float x, uint32_t size, uint32_t mantissa, uint32_t bias,
                            uint32_t overflow)
{
    const uint32_t bits = gsc_float_bits(x), shift = 23 - mantissa, normal = (128 - bias) << 23;
    const uint32_t magnitude = least(bits & 0x7fffffffu, overflow);
    const uint32_t exponent = most(magnitude & f32_INF, normal); /* all subnormals have the same */
    const uint32_t power = exponent + (shift << 23);
    const uint32_t sum = gsc_float_bits(gsc_float(magnitude) + gsc_float(power));
    return bits >> 31 << (8 * size - 1) | (sum - power + ((exponent - normal) >> shift));
}

/*
 * Loading multiplies by 2^(127 - bias), which is exact. What is not finite becomes a number, and
 * quad::lost finds it in a word at a time.
 */
#define QUICK_NARROW(dtype)                                                                        \
    QUICK_STORE(dtype)                                                                             \
    DEVICE float dtype##_quick_load(dtype##_bits bits)                                             \
    {                                                                                              \
        const uint32_t magnitude = GSC_MAGNITUDE(dtype, bits);                                     \
        const uint32_t sign = (uint32_t)(bits ^ magnitude) << (32 - 8 * sizeof bits);              \
        const float x = gsc_float(sign | magnitude << (23 - dtype##_MANTISSA));                    \
        return x * gsc_float((254u - dtype##_BIAS) << 23);                                         \
    }
#define QUICK_STORE(dtype)                                                                         \
    DEVICE uint32_t dtype##_quick_store(float x)                                                   \
    {                                                                                              \
        return quick_round(x, sizeof(dtype##_bits), dtype##_MANTISSA, dtype##_BIAS,                \
                           dtype##_OVERFLOW);                                                      \
    }
QUICK_NARROW(f8_e4m3fn)
QUICK_NARROW(cb16)
QUICK_STORE(f8_e5m2)

/* The upper half of an f16. */
DEVICE float f8_e5m2_quick_load(f8_e5m2_bits bits)
{
    return f16_quick_load((f16_bits)(bits << 8));
}

/* ---- dtypes ---- */

typedef struct dtype {
    uint32_t size, mantissa, bias;
    uint64_t infinity, nan, overflow; /* infinity, nan: least |bits| that are not finite, are NaN */
} dtype;

/* The dtypes by number. */
static __constant__ const dtype dtypes[] = {
#define DTYPE(name)                                                                                \
    {sizeof(name##_bits), name##_MANTISSA, name##_BIAS, name##_INF, name##_NAN, name##_OVERFLOW},
    GSC_FOR_DTYPES(DTYPE)
#undef DTYPE
};

/* The dtypes as types. `real` is the multiplying type. */
#define TYPE(name)                                                                                 \
    struct name {                                                                                  \
        typedef name##_bits bits;                                                                  \
        typedef name##_wide real;                                                                  \
        static constexpr uint32_t size = sizeof(bits), mantissa = name##_MANTISSA;                 \
        static constexpr uint32_t number = gsc_##name;                                             \
        static constexpr uint64_t infinity = name##_INF, nan = name##_NAN;                         \
        static constexpr uint64_t overflow = name##_OVERFLOW;                                      \
        static constexpr bool loses_infinity = number == gsc_f8_e4m3fn || number == gsc_cb16;      \
        static constexpr bits sign = (bits)((bits)1 << (8 * sizeof(bits) - 1));                    \
        __inline__ __device__ explicit name(const dtype & = dtypes[number])                        \
        {                                                                                          \
        }                                                                                          \
        static __inline__ __device__ real load(bits x)                                             \
        {                                                                                          \
            return name##_quick_load(x);                                                           \
        }                                                                                          \
        static __inline__ __device__ auto store(real x)                                            \
        {                                                                                          \
            return name##_quick_store(x);                                                          \
        }                                                                                          \
    };
GSC_FOR_DTYPES(TYPE)

/* A dtype of at most 16 bits, known when the code runs. */
struct narrow {
    typedef cb16_bits bits; /* the most bits */
    typedef float real;
    static constexpr uint32_t number = gsc_dtypes;
    uint32_t size, mantissa, bias, infinity;
    float factor; /* that a load multiplies by: 2^(127 - bias), or this times the multiplier */

    __inline__ __device__ explicit narrow(const dtype &type)
        : size(type.size), mantissa(type.mantissa), bias(type.bias),
          infinity((uint32_t)type.infinity), factor(gsc_float((254 - type.bias) << 23))
    {
    }
    __inline__ __device__ uint32_t store(float x) const
    {
        return quick_round(x, size, mantissa, bias, ~0u); /* no number overflows in quick */
    }
};

DEVICE uint64_t magnitude_of(uint32_t type, uint64_t bits)
{
    return bits & ~(uint64_t)0 >> (65 - 8 * dtypes[type].size);
}

DEVICE uint64_t read_bits(uint32_t type, const unsigned char *from)
{
    uint64_t bits = 0;
    const uint32_t size = dtypes[type].size;
    if (((uintptr_t)from & (size - 1)) != 0) {
        ONE_BY_ONE for (uint32_t i = 0; i < size; i++) bits |= (uint64_t)from[i] << 8 * i;
        return bits;
    }
    switch (size) {
    case 1:
        return *from;
    case 2: {
        uint16_t x;
        memcpy(&x, __builtin_assume_aligned(from, 2), 2);
        return x;
    }
    case 4: {
        uint32_t x;
        memcpy(&x, __builtin_assume_aligned(from, 4), 4);
        return x;
    }
    default:
        memcpy(&bits, __builtin_assume_aligned(from, 8), 8);
        return bits;
    }
}

DEVICE void write_bits(uint32_t type, unsigned char *to, uint64_t bits)
{
    const uint32_t size = dtypes[type].size;
    if (((uintptr_t)to & (size - 1)) != 0) {
        ONE_BY_ONE for (uint32_t i = 0; i < size; i++) to[i] = (unsigned char)(bits >> 8 * i);
        return;
    }
    switch (size) {
    case 1:
        *to = (unsigned char)bits;
        return;
    case 2: {
        const uint16_t x = (uint16_t)bits;
        memcpy(__builtin_assume_aligned(to, 2), &x, 2);
        return;
    }
    case 4: {
        const uint32_t x = (uint32_t)bits;
        memcpy(__builtin_assume_aligned(to, 4), &x, 4);
        return;
    }
    default:
        memcpy(__builtin_assume_aligned(to, 8), &bits, 8);
    }
}

/* Widens a number exactly. Not for a NaN. */
SLOW double widen(uint32_t type, uint64_t bits)
{
    const dtype in = dtypes[type];
    const uint64_t magnitude = magnitude_of(type, bits);
    double x = gsc_double((magnitude << (52 - in.mantissa)) + ((uint64_t)(1023 - in.bias) << 52));
    if (magnitude >= in.infinity)
        x = HUGE_VAL;
    else if (magnitude >> in.mantissa == 0 && type != gsc_f64) /* subnormal */
        x = (double)magnitude * gsc_double((uint64_t)(1024 - in.bias - in.mantissa) << 52);
    return bits != magnitude ? -x : x;
}

/* Rounds a number once. Not for a NaN. */
SLOW uint64_t round_to(uint32_t type, double x)
{
    const dtype out = dtypes[type];
    const uint64_t bits = gsc_double_bits(x), magnitude = bits & ~((uint64_t)1 << 63);
    if (type == gsc_f64)
        return bits;
    if (type == gsc_f32)
        return gsc_float_bits((float)x);
    return bits >> 63 << (8 * out.size - 1) |
           gsc_round((int)(magnitude >> 52) - 1023,
                     (magnitude & (GSC_NORMAL(f64) - 1)) | GSC_NORMAL(f64), (int)out.mantissa,
                     (int)out.bias, (uint32_t)out.infinity);
}

/* Converts a NaN with integers: a device's conversion changes the payload. */
template <class word> DEVICE word convert_nan(const dtype in, const dtype out, word bits)
{
    const uint32_t top = sizeof(word) == 8 ? 52 : 23; /* bits of the widest mantissa */
    const word fraction = bits & (((word)1 << in.mantissa) - 1);
    const word payload = fraction << (top - in.mantissa) | (word)1 << (top - 1);
    const word sign = bits >> (8 * in.size - 1);
    return sign << (8 * out.size - 1) | (word)out.infinity | payload >> (top - out.mantissa);
}

/* ---- rows ---- */

/* The results of a thread. */
typedef struct thread_partial {
    alignas(16) double wide[4]; /* aligned: loaded and stored as vectors */
    float narrow[4];
    double amax;
    uint64_t largest; /* the largest |bits| of products, beside amax, of full and quick */
    uint32_t counts[GSC_CUDA_COUNTS];
    uint32_t units; /* further counts, in the units of full */
    uint32_t first; /* position in the chunk of the first that is not finite */
} thread_partial;

/* Flags of the rows of a thread. */
enum {
    ADDS = 1,
    CLAMPS = 2,
    NORM = 4,
    UNDERFLOWS = 8,
    COMPLEX = 16,
    VECTORS = 32, /* aligned for loads and stores of 4 elements */
    WRITES = 64,
    COPIES_NAN = 128,
    SAME = 256 /* the output has the input's dtype */
};

/* Units of the counts of full: of at most 4 elements of 64 rows. */
enum { ZERO = 1, SUBNORMAL = 1 << 10, CLAMPED = 1 << 20 };

/* The work of a thread: its lanes of a block of at most GSC_BLOCK elements; and its results. The
 * functions for rows load it, in this order, as vectors. */
typedef struct thread_tile {
    thread_partial partial;
    uint64_t from, to;        /* global addresses of the thread's lanes */
    double multiplier, limit; /* rounded to the multiplying type; the clamp */
    uint64_t limit_bits;      /* of the clamp in the output's dtype */
    uint64_t overflow;        /* |bits| of the least product that is infinite in the output's dtype,
                               * or, with a clamp, in the multiplying type */
    uint32_t flags, out_dtype;
    uint32_t row, end; /* the rows to run; whoever runs some moves `row` */
    const gsc_cuda_call *call;
    const unsigned char *in;
    unsigned char *out; /* NULL: nothing is written */
    uint32_t in_dtype, complex, n;
    uint32_t lane, start; /* the first of the thread's 4 lanes, and its position in the chunk */
} thread_tile;

/* Returns the multiplier of an input, rounded to the type that multiplies: double or float. */
DEVICE double multiplier_of(const gsc_cuda_call *call, bool in_double)
{
    return in_double ? call->multiplier : (double)call->multiplier_f32;
}

DEVICE bool is_in_double(const gsc_cuda_call *call, uint32_t in_dtype)
{
    return call->in_double || in_dtype == gsc_f64;
}

/* An element: its |bits|, the |bits| of its output before a clamp, |product|, and if clamped. */
typedef struct element_result {
    uint64_t before, after;
    double product;
    uint32_t clamped;
} element_result;

/* Counts the element at `i` of the block. */
DEVICE void count(thread_tile *tile, uint32_t i, const element_result *e)
{
    thread_partial *partial = &tile->partial;
    const dtype *in = &dtypes[tile->in_dtype], *out = &dtypes[tile->out_dtype];
    const uint64_t in_normal = (uint64_t)1 << in->mantissa;
    if (tile->call->operation == GSC_CUDA_CLAMP ? !isfinite(e->product)
                                                : e->after >= out->infinity) {
        partial->counts[e->before >= in->nan ? GSC_CUDA_NAN : GSC_CUDA_INF]++;
        partial->first = least(partial->first, tile->start - tile->lane + i);
    }
    partial->counts[GSC_CUDA_CLAMPED] += e->clamped && e->before < in->nan;
    if (tile->call->want & GSC_WANT_UNDERFLOW) {
        partial->counts[GSC_CUDA_ZEROS] += e->after == 0 && e->before != 0;
        partial->counts[GSC_CUDA_SUBNORMALS] += e->after != 0 &&
                                                e->after < (uint64_t)1 << out->mantissa &&
                                                !(e->before != 0 && e->before < in_normal);
    }
}

/* Converts element, or part, `i` of the block. */
DEVICE void convert_element(thread_tile *tile, uint32_t i, uint32_t k, element_result *e)
{
    thread_partial *partial = &tile->partial;
    const gsc_cuda_call *call = tile->call;
    const uint32_t in = tile->in_dtype, out = tile->out_dtype, operation = call->operation;
    const bool in_double = is_in_double(call, in);
    const double m = tile->multiplier, limit = tile->limit;
    const uint64_t bits = read_bits(in, tile->in + (uint64_t)i * dtypes[in].size);
    uint64_t result;
    double x = HUGE_VAL;
    e->before = magnitude_of(in, bits);
    if (e->before >= dtypes[in].nan) {
        result = operation == GSC_CUDA_STORE && in == out && m == 1
                     ? bits
                     : convert_nan(dtypes[in], dtypes[out], bits);
    } else {
        x = widen(in, bits) * m;
        if (!in_double) /* the product of two floats is exact in double */
            x = (double)(float)x;
        result = round_to(out, x);
    }
    e->after = magnitude_of(out, result);
    e->product = fabs(x);
    if (isfinite(x)) {
        partial->amax = e->product > partial->amax ? e->product : partial->amax;
        partial->narrow[k] = fmaf((float)x, (float)x, partial->narrow[k]);
        partial->wide[k] = fma(x, x, partial->wide[k]);
    }
    e->clamped = operation == GSC_CUDA_CLAMP && e->before < dtypes[in].nan && e->product > limit;
    if (e->clamped)
        result = round_to(out, copysign(limit, x));
    if (!tile->out)
        return;
    unsigned char *to = tile->out + (uint64_t)i * dtypes[out].size;
    if (operation == GSC_CUDA_ADD) {
        const uint64_t old = read_bits(out, to);
        if (magnitude_of(out, old) >= dtypes[out].nan) {
            result = convert_nan(dtypes[out], dtypes[out], old);
        } else {
            const double addend = widen(out, old);
            const bool in_float = !in_double && out != gsc_f64;
            result = round_to(out, in_float ? (double)((float)x + (float)addend) : x + addend);
        }
    }
    write_bits(out, to, result);
}

/* Runs all rows, with any content. */
SLOW void careful(thread_tile *tile)
{
    ONE_BY_ONE for (; tile->row < tile->end; tile->row++)
    {
        ONE_BY_ONE for (uint32_t k = 0; k < 4; k++)
        {
            const uint32_t i = GSC_LANES * tile->row + tile->lane + k;
            if (i >= tile->n)
                continue;
            element_result e = {0, 0, 0, 0}; /* of a complex element the larger part counts */
            ONE_BY_ONE for (uint32_t part = 0; part <= tile->complex; part++)
            {
                element_result other;
                convert_element(tile, i + part, k + part, &other);
                e.before = most(other.before, e.before);
                e.after = most(other.after, e.after);
                e.product = most(other.product, e.product);
                e.clamped |= other.clamped;
            }
            k += tile->complex;
            count(tile, i, &e);
        }
    }
}

/* ---- four neighbours at a time ---- */

/* Four neighbours as words, as in memory. */
template <class T> struct quad {
    static constexpr uint32_t in_word =
        4 / sizeof(typename T::bits); /* 0: an element has 8 bytes */
    uint32_t words[sizeof(typename T::bits)];

    __inline__ __device__ typename T::bits get(uint32_t k) const
    {
        if constexpr (in_word == 0)
            return words[2 * k] | (uint64_t)words[2 * k + 1] << 32;
        else
            return (typename T::bits)(words[k / in_word] >> 32 / in_word * (k % in_word));
    }
    /* Returns bits that are not 0 if an element is not finite, but a load of it is. */
    __inline__ __device__ uint32_t lost() const
    {
        constexpr uint32_t ones = T::size == 1 ? 0x01010101 : 0x00010001,
                           signs = ones * (uint32_t)T::sign;
        uint32_t sums = 0;
        if constexpr (T::loses_infinity)
            UNROLLED for (uint32_t w = 0; w < T::size; w++) sums |=
                (words[w] & ~signs) + ones * (uint32_t)(T::sign - T::infinity);
        return sums & signs;
    }
    /* Sets an element that is zero. The bits above the element's are zero. */
    template <class word> __inline__ __device__ void set(uint32_t k, word bits)
    {
        if constexpr (in_word == 0) {
            words[2 * k] = (uint32_t)bits;
            words[2 * k + 1] = (uint32_t)(bits >> 32);
        } else {
            words[k / in_word] |= (uint32_t)bits << 32 / in_word * (k % in_word);
        }
    }
};

template <uint32_t n> struct constant {
    static constexpr uint32_t value = n;
};

/* Calls `run` with the constants 0 to n - 1. */
template <uint32_t n, class Run> INLINED void for_constants(Run run)
{
    if constexpr (n > 0) {
        for_constants<n - 1>(run);
        run(constant<n - 1>());
    }
}

/* Loads one or two vectors of up to 16 bytes. Global addresses are faster than generic ones. */
template <uint32_t N, uint32_t offset> INLINED void load_words(uint32_t *words, uint64_t from)
{
    if constexpr (N == 1)
        asm volatile("ld.global.u32 %0, [%1+%2];" : "=r"(words[0]) : "l"(from), "n"(offset));
    else if constexpr (N == 2)
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2+%3];"
                     : "=r"(words[0]), "=r"(words[1])
                     : "l"(from), "n"(offset));
    else
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4+%5];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "l"(from), "n"(offset));
    if constexpr (N == 8)
        load_words<4, offset + 16>(words + 4, from);
}

template <uint32_t N, uint32_t offset> INLINED void store_words(const uint32_t *words, uint64_t to)
{
    if constexpr (N == 1)
        asm volatile("st.global.u32 [%0+%2], %1;" ::"l"(to), "r"(words[0]), "n"(offset) : "memory");
    else if constexpr (N == 2)
        asm volatile("st.global.v2.u32 [%0+%3], {%1, %2};" ::"l"(to), "r"(words[0]), "r"(words[1]),
                     "n"(offset)
                     : "memory");
    else
        asm volatile("st.global.v4.u32 [%0+%5], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]),
                     "r"(words[1]), "r"(words[2]), "r"(words[3]), "n"(offset)
                     : "memory");
    if constexpr (N == 8)
        store_words<4, offset + 16>(words + 4, to);
}

/* Loads N rows of a thread as vectors. */
template <class T, uint32_t N>
INLINED void load_vectors(const T &type, quad<T> (&quads)[N], uint64_t from)
{
    constexpr uint32_t size = sizeof(typename T::bits), row = GSC_LANES * size;
    if (type.size == size)
        for_constants<N>(
            [&](auto u) { load_words<size, row * u.value>(quads[u.value].words, from); });
    else /* narrow, of a byte */
        for_constants<N>([&](auto u) {
            load_words<1, GSC_LANES * u.value>(quads[u.value].words, from);
            quads[u.value].words[size - 1] = 0;
        });
}

/* Makes the compiler issue all loads before it uses one of them. */
template <class T, uint32_t N> INLINED void issue_all(quad<T> (&quads)[N])
{
    UNROLLED for (quad<T> &q : quads)
        UNROLLED for (uint32_t &word : q.words) asm volatile("" : "+r"(word));
}

/* Loads an element. */
template <uint32_t size, uint32_t offset> INLINED auto load_element(uint64_t from)
{
    if constexpr (size == 8) {
        uint64_t bits;
        asm volatile("ld.global.u64 %0, [%1+%2];" : "=l"(bits) : "l"(from), "n"(offset));
        return bits;
    } else {
        uint32_t bits;
        if constexpr (size == 1)
            asm volatile("ld.global.u8 %0, [%1+%2];" : "=r"(bits) : "l"(from), "n"(offset));
        else if constexpr (size == 2)
            asm volatile("ld.global.u16 %0, [%1+%2];" : "=r"(bits) : "l"(from), "n"(offset));
        else
            asm volatile("ld.global.u32 %0, [%1+%2];" : "=r"(bits) : "l"(from), "n"(offset));
        return bits;
    }
}

template <uint32_t size, uint32_t offset, class word>
INLINED void store_element(word bits, uint64_t to)
{
    if constexpr (size == 1)
        asm volatile("st.global.u8 [%0+%2], %1;" ::"l"(to), "r"((uint32_t)bits), "n"(offset)
                     : "memory");
    else if constexpr (size == 2)
        asm volatile("st.global.u16 [%0+%2], %1;" ::"l"(to), "r"((uint32_t)bits), "n"(offset)
                     : "memory");
    else if constexpr (size == 4)
        asm volatile("st.global.u32 [%0+%2], %1;" ::"l"(to), "r"(bits), "n"(offset) : "memory");
    else
        asm volatile("st.global.u64 [%0+%2], %1;" ::"l"(to), "l"(bits), "n"(offset) : "memory");
}

/* Loads a row of a thread if only single elements are aligned. */
template <class T> INLINED quad<T> load_elements(uint64_t from)
{
    quad<T> q = {};
    for_constants<4>(
        [&](auto k) { q.set(k.value, load_element<T::size, T::size * k.value>(from)); });
    return q;
}

template <class T> INLINED void store_row(const quad<T> &q, uint64_t to, bool vectors)
{
    if (vectors)
        store_words<T::size, 0>(q.words, to);
    else
        for_constants<4>(
            [&](auto k) { store_element<T::size, T::size * k.value>(q.get(k.value), to); });
}

/* Returns the address of a row. By assembly: a compiler would keep the addresses of many rows. */
INLINED uint64_t row_at(uint64_t first, uint32_t row, uint32_t size)
{
    uint64_t at;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(at) : "r"(row), "r"(size), "l"(first));
    return at;
}

/* The sums of a thread, in registers while it runs rows. */
template <class real> struct sums {
    typedef decltype(bits_of(real())) bits;
    float narrow[4];
    double wide[4];
    bits largest; /* |x| */

    __inline__ __device__ explicit sums(const thread_partial *partial)
        : largest((bits)partial->largest)
    {
        memcpy(narrow, partial->narrow, sizeof narrow);
        memcpy(wide, partial->wide, sizeof wide);
    }
    __inline__ __device__ void add(uint32_t k, real x)
    {
        if constexpr (sizeof x == sizeof(float)) /* doubles have no narrow sum */
            narrow[k] = fmaf(x, x, narrow[k]);
        wide[k] = fma((double)x, (double)x, wide[k]);
    }
    __inline__ __device__ void put(thread_partial *partial) const
    {
        memcpy(&partial->largest, &largest, sizeof largest); /* the other bits are zero */
        memcpy(partial->narrow, narrow, sizeof narrow);
        memcpy(partial->wide, wide, sizeof wide);
    }
};

template <class real> INLINED decltype(bits_of(real())) magnitude(real x)
{
    return bits_of(x) & (decltype(bits_of(x)))-1 >> 1;
}

/* Returns the largest |bits| of N rows; a NaN is above every finite number. */
template <class real, uint32_t N> INLINED auto largest_of(const real (&x)[N][4])
{
    decltype(bits_of(real())) largest = 0;
    UNROLLED for (uint32_t u = 0; u < N; u++) UNROLLED for (uint32_t k = 0; k < 4; k++) largest =
        most(largest, magnitude(x[u][k]));
    return largest;
}

/* ---- quick ---- */

/* Widens a row. Returns bits that are not 0 if an element is not finite but its float is. */
template <class T, class real>
INLINED uint32_t quick_load(const T &, const quad<T> &q, real (&x)[4])
{
    static_assert(!T::loses_infinity);
    UNROLLED for (uint32_t k = 0; k < 4; k++) x[k] = T::load(q.get(k));
    return 0;
}

/* Moves the sign, the exponent and the mantissa of each element to where a float has them. */
INLINED uint32_t quick_load(const narrow &in, const quad<narrow> &q, float (&x)[4])
{
    const uint32_t *words = q.words, bytes = in.size == 1;
    const uint32_t pairs[] = {__byte_perm(words[0], words[1], bytes ? 0x1404 : 0x3210),
                              __byte_perm(words[0], words[1], bytes ? 0x3424 : 0x7654)};
    const uint32_t by = 9 + in.mantissa - 8 * in.size, moved = 1u << 31 | 0x7fff0000u >> by;
    UNROLLED for (uint32_t k = 0; k < 4; k++)
    {
        const int32_t upper = (int32_t)(k % 2 == 0 ? pairs[k / 2] << 16 : pairs[k / 2]);
        x[k] = gsc_float((uint32_t)(upper >> by) & moved) * in.factor;
    }
    /* As quad::lost: from infinity on, a sum reaches the sign. */
    const uint32_t to_sign = 0x00010001 * (0x8000 - (in.infinity << (16 - 8 * in.size)));
    return (((pairs[0] & 0x7fff7fff) + to_sign) | ((pairs[1] & 0x7fff7fff) + to_sign)) & 0x80008000;
}

/* Stores the row of number `u` of those at `to`. */
template <uint32_t u, class Out, class real>
INLINED void quick_store(const Out &out, const real (&x)[4], uint64_t to)
{
    quad<Out> result = {};
    UNROLLED for (uint32_t k = 0; k < 4; k++) result.set(k, out.store(x[k]));
    store_words<Out::size, GSC_LANES * Out::size * u>(result.words, to);
}

template <uint32_t u> INLINED void quick_store(const narrow &out, const float (&x)[4], uint64_t to)
{
    uint32_t pairs[2];
    UNROLLED for (uint32_t k = 0; k < 2; k++) pairs[k] =
        out.store(x[2 * k]) | out.store(x[2 * k + 1]) << 8 * out.size;
    if (out.size == 1) {
        pairs[0] |= pairs[1] << 16;
        store_words<1, 0>(pairs, to + GSC_LANES * u);
    } else {
        store_words<2, 0>(pairs, to + 2 * GSC_LANES * u);
    }
}

/* Runs N rows. If a product has |bits| from `overflow` on, does nothing and returns false. */
template <class In, class Out, bool adds, uint32_t N, class real, class word>
INLINED bool quick_rows(const In &in_type, const quad<In> *in, const quad<Out> *old, const Out &out,
                        uint64_t to, bool writes, sums<real> &sum, real m, word overflow, bool norm)
{
    real x[N][4];
    uint32_t lost = 0;
    UNROLLED for (uint32_t u = 0; u < N; u++)
    {
        quick_load(in_type, in[u], x[u]); /* `overflow`, or the pass before, finds what is lost */
        if constexpr (In::number != narrow::number)
            UNROLLED for (uint32_t k = 0; k < 4; k++) x[u][k] *= m;
        if constexpr (adds) {
            real y[4];
            lost |= quick_load(out, old[u], y);
            UNROLLED for (uint32_t k = 0; k < 4; k++) x[u][k] += y[k];
        }
    }
    const auto largest = largest_of(x);
    if (largest >= overflow || lost != 0)
        return false;
    sum.largest = most(sum.largest, largest);
    if (!adds && norm)
        UNROLLED for (uint32_t u = 0; u < N; u++) UNROLLED for (uint32_t k = 0; k < 4; k++)
            sum.add(k, x[u][k]);
    if (writes)
        for_constants<N>([&](auto u) { quick_store<u.value>(out, x[u.value], to); });
    return true;
}

/*
 * Runs steps of several rows, until a row is not finite or a step would pass the end. All loads of
 * a step are issued before the first wait: the number of threads alone does not hide the memory's
 * latency. Registers limit the rows of a step. One copy of the code runs one part of the step after
 * the other.
 */
template <class In, class Out, bool adds> INLINED void quick_steps(thread_tile *tile)
{
    typedef typename In::real real;
    constexpr uint32_t size = sizeof(typename In::bits);
    constexpr uint32_t step = size == 8 ? 2 : size <= 2 && !adds ? 8 : 4;
    constexpr uint32_t part = !adds && (size == 2 || Out::number == gsc_f16) ? 2 : 1;
    const uint64_t from = tile->from, to = tile->to;
    const bool writes = (tile->flags & WRITES) != 0, norm = (tile->flags & NORM) != 0;
    const real m = (real)tile->multiplier;
    In in_type(dtypes[tile->in_dtype]);
    /* Two of a type are the same dtype: with one index, its constants are loaded once. */
    const Out out(dtypes[In::number == Out::number ? tile->in_dtype : tile->out_dtype]);
    decltype(bits_of(real())) overflow;
    if constexpr (In::number == narrow::number || Out::number == narrow::number)
        overflow = (uint32_t)tile->overflow; /* of any dtype, if the output is not written */
    else
        overflow = Out::overflow;
    if constexpr (In::number == narrow::number) {
        in_type.factor *= m;
        if (!isfinite(in_type.factor)) /* full runs the rows */
            return;
        /* An element that is not finite has at least the product of infinity. */
        const float infinity = gsc_float(in_type.infinity << (23 - in_type.mantissa));
        if constexpr (!adds)
            overflow = least(overflow, bits_of(infinity * in_type.factor));
    }
    const uint32_t end = tile->end;
    uint32_t row = tile->row;
    const thread_partial none = {};
    sums<real> sum(adds ? &none : &tile->partial); /* the pass before measured what is added */
    bool finite = true;
    ONE_BY_ONE while (finite && row + step <= end)
    {
        quad<In> in[step];
        quad<Out> old[step];
        load_vectors(in_type, in, from + (uint64_t)row * (GSC_LANES * in_type.size));
        if constexpr (adds) {
            load_vectors(out, old, to + (uint64_t)row * (GSC_LANES * out.size));
            issue_all(old);
        }
        issue_all(in);
        uint32_t loaded = row + step;
        asm("" : "+r"(loaded)); /* unknown, so that the loop is not unrolled */
        do {
            finite = quick_rows<In, Out, adds, part>(in_type, in, old, out,
                                                     to + (uint64_t)row * (GSC_LANES * out.size),
                                                     writes, sum, m, overflow, norm);
            if (!finite)
                break;
            UNROLLED for (uint32_t u = part; u < step; u++)
            {
                in[u - part] = in[u];
                if (adds)
                    old[u - part] = old[u];
            }
            row += part;
        } while (row < loaded);
    }
    if constexpr (!adds)
        sum.put(&tile->partial);
    tile->row = row;
}

template <class In, class Out> SLOW void quick(thread_tile *tile)
{
    quick_steps<In, Out, false>(tile);
}

template <class In, class Out> SLOW void quick_add(thread_tile *tile)
{
    quick_steps<In, Out, true>(tile);
}

/* ---- full ---- */

/* The options of the tile, in registers: the compiler must assume that a store changes memory. */
template <class In> struct row_options {
    typedef typename In::real real;
    typedef decltype(bits_of(real())) word;
    uint32_t flags, out;
    real m, limit;
    word overflow, limit_bits;
    uint32_t start;  /* position of the thread's lanes in the chunk */
    uint32_t counts; /* in units */

    __inline__ __device__ explicit row_options(const thread_tile *tile)
        : flags(tile->flags), out(tile->out_dtype), m((real)tile->multiplier),
          limit((real)tile->limit), overflow((word)tile->overflow),
          limit_bits((word)tile->limit_bits), start(tile->start), counts(tile->partial.units)
    {
    }
    __inline__ __device__ bool is(uint32_t flag) const
    {
        return (flags & flag) != 0;
    }
    __inline__ __device__ word sign() const
    {
        return (word)1 << (8 * dtypes[out].size - 1);
    }
};

/* Calls `run` with the type of the output: the dtypes to and from float, and to themselves. */
template <class In, class Run> INLINED void for_output(const row_options<In> &options, Run run)
{
    if (options.is(SAME)) {
        run(In());
    } else if constexpr (In::number != gsc_f32) {
        run(f32());
    } else {
        switch (options.out) {
        case gsc_f16:
            return run(f16());
        case gsc_bf16:
            return run(bf16());
        case gsc_cb16:
            return run(cb16());
        case gsc_f8_e4m3fn:
            return run(f8_e4m3fn());
        default:
            return run(f8_e5m2());
        }
    }
}

/* Writes a row, as elements of the size of T. */
template <class T, class word>
INLINED void write_row(const word (&result)[4], uint64_t to, bool vectors)
{
    quad<T> written = {};
    UNROLLED for (uint32_t k = 0; k < 4; k++) written.set(k, result[k]);
    store_row(written, to, vectors);
}

/* Counts the elements of a row that are not finite, converts NaNs, and sets numbers that are not
 * finite to 0 for the sums. */
template <class In, class word, class real>
INLINED void count_not_finite(const row_options<In> &options, thread_partial *partial, uint32_t row,
                              const quad<In> &in, word (&result)[4], real (&x)[4])
{
    uint32_t bads = 0, nans = 0, first = ~(uint32_t)0;
    const dtype out = dtypes[options.out];
    UNROLLED for (uint32_t k = 4; k-- > 0;)
    {
        const typename In::bits bits = in.get(k);
        const bool nan = (typename In::bits)(bits & ~In::sign) >= In::nan;
        if ((typename In::bits)(bits & ~In::sign) == In::infinity) /* a load can lose its sign */
            result[k] =
                (word)(bits >> (8 * In::size - 1)) << (8 * out.size - 1) | (word)out.infinity;
        if (nan)
            result[k] = options.is(COPIES_NAN)
                            ? bits
                            : convert_nan<word>({In::size, In::mantissa}, out, bits);
        const bool bad = (result[k] & ~options.sign()) >= out.infinity;
        bads += bad;
        nans += bad && nan;
        first = bad ? k : first;
        const bool finite =
            !In::loses_infinity || (typename In::bits)(bits & ~In::sign) < In::infinity;
        x[k] = finite && magnitude(x[k]) < bits_of((real)INFINITY) ? x[k] : 0;
    }
    partial->counts[GSC_CUDA_NAN] += nans;
    partial->counts[GSC_CUDA_INF] += bads - nans;
    if (bads > 0)
        partial->first =
            least(partial->first, (uint32_t)row_at(options.start + first, row, GSC_LANES));
}

/* Counts the elements of a row that became zero or subnormal. */
template <class In, class word>
INLINED void count_underflows(row_options<In> &options, const quad<In> &in, const word (&result)[4])
{
    const word sign = options.sign(), normal = (word)1 << dtypes[options.out].mantissa;
    UNROLLED for (uint32_t k = 0; k < 4; k++)
    {
        const typename In::bits before = (typename In::bits)(in.get(k) & ~In::sign);
        const word after = result[k] & ~sign;
        /* x - 1: zero wraps around to the largest. */
        const bool was =
            (typename In::bits)(before - 1) < ((typename In::bits)1 << In::mantissa) - 1;
        options.counts += after == 0 && before != 0 ? ZERO : 0;
        options.counts += after - 1 < normal - 1 && !was ? SUBNORMAL : 0;
    }
}

/* Clamps a row. A complex element counts once if one or both of its parts were clamped. */
template <class In, class word, class real>
INLINED void clamp_row(row_options<In> &options, const real (&x)[4], word (&result)[4])
{
    const word sign = options.sign();
    bool before = false;
    UNROLLED for (uint32_t k = 0; k < 4; k++)
    {
        const bool clamped = fabs(x[k]) > options.limit;
        if (clamped)
            result[k] = (x[k] < 0 ? sign : 0) | options.limit_bits;
        options.counts += clamped && !(k % 2 != 0 && options.is(COMPLEX) && before) ? CLAMPED : 0;
        before = clamped;
    }
}

/* Runs a row with any options. Returns false if it needs careful. */
template <class In, class real>
INLINED bool full_row(row_options<In> &options, thread_partial *partial, uint64_t to,
                      sums<real> &sum, uint32_t row, const quad<In> &in)
{
    typename row_options<In>::word result[4];
    real x[1][4];
    uint32_t lost = in.lost();
    UNROLLED for (uint32_t k = 0; k < 4; k++) x[0][k] = In::load(in.get(k)) * options.m;
    if (options.is(ADDS))
        for_output(options, [&](auto out) {
            const auto old = load_elements<decltype(out)>(to);
            lost |= old.lost();
            UNROLLED for (uint32_t k = 0; k < 4; k++) x[0][k] += out.load(old.get(k));
        });
    for_output(options, [&](auto out) {
        UNROLLED for (uint32_t k = 0; k < 4; k++) result[k] = out.store(x[0][k]);
    });
    auto largest = largest_of(x);
    if (largest >= options.overflow || lost != 0) {
        if (options.is(ADDS | CLAMPS | COMPLEX))
            return false;
        count_not_finite(options, partial, row, in, result, x[0]);
        largest = largest_of(x);
    }
    if (options.is(UNDERFLOWS))
        count_underflows(options, in, result);
    if (options.is(CLAMPS))
        clamp_row(options, x[0], result);
    sum.largest = most(sum.largest, largest);
    if (options.is(NORM))
        UNROLLED for (uint32_t k = 0; k < 4; k++) sum.add(k, x[0][k]);
    if (options.is(WRITES)) {
        const bool vectors = options.is(VECTORS);
        if (options.is(SAME))
            write_row<In>(result, to, vectors);
        else if constexpr (In::number != gsc_f32)
            write_row<f32>(result, to, vectors);
        else if (dtypes[options.out].size == 2)
            write_row<f16>(result, to, vectors);
        else
            write_row<f8_e5m2>(result, to, vectors);
    }
    return true;
}

/*
 * Runs rows up to the first that needs careful. Loads are issued for several rows, as in quick, but
 * one copy of the code runs one row after the other.
 */
template <class In> SLOW void full(thread_tile *tile)
{
    constexpr uint32_t step = In::size == 1 ? 8 : In::size == 8 ? 2 : 4;
    row_options<In> options(tile);
    const uint32_t in_row = GSC_LANES * In::size, out_row = GSC_LANES * dtypes[options.out].size;
    const uint32_t end = tile->end;
    uint32_t row = tile->row;
    const uint64_t from = tile->from, to = tile->to;
    sums<typename In::real> sum(&tile->partial);
    bool handled = true;
    ONE_BY_ONE while (handled && row < end)
    {
        quad<In> in[step];
        if (options.is(VECTORS) && row + step <= end) {
            load_vectors(In(), in, row_at(from, row, in_row));
        } else {
            UNROLLED for (uint32_t u = 0; u < step; u++) /* can load the last row again */
                in[u] = load_elements<In>(row_at(from, least(row + u, end - 1), in_row));
        }
        uint32_t loaded = least(row + step, end);
        asm("" : "+r"(loaded)); /* unknown, so that the loop is not unrolled */
        do {
            handled = full_row(options, &tile->partial, row_at(to, row, out_row), sum, row, in[0]);
            if (!handled)
                break;
            UNROLLED for (uint32_t u = 1; u < step; u++) in[u - 1] = in[u];
            row++;
        } while (row < loaded);
    }
    sum.put(&tile->partial);
    tile->partial.units = options.counts;
    tile->row = row;
}

/* ---- a thread's part of a chunk ---- */

/* The pairs that quick runs faster than full. */
#define FOR_QUICK(X)                                                                               \
    FOR_SAME(X)                                                                                    \
    X(f32, f16)                                                                                    \
    X(f32, bf16)                                                                                   \
    X(f16, f32)                                                                                    \
    X(bf16, f32)
#define FOR_SAME(X)                                                                                \
    X(f32, f32)                                                                                    \
    X(f16, f16)                                                                                    \
    X(bf16, bf16)

/* Returns true if `data` is aligned to load or store `n` elements at a time. */
DEVICE bool is_aligned(uint32_t type, const unsigned char *data, uint32_t n)
{
    return ((uintptr_t)data & (least(n * dtypes[type].size, (uint32_t)16) - 1)) == 0;
}

/* Runs rows with the function for the pair of dtypes, up to the first that needs another one. */
DEVICE void rows_of_pair(thread_tile *tile, bool uses_quick)
{
#define PAIR(in, out, rows)                                                                        \
    case gsc_##in *gsc_dtypes + gsc_##out:                                                         \
        return rows(tile);
#define STORE(in, out) PAIR(in, out, (quick<in, out>))
#define ADD(in, out)   PAIR(in, out, (quick_add<in, out>))
#define FULL(in)                                                                                   \
    case gsc_##in:                                                                                 \
        return full<in>(tile);
    const uint32_t pair = tile->in_dtype * gsc_dtypes + tile->out_dtype;
    if (!uses_quick) {
        switch (tile->in_dtype) {
            GSC_FOR_DTYPES(FULL)
        }
    } else if (tile->flags & ADDS) {
        switch (pair) {
            FOR_SAME(ADD)
            ADD(f64, f64)
        default:
            if (tile->flags & SAME)
                return quick_add<narrow, narrow>(tile);
            if (tile->out_dtype == gsc_f32)
                return quick_add<narrow, f32>(tile);
        }
    } else {
        switch (pair) {
            FOR_QUICK(STORE)
        case gsc_f32 *gsc_dtypes + gsc_f8_e4m3fn:
        case gsc_f32 *gsc_dtypes + gsc_f8_e5m2:
        case gsc_f32 *gsc_dtypes + gsc_cb16:
            return quick<f32, narrow>(tile);
        }
        const bool is_narrow = dtypes[tile->in_dtype].size == 1 || tile->in_dtype == gsc_cb16;
        if (is_narrow && (tile->out_dtype == gsc_f32 || !(tile->flags & WRITES)))
            quick<narrow, f32>(tile);
    }
#undef PAIR
#undef STORE
#undef ADD
#undef FULL
}

/* Returns true if there is a full for the tile. It needs aligned elements. */
DEVICE bool has_full(const thread_tile *tile)
{
    const uint32_t in = tile->in_dtype, out = tile->out_dtype;
    if (tile->complex && tile->flags & UNDERFLOWS) /* the larger part counts */
        return false;
    if (in != out && (in == gsc_f64 || out == gsc_f64 || (in != gsc_f32 && out != gsc_f32)))
        return false;
    return is_aligned(in, tile->in, 1) && is_aligned(out, tile->out, 1) &&
           (!tile->call->in_double || in == gsc_f64);
}

/* Sets the options of a tile, and clears its results. */
DEVICE void set_options(thread_tile *tile)
{
    const gsc_cuda_call *call = tile->call;
    const uint32_t in = tile->in_dtype, out = tile->out_dtype;
    memset(&tile->partial, 0, sizeof tile->partial);
    tile->partial.first = ~(uint32_t)0;
    tile->from = __cvta_generic_to_global(tile->in) + tile->lane * dtypes[in].size;
    tile->to = __cvta_generic_to_global(tile->out) + tile->lane * dtypes[out].size;
    tile->multiplier = multiplier_of(call, is_in_double(call, in));
    tile->limit = 0;
    tile->limit_bits = 0;
    tile->overflow = dtypes[out].overflow;
    uint32_t flags = 0;
    flags |= call->operation == GSC_CUDA_ADD ? ADDS : 0;
    flags |= call->want & GSC_WANT_NORM ? NORM : 0;
    flags |= call->want & GSC_WANT_UNDERFLOW ? UNDERFLOWS : 0;
    flags |= tile->complex ? COMPLEX : 0;
    flags |= is_aligned(in, tile->in, 4) && is_aligned(out, tile->out, 4) ? VECTORS : 0;
    flags |= tile->out ? WRITES : 0;
    flags |= in == out ? SAME : 0;
    flags |= in == out && tile->multiplier == 1 ? COPIES_NAN : 0;
    if (call->operation == GSC_CUDA_CLAMP) {
        flags |= CLAMPS;
        tile->limit = call->limits[out];
        tile->overflow = in == gsc_f64 ? f64_INF : f32_INF;
        tile->limit_bits = round_to(out, in == gsc_f64 ? tile->limit : (double)(float)tile->limit);
    }
    tile->flags = flags;
}

/* Runs all rows of a thread. */
DEVICE void run_tile(thread_tile *tile)
{
    const uint32_t lanes_end = tile->lane + 4;
    uint32_t whole = tile->n < lanes_end ? 0 : (tile->n - lanes_end) / GSC_LANES + 1;
    if (!has_full(tile))
        whole = 0;
    const bool allows_quick = (tile->flags & (CLAMPS | UNDERFLOWS | VECTORS)) == VECTORS;
    bool uses_quick = allows_quick;
    while (tile->row < whole) {
        tile->end = allows_quick && !uses_quick ? least(tile->row + 8, whole) : whole;
        rows_of_pair(tile, uses_quick);
        if (!uses_quick && tile->row < tile->end) {
            tile->end = tile->row + 1;
            careful(tile);
        }
        uses_quick = allows_quick && !uses_quick;
    }
    tile->end = (tile->n + GSC_LANES - 1) / GSC_LANES;
    careful(tile);
}

/* ---- reductions ---- */

enum { WARP = 32, WARPS = GSC_CUDA_THREADS / WARP, ALL_LANES = -1 };

/* Returns the x of the lane `by` above this one in its warp. */
template <class T> INLINED T shuffle_down(T x, uint32_t by)
{
    uint32_t words[sizeof x / 4];
    memcpy(words, &x, sizeof x);
    UNROLLED for (uint32_t i = 0; i < sizeof x / 4; i++) words[i] =
        __shfl_down_sync((uint32_t)ALL_LANES, words[i], by);
    memcpy(&x, words, sizeof x);
    return x;
}

/* Adds the x of n neighbouring lanes as a tree: the first of them returns the sum. */
template <class T> INLINED T warp_sum(T x, uint32_t n)
{
    ONE_BY_ONE for (uint32_t half = n / 2; half > 0; half /= 2) x += shuffle_down(x, half);
    return x;
}

/* Adds the x of all threads of a block: thread 0 returns the sum. */
template <class T> INLINED T block_sum(T x, T (&warps)[WARPS])
{
    ONE_BY_ONE for (uint32_t n = WARP;; n = WARPS)
    {
        x = warp_sum(x, n);
        if (n == WARPS)
            return x;
        if (threadIdx.x % WARP == 0)
            warps[threadIdx.x / WARP] = x;
        __syncthreads();
        x = warps[threadIdx.x % WARPS];
    }
}

/* ---- lists ---- */

/* Writes tensor i of the launch with thread i. P: a parameter of either kernel. */
template <class P> INLINED void write_list(const P &p)
{
    const uint32_t i = blockIdx.x * GSC_CUDA_THREADS + threadIdx.x;
    if (i < GSC_BINS && p.header.bins)
        p.header.bins[i] = 0;
    if (i >= p.header.tensors)
        return;
    /* By words: for a copy of a struct, every thread would copy all of the parameter. */
    const gsc_word *from = (const gsc_word *)&p.tensors[i];
    gsc_word *to = (gsc_word *)&p.header.to[i];
    UNROLLED for (uint32_t k = 0; k < sizeof *p.tensors / 8; k++) to[k] = from[k];
}

KERNEL(list)
{
    write_list(p);
}

KERNEL(many)
{
    write_list(p);
}

/* The tensor of a chunk, its number in the list, and its first chunk. */
typedef struct chunk_tensor {
    gsc_cuda_tensor tensor;
    uint32_t index, first_chunk;
} chunk_tensor;

/*
 * Returns tensor i of a parameter. The empty assembly hides from the compiler where the numbers
 * come from: by one pointer it would load them or a list in the workspace, and for that copy the
 * whole parameter to local memory.
 */
INLINED gsc_cuda_tensor tensor_at(const gsc_cuda_chunks_parameter &p, uint32_t i)
{
    uint64_t in = (uint64_t)p.tensors[i].in, out = (uint64_t)p.tensors[i].out;
    uint32_t end = p.tensors[i].end, last = p.tensors[i].last;
    uint32_t in_dtype = p.tensors[i].in_dtype, out_dtype = p.tensors[i].out_dtype;
    asm("" : "+l"(in), "+l"(out), "+r"(end), "+r"(last), "+r"(in_dtype), "+r"(out_dtype));
    return {(const unsigned char *)in, (unsigned char *)out, end, (uint16_t)last,
            (uint8_t)in_dtype,         (uint8_t)out_dtype};
}

/* Returns tensor i of a call. */
INLINED gsc_cuda_tensor tensor_of(const gsc_cuda_chunks_parameter &p, uint32_t i)
{
    return p.list ? p.list[i] : tensor_at(p, i);
}

/*
 * Finds the tensor of a chunk, the first that ends after it, in the parameter. All threads take the
 * same way, so that each of its loads serves a warp.
 */
INLINED chunk_tensor find_in_parameter(const gsc_cuda_chunks_parameter &p, uint32_t chunk)
{
    uint32_t begin = 0;
    ONE_BY_ONE for (uint32_t n = p.call.tensors; n > 1;)
    {
        const uint32_t half = n / 2;
        const bool after = p.tensors[begin + half - 1].end <= chunk;
        begin += after ? half : 0;
        n = after ? n - half : half;
    }
    const uint32_t first = begin == 0 ? 0 : p.tensors[begin - 1].end;
    return {tensor_at(p, begin), begin, first};
}

/*
 * Finds it in the workspace. All threads search, and the thread that finds the tensor has loaded it
 * then, so a block waits for memory once.
 */
INLINED void find_in_list(chunk_tensor *found, const gsc_cuda_tensor *list, uint32_t n,
                          uint32_t chunk)
{
    uint32_t begin = 0;
    ONE_BY_ONE for (;;)
    {
        const uint32_t step = (n + GSC_CUDA_THREADS - 1) / GSC_CUDA_THREADS;
        const uint32_t mine = begin + threadIdx.x * step, end = least(mine + step, begin + n);
        if (mine < end) {
            const gsc_cuda_tensor tensor = list[end - 1];
            const uint32_t first = mine == 0 ? 0 : list[mine - 1].end;
            if (first <= chunk && chunk < tensor.end)
                *found = {tensor, mine, first};
        }
        __syncthreads();
        if (step == 1)
            return;
        n = least(step, begin + n - found->index);
        begin = found->index;
        __syncthreads();
    }
}

/* ---- chunks ---- */

/* The results of a chunk. */
typedef struct chunk_shared {
    double sums[GSC_CHUNK / GSC_BLOCK], amax[GSC_CHUNK / GSC_BLOCK]; /* of its blocks */
    uint32_t counts[GSC_CUDA_COUNTS], first, bins[GSC_BINS];
    uint32_t untrusted; /* all_chunks, less the last chunk with a sum that is not trusted */
    uint32_t run;       /* as in gsc_cuda_chunk */
} chunk_shared;

/* The lanes of a thread: its sums of squares, and their largest magnitude. */
struct lane_sums {
    double sums[4], amax;

    __inline__ __device__ void operator+=(const lane_sums &other)
    {
        UNROLLED for (uint32_t k = 0; k < 4; k++) sums[k] += other.sums[k];
        amax = most(amax, other.amax);
    }
};

DEVICE bool is_trusted(double narrow)
{
    return narrow >= GSC_TRUSTED_SUM && isfinite(narrow);
}

/* Loads `bytes` into the second-level cache ahead of their use, with all threads of a block. */
INLINED void prefetch(uint32_t t, const unsigned char *from, uint32_t bytes)
{
    const uint64_t at = __cvta_generic_to_global(from);
    ONE_BY_ONE for (uint32_t i = 32 * t; i < bytes; i += 32 * GSC_CUDA_THREADS) asm volatile(
        "prefetch.global.L2 [%0];" ::"l"(at + i));
}

/* Counts the first block of a chunk of `n` elements or parts in a histogram, with all threads. */
INLINED void count_bins(uint32_t t, const gsc_cuda_call *call, uint32_t *bins,
                        const unsigned char *in, uint32_t dtype, uint32_t complex, uint32_t n)
{
    const bool in_double = is_in_double(call, dtype);
    const double m = multiplier_of(call, in_double);
    const uint32_t end = least(n, (uint32_t)GSC_BLOCK), size = dtypes[dtype].size;
    ONE_BY_ONE for (uint32_t i = t << complex; i < end; i += GSC_CUDA_THREADS << complex)
    {
        double product = 0; /* the larger part's of a complex element */
        ONE_BY_ONE for (uint32_t k = i; k <= i + complex; k++)
        {
            const uint64_t bits = read_bits(dtype, in + (uint64_t)k * size);
            double x = HUGE_VAL; /* a NaN is in no bin */
            if (magnitude_of(dtype, bits) < dtypes[dtype].nan)
                x = fabs(widen(dtype, bits) * m);
            product = most(product, in_double ? x : (double)(float)x);
        }
        if (product > 0 && isfinite(product)) {
            const int exponent = (int)(gsc_double_bits(product) >> 52) - 1023 - GSC_BIN_FIRST;
            const int bin = exponent < 0 ? 0 : exponent / GSC_BIN_POWERS;
            shared_add(&bins[least(bin, (int)GSC_BINS - 1)], 1);
        }
    }
}

/* Returns true if a state skips its step, or is refused. */
SLOW bool skips(const gsc_state *state)
{
    return gsc_state_status(state) != GSC_OK || state->skip != 0;
}

/* Sets the fields of a call that depend on memory. Nothing runs for a bad factor or a skipped step,
 * and nothing is added if a product or the loss is not finite. One thread. */
DEVICE void set_call(gsc_cuda_call *call, const gsc_cuda_call &from)
{
    const gsc_factor factor = from.factor ? *from.factor : gsc_factor_of(1, 0);
    const double multiplier = from.by_scale ? factor.scale : factor.inverse;
    /* Not a normal float: numerics.md says why. */
    const uint32_t exponent = gsc_float_bits((float)multiplier) >> 23;
    call->multiplier = multiplier;
    call->multiplier_f32 = (float)multiplier;
    call->in_double = exponent == 0 || exponent == 255;
    call->generation = factor.generation;
    call->status = gsc_factor_status(&factor);
    const bool stays =
        (from.operation == GSC_CUDA_ADD && *from.bad) || (from.state && skips(from.state));
    call->all_chunks = call->status == GSC_OK && !stays ? from.all_chunks : 0;
}

/* Writes the results of chunk `index`, and clears what was counted. One thread. */
DEVICE void write_chunk(const gsc_cuda_call *call, chunk_shared *s, uint32_t index)
{
    gsc_cuda_chunk chunk = {0, 0, {0}, s->first, s->first != ~(uint32_t)0, s->run};
    ONE_BY_ONE for (uint32_t b = 0; b < GSC_CHUNK / GSC_BLOCK; b++)
    {
        chunk.sum_squares += s->sums[b];
        chunk.amax = most(chunk.amax, s->amax[b]);
    }
    UNROLLED for (int k = 0; k < GSC_CUDA_COUNTS; k++)
    {
        chunk.has_counts |= chunk.counts[k] = s->counts[k];
        s->counts[k] = 0;
    }
    s->first = ~(uint32_t)0;
    call->chunks[index] = chunk;
}

/* Reduces the tiles of a block to the results of chunk `index`, with all threads. */
INLINED void reduce_tiles(const gsc_cuda_call *call, chunk_shared *s, thread_tile *tile,
                          uint32_t index)
{
    thread_partial &partial = tile->partial;
    const double largest = tile->in_dtype == gsc_f64 ? gsc_double(partial.largest)
                                                     : (double)gsc_float((uint32_t)partial.largest);
    partial.amax = most(partial.amax, largest);
    partial.counts[GSC_CUDA_ZEROS] += partial.units % SUBNORMAL;
    partial.counts[GSC_CUDA_SUBNORMALS] += partial.units % CLAMPED / SUBNORMAL;
    partial.counts[GSC_CUDA_CLAMPED] += partial.units / CLAMPED;
    ONE_BY_ONE for (int k = 0; k < GSC_CUDA_COUNTS; k++) if (partial.counts[k])
        shared_add(&s->counts[k], partial.counts[k]);
    if (partial.first != ~(uint32_t)0)
        shared_min(&s->first, partial.first);
    const uint32_t left = call->all_chunks - index;
    double sum = 0; /* of the block: its first thread */
    bool done = tile->n == 0 || !(call->want & GSC_WANT_NORM);
    /* The double sums only if they are needed. */
    ONE_BY_ONE for (bool wide = is_in_double(call, tile->in_dtype);; wide = true)
    {
        lane_sums lanes = {{}, partial.amax};
        UNROLLED for (uint32_t k = 0; k < 4; k++) lanes.sums[k] =
            wide ? partial.wide[k] : partial.narrow[k];
        lanes = warp_sum(lanes, GSC_CUDA_THREADS * GSC_BLOCK / GSC_CHUNK);
        if (tile->lane == 0) { /* the first thread of a block has the sums of its lanes */
            if (!done)
                sum = (lanes.sums[0] + lanes.sums[2]) + (lanes.sums[1] + lanes.sums[3]);
            s->sums[tile->start / GSC_BLOCK] = sum;
            s->amax[tile->start / GSC_BLOCK] = lanes.amax;
            done |= wide || is_trusted(sum);
            if (!done)
                shared_min(&s->untrusted, left);
        }
        __syncthreads();
        if (wide || s->untrusted != left)
            break;
    }
    if (tile->start == 0)
        write_chunk(call, s, index);
}

/* Returns threadIdx.x. The assembly makes the compiler compute again what depends on it, instead of
 * keeping that in registers while rows run. */
INLINED uint32_t thread(void)
{
    uint32_t t = threadIdx.x;
    asm volatile("" : "+r"(t));
    return t;
}

/* Runs chunk `index` of the call with all threads of a block. */
INLINED void run_chunk(const gsc_cuda_call *call, chunk_shared *s, const chunk_tensor &of,
                       uint32_t index)
{
    const gsc_cuda_tensor &tensor = of.tensor;
    const uint32_t before = index - of.first_chunk, t = thread(), type = tensor.in_dtype;
    const uint32_t in_dtype = type & ~(uint32_t)GSC_CUDA_COMPLEX, out_dtype = tensor.out_dtype;
    const uint32_t n = index + 1 == tensor.end ? tensor.last + 1u : (uint32_t)GSC_CHUNK;
    const unsigned char *in = tensor.in + (uint64_t)before * GSC_CHUNK * dtypes[in_dtype].size;
    if (t == 0)
        s->run = before % GSC_RUN ? 0 : least(tensor.end - index, (uint32_t)GSC_RUN);
    if (call->prefetches)
        prefetch(t, in, n * dtypes[in_dtype].size);
    if (call->bins) { /* before anything is written */
        count_bins(t, call, s->bins, in, in_dtype, type != in_dtype, n);
        __syncthreads();
    }

    const uint32_t start = t / 16 * GSC_BLOCK;
    thread_tile tile;
    tile.call = call;
    tile.in = in + (uint64_t)start * dtypes[in_dtype].size;
    tile.out = NULL;
    if (tensor.out && call->writes)
        tile.out = tensor.out + ((uint64_t)before * GSC_CHUNK + start) * dtypes[out_dtype].size;
    tile.in_dtype = in_dtype;
    tile.out_dtype = out_dtype;
    tile.complex = type != in_dtype;
    tile.n = n <= start ? 0 : least(n - start, (uint32_t)GSC_BLOCK);
    tile.lane = 4 * (t % 16);
    tile.start = start + tile.lane;
    tile.row = 0;
    set_options(&tile);
    run_tile(&tile);
    if (call->ended)
        reduce_tiles(call, s, &tile, index);
    const uint32_t bin = thread();
    if (call->bins && bin < GSC_BINS && s->bins[bin]) {
        global_add(&call->bins[bin], (int64_t)s->bins[bin]);
        s->bins[bin] = 0;
    }
    __syncthreads(); /* the next chunk counts in the same places */
}

/* ---- the end of a call ---- */

enum { TENSORS = 2 * GSC_CUDA_THREADS /* that a block ends at a time */ };
enum { WINDOW = 8 /* chunks of a thread */ };

/* The results of chunks or tensors. */
struct list_partial {
    double amax;
    int64_t counts[GSC_CUDA_COUNTS];
    uint32_t first, last;  /* the first and the last tensor that are not finite; none: ~0, 0 */
    int64_t first_element; /* of the first: its first element that is not finite */

    __inline__ __device__ void operator+=(const list_partial &other)
    {
        amax = most(amax, other.amax);
        UNROLLED for (int k = 0; k < GSC_CUDA_COUNTS; k++) counts[k] += other.counts[k];
        if (other.first < first) {
            first = other.first;
            first_element = other.first_element;
        }
        last = most(last, other.last);
    }
};

DEVICE void clear(list_partial *partial)
{
    memset(partial, 0, sizeof *partial);
    partial->first = ~(uint32_t)0;
}

/* The results of a tensor or of the list, for its report. Sums are added in the list's order. */
struct results {
    list_partial partial;
    double sum_squares;
    int64_t elements;
    uint32_t loss; /* GSC_LOSS_* */
};

/* Memory of a block that ends a call. */
typedef struct end_shared {
    double sums[TENSORS], runs[TENSORS / GSC_RUN];
    list_partial warps[WARPS];
    gsc_policy policy; /* the fields that the kernels use */
    uint32_t is_last, loss;
} end_shared;

/*
 * Adds the results of n chunks that are `stride` chunks apart. If one is not finite, partial.first
 * is 0. Loads are issued for several chunks before one of them is used.
 */
SLOW void add_chunks(results *to, const gsc_cuda_chunk *chunks, uint32_t n, uint32_t stride)
{
    enum { STEP = 4 };
    double sum = 0, amax = 0;
    clear(&to->partial);
    ONE_BY_ONE for (uint32_t k = 0; k < n; k += STEP)
    {
        double sums[STEP], largest[STEP];
        uint32_t has_counts = 0;
        UNROLLED for (uint32_t u = 0; u < STEP; u++)
        {
            const gsc_cuda_chunk *chunk = &chunks[(uint64_t)least(k + u, n - 1) * stride];
            sums[u] = chunk->sum_squares;
            largest[u] = chunk->amax;
            has_counts |= chunk->has_counts;
        }
        UNROLLED for (uint32_t u = 0; u < STEP; u++)
        {
            sum += k + u < n ? sums[u] : 0;
            amax = most(amax, largest[u]);
        }
        ONE_BY_ONE for (uint32_t i = k; has_counts && i < least(k + STEP, n); i++)
        {
            const gsc_cuda_chunk *chunk = &chunks[(uint64_t)i * stride];
            UNROLLED for (int c = 0; c < GSC_CUDA_COUNTS; c++) to->partial.counts[c] +=
                chunk->counts[c];
            if (chunk->first != ~(uint32_t)0 && to->partial.first != 0) {
                to->partial.first = 0;
                to->partial.first_element = (int64_t)i * stride * GSC_CHUNK + (int64_t)chunk->first;
            }
        }
    }
    to->sum_squares = sum;
    to->partial.amax = amax;
}

/* Adds the results of the chunks of each run, in the first of them. */
INLINED void fold_runs(gsc_cuda_chunk *chunks, uint32_t n)
{
    ONE_BY_ONE for (uint32_t w = WINDOW * threadIdx.x; w < n; w += WINDOW * GSC_CUDA_THREADS)
    {
        uint32_t begins = 0; /* a bit for each chunk of the window that begins a run of several */
        UNROLLED for (uint32_t i = 0; i < WINDOW; i++) begins |=
            (uint32_t)(chunks[least(w + i, n - 1)].run > 1) << i;
        for (uint32_t i = w; begins != 0; i++, begins >>= 1) {
            /* The threads of a warp skip at different times, and add at the same time. */
            ONE_BY_ONE for (; !(begins & 1); begins >>= 1) i++;
            results sum;
            gsc_cuda_chunk *run = &chunks[i];
            add_chunks(&sum, run, run->run, 1);
            run->sum_squares = sum.sum_squares;
            run->amax = sum.partial.amax;
            UNROLLED for (int k = 0; k < GSC_CUDA_COUNTS; k++) run->has_counts |= run->counts[k] =
                (uint32_t)sum.partial.counts[k];
            if (sum.partial.first == 0) {
                run->first = (uint32_t)sum.partial.first_element;
                run->has_counts = 1;
            }
        }
    }
}

/* Writes the report of a tensor, for which the policy is NULL, or of the list. */
SLOW void write_report(gsc_report *r, const gsc_cuda_call *call, const gsc_policy *policy,
                       const results *of)
{
    const list_partial *partial = &of->partial;
    gsc_clear(r, sizeof *r);
    if (call->status != GSC_OK) /* nothing was unscaled: nobody must step */
        return gsc_report_failed(r, call->status);
    r->elements = of->elements;
    r->amax = call->want & GSC_WANT_AMAX ? partial->amax : 0;
    r->sum_squares = call->want & GSC_WANT_NORM ? of->sum_squares : 0;
    r->nan_count = partial->counts[GSC_CUDA_NAN];
    r->inf_count = partial->counts[GSC_CUDA_INF];
    r->underflows_to_zero = partial->counts[GSC_CUDA_ZEROS];
    r->underflows_to_subnormal = partial->counts[GSC_CUDA_SUBNORMALS];
    r->clamped = partial->counts[GSC_CUDA_CLAMPED];
    if (partial->first != ~(uint32_t)0) {
        r->first_tensor = partial->first;
        r->first_element = partial->first_element;
    }
    r->last_tensor = partial->last;
    r->loss = of->loss;
    gsc_report_finish(r, call->want, call->generation, policy);
}

/*
 * Adds the results of the runs of tensor `index`, which has the chunks from `first` on, and writes
 * its report. Returns its sum of squares.
 */
INLINED double end_tensor(const gsc_cuda_call *call, list_partial *all, uint32_t index,
                          uint32_t first, const gsc_cuda_tensor &tensor)
{
    const uint32_t complex = tensor.in_dtype / GSC_CUDA_COMPLEX;
    const int64_t chunks = call->status == GSC_OK ? tensor.end - first : 0;
    results of;
    add_chunks(&of, &call->chunks[first], ((uint32_t)chunks + GSC_RUN - 1) / GSC_RUN, GSC_RUN);
    if (of.partial.first == 0)
        of.partial.first = of.partial.last = index;
    of.loss = GSC_LOSS_UNKNOWN;
    of.partial.first_element >>= complex;
    of.elements = chunks == 0 ? 0 : ((chunks - 1) * GSC_CHUNK + tensor.last + 1) >> complex;
    *all += of.partial;
    if (call->per_tensor)
        write_report(&call->per_tensor[index], call, NULL, &of);
    return of.sum_squares;
}

/* Returns true in the block that ends last, which sees all that the others wrote. */
INLINED bool is_last(const gsc_cuda_call *call, end_shared *s)
{
    if (threadIdx.x == 0) {
        __threadfence();
        const uint64_t before = atomicAdd((unsigned long long *)call->ended, 1ull);
        s->is_last = before - call->first_ended == gridDim.x - 1;
        if (s->is_last)
            __threadfence();
        s->loss = call->loss ? GSC_LOSS_FINITE : GSC_LOSS_UNKNOWN;
    }
    __syncthreads();
    return s->is_last;
}

/* Sets *judged if an element of the loss is not finite, with all threads of a block. */
INLINED void judge_loss(const gsc_cuda_call *call, uint32_t *judged)
{
    const uint32_t type = call->loss_dtype, size = dtypes[type].size;
    const unsigned char *element = call->loss + threadIdx.x * size;
    ONE_BY_ONE for (; element < call->loss_end; element += GSC_CUDA_THREADS * size)
    {
        uint64_t bits = 0;
        ONE_BY_ONE for (uint32_t i = size; i-- > 0;) bits = bits << 8 | element[i];
        if (magnitude_of(type, bits) >= dtypes[type].infinity)
            shared_max(judged, GSC_LOSS_NOT_FINITE);
    }
}

/* Makes the reports. Each thread ends some of TENSORS tensors; then their results are added. */
INLINED void end_call(const gsc_cuda_call *call, end_shared *s, const gsc_cuda_chunks_parameter &p)
{
    const uint32_t t = threadIdx.x;
    if (t < sizeof p.policy / 8)
        ((gsc_word *)&s->policy)[t] = p.policy.words[t];
    judge_loss(call, &s->loss);
    fold_runs(call->chunks, call->all_chunks);
    __syncthreads();
    list_partial partial;
    clear(&partial);
    double sum = 0; /* of the list: thread 0 */
    ONE_BY_ONE for (uint32_t done = 0; done < call->tensors; done += TENSORS)
    {
        const uint32_t n = least(call->tensors - done, (uint32_t)TENSORS);
        ONE_BY_ONE for (uint32_t i = t; i < TENSORS; i += GSC_CUDA_THREADS)
        {
            const uint32_t index = done + i;
            double of_tensor = 0;
            if (i < n) {
                const uint32_t first = index > 0 ? tensor_of(p, index - 1).end : 0;
                of_tensor = end_tensor(call, &partial, index, first, tensor_of(p, index));
            }
            s->sums[i] = of_tensor;
        }
        __syncthreads();
        if (t * GSC_RUN < n) {
            double run = 0;
            _Pragma("unroll 4") for (uint32_t i = 0; i < GSC_RUN; i++) run +=
                s->sums[GSC_RUN * t + i];
            s->runs[t] = run;
        }
        __syncthreads();
        if (t == 0)
            ONE_BY_ONE for (uint32_t i = 0; i * GSC_RUN < n; i++) sum += s->runs[i];
    }
    partial = block_sum(partial, s->warps);
    if (t == 0) {
        if (call->bad)
            *call->bad = partial.first != ~(uint32_t)0 || s->loss == GSC_LOSS_NOT_FINITE;
        const results of = {partial, sum, call->elements, s->loss};
        if (call->report)
            write_report(call->report, call, &s->policy, &of);
    }
    if (t <= GSC_BINS && call->histogram && call->status == GSC_OK)
        call->histogram[t] = t < GSC_BINS && call->bins ? call->bins[t] : call->histogram_elements;
}

/*
 * A pass over a list. Each block runs every gridDim.x-th chunk, so it waits for the factor and for
 * the end of its stores once. The workspace is not initialised: a block that reads the count of
 * another call replaces it by a compare-and-swap, which fails if the count has changed.
 */
KERNEL(chunks)
{
    SHARED gsc_cuda_call shared_call;
    SHARED chunk_shared s;
    SHARED chunk_tensor found;
    SHARED end_shared e;
    const gsc_cuda_call *call = &shared_call;
    const uint32_t t = threadIdx.x;
    if (t < offsetof(gsc_cuda_call, multiplier) / 8)
        ((gsc_word *)&shared_call)[t] = ((const gsc_word *)&p.call)[t];
    if (t < GSC_BINS)
        s.bins[t] = 0;
    if (t < GSC_CUDA_COUNTS)
        s.counts[t] = 0;
    if (t == 0) {
        const uint64_t ended = p.call.ended ? *(const volatile uint64_t *)p.call.ended : 0;
        s.first = ~(uint32_t)0;
        s.untrusted = ~(uint32_t)0;
        set_call(&shared_call, p.call);
        if (p.call.ended && ended - p.call.first_ended >= gridDim.x)
            (void)atomicCAS((unsigned long long *)p.call.ended, ended, p.call.first_ended);
    }
    __syncthreads();
    ONE_BY_ONE for (uint32_t index = blockIdx.x; index < call->all_chunks; index += gridDim.x)
    {
        chunk_tensor of;
        if (p.list) {
            find_in_list(&found, p.list, call->tensors, index);
            of = found;
        } else {
            of = find_in_parameter(p, index);
        }
        run_chunk(call, &s, of, index);
    }
    if (call->ended && is_last(call, &e))
        end_call(call, &e, p);
}

/* Not inlined: a step in registers would be a copy of the code for each field. */
SLOW void run_step(const gsc_step *step)
{
    const gsc_status status = gsc_step_run(step);
    if (status != GSC_OK)
        gsc_step_failed(step, status);
}

KERNEL(step)
{
    gsc_step step;
    gsc_copy(&step, &p, sizeof p);
    gsc_clear((char *)&step + sizeof p, sizeof step - sizeof p); /* later fields of a policy */
    run_step(&step);
}
