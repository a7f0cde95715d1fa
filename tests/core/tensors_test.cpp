// SPDX-License-Identifier: MIT
// gsc_check, gsc_unscale and gsc_scale: every output bit and every member of the report against
// one naive loop over exact values, whatever the sizes, dtypes, threads and floating-point modes.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cfloat>
#include <iomanip>
#include <memory>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "support.hpp"

namespace {

constexpr uint32_t want_all = 63;
constexpr double infinity = HUGE_VAL, nan_value = std::numeric_limits<double>::quiet_NaN();

/* ---- lists of tensors ---- */

/* Tensors with the memory that they lie in, every second one at an odd address. */
class Tensors {
  public:
    Tensors() = default;
    Tensors(Tensors &&) = default;
    Tensors &operator=(Tensors &&) = default;

    /* `count` zeros. */
    void add(const Dtype &d, uint64_t count)
    {
        const bool odd = memory.size() % 2 == 1;
        memory.emplace_back(count * d.size + odd);
        list.push_back({count ? memory.back().data() + odd : nullptr, count, d.dtype, 0});
    }
    void add_bits(const Dtype &d, const std::vector<uint64_t> &bits)
    {
        add(d, bits.size());
        for (uint64_t i = 0; i < bits.size(); i++)
            write_bits(d, at(list.size() - 1), i, bits[i]);
    }
    void add_values(const Dtype &d, const std::vector<double> &values)
    {
        std::vector<uint64_t> bits;
        for (double x : values)
            bits.push_back(std::isnan(x) ? d.infinity() | d.normal() >> 1 : encode(d, x));
        add_bits(d, bits);
    }
    /* Zeros of other dtypes, or of one other dtype. */
    Tensors like(const std::vector<Dtype> &types) const
    {
        Tensors other;
        for (uint64_t i = 0; i < list.size(); i++)
            other.add(types[i % types.size()], list[i].count);
        return other;
    }
    Tensors copy() const
    {
        Tensors other;
        for (uint64_t i = 0; i < list.size(); i++) {
            other.add(type(i), list[i].count);
            if (list[i].count)
                std::memcpy(other.at(i), at(i), list[i].count * type(i).size);
        }
        return other;
    }
    /* The same memory seen as other dtypes of the same size. */
    std::vector<gsc_tensor> seen_as(const Tensors &other) const
    {
        std::vector<gsc_tensor> seen = list;
        for (uint64_t i = 0; i < list.size(); i++)
            seen[i].dtype = other.list[i].dtype;
        return seen;
    }
    const Dtype &type(uint64_t i) const
    {
        return real(list[i].dtype);
    }
    unsigned char *at(uint64_t i) const
    {
        return static_cast<unsigned char *>(list[i].data);
    }
    uint64_t bits(uint64_t i, uint64_t element) const
    {
        return read_bits(type(i), at(i), element);
    }
    double value(uint64_t i, uint64_t element) const
    {
        return decode(type(i), bits(i, element));
    }
    const gsc_tensor *data() const
    {
        return list.data();
    }
    uint64_t size() const
    {
        return list.size();
    }

  private:
    std::vector<Bytes> memory;
    std::vector<gsc_tensor> list;
};

/* The first tensor and element that differ, in words; empty if none does. */
std::string difference(const Tensors &results, const Tensors &expected)
{
    for (uint64_t i = 0; i < expected.size(); i++)
        for (uint64_t j = 0; j < expected.data()[i].count; j++)
            if (results.bits(i, j) != expected.bits(i, j))
                return "tensor " + std::to_string(i) + " (" + expected.type(i).name + ") element " +
                       std::to_string(j) + ": " + hex(results.bits(i, j)) + ", not " +
                       hex(expected.bits(i, j));
    return "";
}

/* ---- what the numerics say, one element after the other ---- */

/* Lane j takes lane j + 32, then j + 16, ...: the sum of every lane that j has taken. */
double fold(const double *lanes, unsigned j, unsigned step)
{
    return step == 64 ? lanes[j] : fold(lanes, j, 2 * step) + fold(lanes, j + step, 2 * step);
}

template <class Lane> double sum_in_lanes(const double *products, uint64_t n)
{
    double sums[64];
    for (uint64_t j = 0; j < 64; j++) {
        Lane lane = 0;
        for (uint64_t i = j; i < n; i += 64)
            if (const Lane x = static_cast<Lane>(products[i]); std::isfinite(x))
                lane = std::fma(x, x, lane);
        sums[j] = static_cast<double>(lane);
    }
    return fold(sums, 0, 1);
}

/* Of one tensor: blocks within chunks within the tensor, each in order. */
double sum_of_squares(const std::vector<double> &products, bool in_float)
{
    double tensor = 0;
    for (uint64_t chunk = 0; chunk < products.size(); chunk += 65536) {
        double sum = 0;
        const uint64_t end = std::min<uint64_t>(chunk + 65536, products.size());
        for (uint64_t i = chunk; i < end; i += 4096) {
            const uint64_t n = std::min<uint64_t>(4096, end - i);
            double block = in_float ? sum_in_lanes<float>(&products[i], n) : 0;
            if (!in_float || !std::isfinite(block) || block < 0x1p-80)
                block = sum_in_lanes<double>(&products[i], n);
            sum += block;
        }
        tensor += sum;
    }
    return tensor;
}

struct Expected {
    Tensors out;
    gsc_report report;
};

/* Outputs and report of everything wanted. */
Expected expected(const Tensors &in, const std::vector<Dtype> &out_types, double multiplier)
{
    Expected e = {in.like(out_types), {}};
    gsc_report &r = e.report;
    const bool normal = std::isnormal(static_cast<float>(multiplier));
    for (uint64_t t = 0; t < in.size(); t++) {
        const Dtype &from = in.type(t), &to = e.out.type(t);
        const bool in_float = from.dtype != GSC_F64 && normal;
        const double m =
            in_float ? static_cast<double>(static_cast<float>(multiplier)) : multiplier;
        const bool copied = m == 1.0 && from.dtype == to.dtype;
        std::vector<double> products(in.data()[t].count);
        for (uint64_t i = 0; i < products.size(); i++) {
            const uint64_t before = in.bits(t, i);
            const bool nan = is_nan(from, before);
            const double x = in.value(t, i);
            products[i] = in_float
                              ? static_cast<double>(static_cast<float>(x) * static_cast<float>(m))
                              : x * m;
            const uint64_t after = copied ? before
                                   : nan  ? convert_nan(from, to, before)
                                          : encode(to, products[i]);
            write_bits(to, e.out.at(t), i, after);

            const double y = decode(to, after), smallest = decode(to, to.normal());
            const bool was_subnormal = x != 0 && std::fabs(x) < decode(from, from.normal());
            r.elements++;
            r.nan_count += nan;
            r.inf_count += !nan && !std::isfinite(y);
            r.zeros_made += y == 0 && x != 0;
            r.subnormals_made += y != 0 && std::fabs(y) < smallest && !was_subnormal;
            if (std::isfinite(products[i]))
                r.amax = std::max(r.amax, std::fabs(products[i]));
            if (!std::isfinite(y) && r.first_bad == 0)
                r.first_bad = INT64_MIN + static_cast<int64_t>(t << 40 | i);
            r.histogram_elements += i % 65536 < 4096;
            if (i % 65536 < 4096 && std::isfinite(products[i]) && products[i] != 0)
                r.histogram[std::clamp((std::ilogb(products[i]) + 48) >> 2, 0, 15)]++;
        }
        r.sum_squares += sum_of_squares(products, in_float);
    }
    r.overflow = r.nan_count + r.inf_count > 0;
    r.found_inf = static_cast<float>(r.overflow);
    return e;
}

/* The same report where less was wanted. */
gsc_report only(uint32_t want, gsc_report r)
{
    r.absent = want_all & ~want;
    if (r.absent & GSC_WANT_COUNTS)
        r.nan_count = r.inf_count = 0;
    if (r.absent & GSC_WANT_FIRST_BAD)
        r.first_bad = 0;
    if (r.absent & GSC_WANT_NORM)
        r.sum_squares = 0;
    if (r.absent & GSC_WANT_AMAX)
        r.amax = 0;
    if (r.absent & GSC_WANT_UNDERFLOW)
        r.zeros_made = r.subnormals_made = 0;
    if (r.absent & GSC_WANT_HISTOGRAM) {
        r.histogram_elements = 0;
        std::fill(std::begin(r.histogram), std::end(r.histogram), 0);
    }
    return r;
}

std::string text(const gsc_report &r)
{
    std::ostringstream s;
    s << std::setprecision(17) << "found_inf " << r.found_inf << " overflow " << r.overflow
      << " nan " << r.nan_count << " inf " << r.inf_count << " first ";
    if (r.first_bad)
        s << GSC_BAD_TENSOR(r.first_bad) << ":" << GSC_BAD_ELEMENT(r.first_bad);
    s << " zeros " << r.zeros_made << " subnormals " << r.subnormals_made << " amax " << r.amax
      << " squares " << r.sum_squares << " elements " << r.elements << " absent " << r.absent
      << " histogram " << r.histogram_elements << ":";
    for (int64_t bin : r.histogram)
        s << " " << bin;
    return s.str();
}

std::string difference(const gsc_report &report, const gsc_report &expected_report)
{
    if (same(report, expected_report))
        return "";
    return text(report) + ", not " + text(expected_report);
}

/* ---- calls ---- */

gsc_factor factor_of(double scale)
{
    gsc_factor factor;
    REQUIRE(gsc_factor_init(scale, &factor, nullptr) == GSC_OK);
    return factor;
}

/* Full of a mark, so that what a call leaves out shows. */
gsc_report marked_report()
{
    gsc_report report;
    std::memset(&report, 0x5a, sizeof report);
    return report;
}

gsc_report check(const gsc_exec *on, double scale, const Tensors &in, uint32_t want = want_all)
{
    const gsc_factor factor = factor_of(scale);
    gsc_report report = marked_report();
    CHECK(gsc_check(on, &factor, in.data(), in.size(), want, &report, nullptr) == GSC_OK);
    return report;
}

gsc_report unscale(const gsc_exec *on, double scale, const Tensors &in, const gsc_tensor *out,
                   uint32_t want = want_all)
{
    const gsc_factor factor = factor_of(scale);
    gsc_report report = marked_report();
    CHECK(gsc_unscale(on, &factor, in.data(), out, in.size(), want, &report, nullptr) == GSC_OK);
    return report;
}

/* Unscale into `types`, in place too where the sizes allow it, and check where they are the same.
 */
std::string wrong_unscale(const Tensors &in, const std::vector<Dtype> &types, double scale,
                          uint32_t want)
{
    const Expected e = expected(in, types, 1 / scale);
    const gsc_report report = only(want, e.report);
    bool same_sizes = true, same_types = true;
    for (uint64_t i = 0; i < in.size(); i++) {
        same_sizes &= in.type(i).size == e.out.type(i).size;
        same_types &= in.type(i).dtype == e.out.type(i).dtype;
    }
    Tensors out = in.like(types);
    std::string wrong = difference(unscale(nullptr, scale, in, out.data(), want), report);
    wrong += difference(out, e.out);
    if (same_types)
        wrong += difference(check(nullptr, scale, in, want), report);
    if (same_sizes) {
        const Tensors place = in.copy();
        const std::vector<gsc_tensor> seen = place.seen_as(e.out);
        wrong += difference(unscale(nullptr, scale, place, seen.data(), want), report);
        for (uint64_t i = 0; i < in.size(); i++)
            if (seen[i].count &&
                std::memcmp(place.at(i), e.out.at(i), seen[i].count * in.type(i).size) != 0)
                wrong += "in place: tensor " + std::to_string(i);
    }
    return wrong;
}

/* ---- data ---- */

enum class Kind { moderate, tiny, huge, any };

uint64_t random_element(const Dtype &d, Kind kind, Random &random)
{
    static const std::vector<std::vector<uint64_t>> special = [] {
        std::vector<std::vector<uint64_t>> all;
        for (const Dtype &each : dtypes)
            all.push_back(special_bits(each));
        return all;
    }();
    const std::vector<uint64_t> &specials = special[d.index];
    const double sign = random.next() % 2 ? 1 : -1, u = random.unit();
    switch (kind) {
    case Kind::moderate:
        return encode(d, sign * u * 1000);
    case Kind::tiny:
        return encode(d, sign * std::ldexp(u, -static_cast<int>(random.next() % 40)) *
                             std::max(decode(d, d.normal()), 1e-300));
    case Kind::huge:
        return encode(d, sign * u * std::min(decode(d, d.infinity() - 1), 1e300));
    default:
        return random.next() % 8 ? random.next() & (d.sign() | (d.sign() - 1))
                                 : specials[random.next() % specials.size()];
    }
}

void add_random(Tensors &to, const Dtype &d, uint64_t n, Kind kind, uint64_t seed)
{
    Random random = {seed};
    std::vector<uint64_t> bits(n);
    for (uint64_t &b : bits)
        b = random_element(d, kind, random);
    to.add_bits(d, bits);
}

/* Every dtype with n elements, once for each of its outputs: `all_outputs` in turn. */
const std::vector<Dtype> all_outputs(std::begin(dtypes), std::end(dtypes));

Tensors every_pair(uint64_t n, Kind kind)
{
    Tensors in;
    for (const Dtype &from : dtypes)
        for (uint64_t to = 0; to < all_outputs.size(); to++)
            add_random(in, from, n, kind, n * 16 + to);
    return in;
}

/* ---- contexts ---- */

struct Pool {
    uint32_t threads;
    std::atomic<int> calls{0};
};

void run_on_threads(void *pool, gsc_task *task, void *data, uint64_t count)
{
    Pool *p = static_cast<Pool *>(pool);
    p->calls++;
    std::atomic<uint64_t> next{0};
    const auto work = [&] {
        for (uint64_t i; (i = next++) < count;)
            task(data, i);
    };
    std::vector<std::thread> others;
    for (uint32_t i = 1; i < p->threads; i++)
        others.emplace_back(work);
    work();
    for (std::thread &other : others)
        other.join();
}

void run_backwards(void *pool, gsc_task *task, void *data, uint64_t count)
{
    static_cast<Pool *>(pool)->calls++;
    while (count-- > 0)
        task(data, count);
}

class Context {
  public:
    Context(uint32_t threads, gsc_parallel_for *parallel_for) : pool{threads}
    {
        void *lent = parallel_for ? &pool : nullptr;
        REQUIRE(gsc_context_create_cpu(threads, parallel_for, lent, &context, nullptr) == GSC_OK);
        exec.context = context;
    }
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
    ~Context()
    {
        gsc_context_destroy(context);
    }
    const gsc_exec *on() const
    {
        return &exec;
    }
    int calls() const
    {
        return pool.calls;
    }

  private:
    Pool pool;
    gsc_context *context = nullptr;
    gsc_exec exec = GSC_EXEC_INIT;
};

/* About 5 MiB of all dtypes, many small tensors among them. */
Tensors long_list()
{
    Tensors in;
    for (uint64_t i = 0; i < 300; i++)
        add_random(in, dtypes[i % std::size(dtypes)], i % 70, Kind::moderate, i);
    for (uint64_t i = 0; i < std::size(dtypes); i++)
        add_random(in, dtypes[i], 300000 + i, i % 2 ? Kind::any : Kind::tiny, i);
    for (uint64_t i = 0; i < 300; i++)
        add_random(in, dtypes[i % std::size(dtypes)], 100 + i, Kind::huge, i);
    return in;
}

} // namespace

/* ---- values and reports ---- */

TEST_CASE("known reports", "[tensors]")
{
    struct Row {
        const char *what;
        Dtype in, out;
        double scale;
        std::vector<double> values;
        int64_t nan_count, inf_count, first_bad; // -1: none
        int64_t zeros_made, subnormals_made;
        double amax, sum_squares;
    };
    const Row rows[] = {
        {"finite values", f32, f32, 2, {2, -4, 6}, 0, 0, -1, 0, 0, 3, 14},
        {"bad elements are counted and left out",
         f16,
         f16,
         1,
         {1, nan_value, infinity, -infinity, -2},
         1,
         2,
         1,
         0,
         0,
         2,
         5},
        {"nothing but NaN", bf16, f32, 4, {nan_value, nan_value}, 2, 0, 0, 0, 0, 0, 0},
        {"an Inf made by unscaling", f16, f16, 0.5, {8, 40000}, 0, 1, 1, 0, 0, 80000, 6400000256},
        {"no Inf where the output has room",
         f16,
         f32,
         0.5,
         {8, 40000},
         0,
         0,
         -1,
         0,
         0,
         80000,
         6400000256},
        {"an Inf made by narrowing", f32, f16, 1, {2, 65520}, 0, 1, 1, 0, 0, 65520, 4292870404},
        {"just below that", f32, f16, 1, {2, 65504}, 0, 0, -1, 0, 0, 65504, 4290774020},
        {"an Inf made in float is left out", f32, f32, 0.5, {3e38, 1}, 0, 1, 0, 0, 0, 2, 4},
        {"though the output had room", f32, f64, 0.5, {3e38, 1}, 0, 1, 0, 0, 0, 2, 4},
        {"f16 in place loses what scaling saved",
         f16,
         f16,
         65536,
         {1, 0x1p-10, 0x1p-9, 0x1p-8, 0, 0x1p-15, 32768},
         0,
         0,
         -1,
         3,
         2,
         0.5,
         0.25 + 0x1p-32 + 0x1p-48 + 0x1p-50 + 0x1p-52},
        {"f16 to f32 does not",
         f16,
         f32,
         65536,
         {1, 0x1p-10, 0x1p-9, 0x1p-8, 0, 0x1p-15, 32768},
         0,
         0,
         -1,
         0,
         0,
         0.5,
         0.25 + 0x1p-32 + 0x1p-48 + 0x1p-50 + 0x1p-52},
        {"f32 underflow; squares below the floats",
         f32,
         f32,
         0x1p100,
         {0x1p-30, 0x1p-50, 1},
         0,
         0,
         -1,
         1,
         1,
         0x1p-100,
         0x1p-200},
        {"f64 underflow", f64, f64, 0x1p50, {0x1p-1000, -0x1p-1060}, 0, 0, -1, 1, 1, 0x1p-1050, 0},
        {"a subnormal that stays subnormal",
         f16,
         f16,
         0.5,
         {0x1p-20},
         0,
         0,
         -1,
         0,
         0,
         0x1p-19,
         0x1p-38},
        {"zeros", f32, f16, 3, {0, -0.0}, 0, 0, -1, 0, 0, 0, 0},
        {"squares above the floats",
         f32,
         f32,
         1,
         {0x1p100, 0x1p70},
         0,
         0,
         -1,
         0,
         0,
         0x1p100,
         0x1p200},
        {"no elements", f64, bf16, 3, {}, 0, 0, -1, 0, 0, 0, 0},
    };
    for (const Row &row : rows) {
        CAPTURE(row.what);
        gsc_report report = {};
        report.overflow = row.nan_count + row.inf_count > 0;
        report.found_inf = static_cast<float>(report.overflow);
        report.nan_count = row.nan_count;
        report.inf_count = row.inf_count;
        report.first_bad = row.first_bad < 0 ? 0 : INT64_MIN + row.first_bad;
        report.zeros_made = row.zeros_made;
        report.subnormals_made = row.subnormals_made;
        report.amax = row.amax;
        report.sum_squares = row.sum_squares;
        report.elements = static_cast<int64_t>(row.values.size());
        Tensors in;
        in.add_values(row.in, row.values);
        const Tensors out = in.like({row.out});
        constexpr uint32_t wanted = want_all & ~GSC_WANT_HISTOGRAM;
        report = only(wanted, report);
        CHECK(text(unscale(nullptr, row.scale, in, out.data(), wanted)) == text(report));
        if (row.in.dtype == row.out.dtype) {
            CHECK(text(check(nullptr, row.scale, in, wanted)) == text(report));
            CHECK(text(unscale(nullptr, row.scale, in, in.data(), wanted)) == text(report));
        }
    }
}

TEST_CASE("unscale gives the bits of the numerics for every pair of dtypes and size", "[tensors]")
{
    const double scales[] = {65536, 1, 0x1p-10, 3, 0x1p126, 0x1p127, 1e39, 1e-42, 1e-30};
    for (uint64_t n : {1u, 2u, 7u, 63u, 64u, 65u, 300u})
        for (Kind kind : {Kind::moderate, Kind::tiny, Kind::huge, Kind::any})
            for (double scale : scales) {
                CAPTURE(n, static_cast<int>(kind), scale);
                CHECK(wrong_unscale(every_pair(n, kind), all_outputs, scale, want_all) == "");
            }
}

TEST_CASE("unscale gives the bits of the numerics around the ends of blocks and chunks",
          "[tensors][long]")
{
    const double scales[] = {65536, 3, 0x1p-10, 1e39};
    uint64_t round = 0;
    for (uint64_t n : {4095u, 4096u, 4097u, 65535u, 65536u, 65537u, 131071u, 131072u, 131073u}) {
        const Kind kind = static_cast<Kind>(round % 4);
        const double scale = scales[round++ % 3];
        CAPTURE(n, static_cast<int>(kind), scale);
        CHECK(wrong_unscale(every_pair(n, kind), all_outputs, scale, want_all) == "");
    }
    CHECK(wrong_unscale(every_pair(65537, Kind::any), all_outputs, scales[3], want_all) == "");
}

TEST_CASE("in place and check give the same as out of place", "[tensors][long]")
{
    for (double scale : {65536.0, 1.0, 0.5, 3.0, 1e39})
        for (Kind kind : {Kind::moderate, Kind::tiny, Kind::huge, Kind::any}) {
            Tensors in, crossed;
            for (const Dtype &d : all_outputs)
                for (uint64_t n : {5u, 4099u, 65540u})
                    add_random(in, d, n, kind, n);
            for (const Dtype &d : {f16, bf16, cb16, f8_e4m3fn, f8_e5m2})
                add_random(crossed, d, 4099, kind, d.size);
            std::vector<Dtype> own;
            for (const Dtype &d : all_outputs)
                own.insert(own.end(), 3, d);
            CAPTURE(scale, static_cast<int>(kind));
            CHECK(wrong_unscale(in, own, scale, want_all) == "");
            CHECK(wrong_unscale(crossed, {bf16, cb16, f16, f8_e5m2, f8_e4m3fn}, scale, want_all) ==
                  "");
        }
}

TEST_CASE("a report holds what is wanted and nothing else", "[tensors]")
{
    for (uint32_t want = 0; want <= want_all; want++)
        for (double scale : {65536.0, 1.0, 0.5, 1e39})
            for (Kind kind : {Kind::tiny, Kind::huge, Kind::any}) {
                Tensors in;
                for (const Dtype &d : all_outputs)
                    add_random(in, d, 200, kind, want);
                CAPTURE(want, scale, static_cast<int>(kind));
                CHECK(wrong_unscale(in, all_outputs, scale, want) == "");
                CHECK(wrong_unscale(in, {f64, f16, bf16, f32, cb16}, scale, want) == "");
                const std::vector<Dtype> same_size = {f32,     f64,       bf16, cb16,
                                                      f8_e5m2, f8_e4m3fn, f16};
                CHECK(wrong_unscale(in, same_size, scale, want) == "");
            }
}

TEST_CASE("a bad element is found wherever it stands", "[tensors]")
{
    const uint64_t n = 131074;
    for (const Dtype &d : dtypes) {
        Tensors in;
        in.add(f32, 3);
        in.add(f32, 0);
        in.add(d, n);
        for (uint64_t at : {0u, 63u, 64u, 65u, 4095u, 4096u, 4097u, 65535u, 65536u, 65537u, 131071u,
                            131072u, 131073u})
            for (uint64_t bad : {d.infinity(), d.infinity() | d.sign(), d.nan()}) {
                write_bits(d, in.at(2), at, bad);
                const gsc_report report = check(nullptr, 4, in);
                write_bits(d, in.at(2), at, 0);
                gsc_report one = {};
                one.found_inf = 1;
                one.overflow = 1;
                one.first_bad = INT64_MIN + static_cast<int64_t>(uint64_t{2} << 40 | at);
                one.nan_count = is_nan(d, bad);
                one.inf_count = !one.nan_count;
                one.elements = n + 3;
                one.histogram_elements = 3 * 4096 + 2 - 4096 + 3;
                CAPTURE(d.name, at, bad);
                CHECK(text(report) == text(one));
            }
    }
}

TEST_CASE("the first of several bad elements is the one of the earliest tensor", "[tensors]")
{
    Tensors in;
    in.add(f16, 0);
    in.add_values(f32, {1, 2, 3});
    in.add_values(f16, {1, 2, nan_value, infinity});
    in.add_values(f64, {infinity});
    const gsc_report report = check(nullptr, 1, in);
    CHECK(GSC_BAD_TENSOR(report.first_bad) == 2);
    CHECK(GSC_BAD_ELEMENT(report.first_bad) == 2);
}

TEST_CASE("a bad tensor past 2^23 - 2 is given as that limit", "[tensors]")
{
    constexpr uint64_t limit = (1u << 23) - 2;
    float bad = HUGE_VALF;
    std::vector<gsc_tensor> list(limit + 3, gsc_tensor{nullptr, 0, GSC_F32, 0});
    for (uint64_t at : {limit - 1, limit, limit + 1, limit + 2}) {
        list[at] = {&bad, 1, GSC_F32, 0};
        gsc_report report;
        CHECK(gsc_check(nullptr, nullptr, list.data(), list.size(), want_all, &report, nullptr) ==
              GSC_OK);
        list[at] = list[0];
        CHECK(GSC_BAD_TENSOR(report.first_bad) == static_cast<int64_t>(std::min(at, limit)));
        CHECK(GSC_BAD_ELEMENT(report.first_bad) == 0);
    }
}

TEST_CASE("a multiplier of exactly 1 copies the bits of signalling NaN, too", "[tensors]")
{
    for (const Dtype &d : dtypes) {
        Tensors in;
        in.add_bits(d, special_bits(d));
        const Tensors out = in.like({d}), scaled = in.like({d}), place = in.copy();
        const gsc_factor one = factor_of(1);
        unscale(nullptr, 1, in, out.data());
        unscale(nullptr, 1, place, place.data());
        CHECK(gsc_scale(nullptr, &one, in.data(), scaled.data(), 1, nullptr) == GSC_OK);
        CHECK(difference(out, in) == "");
        CHECK(difference(place, in) == "");
        CHECK(difference(scaled, in) == "");
    }
}

TEST_CASE("gsc_scale multiplies by the scale, into Inf where there is no room", "[tensors]")
{
    for (double scale : {65536.0, 1.0, 0.1, 1e39, 1e-42})
        for (uint64_t n : {1u, 65u, 4097u}) {
            const Tensors in = every_pair(n, Kind::any);
            const Expected e = expected(in, all_outputs, scale);
            Tensors out = in.like(all_outputs);
            const gsc_factor factor = factor_of(scale);
            CAPTURE(scale, n);
            CHECK(gsc_scale(nullptr, &factor, in.data(), out.data(), in.size(), nullptr) == GSC_OK);
            CHECK(difference(out, e.out) == "");
        }
}

TEST_CASE("an empty list is legal, and so is a tensor without data", "[tensors]")
{
    const gsc_factor factor = factor_of(2);
    const gsc_tensor nothing[] = {{nullptr, 0, GSC_F16, 0}, {nullptr, 0, GSC_F64, 0}};
    const gsc_report zeros = {};
    for (uint64_t n : {0u, 2u}) {
        const gsc_tensor *list = n ? nothing : nullptr;
        gsc_report checked = marked_report(), unscaled = marked_report();
        CHECK(gsc_check(nullptr, &factor, list, n, want_all, &checked, nullptr) == GSC_OK);
        CHECK(gsc_unscale(nullptr, &factor, list, list, n, want_all, &unscaled, nullptr) == GSC_OK);
        CHECK(gsc_scale(nullptr, &factor, list, list, n, nullptr) == GSC_OK);
        CHECK(same(checked, zeros));
        CHECK(same(unscaled, zeros));
    }
}

TEST_CASE("unscale without a report writes the same", "[tensors]")
{
    const Tensors in = every_pair(4097, Kind::any);
    for (double scale : {3.0, 1.0, 1e39}) {
        const gsc_factor factor = factor_of(scale);
        Tensors out = in.like(all_outputs), expected_out = in.like(all_outputs);
        unscale(nullptr, scale, in, expected_out.data());
        CHECK(gsc_unscale(nullptr, &factor, in.data(), out.data(), in.size(), want_all, nullptr,
                          nullptr) == GSC_OK);
        CHECK(difference(out, expected_out) == "");
    }
}

TEST_CASE("a check without a factor is one of the values as they are", "[tensors]")
{
    const Tensors in = every_pair(100, Kind::any);
    gsc_report report = marked_report();
    CHECK(gsc_check(nullptr, nullptr, in.data(), in.size(), want_all, &report, nullptr) == GSC_OK);
    CHECK(text(report) == text(check(nullptr, 1, in)));
}

TEST_CASE("a large list, whose output goes past the caches, gives the bytes of its pieces",
          "[tensors]")
{
    const uint64_t n = (16u << 20) / 4 + 4099, piece = 37 * 4096;
    for (const Dtype &to : {f32, f16, f64}) {
        Tensors in;
        in.add(f32, 3); // the next one lies at an odd address
        Tensors some;
        add_random(some, f32, 100003, Kind::any, 5);
        in.add(f32, n);
        for (uint64_t i = 0; i < n; i += 100003)
            std::memcpy(in.at(1) + i * 4, some.at(0), std::min<uint64_t>(100003, n - i) * 4);
        for (double scale : {65536.0, 1.0}) {
            const Tensors out = in.like({to}), pieces = in.like({to});
            const gsc_report whole = unscale(nullptr, scale, in, out.data());
            gsc_report merged = {};
            const gsc_factor factor = factor_of(scale);
            for (uint64_t i = 0; i < n; i += piece) {
                const uint64_t count = std::min(piece, n - i);
                const gsc_tensor part = {in.at(1) + i * 4, count, GSC_F32, 0},
                                 result = {pieces.at(1) + i * to.size, count, to.dtype, 0};
                gsc_report report;
                REQUIRE(gsc_unscale(nullptr, &factor, &part, &result, 1, want_all, &report,
                                    nullptr) == GSC_OK);
                gsc_merge(nullptr, &merged, &report, &merged, nullptr);
            }
            CAPTURE(to.name, scale);
            CHECK(std::memcmp(out.at(1), pieces.at(1), n * to.size) == 0);
            CHECK(whole.nan_count == merged.nan_count);
            CHECK(whole.inf_count == merged.inf_count);
            CHECK(whole.zeros_made == merged.zeros_made);
            CHECK(whole.amax == merged.amax);
        }
    }
}

TEST_CASE("small tensors of a large list are as they are alone", "[tensors]")
{
    for (const Dtype &to : {f32, f16})
        for (uint32_t want : {0u, GSC_WANT_COUNTS | GSC_WANT_FIRST_BAD, GSC_WANT_NORM + 0u})
            for (double scale : {65536.0, 0x1p-16, 0.75}) {
                Tensors in;
                in.add(f32, 17u << 18);
                for (uint64_t i = 0; i < 40; i++)
                    add_random(in, f32, 1 + i * i * 2, i % 3 ? Kind::any : Kind::tiny, i);
                const Tensors out = in.like({to}), alone = in.like({to});
                const gsc_report report = unscale(nullptr, scale, in, out.data(), want);
                const gsc_factor factor = factor_of(scale);
                gsc_report merged = {};
                double squares = 0;
                for (uint64_t i = 0; i < in.size(); i++) {
                    gsc_report one;
                    REQUIRE(gsc_unscale(nullptr, &factor, in.data() + i, alone.data() + i, 1, want,
                                        &one, nullptr) == GSC_OK);
                    if (one.first_bad)
                        one.first_bad += static_cast<int64_t>(i << 40);
                    gsc_merge(nullptr, &merged, &one, &merged, nullptr);
                    squares += one.sum_squares;
                }
                merged.sum_squares = squares;
                merged.absent = report.absent;
                CAPTURE(to.name, want, scale);
                CHECK(difference(report, merged) == "");
                for (uint64_t i = 0; i < in.size(); i++)
                    CHECK(std::memcmp(out.at(i), alone.at(i), in.data()[i].count * to.size) == 0);
            }
}

/* ---- limits and sums ---- */

/* The product of one element of a list in the multiplying type, as `expected` has it. */
double product(const Tensors &in, uint64_t t, uint64_t i, double multiplier)
{
    const bool normal = std::isnormal(static_cast<float>(multiplier));
    if (in.type(t).dtype == GSC_F64 || !normal)
        return in.value(t, i) * multiplier;
    return static_cast<double>(static_cast<float>(in.value(t, i)) * static_cast<float>(multiplier));
}

TEST_CASE("gsc_clip_value clamps the products and reports on them before", "[tensors]")
{
    for (double scale : {65536.0, 1.0, 0.5, 3.0, 1e39})
        for (Kind kind : {Kind::moderate, Kind::tiny, Kind::huge, Kind::any})
            for (double limit : {1.0, 0.1, 448.0, 1e-9, 1e30}) {
                const Tensors in = every_pair(70, kind);
                Tensors out = in.like(all_outputs), clamped = in.like(all_outputs);
                // What the report is of: no narrow output makes an Inf.
                const bool in_float = std::isnormal(static_cast<float>(1 / scale));
                std::vector<Dtype> wide;
                for (uint64_t t = 0; t < in.size(); t++)
                    wide.push_back(in_float && in.type(t).dtype != GSC_F64 ? f32 : f64);
                const Expected e = expected(in, wide, 1 / scale);
                for (uint64_t t = 0; t < in.size(); t++)
                    for (uint64_t i = 0; i < 70; i++) {
                        const double most = wide[t].dtype == GSC_F32
                                                ? static_cast<double>(static_cast<float>(limit))
                                                : limit;
                        const double x = product(in, t, i, 1 / scale);
                        write_bits(out.type(t), clamped.at(t), i,
                                   is_nan(in.type(t), in.bits(t, i))
                                       ? convert_nan(in.type(t), out.type(t), in.bits(t, i))
                                       : encode(out.type(t), std::clamp(x, -most, most)));
                    }
                const gsc_factor factor = factor_of(scale);
                const uint32_t want = want_all & ~GSC_WANT_UNDERFLOW; // of the outputs
                gsc_report report = marked_report();
                CAPTURE(scale, static_cast<int>(kind), limit);
                CHECK(gsc_clip_value(nullptr, &factor, limit, in.data(), out.data(), in.size(),
                                     want, &report, nullptr) == GSC_OK);
                CHECK(difference(report, only(want, e.report)) == "");
                CHECK(difference(out, clamped) == "");

                const Tensors place = in.copy();
                Tensors apart = in.copy();
                for (const Tensors *to : {&place, static_cast<const Tensors *>(&apart)})
                    gsc_clip_value(nullptr, &factor, limit, to == &place ? place.data() : in.data(),
                                   to->data(), in.size(), 0, nullptr, nullptr);
                CHECK(difference(place, apart) == "");
            }
}

TEST_CASE("with the largest value as limit gsc_clip_value casts with saturation", "[tensors]")
{
    Tensors in;
    in.add_values(f32, {1000, -1e30, 447, infinity, nan_value});
    const Tensors out = in.like({f8_e4m3fn});
    gsc_report report;
    REQUIRE(gsc_clip_value(nullptr, nullptr, 448, in.data(), out.data(), 1, want_all, &report,
                           nullptr) == GSC_OK);
    for (uint64_t i : {0u, 3u})
        CHECK(out.bits(0, i) == 0x7e);
    CHECK(out.bits(0, 1) == 0xfe);
    CHECK(is_nan(f8_e4m3fn, out.bits(0, 4)));
    CHECK(report.inf_count == 1);
    CHECK(report.nan_count == 1);
}

TEST_CASE("gsc_accumulate adds products and rounds once", "[tensors]")
{
    for (double scale : {65536.0, 1.0, 3.0, 1e39})
        for (Kind kind : {Kind::moderate, Kind::tiny})
            for (uint64_t n : {1u, 15u, 64u, 77u, 4099u}) {
                Tensors in = every_pair(n, kind);
                Tensors out = in.like(all_outputs), sums = in.like(all_outputs);
                Random random = {n};
                for (uint64_t t = 0; kind == Kind::moderate && t < in.size(); t++)
                    for (uint64_t i = 0; i < n; i++) // within the range of every dtype
                        write_bits(in.type(t), in.at(t), i,
                                   encode(in.type(t), 800 * (random.unit() - 0.5)));
                for (uint64_t t = 0; t < in.size(); t++)
                    for (uint64_t i = 0; i < n; i++) {
                        const Dtype &to = out.type(t);
                        const uint64_t before = encode(to, 100 * (random.unit() - 0.5));
                        const double a = decode(to, before), x = product(in, t, i, 1 / scale);
                        const bool in_float = std::isnormal(static_cast<float>(1 / scale)) &&
                                              in.type(t).dtype != GSC_F64 && to.dtype != GSC_F64;
                        const double sum =
                            in_float
                                ? static_cast<double>(static_cast<float>(a) + static_cast<float>(x))
                                : a + x;
                        write_bits(to, out.at(t), i, before);
                        write_bits(to, sums.at(t), i, encode(to, sum));
                    }
                const gsc_factor factor = factor_of(scale);
                gsc_report report = marked_report();
                CAPTURE(scale, static_cast<int>(kind), n);
                CHECK(gsc_accumulate(nullptr, &factor, in.data(), out.data(), in.size(), want_all,
                                     &report, nullptr) == GSC_OK);
                CHECK(difference(report, expected(in, all_outputs, 1 / scale).report) == "");
                REQUIRE(report.overflow == 0);
                CHECK(difference(out, sums) == "");
            }
}

TEST_CASE("gsc_accumulate adds nothing of a list with one bad element", "[tensors]")
{
    Tensors in, out;
    in.add_values(f16, std::vector<double>(70000, 1));
    in.add_values(f16, {1, 2, 60000});
    out.add_values(f32, std::vector<double>(70000, 5));
    out.add_values(f8_e5m2, {1, 2, 3}); // up to 57344
    const Tensors before = out.copy();
    gsc_report report;
    REQUIRE(gsc_accumulate(nullptr, nullptr, in.data(), out.data(), 2, want_all, &report,
                           nullptr) == GSC_OK);
    CHECK(report.overflow == 0);
    CHECK(out.value(0, 69999) == 6);
    CHECK(out.value(1, 2) == 57344);
    write_bits(f16, in.at(1), 2, 0x7bff);
    const Tensors after = out.copy();
    REQUIRE(gsc_accumulate(nullptr, nullptr, in.data(), out.data(), 2, want_all, &report,
                           nullptr) == GSC_OK);
    CHECK(report.overflow == 1);
    CHECK(report.inf_count == 1);
    CHECK(GSC_BAD_TENSOR(report.first_bad) == 1);
    CHECK(difference(out, after) == "");
    CHECK(difference(out, before) != "");
}

/* ---- complex ---- */

TEST_CASE("a complex value is two real ones and counts once, as its larger part", "[tensors]")
{
    const std::pair<uint32_t, Dtype> types[] = {{GSC_COMPLEX64, f32}, {GSC_COMPLEX128, f64}};
    for (const auto &[dtype, real] : types)
        for (double scale : {65536.0, 1.0, 0.5, 0x1p120, 1e39})
            for (Kind kind : {Kind::moderate, Kind::tiny, Kind::huge, Kind::any})
                for (uint64_t n : {1u, 33u, 2049u, 33000u}) {
                    Tensors parts, larger;
                    add_random(parts, real, 2 * n, kind, n);
                    std::vector<uint64_t> bits;
                    for (uint64_t i = 0; i < n; i++)
                        bits.push_back(std::max(parts.bits(0, 2 * i) & ~real.sign(),
                                                parts.bits(0, 2 * i + 1) & ~real.sign()));
                    larger.add_bits(real, bits);
                    const Expected e = expected(parts, {real}, 1 / scale);
                    gsc_report counts = expected(larger, {real}, 1 / scale).report;
                    counts.sum_squares = e.report.sum_squares;
                    counts.amax = e.report.amax;
                    gsc_tensor list[] = {{parts.at(0), n, dtype, 0}};
                    const Tensors out = parts.like({real});
                    const gsc_tensor to[] = {{out.at(0), n, dtype, 0}};
                    const gsc_factor factor = factor_of(scale);
                    const uint32_t want = n > 2048 ? want_all & ~GSC_WANT_HISTOGRAM : want_all;
                    gsc_report report = marked_report();
                    CAPTURE(real.name, scale, static_cast<int>(kind), n);
                    CHECK(gsc_unscale(nullptr, &factor, list, to, 1, want, &report, nullptr) ==
                          GSC_OK);
                    CHECK(difference(out, e.out) == "");
                    CHECK(difference(report, only(want, counts)) == "");
                    report = marked_report();
                    CHECK(gsc_unscale(nullptr, &factor, list, list, 1, want, &report, nullptr) ==
                          GSC_OK);
                    CHECK(difference(parts, e.out) == "");
                    CHECK(difference(report, only(want, counts)) == "");
                }
}

/* ---- sum of squares ---- */

TEST_CASE("the sum of squares is accurate over the whole range", "[tensors]")
{
    // All terms are positive, so relative errors add: a lane of 64 elements rounds 64 times in
    // float, all that follows rounds in double. Doubles: 64 + 6 + 16 + 4 + 1 roundings.
    const double float_bound = 65 * 0x1p-24, double_bound = 100 * 0x1p-53;
    const double ranges[][2] = {{-30, -25}, {-22, -18}, {-13, -10}, {-12, 12},
                                {10, 15},   {18, 19.5}, {25, 30},   {-30, 30}};
    for (const Dtype &d : {f32, bf16, f64})
        for (const auto &range : ranges) {
            Random random = {static_cast<uint64_t>(range[1] + 100)};
            std::vector<double> values(200003);
            for (double &x : values)
                x = std::pow(10, range[0] + (range[1] - range[0]) * random.unit());
            Tensors in;
            in.add_values(d, values);
            long double exact = 0;
            for (uint64_t i = 0; i < values.size(); i++) {
                const long double x = static_cast<long double>(in.value(0, i));
                exact += x * x;
            }
            const long double sum = static_cast<long double>(check(nullptr, 1, in).sum_squares);
            CAPTURE(d.name, range[0], range[1]);
            CHECK(static_cast<double>(std::fabs(sum / exact - 1)) <
                  (d.dtype == GSC_F64 ? double_bound : float_bound));
        }
}

TEST_CASE("a block sum of 2^-80 stands as it is, one below is summed again in double", "[tensors]")
{
    // Both in lane 0, where float cannot hold the second square beside the first.
    const std::pair<double, double> rows[] = {
        {0x1p-40, 0x1p-80},
        {0x1.ffep-41, 0x1.ffc002p-81 + 0x1p-106},
    };
    for (const auto &[first, sum] : rows) {
        std::vector<double> values(65);
        values[0] = first;
        values[64] = 0x1p-53;
        Tensors in;
        in.add_values(f32, values);
        CHECK(check(nullptr, 1, in).sum_squares == sum);
    }
}

TEST_CASE("the sum of squares has the tree of the numerics, over more chunks than one batch",
          "[tensors]")
{
    Tensors in;
    for (uint64_t i = 0; i < 1000; i++)
        add_random(in, dtypes[i % std::size(dtypes)], i % 7, Kind::moderate, i);
    add_random(in, f32, 70 * 65536 + 3, Kind::moderate, 1);
    for (uint64_t i = 0; i < 1500; i++)
        add_random(in, dtypes[i % std::size(dtypes)], i % 5, Kind::tiny, i);
    const Expected e = expected(in, {f32}, 1 / 3.0);
    const gsc_report report = check(nullptr, 3, in, GSC_WANT_NORM | GSC_WANT_AMAX);
    CHECK(report.sum_squares == e.report.sum_squares);
    CHECK(report.amax == e.report.amax);
}

/* ---- threads and processes ---- */

TEST_CASE("a pool gives the bytes of one thread", "[tensors][threads]")
{
    const Tensors in = long_list();
    Tensors serial = in.like(all_outputs);
    const gsc_report report = unscale(nullptr, 0.75, in, serial.data());
    const gsc_report checked = check(nullptr, 0.75, in);
    for (uint32_t threads : {1u, 2u, 3u, 7u, 16u, 100u})
        for (gsc_parallel_for *parallel_for : {run_on_threads, run_backwards}) {
            const Context context(threads, parallel_for);
            Tensors out = in.like(all_outputs), scaled = in.copy();
            CAPTURE(threads);
            CHECK(difference(unscale(context.on(), 0.75, in, out.data()), report) == "");
            CHECK(difference(check(context.on(), 0.75, in), checked) == "");
            CHECK(difference(out, serial) == "");
            CHECK((context.calls() > 0) == (threads > 1));
            const gsc_factor factor = factor_of(1 / 0.75);
            Tensors scaled_serial = in.copy();
            gsc_scale(context.on(), &factor, scaled.data(), scaled.data(), in.size(), nullptr);
            gsc_scale(nullptr, &factor, scaled_serial.data(), scaled_serial.data(), in.size(),
                      nullptr);
            CHECK(difference(scaled, scaled_serial) == "");
        }
}

TEST_CASE("lists below 4 MiB stay on the calling thread", "[tensors][threads]")
{
    for (uint64_t count : {(1u << 20) - 1, 1u << 20}) {
        const Context context(2, run_backwards);
        Tensors in;
        in.add(f32, count);
        check(context.on(), 2, in);
        CHECK(context.calls() == (count == 1u << 20));
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(NDEBUG)
TEST_CASE("a call needs no more stack than the header says", "[tensors]")
{
    Tensors in;
    for (const Dtype &d : {f32, f32, f64})
        add_random(in, d, 70000, Kind::any, 1);
    for (double scale : {65536.0, 1e39}) {
        Bytes stack(512 << 10, 0xa5);
        size_t free = 0;
        const auto call = [&] {
            const gsc_factor factor = factor_of(scale);
            const Tensors half = in.like({f16, f32, f64}), sums = in.like({f64});
            gsc_report report;
            gsc_unscale(nullptr, &factor, in.data(), half.data(), 3, want_all, &report, nullptr);
            gsc_unscale(nullptr, &factor, in.data(), in.data(), 3, want_all, &report, nullptr);
            gsc_unscale(nullptr, &factor, in.data(), in.data(), 3, 7, &report, nullptr);
            gsc_accumulate(nullptr, &factor, in.data(), sums.data(), 3, want_all, &report, nullptr);
        };
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstack(&attributes, stack.data(), stack.size());
        pthread_t thread;
        const auto run = [](void *data) -> void * {
            (*static_cast<decltype(call) *>(data))();
            return nullptr;
        };
        REQUIRE(pthread_create(&thread, &attributes, run,
                               const_cast<void *>(static_cast<const void *>(&call))) == 0);
        pthread_join(thread, nullptr);
        while (stack[free] == 0xa5)
            free++;
        const size_t start = 4096; // of the thread itself
        CHECK(stack.size() - free < (120 << 10) + start);
    }
}
#endif

TEST_CASE("without a factor gsc_scale and gsc_unscale cast", "[tensors]")
{
    float values[] = {1, -2.5f, 70000, 0};
    uint16_t halves[4] = {}, again[4] = {};
    const gsc_tensor in = {values, 4, GSC_F32, 0}, out = {halves, 4, GSC_F16, 0},
                     second = {again, 4, GSC_F16, 0};
    gsc_report report;
    REQUIRE(gsc_scale(nullptr, nullptr, &in, &out, 1, nullptr) == GSC_OK);
    REQUIRE(gsc_unscale(nullptr, nullptr, &in, &second, 1, 0, &report, nullptr) == GSC_OK);
    const uint16_t expected[] = {0x3c00, 0xc100, 0x7c00, 0};
    CHECK(std::memcmp(halves, expected, sizeof expected) == 0);
    CHECK(std::memcmp(again, expected, sizeof expected) == 0);
    CHECK(report.overflow == 1);
}

TEST_CASE("a context of one thread needs no pool", "[tensors]")
{
    const Context context(1, nullptr);
    const Tensors in = long_list();
    CHECK(difference(check(context.on(), 3, in), check(nullptr, 3, in)) == "");
}

TEST_CASE("many threads may call at the same time", "[tensors][threads]")
{
    constexpr int threads = 8, calls = 20;
    const Context context(3, run_on_threads);
    std::vector<Tensors> inputs;
    std::vector<Expected> results;
    for (int i = 0; i < threads; i++) {
        inputs.push_back(every_pair(static_cast<uint64_t>(1000 + i), Kind::any));
        results.push_back(expected(inputs.back(), all_outputs, 1 / 3.0));
    }
    std::atomic<int> right{0};
    const gsc_factor factor = factor_of(3);
    std::vector<std::thread> running;
    for (size_t i = 0; i < threads; i++)
        running.emplace_back([&, i] {
            for (int call = 0; call < calls; call++) {
                gsc_report report;
                Tensors out = inputs[i].like(all_outputs);
                gsc_info info = GSC_INFO_INIT;
                gsc_status status = gsc_get_info(&info, nullptr);
                status |= gsc_unscale(context.on(), &factor, inputs[i].data(), out.data(),
                                      out.size(), want_all, &report, nullptr);
                right += status == GSC_OK && same(report, results[i].report) &&
                         difference(out, results[i].out).empty();
            }
        });
    for (std::thread &thread : running)
        thread.join();
    CHECK(right == threads * calls);
}

TEST_CASE("a forked process can call", "[tensors]")
{
    const Tensors in = long_list();
    const Expected e = expected(in, all_outputs, 1 / 3.0);
    const Context context(2, run_backwards);
    const gsc_factor factor = factor_of(3);
    check(nullptr, 3, in); // the parent has called before
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        bool right = true;
        for (const gsc_exec *on : {static_cast<const gsc_exec *>(nullptr), context.on()}) {
            Tensors out = in.like(all_outputs);
            gsc_report report;
            const gsc_status status = gsc_unscale(on, &factor, in.data(), out.data(), in.size(),
                                                  want_all, &report, nullptr);
            right &= status == GSC_OK && same(report, e.report) && difference(out, e.out).empty();
        }
        _exit(right ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

/* ---- the host's floating-point environment ---- */

#if defined(__x86_64__)
TEST_CASE("flush-to-zero in the host loses nothing where the float inverse is subnormal",
          "[tensors]")
{
    Random random = {1};
    Tensors in;
    for (const Dtype &d : {f32, bf16, f64, f16, f16}) {
        std::vector<double> values(5000);
        const bool half = d.dtype == GSC_F16; // subnormals of f16 are normal floats
        for (double &x : values)
            x = half ? std::ldexp(random.unit(), -8) : std::pow(10, 12 + 18 * random.unit());
        in.add_values(d, values);
    }
    const std::vector<Dtype> types = {f32, bf16, f64, f64, f32};
    for (double scale : {0x1p127, 1e38, 1e39, 1e40}) {
        Expected e = expected(in, types, 1 / scale);
        Tensors out = in.like(types);
        const gsc_factor factor = factor_of(scale);
        gsc_report report;
        constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040, flags = 0x3f;
        const unsigned before = _mm_getcsr();
        _mm_setcsr(before | flush_to_zero | denormals_are_zero);
        gsc_unscale(nullptr, &factor, in.data(), out.data(), in.size(), want_all, &report, nullptr);
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);

        CAPTURE(scale);
        CHECK((after & ~flags) == ((before | flush_to_zero | denormals_are_zero) & ~flags));
        for (uint64_t t = 0; t < 4; t++)
            for (uint64_t i = 0; i < 5000; i++)
                if (in.value(t, i) != 0 && out.value(t, i) == 0)
                    FAIL("tensor " << t << " element " << i << " became zero");
        // To f32, small f16 values become subnormal: flushed, as the host asked.
        for (uint64_t i = 0; i < 5000; i++)
            if (std::fabs(e.out.value(4, i)) < decode(f32, f32.normal()))
                write_bits(f32, e.out.at(4), i, out.bits(4, i));
        CHECK(difference(out, e.out) == "");
        CHECK(report.amax == e.report.amax);
        CHECK(report.sum_squares == e.report.sum_squares);
    }
}
#endif

/* ---- what runs here ---- */

TEST_CASE("gsc_info names the rung that GSC_CPU asks for, or says why not", "[info]")
{
    gsc_info info = GSC_INFO_INIT;
    REQUIRE(gsc_get_info(&info, nullptr) == GSC_OK);
    std::istringstream names(info.cpu_available);
    std::vector<std::string> available;
    for (std::string name; names >> name;)
        available.push_back(name);
    REQUIRE(available.size() > 0);
    CHECK(available.front() == "scalar");

    const char *set = std::getenv("GSC_CPU");
    const std::string asked = set ? set : "", note = info.cpu_note;
    const bool can = std::count(available.begin(), available.end(), asked) == 1;
    CHECK((can ? info.cpu == asked
               : std::count(available.begin(), available.end(), std::string(info.cpu)) == 1));
    CHECK(note.empty() == (can || asked.empty()));
    CHECK(note.find(can ? "" : asked) != std::string::npos);
    CHECK(info.version == gsc_version());
    CHECK(std::string(info.cuda) != "");
}
