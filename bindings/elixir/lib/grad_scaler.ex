defmodule GradScaler do
  @moduledoc """
  Loss scaling for mixed-precision training.

      scaler = GradScaler.new("recommended")

      # one step: scale the loss, unscale the gradients, skip the step on an overflow
      loss = GradScaler.scale_loss(loss, scaler)
      {grads, report} = GradScaler.unscale(grads, scaler)
      params = if GradScaler.overflow?(report), do: params, else: optimize(params, grads)
      scaler = GradScaler.update(scaler, report)

  The rules of torch, Megatron-LM, DeepSpeed and others are presets, see `presets/0`.

  The first argument is the tree, report or scaler that a call returns changed, so calls can be piped; then
  comes the scaler, then options.

  ## Trees

  Gradients are a tree: lists, tuples, maps and structs that implement `Nx.Container`, with Nx
  tensors or `{dtype, binary}` pairs at its ends, where a dtype is `:f16`, `:bf16`, `:f32`, `:f64`,
  `:f8_e4m3fn`, `:f8_e5m2` (Nx's `{:f, 8}`), `:cb16`, `:complex64` or `:complex128`. Nx is not
  needed for pairs, and has no tensors of `:cb16`. A whole tree is one call of the library, on a
  dirty scheduler where it is large. `device_put/2` puts trees on a GPU. Integer tensors among
  gradients are left alone; anything else raises `ArgumentError` and tells where it is.

  A complex element counts once, by its larger part; its result must be complex.

  Results have the shape, the names and the backend of the tensors that they replace. The call fetches the
  elements from the backend and transfers the results to it with the backend's default options; a backend
  with several devices gets them on its default device.

  ## Devices

  `on_device/2` gives a scaler the memory of a GPU, and `device_put/2` copies a whole tree there:

      scaler = GradScaler.new("torch") |> GradScaler.on_device(:cuda)
      grads = GradScaler.device_put(grads, scaler)
      {grads, report} = GradScaler.unscale(grads, scaler)   # there, in one call
      grads = GradScaler.device_get(grads)

  All functions take such a tree as any other; their results are new memory of the device. Reports and
  states are host memory all the same, so each call waits for the device, on a dirty scheduler; calls on
  one device take turns.

  Memory is freed when the last term that refers to it is collected, and a device after its memory. As the
  collector does not know how much a small term holds, `device_free/1` frees a tree now. A device is used
  by the node that opened it. When the library is upgraded in a running node, devices that were open
  before are refused by the new code: open them again.

  ## Values

  A scaler is a value: `update/2` returns a new one, and nothing is shared. A scale that has become
  infinite is `:infinity`, and NaN is `:nan`, since Erlang's floats are finite. An overflow is data
  and not an error; wrong arguments raise `ArgumentError`.

      iex> scaler = GradScaler.new("torch", init_scale: 8.0)
      iex> grads = %{w: {:f16, <<16.0::little-float-16>>}, b: {:f16, <<0x7C00::little-16>>}}
      iex> {_grads, report} = GradScaler.unscale(grads, scaler)
      iex> {GradScaler.overflow?(report), GradScaler.overflows(report)}
      {true, [[:b]]}
      iex> scaler = GradScaler.update(scaler, report)
      iex> {GradScaler.loss_scale(scaler), GradScaler.events(scaler)}
      {4.0, [:backed_off, :skipped]}

  ## A loss that is not finite

  If the loss is Inf or NaN before it is scaled, no scale cures that. Give this loss to the call on the
  gradients: the presets "recommended" and "guard" then skip the step and keep the scale.

      {grads, report} = GradScaler.unscale(grads, scaler, loss: loss)
      params = if GradScaler.skip?(report), do: params, else: optimize(params, grads)
      scaler = GradScaler.update(scaler, report)

  `overflow?/1` tells only about the gradients, which can be finite beside such a loss.
  """

  alias GradScaler.{Binaries, Checkpoint, Constants, DeviceTensor, Error, Evidence, Factor}
  alias GradScaler.{Fields, Leaf, Native, Policy, Reason, Report, State, TensorOptions, Tree}
  require Logger

  @enforce_keys [:policy, :state]
  defstruct [:policy, :state, :device]

  @typedoc """
  A scaler: rules and state as the library's binaries, and a device, nil for host memory. While Nx traces a
  function with a scaler among its arguments, the state is a map of tensors.
  """
  @type t :: %__MODULE__{policy: binary, state: binary | map, device: reference | nil}

  @typedoc "A snapshot of a scale, see `factor/1`. `generation` tells the scales of a state apart."
  @type factor :: %Factor{scale: real, inverse: real, generation: integer}

  @typedoc "A number. Erlang's floats are finite, so infinities and NaN are atoms."
  @type real :: float | integer | :infinity | :neg_infinity | :nan

  @typedoc "The name of a type of elements."
  @type dtype :: unquote(Enum.reduce(Keyword.keys(Constants.all(:dtype)), &{:|, [], [&1, &2]}))

  @typedoc """
  Tensors, `{dtype, binary}` pairs, or lists, tuples, maps and structs that implement `Nx.Container` of
  them; see above.
  """
  @type tree :: term

  @typedoc "Where a leaf is in a tree: keys and indices from the root on."
  @type path :: [term]

  # ---- what it is ----

  @doc """
  A scaler with the rules of a preset, some fields replaced; `GradScaler.Policy` describes them.

      iex> scaler = GradScaler.new("megatron", hysteresis: 3)
      iex> {GradScaler.loss_scale(scaler), GradScaler.policy(scaler).hysteresis}
      {4294967296.0, 3}

      iex> GradScaler.new("torch", backoff_factor: 2)
      ** (ArgumentError) policy.backoff_factor is 2: it must be from 0 to 1

      iex> GradScaler.new(growth_interval: 100) |> GradScaler.policy() |> Map.fetch!(:growth_interval)
      100

      iex> GradScaler.new("pytorch")
      ** (ArgumentError) preset is "pytorch", which is no preset: did you mean "torch"?
  """
  @spec new(binary | atom | keyword, Enumerable.t()) :: t
  def new(preset \\ "recommended", fields \\ [])

  # Fields are tuples. Another list is a charlist, such as 'torch', and no name.
  def new(fields, [])
      when fields == [] or is_tuple(hd(fields))
      when is_map(fields) and not is_struct(fields),
      do: new("recommended", fields)

  def new(preset, fields) do
    policy = preset |> policy_of_preset() |> replace(fields) |> Policy.encode()
    %__MODULE__{policy: policy, state: Error.ok!(Native.state_init(nil, policy))}
  end

  defp policy_of_preset(preset) when is_binary(preset) or is_atom(preset) do
    preset = Native.policy_preset(to_string(preset))
    Policy.decode(Error.ok!(preset, %{"name" => "preset"}))
  end

  defp policy_of_preset(preset),
    do: raise(ArgumentError, "preset is #{inspect(preset)}: it must be a name")

  defp replace(policy, fields) when is_list(fields) or is_map(fields),
    do: Enum.reduce(fields, policy, &replace_field/2)

  defp replace(_policy, other),
    do: raise(ArgumentError, "fields is #{inspect(other)}: they must be names with values")

  # In the library 0 means the default.
  defp replace_field({:init_scale, zero}, _policy) when zero == 0,
    do: raise(ArgumentError, "policy.init_scale is 0: it must be above 0")

  defp replace_field({name, value}, policy)
       when is_atom(name) and is_map_key(policy, name) and name != :__struct__,
       do: Map.put(policy, name, value)

  defp replace_field({name, _value}, _policy) do
    raise ArgumentError, "a policy has no field #{inspect(name)}; GradScaler.Policy lists them"
  end

  defp replace_field(other, _policy) do
    raise ArgumentError, "fields holds #{inspect(other)}: they must be names with values"
  end

  @doc """
  Returns all presets, each with a sentence that describes it and says where its rules come from.

      iex> is_map_key(GradScaler.presets(), "deepspeed")
      true
  """
  @spec presets() :: %{binary => binary}
  def presets, do: Fields.listed(&Native.preset_name/1, &Native.preset_summary/1)

  @doc """
  Returns the version, the instruction set in use, all available ones, and if CUDA is available.

      iex> GradScaler.info().version
      "0.10.0"
  """
  @spec info() :: map
  def info do
    info = Error.ok!(Native.info_get())
    <<major::16, minor::8, patch::8>> = <<info.version::32>>

    Map.merge(info, %{
      version: "#{major}.#{minor}.#{patch}",
      cpu_available: String.split(info.cpu_available),
      cuda: cuda(Native.cuda_log(), Native.cuda_start())
    })
  end

  defp cuda("", :ok), do: "available"
  defp cuda("", {:error, error}), do: error.message
  defp cuda(log, _started), do: log

  @doc "Returns the scale in force; `:infinity` if a policy without a ceiling reached it."
  @spec loss_scale(t) :: float | :infinity
  def loss_scale(%__MODULE__{} = scaler), do: factor(scaler).scale

  @doc """
  Returns a snapshot of the scale in force, to keep with gradients that are unscaled after a later update:
  `unscale(grads, scaler, factor: factor)`.
  """
  @spec factor(t) :: factor
  def factor(%__MODULE__{} = scaler), do: Factor.decode(factor_binary(scaler))

  # The factor is the first member of a state.
  defp factor_binary(scaler), do: binary_part(state_bytes(scaler), 0, 32)

  @doc "Returns the policy."
  @spec policy(t) :: Policy.t()
  def policy(%__MODULE__{policy: policy}), do: Policy.decode(policy)

  @doc """
  Returns the traits of the policy: `:moves` if the scale can change, `:guards` if it has a guard,
  `:needs_norm` if a report must have the norm for `update/2`, and `:holds` if a loss that is not finite holds
  the scale.

      iex> GradScaler.traits(GradScaler.new("guard"))
      [:guards, :needs_norm, :holds]
  """
  @spec traits(t) :: [atom]
  def traits(%__MODULE__{policy: policy}) do
    {:ok, _resolved, traits} = Error.check!(Native.policy_resolve(policy))
    Constants.names(:trait, traits)
  end

  @doc "Returns the state: the counts, and `next`, a new scale that is not in force yet."
  @spec state(t) :: State.t()
  def state(%__MODULE__{} = scaler), do: State.decode(state_bytes(scaler))

  @doc false
  def state_bytes(%__MODULE__{state: bytes}) when is_binary(bytes), do: bytes

  def state_bytes(%__MODULE__{}) do
    raise ArgumentError,
          "the scaler is traced, so only its scale can be used, by scale_loss: inside defn, jit and grad " <>
            "use GradScaler.Defn, with GradScaler.Defn.init(scaler) as the argument"
  end

  @doc """
  Returns the events of the last update: `:grew`, `:backed_off`, `:skipped`, `:absorbed`,
  `:at_ceiling`, `:at_floor`, `:backoff_failed`, `:stopped` and `:stale` (the report had another scale,
  because it was late or reused). `:outlier` means that the norm was above the state's
  `guard_threshold`; the guard then skipped the step, clipped it (`:clipped`), or let it pass.
  `:bad_loss` means that the loss was not finite and the scale was kept, `:empty` that no tensor had a
  gradient.
  """
  @spec events(t) :: [atom]
  def events(%__MODULE__{} = scaler), do: state(scaler).events

  # ---- the step ----

  @doc """
  Returns the loss times the scale: a number, a tensor, or a tree of them.

  If the loss is traced, as inside `Nx.Defn.grad`, this is a plain multiplication. A scaled loss easily
  overflows float16, so narrow types and integers become float32. `type:` selects another type,
  `:same` the type of the loss.

      iex> GradScaler.scale_loss(0.5, GradScaler.new("torch"))
      32768.0

      iex> GradScaler.scale_loss({:f16, <<2.0::little-float-16>>}, GradScaler.new("torch"))
      {:f32, <<131072.0::little-float-32>>}
  """
  @spec scale_loss(tree | number, t, keyword) :: tree | number | :infinity | :neg_infinity
  def scale_loss(loss, scaler, options \\ [])

  def scale_loss(loss, %__MODULE__{state: %{scale: scale}}, options) do
    options = Keyword.validate!(options, type: nil)
    loss = if is_number(loss), do: Nx.tensor(loss), else: loss

    Tree.map(loss, fn leaf ->
      leaf = if Leaf.dtype(leaf), do: leaf, else: Nx.as_type(leaf, {:f, 32})
      multiply(leaf, scale, result_dtype(Leaf.dtype(leaf), options[:type]))
    end)
  end

  def scale_loss(loss, %__MODULE__{} = scaler, []) when is_number(loss) do
    factor = factor_binary(scaler)
    {[], _report} = Binaries.into(:scale, factor, [], [])
    loss * Factor.decode(factor).scale
  rescue
    # The product is above the largest double, and Erlang has no infinity.
    ArithmeticError -> if loss > 0, do: :infinity, else: :neg_infinity
  end

  def scale_loss(loss, %__MODULE__{} = scaler, options) do
    options = Keyword.validate!(options, type: nil)
    factor = factor_binary(scaler)
    scale = Factor.decode(factor).scale

    loss =
      Tree.map(loss, fn leaf ->
        if Leaf.dtype(leaf), do: leaf, else: Nx.as_type(leaf, {:f, 32})
      end)

    cast(loss, factor, options[:type], %TensorOptions{}, &multiply(&1, scale, &2))
  end

  # Multiplies a traced tensor in the type of the result, or in float32 if that is narrow: most scales are beyond
  # float16.
  defp multiply(leaf, scale, dtype) do
    wide = Leaf.type(wide(dtype))
    scale = if is_number(scale), do: scale, else: Nx.as_type(scale, wide)
    leaf |> Nx.as_type(wide) |> Nx.multiply(scale) |> Nx.as_type(Leaf.type(dtype))
  end

  @doc """
  Divides gradients by the scale and checks them. Returns the gradients and a `GradScaler.Report`.
  By the scaler's policy, `report.overflow` says if there was an overflow; `overflow?/1` reads it, and
  `overflows/1` returns the gradients that are not finite.

  Narrow types become `:f32`, so that small values survive; `:f64` and complex types do not change. All
  gradients are divided, also after an overflow.

    * `:type` - the type of all results: a dtype, Nx's `{:f, 32}`, or `:same`
    * `:want` - more measurements for the report: `:norm`, `:amax`, `:underflow`
    * `:clamp` - a number: results go to -clamp..clamp, as torch.nn.utils.clip_grad_value_ does. The
      report is of the gradients before, so that an overflow is not hidden
    * `:histogram` - true for `report.histogram`; the header of the library explains its 17 words
    * `:factor` - the snapshot of the scale that the loss was scaled by, if an update ran since
    * `:loss` - the loss before it was scaled: a number, a tensor with any number of elements, or a tree of
      tensors. `report.loss` says if all are finite. Leave out a loss that is made of scaled gradients, as
      for a gradient penalty: the scale itself can make it Inf

  So, with the norm:

      iex> scaler = GradScaler.new("static", init_scale: 4.0)
      iex> {grads, report} = GradScaler.unscale([{:f16, <<2.0::little-float-16>>}], scaler, want: [:norm])
      iex> {grads, GradScaler.norm(report)}
      {[{:f32, <<0.5::little-float-32>>}], 0.5}

  And with a loss that is not finite:

      iex> scaler = GradScaler.new("recommended")
      iex> {_grads, report} = GradScaler.unscale({:f16, <<0::16>>}, scaler, loss: :nan)
      iex> {report.loss, GradScaler.overflow?(report), GradScaler.skip?(report)}
      {:not_finite, false, true}
      iex> scaler = GradScaler.update(scaler, report)
      iex> {GradScaler.loss_scale(scaler), GradScaler.events(scaler)}
      {65536.0, [:skipped, :bad_loss]}
  """
  @spec unscale(tree, t, keyword) :: {tree, Report.t()}
  def unscale(grads, %__MODULE__{} = scaler, options \\ []) do
    options = options(options, [:type, :want, :clamp, :histogram, :factor, :loss])
    {leaves, _paths} = found = leaves(grads, &refuse_traced/1)
    dtypes = result_dtypes(leaves, options[:type])
    {results, report} = call(:unscale, found, dtypes, scaler, options)
    {rebuild(grads, results, & &1), report}
  end

  @doc """
  Adds gradients of a micro-batch, divided by the scale, to `sums`, a tree like the
  gradients. Returns the new sums, in the types of the old ones, and the report of the micro-batch.

  If a gradient is Inf or NaN, nothing is added and the sums do not change. The other micro-batches
  still count, so divide by the number that were added. `merge(reports, :addends)` returns the report
  of the step. To check that the sums are finite, and for their norm, call `measure/3` with the sums.
  Takes `:want`, `:histogram`, `:factor` and `:loss` as `unscale/3`. Beside a loss that is not finite, finite
  gradients are added.

      iex> scaler = GradScaler.new("static", init_scale: 4.0)
      iex> sums = {:f32, <<1.0::little-float-32>>}
      iex> {sums, _report} = GradScaler.unscale_accumulate(sums, {:f16, <<2.0::little-float-16>>}, scaler)
      iex> {sums, report} = GradScaler.unscale_accumulate(sums, {:f16, <<0x7C00::little-16>>}, scaler)
      iex> {sums, GradScaler.overflow?(report)}
      {{:f32, <<1.5::little-float-32>>}, true}
  """
  @spec unscale_accumulate(tree, tree, t, keyword) :: {tree, Report.t()}
  def unscale_accumulate(sums, grads, %__MODULE__{} = scaler, options \\ []) do
    options = options(options, [:want, :histogram, :factor, :loss])
    {_leaves, paths} = found = leaves(grads, &refuse_traced/1)
    {sum_leaves, sum_paths} = leaves(sums, &refuse_traced/1)
    same_shapes!(shapes(sums), shapes(grads))

    if paths != sum_paths do
      raise ArgumentError, "sums has other keys or indices than the gradients"
    end

    {results, report} = call(:unscale_accumulate, found, sum_leaves, scaler, options)
    {rebuild(sums, results, & &1), report}
  end

  @doc """
  Returns the report of `unscale(grads, scaler, type: :same)`, without the gradients. Takes `:want`,
  `:histogram`, `:factor` and `:loss` like `unscale/3`.
  """
  @spec measure(tree, t, keyword) :: Report.t()
  def measure(grads, %__MODULE__{} = scaler, options \\ []) do
    options = options(options, [:want, :histogram, :factor, :loss])
    {leaves, paths} = leaves(grads, &refuse_traced/1)
    factor = factor_option(options, scaler)
    report = Binaries.measure(factor, leaves, tensor_options(options, scaler), names(paths))
    %{report | paths: paths, last_paths: paths}
  end

  @doc """
  Returns the `overflow` of a report: true if a gradient is Inf or NaN, or too large by the policy. If the
  report knows the loss, `skip?/1` says if the step is to be skipped.
  """
  @spec overflow?(Report.t()) :: boolean
  def overflow?(%Report{overflow: overflow}), do: overflow

  @doc """
  Returns true if no number of a tree is Inf or NaN. It does not unscale.

      iex> GradScaler.finite?(%{w: {:bf16, <<0x7F80::little-16>>}})
      false
  """
  @spec finite?(tree) :: boolean
  def finite?(tree) do
    {leaves, paths} = leaves(tree, &refuse_traced/1)
    all_finite?(leaves, paths)
  end

  @doc """
  Returns the paths of the leaves with Inf or NaN, as lists of keys and indices. If only the norm is
  too large, the list is empty.
  """
  @spec overflows(Report.t()) :: [path]
  def overflows(%Report{} = report) do
    for {path, %{overflow: true}} <- per_tensor(report), do: path
  end

  @doc """
  Returns the path and the report of each gradient, for plots of layers and to find errors. The reports
  have norms if the call had `want: :norm`.

      iex> {_grads, report} = GradScaler.unscale(%{w: {:f32, <<3.0::little-float-32>>}}, GradScaler.new("none"), want: :norm)
      iex> for {path, report} <- GradScaler.per_tensor(report), do: {path, GradScaler.norm(report)}
      [{[:w], 3.0}]
  """
  @report_size byte_size(Report.encode(%Report{}))
  @spec per_tensor(Report.t()) :: [{path, Report.t()}]
  def per_tensor(%Report{per_tensor: bytes, paths: paths})
      when is_binary(bytes) and is_list(paths) do
    reports = for <<report::binary-size(@report_size) <- bytes>>, do: Report.decode(report)
    Enum.zip(Enum.map(paths, &Enum.reverse/1), reports)
  end

  def per_tensor(%Report{}) do
    raise ArgumentError,
          "the report has no reports of gradients: take one from unscale, measure or unscale_accumulate"
  end

  @doc """
  Returns the first Inf or NaN of a report: the path of the leaf and the index of the element; nil if
  there is none. In a merged report it comes from the first report with an overflow.

      iex> grads = [{:f32, <<0::32>>}, {:f16, <<0::16, 0x7C00::little-16>>}]
      iex> {_grads, report} = GradScaler.unscale(grads, GradScaler.new())
      iex> GradScaler.first_overflow(report)
      {[1], 1}
  """
  @spec first_overflow(Report.t()) :: {path, non_neg_integer} | nil
  def first_overflow(%Report{nan_count: 0, inf_count: 0}), do: nil

  def first_overflow(%Report{paths: paths} = report) when is_list(paths),
    do: {paths |> Enum.at(report.first_tensor) |> Enum.reverse(), report.first_element}

  def first_overflow(%Report{}), do: refuse_without_paths()

  defp refuse_without_paths do
    raise ArgumentError,
          "the paths of the report are not known, as it was decoded from bytes: send and merge reports as terms"
  end

  @doc """
  Returns the path of the last leaf with Inf or NaN; nil if there is none. In a list of layers in the model's
  order it is the one nearest to the cause: the backward pass meets it first. Maps are in the order of their keys.

      iex> grads = [{:f32, <<0x7F800000::little-32>>}, {:f16, <<0::16, 0x7C00::little-16>>}]
      iex> {_grads, report} = GradScaler.unscale(grads, GradScaler.new())
      iex> GradScaler.last_overflow(report)
      [1]
  """
  @spec last_overflow(Report.t()) :: path | nil
  def last_overflow(%Report{nan_count: 0, inf_count: 0}), do: nil

  def last_overflow(%Report{last_paths: paths} = report) when is_list(paths),
    do: paths |> Enum.at(report.last_tensor) |> Enum.reverse()

  def last_overflow(%Report{}), do: refuse_without_paths()

  @doc """
  Sets the rank of a report, and a digest of policy and state, before ranks gather their reports.

  `merge/3` refuses reports with different digests. So if a rank loaded another checkpoint, missed a
  step or has other rules, the merge fails before any rank steps.

      iex> reports = for {name, rank} <- [{"torch", 0}, {"nemo", 1}], scaler = GradScaler.new(name) do
      ...>   GradScaler.set_rank(GradScaler.measure([], scaler), scaler, rank)
      ...> end
      iex> GradScaler.merge(reports, :addends)
      ** (ArgumentError) reports[1].digest differs: rank 1 has another policy or state than rank 0: load the same checkpoint on all ranks, or send one rank's policy and state to all
  """
  @spec set_rank(Report.t(), t, non_neg_integer) :: Report.t()
  def set_rank(%Report{} = report, %__MODULE__{policy: policy} = scaler, rank) do
    encoded = Report.encode(report)
    ranked = Native.report_set_rank(nil, encoded, policy, state_bytes(scaler), rank)
    ranked = Error.ok!(ranked)
    ranks = [:status_rank_plus_1, :first_rank_plus_1, :last_rank_plus_1, :loss_rank_plus_1]
    Map.merge(report, Map.take(Report.decode(ranked), [:digest | ranks]))
  end

  @doc """
  Returns the ranks of the first and of the last overflow, and the first ranks with a bad loss and with a
  failed call. Each is nil if there was none, or if the reports had no rank.

      iex> scaler = GradScaler.new()
      iex> reports = [GradScaler.measure([], scaler), GradScaler.failed_report()]
      iex> reports = for {report, rank} <- Enum.with_index(reports), do: GradScaler.set_rank(report, scaler, rank)
      iex> GradScaler.ranks(GradScaler.merge(reports, :shards))
      %{first: 1, last: 1, loss: nil, failed: 1}
  """
  @spec ranks(Report.t()) :: %{
          first: non_neg_integer | nil,
          last: non_neg_integer | nil,
          loss: non_neg_integer | nil,
          failed: non_neg_integer | nil
        }
  def ranks(%Report{} = report) do
    %{
      first: rank(report.first_rank_plus_1),
      last: rank(report.last_rank_plus_1),
      loss: if(report.loss == :not_finite, do: rank(report.loss_rank_plus_1)),
      failed: if(report.status != :ok, do: rank(report.status_rank_plus_1))
    }
  end

  defp rank(rank_plus_1), do: if(rank_plus_1 > 0, do: rank_plus_1 - 1)

  @doc """
  Returns the scaler after a step. Takes the report of `unscale/3`, `measure/3` or `merge/3`, or a
  boolean: true for an overflow.

  A step without gradients counts as a good step. `update/2` logs a warning of it, and no further one until a step
  has gradients: the state counts them as `empty_in_a_row`.

      iex> GradScaler.new("torch") |> GradScaler.update(true) |> GradScaler.loss_scale()
      32768.0

  If the policy has a guard, update before the step: skip the step if `skip?/1`, otherwise multiply the
  gradients by `multiplier/1`.

      iex> scaler = GradScaler.update(GradScaler.new("none", guard_norm: 2.0), GradScaler.number_report(3.0))
      iex> {GradScaler.events(scaler), GradScaler.multiplier(scaler), GradScaler.state(scaler).guard_threshold}
      {[:skipped, :outlier], 0.0, 2.0}
  """
  @spec update(t, Report.t() | boolean) :: t
  def update(%__MODULE__{} = scaler, overflow) when is_boolean(overflow) do
    report = Error.ok!(Native.report_from_flag(if overflow, do: 1, else: 0))
    update(scaler, Report.decode(report))
  end

  def update(%__MODULE__{} = scaler, %Report{} = report) do
    state = Native.state_update(nil, scaler.policy, state_bytes(scaler), Report.encode(report))
    state = Error.ok!(state)
    %{scaler | state: state} |> warn_if_empty(report) |> emit_update(report)
  end

  def update(%__MODULE__{}, [%Report{} | _]) do
    raise ArgumentError,
          "report is a list: merge it with GradScaler.merge/3, as :shards or as :addends"
  end

  def update(%__MODULE__{}, other) do
    raise ArgumentError, "report is #{inspect(other)}: expected a GradScaler.Report or a boolean"
  end

  defp warn_if_empty(scaler, %Report{elements: 0}) do
    if state(scaler).empty_in_a_row == 1 do
      Logger.warning(
        "GradScaler.update: this step had no gradients: the tree has no float tensors, or they are empty. It counts as " <>
          "a good step, so the scale can grow. Check which tree unscale or measure gets"
      )
    end

    scaler
  end

  defp warn_if_empty(scaler, _report), do: scaler

  @event [:grad_scaler, :update]
  defp emit_update(scaler, report) do
    if function_exported?(:telemetry, :list_handlers, 1) and
         apply(:telemetry, :list_handlers, [@event]) != [] do
      measurements = Map.new(metrics(scaler, report))
      apply(:telemetry, :execute, [@event, measurements, %{scaler: scaler}])
    end

    scaler
  end

  @doc """
  Adopts the decision of `other` to skip, clip or stop: `other` judged another signal of the same
  step, such as the loss. Scale, counts and samples of `scaler` do not change.

      iex> scaler = GradScaler.update(GradScaler.new("recommended"), false)
      iex> losses = GradScaler.update(GradScaler.new("none", guard_norm: 4.0), GradScaler.number_report(9.5))
      iex> GradScaler.events(GradScaler.combine_decisions(scaler, losses))
      [:skipped, :outlier]
  """
  @spec combine_decisions(t, t) :: t
  def combine_decisions(%__MODULE__{} = scaler, %__MODULE__{} = other) do
    [state, other] = Enum.map([scaler, other], &state_bytes/1)
    %{scaler | state: Error.ok!(Native.state_combine_decisions(nil, state, other))}
  end

  @doc """
  Returns true if the step is to be skipped. For a scaler after an update: an overflow, a loss that is not
  finite, or an outlier. For a report before the update: all but an outlier, by the policy of the call that made it.
  """
  @spec skip?(t | Report.t()) :: boolean
  def skip?(%__MODULE__{} = scaler), do: :skipped in events(scaler)
  def skip?(%Report{overflow: overflow, found_inf: found_inf}), do: overflow or found_inf

  @doc """
  Returns `old` if the last update says to skip the step, else `new`. So what an optimizer returns replaces the
  parameters and the optimizer's state, or nothing does.

      iex> scaler = GradScaler.update(GradScaler.new("torch"), true)
      iex> [params, state] = GradScaler.skip([:new_params, :new_state], [:params, :state], scaler)
      iex> {params, state}
      {:params, :state}
  """
  @spec skip(new, old, t) :: new | old when new: term, old: term
  def skip(new, old, %__MODULE__{} = scaler), do: if(skip?(scaler), do: old, else: new)

  @doc """
  Returns a sentence that says why the last update skipped or clipped its step, or let an outlier
  through; otherwise nil.

      iex> scaler = GradScaler.update(GradScaler.new("none", guard_norm: 2.0), GradScaler.number_report(3.0))
      iex> GradScaler.reason(scaler)
      "skipped: the norm, 3, is above 2"

  With the report of that update, the sentence names the gradient that is nearest to the cause of an overflow:
  the last one of `overflows/1`, see `last_overflow/1`.

      iex> scaler = GradScaler.new()
      iex> grads = %{layers: [{:f32, <<0::32>>}, {:f32, <<0x7FC00000::little-32>>}]}
      iex> report = GradScaler.measure(grads, scaler)
      iex> scaler |> GradScaler.update(report) |> GradScaler.reason(report)
      "skipped: 1 NaN in \\"layers.1\\" alone"

  Options:

  * `:names` - a list with a text, or nil, for each leaf; without it, the names are the paths in the tree
  * `:order` - the indices of the leaves, in the order in which the backward pass made their gradients; then the first
    bad one in it is nearest to the cause
  * `:evidence` - what else is known about the step: a keyword list of the fields of `GradScaler.Evidence`, with the
    dtype by its name

        iex> scaler = GradScaler.new()
        iex> grads = %{embed: {:f32, <<0x7FC00000::little-32>>}, head: {:f32, <<0::32>>}}
        iex> report = GradScaler.measure(grads, scaler)
        iex> scaler = GradScaler.update(scaler, report)
        iex> GradScaler.reason(scaler, report, order: [1, 0])
        "skipped: 1 NaN in \\"embed\\" alone; \\"head\\", made just before, is finite"
        iex> GradScaler.reason(scaler, report, evidence: [scale: 65536, loss_dtype: :f16])
        "skipped: the scale, 65536, is above the largest float16, 65504: make the loss float32 before it is scaled"
  """
  @spec reason(t, Report.t() | nil, keyword) :: binary | nil
  def reason(%__MODULE__{} = scaler, report \\ nil, options \\ []),
    do: with("" <- decision(scaler, report, options).message, do: nil)

  @doc """
  Returns the decision of the last update in parts: outcome, cause, numbers, and the sentence of `reason/3`,
  which takes the same arguments.

      iex> scaler = GradScaler.new("recommended")
      iex> report = GradScaler.measure({:f32, <<0x7F800000::little-32>>}, scaler)
      iex> decision = scaler |> GradScaler.update(report) |> GradScaler.decision(report)
      iex> {decision.outcome, decision.cause, decision.inf_count, decision.bad_tensors, decision.tensor}
      {:skipped, :overflow, 1, 1, 0}
  """
  @spec decision(t, Report.t() | nil, keyword) :: Reason.t()
  def decision(%__MODULE__{} = scaler, report \\ nil, options \\ []) do
    options = Keyword.validate!(options, [:names, order: nil, evidence: []])
    names = Keyword.get_lazy(options, :names, fn -> names_of_bad(report) end)
    order = options[:order] && for(i <- options[:order], into: <<>>, do: Fields.u64(i, "order"))
    bytes = report && Report.encode(report)
    each = report && report.per_tensor
    evidence = evidence(options[:evidence])
    state = state_bytes(scaler)
    Reason.decode(Error.ok!(Native.state_reason(state, bytes, evidence, each, names, order)))
  end

  defp evidence(known) do
    known = Keyword.validate!(known, Map.keys(Map.from_struct(%Evidence{})))
    number = &Constants.number(:dtype, &1, "evidence.loss_dtype")
    Evidence.encode(struct!(Evidence, Keyword.update(known, :loss_dtype, 0, number)))
  end

  # Returns the names of all leaves if a leaf has Inf or NaN; else the sentence names none.
  defp names_of_bad(%Report{last_paths: [_ | _] = paths, nan_count: nan, inf_count: inf})
       when nan + inf > 0,
       do: Enum.map(paths, &Tree.name/1)

  defp names_of_bad(_report), do: nil

  @doc """
  Returns the number to multiply the gradients of the last update by: 1.0; less if the guard clips;
  0.0 to skip the step.
  """
  @spec multiplier(t) :: float
  def multiplier(%__MODULE__{} = scaler), do: decision(scaler).multiplier

  @doc """
  Returns the metrics after the last update, the most important first, for loggers. The report of that
  update adds the norm, amax, the share of zeros, the counts of NaN and Inf, and if the loss was bad. A metric
  that is not known is missing.

      iex> scaler = GradScaler.update(GradScaler.new("torch"), true)
      iex> GradScaler.metrics(scaler) |> Keyword.take([:loss_scale, :skip, :total_overflows])
      [loss_scale: 32768.0, skip: true, total_overflows: 1]

  If `:telemetry` is loaded, each update emits the event `[:grad_scaler, :update]`: the measurements are
  these metrics, and the metadata has `scaler`.
  """
  @spec metrics(t, Report.t() | nil) :: keyword(real | boolean)
  def metrics(%__MODULE__{policy: policy} = scaler, report \\ nil) do
    bytes = report && Report.encode(report)
    entries = Error.ok!(Native.state_metrics(policy, state_bytes(scaler), bytes))

    for {name, value} <- Checkpoint.rows(entries),
        value != nil,
        do: {String.to_existing_atom(name), value}
  end

  @doc """
  Returns the line `start` of a history, a file of lines of JSON that the Python package draws and diagnoses. Write it
  before the first line of `history_line/3`, and after a scaler was loaded or replaced.

      iex> scaler = GradScaler.new("torch")
      iex> report = GradScaler.measure({:f32, <<0x7F800000::little-32>>}, scaler)
      iex> start = GradScaler.history_start(scaler, step: 1, run: "a")
      iex> scaler = GradScaler.update(scaler, report)
      iex> lines = [start, GradScaler.history_line(scaler, report, step: 1, run: "a")]
      iex> path = Path.join(System.tmp_dir!(), "run-#{System.unique_integer([:positive])}.jsonl")
      iex> File.write!(path, lines, [:append])
      iex> [_, line] = path |> File.read!() |> String.split("\\n", trim: true)
      iex> File.rm!(path)
      iex> line =~ ~s("events":"BACKED_OFF|SKIPPED","outcome":"SKIPPED","cause":"OVERFLOW")
      true

  Options:

  * `:step` - required: the number of the next step
  * `:run` - a text that tells these lines apart from the lines of other writers of the file
  * `:rank` - the rank of this process; default: 0
  * `:time` - seconds since 1970; default: now; 0 leaves it out
  * `:preset` - the name of the preset that the policy was made from
  """
  @spec history_start(t, keyword) :: binary
  def history_start(%__MODULE__{policy: policy} = scaler, options) do
    options = Keyword.validate!(options, [:step, :run, :time, :preset, rank: 0])
    {step, rank, time, run} = {options[:step], options[:rank], time(options), options[:run]}
    state = state_bytes(scaler)
    Error.ok!(Native.history_start(policy, options[:preset], state, nil, step, rank, time, run))
  end

  @doc """
  Returns the line of a history for the last update; see `history_start/2`.

  `report` is the report of that update. The options are `:step`, `:run`, `:time`, and as in `reason/3` `:names`.
  """
  @spec history_line(t, Report.t() | nil, keyword) :: binary
  def history_line(%__MODULE__{} = scaler, report \\ nil, options) do
    options = Keyword.validate!(options, [:step, :run, :time, :names])
    names = Keyword.get_lazy(options, :names, fn -> names_of_bad(report) end)
    {bytes, each} = {report && Report.encode(report), report && report.per_tensor}
    {step, time, run} = {options[:step], time(options), options[:run]}
    line = Native.history_line(state_bytes(scaler), bytes, nil, each, names, step, time, run)
    Error.ok!(line)
  end

  defp time(options),
    do: Keyword.get_lazy(options, :time, fn -> System.os_time(:millisecond) / 1000 end)

  @doc """
  Returns what is wrong with a run and what to do, the most important first; `[]` if nothing is.
  `report` is the last one, `:steps` are the updates so far (0: those that the scaler counted), `:planned_steps`
  the updates of the whole run.

      iex> scaler = Enum.reduce(1..3, GradScaler.new("none"), fn _, s -> GradScaler.update(s, true) end)
      iex> [finding] = GradScaler.diagnose(scaler)
      iex> finding.kind
      :not_finite
  """
  @spec diagnose(t, Report.t() | nil, keyword) :: [GradScaler.Checkpoint.note()]
  def diagnose(%__MODULE__{policy: policy} = scaler, report \\ nil, options \\ []) do
    options = Keyword.validate!(options, steps: 0, planned_steps: 0)
    bytes = report && Report.encode(report)
    each = report && report.per_tensor
    {steps, planned} = {options[:steps], options[:planned_steps]}
    notes = Native.state_diagnose(policy, state_bytes(scaler), bytes, each, steps, planned)
    Checkpoint.notes(Error.ok!(notes), [])
  end

  @doc """
  Returns the report of a number, such as the loss, for a separate scaler with a guard; see
  `combine_decisions/2`. The number keeps its sign. Infinities, NaN and magnitudes above 2^500 are an
  overflow.
  """
  @spec number_report(real) :: Report.t()
  def number_report(number) do
    Report.decode(Error.ok!(Native.report_from_number(Fields.judged(number))))
  end

  @doc """
  Merges reports, in their order, into one.

    * `:shards` - reports of different gradients: layers, shards, optimizers that share a scale. Their
      sums of squares are added
    * `:addends` - reports of gradients that are added: micro-batches, data-parallel ranks. The merged
      report has no norm, because the norm of the sum is not known

  With a scaler, its policy decides `overflow`, and also `skip?/1` of the merged report. The merged loss is not
  finite if any known loss is not. Histograms are added if all reports have one.

  Ranks send each other their reports, as terms or as the bytes of `GradScaler.Report.encode/1`, and each
  merges all of them in rank order: then all have the same bits. Call `set_rank/3` on each report before.

      iex> scaler = GradScaler.new("torch")
      iex> good = GradScaler.measure({:f32, <<1.0::little-float-32>>}, scaler)
      iex> bad = GradScaler.failed_report()
      iex> GradScaler.overflow?(GradScaler.merge([good, bad], :addends))
      true
  """
  @spec merge([Report.t()], :shards | :addends, t | nil) :: Report.t()
  def merge(reports, kind, scaler \\ nil) when is_list(reports) do
    policy = scaler && scaler.policy
    kind = Constants.number(:merge_kind, kind, "kind")
    encoded = for report <- reports, into: <<>>, do: encode_report(report)
    merged = Error.ok!(Native.report_merge(nil, encoded, kind, policy))
    bad = for report <- reports, report.nan_count + report.inf_count > 0, do: report

    %{
      Report.decode(merged)
      | paths: List.first(bad, %Report{}).paths,
        last_paths: List.last(bad, %Report{}).last_paths,
        histogram: add(Enum.map(reports, & &1.histogram))
    }
  end

  defp encode_report(%Report{} = report), do: Report.encode(report)

  defp encode_report(other),
    do: raise(ArgumentError, "reports holds #{inspect(other)}, which is no GradScaler.Report")

  defp add(histograms) do
    if histograms != [] and Enum.all?(histograms), do: Enum.zip_with(histograms, &Enum.sum/1)
  end

  @doc "Returns the report of a rank or device that failed: with it the step is skipped."
  @spec failed_report(atom) :: Report.t()
  def failed_report(status \\ :device),
    do: %Report{overflow: true, status: status}

  @doc "Returns the global norm of the gradients, from a report with `want: :norm`."
  @spec norm(Report.t()) :: float | :infinity
  def norm(%Report{measured: measured, sum_squares: sum}) do
    if :norm not in measured, do: raise(ArgumentError, "the report has no norm: pass want: :norm")
    if is_float(sum), do: :math.sqrt(sum), else: sum
  end

  @doc """
  Returns a factor with the clip of the last update; `unscale/3` with it as `:factor` then also clips,
  in one pass. `factor` is `factor/1` from before the update. If the update did not clip, it is
  returned unchanged.
  """
  @spec guard_factor(t, factor) :: factor
  def guard_factor(%__MODULE__{} = scaler, factor) do
    state = state_bytes(scaler)
    Factor.decode(Error.ok!(Native.factor_clip_outlier(nil, Factor.encode(factor), state)))
  end

  @doc """
  Returns a factor that unscales and clips to a global norm in one pass: pass it to `unscale/3` as
  `:factor`. `report` is of `measure/3` with `want: :norm`. It clips as torch.nn.utils.clip_grad_norm_.
  """
  @spec clip_factor(t, Report.t(), number) :: factor
  def clip_factor(%__MODULE__{} = scaler, %Report{} = report, max_norm) do
    factor = factor_binary(scaler)
    factor = Native.factor_clip_grad_norm(nil, factor, Report.encode(report), max_norm)
    Factor.decode(Error.ok!(factor))
  end

  @doc "Returns the scaler with another scale, in force at once; the counts do not change."
  @spec set_scale(t, number | :infinity) :: t
  def set_scale(%__MODULE__{} = scaler, scale), do: put_state(scaler, scale: scale)

  @doc """
  Returns the scaler with new values for `:scale` and the fields of `GradScaler.State`: for loops that
  keep these themselves, and to continue from a checkpoint of another library.

      iex> scaler = GradScaler.put_state(GradScaler.new("torch"), scale: 1024.0, good_steps: 1999)
      iex> scaler |> GradScaler.update(false) |> GradScaler.loss_scale()
      2048.0
  """
  @spec put_state(t, keyword) :: t
  def put_state(%__MODULE__{} = scaler, fields) do
    {scale, fields} = Keyword.pop(fields, :scale, loss_scale(scaler))
    state = state(scaler)

    known =
      Map.keys(Map.from_struct(state)) -- [:factor, :next, :events, :status, :skip_f32, :skip]

    for {name, _value} <- fields, name not in known do
      raise ArgumentError,
            "a state has no field #{inspect(name)} to set: there are #{inspect([:scale | known])}"
    end

    from = struct!(%{state | factor: %{state.factor | scale: scale}}, fields)

    state = Native.state_init_from(nil, scaler.policy, State.encode(from))
    %{scaler | state: Error.ok!(state, %{"from" => "the new state"})}
  end

  # ---- devices ----

  @doc """
  Returns the scaler on a device: `:cuda` (which is `{:cuda, 0}`), another CUDA device,
  `{:cpu, threads}`, or the device of another scaler.

  If there is none, a `GradScaler.Error` says why. Loading the kernels takes seconds the first time on a
  machine.

      iex> scaler = GradScaler.new("static", init_scale: 4.0) |> GradScaler.on_device({:cpu, 2})
      iex> grads = GradScaler.device_put(%{w: {:f32, <<8.0::little-float-32>>}}, scaler)
      iex> {grads, _report} = GradScaler.unscale(grads, scaler)
      iex> GradScaler.device_get(grads)
      %{w: {:f32, <<2.0::little-float-32>>}}
  """
  @spec on_device(t, :cuda | {:cuda, non_neg_integer} | {:cpu, pos_integer} | t) :: t
  def on_device(scaler, kind \\ :cuda)
  def on_device(scaler, %__MODULE__{device: device}), do: %{scaler | device: device}

  def on_device(scaler, kind) do
    case open(kind) do
      {:ok, device} -> %{scaler | device: device}
      {:error, details} -> raise Error.new(details)
    end
  end

  defp open(:cuda), do: open({:cuda, 0})
  defp open({:cuda, ordinal}), do: Native.context_create_cuda(ordinal)
  defp open({:cpu, threads}), do: Native.context_create_cpu(threads)

  defp open(kind) do
    raise ArgumentError,
          "a device is :cuda, {:cuda, ordinal} or {:cpu, threads}, not #{inspect(kind)}"
  end

  @doc """
  Compares the scaler's device with the host, bit for bit, with everything that the kernels do. Returns
  the names of the comparisons. If a bit differs, a `GradScaler.Error` says where.

  Each round has larger lists than the one before.

      iex> scaler = GradScaler.new("static") |> GradScaler.on_device({:cpu, 2})
      iex> hd(GradScaler.compare_device(scaler))
      "dtypes"
  """
  @spec compare_device(t, pos_integer) :: [binary]
  def compare_device(%__MODULE__{device: device}, rounds \\ 3) do
    indices = Stream.iterate(0, &(&1 + 1))
    names = indices |> Stream.map(&Native.comparison_name/1) |> Enum.take_while(& &1)

    for {_name, index} <- Enum.with_index(names), round <- 0..(rounds - 1) do
      with {:error, details} <- Native.exec_compare(device, index, round),
           do: raise(Error.new(details))
    end

    names
  end

  @doc "Copies the floats of a tree to the scaler's device, if it has one. Integers are not copied."
  @spec device_put(tree, t) :: tree
  def device_put(tree, %__MODULE__{device: nil}), do: tree

  def device_put(tree, %__MODULE__{device: device}) do
    {leaves, paths} = leaves(tree, &refuse_traced/1)

    for {%DeviceTensor{}, path} <- Enum.zip(leaves, paths),
        do: raise(ArgumentError, "#{Tree.where(path, "the tensor")} is on a device already")

    rebuild(tree, DeviceTensor.copy(device, leaves), & &1)
  end

  @doc "Copies the device tensors of a tree to host memory. Other leaves do not change."
  @spec device_get(tree) :: tree
  def device_get(tree) do
    elements = tree |> device_tensors() |> DeviceTensor.read()

    Tree.map(tree, fn leaf ->
      case elements do
        %{^leaf => binary} -> Leaf.put(leaf, {leaf.dtype, binary})
        _of_the_host -> leaf
      end
    end)
  end

  @doc "Frees the device memory of a tree, also for tensors that share it; using them again is an error."
  @spec device_free(tree) :: :ok
  def device_free(tree) do
    for memory <- tree |> device_tensors() |> Enum.map(& &1.memory) |> Enum.uniq(),
        do: :ok = Error.check!(Native.memory_destroy(memory))

    :ok
  end

  defp device_tensors(tree) do
    Tree.reduce(tree, [], fn leaf, _path, tensors ->
      if is_struct(leaf, DeviceTensor), do: [leaf | tensors], else: tensors
    end)
  end

  # ---- types ----

  @doc """
  Casts all floats of a tree to another type, rounded to nearest even. Traced tensors get a plain
  `Nx.as_type`. `clamp:` limits the magnitudes to a number: with the largest number of a narrow type
  the cast saturates.

      iex> GradScaler.cast_params({:f32, <<1.0009765625::little-float-32>>}, :bf16)
      {:bf16, <<0x3F80::little-16>>}

      iex> GradScaler.cast_params({:f32, <<1000.0::little-float-32>>}, :f8_e4m3fn, clamp: 448)
      {:f8_e4m3fn, <<0x7E>>}
  """
  @spec cast_params(tree, dtype | tuple, keyword) :: tree
  def cast_params(params, type, options \\ []) do
    options = options(options, [:clamp])
    dtype = Leaf.dtype_of_type(type)

    convert = fn leaf, dtype ->
      leaf = if options[:clamp], do: Nx.clip(leaf, -options[:clamp], options[:clamp]), else: leaf
      Nx.as_type(leaf, Leaf.type(dtype))
    end

    cast(params, nil, dtype, %TensorOptions{clamp: options[:clamp] || 0.0}, convert)
  end

  @doc "Does the same as `cast_params/2`, for gradients: casts them to the type of their sums."
  @spec accumulate_grad(tree, dtype | tuple) :: tree
  def accumulate_grad(grads, type \\ :f32), do: cast_params(grads, type)

  # ---- to and from a checkpoint ----

  @doc """
  Returns policy and state as bytes, for any machine and any language. From 1.0 on every later version reads
  them.

      iex> scaler = GradScaler.new("torch") |> GradScaler.update(true)
      iex> scaler |> GradScaler.save() |> GradScaler.load() == scaler
      true
  """
  @spec save(t) :: binary
  def save(%__MODULE__{policy: policy} = scaler),
    do: Error.ok!(Native.state_save(policy, state_bytes(scaler)))

  @doc """
  Returns the scaler that `save/1` saved. Damaged or other bytes, and bytes of a version before 0.10, raise
  `ArgumentError`.
  """
  @spec load(binary) :: t
  def load(bytes) do
    {:ok, policy, state} =
      Error.check!(Native.state_load(bytes), %{"size" => "the number of bytes"})

    %__MODULE__{policy: policy, state: state}
  end

  # ---- trees ----

  # Returns the tensors of all float leaves, and their reversed paths. Calls `traced` with each leaf of a
  # graph, which has no elements.
  defp leaves(tree, traced) do
    floats =
      Tree.reduce(tree, [], fn leaf, path, floats ->
        case {Leaf.traced?(leaf), Leaf.dtype(leaf)} do
          {_, {:error, text}} -> raise ArgumentError, "#{Tree.where(path, "the tensor")} #{text}"
          {true, _} -> traced.(leaf) && floats
          {false, nil} -> floats
          {false, dtype} -> [{Leaf.tensor(leaf, dtype), path} | floats]
        end
      end)

    floats |> Enum.reverse() |> Enum.unzip()
  end

  # Returns the tree with its float leaves replaced by `results`, in the order of leaves/2.
  defp rebuild(tree, results, traced) do
    {tree, []} =
      Tree.map_reduce(tree, results, fn leaf, _path, results ->
        case {Leaf.traced?(leaf), Leaf.dtype(leaf), results} do
          {true, _, _} -> {traced.(leaf), results}
          {false, nil, _} -> {leaf, results}
          {false, _, [result | rest]} -> {Leaf.put(leaf, result), rest}
        end
      end)

    tree
  end

  # Calls the library with the leaves of gradients; the report knows their paths.
  defp call(function, {leaves, paths}, out, scaler, options) do
    factor = factor_option(options, scaler)
    options = tensor_options(options, scaler)
    {results, report} = Binaries.into(function, factor, leaves, out, options, names(paths))
    {results, %{report | paths: paths, last_paths: paths}}
  end

  # Multiplies float leaves by a factor and converts them to a type; `traced` does so for leaves of a graph.
  defp cast(tree, factor, type, options, traced) do
    {leaves, paths} = leaves(tree, & &1)
    dtypes = result_dtypes(leaves, type)
    {results, _report} = Binaries.into(:scale, factor, leaves, dtypes, options, names(paths))

    rebuild(tree, results, fn leaf ->
      if Leaf.dtype(leaf), do: traced.(leaf, result_dtype(Leaf.dtype(leaf), type)), else: leaf
    end)
  end

  # Returns a function that names an entry of a list of leaves, for errors.
  defp names(paths) do
    fn
      "tensors", index when index >= 0 ->
        Tree.where(Enum.at(paths, index), "the tensor")

      "out", index when index >= 0 ->
        "the result of #{Tree.where(Enum.at(paths, index), "the tensor")}"

      _name, _index ->
        nil
    end
  end

  defp shapes(tree),
    do: Tree.reduce(tree, %{}, fn leaf, path, acc -> Map.put(acc, path, Leaf.shape(leaf)) end)

  defp same_shapes!(sums, grads) do
    for {path, shape} <- grads, shape && sums[path] && sums[path] != shape do
      raise ArgumentError,
            "#{Tree.where(path, "the tensor")} has the shape #{inspect(shape)}, its sum #{inspect(sums[path])}"
    end
  end

  defp refuse_traced(_leaf) do
    raise ArgumentError, "the tensors are traced: inside defn, jit and grad use GradScaler.Defn"
  end

  # ---- options ----

  defp options(options, known) do
    options = Keyword.validate!(options, known)

    case options[:clamp] do
      nil -> options
      clamp when is_number(clamp) and clamp > 0 -> options
      clamp -> raise ArgumentError, "clamp is #{inspect(clamp)}: it must be a number above 0"
    end
  end

  # Always makes a report of each gradient, for overflows/1; this costs almost no time.
  defp tensor_options(options, scaler) do
    %TensorOptions{
      want: List.wrap(options[:want]),
      policy: scaler.policy,
      clamp: options[:clamp] || 0.0,
      per_tensor: true,
      histogram: options[:histogram] || false,
      loss: loss(options[:loss])
    }
  end

  # Returns a loss as one tensor; nil if it is not known. Of several losses the tensor only says if they are finite.
  defp loss(nil), do: nil

  defp loss(number) when is_number(number) or number in [:infinity, :neg_infinity, :nan],
    do: {:f64, Fields.f64(number, "options.loss")}

  defp loss(tree) do
    floats =
      Tree.map(tree, fn leaf ->
        if Leaf.dtype(leaf), do: leaf, else: Nx.as_type(leaf, {:f, 32})
      end)

    {leaves, paths} = leaves(floats, &refuse_traced/1)
    complex = Enum.find(leaves, &(Leaf.dtype(&1) in [:complex64, :complex128]))

    case leaves do
      [] -> nil
      [loss] -> loss
      _several when complex != nil -> complex
      _several -> loss(if all_finite?(leaves, paths), do: 0, else: :nan)
    end
  end

  defp all_finite?(leaves, paths),
    do: not Binaries.measure(nil, leaves, %TensorOptions{}, names(paths)).overflow

  defp factor_option(options, scaler) do
    case options[:factor] do
      nil -> factor_binary(scaler)
      %Factor{} = factor -> Factor.encode(factor)
      other -> raise ArgumentError, "factor is #{inspect(other)}, not a GradScaler.Factor"
    end
  end

  defp result_dtypes(leaves, type),
    do: for(leaf <- leaves, do: result_dtype(Leaf.dtype(leaf), type))

  defp result_dtype(dtype, nil), do: wide(dtype)
  defp result_dtype(dtype, :same), do: dtype
  defp result_dtype(_dtype, type), do: Leaf.dtype_of_type(type)

  defp wide(dtype) when dtype in [:f64, :complex64, :complex128], do: dtype
  defp wide(_narrow_or_single), do: :f32

  defimpl Inspect do
    def inspect(%{state: state}, _options) when not is_binary(state), do: "#GradScaler<traced>"

    def inspect(scaler, _options) do
      state = GradScaler.state(scaler)

      "#GradScaler<scale #{Kernel.inspect(state.factor.scale)}, #{state.good_steps} good steps, " <>
        "#{state.total_overflows} overflows, #{state.total_growths} growths, #{state.total_backoffs} backoffs>"
    end
  end

  # To Nx the state is tensors, so a compiled function gets the scale of each call; the policy is a constant in it.
  if Code.ensure_loaded?(Nx.Container) do
    defimpl Nx.Container do
      def traverse(scaler, acc, fun) do
        {tensors, acc} = fun.(tensors(scaler), acc)
        {%{scaler | state: state(tensors)}, acc}
      end

      def reduce(scaler, acc, fun), do: fun.(tensors(scaler), acc)

      defp tensors(%{state: bytes} = scaler) when is_binary(bytes),
        do: scaler |> GradScaler.Defn.init() |> Map.take([:bytes, :scale])

      defp tensors(%{state: tensors}), do: tensors

      # Tensors that have no elements, of a graph or a template, stay.
      defp state(%{bytes: %{data: %{__struct__: backend}} = bytes})
           when backend not in [Nx.Defn.Expr, Nx.TemplateBackend],
           do: Nx.to_binary(bytes)

      defp state(tensors), do: tensors

      def serialize(scaler), do: {__MODULE__, [], GradScaler.save(scaler)}
      def deserialize([], bytes), do: GradScaler.load(bytes)
    end
  end
end
