# Generated from include/gradscaler.toml by bindings/elixir/generate.py. Do not edit.
defmodule GradScaler.Native do
  @moduledoc false
  # The C functions, one to one; the manifest and the header describe them.
  #
  # Structs are binaries of their exact size, which the modules of structs.ex encode and decode, lists of structs one
  # binary, names a list of binaries and nil, tensors {dtype, binary} with the dtype's number, and results new binaries.
  # A list that a call fills has as many structs as there are: the C function is called for their number first. What the
  # caller passes is never written. Options are the tuple that GradScaler.TensorOptions.encode/1 makes or nil; what they
  # ask for comes last in the results, nil if it was not asked for. A refusal is {:error, error} with the members of
  # gsc_error as a map; nothing here raises.
  #
  # `exec` is nil, `:dirty` for a call on host memory that moves itself to a dirty CPU scheduler, or a device. On a CUDA
  # device tensors are {dtype, memory, offset, bytes}, outputs are written in place and structs are binaries all the
  # same: each call waits for its results, on a dirty IO scheduler. A device is freed with the last term that names
  # it or its memory. Memory, which is not cleared, is freed with the last term that names it, or by memory_destroy.

  # Loaded by the first call, not by the compiler, which runs before the library is there.
  @compile {:autoload, false}
  @on_load :load
  @version 2560

  @type dtype :: non_neg_integer
  @type device :: reference
  @type memory :: reference
  @type tensor ::
          {dtype, binary} | {dtype, memory, offset :: non_neg_integer, bytes :: non_neg_integer}
  @type part :: {offset :: non_neg_integer, bytes :: non_neg_integer}
  @type piece ::
          {offset :: non_neg_integer, binary}
          | {offset :: non_neg_integer, memory, from :: non_neg_integer, bytes :: non_neg_integer}
  @type real :: GradScaler.real()
  @type error :: {:error, map}

  # Without the library the functions below run, and raise this.
  @not_loaded %GradScaler.Error{
    status: :unavailable,
    message:
      "the library cannot be loaded, because an escript has no priv folder: use mix run or mix release"
  }

  def load do
    case :code.priv_dir(:gradscaler) do
      {:error, :bad_name} -> :ok
      priv -> :erlang.load_nif(:filename.join(priv, ~c"gradscaler_nif"), @version)
    end
  end

  @spec context_create_cpu(pos_integer) :: {:ok, device} | error
  def context_create_cpu(_threads), do: :erlang.nif_error(@not_loaded)

  @spec context_create_cuda(non_neg_integer) :: {:ok, device} | error
  def context_create_cuda(_ordinal), do: :erlang.nif_error(@not_loaded)

  @spec memory_create(device, non_neg_integer) :: {:ok, memory} | error
  def memory_create(_device, _bytes), do: :erlang.nif_error(@not_loaded)

  @spec memory_destroy(memory) :: :ok | error
  def memory_destroy(_memory), do: :erlang.nif_error(@not_loaded)

  @spec memory_write(memory, [piece]) :: :ok | error
  def memory_write(_memory, _pieces), do: :erlang.nif_error(@not_loaded)

  @spec memory_read(memory, [part]) :: {:ok, [binary]} | error
  def memory_read(_memory, _parts), do: :erlang.nif_error(@not_loaded)

  @spec status_string(integer) :: binary | nil | error
  def status_string(_status), do: :erlang.nif_error(@not_loaded)

  @spec version() :: integer
  def version, do: :erlang.nif_error(@not_loaded)

  @spec version_string() :: binary | nil
  def version_string, do: :erlang.nif_error(@not_loaded)

  @spec has(integer) :: integer | error
  def has(_feature), do: :erlang.nif_error(@not_loaded)

  @spec policy_preset(binary) :: {:ok, binary} | error
  def policy_preset(_name), do: :erlang.nif_error(@not_loaded)

  @spec policy_check(binary) :: :ok | error
  def policy_check(_policy), do: :erlang.nif_error(@not_loaded)

  @spec policy_resolve(binary) :: {:ok, binary, integer | nil} | error
  def policy_resolve(_policy), do: :erlang.nif_error(@not_loaded)

  @spec preset_name(integer) :: binary | nil | error
  def preset_name(_index), do: :erlang.nif_error(@not_loaded)

  @spec preset_summary(integer) :: binary | nil | error
  def preset_summary(_index), do: :erlang.nif_error(@not_loaded)

  @spec info_get() :: {:ok, map} | error
  def info_get, do: :erlang.nif_error(@not_loaded)

  @spec factor_init(real) :: {:ok, binary} | error
  def factor_init(_scale), do: :erlang.nif_error(@not_loaded)

  @spec factor_multiply(device | nil, binary, real) :: {:ok, binary} | error
  def factor_multiply(_exec, _factor, _by), do: :erlang.nif_error(@not_loaded)

  @spec report_from_number(real) :: {:ok, binary} | error
  def report_from_number(_number), do: :erlang.nif_error(@not_loaded)

  @spec report_from_flag(integer) :: {:ok, binary} | error
  def report_from_flag(_overflow), do: :erlang.nif_error(@not_loaded)

  @spec report_merge(device | nil, binary, integer, binary | nil) :: {:ok, binary} | error
  def report_merge(_exec, _reports, _kind, _policy), do: :erlang.nif_error(@not_loaded)

  @spec factor_clip_grad_norm(device | nil, binary | nil, binary, real) :: {:ok, binary} | error
  def factor_clip_grad_norm(_exec, _factor, _report, _max_norm),
    do: :erlang.nif_error(@not_loaded)

  @spec state_init(device | nil, binary) :: {:ok, binary} | error
  def state_init(_exec, _policy), do: :erlang.nif_error(@not_loaded)

  @spec state_init_from(device | nil, binary, binary) :: {:ok, binary} | error
  def state_init_from(_exec, _policy, _from), do: :erlang.nif_error(@not_loaded)

  @spec state_update(device | nil, binary, binary, binary) :: {:ok, binary} | error
  def state_update(_exec, _policy, _state, _report), do: :erlang.nif_error(@not_loaded)

  @spec state_combine_decisions(device | nil, binary, binary) :: {:ok, binary} | error
  def state_combine_decisions(_exec, _state, _other), do: :erlang.nif_error(@not_loaded)

  @spec state_reason(
          binary,
          binary | nil,
          binary | nil,
          binary | nil,
          [binary | nil] | nil,
          binary | nil
        ) ::
          {:ok, binary} | error
  def state_reason(_state, _report, _evidence, _per_tensor, _names, _order),
    do: :erlang.nif_error(@not_loaded)

  @spec factor_clip_outlier(device | nil, binary | nil, binary) :: {:ok, binary} | error
  def factor_clip_outlier(_exec, _factor, _state), do: :erlang.nif_error(@not_loaded)

  @spec state_save(binary, binary) :: {:ok, binary} | error
  def state_save(_policy, _state), do: :erlang.nif_error(@not_loaded)

  @spec state_load(binary) :: {:ok, binary, binary} | error
  def state_load(_bytes), do: :erlang.nif_error(@not_loaded)

  @spec state_digest(binary | nil, binary | nil) :: {:ok, integer} | error
  def state_digest(_policy, _state), do: :erlang.nif_error(@not_loaded)

  @spec report_set_rank(device | nil, binary, binary | nil, binary | nil, integer) ::
          {:ok, binary} | error
  def report_set_rank(_exec, _report, _policy, _state, _rank), do: :erlang.nif_error(@not_loaded)

  @spec format_name(integer) :: binary | nil | error
  def format_name(_index), do: :erlang.nif_error(@not_loaded)

  @spec format_summary(integer) :: binary | nil | error
  def format_summary(_index), do: :erlang.nif_error(@not_loaded)

  @spec format_keys(binary) :: {:ok, binary} | error
  def format_keys(_format), do: :erlang.nif_error(@not_loaded)

  @spec state_import(binary | nil, binary | nil, binary, binary | nil) ::
          {:ok, binary, binary, binary} | error
  def state_import(_format, _prefix, _entries, _policy), do: :erlang.nif_error(@not_loaded)

  @spec state_export(binary, binary | nil, binary, binary) :: {:ok, binary, binary} | error
  def state_export(_format, _prefix, _policy, _state), do: :erlang.nif_error(@not_loaded)

  @spec policy_import(binary, binary | nil, binary, binary | nil) :: {:ok, binary, binary} | error
  def policy_import(_format, _prefix, _entries, _policy), do: :erlang.nif_error(@not_loaded)

  @spec state_metrics(binary, binary, binary | nil) :: {:ok, binary} | error
  def state_metrics(_policy, _state, _report), do: :erlang.nif_error(@not_loaded)

  @spec state_diagnose(binary, binary, binary | nil, binary | nil, integer, integer) ::
          {:ok, binary} | error
  def state_diagnose(_policy, _state, _report, _per_tensor, _steps, _planned_steps),
    do: :erlang.nif_error(@not_loaded)

  @spec history_start(
          binary,
          binary | nil,
          binary,
          [binary | nil] | nil,
          integer,
          integer,
          real,
          binary | nil
        ) ::
          {:ok, binary} | error
  def history_start(_policy, _preset, _state, _names, _step, _rank, _time, _run),
    do: :erlang.nif_error(@not_loaded)

  @spec history_line(
          binary,
          binary | nil,
          binary | nil,
          binary | nil,
          [binary | nil] | nil,
          integer,
          real,
          binary | nil
        ) ::
          {:ok, binary} | error
  def history_line(_state, _report, _reason, _per_tensor, _names, _step, _time, _run),
    do: :erlang.nif_error(@not_loaded)

  @spec dtype_name(integer) :: binary | nil | error
  def dtype_name(_dtype), do: :erlang.nif_error(@not_loaded)

  @spec dtype_bits(integer) :: integer | error
  def dtype_bits(_dtype), do: :erlang.nif_error(@not_loaded)

  @spec dtype_size(integer) :: integer | error
  def dtype_size(_dtype), do: :erlang.nif_error(@not_loaded)

  @spec measure(device | :dirty | nil, binary | nil, [tensor], tuple | nil) ::
          {:ok, binary, binary | nil, binary | nil} | error
  def measure(_exec, _factor, _tensors, _options), do: :erlang.nif_error(@not_loaded)

  @spec unscale(device | :dirty | nil, binary | nil, [tensor], [dtype | tensor], tuple | nil) ::
          {:ok, [binary], binary, binary | nil, binary | nil} | error
  def unscale(_exec, _factor, _tensors, _out, _options), do: :erlang.nif_error(@not_loaded)

  @spec scale(device | :dirty | nil, binary | nil, [tensor], [dtype | tensor], tuple | nil) ::
          {:ok, [binary], binary, binary | nil, binary | nil} | error
  def scale(_exec, _factor, _tensors, _out, _options), do: :erlang.nif_error(@not_loaded)

  @spec unscale_accumulate(device | :dirty | nil, binary | nil, [tensor], [tensor], tuple | nil) ::
          {:ok, [binary], binary, binary | nil, binary | nil} | error
  def unscale_accumulate(_exec, _factor, _tensors, _out, _options),
    do: :erlang.nif_error(@not_loaded)

  @spec cuda_start() :: :ok | error
  def cuda_start, do: :erlang.nif_error(@not_loaded)

  @spec cuda_log() :: binary | nil
  def cuda_log, do: :erlang.nif_error(@not_loaded)

  @spec exec_wait(device | nil) :: :ok | error
  def exec_wait(_exec), do: :erlang.nif_error(@not_loaded)

  @spec workspace_size(device | nil, [tensor], tuple | nil) :: {:ok, integer} | error
  def workspace_size(_exec, _tensors, _options), do: :erlang.nif_error(@not_loaded)

  @spec comparison_name(integer) :: binary | nil | error
  def comparison_name(_index), do: :erlang.nif_error(@not_loaded)

  @spec exec_compare(device | nil, integer, integer) :: {:ok, integer} | error
  def exec_compare(_exec, _index, _round), do: :erlang.nif_error(@not_loaded)
end
