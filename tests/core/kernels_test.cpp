// SPDX-License-Identifier: MIT
// Every rung against plain C, for every kernel of the list: output, largest magnitude and sum of
// squares have the same bits, and no byte beside the data is read or written.
#include <tuple>

#include "lists.hpp"

extern "C" {
#include "cpu/plan.h"
}

namespace {

struct Kernel {
    std::string name;
    Dtype in, out; // out.size is 0 for a kernel that only reads
    std::function<gsc_kernel *(const gsc_kernels &)> of;
    bool norm = false, counts = false; // counts: what becomes zero, or subnormal
    bool tabled = false, adds = false; // tabled: with the table of its multiplier
};

const gsc_kernels &plain_c()
{
    return *rungs_here()[0];
}

/* Every kernel that plain C has. */
std::vector<Kernel> all_kernels()
{
    using Rung = const gsc_kernels &;
    constexpr Dtype none = {0, 0, "", 0, 0, 0};
    std::vector<Kernel> all;
    for (const Dtype &in : dtypes) {
        const uint32_t i = in.index;
        all.push_back({"check", in, none, [=](Rung k) { return k.check[i]; }});
        all.push_back({"norm", in, none, [=](Rung k) { return k.norm[i]; }, true});
        if (i <= gsc_f64)
            all.push_back({"clamp", in, in, [=](Rung k) { return k.clamp[i]; }});
        for (const Dtype &out : dtypes) {
            const uint32_t o = out.index;
            const auto add = [=](Rung k) { return k.add[i][o]; };
            if (i <= gsc_f64)
                all.push_back({"add", in, out, add, false, false, false, true});
            for (uint32_t does = 0; does < 4; does++) {
                const auto unscale = [=](Rung k) { return k.unscale[does][i][o]; };
                const bool sums = does & GSC_SUMS, counts = does & GSC_COUNTS;
                if (unscale(plain_c()))
                    all.push_back({"unscale", in, out, unscale, sums, counts});
                if (in.size == 1 && i == o)
                    all.push_back({"unscale by table", in, out, unscale, sums, counts, true});
            }
        }
    }
    return all;
}

std::string names(const std::vector<const gsc_kernels *> &rungs)
{
    std::string names;
    for (const gsc_kernels *rung : rungs)
        names += std::string(names.empty() ? "" : ", ") + rung->name;
    return names.empty() ? "none" : names;
}

/* The largest |bits|, the output, the bits of the sum (0 where the input is not all finite: then it
 * says nothing), the numbers that became zero and subnormal. */
using Result = std::tuple<uint64_t, Bytes, uint64_t, uint64_t, uint64_t>;

Result call(const gsc_kernels &rung, const Kernel &op, const Bytes &data, double m,
            bool at_start = false)
{
    const uint64_t n = data.size() / op.in.size;
    /* Each begins or ends at a fence, and has a mark on the other side. */
    const Bytes mark(64, 0xa5), filled(n * op.out.size, 0x3b);
    const auto beside = [&](unsigned char *at, const Bytes &bytes) {
        return at_start ? at + bytes.size() : at - mark.size();
    };
    const auto place = [&](size_t i, const Bytes &bytes) {
        unsigned char *at = fenced_memory(i) + (at_start ? 0 : fenced_size - bytes.size());
        std::copy(mark.begin(), mark.end(), beside(at, bytes));
        std::copy(bytes.begin(), bytes.end(), at);
        return at;
    };
    unsigned char *in = place(0, data), *out = place(1, filled);
    gsc_norm norm = {};
    gsc_table table;
    if (op.tabled) {
        gsc_table_make(&rung, op.in.index, m, &table);
        norm.table = &table;
        norm.keeps_input = n % 2 == 1;
    }
    if (op.counts) {
        gsc_small &small = norm.small;
        small.not_zero = gsc_threshold(op.in.index, op.out.index, 1, m);
        small.normal = gsc_threshold(op.in.index, op.out.index, op.out.normal(), m);
        small.least = std::min(std::max(small.not_zero, op.in.normal()), small.normal);
    }
    gsc_norm *needed = op.norm || op.tabled || op.counts ? &norm : nullptr;
    const uint64_t most = op.of(rung)(in, op.out.size ? out : nullptr, n, m, needed);
    const bool keeps = (op.norm || (norm.keeps_input && rung.looks_up)) &&
                       op.in.dtype == op.out.dtype && op.in.size <= 2;
    const auto holds = [](const void *at, const Bytes &bytes) {
        return bytes.empty() || std::memcmp(at, bytes.data(), bytes.size()) == 0;
    };
    claim(holds(in, data) && (!keeps || holds(norm.input, data)), "a kernel keeps its input",
          op.name);
    claim(holds(beside(in, data), mark) && holds(beside(out, filled), mark),
          "nothing beside is written", op.name);
    return {most, Bytes(out, out + filled.size()),
            most < op.in.infinity() ? bit_cast<uint64_t>(norm.sum) : 0, norm.small.zeros,
            norm.small.subnormals};
}

/* Names the first rung that differs from plain C; empty if none does. */
std::string difference(const Kernel &op, const Bytes &data, double m, bool at_start = false)
{
    const Result expected = call(plain_c(), op, data, m, at_start);
    for (const gsc_kernels *rung : rungs_here())
        if (call(*rung, op, data, m, at_start) != expected)
            return std::string(rung->name) + ": " + op.name + " " + op.in.name + " " + op.out.name +
                   ", multiplier " + std::to_string(m);
    return "";
}

} // namespace

/* For ci/test, which prints this line. */
TEST_CASE("instruction sets", "[.instruction_sets]")
{
    printf("instruction sets tested: %s; this machine lacks: %s\n", names(rungs_here()).c_str(),
           names(rungs_here(false)).c_str());
}

TEST_CASE("every rung gives the bits of plain C for any number of random bits", "[kernels]")
{
    Random random = {1};
    for (const Kernel &op : all_kernels())
        for (uint64_t n = 0; n <= 200; n++) {
            Bytes data(n * op.in.size);
            for (uint64_t i = 0; i < n; i++) {
                const uint64_t bits = random.next();
                const bool is_bad = (bits & (op.in.sign() - 1)) >= op.in.infinity();
                /* Which of two NaNs stays in a sum is not defined. */
                write_bits(op.in, data.data(), i,
                           op.adds && is_bad ? bits ^ op.in.infinity() : bits);
            }
            for (bool at_start : {false, true})
                CHECK(difference(op, data, at_start ? 1 : 0x1p-16, at_start) == "");
        }
}

TEST_CASE("every rung gives the bits of plain C for all narrow values", "[kernels]")
{
    const float multipliers[] = {0x1p-16f,  0x1p16f,          1,     0.1f,
                                 0x1p-126f, 0x1.000002p-126f, 1e30f, FLT_MAX};
    for (const Kernel &op : all_kernels())
        for (uint64_t first = 0; op.in.size <= 2 && first < uint64_t{1} << 8 * op.in.size;
             first += GSC_BLOCK) {
            Bytes data(GSC_BLOCK * op.in.size);
            for (uint64_t i = 0; i < GSC_BLOCK; i++)
                write_bits(op.in, data.data(), i, first + i);
            for (float m : multipliers)
                CHECK(difference(op, data, static_cast<double>(m)) == "");
        }
}

TEST_CASE("a table has the products of any multiplier", "[kernels]")
{
    Random random = {5};
    for (const Kernel &op : all_kernels()) {
        Bytes all(256), finite;
        for (uint64_t i = 0; i < 256; i++)
            all[i] = static_cast<unsigned char>(i);
        std::copy_if(all.begin(), all.end(), std::back_inserter(finite),
                     [&](unsigned char x) { return (x & 0x7fu) < op.in.infinity(); });
        for (uint32_t exponent = 1; op.tabled && exponent < 255; exponent++)
            for (uint32_t mantissa : {0u, 1u, 0x0fffffu, 0x100000u, 0x100001u, 0x400000u, 0x7fffffu,
                                      static_cast<uint32_t>(random.next() % 0x800000)})
                for (const Bytes &data : {all, finite})
                    CHECK(difference(op, data,
                                     static_cast<double>(gsc_float(exponent << 23 | mantissa))) ==
                          "");
    }
}
