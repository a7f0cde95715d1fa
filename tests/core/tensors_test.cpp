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

/* ---- lists of tensors ---- */

uint64_t parts_of(uint32_t dtype)
{
    return is_complex(dtype) ? 2 : 1;
}

/* Tensors with the memory that they lie in, every second one at an odd address. */
struct Tensors : std::vector<gsc_tensor> {
    Tensors() = default;
    Tensors(Tensors &&) = default;
    Tensors &operator=(Tensors &&) = default;

    /* `count` zeros; of a complex dtype, too. */
    void add(uint32_t dtype, uint64_t count)
    {
        const bool odd = memory.size() % 2 == 1;
        memory.emplace_back(count * gsc_dtype_size(dtype) + odd);
        push_back({count ? memory.back().data() + odd : nullptr, count, dtype, 0, {}});
    }
    void add_bits(uint32_t dtype, const std::vector<uint64_t> &bits)
    {
        add(dtype, bits.size() / parts_of(dtype));
        for (uint64_t i = 0; i < bits.size(); i++)
            write_bits(real(dtype), bytes(size() - 1), i, bits[i]);
    }
    void add_values(const Dtype &d, const std::vector<double> &values)
    {
        std::vector<uint64_t> bits;
        for (double x : values)
            bits.push_back(std::isnan(x) ? d.infinity() | d.normal() >> 1 : encode(d, x));
        add_bits(d.dtype, bits);
    }
    /* Zeros of other dtypes, or of one other dtype; complex ones stay what they are. */
    Tensors like(const std::vector<Dtype> &types) const
    {
        Tensors other;
        for (uint64_t i = 0; i < size(); i++)
            other.add(parts(i) == 2 ? (*this)[i].dtype : types[i % types.size()].dtype,
                      (*this)[i].count);
        return other;
    }
    Tensors copy() const
    {
        Tensors other;
        for (const gsc_tensor &tensor : *this) {
            other.add(tensor.dtype, tensor.count);
            if (tensor.count)
                std::memcpy(other.back().data, tensor.data,
                            tensor.count * gsc_dtype_size(tensor.dtype));
        }
        return other;
    }
    const Dtype &type(uint64_t i) const
    {
        return real((*this)[i].dtype);
    }
    uint64_t parts(uint64_t i) const
    {
        return parts_of((*this)[i].dtype);
    }
    /* Real numbers of a tensor. */
    uint64_t numbers(uint64_t i) const
    {
        return (*this)[i].count * parts(i);
    }
    unsigned char *bytes(uint64_t i) const
    {
        return static_cast<unsigned char *>((*this)[i].data);
    }
    uint64_t bits(uint64_t i, uint64_t number) const
    {
        return read_bits(type(i), bytes(i), number);
    }
    double value(uint64_t i, uint64_t number) const
    {
        return decode(type(i), bits(i, number));
    }

  private:
    std::vector<Bytes> memory;
};

/* Whether the bytes of two tensors of one dtype and size differ. */
bool differ(const Tensors &a, const Tensors &b, uint64_t i)
{
    return b[i].count && std::memcmp(a.bytes(i), b.bytes(i), b.numbers(i) * b.type(i).size) != 0;
}

/* The first tensor and number that differ, in words; empty if none does. */
std::string difference(const Tensors &results, const Tensors &expected)
{
    for (uint64_t i = 0; i < expected.size(); i++)
        for (uint64_t j = 0, n = differ(results, expected, i) ? expected.numbers(i) : 0; j < n; j++)
            if (results.bits(i, j) != expected.bits(i, j))
                return "tensor " + std::to_string(i) + " (" + expected.type(i).name + ") number " +
                       std::to_string(j) + ": " + hex(results.bits(i, j)) + ", not " +
                       hex(expected.bits(i, j));
    return "";
}

/* ---- what a call says ---- */

/* What is asked for: GSC_WANT_* bits and these. */
constexpr uint32_t ask_each = 8, ask_histogram = 16, ask_all = 31;

/* Reports of the list and of each tensor, and the histogram; none and zeros where not asked for. */
struct Said {
    gsc_report report = measured;
    Reports each;
    std::array<int64_t, GSC_HISTOGRAM_LENGTH> histogram = {};
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
gsc_report of_list(const Reports &each)
{
    gsc_report report = merged_by_hand(each);
    report.kind = GSC_REPORT_TENSORS;
    return report;
}

struct Outcome {
    Tensors out;
    Said said;
};

constexpr uint64_t serial = 7; /* of the factors here */

/* Outputs, and everything that can be asked for. */
Outcome expected(const Tensors &in, const std::vector<Dtype> &out_types, double multiplier,
                 double clamp = 0)
{
    Outcome e = {in.like(out_types), {}};
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
        r.elements = static_cast<int64_t>(in[t].count);
        for (uint64_t element = 0; element < in[t].count; element++) {
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
                write_bits(to, e.out.bytes(t), i,
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
    e.said.report = of_list(e.said.each);
    e.said.report.generation = serial;
    return e;
}

/* ---- calls ---- */

const gsc_exec *const no_exec = nullptr;

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

/* Calls with new outputs. */
Outcome outcome(Call call, const gsc_exec *on, const gsc_factor *factor, const Tensors &in,
                const std::vector<Dtype> &types, uint32_t ask = ask_all, double clamp = 0)
{
    Outcome o = {in.like(types), {}};
    o.said = said_by(call, on, factor, in, o.out.data(), ask, clamp);
    return o;
}

std::string difference(const Outcome &outcome, const Outcome &expected)
{
    return difference(outcome.said, expected.said) + difference(outcome.out, expected.out);
}

/* Unscale into `types`, in place too where the sizes allow it, and check where they are the same.
 */
std::string wrong_unscale(const Tensors &in, const std::vector<Dtype> &types, double scale,
                          uint32_t ask = ask_all, double clamp = 0)
{
    Outcome e = expected(in, types, 1 / scale, clamp);
    e.said = only(ask, e.said);
    const gsc_factor factor = factor_of(scale);
    std::string wrong =
        difference(outcome(gsc_unscale, no_exec, &factor, in, types, ask, clamp), e);
    const Tensors place = in.copy();
    std::vector<gsc_tensor> seen = place;
    bool same_sizes = true, same_types = true;
    for (uint64_t i = 0; i < in.size(); i++) {
        same_sizes &= in.type(i).size == e.out.type(i).size;
        same_types &= in.type(i).dtype == e.out.type(i).dtype;
        seen[i].dtype = e.out[i].dtype;
    }
    if (same_types && clamp == 0)
        wrong += difference(check(no_exec, scale, in, ask), e.said);
    if (same_sizes) {
        wrong += difference(unscale(no_exec, scale, place, seen.data(), ask, clamp), e.said);
        for (uint64_t i = 0; i < in.size(); i++)
            if (differ(place, e.out, i))
                wrong += "in place: tensor " + std::to_string(i);
    }
    return wrong;
}

/* ---- data ---- */

enum class Kind { moderate, tiny, huge, any };

uint64_t random_element(const Dtype &d, Kind kind, Random &random)
{
    const std::vector<uint64_t> &specials = special_bits(d);
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

/* Every dtype with n elements, once for each of its outputs: `all_outputs` in turn; complex ones.
 */
const std::vector<Dtype> all_outputs(std::begin(dtypes), std::end(dtypes));

Tensors every_pair(uint64_t n, Kind kind)
{
    Tensors in;
    for (const Dtype &from : dtypes)
        for (uint64_t to = 0; to < all_outputs.size(); to++)
            add_random(in, from.dtype, n, kind, n * 16 + to);
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

struct Context {
    Context(uint32_t threads, gsc_parallel_for *parallel_for) : pool{threads}
    {
        const gsc_cpu_options options = {GSC_CPU_OPTIONS_SIZE, threads, parallel_for,
                                         parallel_for ? &pool : nullptr};
        REQUIRE(gsc_context_create_cpu(&options, &on.context, nullptr) == GSC_OK);
    }
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
    ~Context()
    {
        gsc_context_destroy(on.context);
    }
    Pool pool;
    gsc_exec on = GSC_EXEC_INIT;
};

/* About 5 MiB of all dtypes, many small tensors among them. */
Tensors long_list()
{
    Tensors in;
    for (uint64_t i = 0; i < 300; i++)
        add_random(in, dtypes[i % std::size(dtypes)].dtype, i % 70, Kind::moderate, i);
    for (uint64_t i = 0; i < std::size(dtypes); i++)
        add_random(in, dtypes[i].dtype, 300000 + i, i % 2 ? Kind::any : Kind::tiny, i);
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
    const char *const f16_underflow = "1 0x1p-10 0x1p-9 0x1p-8 0 0x1p-15 32768";
    const double f16_squares = 0.25 + 0x1p-32 + 0x1p-48 + 0x1p-50 + 0x1p-52;
    struct Row {
        const char *what;
        Dtype in, out;
        double scale;
        const char *values;
        int64_t nan_count, inf_count, first; // -1: none
        int64_t underflows_to_zero, underflows_to_subnormal;
        double amax, sum_squares;
    };
    const Row rows[] = {
        {"finite values", f32, f32, 2, "2 -4 6", 0, 0, -1, 0, 0, 3, 14},
        {"bad elements are counted and left out", f16, f16, 1, "1 nan inf -inf -2", 1, 2, 1, 0, 0,
         2, 5},
        {"nothing but NaN", bf16, f32, 4, "nan nan", 2, 0, 0, 0, 0, 0, 0},
        {"an Inf made by unscaling", f16, f16, 0.5, "8 40000", 0, 1, 1, 0, 0, 80000, 6400000256},
        {"no Inf if the output has room", f16, f32, 0.5, "8 40000", 0, 0, -1, 0, 0, 80000,
         6400000256},
        {"an Inf made by narrowing", f32, f16, 1, "2 65520", 0, 1, 1, 0, 0, 65520, 4292870404},
        {"just below that", f32, f16, 1, "2 65504", 0, 0, -1, 0, 0, 65504, 4290774020},
        {"an Inf made in float is left out", f32, f32, 0.5, "3e38 1", 0, 1, 0, 0, 0, 2, 4},
        {"though the output had room", f32, f64, 0.5, "3e38 1", 0, 1, 0, 0, 0, 2, 4},
        {"f16 in place loses what scaling saved", f16, f16, 65536, f16_underflow, 0, 0, -1, 3, 2,
         0.5, f16_squares},
        {"f16 to f32 does not", f16, f32, 65536, f16_underflow, 0, 0, -1, 0, 0, 0.5, f16_squares},
        {"f32 underflow; squares below the floats", f32, f32, 0x1p100, "0x1p-30 0x1p-50 1", 0, 0,
         -1, 1, 1, 0x1p-100, 0x1p-200},
        {"f64 underflow", f64, f64, 0x1p50, "0x1p-1000 -0x1p-1060", 0, 0, -1, 1, 1, 0x1p-1050, 0},
        {"a subnormal that stays subnormal", f16, f16, 0.5, "0x1p-20", 0, 0, -1, 0, 0, 0x1p-19,
         0x1p-38},
        {"zeros", f32, f16, 3, "0 -0.0", 0, 0, -1, 0, 0, 0, 0},
        {"squares above the floats", f32, f32, 1, "0x1p100 0x1p70", 0, 0, -1, 0, 0, 0x1p100,
         0x1p200},
        {"no elements", f64, bf16, 3, "", 0, 0, -1, 0, 0, 0, 0},
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
        const std::vector<double> values = numbers(row.values);
        report.elements = static_cast<int64_t>(values.size());
        Tensors in;
        in.add_values(row.in, values);
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
    const struct {
        uint64_t n;
        Kind kind;
        double scale;
    } rows[] = {
        {4095, Kind::moderate, 65536}, {4096, Kind::tiny, 3},       {4097, Kind::huge, 0x1p-10},
        {65536, Kind::any, 1e39},      {131073, Kind::huge, 65536},
    };
    for (const auto &row : rows) {
        CAPTURE(row.n, static_cast<int>(row.kind), row.scale);
        CHECK(wrong_unscale(every_pair(row.n, row.kind), all_outputs, row.scale) == "");
    }
}

TEST_CASE("in place and check give the same as out of place", "[tensors][long]")
{
    std::vector<Dtype> own;
    for (const Dtype &d : all_outputs)
        own.insert(own.end(), 3, d);
    for (double scale : {65536.0, 1.0, 0.5, 3.0, 1e39})
        for (Kind kind : {Kind::moderate, Kind::tiny, Kind::huge, Kind::any}) {
            Tensors in, crossed;
            for (const Dtype &d : all_outputs)
                for (uint64_t n : {5u, 4099u, kind == Kind::any ? 65540u : 129u})
                    add_random(in, d.dtype, n, kind, n);
            for (const Dtype &d : {f16, bf16, cb16, f8_e4m3fn, f8_e5m2})
                add_random(crossed, d.dtype, 4099, kind, d.size);
            const double clamp = scale == 3 ? 2 : 0;
            CAPTURE(scale, static_cast<int>(kind));
            CHECK(wrong_unscale(in, own, scale, ask_all, clamp) == "");
            CHECK(wrong_unscale(in, all_outputs, scale, ask_all, clamp) == "");
            CHECK(wrong_unscale(crossed, {bf16, cb16, f16, f8_e5m2, f8_e4m3fn}, scale) == "");
        }
}

TEST_CASE("a report has only the measurements in options.want", "[tensors]")
{
    const std::vector<Dtype> others = {f64, f16, bf16, f32, cb16},
                             same_size = {f32, f64, bf16, cb16, f8_e5m2, f8_e4m3fn, f16};
    for (uint32_t ask = 0; ask <= ask_all; ask++)
        for (double scale : {65536.0, 1.0, 0.5, 1e39})
            for (Kind kind : {Kind::tiny, Kind::huge, Kind::any}) {
                Tensors in;
                for (const Dtype &d : all_outputs)
                    add_random(in, d.dtype, 200, kind, ask);
                add_random(in, GSC_COMPLEX64, 100, kind, ask);
                CAPTURE(ask, scale, static_cast<int>(kind));
                for (const std::vector<Dtype> &types : {all_outputs, others, same_size})
                    CHECK(wrong_unscale(in, types, scale, ask) == "");
            }
}

TEST_CASE("a bad element is found wherever it stands", "[tensors]")
{
    const uint64_t n = 131074;
    for (const Dtype &d : dtypes) {
        Tensors in;
        in.add(f32.dtype, 3);
        in.add(f32.dtype, 0);
        in.add(d.dtype, n);
        Said expected = check(nullptr, 4, in);
        CHECK(expected.report.overflow == 0);
        for (uint64_t at : {0u, 63u, 64u, 65u, 4095u, 4096u, 4097u, 65535u, 65536u, 65537u, 131071u,
                            131072u, 131073u})
            for (uint64_t bad : {d.infinity(), d.infinity() | d.sign(), d.nan()}) {
                write_bits(d, in.bytes(2), at, bad);
                const Said said = check(nullptr, 4, in);
                write_bits(d, in.bytes(2), at, 0);
                for (gsc_report *report : {&expected.each[2], &expected.report}) {
                    report->found_inf = 1;
                    report->overflow = 1;
                    report->first_tensor = 2;
                    report->first_element = static_cast<int64_t>(at);
                    report->nan_count = is_nan(d, bad);
                    report->inf_count = !report->nan_count;
                }
                CAPTURE(d.name, at, bad);
                CHECK(difference(said, expected) == "");
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
                    add_random(in, d.dtype, 1 + 7 * i, Kind::any, i + 1);
                CAPTURE(d.name, scale, ask);
                CHECK(wrong_unscale(in, std::vector<Dtype>(tensors, d), scale, ask) == "");
                CHECK(wrong_unscale(in, std::vector<Dtype>(tensors, f32), scale, ask) == "");
            }
}

TEST_CASE("a bad element is found at the end of a list of millions of tensors", "[tensors]")
{
    constexpr uint64_t n = (1u << 23) + 3;
    float bad = HUGE_VALF;
    std::vector<gsc_tensor> list(n, gsc_tensor{nullptr, 0, GSC_F32, 0, {}});
    list.back() = {&bad, 1, GSC_F32, 0, {}};
    gsc_report report;
    CHECK(gsc_measure(nullptr, nullptr, list.data(), n, nullptr, &report, nullptr) == GSC_OK);
    CHECK(report.first_tensor == static_cast<int64_t>(n - 1));
    CHECK((report.first_element == 0 && report.inf_count == 1));
}

TEST_CASE("gsc_scale multiplies by the scale, into Inf where there is no room, and reports on it",
          "[tensors]")
{
    for (double scale : {65536.0, 1.0, 0.1, 1e39, 1e-42})
        for (uint64_t n : {1u, 65u, 4097u})
            for (double clamp : {0.0, 500.0}) {
                const Tensors in = every_pair(n, Kind::any);
                const gsc_factor factor = factor_of(scale);
                CAPTURE(scale, n, clamp);
                CHECK(difference(
                          outcome(gsc_scale, no_exec, &factor, in, all_outputs, ask_all, clamp),
                          expected(in, all_outputs, scale, clamp)) == "");
            }
}

TEST_CASE("an empty list is legal, and so is a tensor without data", "[tensors]")
{
    const gsc_factor factor = factor_of(2);
    Tensors nothing, empty;
    empty.add(f16.dtype, 0);
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
        in.add(f32.dtype, 3);
    const Tensors out = in.like({f16, bf16});
    plans_made = 0;
    REQUIRE(gsc_unscale(nullptr, nullptr, in.data(), out.data(), in.size(), nullptr, nullptr,
                        nullptr) == GSC_OK);
    CHECK(plans_made == 2);
}

TEST_CASE("a call without a report writes the same, and the reports of each tensor", "[tensors]")
{
    const Tensors in = every_pair(4097, Kind::any);
    for (Call call : {gsc_unscale, gsc_scale})
        for (double scale : {3.0, 1.0, 1e39}) {
            const gsc_factor factor = factor_of(scale);
            const Outcome with = outcome(call, no_exec, &factor, in, all_outputs);
            Outcome without = {in.like(all_outputs), with.said};
            without.said.each.assign(in.size(), gsc_report{});
            gsc_tensor_options options = wanting(want_all), none = GSC_TENSOR_OPTIONS_INIT;
            options.per_tensor = without.said.each.data();
            for (const gsc_tensor_options *some : {&options, &none}) {
                CHECK(call(nullptr, &factor, in.data(), without.out.data(), in.size(), some,
                           nullptr, nullptr) == GSC_OK);
                CHECK(difference(without, with) == "");
                without.out = in.like(all_outputs);
            }
        }
}

TEST_CASE("without a factor the values are taken as they are", "[tensors]")
{
    const Tensors in = every_pair(100, Kind::any);
    Outcome e = expected(in, all_outputs, 1);
    e.said.report.generation = 0;
    for (gsc_report &report : e.said.each)
        report.generation = 0;
    for (Call call : {gsc_unscale, gsc_scale})
        CHECK(difference(outcome(call, no_exec, nullptr, in, all_outputs), e) == "");
    const Said said = said_by(check_only, nullptr, nullptr, in, nullptr);
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
        in.add(f32.dtype, 3); // the next one lies at an odd address
        Tensors some;
        add_random(some, f32.dtype, 100003, Kind::any, 5);
        in.add(f32.dtype, n);
        for (uint64_t i = 0; i < n; i += 100003)
            std::memcpy(in.bytes(1) + i * 4, some.bytes(0), std::min<uint64_t>(100003, n - i) * 4);
        for (double scale : {65536.0, 1.0}) {
            const Tensors out = in.like({to}), pieces = in.like({to});
            const gsc_report whole = unscale(nullptr, scale, in, out.data()).report;
            const gsc_tensor_options options = wanting(want_all);
            Reports reports;
            const gsc_factor factor = factor_of(scale);
            for (uint64_t i = 0; i < n; i += piece) {
                const uint64_t count = std::min(piece, n - i);
                const gsc_tensor part = {in.bytes(1) + i * 4, count, GSC_F32, 0, {}},
                                 result = {pieces.bytes(1) + i * to.size, count, to.dtype, 0, {}};
                reports.emplace_back();
                REQUIRE(gsc_unscale(nullptr, &factor, &part, &result, 1, &options, &reports.back(),
                                    nullptr) == GSC_OK);
            }
            const gsc_report all = merged(reports);
            CAPTURE(to.name, scale);
            CHECK(std::memcmp(out.bytes(1), pieces.bytes(1), n * to.size) == 0);
            CHECK((whole.nan_count == all.nan_count && whole.inf_count == all.inf_count));
            CHECK(whole.underflows_to_zero == all.underflows_to_zero);
            CHECK(whole.amax == all.amax);
        }
    }
}

TEST_CASE("small tensors in a large list give the same results as alone", "[tensors]")
{
    for (const Dtype &to : {f32, f16})
        for (uint32_t want : {0u, GSC_WANT_UNDERFLOW, GSC_WANT_NORM})
            for (double scale : {65536.0, 0x1p-16, 0.75}) {
                Tensors in;
                in.add(f32.dtype, 17u << 18);
                for (uint64_t i = 0; i < 40; i++)
                    add_random(in, f32.dtype, 1 + i * i * 2, i % 3 ? Kind::any : Kind::tiny, i);
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
                one_by_one.report = of_list(one_by_one.each);
                CAPTURE(to.name, want, scale);
                CHECK(difference(said, one_by_one) == "");
                CHECK(difference(out, alone) == "");
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

TEST_CASE("a clamp's limit is the largest value of the output that is not above it", "[tensors]")
{
    const struct {
        uint32_t from, to;
        double x, clamp;
        uint64_t bits;
        int64_t overflow;
    } rows[] = {
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
    for (const auto &row : rows) {
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
        CHECK((status == GSC_OK && out.bits(0, 0) == row.bits));
        CHECK((report.overflow == row.overflow && report.clamped == 1));
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
            for (uint64_t n : {1u, 77u, 4099u}) {
                Tensors in = every_pair(n, kind);
                Tensors out = in.like(all_outputs), sums = in.like(all_outputs);
                Random random = {n};
                for (uint64_t t = 0; kind == Kind::moderate && t < in.size(); t++)
                    for (uint64_t i = 0; i < in.numbers(t); i++) // within the range of every dtype
                        write_bits(in.type(t), in.bytes(t), i,
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
                        write_bits(to, out.bytes(t), i, before);
                        write_bits(to, sums.bytes(t), i, encode(to, sum));
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
    CHECK(said_by(gsc_unscale_accumulate, nullptr, nullptr, in, out.data()).report.overflow == 0);
    CHECK(out.value(0, 69999) == 6);
    CHECK(out.value(1, 2) == 57344);
    write_bits(f16, in.bytes(1), 2, 0x7bff);
    const Tensors after = out.copy();
    const Said said = said_by(gsc_unscale_accumulate, nullptr, nullptr, in, out.data());
    CHECK((said.report.overflow == 1 && said.report.inf_count == 1));
    CHECK((said.each[0].overflow == 0 && said.each[1].overflow == 1));
    CHECK(difference(out, after) == "");
}

/* ---- sum of squares ---- */

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
        add_random(in, dtypes[i % std::size(dtypes)].dtype, i % 7, Kind::moderate, i);
    add_random(in, f32.dtype, 70 * 65536 + 3, Kind::moderate, 1);
    for (uint64_t i = 0; i < 1500; i++)
        add_random(in, dtypes[i % std::size(dtypes)].dtype, i % 5, Kind::tiny, i);
    const Outcome e = expected(in, {f32}, 1 / 3.0);
    for (uint32_t ask : {ask_each + 0u, 0u}) {
        const Said said = check(nullptr, 3, in, GSC_WANT_NORM | GSC_WANT_AMAX | ask);
        CHECK(said.report.sum_squares == e.said.report.sum_squares);
        CHECK(said.report.amax == e.said.report.amax);
    }
}

TEST_CASE("a long list of small and large tensors gives the bits of the numerics", "[tensors]")
{
    for (double scale : {3.0, 1e39})
        CHECK(wrong_unscale(long_list(), all_outputs, scale) == "");
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
    lists[5].add(f16.dtype, 3);
    int by_norm_alone = 0;
    for (const std::string &name : preset_names())
        for (const Tensors &in : lists)
            for (Call call : {check_only, gsc_unscale, gsc_scale, gsc_unscale_accumulate}) {
                gsc_policy policy = preset_policy(name);
                policy.init_scale = 1;
                policy.guard_warmup = 1; /* an outlier is no overflow: the update alone finds it */
                const gsc_state state = started(policy);
                Reports each(in.size());
                gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
                options.policy = &policy;
                options.per_tensor = each.data();
                gsc_report report, judged;
                const Tensors out = in.like({f64});
                CAPTURE(name);
                REQUIRE(call(nullptr, &state.factor, in.data(), out.data(), in.size(), &options,
                             &report, nullptr) == GSC_OK);
                const uint32_t events = updated(policy, state, report).events;
                const bool skipped = events & GSC_EVENT_SKIPPED && !(events & GSC_EVENT_OUTLIER);
                CHECK(report.overflow == skipped);
                CHECK(report.found_inf == static_cast<float>(skipped));
                CHECK((events & GSC_EVENT_STALE) == 0);

                // Of a tensor, `overflow` says whether something in it is Inf or NaN.
                CHECK(each[0].overflow == (each[0].nan_count + each[0].inf_count > 0));
                gsc_report all = merged(each, GSC_MERGE_SHARDS, &policy);
                all.kind = report.kind;
                CHECK(difference(all, report) == "");

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
            }
    CHECK(by_norm_alone > 0);
}

TEST_CASE("a policy adds measurements to options.want and removes none", "[tensors]")
{
    const Policy policy = zeros.overflow_test(GSC_TEST_NORM).target_amax(1);
    for (uint32_t want = 0; want <= want_all; want++) {
        gsc_tensor_options options = wanting(want);
        options.policy = &policy;
        gsc_report report;
        REQUIRE(gsc_measure(nullptr, nullptr, nullptr, 0, &options, &report, nullptr) == GSC_OK);
        CHECK(report.measured == (want | GSC_WANT_NORM | GSC_WANT_AMAX));
    }
}

TEST_CASE("accumulate adds if every product is finite, even if report.overflow is 1", "[tensors]")
{
    const Policy policy = zeros.overflow_test(GSC_TEST_NORM);
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.policy = &policy;
    Tensors in, out;
    in.add_values(f32, {2e19, 1});
    out.add_values(f32, {1, 1});
    gsc_report report;
    REQUIRE(gsc_unscale_accumulate(nullptr, nullptr, in.data(), out.data(), 1, &options, &report,
                                   nullptr) == GSC_OK);
    CHECK((report.overflow == 1 && out.value(0, 1) == 2));
}

/* ---- memory ---- */

TEST_CASE("memory of a context is aligned, copied and freed", "[tensors]")
{
    const Context two(2, run_backwards);
    for (const gsc_exec *on : {no_exec, &two.on})
        for (uint32_t kind : {GSC_MEMORY_DEVICE, GSC_MEMORY_HOST})
            for (uint64_t size : {1u, 4u, 255u, 256u, 100001u}) {
                gsc_context *const context = on ? on->context : nullptr;
                void *memory[2] = {};
                CAPTURE(on == nullptr, kind, size);
                for (int i = 0; i < 2; i++) {
                    REQUIRE(gsc_memory_create(context, kind, size, &memory[i], nullptr) == GSC_OK);
                    CHECK(reinterpret_cast<uintptr_t>(memory[i]) % 256 == 0);
                    std::memset(memory[i], i, size);
                }
                CHECK(gsc_memory_copy(on, memory[0], memory[1], size - 1, nullptr) == GSC_OK);
                CHECK(gsc_exec_wait(on, nullptr) == GSC_OK);
                const unsigned char *const bytes = static_cast<unsigned char *>(memory[0]);
                CHECK(std::count(bytes, bytes + size, 1) == static_cast<int64_t>(size) - 1);
                CHECK(bytes[size - 1] == 0);
                for (void *block : {memory[0], memory[1], static_cast<void *>(nullptr)})
                    gsc_memory_destroy(context, block);
            }
    void *none = &none;
    CHECK(gsc_memory_create(nullptr, GSC_MEMORY_DEVICE, 0, &none, nullptr) == GSC_OK);
    CHECK(none == nullptr);
}

TEST_CASE("a call on the CPU needs no workspace", "[tensors]")
{
    const Tensors in = every_pair(65, Kind::any);
    const Context two(2, run_backwards);
    const gsc_tensor_options all = wanting(want_all);
    for (const gsc_exec *on : {no_exec, &two.on}) {
        uint64_t size = 1;
        CHECK(gsc_workspace_size(on, in.data(), in.size(), &all, &size, nullptr) == GSC_OK);
        CHECK(size == 0);
    }
}

/* ---- threads and processes ---- */

TEST_CASE("a pool gives the bytes of one thread", "[tensors][threads]")
{
    const Tensors in = long_list();
    const gsc_factor factor = factor_of(0.75);
    const Context pools[] = {
        {1, run_backwards}, {3, run_on_threads}, {100, run_backwards}, {1, nullptr}};
    for (Call call : {check_only, gsc_unscale, gsc_scale, gsc_unscale_accumulate})
        for (double clamp : {0.0, 20.0}) {
            if (clamp != 0 && call != gsc_unscale)
                continue;
            const Outcome alone = outcome(call, no_exec, &factor, in, all_outputs, ask_all, clamp);
            for (const Context &context : pools) {
                CAPTURE(&context - pools, clamp);
                CHECK(
                    difference(outcome(call, &context.on, &factor, in, all_outputs, ask_all, clamp),
                               alone) == "");
            }
        }
    CHECK((pools[0].pool.calls == 0 && pools[1].pool.calls > 0 && pools[2].pool.calls > 0));
}

TEST_CASE("a pool that refuses a call ends it unwritten; later in a call its thread goes on",
          "[tensors][threads]")
{
    const Tensors in = long_list();
    const gsc_factor factor = factor_of(0.75);
    for (Call call : {check_only, gsc_unscale, gsc_scale, gsc_unscale_accumulate}) {
        const Context later(3, refuse_later), first(3, refuse_first);
        CHECK(difference(outcome(call, &later.on, &factor, in, all_outputs),
                         outcome(call, no_exec, &factor, in, all_outputs)) == "");
        CHECK(later.pool.calls > 1);

        const Tensors kept = in.like(all_outputs), before = in.like(all_outputs);
        gsc_report marked = {};
        marked.generation = 42;
        Reports each(in.size(), marked);
        std::vector<int64_t> histogram(GSC_HISTOGRAM_LENGTH, 42);
        gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
        options.per_tensor = each.data();
        options.histogram = histogram.data();
        gsc_report report = marked;
        gsc_error err;
        CHECK(call(&first.on, &factor, in.data(), kept.data(), in.size(), &options, &report,
                   &err) == GSC_ERROR_MEMORY);
        CHECK(std::string(err.message).find("the pool of the context ran no task") == 0);
        CHECK(difference(kept, before) == "");
        CHECK(same(report, marked));
        for (const gsc_report &one : each)
            CHECK(same(one, marked));
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
        add_random(in, d.dtype, 400000, Kind::tiny, 1);
    const gsc_factor factor = factor_of(0x1p10);
    const Context context(2, flushing);
    CHECK(difference(outcome(gsc_unscale, &context.on, &factor, in, {f32, f64}),
                     outcome(gsc_unscale, no_exec, &factor, in, {f32, f64})) == "");
    CHECK(context.pool.calls > 0);
}
#endif

TEST_CASE("lists below 4 MiB stay on the calling thread", "[tensors][threads]")
{
    for (uint64_t count : {(1u << 20) - 1, 1u << 20}) {
        const Context context(2, run_backwards);
        Tensors in;
        in.add(f32.dtype, count);
        check(&context.on, 2, in);
        CHECK(context.pool.calls == (count == 1u << 20));
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
        add_random(in, d.dtype, 70000, Kind::any, 1);
    for (double scale : {65536.0, 1e39}) {
        const auto call = [&] {
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
        };
        call();
        CHECK(stack_of(call) < most + start);
    }
}
#endif

TEST_CASE("many threads may call at the same time", "[tensors][threads]")
{
    constexpr int threads = 8, calls = 20;
    const Context context(3, run_on_threads);
    const gsc_factor factor = factor_of(3);
    std::atomic<int> right{0};
    std::vector<std::thread> running;
    for (uint64_t i = 0; i < threads; i++)
        running.emplace_back([&, i] {
            const Tensors in = every_pair(1000 + i, Kind::any);
            const Outcome e = expected(in, all_outputs, 1 / 3.0);
            for (int call = 0; call < calls; call++) {
                Said said;
                said.each.resize(in.size());
                gsc_tensor_options options = wanting(want_all);
                options.per_tensor = said.each.data();
                options.histogram = said.histogram.data();
                const Tensors out = in.like(all_outputs);
                gsc_info info = GSC_INFO_INIT;
                gsc_status status = gsc_info_get(&info, nullptr);
                status |= gsc_unscale(&context.on, &factor, in.data(), out.data(), in.size(),
                                      &options, &said.report, nullptr);
                right += status == GSC_OK && difference(said, e.said).empty() &&
                         difference(out, e.out).empty();
            }
        });
    for (std::thread &thread : running)
        thread.join();
    CHECK(right == threads * calls);
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
        Outcome e = expected(in, types, 1 / scale);
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
        // To f32, small f16 values become subnormal: flushed, as the host asked.
        for (uint64_t i = 0; i < 5000; i++)
            if (std::fabs(e.out.value(4, i)) < decode(f32, f32.normal()))
                write_bits(f32, e.out.bytes(4), i, out.bits(4, i));
        CHECK(difference(out, e.out) == "");
        CHECK(
            (report.amax == e.said.report.amax && report.sum_squares == e.said.report.sum_squares));
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
