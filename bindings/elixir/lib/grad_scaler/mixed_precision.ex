defmodule GradScaler.MixedPrecision do
  @moduledoc """
  Has the functions of `Emily.MixedPrecision`: replace the alias; the training code stays the same.

      alias GradScaler.MixedPrecision, as: MP
      alias GradScaler.MixedPrecision.LossScaler

      scaler = MP.loss_scale()

      grads =
        Nx.Defn.grad(params, fn p ->
          p |> MP.cast_params({:f, 16}) |> forward(x, y) |> MP.scale_loss(scaler)
        end)

      {grads, overflow?} = MP.unscale(grads, scaler)
      scaler = MP.update(scaler, overflow?)
      params = if overflow?, do: params, else: step(params, MP.accumulate_grad(grads, {:f, 32}))

  The scale moves as in recordings of the original. The differences:

    * `unscale/2` returns float32 for float16, bfloat16 and fp8 gradients, so that small values survive.
      The original divides in the gradients' own type.
    * Structs that implement `Nx.Container` are unscaled; other leaves that are no tensors raise
      `ArgumentError`. The original ignores both, and so never unscales an `Axon.ModelState`.
    * All fp8 and complex tensors are scaled and unscaled; the original ignores some of them.
      `cast_params/2` raises if it would make a complex tensor real.
    * `scale_loss/2` multiplies a float16 loss in float32 and rounds the product. In the original the scale
      becomes float16, and most scales are Inf in float16.
    * A growth past the largest double does not change the scale; the original raises `ArithmeticError`.
    * `cast_params/2` rounds to nearest even; `Nx.BinaryBackend` truncates bfloat16.
    * A `growth_factor` below 1, a `backoff_factor` that is not in (0, 1] and a scale that is not
      above 0 raise `ArgumentError`.
    * After an update the scale is a float, also if it was an integer before.
  """

  defmodule LossScaler do
    @moduledoc false

    @enforce_keys [:scale]
    defstruct scale: 65_536.0,
              growth_factor: 2.0,
              backoff_factor: 0.5,
              growth_interval: 2000,
              min_scale: 1.0,
              counter: 0

    @spec new(keyword) :: GradScaler.MixedPrecision.scaler()
    def new(options \\ []) do
      known = [:scale, :growth_factor, :backoff_factor, :growth_interval, :min_scale]
      scaler = struct!(%__MODULE__{scale: 65_536.0}, Keyword.validate!(options, known))
      _checked = GradScaler.MixedPrecision.to_grad_scaler(scaler)
      scaler
    end
  end

  @typedoc "Rules, scale, and the good steps so far."
  @type scaler :: %LossScaler{
          scale: number,
          growth_factor: number,
          backoff_factor: number,
          growth_interval: non_neg_integer,
          min_scale: number,
          counter: non_neg_integer
        }

  @doc """
  Returns a new scaler, a `LossScaler`. Options: `:scale` (65536.0), `:growth_factor` (2.0), `:backoff_factor` (0.5),
  `:growth_interval` (2000), `:min_scale` (1.0).

      iex> GradScaler.MixedPrecision.loss_scale(growth_interval: 100).scale
      65536.0
  """
  @spec loss_scale(keyword) :: scaler
  def loss_scale(options \\ []), do: LossScaler.new(options)

  @doc "Returns the loss times the scale. Traced tensors, as inside `Nx.Defn.grad`, get a plain `Nx.multiply`."
  @spec scale_loss(GradScaler.tree() | number, scaler) :: GradScaler.tree()
  def scale_loss(loss, %LossScaler{scale: scale}) when is_number(loss),
    do: Nx.multiply(loss, scale)

  def scale_loss(loss, %LossScaler{} = scaler),
    do: GradScaler.scale_loss(loss, to_grad_scaler(scaler), type: :same)

  @doc "Returns `{gradients divided by the scale, overflow}`; `overflow` is true if one of them is Inf or NaN."
  @spec unscale(GradScaler.tree(), scaler) :: {GradScaler.tree(), boolean}
  def unscale(grads, %LossScaler{} = scaler) do
    {grads, report} = GradScaler.unscale(grads, to_grad_scaler(scaler))
    {grads, GradScaler.overflow?(report)}
  end

  @doc """
  Returns the scaler after a step.

      iex> alias GradScaler.MixedPrecision, as: MP
      iex> MP.loss_scale() |> MP.update(true) |> Map.fetch!(:scale)
      32768.0
  """
  @spec update(scaler, boolean) :: scaler
  def update(%LossScaler{} = scaler, overflow) when is_boolean(overflow) do
    updated = scaler |> to_grad_scaler() |> GradScaler.update(overflow)

    %{
      scaler
      | scale: GradScaler.loss_scale(updated),
        counter: GradScaler.state(updated).good_steps
    }
  end

  @doc "Returns true if a tree of tensors holds Inf or NaN."
  @spec has_overflow?(GradScaler.tree()) :: boolean
  def has_overflow?(tree), do: not GradScaler.finite?(tree)

  @doc "Casts all floats of a tree to another type. Traced tensors get a plain `Nx.as_type`."
  @spec cast_params(GradScaler.tree(), atom | tuple) :: GradScaler.tree()
  def cast_params(params, type), do: GradScaler.cast_params(params, type)

  @doc "Does the same as `cast_params/2`, for gradients."
  @spec accumulate_grad(GradScaler.tree(), atom | tuple) :: GradScaler.tree()
  def accumulate_grad(grads, type), do: GradScaler.accumulate_grad(grads, type)

  @doc "Returns the same scaler as a `GradScaler`, to use its functions."
  @spec to_grad_scaler(scaler) :: GradScaler.t()
  def to_grad_scaler(%LossScaler{counter: counter} = scaler) do
    fields = [
      init_scale: positive(scaler.scale, :scale),
      growth_factor: positive(scaler.growth_factor, :growth_factor),
      backoff_factor: positive(scaler.backoff_factor, :backoff_factor),
      # For 0 the original grows at every step, as for 1; in the library 0 means never.
      growth_interval: max(scaler.growth_interval, 1),
      min_scale: scaler.min_scale
    ]

    GradScaler.put_state(GradScaler.new("emily", fields),
      good_steps: counter,
      steps_since_change: counter
    )
  end

  # Refuses 0, which in a policy means the default.
  defp positive(x, _name) when is_number(x) and x > 0, do: x

  defp positive(x, name),
    do: raise(ArgumentError, "#{name} is #{inspect(x)}: it must be a number above 0")
end
