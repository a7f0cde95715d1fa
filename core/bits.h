/* SPDX-License-Identifier: MIT */
/* Constants of numerics.md. A report's bits depend on them, on every backend. */
#ifndef GSC_BITS_H
#define GSC_BITS_H

enum {
    GSC_BLOCK = 4096,   /* elements of a block: float input and output fit in L1 */
    GSC_CHUNK = 65536,  /* elements of a chunk: the unit of summation and of threads' work */
    GSC_LANES = 64,     /* lanes of a block: element i belongs to lane i mod 64 */
    GSC_RUN = 64,       /* sums of chunks, tensors or reports that one run adds */
    GSC_BINS = 16,      /* bins of a histogram, which counts the first block of each chunk */
    GSC_BIN_POWERS = 4, /* bin k begins at 2^(GSC_BIN_POWERS * k + GSC_BIN_FIRST) */
    GSC_BIN_FIRST = -48,
};

/* If a block's sum of squares in float is below this, squares may have underflowed. */
#define GSC_TRUSTED_SUM 0x1p-80

#endif
