// SPDX-License-Identifier: MIT
// What the parts of the fuzzer share: an input as a row of decisions, and claims that must hold.
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
    double number();
};

/* A refusal is for any language: no functions and constants of C in its sentence. */
inline bool no_c_names(const gsc_error &err)
{
    return std::strstr(err.message, "gsc_") == nullptr &&
           std::strstr(err.message, "GSC_") == nullptr;
}

std::string random_preset(Source &source);

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
}

/* The parts. `rare` inputs may take long. */
void fuzz_lists(Source &source, bool rare);
void fuzz_states(Source &source);
void fuzz_formats(Source &source);

#endif
