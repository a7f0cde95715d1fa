# Generated from bindings/abi.toml by bindings/generate.py. Do not edit.
defmodule GradScaler.Native do
  @moduledoc """
  The C functions, one to one; the first of three layers.

  Structs are binaries of their exact size (`GradScaler.Policy` and its siblings encode and decode
  them), tensors are `{dtype, binary}` with the dtype's number, and results are new binaries. What
  the caller passes is never written. A refusal is `{:error, {status, argument, index, name,
  message}}`, the members of `gsc_error`; nothing here raises.

  Functions over tensors go to a dirty CPU scheduler by themselves where a normal one would be
  held up.
  """

  # Loaded by the first call, not by the compiler, which runs before the library is there.
  @compile {:autoload, false}
  @on_load :load
  @version 256

  @type dtype :: integer
  @type tensor :: {dtype, binary}
  @type real :: float | integer | :infinity | :neg_infinity | :nan
  @type error :: {:error, {neg_integer, integer, integer, binary, binary}}

  @doc false
  def load do
    path = Path.join(:code.priv_dir(:gradscaler), "gradscaler_nif")
    :erlang.load_nif(String.to_charlist(path), @version)
  end

  @doc """
  The meaning of a status in a few words; `unknown status` for a number that is none. Never nil,
  never freed.
  """
  @spec status_string(integer) :: binary | nil
  def status_string(_status), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Version of the library that runs, as `:version` is that of this header.
  """
  @spec version() :: integer
  def version, do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Fills the result with a named set of rules: `recommended` for new work, `none`, `static`, or the
  exact rules of a framework, such as `torch` or `megatron` (gsc_preset_name lists them).
  out->struct_size must be set; a struct of an older version that lacks a field the preset needs
  is refused.
  """
  @spec policy_preset(binary) :: {:ok, binary} | error
  def policy_preset(_name), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Whether the policy can be used; the error names the field that cannot. Every call that takes a
  policy checks it so.
  """
  @spec policy_check(binary) :: :ok | error
  def policy_check(_policy), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Number of presets.
  """
  @spec preset_count() :: integer
  def preset_count, do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Name of preset `index`, from 0; nil past the last. Never freed.
  """
  @spec preset_name(integer) :: binary | nil
  def preset_name(_index), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  What preset `index` does and where its rules come from, in a sentence; nil past the last. Never
  freed.
  """
  @spec preset_summary(integer) :: binary | nil
  def preset_summary(_index), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Loads what calls on `on` still lack, so that none of them is slow the first time or breaks a
  stream capture; a CUDA context has loaded all when it was made.
  """
  @spec prepare() :: :ok | error
  def prepare, do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Fills the result, whose struct_size must be set.
  """
  @spec get_info() :: {:ok, map} | error
  def get_info, do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  The factor of a given scale, with serial 0.
  """
  @spec factor_init(real) :: {:ok, binary} | error
  def factor_init(_scale), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  the result is *factor with its scale multiplied by `by` and its inverse divided by it. The mean
  over k micro-batches, or ranks, whose gradients were added, is what unscaling by k times the
  factor gives. the result may be *factor.
  """
  @spec factor_multiply(binary, real) :: {:ok, binary} | error
  def factor_multiply(_factor, _by), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  One report of two: of micro-batches, of optimizers that share a scale, of ranks. the result may
  be *a or *b. It lacks what one of both lacks: ask for the same. first_bad is the earlier one, so
  it points into the right list only when both reports are of the same list.
  """
  @spec merge(binary, binary) :: {:ok, binary} | error
  def merge(_a, _b), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  The state before the first step.
  """
  @spec state_init(binary) :: {:ok, binary} | error
  def state_init(_policy), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  One step of the policy: the result is the state after the gradients of one optimizer step, whose
  report is merged over all of them. the result may be *state. What happened is out->events. An
  overflow is not an error.

  A report that lacks what the policy judges by (`:norm`, target_amax) is refused. A predictive
  policy takes a report with amax 0 and no overflow as no sample: the scale stays.
  """
  @spec update(binary, binary, binary) :: {:ok, binary} | error
  def update(_policy, _state, _report), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  the result is the state with another scale in force at once; the counts start anew, the totals
  stay. the result may be *state.
  """
  @spec set_scale(binary, binary, real) :: {:ok, binary} | error
  def set_scale(_policy, _state, _scale), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Writes policy and state as bytes that any later version on any machine reads: little-endian,
  versioned, with a checksum. *size becomes the number of bytes needed or written; with bytes nil
  and capacity 0 only that. `:size` always suffices. The state must be host memory.
  """
  @spec state_save(binary, binary) :: {:ok, binary} | error
  def state_save(_policy, _state), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Reads what gsc_state_save wrote. policy->struct_size must be set; fields that its struct lacks
  must be 0 in the bytes.
  """
  @spec state_load(binary) :: {:ok, binary, binary} | error
  def state_load(_bytes), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Bytes of one element of a dtype; 0 for a number that is none.
  """
  @spec dtype_size(integer) :: integer
  def dtype_size(_dtype), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  out = tensors * factor.scale: the loss, or the gradient that a backward pass starts from. No
  check: what overflows here is found when the gradients are unscaled. `out` may be `tensors`.
  Without factor it is a cast; gsc_clip_value casts with saturation.
  """
  @spec scale(binary | nil, [tensor], [dtype]) :: {:ok, [binary]} | error
  def scale(_factor, _tensors, _out), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Reports on tensors * factor.inverse without writing it: what gsc_unscale in place would report.
  """
  @spec check(binary | nil, [tensor], integer) :: {:ok, binary} | error
  def check(_factor, _tensors, _want), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  out = tensors * factor.inverse, in one pass with the check and whatever `want` asks for. `out`
  may be `tensors`. All elements are written, also when report->overflow says not to use them.
  float16 gradients are best unscaled into float32: in place most of what scaling saved is lost
  again.
  """
  @spec unscale(binary | nil, [tensor], [dtype], integer) :: {:ok, [binary], binary} | error
  def unscale(_factor, _tensors, _out, _want), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  gsc_unscale with each product clamped to [-limit, limit] before it is rounded to its output, in
  the same pass: what torch.nn.utils.clip_grad_value_ does after unscaling. The report is of the
  products before they are clamped, so that an overflow is not hidden: Inf is clamped and counted,
  NaN stays. A finite product is never bad, however narrow its output: with the largest value of a
  dtype as limit this is a cast with saturation. Both parts of a complex value are clamped.
  """
  @spec clip_value(binary | nil, real, [tensor], [dtype], integer) ::
          {:ok, [binary], binary} | error
  def clip_value(_factor, _limit, _tensors, _out, _want), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  out += tensors * factor.inverse if every product is finite in the dtype of its output, else
  nothing at all: a micro-batch that overflowed adds nothing to the good ones. The sums are made
  in the type that multiplies, or in double if `out` is double, and rounded to `out`; that they
  are finite is for the unscaling or check of the accumulated gradients to find. The report is of
  the products. Reads the list twice. `out` and `tensors` have no byte in common.
  """
  @spec accumulate(binary | nil, [tensor], [tensor], integer) :: {:ok, [binary], binary} | error
  def accumulate(_factor, _tensors, _out, _want), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  the result is *factor with its inverse multiplied by min(1, max_norm / (norm + 1e-6)), the clip
  coefficient of torch.nn.utils.clip_grad_norm_, where norm is the root of report->sum_squares.
  After gsc_check, unscaling by the result unscales and clips in one pass; after gsc_unscale, pass
  factor nil and multiply by out->inverse, or hand it to the optimizer.
  """
  @spec clip_factor(binary, binary | nil, real) :: {:ok, binary} | error
  def clip_factor(_report, _factor, _max_norm), do: :erlang.nif_error(:nif_not_loaded)

  @doc """
  Bytes of gsc_exec.workspace that a call over this list needs: 0 on the CPU, and where there is
  no list. It depends on counts and dtypes, not on data; gsc_accumulate needs it for `tensors`.
  """
  @spec workspace_size([tensor], integer) :: {:ok, integer} | error
  def workspace_size(_tensors, _want), do: :erlang.nif_error(:nif_not_loaded)
end
