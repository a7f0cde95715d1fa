/* SPDX-License-Identifier: MIT */
/*
 * A report of every tensor, from the pass that unscales: the norm of each layer for a plot, and for
 * an overflow a message that names the parameter.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "must.h"

/* Writes the norm of each gradient to `norms` and the overflows to `log`; each: `count` of them. */
gsc_status unscale_and_tell(const gsc_state *state, const gsc_tensor_options *options,
                            const gsc_tensor *gradients, const char *const *names, uint64_t count,
                            double *norms, FILE *log, gsc_report *report, gsc_error *err)
{
    gsc_status status =
        gsc_unscale(NULL, &state->factor, gradients, gradients, count, options, report, err);
    for (uint64_t i = 0; status == GSC_OK && i < count; i++) {
        const gsc_report *of = &options->per_tensor[i];
        norms[i] = sqrt(of->sum_squares);
        if (of->overflow)
            fprintf(log, "%s overflows at element %" PRId64 " (%" PRId64 " Inf, %" PRId64 " NaN)\n",
                    names[i], of->first_element, of->inf_count, of->nan_count);
    }
    return status;
}

/* Tells the error, with the name of the parameter in the place of "tensors[1].dtype". */
void explain(const gsc_error *err, const char *const *names, char *text, size_t size)
{
    if (err->index >= 0)
        snprintf(text, size, "%s: %s %s", names[err->index], err->field,
                 err->message + err->subject_length);
    else
        snprintf(text, size, "%s", err->message);
}

int main(void)
{
    const char *const names[] = {"embedding", "attention", "head"};
    float embedding[] = {3 * 65536.f, 4 * 65536.f}, attention[] = {65536, HUGE_VALF, NAN},
          head[] = {65536};
    gsc_tensor gradients[] = {{embedding, 2, GSC_F32, 0, {0}},
                              {attention, 3, GSC_F32, 0, {0}},
                              {head, 1, GSC_F32, 0, {0}}};
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_state state;
    gsc_report each[3], report;
    gsc_error err;
    double norms[3];
    char text[256] = "";
    FILE *log = tmpfile();
    MUST(log && gsc_policy_preset("recommended", &policy, NULL) == GSC_OK);
    MUST(gsc_state_init(NULL, &policy, &state, NULL) == GSC_OK);
    options.want = GSC_WANT_NORM;
    options.policy = &policy;
    options.per_tensor = each;

    MUST(unscale_and_tell(&state, &options, gradients, names, 3, norms, log, &report, &err) == 0);
    rewind(log);
    MUST(fgets(text, sizeof text, log));
    MUST(strcmp(text, "attention overflows at element 1 (1 Inf, 1 NaN)\n") == 0);
    MUST(!fgets(text, sizeof text, log)); /* no other parameter is blamed */
    MUST(norms[0] == 5 && norms[1] == 1 && norms[2] == 1);
    MUST(report.first_tensor == 1 && report.first_element == 1 && report.elements == 6);

    gradients[1].dtype = 99;
    MUST(unscale_and_tell(&state, &options, gradients, names, 3, norms, log, &report, &err) ==
         GSC_ERROR_DTYPE);
    explain(&err, names, text, sizeof text);
    MUST(strncmp(text, "attention: dtype is 99", 22) == 0);
    fclose(log);
    return 0;
}
