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

/* The next launches run so. */
void emulated_run(enum emulated_order blocks, enum emulated_order threads);
/* Whether the next launches may have 32 KiB of parameters. */
void emulated_takes_many(bool many);
/* Launches since the start. */
uint64_t emulated_launches(void);
/* The device's memory, new at each call, and whether the host reaches it, as a test does. */
unsigned char *emulated_memory(uint64_t size);
void emulated_reach(bool reached);
/* Where it is; anywhere as long as there was no such call. */
extern uint64_t emulated_start, emulated_end;

/* ---- what a kernel sees ---- */

uint32_t block_index(void);
uint32_t emulated_threads(void);
uint32_t emulated_thread(uint32_t k);

#define KERNEL(name)  void emulated_##name(const gsc_cuda_##name##_parameter p)
#define DECLARE(name) KERNEL(name);
GSC_FOR_CUDA_KERNELS(DECLARE)
#undef DECLARE

#endif
