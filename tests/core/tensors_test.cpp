// SPDX-License-Identifier: MIT
// The calls on tensors: every output bit and every member of the reports, of the list and of each
// tensor, against one naive loop over exact values, whatever the sizes, dtypes, options, threads
// and floating-point modes.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cfloat>
#include <functional>
#include <iomanip>
#include <memory>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "support.hpp"

extern "C" {
#include "cpu/plan.h"
}

/* What the library calls instead of gsc_plan_make. */
static std::atomic<int> plans_made{0};
extern "C" void __real_gsc_plan_make(const gsc_pass *, uint32_t, uint32_t, gsc_plan *);
extern "C" void __wrap_gsc_plan_make(const gsc_pass *pass, uint32_t in, uint32_t out,
                                     gsc_plan *plan)
{
    plans_made++;
    __real_gsc_plan_make(pass, in, out, plan);
}

namespace {

constexpr double infinity = HUGE_VAL, nan_value = std::numeric_limits<double>::quiet_NaN();

/* ---- lists of tensors ---- */

uint64_t parts_of(uint32_t dtype)
{
    return is_complex(dtype) ? 2 : 1;
}

/* Tensors with the memory that they lie in, every second one at an odd address. */
class Tensors {
  public:
    Tensors() = default;
    Tensors(Tensors &&) = default;
    Tensors &operator=(Tensors &&) = default;

    /* `count` zeros; of a complex dtype, too. */
    void add(uint32_t dtype, uint64_t count)
    {
        const bool odd = memory.size() % 2 == 1;
        memory.emplace_back(count * gsc_dtype_size(dtype) + odd);
        list.push_back({count ? memory.back().data() + odd : nullptr, count, dtype, 0, {}});
    }
    void add(const Dtype &d, uint64_t count)
    {
        add(d.dtype, count);
    }
    void add_bits(uint32_t dtype, const std::vector<uint64_t> &bits)
    {
        add(dtype, bits.size() / parts_of(dtype));
        for (uint64_t i = 0; i < bits.size(); i++)
            write_bits(real(dtype), at(list.size() - 1), i, bits[i]);
    }
    void add_bits(const Dtype &d, const std::vector<uint64_t> &bits)
    {
        add_bits(d.dtype, bits);
    }
    void add_values(const Dtype &d, const std::vector<double> &values)
    {
        std::vector<uint64_t> bits;
        for (double x : values)
            bits.push_back(std::isnan(x) ? d.infinity() | d.normal() >> 1 : encode(d, x));
        add_bits(d, bits);
    }
    /* Zeros of other dtypes, or of one other dtype; complex ones stay what they are. */
    Tensors like(const std::vector<Dtype> &types) const
    {
        Tensors other;
        for (uint64_t i = 0; i < list.size(); i++)
            other.add(parts(i) == 2 ? list[i].dtype : types[i % types.size()].dtype, list[i].count);
        return other;
    }
    Tensors copy() const
    {
        Tensors other;
        for (const gsc_tensor &tensor : list) {
            other.add(tensor.dtype, tensor.count);
            if (tensor.count)
                std::memcpy(other.list.back().data, tensor.data,
                            tensor.count * gsc_dtype_size(tensor.dtype));
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
    uint64_t parts(uint64_t i) const
    {
        return parts_of(list[i].dtype);
    }
    /* Real numbers of a tensor. */
    uint64_t numbers(uint64_t i) const
    {
        return list[i].count * parts(i);
    }
    unsigned char *at(uint64_t i) const
    {
        return static_cast<unsigned char *>(list[i].data);
    }
    uint64_t bits(uint64_t i, uint64_t number) const
    {
        return read_bits(type(i), at(i), number);
    }
    double value(uint64_t i, uint64_t number) const
    {
        return decode(type(i), bits(i, number));
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

/* The first tensor and number that differ, in words; empty if none does. */
std::string difference(const Tensors &results, const Tensors &expected)
{
    for (uint64_t i = 0; i < expected.size(); i++)
        for (uint64_t j = 0; j < expected.numbers(i); j++)
            if (results.bits(i, j) != expected.bits(i, j))
                return "tensor " + std::to_string(i) + " (" + expected.type(i).name + ") number " +
                       std::to_string(j) + ": " + hex(results.bits(i, j)) + ", not " +
                       hex(expected.bits(i, j));
    return "";
}

/* ---- what a call says ---- */

/* What is asked for: GSC_WANT_* bits and these. */
constexpr uint32_t ask_each = 8, ask_histogram = 16, ask_all = 31;

using Histogram = std::array<int64_t, GSC_HISTOGRAM_LENGTH>;

/* Reports of the list and of each tensor, and the histogram; none and zeros where not asked for. */
struct Said {
    gsc_report report = measured;
    std::vector<gsc_report> each;
    Histogram histogram = {};
};

std::string text(const gsc_report &r)
{
    std::ostringstream s;
    s << std::setprecision(17) << "found_inf " << r.found_inf << " overflow " << r.overflow
      << " status " << r.status << " measured " << r.measured << " serial " << r.generation
      << " nan " << r.nan_count << " inf " << r.inf_count << " first " << r.first_tensor << ":"
      << r.first_element << " zeros " << r.underflows_to_zero << " subnormals "
      << r.underflows_to_subnormal << " clamped " << r.clamped << " amax " << r.amax << " squares "
      << r.sum_squares << " elements " << r.elements;
    return s.str();
}

std::string difference(const gsc_report &report, const gsc_report &expected_report)
{
    if (same(report, expected_report))
        return "";
    return text(report) + ", not " + text(expected_report);
}

std::string difference(const Said &said, const Said &expected)
{
    std::string wrong = difference(said.report, expected.report);
    if (said.each.size() != expected.each.size())
        return wrong + "another number of reports";
    for (uint64_t i = 0; i < said.each.size() && wrong.empty(); i++)
        if (!same(said.each[i], expected.each[i]))
            wrong +=
                "tensor " + std::to_string(i) + ": " + difference(said.each[i], expected.each[i]);
    for (uint64_t i = 0; i < GSC_HISTOGRAM_LENGTH; i++)
        if (said.histogram[i] != expected.histogram[i])
            wrong += " histogram[" + std::to_string(i) + "] " + std::to_string(said.histogram[i]) +
                     ", not " + std::to_string(expected.histogram[i]);
    return wrong;
}

gsc_report only(uint32_t ask, gsc_report r)
{
    r.measured = want_all & ask;
    if (!(r.measured & GSC_WANT_NORM))
        r.sum_squares = 0;
    if (!(r.measured & GSC_WANT_AMAX))
        r.amax = 0;
    if (!(r.measured & GSC_WANT_UNDERFLOW))
        r.underflows_to_zero = r.underflows_to_subnormal = 0;
    return r;
}

/* The same where less was asked for. */
Said only(uint32_t ask, Said said)
{
    said.report = only(ask, said.report);
    for (gsc_report &report : said.each)
        report = only(ask, report);
    if (!(ask & ask_each))
        said.each.clear();
    if (!(ask & ask_histogram))
        said.histogram = {};
    return said;
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

/* Of one tensor: blocks within chunks, in order; chunks within the tensor, in runs. */
double sum_of_squares(const std::vector<double> &products, bool in_float)
{
    std::vector<double> chunks;
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
        chunks.push_back(sum);
    }
    return sum_in_runs(chunks);
}

/* The report of a list, of those of its tensors. */
gsc_report together(const std::vector<gsc_report> &each)
{
    gsc_report r = measured;
    std::vector<double> squares;
    for (const gsc_report &one : each) {
        if (r.nan_count + r.inf_count == 0) {
            r.first_tensor = one.first_tensor;
            r.first_element = one.first_element;
        }
        r.generation = one.generation;
        r.measured = one.measured;
        r.amax = std::max(r.amax, one.amax);
        r.elements += one.elements;
        r.nan_count += one.nan_count;
        r.inf_count += one.inf_count;
        r.underflows_to_zero += one.underflows_to_zero;
        r.underflows_to_subnormal += one.underflows_to_subnormal;
        r.clamped += one.clamped;
        squares.push_back(one.sum_squares);
    }
    if (r.nan_count + r.inf_count == 0)
        r.first_tensor = r.first_element = 0;
    r.sum_squares = sum_in_runs(squares);
    r.overflow = r.nan_count + r.inf_count > 0;
    r.found_inf = static_cast<float>(r.overflow);
    return r;
}

struct Expected {
    Tensors out;
    Said said;
};

constexpr uint64_t serial = 7; /* of the factors here */

/* Outputs, and everything that can be asked for. */
Expected expected(const Tensors &in, const std::vector<Dtype> &out_types, double multiplier,
                  double clamp = 0)
{
    Expected e = {in.like(out_types), {}};
    const bool normal = std::isnormal(static_cast<float>(multiplier));
    for (uint64_t t = 0; t < in.size(); t++) {
        const Dtype &from = in.type(t), &to = e.out.type(t);
        const uint64_t parts = in.parts(t);
        const bool in_float = from.dtype != GSC_F64 && normal;
        const double m =
            in_float ? static_cast<double>(static_cast<float>(multiplier)) : multiplier;
        const double most = clamp != 0 ? limit_of(to, clamp) : 0;
        const bool copied = m == 1.0 && from.dtype == to.dtype && clamp == 0;
        std::vector<double> products(in.numbers(t));
        gsc_report r = measured;
        r.generation = serial;
        r.elements = static_cast<int64_t>(in.data()[t].count);
        for (uint64_t element = 0; element < in.data()[t].count; element++) {
            /* Of the part that counts, the larger one. */
            uint64_t before = 0, after = 0;
            double product = 0;
            bool is_clamped = false;
            for (uint64_t i = element * parts; i < (element + 1) * parts; i++) {
                const uint64_t bits = in.bits(t, i);
                const bool nan = is_nan(from, bits);
                const double x = in.value(t, i);
                products[i] =
                    in_float ? static_cast<double>(static_cast<float>(x) * static_cast<float>(m))
                             : x * m;
                const uint64_t rounded = copied ? bits
                                         : nan  ? convert_nan(from, to, bits)
                                                : encode(to, products[i]);
                const bool beyond = clamp != 0 && std::fabs(products[i]) > most;
                write_bits(to, e.out.at(t), i,
                           beyond ? encode(to, std::copysign(most, products[i])) : rounded);
                if (std::isfinite(products[i]))
                    r.amax = std::max(r.amax, std::fabs(products[i]));
                if (i % parts == 0 || (bits & ~from.sign()) > (before & ~from.sign())) {
                    before = bits;
                    after = rounded;
                    product = products[i];
                    is_clamped = beyond;
                }
            }
            const double x = decode(from, before), y = decode(to, after);
            const bool nan = is_nan(from, before), bad = !std::isfinite(clamp != 0 ? product : y),
                       was_subnormal = x != 0 && std::fabs(x) < decode(from, from.normal());
            if (bad && r.nan_count + r.inf_count == 0) {
                r.first_tensor = static_cast<int64_t>(t);
                r.first_element = static_cast<int64_t>(element);
            }
            r.nan_count += nan;
            r.inf_count += bad && !nan;
            r.underflows_to_zero += y == 0 && x != 0;
            r.underflows_to_subnormal +=
                y != 0 && std::fabs(y) < decode(to, to.normal()) && !was_subnormal;
            r.clamped += is_clamped;
            if (element * parts % 65536 >= 4096)
                continue;
            e.said.histogram[16]++;
            if (std::isfinite(product) && product != 0)
                e.said.histogram[static_cast<size_t>(
                    std::clamp((std::ilogb(product) + 48) >> 2, 0, 15))]++;
        }
        r.sum_squares = sum_of_squares(products, in_float);
        r.overflow = r.nan_count + r.inf_count > 0;
        r.found_inf = static_cast<float>(r.overflow);
        e.said.each.push_back(r);
    }
    e.said.report = together(e.said.each);
    e.said.report.generation = serial;
    return e;
}

/* ---- calls ---- */

/* As of a state: gsc_factor_init refuses what a float cannot hold. */
gsc_factor factor_of(double scale)
{
    return {scale, 1 / scale, static_cast<float>(scale), static_cast<float>(1 / scale), serial};
}

using Call = decltype(&gsc_unscale);

gsc_status check_only(const gsc_exec *on, const gsc_factor *factor, const gsc_tensor *in,
                      const gsc_tensor *, uint64_t n, const gsc_tensor_options *options,
                      gsc_report *report, gsc_error *err)
{
    return gsc_measure(on, factor, in, n, options, report, err);
}

/* What it says, out of memory that was full of a mark, so that what a call leaves out shows. */
Said said_by(Call call, const gsc_exec *on, const gsc_factor *factor, const Tensors &in,
             const gsc_tensor *out, uint32_t ask = ask_all, double clamp = 0)
{
    Said said;
    gsc_tensor_options options = wanting(ask & want_all);
    options.clamp = clamp;
    std::memset(&said.report, 0x5a, sizeof said.report);
    if (ask & ask_each) {
        said.each.resize(in.size(), said.report);
        options.per_tensor = said.each.data();
    }
    if (ask & ask_histogram) {
        said.histogram.fill(-1);
        options.histogram = said.histogram.data();
    }
    gsc_error err = {};
    const gsc_status status =
        call(on, factor, in.data(), out, in.size(), &options, &said.report, &err);
    if (status != GSC_OK)
        FAIL(status << " " << err.message);
    return said;
}

Said check(const gsc_exec *on, double scale, const Tensors &in, uint32_t ask = ask_all)
{
    const gsc_factor factor = factor_of(scale);
    return said_by(check_only, on, &factor, in, nullptr, ask);
}

Said unscale(const gsc_exec *on, double scale, const Tensors &in, const gsc_tensor *out,
             uint32_t ask = ask_all, double clamp = 0)
{
    const gsc_factor factor = factor_of(scale);
    return said_by(gsc_unscale, on, &factor, in, out, ask, clamp);
}

/* Unscale into `types`, in place too where the sizes allow it, and check where they are the same.
 */
std::string wrong_unscale(const Tensors &in, const std::vector<Dtype> &types, double scale,
                          uint32_t ask = ask_all, double clamp = 0)
{
    const Expected e = expected(in, types, 1 / scale, clamp);
    const Said said = only(ask, e.said);
    bool same_sizes = true, same_types = true;
    for (uint64_t i = 0; i < in.size(); i++) {
        same_sizes &= in.type(i).size == e.out.type(i).size;
        same_types &= in.type(i).dtype == e.out.type(i).dtype;
    }
    Tensors out = in.like(types);
    std::string wrong = difference(unscale(nullptr, scale, in, out.data(), ask, clamp), said);
    wrong += difference(out, e.out);
    if (same_types && clamp == 0)
        wrong += difference(check(nullptr, scale, in, ask), said);
    if (same_sizes) {
        const Tensors place = in.copy();
        const std::vector<gsc_tensor> seen = place.seen_as(e.out);
        wrong += difference(unscale(nullptr, scale, place, seen.data(), ask, clamp), said);
        for (uint64_t i = 0; i < in.size(); i++)
            if (seen[i].count &&
                std::memcmp(place.at(i), e.out.at(i), in.numbers(i) * in.type(i).size) != 0)
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

void add_random(Tensors &to, uint32_t dtype, uint64_t n, Kind kind, uint64_t seed)
{
    Random random = {seed};
    std::vector<uint64_t> bits(n * parts_of(dtype));
    for (uint64_t &b : bits)
        b = random_element(real(dtype), kind, random);
    to.add_bits(dtype, bits);
}

void add_random(Tensors &to, const Dtype &d, uint64_t n, Kind kind, uint64_t seed)
{
    add_random(to, d.dtype, n, kind, seed);
}

/* Every dtype with n elements, once for each of its outputs: `all_outputs` in turn; complex ones.
 */
const std::vector<Dtype> all_outputs(std::begin(dtypes), std::end(dtypes));

Tensors every_pair(uint64_t n, Kind kind)
{
    Tensors in;
    for (const Dtype &from : dtypes)
        for (uint64_t to = 0; to < all_outputs.size(); to++)
            add_random(in, from, n, kind, n * 16 + to);
    for (uint32_t dtype : {GSC_COMPLEX64, GSC_COMPLEX128})
        add_random(in, dtype, n, kind, n + dtype);
    return in;
}

/* ---- contexts ---- */

struct Pool {
    uint32_t threads;
    std::atomic<int> calls{0};
};

int32_t run_on_threads(void *pool, gsc_task *task, void *data, uint64_t count)
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
    return 0;
}

int32_t run_backwards(void *pool, gsc_task *task, void *data, uint64_t count)
{
    static_cast<Pool *>(pool)->calls++;
    while (count-- > 0)
        task(data, count);
    return 0;
}

/* Refuses its first call, or each one after that. */
int32_t refuse_first(void *pool, gsc_task *task, void *data, uint64_t count)
{
    Pool *p = static_cast<Pool *>(pool);
    return p->calls > 0 ? run_backwards(pool, task, data, count) : ++p->calls;
}

int32_t refuse_later(void *pool, gsc_task *task, void *data, uint64_t count)
{
    Pool *p = static_cast<Pool *>(pool);
    return p->calls == 0 ? run_backwards(pool, task, data, count) : ++p->calls;
}

class Context {
  public:
    Context(uint32_t threads, gsc_parallel_for *parallel_for) : pool{threads}
    {
        const gsc_cpu_options options = {GSC_CPU_OPTIONS_SIZE, threads, parallel_for,
                                         parallel_for ? &pool : nullptr};
        REQUIRE(gsc_context_create_cpu(&options, &context, nullptr) == GSC_OK);
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
    add_random(in, GSC_COMPLEX64, 200001, Kind::any, 1);
    for (uint64_t i = 0; i < 300; i++)
        add_random(in, static_cast<uint32_t>(i % 9 + 1), 100 + i, Kind::huge,
                   i); // complex ones, too
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
        int64_t nan_count, inf_count, first; // -1: none
        int64_t underflows_to_zero, underflows_to_subnormal;
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
        gsc_report report = measured;
        report.generation = serial;
        report.overflow = row.nan_count + row.inf_count > 0;
        report.found_inf = static_cast<float>(report.overflow);
        report.nan_count = row.nan_count;
        report.inf_count = row.inf_count;
        report.first_element = std::max<int64_t>(row.first, 0);
        report.underflows_to_zero = row.underflows_to_zero;
        report.underflows_to_subnormal = row.underflows_to_subnormal;
        report.amax = row.amax;
        report.sum_squares = row.sum_squares;
        report.elements = static_cast<int64_t>(row.values.size());
        Tensors in;
        in.add_values(row.in, row.values);
        const Tensors out = in.like({row.out});
        const uint32_t ask = want_all | ask_each;
        const Said said = {report, {report}, {}};
        CHECK(difference(unscale(nullptr, row.scale, in, out.data(), ask), said) == "");
        if (row.in.dtype == row.out.dtype) {
            CHECK(difference(check(nullptr, row.scale, in, ask), said) == "");
            CHECK(difference(unscale(nullptr, row.scale, in, in.data(), ask), said) == "");
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
                CHECK(wrong_unscale(every_pair(n, kind), all_outputs, scale) == "");
            }
}

TEST_CASE("unscale gives the bits of the numerics around the ends of blocks and chunks",
          "[tensors][long]")
{
    const double scales[] = {65536, 3, 0x1p-10, 1e39};
    uint64_t round = 0;
    for (uint64_t n : {4095u, 4096u, 4097u, 65535u, 65536u, 65537u, 131073u}) {
        const Kind kind = static_cast<Kind>(round % 4);
        const double scale = scales[round++ % 3];
        CAPTURE(n, static_cast<int>(kind), scale);
        CHECK(wrong_unscale(every_pair(n, kind), all_outputs, scale) == "");
    }
    CHECK(wrong_unscale(every_pair(65537, Kind::any), all_outputs, scales[3]) == "");
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
            CHECK(wrong_unscale(in, own, scale) == "");
            CHECK(wrong_unscale(crossed, {bf16, cb16, f16, f8_e5m2, f8_e4m3fn}, scale) == "");
        }
}

TEST_CASE("a report has only the measurements in options.want", "[tensors]")
{
    for (uint32_t ask = 0; ask <= ask_all; ask++)
        for (double scale : {65536.0, 1.0, 0.5, 1e39})
            for (Kind kind : {Kind::tiny, Kind::huge, Kind::any}) {
                Tensors in;
                for (const Dtype &d : all_outputs)
                    add_random(in, d, 200, kind, ask);
                add_random(in, GSC_COMPLEX64, 100, kind, ask);
                CAPTURE(ask, scale, static_cast<int>(kind));
                CHECK(wrong_unscale(in, all_outputs, scale, ask) == "");
                CHECK(wrong_unscale(in, {f64, f16, bf16, f32, cb16}, scale, ask) == "");
                const std::vector<Dtype> same_size = {f32,     f64,       bf16, cb16,
                                                      f8_e5m2, f8_e4m3fn, f16};
                CHECK(wrong_unscale(in, same_size, scale, ask) == "");
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
                const Said said = check(nullptr, 4, in);
                write_bits(d, in.at(2), at, 0);
                Said one;
                one.each.resize(3, measured);
                one.each[0].elements = 3;
                one.each[2].elements = n;
                for (gsc_report *report : {&one.each[2], &one.report}) {
                    report->found_inf = 1;
                    report->overflow = 1;
                    report->first_tensor = 2;
                    report->first_element = static_cast<int64_t>(at);
                    report->nan_count = is_nan(d, bad);
                    report->inf_count = !report->nan_count;
                }
                for (gsc_report *report : {&one.each[0], &one.each[1], &one.each[2], &one.report})
                    report->generation = serial;
                one.report.elements = n + 3;
                one.histogram[16] = 3 * 4096 + 2 - 4096 + 3;
                CAPTURE(d.name, at, bad);
                CHECK(difference(said, one) == "");
            }
    }
}

TEST_CASE("bad elements in each of many small tensors are all counted", "[tensors]")
{
    const uint64_t tensors = 20; // a list of fewer than 16 has no threshold of what overflows
    for (const Dtype &d : all_outputs)
        for (double scale : {65536.0, 0.5})
            for (uint32_t ask : {0u, ask_each, ask_each | GSC_WANT_NORM}) {
                Tensors in;
                for (uint64_t i = 0; i < tensors; i++)
                    add_random(in, d, 1 + 7 * i, Kind::any, i + 1);
                CAPTURE(d.name, scale, ask);
                CHECK(wrong_unscale(in, std::vector<Dtype>(tensors, d), scale, ask) == "");
                CHECK(wrong_unscale(in, std::vector<Dtype>(tensors, f32), scale, ask) == "");
            }
}

TEST_CASE("the first of several bad elements is the one of the earliest tensor", "[tensors]")
{
    Tensors in;
    in.add(f16, 0);
    in.add_values(f32, {1, 2, 3});
    in.add_values(f16, {1, 2, nan_value, infinity});
    in.add_values(f64, {infinity});
    const Said said = check(nullptr, 1, in);
    CHECK(said.report.first_tensor == 2);
    CHECK(said.report.first_element == 2);
    CHECK(said.each[3].first_tensor == 3);
    CHECK(said.each[3].first_element == 0);
}

TEST_CASE("a bad element is found at the end of a list of millions of tensors", "[tensors]")
{
    constexpr uint64_t n = (1u << 23) + 3;
    float bad = HUGE_VALF;
    std::vector<gsc_tensor> list(n, gsc_tensor{nullptr, 0, GSC_F32, 0, {}});
    for (uint64_t at : {n / 2, n - 1}) {
        list[at] = {&bad, 1, GSC_F32, 0, {}};
        gsc_report report;
        CHECK(gsc_measure(nullptr, nullptr, list.data(), n, nullptr, &report, nullptr) == GSC_OK);
        list[at] = list[0];
        CHECK(report.first_tensor == static_cast<int64_t>(at));
        CHECK(report.first_element == 0);
        CHECK(report.inf_count == 1);
    }
}

TEST_CASE("a multiplier of exactly 1 also copies the bits of signalling NaN", "[tensors]")
{
    for (const Dtype &d : dtypes) {
        Tensors in;
        in.add_bits(d, special_bits(d));
        const Tensors out = in.like({d}), scaled = in.like({d}), place = in.copy();
        const gsc_factor one = factor_of(1);
        unscale(nullptr, 1, in, out.data());
        unscale(nullptr, 1, place, place.data());
        said_by(gsc_scale, nullptr, &one, in, scaled.data());
        CHECK(difference(out, in) == "");
        CHECK(difference(place, in) == "");
        CHECK(difference(scaled, in) == "");
    }
}

TEST_CASE("gsc_scale multiplies by the scale, into Inf where there is no room, and reports on it",
          "[tensors]")
{
    for (double scale : {65536.0, 1.0, 0.1, 1e39, 1e-42})
        for (uint64_t n : {1u, 65u, 4097u})
            for (double clamp : {0.0, 500.0}) {
                const Tensors in = every_pair(n, Kind::any);
                const Expected e = expected(in, all_outputs, scale, clamp);
                Tensors out = in.like(all_outputs), without = in.like(all_outputs);
                const gsc_factor factor = factor_of(scale);
                CAPTURE(scale, n, clamp);
                CHECK(
                    difference(said_by(gsc_scale, nullptr, &factor, in, out.data(), ask_all, clamp),
                               e.said) == "");
                CHECK(difference(out, e.out) == "");
                gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
                options.clamp = clamp;
                CHECK(gsc_scale(nullptr, &factor, in.data(), without.data(), in.size(), &options,
                                nullptr, nullptr) == GSC_OK);
                CHECK(difference(without, e.out) == "");
            }
}

TEST_CASE("an empty list is legal, and so is a tensor without data", "[tensors]")
{
    const gsc_factor factor = factor_of(2);
    Tensors nothing, empty;
    empty.add(f16, 0);
    empty.add(GSC_COMPLEX128, 0);
    for (const Tensors *list : {&nothing, &empty}) {
        Said said;
        said.report.generation = serial;
        said.each.resize(list->size(), said.report);
        for (Call call : {check_only, gsc_unscale, gsc_scale, gsc_unscale_accumulate})
            CHECK(difference(said_by(call, nullptr, &factor, *list, list->data()), said) == "");
        said.report.generation = 0;
        CHECK(difference(said_by(check_only, nullptr, nullptr, *list, nullptr, 0).report,
                         only(0, said.report)) == "");
    }
}

TEST_CASE("two output dtypes that alternate are planned once each", "[tensors]")
{
    Tensors in;
    for (int i = 0; i < 200; i++)
        in.add(f32, 3);
    const Tensors out = in.like({f16, bf16});
    plans_made = 0;
    REQUIRE(gsc_unscale(nullptr, nullptr, in.data(), out.data(), in.size(), nullptr, nullptr,
                        nullptr) == GSC_OK);
    CHECK(plans_made == 2);
}

TEST_CASE("unscale without a report writes the same", "[tensors]")
{
    const Tensors in = every_pair(4097, Kind::any);
    for (double scale : {3.0, 1.0, 1e39}) {
        const gsc_factor factor = factor_of(scale);
        Tensors out = in.like(all_outputs), expected_out = in.like(all_outputs);
        const Said said = unscale(nullptr, scale, in, expected_out.data());
        CHECK(gsc_unscale(nullptr, &factor, in.data(), out.data(), in.size(), nullptr, nullptr,
                          nullptr) == GSC_OK);
        CHECK(difference(out, expected_out) == "");
        Said without; // the report of the list is none of each
        without.each.resize(in.size());
        gsc_tensor_options options = wanting(want_all);
        options.per_tensor = without.each.data();
        CHECK(gsc_unscale(nullptr, &factor, in.data(), out.data(), in.size(), &options, nullptr,
                          nullptr) == GSC_OK);
        without.report = said.report;
        without.histogram = said.histogram;
        CHECK(difference(without, said) == "");
    }
}

TEST_CASE("a check without a factor is one of the values as they are", "[tensors]")
{
    const Tensors in = every_pair(100, Kind::any);
    Said said = check(nullptr, 1, in);
    said.report.generation = 0;
    for (gsc_report &report : said.each)
        report.generation = 0;
    CHECK(difference(said_by(check_only, nullptr, nullptr, in, nullptr), said) == "");
    gsc_report report;
    REQUIRE(gsc_measure(nullptr, nullptr, in.data(), in.size(), nullptr, &report, nullptr) ==
            GSC_OK);
    CHECK(difference(report, only(0, said.report)) == "");
}

TEST_CASE("a large list, written around the caches, gives the same bytes as its parts", "[tensors]")
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
            const gsc_report whole = unscale(nullptr, scale, in, out.data()).report;
            const gsc_tensor_options options = wanting(want_all);
            std::vector<gsc_report> reports;
            gsc_report merged;
            const gsc_factor factor = factor_of(scale);
            for (uint64_t i = 0; i < n; i += piece) {
                const uint64_t count = std::min(piece, n - i);
                const gsc_tensor part = {in.at(1) + i * 4, count, GSC_F32, 0, {}},
                                 result = {pieces.at(1) + i * to.size, count, to.dtype, 0, {}};
                reports.emplace_back();
                REQUIRE(gsc_unscale(nullptr, &factor, &part, &result, 1, &options, &reports.back(),
                                    nullptr) == GSC_OK);
            }
            REQUIRE(gsc_report_merge(nullptr, reports.data(), reports.size(), GSC_MERGE_SHARDS,
                                     nullptr, &merged, nullptr) == GSC_OK);
            CAPTURE(to.name, scale);
            CHECK(std::memcmp(out.at(1), pieces.at(1), n * to.size) == 0);
            CHECK(whole.nan_count == merged.nan_count);
            CHECK(whole.inf_count == merged.inf_count);
            CHECK(whole.underflows_to_zero == merged.underflows_to_zero);
            CHECK(whole.amax == merged.amax);
        }
    }
}

TEST_CASE("small tensors in a large list give the same results as alone", "[tensors]")
{
    for (const Dtype &to : {f32, f16})
        for (uint32_t want : {0u, GSC_WANT_UNDERFLOW, GSC_WANT_NORM})
            for (double scale : {65536.0, 0x1p-16, 0.75}) {
                Tensors in;
                in.add(f32, 17u << 18);
                for (uint64_t i = 0; i < 40; i++)
                    add_random(in, f32, 1 + i * i * 2, i % 3 ? Kind::any : Kind::tiny, i);
                const Tensors out = in.like({to}), alone = in.like({to});
                Said one_by_one = unscale(nullptr, scale, in, out.data(), want | ask_each);
                const Said said = one_by_one;
                const gsc_factor factor = factor_of(scale);
                const gsc_tensor_options options = wanting(want);
                for (uint64_t i = 0; i < in.size(); i++) {
                    gsc_report &one = one_by_one.each[i];
                    REQUIRE(gsc_unscale(nullptr, &factor, in.data() + i, alone.data() + i, 1,
                                        &options, &one, nullptr) == GSC_OK);
                    if (one.overflow)
                        one.first_tensor = static_cast<int64_t>(i);
                }
                one_by_one.report = together(one_by_one.each);
                CAPTURE(to.name, want, scale);
                CHECK(difference(said, one_by_one) == "");
                for (uint64_t i = 0; i < in.size(); i++)
                    CHECK(std::memcmp(out.at(i), alone.at(i), in.data()[i].count * to.size) == 0);
            }
}

/* ---- limits and sums ---- */

TEST_CASE("a clamp bounds the products, reports on them before, and counts what it changed",
          "[tensors]")
{
    for (double scale : {65536.0, 1.0, 0.5, 3.0, 1e39})
        for (Kind kind : {Kind::moderate, Kind::tiny, Kind::huge, Kind::any})
            for (double limit : {1.0, 0.1, 448.0, 0.003, 1e30})
                for (uint32_t ask : {ask_all, 0u}) {
                    CAPTURE(scale, static_cast<int>(kind), limit, ask);
                    CHECK(wrong_unscale(every_pair(70, kind), all_outputs, scale, ask, limit) ==
                          "");
                }
}

TEST_CASE("a clamp around the ends of blocks and chunks, in place and apart", "[tensors]")
{
    Tensors in;
    std::vector<Dtype> own;
    for (const Dtype &d : all_outputs)
        for (uint64_t n : {4095u, 4097u, 65537u}) {
            add_random(in, d, n, Kind::any, n);
            own.push_back(d);
        }
    CHECK(wrong_unscale(in, own, 3, ask_all, 2) == "");
    CHECK(wrong_unscale(in, all_outputs, 3, ask_all, 2) == "");
}

TEST_CASE("what a clamp changed is counted by element, NaN not at all", "[tensors]")
{
    struct Row {
        const char *what;
        uint32_t dtype;
        std::vector<double> parts;
        double clamp;
        int64_t clamped;
    };
    const Row rows[] = {
        {"at the limit nothing changes", GSC_F32, {2, -2, 1, 0}, 2, 0},
        {"of both signs", GSC_F16, {3, -3, 1, 4}, 2, 3},
        {"Inf is, NaN is not", GSC_F64, {infinity, nan_value, -infinity}, 2, 2},
        {"a complex element counts once", GSC_COMPLEX64, {3, 3, 3, 0, 0, 3, 1, 1}, 2, 3},
        {"as its larger part, which a NaN is", GSC_COMPLEX128, {3, nan_value, 1, 3}, 2, 1},
        {"what was rounded up to its dtype is beyond", GSC_F32, {0.1}, 0.1, 1},
    };
    for (const Row &row : rows) {
        Tensors in;
        std::vector<uint64_t> bits;
        for (double x : row.parts)
            bits.push_back(std::isnan(x) ? real(row.dtype).nan() : encode(real(row.dtype), x));
        in.add_bits(row.dtype, bits);
        const Tensors out = in.copy();
        CAPTURE(row.what);
        for (const gsc_tensor *to : {out.data(), in.data()}) {
            const Said said = unscale(nullptr, 1, in, to, ask_all, row.clamp);
            CHECK(said.report.clamped == row.clamped);
            CHECK(said.each[0].clamped == row.clamped);
        }
        CHECK(unscale(nullptr, 1, in, in.data()).report.clamped == 0);
    }
}

TEST_CASE("a clamp's limit is the largest value of the output that is not above it", "[tensors]")
{
    struct Row {
        uint32_t from, to;
        double x, clamp;
        uint64_t bits;
        int64_t overflow;
    };
    const Row rows[] = {
        {GSC_F32, GSC_F16, 70000, 1e5, 0x7bff, 0},
        {GSC_F32, GSC_F8_E4M3FN, 470, 500, 0x7e, 0},
        {GSC_F32, GSC_F32, infinity, 1e39, 0x7f7fffff, 1},
        {GSC_F64, GSC_F64, infinity, 1e308, 0x7fe1ccf385ebc8a0, 1},
        {GSC_F32, GSC_BF16, 1, 0.1, 0x3dcc, 0},
        {GSC_F32, GSC_F32, 1, 0.1, 0x3dcccccc, 0},
        {GSC_F32, GSC_F64, 1, 0.1, 0x3fb999999999999a, 0},
        {GSC_F64, GSC_F32, 1, 0.1, 0x3dcccccc, 0},
        {GSC_F32, GSC_F32, 1, 1e-45, 0, 0}, /* refused */
        {GSC_F32, GSC_F32, 1, 1.5e-45, 1, 0},
        {GSC_F64, GSC_F64, 1, 4.9e-324, 1, 0},
        {GSC_F32, GSC_F16, 1, 7e-8, 1, 0},
        {GSC_BF16, GSC_F8_E4M3FN, 1, 0.0025, 1, 0},
        {GSC_F16, GSC_CB16, infinity, 1e30, 0x7dff, 1},
    };
    for (const Row &row : rows) {
        Tensors in;
        in.add_values(real(row.from), {row.x});
        const Tensors out = in.like({real(row.to)});
        CAPTURE(row.from, row.to, row.clamp);
        gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
        options.clamp = row.clamp;
        gsc_report report = measured;
        gsc_error error = {};
        const gsc_status status =
            gsc_unscale(nullptr, nullptr, in.data(), out.data(), 1, &options, &report, &error);
        if (row.bits == 0) {
            CHECK(status == GSC_ERROR_VALUE);
            CHECK(std::string(error.message).find("options.clamp is 1e-45: ") == 0);
            continue;
        }
        CHECK(status == GSC_OK);
        CHECK(out.bits(0, 0) == row.bits);
        CHECK(report.overflow == row.overflow);
        CHECK(report.clamped == 1);
    }
}

TEST_CASE("with the largest value as limit a clamp casts with saturation", "[tensors]")
{
    Tensors in;
    in.add_values(f32, {1000, -1e30, 447, infinity, nan_value});
    for (Call call : {gsc_unscale, gsc_scale}) {
        const Tensors out = in.like({f8_e4m3fn});
        const Said said = said_by(call, nullptr, nullptr, in, out.data(), ask_all, 448);
        for (uint64_t i : {0u, 3u})
            CHECK(out.bits(0, i) == 0x7e);
        CHECK(out.bits(0, 1) == 0xfe);
        CHECK(is_nan(f8_e4m3fn, out.bits(0, 4)));
        CHECK(said.report.inf_count == 1);
        CHECK(said.report.nan_count == 1);
        CHECK(said.report.clamped == 3);
    }
}

/* The product of one number of a list in the multiplying type, as `expected` has it. */
double product(const Tensors &in, uint64_t t, uint64_t i, double multiplier)
{
    const bool normal = std::isnormal(static_cast<float>(multiplier));
    if (in.type(t).dtype == GSC_F64 || !normal)
        return in.value(t, i) * multiplier;
    return static_cast<double>(static_cast<float>(in.value(t, i)) * static_cast<float>(multiplier));
}

TEST_CASE("gsc_unscale_accumulate adds products and rounds once", "[tensors]")
{
    for (double scale : {65536.0, 1.0, 3.0, 1e39})
        for (Kind kind : {Kind::moderate, Kind::tiny})
            for (uint64_t n : {1u, 15u, 64u, 77u, 4099u}) {
                Tensors in = every_pair(n, kind);
                Tensors out = in.like(all_outputs), sums = in.like(all_outputs);
                Random random = {n};
                for (uint64_t t = 0; kind == Kind::moderate && t < in.size(); t++)
                    for (uint64_t i = 0; i < in.numbers(t); i++) // within the range of every dtype
                        write_bits(in.type(t), in.at(t), i,
                                   encode(in.type(t), 800 * (random.unit() - 0.5)));
                for (uint64_t t = 0; t < in.size(); t++)
                    for (uint64_t i = 0; i < in.numbers(t); i++) {
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
                CAPTURE(scale, static_cast<int>(kind), n);
                const Said said = said_by(gsc_unscale_accumulate, nullptr, &factor, in, out.data());
                CHECK(difference(said, expected(in, all_outputs, 1 / scale).said) == "");
                REQUIRE(said.report.overflow == 0);
                CHECK(difference(out, sums) == "");
            }
}

TEST_CASE("gsc_unscale_accumulate adds nothing of a list with one bad element", "[tensors]")
{
    Tensors in, out;
    in.add_values(f16, std::vector<double>(70000, 1));
    in.add_values(f16, {1, 2, 60000});
    out.add_values(f32, std::vector<double>(70000, 5));
    out.add_values(f8_e5m2, {1, 2, 3}); // up to 57344
    const Tensors before = out.copy();
    CHECK(said_by(gsc_unscale_accumulate, nullptr, nullptr, in, out.data()).report.overflow == 0);
    CHECK(out.value(0, 69999) == 6);
    CHECK(out.value(1, 2) == 57344);
    write_bits(f16, in.at(1), 2, 0x7bff);
    const Tensors after = out.copy();
    const Said said = said_by(gsc_unscale_accumulate, nullptr, nullptr, in, out.data());
    CHECK(said.report.overflow == 1);
    CHECK(said.report.inf_count == 1);
    CHECK(said.report.first_tensor == 1);
    CHECK(said.each[0].overflow == 0);
    CHECK(said.each[1].overflow == 1);
    CHECK(difference(out, after) == "");
    CHECK(difference(out, before) != "");
}

/* ---- complex ---- */

TEST_CASE("a complex value is two real ones and counts once, as its larger part", "[tensors]")
{
    for (uint32_t dtype : {GSC_COMPLEX64, GSC_COMPLEX128})
        for (double scale : {65536.0, 1.0, 0.5, 0x1p120, 1e39})
            for (Kind kind : {Kind::moderate, Kind::tiny, Kind::huge, Kind::any})
                for (uint64_t n : {1u, 33u, 2049u, 33000u})
                    for (double clamp :
                         n > 2049 ? std::vector<double>{0} : std::vector<double>{0, 1}) {
                        Tensors in;
                        add_random(in, dtype, n, kind, n);
                        CAPTURE(dtype, scale, static_cast<int>(kind), n, clamp);
                        CHECK(wrong_unscale(in, {}, scale, ask_all, clamp) == "");
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
            const long double sum =
                static_cast<long double>(check(nullptr, 1, in).report.sum_squares);
            CAPTURE(d.name, range[0], range[1]);
            CHECK(static_cast<double>(std::fabs(sum / exact - 1)) <
                  (d.dtype == GSC_F64 ? double_bound : float_bound));
        }
}

TEST_CASE("a block sum below 2^-80 is summed again in double", "[tensors]")
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
        CHECK(check(nullptr, 1, in).report.sum_squares == sum);
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
    for (uint32_t ask : {ask_each + 0u, 0u}) {
        const Said said = check(nullptr, 3, in, GSC_WANT_NORM | GSC_WANT_AMAX | ask);
        CHECK(said.report.sum_squares == e.said.report.sum_squares);
        CHECK(said.report.amax == e.said.report.amax);
    }
}

/* ---- each tensor ---- */

TEST_CASE("the reports of each tensor merge to that of the list, bit for bit", "[tensors][threads]")
{
    const Context context(3, run_on_threads);
    for (uint64_t n : {0u, 1u, 63u, 64u, 65u, 200u, 4100u}) {
        Tensors in;
        for (uint64_t i = 0; i < n; i++)
            add_random(in, static_cast<uint32_t>(i % 9 + 1), n > 200 ? i % 90 : i * i % 9000,
                       i % 5 ? Kind::moderate : Kind::any, i);
        if (n == 200)
            add_random(in, f32, 70 * 65536 + 1, Kind::moderate, n); // more chunks than a run
        for (uint32_t ask = 0; ask < 8; ask++) {
            const gsc_exec *const on = ask % 2 ? context.on() : nullptr;
            const Said said = check(on, 3, in, ask | ask_each);
            gsc_report merged;
            CHECK(gsc_report_merge(nullptr, said.each.data(), in.size(), GSC_MERGE_SHARDS, nullptr,
                                   &merged, nullptr) == GSC_OK);
            if (n == 0)
                merged = said.report;
            merged.kind = said.report.kind;
            CAPTURE(n, ask);
            CHECK(difference(said.report, merged) == "");
        }
    }
}

TEST_CASE("each tensor's report is that of the tensor alone", "[tensors]")
{
    const Tensors in = long_list();
    const gsc_tensor_options options = wanting(want_all);
    for (double scale : {3.0, 1e39}) {
        const Said said = check(nullptr, scale, in);
        const gsc_factor factor = factor_of(scale);
        for (uint64_t i = 0; i < in.size(); i++) {
            gsc_report alone;
            REQUIRE(gsc_measure(nullptr, &factor, in.data() + i, 1, &options, &alone, nullptr) ==
                    GSC_OK);
            if (alone.overflow)
                alone.first_tensor = static_cast<int64_t>(i);
            CAPTURE(i, scale);
            CHECK(difference(said.each[i], alone) == "");
        }
    }
}

/* ---- verdicts ---- */

TEST_CASE("with a policy, report.overflow agrees with the next update, for every preset",
          "[tensors]")
{
    std::vector<Tensors> lists(6);
    lists[0].add_values(f32, {1, -2, 3});
    lists[1].add_values(f32, {1, nan_value, 3});
    lists[2].add_values(f32, {1e19, 1e19});
    lists[3].add_values(f32, {2e19, 1}); // its square is above the largest float
    lists[4].add_values(f64, {1e200, 1});
    lists[5].add(f16, 3);
    const char *const by_norm[] = {"fairseq", "fairscale"};
    int by_norm_alone = 0;
    for (uint32_t i = 0; gsc_preset_name(i); i++)
        for (const Tensors &in : lists)
            for (Call call : {check_only, gsc_unscale, gsc_scale, gsc_unscale_accumulate}) {
                gsc_policy policy = GSC_POLICY_INIT;
                REQUIRE(gsc_policy_preset(gsc_preset_name(i), &policy, nullptr) == GSC_OK);
                policy.init_scale = 1;
                policy.guard_warmup = 1; /* an outlier is no overflow: the update alone finds it */
                gsc_state state;
                REQUIRE(gsc_state_init(nullptr, &policy, &state, nullptr) == GSC_OK);
                std::vector<gsc_report> each(in.size());
                gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
                options.policy = &policy;
                options.per_tensor = each.data();
                gsc_report report, judged, merged;
                const Tensors out = in.like({f64});
                CAPTURE(gsc_preset_name(i));
                REQUIRE(call(nullptr, &state.factor, in.data(), out.data(), in.size(), &options,
                             &report, nullptr) == GSC_OK);
                gsc_state updated;
                REQUIRE(gsc_state_update(nullptr, &policy, &state, &report, &updated, nullptr) ==
                        GSC_OK);
                // Outliers are for the update alone to tell.
                const bool skipped =
                    updated.events & GSC_EVENT_SKIPPED && !(updated.events & GSC_EVENT_OUTLIER);
                CHECK(report.overflow == skipped);
                CHECK(report.found_inf == static_cast<float>(skipped));
                CHECK((updated.events & GSC_EVENT_STALE) == 0);

                // Of a tensor, `overflow` says whether something in it is Inf or NaN.
                CHECK(each[0].overflow == (each[0].nan_count + each[0].inf_count > 0));
                REQUIRE(gsc_report_merge(nullptr, each.data(), each.size(), GSC_MERGE_SHARDS,
                                         &policy, &merged, nullptr) == GSC_OK);
                merged.kind = report.kind;
                CHECK(difference(merged, report) == "");

                // What the policy judges by is measured, and nothing else.
                options.policy = nullptr;
                const bool guards =
                    policy.guard_norm != 0 || policy.guard_ratio != 0 || policy.guard_sigmas != 0;
                options.want =
                    (policy.overflow_test == GSC_TEST_NORM || guards ? GSC_WANT_NORM : 0) |
                    (policy.target_amax != 0 ? GSC_WANT_AMAX : 0);
                REQUIRE(call(nullptr, &state.factor, in.data(), in.like({f64}).data(), in.size(),
                             &options, &judged, nullptr) == GSC_OK);
                CHECK(judged.overflow == (judged.nan_count + judged.inf_count > 0));
                by_norm_alone += judged.overflow != report.overflow;
                judged.overflow = report.overflow;
                judged.found_inf = report.found_inf;
                CHECK(difference(report, judged) == "");
                if (std::count(std::begin(by_norm), std::end(by_norm),
                               std::string(gsc_preset_name(i))))
                    CHECK(options.want == GSC_WANT_NORM);
            }
    CHECK(by_norm_alone > 0);
}

TEST_CASE("a policy adds measurements to options.want and removes none", "[tensors]")
{
    gsc_policy policy = GSC_POLICY_INIT;
    policy.overflow_test = GSC_TEST_NORM;
    policy.target_amax = 1;
    const Tensors in = every_pair(100, Kind::moderate);
    for (uint32_t want = 0; want <= want_all; want++) {
        gsc_tensor_options options = wanting(want);
        options.policy = &policy;
        gsc_report report;
        REQUIRE(gsc_measure(nullptr, nullptr, in.data(), in.size(), &options, &report, nullptr) ==
                GSC_OK);
        CHECK(report.measured == (want | GSC_WANT_NORM | GSC_WANT_AMAX));
    }
}

TEST_CASE("accumulate adds if every product is finite, even if report.overflow is 1", "[tensors]")
{
    gsc_policy policy = GSC_POLICY_INIT;
    policy.overflow_test = GSC_TEST_NORM;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.policy = &policy;
    Tensors in, out;
    in.add_values(f32, {2e19, 1});
    out.add_values(f32, {1, 1});
    gsc_report report;
    REQUIRE(gsc_unscale_accumulate(nullptr, nullptr, in.data(), out.data(), 1, &options, &report,
                                   nullptr) == GSC_OK);
    CHECK(report.overflow == 1);
    CHECK(out.value(0, 1) == 2);
}

/* ---- memory ---- */

TEST_CASE("memory of a context is aligned, copied and freed", "[tensors]")
{
    const Context two(2, run_backwards);
    for (const gsc_exec *on : {static_cast<const gsc_exec *>(nullptr), two.on()})
        for (uint32_t kind : {GSC_MEMORY_DEVICE, GSC_MEMORY_HOST})
            for (uint64_t size : {1u, 4u, 255u, 256u, 100001u}) {
                gsc_context *const context = on ? on->context : nullptr;
                void *from = nullptr, *to = nullptr;
                CAPTURE(on == nullptr, kind, size);
                REQUIRE(gsc_memory_create(context, kind, size, &from, nullptr) == GSC_OK);
                REQUIRE(gsc_memory_create(context, kind, size, &to, nullptr) == GSC_OK);
                CHECK(reinterpret_cast<uintptr_t>(from) % 256 == 0);
                CHECK(reinterpret_cast<uintptr_t>(to) % 256 == 0);
                std::memset(from, 0x17, size);
                std::memset(to, 0x2a, size);
                CHECK(gsc_memory_copy(on, to, from, size - 1, nullptr) == GSC_OK);
                CHECK(gsc_exec_wait(on, nullptr) == GSC_OK);
                const unsigned char *const bytes = static_cast<unsigned char *>(to);
                CHECK(std::count(bytes, bytes + size, 0x17) == static_cast<int64_t>(size) - 1);
                CHECK(bytes[size - 1] == 0x2a);
                gsc_memory_destroy(context, from);
                gsc_memory_destroy(context, to);
                gsc_memory_destroy(context, nullptr);
            }
    void *none = &none;
    CHECK(gsc_memory_create(nullptr, GSC_MEMORY_DEVICE, 0, &none, nullptr) == GSC_OK);
    CHECK(none == nullptr);
}

TEST_CASE("a call on the CPU needs no workspace", "[tensors]")
{
    const Tensors in = long_list();
    const Context two(2, run_backwards);
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_tensor_options options = wanting(want_all);
    options.policy = &policy;
    for (const gsc_exec *on : {static_cast<const gsc_exec *>(nullptr), two.on()})
        for (const gsc_tensor_options *some : {static_cast<const gsc_tensor_options *>(nullptr),
                                               static_cast<const gsc_tensor_options *>(&options)}) {
            uint64_t size = 1;
            CHECK(gsc_workspace_size(on, in.data(), in.size(), some, &size, nullptr) == GSC_OK);
            CHECK(size == 0);
        }
}

/* ---- threads and processes ---- */

TEST_CASE("a pool gives the bytes of one thread", "[tensors][threads]")
{
    const Tensors in = long_list();
    const gsc_factor factor = factor_of(0.75);
    for (Call call : {check_only, gsc_unscale, gsc_scale, gsc_unscale_accumulate})
        for (double clamp : {0.0, 20.0}) {
            if (clamp != 0 && (call == check_only || call == gsc_unscale_accumulate))
                continue;
            Tensors serial_out = in.like(all_outputs);
            const Said alone =
                said_by(call, nullptr, &factor, in, serial_out.data(), ask_all, clamp);
            for (uint32_t threads : {1u, 3u, 100u})
                for (gsc_parallel_for *parallel_for : {run_on_threads, run_backwards}) {
                    const Context context(threads, parallel_for);
                    Tensors out = in.like(all_outputs);
                    CAPTURE(threads, clamp);
                    CHECK(difference(
                              said_by(call, context.on(), &factor, in, out.data(), ask_all, clamp),
                              alone) == "");
                    CHECK(difference(out, serial_out) == "");
                    CHECK((context.calls() > 0) == (threads > 1));
                }
        }
}

TEST_CASE("a pool that refuses a call ends it unwritten; later in a call its thread goes on",
          "[tensors][threads]")
{
    const Tensors in = long_list();
    const gsc_factor factor = factor_of(0.75);
    for (Call call : {check_only, gsc_unscale, gsc_scale, gsc_unscale_accumulate}) {
        Tensors alone_out = in.like(all_outputs), out = in.like(all_outputs),
                kept = in.like(all_outputs), before = in.like(all_outputs);
        const Said alone = said_by(call, nullptr, &factor, in, alone_out.data(), ask_all, 0);
        const Context later(3, refuse_later);
        CHECK(difference(said_by(call, later.on(), &factor, in, out.data(), ask_all, 0), alone) ==
              "");
        CHECK(difference(out, alone_out) == "");
        CHECK(later.calls() > 1);

        const Context first(3, refuse_first);
        std::vector<gsc_report> each(in.size(), gsc_report{}), marked;
        for (gsc_report &report : each)
            report.generation = 42;
        marked = each;
        std::vector<int64_t> histogram(GSC_HISTOGRAM_LENGTH, 42);
        gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
        options.per_tensor = each.data();
        options.histogram = histogram.data();
        gsc_report report = marked[0];
        gsc_error err;
        CHECK(call(first.on(), &factor, in.data(), kept.data(), in.size(), &options, &report,
                   &err) == GSC_ERROR_MEMORY);
        CHECK(std::string(err.message).find("the pool of the context ran no task") == 0);
        CHECK(difference(kept, before) == "");
        CHECK(same(report, marked[0]));
        for (size_t i = 0; i < each.size(); i++)
            CHECK(same(each[i], marked[i]));
        CHECK(histogram == std::vector<int64_t>(GSC_HISTOGRAM_LENGTH, 42));
    }
}

#if defined(__x86_64__)
TEST_CASE("a pool whose threads flush subnormal numbers gives the bytes of the caller",
          "[tensors][threads]")
{
    const auto flushing = [](void *pool, gsc_task *task, void *data, uint64_t count) {
        std::thread([=] {
            _mm_setcsr(_mm_getcsr() | 0x8040);
            run_backwards(pool, task, data, count);
        }).join();
        return 0;
    };
    Tensors in;
    for (const Dtype &d : all_outputs)
        add_random(in, d, 400000, Kind::tiny, 1);
    Tensors alone_out = in.like({f32, f64}), out = in.like({f32, f64});
    const Said alone = unscale(nullptr, 0x1p10, in, alone_out.data());
    const Context context(2, flushing);
    CHECK(difference(unscale(context.on(), 0x1p10, in, out.data()), alone) == "");
    CHECK(difference(out, alone_out) == "");
    CHECK(context.calls() > 0);
}
#endif

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
/* Bytes of stack that a thread of its own touches. */
size_t stack_of(const std::function<void()> &body)
{
    Bytes stack(2 << 20, 0xa5);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack.data(), stack.size());
    pthread_t thread;
    const auto run = [](void *data) -> void * {
        (*static_cast<const std::function<void()> *>(data))();
        return nullptr;
    };
    REQUIRE(pthread_create(&thread, &attributes, run,
                           const_cast<void *>(static_cast<const void *>(&body))) == 0);
    pthread_join(thread, nullptr);
    size_t free = 0;
    while (stack[free] == 0xa5)
        free++;
    return stack.size() - free;
}

TEST_CASE("a call needs less stack than the header says, whatever the compiler", "[tensors]")
{
    const size_t start = stack_of([] {}); // of the thread itself
#if defined(GSC_SANITIZED)                // whose kernels are calls with frames of their own
    const size_t most = 160 << 10;
#else
    const size_t most = 112 << 10; // of 120: the linker takes some at the first call
#endif
    Tensors in;
    for (const Dtype &d : {f32, f32, f64})
        add_random(in, d, 70000, Kind::any, 1);
    for (double scale : {65536.0, 1e39})
        CHECK(stack_of([&] {
                  const gsc_factor factor = factor_of(scale);
                  const Tensors half = in.like({f16, f32, f64}), sums = in.like({f64});
                  gsc_report report, each[3];
                  int64_t histogram[GSC_HISTOGRAM_LENGTH];
                  gsc_tensor_options all = wanting(want_all), clamping = all,
                                     some = GSC_TENSOR_OPTIONS_INIT;
                  all.per_tensor = clamping.per_tensor = each;
                  all.histogram = clamping.histogram = histogram;
                  clamping.clamp = 1;
                  for (const gsc_tensor_options *options : {&all, &clamping, &some})
                      for (const Tensors *out : {&half, static_cast<const Tensors *>(&in)})
                          gsc_unscale(nullptr, &factor, in.data(), out->data(), 3, options, &report,
                                      nullptr);
                  gsc_unscale_accumulate(nullptr, &factor, in.data(), sums.data(), 3, &all, &report,
                                         nullptr);
              }) < most + start);
}
#endif

TEST_CASE("without a factor gsc_scale and gsc_unscale cast", "[tensors]")
{
    float values[] = {1, -2.5f, 70000, 0};
    uint16_t halves[4] = {}, again[4] = {};
    const gsc_tensor in = {values, 4, GSC_F32, 0, {}}, out = {halves, 4, GSC_F16, 0, {}},
                     second = {again, 4, GSC_F16, 0, {}};
    gsc_report report;
    REQUIRE(gsc_scale(nullptr, nullptr, &in, &out, 1, nullptr, nullptr, nullptr) == GSC_OK);
    REQUIRE(gsc_unscale(nullptr, nullptr, &in, &second, 1, nullptr, &report, nullptr) == GSC_OK);
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
                Said said;
                said.each.resize(inputs[i].size());
                gsc_tensor_options options = wanting(want_all);
                options.per_tensor = said.each.data();
                options.histogram = said.histogram.data();
                Tensors out = inputs[i].like(all_outputs);
                gsc_info info = GSC_INFO_INIT;
                gsc_status status = gsc_info_get(&info, nullptr);
                status |= gsc_unscale(context.on(), &factor, inputs[i].data(), out.data(),
                                      out.size(), &options, &said.report, nullptr);
                right += status == GSC_OK && difference(said, results[i].said).empty() &&
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
            const gsc_tensor_options options = wanting(want_all);
            const gsc_status status = gsc_unscale(on, &factor, in.data(), out.data(), in.size(),
                                                  &options, &report, nullptr);
            right &=
                status == GSC_OK && same(report, e.said.report) && difference(out, e.out).empty();
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
        const gsc_tensor_options options = wanting(want_all);
        constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040, flags = 0x3f;
        const unsigned before = _mm_getcsr();
        _mm_setcsr(before | flush_to_zero | denormals_are_zero);
        gsc_unscale(nullptr, &factor, in.data(), out.data(), in.size(), &options, &report, nullptr);
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
        CHECK(report.amax == e.said.report.amax);
        CHECK(report.sum_squares == e.said.report.sum_squares);
    }
}
#endif

/* ---- what runs here ---- */

TEST_CASE("gsc_info names the rung that GSC_CPU asks for, or says why not", "[info]")
{
    gsc_info info = GSC_INFO_INIT;
    REQUIRE(gsc_info_get(&info, nullptr) == GSC_OK);
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
#if defined(__x86_64__)
    // The first CPUs with AVX-512 have no VBMI, and their owners are to know.
    CHECK((note.find("without AVX-512 F, BW, DQ, VL and VBMI (scalar") != std::string::npos) ==
          (asked == "avx512" && !can));
#endif
    CHECK(info.version == gsc_version());
}
