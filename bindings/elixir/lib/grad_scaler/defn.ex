defmodule GradScaler.Defn do
  @moduledoc """
  Loss scaling for code that Nx traces: inside `defn`, `Nx.Defn.jit` and `while`, and beside `grad`.

  Nx operations check, divide and clip the gradients, on any backend. `update/4` calls the library while
  the program runs, by `Nx.runtime_call/4` of Nx 0.12, which `Nx.Defn.Evaluator` and EXLA (on the host and
  on CUDA) have. So every preset works, and each update is bit-exact with `GradScaler.update/2`. No gradient
  flows through it.

  The state is a map of tensors, so `defn` and all backends accept it. The rules come from a `GradScaler`
  and are constants of the traced program. `to_scaler/2` returns the state as a `GradScaler`. The scale
  needs float64.

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

  Vectorized gradients have one overflow, one norm and one scale for all lanes.

  ## Rules with a guard

  The guard judges the norm in `update/4`, so update before the step:

      {grads, overflow} = GradScaler.Defn.unscale(grads, state, scaler)
      state = GradScaler.Defn.update(state, overflow, scaler, GradScaler.Defn.norm(grads))
      new = sgd(params, GradScaler.Defn.guard(grads, state))
      params = GradScaler.Defn.skip(new, params, GradScaler.Defn.skipped(state))

  A compiled loop does not stop by the flag `:stop`: it goes on to skip or clip outliers. Stop the training
  when `state.guard_in_a_row` reaches the policy's `guard_max_in_a_row`.

  ## A loss that is not finite

  If the rules hold the scale at such a loss, as "recommended" and "guard" do, give `update/5` the loss before
  it is scaled, and update before the step:

      {grads, overflow} = GradScaler.Defn.unscale(grads, state, scaler)
      state = GradScaler.Defn.update(state, overflow, scaler, nil, loss: loss)
      params = GradScaler.Defn.skip(sgd(params, grads), params, GradScaler.Defn.skipped(state))

  Stop the training when `state.bad_losses_in_a_row` reaches the policy's `max_failed_backoffs`.
  """
  use GradScaler.Transform
  alias GradScaler.{Binaries, Constants, Error, Factor, Fields, Leaf, Native, Report, State}
  alias GradScaler.{TensorOptions, Tree}

  @max_float 3.4028234663852886e38
  @numbers ~w(scale next guard_mean guard_variance guard_multiplier guard_threshold guard_value)a
  @counts ~w(good_steps steps_since_change overflows_since_reset bad_losses_in_a_row guard_count
             guard_in_a_row total_guard_skips)a
  @types Enum.map(@numbers, &{&1, {:f, 64}}) ++ Enum.map(@counts, &{&1, {:s, 64}})
  @size byte_size(State.encode(%State{}))

  @typedoc """
  The state of a scaler: `scale`, the scale in force, `next`, the newest scale, and fields of
  `GradScaler.State` as scalar tensors, to read or replace. `bytes` has the whole state.
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

  @doc "Returns the state of a scaler as tensors. Call it outside of `defn`."
  @spec init(GradScaler.t()) :: state
  def init(%GradScaler{} = scaler), do: tensors(GradScaler.state_bytes(scaler), [])

  @doc """
  Returns a scaler with the rules of `scaler` and the scale and counts of `state`, to save it or to
  continue with `GradScaler.update/2`. Call it outside of `defn`.
  """
  @spec to_scaler(state, GradScaler.t()) :: GradScaler.t()
  def to_scaler(state, %GradScaler{} = scaler) do
    scaler = %{scaler | state: bytes(known!(state))}
    _checked = GradScaler.save(scaler)
    scaler
  end

  @doc """
  Returns the loss, or gradients, times the scale. Numbers, narrow types and integers become float32,
  because a scaled loss easily overflows float16.
  """
  @spec scale_loss(GradScaler.tree() | number, state) :: GradScaler.tree()
  deftransform scale_loss(loss, %{scale: scale}) do
    if is_number(loss),
      do: multiply(Nx.tensor(loss), scale),
      else: map(loss, &multiply(&1, scale), &multiply(&1, scale))
  end

  @doc """
  Returns `{gradients divided by the scale, overflow}`. Half types become float32. `overflow` is a scalar:
  1 if a gradient is Inf or NaN; also if the norm is too large, if `scaler` has `overflow_test: :norm`.
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
  Returns `{sums plus gradients divided by the scale, overflow}`. If there is an overflow, as in
  `unscale/3`, the sums do not change.
  """
  @spec unscale_accumulate(GradScaler.tree(), GradScaler.tree(), state, GradScaler.t() | nil) ::
          {GradScaler.tree(), term}
  deftransform unscale_accumulate(sums, grads, state, scaler \\ nil) do
    {grads, overflow} = unscale(grads, state, scaler)
    added = zip(sums, grads, {"sums", "grads"}, &Nx.as_type(Nx.add(&1, &2), &1.type))
    {skip(added, sums, overflow), overflow}
  end

  @doc "Returns a scalar: 1 if a float of the tree is Inf or NaN, else 0."
  @spec overflow(GradScaler.tree()) :: term
  deftransform overflow(tree) do
    reduce(tree, Nx.tensor(0, type: {:u, 8}), &Nx.logical_or(&2, Nx.any(not_finite(&1))))
  end

  @doc "Returns the global norm of a tree's floats as a float64 scalar; NaN or Inf if a float is."
  @spec norm(GradScaler.tree()) :: term
  deftransform norm(tree) do
    Nx.sqrt(sum_squares(tree))
  end

  @doc "Clips gradients to a global norm, as torch.nn.utils.clip_grad_norm_: times min(1, max_norm / (norm + 1e-6))."
  @spec clip(GradScaler.tree(), number) :: GradScaler.tree()
  deftransform clip(grads, max_norm) do
    coefficient = Nx.min(f64(1.0), Nx.divide(double(max_norm), Nx.add(norm(grads), f64(1.0e-6))))
    times(grads, coefficient)
  end

  @doc "Returns `old` if the step overflowed, else `new`: trees with the same leaves and shapes."
  @spec skip(GradScaler.tree(), GradScaler.tree(), term) :: GradScaler.tree()
  deftransform skip(new, old, overflow) do
    overflow = any_overflow(overflow)
    zip(new, old, {"new", "old"}, &Nx.select(overflow, &2, &1))
  end

  @doc """
  Returns the state after a step, by the rules of `scaler`. `overflow` is a boolean or a tensor; if any
  element is not 0, the step overflowed.

  If the rules have a guard, `number` is the norm of the unscaled gradients before clipping, or another
  number to judge, such as the loss.

    * `:loss` - the loss before it was scaled: a number, a tensor of any shape, or a tree of them. A `number`
      beside it must be a norm
  """
  @spec update(state, term, GradScaler.t(), term, keyword) :: state
  deftransform update(
                 state,
                 overflow,
                 %GradScaler{policy: policy} = scaler,
                 number \\ nil,
                 options \\ []
               ) do
    options = Keyword.validate!(options, loss: nil)

    unless Code.ensure_loaded?(Nx) and function_exported?(Nx, :runtime_call, 4) do
      raise ArgumentError,
            "GradScaler.Defn.update needs Nx.runtime_call/4 of Nx 0.12 or newer; this is Nx " <>
              "#{Application.spec(:nx, :vsn)}"
    end

    if number == nil and :guards in GradScaler.traits(scaler) do
      raise ArgumentError,
            "the policy guards, and needs the norm: update(state, overflow, scaler, norm(grads))"
    end

    number = double(Fields.judged(number || 0))

    unless number.shape == {} and number.vectorized_axes == [] do
      raise ArgumentError, "a tensor of the shape #{dimensions(number)} is no number to judge"
    end

    read = {known!(state), any_overflow(overflow), number, judged(options[:loss])}
    Nx.runtime_call(templates(), read, [policy: policy], &__MODULE__.step/2)
  end

  # Returns a number of the constants for a loss.
  defp judged(nil), do: loss_constant(:unknown)
  defp judged(number) when is_number(number) or is_atom(number), do: judged(f64(number))

  defp judged(loss),
    do: Nx.select(overflow(loss), loss_constant(:not_finite), loss_constant(:finite))

  defp loss_constant(name), do: Nx.tensor(Constants.number(:loss, name, "loss"), type: {:u, 8})

  @doc "Returns 1 if the last update says to skip the step: an overflow, a bad loss or an outlier; else 0."
  @spec skipped(state) :: term
  deftransform skipped(%{guard_multiplier: multiplier}) do
    Nx.equal(multiplier, f64(0.0))
  end

  @doc "Multiplies gradients by the guard's multiplier of the last update: 1 if the guard does not clip."
  @spec guard(GradScaler.tree(), state) :: GradScaler.tree()
  deftransform guard(grads, %{guard_multiplier: multiplier}) do
    times(grads, multiplier)
  end

  # ---- the state ----

  @doc false
  # Called while the program runs. The calling process can hold the device, so all tensors here are binaries.
  def step({state, overflow, number, loss}, policy: policy) do
    loss = Constants.name(:loss, Nx.to_number(loss))
    report = report(Nx.to_number(overflow) != 0, Nx.to_number(number), loss)
    bytes = Error.ok!(Native.state_update(nil, policy, bytes(state), report))
    tensors(bytes, backend: Nx.BinaryBackend)
  end

  defp report(true, _number, :unknown), do: Error.ok!(Native.report_from_flag(1))
  defp report(false, number, :unknown), do: Error.ok!(Native.report_from_number(number))

  # A report of a flag or of a number cannot have a loss; a merged report and a report of tensors can.
  defp report(true, _number, loss),
    do: Report.encode(%Report{kind: :merged, has_flag: true, overflow: true, loss: loss})

  defp report(false, number, _loss) when is_number(number) and number < 0 do
    raise ArgumentError,
          "number is #{number}: beside a loss it must be a norm, which is not negative"
  end

  defp report(false, number, loss) do
    number = {:f64, Fields.f64(number, "number")}
    report = Binaries.measure(nil, [number], %TensorOptions{want: [:norm]})
    Report.encode(%{report | loss: loss})
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

  # Returns a state as bytes. The scalar tensors replace the numbers in `bytes`, because code can have set them.
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
      {name, Map.get(state, name) || refuse_without(name, state)}
    end
  end

  # A state of a version before 0.10 has its own error, if its bytes are there while the program is made.
  defp refuse_without(name, state) do
    if is_map_key(state, :bytes) and not Leaf.traced?(state.bytes),
      do: State.decode(Nx.to_binary(state.bytes))

    raise ArgumentError, "the state has no #{inspect(name)}: make it with init(scaler)"
  end

  # ---- numbers ----

  # A plain number would become a float32 constant.
  defp f64(x), do: Nx.tensor(x, type: {:f, 64})
  defp double(x) when is_number(x) or is_atom(x), do: f64(x)
  defp double(x), do: Nx.as_type(x, {:f, 64})

  defp any_overflow(overflow) when is_boolean(overflow),
    do: any_overflow(if overflow, do: 1, else: 0)

  defp any_overflow(overflow), do: Nx.any(Nx.devectorize(overflow))

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

  # Replaces floats by one function, integers by another.
  defp map(tree, float, integer \\ & &1) do
    {tree, nil} =
      Tree.map_reduce(tree, nil, fn leaf, path, nil ->
        {if(float?(leaf, path), do: float.(leaf), else: integer.(leaf)), nil}
      end)

    tree
  end

  # Folds over floats, with the lanes as an ordinary axis.
  defp reduce(tree, acc, fun) do
    Tree.reduce(tree, acc, fn leaf, path, acc ->
      if float?(leaf, path), do: fun.(Nx.devectorize(leaf), acc), else: acc
    end)
  end

  # Combines the leaves of two trees with the same paths and shapes.
  defp zip(tree, other, {name, other_name}, fun) do
    others = Tree.reduce(other, %{}, fn leaf, path, acc -> Map.put(acc, path, leaf) end)

    {tree, unmatched} =
      Tree.map_reduce(tree, others, fn leaf, path, others ->
        {other_leaf, others} = Map.pop(others, path)
        other_leaf || refuse_missing(path, name, other_name)
        [shape, other_shape] = Enum.map([leaf, other_leaf], &dimensions/1)

        if shape != other_shape do
          raise ArgumentError,
                "#{Tree.where(path, "the tensor")} has the shape #{shape} in #{name}, #{other_shape} in #{other_name}"
        end

        {fun.(leaf, other_leaf), others}
      end)

    for {path, _leaf} <- unmatched, do: refuse_missing(path, other_name, name)
    tree
  end

  defp refuse_missing(path, name, other_name) do
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
