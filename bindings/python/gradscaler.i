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
GSC_STRUCT(gsc_evidence, false)
GSC_STRUCT(gsc_reason, false)
GSC_STRUCT(gsc_entry, false)
GSC_STRUCT(gsc_note, false)
GSC_STRUCT(gsc_format_key, false)
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
  {"loss", offsetof(gsc_tensor_options, loss), sizeof(gsc_tensor), 't', false},
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

%feature("docstring") gsc_status_string "gsc_status_string(status)\n\nReturns the meaning of a status in a few words. Never None, never freed.";
%feature("docstring") gsc_version "gsc_version()\n\nReturns the version of the library that runs, as major << 16 | minor << 8 | patch, with minor and\npatch below 256; GSC_VERSION is the version of this header.";
%feature("docstring") gsc_version_string "gsc_version_string()\n\nReturns the version of the library that runs as text, such as \"1.0.2\". Never None, never freed.";
%feature("docstring") gsc_has "gsc_has(feature)\n\n`feature` is a number, not a union of bits. Returns 0 if the library that runs was built without it\nor does not know it, else 1, and for Feature.CUDA the GSC_CUDA_VERSION of that library.\ngsc_cuda_start checks for a device.";
%ignore gsc_struct_init;
%feature("docstring") gsc_policy_preset "gsc_policy_preset(name, out)\n\nFills *out, made by GSC_POLICY_INIT, with a named set of rules: \"recommended\" for new work, \"guard\"\nfor bf16, \"none\", \"static\", or the exact rules of the version of a framework that gsc_preset_summary\nnames, such as \"torch\" or \"megatron\".";
%feature("docstring") gsc_policy_check "gsc_policy_check(policy)\n\nChecks that the policy can be used. Every call that takes a policy makes the same check.";
GSC_ONLY_OUT(gsc_trait, traits, PyLong_FromUnsignedLongLong)
%feature("docstring") gsc_policy_resolve "gsc_policy_resolve(policy, out)\n\nWrites the traits of a policy, and a copy of the policy that has its defaults as numbers, for\ndisplay. In *out, which GSC_POLICY_INIT made, init_scale, growth_factor and hysteresis are 1 if they\nwere 0, and backoff_factor is 1 / growth_factor if it was 0. Other fields do not change. Update with\n*policy, not *out: a backoff_factor of 0 divides by growth_factor, and that can round differently.\n*out can be *policy.";
%feature("docstring") gsc_preset_name "gsc_preset_name(index)\n\nReturns the name of preset `index`, from 0, or None after the last.";
%feature("docstring") gsc_preset_summary "gsc_preset_summary(index)\n\nReturns a sentence on what preset `index` does and where its rules come from, or None after the\nlast.";
%feature("docstring") gsc_context_create_cpu "gsc_context_create_cpu(options)\n\nMakes a context of threads. Its own threads sleep between calls. Results have the same bits for any\nnumber of threads.";
%ignore gsc_context_destroy;
%feature("docstring") gsc_info_get "gsc_info_get(out)\n\nFills *out, made by GSC_INFO_INIT.";
%feature("docstring") gsc_factor_init "gsc_factor_init(scale, out)\n\nMakes the factor of a scale, with generation 0.";
%feature("docstring") gsc_factor_multiply "gsc_factor_multiply(exec, factor, by, out)\n\nMultiplies the scale by `by` and divides the inverse by `by`. Both must stay above 0 and finite as\nfloats. To get the mean of k gradients that were added, unscale their sum with the factor times k.\n*out can be *factor.";
%feature("docstring") gsc_report_from_number "gsc_report_from_number(number, out)\n\nMakes the report of a number, such as the loss of a step, for a policy that guards this number\ninstead of gradients. Update a separate state with this report; gsc_state_combine_decisions combines\nthe decisions of both states. The number keeps its sign. Inf and NaN are an overflow, not a bad\nloss: see options.loss. If the loss is in device memory, measure its magnitude with gsc_measure and\nWant.NORM instead. A report of a number cannot be merged.";
%feature("docstring") gsc_report_from_flag "gsc_report_from_flag(overflow, out)\n\nMakes a report of the flag of other code, such as a framework's found_inf. It has no measurements,\nso a policy that judges by the norm refuses it unless it has an overflow.";
GSC_STRUCTS(gsc_report, reports, n)
%feature("docstring") gsc_report_merge "gsc_report_merge(exec, reports, kind, policy, out)\n\nMerges reports into one. Ranks gather their reports and merge them in the order of the ranks: then\nall get the same bits. The call does not check that each rank is there once and in order. The result\nhas the measurements that all reports have. The norm and amax of addends are unknown: measure the\nsum of the gradients. first_tensor and first_element come from the first report with an element that\nis not finite, last_tensor from the last. The loss is bad if any known loss is bad, and finite if\nall known losses are. The generation is the least that is known. *out can be one of the reports.\n\nIf digests differ, the call fails with Status.ERROR_MISMATCH and the index of the first report that\ndiffers from the reports before it. A report without a digest, such as the report of a rank that\nfailed or that has no gradients, agrees with all.\n\nMerged reports can be merged again: first in each node, then across nodes. The result has the same\nbits as one merge of all reports, except sum_squares, which is then a sum of the nodes' sums. If all\nranks merge the same groups, all get the same sum. That sum equals one merge's bit by bit if each\ngroup except the last has 64 reports and there are at most 64 groups. Give the policy to the last\nmerge. If the merge of a group is refused, the group sends the report of ExecFlag.WRITE_FAILURES to\nthe next merge, so that the other groups do not wait.";
%feature("docstring") gsc_factor_clip_grad_norm "gsc_factor_clip_grad_norm(exec, factor, report, max_norm, out)\n\nWrites *factor with its inverse multiplied by min(1, max_norm / (norm + 1e-6)), as\ntorch.nn.utils.clip_grad_norm_ does. The report needs Want.NORM. After gsc_measure, unscale with\n*out to clip in the same pass. If an optimizer takes a multiplier, pass out->inverse_f32; it becomes\n0 if the inverse is too small for a float. To also clip outliers, make both factors from the same\nfactor, and unscale with the one that has the smaller inverse: one after the other, they clip too\nmuch. *out can be *factor.";
%feature("docstring") gsc_state_init "gsc_state_init(exec, policy, out)\n\nMakes the state before the first step.";
%feature("docstring") gsc_state_init_from "gsc_state_init_from(exec, policy, from, out)\n\nMakes a state with the scale from->factor.scale, in force immediately, and with the counts, means\nand totals of `from`. To set the scale or the counts of a state, change a copy of the state and pass\nit. *out can be *from. A scale of 0 or infinity, which some frameworks reach, is accepted, but every\ncall that multiplies refuses its factor.";
%feature("docstring") gsc_state_update "gsc_state_update(exec, policy, state, report, out)\n\nUpdates the state by one step of the policy. Call it once for each optimizer step, also for a\nskipped one, with a report on all gradients of the step. *out can be *state. Then read out->skip: if\nit is 1, leave the parameters alone. report.overflow only says if there was an overflow: outliers\nare found by this update. out->events says what happened:\n- Event.CLIPPED: multiply the gradients before the step, see gsc_factor_clip_outlier.\n- Event.STOPPED: end the training. A further update works as any other.\n- Event.STALE: the report was late or used twice, but it counted like any other.\n\nA report without a measurement that the policy needs is refused: set options.policy.";
%feature("docstring") gsc_state_combine_decisions "gsc_state_combine_decisions(exec, state, other, out)\n\nCopies `state` to *out, with the decisions of `other` added: *out skips, clips or stops if either\nstate did in its last update. `other` is the state of another signal, such as the loss, with its own\npolicy. *out has the events SKIPPED, STOPPED, OUTLIER, CLIPPED and BAD_LOSS of both, and the smaller\nmultiplier. The scale, counts and samples come from `state`. *out can be either state. Combine\nseveral signals one after the other.";
GSC_STRUCTS_BESIDE(gsc_report, per_tensor)
GSC_NAMES_BESIDE(names)
GSC_STRUCTS(uint64_t, order, n)
%feature("docstring") gsc_state_reason "gsc_state_reason(state, report, evidence, per_tensor, names, order, out)\n\nExplains the decision of the last update. `report` is the report of that update; the call does not\ncheck this. The cause of an overflow is the first of these: a parameter is not finite; the first\nloss; a later loss; the scale does not fit the dtype of the loss; else the backward pass made Inf or\nNaN, and the sentence names the tensor that is nearest to the cause.\n\nThe lists are about the same n tensors. `names` are UTF-8; names[i] can be None, and a name that is\ntoo long is cut. `order` has the indices of the tensors in the order in which the backward pass made\ntheir gradients: with `per_tensor`, the first bad one in it is nearest to the cause. Without an\norder, list the tensors in the model's order: the last bad one is nearest. If reports of ranks were\nmerged, pass the lists of the rank that has this tensor. All memory is host memory.";
GSC_SAME_COUNT(gsc_state_reason, arg7, {"per_tensor", gsc_py_length_of(&array4.place, sizeof(gsc_report))}, {"names", strings5.list ? (int64_t)strings5.n : -1}, {"order", gsc_py_length_of(&array6.place, sizeof(uint64_t))})
%feature("action") gsc_state_reason "result = gsc_state_reason((const gsc_state *)arg1, (const gsc_report *)arg2, (const gsc_evidence *)arg3, (const gsc_report *)arg4, (const char *const *)arg5, (const uint64_t *)arg6, (uint64_t)arg7, (gsc_reason *)arg8, (gsc_error *)arg9);"
%feature("docstring") gsc_factor_clip_outlier "gsc_factor_clip_outlier(exec, factor, state, out)\n\nWrites a factor that unscales and clips the gradients of the last update in one pass. If the update\nhas Event.CLIPPED, *out is *factor with its inverse multiplied by state->guard_multiplier, else *out\nis *factor. Pass the factor that the gradients were scaled by: a copy of state->factor from before\nthe update. If the optimizer itself multiplies the gradients, pass it out->inverse_f32, which\nbecomes 0 if the inverse is too small for a float, and state->skip_f32 as found_inf. *out can be\n*factor.";
%feature("docstring") gsc_state_save "gsc_state_save(policy, state)\n\nWrites policy and state, which are in host memory, as bytes with a version and a checksum. Bytes of\n1.0 or later can be read by every later version on every machine. *size becomes the number of bytes;\nwith bytes None and capacity 0, the call only sets *size.";
%feature("docstring") gsc_state_load "gsc_state_load(bytes, policy, state)\n\nReads bytes that gsc_state_save wrote. Bytes of a candidate before 0.10 are refused with\nStatus.ERROR_VERSION. If the caller's gsc_policy is older and lacks fields, these must be 0 in the\nbytes.";
GSC_ONLY_OUT(uint64_t, digest, PyLong_FromUnsignedLongLong)
%feature("docstring") gsc_state_digest "gsc_state_digest(policy, state)\n\nWrites a digest of all that decides later steps: rules, scales, counts and means, but not totals,\ngenerations, events, init_scale and the counts that only a diagnosis reads. It is never 0, and the\nsame on every device and in every language. Compare digests only if gsc_version is the same.";
%feature("docstring") gsc_report_set_rank "gsc_report_set_rank(exec, report, policy, state, rank, out)\n\nCopies *report to *out and sets the rank of the copy: first_rank_plus_1, last_rank_plus_1,\nloss_rank_plus_1 and status_rank_plus_1 become rank + 1, and digest becomes the gsc_state_digest of\npolicy and state. Call it before the update: all ranks then have the same state, and\ngsc_report_merge refuses reports with different digests. *out can be *report.";
%feature("docstring") gsc_format_name "gsc_format_name(index)\n\nReturns the name of format `index`, from 0, or None after the last. Most formats have the name of a\npreset.";
%feature("docstring") gsc_format_summary "gsc_format_summary(index)\n\nReturns a sentence on the framework and the content of format `index`, or None after the last.";
GSC_ONLY_OUT(uint64_t, keys_count, PyLong_FromUnsignedLongLong)
GSC_STRUCTS_OUT(gsc_format_key, keys, keys_capacity)
%feature("docstring") gsc_format_keys "gsc_format_keys(format, keys)\n\nLists the keys that a format reads, the format's own first. A key is there twice if it sets one\nfield in checkpoints and another one in settings.";
GSC_ONLY_OUT(uint64_t, notes_count, PyLong_FromUnsignedLongLong)
GSC_STRUCTS(gsc_entry, entries, entries_count)
GSC_STRUCTS_OUT(gsc_note, notes, notes_capacity)
%feature("docstring") gsc_state_import "gsc_state_import(format, prefix, entries, policy, out_policy, out_state, notes)\n\nReads a checkpoint. *out_policy, made by GSC_POLICY_INIT, becomes `policy` with the settings in the\nentries. *out_state continues with the counts in the entries. Both policies can be one struct.\n\nIf `prefix` is None, the scaler's keys are at the top or below one or two names, as in \"scale\",\n\"scaler.scale\" and \"optimizer.grad_scaler.scale\". If a scaler is only below more names, or if there\nare several scalers, the call fails and names the prefixes. If `format` is None, the keys tell the\nformat. If several formats fit, they must give the same result, else the call fails and names the\nformats.\n\nIf the scale is missing, or if a value cannot be a scale or a count, the call fails and names the\nkey. The notes list everything that is not among the entries, has no meaning here, or has another\nmeaning in this policy, such as a count past its interval.";
GSC_ONLY_OUT(uint64_t, entries_count, PyLong_FromUnsignedLongLong)
GSC_ONLY_OUT(uint64_t, notes_count, PyLong_FromUnsignedLongLong)
GSC_STRUCTS_OUT(gsc_entry, entries, entries_capacity)
GSC_STRUCTS_OUT(gsc_note, notes, notes_capacity)
%feature("docstring") gsc_state_export "gsc_state_export(format, prefix, policy, state, entries, notes)\n\nWrites a state, and the settings of its policy that belong to it, with the keys of a framework. The\nnotes list what these keys cannot hold; gsc_state_import restores everything else, except counts\nthat only a diagnosis reads. If the list is too small for the entries, the call fails; with a\ncapacity of 0 it only counts.";
GSC_ONLY_OUT(uint64_t, notes_count, PyLong_FromUnsignedLongLong)
GSC_STRUCTS(gsc_entry, entries, entries_count)
GSC_STRUCTS_OUT(gsc_note, notes, notes_capacity)
%feature("docstring") gsc_policy_import "gsc_policy_import(format, prefix, entries, policy, out_policy, notes)\n\nReads the settings of a framework's scaler: the arguments of its constructor or program, or its\nsection of a configuration. *out_policy, made by GSC_POLICY_INIT, becomes `policy` with these\nsettings; both can be one struct. Every format also reads the fields of gsc_policy by their own\nnames. `format` can also be the name of a preset that is no format, such as \"guard\": it has no other\nkeys. If the prefix is DeepSpeed's section for bf16, or if that section is on and fp16 is off, the\nscale is 1 forever, whatever `policy` starts with.";
GSC_ONLY_OUT(uint64_t, entries_count, PyLong_FromUnsignedLongLong)
GSC_STRUCTS_OUT(gsc_entry, entries, entries_capacity)
%feature("docstring") gsc_state_metrics "gsc_state_metrics(policy, state, report, entries)\n\nWrites the state after an update, and the report of that update, as numbers with names: see Metric.\nThe call does not check that the report belongs to the update. Counts are INTEGER, SKIP, OVERFLOW\nand BAD_LOSS are BOOLEAN, and unknown values are None. All memory is host memory. The call writes as\nmany entries as the list has room for, and writes the number of all.";
GSC_ONLY_OUT(uint64_t, notes_count, PyLong_FromUnsignedLongLong)
GSC_STRUCTS(gsc_report, per_tensor, per_tensor_count)
GSC_STRUCTS_OUT(gsc_note, notes, notes_capacity)
%feature("docstring") gsc_state_diagnose "gsc_state_diagnose(policy, state, report, per_tensor, steps, planned_steps, notes)\n\nLists the faults of a run as notes, the most important first. Each message says what to do. A count\nof 0 means that no fault was found. Behaviour that a framework's policy has by design is no fault.\nAll memory is host memory. A report with an error status is accepted. Shares are of\nstate.total_updates. The state tells what earlier steps did, so no earlier report is needed. The\nlimits, such as the share of overflows, can change with a version.";
GSC_NAMES(names, n)
%feature("docstring") gsc_history_start "gsc_history_start(policy, preset, state, names, step, rank, time, run)\n\nWrites the line `start` of a history: the version of the library, all fields of the policy, and the\nwhole state. The line ends with a line feed, not with a zero. *size becomes the number of bytes,\nalso if the call fails with Status.ERROR_CAPACITY; with bytes None and capacity 0, the call only\nsets *size.";
GSC_GROWS(gsc_history_start, arg5, arg10, arg11, saved_size10, longer10, {"names", strings4.list ? (int64_t)strings4.n : -1})
GSC_STRUCTS_BESIDE(gsc_report, per_tensor)
GSC_NAMES(names, n)
%feature("docstring") gsc_history_line "gsc_history_line(state, report, reason, per_tensor, names, step, time, run)\n\nWrites the line of one update: the metrics of gsc_state_metrics, the events by name, the reason\nunless the step was taken as it is, and in `state` and `report` all other fields that are not 0, so\nthat gsc_state_diagnose finds the same in the line as in the structs. `tensors` lists tensors by\nname: with `per_tensor` the first seven tensors and the last one that are not finite, the one that\nlost the largest share to zero, and the first of `zeros`, which had only zeros; else the last one\nthat is not finite. The line ends with a line feed, not with a zero. *size becomes the number of\nbytes, also if the call fails with Status.ERROR_CAPACITY; with bytes None and capacity 0, the call\nonly sets *size.";
GSC_GROWS(gsc_history_line, arg6, arg10, arg11, saved_size10, longer10, {"per_tensor", gsc_py_length_of(&array4.place, sizeof(gsc_report))}, {"names", strings5.list ? (int64_t)strings5.n : -1})
%feature("docstring") gsc_dtype_name "gsc_dtype_name(dtype)\n\nReturns the name of a dtype, as NumPy and ml_dtypes spell it, such as \"float32\", \"float8_e4m3fn\" or\n\"cb16\"; None if the number is no dtype.";
%feature("docstring") gsc_dtype_bits "gsc_dtype_bits(dtype)\n\nReturns the bits of one element; 0 if the number is no dtype.";
%feature("docstring") gsc_dtype_size "gsc_dtype_size(dtype)\n\nReturns the bytes of one element; 0 if the number is no dtype, or if a byte holds several elements\nof the dtype.";
%feature("docstring") gsc_measure "gsc_measure(exec, factor, tensors, options, report)\n\nWrites the report that gsc_unscale would make in place, each product rounded to its input's dtype.\nWrites no tensor.";
GSC_ON_LISTS(gsc_measure, on1, lists3, &held5)
%feature("docstring") gsc_unscale "gsc_unscale(exec, factor, tensors_and_out, options, report)\n\nWrites tensors * factor.inverse to `out`. Writes all elements, even if report->overflow is set.\nUnscale float16 gradients into float32: in place, most of what scaling saved is lost again.";
GSC_ON_LISTS(gsc_unscale, on1, lists3, &held6)
%feature("docstring") gsc_scale "gsc_scale(exec, factor, tensors_and_out, options, report)\n\nWrites tensors * factor.scale to `out`: the loss, or the first gradients of a backward pass.";
GSC_ON_LISTS(gsc_scale, on1, lists3, &held6)
%feature("docstring") gsc_unscale_accumulate "gsc_unscale_accumulate(exec, factor, tensors_and_out, options, report)\n\nAdds tensors * factor.inverse to `out` if every product is finite in the dtype of its output, and\noptions.loss, if given, is finite; else adds nothing. A micro-batch that overflowed, or had a bad\nloss, is thus left out: divide the sums by the number of micro-batches that were added. The report\nis of the products. Unscale or check the sums to see whether they are finite. Sums are made in the\nmultiplying type, or in double if `out` is double. The call reads `tensors` twice; `out` must be\nother memory.\n\nFor a step of several micro-batches, call this without options.policy: the micro-batch was added if\nreport.overflow is 0 and report.loss is not Loss.NOT_FINITE. Keep one merged report: start it by\ngsc_report_merge with n = 0, then merge it with each new report as addends. If any were added,\nunscale the sums with options.policy and with the factor that gsc_factor_init makes of their number.\nThen update:\n- If the merged report has no overflow and, with BadLoss.HOLD, no bad loss, update with the report\n  of the sums, and leave the parameters alone if state.skip is 1.\n- Else update with the merged report, so that the scale backs off or, with BadLoss.HOLD, stays. Do\n  not read state.skip of this update: it is about the micro-batches that were left out. The update\n  still counts for max_failed_backoffs. Take the step of the other micro-batches, if there are any\n  and the report of the sums has no overflow. A guard does not judge this step.";
GSC_ON_LISTS(gsc_unscale_accumulate, on1, lists3, &held6)
%feature("docstring") gsc_copy_unless_skipped "gsc_copy_unless_skipped(exec, state, tensors_and_out)\n\nCopies `tensors` to `out` if the last update of `state` takes its step. If state->skip is 1, writes\nnothing. So a program that does not wait for its device still skips: the optimizer writes new\nparameters and its new state to other memory, and after the update one call copies them all over the\nold ones. Bits are copied, NaN included; if the dtypes differ, values are rounded as by gsc_unscale\nwith a factor of None. Pass integers as Dtype.F32 or Dtype.F64, by their size.\n\nOn a device the call reads `state` when it runs. A state that is refused there counts as a skip.";
GSC_ON_LISTS(gsc_copy_unless_skipped, on1, lists3, NULL)
%ignore gsc_tensors_check_overlap;
%feature("docstring") gsc_cuda_start "gsc_cuda_start()\n\nStarts the CUDA driver and checks that there is a device. If there is none, returns\nStatus.ERROR_UNAVAILABLE, and err->message says why.";
GSC_BLOCKS(gsc_cuda_start)
%feature("docstring") gsc_cuda_log "gsc_cuda_log()\n\nReturns the log of the driver's compiler for the first device that refused the kernels, or an empty\ntext. Never None, never freed.";
%feature("docstring") gsc_context_create_cuda "gsc_context_create_cuda(options)\n\nMakes a context on a CUDA device. It uses the device's primary context, which frameworks share. It\nloads the kernels, so that no later call has to; this takes seconds the first time on a machine.\nMake one context for each device, not one for each call. Minimum: compute capability 7.0, driver of\nCUDA 11.0. cudaDeviceReset ends the context, so destroy it before.\n\nThe first context of a device in a process makes round 0 of each comparison of gsc_exec_compare, in\na stream and memory of its own. If a bit differs, this context and all later ones of the device fail\nwith Status.ERROR_DEVICE. While the legacy stream is captured, or without memory for it, the next\ncontext makes them. GSC_CUDA_CHECK=0 in the environment switches them off.";
GSC_BLOCKS(gsc_context_create_cuda)
%feature("docstring") gsc_memory_create "gsc_memory_create(context, kind, size)\n\nAllocates memory of a context, aligned to 256 bytes and not cleared. Free it before the context.";
GSC_BLOCKS(gsc_memory_create)
%ignore gsc_memory_destroy;
%feature("docstring") gsc_memory_copy "gsc_memory_copy(exec, to, from, size)\n\nCopies between host and device memory, in any direction, in the order of exec->stream. Host memory\nstays in use until gsc_exec_wait, or until other code waits for the stream.";
%feature("docstring") gsc_exec_wait "gsc_exec_wait(exec)\n\nWaits until exec->stream has done all work that was enqueued. If the stream is being captured, fails\nwith Status.ERROR_UNAVAILABLE, and the capture goes on.";
GSC_BLOCKS(gsc_exec_wait)
GSC_ONLY_OUT(uint64_t, size, PyLong_FromUnsignedLongLong)
%feature("docstring") gsc_workspace_size "gsc_workspace_size(exec, tensors, options)\n\nWrites the bytes of exec->workspace that any call on tensors needs for this list; 0 on the CPU.";
GSC_ON_LISTS(gsc_workspace_size, on1, lists2, &held4)
%feature("docstring") gsc_comparison_name "gsc_comparison_name(index)\n\nReturns the name of comparison `index`, from 0, or None after the last.";
GSC_ONLY_OUT(uint64_t, size, PyLong_FromUnsignedLongLong)
%feature("docstring") gsc_exec_compare "gsc_exec_compare(exec, index, round)\n\nMakes the same calls on `exec` and on the host, and compares what they write, bit for bit. If a bit\ndiffers, fails with Status.ERROR_DEVICE, and err->message says where. Writes how many bytes of\n`exec` it used. All comparisons together show that a device works; a CUDA context makes round 0 of\neach at the first use of a device in a process.";
GSC_BLOCKS(gsc_exec_compare)
%ignore gsc_error;
%ignore gsc_policy;
%ignore gsc_exec;
%ignore gsc_cpu_options;
%ignore gsc_info;
%ignore gsc_factor;
%ignore gsc_report;
%ignore gsc_state;
%ignore gsc_evidence;
%ignore gsc_reason;
%ignore gsc_entry;
%ignore gsc_note;
%ignore gsc_format_key;
%ignore gsc_tensor;
%ignore gsc_tensor_options;
%ignore gsc_cuda_options;

%include "gradscaler.h"
%include "gradscaler_cuda.h"
