// SPDX-License-Identifier: MIT
// What bad input gets: a status, the argument, the name of the culprit and a sentence on how to
// mend it; and nothing is written, which a copy of all that a call could write shows.
#include "support.hpp"
#include <cmath>

namespace {

constexpr double infinity = HUGE_VAL, nan_value = std::numeric_limits<double>::quiet_NaN();

/* ---- all that calls read and write, in one block of memory ---- */

struct World {
    gsc_policy policy;
    gsc_state state, out_state;
    gsc_report report, other_report, out_report;
    gsc_factor factor, out_factor;
    gsc_exec exec;
    gsc_info info;
    gsc_context *context;
    float values[16], results[16];
    gsc_tensor tensors[4], out[4];
    unsigned char bytes[GSC_SAVED_SIZE];
    uint64_t bytes_size, size;
    double scale;
};

/* Everything valid: four tensors of four elements each, and what comes out is marked. */
void make(World &w)
{
    std::memset(&w, 0, sizeof w);
    w.policy = GSC_POLICY_INIT;
    w.exec = GSC_EXEC_INIT;
    w.info = GSC_INFO_INIT;
    w.policy.init_scale = 16;
    w.policy.growth_factor = 2;
    w.policy.growth_interval = 100;
    REQUIRE(gsc_state_init(nullptr, &w.policy, &w.state, nullptr) == GSC_OK);
    REQUIRE(gsc_factor_init(16, &w.factor, nullptr) == GSC_OK);
    REQUIRE(gsc_state_save(&w.policy, &w.state, w.bytes, sizeof w.bytes, &w.bytes_size, nullptr) ==
            GSC_OK);
    for (uint64_t i = 0; i < 4; i++) {
        w.tensors[i] = {&w.values[4 * i], 4, GSC_F32, 0};
        w.out[i] = {&w.results[4 * i], 4, GSC_F32, 0};
    }
    for (float &x : w.values)
        x = 3;
    w.scale = 8;
    std::memset(&w.out_state, 0x5a, sizeof w.out_state);
    std::memset(&w.out_report, 0x5a, sizeof w.out_report);
    std::memset(&w.out_factor, 0x5a, sizeof w.out_factor);
    std::memset(w.results, 0x5a, sizeof w.results);
    w.size = 0x5a5a;
}

gsc_status update(World &w, gsc_error *err)
{
    return gsc_update(&w.exec, &w.policy, &w.state, &w.report, &w.out_state, err);
}
gsc_status set_scale(World &w, gsc_error *err)
{
    return gsc_set_scale(&w.exec, &w.policy, &w.state, &w.scale, &w.out_state, err);
}
gsc_status save(World &w, gsc_error *err)
{
    return gsc_state_save(&w.policy, &w.state, w.bytes, sizeof w.bytes, &w.size, err);
}
gsc_status load(World &w, gsc_error *err)
{
    return gsc_state_load(w.bytes, w.bytes_size, &w.policy, &w.out_state, err);
}
gsc_status scale(World &w, gsc_error *err)
{
    return gsc_scale(&w.exec, &w.factor, w.tensors, w.out, 4, err);
}
gsc_status check(World &w, gsc_error *err)
{
    return gsc_check(&w.exec, &w.factor, w.tensors, 4, 31, &w.out_report, err);
}
gsc_status unscale(World &w, gsc_error *err)
{
    return gsc_unscale(&w.exec, &w.factor, w.tensors, w.out, 4, 31, &w.out_report, err);
}
gsc_status clip_value(World &w, gsc_error *err)
{
    return gsc_clip_value(&w.exec, &w.factor, w.scale, w.tensors, w.out, 4, 31, &w.out_report, err);
}
gsc_status clip(World &w, gsc_error *err)
{
    return gsc_clip_factor(&w.exec, &w.report, &w.factor, w.scale, &w.out_factor, err);
}
gsc_status multiply(World &w, gsc_error *err)
{
    return gsc_factor_multiply(&w.exec, &w.factor, w.scale, &w.out_factor, err);
}
gsc_status merge(World &w, gsc_error *err)
{
    return gsc_merge(&w.exec, &w.report, &w.other_report, &w.out_report, err);
}
gsc_status state_init(World &w, gsc_error *err)
{
    return gsc_state_init(&w.exec, &w.policy, &w.out_state, err);
}
gsc_status workspace_size(World &w, gsc_error *err)
{
    return gsc_workspace_size(&w.exec, w.tensors, 4, 31, &w.size, err);
}
gsc_status prepare(World &w, gsc_error *err)
{
    return gsc_prepare(&w.exec, err);
}
gsc_status policy_check(World &w, gsc_error *err)
{
    return gsc_policy_check(&w.policy, err);
}
gsc_status torch(World &w, gsc_error *err)
{
    return gsc_policy_preset("torch", &w.policy, err);
}
gsc_status get_info(World &w, gsc_error *err)
{
    return gsc_get_info(&w.info, err);
}

/* ---- one wrong thing, and what it gets ---- */

using Spoil = void (*)(World &);
using Call = gsc_status (*)(World &, gsc_error *);

struct Row {
    Spoil spoil;
    Call call;
    gsc_status status;
    int argument;
    int64_t index;
    std::string name;
    std::string hint; // part of the message
};

std::string text(gsc_status status, const gsc_error &err)
{
    std::ostringstream s;
    s << status << " err.status " << err.status << " argument " << err.argument << " index "
      << err.index << " name " << err.name;
    return s.str();
}

void check_row(const Row &row)
{
    World w;
    make(w);
    row.spoil(w);
    World before;
    std::memcpy(&before, &w, sizeof w);
    gsc_error err, expected = {};
    std::memset(&err, 0x5a, sizeof err);
    expected.status = row.status;
    expected.argument = row.argument;
    expected.index = row.index;
    row.name.copy(expected.name, sizeof expected.name - 1);

    CHECK(text(row.call(w, &err), err) == text(row.status, expected));
    CAPTURE(err.message, row.hint);
    CHECK(std::string(err.message).find(row.hint) != std::string::npos);
    CHECK(row.call(w, nullptr) == row.status);
    CHECK(same(w, before));
}

const Spoil nothing = [](World &) {};

} // namespace

TEST_CASE("what the tables spoil is valid before", "[errors]")
{
    for (Call call :
         {update, set_scale, save, load, scale, check, unscale, clip_value, clip, multiply, merge,
          state_init, workspace_size, prepare, policy_check, torch, get_info}) {
        World w;
        make(w);
        gsc_error err, mark;
        std::memset(&mark, 0x5a, sizeof mark);
        err = mark;
        CHECK(call(w, &err) == GSC_OK);
        CHECK(same(err, mark)); // written only when a call fails
    }
}

TEST_CASE("NULL where it may not be", "[errors]")
{
    const Row rows[] = {
#define ROW(argument, name, call)                                                                  \
    {nothing,                                                                                      \
     [](World &w, gsc_error *err) { return (void)w, call; },                                       \
     GSC_ERROR_NULL,                                                                               \
     argument,                                                                                     \
     -1,                                                                                           \
     name,                                                                                         \
     name " is NULL"}
        ROW(1, "out", gsc_policy_init(GSC_POLICY_SIZE, nullptr, err)),
        ROW(1, "out", gsc_exec_init(GSC_EXEC_SIZE, nullptr, err)),
        ROW(1, "out", gsc_info_init(GSC_INFO_SIZE, nullptr, err)),
        ROW(0, "name", gsc_policy_preset(nullptr, &w.policy, err)),
        ROW(1, "out", gsc_policy_preset("torch", nullptr, err)),
        ROW(0, "policy", gsc_policy_check(nullptr, err)),
        ROW(3, "out", gsc_context_create_cpu(1, nullptr, nullptr, nullptr, err)),
        ROW(1, "out", gsc_context_create_cuda(0, nullptr, err)),
        ROW(0, "out", gsc_get_info(nullptr, err)),
        ROW(1, "out", gsc_factor_init(1, nullptr, err)),
        ROW(1, "factor", gsc_factor_multiply(nullptr, nullptr, 1, &w.out_factor, err)),
        ROW(3, "out", gsc_factor_multiply(nullptr, &w.factor, 1, nullptr, err)),
        ROW(1, "a", gsc_merge(nullptr, nullptr, &w.report, &w.out_report, err)),
        ROW(2, "b", gsc_merge(nullptr, &w.report, nullptr, &w.out_report, err)),
        ROW(3, "out", gsc_merge(nullptr, &w.report, &w.report, nullptr, err)),
        ROW(1, "policy", gsc_state_init(nullptr, nullptr, &w.out_state, err)),
        ROW(2, "out", gsc_state_init(nullptr, &w.policy, nullptr, err)),
        ROW(1, "policy", gsc_update(nullptr, nullptr, &w.state, &w.report, &w.out_state, err)),
        ROW(2, "state", gsc_update(nullptr, &w.policy, nullptr, &w.report, &w.out_state, err)),
        ROW(3, "report", gsc_update(nullptr, &w.policy, &w.state, nullptr, &w.out_state, err)),
        ROW(4, "out", gsc_update(nullptr, &w.policy, &w.state, &w.report, nullptr, err)),
        ROW(1, "policy", gsc_set_scale(nullptr, nullptr, &w.state, &w.scale, &w.out_state, err)),
        ROW(2, "state", gsc_set_scale(nullptr, &w.policy, nullptr, &w.scale, &w.out_state, err)),
        ROW(3, "scale", gsc_set_scale(nullptr, &w.policy, &w.state, nullptr, &w.out_state, err)),
        ROW(4, "out", gsc_set_scale(nullptr, &w.policy, &w.state, &w.scale, nullptr, err)),
        ROW(0, "policy", gsc_state_save(nullptr, &w.state, w.bytes, 1024, &w.size, err)),
        ROW(1, "state", gsc_state_save(&w.policy, nullptr, w.bytes, 1024, &w.size, err)),
        ROW(2, "bytes", gsc_state_save(&w.policy, &w.state, nullptr, 1024, &w.size, err)),
        ROW(4, "size", gsc_state_save(&w.policy, &w.state, w.bytes, 1024, nullptr, err)),
        ROW(0, "bytes", gsc_state_load(nullptr, 436, &w.policy, &w.out_state, err)),
        ROW(0, "bytes", gsc_state_load(nullptr, 0, &w.policy, &w.out_state, err)),
        ROW(3, "state", gsc_state_load(w.bytes, w.bytes_size, &w.policy, nullptr, err)),
        ROW(2, "tensors", gsc_scale(nullptr, &w.factor, nullptr, w.out, 4, err)),
        ROW(3, "out", gsc_scale(nullptr, &w.factor, w.tensors, nullptr, 4, err)),
        ROW(2, "tensors", gsc_check(nullptr, &w.factor, nullptr, 4, 0, &w.out_report, err)),
        ROW(5, "report", gsc_check(nullptr, &w.factor, w.tensors, 4, 0, nullptr, err)),
        ROW(2, "tensors",
            gsc_unscale(nullptr, &w.factor, nullptr, w.out, 4, 0, &w.out_report, err)),
        ROW(3, "out",
            gsc_unscale(nullptr, &w.factor, w.tensors, nullptr, 4, 0, &w.out_report, err)),
        ROW(3, "tensors",
            gsc_clip_value(nullptr, &w.factor, 1, nullptr, w.out, 4, 0, &w.out_report, err)),
        ROW(4, "out",
            gsc_clip_value(nullptr, &w.factor, 1, w.tensors, nullptr, 4, 0, &w.out_report, err)),
        ROW(2, "tensors",
            gsc_accumulate(nullptr, &w.factor, nullptr, w.out, 4, 0, &w.out_report, err)),
        ROW(3, "out",
            gsc_accumulate(nullptr, &w.factor, w.tensors, nullptr, 4, 0, &w.out_report, err)),
        ROW(6, "report", gsc_accumulate(nullptr, &w.factor, w.tensors, w.out, 4, 0, nullptr, err)),
        ROW(1, "report", gsc_clip_factor(nullptr, nullptr, &w.factor, 1, &w.out_factor, err)),
        ROW(4, "out", gsc_clip_factor(nullptr, &w.report, &w.factor, 1, nullptr, err)),
        ROW(1, "tensors", gsc_workspace_size(nullptr, nullptr, 4, 0, &w.size, err)),
        ROW(4, "size", gsc_workspace_size(nullptr, w.tensors, 4, 0, nullptr, err)),
#undef ROW
    };
    for (const Row &row : rows)
        check_row(row);
}

TEST_CASE("tensors that are none", "[errors]")
{
    struct Case {
        Spoil spoil;
        gsc_status status;
        bool output; // what is wrong is in the output list
        int64_t index;
        const char *name, *hint;
    };
    const Case cases[] = {
        {[](World &w) { w.tensors[2].dtype = 0; }, GSC_ERROR_DTYPE, false, 2, "tensors[2].dtype",
         "dtype 0"},
        {[](World &w) { w.tensors[0].dtype = 77; }, GSC_ERROR_DTYPE, false, 0, "tensors[0].dtype",
         "dtype 77"},
        {[](World &w) { w.out[3].dtype = UINT32_MAX; }, GSC_ERROR_DTYPE, true, 3, "out[3].dtype",
         "dtype 4294967295"},
        {[](World &w) { w.out[3].dtype = GSC_COMPLEX64; }, GSC_ERROR_DTYPE, true, 3, "out[3].dtype",
         "complex"},
        {[](World &w) { w.tensors[1].data = nullptr; }, GSC_ERROR_NULL, false, 1, "tensors[1].data",
         "no data"},
        {[](World &w) { w.out[1].data = nullptr; }, GSC_ERROR_NULL, true, 1, "out[1].data",
         "no data"},
        {[](World &w) { w.tensors[3].count = UINT64_C(1) << 62; }, GSC_ERROR_COUNT, false, 3,
         "tensors[3].count", "4611686018427387904"},
        {[](World &w) { w.tensors[3].count = UINT64_C(1) << 60; }, GSC_ERROR_COUNT, false, 3,
         "tensors[3].count", "more than memory"},
        {[](World &w) { w.out[3].count = UINT64_MAX; }, GSC_ERROR_COUNT, true, 3, "out[3].count",
         "more than memory"},
        {[](World &w) { w.out[3].count = 3; }, GSC_ERROR_COUNT, true, 3, "out[3].count",
         "4 elements, its output 3"},
        {[](World &w) { w.out[2].data = &w.values[9]; }, GSC_ERROR_OVERLAP, true, 2, "out[2].data",
         "same address"},
        {[](World &w) { w.out[2].data = &w.values[7]; }, GSC_ERROR_OVERLAP, true, 2, "out[2].data",
         "same address"},
        {[](World &w) { w.out[1].data = reinterpret_cast<char *>(&w.values[4]) + 1; },
         GSC_ERROR_OVERLAP, true, 1, "out[1].data", "same address"},
        {[](World &w) {
             w.out[1] = {&w.values[4], 4, GSC_F16, 0};
         },
         GSC_ERROR_OVERLAP, true, 1, "out[1].data", "element size"},
        {[](World &w) {
             w.out[1] = {&w.values[4], 4, GSC_F64, 0};
         },
         GSC_ERROR_OVERLAP, true, 1, "out[1].data", "element size"},
        {[](World &w) { w.tensors[1].reserved = 1; }, GSC_ERROR_VALUE, false, 1,
         "tensors[1].reserved", "must be 0"},
    };
    for (const Case &c : cases) {
        const int tensors_argument = c.output ? 3 : 2;
        check_row({c.spoil, scale, c.status, tensors_argument, c.index, c.name, c.hint});
        check_row({c.spoil, unscale, c.status, tensors_argument, c.index, c.name, c.hint});
        check_row({c.spoil, clip_value, c.status, tensors_argument + 1, c.index, c.name, c.hint});
        if (c.output)
            continue;
        check_row({c.spoil, check, c.status, 2, c.index, c.name, c.hint});
        check_row({c.spoil, workspace_size, c.status, 1, c.index, c.name, c.hint});
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
            w.tensors[1] = {&w.values[4], 4, GSC_F16, 0};
            w.out[1] = {&w.values[4], 4, GSC_BF16, 0};
        },
    };
    for (const Spoil spoil : spoils) {
        World w;
        make(w);
        spoil(w);
        CHECK(gsc_unscale(nullptr, &w.factor, &w.tensors[1], &w.out[1], 1, 0, nullptr, nullptr) ==
              GSC_OK);
    }
}

TEST_CASE("what is added to is other memory", "[errors]")
{
    const Call accumulate = [](World &w, gsc_error *err) {
        const gsc_tensor list[] = {{w.values, 4, GSC_F32, 0}},
                         out[] = {{&w.values[3], 4, GSC_F32, 0}};
        return gsc_accumulate(&w.exec, &w.factor, list, out, 1, 0, &w.out_report, err);
    };
    const Call onto_itself = [](World &w, gsc_error *err) {
        const gsc_tensor list[] = {{w.values, 4, GSC_F32, 0}};
        return gsc_accumulate(&w.exec, &w.factor, list, list, 1, 0, &w.out_report, err);
    };
    for (Call call : {accumulate, onto_itself})
        check_row({nothing, call, GSC_ERROR_OVERLAP, 3, 0, "out[0].data", "other memory"});
}

TEST_CASE("a factor that cannot multiply", "[errors]")
{
    struct Case {
        Spoil spoil;
        const char *name, *hint;
    };
    const Case cases[] = {
        {[](World &w) { w.factor.scale = 0; }, "factor.scale", "factor.scale is 0"},
        {[](World &w) { w.factor.scale = infinity; }, "factor.scale", "factor.scale is inf"},
        {[](World &w) { w.factor.scale = nan_value; }, "factor.scale", "nan"},
        {[](World &w) { w.factor.scale = -1; }, "factor.scale", "gsc_factor_init"},
        {[](World &w) { std::memset(&w.factor, 0, sizeof w.factor); }, "factor.scale",
         "gsc_state_init"},
        {[](World &w) { w.factor.inverse = 0; }, "factor.inverse", "above 0"},
        {[](World &w) { w.factor.inverse = infinity; }, "factor.inverse", "finite"},
        {[](World &w) { w.factor.inverse = nan_value; }, "factor.inverse", "finite"},
        {[](World &w) { w.factor.inverse = -2; }, "factor.inverse", "above 0"},
    };
    for (const Case &c : cases)
        for (Call call : {scale, check, unscale, clip_value, multiply, clip})
            check_row({c.spoil, call, GSC_ERROR_FACTOR, call == clip ? 2 : 1, -1, c.name, c.hint});
}

TEST_CASE("numbers out of range", "[errors]")
{
    for (double bad : {0.0, -1.0, infinity, nan_value, 1e-310, -infinity}) {
        gsc_error err = {};
        gsc_factor factor, mark;
        std::memset(&mark, 0x5a, sizeof mark);
        factor = mark;
        CAPTURE(bad);
        CHECK(gsc_factor_init(bad, &factor, &err) == GSC_ERROR_VALUE);
        CHECK(err.name == std::string("scale"));
        CHECK(err.argument == 0);
        CHECK(same(factor, mark));
    }
    const Spoil spoils[] = {[](World &w) { w.scale = 0; }, [](World &w) { w.scale = -1; },
                            [](World &w) { w.scale = infinity; },
                            [](World &w) { w.scale = nan_value; }};
    for (const Spoil spoil : spoils) {
        check_row({spoil, set_scale, GSC_ERROR_VALUE, 3, -1, "scale", "above 0"});
        check_row({spoil, clip, GSC_ERROR_VALUE, 3, -1, "max_norm", "above 0"});
        check_row({spoil, clip_value, GSC_ERROR_VALUE, 2, -1, "limit", "above 0"});
        check_row({spoil, multiply, GSC_ERROR_VALUE, 2, -1, "by", "above 0"});
    }
    const Spoil too_small = [](World &w) {
        w.scale = 1e-50;
        w.policy.arithmetic = GSC_ARITHMETIC_F32;
    };
    check_row({too_small, set_scale, GSC_ERROR_VALUE, 3, -1, "scale", "above 0"});
    const Call no_threads = [](World &w, gsc_error *err) {
        return gsc_context_create_cpu(0, nullptr, nullptr, &w.context, err);
    };
    const Call pool_alone = [](World &w, gsc_error *err) {
        return gsc_context_create_cpu(1, nullptr, &w, &w.context, err);
    };
    const Call too_many = [](World &w, gsc_error *err) {
        return gsc_context_create_cpu(1025, nullptr, nullptr, &w.context, err);
    };
    check_row({nothing, no_threads, GSC_ERROR_VALUE, 0, -1, "threads", "from 1 to 1024"});
    check_row({nothing, too_many, GSC_ERROR_VALUE, 0, -1, "threads", "1025"});
    check_row({nothing, pool_alone, GSC_ERROR_VALUE, 2, -1, "pool", "parallel_for"});
    for (Call call : {update, set_scale, scale, check, unscale, clip_value, clip, multiply, merge,
                      state_init, workspace_size, prepare}) {
        check_row({[](World &w) { w.exec.reserved = 1; }, call, GSC_ERROR_VALUE, 0, -1,
                   "on.reserved", "must be 0"});
        check_row({[](World &w) { w.exec.stream = &w; }, call, GSC_ERROR_VALUE, 0, -1, "on.stream",
                   "leave it NULL"});
    }
}

TEST_CASE("unknown want bits", "[errors]")
{
    const Row rows[] = {
        {nothing,
         [](World &w, gsc_error *err) {
             return gsc_check(nullptr, &w.factor, w.tensors, 4, 64, &w.out_report, err);
         },
         GSC_ERROR_WANT, 4, -1, "want", "0x40"},
        {nothing,
         [](World &w, gsc_error *err) {
             return gsc_unscale(nullptr, &w.factor, w.tensors, w.out, 4, 0x80000001, &w.out_report,
                                err);
         },
         GSC_ERROR_WANT, 5, -1, "want", "0x80000000"},
        {nothing,
         [](World &w, gsc_error *err) {
             return gsc_workspace_size(nullptr, w.tensors, 4, 64, &w.size, err);
         },
         GSC_ERROR_WANT, 3, -1, "want", "GSC_WANT_*"},
    };
    for (const Row &row : rows)
        check_row(row);
}

TEST_CASE("struct_size that is garbage, or of a struct that lacks what is needed", "[errors]")
{
    const Spoil garbage[] = {
        [](World &w) { w.policy.struct_size = w.exec.struct_size = w.info.struct_size = 0; },
        [](World &w) { w.policy.struct_size = w.exec.struct_size = w.info.struct_size = 7; },
        [](World &w) { w.policy.struct_size = w.exec.struct_size = w.info.struct_size = 42; },
        [](World &w) {
            w.policy.struct_size = w.exec.struct_size = w.info.struct_size = 0xffffffff;
        },
    };
    for (const Spoil spoil : garbage) {
        for (Call call : {update, set_scale, state_init, scale, check, unscale, clip, multiply,
                          merge, workspace_size, prepare})
            check_row({spoil, call, GSC_ERROR_STRUCT_SIZE, 0, -1, "on", "initialise"});
        check_row({spoil, policy_check, GSC_ERROR_STRUCT_SIZE, 0, -1, "policy", "initialise"});
        check_row({spoil, save, GSC_ERROR_STRUCT_SIZE, 0, -1, "policy", "initialise"});
        check_row({spoil, load, GSC_ERROR_STRUCT_SIZE, 2, -1, "policy", "initialise"});
        check_row({spoil, torch, GSC_ERROR_STRUCT_SIZE, 1, -1, "out", "initialise"});
        check_row({spoil, get_info, GSC_ERROR_STRUCT_SIZE, 0, -1, "out", "initialise"});
    }
    check_row({[](World &w) { w.policy.struct_size = 16; }, torch, GSC_ERROR_STRUCT_SIZE, 1, -1,
               "out", "lacks fields"});
    for (uint32_t size : {0u, 4u, 7u, 42u, 1u << 31}) {
        World w, before;
        make(w);
        before = w;
        CAPTURE(size);
        CHECK(gsc_policy_init(size, &w.policy, nullptr) == GSC_ERROR_STRUCT_SIZE);
        CHECK(gsc_exec_init(size, &w.exec, nullptr) == GSC_ERROR_STRUCT_SIZE);
        CHECK(gsc_info_init(size, &w.info, nullptr) == GSC_ERROR_STRUCT_SIZE);
        CHECK(std::memcmp(&w.policy, &before.policy, sizeof w.policy) == 0);
        CHECK(std::memcmp(&w.exec, &before.exec, sizeof w.exec) == 0);
        CHECK(std::memcmp(&w.info, &before.info, sizeof w.info) == 0);
    }
}

TEST_CASE("structs of older and newer clients", "[errors]")
{
    struct {
        gsc_policy policy;
        uint64_t newer;
    } grown = {GSC_POLICY_INIT, 0};
    grown.policy.struct_size = GSC_POLICY_SIZE + 8;
    CHECK(gsc_policy_check(&grown.policy, nullptr) == GSC_OK);
    CHECK(gsc_policy_preset("torch", &grown.policy, nullptr) == GSC_OK);
    CHECK(grown.policy.struct_size == GSC_POLICY_SIZE + 8);
    grown.newer = 1;
    CHECK(gsc_policy_check(&grown.policy, nullptr) == GSC_ERROR_STRUCT_SIZE);
    CHECK(gsc_policy_preset("torch", &grown.policy, nullptr) == GSC_OK); // overwrites all of it
    CHECK(grown.newer == 0);

    gsc_policy old = GSC_POLICY_INIT;
    old.struct_size = 24;
    old.backoff_factor = nan_value; // beyond the old struct
    CHECK(gsc_policy_check(&old, nullptr) == GSC_OK);
    gsc_exec short_exec = GSC_EXEC_INIT;
    short_exec.struct_size = 16;
    short_exec.stream = &short_exec; // beyond the old struct
    CHECK(gsc_prepare(&short_exec, nullptr) == GSC_OK);
    gsc_info short_info = GSC_INFO_INIT;
    short_info.struct_size = 16;
    CHECK(gsc_get_info(&short_info, nullptr) == GSC_OK);
    CHECK(short_info.cpu != nullptr);
    CHECK(short_info.cpu_available == nullptr);

    gsc_policy initialised;
    std::memset(&initialised, 0x5a, sizeof initialised);
    CHECK(gsc_policy_init(GSC_POLICY_SIZE, &initialised, nullptr) == GSC_OK);
    const gsc_policy macro = GSC_POLICY_INIT;
    CHECK(same(initialised, macro));
}

/* ---- policies, states, reports ---- */

TEST_CASE("a field of the policy that is out of range is named", "[errors]")
{
#define FIELD(field, value)                                                                        \
    {                                                                                              \
        [](World &w) { w.policy.field = value; }, policy_check, GSC_ERROR_POLICY, 0, -1,           \
            "policy." #field, "must be"                                                            \
    }
    const Row rows[] = {
        FIELD(arithmetic, 4),
        FIELD(init_scale, -1),
        FIELD(init_scale, infinity),
        FIELD(init_scale, nan_value),
        FIELD(init_scale, 1e-310),
        FIELD(growth_factor, 0.5),
        FIELD(growth_factor, -2),
        FIELD(growth_factor, infinity),
        FIELD(growth_factor, nan_value),
        FIELD(backoff_factor, 1.5),
        FIELD(backoff_factor, -0.5),
        FIELD(backoff_factor, nan_value),
        FIELD(growth_rule, 4),
        FIELD(max_scale, -1),
        FIELD(max_scale, nan_value),
        FIELD(min_scale, -1),
        FIELD(min_scale, infinity),
        FIELD(min_scale, nan_value),
        FIELD(ceiling_rule, 4),
        FIELD(floor_rule, 4),
        FIELD(overflow_test, 2),
        FIELD(overflow_reset, 8),
        FIELD(apply_delay, 2),
        FIELD(overflow_tolerance, 1.5),
        FIELD(overflow_tolerance, -0.5),
        FIELD(overflow_tolerance, nan_value),
        FIELD(quirks, 4),
        FIELD(reserved, 1),
        FIELD(target_amax, -1),
        FIELD(target_amax, infinity),
        FIELD(target_amax, nan_value),
        FIELD(mean_decay, 1),
        FIELD(mean_decay, -0.1),
        FIELD(mean_decay, nan_value),
        FIELD(variance_decay, 1),
        FIELD(variance_decay, -0.1),
        FIELD(variance_decay, nan_value),
        FIELD(margin_sigmas, -1),
        FIELD(margin_sigmas, infinity),
        FIELD(margin_sigmas, nan_value),
        FIELD(overflow_log2, infinity),
        FIELD(overflow_log2, nan_value),
    };
#undef FIELD
    for (Row row : rows) {
        check_row(row);
        for (Call call : {state_init, update, set_scale, save}) {
            row.call = call;
            row.argument = call == save ? 0 : 1;
            check_row(row);
        }
    }
    check_row({[](World &w) {
                   w.policy.min_scale = 2;
                   w.policy.max_scale = 1;
               },
               policy_check, GSC_ERROR_POLICY, 0, -1, "policy.min_scale", "at most max_scale"});
    check_row({[](World &w) {
                   w.policy.init_scale = 1e39;
                   w.policy.arithmetic = GSC_ARITHMETIC_F32_ONCE;
               },
               policy_check, GSC_ERROR_POLICY, 0, -1, "policy.init_scale", "arithmetic"});
}

TEST_CASE("the ends of each range are within it", "[errors]")
{
    const Spoil spoils[] = {
        [](World &w) { w.policy.growth_factor = 1; },
        [](World &w) { w.policy.backoff_factor = 1; },
        [](World &w) { w.policy.max_scale = infinity; },
        [](World &w) { w.policy.max_scale = w.policy.min_scale = 4; },
        [](World &w) { w.policy.overflow_tolerance = 1; },
        [](World &w) { w.policy.growth_interval = UINT64_MAX; },
        [](World &w) { w.policy.stall_limit = UINT64_MAX; },
        [](World &w) { w.policy.hysteresis = w.policy.growth_lag = UINT32_MAX; },
        [](World &w) { w.policy.overflow_reset = 7; },
        [](World &w) { w.policy.quirks = 3; },
        [](World &w) { w.policy.growth_rule = w.policy.ceiling_rule = w.policy.floor_rule = 3; },
        [](World &w) { w.policy.mean_decay = std::nextafter(1, 0); },
    };
    for (const Spoil spoil : spoils) {
        World w;
        make(w);
        spoil(w);
        CHECK(policy_check(w, nullptr) == GSC_OK);
        CHECK(update(w, nullptr) == GSC_OK);
    }
}

TEST_CASE("limits and factors must hold in the policy's arithmetic", "[errors]")
{
    const struct {
        Spoil spoil;
        const char *name;
    } rows[] = {
        {[](World &w) { w.policy.max_scale = 1e39; }, "policy.max_scale"},
        {[](World &w) { w.policy.min_scale = 1e-60; }, "policy.min_scale"},
        {[](World &w) { w.policy.growth_factor = 1e39; }, "policy.growth_factor"},
        {[](World &w) { w.policy.backoff_factor = 1e-60; }, "policy.backoff_factor"},
        {[](World &w) { w.policy.target_amax = w.policy.max_scale = 64; }, "policy.ceiling_rule"},
        {[](World &w) { w.policy.target_amax = w.policy.min_scale = 2; }, "policy.floor_rule"},
    };
    for (const auto &row : rows) {
        World w;
        gsc_error err;
        make(w);
        w.policy.arithmetic = GSC_ARITHMETIC_F32;
        w.policy.max_scale = w.policy.min_scale = 0;
        REQUIRE(policy_check(w, nullptr) == GSC_OK);
        row.spoil(w);
        CHECK(policy_check(w, &err) == GSC_ERROR_POLICY);
        CHECK(err.name == std::string(row.name));
    }
}

TEST_CASE("a list whose bytes together exceed memory", "[errors]")
{
    const gsc_tensor half = {reinterpret_cast<void *>(16), UINT64_C(1) << 59, GSC_F64, 0};
    const gsc_tensor list[] = {half, half, half};
    uint64_t size = 0;
    gsc_error err;
    CHECK(gsc_workspace_size(nullptr, list, 3, 0, &size, &err) == GSC_ERROR_COUNT);
    CHECK(err.index == 1);
}

TEST_CASE("an amax that is not a number survives a merge from either side", "[errors]")
{
    gsc_report bad = {}, good = {}, merged;
    bad.amax = nan_value;
    REQUIRE(gsc_merge(nullptr, &bad, &good, &merged, nullptr) == GSC_OK);
    CHECK(std::isnan(merged.amax));
    REQUIRE(gsc_merge(nullptr, &good, &bad, &merged, nullptr) == GSC_OK);
    CHECK(std::isnan(merged.amax));
}

TEST_CASE("a state that no update leads to", "[errors]")
{
#define FIELD(field, value)                                                                        \
    {                                                                                              \
        [](World &w) { w.state.field = value; }, update, GSC_ERROR_STATE, 2, -1, "state." #field,  \
            "gsc_state_init"                                                                       \
    }
    const Row rows[] = {
        FIELD(factor.scale, -1),
        FIELD(factor.scale, nan_value),
        FIELD(factor.scale, 0),
        FIELD(factor.inverse, 3),
        FIELD(next.inverse, 3),
        FIELD(next.scale, -1),
        FIELD(next.scale, nan_value),
        FIELD(good, -1),
        FIELD(steps, -1),
        FIELD(overflows, -1),
        FIELD(stalled, -1),
        FIELD(skipped, -1),
        FIELD(growths, -1),
        FIELD(backoffs, -1),
        FIELD(good, INT64_MAX),
        FIELD(backoffs, INT64_MAX),
        FIELD(mean, infinity),
        FIELD(slow_mean, nan_value),
        FIELD(mean_square, infinity),
        FIELD(mean_start, 1.5),
        FIELD(mean_start, nan_value),
        FIELD(slow_start, -0.5),
    };
#undef FIELD
    for (Row row : rows)
        for (Call call : {update, set_scale, save}) {
            row.call = call;
            row.argument = call == save ? 1 : 2;
            check_row(row);
        }
    check_row({[](World &w) { std::memset(&w.state, 0, sizeof w.state); }, update, GSC_ERROR_STATE,
               2, -1, "state.factor.scale", "gsc_state_init"});
}

TEST_CASE("a report that an update or a clip cannot use", "[errors]")
{
    const Row rows[] = {
        {[](World &w) { w.report.status = GSC_ERROR_FACTOR; }, update, GSC_ERROR_REPORT, 3, -1,
         "report.status", "factor is zero"},
        {[](World &w) {
             w.report.absent = GSC_WANT_NORM;
             w.policy.overflow_test = GSC_OVERFLOW_NORM;
         },
         update, GSC_ERROR_REPORT, 3, -1, "report.sum_squares", "GSC_WANT_NORM"},
        {[](World &w) {
             w.report.absent = GSC_WANT_AMAX;
             w.policy.target_amax = 1;
         },
         update, GSC_ERROR_REPORT, 3, -1, "report.amax", "GSC_WANT_AMAX"},
        {[](World &w) { w.report.amax = infinity; }, update, GSC_ERROR_REPORT, 3, -1, "report.amax",
         "finite"},
        {[](World &w) { w.report.amax = nan_value; }, update, GSC_ERROR_REPORT, 3, -1,
         "report.amax", "finite"},
        {[](World &w) { w.report.amax = -1; }, update, GSC_ERROR_REPORT, 3, -1, "report.amax",
         "not negative"},
        {[](World &w) { w.report.absent = GSC_WANT_NORM; }, clip, GSC_ERROR_REPORT, 1, -1,
         "report.sum_squares", "GSC_WANT_NORM"},
        {[](World &w) { w.report.status = GSC_ERROR_FACTOR; }, clip, GSC_ERROR_REPORT, 1, -1,
         "report.sum_squares", "no norm"},
    };
    for (const Row &row : rows)
        check_row(row);
}

TEST_CASE("saved bytes that cannot be read, a buffer too small, an unknown preset, no CUDA",
          "[errors]")
{
    const Row rows[] = {
        {[](World &w) { w.bytes[40] ^= 1; }, load, GSC_ERROR_CORRUPT, 0, -1, "bytes", "checksum"},
        {[](World &w) { w.bytes[0] = 0; }, load, GSC_ERROR_CORRUPT, 0, -1, "bytes", "GSCSTATE"},
        {[](World &w) { w.bytes_size--; }, load, GSC_ERROR_CORRUPT, 1, -1, "size", "were saved"},
        {[](World &w) { w.bytes_size = 3; }, load, GSC_ERROR_CORRUPT, 1, -1, "size", "too few"},
        {nothing,
         [](World &w, gsc_error *err) {
             return gsc_state_save(&w.policy, &w.state, w.bytes, 10, &w.size, err);
         },
         GSC_ERROR_CAPACITY, 3, -1, "capacity", "the state takes 436"},
        {nothing,
         [](World &w, gsc_error *err) { return gsc_policy_preset("tortch", &w.policy, err); },
         GSC_ERROR_PRESET, 0, -1, "name", "tortch"},
        {nothing, [](World &w, gsc_error *err) { return gsc_policy_preset("", &w.policy, err); },
         GSC_ERROR_PRESET, 0, -1, "name", "gsc_preset_name"},
    };
    for (const Row &row : rows)
        check_row(row);
    gsc_info info = GSC_INFO_INIT;
    REQUIRE(gsc_get_info(&info, nullptr) == GSC_OK);
    if (info.cuda != std::string("available"))
        check_row(
            {nothing,
             [](World &w, gsc_error *err) { return gsc_context_create_cuda(0, &w.context, err); },
             GSC_ERROR_UNAVAILABLE, 0, -1, "device", info.cuda});
}

TEST_CASE("a long name is cut, not overrun", "[errors]")
{
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_error err = {};
    const std::string name(1000, 'x');
    CHECK(gsc_policy_preset(name.c_str(), &policy, &err) == GSC_ERROR_PRESET);
    CHECK(std::memchr(err.message, 0, sizeof err.message) != nullptr);
    CHECK(std::string(err.message).find("gsc_preset_name") != std::string::npos);
}

/* ---- status, version, dtypes ---- */

TEST_CASE("every status has words of its own", "[errors]")
{
    std::vector<std::string> words;
    for (gsc_status status = 0; status >= GSC_ERROR_DEVICE; status--) {
        words.push_back(gsc_status_string(status));
        CHECK(words.back() != "unknown status");
        CHECK(std::count(words.begin(), words.end(), words.back()) == 1);
    }
    for (gsc_status none : {1, GSC_ERROR_DEVICE - 1, INT32_MIN, INT32_MAX})
        CHECK(std::string(gsc_status_string(none)) == "unknown status");
    CHECK(gsc_version() == GSC_VERSION);
}

TEST_CASE("the size of a dtype, 0 for none", "[errors]")
{
    const std::pair<uint32_t, uint32_t> rows[] = {
        {GSC_F32, 4},  {GSC_F64, 8},       {GSC_F16, 2},
        {GSC_BF16, 2}, {GSC_F8_E4M3FN, 1}, {GSC_F8_E5M2, 1},
        {GSC_CB16, 2}, {GSC_COMPLEX64, 8}, {GSC_COMPLEX128, 16}};
    for (const auto &[dtype, size] : rows)
        CHECK(gsc_dtype_size(dtype) == size);
    for (uint32_t none : {0u, static_cast<uint32_t>(std::size(rows)) + 1, UINT32_MAX})
        CHECK(gsc_dtype_size(none) == 0);
}
