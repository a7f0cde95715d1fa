// SPDX-License-Identifier: MIT
// A loss that was Inf or NaN before it was scaled: how a call finds it, what a policy that holds
// makes of it, and what becomes of whole runs. Also steps without any gradient.
#include "support.hpp"

namespace {

constexpr uint32_t skipped = GSC_EVENT_SKIPPED, bad_loss = GSC_EVENT_BAD_LOSS,
                   stopped = GSC_EVENT_STOPPED, empty = GSC_EVENT_EMPTY;

Policy holding(const Policy &p)
{
    return p.bad_loss_rule(GSC_BAD_LOSS_HOLD).max_failed_backoffs(10);
}

/* A report of gradients of this norm, after a loss; `nans`: elements that are NaN. */
gsc_report report_after(uint32_t loss, int64_t nans = 0, double norm = 1)
{
    gsc_report r = measured;
    r.elements = 100;
    r.loss = loss;
    r.nan_count = nans;
    r.overflow = nans > 0;
    r.found_inf = static_cast<float>(nans > 0);
    r.sum_squares = norm * norm;
    return r;
}

const gsc_report good = report_after(GSC_LOSS_FINITE), bad = report_after(GSC_LOSS_NOT_FINITE, 7),
                 bad_but_finite = report_after(GSC_LOSS_NOT_FINITE),
                 overflow = report_after(GSC_LOSS_FINITE, 7);

gsc_state after(const gsc_policy &p, const Reports &reports)
{
    gsc_state s = started(p);
    for (const gsc_report &r : reports)
        s = updated(p, s, r);
    return s;
}

/* Measures one good gradient with a loss of some elements. */
gsc_report measure(const gsc_policy *policy, const gsc_tensor *loss, uint64_t n = 1)
{
    float gradient = 3;
    const gsc_tensor tensor = {&gradient, 1, GSC_F32, 0, {}};
    gsc_tensor_options options = wanting(want_all);
    options.policy = policy;
    options.loss = loss;
    gsc_report report;
    claim(gsc_measure(nullptr, nullptr, &tensor, n, &options, &report, nullptr) == GSC_OK,
          "a loss can be given");
    return report;
}

gsc_tensor floats(std::vector<float> &values)
{
    return {values.data(), values.size(), GSC_F32, 0, {}};
}

} // namespace

TEST_CASE("a loss of any real dtype and length is known to be finite or not", "[loss]")
{
    for (const Dtype &d : dtypes) {
        if (is_complex(d.dtype))
            continue;
        const uint64_t rows[] = {
            d.infinity() - 1, d.infinity(), d.nan(), d.sign() | d.infinity(), 0, d.sign()};
        for (uint64_t bits : rows) {
            Bytes data(3 * d.size + 1);
            write_bits(d, data.data() + 1, 2, bits); // not aligned, the last of three
            const gsc_tensor loss = {data.data() + 1, 3, d.dtype, 0, {}};
            const bool finite = (bits & (d.sign() - 1)) < d.infinity();
            CAPTURE(d.name, bits);
            CHECK(measure(nullptr, &loss).loss == (finite ? GSC_LOSS_FINITE : GSC_LOSS_NOT_FINITE));
        }
    }
    const gsc_tensor none = {nullptr, 0, GSC_F32, 0, {}};
    CHECK(measure(nullptr, &none).loss == GSC_LOSS_UNKNOWN);
    CHECK(measure(nullptr, nullptr).loss == GSC_LOSS_UNKNOWN);
}

TEST_CASE("a loss that cannot be one is refused", "[loss]")
{
    float pair[2] = {};
    const struct {
        gsc_tensor loss;
        gsc_status status;
        const char *hint;
    } rows[] = {
        {{pair, 1, GSC_COMPLEX64, 0, {}}, GSC_ERROR_DTYPE, "options.loss is complex64"},
        {{pair, 1, 77, 0, {}}, GSC_ERROR_DTYPE, "dtype is 77"},
        {{nullptr, 1, GSC_F32, 0, {}}, GSC_ERROR_NULL, "data is NULL"},
        {{pair, 1, GSC_F32, 1, {}}, GSC_ERROR_VALUE, "flags is 1"},
        {{pair, 1, GSC_F32, 0, {1, 0}}, GSC_ERROR_VALUE, "reserved is not 0"},
        {{pair, UINT64_MAX, GSC_F32, 0, {}}, GSC_ERROR_COUNT, "more than memory"},
    };
    for (const auto &row : rows) {
        gsc_tensor_options options = wanting(0);
        options.loss = &row.loss;
        gsc_report report;
        gsc_error err = {};
        CHECK(gsc_measure(nullptr, nullptr, nullptr, 0, &options, &report, &err) == row.status);
        CHECK_WORDING(std::string(err.message).find(row.hint) != std::string::npos);
        CHECK((std::string(err.field) == "loss" && err.argument == 4));
    }
}

TEST_CASE("found_inf of a bad loss is 1 under a policy that holds; overflow is the gradients'",
          "[loss]")
{
    std::vector<float> values = {1, NAN, 2};
    const gsc_tensor loss = floats(values);
    const Policy holds = holding(zeros);
    CHECK((measure(&holds, &loss).found_inf == 1 && measure(&holds, &loss).overflow == 0));
    CHECK((measure(&zeros, &loss).found_inf == 0 && measure(nullptr, &loss).found_inf == 0));
}

TEST_CASE("a micro-batch with a bad loss is left out", "[loss]")
{
    std::vector<float> values = {NAN}, finite = {2};
    const gsc_tensor loss = floats(values), good_loss = floats(finite);
    float gradient = 6, sum = 1;
    int64_t histogram[GSC_HISTOGRAM_LENGTH];
    const gsc_tensor in = {&gradient, 1, GSC_F32, 0, {}}, out = {&sum, 1, GSC_F32, 0, {}};
    gsc_tensor_options options = wanting(0);
    options.loss = &loss;
    options.histogram = histogram;
    gsc_report report;
    REQUIRE(gsc_unscale_accumulate(nullptr, nullptr, &in, &out, 1, &options, &report, nullptr) ==
            GSC_OK);
    CHECK((sum == 1 && report.overflow == 0 && report.loss == GSC_LOSS_NOT_FINITE));
    CHECK(histogram[16] == 1);
    options.loss = &good_loss;
    REQUIRE(gsc_unscale_accumulate(nullptr, nullptr, &in, &out, 1, &options, &report, nullptr) ==
            GSC_OK);
    CHECK((sum == 7 && report.loss == GSC_LOSS_FINITE));
}

TEST_CASE("losses of several calls, of ranks and of another device are merged", "[loss]")
{
    const gsc_report unknown = report_after(GSC_LOSS_UNKNOWN);
    for (uint32_t kind : {GSC_MERGE_SHARDS, GSC_MERGE_ADDENDS}) {
        CHECK(merged({unknown, unknown}, kind).loss == GSC_LOSS_UNKNOWN);
        CHECK(merged({unknown, good}, kind).loss == GSC_LOSS_FINITE);
        CHECK(merged({good, bad_but_finite, unknown}, kind).loss == GSC_LOSS_NOT_FINITE);
    }
    // On the host, a list without tensors has the loss; the gradients' report comes from elsewhere.
    std::vector<float> values = {HUGE_VALF};
    const gsc_tensor loss = floats(values);
    const Policy p = holding(zeros);
    const gsc_report both = merged({measure(&p, &loss, 0), unknown}, GSC_MERGE_SHARDS, &p);
    CHECK((both.elements == 100 && both.loss == GSC_LOSS_NOT_FINITE));
    CHECK((both.overflow == 0 && both.found_inf == 1));
    // The rank of the first bad loss.
    gsc_report ranks[] = {good, bad_but_finite, bad};
    for (uint32_t i = 0; i < 3; i++)
        REQUIRE(gsc_report_set_rank(nullptr, &ranks[i], nullptr, nullptr, i, &ranks[i], nullptr) ==
                GSC_OK);
    CHECK(merged({ranks[0], ranks[1], ranks[2]}).loss_rank_plus_1 == 2);
    CHECK(merged({ranks[0], unknown}).loss_rank_plus_1 == 0);
}

TEST_CASE("a bad loss skips the step and keeps the scale, also with finite gradients", "[loss]")
{
    const Policy p = holding(preset_policy("torch")).guard_norm(5);
    const gsc_state before = after(p, {good, overflow, good});
    for (const gsc_report &r : {bad, bad_but_finite, report_after(GSC_LOSS_NOT_FINITE, 0, 99)}) {
        const gsc_state s = updated(p, before, r);
        CHECK(s.events == (skipped | bad_loss));
        CHECK((s.skip == 1 && s.skip_f32 == 1 && s.guard_multiplier == 0));
        CHECK((s.factor.scale == before.factor.scale && s.good_steps == before.good_steps));
        CHECK((s.steps_since_change == before.steps_since_change && s.guard_count == 2));
        CHECK((s.total_overflows == 1 && s.total_bad_losses == 1 && s.bad_losses_in_a_row == 1));
    }
    // Under any other rule the gradients alone decide.
    const Policy torch = preset_policy("torch");
    CHECK(after(torch, {bad_but_finite}).events == 0);
    const gsc_state s = after(torch, {bad});
    CHECK(s.events == (skipped | GSC_EVENT_BACKED_OFF));
    CHECK((s.total_overflows == 1 && s.total_bad_losses == 1 && s.bad_losses_in_a_row == 1));
}

TEST_CASE("a bad loss is held without the norm that a guard needs; other code's found_inf counts "
          "under other rules",
          "[loss]")
{
    const gsc_policy guard = preset_policy("guard");
    gsc_state s = started(guard);
    for (const gsc_report &r : {merged({bad_but_finite, good}, GSC_MERGE_ADDENDS),
                                merged({bad_but_finite, good}, GSC_MERGE_ADDENDS, &guard)}) {
        CHECK(r.measured == GSC_WANT_UNDERFLOW);
        s = updated(guard, s, r);
        CHECK(s.events == (skipped | bad_loss));
    }
    const Policy torch = preset_policy("torch");
    gsc_report foreign = bad_but_finite;
    foreign.found_inf = 1;
    for (const gsc_report &r :
         {foreign, merged({foreign, good}), merged({foreign, good}, GSC_MERGE_SHARDS, &torch)})
        CHECK(after(torch, {r}).events == (skipped | GSC_EVENT_BACKED_OFF));
    CHECK(after(holding(torch), {foreign}).events == (skipped | bad_loss));
}

TEST_CASE("an unknown loss is judged by its gradients", "[loss]")
{
    const Policy p = holding(preset_policy("torch"));
    const gsc_state s = after(p, {bad, report_after(GSC_LOSS_UNKNOWN, 3)});
    CHECK(s.events == (skipped | GSC_EVENT_BACKED_OFF));
    CHECK((s.factor.scale == 32768 && s.total_overflows == 1 && s.bad_losses_in_a_row == 1));
}

TEST_CASE("bad losses in a row end the training, a finite one ends the row", "[loss]")
{
    const Policy p = holding(preset_policy("torch")).max_failed_backoffs(3);
    CHECK(after(p, {bad, bad, good, bad, bad}).events == (skipped | bad_loss));
    CHECK(after(p, {bad, bad, overflow, bad}).bad_losses_in_a_row == 1); // its loss was finite
    const gsc_report unknown = report_after(GSC_LOSS_UNKNOWN);
    CHECK(after(p, {bad, bad, unknown, bad}).bad_losses_in_a_row == 1); // it took its step
    const gsc_state s = after(p, {bad, bad, bad});
    CHECK(s.events == (skipped | bad_loss | stopped));
    gsc_reason reason;
    REQUIRE(gsc_state_reason(&s, &bad, nullptr, nullptr, nullptr, nullptr, 0, &reason, nullptr) ==
            GSC_OK);
    CHECK((reason.outcome == GSC_OUTCOME_STOPPED && reason.cause == GSC_CAUSE_BAD_LOSS));
}

TEST_CASE("with a delay, a held step still brings the new scale into force", "[loss]")
{
    const Policy p = holding(preset_policy("roundpipe"));
    const gsc_state s = after(p, {overflow}), held = updated(p, s, bad);
    CHECK((s.factor.scale == 65536 && s.next.scale == 32768));
    CHECK((held.factor.scale == 32768 && held.next.scale == 32768));
}

TEST_CASE("a held step leaves nothing to clip, and another state can hold it too", "[loss]")
{
    const Policy p = holding(zeros).guard_norm(2).guard_flags(GSC_GUARD_CLIP);
    const gsc_state held = after(p, {bad_but_finite}),
                    clips = after(p, {report_after(GSC_LOSS_FINITE, 0, 8)});
    gsc_factor factor;
    REQUIRE(gsc_factor_clip_outlier(nullptr, nullptr, &held, &factor, nullptr) == GSC_OK);
    CHECK(factor.inverse == 1);
    CHECK(clips.total_guard_clips == 1);
    gsc_state both;
    REQUIRE(gsc_state_combine_decisions(nullptr, &clips, &held, &both, nullptr) == GSC_OK);
    CHECK(both.events == (skipped | bad_loss | GSC_EVENT_OUTLIER));
    gsc_reason reason;
    REQUIRE(gsc_state_reason(&both, nullptr, nullptr, nullptr, nullptr, nullptr, 0, &reason,
                             nullptr) == GSC_OK);
    CHECK(reason.cause == GSC_CAUSE_BAD_LOSS);
    CHECK_WORDING(std::string(reason.message) ==
                  "skipped: the loss was not finite before it was scaled");
}

TEST_CASE("the metrics of a held step have no overflow", "[loss]")
{
    const Policy p = holding(preset_policy("torch"));
    const gsc_state s = after(p, {bad});
    gsc_entry entries[32];
    uint64_t count;
    REQUIRE(gsc_state_metrics(&p, &s, &bad, entries, 32, &count, nullptr) == GSC_OK);
    CHECK((entries[GSC_METRIC_SKIP].integer == 1 && entries[GSC_METRIC_OVERFLOW].integer == 0));
    CHECK((entries[GSC_METRIC_BAD_LOSS].integer == 1 &&
           entries[GSC_METRIC_TOTAL_BAD_LOSSES].integer == 1 &&
           entries[GSC_METRIC_TOTAL_OVERFLOWS].integer == 0));
}

/* ---- steps without gradients ---- */

TEST_CASE("a step in which no tensor has a gradient is empty; a flag never is", "[loss]")
{
    gsc_report flag, failed = {};
    REQUIRE(gsc_report_from_flag(0, &flag, nullptr) == GSC_OK);
    failed.overflow = 1;
    const gsc_report none = merged({}), of_flag = merged({flag}), number = [] {
        gsc_report r;
        claim(gsc_report_from_number(3, &r, nullptr) == GSC_OK, "a number has a report");
        return r;
    }();
    const std::pair<gsc_report, uint32_t> rows[] = {
        {measured, empty},
        {none, empty},
        {merged({measured, measured}), empty},
        {merged({measured, measured}, GSC_MERGE_ADDENDS), empty},
        {good, 0},
        {merged({measured, good}), 0}, // ranks without gradients beside one with some
        {flag, 0},
        {of_flag, 0},
        {merged({merged({measured, flag}), measured}), 0},
        {number, 0},
        {failed, skipped | GSC_EVENT_BACKED_OFF},
    };
    const Policy p = preset_policy("torch");
    for (const auto &[r, events] : rows) {
        CAPTURE(&r - &rows[0].first);
        CHECK(after(p, {r}).events == events);
    }
    CHECK(after(p, {measured, measured}).empty_in_a_row == 2);
    CHECK(after(p, {measured, good}).empty_in_a_row == 0);
    CHECK(after(p.growth_interval(2), {measured, measured}).events ==
          (empty | GSC_EVENT_GREW)); // it counts as a good step
}

TEST_CASE("the counts that a diagnosis reads", "[loss]")
{
    const Policy p = preset_policy("torch").growth_interval(2);
    const gsc_report inf = [] {
        gsc_report r = overflow;
        r.nan_count = 0, r.inf_count = 7;
        return r;
    }();
    gsc_report flag;
    REQUIRE(gsc_report_from_flag(1, &flag, nullptr) == GSC_OK);
    CHECK(after(p, {overflow, overflow, flag}).nans_in_a_row == 2);
    CHECK(after(p, {overflow, inf}).nans_in_a_row == 0);
    gsc_report by_norm = good; // as a call with a policy judged it: its elements are known
    by_norm.overflow = 1;
    CHECK(after(p, {overflow, by_norm}).nans_in_a_row == 0);
    CHECK(after(p, {overflow, good}).nans_in_a_row == 0);
    const gsc_state falling = after(p, {inf, inf}), first = updated(p, falling, good),
                    grown = after(p, {inf, inf, good, inf, good, good});
    CHECK((falling.updates_at_growth == 0 && falling.total_updates == 2));
    CHECK((first.updates_at_growth == 3 && first.overflows_at_growth == 2));
    CHECK((grown.events & GSC_EVENT_GREW && grown.updates_at_growth == 6));
    CHECK(grown.overflows_at_growth == 3);
}

/* ---- whole runs ---- */

namespace {

/* A run of 20,000 steps of float16: gradients overflow at a scale above 2^16, and those below
 * 2^-25 times the inverse scale become 0. */
struct Training {
    double bad_share = 0;          /* of the batches: they make the loss NaN */
    int bad_from = -1, bad_to = 0; /* steps of a forward pass that overflows */
};

struct Result {
    double log2_scale = 0, skips = 0, underflow = 0; /* means over the runs */
    int stopped_at = 0;                              /* 0: not */
};

Result simulate(const gsc_policy &p, const Training &t, int runs = 20)
{
    constexpr int steps = 20000;
    Result mean;
    for (int run = 0; run < runs; run++) {
        Random random = {static_cast<uint64_t>(run) + 1};
        gsc_state s = started(p);
        for (int step = 0; step < steps && !(s.events & GSC_EVENT_STOPPED); step++) {
            const bool is_bad =
                random.unit() < t.bad_share || (step >= t.bad_from && step < t.bad_to);
            const bool overflows = !is_bad && s.factor.scale > 65536;
            const double scale = std::max(s.factor.scale, 0x1p-149);
            /* log2(gradient) is normal, of mean -20 and deviation 5. */
            mean.underflow +=
                std::erfc((25 + std::log2(scale) - 20) / (5 * std::sqrt(2.0))) / 2 / steps / runs;
            s = updated(p, s, is_bad ? bad : overflows ? overflow : good);
            mean.skips += static_cast<double>(s.skip) / runs;
            mean.stopped_at = s.events & GSC_EVENT_STOPPED ? step : 0;
        }
        mean.log2_scale += std::log2(std::max(s.factor.scale, 0x1p-149)) / runs;
    }
    return mean;
}

} // namespace

TEST_CASE("runs with bad losses: torch's rule loses the scale, a policy that holds keeps it",
          "[loss]")
{
    const Policy torch = preset_policy("torch"), holds = holding(torch);
    const struct {
        const char *what;
        Training training;
        double log2_scale, skips, underflow; /* of torch's rule; underflow is the least */
        double held_skips;                   /* of the policy that holds */
        int stops_at;                        /* 0: it goes on, at 2^16 and without underflow */
    } rows[] = {
        {"0.1 % NaN batches", {0.001, -1, 0}, -1, 20, 0.04, 29, 0},
        {"1 % NaN batches", {0.01, -1, 0}, -149, 200, 0.85, 208, 0},
        {"5 % NaN batches", {0.05, -1, 0}, -149, 1000, 0.95, 1007, 0},
        {"a forward pass that overflows for 8 steps", {0, 8000, 8008}, 13, 11, 0.0009, 17, 0},
        {"for 100 steps", {0, 8000, 8100}, -79, 103, 0.5, 13, 8009},
        {"a true overflow", {}, 16, 9, 0, 9, 0},
        {"NaN parameters", {0, 8000, 20000}, -149, 12003, 0.5, 13, 8009},
    };
    for (const auto &row : rows) {
        const Result lost = simulate(torch, row.training), held = simulate(holds, row.training);
        const bool random = row.training.bad_share > 0;
        CAPTURE(row.what, lost.log2_scale, lost.skips, lost.underflow, held.log2_scale, held.skips,
                held.underflow);
        CHECK(std::fabs(lost.log2_scale - row.log2_scale) <= (random ? 2 : 1e-6));
        CHECK(std::fabs(lost.skips - row.skips) <= (random ? 0.05 * row.skips : 1e-6));
        CHECK(lost.underflow >= row.underflow);
        CHECK(std::fabs(held.skips - row.held_skips) <= (random ? 0.05 * row.held_skips : 1e-6));
        CHECK(held.stopped_at == row.stops_at);
        if (row.stops_at == 0)
            CHECK((std::fabs(held.log2_scale - 16) < 0.5 && held.underflow < 1e-4));
    }
}
