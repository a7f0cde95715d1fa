// SPDX-License-Identifier: MIT
// The lines of a history: JSON that says all numbers exactly, whatever the names and the locale.
#include "support.hpp"

namespace {

using Names = std::vector<const char *>;

/* One call, and the room that it gets; NO_ROOM: the call only says how much it needs. */
struct Line {
    gsc_state state;
    gsc_report report = {};
    bool is_reported = true;
    Reports each = {};
    Names names = {};
    double time = 0;
    const char *run = nullptr;
    uint64_t size = 0;
    gsc_error err = {};

    gsc_status write(std::string &room)
    {
        return gsc_history_line(
            &state, is_reported ? &report : nullptr, nullptr, each.empty() ? nullptr : each.data(),
            names.empty() ? nullptr : names.data(), each.empty() ? names.size() : each.size(), 7,
            time, run, room.empty() ? nullptr : &room[0], room.size(), &size, &err);
    }

    std::string text()
    {
        std::string room;
        REQUIRE(write(room) == GSC_OK);
        room.assign(size, '?');
        REQUIRE(write(room) == GSC_OK);
        CHECK(room.substr(room.size() - 2) == "}\n");
        return room;
    }

    /* The text from a key up to the next one. */
    std::string from(const std::string &key, const std::string &end = ",\"")
    {
        const std::string line = text();
        const size_t at = line.find(key);
        REQUIRE(at != std::string::npos);
        return line.substr(at, line.find(end, at) - at);
    }
};

const Policy torch = preset_policy("torch");

gsc_report good()
{
    gsc_report r = report_of('.', 0.75);
    r.elements = 10;
    r.sum_squares = 0.25;
    return r;
}

Line after(const gsc_report &report, const Policy &policy = torch)
{
    return {updated(policy, started(policy), report), report};
}

gsc_report tensor(int64_t nans, int64_t zeros)
{
    gsc_report r = measured;
    r.elements = 100;
    r.amax = r.sum_squares = 1;
    r.nan_count = nans;
    r.underflows_to_zero = zeros;
    r.overflow = nans > 0;
    return r;
}

std::string start_of(const Policy &policy, const Names &names = {})
{
    std::string room(100000, '?');
    const gsc_state state = started(policy);
    uint64_t size = 0;
    REQUIRE(gsc_history_start(&policy, "mine", &state, names.empty() ? nullptr : names.data(),
                              names.size(), 3, 2, 1.5, "r", &room[0], room.size(), &size,
                              nullptr) == GSC_OK);
    return room.substr(0, size);
}

bool contains(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("a line has the metrics, and of state and report what is not zero", "[history]")
{
    Line line = after(good());
    line.time = 1764413342.5;
    line.run = "r1";
    CHECK(line.text() == "{\"step\":7,\"time\":1764413342.5,\"run\":\"r1\",\"loss_scale\":65536,"
                         "\"norm\":0.5,\"amax\":0.75,\"zero_share\":0,\"steps_since_change\":1,"
                         "\"state\":{\"good_steps\":1,\"total_updates\":1,\"updates_at_growth\":1},"
                         "\"report\":{\"measured\":7,\"elements\":10,\"kind\":1}}\n");
    line.is_reported = false;
    CHECK(contains(line.text(), "\"nan_count\":null,\"inf_count\":null,\"state\":{"));
}

TEST_CASE("a line names the events and the reason, unless the step was taken", "[history]")
{
    gsc_report bad = report_of('x');
    bad.elements = 10;
    bad.nan_count = 2;
    Line line = after(bad);
    CHECK(line.from("\"events\"", ",\"reason") ==
          "\"events\":\"BACKED_OFF|SKIPPED\",\"outcome\":\"SKIPPED\",\"cause\":\"OVERFLOW\"");
    CHECK_WORDING(line.from("\"reason\"") == "\"reason\":\"skipped: 2 NaN, the last in tensor 0\"");
    CHECK(contains(line.text(), "\"skip\":true,\"overflow\":true"));
    CHECK(contains(line.text(), "\"tensors\":[{\"tensor\":0}]"));
    CHECK(!contains(after(good()).text(), "outcome"));
}

TEST_CASE("numbers read back exactly, and JSON has no others", "[history]")
{
    Random random{1};
    Line line = after(good());
    for (int i = 0; i < 2000; i++) {
        const double value = std::ldexp(random.unit(), static_cast<int>(random.next() % 600) - 300);
        line.report.amax = value;
        const std::string text = line.from("\"amax\":");
        CHECK(std::strtod(text.c_str() + 7, nullptr) == value);
    }
    line.report.amax = 0.1;
    CHECK(line.from("\"amax\":") == "\"amax\":0.1");
    line.report.amax = 1e300;
    CHECK(line.from("\"amax\":") == "\"amax\":1e+300");
    const Policy keras = preset_policy("keras").growth_interval(1).init_scale(0x1p127);
    line = after(good(), keras);
    line.state = updated(keras, line.state, good());
    CHECK(line.from("\"loss_scale\":") == "\"loss_scale\":\"inf\"");
}

TEST_CASE("names are strings of JSON, whatever their bytes", "[history]")
{
    Line line = after(good());
    line.each = {tensor(1, 0), tensor(1, 0), tensor(1, 0), tensor(1, 0)};
    line.names = {"a\"\\b", "c\n\x01", "d\xff\xc3", nullptr};
    line.state = updated(torch, started(torch), report_of('x'));
    const std::string text = line.text();
    CHECK(contains(text, "\"name\":\"a\\\"\\\\b\""));
    CHECK(contains(text, "\"name\":\"c\\u000a\\u0001\""));
    CHECK(contains(text, "\"name\":\"d\xef\xbf\xbd\xef\xbf\xbd\""));
    CHECK(contains(text, "{\"tensor\":3,\"overflow\""));
}

TEST_CASE("a line lists seven bad tensors, the last one, and those that a diagnosis names",
          "[history]")
{
    Line line = after(good());
    for (int i = 0; i < 30; i++)
        line.each.push_back(tensor(i % 2, i == 4 ? 50 : i == 6 ? 60 : 0));
    line.each[8].amax = line.each[18].amax = 0;
    const std::string text = line.text();
    std::string listed;
    for (size_t at = 0; (at = text.find("{\"tensor\":", at)) != std::string::npos; at += 10)
        listed += std::to_string(std::atoi(text.c_str() + at + 10)) + " ";
    CHECK(listed == "1 3 5 7 9 11 13 29 6 8 ");
    CHECK(contains(text, "\"tensor_count\":30,\"zeros\":[8,18],"));
    line.each = {tensor(0, 0)};
    CHECK(!contains(line.text(), "tensor"));
}

TEST_CASE("a start has the version, every field of the policy, the state and the names",
          "[history]")
{
    const std::string text = start_of(torch.growth_interval(9), {"a", nullptr});
    CHECK(contains(text, "{\"start\":\"" + std::string(gsc_version_string()) +
                             "\",\"step\":3,\"rank\":2,\"time\":1.5,\"run\":\"r\",\"policy\":{"
                             "\"preset\":\"mine\","));
    CHECK(contains(text, "\"growth_interval\":9,"));
#define IS_THERE(field) CHECK(contains(text, "\"" #field "\":"));
    FOR_POLICY(IS_THERE)
#undef IS_THERE
    CHECK(contains(text, "\"state\":{\"scale\":65536,\"guard_multiplier\":1}"));
    CHECK(contains(text, ",\"names\":[\"a\",null]}\n"));
    CHECK(!contains(start_of(torch), "names"));
}

TEST_CASE("a scale that is not in force yet is in the line", "[history]")
{
    const Policy late = torch.apply_delay(1);
    Line line = after(report_of('x'), late);
    CHECK(contains(line.text(), "\"loss_scale\":65536,"));
    CHECK(contains(line.text(), "\"next_scale\":32768}"));
}

TEST_CASE("a line is refused without room for it, with its size, and with a time that is none",
          "[history]")
{
    Line line = after(good());
    std::string room(line.text().size() - 1, '?');
    CHECK(line.write(room) == GSC_ERROR_CAPACITY);
    check_error(line.err, GSC_ERROR_CAPACITY);
    CHECK(line.size == room.size() + 1);
    CHECK(line.err.low == static_cast<double>(line.size));
    for (double time : {-1.0, 0x1p43, nan_value}) {
        line.time = time;
        CHECK(line.write(room) == GSC_ERROR_VALUE);
        CHECK(place(line.err) == "time");
    }
    gsc_reason reason = {};
    reason.outcome = 99;
    CHECK(gsc_history_line(&line.state, nullptr, &reason, nullptr, nullptr, 0, 1, 0, nullptr,
                           &room[0], room.size(), &line.size, nullptr) == GSC_ERROR_VALUE);
}
