/* SPDX-License-Identifier: MIT */
/* The values of a scaler: factors, reports, the state with its update, and the state as bytes. */
#include <math.h>
#include <string.h>

#include "internal.h"
#include "policy.h"

/* ---- factors ---- */

gsc_factor gsc_factor_of(double scale, uint64_t serial)
{
    double inverse = 1.0 / scale;
    return (gsc_factor){scale, inverse, (float)scale, (float)inverse, serial};
}

static bool positive(double x)
{
    return x > 0 && isfinite(x);
}

bool gsc_usable(double x)
{
    return positive(x) && positive(1.0 / x);
}

gsc_status gsc_factor_init(double scale, gsc_factor *out, gsc_error *err)
{
    GSC_REQUIRE(out, 1);
    if (!gsc_usable(scale))
        return gsc_fail(err, GSC_ERROR_VALUE, 0, -1, "scale",
                        "scale is %g: it and its inverse must be finite and above 0", scale);
    *out = gsc_factor_of(scale, 0);
    return GSC_OK;
}

gsc_status gsc_factor_check(const gsc_factor *factor, int argument, gsc_error *err)
{
    if (!positive(factor->scale)) {
        const char *how = "no gsc_state_init or gsc_factor_init made it";
        if (factor->scale == 0 && factor->serial)
            how = "overflows lowered it without a floor; set policy.min_scale";
        else if (factor->scale > 0 && factor->serial)
            how = "it grew without a ceiling; set policy.max_scale";
        return gsc_fail(err, GSC_ERROR_FACTOR, argument, -1, "factor.scale",
                        "factor.scale is %g after %llu updates: %s", factor->scale,
                        (unsigned long long)factor->serial, how);
    }
    if (!positive(factor->inverse))
        return gsc_fail(err, GSC_ERROR_FACTOR, argument, -1, "factor.inverse",
                        "factor.inverse is %g (factor.scale %g): it must be finite and above 0",
                        factor->inverse, factor->scale);
    return GSC_OK;
}

gsc_status gsc_factor_multiply(const gsc_exec *on, const gsc_factor *factor, double by,
                               gsc_factor *out, gsc_error *err)
{
    gsc_context *context;
    GSC_TRY(gsc_exec_read(on, &context, err));
    GSC_REQUIRE(factor, 1);
    GSC_REQUIRE(out, 3);
    GSC_TRY(gsc_factor_check(factor, 1, err));
    gsc_factor product = {
        .scale = factor->scale * by, .inverse = factor->inverse / by, .serial = factor->serial};
    if (!positive(product.scale) || !positive(product.inverse))
        return gsc_fail(err, GSC_ERROR_VALUE, 2, -1, "by",
                        "by is %g: it, the scale and its inverse must stay finite and above 0", by);
    product.scale_f32 = (float)product.scale;
    product.inverse_f32 = (float)product.inverse;
    *out = product;
    return GSC_OK;
}

gsc_status gsc_clip_factor(const gsc_exec *on, const gsc_report *report, const gsc_factor *factor,
                           double max_norm, gsc_factor *out, gsc_error *err)
{
    gsc_context *context;
    GSC_TRY(gsc_exec_read(on, &context, err));
    GSC_REQUIRE(report, 1);
    GSC_REQUIRE(out, 4);
    gsc_factor clipped = factor ? *factor : gsc_factor_of(1, 0);
    GSC_TRY(gsc_factor_check(&clipped, 2, err));
    if (report->absent & GSC_WANT_NORM)
        return gsc_fail(err, GSC_ERROR_REPORT, 1, -1, "report.sum_squares",
                        "the report has no norm: ask for GSC_WANT_NORM");
    if (report->status != GSC_OK || !(report->sum_squares >= 0) || !isfinite(report->sum_squares))
        return gsc_fail(err, GSC_ERROR_REPORT, 1, -1, "report.sum_squares",
                        "report.sum_squares is %g (status %lld): there is no norm to clip to",
                        report->sum_squares, (long long)report->status);
    if (!positive(max_norm))
        return gsc_fail(err, GSC_ERROR_VALUE, 3, -1, "max_norm",
                        "max_norm is %g: it must be finite and above 0", max_norm);
    double coefficient = max_norm / (sqrt(report->sum_squares) + 1e-6);
    if (coefficient < 1.0)
        clipped.inverse *= coefficient;
    clipped.inverse_f32 = (float)clipped.inverse;
    *out = clipped;
    return GSC_OK;
}

/* ---- reports ---- */

/* Wraps where a foreign report is absurd, instead of undefined behaviour. */
static int64_t add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

gsc_status gsc_merge(const gsc_exec *on, const gsc_report *a, const gsc_report *b, gsc_report *out,
                     gsc_error *err)
{
    gsc_context *context;
    GSC_TRY(gsc_exec_read(on, &context, err));
    GSC_REQUIRE(a, 1);
    GSC_REQUIRE(b, 2);
    GSC_REQUIRE(out, 3);
    gsc_report r;
    memset(&r, 0, sizeof r);
    r.overflow = a->overflow || a->found_inf != 0 || b->overflow || b->found_inf != 0;
    r.found_inf = (float)r.overflow;
    r.amax = a->amax > b->amax ? a->amax : b->amax;
    r.absent = a->absent | b->absent;
    r.first_bad = a->first_bad < b->first_bad ? a->first_bad : b->first_bad;
    r.status = a->status < b->status ? a->status : b->status;
    r.sum_squares = a->sum_squares + b->sum_squares;
    r.elements = add(a->elements, b->elements);
    r.nan_count = add(a->nan_count, b->nan_count);
    r.inf_count = add(a->inf_count, b->inf_count);
    r.zeros_made = add(a->zeros_made, b->zeros_made);
    r.subnormals_made = add(a->subnormals_made, b->subnormals_made);
    *out = r;
    return GSC_OK;
}

/* ---- the state ---- */

static gsc_state initial_state(const gsc_policy *policy)
{
    gsc_state s;
    memset(&s, 0, sizeof s);
    double scale = policy->init_scale == 0 ? 1.0 : policy->init_scale;
    if (policy->ceiling_rule == GSC_LIMIT_ALWAYS && scale > gsc_max_scale(policy))
        scale = gsc_max_scale(policy);
    s.factor = s.next = gsc_factor_of(gsc_format(policy, scale), 0);
    s.mean_start = s.slow_start = 1;
    return s;
}

static gsc_status state_check(const gsc_state *s, int argument, gsc_error *err)
{
#define CHECK(field, holds)                                                                        \
    if (!(holds))                                                                                  \
    return gsc_fail(err, GSC_ERROR_STATE, argument, -1, "state." #field,                           \
                    "state." #field " is %.17g, which no update leads to: use gsc_state_init",     \
                    (double)s->field)
#define COUNT(field) CHECK(field, s->field >= 0 && s->field < INT64_MAX / 2)
    CHECK(factor.scale, s->factor.scale >= 0 && (s->factor.scale > 0 || s->factor.serial > 0));
    CHECK(next.scale, s->next.scale >= 0 && (s->next.scale > 0 || s->next.serial > 0));
    COUNT(good);
    COUNT(steps);
    COUNT(overflows);
    COUNT(stalled);
    COUNT(skipped);
    COUNT(growths);
    COUNT(backoffs);
    CHECK(mean, isfinite(s->mean));
    CHECK(slow_mean, isfinite(s->slow_mean));
    CHECK(mean_square, isfinite(s->mean_square));
    CHECK(mean_start, s->mean_start >= 0 && s->mean_start <= 1);
    CHECK(slow_start, s->slow_start >= 0 && s->slow_start <= 1);
#undef COUNT
#undef CHECK
    return GSC_OK;
}

gsc_status gsc_state_init(const gsc_exec *on, const gsc_policy *policy, gsc_state *out,
                          gsc_error *err)
{
    gsc_context *context;
    gsc_policy full;
    GSC_TRY(gsc_exec_read(on, &context, err));
    GSC_TRY(gsc_policy_read(policy, &full, 1, err));
    GSC_REQUIRE(out, 2);
    *out = initial_state(&full);
    return GSC_OK;
}

/* Whether the report tells what the policy judges by. */
static gsc_status report_check(const gsc_policy *policy, const gsc_report *report, gsc_error *err)
{
    if (report->status != GSC_OK)
        return gsc_fail(err, GSC_ERROR_REPORT, 3, -1, "report.status", "the report failed: %s",
                        gsc_status_string((gsc_status)report->status));
    if (policy->overflow_test == GSC_OVERFLOW_NORM && (report->absent & GSC_WANT_NORM))
        return gsc_fail(err, GSC_ERROR_REPORT, 3, -1, "report.sum_squares",
                        "the policy judges by the norm, which the report lacks: ask for "
                        "GSC_WANT_NORM");
    if (policy->target_amax != 0 && (report->absent & GSC_WANT_AMAX))
        return gsc_fail(err, GSC_ERROR_REPORT, 3, -1, "report.amax",
                        "the policy predicts from amax, which the report lacks: ask for "
                        "GSC_WANT_AMAX");
    if (!(report->amax >= 0) || !isfinite(report->amax))
        return gsc_fail(err, GSC_ERROR_REPORT, 3, -1, "report.amax",
                        "report.amax is %g: it must be finite and not negative", report->amax);
    return GSC_OK;
}

static bool overflowed(const gsc_policy *policy, const gsc_report *report)
{
    if (report->overflow || report->found_inf != 0)
        return true;
    /* Not `>`: a sum of squares that is NaN is an overflow, too. */
    return policy->overflow_test == GSC_OVERFLOW_NORM && !(report->sum_squares <= 0x1.fffffep127);
}

gsc_status gsc_update(const gsc_exec *on, const gsc_policy *policy, const gsc_state *state,
                      const gsc_report *report, gsc_state *out, gsc_error *err)
{
    gsc_context *context;
    gsc_policy full;
    GSC_TRY(gsc_exec_read(on, &context, err));
    GSC_TRY(gsc_policy_read(policy, &full, 1, err));
    GSC_REQUIRE(state, 2);
    GSC_REQUIRE(report, 3);
    GSC_REQUIRE(out, 4);
    GSC_TRY(state_check(state, 2, err));
    GSC_TRY(report_check(&full, report, err));
    gsc_state s = *state;
    double newest = gsc_policy_step(&full, &s, overflowed(&full, report), report->amax);
    s.next = gsc_factor_of(newest, state->next.serial + 1);
    s.factor = full.apply_delay ? state->next : s.next;
    *out = s;
    return GSC_OK;
}

gsc_status gsc_set_scale(const gsc_exec *on, const gsc_policy *policy, const gsc_state *state,
                         const double *scale, gsc_state *out, gsc_error *err)
{
    gsc_context *context;
    gsc_policy full;
    GSC_TRY(gsc_exec_read(on, &context, err));
    GSC_TRY(gsc_policy_read(policy, &full, 1, err));
    GSC_REQUIRE(state, 2);
    GSC_REQUIRE(scale, 3);
    GSC_REQUIRE(out, 4);
    GSC_TRY(state_check(state, 2, err));
    double rounded = gsc_format(&full, *scale);
    if (!gsc_usable(rounded))
        return gsc_fail(err, GSC_ERROR_VALUE, 3, -1, "scale",
                        "scale is %g: it and its inverse must be finite and above 0", *scale);
    gsc_state s = initial_state(&full);
    s.factor = s.next = gsc_factor_of(rounded, state->next.serial + 1);
    s.skipped = state->skipped;
    s.growths = state->growths;
    s.backoffs = state->backoffs;
    *out = s;
    return GSC_OK;
}

/* ---- the state as bytes ---- */

/*
 * magic, format, size of all, size of the policy | policy | state | CRC-32 of everything before.
 * Structs are stored as they are: their layout is part of the ABI, and the library is for
 * little-endian targets only.
 */
struct saved_head {
    char magic[8];
    uint32_t format, size, policy_size, state_size;
};
static const char magic[8] = {'G', 'S', 'C', 'S', 'T', 'A', 'T', 'E'};

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "gradscaler supports little-endian targets only"
#endif

/* The CRC-32 of zlib and PNG (polynomial 0xEDB88320, reflected). */
static uint32_t crc32(const unsigned char *bytes, uint64_t size)
{
    uint32_t crc = ~0u;
    for (uint64_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xEDB88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}

gsc_status gsc_state_save(const gsc_policy *policy, const gsc_state *state, void *bytes,
                          uint64_t capacity, uint64_t *size, gsc_error *err)
{
    struct saved_head head = {.format = 1,
                              .size = sizeof head + GSC_POLICY_SIZE + sizeof *state + 4,
                              .policy_size = GSC_POLICY_SIZE,
                              .state_size = sizeof *state};
    gsc_policy full;
    GSC_TRY(gsc_policy_read(policy, &full, 0, err));
    GSC_REQUIRE(state, 1);
    GSC_REQUIRE(size, 4);
    if (!bytes && capacity > 0)
        return gsc_fail_null(err, 2, "bytes");
    GSC_TRY(state_check(state, 1, err));
    if (bytes && capacity < head.size)
        return gsc_fail(err, GSC_ERROR_CAPACITY, 3, -1, "capacity",
                        "capacity is %llu bytes, the state takes %u", (unsigned long long)capacity,
                        head.size);
    *size = head.size;
    if (!bytes)
        return GSC_OK;
    memcpy(head.magic, magic, sizeof magic);
    unsigned char *at = bytes;
    memcpy(at, &head, sizeof head);
    memcpy(at + sizeof head, &full, GSC_POLICY_SIZE);
    memcpy(at + sizeof head + GSC_POLICY_SIZE, state, sizeof *state);
    uint32_t crc = crc32(at, head.size - 4u);
    memcpy(at + head.size - 4, &crc, 4);
    return GSC_OK;
}

static gsc_status saved_head_check(const unsigned char *bytes, uint64_t size,
                                   struct saved_head *head, gsc_error *err)
{
    if (size < sizeof *head)
        return gsc_fail(err, GSC_ERROR_CORRUPT, 1, -1, "size",
                        "%llu bytes are too few for a saved state", (unsigned long long)size);
    memcpy(head, bytes, sizeof *head);
    if (memcmp(head->magic, magic, sizeof magic) != 0)
        return gsc_fail(err, GSC_ERROR_CORRUPT, 0, -1, "bytes",
                        "the bytes are no saved state: they do not start with \"GSCSTATE\"");
    if (size != head->size)
        return gsc_fail(err, GSC_ERROR_CORRUPT, 1, -1, "size",
                        "%llu bytes were given, %u were saved", (unsigned long long)size,
                        head->size);
    uint32_t crc;
    memcpy(&crc, bytes + size - 4, 4);
    if (crc != crc32(bytes, size - 4))
        return gsc_fail(err, GSC_ERROR_CORRUPT, 0, -1, "bytes",
                        "the checksum does not match: the bytes were damaged");
    if (head->format != 1)
        return gsc_fail(err, GSC_ERROR_VERSION, 0, -1, "bytes",
                        "the bytes have format %u, this version (0x%x) reads 1", head->format,
                        GSC_VERSION);
    uint64_t parts = sizeof *head + (uint64_t)head->policy_size + head->state_size + 4;
    if (head->policy_size < 8 || head->state_size != sizeof(gsc_state) || parts != size)
        return gsc_fail(err, GSC_ERROR_CORRUPT, 0, -1, "bytes", "the sizes inside do not add up");
    return GSC_OK;
}

gsc_status gsc_state_load(const void *bytes, uint64_t size, gsc_policy *policy, gsc_state *state,
                          gsc_error *err)
{
    struct saved_head head;
    gsc_policy full;
    gsc_state loaded;
    GSC_REQUIRE(bytes, 0);
    GSC_REQUIRE(state, 3);
    GSC_TRY(saved_head_check(bytes, size, &head, err));
    const unsigned char *at = (const unsigned char *)bytes + sizeof head;
    uint32_t policy_size;
    memcpy(&policy_size, at, sizeof policy_size);
    if (policy_size != head.policy_size)
        return gsc_fail(err, GSC_ERROR_CORRUPT, 0, -1, "bytes", "the sizes inside do not add up");
    gsc_status status = gsc_struct_read(at, &full, GSC_POLICY_SIZE, 0, "bytes", err);
    if (status == GSC_ERROR_STRUCT_SIZE)
        return gsc_fail(err, GSC_ERROR_VERSION, 0, -1, "bytes",
                        "the saved policy sets fields that this version (0x%x) does not know",
                        GSC_VERSION);
    GSC_TRY(gsc_policy_check_full(&full, 0, err));
    memcpy(&loaded, at + head.policy_size, sizeof loaded);
    GSC_TRY(state_check(&loaded, 0, err));
    if (policy)
        GSC_TRY(gsc_struct_write(&full, GSC_POLICY_SIZE, policy, false, 2, "policy", err));
    *state = loaded;
    return GSC_OK;
}
