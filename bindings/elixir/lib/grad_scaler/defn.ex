defmodule GradScaler.Defn do
  @moduledoc """
  The step for code that Nx traces: inside `defn`, `Nx.Defn.jit` and `while`, and beside `grad`.

  Gradients are checked, divided and clipped by Nx operations, wherever they are. `update/4` calls the
  library while the program runs, by `Nx.runtime_call/4` of Nx 0.12, which `Nx.Defn.Evaluator` and EXLA
  (on the host and on CUDA) have. So every preset works, each update has the bits of
  `GradScaler.update/2`, and no gradient flows through it.

  The state is a map of tensors, so it passes through `defn` and onto any backend; the rules are those
  of a `GradScaler`, and are fixed while tracing. `to_scaler/2` makes a `GradScaler` of a state again.
  The scale needs float64.

      defmodule Train do
        import Nx.Defn

        defn step(params, state, x, y, opts \\\\ []) do
          grads =
            grad(params, fn params ->
              GradScaler.Defn.scale_loss(loss(params, x, y), state)
            end)

          {grads, overflow} = GradScaler.Defn.unscale(grads, state, opts[:scaler])
          grads = GradScaler.Defn.clip(grads, 1.0)
          params = GradScaler.Defn.skip(sgd(params, grads), params, overflow)
          {params, GradScaler.Defn.update(state, overflow, opts[:scaler])}
        end
      end

      scaler = GradScaler.new("torch")
      state = GradScaler.Defn.init(scaler)
      step = Nx.Defn.jit(&Train.step(&1, &2, &3, &4, scaler: scaler))
      {params, state} = step.(params, state, x, y)

  With vectorized gradients all lanes have one verdict, one norm and one scale.

  ## Rules that guard

  They judge the norm in `update/4`, so update first:

      {grads, overflow} = GradScaler.Defn.unscale(grads, state, scaler)
      state = GradScaler.Defn.update(state, overflow, scaler, GradScaler.Defn.norm(grads))
      new = sgd(params, GradScaler.Defn.guard(grads, state))
      params = GradScaler.Defn.skip(new, params, GradScaler.Defn.skipped(state))

  The flag `:stop` ends nothing inside a compiled loop: outliers are skipped or clipped on. End the
  training where `state.guard_in_a_row` reaches the policy's `guard_max_in_a_row`.
  """
  use GradScaler.Transform
  alias GradScaler.{Error, Factor, Leaf, Native, State, Tree}

  @max_float 3.4028234663852886e38
  @numbers ~w(scale next guard_mean guard_variance guard_multiplier guard_threshold guard_value)a
  @counts ~w(good_steps steps_since_change overflows_since_reset guard_count guard_in_a_row
             total_guard_skips)a
  @types Enum.map(@numbers, &{&1, {:f, 64}}) ++ Enum.map(@counts, &{&1, {:s, 64}})
  @size byte_size(State.encode(%State{}))

  @typedoc """
  The state of a scaler: the scale in force, `next`, the newest one, and fields of `GradScaler.State` as
  scalar tensors that code reads and sets, and `bytes`, the library's struct with all that is left.
  """
  @type state :: %{
          required(:scale) => term,
          required(:next) => term,
          required(:good_steps) => term,
          required(:steps_since_change) => term,
          required(:overflows_since_reset) => term,
          required(:bytes) => term,
          required(atom) => term
        }

  # ---- the step ----

  @doc "The state of a scaler as tensors. Call it outside of `defn`."
  @spec init(GradScaler.t()) :: state
  def init(%GradScaler{state: bytes}), do: tensors(bytes, [])

  @doc """
  The way back: a scaler with the rules of `scaler` and everything else of a state, to be saved, or to
  go on with `GradScaler.update/2`. Call it outside of `defn`.
  """
  @spec to_scaler(state, GradScaler.t()) :: GradScaler.t()
  def to_scaler(state, %GradScaler{} = scaler) do
    scaler = %{scaler | state: bytes(known!(state))}
    _checked = GradScaler.save(scaler)
    scaler
  end

  @doc """
  Loss, or gradients, times the scale. Numbers, narrow types and integers become float32: a scaled loss
  leaves the range of float16 easily.
  """
  @spec scale_loss(GradScaler.tree() | number, state) :: GradScaler.tree()
  deftransform scale_loss(loss, %{scale: scale}) do
    if is_number(loss),
      do: multiply(Nx.tensor(loss), scale),
      else: map(loss, &multiply(&1, scale), &multiply(&1, scale))
  end

  @doc """
  `{gradients divided by the scale, overflow}`: half types become float32, and `overflow` is a
  scalar, 1 where a gradient is Inf or NaN, or where the norm is too large for the rules of `scaler`,
  if it is given and its rules look at that.
  """
  @spec unscale(GradScaler.tree(), state, GradScaler.t() | nil) :: {GradScaler.tree(), term}
  deftransform unscale(grads, %{scale: scale}, scaler \\ nil) do
    inverse = Nx.divide(f64(1.0), scale)
    unscaled = map(grads, &multiply(&1, inverse))

    if scaler && GradScaler.policy(scaler).overflow_test == :norm do
      {unscaled,
       Nx.logical_or(overflow(unscaled), Nx.greater(sum_squares(unscaled), f64(@max_float)))}
    else
      {unscaled, overflow(unscaled)}
    end
  end

  @doc """
  `{sums plus gradients divided by the scale, overflow}`; where one of the gradients is Inf or NaN, or
  their norm is too large for the rules of `scaler`, the sums stay as they were.
  """
  @spec unscale_accumulate(GradScaler.tree(), GradScaler.tree(), state, GradScaler.t() | nil) ::
          {GradScaler.tree(), term}
  deftransform unscale_accumulate(sums, grads, state, scaler \\ nil) do
    {grads, overflow} = unscale(grads, state, scaler)
    added = zip(sums, grads, {"sums", "grads"}, &Nx.as_type(Nx.add(&1, &2), &1.type))
    {skip(added, sums, overflow), overflow}
  end

  @doc "1 where a float of the tree is Inf or NaN, else 0, as a scalar."
  @spec overflow(GradScaler.tree()) :: term
  deftransform overflow(tree) do
    reduce(tree, Nx.tensor(0, type: {:u, 8}), &Nx.logical_or(&2, Nx.any(not_finite(&1))))
  end

  @doc "The global norm of a tree's floats, a float64 scalar; NaN where one is, so clip where nothing overflowed."
  @spec norm(GradScaler.tree()) :: term
  deftransform norm(tree) do
    Nx.sqrt(sum_squares(tree))
  end

  @doc "The largest finite magnitude of a tree's floats, a float64 scalar, which predictive rules judge."
  @spec amax(GradScaler.tree()) :: term
  deftransform amax(tree) do
    reduce(tree, f64(0.0), fn leaf, most ->
      finite = Nx.select(not_finite(leaf), f64(0.0), Nx.abs(double(leaf)))
      Nx.max(most, Nx.reduce_max(finite))
    end)
  end

  @doc "Gradients times min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ has it."
  @spec clip(GradScaler.tree(), number) :: GradScaler.tree()
  deftransform clip(grads, max_norm) do
    coefficient = Nx.min(f64(1.0), Nx.divide(double(max_norm), Nx.add(norm(grads), f64(1.0e-6))))
    times(grads, coefficient)
  end

  @doc "`old` if the step overflowed, else `new`: trees with the same leaves, of the same shapes."
  @spec skip(GradScaler.tree(), GradScaler.tree(), term) :: GradScaler.tree()
  deftransform skip(new, old, overflow) do
    overflow = verdict(overflow)
    zip(new, old, {"new", "old"}, &Nx.select(overflow, &2, &1))
  end

  @doc """
  The state after a step. `overflow` is a tensor or a boolean; of several elements one says it for all.
  `scaler` gives the rules.

  Rules that guard take the norm of the gradients, unscaled and not clipped, or any other number that
  they are to judge, such as the loss; predictive rules (`target_amax`) take `amax/1`.
  """
  @spec update(state, term, GradScaler.t(), term) :: state
  deftransform update(state, overflow, %GradScaler{policy: policy} = scaler, number \\ nil) do
    traits = GradScaler.traits(scaler)

    unless Code.ensure_loaded?(Nx) and function_exported?(Nx, :runtime_call, 4) do
      raise ArgumentError,
            "GradScaler.Defn.update needs Nx.runtime_call/4 of Nx 0.12 or newer; this is Nx " <>
              "#{Application.spec(:nx, :vsn)}"
    end

    case {:guards in traits, :needs_amax in traits} do
      {true, true} ->
        raise ArgumentError,
              "the policy guards and predicts: it judges a norm and an amax, and a traced update takes one number"

      {true, false} when number == nil ->
        raise ArgumentError,
              "the policy guards, and needs the norm: update(state, overflow, scaler, norm(grads))"

      {false, true} when number == nil ->
        raise ArgumentError,
              "the policy predicts, and needs amax: update(state, overflow, scaler, amax(grads))"

      _ ->
        number = double(number || 0)
        read = {known!(state), verdict(overflow), number}
        unless number.shape == {} and number.vectorized_axes == [], do: refuse(number)
        Nx.runtime_call(templates(), read, [policy: policy], &__MODULE__.step/2)
    end
  end

  defp refuse(number) do
    raise ArgumentError, "a tensor of the shape #{dimensions(number)} is no number to judge"
  end

  @doc "1 where the step of the last update is skipped, because of an overflow or an outlier, else 0."
  @spec skipped(state) :: term
  deftransform skipped(%{guard_multiplier: multiplier}) do
    Nx.equal(multiplier, f64(0.0))
  end

  @doc "Multiplies gradients by the factor of the guard's clip in the last update: 1 if it does not clip."
  @spec guard(GradScaler.tree(), state) :: GradScaler.tree()
  deftransform guard(grads, %{guard_multiplier: multiplier}) do
    times(grads, multiplier)
  end

  # ---- the state ----

  @doc false
  # Called while the program runs, maybe by a process that holds the device: all tensors it makes are binaries.
  def step({state, overflow, number}, policy: policy) do
    report =
      if Nx.to_number(overflow) != 0,
        do: Native.report_from_flag(1),
        else: Native.report_from_number(Nx.to_number(number))

    bytes = Error.ok!(Native.state_update(nil, policy, bytes(state), Error.ok!(report)))
    tensors(bytes, backend: Nx.BinaryBackend)
  end

  defp tensors(bytes, options) do
    %{factor: %{scale: scale}, next: %{scale: next}} = state = State.decode(bytes)
    numbers = %{state | next: next} |> Map.from_struct() |> Map.put(:scale, scale)

    for {name, type} <- @types, into: %{bytes: Nx.from_binary(bytes, {:u, 8}, options)} do
      {name, Nx.tensor(numbers[name], [type: type] ++ options)}
    end
  end

  defp templates do
    for {name, type} <- @types, into: %{bytes: Nx.template({@size}, {:u, 8})} do
      {name, Nx.template({}, type)}
    end
  end

  # A number that code has set holds, whatever the bytes say.
  defp bytes(tensors) do
    state = State.decode(Nx.to_binary(tensors.bytes))
    numbers = for {name, _type} <- @types, do: {name, Nx.to_number(tensors[name])}
    {[scale: scale, next: next], numbers} = Keyword.split(numbers, [:scale, :next])
    factors = [factor: of_scale(state.factor, scale), next: of_scale(state.next, next)]
    State.encode(struct!(state, factors ++ numbers))
  end

  defp of_scale(%{scale: scale} = factor, scale), do: factor

  defp of_scale(factor, scale) do
    made = Factor.decode(Error.ok!(Native.factor_init(scale)))
    %{made | generation: factor.generation}
  end

  defp known!(state) do
    for name <- [:bytes | Keyword.keys(@types)], into: %{} do
      {name,
       Map.get(state, name) ||
         raise(ArgumentError, "the state has no #{inspect(name)}: make it with init(scaler)")}
    end
  end

  # ---- numbers ----

  # A bare number would be a float32 constant.
  defp f64(x), do: Nx.tensor(x, type: {:f, 64})
  defp double(x) when is_number(x) or is_atom(x), do: f64(x)
  defp double(x), do: Nx.as_type(x, {:f, 64})

  defp verdict(overflow) when is_boolean(overflow), do: verdict(if overflow, do: 1, else: 0)
  defp verdict(overflow), do: Nx.any(Nx.devectorize(overflow))

  defp multiply(%{type: {:f, 64}} = leaf, by), do: Nx.multiply(leaf, by)
  defp multiply(leaf, by), do: Nx.multiply(Nx.as_type(leaf, {:f, 32}), Nx.as_type(by, {:f, 32}))

  defp times(tree, by), do: map(tree, &(&1 |> multiply(by) |> Nx.as_type(&1.type)))

  defp sum_squares(tree) do
    reduce(tree, f64(0.0), fn leaf, sum ->
      wide = double(leaf)
      Nx.add(sum, Nx.sum(Nx.multiply(wide, wide)))
    end)
  end

  defp not_finite(leaf), do: Nx.logical_or(Nx.is_nan(leaf), Nx.is_infinity(leaf))

  # ---- trees ----

  # Floats through one function, integers through another.
  defp map(tree, float, integer \\ & &1) do
    {tree, nil} =
      Tree.map_reduce(tree, nil, fn leaf, path, nil ->
        {if(float?(leaf, path), do: float.(leaf), else: integer.(leaf)), nil}
      end)

    tree
  end

  # The floats of all lanes.
  defp reduce(tree, acc, fun) do
    Tree.reduce(tree, acc, fn leaf, path, acc ->
      if float?(leaf, path), do: fun.(Nx.devectorize(leaf), acc), else: acc
    end)
  end

  # The leaves of two trees that are alike.
  defp zip(tree, other, {name, other_name}, fun) do
    others = Tree.reduce(other, %{}, fn leaf, path, acc -> Map.put(acc, path, leaf) end)

    {tree, rest} =
      Tree.map_reduce(tree, others, fn leaf, path, others ->
        {twin, others} = Map.pop(others, path)
        twin || only(path, name, other_name)
        [shape, other_shape] = Enum.map([leaf, twin], &dimensions/1)

        if shape != other_shape do
          raise ArgumentError,
                "#{Tree.where(path, "the tensor")} has the shape #{shape} in #{name}, #{other_shape} in #{other_name}"
        end

        {fun.(leaf, twin), others}
      end)

    for {path, _leaf} <- rest, do: only(path, other_name, name)
    tree
  end

  defp only(path, name, other_name) do
    raise ArgumentError,
          "#{Tree.where(path, "the tensor")} is in #{name} and not in #{other_name}"
  end

  defp dimensions(%{vectorized_axes: [], shape: shape}), do: inspect(shape)

  defp dimensions(%{vectorized_axes: axes, shape: shape}),
    do: "#{inspect(axes)} #{inspect(shape)}"

  defp float?(leaf, path) do
    case Leaf.dtype(leaf) do
      {:error, text} ->
        raise ArgumentError, "#{Tree.where(path, "the tensor")} #{text}"

      complex when complex in [:complex64, :complex128] ->
        raise ArgumentError, "#{Tree.where(path, "the tensor")} is complex"

      dtype ->
        dtype != nil
    end
  end
end
