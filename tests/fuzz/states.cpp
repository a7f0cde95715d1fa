// SPDX-License-Identifier: MIT
// Policies of random fields, the scales that they lead to, and what was saved of them: a policy
// that is accepted keeps its promises over any reports, and bytes that were damaged are refused or
// load to a state that can be used.
#include "fuzz.hpp"

namespace {

constexpr uint64_t head_size = 32;

/* The fields of one type. */
template <class T> std::vector<T gsc_policy::*> fields()
{
    std::vector<T gsc_policy::*> all;
    const auto add = [&](auto field) {
        if constexpr (std::is_same_v<decltype(field), T gsc_policy::*>)
            all.push_back(field);
    };
#define ADD(field) add(&gsc_policy::field);
    FOR_POLICY(ADD)
#undef ADD
    return all;
}

gsc_policy random_policy(Source &source)
{
    static const auto doubles = fields<double>();
    static const auto words = fields<uint32_t>();
    gsc_policy p = GSC_POLICY_INIT;
    const std::string name = random_preset(source);
    if (!source.one_in(4))
        gsc_policy_preset(name.c_str(), &p, nullptr);
    for (uint64_t changes = source.below(8); changes > 0; changes--) {
        const uint64_t kind = source.below(3);
        if (kind == 0) {
            p.*words[source.below(words.size())] =
                static_cast<uint32_t>(source.one_in(16) ? source.bits(4) : source.below(5));
        } else if (kind == 1) {
            p.growth_interval = source.one_in(8) ? source.bits(8) : source.below(20);
            p.max_failed_backoffs = source.below(20);
            p.guard_warmup = source.below(20);
            p.guard_max_in_a_row = source.below(20);
        } else {
            p.*doubles[source.below(doubles.size())] = source.number();
        }
    }
    return p;
}

/* Returns whether the rule drops a change that would reach a limit, 0 or infinity. */
bool drops(uint32_t rule)
{
    return rule == GSC_LIMIT_REJECT || rule == GSC_LIMIT_STOP;
}

/* Checks what a policy promises of its scales; `start` is the last scale that was given. */
void check_scale(const gsc_policy &p, double scale, double start)
{
    const bool has_ceiling = p.max_scale != 0 && std::isfinite(p.max_scale),
               has_floor = p.min_scale != 0, keeps_ceiling = drops(p.ceiling_rule),
               keeps_floor = drops(p.floor_rule);
    claim(scale >= 0, "a scale is a number");
    claim(p.arithmetic == GSC_ARITHMETIC_F64 ||
              scale == static_cast<double>(static_cast<float>(scale)),
          "a scale is rounded by the policy's arithmetic");
    claim(std::isfinite(scale) || !std::isfinite(start) || !(has_ceiling || keeps_ceiling),
          "a ceiling keeps the scale finite");
    claim(scale > 0 || start == 0 || !(has_floor || keeps_floor),
          "a floor keeps the scale above 0");
    claim(!has_ceiling || scale <= std::max(start, p.max_scale), "the ceiling holds");
    claim(!has_floor || scale >= std::min(start, p.min_scale), "the floor holds");
}

/* Checks the counts that only a diagnosis reads. */
void check_counts(const gsc_policy &p, const gsc_state &before, const gsc_state &after,
                  const gsc_report &report)
{
    const bool bad = report.loss == GSC_LOSS_NOT_FINITE, overflow = says_overflow(report),
               known = !overflow || report.nan_count + report.inf_count > 0 ||
                       report.kind == GSC_REPORT_TENSORS,
               empty = report.elements == 0 && !overflow && !report.has_flag &&
                       (report.kind == GSC_REPORT_TENSORS || report.kind == GSC_REPORT_MERGED);
    const bool keeps = report.loss == GSC_LOSS_UNKNOWN && is_overflow(p, report);
    claim(after.total_updates == before.total_updates + 1, "updates are counted");
    claim(after.total_bad_losses == before.total_bad_losses + bad &&
              after.bad_losses_in_a_row == (bad     ? before.bad_losses_in_a_row + 1
                                            : keeps ? before.bad_losses_in_a_row
                                                    : 0),
          "bad losses are counted");
    claim(after.nans_in_a_row == (!known                 ? before.nans_in_a_row
                                  : report.nan_count > 0 ? before.nans_in_a_row + 1
                                                         : 0),
          "NaN in a row are counted");
    claim(after.empty_in_a_row == (empty ? before.empty_in_a_row + 1 : 0) &&
              !(after.events & GSC_EVENT_EMPTY) == !empty,
          "steps without gradients are counted");
    claim(after.total_guard_clips ==
              before.total_guard_clips + (after.events & GSC_EVENT_CLIPPED ? 1 : 0),
          "what the guard clipped is counted");
    claim(after.events & GSC_EVENT_GREW ? after.updates_at_growth == after.total_updates &&
                                              after.overflows_at_growth == after.total_overflows
                                        : after.updates_at_growth <= after.total_updates,
          "a growth is remembered");
}

/* Checks an update of a policy that holds because of a bad loss. */
void check_held(const gsc_policy &p, const gsc_state &before, const gsc_state &after, bool is_stale)
{
    const bool stops = static_cast<uint64_t>(after.bad_losses_in_a_row) >= p.max_failed_backoffs;
    gsc_state expected = before;
    expected.factor = p.apply_delay ? before.next : after.next;
    expected.next.generation = before.next.generation + 1;
    expected.events = GSC_EVENT_SKIPPED | GSC_EVENT_BAD_LOSS | (after.events & GSC_EVENT_EMPTY) |
                      (stops ? GSC_EVENT_STOPPED : 0) | (is_stale ? GSC_EVENT_STALE : 0);
    expected.skip = 1;
    expected.skip_f32 = 1;
    expected.guard_multiplier = expected.guard_threshold = expected.guard_value = 0;
    expected.status = GSC_OK;
    for (int64_t gsc_state::*count :
         {&gsc_state::bad_losses_in_a_row, &gsc_state::total_bad_losses, &gsc_state::total_updates,
          &gsc_state::nans_in_a_row, &gsc_state::empty_in_a_row})
        expected.*count = after.*count; /* see check_counts */
    claim(same(after, expected), "a held step changes no more than the counts", words_of(expected));
}

/* Checks what must hold for any update of a state. */
void check_update(const gsc_policy &p, const gsc_state &before, const gsc_state &after,
                  bool overflow, bool is_stale)
{
    const double old = before.next.scale, scale = after.next.scale;
    const uint32_t moves = after.events & (GSC_EVENT_GREW | GSC_EVENT_BACKED_OFF);
    claim(moves == (scale > old   ? GSC_EVENT_GREW
                    : scale < old ? GSC_EVENT_BACKED_OFF
                                  : 0),
          "events say how the scale moved");
    const bool outlier = after.events & GSC_EVENT_OUTLIER,
               skipped = overflow || (outlier && after.guard_multiplier == 0);
    claim(!(after.events & GSC_EVENT_SKIPPED) == !skipped,
          "an overflow or an outlier, and no other step, is skipped");
    claim(!(outlier && overflow) && (guards(p) || !outlier), "only a guard finds outliers");
    claim(after.total_guard_skips == before.total_guard_skips + (skipped && !overflow),
          "what the guard skipped is counted");
    claim(after.events & GSC_EVENT_CLIPPED || after.guard_multiplier == !skipped,
          "a step is taken as it is, clipped or skipped");
    claim(after.next.generation == before.next.generation + 1, "generations count updates");
    claim(!(after.events & GSC_EVENT_STALE) == !is_stale, "a stale report is found");
    claim(after.skip == skipped && after.skip_f32 == static_cast<float>(skipped),
          "skip and skip_f32 are what is skipped");
    claim(same(after.factor, p.apply_delay ? before.next : after.next),
          "the scale is in force in time");
    claim(after.total_overflows == before.total_overflows + overflow &&
              after.total_growths == before.total_growths + (scale > old) &&
              after.total_backoffs == before.total_backoffs + (scale < old),
          "the totals count");
}

gsc_report random_report(Random &random, uint64_t overflows_in_256, int kind)
{
    const double floats_end = static_cast<double>(std::numeric_limits<float>::max());
    const double ends[] = {nan_value,  infinity,
                           floats_end, std::nextafter(floats_end, infinity),
                           0x1p1000,   std::nextafter(0x1p1000, infinity)};
    const float found_inf[] = {0, -0.0f, 1, 2, HUGE_VALF, NAN};
    gsc_report r = measured;
    if (random.next() % 256 < overflows_in_256) {
        r.overflow = static_cast<int32_t>(random.next() % 4);
        r.found_inf = found_inf[random.next() % 6];
    }
    const double any = std::ldexp(1 + random.unit(), static_cast<int>(random.next() % 2000) - 1000);
    r.amax = kind == 0 ? any : kind == 1 ? 3.25 : random.unit() * 1e-3;
    if (random.next() % 16 == 0)
        r.amax = 0;
    r.sum_squares = random.next() % 64 ? r.amax : ends[random.next() % 6];
    r.generation = random.next() % 4;
    return r;
}

void damage(Bytes &bytes, Source &source)
{
    for (uint64_t changes = source.below(8); changes > 0; changes--) {
        const uint64_t at = source.below(bytes.size());
        const double number = source.number();
        const uint64_t word = bit_cast<uint64_t>(number) + source.below(3) - 1;
        const uint64_t kind = source.below(4);
        if (kind == 0)
            bytes[at] ^= static_cast<unsigned char>(1u << source.below(8));
        else if (kind == 1)
            bytes.resize(std::max<uint64_t>(at, 8));
        else if (kind == 2)
            bytes.resize(bytes.size() + 8 * source.below(40));
        else if (at / 8 * 8 + 8 <= bytes.size())
            std::memcpy(&bytes[at / 8 * 8], &word, 8);
        if (kind == 2 && bytes.size() >= head_size) { /* sizes as of a later version */
            const auto size = static_cast<uint32_t>(bytes.size());
            const uint32_t policy_size = size - uint32_t{head_size + sizeof(gsc_state) + 4};
            std::memcpy(&bytes[12], &size, 4);
            std::memcpy(&bytes[16], &policy_size, 4);
            std::memcpy(&bytes[head_size], &policy_size, std::min<uint64_t>(4, size - head_size));
        }
    }
    if (bytes.size() >= 4 && !source.one_in(4)) {
        const uint32_t crc = crc32(bytes.data(), bytes.size() - 4);
        std::memcpy(&bytes[bytes.size() - 4], &crc, 4);
    }
}

/* A policy struct of an older or newer client, which ends where its block does. */
Bytes sized_policy(uint64_t size)
{
    Bytes bytes(size);
    const auto struct_size = static_cast<uint32_t>(size);
    std::memcpy(bytes.data(), &struct_size, 4);
    return bytes;
}

void load_damaged(Bytes bytes, Source &source)
{
    damage(bytes, source);
    Bytes policy = sized_policy(source.one_in(2) ? GSC_POLICY_SIZE : 8 * (1 + source.below(40)));
    const Bytes policy_before = policy;
    gsc_state state, marked;
    std::memset(&marked, 0x5a, sizeof marked);
    state = marked;
    gsc_error err = {};
    auto *const loaded = reinterpret_cast<gsc_policy *>(policy.data());
    const gsc_status status = gsc_state_load(bytes.data(), bytes.size(), loaded, &state, &err);
    if (status != GSC_OK) {
        check_error(err, status);
        claim(same(state, marked) && policy == policy_before, "a refused load writes nothing");
        return;
    }
    describe = [&] { return words_of(state); };
    claim(gsc_policy_check(loaded, &err) == GSC_OK, "a loaded policy can be used", err.message);
    unsigned char again[GSC_SAVED_SIZE_MAX];
    uint64_t size;
    claim(gsc_state_save(loaded, &state, again, sizeof again, &size, &err) == GSC_OK,
          "a loaded state can be saved", err.message);
    if (std::memcmp(again, bytes.data(), 24) == 0) /* else of other sizes, or an older format */
        claim(std::memcmp(again + head_size, &bytes[head_size], size - head_size - 4) == 0,
              "what was loaded is saved as the same bytes");
    Random random = {source.bits(4)};
    for (int i = 0; i < 20; i++) { /* absurd counts may end it */
        const gsc_report report = random_report(random, 64, 0);
        const gsc_state before = state;
        const gsc_status updated =
            gsc_state_update(nullptr, loaded, &state, &report, &state, nullptr);
        claim(updated == GSC_OK || updated == GSC_ERROR_STATE, "a loaded state can be updated");
        if (updated == GSC_OK) {
            claim(!std::isnan(state.next.scale), "a scale is a number", words_of(before));
        } else {
            claim(same(before, state), "a refused update writes nothing");
            break;
        }
    }
}

/* The same state with another scale in force, or none where that is no scale; the scale it has. */
double remade(const gsc_policy &p, gsc_state &state, double scale)
{
    gsc_state from = state, made;
    from.factor.inverse = from.next.scale = NAN; /* which nobody reads, nor the floats */
    from.factor.inverse_f32 = from.factor.scale_f32 = -1;
    from.factor.scale = scale;
    const gsc_status status = gsc_state_init_from(nullptr, &p, &from, &made, nullptr);
    claim(status == (scale >= 0 ? GSC_OK : GSC_ERROR_STATE),
          "any scale but NaN and negative is taken");
    if (status != GSC_OK)
        return state.next.scale;
    gsc_state expected = from;
    expected.factor = expected.next = made.factor;
    expected.events = 0;
    expected.status = GSC_OK;
    expected.skip_f32 = 0, expected.skip = 0;
    expected.guard_multiplier = 1;
    expected.guard_value = expected.guard_threshold = 0;
    claim(same(made, expected) && made.factor.generation == from.next.generation + 1 &&
              made.factor.inverse == 1 / made.factor.scale,
          "a state made from another has its counts", words_of(made));
    state = made;
    return made.factor.scale;
}

} // namespace

void fuzz_states(Source &source)
{
    gsc_policy p = random_policy(source);
    gsc_state state, marked;
    gsc_error err = {};
    std::memset(&marked, 0x5a, sizeof marked);
    state = marked;
    describe = [&] { return words_of(p) + words_of(state); };
    const gsc_status status = gsc_policy_check(&p, &err);
    claim(gsc_state_init(nullptr, &p, &state, nullptr) == status, "init and check agree");
    if (status != GSC_OK) {
        check_error(err, GSC_ERROR_POLICY);
        claim(std::string(err.name) == "policy" && err.field[0],
              "a bad policy is refused by its field", err.message);
        claim(same(state, marked), "a refused init writes nothing");
        return;
    }

    double start = state.next.scale;
    check_scale(p, start, start);
    Random random = {source.bits(4)};
    const uint64_t shares[] = {0, 1, 16, 128, 250, 256}, share = shares[source.below(6)];
    const int kind = static_cast<int>(source.below(3)), steps = source.one_in(4) ? 1000 : 100;
    for (int i = 0; i < steps; i++) {
        gsc_report report = random_report(random, share, kind);
        if (report.generation > 1) /* or unknown, or of long ago */
            report.generation = state.factor.generation;
        const gsc_state before = state;
        claim(gsc_state_update(nullptr, &p, &state, &report, &state, &err) == GSC_OK,
              "a state of updates can be updated", err.message);
        const bool is_stale =
            report.generation != 0 && report.generation != before.factor.generation;
        check_counts(p, before, state, report);
        if (holds(p, report))
            check_held(p, before, state, is_stale);
        else
            check_update(p, before, state, is_overflow(p, report), is_stale);
        check_scale(p, state.next.scale, start);
        if (source.at < source.end && source.one_in(16))
            start = remade(p, state, source.number());
    }

    Bytes bytes(GSC_SAVED_SIZE_MAX);
    uint64_t size = 0, needed = 0;
    claim(gsc_state_save(&p, &state, bytes.data(), bytes.size(), &size, &err) == GSC_OK,
          "a state of updates can be saved", err.message);
    claim(gsc_state_save(&p, &state, nullptr, 0, &needed, nullptr) == GSC_OK && needed == size,
          "the size is known before");
    bytes.resize(size);
    gsc_policy loaded_policy = GSC_POLICY_INIT;
    gsc_state loaded;
    claim(gsc_state_load(bytes.data(), size, &loaded_policy, &loaded, &err) == GSC_OK &&
              same(loaded, state) && same(loaded_policy, p),
          "what was saved is loaded", err.message);
    load_damaged(std::move(bytes), source);
}
