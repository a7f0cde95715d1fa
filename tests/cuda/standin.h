/* SPDX-License-Identifier: MIT */
/*
 * A CUDA driver with devices that have memory out of the host's reach, built as libcuda.so.1: it
 * counts what it is asked, fails where it is told to, and refuses what a real one refuses: kernels
 * that the PTX lacks, PTX that is too new, foreign contexts, loading while a stream is captured.
 * Threads can share it.
 */
#ifndef GSC_TESTS_CUDA_STANDIN_H
#define GSC_TESTS_CUDA_STANDIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Computes what a launch would. */
typedef void standin_kernel(const char *name, uint32_t blocks, uint32_t threads,
                            const void *parameter);

typedef struct standin {
    /* Set by a test. */
    int32_t version, devices;
    int32_t capability;      /* 10 * major + minor, of all devices */
    int32_t compiler;        /* the version that takes PTX; 0: the driver's */
    const char *failing;     /* the function that fails, by its symbol; NULL: none */
    int32_t failure;         /* with this result, */
    int32_t good_calls;      /* after so many calls before */
    const char *log;         /* of the loader, when it fails */
    standin_kernel *execute; /* NULL: launches are only counted */
    /* Counted. */
    atomic_int retained, loaded;        /* contexts and modules in use */
    atomic_int allocated;               /* blocks of memory in use */
    atomic_int launches, loads, copies; /* calls */
    atomic_int after_fork;              /* calls of a process that did not start the driver */
    char kernel[64];                    /* the last launch */
    uint32_t blocks, threads;
    void *stream;
} standin;

standin *standin_state(void);
/* The same for a language without the struct. */
void standin_devices(int32_t devices);
int32_t standin_allocated(void);
uint64_t standin_stream(void);
/* Where the devices' memory begins, and which block, of it or of the host, has an address. */
#define STANDIN_MEMORY (UINT64_C(1) << 36)
uint64_t standin_pages(void);
bool standin_block(uint64_t address, uint64_t *start, uint64_t *end);
/* The current context of this thread and how many are pushed. */
void *standin_current(void);
int standin_depth(void);

#endif
