// SPDX-License-Identifier: MIT
// One input of the fuzzer, and two ways to get inputs: libFuzzer, or random bytes from a driver of
// its own, `fuzz [SECONDS [SEED]]`, for compilers without it.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Source source = {data, data + size};
    /* By a sum over all bytes: an input that takes long must not have offspring that all do. */
    Random hash = {size};
    for (size_t i = 0; i < size; i++)
        hash.state = hash.next() + data[i];
    describe = nullptr;
    const uint64_t part = source.below(8);
    if (part < 2)
        fuzz_states(source);
    else if (part == 2)
        fuzz_formats(source);
    else
        fuzz_lists(source, hash.next() % 512 == 0);
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
        const Bytes input = input_of(seed);
        LLVMFuzzerTestOneInput(input.data(), input.size());
        seed++, runs++;
    } while (passed() < seconds);
    std::printf("%llu inputs in %.0f s on %s: nothing found\n",
                static_cast<unsigned long long>(runs), passed(), gsc_cpu_available());
    return 0;
}
#endif
