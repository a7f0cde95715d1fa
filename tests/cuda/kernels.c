/* SPDX-License-Identifier: MIT */
/* The kernels as C for the emulated device. */
#include "cuda/kernels.cu"
