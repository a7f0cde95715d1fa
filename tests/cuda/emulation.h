/* SPDX-License-Identifier: MIT */
/*
 * A CUDA device in C: its memory, the order of its blocks and threads, and the kernels, which are
 * made of the PTX. Between two barriers threads may come in any order, and are made to. Device
 * memory is out of the host's reach while no kernel runs.
 */
#ifndef GSC_EMULATION_H
#define GSC_EMULATION_H

#include <stdbool.h>

#include "convert.h"
#include "cuda/launch.h"
#include "step.h"

enum emulated_order { EMULATED_FORWARD, EMULATED_BACKWARD, EMULATED_SHUFFLED };

/* The device: what a test sets for the next launches, and what it is doing. */
extern struct emulated {
    enum emulated_order blocks, threads;
    bool takes_many;     /* 32 KiB of parameters */
    uint64_t start, end; /* of its memory; anywhere as long as none was made */
    uint64_t launches;   /* so far */
    uint32_t block, thread_count;
} emulated;

/* The device's memory, new at each call, and whether the host reaches it, as a test does. */
unsigned char *emulated_memory(uint64_t size);
void emulated_reach(bool reached);

/* ---- what a kernel sees ---- */

/* The thread that is number k of a block to go on. */
uint32_t emulated_thread(uint32_t k);

#define KERNEL(name)  void emulated_##name(const gsc_cuda_##name##_parameter p)
#define DECLARE(name) KERNEL(name);
GSC_FOR_CUDA_KERNELS(DECLARE)
#undef DECLARE

#endif
