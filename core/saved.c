/* SPDX-License-Identifier: MIT */
/* Save a policy and a state as bytes, and load them. */
#include <math.h>
#include <string.h>

#include "backend.h"

/*
 * head | policy | state | CRC-32 of all bytes before it. Structs are stored as they are: their
 * layout is part of the ABI, and the library supports little-endian targets only. Candidates before
 * 0.10 wrote formats 1 and 2.
 */
struct saved_head {
    char magic[8];
    uint32_t format, size, policy_size, state_size;
    uint32_t version; /* version of the library that saved */
    uint32_t reserved;
};
enum { FORMAT = 3, COMMON_HEAD_SIZE = offsetof(struct saved_head, version) };
static const char magic[8] = {'G', 'S', 'C', 'S', 'T', 'A', 'T', 'E'};

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "gradscaler supports little-endian targets only"
#endif

/* Returns the CRC-32 of zlib and PNG (polynomial 0xEDB88320, reflected). */
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
    gsc_begin(err);
    struct saved_head head = {.format = FORMAT,
                              .version = GSC_VERSION,
                              .size = sizeof head + GSC_POLICY_SIZE + sizeof *state + 4,
                              .policy_size = GSC_POLICY_SIZE,
                              .state_size = sizeof *state};
    gsc_policy full;
    GSC_TRY(gsc_policy_read(policy, &full, 0, err));
    GSC_REQUIRE(state, 1);
    GSC_REQUIRE(size, 4);
    if (!bytes && capacity > 0)
        return gsc_fail_null(err, 2, "bytes");
    GSC_TRY(gsc_state_check(state, 1, "state", err));
    if (bytes && capacity < head.size)
        return gsc_with_numbers(gsc_fail(err, GSC_ERROR_CAPACITY, 3, -1, "capacity",
                                         "is %llu: the state takes %u bytes",
                                         (unsigned long long)capacity, head.size),
                                err, (double)capacity, head.size, NAN);
    *size = head.size;
    if (!bytes)
        return GSC_OK;
    memcpy(head.magic, magic, sizeof magic);
    unsigned char *to = bytes;
    memcpy(to, &head, sizeof head);
    memcpy(to + sizeof head, &full, GSC_POLICY_SIZE);
    memcpy(to + sizeof head + GSC_POLICY_SIZE, state, sizeof *state);
    uint32_t crc = crc32(to, head.size - 4u);
    memcpy(to + head.size - 4, &crc, 4);
    return GSC_OK;
}

static gsc_status fail_damaged(gsc_error *err)
{
    return gsc_fail(err, GSC_ERROR_CORRUPT, 0, -1, "bytes",
                    "were damaged: the sizes inside do not add up");
}

static gsc_status fail_newer(gsc_error *err, const char *part)
{
    return gsc_fail(err, GSC_ERROR_VERSION, 0, -1, "bytes",
                    "set fields of the %s that this version (" GSC_VERSION_STRING ") does not know",
                    part);
}

static gsc_status head_read(const unsigned char *bytes, uint64_t size, struct saved_head *head,
                            gsc_error *err)
{
    memset(head, 0, sizeof *head);
    if (size < COMMON_HEAD_SIZE)
        return gsc_with_numbers(gsc_fail(err, GSC_ERROR_CORRUPT, 1, -1, "size",
                                         "is %llu: too few bytes for a saved state",
                                         (unsigned long long)size),
                                err, (double)size, COMMON_HEAD_SIZE, NAN);
    memcpy(head, bytes, COMMON_HEAD_SIZE);
    if (memcmp(head->magic, magic, sizeof magic) != 0)
        return gsc_fail(err, GSC_ERROR_CORRUPT, 0, -1, "bytes",
                        "are no saved state: they do not start with \"GSCSTATE\"");
    if (size != head->size)
        return gsc_with_numbers(gsc_fail(err, GSC_ERROR_CORRUPT, 1, -1, "size",
                                         "is %llu: %u bytes were saved", (unsigned long long)size,
                                         head->size),
                                err, (double)size, head->size, head->size);
    uint32_t crc;
    memcpy(&crc, bytes + size - 4, 4);
    if (crc != crc32(bytes, size - 4))
        return gsc_fail(err, GSC_ERROR_CORRUPT, 0, -1, "bytes",
                        "were damaged: the checksum does not match");
    if (head->format == 1 || head->format == 2)
        return gsc_fail(err, GSC_ERROR_VERSION, 0, -1, "bytes", GSC_SAVED_BY_CANDIDATE);
    if (head->format != FORMAT)
        return gsc_fail(err, GSC_ERROR_VERSION, 0, -1, "bytes",
                        "have format %u: this version (" GSC_VERSION_STRING ") reads format 3",
                        head->format);
    if (!gsc_struct_size_possible(head->policy_size) ||
        !gsc_struct_size_possible(head->state_size) ||
        sizeof *head + head->policy_size + head->state_size + 4 != size)
        return fail_damaged(err);
    memcpy(head, bytes, sizeof *head);
    return head->reserved == 0 ? GSC_OK : fail_newer(err, "head");
}

/* Reads policy and state. Fails if they set fields that this version does not know. */
static gsc_status structs_read(const struct saved_head *head, const unsigned char *at,
                               gsc_policy *policy, gsc_state *state, gsc_error *err)
{
    const uint32_t known_size =
        head->state_size < sizeof *state ? head->state_size : (uint32_t)sizeof *state;
    if (gsc_struct_read(at, policy, GSC_POLICY_SIZE, 0, "bytes", err) != GSC_OK)
        return fail_newer(err, "policy");
    GSC_TRY(gsc_policy_check_full(policy, 0, err));
    at += head->policy_size;
    memset(state, 0, sizeof *state);
    memcpy(state, at, known_size);
    if (!gsc_all_zero(at + known_size, head->state_size - known_size))
        return fail_newer(err, "state");
    return gsc_state_check(state, 0, "state", err);
}

gsc_status gsc_state_load(const void *bytes, uint64_t size, gsc_policy *policy, gsc_state *state,
                          gsc_error *err)
{
    gsc_begin(err);
    struct saved_head head;
    gsc_policy full;
    gsc_state loaded;
    gsc_error load_error;
    GSC_REQUIRE(bytes, 0);
    GSC_REQUIRE(state, 3);
    GSC_TRY(head_read(bytes, size, &head, err));
    const unsigned char *at = (const unsigned char *)bytes + sizeof head;
    uint32_t policy_size;
    memcpy(&policy_size, at, sizeof policy_size);
    if (policy_size != head.policy_size)
        return fail_damaged(err);
    const gsc_status status = structs_read(&head, at, &full, &loaded, &load_error);
    if (status != GSC_OK && head.version > GSC_VERSION)
        return gsc_fail(
            err, GSC_ERROR_VERSION, 0, -1, "bytes",
            "were saved by version %u.%u.%u, newer than this, " GSC_VERSION_STRING ": %s",
            head.version >> 16, head.version >> 8 & 255, head.version & 255, load_error.message);
    if (status != GSC_OK) {
        if (err)
            *err = load_error;
        return status;
    }
    if (policy)
        GSC_TRY(gsc_struct_write(&full, GSC_POLICY_SIZE, policy, false, 2, "policy", err));
    *state = loaded;
    return GSC_OK;
}
