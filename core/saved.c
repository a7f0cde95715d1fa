/* SPDX-License-Identifier: MIT */
/* A policy and a state as bytes, and back. */
#include <math.h>
#include <string.h>

#include "internal.h"

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
    gsc_begin(err);
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
        return gsc_with_numbers(gsc_fail(err, GSC_ERROR_CORRUPT, 1, -1, "size",
                                         "is %llu: too few bytes for a saved state",
                                         (unsigned long long)size),
                                err, (double)size, sizeof *head, NAN);
    memcpy(head, bytes, sizeof *head);
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
    if (head->format != 1)
        return gsc_fail(err, GSC_ERROR_VERSION, 0, -1, "bytes",
                        "have format %u: this version (" GSC_VERSION_STRING ") reads 1",
                        head->format);
    uint64_t sum = sizeof *head + (uint64_t)head->policy_size + head->state_size + 4;
    if (!gsc_struct_size_possible(head->policy_size) || head->state_size != sizeof(gsc_state) ||
        sum != size)
        return gsc_fail(err, GSC_ERROR_CORRUPT, 0, -1, "bytes",
                        "were damaged: the sizes inside do not add up");
    return GSC_OK;
}

gsc_status gsc_state_load(const void *bytes, uint64_t size, gsc_policy *policy, gsc_state *state,
                          gsc_error *err)
{
    gsc_begin(err);
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
        return gsc_fail(err, GSC_ERROR_CORRUPT, 0, -1, "bytes",
                        "were damaged: the sizes inside do not add up");
    gsc_status status = gsc_struct_read(at, &full, GSC_POLICY_SIZE, 0, "bytes", err);
    if (status == GSC_ERROR_STRUCT_SIZE)
        return gsc_fail(err, GSC_ERROR_VERSION, 0, -1, "bytes",
                        "set fields of the policy that this version (" GSC_VERSION_STRING
                        ") does not know");
    GSC_TRY(gsc_policy_check_full(&full, 0, err));
    memcpy(&loaded, at + head.policy_size, sizeof loaded);
    GSC_TRY(gsc_state_check(&loaded, 0, "state", err));
    if (policy)
        GSC_TRY(gsc_struct_write(&full, GSC_POLICY_SIZE, policy, false, 2, "policy", err));
    *state = loaded;
    return GSC_OK;
}
