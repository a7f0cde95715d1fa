// SPDX-License-Identifier: MIT
// What a scaler did, in numbers and in findings: each finding from a run that has the fault, and
// none from a good run.
#include <map>

#include "support.hpp"

namespace {

struct Run {
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state = {};
    gsc_report report = {};
    uint64_t steps = 0, planned = 50000;

    explicit Run(
        const char *preset, void (*change)(gsc_policy &) = [](gsc_policy &) {})
    {
        REQUIRE(gsc_policy_preset(preset, &policy, nullptr) == GSC_OK);
        change(policy);
        REQUIRE(gsc_state_init(nullptr, &policy, &state, nullptr) == GSC_OK);
    }

    void step(double norm, int64_t nans = 0, int64_t infs = 0, int64_t zeros = 0)
    {
        report = {};
        report.kind = GSC_REPORT_TENSORS;
        report.measured = GSC_WANT_NORM | GSC_WANT_AMAX | GSC_WANT_UNDERFLOW;
        report.elements = 1000;
        report.amax = norm / 2;
        report.sum_squares = norm * norm;
        report.nan_count = nans;
        report.inf_count = infs;
        report.underflows_to_zero = zeros;
        report.overflow = nans + infs > 0;
        report.found_inf = static_cast<float>(report.overflow);
        report.generation = state.factor.generation;
        REQUIRE(gsc_state_update(nullptr, &policy, &state, &report, &state, nullptr) == GSC_OK);
    }

    std::vector<gsc_note> findings(const std::vector<gsc_report> &tensors = {}) const
    {
        std::vector<gsc_note> notes(16);
        uint64_t count = 0;
        REQUIRE(gsc_state_diagnose(&policy, &state, &report, tensors.data(), tensors.size(), steps,
                                   planned, notes.data(), notes.size(), &count, nullptr) == GSC_OK);
        notes.resize(count);
        return notes;
    }

    std::map<std::string, gsc_entry> metrics() const
    {
        gsc_entry entries[32];
        uint64_t count = 0;
        REQUIRE(gsc_state_metrics(&policy, &state, &report, entries, 32, &count, nullptr) ==
                GSC_OK);
        std::map<std::string, gsc_entry> found;
        for (uint64_t i = 0; i < count; i++)
            found[entries[i].key] = entries[i];
        CHECK(found.size() == count);
        return found;
    }
};

std::vector<uint32_t> kinds(const std::vector<gsc_note> &notes)
{
    std::vector<uint32_t> found;
    for (const gsc_note &note : notes)
        found.push_back(note.kind);
    return found;
}

} // namespace

TEST_CASE("the metrics are the state's and the report's numbers", "[metrics]")
{
    Run run("torch", [](gsc_policy &p) { p.growth_interval = 2, p.guard_norm = 100; });
    run.step(3), run.step(4, 1, 2), run.step(200, 0, 0, 5), run.step(1, 0, 0, 250);
    const auto metrics = run.metrics();
    CHECK(metrics.size() == 15);
    CHECK(metrics.at("loss_scale").value == 32768);
    CHECK(metrics.at("loss_scale").kind == GSC_ENTRY_NUMBER);
    CHECK(metrics.at("skip").kind == GSC_ENTRY_BOOLEAN);
    CHECK(metrics.at("skip").integer == 0);
    CHECK(metrics.at("overflow").integer == 0);
    CHECK(metrics.at("norm").value == 1);
    CHECK(metrics.at("amax").value == 0.5);
    CHECK(metrics.at("zero_share").value == 0.25);
    CHECK(metrics.at("total_overflows").integer == 1);
    CHECK(metrics.at("total_overflows").kind == GSC_ENTRY_INTEGER);
    CHECK(metrics.at("total_guard_skips").integer == 1);
    CHECK(metrics.at("total_growths").integer == 0);
    CHECK(metrics.at("total_backoffs").integer == 1);
    CHECK(metrics.at("steps_since_change").integer == run.state.steps_since_change);
    CHECK(metrics.at("nan_count").integer == 0);
    CHECK(metrics.at("inf_count").integer == 0);
    CHECK(metrics.at("guard_threshold").value == 100);
    CHECK(metrics.at("guard_multiplier").value == 1);
    run.step(1, 2, 3);
    CHECK(run.metrics().at("overflow").integer == 1);
    CHECK(run.metrics().at("norm").kind == GSC_ENTRY_NULL); // of some of the gradients
    CHECK(run.metrics().at("amax").kind == GSC_ENTRY_NULL);
    CHECK(run.metrics().at("nan_count").integer == 2);
    CHECK(run.metrics().at("inf_count").integer == 3);
    CHECK(run.metrics().at("guard_multiplier").value == 0);
}

TEST_CASE("the overflow of a metric is that of the decision", "[metrics]")
{
    Run bad("torch"), good("torch");
    bad.step(1, 1), good.step(1);
    REQUIRE(gsc_state_combine_decisions(nullptr, &good.state, &bad.state, &good.state, nullptr) ==
            GSC_OK);
    CHECK(good.metrics().at("skip").integer == 1);
    CHECK(good.metrics().at("overflow").integer == 1);
}

TEST_CASE("a metric that is not known is NULL", "[metrics]")
{
    Run run("torch");
    gsc_entry entries[32];
    uint64_t count = 0;
    REQUIRE(gsc_state_metrics(&run.policy, &run.state, nullptr, entries, 32, &count, nullptr) ==
            GSC_OK);
    for (uint64_t i = 0; i < count; i++) {
        const std::string key = entries[i].key;
        CAPTURE(key);
        const bool unknown = key == "norm" || key == "amax" || key == "zero_share" ||
                             key == "nan_count" || key == "inf_count" || key == "guard_threshold";
        CHECK((entries[i].kind == GSC_ENTRY_NULL) == unknown);
    }
    REQUIRE(gsc_state_metrics(&run.policy, &run.state, nullptr, nullptr, 0, &count, nullptr) ==
            GSC_OK);
    CHECK(count == 15);
    gsc_error err = {};
    entries[14].kind = 77;
    CHECK(gsc_state_metrics(&run.policy, &run.state, nullptr, entries, 14, &count, &err) == GSC_OK);
    CHECK(count == 15);
    CHECK(entries[14].kind == 77);
    CHECK(gsc_state_metrics(&run.policy, &run.state, nullptr, nullptr, 1, &count, &err) ==
          GSC_ERROR_NULL);
}

TEST_CASE("a good run has no findings with any preset", "[metrics]")
{
    for (uint32_t i = 0; gsc_preset_name(i); i++) {
        Run run(gsc_preset_name(i));
        CAPTURE(gsc_preset_name(i));
        for (int step = 0; step < 50000; step++) {
            const double norm = 1 + 0.1 * (step % 7);
            /* the float16 of a network whose largest gradient is 2^-3 before scaling */
            const bool overflows = run.state.factor.scale > 0x1p18;
            run.step(norm, 0, overflows);
            if (step % 1000 == 0)
                for (const gsc_note &note : run.findings())
                    FAIL_CHECK(step << ": " << note.message);
        }
    }
}

TEST_CASE("each finding comes from the run that has the fault, with what to do", "[metrics]")
{
    SECTION("NaN that no scale cures")
    {
        Run run("torch", [](gsc_policy &p) { p.min_scale = 128; });
        while (run.state.factor.scale > 128)
            run.step(1, 1);
        CHECK(run.findings().empty());
        run.step(1, 1);
        std::vector<gsc_report> tensors(3, run.report);
        tensors[0].nan_count = tensors[1].nan_count = 0;
        const auto notes = run.findings(tensors);
        REQUIRE(kinds(notes) == std::vector<uint32_t>{GSC_NOTE_NOT_FINITE});
        CHECK(notes[0].entry == 2);
        CHECK(
            std::string(notes[0].message) ==
            "the gradients have NaN at a scale of 128, and no scale cures that: look at the input, "
            "the loss and the parameters, and go back to an earlier checkpoint");
        while (run.state.total_overflows < 100)
            run.step(1, 1);
        run.steps = 100; /* a scale that grows less often would not help */
        CHECK(kinds(run.findings()) == std::vector<uint32_t>{GSC_NOTE_NOT_FINITE});
    }
    SECTION("Inf without a scale")
    {
        Run run("none");
        run.step(1, 0, 1);
        CHECK(kinds(run.findings()) == std::vector<uint32_t>{GSC_NOTE_NOT_FINITE});
    }
    SECTION("Inf of rules that never move, at a scale that could be lower")
    {
        Run run("static");
        run.step(1, 0, 1);
        const auto notes = run.findings();
        REQUIRE(kinds(notes) == std::vector<uint32_t>{GSC_NOTE_BACKOFF_FAILED});
        CHECK(std::string(notes[0].field) == "init_scale");
    }
    SECTION("a scale at its floor")
    {
        Run run("torch", [](gsc_policy &p) { p.init_scale = p.min_scale = 128; });
        run.step(1, 0, 1), run.step(1, 0, 1);
        const auto notes = run.findings();
        REQUIRE(notes.at(0).kind == GSC_NOTE_BACKOFF_FAILED);
        CHECK(notes[0].value == 128);
        CHECK(std::string(notes[0].message) ==
              "2 overflows in a row could not lower the scale, 128: lower min_scale, or look at "
              "the input and the loss");
    }
    SECTION("a scale of 0")
    {
        Run run("torch", [](gsc_policy &p) { p.arithmetic = GSC_ARITHMETIC_F32_FLUSH; });
        while (run.state.factor.scale > 0)
            run.step(1, 1);
        CHECK(run.findings().at(0).kind == GSC_NOTE_UNUSABLE);
    }
    SECTION("overflows every few steps")
    {
        Run run("torch", [](gsc_policy &p) { p.growth_interval = 100; });
        for (int step = 0; step < 400; step++)
            run.step(1, 0, step % 10 == 0);
        run.steps = 400;
        const auto notes = run.findings();
        REQUIRE(kinds(notes) == std::vector<uint32_t>{GSC_NOTE_OVERFLOWS_OFTEN});
        CHECK(notes[0].value == 0.1);
    }
    SECTION("gradients that vanish")
    {
        Run run("static");
        run.step(1, 0, 0, 20);
        std::vector<gsc_report> tensors(3, run.report);
        tensors[1].underflows_to_zero = 900;
        const auto notes = run.findings(tensors);
        REQUIRE(kinds(notes) == std::vector<uint32_t>{GSC_NOTE_UNDERFLOWS});
        CHECK(notes[0].entry == 1);
        CHECK(notes[0].value == 0.02);
    }
    SECTION("an interval longer than the run, a ceiling that it cannot reach")
    {
        Run run("torch", [](gsc_policy &p) { p.growth_interval = 100, p.max_scale = 0x1p24; });
        run.step(1);
        run.planned = 99;
        CHECK(kinds(run.findings()) == std::vector<uint32_t>{GSC_NOTE_NEVER_GROWS});
        run.steps = 0, run.planned = 799;
        const auto notes = run.findings();
        REQUIRE(kinds(notes) == std::vector<uint32_t>{GSC_NOTE_CEILING_UNREACHABLE});
        CHECK(notes[0].value == 0x1p23);
        run.planned = 800;
        CHECK(run.findings().empty());
    }
    SECTION("a guard that never judges, one that lets nothing through")
    {
        Run run("guard", [](gsc_policy &p) { p.guard_warmup = 100; });
        run.step(1);
        run.planned = 100;
        CHECK(kinds(run.findings()) == std::vector<uint32_t>{GSC_NOTE_GUARD_IDLE});
        Run shut("none", [](gsc_policy &p) { p.guard_norm = 1; });
        for (int step = 0; step < 10; step++)
            shut.step(2);
        CHECK(kinds(shut.findings()) == std::vector<uint32_t>{GSC_NOTE_GUARD_SKIPS});
    }
    SECTION("ranks that differ, a device that failed")
    {
        Run run("torch");
        run.step(1);
        run.report.status = GSC_ERROR_MISMATCH;
        run.report.status_rank_plus_1 = 4;
        REQUIRE(kinds(run.findings()) == std::vector<uint32_t>{GSC_NOTE_FAILURE});
        CHECK(std::string(run.findings()[0].message) ==
              "the ranks differ, first on rank 3: load the same checkpoint and use the same policy "
              "on "
              "all ranks");
        Run plain("none"); /* its overflow is made up, and not Inf or NaN */
        plain.step(1);
        plain.report.status = GSC_ERROR_DEVICE;
        plain.report.overflow = 1;
        REQUIRE(kinds(plain.findings()) == std::vector<uint32_t>{GSC_NOTE_FAILURE});
        CHECK(plain.findings()[0].value == GSC_ERROR_DEVICE);
    }
}

TEST_CASE("a diagnosis refuses an invalid state, report or list", "[metrics]")
{
    Run run("torch");
    run.step(1);
    gsc_error err = {};
    gsc_report bad = run.report;
    bad.elements = -1;
    const auto call = [&](const gsc_state *state, const gsc_report *report, const gsc_report *each,
                          gsc_note *notes) {
        return gsc_state_diagnose(&run.policy, state, report, each, each != nullptr, 0, 0, notes, 1,
                                  nullptr, &err);
    };
    gsc_note note;
    CHECK(call(nullptr, nullptr, nullptr, &note) == GSC_ERROR_NULL);
    CHECK(call(&run.state, &bad, nullptr, &note) == GSC_ERROR_REPORT);
    CHECK(std::string(err.field) == "elements");
    CHECK(call(&run.state, nullptr, &bad, &note) == GSC_ERROR_REPORT);
    CHECK(std::string(err.message).rfind("per_tensor[0].elements is -1", 0) == 0);
    CHECK(call(&run.state, nullptr, nullptr, nullptr) == GSC_ERROR_NULL);
    CHECK(std::string(err.name) == "notes");
}
