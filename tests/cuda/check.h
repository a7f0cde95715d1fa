/* SPDX-License-Identifier: MIT */
/* Shared by the tests of CUDA in C: a check that says where it failed, and a CPU that works. */
#ifndef GSC_TESTS_CUDA_CHECK_H
#define GSC_TESTS_CUDA_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "gradscaler_cuda.h"

static int check_failures;

#define CHECK(holds) check_that(holds, #holds, __FILE__, __LINE__)

static inline bool check_that(bool holds, const char *text, const char *file, int line)
{
    if (!holds) {
        check_failures++;
        printf("%s:%d: %s\n", file, line, text);
    }
    return holds;
}

/* `text` has each of `words`, which are separated by '|'. */
#define CHECK_TEXT(text, words) check_text(text, words, __FILE__, __LINE__)

static inline void check_text(const char *text, const char *words, const char *file, int line)
{
    char word[256];
    for (size_t length; *words; words += length + (words[length] == '|')) {
        length = strcspn(words, "|");
        snprintf(word, sizeof word, "%.*s", (int)length, words);
        if (!strstr(text, word)) {
            check_failures++;
            printf("%s:%d: \"%s\" has no \"%s\"\n", file, line, text, word);
        }
    }
}

/* "available", or why there is no CUDA. */
static inline const char *cuda_note(void)
{
    static gsc_error err;
    return gsc_cuda_start(&err) == GSC_OK ? "available" : err.message;
}

/* Whatever CUDA does, the CPU unscales. */
static inline void check_cpu(void)
{
    float gradients[] = {8, -2};
    const gsc_tensor tensor = {.data = gradients, .count = 2, .dtype = GSC_F32};
    gsc_factor factor;
    gsc_report report;
    CHECK(gsc_factor_init(4, &factor, NULL) == GSC_OK);
    CHECK(gsc_unscale(NULL, &factor, &tensor, &tensor, 1, NULL, &report, NULL) == GSC_OK);
    CHECK(gradients[0] == 2 && gradients[1] == -0.5f && !report.overflow);
}

#endif
