// SPDX-License-Identifier: MIT
// Checkpoints and settings of any keys and values: what is refused changes nothing and says why,
// what is taken is a policy and a state that can be used, written in every format and read again.
#include "fuzz.hpp"

namespace {

gsc_entry random_entry(Source &source, const Format &format)
{
    static const char *const texts[] = {"dynamic", "growth", "good_step", "", "x"};
    gsc_entry e = {};
    const std::vector<std::string> &keys = format.keys;
    const std::string prefix = source.one_in(8) ? "a." : source.one_in(8) ? "b/c." : "";
    const std::string key = prefix + keys[source.below(keys.size())];
    std::strncpy(e.key, key.c_str(), sizeof e.key - 1);
    e.kind = source.one_in(8) ? static_cast<uint32_t>(source.below(7)) : GSC_ENTRY_NUMBER;
    e.value = source.one_in(2) ? source.number() : static_cast<double>(source.below(12));
    if (std::fabs(e.value) < 0x1p63)
        e.integer = static_cast<int64_t>(e.value);
    std::strncpy(e.text, texts[source.below(std::size(texts))], sizeof e.text - 1);
    if (source.one_in(64))
        std::memset(e.key, 'k', sizeof e.key);
    if (source.one_in(64))
        std::memset(e.text, 't', sizeof e.text);
    if (source.one_in(64))
        e.reserved[source.below(2)] = 1;
    if (source.one_in(16))
        e.key[source.below(sizeof e.key)] = static_cast<char>(source.bits(1));
    return e;
}

void check_notes(const std::vector<gsc_note> &notes, size_t entries)
{
    for (const gsc_note &n : notes) {
        claim(((n.kind >= GSC_NOTE_FORMAT && n.kind <= GSC_NOTE_LOST) ||
               n.kind == GSC_NOTE_OUTSIDE_LIMITS) &&
                  n.flags == 0,
              "a note has a kind");
        claim(*n.message, "a note is a sentence");
        claim(n.entry >= -1 && n.entry < static_cast<int64_t>(entries), "a note is about an entry");
        claim(std::memchr(n.message, 0, sizeof n.message) &&
                  std::memchr(n.field, 0, sizeof n.field),
              "a note ends");
    }
}

/* Returns whether something is lost that decides later scales. */
bool loses(const std::vector<gsc_note> &notes, const gsc_policy &p, const gsc_policy &back)
{
    static const std::vector<std::string> decide =
        split("scale next_scale good_steps steps_since_change overflows_since_reset "
              "failed_backoffs overflow_reset hysteresis");
    return p.backoff_factor != back.backoff_factor ||
           std::any_of(notes.begin(), notes.end(), [](const gsc_note &n) {
               const std::string field = n.field;
               return field.find("mean") != std::string::npos || field.find("slow") == 0 ||
                      std::count(decide.begin(), decide.end(), field);
           });
}

void check_scaler(Source &source, const gsc_policy &p, gsc_state s)
{
    unsigned char bytes[GSC_SAVED_SIZE_MAX];
    uint64_t size;
    gsc_error err = {};
    const uint64_t steps = source.bits(4);
    for (uint64_t more = source.below(40); more; more--)
        s = updated(p, s, report_of(source.one_in(2) ? 'x' : '.', 0.5));
    claim(gsc_policy_check(&p, &err) == GSC_OK, "the policy can be used", err.message);
    claim(gsc_state_save(&p, &s, bytes, sizeof bytes, &size, &err) == GSC_OK,
          "the state can be used", err.message);
    for (const Format &f : formats()) {
        std::vector<gsc_entry> entries(64);
        std::vector<gsc_note> notes(64);
        uint64_t count = 0, noted = 0;
        const gsc_status status = gsc_state_export(f.name, nullptr, &p, &s, entries.data(), 64,
                                                   &count, notes.data(), 64, &noted, &err);
        claim((status == GSC_OK) == f.saves, "each format that saves can be written", err.message);
        if (!f.saves)
            continue;
        notes.resize(noted);
        check_notes(notes, 0);
        gsc_policy back = GSC_POLICY_INIT;
        gsc_state again;
        const gsc_status read = gsc_state_import(f.name, nullptr, entries.data(), count, &p, &back,
                                                 &again, nullptr, 0, nullptr, &err);
        claim(read == GSC_OK || p.apply_delay > 1, "what was written is read",
              std::string(f.name) + ": " + err.message);
        claim(std::strcmp(f.name, "gradscaler") != 0 || (same(again, s) && same(back, p)),
              "our own format gives the same bytes back");
        if (read != GSC_OK || p.apply_delay > 1 || loses(notes, p, back))
            continue;
        gsc_state went_on = s;
        for (int i = 0; i < 30; i++) {
            const gsc_report report = report_of(steps >> i & 1 ? 'x' : '.', 0.5);
            went_on = updated(p, went_on, report);
            again = updated(back, again, report);
            claim(again.factor.scale == went_on.factor.scale,
                  "what comes back goes on as before, unless notes say what is lost",
                  std::string(f.name) + " step " + std::to_string(i));
        }
    }
}

} // namespace

/* With the keys that they write and those that settings have in any of them. */
const std::vector<Format> &formats()
{
    static const std::vector<Format> all = [] {
        const std::vector<std::string> of_any =
            split("init_scale growth_factor backoff_factor growth_interval enabled hysteresis "
                  "loss_scale scale_window min_loss_scale max_loss_scale initial_scale "
                  "initial_loss_scale min_scale max_scale initial_scale_power delayed_shift "
                  "scale_factor threshold tolerance init_loss_scaling incr_every_n_steps "
                  "steps_per_increase period factor hysteresis_refill raise_at_min lg_growth "
                  "initial_lg_scale dynamic apply_delay arithmetic bad_loss_rule quirks "
                  "use_dynamic_loss_scaling");
        std::vector<Format> formats;
        const gsc_policy p = preset_policy("torch");
        const gsc_state s = started(p);
        for (uint32_t i = 0; gsc_format_name(i); i++) {
            Format f = {gsc_format_name(i), false, of_any};
            gsc_entry entries[64];
            uint64_t count = 0;
            f.saves = gsc_state_export(f.name, nullptr, &p, &s, entries, 64, &count, nullptr, 0,
                                       nullptr, nullptr) == GSC_OK;
            for (const gsc_entry *e = entries; e < entries + count; e++)
                f.keys.insert(f.keys.end(), 3, e->key); /* more often than the others */
            formats.push_back(f);
        }
        return formats;
    }();
    return all;
}

void fuzz_formats(Source &source)
{
    if (source.one_in(4)) {
        gsc_policy p = preset_policy(random_preset(source));
        if (p.growth_interval)
            p.growth_interval = 2 + source.below(6);
        if (p.hysteresis)
            p.hysteresis = static_cast<uint32_t>(1 + source.below(3));
        describe = nullptr;
        return check_scaler(source, p, started(p));
    }
    const std::vector<Format> &all = formats();
    const Format &format = all[source.below(all.size())];
    std::vector<gsc_entry> entries;
    for (uint64_t n = source.below(24); n > 0; n--)
        entries.push_back(
            random_entry(source, source.one_in(8) ? all[source.below(all.size())] : format));
    if (entries.empty())
        entries.emplace_back();
    const char *const name = source.one_in(4) ? nullptr : format.name;
    const char *const prefixes[] = {nullptr, nullptr, "", "a", "b/c"};
    const char *const prefix = prefixes[source.below(std::size(prefixes))];
    gsc_policy given = GSC_POLICY_INIT;
    const bool has_policy = source.one_in(2);
    if (has_policy)
        given = preset_policy(random_preset(source));
    describe = [&] {
        std::ostringstream s;
        s << "format " << (name ? name : "?") << " prefix " << (prefix ? prefix : "?") << " policy "
          << has_policy << "\n";
        for (const gsc_entry &e : entries)
            s << std::string(e.key, strnlen(e.key, sizeof e.key)) << " kind " << e.kind << " "
              << e.value << "\n";
        return s.str();
    };
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_error err;
    std::vector<gsc_note> notes(entries.size() + 64);
    uint64_t noted = 42;
    std::memset(&state, 0x5a, sizeof state);
    std::memset(notes.data(), 0x5a, notes.size() * sizeof notes[0]);
    const gsc_state state_before = state;
    const gsc_policy policy_before = policy;
    const std::vector<gsc_note> notes_before = notes;
    const gsc_policy *const from = has_policy ? &given : nullptr;
    const bool settings = source.one_in(3);
    const gsc_status status =
        settings ? gsc_policy_import(format.name, prefix, entries.data(), entries.size(), from,
                                     &policy, notes.data(), notes.size(), &noted, &err)
                 : gsc_state_import(name, prefix, entries.data(), entries.size(), from, &policy,
                                    &state, notes.data(), notes.size(), &noted, &err);
    if (status != GSC_OK) {
        check_error(err, status);
        claim(same(policy, policy_before) && same(state, state_before) && noted == 42 &&
                  std::memcmp(notes.data(), notes_before.data(), notes.size() * sizeof notes[0]) ==
                      0,
              "a refusal changes nothing");
        return;
    }
    notes.resize(noted);
    check_notes(notes, entries.size());
    if (settings)
        claim(gsc_policy_check(&policy, &err) == GSC_OK, "the policy can be used", err.message);
    else
        check_scaler(source, policy, state);
}
