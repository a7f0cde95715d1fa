// SPDX-License-Identifier: MIT
// Shared by the parts of the fuzzer: an input as a row of decisions, and claims that must hold.
#ifndef GSC_TESTS_FUZZ_HPP
#define GSC_TESTS_FUZZ_HPP

#include "../core/support.hpp"

/* The bytes of an input, read as decisions; zeros when they are used up. */
struct Source {
    const uint8_t *at, *end;

    uint64_t bits(int bytes)
    {
        uint64_t value = 0;
        while (bytes-- > 0)
            value = value << 8 | (at < end ? *at++ : 0);
        return value;
    }
    uint64_t below(uint64_t n)
    {
        return bits(n <= 256 ? 1 : n <= 65536 ? 2 : 8) % n;
    }
    bool one_in(uint64_t n)
    {
        return below(n) == n - 1;
    }
    /* Any double, but mostly one that is worth a try. */
    double number()
    {
        static const std::vector<double> ends = numbers(
            "0.5 2 0x1p16 0x1p24 0x1p-14 1e-40 1e39 0x1p-126 1e-45 0x1.fffffep127 1e4 1e-4 "
            "0x1.fffffffffffffp1023 0x1p-1022 4e-324 -1 -0.0 inf 448 65504 nan 0x1.fffffep-127 0.9 "
            "0.999");
        const double unit = static_cast<double>(bits(4)) * 0x1p-32;
        const uint64_t kind = below(8);
        return kind == 0   ? 0
               : kind == 1 ? 1
               : kind == 2 ? std::ldexp(1, static_cast<int>(below(256)) - 128)
               : kind == 3 ? std::ldexp(1 + unit, static_cast<int>(below(2200)) - 1100)
               : kind == 4 ? unit
               : kind == 5 ? std::ldexp(1 + unit, static_cast<int>(below(32)) - 16)
               : kind == 6 ? bit_cast<double>(bits(8))
                           : ends[below(ends.size())];
    }
};

inline std::string random_preset(Source &source)
{
    static const std::vector<std::string> names = preset_names();
    return names[source.below(names.size())];
}

struct Format {
    const char *name;
    bool saves;
    std::vector<std::string> keys; /* of its checkpoints and settings */
};
const std::vector<Format> &formats();

/* The input of a seed. */
inline Bytes input_of(uint64_t seed)
{
    Random random = {seed};
    Bytes input(random.next() % 1024);
    for (unsigned char &byte : input)
        byte = static_cast<unsigned char>(random.next());
    return input;
}

/* Inputs for a test. */
template <class Part> void for_seeds(uint64_t seeds, Part part)
{
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        const Bytes input = input_of(seed);
        Source source = {input.data(), input.data() + input.size()};
        part(source);
    }
    describe = nullptr;
}

/* The parts. `rare` inputs may take long. */
void fuzz_lists(Source &source, bool rare);
void fuzz_states(Source &source);
void fuzz_formats(Source &source);

#endif
