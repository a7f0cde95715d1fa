// SPDX-License-Identifier: MIT
// Ranks: a digest tells states that will go different ways from those that will not, a merge of
// merges is the merge of all, and where something is wrong it says on which rank.
#include <map>

#include "support.hpp"

namespace {

// A new field decides later steps: then it belongs into gsc_digest and into the first case below.
static_assert(GSC_POLICY_SIZE == 176 && sizeof gsc_state().reserved == 120);

gsc_state stepped(const gsc_policy &p, const gsc_state &from, uint64_t draw)
{
    return updated(p, from, report_of(draw % 5 ? '.' : 'x', static_cast<double>(1 + draw % 3)));
}

gsc_report with_rank(const gsc_report &report, uint32_t rank, const gsc_policy *p = nullptr,
                     const gsc_state *s = nullptr)
{
    gsc_report out;
    REQUIRE(gsc_report_set_rank(nullptr, &report, p, s, rank, &out, nullptr) == GSC_OK);
    return out;
}

uint64_t digest(const gsc_policy *p, const gsc_state *s)
{
    uint64_t digest = 0; // of nothing there is none
    CHECK((gsc_state_digest(p, s, &digest, nullptr) == GSC_OK) == (p || s));
    CHECK(with_rank(measured, 0, p, s).digest == digest);
    return digest;
}

} // namespace

TEST_CASE("each field that decides later steps is in the digest, and no other", "[state]")
{
    const uint32_t enforce = GSC_LIMIT_ENFORCE;
    const Policy base = preset_policy("recommended").ceiling_rule(enforce).floor_rule(enforce),
                 guard = base.guard_sigmas(3).guard_max_in_a_row(7);
    const gsc_state s = stepped(base, started(base), 1);
    const Policy divides = base.backoff_factor(0);
    std::vector<uint64_t> seen = {0, digest(&base, nullptr), digest(nullptr, &s), digest(&base, &s),
                                  digest(&divides, &s)};
    /* Another value of each field; of init_scale, which decides nothing, the digest is the guard's.
     */
#define SEE_ANOTHER(field)                                                                         \
    for (double value : {3.0, 2.0, 1.0, 0.25})                                                     \
        if (const Policy p = guard.field(static_cast<decltype(gsc_policy::field)>(value));         \
            !same(p, guard) && gsc_policy_check(&p, nullptr) == GSC_OK) {                          \
            seen.push_back(digest(&p, &s));                                                        \
            break;                                                                                 \
        }
    FOR_POLICY(SEE_ANOTHER)
#undef SEE_ANOTHER
    CHECK(seen.size() == 33);
    const auto differs = [&](const Policy &p, gsc_state changed, auto member, auto value) {
        changed.*member = value;
        seen.push_back(digest(&p, &changed));
    };
    gsc_factor two, upwards = s.factor;
    REQUIRE(gsc_factor_init(2, &two, nullptr) == GSC_OK);
    upwards.inverse = std::nextafter(upwards.inverse, 1); // of another rounding mode
    for (gsc_factor gsc_state::*factor : {&gsc_state::factor, &gsc_state::next}) {
        differs(base, s, factor, two);
        differs(base, s, factor, upwards);
    }
    for (int64_t gsc_state::*field :
         {&gsc_state::good_steps, &gsc_state::steps_since_change, &gsc_state::overflows_since_reset,
          &gsc_state::failed_backoffs, &gsc_state::bad_losses_in_a_row})
        differs(base, s, field, 7);
    gsc_state none = s, some = s; // which the next update reads all the same
    some.guard_count = 5;
    seen.push_back(digest(&guard, &some));
    for (const gsc_state &counted : {none, some}) {
        differs(guard, counted, &gsc_state::guard_mean, 1);
        differs(guard, counted, &gsc_state::guard_variance, 1);
    }
    differs(guard, some, &gsc_state::guard_count, 6);
    differs(guard, some, &gsc_state::guard_in_a_row, 1);
    std::sort(seen.begin(), seen.end());
    CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());

    for (const Policy &p : {base.init_scale(4), base.hysteresis(1), // what 0 means
                            base.guard_decay(0.5).guard_warmup(3)}) // of a guard that is off
        CHECK(digest(&p, &s) == digest(&base, &s));
    gsc_state other = s;
    for (int64_t gsc_state::*count :
         {&gsc_state::total_updates, &gsc_state::total_overflows, &gsc_state::total_bad_losses,
          &gsc_state::total_growths, &gsc_state::total_backoffs, &gsc_state::total_guard_skips,
          &gsc_state::total_guard_clips, &gsc_state::nans_in_a_row, &gsc_state::empty_in_a_row,
          &gsc_state::updates_at_growth, &gsc_state::overflows_at_growth})
        other.*count = 9;
    other.events = GSC_EVENT_STOPPED;
    other.skip_f32 = 1;
    other.factor.generation = other.next.generation = 99; // of a run that was resumed
    other.guard_multiplier = 0.5;
    other.guard_threshold = other.guard_value = 2;
    CHECK(digest(&base, &other) == digest(&base, &s));
    CHECK(digest(nullptr, nullptr) == 0);
}

TEST_CASE("the digest has the same bits on every platform", "[state]")
{
    const gsc_policy p = preset_policy("nemo");
    const gsc_state s = stepped(p, started(p), 5);
    CHECK(digest(&p, &s) == 0xcbc4a96b0a6224ffu);
}

TEST_CASE("states of one digest go on alike", "[state]")
{
    Random random = {3};
    int met = 0;
    for (const std::string &name : preset_names()) {
        gsc_policy p = preset_policy(name);
        p.growth_interval = std::min<uint64_t>(p.growth_interval, 2);
        std::map<uint64_t, gsc_state> known;
        gsc_state s = started(p);
        for (int step = 0; step < 400 && s.factor.scale < 0x1p100 && s.factor.scale > 0x1p-100;
             step++, s = stepped(p, s, random.next())) {
            const auto [old, is_new] = known.insert({digest(&p, &s), s});
            if (is_new)
                continue;
            met++;
            gsc_state one = old->second, other = s;
            for (int k = 0; k < 20; k++) {
                const uint64_t draw = random.next();
                one = stepped(p, one, draw), other = stepped(p, other, draw);
                REQUIRE(one.factor.scale == other.factor.scale);
                REQUIRE(one.events == other.events);
            }
        }
    }
    CHECK(met > 500);
}

TEST_CASE("set_rank replaces the rank and the digest", "[state]")
{
    Random random = {4};
    const gsc_policy p = preset_policy("torch");
    const gsc_state s = started(p);
    for (uint32_t rank : {0u, 1u, 65535u, UINT32_MAX - 1})
        for (int i = 0; i < 20; i++) {
            gsc_report expected = random_report(random, 8), place = expected;
            expected.digest = digest(&p, &s);
            expected.status_rank_plus_1 = expected.first_rank_plus_1 = expected.last_rank_plus_1 =
                expected.loss_rank_plus_1 = rank + 1;
            CHECK(same(with_rank(place, rank, &p, &s), expected));
            REQUIRE(gsc_report_set_rank(nullptr, &place, &p, &s, rank, &place, nullptr) == GSC_OK);
            CHECK(same(place, expected));
        }
}

TEST_CASE("a merge names the rank of the error, of the first overflow and of the last", "[state]")
{
    const gsc_report good = measured;
    gsc_report verdict = measured, nan = measured, failed = {};
    verdict.overflow = nan.overflow = failed.overflow = 1;
    nan.nan_count = 3;
    nan.first_tensor = 5;
    failed.status = GSC_ERROR_MEMORY;
    const auto ranks = [](std::vector<gsc_report> reports) {
        for (uint32_t i = 0; i < reports.size(); i++)
            reports[i] = with_rank(reports[i], i);
        const gsc_report r = merged(reports);
        return std::vector<uint32_t>{r.status_rank_plus_1, r.first_rank_plus_1, r.last_rank_plus_1};
    };
    using Ranks = std::vector<uint32_t>;
    CHECK(ranks({good, good}) == Ranks{0, 0, 0});
    CHECK(ranks({good, verdict, verdict}) == Ranks{0, 2, 3});
    CHECK(ranks({good, verdict, nan, nan}) == Ranks{0, 3, 4}); // the tensors of these
    CHECK(ranks({good, failed, nan, failed}) == Ranks{2, 3, 3});
    CHECK(ranks({nan, failed}) == Ranks{2, 1, 1});
}

TEST_CASE("a report without a digest agrees with all, and a merge keeps the digest", "[state]")
{
    gsc_report failed = {}, ranked = measured;
    failed.status = GSC_ERROR_MEMORY;
    failed.overflow = 1;
    ranked.digest = 42;
    for (const gsc_report &other : {measured, failed}) {
        const gsc_report r = merged({other, ranked, other});
        CHECK(r.digest == 42);
        CHECK(r.status == other.status);
    }
}

TEST_CASE("merges of merges are the merge of all, but for the order of the sum", "[state]")
{
    Random random = {5};
    for (int round = 0; round < 1000; round++) {
        std::vector<Reports> nodes(random.next() % 6);
        Reports reports;
        for (Reports &node : nodes)
            for (uint64_t n = random.next() % 6; n > 0; n--) { // also a node without ranks
                node.push_back(random_report(random, static_cast<uint32_t>(reports.size()) + 1));
                reports.push_back(node.back());
            }
        for (uint32_t kind : {GSC_MERGE_SHARDS, GSC_MERGE_ADDENDS}) {
            Reports groups;
            for (const Reports &node : nodes)
                groups.push_back(merged(node, kind));
            const gsc_report flat = merged(reports, kind);
            gsc_report nested = merged(groups, kind);
            if (reports.empty() || kind == GSC_MERGE_SHARDS) {
                CHECK(std::fabs(nested.sum_squares - flat.sum_squares) <= 1e-12 * flat.sum_squares);
                nested.sum_squares = flat.sum_squares;
            }
            if (reports.empty())
                nested.measured = flat.measured; // a list of no groups, or of empty ones
            CHECK(same(nested, flat));
        }
    }
}
