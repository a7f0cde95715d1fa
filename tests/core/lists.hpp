// SPDX-License-Identifier: MIT
// Calls on lists of tensors, as data. Each runs on fresh memory, on every instruction set, in place
// and apart, and on threads, and must give what one naive loop over exact values gives: the bits of
// the outputs and of the reports of the list and of each tensor. Nothing else may be touched.
#ifndef GSC_TESTS_CORE_LISTS_HPP
#define GSC_TESTS_CORE_LISTS_HPP

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cfenv>
#include <cfloat>

#include "support.hpp"

/* The set of the calls; NULL: the best. The linker takes the second for gsc_kernels_best. */
inline const gsc_kernels *forced_set;
extern "C" const gsc_kernels *__wrap_gsc_kernels_best(), *__real_gsc_kernels_best();
extern "C" __attribute__((weak)) const gsc_kernels *__wrap_gsc_kernels_best()
{
    return forced_set ? forced_set : __real_gsc_kernels_best();
}

/* ---- a call ---- */

/* COPY and SKIP: gsc_copy_unless_skipped, by a state that steps and one that skips. */
enum Operation { SCALE, CHECK, UNSCALE, ACCUMULATE, COPY, SKIP, OPERATIONS };

inline uint64_t parts_of(uint32_t dtype)
{
    return is_complex(dtype) ? 2 : 1;
}

struct Entry {
    uint32_t in, out; /* dtypes */
    uint64_t count;
    Bytes data, before; /* of the input, of an output apart */
    bool in_place = false;
    uint64_t shift = 0, out_shift = 0; /* from an aligned address */
};

struct Call {
    Operation operation = UNSCALE;
    bool has_factor = true;
    gsc_factor factor = {1, 1, 1, 1, 0};
    double clamp = 0;
    uint32_t want = want_all;
    bool each = true, histogram = true, has_policy = false, has_report = true;
    gsc_policy policy = zeros;
    std::vector<Entry> entries;
    bool has_loss = false;
    Entry loss = {}; /* its input */

    double multiplier() const
    {
        return !has_factor ? 1 : operation == SCALE ? factor.scale : factor.inverse;
    }
    uint32_t measures() const
    {
        const bool norm = has_policy && (policy.overflow_test == GSC_TEST_NORM || guards(policy));
        return want | (norm ? GSC_WANT_NORM : 0);
    }
    bool writes() const
    {
        return operation != CHECK;
    }
    std::string words() const
    {
        static const char *const names[] = {"scale",      "check", "unscale",
                                            "accumulate", "copy",  "skip"};
        std::ostringstream s;
        s << std::hexfloat << names[operation] << " by " << multiplier() << " clamp " << clamp
          << " want " << want << " each " << each << " histogram " << histogram << " policy "
          << has_policy << " by norm " << policy.overflow_test << " holds " << policy.bad_loss_rule
          << "\n";
        if (has_loss)
            s << "  a loss of " << loss.count << " of dtype " << loss.in << "\n";
        for (const Entry &e : entries)
            s << "  " << e.count << " of dtype " << e.in << (e.in_place ? " in place" : "")
              << " to " << e.out << ", at " << e.shift << " and " << e.out_shift << "\n";
        return s.str();
    }
};

/* Memory between pages that nobody may touch; the i-th is mapped when it is first asked for. */
constexpr size_t fenced_size = 1 << 18;

inline unsigned char *fenced_memory(size_t i)
{
    static std::vector<unsigned char *> all;
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    while (all.size() <= i) {
        void *at =
            mmap(nullptr, fenced_size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        claim(at != MAP_FAILED, "there is memory");
        all.push_back(static_cast<unsigned char *>(at) + page);
        claim(mprotect(all.back(), fenced_size, PROT_READ | PROT_WRITE) == 0, "it can be written");
    }
    return all[i];
}

/* A call's memory: a block for each input and for each output apart, which begins or ends at a
 * fence if it is not too large, with marks beside the data. */
class Image {
  public:
    Image(const Call &call, bool apart, bool fenced = true) : is_fenced(fenced)
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

    bool operator==(const Image &other) const
    {
        for (size_t i = 0; i < blocks.size(); i++)
            if (std::memcmp(blocks[i].first, other.blocks[i].first, blocks[i].second) != 0)
                return false;
        return true;
    }

  private:
    void *add(const Bytes &data, uint64_t shift, bool may_be_null)
    {
        const bool at_end = shift >= 32;
        const size_t size = shift + data.size() + (at_end ? 0 : 64);
        const bool fits = is_fenced && size <= fenced_size;
        heap.emplace_back(fits ? 0 : size);
        unsigned char *start = heap.back().data();
        if (fits)
            start = fenced_memory(blocks.size()) + (at_end ? fenced_size - size : 0);
        std::memset(start, 0xa5, size);
        blocks.emplace_back(start, size);
        if (data.empty())
            return may_be_null ? nullptr : start;
        std::memcpy(start + shift, data.data(), data.size());
        return start + shift;
    }
    bool is_fenced;
    std::vector<std::pair<unsigned char *, size_t>> blocks;
    std::vector<Bytes> heap;
};

/* Returns the state after an update. */
inline gsc_state state_of(bool overflow)
{
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_report report = measured;
    gsc_state state;
    report.overflow = overflow;
    report.found_inf = static_cast<float>(overflow);
    claim(gsc_state_init(nullptr, &policy, &state, nullptr) == GSC_OK, "a state");
    claim(gsc_state_update(nullptr, &policy, &state, &report, &state, nullptr) == GSC_OK,
          "an update");
    return state;
}

inline gsc_status run(const Call &c, const gsc_exec *on, const gsc_tensor *in,
                      const gsc_tensor *out, const gsc_tensor_options *options, gsc_report *report,
                      gsc_error *err)
{
    const gsc_factor *factor = c.has_factor ? &c.factor : nullptr;
    const uint64_t n = c.entries.size();
    if (c.operation == CHECK)
        return gsc_measure(on, factor, in, n, options, report, err);
    if (c.operation == COPY || c.operation == SKIP) {
        static const gsc_state steps = state_of(false), skips = state_of(true);
        return gsc_copy_unless_skipped(on, c.operation == COPY ? &steps : &skips, in, out, n, err);
    }
    const auto call = c.operation == SCALE     ? gsc_scale
                      : c.operation == UNSCALE ? gsc_unscale
                                               : gsc_unscale_accumulate;
    return call(on, factor, in, out, n, options, report, err);
}

struct Outcome {
    std::vector<Bytes> outputs;
    gsc_report report = measured;
    Reports each;
    std::array<int64_t, GSC_HISTOGRAM_LENGTH> histogram = {};
    std::string message = ""; /* of a call that is refused */
};

/* Returns the difference in words, or "". */
inline std::string difference(const Outcome &a, const Outcome &b)
{
    std::string text = a.histogram != b.histogram ? "histograms\n" : "";
    if (!same(a.report, b.report))
        text += words_of(a.report) + words_of(b.report);
    if (a.each.size() != b.each.size() || a.outputs.size() != b.outputs.size())
        return text + "another number of tensors";
    for (uint64_t i = 0; i < a.each.size(); i++)
        if (!same(a.each[i], b.each[i]))
            text += std::to_string(i) + ": " + words_of(a.each[i]) + words_of(b.each[i]);
    for (uint64_t i = 0; i < a.outputs.size(); i++)
        if (a.outputs[i] != b.outputs[i])
            text += "output " + std::to_string(i) + "\n";
    return text;
}

/* Runs a call on fresh memory, full of a mark where the library is to write. */
inline Outcome outcome(const Call &c, const gsc_kernels *set = nullptr,
                       const gsc_exec *on = nullptr, bool apart = false,
                       gsc_status expected = GSC_OK)
{
    Image image(c, apart), fresh(c, apart, false);
    Outcome o;
    gsc_error err = {};
    gsc_tensor_options options = wanting(c.want);
    options.clamp = c.clamp;
    options.policy = c.has_policy ? &c.policy : nullptr;
    Bytes loss_data = c.loss.data;
    const gsc_tensor loss = {loss_data.data(), c.loss.count, c.loss.in, 0, {}};
    options.loss = c.has_loss ? &loss : nullptr;
    const bool has_options =
        c.want || c.clamp != 0 || c.has_policy || c.each || c.histogram || c.has_loss;
    const uint64_t n = c.entries.size();
    const int rounding = std::fegetround();
    forced_set = set;
    std::memset(&o.report, 0x5a, sizeof o.report);
    o.each.resize(c.each ? n : 0, o.report);
    o.histogram.fill(c.histogram ? -1 : 0);
    options.per_tensor = c.each ? o.each.data() : nullptr;
    options.histogram = c.histogram ? o.histogram.data() : nullptr;
    const Outcome before = o;
    const gsc_status status =
        run(c, on, image.in.data(), image.out.data(), has_options ? &options : nullptr,
            c.has_report ? &o.report : nullptr, &err);
    claim(status == expected, "a valid call succeeds", err.message);
    forced_set = nullptr;
    claim(std::fegetround() == rounding, "the rounding mode stays");
    if (status != GSC_OK) {
        claim(image == fresh && difference(o, before).empty(), "a refused call writes nothing");
        o.message = err.message;
        return o;
    }
    for (uint64_t i = 0; i < n && c.writes(); i++) {
        const auto *at = static_cast<const unsigned char *>(image.out[i].data);
        o.outputs.emplace_back(at, at + c.entries[i].before.size());
        if (!o.outputs[i].empty())
            std::memcpy(fresh.out[i].data, at, o.outputs[i].size());
    }
    claim(image == fresh, "nothing but the outputs is written");
    if (c.each && c.has_report && n > 0) {
        Reports parts = o.each;
        parts[0].loss = o.report.loss; /* the loss is none of a tensor's */
        gsc_report all = merged(parts, GSC_MERGE_SHARDS, options.policy);
        all.kind = o.report.kind;
        claim(same(all, o.report), "the reports of each tensor merge to the report on the list",
              words_of(all) + words_of(o.report));
    }
    return o;
}

/* ---- what the numerics say ---- */

/* Returns the outcome of `c`, from the outcome of a call that asks for all. */
inline Outcome only(const Call &c, Outcome o)
{
    o.report = only(c.measures(), o.report);
    o.each.resize(c.each ? o.each.size() : 0);
    for (gsc_report &report : o.each)
        report = only(c.measures(), report);
    if (!c.histogram)
        o.histogram = {};
    return o;
}

/* Lane j takes lane j + 32, then j + 16, ...: the sum of every lane that j has taken. */
inline double fold(const double *lanes, unsigned j, unsigned step)
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

/* Returns the sum for one tensor: blocks within chunks, in order; chunks within the tensor, in
 * runs. */
inline double sum_of_squares(const std::vector<double> &products, bool in_float)
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
            in_float ? static_cast<double>(static_cast<float>(x) * static_cast<float>(multiplier))
                     : x * multiplier;
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
        if (call.operation != ACCUMULATE && call.operation != SKIP)
            return v.after;
        const uint64_t old = read_bits(to, e.before.data(), i);
        if (overflow || call.operation == SKIP)
            return old;
        if (is_nan(to, old))
            return convert_nan(to, to, old);
        const double y = decode(to, old);
        return encode(
            to, in_float && to.dtype != GSC_F64
                    ? static_cast<double>(static_cast<float>(y) + static_cast<float>(v.product))
                    : y + v.product);
    }
};

/* The report of one entry, the t-th; adds to the histogram. */
inline gsc_report model(const Call &c, uint64_t t, Outcome &o)
{
    const Entry &e = c.entries[t];
    const Numbers numbers(c, e);
    const Dtype &from = numbers.from, &to = numbers.to;
    const uint64_t k = parts_of(e.in);
    std::vector<double> products;
    gsc_report r = measured;
    r.generation = c.has_factor ? c.factor.generation : 0;
    r.elements = static_cast<int64_t>(e.count);
    for (uint64_t i = 0; i < e.count; i++) {
        Value v = {}; /* of the part that counts, the larger one */
        for (uint64_t part = 0; part < k; part++) {
            const Value each = numbers.at(i * k + part);
            products.push_back(each.product);
            if (std::isfinite(each.product))
                r.amax = std::max(r.amax, std::fabs(each.product));
            if (part == 0 || (each.before & ~from.sign()) > (v.before & ~from.sign()))
                v = each;
        }
        const uint64_t before = v.before & ~from.sign(), after = v.after & ~to.sign();
        if (v.bad && r.nan_count + r.inf_count == 0) {
            r.first_tensor = r.last_tensor = static_cast<int64_t>(t);
            r.first_element = static_cast<int64_t>(i);
        }
        r.nan_count += v.nan;
        r.inf_count += v.bad && !v.nan;
        r.underflows_to_zero += before != 0 && after == 0;
        r.underflows_to_subnormal += before >= from.normal() && after != 0 && after < to.normal();
        r.clamped += v.clamped;
        if (i * k % 65536 >= 4096)
            continue;
        o.histogram[16]++;
        if (std::isfinite(v.product) && v.product != 0)
            o.histogram[static_cast<size_t>(
                std::clamp((std::ilogb(v.product) + 48) >> 2, 0, 15))]++;
    }
    r.sum_squares = sum_of_squares(products, numbers.in_float);
    r.overflow = r.nan_count + r.inf_count > 0;
    r.found_inf = static_cast<float>(r.overflow);
    return r;
}

inline uint32_t loss_of(const Call &c)
{
    if (!c.has_loss || c.loss.count == 0)
        return GSC_LOSS_UNKNOWN;
    for (uint64_t i = 0; i < c.loss.count; i++)
        if (!std::isfinite(
                decode(real(c.loss.in), read_bits(real(c.loss.in), c.loss.data.data(), i))))
            return GSC_LOSS_NOT_FINITE;
    return GSC_LOSS_FINITE;
}

inline Outcome model(const Call &c)
{
    Outcome o;
    for (uint64_t t = 0; t < c.entries.size(); t++)
        o.each.push_back(model(c, t, o));
    o.report = merged_by_hand(o.each);
    o.report.kind = GSC_REPORT_TENSORS;
    o.report.generation = c.has_factor ? c.factor.generation : 0;
    for (const Entry &e : c.entries) {
        if (!c.writes())
            break;
        const Numbers numbers(c, e);
        o.outputs.emplace_back(e.count * gsc_dtype_size(e.out));
        for (uint64_t i = 0; i < e.count * parts_of(e.in); i++)
            write_bits(numbers.to, o.outputs.back().data(), i,
                       numbers.written(i, numbers.at(i),
                                       o.report.overflow || loss_of(c) == GSC_LOSS_NOT_FINITE));
    }
    /* The verdict of a policy. */
    o.report.loss = loss_of(c);
    o.report.overflow |= c.has_policy && is_overflow(c.policy, o.report);
    o.report.found_inf =
        static_cast<float>(o.report.overflow || (c.has_policy && holds(c.policy, o.report)));
    o = only(c, o);
    if (!c.has_report)
        std::memset(&o.report, 0x5a, sizeof o.report);
    return o;
}

struct Pool {
    std::atomic<int> calls{0};
    bool refuses_first = false, refuses_later = false, keeps_rounding = true;
};

/* Runs the tasks by a stride that meets all of them, in a rounding mode of its own, or refuses. */
inline int32_t run_tasks(void *pool, gsc_task *task, void *data, uint64_t count)
{
    Pool *p = static_cast<Pool *>(pool);
    if (p->calls++ ? p->refuses_later : p->refuses_first)
        return 1;
    const uint64_t stride = count % 7 ? 7 : 1;
    const int rounding = std::fegetround();
    std::fesetround(FE_DOWNWARD);
    for (uint64_t i = 0; i < count; i++)
        task(data, (count - 1 - i) * stride % count);
    p->keeps_rounding &= std::fegetround() == FE_DOWNWARD;
    std::fesetround(rounding);
    return 0;
}

/* ---- the comparison ---- */

/* Returns what plain C gives; `draw` picks the instruction set and the context of comparisons that
 * one of each is enough for. The model takes long for a long list. */
inline Outcome check_call(const Call &c, uint64_t draw, bool with_model = true)
{
    static const std::vector<const gsc_kernels *> sets = sets_here();
    static Pool pool;
    static const Context own(3), foreign(2, run_tasks, &pool);
    describe = [&] { return c.words(); };
    const gsc_kernels *any_set = sets[draw % sets.size()];
    const auto same_as = [](const Outcome &expected, const Outcome &o, const char *text) {
        const std::string wrong = difference(o, expected);
        claim(wrong.empty(), text, wrong);
    };
    const Outcome first = outcome(c, sets[0]);
    for (uint64_t i = 1; i < sets.size(); i++)
        same_as(first, outcome(c, sets[i]), "every instruction set gives the same bits");
    same_as(first, outcome(c, any_set, nullptr, true), "in place and apart are the same");
    same_as(first, outcome(c, any_set, draw / 8 % 2 ? &own.on : &foreign.on),
            "threads change nothing");

    Call all = c;
    all.want = want_all;
    all.each = all.histogram = true;
    if (c.has_report)
        same_as(first, only(c, outcome(all, any_set)), "what else is wanted changes nothing");

    bool in_kind = c.operation == UNSCALE && c.clamp == 0;
    for (const Entry &e : c.entries)
        in_kind &= e.in == e.out;
    Call other = c;
    if (in_kind) {
        other.operation = CHECK;
        Outcome checked = outcome(other, any_set);
        checked.outputs = first.outputs;
        same_as(first, checked, "check reports what unscaling in place does");
    }
    if (c.operation == SCALE || c.operation == UNSCALE) {
        other = c;
        other.has_report = false;
        Outcome silent = outcome(other, any_set);
        silent.report = first.report;
        same_as(first, silent, "without a report all else is the same");
    }
    if (with_model)
        same_as(model(c), first, "the bits are as the numerics define");
    describe = nullptr;
    return first;
}

#endif
