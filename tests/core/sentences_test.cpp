// SPDX-License-Identifier: MIT
// Sentences are UTF-8 on one line, with a point in numbers, and a mark where they are cut. What
// bindings need of them stands in fields, so no program takes a sentence apart.
#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "support.hpp"

namespace {

/* Returns true if the text is UTF-8 on one line, by the table of well-formed bytes of Unicode. */
bool is_line_of_utf8(const std::string &text)
{
    const auto *c = reinterpret_cast<const unsigned char *>(text.c_str());
    while (*c) {
        const unsigned low = *c == 0xe0 ? 0xa0 : *c == 0xf0 ? 0x90 : 0x80;
        const unsigned high = *c == 0xed ? 0x9f : *c == 0xf4 ? 0x8f : 0xbf;
        const int more = *c < 0x80 ? 0 : *c < 0xe0 ? 1 : *c < 0xf0 ? 2 : 3;
        if (*c == 0xc2 && c[1] < 0xa0) // controls, as NEL
            return false;
        if (*c == 0xe2 && c[1] == 0x80 && (c[2] | 1) == 0xa9) // separators of lines
            return false;
        if (*c < ' ' || *c == 0x7f || (*c >= 0x80 && *c < 0xc2) || *c > 0xf4)
            return false;
        c++;
        for (int i = 0; i < more; i++, c++)
            if (*c < (i ? 0x80 : low) || *c > (i ? 0xbf : high))
                return false;
    }
    return true;
}

struct Imported {
    gsc_status status;
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_error err = {};
    std::vector<gsc_note> notes = std::vector<gsc_note>(64);
};

Imported import(const char *format, const char *prefix, const std::vector<gsc_entry> &list,
                const gsc_policy *policy = nullptr)
{
    Imported r;
    gsc_state state;
    uint64_t count = 0;
    r.status = gsc_state_import(format, prefix, list.data(), list.size(), policy, &r.policy, &state,
                                r.notes.data(), r.notes.size(), &count, &r.err);
    r.notes.resize(count);
    return r;
}

/* A name of characters of 1 to 4 bytes, or of random bytes. */
std::string random_name(Random &random, size_t length, bool is_utf8)
{
    static const char *const characters[] = {"a",  "\xc3\xa4", "\xe5\xb1\x82", "\xf0\x9f\x94\xa5",
                                             "\n", "\xc2\x85", "\xc2\x9b",     "\xe2\x80\xa8"};
    std::string name;
    while (name.size() < length)
        name += is_utf8 ? characters[random.next() % 8]
                        : std::string(1, static_cast<char>(1 + random.next() % 255));
    return name;
}

} // namespace

TEST_CASE("sentences with any name are one line of UTF-8", "[sentences]")
{
    Random random{7};
    gsc_policy policy = GSC_POLICY_INIT;
    for (int i = 0; i < 20000; i++) {
        gsc_error err;
        const std::string name = random_name(random, 1 + random.next() % 200, i % 2);
        REQUIRE(gsc_policy_preset(name.c_str(), &policy, &err) == GSC_ERROR_PRESET);
        REQUIRE(is_line_of_utf8(err.message));
        const Imported alone = import("torch", name.c_str(), {number(name + ".scale", -1)});
        REQUIRE((alone.status == GSC_OK || is_line_of_utf8(alone.err.message)));
        std::vector<gsc_entry> list = {number("scale", 8), number("growth_tracker", 1)};
        list.push_back(number(name.substr(0, 159), 1));
        for (const gsc_note &note : import("megatron", nullptr, list).notes)
            REQUIRE(is_line_of_utf8(note.message));
    }
    CHECK_FALSE(is_line_of_utf8("\xc3"));
    CHECK_FALSE(is_line_of_utf8("\xed\xa0\x80"));
}

TEST_CASE("a prefix of any length is offered whole", "[sentences]")
{
    const std::string prefix = "a.b.c." + std::string(134, 'x');
    std::vector<gsc_entry> list = {number(prefix + ".scale", 8)};
    for (const char *key : {".growth_factor", ".backoff_factor", ".growth_interval"})
        list.push_back(number(prefix + key, 2));
    list.push_back(number(prefix + "._growth_tracker", 0));
    const Imported r = import(nullptr, nullptr, list);
    CHECK(r.status == GSC_ERROR_FORMAT);
    CHECK_WORDING(std::string(r.err.message).find("give the prefix \"" + prefix + "\"") !=
                  std::string::npos);
}

TEST_CASE("an error says in fields where its parts are", "[sentences]")
{
    const std::string key = "net.\xe5\xb1\x82.loss_scale";
    const Imported r = import("jmp", "net.\xe5\xb1\x82", {number(key, -1)});
    const std::string message = r.err.message;
    CHECK(r.status == GSC_ERROR_VALUE);
    CHECK(message.substr(0, r.err.subject_length) == "entries[0].value of \"" + key + "\" ");
    CHECK(r.err.requirement_start > r.err.subject_length);
    CHECK_WORDING(message.substr(r.err.subject_length) == "is -1: it must be a scale: 0 or above");
    CHECK_WORDING(message.substr(r.err.requirement_start) == "a scale: 0 or above");
    gsc_error err;
    CHECK(gsc_policy_check(nullptr, &err) == GSC_ERROR_NULL);
    CHECK(err.requirement_start == 0);
}

TEST_CASE("a note says in fields where its value is by name", "[sentences]")
{
    gsc_policy policy = GSC_POLICY_INIT;
    REQUIRE(gsc_policy_preset("cerebras", &policy, nullptr) == GSC_OK);
    policy.guard_norm = 2;
    policy.guard_flags = GSC_GUARD_CLIP | GSC_GUARD_INCLUSIVE;
    const Imported r = import("cerebras", nullptr, {number("loss_scale", 8)}, &policy);
    REQUIRE(r.status == GSC_OK);
    std::map<std::string, std::string> names;
    for (const gsc_note &note : r.notes)
        names[note.field] = std::string(note.message).substr(note.value_start, note.value_length);
    CHECK_WORDING(names["guard_flags"] == "CLIP|INCLUSIVE");
    CHECK(names["guard_flags"].size() == 14);
    gsc_state state;
    REQUIRE(gsc_state_init(nullptr, &policy, &state, nullptr) == GSC_OK);
    gsc_note notes[64];
    uint64_t count;
    REQUIRE(gsc_state_export("torch", nullptr, &policy, &state, nullptr, 0, nullptr, notes, 64,
                             &count, nullptr) == GSC_OK);
    for (uint64_t i = 0; i < count; i++)
        names[notes[i].field] =
            std::string(notes[i].message).substr(notes[i].value_start, notes[i].value_length);
    CHECK_WORDING(names["floor_rule"] == "ENFORCE");
    CHECK_WORDING(names["overflow_reset"] == "ON_GROWTH|ON_BACKOFF");
    CHECK_WORDING(names["arithmetic"] == "F32");
    CHECK_WORDING(names["guard_norm"] == "2");
}

TEST_CASE("notes on entries come in one order, whatever the capacity", "[sentences]")
{
    const uint32_t order[] = {GSC_NOTE_UNUSABLE, GSC_NOTE_OUTSIDE_LIMITS, GSC_NOTE_CHANGED,
                              GSC_NOTE_LOST,     GSC_NOTE_FORMAT,         GSC_NOTE_IGNORED,
                              GSC_NOTE_MISSING};
    const auto place = [&](const gsc_note &note) {
        return std::find(std::begin(order), std::end(order), note.kind) - order;
    };
    gsc_policy policy = GSC_POLICY_INIT;
    REQUIRE(gsc_policy_preset("deepspeed", &policy, nullptr) == GSC_OK);
    const Imported r = import(nullptr, nullptr,
                              {number("x", 1), number("scale", 0.5), number("growth_tracker", 5000),
                               number("hysteresis_tracker", 9), number("y", 1)},
                              &policy);
    REQUIRE(r.status == GSC_OK);
    std::set<ptrdiff_t> places;
    for (size_t i = 0; i < r.notes.size(); i++) {
        places.insert(place(r.notes[i]));
        CHECK((i == 0 || place(r.notes[i - 1]) <= place(r.notes[i])));
    }
    CHECK(places.size() >= 5);
}

TEST_CASE("a format lists each key that it reads", "[sentences]")
{
    uint64_t count = 0;
    std::set<std::string> names;
    for (uint32_t i = 0; const char *format = gsc_format_name(i); i++) {
        std::vector<gsc_format_key> keys(200);
        REQUIRE(gsc_format_keys(format, keys.data(), keys.size(), &count, nullptr) == GSC_OK);
        keys.resize(count);
        size_t scales = 0;
        for (const gsc_format_key &key : keys) {
            const bool is_saved = key.uses & GSC_KEY_SAVED;
            scales += is_saved && std::string(key.field) == "scale";
            names.insert(key.key);
            gsc_policy policy = GSC_POLICY_INIT;
            gsc_entry e = number(key.key, 1);
            gsc_note notes[8];
            uint64_t notes_count = 0;
            CHECK((key.uses & ~7u) == 0);
            if (key.uses & GSC_KEY_SETTING) {
                e.kind = GSC_ENTRY_NULL;
                (void)gsc_policy_import(format, nullptr, &e, 1, nullptr, &policy, notes, 8,
                                        &notes_count, nullptr);
                for (uint64_t j = 0; j < notes_count; j++)
                    CHECK(notes[j].kind != GSC_NOTE_IGNORED);
            }
        }
        gsc_policy torch = GSC_POLICY_INIT;
        gsc_state state;
        gsc_entry written[64];
        uint64_t n = 0;
        REQUIRE(gsc_policy_preset("torch", &torch, nullptr) == GSC_OK);
        REQUIRE(gsc_state_init(nullptr, &torch, &state, nullptr) == GSC_OK);
        const bool saves = gsc_state_export(format, "", &torch, &state, written, 64, &n, nullptr, 0,
                                            nullptr, nullptr) == GSC_OK;
        CHECK(scales == (saves ? 1 : 0));
        for (uint64_t j = 0; j < n; j++)
            CHECK(std::count_if(keys.begin(), keys.end(), [&](const gsc_format_key &key) {
                      return std::string(key.key) == written[j].key && key.uses & GSC_KEY_SAVED;
                  }) == 1);
    }
    CHECK(names.count("hysteresis_refill") == 1);
    gsc_format_key keys[3];
    std::memset(keys, 0x5a, sizeof keys);
    REQUIRE(gsc_format_keys("paddle", keys, 2, &count, nullptr) == GSC_OK);
    CHECK((count > 3 && keys[2].uses == 0x5a5a5a5a));
    CHECK((std::string(keys[0].key) == "loss_scaling_0" && std::string(keys[0].field) == "scale"));
    CHECK(keys[0].uses == (GSC_KEY_SAVED | GSC_KEY_NUMBERED));
    gsc_error err;
    CHECK(gsc_format_keys("tortch", nullptr, 0, &count, &err) == GSC_ERROR_FORMAT);
    CHECK(std::string(err.name) == "format");
    CHECK(gsc_format_keys("torch", nullptr, 1, &count, &err) == GSC_ERROR_NULL);
    CHECK(gsc_format_keys(nullptr, nullptr, 0, &count, &err) == GSC_ERROR_NULL);
}

#if defined(__GLIBC__) && defined(__x86_64__)
TEST_CASE("numbers have a point where the locale has a comma", "[sentences]")
{
    const auto folder = std::filesystem::temp_directory_path() /
                        ("gradscaler-locale-" + std::to_string(std::rand()));
    std::filesystem::create_directory(folder);
    std::ofstream characters(folder / "ascii");
    characters << "<code_set_name> ASCII\n<comment_char> %\n<escape_char> /\nCHARMAP\n";
    for (int c = 0; c < 128; c++) {
        char line[32];
        std::snprintf(line, sizeof line, "<U%04X> /x%02x\n", c, c);
        characters << line;
    }
    characters << "END CHARMAP\n";
    characters.close();
    std::ofstream(folder / "german")
        << "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n";
    const std::string quoted = "'" + folder.string() + "/";
    (void)!std::system(("localedef -c -f " + quoted + "ascii' -i " + quoted + "german' " + quoted +
                        "comma' 2>/dev/null")
                           .c_str());
    setenv("LOCPATH", folder.c_str(), 1);
    const char *set = std::setlocale(LC_NUMERIC, "comma");
    char comma[8];
    std::snprintf(comma, sizeof comma, "%g", 1.5);
    gsc_error err;
    gsc_policy policy = GSC_POLICY_INIT;
    policy.backoff_factor = 2.25;
    const gsc_status status = gsc_policy_check(&policy, &err);
    std::string messages = err.message;
    policy = GSC_POLICY_INIT;
    policy.guard_norm = 2.5;
    policy.init_scale = 0x1p-40;
    gsc_state state;
    gsc_report report;
    gsc_reason reason = {};
    const bool made =
        gsc_state_init(nullptr, &policy, &state, nullptr) == GSC_OK &&
        gsc_report_from_number(3.75, &report, nullptr) == GSC_OK &&
        gsc_state_update(nullptr, &policy, &state, &report, &state, nullptr) == GSC_OK &&
        gsc_state_reason(&state, &report, nullptr, nullptr, nullptr, nullptr, 0, &reason,
                         nullptr) == GSC_OK;
    char line[1000];
    uint64_t size = 0;
    const gsc_status written = gsc_history_line(&state, &report, nullptr, nullptr, nullptr, 0, 1,
                                                2.5, nullptr, line, sizeof line, &size, nullptr);
    std::setlocale(LC_NUMERIC, "C");
    std::filesystem::remove_all(folder);
    REQUIRE(set);
    REQUIRE(std::string(comma) == "1,5");
    CHECK((status == GSC_ERROR_POLICY && made && written == GSC_OK));
    CHECK(std::string(line, size).find("\"time\":2.5,\"loss_scale\":9.094947017729282e-13,") !=
          std::string::npos);
    CHECK_WORDING(messages == "policy.backoff_factor is 2.25: it must be from 0 to 1");
    CHECK_WORDING(std::string(reason.message).find("the norm, 3.75, is above 2.5") !=
                  std::string::npos);
}
#endif
