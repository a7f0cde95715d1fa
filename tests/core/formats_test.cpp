// SPDX-License-Identifier: MIT
// Checkpoints and settings of frameworks: what each one saves is read, recognised and written
// again, what is lost or missing is told, and what no scaler can have is refused by its key with
// nothing changed.
#include <map>

#include "support.hpp"

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan_ = std::numeric_limits<double>::quiet_NaN();

gsc_entry number(const std::string &key, double value)
{
    gsc_entry e = {};
    std::snprintf(e.key, sizeof e.key, "%s", key.c_str());
    e.kind = GSC_ENTRY_NUMBER;
    e.value = value;
    return e;
}

gsc_entry text(const std::string &key, const std::string &value)
{
    gsc_entry e = number(key, 0);
    e.kind = GSC_ENTRY_TEXT;
    std::snprintf(e.text, sizeof e.text, "%s", value.c_str());
    return e;
}

gsc_entry empty(const std::string &key)
{
    gsc_entry e = number(key, 0);
    e.kind = GSC_ENTRY_NULL;
    return e;
}

using Entries = std::vector<gsc_entry>;

/* "scale 8 counter 3 loss_scale dynamic" */
Entries entries_of(const std::string &words)
{
    std::istringstream in(words);
    Entries list;
    std::string key, word;
    while (in >> key >> word) {
        char *end;
        const double value = std::strtod(word.c_str(), &end);
        list.push_back(*end ? text(key, word) : number(key, value));
    }
    return list;
}

gsc_policy preset(const char *name)
{
    gsc_policy p = GSC_POLICY_INIT;
    REQUIRE(gsc_policy_preset(name, &p, nullptr) == GSC_OK);
    return p;
}

struct Read {
    gsc_status status;
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state = {};
    std::vector<gsc_note> notes;
    gsc_error err = {};

    const gsc_note *note(uint32_t kind, const std::string &field = "") const
    {
        for (const gsc_note &n : notes)
            if (n.kind == kind && (field.empty() || field == n.field))
                return &n;
        return nullptr;
    }
};

Read import(const char *format, const Entries &list, const gsc_policy *policy = nullptr,
            const char *prefix = nullptr)
{
    Read r;
    r.notes.resize(list.size() + 64);
    const gsc_entry none = {};
    uint64_t count = 0;
    r.status =
        gsc_state_import(format, prefix, list.empty() ? &none : list.data(), list.size(), policy,
                         &r.policy, &r.state, r.notes.data(), r.notes.size(), &count, &r.err);
    r.notes.resize(count);
    return r;
}

Read settings(const char *format, const Entries &list, const gsc_policy *policy = nullptr,
              const char *prefix = nullptr)
{
    Read r;
    r.notes.resize(list.size() + 64);
    uint64_t count = 0;
    r.status = gsc_policy_import(format, prefix, list.data(), list.size(), policy, &r.policy,
                                 r.notes.data(), r.notes.size(), &count, &r.err);
    r.notes.resize(count);
    return r;
}

struct Written {
    Entries entries;
    std::vector<gsc_note> notes;

    std::string words() const
    {
        std::ostringstream out;
        for (const gsc_entry &e : entries)
            out << (&e == &entries[0] ? "" : " ") << e.key << " " << e.value;
        return out.str();
    }
    bool lost(const std::string &field) const
    {
        return std::any_of(notes.begin(), notes.end(), [&](const gsc_note &n) {
            return n.kind == GSC_NOTE_LOST && field == n.field;
        });
    }
};

Written write(const char *format, const gsc_policy &p, const gsc_state &state,
              const char *prefix = nullptr)
{
    Written w;
    w.entries.resize(64);
    w.notes.resize(64);
    gsc_error err;
    uint64_t entries = 0, notes = 0;
    const gsc_status status =
        gsc_state_export(format, prefix, &p, &state, w.entries.data(), w.entries.size(), &entries,
                         w.notes.data(), w.notes.size(), &notes, &err);
    INFO(err.message);
    REQUIRE(status == GSC_OK);
    w.entries.resize(entries);
    w.notes.resize(notes);
    return w;
}

gsc_state started(const gsc_policy &p)
{
    gsc_state s;
    REQUIRE(gsc_state_init(nullptr, &p, &s, nullptr) == GSC_OK);
    return s;
}

double step(const gsc_policy &p, gsc_state &s, bool overflow)
{
    gsc_report report = measured;
    report.overflow = overflow;
    report.found_inf = overflow ? 1.0f : 0.0f;
    report.amax = 0.5;
    REQUIRE(gsc_state_update(nullptr, &p, &s, &report, &s, nullptr) == GSC_OK);
    return s.factor.scale;
}

/* What each framework really saved, and what it means. */
struct Sample {
    const char *format, *entries;
    double scale;
    int64_t good, overflows, steps;
    uint64_t interval;
    const char *recognised; /* without the name; nullptr: several fit */
};
const Sample samples[] = {
    {"torch",
     "scale 771.75 growth_factor 1.5 backoff_factor 0.7 growth_interval 4 _growth_tracker 2",
     771.75, 2, 0, 2, 4, "torch"},
    {"nemo",
     "scale 524288 growth_factor 2 backoff_factor 0.5 growth_interval 4 _growth_tracker 1 "
     "_hysteresis_tracker 1",
     524288, 1, 0, 1, 4, "nemo"},
    {"apex", "loss_scaler0.loss_scale 2048 loss_scaler0.unskipped 3", 2048, 3, 0, 3, 2000, "apex"},
    {"megatron", "scale 262144 growth_tracker 2 hysteresis_tracker 1", 262144, 2, 1, 2, 1000,
     "megatron"},
    {"colossalai", "scale 8192 growth_factor 2 backoff_factor 0.5 hysteresis 3", 8192, 0, 0, 0,
     1000, "colossalai"},
    {"deepspeed",
     "cur_scale 262144 cur_iter 18 last_overflow_iter 15 scale_factor 2 scale_window 4 min_scale 1 "
     "delayed_shift 3 cur_hysteresis 1 consecutive_hysteresis 0 raise_error_at_min_scale 1 dynamic "
     "1",
     262144, 2, 2, 2, 4, "deepspeed"},
    {"deepspeed_fp16",
     "dynamic_loss_scale 1 cur_scale 2048 cur_iter 32 last_overflow_iter 14 scale_factor 2 "
     "scale_window 7",
     2048, 17, 0, 17, 7, "deepspeed_fp16"},
    {"fairseq", "loss_scale 2048", 2048, 0, 0, 0, 2000, nullptr},
    {"fairscale", "loss_scale 2048", 2048, 0, 0, 0, 2000, nullptr},
    {"paddle", "loss_scaling_0 2048 num_good_steps_0 3 num_bad_steps_0 0", 2048, 3, 0, 3, 2000,
     "paddle"},
    {"paddle_dygraph",
     "scale 262144 incr_ratio 2 decr_ratio 0.5 incr_every_n_steps 4 decr_every_n_nan_or_inf 3 "
     "incr_count 0 "
     "decr_count 2 use_dynamic_loss_scaling 1",
     262144, 0, 2, 0, 4, "paddle_dygraph"},
    {"cerebras",
     "loss_scale 8192 steps_since_rescale 2 overflows_since_rescale 1 num_skipped_steps 3", 8192, 0,
     1, 2, 2000, "cerebras"},
    {"cerebras_cb16",
     "loss_scale 8192 steps_since_rescale 2 overflows_since_rescale 0 num_skipped_steps 3", 8192, 2,
     0, 2, 2000, "cerebras"},
    {"jmp", "loss_scale 2048 counter 3", 2048, 3, 0, 3, 2000, nullptr},
    {"axon", "loss_scale 2048 counter 3", 2048, 3, 0, 3, 2000, nullptr},
    {"eformer", "loss_scale 2048 counter 3 period 7 factor 2 min_loss_scale 0.125", 2048, 3, 0, 3,
     7, "jmp"},
    {"mindspore", "scale_value 2048 counter 3", 2048, 3, 0, 3, 2000, "mindspore"},
    {"flax", "scale 2048 fin_steps 3", 2048, 3, 0, 3, 2000, "flax"},
    {"keras", "dynamic_scale 2048 step_counter 3", 2048, 3, 0, 3, 2000, "keras"},
    {"tf_keras", "current_loss_scale 2048 good_steps 3", 2048, 3, 0, 3, 2000, "tf_keras"},
    {"mxnet",
     "_loss_scale 1024 _next_loss_scale 512 _max_loss_scale 16777216 _scale_seq_len 7 _unskipped 0",
     1024, 0, 0, 0, 7, "mxnet"},
    {"emily",
     "scale 2048 counter 3 growth_factor 2 backoff_factor 0.5 growth_interval 7 min_scale 1", 2048,
     3, 0, 3, 7, "emily"},
};

/* Settings that the tests of a format need and its checkpoint lacks. */
gsc_policy policy_of(const Sample &sample)
{
    gsc_policy p =
        preset(std::string(sample.format) == "deepspeed_fp16" ? "deepspeed" : sample.format);
    if (std::string(sample.format) == "nemo")
        p.hysteresis = 1;
    return p;
}

bool saves(const char *format)
{
    gsc_policy p = preset("torch");
    const gsc_state s = started(p);
    return gsc_state_export(format, nullptr, &p, &s, nullptr, 0, nullptr, nullptr, 0, nullptr,
                            nullptr) == GSC_OK;
}

} // namespace

TEST_CASE("every format has a name, a sentence and a sample here", "[formats]")
{
    uint32_t n = 0;
    for (; gsc_format_name(n); n++) {
        const std::string name = gsc_format_name(n);
        INFO(name);
        CHECK(std::string(gsc_format_summary(n)).back() == '.');
        const bool sampled = std::any_of(std::begin(samples), std::end(samples),
                                         [&](const Sample &s) { return name == s.format; });
        CHECK((sampled || name == "gradscaler" || name == "roundpipe" || !saves(name.c_str())));
    }
    CHECK(n == 27);
    CHECK(gsc_format_summary(n) == nullptr);
    /* A preset with a framework's scale is a format, so that its settings can be read; of a guard
     * alone, and of none, there is nothing but our fields. */
    for (uint32_t i = 0; gsc_preset_name(i); i++) {
        const std::string name = gsc_preset_name(i);
        gsc_policy p = GSC_POLICY_INIT;
        bool found = false;
        for (uint32_t k = 0; k < n; k++)
            found |= name == gsc_format_name(k);
        /* What only guards has no state of its own; its settings are read by the fields' names. */
        found |= gsc_policy_import(name.c_str(), nullptr, nullptr, 0, nullptr, &p, nullptr, 0,
                                   nullptr, nullptr) == GSC_OK &&
                 same(p, preset(name.c_str()));
        INFO(name);
        CHECK(found);
    }
}

TEST_CASE("a checkpoint of each framework is read, and written unchanged", "[formats]")
{
    for (const Sample &sample : samples) {
        INFO(sample.format);
        const gsc_policy p = policy_of(sample);
        const Read r = import(sample.format, entries_of(sample.entries), &p);
        INFO(r.err.message);
        REQUIRE(r.status == GSC_OK);
        CHECK(r.state.factor.scale == sample.scale);
        CHECK(r.state.factor.inverse == 1 / sample.scale);
        CHECK(r.state.good_steps == sample.good);
        CHECK(r.state.overflows_since_reset == sample.overflows);
        CHECK(r.state.steps_since_change == sample.steps);
        CHECK(r.policy.growth_interval == sample.interval);
        CHECK_FALSE(r.note(GSC_NOTE_IGNORED));
        CHECK_FALSE(r.note(GSC_NOTE_CHANGED));
        const Written w = write(sample.format, r.policy, r.state);
        const Read again = import(sample.format, w.entries, &p);
        REQUIRE(again.status == GSC_OK);
        CHECK(same(again.state, r.state));
        CHECK(same(again.policy, r.policy));
        if (std::string(sample.format).find("deepspeed") ==
            0) /* the number of the step is its own */
            continue;
        Entries saved = w.entries;
        for (gsc_entry &e : saved) {
            e.kind = GSC_ENTRY_NUMBER;
            e.integer = 0;
        }
        for (const gsc_entry &e : entries_of(sample.entries))
            CHECK(std::any_of(saved.begin(), saved.end(),
                              [&](const gsc_entry &o) { return same(e, o); }));
    }
}

TEST_CASE("a format is recognised by its keys, and several that fit are named", "[formats]")
{
    for (const Sample &sample : samples) {
        INFO(sample.format);
        const Entries list = entries_of(sample.entries);
        const Read r = import(nullptr, list);
        INFO(r.err.message);
        if (sample.recognised) {
            REQUIRE(r.status == GSC_OK);
            CHECK(r.notes[0].kind == GSC_NOTE_FORMAT);
            CHECK(std::string(r.notes[0].field) == sample.recognised);
            continue;
        }
        CHECK(r.status == GSC_ERROR_FORMAT);
        CHECK(std::string(r.err.message).find(sample.format) != std::string::npos);
        /* With a policy they mean the same. */
        const gsc_policy p = preset("torch");
        const Read given = import(nullptr, list, &p);
        REQUIRE(given.status == GSC_OK);
        CHECK(std::string(given.notes[0].message).find(sample.format) != std::string::npos);
    }
    const Read torch = import(nullptr, entries_of(samples[0].entries));
    CHECK(std::string(torch.notes[0].message) == "read as torch; the same keys have roundpipe");
    for (const char *none : {"lr 0.1", "scale 8", "lr 0.1 betas 3 growth_interval 5"}) {
        const Read r = import(nullptr, entries_of(none));
        CHECK(r.status == GSC_ERROR_FORMAT);
        CHECK(std::string(r.err.message) == "entries have the keys of no format that is known");
    }
}

TEST_CASE("the attributes of flax's DynamicScale are flax's, with its settings", "[formats]")
{
    const Entries list = entries_of("growth_factor 4 backoff_factor 0.25 growth_interval 7 "
                                    "fin_steps 3 scale 2048 minimum_scale 2");
    for (const char *format : {(const char *)nullptr, "flax"}) {
        const Read r = import(format, list);
        INFO(r.err.message);
        REQUIRE(r.status == GSC_OK);
        CHECK((format || std::string(r.notes[0].field) == "flax"));
        CHECK(r.state.good_steps == 3);
        CHECK(r.policy.growth_factor == 4);
        CHECK(r.policy.backoff_factor == 0.25);
        CHECK(r.policy.growth_interval == 7);
        CHECK(r.policy.min_scale == 2);
        CHECK_FALSE(r.note(GSC_NOTE_IGNORED));
    }
    /* torch's without the count stay torch's. */
    const Read torch =
        import(nullptr, entries_of("scale 8 growth_factor 2 backoff_factor 0.5 growth_interval 4"));
    CHECK(std::string(torch.notes[0].field) == "torch");
}

TEST_CASE("a scaler is found in a nested checkpoint", "[formats]")
{
    const Entries list = entries_of(
        "epoch 3 model.scale.weight 5 optimizer.state.0.step 7 amp/grad_scaler.scale 2048 "
        "amp/grad_scaler.growth_tracker 3 amp/grad_scaler.hysteresis_tracker 2");
    for (const char *format : {(const char *)nullptr, "megatron"})
        for (const char *prefix : {(const char *)nullptr, "amp/grad_scaler"}) {
            const Read r = import(format, list, nullptr, prefix);
            INFO(r.err.message);
            REQUIRE(r.status == GSC_OK);
            CHECK(r.state.factor.scale == 2048);
            CHECK(r.state.good_steps == 3);
            CHECK_FALSE(r.note(GSC_NOTE_IGNORED));
        }
    CHECK(import("megatron", list, nullptr, "").status == GSC_ERROR_FORMAT);
    CHECK(import("megatron", list, nullptr, "amp").status == GSC_ERROR_FORMAT);
}

TEST_CASE("below more than two names a scaler is not recognised, and its prefix is told",
          "[formats]")
{
    const auto below = [](const std::string &place, const Sample &sample) {
        Entries list = entries_of("epoch 3 model.scale 0.5 optimizer.state.0.step 7");
        for (const gsc_entry &e : entries_of(sample.entries))
            list.push_back(number(place + e.key, e.value));
        return list;
    };
    for (const Sample &sample : samples) {
        if (!sample.recognised || std::string(sample.format) == "apex")
            continue;
        INFO(sample.format);
        for (const char *place : {"", "a.", "a.b.", "a/b."})
            CHECK(import(nullptr, below(place, sample)).state.factor.scale == sample.scale);
        const Entries deep = below("a.b/c.", sample);
        for (const char *format : {(const char *)nullptr, sample.recognised}) {
            const Read r = import(format, deep);
            CHECK(r.status == GSC_ERROR_FORMAT);
            CHECK(r.err.argument == 2);
            CHECK(std::string(r.err.message) ==
                  "entries have a scaler below more than two names: give the prefix \"a.b/c\"");
            CHECK(import(format, deep, nullptr, "a.b/c").state.factor.scale == sample.scale);
        }
    }
    /* One below two names is the one; a place of any length is told whole. */
    Entries list = below("a.b.c.", samples[0]);
    for (const gsc_entry &e : entries_of("scale 8 growth_tracker 3 hysteresis_tracker 2"))
        list.push_back(number(std::string("amp.scaler.") + e.key, e.value));
    CHECK(std::string(import(nullptr, list).notes[0].message) ==
          "read as megatron from \"amp.scaler\"");
    const std::string place = "a.b." + std::string(88, 'c');
    const Read far = import(nullptr, below(place + ".", samples[0]));
    CHECK(std::string(far.err.message).find("\"" + place + "\"") != std::string::npos);
}

TEST_CASE("a scaler is found among other things that are called scale", "[formats]")
{
    Entries list;
    for (int i = 0; i < 500; i++)
        list.push_back(number("model." + std::to_string(i) + ".scale", 0.5));
    for (const gsc_entry &e : entries_of(samples[0].entries))
        list.push_back(number(std::string("scaler.") + e.key, e.value));
    for (const char *format : {(const char *)nullptr, "torch"}) {
        const Read r = import(format, list);
        INFO(r.err.message);
        REQUIRE(r.status == GSC_OK);
        CHECK(r.state.factor.scale == 771.75);
        CHECK(r.state.good_steps == 2);
    }
}

TEST_CASE("of several losses one is read at a time", "[formats]")
{
    const Entries list = entries_of("loss_scaler0.loss_scale 8 loss_scaler0.unskipped 3 "
                                    "loss_scaler1.loss_scale 16 loss_scaler1.unskipped 4");
    for (const char *format : {(const char *)nullptr, "apex"}) {
        const Read several = import(format, list);
        CHECK(several.status == GSC_ERROR_FORMAT);
        CHECK(std::string(several.err.message) == "entries hold several scalers, \"loss_scaler0\" "
                                                  "and \"loss_scaler1\": say which by prefix");
        CHECK(import(format, list, nullptr, "loss_scaler1").state.factor.scale == 16);
        CHECK(import(format, list, nullptr, "loss_scaler1").state.good_steps == 4);
    }
    const gsc_policy p = preset("apex");
    CHECK(write("apex", p, started(p), "loss_scaler1").words() ==
          "loss_scaler1.loss_scale 65536 loss_scaler1.unskipped 0");
    CHECK(write("apex", p, started(p), "").words() == "loss_scale 65536 unskipped 0");
}

TEST_CASE("scalers of different formats are as many as those of one", "[formats]")
{
    const gsc_policy p = preset("torch");
    const auto below = [&](const char *format, const char *prefix) {
        return write(format, p, started(p), prefix).entries;
    };
    const std::pair<const char *, const char *> pairs[] = {{"torch", "apex"},
                                                           {"torch", "flax"},
                                                           {"torch", "megatron"},
                                                           {"gradscaler", "torch"},
                                                           {"deepspeed", "torch"}};
    for (const auto &[one, other] : pairs) {
        INFO(one << " and " << other);
        Entries list = below(one, "a.one");
        for (const gsc_entry &e : below(other, "b.other"))
            list.push_back(e);
        const Read r = import(nullptr, list);
        CHECK(r.status == GSC_ERROR_FORMAT);
        const std::string message = r.err.message;
        CHECK(message.find("entries hold several scalers, ") == 0);
        CHECK(message.find("\"a.one\"") != std::string::npos);
        CHECK(message.find("\"b.other\"") != std::string::npos);
        CHECK(import(nullptr, list, nullptr, "a.one").notes[0].field == std::string(one));
        CHECK(import(nullptr, list, nullptr, "b.other").notes[0].field == std::string(other));
        CHECK(import(other, list).status == GSC_OK);
    }
    /* A number of the log is none. */
    Entries list = below("torch", "scaler");
    list.push_back(number("log.loss_scale", 128));
    CHECK(std::string(import(nullptr, list).notes[0].message) ==
          "read as torch from \"scaler\"; the same keys have roundpipe");
}

TEST_CASE("a single deep key is a scaler only with its prefix", "[formats]")
{
    const Entries model = entries_of("model.scale 0.5 model.weight 3");
    for (const char *format : {"torch", "megatron", "flax", "gradscaler"}) {
        INFO(format);
        const Read r = import(format, model);
        CHECK(r.status == GSC_ERROR_FORMAT);
        CHECK(
            std::string(r.err.message) ==
            "entries have only a \"scale\" below \"model\": if it is a scaler's, give this prefix");
        CHECK(import(format, model, nullptr, "model").state.factor.scale == 0.5);
        CHECK(import(format, entries_of("scale 0.5")).state.factor.scale == 0.5);
    }
    /* fairseq and Cerebras save no more. */
    const Entries last = entries_of("last_optimizer_state.loss_scale 128 epoch 3");
    for (const char *format : {"fairseq", "fairscale", "cerebras"})
        CHECK(import(format, last).state.factor.scale == 128);
    const gsc_policy p = preset("torch");
    const Read r = import(nullptr, last, &p);
    CHECK(std::string(r.err.message) ==
          "entries have only a \"loss_scale\" below \"last_optimizer_state\": if it is a scaler's, "
          "give this prefix and the format");
    CHECK(import(nullptr, last, &p, "last_optimizer_state").state.factor.scale == 128);
    /* A key that nothing else has. */
    CHECK(import(nullptr, entries_of("zero.cur_scale 128")).state.factor.scale == 128);
    CHECK(import("deepspeed", entries_of("zero.cur_scale 128")).state.factor.scale == 128);
}

TEST_CASE("a wrong prefix of a checkpoint is refused with the places that there are", "[formats]")
{
    const Entries list =
        entries_of("amp.loss_scaler0.loss_scale 8 amp.loss_scaler0.unskipped 3 "
                   "amp.loss_scaler1.loss_scale 16 amp.loss_scaler1.unskipped 4 model.weight 1");
    for (const char *format : {(const char *)nullptr, "apex"}) {
        const Read r = import(format, list, nullptr, "loss_scaler1");
        CHECK(r.status == GSC_ERROR_FORMAT);
        CHECK(std::string(r.err.message) == "prefix is \"loss_scaler1\": no key begins with it; "
                                            "there is \"amp.loss_scaler0\", \"amp.loss_scaler1\"");
    }
    CHECK(std::string(import("apex", list, nullptr, "model").err.message) ==
          "entries have no \"loss_scale\" below \"model\", the scale of the format apex; there is "
          "\"amp.loss_scaler0\", \"amp.loss_scaler1\"");
    CHECK(std::string(import(nullptr, list, nullptr, "model").err.message) ==
          "entries have the keys of no format that is known; there is \"amp.loss_scaler0\", "
          "\"amp.loss_scaler1\"");
    CHECK(import("cerebras", list, nullptr, "loss_scaler1").status == GSC_ERROR_FORMAT);
}

TEST_CASE("keys that are nearly those of a format, and none at all, have sentences", "[formats]")
{
    const std::string torch = "growth_factor 2 backoff_factor 0.5 growth_interval 4 ";
    for (const char *prefix : {(const char *)nullptr, ""})
        CHECK(std::string(import(nullptr, entries_of(torch + "_growth_tracker 3"), nullptr, prefix)
                              .err.message) ==
              "entries have the keys of no format that is known: they "
              "look like those of torch, without \"scale\"");
    CHECK(std::string(
              import(nullptr, entries_of("epoch 3 a.growth_tracker 3 a.hysteresis_tracker 1"))
                  .err.message) == "entries have the keys of no format that is known: they look "
                                   "like those of megatron, without \"scale\" below \"a\"");
    for (const char *format : {(const char *)nullptr, "torch"})
        for (const Entries &none : {Entries(), Entries(3)})
            CHECK(std::string(import(format, none).err.message) ==
                  "entries are none: a scaler that is switched off saves none");
}

TEST_CASE("Paddle's variables end with any number, or none", "[formats]")
{
    for (const char *end : {"", "_0", "_12"}) {
        const Entries list = {number(std::string("loss_scaling") + end, 8),
                              number(std::string("num_good_steps") + end, 3),
                              number(std::string("num_bad_steps") + end, 1)};
        CHECK(import(nullptr, list).state.good_steps == 3);
        CHECK(import("paddle", list).state.overflows_since_reset == 1);
    }
    for (const char *end : {"_", "_x", "_0_", "0"})
        CHECK(import("paddle", {number(std::string("loss_scaling") + end, 8)}).status ==
              GSC_ERROR_FORMAT);
}

TEST_CASE("the misspelt key of NeMo's loader is also read and written", "[formats]")
{
    gsc_policy p = preset("nemo");
    p.hysteresis = 3;
    Entries list =
        entries_of("scale 8 growth_factor 2 backoff_factor 0.5 growth_interval 4 _growth_tracker 0 "
                   "_hysterisis_tracker 1");
    CHECK(import("nemo", list, &p).state.overflows_since_reset == 2);
    list.push_back(number("_hysteresis_tracker", 2)); /* the one that it saves counts */
    CHECK(import("nemo", list, &p).state.overflows_since_reset == 1);
    CHECK(write("nemo", p, import("nemo", list, &p).state).words().find("_hysterisis_tracker 2") !=
          std::string::npos);
}

TEST_CASE("a checkpoint without dynamic scaling is a scale that stays", "[formats]")
{
    for (const char *words :
         {"cur_scale 128 dynamic 0", "dynamic_loss_scale 0 cur_scale 128 cur_iter 5",
          "scale 128 incr_ratio 2 decr_ratio 0.5 incr_every_n_steps 4 decr_every_n_nan_or_inf 3 "
          "incr_count 0 decr_count 2 use_dynamic_loss_scaling 0"}) {
        INFO(words);
        Read r = import(nullptr, entries_of(words));
        REQUIRE(r.status == GSC_OK);
        for (int i = 0; i < 3000; i++)
            REQUIRE(step(r.policy, r.state, i % 7 == 0) == 128);
    }
    /* Cerebras saves the scale alone then, and before 2.1 nothing. */
    const gsc_policy fixed = preset("static");
    CHECK(import("cerebras", entries_of("loss_scale 128"), &fixed).state.factor.scale == 128);
    const Read none = import("cerebras", {});
    REQUIRE(none.status == GSC_OK);
    CHECK(none.state.factor.scale == 0x1p15);
    CHECK(none.note(GSC_NOTE_MISSING, "scale"));
}

TEST_CASE("a checkpoint is read into another policy, with notes on missing keys", "[formats]")
{
    const gsc_policy recommended = preset("recommended");
    const Read r = import(
        "torch",
        entries_of(
            "scale 4096 growth_factor 4 backoff_factor 0.25 growth_interval 7 _growth_tracker 3"),
        &recommended);
    REQUIRE(r.status == GSC_OK);
    CHECK(r.policy.growth_factor == 4);
    CHECK(r.policy.backoff_factor == 0.25);
    CHECK(r.policy.growth_interval == 7);
    CHECK(r.policy.min_scale == 0x1p-14);
    CHECK(r.policy.max_scale == 0x1p24);
    for (const char *field : {"min_scale", "max_scale", "floor_rule", "ceiling_rule",
                              "max_failed_backoffs", "growth_rule"}) {
        INFO(field);
        const gsc_note *note = r.note(GSC_NOTE_MISSING, field);
        REQUIRE(note);
        CHECK(note->entry == -1);
    }
    CHECK(r.note(GSC_NOTE_MISSING, "max_scale")->value == 0x1p24);
    CHECK(std::string(r.note(GSC_NOTE_MISSING, "max_scale")->message) ==
          "max_scale is not among the entries: it is 16777216, as in the policy");
    CHECK(std::string(import("cerebras", entries_of("loss_scale 8"), nullptr)
                          .note(GSC_NOTE_MISSING, "overflow_tolerance")
                          ->message) ==
          "overflow_tolerance is not among the entries: it is 0, as in the policy");
    /* As few digits as it takes. */
    gsc_policy tenth = preset("fairseq");
    tenth.overflow_tolerance = 0.1;
    CHECK(std::string(import("fairseq", entries_of("loss_scale 8"), &tenth)
                          .note(GSC_NOTE_MISSING, "overflow_tolerance")
                          ->message) ==
          "overflow_tolerance is not among the entries: it is 0.1, as in the policy");
    /* Of what it says nothing is told. */
    for (const char *field : {"growth_factor", "backoff_factor", "growth_interval", "good_steps"})
        CHECK_FALSE(r.note(GSC_NOTE_MISSING, field));
    /* Into torch's own rules all is there. */
    CHECK(import("torch", entries_of(samples[0].entries)).notes.empty());
}

TEST_CASE("a count that a policy needs and a checkpoint lacks follows from those that are there",
          "[formats]")
{
    /* Cerebras counts all steps, torch good ones. */
    const gsc_policy torch = preset("torch"), cerebras = preset("cerebras");
    CHECK(import("cerebras",
                 entries_of("loss_scale 8 steps_since_rescale 5 overflows_since_rescale 0"), &torch)
              .state.good_steps == 5);
    CHECK(import("cerebras",
                 entries_of("loss_scale 8 steps_since_rescale 5 overflows_since_rescale 1"), &torch)
              .state.good_steps == 0);
    const Read r = import("torch", entries_of(samples[0].entries), &cerebras);
    CHECK(r.state.steps_since_change == 2);
    CHECK(r.note(GSC_NOTE_MISSING, "steps_since_change")->value == 2);
    const gsc_policy roundpipe = preset("roundpipe");
    CHECK(import("torch", entries_of(samples[0].entries), &roundpipe)
              .note(GSC_NOTE_MISSING, "next_scale"));
}

TEST_CASE("a number with another meaning in the policy is converted", "[formats]")
{
    const std::string past =
        "scale 8 growth_factor 2 backoff_factor 0.5 growth_interval 4 _growth_tracker ";
    const gsc_policy recommended = preset("recommended");
    /* torch itself never grows from there until an overflow; at or past the interval is due at
     * once. */
    Read r = import("torch", entries_of(past + "9"));
    REQUIRE(r.note(GSC_NOTE_CHANGED, "good_steps"));
    CHECK(r.note(GSC_NOTE_CHANGED, "good_steps")->entry == 4);
    CHECK(
        std::string(r.notes[0].message) ==
        "\"_growth_tracker\" makes good_steps 9, where growth_interval is 4: the scale grows only "
        "after an overflow, which starts it anew");
    for (int i = 0; i < 20; i++)
        CHECK(step(r.policy, r.state, false) == 8);
    r = import("torch", entries_of(past + "9"), &recommended);
    REQUIRE(r.note(GSC_NOTE_CHANGED, "good_steps"));
    CHECK(step(r.policy, r.state, false) == 16);
    CHECK_FALSE(import("torch", entries_of(past + "3")).note(GSC_NOTE_CHANGED));
    /* More is left of the hysteresis than there is. */
    const Read left =
        import("megatron", entries_of("scale 8 growth_tracker 0 hysteresis_tracker 5"));
    CHECK(left.state.overflows_since_reset == 0);
    CHECK(left.note(GSC_NOTE_CHANGED, "overflows_since_reset")->entry == 2);
    CHECK(left.note(GSC_NOTE_CHANGED, "overflows_since_reset")->value == 0);
    /* Used up: more overflows than it has. */
    CHECK(import("megatron", entries_of("scale 8 growth_tracker 0 hysteresis_tracker -3"))
              .state.overflows_since_reset == 5);
    for (const char *left : {"1.5", "4.5", "-0.5", "1e30", "inf"})
        CHECK(std::string(import("megatron", entries_of("scale 8 growth_tracker 0 "
                                                        "hysteresis_tracker " +
                                                        std::string(left)))
                              .err.message)
                  .find("it must be a whole number") != std::string::npos);
    /* A scale of doubles in a policy of floats; one to come where there is no delay. */
    const gsc_policy torch = preset("torch");
    const Read rounded = import("emily", {number("scale", 0.1), number("counter", 0)}, &torch);
    CHECK(rounded.state.factor.scale == static_cast<double>(0.1f));
    CHECK(rounded.note(GSC_NOTE_CHANGED, "scale")->value == static_cast<double>(0.1f));
    const Read newest =
        import("mxnet", entries_of("_loss_scale 1024 _next_loss_scale 512 _unskipped 0"), &torch);
    CHECK(newest.state.factor.scale == 512);
    CHECK(newest.note(GSC_NOTE_CHANGED, "scale")->entry == 0);
}

TEST_CASE("a scale that the peer can reach and nobody can use is read, and said", "[formats]")
{
    for (double scale : {0.0, inf}) {
        const Entries list = {number("scale", scale), number("growth_tracker", 3),
                              number("hysteresis_tracker", 2)};
        const Read r = import("megatron", list);
        REQUIRE(r.status == GSC_OK);
        CHECK(r.state.factor.scale == scale);
        REQUIRE(r.note(GSC_NOTE_UNUSABLE, "scale"));
        CHECK(r.note(GSC_NOTE_UNUSABLE, "scale")->value == scale);
        const Written w = write("megatron", r.policy, r.state);
        CHECK(w.entries[0].value == scale);
    }
}

TEST_CASE("an impossible value is refused by its key, and nothing is changed", "[formats]")
{
    const Entries good = entries_of(
        "scale 8 growth_factor 2 backoff_factor 0.5 growth_interval 4 _growth_tracker 3");
    struct Bad {
        int64_t index;
        gsc_entry entry;
        const char *says;
    };
    const Bad bad[] = {
        {0, number("scale", nan_), "is nan: it must be a number"},
        {0, number("scale", -1), "is -1: it must be a scale: 0 or above"},
        {0, number("scale", -inf), "is -inf: it must be a scale: 0 or above"},
        {0, number("scale", 1e300), "is 1e+300: it must be at most the largest float"},
        {0, text("scale", "big"), "is \"big\": it must be a number"},
        {0, empty("scale"), "is empty: it must be a number"},
        {1, number("growth_factor", 0.5), "is 0.5: it must be finite and at least 1"},
        {1, number("growth_factor", inf), "is inf: it must be finite and at least 1"},
        {2, number("backoff_factor", 2), "is 2: it must be from 0 to 1"},
        {2, number("backoff_factor", nan_), "is nan: it must be a number"},
        {3, number("growth_interval", 2.5), "is 2.5: it must be a whole number"},
        {3, number("growth_interval", -4),
         "is -4: it must be a whole number from 0 to 2^64 - 2^11"},
        {3, number("growth_interval", 1e30), "is 1e+30: it must be a whole number"},
        {4, number("_growth_tracker", -1), "is -1: it must be a whole number from 0 to 2^62"},
        {4, number("_growth_tracker", 0.25), "is 0.25: it must be a whole number"},
        {4, number("_growth_tracker", inf), "is inf: it must be a whole number"},
        {4, empty("_growth_tracker"), "is empty: it must be a number"},
    };
    for (const Bad &b : bad) {
        Entries list = good;
        list[static_cast<size_t>(b.index)] = b.entry;
        INFO(b.entry.key << " " << b.says);
        gsc_policy policy = GSC_POLICY_INIT;
        gsc_state state;
        std::vector<gsc_note> notes(100);
        gsc_error err;
        std::memset(&state, 0x5a, sizeof state);
        std::memset(notes.data(), 0x5a, notes.size() * sizeof notes[0]);
        uint64_t counted = 77;
        const gsc_policy policy_before = policy;
        const gsc_state state_before = state;
        const std::vector<gsc_note> notes_before = notes;
        CHECK(gsc_state_import("torch", nullptr, list.data(), list.size(), nullptr, &policy, &state,
                               notes.data(), notes.size(), &counted, &err) == GSC_ERROR_VALUE);
        CHECK(counted == 77);
        CHECK(err.argument == 2);
        CHECK(err.index == b.index);
        CHECK(std::string(err.name) == "entries");
        CHECK(std::string(err.message).find(std::string("of \"") + b.entry.key + "\" " + b.says) !=
              std::string::npos);
        CHECK(same(policy, policy_before));
        CHECK(same(state, state_before));
        CHECK(std::memcmp(notes.data(), notes_before.data(), notes.size() * sizeof notes[0]) == 0);
    }
    Entries list(good.begin() + 1, good.end());
    CHECK(std::string(import("torch", list).err.message) ==
          "entries have no \"scale\", the scale of the format torch");
    list = good;
    list.push_back(good[0]);
    CHECK(std::string(import("torch", list).err.message) ==
          "entries[0].key is \"scale\", which is there twice");
    list = good;
    list[1].kind = 9;
    CHECK(std::string(import("torch", list).err.message).find("entries[1].kind is 9") == 0);
    list = {number("enabled", 2)};
    list[0].kind = GSC_ENTRY_BOOLEAN;
    CHECK(std::string(settings("torch", list).err.message) ==
          "entries[0].value is 2: it must be the same number as entries.integer, rounded");
    list[0].integer = 2;
    CHECK(std::string(settings("torch", list).err.message) ==
          "entries[0].integer is 2: it must be 0 or 1, as its kind is a boolean");
    CHECK(std::string(settings("megatron", {number("hysteresis", 0x1p40)}).err.message)
              .find("it must be a whole number from 0 to 4294967295") != std::string::npos);
    list = good;
    list[0].value = -0.0;
    CHECK_FALSE(std::signbit(import("torch", list).state.factor.scale));
    list = good;
    list[1].flags = 9;
    CHECK(std::string(import("torch", list).err.message).find("entries[1].flags is not 0") == 0);
    list = good;
    list[1].reserved[1] = 9;
    CHECK(std::string(import("torch", list).err.message).find("entries[1].reserved is not 0") == 0);
    list = good;
    std::memset(list[2].key, 'x', sizeof list[2].key);
    CHECK(std::string(import("torch", list).err.message)
              .find("entries[2].key does not end with a zero") == 0);
    list = {text("loss_scale", "x")};
    std::memset(list[0].text, 'x', sizeof list[0].text);
    CHECK(std::string(settings("apex", list).err.message)
              .find("entries[0].text does not end with a zero") == 0);
    CHECK(import("torch", Entries(65537)).status == GSC_ERROR_COUNT);
    CHECK(std::string(import("torhc", good).err.message) ==
          "format is \"torhc\", which is none: did you mean \"torch\"?");
    CHECK(std::string(import("oneflow", good).err.message) ==
          "format is \"oneflow\", which saves no state");
    CHECK(import("torch", good, nullptr, std::string(200, 'x').c_str()).status == GSC_ERROR_VALUE);
    const Read after =
        import("deepspeed", entries_of("cur_scale 8 cur_iter 5 last_overflow_iter 5"));
    CHECK(std::string(after.err.message)
              .find("\"last_overflow_iter\" is 5: it must be -1 or the number") !=
          std::string::npos);
}

TEST_CASE("unknown keys are in the notes, deeper ones are ignored", "[formats]")
{
    Entries list = entries_of(samples[0].entries);
    list.push_back(number("growth_intervall", 9));
    list.push_back(number("optimizer.lr", 9));
    list.push_back(gsc_entry{});
    const Read r = import("torch", list);
    REQUIRE(r.notes.size() == 1);
    CHECK(r.notes[0].kind == GSC_NOTE_IGNORED);
    CHECK(r.notes[0].entry == 5);
    CHECK(std::string(r.notes[0].message) ==
          "\"growth_intervall\" means nothing in the format torch: it is left out");
}

TEST_CASE("notes beyond the capacity are only counted, and too few entries are refused",
          "[formats]")
{
    const Entries list = entries_of("scale 8 growth_tracker 3 hysteresis_tracker 2");
    const Read all = import("megatron", list);
    REQUIRE(all.notes.size() == 5);
    for (uint64_t capacity = 0; capacity < 5; capacity++) {
        std::vector<gsc_note> notes(6);
        std::memset(notes.data(), 0x5a, notes.size() * sizeof notes[0]);
        gsc_policy p = GSC_POLICY_INIT;
        gsc_state s;
        uint64_t count;
        REQUIRE(gsc_state_import("megatron", nullptr, list.data(), 3, nullptr, &p, &s, notes.data(),
                                 capacity, &count, nullptr) == GSC_OK);
        CHECK(count == 5);
        for (uint64_t i = 0; i < capacity; i++)
            CHECK(same(notes[i], all.notes[i]));
        CHECK(notes[capacity].kind == 0x5a5a5a5a);
    }
    const gsc_policy p = preset("torch");
    const gsc_state s = started(p);
    gsc_entry entries[5];
    gsc_error err;
    uint64_t count = 0, lost = 0;
    const auto exported = [&](const char *prefix, const gsc_state &state, gsc_entry *at,
                              uint64_t capacity) {
        return gsc_state_export("torch", prefix, &p, &state, at, capacity, &count, nullptr, 0,
                                &lost, &err);
    };
    CHECK(exported(nullptr, s, nullptr, 0) == GSC_OK);
    CHECK(count == 5);
    CHECK(lost == write("torch", p, s).notes.size());
    CHECK(exported(nullptr, s, entries, 4) == GSC_ERROR_CAPACITY);
    CHECK(std::string(err.message) == "entries_capacity is 4: there are 5 entries");
    CHECK(exported(nullptr, s, entries, 5) == GSC_OK);
    CHECK(exported(std::string(155, 'x').c_str(), s, entries, 5) == GSC_ERROR_VALUE);
    gsc_state broken = s;
    broken.good_steps = -1;
    CHECK(exported(nullptr, broken, entries, 5) == GSC_ERROR_STATE);
}

TEST_CASE("an integer above 2^53 comes back as it was", "[formats]")
{
    const int64_t large = (int64_t{1} << 53) + 1;
    gsc_policy p = preset("torch");
    p.growth_interval = (uint64_t{1} << 62) + 3;
    gsc_state s = started(p);
    s.good_steps = large;
    s.total_overflows = large + 2;
    for (const char *format : {"torch", "gradscaler"}) {
        const Written w = write(format, p, s);
        const Read r = import(format, w.entries);
        REQUIRE(r.status == GSC_OK);
        CHECK(r.state.good_steps == large);
        CHECK(r.policy.growth_interval == p.growth_interval);
        CHECK(w.lost("growth_interval") == false);
    }
    CHECK(import("gradscaler", write("gradscaler", p, s).entries).state.total_overflows ==
          large + 2);
    /* An entry has no integer for it: written as a number, it is rounded, and the notes say so. */
    p.growth_interval = ~uint64_t{0};
    const Written w = write("gradscaler", p, s);
    const auto interval = std::find_if(w.entries.begin(), w.entries.end(), [](const gsc_entry &e) {
        return std::string(e.key) == "growth_interval";
    });
    CHECK(interval->kind == GSC_ENTRY_NUMBER);
    CHECK(w.lost("growth_interval"));
}

TEST_CASE("policy and result may be one struct", "[formats]")
{
    gsc_policy p = preset("recommended");
    gsc_state s;
    const Entries list = entries_of(samples[0].entries);
    REQUIRE(gsc_state_import("torch", nullptr, list.data(), list.size(), &p, &p, &s, nullptr, 0,
                             nullptr, nullptr) == GSC_OK);
    CHECK(p.growth_interval == 4);
    CHECK(p.max_scale == 0x1p24);
    const Entries more = {number("growth_interval", 9)};
    REQUIRE(gsc_policy_import("torch", nullptr, more.data(), 1, &p, &p, nullptr, 0, nullptr,
                              nullptr) == GSC_OK);
    CHECK(p.growth_interval == 9);
    CHECK(p.max_scale == 0x1p24);
}

TEST_CASE("what comes back goes on as before, unless the notes say what is lost", "[formats][long]")
{
    Random random = {7};
    for (uint32_t f = 0; gsc_format_name(f); f++) {
        const std::string format = gsc_format_name(f);
        if (!saves(format.c_str()))
            continue;
        int kept = 0;
        for (uint32_t k = 0; gsc_preset_name(k); k++) {
            for (int attempt = 0; attempt < 8; attempt++) {
                gsc_policy p = preset(gsc_preset_name(k));
                if (p.growth_interval)
                    p.growth_interval = 2 + random.next() % 6;
                if (p.hysteresis)
                    p.hysteresis = 1 + static_cast<uint32_t>(random.next() % 3);
                gsc_state s = started(p);
                for (uint64_t steps = random.next() % 40; steps; steps--)
                    step(p, s, random.next() % 4 == 0);
                const Written w = write(format.c_str(), p, s);
                Read r = import(format.c_str(), w.entries, &p);
                INFO(format << " " << gsc_preset_name(k) << ": " << w.words());
                REQUIRE(r.status == GSC_OK);
                bool lost = false;
                for (const gsc_note &n : w.notes) {
                    const std::string field = n.field;
                    lost |= field == "scale" || field == "next_scale" || field == "good_steps" ||
                            field == "steps_since_change" || field == "overflows_since_reset" ||
                            field == "failed_backoffs" || field.find("mean") != std::string::npos ||
                            field.find("slow") == 0;
                }
                /* A setting that the format has in another form stands in the notes, too. */
                for (const gsc_note &n : w.notes)
                    lost |= format != "gradscaler" && r.policy.backoff_factor != p.backoff_factor &&
                            std::string(n.field) == "backoff_factor";
                lost |= format.find("deepspeed") == 0 &&
                        (w.lost("overflow_reset") || w.lost("hysteresis"));
                if (lost)
                    continue;
                kept++;
                for (int i = 0; i < 60; i++) {
                    const bool overflow = random.next() % 5 == 0;
                    REQUIRE(step(r.policy, r.state, overflow) == step(p, s, overflow));
                }
            }
        }
        INFO(format);
        CHECK(kept >= (format == "fairseq" || format == "fairscale" || format == "colossalai" ||
                               format == "deepspeed_fp16"
                           ? 10
                           : 40));
    }
}

TEST_CASE("our own format gives the same bytes back", "[formats]")
{
    Random random = {11};
    for (uint32_t k = 0; gsc_preset_name(k); k++) {
        INFO(gsc_preset_name(k));
        const gsc_policy p = preset(gsc_preset_name(k));
        gsc_state s = started(p);
        for (uint64_t steps = 5 + random.next() % 20; steps; steps--)
            step(p, s, random.next() % 3 == 0);
        gsc_report outlier = measured;
        outlier.sum_squares = 1e12;
        REQUIRE(gsc_state_update(nullptr, &p, &s, &outlier, &s, nullptr) == GSC_OK);
        const Written w = write("gradscaler", p, s);
        const Read r = import(nullptr, w.entries);
        INFO(r.err.message);
        REQUIRE(r.status == GSC_OK);
        CHECK(std::string(r.notes[0].field) == "gradscaler");
        CHECK(r.notes.size() == 1);
        CHECK(same(r.state, s));
        CHECK(same(r.policy, p));
    }
    /* Of a version that has fewer keys. */
    CHECK(import("gradscaler", entries_of("scale 8 good_steps 3")).state.good_steps == 3);
    CHECK(import("gradscaler", entries_of("scale 8 next_scale 8 events 2048")).err.index == 2);
}

TEST_CASE("an entry is of the kind that the framework's loader expects", "[formats]")
{
    const auto kind = [](const Written &w, const std::string &key) {
        for (const gsc_entry &e : w.entries)
            if (key == e.key)
                return e.kind;
        return uint32_t{GSC_ENTRY_UNUSED};
    };
    gsc_policy p = preset("deepspeed");
    const Written torch = write("torch", p, started(p)), own = write("deepspeed", p, started(p));
    CHECK(kind(torch, "scale") == GSC_ENTRY_NUMBER);
    CHECK(kind(torch, "growth_interval") == GSC_ENTRY_INTEGER);
    CHECK(kind(torch, "_growth_tracker") == GSC_ENTRY_INTEGER);
    CHECK(kind(own, "cur_hysteresis") == GSC_ENTRY_INTEGER);
    for (const char *key : {"consecutive_hysteresis", "raise_error_at_min_scale", "dynamic"})
        CHECK(kind(own, key) == GSC_ENTRY_BOOLEAN);
}

TEST_CASE("notes list the fields that a format cannot hold", "[formats]")
{
    gsc_policy p = preset("recommended");
    gsc_state s = started(p);
    step(p, s, true);
    step(p, s, false);
    const Written torch = write("torch", p, s);
    for (const char *field : {"min_scale", "max_scale", "floor_rule", "ceiling_rule", "growth_rule",
                              "max_failed_backoffs", "total_overflows", "total_backoffs"})
        CHECK(torch.lost(field));
    for (const char *field : {"scale", "good_steps", "growth_factor", "backoff_factor",
                              "growth_interval", "steps_since_change"})
        CHECK_FALSE(torch.lost(field));
    CHECK(write("fairseq", p, s).lost("good_steps"));
    CHECK(write("colossalai", preset("megatron"), s).lost("good_steps"));
    CHECK(write("gradscaler", p, s).notes.empty());
    const gsc_policy own = preset("torch");
    CHECK(write("torch", own, started(own)).notes.empty());
}

TEST_CASE("a mean that only a clip reads is listed", "[formats]")
{
    gsc_policy p = preset("torch");
    p.guard_norm = 10;
    for (uint32_t flag : {GSC_GUARD_CLIP_TO_MEAN, GSC_GUARD_CLIP_PROGRESSIVE}) {
        p.guard_flags = GSC_GUARD_CLIP | flag;
        gsc_state s = started(p);
        s.guard_mean = 2;
        CHECK(write("torch", p, s).lost("guard_mean"));
    }
    p.guard_flags = GSC_GUARD_CLIP;
    gsc_state s = started(p);
    s.guard_mean = 2;
    CHECK_FALSE(write("torch", p, s).lost("guard_mean"));
}

TEST_CASE("settings of each framework become fields of a policy", "[formats]")
{
    struct Setting {
        const char *format, *entries, *fields;
    };
    const Setting table[] = {
        {"torch",
         "init_scale 1024 growth_factor 1.5 backoff_factor 0.75 growth_interval 7 enabled 1",
         "init_scale 1024 growth_factor 1.5 backoff_factor 0.75 growth_interval 7"},
        {"torch", "enabled 0", "init_scale 1 growth_factor 0 growth_interval 0 backoff_factor 0"},
        {"nemo", "hysteresis 3", "hysteresis 3 overflow_reset 2"},
        {"apex", "loss_scale 128", "init_scale 128 growth_interval 0 growth_factor 0"},
        {"apex", "scale_window 7 min_loss_scale 2 max_loss_scale 4096",
         "growth_interval 7 min_scale 2 max_scale 4096 growth_factor 2"},
        {"megatron", "initial_loss_scale 1024 min_loss_scale 2 loss_scale_window 7 hysteresis 3",
         "init_scale 1024 min_scale 2 growth_interval 7 hysteresis 3 overflow_reset 1"},
        {"megatron", "loss_scale 128", "init_scale 128 growth_interval 0"},
        {"colossalai", "initial_scale 1024 max_scale 4096 min_scale 2",
         "init_scale 1024 max_scale 4096 min_scale 2"},
        {"deepspeed",
         "enabled 1 loss_scale 0 initial_scale_power 10 loss_scale_window 7 hysteresis 3 "
         "consecutive_hysteresis 1 "
         "min_loss_scale 2",
         "init_scale 1024 growth_interval 7 hysteresis 3 overflow_reset 2 min_scale 2 "
         "max_failed_backoffs "
         "1 growth_factor 2"},
        {"deepspeed", "loss_scale 128 initial_scale_power 10",
         "init_scale 128 growth_interval 0 max_failed_backoffs 0"},
        {"deepspeed", "raise_error_at_min_scale 0 scale_factor 4",
         "max_failed_backoffs 0 growth_factor 4 backoff_factor 0"},
        {"deepspeed", "scale_factor 2", "growth_factor 2 backoff_factor 0.5"},
        {"fairseq", "fp16_init_scale 128 fp16_scale_window 7 fp16_scale_tolerance 0.25",
         "init_scale 128 growth_interval 7 overflow_tolerance 0.25"},
        {"paddle_dygraph",
         "init_loss_scaling 1024 incr_ratio 4 decr_ratio 0.25 incr_every_n_steps 7 "
         "decr_every_n_nan_or_inf 3",
         "init_scale 1024 growth_factor 4 backoff_factor 0.25 growth_interval 7 hysteresis 3"},
        {"paddle", "use_dynamic_loss_scaling 0 init_loss_scaling 128",
         "init_scale 128 growth_interval 0"},
        {"cerebras",
         "init_scale 1024 steps_per_increase 7 min_loss_scale 2 max_loss_scale 4096 "
         "overflow_tolerance 0.25",
         "init_scale 1024 growth_interval 7 min_scale 2 max_scale 4096 overflow_tolerance 0.25"},
        {"cerebras", "loss_scale 0", "init_scale 1 growth_interval 0"},
        {"cerebras", "loss_scaling_factor 8", "init_scale 8 growth_interval 0"},
        {"cerebras", "fp16_type cbfloat16 loss_scaling_factor dynamic",
         "init_scale 2147483648 max_scale 2147483648"},
        {"cerebras", "fp16_type float16 initial_loss_scale 1024", "init_scale 1024"},
        {"cerebras", "fp16_type bfloat16", "init_scale 1 growth_interval 0"},
        {"jmp", "loss_scale 128 period 7 factor 4 min_loss_scale 2",
         "init_scale 128 growth_interval 7 growth_factor 4 backoff_factor 0 min_scale 2"},
        {"eformer", "initial_scale 128 growth_interval 7 scale_factor 4 min_scale 2",
         "init_scale 128 growth_interval 7 growth_factor 4 min_scale 2"},
        {"axon", "init_scale 128 period 7 factor 4",
         "init_scale 128 growth_interval 7 growth_factor 4"},
        {"mindspore", "scale_value 128 scale_factor 4 scale_window 7",
         "init_scale 128 growth_factor 4 growth_interval 7"},
        {"oneflow", "init_scale 128 growth_factor 4 backoff_factor 0.25",
         "init_scale 128 growth_factor 4"},
        {"flax", "scale 128 minimum_scale 2", "init_scale 128 min_scale 2"},
        {"keras", "initial_scale 128 dynamic_growth_steps 7", "init_scale 128 growth_interval 7"},
        {"tf_keras", "dynamic 0 initial_scale 128", "init_scale 128 growth_interval 0"},
        {"mxnet", "_max_loss_scale 4096 _scale_seq_len 7", "max_scale 4096 growth_interval 7"},
        {"emily", "init_scale 128 min_scale 2", "init_scale 128 min_scale 2"},
        {"guided_diffusion", "initial_lg_scale 10 lg_growth 0.25",
         "init_scale 1024 growth_factor 1.189207115002721"},
        {"openseq2seq_logmax", "beta1 0.5 beta2 0.75 overflow_std_dev 2 log_max 4",
         "log2_decay 0.5 log2_slow_decay 0.75 log2_margin_sigmas 2 overflow_sample_log2 16"},
        {"gradscaler", "init_scale 128 growth_factor 2 growth_interval 7",
         "init_scale 128 growth_interval 7"},
        /* Fields of a policy, whatever the format. */
        {"torch", "min_scale 2 raise_at_min 1", "min_scale 2 max_failed_backoffs 1"},
    };
    for (const Setting &setting : table) {
        INFO(setting.format << ": " << setting.entries);
        const Read r = settings(setting.format, entries_of(setting.entries));
        INFO(r.err.message);
        REQUIRE(r.status == GSC_OK);
        CHECK(r.notes.empty());
        const Written w = write("gradscaler", r.policy, started(r.policy));
        for (const gsc_entry &field : entries_of(setting.fields))
            for (const gsc_entry &e : w.entries)
                if (std::string(e.key) == field.key) {
                    INFO(field.key);
                    CHECK(e.value == field.value);
                }
    }
}

TEST_CASE("a number that Cerebras' documentation writes for a power of two is read with a note",
          "[formats]")
{
    const Read r = settings("cerebras", entries_of("max_loss_scale 2e15 min_loss_scale 2e-14"));
    CHECK((r.policy.max_scale == 2e15 && r.policy.min_scale == 2e-14));
    REQUIRE(r.notes.size() == 2);
    CHECK(r.notes[1].entry == 1);
    CHECK(std::string(r.notes[0].message) ==
          "\"max_loss_scale\" is 2e+15: if 2^15 is meant, write 32768");
    CHECK(settings("cerebras", entries_of("max_loss_scale 32768")).notes.empty());
    CHECK(settings("cerebras", {text("fp16_type", "float16")}).notes.empty());
}

TEST_CASE("words of settings", "[formats]")
{
    CHECK(settings("cerebras", {text("loss_scale", "dynamic")}).policy.growth_interval == 2000);
    CHECK(settings("cerebras", {empty("loss_scale")}).policy.growth_interval ==
          0); /* a scale of 1 */
    CHECK(settings("megatron", {empty("loss_scale")}).policy.growth_interval == 1000);
    CHECK(settings("apex", {text("loss_scale", "dynamic")}).policy.growth_interval == 2000);
    CHECK(settings("apex", {empty("min_loss_scale")}).policy.min_scale == 0);
    CHECK(settings("colossalai", {text("hysteresis_refill", "good_step")}).policy.overflow_reset ==
          GSC_RESET_ON_GOOD_STEP);
    CHECK(settings("deepspeed", {text("hysteresis_refill", "growth")}).policy.overflow_reset ==
          GSC_RESET_ON_GROWTH);
    CHECK(
        std::string(settings("apex", {text("loss_scale", "dynamical")}).err.message) ==
        "entries[0].value of \"loss_scale\" is \"dynamical\": it must be a number or \"dynamic\"");
    CHECK(settings("apex", {text("hysteresis_refill", "now")}).status == GSC_ERROR_VALUE);
    CHECK(settings("deepspeed", {number("initial_scale_power", 5000)}).status == GSC_ERROR_VALUE);
    CHECK(settings("torch", {number("growth_factor", 0.5)}).err.index == 0);
    CHECK(settings("fp", {}).status == GSC_ERROR_FORMAT);
}

TEST_CASE("null leaves the policy's value, with a note", "[formats]")
{
    const std::pair<const char *, const char *> unset[] = {
        {"fairseq", "fp16_scale_window"},
        {"fairseq", "scale_window"},
        {"torch", "growth_interval"},
        {"torch", "growth_factor"},
        {"torch", "init_scale"},
        {"deepspeed", "loss_scale_window"},
        {"deepspeed", "initial_scale_power"},
        {"deepspeed", "hysteresis"},
        {"jmp", "factor"},
    };
    for (const auto &[format, key] : unset) {
        INFO(format << ": " << key);
        const Read r = settings(format, {empty(key)});
        REQUIRE(r.status == GSC_OK);
        CHECK(same(r.policy, preset(format)));
        REQUIRE(r.notes.size() == 1);
        CHECK(r.notes[0].kind == GSC_NOTE_MISSING);
        CHECK(r.notes[0].entry == 0);
    }
    CHECK(std::string(settings("torch", {empty("growth_interval")}).notes[0].message) ==
          "\"growth_interval\" is empty: growth_interval stays 2000, as in the policy");
    const Read window = settings("fairseq", {empty("fp16_scale_window")});
    CHECK(std::string(window.notes[0].message) ==
          "\"fp16_scale_window\" is empty: growth_interval stays 2000, where fairseq takes 2^14 / "
          "data-parallel size / update_freq: set it");
    CHECK(window.notes[0].value == 2000);
    /* Another key says it. */
    CHECK(
        settings("fairseq", {empty("fp16_scale_window"), number("scale_window", 7)}).notes.empty());
    /* Switched off, or no setting. */
    CHECK(settings("colossalai", {empty("min_scale"), empty("max_scale")}).policy.min_scale == 0);
    CHECK(settings("megatron", {empty("loss_scale")}).notes.empty());
    /* In a checkpoint, too. */
    Entries list = entries_of(samples[0].entries);
    list[3] = empty("growth_interval");
    const Read r = import("torch", list);
    CHECK(r.policy.growth_interval == 2000);
    REQUIRE(r.notes.size() == 1);
    CHECK(r.notes[0].entry == 3);
}

TEST_CASE("without fp16 there is no scaling in Megatron and fairseq", "[formats]")
{
    for (const char *format : {"megatron", "fairseq"}) {
        INFO(format);
        for (const char *off : {"fp16 0", "bf16 1", "bf16 1 fp16 0", "bf16 1 hysteresis 3"}) {
            const Read r = settings(format, entries_of(off));
            REQUIRE(r.status == GSC_OK);
            CHECK(r.notes.empty());
            CHECK(r.policy.init_scale == 1);
            CHECK(r.policy.growth_interval == 0);
        }
        const Read on = settings(format, entries_of("fp16 1 bf16 0"));
        CHECK(same(on.policy, preset(format)));
        CHECK(on.notes.empty());
    }
    CHECK(settings("megatron", entries_of("bf16 1 fp16 0 loss_scale 128")).policy.init_scale ==
          128);
    CHECK(same(settings("megatron", entries_of("fp16 0 loss_scale 0")).policy,
               settings("megatron", entries_of("fp16 0")).policy));
}

TEST_CASE("a threshold of fairseq above min_loss_scale is the floor", "[formats]")
{
    for (const char *format : {"fairseq", "fairscale"})
        for (const char *key : {"threshold", "threshold_loss_scale"}) {
            Read r = settings(
                format, {number(key, 4), number("min_loss_scale", 1), number("init_scale", 16)});
            CHECK(r.policy.min_scale == 4);
            CHECK(r.policy.floor_rule == GSC_LIMIT_CLAMP);
            gsc_state s = started(r.policy);
            for (double scale : {8.0, 4.0, 4.0, 4.0})
                CHECK(step(r.policy, s, true) >= scale);
            CHECK_FALSE((s.events & GSC_EVENT_STOPPED));
        }
}

TEST_CASE("a threshold of fairseq at min_loss_scale or below does nothing", "[formats]")
{
    for (const char *format : {"fairseq", "fairscale"})
        for (double threshold : {0.5, 1.0}) {
            const Read with =
                settings(format, {number("threshold", threshold), number("min_loss_scale", 1)});
            const Read without = settings(format, {number("min_loss_scale", 1)});
            CHECK(same(with.policy, without.policy));
            CHECK(with.policy.floor_rule == GSC_LIMIT_STOP);
        }
    CHECK(settings("fairseq", {empty("threshold")}).policy.floor_rule == GSC_LIMIT_STOP);
    CHECK(settings("fairseq", {number("threshold", -1)}).status == GSC_ERROR_VALUE);
}

TEST_CASE("settings are read below a prefix, and unknown ones are told", "[formats]")
{
    const Entries list = entries_of(
        "train_batch_size 8 fp16.loss_scale_window 7 fp16.windows 3 optimizer.params.lr 1");
    const Read r = settings("deepspeed", list, nullptr, "fp16");
    CHECK(r.policy.growth_interval == 7);
    REQUIRE(r.notes.size() == 1);
    CHECK(r.notes[0].entry == 2);
    const gsc_policy torch = preset("torch");
    CHECK(settings("deepspeed", list, &torch, "fp16").policy.growth_rule == GSC_GROWTH_EXACT);
}

TEST_CASE("where settings switch scaling off, the guard of the policy stays", "[formats]")
{
    gsc_policy guarded = preset("recommended"), wanted = preset("none");
    guarded.guard_norm = wanted.guard_norm = 5;
    guarded.guard_max_in_a_row = wanted.guard_max_in_a_row = 3;
    guarded.guard_flags = wanted.guard_flags = GSC_GUARD_CLIP | GSC_GUARD_CLIP_PROGRESSIVE;
    CHECK(same(settings("deepspeed", entries_of("bf16.enabled 1"), &guarded).policy, wanted));
    wanted.init_scale = 128;
    wanted.arithmetic = guarded.arithmetic;
    for (const char *off : {"fp16 1 loss_scale 128", "bf16 1 loss_scale 128"}) {
        INFO(off);
        CHECK(same(settings("megatron", entries_of(off), &guarded).policy, wanted));
    }
}

TEST_CASE("DeepSpeed scales nothing in bf16", "[formats]")
{
    const gsc_policy torch = preset("torch"), guard = preset("guard"), fixed = preset("static");
    for (const char *format : {"deepspeed", "deepspeed_fp16"}) {
        const Entries on = entries_of("bf16.enabled 1 fp16.enabled 0 fp16.hysteresis 3 lr 1");
        for (const char *prefix : {(const char *)nullptr, "", "bf16"}) {
            const Read r = settings(format, on, nullptr, prefix);
            CHECK(same(r.policy, preset("none")));
            REQUIRE(r.notes.size() == 1);
            CHECK(r.notes[0].kind == GSC_NOTE_CHANGED);
            CHECK(r.notes[0].value == 1);
            CHECK(std::string(r.notes[0].message).find("\"bf16\" is not scaled") == 0);
            CHECK(same(settings(format, on, &torch, prefix).policy, preset("none")));
            CHECK(same(settings(format, on, &guard, prefix).policy, guard));
            CHECK(settings(format, on, &fixed, prefix).policy.init_scale == 1);
        }
        CHECK(settings("deepspeed", {number("fp16.hysteresis", 3), number("bf16.enabled", 1)},
                       nullptr, "fp16")
                  .policy.hysteresis == 3);
        const Entries word = {text("ds.bfloat16.enabled", "auto")};
        CHECK(same(settings(format, word, nullptr, "ds.bfloat16").policy, preset("none")));
        CHECK(!same(settings(format, entries_of("bf16.enabled 0")).policy, preset("none")));
        CHECK(!same(settings(format, entries_of("bf16.enabled 1 fp16.enabled 1")).policy,
                    preset("none")));
    }
    CHECK(same(settings("torch", entries_of("bf16.enabled 1")).policy, torch));
}

TEST_CASE("settings below a prefix that nobody gave are told, and a wrong prefix is refused",
          "[formats]")
{
    const Entries list = entries_of("lr 1 fp16.hysteresis 3 fp16.scale_window 7 a/b.min_scale 2");
    const Read forgotten = settings("deepspeed", list);
    CHECK(same(forgotten.policy, preset("deepspeed")));
    REQUIRE(forgotten.notes.size() == 4);
    CHECK(std::string(forgotten.notes[1].message) ==
          "\"fp16.hysteresis\" is left out: it is read with the prefix \"fp16\"");
    CHECK(forgotten.notes[1].kind == GSC_NOTE_IGNORED);
    CHECK(std::string(forgotten.notes[3].message) ==
          "\"a/b.min_scale\" is left out: it is read with the prefix \"a/b\"");
    CHECK(std::string(settings("deepspeed", list, nullptr, "a").notes[0].message) ==
          "\"a/b.min_scale\" is left out: it is read with the prefix \"a/b\"");
    const Read wrong = settings("deepspeed", list, nullptr, "fp15");
    CHECK(wrong.status == GSC_ERROR_FORMAT);
    CHECK(wrong.err.argument == 1);
    CHECK(std::string(wrong.err.message) ==
          "prefix is \"fp15\": no key begins with it; there is \"fp16\", \"a/b\"");
    CHECK(std::string(settings("deepspeed", entries_of("lr 1"), nullptr, "fp16").err.message) ==
          "prefix is \"fp16\": no key begins with it");
    CHECK(settings("deepspeed", {}, nullptr, "fp16").status == GSC_ERROR_FORMAT);
}

TEST_CASE("for an unknown setting one that is like it is proposed", "[formats]")
{
    CHECK(std::string(settings("torch", entries_of("growth_intervall 9")).notes[0].message) ==
          "\"growth_intervall\" means nothing in the format torch: it is left out; did you mean "
          "\"growth_interval\"?");
    CHECK(std::string(settings("torch", entries_of("lr 9")).notes[0].message) ==
          "\"lr\" means nothing in the format torch: it is left out");
    std::string many;
    for (int i = 0; i < 20000; i++)
        many += "unknown" + std::to_string(i) + " 1 ";
    CHECK(settings("torch", entries_of(many)).notes.size() >= 20000);
}
