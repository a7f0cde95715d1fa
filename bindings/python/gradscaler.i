/* Generated from bindings/abi.toml by bindings/generate.py. Do not edit. */
%module _gradscaler
%{
#include "arrays.h"
%}
%include "typemaps.i"

GSC_STRUCT(gsc_policy, 1)
GSC_STRUCT(gsc_info, 1)
GSC_STRUCT(gsc_factor, 0)
GSC_STRUCT(gsc_report, 0)
GSC_STRUCT(gsc_state, 0)

%feature("docstring") gsc_status_string "gsc_status_string(status)\n\nThe meaning of a status in a few words; \"unknown status\" for a number that is none. Never None,\nnever freed.";
%feature("docstring") gsc_version "gsc_version()\n\nVersion of the library that runs, as GSC_VERSION is that of this header.";
%ignore gsc_policy_init;
%feature("docstring") gsc_policy_preset "gsc_policy_preset(name, out)\n\nFills out with a named set of rules: \"recommended\" for new work, \"none\", \"static\", or the exact\nrules of a framework, such as \"torch\" or \"megatron\" (gsc_preset_name lists them). out->struct_size\nmust be set; a struct of an older version that lacks a field the preset needs is refused.";
%feature("docstring") gsc_policy_check "gsc_policy_check(policy)\n\nWhether the policy can be used; the error names the field that cannot. Every call that takes a\npolicy checks it so.";
%feature("docstring") gsc_preset_count "gsc_preset_count()\n\nNumber of presets.";
%feature("docstring") gsc_preset_name "gsc_preset_name(index)\n\nName of preset `index`, from 0; None past the last. Never freed.";
%feature("docstring") gsc_preset_summary "gsc_preset_summary(index)\n\nWhat preset `index` does and where its rules come from, in a sentence; None past the last. Never\nfreed.";
%ignore gsc_exec_init;
%feature("docstring") gsc_context_create_cpu "gsc_context_create_cpu(threads)\n\nA context that shares the work of a call among `threads` threads, the calling one included: through\nthe caller's pool, or threads of its own that sleep between calls and are made anew in a forked\nprocess. The results have the same bits as with one thread. Lists below 4 MiB stay on the calling\nthread, as does a call while another one has the context's own threads. More than 64 threads share\nno better.";
%ignore gsc_context_create_cuda;
%ignore gsc_context_destroy;
%feature("docstring") gsc_prepare "gsc_prepare(on)\n\nLoads what calls on `on` still lack, so that none of them is slow the first time or breaks a stream\ncapture; a CUDA context has loaded all when it was made.";
%ignore gsc_info_init;
%feature("docstring") gsc_get_info "gsc_get_info(out)\n\nFills out, whose struct_size must be set.";
%feature("docstring") gsc_factor_init "gsc_factor_init(scale, out)\n\nThe factor of a given scale, with serial 0.";
%feature("docstring") gsc_factor_multiply "gsc_factor_multiply(on, factor, by, out)\n\nout is factor with its scale multiplied by `by` and its inverse divided by it. The mean over k\nmicro-batches, or ranks, whose gradients were added, is what unscaling by k times the factor gives.\nout may be factor.";
%feature("docstring") gsc_merge "gsc_merge(on, a, b, out)\n\nOne report of two: of micro-batches, of optimizers that share a scale, of ranks. out may be a or b.\nIt lacks what one of both lacks: ask for the same. first_bad is the earlier one, so it points into\nthe right list only when both reports are of the same list.";
%feature("docstring") gsc_state_init "gsc_state_init(on, policy, out)\n\nThe state before the first step.";
%feature("docstring") gsc_update "gsc_update(on, policy, state, report, out)\n\nOne step of the policy: out is the state after the gradients of one optimizer step, whose report is\nmerged over all of them. out may be state. What happened is out->events. An overflow is not an\nerror.\n\nA report that lacks what the policy judges by (Overflow.NORM, target_amax) is refused. A predictive\npolicy takes a report with amax 0 and no overflow as no sample: the scale stays.";
%feature("docstring") gsc_set_scale "gsc_set_scale(on, policy, state, scale, out)\n\nout is the state with another scale in force at once; the counts start anew, the totals stay. out\nmay be state.";
%feature("docstring") gsc_state_save "gsc_state_save(policy, state)\n\nWrites policy and state as bytes that any later version on any machine reads: little-endian,\nversioned, with a checksum. size becomes the number of bytes needed or written; with bytes None and\ncapacity 0 only that. Saved.SIZE always suffices. The state must be host memory.";
%feature("docstring") gsc_state_load "gsc_state_load(bytes, policy, state)\n\nReads what gsc_state_save wrote. policy->struct_size must be set; fields that its struct lacks must\nbe 0 in the bytes.";
%feature("docstring") gsc_dtype_size "gsc_dtype_size(dtype)\n\nBytes of one element of a dtype; 0 for a number that is none.";
%feature("docstring") gsc_scale "gsc_scale(on, factor, tensors_and_out)\n\nout = tensors * factor.scale: the loss, or the gradient that a backward pass starts from. No check:\nwhat overflows here is found when the gradients are unscaled. `out` may be `tensors`. Without factor\nit is a cast; gsc_clip_value casts with saturation.";
GSC_BY_SIZE(gsc_scale, lists3)
%feature("docstring") gsc_check "gsc_check(on, factor, tensors, want, report)\n\nReports on tensors * factor.inverse without writing it: what gsc_unscale in place would report.";
GSC_BY_SIZE(gsc_check, lists3)
%feature("docstring") gsc_unscale "gsc_unscale(on, factor, tensors_and_out, want, report)\n\nout = tensors * factor.inverse, in one pass with the check and whatever `want` asks for. `out` may\nbe `tensors`. All elements are written, also when report->overflow says not to use them. float16\ngradients are best unscaled into float32: in place most of what scaling saved is lost again.";
GSC_BY_SIZE(gsc_unscale, lists3)
%feature("docstring") gsc_clip_value "gsc_clip_value(on, factor, limit, tensors_and_out, want, report)\n\ngsc_unscale with each product clamped to [-limit, limit] before it is rounded to its output, in the\nsame pass: what torch.nn.utils.clip_grad_value_ does after unscaling. The report is of the products\nbefore they are clamped, so that an overflow is not hidden: Inf is clamped and counted, NaN stays. A\nfinite product is never bad, however narrow its output: with the largest value of a dtype as limit\nthis is a cast with saturation. Both parts of a complex value are clamped.";
GSC_BY_SIZE(gsc_clip_value, lists4)
%feature("docstring") gsc_accumulate "gsc_accumulate(on, factor, tensors_and_out, want, report)\n\nout += tensors * factor.inverse if every product is finite in the dtype of its output, else nothing\nat all: a micro-batch that overflowed adds nothing to the good ones. The sums are made in the type\nthat multiplies, or in double if `out` is double, and rounded to `out`; that they are finite is for\nthe unscaling or check of the accumulated gradients to find. The report is of the products. Reads\nthe list twice. `out` and `tensors` have no byte in common.";
GSC_BY_SIZE(gsc_accumulate, lists3)
%feature("docstring") gsc_clip_factor "gsc_clip_factor(on, report, factor, max_norm, out)\n\nout is factor with its inverse multiplied by min(1, max_norm / (norm + 1e-6)), the clip coefficient\nof torch.nn.utils.clip_grad_norm_, where norm is the root of report->sum_squares. After gsc_check,\nunscaling by out unscales and clips in one pass; after gsc_unscale, pass factor None and multiply by\nout->inverse, or hand it to the optimizer.";
%feature("docstring") gsc_workspace_size "gsc_workspace_size(on, tensors, want)\n\nBytes of gsc_exec.workspace that a call over this list needs: 0 on the CPU, and where there is no\nlist. It depends on counts and dtypes, not on data; gsc_accumulate needs it for `tensors`.";
%ignore gsc_error;
%ignore gsc_policy;
%ignore gsc_exec;
%ignore gsc_info;
%ignore gsc_factor;
%ignore gsc_report;
%ignore gsc_state;
%ignore gsc_tensor;

%include "gradscaler.h"
