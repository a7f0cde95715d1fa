/* SPDX-License-Identifier: MIT */
/* NEON of 64-bit Arm, which every such machine has. */
#if defined(__aarch64__)
#include <arm_neon.h>

#include "ends.h"
#include "kernels.h"

#define W 4
#define TARGET
#define OP static inline

typedef uint32x4_t ints;
typedef float32x4_t floats;
typedef float64x2_t doubles;
typedef uint16x8_t raw2; /* its lower half, the upper one is zero where it is read */
typedef uint8x8_t raw1;  /* its lower half, the upper one is zero */

#define AS(type, x)      vreinterpretq_##type##_u32(x)
#define INTS_OF(type, x) vreinterpretq_u32_##type(x)

/* ---- memory: by bytes, which need no alignment ---- */

OP ints read4(const void *at)
{
    return INTS_OF(u8, vld1q_u8(at));
}

OP void write4(void *at, ints x)
{
    vst1q_u8(at, AS(u8, x));
}

OP ints read_bytes(const void *at, uint64_t bytes)
{
    if (bytes >= 16)
        return read4(at);
    const gsc_end x = gsc_load_end(at, bytes);
    return INTS_OF(u64, vcombine_u64(vcreate_u64(x.low), vcreate_u64(x.high)));
}

OP void write_bytes(void *at, ints x, uint64_t bytes)
{
    const uint64x2_t words = AS(u64, x);
    const gsc_end end = {vgetq_lane_u64(words, 0), vgetq_lane_u64(words, 1)};
    if (bytes >= 16)
        write4(at, x);
    else
        gsc_store_end(at, end, bytes);
}

OP ints read_first4(const void *at, uint64_t left)
{
    return read_bytes(at, 4 * left);
}

OP void write_first4(void *at, ints x, uint64_t left)
{
    write_bytes(at, x, 4 * left);
}

OP raw2 read2(const void *at)
{
    return vreinterpretq_u16_u8(vcombine_u8(vld1_u8(at), vdup_n_u8(0)));
}

OP void write2(void *at, raw2 x)
{
    vst1_u8(at, vreinterpret_u8_u16(vget_low_u16(x)));
}

OP raw2 read_first2(const void *at, uint64_t left)
{
    return vcombine_u16(vcreate_u16(gsc_load_word(at, 2 * left)), vdup_n_u16(0));
}

OP void write_first2(void *at, raw2 x, uint64_t left)
{
    gsc_store_word(at, vgetq_lane_u64(vreinterpretq_u64_u16(x), 0), 2 * left);
}

OP raw1 read_first1(const void *at, uint64_t left)
{
    return vcreate_u8(gsc_load_word(at, left < 4 ? left : 4));
}

OP void write_first1(void *at, raw1 x, uint64_t left)
{
    gsc_store_word(at, vget_lane_u64(vreinterpret_u64_u8(x), 0), left < 4 ? left : 4);
}

OP raw1 read1(const void *at)
{
    return read_first1(at, 4);
}

OP void write1(void *at, raw1 x)
{
    write_first1(at, x, 4);
}

OP doubles read8(const void *at)
{
    return vreinterpretq_f64_u8(vld1q_u8(at));
}

OP void write8(void *at, doubles x)
{
    vst1q_u8(at, vreinterpretq_u8_f64(x));
}

OP doubles read_first8(const void *at, uint64_t left)
{
    return vreinterpretq_f64_u32(read_bytes(at, 8 * left));
}

OP void write_first8(void *at, doubles x, uint64_t left)
{
    write_bytes(at, vreinterpretq_u32_f64(x), 8 * left);
}

/* Plain stores: these cores see by themselves that whole lines are written, and do not fetch them.
 */
OP void stream4(void *at, ints x)
{
    write4(at, x);
}

OP void stream_end(void)
{
}

/* ---- integers ---- */

OP ints ints_set(uint32_t x)
{
    return vdupq_n_u32(x);
}

#define BINARY(name, intrinsic)                                                                    \
    OP ints name(ints a, ints b)                                                                   \
    {                                                                                              \
        return intrinsic(a, b);                                                                    \
    }
#define NARROW_BINARY(name, type, intrinsic)                                                       \
    OP ints name(ints a, ints b)                                                                   \
    {                                                                                              \
        return INTS_OF(type, intrinsic(AS(type, a), AS(type, b)));                                 \
    }
BINARY(ints_add, vaddq_u32)
BINARY(ints_sub, vsubq_u32)
BINARY(ints_and, vandq_u32)
BINARY(ints_or, vorrq_u32)
BINARY(ints_min, vminq_u32)
BINARY(max4, vmaxq_u32)
NARROW_BINARY(max1, u8, vmaxq_u8)
NARROW_BINARY(max2, u16, vmaxq_u16)
NARROW_BINARY(min2, u16, vminq_u16)
#define ints_shl(a, count) vshlq_n_u32(a, count)
#define ints_shr(a, count) vshrq_n_u32(a, count)

OP ints max8(ints a, ints b)
{
    const uint64x2_t x = AS(u64, a), y = AS(u64, b);
    return INTS_OF(u64, vbslq_u64(vcgtq_u64(x, y), x, y));
}

/* a >= b ? x : y */
OP ints ints_select_ge(ints a, ints b, ints x, ints y)
{
    return vbslq_u32(vcgeq_u32(a, b), x, y);
}

OP ints magnitudes1(ints bits)
{
    return vandq_u32(bits, vdupq_n_u32(0x7f7f7f7f));
}

/* x + bit 16 of x */
OP ints add_bit16(ints x)
{
    return vsubq_u32(x, vtstq_u32(x, vdupq_n_u32(0x10000)));
}

/*
 * A constant that the compiler keeps in a register: it would clear the signs by an instruction that
 * overwrites its input, and copy that before.
 */
OP ints mask2(void)
{
    ints mask = vdupq_n_u32(0x7fff7fff);
    __asm__("" : "+w"(mask));
    return mask;
}

OP ints magnitudes2(ints bits)
{
    return vandq_u32(bits, mask2());
}

/* These need no constant. */
OP ints magnitudes4(ints bits)
{
    return INTS_OF(f32, vabsq_f32(AS(f32, bits)));
}

OP ints magnitudes8(ints bits)
{
    return INTS_OF(f64, vabsq_f64(AS(f64, bits)));
}

OP uint64_t largest1(ints x)
{
    return vmaxvq_u8(AS(u8, x));
}

OP uint64_t largest2(ints x)
{
    return vmaxvq_u16(AS(u16, x));
}

OP uint64_t largest4(ints x)
{
    return vmaxvq_u32(x);
}

OP uint64_t largest8(ints x)
{
    const uint64_t low = vgetq_lane_u64(AS(u64, x), 0), high = vgetq_lane_u64(AS(u64, x), 1);
    return low > high ? low : high;
}

OP uint64_t at_least1(ints x, uint64_t least)
{
    return vaddvq_u8(vshrq_n_u8(vcgeq_u8(AS(u8, x), vdupq_n_u8((uint8_t)least)), 7));
}

OP uint64_t at_least2(ints x, uint64_t least)
{
    return vaddvq_u16(vshrq_n_u16(vcgeq_u16(AS(u16, x), vdupq_n_u16((uint16_t)least)), 15));
}

OP uint64_t at_least4(ints x, uint64_t least)
{
    return vaddvq_u32(vshrq_n_u32(vcgeq_u32(x, vdupq_n_u32((uint32_t)least)), 31));
}

OP uint64_t at_least8(ints x, uint64_t least)
{
    return vaddvq_u64(vshrq_n_u64(vcgeq_u64(AS(u64, x), vdupq_n_u64(least)), 63));
}

#define KEEP_BELOW(size, bits)                                                                     \
    OP ints keep_below##size(ints x, uint64_t limit)                                               \
    {                                                                                              \
        return vandq_u32(x,                                                                        \
                         INTS_OF(u##bits, vcltq_u##bits(AS(u##bits, magnitudes##size(x)),          \
                                                        vdupq_n_u##bits((uint##bits##_t)limit)))); \
    }
KEEP_BELOW(1, 8)
KEEP_BELOW(2, 16)
KEEP_BELOW(8, 64)

OP ints keep_below4(ints x, uint64_t limit)
{
    return vandq_u32(x, vcltq_u32(magnitudes4(x), vdupq_n_u32((uint32_t)limit)));
}

OP ints sub2(ints a, uint16_t b)
{
    return INTS_OF(u16, vsubq_u16(AS(u16, a), vdupq_n_u16(b)));
}

OP ints add_where_not_zero2(ints bits, uint16_t b)
{
    const uint16x8_t x = AS(u16, bits), some = vtstq_u16(x, AS(u16, mask2()));
    return INTS_OF(u16, vaddq_u16(x, vandq_u16(some, vdupq_n_u16(b))));
}

OP bool any_below2(ints x, uint16_t limit)
{
    return vminvq_u16(AS(u16, x)) < limit;
}

OP bool any_above2(ints x, uint16_t limit)
{
    return vmaxvq_u16(AS(u16, x)) > limit;
}

/* The upper halves of both, a float's width each: of `even` into the lower place. */
OP ints merge_upper(ints even, ints odd)
{
    return INTS_OF(u16, vtrn2q_u16(AS(u16, even), AS(u16, odd)));
}

/* ---- widths ---- */

OP ints whole4(ints x)
{
    return x;
}

OP ints whole2(raw2 x)
{
    return INTS_OF(u16, x);
}

OP ints whole1(raw1 x)
{
    return INTS_OF(u8, vcombine_u8(x, vdup_n_u8(0)));
}

OP ints widen2(raw2 x)
{
    return vmovl_u16(vget_low_u16(x));
}

OP ints widen1(raw1 x)
{
    return vmovl_u16(vget_low_u16(vmovl_u8(x)));
}

OP raw2 narrow2(ints x)
{
    return vcombine_u16(vmovn_u32(x), vdup_n_u16(0));
}

OP raw1 narrow1(ints x)
{
    return vmovn_u16(vcombine_u16(vmovn_u32(x), vdup_n_u16(0)));
}

/* ---- floats ---- */

OP floats floats_of(ints bits)
{
    return vreinterpretq_f32_u32(bits);
}

OP ints bits_of(floats x)
{
    return vreinterpretq_u32_f32(x);
}

OP floats floats_set(float x)
{
    return vdupq_n_f32(x);
}

OP floats floats_add(floats a, floats b)
{
    return vaddq_f32(a, b);
}

OP floats floats_sub(floats a, floats b)
{
    return vsubq_f32(a, b);
}

OP floats floats_mul(floats a, floats b)
{
    return vmulq_f32(a, b);
}

OP floats floats_fma(floats a, floats b, floats c)
{
    return vfmaq_f32(c, a, b);
}

/* By comparisons, which leave the bits of a NaN; a minimum would make it quiet. */
OP floats floats_clamp(floats x, floats low, floats high)
{
    return vbslq_f32(vcgtq_f32(x, high), high, vbslq_f32(vcltq_f32(x, low), low, x));
}

OP floats f16_widen(raw2 bits)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(bits)));
}

OP raw2 f16_narrow(floats x)
{
    return vcombine_u16(vreinterpret_u16_f16(vcvt_f16_f32(x)), vdup_n_u16(0));
}

/* ---- doubles ---- */

OP doubles doubles_of(ints bits)
{
    return vreinterpretq_f64_u32(bits);
}

OP doubles doubles_set(double x)
{
    return vdupq_n_f64(x);
}

OP doubles doubles_add(doubles a, doubles b)
{
    return vaddq_f64(a, b);
}

OP doubles doubles_mul(doubles a, doubles b)
{
    return vmulq_f64(a, b);
}

OP doubles doubles_fma(doubles a, doubles b, doubles c)
{
    return vfmaq_f64(c, a, b);
}

OP doubles doubles_clamp(doubles x, doubles low, doubles high)
{
    return vbslq_f64(vcgtq_f64(x, high), high, vbslq_f64(vcltq_f64(x, low), low, x));
}

OP doubles doubles_low(floats x)
{
    return vcvt_f64_f32(vget_low_f32(x));
}

OP doubles doubles_high(floats x)
{
    return vcvt_high_f64_f32(x);
}

OP void write_half4(void *at, doubles x)
{
    vst1_u8(at, vreinterpret_u8_f32(vcvt_f32_f64(x)));
}

OP void write_first_half4(void *at, doubles x, uint64_t left)
{
    gsc_store_word(at, vget_lane_u64(vreinterpret_u64_f32(vcvt_f32_f64(x)), 0), 4 * left);
}

/* The sum of both lanes. */
OP double doubles_fold(doubles x)
{
    return vaddvq_f64(x);
}

#include "simd.h"

void gsc_install_neon(gsc_kernels *kernels)
{
    INSTALL
}
#else
typedef int gsc_no_neon; /* an empty translation unit is not C */
#endif
