// SPDX-License-Identifier: MIT
// Checkpoints and settings of frameworks: what each one saves is read, recognised and written
// again, what is lost or missing is told, and what no scaler can have is refused by its key with
// nothing changed.
#include <optional>
#include <set>

#include "../fuzz/fuzz.hpp"

namespace {

struct Entries : std::vector<gsc_entry> {
    using vector::vector;
    /* "scale 8 counter null loss_scale dynamic" */
    Entries(const std::string &words)
    {
        std::istringstream in(words);
        std::string key, word;
        while (in >> key >> word) {
            char *end;
            push_back(number(key, std::strtod(word.c_str(), &end)));
            if (word == "null")
                back().kind = GSC_ENTRY_NULL;
            else if (*end) {
                back() = number(key, 0);
                back().kind = GSC_ENTRY_TEXT;
                std::snprintf(back().text, sizeof back().text, "%s", word.c_str());
            }
        }
    }
    Entries(const char *words) : Entries(std::string(words))
    {
    }
    Entries below(const std::string &place) const
    {
        Entries list;
        for (const gsc_entry &e : *this)
            list.push_back(number(place + e.key, e.value));
        return list;
    }
    Entries operator+(const Entries &more) const
    {
        Entries list = *this;
        list.insert(list.end(), more.begin(), more.end());
        return list;
    }
    const gsc_entry *find(const std::string &key) const
    {
        const auto found =
            std::find_if(begin(), end(), [&](const gsc_entry &e) { return key == e.key; });
        return found == end() ? nullptr : &*found;
    }
};

const Entries torch_entries =
    "scale 8 growth_factor 2 backoff_factor 0.5 growth_interval 4 _growth_tracker 3";

struct Notes : std::vector<gsc_note> {
    using vector::vector;
    const gsc_note *find(uint32_t kind, const std::string &field = "") const
    {
        for (const gsc_note &n : *this)
            if (n.kind == kind && (field.empty() || field == n.field))
                return &n;
        return nullptr;
    }
    /* The fields that notes of a kind are about. */
    std::string fields(uint32_t kind) const
    {
        std::string all;
        for (const gsc_note &n : *this)
            if (n.kind == kind)
                all += (all.empty() ? "" : " ") + std::string(n.field);
        return all;
    }
};

constexpr const char *any = nullptr; // a format that is recognised by its keys

struct Read {
    gsc_status status;
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state = {};
    Notes notes;
    gsc_error err = {};

    std::string message() const
    {
        return err.message;
    }
    bool says(const std::string &words) const
    {
        return message().find(words) != std::string::npos;
    }
    std::string first_note() const
    {
        return notes.empty() ? "" : notes[0].message;
    }
    double scale() const
    {
        return state.factor.scale;
    }
};

/* The argument of a checkpoint that is refused is its prefix, or else its entries. */
void check_refused(const Read &r, const std::string &message)
{
    CHECK(r.status == GSC_ERROR_FORMAT);
    CHECK(r.err.argument == (message.find("prefix") == 0 ? 1 : 2));
    CHECK_WORDING(r.message() == message);
}

/* Reads a checkpoint, or settings. A policy that is given is also where the result goes. */
struct Reader {
    bool is_state;
    Read operator()(const char *format, const Entries &list,
                    const std::optional<gsc_policy> &policy = {},
                    const char *prefix = nullptr) const
    {
        Read r;
        r.notes.resize(list.size() + 64);
        const gsc_entry none = {}, *const entries = list.empty() ? &none : list.data();
        const gsc_policy *const from = policy ? &r.policy : nullptr;
        r.policy = policy.value_or(r.policy);
        uint64_t count = 0;
        r.status = is_state
                       ? gsc_state_import(format, prefix, entries, list.size(), from, &r.policy,
                                          &r.state, r.notes.data(), r.notes.size(), &count, &r.err)
                       : gsc_policy_import(format, prefix, entries, list.size(), from, &r.policy,
                                           r.notes.data(), r.notes.size(), &count, &r.err);
        r.notes.resize(count);
        return r;
    }
};
constexpr Reader import = {true}, settings = {false};

struct Written {
    Entries entries;
    Notes notes;

    std::string words() const
    {
        std::ostringstream out;
        for (const gsc_entry &e : entries)
            out << (&e == &entries[0] ? "" : " ") << e.key << " " << e.value;
        return out.str();
    }
};

Written write(const std::string &format, const gsc_policy &p,
              const std::optional<gsc_state> &of = {}, const char *prefix = nullptr)
{
    const gsc_state state = of.value_or(started(p));
    Written w;
    w.entries.resize(64);
    w.notes.resize(64);
    gsc_error err;
    uint64_t entries = 0, notes = 0;
    const gsc_status status =
        gsc_state_export(format.c_str(), prefix, &p, &state, w.entries.data(), w.entries.size(),
                         &entries, w.notes.data(), w.notes.size(), &notes, &err);
    INFO(err.message);
    REQUIRE(status == GSC_OK);
    w.entries.resize(entries);
    w.notes.resize(notes);
    return w;
}

double step(const gsc_policy &p, gsc_state &s, bool overflow)
{
    s = updated(p, s, report_of(overflow ? 'x' : '.', 0.5));
    return s.factor.scale;
}

/* Keys that a framework really saved, and their meaning. */
struct Sample {
    const char *format;
    double scale;
    int64_t good, overflows, steps;
    uint64_t interval;
    const char *recognised; /* without the name; nullptr: several fit */
    const char *entries;
};
const Sample samples[] = {
    {"torch", 771.75, 2, 0, 2, 4, "torch",
     "scale 771.75 growth_factor 1.5 backoff_factor 0.7 growth_interval 4 _growth_tracker 2"},
    {"nemo", 524288, 1, 0, 1, 4, "nemo",
     "scale 524288 growth_factor 2 backoff_factor 0.5 growth_interval 4 _growth_tracker 1 "
     "_hysteresis_tracker 1"},
    {"apex", 2048, 3, 0, 3, 2000, "apex", "loss_scaler0.loss_scale 2048 loss_scaler0.unskipped 3"},
    {"megatron", 262144, 2, 1, 2, 1000, "megatron",
     "scale 262144 growth_tracker 2 hysteresis_tracker 1"},
    {"colossalai", 8192, 0, 0, 0, 1000, "colossalai",
     "scale 8192 growth_factor 2 backoff_factor 0.5 hysteresis 3"},
    {"deepspeed", 262144, 2, 2, 2, 4, "deepspeed",
     "cur_scale 262144 cur_iter 18 last_overflow_iter 15 scale_factor 2 scale_window 4 "
     "min_scale 1 delayed_shift 3 cur_hysteresis 1 consecutive_hysteresis 0 "
     "raise_error_at_min_scale 1 dynamic 1"},
    {"deepspeed_fp16", 2048, 17, 0, 17, 7, "deepspeed_fp16",
     "dynamic_loss_scale 1 cur_scale 2048 cur_iter 32 last_overflow_iter 14 scale_factor 2 "
     "scale_window 7"},
    {"fairseq", 2048, 0, 0, 0, 2000, nullptr, "loss_scale 2048"},
    {"fairscale", 2048, 0, 0, 0, 2000, nullptr, "loss_scale 2048"},
    {"paddle", 2048, 3, 0, 3, 2000, "paddle",
     "loss_scaling_0 2048 num_good_steps_0 3 num_bad_steps_0 0"},
    {"paddle_dygraph", 262144, 0, 2, 0, 4, "paddle_dygraph",
     "scale 262144 incr_ratio 2 decr_ratio 0.5 incr_every_n_steps 4 "
     "decr_every_n_nan_or_inf 3 incr_count 0 decr_count 2 use_dynamic_loss_scaling 1"},
    {"cerebras", 8192, 0, 1, 2, 2000, "cerebras",
     "loss_scale 8192 steps_since_rescale 2 overflows_since_rescale 1 num_skipped_steps 3"},
    {"cerebras_cb16", 8192, 2, 0, 2, 2000, "cerebras",
     "loss_scale 8192 steps_since_rescale 2 overflows_since_rescale 0 num_skipped_steps 3"},
    {"jmp", 2048, 3, 0, 3, 2000, nullptr, "loss_scale 2048 counter 3"},
    {"axon", 2048, 3, 0, 3, 2000, nullptr, "loss_scale 2048 counter 3"},
    {"eformer", 2048, 3, 0, 3, 7, "jmp",
     "loss_scale 2048 counter 3 period 7 factor 2 min_loss_scale 0.125"},
    {"mindspore", 2048, 3, 0, 3, 2000, "mindspore", "scale_value 2048 counter 3"},
    {"flax", 2048, 3, 0, 3, 2000, "flax", "scale 2048 fin_steps 3"},
    {"keras", 2048, 3, 0, 3, 2000, "keras", "dynamic_scale 2048 step_counter 3"},
    {"tf_keras", 2048, 3, 0, 3, 2000, "tf_keras", "current_loss_scale 2048 good_steps 3"},
    {"mxnet", 1024, 0, 0, 0, 7, "mxnet",
     "_loss_scale 1024 _next_loss_scale 512 _max_loss_scale 16777216 _scale_seq_len 7 "
     "_unskipped 0"},
    {"emily", 2048, 3, 0, 3, 7, "emily",
     "scale 2048 counter 3 growth_factor 2 backoff_factor 0.5 growth_interval 7 min_scale 1"},
};

/* Settings that the tests of a format need and its checkpoint lacks. */
gsc_policy policy_of(const Sample &sample)
{
    const std::string format = sample.format;
    const Policy p = preset_policy(format == "deepspeed_fp16" ? "deepspeed" : format);
    return format == "nemo" ? p.hysteresis(1) : p;
}

} // namespace

TEST_CASE("every format has a name, a sentence and a sample here", "[formats]")
{
    std::set<std::string> names, sampled = {"gradscaler", "roundpipe"};
    for (const Sample &sample : samples)
        sampled.insert(sample.format);
    for (const Format &f : formats()) {
        INFO(f.name);
        CHECK(std::string(gsc_format_summary(static_cast<uint32_t>(names.size()))).back() == '.');
        CHECK((sampled.count(f.name) || !f.saves));
        names.insert(f.name);
    }
    CHECK(names.size() == 26);
    CHECK(gsc_format_summary(27) == nullptr);
    /* The settings of every preset can be read, also of one that saves no state of its own. */
    for (const std::string &name : preset_names()) {
        const Read r = settings(name.c_str(), {});
        INFO(name);
        CHECK(r.status == GSC_OK);
        CHECK((same(r.policy, preset_policy(name)) || names.count(name)));
    }
}

TEST_CASE("a checkpoint of each framework is read, and written unchanged", "[formats]")
{
    for (const Sample &sample : samples) {
        INFO(sample.format);
        const gsc_policy p = policy_of(sample);
        const Read r = import(sample.format, sample.entries, p);
        INFO(r.err.message);
        REQUIRE(r.status == GSC_OK);
        CHECK(r.scale() == sample.scale);
        CHECK(r.state.factor.inverse == 1 / sample.scale);
        CHECK(r.state.good_steps == sample.good);
        CHECK(r.state.overflows_since_reset == sample.overflows);
        CHECK(r.state.steps_since_change == sample.steps);
        CHECK(r.policy.growth_interval == sample.interval);
        CHECK_FALSE(r.notes.find(GSC_NOTE_IGNORED));
        CHECK_FALSE(r.notes.find(GSC_NOTE_CHANGED));
        Entries turned(sample.entries); // each entry is the first one once
        for (size_t i = 0; i < turned.size(); i++) {
            std::rotate(turned.begin(), turned.begin() + 1, turned.end());
            CHECK(same(import(sample.format, turned, p).state, r.state));
        }
        const Written w = write(sample.format, r.policy, r.state);
        const Read again = import(sample.format, w.entries, p);
        REQUIRE(again.status == GSC_OK);
        CHECK(same(again.state, r.state));
        CHECK(same(again.policy, r.policy));
        /* DeepSpeed's number of the step is its own. */
        if (std::string(sample.format).find("deepspeed") == 0)
            continue;
        for (const gsc_entry &e : Entries(sample.entries)) {
            const gsc_entry *saved = w.entries.find(e.key);
            CHECK((saved && saved->value == e.value));
        }
    }
}

/* ---- which format, and where ---- */

TEST_CASE("a format is recognised by its keys, and several that fit are named", "[formats]")
{
    for (const Sample &sample : samples) {
        INFO(sample.format);
        const Read r = import(any, sample.entries);
        INFO(r.err.message);
        if (sample.recognised) {
            REQUIRE(r.status == GSC_OK);
            CHECK(r.notes[0].kind == GSC_NOTE_FORMAT);
            CHECK(std::string(r.notes[0].field) == sample.recognised);
            continue;
        }
        CHECK(r.status == GSC_ERROR_FORMAT);
        CHECK_WORDING(r.message().find(sample.format) != std::string::npos);
        /* With a policy they mean the same. */
        const Read given = import(any, sample.entries, preset_policy("torch"));
        REQUIRE(given.status == GSC_OK);
        CHECK_WORDING(given.first_note().find(sample.format) != std::string::npos);
    }
    CHECK_WORDING(import(any, samples[0].entries).first_note() ==
                  "read as torch; same keys: roundpipe");
    /* The attributes of flax's DynamicScale are flax's, with its settings; without the count they
     * are torch's. */
    const std::string both = "growth_factor 4 backoff_factor 0.25 growth_interval 7 scale 2048 ";
    CHECK(std::string(import(any, both).notes[0].field) == "torch");
    for (const char *format : {any, "flax"}) {
        const Read r = import(format, both + "fin_steps 3 minimum_scale 2");
        REQUIRE(r.status == GSC_OK);
        CHECK((format || std::string(r.notes[0].field) == "flax"));
        CHECK((r.state.good_steps == 3 && r.policy.growth_interval == 7));
        CHECK((r.policy.growth_factor == 4 && r.policy.backoff_factor == 0.25));
        CHECK(r.policy.min_scale == 2);
        CHECK_FALSE(r.notes.find(GSC_NOTE_IGNORED));
    }
}

TEST_CASE("a scaler is found in a nested checkpoint", "[formats]")
{
    Entries list = "epoch 3 model.scale.weight 5 optimizer.state.0.step 7 "
                   "amp/grad_scaler.scale 2048 amp/grad_scaler.growth_tracker 3 "
                   "amp/grad_scaler.hysteresis_tracker 2";
    for (int i = 0; i < 500; i++)
        list.push_back(number("model." + std::to_string(i) + ".scale", 0.5));
    for (const char *format : {any, "megatron"})
        for (const char *prefix : {(const char *)nullptr, "amp/grad_scaler"}) {
            const Read r = import(format, list, {}, prefix);
            INFO(r.err.message);
            REQUIRE(r.status == GSC_OK);
            CHECK((r.scale() == 2048 && r.state.good_steps == 3));
            CHECK_FALSE(r.notes.find(GSC_NOTE_IGNORED));
        }
    CHECK(import("megatron", list, {}, "").status == GSC_ERROR_FORMAT);
    CHECK(import("megatron", list, {}, "amp").status == GSC_ERROR_FORMAT);
}

TEST_CASE("below more than two names a scaler is not recognised, and its prefix is told",
          "[formats]")
{
    const Entries other = "epoch 3 model.scale 0.5 optimizer.state.0.step 7";
    for (const Sample &sample : samples) {
        if (!sample.recognised || std::string(sample.format) == "apex")
            continue;
        INFO(sample.format);
        const Entries list = sample.entries, deep = other + list.below("a.b/c.");
        for (const char *place : {"", "a.", "a.b.", "a/b."})
            CHECK(import(any, other + list.below(place)).scale() == sample.scale);
        for (const char *format : {any, sample.recognised}) {
            check_refused(
                import(format, deep),
                "entries have a scaler below more than two names: give the prefix \"a.b/c\"");
            CHECK(import(format, deep, {}, "a.b/c").scale() == sample.scale);
        }
    }
    /* One below two names is the one; a place of any length is told whole. */
    const Entries torch = samples[0].entries,
                  megatron = "scale 8 growth_tracker 3 hysteresis_tracker 2";
    CHECK_WORDING(import(any, torch.below("a.b.c.") + megatron.below("amp.scaler.")).first_note() ==
                  "read as megatron from \"amp.scaler\"");
    const std::string place = "a.b." + std::string(88, 'c');
    CHECK_WORDING(import(any, torch.below(place + ".")).says("\"" + place + "\""));
}

TEST_CASE("of several scalers, of one format or of two, one is read at a time", "[formats]")
{
    const gsc_policy p = preset_policy("torch");
    const std::pair<const char *, const char *> pairs[] = {
        {"torch", "torch"},    {"torch", "apex"},       {"torch", "flax"},
        {"torch", "megatron"}, {"gradscaler", "torch"}, {"deepspeed", "torch"}};
    for (const auto &[one, other] : pairs) {
        INFO(one << " and " << other);
        const Entries list =
            write(one, p, {}, "a.one").entries + write(other, p, {}, "b.other").entries;
        const Read r = import(any, list);
        CHECK(r.status == GSC_ERROR_FORMAT);
        CHECK_WORDING(r.message().find("entries hold several scalers, ") == 0);
        CHECK_WORDING((r.says("\"a.one\"") && r.says("\"b.other\"")));
        CHECK(import(any, list, {}, "a.one").notes[0].field == std::string(one));
        CHECK(import(any, list, {}, "b.other").notes[0].field == std::string(other));
        CHECK((import(other, list).status == GSC_OK) == (one != other));
    }
    const Entries losses = "loss_scaler0.loss_scale 8 loss_scaler0.unskipped 3 "
                           "loss_scaler1.loss_scale 16 loss_scaler1.unskipped 4";
    for (const char *format : {any, "apex"}) {
        check_refused(
            import(format, losses),
            "entries hold several scalers, \"loss_scaler0\" and \"loss_scaler1\": say which by "
            "prefix");
        const Read second = import(format, losses, {}, "loss_scaler1");
        CHECK((second.scale() == 16 && second.state.good_steps == 4));
    }
    CHECK(write("apex", p, {}, "loss_scaler1").words() ==
          "loss_scaler1.loss_scale 65536 loss_scaler1.unskipped 0");
    CHECK(write("apex", p, {}, "").words() == "loss_scale 65536 unskipped 0");
    /* A number of the log is none. */
    CHECK_WORDING(
        import(any, write("torch", p, {}, "scaler").entries + "log.loss_scale 128").first_note() ==
        "read as torch from \"scaler\"; same keys: roundpipe");
}

TEST_CASE("a single deep key is a scaler only with its prefix", "[formats]")
{
    const Entries model = "model.scale 0.5 model.weight 3",
                  last = "last_optimizer_state.loss_scale 128 epoch 3";
    for (const char *format : {"torch", "megatron", "flax", "gradscaler"}) {
        INFO(format);
        check_refused(
            import(format, model),
            "entries have only a \"scale\" below \"model\": if it is a scaler's, give this prefix");
        CHECK(import(format, model, {}, "model").scale() == 0.5);
        CHECK(import(format, "scale 0.5").scale() == 0.5);
    }
    /* fairseq and Cerebras save no more. */
    for (const char *format : {"fairseq", "fairscale", "cerebras"})
        CHECK(import(format, last).scale() == 128);
    const gsc_policy p = preset_policy("torch");
    check_refused(
        import(any, last, p),
        "entries have only a \"loss_scale\" below \"last_optimizer_state\": if it is a scaler's, "
        "give this prefix and the format");
    CHECK(import(any, last, p, "last_optimizer_state").scale() == 128);
    /* A key that nothing else has. */
    for (const char *format : {any, "deepspeed"})
        CHECK(import(format, "zero.cur_scale 128").scale() == 128);
}

TEST_CASE("entries that are no checkpoint are refused with what is there instead", "[formats]")
{
    const char *several = "amp.loss_scaler0.loss_scale 8 amp.loss_scaler0.unskipped 3 "
                          "amp.loss_scaler1.loss_scale 16 amp.loss_scaler1.unskipped 4 "
                          "model.weight 1",
               *torch = "growth_factor 2 backoff_factor 0.5 growth_interval 4 _growth_tracker 3";
    const std::string unknown = "entries have the keys of no format that is known",
                      there = "; there is \"amp.loss_scaler0\", \"amp.loss_scaler1\"",
                      none = "entries are none: a scaler that is switched off saves none";
    for (const char *words : {"lr 0.1", "scale 8", "lr 0.1 betas 3 growth_interval 5"})
        check_refused(import(any, words), unknown);
    for (const char *format : {any, "apex", "cerebras"})
        check_refused(import(format, several, {}, "loss_scaler1"),
                      "prefix is \"loss_scaler1\": no key begins with it" + there);
    check_refused(import("apex", several, {}, "model"),
                  "entries have no \"loss_scale\" below \"model\", the scale of the format apex" +
                      there);
    check_refused(import(any, several, {}, "model"), unknown + there);
    /* Three prefixes are named, and none above 53 characters. */
    std::string many;
    for (const std::string &prefix : {std::string("a"), std::string(54, 'x'), std::string(53, 'b'),
                                      std::string("c"), std::string("d")})
        many += prefix + ".loss_scale 8 " + prefix + ".unskipped 3 ";
    check_refused(import("apex", many, {}, "e"),
                  "prefix is \"e\": no key begins with it; there is \"a\", \"" +
                      std::string(53, 'b') + "\", \"c\"");
    for (const char *prefix : {(const char *)nullptr, ""})
        check_refused(import(any, torch, {}, prefix),
                      unknown + ": they look like keys of torch, without \"scale\"");
    check_refused(import(any, "epoch 3 a.growth_tracker 3 a.hysteresis_tracker 1"),
                  unknown + ": they look like keys of megatron, without \"scale\" below \"a\"");
    for (const Read &r : {import(any, {}), import("torch", {}), import(any, Entries(3))})
        check_refused(r, none);
}

/* ---- what is special in one of them ---- */

TEST_CASE("Paddle's variables end with any number, or none", "[formats]")
{
    for (const std::string end : {"", "_0", "_12"}) {
        const Entries list =
            "loss_scaling" + end + " 8 num_good_steps" + end + " 3 num_bad_steps" + end + " 1";
        CHECK(import(any, list).state.good_steps == 3);
        CHECK(import("paddle", list).state.overflows_since_reset == 1);
    }
    for (const std::string end : {"_", "_x", "_0_", "0"})
        CHECK(import("paddle", "loss_scaling" + end + " 8").status == GSC_ERROR_FORMAT);
}

TEST_CASE("the misspelt key of NeMo's loader is also read and written", "[formats]")
{
    const gsc_policy p = preset_policy("nemo").hysteresis(3);
    const Entries list = "scale 8 growth_factor 2 backoff_factor 0.5 growth_interval 4 "
                         "_growth_tracker 0 _hysterisis_tracker 1";
    CHECK(import("nemo", list, p).state.overflows_since_reset == 2);
    /* The key that it saves counts. */
    const Read r = import("nemo", list + "_hysteresis_tracker 2", p);
    CHECK(r.state.overflows_since_reset == 1);
    CHECK(write("nemo", p, r.state).words().find("_hysterisis_tracker 2") != std::string::npos);
}

TEST_CASE("a checkpoint without dynamic scaling is a scale that stays", "[formats]")
{
    for (const char *words :
         {"cur_scale 128 dynamic 0", "dynamic_loss_scale 0 cur_scale 128 cur_iter 5",
          "scale 128 incr_ratio 2 decr_ratio 0.5 incr_every_n_steps 4 decr_every_n_nan_or_inf 3 "
          "incr_count 0 decr_count 2 use_dynamic_loss_scaling 0"}) {
        INFO(words);
        Read r = import(any, words);
        REQUIRE(r.status == GSC_OK);
        for (int i = 0; i < 3000; i++)
            REQUIRE(step(r.policy, r.state, i % 7 == 0) == 128);
    }
    /* Cerebras saves the scale alone then, and before 2.1 nothing. */
    CHECK(import("cerebras", "loss_scale 128", preset_policy("static")).scale() == 128);
    const Read none = import("cerebras", {});
    REQUIRE(none.status == GSC_OK);
    CHECK(none.scale() == 0x1p15);
    CHECK(none.notes.find(GSC_NOTE_MISSING, "scale"));
}

/* ---- notes on what is missing, has another meaning or is lost ---- */

TEST_CASE("a checkpoint is read into another policy, with notes on missing keys", "[formats]")
{
    const Read r =
        import("torch",
               "scale 4096 growth_factor 4 backoff_factor 0.25 growth_interval 7 _growth_tracker 3",
               preset_policy("recommended"));
    REQUIRE(r.status == GSC_OK);
    CHECK((r.policy.growth_factor == 4 && r.policy.backoff_factor == 0.25));
    CHECK((r.policy.growth_interval == 7 && r.policy.min_scale == 0x1p-14));
    CHECK(r.notes.fields(GSC_NOTE_MISSING) == "failed_backoffs bad_losses_in_a_row growth_rule "
                                              "max_scale min_scale ceiling_rule floor_rule "
                                              "overflow_reset max_failed_backoffs bad_loss_rule");
    CHECK(std::all_of(r.notes.begin(), r.notes.end(),
                      [](const gsc_note &n) { return n.entry == -1; }));
    CHECK(r.notes.find(GSC_NOTE_MISSING, "max_scale")->value == 0x1p24);
    CHECK_WORDING(std::string(r.notes.find(GSC_NOTE_MISSING, "max_scale")->message) ==
                  "max_scale is not among the entries: it is 16777216, as in the policy");
    const Policy tenth =
        preset_policy("fairseq").overflow_tolerance(0.1); /* as few digits as it takes */
    const Read fairseq = import("fairseq", "loss_scale 8", tenth);
    CHECK_WORDING(
        std::string(fairseq.notes.find(GSC_NOTE_MISSING, "overflow_tolerance")->message) ==
        "overflow_tolerance is not among the entries: it is 0.1, as in the policy");
    /* Into torch's own rules all is there. */
    CHECK(import("torch", samples[0].entries).notes.empty());
}

TEST_CASE("a count that a policy needs and a checkpoint lacks follows from those that are there",
          "[formats]")
{
    /* Cerebras counts all steps, torch good ones. */
    const std::string cerebras = "loss_scale 8 steps_since_rescale 5 overflows_since_rescale ";
    const gsc_policy torch = preset_policy("torch");
    CHECK(import("cerebras", cerebras + "0", torch).state.good_steps == 5);
    CHECK(import("cerebras", cerebras + "1", torch).state.good_steps == 0);
    const Read r = import("torch", samples[0].entries, preset_policy("cerebras"));
    CHECK(r.state.steps_since_change == 2);
    CHECK(r.notes.find(GSC_NOTE_MISSING, "steps_since_change")->value == 2);
    CHECK(import("torch", samples[0].entries, preset_policy("roundpipe"))
              .notes.find(GSC_NOTE_MISSING, "next_scale"));
}

TEST_CASE("a number with another meaning in the policy is converted", "[formats]")
{
    const std::string torch =
        "scale 8 growth_factor 2 backoff_factor 0.5 growth_interval 4 _growth_tracker ";
    const gsc_policy torch_policy = preset_policy("torch");
    /* torch itself never grows from there until an overflow; at or past the interval is due at
     * once. */
    Read r = import("torch", torch + "9");
    REQUIRE(r.notes.find(GSC_NOTE_CHANGED, "good_steps"));
    CHECK(r.notes.find(GSC_NOTE_CHANGED, "good_steps")->entry == 4);
    CHECK_WORDING(
        r.first_note() ==
        "\"_growth_tracker\" makes good_steps 9, where growth_interval is 4: the scale grows only "
        "after an overflow, which starts it anew");
    for (int i = 0; i < 20; i++)
        CHECK(step(r.policy, r.state, false) == 8);
    r = import("torch", torch + "9", preset_policy("recommended"));
    REQUIRE(r.notes.find(GSC_NOTE_CHANGED, "good_steps"));
    CHECK(step(r.policy, r.state, false) == 16);
    CHECK_FALSE(import("torch", torch + "3").notes.find(GSC_NOTE_CHANGED));
    /* More is left of the hysteresis than there is. */
    const std::string megatron = "scale 8 growth_tracker 0 hysteresis_tracker ";
    r = import("megatron", megatron + "5");
    CHECK(r.state.overflows_since_reset == 0);
    CHECK(r.notes.find(GSC_NOTE_CHANGED, "overflows_since_reset")->entry == 2);
    CHECK(r.notes.find(GSC_NOTE_CHANGED, "overflows_since_reset")->value == 0);
    /* Used up: more overflows than it has. */
    CHECK(import("megatron", megatron + "-3").state.overflows_since_reset == 5);
    for (const char *left : {"1.5", "4.5", "-0.5", "1e30", "inf"})
        CHECK_WORDING(import("megatron", megatron + left).says("it must be a whole number"));
    /* A scale of doubles in a policy of floats; one to come where there is no delay. */
    r = import("emily", "scale 0.1 counter 0", torch_policy);
    CHECK(r.scale() == static_cast<double>(0.1f));
    CHECK(r.notes.find(GSC_NOTE_CHANGED, "scale")->value == static_cast<double>(0.1f));
    r = import("mxnet", "_loss_scale 1024 _next_loss_scale 512 _unskipped 0", torch_policy);
    CHECK(r.scale() == 512);
    CHECK(r.notes.find(GSC_NOTE_CHANGED, "scale")->entry == 0);
}

TEST_CASE("a scale that the peer can reach and nobody can use is read, and said", "[formats]")
{
    for (double scale : {0.0, infinity}) {
        const Entries list = "growth_tracker 3 hysteresis_tracker 2";
        const Read r = import("megatron", list + Entries{number("scale", scale)});
        REQUIRE(r.status == GSC_OK);
        CHECK(r.scale() == scale);
        REQUIRE(r.notes.find(GSC_NOTE_UNUSABLE, "scale"));
        CHECK(r.notes.find(GSC_NOTE_UNUSABLE, "scale")->value == scale);
        CHECK(write("megatron", r.policy, r.state).entries[0].value == scale);
    }
}

TEST_CASE("an integer above 2^53 comes back as it was", "[formats]")
{
    const int64_t large = (int64_t{1} << 53) + 1;
    gsc_policy p = preset_policy("torch");
    gsc_state s = started(p);
    s.good_steps = s.total_overflows = large;
    for (uint64_t interval : {(uint64_t{1} << 62) + 3, (uint64_t{1} << 63) + 1, ~uint64_t{0}}) {
        p.growth_interval = interval;
        for (const char *format : {"torch", "gradscaler"}) {
            const Written w = write(format, p, s);
            const Read r = import(format, w.entries);
            REQUIRE(r.status == GSC_OK);
            CHECK((r.state.good_steps == large && r.policy.growth_interval == interval));
            CHECK(w.entries.find("growth_interval")->kind == GSC_ENTRY_INTEGER);
            CHECK_FALSE(w.notes.find(GSC_NOTE_LOST, "growth_interval"));
        }
    }
    CHECK(import("gradscaler", write("gradscaler", p, s).entries).state.total_overflows == large);
}

TEST_CASE("notes list the fields that a format cannot hold", "[formats]")
{
    const gsc_policy p = preset_policy("recommended");
    gsc_state s = started(p);
    step(p, s, true);
    step(p, s, false);
    CHECK(write("torch", p, s).notes.fields(GSC_NOTE_LOST) ==
          "growth_rule max_scale min_scale ceiling_rule floor_rule overflow_reset "
          "max_failed_backoffs bad_loss_rule total_overflows total_backoffs");
    CHECK(write("fairseq", p, s).notes.find(GSC_NOTE_LOST, "good_steps"));
    CHECK(
        write("colossalai", preset_policy("megatron"), s).notes.find(GSC_NOTE_LOST, "good_steps"));
    CHECK(write("gradscaler", p, s).notes.empty());
    CHECK(write("torch", preset_policy("torch")).notes.empty());
    /* A mean that only a clip reads. */
    for (uint32_t flag : {0u, GSC_GUARD_CLIP_TO_MEAN, GSC_GUARD_CLIP_PROGRESSIVE}) {
        const gsc_policy clips =
            preset_policy("torch").guard_norm(10).guard_flags(GSC_GUARD_CLIP | flag);
        s = started(clips);
        s.guard_mean = 2;
        CHECK(!write("torch", clips, s).notes.find(GSC_NOTE_LOST, "guard_mean") == !flag);
    }
}

TEST_CASE("an entry is of the kind that the framework's loader expects", "[formats]")
{
    const gsc_policy p = preset_policy("deepspeed");
    const Written torch = write("torch", p), own = write("deepspeed", p);
    CHECK(torch.entries.find("scale")->kind == GSC_ENTRY_NUMBER);
    for (const gsc_entry *e :
         {torch.entries.find("growth_interval"), torch.entries.find("_growth_tracker"),
          own.entries.find("cur_hysteresis")})
        CHECK(e->kind == GSC_ENTRY_INTEGER);
    for (const char *key : {"consecutive_hysteresis", "raise_error_at_min_scale", "dynamic"})
        CHECK(own.entries.find(key)->kind == GSC_ENTRY_BOOLEAN);
}

/* ---- what is refused ---- */

TEST_CASE("an impossible value is refused by its key", "[formats]")
{
    const std::pair<Entries, const char *> rows[] = {
        {"scale nan", "is nan: it must be a number"},
        {"scale -1", "is -1: it must be a scale: 0 or above"},
        {"scale -inf", "is -inf: it must be a scale: 0 or above"},
        {"scale 1e300", "is 1e+300: it must be at most the largest float"},
        {"scale big", "is \"big\": it must be a number"},
        {"scale null", "is empty: it must be a number"},
        {"growth_factor 0.5", "is 0.5: it must be finite and at least 1"},
        {"growth_factor inf", "is inf: it must be finite and at least 1"},
        {"backoff_factor 2", "is 2: it must be from 0 to 1"},
        {"backoff_factor nan", "is nan: it must be a number"},
        {"growth_interval 2.5", "is 2.5: it must be a whole number"},
        {"growth_interval -4", "is -4: it must be a whole number from 0 to 2^64 - 2^11"},
        {"growth_interval 1e30", "is 1e+30: it must be a whole number"},
        {"_growth_tracker -1", "is -1: it must be a whole number from 0 to 2^61"},
        {"_growth_tracker 0.25", "is 0.25: it must be a whole number"},
        {"_growth_tracker inf", "is inf: it must be a whole number"},
        {"_growth_tracker null", "is empty: it must be a number"},
    };
    for (const auto &[bad, says] : rows) {
        const std::string key = bad[0].key;
        Entries list = torch_entries;
        const int64_t index = list.find(key) - list.data();
        list[static_cast<size_t>(index)] = bad[0];
        INFO(key << " " << says);
        const Read r = import("torch", list);
        CHECK(r.status == GSC_ERROR_VALUE);
        CHECK(
            (r.err.argument == 2 && r.err.index == index && std::string(r.err.name) == "entries"));
        CHECK_WORDING(r.says("of \"" + key + "\" " + says));
    }
    CHECK_WORDING(import("deepspeed", "cur_scale 8 cur_iter 5 last_overflow_iter 5")
                      .says("\"last_overflow_iter\" is 5: it must be -1 or the number"));
    CHECK_WORDING(settings("megatron", "hysteresis 0x1p40")
                      .says("it must be a whole number from 0 to 4294967295"));
}

TEST_CASE("entries that no program should hand over are refused by what is wrong", "[formats]")
{
    const std::pair<void (*)(Entries &), const char *> rows[] = {
        {[](Entries &l) { l.erase(l.begin()); },
         "entries have no \"scale\", the scale of the format torch"},
        {[](Entries &l) { l.push_back(l[0]); },
         "entries[0].key is \"scale\", which is there twice"},
        {[](Entries &l) { l[1].kind = 9; }, "entries[1].kind is 9"},
        {[](Entries &l) { l[1].kind = GSC_ENTRY_BOOLEAN; },
         "entries[1].value is 2: it must be the same number as entries.integer, rounded"},
        {[](Entries &l) { l[1].kind = GSC_ENTRY_BOOLEAN, l[1].integer = 2; },
         "entries[1].integer is 2: it must be 0 or 1, as its kind is a boolean"},
        {[](Entries &l) { l[1].flags = 9; }, "entries[1].flags is not 0"},
        {[](Entries &l) { l[1].reserved[1] = 9; }, "entries[1].reserved is not 0"},
        {[](Entries &l) { std::memset(l[2].key, 'x', sizeof l[2].key); },
         "entries[2].key does not end with a zero"},
        {[](Entries &l) {
             l[0].kind = GSC_ENTRY_TEXT, std::memset(l[0].text, 'x', sizeof l[0].text);
         },
         "entries[0].text does not end with a zero"},
    };
    for (const auto &[spoil, says] : rows) {
        Entries list = torch_entries;
        spoil(list);
        CHECK_WORDING(import("torch", list).message().find(says) == 0);
    }
    CHECK(import("torch", Entries(65537, number("a.scale", 1))).status == GSC_ERROR_COUNT);
    const Entries others(100000, number("ema.decay", 1)); /* do not count */
    CHECK(import("torch", torch_entries + others).status == GSC_OK);
    CHECK_FALSE(std::signbit(import("torch", "scale -0").scale()));
    CHECK_WORDING(import("torhc", torch_entries).message() ==
                  "format is \"torhc\", which is none: did you mean \"torch\"?");
    CHECK_WORDING(import("oneflow", torch_entries).message() ==
                  "format is \"oneflow\", which saves no state");
    CHECK(import("torch", torch_entries, {}, std::string(200, 'x').c_str()).status ==
          GSC_ERROR_VALUE);
}

TEST_CASE("notes beyond the capacity are only counted, and too few entries are refused",
          "[formats]")
{
    const Entries list = "scale 8 growth_tracker 3 hysteresis_tracker 2";
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
    const gsc_policy p = preset_policy("torch");
    gsc_state s = started(p);
    gsc_entry entries[5];
    gsc_error err;
    uint64_t count = 0, lost = 77;
    const auto exported = [&](const char *prefix, gsc_entry *at, uint64_t capacity) {
        return gsc_state_export("torch", prefix, &p, &s, at, capacity, &count, nullptr, 0, &lost,
                                &err);
    };
    CHECK(exported(nullptr, nullptr, 0) == GSC_OK);
    CHECK((count == 5 && lost == 0));
    CHECK(exported(nullptr, entries, 4) == GSC_ERROR_CAPACITY);
    CHECK_WORDING(std::string(err.message) == "entries_capacity is 4: there are 5 entries");
    CHECK(exported(nullptr, entries, 5) == GSC_OK);
    CHECK(exported(std::string(155, 'x').c_str(), entries, 5) == GSC_ERROR_VALUE);
    s.good_steps = -1;
    CHECK(exported(nullptr, entries, 5) == GSC_ERROR_STATE);
}

TEST_CASE("random checkpoints and settings keep what the fuzzer claims", "[formats]")
{
    for_seeds(4000, fuzz_formats);
    /* Our own format, of a version that has fewer keys. */
    CHECK(import("gradscaler", "scale 8 good_steps 3").state.good_steps == 3);
    CHECK(import("gradscaler", "scale 8 next_scale 8 events 8192").err.index == 2);
}

/* ---- settings ---- */

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
         "consecutive_hysteresis 1 min_loss_scale 2",
         "init_scale 1024 growth_interval 7 hysteresis 3 overflow_reset 2 min_scale 2 "
         "max_failed_backoffs 1 growth_factor 2"},
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
        {"mxnet", "_max_loss_scale 0x1p20 _scale_seq_len 7", "max_scale 0x1p20 growth_interval 7"},
        {"emily", "init_scale 128 min_scale 2", "init_scale 128 min_scale 2"},
        {"guided_diffusion", "initial_lg_scale 10 lg_growth 0.25",
         "init_scale 1024 growth_factor 1.189207115002721"},
        {"gradscaler", "init_scale 128 growth_factor 2 growth_interval 7",
         "init_scale 128 growth_interval 7"},
        /* Words. */
        {"cerebras", "loss_scale dynamic", "growth_interval 2000"},
        {"cerebras", "loss_scale null", "init_scale 1 growth_interval 0"},
        {"megatron", "loss_scale null", "growth_interval 1000"},
        {"apex", "loss_scale dynamic", "growth_interval 2000"},
        {"apex", "min_loss_scale null", "min_scale 0"},
        {"colossalai", "min_scale null max_scale null", "min_scale 0 max_scale 0"},
        {"colossalai", "hysteresis_refill good_step", "overflow_reset 2"},
        {"deepspeed", "hysteresis_refill growth", "overflow_reset 1"},
        /* Without fp16 there is no scaling. */
        {"megatron", "fp16 0", "init_scale 1 growth_interval 0"},
        {"megatron", "bf16 1 fp16 0", "init_scale 1 growth_interval 0"},
        {"megatron", "bf16 1 hysteresis 3", "init_scale 1 growth_interval 0"},
        {"megatron", "bf16 1 fp16 0 loss_scale 128", "init_scale 128 growth_interval 0"},
        {"megatron", "fp16 0 loss_scale 0", "init_scale 1 growth_interval 0"},
        {"megatron", "fp16 1 bf16 0", "init_scale 4294967296 growth_interval 1000"},
        {"fairseq", "fp16 0", "init_scale 1 growth_interval 0"},
        {"fairseq", "bf16 1", "init_scale 1 growth_interval 0"},
        {"fairseq", "fp16 1 bf16 0", "init_scale 32768 growth_interval 2000"},
        /* A threshold above min_loss_scale is the floor, which clamps; others do nothing. */
        {"fairseq", "threshold 4 min_loss_scale 1", "min_scale 4 floor_rule 0"},
        {"fairscale", "threshold_loss_scale 4 min_loss_scale 1", "min_scale 4 floor_rule 0"},
        {"fairseq", "threshold_loss_scale 1 min_loss_scale 1", "min_scale 1 floor_rule 3"},
        {"fairscale", "threshold 0.5 min_loss_scale 1", "min_scale 1 floor_rule 3"},
        {"fairseq", "threshold null", "floor_rule 3"},
        /* Fields of a policy, whatever the format. */
        {"torch", "min_scale 2 raise_at_min 1", "min_scale 2 max_failed_backoffs 1"},
    };
    for (const Setting &setting : table) {
        INFO(setting.format << ": " << setting.entries);
        const Read r = settings(setting.format, setting.entries);
        INFO(r.err.message);
        REQUIRE(r.status == GSC_OK);
        CHECK(r.notes.empty());
        const Written w = write("gradscaler", r.policy);
        for (const gsc_entry &field : Entries(setting.fields)) {
            INFO(field.key);
            const gsc_entry *e = w.entries.find(field.key);
            CHECK((e ? e->value : 0) == field.value); /* a field that is left out is 0 */
        }
    }
}

TEST_CASE("a scale outside the limits loads with a note; rules that no first scale can follow are "
          "adapted with one",
          "[formats]")
{
    const Policy narrow = preset_policy("recommended").init_scale(4).max_scale(8).min_scale(2);
    for (const auto &[scale, field] :
         {std::pair("scale 16", "max_scale"), {"scale 1", "min_scale"}, {"scale 4", ""}}) {
        const Read r = import("torch", scale, narrow);
        REQUIRE(r.status == GSC_OK);
        CHECK(r.notes.fields(GSC_NOTE_OUTSIDE_LIMITS) == field);
    }
    // A saved first scale above the saved ceiling; settings that lower the ceiling alone.
    const Read saved = import("gradscaler", "scale 4 init_scale 64 max_scale 8"),
               set = settings("mxnet", "_max_loss_scale 4096"),
               both = settings("mxnet", "_max_loss_scale 4096 init_scale 8192");
    CHECK((saved.policy.init_scale == 8 && saved.notes.find(GSC_NOTE_CHANGED, "init_scale")));
    CHECK((set.policy.init_scale == 4096 && set.notes.find(GSC_NOTE_CHANGED, "init_scale")));
    CHECK(settings("torch", "max_scale 50000.1").status == GSC_OK); // which no float is
    CHECK(both.status == GSC_ERROR_VALUE);
    CHECK_WORDING(both.says("of \"init_scale\" is 8192: it must be at most max_scale"));
    // A framework that never stops, read into a policy that holds.
    const Read never =
        import("deepspeed_fp16", write("deepspeed_fp16", preset_policy("deepspeed")).entries,
               preset_policy("recommended"));
    CHECK((never.policy.bad_loss_rule == 0 && never.notes.find(GSC_NOTE_CHANGED, "bad_loss_rule")));
}

TEST_CASE("a dictionary of a skip without its events goes on as one of a step", "[formats]")
{
    const Read r = import("gradscaler", "scale 8 guard_multiplier 0");
    CHECK((r.status == GSC_OK && r.state.skip == 0 && r.state.guard_multiplier == 1));
    const Read skipped = import("gradscaler", "scale 8 guard_multiplier 0 events 4");
    CHECK((skipped.state.skip == 1 && skipped.state.guard_multiplier == 0));
}

TEST_CASE("entries of a candidate before 0.10 are refused", "[formats]")
{
    const Read r = import("gradscaler", "scale 8 log2_mean 0 good_steps 3");
    CHECK((r.status == GSC_ERROR_VERSION && r.err.index == 1));
    CHECK_WORDING(
        std::string(r.err.message).find("entries[1].key cannot be read by this version (") == 0);
    CHECK(settings("gradscaler", "target_amax 0 init_scale 8").status == GSC_ERROR_VERSION);
}

TEST_CASE("a number that Cerebras' documentation writes for a power of two is read with a note",
          "[formats]")
{
    const Read r = settings("cerebras", "max_loss_scale 2e15 min_loss_scale 2e-14");
    CHECK((r.policy.max_scale == 2e15 && r.policy.min_scale == 2e-14));
    REQUIRE(r.notes.size() == 2);
    CHECK_WORDING(r.first_note() == "\"max_loss_scale\" is 2e+15: if 2^15 is meant, write 32768");
    CHECK(r.notes[1].entry == 1);
    CHECK(settings("cerebras", "max_loss_scale 32768").notes.empty());
}

TEST_CASE("settings that mean nothing are refused", "[formats]")
{
    CHECK_WORDING(settings("apex", "loss_scale dynamical").message() ==
                  "entries[0].value of \"loss_scale\" is \"dynamical\": it must be a number or "
                  "\"dynamic\"");
    for (const Read &r :
         {settings("apex", "hysteresis_refill now"), settings("torch", "growth_factor 0.5"),
          settings("deepspeed", "initial_scale_power 5000"), settings("fairseq", "threshold -1")})
        CHECK((r.status == GSC_ERROR_VALUE && r.err.index == 0));
    CHECK(settings("fp", {}).status == GSC_ERROR_FORMAT);
}

TEST_CASE("null leaves the policy's value, with a note", "[formats]")
{
    for (const auto &[format, key] : {std::pair("fairseq", "fp16_scale_window"),
                                      {"torch", "growth_interval"},
                                      {"torch", "init_scale"},
                                      {"deepspeed", "loss_scale_window"},
                                      {"deepspeed", "initial_scale_power"}}) {
        INFO(format << ": " << key);
        const Read r = settings(format, std::string(key) + " null");
        REQUIRE(r.status == GSC_OK);
        CHECK(same(r.policy, preset_policy(format)));
        REQUIRE(r.notes.size() == 1);
        CHECK((r.notes[0].kind == GSC_NOTE_MISSING && r.notes[0].entry == 0));
    }
    CHECK_WORDING(settings("torch", "growth_interval null").first_note() ==
                  "\"growth_interval\" is empty: growth_interval stays 2000, as in the policy");
    const Read window = settings("fairseq", "fp16_scale_window null");
    CHECK_WORDING(
        window.first_note() ==
        "\"fp16_scale_window\" is empty: growth_interval stays 2000, where fairseq takes 2^14 / "
        "data-parallel size / update_freq: set it");
    CHECK(window.notes[0].value == 2000);
    /* Another key says it. */
    CHECK(settings("fairseq", "fp16_scale_window null scale_window 7").notes.empty());
    /* Also in a checkpoint. */
    Entries list = torch_entries;
    list[3].kind = GSC_ENTRY_NULL;
    for (int place : {3, 0}) {
        std::swap(list[3], list[static_cast<size_t>(place)]);
        const Read r = import("torch", list);
        CHECK(r.policy.growth_interval == 2000);
        REQUIRE(r.notes.size() == 1);
        CHECK(r.notes[0].entry == place);
    }
}

TEST_CASE("if settings switch scaling off, the guard of the policy stays", "[formats]")
{
    const auto guarded = [](const Policy &p) {
        const uint32_t flags = GSC_GUARD_CLIP | GSC_GUARD_CLIP_PROGRESSIVE;
        return p.guard_norm(5).guard_max_in_a_row(3).guard_flags(flags);
    };
    const Policy p = guarded(preset_policy("recommended")), none = guarded(zeros),
                 fixed = none.init_scale(128).arithmetic(GSC_ARITHMETIC_F64_TO_F32);
    CHECK(same(settings("deepspeed", "bf16.enabled 1", p).policy, none));
    for (const char *off : {"fp16 1 loss_scale 128", "bf16 1 loss_scale 128"})
        CHECK(same(settings("megatron", off, p).policy, fixed));
}

TEST_CASE("DeepSpeed scales nothing in bf16", "[formats]")
{
    const gsc_policy none = preset_policy("none"), torch = preset_policy("torch"),
                     guard = preset_policy("guard"), fixed = preset_policy("static");
    for (const char *format : {"deepspeed", "deepspeed_fp16"}) {
        const Entries on = "bf16.enabled 1 fp16.enabled 0 fp16.hysteresis 3 lr 1";
        for (const char *prefix : {(const char *)nullptr, "", "bf16"}) {
            const Read r = settings(format, on, {}, prefix);
            CHECK(same(r.policy, none));
            REQUIRE(r.notes.size() == 1);
            CHECK((r.notes[0].kind == GSC_NOTE_CHANGED && r.notes[0].value == 1));
            CHECK_WORDING(r.first_note().find("\"bf16\" is not scaled") == 0);
            CHECK(same(settings(format, on, torch, prefix).policy, none));
            CHECK(same(settings(format, on, guard, prefix).policy, guard));
            CHECK(settings(format, on, fixed, prefix).policy.init_scale == 1);
        }
        CHECK(settings(format, "fp16.hysteresis 3 bf16.enabled 1", {}, "fp16").policy.hysteresis ==
              3);
        CHECK(same(settings(format, "ds.bfloat16.enabled auto", {}, "ds.bfloat16").policy, none));
        for (const char *off : {"bf16.enabled 0", "bf16.enabled 1 fp16.enabled 1"})
            CHECK(!same(settings(format, off).policy, none));
    }
    CHECK(same(settings("torch", "bf16.enabled 1").policy, torch));
}

TEST_CASE("settings are read below a prefix; one that nobody gave is told, a wrong one refused",
          "[formats]")
{
    const Entries nested =
        "train_batch_size 8 fp16.loss_scale_window 7 fp16.windows 3 optimizer.params.lr 1";
    const Read r = settings("deepspeed", nested, {}, "fp16");
    CHECK(r.policy.growth_interval == 7);
    REQUIRE(r.notes.size() == 1);
    CHECK(r.notes[0].entry == 2);
    CHECK(settings("deepspeed", nested, preset_policy("torch"), "fp16").policy.growth_rule ==
          GSC_GROWTH_EXACT);
    const Entries list = "lr 1 fp16.hysteresis 3 fp16.scale_window 7 a/b.min_scale 2";
    const Read forgotten = settings("deepspeed", list);
    CHECK(same(forgotten.policy, preset_policy("deepspeed")));
    REQUIRE(forgotten.notes.size() == 4);
    CHECK(forgotten.notes[1].kind == GSC_NOTE_IGNORED);
    CHECK_WORDING(std::string(forgotten.notes[1].message) ==
                  "\"fp16.hysteresis\" is left out: it is read with the prefix \"fp16\"");
    for (const Read &r : {settings("deepspeed", list), settings("deepspeed", list, {}, "a")})
        CHECK_WORDING(
            r.notes[r.notes.size() == 4 ? 3 : 0].message ==
            std::string("\"a/b.min_scale\" is left out: it is read with the prefix \"a/b\""));
    check_refused(settings("deepspeed", list, {}, "fp15"),
                  "prefix is \"fp15\": no key begins with it; there is \"fp16\", \"a/b\"");
    for (const Entries &none : {Entries("lr 1"), Entries()})
        check_refused(settings("deepspeed", none, {}, "fp16"),
                      "prefix is \"fp16\": no key begins with it");
}

TEST_CASE(
    "unknown keys are in the notes, deeper ones are ignored, and one that is like a setting is "
    "proposed",
    "[formats]")
{
    const std::string unknown =
        "\"growth_intervall\" means nothing in the format torch: it is left out";
    const Read r =
        import("torch", torch_entries + "growth_intervall 9 optimizer.lr 9" + Entries(1));
    REQUIRE(r.notes.size() == 1);
    CHECK((r.notes[0].kind == GSC_NOTE_IGNORED && r.notes[0].entry == 5));
    CHECK_WORDING(r.first_note() == unknown);
    CHECK_WORDING(settings("torch", "growth_intervall 9").first_note() ==
                  unknown + "; did you mean \"growth_interval\"?");
    CHECK_WORDING(settings("torch", "lr 9").first_note() ==
                  "\"lr\" means nothing in the format torch: it is left out");
    Entries many;
    for (int i = 0; i < 20000; i++)
        many.push_back(number("unknown" + std::to_string(i), 1));
    CHECK(settings("torch", many).notes.size() >= 20000);
}
