/* SPDX-License-Identifier: MIT */
/* A program with kernels of its own, which only wants the policy: the linker leaves CUDA out. */
#include <stddef.h>

#include <gradscaler.h>

int main(void)
{
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    gsc_report report = {.kind = GSC_REPORT_TENSORS, .measured = 7};
    report.overflow = 1;
    report.found_inf = 1;
    return gsc_policy_preset("torch", &policy, NULL) != GSC_OK ||
           gsc_state_init(NULL, &policy, &state, NULL) != GSC_OK ||
           gsc_state_update(NULL, &policy, &state, &report, &state, NULL) != GSC_OK ||
           state.factor.scale != 32768;
}
