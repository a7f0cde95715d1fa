defmodule GradScaler.Defn do
  @moduledoc """
  The step as plain Nx operations, for code that Nx traces: inside `defn`, `Nx.Defn.jit` and grad.

  The state is a map of scalar tensors, so it passes through `defn` and onto any backend; the rules
  are those of a `GradScaler` with a policy that counts (all presets but `openseq2seq_logmax` and
  those that guard), and are fixed while tracing. The scale moves exactly as that of `GradScaler.update/2`; events are not
  kept, and `to_scaler/2` makes a `GradScaler` of it again. float64 is needed for the scale itself.

      defmodule Train do
        import Nx.Defn

        defn step(params, state, x, y, opts \\\\ []) do
          grads =
            grad(params, fn params ->
              GradScaler.Defn.scale_loss(loss(params, x, y), state)
            end)

          {grads, overflow} = GradScaler.Defn.unscale(grads, state, opts[:scaler])
          grads = GradScaler.Defn.clip(grads, 1.0)
          params = GradScaler.Defn.skip(overflow, sgd(params, grads), params)
          {params, GradScaler.Defn.update(state, overflow, opts[:scaler])}
        end
      end

      scaler = GradScaler.new("torch")
      state = GradScaler.Defn.init(scaler)
      step = Nx.Defn.jit(&Train.step(&1, &2, &3, &4, scaler: scaler))
      {params, state} = step.(params, state, x, y)
  """
  alias GradScaler.{Factor, Leaf, Native, Policy, State, Tree}

  @max_float 3.4028234663852886e38
  @max_double 1.7976931348623157e308
  @smallest_normal_float 1.1754943508222875e-38
  @most_steps 0x7FFFFFFFFFFFFFFF

  @typedoc "The state of a scaler as scalar tensors."
  @type state :: %{scale: term, next: term, good: term, steps: term, overflows: term}

  @typedoc "A tree of tensors, as for `GradScaler`."
  @type tree :: term

  # What a defn calls of another module has a name of its own; `deftransform` would make these, but needs Nx to compile.
  for {name, arity} <- [
        scale_loss: 2,
        unscale: 2,
        unscale: 3,
        accumulate: 3,
        overflow: 1,
        norm: 1,
        clip: 2,
        skip: 3,
        update: 3
      ] do
    arguments = Macro.generate_arguments(arity, __MODULE__)
    @doc false
    def unquote(:"__defn:#{name}__")(unquote_splicing(arguments)),
      do: unquote(name)(unquote_splicing(arguments))
  end

  # ---- the step ----

  @doc "The state of a scaler as tensors. Call it outside of `defn`."
  @spec init(GradScaler.t()) :: state
  def init(%GradScaler{} = scaler) do
    _counting = counting(scaler)
    state = GradScaler.state(scaler)
    count = &Nx.tensor(Map.fetch!(state, &1), type: {:s, 64})

    %{
      scale: Nx.tensor(state.factor.scale, type: {:f, 64}),
      next: Nx.tensor(state.next.scale, type: {:f, 64}),
      good: count.(:good),
      steps: count.(:steps),
      overflows: count.(:overflows)
    }
  end

  @doc """
  The way back: a scaler with the rules of `scaler` and the scale and counts of a state, to be saved,
  or to go on with `GradScaler.update/2`. The totals are those of `scaler`. Call it outside of `defn`.
  """
  @spec to_scaler(state, GradScaler.t()) :: GradScaler.t()
  def to_scaler(state, %GradScaler{} = scaler) do
    counts = for name <- [:good, :steps, :overflows], do: {name, Nx.to_number(state[name])}
    [scale, next] = for name <- [:scale, :next], do: Nx.to_number(state[name])
    moved = GradScaler.put_state(scaler, [scale: next] ++ counts)
    if scale == next, do: moved, else: in_force(moved, scale)
  end

  # With apply_delay the scale in force is the one before the newest.
  defp in_force(%GradScaler{} = scaler, scale) do
    {:ok, factor} = Native.factor_init(scale)
    state = GradScaler.state(scaler)
    factor = %{Factor.decode(factor) | serial: state.next.serial}
    next = %{state.next | serial: state.next.serial + 1}
    %{scaler | state: State.encode(%{state | factor: factor, next: next})}
  end

  @doc """
  Loss, or gradients, times the scale. Narrow types and integers become float32: a scaled loss leaves
  the range of float16 easily.
  """
  @spec scale_loss(tree, state) :: tree
  def scale_loss(loss, %{scale: scale}), do: map(loss, &multiply(&1, scale), &multiply(&1, scale))

  @doc """
  `{gradients divided by the scale, overflow}`: half types become float32, and `overflow` is a
  scalar, 1 where a gradient is Inf or NaN, or where the norm is too large for the rules of `scaler`,
  if it is given and its rules look at that.
  """
  @spec unscale(tree, state, GradScaler.t() | nil) :: {tree, term}
  def unscale(grads, %{scale: scale}, scaler \\ nil) do
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
  `{sums plus gradients divided by the scale, overflow}`; where one of the gradients is Inf or NaN,
  the sums stay as they were.
  """
  @spec accumulate(tree, tree, state) :: {tree, term}
  def accumulate(sums, grads, state) do
    {grads, overflow} = unscale(grads, state)
    {skip(overflow, zip(sums, grads, &Nx.as_type(Nx.add(&1, &2), &1.type)), sums), overflow}
  end

  @doc "1 where a float of the tree is Inf or NaN, else 0, as a scalar."
  @spec overflow(tree) :: term
  def overflow(tree) do
    reduce(tree, Nx.tensor(0, type: {:u, 8}), &Nx.logical_or(&2, not_finite(&1)))
  end

  @doc "The global norm of a tree's floats, a float64 scalar; NaN where one is, so clip where nothing overflowed."
  @spec norm(tree) :: term
  def norm(tree), do: Nx.sqrt(sum_squares(tree))

  @doc "Gradients times min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ has it."
  @spec clip(tree, number) :: tree
  def clip(grads, max_norm) do
    coefficient = Nx.min(f64(1.0), Nx.divide(scalar(max_norm), Nx.add(norm(grads), f64(1.0e-6))))
    map(grads, &(&1 |> multiply(coefficient) |> Nx.as_type(&1.type)))
  end

  @doc "`old` where the step overflowed, else `new`: trees of one shape."
  @spec skip(term, tree, tree) :: tree
  def skip(overflow, new, old), do: zip(new, old, &Nx.select(overflow, &2, &1))

  @doc "The state after a step. `overflow` is a scalar tensor; the rules are those of `scaler`."
  @spec update(state, term, GradScaler.t()) :: state
  def update(state, overflow, %GradScaler{} = scaler) do
    policy = counting(scaler)
    counted = %{state | good: Nx.add(state.good, 1), steps: Nx.add(state.steps, 1)}

    moved =
      overflow
      |> choose(overflowed(counted, policy), good(counted, policy))
      |> grow_if_due(policy)
      |> hold(policy)

    in_force = if policy.apply_delay == 1, do: state.next, else: moved.next
    %{moved | scale: in_force}
  end

  # ---- what core/policy.h does to the counts ----

  defp good(state, policy) do
    if :on_good_step in policy.overflow_reset, do: zero(state, [:overflows]), else: state
  end

  defp overflowed(state, policy) do
    counted = zero(%{state | overflows: Nx.add(state.overflows, 1)}, [:good])
    after_one = choose(absorbed(counted, policy), counted, back_off(counted, policy))

    if :overflow_counts in policy.quirks,
      do: %{after_one | good: Nx.add(after_one.good, 1), steps: Nx.add(after_one.steps, 1)},
      else: after_one
  end

  defp absorbed(state, policy) do
    share = Nx.divide(double(state.overflows), double(state.steps))

    tolerated =
      if :tolerate_below in policy.quirks,
        do: Nx.less(share, f64(policy.overflow_tolerance)),
        else: Nx.less_equal(share, f64(policy.overflow_tolerance))

    Nx.logical_or(tolerated, Nx.less(state.overflows, policy.hysteresis))
  end

  defp back_off(state, policy) do
    moved =
      if policy.backoff_factor == 0.0,
        do: Nx.divide(state.next, factor(policy, growth_factor(policy))),
        else: Nx.multiply(state.next, factor(policy, policy.backoff_factor))

    moved = format(moved, policy)
    floor = min_scale(policy)
    bound = limit(policy.floor_rule, state.next, floor, &Nx.min/2)
    reset = if :on_backoff in policy.overflow_reset, do: [:steps, :overflows], else: [:steps]
    zero(%{state | next: Nx.select(Nx.greater(moved, floor), moved, bound)}, reset)
  end

  defp grow_if_due(state, %Policy{growth_interval: 0}), do: state
  defp grow_if_due(state, policy), do: choose(due(state, policy), grow(state, policy), state)

  defp due(state, policy) do
    count = if policy.growth_rule == :steps, do: state.steps, else: state.good
    n = Nx.subtract(count, policy.growth_lag)
    interval = min(policy.growth_interval, @most_steps)

    reached =
      case policy.growth_rule do
        :exact -> Nx.equal(n, interval)
        :every -> Nx.equal(Nx.remainder(n, interval), 0)
        _reached_or_steps -> Nx.greater_equal(n, interval)
      end

    Nx.logical_and(Nx.greater(n, 0), reached)
  end

  defp grow(state, policy) do
    moved = state.next |> product(factor(policy, growth_factor(policy))) |> format(policy)
    bound = limit(policy.ceiling_rule, state.next, max_scale(policy), &Nx.max/2)
    good = if policy.growth_rule == :every, do: [], else: [:good]
    overflows = if :on_growth in policy.overflow_reset, do: [:overflows], else: []
    held = Nx.select(Nx.less(moved, max_scale(policy)), moved, bound)
    zero(%{state | next: held}, [:steps | good ++ overflows])
  end

  # Limits that every update enforces.
  defp hold(state, policy) do
    next = state.next
    next = if policy.ceiling_rule == :always, do: Nx.min(next, max_scale(policy)), else: next
    next = if policy.floor_rule == :always, do: Nx.max(next, min_scale(policy)), else: next
    %{state | next: format(next, policy)}
  end

  defp limit(rule, old, _bound, _farther) when rule in [:keep, :stop], do: old
  defp limit(:hold, old, bound, farther), do: farther.(old, bound)
  defp limit(_rule, _old, bound, _farther), do: bound

  # ---- numbers ----

  # Not a plain product: the binary backend raises where a double overflows.
  defp product(x, factor) do
    most = Nx.divide(f64(@max_double), factor)
    Nx.select(Nx.greater(x, most), f64(:infinity), Nx.multiply(Nx.min(x, most), factor))
  end

  defp format(x, %Policy{arithmetic: :f64}), do: x

  defp format(x, policy) do
    rounded = double(Nx.as_type(x, {:f, 32}))

    if policy.arithmetic == :f32_flush,
      do: Nx.select(Nx.less(rounded, f64(@smallest_normal_float)), f64(0.0), rounded),
      else: rounded
  end

  # A factor as the policy's arithmetic sees it.
  defp factor(%Policy{arithmetic: arithmetic}, y) when arithmetic in [:f32, :f32_flush] do
    <<rounded::float-32>> = <<y::float-32>>
    f64(rounded)
  end

  defp factor(_policy, y), do: f64(y)

  defp growth_factor(policy),
    do: if(policy.growth_factor == 0.0, do: 1.0, else: policy.growth_factor)

  defp max_scale(%Policy{max_scale: none}) when none in [0.0, :infinity], do: f64(:infinity)
  defp max_scale(policy), do: f64(nearest(policy.max_scale, policy, &<=/2, -1))
  defp min_scale(policy), do: f64(nearest(policy.min_scale, policy, &>=/2, 1))

  # The number of the policy's format next to a limit on its own side.
  defp nearest(limit, %Policy{arithmetic: :f64}, _holds, _step), do: limit

  defp nearest(limit, _policy, holds, step) do
    <<near::float-32>> = <<limit::float-32>>
    <<bits::32>> = <<limit::float-32>>
    <<next::float-32>> = <<bits + step::32>>
    if holds.(near, limit), do: near, else: next
  end

  # A bare number would be a float32 constant.
  defp f64(x), do: Nx.tensor(x, type: {:f, 64})
  defp scalar(x) when is_number(x), do: f64(x)
  defp scalar(x), do: double(x)
  defp double(x), do: Nx.as_type(x, {:f, 64})

  # ---- trees and states ----

  defp counting(scaler) do
    policy = GradScaler.policy(scaler)

    if policy.target_amax != 0.0 do
      raise ArgumentError, "policy.target_amax is set: a predictive policy has no traced update"
    end

    if policy.guard_norm != 0.0 or policy.guard_ratio != 0.0 or policy.guard_sigmas != 0.0 do
      raise ArgumentError,
            "the policy guards, which has no traced update: set guard_norm, guard_ratio and " <>
              "guard_sigmas to 0, or update with GradScaler.update/2"
    end

    policy
  end

  defp zero(state, counts),
    do: Enum.reduce(counts, state, &%{&2 | &1 => Nx.tensor(0, type: {:s, 64})})

  defp choose(condition, yes, no),
    do: Map.new(yes, fn {k, v} -> {k, Nx.select(condition, v, no[k])} end)

  defp multiply(%{type: {:f, 64}} = leaf, by), do: Nx.multiply(leaf, by)
  defp multiply(leaf, by), do: Nx.multiply(Nx.as_type(leaf, {:f, 32}), Nx.as_type(by, {:f, 32}))

  defp sum_squares(tree) do
    reduce(tree, f64(0.0), fn leaf, sum ->
      wide = double(leaf)
      Nx.add(sum, Nx.sum(Nx.multiply(wide, wide)))
    end)
  end

  # Floats through one function, integers through another.
  defp map(tree, float, integer \\ & &1),
    do: Tree.map(tree, &if(float?(&1), do: float.(&1), else: integer.(&1)))

  defp reduce(tree, acc, fun),
    do: Tree.reduce(tree, acc, fn x, _path, acc -> if float?(x), do: fun.(x, acc), else: acc end)

  # The leaves of two trees of one shape.
  defp zip(tree, other, fun) do
    leaves = Tree.reduce(other, [], fn leaf, _path, acc -> [leaf | acc] end)

    {tree, []} =
      Tree.map_reduce(tree, Enum.reverse(leaves), fn leaf, _path, [other | rest] ->
        {fun.(leaf, other), rest}
      end)

    tree
  end

  defp not_finite(leaf), do: Nx.any(Nx.logical_or(Nx.is_nan(leaf), Nx.is_infinity(leaf)))

  defp float?(leaf) do
    case Leaf.dtype(leaf) do
      {:error, text} ->
        raise ArgumentError, "a tensor #{text}"

      complex when complex in [:complex64, :complex128] ->
        raise ArgumentError, "a tensor is complex"

      dtype ->
        dtype != nil
    end
  end
end
