/* SPDX-License-Identifier: MIT */
/* A library that was built without CUDA computes, and says why it has no device. */
#include <stdio.h>
#include <string.h>

#include "gradscaler_cuda.h"

int main(void)
{
    gsc_context *context = NULL;
    gsc_error err;
    float values[] = {2, 4};
    const gsc_tensor tensor = {.data = values, .count = 2, .dtype = GSC_F32};
    gsc_factor factor;
    gsc_report report;
    if (gsc_has(GSC_FEATURE_CUDA) || gsc_factor_init(2, &factor, &err) ||
        gsc_unscale(NULL, &factor, &tensor, &tensor, 1, NULL, &report, &err) || values[1] != 2)
        return 1;
    const gsc_status status =
        gsc_context_create_cuda(&(gsc_cuda_options)GSC_CUDA_OPTIONS_INIT, &context, &err);
    puts(err.message);
    return status != GSC_ERROR_UNAVAILABLE || !strstr(err.message, "GSC_CUDA off") ||
           gsc_cuda_start(&err) != GSC_ERROR_UNAVAILABLE || !strstr(err.message, "GSC_CUDA off");
}
