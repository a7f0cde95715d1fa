/* SPDX-License-Identifier: MIT */
/* The comparisons of a device with the host, as a context's check runs them: in given memory. */
#ifndef GSC_COMPARE_H
#define GSC_COMPARE_H

#include "internal.h"

/*
 * Runs one round of a comparison on `exec`, which is complete, and in this thread. If `memory` has
 * fewer bytes of the device than it needs, it writes how many to *size and returns
 * GSC_ERROR_CAPACITY without a sentence. If a bit differs, it fails with GSC_ERROR_DEVICE and a
 * sentence.
 */
gsc_status gsc_compare(const gsc_exec *exec, uint32_t index, uint64_t round, void *memory,
                       uint64_t *size, gsc_error *err);

#endif
