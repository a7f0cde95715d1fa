// SPDX-License-Identifier: MIT
// The policy, field by field: a row says which scales a string of steps leads to ('.' a good step,
// 'x' an overflow). Also limits, events, arithmetic, factors and merged reports.
#include <set>

#include "../fuzz/fuzz.hpp"

namespace {

/* From 16, doubled every second good step, halved by an overflow. */
const Policy usual = zeros.init_scale(16).growth_factor(2).backoff_factor(0.5).growth_interval(2);

/* The states after each step. */
std::vector<gsc_state> states(const gsc_policy &p, gsc_state from, const std::string &steps)
{
    std::vector<gsc_state> all;
    for (char step : steps)
        all.push_back(from = updated(p, from, report_of(step)));
    return all;
}

gsc_state after(const gsc_policy &p, const std::string &steps)
{
    return states(p, started(p), steps).back();
}

std::vector<double> scales(const std::vector<gsc_state> &states)
{
    std::vector<double> all;
    for (const gsc_state &s : states)
        all.push_back(s.factor.scale);
    return all;
}

/* The events of each update: "skipped+stalled -". */
std::string events(const std::vector<gsc_state> &states)
{
    const std::pair<uint32_t, const char *> names[] = {
        {GSC_EVENT_GREW, "grew"},           {GSC_EVENT_BACKED_OFF, "backed_off"},
        {GSC_EVENT_SKIPPED, "skipped"},     {GSC_EVENT_ABSORBED, "absorbed"},
        {GSC_EVENT_AT_CEILING, "ceiling"},  {GSC_EVENT_AT_FLOOR, "floor"},
        {GSC_EVENT_BACKOFF_FAILED, "fail"}, {GSC_EVENT_STOPPED, "stopped"}};
    std::string all;
    for (gsc_state s : states) {
        std::string words;
        for (const auto &[event, name] : names) {
            if (s.events & event)
                words += (words.empty() ? "" : "+") + std::string(name);
            s.events &= ~event;
        }
        CHECK(s.events == 0);
        all += (all.empty() ? "" : " ") + (words.empty() ? "-" : words);
    }
    return all;
}

struct Row {
    const char *rule;
    gsc_policy policy;
    const char *steps, *scales, *events = nullptr;
    bool is_past = false; // the interval, from the start
    double scale = 0;     // that someone set; 0: the first one
};

} // namespace

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
        {"guard", GSC_TRAIT_GUARDS | GSC_TRAIT_NEEDS_NORM | GSC_TRAIT_HOLDS, 1, 1, 1, 1},
        {"recommended", GSC_TRAIT_MOVES | GSC_TRAIT_HOLDS, 65536, 2, 0.5, 1},
        {"fairseq", GSC_TRAIT_MOVES | GSC_TRAIT_NEEDS_NORM, 32768, 2, 0.5, 1},
        {"megatron", GSC_TRAIT_MOVES, 4294967296, 2, 0.5, 2},
    };
    for (const auto &row : rows) {
        CAPTURE(row.preset);
        gsc_policy p = preset_policy(row.preset), out = GSC_POLICY_INIT;
        uint32_t traits = ~0u;
        REQUIRE(gsc_policy_resolve(&p, &out, &traits, nullptr) == GSC_OK);
        CHECK(traits == row.traits);
        CHECK((out.growth_factor == row.growth && out.backoff_factor == row.backoff));
        CHECK((out.init_scale == row.init_scale && out.hysteresis == row.hysteresis));
        for (int again = 0; again < 2; again++) { // in place, and of what is resolved
            REQUIRE(gsc_policy_resolve(&p, &p, &traits, nullptr) == GSC_OK);
            CHECK(same(p, out));
        }
    }
}

TEST_CASE("a policy moves if a backoff, a growth or a limit can change its first scale", "[policy]")
{
    const Policy fixed = zeros.init_scale(1024), below = fixed.min_scale(2048);
    const std::pair<Policy, bool> rows[] = {
        {fixed, false},
        {below, true}, // the first overflow clamps it to the floor
        {below.floor_rule(GSC_LIMIT_ENFORCE), true},
        {below.floor_rule(GSC_LIMIT_REJECT), false},
        {below.floor_rule(GSC_LIMIT_CLAMP_UNLESS_PAST), false},
        {fixed.max_scale(512).ceiling_rule(GSC_LIMIT_ENFORCE), false}, // starts there
        {usual, true},
        {usual.growth_interval(0), true},
        {usual.backoff_factor(1), true},
        {usual.backoff_factor(1).growth_interval(0), false},
        {usual.min_scale(16).max_scale(16), false},
        {usual.min_scale(16).growth_interval(0), false},
    };
    for (const auto &[p, moves] : rows) {
        uint32_t traits = 0;
        CAPTURE(&p - &rows[0].first);
        REQUIRE(gsc_policy_resolve(&p, nullptr, &traits, nullptr) == GSC_OK);
        CHECK(((traits & GSC_TRAIT_MOVES) != 0) == moves);
        bool moved = false;
        for (const gsc_state &s : states(p, started(p), "xx....xx...."))
            moved |= s.factor.scale != started(p).factor.scale;
        CHECK(moved == moves);
    }
}

TEST_CASE("presets that no recording holds have these numbers", "[policy]")
{
    const uint32_t unless_past = GSC_LIMIT_CLAMP_UNLESS_PAST;
    const Policy fixed = zeros.init_scale(65536),
                 fails = zeros.max_failed_backoffs(10).bad_loss_rule(GSC_BAD_LOSS_HOLD);
    Policy recommended = fails.init_scale(65536).growth_factor(2).backoff_factor(0.5);
    recommended = recommended.growth_interval(2000).max_scale(16777216).min_scale(0x1p-14);
    recommended = recommended.ceiling_rule(unless_past).floor_rule(unless_past);
    recommended = recommended.overflow_reset(GSC_RESET_ON_GROWTH | GSC_RESET_ON_BACKOFF);
    recommended = recommended.arithmetic(GSC_ARITHMETIC_F64_TO_F32);
    Policy guard = fails.guard_ratio(10).guard_max_in_a_row(10).guard_decay(0.99);
    guard = guard.guard_warmup(100).guard_sample(GSC_SAMPLE_THRESHOLD);
    const Policy olmo = zeros.guard_sigmas(6).guard_decay(127.0 / 129).guard_warmup(63);
    const std::pair<const char *, gsc_policy> presets[] = {{"recommended", recommended},
                                                           {"none", zeros},
                                                           {"static", fixed},
                                                           {"guard", guard},
                                                           {"olmo_like", olmo}};
    for (const auto &[name, expected] : presets) {
        CAPTURE(name);
        CHECK(same(preset_policy(name), expected));
    }
}

TEST_CASE("presets can be listed, and each is a policy that can be used", "[policy]")
{
    const std::vector<std::string> names = preset_names();
    CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
    CHECK(names.size() > 20);
    for (uint32_t i = 0; i < names.size(); i++) {
        CAPTURE(names[i]);
        CHECK(std::string(gsc_preset_summary(i)).size() > 20);
        CHECK(started(preset_policy(names[i])).factor.scale >= 1);
    }
    CHECK(gsc_preset_summary(static_cast<uint32_t>(names.size())) == nullptr);
    CHECK(gsc_preset_name(UINT32_MAX) == nullptr);
}

TEST_CASE("the scales that steps lead to, and the events of each", "[policy]")
{
    const Policy ceiling = usual.max_scale(48), floor = usual.min_scale(6),
                 stuck = zeros.init_scale(16),
                 reject = usual.ceiling_rule(GSC_LIMIT_REJECT).floor_rule(GSC_LIMIT_REJECT),
                 unless_past = usual.ceiling_rule(GSC_LIMIT_CLAMP_UNLESS_PAST)
                                   .floor_rule(GSC_LIMIT_CLAMP_UNLESS_PAST),
                 stop = usual.ceiling_rule(GSC_LIMIT_STOP).floor_rule(GSC_LIMIT_STOP),
                 raised = usual.min_scale(50).floor_rule(GSC_LIMIT_ENFORCE),
                 half = usual.overflow_tolerance(0.5).growth_interval(0);
    const Row rows[] = {
        {"a growth every second good step", usual, "....", "16 32 32 64", "- grew - grew"},
        {"past it, REACHED grows at once", usual, "...", "32 32 64", nullptr, true},
        {"past it, EXACT waits for an overflow", usual.growth_rule(GSC_GROWTH_EXACT), "....x..",
         "16 16 16 16 8 8 16", nullptr, true},
        {"past it, EVERY grows at the next multiple", usual.growth_rule(GSC_GROWTH_EVERY), "....",
         "32 32 64 64", nullptr, true},
        {"past it, ALL_STEPS grows at once", usual.growth_rule(GSC_GROWTH_ALL_STEPS), "...",
         "32 32 64", nullptr, true},
        {"an overflow starts the count anew", usual, ".x..", "16 8 8 16",
         "- backed_off+skipped - grew"},
        {"interval 0 never grows", usual.growth_interval(0), "...x", "16 16 16 8"},
        {"init_scale 0 is 1", usual.init_scale(0), "..", "1 2"},
        {"growth_factor 0 is 1", usual.growth_factor(0), "..", "16 16"},
        {"backoff_factor 1 keeps the scale", usual.backoff_factor(1), "x.", "16 16",
         "skipped+fail -"},
        {"backoff_factor 0 divides by growth_factor", // 3 * 0.1 is another double
         usual.init_scale(3).growth_factor(10).backoff_factor(0), "x", "0.3"},
        {"a policy of zeros is a scale of 1", zeros, ".x.x..", "1 1 1 1 1 1"},
        {"init_scale alone is static", zeros.init_scale(100), ".x..", "100 100 100 100",
         "- skipped+fail - -"},
        // A ceiling.
        {"CLAMP ends at the limit", ceiling, "......", "16 32 32 48 48 48",
         "- grew - grew+ceiling - ceiling"},
        {"REJECT drops a growth that would reach it, and counts anew",
         reject.max_scale(32).growth_rule(GSC_GROWTH_EXACT), "...x..", "16 16 16 8 8 16",
         "- ceiling - backed_off+skipped - grew"},
        {"STOP drops it", stop.max_scale(32), "...", "16 16 16", "- ceiling+stopped -"},
        {"CLAMP_UNLESS_PAST ends at the limit", unless_past.max_scale(48), "....", "16 32 32 48"},
        {"CLAMP lowers a scale above it at the first growth", usual.init_scale(8).max_scale(8),
         "..", "16 8", "- backed_off+ceiling", false, 16},
        {"CLAMP_UNLESS_PAST leaves a scale above it until backoffs end below it",
         unless_past.init_scale(6).max_scale(6), "..xx..", "16 16 8 4 4 6",
         "- ceiling backed_off+skipped backed_off+skipped - grew+ceiling", false, 16},
        {"no ceiling is infinity, which fails",
         usual.init_scale(0x1p1023).growth_interval(1).max_failed_backoffs(1), ".x", "inf inf",
         "grew+ceiling skipped+fail+stopped"},
        // A floor.
        {"CLAMP ends at the limit, and fails only when the scale is there", floor, "xxx", "8 6 6",
         "backed_off+skipped backed_off+skipped+floor skipped+floor+fail"},
        {"CLAMP raises a start below it at the first backoff", usual.min_scale(50), ".x", "16 50",
         "- grew+skipped+floor"},
        {"ENFORCE raises a start below it after the first update", raised, ".x", "50 50"},
        {"REJECT drops one that would reach it", reject.min_scale(8), "xx", "16 16",
         "skipped+floor+fail skipped+floor+fail"},
        {"STOP drops it", stop.min_scale(6), "xx", "8 8",
         "backed_off+skipped skipped+floor+fail+stopped"},
        {"CLAMP_UNLESS_PAST ends at the limit", unless_past.min_scale(6), "xxx", "8 6 6"},
        {"CLAMP_UNLESS_PAST leaves a start below it until growths end above it",
         unless_past.min_scale(20), "xx..x", "16 16 16 32 20",
         "skipped+floor+fail skipped+floor+fail - grew backed_off+skipped+floor"},
        {"no floor ends at 0, which stays",
         usual.init_scale(0x1p-1000).backoff_factor(0x1p-74).growth_interval(1), "xxx.",
         "0x1p-1074 0 0 0"},
        // Overflows that are absorbed, and those that fail.
        {"hysteresis 3 absorbs two, then no more", usual.hysteresis(3), "xxxx", "16 16 8 4",
         "skipped+absorbed skipped+absorbed backed_off+skipped backed_off+skipped"},
        {"an absorbed overflow does not fail, as it tried nothing",
         usual.hysteresis(2).min_scale(16).overflow_reset(GSC_RESET_ON_BACKOFF), "xxx", "16 16 16",
         "skipped+absorbed skipped+floor+fail skipped+absorbed"},
        {"a share up to the tolerance is absorbed, this step included", half, ".xx", "16 16 8",
         "- skipped+absorbed backed_off+skipped"},
        {"OVERFLOW_IS_GOOD: a growth right after the backoff",
         usual.quirks(GSC_QUIRK_OVERFLOW_IS_GOOD).growth_interval(1), "xx", "16 16",
         "skipped+fail skipped+fail"},
        {"max_failed_backoffs 2, and a good step ends the row", stuck.max_failed_backoffs(2),
         "xxx.x.x", "16 16 16 16 16 16 16",
         "skipped+fail skipped+fail+stopped skipped+fail+stopped - skipped+fail - skipped+fail"},
        {"an overflow that lowers the scale is no failure", usual.max_failed_backoffs(1), "xx",
         "8 4", "backed_off+skipped backed_off+skipped"},
        {"with a delay, events are of the move", usual.apply_delay(1), "x....", "16 8 8 16 16",
         "backed_off+skipped - grew - grew"},
    };
    const gsc_state past = after(usual.growth_interval(100), ".....");
    for (const Row &row : rows) {
        gsc_state start = row.is_past ? past : started(row.policy);
        if (row.scale != 0) {
            start.factor.scale = row.scale;
            REQUIRE(gsc_state_init_from(nullptr, &row.policy, &start, &start, nullptr) == GSC_OK);
        }
        const std::vector<gsc_state> all = states(row.policy, start, row.steps);
        CAPTURE(row.rule, row.steps);
        CHECK(scales(all) == numbers(row.scales));
        CHECK(events(all) == (row.events ? row.events : events(all)));
    }
    CHECK(started(raised).factor.scale == 16); // the start itself is not touched
}

TEST_CASE("random policies and saved states keep what the fuzzer claims", "[policy]")
{
    for_seeds(4000, fuzz_states);
}

TEST_CASE("a limit that is no number of the policy's format is never passed", "[policy]")
{
    for (uint32_t arithmetic : {GSC_ARITHMETIC_F64, GSC_ARITHMETIC_F64_TO_F32, GSC_ARITHMETIC_F32,
                                GSC_ARITHMETIC_F32_FLUSH})
        for (uint32_t rule : {GSC_LIMIT_CLAMP, GSC_LIMIT_ENFORCE, GSC_LIMIT_CLAMP_UNLESS_PAST}) {
            CAPTURE(arithmetic, rule);
            const bool in_double = arithmetic == GSC_ARITHMETIC_F64;
            Policy p = usual.init_scale(1).max_scale(3.3).min_scale(0.1).arithmetic(arithmetic);
            p = p.ceiling_rule(rule).floor_rule(rule);
            // The nearest floats of 3.4 and 0.7 are beyond them; the nearest floats of 3.3 and 0.1
            // are not.
            for (const auto &[most, in_float] :
                 {std::pair(3.3, 3.3f), {3.4, std::nextafter(3.4f, 0.0f)}})
                CHECK(after(p.max_scale(most), "......").factor.scale ==
                      (in_double ? most : static_cast<double>(in_float)));
            for (const auto &[least, in_float] :
                 {std::pair(0.1, 0.1f), {0.7, std::nextafter(0.7f, 1.0f)}})
                CHECK(after(p.min_scale(least), "xxxxx").factor.scale ==
                      (in_double ? least : static_cast<double>(in_float)));
            if (rule != GSC_LIMIT_ENFORCE)
                continue;
            p = p.init_scale(100).max_scale(3.4);
            CHECK(started(p).factor.scale <= 3.4);
            p = p.min_scale(0.1).max_scale(0.1); // no float is both at least and at most this
            CHECK(gsc_policy_check(&p, nullptr) == (in_double ? GSC_OK : GSC_ERROR_POLICY));
        }
}

TEST_CASE("a factor holds scale and inverse, as doubles and rounded", "[policy]")
{
    for (double scale : {1.0, 3.0, 65536.0, 3e38, 1e-38, 1e39, 1e-42, 1e-300}) {
        const Policy p = usual.growth_interval(0).init_scale(scale);
        gsc_factor expected = factor_of(scale, 1 / scale);
        const bool has_floats = scale >= 1e-38 && scale <= 3e38; // of scale and inverse
        gsc_factor factor = {};
        CHECK(gsc_factor_init(scale, &factor, nullptr) == (has_floats ? GSC_OK : GSC_ERROR_VALUE));
        CHECK(same(factor, has_floats ? expected : gsc_factor{}));
        expected.generation = 1;
        CHECK(same(started(p).factor, expected));
        expected.generation = 2;
        CHECK(same(after(p, ".").factor, expected));
    }
}

TEST_CASE("a factor times k: the loss by k times the scale, the gradients by a k-th", "[policy]")
{
    for (double scale : {1.0, 3.0, 65536.0, 1e39, 0x1p-1000})
        for (double by : {1.0, 7.0, 0.125, 1e-30, 1e300, 0x1p1023}) {
            gsc_factor factor = {scale, 1 / scale, 0, 0, 5}, product = {};
            const double inverse = 1 / scale / by;
            const bool has_floats = scale * by >= 1e-38 && scale * by <= 3e38;
            const gsc_status status = has_floats ? GSC_OK : GSC_ERROR_VALUE;
            const gsc_factor expected = factor_of(scale * by, inverse, 5), before = factor;
            CAPTURE(scale, by);
            CHECK(gsc_factor_multiply(nullptr, &factor, by, &product, nullptr) == status);
            CHECK(same(product, has_floats ? expected : gsc_factor{}));
            CHECK(gsc_factor_multiply(nullptr, &factor, by, &factor, nullptr) == status);
            CHECK(same(factor, has_floats ? expected : before));
        }
}

TEST_CASE("gsc_factor_clip_grad_norm multiplies by the coefficient of torch's clip_grad_norm_",
          "[policy]")
{
    const struct {
        double sum_squares, max_norm, coefficient;
    } rows[] = {
        {25, 1, 1 / (5 + 1e-6)},
        {25, 5, 5 / (5 + 1e-6)},
        {25, 5.1, 1},
        {0, 1, 1},
        {1e-20, 1e-8, 1e-8 / (1e-10 + 1e-6)},
        {25, 1e300, 1},
        {1e300, 1, 1 / (1e150 + 1e-6)},
    };
    const gsc_factor half = {2, 0.5, 2, 0.5, 9};
    for (const auto &row : rows) {
        gsc_report report = measured;
        report.sum_squares = row.sum_squares;
        gsc_factor of_half, of_one;
        CHECK(gsc_factor_clip_grad_norm(nullptr, &half, &report, row.max_norm, &of_half, nullptr) ==
              GSC_OK);
        CHECK(gsc_factor_clip_grad_norm(nullptr, nullptr, &report, row.max_norm, &of_one,
                                        nullptr) == GSC_OK);
        const double inverse = 0.5 * row.coefficient;
        CAPTURE(row.sum_squares, row.max_norm);
        CHECK(same(of_half, factor_of(2, inverse, 9)));
        CHECK((of_one.inverse == row.coefficient && of_one.scale == 1));
    }
}

TEST_CASE("a report says what it is of: nothing filled in is no good step, and a number is no part "
          "of a merge",
          "[policy]")
{
    const Policy by_norm = usual.overflow_test(GSC_TEST_NORM);
    gsc_state s = started(usual);
    const auto update = [&](const gsc_policy &p, const gsc_report &r) {
        return gsc_state_update(nullptr, &p, &s, &r, &s, nullptr);
    };
    gsc_report report = {};
    CHECK(update(usual, report) == GSC_ERROR_REPORT);
    report.found_inf = 1; // as a framework leaves it that all-reduced it
    CHECK(update(usual, report) == GSC_OK);
    CHECK(s.skip == 1);

    for (int32_t flag : {0, -3}) {
        REQUIRE(gsc_report_from_flag(flag, &report, nullptr) == GSC_OK);
        CHECK((report.kind == GSC_REPORT_FLAG && report.measured == 0));
        CHECK((report.overflow == (flag != 0) && report.found_inf == (flag ? 1.0f : 0.0f)));
        CHECK(update(usual, report) == GSC_OK);
        CHECK(s.skip == (flag != 0));
        CHECK(update(by_norm, report) == (flag ? GSC_OK : GSC_ERROR_REPORT));
    }

    gsc_report number, all;
    REQUIRE(gsc_report_from_number(-3, &number, nullptr) == GSC_OK);
    CHECK((number.kind == GSC_REPORT_NUMBER && number.number == -3 && number.sum_squares == 0));
    CHECK(update(by_norm, number) == GSC_OK);
    gsc_error err = {};
    const gsc_report list[] = {report, number};
    CHECK(gsc_report_merge(nullptr, list, 2, GSC_MERGE_SHARDS, nullptr, &all, &err) ==
          GSC_ERROR_REPORT);
    CHECK((err.index == 1 && std::string(err.field) == "kind"));
    gsc_factor clip;
    CHECK(gsc_factor_clip_grad_norm(nullptr, nullptr, &number, 1, &clip, nullptr) ==
          GSC_ERROR_REPORT);
}

TEST_CASE("a count at the end of its range does not run over", "[policy]")
{
    int64_t gsc_state::*const counts[] = {
        &gsc_state::good_steps,          &gsc_state::steps_since_change,
        &gsc_state::failed_backoffs,     &gsc_state::overflows_since_reset,
        &gsc_state::total_overflows,     &gsc_state::total_growths,
        &gsc_state::total_backoffs,      &gsc_state::total_updates,
        &gsc_state::bad_losses_in_a_row, &gsc_state::empty_in_a_row};
    const Policy p = usual.growth_interval(0);
    for (const auto count : counts)
        for (char step : {'.', 'x'}) {
            gsc_state s = started(p);
            s.*count = INT64_MAX;
            const gsc_report report = report_of(step);
            const gsc_status status = gsc_state_update(nullptr, &p, &s, &report, &s, nullptr);
            CHECK((status == GSC_ERROR_STATE || (status == GSC_OK && s.*count >= 0)));
        }
}

TEST_CASE("a state of one floating-point mode is updated, saved and loaded in any other",
          "[policy]")
{
    const struct {
        double scale, factor;
        char steps;
    } rows[] = {{3, 1.1, '.'}, {0x1p+970, 1.5, '.'}, {0x1p-970, 1.5, 'x'}, {0x1p-970, 2, 'x'}};
    for (const auto &row : rows)
        for (const Mode &made : modes())
            for (const Mode &used : modes()) {
                const Policy p = usual.init_scale(row.scale)
                                     .growth_factor(row.factor)
                                     .growth_interval(1)
                                     .backoff_factor(0);
                const gsc_report report = report_of(row.steps);
                gsc_state state, after, loaded;
                gsc_policy policy = GSC_POLICY_INIT;
                unsigned char saved[GSC_SAVED_SIZE_MAX];
                uint64_t size = 0;
                gsc_status status = gsc_state_init(nullptr, &p, &state, nullptr);
                bool kept = true;
                for (int step = 0; step < 200; step++) {
                    const InMode mode(made);
                    status |= gsc_state_update(nullptr, &p, &state, &report, &state, nullptr);
                    const InMode other(used);
                    status |= gsc_state_save(&p, &state, saved, sizeof saved, &size, nullptr);
                    status |= gsc_state_load(saved, size, &policy, &loaded, nullptr);
                    status |= gsc_state_update(nullptr, &p, &state, &report, &after, nullptr);
                    kept &= same(state, loaded);
                }
                CAPTURE(row.scale, made.name, used.name);
                CHECK(status == GSC_OK);
                CHECK(kept);
            }
}

TEST_CASE("in any floating-point mode the scale of every preset stays as it is, up to rounding",
          "[policy]")
{
    for (const std::string &name : preset_names()) {
        Policy p = preset_policy(name);
        p = p.growth_interval(std::min<uint64_t>(p.gsc_policy::growth_interval, 7));
        const auto scale_in = [&](const Mode &mode) {
            const InMode now(mode);
            gsc_state state = started(p);
            for (int step = 1; step < 300; step++)
                state = updated(p, state, report_of(step % 50 < 3 ? 'x' : '.'));
            return state.factor.scale;
        };
        const double usual_scale = scale_in(modes()[0]);
        for (const Mode &mode : modes()) {
            CAPTURE(name, mode.name);
            CHECK(std::fabs(scale_in(mode) / usual_scale - 1) < 1e-4);
        }
    }
}

TEST_CASE("a state can be made from a scale alone", "[policy]")
{
    gsc_state all_zeros = {}, made;
    all_zeros.factor.scale = 16; // as someone who keeps a scale alone makes it
    REQUIRE(gsc_state_init_from(nullptr, &usual, &all_zeros, &made, nullptr) == GSC_OK);
    CHECK(same(made, started(usual)));
}

TEST_CASE("a merge is member by member what the contract says, in order, of any number of reports, "
          "of ranks and of merges; with a policy it has its verdict, or is refused if that is not "
          "known",
          "[policy]")
{
    const std::pair<Policy, uint32_t> judges[] = {
        {usual, 0},
        {usual.overflow_test(GSC_TEST_NORM), GSC_WANT_NORM},
        {usual.bad_loss_rule(GSC_BAD_LOSS_HOLD).max_failed_backoffs(1), 0},
    };
    Random random = {1};
    for (uint64_t n : {0u, 1u, 2u, 3u, 63u, 64u, 65u, 128u, 129u, 1000u, 4097u})
        for (uint32_t kind : {GSC_MERGE_SHARDS, GSC_MERGE_ADDENDS})
            for (int round = n < 4 ? 0 : 398; round < 400; round++) { // every second one fails
                const bool failing = round % 2;
                Reports reports;
                while (reports.size() < n) {
                    const auto rank_plus_1 = static_cast<uint32_t>(reports.size()) + 1;
                    const gsc_report r = random_report(random, rank_plus_1);
                    if (failing || (!says_overflow(r) && r.found_inf == 0))
                        reports.push_back(r);
                }
                CAPTURE(n, kind, failing);
                const gsc_report expected = merged_by_hand(reports, kind);
                CHECK(same(merged(reports, kind), expected));
                for (uint64_t place = 0; place < n; place += 1 + n / 3) { // *out may be one of them
                    Reports places = reports;
                    CHECK(gsc_report_merge(nullptr, places.data(), n, kind, nullptr, &places[place],
                                           nullptr) == GSC_OK);
                    CHECK(same(places[place], expected));
                }
                for (const auto &[p, needs] : judges) {
                    gsc_report verdict = expected, out;
                    const bool refused = !expected.overflow &&
                                         !(expected.found_inf != 0 && !holds(p, expected)) &&
                                         (needs & ~expected.measured);
                    verdict.overflow = is_overflow(p, expected);
                    verdict.found_inf = static_cast<float>(verdict.overflow || holds(p, expected));
                    std::memset(&out, 0x5a, sizeof out);
                    if (refused)
                        verdict = out;
                    CHECK(gsc_report_merge(nullptr, reports.data(), n, kind, &p, &out, nullptr) ==
                          (refused ? GSC_ERROR_REPORT : GSC_OK));
                    CHECK(same(out, verdict));
                }
            }
}
