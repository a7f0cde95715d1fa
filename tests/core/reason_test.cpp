// SPDX-License-Identifier: MIT
// The reason of a skip: the questions in their order, the tensors, their names; and one sentence.
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

/* What a caller knows, in named parts. */
struct Known {
    gsc_report report;    /* of the update */
    bool is_given = true; /* to the call also */
    Reports each = {};
    Names names = {};
    std::vector<uint64_t> order = {};
    gsc_evidence evidence = {};
    Policy policy = preset_policy("torch");
};

template <typename T> const T *data_of(const std::vector<T> &list)
{
    return list.empty() ? nullptr : list.data();
}

gsc_status explain(const Known &k, const gsc_state &s, gsc_reason *out, gsc_error *err = nullptr)
{
    const uint64_t n = k.each.empty() ? std::max(k.names.size(), k.order.size()) : k.each.size();
    return gsc_state_reason(&s, k.is_given ? &k.report : nullptr, &k.evidence, data_of(k.each),
                            data_of(k.names), data_of(k.order), n, out, err);
}

gsc_reason reason(const Known &k)
{
    gsc_reason out;
    std::memset(&out, 0xff, sizeof out);
    CHECK(explain(k, updated(k.policy, started(k.policy), k.report), &out) == GSC_OK);
    return out;
}

gsc_reason reason(const gsc_report &r, const gsc_report *given, const Reports &each,
                  const Names &given_names, const Policy &p = preset_policy("torch"))
{
    Known k = {r, given != nullptr, each, given_names};
    k.policy = p;
    return reason(k);
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
         "skipped: 27 NaN in all 3 tensors: look at the last layer, \"h.1\", and the loss", 3, 2},
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
                      "skipped: the loss was not finite before it was scaled");
    }
    r.loss_rank_plus_1 = 4;
    CHECK_WORDING(std::string(reason(r, &r, all, names).message) ==
                  "skipped: the loss was not finite before it was scaled on rank 3");
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
        const size_t cut =
            message.find("...\" on rank 4294967294, and the loss, at a scale of 1: look");
        REQUIRE(cut != std::string::npos);
        const std::string before = message.substr(cut - 2, 2); // ends a character
        CHECK((before == "\xc3\xa4" || before == "\xb1\x82"));
    }
}

/* ---- evidence ---- */

/* parameters, first parameter, scale, dtype of the loss, losses, bad loss, ranks */
gsc_evidence evidence(int64_t bad_parameters, int64_t parameter_plus_1, double scale = 0,
                      uint32_t loss_dtype = 0, uint32_t losses = 0, uint32_t bad_loss = 0,
                      uint32_t ranks = 0)
{
    return {bad_parameters, parameter_plus_1, scale, loss_dtype, losses, bad_loss, ranks, {}};
}

gsc_evidence losses(uint32_t number, uint32_t bad, uint32_t ranks = 0)
{
    return evidence(0, 0, 0, 0, number, bad, ranks);
}

TEST_CASE("the cause of an overflow is what the first of the questions finds", "[reason]")
{
    gsc_report of_loss = whole(all);
    of_loss.loss = GSC_LOSS_NOT_FINITE;
    const gsc_report r = whole(some);
    const struct {
        Known known;
        uint32_t cause;
        int64_t tensor;
        const char *message;
    } rows[] = {
        {{of_loss, true, all, {"a", "b", "c"}, {}, evidence(1, 2, 65536, GSC_F16, 2, 1)},
         GSC_CAUSE_PARAMETER,
         1,
         "1 of 3 parameters has NaN or Inf, \"b\": go back to an earlier checkpoint"},
        {{r, true, some, names, {}, evidence(3, 4)},
         GSC_CAUSE_PARAMETER,
         3,
         "3 of 4 parameters have NaN or Inf, the first is \"head\": go back to an earlier "
         "checkpoint"},
        {{r, true, {}, {}, {}, evidence(3, 0)},
         GSC_CAUSE_PARAMETER,
         -1,
         "3 parameters have NaN or Inf: go back to an earlier checkpoint"},
        {{r, true, {}, {}, {}, evidence(1, 0)},
         GSC_CAUSE_PARAMETER,
         -1,
         "1 parameter has NaN or Inf: go back to an earlier checkpoint"},
        {{of_loss, true, all, {}, {}, evidence(0, 2, 65536, GSC_F16, 1, 1)},
         GSC_CAUSE_BAD_LOSS,
         2,
         "the loss was not finite before it was scaled"},
        {{r, true, some, {}, {}, losses(4, 1)},
         GSC_CAUSE_BAD_LOSS,
         2,
         "loss 1 of 4 was not finite before it was scaled"},
        {{r, true, some, {}, {}, evidence(0, 0, 65536, GSC_F16, 2, 2)},
         GSC_CAUSE_BAD_LOSS,
         2,
         "loss 2 of 2 was not finite before it was scaled; the first was finite: if it has a "
         "gradient penalty, the scale was too large for it, else look at its data"},
        {{r, true, some, {}, {}, evidence(0, 0, 65536, GSC_F16)},
         GSC_CAUSE_LOSS_DTYPE,
         2,
         "the scale, 65536, is above the largest float16, 65504: make the loss float32 before it "
         "is scaled"},
        {{r, true, some, names, {}, evidence(0, 0, 65536, GSC_F32, 1)},
         GSC_CAUSE_OVERFLOW,
         2,
         "2 NaN and 5 Inf in 2 of 4 tensors; the last, nearest to the cause, is \"h.1\""},
    };
    for (const auto &row : rows) {
        CAPTURE(&row - rows);
        const gsc_reason out = reason(row.known);
        CHECK((out.outcome == GSC_OUTCOME_SKIPPED && out.cause == row.cause));
        CHECK((out.tensor == row.tensor && out.tensor_before == -1));
        CHECK_WORDING(out.message == "skipped: " + std::string(row.message));
    }
}

TEST_CASE("evidence explains an overflow and nothing else", "[reason]")
{
    const gsc_report fine = whole({tensor(0, 0, 0)});
    CHECK(reason({fine, true, {}, {}, {}, evidence(1, 1)}).cause == GSC_CAUSE_NONE);
    Known outlier = {fine, true, {}, {}, {}, evidence(1, 1)};
    outlier.report.sum_squares = 1e4;
    outlier.policy = zeros.guard_norm(2).guard_max_in_a_row(2);
    CHECK(reason(outlier).cause == GSC_CAUSE_OUTLIER);
}

TEST_CASE("a scale fits a dtype of the loss if it is finite there", "[reason]")
{
    const struct {
        uint32_t dtype;
        double largest, too_large;
    } rows[] = {
        {GSC_F16, 65519, 65520},
        {GSC_BF16, 0x1.fep127, 0x1.ffp127},
        {GSC_F32, 0x1.fffffep127, 0x1p128},
        {GSC_F64, 0x1p1023, 0},
        {GSC_F8_E4M3FN, 463, 465},
        {GSC_F8_E5M2, 61439, 61440},
        {GSC_CB16, 0x1p20, 0x1p30},
        {GSC_COMPLEX64, 0x1p127, 0x1p128},
    };
    for (const auto &row : rows) {
        CAPTURE(row.dtype);
        const gsc_report r = whole(some);
        CHECK(reason({r, true, {}, {}, {}, evidence(0, 0, row.largest, row.dtype)}).cause ==
              GSC_CAUSE_OVERFLOW);
        if (row.too_large != 0)
            CHECK(reason({r, true, {}, {}, {}, evidence(0, 0, row.too_large, row.dtype)}).cause ==
                  GSC_CAUSE_LOSS_DTYPE);
    }
}

TEST_CASE("the number of a bad loss is this rank's, a held one is no penalty", "[reason]")
{
    Known k = {whole(all), true, all, {}, {}, losses(2, 2)};
    k.report.loss = GSC_LOSS_NOT_FINITE;
    k.policy = preset_policy("recommended");
    CHECK_WORDING(std::string(reason(k).message) ==
                  "skipped: loss 2 of 2 was not finite before it was scaled; the first "
                  "was finite");
    k.report.loss_rank_plus_1 = 4;
    CHECK_WORDING(std::string(reason(k).message) ==
                  "skipped: the loss was not finite before it was scaled on rank 3");
}

TEST_CASE("a stop says where the guide explains its cause", "[reason]")
{
    const struct {
        const char *section;
        gsc_evidence evidence;
    } rows[] = {
        {"parameter", evidence(1, 1, 1, 0)},
        {"loss", losses(2, 1)},
        {"later-loss", losses(2, 2)},
        {"dtype", evidence(0, 0, 0x1p16, GSC_F16)},
        {"backward", {}},
    };
    for (const auto &row : rows) {
        Known k = {whole(some), true, some, names, {}, row.evidence};
        k.policy = zeros.max_failed_backoffs(1);
        const std::string message = reason(k).message, end = "; see docs/skipped.md#";
        CHECK_WORDING(message.substr(message.rfind(end)) == end + row.section);
    }
}

TEST_CASE("if all gradients are bad, a finite loss is not suspected", "[reason]")
{
    const gsc_report r = whole(all), on_rank = whole(all, 2);
    gsc_report of_call = whole(all, 2); // the call on the gradients had the losses
    of_call.loss = GSC_LOSS_FINITE;
    const struct {
        Known known;
        const char *message;
    } rows[] = {
        {{r, true, all, {}, {2, 1, 0}}, "tensor 2, and the loss"},
        {{r, true, all, {}, {0, 1, 2}, losses(1, 0)}, "tensor 0"},
        {{r, true, all, {}, {}, losses(1, 0, 2)}, "tensor 2, and the losses of other ranks"},
        {{on_rank, true, all, {}, {}, losses(1, 0)},
         "tensor 2 on rank 1, and the losses of other ranks"},
        {{of_call, true, all, {}, {}}, "tensor 2 on rank 1"},
    };
    const char *const known[] = {"", ", but the loss was finite",
                                 ", but this rank's loss was finite",
                                 ", but this rank's loss was finite", ", but the loss was finite"};
    for (const auto &row : rows) {
        CAPTURE(&row - rows);
        CHECK_WORDING(reason(row.known).message == "skipped: 27 NaN in all 3 tensors" +
                                                       std::string(known[&row - rows]) +
                                                       ": look at the last layer, " + row.message);
    }
    const gsc_report merged_reports = merged({whole(all, 1), whole(all, 2)});
    CHECK_WORDING(
        std::string(reason({merged_reports, true, all, {}, {}, losses(1, 0)}).message) ==
        "skipped: 54 NaN, in all 3 tensors of this rank, but this rank's loss was finite: "
        "look at the last layer, tensor 2 on rank 1, and the losses of other ranks");
}

/* ---- the order of the backward pass ---- */

TEST_CASE("with an order, the first bad tensor of the backward pass is named, and the one before",
          "[reason]")
{
    const gsc_report r = whole(some), on_rank = whole(some, 3), of_one = whole(one);
    const gsc_report of_ranks = merged({whole(some), whole(all)});
    const struct {
        Known known;
        int64_t tensor, before, rank;
        const char *message;
    } rows[] = {
        {{r, true, some, names, {3, 1, 2, 0}},
         1,
         3,
         -1,
         "2 NaN and 5 Inf in 2 of 4 tensors; the backward pass made \"h.0\" bad first; \"head\", "
         "made just before, is finite"},
        {{on_rank, true, some, {}, {0, 3, 2, 1}},
         2,
         3,
         2,
         "2 NaN and 5 Inf in 2 of 4 tensors; the backward pass made tensor 2 on rank 2 bad first; "
         "tensor 3, made just before, is finite"},
        {{r, true, some, names, {2, 3, 1, 0}},
         2,
         -1,
         -1,
         "2 NaN and 5 Inf in 2 of 4 tensors; the backward pass made \"h.1\" bad first, the first "
         "gradient of all: look at this layer and the loss"},
        {{of_one, true, one, names, {0, 1}},
         1,
         0,
         -1,
         "3 NaN in \"h.0\" alone; \"embed\", made just before, is finite"},
        {{of_one, true, one, names, {1, 0}, losses(1, 0)},
         1,
         -1,
         -1,
         "3 NaN in \"h.0\" alone, the first gradient of all: look at this layer"},
        {{of_ranks, true, some, names, {3, 2, 1, 0}},
         2,
         3,
         -1,
         "29 NaN and 5 Inf; on this rank the backward pass made \"h.1\" bad first; \"head\", made "
         "just before, is finite"},
        {{r, true, {}, names, {3, 1, 2, 0}}, 2, -1, -1, "2 NaN and 5 Inf, the last in \"h.1\""},
        {{r, true, some, names, {3, 3, 3, 3}}, /* the bad ones are missing */
         2,
         -1,
         -1,
         "2 NaN and 5 Inf in 2 of 4 tensors; the last, nearest to the cause, is \"h.1\""},
        {{r, true, {}, {}, {}}, 2, -1, -1, "2 NaN and 5 Inf, the last in tensor 2"},
    };
    for (const auto &row : rows) {
        CAPTURE(&row - rows);
        const gsc_reason out = reason(row.known);
        CHECK((out.tensor == row.tensor && out.tensor_before == row.before));
        CHECK((out.rank == row.rank && out.cause == GSC_CAUSE_OVERFLOW));
        CHECK_WORDING(out.message == "skipped: " + std::string(row.message));
    }
}

TEST_CASE("a sentence has room for two of the longest names", "[reason][wording]")
{
    const std::string name(200, 'x');
    Known k = {{}, true, Reports(3, tensor(0, INT64_MAX / 3, INT64_MAX / 3)), {}, {1, 0, 2}};
    k.each[1] = tensor(1, 0, 0);
    k.names = {name.c_str(), name.c_str(), name.c_str()};
    k.report = whole(k.each, UINT32_MAX);
    k.policy = zeros.max_failed_backoffs(1);
    const std::string message = reason(k).message, end = "checkpoint; see docs/skipped.md#backward";
    CHECK(message.size() + 40 < sizeof gsc_reason::message); /* for longer counts and scales */
    CHECK(message.substr(message.size() - end.size()) == end);
    CHECK(message.find("; \"xxx") != std::string::npos);
}

TEST_CASE("reports that no call leaves are refused", "[reason]")
{
    const gsc_state s = started(zeros);
    gsc_reason out;
    gsc_error err = {};
    Reports each = {measured, gsc_report{}};
    CHECK(explain({each[1]}, s, &out, &err) == GSC_ERROR_REPORT);
    CHECK(std::string(err.name) == "report");
    CHECK(explain({measured, true, each}, s, &out, &err) == GSC_ERROR_REPORT);
    CHECK((std::string(err.name) == "per_tensor" && err.index == 1));
}

TEST_CASE("an order beside the list and evidence out of range are refused", "[reason]")
{
    const gsc_state s = started(zeros);
    gsc_reason out;
    gsc_error err = {};
    CHECK(explain({measured, true, some, {}, {0, 1, 4, 2}}, s, &out, &err) == GSC_ERROR_VALUE);
    CHECK((std::string(err.name) == "order" && err.index == 2 && err.value == 4 && err.high == 3));
    CHECK(explain({measured, true, {}, {}, {2, 0}}, s, &out, &err) == GSC_ERROR_VALUE);
    CHECK((err.index == 0 && err.high == 1));
    gsc_evidence reserved = {};
    reserved.reserved[2] = 1;
    const struct {
        gsc_evidence evidence;
        const char *field;
    } rows[] = {
        {evidence(-1, 0), "bad_parameters"},  {evidence(0, -1), "parameter_plus_1"},
        {evidence(0, 0, -1), "scale"},        {evidence(0, 0, infinity), "scale"},
        {evidence(0, 0, nan_value), "scale"}, {evidence(0, 0, 1, 10), "loss_dtype"},
        {losses(1, 2), "bad_loss"},           {reserved, "reserved"},
    };
    for (const auto &row : rows) {
        CAPTURE(row.field);
        CHECK(explain({measured, true, {}, {}, {}, row.evidence}, s, &out, &err) ==
              GSC_ERROR_VALUE);
        CHECK((std::string(err.name) == "evidence" && std::string(err.field) == row.field));
    }
    CHECK(gsc_state_reason(&s, nullptr, nullptr, nullptr, nullptr, nullptr, 7, &out, nullptr) ==
          GSC_OK);
}
