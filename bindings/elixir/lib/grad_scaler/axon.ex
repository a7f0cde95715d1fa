defmodule GradScaler.Axon do
  @moduledoc """
  Loss scaling for Axon that skips the step of an overflow.

  Axon's own loss scaling moves the scale, but the optimizer still gets the overflowed gradients. Here the
  optimizer is also wrapped:

      scaler = GradScaler.new("axon")
      optimizer = Polaris.Optimizers.adam(learning_rate: 1.0e-3)

      model
      |> Axon.MixedPrecision.apply_policy(Axon.MixedPrecision.create_policy(compute: {:f, 16}))
      |> Axon.Loop.trainer(loss, GradScaler.Axon.skip_overflow(optimizer),
        loss_scale: GradScaler.Axon.loss_scale(scaler))
      |> Axon.Loop.run(data)

  If a gradient is Inf or NaN, or the norm is too large for rules with `overflow_test: :norm`, the
  parameters and the optimizer's state do not change. The running statistics of layers do change: the
  forward pass makes them. An optimizer of `Polaris.Updates.accumulate_gradients` leaves out the micro-batch
  with the overflow. Unlike in Axon.LossScale, a NaN counts as an overflow.

  This module compiles without Axon: its functions return tuples of functions, as Axon takes them.
  """
  alias GradScaler.{Defn, Tree}

  @doc "Returns the `:loss_scale` for `Axon.Loop.trainer/4` by the rules of a scaler. Refuses rules with a guard."
  @spec loss_scale(GradScaler.t()) :: {fun, fun, fun}
  def loss_scale(%GradScaler{} = scaler) do
    if :guards in GradScaler.traits(scaler) do
      raise ArgumentError,
            "the policy guards, but Axon tells its optimizer of no outlier: set guard_norm, guard_ratio " <>
              "and guard_sigmas to 0, or write the step with GradScaler.Defn"
    end

    unscale = fn grads, state ->
      {unscaled, overflow} = Defn.unscale(grads, state, scaler)
      {with_overflow(unscaled, overflow, scaler), Defn.update(state, overflow, scaler)}
    end

    {fn -> Defn.init(scaler) end, &Defn.scale_loss/2, unscale}
  end

  @doc "Wraps an optimizer of Polaris: if gradients are not finite, parameters and state do not change."
  @spec skip_overflow({fun, fun}) :: {fun, fun}
  def skip_overflow({init, update}) do
    skipping = fn grads, state, params ->
      overflow = Defn.overflow(grads)
      {updates, new_state} = update.(grads, state, params)
      {Defn.skip(updates, zeros(updates), overflow), Defn.skip(new_state, state, overflow)}
    end

    {init, skipping}
  end

  # Axon's optimizer gets only the gradients, so an overflow of the norm makes them infinite.
  defp with_overflow(grads, overflow, scaler) do
    if GradScaler.policy(scaler).overflow_test == :norm,
      do: Tree.map(grads, &Nx.select(overflow, Nx.tensor(:infinity), &1)),
      else: grads
  end

  defp zeros(tree),
    do: Tree.map(tree, &Nx.broadcast(Nx.tensor(0, type: &1.type), &1))
end
