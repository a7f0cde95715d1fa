/* SPDX-License-Identifier: MIT */
/*
 * A CUDA device in C, in the stand-in for the driver: the order of its blocks and threads, and the
 * kernels, which are made of the PTX. Between two barriers threads may come in any order, and are
 * made to: each launch has another order.
 */
#ifndef GSC_EMULATION_H
#define GSC_EMULATION_H

#include "convert.h"
#include "cuda/launch.h"
#include "standin.h"
#include "step.h"

/* The emulated device's present work. */
extern struct emulated {
    uint64_t launches; /* so far */
    uint32_t block, block_count, thread_count;
} emulated;

/* The thread that is number k of a block to go on. */
uint32_t emulated_thread(uint32_t k);

#define KERNEL(name)  void emulated_##name(const gsc_cuda_##name##_parameter p)
#define DECLARE(name) KERNEL(name);
GSC_FOR_CUDA_KERNELS(DECLARE)
#undef DECLARE

#endif
