/* Generated from include/gradscaler.toml by bindings/python/generate.py. Do not edit. */
%module _gradscaler
%{
#include "arrays.h"
%}
%include "typemaps.i"

GSC_STRUCT(gsc_policy, true)
GSC_STRUCT(gsc_info, true)
GSC_STRUCT(gsc_factor, false)
GSC_STRUCT(gsc_report, false)
GSC_STRUCT(gsc_state, false)
GSC_STRUCT(gsc_reason, false)
GSC_STRUCT(gsc_entry, false)
GSC_STRUCT(gsc_note, false)
%{
static const gsc_py_field gsc_cpu_options_fields[] = {
  {"threads", offsetof(gsc_cpu_options, threads), sizeof((gsc_cpu_options *)0)->threads, 'u', false},
  {"pool", offsetof(gsc_cpu_options, pool), 0, 'o', false},
  {NULL, 0, 0, 0, false},
};
%}
GSC_FIELDS(gsc_cpu_options, gsc_cpu_options_fields, GSC_CPU_OPTIONS_INIT)
%{
static const gsc_py_field gsc_tensor_options_fields[] = {
  {"want", offsetof(gsc_tensor_options, want), sizeof((gsc_tensor_options *)0)->want, 'u', false},
  {"policy", offsetof(gsc_tensor_options, policy), sizeof(gsc_policy), 's', true},
  {"clamp", offsetof(gsc_tensor_options, clamp), sizeof((gsc_tensor_options *)0)->clamp, 'f', false},
  {"per_tensor", offsetof(gsc_tensor_options, per_tensor), sizeof(gsc_report), 'o', false},
  {"histogram", offsetof(gsc_tensor_options, histogram), sizeof(int64_t), 'o', false},
  {NULL, 0, 0, 0, false},
};
%}
GSC_FIELDS(gsc_tensor_options, gsc_tensor_options_fields, GSC_TENSOR_OPTIONS_INIT)
%{
static const gsc_py_field gsc_cuda_options_fields[] = {
  {"device", offsetof(gsc_cuda_options, device), sizeof((gsc_cuda_options *)0)->device, 'i', false},
  {NULL, 0, 0, 0, false},
};
%}
GSC_FIELDS(gsc_cuda_options, gsc_cuda_options_fields, GSC_CUDA_OPTIONS_INIT)

%feature("docstring") gsc_status_string "gsc_status_string(status)\n\nThe meaning of a status in a few words. Never None, never freed.";
%feature("docstring") gsc_version "gsc_version()\n\nVersion of the library that runs; GSC_VERSION is the version of this header.";
%feature("docstring") gsc_version_string "gsc_version_string()\n\nThe same as text, such as \"1.0.2\". Never None, never freed.";
%feature("docstring") gsc_has "gsc_has(feature)\n\nReturns 1 if the library that runs has the feature, else 0.";
%ignore gsc_struct_init;
%feature("docstring") gsc_policy_preset "gsc_policy_preset(name, out)\n\nFills *out, which GSC_POLICY_INIT made, with a named set of rules: \"recommended\" for new work,\n\"guard\" for bf16, \"none\", \"static\", or the exact rules of a framework, such as \"torch\" or\n\"megatron\".";
%feature("docstring") gsc_policy_check "gsc_policy_check(policy)\n\nWhether the policy can be used; every call that takes a policy asks the same.";
GSC_ONLY_OUT(gsc_trait, traits, PyLong_FromUnsignedLongLong)
%feature("docstring") gsc_policy_resolve "gsc_policy_resolve(policy, out)\n\nSays what a policy does. *out, which GSC_POLICY_INIT made, becomes the policy with what 0 stands\nfor: init_scale, growth_factor and hysteresis 1, and backoff_factor 1 / growth_factor, which a\nbackoff divides by. Other zeros stay. *out may be *policy.";
%feature("docstring") gsc_preset_name "gsc_preset_name(index)\n\nName of preset `index`, from 0. None past the last.";
%feature("docstring") gsc_preset_summary "gsc_preset_summary(index)\n\nWhat preset `index` does and where its rules come from, in a sentence. None past the last.";
%feature("docstring") gsc_context_create_cpu "gsc_context_create_cpu(options)\n\nMakes a context of threads. Its own threads sleep between calls and are made anew in a forked\nprocess. Results have the same bits for any number of threads.";
%ignore gsc_context_destroy;
%feature("docstring") gsc_info_get "gsc_info_get(out)\n\nFills *out, which GSC_INFO_INIT made.";
%feature("docstring") gsc_factor_init "gsc_factor_init(scale, out)\n\nMakes the factor of a scale, with generation 0.";
%feature("docstring") gsc_factor_multiply "gsc_factor_multiply(exec, factor, by, out)\n\nMultiplies the scale by `by` and divides the inverse by it. To get the mean of k gradients that were\nadded, unscale their sum by the factor times k. *out may be *factor.";
%feature("docstring") gsc_report_from_number "gsc_report_from_number(number, out)\n\nMakes the report of a number, for a policy that guards something else than gradients, such as the\nloss of each step. Its own state takes this report in gsc_state_update, and\ngsc_state_combine_decisions says what both states decided. The number counts with its sign. Inf and\nNaN are an overflow. If the loss is in the memory of a device, measure its magnitude with\ngsc_measure and Want.NORM instead. A report of a number cannot be merged.";
%feature("docstring") gsc_report_from_flag "gsc_report_from_flag(overflow, out)\n\nMakes a report of an overflow that was found elsewhere, such as a framework's found_inf. It measures\nnothing else, so a policy that judges by the norm or by amax refuses it unless it says an overflow.";
GSC_STRUCTS(gsc_report, reports, n)
%feature("docstring") gsc_report_merge "gsc_report_merge(exec, reports, kind, policy, out)\n\nMakes one report of many. Ranks gather their reports and merge them in the order of the ranks, so\nthat all get the same bits. That each rank is there once, and in order, is not checked. The result\nhas measured what all of them have measured; the norm and amax of addends are not known: measure\ntheir sum. first_tensor and first_element are those of the first report that has some, the\ngeneration is the least that is known. *out may be one of the reports.\n\nDigests that differ are refused: Status.ERROR_MISMATCH, with the index of the first report that has\nanother digest than those before it. A device returns no error: it makes a report with that status\nand an overflow, so that nobody steps. A report without a digest agrees with all, such as the report\nof a rank that failed or that has no gradients.\n\nMerged reports can be merged again, per node and then across nodes. The result is what one merge of\nall reports gives, to the bit, except for sum_squares, which is then a sum of the sums of the nodes.\nAll ranks get the same sum if all merge the same groups. It is the sum of one merge if each group\nbut the last has 64 reports and there are at most 64 groups. Give the policy to the last merge. If\nthe merge of a group is refused, the group takes part in the next merge with a report of that status\nand an overflow, so that the others do not wait for it.";
%feature("docstring") gsc_factor_clip_grad_norm "gsc_factor_clip_grad_norm(exec, factor, report, max_norm, out)\n\n*out is *factor with its inverse multiplied by min(1, max_norm / (norm + 1e-6)), as in\ntorch.nn.utils.clip_grad_norm_. The report has Want.NORM. After gsc_measure, unscaling by *out clips\nin the same pass; an optimizer that takes a multiplier takes out->inverse_f32. To clip outliers as\nwell, make both factors of the same one and unscale by the one with the smaller inverse: one after\nthe other they clip too much.";
%feature("docstring") gsc_state_init "gsc_state_init(exec, policy, out)\n\nMakes the state before the first step.";
%feature("docstring") gsc_state_init_from "gsc_state_init_from(exec, policy, from, out)\n\nMakes a state that has the scale from->factor.scale at once, and the counts, means and totals of\n`from`: to set the scale of a state or its counts, change a copy and hand it over. *out may be\n*from. A scale of 0 or infinity, which some peers reach, is taken; its factor is refused by every\ncall that multiplies.";
%feature("docstring") gsc_state_update "gsc_state_update(exec, policy, state, report, out)\n\nOne step of the policy. Call it once for each optimizer step, also for a skipped one, with a report\non all of its gradients. *out may be *state. Then ask out->skip: if it is 1, leave the parameters\nalone. Only the update knows outliers: report.overflow is about overflow alone. out->events says\nwhat happened: with Event.CLIPPED the gradients are to be multiplied before the step, see\ngsc_factor_clip_outlier; with Event.STOPPED the training should end, and an update after that goes\non as after any other; with Event.STALE the report has counted like any other. A report that lacks\nwhat the policy judges by is refused; options.policy measures it. A predictive policy takes a report\nwith amax 0 and no overflow as no sample: the scale stays.";
%feature("docstring") gsc_state_combine_decisions "gsc_state_combine_decisions(exec, state, other, out)\n\n*out is `state`, and skips, clips or stops also where `other` did in its last update: the state of\nanother signal, such as the loss, which a policy of its own judged. It has the events SKIPPED,\nSTOPPED, OUTLIER and CLIPPED of both, and the smaller multiplier. Its scale, counts and samples are\nthose of `state`. *out may be either. Combine several signals one after the other.";
%feature("docstring") gsc_state_reason "gsc_state_reason(state, out)\n\nSays why the last update decided as it did. The state is in host memory.";
%feature("docstring") gsc_factor_clip_outlier "gsc_factor_clip_outlier(exec, factor, state, out)\n\n*out is *factor with its inverse multiplied by state->guard_multiplier if the last update clips\n(Event.CLIPPED), else *factor. `factor` is that of the gradients, copied before the update.\nUnscaling by *out clips in the same pass; an optimizer that takes a multiplier takes\nout->inverse_f32, and state->skip_f32 as found_inf.";
%feature("docstring") gsc_state_save "gsc_state_save(policy, state)\n\nWrites policy and state, which are host memory, as bytes that any later version on any machine\nreads: versioned, with a checksum. *size becomes their number; with bytes None and capacity 0 only\nthat.";
%feature("docstring") gsc_state_load "gsc_state_load(bytes, policy, state)\n\nReads what gsc_state_save wrote. Fields that the caller's *policy is too small for must be 0 in the\nbytes.";
GSC_ONLY_OUT(uint64_t, digest, PyLong_FromUnsignedLongLong)
%feature("docstring") gsc_state_digest "gsc_state_digest(policy, state)\n\nA digest of all that decides later steps: rules, scales, counts, means; not of totals, generations,\nevents and init_scale. It is never 0, and the same on every device and in every language; compare\ndigests of one version of this library.";
%feature("docstring") gsc_report_set_rank "gsc_report_set_rank(exec, report, policy, state, rank, out)\n\n*out is the report with the rank that it is of and, as `digest`, what gsc_state_digest gives of the\npolicy and of the state that the step began with. *out may be *report.";
%feature("docstring") gsc_format_name "gsc_format_name(index)\n\nName of format `index`, from 0; most are those of presets. None past the last.";
%feature("docstring") gsc_format_summary "gsc_format_summary(index)\n\nWhose format `index` is and what it holds, in a sentence. None past the last.";
GSC_STRUCTS(gsc_entry, entries, entries_count)
GSC_STRUCTS_OUT(gsc_note, notes, notes_capacity)
GSC_ONLY_OUT(uint64_t, notes_count, PyLong_FromUnsignedLongLong)
%feature("docstring") gsc_state_import "gsc_state_import(format, prefix, entries, policy, out_policy, out_state, notes)\n\nReads a checkpoint. What is in out_policy, which GSC_POLICY_INIT made, is then `policy` with the\nsettings that are among the entries, and out_state goes on from the counts that are there. Both\npolicies may be one struct. Without `prefix` the scaler's keys stand at the top or below one or two\nnames, as in \"scale\", \"scaler.scale\" and \"optimizer.grad_scaler.scale\". If a scaler stands only\nbelow more names, or several scalers are there, the call fails and names the prefixes. Without\n`format` the keys tell the format. If several formats fit, they must read alike, else the call fails\nand names them. Refused are a missing scale, and a value that cannot be a scale or a count; the\nerror names the key. What is not among the entries, has no place here, or means something else to\nthis policy, such as a count past its interval, is in the notes.";
GSC_STRUCTS_OUT(gsc_entry, entries, entries_capacity)
GSC_ONLY_OUT(uint64_t, entries_count, PyLong_FromUnsignedLongLong)
GSC_STRUCTS_OUT(gsc_note, notes, notes_capacity)
GSC_ONLY_OUT(uint64_t, notes_count, PyLong_FromUnsignedLongLong)
%feature("docstring") gsc_state_export "gsc_state_export(format, prefix, policy, state, entries, notes)\n\nWrites a state, and of its policy the settings that belong to it, in the keys of a framework. What\nthey cannot hold is in the notes; all else comes back from gsc_state_import. A list with too little\nroom for the entries is refused; with a capacity of 0 the call only counts.";
GSC_STRUCTS(gsc_entry, entries, entries_count)
GSC_STRUCTS_OUT(gsc_note, notes, notes_capacity)
GSC_ONLY_OUT(uint64_t, notes_count, PyLong_FromUnsignedLongLong)
%feature("docstring") gsc_policy_import "gsc_policy_import(format, prefix, entries, policy, out_policy, notes)\n\nReads how a framework's scaler is set up: the arguments of its constructor or program, or its part\nof a configuration. What is in out_policy, which GSC_POLICY_INIT made, is then `policy` with these\nsettings; both may be one struct. The fields of gsc_policy are read by their own names in every\nformat; `format` can also be the name of a preset of a guard, which has no other keys. If\nDeepSpeed's section for bf16 is asked for, or is on while fp16 is not, the scale is 1 for good,\nwhatever `policy` starts with.";
GSC_STRUCTS_OUT(gsc_entry, entries, entries_capacity)
GSC_ONLY_OUT(uint64_t, entries_count, PyLong_FromUnsignedLongLong)
%feature("docstring") gsc_state_metrics "gsc_state_metrics(policy, state, report, entries)\n\nWrites the state after an update, and the report of that update, as numbers with names: see Metric.\nThat it is the report of that update is not checked. Counts are INTEGER, SKIP and OVERFLOW BOOLEAN,\nand what is not known is None. All memory is host memory. The call writes as many entries as there\nis room for, and tells how many there are.";
GSC_STRUCTS(gsc_report, per_tensor, per_tensor_count)
GSC_STRUCTS_OUT(gsc_note, notes, notes_capacity)
GSC_ONLY_OUT(uint64_t, notes_count, PyLong_FromUnsignedLongLong)
%feature("docstring") gsc_state_diagnose "gsc_state_diagnose(policy, state, report, per_tensor, steps, planned_steps, notes)\n\nLists the faults of a run as notes, the most important first. Each message says what to do. A count\nof 0 means that no fault was found. What the policy of a framework does by design is no fault. All\nmemory is host memory. A report with an error status is accepted. What counts as often, or as most,\nmay change with a version.";
%feature("docstring") gsc_dtype_name "gsc_dtype_name(dtype)\n\nName of a dtype, as NumPy and ml_dtypes spell it: \"float32\", \"float8_e4m3fn\", \"cb16\". None for a\nnumber that is no dtype.";
%feature("docstring") gsc_dtype_bits "gsc_dtype_bits(dtype)\n\nBits of one element; 0 for a number that is no dtype.";
%feature("docstring") gsc_dtype_size "gsc_dtype_size(dtype)\n\nReturns the bytes of one element; 0 for a number that is no dtype, and for a dtype that has several\nelements in a byte.";
%feature("docstring") gsc_measure "gsc_measure(exec, factor, tensors, options, report)\n\nReports on tensors * factor.inverse without writing it: what gsc_unscale in place would report.";
GSC_ON_LISTS(gsc_measure, on1, lists3, held5)
%feature("docstring") gsc_unscale "gsc_unscale(exec, factor, tensors_and_out, options, report)\n\nout = tensors * factor.inverse. Writes all elements, also when report->overflow is set. float16\ngradients are best unscaled into float32: in place most of what scaling saved is lost again.";
GSC_ON_LISTS(gsc_unscale, on1, lists3, held6)
%feature("docstring") gsc_scale "gsc_scale(exec, factor, tensors_and_out, options, report)\n\nout = tensors * factor.scale: the loss, or what a backward pass starts from.";
GSC_ON_LISTS(gsc_scale, on1, lists3, held6)
%feature("docstring") gsc_unscale_accumulate "gsc_unscale_accumulate(exec, factor, tensors_and_out, options, report)\n\nout += tensors * factor.inverse if every product is finite in the dtype of its output, else nothing:\na micro-batch that overflowed is left out, so divide the sums by the number of those that were\nadded. The report is of the products; whether the sums are finite shows when they are unscaled or\nchecked. Sums are made in the type that multiplies, or in double if `out` is double. Reads `tensors`\ntwice; `out` is other memory.\n\nA step of several micro-batches: merge their reports as addends, beginning with the merge of none.\nMake a factor of the number of micro-batches that were added, and unscale the sums by it with\noptions.policy. Then update:\n- Without an overflow in the merged report, update with the report of the sums, and leave the\n  parameters alone if state.skip is 1.\n- With one, update with the merged report, so that the scale backs off. state.skip is then 1 because\n  of the micro-batch that was left out: take the step of the others if the report of the sums has no\n  overflow. A guard does not judge it.";
GSC_ON_LISTS(gsc_unscale_accumulate, on1, lists3, held6)
%ignore gsc_tensors_check_overlap;
%feature("docstring") gsc_cuda_start "gsc_cuda_start()\n\nStarts the CUDA driver and says whether there is a device. Status.ERROR_UNAVAILABLE: err->message\nsays why there is none. A process that is forked later cannot use CUDA.";
GSC_BLOCKS(gsc_cuda_start)
%feature("docstring") gsc_cuda_log "gsc_cuda_log()\n\nReturns what the driver's compiler said when it refused the kernels of the first device that did;\nempty before. Never None, never freed.";
%feature("docstring") gsc_context_create_cuda "gsc_context_create_cuda(options)\n\nMakes a context on a CUDA device: its primary one, which frameworks share. It loads the kernels,\nwhich takes seconds the first time on a machine, so that no later call has to: make one per device,\nnot one per call. It needs compute capability 7.0 and a driver of CUDA 11.0. A process that was\nforked after CUDA was used cannot use it; cudaDeviceReset ends the context, so destroy it before.";
GSC_BLOCKS(gsc_context_create_cuda)
%feature("docstring") gsc_memory_create "gsc_memory_create(context, kind, size)\n\nMemory of a context, aligned to 256 bytes and not cleared. Free it before the context.";
GSC_BLOCKS(gsc_memory_create)
%ignore gsc_memory_destroy;
%feature("docstring") gsc_memory_copy "gsc_memory_copy(exec, to, from, size)\n\nCopies between any two of host and device memory, in the order of exec->stream. Host memory stays in\nuse until gsc_exec_wait, or whatever else waits for the stream.";
%feature("docstring") gsc_exec_wait "gsc_exec_wait(exec)\n\nWaits until exec->stream has done all that was enqueued. A stream that is being captured is refused\nwith Status.ERROR_UNAVAILABLE, and its capture goes on.";
GSC_BLOCKS(gsc_exec_wait)
GSC_ONLY_OUT(uint64_t, size, PyLong_FromUnsignedLongLong)
%feature("docstring") gsc_workspace_size "gsc_workspace_size(exec, tensors, options)\n\nBytes of exec->workspace that any of these calls needs for this list; 0 on the CPU.";
GSC_ON_LISTS(gsc_workspace_size, on1, lists2, held4)
%ignore gsc_error;
%ignore gsc_policy;
%ignore gsc_exec;
%ignore gsc_cpu_options;
%ignore gsc_info;
%ignore gsc_factor;
%ignore gsc_report;
%ignore gsc_state;
%ignore gsc_reason;
%ignore gsc_entry;
%ignore gsc_note;
%ignore gsc_tensor;
%ignore gsc_tensor_options;
%ignore gsc_cuda_options;

%include "gradscaler.h"
%include "gradscaler_cuda.h"
