// SPDX-License-Identifier: MIT
// The calls on tensors: random lists against the naive loop of lists.hpp, and what needs more than
// a valid call on the CPU: reports by hand, verdicts, memory, pools, floating-point modes.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../fuzz/fuzz.hpp"
#include "lists.hpp"

extern "C" {
#include "cpu/plan.h"
}

/* The library calls __wrap_gsc_plan_make instead of gsc_plan_make. */
static std::atomic<int> plans_made{0};
extern "C" void __real_gsc_plan_make(const gsc_pass *, uint32_t, uint32_t, gsc_plan *);
extern "C" void __wrap_gsc_plan_make(const gsc_pass *pass, uint32_t in, uint32_t out,
                                     gsc_plan *plan)
{
    plans_made++;
    __real_gsc_plan_make(pass, in, out, plan);
}

namespace {

constexpr uint64_t serial = 7; /* of the factors here */

/* Returns an entry with these numbers and an output of another dtype, which is 0. */
Entry entry(const Dtype &in, const Dtype &out, const std::vector<double> &values)
{
    Entry e = {in.dtype, out.dtype, values.size(), Bytes(values.size() * in.size),
               Bytes(values.size() * out.size)};
    for (uint64_t i = 0; i < values.size(); i++)
        write_bits(in, e.data.data(), i,
                   std::isnan(values[i]) ? in.infinity() | in.normal() >> 1
                                         : encode(in, values[i]));
    e.in_place = in.size == out.size;
    return e;
}

Call call_of(Operation operation, double scale, std::vector<Entry> entries)
{
    Call c;
    c.operation = operation;
    c.factor = factor_of(scale, 1 / scale, serial);
    c.entries = std::move(entries);
    for (Entry &e : c.entries) {
        e.in_place &= operation != ACCUMULATE;
        e.out = operation == CHECK ? e.in : e.out;
    }
    return c;
}

/* 4 MiB, which threads share, in two batches of 512 chunks and two chunks: small tensors beside a
 * large one. The last one has the largest value. */
Call long_call(Operation operation)
{
    Random random = {1};
    const auto numbers = [&](uint64_t n) {
        std::vector<double> values(n);
        for (double &x : values)
            x = 1000 * (random.unit() - 0.5);
        return values;
    };
    std::vector<Entry> entries = {entry(f32, f32, numbers(1u << 20))};
    uint64_t chunks = (1u << 20) / GSC_CHUNK + 1;
    for (uint64_t i = 0; chunks<2 * 512 + 2; chunks += i++ % 7> 0)
        entries.push_back(entry(dtypes[i % std::size(dtypes)], f64, numbers(i % 7)));
    entries.push_back(entry(f32, f64, {5000}));
    return call_of(operation, 0.75, entries);
}

constexpr Operation operations[] = {SCALE, CHECK, UNSCALE, ACCUMULATE};

} // namespace

TEST_CASE("random calls give the bits of the numerics on every set, on threads and in place",
          "[tensors]")
{
    uint64_t calls = 0;
    for_seeds(4000, [&](Source &source) { fuzz_lists(source, ++calls % 100 == 0); });
}

TEST_CASE("known reports", "[tensors]")
{
    const struct {
        const char *what;
        Dtype in, out;
        double scale;
        const char *values, *report; // NaN, Inf, the first, to zero, to subnormal, amax, squares
    } rows[] = {
        {"finite values", f32, f32, 2, "2 -4 6", "0 0 0 0 0 3 14"},
        {"bad elements are counted and left out", f16, f16, 1, "1 nan inf -inf -2",
         "1 2 1 0 0 2 5"},
        {"an Inf made by unscaling", f16, f16, 0.5, "8 40000", "0 1 1 0 0 80000 6400000256"},
        {"an Inf made by narrowing", f32, f16, 1, "2 65520", "0 1 1 0 0 65520 4292870404"},
        {"an Inf made in float is left out", f32, f32, 0.5, "3e38 1", "0 1 0 0 0 2 4"},
        {"f16 in place loses what scaling saved", f16, f16, 65536,
         "1 0x1p-10 0x1p-9 0x1p-8 0 0x1p-15 32768", "0 0 0 3 2 0.5 0x1.0000000400054p-2"},
        {"f32 underflow; squares below the floats", f32, f32, 0x1p100, "0x1p-30 0x1p-50 1",
         "0 0 0 1 1 0x1p-100 0x1p-200"},
        {"f64 underflow", f64, f64, 0x1p50, "0x1p-1000 -0x1p-1060", "0 0 0 1 1 0x1p-1050 0"},
        {"squares above the floats", f32, f32, 1, "0x1p100 0x1p70", "0 0 0 0 0 0x1p100 0x1p200"},
        {"no elements", f64, bf16, 3, "", "0 0 0 0 0 0 0"},
    };
    for (const auto &row : rows) {
        CAPTURE(row.what);
        const std::vector<double> known = numbers(row.report);
        const auto count = [&](size_t i) { return static_cast<int64_t>(known[i]); };
        gsc_report report = report_of(known[0] + known[1] > 0 ? 'x' : '.', known[5]);
        report.generation = serial;
        report.nan_count = count(0);
        report.inf_count = count(1);
        report.first_element = count(2);
        report.underflows_to_zero = count(3);
        report.underflows_to_subnormal = count(4);
        report.sum_squares = known[6];
        const Call c = call_of(UNSCALE, row.scale, {entry(row.in, row.out, numbers(row.values))});
        report.elements = static_cast<int64_t>(c.entries[0].count);
        const Outcome o = check_call(c, 0);
        CHECK(difference({o.outputs, report, {report}, o.histogram}, o) == "");
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

TEST_CASE("two output dtypes that alternate are planned once each", "[tensors]")
{
    Call c = call_of(UNSCALE, 2, {});
    for (int i = 0; i < 200; i++)
        c.entries.push_back(entry(f32, i % 2 ? bf16 : f16, {1, 2, 3}));
    plans_made = 0;
    outcome(c);
    CHECK(plans_made == 2);
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
        {GSC_F32, GSC_F32, 1, 1.5e-45, 1, 0},
        {GSC_F64, GSC_F64, 1, 4.9e-324, 1, 0},
        {GSC_F32, GSC_F16, 1, 7e-8, 1, 0},
        {GSC_BF16, GSC_F8_E4M3FN, 1, 0.0025, 1, 0},
        {GSC_F16, GSC_CB16, infinity, 1e30, 0x7dff, 1},
    };
    for (const auto &row : rows) {
        CAPTURE(row.from, row.to, row.clamp);
        Call c = call_of(UNSCALE, 1, {entry(real(row.from), real(row.to), {row.x})});
        c.clamp = row.clamp;
        const Outcome o = check_call(c, 0);
        CHECK(read_bits(real(row.to), o.outputs[0].data(), 0) == row.bits);
        CHECK((o.report.overflow == row.overflow && o.report.clamped == 1));
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
        CHECK(check_call(call_of(CHECK, 1, {entry(f32, f32, values)}), 0).report.sum_squares ==
              sum);
    }
}

TEST_CASE(
    "the norm of float products keeps the bound of the numerics, which one list almost reaches",
    "[tensors]")
{
    std::vector<float> values(4096, 2.4395694e-4f);
    std::fill_n(values.begin(), 64, 1.0f);
    const gsc_tensor tensor = {values.data(), values.size(), GSC_F32, 0, {}};
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.want = GSC_WANT_NORM;
    gsc_report report;
    double exact = 0;
    for (const double value : values)
        exact += value * value;
    REQUIRE(gsc_measure(nullptr, nullptr, &tensor, 1, &options, &report, nullptr) == GSC_OK);
    const double error = std::fabs(std::sqrt(report.sum_squares / exact) - 1);
    CHECK(error <= 0x1p-19);
    CHECK(error >= 0.98 * 0x1p-19);
}

TEST_CASE("with a policy, report.overflow agrees with the next update, for every preset",
          "[tensors]")
{
    const Entry lists[] = {
        entry(f32, f64, {1, -2, 3}),   entry(f32, f64, {1, nan_value, 3}),
        entry(f32, f64, {1e19, 1e19}), entry(f32, f64, {2e19, 1}), // squared above the floats
        entry(f64, f64, {1e200, 1}),   entry(f16, f64, {0, 0, 0}),
    };
    for (const std::string &name : preset_names())
        for (const Entry &list : lists)
            for (Operation operation : operations) {
                Call c = call_of(operation, 1, {list});
                c.want = 0;
                c.has_policy = true;
                /* An outlier is no overflow: only the update finds it. */
                c.policy = preset_policy(name).init_scale(1).guard_warmup(1);
                const gsc_state state = started(c.policy);
                c.factor = state.factor;
                const gsc_report report = outcome(c).report;
                const uint32_t events = updated(c.policy, state, report).events;
                CAPTURE(name, operation);
                CHECK(report.overflow ==
                      (events & GSC_EVENT_SKIPPED && !(events & GSC_EVENT_OUTLIER)));
                CHECK((events & GSC_EVENT_STALE) == 0);
            }
}

TEST_CASE("memory of a context is aligned, copied and freed", "[tensors]")
{
    const Context two(2);
    for (const gsc_exec *on : {static_cast<const gsc_exec *>(nullptr), &two.on})
        for (uint32_t kind : {GSC_MEMORY_DEVICE, GSC_MEMORY_HOST})
            for (uint64_t size : {1u, 4u, 255u, 256u, 100001u}) {
                gsc_context *const context = on ? on->context : nullptr;
                unsigned char *bytes[2];
                CAPTURE(on == nullptr, kind, size);
                for (int i = 0; i < 2; i++) {
                    void *memory = nullptr;
                    REQUIRE(gsc_memory_create(context, kind, size, &memory, nullptr) == GSC_OK);
                    CHECK(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
                    bytes[i] = static_cast<unsigned char *>(std::memset(memory, i, size));
                }
                CHECK(gsc_memory_copy(on, bytes[0], bytes[1], size - 1, nullptr) == GSC_OK);
                CHECK(gsc_exec_wait(on, nullptr) == GSC_OK);
                CHECK(std::count(bytes[0], bytes[0] + size, 1) == static_cast<int64_t>(size) - 1);
                CHECK(bytes[0][size - 1] == 0);
                for (unsigned char *block :
                     {bytes[0], bytes[1], static_cast<unsigned char *>(nullptr)})
                    gsc_memory_destroy(context, block);
            }
    void *none = &none;
    CHECK(gsc_memory_create(nullptr, GSC_MEMORY_DEVICE, 0, &none, nullptr) == GSC_OK);
    CHECK(none == nullptr);
}

TEST_CASE("a pool that refuses a call ends it unwritten; later in a call its thread goes on",
          "[tensors][threads]")
{
    for (Operation operation : operations) {
        const Call c = long_call(operation);
        check_call(c, operation * 8);
        Pool refuses_later, refuses_first;
        refuses_later.refuses_later = true;
        refuses_first.refuses_first = true;
        const Context later(3, run_tasks, &refuses_later), first(3, run_tasks, &refuses_first);
        CHECK(difference(outcome(c, nullptr, &later.on), outcome(c)) == "");
        CHECK((refuses_later.calls > 1 && refuses_later.keeps_rounding));

        const Outcome refused = outcome(c, nullptr, &first.on, true, GSC_ERROR_MEMORY);
        CHECK_WORDING(refused.message.find("the pool of the context ran no task") == 0);
    }
}

TEST_CASE("lists below 4 MiB stay on the calling thread", "[tensors][threads]")
{
    for (uint64_t count : {(1u << 20) - 1, 1u << 20}) {
        Pool pool;
        const Context context(3, run_tasks, &pool);
        outcome(call_of(CHECK, 2, {entry(f32, f32, std::vector<double>(count))}), nullptr,
                &context.on);
        CHECK(pool.calls == (count == 1u << 20));
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
#if defined(GSC_SANITIZED)                // there kernels are calls with frames of their own
    const size_t most = 160 << 10;
#else
    const size_t most = 112 << 10; // of 120: the linker takes some at the first call
#endif
    std::vector<double> values(70000);
    Random random = {1};
    for (double &x : values)
        x = std::exp2(200 * (random.unit() - 0.5));
    for (Operation operation : {UNSCALE, ACCUMULATE})
        for (double scale : {65536.0, 1e39})
            for (int i = 0; i < 8; i++) {
                const bool all = i & 1, clamps = i & 2 && operation == UNSCALE, apart = i & 4;
                const Call c = call_of(operation, scale,
                                       {entry(f32, f16, values), entry(f32, f32, values),
                                        entry(f64, f32, values), entry(f32, f64, values)});
                const Image image(c, apart);
                const auto call = [&] {
                    gsc_report report, each[4];
                    int64_t histogram[GSC_HISTOGRAM_LENGTH];
                    gsc_tensor_options options = wanting(all ? want_all : 0);
                    options.per_tensor = all ? each : nullptr;
                    options.histogram = all ? histogram : nullptr;
                    options.clamp = clamps ? 1 : 0;
                    run(c, nullptr, image.in.data(), image.out.data(), &options, &report, nullptr);
                };
                call();
                CHECK(stack_of(call) < most + start);
            }
}
#endif

#if defined(__x86_64__)
TEST_CASE("flush-to-zero in the host loses nothing where the float inverse is subnormal",
          "[tensors]")
{
    constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040, flags = 0x3f;
    Random random = {1};
    Call c = call_of(UNSCALE, 1, {});
    for (const auto &[in, out] :
         {std::pair(f32, f32), {bf16, bf16}, {f64, f64}, {f16, f64}, {f16, f32}}) {
        std::vector<double> values(5000);
        const bool half = in.dtype == GSC_F16; // subnormals of f16 are normal floats
        for (double &x : values)
            x = half ? std::ldexp(random.unit(), -8) : std::pow(10, 12 + 18 * random.unit());
        c.entries.push_back(entry(in, out, values));
    }
    for (double scale : {0x1p127, 1e38, 1e39, 1e40}) {
        c.factor = factor_of(scale, 1 / scale, serial);
        Outcome e = outcome(c);
        const unsigned before = _mm_getcsr();
        _mm_setcsr(before | flush_to_zero | denormals_are_zero);
        const Outcome o = outcome(c);
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);

        CAPTURE(scale);
        CHECK((after & ~flags) == ((before | flush_to_zero | denormals_are_zero) & ~flags));
        // To f32, small f16 values become subnormal: flushed, as the host asked.
        for (uint64_t i = 0; i < 5000; i++)
            if (std::fabs(decode(f32, read_bits(f32, e.outputs[4].data(), i))) <
                decode(f32, f32.normal()))
                write_bits(f32, e.outputs[4].data(), i, read_bits(f32, o.outputs[4].data(), i));
        CHECK(o.outputs == e.outputs);
        CHECK((o.report.amax == e.report.amax && o.report.sum_squares == e.report.sum_squares));
    }
}
#endif

TEST_CASE("in any floating-point mode calls succeed, and count what is not finite", "[tensors]")
{
    std::vector<double> values, absurd = {0, 1e-310, -1e-310, 1e-40, -1e-40, 1e300, -1e300, 3e38};
    for (int i = 0; i < 200; i++) // normal in every dtype, also after the factor 3
        values.push_back(i == 150 ? nan_value : i % 90 == 60 ? -infinity : i % 2 ? -4 - i / 8 : 4);
    for (int i = 0; i < 64; i++)
        absurd.push_back(std::ldexp(1.3, 32 * i - 1024));
    for (Operation operation : operations)
        for (double scale : {1.0, 4.0, 3.0, 0x1p127})
            for (const Dtype &in : dtypes) {
                Call c = call_of(operation, scale, {}), rest = c;
                for (const Dtype &out : dtypes) {
                    if (scale < 0x1p127)
                        c.entries.push_back(entry(in, operation == CHECK ? in : out, values));
                    rest.entries.push_back(entry(in, operation == CHECK ? in : out, absurd));
                }
                for (Call *each : {&c, &rest})
                    for (Entry &e : each->entries)
                        e.in_place &= operation != ACCUMULATE;
                const Outcome usual = outcome(c);
                for (const gsc_kernels *set : sets_here())
                    for (const Mode &mode : modes()) {
                        const InMode now(mode);
                        const Outcome o = outcome(c, set);
                        outcome(rest, set);
                        CAPTURE(operation, scale, in.name, set->name, mode.name);
                        CHECK(o.report.overflow == usual.report.overflow);
                        CHECK(o.report.nan_count == usual.report.nan_count);
                        CHECK(o.report.inf_count == usual.report.inf_count);
                        CHECK(o.report.first_element == usual.report.first_element);
                        CHECK(o.report.last_tensor == usual.report.last_tensor);
                        CHECK(std::fabs(o.report.amax - usual.report.amax) <=
                              1e-6 * usual.report.amax);
                        CHECK(std::fabs(o.report.sum_squares - usual.report.sum_squares) <=
                              1e-6 * usual.report.sum_squares);
                    }
            }
}

TEST_CASE("gsc_info names the instruction set that GSC_CPU asks for, or says why not", "[info]")
{
    gsc_info info = GSC_INFO_INIT;
    REQUIRE(gsc_info_get(&info, nullptr) == GSC_OK);
    const std::vector<std::string> available = split(info.cpu_available);
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
    const auto has = [&](const char *set) {
        return std::count(available.begin(), available.end(), set) == 1;
    };
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    CHECK(has("avx2") == avx2);
    CHECK(has("avx512") ==
          (avx2 && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi")));
#endif
    CHECK(info.version == gsc_version());
}
