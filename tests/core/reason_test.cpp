// SPDX-License-Identifier: MIT
// The reason of a skip: which tensors, how many elements, whose name; and one sentence.
#include "support.hpp"

namespace {

using Names = std::vector<const char *>;

/* The report of tensor i of a list. */
gsc_report tensor(int64_t i, int64_t nans, int64_t infs)
{
    gsc_report r = measured;
    r.elements = 1000;
    r.nan_count = nans;
    r.inf_count = infs;
    r.overflow = nans + infs > 0;
    r.found_inf = static_cast<float>(r.overflow);
    r.first_tensor = r.last_tensor = r.overflow ? i : 0;
    return r;
}

const Reports some = {tensor(0, 0, 0), tensor(1, 2, 1), tensor(2, 0, 4), tensor(3, 0, 0)},
              one = {tensor(0, 0, 0), tensor(1, 3, 0)},
              all = {tensor(0, 9, 0), tensor(1, 9, 0), tensor(2, 9, 0)};
const Names names = {"embed", "h.0", "h.1", "head"};

gsc_report whole(const Reports &each, uint32_t rank_plus_1 = 0)
{
    gsc_report r = merged(each);
    r.kind = GSC_REPORT_TENSORS;
    r.last_rank_plus_1 = rank_plus_1;
    return r;
}

gsc_reason reason(const gsc_report &r, const gsc_report *given, const Reports &each,
                  const Names &given_names, const Policy &p = preset_policy("torch"))
{
    const gsc_state s = updated(p, started(p), r);
    gsc_reason out;
    std::memset(&out, 0xff, sizeof out);
    const uint64_t n = each.empty() ? given_names.size() : each.size();
    CHECK(gsc_state_reason(&s, given, each.empty() ? nullptr : each.data(),
                           given_names.empty() ? nullptr : given_names.data(), n, &out,
                           nullptr) == GSC_OK);
    return out;
}

} // namespace

TEST_CASE("the reason of an overflow names the tensor nearest to the cause", "[reason]")
{
    const gsc_report r = whole(some), on_rank = whole(some, 3), of_one = whole(one),
                     of_all = whole(all);
    const struct {
        gsc_reason reason;
        const char *message;
        int64_t tensors, tensor;
    } rows[] = {
        {reason(r, &r, some, names),
         "skipped: 2 NaN and 5 Inf in 2 of 4 tensors; the last, nearest to the cause, is \"h.1\"",
         2, 2},
        {reason(r, nullptr, some, names),
         "skipped: 2 NaN and 5 Inf in 2 of 4 tensors; the last, nearest to the cause, is \"h.1\"",
         2, 2},
        {reason(r, &r, {}, names), "skipped: 2 NaN and 5 Inf, the last in \"h.1\"", 0, 2},
        {reason(r, &r, {}, {}), "skipped: 2 NaN and 5 Inf, the last in tensor 2", 0, 2},
        {reason(r, &r, {}, {"embed"}), "skipped: 2 NaN and 5 Inf, the last in tensor 2", 0, 2},
        {reason(r, &r, {}, {"a", "b", nullptr}), "skipped: 2 NaN and 5 Inf, the last in tensor 2",
         0, 2},
        {reason(on_rank, &on_rank, {}, names),
         "skipped: 2 NaN and 5 Inf, the last in \"h.1\" on rank 2", 0, 2},
        {reason(of_one, &of_one, one, names), "skipped: 3 NaN in \"h.0\" alone", 1, 1},
        {reason(of_all, &of_all, all, names),
         "skipped: 27 NaN in all 3 tensors: look at the loss and the last layer, \"h.1\"", 3, 2},
        {reason(r, nullptr, {}, names), "skipped: overflow", 0, -1},
    };
    for (const auto &row : rows) {
        CAPTURE(&row - rows);
        CHECK_WORDING(std::string(row.reason.message) == row.message);
        CHECK((row.reason.bad_tensors == row.tensors && row.reason.tensor == row.tensor));
        CHECK(row.reason.cause == GSC_CAUSE_OVERFLOW);
    }
    CHECK((rows[0].reason.nan_count == 2 && rows[0].reason.inf_count == 5));
    CHECK((rows[0].reason.rank == -1 && rows[6].reason.rank == 2));
}

TEST_CASE("an overflow of the norm, of a flag and of another rank", "[reason]")
{
    const Policy p = preset_policy("cerebras");
    gsc_report large = measured, flag, rank = {};
    large.elements = 1;
    large.sum_squares = 1e39;
    REQUIRE(gsc_report_from_flag(1, &flag, nullptr) == GSC_OK);
    rank.overflow = 1;
    rank.last_rank_plus_1 = 6;
    CHECK_WORDING(std::string(reason(large, &large, {}, names, p).message) ==
                  "skipped: overflow of the norm");
    CHECK_WORDING(std::string(reason(flag, &flag, {}, names).message) == "skipped: overflow");
    CHECK_WORDING(std::string(reason(rank, &rank, {}, names).message) ==
                  "skipped: overflow on rank 5");
}

TEST_CASE("reports per tensor of one rank do not speak for all, and add to a flag", "[reason]")
{
    const gsc_report both = merged({whole(some), whole(all)});
    const gsc_reason mixed = reason(both, &both, some, names);
    CHECK_WORDING(std::string(mixed.message) == "skipped: 29 NaN and 5 Inf, the last in \"h.1\"");
    CHECK((mixed.bad_tensors == 0 && mixed.tensor == 2));
    gsc_report flag;
    REQUIRE(gsc_report_from_flag(1, &flag, nullptr) == GSC_OK);
    CHECK_WORDING(std::string(reason(flag, &flag, one, names).message) ==
                  "skipped: 3 NaN in \"h.0\" alone");
}

TEST_CASE("a name is one line", "[reason]")
{
    const gsc_report r = whole(one);
    CHECK_WORDING(std::string(reason(r, &r, {}, {"", "a\n\tb%s"}).message) ==
                  "skipped: 3 NaN, the last in \"a  b%s\"");
}

TEST_CASE("a bad loss is the cause, whether the policy holds or not", "[reason]")
{
    gsc_report r = whole(all);
    r.loss = GSC_LOSS_NOT_FINITE;
    for (const Policy &p : {preset_policy("torch"), preset_policy("recommended")}) {
        const gsc_reason out = reason(r, &r, all, names, p);
        CHECK((out.cause == GSC_CAUSE_BAD_LOSS && out.in_a_row == 1 && out.bad_tensors == 3));
        CHECK_WORDING(std::string(out.message) ==
                      "skipped: the loss was not finite before it was scaled, 1 in a row");
    }
    r.loss_rank_plus_1 = 4;
    CHECK_WORDING(std::string(reason(r, &r, all, names).message) ==
                  "skipped: the loss was not finite before it was scaled on rank 3, 1 in a row");
}

TEST_CASE("a sentence holds the longest name and the largest counts, cut at a character",
          "[reason][wording]")
{
    std::string name;
    for (int i = 0; i < 100; i++)
        name += "\xc3\xa4\xe5\xb1\x82"; // of two and of three bytes
    Reports each(2, tensor(0, INT64_MAX / 2, INT64_MAX / 2));
    gsc_report r = each[0];
    r.nan_count = r.inf_count = INT64_MAX;
    r.last_rank_plus_1 = UINT32_MAX;
    for (size_t extra = 0; extra < 5; extra++) {
        const std::string longer = std::string(extra, 'x') + name;
        const gsc_reason out =
            reason(r, &r, each, {longer.c_str(), longer.c_str()}, zeros.max_failed_backoffs(1));
        const std::string message = out.message;
        CHECK(message.size() < sizeof out.message);
        CHECK(message.find("\"" + longer.substr(0, 70)) != std::string::npos);
        const size_t cut = message.find("...\" on rank 4294967294, at a scale of 1: look at");
        REQUIRE(cut != std::string::npos);
        const std::string before = message.substr(cut - 2, 2); // ends a character
        CHECK((before == "\xc3\xa4" || before == "\xb1\x82"));
    }
}

TEST_CASE("reports that no call leaves are refused", "[reason]")
{
    const gsc_state s = started(zeros);
    gsc_reason out;
    gsc_error err = {};
    Reports each = {measured, gsc_report{}};
    CHECK(gsc_state_reason(&s, &each[1], nullptr, nullptr, 0, &out, &err) == GSC_ERROR_REPORT);
    CHECK(std::string(err.name) == "report");
    CHECK(gsc_state_reason(&s, nullptr, each.data(), nullptr, 2, &out, &err) == GSC_ERROR_REPORT);
    CHECK((std::string(err.name) == "per_tensor" && err.index == 1));
}
