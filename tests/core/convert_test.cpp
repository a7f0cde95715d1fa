// SPDX-License-Identifier: MIT
// The conversions of plain C, with a multiplier of 1, against arithmetic that shares nothing with
// them: exact values by ldexp, and the nearest one by looking for it among all.
#include "cpu/fma.h"
#include "support.hpp"

namespace {

/* Bits of one dtype in another, by the kernel of plain C that multiplies by 1, or two of them. */
std::vector<uint64_t> converted(const Dtype &in, const Dtype &out,
                                const std::vector<uint64_t> &values)
{
    bool runs;
    gsc_kernel *kernel = gsc_kernels_rung(0, &runs)->unscale[0][in.index][out.index];
    if (!kernel)
        return converted(f32, out, converted(in, f32, values));
    Bytes from(values.size() * in.size), to(values.size() * out.size);
    for (uint64_t i = 0; i < values.size(); i++)
        write_bits(in, from.data(), i, values[i]);
    for (uint64_t i = 0; i < values.size(); i += GSC_BLOCK)
        kernel(&from[i * in.size], &to[i * out.size],
               std::min<uint64_t>(GSC_BLOCK, values.size() - i), 1.0, nullptr);
    std::vector<uint64_t> results;
    for (uint64_t i = 0; i < values.size(); i++)
        results.push_back(read_bits(out, to.data(), i));
    return results;
}

std::vector<uint64_t> all_bits(const Dtype &d)
{
    std::vector<uint64_t> all;
    for (uint64_t bits = 0; bits < 2 * d.sign(); bits++)
        all.push_back(bits);
    return all;
}

/* The first conversion that gives neither the nearest value nor the NaN with the same sign and
 * upper payload, in words; empty if none does. */
std::string wrong_conversion(const Dtype &in, const Dtype &out, const std::vector<uint64_t> &values)
{
    const std::vector<uint64_t> results = converted(in, out, values);
    for (uint64_t i = 0; i < values.size(); i++) {
        const uint64_t expected = is_nan(in, values[i]) ? convert_nan(in, out, values[i])
                                                        : encode(out, decode(in, values[i]));
        if (results[i] != expected)
            return std::string(in.name) + " " + hex(values[i]) + " to " + out.name + ": " +
                   hex(results[i]) + ", not " + hex(expected);
    }
    return "";
}

const std::vector<Dtype> wides = {f32, f64}, narrows(dtypes + 2, std::end(dtypes));

} // namespace

TEST_CASE("a conversion gives the nearest value, a tie the even one, or the NaN, quiet",
          "[convert]")
{
    for (const Dtype &narrow : narrows)
        for (const Dtype &wide : wides) {
            CHECK(wrong_conversion(narrow, wide, all_bits(narrow)) == "");
            Random random = {narrow.size + wide.size};
            const std::vector<double> &exact = narrow_values(narrow);
            std::vector<uint64_t> values;
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
            CHECK(wrong_conversion(wide, narrow, values) == "");
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
            CHECK(wrong_conversion(in, out, nans) == "");
        }
}

namespace {

double double_of(uint64_t bits)
{
    return bit_cast<double>(bits);
}

uint64_t bits_of(double x)
{
    return x != x ? UINT64_C(0x7ff8) << 48 : bit_cast<uint64_t>(x);
}

/* Of any size; near 1; subnormal; so small that products vanish; a limit. */
double any_double(Random &random)
{
    static const double limits[] = {0.0, -0.0,      1.0,       INFINITY, -INFINITY,
                                    NAN, 0x1p-1074, 0x1p-1022, 0x1p-537, 0x1.fffffffffffffp1023};
    const uint64_t bits = random.next(), rest = bits & ~(UINT64_C(0x7ff) << 52);
    switch (random.next() % 5) {
    case 0:
        return double_of(bits);
    case 1:
        return double_of(rest | (963 + random.next() % 120) << 52);
    case 2:
        return double_of((bits & UINT64_C(1) << 63) | random.next() >> (12 + random.next() % 50));
    case 3:
        return double_of(rest | (450 + random.next() % 100) << 52);
    default:
        return limits[random.next() % (sizeof limits / sizeof *limits)];
    }
}
} // namespace

TEST_CASE("fma.h rounds once, as the machine's own fma does", "[convert]")
{
    Random random{1};
    std::string wrong;
    for (int i = 0; i < 2000000 && wrong.empty(); i++) {
        const double x = any_double(random), y = any_double(random);
        /* Or all but cancels the product. */
        const double z = random.next() % 4
                             ? any_double(random)
                             : double_of(bit_cast<uint64_t>(-x * y) + random.next() % 5 - 2);
        if (bits_of(gsc_fma(x, y, z)) != bits_of(std::fma(x, y, z)))
            wrong = hex(bits_of(x)) + " * " + hex(bits_of(y)) + " + " + hex(bits_of(z));
        const float a = static_cast<float>(x), b = static_cast<float>(y), c = static_cast<float>(z);
        if (bits_of(static_cast<double>(gsc_fmaf(a, b, c))) !=
            bits_of(static_cast<double>(std::fma(a, b, c))))
            wrong = "float " + hex(bits_of(static_cast<double>(a))) + " * " +
                    hex(bits_of(static_cast<double>(b))) + " + " +
                    hex(bits_of(static_cast<double>(c)));
    }
    CHECK(wrong == "");
}
