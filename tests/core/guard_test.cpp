// SPDX-License-Identifier: MIT
// The guard: norms that are finite but absurd are skipped or clipped, by the rule of the header, in
// plain doubles; nothing else enters its mean, and nobody is locked out by accident.
#include "support.hpp"

namespace {

constexpr uint32_t skipped = GSC_EVENT_SKIPPED, clipped = GSC_EVENT_CLIPPED,
                   outlier = GSC_EVENT_OUTLIER, stopped = GSC_EVENT_STOPPED;

/* Returns the report on gradients with this norm; NaN and Inf are as unscaling finds them. */
gsc_report report_of_norm(double norm)
{
    gsc_report report;
    claim(gsc_report_from_number(norm, &report, nullptr) == GSC_OK, "a number has a report");
    return report;
}

gsc_state updated(const gsc_policy &p, const gsc_state &state, double norm)
{
    return updated(p, state, report_of_norm(norm));
}

gsc_state after(const gsc_policy &p, gsc_state state, const std::vector<double> &norms)
{
    for (double norm : norms)
        state = updated(p, state, norm);
    return state;
}

gsc_state after(const gsc_policy &p, const std::vector<double> &norms)
{
    return after(p, started(p), norms);
}

/* The rule, as the header tells it. */
struct Plain {
    double mean = 0, variance = 0, multiplier = 1, threshold = 0;
    uint64_t count = 0, run = 0;
    bool is_outlier = false, stops = false, clips = false;

    void enter(const gsc_policy &p, double sample)
    {
        count++;
        double weight = 1 / static_cast<double>(count);
        const bool plain =
            count <= p.guard_warmup || p.guard_decay == 0 || (count == 1 && p.guard_init_mean == 0);
        if (!plain)
            weight = 1 - p.guard_decay;
        const double rest = 1 - weight, d = sample - mean;
        const double moved = weight * d;
        mean = mean + moved;
        if (!plain && p.guard_flags & GSC_GUARD_VARIANCE_AFTER_MEAN)
            variance = rest * variance + weight * ((sample - mean) * (sample - mean));
        else
            variance = rest * (variance + d * moved);
    }

    void step(const gsc_policy &p, double x)
    {
        is_outlier = stops = clips = false;
        multiplier = threshold = 0;
        if (!std::isfinite(x))
            return;
        multiplier = 1;
        if (count == 0 && p.guard_init_mean != 0)
            mean = p.guard_init_mean;
        std::vector<double> thresholds = {infinity};
        if (count >= p.guard_warmup) {
            if (p.guard_norm != 0)
                thresholds.push_back(p.guard_norm);
            if (p.guard_ratio != 0 && mean > 0)
                thresholds.push_back(p.guard_ratio * mean);
            if (p.guard_sigmas != 0 && (variance > 0 || p.guard_init_mean != 0))
                thresholds.push_back(mean + p.guard_sigmas * std::sqrt(variance));
        }
        const double t = *std::min_element(thresholds.begin(), thresholds.end());
        threshold = std::isfinite(t) ? t : 0;
        is_outlier = x > t || (x == t && p.guard_flags & GSC_GUARD_INCLUSIVE);
        run = is_outlier ? run + 1 : 0;
        const bool at_limit =
            is_outlier && p.guard_max_in_a_row != 0 && run >= p.guard_max_in_a_row;
        stops = at_limit && p.guard_flags & GSC_GUARD_STOP;
        if (!is_outlier || (at_limit && !stops))
            return enter(p, x);
        double target = t;
        if (t > mean && p.guard_flags & GSC_GUARD_CLIP_TO_MEAN)
            target = mean;
        else if (t > mean && p.guard_flags & GSC_GUARD_CLIP_PROGRESSIVE)
            target = mean + (t - mean) * ((t - mean) / (x - mean));
        multiplier = p.guard_flags & GSC_GUARD_CLIP && target > 0 ? target / x : 0;
        clips = multiplier > 0;
        if (p.guard_sample == GSC_SAMPLE_AS_IS)
            enter(p, x);
        if (p.guard_sample == GSC_SAMPLE_THRESHOLD)
            enter(p, target);
    }
};

/* Norms as a run has them, or losses below 0: noise about a level that may shift, spikes, what is
 * not finite. */
std::vector<double> series(Random &random, size_t steps)
{
    std::vector<double> norms;
    double level = (random.next() % 8 ? 1 : -1) * std::exp(8 * random.unit() - 4);
    const double noise = random.unit();
    for (size_t i = 0; i < steps; i++) {
        const uint64_t kind = random.next() % 32;
        double x = level * std::exp(noise * (random.unit() + random.unit() - 1));
        if (kind == 0)
            x *= std::exp(10 * random.unit());
        if (kind == 1 && random.next() % 4 == 0)
            level *= 3;
        if (kind == 2)
            x = random.next() % 2 ? nan_value : infinity;
        if (kind == 3)
            x = 0;
        if (kind == 4)
            x = level; // again and again the same
        norms.push_back(x);
    }
    return norms;
}

gsc_policy any_guard(Random &random)
{
    gsc_policy p = zeros;
    while (p.guard_norm == 0 && p.guard_ratio == 0 && p.guard_sigmas == 0) {
        p.guard_norm = random.next() % 3 ? 0 : std::exp(8 * random.unit() - 4);
        p.guard_ratio = random.next() % 2 ? 0 : 1 + 5 * random.unit() + 0x1p-20;
        p.guard_sigmas = random.next() % 2 ? 0 : 6 * random.unit();
    }
    p.guard_decay = random.next() % 4 ? random.unit() : 0;
    p.guard_init_mean = random.next() % 4 ? 0 : random.unit();
    p.guard_warmup = random.next() % 3 ? random.next() % 20 : 0;
    p.guard_max_in_a_row = random.next() % 3 ? random.next() % 8 : 0;
    p.guard_sample = static_cast<uint32_t>(random.next() % 3);
    p.guard_flags = static_cast<uint32_t>(random.next() % 256) & ~GSC_GUARD_BIAS_CORRECTED;
    if (!(p.guard_flags & GSC_GUARD_CLIP))
        p.guard_flags &= ~(GSC_GUARD_CLIP_PROGRESSIVE | GSC_GUARD_CLIP_TO_MEAN);
    p.quirks = GSC_QUIRK_ALLOW_LOCKOUT;
    return p;
}

/* Returns whether a guard is refused, with this reason; a limit or a quirk mends it. */
bool refused(const Policy &p, const std::string &why)
{
    gsc_error err = {};
    const bool bad = gsc_policy_check(&p, &err) != GSC_OK;
    if (bad)
        CHECK_WORDING(err.message == "policy.guard_max_in_a_row is 0: it must be above 0: " + why);
    for (const Policy &mended : {p.guard_max_in_a_row(1), p.quirks(GSC_QUIRK_ALLOW_LOCKOUT)})
        CHECK(gsc_policy_check(&mended, nullptr) == GSC_OK);
    return bad;
}

} // namespace

TEST_CASE("the guard does what the header says, on 10,000 series", "[guard][arithmetic]")
{
    Random random = {23};
    int64_t outliers = 0;
    for (int i = 0; i < 10000; i++) {
        const gsc_policy p = any_guard(random);
        gsc_state s = started(p);
        Plain plain;
        int64_t skips = 0;
        for (double x : series(random, 100)) {
            s = updated(p, s, x);
            plain.step(p, x);
            skips += plain.is_outlier && plain.multiplier == 0;
            outliers += plain.is_outlier;
            const auto has = [&](uint32_t event) { return (s.events & event) != 0; };
            if (s.guard_mean == plain.mean && s.guard_variance == plain.variance &&
                static_cast<uint64_t>(s.guard_count) == plain.count &&
                static_cast<uint64_t>(s.guard_in_a_row) == plain.run &&
                s.guard_multiplier == plain.multiplier && s.total_guard_skips == skips &&
                s.guard_threshold == plain.threshold && has(outlier) == plain.is_outlier &&
                has(skipped) == (plain.multiplier == 0) && has(clipped) == plain.clips &&
                has(stopped) == plain.stops && s.skip_f32 == (has(skipped) ? 1.0f : 0.0f))
                continue;
            FAIL(i << ": norm " << x << ", flags " << p.guard_flags << ", sample " << p.guard_sample
                   << ", threshold " << s.guard_threshold << ", events " << s.events << ", mean "
                   << s.guard_mean << ", not " << plain.mean << ", multiplier "
                   << s.guard_multiplier << ", not " << plain.multiplier);
        }
    }
    CHECK(outliers > 50000);
}

TEST_CASE("a guard that may lock itself out is refused", "[guard]")
{
    const std::string why = "guard_sample keeps outliers out, so after a lasting change of level "
                            "all steps would be outliers";
    const struct {
        uint32_t sample, flags;
        bool refused;
    } rows[] = {
        {GSC_SAMPLE_AS_IS, 0, false},
        {GSC_SAMPLE_NONE, 0, true},
        {GSC_SAMPLE_NONE, GSC_GUARD_CLIP, true},
        {GSC_SAMPLE_THRESHOLD, 0, true},
        {GSC_SAMPLE_THRESHOLD, GSC_GUARD_CLIP, false},
        {GSC_SAMPLE_THRESHOLD, GSC_GUARD_CLIP | GSC_GUARD_CLIP_PROGRESSIVE, true},
        {GSC_SAMPLE_THRESHOLD, GSC_GUARD_CLIP | GSC_GUARD_CLIP_TO_MEAN, true},
    };
    for (const auto &row : rows) {
        CAPTURE(row.sample, row.flags);
        const Policy p = zeros.guard_sample(row.sample).guard_flags(row.flags);
        CHECK(refused(p.guard_ratio(3), why) == row.refused);
        CHECK(refused(p.guard_sigmas(3), why) == row.refused);
        CHECK_FALSE(refused(p.guard_norm(5), why)); // which nothing moves
    }
    // A threshold that enters widens the spread only if it is far enough from the mean.
    for (uint32_t after : {0u, GSC_GUARD_VARIANCE_AFTER_MEAN})
        for (double sigmas : {1.0, 1.5, 2.5}) {
            const Policy p = zeros.guard_sigmas(sigmas).guard_decay(0.5);
            const bool follows = sigmas * (after ? 0.5 : std::sqrt(0.5)) > 1;
            CHECK(refused(p.guard_sample(GSC_SAMPLE_THRESHOLD).guard_flags(GSC_GUARD_CLIP | after),
                          why) == !follows);
        }
}

TEST_CASE("a guard that roundings may lock out is refused", "[guard]")
{
    const uint32_t at = GSC_GUARD_INCLUSIVE, clip = GSC_GUARD_CLIP, as_is = GSC_SAMPLE_AS_IS,
                   after = GSC_GUARD_VARIANCE_AFTER_MEAN;
    const struct {
        double sigmas, ratio, decay, start;
        uint32_t sample, flags;
        bool refused;
    } rows[] = {
        {0.5, 0, 0.99, 0, as_is, 0, true},
        {0.5, 0, 0.999, 0, as_is, 0, true},
        {1.0, 0, 0.99, 0, as_is, clip, true},
        {1.1, 0, 0.99, 0, as_is, 0, false},
        {1.1, 0, 0.3, 0, as_is, 0, true},
        {1.1, 0, 0.3, 0, as_is, after, false},
        {0.5, 0, 0, 0, as_is, 0, false}, // samples that weigh less and less keep the spread
        {3, 0, 0.99, 0, as_is, at, true},
        {3, 0, 0, 1, as_is, at, true},
        {3, 0, 0, 0, as_is, at, false},
        {0, 1.01, 0.99, 0, as_is, at, false},
        {0, 1.0001, 1 - 0x1p-40, 0, as_is, 0, true},
        {0, 1.0001, 1 - 0x1p-40, 0, GSC_SAMPLE_THRESHOLD, clip, true},
        {0, 1.0001, 1 - 0x1p-30, 0, as_is, 0, false},
    };
    for (const auto &row : rows) {
        const Policy p =
            zeros.guard_sigmas(row.sigmas).guard_ratio(row.ratio).guard_decay(row.decay);
        CAPTURE(row.sigmas, row.ratio, row.decay, row.start, row.flags);
        CHECK(refused(p.guard_init_mean(row.start).guard_sample(row.sample).guard_flags(row.flags),
                      "roundings could make all steps outliers while the norm stays the same") ==
              row.refused);
    }
}

TEST_CASE("no guard that is accepted refuses a norm that stays the same", "[guard][arithmetic]")
{
    Random random = {6};
    int accepted = 0;
    for (int i = 0; i < 2000; i++) {
        const double decays[] = {0, 0.3, 0.9, 0.99, 0.999}, starts[] = {0, 0, 1};
        const double sigmas[] = {0, 0.5, 1, 1.0001, 1.2, 3}, ratios[] = {0, 1.01, 1.5, 10};
        gsc_policy p = any_guard(random);
        p.quirks = 0;
        p.guard_norm = 0;
        p.guard_max_in_a_row = 0;
        p.guard_sigmas = sigmas[random.next() % 6];
        p.guard_ratio = ratios[random.next() % 4];
        p.guard_decay = decays[random.next() % 5];
        p.guard_init_mean = starts[random.next() % 3];
        if (gsc_policy_check(&p, nullptr) != GSC_OK || (p.guard_ratio == 0 && p.guard_sigmas == 0))
            continue;
        accepted++;
        const double norm = random.next() % 2 ? 1 : std::exp(20 * random.unit() - 10);
        gsc_state s = started(p);
        for (int step = 0; step < 20; step++)
            s = updated(p, s, norm * (0.9 + 0.2 * random.unit()));
        // Until nothing is left of them but what roundings leave.
        for (int step = p.guard_decay == 0.999 ? 0 : 25000; step < 29000; step++)
            s = updated(p, s, norm);
        const int64_t skips = s.total_guard_skips;
        for (int step = 0; step < 1000; step++)
            s = updated(p, s, norm);
        CAPTURE(i, norm, p.guard_ratio, p.guard_sigmas, p.guard_decay, p.guard_init_mean,
                p.guard_sample, p.guard_flags);
        REQUIRE(s.total_guard_skips == skips);
    }
    CHECK(accepted > 250);
}

TEST_CASE("a threefold shift is followed by every guard that is accepted", "[guard][arithmetic]")
{
    Random random = {5};
    int accepted = 0;
    for (int i = 0; i < 2000; i++) {
        gsc_policy p = any_guard(random);
        p.quirks = 0;
        p.guard_norm = 0;
        p.guard_sigmas = p.guard_sigmas == 0 ? 0 : 1.5 + p.guard_sigmas;
        p.guard_flags &= ~GSC_GUARD_STOP;
        p.guard_decay = p.guard_decay == 0 ? 0.9 : p.guard_decay * 0.99; // forgets within the steps
        if (gsc_policy_check(&p, nullptr) != GSC_OK || (p.guard_ratio == 0 && p.guard_sigmas == 0))
            continue;
        accepted++;
        gsc_state s = started(p);
        for (int step = 0; step < 3300; step++)
            s = updated(p, s, (step < 300 ? 1 : 3) * (0.8 + 0.4 * random.unit()));
        CAPTURE(i, p.guard_ratio, p.guard_sigmas, p.guard_decay, p.guard_sample, p.guard_flags);
        REQUIRE(s.guard_mean > 2);
    }
    CHECK(accepted > 350);
}

TEST_CASE("a step that is skipped leaves the scale alone, or counts for it", "[guard]")
{
    const Policy scale = zeros.init_scale(16).growth_factor(2).backoff_factor(0.5);
    const Policy two_absorbed = scale.hysteresis(2).overflow_reset(GSC_RESET_ON_GOOD_STEP);
    const Policy p = two_absorbed.growth_interval(3).guard_norm(2);
    const gsc_state two = after(p, {1, 1});
    gsc_state s = after(p, two, {9, 9, 9, 9});
    CHECK((s.factor.scale == 16 && s.good_steps == 2 && s.steps_since_change == 2));
    CHECK(s.factor.generation == two.factor.generation + 4);
    CHECK(after(p, s, {1}).factor.scale == 32);
    s = after(p.guard_flags(GSC_GUARD_SKIP_IS_GOOD), two, {9});
    CHECK(s.factor.scale == 32);
    CHECK(s.events == (outlier | skipped | GSC_EVENT_GREW));
    // An overflow is one, whatever the norm of its finite elements.
    gsc_report report = report_of_norm(9);
    report.overflow = 1;
    s = updated(p, updated(p, two, report), report);
    CHECK(s.factor.scale == 8);
    CHECK((s.total_overflows == 2 && s.total_guard_skips == 0 && s.guard_count == 2));
    // A clipped step is a good one.
    CHECK(after(p.guard_flags(GSC_GUARD_CLIP), two, {9}).factor.scale == 32);
}

TEST_CASE("a clip folds into a factor as gsc_factor_clip_grad_norm does", "[guard]")
{
    const Policy p = zeros.guard_norm(2).guard_flags(GSC_GUARD_CLIP);
    const gsc_factor factor = {1024, 0x1p-10, 1024, 0x1p-10f, 3};
    gsc_factor out;
    gsc_state s = after(p, {8});
    CHECK(s.events == (outlier | clipped));
    CHECK((s.guard_multiplier == 0.25 && s.guard_threshold == 2 && s.guard_value == 8));
    REQUIRE(gsc_factor_clip_outlier(nullptr, &factor, &s, &out, nullptr) == GSC_OK);
    CHECK(same(out, gsc_factor{1024, 0x1p-12, 1024, 0x1p-12f, 3}));
    REQUIRE(gsc_factor_clip_outlier(nullptr, nullptr, &s, &out, nullptr) == GSC_OK);
    CHECK((out.scale == 1 && out.inverse == 0.25 && out.inverse_f32 == 0.25f));
    // If nothing is clipped, skipped steps included, the factor is what it was.
    for (double x : {1.0, nan_value}) {
        const gsc_state other = after(p, {x});
        REQUIRE(gsc_factor_clip_outlier(nullptr, &factor, &other, &out, nullptr) == GSC_OK);
        CHECK(same(out, factor));
    }
    s.guard_multiplier = 0x1p-1074; // which no factor can hold
    gsc_error err = {};
    CHECK(gsc_factor_clip_outlier(nullptr, &factor, &s, &out, &err) == GSC_ERROR_FACTOR);
    CHECK_WORDING(std::string(err.message).find("state.guard_multiplier is ") == 0);
}

TEST_CASE("the report of a number: its magnitude, its sign, and what is none", "[guard]")
{
    Random random = {11};
    const Policy p = zeros.guard_sigmas(3);
    for (int i = 0; i < 2000; i++) {
        const double x =
            std::ldexp(random.unit() - 0.5, static_cast<int>(random.next() % 900) - 450);
        const gsc_report report = report_of_norm(x);
        CHECK((report.overflow == 0 && report.elements == 1 && report.amax == std::fabs(x)));
        REQUIRE(after(p, {x}).guard_mean == x); // squared and back, to the bit
    }
    for (double x : {nan_value, infinity, -infinity, 0x1.8p500, -0x1.8p500}) {
        const gsc_report report = report_of_norm(x);
        CHECK((report.overflow == 1 && report.found_inf == 1 && report.number == 0));
        CHECK(report.nan_count == std::isnan(x));
        CHECK(report.inf_count == !std::isnan(x));
    }
}

TEST_CASE("decisions of two signals are joined", "[guard]")
{
    const Policy loss = zeros.guard_norm(2), norm = loss.init_scale(8).guard_flags(GSC_GUARD_CLIP);
    const auto joined = [](const gsc_state &a, const gsc_state &b) {
        gsc_state out;
        REQUIRE(gsc_state_combine_decisions(nullptr, &a, &b, &out, nullptr) == GSC_OK);
        return out;
    };
    const struct {
        double norm, loss;
        uint32_t events;
        double multiplier;
    } rows[] = {
        {1, 1, 0, 1},
        {4, 1, outlier | clipped, 0.5},
        {1, 4, outlier | skipped, 0},
        {4, 4, outlier | skipped, 0},
        {1, nan_value, skipped, 0},
        {nan_value, 1, skipped | GSC_EVENT_BACKOFF_FAILED, 0},
    };
    for (const auto &row : rows) {
        const gsc_state a = after(norm, {row.norm}), out = joined(a, after(loss, {row.loss}));
        gsc_state expected = a; // the rest, with which it goes on, is its own
        expected.events = row.events;
        expected.guard_multiplier = row.multiplier;
        expected.skip = row.events & skipped ? 1 : 0;
        expected.skip_f32 = static_cast<float>(expected.skip);
        CAPTURE(row.norm, row.loss);
        CHECK(same(out, expected));
    }
    // Both clip: by the smaller one. A failure of the other is one of both.
    gsc_state a = after(norm, {4}), b = after(loss.guard_flags(GSC_GUARD_CLIP), {8});
    CHECK(joined(a, b).guard_multiplier == 0.25);
    CHECK(joined(b, a).guard_multiplier == 0.25);
    b.status = GSC_ERROR_REPORT;
    b.events = skipped;
    REQUIRE(gsc_state_combine_decisions(nullptr, &a, &b, &a, nullptr) == GSC_OK);
    CHECK((a.status == GSC_ERROR_REPORT && a.skip_f32 == 1 && a.events == (outlier | skipped)));
}

TEST_CASE("the reason of an update is said as data and as a sentence", "[guard]")
{
    const Policy losses = zeros.guard_norm(2).guard_max_in_a_row(2),
                 clips = losses.guard_flags(GSC_GUARD_CLIP | GSC_GUARD_STOP),
                 fails = zeros.max_failed_backoffs(1), grows = zeros.growth_factor(2),
                 stops = grows.growth_interval(1).ceiling_rule(GSC_LIMIT_STOP).max_scale(1);
    gsc_state failed = started(losses), both;
    failed.status = GSC_ERROR_REPORT;
    failed.events = skipped;
    const gsc_state clipped_once = after(clips, {8}), calm = after(clips, {1});
    REQUIRE(gsc_state_combine_decisions(nullptr, &calm, &clipped_once, &both, nullptr) == GSC_OK);
    const struct {
        gsc_state state;
        uint32_t outcome, cause;
        double value, threshold, multiplier;
        int64_t in_a_row;
        const char *message;
    } rows[] = {
        {started(losses), GSC_OUTCOME_TAKEN, GSC_CAUSE_NONE, 0, 0, 1, 0, ""},
        {calm, GSC_OUTCOME_TAKEN, GSC_CAUSE_NONE, 0, 0, 1, 0, ""},
        {after(losses, {3}), GSC_OUTCOME_SKIPPED, GSC_CAUSE_OUTLIER, 3, 2, 0, 1,
         "skipped: the norm, 3, is above 2"},
        {after(losses, started(losses), {3, 4}), GSC_OUTCOME_LET_THROUGH, GSC_CAUSE_OUTLIER, 4, 2,
         1, 2, "let through: the norm, 4, is above 2, 2 in a row"},
        {after(losses, {nan_value}), GSC_OUTCOME_SKIPPED, GSC_CAUSE_OVERFLOW, 0, 0, 0, 0,
         "skipped: overflow"},
        {clipped_once, GSC_OUTCOME_CLIPPED, GSC_CAUSE_OUTLIER, 8, 2, 0.25, 1,
         "clipped: multiplied by 0.25: the norm, 8, is above 2"},
        {after(clips, clipped_once, {4}), GSC_OUTCOME_STOPPED, GSC_CAUSE_OUTLIER, 4, 2, 0.5, 2,
         "stopped: the norm, 4, is above 2, 2 in a row: look at the data and the learning rate"},
        {after(fails, {nan_value}), GSC_OUTCOME_STOPPED, GSC_CAUSE_OVERFLOW, 0, 0, 0, 0,
         "stopped: overflow, at a scale of 1: look at the input, the loss and the parameters, and "
         "go back to an earlier checkpoint; see docs/skipped.md#backward"},
        {after(stops, {1}), GSC_OUTCOME_STOPPED, GSC_CAUSE_CEILING, 0, 0, 1, 0,
         "stopped: the scale, 1, would pass max_scale"},
        {both, GSC_OUTCOME_CLIPPED, GSC_CAUSE_OTHER_STATE, 0, 0, 0.25, 0,
         "clipped: multiplied by 0.25: decided by a combined state"},
        {failed, GSC_OUTCOME_SKIPPED, GSC_CAUSE_FAILURE, 0, 0, 0, 0,
         "skipped: the update failed: the report failed or lacks what the policy "
         "needs"},
    };
    for (const auto &row : rows) {
        gsc_reason r;
        std::memset(&r, 0xff, sizeof r);
        REQUIRE(gsc_state_reason(&row.state, nullptr, nullptr, nullptr, nullptr, nullptr, 0, &r,
                                 nullptr) == GSC_OK);
        CHECK_WORDING(std::string(r.message) == row.message);
        CHECK((r.outcome == row.outcome && r.cause == row.cause));
        CHECK((r.value == row.value && r.threshold == row.threshold));
        CHECK((r.multiplier == row.multiplier && r.in_a_row == row.in_a_row));
        CHECK((r.tensor == -1 && r.rank == -1 && r.reserved[0] == 0 && r.reserved[4] == 0));
    }
}

TEST_CASE("a state of a version without a guard goes on under one", "[guard]")
{
    const gsc_state s = after(zeros, {1, nan_value});
    const Policy p = zeros.guard_ratio(2);
    CHECK(after(p.guard_init_mean(1), s, {3}).events == (outlier | skipped));
    CHECK(after(p, s, {3}).events == 0);
    CHECK(after(p, s, {3, 7}).events == (outlier | skipped));
}
