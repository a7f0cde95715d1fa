// SPDX-License-Identifier: MIT
// The policy, field by field: a row says which scales a string of steps leads to ('.' a good step,
// 'x' an overflow). Also limits, events, arithmetic, prediction, factors and merged reports.
#include <cfloat>
#include <set>

#include "support.hpp"

namespace {

constexpr double infinity = HUGE_VAL;
constexpr uint32_t grew = GSC_EVENT_GREW, backed_off = GSC_EVENT_BACKED_OFF,
                   skipped = GSC_EVENT_SKIPPED, absorbed = GSC_EVENT_ABSORBED,
                   at_ceiling = GSC_EVENT_AT_CEILING, at_floor = GSC_EVENT_AT_FLOOR,
                   stalled = GSC_EVENT_STALLED, stopped = GSC_EVENT_STOPPED;

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
    FIELD(uint32_t, growth_lag)
    FIELD(double, max_scale)
    FIELD(double, min_scale)
    FIELD(uint32_t, ceiling_rule)
    FIELD(uint32_t, floor_rule)
    FIELD(uint32_t, overflow_test)
    FIELD(uint32_t, hysteresis)
    FIELD(uint32_t, overflow_reset)
    FIELD(uint32_t, apply_delay)
    FIELD(double, overflow_tolerance)
    FIELD(uint64_t, stall_limit)
    FIELD(uint32_t, quirks)
    FIELD(uint32_t, arithmetic)
    FIELD(double, target_amax)
    FIELD(double, mean_decay)
    FIELD(double, variance_decay)
    FIELD(double, margin_sigmas)
    FIELD(double, overflow_log2)
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
    REQUIRE(gsc_update(nullptr, &p, &state, &report, &out, nullptr) == GSC_OK);
    return out;
}

gsc_report report_of(char step)
{
    gsc_report report = {};
    report.overflow = step == 'x';
    report.found_inf = static_cast<float>(report.overflow);
    return report;
}

gsc_report report_with_amax(double amax)
{
    gsc_report report = {};
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

TEST_CASE("growth_rule and growth_lag", "[policy]")
{
    const ScaleRow rows[] = {
        {"REACHED with a lag counts one more, every time",
         usual.growth_lag(1),
         "......",
         {16, 16, 32, 32, 32, 64}},
        {"EXACT with a lag, too",
         usual.growth_rule(GSC_GROWTH_EXACT).growth_lag(1),
         "......",
         {16, 16, 32, 32, 32, 64}},
        {"EVERY pays the lag at the start and after an overflow only",
         usual.growth_rule(GSC_GROWTH_EVERY).growth_lag(1),
         ".....x...",
         {16, 16, 32, 32, 64, 32, 32, 32, 64}},
        {"STEPS counts absorbed overflows",
         usual.growth_rule(GSC_GROWTH_STEPS).growth_interval(3).hysteresis(2),
         "x.....",
         {16, 16, 32, 32, 32, 64}},
        {"REACHED does not",
         usual.growth_interval(3).hysteresis(2),
         "x.....",
         {16, 16, 16, 32, 32, 32}},
        {"STEPS starts anew at a backoff",
         usual.growth_rule(GSC_GROWTH_STEPS).growth_interval(3),
         "..x...",
         {16, 16, 8, 8, 8, 16}},
        {"STEPS grows after an absorbed overflow",
         usual.growth_rule(GSC_GROWTH_STEPS).hysteresis(2),
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
        {"STEPS grows at once", GSC_GROWTH_STEPS, "...", {32, 32, 64}},
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
        {"ALWAYS lowers the start",
         usual.max_scale(10).ceiling_rule(GSC_LIMIT_ALWAYS),
         ".x...",
         {10, 5, 5, 10, 10}},
        {"KEEP drops a growth that would pass it",
         usual.max_scale(48).ceiling_rule(GSC_LIMIT_KEEP),
         "....",
         {16, 32, 32, 32}},
        {"KEEP drops one that would reach it, too",
         usual.max_scale(32).ceiling_rule(GSC_LIMIT_KEEP),
         "....",
         {16, 16, 16, 16}},
        {"KEEP leaves a start above it alone",
         usual.max_scale(8).ceiling_rule(GSC_LIMIT_KEEP),
         "..x",
         {16, 16, 8}},
        {"STOP drops it",
         usual.max_scale(48).ceiling_rule(GSC_LIMIT_STOP),
         "....",
         {16, 32, 32, 32}},
        {"no ceiling is infinity, which CLAMP ends at",
         usual.init_scale(0x1p1023),
         "....x",
         {0x1p1023, infinity, infinity, infinity, infinity}},
        {"and KEEP stays below",
         usual.init_scale(0x1p1023).ceiling_rule(GSC_LIMIT_KEEP),
         "..x",
         {0x1p1023, 0x1p1023, 0x1p1022}},
        {"a dropped growth counts anew",
         usual.max_scale(32).ceiling_rule(GSC_LIMIT_KEEP).growth_rule(GSC_GROWTH_EXACT),
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
        {"ALWAYS raises a start below it after the first update",
         usual.min_scale(50).floor_rule(GSC_LIMIT_ALWAYS),
         ".x",
         {50, 50}},
        {"KEEP drops a backoff that would pass it",
         usual.min_scale(6).floor_rule(GSC_LIMIT_KEEP),
         "xxx",
         {8, 8, 8}},
        {"KEEP drops one that would reach it, too",
         usual.min_scale(8).floor_rule(GSC_LIMIT_KEEP),
         "xx",
         {16, 16}},
        {"KEEP leaves a start below it alone",
         usual.min_scale(50).floor_rule(GSC_LIMIT_KEEP),
         ".x",
         {16, 16}},
        {"STOP drops it", usual.min_scale(6).floor_rule(GSC_LIMIT_STOP), "xxx", {8, 8, 8}},
        {"no floor ends at 0, which stays",
         usual.init_scale(0x1p-1000).backoff_factor(0x1p-74).growth_interval(1),
         "xxx.",
         {0x1p-1074, 0, 0, 0}},
    };
    check_scales(rows);
    const gsc_policy raised = usual.min_scale(50).floor_rule(GSC_LIMIT_ALWAYS);
    CHECK(start(raised).factor.scale == 16); // the start itself is not touched
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
        {"1 absorbs all", usual.overflow_tolerance(1), "xxx", {16, 16, 16}},
        {"TOLERATE_BELOW: a share equal to it is not",
         usual.overflow_tolerance(0.5).growth_interval(0).quirks(GSC_QUIRK_TOLERATE_BELOW),
         "..x.x",
         {16, 16, 16, 16, 16}},
        {"TOLERATE_BELOW: exactly half",
         usual.overflow_tolerance(0.5).growth_interval(0).quirks(GSC_QUIRK_TOLERATE_BELOW),
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
        CHECK(s.next.serial == before.next.serial + 1);
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

TEST_CASE("OVERFLOW_COUNTS counts an overflow once more, as a good step", "[policy]")
{
    const ScaleRow rows[] = {
        {"without", usual, "x..", {8, 8, 16}},
        {"with", usual.quirks(GSC_QUIRK_OVERFLOW_COUNTS), "x..", {8, 16, 16}},
        {"a growth right after the backoff",
         usual.quirks(GSC_QUIRK_OVERFLOW_COUNTS).growth_interval(1),
         "xx",
         {16, 16}},
    };
    check_scales(rows);
}

TEST_CASE("arithmetic is that of floats where the policy says so", "[policy]")
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
    p.arithmetic = GSC_ARITHMETIC_F32_ONCE;
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
        {"F32_ONCE: half of the smallest float is 0",
         usual.init_scale(0x1p-148).arithmetic(GSC_ARITHMETIC_F32_ONCE),
         "xx",
         {0x1p-149, 0}},
        {"a growth past the largest float is infinity",
         usual.init_scale(0x1p127).arithmetic(GSC_ARITHMETIC_F32),
         "..x",
         {0x1p127, infinity, infinity}},
        {"which KEEP drops",
         usual.init_scale(0x1p127).arithmetic(GSC_ARITHMETIC_F32_ONCE).ceiling_rule(GSC_LIMIT_KEEP),
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
        {"tolerance", usual.overflow_tolerance(1), "x", {skipped | absorbed}},
        {"ceiling CLAMP", usual.max_scale(33), "....", {0, grew, 0, grew | at_ceiling}},
        {"ceiling reached", usual.max_scale(32), "....", {0, grew | at_ceiling, 0, at_ceiling}},
        {"a growth that ends at a lower ceiling",
         usual.max_scale(8),
         "..",
         {0, backed_off | at_ceiling}},
        {"ceiling KEEP", usual.max_scale(32).ceiling_rule(GSC_LIMIT_KEEP), "..", {0, at_ceiling}},
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
        {"floor KEEP",
         usual.min_scale(8).floor_rule(GSC_LIMIT_KEEP),
         "x",
         {skipped | at_floor | stalled}},
        {"floor STOP",
         usual.min_scale(8).floor_rule(GSC_LIMIT_STOP),
         "x",
         {skipped | at_floor | stalled | stopped}},
        {"static", usual.growth_factor(1).backoff_factor(1), "..x", {0, 0, skipped | stalled}},
        {"OVERFLOW_COUNTS: a backoff and a growth in one",
         usual.quirks(GSC_QUIRK_OVERFLOW_COUNTS).growth_interval(1),
         "x",
         {skipped | stalled}},
        {"apply_delay: when the scale moves, not when it is in force",
         usual.apply_delay(1),
         "x.",
         {skipped | backed_off, 0}},
    };
    check_events(rows);
}

TEST_CASE("stall_limit stops at that many overflows in a row that could not lower the scale",
          "[policy]")
{
    constexpr uint32_t stuck = skipped | stalled;
    const EventRow rows[] = {
        {"0 never", usual.growth_factor(1).backoff_factor(1), "xxx", {stuck, stuck, stuck}},
        {"2, and a good step ends the row",
         usual.growth_factor(1).backoff_factor(1).growth_interval(0).stall_limit(2),
         "xxx.x.x",
         {stuck, stuck | stopped, stuck | stopped, 0, stuck, 0, stuck}},
        {"an overflow that lowers the scale is no stall",
         usual.stall_limit(1),
         "xx",
         {skipped | backed_off, skipped | backed_off}},
        {"an infinite scale stalls",
         usual.init_scale(0x1p1023).growth_interval(1).stall_limit(1),
         ".x",
         {grew | at_ceiling, stuck | stopped}},
    };
    check_events(rows);
}

TEST_CASE("growths and backoffs are the updates that moved the scale", "[policy]")
{
    const gsc_policy p = usual.min_scale(8).max_scale(32).hysteresis(1);
    const gsc_state s = states(p, start(p), "....xxx").back(); // 16, 32, 32, 16, 8, 8
    CHECK(s.growths == 1);
    CHECK(s.backoffs == 2);
    CHECK(s.skipped == 3);
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
    CHECK(s.stalled == 3);
    CHECK(states(usual, s, "x").back().stalled == 0);
    CHECK(states(usual, s, "x").back().events == (skipped | backed_off));
}

TEST_CASE("totals count from the start, the serial every update", "[policy]")
{
    const gsc_policy p = usual.hysteresis(2);
    const gsc_state s = states(p, start(p), "..xx.x..").back();
    CHECK(s.growths == 2);
    CHECK(s.backoffs == 2);
    CHECK(s.skipped == 3);
    CHECK(s.factor.serial == 8);
}

TEST_CASE("a factor holds scale and inverse, as doubles and rounded", "[policy]")
{
    for (double scale : {1.0, 3.0, 65536.0, 1e39, 1e-42, 1e-300}) {
        gsc_factor factor;
        CHECK(gsc_factor_init(scale, &factor, nullptr) == GSC_OK);
        gsc_policy p = usual.growth_interval(0);
        p.init_scale = scale;
        const gsc_factor expected = {scale, 1 / scale, static_cast<float>(scale),
                                     static_cast<float>(1 / scale), 0};
        CHECK(same(factor, expected));
        CHECK(same(start(p).factor, expected));
        gsc_factor after = updated(p, start(p), report_of('.')).factor;
        CHECK(after.serial == 1);
        after.serial = 0;
        CHECK(same(after, expected));
    }
}

TEST_CASE("a factor times k: the loss by k times the scale, the gradients by a k-th", "[policy]")
{
    for (double scale : {1.0, 3.0, 65536.0, 1e39})
        for (double by : {1.0, 7.0, 0.125, 1e-30}) {
            gsc_factor factor = {}, product = {};
            REQUIRE(gsc_factor_init(scale, &factor, nullptr) == GSC_OK);
            factor.serial = 5;
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
    CHECK(gsc_update(nullptr, &p, &state, &overflow, &state, nullptr) == GSC_OK);
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
        gsc_report report = {};
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
        gsc_report report = {};
        report.sum_squares = sum_squares;
        CAPTURE(sum_squares);
        p.overflow_test = GSC_OVERFLOW_NORM;
        CHECK(updated(p, start(p), report).skipped == expected);
        p.overflow_test = GSC_OVERFLOW_ELEMENT;
        CHECK(updated(p, start(p), report).skipped == 0);
    }
    p.overflow_test = GSC_OVERFLOW_NORM;
    CHECK(updated(p, start(p), report_of('x')).skipped == 1);
}

TEST_CASE("a report that lacks what the policy judges by is refused", "[policy]")
{
    gsc_policy by_norm = usual.overflow_test(GSC_OVERFLOW_NORM);
    gsc_policy by_amax = usual.target_amax(1);
    const gsc_policy plain = usual;
    const auto status = [](const gsc_policy &p, uint32_t absent) {
        gsc_report report = {};
        report.absent = absent;
        gsc_state s = start(p);
        return gsc_update(nullptr, &p, &s, &report, &s, nullptr);
    };
    CHECK(status(by_norm, GSC_WANT_NORM) == GSC_ERROR_REPORT);
    CHECK(status(by_norm, 31 & ~GSC_WANT_NORM) == GSC_OK);
    CHECK(status(by_amax, GSC_WANT_AMAX) == GSC_ERROR_REPORT);
    CHECK(status(by_amax, 31 & ~GSC_WANT_AMAX) == GSC_OK);
    CHECK(status(plain, 31) == GSC_OK);
}

/* ---- prediction ---- */

TEST_CASE("a predicted scale puts amax on the target", "[policy]")
{
    gsc_policy p = GSC_POLICY_INIT;
    p.init_scale = 5;
    p.target_amax = 0x1p16;
    p.overflow_log2 = 12;
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
    p.mean_decay = 0.9;
    p.variance_decay = 0.99;
    p.margin_sigmas = 3;
    gsc_state s = start(p);
    for (int i = 0; i < 20; i++) {
        s = updated(p, s, report_with_amax(16));
        // The variance is the difference of equal numbers, so its root shows their last digits.
        CHECK(std::fabs(s.factor.scale / 64 - 1) < 1e-5);
    }
}

TEST_CASE("margin_sigmas lowers a predicted scale by the spread of the samples", "[policy]")
{
    gsc_policy p = GSC_POLICY_INIT;
    p.target_amax = 1;
    p.variance_decay = 0.5;
    p.margin_sigmas = 2;
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
        CHECK(after.mean == before.mean);
        CHECK(after.mean_start == before.mean_start);
        CHECK(after.mean_square == before.mean_square);
        s = updated(p, after, report_with_amax(amax + 1));
        CHECK(s.mean_start < after.mean_start);
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
        usual.overflow_log2(1e200).target_amax(1e200),
        usual.target_amax(1).overflow_log2(-1e200),
        usual.target_amax(1).mean_decay(0.999999999),
        usual.target_amax(1).margin_sigmas(1).variance_decay(0.999999999),
        usual.target_amax(1).mean_decay(1 - 0x1p-53).variance_decay(1 - 0x1p-53),
        usual.target_amax(1).margin_sigmas(1e308),
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
                const gsc_status status = gsc_update(nullptr, &p, &s, &report, &s, nullptr);
                CAPTURE(i, arithmetic, step, s.factor.scale);
                CHECK((status == GSC_OK && s.factor.scale >= 0));
                if (status != GSC_OK)
                    break;
            }
        }
}

TEST_CASE("a count at the end of its range does not run over", "[policy]")
{
    const gsc_policy p = usual.growth_interval(0);
    int64_t gsc_state::*const counts[] = {
        &gsc_state::good,    &gsc_state::steps,   &gsc_state::overflows, &gsc_state::stalled,
        &gsc_state::skipped, &gsc_state::growths, &gsc_state::backoffs};
    for (const auto count : counts)
        for (char step : {'.', 'x'}) {
            gsc_state s = start(p);
            s.*count = INT64_MAX;
            const gsc_report report = report_of(step);
            const gsc_status status = gsc_update(nullptr, &p, &s, &report, &s, nullptr);
            CHECK((status == GSC_ERROR_STATE || (status == GSC_OK && s.*count >= 0)));
        }
}

/* ---- set_scale ---- */

TEST_CASE("set_scale puts a scale in force at once; counts start anew, totals stay", "[policy]")
{
    for (uint32_t delay : {0u, 1u}) {
        gsc_policy p = usual.hysteresis(2);
        p.apply_delay = delay;
        p.arithmetic = GSC_ARITHMETIC_F32;
        const gsc_state before = states(p, start(p), "..xx.x.").back();
        const double scale = 0.1;
        gsc_state after;
        CHECK(gsc_set_scale(nullptr, &p, &before, &scale, &after, nullptr) == GSC_OK);
        gsc_state expected = start(p);
        const double rounded = static_cast<double>(0.1f);
        expected.factor = {rounded, 1 / rounded, 0.1f, static_cast<float>(1 / rounded), 8};
        expected.next = expected.factor;
        expected.skipped = 3;
        expected.growths = 1;
        expected.backoffs = 2;
        CHECK(same(after, expected));
        CHECK(scales(p, after, "x") == std::vector<double>{rounded}); // absorbed again
    }
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
            return gsc_scale(nullptr, f, nullptr, nullptr, 0, err);
        },
        [](const gsc_factor *f, gsc_error *err) {
            gsc_report report;
            return gsc_check(nullptr, f, nullptr, 0, 0, &report, err);
        },
        [](const gsc_factor *f, gsc_error *err) {
            gsc_report report;
            return gsc_unscale(nullptr, f, nullptr, nullptr, 0, 0, &report, err);
        },
        [](const gsc_factor *f, gsc_error *err) {
            const gsc_report report = {};
            gsc_factor out;
            return gsc_clip_factor(nullptr, &report, f, 1, &out, err);
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
            CHECK(err.name == std::string("factor.scale"));
            CHECK(std::string(err.message).find(row.hint) != std::string::npos);
        }
    }
}

/* ---- clipping ---- */

TEST_CASE("clip_factor multiplies by the coefficient of torch's clip_grad_norm_", "[policy]")
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
    half.serial = 9;
    for (const Row &row : rows) {
        gsc_report report = {};
        report.sum_squares = row.sum_squares;
        gsc_factor of_half, of_one;
        CHECK(gsc_clip_factor(nullptr, &report, &half, row.max_norm, &of_half, nullptr) == GSC_OK);
        CHECK(gsc_clip_factor(nullptr, &report, nullptr, row.max_norm, &of_one, nullptr) == GSC_OK);
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
    const gsc_tensor list = {gradients, 4, GSC_F32, 0};
    gsc_factor half, clip;
    gsc_report report;
    REQUIRE(gsc_factor_init(2, &half, nullptr) == GSC_OK);
    REQUIRE(gsc_check(nullptr, &half, &list, 1, GSC_WANT_NORM, &report, nullptr) == GSC_OK);
    CHECK(report.sum_squares == 169); // 3, 4, 0, -12
    REQUIRE(gsc_clip_factor(nullptr, &report, &half, 6.5, &clip, nullptr) == GSC_OK);
    REQUIRE(gsc_unscale(nullptr, &clip, &list, &list, 1, GSC_WANT_NORM, &report, nullptr) ==
            GSC_OK);
    CHECK(std::fabs(std::sqrt(report.sum_squares) - 6.5) < 1e-5);
}

TEST_CASE("a report that failed or has no finite norm is none to clip by", "[policy]")
{
    gsc_report failed = {}, infinite = {}, nan = {};
    failed.status = GSC_ERROR_FACTOR;
    infinite.sum_squares = infinity;
    nan.sum_squares = NAN;
    for (const gsc_report &report : {failed, infinite, nan}) {
        gsc_factor out;
        CHECK(gsc_clip_factor(nullptr, &report, nullptr, 1, &out, nullptr) == GSC_ERROR_REPORT);
    }
}

/* ---- merged reports ---- */

namespace {

gsc_report merged(const gsc_report &a, const gsc_report &b)
{
    gsc_report out;
    REQUIRE(gsc_merge(nullptr, &a, &b, &out, nullptr) == GSC_OK);
    return out;
}

/* As calls leave them; sums of squares whose double sums are exact. */
gsc_report random_report(Random &random)
{
    gsc_report r = {};
    r.overflow = random.next() % 2;
    r.found_inf = static_cast<float>(r.overflow);
    r.amax = random.unit() * 100;
    r.absent = GSC_WANT_UNDERFLOW;
    if (r.overflow)
        r.first_bad = INT64_MIN + static_cast<int64_t>(random.next() % 1000);
    r.status = random.next() % 3 ? GSC_OK : GSC_ERROR_FACTOR;
    r.sum_squares = static_cast<double>(random.next() % 1000);
    for (int64_t *count : {&r.elements, &r.nan_count, &r.inf_count})
        *count = static_cast<int64_t>(random.next() % 1000);
    return r;
}

/* As a collective over the ranks would: words 0-3 MAX, 4-7 MIN, 8-9 double SUM, 10-31 SUM. */
gsc_report reduced(const gsc_report &a, const gsc_report &b)
{
    int64_t x[32], y[32];
    std::memcpy(x, &a, sizeof x);
    std::memcpy(y, &b, sizeof y);
    for (int i = 0; i < 4; i++)
        x[i] = std::max(x[i], y[i]);
    for (int i = 4; i < 8; i++)
        x[i] = std::min(x[i], y[i]);
    for (int i = 8; i < 10; i++)
        x[i] = bit_cast<int64_t>(bit_cast<double>(x[i]) + bit_cast<double>(y[i]));
    for (int i = 10; i < 32; i++)
        x[i] += y[i];
    gsc_report out;
    std::memcpy(&out, x, sizeof out);
    return out;
}

} // namespace

TEST_CASE("merging is what a collective over ranks does", "[policy]")
{
    Random random = {1};
    for (int i = 0; i < 200; i++) {
        const gsc_report a = random_report(random), b = random_report(random),
                         c = random_report(random);
        const gsc_report empty = {};
        CHECK(same(merged(a, b), reduced(a, b)));
        CHECK(same(merged(a, b), merged(b, a)));
        CHECK(same(merged(merged(a, b), c), merged(a, merged(b, c))));
        CHECK(same(merged(a, empty), a));
        CHECK(same(merged(empty, a), a));
        gsc_report place = a;
        CHECK(gsc_merge(nullptr, &place, &b, &place, nullptr) == GSC_OK);
        CHECK(same(place, merged(a, b)));
    }
}

TEST_CASE("a merged report lacks what either lacks", "[policy]")
{
    gsc_report a = {}, b = {};
    a.absent = GSC_WANT_COUNTS | GSC_WANT_NORM;
    b.absent = GSC_WANT_NORM | GSC_WANT_AMAX;
    CHECK(merged(a, b).absent == (GSC_WANT_COUNTS | GSC_WANT_NORM | GSC_WANT_AMAX));
}

TEST_CASE("a merged overflow is 1, whatever the parts say", "[policy]")
{
    gsc_report a = {}, b = {};
    a.found_inf = 2;
    b.overflow = 5;
    CHECK(merged(a, b).found_inf == 1.0f);
    CHECK(merged(a, b).overflow == 1);
    CHECK(merged(a, a).overflow == 1);
    CHECK(merged(gsc_report{}, b).found_inf == 1.0f);
}

/* ---- presets ---- */

TEST_CASE("presets can be listed, and each is a policy that can be used", "[policy]")
{
    const uint32_t count = gsc_preset_count();
    CHECK(count > 20);
    std::set<std::string> names;
    for (uint32_t i = 0; i < count; i++) {
        const std::string name = gsc_preset_name(i);
        CAPTURE(name);
        CHECK(names.insert(name).second);
        CHECK(std::string(gsc_preset_summary(i)).size() > 20);
        const gsc_policy p = preset(name);
        CHECK(p.struct_size == GSC_POLICY_SIZE);
        CHECK(gsc_policy_check(&p, nullptr) == GSC_OK);
        CHECK(start(p).factor.scale >= 1);
    }
    CHECK(gsc_preset_name(count) == nullptr);
    CHECK(gsc_preset_summary(count) == nullptr);
    CHECK(gsc_preset_name(UINT32_MAX) == nullptr);
    for (const char *name : {"recommended", "none", "static", "torch", "megatron"})
        CHECK(names.count(name) == 1);
}

TEST_CASE("none never moves and static stays where it is put", "[policy]")
{
    gsc_policy p = preset("none");
    CHECK(scales(p, start(p), ".xx.") == std::vector<double>{1, 1, 1, 1});
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
}
