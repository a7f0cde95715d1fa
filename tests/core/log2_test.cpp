// SPDX-License-Identifier: MIT
// The core's own log2 and exp2, by which policies predict: near to log2l and exp2l everywhere,
// exact where the result is, and never falling where their argument grows.
#include "support.hpp"

extern "C" {
#include "log2.h"
}

namespace {

/* Units in the last place of the exact value by which a double is off. */
double error_in_ulps(double result, long double exact)
{
    const int exponent = std::max(std::ilogb(exact), -1022);
    const long double error =
        (static_cast<long double>(result) - exact) * std::exp2(52.0L - exponent);
    return std::fabs(static_cast<double>(error));
}

/* Returns a number of either sign: of any magnitude, or close to one of `places`. */
double around(Random &random, const std::vector<double> &places)
{
    const double place = places[random.next() % places.size()];
    const int exponent = -static_cast<int>(random.next() % 54);
    const double distance = std::ldexp(random.unit() - 0.5, exponent);
    return place * (1 + distance);
}

const std::vector<double> log2_places = numbers(
                              "1 0x1.6a09e667f3bcdp0 0x1.6a09e667f3bcdp-1 2 3 0.1 0x1p-1022 "
                              "0x1p-1060 0x1p-149 0x1p-24 65504 1e38 1e300"),
                          exp2_places = numbers("1 0.5 1.5 -0.5 0x1p-30 -0x1p-30 10.5 -13.25 126 "
                                                "-126 1023.4 -1021.9 -1040 -1073 700");

} // namespace

TEST_CASE("log2 and exp2 are off by hardly more than one unit in the last place, and monotonic",
          "[policy][arithmetic]")
{
    Random random = {1};
    double worst_log2 = 0, worst_exp2 = 0;
    for (int i = 0; i < 1000000; i++) {
        const double x = around(random, log2_places), y = around(random, exp2_places);
        const double above_x = std::nextafter(x, HUGE_VAL), above_y = std::nextafter(y, HUGE_VAL);
        if (gsc_log2(above_x) < gsc_log2(x) || gsc_exp2(above_y) < gsc_exp2(y))
            FAIL(hex(bit_cast<uint64_t>(x)) << " or " << hex(bit_cast<uint64_t>(y)));
        if (x != 1)
            worst_log2 = std::max(
                worst_log2, error_in_ulps(gsc_log2(x), std::log2(static_cast<long double>(x))));
        if (y < 1024)
            worst_exp2 = std::max(
                worst_exp2, error_in_ulps(gsc_exp2(y), std::exp2(static_cast<long double>(y))));
    }
    CHECK(worst_log2 < 1.01);
    CHECK(worst_exp2 < 1.01);
}

TEST_CASE("log2 and exp2 are exact where the result is a whole number or a power of two",
          "[policy]")
{
    for (int n = -1074; n <= 1023; n++) {
        CAPTURE(n);
        CHECK(gsc_log2(std::ldexp(1, n)) == n);
        CHECK(gsc_exp2(n) == std::ldexp(1, n));
    }
    CHECK(gsc_exp2(-0.0) == 1);
    for (double x : {1024.0, 1100.0, 1e300, HUGE_VAL})
        CHECK(gsc_exp2(x) == HUGE_VAL);
    for (double x : {-1080.0, -1e300, -HUGE_VAL})
        CHECK(gsc_exp2(x) == 0);
}
