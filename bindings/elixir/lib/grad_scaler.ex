defmodule GradScaler do
  @moduledoc """
  Loss scaling for mixed-precision training.

      scaler = GradScaler.new("recommended")

      # one step: scale the loss, unscale the gradients, skip the step on an overflow
      loss = GradScaler.scale_loss(loss, scaler)
      {grads, report} = GradScaler.unscale(grads, scaler)
      params = if GradScaler.has_overflow?(report), do: params, else: optimize(params, grads)
      scaler = GradScaler.update(scaler, report)

  The rules of torch, Megatron-LM, DeepSpeed and others are presets, see `presets/0`.

  ## Trees

  Gradients are a tree: lists, tuples, maps and structs that implement `Nx.Container`, with Nx
  tensors or `{dtype, binary}` pairs at its ends, where a dtype is `:f16`, `:bf16`, `:f32`, `:f64`,
  `:f8_e4m3fn`, `:f8_e5m2` (Nx's `{:f, 8}`), `:cb16`, `:complex64` or `:complex128`. Nx is not
  needed for pairs, and has no tensors of `:cb16`. A whole tree is one call of the library, on a
  dirty scheduler where it is large. Integer tensors are left alone; anything else raises
  `ArgumentError` and tells where it is.

  A complex element counts once, as its larger part does, and cannot become a real one.

  Results have the shape and the names of what they replace. They are on its backend, too: the
  elements are fetched from it, and the result is transferred to it with the backend's default
  options, which for one with several devices is the default device.

  ## Values

  A scaler is a value: `update/2` returns a new one, and nothing is shared. A scale that has become
  infinite is `:infinity`, and NaN is `:nan`, since Erlang's floats are finite. An overflow is data
  and not an error; wrong arguments raise `ArgumentError`.

      iex> scaler = GradScaler.new("torch", init_scale: 8.0)
      iex> grads = %{w: {:f16, <<16.0::little-float-16>>}, b: {:f16, <<0x7C00::little-16>>}}
      iex> {_grads, report} = GradScaler.unscale(grads, scaler)
      iex> {GradScaler.has_overflow?(report), GradScaler.overflows(grads, scaler)}
      {true, [[:b]]}
      iex> scaler = GradScaler.update(scaler, report)
      iex> {GradScaler.loss_scale(scaler), GradScaler.events(scaler)}
      {4.0, [:backed_off, :skipped]}
  """

  alias GradScaler.{
    Binaries,
    Constants,
    Factor,
    Leaf,
    Native,
    Policy,
    Report,
    State,
    Tree
  }

  @enforce_keys [:policy, :state, :judges]
  defstruct [:policy, :state, :judges]

  @typedoc "A scaler: rules and state as the library's binaries, and what the rules judge reports by."
  @type t :: %__MODULE__{policy: binary, state: binary, judges: [atom]}

  @typedoc "What a loss was multiplied by; see `factor/1`."
  @type factor :: Factor.t()

  # Costs nothing while all gradients are finite, so it is always asked for.
  @always [:counts, :first_bad]

  # ---- what it is ----

  @doc """
  A scaler with the rules of a preset, some fields replaced; `GradScaler.Policy` describes them.

      iex> scaler = GradScaler.new("megatron", hysteresis: 3)
      iex> {GradScaler.loss_scale(scaler), GradScaler.policy(scaler).hysteresis}
      {4294967296.0, 3}

      iex> GradScaler.new("torch", backoff_factor: 2)
      ** (ArgumentError) policy.backoff_factor is 2: it must be from 0 to 1

      iex> GradScaler.new("torsh")
      ** (ArgumentError) no preset is named "torsh"; GradScaler.presets/0 lists them
  """
  @spec new(binary | atom, Enumerable.t()) :: t
  def new(preset \\ "recommended", fields \\ []) do
    policy = preset |> to_string() |> policy_of_preset() |> replace(fields) |> Policy.encode()
    {:ok, state} = Binaries.check!(Native.state_init(policy))
    build(policy, state)
  end

  defp build(policy, state) do
    fields = Policy.decode(policy)
    norm = if fields.overflow_test == :norm, do: [:norm], else: []
    amax = if fields.target_amax != 0, do: [:amax], else: []
    %__MODULE__{policy: policy, state: state, judges: @always ++ norm ++ amax}
  end

  defp policy_of_preset(preset) do
    case Native.policy_preset(preset) do
      {:ok, policy} ->
        Policy.decode(policy)

      {:error, _} ->
        raise ArgumentError,
              "no preset is named #{inspect(preset)}; GradScaler.presets/0 lists them"
    end
  end

  defp replace(policy, fields) do
    Enum.reduce(fields, policy, fn {name, value}, policy ->
      unless is_atom(name) and is_map_key(policy, name) and name != :__struct__ do
        raise ArgumentError,
              "a policy has no field #{inspect(name)}; GradScaler.Policy lists them"
      end

      Map.put(policy, name, value)
    end)
  end

  @doc """
  All presets, with a sentence each on what they do and where their rules come from.

      iex> is_map_key(GradScaler.presets(), "deepspeed")
      true
  """
  @spec presets() :: %{binary => binary}
  def presets do
    for i <- 0..(Native.preset_count() - 1), into: %{} do
      {Native.preset_name(i), Native.preset_summary(i)}
    end
  end

  @doc """
  What runs here: the version, the instruction set in use, those available, and whether there is CUDA.

      iex> GradScaler.info().version
      "0.1.0"
  """
  @spec info() :: map
  def info do
    {:ok, info} = Native.get_info()
    <<major::16, minor::8, patch::8>> = <<info.version::32>>

    %{
      info
      | version: "#{major}.#{minor}.#{patch}",
        cpu_available: String.split(info.cpu_available)
    }
  end

  @doc "The scale in force; `:infinity` where a policy without ceiling has led there."
  @spec loss_scale(t) :: float | :infinity
  def loss_scale(%__MODULE__{} = scaler), do: factor(scaler).scale

  @doc """
  A snapshot of the scale in force, to keep with gradients that are unscaled after a later update:
  `unscale(grads, scaler, factor: factor)`.
  """
  @spec factor(t) :: factor
  def factor(%__MODULE__{state: state}), do: Factor.decode(factor_binary(state))

  # The factor is the first member of a state.
  defp factor_binary(state), do: binary_part(state, 0, 32)

  @doc "The rules, with names."
  @spec policy(t) :: Policy.t()
  def policy(%__MODULE__{policy: policy}), do: Policy.decode(policy)

  @doc "The state, with names: the counts, and `next`, the newest scale where it is not in force yet."
  @spec state(t) :: State.t()
  def state(%__MODULE__{state: state}), do: State.decode(state)

  @doc """
  What the last update did: `:grew`, `:backed_off`, `:skipped`, `:absorbed`, `:at_ceiling`,
  `:at_floor`, `:stalled`, `:stopped`.
  """
  @spec events(t) :: [atom]
  def events(%__MODULE__{} = scaler), do: state(scaler).events

  # ---- the step ----

  @doc """
  The loss times the scale: a number, a tensor, or a tree of them.

  Inside `Nx.Defn.grad` and everywhere else that the loss is traced, this is a plain
  multiplication. A scaled loss leaves the range of float16 easily: keep the loss in float32.

      iex> GradScaler.scale_loss(0.5, GradScaler.new("torch"))
      32768.0
  """
  def scale_loss(loss, %__MODULE__{state: state}) when is_number(loss) do
    factor = factor_binary(state)
    [] = Binaries.scale(factor, [], [])
    loss * Factor.decode(factor).scale
  end

  def scale_loss(loss, %__MODULE__{state: state}) do
    factor = factor_binary(state)
    {leaves, _paths} = leaves(loss, & &1)
    results = Binaries.scale(factor, leaves, for({dtype, _} <- leaves, do: dtype))
    rebuild(loss, results, &Nx.multiply(&1, Factor.decode(factor).scale))
  end

  @doc """
  Divides gradients by the scale and checks them. Returns the gradients and a `GradScaler.Report`.

  Narrow types become `:f32`, where what scaling saved survives; `:f64` and complex ones stay. All
  gradients are divided, also where the report says not to use them.

    * `:type` - the type of all results: a dtype, Nx's `{:f, 32}`, or `:same`
    * `:want` - what the report is to hold: `:norm`, `:amax`, `:underflow`, `:histogram`
    * `:factor` - the snapshot that the loss was scaled by, where an update ran since

      iex> scaler = GradScaler.new("static", init_scale: 4.0)
      iex> {grads, report} = GradScaler.unscale([{:f16, <<2.0::little-float-16>>}], scaler, want: [:norm])
      iex> {grads, GradScaler.norm(report)}
      {[{:f32, <<0.5::little-float-32>>}], 0.5}
  """
  @spec unscale(term, t, keyword) :: {term, Report.t()}
  def unscale(grads, %__MODULE__{} = scaler, options \\ []) do
    unscale_by(&Binaries.unscale/4, grads, scaler, options)
  end

  @doc """
  `unscale/3` with each gradient clamped to -limit..limit, in the same pass: what
  torch.nn.utils.clip_grad_value_ does. Takes its options.

  The report is of the gradients before they are clamped, so that an overflow is not hidden. With
  the largest number of a narrow type as limit this is a cast that saturates:

      iex> one = GradScaler.new("none")
      iex> {fp8, report} = GradScaler.clip_value({:f32, <<1000.0::little-float-32>>}, one, 448, type: :f8_e4m3fn)
      iex> {fp8, GradScaler.has_overflow?(report)}
      {{:f8_e4m3fn, <<0x7E>>}, false}
  """
  @spec clip_value(term, t, number, keyword) :: {term, Report.t()}
  def clip_value(grads, %__MODULE__{} = scaler, limit, options \\ []) do
    unscale_by(&Binaries.clip_value(&1, limit, &2, &3, &4), grads, scaler, options)
  end

  defp unscale_by(operation, grads, scaler, options) do
    options = options(options, type: nil, want: [], factor: nil)
    {leaves, _paths} = leaves(grads, &refuse_traced/1)
    dtypes = result_dtypes(leaves, options[:type])

    {results, report} =
      operation.(factor_option(options, scaler), leaves, dtypes, wanted(options, scaler))

    {rebuild(grads, results, & &1), report}
  end

  @doc """
  Adds gradients of a micro-batch, divided by the scale, to `sums`, a tree like that of the
  gradients. Returns the new sums, in their own types, and a report on what was to be added.

  Where one of the gradients is Inf or NaN, nothing is added, and the sums are what they were: the
  good micro-batches still count. Takes `:want` and `:factor` as `unscale/3`.

      iex> scaler = GradScaler.new("static", init_scale: 4.0)
      iex> sums = {:f32, <<1.0::little-float-32>>}
      iex> {sums, _report} = GradScaler.accumulate(sums, {:f16, <<2.0::little-float-16>>}, scaler)
      iex> {sums, report} = GradScaler.accumulate(sums, {:f16, <<0x7C00::little-16>>}, scaler)
      iex> {sums, GradScaler.has_overflow?(report)}
      {{:f32, <<1.5::little-float-32>>}, true}
  """
  @spec accumulate(term, term, t, keyword) :: {term, Report.t()}
  def accumulate(sums, grads, %__MODULE__{} = scaler, options \\ []) do
    options = options(options, want: [], factor: nil)
    {leaves, paths} = leaves(grads, &refuse_traced/1)
    {sum_leaves, sum_paths} = leaves(sums, &refuse_traced/1)

    if paths != sum_paths do
      raise ArgumentError, "sums is a tree of another shape than that of the gradients"
    end

    {results, report} =
      Binaries.accumulate(
        factor_option(options, scaler),
        leaves,
        sum_leaves,
        wanted(options, scaler)
      )

    {rebuild(sums, results, & &1), report}
  end

  @doc "What `unscale(grads, scaler, type: :same)` would report, without the gradients."
  @spec check(term, t, keyword) :: Report.t()
  def check(grads, %__MODULE__{} = scaler, options \\ []) do
    options = options(options, want: [], factor: nil)
    {leaves, _paths} = leaves(grads, &refuse_traced/1)
    Binaries.check(factor_option(options, scaler), leaves, wanted(options, scaler))
  end

  @doc """
  Whether a report, or a tree as it is, holds an element that is Inf or NaN.

      iex> GradScaler.has_overflow?(%{w: {:bf16, <<0x7F80::little-16>>}})
      true
  """
  @spec has_overflow?(Report.t() | term) :: boolean
  def has_overflow?(%Report{overflow: overflow}), do: overflow != 0

  def has_overflow?(tree) do
    {leaves, _paths} = leaves(tree, &refuse_traced/1)
    has_overflow?(Binaries.check(nil, leaves, []))
  end

  @doc """
  Where in a tree of gradients the overflows are: the paths of their leaves, as lists of keys and
  indices. To be asked after an overflow: it is a call per leaf.
  """
  @spec overflows(term, t, keyword) :: [[term]]
  def overflows(grads, %__MODULE__{} = scaler, options \\ []) do
    factor = factor_option(options(options, factor: nil), scaler)
    {leaves, paths} = leaves(grads, &refuse_traced/1)

    for {leaf, path} <- Enum.zip(leaves, paths),
        has_overflow?(Binaries.check(factor, [leaf], [])) do
      Enum.reverse(path)
    end
  end

  @doc """
  The first overflow of a report: index of the float leaf, in the order of the walk, and of the
  element in it; nil without one.

      iex> grads = [{:f32, <<0::32>>}, {:f16, <<0::16, 0x7C00::little-16>>}]
      iex> {_grads, report} = GradScaler.unscale(grads, GradScaler.new())
      iex> GradScaler.first_overflow(report)
      {1, 1}
  """
  @spec first_overflow(Report.t()) :: {non_neg_integer, non_neg_integer} | nil
  def first_overflow(%Report{first_bad: 0}), do: nil

  # GSC_BAD_TENSOR and GSC_BAD_ELEMENT of the header, which are C macros.
  def first_overflow(%Report{first_bad: first_bad}) do
    <<_sign::1, tensor::23, element::40>> = <<first_bad::64>>
    {tensor, element}
  end

  @doc """
  The scaler after a step. Takes the report of `unscale/3` or `check/3`, several of them (of
  micro-batches, or of optimizers that share this scale: they count as one step), or whether there
  was an overflow.

      iex> GradScaler.new("torch") |> GradScaler.update(true) |> GradScaler.loss_scale()
      32768.0
  """
  @spec update(t, Report.t() | [Report.t()] | boolean) :: t
  def update(%__MODULE__{} = scaler, overflow) when is_boolean(overflow) do
    bit = if overflow, do: 1, else: 0
    # What a policy judges by is absent from a mere flag: the library refuses where it is needed.
    absent = Keyword.keys(Constants.all(:want))
    update(scaler, %Report{found_inf: bit * 1.0, overflow: bit, absent: absent})
  end

  def update(%__MODULE__{} = scaler, %Report{} = report) do
    {:ok, state} =
      Binaries.check!(Native.update(scaler.policy, scaler.state, Report.encode(report)))

    %{scaler | state: state}
  end

  def update(%__MODULE__{} = scaler, [_ | _] = reports), do: update(scaler, merge(reports))

  def update(%__MODULE__{}, other) do
    raise ArgumentError,
          "report is #{inspect(other)}: expected a GradScaler.Report, several, or a boolean"
  end

  @doc "One report of several."
  @spec merge([Report.t()]) :: Report.t()
  def merge(reports) do
    Enum.reduce(reports, fn
      %Report{} = report, %Report{} = merged ->
        {:ok, merged} =
          Binaries.check!(Native.merge(Report.encode(merged), Report.encode(report)))

        Report.decode(merged)

      report, _merged ->
        raise ArgumentError, "reports holds #{inspect(report)}, which is no GradScaler.Report"
    end)
  end

  @doc "The global norm of the gradients, of a report with `want: [:norm]`."
  @spec norm(Report.t()) :: float | :infinity
  def norm(%Report{absent: absent, sum_squares: sum}) do
    if :norm in absent, do: raise(ArgumentError, "the report has no norm: pass want: [:norm]")
    if is_float(sum), do: :math.sqrt(sum), else: sum
  end

  @doc """
  The factor that unscales and clips to a global norm in one pass: `check/3` with `want: [:norm]`,
  this, then `unscale/3` with it as `:factor`. The coefficient is that of
  torch.nn.utils.clip_grad_norm_.
  """
  @spec clip_factor(Report.t(), t, number) :: factor
  def clip_factor(%Report{} = report, %__MODULE__{state: state}, max_norm) do
    factor = factor_binary(state)
    {:ok, factor} = Binaries.check!(Native.clip_factor(Report.encode(report), factor, max_norm))
    Factor.decode(factor)
  end

  @doc "The scaler with another scale in force at once; the counts start anew."
  @spec set_scale(t, number) :: t
  def set_scale(%__MODULE__{} = scaler, scale) do
    {:ok, state} = Binaries.check!(Native.set_scale(scaler.policy, scaler.state, scale))
    %{scaler | state: state}
  end

  # ---- types ----

  @doc """
  All floats of a tree as another type, rounded to nearest even. Traced tensors get a plain
  `Nx.as_type`.

      iex> GradScaler.cast_params({:f32, <<1.0009765625::little-float-32>>}, :bf16)
      {:bf16, <<0x3F80::little-16>>}
  """
  def cast_params(params, type) do
    dtype = Leaf.dtype_of_type(type)
    convert = &if(Leaf.dtype(&1), do: Nx.as_type(&1, Leaf.type(dtype)), else: &1)
    {leaves, _paths} = leaves(params, & &1)
    rebuild(params, Binaries.scale(one(), leaves, for(_ <- leaves, do: dtype)), convert)
  end

  @doc "`cast_params/2` under the name for the way back: gradients to the type they are summed in."
  def accumulate_grad(grads, type \\ :f32), do: cast_params(grads, type)

  # ---- to and from a checkpoint ----

  @doc """
  Rules and state as bytes that any later version, on any machine and in any language, reads.

      iex> scaler = GradScaler.new("torch") |> GradScaler.update(true)
      iex> scaler |> GradScaler.save() |> GradScaler.load() == scaler
      true
  """
  @spec save(t) :: binary
  def save(%__MODULE__{policy: policy, state: state}) do
    {:ok, bytes} = Binaries.check!(Native.state_save(policy, state))
    bytes
  end

  @doc "The scaler of `save/1`; bytes that are damaged or something else raise `ArgumentError`."
  @spec load(binary) :: t
  def load(bytes) do
    {:ok, policy, state} = Binaries.check!(Native.state_load(bytes))
    build(policy, state)
  end

  # ---- trees ----

  # {dtype, binary} and path of every float leaf; `traced` sees those of a graph, which have neither.
  defp leaves(tree, traced) do
    {_tree, {leaves, paths}} =
      Tree.map_reduce(tree, {[], []}, fn leaf, path, {leaves, paths} ->
        case {Leaf.traced?(leaf), Leaf.dtype(leaf)} do
          {_, {:error, text}} -> raise ArgumentError, "#{Tree.where(path, "the tensor")} #{text}"
          {true, _} -> {traced.(leaf), {leaves, paths}}
          {false, nil} -> {leaf, {leaves, paths}}
          {false, dtype} -> {leaf, {[{dtype, Leaf.binary(leaf)} | leaves], [path | paths]}}
        end
      end)

    {Enum.reverse(leaves), Enum.reverse(paths)}
  end

  # The tree with results, in the order of leaves/2, at its float leaves.
  defp rebuild(tree, results, traced) do
    {tree, []} =
      Tree.map_reduce(tree, results, fn leaf, _path, results ->
        case {Leaf.traced?(leaf), Leaf.dtype(leaf), results} do
          {true, _, _} -> {traced.(leaf), results}
          {false, nil, _} -> {leaf, results}
          {false, _, [{dtype, binary} | rest]} -> {Leaf.put(leaf, dtype, binary), rest}
        end
      end)

    tree
  end

  defp refuse_traced(_leaf) do
    raise ArgumentError, "the tensors are traced: inside defn, jit and grad use GradScaler.Defn"
  end

  # ---- options ----

  defp options(options, known), do: Keyword.validate!(options, known)

  defp factor_option(options, scaler) do
    case options[:factor] do
      nil -> factor_binary(scaler.state)
      %Factor{} = factor -> Factor.encode(factor)
      other -> raise ArgumentError, "factor is #{inspect(other)}, not a GradScaler.Factor"
    end
  end

  defp result_dtypes(leaves, nil), do: for({dtype, _} <- leaves, do: wide(dtype))
  defp result_dtypes(leaves, :same), do: for({dtype, _} <- leaves, do: dtype)

  defp result_dtypes(leaves, type) do
    dtype = Leaf.dtype_of_type(type)
    for _ <- leaves, do: dtype
  end

  defp wide(dtype) when dtype in [:f64, :complex64, :complex128], do: dtype
  defp wide(_narrow_or_single), do: :f32

  defp wanted(options, scaler), do: scaler.judges ++ List.wrap(options[:want])

  defp one, do: Factor.encode(%Factor{scale: 1.0, inverse: 1.0, scale_f32: 1.0, inverse_f32: 1.0})

  defimpl Inspect do
    def inspect(scaler, _options) do
      state = GradScaler.state(scaler)

      "#GradScaler<scale #{Kernel.inspect(state.factor.scale)}, #{state.good} good steps, " <>
        "#{state.skipped} skipped, #{state.growths} growths, #{state.backoffs} backoffs>"
    end
  end
end
