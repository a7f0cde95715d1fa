defmodule GradScaler.NxTest do
  use ExUnit.Case, async: true
  @moduletag :nx
  @compile {:no_warn_undefined, [Complex, Nx, Nx.Container, Nx.Defn, Nx.Type]}
  import GradScaler.Wording

  if Code.ensure_loaded?(Nx.Container) do
    defmodule Layer do
      @derive {Nx.Container, containers: [:kernel, :bias], keep: [:name]}
      defstruct [:kernel, :bias, :name]
    end
  end

  if Code.ensure_loaded?(Nx.Defn) do
    defmodule Train do
      import Nx.Defn
      alias GradScaler.Defn

      # The gradient of w^2 as a backward pass in float16 gives it.
      defn step(w, state, sums, opts \\ []) do
        grads = %{w: (w * 2) |> Defn.scale_loss(state) |> Nx.as_type({:f, 16})}
        {sums, dropped} = Defn.unscale_accumulate(sums, grads, state, opts[:scaler])
        {grads, overflow} = Defn.unscale(grads, state, opts[:scaler])
        grads = Defn.clip(grads, 1.0)
        w = Defn.skip(w - 0.1 * grads.w, w, overflow)

        {w, Defn.update(state, overflow, opts[:scaler]), sums, overflow, dropped,
         Defn.norm(grads)}
      end

      defn(by_argument(state, scaler), do: Defn.update(state, Defn.overflow(state.scale), scaler))

      # All steps in one loop, with a gradient in each.
      defn loop(state, overflows, numbers, scaler) do
        {_i, state, _overflows, _numbers, _scaler, sum} =
          while {i = 0, state, overflows, numbers, scaler, sum = Nx.tensor(0.0, type: :f64)},
                i < Nx.axis_size(overflows, 0) do
            slope = grad(numbers[i], fn x -> Defn.scale_loss(x * x, state) end)
            state = Defn.update(state, overflows[i], scaler, numbers[i])
            {i + 1, state, overflows, numbers, scaler, sum + slope}
          end

        {state, sum}
      end

      defn slope_through(x, state, scaler) do
        grad(x, fn x -> x * x + Defn.update(state, x > 100, scaler, x).next end)
      end
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
      bias = {Nx.tensor(4.0), Nx.tensor(:nan)}
      layer = struct!(__MODULE__.Layer, kernel: Nx.tensor([8.0]), bias: bias, name: "dense")
      scaler = GradScaler.new("static", init_scale: 2.0)
      {unscaled, report} = GradScaler.unscale(%{0 => layer}, scaler)
      assert %{name: "dense", kernel: kernel} = unscaled[0]
      assert {kernel, GradScaler.overflows(report)} == {Nx.tensor([4.0]), [[0, :bias, 1]]}
    end

    test "micro-batches are added to sums of their shape only" do
      scaler = GradScaler.new("static", init_scale: 2.0)
      sums = %{w: Nx.tensor([[1.0, 1.0]])}

      grads = %{w: Nx.tensor([[2.0, 4.0]], type: :f16)}
      assert {%{w: added}, _} = GradScaler.unscale_accumulate(sums, grads, scaler)
      assert added == Nx.tensor([[2.0, 3.0]])
      message = ~r/\[:w\] has the shape {2, 1}, its sum {1, 2}/
      grads = %{w: Nx.tensor([[1.0], [2.0]])}
      unscale = fn -> GradScaler.unscale_accumulate(sums, grads, scaler) end
      assert_raise ArgumentError, message, unscale
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
          refuse_cast(type, ~r/type is :f8_e\w+, which this Nx has no tensors of/)
        end
      end

      refuse_cast(:cb16, ~r/type is :cb16, which this Nx has no tensors of/)
    end

    defp refuse_cast(type, message) do
      cast = fn -> GradScaler.cast_params(Nx.tensor(6.0), type) end
      assert_raise ArgumentError, message, cast
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

      for dtype <- [:f16, :bf16] do
        loss = Nx.tensor(0.5, type: dtype)
        torch = GradScaler.new("torch")
        eager = GradScaler.scale_loss(loss, torch)
        assert eager == Nx.tensor(32768.0)
        assert Nx.Defn.jit(&GradScaler.scale_loss(&1, torch)).(loss) == eager
        assert GradScaler.finite?(Nx.Defn.grad(loss, &GradScaler.scale_loss(&1, torch)))
        same = &GradScaler.scale_loss(&1, torch, type: :same)
        assert {same.(loss).type, Nx.Defn.jit(same).(loss)} == {loss.type, same.(loss)}
      end

      integer = Nx.tensor(3)
      assert GradScaler.scale_loss(integer, scaler) == Nx.tensor(24.0)
      assert Nx.Defn.jit(&GradScaler.scale_loss(&1, scaler)).(integer) == Nx.tensor(24.0)

      cast = Nx.Defn.jit(&GradScaler.cast_params(&1, :f16))
      cast = cast.(%{a: Nx.tensor([1.0]), b: Nx.tensor([1])})
      assert cast == %{a: Nx.tensor([1.0], type: {:f, 16}), b: Nx.tensor([1])}

      assert_raise ArgumentError, ~r/use GradScaler.Defn/, fn ->
        Nx.Defn.jit(&GradScaler.unscale(&1, scaler)).(Nx.tensor(1.0))
      end
    end

    test "a compiled function gets the scale of each call, and is traced once" do
      scaler = GradScaler.new("torch")
      test = self()

      gradient = fn x, scaler ->
        send(test, :traced)
        {Nx.Defn.grad(x, &GradScaler.scale_loss(Nx.multiply(&1, &1), scaler)), scaler}
      end

      compiled = Nx.Defn.compile(gradient, [Nx.template({}, {:f, 32}), scaler])

      for moved <- [scaler, GradScaler.update(scaler, true), GradScaler.set_scale(scaler, 0.1)] do
        {grad, returned} = compiled.(Nx.tensor(0.5), moved)
        assert {grad, returned} == {Nx.tensor(GradScaler.loss_scale(moved)), moved}
      end

      assert_received :traced
      refute_received :traced

      for {loss, options} <- [
            {0.5, []},
            {Nx.tensor(3), []},
            {{Nx.tensor(0.5, type: :f16)}, []},
            {Nx.tensor(0.5, type: :f16), [type: :same]},
            {Nx.tensor(0.1, type: :f64), []}
          ],
          scaler = GradScaler.set_scale(scaler, 1000.1) do
        scaled = &GradScaler.scale_loss(loss, &1, options)
        assert Nx.Defn.jit(scaled).(scaler) == Nx.Defn.jit(fn -> scaled.(scaler) end).()
      end
    end

    test "a traced scaler has no numbers, and says what to use" do
      scaler = GradScaler.new("torch")
      grads = Nx.tensor(1.0)
      report = GradScaler.measure(grads, scaler)

      for call <- [
            &GradScaler.loss_scale/1,
            &GradScaler.state/1,
            &GradScaler.skip?/1,
            &GradScaler.reason/1,
            &GradScaler.metrics/1,
            &GradScaler.diagnose/1,
            &GradScaler.save/1,
            &GradScaler.update(&1, true),
            &GradScaler.put_state(&1, good_steps: 1),
            &GradScaler.set_rank(report, &1, 0),
            &GradScaler.combine_decisions(scaler, &1),
            &GradScaler.guard_factor(&1, GradScaler.factor(scaler)),
            &GradScaler.clip_factor(&1, report, 1.0),
            &GradScaler.measure(grads, &1),
            &GradScaler.Checkpoint.write(&1, "torch"),
            &GradScaler.Defn.init/1
          ] do
        assert_raise ArgumentError, ~r/the scaler is traced, .* use GradScaler.Defn/, fn ->
          Nx.Defn.jit(&(call.(&1) && 1)).(scaler)
        end
      end

      Nx.Defn.jit(fn traced -> assert(inspect(traced) == "#GradScaler<traced>") && 1 end).(scaler)
    end

    test "a scaler stays what it is in trees, on a backend and in a file" do
      scaler = GradScaler.update(GradScaler.new("torch"), true)
      tree = %{w: Nx.tensor([1.0]), scaler: scaler}
      assert %{scaler: ^scaler} = GradScaler.cast_params(tree, :f16)
      assert {%{scaler: ^scaler}, _report} = GradScaler.unscale(tree, scaler)
      assert Nx.backend_copy(scaler) == scaler
      assert tree |> Nx.serialize() |> Nx.deserialize() == tree
      template = Nx.to_template(scaler)
      assert Nx.to_template(template) == template
      assert Nx.Defn.compile(& &1, [template]).(scaler) == scaler
    end

    test "bfloat16 is rounded to nearest even" do
      third = Nx.tensor(1.0 / 3.0 * 1.01)
      assert Nx.to_binary(GradScaler.cast_params(third, {:bf, 16})) == <<0x3EAC::little-16>>
    end
  end

  test "a loss can be tensors of any type, also of integers" do
    scaler = GradScaler.new()
    grads = Nx.tensor([1.0])

    for {loss, expected} <- [
          {Nx.tensor(2.0), :finite},
          {Nx.tensor([1.0, :nan], type: :f16), :not_finite},
          {Nx.tensor(3), :finite},
          {%{a: Nx.tensor(3), b: Nx.tensor(:infinity, type: :bf16)}, :not_finite}
        ],
        do: assert(GradScaler.measure(grads, scaler, loss: loss).loss == expected)

    assert_raise ArgumentError, ~r/use GradScaler.Defn/, fn ->
      Nx.Defn.jit(&(GradScaler.measure(grads, scaler, loss: &1) && &1)).(Nx.tensor(1.0))
    end
  end

  describe "inside defn" do
    @describetag :nx_runtime_call
    alias GradScaler.Defn

    test "the state of every preset has the bytes of an update, step by step and in a loop" do
      :rand.seed(:exsss, {1, 2, 3})
      steps = for _ <- 1..80, do: {:rand.uniform() < 0.15, 2.0 ** (:rand.normal() * 3)}
      overflows = Nx.tensor(for {overflow, _} <- steps, do: if(overflow, do: 1, else: 0))
      numbers = Nx.tensor(for({_, number} <- steps, do: number), type: :f64)
      assert map_size(GradScaler.presets()) > 30

      for preset <- Map.keys(GradScaler.presets()), scaler = GradScaler.new(preset) do
        start = Defn.init(scaler)
        assert {preset, Nx.to_number(Defn.skipped(start))} == {preset, 0}

        {_expected, state} =
          for {overflow, number} <- steps, reduce: {scaler, start} do
            {expected, state} ->
              expected = GradScaler.update(expected, measured(overflow, number))
              state = Defn.update(state, overflow, scaler, number)
              assert {preset, Defn.to_scaler(state, scaler)} == {preset, expected}
              assert Nx.to_number(Defn.skipped(state)) == GradScaler.state(expected).skip
              {expected, state}
          end

        assert {^state, sum} = apply(__MODULE__.Train, :loop, [start, overflows, numbers, scaler])
        assert Nx.to_number(sum) > 0.0
      end
    end

    # As measured by the library, of a gradient that is the number.
    defp measured(overflow, number) do
      gradient = Nx.tensor([if(overflow, do: :infinity, else: number)], type: :f64)
      one = GradScaler.new("static", init_scale: 1.0)
      %{GradScaler.measure(gradient, one, want: [:norm]) | generation: 0}
    end

    test "no gradient flows through an update" do
      for preset <- ["torch", "guard"], scaler = GradScaler.new(preset) do
        arguments = [Nx.tensor(3.0), Defn.init(scaler), scaler]
        assert apply(__MODULE__.Train, :slope_through, arguments) == Nx.tensor(6.0)
      end
    end

    test "numbers and booleans stand for tensors" do
      scaler = GradScaler.new("recommended", init_scale: 4.0)
      state = Defn.init(scaler)
      assert Defn.scale_loss(0.5, state) == Nx.tensor(2.0)
      assert Defn.scale_loss(3, state) == Nx.tensor(12.0)
      assert Nx.Defn.jit(&Defn.scale_loss(&1, state)).(0.5) == Nx.tensor(2.0)

      {new, old} = {{Nx.tensor(1)}, {Nx.tensor(2)}}
      assert {Defn.skip(new, old, true), Defn.skip(new, old, false)} == {old, new}

      for {overflow, same} <- [{true, 1}, {false, 0}, {true, Nx.tensor([0, 2])}] do
        assert Defn.update(state, overflow, scaler, 1.0) == Defn.update(state, same, scaler, 1)
        moved = Defn.to_scaler(Defn.update(state, same, scaler), scaler)
        assert moved == GradScaler.update(scaler, overflow)
      end

      guard = GradScaler.new("guard")

      for number <- [2, 2.5, 10 ** 400, 1.0e151, :infinity, :neg_infinity, :nan] do
        moved = Defn.to_scaler(Defn.update(Defn.init(guard), false, guard, number), guard)
        assert moved == GradScaler.update(guard, GradScaler.number_report(number))
      end
    end

    test "a loss that is not finite holds the scale, step by step and in a jitted step, as in an update" do
      losses = [
        {0.5, 0.5},
        {:nan, :nan},
        {Nx.tensor([1.0, :infinity], type: :f16), :infinity},
        {Nx.tensor(3), 3},
        {{Nx.tensor(1.0), Nx.vectorize(Nx.tensor([:neg_infinity]), :lane)}, :nan}
      ]

      for preset <- ["recommended", "guard", "torch", "fairseq"],
          scaler = GradScaler.new(preset) do
        jitted = Nx.Defn.jit(&Defn.update(&1, &2, scaler, 2.0, loss: &3))
        of_number = &Defn.update(&1, &2, scaler, 2.0, loss: &3)

        for {loss, same} <- losses,
            overflow <- [0, 1],
            reduce: {scaler, Defn.init(scaler)} do
          {expected, state} ->
            gradient = Nx.tensor([if(overflow == 1, do: :infinity, else: 2.0)], type: :f64)
            one = %{scaler | state: GradScaler.new("static", init_scale: 1.0).state}
            report = GradScaler.measure(gradient, one, want: [:norm], loss: same)
            expected = GradScaler.update(expected, %{report | generation: 0})
            update = if is_number(loss) or is_atom(loss), do: of_number, else: jitted
            state = update.(state, overflow, loss)
            assert {preset, Defn.to_scaler(state, scaler)} == {preset, expected}

            assert Nx.to_number(state.bad_losses_in_a_row) ==
                     GradScaler.state(expected).bad_losses_in_a_row

            assert Nx.to_number(Defn.skipped(state)) == GradScaler.state(expected).skip
            {expected, state}
        end
      end

      complex = fn ->
        Defn.update(Defn.init(GradScaler.new()), false, GradScaler.new(), 0,
          loss: Nx.tensor(Complex.new(1, 2))
        )
      end

      assert_raise ArgumentError, ~r/is complex/, complex
    end

    test "a state that 0.9 saved is refused" do
      %{scaler: old} =
        __DIR__ |> Path.join("saved_by_0.9.etf") |> File.read!() |> :erlang.binary_to_term()

      scaler = GradScaler.new("torch")
      bytes = Nx.from_binary(old.state, :u8)
      state = %{Defn.init(scaler) | bytes: bytes}

      message =
        ~r/^state #{wording("cannot be read by this version .*: 0.9 or an earlier candidate saved this")}/

      for call <- [
            fn -> Defn.update(state, false, scaler) end,
            fn -> Defn.update(Map.delete(state, :bad_losses_in_a_row), false, scaler) end,
            fn -> Defn.to_scaler(state, scaler) end,
            fn -> Defn.init(old) end
          ],
          do: assert_raise(ArgumentError, message, call)
    end

    test "numbers that code sets in a state hold" do
      scaler = GradScaler.new("torch")
      eight = Nx.tensor(8.0, type: :f64)
      counts = [good_steps: 1999, overflows_since_reset: 3]
      state = Map.merge(Defn.init(scaler), Map.new([scale: eight, next: eight] ++ counts))
      expected = GradScaler.put_state(scaler, [scale: 8.0] ++ counts)
      grown = Defn.to_scaler(Defn.update(state, false, scaler), scaler)
      assert GradScaler.loss_scale(grown) == 16.0
      assert loss_and_counts(grown) == loss_and_counts(GradScaler.update(expected, false))

      assert_raise ArgumentError, ~r/scale #{wording("is 0")}/, fn ->
        Defn.update(%{state | scale: Nx.tensor(0.0, type: :f64)}, false, scaler)
      end
    end

    defp loss_and_counts(scaler) do
      state = GradScaler.state(scaler)
      {state.factor.scale, state.next.scale, state.good_steps, state.overflows_since_reset}
    end

    test "several lanes have one verdict, one norm and one scale" do
      scaler = GradScaler.new("torch", init_scale: 2.0)
      state = Defn.init(scaler)
      lanes = Nx.vectorize(Nx.tensor([[6.0, 0.0], [0.0, 8.0]]), :lane)
      bad = Nx.vectorize(Nx.tensor([[6.0, 0.0], [:nan, 8.0]]), :lane)
      {grads, overflow} = Defn.unscale(%{w: lanes}, state, scaler)
      assert overflow == Nx.tensor(0, type: :u8)
      assert Defn.norm(grads) == Nx.tensor(5.0, type: :f64)

      clipped = Nx.devectorize(Defn.clip(grads, 2.5).w)
      assert_in_delta Nx.to_number(clipped[0][0]), 1.5, 1.0e-5

      {dropped, overflow} = Defn.unscale(%{w: bad}, state, scaler)
      assert overflow == Nx.tensor(1, type: :u8)
      assert Defn.skip(dropped, grads, overflow) == grads
      assert Defn.unscale_accumulate(grads, %{w: bad}, state, scaler) == {grads, overflow}

      twice = %{w: Nx.multiply(lanes, 2)}
      assert Defn.skip(dropped, twice, Nx.is_nan(bad)) == twice

      of_lanes = Nx.any(Nx.is_nan(bad))
      assert of_lanes.vectorized_axes == [lane: 2]
      assert Defn.update(state, of_lanes, scaler) == Defn.update(state, true, scaler)

      for {shape, number} <- [{"[lane: 2] {}", Nx.sum(lanes)}, {"{3}", Nx.iota({3})}] do
        assert_raise ArgumentError, "a tensor of the shape #{shape} is no number to judge", fn ->
          Defn.update(state, false, GradScaler.new("guard"), number)
        end
      end
    end

    test "a scale becomes infinite or 0 as a scaler's does" do
      for {scaler, overflow, scale} <- [
            {GradScaler.new("keras", init_scale: 2.0 ** 127, growth_interval: 1), 0, :infinity},
            {GradScaler.new("torch", init_scale: 2.0 ** -149), 1, 0.0}
          ] do
        update = &Defn.update(&1, overflow, scaler)
        state = scaler |> Defn.init() |> update.() |> update.()
        update = &GradScaler.update(&1, overflow == 1)
        expected = scaler |> update.() |> update.()
        assert GradScaler.loss_scale(expected) == scale
        assert Defn.to_scaler(state, scaler) == expected
      end
    end

    test "a guard in a jitted step clips and skips, and its state goes back to a scaler" do
      fields = [guard_norm: 4.0, guard_flags: [:clip], init_scale: 8.0, growth_interval: 2]
      scaler = GradScaler.new("torch", fields)

      step =
        Nx.Defn.jit(fn w, grads, state ->
          {grads, overflow} = Defn.unscale(grads, state, scaler)
          state = Defn.update(state, overflow, scaler, Defn.norm(grads))
          stepped = Nx.subtract(w, Defn.guard(grads, state))
          {Defn.skip(stepped, w, Defn.skipped(state)), state}
        end)

      w = Nx.tensor([0.0, 0.0])
      {w, state} = step.(w, Nx.tensor([-24.0, -32.0]), Defn.init(scaler))
      assert w == Nx.tensor([2.4, 3.2])
      assert Nx.to_number(state.guard_multiplier) == 0.8
      {w, state} = step.(w, Nx.tensor([:nan, 1.0]), state)
      assert {w, Nx.to_number(Defn.skipped(state))} == {Nx.tensor([2.4, 3.2]), 1}
      back = Defn.to_scaler(state, scaler)
      assert GradScaler.loss_scale(back) == 4.0
      assert %{guard_count: 1, guard_in_a_row: 1, total_guard_skips: 0} = GradScaler.state(back)
      assert Defn.init(back) == state

      no_bytes = Map.delete(state, :bytes)
      negative = %{state | good_steps: Nx.tensor(-1)}

      for {message, call} <- [
            {~r/the policy guards, and needs the norm/, fn -> Defn.update(state, 0, scaler) end},
            {~r/number is -1.0: beside a loss it must be a norm/,
             fn -> Defn.update(state, 0, scaler, -1, loss: 0) end},
            {~r/unknown keys \[:lose\]/, fn -> Defn.update(state, 0, scaler, 1, lose: 0) end},
            {~r/the state has no :bytes: make it/,
             fn -> Defn.update(no_bytes, 0, scaler, 1.0) end},
            {~r/state.good_steps #{wording("is -1: it must be")}/,
             fn -> Defn.to_scaler(negative, scaler) end},
            {~r/the policy guards, but Axon/, fn -> GradScaler.Axon.loss_scale(scaler) end}
          ],
          do: assert_raise(ArgumentError, message, call)
    end

    test "a defn calls it, with clipping, sums and the way back to a scaler" do
      scaler = GradScaler.new("torch", init_scale: 2.0 ** 20, growth_interval: 3)
      step = &apply(__MODULE__.Train, :step, [&1, &2, &3, [scaler: scaler]])
      w = Nx.tensor([3.0, -4.0])
      sums = %{w: Nx.tensor([0.5, 0.5])}

      {w, state, sums, overflow, dropped, _norm} = step.(w, Defn.init(scaler), sums)
      assert {w, sums} == {Nx.tensor([3.0, -4.0]), %{w: Nx.tensor([0.5, 0.5])}}
      assert {Nx.to_number(overflow), Nx.to_number(dropped)} == {1, 1}

      state = %{state | scale: Nx.tensor(1024.0, type: :f64), next: Nx.tensor(1024.0, type: :f64)}
      {w, state, sums, overflow, dropped, norm} = step.(w, state, sums)
      assert {Nx.to_number(overflow), Nx.to_number(dropped)} == {0, 0}
      assert sums == %{w: Nx.tensor([6.5, -7.5])}
      assert_in_delta Nx.to_number(norm), 1.0, 1.0e-6
      assert_in_delta Nx.to_number(w[0]), 3.0 - 0.06, 1.0e-6

      back = Defn.to_scaler(state, scaler)
      assert {GradScaler.loss_scale(back), GradScaler.state(back).good_steps} == {1024.0, 1}

      grown = Enum.reduce([false, false], back, &GradScaler.update(&2, &1))
      assert GradScaler.loss_scale(grown) == 2048.0
      assert %{good_steps: _} = apply(__MODULE__.Train, :by_argument, [state, scaler])
    end
  end

  describe "the tensor operations, which every Nx has," do
    alias GradScaler.Defn

    test "trees that are not alike are refused, and the leaf is named" do
      state = Defn.init(GradScaler.new("torch"))
      {one, two} = {Nx.tensor([1.0]), Nx.tensor([1.0, 2.0])}
      lanes = Nx.vectorize(Nx.tensor([[1.0]]), :lane)

      for {new, old, text} <- [
            {%{w: [one]}, %{w: [two]}, "[:w][0] has the shape {1} in new, {2} in old"},
            {%{w: lanes}, %{w: one}, "[:w] has the shape [lane: 1] {1} in new, {1} in old"},
            {%{w: one, b: one}, %{w: one}, "[:b] is in new and not in old"},
            {{one}, {one, {two}}, "[1][0] is in old and not in new"}
          ] do
        assert_raise ArgumentError, text, fn -> Defn.skip(new, old, 0) end
        text = text |> String.replace("new", "sums") |> String.replace("old", "grads")
        assert_raise ArgumentError, text, fn -> Defn.unscale_accumulate(new, old, state) end
      end
    end

    test "the verdict of rules that look at the norm is there before the step, and keeps sums as they were" do
      scaler = GradScaler.new("fairseq", init_scale: 1.0)
      state = Defn.init(scaler)
      {sums, big} = {Nx.tensor([1.0, 1.0]), Nx.tensor([1.5e19, 1.5e19])}

      for {rules, verdict} <- [{scaler, 1}, {nil, 0}] do
        {_, overflow} = Defn.unscale(big, state, rules)
        {added, ^overflow} = Defn.unscale_accumulate(sums, big, state, rules)
        assert {Nx.to_number(overflow), added == sums} == {verdict, verdict == 1}
      end
    end

    test "half losses, gradients and integers become float32, double stays, integer gradients are left alone" do
      state = Defn.init(GradScaler.new("static", init_scale: 2.0))
      assert Defn.scale_loss(Nx.tensor(2.0, type: :f16), state) == Nx.tensor(4.0)
      assert Defn.scale_loss(Nx.tensor(2), state) == Nx.tensor(4.0)
      tree = {Nx.tensor([2.0], type: {:f, 16}), Nx.tensor([2.0], type: {:f, 64}), Nx.tensor([2])}
      {unscaled, overflow} = Defn.unscale(tree, state)
      assert unscaled == {Nx.tensor([1.0]), Nx.tensor([1.0], type: {:f, 64}), Nx.tensor([2])}
      assert Nx.to_number(overflow) == 0
    end

    test "complex gradients are refused" do
      state = Defn.init(GradScaler.new("torch"))
      tree = %{w: [Nx.tensor(1.0), Nx.tensor(Complex.new(1, 2))]}
      assert_raise ArgumentError, "[:w][1] is complex", fn -> Defn.unscale(tree, state) end
      assert_raise ArgumentError, "[:w][1] is complex", fn -> Defn.norm(tree) end
    end
  end

  @tag :nx_without_runtime_call
  test "an update says which Nx it needs" do
    scaler = GradScaler.new("torch")
    state = GradScaler.Defn.init(scaler)
    {%{w: unscaled}, overflow} = GradScaler.Defn.unscale(%{w: Nx.tensor([65_536.0])}, state)
    assert {unscaled, Nx.to_number(overflow)} == {Nx.tensor([1.0]), 0}
    message = ~r/needs Nx.runtime_call\/4 of Nx 0.12 or newer; this is Nx 0\.\d+/
    assert_raise ArgumentError, message, fn -> GradScaler.Defn.update(state, overflow, scaler) end
  end

  describe "the recipe for Axon without Axon" do
    @describetag :nx_runtime_call
    test "a norm that the scaler's rules find too large skips the step, though every gradient is finite" do
      scaler = GradScaler.new("fairseq", init_scale: 4.0)
      {begin, _, unscale} = GradScaler.Axon.loss_scale(scaler)

      optimizer = {fn _ -> %{} end, fn grads, state, _ -> {grads, state} end}
      {_, step} = GradScaler.Axon.skip_overflow(optimizer)
      grads = %{w: Nx.tensor([3.0e38, 3.0e38], type: {:f, 64}), b: Nx.tensor([1.0])}
      {told, state} = unscale.(Map.update!(grads, :w, &Nx.multiply(&1, 4)), begin.())
      assert {%{w: w, b: b}, _} = step.(told, %{}, grads)
      assert {Nx.to_flat_list(w), Nx.to_flat_list(b)} == {[0.0, 0.0], [0.0]}
      assert Nx.to_number(state.scale) == 2.0

      {told, _} = unscale.(%{w: Nx.tensor([8.0])}, begin.())
      assert Nx.to_flat_list(told.w) == [2.0]
    end
  end

  describe "Axon" do
    @describetag :axon
    @describetag :nx_runtime_call
    @compile {:no_warn_undefined, [Axon, Axon.Loop, Polaris.Optimizers, Polaris.Updates]}

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
      assert GradScaler.finite?(trained.model_state)
      assert Nx.to_number(trained.loss_scale_state.scale) == 2.0 ** 9
    end

    test "a micro-batch with an overflow is left out where gradients are accumulated" do
      summing = Polaris.Updates.scale(-0.1) |> Polaris.Updates.accumulate_gradients(2)
      {init, step} = GradScaler.Axon.skip_overflow(summing)
      params = %{w: Nx.tensor([1.0])}
      start = init.(params)
      assert {%{w: w}, ^start} = step.(%{w: Nx.tensor([:nan])}, start, params)
      assert w == Nx.tensor([0.0])
      assert {_, %{step: one}} = step.(%{w: Nx.tensor([2.0])}, start, params) |> sums()
      assert Nx.to_number(one) == 1
    end

    defp sums({updates, state}), do: {updates, elem(state, 0)}

    test "a scaler in the state of a loop scales by what it is at each step" do
      start = fn _x, _state -> %{scaler: GradScaler.new("torch"), scaled: Nx.tensor(0.0)} end
      step = fn x, state -> %{state | scaled: GradScaler.scale_loss(x, state.scaler)} end

      overflow = fn state ->
        {:continue, update_in(state.step_state.scaler, &GradScaler.update(&1, true))}
      end

      ended =
        Axon.Loop.loop(step, start)
        |> Axon.Loop.handle_event(:iteration_completed, overflow)
        |> Axon.Loop.run([Nx.tensor(1.0), Nx.tensor(1.0)])

      assert ended.step_state.scaled == Nx.tensor(32768.0)
      assert GradScaler.loss_scale(ended.step_state.scaler) == 16384.0
    end
  end
end
