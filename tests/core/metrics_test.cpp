// SPDX-License-Identifier: MIT
// The metrics of a step, and the findings about a run: each finding from a run that has the fault,
// and none from a good run.
#include "support.hpp"

namespace {

struct Run {
    gsc_policy policy;
    gsc_state state = started(policy);
    gsc_report report = {};
    uint64_t steps = 0, planned = 50000;

    explicit Run(const gsc_policy &p) : policy(p)
    {
    }

    Run &step(double norm, int64_t nans = 0, int64_t infs = 0, int64_t zeros = 0,
              uint32_t loss = GSC_LOSS_UNKNOWN)
    {
        report = report_of(nans + infs > 0 ? 'x' : '.', norm / 2);
        report.elements = 1000;
        report.sum_squares = norm * norm;
        report.nan_count = nans;
        report.inf_count = infs;
        report.underflows_to_zero = zeros;
        report.loss = loss;
        report.generation = state.factor.generation;
        state = updated(policy, state, report);
        return *this;
    }

    std::vector<gsc_note> findings(const Reports &tensors = {}) const
    {
        std::vector<gsc_note> notes(16);
        uint64_t count = 0;
        REQUIRE(gsc_state_diagnose(&policy, &state, &report, tensors.data(), tensors.size(), steps,
                                   planned, notes.data(), notes.size(), &count, nullptr) == GSC_OK);
        notes.resize(count);
        return notes;
    }

    /* The only finding, of this kind. */
    gsc_note finding(uint32_t kind, const Reports &tensors = {}) const
    {
        const std::vector<gsc_note> notes = findings(tensors);
        REQUIRE(notes.size() == 1);
        CHECK(notes[0].kind == kind);
        return notes[0];
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

TEST_CASE("a good run has no findings with any preset", "[metrics]")
{
    for (const std::string &name : preset_names()) {
        Run run(preset_policy(name));
        CAPTURE(name);
        for (int step = 0; step < 50000; step++) {
            const double norm = 1 + 0.1 * (step % 7);
            /* a network in float16 with a largest gradient of 2^-3 before scaling */
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
    const Policy torch = preset_policy("torch");

    Run nan(torch.min_scale(128));
    while (nan.state.factor.scale > 128)
        nan.step(1, 1);
    CHECK(nan.findings().empty());
    nan.step(1, 1); // no scale cures it
    Reports tensors(3, nan.report);
    tensors[1].nan_count = 0;
    gsc_note note = nan.finding(GSC_NOTE_NOT_FINITE, tensors);
    CHECK(note.entry == 2);
    CHECK_WORDING(
        std::string(note.message) ==
        "the gradients have NaN at a scale of 128, and no scale cures that: look at the input, "
        "the loss and the parameters, and go back to an earlier checkpoint; see docs/skipped.md");
    while (nan.state.total_overflows < 100)
        nan.step(1, 1);
    nan.steps = 100; // a scale that grows less often would not help
    nan.finding(GSC_NOTE_NOT_FINITE);
    nan.report.nan_count = nan.report.inf_count = INT64_MAX;
    CHECK(nan.finding(GSC_NOTE_NOT_FINITE).value == 0x1p64);

    // Inf without a scale, and of rules that never move, at a scale that could be lower.
    Run(zeros).step(1, 0, 1).finding(GSC_NOTE_NOT_FINITE);
    note = Run(zeros.init_scale(65536)).step(1, 0, 1).finding(GSC_NOTE_BACKOFF_FAILED);
    CHECK(std::string(note.field) == "init_scale");

    Run floor(torch.init_scale(128).min_scale(128));
    note = floor.step(1, 0, 1).step(1, 0, 1).findings().at(0);
    CHECK((note.kind == GSC_NOTE_BACKOFF_FAILED && note.value == 128));
    CHECK_WORDING(
        std::string(note.message) ==
        "2 overflows in a row could not lower the scale, 128: lower min_scale, or look at "
        "the input and the loss");

    Run zero(torch.arithmetic(GSC_ARITHMETIC_F32_FLUSH));
    while (zero.state.factor.scale > 0)
        zero.step(1, 1);
    CHECK(zero.findings().at(0).kind == GSC_NOTE_UNUSABLE);

    Run often(torch.growth_interval(100));
    for (; often.steps < 400; often.steps++)
        often.step(1, 0, often.steps % 10 == 0);
    CHECK(often.finding(GSC_NOTE_OVERFLOWS_OFTEN).value == 0.1);
    often.steps = 1; // since a checkpoint that has 40 overflows
    CHECK(often.finding(GSC_NOTE_OVERFLOWS_OFTEN).value == 1);

    // Bad losses are the cause, whether the policy holds or takes them as overflows.
    for (const Policy &p :
         {torch, torch.bad_loss_rule(GSC_BAD_LOSS_HOLD).max_failed_backoffs(10)}) {
        Run losses(p);
        for (; losses.steps < 1000; losses.steps++) {
            const bool bad = losses.steps % 50 == 0;
            losses.step(1, bad, 0, 0, bad ? GSC_LOSS_NOT_FINITE : GSC_LOSS_FINITE);
        }
        note = losses.finding(GSC_NOTE_BAD_LOSSES);
        CHECK((note.value == 0.02 && std::string(note.field) == "total_bad_losses"));
        CHECK_WORDING(std::string(note.message) ==
                      "2 % of the losses were not finite before scaling: look at the data or the "
                      "model; see docs/skipped.md#loss");
        losses.steps = 20000; // 1 in 1,000
        CHECK(losses.findings().empty());
    }

    Run vanishing(zeros.init_scale(65536));
    vanishing.step(1, 0, 0, 20);
    tensors.assign(3, vanishing.report);
    tensors[1].underflows_to_zero = 900;
    note = vanishing.finding(GSC_NOTE_UNDERFLOWS, tensors);
    CHECK((note.entry == 1 && note.value == 0.02));

    // An interval longer than the run, a ceiling that it cannot reach.
    Run brief(torch.growth_interval(100).max_scale(0x1p24));
    brief.step(1).planned = 99;
    brief.finding(GSC_NOTE_NEVER_GROWS);
    brief.planned = 799;
    CHECK(brief.finding(GSC_NOTE_CEILING_UNREACHABLE).value == 0x1p23);
    brief.planned = 801; // the first step is done
    CHECK(brief.findings().empty());

    // A scale that someone set outside the limits.
    Run above(torch.max_scale(0x1p20)), below(torch.min_scale(16));
    above.state.factor.scale = 0x1p24;
    below.state.factor.scale = 8;
    for (Run *run : {&above, &below}) {
        REQUIRE(gsc_state_init_from(nullptr, &run->policy, &run->state, &run->state, nullptr) ==
                GSC_OK);
        run->step(1);
    }
    note = above.finding(GSC_NOTE_OUTSIDE_LIMITS);
    CHECK((std::string(note.field) == "max_scale" && note.value == 0x1p24));
    CHECK(std::string(below.finding(GSC_NOTE_OUTSIDE_LIMITS).field) == "min_scale");
    Run mixed(torch.max_scale(0x1p20)); // only this step's scale, then only the next
    mixed.step(1).state.factor = above.state.factor;
    CHECK(mixed.finding(GSC_NOTE_OUTSIDE_LIMITS).value == 0x1p24);
    std::swap(mixed.state.factor, mixed.state.next);
    CHECK(mixed.finding(GSC_NOTE_OUTSIDE_LIMITS).value == 0x1p24);

    // A guard that never judges, one that lets nothing through.
    Run idle(preset_policy("guard")), shut(zeros.guard_norm(1));
    idle.step(1).planned = 100;
    idle.finding(GSC_NOTE_GUARD_IDLE);
    for (int step = 0; step < 10; step++)
        shut.step(2);
    shut.finding(GSC_NOTE_GUARD_SKIPS);

    // Ranks that differ; a device that failed: its overflow is made up, and not Inf or NaN.
    Run differs(torch), failed(zeros);
    differs.step(1).report.status = GSC_ERROR_MISMATCH;
    differs.report.status_rank_plus_1 = 4;
    CHECK_WORDING(
        std::string(differs.finding(GSC_NOTE_FAILURE).message) ==
        "the ranks differ, first on rank 3: load the same checkpoint and use the same policy "
        "on all ranks");
    failed.step(1).report.status = GSC_ERROR_DEVICE;
    failed.report.overflow = 1;
    CHECK(failed.finding(GSC_NOTE_FAILURE).value == GSC_ERROR_DEVICE);
}
