/* SPDX-License-Identifier: MIT */
/*
 * The recipes are small complete programs, which compile as C99 and as C++17. In each the functions
 * come first that a framework would have, then a main that plays the framework.
 */
#ifndef MUST_H
#define MUST_H

#include <stdio.h>
#include <stdlib.h>

#include <gradscaler_cuda.h>

/* Ends the program with an error if the claim is false. */
#define MUST(claim)                                                                                \
    do {                                                                                           \
        if (!(claim)) {                                                                            \
            fprintf(stderr, "%s:%d: false: %s\n", __FILE__, __LINE__, #claim);                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
