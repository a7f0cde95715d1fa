// SPDX-License-Identifier: MIT
// Decisions of the fuzzer that are worth a try.
#include "fuzz.hpp"

double Source::number()
{
    static const std::vector<double> ends = numbers(
        "0.5 2 0x1p16 0x1p24 0x1p-14 1e-40 1e39 0x1p-126 1e-45 0x1.fffffep127 1e4 1e-4 "
        "0x1.fffffffffffffp1023 0x1p-1022 4e-324 -1 -0.0 inf 448 65504 nan 0x1.fffffep-127 0.9 "
        "0.999");
    const double unit = static_cast<double>(bits(4)) * 0x1p-32;
    switch (below(8)) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2:
        return std::ldexp(1, static_cast<int>(below(256)) - 128);
    case 3:
        return std::ldexp(1 + unit, static_cast<int>(below(2200)) - 1100);
    case 4:
        return unit;
    case 5:
        return std::ldexp(1 + unit, static_cast<int>(below(32)) - 16);
    case 6:
        return bit_cast<double>(bits(8));
    default:
        return ends[below(ends.size())];
    }
}

std::string random_preset(Source &source)
{
    static const std::vector<std::string> names = preset_names();
    return names[source.below(names.size())];
}
