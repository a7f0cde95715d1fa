# Generated from include/gradscaler.toml by bindings/elixir/generate.py. Do not edit.
defmodule GradScaler.Native do
  @moduledoc """
  The C functions, one to one; the first of three layers.

  Structs are binaries of their exact size (`GradScaler.Policy` and its siblings encode and decode
  them), lists of structs one binary, tensors `{dtype, binary}` with the dtype's number, and results
  new binaries. A list that a call fills has as many structs as there are: the C function is called for
  their number first. What the caller passes is never written. Options are the tuple that
  `GradScaler.TensorOptions.encode/1` makes, or nil; what they ask for comes last in the results, nil
  where it was not asked for. A refusal is `{:error, error}` with the members of `gsc_error` as a map;
  nothing here raises.

  `exec` is nil, or a device. On a CUDA device tensors are `{dtype, memory, offset, bytes}`, outputs
  are written in place and structs are binaries all the same: each call waits for its results, on a
  dirty scheduler.

  Functions over tensors go to a dirty CPU scheduler by themselves where a normal one would be held
  up. Those whose names end in `_dirty` are there from the start: a large binary that begins within
  a byte is copied before anything else can be asked of it.
  """

  # Loaded by the first call, not by the compiler, which runs before the library is there.
  @compile {:autoload, false}
  @on_load :load
  @version 2304

  @type dtype :: non_neg_integer
  @type device :: reference
  @type memory :: reference
  @type tensor ::
          {dtype, binary} | {dtype, memory, offset :: non_neg_integer, bytes :: non_neg_integer}
  @type part :: {offset :: non_neg_integer, bytes :: non_neg_integer}
  @type piece ::
          {offset :: non_neg_integer, binary}
          | {offset :: non_neg_integer, memory, from :: non_neg_integer, bytes :: non_neg_integer}
  @type real :: float | integer | :infinity | :neg_infinity | :nan
  @type error :: {:error, map}

  @doc false
  def load do
    path = Path.join(:code.priv_dir(:gradscaler), "gradscaler_nif")
    :erlang.load_nif(String.to_charlist(path), @version)
  end

  @doc """
  A device of so many threads, whose memory is host memory.
  """
  @spec context_create_cpu(pos_integer) :: {:ok, device} | error
  def context_create_cpu(_threads), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  A CUDA device. It is freed with the last term that names it or memory of it.
  """
  @spec context_create_cuda(non_neg_integer) :: {:ok, device} | error
  def context_create_cuda(_ordinal), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Memory of a device, not cleared. It is freed with the last term that names it.
  """
  @spec memory_create(device, non_neg_integer) :: {:ok, memory} | error
  def memory_create(_device, _bytes), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Frees memory now; what still names it is refused from here on.
  """
  @spec memory_destroy(memory) :: :ok | error
  def memory_destroy(_memory), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Copies to memory: binaries, or parts of memory of the same device.
  """
  @spec memory_write(memory, [piece]) :: :ok | error
  def memory_write(_memory, _pieces), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Copies of parts of memory.
  """
  @spec memory_read(memory, [part]) :: {:ok, [binary]} | error
  def memory_read(_memory, _parts), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  The meaning of a status in a few words. Never nil, never freed.
  """
  @spec status_string(integer) :: binary | nil | error
  def status_string(_status), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Version of the library that runs; GSC_VERSION is the version of this header.
  """
  @spec version() :: integer
  def version, do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  The same as text, such as `1.0.2`. Never nil, never freed.
  """
  @spec version_string() :: binary | nil
  def version_string, do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Returns 1 if the library that runs has the feature, else 0.
  """
  @spec has(integer) :: integer | error
  def has(_feature), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Fills the result, which GSC_POLICY_INIT made, with a named set of rules: `recommended` for new
  work, `guard` for bf16, `none`, `static`, or the exact rules of a framework, such as `torch` or
  `megatron`.
  """
  @spec policy_preset(binary) :: {:ok, binary} | error
  def policy_preset(_name), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Whether the policy can be used; every call that takes a policy asks the same.
  """
  @spec policy_check(binary) :: :ok | error
  def policy_check(_policy), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Says what a policy does. the result, which GSC_POLICY_INIT made, becomes the policy with what 0
  stands for: init_scale, growth_factor and hysteresis 1, and backoff_factor 1 / growth_factor,
  which a backoff divides by. Other zeros stay. the result may be *policy.
  """
  @spec policy_resolve(binary) :: {:ok, binary, integer | nil} | error
  def policy_resolve(_policy), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Name of preset `index`, from 0. nil past the last.
  """
  @spec preset_name(integer) :: binary | nil | error
  def preset_name(_index), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  What preset `index` does and where its rules come from, in a sentence. nil past the last.
  """
  @spec preset_summary(integer) :: binary | nil | error
  def preset_summary(_index), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Fills the result, which GSC_INFO_INIT made.
  """
  @spec info_get() :: {:ok, map} | error
  def info_get, do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Makes the factor of a scale, with generation 0.
  """
  @spec factor_init(real) :: {:ok, binary} | error
  def factor_init(_scale), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Multiplies the scale by `by` and divides the inverse by it. To get the mean of k gradients that
  were added, unscale their sum by the factor times k. the result may be *factor.
  """
  @spec factor_multiply(device | nil, binary, real) :: {:ok, binary} | error
  def factor_multiply(_exec, _factor, _by), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Makes the report of a number, for a policy that guards something else than gradients, such as
  the loss of each step. Its own state takes this report in `state_update`, and
  `state_combine_decisions` says what both states decided. The number counts with its sign. Inf
  and NaN are an overflow. If the loss is in the memory of a device, measure its magnitude with
  `measure` and `:norm` instead. A report of a number cannot be merged.
  """
  @spec report_from_number(real) :: {:ok, binary} | error
  def report_from_number(_number), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Makes a report of an overflow that was found elsewhere, such as a framework's found_inf. It
  measures nothing else, so a policy that judges by the norm or by amax refuses it unless it says
  an overflow.
  """
  @spec report_from_flag(integer) :: {:ok, binary} | error
  def report_from_flag(_overflow), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Makes one report of many. Ranks gather their reports and merge them in the order of the ranks,
  so that all get the same bits. That each rank is there once, and in order, is not checked. The
  result has measured what all of them have measured; the norm and amax of addends are not known:
  measure their sum. first_tensor and first_element are those of the first report that has some,
  the generation is the least that is known. the result may be one of the reports.

  Digests that differ are refused: `:mismatch`, with the index of the first report that has
  another digest than those before it. A device returns no error: it makes a report with that
  status and an overflow, so that nobody steps. A report without a digest agrees with all, such as
  the report of a rank that failed or that has no gradients.

  Merged reports can be merged again, per node and then across nodes. The result is what one merge
  of all reports gives, to the bit, except for sum_squares, which is then a sum of the sums of the
  nodes. All ranks get the same sum if all merge the same groups. It is the sum of one merge if
  each group but the last has 64 reports and there are at most 64 groups. Give the policy to the
  last merge. If the merge of a group is refused, the group takes part in the next merge with a
  report of that status and an overflow, so that the others do not wait for it.
  """
  @spec report_merge(device | nil, binary, integer, binary | nil) :: {:ok, binary} | error
  def report_merge(_exec, _reports, _kind, _policy), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  the result is *factor with its inverse multiplied by min(1, max_norm / (norm + 1e-6)), as in
  torch.nn.utils.clip_grad_norm_. The report has `:norm`. After `measure`, unscaling by the result
  clips in the same pass; an optimizer that takes a multiplier takes out->inverse_f32. To clip
  outliers as well, make both factors of the same one and unscale by the one with the smaller
  inverse: one after the other they clip too much.
  """
  @spec factor_clip_grad_norm(device | nil, binary | nil, binary, real) :: {:ok, binary} | error
  def factor_clip_grad_norm(_exec, _factor, _report, _max_norm),
    do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Makes the state before the first step.
  """
  @spec state_init(device | nil, binary) :: {:ok, binary} | error
  def state_init(_exec, _policy), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Makes a state that has the scale from->factor.scale at once, and the counts, means and totals of
  `from`: to set the scale of a state or its counts, change a copy and hand it over. the result
  may be *from. A scale of 0 or infinity, which some peers reach, is taken; its factor is refused
  by every call that multiplies.
  """
  @spec state_init_from(device | nil, binary, binary) :: {:ok, binary} | error
  def state_init_from(_exec, _policy, _from), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  One step of the policy. Call it once for each optimizer step, also for a skipped one, with a
  report on all of its gradients. the result may be *state. Then ask out->skip: if it is 1, leave
  the parameters alone. Only the update knows outliers: report.overflow is about overflow alone.
  out->events says what happened: with `:clipped` the gradients are to be multiplied before the
  step, see `factor_clip_outlier`; with `:stopped` the training should end, and an update after
  that goes on as after any other; with `:stale` the report has counted like any other. A report
  that lacks what the policy judges by is refused; options.policy measures it. A predictive policy
  takes a report with amax 0 and no overflow as no sample: the scale stays.
  """
  @spec state_update(device | nil, binary, binary, binary) :: {:ok, binary} | error
  def state_update(_exec, _policy, _state, _report), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  the result is `state`, and skips, clips or stops also where `other` did in its last update: the
  state of another signal, such as the loss, which a policy of its own judged. It has the events
  SKIPPED, STOPPED, OUTLIER and CLIPPED of both, and the smaller multiplier. Its scale, counts and
  samples are those of `state`. the result may be either. Combine several signals one after the
  other.
  """
  @spec state_combine_decisions(device | nil, binary, binary) :: {:ok, binary} | error
  def state_combine_decisions(_exec, _state, _other), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Says why the last update decided as it did. The state is in host memory.
  """
  @spec state_reason(binary) :: {:ok, binary} | error
  def state_reason(_state), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  the result is *factor with its inverse multiplied by state->guard_multiplier if the last update
  clips (`:clipped`), else *factor. `factor` is that of the gradients, copied before the update.
  Unscaling by the result clips in the same pass; an optimizer that takes a multiplier takes
  out->inverse_f32, and state->skip_f32 as found_inf.
  """
  @spec factor_clip_outlier(device | nil, binary | nil, binary) :: {:ok, binary} | error
  def factor_clip_outlier(_exec, _factor, _state), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Writes policy and state, which are host memory, as bytes that any later version on any machine
  reads: versioned, with a checksum. *size becomes their number; with bytes nil and capacity 0
  only that.
  """
  @spec state_save(binary, binary) :: {:ok, binary} | error
  def state_save(_policy, _state), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Reads what `state_save` wrote. Fields that the caller's *policy is too small for must be 0 in
  the bytes.
  """
  @spec state_load(binary) :: {:ok, binary, binary} | error
  def state_load(_bytes), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  A digest of all that decides later steps: rules, scales, counts, means; not of totals,
  generations, events and init_scale. It is never 0, and the same on every device and in every
  language; compare digests of one version of this library.
  """
  @spec state_digest(binary | nil, binary | nil) :: {:ok, integer} | error
  def state_digest(_policy, _state), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  the result is the report with the rank that it is of and, as `digest`, what `state_digest` gives
  of the policy and of the state that the step began with. the result may be *report.
  """
  @spec report_set_rank(device | nil, binary, binary | nil, binary | nil, integer) ::
          {:ok, binary} | error
  def report_set_rank(_exec, _report, _policy, _state, _rank),
    do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Name of format `index`, from 0; most are those of presets. nil past the last.
  """
  @spec format_name(integer) :: binary | nil | error
  def format_name(_index), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Whose format `index` is and what it holds, in a sentence. nil past the last.
  """
  @spec format_summary(integer) :: binary | nil | error
  def format_summary(_index), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Reads a checkpoint. What is in out_policy, which GSC_POLICY_INIT made, is then `policy` with the
  settings that are among the entries, and out_state goes on from the counts that are there. Both
  policies may be one struct. Without `prefix` the scaler's keys stand at the top or below one or
  two names, as in `scale`, `scaler.scale` and `optimizer.grad_scaler.scale`. If a scaler stands
  only below more names, or several scalers are there, the call fails and names the prefixes.
  Without `format` the keys tell the format. If several formats fit, they must read alike, else
  the call fails and names them. Refused are a missing scale, and a value that cannot be a scale
  or a count; the error names the key. What is not among the entries, has no place here, or means
  something else to this policy, such as a count past its interval, is in the notes.
  """
  @spec state_import(binary | nil, binary | nil, binary, binary | nil) ::
          {:ok, binary, binary, binary} | error
  def state_import(_format, _prefix, _entries, _policy), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Writes a state, and of its policy the settings that belong to it, in the keys of a framework.
  What they cannot hold is in the notes; all else comes back from `state_import`. A list with too
  little room for the entries is refused; with a capacity of 0 the call only counts.
  """
  @spec state_export(binary, binary | nil, binary, binary) :: {:ok, binary, binary} | error
  def state_export(_format, _prefix, _policy, _state), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Reads how a framework's scaler is set up: the arguments of its constructor or program, or its
  part of a configuration. What is in out_policy, which GSC_POLICY_INIT made, is then `policy`
  with these settings; both may be one struct. The fields of policy are read by their own names in
  every format; `format` can also be the name of a preset of a guard, which has no other keys. If
  DeepSpeed's section for bf16 is asked for, or is on while fp16 is not, the scale is 1 for good,
  whatever `policy` starts with.
  """
  @spec policy_import(binary, binary | nil, binary, binary | nil) :: {:ok, binary, binary} | error
  def policy_import(_format, _prefix, _entries, _policy), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  The state after an update, and the report that it was made with, as numbers with names, the most
  important first: see one of these. Counts are INTEGER, SKIP and OVERFLOW BOOLEAN, and what is
  not known is nil. All is host memory. A list with too little room is refused; with a capacity of
  0 the call only counts.
  """
  @spec metrics(binary, binary, binary | nil) :: {:ok, binary} | error
  def metrics(_policy, _state, _report), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  What is wrong with a run, the most important first: notes whose messages say what to do. None:
  nothing was found. What the policy of a framework does by design is no fault. All is host
  memory; reports of errors are taken.
  """
  @spec diagnose(binary, binary, binary | nil, binary | nil, integer) :: {:ok, binary} | error
  def diagnose(_policy, _state, _report, _per_tensor, _steps),
    do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Name of a dtype, as NumPy and ml_dtypes spell it: `float32`, `float8_e4m3fn`, `cb16`. nil for a
  number that is no dtype.
  """
  @spec dtype_name(integer) :: binary | nil | error
  def dtype_name(_dtype), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Bits of one element; 0 for a number that is no dtype.
  """
  @spec dtype_bits(integer) :: integer | error
  def dtype_bits(_dtype), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Returns the bytes of one element; 0 for a number that is no dtype, and for a dtype that has
  several elements in a byte.
  """
  @spec dtype_size(integer) :: integer | error
  def dtype_size(_dtype), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Reports on tensors * factor.inverse without writing it: what `unscale` in place would report.
  """
  @spec measure(device | nil, binary | nil, [tensor], tuple | nil) ::
          {:ok, binary, binary | nil, binary | nil} | error
  def measure(_exec, _factor, _tensors, _options), do: :erlang.nif_error(:nif_not_loaded)

  @doc false
  def measure_dirty(_exec, _factor, _tensors, _options), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  out = tensors * factor.inverse. Writes all elements, also when report->overflow is set. float16
  gradients are best unscaled into float32: in place most of what scaling saved is lost again.
  """
  @spec unscale(device | nil, binary | nil, [tensor], [dtype | tensor], tuple | nil) ::
          {:ok, [binary], binary, binary | nil, binary | nil} | error
  def unscale(_exec, _factor, _tensors, _out, _options), do: :erlang.nif_error(:nif_not_loaded)

  @doc false
  def unscale_dirty(_exec, _factor, _tensors, _out, _options),
    do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  out = tensors * factor.scale: the loss, or what a backward pass starts from.
  """
  @spec scale(device | nil, binary | nil, [tensor], [dtype | tensor], tuple | nil) ::
          {:ok, [binary], binary, binary | nil, binary | nil} | error
  def scale(_exec, _factor, _tensors, _out, _options), do: :erlang.nif_error(:nif_not_loaded)

  @doc false
  def scale_dirty(_exec, _factor, _tensors, _out, _options),
    do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  out += tensors * factor.inverse if every product is finite in the dtype of its output, else
  nothing: a micro-batch that overflowed is left out, so divide the sums by the number of those
  that were added. The report is of the products; whether the sums are finite shows when they are
  unscaled or checked. Sums are made in the type that multiplies, or in double if `out` is double.
  Reads `tensors` twice; `out` is other memory.

  A step of several micro-batches: merge their reports as addends, beginning with the merge of
  none. Make a factor of the number of micro-batches that were added, and unscale the sums by it
  with options.policy. Then update: - Without an overflow in the merged report, update with the
  report of the sums, and leave the parameters alone if state.skip is 1. - With one, update with
  the merged report, so that the scale backs off. state.skip is then 1 because of the micro-batch
  that was left out: take the step of the others if the report of the sums has no overflow. A
  guard does not judge it.
  """
  @spec unscale_accumulate(device | nil, binary | nil, [tensor], [tensor], tuple | nil) ::
          {:ok, [binary], binary, binary | nil, binary | nil} | error
  def unscale_accumulate(_exec, _factor, _tensors, _out, _options),
    do: :erlang.nif_error(:nif_not_loaded)

  @doc false
  def unscale_accumulate_dirty(_exec, _factor, _tensors, _out, _options),
    do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Starts the CUDA driver and says whether there is a device. `:unavailable`: err->message says why
  there is none. A process that is forked later cannot use CUDA.
  """
  @spec cuda_start() :: :ok | error
  def cuda_start, do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Returns what the driver's compiler said when it refused the kernels of the first device that
  did; empty before. Never nil, never freed.
  """
  @spec cuda_log() :: binary | nil
  def cuda_log, do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Waits until exec->stream has done all that was enqueued. A stream that is being captured is
  refused with `:unavailable`, and its capture goes on.
  """
  @spec exec_wait(device | nil) :: :ok | error
  def exec_wait(_exec), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Bytes of exec->workspace that any of these calls needs for this list; 0 on the CPU.
  """
  @spec workspace_size(device | nil, [tensor], tuple | nil) :: {:ok, integer} | error
  def workspace_size(_exec, _tensors, _options), do: :erlang.nif_error(:nif_not_loaded)
end
