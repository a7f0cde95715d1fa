/* SPDX-License-Identifier: MIT */
/* A library that is not there, or lacks a function: absent WORDS, those that gsc_cuda_start says.
 */
#include "check.h"

int main(int count, char **arguments)
{
    gsc_context *context = NULL;
    gsc_error err = {0};
    if (!CHECK(count == 2))
        return 2;
    const char *note = cuda_note();
    CHECK_TEXT(note, arguments[1]);
    gsc_status status =
        gsc_context_create_cuda(&(gsc_cuda_options)GSC_CUDA_OPTIONS_INIT, &context, &err);
    if (strcmp(arguments[1], "available") == 0) {
        CHECK(status == GSC_OK);
    } else {
        CHECK(status == GSC_ERROR_UNAVAILABLE && err.argument == 0 && !context);
        CHECK_TEXT(err.message, note);
    }
    check_cpu();
    gsc_context_destroy(context);
    return check_failures > 0;
}
