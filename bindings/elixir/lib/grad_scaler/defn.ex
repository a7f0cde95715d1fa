defmodule GradScaler.Defn do
  @moduledoc """
  The step as plain Nx operations, for code that Nx traces: inside `defn`, `Nx.Defn.jit` and grad.

  The state is a map of scalar tensors, so it passes through `defn` and onto any backend; the rules
  are those of a `GradScaler`, and are fixed while tracing: all presets but `openseq2seq_logmax` and
  `axlearn`, which take logarithms. The scale moves exactly as that of
  `GradScaler.update/2`; events are not kept, and `to_scaler/2` makes a `GradScaler` of it again.
  float64 is needed for the scale itself.

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

  ## Rules that guard

  They judge the norm in `update/4`, so update first:

      {grads, overflow} = GradScaler.Defn.unscale(grads, state, scaler)
      state = GradScaler.Defn.update(state, overflow, scaler, GradScaler.Defn.norm(grads))
      new = sgd(params, GradScaler.Defn.guard(grads, state))
      params = GradScaler.Defn.skip(GradScaler.Defn.skipped(state), new, params)

  Mean, variance and decisions have the bits of `GradScaler.update/2` where products and sums are
  rounded apart, as in `Nx.BinaryBackend`. A compiler that rounds the two at once may give another
  last digit.

  The flag `:stop` ends nothing here, as no event is kept: outliers are skipped or clipped on. End the
  training where `state.guard_in_a_row` reaches the policy's `guard_max_in_a_row`.
  """
  alias GradScaler.{Factor, Leaf, Native, Policy, State, Tree}

  @max_float 3.4028234663852886e38
  @max_double 1.7976931348623157e308
  @smallest_normal_float 1.1754943508222875e-38
  @most_steps 0x7FFFFFFFFFFFFFFF
  # Above it no norm is a sample, so that the square of a difference is finite.
  @most_norm 3.273390607896142e150
  @counts [:good_steps, :steps_since_change, :overflows_since_reset]
  @guard_numbers [:guard_mean, :guard_variance, :guard_multiplier, :guard_threshold, :guard_value]
  @guard_counts [:guard_count, :guard_in_a_row, :total_guard_skips]

  @typedoc "The state of a scaler as scalar tensors; of rules that guard, those of `GradScaler.State`, too."
  @type state :: %{
          required(:scale) => term,
          required(:next) => term,
          required(:good_steps) => term,
          required(:steps_since_change) => term,
          required(:overflows_since_reset) => term,
          optional(atom) => term
        }

  @typedoc "A tree of tensors, as for `GradScaler`."
  @type tree :: term

  # What a defn calls of another module has a name of its own; `deftransform` would make these, but needs Nx to compile.
  for {name, arity} <- [
        scale_loss: 2,
        unscale: 2,
        unscale: 3,
        unscale_accumulate: 3,
        overflow: 1,
        norm: 1,
        clip: 2,
        skip: 3,
        update: 3,
        update: 4,
        skipped: 1,
        guard: 2
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
    guards? = guards?(traced(scaler))
    state = GradScaler.state(scaler)
    counts = @counts ++ if(guards?, do: @guard_counts, else: [])
    numbers = if guards?, do: @guard_numbers, else: []

    %{scale: f64(state.factor.scale), next: f64(state.next.scale)}
    |> Map.merge(Map.new(numbers, &{&1, f64(Map.fetch!(state, &1))}))
    |> Map.merge(Map.new(counts, &{&1, Nx.tensor(Map.fetch!(state, &1), type: {:s, 64})}))
  end

  @doc """
  The way back: a scaler with the rules of `scaler` and the scale and counts of a state, to be saved,
  or to go on with `GradScaler.update/2`. The totals are those of `scaler`. Call it outside of `defn`.
  """
  @spec to_scaler(state, GradScaler.t()) :: GradScaler.t()
  def to_scaler(state, %GradScaler{} = scaler) do
    {scales, counted} =
      state |> Map.new(fn {k, v} -> {k, Nx.to_number(v)} end) |> Map.split([:scale, :next])

    %{scale: scale, next: next} = scales
    moved = GradScaler.put_state(scaler, [scale: next] ++ Map.to_list(counted))
    if scale == next, do: moved, else: in_force(moved, scale)
  end

  # With apply_delay the scale in force is the one before the newest.
  defp in_force(%GradScaler{} = scaler, scale) do
    {:ok, factor} = Native.factor_init(scale)
    state = GradScaler.state(scaler)
    factor = %{Factor.decode(factor) | generation: state.next.generation}
    next = %{state.next | generation: state.next.generation + 1}
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
  @spec unscale_accumulate(tree, tree, state) :: {tree, term}
  def unscale_accumulate(sums, grads, state) do
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

  @doc """
  The state after a step. `overflow` is a scalar tensor; the rules are those of `scaler`.

  Rules that guard take the norm of the gradients, unscaled and not clipped, or any other number that
  they are to judge, such as the loss.
  """
  @spec update(state, term, GradScaler.t(), term) :: state
  def update(state, overflow, %GradScaler{} = scaler, norm \\ nil) do
    policy = traced(scaler)

    cond do
      not guards?(policy) ->
        count(state, overflow, policy)

      norm == nil ->
        raise ArgumentError,
              "the policy guards, and needs the norm: update(state, overflow, scaler, norm(grads))"

      not is_map_key(state, :guard_multiplier) ->
        raise ArgumentError,
              "the policy guards, the state is of rules that do not: make it with init(scaler)"

      true ->
        judge_and_count(state, overflow, policy, scalar(norm))
    end
  end

  @doc "1 where rules that guard skip the step of the last update, because of an overflow or an outlier, else 0."
  @spec skipped(state) :: term
  def skipped(state), do: Nx.equal(multiplier(state), f64(0.0))

  @doc "Gradients times what the guard clips those of the last update by: 1 where it does not."
  @spec guard(tree, state) :: tree
  def guard(grads, state) do
    by = multiplier(state)
    map(grads, &(&1 |> multiply(by) |> Nx.as_type(&1.type)))
  end

  defp multiplier(%{guard_multiplier: multiplier}), do: multiplier

  defp multiplier(_state) do
    raise ArgumentError,
          "the state is of rules that do not guard: skip(overflow, new, old) by the overflow"
  end

  # ---- what core/policy.h does to a norm ----

  defp judge_and_count(state, overflow, policy, norm) do
    finite = Nx.logical_not(not_finite(norm))
    x = Nx.select(finite, norm, f64(0.0))
    within = Nx.logical_and(finite, Nx.less_equal(Nx.abs(x), f64(@most_norm)))
    overflow = Nx.logical_or(overflow, Nx.logical_not(within))
    none = f64(0.0)
    unjudged = %{state | guard_multiplier: none, guard_threshold: none, guard_value: none}
    judged = judge(state, Nx.select(overflow, f64(0.0), x), policy)
    state = choose(overflow, unjudged, judged)
    counted = count(state, overflow, policy)

    if :skip_is_good in policy.guard_flags do
      counted
    else
      outlier = Nx.logical_and(Nx.logical_not(overflow), skipped(state))
      choose(outlier, %{state | scale: state.next}, counted)
    end
  end

  defp judge(state, x, policy) do
    flags = policy.guard_flags
    state = begin(state, policy)
    threshold = threshold(state, policy)

    out =
      if :inclusive in flags,
        do: Nx.greater_equal(x, threshold),
        else: Nx.greater(x, threshold)

    run = Nx.select(out, Nx.add(state.guard_in_a_row, 1), Nx.tensor(0, type: {:s, 64}))
    # Neither in the range nor let through.
    stays =
      if policy.guard_max_in_a_row == 0 or :stop in flags,
        do: out,
        else: Nx.logical_and(out, Nx.less(run, min(policy.guard_max_in_a_row, @most_steps)))

    target = target(state.guard_mean, x, Nx.select(out, threshold, x), out, flags)
    share = share(target, x, stays, flags)
    skips = Nx.logical_and(stays, Nx.equal(share, f64(0.0)))
    as_is = policy.guard_sample == :as_is
    sampled = sample(state, if(as_is, do: x, else: Nx.select(stays, target, x)), policy)
    state = if policy.guard_sample == :none, do: choose(stays, state, sampled), else: sampled

    %{
      state
      | guard_in_a_row: run,
        total_guard_skips: Nx.add(state.total_guard_skips, skips),
        guard_multiplier: Nx.select(stays, share, f64(1.0)),
        guard_threshold: Nx.select(Nx.less(threshold, f64(:infinity)), threshold, f64(0.0)),
        guard_value: Nx.select(Nx.equal(x, f64(0.0)), f64(0.0), x)
    }
  end

  defp begin(state, %Policy{guard_init_mean: start}) when start == 0.0, do: state

  defp begin(state, policy) do
    first = Nx.logical_and(Nx.equal(state.guard_count, 0), Nx.equal(state.guard_mean, f64(0.0)))
    %{state | guard_mean: Nx.select(first, f64(policy.guard_init_mean), state.guard_mean)}
  end

  # The least of the thresholds that are on; infinity: there is none yet.
  defp threshold(state, policy) do
    {mean, variance, zero, none} =
      {state.guard_mean, state.guard_variance, f64(0.0), f64(:infinity)}

    ratio = Nx.multiply(mean, f64(policy.guard_ratio))
    sigmas = Nx.add(mean, Nx.multiply(f64(policy.guard_sigmas), Nx.sqrt(variance)))
    known = if policy.guard_init_mean == 0.0, do: Nx.greater(variance, zero), else: 1

    least =
      [
        policy.guard_norm != 0.0 and f64(policy.guard_norm),
        policy.guard_ratio != 0.0 and Nx.select(Nx.greater(mean, zero), ratio, none),
        policy.guard_sigmas != 0.0 and Nx.select(known, sigmas, none)
      ]
      |> Enum.filter(& &1)
      |> Enum.reduce(&Nx.min/2)

    warm = Nx.greater_equal(state.guard_count, min(policy.guard_warmup, @most_steps))
    Nx.select(warm, least, none)
  end

  # What an outlier is brought down to.
  defp target(mean, x, threshold, out, flags) do
    above = Nx.logical_and(out, Nx.greater(threshold, mean))

    cond do
      :clip_to_mean in flags ->
        Nx.select(above, mean, threshold)

      :clip_progressive in flags ->
        excess = Nx.select(above, Nx.subtract(threshold, mean), f64(1.0))
        distance = Nx.select(above, Nx.subtract(x, mean), f64(1.0))
        less = Nx.add(mean, Nx.multiply(excess, Nx.divide(excess, distance)))
        Nx.select(above, less, threshold)

      true ->
        threshold
    end
  end

  defp share(target, x, stays, flags) do
    if :clip in flags do
      clips = Nx.logical_and(stays, Nx.greater(target, f64(0.0)))
      share = Nx.divide(Nx.select(clips, target, f64(0.0)), Nx.select(clips, x, f64(1.0)))
      Nx.min(share, f64(1.0))
    else
      f64(0.0)
    end
  end

  # Into the mean and the variance.
  defp sample(state, x, policy) do
    count = Nx.add(state.guard_count, 1)
    share = Nx.divide(f64(1.0), double(count))
    decay = policy.guard_decay
    start = if policy.guard_init_mean == 0.0, do: 1, else: 0
    even = Nx.less_equal(count, policy.guard_warmup |> max(start) |> min(@most_steps))
    weight = if decay == 0.0, do: share, else: Nx.select(even, share, f64(1.0 - decay))
    rest = Nx.subtract(f64(1.0), weight)
    distance = Nx.subtract(x, state.guard_mean)
    step = Nx.multiply(weight, distance)
    mean = Nx.add(state.guard_mean, step)
    spread = Nx.multiply(rest, Nx.add(state.guard_variance, Nx.multiply(distance, step)))

    variance =
      if :variance_after_mean in policy.guard_flags and decay != 0.0 do
        after_it = Nx.subtract(x, mean)
        square = Nx.multiply(weight, Nx.multiply(after_it, after_it))
        Nx.select(even, spread, Nx.add(Nx.multiply(rest, state.guard_variance), square))
      else
        spread
      end

    %{state | guard_count: count, guard_mean: mean, guard_variance: variance}
  end

  # ---- what it does to the counts ----

  defp count(state, overflow, policy) do
    counted = good_step(state)

    moved =
      overflow
      |> choose(overflowed(counted, policy), good(counted, policy))
      |> grow_if_due(policy)
      |> hold(policy)

    in_force = if policy.apply_delay == 1, do: state.next, else: moved.next
    %{moved | scale: in_force}
  end

  defp good_step(state) do
    %{
      state
      | good_steps: Nx.add(state.good_steps, 1),
        steps_since_change: Nx.add(state.steps_since_change, 1)
    }
  end

  defp good(state, policy) do
    if :on_good_step in policy.overflow_reset,
      do: zero(state, [:overflows_since_reset]),
      else: state
  end

  defp overflowed(state, policy) do
    overflows = Nx.add(state.overflows_since_reset, 1)
    counted = zero(%{state | overflows_since_reset: overflows}, [:good_steps])
    after_one = choose(absorbed(counted, policy), counted, back_off(counted, policy))

    if :overflow_is_good in policy.quirks, do: good_step(after_one), else: after_one
  end

  defp absorbed(state, policy) do
    share = Nx.divide(double(state.overflows_since_reset), double(state.steps_since_change))

    tolerated =
      if :tolerance_exclusive in policy.quirks,
        do: Nx.less(share, f64(policy.overflow_tolerance)),
        else: Nx.less_equal(share, f64(policy.overflow_tolerance))

    Nx.logical_or(tolerated, Nx.less(state.overflows_since_reset, policy.hysteresis))
  end

  defp back_off(state, policy) do
    moved =
      if policy.backoff_factor == 0.0,
        do: Nx.divide(state.next, factor(policy, growth_factor(policy))),
        else: Nx.multiply(state.next, factor(policy, policy.backoff_factor))

    moved = format(moved, policy)
    floor = min_scale(policy)
    bound = limit(policy.floor_rule, state.next, floor, &Nx.min/2)
    reset = if :on_backoff in policy.overflow_reset, do: [:overflows_since_reset], else: []
    next = Nx.select(Nx.greater(moved, floor), moved, bound)
    zero(%{state | next: next}, [:steps_since_change | reset])
  end

  defp grow_if_due(state, %Policy{growth_interval: 0}), do: state
  defp grow_if_due(state, policy), do: choose(due(state, policy), grow(state, policy), state)

  defp due(state, policy) do
    all_steps = policy.growth_rule == :all_steps
    count = if all_steps, do: state.steps_since_change, else: state.good_steps
    n = Nx.subtract(count, policy.growth_extra_steps)
    interval = min(policy.growth_interval, @most_steps)

    reached =
      case policy.growth_rule do
        :exact -> Nx.equal(n, interval)
        :every -> Nx.equal(Nx.remainder(n, interval), 0)
        _reached_or_all_steps -> Nx.greater_equal(n, interval)
      end

    Nx.logical_and(Nx.greater(n, 0), reached)
  end

  defp grow(state, policy) do
    moved = state.next |> product(factor(policy, growth_factor(policy))) |> format(policy)
    bound = limit(policy.ceiling_rule, state.next, max_scale(policy), &Nx.max/2)
    good = if policy.growth_rule == :every, do: [], else: [:good_steps]
    overflows = if :on_growth in policy.overflow_reset, do: [:overflows_since_reset], else: []
    held = Nx.select(Nx.less(moved, max_scale(policy)), moved, bound)
    zero(%{state | next: held}, [:steps_since_change | good ++ overflows])
  end

  # Limits that every update enforces.
  defp hold(state, policy) do
    next = state.next
    next = if policy.ceiling_rule == :enforce, do: Nx.min(next, max_scale(policy)), else: next
    next = if policy.floor_rule == :enforce, do: Nx.max(next, min_scale(policy)), else: next
    %{state | next: format(next, policy)}
  end

  defp limit(rule, old, _bound, _farther) when rule in [:reject, :stop], do: old
  defp limit(:clamp_unless_past, old, bound, farther), do: farther.(old, bound)
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

  @doc false
  def guards?(policy),
    do: policy.guard_norm != 0.0 or policy.guard_ratio != 0.0 or policy.guard_sigmas != 0.0

  defp traced(scaler) do
    policy = GradScaler.policy(scaler)

    if policy.target_amax != 0.0 do
      raise ArgumentError, "policy.target_amax is set: a predictive policy has no traced update"
    end

    if guards?(policy) and :bias_corrected in policy.guard_flags do
      raise ArgumentError,
            "policy.guard_flags has :bias_corrected, which takes logarithms: it has no traced update; " <>
              "use GradScaler.update/2"
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
