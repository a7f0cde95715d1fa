// SPDX-License-Identifier: MIT
// The guard: norms that are finite but absurd are skipped or clipped, by the rule of the header, in
// plain doubles; nothing else enters its mean, and nobody is locked out by accident.
#include "support.hpp"

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
const double nan_value = std::nan("");
constexpr uint32_t skipped = GSC_EVENT_SKIPPED, clipped = GSC_EVENT_CLIPPED,
                   outlier = GSC_EVENT_OUTLIER, stopped = GSC_EVENT_STOPPED;

gsc_policy zeros()
{
    return GSC_POLICY_INIT;
}

gsc_state start(const gsc_policy &p)
{
    gsc_state state;
    REQUIRE(gsc_state_init(nullptr, &p, &state, nullptr) == GSC_OK);
    return state;
}

/* Of gradients with this norm; NaN and Inf are such as unscaling finds them. */
gsc_report report_of(double norm)
{
    gsc_report report;
    REQUIRE(gsc_report_from_number(norm, &report, nullptr) == GSC_OK);
    return report;
}

gsc_state updated(const gsc_policy &p, const gsc_state &state, const gsc_report &report)
{
    gsc_state out;
    REQUIRE(gsc_state_update(nullptr, &p, &state, &report, &out, nullptr) == GSC_OK);
    return out;
}

gsc_state after(const gsc_policy &p, gsc_state state, const std::vector<double> &norms)
{
    for (double norm : norms)
        state = updated(p, state, report_of(norm));
    return state;
}

std::vector<double> multipliers(const gsc_policy &p, gsc_state state,
                                const std::vector<double> &norms)
{
    std::vector<double> all;
    for (double norm : norms) {
        state = updated(p, state, report_of(norm));
        all.push_back(state.guard_multiplier);
    }
    return all;
}

/* ---- the rule, as the header tells it ---- */

struct Plain {
    double mean = 0, variance = 0, multiplier = 1;
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
        multiplier = 0;
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

double uniform(Random &random)
{
    return static_cast<double>(random.next() >> 11) * 0x1p-53;
}

/* Norms as a run has them: noise about a level that may shift, spikes, what is not finite. */
std::vector<double> series(Random &random, size_t steps)
{
    std::vector<double> norms;
    double level = std::exp(8 * uniform(random) - 4);
    const double noise = uniform(random);
    for (size_t i = 0; i < steps; i++) {
        const uint64_t kind = random.next() % 32;
        double x = level * std::exp(noise * (uniform(random) + uniform(random) - 1));
        if (kind == 0)
            x *= std::exp(10 * uniform(random));
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
    gsc_policy p = zeros();
    while (p.guard_norm == 0 && p.guard_ratio == 0 && p.guard_sigmas == 0) {
        p.guard_norm = random.next() % 3 ? 0 : std::exp(8 * uniform(random) - 4);
        p.guard_ratio = random.next() % 2 ? 0 : 1 + 5 * uniform(random) + 0x1p-20;
        p.guard_sigmas = random.next() % 2 ? 0 : 6 * uniform(random);
    }
    p.guard_decay = random.next() % 4 ? uniform(random) : 0;
    p.guard_init_mean = random.next() % 4 ? 0 : uniform(random);
    p.guard_warmup = random.next() % 3 ? random.next() % 20 : 0;
    p.guard_max_in_a_row = random.next() % 3 ? random.next() % 8 : 0;
    p.guard_sample = static_cast<uint32_t>(random.next() % 3);
    p.guard_flags = static_cast<uint32_t>(random.next() % 256) & ~GSC_GUARD_BIAS_CORRECTED;
    if (!(p.guard_flags & GSC_GUARD_CLIP))
        p.guard_flags &= ~(GSC_GUARD_CLIP_PROGRESSIVE | GSC_GUARD_CLIP_TO_MEAN);
    p.quirks = GSC_QUIRK_ALLOW_LOCKOUT;
    return p;
}

} // namespace

TEST_CASE("the guard does what the header says, on 10,000 series", "[guard][arithmetic]")
{
    Random random = {23};
    int64_t outliers = 0;
    for (int i = 0; i < 10000; i++) {
        const gsc_policy p = any_guard(random);
        gsc_state s = start(p);
        Plain plain;
        int64_t skips = 0;
        for (double x : series(random, 100)) {
            s = updated(p, s, report_of(x));
            plain.step(p, x);
            const bool skips_outlier = plain.is_outlier && plain.multiplier == 0;
            skips += skips_outlier;
            outliers += plain.is_outlier;
            CAPTURE(i, x, p.guard_flags, p.guard_sample, s.guard_threshold);
            REQUIRE(s.guard_mean == plain.mean);
            REQUIRE(s.guard_variance == plain.variance);
            REQUIRE(static_cast<uint64_t>(s.guard_count) == plain.count);
            REQUIRE(static_cast<uint64_t>(s.guard_in_a_row) == plain.run);
            REQUIRE(s.guard_multiplier == plain.multiplier);
            REQUIRE(s.total_guard_skips == skips);
            REQUIRE(((s.events & outlier) != 0) == plain.is_outlier);
            REQUIRE(((s.events & skipped) != 0) == (plain.multiplier == 0));
            REQUIRE(((s.events & clipped) != 0) == plain.clips);
            REQUIRE(((s.events & stopped) != 0) == plain.stops);
            REQUIRE(s.skip_f32 == (s.events & skipped ? 1.0f : 0.0f));
        }
    }
    CHECK(outliers > 50000);
}

TEST_CASE("mean and variance are those of the weighted samples", "[guard]")
{
    Random random = {7};
    for (int i = 0; i < 200; i++) {
        const bool corrected = i % 2;
        gsc_policy p = zeros();
        p.guard_norm = 0x1p400; // nothing is an outlier
        p.guard_decay = 0.5 + 0.49 * uniform(random);
        p.guard_warmup = random.next() % 30;
        p.guard_flags = corrected ? GSC_GUARD_BIAS_CORRECTED : 0;
        std::vector<double> samples, weights;
        const double level = std::exp(40 * uniform(random) - 20);
        gsc_state s = start(p);
        for (int step = 0; step < 100; step++) {
            samples.push_back(level * (1 + 1e-3 * uniform(random)));
            s = updated(p, s, report_of(samples.back()));
            // Of all samples in the warm-up alike; then each later one takes 1 - decay of the
            // whole.
            const bool even =
                samples.size() == 1 || (!corrected && samples.size() <= p.guard_warmup);
            for (double &w : weights)
                w *= even && !corrected ? 1 : p.guard_decay;
            double total = 0;
            for (double w : weights)
                total += w;
            weights.push_back(even || corrected ? 1 : total / p.guard_decay * (1 - p.guard_decay));
            total += weights.back();
            double mean = 0, variance = 0;
            for (size_t k = 0; k < samples.size(); k++)
                mean += weights[k] / total * (samples[k] - level);
            for (size_t k = 0; k < samples.size(); k++) {
                const double d = samples[k] - level - mean;
                variance += weights[k] / total * d * d;
            }
            CAPTURE(i, step, corrected, p.guard_decay, p.guard_warmup);
            REQUIRE(std::fabs(s.guard_mean - (level + mean)) <= 1e-13 * level);
            REQUIRE(std::fabs(s.guard_variance - variance) <= 1e-9 * (variance + 1e-12 * level));
        }
    }
}

TEST_CASE("a norm that is not finite is no sample and keeps the row of outliers", "[guard]")
{
    gsc_policy p = zeros();
    p.guard_ratio = 2;
    p.guard_max_in_a_row = 3;
    const gsc_state before = after(p, start(p), {1, 1, 5});
    CHECK(before.guard_in_a_row == 1);
    for (double x : {nan_value, infinity, -infinity, 0x1p501}) {
        const gsc_state s = updated(p, before, report_of(x));
        CHECK(s.events == (skipped | GSC_EVENT_BACKOFF_FAILED));
        CHECK(s.total_overflows == 1);
        CHECK(s.guard_multiplier == 0);
        CHECK(s.total_guard_skips == before.total_guard_skips);
        CHECK(s.guard_mean == before.guard_mean);
        CHECK(s.guard_variance == before.guard_variance);
        CHECK(s.guard_count == before.guard_count);
        CHECK(s.guard_in_a_row == 1);
    }
    // A sum of squares that overflowed while its elements did not is an overflow where norms judge.
    for (double sum : {nan_value, infinity, 1e305}) {
        gsc_report report = measured;
        report.sum_squares = sum;
        CHECK(updated(p, before, report).events == (skipped | GSC_EVENT_BACKOFF_FAILED));
        const gsc_policy off = zeros();
        CHECK(updated(off, start(off), report).events == 0);
    }
}

TEST_CASE("the first steps are not judged by a mean of nothing", "[guard]")
{
    gsc_policy ratio = zeros(), sigmas = zeros(), warm = zeros();
    ratio.guard_ratio = 2;
    CHECK(multipliers(ratio, start(ratio), {9, 1, 30}) == std::vector<double>{1, 1, 0});
    sigmas.guard_sigmas = 2;
    CHECK(multipliers(sigmas, start(sigmas), {1, 2, 30}) == std::vector<double>{1, 1, 0});
    warm.guard_ratio = 2;
    warm.guard_warmup = 4;
    CHECK(multipliers(warm, start(warm), {1, 50, nan_value, 1, 50, 60, 500}) ==
          std::vector<double>{1, 1, 0, 1, 1, 0, 0});
    // Norms that are all the same, or zero, are no reason to skip the first one that is not.
    CHECK(multipliers(sigmas, start(sigmas), {1, 1, 1, 5, 1}) == std::vector<double>(5, 1.0));
    CHECK(multipliers(ratio, start(ratio), {0, 0, 1, 0, 5}) == std::vector<double>{1, 1, 1, 1, 0});
    gsc_policy begun = ratio;
    begun.guard_init_mean = 1;
    CHECK(multipliers(begun, start(begun), {9, 1}) == std::vector<double>{0, 1});
    begun.quirks = GSC_QUIRK_ALLOW_LOCKOUT;
    begun.guard_sample = GSC_SAMPLE_NONE;
    CHECK(multipliers(begun, start(begun), {9, 1.5}) == std::vector<double>{0, 1});
}

TEST_CASE("a lasting change of level is let through, or stops", "[guard]")
{
    gsc_policy p = zeros();
    p.guard_ratio = 2;
    p.guard_decay = 0.9;
    p.guard_warmup = 10;
    p.guard_max_in_a_row = 4;
    p.guard_sample = GSC_SAMPLE_NONE;
    const gsc_state level = after(p, start(p), std::vector<double>(20, 1.0));
    gsc_state s = level;
    std::vector<uint32_t> events;
    for (int i = 0; i < 60; i++)
        events.push_back((s = updated(p, s, report_of(3))).events);
    CHECK(events[2] == (outlier | skipped));
    CHECK(events[3] == outlier);
    CHECK(events.back() == 0);
    CHECK(s.total_guard_skips == 3);
    p.guard_flags = GSC_GUARD_STOP;
    s = after(p, level, {3, 3, 3});
    CHECK(s.events == (outlier | skipped));
    s = after(p, s, {3});
    CHECK(s.events == (outlier | skipped | stopped));
    CHECK(after(p, s, {nan_value, 3}).events == (outlier | skipped | stopped));
    CHECK(after(p, s, {1}).events == 0);
}

TEST_CASE("a guard that may lock itself out is refused", "[guard]")
{
    struct Row {
        uint32_t sample, flags;
        bool refused;
    };
    const Row rows[] = {
        {GSC_SAMPLE_AS_IS, 0, false},
        {GSC_SAMPLE_NONE, 0, true},
        {GSC_SAMPLE_NONE, GSC_GUARD_CLIP, true},
        {GSC_SAMPLE_THRESHOLD, 0, true},
        {GSC_SAMPLE_THRESHOLD, GSC_GUARD_CLIP, false},
        {GSC_SAMPLE_THRESHOLD, GSC_GUARD_CLIP | GSC_GUARD_CLIP_PROGRESSIVE, true},
        {GSC_SAMPLE_THRESHOLD, GSC_GUARD_CLIP | GSC_GUARD_CLIP_TO_MEAN, true},
    };
    // A threshold that enters widens the spread only if it is far enough from the mean.
    for (uint32_t after : {0u, GSC_GUARD_VARIANCE_AFTER_MEAN})
        for (double sigmas : {1.0, 1.5, 2.5}) {
            gsc_policy p = zeros();
            p.guard_sigmas = sigmas;
            p.guard_decay = 0.5;
            p.guard_sample = GSC_SAMPLE_THRESHOLD;
            p.guard_flags = GSC_GUARD_CLIP | after;
            const bool follows = sigmas * (after ? 0.5 : std::sqrt(0.5)) > 1;
            CHECK((gsc_policy_check(&p, nullptr) == GSC_OK) == follows);
        }
    for (const Row &row : rows)
        for (bool by_ratio : {false, true}) {
            gsc_policy p = zeros();
            (by_ratio ? p.guard_ratio : p.guard_sigmas) = 3;
            p.guard_sample = row.sample;
            p.guard_flags = row.flags;
            gsc_error err = {};
            CAPTURE(row.sample, row.flags);
            CHECK((gsc_policy_check(&p, &err) != GSC_OK) == row.refused);
            if (row.refused)
                CHECK(std::string(err.message) ==
                      "policy.guard_max_in_a_row is 0: it must be above 0: guard_sample keeps "
                      "outliers "
                      "out, so after a lasting change of level all steps would be outliers");
            for (int mend = 0; mend < 3; mend++) {
                gsc_policy mended = p;
                mended.guard_max_in_a_row = mend == 0;
                mended.quirks = mend == 1 ? GSC_QUIRK_ALLOW_LOCKOUT : 0;
                if (mend == 2) {
                    mended.guard_norm = 5; // which nothing moves
                    mended.guard_ratio = mended.guard_sigmas = 0;
                }
                CHECK(gsc_policy_check(&mended, nullptr) == GSC_OK);
            }
        }
}

TEST_CASE("a guard that roundings may lock out is refused", "[guard]")
{
    struct Row {
        double sigmas, ratio, decay, start;
        uint32_t sample, flags;
        bool refused;
    };
    const uint32_t at = GSC_GUARD_INCLUSIVE, clip = GSC_GUARD_CLIP, as_is = GSC_SAMPLE_AS_IS,
                   after = GSC_GUARD_VARIANCE_AFTER_MEAN;
    const Row rows[] = {
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
    for (const Row &row : rows) {
        gsc_policy p = zeros();
        p.guard_sigmas = row.sigmas, p.guard_ratio = row.ratio, p.guard_decay = row.decay;
        p.guard_init_mean = row.start, p.guard_sample = row.sample, p.guard_flags = row.flags;
        gsc_error err = {};
        CAPTURE(row.sigmas, row.ratio, row.decay, row.start, row.flags);
        CHECK((gsc_policy_check(&p, &err) != GSC_OK) == row.refused);
        if (row.refused)
            CHECK(std::string(err.message) == "policy.guard_max_in_a_row is 0: it must be above 0: "
                                              "roundings could make all steps "
                                              "outliers while the norm stays the same");
        for (bool by_limit : {false, true}) {
            p.guard_max_in_a_row = by_limit;
            p.quirks = by_limit ? 0 : GSC_QUIRK_ALLOW_LOCKOUT;
            CHECK(gsc_policy_check(&p, nullptr) == GSC_OK);
        }
    }
}

TEST_CASE("no guard that is accepted refuses a norm that stays the same", "[guard][arithmetic]")
{
    Random random = {6};
    int accepted = 0;
    for (int i = 0; i < 4000; i++) {
        gsc_policy p = any_guard(random);
        const double decays[] = {0, 0.3, 0.9, 0.99, 0.999}, starts[] = {0, 0, 1};
        const double sigmas[] = {0, 0.5, 1, 1.0001, 1.2, 3}, ratios[] = {0, 1.01, 1.5, 10};
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
        const double norm = random.next() % 2 ? 1 : std::exp(20 * uniform(random) - 10);
        gsc_state s = start(p);
        for (int step = 0; step < 20; step++)
            s = updated(p, s, report_of(norm * (0.9 + 0.2 * uniform(random))));
        int skips = 0;
        for (int step = 0; step < 30000; step++) {
            s = updated(p, s, report_of(norm));
            skips += step >= 29000 && s.events & GSC_EVENT_SKIPPED;
        }
        CAPTURE(i, norm, p.guard_ratio, p.guard_sigmas, p.guard_decay, p.guard_init_mean,
                p.guard_sample, p.guard_flags);
        REQUIRE(skips == 0);
    }
    CHECK(accepted > 500);
}

TEST_CASE("a threefold shift is followed by every guard that is accepted", "[guard][arithmetic]")
{
    Random random = {5};
    int accepted = 0;
    for (int i = 0; i < 3000; i++) {
        gsc_policy p = any_guard(random);
        p.quirks = 0;
        p.guard_norm = 0;
        p.guard_sigmas = p.guard_sigmas == 0 ? 0 : 1.5 + p.guard_sigmas;
        p.guard_flags &= ~GSC_GUARD_STOP;
        p.guard_decay = p.guard_decay == 0 ? 0.9 : p.guard_decay * 0.99; // forgets within the steps
        if (gsc_policy_check(&p, nullptr) != GSC_OK || (p.guard_ratio == 0 && p.guard_sigmas == 0))
            continue;
        accepted++;
        const auto noisy = [&](double level) { return level * (0.8 + 0.4 * uniform(random)); };
        gsc_state s = start(p);
        for (int step = 0; step < 300; step++)
            s = updated(p, s, report_of(noisy(1)));
        for (int step = 0; step < 3000; step++)
            s = updated(p, s, report_of(noisy(3)));
        CAPTURE(i, p.guard_ratio, p.guard_sigmas, p.guard_decay, p.guard_sample, p.guard_flags);
        REQUIRE(s.guard_mean > 2);
    }
    CHECK(accepted > 500);
}

TEST_CASE("a step that is skipped leaves the scale alone, or counts for it", "[guard]")
{
    gsc_policy p = zeros();
    p.init_scale = 16;
    p.growth_factor = 2;
    p.backoff_factor = 0.5;
    p.growth_interval = 3;
    p.hysteresis = 2;
    p.overflow_reset = GSC_RESET_ON_GOOD_STEP;
    p.guard_norm = 2;
    const gsc_state two = after(p, start(p), {1, 1});
    gsc_state s = after(p, two, {9, 9, 9, 9});
    CHECK(s.factor.scale == 16);
    CHECK((s.good_steps == 2 && s.steps_since_change == 2));
    CHECK(s.factor.generation == two.factor.generation + 4);
    CHECK(after(p, s, {1}).factor.scale == 32);
    gsc_policy counts = p;
    counts.guard_flags = GSC_GUARD_SKIP_IS_GOOD;
    s = after(counts, two, {9});
    CHECK(s.factor.scale == 32);
    CHECK(s.events == (outlier | skipped | GSC_EVENT_GREW));
    // An overflow is one, whatever the norm of its finite elements.
    gsc_report report = report_of(9);
    report.overflow = 1;
    s = updated(p, updated(p, two, report), report);
    CHECK(s.factor.scale == 8);
    CHECK((s.total_overflows == 2 && s.total_guard_skips == 0 && s.guard_count == 2));
    // A clipped step is a good one.
    p.guard_flags = GSC_GUARD_CLIP;
    CHECK(after(p, two, {9}).factor.scale == 32);
}

TEST_CASE("a clip folds into a factor as gsc_factor_clip_grad_norm does", "[guard]")
{
    gsc_policy p = zeros();
    p.guard_norm = 2;
    p.guard_flags = GSC_GUARD_CLIP;
    gsc_factor factor, out;
    REQUIRE(gsc_factor_init(1024, &factor, nullptr) == GSC_OK);
    gsc_state s = after(p, start(p), {8});
    CHECK(s.events == (outlier | clipped));
    CHECK((s.guard_multiplier == 0.25 && s.guard_threshold == 2 && s.skip_f32 == 0));
    CHECK(s.guard_value == 8);
    REQUIRE(gsc_factor_clip_outlier(nullptr, &factor, &s, &out, nullptr) == GSC_OK);
    gsc_factor expected = factor;
    expected.inverse = 0x1p-12;
    expected.inverse_f32 = 0x1p-12f;
    CHECK(same(out, expected));
    REQUIRE(gsc_factor_clip_outlier(nullptr, nullptr, &s, &out, nullptr) == GSC_OK);
    CHECK((out.scale == 1 && out.inverse == 0.25 && out.inverse_f32 == 0.25f));
    // Where nothing is clipped, skipped steps included, the factor is what it was.
    for (double x : {1.0, nan_value}) {
        s = after(p, start(p), {x});
        REQUIRE(gsc_factor_clip_outlier(nullptr, &factor, &s, &out, nullptr) == GSC_OK);
        CHECK(same(out, factor));
    }
    // A multiplier that no factor can hold.
    s = after(p, start(p), {8});
    s.guard_multiplier = 0x1p-1074;
    gsc_error err = {};
    CHECK(gsc_factor_clip_outlier(nullptr, &factor, &s, &out, &err) == GSC_ERROR_FACTOR);
    CHECK(std::string(err.message).find("state.guard_multiplier is ") == 0);
}

TEST_CASE("what an outlier enters as, and is clipped to", "[guard]")
{
    gsc_policy p = zeros();
    p.guard_ratio = 2;
    p.guard_warmup = 2;
    p.guard_decay = 0.5;
    p.quirks = GSC_QUIRK_ALLOW_LOCKOUT;
    struct Row {
        uint32_t sample, flags;
        double mean, multiplier;
    };
    const Row rows[] = {
        {GSC_SAMPLE_AS_IS, 0, 4.5, 0},
        {GSC_SAMPLE_NONE, 0, 1, 0},
        {GSC_SAMPLE_THRESHOLD, 0, 1.5, 0},
        {GSC_SAMPLE_THRESHOLD, GSC_GUARD_CLIP, 1.5, 0.25},
        {GSC_SAMPLE_AS_IS, GSC_GUARD_CLIP, 4.5, 0.25},
        {GSC_SAMPLE_THRESHOLD, GSC_GUARD_CLIP | GSC_GUARD_CLIP_TO_MEAN, 1, 0.125},
        {GSC_SAMPLE_THRESHOLD, GSC_GUARD_CLIP | GSC_GUARD_CLIP_PROGRESSIVE, 1 + 0.5 / 7,
         (1 + 1. / 7) / 8},
    };
    for (const Row &row : rows) {
        p.guard_sample = row.sample;
        p.guard_flags = row.flags;
        const gsc_state s = after(p, start(p), {1, 1, 8});
        CAPTURE(row.sample, row.flags);
        CHECK(s.guard_threshold == 2);
        CHECK(std::fabs(s.guard_mean - row.mean) < 1e-15);
        CHECK(std::fabs(s.guard_multiplier - row.multiplier) < 1e-16);
    }
    p.guard_flags = GSC_GUARD_INCLUSIVE;
    CHECK(multipliers(p, start(p), {1, 1, 2}) == std::vector<double>{1, 1, 0});
    p.guard_flags = 0;
    CHECK(multipliers(p, start(p), {1, 1, 2}) == std::vector<double>{1, 1, 1});
}

TEST_CASE("the report of a number: its magnitude, its sign, and what is none", "[guard]")
{
    Random random = {11};
    gsc_policy p = zeros();
    p.guard_sigmas = 3;
    for (int i = 0; i < 20000; i++) {
        const double x =
            std::ldexp(uniform(random) - 0.5, static_cast<int>(random.next() % 900) - 450);
        const gsc_report report = report_of(x);
        CHECK((report.overflow == 0 && report.elements == 1 && report.amax == std::fabs(x)));
        REQUIRE(after(p, start(p), {x}).guard_mean == x); // squared and back, to the bit
    }
    for (double x : {nan_value, infinity, -infinity, 0x1.8p500, -0x1.8p500}) {
        const gsc_report report = report_of(x);
        CHECK((report.overflow == 1 && report.found_inf == 1 && report.sum_squares == 0));
        CHECK(report.nan_count == std::isnan(x));
        CHECK(report.inf_count == !std::isnan(x));
    }
    // Losses below 0 that jump up are judged by their value, and a ratio says nothing of them.
    p.guard_max_in_a_row = 2;
    CHECK(multipliers(p, start(p), {-5, -5.25, -5, 3, -9}) == std::vector<double>{1, 1, 1, 0, 1});
    gsc_policy ratio = zeros();
    ratio.guard_ratio = 2;
    CHECK(multipliers(ratio, start(ratio), {-5, -1, 7}) == std::vector<double>{1, 1, 1});
    // A clip of a number below 0 has no share: it is skipped.
    p.guard_flags = GSC_GUARD_CLIP;
    CHECK(multipliers(p, start(p), {-5, -5.25, -5, -1}) == std::vector<double>{1, 1, 1, 0});
}

TEST_CASE("what says how far to clip is refused where nothing is clipped", "[guard]")
{
    for (uint32_t how : {GSC_GUARD_CLIP_PROGRESSIVE, GSC_GUARD_CLIP_TO_MEAN,
                         GSC_GUARD_CLIP_PROGRESSIVE | GSC_GUARD_CLIP_TO_MEAN}) {
        gsc_policy p = zeros();
        p.guard_ratio = 2;
        p.guard_flags = how | GSC_GUARD_STOP;
        gsc_error err;
        CHECK(gsc_policy_check(&p, &err) == GSC_ERROR_POLICY);
        CHECK(std::string(err.field) == "guard_flags");
        p.guard_flags |= GSC_GUARD_CLIP;
        CHECK(gsc_policy_check(&p, nullptr) == GSC_OK);
    }
}

TEST_CASE("decisions of two signals are joined", "[guard]")
{
    gsc_policy norm = zeros(), loss = zeros();
    norm.init_scale = 8;
    norm.guard_norm = loss.guard_norm = 2;
    norm.guard_flags = GSC_GUARD_CLIP;
    struct Row {
        double norm, loss;
        uint32_t events;
        double multiplier;
    };
    const Row rows[] = {
        {1, 1, 0, 1},
        {4, 1, outlier | clipped, 0.5},
        {1, 4, outlier | skipped, 0},
        {4, 4, outlier | skipped, 0},
        {1, nan_value, skipped, 0},
        {nan_value, 1, skipped | GSC_EVENT_BACKOFF_FAILED, 0},
    };
    for (const Row &row : rows) {
        const gsc_state a = after(norm, start(norm), {row.norm}),
                        b = after(loss, start(loss), {row.loss});
        gsc_state out;
        REQUIRE(gsc_state_combine_decisions(nullptr, &a, &b, &out, nullptr) == GSC_OK);
        gsc_state expected = a;
        expected.events = row.events;
        expected.guard_multiplier = row.multiplier;
        expected.skip = row.events & skipped ? 1 : 0;
        expected.skip_f32 = static_cast<float>(expected.skip);
        CAPTURE(row.norm, row.loss);
        CHECK(same(out, expected));
        // Its statistic and scale go on as if it were alone.
        CHECK(same(after(norm, out, {1}), after(norm, a, {1})));
    }
    // Both clip: by the smaller one. A failure of the other is one of both.
    loss.guard_flags = GSC_GUARD_CLIP;
    gsc_state a = after(norm, start(norm), {4}), b = after(loss, start(loss), {8}), out;
    for (int swap = 0; swap < 2; swap++) {
        REQUIRE(gsc_state_combine_decisions(nullptr, swap ? &b : &a, swap ? &a : &b, &out,
                                            nullptr) == GSC_OK);
        CHECK(out.guard_multiplier == 0.25);
    }
    b.status = GSC_ERROR_REPORT;
    b.events = skipped;
    REQUIRE(gsc_state_combine_decisions(nullptr, &a, &b, &a, nullptr) == GSC_OK);
    CHECK((a.status == GSC_ERROR_REPORT && a.skip_f32 == 1 && a.events == (outlier | skipped)));
}

TEST_CASE("the reason of an update is said as data and as a sentence", "[guard]")
{
    gsc_policy losses = zeros(), clips = zeros(), torch = GSC_POLICY_INIT, stops = zeros();
    losses.guard_norm = 2;
    losses.guard_max_in_a_row = 2;
    clips.guard_norm = 2;
    clips.guard_flags = GSC_GUARD_CLIP | GSC_GUARD_STOP;
    clips.guard_max_in_a_row = 2;
    REQUIRE(gsc_policy_preset("guard", &torch, nullptr) == GSC_OK);
    torch.max_failed_backoffs = 1;
    stops.growth_factor = 2;
    stops.growth_interval = 1;
    stops.ceiling_rule = GSC_LIMIT_STOP;
    stops.max_scale = 1;
    gsc_state failed = start(losses), both;
    failed.status = GSC_ERROR_REPORT;
    failed.events = skipped;
    const gsc_state clipped_once = after(clips, start(clips), {8}),
                    calm = after(clips, start(clips), {1});
    REQUIRE(gsc_state_combine_decisions(nullptr, &calm, &clipped_once, &both, nullptr) == GSC_OK);
    const struct {
        gsc_state state;
        uint32_t outcome, cause;
        double value, threshold, multiplier;
        int64_t in_a_row;
        const char *message;
    } rows[] = {
        {start(losses), GSC_OUTCOME_TAKEN, GSC_CAUSE_NONE, 0, 0, 1, 0, ""},
        {after(losses, start(losses), {1}), GSC_OUTCOME_TAKEN, GSC_CAUSE_NONE, 0, 0, 1, 0, ""},
        {after(losses, start(losses), {3}), GSC_OUTCOME_SKIPPED, GSC_CAUSE_OUTLIER, 3, 2, 0, 1,
         "skipped: the norm, 3, is above 2, 1 in a row"},
        {after(losses, start(losses), {3, 4}), GSC_OUTCOME_LET_THROUGH, GSC_CAUSE_OUTLIER, 4, 2, 1,
         2, "let through: the norm, 4, is above 2, 2 in a row"},
        {after(losses, start(losses), {nan_value}), GSC_OUTCOME_SKIPPED, GSC_CAUSE_OVERFLOW, 0, 0,
         0, 0, "skipped: overflow"},
        {clipped_once, GSC_OUTCOME_CLIPPED, GSC_CAUSE_OUTLIER, 8, 2, 0.25, 1,
         "clipped: multiplied by 0.25: the norm, 8, is above 2, 1 in a row"},
        {after(clips, start(clips), {8, 4}), GSC_OUTCOME_STOPPED, GSC_CAUSE_OUTLIER, 4, 2, 0.5, 2,
         "stopped: the norm, 4, is above 2, 2 in a row: look at the data and the learning rate"},
        {after(torch, start(torch), {nan_value}), GSC_OUTCOME_STOPPED, GSC_CAUSE_OVERFLOW, 0, 0, 0,
         0,
         "stopped: overflow at a loss scale of 1: look for Inf or NaN in the input, the loss and "
         "the parameters, and go back to an earlier checkpoint"},
        {after(stops, start(stops), {1}), GSC_OUTCOME_STOPPED, GSC_CAUSE_CEILING, 0, 0, 1, 0,
         "stopped: the scale, 1, would pass max_scale"},
        {both, GSC_OUTCOME_CLIPPED, GSC_CAUSE_OTHER_STATE, 0, 0, 0.25, 0,
         "clipped: multiplied by 0.25: decided by a combined state"},
        {failed, GSC_OUTCOME_SKIPPED, GSC_CAUSE_FAILURE, 0, 0, 0, 0,
         "skipped: the update failed on the device: the report failed or lacks what the policy "
         "needs"},
    };
    for (const auto &row : rows) {
        gsc_reason r;
        std::memset(&r, 0xff, sizeof r);
        REQUIRE(gsc_state_reason(&row.state, &r, nullptr) == GSC_OK);
        CHECK(std::string(r.message) == row.message);
        CHECK((r.outcome == row.outcome && r.cause == row.cause));
        CHECK((r.value == row.value && r.threshold == row.threshold));
        CHECK((r.multiplier == row.multiplier && r.in_a_row == row.in_a_row));
        CHECK((r.reserved[0] == 0 && r.reserved[2] == 0));
    }
}

TEST_CASE("a policy that does not guard multiplies by 1, or by 0 to skip", "[guard]")
{
    for (uint32_t i = 0; gsc_preset_name(i); i++) {
        gsc_policy p = GSC_POLICY_INIT;
        REQUIRE(gsc_policy_preset(gsc_preset_name(i), &p, nullptr) == GSC_OK);
        const bool guards = p.guard_norm != 0 || p.guard_ratio != 0 || p.guard_sigmas != 0;
        if (guards)
            continue;
        gsc_state s = start(p);
        CAPTURE(gsc_preset_name(i));
        CHECK(s.guard_multiplier == 1);
        for (double x : {1.0, 1e9, nan_value}) {
            s = updated(p, s, report_of(x));
            CHECK(s.guard_multiplier == !s.skip);
        }
        CHECK((s.guard_mean == 0 && s.guard_variance == 0));
        CHECK((s.guard_count == 0 && s.guard_in_a_row == 0 && s.total_guard_skips == 0));
        CHECK((s.guard_threshold == 0 && s.guard_value == 0));
    }
    gsc_policy recommended = GSC_POLICY_INIT;
    REQUIRE(gsc_policy_preset("recommended", &recommended, nullptr) == GSC_OK);
    CHECK(after(recommended, start(recommended), {1, 1e9}).events == 0);
}

TEST_CASE("the preset guard: ten times the mean, ten in a row", "[guard]")
{
    gsc_policy p = GSC_POLICY_INIT;
    REQUIRE(gsc_policy_preset("guard", &p, nullptr) == GSC_OK);
    gsc_state s = after(p, start(p), std::vector<double>(100, 2.0));
    CHECK(after(p, s, {20}).events == 0);
    CHECK(after(p, s, {20.001}).events == (outlier | skipped));
    s = after(p, s, std::vector<double>(9, 1e6));
    CHECK(s.total_guard_skips == 9);
    CHECK(after(p, s, {1e6}).events == outlier);
    CHECK(after(p, s, {1e6, 2}).guard_in_a_row == 0);
    gsc_report bare = measured;
    bare.measured = 0;
    gsc_error err = {};
    CHECK(gsc_state_update(nullptr, &p, &s, &bare, &s, &err) == GSC_ERROR_REPORT);
    CHECK(
        std::string(err.message).find("report.sum_squares was not measured: the norm is needed") ==
        0);
}

TEST_CASE("a policy that guards measures the norm, also where nobody asks for it", "[guard]")
{
    gsc_policy p = zeros();
    p.guard_norm = 4;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    options.policy = &p;
    float gradients[] = {3, 4, 0, 12};
    const gsc_tensor tensor = {gradients, 4, GSC_F32, 0, {}};
    gsc_report report;
    REQUIRE(gsc_measure(nullptr, nullptr, &tensor, 1, &options, &report, nullptr) == GSC_OK);
    CHECK(report.sum_squares == 169);
    CHECK(report.overflow == 0); // outliers are for the update to tell
    CHECK(updated(p, start(p), report).events == (outlier | skipped));
    // The norms of groups are merges of the reports of their tensors.
    gsc_tensor parts[] = {{gradients, 2, GSC_F32, 0, {}}, {gradients + 2, 2, GSC_F32, 0, {}}};
    gsc_report each[2], group;
    options.per_tensor = each;
    REQUIRE(gsc_measure(nullptr, nullptr, parts, 2, &options, &report, nullptr) == GSC_OK);
    CHECK((each[0].sum_squares == 25 && each[1].sum_squares == 144));
    REQUIRE(gsc_report_merge(nullptr, each, 2, GSC_MERGE_SHARDS, &p, &group, nullptr) == GSC_OK);
    CHECK(same(updated(p, start(p), group), updated(p, start(p), report)));
    double large[] = {1e160}; // its square is infinite
    const gsc_tensor wide = {large, 1, GSC_F64, 0, {}};
    options.per_tensor = nullptr;
    REQUIRE(gsc_measure(nullptr, nullptr, &wide, 1, &options, &report, nullptr) == GSC_OK);
    CHECK((report.overflow == 1 && report.inf_count == 0));
}

TEST_CASE("a state of a version without a guard goes on under one", "[guard]")
{
    gsc_policy p = zeros();
    gsc_state s = after(p, start(p), {1, nan_value});
    p.guard_ratio = 2;
    p.guard_init_mean = 1;
    CHECK(after(p, s, {3}).events == (outlier | skipped));
    p.guard_init_mean = 0;
    CHECK(after(p, s, {3}).events == 0);
    CHECK(after(p, s, {3, 7}).events == (outlier | skipped));
}
