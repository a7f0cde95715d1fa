// SPDX-License-Identifier: MIT
// Ranks: a digest tells states that will go different ways from those that will not, a merge of
// merges is the merge of all, and where something is wrong it says on which rank.
#include <map>

#include "support.hpp"

namespace {

using Reports = std::vector<gsc_report>;

constexpr gsc_report unread = measured;

// A new field decides later steps: then it belongs into gsc_digest and into the first case below.
static_assert(GSC_POLICY_SIZE == 216 && sizeof gsc_state().reserved == 144);

gsc_policy preset(const char *name)
{
    gsc_policy p = GSC_POLICY_INIT;
    REQUIRE(gsc_policy_preset(name, &p, nullptr) == GSC_OK);
    return p;
}

gsc_state start(const gsc_policy &p)
{
    gsc_state state;
    REQUIRE(gsc_state_init(nullptr, &p, &state, nullptr) == GSC_OK);
    return state;
}

gsc_state stepped(const gsc_policy &p, const gsc_state &from, uint64_t draw)
{
    gsc_report report = measured;
    gsc_state state;
    report.overflow = draw % 5 == 0;
    report.amax = static_cast<double>(1 + draw % 3);
    REQUIRE(gsc_state_update(nullptr, &p, &from, &report, &state, nullptr) == GSC_OK);
    return state;
}

uint64_t digest(const gsc_policy *p, const gsc_state *s)
{
    gsc_report out;
    REQUIRE(gsc_report_set_rank(nullptr, &unread, p, s, 0, &out, nullptr) == GSC_OK);
    uint64_t alone = 0; // of nothing there is none
    CHECK((gsc_state_digest(p, s, &alone, nullptr) == GSC_OK) == (p || s));
    CHECK(alone == out.digest);
    return out.digest;
}

gsc_report stamped(const gsc_report &report, uint32_t rank, const gsc_policy *p = nullptr,
                   const gsc_state *s = nullptr)
{
    gsc_report out;
    REQUIRE(gsc_report_set_rank(nullptr, &report, p, s, rank, &out, nullptr) == GSC_OK);
    return out;
}

gsc_report merged(const gsc_report *reports, uint64_t n, uint32_t kind = GSC_MERGE_SHARDS)
{
    gsc_report out;
    REQUIRE(gsc_report_merge(nullptr, reports, n, kind, nullptr, &out, nullptr) == GSC_OK);
    return out;
}

/* What a rank may send: of an empty list, without a digest, a bare verdict, failed, measured. */
gsc_report random_report(Random &random, uint32_t rank)
{
    gsc_report r = measured;
    if (random.next() % 8 == 0)
        return r;
    r.amax = random.unit() * 100;
    r.sum_squares = random.unit() * 1000;
    r.measured = random.next() % 8 ? measured.measured : GSC_WANT_AMAX | GSC_WANT_UNDERFLOW;
    r.generation = random.next() % 5;
    r.elements = static_cast<int64_t>(random.next() % 1000);
    if (random.next() % 8 == 0) {
        r.nan_count = 1 + static_cast<int64_t>(random.next() % 9);
        r.first_tensor = static_cast<int64_t>(random.next() % 100);
        r.first_element = static_cast<int64_t>(random.next() % 100);
    }
    r.status = random.next() % 8 ? GSC_OK : GSC_ERROR_FACTOR - static_cast<int>(random.next() % 9);
    r.overflow = r.nan_count > 0 || r.status != GSC_OK || random.next() % 8 == 0;
    r.found_inf = static_cast<float>(r.overflow);
    if (random.next() % 8 == 0)
        return r;
    r = stamped(r, rank);
    r.digest = 42;
    return r;
}

Reports merged_in_groups(const Reports &reports, const std::vector<uint64_t> &sizes, uint32_t kind)
{
    Reports groups;
    uint64_t at = 0;
    for (uint64_t size : sizes) {
        groups.push_back(merged(&reports[at], size, kind));
        at += size;
    }
    REQUIRE(at == reports.size());
    return groups;
}

} // namespace

TEST_CASE("each field that decides later steps is in the digest, and no other", "[state]")
{
    gsc_policy base = preset("recommended");
    base.ceiling_rule = base.floor_rule = GSC_LIMIT_ENFORCE; // all that may go with target_amax
    gsc_policy p = base;
    gsc_state s = stepped(p, start(p), 1);
    const uint64_t same_digest = digest(&p, &s);
    std::vector<uint64_t> seen = {same_digest, digest(&p, nullptr), digest(nullptr, &s)};
    const auto differs = [&] {
        seen.push_back(digest(&p, &s));
        p = base;
        s = stepped(p, start(p), 1);
    };
    const auto agrees = [&] {
        CHECK(digest(&p, &s) == same_digest);
        p = base;
        s = stepped(p, start(p), 1);
    };
    p.growth_factor = 4, differs();
    p.backoff_factor = 0.25, differs();
    p.backoff_factor = 0, differs(); // divides, which rounds otherwise
    p.growth_interval = 3, differs();
    p.growth_rule = GSC_GROWTH_EXACT, differs();
    p.growth_extra_steps = 1, differs();
    p.max_scale = 0, differs();
    p.min_scale = 0, differs();
    p.ceiling_rule = GSC_LIMIT_CLAMP, differs();
    p.floor_rule = GSC_LIMIT_CLAMP, differs();
    p.overflow_test = GSC_TEST_NORM, differs();
    p.hysteresis = 2, differs();
    p.overflow_reset = 0, differs();
    p.apply_delay = 1, differs();
    p.overflow_tolerance = 0.5, differs();
    p.max_failed_backoffs = 0, differs();
    p.quirks = GSC_QUIRK_TOLERANCE_EXCLUSIVE, differs();
    p.arithmetic = GSC_ARITHMETIC_F64, differs();
    p.target_amax = 1, differs();
    p.log2_decay = 0.5, differs();
    p.log2_slow_decay = 0.5, differs();
    p.log2_margin_sigmas = 1, differs();
    p.overflow_sample_log2 = 1, differs();
    gsc_factor two;
    REQUIRE(gsc_factor_init(2, &two, nullptr) == GSC_OK);
    s.factor = two, differs();
    s.next = two, differs();
    s.factor.inverse = std::nextafter(s.factor.inverse, 1), differs(); // of another rounding mode
    s.next.inverse = std::nextafter(s.next.inverse, 1), differs();
    s.log2_mean = 1, differs();
    s.log2_slow_mean = 1, differs();
    s.log2_mean_square = 1, differs();
    s.log2_zero_weight = 0.5, differs();
    s.log2_slow_zero_weight = 0.5, differs();
    s.good_steps = 7, differs();
    s.steps_since_change = 7, differs();
    s.overflows_since_reset = 7, differs();
    s.failed_backoffs = 7, differs();
    std::sort(seen.begin(), seen.end());
    CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    CHECK(seen.front() != 0);

    p.init_scale = 4, agrees();
    p.hysteresis = 1, agrees(); // what 0 means
    s.log2_mean = -0.0, agrees();
    s.total_overflows = s.total_growths = s.total_backoffs = 9, agrees();
    s.events = GSC_EVENT_STOPPED, s.skip_f32 = 1, agrees();
    s.factor.generation = s.next.generation = 99, agrees(); // of a run that was resumed
    p.guard_decay = 0.5, p.guard_warmup = 3, agrees();      // of a guard that is off
    s.total_guard_skips = 9, s.guard_multiplier = 0.5, s.guard_threshold = s.guard_value = 2,
    agrees();
    CHECK(digest(nullptr, nullptr) == 0);

    base.guard_sigmas = 3;
    base.guard_max_in_a_row = 7;
    s.guard_count = 5;
    const auto guards = [&] {
        seen.push_back(digest(&p, &s));
        p = base;
        s = start(p), s.guard_count = 5;
    };
    p = base, guards();
    p.guard_norm = 1, guards();
    p.guard_ratio = 2, guards();
    p.guard_sigmas = 2, guards();
    p.guard_decay = 0.5, guards();
    p.guard_init_mean = 1, guards();
    p.guard_warmup = 1, guards();
    p.guard_max_in_a_row = 1, guards();
    p.guard_sample = GSC_SAMPLE_THRESHOLD, guards();
    p.guard_flags = GSC_GUARD_CLIP, guards();
    s.guard_mean = 1, guards();
    s.guard_variance = 1, guards();
    s.guard_count = 6, guards();
    s.guard_in_a_row = 1, guards();
    s.guard_count = 0, guards();
    s.guard_count = 0, s.guard_mean = 1, guards(); // which the next update reads all the same
    s.guard_count = 0, s.guard_variance = 1, guards();
    std::sort(seen.begin(), seen.end());
    CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
}

TEST_CASE("the digest has the same bits on every platform", "[state]")
{
    const gsc_policy p = preset("nemo");
    const gsc_state s = stepped(p, start(p), 5);
    CHECK(digest(&p, &s) == 0x1d9f94251a650a00u);
}

TEST_CASE("states of one digest go on alike", "[state]")
{
    Random random = {3};
    int met = 0;
    for (uint32_t i = 0; gsc_preset_name(i); i++) {
        gsc_policy p = preset(gsc_preset_name(i));
        p.growth_interval = std::min<uint64_t>(p.growth_interval, 2);
        std::map<uint64_t, gsc_state> known;
        gsc_state s = start(p);
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

TEST_CASE("a stamp replaces the rank and the digest", "[state]")
{
    Random random = {4};
    const gsc_policy p = preset("torch");
    const gsc_state s = start(p);
    for (uint32_t rank : {0u, 1u, 65535u, UINT32_MAX - 1})
        for (int i = 0; i < 20; i++) {
            gsc_report expected = random_report(random, 7), place = expected;
            expected.digest = digest(&p, &s);
            expected.status_rank_plus_1 = expected.first_rank_plus_1 = rank + 1;
            CHECK(same(stamped(place, rank, &p, &s), expected));
            REQUIRE(gsc_report_set_rank(nullptr, &place, &p, &s, rank, &place, nullptr) == GSC_OK);
            CHECK(same(place, expected));
        }
}

TEST_CASE("a merge says of which rank the error is, and of which the first overflow", "[state]")
{
    const gsc_report good = measured;
    gsc_report verdict = measured, nan = measured, failed = {};
    verdict.overflow = nan.overflow = failed.overflow = 1;
    nan.nan_count = 3;
    nan.first_tensor = 5;
    failed.status = GSC_ERROR_MEMORY;
    const auto ranks = [](std::vector<gsc_report> reports) {
        for (uint32_t i = 0; i < reports.size(); i++)
            reports[i] = stamped(reports[i], i);
        const gsc_report r = merged(reports.data(), reports.size());
        return std::vector<uint32_t>{r.status_rank_plus_1, r.first_rank_plus_1};
    };
    using Ranks = std::vector<uint32_t>;
    CHECK(ranks({good, good}) == Ranks{0, 0});
    CHECK(ranks({good, verdict, verdict}) == Ranks{0, 2});
    CHECK(ranks({good, verdict, nan, nan}) == Ranks{0, 3}); // whose first_tensor is told
    CHECK(ranks({good, failed, nan, failed}) == Ranks{2, 3});
    CHECK(ranks({nan, failed}) == Ranks{2, 1});
}

TEST_CASE("a report without a digest agrees with all, and a merge keeps the digest", "[state]")
{
    const gsc_policy p = preset("torch");
    const gsc_state s = start(p);
    gsc_report failed = {};
    failed.status = GSC_ERROR_MEMORY;
    failed.overflow = 1;
    for (const gsc_report &other : {measured, failed}) {
        const gsc_report list[] = {other, stamped(unread, 1, &p, &s), other};
        const gsc_report r = merged(list, 3);
        CHECK(r.digest == digest(&p, &s));
        CHECK(r.status == other.status);
    }
}

TEST_CASE("merges of merges are the merge of all, but for the order of the sum", "[state]")
{
    Random random = {5};
    for (int round = 0; round < 2000; round++) {
        Reports reports;
        std::vector<uint64_t> sizes;
        for (uint64_t group = 0, groups = random.next() % 6; group < groups; group++) {
            sizes.push_back(random.next() % 6); // a node without ranks, too
            for (uint64_t i = 0; i < sizes.back(); i++)
                reports.push_back(random_report(random, static_cast<uint32_t>(reports.size())));
        }
        reports.reserve(1);
        for (uint32_t kind : {GSC_MERGE_SHARDS, GSC_MERGE_ADDENDS}) {
            const Reports groups = merged_in_groups(reports, sizes, kind);
            const gsc_report flat = merged(reports.data(), reports.size(), kind);
            gsc_report nested = merged(groups.data(), groups.size(), kind);
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

TEST_CASE("in groups of 64 the sum also has the same bits", "[state]")
{
    Random random = {6};
    for (uint64_t n : {1u, 63u, 64u, 65u, 128u, 1000u, 4096u}) {
        Reports reports;
        std::vector<uint64_t> sizes(n / 64, 64);
        if (n % 64)
            sizes.push_back(n % 64);
        while (reports.size() < n) {
            reports.push_back(random_report(random, static_cast<uint32_t>(reports.size())));
            reports.back().measured = measured.measured;
        }
        const Reports groups = merged_in_groups(reports, sizes, GSC_MERGE_SHARDS);
        CHECK(same(merged(groups.data(), groups.size()), merged(reports.data(), n)));
    }
}
