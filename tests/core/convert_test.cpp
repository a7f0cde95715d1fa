// SPDX-License-Identifier: MIT
// Conversions of every instruction set against arithmetic that shares nothing with them: exact
// values by ldexp, and the nearest one by looking for it among all. And the core's own fma.
#include "cpu/fma.h"
#include "lists.hpp"

namespace {

/* Claims that each value times a power of two becomes the nearest one, of a tie the even one, or
 * the NaN, quiet, with the same sign and upper payload. */
void check_conversion(const Dtype &in, const Dtype &out, const std::vector<uint64_t> &values,
                      double multiplier = 1)
{
    Call c;
    c.factor = factor_of(1 / multiplier, multiplier);
    c.want = 0;
    c.each = c.histogram = false;
    c.entries = {{in.dtype, out.dtype, values.size(), Bytes(values.size() * in.size),
                  Bytes(values.size() * out.size)}};
    for (uint64_t i = 0; i < values.size(); i++)
        write_bits(in, c.entries[0].data.data(), i, values[i]);
    check_call(c, 0);
}

uint64_t bits_of(double x)
{
    return x != x ? UINT64_C(0x7ff8) << 48 : bit_cast<uint64_t>(x);
}

/* Returns a number of any size, near 1, subnormal, so small that products vanish, or a limit. */
double any_double(Random &random)
{
    static const double limits[] = {0.0, -0.0,      1.0,       INFINITY, -INFINITY,
                                    NAN, 0x1p-1074, 0x1p-1022, 0x1p-537, 0x1.fffffffffffffp1023};
    const uint64_t bits = random.next(), rest = bits & ~(UINT64_C(0x7ff) << 52);
    const uint64_t kind = random.next() % 5;
    return kind == 0   ? bit_cast<double>(bits)
           : kind == 1 ? bit_cast<double>(rest | (963 + random.next() % 120) << 52)
           : kind == 2 ? bit_cast<double>((bits & UINT64_C(1) << 63) |
                                          random.next() >> (12 + random.next() % 50))
           : kind == 3 ? bit_cast<double>(rest | (450 + random.next() % 100) << 52)
                       : limits[random.next() % std::size(limits)];
}

} // namespace

TEST_CASE("a conversion gives the nearest value, a tie the even one, or the NaN, quiet",
          "[convert]")
{
    for (const Dtype &narrow : std::vector<Dtype>(dtypes + 2, std::end(dtypes)))
        for (const Dtype &wide : {f32, f64}) {
            Random random = {narrow.size + wide.size};
            const std::vector<double> &exact = narrow_values(narrow);
            std::vector<uint64_t> all, values;
            for (uint64_t bits = 0; bits < 2 * narrow.sign(); bits++)
                all.push_back(bits);
            check_conversion(narrow, wide, all);
            for (uint64_t i = 0; i + 1 < exact.size(); i++)
                for (double x : {exact[i], (exact[i] + exact[i + 1]) / 2})
                    for (uint64_t sign : {uint64_t{0}, wide.sign()})
                        for (uint64_t bits = encode(wide, x), step = bits ? 0 : 1; step < 3; step++)
                            values.push_back((bits + step - 1) | sign);
            for (int i = 0; i < 150000; i++) {
                values.push_back(random.next() & (wide.sign() | (wide.sign() - 1)));
                const uint64_t below = random.next() % (exact.size() - 1);
                const double middle = (exact[below] + exact[below + 1]) / 2;
                const double error = std::exp2(-60 * random.unit()) * (random.unit() - 0.5);
                values.push_back(encode(wide, middle * (1 + error)));
            }
            check_conversion(wide, narrow, values);
        }
    for (const Dtype &in : dtypes)
        for (const Dtype &out : dtypes) {
            Random random = {in.size * 8 + out.size};
            std::vector<uint64_t> nans;
            for (int i = 0; i < 5000; i++) {
                const uint64_t payload = random.next() >> random.next() % 64 & (in.normal() - 1);
                const uint64_t sign = random.next() & in.sign();
                nans.push_back(sign | in.infinity() | std::max<uint64_t>(payload, 1));
            }
            check_conversion(in, out, nans, 2); // by 1, the bits of one dtype would be copied
        }
}

TEST_CASE("fma.h rounds once, as the machine's own fma does", "[convert]")
{
    Random random{1};
    std::string wrong;
    for (int i = 0; i < 2000000 && wrong.empty(); i++) {
        const double x = any_double(random), y = any_double(random);
        /* Or all but cancels the product. */
        const double z = random.next() % 4
                             ? any_double(random)
                             : bit_cast<double>(bit_cast<uint64_t>(-x * y) + random.next() % 5 - 2);
        const float a = static_cast<float>(x), b = static_cast<float>(y), c = static_cast<float>(z);
        if (bits_of(gsc_fma(x, y, z)) != bits_of(std::fma(x, y, z)) ||
            bits_of(static_cast<double>(gsc_fmaf(a, b, c))) !=
                bits_of(static_cast<double>(std::fma(a, b, c))))
            wrong = hex(bits_of(x)) + " * " + hex(bits_of(y)) + " + " + hex(bits_of(z));
    }
    CHECK(wrong == "");
    /* Just below the middle of two floats. */
    CHECK(gsc_fmaf(337, 6372355 * 0x1p-55f, 1 + 0x1p-23f) == 1 + 0x1p-23f);
}
