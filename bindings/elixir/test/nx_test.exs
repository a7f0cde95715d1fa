defmodule GradScaler.NxTest do
  use ExUnit.Case, async: true
  @moduletag :nx
  @compile {:no_warn_undefined, [Complex, Nx, Nx.Container, Nx.Defn, Nx.Type]}

  alias GradScaler.Recordings

  if Code.ensure_loaded?(Nx.Container) do
    defmodule Layer do
      @derive {Nx.Container, containers: [:kernel, :bias], keep: [:name]}
      defstruct [:kernel, :bias, :name]
    end
  end

  describe "tensors" do
    test "shape, names and vectorized axes stay" do
      scaler = GradScaler.new("static", init_scale: 2.0)
      tensor = Nx.tensor([[2.0, 4.0]], type: {:f, 16}, names: [:rows, :columns])
      {unscaled, _} = GradScaler.unscale(tensor, scaler)
      assert unscaled == Nx.tensor([[1.0, 2.0]], names: [:rows, :columns])
      vectorized = Nx.vectorize(tensor, :rows)
      {unscaled, _} = GradScaler.unscale(vectorized, scaler)
      assert {unscaled.vectorized_axes, unscaled.names} == {[rows: 1], [:columns]}
    end

    test "structs that are containers are walked, their other fields kept" do
      layer =
        struct!(__MODULE__.Layer,
          kernel: Nx.tensor([8.0]),
          bias: {Nx.tensor(4.0), Nx.tensor(:nan)},
          name: "dense"
        )

      scaler = GradScaler.new("static", init_scale: 2.0)
      {unscaled, report} = GradScaler.unscale(%{0 => layer}, scaler)
      assert %{0 => %{name: "dense", kernel: kernel}} = unscaled
      assert {kernel, report.nan_count} == {Nx.tensor([4.0]), 1}
      assert GradScaler.overflows(%{0 => layer}, scaler) == [[0, 1, 1]]
    end

    test "results are on the backend that the tensors came from" do
      tensor = Nx.tensor([2.0])
      {unscaled, _} = GradScaler.unscale(tensor, GradScaler.new())
      assert unscaled.data.__struct__ == tensor.data.__struct__
    end

    test "every float that this Nx knows is unscaled; a type that it does not know is refused" do
      scaler = GradScaler.new("static", init_scale: 2.0)
      complex = Nx.tensor([Complex.new(6, -2)])
      assert {unscaled, _} = GradScaler.unscale(complex, scaler)
      assert unscaled == Nx.tensor([Complex.new(3, -1)])

      for {type, six} <- [{{:f, 8}, <<0x46>>}, {{:f8_e4m3fn, 8}, <<0x4C>>}] do
        if knows?(type) do
          assert {unscaled, _} = GradScaler.unscale(Nx.from_binary(six, type), scaler)
          assert unscaled == Nx.tensor([3.0])
          assert Nx.to_binary(GradScaler.cast_params(Nx.tensor([6.0]), type)) == six
        else
          message = ~r/type is :f8_e\w+, which this Nx has no tensors of/

          assert_raise ArgumentError, message, fn ->
            GradScaler.cast_params(Nx.tensor(6.0), type)
          end
        end
      end

      assert_raise ArgumentError, ~r/type is :cb16, which this Nx has no tensors of/, fn ->
        GradScaler.cast_params(Nx.tensor(6.0), :cb16)
      end
    end

    defp knows?(type) do
      Nx.Type.normalize!(type) == type
    rescue
      ArgumentError -> false
    end

    test "traced tensors are multiplied and cast, and unscale says where to look" do
      scaler = GradScaler.new("static", init_scale: 8.0)
      gradient = Nx.Defn.grad(Nx.tensor(3.0), &GradScaler.scale_loss(Nx.multiply(&1, &1), scaler))
      assert gradient == Nx.tensor(48.0)

      half =
        Nx.Defn.jit(&GradScaler.cast_params(&1, :f16)).(%{a: Nx.tensor([1.0]), b: Nx.tensor([1])})

      assert half == %{a: Nx.tensor([1.0], type: {:f, 16}), b: Nx.tensor([1])}

      assert_raise ArgumentError, ~r/use GradScaler.Defn/, fn ->
        Nx.Defn.jit(&GradScaler.unscale(&1, scaler)).(Nx.tensor(1.0))
      end
    end

    test "bfloat16 is rounded to nearest even" do
      third = Nx.tensor(1.0 / 3.0 * 1.01)
      assert Nx.to_binary(GradScaler.cast_params(third, {:bf, 16})) == <<0x3EAC::little-16>>
    end
  end

  describe "inside defn" do
    alias GradScaler.Defn

    test "the scale of every counting policy moves as recorded" do
      recordings =
        for recording <- Recordings.all(), recording.preset != "openseq2seq_logmax", do: recording

      assert length(recordings) > 300

      for recording <- recordings do
        scales = traced_scales(recording)

        for {scale, recorded} <- Enum.zip(scales, recording.scales) do
          assert same?(scale, recorded, recording.tolerance),
                 "#{recording.preset} #{recording.name}: #{scale}, #{recorded}"
        end
      end
    end

    defp traced_scales(%{scaler: scaler, steps: steps}) do
      states =
        Enum.scan(
          steps,
          Defn.init(scaler),
          &Defn.update(&2, Nx.tensor(String.to_integer(&1)), scaler)
        )

      for state <- [Defn.init(scaler) | states], do: Nx.to_number(state.scale)
    end

    defp same?(a, a, _tolerance), do: true
    defp same?(a, b, tolerance), do: is_float(a) and is_float(b) and abs(a - b) <= tolerance * b

    test "a whole jitted step skips on overflow and moves the scale" do
      scaler = GradScaler.new("torch", init_scale: 2.0 ** 20, growth_interval: 3)

      # The gradient of w^2 as a backward pass in float16 gives it.
      step =
        Nx.Defn.jit(fn w, state ->
          grads = %{w: w |> Nx.multiply(2) |> Defn.scale_loss(state) |> Nx.as_type({:f, 16})}
          {grads, overflow} = Defn.unscale(grads, state)
          stepped = Nx.subtract(w, Nx.multiply(0.1, grads.w))
          {Defn.skip(overflow, stepped, w), Defn.update(state, overflow, scaler), overflow}
        end)

      {w, state, overflow} = step.(Nx.tensor([1.0, -2.0]), Defn.init(scaler))

      assert {w, Nx.to_number(state.scale), Nx.to_number(overflow)} ==
               {Nx.tensor([1.0, -2.0]), 2.0 ** 19, 1}

      {w, _state, _} =
        for _ <- 1..30, reduce: {w, state, nil}, do: ({w, state, _} -> step.(w, state))

      assert Nx.to_number(Nx.reduce_max(Nx.abs(w))) < 1.0
    end

    test "half gradients become float32, double stays, integers are left alone" do
      state = Defn.init(GradScaler.new("static", init_scale: 2.0))
      tree = {Nx.tensor([2.0], type: {:f, 16}), Nx.tensor([2.0], type: {:f, 64}), Nx.tensor([2])}
      {unscaled, overflow} = Defn.unscale(tree, state)
      assert unscaled == {Nx.tensor([1.0]), Nx.tensor([1.0], type: {:f, 64}), Nx.tensor([2])}
      assert Nx.to_number(overflow) == 0
    end

    test "complex gradients are refused" do
      state = Defn.init(GradScaler.new("torch"))
      gradient = Nx.tensor(Complex.new(1, 2))
      assert_raise ArgumentError, ~r/a tensor is complex/, fn -> Defn.unscale(gradient, state) end
    end

    test "a predictive policy is refused" do
      scaler = GradScaler.new("openseq2seq_logmax")
      assert_raise ArgumentError, ~r/policy.target_amax/, fn -> Defn.init(scaler) end
    end
  end

  describe "Axon" do
    @describetag :axon
    @compile {:no_warn_undefined, [Axon, Axon.Loop, Polaris.Optimizers]}

    test "the recipe skips the step on an overflow, and trains on without one" do
      scaler = GradScaler.new("axon", init_scale: 2.0 ** 10)
      model = Axon.input("x", shape: {nil, 2}) |> Axon.dense(1)
      optimizer = Polaris.Optimizers.adam(learning_rate: 0.1)

      {init, step} =
        Axon.Loop.train_step(model, :mean_squared_error, GradScaler.Axon.skip_overflow(optimizer),
          loss_scale: GradScaler.Axon.loss_scale(scaler)
        )

      good = {Nx.tensor([[1.0, 2.0], [2.0, 1.0]]), Nx.tensor([[3.0], [3.0]])}
      bad = {Nx.tensor([[1.0, 2.0], [2.0, 1.0]]), Nx.tensor([[3.0], [:infinity]])}
      start = init.(good, %{})

      skipped = step.(bad, start)
      assert skipped.model_state == start.model_state
      assert skipped.optimizer_state == start.optimizer_state
      assert Nx.to_number(skipped.loss_scale_state.scale) == 2.0 ** 9

      trained = for _ <- 1..5, reduce: skipped, do: (state -> step.(good, state))
      assert trained.model_state != start.model_state
      refute GradScaler.has_overflow?(trained.model_state)
      assert Nx.to_number(trained.loss_scale_state.scale) == 2.0 ** 9
    end
  end
end
