defmodule GradScaler.Defn do
  @moduledoc """
  The step as plain Nx operations, for code that Nx traces: inside `defn`, `Nx.Defn.jit` and grad.

  The state is a map of scalar tensors, so it passes through `defn` and onto any backend; the rules
  are those of a `GradScaler` with a policy that counts (all presets but `openseq2seq_logmax`), and
  are fixed while tracing. The scale moves exactly as that of `GradScaler.update/2`; events are not
  kept. float64 is needed for the scale itself.

      scaler = GradScaler.new("torch")
      state = GradScaler.Defn.init(scaler)

      step = Nx.Defn.jit(fn params, state, x, y ->
        grads = Nx.Defn.grad(params, &GradScaler.Defn.scale_loss(loss(&1, x, y), state))
        {grads, overflow} = GradScaler.Defn.unscale(grads, state)
        stepped = sgd(params, grads)
        {GradScaler.Defn.skip(overflow, stepped, params), GradScaler.Defn.update(state, overflow, scaler)}
      end)

  Inside a `defn` with its own syntax call these from a `deftransform`, as all functions that are
  not numerical definitions themselves:

      deftransformp update(state, overflow), do: GradScaler.Defn.update(state, overflow, scaler())
  """
  alias GradScaler.{Leaf, Policy, Tree}

  @max_double 1.7976931348623157e308
  @smallest_normal_float 1.1754943508222875e-38
  @most_steps 0x7FFFFFFFFFFFFFFF

  # ---- the step ----

  @doc "The state of a scaler as tensors."
  @spec init(GradScaler.t()) :: map
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

  @doc "Loss, or gradients, times the scale, in their own types; half types are multiplied in float32."
  def scale_loss(loss, %{scale: scale}) do
    map(loss, &(&1 |> multiply(scale) |> Nx.as_type(&1.type)))
  end

  @doc """
  `{gradients divided by the scale, overflow}`: half types become float32, and `overflow` is a
  scalar, 1 where a gradient is Inf or NaN.
  """
  def unscale(grads, %{scale: scale}) do
    inverse = Nx.divide(f64(1.0), scale)
    unscaled = map(grads, &multiply(&1, inverse))
    {unscaled, overflow(unscaled)}
  end

  @doc "1 where a float of the tree is Inf or NaN, else 0, as a scalar."
  def overflow(tree) do
    {_tree, found} =
      Tree.map_reduce(tree, Nx.tensor(0, type: {:u, 8}), fn leaf, _path, found ->
        if float?(leaf), do: {leaf, Nx.logical_or(found, not_finite(leaf))}, else: {leaf, found}
      end)

    found
  end

  @doc "`old` where the step overflowed, else `new`: trees of one shape."
  def skip(overflow, new, old) do
    {_old, old_leaves} = Tree.map_reduce(old, [], fn leaf, _path, acc -> {leaf, [leaf | acc]} end)

    {kept, []} =
      Tree.map_reduce(new, Enum.reverse(old_leaves), fn leaf, _path, [old | rest] ->
        {Nx.select(overflow, old, leaf), rest}
      end)

    kept
  end

  @doc "The state after a step. `overflow` is a scalar tensor; the rules are those of `scaler`."
  @spec update(map, term, GradScaler.t()) :: map
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
      if policy.backoff_factor == 0,
        do: Nx.divide(state.next, factor(policy, growth_factor(policy))),
        else: Nx.multiply(state.next, factor(policy, policy.backoff_factor))

    moved = format(moved, policy)
    floor = f64(policy.min_scale)
    bound = limit(policy.floor_rule, state.next, floor)
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
    bound = limit(policy.ceiling_rule, state.next, max_scale(policy))
    good = if policy.growth_rule == :every, do: [], else: [:good]
    overflows = if :on_growth in policy.overflow_reset, do: [:overflows], else: []
    held = Nx.select(Nx.less(moved, max_scale(policy)), moved, bound)
    zero(%{state | next: held}, [:steps | good ++ overflows])
  end

  # Limits that every update enforces.
  defp hold(state, policy) do
    next = state.next
    next = if policy.ceiling_rule == :always, do: Nx.min(next, max_scale(policy)), else: next
    next = if policy.floor_rule == :always, do: Nx.max(next, f64(policy.min_scale)), else: next
    %{state | next: format(next, policy)}
  end

  defp limit(rule, old, _bound) when rule in [:keep, :stop], do: old
  defp limit(_rule, _old, bound), do: bound

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
    do: if(policy.growth_factor == 0, do: 1.0, else: policy.growth_factor)

  defp max_scale(%Policy{max_scale: max_scale}),
    do: f64(if max_scale == 0, do: :infinity, else: max_scale)

  # A bare number would be a float32 constant.
  defp f64(x), do: Nx.tensor(x, type: {:f, 64})
  defp double(x), do: Nx.as_type(x, {:f, 64})

  # ---- trees and states ----

  defp counting(scaler) do
    policy = GradScaler.policy(scaler)

    if policy.target_amax != 0 do
      raise ArgumentError, "policy.target_amax is set: a predictive policy has no traced update"
    end

    policy
  end

  defp zero(state, counts),
    do: Enum.reduce(counts, state, &%{&2 | &1 => Nx.tensor(0, type: {:s, 64})})

  defp choose(condition, yes, no),
    do: Map.new(yes, fn {k, v} -> {k, Nx.select(condition, v, no[k])} end)

  defp multiply(%{type: {:f, 64}} = leaf, by), do: Nx.multiply(leaf, by)
  defp multiply(leaf, by), do: Nx.multiply(Nx.as_type(leaf, {:f, 32}), Nx.as_type(by, {:f, 32}))

  defp map(tree, fun) do
    {tree, nil} =
      Tree.map_reduce(tree, nil, fn leaf, _path, nil ->
        {if(float?(leaf), do: fun.(leaf), else: leaf), nil}
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
