// SPDX-License-Identifier: MIT
// Bad input gets a status, which argument, entry and field, the number and what it may be,
// and a sentence that names nothing of C. A table spoils one thing of a call that is valid.
// tests/abi/ffi.c shows that every function looks at every struct, and that a refusal writes
// nothing; tests/cuda/gpu.c compares what a refusal with GSC_EXEC_WRITE_FAILURES writes with a
// device.
#include <functional>

#include "support.hpp"

namespace {

constexpr uint64_t n = 4;

struct World {
    gsc_policy policy;
    gsc_tensor_options options;
    gsc_state state, other, out_state;
    gsc_report report, reports[3], out_report, each[n];
    int64_t histogram[GSC_HISTOGRAM_LENGTH];
    gsc_factor factor, out_factor;
    gsc_exec exec;
    float values[16], results[16];
    gsc_tensor tensors[n], out[n];
    unsigned char bytes[GSC_SAVED_SIZE_MAX];
    uint64_t bytes_size, size;
    double number;
    uint32_t kind, rank;
    uint64_t capacity;
};

gsc_tensor list(void *data, uint32_t dtype)
{
    return {data, 4, dtype, 0, {}};
}

/* Everything valid: four tensors of four elements each. */
void make(World &w)
{
    std::memset(&w, 0, sizeof w);
    w.policy = GSC_POLICY_INIT;
    w.exec = GSC_EXEC_INIT;
    w.options = GSC_TENSOR_OPTIONS_INIT;
    w.policy.init_scale = 16;
    w.policy.growth_factor = 2;
    w.policy.growth_interval = 100;
    REQUIRE(gsc_state_init(nullptr, &w.policy, &w.state, nullptr) == GSC_OK);
    w.other = w.state;
    REQUIRE(gsc_factor_init(16, &w.factor, nullptr) == GSC_OK);
    REQUIRE(gsc_state_save(&w.policy, &w.state, w.bytes, sizeof w.bytes, &w.bytes_size, nullptr) ==
            GSC_OK);
    for (uint64_t i = 0; i < n; i++) {
        w.tensors[i] = list(&w.values[4 * i], GSC_F32);
        w.out[i] = list(&w.results[4 * i], GSC_F32);
    }
    w.number = 8;
    w.report = w.reports[0] = w.reports[1] = w.reports[2] = measured;
    w.capacity = sizeof w.bytes;
}

/* Fills the results with bytes that no call writes. */
void fill_results(World &w)
{
    std::memset(&w.out_factor, 0x5a, sizeof w.out_factor);
    std::memset(&w.out_report, 0x5a, sizeof w.out_report);
    std::memset(&w.out_state, 0x5a, sizeof w.out_state);
}

/* A function of the ABI with the names of its arguments except `err`. */
struct Function {
    std::string name, arguments;
    gsc_status (*call)(World &, gsc_error *);

    int position(const std::string &argument) const
    {
        const std::vector<std::string> names = split(arguments);
        const auto at = std::find(names.begin(), names.end(), argument);
        return at == names.end() ? -1 : static_cast<int>(at - names.begin());
    }
};

#define FUNCTION(name, arguments, call)                                                            \
    {                                                                                              \
#name, arguments, [](World & w, gsc_error * err) { return name call; }                     \
    }

const std::vector<Function> functions = {
    FUNCTION(gsc_policy_check, "policy", (&w.policy, err)),
    FUNCTION(gsc_factor_init, "scale out", (w.number, &w.out_factor, err)),
    FUNCTION(gsc_factor_multiply, "exec factor by out",
             (&w.exec, &w.factor, w.number, &w.out_factor, err)),
    FUNCTION(gsc_factor_clip_grad_norm, "exec factor report max_norm out",
             (&w.exec, &w.factor, &w.report, w.number, &w.out_factor, err)),
    FUNCTION(gsc_factor_clip_outlier, "exec factor state out",
             (&w.exec, &w.factor, &w.state, &w.out_factor, err)),
    FUNCTION(gsc_report_merge, "exec reports n kind policy out",
             (&w.exec, w.reports, 3, w.kind, &w.policy, &w.out_report, err)),
    FUNCTION(gsc_report_set_rank, "exec report policy state rank out",
             (&w.exec, &w.report, &w.policy, &w.state, w.rank, &w.out_report, err)),
    FUNCTION(gsc_state_init_from, "exec policy from out",
             (&w.exec, &w.policy, &w.state, &w.out_state, err)),
    FUNCTION(gsc_state_update, "exec policy state report out",
             (&w.exec, &w.policy, &w.state, &w.report, &w.out_state, err)),
    FUNCTION(gsc_state_combine_decisions, "exec state other out",
             (&w.exec, &w.state, &w.other, &w.out_state, err)),
    FUNCTION(gsc_state_save, "policy state bytes capacity size",
             (&w.policy, &w.state, w.bytes, w.capacity, &w.size, err)),
    FUNCTION(gsc_state_load, "bytes size policy state",
             (w.bytes, w.bytes_size, &w.policy, &w.out_state, err)),
    FUNCTION(gsc_measure, "exec factor tensors n options report",
             (&w.exec, &w.factor, w.tensors, n, &w.options, &w.out_report, err)),
    FUNCTION(gsc_unscale, "exec factor tensors out n options report",
             (&w.exec, &w.factor, w.tensors, w.out, n, &w.options, &w.out_report, err)),
    FUNCTION(gsc_scale, "exec factor tensors out n options report",
             (&w.exec, &w.factor, w.tensors, w.out, n, &w.options, &w.out_report, err)),
    FUNCTION(gsc_unscale_accumulate, "exec factor tensors out n options report",
             (&w.exec, &w.factor, w.tensors, w.out, n, &w.options, &w.out_report, err)),
    FUNCTION(gsc_copy_unless_skipped, "exec state tensors out n",
             (&w.exec, &w.state, w.tensors, w.out, n, err)),
    FUNCTION(gsc_workspace_size, "exec tensors n options size",
             (&w.exec, w.tensors, n, &w.options, &w.size, err)),
};

#undef FUNCTION

const Function &function(const std::string &name)
{
    return *std::find_if(functions.begin(), functions.end(),
                         [&](const Function &f) { return f.name == name; });
}

using Spoil = std::function<void(World &)>;
#define SET(...) [](World &w) { w.__VA_ARGS__; }

/* A number that was refused, and what it may be; NaN: none, or any. */
struct Number {
    double value = nan_value, low = nan_value, high = nan_value;
};

struct Expected {
    gsc_status status;
    std::string place; // "name[index].field"
    std::string hint;  // part of the message
    Number number = {};
    std::string argument = ""; // that has a pointer to what is named; empty: what is named is one

    std::string name() const
    {
        return place.substr(0, place.find_first_of("[."));
    }
};

/* Checks that a refusal writes nothing, except with GSC_EXEC_WRITE_FAILURES what a device finds. */
void check_written(const Function &f, const Spoil &spoil, gsc_status status)
{
    const std::vector<gsc_status> found = {GSC_ERROR_FACTOR, GSC_ERROR_REPORT, GSC_ERROR_STATE,
                                           GSC_ERROR_VERSION, GSC_ERROR_MISMATCH};
    const bool is_found = std::find(found.begin(), found.end(), status) != found.end();
    for (const bool writes : {false, true}) {
        World w, before;
        make(w);
        fill_results(w);
        spoil(w);
        w.exec.flags |= writes ? GSC_EXEC_WRITE_FAILURES : 0;
        std::memcpy(&before, &w, sizeof w);
        CHECK(f.call(w, nullptr) == status);
        CHECK(same(w, before) != (writes && is_found && f.position("exec") == 0));
    }
}

void check_refused(const std::string &name, const Spoil &spoil, const Expected &expected)
{
    const Function &f = function(name);
    World w;
    make(w);
    spoil(w);
    gsc_error err;
    std::memset(&err, 0x5a, sizeof err);
    CAPTURE(f.name, expected.hint);
    const gsc_status status = f.call(w, &err);
    const std::string &argument = expected.argument.empty() ? expected.name() : expected.argument;
    CHECK(status == expected.status);
    CHECK(err.argument == f.position(argument));
    CHECK(place(err) == expected.place);
    check_error(err, status);
    CHECK_WORDING(std::string(err.message).find(expected.hint) != std::string::npos);
    const Number &number = expected.number;
    CHECK((std::isnan(number.value) || err.value == number.value));
    CHECK((std::isnan(number.low) || err.low == number.low));
    CHECK((std::isnan(number.high) || err.high == number.high));
    check_written(f, spoil, status);
}

} // namespace

TEST_CASE("tensors, factors and options that are invalid are refused", "[errors]")
{
    const struct {
        Spoil spoil;
        gsc_status status;
        const char *place, *hint;
        Number number = {};
    } rows[] = {
        {SET(tensors[2].dtype = 0), GSC_ERROR_DTYPE, "tensors[2].dtype", "is 0", {0, 1, 9}},
        {SET(tensors[0].dtype = 77), GSC_ERROR_DTYPE, "tensors[0].dtype", "is 77", {77, 1, 9}},
        {SET(out[3].dtype = 10), GSC_ERROR_DTYPE, "out[3].dtype", "is 10", {10, 1, 9}},
        {SET(out[3].dtype = GSC_COMPLEX64), GSC_ERROR_DTYPE, "out[3].dtype",
         "is complex64, but its input is float32"},
        {SET(tensors[1].data = nullptr), GSC_ERROR_NULL, "tensors[1].data", "is NULL"},
        {SET(out[1].data = nullptr), GSC_ERROR_NULL, "out[1].data", "is NULL"},
        {SET(tensors[3].count = 1ull << 62), GSC_ERROR_COUNT, "tensors[3].count",
         "is 4611686018427387904"},
        {SET(tensors[3].count = 1ull << 60), GSC_ERROR_COUNT, "tensors[3].count",
         "more than memory"},
        {SET(out[3].count = UINT64_MAX), GSC_ERROR_COUNT, "out[3].count", "more than memory"},
        {SET(out[3].count = 3), GSC_ERROR_COUNT, "out[3].count", "is 3", {3, 4, 4}},
        {SET(out[2].data = &w.values[9]), GSC_ERROR_OVERLAP, "out[2].data", "same address"},
        {SET(out[2].data = &w.values[7]), GSC_ERROR_OVERLAP, "out[2].data", "same address"},
        {SET(out[1].data = reinterpret_cast<char *>(&w.values[4]) + 1), GSC_ERROR_OVERLAP,
         "out[1].data", "same address"},
        {SET(out[1] = list(&w.values[4], GSC_F16)), GSC_ERROR_OVERLAP, "out[1].data",
         "element size"},
        {SET(out[1] = list(&w.values[4], GSC_F64)), GSC_ERROR_OVERLAP, "out[1].data",
         "element size"},
        {SET(tensors[1].flags = 1), GSC_ERROR_VALUE, "tensors[1].flags", "be 0", {1, 0, 0}},
        {SET(out[1].flags = 1), GSC_ERROR_VALUE, "out[1].flags", "be 0", {1, 0, 0}},
        {SET(factor.scale = 0), GSC_ERROR_FACTOR, "factor.scale", "a state or a scale makes"},
        {SET(factor.scale = infinity), GSC_ERROR_FACTOR, "factor.scale", "a state or a scale"},
        {SET(factor = {0, infinity, 0, 1, 2}), GSC_ERROR_FACTOR, "factor.scale", "min_scale"},
        {SET(factor = {infinity, 0, 1, 0, 2}), GSC_ERROR_FACTOR, "factor.scale", "max_scale"},
        {SET(factor = {nan_value, 1, 1, 1, 2}), GSC_ERROR_FACTOR, "factor.scale", "a state or"},
        {SET(factor.scale = -1), GSC_ERROR_FACTOR, "factor.scale", "is -1"},
        {SET(factor.inverse = 0), GSC_ERROR_FACTOR, "factor.inverse", "above 0"},
        {SET(factor.inverse = infinity), GSC_ERROR_FACTOR, "factor.inverse", "finite"},
        {SET(factor.inverse = nan_value), GSC_ERROR_FACTOR, "factor.inverse", "finite"},
        {SET(factor.inverse = -2), GSC_ERROR_FACTOR, "factor.inverse", "above 0"},
        {SET(factor.inverse = 16), GSC_ERROR_FACTOR, "factor.inverse", "1 / factor.scale"},
        {SET(factor.inverse *= 1 + 0x1p-19), GSC_ERROR_FACTOR, "factor.inverse", "1 / factor"},
        {SET(options.want = 8), GSC_ERROR_VALUE, "options.want", "the bits 1, 2 and 4", {8, 0, 7}},
        {SET(options.want = 1u << 31), GSC_ERROR_VALUE, "options.want", "must be", {0x1p31, 0, 7}},
        {SET(options.clamp = -1), GSC_ERROR_VALUE, "options.clamp", "must be", {-1}},
        {SET(options.clamp = infinity), GSC_ERROR_VALUE, "options.clamp", "must be", {infinity}},
        {SET(options.clamp = nan_value), GSC_ERROR_VALUE, "options.clamp", "must be"},
        {SET(options.clamp = 1e-45), GSC_ERROR_VALUE, "options.clamp", "is 1e-45: ", {1e-45}},
    };
    for (const auto &row : rows) {
        const Expected expected = {row.status, row.place, row.hint, row.number};
        check_refused("gsc_unscale", row.spoil, expected);
        if (expected.name() == "tensors" || expected.name() == "out")
            check_refused("gsc_copy_unless_skipped", row.spoil, expected);
    }
    const Spoil in_place = SET(out[0] = w.tensors[0]), inside = SET(out[0].data = &w.values[3]);
    for (const Spoil &spoil : {in_place, inside})
        check_refused("gsc_unscale_accumulate", spoil,
                      {GSC_ERROR_OVERLAP, "out[0].data", "other memory"});
    check_refused(
        "gsc_workspace_size",
        [](World &w) {
            for (gsc_tensor &tensor : w.tensors)
                tensor = {reinterpret_cast<void *>(16), UINT64_C(1) << 59, GSC_F64, 0, {}};
        },
        {GSC_ERROR_COUNT, "tensors[1].count", "memory"});
}

TEST_CASE("neighbours, the same address, and empty tensors do not overlap", "[errors]")
{
    const Spoil spoils[] = {
        SET(out[1].data = &w.values[8]),
        SET(out[1].data = w.values),
        SET(out[1].data = &w.values[4]),
        SET(tensors[1].count = w.out[1].count = 0,
            w.out[1].data = reinterpret_cast<char *>(&w.values[4]) + 1),
        SET(tensors[1] = list(&w.values[4], GSC_F16), w.out[1] = list(&w.values[4], GSC_BF16)),
    };
    for (const Spoil &spoil : spoils) {
        World w;
        make(w);
        spoil(w);
        CHECK(gsc_unscale(nullptr, &w.factor, &w.tensors[1], &w.out[1], 1, nullptr, nullptr,
                          nullptr) == GSC_OK);
    }
}

TEST_CASE("numbers out of range", "[errors]")
{
    for (double bad : numbers("0 -1 inf nan 1e-310 1e300 1e39 1e-39 -inf"))
        check_refused("gsc_factor_init", [=](World &w) { w.number = bad; },
                      {GSC_ERROR_VALUE, "scale", "above 0", {bad}});
    for (double bad : numbers("0 -1 inf nan"))
        for (const auto &[function, name] :
             {std::pair("gsc_factor_multiply", "by"), {"gsc_factor_clip_grad_norm", "max_norm"}})
            check_refused(function, [=](World &w) { w.number = bad; },
                          {GSC_ERROR_VALUE, name, "above 0", {bad}});
    check_refused("gsc_report_merge", SET(kind = 2),
                  {GSC_ERROR_VALUE, "kind", "must be", {2, 0, 1}});
    for (const char *name : {"gsc_measure", "gsc_unscale_accumulate"})
        check_refused(name, SET(options.clamp = 1),
                      {GSC_ERROR_VALUE, "options.clamp", "must be 0", {1, 0, 0}});
}

TEST_CASE("a report that no call leaves is refused wherever one is read", "[errors]")
{
    const struct {
        std::string field, hint;
        std::function<void(gsc_report &)> spoil;
        double value = nan_value;
    } rows[] = {
#define REPORT(field, bad, hint) {#field, hint, [](gsc_report &r) { r.field = bad; }, bad}
        REPORT(kind, 5, "0 to 4"),
        REPORT(flags, 1, "must be 0"),
        REPORT(has_flag, 1, "0, or 1 in a merged report"),
        REPORT(loss, 3, "0 to 2"),
        REPORT(measured, 8, "bits 1, 2 and 4"),
        REPORT(number, 3, "0 in others"),
        REPORT(sum_squares, -9, "0 or above"),
        REPORT(elements, -1, "0 or above"),
        REPORT(nan_count, -1, "0 or above"),
        REPORT(inf_count, -1, "0 or above"),
        REPORT(first_tensor, -1, "0 or above"),
        REPORT(first_element, -1, "0 or above"),
        REPORT(last_tensor, -1, "0 or above"),
        REPORT(underflows_to_zero, -1, "0 or above"),
        REPORT(underflows_to_subnormal, -1, "0 or above"),
        REPORT(clamped, -1, "0 or above"),
#undef REPORT
        {"kind", "is 0: no call wrote the report", [](gsc_report &r) { r = gsc_report{}; }},
        {"measured", "but 0 in the report of a flag",
         [](gsc_report &r) {
             r.kind = GSC_REPORT_FLAG;
             r.measured = GSC_WANT_NORM;
         }},
        {"loss", "but 0 in the report of a flag, of a number or of none",
         [](gsc_report &r) {
             r.kind = GSC_REPORT_FLAG;
             r.measured = 0;
             r.loss = GSC_LOSS_FINITE;
         }},
        {"overflow", "but 3 elements are NaN and 0 are Inf",
         [](gsc_report &r) { r.nan_count = 3; }},
        {"overflow", "but 0 elements are NaN and 1 are Inf",
         [](gsc_report &r) { r.inf_count = 1; }},
    };
    for (const auto &row : rows) {
        for (const char *name :
             {"gsc_state_update", "gsc_factor_clip_grad_norm", "gsc_report_set_rank"})
            check_refused(name, [&](World &w) { row.spoil(w.report); },
                          {GSC_ERROR_REPORT, "report." + row.field, row.hint, {row.value}});
        for (size_t i : {size_t{0}, size_t{2}})
            check_refused("gsc_report_merge", [&](World &w) { row.spoil(w.reports[i]); },
                          {GSC_ERROR_REPORT,
                           "reports[" + std::to_string(i) + "]." + row.field,
                           row.hint,
                           {row.value}});
    }
}

TEST_CASE("a flag of a call that there is not is refused", "[errors]")
{
    for (const Function &f : functions)
        for (uint32_t flags : {2u, 3u, 1u << 31})
            if (f.position("exec") == 0)
                check_refused(f.name, [=](World &w) { w.exec.flags = flags; },
                              {GSC_ERROR_VALUE,
                               "exec.flags",
                               "it must be 0 or 1",
                               {static_cast<double>(flags), 0, 1}});
}

TEST_CASE("with a flag a call also writes what it refuses, as a device does", "[errors]")
{
    const auto failed = [](gsc_report &r, gsc_status status) {
        r = {};
        r.status = status;
        r.overflow = 1;
        r.found_inf = 1;
    };
    const auto skipped = [](gsc_state &s, const gsc_state &from, gsc_status status) {
        s = from;
        s.status = status;
        s.events = GSC_EVENT_SKIPPED;
        s.skip = 1;
        s.skip_f32 = 1;
        s.guard_multiplier = 0;
    };
    /* The expected results, for each name of a function. */
    const std::pair<std::string, std::function<void(World &, gsc_status)>> results[] = {
        {"gsc_factor", [](World &w, gsc_status) { w.out_factor = {}; }},
        {"gsc_report_merge",
         [=](World &w, gsc_status status) {
             failed(w.out_report, status);
             w.out_report.status_rank_plus_1 = status == GSC_ERROR_MISMATCH ? 7 : 0;
         }},
        {"gsc_report_set_rank",
         [=](World &w, gsc_status status) {
             gsc_report &r = w.out_report;
             const gsc_report blank = w.report;
             failed(r, status);
             r.kind = blank.kind;
             r.measured = blank.measured;
             r.elements = blank.elements;
             r.sum_squares = blank.sum_squares;
             r.amax = blank.amax;
             r.status_rank_plus_1 = r.first_rank_plus_1 = 6;
             r.last_rank_plus_1 = r.loss_rank_plus_1 = 6;
         }},
        {"gsc_copy_unless_skipped", [](World &, gsc_status) {}},
        {"gsc_state", [=](World &w, gsc_status status) { skipped(w.out_state, w.state, status); }},
        {"gsc_",
         [=](World &w, gsc_status status) {
             failed(w.out_report, status);
             for (gsc_report &each : w.each)
                 failed(each, status);
         }},
    };
    const struct {
        const char *function;
        Spoil spoil;
        gsc_status status;
    } rows[] = {
        {"gsc_factor_multiply", SET(factor.scale = 0), GSC_ERROR_FACTOR},
        {"gsc_factor_multiply", SET(number = 1e308), GSC_ERROR_VALUE},
        {"gsc_factor_clip_grad_norm", SET(factor.inverse = nan_value), GSC_ERROR_FACTOR},
        {"gsc_factor_clip_grad_norm", SET(report.measured = 0), GSC_ERROR_REPORT},
        {"gsc_factor_clip_grad_norm", SET(report.sum_squares = 4, w.number = 5e-324),
         GSC_ERROR_FACTOR},
        {"gsc_factor_clip_outlier", SET(factor.scale = -1), GSC_ERROR_FACTOR},
        {"gsc_factor_clip_outlier", SET(state.good_steps = -1), GSC_ERROR_STATE},
        {"gsc_report_merge", SET(reports[2].kind = 9), GSC_ERROR_REPORT},
        {"gsc_report_merge",
         [](World &w) {
             w.reports[0].digest = 1;
             w.reports[2].digest = 2;
             w.reports[2].status_rank_plus_1 = 7;
         },
         GSC_ERROR_MISMATCH},
        {"gsc_report_set_rank", SET(state.guard_mean = nan_value), GSC_ERROR_STATE},
        {"gsc_report_set_rank",
         SET(report.digest = 3, w.state.failed_backoffs = INT64_MAX,
             w.state.bad_losses_in_a_row = INT64_MAX),
         GSC_ERROR_VERSION},
        {"gsc_report_set_rank", SET(report.amax = 2, w.report.elements = -1), GSC_ERROR_REPORT},
        {"gsc_state_init_from", SET(state.total_growths = -5), GSC_ERROR_STATE},
        {"gsc_state_update", SET(state.skip = 2), GSC_ERROR_STATE},
        {"gsc_state_update", SET(report.status = GSC_ERROR_DEVICE), GSC_ERROR_REPORT},
        {"gsc_state_combine_decisions", SET(other.events = 1u << 31), GSC_ERROR_STATE},
        {"gsc_measure", SET(factor.scale = infinity), GSC_ERROR_FACTOR},
        {"gsc_unscale", SET(factor.inverse = 1), GSC_ERROR_FACTOR},
        {"gsc_unscale", SET(factor.scale = 0, w.options.clamp = 1), GSC_ERROR_FACTOR},
        {"gsc_scale", SET(factor.scale = nan_value), GSC_ERROR_FACTOR},
        {"gsc_unscale_accumulate", SET(factor.inverse = 0), GSC_ERROR_FACTOR},
        {"gsc_copy_unless_skipped", SET(state.skip = 2), GSC_ERROR_STATE},
    };
    const Context two(2);
    for (gsc_context *context : {static_cast<gsc_context *>(nullptr), two.on.context})
        for (const auto &row : rows) {
            World w, expected;
            make(w);
            w.state.events = GSC_EVENT_GREW | GSC_EVENT_CLIPPED;
            w.state.guard_multiplier = 0.5;
            w.rank = 5;
            w.options.per_tensor = w.each;
            w.options.histogram = w.histogram;
            fill_results(w);
            row.spoil(w);
            w.exec.context = context;
            w.exec.flags = GSC_EXEC_WRITE_FAILURES;
            std::memcpy(&expected, &w, sizeof w);
            const std::string name = row.function;
            std::find_if(std::begin(results), std::end(results), [&](const auto &result) {
                return name.find(result.first) == 0;
            })->second(expected, row.status);
            gsc_error err;
            CAPTURE(name, static_cast<int>(row.status));
            CHECK(function(name).call(w, &err) == row.status);
            check_error(err, row.status);
            CHECK(same(w, expected));
        }
}

TEST_CASE("a failure in place: a state goes on with the next update", "[errors]")
{
    World w;
    make(w);
    w.exec.flags = GSC_EXEC_WRITE_FAILURES;
    const gsc_report bad = {};
    for (int i = 0; i < 2; i++)
        CHECK(gsc_state_update(&w.exec, &w.policy, &w.state, &bad, &w.state, nullptr) ==
              GSC_ERROR_REPORT);
    CHECK((w.state.skip == 1 && w.state.total_updates == 0));
    CHECK(gsc_state_update(&w.exec, &w.policy, &w.state, &w.report, &w.state, nullptr) == GSC_OK);
    CHECK(gsc_state_update(&w.exec, &w.policy, &w.other, &w.report, &w.other, nullptr) == GSC_OK);
    CHECK(same(w.state, w.other));
    gsc_error err;
    w.factor.scale = -1;
    CHECK(gsc_factor_multiply(&w.exec, &w.factor, 2, &w.factor, &err) == GSC_ERROR_FACTOR);
    CHECK((err.value == -1 && same(w.factor, gsc_factor{}))); /* the error is of what was there */
}

TEST_CASE("a struct is made ready to be filled in, or its size is refused", "[errors]")
{
    gsc_policy made, expected = GSC_POLICY_INIT;
    std::memset(&made, 0x5a, sizeof made);
    REQUIRE(gsc_struct_init(&made, sizeof made, nullptr) == GSC_OK);
    CHECK(same(made, expected));
    std::vector<uint64_t> longest(4096 / 8);
    CHECK(gsc_struct_init(longest.data(), 4096, nullptr) == GSC_OK);
    for (uint32_t size : {0u, 4u, 20u, 4104u}) {
        gsc_error err = {};
        std::memset(&made, 0x5a, sizeof made);
        expected = made;
        CHECK(gsc_struct_init(&made, size, &err) == GSC_ERROR_STRUCT_SIZE);
        CHECK(std::string(err.name) == "struct_size");
        CHECK(same(made, expected));
    }
}

TEST_CASE("contexts and memory that cannot be made", "[errors]")
{
    gsc_context *context;
    gsc_error err;
    for (uint32_t threads : {0u, 1025u, UINT32_MAX, 1u}) { // 1 has no parallel_for
        gsc_cpu_options options = {GSC_CPU_OPTIONS_SIZE, threads, nullptr, nullptr};
        options.pool = threads == 1 ? &options : nullptr;
        CHECK(gsc_context_create_cpu(&options, &context, &err) == GSC_ERROR_VALUE);
        CHECK(place(err) == (threads == 1 ? "options.pool" : "options.threads"));
        CHECK((threads == 1 || (err.value == threads && err.low == 1 && err.high == 1024)));
        check_error(err, GSC_ERROR_VALUE);
    }
    void *memory;
    CHECK(gsc_memory_create(nullptr, 2, 8, &memory, &err) == GSC_ERROR_VALUE);
    CHECK((place(err) == "kind" && err.value == 2 && err.low == 0 && err.high == 1));
    for (uint64_t size : {UINT64_MAX, UINT64_MAX - 255}) {
        CHECK(gsc_memory_create(nullptr, GSC_MEMORY_DEVICE, size, &memory, &err) ==
              GSC_ERROR_MEMORY);
        check_error(err, GSC_ERROR_MEMORY);
    }
}

TEST_CASE("a policy's field out of range is named, the ends of its range are taken", "[errors]")
{
    const struct {
        std::string field;
        void (*set)(gsc_policy &, double);
        const char *bad, *good;
        double low = nan_value, high = nan_value;
    } rows[] = {
#define FIELD(field, ...)                                                                          \
    {#field, [](gsc_policy &p, double x) { p.field = static_cast<decltype(p.field)>(x); },         \
     __VA_ARGS__}
        FIELD(arithmetic, "4", "3", 0, 3),
        FIELD(init_scale, "-1 inf nan 1e-310", "1e-307"),
        FIELD(growth_factor, "0.5 -2 inf nan", "1"),
        FIELD(backoff_factor, "1.5 -0.5 nan", "1", 0, 1),
        FIELD(growth_rule, "4", "3", 0, 3),
        FIELD(max_scale, "-1 nan", "inf"),
        FIELD(min_scale, "-1 inf nan", "1"),
        FIELD(ceiling_rule, "5", "4", 0, 4),
        FIELD(floor_rule, "5", "4", 0, 4),
        FIELD(overflow_test, "2", "1", 0, 1),
        FIELD(overflow_reset, "8", "7", 0, 7),
        FIELD(apply_delay, "2", "1", 0, 1),
        FIELD(overflow_tolerance, "1.5 -0.5 nan 1", "0.999", 0, 1),
        FIELD(quirks, "8", "7", 0, 7),
        FIELD(bad_loss_rule, "2", "0", 0, 1),
        FIELD(guard_norm, "-1 nan inf", "0x1p500", 0, 0x1p500),
        FIELD(guard_ratio, "1 nan inf", "0x1p20", 1, 0x1p20),
        FIELD(guard_sigmas, "-1 nan inf", "0x1p20", 0, 0x1p20),
        FIELD(guard_decay, "1 -0.5 nan", "0x1.fffffffffffffp-1", 0, 1),
        FIELD(guard_init_mean, "-1 nan", "0x1p500", 0, 0x1p500),
        FIELD(guard_sample, "3", "2", 0, 2),
        FIELD(guard_flags, "256", "255", 0, 255),
#undef FIELD
    };
    for (const auto &row : rows) {
        for (double bad : numbers(row.bad))
            check_refused(
                "gsc_policy_check", [&](World &w) { row.set(w.policy, bad); },
                {GSC_ERROR_POLICY, "policy." + row.field, "must be", {bad, row.low, row.high}});
        for (double good : numbers(row.good)) {
            World w;
            make(w);
            row.set(w.policy, good);
            CAPTURE(row.field, good);
            CHECK(function("gsc_policy_check").call(w, nullptr) == GSC_OK);
            CHECK(function("gsc_state_update").call(w, nullptr) == GSC_OK);
        }
    }
    check_refused("gsc_policy_check", SET(policy.quirks = 0xffffffff),
                  {GSC_ERROR_POLICY, "policy.quirks",
                   "policy.quirks is 4294967295: it must be a union of the bits 1, 2 and 4"});
    const gsc_policy most = zeros.growth_interval(UINT64_MAX).max_failed_backoffs(UINT64_MAX),
                     counts = zeros.hysteresis(UINT32_MAX).growth_extra_steps(UINT32_MAX),
                     steps = zeros.guard_warmup(UINT64_MAX).guard_max_in_a_row(UINT64_MAX),
                     point = zeros.max_scale(4).min_scale(4),
                     edge = zeros.init_scale(3e10).max_scale(3e10).arithmetic(GSC_ARITHMETIC_F32),
                     share = zeros.overflow_tolerance(1).quirks(GSC_QUIRK_TOLERANCE_EXCLUSIVE);
    for (const gsc_policy &policy : {most, counts, steps, point, edge, share})
        CHECK(updated(policy, started(policy), report_of('.')).events == 0);
}

TEST_CASE("fields of a policy that do not go together", "[errors]")
{
    const double largest = std::numeric_limits<double>::max();
    const struct {
        Spoil spoil;
        const char *place, *hint;
        Number number = {};
    } rows[] = {
        {SET(policy.min_scale = 2 * (w.policy.max_scale = 1)),
         "policy.min_scale",
         "at most max_scale",
         {2, 0, 1}},
        {SET(policy.init_scale = 1e39), "policy.init_scale", "arithmetic", {1e39, 0, largest}},
        {SET(policy.max_scale = 1e39), "policy.max_scale", "must be", {1e39, 0, largest}},
        {SET(policy.min_scale = 1e-60), "policy.min_scale", "must be", {1e-60, 0, HUGE_VAL}},
        {SET(policy.growth_factor = 1e39), "policy.growth_factor", "must be", {1e39, 1, largest}},
        {SET(policy.backoff_factor = 1e-60), "policy.backoff_factor", "must be", {1e-60, 0, 1}},
        {SET(policy.init_scale = 2 * (w.policy.max_scale = 4)),
         "policy.init_scale",
         "is 8: it must be at most max_scale, which is 4, unless ceiling_rule is ENFORCE (1)",
         {8, 0, 4}},
        {SET(policy.init_scale = 0, w.policy.max_scale = 0.5), "policy.init_scale",
         "is 0: it must be at most max_scale"},
        {SET(policy.bad_loss_rule = GSC_BAD_LOSS_HOLD),
         "policy.max_failed_backoffs",
         "above 0 if bad_loss_rule is HOLD (1)",
         {0, 1, 0x1p64}},
        {SET(policy.guard_flags = GSC_GUARD_CLIP_PROGRESSIVE), "policy.guard_flags", "is"},
        {SET(policy.guard_flags = GSC_GUARD_CLIP_TO_MEAN), "policy.guard_flags", "is"},
    };
    for (const auto &row : rows)
        check_refused("gsc_policy_check",
                      [&](World &w) {
                          w.policy.arithmetic = GSC_ARITHMETIC_F32;
                          row.spoil(w);
                      },
                      {GSC_ERROR_POLICY, row.place, row.hint, row.number});
    const gsc_policy large = zeros.init_scale(1e39).arithmetic(GSC_ARITHMETIC_F64_TO_F32);
    CHECK(gsc_policy_check(&large, nullptr) == GSC_ERROR_POLICY);
    check_refused("gsc_measure", SET(options.policy = &w.policy, w.policy.struct_size = 42),
                  {GSC_ERROR_STRUCT_SIZE, "policy.struct_size", "is", {}, "options"});
    struct {
        gsc_policy policy;
        uint64_t field; // of a later version
    } newer = {zeros, 1};
    newer.policy.struct_size = sizeof newer;
    check_refused(
        "gsc_measure", [&](World &w) { w.options.policy = &newer.policy; },
        {GSC_ERROR_STRUCT_SIZE, "policy", "sets fields that this version (", {}, "options"});
}

TEST_CASE("a state that no update leads to", "[errors]")
{
    const struct {
        std::string field;
        void (*set)(gsc_state &, double);
        const char *bad;
        bool is_read; // of the state that another is made from
    } rows[] = {
#define FIELD(field, bad, is_read)                                                                 \
    {#field, [](gsc_state &s, double x) { s.field = static_cast<decltype(s.field)>(x); }, bad,     \
     is_read}
        FIELD(factor.scale, "-1 nan", true),
        FIELD(factor.inverse, "3", false),
        FIELD(next.inverse, "3", false),
        FIELD(next.scale, "-1 nan", false),
        FIELD(factor.scale_f32, "nan", false),
        FIELD(factor.inverse_f32, "777", false),
        FIELD(next.scale_f32, "-65536", false),
        FIELD(next.inverse_f32, "nan", false),
        FIELD(skip_f32, "5", false),
        FIELD(events, "8192", false),
        FIELD(good_steps, "-1 0x1.fp62", true),
        FIELD(steps_since_change, "-1", true),
        FIELD(overflows_since_reset, "-1", true),
        FIELD(failed_backoffs, "-1", true),
        FIELD(total_overflows, "-1", true),
        FIELD(total_growths, "-1", true),
        FIELD(total_backoffs, "-1 0x1.fp62", true),
        FIELD(bad_losses_in_a_row, "-1 0x1p61", true),
        FIELD(total_updates, "-1", true),
        FIELD(total_bad_losses, "-1", true),
        FIELD(total_guard_clips, "-1", true),
        FIELD(nans_in_a_row, "-1", true),
        FIELD(empty_in_a_row, "-1", true),
        FIELD(updates_at_growth, "-1", true),
        FIELD(overflows_at_growth, "0x1p61", true),
        FIELD(guard_mean, "nan 0x1p502", true),
        FIELD(guard_variance, "-1 nan", true),
        FIELD(guard_count, "-1", true),
        FIELD(guard_in_a_row, "0x1.fp62", true),
        FIELD(total_guard_skips, "-1", true),
        FIELD(guard_multiplier, "1.5 nan", true),
        FIELD(guard_threshold, "inf", true),
        FIELD(guard_value, "nan", true),
#undef FIELD
    };
    for (const auto &row : rows)
        for (double bad : numbers(row.bad)) {
            const Spoil spoil = [&](World &w) { row.set(w.state, bad); };
            for (const char *name : {"gsc_state_update", "gsc_state_save"})
                check_refused(name, spoil, {GSC_ERROR_STATE, "state." + row.field, "is"});
            if (row.is_read)
                check_refused("gsc_state_init_from", spoil,
                              {GSC_ERROR_STATE, "from." + row.field, "is"});
        }
    for (const char *name : {"gsc_state_update", "gsc_state_save"}) {
        check_refused(name, SET(state.factor.scale = 0),
                      {GSC_ERROR_STATE, "state.factor.inverse", "is"});
        check_refused(name, SET(state = gsc_state{}),
                      {GSC_ERROR_STATE, "state.factor.scale", "is 0"});
    }
}

TEST_CASE("a report that an update, a clip or a merge cannot use", "[errors]")
{
    const Spoil failed = SET(report.status = GSC_ERROR_FACTOR),
                of_rank = SET(report.status = GSC_ERROR_MEMORY, w.report.status_rank_plus_1 = 4),
                no_norm_to_guard = SET(report.measured = GSC_WANT_AMAX, w.policy.guard_norm = 1),
                no_norm = SET(report.measured = w.reports[1].measured = GSC_WANT_AMAX,
                              w.policy.overflow_test = GSC_TEST_NORM);
    const std::string update = "gsc_state_update", clip = "gsc_factor_clip_grad_norm";
    const struct {
        std::string call, place, hint;
        Spoil spoil;
    } rows[] = {
        {update, "report.status", "factor is zero", failed},
        {update, "report.status", "is an error that rank 3 met: out of memory", of_rank},
        {update, "report.sum_squares", "norm", no_norm},
        {update, "report.sum_squares", "was not measured: the norm is needed", no_norm_to_guard},
        {update, "report.amax", "finite", SET(report.amax = infinity)},
        {update, "report.amax", "finite", SET(report.amax = nan_value)},
        {update, "report.amax", "not negative", SET(report.amax = -1)},
        {clip, "report.sum_squares", "norm", no_norm},
        {clip, "report.sum_squares", "finite", SET(report.sum_squares = infinity)},
        {clip, "report.sum_squares", "finite", SET(report.sum_squares = nan_value)},
        {clip, "report.status", "factor is zero", failed},
        {clip, "report.status", "is an error that rank 3 met: out of memory", of_rank},
        {"gsc_report_merge", "reports[1].sum_squares", "norm", no_norm},
    };
    for (const auto &row : rows)
        check_refused(row.call, row.spoil, {GSC_ERROR_REPORT, row.place, row.hint});
}

TEST_CASE("an amax that is not a number survives a merge from any place", "[errors]")
{
    for (size_t i = 0; i < 3; i++) {
        Reports reports(3, measured);
        reports[i].amax = nan_value;
        CHECK(std::isnan(merged(reports).amax));
    }
}

TEST_CASE("saved bytes that cannot be read, a buffer too small, no CUDA", "[errors]")
{
    const std::string load = "gsc_state_load";
    check_refused(load, SET(bytes[40] ^= 1), {GSC_ERROR_CORRUPT, "bytes", "checksum"});
    check_refused(load, SET(bytes[0] = 0), {GSC_ERROR_CORRUPT, "bytes", "GSCSTATE"});
    check_refused(load, SET(bytes_size--),
                  {GSC_ERROR_CORRUPT, "size", "were saved", {595, 596, 596}});
    check_refused(load, SET(bytes_size = 3), {GSC_ERROR_CORRUPT, "size", "too few", {3}});
    check_refused("gsc_state_save", SET(capacity = 10),
                  {GSC_ERROR_CAPACITY, "capacity", "is 10", {10, 596}});
    const gsc_cuda_options first = GSC_CUDA_OPTIONS_INIT;
    gsc_context *context;
    gsc_error why = {}, err = {};
    if (gsc_cuda_start(&why) == GSC_ERROR_UNAVAILABLE) {
        CHECK(gsc_context_create_cuda(&first, &context, &err) == GSC_ERROR_UNAVAILABLE);
        CHECK((err.argument == 0 && place(err) == "options.device"));
        CHECK(std::string(err.message).find(why.message) != std::string::npos);
    }
    CHECK(std::string(gsc_cuda_log()) == "");
    CHECK(gsc_has(GSC_FEATURE_CUDA) == GSC_CUDA_VERSION);
    CHECK(gsc_has(GSC_FEATURE_CUDA + 1) == 0);
}

TEST_CASE("an unknown preset is told the nearest name, and a long one is cut", "[errors]")
{
    const std::pair<std::string, const char *> rows[] = {
        {"tortch", "\"torch\""},           {"pytorch", "\"torch\""},
        {"Megatron", "\"megatron\""},      {"megatron-lm", "\"megatron\""},
        {"meg", "\"megatron\""},           {"deepsped", "\"deepspeed\""},
        {"recomended", "\"recommended\""}, {std::string(1000, 'x'), "preset"},
    };
    for (const auto &[name, nearest] : rows) {
        gsc_policy policy = GSC_POLICY_INIT;
        gsc_error err = {};
        CAPTURE(name);
        CHECK(gsc_policy_preset(name.c_str(), &policy, &err) == GSC_ERROR_PRESET);
        CHECK((err.argument == 0 && place(err) == "name"));
        const std::string message = err.message;
        CAPTURE(message);
        CHECK_WORDING(message.find(name.substr(0, 20)) != std::string::npos);
        CHECK_WORDING(message.find(nearest) != std::string::npos);
        check_error(err, GSC_ERROR_PRESET);
    }
}

TEST_CASE("ranks that differ, and a rank that there cannot be", "[errors]")
{
    check_refused("gsc_report_set_rank", SET(rank = UINT32_MAX),
                  {GSC_ERROR_VALUE, "rank", "must be 0 to", {4294967295, 0, 4294967294}});
    const struct {
        uint64_t digests[3];
        uint32_t ranks_plus_1[3];
        const char *hint;
    } rows[] = {
        {{7, 7, 8}, {}, "from reports[0].digest"},
        {{0, 7, 8},
         {0, 12, 4294967295},
         "rank 4294967294 has another policy or state than rank 11: load the same checkpoint on "
         "all ranks, or send one rank's policy and state to all"},
        {{7, 0, 8},
         {8, 0, 8},
         "two ranks with unlike policies or states both set rank 7: give each rank its own "
         "number"},
    };
    for (const auto &row : rows)
        check_refused("gsc_report_merge",
                      [&](World &w) {
                          for (int i = 0; i < 3; i++) {
                              w.reports[i].digest = row.digests[i];
                              w.reports[i].status_rank_plus_1 = row.ranks_plus_1[i];
                          }
                      },
                      {GSC_ERROR_MISMATCH, "reports[2].digest", row.hint});
}

TEST_CASE("every status has words of its own", "[errors]")
{
    std::vector<std::string> words;
    for (gsc_status status = 0; status >= GSC_ERROR_MISMATCH; status--) {
        words.push_back(gsc_status_string(status));
        CHECK(words.back() != "unknown status");
        CHECK(std::count(words.begin(), words.end(), words.back()) == 1);
        CHECK(words.back().find("gsc_") == std::string::npos);
    }
    for (gsc_status none : {1, GSC_ERROR_MISMATCH - 1, INT32_MIN, INT32_MAX})
        CHECK(std::string(gsc_status_string(none)) == "unknown status");
    CHECK(gsc_version() == GSC_VERSION);
    CHECK(gsc_version_string() == std::to_string(GSC_VERSION_MAJOR) + "." +
                                      std::to_string(GSC_VERSION_MINOR) + "." +
                                      std::to_string(GSC_VERSION_PATCH));
}

TEST_CASE("the size and the name of a dtype, 0 and NULL for none", "[errors]")
{
    const std::pair<uint32_t, uint32_t> rows[] = {
        {GSC_F32, 4},  {GSC_F64, 8},       {GSC_F16, 2},
        {GSC_BF16, 2}, {GSC_F8_E4M3FN, 1}, {GSC_F8_E5M2, 1},
        {GSC_CB16, 2}, {GSC_COMPLEX64, 8}, {GSC_COMPLEX128, 16}};
    for (const auto &[dtype, size] : rows) {
        CHECK(gsc_dtype_size(dtype) == size);
        CHECK(gsc_dtype_bits(dtype) == 8 * size);
    }
    for (uint32_t none : {0u, static_cast<uint32_t>(std::size(rows)) + 1, UINT32_MAX}) {
        CHECK(gsc_dtype_size(none) == 0);
        CHECK(gsc_dtype_bits(none) == 0);
        CHECK(gsc_dtype_name(none) == nullptr);
    }
    CHECK(gsc_dtype_name(GSC_F8_E4M3FN) == std::string("float8_e4m3fn"));
    CHECK(gsc_dtype_name(GSC_COMPLEX128) == std::string("complex128"));
}
