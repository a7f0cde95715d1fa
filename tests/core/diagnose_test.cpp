// SPDX-License-Identifier: MIT
// The diagnosis of a run: tables of synthetic runs. Ill runs have their finding first, and healthy
// ones have none, at several lengths and with other numbers.
#include "support.hpp"

namespace {

struct Run {
    gsc_policy policy;
    gsc_state state = started(policy);
    gsc_report report = {};
    Reports tensors;
    uint64_t planned = 0, steps = 0;

    explicit Run(const gsc_policy &p) : policy(p)
    {
    }

    void update(const gsc_report &r)
    {
        report = r;
        state = updated(policy, state, report);
    }

    /* A report on 1,000 elements. */
    gsc_report measure(double norm, int64_t nans = 0, int64_t infs = 0,
                       uint32_t loss = GSC_LOSS_UNKNOWN) const
    {
        gsc_report r = report_of(nans + infs > 0 ? 'x' : '.', norm / 2);
        r.elements = 1000;
        r.sum_squares = norm * norm;
        r.nan_count = nans;
        r.inf_count = infs;
        r.loss = loss;
        r.generation = state.factor.generation;
        return r;
    }

    Run &step(double norm, int64_t nans = 0, int64_t infs = 0, uint32_t loss = GSC_LOSS_UNKNOWN)
    {
        update(measure(norm, nans, infs, loss));
        return *this;
    }

    /* A step of float16: gradients overflow above this scale, and Inf - Inf makes NaN. */
    void half_step(double limit, double norm = 1)
    {
        const bool overflows = state.factor.scale > limit;
        step(norm, overflows ? 5 : 0, overflows ? 2 : 0);
    }

    static gsc_report flag(bool overflow)
    {
        gsc_report r;
        claim(gsc_report_from_flag(overflow, &r, nullptr) == GSC_OK, "a flag has a report");
        return r;
    }

    /* Replaces the scale and the counts that `change` sets. */
    void set(const std::function<void(gsc_state &)> &change)
    {
        change(state);
        REQUIRE(gsc_state_init_from(nullptr, &policy, &state, &state, nullptr) == GSC_OK);
    }

    std::vector<gsc_note> findings() const
    {
        gsc_note notes[16];
        uint64_t count = 0;
        const gsc_report *known =
            report.kind == GSC_REPORT_NONE && report.status == GSC_OK ? nullptr : &report;
        claim(gsc_state_diagnose(&policy, &state, known, tensors.data(), tensors.size(), steps,
                                 planned, notes, 16, &count, nullptr) == GSC_OK,
              "a run is diagnosed");
        for (uint64_t i = 0; i < count; i++)
            CHECK_WORDING(std::string(notes[i].message).find("...") == std::string::npos);
        return {notes, notes + count};
    }

    /* The only finding, of this kind. */
    gsc_note finding(uint32_t kind) const
    {
        const std::vector<gsc_note> notes = findings();
        REQUIRE(notes.size() == 1);
        CHECK(notes[0].kind == kind);
        return notes[0];
    }
};

using Step = std::function<void(Run &, int)>;

/* The numbers of a table of runs. */
struct Numbers {
    double limit;      /* a float16 network overflows above this scale */
    double norm;       /* of usual gradients */
    int64_t elements;  /* that are not finite */
    int gap;           /* steps from one overflow to the next */
    uint64_t interval; /* of a usual growth */
    uint64_t brief;    /* interval of a growth that is too frequent */
    double high;       /* a first scale that is too high */
};
constexpr Numbers usual = {0x1p14, 1, 1, 10, 100, 1, 0x1p60},
                  other = {0x1p9, 37.5, 800, 7, 64, 4, 0x1p41};

struct Ill {
    const char *name;
    Policy policy;
    Step step;
    std::vector<int> lengths;
    uint32_t kind;
    const char *field;
    int64_t entry; /* the tensor */
    const char *words, *no_words = "\n";
    uint64_t planned = 0;
};

/* Returns an outlier guard that can lock all steps out. */
Policy lockable(const Policy &p)
{
    return p.guard_ratio(5)
        .guard_decay(0.9)
        .guard_warmup(10)
        .guard_sample(GSC_SAMPLE_NONE)
        .quirks(GSC_QUIRK_ALLOW_LOCKOUT);
}

std::vector<Ill> ill_runs(const Numbers &n)
{
    const Policy torch = preset_policy("torch"), recommended = preset_policy("recommended"),
                 none = preset_policy("none"), fixed = preset_policy("static");
    const int gap = n.gap, growth = static_cast<int>(n.interval);
    const int64_t k = n.elements;
    const auto always = [=](int64_t nans, int64_t infs) {
        return [=](Run &run, int) { run.step(n.norm, nans, infs); };
    };
    const auto often = [=](Run &run, int i) { run.step(n.norm, 0, i % gap == gap - 1 ? k : 0); };
    const auto half = [=](double limit) {
        return [=](Run &run, int) { run.half_step(limit, n.norm); };
    };
    const auto nan_later = [=](Run &run, int i) {
        run.step(n.norm, i < 50 ? 0 : k);
        run.tensors.assign(3, run.measure(n.norm));
        run.tensors[1] = run.report;
    };
    const auto level = [=](Run &run, int i) { run.step(i < 20 ? n.norm : 9 * n.norm); };
    const auto underflows = [=](Run &run, int) {
        gsc_report r = run.measure(n.norm);
        r.underflows_to_zero = 20 + k / 10;
        run.update(r);
        run.tensors.assign(3, r);
        run.tensors[1].underflows_to_zero = 900;
    };
    const auto dead_layer = [=](Run &run, int) {
        run.step(n.norm);
        run.tensors.assign(4, run.report);
        run.tensors[2] = run.measure(0);
    };
    const auto bad_losses = [=](Run &run, int i) {
        const bool bad = i % (5 * gap) == 0;
        run.step(n.norm, bad, 0, bad ? GSC_LOSS_NOT_FINITE : GSC_LOSS_FINITE);
    };
    const auto bad_loss_from = [=](int first) {
        return [=](Run &run, int i) {
            const bool bad = i >= first;
            run.step(n.norm, bad ? k : 0, 0, bad ? GSC_LOSS_NOT_FINITE : GSC_LOSS_FINITE);
        };
    };
    const auto start_at = [=](const std::function<void(gsc_state &)> &change) {
        return [=](Run &run, int i) {
            if (i == 0)
                run.set(change);
            run.step(n.norm);
        };
    };
    /* clang-format off */
    return {
        {"Inf that no scale cures, without a floor", torch, always(0, k), {33, 50, 100}, /* from 2^16 to 2^-17 */
         GSC_NOTE_NOT_FINITE, "failed_backoffs", 0, "have Inf at a scale of"},
        {"Inf that no scale cures, at a low floor", recommended, always(0, k), {33, 50, 100},
         GSC_NOTE_NOT_FINITE, "failed_backoffs", 0, "no scale cures that"},
        {"NaN beside Inf, at a low floor", recommended, always(k, k), {33, 50},
         GSC_NOTE_NOT_FINITE, "failed_backoffs", 0, "NaN and Inf at a scale of"},
        {"Inf of a flag, without a scale", none, [=](Run &run, int) { run.update(run.flag(1)); }, {3, 4, 200},
         GSC_NOTE_NOT_FINITE, "failed_backoffs", -1, "Inf or NaN at a scale of 1,"},
        {"a floor that is too high", preset_policy("jmp"), half(0.25), {18, 30, 500},
         GSC_NOTE_BACKOFF_FAILED, "min_scale", 0, "lower min_scale", "no scale cures"},
        {"a floor that is too high, and stops", preset_policy("deepspeed"), half(0.25), {18, 25},
         GSC_NOTE_BACKOFF_FAILED, "min_scale", 0, "lower min_scale", "no scale cures"},
        {"a fixed scale that is too high", fixed, half(n.limit), {3, 20, 500},
         GSC_NOTE_BACKOFF_FAILED, "init_scale", 0, "lower init_scale"},
        {"growths that undo backoffs", preset_policy("fairscale").growth_interval(1).init_scale(n.limit), half(n.limit), {10, 500},
         GSC_NOTE_BACKOFF_FAILED, "growth_interval", 0, "raise growth_interval", "min_scale"},
        {"NaN from a step on", torch, nan_later, {53, 60, 80},
         GSC_NOTE_NOT_FINITE, "nans_in_a_row", 1, "NaN, not Inf, in the gradients of the last", "checkpoint"},
        {"NaN without a scale", none, nan_later, {53, 60, 500},
         GSC_NOTE_NOT_FINITE, "nans_in_a_row", 1, "no scale makes a NaN; look at", "learning rate"},
        {"NaN from the first step on", recommended, always(k, 0), {3, 10, 29},
         GSC_NOTE_NOT_FINITE, "nans_in_a_row", 0, "of the last"},
        {"a start that is too high", torch.init_scale(n.high), half(n.limit), {3, 10, 25},
         GSC_NOTE_START_TOO_HIGH, "init_scale", -1, "the scale is still falling from init_scale: start at 2^16", "learning rate"},
        {"NaN alone, of Inf - Inf, from a start that is too high", torch.init_scale(n.high), always(k, 0), {3, 10, 15},
         GSC_NOTE_START_TOO_HIGH, "init_scale", -1, "start at 2^16", "no scale makes"},
        {"megatron's start, which is too high", preset_policy("megatron"), half(n.limit), {3, 10, 17},
         GSC_NOTE_START_TOO_HIGH, "init_scale", -1, "start at 2^16, not at 4.29497e+09", "grow less"},
        {"growth that is too frequent", torch.growth_interval(n.brief).init_scale(n.limit), half(n.limit), {60, 500, 5000},
         GSC_NOTE_OVERFLOWS_OFTEN, "growth_interval", -1, "raise it, for example to 2000", "learning rate"},
        {"overflows with every scale", torch.growth_interval(n.interval), often, {12 * gap, 20 * gap, 29 * gap},
         GSC_NOTE_OVERFLOWS_OFTEN, "total_overflows", -1, "lower the learning rate"},
        {"overflows without a scale", none, often, {12 * gap, 500 * gap + 3},
         GSC_NOTE_OVERFLOWS_OFTEN, "total_overflows", -1, "look at the input", "learning rate"},
        {"overflows with a fixed scale", fixed, often, {12 * gap, 500 * gap + 3},
         GSC_NOTE_OVERFLOWS_OFTEN, "total_overflows", -1, "lower init_scale", "learning rate"},
        {"bad losses now and then, held", recommended, bad_losses, {5 * gap, 1000, 3000},
         GSC_NOTE_BAD_LOSSES, "total_bad_losses", -1, "% of the losses were"},
        {"bad losses from a step on, held", recommended, bad_loss_from(2000), {2001, 2005, 2009},
         GSC_NOTE_BAD_LOSSES, "total_bad_losses", -1, "not finite before scaling"},
        {"bad losses from a step on, not held", torch, bad_loss_from(30), {31, 40, 90},
         GSC_NOTE_BAD_LOSSES, "total_bad_losses", -1, "look at the data", "learning rate"},
        {"no gradients", torch, [](Run &run, int) { run.update(measured); }, {1, 2, 300},
         GSC_NOTE_NO_GRADIENTS, "empty_in_a_row", -1, "had no gradients: run the backward pass"},
        {"a dead layer", torch, dead_layer, {10, 100},
         GSC_NOTE_ZEROS, "", 2, "1 of 4 tensors had only gradients of 0"},
        {"gradients of 0", torch, [](Run &run, int) { run.step(0); }, {10, 100},
         GSC_NOTE_ZEROS, "", -1, "all gradients of the last step are 0"},
        {"gradients that become 0", torch, underflows, {1, 100},
         GSC_NOTE_UNDERFLOWS, "", 1, "became zero by unscaling: unscale into a wider dtype", "float32"},
        {"a guard that is locked", lockable(none), level, {30, 50, 5000},
         GSC_NOTE_GUARD_SKIPS, "total_guard_skips", -1, "raise guard_ratio, or set guard_max_in_a_row"},
        {"a guard that will accept the level", lockable(none).guard_max_in_a_row(40), level, {30, 50},
         GSC_NOTE_GUARD_SKIPS, "total_guard_skips", -1, "or lower guard_max_in_a_row, 40", "set guard_max_in_a_row"},
        {"a guard that stops", lockable(none).guard_max_in_a_row(3).guard_flags(GSC_GUARD_STOP), level, {23, 24, 40},
         GSC_NOTE_GUARD_SKIPS, "total_guard_skips", -1, "look at the data", "guard_max_in_a_row"},
        {"a guard that clips all", lockable(none).guard_flags(GSC_GUARD_CLIP), level, {30, 50, 5000},
         GSC_NOTE_GUARD_CLIPS, "total_guard_clips", -1, "the guard clipped", "skipped 0 steps"},
        {"a guard that skips most", none.guard_norm(n.norm), [=](Run &run, int i) { run.step(n.norm * (i % 3 ? 2 : 1)); }, {30, 301, 3000},
         GSC_NOTE_GUARD_SKIPS, "total_guard_skips", -1, "above the threshold", "guard_ratio"},
        {"a guard that judges nothing", preset_policy("guard"), always(0, 0), {1, 50, 99},
         GSC_NOTE_GUARD_IDLE, "guard_warmup", -1, "lower guard_warmup", "\n", 100},
        {"a run without growth", torch.init_scale(4), always(0, 0), {1, 250, 499},
         GSC_NOTE_NEVER_GROWS, "growth_interval", -1, "growth_interval is 2000 steps, and 500", "\n", 500},
        {"a count past EXACT", torch, start_at([](gsc_state &s) { s.good_steps = 3000, s.factor.scale = 16; }), {1, 250, 4000},
         GSC_NOTE_NEVER_GROWS, "good_steps", -1, "set good_steps to 0", "ends at", 9000},
        {"a scale that ends low", torch.init_scale(4).growth_interval(n.interval), always(0, 0), {1, growth - 1, growth + growth / 2, 2 * growth},
         GSC_NOTE_CEILING_UNREACHABLE, "growth_interval", -1, "the scale ends at 16, below", "\n", 2 * n.interval + n.interval / 10},
        {"a scale above its limit", torch.max_scale(0x1p20), start_at([](gsc_state &s) { s.factor.scale = 0x1p24; }), {1, 100, 1900},
         GSC_NOTE_OUTSIDE_LIMITS, "max_scale", -1, "above max_scale"},
        {"a scale below its limit", torch.min_scale(16), start_at([](gsc_state &s) { s.factor.scale = 8; }), {1, 100, 1900},
         GSC_NOTE_OUTSIDE_LIMITS, "min_scale", -1, "below min_scale"},
        {"a scale of 0", torch.arithmetic(GSC_ARITHMETIC_F32_FLUSH), always(k, k), {150, 200},
         GSC_NOTE_NOT_FINITE, "failed_backoffs", 0, "at a scale of 0, and no scale cures that"},
    };
    /* clang-format on */
}

void check_ill(const Ill &row, int length)
{
    Run run(row.policy);
    run.planned = row.planned;
    CAPTURE(row.name, length);
    for (int i = 0; i < length; i++)
        row.step(run, i);
    const std::vector<gsc_note> notes = run.findings();
    REQUIRE(!notes.empty());
    CHECK(notes[0].kind == row.kind);
    if (run.state.factor.scale == 0) // which is a consequence
        CHECK((notes.size() == 2 && notes[1].kind == GSC_NOTE_UNUSABLE));
    CHECK(std::string(notes[0].field) == row.field);
    CHECK(notes[0].entry == row.entry);
    CHECK_WORDING(std::string(notes[0].message).find(row.words) != std::string::npos);
    for (const gsc_note &note : notes)
        CHECK_WORDING(std::string(note.message).find(row.no_words) == std::string::npos);
    INFO(notes[0].message);
}

struct Healthy {
    std::string name;
    Policy policy;
    Step step;
    bool can_end = true; /* after any step */
};

std::vector<Healthy> healthy_runs(const Numbers &n)
{
    const Policy torch = preset_policy("torch"), recommended = preset_policy("recommended"),
                 none = preset_policy("none");
    const auto half_of = [=](double limit, double norm) {
        return [=](Run &run, int i) { run.half_step(limit, norm * (1 + 0.01 * (i % 7))); };
    };
    const auto half = [=](double limit) { return half_of(limit, n.norm); };
    const auto good = [=](Run &run, int) { run.step(n.norm); };
    const auto fallen = [=](Run &run, int) {
        do
            run.half_step(n.limit);
        while (run.state.updates_at_growth == 0);
    };
    std::vector<Healthy> rows = {
        {"float16 gradients of 2e5, which need a scale of 1/4", torch, half(0.25)},
        {"the same, with a floor and a hold", recommended, half(0.25)},
        {"one skipped batch without a scale", none,
         [=](Run &run, int i) { run.step(n.norm, 0, i == 3 ? n.elements : 0); }},
        {"one batch with NaN without a scale", none,
         [=](Run &run, int i) { run.step(n.norm, i == 3 ? n.elements : 0); }},
        {"two batches with NaN in a row", torch,
         [=](Run &run, int i) { run.step(n.norm, i % 999 < 2 ? n.elements : 0); }},
        {"a high start, after its first good step", torch.init_scale(n.high), fallen},
        {"megatron's start, after its first good step", preset_policy("megatron"), fallen},
        {"a low start that grows", torch.init_scale(1).growth_interval(n.interval), half(n.limit),
         false},
        {"a short interval", torch.growth_interval(n.interval), half(n.limit)},
        {"a hysteresis of 5", torch.hysteresis(5).growth_interval(500), half(n.limit)},
        {"a new scale that is late", preset_policy("roundpipe").growth_interval(200),
         half(n.limit)},
        {"a tensor of zeros at the first steps, as of LoRA", torch,
         [=](Run &run, int i) {
             run.step(n.norm);
             run.tensors.assign(3, run.measure(i < 5 ? 0 : n.norm));
         }},
        {"a tensor that was not measured", torch,
         [=](Run &run, int) {
             run.update(only(0, run.measure(n.norm)));
             run.tensors.assign(3, run.report);
         }},
        {"few gradients that become 0", torch,
         [=](Run &run, int) {
             gsc_report r = run.measure(n.norm);
             r.underflows_to_zero = 9;
             run.update(r);
         }},
        {"flags of other code", torch,
         [=](Run &run, int) { run.update(run.flag(run.state.factor.scale > n.limit)); }},
        {"a guarded loss", preset_policy("guard"),
         [](Run &run, int i) {
             gsc_report number;
             claim(gsc_report_from_number(i % 50 ? 0.5 : 0, &number, nullptr) == GSC_OK,
                   "a number has a report");
             run.update(number);
         }},
        {"several reports of a step", torch,
         [=](Run &run, int) {
             const bool overflows = run.state.factor.scale > n.limit;
             run.update(merged({run.measure(n.norm), run.measure(n.norm, overflows, overflows)}));
         }},
        {"a few outliers", preset_policy("guard"),
         [=](Run &run, int i) { run.step(i % 500 > 490 ? 50 * n.norm : n.norm); }},
        {"a new level that the guard accepts", preset_policy("guard"),
         [=](Run &run, int i) { run.step(i < 3000 ? n.norm : 30 * n.norm); }},
        {"clipping to a norm in every step", none.guard_norm(n.norm).guard_flags(GSC_GUARD_CLIP),
         [=](Run &run, int) { run.step(2 * n.norm); }},
        {"one bad loss in 2,500", recommended,
         [=](Run &run, int i) {
             const bool bad = i == 9000 || i == 6000 || i == 2500;
             run.step(n.norm, bad, 0, bad ? GSC_LOSS_NOT_FINITE : GSC_LOSS_FINITE);
             if (bad)
                 run.step(n.norm, 0, 0, GSC_LOSS_FINITE);
         }},
        {"an imported count near a growth", torch,
         [=](Run &run, int i) {
             if (i == 0)
                 run.set([](gsc_state &s) { s.good_steps = 1990; });
             good(run, i);
         }},
        {"a resumed run", torch,
         [=](Run &run, int i) {
             if (i == 0)
                 run.set([](gsc_state &s) {
                     s.total_updates = 100000, s.total_overflows = 60, s.total_backoffs = 60;
                 });
             run.steps = static_cast<uint64_t>(i) + 1;
             run.half_step(n.limit);
         }},
    };
    for (const std::string &name : preset_names()) {
        const Policy p = preset_policy(name);
        const double first = started(p).factor.scale;
        const bool knows_norm = p.gsc_policy::guard_norm + p.gsc_policy::guard_init_mean != 0;
        rows.push_back({name + " and a network that it suits", p,
                        half_of(4 * first, knows_norm ? 0.5 : n.norm)});
        if (first <= 0x1p16 && p.gsc_policy::growth_interval > 0) /* others start too high */
            rows.push_back({name + " and a network that needs a lower scale", p, half(n.limit)});
    }
    return rows;
}

void check_healthy(const Healthy &row)
{
    Run run(row.policy);
    std::vector<gsc_note> notes;
    CAPTURE(row.name);
    for (int i = 0; i < 10000 && notes.empty(); i++) {
        row.step(run, i);
        /* The plan is unknown; a tenth also with the whole run as planned, or with this step as its
         * end. */
        const uint64_t length = run.steps ? run.steps : static_cast<uint64_t>(i) + 1;
        for (const uint64_t planned : {uint64_t{0}, uint64_t{10000}, length}) {
            const bool is_idle = planned <= row.policy.gsc_policy::guard_warmup; /* the guard */
            if (planned > 0 && (is_idle || i % 10 != 9 || (planned == length && !row.can_end)))
                continue;
            run.planned = planned;
            notes = run.findings();
            for (const gsc_note &note : notes)
                FAIL_CHECK(row.name << ", step " << i << " of " << planned << ": " << note.message);
        }
    }
}

} // namespace

TEST_CASE("an ill run has its finding first, which says what to do", "[diagnose]")
{
    for (const Numbers &numbers : {usual, other}) {
        const std::vector<Ill> rows = ill_runs(numbers);
        CHECK(rows.size() >= 24);
        for (const Ill &row : rows)
            for (const int length : row.lengths)
                check_ill(row, length);
    }
}

TEST_CASE("a healthy run has no findings after any step", "[diagnose]")
{
    for (const Numbers &numbers : {usual, other}) {
        const std::vector<Healthy> rows = healthy_runs(numbers);
        CHECK(rows.size() >= 28);
        for (const Healthy &row : rows)
            check_healthy(row);
    }
}

TEST_CASE("a long good run has no findings with any preset", "[diagnose]")
{
    for (const std::string &name : preset_names()) {
        Run run(preset_policy(name));
        run.planned = 50000;
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

TEST_CASE("a finding has its value, and its sentence says what to do", "[diagnose]")
{
    const Policy torch = preset_policy("torch");

    Run floor(torch.min_scale(128));
    for (int step = 0; step < 11; step++)
        floor.step(1, 0, 1);
    CHECK(floor.findings().empty()); // the scale reached the floor and failed twice
    const gsc_note note = floor.step(1, 0, 1).finding(GSC_NOTE_BACKOFF_FAILED);
    CHECK(note.value == 128);
    CHECK_WORDING(
        std::string(note.message) ==
        "3 overflows in a row could not lower the scale, 128: lower min_scale, or look at "
        "the input and the loss");

    Run hopeless(torch.init_scale(0x1p-14).min_scale(0x1p-14));
    hopeless.step(1, 1, 1).step(1, 1, 1);
    CHECK(hopeless.findings().empty());
    hopeless.step(1, 1, 1);
    hopeless.tensors.assign(3, hopeless.report);
    hopeless.tensors[1].nan_count = 0;
    CHECK(hopeless.finding(GSC_NOTE_NOT_FINITE).entry == 2);
    CHECK_WORDING(
        std::string(hopeless.findings()[0].message) ==
        "the gradients have NaN and Inf at a scale of 6.10352e-05, and no scale cures that: look "
        "at the input, the loss and the parameters, and go back to an earlier checkpoint; see "
        "docs/skipped.md");
    hopeless.report.nan_count = hopeless.report.inf_count = INT64_MAX;
    CHECK(hopeless.finding(GSC_NOTE_NOT_FINITE).value == 0x1p64);

    Run nan(torch);
    nan.step(1).step(1, 7).step(1, 7).step(1, 7);
    CHECK(nan.finding(GSC_NOTE_NOT_FINITE).value == 7);
    CHECK_WORDING(std::string(nan.findings()[0].message) ==
                  "NaN, not Inf, in the gradients of the last 3 steps: no scale makes a NaN; look "
                  "at the input, the loss and the parameters; see docs/skipped.md");
    nan.report.inf_count = 1; // Inf - Inf is NaN
    CHECK(nan.findings().empty());
    nan.report = {}; // unknown
    CHECK(nan.finding(GSC_NOTE_NOT_FINITE).value == 0);

    Run often(torch.growth_interval(100));
    for (int step = 0; step < 400; step++)
        often.step(1, 0, step % 10 == 9);
    CHECK(often.finding(GSC_NOTE_OVERFLOWS_OFTEN).value == 0.1);
    often.steps = 1; // since a checkpoint; the totals are of all updates
    CHECK(often.finding(GSC_NOTE_OVERFLOWS_OFTEN).value == 0.1);

    for (const Policy &p :
         {torch, torch.bad_loss_rule(GSC_BAD_LOSS_HOLD).max_failed_backoffs(10)}) {
        Run losses(p);
        for (int step = 0; step < 20000; step++) {
            if (step == 1000) {
                const gsc_note found = losses.finding(GSC_NOTE_BAD_LOSSES);
                CHECK((found.value == 0.02 && std::string(found.field) == "total_bad_losses"));
                CHECK_WORDING(std::string(found.message) ==
                              "2 % of the losses were not finite before scaling: look at the data "
                              "or the model; see docs/skipped.md#loss");
            }
            const bool bad = step < 1000 && step % 50 == 0;
            losses.step(1, bad, 0, bad ? GSC_LOSS_NOT_FINITE : GSC_LOSS_FINITE);
        }
        CHECK(losses.findings().empty()); // 1 in 1,000
    }

    Run vanishing(torch);
    vanishing.step(1).report.underflows_to_zero = 20;
    CHECK(vanishing.finding(GSC_NOTE_UNDERFLOWS).value == 0.02);

    /* Only the scale of this step, then only the next one. */
    Run mixed(torch.max_scale(0x1p20));
    mixed.step(1).state.factor = factor_of(0x1p24, 0x1p-24, 9);
    CHECK(mixed.finding(GSC_NOTE_OUTSIDE_LIMITS).value == 0x1p24);
    std::swap(mixed.state.factor, mixed.state.next);
    CHECK(mixed.finding(GSC_NOTE_OUTSIDE_LIMITS).value == 0x1p24);

    Run clipped(lockable(zeros).guard_flags(GSC_GUARD_CLIP));
    for (int step = 0; step < 20; step++)
        clipped.step(step < 10 ? 1 : 9);
    CHECK(clipped.finding(GSC_NOTE_GUARD_CLIPS).value == 10);
    CHECK_WORDING(std::string(clipped.findings()[0].message) ==
                  "the guard clipped 10 of 20 steps; the last 10 norms were above the threshold, "
                  "5: raise guard_ratio, or set guard_max_in_a_row, after which the guard accepts "
                  "the new level");
    clipped.step(1, 0, 1); // an overflow is judged by no guard
    CHECK(clipped.findings().empty());

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

TEST_CASE("a warm guard is not idle, and a cold one is while too few steps are left", "[diagnose]")
{
    Run run(preset_policy("guard")); // with a warm-up of 100 samples
    run.planned = 150;
    for (int step = 1; step <= 150; step++) {
        run.step(1);
        CHECK(run.findings().empty());
    }
    run.steps = 140; // of another run, which began with the samples of this one
    CHECK(run.findings().empty());
    run.set([](gsc_state &s) { s.guard_count = 90; });
    CHECK(run.finding(GSC_NOTE_GUARD_IDLE).value == 90); // 10 steps are left
    run.steps = 139;
    CHECK(run.findings().empty());
}

TEST_CASE("the scale at the end of a run is that of a real run", "[diagnose]")
{
    Random random = {7};
    int ends = 0, grows = 0, stays = 0;
    const auto below = [&](uint64_t n) { return random.next() % n; };
    for (int round = 0; round < 4000; round++) {
        const double low = std::ldexp(1, static_cast<int>(below(10)));
        Policy p = zeros.init_scale(low * (1 + random.unit()))
                       .growth_factor(below(4) ? 2 : 1 + random.unit() / 64)
                       .growth_interval(1 + below(60))
                       .growth_rule(static_cast<uint32_t>(below(4)))
                       .growth_extra_steps(static_cast<uint32_t>(below(3)))
                       .backoff_factor(0.5)
                       .arithmetic(static_cast<uint32_t>(below(4)))
                       .apply_delay(static_cast<uint32_t>(below(2)));
        if (below(2))
            p = p.max_scale(low * 2 * (1 + 63 * random.unit()))
                    .ceiling_rule(static_cast<uint32_t>(below(5)));
        if (below(4) == 0)
            p = p.guard_norm(100);
        Run run(p);
        if (below(2))
            run.set([&](gsc_state &s) {
                s.good_steps = static_cast<int64_t>(below(100));
                s.steps_since_change = s.good_steps + static_cast<int64_t>(below(9));
            });
        const uint64_t before = below(80), planned = before + 1 + below(300);
        for (uint64_t step = 0; step < before; step++)
            run.step(1);
        run.planned = planned;
        run.steps = before; // 0: total_updates, which is 0
        const gsc_state now = run.state;
        const std::vector<gsc_note> notes = run.findings();
        for (uint64_t step = before; step < planned; step++)
            run.step(1);
        const double end = run.state.factor.scale,
                     ceiling = p.gsc_policy::max_scale > 0 ? p.gsc_policy::max_scale : infinity,
                     enough = std::min(ceiling, 0x1p15);
        CAPTURE(round, now.next.scale, end, enough, before, planned);
        if (now.next.scale >= enough || now.factor.scale >= enough ||
            std::fabs(end / ceiling - 1) < 0x1p-20)
            continue; /* at a limit, which is rounded */
        if (run.state.total_growths == 0) {
            REQUIRE(notes.size() == 1);
            CHECK(notes[0].kind == GSC_NOTE_NEVER_GROWS);
            stays++;
        } else if (end >= enough) {
            CHECK(notes.empty());
            grows++;
        } else if (!notes.empty() && notes[0].kind == GSC_NOTE_NEVER_GROWS) {
            CHECK(std::string(notes[0].field) == "good_steps");
            CHECK(end == now.next.scale);
        } else {
            REQUIRE(notes.size() == 1);
            CHECK(notes[0].kind == GSC_NOTE_CEILING_UNREACHABLE);
            CHECK(notes[0].value == end);
            ends++;
        }
    }
    CHECK((ends > 500 && grows > 100 && stays > 100));

    /* The numbers of issues: a count on its way, a step beyond the interval, no restart. */
    struct {
        Policy policy;
        uint64_t steps, planned;
        double end;
    } const rows[] = {
        {preset_policy("torch").growth_interval(100).init_scale(4), 150, 210, 16},
        {preset_policy("jmp").growth_interval(10).init_scale(128), 15, 30, 1024},
        {preset_policy("flax").growth_interval(10).init_scale(64), 0, 20, 128},
        {preset_policy("torch").growth_interval(100).init_scale(4), 90, 101, 8},
        {preset_policy("torch").growth_interval(100000000).init_scale(2), 5, 1000000000, 2048},
    };
    for (const auto &row : rows) {
        Run run(row.policy);
        for (uint64_t step = 0; step < row.steps; step++)
            run.step(1);
        run.planned = row.planned;
        CHECK(run.finding(GSC_NOTE_CEILING_UNREACHABLE).value == row.end);
    }
    /* So many growths are not computed: their end is unknown. */
    Run many(preset_policy("torch").growth_interval(1).growth_factor(1 + 0x1p-20).init_scale(1));
    many.planned = 1000000000;
    CHECK(many.step(1).findings().empty());
}

TEST_CASE("a diagnosis without steps and without a report knows what the state tells", "[diagnose]")
{
    Run run(zeros);
    run.step(1, 0, 1).step(1, 0, 1);
    run.report = {};
    CHECK(run.findings().empty());
    run.step(1, 0, 1).report = {};
    CHECK(run.finding(GSC_NOTE_NOT_FINITE).entry == -1);
    /* A new state, of a checkpoint, and the report on its first gradients. */
    Run loaded(preset_policy("torch"));
    loaded.report = loaded.measure(1);
    loaded.report.underflows_to_zero = 50;
    loaded.report.loss = GSC_LOSS_NOT_FINITE;
    const std::vector<gsc_note> notes = loaded.findings();
    REQUIRE(notes.size() == 2);
    CHECK((notes[0].kind == GSC_NOTE_BAD_LOSSES && notes[1].kind == GSC_NOTE_UNDERFLOWS));
}

TEST_CASE("two numbers that differ differ in a sentence", "[diagnose]")
{
    const double just_above = 4 + 0x1p-30;
    Run outside(preset_policy("torch").max_scale(4).init_scale(4));
    outside.set([&](gsc_state &s) { s.factor.scale = std::nextafter(4.0f, 5.0f); });
    const std::string limit = outside.finding(GSC_NOTE_OUTSIDE_LIMITS).message;
    CHECK_WORDING(limit.find("the scale, 4.0000005, is above max_scale, 4: ") != std::string::npos);

    const auto reason_of = [](const Policy &p, double norm) {
        gsc_reason reason;
        REQUIRE(gsc_state_reason(&Run(p).step(norm).state, nullptr, nullptr, nullptr, nullptr,
                                 nullptr, 0, &reason, nullptr) == GSC_OK);
        return std::string(reason.message);
    };
    CHECK_WORDING(reason_of(zeros.guard_norm(4), just_above) ==
                  "skipped: the norm, 4.000000001, is above 4");
    CHECK_WORDING(reason_of(zeros.guard_norm(4).guard_flags(GSC_GUARD_INCLUSIVE), 4) ==
                  "skipped: the norm, 4, is not below 4");
}

TEST_CASE("merged counts end at the largest number", "[diagnose]")
{
    gsc_report large = Run(zeros).measure(1, 1, 1);
    large.elements = large.nan_count = large.clamped = INT64_MAX;
    large.inf_count = large.underflows_to_zero = large.underflows_to_subnormal = INT64_MAX - 1;
    for (const uint32_t kind : {GSC_MERGE_SHARDS, GSC_MERGE_ADDENDS}) {
        const gsc_report sum = merged({large, large, merged({large, large}, kind)}, kind);
        for (const int64_t count : {sum.elements, sum.nan_count, sum.inf_count, sum.clamped,
                                    sum.underflows_to_zero, sum.underflows_to_subnormal})
            CHECK(count == INT64_MAX);
        Run run(zeros);
        for (int step = 0; step < 3; step++)
            run.update(sum);
        CHECK(run.findings().at(0).value == 0x1p64);
    }
}
