// SPDX-License-Identifier: MIT
// Saved states: the bytes equal a golden, any damage is refused and changes nothing, older
// and newer policies are read as far as they can be, and a loaded scaler goes on as if never saved.
#include <iomanip>

#include "support.hpp"

namespace {

/* A policy with a different value in every field. */
gsc_policy golden_policy()
{
    Policy p = zeros.init_scale(1024).growth_factor(4).backoff_factor(0.25).growth_interval(2);
    p = p.growth_rule(GSC_GROWTH_EVERY).growth_extra_steps(1).max_scale(0x1p24).min_scale(0x1p-14);
    p = p.ceiling_rule(GSC_LIMIT_REJECT).floor_rule(GSC_LIMIT_STOP).overflow_test(GSC_TEST_NORM);
    p = p.overflow_reset(GSC_RESET_ON_GROWTH | GSC_RESET_ON_BACKOFF).hysteresis(2).apply_delay(1);
    p = p.overflow_tolerance(0.125).max_failed_backoffs(10).quirks(GSC_QUIRK_TOLERANCE_EXCLUSIVE);
    p = p.arithmetic(GSC_ARITHMETIC_F32).bad_loss_rule(GSC_BAD_LOSS_HOLD);
    p = p.guard_norm(3).guard_ratio(4).guard_sigmas(6).guard_decay(0.5).guard_init_mean(1.5);
    p = p.guard_warmup(17).guard_max_in_a_row(18).guard_sample(GSC_SAMPLE_NONE);
    return p.guard_flags(GSC_GUARD_CLIP | GSC_GUARD_VARIANCE_AFTER_MEAN);
}

/* A policy without its fields from an offset on. */
gsc_policy first_fields(const gsc_policy &p, size_t size)
{
    gsc_policy first = GSC_POLICY_INIT;
    std::memcpy(&first, &p, size);
    return first;
}

gsc_state after(const gsc_policy &p, const std::string &steps)
{
    gsc_state state = started(p);
    for (char step : steps)
        state = updated(p, state, report_of(step, 1.5));
    return state;
}

Bytes saved(const gsc_policy &p, const gsc_state &s)
{
    Bytes bytes(GSC_SAVED_SIZE_MAX);
    uint64_t size = 0;
    REQUIRE(gsc_state_save(&p, &s, bytes.data(), bytes.size(), &size, nullptr) == GSC_OK);
    bytes.resize(size);
    return bytes;
}

Bytes golden_bytes()
{
    return saved(golden_policy(), after(golden_policy(), "..x.x.."));
}

std::string hex(const Bytes &bytes)
{
    std::ostringstream text;
    for (unsigned byte : bytes)
        text << std::hex << std::setfill('0') << std::setw(2) << byte;
    return text.str();
}

/* The bytes with another value at an offset, and a checksum that fits. */
template <class T> Bytes changed(Bytes bytes, size_t offset, T value)
{
    REQUIRE(offset + sizeof value + 4 <= bytes.size());
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    const uint32_t crc = crc32(bytes.data(), bytes.size() - 4);
    std::memcpy(bytes.data() + bytes.size() - 4, &crc, 4);
    return bytes;
}

struct Loaded {
    gsc_policy policy;
    gsc_state state;
    gsc_status status;
    bool untouched;
};

/* Loads into marked structs. */
Loaded load(const Bytes &bytes)
{
    Loaded l, marked;
    std::memset(&marked, 0x5a, sizeof marked);
    marked.policy.struct_size = GSC_POLICY_SIZE;
    l = marked;
    l.status = gsc_state_load(bytes.data(), bytes.size(), &l.policy, &l.state, nullptr);
    l.untouched = same(l.policy, marked.policy) && same(l.state, marked.state);
    return l;
}

constexpr size_t format_at = 8, size_at = 12, policy_size_at = 16, state_size_at = 20,
                 version_at = 24, policy_at = 32, state_at = policy_at + GSC_POLICY_SIZE;

} // namespace

TEST_CASE("the saved bytes never change", "[state]")
{
    const std::string head = "47534353544154450300000054020000b0000000800100000000000000000000",
                      policy = "b00000000200000000000000000090400000000000001040000000000000d03f"
                               "020000000000000002000000010000000000000000007041000000000000103f"
                               "020000000300000001000000020000000500000001000000000000000000c03f"
                               "0a00000000000000010000000100000000000000000008400000000000001040"
                               "0000000000001840000000000000e03f000000000000f83f1100000000000000"
                               "12000000000000000100000021000000",
                      state = "0000000000007040000000000000703f000080430000803b0700000000000000"
                              "0000000000007040000000000000703f000080430000803b0800000000000000"
                              "0200000000000000020000000000000000000000000000000000000000000000"
                              "0000000000000000000000000000000007000000000000000200000000000000"
                              "0000000000000000000000000000000001000000000000000000000000000000"
                              "0000000000000000000000000000000005000000000000000000000000000000"
                              "0000000000000000000000000000f03f00000000000000000000000000000000"
                              "0000000000000000000000000000000000000000000000000100000000000000" +
                              std::string(256, '0');
    CHECK(golden_bytes() == changed(golden_bytes(), version_at, GSC_VERSION));
    CHECK(hex(changed(golden_bytes(), version_at, 0)) == head + policy + state + "51ef8c79");
}

TEST_CASE("bytes and states of a candidate before 0.10 are refused, by one sentence", "[state]")
{
    static const unsigned char by_0_9[] = {
#include "saved_by_0_9.inc"
    };
    const Bytes bytes(by_0_9, by_0_9 + sizeof by_0_9);
    gsc_state state;
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_error err = {};
    const auto says = [&](const std::string &subject) {
        CHECK_WORDING(err.message ==
                      subject + " cannot be read by this version (" + gsc_version_string() +
                          "): 0.9 or an earlier candidate saved this; start anew, and set "
                          "the old scale");
        err = {};
    };
    for (uint32_t format : {2u, 1u}) {
        const Bytes old = changed(bytes, format_at, format);
        CHECK((load(old).status == GSC_ERROR_VERSION && load(old).untouched));
        CHECK(gsc_state_load(old.data(), old.size(), &policy, &state, &err) == GSC_ERROR_VERSION);
        says("bytes");
    }
    const gsc_policy torch = preset_policy("torch");
    std::memcpy(&state, bytes.data() + bytes.size() - 4 - sizeof state, sizeof state);
    CHECK(gsc_state_update(nullptr, &torch, &state, &measured, &state, &err) == GSC_ERROR_VERSION);
    says("state");
    CHECK(gsc_state_init_from(nullptr, &torch, &state, &state, &err) == GSC_ERROR_VERSION);
    says("from");
}

/* ---- damage ---- */

TEST_CASE("no byte can change unnoticed, none be missing and none too many", "[state]")
{
    const auto refused = [](const Bytes &bytes) {
        const Loaded l = load(bytes);
        return (l.status == GSC_ERROR_CORRUPT || l.status == GSC_ERROR_VERSION) && l.untouched;
    };
    const Bytes bytes = golden_bytes();
    for (size_t i = 0; i < bytes.size(); i++)
        for (unsigned flip : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u, 255u}) {
            Bytes damaged = bytes;
            damaged[i] = static_cast<unsigned char>(damaged[i] ^ flip);
            if (!refused(damaged))
                FAIL("byte " << i << " flipped by " << flip);
        }
    for (size_t size = 0; size < bytes.size(); size++) {
        Bytes part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
        part.reserve(1); // not NULL, even if empty
        CAPTURE(size);
        CHECK(refused(part));
    }
    Bytes longer = bytes;
    longer.push_back(0);
    CHECK(refused(longer));
    CHECK(refused(Bytes(GSC_SAVED_SIZE_MAX)));
}

TEST_CASE("absurd values with a checksum that fits are refused", "[state]")
{
    REQUIRE(crc32(reinterpret_cast<const unsigned char *>("123456789"), 9) == 0xcbf43926);
    const Bytes bytes = golden_bytes();
    REQUIRE(load(changed(bytes, 0, 'G')).status == GSC_OK); // so that the rows fail for their value
    const std::pair<Bytes, gsc_status> rows[] = {
        {changed(bytes, 0, 'g'), GSC_ERROR_CORRUPT},
        {changed(bytes, format_at, 4u), GSC_ERROR_VERSION},
        {changed(bytes, format_at, 0u), GSC_ERROR_VERSION},
        {changed(bytes, version_at + 4, 1u), GSC_ERROR_VERSION},
        {changed(bytes, size_at, 300u), GSC_ERROR_CORRUPT},
        {changed(bytes, policy_size_at, GSC_POLICY_SIZE - 8), GSC_ERROR_CORRUPT},
        {changed(bytes, policy_size_at, 0u), GSC_ERROR_CORRUPT},
        {changed(bytes, policy_size_at, 0xffffff00u), GSC_ERROR_CORRUPT},
        {changed(bytes, state_size_at, 376u), GSC_ERROR_CORRUPT},
        {changed(changed(bytes, policy_size_at, GSC_POLICY_SIZE - 8), state_size_at, 392u),
         GSC_ERROR_CORRUPT},
        {changed(bytes, policy_at, 7u), GSC_ERROR_CORRUPT},
        {changed(bytes, policy_at + offsetof(gsc_policy, init_scale), -1.0), GSC_ERROR_POLICY},
        {changed(bytes, policy_at + offsetof(gsc_policy, quirks), 64u), GSC_ERROR_POLICY},
        {changed(bytes, state_at + offsetof(gsc_state, next.scale), nan_value), GSC_ERROR_STATE},
        {changed(bytes, state_at + offsetof(gsc_state, good_steps), int64_t{-1}), GSC_ERROR_STATE},
        {changed(bytes, policy_at + offsetof(gsc_policy, bad_loss_rule), 2u), GSC_ERROR_POLICY},
        {changed(bytes, state_at + offsetof(gsc_state, skip), 2u), GSC_ERROR_STATE},
        {changed(bytes, state_at + offsetof(gsc_state, reserved), uint64_t{42}), GSC_ERROR_STATE},
        {changed(bytes, state_at + sizeof(gsc_state) - 8, uint64_t{1}), GSC_ERROR_STATE},
    };
    for (const auto &[absurd, status] : rows) {
        const Loaded l = load(absurd);
        CAPTURE(&absurd - &rows[0].first);
        CHECK((l.status == status && l.untouched));
    }
}

TEST_CASE("what only a later version knows is refused as its, by number", "[state]")
{
    const Bytes later = changed(golden_bytes(), version_at, 0x00010203u);
    CHECK(load(later).status == GSC_OK);
    const Bytes rows[] = {
        changed(later, policy_at + offsetof(gsc_policy, guard_flags), 1u << 20),
        changed(later, policy_at + offsetof(gsc_policy, growth_rule), 9u),
        changed(later, policy_at + offsetof(gsc_policy, bad_loss_rule), 2u),
        changed(later, state_at + offsetof(gsc_state, events), 1u << 20),
        changed(later, state_at + offsetof(gsc_state, reserved), uint64_t{1}),
    };
    for (const Bytes &bytes : rows) {
        gsc_policy policy = GSC_POLICY_INIT;
        gsc_state state;
        gsc_error err;
        CHECK(gsc_state_load(bytes.data(), bytes.size(), &policy, &state, &err) ==
              GSC_ERROR_VERSION);
        CHECK_WORDING(std::string(err.message).find("bytes were saved by version 1.2.3") == 0);
    }
}

TEST_CASE("a saved state can be longer if the extra bytes are zero", "[state]")
{
    Bytes longer = golden_bytes();
    longer.insert(longer.end() - 4, 16, 0);
    const auto size = static_cast<uint32_t>(longer.size());
    longer = changed(changed(longer, size_at, size), state_size_at, 400u);
    const Loaded l = load(longer);
    CHECK((l.status == GSC_OK && same(l.state, load(golden_bytes()).state)));
    CHECK(load(changed(longer, longer.size() - 12, uint8_t{1})).status == GSC_ERROR_VERSION);
}

/* ---- capacity ---- */

TEST_CASE("a buffer that is too small is left alone, and one of the size is filled", "[state]")
{
    const gsc_policy p = golden_policy();
    const gsc_state s = after(p, "..x.x..");
    const Bytes golden = golden_bytes(), marked(golden.size() + 1, 0x5a);
    Bytes buffer = marked;
    uint64_t size = golden.size();
    CHECK(gsc_state_save(&p, &s, buffer.data(), size - 1, &size, nullptr) == GSC_ERROR_CAPACITY);
    CHECK(buffer == marked);
    CHECK(gsc_state_save(&p, &s, buffer.data(), golden.size(), &size, nullptr) == GSC_OK);
    CHECK((buffer[size - 1] == golden[size - 1] && buffer.back() == 0x5a));
}

/* ---- older and newer policies ---- */

TEST_CASE("a policy struct without the guard's fields is filled as far as it goes, or refused; one "
          "that is saved is zero-extended",
          "[state]")
{
    constexpr uint32_t old_size = offsetof(gsc_policy, guard_norm);
    const gsc_policy first = first_fields(golden_policy(), old_size);
    const auto load_old = [](const gsc_policy &p, gsc_policy *old) {
        const Bytes bytes = saved(p, started(p));
        gsc_state state;
        std::memset(old, 0x5a, sizeof *old);
        old->struct_size = old_size;
        return gsc_state_load(bytes.data(), bytes.size(), old, &state, nullptr);
    };
    gsc_policy old, expected;
    CHECK(load_old(golden_policy(), &old) == GSC_ERROR_STRUCT_SIZE); // lacks guard_norm ...
    CHECK(load_old(first, &old) == GSC_OK);
    std::memset(&expected, 0x5a, sizeof expected);
    std::memcpy(&expected, &first, old_size);
    expected.struct_size = old_size;
    CHECK(same(old, expected));
    gsc_policy p = golden_policy();
    p.struct_size = old_size; // the rest is none of the library's business
    const Loaded l = load(saved(p, started(p)));
    CHECK((l.status == GSC_OK && same(l.policy, first)));
}

TEST_CASE("a policy of a newer library is read if it sets nothing new", "[state]")
{
    Bytes bytes = golden_bytes();
    constexpr uint32_t new_size = GSC_POLICY_SIZE + 8;
    bytes.insert(bytes.begin() + state_at, 8, 0);
    bytes = changed(bytes, size_at, static_cast<uint32_t>(bytes.size()));
    bytes = changed(changed(bytes, policy_size_at, new_size), policy_at, new_size);
    const Loaded l = load(bytes), sets = load(changed(bytes, state_at, uint64_t{1}));
    CHECK((l.status == GSC_OK && same(l.policy, golden_policy())));
    CHECK(same(l.state, load(golden_bytes()).state));
    CHECK((sets.status == GSC_ERROR_VERSION && sets.untouched));
}
