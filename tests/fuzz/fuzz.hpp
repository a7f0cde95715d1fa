// SPDX-License-Identifier: MIT
// What the parts of the fuzzer share: an input as a row of decisions, and claims that must hold.
#ifndef GSC_TESTS_FUZZ_HPP
#define GSC_TESTS_FUZZ_HPP

#include <functional>

#include "core/support.hpp"

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

/* What is under test, in words, while it is; set by the parts, printed with a broken claim. */
extern std::function<std::string()> describe;

[[noreturn]] void broken(const char *claim, const std::string &details);

inline void claim(bool holds, const char *text, const std::string &details = "")
{
    if (!holds)
        broken(text, details);
}

/* The words of a struct, for a message. */
template <class T> std::string words_of(const T &object)
{
    uint64_t words[sizeof object / 8];
    std::string text;
    std::memcpy(words, &object, sizeof words);
    for (const uint64_t word : words)
        text += hex(word) + " ";
    return text + "\n";
}

/* A refusal is for any language: no functions and constants of C in its sentence. */
inline bool no_c_names(const gsc_error &err)
{
    return std::strstr(err.message, "gsc_") == nullptr &&
           std::strstr(err.message, "GSC_") == nullptr;
}

const char *random_preset(Source &source);

/* The parts. `rare` inputs may take long. */
void fuzz_lists(Source &source, bool rare);
void fuzz_states(Source &source);
void fuzz_formats(Source &source);

#endif
