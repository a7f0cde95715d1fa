defmodule GradScaler.EmilyTest do
  # GradScaler.MixedPrecision in the place of Emily.MixedPrecision: the scale of its preset, and what its users call.
  use ExUnit.Case, async: true

  import GradScaler.Wording
  alias GradScaler.MixedPrecision, as: MP
  alias GradScaler.MixedPrecision.LossScaler

  test "the scale moves as in the preset, which is recorded" do
    for interval <- 0..4,
        growth <- [1.0, 2.0, 1.5],
        backoff <- [0.5, 1.0],
        least <- [0.25, 4.0] do
      rules = [growth_factor: growth, backoff_factor: backoff, min_scale: least]
      mp = MP.loss_scale([scale: 16.0, growth_interval: interval] ++ rules)
      interval = max(interval, 1)
      ours = GradScaler.new("emily", [init_scale: 16.0, growth_interval: interval] ++ rules)

      for step <- 1..60, reduce: {mp, ours} do
        {mp, ours} ->
          overflow = rem(step * step, 7) == 2
          {mp, ours} = {MP.update(mp, overflow), GradScaler.update(ours, overflow)}
          assert mp.scale == GradScaler.loss_scale(ours)
          {mp, ours}
      end
    end
  end

  test "the surface is the original's" do
    surface = [accumulate_grad: 2, cast_params: 2, has_overflow?: 1, loss_scale: 0, loss_scale: 1]
    surface = surface ++ [scale_loss: 2, unscale: 2, update: 2]
    assert surface -- MP.__info__(:functions) == []
    defaults = [scale: 65_536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000]
    assert LossScaler.new() == struct!(LossScaler, defaults ++ [min_scale: 1.0, counter: 0])
  end

  test "counter and scale move together, and overflow resets the counter" do
    scaler = MP.loss_scale(growth_interval: 2) |> MP.update(false)
    assert {scaler.counter, scaler.scale} == {1, 65_536.0}
    assert %{counter: 0, scale: 131_072.0} = MP.update(scaler, false)
    assert %{counter: 0, scale: 32_768.0} = MP.update(scaler, true)
    assert %{scale: 1.0} = MP.update(MP.loss_scale(scale: 1), true)
    # At the top the original raised.
    assert %{scale: 1.0e308} = MP.update(MP.loss_scale(scale: 1.0e308, growth_interval: 1), false)
  end

  test "wrong arguments raise ArgumentError" do
    for {option, message} <- [
          {[init_scale: 1.0], ~r/unknown keys \[:init_scale\]/},
          {[scale: 0], ~r/scale is 0: it must be/},
          {[growth_factor: 0.5], ~r/growth_factor #{wording("is 0.5")}/},
          {[min_scale: -1], ~r/min_scale #{wording("is -1")}/}
        ],
        do: assert_raise(ArgumentError, message, fn -> MP.loss_scale(option) end)

    assert_raise FunctionClauseError, fn -> MP.update(MP.loss_scale(), 1) end
  end

  test "half gradients come back in float32" do
    scaler = MP.loss_scale(scale: 2.0 ** 15)
    smallest = {:f16, <<1::little-16>>}
    {{:f32, <<x::little-float-32>>}, false} = MP.unscale(smallest, scaler)
    assert x == 2.0 ** -39
    assert {_, true} = MP.unscale([{:bf16, <<0xFF80::little-16>>}], scaler)
  end

  describe "with Nx" do
    @describetag :nx
    @compile {:no_warn_undefined, [Complex, Nx, Nx.Defn]}

    test "the worked example trains" do
      x = Nx.tensor([[1.0], [2.0], [3.0]])
      y = Nx.tensor([[2.0], [4.0], [6.0]])
      params = %{w: Nx.tensor([[0.0]]), b: Nx.tensor([0.0])}

      forward = fn p -> x |> Nx.as_type({:f, 16}) |> Nx.dot(p.w) |> Nx.add(p.b) end

      loss = fn p, scaler ->
        output = p |> MP.cast_params({:f, 16}) |> forward.() |> Nx.as_type({:f, 32})
        output |> Nx.subtract(y) |> Nx.pow(2) |> Nx.mean() |> MP.scale_loss(scaler)
      end

      step = fn {params, scaler} ->
        {grads, overflow?} = MP.unscale(Nx.Defn.grad(params, &loss.(&1, scaler)), scaler)
        grads = MP.accumulate_grad(grads, {:f, 32})
        stepped = &Nx.subtract(params[&1], Nx.multiply(grads[&1], 0.1))
        params = if overflow?, do: params, else: %{w: stepped.(:w), b: stepped.(:b)}
        {params, MP.update(scaler, overflow?)}
      end

      start = {params, MP.loss_scale(scale: 2.0 ** 12, growth_interval: 20)}
      {params, scaler} = start |> Stream.iterate(step) |> Enum.at(60)
      assert_in_delta Nx.to_number(Nx.squeeze(params.w)), 2.0, 0.2
      assert scaler.scale >= 2.0 ** 12
    end

    test "numbers become tensors, integers are left alone, containers of any kind keep their shape" do
      scaler = MP.loss_scale(scale: 4.0)
      assert MP.scale_loss(1.5, scaler) == Nx.tensor(6.0)

      [half, bf16] = for type <- [{:f, 16}, {:bf, 16}], do: &Nx.tensor(&1, type: type)
      assert MP.scale_loss(half.(1.5), scaler) == half.(6.0)
      integer = Nx.tensor([1, 2])
      tree = {[Nx.tensor([2.0])], %{a: integer, b: {}}}
      quarter = Nx.tensor([0.5])
      assert {{[^quarter], %{a: ^integer, b: {}}}, false} = MP.unscale(tree, scaler)
      assert MP.cast_params(tree, {:bf, 16}) == {[bf16.([2.0])], %{a: integer, b: {}}}
      assert MP.scale_loss(integer, scaler) == Nx.tensor([4.0, 8.0])
      assert MP.has_overflow?({integer, Nx.tensor([1.0, :neg_infinity])})
    end

    test "what passed the original unchecked raises" do
      scaler = MP.loss_scale()
      assert_raise ArgumentError, ~r/\[:a\] is nil/, fn -> MP.unscale(%{a: nil}, scaler) end

      message = ~r/\[0\] cannot be :f16, as one of it and its tensor of :complex64 is complex/
      complex = [Nx.tensor(Complex.new(1, 2))]
      assert_raise ArgumentError, message, fn -> MP.cast_params(complex, {:f, 16}) end
    end
  end
end
