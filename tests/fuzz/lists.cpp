// SPDX-License-Identifier: MIT
// Lists of tensors of any dtypes, sizes, alignments and data. The same bits must come out on every
// rung and context, in place and apart, and as a model of the numerics has them, of the list and of
// each tensor; nothing else may be touched.
#include <array>
#include <cfenv>
#include <cfloat>

#include "fuzz.hpp"

/* The linker hands the library's calls of gsc_kernels_best to the first of these. */
extern "C" const gsc_kernels *__wrap_gsc_kernels_best();
extern "C" const gsc_kernels *__real_gsc_kernels_best();

namespace {

const gsc_kernels *kernels; /* NULL: the best */

#ifdef GSC_SEES_BOUNDS
constexpr uint64_t guard = 0; /* the sanitizer has its own behind each block */
#else
constexpr uint64_t guard = 64;
#endif

std::vector<const gsc_kernels *> rungs_here()
{
    std::vector<const gsc_kernels *> all;
    bool runs;
    for (uint32_t i = 0; const gsc_kernels *rung = gsc_kernels_rung(i, &runs); i++)
        if (runs)
            all.push_back(rung);
    return all;
}

/* ---- a call ---- */

enum Operation { SCALE, CHECK, UNSCALE, ACCUMULATE };
const char *const names[] = {"scale", "check", "unscale", "accumulate"};

uint64_t parts(uint32_t dtype)
{
    return is_complex(dtype) ? 2 : 1;
}

struct Entry {
    uint32_t in, out; /* dtypes */
    uint64_t count;
    bool in_place;
    uint64_t shift, out_shift; /* from an aligned address */
    Bytes data, before;        /* of the input, of an output apart */
};

struct Call {
    Operation operation;
    bool has_factor;
    gsc_factor factor;
    double clamp;
    uint32_t want;
    bool each, histogram, has_policy;
    gsc_policy policy;
    std::vector<Entry> entries;

    double multiplier() const
    {
        return !has_factor ? 1 : operation == SCALE ? factor.scale : factor.inverse;
    }
    uint32_t measures() const
    {
        const bool norm = has_policy && policy.overflow_test == GSC_TEST_NORM,
                   amax = has_policy && policy.target_amax != 0;
        return want | (norm ? GSC_WANT_NORM : 0) | (amax ? GSC_WANT_AMAX : 0);
    }
    bool writes() const
    {
        return operation != CHECK;
    }
    std::string words() const
    {
        std::ostringstream s;
        s << std::hexfloat << names[operation] << " by " << multiplier() << " clamp " << clamp
          << " want " << want << " each " << each << " histogram " << histogram << " policy "
          << has_policy << " by norm " << policy.overflow_test << "\n";
        for (const Entry &e : entries)
            s << "  " << e.count << " of dtype " << e.in << (e.in_place ? " in place" : "")
              << " to " << e.out << ", at " << e.shift << " and " << e.out_shift << "\n";
        return s.str();
    }
};

/* A call's memory: a block for each input and for each output apart, of its size to the byte. */
class Image {
  public:
    Image(const Call &call, bool apart)
    {
        for (const Entry &e : call.entries) {
            in.push_back({add(e.data, e.shift, e.count % 2), e.count, e.in, 0, {}});
            out.push_back({in.back().data, e.count, e.out, 0, {}});
            if (call.writes() && (apart || !e.in_place))
                out.back().data = add(e.before, e.out_shift, e.count % 2);
        }
    }
    Image(const Image &) = delete;
    Image &operator=(const Image &) = delete;

    std::vector<gsc_tensor> in, out;
    std::vector<Bytes> blocks;

  private:
    void *add(const Bytes &data, uint64_t shift, bool may_be_null)
    {
        blocks.emplace_back(shift + data.size() + guard, 0xa5);
        if (data.empty())
            return may_be_null ? nullptr : blocks.back().data();
        std::memcpy(blocks.back().data() + shift, data.data(), data.size());
        return blocks.back().data() + shift;
    }
};

Bytes result(const gsc_tensor &t)
{
    const auto *at = static_cast<const unsigned char *>(t.data);
    return Bytes(at, at + t.count * gsc_dtype_size(t.dtype));
}

gsc_status run(const Call &c, const gsc_exec *on, const gsc_tensor *in, const gsc_tensor *out,
               uint64_t n, const gsc_tensor_options *options, gsc_report *report, gsc_error *err)
{
    const gsc_factor *factor = c.has_factor ? &c.factor : nullptr;
    switch (c.operation) {
    case SCALE:
        return gsc_scale(on, factor, in, out, n, options, report, err);
    case CHECK:
        return gsc_measure(on, factor, in, n, options, report, err);
    case UNSCALE:
        return gsc_unscale(on, factor, in, out, n, options, report, err);
    default:
        return gsc_unscale_accumulate(on, factor, in, out, n, options, report, err);
    }
}

gsc_tensor_options options_of(const Call &c)
{
    gsc_tensor_options options = wanting(c.want);
    options.clamp = c.clamp;
    options.policy = c.has_policy ? &c.policy : nullptr;
    return options;
}

using Histogram = std::array<int64_t, GSC_HISTOGRAM_LENGTH>;

struct Outcome {
    std::vector<Bytes> outputs;
    gsc_report report;
    std::vector<gsc_report> each;
    Histogram histogram;

    bool operator==(const Outcome &other) const
    {
        return same(report, other.report) && outputs == other.outputs &&
               histogram == other.histogram &&
               std::equal(each.begin(), each.end(), other.each.begin(), other.each.end(),
                          same<gsc_report>);
    }
};

std::string difference(const Outcome &a, const Outcome &b)
{
    std::string text = a.histogram != b.histogram ? "histograms\n" : "";
    if (!same(a.report, b.report))
        text += words_of(a.report) + words_of(b.report);
    for (uint64_t i = 0; i < std::min(a.each.size(), b.each.size()); i++)
        if (!same(a.each[i], b.each[i]))
            text += std::to_string(i) + ": " + words_of(a.each[i]) + words_of(b.each[i]);
    for (uint64_t i = 0; i < a.outputs.size(); i++)
        if (a.outputs[i] != b.outputs[i])
            text += "output " + std::to_string(i) + "\n";
    return text;
}

/* Runs a valid call on fresh memory. */
Outcome outcome(const Call &c, const gsc_kernels *rung, const gsc_exec *on, bool apart)
{
    Image image(c, apart), fresh(c, apart);
    Outcome o;
    gsc_error err = {};
    gsc_tensor_options options = options_of(c);
    const uint64_t n = c.entries.size();
    const int rounding = std::fegetround();
    kernels = rung;
    std::memset(&o.report, 0x5a, sizeof o.report);
    o.each.resize(c.each ? n : 0, o.report);
    o.histogram.fill(c.histogram ? -1 : 0);
    options.per_tensor = c.each ? o.each.data() : nullptr;
    options.histogram = c.histogram ? o.histogram.data() : nullptr;
    claim(run(c, on, image.in.data(), image.out.data(), n, &options, &o.report, &err) == GSC_OK,
          "a valid call succeeds", err.message);
    kernels = nullptr;
    claim(std::fegetround() == rounding, "the rounding mode stays");
    for (uint64_t i = 0; i < n && c.writes(); i++) {
        o.outputs.push_back(result(image.out[i]));
        if (!o.outputs[i].empty())
            std::memcpy(fresh.out[i].data, o.outputs[i].data(), o.outputs[i].size());
    }
    claim(image.blocks == fresh.blocks, "nothing but the outputs is written");
    if (c.each && n > 0) {
        gsc_report merged;
        const gsc_status status =
            gsc_report_merge(on, o.each.data(), n, GSC_MERGE_SHARDS, options.policy, &merged, &err);
        merged.kind = o.report.kind;
        claim(status == GSC_OK && same(merged, o.report),
              "the reports of each tensor merge to that of the list",
              words_of(merged) + words_of(o.report));
    }
    return o;
}

/* ---- what the numerics say ---- */

/* A report where less was measured. */
gsc_report only(uint32_t measures, gsc_report r)
{
    r.measured = want_all & measures;
    if (!(r.measured & GSC_WANT_NORM))
        r.sum_squares = 0;
    if (!(r.measured & GSC_WANT_AMAX))
        r.amax = 0;
    if (!(r.measured & GSC_WANT_UNDERFLOW))
        r.underflows_to_zero = r.underflows_to_subnormal = 0;
    return r;
}

Outcome only(const Call &c, Outcome o)
{
    o.report = only(c.measures(), o.report);
    o.each.resize(c.each ? o.each.size() : 0);
    for (gsc_report &report : o.each)
        report = only(c.measures(), report);
    if (!c.histogram)
        o.histogram = {};
    return o;
}

/* One real number of an entry on its way. */
struct Value {
    uint64_t before, after; /* bits; after: the rounded product, not clamped, not added */
    double product;         /* in the type that multiplies */
    bool bad, nan, clamped;
};

class Numbers {
  public:
    Numbers(const Call &c, const Entry &entry)
        : call(c), e(entry), from(real(e.in)), to(real(e.out)),
          in_float(from.dtype != GSC_F64 && std::isnormal(static_cast<float>(c.multiplier()))),
          multiplier(in_float ? static_cast<float>(c.multiplier()) : c.multiplier()),
          limit(c.clamp != 0 ? limit_of(to, c.clamp) : 0)
    {
    }
    const Call &call;
    const Entry &e;
    const Dtype &from, &to;
    const bool in_float;
    const double multiplier, limit;

    Value at(uint64_t i) const
    {
        Value v = {};
        v.before = read_bits(from, e.data.data(), i);
        v.nan = is_nan(from, v.before);
        const double x = decode(from, v.before);
        v.product =
            in_float ? static_cast<float>(x) * static_cast<float>(multiplier) : x * multiplier;
        const bool copied = call.clamp == 0 && e.in == e.out && multiplier == 1.0;
        v.after = copied  ? v.before
                  : v.nan ? convert_nan(from, to, v.before)
                          : encode(to, v.product);
        v.bad = !std::isfinite(call.clamp != 0 ? v.product : decode(to, v.after));
        v.clamped = call.clamp != 0 && std::fabs(v.product) > limit;
        return v;
    }
    uint64_t written(uint64_t i, const Value &v, bool overflow) const
    {
        if (call.clamp != 0 && !v.nan)
            return encode(to, std::clamp(v.product, -limit, limit));
        if (call.operation != ACCUMULATE)
            return v.after;
        const uint64_t old = read_bits(to, e.before.data(), i);
        if (overflow)
            return old;
        if (is_nan(to, old))
            return convert_nan(to, to, old);
        const double y = decode(to, old);
        return encode(to, in_float && to.dtype != GSC_F64
                              ? static_cast<float>(y) + static_cast<float>(v.product)
                              : y + v.product);
    }
};

/* Adds what is counted, in order. */
void add(gsc_report &to, const gsc_report &from)
{
    if (to.nan_count + to.inf_count == 0) {
        to.first_tensor = from.first_tensor;
        to.first_element = from.first_element;
    }
    to.amax = std::max(to.amax, from.amax);
    to.sum_squares += from.sum_squares;
    to.elements += from.elements;
    to.nan_count += from.nan_count;
    to.inf_count += from.inf_count;
    to.underflows_to_zero += from.underflows_to_zero;
    to.underflows_to_subnormal += from.underflows_to_subnormal;
    to.clamped += from.clamped;
}

void judge(gsc_report &r)
{
    r.overflow = r.nan_count + r.inf_count > 0;
    r.found_inf = static_cast<float>(r.overflow);
    if (!r.overflow)
        r.first_tensor = r.first_element = 0;
}

/* sum_squares is an ordinary sum here: near enough. The verdict is that of elements. */
Outcome model(const Call &c)
{
    Outcome o = {};
    o.report = measured;
    o.report.generation = c.has_factor ? c.factor.generation : 0;
    for (uint64_t t = 0; t < c.entries.size(); t++) {
        const Entry &e = c.entries[t];
        const Numbers numbers(c, e);
        const Dtype &from = numbers.from, &to = numbers.to;
        const uint64_t k = parts(e.in);
        gsc_report r = measured;
        r.generation = o.report.generation;
        r.elements = static_cast<int64_t>(e.count);
        r.first_tensor = static_cast<int64_t>(t);
        for (uint64_t i = 0; i < e.count; i++) {
            Value v = {};
            for (uint64_t part = 0; part < k; part++) {
                const Value each = numbers.at(i * k + part);
                if (std::isfinite(each.product)) {
                    r.amax = std::max(r.amax, std::fabs(each.product));
                    r.sum_squares += each.product * each.product;
                }
                if (part == 0 || (each.before & ~from.sign()) > (v.before & ~from.sign()))
                    v = each;
            }
            const uint64_t before = v.before & ~from.sign(), after = v.after & ~to.sign();
            if (v.bad && r.nan_count + r.inf_count == 0)
                r.first_element = static_cast<int64_t>(i);
            r.nan_count += v.nan;
            r.inf_count += v.bad && !v.nan;
            r.underflows_to_zero += before != 0 && after == 0;
            r.underflows_to_subnormal +=
                before >= from.normal() && after != 0 && after < to.normal();
            r.clamped += v.clamped;
            if (i * k % 65536 >= 4096)
                continue;
            o.histogram[16]++;
            if (std::isfinite(v.product) && v.product != 0)
                o.histogram[static_cast<size_t>(
                    std::clamp((std::ilogb(v.product) + 48) >> 2, 0, 15))]++;
        }
        judge(r);
        add(o.report, r);
        o.each.push_back(r);
    }
    judge(o.report);
    for (const Entry &e : c.entries) {
        if (!c.writes())
            break;
        const Numbers numbers(c, e);
        o.outputs.emplace_back(e.count * gsc_dtype_size(e.out));
        for (uint64_t i = 0; i < e.count * parts(e.in); i++)
            write_bits(numbers.to, o.outputs.back().data(), i,
                       numbers.written(i, numbers.at(i), o.report.overflow));
    }
    return only(c, o);
}

/* ---- from bytes ---- */

/* A run of magnitudes, with bits of all kinds among them. */
Bytes random_data(uint32_t dtype, uint64_t count, bool good, Source &source)
{
    const Dtype &d = real(dtype);
    const uint64_t n = count * parts(dtype), low = d.infinity() / 256 * source.below(256),
                   spans[] = {1, d.normal(), 16 * d.normal(), d.infinity()},
                   lows[] = {0, low, d.infinity() - d.normal(),
                             static_cast<uint64_t>(d.bias - 3) << d.mantissa};
    const uint64_t span = spans[source.below(4)], first = lows[source.below(4)];
    const uint64_t specials = good ? 0 : source.below(4); /* none, none, one, one in 16 */
    const std::vector<uint64_t> special = special_bits(d);
    const bool of_one_sign = source.one_in(4);
    Random random = {source.bits(4)};
    Bytes data(n * d.size);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t r = random.next(), at = first + (r >> 8) % span;
        uint64_t bits = std::min(at, d.infinity() - 1) | (r & 1 && !of_one_sign ? d.sign() : 0);
        if (specials == 3 && (r >> 1) % 16 == 0)
            bits = random.next() % 2 ? special[random.next() % special.size()]
                                     : random.next() & (d.sign() | (d.sign() - 1));
        write_bits(d, data.data(), i, bits);
    }
    if (specials == 2 && n > 0)
        write_bits(d, data.data(), source.bits(4) % n, special[source.below(special.size())]);
    return data;
}

uint64_t random_count(Source &source, bool large)
{
    static const uint64_t ends[] = {3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127};
    if (large)
        return source.one_in(4) ? source.below(600000)
                                : 65536 * (1 + source.below(4)) - 1 + source.below(3);
    switch (source.below(8)) {
    case 0:
        return source.below(2);
    case 1:
        return 4096 * (1 + source.below(3)) - 1 + source.below(3);
    case 2:
    case 3:
        return ends[source.below(16)];
    case 4:
        return source.below(2200);
    default:
        return source.below(80);
    }
}

uint32_t random_dtype(Source &source, bool complex)
{
    return complex ? static_cast<uint32_t>(GSC_COMPLEX64 + source.below(2))
                   : dtypes[source.below(std::size(dtypes))].dtype;
}

gsc_factor random_factor(Source &source)
{
    gsc_factor factor, product;
    static const double limits[] = {0x1p-149, 0x1p-126, 0x1p126}; /* of normal and any floats */
    double scale = std::ldexp(1, static_cast<int>(source.below(64)) - 24);
    if (source.one_in(4))
        scale = limits[source.below(3)] * std::ldexp(1 + static_cast<double>(source.below(2)) / 3,
                                                     static_cast<int>(source.below(24)));
    else if (source.one_in(2))
        scale = source.number();
    if (gsc_factor_init(scale, &factor, nullptr) != GSC_OK)
        gsc_factor_init(65536, &factor, nullptr);
    /* Others are not the inverse of each other to the bit. */
    if (source.one_in(4) &&
        gsc_factor_multiply(nullptr, &factor, source.number(), &product, nullptr) == GSC_OK)
        return product;
    return factor;
}

Call random_call(Source &source, bool large)
{
    Call c = {};
    c.operation = static_cast<Operation>(source.below(4));
    c.has_factor = !source.one_in(8);
    c.factor = random_factor(source);
    c.factor.generation = source.below(3);
    if (c.operation != CHECK && c.operation != ACCUMULATE && source.one_in(3)) {
        c.clamp = std::fabs(source.number());
        if (!std::isfinite(c.clamp))
            c.clamp = 1;
    }
    c.want = static_cast<uint32_t>(source.one_in(4) ? want_all : source.below(8));
    c.each = source.one_in(2);
    c.histogram = source.one_in(3);
    c.has_policy = source.one_in(3);
    c.policy = GSC_POLICY_INIT;
    c.policy.overflow_test = source.one_in(2) ? GSC_TEST_NORM : GSC_TEST_ELEMENT;
    c.policy.target_amax = source.one_in(4) ? 1 : 0;
    const bool one_dtype = source.one_in(4), castless = source.one_in(3),
               good =
                   source.one_in(2); /* most of it: the first bad one is then far from the start */
    uint64_t bytes = 0;
    /* Enough for threads, and for output past the caches. */
    const uint64_t most = large ? (source.one_in(4) ? 17u : 5u) << 20 : 100000,
                   n = large ? 80 : source.below(source.one_in(2) ? 4 : 41);
    for (uint64_t i = 0; i < n && bytes < most; i++) {
        Entry e = {};
        const bool complex = source.one_in(6);
        e.in = one_dtype && i ? c.entries[0].in : random_dtype(source, complex);
        e.out = random_dtype(source, parts(e.in) == 2);
        if (castless || c.operation == CHECK)
            e.out = e.in;
        e.count = random_count(source, large && i % 4 != 3);
        e.in_place = c.operation != ACCUMULATE && source.one_in(2) &&
                     gsc_dtype_size(e.in) == gsc_dtype_size(e.out);
        e.shift = source.below(64);
        e.out_shift = source.below(64);
        e.data = random_data(e.in, e.count, good && !source.one_in(4), source);
        e.before = random_data(e.out, e.count, good, source);
        bytes += e.data.size();
        if (c.clamp != 0 && limit_of(real(e.out), c.clamp) == 0) /* which is refused */
            c.clamp = 1;
        c.entries.push_back(std::move(e));
    }
    return c;
}

/* ---- contexts ---- */

/* Shares of the work in an odd order: a stride that meets all of them. */
int32_t run_in_odd_order(void *, gsc_task *task, void *data, uint64_t count)
{
    const uint64_t stride = count % 7 ? 7 : 1;
    for (uint64_t i = 0; i < count; i++)
        task(data, (count - 1 - i) * stride % count);
    return 0;
}

gsc_exec exec_of(uint32_t threads, gsc_parallel_for *parallel_for)
{
    gsc_exec exec = GSC_EXEC_INIT;
    const gsc_cpu_options options = {GSC_CPU_OPTIONS_SIZE, threads, parallel_for, nullptr};
    claim(gsc_context_create_cpu(&options, &exec.context, nullptr) == GSC_OK, "there are threads");
    return exec;
}

} // namespace

const gsc_kernels *__wrap_gsc_kernels_best()
{
    return kernels ? kernels : __real_gsc_kernels_best();
}

void fuzz_lists(Source &source, bool rare)
{
    static const std::vector<const gsc_kernels *> rungs = rungs_here();
    static const gsc_exec own = exec_of(3, nullptr), foreign = exec_of(2, run_in_odd_order);
    const Call c = random_call(source, rare);
    describe = [&] { return c.words(); };
    const gsc_kernels *any_rung = rungs[source.below(rungs.size())];
    const auto same_as = [](const Outcome &expected, const Outcome &o, const char *text) {
        claim(o == expected, text, difference(o, expected));
    };

    const Outcome first = outcome(c, rungs[0], nullptr, false);
    for (uint64_t i = 1; i < rungs.size(); i++)
        same_as(first, outcome(c, rungs[i], nullptr, false), "every rung gives the same bits");
    same_as(first, outcome(c, any_rung, nullptr, true), "in place and apart are the same");
    const gsc_exec *const on = source.one_in(2) ? &own : &foreign;
    same_as(first, outcome(c, any_rung, on, false), "threads change nothing");

    Call all = c;
    all.want = want_all;
    all.each = all.histogram = true;
    same_as(first, only(c, outcome(all, any_rung, nullptr, false)),
            "what else is wanted changes nothing");

    bool in_kind = true;
    uint64_t elements = 0;
    for (const Entry &e : c.entries) {
        in_kind &= e.in == e.out;
        elements += e.count;
    }
    if (c.operation == UNSCALE && c.clamp == 0 && in_kind) {
        Call check = c;
        check.operation = CHECK;
        Outcome checked = outcome(check, any_rung, nullptr, false);
        checked.outputs = first.outputs;
        same_as(first, checked, "check reports what unscaling in place does");
    }

    if (elements < 2000 || (!rare && source.one_in(2))) {
        Outcome expected = model(c);
        const auto near = [](gsc_report &model, const gsc_report &report) {
            const double sum = report.sum_squares, off = std::fabs(model.sum_squares - sum);
            model.sum_squares = sum;
            return !(std::fabs(sum) < 1e300) || off <= 1e-5 * std::fabs(sum) + 1e-318;
        };
        bool all_near = near(expected.report, first.report);
        for (uint64_t i = 0; i < first.each.size(); i++)
            all_near &= near(expected.each[i], first.each[i]);
        claim(all_near, "the sum of squares is one",
              words_of(first.report) + words_of(expected.report));
        /* The verdict of a policy, from the sum of squares itself. */
        if (c.has_policy && c.policy.overflow_test == GSC_TEST_NORM)
            expected.report.overflow |= !(first.report.sum_squares <= FLT_MAX);
        expected.report.found_inf = static_cast<float>(expected.report.overflow);
        same_as(expected, first, "the bits are those of the numerics");
    }

    gsc_factor clipped;
    const double max_norm = std::fabs(source.number());
    gsc_error err = {};
    const gsc_status status = gsc_factor_clip_grad_norm(nullptr, c.has_factor ? &c.factor : nullptr,
                                                        &first.report, max_norm, &clipped, &err);
    claim(status == GSC_OK || (status == err.status && no_c_names(err)), "a refusal says why");
    if (status == GSC_OK)
        claim(clipped.inverse > 0 && clipped.inverse <= (c.has_factor ? c.factor.inverse : 1),
              "clipping makes gradients smaller, but not zero");
}
