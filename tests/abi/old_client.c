/* SPDX-License-Identifier: MIT */
/*
 * A client that was compiled long ago, and one from the future, kept as source: their own frozen
 * declarations instead of gradscaler.h, with growing structs that are smaller or larger than
 * today's. Dirty bytes behind each struct show a library that reads or writes past its size.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ---- frozen declarations ---- */

#define OK                0
#define ERROR_STRUCT_SIZE (-2)

typedef struct gsc_factor {
    double scale, inverse;
    float scale_f32, inverse_f32;
    uint64_t serial;
} gsc_factor;

typedef struct gsc_report {
    float found_inf;
    int32_t overflow;
    uint64_t rest[31];
} gsc_report;

typedef struct gsc_state {
    gsc_factor factor;
    uint64_t rest[28];
} gsc_state;

typedef struct gsc_tensor {
    void *data;
    uint64_t count;
    uint32_t dtype, reserved;
} gsc_tensor;

typedef struct gsc_error {
    int32_t status, argument;
    int64_t index;
    char name[48], message[192];
} gsc_error;

/* The policy before it had target_amax. */
typedef struct old_policy {
    uint32_t struct_size, arithmetic;
    double init_scale, growth_factor, backoff_factor;
    uint64_t growth_interval;
    uint32_t growth_rule, growth_lag;
    double max_scale, min_scale;
    uint32_t ceiling_rule, floor_rule, overflow_test, hysteresis, overflow_reset, apply_delay;
    double overflow_tolerance;
    uint64_t stall_limit;
    uint32_t quirks, reserved;
} old_policy;

/* The exec before it had streams, and the info before it knew of choices. */
typedef struct old_exec {
    uint32_t struct_size, reserved;
    void *context;
} old_exec;

typedef struct old_info {
    uint32_t struct_size, version;
    const char *cpu;
} old_info;

int32_t gsc_policy_init(uint32_t struct_size, void *out, gsc_error *err);
int32_t gsc_policy_preset(const char *name, void *out, gsc_error *err);
int32_t gsc_policy_check(const void *policy, gsc_error *err);
int32_t gsc_exec_init(uint32_t struct_size, void *out, gsc_error *err);
int32_t gsc_info_init(uint32_t struct_size, void *out, gsc_error *err);
int32_t gsc_get_info(void *out, gsc_error *err);
int32_t gsc_state_init(const void *on, const void *policy, gsc_state *out, gsc_error *err);
int32_t gsc_update(const void *on, const void *policy, const gsc_state *state,
                   const gsc_report *report, gsc_state *out, gsc_error *err);
int32_t gsc_state_save(const void *policy, const gsc_state *state, void *bytes, uint64_t capacity,
                       uint64_t *size, gsc_error *err);
int32_t gsc_state_load(const void *bytes, uint64_t size, void *policy, gsc_state *state,
                       gsc_error *err);
int32_t gsc_unscale(const void *on, const gsc_factor *factor, const gsc_tensor *tensors,
                    const gsc_tensor *out, uint64_t n, uint32_t want, gsc_report *report,
                    gsc_error *err);

/* ---- checks ---- */

static int failed;

#define CHECK(claim, holds)                                                                        \
    do {                                                                                           \
        const int holds_ = (holds);                                                                \
        failed += !holds_;                                                                         \
        printf("%s %s\n", holds_ ? "ok  " : "FAIL", claim);                                        \
    } while (0)

enum { DIRT = 0xA5, BEHIND = 256 };

/* A struct of an age, and what lies behind it. */
typedef union room {
    uint32_t struct_size;
    old_policy policy;
    old_exec exec;
    old_info info;
    unsigned char bytes[1024];
} room;

static room dirty(void)
{
    room r;
    memset(&r, DIRT, sizeof r);
    return r;
}

static int all(const unsigned char *bytes, int value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return 0;
    return 1;
}

static int behind_is_dirty(const room *r, size_t size)
{
    return all(r->bytes + size, DIRT, BEHIND);
}

typedef int32_t initialiser(uint32_t struct_size, void *out, gsc_error *err);

static room made_by(initialiser *init, uint32_t size)
{
    room r = dirty();
    init(size, &r, NULL);
    return r;
}

static void check_initialiser(const char *claim, initialiser *init, uint32_t size)
{
    room r = dirty();
    const int done = init(size, &r, NULL) == OK && r.struct_size == size;
    CHECK(claim, done && all(r.bytes + 4, 0, size - 4) && behind_is_dirty(&r, size));
}

static void check_initialisers(void)
{
    check_initialiser("an old policy is initialised", gsc_policy_init, sizeof(old_policy));
    check_initialiser("an old exec is initialised", gsc_exec_init, sizeof(old_exec));
    check_initialiser("an old info is initialised", gsc_info_init, sizeof(old_info));
    check_initialiser("a new policy is initialised", gsc_policy_init, 304);
    check_initialiser("a new exec is initialised", gsc_exec_init, 200);
    check_initialiser("a new info is initialised", gsc_info_init, 200);
}

/* Whether the scales before each step, and after the last one, are these. */
static int scales_are(const room *policy, const char *overflows, const double *scales)
{
    gsc_state state;
    int same = gsc_state_init(NULL, policy, &state, NULL) == OK;
    for (; *overflows; overflows++, scales++) {
        gsc_report report = {0};
        report.overflow = *overflows == '1';
        report.found_inf = (float)report.overflow;
        same &= state.factor.scale == *scales;
        same &= gsc_update(NULL, policy, &state, &report, &state, NULL) == OK;
    }
    return same && state.factor.scale == *scales;
}

/* ---- an older client ---- */

static void check_old_preset(const char *name, const char *overflows, const double *scales)
{
    char claim[80];
    snprintf(claim, sizeof claim, "an old client fills and runs the preset %s", name);
    room r = made_by(gsc_policy_init, sizeof(old_policy));
    int done = gsc_policy_preset(name, &r, NULL) == OK && r.policy.growth_factor == 2;
    done &= r.struct_size == sizeof(old_policy);
    r.policy.growth_interval = 2;
    done &= gsc_policy_check(&r, NULL) == OK && scales_are(&r, overflows, scales);
    CHECK(claim, done && behind_is_dirty(&r, sizeof(old_policy)));
}

static void check_old_policies(void)
{
    check_old_preset("torch", "100100",
                     (double[]){0x1p16, 0x1p15, 0x1p15, 0x1p16, 0x1p15, 0x1p15, 0x1p16});
    check_old_preset("deepspeed", "110000",
                     (double[]){0x1p16, 0x1p16, 0x1p15, 0x1p15, 0x1p15, 0x1p16, 0x1p16});
    check_old_preset("paddle", "100100",
                     (double[]){0x1p16, 0x1p15, 0x1p15, 0x1p16, 0x1p15, 0x1p15, 0x1p16});

    room r = made_by(gsc_policy_init, sizeof(old_policy));
    const room before = r;
    gsc_error error;
    int refused = gsc_policy_preset("openseq2seq_logmax", &r, &error) == ERROR_STRUCT_SIZE;
    CHECK("a preset that needs newer fields is refused, and nothing is written",
          refused && memcmp(&r, &before, sizeof r) == 0 && error.argument == 1 && *error.message);
}

static void check_old_save(void)
{
    unsigned char bytes[1024];
    uint64_t size = 0;
    gsc_state state, loaded;
    room saved = made_by(gsc_policy_init, sizeof(old_policy)), r = saved;
    gsc_policy_preset("deepspeed", &saved, NULL);
    gsc_state_init(NULL, &saved, &state, NULL);
    int done = gsc_state_save(&saved, &state, bytes, sizeof bytes, &size, NULL) == OK;
    done &= gsc_state_load(bytes, size, &r, &loaded, NULL) == OK;
    CHECK("an old client saves and loads",
          done && memcmp(&r, &saved, sizeof r) == 0 && memcmp(&state, &loaded, sizeof state) == 0);

    room whole = made_by(gsc_policy_init, 512);
    gsc_policy_preset("openseq2seq_logmax", &whole, NULL);
    done = gsc_state_save(&whole, &state, bytes, sizeof bytes, &size, NULL) == OK;
    memset(&loaded, DIRT, sizeof loaded);
    done &= gsc_state_load(bytes, size, &r, &loaded, NULL) == ERROR_STRUCT_SIZE;
    CHECK("what an old client cannot hold is refused, and nothing is written",
          done && memcmp(&r, &saved, sizeof r) == 0 &&
              all((const unsigned char *)&loaded, DIRT, sizeof loaded));
    done = gsc_state_load(bytes, size, NULL, &loaded, NULL) == OK;
    CHECK("without the policy it is loaded", done && memcmp(&state, &loaded, sizeof state) == 0);
}

static void check_old_exec_and_info(void)
{
    float values[2] = {8, 16};
    const gsc_tensor tensor = {values, 2, 1, 0};
    const gsc_factor factor = {8, 0.125, 8, 0.125f, 0};
    gsc_report report;
    room on = made_by(gsc_exec_init, sizeof(old_exec));
    int done = gsc_unscale(&on, &factor, &tensor, &tensor, 1, 0, &report, NULL) == OK;
    CHECK("an old exec is used", done && values[0] == 1 && values[1] == 2 && !report.overflow);

    room info = made_by(gsc_info_init, sizeof(old_info));
    done = gsc_get_info(&info, NULL) == OK && info.struct_size == sizeof(old_info);
    CHECK("an old info is filled as far as it goes",
          done && info.info.version && *info.info.cpu && behind_is_dirty(&info, sizeof(old_info)));
}

/* ---- a newer client ---- */

enum { NEW_SIZE = 256 };

static void check_new_policy(void)
{
    const double scales[] = {0x1p16, 0x1p15, 0x1p15};
    room r = made_by(gsc_policy_init, NEW_SIZE);
    memset(r.bytes + 200, DIRT, NEW_SIZE - 200); /* a preset of this library has none of these */
    int done = gsc_policy_preset("torch", &r, NULL) == OK && r.struct_size == NEW_SIZE;
    done &= all(r.bytes + 152, 0, NEW_SIZE - 152) && behind_is_dirty(&r, NEW_SIZE);
    CHECK("a new policy is filled, what the library does not know with zeros", done);
    CHECK("a new policy is used while its new fields are 0",
          gsc_policy_check(&r, NULL) == OK && scales_are(&r, "10", scales));

    gsc_state state, before;
    memset(&state, DIRT, sizeof state);
    before = state;
    r.bytes[NEW_SIZE - 1] = 1;
    done = gsc_policy_check(&r, NULL) == ERROR_STRUCT_SIZE;
    done &= gsc_state_init(NULL, &r, &state, NULL) == ERROR_STRUCT_SIZE;
    CHECK("a new policy is refused if one of them is not",
          done && memcmp(&state, &before, sizeof state) == 0);
}

static void check_new_exec_and_info(void)
{
    gsc_report report;
    const gsc_factor factor = {8, 0.125, 8, 0.125f, 0};
    room on = made_by(gsc_exec_init, NEW_SIZE);
    CHECK("a new exec is used while its new fields are 0",
          gsc_unscale(&on, &factor, NULL, NULL, 0, 0, &report, NULL) == OK);
    on.bytes[NEW_SIZE - 1] = 1;
    CHECK("a new exec is refused if one of them is not",
          gsc_unscale(&on, &factor, NULL, NULL, 0, 0, &report, NULL) == ERROR_STRUCT_SIZE);

    room info = made_by(gsc_info_init, NEW_SIZE);
    int done = gsc_get_info(&info, NULL) == OK && info.struct_size == NEW_SIZE;
    CHECK("a new info is filled, what the library does not know with zeros",
          done && all(info.bytes + 40, 0, NEW_SIZE - 40) && behind_is_dirty(&info, NEW_SIZE));
}

int main(void)
{
    check_initialisers();
    check_old_policies();
    check_old_save();
    check_old_exec_and_info();
    check_new_policy();
    check_new_exec_and_info();
    printf("%d failed\n", failed);
    return failed > 0;
}
