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
#define F32               1
#define WANT_NORM         1

typedef struct gsc_factor {
    double scale, inverse;
    float scale_f32, inverse_f32;
    uint64_t generation;
} gsc_factor;

typedef struct gsc_report {
    float found_inf;
    int32_t overflow, status;
    uint32_t measured;
    uint64_t generation;
    double amax, sum_squares;
    uint64_t more[10];
    uint32_t kind, flags;
    uint64_t rest[16];
} gsc_report;

typedef struct gsc_state {
    gsc_factor factor;
    uint64_t rest[44];
} gsc_state;

typedef struct gsc_tensor {
    void *data;
    uint64_t count;
    uint32_t dtype, flags;
    uint64_t reserved[2];
} gsc_tensor;

typedef struct gsc_error {
    int32_t status, argument;
    int64_t index;
    char name[24], field[32];
    double value, low, high;
    uint32_t subject_length;
    char message[188];
    uint64_t reserved[2];
} gsc_error;

/* The policy before it had target_amax. */
typedef struct old_policy {
    uint32_t struct_size, arithmetic;
    double init_scale, growth_factor, backoff_factor;
    uint64_t growth_interval;
    uint32_t growth_rule, growth_extra_steps;
    double max_scale, min_scale;
    uint32_t ceiling_rule, floor_rule, overflow_test, hysteresis, overflow_reset, apply_delay;
    double overflow_tolerance;
    uint64_t max_failed_backoffs;
    uint32_t quirks, reserved;
} old_policy;

/* The exec before it had streams, the info before it knew of choices, options before `per_tensor`.
 */
typedef struct old_exec {
    uint32_t struct_size, reserved;
    void *context;
} old_exec;

typedef struct old_info {
    uint32_t struct_size, version;
    const char *cpu;
} old_info;

typedef struct old_options {
    uint32_t struct_size, want;
    const void *policy;
    double clamp;
} old_options;

int32_t gsc_policy_preset(const char *name, void *out, gsc_error *err);
int32_t gsc_policy_check(const void *policy, gsc_error *err);
int32_t gsc_info_get(void *out, gsc_error *err);
int32_t gsc_state_init(const void *exec, const void *policy, gsc_state *out, gsc_error *err);
int32_t gsc_state_update(const void *on, const void *policy, const gsc_state *state,
                         const gsc_report *report, gsc_state *out, gsc_error *err);
int32_t gsc_state_save(const void *policy, const gsc_state *state, void *bytes, uint64_t capacity,
                       uint64_t *size, gsc_error *err);
int32_t gsc_state_load(const void *bytes, uint64_t size, void *policy, gsc_state *state,
                       gsc_error *err);
int32_t gsc_unscale(const void *on, const gsc_factor *factor, const gsc_tensor *tensors,
                    const gsc_tensor *out, uint64_t n, const void *options, gsc_report *report,
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
    old_options options;
    unsigned char bytes[1024];
} room;

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

/* As the client's initialiser macro makes it, in dirty memory. */
static room made(uint32_t size)
{
    room r;
    memset(&r, DIRT, sizeof r);
    memset(&r, 0, size);
    r.struct_size = size;
    return r;
}

/* Whether the call was refused because of the argument with this name, which the message names. */
static int refused(int32_t status, const gsc_error *error, const char *name)
{
    return status == ERROR_STRUCT_SIZE && error->status == status &&
           strcmp(error->name, name) == 0 && strncmp(error->message, name, strlen(name)) == 0;
}

/* Whether the scales before each step, and after the last one, are these. */
static int scales_are(const room *policy, const char *overflows, const double *scales)
{
    gsc_state state;
    int same = gsc_state_init(NULL, policy, &state, NULL) == OK;
    for (; *overflows; overflows++, scales++) {
        gsc_report report = {.kind = 1};
        report.overflow = *overflows == '1';
        report.found_inf = (float)report.overflow;
        same &= state.factor.scale == *scales;
        same &= gsc_state_update(NULL, policy, &state, &report, &state, NULL) == OK;
    }
    return same && state.factor.scale == *scales;
}

static int32_t unscale(const void *on, const void *options, float *values, gsc_report *report,
                       gsc_error *error)
{
    const gsc_tensor tensor = {.data = values, .count = 2, .dtype = F32};
    const gsc_factor factor = {8, 0.125, 8, 0.125f, 0};
    return gsc_unscale(on, &factor, &tensor, &tensor, 1, options, report, error);
}

/* ---- an older client ---- */

static void check_old_preset(const char *name, const char *overflows, const double *scales)
{
    char claim[80];
    snprintf(claim, sizeof claim, "an old client fills and runs the preset %s", name);
    room r = made(sizeof(old_policy));
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

    room r = made(sizeof(old_policy));
    const room before = r;
    gsc_error error;
    const int32_t status = gsc_policy_preset("openseq2seq_logmax", &r, &error);
    CHECK("a preset that needs newer fields is refused, and nothing is written",
          refused(status, &error, "out") && error.argument == 1 &&
              memcmp(&r, &before, sizeof r) == 0);
}

static void check_old_save(void)
{
    unsigned char bytes[1024];
    uint64_t size = 0;
    gsc_error error;
    gsc_state state, loaded;
    room saved = made(sizeof(old_policy)), r = saved;
    gsc_policy_preset("deepspeed", &saved, NULL);
    gsc_state_init(NULL, &saved, &state, NULL);
    int done = gsc_state_save(&saved, &state, bytes, sizeof bytes, &size, NULL) == OK;
    done &= gsc_state_load(bytes, size, &r, &loaded, NULL) == OK;
    CHECK("an old client saves and loads",
          done && memcmp(&r, &saved, sizeof r) == 0 && memcmp(&state, &loaded, sizeof state) == 0);

    room whole = made(512);
    gsc_policy_preset("openseq2seq_logmax", &whole, NULL);
    done = gsc_state_save(&whole, &state, bytes, sizeof bytes, &size, NULL) == OK;
    memset(&loaded, DIRT, sizeof loaded);
    done &= refused(gsc_state_load(bytes, size, &r, &loaded, &error), &error, "policy");
    CHECK("what an old client cannot hold is refused, and nothing is written",
          done && memcmp(&r, &saved, sizeof r) == 0 &&
              all((const unsigned char *)&loaded, DIRT, sizeof loaded));
    done = gsc_state_load(bytes, size, NULL, &loaded, NULL) == OK;
    CHECK("without the policy it is loaded", done && memcmp(&state, &loaded, sizeof state) == 0);
}

static void check_old_calls(void)
{
    float values[2] = {24, 32};
    gsc_report report;
    room on = made(sizeof(old_exec)), options = made(sizeof(old_options)),
         info = made(sizeof(old_info));
    options.options.want = WANT_NORM;
    int done = unscale(&on, &options, values, &report, NULL) == OK;
    CHECK("an old exec and old options are used, and what lies behind them is not",
          done && values[0] == 3 && values[1] == 4 && !report.overflow && report.sum_squares == 25);

    done = gsc_info_get(&info, NULL) == OK && info.struct_size == sizeof(old_info);
    CHECK("an old info is filled as far as it goes",
          done && info.info.version && *info.info.cpu && behind_is_dirty(&info, sizeof(old_info)));
}

/* ---- a newer client ---- */

enum { NEW_SIZE = 256 };

static void check_new_policy(void)
{
    const double scales[] = {0x1p16, 0x1p15, 0x1p15};
    room r = made(NEW_SIZE);
    memset(r.bytes + 200, DIRT, NEW_SIZE - 200); /* a preset of this library has none of these */
    int done = gsc_policy_preset("torch", &r, NULL) == OK && r.struct_size == NEW_SIZE;
    done &= all(r.bytes + 152, 0, NEW_SIZE - 152) && behind_is_dirty(&r, NEW_SIZE);
    CHECK("a new policy is filled, what the library does not know with zeros", done);
    CHECK("a new policy is used while its new fields are 0",
          gsc_policy_check(&r, NULL) == OK && scales_are(&r, "10", scales));

    gsc_error error;
    gsc_state state, before;
    memset(&state, DIRT, sizeof state);
    before = state;
    r.bytes[NEW_SIZE - 1] = 1;
    done = refused(gsc_policy_check(&r, &error), &error, "policy");
    done &= refused(gsc_state_init(NULL, &r, &state, &error), &error, "policy");
    CHECK("a new policy is refused by name if one of them is not",
          done && error.argument == 1 && memcmp(&state, &before, sizeof state) == 0);
}

static void check_new_calls(void)
{
    float values[2] = {24, 32};
    gsc_error error;
    gsc_report report;
    room on = made(NEW_SIZE), options = made(NEW_SIZE), info = made(NEW_SIZE);
    CHECK("a new exec and new options are used while their new fields are 0",
          unscale(&on, &options, values, &report, &error) == OK && values[1] == 4);
    on.bytes[NEW_SIZE - 1] = 1;
    CHECK("a new exec is refused by name if one of them is not",
          refused(unscale(&on, &options, values, &report, &error), &error, "exec"));
    options.bytes[NEW_SIZE - 1] = 1;
    CHECK("new options are, too, and nothing is unscaled",
          refused(unscale(NULL, &options, values, &report, &error), &error, "options") &&
              values[0] == 3 && values[1] == 4);

    int done = gsc_info_get(&info, NULL) == OK && info.struct_size == NEW_SIZE;
    CHECK("a new info is filled, what the library does not know with zeros",
          done && all(info.bytes + 40, 0, NEW_SIZE - 40) && behind_is_dirty(&info, NEW_SIZE));
}

int main(void)
{
    check_old_policies();
    check_old_save();
    check_old_calls();
    check_new_policy();
    check_new_calls();
    printf("%d failed\n", failed);
    return failed > 0;
}
