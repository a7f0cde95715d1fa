// SPDX-License-Identifier: MIT
// The policy, field by field: a row says which scales a string of steps leads to ('.' a good step,
// 'x' an overflow). Also limits, events, arithmetic, prediction, factors and merged reports.
#include <cfenv>
#include <cfloat>
#include <set>

#include "support.hpp"

namespace {

constexpr double infinity = HUGE_VAL;
constexpr uint32_t grew = GSC_EVENT_GREW, backed_off = GSC_EVENT_BACKED_OFF,
                   skipped = GSC_EVENT_SKIPPED, absorbed = GSC_EVENT_ABSORBED,
                   at_ceiling = GSC_EVENT_AT_CEILING, at_floor = GSC_EVENT_AT_FLOOR,
                   stalled = GSC_EVENT_BACKOFF_FAILED, stopped = GSC_EVENT_STOPPED,
                   stale = GSC_EVENT_STALE;

/* A policy that is written down: zeros.init_scale(3).hysteresis(2). */
struct Policy : gsc_policy {
#define FIELD(type, field)                                                                         \
    Policy field(type value) const                                                                 \
    {                                                                                              \
        Policy changed = *this;                                                                    \
        changed.gsc_policy::field = value;                                                         \
        return changed;                                                                            \
    }
    FIELD(double, init_scale)
    FIELD(double, growth_factor)
    FIELD(double, backoff_factor)
    FIELD(uint64_t, growth_interval)
    FIELD(uint32_t, growth_rule)
    FIELD(uint32_t, growth_extra_steps)
    FIELD(double, max_scale)
    FIELD(double, min_scale)
    FIELD(uint32_t, ceiling_rule)
    FIELD(uint32_t, floor_rule)
    FIELD(uint32_t, overflow_test)
    FIELD(uint32_t, hysteresis)
    FIELD(uint32_t, overflow_reset)
    FIELD(uint32_t, apply_delay)
    FIELD(double, overflow_tolerance)
    FIELD(uint64_t, max_failed_backoffs)
    FIELD(uint32_t, quirks)
    FIELD(uint32_t, arithmetic)
    FIELD(double, target_amax)
    FIELD(double, log2_decay)
    FIELD(double, log2_slow_decay)
    FIELD(double, log2_margin_sigmas)
    FIELD(double, overflow_sample_log2)
    FIELD(double, guard_norm)
    FIELD(double, guard_ratio)
    FIELD(double, guard_sigmas)
    FIELD(double, guard_decay)
    FIELD(double, guard_init_mean)
    FIELD(uint64_t, guard_warmup)
    FIELD(uint64_t, guard_max_in_a_row)
    FIELD(uint32_t, guard_sample)
    FIELD(uint32_t, guard_flags)
#undef FIELD
};

const Policy zeros = {GSC_POLICY_INIT};
/* From 16, doubled every second good step, halved by an overflow. */
const Policy usual = zeros.init_scale(16).growth_factor(2).backoff_factor(0.5).growth_interval(2);

gsc_policy preset(const std::string &name)
{
    gsc_policy p = GSC_POLICY_INIT;
    REQUIRE(gsc_policy_preset(name.c_str(), &p, nullptr) == GSC_OK);
    return p;
}

gsc_state start(const gsc_policy &p)
{
    gsc_state state;
    REQUIRE(gsc_state_init(nullptr, &p, &state, nullptr) == GSC_OK);
    return state;
}

gsc_state updated(const gsc_policy &p, const gsc_state &state, const gsc_report &report)
{
    gsc_state out;
    REQUIRE(gsc_state_update(nullptr, &p, &state, &report, &out, nullptr) == GSC_OK);
    return out;
}

gsc_report report_of(char step)
{
    gsc_report report = measured;
    report.overflow = step == 'x';
    report.found_inf = static_cast<float>(report.overflow);
    return report;
}

gsc_report report_with_amax(double amax)
{
    gsc_report report = measured;
    report.amax = amax;
    return report;
}

/* The states after each step. */
std::vector<gsc_state> states(const gsc_policy &p, gsc_state from, const std::string &steps)
{
    std::vector<gsc_state> all;
    for (char step : steps)
        all.push_back(from = updated(p, from, report_of(step)));
    return all;
}

std::vector<double> scales(const gsc_policy &p, const gsc_state &from, const std::string &steps)
{
    std::vector<double> all;
    for (const gsc_state &s : states(p, from, steps))
        all.push_back(s.factor.scale);
    return all;
}

std::vector<uint32_t> events(const gsc_policy &p, const std::string &steps)
{
    std::vector<uint32_t> all;
    for (const gsc_state &s : states(p, start(p), steps))
        all.push_back(s.events);
    return all;
}

/* The largest float that is at most x, and the smallest that is at least x. */
float below(double x)
{
    const float near = static_cast<float>(x);
    return static_cast<double>(near) > x ? std::nextafter(near, -HUGE_VALF) : near;
}

float above(double x)
{
    return -below(-x);
}

struct ScaleRow {
    const char *rule;
    gsc_policy policy;
    const char *steps;
    std::vector<double> expected;
};

template <size_t n> void check_scales(const ScaleRow (&rows)[n])
{
    for (const ScaleRow &row : rows) {
        CAPTURE(row.rule, row.steps);
        CHECK(scales(row.policy, start(row.policy), row.steps) == row.expected);
    }
}

struct EventRow {
    const char *rule;
    gsc_policy policy;
    const char *steps;
    std::vector<uint32_t> expected;
};

template <size_t n> void check_events(const EventRow (&rows)[n])
{
    for (const EventRow &row : rows) {
        CAPTURE(row.rule, row.steps);
        CHECK(events(row.policy, row.steps) == row.expected);
    }
}

} // namespace

/* ---- growth ---- */

TEST_CASE("a policy says what it does, and what its zeros stand for", "[policy]")
{
    const struct {
        const char *preset;
        uint32_t traits;
        double init_scale, growth, backoff;
        uint32_t hysteresis;
    } rows[] = {
        {"torch", GSC_TRAIT_MOVES, 65536, 2, 0.5, 1},
        {"none", 0, 1, 1, 1, 1},
        {"static", 0, 65536, 1, 1, 1},
        {"guard", GSC_TRAIT_GUARDS | GSC_TRAIT_NEEDS_NORM, 1, 1, 1, 1},
        {"fairseq", GSC_TRAIT_MOVES | GSC_TRAIT_NEEDS_NORM, 32768, 2, 0.5, 1},
        {"openseq2seq_logmax", GSC_TRAIT_MOVES | GSC_TRAIT_NEEDS_AMAX, 1, 1, 1, 1},
        {"megatron", GSC_TRAIT_MOVES, 4294967296, 2, 0.5, 2},
    };
    for (const auto &row : rows) {
        CAPTURE(row.preset);
        gsc_policy p = preset(row.preset), out = GSC_POLICY_INIT;
        uint32_t traits = ~0u;
        REQUIRE(gsc_policy_resolve(&p, &out, &traits, nullptr) == GSC_OK);
        CHECK(traits == row.traits);
        CHECK((out.growth_factor == row.growth && out.backoff_factor == row.backoff));
        CHECK((out.init_scale == row.init_scale && out.hysteresis == row.hysteresis));
        REQUIRE(gsc_policy_resolve(&p, &p, &traits, nullptr) == GSC_OK);
        CHECK(same(p, out));
        REQUIRE(gsc_policy_resolve(&p, &out, &traits, nullptr) == GSC_OK);
        CHECK(same(p, out));
    }
}

TEST_CASE("presets that no recording holds have these numbers", "[policy]")
{
    gsc_policy none = GSC_POLICY_INIT, recommended = none, fixed = none, guard = none, olmo = none;
    fixed.init_scale = recommended.init_scale = 65536;
    recommended.growth_factor = 2;
    recommended.backoff_factor = 0.5;
    recommended.growth_interval = 2000;
    recommended.max_scale = 16777216;
    recommended.min_scale = 0.00006103515625;
    recommended.ceiling_rule = recommended.floor_rule = GSC_LIMIT_CLAMP_UNLESS_PAST;
    recommended.overflow_reset = GSC_RESET_ON_GROWTH | GSC_RESET_ON_BACKOFF;
    recommended.arithmetic = GSC_ARITHMETIC_F64_TO_F32;
    recommended.max_failed_backoffs = guard.max_failed_backoffs = 10;
    guard.guard_ratio = 10;
    guard.guard_max_in_a_row = 10;
    guard.guard_decay = 0.99;
    guard.guard_warmup = 100;
    guard.guard_sample = GSC_SAMPLE_THRESHOLD;
    olmo.guard_sigmas = 6;
    olmo.guard_decay = 127.0 / 129;
    olmo.guard_warmup = 63;
    const std::pair<const char *, gsc_policy> presets[] = {{"recommended", recommended},
                                                           {"none", none},
                                                           {"static", fixed},
                                                           {"guard", guard},
                                                           {"olmo_like", olmo}};
    for (const auto &[name, expected] : presets) {
        CAPTURE(name);
        const gsc_policy p = preset(name);
        CHECK(std::memcmp(&p, &expected, sizeof p) == 0); // which has no padding
    }
}

TEST_CASE("factors and interval", "[policy]")
{
    const ScaleRow rows[] = {
        {"a growth every second good step", usual, "....", {16, 32, 32, 64}},
        {"an overflow starts the count anew", usual, ".x..", {16, 8, 8, 16}},
        {"every overflow backs off", usual, "xxx", {8, 4, 2}},
        {"interval 0 never grows", usual.growth_interval(0), "...x", {16, 16, 16, 8}},
        {"init_scale 0 is 1", usual.init_scale(0), "..", {1, 2}},
        {"growth_factor 0 is 1", usual.growth_factor(0), "..", {16, 16}},
        {"growth_factor", usual.growth_factor(3), "..", {16, 48}},
        {"backoff_factor", usual.backoff_factor(0.25), "x.", {4, 4}},
        {"backoff_factor 1 keeps the scale", usual.backoff_factor(1), "x.", {16, 16}},
        {"backoff_factor 0 divides by growth_factor",
         usual.init_scale(3).growth_factor(10).backoff_factor(0),
         "x",
         {3 / 10.0}}, // 3 * 0.1 is another double
        {"a policy of zeros is a scale of 1", zeros, ".x.x..", {1, 1, 1, 1, 1, 1}},
        {"init_scale alone is static", zeros.init_scale(100), ".x..", {100, 100, 100, 100}},
    };
    check_scales(rows);
}

TEST_CASE("growth_rule and growth_extra_steps", "[policy]")
{
    const ScaleRow rows[] = {
        {"REACHED with a lag counts one more, every time",
         usual.growth_extra_steps(1),
         "......",
         {16, 16, 32, 32, 32, 64}},
        {"EXACT with a lag, too",
         usual.growth_rule(GSC_GROWTH_EXACT).growth_extra_steps(1),
         "......",
         {16, 16, 32, 32, 32, 64}},
        {"EVERY pays the lag at the start and after an overflow only",
         usual.growth_rule(GSC_GROWTH_EVERY).growth_extra_steps(1),
         ".....x...",
         {16, 16, 32, 32, 64, 32, 32, 32, 64}},
        {"ALL_STEPS counts absorbed overflows",
         usual.growth_rule(GSC_GROWTH_ALL_STEPS).growth_interval(3).hysteresis(2),
         "x.....",
         {16, 16, 32, 32, 32, 64}},
        {"REACHED does not",
         usual.growth_interval(3).hysteresis(2),
         "x.....",
         {16, 16, 16, 32, 32, 32}},
        {"ALL_STEPS starts anew at a backoff",
         usual.growth_rule(GSC_GROWTH_ALL_STEPS).growth_interval(3),
         "..x...",
         {16, 16, 8, 8, 8, 16}},
        {"ALL_STEPS grows after an absorbed overflow",
         usual.growth_rule(GSC_GROWTH_ALL_STEPS).hysteresis(2),
         ".x",
         {16, 32}},
    };
    check_scales(rows);
}

TEST_CASE("a count already past the interval", "[policy]")
{
    struct Row {
        const char *rule;
        uint32_t growth_rule;
        const char *steps;
        std::vector<double> expected;
    };
    const Row rows[] = {
        {"REACHED grows at once", GSC_GROWTH_REACHED, "...", {32, 32, 64}},
        {"EXACT waits for an overflow", GSC_GROWTH_EXACT, "....x..", {16, 16, 16, 16, 8, 8, 16}},
        {"EVERY grows at the next multiple", GSC_GROWTH_EVERY, "....", {32, 32, 64, 64}},
        {"ALL_STEPS grows at once", GSC_GROWTH_ALL_STEPS, "...", {32, 32, 64}},
    };
    for (const Row &row : rows) {
        gsc_policy p = usual.growth_interval(100);
        p.growth_rule = row.growth_rule;
        const gsc_state past = states(p, start(p), ".....").back();
        p.growth_interval = 2;
        CAPTURE(row.rule);
        CHECK(scales(p, past, row.steps) == row.expected);
    }
}

/* ---- limits ---- */

TEST_CASE("a ceiling", "[policy]")
{
    const ScaleRow rows[] = {
        {"CLAMP ends at the limit", usual.max_scale(48), "....", {16, 32, 32, 48}},
        {"CLAMP leaves a start above it until a growth", usual.max_scale(8), ".x..", {16, 8, 8, 8}},
        {"CLAMP lowers a start above it at the first growth", usual.max_scale(8), "..", {16, 8}},
        {"ENFORCE lowers the start",
         usual.max_scale(10).ceiling_rule(GSC_LIMIT_ENFORCE),
         ".x...",
         {10, 5, 5, 10, 10}},
        {"REJECT drops a growth that would pass it",
         usual.max_scale(48).ceiling_rule(GSC_LIMIT_REJECT),
         "....",
         {16, 32, 32, 32}},
        {"REJECT drops one that would reach it, too",
         usual.max_scale(32).ceiling_rule(GSC_LIMIT_REJECT),
         "....",
         {16, 16, 16, 16}},
        {"REJECT leaves a start above it alone",
         usual.max_scale(8).ceiling_rule(GSC_LIMIT_REJECT),
         "..x",
         {16, 16, 8}},
        {"STOP drops it",
         usual.max_scale(48).ceiling_rule(GSC_LIMIT_STOP),
         "....",
         {16, 32, 32, 32}},
        {"CLAMP_UNLESS_PAST ends at the limit",
         usual.max_scale(48).ceiling_rule(GSC_LIMIT_CLAMP_UNLESS_PAST),
         "....",
         {16, 32, 32, 48}},
        {"CLAMP_UNLESS_PAST leaves a start above it until backoffs end below it",
         usual.max_scale(6).ceiling_rule(GSC_LIMIT_CLAMP_UNLESS_PAST),
         "..xx..",
         {16, 16, 8, 4, 4, 6}},
        {"no ceiling is infinity, which CLAMP ends at",
         usual.init_scale(0x1p1023),
         "....x",
         {0x1p1023, infinity, infinity, infinity, infinity}},
        {"and REJECT stays below",
         usual.init_scale(0x1p1023).ceiling_rule(GSC_LIMIT_REJECT),
         "..x",
         {0x1p1023, 0x1p1023, 0x1p1022}},
        {"a dropped growth counts anew",
         usual.max_scale(32).ceiling_rule(GSC_LIMIT_REJECT).growth_rule(GSC_GROWTH_EXACT),
         "...x..",
         {16, 16, 16, 8, 8, 16}},
    };
    check_scales(rows);
}

TEST_CASE("a floor", "[policy]")
{
    const ScaleRow rows[] = {
        {"CLAMP ends at the limit", usual.min_scale(6), "xxx", {8, 6, 6}},
        {"CLAMP raises a start below it at the first backoff", usual.min_scale(50), ".x", {16, 50}},
        {"ENFORCE raises a start below it after the first update",
         usual.min_scale(50).floor_rule(GSC_LIMIT_ENFORCE),
         ".x",
         {50, 50}},
        {"REJECT drops a backoff that would pass it",
         usual.min_scale(6).floor_rule(GSC_LIMIT_REJECT),
         "xxx",
         {8, 8, 8}},
        {"REJECT drops one that would reach it, too",
         usual.min_scale(8).floor_rule(GSC_LIMIT_REJECT),
         "xx",
         {16, 16}},
        {"REJECT leaves a start below it alone",
         usual.min_scale(50).floor_rule(GSC_LIMIT_REJECT),
         ".x",
         {16, 16}},
        {"STOP drops it", usual.min_scale(6).floor_rule(GSC_LIMIT_STOP), "xxx", {8, 8, 8}},
        {"CLAMP_UNLESS_PAST ends at the limit",
         usual.min_scale(6).floor_rule(GSC_LIMIT_CLAMP_UNLESS_PAST),
         "xxx",
         {8, 6, 6}},
        {"CLAMP_UNLESS_PAST leaves a start below it until growths end above it",
         usual.min_scale(20).floor_rule(GSC_LIMIT_CLAMP_UNLESS_PAST),
         "xx..x",
         {16, 16, 16, 32, 20}},
        {"no floor ends at 0, which stays",
         usual.init_scale(0x1p-1000).backoff_factor(0x1p-74).growth_interval(1),
         "xxx.",
         {0x1p-1074, 0, 0, 0}},
    };
    check_scales(rows);
    const gsc_policy raised = usual.min_scale(50).floor_rule(GSC_LIMIT_ENFORCE);
    CHECK(start(raised).factor.scale == 16); // the start itself is not touched
}

TEST_CASE("a limit that is no number of the policy's format is never passed", "[policy]")
{
    const gsc_policy limits = usual.init_scale(1).max_scale(3.3).min_scale(0.1);
    for (uint32_t arithmetic : {GSC_ARITHMETIC_F64, GSC_ARITHMETIC_F64_TO_F32, GSC_ARITHMETIC_F32,
                                GSC_ARITHMETIC_F32_FLUSH})
        for (uint32_t rule : {GSC_LIMIT_CLAMP, GSC_LIMIT_ENFORCE, GSC_LIMIT_CLAMP_UNLESS_PAST}) {
            CAPTURE(arithmetic, rule);
            gsc_policy p = limits;
            p.arithmetic = arithmetic;
            p.ceiling_rule = p.floor_rule = rule;
            const bool in_double = arithmetic == GSC_ARITHMETIC_F64;
            // The nearest floats of 3.4 and 0.7 are beyond them, those of 3.3 and 0.1 are not.
            for (double most : {3.3, 3.4}) {
                p.max_scale = most;
                const double top = scales(p, start(p), "......").back();
                CHECK(top == (in_double ? most : static_cast<double>(below(most))));
            }
            for (double least : {0.1, 0.7}) {
                p.min_scale = least;
                const double bottom = scales(p, start(p), "xxxxx").back();
                CHECK(bottom == (in_double ? least : static_cast<double>(above(least))));
            }
            if (rule != GSC_LIMIT_ENFORCE)
                continue;
            p.init_scale = 100;
            CHECK(start(p).factor.scale <= p.max_scale);
            // No float is both at least and at most this.
            p.min_scale = p.max_scale = 0.1;
            CHECK(gsc_policy_check(&p, nullptr) == (in_double ? GSC_OK : GSC_ERROR_POLICY));
        }
}

/* ---- absorbed overflows ---- */

TEST_CASE("hysteresis and overflow_reset", "[policy]")
{
    const ScaleRow rows[] = {
        {"0 is 1", usual.hysteresis(0), "xx", {8, 4}},
        {"1 backs off at once", usual.hysteresis(1), "xx", {8, 4}},
        {"3 absorbs two, then no more", usual.hysteresis(3), "xxxx", {16, 16, 8, 4}},
        {"good steps do not refill it", usual.hysteresis(2), "x.x", {16, 16, 8}},
        {"ON_GOOD_STEP does",
         usual.hysteresis(2).growth_interval(0).overflow_reset(GSC_RESET_ON_GOOD_STEP),
         "x.x.xx",
         {16, 16, 16, 16, 16, 8}},
        {"a growth does not refill it", usual.hysteresis(2), "xx..x", {16, 8, 8, 16, 8}},
        {"ON_GROWTH does",
         usual.hysteresis(2).overflow_reset(GSC_RESET_ON_GROWTH),
         "xx..xx",
         {16, 8, 8, 16, 16, 8}},
        {"ON_BACKOFF does at a backoff",
         usual.hysteresis(2).overflow_reset(GSC_RESET_ON_BACKOFF),
         "xxxx",
         {16, 8, 8, 4}},
    };
    check_scales(rows);
}

TEST_CASE("overflow_tolerance", "[policy]")
{
    const ScaleRow rows[] = {
        {"a share up to it is absorbed, this step included",
         usual.overflow_tolerance(0.5).growth_interval(0),
         ".xx",
         {16, 16, 8}},
        {"a first step that overflows is a share of 1", usual.overflow_tolerance(0.5), "x", {8}},
        {"TOLERANCE_EXCLUSIVE: a share equal to it is not",
         usual.overflow_tolerance(0.5).growth_interval(0).quirks(GSC_QUIRK_TOLERANCE_EXCLUSIVE),
         "..x.x",
         {16, 16, 16, 16, 16}},
        {"TOLERANCE_EXCLUSIVE: exactly half",
         usual.overflow_tolerance(0.5).growth_interval(0).quirks(GSC_QUIRK_TOLERANCE_EXCLUSIVE),
         ".x",
         {16, 8}},
        {"the steps are those since the last change",
         usual.overflow_tolerance(0.5).overflow_reset(GSC_RESET_ON_GROWTH),
         "..x",
         {16, 32, 16}},
    };
    check_scales(rows);
}

/* ---- the rest of the fields ---- */

TEST_CASE("apply_delay puts a new scale in force one update later", "[policy]")
{
    const ScaleRow rows[] = {
        {"in force", usual.apply_delay(1), "x....", {16, 8, 8, 16, 16}},
    };
    check_scales(rows);
    const gsc_policy p = usual.apply_delay(1);
    gsc_state before = start(p);
    CHECK(same(before.next, before.factor));
    std::vector<double> newest;
    for (const gsc_state &s : states(p, before, "x....")) {
        CHECK(same(s.factor, before.next));
        CHECK(s.next.generation == before.next.generation + 1);
        newest.push_back(s.next.scale);
        before = s;
    }
    CHECK(newest == std::vector<double>{8, 8, 16, 16, 32});
}

TEST_CASE("without apply_delay the newest scale is the one in force", "[policy]")
{
    const gsc_policy p = usual;
    for (const gsc_state &s : states(p, start(p), ".x...x"))
        CHECK(same(s.next, s.factor));
}

TEST_CASE("OVERFLOW_IS_GOOD counts an overflow once more, as a good step", "[policy]")
{
    const ScaleRow rows[] = {
        {"without", usual, "x..", {8, 8, 16}},
        {"with", usual.quirks(GSC_QUIRK_OVERFLOW_IS_GOOD), "x..", {8, 16, 16}},
        {"a growth right after the backoff",
         usual.quirks(GSC_QUIRK_OVERFLOW_IS_GOOD).growth_interval(1),
         "xx",
         {16, 16}},
    };
    check_scales(rows);
}

TEST_CASE("a policy with float arithmetic computes scales in float", "[policy]")
{
    gsc_policy p = usual.init_scale(0.7).growth_factor(1.1).backoff_factor(0).growth_interval(1);
    const std::string steps = "....x.xx.....x....xxxx";
    double f64_scale = 0.7, once_scale = static_cast<double>(0.7f);
    float f32_scale = 0.7f;
    std::vector<double> in_f64, once, in_f32;
    for (char step : steps) {
        const bool back = step == 'x';
        f64_scale = back ? f64_scale / 1.1 : f64_scale * 1.1;
        const double exact = back ? once_scale / 1.1 : once_scale * 1.1;
        once_scale = static_cast<double>(static_cast<float>(exact));
        f32_scale = back ? f32_scale / 1.1f : f32_scale * 1.1f;
        in_f64.push_back(f64_scale);
        once.push_back(once_scale);
        in_f32.push_back(static_cast<double>(f32_scale));
    }
    CHECK(scales(p, start(p), steps) == in_f64);
    p.arithmetic = GSC_ARITHMETIC_F64_TO_F32;
    CHECK(scales(p, start(p), steps) == once);
    p.arithmetic = GSC_ARITHMETIC_F32;
    CHECK(scales(p, start(p), steps) == in_f32);
    p.arithmetic = GSC_ARITHMETIC_F32_FLUSH;
    CHECK(scales(p, start(p), steps) == in_f32);
    CHECK(once != in_f32);
}

TEST_CASE("float arithmetic at the ends of float's range", "[policy]")
{
    const ScaleRow rows[] = {
        {"F32 keeps subnormal scales",
         usual.init_scale(0x1p-125).arithmetic(GSC_ARITHMETIC_F32),
         "xxx",
         {0x1p-126, 0x1p-127, 0x1p-128}},
        {"F32_FLUSH does not",
         usual.init_scale(0x1p-125).arithmetic(GSC_ARITHMETIC_F32_FLUSH),
         "xxx",
         {0x1p-126, 0, 0}},
        {"F64_TO_F32: half of the smallest float is 0",
         usual.init_scale(0x1p-148).arithmetic(GSC_ARITHMETIC_F64_TO_F32),
         "xx",
         {0x1p-149, 0}},
        {"a growth past the largest float is infinity",
         usual.init_scale(0x1p127).arithmetic(GSC_ARITHMETIC_F32),
         "..x",
         {0x1p127, infinity, infinity}},
        {"which REJECT drops",
         usual.init_scale(0x1p127)
             .arithmetic(GSC_ARITHMETIC_F64_TO_F32)
             .ceiling_rule(GSC_LIMIT_REJECT),
         "..x",
         {0x1p127, 0x1p127, 0x1p126}},
    };
    check_scales(rows);
}

/* ---- events and totals ---- */

TEST_CASE("events say what an update did", "[policy]")
{
    const EventRow rows[] = {
        {"growth", usual, "...", {0, grew, 0}},
        {"backoff", usual, "x.", {skipped | backed_off, 0}},
        {"hysteresis", usual.hysteresis(2), "xx", {skipped | absorbed, skipped | backed_off}},
        {"tolerance", usual.overflow_tolerance(0.5), ".x", {0, skipped | absorbed}},
        {"ceiling CLAMP", usual.max_scale(33), "....", {0, grew, 0, grew | at_ceiling}},
        {"ceiling reached", usual.max_scale(32), "....", {0, grew | at_ceiling, 0, at_ceiling}},
        {"a growth that ends at a lower ceiling",
         usual.max_scale(8),
         "..",
         {0, backed_off | at_ceiling}},
        {"ceiling REJECT",
         usual.max_scale(32).ceiling_rule(GSC_LIMIT_REJECT),
         "..",
         {0, at_ceiling}},
        {"ceiling STOP",
         usual.max_scale(32).ceiling_rule(GSC_LIMIT_STOP),
         "...",
         {0, at_ceiling | stopped, 0}},
        {"floor CLAMP stalls only when the scale is there",
         usual.min_scale(8),
         "xx.",
         {skipped | backed_off | at_floor, skipped | at_floor | stalled, 0}},
        {"a backoff that ends at a higher floor",
         usual.min_scale(50),
         "x",
         {skipped | grew | at_floor}},
        {"floor REJECT",
         usual.min_scale(8).floor_rule(GSC_LIMIT_REJECT),
         "x",
         {skipped | at_floor | stalled}},
        {"floor STOP",
         usual.min_scale(8).floor_rule(GSC_LIMIT_STOP),
         "x",
         {skipped | at_floor | stalled | stopped}},
        {"static", usual.growth_factor(1).backoff_factor(1), "..x", {0, 0, skipped | stalled}},
        {"OVERFLOW_IS_GOOD: a backoff and a growth in one",
         usual.quirks(GSC_QUIRK_OVERFLOW_IS_GOOD).growth_interval(1),
         "x",
         {skipped | stalled}},
        {"apply_delay: when the scale moves, not when it is in force",
         usual.apply_delay(1),
         "x.",
         {skipped | backed_off, 0}},
    };
    check_events(rows);
}

TEST_CASE(
    "max_failed_backoffs stops at that many overflows in a row that could not lower the scale",
    "[policy]")
{
    constexpr uint32_t stuck = skipped | stalled;
    const EventRow rows[] = {
        {"0 never", usual.growth_factor(1).backoff_factor(1), "xxx", {stuck, stuck, stuck}},
        {"2, and a good step ends the row",
         usual.growth_factor(1).backoff_factor(1).growth_interval(0).max_failed_backoffs(2),
         "xxx.x.x",
         {stuck, stuck | stopped, stuck | stopped, 0, stuck, 0, stuck}},
        {"an overflow that lowers the scale is no stall",
         usual.max_failed_backoffs(1),
         "xx",
         {skipped | backed_off, skipped | backed_off}},
        {"an infinite scale stalls",
         usual.init_scale(0x1p1023).growth_interval(1).max_failed_backoffs(1),
         ".x",
         {grew | at_ceiling, stuck | stopped}},
    };
    check_events(rows);
}

TEST_CASE("growths and backoffs are the updates that moved the scale", "[policy]")
{
    const gsc_policy p = usual.min_scale(8).max_scale(32).hysteresis(1);
    const gsc_state s = states(p, start(p), "....xxx").back(); // 16, 32, 32, 16, 8, 8
    CHECK(s.total_growths == 1);
    CHECK(s.total_backoffs == 2);
    CHECK(s.total_overflows == 3);
}

TEST_CASE("an absorbed overflow does not stall, as it tried nothing", "[policy]")
{
    const gsc_policy p =
        usual.init_scale(8).min_scale(8).hysteresis(2).overflow_reset(GSC_RESET_ON_BACKOFF);
    CHECK(states(p, start(p), "xx").back().events == (skipped | at_floor | stalled));
    CHECK(states(p, start(p), "xxx").back().events == (skipped | absorbed));
}

TEST_CASE("an overflow that lowers the scale ends a row of stalls", "[policy]")
{
    const gsc_policy stuck = usual.backoff_factor(1);
    const gsc_state s = states(stuck, start(stuck), "xxx").back();
    CHECK(s.failed_backoffs == 3);
    CHECK(states(usual, s, "x").back().failed_backoffs == 0);
    CHECK(states(usual, s, "x").back().events == (skipped | backed_off));
}

TEST_CASE("totals count from the start, the serial every update from 1", "[policy]")
{
    const gsc_policy p = usual.hysteresis(2);
    const gsc_state s = states(p, start(p), "..xx.x..").back();
    CHECK(s.total_growths == 2);
    CHECK(s.total_backoffs == 2);
    CHECK(s.total_overflows == 3);
    CHECK(s.factor.generation == 9);
    CHECK(start(p).factor.generation == 1);
}

TEST_CASE("a factor holds scale and inverse, as doubles and rounded", "[policy]")
{
    for (double scale : {1.0, 3.0, 65536.0, 3e38, 1e-38, 1e39, 1e-42, 1e-300}) {
        gsc_policy p = usual.growth_interval(0);
        p.init_scale = scale;
        gsc_factor expected = {scale, 1 / scale, static_cast<float>(scale),
                               static_cast<float>(1 / scale), 0};
        const bool has_floats = scale >= 1e-38 && scale <= 3e38; // of scale and inverse
        gsc_factor factor = {};
        CHECK(gsc_factor_init(scale, &factor, nullptr) == (has_floats ? GSC_OK : GSC_ERROR_VALUE));
        CHECK(same(factor, has_floats ? expected : gsc_factor{}));
        expected.generation = 1;
        CHECK(same(start(p).factor, expected));
        expected.generation = 2;
        CHECK(same(updated(p, start(p), report_of('.')).factor, expected));
    }
}

TEST_CASE("a factor times k: the loss by k times the scale, the gradients by a k-th", "[policy]")
{
    for (double scale : {1.0, 3.0, 65536.0, 1e39})
        for (double by : {1.0, 7.0, 0.125, 1e-30}) {
            gsc_factor factor = {}, product = {};
            factor.scale = scale;
            factor.inverse = 1 / scale;
            factor.generation = 5;
            const double inverse = 1 / scale / by;
            const gsc_factor expected = {scale * by, inverse, static_cast<float>(scale * by),
                                         static_cast<float>(inverse), 5};
            CHECK(gsc_factor_multiply(nullptr, &factor, by, &product, nullptr) == GSC_OK);
            CHECK(gsc_factor_multiply(nullptr, &factor, by, &factor, nullptr) == GSC_OK);
            CHECK(same(product, expected));
            CHECK(same(factor, expected));
        }
}

TEST_CASE("update may write over its input", "[policy]")
{
    const gsc_policy p = preset("recommended");
    gsc_state state = start(p);
    const gsc_report overflow = report_of('x');
    const gsc_state expected = updated(p, state, overflow);
    CHECK(gsc_state_update(nullptr, &p, &state, &overflow, &state, nullptr) == GSC_OK);
    CHECK(same(state, expected));
}

/* ---- what is an overflow ---- */

TEST_CASE("any found_inf but 0 is an overflow", "[policy]")
{
    struct Row {
        float found_inf;
        int32_t overflow;
        bool expected;
    };
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Row rows[] = {{0, 0, false},  {-0.0f, 0, false}, {1, 1, true},
                        {1, 0, true},   {0, 1, true},      {2, 0, true},
                        {nan, 0, true}, {0, 3, true},      {HUGE_VALF, 0, true}};
    const gsc_policy p = usual;
    for (const Row &row : rows) {
        gsc_report report = measured;
        report.found_inf = row.found_inf;
        report.overflow = row.overflow;
        CAPTURE(row.found_inf, row.overflow);
        CHECK(updated(p, start(p), report).events == (row.expected ? skipped | backed_off : 0));
    }
}

TEST_CASE("the norm test takes a sum of squares above the largest float as overflow", "[policy]")
{
    const double most = static_cast<double>(FLT_MAX);
    const std::pair<double, bool> rows[] = {
        {0, false},       {1e30, false}, {most, false}, {std::nextafter(most, infinity), true},
        {infinity, true}, {NAN, true}};
    gsc_policy p = usual;
    for (const auto &[sum_squares, expected] : rows) {
        gsc_report report = measured;
        report.sum_squares = sum_squares;
        CAPTURE(sum_squares);
        p.overflow_test = GSC_TEST_NORM;
        CHECK(updated(p, start(p), report).total_overflows == expected);
        p.overflow_test = GSC_TEST_ELEMENT;
        CHECK(updated(p, start(p), report).total_overflows == 0);
    }
    p.overflow_test = GSC_TEST_NORM;
    CHECK(updated(p, start(p), report_of('x')).total_overflows == 1);
}

TEST_CASE("a report that lacks what the policy judges by is refused, unless it overflowed",
          "[policy]")
{
    const gsc_policy by_norm = usual.overflow_test(GSC_TEST_NORM), by_amax = usual.target_amax(1),
                     plain = usual;
    const auto status = [](const gsc_policy &p, uint32_t absent, char step = '.') {
        gsc_report report = report_of(step);
        report.measured = want_all & ~absent;
        gsc_state s = start(p);
        return gsc_state_update(nullptr, &p, &s, &report, &s, nullptr);
    };
    CHECK(status(by_norm, GSC_WANT_NORM) == GSC_ERROR_REPORT);
    CHECK(status(by_norm, want_all & ~GSC_WANT_NORM) == GSC_OK);
    CHECK(status(by_norm, want_all, 'x') == GSC_OK);
    CHECK(status(by_amax, GSC_WANT_AMAX) == GSC_ERROR_REPORT);
    CHECK(status(by_amax, want_all & ~GSC_WANT_AMAX) == GSC_OK);
    CHECK(status(by_amax, want_all, 'x') == GSC_OK);
    CHECK(status(plain, want_all) == GSC_OK);
}

/* ---- serials ---- */

TEST_CASE("a report of another factor than the one in force is stale, and counts all the same",
          "[policy]")
{
    const gsc_policy plain = usual, delayed = usual.apply_delay(1);
    for (const gsc_policy &p : {plain, delayed}) {
        const gsc_state s = states(p, start(p), ".x.").back();
        struct Row {
            const char *what;
            uint64_t serial;
            bool is_stale;
        };
        const Row rows[] = {
            {"of the factor in force", s.factor.generation, false},
            {"unknown", 0, false},
            {"late", s.factor.generation - 1, true},
            {"of the future", s.factor.generation + 1, true},
        };
        for (char step : {'.', 'x'})
            for (const Row &row : rows) {
                gsc_report report = report_of(step);
                gsc_state expected = updated(p, s, report);
                report.generation = row.serial;
                expected.events |= row.is_stale ? stale : 0;
                CAPTURE(row.what, p.apply_delay);
                CHECK(same(updated(p, s, report), expected));
            }
    }
}

TEST_CASE("a report says what it is of: nothing filled in is no good step, and a number is no part "
          "of a merge",
          "[policy]")
{
    const gsc_policy plain = usual, by_norm = usual.overflow_test(GSC_TEST_NORM);
    gsc_report flag, number, all;
    gsc_state s = start(plain);
    const auto update = [&](const gsc_policy &p, const gsc_report &r) {
        return gsc_state_update(nullptr, &p, &s, &r, &s, nullptr);
    };
    const gsc_report nothing = {};
    gsc_report found = {};
    CHECK(update(plain, nothing) == GSC_ERROR_REPORT);
    found.found_inf = 1; // as a framework leaves it that all-reduced it
    CHECK(update(plain, found) == GSC_OK);
    CHECK(s.skip == 1);

    REQUIRE(gsc_report_from_flag(0, &flag, nullptr) == GSC_OK);
    CHECK(flag.kind == GSC_REPORT_FLAG);
    CHECK(flag.measured == 0);
    CHECK(update(plain, flag) == GSC_OK);
    CHECK(s.skip == 0);
    CHECK(update(by_norm, flag) == GSC_ERROR_REPORT);
    REQUIRE(gsc_report_from_flag(-3, &flag, nullptr) == GSC_OK);
    CHECK(flag.overflow == 1);
    CHECK(flag.found_inf == 1);
    CHECK(update(by_norm, flag) == GSC_OK);
    CHECK(s.skip == 1);

    REQUIRE(gsc_report_from_number(-3, &number, nullptr) == GSC_OK);
    CHECK(number.kind == GSC_REPORT_NUMBER);
    CHECK(number.number == -3);
    CHECK(number.sum_squares == 0);
    CHECK(update(by_norm, number) == GSC_OK);
    gsc_error err = {};
    const gsc_report list[] = {flag, number};
    CHECK(gsc_report_merge(nullptr, list, 2, GSC_MERGE_SHARDS, nullptr, &all, &err) ==
          GSC_ERROR_REPORT);
    CHECK(err.index == 1);
    CHECK(std::string(err.field) == "kind");
    gsc_factor clip;
    CHECK(gsc_factor_clip_grad_norm(nullptr, nullptr, &number, 1, &clip, nullptr) ==
          GSC_ERROR_REPORT);
    for (double absurd : {std::nan(""), -HUGE_VAL, HUGE_VAL, 0x1.1p500}) {
        REQUIRE(gsc_report_from_number(absurd, &number, nullptr) == GSC_OK);
        CHECK(number.overflow == 1);
        CHECK(number.number == 0);
    }
}

TEST_CASE("an update that runs twice, a late factor, and a state of other processes are found",
          "[policy]")
{
    const gsc_policy plain = usual, delayed = usual.apply_delay(1);
    float gradient = 1;
    const gsc_tensor list = {&gradient, 1, GSC_F32, 0, {}};
    const auto reported = [&](const gsc_factor &factor) {
        gsc_report report;
        REQUIRE(gsc_measure(nullptr, &factor, &list, 1, nullptr, &report, nullptr) == GSC_OK);
        CHECK(report.generation == factor.generation);
        return report;
    };
    for (const gsc_policy &p : {plain, delayed}) {
        gsc_state s = start(p);
        for (int step = 0; step < 5;
             step++) { // the loss of each step was scaled by what was in force
            const gsc_report report = reported(s.factor);
            const gsc_factor late = s.factor;
            gsc_factor thrice, clip;
            REQUIRE(gsc_factor_multiply(nullptr, &s.factor, 3, &thrice, nullptr) == GSC_OK);
            gsc_report with_norm = report;
            with_norm.measured = want_all;
            REQUIRE(gsc_factor_clip_grad_norm(nullptr, &s.factor, &with_norm, 1, &clip, nullptr) ==
                    GSC_OK);
            CHECK((updated(p, s, reported(thrice)).events & stale) == 0);
            CHECK((updated(p, s, reported(clip)).events & stale) == 0);
            s = updated(p, s, report);
            CHECK((s.events & stale) == 0);
            if (p.apply_delay == 0 ||
                step > 0) // with a delay the first factor has its number still
                CHECK((updated(p, s, report).events & stale) == stale);
            if (p.apply_delay == 0)
                CHECK((updated(p, s, reported(late)).events & stale) == stale);
        }
    }
    gsc_factor of_no_state;
    REQUIRE(gsc_factor_init(16, &of_no_state, nullptr) == GSC_OK);
    CHECK(updated(plain, start(plain), reported(of_no_state)).events == 0);
}

/* ---- prediction ---- */

TEST_CASE("a predicted scale puts amax on the target", "[policy]")
{
    gsc_policy p = GSC_POLICY_INIT;
    p.init_scale = 5;
    p.target_amax = 0x1p16;
    p.overflow_sample_log2 = 12;
    gsc_state s = start(p);
    CHECK(s.factor.scale == 5);
    for (double amax : {1.0, 8.0, 0x1p-20, 0x1p30}) { // without decay, the last sample is all
        s = updated(p, s, report_with_amax(amax));
        CHECK(s.factor.scale == 0x1p16 / amax);
    }
    CHECK(updated(p, s, report_of('x')).factor.scale == 16); // 2^16 / 2^12
    CHECK(updated(p, s, report_of('x')).events == (skipped | grew));
}

TEST_CASE("a running mean has no bias from its start", "[policy]")
{
    gsc_policy p = GSC_POLICY_INIT;
    p.target_amax = 1024;
    p.log2_decay = 0.9;
    p.log2_slow_decay = 0.99;
    p.log2_margin_sigmas = 3;
    gsc_state s = start(p);
    for (int i = 0; i < 20; i++) {
        s = updated(p, s, report_with_amax(16));
        // The variance is the difference of equal numbers, so its root shows their last digits.
        CHECK(std::fabs(s.factor.scale / 64 - 1) < 1e-5);
    }
}

TEST_CASE("log2_margin_sigmas lowers a predicted scale by the spread of the samples", "[policy]")
{
    gsc_policy p = GSC_POLICY_INIT;
    p.target_amax = 1;
    p.log2_slow_decay = 0.5;
    p.log2_margin_sigmas = 2;
    const gsc_state first = updated(p, start(p), report_with_amax(1));
    const gsc_state second = updated(p, first, report_with_amax(4));
    CHECK(first.factor.scale == 1);
    // log2(amax) is 0 with weight 1/3 and 2 with weight 2/3: variance 8/3 - (4/3)^2 = 8/9.
    const double expected = std::exp2(-(2 + 2 * std::sqrt(8.0 / 9)));
    CHECK(std::fabs(second.factor.scale / expected - 1) < 1e-14);
}

TEST_CASE("amax 0 without overflow is no sample", "[policy]")
{
    const gsc_policy p = preset("openseq2seq_logmax");
    gsc_state s = start(p);
    for (double amax : {0.0, 20.0, 100.0}) {
        const gsc_state before = s, after = updated(p, s, report_with_amax(0));
        CHECK(after.factor.scale == before.factor.scale);
        CHECK(after.log2_mean == before.log2_mean);
        CHECK(after.log2_zero_weight == before.log2_zero_weight);
        CHECK(after.log2_mean_square == before.log2_mean_square);
        s = updated(p, after, report_with_amax(amax + 1));
        CHECK(s.log2_zero_weight < after.log2_zero_weight);
    }
}

TEST_CASE("no policy that is accepted leads to a state that is not", "[policy]")
{
    const gsc_policy policies[] = {
        usual.growth_factor(1e300),
        usual.backoff_factor(1e-300),
        usual.init_scale(1e300),
        usual.init_scale(1e-300),
        usual.target_amax(1e300),
        usual.target_amax(1e-300),
        usual.overflow_sample_log2(1e200).target_amax(1e200),
        usual.target_amax(1).overflow_sample_log2(-1e200),
        usual.target_amax(1).log2_decay(0.999999999),
        usual.target_amax(1).log2_margin_sigmas(1).log2_slow_decay(0.999999999),
        usual.target_amax(1).log2_decay(1 - 0x1p-53).log2_slow_decay(1 - 0x1p-53),
        usual.target_amax(1).log2_margin_sigmas(1e308),
    };
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        for (uint32_t arithmetic = 0; arithmetic <= GSC_ARITHMETIC_F32_FLUSH; arithmetic++) {
            gsc_policy p = policies[i];
            p.arithmetic = arithmetic;
            gsc_state s;
            if (gsc_state_init(nullptr, &p, &s, nullptr) != GSC_OK)
                continue;
            for (char step : std::string(".x..xx....xxx..")) {
                gsc_report report = report_of(step);
                report.amax = step == 'x' ? 0 : 3;
                const gsc_status status = gsc_state_update(nullptr, &p, &s, &report, &s, nullptr);
                CAPTURE(i, arithmetic, step, s.factor.scale);
                CHECK((status == GSC_OK && s.factor.scale >= 0));
                if (status != GSC_OK)
                    break;
            }
        }
}

TEST_CASE("no predictive policy that is accepted leads out of range, at the edges of every field",
          "[policy]")
{
    const double edges[] = {0,           1e-300,      0x1p-1074,   0x1p-149,    0x1p-126,
                            0x1p-20,     0.5,         0.9,         1,           2,
                            0x1p16,      0x1p20,      0x1p126,     FLT_MAX,     1e39,
                            1e300,       DBL_MAX,     -0x1p20,     1 - 0x1p-53, 1 - 0x1p-52,
                            1 - 0x1p-26, 1 - 0x1p-25, 1 - 0x1p-24, 1 - 0x1p-23};
    double gsc_policy::*const fields[] = {&gsc_policy::target_amax,
                                          &gsc_policy::log2_decay,
                                          &gsc_policy::log2_slow_decay,
                                          &gsc_policy::log2_margin_sigmas,
                                          &gsc_policy::overflow_sample_log2,
                                          &gsc_policy::init_scale,
                                          &gsc_policy::max_scale,
                                          &gsc_policy::min_scale};
    Random random = {1};
    int accepted = 0;
    for (int i = 0; i < 60000; i++) {
        gsc_policy p = usual.target_amax(1).max_scale(0).min_scale(0);
        p.arithmetic = random.next() % 4;
        p.ceiling_rule = p.floor_rule = GSC_LIMIT_ENFORCE;
        for (int changes = 0; changes < 3; changes++)
            p.*fields[random.next() % std::size(fields)] = edges[random.next() % std::size(edges)];
        if (p.target_amax == 0 || gsc_policy_check(&p, nullptr) != GSC_OK)
            continue;
        accepted++;
        gsc_state s = start(p);
        for (int step = 0; step < 12; step++) {
            gsc_report report = report_of(random.next() % 3 ? '.' : 'x');
            report.amax = std::fabs(edges[random.next() % std::size(edges)]);
            const gsc_status status = gsc_state_update(nullptr, &p, &s, &report, &s, nullptr);
            if (status == GSC_OK && s.factor.scale > 0 && s.factor.inverse > 0 &&
                std::isfinite(s.factor.scale) && std::isfinite(s.factor.inverse))
                continue;
            CAPTURE(i, step, report.amax, report.overflow, s.factor.scale, p.arithmetic,
                    p.target_amax, p.log2_decay, p.log2_slow_decay, p.log2_margin_sigmas,
                    p.overflow_sample_log2, p.init_scale, p.max_scale, p.min_scale);
            CHECK(status == GSC_OK);
            CHECK((s.factor.scale > 0 && std::isfinite(s.factor.scale)));
            return;
        }
    }
    CHECK(accepted > 5000);
}

TEST_CASE("a count at the end of its range does not run over", "[policy]")
{
    const gsc_policy p = usual.growth_interval(0);
    int64_t gsc_state::*const counts[] = {&gsc_state::good_steps,
                                          &gsc_state::steps_since_change,
                                          &gsc_state::overflows_since_reset,
                                          &gsc_state::failed_backoffs,
                                          &gsc_state::total_overflows,
                                          &gsc_state::total_growths,
                                          &gsc_state::total_backoffs};
    for (const auto count : counts)
        for (char step : {'.', 'x'}) {
            gsc_state s = start(p);
            s.*count = INT64_MAX;
            const gsc_report report = report_of(step);
            const gsc_status status = gsc_state_update(nullptr, &p, &s, &report, &s, nullptr);
            CHECK((status == GSC_ERROR_STATE || (status == GSC_OK && s.*count >= 0)));
        }
}

TEST_CASE("a state of one rounding mode is updated and saved in any other", "[policy]")
{
    const gsc_policy p = usual.init_scale(3).growth_factor(1.1);
    const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (int made : modes)
        for (int used : modes) {
            gsc_state state;
            const gsc_report report = measured;
            uint64_t size = 0;
            std::fesetround(made);
            gsc_state_init(nullptr, &p, &state, nullptr);
            gsc_status updated = GSC_OK;
            for (int step = 0; step < 9; step++)
                updated |= gsc_state_update(nullptr, &p, &state, &report, &state, nullptr);
            std::fesetround(used);
            const gsc_status saved = gsc_state_save(&p, &state, nullptr, 0, &size, nullptr);
            updated |= gsc_state_update(nullptr, &p, &state, &report, &state, nullptr);
            std::fesetround(FE_TONEAREST);
            CAPTURE(made, used);
            CHECK(saved == GSC_OK);
            CHECK(updated == GSC_OK);
        }
}

/* ---- a state from another ---- */

namespace {

gsc_state made_from(const gsc_policy &p, const gsc_state &from)
{
    gsc_state out;
    REQUIRE(gsc_state_init_from(nullptr, &p, &from, &out, nullptr) == GSC_OK);
    return out;
}

} // namespace

TEST_CASE("a state made from another has its scale at once and all that it counted", "[policy]")
{
    for (uint32_t delay : {0u, 1u})
        for (uint32_t ceiling : {GSC_LIMIT_CLAMP, GSC_LIMIT_ENFORCE}) {
            const gsc_policy p = usual.hysteresis(2).apply_delay(delay).max_scale(64).min_scale(8);
            gsc_policy other = p;
            other.arithmetic = GSC_ARITHMETIC_F32;
            other.ceiling_rule = ceiling;
            gsc_state before = states(p, start(p), "..xx.x.").back();
            before.log2_mean = 3.5;
            before.log2_zero_weight = 0.25;
            for (double scale : {0.1, 1000.0, 16.0}) { // also beyond what updates keep to
                before.factor.scale = scale;
                before.events = stopped;
                before.status = GSC_ERROR_DEVICE;
                before.skip_f32 = 1;
                gsc_state expected = before;
                const float rounded = static_cast<float>(scale);
                const double wide = static_cast<double>(rounded);
                expected.factor = {wide, 1 / wide, rounded, static_cast<float>(1 / wide),
                                   before.next.generation + 1};
                expected.next = expected.factor;
                expected.events = 0;
                expected.status = GSC_OK;
                expected.skip_f32 = 0;
                CAPTURE(delay, ceiling, scale);
                CHECK(same(made_from(other, before), expected));
                gsc_state place = before;
                CHECK(gsc_state_init_from(nullptr, &other, &place, &place, nullptr) == GSC_OK);
                CHECK(same(place, expected));
            }
        }
}

TEST_CASE("a state made from itself goes on as it would have", "[policy]")
{
    const gsc_policy p = usual.hysteresis(2).overflow_reset(GSC_RESET_ON_GROWTH);
    const gsc_state s = states(p, start(p), ".x..x.").back();
    CHECK(scales(p, made_from(p, s), "x...x.x..") == scales(p, s, "x...x.x.."));
}

TEST_CASE("only scale, next serial, counts, means and totals of another state are read", "[policy]")
{
    const gsc_policy p = usual;
    gsc_state all_zeros = {}, expected = start(p);
    all_zeros.factor.scale = 16; // as someone who keeps a scale alone makes it
    expected.log2_zero_weight = expected.log2_slow_zero_weight = 0;
    CHECK(same(made_from(p, all_zeros), expected));
    gsc_state s = states(p, start(p), "..x").back(), spoilt = s;
    spoilt.factor.inverse = NAN;
    spoilt.factor.inverse_f32 = spoilt.factor.scale_f32 = -1;
    spoilt.factor.generation = 1000;
    spoilt.next.scale = spoilt.next.inverse = NAN;
    CHECK(same(made_from(p, spoilt), made_from(p, s)));
}

TEST_CASE("a scale of 0 or Inf is taken and updated, and refused where it would multiply",
          "[policy]")
{
    for (double scale : {0.0, infinity})
        for (uint32_t arithmetic : {GSC_ARITHMETIC_F64, GSC_ARITHMETIC_F32}) {
            const gsc_policy p = usual.arithmetic(arithmetic);
            gsc_state s = start(p);
            s.factor.scale = scale;
            s = made_from(p, s);
            CAPTURE(scale, arithmetic);
            CHECK(s.factor.scale == scale);
            CHECK(s.next.scale == scale);
            CHECK(s.factor.inverse == (scale == 0 ? infinity : 0));
            CHECK(scales(p, s, "..x") == std::vector<double>(3, scale));
            gsc_report report;
            CHECK(gsc_measure(nullptr, &s.factor, nullptr, 0, nullptr, &report, nullptr) ==
                  GSC_ERROR_FACTOR);
        }
    for (double bad : {-1.0, -infinity, -0x1p-1074, std::nan("")}) {
        gsc_state s = start(usual), untouched = s;
        s.factor.scale = bad;
        CHECK(gsc_state_init_from(nullptr, &usual, &s, &untouched, nullptr) == GSC_ERROR_STATE);
        CHECK(same(untouched, start(usual)));
    }
}

TEST_CASE("skip and skip_f32 are 1 if the step is to be skipped", "[policy]")
{
    for (const gsc_policy &p : {gsc_policy(usual), gsc_policy(usual.hysteresis(3)),
                                gsc_policy(usual.target_amax(1).overflow_sample_log2(2))})
        for (const gsc_state &s : states(p, start(p), ".xx..x")) {
            CHECK(s.skip == (s.events & skipped ? 1 : 0));
            CHECK(s.skip_f32 == (s.events & skipped ? 1.0f : 0.0f));
        }
    CHECK(start(usual).skip_f32 == 0);
}

/* ---- factors that cannot multiply ---- */

TEST_CASE("a scale of 0 or infinity that updates led to is refused, saying how it got there",
          "[policy]")
{
    struct Row {
        gsc_policy policy;
        const char *steps;
        double scale;
        const char *hint;
    };
    const Row rows[] = {
        {usual.backoff_factor(1e-200), "xx", 0, "min_scale"},
        {usual.growth_factor(1e200), "....", infinity, "max_scale"},
    };
    using Call = gsc_status (*)(const gsc_factor *, gsc_error *);
    const Call calls[] = {
        [](const gsc_factor *f, gsc_error *err) {
            return gsc_scale(nullptr, f, nullptr, nullptr, 0, nullptr, nullptr, err);
        },
        [](const gsc_factor *f, gsc_error *err) {
            gsc_report report;
            return gsc_measure(nullptr, f, nullptr, 0, nullptr, &report, err);
        },
        [](const gsc_factor *f, gsc_error *err) {
            return gsc_unscale(nullptr, f, nullptr, nullptr, 0, nullptr, nullptr, err);
        },
        [](const gsc_factor *f, gsc_error *err) {
            gsc_report report;
            return gsc_unscale_accumulate(nullptr, f, nullptr, nullptr, 0, nullptr, &report, err);
        },
        [](const gsc_factor *f, gsc_error *err) {
            const gsc_report report = measured;
            gsc_factor out;
            return gsc_factor_clip_grad_norm(nullptr, f, &report, 1, &out, err);
        },
        [](const gsc_factor *f, gsc_error *err) {
            gsc_factor out;
            return gsc_factor_multiply(nullptr, f, 2, &out, err);
        },
    };
    for (const Row &row : rows) {
        const gsc_state s = states(row.policy, start(row.policy), row.steps).back();
        CHECK(s.factor.scale == row.scale);
        for (const auto call : calls) {
            gsc_error err = {};
            CHECK(call(&s.factor, &err) == GSC_ERROR_FACTOR);
            CAPTURE(row.hint, err.message);
            CHECK(err.name == std::string("factor"));
            CHECK(err.field == std::string("scale"));
            CHECK(std::string(err.message).find(row.hint) != std::string::npos);
        }
    }
}

/* ---- clipping ---- */

TEST_CASE("gsc_factor_clip_grad_norm multiplies by the coefficient of torch's clip_grad_norm_",
          "[policy]")
{
    struct Row {
        double sum_squares, max_norm, coefficient;
    };
    const Row rows[] = {
        {25, 1, 1 / (5 + 1e-6)},
        {25, 5, 5 / (5 + 1e-6)},
        {25, 5.1, 1},
        {0, 1, 1},
        {1e-20, 1e-8, 1e-8 / (1e-10 + 1e-6)},
        {25, 1e300, 1},
        {1e300, 1, 1 / (1e150 + 1e-6)},
    };
    gsc_factor half = {};
    REQUIRE(gsc_factor_init(2, &half, nullptr) == GSC_OK);
    half.generation = 9;
    for (const Row &row : rows) {
        gsc_report report = measured;
        report.sum_squares = row.sum_squares;
        gsc_factor of_half, of_one;
        CHECK(gsc_factor_clip_grad_norm(nullptr, &half, &report, row.max_norm, &of_half, nullptr) ==
              GSC_OK);
        CHECK(gsc_factor_clip_grad_norm(nullptr, nullptr, &report, row.max_norm, &of_one,
                                        nullptr) == GSC_OK);
        const double inverse = 0.5 * row.coefficient;
        const gsc_factor expected = {2, inverse, 2, static_cast<float>(inverse), 9};
        CAPTURE(row.sum_squares, row.max_norm);
        CHECK(of_half.inverse == expected.inverse);
        CHECK(same(of_half, expected));
        CHECK(of_one.inverse == row.coefficient);
        CHECK(of_one.scale == 1);
    }
}

TEST_CASE("unscaling by a clip factor unscales and clips in one pass", "[policy]")
{
    float gradients[] = {6, 8, 0, -24};
    const gsc_tensor list = {gradients, 4, GSC_F32, 0, {}};
    const gsc_tensor_options norm = wanting(GSC_WANT_NORM);
    gsc_factor half, clip;
    gsc_report report;
    REQUIRE(gsc_factor_init(2, &half, nullptr) == GSC_OK);
    REQUIRE(gsc_measure(nullptr, &half, &list, 1, &norm, &report, nullptr) == GSC_OK);
    CHECK(report.sum_squares == 169); // 3, 4, 0, -12
    REQUIRE(gsc_factor_clip_grad_norm(nullptr, &half, &report, 6.5, &clip, nullptr) == GSC_OK);
    REQUIRE(gsc_unscale(nullptr, &clip, &list, &list, 1, &norm, &report, nullptr) == GSC_OK);
    CHECK(std::fabs(std::sqrt(report.sum_squares) - 6.5) < 1e-5);
}

TEST_CASE("a report that failed or has no finite norm is none to clip by", "[policy]")
{
    gsc_report failed = {}, infinite = measured, nan = measured;
    failed.status = GSC_ERROR_FACTOR;
    infinite.sum_squares = infinity;
    nan.sum_squares = NAN;
    for (const gsc_report &report : {failed, infinite, nan}) {
        gsc_factor out;
        CHECK(gsc_factor_clip_grad_norm(nullptr, nullptr, &report, 1, &out, nullptr) ==
              GSC_ERROR_REPORT);
    }
}

/* ---- merged reports ---- */

namespace {

using Reports = std::vector<gsc_report>;

gsc_report merged(const Reports &reports, uint32_t kind = GSC_MERGE_SHARDS,
                  const gsc_policy *policy = nullptr)
{
    gsc_report out;
    std::memset(&out, 0x5a, sizeof out);
    REQUIRE(gsc_report_merge(nullptr, reports.data(), reports.size(), kind, policy, &out,
                             nullptr) == GSC_OK);
    return out;
}

/* As calls leave them: where nothing was found, nothing was found first. */
gsc_report random_report(Random &random)
{
    gsc_report r = measured;
    r.amax = random.unit() * 100;
    r.sum_squares = random.unit() * 1000;
    r.measured = random.next() % 4 ? want_all : GSC_WANT_NORM | GSC_WANT_AMAX;
    r.status = random.next() % 16 ? GSC_OK : GSC_ERROR_FACTOR;
    r.generation = random.next() % 5;
    r.elements = static_cast<int64_t>(random.next() % 1000);
    r.clamped = static_cast<int64_t>(random.next() % 1000);
    if (r.measured == want_all)
        r.underflows_to_zero = r.underflows_to_subnormal =
            static_cast<int64_t>(random.next() % 1000);
    if (random.next() % 8 == 0) {
        (random.next() % 2 ? r.nan_count : r.inf_count) =
            1 + static_cast<int64_t>(random.next() % 9);
        r.first_tensor = static_cast<int64_t>(random.next() % 3);
        r.first_element = static_cast<int64_t>(random.next() % 3);
    }
    r.overflow = r.nan_count + r.inf_count > 0 || r.status != GSC_OK || random.next() % 16 == 0;
    r.found_inf = static_cast<float>(r.overflow);
    return r;
}

/* What the contract says, member by member. */
gsc_report merged_by_hand(const Reports &reports, uint32_t kind)
{
    gsc_report r = measured;
    std::vector<double> squares;
    r.kind = GSC_REPORT_MERGED;
    if (kind == GSC_MERGE_ADDENDS && !reports.empty())
        r.measured = GSC_WANT_UNDERFLOW;
    for (const gsc_report &one : reports) {
        const bool first = r.nan_count + r.inf_count == 0 && one.nan_count + one.inf_count > 0;
        r.first_tensor = first ? one.first_tensor : r.first_tensor;
        r.first_element = first ? one.first_element : r.first_element;
        r.status = r.status == GSC_OK ? one.status : r.status;
        r.generation = r.generation == 0     ? one.generation
                       : one.generation == 0 ? r.generation
                                             : std::min(r.generation, one.generation);
        r.overflow |= one.overflow;
        r.measured &= one.measured;
        r.amax = std::max(r.amax, one.amax);
        r.elements += one.elements;
        r.nan_count += one.nan_count;
        r.inf_count += one.inf_count;
        r.underflows_to_zero += one.underflows_to_zero;
        r.underflows_to_subnormal += one.underflows_to_subnormal;
        r.clamped += one.clamped;
        squares.push_back(one.sum_squares);
    }
    r.found_inf = static_cast<float>(r.overflow);
    r.sum_squares = r.measured & GSC_WANT_NORM ? sum_in_runs(squares) : 0;
    if (!(r.measured & GSC_WANT_AMAX))
        r.amax = 0;
    if (!(r.measured & GSC_WANT_UNDERFLOW))
        r.underflows_to_zero = r.underflows_to_subnormal = 0;
    return r;
}

} // namespace

TEST_CASE("a merge is member by member what the contract says, in order, of any number of reports",
          "[policy]")
{
    Random random = {1};
    for (uint64_t n : {0u, 1u, 2u, 3u, 63u, 64u, 65u, 128u, 129u, 1000u, 4097u})
        for (uint32_t kind : {GSC_MERGE_SHARDS, GSC_MERGE_ADDENDS})
            for (bool failing : {false, true}) {
                Reports reports;
                while (reports.size() < n) {
                    reports.push_back(random_report(random));
                    if (!failing) {
                        gsc_report &r = reports.back();
                        r.status = GSC_OK;
                        r.overflow = 0;
                        r.found_inf = 0;
                        r.nan_count = r.inf_count = r.first_tensor = r.first_element = 0;
                    }
                }
                CAPTURE(n, kind, failing);
                const gsc_report expected = merged_by_hand(reports, kind);
                CHECK(same(merged(reports, kind), expected));
                for (uint64_t place : {uint64_t{0}, n / 2, n - 1}) { // *out may be one of them
                    if (n == 0)
                        continue;
                    Reports places = reports;
                    CHECK(gsc_report_merge(nullptr, places.data(), n, kind, nullptr, &places[place],
                                           nullptr) == GSC_OK);
                    CHECK(same(places[place], expected));
                }
            }
}

TEST_CASE("the merge of no reports is that of an empty list, of one that one", "[policy]")
{
    Random random = {2};
    gsc_report empty = measured;
    empty.kind = GSC_REPORT_MERGED;
    CHECK(same(merged({}), empty));
    CHECK(same(merged({}, GSC_MERGE_ADDENDS), empty));
    for (int i = 0; i < 50; i++) {
        gsc_report one = random_report(random);
        const gsc_report of_one = merged({one});
        one.kind = GSC_REPORT_MERGED;
        CHECK(same(of_one, one));
    }
}

TEST_CASE("the norm of addends is not known, so nothing judges or clips by it", "[policy]")
{
    gsc_report a = measured;
    a.amax = 3;
    a.sum_squares = 9;
    const gsc_report sum = merged({a, a}, GSC_MERGE_ADDENDS);
    CHECK(sum.measured == GSC_WANT_UNDERFLOW);
    CHECK(sum.sum_squares == 0);
    CHECK(sum.amax == 0);
    gsc_factor out;
    CHECK(gsc_factor_clip_grad_norm(nullptr, nullptr, &sum, 1, &out, nullptr) == GSC_ERROR_REPORT);
    const gsc_policy by_norm = usual.overflow_test(GSC_TEST_NORM);
    gsc_state s = start(by_norm);
    CHECK(gsc_state_update(nullptr, &by_norm, &s, &sum, &s, nullptr) == GSC_ERROR_REPORT);
    CHECK(merged({a, a}).sum_squares == 18);
}

TEST_CASE("a merge with a policy has its verdict, or is refused where that is not known",
          "[policy]")
{
    const double most = static_cast<double>(FLT_MAX);
    const gsc_policy by_norm = usual.overflow_test(GSC_TEST_NORM), by_amax = usual.target_amax(1),
                     plain = usual;
    gsc_report half = measured, without = measured, overflow = report_of('x');
    half.sum_squares = most * 0.75;
    without.measured = 0;
    struct Row {
        const char *what;
        gsc_policy policy;
        uint32_t kind;
        Reports reports;
        int verdict; // -1: refused
    };
    const Row rows[] = {
        {"norms below add up to one above", by_norm, GSC_MERGE_SHARDS, {half, half}, 1},
        {"one of them is none", by_norm, GSC_MERGE_SHARDS, {half}, 0},
        {"who judges by elements does not mind", plain, GSC_MERGE_SHARDS, {half, half}, 0},
        {"an overflow is one", by_norm, GSC_MERGE_SHARDS, {half, overflow}, 1},
        {"no norm", by_norm, GSC_MERGE_SHARDS, {half, without}, -1},
        {"no norm of a sum", by_norm, GSC_MERGE_ADDENDS, {half, half}, -1},
        {"no amax", by_amax, GSC_MERGE_SHARDS, {without}, -1},
        {"nothing needed", plain, GSC_MERGE_ADDENDS, {without, half}, 0},
        {"no norm, but an overflow", by_norm, GSC_MERGE_SHARDS, {without, overflow}, 1},
        {"no reports", by_norm, GSC_MERGE_ADDENDS, {}, 0},
    };
    for (const Row &row : rows) {
        gsc_report out, mark;
        std::memset(&mark, 0x5a, sizeof mark);
        out = mark;
        CAPTURE(row.what);
        const gsc_status status = gsc_report_merge(nullptr, row.reports.data(), row.reports.size(),
                                                   row.kind, &row.policy, &out, nullptr);
        CHECK(status == (row.verdict < 0 ? GSC_ERROR_REPORT : GSC_OK));
        gsc_report expected = mark;
        if (row.verdict >= 0) {
            expected = merged_by_hand(row.reports, row.kind);
            expected.overflow = row.verdict;
            expected.found_inf = static_cast<float>(row.verdict);
        }
        CHECK(same(out, expected));
    }
}

TEST_CASE("a merged overflow is 1 if any part overflowed or failed", "[policy]")
{
    gsc_report a = measured, b = measured, failed = {};
    a.found_inf = 2;
    b.overflow = 5;
    failed.status = GSC_ERROR_DEVICE; // as a rank may leave it that set nothing else
    const gsc_report empty = measured;
    for (const Reports &reports :
         {Reports{a, b}, {a, a}, {empty, b}, {b, empty}, {empty, failed, empty}, {failed}}) {
        CHECK(merged(reports).found_inf == 1.0f);
        CHECK(merged(reports).overflow == 1);
    }
    CHECK(merged({empty, failed, a}).status == GSC_ERROR_DEVICE);
}

TEST_CASE("a merged report of a rank that failed is none to update by", "[policy]")
{
    gsc_report failed = {}, good = measured;
    failed.status = GSC_ERROR_DEVICE;
    const gsc_report all = merged({good, failed});
    gsc_state s = start(usual);
    CHECK(gsc_state_update(nullptr, &usual, &s, &all, &s, nullptr) == GSC_ERROR_REPORT);
}

TEST_CASE("the oldest factor of a merge shows, so that a late one is found", "[policy]")
{
    const gsc_policy p = usual;
    const gsc_state s = states(p, start(p), "...").back();
    gsc_report late = measured, fresh = measured, unknown = measured;
    late.generation = s.factor.generation - 1;
    fresh.generation = s.factor.generation;
    CHECK((updated(p, s, merged({fresh, unknown, fresh})).events & stale) == 0);
    CHECK((updated(p, s, merged({fresh, late})).events & stale) == stale);
    CHECK((updated(p, s, merged({late, unknown})).events & stale) == stale);
}

/* ---- presets ---- */

TEST_CASE("presets can be listed, and each is a policy that can be used", "[policy]")
{
    std::set<std::string> names;
    uint32_t count = 0;
    for (; gsc_preset_name(count); count++) {
        const std::string name = gsc_preset_name(count);
        CAPTURE(name);
        CHECK(names.insert(name).second);
        CHECK(std::string(gsc_preset_summary(count)).size() > 20);
        const gsc_policy p = preset(name);
        CHECK(p.struct_size == GSC_POLICY_SIZE);
        CHECK(gsc_policy_check(&p, nullptr) == GSC_OK);
        CHECK(start(p).factor.scale >= 1);
    }
    CHECK(count > 20);
    CHECK(gsc_preset_summary(count) == nullptr);
    CHECK(gsc_preset_name(UINT32_MAX) == nullptr);
    for (const char *name : {"recommended", "none", "guard", "static", "torch", "megatron"})
        CHECK(names.count(name) == 1);
}

TEST_CASE("none and guard never move, guard stops, and static stays where it is put", "[policy]")
{
    gsc_policy p = preset("none");
    CHECK(scales(p, start(p), ".xx.") == std::vector<double>{1, 1, 1, 1});
    p = preset("guard");
    CHECK(scales(p, start(p), ".xx.") == std::vector<double>{1, 1, 1, 1});
    const std::vector<gsc_state> end = states(p, start(p), "xxx." + std::string(10, 'x'));
    for (size_t i = 0; i < end.size(); i++)
        CHECK(!(end[i].events & stopped) == (i < 13));
    p = preset("static");
    p.init_scale = 3;
    CHECK(scales(p, start(p), ".xx.") == std::vector<double>{3, 3, 3, 3});
}

TEST_CASE("recommended: torch's numbers, a floor, a ceiling, and a stop after ten stalls",
          "[policy]")
{
    const gsc_policy p = preset("recommended");
    CHECK(start(p).factor.scale == 65536);
    CHECK(states(p, start(p), std::string(1999, '.')).back().factor.scale == 65536);
    CHECK(states(p, start(p), std::string(2000, '.')).back().factor.scale == 131072);
    CHECK(states(p, start(p), std::string(30000, '.')).back().factor.scale == 0x1p24);
    CHECK(scales(p, start(p), "x") == std::vector<double>{32768});

    // 30 overflows lead from 2^16 to 2^-14, ten more to the end.
    const std::vector<gsc_state> down = states(p, start(p), std::string(41, 'x'));
    CHECK(down[29].factor.scale == 0x1p-14);
    CHECK(down[40].factor.scale == 0x1p-14);
    for (size_t i = 0; i < down.size(); i++) {
        CAPTURE(i);
        CHECK(((down[i].events & stopped) != 0) == (i >= 39));
    }
    const gsc_state better = states(p, down[40], std::string(2000, '.')).back();
    CHECK(better.factor.scale == 0x1p-13);
    CHECK(better.events == grew);

    // A scale that was given beyond a limit is not moved to it.
    gsc_policy below = p, above = p;
    below.init_scale = 0x1p-20;
    above.init_scale = 0x1p30;
    const gsc_state low = states(below, start(below), "x").back();
    CHECK(low.factor.scale == 0x1p-20);
    CHECK(low.events == (skipped | stalled | at_floor));
    const gsc_state high = states(above, start(above), std::string(2000, '.')).back();
    CHECK(high.factor.scale == 0x1p30);
    CHECK(high.events == at_ceiling);
}
