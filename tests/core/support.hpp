// SPDX-License-Identifier: MIT
// Shared by the tests of the core: Catch2 of either major version, bits, random numbers, and the
// dtypes as exact numbers, by arithmetic that has nothing in common with the core's.
#ifndef GSC_TESTS_CORE_SUPPORT_HPP
#define GSC_TESTS_CORE_SUPPORT_HPP

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" {
#include "cpu/kernels.h"
#include "gradscaler_cuda.h"
}

using Bytes = std::vector<unsigned char>;

constexpr double infinity = HUGE_VAL, nan_value = std::numeric_limits<double>::quiet_NaN();

template <class T> bool same(const T &a, const T &b)
{
    return std::memcmp(&a, &b, sizeof a) == 0;
}

/* Checks words. core_tests_scrambled, which sets the variable, has nonsense instead of them. */
#define CHECK_WORDING(...)                                                                         \
    do {                                                                                           \
        if (!std::getenv("GRADSCALER_SCRAMBLED"))                                                  \
            CHECK(__VA_ARGS__);                                                                    \
    } while (0)

/* Says in words what is under test, for the message of a claim that is broken. */
inline std::function<std::string()> describe;

/* Throws if a claim is broken: fails a test, and ends the fuzzer. */
inline void claim(bool holds, const char *text, const std::string &details = "")
{
    if (holds)
        return;
    const std::string under_test = describe ? describe() : "";
    describe = nullptr;
    throw std::logic_error(std::string("broken: ") + text + "\n" + details + "\n" + under_test);
}

/* Where an error is: "tensors[2].data". */
inline std::string place(const gsc_error &err)
{
    const std::string field = err.field;
    return err.name + (err.index < 0 ? "" : "[" + std::to_string(err.index) + "]") +
           (field.empty() ? "" : "." + field);
}

/* Claims what holds of every error: its parts agree, and its sentence is for any language. */
inline void check_error(const gsc_error &err, gsc_status status)
{
    const auto ends = [](const auto &text) { return std::memchr(text, 0, sizeof text) != nullptr; };
    claim(ends(err.name) && ends(err.field) && ends(err.message), "the texts of an error end");
    const std::string message = err.message;
    claim(status != GSC_OK && err.status == status && message.size() > err.subject_length + 5,
          "a refusal says why", message);
    claim(message.find("gsc_") == std::string::npos && message.find("GSC_") == std::string::npos,
          "a refusal is for any language", message);
    claim(err.subject_length == 0 ||
              (message.find(place(err)) == 0 && message[err.subject_length - 1] == ' '),
          "a sentence begins with its subject", message);
    claim(!(err.low > err.high) && err.index >= -1 && err.reserved[0] == 0 && err.reserved[1] == 0,
          "a refused number has limits, or none", message);
}

/* A floating-point mode of a host: a rounding mode, or flush to zero of what is read or written. */
struct Mode {
    const char *name;
    int rounding;
    unsigned flush = 0; /* bits of MXCSR or FPCR */
};

inline const std::vector<Mode> &modes()
{
    static const std::vector<Mode> all = {
        {"nearest", FE_TONEAREST},
        {"upward", FE_UPWARD},
        {"downward", FE_DOWNWARD},
        {"toward zero", FE_TOWARDZERO},
#if defined(__x86_64__)
        {"FTZ", FE_TONEAREST, 0x8000},
        {"DAZ", FE_TONEAREST, 0x0040},
        {"FTZ and DAZ, upward", FE_UPWARD, 0x8040},
#elif defined(__aarch64__)
        {"FZ", FE_TONEAREST, 1u << 24},
#endif
    };
    return all;
}

class InMode {
  public:
    explicit InMode(const Mode &mode)
    {
        std::fegetenv(&before);
        std::fesetround(mode.rounding);
#if defined(__x86_64__)
        _mm_setcsr(_mm_getcsr() | mode.flush);
#elif defined(__aarch64__)
        uint64_t control;
        __asm__ volatile("mrs %0, fpcr" : "=r"(control));
        __asm__ volatile("msr fpcr, %0" ::"r"(control | mode.flush) : "memory");
#endif
    }
    ~InMode()
    {
        std::fesetenv(&before);
    }
    InMode(const InMode &) = delete;
    InMode &operator=(const InMode &) = delete;

  private:
    std::fenv_t before;
};

template <class To, class From> To bit_cast(From from)
{
    static_assert(sizeof(To) == sizeof(From), "other sizes are no cast");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

/* Adds in runs of 64: each run in order, then the runs in order. */
inline double sum_in_runs(const std::vector<double> &addends)
{
    double sum = 0;
    for (size_t first = 0; first < addends.size(); first += 64) {
        double run = 0;
        for (size_t i = first; i < std::min(first + 64, addends.size()); i++)
            run += addends[i];
        sum += run;
    }
    return sum;
}

inline std::string hex(uint64_t bits)
{
    std::ostringstream text;
    text << "0x" << std::hex << bits;
    return text.str();
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

inline std::vector<std::string> split(const std::string &words)
{
    std::istringstream in(words);
    return {std::istream_iterator<std::string>(in), {}};
}

/* Reads "1 0x1p-3 inf". */
inline std::vector<double> numbers(const std::string &words)
{
    std::vector<double> all;
    for (const std::string &word : split(words))
        all.push_back(std::strtod(word.c_str(), nullptr));
    return all;
}

/* An entry of a checkpoint. */
inline gsc_entry number(const std::string &key, double value)
{
    gsc_entry e = {};
    std::snprintf(e.key, sizeof e.key, "%s", key.c_str());
    e.kind = GSC_ENTRY_NUMBER;
    e.value = value;
    return e;
}

/* splitmix64: the same numbers everywhere. */
struct Random {
    uint64_t state;
    uint64_t next()
    {
        uint64_t x = state += 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        return x ^ x >> 31;
    }
    double unit()
    {
        return static_cast<double>(next() >> 11) * 0x1p-53;
    }
};

/* ---- policies, states and reports ---- */

/* The CRC-32 of zlib and PNG; "123456789" gives 0xcbf43926. */
inline uint32_t crc32(const unsigned char *bytes, size_t size)
{
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < size; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            const uint32_t out = (crc ^ bytes[i] >> bit) & 1;
            crc = crc >> 1 ^ (out ? 0xedb88320 : 0);
        }
    return ~crc;
}

/* clang-format off */
/* X(field) for each field of a policy. */
#define FOR_POLICY(X) \
    X(init_scale) X(growth_factor) X(backoff_factor) X(growth_interval) X(growth_rule) \
    X(growth_extra_steps) X(max_scale) X(min_scale) X(ceiling_rule) X(floor_rule) X(overflow_test) \
    X(hysteresis) X(overflow_reset) X(apply_delay) X(overflow_tolerance) X(max_failed_backoffs) \
    X(quirks) X(arithmetic) X(bad_loss_rule) X(guard_norm) X(guard_ratio) X(guard_sigmas) \
    X(guard_decay) X(guard_init_mean) X(guard_warmup) X(guard_max_in_a_row) X(guard_sample) \
    X(guard_flags)
/* clang-format on */

/* A policy that is written down: zeros.init_scale(3).hysteresis(2). */
struct Policy : gsc_policy {
#define SETTER(field)                                                                              \
    Policy field(decltype(gsc_policy::field) value) const                                          \
    {                                                                                              \
        Policy changed = *this;                                                                    \
        changed.gsc_policy::field = value;                                                         \
        return changed;                                                                            \
    }
    FOR_POLICY(SETTER)
#undef SETTER
};

const Policy zeros = {GSC_POLICY_INIT};

inline bool same(const gsc_policy &a, const gsc_policy &b) /* which have no padding */
{
    return same<gsc_policy>(a, b);
}

inline Policy preset_policy(const std::string &name)
{
    Policy policy = zeros;
    claim(gsc_policy_preset(name.c_str(), &policy, nullptr) == GSC_OK, "there is a preset", name);
    return policy;
}

inline std::vector<std::string> preset_names()
{
    std::vector<std::string> names;
    while (const char *name = gsc_preset_name(static_cast<uint32_t>(names.size())))
        names.push_back(name);
    return names;
}

/* A factor that gsc_factor_init may refuse, as a float cannot hold it. */
inline gsc_factor factor_of(double scale, double inverse, uint64_t generation = 0)
{
    return {scale, inverse, static_cast<float>(scale), static_cast<float>(inverse), generation};
}

inline gsc_state started(const gsc_policy &policy)
{
    gsc_state state;
    claim(gsc_state_init(nullptr, &policy, &state, nullptr) == GSC_OK, "a policy has a state");
    return state;
}

inline gsc_state updated(const gsc_policy &policy, const gsc_state &state, const gsc_report &report)
{
    gsc_state out;
    claim(gsc_state_update(nullptr, &policy, &state, &report, &out, nullptr) == GSC_OK,
          "a report updates a state");
    return out;
}

/* Every GSC_WANT_* bit. */
constexpr uint32_t want_all = GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW;

inline gsc_tensor_options wanting(uint32_t want)
{
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.want = want;
    return options;
}

/* The report of a list without elements. */
constexpr gsc_report measured = [] {
    gsc_report report{};
    report.kind = GSC_REPORT_TENSORS;
    report.measured = want_all;
    return report;
}();

/* The report of a step; 'x' is an overflow. */
inline gsc_report report_of(char step, double amax = 0)
{
    gsc_report report = measured;
    report.elements = 1;
    report.amax = amax;
    report.overflow = step == 'x';
    report.found_inf = static_cast<float>(report.overflow);
    return report;
}

using Reports = std::vector<gsc_report>;

/* A report as calls leave it: if no bad element was found, none was found first. Of a rank above
 * 0 it mostly has a digest. */
inline gsc_report random_report(Random &random, uint32_t rank_plus_1 = 0)
{
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(random.next() % n); };
    gsc_report r = measured;
    if (below(16) == 0)
        return r;
    r.amax = below(32) ? random.unit() * 100 : nan_value;
    r.sum_squares = below(8) ? random.unit() * 1000 : 0x1.8p127; /* two of them are no float */
    r.measured = below(4) ? want_all : want_all & ~(below(2) ? GSC_WANT_NORM : GSC_WANT_UNDERFLOW);
    r.status = below(16) ? GSC_OK : GSC_ERROR_FACTOR - static_cast<int>(below(9));
    r.generation = random.next() % 5;
    r.elements = below(1000);
    r.clamped = below(1000);
    if (r.measured & GSC_WANT_UNDERFLOW)
        r.underflows_to_zero = r.underflows_to_subnormal = below(1000);
    if (below(8) == 0) {
        (below(2) ? r.nan_count : r.inf_count) = 1 + below(9);
        r.first_tensor = below(100);
        r.first_element = below(100);
        r.last_tensor = r.first_tensor + below(100);
    }
    r.loss = static_cast<uint32_t>(below(3));
    /* After an overflow or a failure a framework, or a rank, can leave any number, or none. */
    r.overflow =
        r.nan_count + r.inf_count > 0 || below(16) == 0 ? static_cast<int32_t>(1 + below(3)) : 0;
    r.found_inf = static_cast<float>(below(16) ? r.overflow : below(3));
    if ((r.overflow != 0 || r.found_inf != 0 || r.status != GSC_OK) && below(4) == 0) {
        r.kind = GSC_REPORT_NONE; /* as by someone who sets nothing else */
        r.loss = GSC_LOSS_UNKNOWN;
    } else if (below(4) == 0) {
        r.kind = GSC_REPORT_MERGED;
        r.has_flag = static_cast<uint32_t>(below(2));
    } else if (below(8) == 0 && r.nan_count + r.inf_count == 0) {
        const gsc_report flag = r;
        r = {};
        r.kind = GSC_REPORT_FLAG;
        r.overflow = flag.overflow, r.found_inf = flag.found_inf, r.status = flag.status;
    }
    if (rank_plus_1 > 0 && below(8)) {
        r.status_rank_plus_1 = r.first_rank_plus_1 = rank_plus_1;
        r.last_rank_plus_1 = r.loss_rank_plus_1 = rank_plus_1;
        r.digest = 42;
    }
    return r;
}

inline bool guards(const gsc_policy &p)
{
    return p.guard_norm != 0 || p.guard_ratio != 0 || p.guard_sigmas != 0;
}

/* Returns whether the report itself says so; found_inf can be the bad loss's. */
inline bool says_overflow(const gsc_report &r)
{
    return r.overflow != 0 || r.status != GSC_OK ||
           (r.found_inf != 0 && r.loss != GSC_LOSS_NOT_FINITE);
}

/* Returns whether a policy holds the scale because of the loss. */
inline bool holds(const gsc_policy &p, const gsc_report &r)
{
    return p.bad_loss_rule == GSC_BAD_LOSS_HOLD && r.loss == GSC_LOSS_NOT_FINITE;
}

/* Returns whether a report is an overflow by the rules of a policy: of an update, and of a call. */
inline bool is_overflow(const gsc_policy &p, const gsc_report &r)
{
    const double most = static_cast<double>(std::numeric_limits<float>::max());
    return says_overflow(r) || (r.found_inf != 0 && !holds(p, r)) ||
           (guards(p) && !(r.sum_squares <= 0x1p1000)) ||
           (p.overflow_test == GSC_TEST_NORM && !(r.sum_squares <= most));
}

inline gsc_report merged(const Reports &reports, uint32_t kind = GSC_MERGE_SHARDS,
                         const gsc_policy *policy = nullptr)
{
    gsc_report out;
    std::memset(&out, 0x5a, sizeof out);
    claim(gsc_report_merge(nullptr, reports.data(), reports.size(), kind, policy, &out, nullptr) ==
              GSC_OK,
          "reports merge");
    return out;
}

/* A report where less was measured. */
inline gsc_report only(uint32_t measures, gsc_report r)
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

/* Returns the merge that the contract demands, member by member. */
inline gsc_report merged_by_hand(const Reports &reports, uint32_t kind = GSC_MERGE_SHARDS)
{
    gsc_report r = measured;
    std::vector<double> squares;
    r.kind = GSC_REPORT_MERGED;
    if (kind == GSC_MERGE_ADDENDS && !reports.empty())
        r.measured = GSC_WANT_UNDERFLOW;
    for (const gsc_report &one : reports) {
        const bool overflow = says_overflow(one), bad = one.nan_count + one.inf_count > 0,
                   first_bad = bad && r.nan_count + r.inf_count == 0;
        if (bad)
            r.last_tensor = one.last_tensor;
        if (bad || (overflow && r.nan_count + r.inf_count == 0))
            r.last_rank_plus_1 = one.last_rank_plus_1;
        if (one.loss == GSC_LOSS_NOT_FINITE && r.loss != GSC_LOSS_NOT_FINITE)
            r.loss_rank_plus_1 = one.loss_rank_plus_1;
        r.loss = std::max(r.loss, one.loss);
        r.has_flag |= one.has_flag || one.kind == GSC_REPORT_FLAG;
        if (first_bad) {
            r.first_tensor = one.first_tensor;
            r.first_element = one.first_element;
        }
        if (first_bad || (overflow && !r.overflow))
            r.first_rank_plus_1 = one.first_rank_plus_1;
        if (r.status == GSC_OK && one.status != GSC_OK) {
            r.status = one.status;
            r.status_rank_plus_1 = one.status_rank_plus_1;
        }
        r.generation = r.generation == 0     ? one.generation
                       : one.generation == 0 ? r.generation
                                             : std::min(r.generation, one.generation);
        r.overflow |= overflow;
        r.measured &= one.measured;
        r.digest |= one.digest;                                                /* equal, or 0 */
        r.amax = std::isnan(r.amax) || r.amax >= one.amax ? r.amax : one.amax; /* a NaN survives */
        r.elements += one.elements;
        r.nan_count += one.nan_count;
        r.inf_count += one.inf_count;
        r.underflows_to_zero += one.underflows_to_zero;
        r.underflows_to_subnormal += one.underflows_to_subnormal;
        r.clamped += one.clamped;
        squares.push_back(one.sum_squares);
    }
    r.found_inf = std::any_of(reports.begin(), reports.end(), [](const gsc_report &one) {
        return one.found_inf != 0 || says_overflow(one);
    });
    r.sum_squares = sum_in_runs(squares);
    return only(r.measured, r);
}

/* The instruction sets that this machine has, or those that it lacks. */
inline std::vector<const gsc_kernels *> sets_here(bool that_run = true)
{
    std::vector<const gsc_kernels *> all;
    bool runs;
    for (uint32_t i = 0; const gsc_kernels *set = gsc_kernels_of_set(i, &runs); i++)
        if (runs == that_run)
            all.push_back(set);
    return all;
}

/* Threads of the context's own, or what a function of the host runs. */
struct Context {
    explicit Context(uint32_t threads, gsc_parallel_for *parallel_for = nullptr,
                     void *pool = nullptr)
    {
        const gsc_cpu_options options = {GSC_CPU_OPTIONS_SIZE, threads, parallel_for, pool};
        claim(gsc_context_create_cpu(&options, &on.context, nullptr) == GSC_OK,
              "there are threads");
        owner.reset(on.context, gsc_context_destroy);
    }
    gsc_exec on = GSC_EXEC_INIT;
    std::shared_ptr<gsc_context> owner;
};

/* ---- dtypes ---- */

/*
 * Bytes, bits of the mantissa, and |bits| of infinity (or what is not finite), of the smallest
 * normal, of the sign.
 */
struct Dtype {
    uint32_t dtype, index; /* GSC_*, and in the tables of kernels */
    const char *name;
    uint64_t size;
    int mantissa, bias;
    bool has_infinity() const
    {
        return dtype != GSC_F8_E4M3FN;
    }
    uint64_t infinity() const
    {
        return has_infinity() ? (sign() - 1) & ~(normal() - 1) : sign() - 1;
    }
    uint64_t nan() const
    {
        return infinity() + has_infinity();
    }
    uint64_t normal() const
    {
        return uint64_t{1} << mantissa;
    }
    uint64_t sign() const
    {
        return uint64_t{1} << (8 * size - 1);
    }
};

constexpr Dtype f32 = {GSC_F32, gsc_f32, "f32", 4, 23, 127},
                f64 = {GSC_F64, gsc_f64, "f64", 8, 52, 1023},
                f16 = {GSC_F16, gsc_f16, "f16", 2, 10, 15},
                bf16 = {GSC_BF16, gsc_bf16, "bf16", 2, 7, 127},
                f8_e4m3fn = {GSC_F8_E4M3FN, gsc_f8_e4m3fn, "f8_e4m3fn", 1, 3, 7},
                f8_e5m2 = {GSC_F8_E5M2, gsc_f8_e5m2, "f8_e5m2", 1, 2, 15},
                cb16 = {GSC_CB16, gsc_cb16, "cb16", 2, 9, 42};

/* By index; the first two are the wide ones. */
constexpr Dtype dtypes[] = {
#define DTYPE(name) name,
    GSC_FOR_DTYPES(DTYPE)
#undef DTYPE
};

inline bool is_complex(uint32_t dtype)
{
    return dtype == GSC_COMPLEX64 || dtype == GSC_COMPLEX128;
}

/* A GSC_* constant, or the parts of a complex one. */
inline const Dtype &real(uint32_t dtype)
{
    if (is_complex(dtype))
        return dtype == GSC_COMPLEX64 ? dtypes[gsc_f32] : dtypes[gsc_f64];
    return *std::find_if(std::begin(dtypes), std::end(dtypes),
                         [=](const Dtype &d) { return d.dtype == dtype; });
}

inline uint64_t read_bits(const Dtype &d, const unsigned char *data, uint64_t i)
{
    uint64_t bits = 0;
    std::memcpy(&bits, data + i * d.size, d.size);
    return bits;
}

inline void write_bits(const Dtype &d, unsigned char *data, uint64_t i, uint64_t bits)
{
    std::memcpy(data + i * d.size, &bits, d.size);
}

inline bool is_nan(const Dtype &d, uint64_t bits)
{
    return (bits & ~d.sign()) >= d.nan();
}

/* ---- the value of bits, and the bits of a value ---- */

/* (-1)^s 2^(e - bias) 1.m, which for the first bits that are not finite is what would be next. */
inline double narrow_value(const Dtype &d, uint64_t bits)
{
    const uint64_t magnitude = bits & ~d.sign(), fraction = magnitude & (d.normal() - 1);
    const int exponent = static_cast<int>(magnitude >> d.mantissa);
    const double significand = static_cast<double>(exponent ? fraction + d.normal() : fraction);
    const double value = std::ldexp(significand, std::max(exponent, 1) - d.bias - d.mantissa);
    return bits & d.sign() ? -value : value;
}

/* Every value of a narrow dtype that is not negative, in order, which is the order of the bits. */
inline const std::vector<double> &narrow_values(const Dtype &d)
{
    static std::vector<double> of_each[std::size(dtypes)];
    std::vector<double> &values = of_each[d.index];
    for (uint64_t bits = values.size(); bits <= d.infinity(); bits++)
        values.push_back(narrow_value(d, bits));
    return values;
}

/* The nearest value, of two the even one, by looking for it among all of them. x is no NaN. */
inline uint64_t nearest(const Dtype &narrow, double x)
{
    const std::vector<double> &values = narrow_values(narrow);
    const double magnitude = std::fabs(x);
    const auto above = std::lower_bound(values.begin(), values.end() - 1, magnitude);
    uint64_t bits = static_cast<uint64_t>(above - values.begin());
    if (bits > 0) {
        const double up = values[bits] - magnitude, down = magnitude - values[bits - 1];
        if (down < up || (down == up && bits % 2 == 1))
            bits--;
    }
    return bits | (std::signbit(x) ? narrow.sign() : 0);
}

/* The exact value; for a NaN, some NaN. */
inline double decode(const Dtype &d, uint64_t bits)
{
    if (d.dtype == GSC_F64)
        return bit_cast<double>(bits);
    if (d.dtype == GSC_F32)
        return static_cast<double>(bit_cast<float>(static_cast<uint32_t>(bits)));
    if (is_nan(d, bits))
        return std::numeric_limits<double>::quiet_NaN();
    if ((bits & ~d.sign()) == d.infinity())
        return bits & d.sign() ? -HUGE_VAL : HUGE_VAL;
    return narrow_value(d, bits);
}

/* The nearest bits; x is no NaN. */
inline uint64_t encode(const Dtype &d, double x)
{
    if (d.dtype == GSC_F64)
        return bit_cast<uint64_t>(x);
    if (d.dtype == GSC_F32)
        return bit_cast<uint32_t>(static_cast<float>(x));
    return nearest(d, x);
}

/* The largest value of a dtype that is not above the clamp. */
inline double limit_of(const Dtype &to, double clamp)
{
    const uint64_t nearest = std::min(encode(to, clamp), to.infinity() - 1);
    return decode(to, nearest - (decode(to, nearest) > clamp ? 1 : 0));
}

/* A NaN in another dtype: quiet, sign and upper payload kept. */
inline uint64_t convert_nan(const Dtype &from, const Dtype &to, uint64_t bits)
{
    const uint64_t payload = (bits & (from.normal() - 1)) << (52 - from.mantissa);
    return (bits & from.sign() ? to.sign() : 0) | to.infinity() | to.normal() >> 1 |
           (to.has_infinity() ? payload >> (52 - to.mantissa) : 0);
}

/* Bits of a dtype that are worth a test: what stands at an end of something, of both signs. */
inline const std::vector<uint64_t> &special_bits(const Dtype &d)
{
    static std::vector<uint64_t> of_each[std::size(dtypes)];
    const uint64_t quiet = d.normal() >> 1, one = static_cast<uint64_t>(d.bias) << d.mantissa;
    if (of_each[d.index].empty())
        for (uint64_t bits :
             {uint64_t{0}, uint64_t{1}, d.normal() - 1, d.normal(), d.normal() + 1, one,
              d.infinity() - 1, d.infinity(), d.infinity() + 1, d.infinity() + quiet - 1,
              d.infinity() + quiet, d.infinity() + quiet + quiet / 2 + 1})
            if (bits < d.sign()) /* if there is room for so many NaNs */
                of_each[d.index].insert(of_each[d.index].end(), {bits, bits | d.sign()});
    return of_each[d.index];
}

#endif
