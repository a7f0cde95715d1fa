// SPDX-License-Identifier: MIT
// What bad input gets: a status, which argument, entry and field, the number and what it may be,
// and a sentence that names nothing of C; and nothing is written, which a copy of all that a call
// could write shows. A table spoils one thing; every function here that has an argument of that
// name refuses it. tests/abi/ffi.c does the same to all functions, with one wrong thing in each
// struct.
#include <functional>
#include <set>

#include "support.hpp"

namespace {

constexpr double infinity = HUGE_VAL, nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr uint64_t n = 4;

/* ---- all that calls read and write, in one block of memory ---- */

struct World {
    gsc_policy policy;
    gsc_tensor_options options;
    gsc_state state, out_state;
    gsc_report report, reports[3], out_report, each[n];
    gsc_factor factor, out_factor;
    gsc_exec exec;
    gsc_context *context;
    float values[16], results[16];
    gsc_tensor tensors[n], out[n];
    unsigned char bytes[GSC_SAVED_SIZE_MAX];
    uint64_t bytes_size, size;
    int64_t histogram[GSC_HISTOGRAM_LENGTH];
    double number;
    uint32_t kind, rank;
    void *memory;
};

/* Everything valid: four tensors of four elements each, and what comes out is marked. */
void make(World &w)
{
    std::memset(&w, 0, sizeof w);
    w.policy = GSC_POLICY_INIT;
    w.exec = GSC_EXEC_INIT;
    w.options = GSC_TENSOR_OPTIONS_INIT;
    w.options.want = GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW;
    w.options.per_tensor = w.each;
    w.options.histogram = w.histogram;
    w.policy.init_scale = 16;
    w.policy.growth_factor = 2;
    w.policy.growth_interval = 100;
    REQUIRE(gsc_state_init(nullptr, &w.policy, &w.state, nullptr) == GSC_OK);
    REQUIRE(gsc_factor_init(16, &w.factor, nullptr) == GSC_OK);
    REQUIRE(gsc_state_save(&w.policy, &w.state, w.bytes, sizeof w.bytes, &w.bytes_size, nullptr) ==
            GSC_OK);
    for (uint64_t i = 0; i < n; i++) {
        w.tensors[i] = {&w.values[4 * i], 4, GSC_F32, 0, {}};
        w.out[i] = {&w.results[4 * i], 4, GSC_F32, 0, {}};
    }
    for (float &x : w.values)
        x = 3;
    w.number = 8;
    w.report = w.reports[0] = w.reports[1] = w.reports[2] = measured;
    for (void *marked : {static_cast<void *>(&w.out_state), static_cast<void *>(&w.out_report)})
        std::memset(marked, 0x5a, sizeof(gsc_report));
    std::memset(&w.out_factor, 0x5a, sizeof w.out_factor);
    std::memset(w.results, 0x5a, sizeof w.results);
    std::memset(w.each, 0x5a, sizeof w.each);
    std::memset(w.histogram, 0x5a, sizeof w.histogram);
    w.size = 0x5a5a;
}

/* A function of the ABI with its arguments except `err`; those with a `?` may be NULL. */
struct Function {
    const char *name;
    std::vector<std::string> arguments;
    gsc_status (*call)(World &, gsc_error *);

    int position(const std::string &argument) const
    {
        for (size_t i = 0; i < arguments.size(); i++)
            if (arguments[i] == argument || arguments[i] == argument + "?")
                return static_cast<int>(i);
        return -1;
    }
    bool has(const std::string &argument) const
    {
        return position(argument) >= 0;
    }
};

const std::vector<Function> functions = {
    {"gsc_policy_check",
     {"policy"},
     [](World &w, gsc_error *err) { return gsc_policy_check(&w.policy, err); }},
    {"gsc_factor_init",
     {"scale", "out"},
     [](World &w, gsc_error *err) { return gsc_factor_init(w.number, &w.out_factor, err); }},
    {"gsc_factor_multiply",
     {"exec?", "factor", "by", "out"},
     [](World &w, gsc_error *err) {
         return gsc_factor_multiply(&w.exec, &w.factor, w.number, &w.out_factor, err);
     }},
    {"gsc_factor_clip_grad_norm",
     {"exec?", "factor?", "report", "max_norm", "out"},
     [](World &w, gsc_error *err) {
         return gsc_factor_clip_grad_norm(&w.exec, &w.factor, &w.report, w.number, &w.out_factor,
                                          err);
     }},
    {"gsc_state_reason",
     {"state", "out"},
     [](World &w, gsc_error *err) {
         gsc_reason reason;
         return gsc_state_reason(&w.state, &reason, err);
     }},
    {"gsc_report_merge",
     {"exec?", "reports", "n", "kind", "policy?", "out"},
     [](World &w, gsc_error *err) {
         return gsc_report_merge(&w.exec, w.reports, 3, w.kind, &w.policy, &w.out_report, err);
     }},
    {"gsc_report_set_rank",
     {"exec?", "report", "policy?", "state?", "rank", "out"},
     [](World &w, gsc_error *err) {
         return gsc_report_set_rank(&w.exec, &w.report, &w.policy, &w.state, w.rank, &w.out_report,
                                    err);
     }},
    {"gsc_state_init_from",
     {"exec?", "policy", "from", "out"},
     [](World &w, gsc_error *err) {
         return gsc_state_init_from(&w.exec, &w.policy, &w.state, &w.out_state, err);
     }},
    {"gsc_state_update",
     {"exec?", "policy", "state", "report", "out"},
     [](World &w, gsc_error *err) {
         return gsc_state_update(&w.exec, &w.policy, &w.state, &w.report, &w.out_state, err);
     }},
    {"gsc_state_save",
     {"policy", "state", "bytes", "capacity", "size"},
     [](World &w, gsc_error *err) {
         return gsc_state_save(&w.policy, &w.state, w.bytes, sizeof w.bytes, &w.size, err);
     }},
    {"gsc_state_load",
     {"bytes", "size", "policy?", "state"},
     [](World &w, gsc_error *err) {
         return gsc_state_load(w.bytes, w.bytes_size, &w.policy, &w.out_state, err);
     }},
    {"gsc_measure",
     {"exec?", "factor?", "tensors", "n", "options?", "report"},
     [](World &w, gsc_error *err) {
         return gsc_measure(&w.exec, &w.factor, w.tensors, n, &w.options, &w.out_report, err);
     }},
    {"gsc_unscale",
     {"exec?", "factor?", "tensors", "out", "n", "options?", "report?"},
     [](World &w, gsc_error *err) {
         return gsc_unscale(&w.exec, &w.factor, w.tensors, w.out, n, &w.options, &w.out_report,
                            err);
     }},
    {"gsc_scale",
     {"exec?", "factor?", "tensors", "out", "n", "options?", "report?"},
     [](World &w, gsc_error *err) {
         return gsc_scale(&w.exec, &w.factor, w.tensors, w.out, n, &w.options, &w.out_report, err);
     }},
    {"gsc_unscale_accumulate",
     {"exec?", "factor?", "tensors", "out", "n", "options?", "report"},
     [](World &w, gsc_error *err) {
         return gsc_unscale_accumulate(&w.exec, &w.factor, w.tensors, w.out, n, &w.options,
                                       &w.out_report, err);
     }},
    {"gsc_workspace_size",
     {"exec?", "tensors", "n", "options?", "size"},
     [](World &w, gsc_error *err) {
         return gsc_workspace_size(&w.exec, w.tensors, n, &w.options, &w.size, err);
     }},
};

const Function &function(const std::string &name)
{
    return *std::find_if(functions.begin(), functions.end(),
                         [&](const Function &f) { return f.name == name; });
}

/* Whether `out` is a list of tensors. */
bool has_outputs(const Function &f)
{
    return f.has("tensors") && f.has("out");
}

/* ---- one wrong thing, and what it gets ---- */

using Spoil = std::function<void(World &)>;

/* A number that was refused, and what it may be; NaN: none. */
struct Number {
    double value = nan_value, low = nan_value, high = nan_value;
};

struct Expected {
    gsc_status status;
    std::string name;
    int64_t index;
    std::string field;
    std::string hint;          // part of the message
    Number number = {};        // what is NaN here may be anything there
    std::string argument = ""; // that has a pointer to what is named; empty: what is named is one
};

std::string place(const std::string &name, int64_t index, const std::string &field)
{
    return name + (index < 0 ? "" : "[" + std::to_string(index) + "]") +
           (field.empty() ? "" : "." + field);
}

std::string text(gsc_status status, int argument, const std::string &where)
{
    return "status " + std::to_string(status) + ", argument " + std::to_string(argument) + ", " +
           where;
}

bool is_terminated(const char *array, size_t size)
{
    return std::memchr(array, 0, size) != nullptr;
}

/* What holds of every error: the parts say the same, and the sentence is for any language. */
void check_sentence(const gsc_error &err)
{
    const std::string message = err.message;
    CAPTURE(message, err.value, err.low, err.high, err.subject_length);
    REQUIRE(is_terminated(err.name, sizeof err.name));
    REQUIRE(is_terminated(err.field, sizeof err.field));
    REQUIRE(is_terminated(err.message, sizeof err.message));
    CHECK(message.find("gsc_") == std::string::npos);
    CHECK(message.find("GSC_") == std::string::npos);
    const std::string where = place(err.name, err.index, err.field);
    CHECK((err.subject_length == 0 || message.substr(0, err.subject_length) == where + " "));
    CHECK(message.size() > err.subject_length + 5);
    CHECK(!(err.low > err.high));
    CHECK((err.reserved[0] == 0 && err.reserved[1] == 0));
}

void check_refused(const Function &f, const Spoil &spoil, const Expected &expected)
{
    World w, before;
    make(w);
    spoil(w);
    std::memcpy(&before, &w, sizeof w);
    gsc_error err;
    std::memset(&err, 0x5a, sizeof err);
    CAPTURE(f.name, expected.hint);
    const gsc_status status = f.call(w, &err);
    REQUIRE(status != GSC_OK);
    CHECK(text(status, err.argument, place(err.name, err.index, err.field)) ==
          text(expected.status,
               f.position(expected.argument.empty() ? expected.name : expected.argument),
               place(expected.name, expected.index, expected.field)));
    CHECK(err.status == status);
    CHECK(std::string(err.name) == expected.name);
    CHECK(std::string(err.message).find(expected.hint) != std::string::npos);
    const Number &number = expected.number;
    CHECK((std::isnan(number.value) || err.value == number.value));
    CHECK((std::isnan(number.low) || err.low == number.low));
    CHECK((std::isnan(number.high) || err.high == number.high));
    check_sentence(err);
    CHECK(f.call(w, nullptr) == status);
    CHECK(same(w, before));
}

/* By every function with an argument of that name. */
void check_refused(const Spoil &spoil, const Expected &expected)
{
    int refusing = 0;
    for (const Function &f : functions)
        if (f.has(expected.name)) {
            check_refused(f, spoil, expected);
            refusing++;
        }
    CHECK(refusing > 0);
}

} // namespace

TEST_CASE("what the tables spoil is valid before", "[errors]")
{
    for (const Function &f : functions) {
        World w;
        make(w);
        CAPTURE(f.name);
        CHECK(f.call(w, nullptr) == GSC_OK);
    }
}

/* ---- tensors ---- */

TEST_CASE("invalid tensors are refused", "[errors]")
{
    struct Case {
        Spoil spoil;
        gsc_status status;
        const char *list;
        int64_t index;
        const char *field, *hint;
        Number number = {};
    };
    const Case cases[] = {
        {[](World &w) { w.tensors[2].dtype = 0; },
         GSC_ERROR_DTYPE,
         "tensors",
         2,
         "dtype",
         "is 0",
         {0, 1, 9}},
        {[](World &w) { w.tensors[0].dtype = 77; },
         GSC_ERROR_DTYPE,
         "tensors",
         0,
         "dtype",
         "is 77",
         {77, 1, 9}},
        {[](World &w) { w.out[3].dtype = UINT32_MAX; },
         GSC_ERROR_DTYPE,
         "out",
         3,
         "dtype",
         "4294967295",
         {UINT32_MAX, 1, 9}},
        {[](World &w) { w.out[3].dtype = GSC_COMPLEX64; }, GSC_ERROR_DTYPE, "out", 3, "dtype",
         "is complex64, but its input is float32"},
        {[](World &w) { w.tensors[1].data = nullptr; }, GSC_ERROR_NULL, "tensors", 1, "data",
         "is NULL"},
        {[](World &w) { w.out[1].data = nullptr; }, GSC_ERROR_NULL, "out", 1, "data", "is NULL"},
        {[](World &w) { w.tensors[3].count = UINT64_C(1) << 62; },
         GSC_ERROR_COUNT,
         "tensors",
         3,
         "count",
         "4611686018427387904",
         {0x1p62}},
        {[](World &w) { w.tensors[3].count = UINT64_C(1) << 60; },
         GSC_ERROR_COUNT,
         "tensors",
         3,
         "count",
         "more than memory",
         {0x1p60}},
        {[](World &w) { w.out[3].count = UINT64_MAX; }, GSC_ERROR_COUNT, "out", 3, "count",
         "more than memory"},
        {[](World &w) { w.out[3].count = 3; },
         GSC_ERROR_COUNT,
         "out",
         3,
         "count",
         "is 3",
         {3, 4, 4}},
        {[](World &w) { w.out[2].data = &w.values[9]; }, GSC_ERROR_OVERLAP, "out", 2, "data",
         "same address"},
        {[](World &w) { w.out[2].data = &w.values[7]; }, GSC_ERROR_OVERLAP, "out", 2, "data",
         "same address"},
        {[](World &w) { w.out[1].data = reinterpret_cast<char *>(&w.values[4]) + 1; },
         GSC_ERROR_OVERLAP, "out", 1, "data", "same address"},
        {[](World &w) {
             w.out[1] = {&w.values[4], 4, GSC_F16, 0, {}};
         },
         GSC_ERROR_OVERLAP, "out", 1, "data", "element size"},
        {[](World &w) {
             w.out[1] = {&w.values[4], 4, GSC_F64, 0, {}};
         },
         GSC_ERROR_OVERLAP, "out", 1, "data", "element size"},
        {[](World &w) { w.tensors[1].flags = 1; },
         GSC_ERROR_VALUE,
         "tensors",
         1,
         "flags",
         "must be 0",
         {1, 0, 0}},
        {[](World &w) { w.out[1].flags = 1; },
         GSC_ERROR_VALUE,
         "out",
         1,
         "flags",
         "must be 0",
         {1, 0, 0}},
    };
    for (const Case &c : cases)
        for (const Function &f : functions) {
            const std::string list = c.list;
            if (!f.has("tensors") || (list == "out" && !has_outputs(f)))
                continue;
            /* What is added to is other memory, whatever its address. */
            const bool adds = f.name == std::string("gsc_unscale_accumulate");
            check_refused(f, c.spoil,
                          {c.status, list, c.index, c.field,
                           adds && c.status == GSC_ERROR_OVERLAP ? "other memory" : c.hint,
                           c.number});
        }
}

TEST_CASE("neighbours, the same address, and empty tensors do not overlap", "[errors]")
{
    const Spoil spoils[] = {
        [](World &w) { w.out[1].data = &w.values[8]; },
        [](World &w) { w.out[1].data = w.values; },
        [](World &w) { w.out[1].data = &w.values[4]; },
        [](World &w) {
            w.tensors[1].count = w.out[1].count = 0;
            w.out[1].data = reinterpret_cast<char *>(&w.values[4]) + 1;
        },
        [](World &w) {
            w.tensors[1] = {&w.values[4], 4, GSC_F16, 0, {}};
            w.out[1] = {&w.values[4], 4, GSC_BF16, 0, {}};
        },
    };
    for (const Spoil &spoil : spoils) {
        World w;
        make(w);
        spoil(w);
        CHECK(gsc_unscale(nullptr, &w.factor, &w.tensors[1], &w.out[1], 1, nullptr, nullptr,
                          nullptr) == GSC_OK);
    }
}

TEST_CASE("the output of accumulate must be other memory", "[errors]")
{
    const Spoil spoils[] = {
        [](World &w) {
            w.tensors[0] = {w.values, 4, GSC_F32, 0, {}};
            w.out[0] = {&w.values[3], 4, GSC_F32, 0, {}};
        },
        [](World &w) { w.out[0] = w.tensors[0]; },
    };
    for (const Spoil &spoil : spoils)
        check_refused(function("gsc_unscale_accumulate"), spoil,
                      {GSC_ERROR_OVERLAP, "out", 0, "data", "other memory"});
}

TEST_CASE("a list with more bytes than the address space is refused", "[errors]")
{
    check_refused(
        function("gsc_workspace_size"),
        [](World &w) {
            for (gsc_tensor &tensor : w.tensors)
                tensor = {reinterpret_cast<void *>(16), UINT64_C(1) << 59, GSC_F64, 0, {}};
        },
        {GSC_ERROR_COUNT, "tensors", 1, "count", "memory"});
}

/* ---- numbers ---- */

TEST_CASE("a factor that cannot multiply", "[errors]")
{
    struct Case {
        Spoil spoil;
        const char *field, *hint;
    };
    const Case cases[] = {
        {[](World &w) { w.factor.scale = 0; }, "scale", "is 0"},
        {[](World &w) { w.factor.scale = infinity; }, "scale", "is inf"},
        {[](World &w) { w.factor.scale = nan_value; }, "scale", "nan"},
        {[](World &w) { w.factor.scale = -1; }, "scale", "is -1"},
        {[](World &w) { std::memset(&w.factor, 0, sizeof w.factor); }, "scale", "is 0"},
        {[](World &w) { w.factor.inverse = 0; }, "inverse", "above 0"},
        {[](World &w) { w.factor.inverse = infinity; }, "inverse", "finite"},
        {[](World &w) { w.factor.inverse = nan_value; }, "inverse", "finite"},
        {[](World &w) { w.factor.inverse = -2; }, "inverse", "above 0"},
        {[](World &w) { w.factor.inverse = w.factor.scale; }, "inverse", "1 / factor.scale"},
        {[](World &w) { w.factor.inverse *= 1 + 0x1p-19; }, "inverse", "1 / factor.scale"},
    };
    for (const Case &c : cases)
        check_refused(c.spoil, {GSC_ERROR_FACTOR, "factor", -1, c.field, c.hint});
}

TEST_CASE("numbers out of range", "[errors]")
{
    for (double bad : {0.0, -1.0, infinity, nan_value, 1e-310, 1e300, 1e39, 1e-39, -infinity})
        check_refused([=](World &w) { w.number = bad; },
                      {GSC_ERROR_VALUE, "scale", -1, "", "above 0", {bad}});
    for (double bad : {0.0, -1.0, infinity, nan_value})
        for (const char *name : {"by", "max_norm"})
            check_refused([=](World &w) { w.number = bad; },
                          {GSC_ERROR_VALUE, name, -1, "", "above 0", {bad}});
    for (double bad : {-1.0, infinity, nan_value})
        for (const Function &f : functions)
            if (f.has("options"))
                check_refused(f, [=](World &w) { w.options.clamp = bad; },
                              {GSC_ERROR_VALUE, "options", -1, "clamp", "must be", {bad}});
    for (const char *name : {"gsc_measure", "gsc_unscale_accumulate"})
        check_refused(function(name), [](World &w) { w.options.clamp = 1; },
                      {GSC_ERROR_VALUE, "options", -1, "clamp", "must be 0", {1, 0, 0}});
    for (uint32_t want : {8u, 0x80000001u})
        check_refused(
            [=](World &w) { w.options.want = want; },
            {GSC_ERROR_VALUE, "options", -1, "want", "must be", {static_cast<double>(want), 0, 7}});
    check_refused([](World &w) { w.kind = 2; },
                  {GSC_ERROR_VALUE, "kind", -1, "", "must be", {2, 0, 1}});
    check_refused([](World &w) { w.exec.stream = &w; },
                  {GSC_ERROR_VALUE, "exec", -1, "stream", "NULL"});
    check_refused([](World &w) { w.exec.workspace = &w; },
                  {GSC_ERROR_VALUE, "exec", -1, "workspace", "no scratch memory"});
    check_refused([](World &w) { w.exec.workspace_size = 8; },
                  {GSC_ERROR_VALUE, "exec", -1, "workspace_size", "no scratch memory"});
}

TEST_CASE("a report that no call leaves is refused wherever one is read", "[errors]")
{
    struct Row {
        const char *field, *hint;
        double value;
        std::function<void(gsc_report &)> spoil;
    };
#define COUNT(field)                                                                               \
    {                                                                                              \
#field, "0 or above", -1, [](gsc_report & r) { r.field = -1; }                             \
    }
    const Row rows[] = {
        {"kind", "0 to 4", 5, [](gsc_report &r) { r.kind = 5; }},
        {"kind", "is 0: no call wrote the report", nan_value,
         [](gsc_report &r) { r = gsc_report{}; }},
        {"flags", "must be 0", 1, [](gsc_report &r) { r.flags = 1; }},
        {"measured", "bits 1, 2 and 4", 8, [](gsc_report &r) { r.measured = 8; }},
        {"measured", "must be 0 in the report of a flag", 1,
         [](gsc_report &r) {
             r.kind = GSC_REPORT_FLAG;
             r.measured = GSC_WANT_NORM;
         }},
        {"number", "0 in others", 3, [](gsc_report &r) { r.number = 3; }},
        {"sum_squares", "0 or above", -9, [](gsc_report &r) { r.sum_squares = -9; }},
        COUNT(elements),
        COUNT(nan_count),
        COUNT(inf_count),
        COUNT(first_tensor),
        COUNT(first_element),
        COUNT(underflows_to_zero),
        COUNT(underflows_to_subnormal),
        COUNT(clamped),
        {"overflow", "but 3 elements are NaN and 0 are Inf", nan_value,
         [](gsc_report &r) { r.nan_count = 3; }},
        {"overflow", "but 0 elements are NaN and 1 are Inf", nan_value,
         [](gsc_report &r) { r.inf_count = 1; }},
    };
#undef COUNT
    for (const Row &row : rows) {
        for (const char *name :
             {"gsc_state_update", "gsc_factor_clip_grad_norm", "gsc_report_set_rank"})
            check_refused(function(name), [&](World &w) { row.spoil(w.report); },
                          {GSC_ERROR_REPORT, "report", -1, row.field, row.hint, {row.value}});
        check_refused(function("gsc_report_merge"), [&](World &w) { row.spoil(w.reports[2]); },
                      {GSC_ERROR_REPORT, "reports", 2, row.field, row.hint, {row.value}});
    }
}

TEST_CASE("a struct is made ready to be filled in, or its size is refused", "[errors]")
{
    gsc_policy made, expected = GSC_POLICY_INIT;
    std::memset(&made, 0x5a, sizeof made);
    REQUIRE(gsc_struct_init(&made, sizeof made, nullptr) == GSC_OK);
    CHECK(same(made, expected));
    for (uint32_t size : {0u, 4u, 20u, 4104u}) {
        gsc_error err = {};
        std::memset(&made, 0x5a, sizeof made);
        expected = made;
        CHECK(gsc_struct_init(&made, size, &err) == GSC_ERROR_STRUCT_SIZE);
        CHECK(std::string(err.name) == "struct_size");
        CHECK(same(made, expected));
    }
}

TEST_CASE("bits that mean nothing: the sentence lists those that do", "[errors]")
{
    gsc_report report;
    gsc_error err;
    gsc_tensor_options options = wanting(9);
    CHECK(gsc_measure(nullptr, nullptr, nullptr, 0, &options, &report, &err) == GSC_ERROR_VALUE);
    CHECK(std::string(err.message) ==
          "options.want is 9: it must be a union of the bits 1, 2 and 4");
    gsc_policy policy = GSC_POLICY_INIT;
    policy.quirks = 0xffffffff;
    CHECK(gsc_policy_check(&policy, &err) == GSC_ERROR_POLICY);
    CHECK(std::string(err.message) ==
          "policy.quirks is 4294967295: it must be a union of the bits 1, 2 and 4");
}

TEST_CASE("contexts and memory that cannot be made", "[errors]")
{
    const Function create = {
        "gsc_context_create_cpu", {"options", "out"}, [](World &w, gsc_error *err) {
            const gsc_cpu_options options = {GSC_CPU_OPTIONS_SIZE, w.kind, nullptr, w.memory};
            return gsc_context_create_cpu(&options, &w.context, err);
        }};
    for (uint32_t threads : {0u, 1025u, UINT32_MAX})
        check_refused(create, [=](World &w) { w.kind = threads; },
                      {GSC_ERROR_VALUE,
                       "options",
                       -1,
                       "threads",
                       "1024",
                       {static_cast<double>(threads), 1, 1024}});
    check_refused(create,
                  [](World &w) {
                      w.kind = 1;
                      w.memory = &w;
                  },
                  {GSC_ERROR_VALUE, "options", -1, "pool", "parallel_for"});
    const Function memory = {
        "gsc_memory_create", {"context", "kind", "size", "out"}, [](World &w, gsc_error *err) {
            return gsc_memory_create(nullptr, w.kind, w.size, &w.memory, err);
        }};
    check_refused(memory, [](World &w) { w.kind = 2; },
                  {GSC_ERROR_VALUE, "kind", -1, "", "must be", {2, 0, 1}});
    for (uint64_t size : {UINT64_MAX, UINT64_MAX - 255}) {
        void *place = &place;
        gsc_error err;
        CHECK(gsc_memory_create(nullptr, GSC_MEMORY_DEVICE, size, &place, &err) ==
              GSC_ERROR_MEMORY);
        CHECK(err.status == GSC_ERROR_MEMORY);
        CHECK(place == &place);
        check_sentence(err);
    }
}

TEST_CASE("the policy among the options has a size, and its reserved word is 0", "[errors]")
{
    check_refused(function("gsc_measure"),
                  [](World &w) {
                      w.options.policy = &w.policy;
                      w.policy.struct_size = 42;
                  },
                  {GSC_ERROR_STRUCT_SIZE, "policy", -1, "struct_size", "is", {}, "options"});
    check_refused(function("gsc_measure"),
                  [](World &w) {
                      w.options.policy = &w.policy;
                      w.policy.reserved = 1;
                  },
                  {GSC_ERROR_POLICY, "policy", -1, "reserved", " 0", {1, 0, 0}, "options"});
}

/* ---- policies, states, reports ---- */

TEST_CASE("a field of the policy that is out of range is named", "[errors]")
{
    struct Row {
        const char *field;
        std::function<void(gsc_policy &)> spoil;
        Number number;
    };
#define FIELD(field, ...)                                                                          \
    {                                                                                              \
#field, [](gsc_policy & p) { p.field = Number{__VA_ARGS__}.value; },                       \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define WORD(field, bad, low, high)                                                                \
    {                                                                                              \
#field, [](gsc_policy & p) { p.field = bad; },                                             \
        {                                                                                          \
            bad, low, high                                                                         \
        }                                                                                          \
    }
    const Row rows[] = {
        WORD(arithmetic, 4, 0, 3),
        FIELD(init_scale, -1),
        FIELD(init_scale, infinity),
        FIELD(init_scale, nan_value),
        FIELD(init_scale, 1e-310),
        FIELD(growth_factor, 0.5),
        FIELD(growth_factor, -2),
        FIELD(growth_factor, infinity),
        FIELD(growth_factor, nan_value),
        FIELD(backoff_factor, 1.5, 0, 1),
        FIELD(backoff_factor, -0.5, 0, 1),
        FIELD(backoff_factor, nan_value, 0, 1),
        WORD(growth_rule, 4, 0, 3),
        FIELD(max_scale, -1),
        FIELD(max_scale, nan_value),
        FIELD(min_scale, -1),
        FIELD(min_scale, infinity),
        FIELD(min_scale, nan_value),
        WORD(ceiling_rule, 5, 0, 4),
        WORD(floor_rule, 5, 0, 4),
        WORD(overflow_test, 2, 0, 1),
        WORD(overflow_reset, 8, 0, 7),
        WORD(apply_delay, 2, 0, 1),
        FIELD(overflow_tolerance, 1.5, 0, 1),
        FIELD(overflow_tolerance, -0.5, 0, 1),
        FIELD(overflow_tolerance, nan_value, 0, 1),
        FIELD(overflow_tolerance, 1, 0, 1),
        WORD(quirks, 8, 0, 7),
        WORD(reserved, 1, 0, 0),
        FIELD(target_amax, -1),
        FIELD(target_amax, infinity),
        FIELD(target_amax, nan_value),
        FIELD(log2_decay, 1),
        FIELD(log2_decay, -0.1),
        FIELD(log2_decay, nan_value),
        FIELD(log2_slow_decay, 1),
        FIELD(log2_slow_decay, -0.1),
        FIELD(log2_slow_decay, nan_value),
        FIELD(log2_margin_sigmas, -1, 0, 0x1p20),
        FIELD(log2_margin_sigmas, infinity, 0, 0x1p20),
        FIELD(log2_margin_sigmas, nan_value, 0, 0x1p20),
        FIELD(overflow_sample_log2, infinity, -0x1p20, 0x1p20),
        FIELD(overflow_sample_log2, nan_value, -0x1p20, 0x1p20),
        FIELD(guard_norm, -1, 0, 0x1p500),
        FIELD(guard_norm, nan_value, 0, 0x1p500),
        FIELD(guard_norm, infinity, 0, 0x1p500),
        FIELD(guard_ratio, 1, 1, 0x1p20),
        FIELD(guard_ratio, nan_value, 1, 0x1p20),
        FIELD(guard_ratio, infinity, 1, 0x1p20),
        FIELD(guard_sigmas, -1, 0, 0x1p20),
        FIELD(guard_sigmas, nan_value, 0, 0x1p20),
        FIELD(guard_sigmas, infinity, 0, 0x1p20),
        FIELD(guard_decay, 1, 0, 1),
        FIELD(guard_decay, -0.5, 0, 1),
        FIELD(guard_decay, nan_value, 0, 1),
        FIELD(guard_init_mean, -1, 0, 0x1p500),
        FIELD(guard_init_mean, nan_value, 0, 0x1p500),
        WORD(guard_sample, 3, 0, 2),
        WORD(guard_flags, 256, 0, 255),
    };
#undef FIELD
#undef WORD
    for (const Row &row : rows)
        check_refused(function("gsc_policy_check"), [&](World &w) { row.spoil(w.policy); },
                      {GSC_ERROR_POLICY, "policy", -1, row.field, "must be", row.number});
    check_refused(function("gsc_policy_check"),
                  [](World &w) {
                      w.policy.min_scale = 2;
                      w.policy.max_scale = 1;
                  },
                  {GSC_ERROR_POLICY, "policy", -1, "min_scale", "at most max_scale", {2}});
    check_refused(function("gsc_policy_check"),
                  [](World &w) {
                      w.policy.init_scale = 1e39;
                      w.policy.arithmetic = GSC_ARITHMETIC_F64_TO_F32;
                  },
                  {GSC_ERROR_POLICY, "policy", -1, "init_scale", "arithmetic", {1e39}});
}

TEST_CASE("the ends of each range are within it", "[errors]")
{
    const Spoil spoils[] = {
        [](World &w) { w.policy.growth_factor = 1; },
        [](World &w) { w.policy.backoff_factor = 1; },
        [](World &w) { w.policy.max_scale = infinity; },
        [](World &w) { w.policy.max_scale = w.policy.min_scale = 4; },
        [](World &w) {
            w.policy.overflow_tolerance = 1;
            w.policy.quirks = GSC_QUIRK_TOLERANCE_EXCLUSIVE;
        },
        [](World &w) { w.policy.growth_interval = UINT64_MAX; },
        [](World &w) { w.policy.max_failed_backoffs = UINT64_MAX; },
        [](World &w) { w.policy.hysteresis = w.policy.growth_extra_steps = UINT32_MAX; },
        [](World &w) { w.policy.overflow_reset = 7; },
        [](World &w) { w.policy.quirks = 7; },
        [](World &w) { w.policy.growth_rule = w.policy.ceiling_rule = w.policy.floor_rule = 3; },
        [](World &w) { w.policy.ceiling_rule = w.policy.floor_rule = 4; },
        [](World &w) { w.policy.log2_decay = std::nextafter(1, 0); },
        [](World &w) { w.policy.guard_norm = 0x1p500; },
        [](World &w) { w.policy.guard_ratio = w.policy.guard_sigmas = 0x1p20; },
        [](World &w) { w.policy.guard_decay = std::nextafter(1, 0); },
        [](World &w) { w.policy.guard_warmup = w.policy.guard_max_in_a_row = UINT64_MAX; },
        [](World &w) {
            w.policy.guard_sample = GSC_SAMPLE_THRESHOLD;
            w.policy.guard_flags = 255;
        },
    };
    for (const Spoil &spoil : spoils) {
        World w;
        make(w);
        spoil(w);
        CHECK(function("gsc_policy_check").call(w, nullptr) == GSC_OK);
        CHECK(function("gsc_state_update").call(w, nullptr) == GSC_OK);
    }
}

TEST_CASE("limits and factors must hold in the policy's arithmetic", "[errors]")
{
    const std::pair<Spoil, const char *> rows[] = {
        {[](World &w) { w.policy.max_scale = 1e39; }, "max_scale"},
        {[](World &w) { w.policy.min_scale = 1e-60; }, "min_scale"},
        {[](World &w) { w.policy.growth_factor = 1e39; }, "growth_factor"},
        {[](World &w) { w.policy.backoff_factor = 1e-60; }, "backoff_factor"},
        {[](World &w) { w.policy.target_amax = w.policy.max_scale = 64; }, "ceiling_rule"},
        {[](World &w) { w.policy.target_amax = w.policy.min_scale = 2; }, "floor_rule"},
        {[](World &w) { w.policy.log2_decay = 1 - 0x1p-26; }, "log2_decay"},
        {[](World &w) { w.policy.log2_slow_decay = 1 - 0x1p-26; }, "log2_slow_decay"},
    };
    for (const auto &row : rows) {
        const Spoil in_float = [](World &w) {
            w.policy.arithmetic = GSC_ARITHMETIC_F32;
            w.policy.max_scale = w.policy.min_scale = 0;
        };
        World w;
        make(w);
        in_float(w);
        REQUIRE(function("gsc_policy_check").call(w, nullptr) == GSC_OK);
        check_refused(function("gsc_policy_check"),
                      [&](World &world) {
                          in_float(world);
                          row.first(world);
                      },
                      {GSC_ERROR_POLICY, "policy", -1, row.second, "must be"});
    }
}

TEST_CASE("a state that no update leads to", "[errors]")
{
    struct Row {
        const char *field;
        Spoil spoil;
    };
#define FIELD(field, value)                                                                        \
    {                                                                                              \
#field, [](World & w) { w.state.field = value; }                                           \
    }
    const Row rows[] = {
        FIELD(factor.scale, -1),
        FIELD(factor.scale, nan_value),
        {"factor.inverse", [](World &w) { w.state.factor.scale = 0; }},
        FIELD(factor.inverse, 3),
        FIELD(next.inverse, 3),
        FIELD(next.scale, -1),
        FIELD(next.scale, nan_value),
        FIELD(factor.scale_f32, static_cast<float>(nan_value)),
        FIELD(factor.inverse_f32, 777),
        FIELD(next.scale_f32, -65536),
        FIELD(next.inverse_f32, static_cast<float>(nan_value)),
        FIELD(skip_f32, 5),
        FIELD(events, 2048),
        FIELD(good_steps, -1),
        FIELD(steps_since_change, -1),
        FIELD(overflows_since_reset, -1),
        FIELD(failed_backoffs, -1),
        FIELD(total_overflows, -1),
        FIELD(total_growths, -1),
        FIELD(total_backoffs, -1),
        FIELD(good_steps, INT64_MAX),
        FIELD(total_backoffs, INT64_MAX),
        FIELD(log2_mean, infinity),
        FIELD(log2_slow_mean, nan_value),
        FIELD(log2_mean_square, infinity),
        FIELD(log2_zero_weight, 1.5),
        FIELD(log2_zero_weight, nan_value),
        FIELD(log2_slow_zero_weight, -0.5),
        FIELD(guard_mean, nan_value),
        FIELD(guard_mean, 0x1p502),
        FIELD(guard_variance, -1),
        FIELD(guard_variance, nan_value),
        FIELD(guard_count, -1),
        FIELD(guard_in_a_row, INT64_MAX),
        FIELD(total_guard_skips, -1),
        FIELD(guard_multiplier, 1.5),
        FIELD(guard_multiplier, nan_value),
        FIELD(guard_threshold, infinity),
        FIELD(guard_value, nan_value),
    };
#undef FIELD
    for (const Row &row : rows) {
        for (const char *name : {"gsc_state_update", "gsc_state_reason", "gsc_state_save"})
            check_refused(function(name), row.spoil,
                          {GSC_ERROR_STATE, "state", -1, row.field, "is"});
        /* Of `from` these follow from factor.scale, or are of the last update. */
        const std::set<std::string> unread = {"factor.inverse", "factor.scale_f32",
                                              "factor.inverse_f32", "skip_f32", "events"};
        const std::string field = row.field;
        if (field.rfind("next", 0) != 0 && unread.count(field) == 0)
            check_refused(function("gsc_state_init_from"), row.spoil,
                          {GSC_ERROR_STATE, "from", -1, row.field, "is"});
    }
    for (const char *name : {"gsc_state_update", "gsc_state_save"})
        check_refused(function(name), [](World &w) { std::memset(&w.state, 0, sizeof w.state); },
                      {GSC_ERROR_STATE, "state", -1, "factor.scale", "is 0"});
}

TEST_CASE("a report that an update, a clip or a merge cannot use", "[errors]")
{
    struct Row {
        const char *call, *name;
        int64_t index;
        const char *field, *hint;
        Spoil spoil;
    };
    const Spoil failed = [](World &w) { w.report.status = GSC_ERROR_FACTOR; },
                no_norm =
                    [](World &w) {
                        w.report.measured = w.reports[1].measured = GSC_WANT_AMAX;
                        w.policy.overflow_test = GSC_TEST_NORM;
                    },
                no_amax = [](World &w) {
                    w.report.measured = w.reports[1].measured = GSC_WANT_NORM;
                    w.policy.target_amax = 1;
                };
    const auto amax = [](double value) { return [=](World &w) { w.report.amax = value; }; };
    const Row rows[] = {
        {"gsc_state_update", "report", -1, "status", "factor is zero", failed},
        {"gsc_state_update", "report", -1, "sum_squares", "norm", no_norm},
        {"gsc_state_update", "report", -1, "amax", "amax", no_amax},
        {"gsc_state_update", "report", -1, "amax", "finite", amax(infinity)},
        {"gsc_state_update", "report", -1, "amax", "finite", amax(nan_value)},
        {"gsc_state_update", "report", -1, "amax", "not negative", amax(-1)},
        {"gsc_factor_clip_grad_norm", "report", -1, "sum_squares", "norm", no_norm},
        {"gsc_factor_clip_grad_norm", "report", -1, "status", "factor is zero", failed},
        {"gsc_report_merge", "reports", 1, "sum_squares", "norm", no_norm},
    };
    for (const Row &row : rows)
        check_refused(function(row.call), row.spoil,
                      {GSC_ERROR_REPORT, row.name, row.index, row.field, row.hint});
}

TEST_CASE("an amax that is not a number survives a merge from any place", "[errors]")
{
    for (size_t i = 0; i < 3; i++) {
        gsc_report reports[3] = {measured, measured, measured}, merged;
        reports[i].amax = nan_value;
        REQUIRE(gsc_report_merge(nullptr, reports, 3, GSC_MERGE_SHARDS, nullptr, &merged,
                                 nullptr) == GSC_OK);
        CHECK(std::isnan(merged.amax));
    }
}

TEST_CASE("saved bytes that cannot be read, a buffer too small, an unknown preset, no CUDA",
          "[errors]")
{
    const Function &load = function("gsc_state_load");
    check_refused(load, [](World &w) { w.bytes[40] ^= 1; },
                  {GSC_ERROR_CORRUPT, "bytes", -1, "", "checksum"});
    check_refused(load, [](World &w) { w.bytes[0] = 0; },
                  {GSC_ERROR_CORRUPT, "bytes", -1, "", "GSCSTATE"});
    check_refused(load, [](World &w) { w.bytes_size--; },
                  {GSC_ERROR_CORRUPT, "size", -1, "", "were saved", {635, 636, 636}});
    check_refused(load, [](World &w) { w.bytes_size = 3; },
                  {GSC_ERROR_CORRUPT, "size", -1, "", "too few", {3}});
    const Function rows[] = {
        {"gsc_state_save",
         {"policy", "state", "bytes", "capacity", "size"},
         [](World &w, gsc_error *err) {
             return gsc_state_save(&w.policy, &w.state, w.bytes, 10, &w.size, err);
         }},
        {"gsc_policy_preset",
         {"name", "out"},
         [](World &w, gsc_error *err) { return gsc_policy_preset("", &w.policy, err); }},
        {"gsc_context_create_cuda",
         {"options", "out"},
         [](World &w, gsc_error *err) {
             const gsc_cuda_options first = GSC_CUDA_OPTIONS_INIT;
             return gsc_context_create_cuda(&first, &w.context, err);
         }},
    };
    const Spoil nothing = [](World &) {};
    check_refused(rows[0], nothing, {GSC_ERROR_CAPACITY, "capacity", -1, "", "is 10", {10, 636}});
    check_refused(rows[1], nothing, {GSC_ERROR_PRESET, "name", -1, "", "preset"});
    gsc_error why = {};
    if (gsc_cuda_start(&why) == GSC_ERROR_UNAVAILABLE)
        check_refused(rows[2], nothing,
                      {GSC_ERROR_UNAVAILABLE, "options", -1, "device", why.message});
    CHECK(std::string(gsc_cuda_log()) == "");
    CHECK(gsc_has(GSC_FEATURE_CUDA) == 1);
    CHECK(gsc_has(GSC_FEATURE_CUDA + 1) == 0);
}

TEST_CASE("an unknown preset is told the nearest name", "[errors]")
{
    const std::pair<const char *, const char *> rows[] = {
        {"tortch", "\"torch\""},       {"pytorch", "\"torch\""},
        {"Megatron", "\"megatron\""},  {"megatron-lm", "\"megatron\""},
        {"deepsped", "\"deepspeed\""}, {"recomended", "\"recommended\""},
    };
    for (const auto &[name, nearest] : rows) {
        gsc_policy policy = GSC_POLICY_INIT;
        gsc_error err = {};
        CAPTURE(name);
        CHECK(gsc_policy_preset(name, &policy, &err) == GSC_ERROR_PRESET);
        const std::string message = err.message;
        CAPTURE(message);
        CHECK(message.find(name) != std::string::npos);
        CHECK(message.find(nearest) != std::string::npos);
        check_sentence(err);
    }
}

TEST_CASE("a long name is cut, not overrun", "[errors]")
{
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_error err = {};
    const std::string name(1000, 'x');
    CHECK(gsc_policy_preset(name.c_str(), &policy, &err) == GSC_ERROR_PRESET);
    CHECK(std::string(err.message).find("preset") != std::string::npos);
    check_sentence(err);
}

/* ---- ranks ---- */

TEST_CASE("ranks that differ, and a rank that there cannot be", "[errors]")
{
    check_refused(function("gsc_report_set_rank"), [](World &w) { w.rank = UINT32_MAX; },
                  {GSC_ERROR_VALUE, "rank", -1, "", "must be 0 to", {4294967295, 0, 4294967294}});
    check_refused(function("gsc_report_merge"),
                  [](World &w) {
                      w.reports[0].digest = w.reports[1].digest = 7;
                      w.reports[2].digest = 8;
                  },
                  {GSC_ERROR_MISMATCH, "reports", 2, "digest", "from reports[0].digest"});
    check_refused(function("gsc_report_merge"),
                  [](World &w) {
                      w.reports[1].digest = 7;
                      w.reports[2].digest = 8;
                      w.reports[1].status_rank_plus_1 = 12;
                      w.reports[2].status_rank_plus_1 = 4294967295;
                  },
                  {GSC_ERROR_MISMATCH, "reports", 2, "digest",
                   "rank 4294967294 has another policy or state than rank 11: load the same "
                   "checkpoint on all ranks, or send one rank's policy and state to all"});
    check_refused(function("gsc_report_merge"),
                  [](World &w) {
                      w.reports[0].digest = 7;
                      w.reports[2].digest = 8;
                      w.reports[0].status_rank_plus_1 = w.reports[2].status_rank_plus_1 = 8;
                  },
                  {GSC_ERROR_MISMATCH, "reports", 2, "digest",
                   "two ranks with unlike policies or states were both stamped 7: give each rank "
                   "its own number"});
    for (const char *name : {"gsc_state_update", "gsc_factor_clip_grad_norm"})
        check_refused(function(name),
                      [](World &w) {
                          w.report.status = GSC_ERROR_MEMORY;
                          w.report.status_rank_plus_1 = 4;
                      },
                      {GSC_ERROR_REPORT, "report", -1, "status",
                       "is an error that rank 3 met: out of memory"});
}

/* ---- status, version, dtypes ---- */

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
