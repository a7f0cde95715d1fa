// SPDX-License-Identifier: MIT
// One input of the fuzzer, and two ways to get inputs: libFuzzer, or random bytes from a driver of
// its own, `fuzz [SECONDS [SEED]]`, for compilers without it.
#include <cfloat>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "fuzz.hpp"

std::function<std::string()> describe;

double Source::number()
{
    static const double ends[] = {0.5,     2,
                                  0x1p16,  0x1p24,
                                  0x1p-14, 1e-40,
                                  1e39,    0x1p-126,
                                  1e-45,   0x1.fffffep127,
                                  1e4,     1e-4,
                                  DBL_MAX, DBL_MIN,
                                  4e-324,  -1,
                                  -0.0,    HUGE_VAL,
                                  448,     65504,
                                  NAN,     0x1.fffffep-127,
                                  0.9,     0.999};
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
        return ends[below(std::size(ends))];
    }
}

void broken(const char *claim, const std::string &details)
{
    std::fprintf(stderr, "broken: %s\n%s\n%s\n", claim, details.c_str(),
                 describe ? describe().c_str() : "");
    std::abort();
}

const char *random_preset(Source &source)
{
    static const uint64_t presets = [] {
        uint32_t count = 0;
        while (gsc_preset_name(count))
            count++;
        return count;
    }();
    return gsc_preset_name(static_cast<uint32_t>(source.below(presets)));
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Source source = {data, data + size};
    /* By a sum over all bytes: an input that takes long must not have offspring that all do. */
    Random hash = {size};
    for (size_t i = 0; i < size; i++)
        hash.state = hash.next() + data[i];
    describe = nullptr;
    switch (source.below(8)) {
    case 0:
    case 1:
        fuzz_states(source);
        break;
    case 2:
        fuzz_formats(source);
        break;
    default:
        fuzz_lists(source, hash.next() % 512 == 0);
    }
    return 0;
}

#ifndef GSC_LIBFUZZER
namespace {

unsigned long long seed = 1;

void on_crash(int)
{
    std::fprintf(stderr, "again: fuzz 0 %llu\n", seed);
    std::_Exit(1);
}

} // namespace

/* So that a report of theirs ends in on_crash. */
extern "C" {
const char *__asan_default_options();
const char *__ubsan_default_options();
const char *__asan_default_options()
{
    return "abort_on_error=1";
}
const char *__ubsan_default_options()
{
    return __asan_default_options();
}
}

int main(int argc, char **argv)
{
    const double seconds = argc > 1 ? std::strtod(argv[1], nullptr) : 10;
    if (argc > 2)
        seed = std::strtoull(argv[2], nullptr, 10);
    std::signal(SIGABRT, on_crash);
    if (const auto sanitizer = std::signal(SIGSEGV, on_crash); sanitizer != SIG_DFL)
        std::signal(SIGSEGV, sanitizer);
    const auto start = std::chrono::steady_clock::now();
    const auto passed = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    uint64_t runs = 0;
    do {
        Random random = {seed};
        Bytes input(random.next() % 1024);
        for (unsigned char &byte : input)
            byte = static_cast<unsigned char>(random.next());
        LLVMFuzzerTestOneInput(input.data(), input.size());
        seed++, runs++;
    } while (passed() < seconds);
    std::printf("%llu inputs in %.0f s on %s: nothing found\n",
                static_cast<unsigned long long>(runs), passed(), gsc_cpu_available());
    return 0;
}
#endif
