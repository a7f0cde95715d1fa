// SPDX-License-Identifier: MIT
// The metrics of a step.
#include "support.hpp"

namespace {

struct Run {
    gsc_policy policy;
    gsc_state state = started(policy);
    gsc_report report = {};

    explicit Run(const gsc_policy &p) : policy(p)
    {
    }

    Run &step(double norm, int64_t nans = 0, int64_t infs = 0, int64_t zeros = 0)
    {
        report = report_of(nans + infs > 0 ? 'x' : '.', norm / 2);
        report.elements = 1000;
        report.sum_squares = norm * norm;
        report.nan_count = nans;
        report.inf_count = infs;
        report.underflows_to_zero = zeros;
        report.generation = state.factor.generation;
        state = updated(policy, state, report);
        return *this;
    }

    /* In words: numbers end with a dot. */
    std::string metrics(bool reported = true) const
    {
        gsc_entry entries[32];
        uint64_t count = 0;
        REQUIRE(gsc_state_metrics(&policy, &state, reported ? &report : nullptr, entries, 32,
                                  &count, nullptr) == GSC_OK);
        std::ostringstream words;
        for (uint64_t i = 0; i < count; i++) {
            const gsc_entry &e = entries[i];
            words << (i ? " " : "") << e.key << " ";
            if (e.kind == GSC_ENTRY_BOOLEAN || e.kind == GSC_ENTRY_INTEGER)
                CHECK(e.value == static_cast<double>(e.integer));
            if (e.kind == GSC_ENTRY_NULL)
                words << "null";
            else if (e.kind == GSC_ENTRY_BOOLEAN)
                words << (e.integer ? "true" : "false");
            else if (e.kind == GSC_ENTRY_INTEGER)
                words << e.integer;
            else
                words << e.value << ".";
        }
        return words.str();
    }
};

} // namespace

TEST_CASE("the metrics are the state's and the report's numbers, and null if not known",
          "[metrics]")
{
    Run run(preset_policy("torch").growth_interval(2).guard_norm(100));
    run.step(3).step(4, 1, 2).step(200, 0, 0, 5).step(1, 0, 0, 250);
    CHECK(run.metrics() ==
          "loss_scale 32768. skip false overflow false norm 1. amax 0.5. zero_share 0.25. "
          "total_overflows 1 total_guard_skips 1 total_growths 0 total_backoffs 1 "
          "steps_since_change 1 nan_count 0 inf_count 0 guard_threshold 100. guard_multiplier 1. "
          "bad_loss null total_bad_losses 0");
    run.step(1, 2, 3); // its norm is of some of the gradients
    CHECK(run.metrics() ==
          "loss_scale 16384. skip true overflow true norm null amax null zero_share 0. "
          "total_overflows 2 total_guard_skips 1 total_growths 0 total_backoffs 2 "
          "steps_since_change 0 nan_count 2 inf_count 3 guard_threshold null guard_multiplier 0. "
          "bad_loss null total_bad_losses 0");
    CHECK(Run(preset_policy("torch")).metrics(false) ==
          "loss_scale 65536. skip false overflow false norm null amax null zero_share null "
          "total_overflows 0 total_guard_skips 0 total_growths 0 total_backoffs 0 "
          "steps_since_change 0 nan_count null inf_count null guard_threshold null "
          "guard_multiplier 1. bad_loss null total_bad_losses 0");
    /* The decision says whether there was an overflow. */
    Run bad(preset_policy("torch")), good(preset_policy("torch"));
    bad.step(1, 1);
    good.step(1);
    REQUIRE(gsc_state_combine_decisions(nullptr, &good.state, &bad.state, &good.state, nullptr) ==
            GSC_OK);
    CHECK(good.metrics().find("skip true overflow true") != std::string::npos);
}

TEST_CASE("metrics beyond the capacity are only counted", "[metrics]")
{
    const Run run(preset_policy("torch"));
    gsc_entry entries[32] = {};
    uint64_t count = 0;
    entries[16].kind = 77;
    for (uint64_t capacity : {0u, 16u}) {
        REQUIRE(gsc_state_metrics(&run.policy, &run.state, nullptr, capacity ? entries : nullptr,
                                  capacity, &count, nullptr) == GSC_OK);
        CHECK(count == 17);
    }
    CHECK(entries[16].kind == 77);
}
