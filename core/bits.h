/* SPDX-License-Identifier: MIT */
/* The numbers of numerics.md on which the bits of a report depend, for every backend. */
#ifndef GSC_BITS_H
#define GSC_BITS_H

enum {
    GSC_BLOCK = 4096, /* elements whose lanes are folded together: f32 fits in L1 with its output */
    GSC_CHUNK = 65536,  /* elements that are summed, and shared among threads, as one */
    GSC_LANES = 64,     /* element i of a block belongs to lane i mod 64 */
    GSC_RUN = 64,       /* sums of chunks, tensors and reports that are added as one */
    GSC_BINS = 16,      /* of a histogram, which sees the first block of each chunk; bin k */
    GSC_BIN_POWERS = 4, /* begins at 2^(GSC_BIN_POWERS * k + GSC_BIN_FIRST) */
    GSC_BIN_FIRST = -48,
};

/* A block's sum of squares in float below this may have lost squares to underflow. */
#define GSC_TRUSTED_SUM 0x1p-80

#endif
