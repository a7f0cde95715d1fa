// SPDX-License-Identifier: MIT
// Every instruction set against plain C, for every kernel: output, largest magnitude and sum of
// squares have the same bits wherever the data lies, and no byte beside it is read or written.
#include <cfloat>
#include <tuple>

#include "lists.hpp"

extern "C" {
#include "cpu/plan.h"
}

namespace {

/* ---- the kernels ---- */

struct Kernel {
    std::string name;
    Dtype in, out; // out.size is 0 for a kernel that only reads
    std::function<gsc_kernel *(const gsc_kernels &)> of;
    bool norm = false, adds = false, counts = false; // counts: what becomes zero, or subnormal
    bool tabled = false;                             // with the table of its multiplier
};

const gsc_kernels &plain_c()
{
    return *sets_here()[0];
}

/* Every kernel that plain C has. */
std::vector<Kernel> all_kernels()
{
    using Set = const gsc_kernels &;
    constexpr Dtype none = {0, 0, "", 0, 0, 0};
    std::vector<Kernel> all;
    for (const Dtype &in : dtypes) {
        const uint32_t i = in.index;
        all.push_back({"check", in, none, [=](Set k) { return k.check[i]; }});
        all.push_back({"norm", in, none, [=](Set k) { return k.norm[i]; }, true});
        if (i <= gsc_f64)
            all.push_back({"clamp", in, in, [=](Set k) { return k.clamp[i]; }});
        for (const Dtype &out : dtypes) {
            const uint32_t o = out.index;
            if (i <= gsc_f64)
                all.push_back({"add", in, out, [=](Set k) { return k.add[i][o]; }, false, true});
            for (uint32_t does = 0; does < 4; does++) {
                const auto unscale = [=](Set k) { return k.unscale[does][i][o]; };
                const bool sums = does & GSC_SUMS, counts = does & GSC_COUNTS;
                if (unscale(plain_c()))
                    all.push_back({"unscale", in, out, unscale, sums, false, counts});
                if (in.size == 1 && i == o)
                    all.push_back(
                        {"unscale by table", in, out, unscale, sums, false, counts, true});
            }
        }
    }
    return all;
}

std::string names(const std::vector<const gsc_kernels *> &sets)
{
    std::string names;
    for (const gsc_kernels *set : sets)
        names += std::string(names.empty() ? "" : ", ") + set->name;
    return names.empty() ? "none" : names;
}

/* Multipliers as the kernels get them: rounded to float, unless the input is f64. */
std::vector<double> multipliers(const Dtype &in)
{
    const double tenth = static_cast<double>(0.1f), large = static_cast<double>(1e30f),
                 largest = static_cast<double>(FLT_MAX);
    if (in.dtype == GSC_F64)
        return {0x1p-16, 0x1p16, 1, tenth, 0x1p-126, large, largest, 0.1, 1e-300, 4e-310, 1e300};
    return {0x1p-16, 0x1p16, 1, tenth, 0x1p-126, 0x1.000002p-126, large, largest};
}

/* ---- where the data lies ---- */

enum class Place { aligned, unaligned, page_end, page_start, in_place };

/* Memory for a block between two pages that nobody may touch. */
class Fenced {
  public:
    explicit Fenced(size_t i) : start(fenced_memory(i))
    {
    }
    /* Room for `bytes`, filled with a mark, as is what lies beside. */
    unsigned char *room(Place place, size_t bytes)
    {
        const size_t before = place == Place::page_end     ? fenced_size - bytes
                              : place == Place::page_start ? 0
                                                           : beside + (place == Place::unaligned);
        unsigned char *at = start + before;
        std::memset(at - front(at), mark, front(at) + bytes + back(at + bytes));
        return at;
    }
    bool marked_outside(const unsigned char *at, size_t bytes) const
    {
        return marked(at - front(at), at) && marked(at + bytes, at + bytes + back(at + bytes));
    }

  private:
    /* Two groups of the widest elements; to look farther would cost more than the kernels. */
    static constexpr size_t beside = 1024;
    size_t front(const unsigned char *at) const
    {
        return std::min(beside, static_cast<size_t>(at - start));
    }
    size_t back(const unsigned char *end) const
    {
        return std::min(beside, static_cast<size_t>(start + fenced_size - end));
    }
    static bool marked(const unsigned char *first, const unsigned char *last)
    {
        const size_t n = static_cast<size_t>(last - first);
        return n == 0 || (*first == mark && std::memcmp(first, first + 1, n - 1) == 0);
    }
    static constexpr unsigned char mark = 0xa5;
    unsigned char *start;
};

/* ---- one call ---- */

/* The largest |bits|, the output, the bits of the sum (0 where the input is not all finite: then it
 * says nothing), the numbers that became zero and subnormal. */
using Result = std::tuple<uint64_t, Bytes, uint64_t, uint64_t, uint64_t>;

Result call(const gsc_kernels &set, const Kernel &op, const Bytes &data, uint64_t n, double m,
            Place place)
{
    static Fenced from(0), to(1);
    const size_t in_bytes = n * op.in.size, out_bytes = n * op.out.size;
    const bool in_place = place == Place::in_place;

    unsigned char *in = from.room(place, in_bytes);
    unsigned char *apart = to.room(place, out_bytes), *out = in_place ? in : apart;
    if (in_bytes)
        std::memcpy(in, data.data(), in_bytes);
    if (op.adds && out_bytes) { // to something else, of all kinds
        Random random = {n};
        for (uint64_t i = 0; i < n; i++)
            write_bits(op.out, out, i, random.next());
    }

    gsc_norm norm = {};
    gsc_table table;
    if (op.tabled) {
        gsc_table_make(&set, op.in.index, m, &table);
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
    const uint64_t most = op.of(set)(in, op.out.size ? out : nullptr, n, m, needed);
    const auto is_input = [&](const void *at) {
        return n == 0 || std::memcmp(at, data.data(), in_bytes) == 0;
    };
    const bool keeps = (op.norm || (norm.keeps_input && set.looks_up)) &&
                       op.in.dtype == op.out.dtype && op.in.size <= 2;
    claim(!keeps || is_input(norm.input), "a kernel keeps its input", op.name);
    claim(from.marked_outside(in, in_bytes) && to.marked_outside(apart, in_place ? 0 : out_bytes) &&
              (in_place || is_input(in)),
          "nothing but the output is written", op.name);
    return {most, Bytes(out, out + out_bytes),
            most < op.in.infinity() ? bit_cast<uint64_t>(norm.sum) : 0, norm.small.zeros,
            norm.small.subnormals};
}

/* ---- the comparison ---- */

/* Returns the bits of one number. */
using Fill = uint64_t (*)(const Dtype &, Random &);

Bytes filled(Fill fill, const Dtype &d, uint64_t n, uint64_t seed)
{
    Random random = {seed};
    Bytes data(n * d.size);
    for (uint64_t i = 0; i < n; i++)
        write_bits(d, data.data(), i, fill(d, random));
    return data;
}

uint64_t random_bits(const Dtype &, Random &random)
{
    return random.next();
}

/* Exponents around 1: sums of squares and products that stay finite. */
uint64_t moderate_value(const Dtype &d, Random &random)
{
    return encode(d, (random.unit() - 0.5) * std::exp2(8 * random.unit()));
}

uint64_t special_value(const Dtype &d, Random &random)
{
    return special_bits(d)[random.next() % special_bits(d).size()];
}

/* As gradients are: zeros among them, here and there another. */
uint64_t mostly_moderate_value(const Dtype &d, Random &random)
{
    const uint64_t which = random.next() % 1024;
    if (which < 4)
        return which % 2 ? d.sign() : 0;
    return which == 4 ? special_value(d, random) : moderate_value(d, random);
}

std::vector<uint64_t> sizes_up_to(uint64_t last)
{
    std::vector<uint64_t> sizes = {127, 128, 129, 191, 192, 193};
    for (uint64_t n = 0; n <= last; n++)
        sizes.push_back(n);
    for (uint64_t n = GSC_BLOCK - 5; n <= GSC_BLOCK; n++)
        sizes.push_back(n);
    return sizes;
}

/* Names the first set and place that differ from plain C on aligned data; empty if none does. */
std::string difference(const Kernel &op, const Bytes &data, uint64_t n, double m,
                       const std::vector<Place> &places = {Place::aligned})
{
    const Result expected = call(plain_c(), op, data, n, m, Place::aligned);
    for (const gsc_kernels *set : sets_here())
        for (Place place : places) {
            if (place == Place::in_place && (op.in.size != op.out.size || op.adds))
                continue;
            if ((set == &plain_c() && place == Place::aligned) ||
                call(*set, op, data, n, m, place) == expected)
                continue;
            std::ostringstream text;
            text << set->name << ": " << op.name << " " << op.in.name << " " << op.out.name
                 << ", n " << n << ", multiplier " << m << ", place " << static_cast<int>(place);
            return text.str();
        }
    return "";
}

std::string first_difference(Fill fill, const std::vector<uint64_t> &sizes,
                             const std::vector<Place> &places)
{
    for (const Kernel &op : all_kernels())
        for (uint64_t n : sizes) {
            if (n > GSC_BLOCK && (op.norm || op.adds || op.in.size > 2 || op.out.size > 2))
                continue;
            Bytes data = filled(fill, op.in, n, n);
            for (uint64_t i = 0; op.adds && i < n; i++) { // which of two NaNs stays is not defined
                const uint64_t bits = read_bits(op.in, data.data(), i);
                if ((bits & ~op.in.sign()) >= op.in.infinity())
                    write_bits(op.in, data.data(), i, bits ^ op.in.infinity());
            }
            /* Where the data lies does not depend on the multiplier. */
            const bool aligned = std::count(places.begin(), places.end(), Place::aligned) > 0;
            for (double m : aligned ? multipliers(op.in) : std::vector<double>{0x1p-16, 1}) {
                const std::string wrong =
                    op.adds && m > 1 ? "" : difference(op, data, n, m, places);
                if (!wrong.empty())
                    return wrong;
            }
        }
    return "";
}

} // namespace

/* For ci/test, which prints this line. */
TEST_CASE("instruction sets", "[.instruction_sets]")
{
    printf("instruction sets tested: %s; this machine lacks: %s\n", names(sets_here()).c_str(),
           names(sets_here(false)).c_str());
}

TEST_CASE("every instruction set gives the bits of plain C for random bits", "[kernels][long]")
{
    CHECK(first_difference(random_bits, sizes_up_to(300), {Place::aligned}) == "");
}

TEST_CASE(
    "every set gives the bits of plain C wherever the data lies, and touches nothing beside it",
    "[kernels]")
{
    const std::vector<uint64_t> small = sizes_up_to(70),
                                large = {255,           256,           257,       319,
                                         320,           511,           512,       575,
                                         700,           1024,          3000,      GSC_BLOCK - 9,
                                         GSC_BLOCK - 6, GSC_BLOCK - 3, GSC_BLOCK, 2 * GSC_BLOCK - 1,
                                         2 * GSC_BLOCK};
    const std::vector<Place> aligned = {Place::aligned};
    CHECK(first_difference(moderate_value, small, aligned) == "");
    CHECK(first_difference(special_value, small, aligned) == "");
    CHECK(first_difference(mostly_moderate_value, large, {Place::aligned, Place::in_place}) == "");
    CHECK(first_difference(random_bits, small,
                           {Place::unaligned, Place::page_end, Place::page_start}) == "");
    CHECK(first_difference(random_bits, small, {Place::in_place}) == "");
}

TEST_CASE("every instruction set gives the bits of plain C for all narrow values", "[kernels]")
{
    for (const Kernel &op : all_kernels()) {
        const uint64_t patterns = op.in.size > 2 ? 0 : uint64_t{1} << 8 * op.in.size;
        for (uint64_t first = 0; first < patterns; first += GSC_BLOCK) {
            Bytes data(GSC_BLOCK * op.in.size);
            for (uint64_t i = 0; i < GSC_BLOCK; i++)
                write_bits(op.in, data.data(), i, first + i);
            for (double m : multipliers(op.in))
                CHECK(difference(op, data, GSC_BLOCK, m) == "");
        }
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
                    CHECK(difference(op, data, data.size(),
                                     static_cast<double>(gsc_float(exponent << 23 | mantissa))) ==
                          "");
    }
}
