/* SPDX-License-Identifier: MIT */
/* NEON, which every 64-bit Arm machine has: a vector of simd.h is four registers. */
#if defined(__aarch64__)
#include <arm_neon.h>

#include "ends.h"
#include "kernels.h"

typedef struct ints {
    uint32x4_t a, b, c, d;
} ints;
typedef struct floats {
    float32x4_t a, b, c, d;
} floats;
typedef struct doubles {
    float64x2_t a, b, c, d;
} doubles;
typedef struct half {
    uint16x8_t low, high;
} half;
typedef uint8x16_t quarter;

/* ---- memory: loads and stores of bytes need no alignment ---- */

GSC_INLINE quarter load_quarter(const void *at)
{
    return vld1q_u8(at);
}

GSC_INLINE quarter load_first_quarter(const void *at, uint64_t bytes)
{
    const gsc_end x = gsc_load_end(at, bytes);
    return vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(x.low), vcreate_u64(x.high)));
}

GSC_INLINE void store_quarter(void *at, quarter x)
{
    vst1q_u8(at, x);
}

static __attribute__((noinline)) void store_first_quarter(void *at, quarter x, uint64_t bytes)
{
    const uint64x2_t words = vreinterpretq_u64_u8(x);
    const gsc_end end = {vgetq_lane_u64(words, 0), vgetq_lane_u64(words, 1)};
    if (bytes >= 16)
        store_quarter(at, x);
    else
        gsc_store_end(at, end, bytes);
}

GSC_INLINE half load_half(const char *at)
{
    return (half){vreinterpretq_u16_u8(load_quarter(at)),
                  vreinterpretq_u16_u8(load_quarter(at + 16))};
}

GSC_INLINE void store_half(char *at, half x)
{
    store_quarter(at, vreinterpretq_u8_u16(x.low));
    store_quarter(at + 16, vreinterpretq_u8_u16(x.high));
}

static __attribute__((noinline)) void store_first_half(char *at, half x, uint64_t bytes)
{
    store_first_quarter(at, vreinterpretq_u8_u16(x.low), bytes);
    if (bytes > 16)
        store_first_quarter(at + 16, vreinterpretq_u8_u16(x.high), bytes - 16);
}

GSC_INLINE ints load(const char *at)
{
    return (ints){
        vreinterpretq_u32_u8(load_quarter(at)), vreinterpretq_u32_u8(load_quarter(at + 16)),
        vreinterpretq_u32_u8(load_quarter(at + 32)), vreinterpretq_u32_u8(load_quarter(at + 48))};
}

GSC_INLINE void store(void *to, ints x)
{
    char *at = to;
    store_quarter(at, vreinterpretq_u8_u32(x.a));
    store_quarter(at + 16, vreinterpretq_u8_u32(x.b));
    store_quarter(at + 32, vreinterpretq_u8_u32(x.c));
    store_quarter(at + 48, vreinterpretq_u8_u32(x.d));
}

/* Loads register k of a vector that has `bytes`. */
GSC_INLINE uint32x4_t load_some(const char *at, uint64_t k, uint64_t bytes)
{
    if (bytes >= 16 * k + 16)
        return vreinterpretq_u32_u8(load_quarter(at + 16 * k));
    if (bytes <= 16 * k)
        return vdupq_n_u32(0);
    return vreinterpretq_u32_u8(load_first_quarter(at + 16 * k, bytes - 16 * k));
}

GSC_INLINE void store_some(char *at, uint32x4_t x, uint64_t k, uint64_t bytes)
{
    if (bytes > 16 * k)
        store_first_quarter(at + 16 * k, vreinterpretq_u8_u32(x), bytes - 16 * k);
}

/* Not inlined: these are long and rarely run. Registers pass the arguments and results. */
static __attribute__((noinline)) ints load_first(const char *at, uint64_t bytes)
{
    return (ints){load_some(at, 0, bytes), load_some(at, 1, bytes), load_some(at, 2, bytes),
                  load_some(at, 3, bytes)};
}

static __attribute__((noinline)) void store_first(char *at, ints x, uint64_t bytes)
{
    store_some(at, x.a, 0, bytes);
    store_some(at, x.b, 1, bytes);
    store_some(at, x.c, 2, bytes);
    store_some(at, x.d, 3, bytes);
}

/* Plain stores: Arm cores detect that whole lines are written, and do not fetch them. */
GSC_INLINE void store_past_caches(char *at, ints x)
{
    store(at, x);
}

GSC_INLINE void store_past_caches_done(void)
{
}

/* ---- by the size of elements ---- */

GSC_INLINE uint32x4_t larger_register(uint64_t size, uint32x4_t a, uint32x4_t b)
{
    const uint8x16_t a1 = vreinterpretq_u8_u32(a), b1 = vreinterpretq_u8_u32(b);
    const uint16x8_t a2 = vreinterpretq_u16_u32(a), b2 = vreinterpretq_u16_u32(b);
    const uint64x2_t a8 = vreinterpretq_u64_u32(a), b8 = vreinterpretq_u64_u32(b);
    return size == 1   ? vreinterpretq_u32_u8(vmaxq_u8(a1, b1))
           : size == 2 ? vreinterpretq_u32_u16(vmaxq_u16(a2, b2))
           : size == 4 ? vmaxq_u32(a, b)
                       : vreinterpretq_u32_u64(vbslq_u64(vcgtq_u64(a8, b8), a8, b8));
}

GSC_INLINE ints larger(uint64_t size, ints a, ints b)
{
    return (ints){larger_register(size, a.a, b.a), larger_register(size, a.b, b.b),
                  larger_register(size, a.c, b.c), larger_register(size, a.d, b.d)};
}

/*
 * Returns a mask of magnitudes. The asm makes the compiler keep it in a register: else it clears
 * the signs with an instruction that overwrites its input, and copies the input first.
 */
GSC_INLINE uint32x4_t mask_of(uint64_t size)
{
    uint32x4_t mask = vdupq_n_u32(size == 1 ? 0x7f7f7f7f : 0x7fff7fff);
    __asm__("" : "+w"(mask));
    return mask;
}

/* Returns magnitudes. The absolute value of a float needs no constant. */
GSC_INLINE uint32x4_t magnitude(uint64_t size, uint32x4_t x)
{
    return size == 4   ? vreinterpretq_u32_f32(vabsq_f32(vreinterpretq_f32_u32(x)))
           : size == 8 ? vreinterpretq_u32_f64(vabsq_f64(vreinterpretq_f64_u32(x)))
                       : vandq_u32(x, mask_of(size));
}

GSC_INLINE ints magnitudes(uint64_t size, ints x)
{
    return (ints){magnitude(size, x.a), magnitude(size, x.b), magnitude(size, x.c),
                  magnitude(size, x.d)};
}

GSC_INLINE uint64_t largest(uint64_t size, ints x)
{
    const uint32x4_t most =
        larger_register(size, larger_register(size, x.a, x.b), larger_register(size, x.c, x.d));
    const uint64x2_t words = vreinterpretq_u64_u32(most);
    const uint64_t low = vgetq_lane_u64(words, 0), high = vgetq_lane_u64(words, 1);
    return size == 1    ? vmaxvq_u8(vreinterpretq_u8_u32(most))
           : size == 2  ? vmaxvq_u16(vreinterpretq_u16_u32(most))
           : size == 4  ? vmaxvq_u32(most)
           : low > high ? low
                        : high;
}

/* Returns all ones where magnitudes are below `limit`. */
GSC_INLINE uint32x4_t below(uint64_t size, uint32x4_t x, uint64_t limit)
{
    const uint8x16_t x1 = vreinterpretq_u8_u32(x);
    const uint16x8_t x2 = vreinterpretq_u16_u32(x);
    const uint64x2_t x8 = vreinterpretq_u64_u32(x);
    return size == 1   ? vreinterpretq_u32_u8(vcltq_u8(x1, vdupq_n_u8((uint8_t)limit)))
           : size == 2 ? vreinterpretq_u32_u16(vcltq_u16(x2, vdupq_n_u16((uint16_t)limit)))
           : size == 4 ? vcltq_u32(x, vdupq_n_u32((uint32_t)limit))
                       : vreinterpretq_u32_u64(vcltq_u64(x8, vdupq_n_u64(limit)));
}

/* Counts the bytes that are all ones; the others are 0. */
GSC_INLINE uint64_t count_ones(ints x)
{
    const uint8x16_t low = vaddq_u8(vreinterpretq_u8_u32(x.a), vreinterpretq_u8_u32(x.b));
    const uint8x16_t high = vaddq_u8(vreinterpretq_u8_u32(x.c), vreinterpretq_u8_u32(x.d));
    return vaddvq_u8(vsubq_u8(vdupq_n_u8(0), vaddq_u8(low, high))); /* all ones is -1 */
}

GSC_INLINE uint32x4_t smaller_register(uint64_t size, uint32x4_t a, uint32x4_t b)
{
    const uint8x16_t a1 = vreinterpretq_u8_u32(a), b1 = vreinterpretq_u8_u32(b);
    const uint16x8_t a2 = vreinterpretq_u16_u32(a), b2 = vreinterpretq_u16_u32(b);
    return size == 1   ? vreinterpretq_u32_u8(vminq_u8(a1, b1))
           : size == 2 ? vreinterpretq_u32_u16(vminq_u16(a2, b2))
                       : vminq_u32(a, b);
}

GSC_INLINE ints smaller(uint64_t size, ints a, ints b)
{
    return (ints){smaller_register(size, a.a, b.a), smaller_register(size, a.b, b.b),
                  smaller_register(size, a.c, b.c), smaller_register(size, a.d, b.d)};
}

GSC_INLINE uint32x4_t sub_register(uint64_t size, uint32x4_t a, uint32_t b)
{
    return size == 1
               ? vreinterpretq_u32_u8(vsubq_u8(vreinterpretq_u8_u32(a), vdupq_n_u8((uint8_t)b)))
           : size == 2 ? vreinterpretq_u32_u16(
                             vsubq_u16(vreinterpretq_u16_u32(a), vdupq_n_u16((uint16_t)b)))
                       : vsubq_u32(a, vdupq_n_u32(b));
}

GSC_INLINE ints sub(uint64_t size, ints a, uint32_t b)
{
    return (ints){sub_register(size, a.a, b), sub_register(size, a.b, b),
                  sub_register(size, a.c, b), sub_register(size, a.d, b)};
}

GSC_INLINE bool any_below(uint64_t size, ints x, uint64_t limit)
{
    const uint32x4_t least =
        smaller_register(size, smaller_register(size, x.a, x.b), smaller_register(size, x.c, x.d));
    return (size == 1   ? vminvq_u8(vreinterpretq_u8_u32(least))
            : size == 2 ? vminvq_u16(vreinterpretq_u16_u32(least))
                        : vminvq_u32(least)) < limit;
}

GSC_INLINE uint64_t between(uint64_t size, ints x, uint64_t low, uint64_t high)
{
    const ints some = {
        vbicq_u32(below(size, x.a, high), below(size, x.a, low)),
        vbicq_u32(below(size, x.b, high), below(size, x.b, low)),
        vbicq_u32(below(size, x.c, high), below(size, x.c, low)),
        vbicq_u32(below(size, x.d, high), below(size, x.d, low)),
    };
    return count_ones(some) / size;
}

GSC_INLINE uint64_t at_least(uint64_t size, ints x, uint64_t least)
{
    const ints less = {below(size, x.a, least), below(size, x.b, least), below(size, x.c, least),
                       below(size, x.d, least)};
    return (64 - count_ones(less)) / size;
}

GSC_INLINE bool any_at_least(uint64_t size, ints x, uint64_t least)
{
    return at_least(size, x, least) != 0;
}

GSC_INLINE uint64_t before_first(uint64_t size, ints x, uint64_t least)
{
    unsigned char less[64];
    uint64_t i = 0;
    store(less, (ints){below(size, x.a, least), below(size, x.b, least), below(size, x.c, least),
                       below(size, x.d, least)});
    while (less[i * size])
        i++;
    return i;
}

GSC_INLINE ints keep_below(uint64_t size, ints x, uint64_t limit)
{
    return (ints){vandq_u32(x.a, below(size, magnitude(size, x.a), limit)),
                  vandq_u32(x.b, below(size, magnitude(size, x.b), limit)),
                  vandq_u32(x.c, below(size, magnitude(size, x.c), limit)),
                  vandq_u32(x.d, below(size, magnitude(size, x.d), limit))};
}

/* ---- integers ---- */

GSC_INLINE ints ints_set(uint32_t x)
{
    return (ints){vdupq_n_u32(x), vdupq_n_u32(x), vdupq_n_u32(x), vdupq_n_u32(x)};
}

GSC_INLINE ints ints_add(ints a, ints b)
{
    return (ints){vaddq_u32(a.a, b.a), vaddq_u32(a.b, b.b), vaddq_u32(a.c, b.c),
                  vaddq_u32(a.d, b.d)};
}

GSC_INLINE ints ints_sub(ints a, ints b)
{
    return (ints){vsubq_u32(a.a, b.a), vsubq_u32(a.b, b.b), vsubq_u32(a.c, b.c),
                  vsubq_u32(a.d, b.d)};
}

GSC_INLINE ints ints_and(ints a, ints b)
{
    return (ints){vandq_u32(a.a, b.a), vandq_u32(a.b, b.b), vandq_u32(a.c, b.c),
                  vandq_u32(a.d, b.d)};
}

GSC_INLINE ints ints_or(ints a, ints b)
{
    return (ints){vorrq_u32(a.a, b.a), vorrq_u32(a.b, b.b), vorrq_u32(a.c, b.c),
                  vorrq_u32(a.d, b.d)};
}

GSC_INLINE ints ints_min(ints a, ints b)
{
    return (ints){vminq_u32(a.a, b.a), vminq_u32(a.b, b.b), vminq_u32(a.c, b.c),
                  vminq_u32(a.d, b.d)};
}

GSC_INLINE ints ints_shl(ints x, uint32_t count)
{
    return (ints){x.a << count, x.b << count, x.c << count, x.d << count};
}

GSC_INLINE ints ints_shr(ints x, uint32_t count)
{
    return (ints){x.a >> count, x.b >> count, x.c >> count, x.d >> count};
}

GSC_INLINE ints ints_select_ge(ints a, ints b, ints x, ints y)
{
    return (ints){
        vbslq_u32(vcgeq_u32(a.a, b.a), x.a, y.a), vbslq_u32(vcgeq_u32(a.b, b.b), x.b, y.b),
        vbslq_u32(vcgeq_u32(a.c, b.c), x.c, y.c), vbslq_u32(vcgeq_u32(a.d, b.d), x.d, y.d)};
}

GSC_INLINE ints add_bit(ints x, int index)
{
    const uint32x4_t bit = vdupq_n_u32(UINT32_C(1) << index); /* a true test gives -1 */
    return (ints){vsubq_u32(x.a, vtstq_u32(x.a, bit)), vsubq_u32(x.b, vtstq_u32(x.b, bit)),
                  vsubq_u32(x.c, vtstq_u32(x.c, bit)), vsubq_u32(x.d, vtstq_u32(x.d, bit))};
}

/* ---- integers of 2 bytes ---- */

/* The registers of `ints`, as elements of 2 bytes. */
typedef struct shorts {
    uint16x8_t a, b, c, d;
} shorts;

GSC_INLINE shorts shorts_of(ints x)
{
    return (shorts){vreinterpretq_u16_u32(x.a), vreinterpretq_u16_u32(x.b),
                    vreinterpretq_u16_u32(x.c), vreinterpretq_u16_u32(x.d)};
}

GSC_INLINE ints bits_of_shorts(shorts x)
{
    return (ints){vreinterpretq_u32_u16(x.a), vreinterpretq_u32_u16(x.b),
                  vreinterpretq_u32_u16(x.c), vreinterpretq_u32_u16(x.d)};
}

GSC_INLINE uint16x8_t add_where_not_zero(uint16x8_t x, uint16x8_t b)
{
    return vaddq_u16(x, vandq_u16(vtstq_u16(x, vreinterpretq_u16_u32(mask_of(2))), b));
}

GSC_INLINE ints add_where_not_zero2(ints bits, uint16_t b)
{
    const shorts x = shorts_of(bits);
    const uint16x8_t y = vdupq_n_u16(b);
    return bits_of_shorts((shorts){add_where_not_zero(x.a, y), add_where_not_zero(x.b, y),
                                   add_where_not_zero(x.c, y), add_where_not_zero(x.d, y)});
}

GSC_INLINE bool any_above2(ints bits, uint16_t limit)
{
    const shorts x = shorts_of(bits);
    return vmaxvq_u16(vmaxq_u16(vmaxq_u16(x.a, x.b), vmaxq_u16(x.c, x.d))) > limit;
}

GSC_INLINE ints merge_upper(ints even, ints odd)
{
    const shorts x = shorts_of(even), y = shorts_of(odd);
    return bits_of_shorts((shorts){vtrn2q_u16(x.a, y.a), vtrn2q_u16(x.b, y.b), vtrn2q_u16(x.c, y.c),
                                   vtrn2q_u16(x.d, y.d)});
}

/* ---- widths ---- */

GSC_INLINE half half_of(ints x, int k)
{
    return k == 0 ? (half){vreinterpretq_u16_u32(x.a), vreinterpretq_u16_u32(x.b)}
                  : (half){vreinterpretq_u16_u32(x.c), vreinterpretq_u16_u32(x.d)};
}

GSC_INLINE ints ints_of_halves(half low, half high)
{
    return (ints){vreinterpretq_u32_u16(low.low), vreinterpretq_u32_u16(low.high),
                  vreinterpretq_u32_u16(high.low), vreinterpretq_u32_u16(high.high)};
}

GSC_INLINE quarter quarter_of(ints x, int k)
{
    return vreinterpretq_u8_u32(k == 0 ? x.a : k == 1 ? x.b : k == 2 ? x.c : x.d);
}

GSC_INLINE ints widen2(half x)
{
    return (ints){vmovl_u16(vget_low_u16(x.low)), vmovl_high_u16(x.low),
                  vmovl_u16(vget_low_u16(x.high)), vmovl_high_u16(x.high)};
}

GSC_INLINE half narrow2(ints x)
{
    return (half){vmovn_high_u32(vmovn_u32(x.a), x.b), vmovn_high_u32(vmovn_u32(x.c), x.d)};
}

GSC_INLINE quarter narrow1(ints x)
{
    const half elements = narrow2(x);
    return vmovn_high_u16(vmovn_u16(elements.low), elements.high);
}

/* ---- floats ---- */

GSC_INLINE floats floats_of(ints x)
{
    return (floats){vreinterpretq_f32_u32(x.a), vreinterpretq_f32_u32(x.b),
                    vreinterpretq_f32_u32(x.c), vreinterpretq_f32_u32(x.d)};
}

GSC_INLINE ints bits_of(floats x)
{
    return (ints){vreinterpretq_u32_f32(x.a), vreinterpretq_u32_f32(x.b),
                  vreinterpretq_u32_f32(x.c), vreinterpretq_u32_f32(x.d)};
}

GSC_INLINE floats floats_set(float x)
{
    return (floats){vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x)};
}

GSC_INLINE floats floats_add(floats a, floats b)
{
    return (floats){vaddq_f32(a.a, b.a), vaddq_f32(a.b, b.b), vaddq_f32(a.c, b.c),
                    vaddq_f32(a.d, b.d)};
}

GSC_INLINE floats floats_sub(floats a, floats b)
{
    return (floats){vsubq_f32(a.a, b.a), vsubq_f32(a.b, b.b), vsubq_f32(a.c, b.c),
                    vsubq_f32(a.d, b.d)};
}

GSC_INLINE floats floats_mul(floats a, floats b)
{
    return (floats){vmulq_f32(a.a, b.a), vmulq_f32(a.b, b.b), vmulq_f32(a.c, b.c),
                    vmulq_f32(a.d, b.d)};
}

GSC_INLINE floats floats_fma(floats a, floats b, floats c)
{
    return (floats){vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b), vfmaq_f32(c.c, a.c, b.c),
                    vfmaq_f32(c.d, a.d, b.d)};
}

/* Clamps with comparisons, which keep the bits of a NaN; a minimum would make it quiet. */
GSC_INLINE float32x4_t clamp_floats(float32x4_t x, float32x4_t least, float32x4_t most)
{
    return vbslq_f32(vcgtq_f32(x, most), most, vbslq_f32(vcltq_f32(x, least), least, x));
}

GSC_INLINE floats floats_clamp(floats x, floats least, floats most)
{
    return (floats){clamp_floats(x.a, least.a, most.a), clamp_floats(x.b, least.b, most.b),
                    clamp_floats(x.c, least.c, most.c), clamp_floats(x.d, least.d, most.d)};
}

GSC_INLINE floats f16_widen(half bits)
{
    const float16x8_t low = vreinterpretq_f16_u16(bits.low),
                      high = vreinterpretq_f16_u16(bits.high);
    return (floats){vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low),
                    vcvt_f32_f16(vget_low_f16(high)), vcvt_high_f32_f16(high)};
}

GSC_INLINE half f16_narrow(floats x)
{
    return (half){vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)),
                  vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d))};
}

/* ---- bytes ---- */

/* Widens each byte to 2 bytes and shifts it up by 7 or 8. */
GSC_INLINE half bytes_up(quarter x, int count)
{
    const half up = {vshll_n_u8(vget_low_u8(x), 7), vshll_n_u8(vget_high_u8(x), 7)};
    return count == 7 ? up : (half){vshlq_n_u16(up.low, 1), vshlq_n_u16(up.high, 1)};
}

/* Returns f16 bits of 2^-8 of the value. A NaN of f8_e4m3fn needs the missing exponent bit. */
GSC_INLINE uint16x8_t f8_e4m3fn_shifted(uint16x8_t upper)
{
    const int16x8_t shifted = vshrq_n_s16(vreinterpretq_s16_u16(upper), 1);
    const uint16x8_t bits = vandq_u16(vreinterpretq_u16_s16(shifted), vdupq_n_u16(0xbf80));
    const uint16x8_t next = vaddq_u16(bits, vdupq_n_u16(0x80));
    return vorrq_u16(bits, vandq_u16(next, vdupq_n_u16(0x4000)));
}

#include "derived.h"

GSC_INLINE floats byte_value(enum gsc_real_dtype dtype, byte_values values, ints bits, int k)
{
    (void)values;
    return f16_widen(
        bytes_up(vbicq_u8(quarter_of(bits, k), vdupq_n_u8(0x80)), dtype == gsc_f8_e5m2 ? 8 : 7));
}

/* One kind of table for every multiplier: the results by |bits|. */
enum { TAKES_ALL = 0, REPEATS = 0 };

GSC_INLINE int table_kind(const gsc_table *from)
{
    (void)from;
    return 0;
}

typedef struct table {
    uint8x16x4_t low, high;
} table;

GSC_INLINE table table_load(int kind, const gsc_table *from)
{
    (void)kind;
    return (table){vld1q_u8_x4(from->results), vld1q_u8_x4(from->results + 64)};
}

/* Returns the products. If an index is not in its half of the table, the first look-up gives zero,
 * and the second keeps the value. */
GSC_INLINE uint32x4_t register_results(table t, uint32x4_t bits)
{
    const uint8x16_t x = vreinterpretq_u8_u32(bits), sign = vdupq_n_u8(0x80);
    const uint8x16_t absolute = vbicq_u8(x, sign);
    const uint8x16_t below = vqtbl4q_u8(t.low, absolute);
    const uint8x16_t results = vqtbx4q_u8(below, t.high, vsubq_u8(absolute, vdupq_n_u8(64)));
    return vreinterpretq_u32_u8(vbslq_u8(sign, x, results));
}

GSC_INLINE ints table_results(enum gsc_real_dtype dtype, int kind, table t, ints bits)
{
    (void)dtype, (void)kind;
    return (ints){register_results(t, bits.a), register_results(t, bits.b),
                  register_results(t, bits.c), register_results(t, bits.d)};
}

/* ---- doubles ---- */

GSC_INLINE doubles doubles_of(ints x)
{
    return (doubles){vreinterpretq_f64_u32(x.a), vreinterpretq_f64_u32(x.b),
                     vreinterpretq_f64_u32(x.c), vreinterpretq_f64_u32(x.d)};
}

GSC_INLINE ints bits_of_doubles(doubles x)
{
    return (ints){vreinterpretq_u32_f64(x.a), vreinterpretq_u32_f64(x.b),
                  vreinterpretq_u32_f64(x.c), vreinterpretq_u32_f64(x.d)};
}

GSC_INLINE doubles doubles_set(double x)
{
    return (doubles){vdupq_n_f64(x), vdupq_n_f64(x), vdupq_n_f64(x), vdupq_n_f64(x)};
}

GSC_INLINE doubles doubles_add(doubles a, doubles b)
{
    return (doubles){vaddq_f64(a.a, b.a), vaddq_f64(a.b, b.b), vaddq_f64(a.c, b.c),
                     vaddq_f64(a.d, b.d)};
}

GSC_INLINE doubles doubles_mul(doubles a, doubles b)
{
    return (doubles){vmulq_f64(a.a, b.a), vmulq_f64(a.b, b.b), vmulq_f64(a.c, b.c),
                     vmulq_f64(a.d, b.d)};
}

GSC_INLINE doubles doubles_fma(doubles a, doubles b, doubles c)
{
    return (doubles){vfmaq_f64(c.a, a.a, b.a), vfmaq_f64(c.b, a.b, b.b), vfmaq_f64(c.c, a.c, b.c),
                     vfmaq_f64(c.d, a.d, b.d)};
}

GSC_INLINE float64x2_t clamp_doubles(float64x2_t x, float64x2_t least, float64x2_t most)
{
    return vbslq_f64(vcgtq_f64(x, most), most, vbslq_f64(vcltq_f64(x, least), least, x));
}

GSC_INLINE doubles doubles_clamp(doubles x, doubles least, doubles most)
{
    return (doubles){clamp_doubles(x.a, least.a, most.a), clamp_doubles(x.b, least.b, most.b),
                     clamp_doubles(x.c, least.c, most.c), clamp_doubles(x.d, least.d, most.d)};
}

GSC_INLINE doubles doubles_low(floats x)
{
    return (doubles){vcvt_f64_f32(vget_low_f32(x.a)), vcvt_high_f64_f32(x.a),
                     vcvt_f64_f32(vget_low_f32(x.b)), vcvt_high_f64_f32(x.b)};
}

GSC_INLINE doubles doubles_high(floats x)
{
    return doubles_low((floats){x.c, x.d, x.c, x.d});
}

GSC_INLINE half doubles_narrow(doubles x)
{
    return (half){vreinterpretq_u16_f32(vcvt_high_f32_f64(vcvt_f32_f64(x.a), x.b)),
                  vreinterpretq_u16_f32(vcvt_high_f32_f64(vcvt_f32_f64(x.c), x.d))};
}

GSC_INLINE double doubles_fold(doubles x)
{
    return vaddvq_f64(vaddq_f64(vaddq_f64(x.a, x.c), vaddq_f64(x.b, x.d)));
}

#include "simd.h"

void gsc_install_neon(gsc_kernels *kernels)
{
    install(kernels);
}
#else
typedef int gsc_no_neon; /* an empty translation unit is not C */
#endif
