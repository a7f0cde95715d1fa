/* SPDX-License-Identifier: MIT */
/* Diagnoses a run: each find_... is one rule, and its note says what to do. */
#include <stdio.h>

#include "internal.h"
#include "step.h"

#define MAX_ZERO_SHARE        0.01  /* above this share, too many became zero by unscaling */
#define MAX_OVERFLOW_SHARE    0.05  /* above this share of the steps, overflows are frequent, ... */
#define MIN_OVERFLOWS         10    /* ... if there are at least this many */
#define MAX_BAD_LOSS_SHARE    0.001 /* above this share of the steps, bad losses are no accident */
#define MIN_IN_A_ROW          3     /* fewer overflows in a row can be an accident, or a growth's */
#define MAX_OUTLIERS_IN_A_ROW 10    /* from this many on, the guard can be too strict */
#define MIN_UPDATES           10    /* before, parameters of 0 can be why gradients are 0 */
#define HIGHEST_START         0x1p16              /* frameworks start here, or at ... */
#define USUAL_SCALE           0x1p15              /* ... this scale, which needs no growth */
#define LOWEST_SCALE          0x1p-14             /* float16 needs no smaller scale */
#define MAX_GROWTHS           100000              /* that are computed; takes about a millisecond */
#define MAX_INTERVAL          (UINT64_C(1) << 62) /* a longer one never ends */

struct run {
    const gsc_policy *policy;
    const gsc_state *state;
    const gsc_report *report, *per_tensor;
    uint64_t n, steps, planned_steps;
    int64_t updates; /* that the totals of the state count */
};

bool gsc_has_zero_share(const gsc_report *report)
{
    return (report->measured & GSC_WANT_UNDERFLOW) && report->elements > 0;
}

double gsc_zero_share(const gsc_report *report)
{
    return (double)report->underflows_to_zero / (double)report->elements;
}

bool gsc_is_zero(const gsc_report *r)
{
    return (r->kind == GSC_REPORT_TENSORS || r->kind == GSC_REPORT_MERGED) && r->elements > 0 &&
           !r->has_flag && !gsc_says_overflow(r) &&
           ((r->measured & GSC_WANT_AMAX && r->amax == 0) ||
            (r->measured & GSC_WANT_NORM && r->sum_squares == 0));
}

static double share(int64_t count, int64_t of)
{
    return of > 0 ? fmin(1, (double)count / (double)of) : 0;
}

static const char *plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

/* Returns how many overflows in a row are no chance. A growth alone can cause one less. */
static int64_t min_in_a_row(const gsc_policy *p)
{
    const int64_t of_growth = (int64_t)gsc_hysteresis(p) + p->apply_delay;
    return of_growth < MIN_IN_A_ROW ? MIN_IN_A_ROW : of_growth + 1;
}

/* Adds a note if a call failed. Returns true then: no overflow was measured. */
static bool find_failure(const struct run *run, gsc_notes *notes)
{
    const gsc_report *report = run->report;
    const bool report_failed = report && report->status != GSC_OK;
    const gsc_status status = report_failed ? report->status : run->state->status;
    char on_rank[32] = "";
    if (status == GSC_OK)
        return false;
    if (report_failed && report->status_rank_plus_1 > 0)
        (void)snprintf(on_rank, sizeof on_rank, " on rank %u", report->status_rank_plus_1 - 1);
    if (status == GSC_ERROR_MISMATCH)
        gsc_note_add(notes, GSC_NOTE_FAILURE, -1, "status", status,
                     "the ranks differ%s%s: load the same checkpoint and use the same policy "
                     "on all ranks",
                     *on_rank ? ", first" : "", on_rank);
    else
        gsc_note_add(notes, GSC_NOTE_FAILURE, -1, "status", status, "%s failed%s: %s",
                     report_failed ? "the call that made the report" : "the last update", on_rank,
                     gsc_status_string(status));
    return true;
}

/* ---- losses and gradients that are not finite ---- */

static int64_t count_last_bad_losses(const struct run *run)
{
    const bool is_last_bad = run->report && run->report->loss == GSC_LOSS_NOT_FINITE;
    const int64_t counted = run->state->bad_losses_in_a_row;
    return is_last_bad && counted == 0 ? 1 : counted;
}

static void find_bad_losses(const struct run *run, gsc_notes *notes)
{
    const int64_t in_a_row = count_last_bad_losses(run), counted = run->state->total_bad_losses;
    const double of_all = share(counted > in_a_row ? counted : in_a_row, run->updates);
    char which[240] = "the last loss was";
    if (in_a_row == 0 && of_all <= MAX_BAD_LOSS_SHARE)
        return;
    if (in_a_row > 1)
        (void)snprintf(which, sizeof which, "the last %lld losses were", (long long)in_a_row);
    else if (in_a_row == 0)
        (void)snprintf(which, sizeof which, "%s %% of the losses were",
                       gsc_digits(3, 100 * of_all).text);
    gsc_note_add(notes, GSC_NOTE_BAD_LOSSES, -1, "total_bad_losses", of_all,
                 "%s not finite before scaling: look at the data or the model; see "
                 "docs/skipped.md#loss",
                 which);
}

/* Returns the last tensor that is not finite, the nearest to the cause, or -1 if unknown. */
static int64_t last_bad_tensor(const struct run *run)
{
    for (uint64_t i = run->n; i-- > 0;)
        if (gsc_has_bad(&run->per_tensor[i]))
            return (int64_t)i;
    return run->n == 0 && run->report && run->report->kind != GSC_REPORT_NUMBER &&
                   gsc_has_bad(run->report)
               ? run->report->last_tensor
               : -1;
}

/* Returns true if an overflow can lower the scale. */
static bool can_fall(const gsc_policy *p, const gsc_state *state)
{
    gsc_state s = *state;
    const double scale = s.next.scale, lower = gsc_back_off(p, &s, scale);
    return gsc_rounded(p, gsc_above_floor(p, gsc_below_ceiling(p, lower))) < scale;
}

/* Counts the overflows since the last growth, or the first good step; returns their share. */
static double recent_overflows(const struct run *run, int64_t *count)
{
    const gsc_state *s = run->state;
    const int64_t since = s->updates_at_growth - (s->updates_at_growth > 0);
    *count = s->total_overflows - s->overflows_at_growth;
    return share(*count, run->updates - since);
}

/* Returns true if no good step has been made since the start. */
static bool is_still_falling(const struct run *run)
{
    const gsc_state *s = run->state;
    return s->updates_at_growth == 0 && s->total_backoffs > 0 &&
           s->total_overflows >= min_in_a_row(run->policy) &&
           share(s->total_overflows, run->updates) > 0.5 && can_fall(run->policy, s);
}

/* Returns true if the scale is still too large for float16: then Inf - Inf makes NaN alone. */
static bool falls_from_high_start(const struct run *run)
{
    return is_still_falling(run) && run->state->next.scale > HIGHEST_START;
}

static void find_unusable_scale(const struct run *run, gsc_notes *notes)
{
    const double scale = run->state->factor.scale;
    if (!gsc_usable(scale))
        gsc_note_add(notes, GSC_NOTE_UNUSABLE, -1, "factor", scale,
                     "the scale is %s, and calls refuse it: set the scale, and %s",
                     GSC_SHORT(scale),
                     scale == 0 ? "min_scale to 2^-14: float16 needs no smaller scale"
                                : "max_scale to 2^24");
}

/* Finds NaN that Inf - Inf cannot have made: too large a scale makes Inf. */
static void find_nans(const struct run *run, gsc_notes *notes)
{
    const gsc_state *s = run->state;
    const gsc_report *report = run->report;
    const bool is_known = report && report->nan_count > 0;
    if (s->nans_in_a_row < min_in_a_row(run->policy) || falls_from_high_start(run) ||
        (is_known ? report->inf_count > 0 : is_still_falling(run)))
        return;
    gsc_note_add(notes, GSC_NOTE_NOT_FINITE, last_bad_tensor(run), "nans_in_a_row",
                 is_known ? (double)report->nan_count : 0,
                 "NaN%s in the gradients of the last %lld steps: no scale makes a NaN; look at "
                 "the input, the loss and the parameters; see docs/skipped.md",
                 is_known ? ", not Inf," : "", (long long)s->nans_in_a_row);
}

/* Finds Inf and NaN that no backoff ends, at a scale that cannot fall or is low enough for all. */
static void find_failed_backoffs(const struct run *run, gsc_notes *notes)
{
    const gsc_state *s = run->state;
    const gsc_report *report = run->report;
    const double scale = s->factor.scale;
    const bool moves = gsc_moves(run->policy), regrows = can_fall(run->policy, s);
    const int64_t nans = report ? report->nan_count : 0, infs = report ? report->inf_count : 0;
    const bool is_stopped = s->events & GSC_EVENT_STOPPED && s->failed_backoffs > 0;
    const bool has_failed = is_stopped || s->failed_backoffs >= MIN_IN_A_ROW;
    int64_t recent;
    const double recent_share = recent_overflows(run, &recent);
    const bool comes_and_goes = recent_share > MAX_OVERFLOW_SHARE && recent_share <= 0.5;
    const bool has_fallen = moves && gsc_cause_of(s) == GSC_CAUSE_OVERFLOW && !comes_and_goes &&
                            scale <= LOWEST_SCALE / (1 << MIN_IN_A_ROW);
    if (has_fallen || (has_failed && scale <= (moves ? LOWEST_SCALE : 1)))
        gsc_note_add(
            notes, GSC_NOTE_NOT_FINITE, last_bad_tensor(run), "failed_backoffs",
            (double)nans + (double)infs,
            "the gradients have %s at a scale of %s, and no scale cures that: look at the "
            "input, the loss and the parameters, and go back to an earlier checkpoint; see "
            "docs/skipped.md",
            nans > 0 && infs > 0 ? "NaN and Inf"
            : nans > 0           ? "NaN"
            : infs > 0           ? "Inf"
                                 : "Inf or NaN",
            GSC_SHORT(scale));
    else if (has_failed)
        gsc_note_add(notes, GSC_NOTE_BACKOFF_FAILED, last_bad_tensor(run),
                     !moves    ? "init_scale"
                     : regrows ? "growth_interval"
                               : "min_scale",
                     scale,
                     "%lld overflow%s in a row could not lower the scale, %s: %s, or look at the "
                     "input and the loss",
                     (long long)s->failed_backoffs, plural(s->failed_backoffs), GSC_SHORT(scale),
                     !moves    ? "the policy never changes it, so lower init_scale"
                     : regrows ? "a growth undid the backoff, so raise growth_interval"
                               : "lower min_scale");
}

static void find_not_finite(const struct run *run, gsc_notes *notes)
{
    const uint64_t before = notes->n;
    /* NaN and Inf are consequences of a bad loss, and an infinite scale makes them. */
    const bool can_be_cause = count_last_bad_losses(run) == 0 && isfinite(run->state->factor.scale);
    if (can_be_cause)
        find_nans(run, notes);
    if (can_be_cause && notes->n == before)
        find_failed_backoffs(run, notes);
    find_unusable_scale(run, notes);
}

/* ---- overflows that a lower scale ends ---- */

static void find_high_start(const struct run *run, gsc_notes *notes)
{
    const double first = gsc_first_scale(run->policy), scale = run->state->next.scale;
    if (is_still_falling(run) && first > HIGHEST_START)
        gsc_note_add(notes, GSC_NOTE_START_TOO_HIGH, -1, "init_scale", first,
                     "the scale is still falling from init_scale: start at %s, not at %s; the "
                     "first %lld steps overflowed",
                     scale < HIGHEST_START ? GSC_SHORT(scale) : "2^16", GSC_SHORT(first),
                     (long long)run->state->total_overflows);
}

/* Returns how many of the overflows growths can have caused. */
static int64_t overflows_of_growths(const gsc_policy *p, const gsc_state *s)
{
    const double growth = gsc_growth_factor(p);
    if (growth <= 1)
        return 0;
    const double growths_per_backoff = fmax(1, ceil(-log(gsc_backoff_factor(p)) / log(growth)));
    const double caused = (double)s->total_growths / growths_per_backoff * gsc_hysteresis(p);
    return caused < (double)s->total_overflows ? (int64_t)caused : s->total_overflows;
}

static void find_frequent_overflows(const struct run *run, gsc_notes *notes)
{
    const gsc_policy *p = run->policy;
    const gsc_state *s = run->state;
    const int64_t of_growths = overflows_of_growths(p, s);
    const bool has_good_step = s->updates_at_growth > 0 || s->total_overflows < run->updates;
    int64_t recent;
    const double recent_share = recent_overflows(run, &recent);
    if (of_growths >= MIN_OVERFLOWS && share(of_growths, run->updates) > MAX_OVERFLOW_SHARE)
        gsc_note_add(notes, GSC_NOTE_OVERFLOWS_OFTEN, -1, "growth_interval",
                     share(s->total_overflows, run->updates),
                     "%s %% of the steps overflowed, because growth_interval is %llu: raise it, "
                     "for example to 2000",
                     gsc_digits(3, 100 * share(s->total_overflows, run->updates)).text,
                     (unsigned long long)p->growth_interval);
    else if (recent >= MIN_OVERFLOWS + (int64_t)gsc_hysteresis(p) - 1 &&
             recent_share > MAX_OVERFLOW_SHARE && has_good_step)
        gsc_note_add(notes, GSC_NOTE_OVERFLOWS_OFTEN, -1, "total_overflows", recent_share,
                     "%s %% of the steps%s overflowed: find which gradients are not finite, and %s",
                     gsc_digits(3, 100 * recent_share).text,
                     s->total_growths > 0 ? " since the last growth" : "",
                     gsc_moves(p)          ? "lower the learning rate"
                     : s->factor.scale > 1 ? "lower init_scale"
                                           : "look at the input and the loss");
}

/* ---- gradients that are missing or 0 ---- */

static void find_no_gradients(const struct run *run, gsc_notes *notes)
{
    const int64_t in_a_row = run->state->empty_in_a_row;
    char which[64] = "step";
    if (in_a_row == 0)
        return;
    if (in_a_row > 1)
        (void)snprintf(which, sizeof which, "%lld steps", (long long)in_a_row);
    gsc_note_add(notes, GSC_NOTE_NO_GRADIENTS, -1, "empty_in_a_row", (double)in_a_row,
                 "the last %s had no gradients: run the backward pass before the update, and give "
                 "the scaler the parameters that the loss depends on",
                 which);
}

static void find_zeros(const struct run *run, gsc_notes *notes)
{
    int64_t first = -1, zeros = 0;
    if (run->updates < MIN_UPDATES)
        return;
    if (run->report && gsc_is_zero(run->report)) {
        gsc_note_add(notes, GSC_NOTE_ZEROS, -1, "", (double)run->n,
                     "all gradients of the last step are 0, so it changed nothing: look at the "
                     "loss, and at the path from it to the parameters");
        return;
    }
    for (uint64_t i = 0; i < run->n; i++)
        if (gsc_is_zero(&run->per_tensor[i])) {
            first = first < 0 ? (int64_t)i : first;
            zeros++;
        }
    if (zeros > 0)
        gsc_note_add(notes, GSC_NOTE_ZEROS, first, "", (double)zeros,
                     "%lld of %llu tensors had only gradients of 0 in the last step; if that stays "
                     "so, the layer is dead: look at its input and its activation",
                     (long long)zeros, (unsigned long long)run->n);
}

static void find_underflows(const struct run *run, gsc_notes *notes)
{
    int64_t worst = -1;
    if (!run->report || !gsc_has_zero_share(run->report) ||
        gsc_zero_share(run->report) <= MAX_ZERO_SHARE)
        return;
    for (uint64_t i = 0; i < run->n; i++)
        if (gsc_has_zero_share(&run->per_tensor[i]) &&
            (worst < 0 ||
             gsc_zero_share(&run->per_tensor[i]) > gsc_zero_share(&run->per_tensor[worst])))
            worst = (int64_t)i;
    gsc_note_add(notes, GSC_NOTE_UNDERFLOWS, worst, "", gsc_zero_share(run->report),
                 "%s %% of the gradients became zero by unscaling: unscale into a wider dtype; if "
                 "theirs is the widest, they are too small to train anything: look at the loss "
                 "and the initial parameters",
                 gsc_digits(3, 100 * gsc_zero_share(run->report)).text);
}

/* ---- the guard ---- */

/* Returns the field that makes the threshold: the least of those that are set. */
static const char *threshold_field(const gsc_policy *p, const gsc_state *s)
{
    const double norm = gsc_guard_threshold(&(gsc_policy){.guard_norm = p->guard_norm}, s);
    const double ratio = gsc_guard_threshold(&(gsc_policy){.guard_ratio = p->guard_ratio}, s);
    const gsc_policy sigmas = {.guard_sigmas = p->guard_sigmas,
                               .guard_init_mean = p->guard_init_mean};
    const double least = fmin(fmin(norm, ratio), gsc_guard_threshold(&sigmas, s));
    return norm == least ? "guard_norm" : ratio == least ? "guard_ratio" : "guard_sigmas";
}

static void find_guard_outliers(const struct run *run, gsc_notes *notes)
{
    const gsc_policy *p = run->policy;
    const gsc_state *s = run->state;
    const bool clips = s->total_guard_clips > s->total_guard_skips;
    const int64_t count = clips ? s->total_guard_clips : s->total_guard_skips;
    const bool is_outlier =
        s->events & GSC_EVENT_OUTLIER && s->events & (GSC_EVENT_SKIPPED | GSC_EVENT_CLIPPED);
    const int64_t most_in_a_row = s->events & GSC_EVENT_STOPPED ? 1 : MAX_OUTLIERS_IN_A_ROW;
    const bool is_locked = is_outlier && s->guard_in_a_row >= most_in_a_row;
    /* A guard that clips takes the step: only a threshold that stays below all norms is a fault. */
    const bool skips_most =
        !clips && count >= MAX_OUTLIERS_IN_A_ROW && share(count, run->updates) > 0.5;
    const bool clips_as_usual = clips && p->guard_ratio == 0 && p->guard_sigmas == 0;
    if (!gsc_guards(p) || clips_as_usual || !(is_locked || skips_most))
        return;
    const double threshold =
        s->guard_threshold != 0 ? s->guard_threshold : gsc_guard_threshold(p, s);
    const char *field = threshold_field(p, s);
    char in_a_row[64] = "", accept[128] = "";
    if (s->guard_in_a_row > 1)
        (void)snprintf(in_a_row, sizeof in_a_row, "the last %lld norms",
                       (long long)s->guard_in_a_row);
    else
        (void)snprintf(in_a_row, sizeof in_a_row, "the norms");
    if (p->guard_max_in_a_row == 0)
        (void)snprintf(accept, sizeof accept,
                       ", or set guard_max_in_a_row, after which the guard accepts the new level");
    else if (p->guard_flags & GSC_GUARD_STOP)
        (void)snprintf(accept, sizeof accept, ", or look at the data and the learning rate");
    else
        (void)snprintf(accept, sizeof accept, ", or lower guard_max_in_a_row, %llu",
                       (unsigned long long)p->guard_max_in_a_row);
    gsc_note_add(notes, clips ? GSC_NOTE_GUARD_CLIPS : GSC_NOTE_GUARD_SKIPS, -1,
                 clips ? "total_guard_clips" : "total_guard_skips", (double)count,
                 "the guard %s %lld of %lld steps; %s were above the threshold, %s: raise %s%s",
                 clips ? "clipped" : "skipped", (long long)count, (long long)run->updates, in_a_row,
                 GSC_SHORT(threshold), field, accept);
}

/* Returns the steps that are still planned. */
static uint64_t steps_left(const struct run *run)
{
    return run->planned_steps > run->steps ? run->planned_steps - run->steps : 0;
}

static void find_idle_guard(const struct run *run, gsc_notes *notes)
{
    const gsc_policy *p = run->policy;
    const uint64_t samples = (uint64_t)run->state->guard_count;
    if (gsc_guards(p) && run->planned_steps > 0 && samples < p->guard_warmup &&
        p->guard_warmup - samples >= steps_left(run))
        gsc_note_add(notes, GSC_NOTE_GUARD_IDLE, -1, "guard_warmup", (double)samples,
                     "the guard judges only after %llu samples and has %llu, and %llu steps are "
                     "left: lower guard_warmup",
                     (unsigned long long)p->guard_warmup, (unsigned long long)samples,
                     (unsigned long long)steps_left(run));
}

/* ---- the scale at the end of the run ---- */

/* Returns after how many good steps the next growth is due; 0: after none. */
static uint64_t steps_to_growth(const gsc_policy *p, const gsc_state *s)
{
    const uint64_t interval = p->growth_interval;
    const int64_t all =
        p->growth_rule == GSC_GROWTH_ALL_STEPS ? s->steps_since_change : s->good_steps;
    const int64_t count = all - (int64_t)p->growth_extra_steps;
    if (interval == 0 || interval >= MAX_INTERVAL)
        return 0;
    if (count < 0)
        return interval + (uint64_t)-count;
    const uint64_t n = (uint64_t)count;
    if (p->growth_rule == GSC_GROWTH_EVERY)
        return interval - n % interval;
    if (n < interval)
        return interval - n;
    return p->growth_rule == GSC_GROWTH_EXACT ? 0 : 1;
}

struct future {
    double scale;
    bool grows, is_known;
};

/* Returns the scale after so many good steps: the policy makes those that can change it. */
static struct future future_of(const gsc_policy *policy, const gsc_state *state, uint64_t steps)
{
    gsc_policy p = *policy;
    gsc_state s = *state;
    double before = s.factor.scale;
    int growths = -1;                                  /* the first step is for enforced limits */
    p.guard_norm = p.guard_ratio = p.guard_sigmas = 0; /* the norms pass */
    while (steps > 0 && growths < MAX_GROWTHS) {
        const uint64_t due = growths < 0 ? 1 : steps_to_growth(&p, &s);
        if (due == 0 || due > steps)
            break;
        s.good_steps += (int64_t)(due - 1);
        s.steps_since_change += (int64_t)(due - 1);
        before = s.next.scale;
        s.next.scale = gsc_policy_step(&p, &s, 0, GSC_LOSS_FINITE, 0);
        steps -= due;
        if (growths++ >= 0 && s.next.scale == before)
            break; /* at the ceiling, or the growth rounds to nothing */
    }
    return (struct future){p.apply_delay && steps == 0 ? before : s.next.scale,
                           s.total_growths > state->total_growths, growths < MAX_GROWTHS};
}

static void find_slow_growth(const struct run *run, gsc_notes *notes)
{
    const gsc_policy *p = run->policy;
    const gsc_state *s = run->state;
    const double max_scale = gsc_max_scale(p), enough = fmin(max_scale, USUAL_SCALE);
    /* A scale that overflows have lowered is as large as it can be. */
    const bool is_low =
        s->next.scale < enough && (s->total_overflows == 0 || gsc_first_scale(p) < enough);
    if (run->planned_steps == 0 || p->growth_interval == 0 || gsc_growth_factor(p) <= 1 || !is_low)
        return;
    const uint64_t left = steps_left(run);
    const struct future future = future_of(p, s, left);
    if (!future.grows && left > 0 && steps_to_growth(p, s) == 0 &&
        p->growth_interval < MAX_INTERVAL)
        gsc_note_add(notes, GSC_NOTE_NEVER_GROWS, -1, "good_steps", (double)run->planned_steps,
                     "the scale, %s, never grows without an overflow: good_steps, %lld, is past "
                     "growth_interval, %llu, and growth_rule is EXACT; set good_steps to 0",
                     GSC_SHORT(s->next.scale), (long long)s->good_steps,
                     (unsigned long long)p->growth_interval);
    else if (!future.grows && s->total_growths == 0)
        gsc_note_add(notes, GSC_NOTE_NEVER_GROWS, -1, "growth_interval", (double)run->planned_steps,
                     "growth_interval is %llu steps, and %llu are planned: the scale, %s, never "
                     "grows; lower growth_interval, or raise init_scale",
                     (unsigned long long)p->growth_interval, (unsigned long long)run->planned_steps,
                     GSC_SHORT(s->next.scale));
    else if (s->total_overflows == 0 && future.is_known && future.scale < enough)
        gsc_note_add(notes, GSC_NOTE_CEILING_UNREACHABLE, -1, "growth_interval", future.scale,
                     "without an overflow the scale ends at %s, below %s, %s: raise init_scale, or "
                     "lower growth_interval",
                     GSC_APART(future.scale, enough),
                     max_scale <= USUAL_SCALE ? "max_scale" : "the usual start",
                     GSC_APART(enough, future.scale));
}

void gsc_note_outside_limits(gsc_notes *notes, const gsc_policy *p, const gsc_state *s)
{
    const double ceiling = gsc_max_scale(p), floor = gsc_min_scale(p);
    const bool is_inside = s->factor.scale <= ceiling && s->factor.scale >= floor;
    const double scale = is_inside ? s->next.scale : s->factor.scale;
    const bool is_above = scale > ceiling;
    const double limit = is_above ? ceiling : floor;
    if (!gsc_usable(scale) || (!is_above && scale >= floor))
        return;
    gsc_note_add(notes, GSC_NOTE_OUTSIDE_LIMITS, -1, is_above ? "max_scale" : "min_scale", scale,
                 "the scale, %s, is %s, %s: set a scale within the limits, or change the limit",
                 GSC_APART(scale, limit), is_above ? "above max_scale" : "below min_scale",
                 GSC_APART(limit, scale));
}

gsc_status gsc_state_diagnose(const gsc_policy *policy, const gsc_state *state,
                              const gsc_report *report, const gsc_report *per_tensor,
                              uint64_t per_tensor_count, uint64_t steps, uint64_t planned_steps,
                              gsc_note *notes, uint64_t notes_capacity, uint64_t *notes_count,
                              gsc_error *err)
{
    gsc_begin(err);
    gsc_policy full;
    gsc_notes list = {.at = notes, .capacity = notes_capacity};
    struct run run = {&full, state, report, per_tensor, .planned_steps = planned_steps};
    run.n = per_tensor ? per_tensor_count : 0;
    GSC_TRY(gsc_policy_read(policy, &full, 0, err));
    GSC_REQUIRE(state, 1);
    GSC_TRY(gsc_state_check(state, 1, "state", err));
    run.updates = state->total_updates;
    run.steps = steps ? steps : (uint64_t)state->total_updates;
    if (report)
        GSC_TRY(gsc_report_check(report, 2, -1, "report", err));
    for (uint64_t i = 0; i < run.n; i++)
        GSC_TRY(gsc_report_check(&per_tensor[i], 3, (int64_t)i, "per_tensor", err));
    GSC_TRY(gsc_notes_check(&list, 7, err));
    const bool has_failed = find_failure(&run, &list);
    if (!has_failed) {
        find_bad_losses(&run, &list);
        find_not_finite(&run, &list);
    }
    if (list.n == 0) /* else a note above names the cause */
        find_high_start(&run, &list);
    if (list.n == 0)
        find_frequent_overflows(&run, &list);
    find_no_gradients(&run, &list);
    gsc_note_outside_limits(&list, &full, state);
    find_guard_outliers(&run, &list);
    find_idle_guard(&run, &list);
    if (!has_failed) {
        find_zeros(&run, &list);
        find_underflows(&run, &list);
    }
    find_slow_growth(&run, &list);
    gsc_tell(notes_count, list.n);
    return GSC_OK;
}
