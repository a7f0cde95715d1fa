defmodule GradScalerTest do
  use ExUnit.Case, async: true

  doctest GradScaler
  doctest GradScaler.Binaries
  doctest GradScaler.MixedPrecision

  alias GradScaler.{Factor, Native, Policy, Report, State}

  defp f32(values), do: {:f32, for(x <- values, into: <<>>, do: <<x::little-float-32>>)}
  defp f16(values), do: {:f16, for(x <- values, into: <<>>, do: <<x::little-float-16>>)}

  @infinite_f16 {:f16, <<0x7C00::little-16>>}
  @nan_f32 {:f32, <<0x7FC00000::little-32>>}

  describe "structs" do
    test "every struct survives being decoded and encoded" do
      {:ok, policy} = Native.policy_preset("fairscale")
      {:ok, state} = Native.state_init(nil, policy)
      {:ok, factor} = Native.factor_init(3.0)
      tensor = {1, <<0x7F800000::little-32, 5::32>>}
      {:ok, report, nil, nil} = Native.measure(nil, factor, [tensor], {7, nil, 0, false, false})

      for {module, binary} <- [
            {Policy, policy},
            {State, state},
            {Factor, factor},
            {Report, report}
          ] do
        assert module.encode(module.decode(binary)) == binary
      end
    end

    test "infinities and NaN are atoms, bits and rules have names, other bits are numbers" do
      for number <- [:infinity, :neg_infinity, :nan] do
        encoded = Factor.encode(%Factor{scale: number, scale_f32: number})
        assert %Factor{scale: ^number, scale_f32: ^number} = Factor.decode(encoded)
      end

      report = Report.decode(Report.encode(%Report{measured: [:amax, 64]}))
      assert report.measured == [:amax, 64]
      policy = GradScaler.policy(GradScaler.new("fairscale"))
      assert policy.quirks == [:tolerance_exclusive, :overflow_is_good]
      assert policy.floor_rule == :stop
    end

    test "reserved words that are not 0 are refused" do
      report = Report.encode(%Report{})
      assert_raise ArgumentError, fn -> Report.decode(binary_part(report, 0, 255) <> <<1>>) end
      assert_raise ArgumentError, fn -> Report.decode(report <> <<0>>) end
      assert_raise ArgumentError, fn -> State.decode(<<0::3064, 1>>) end
    end

    test "a state of 0.2 to 0.5, and one of a later version, is read" do
      for overflow <- [false, true],
          %{state: bytes} = GradScaler.update(GradScaler.new("torch"), overflow) do
        <<front::binary-size(172), _skip::32, guard::binary-size(80), _new::binary>> = bytes
        older = <<front::binary, 0::32, guard::binary>>
        assert State.decode(older).skip == if(overflow, do: 1, else: 0)
        assert State.encode(State.decode(older)) == bytes
        assert State.decode(bytes <> <<0::64>>) == State.decode(bytes)
        assert_raise ArgumentError, fn -> State.decode(bytes <> <<0::56, 1>>) end
        assert_raise ArgumentError, fn -> State.decode(older <> <<0>>) end
      end
    end

    test "a policy of an older version is read" do
      older = binary_part(Policy.encode(GradScaler.policy(GradScaler.new("torch"))), 0, 120)
      older = <<120::little-32, binary_part(older, 4, 116)::binary>>
      assert {:ok, _state} = Native.state_init(nil, older)
      assert Policy.decode(older).growth_interval == 2000
    end
  end

  describe "a step" do
    test "half types are unscaled into float32, double stays, the type can be chosen" do
      scaler = GradScaler.new("static", init_scale: 2.0)
      grads = {f16([2.0]), {:bf16, <<0x4000::little-16>>}, {:f64, <<2.0::little-float-64>>}}
      one32 = f32([1.0])

      assert {{^one32, ^one32, {:f64, <<1.0::little-float-64>>}}, _} =
               GradScaler.unscale(grads, scaler)

      assert {{{:f16, <<0x3C00::little-16>>}, _, _}, _} =
               GradScaler.unscale(grads, scaler, type: :same)

      assert {{{:f64, _}, {:f64, _}, {:f64, _}}, _} =
               GradScaler.unscale(grads, scaler, type: {:f, 64})
    end

    test "nested trees keep their shape, and the overflows have paths" do
      scaler = GradScaler.new("torch")
      grads = %{"dense" => [f32([1.0]), {@nan_f32, %{1 => @infinite_f16}}], "empty" => {:f32, ""}}
      {unscaled, report} = GradScaler.unscale(grads, scaler)

      assert %{"dense" => [{:f32, _}, {{:f32, _}, %{1 => {:f32, _}}}], "empty" => {:f32, ""}} =
               unscaled

      assert {report.nan_count, report.inf_count} == {1, 1}
      assert GradScaler.overflows(report) == [["dense", 1, 0], ["dense", 1, 1, 1]]

      assert GradScaler.overflows(GradScaler.measure(grads, scaler)) ==
               GradScaler.overflows(report)

      assert GradScaler.first_overflow(report) == {["dense", 1, 0], 0}
    end

    test "leaves are taken by their keys, whatever the order of the map" do
      # A map of more than 32 keys is in the order of their hashes, in every release.
      for keys <- [Enum.to_list(1..40), for(n <- 1..40, do: "layer #{n}")] do
        tree = Map.new(keys, &{&1, @nan_f32})
        assert Map.keys(tree) != Enum.sort(keys)
        report = GradScaler.measure(tree, GradScaler.new("torch"))
        assert GradScaler.overflows(report) == for(key <- Enum.sort(keys), do: [key])
      end
    end

    test "the factor of an earlier step unscales late gradients" do
      scaler = GradScaler.new("torch", init_scale: 8.0)
      factor = GradScaler.factor(scaler)
      later = GradScaler.update(scaler, true)
      half = f32([0.5])
      assert {^half, _} = GradScaler.unscale(f16([4.0]), later, factor: factor)
    end

    test "clipping is one pass" do
      scaler = GradScaler.new("static", init_scale: 2.0)
      grads = f32([6.0, 8.0])
      report = GradScaler.measure(grads, scaler, want: [:norm])
      assert GradScaler.norm(report) == 5.0
      factor = GradScaler.clip_factor(scaler, report, 1.0)
      {_, clipped} = GradScaler.unscale(grads, scaler, factor: factor, want: [:norm])
      assert_in_delta GradScaler.norm(clipped), 1.0, 1.0e-6
    end

    test "every dtype is unscaled, narrow ones into float32 and complex ones into themselves" do
      scaler = GradScaler.new("static", init_scale: 2.0)
      three = f32([3.0])

      narrow = %{
        f8_e4m3fn: <<0x4C>>,
        f8_e5m2: <<0x46>>,
        cb16: <<0x5900::little-16>>,
        f16: <<6.0::little-float-16>>,
        bf16: <<0x40C0::little-16>>
      }

      for {_dtype, _binary} = pair <- narrow do
        assert {^three, _} = GradScaler.unscale(pair, scaler)
        assert GradScaler.cast_params(f32([6.0]), elem(pair, 0)) == pair
      end

      for {dtype, bits} <- [complex64: 32, complex128: 64] do
        pair = &{dtype, <<&1::little-float-size(bits), &2::little-float-size(bits)>>}
        expected = pair.(3.0, -1.0)
        assert {^expected, report} = GradScaler.unscale(pair.(6.0, -2.0), scaler, want: [:amax])
        assert {report.elements, report.amax} == {1, 3.0}
      end
    end

    test "the histogram counts magnitudes after unscaling, where it is wanted" do
      scaler = GradScaler.new("static", init_scale: 2.0)
      grads = f32([2.0, -2.0, 0.0, 2.0e-30, 1.0e30])
      report = GradScaler.measure(grads, scaler, histogram: true)
      assert report.histogram == [1 | List.duplicate(0, 11)] ++ [2, 0, 0, 1, 5]
      merged = GradScaler.merge([report, report], :shards)
      assert {Enum.at(merged.histogram, 12), Enum.at(merged.histogram, 16)} == {4, 10}
      without = GradScaler.measure(grads, scaler)
      assert without.histogram == nil
      assert GradScaler.merge([report, without], :shards).histogram == nil
    end

    test "clamping clamps what overflows, counts it, and tells the overflow" do
      scaler = GradScaler.new("static", init_scale: 2.0)
      grads = [f32([8.0, -8.0, 1.0]), @infinite_f16]
      {clipped, report} = GradScaler.unscale(grads, scaler, clamp: 2.0, want: :amax)
      assert clipped == [f32([2.0, -2.0, 0.5]), f32([2.0])]
      assert report.clamped == 3
      assert {GradScaler.overflow?(report), report.amax} == {true, 4.0}
    end

    test "a micro-batch is added as a whole or not at all, whatever the sums are made of" do
      scaler = GradScaler.new("static", init_scale: 2.0)
      small = for i <- 1..3, do: f32([i * 1.0])
      <<_::24, part::binary>> = <<0::24, 1.0::little-float-32>>

      sums = %{
        small: small,
        double: {:f64, <<1.0::little-float-64>>},
        part: {:f32, part},
        none: f32([])
      }

      one = f16([2.0])
      grads = %{small: [one, one, one], double: one, part: one, none: f16([])}
      copy = :erlang.term_to_binary(sums)

      {added, report} = GradScaler.unscale_accumulate(sums, grads, scaler, want: :norm)

      assert added == %{
               small: [f32([2.0]), f32([3.0]), f32([4.0])],
               double: {:f64, <<2.0::little-float-64>>},
               part: f32([2.0]),
               none: f32([])
             }

      assert GradScaler.norm(report) == :math.sqrt(5)
      {kept, report} = GradScaler.unscale_accumulate(added, %{grads | part: @nan_f32}, scaler)
      assert {kept, GradScaler.overflow?(report)} == {added, true}
      assert :erlang.term_to_binary(sums) == copy
    end

    test "the verdict of a policy that judges by the norm is there before the step" do
      big = f32([1.0e19, 1.0e20])

      for preset <- ["fairseq", "fairscale", "cerebras"] do
        scaler = GradScaler.new(preset, init_scale: 1.0)
        {_, report} = GradScaler.unscale(big, scaler)
        assert report.overflow, preset
        assert <<1.0::little-float-32, 1::little-32, _::binary>> = Report.encode(report)
        assert GradScaler.overflows(report) == []
        assert GradScaler.first_overflow(report) == nil
        assert :skipped in GradScaler.events(GradScaler.update(scaler, report))
        assert GradScaler.overflow?(GradScaler.measure(big, scaler))
      end

      refute GradScaler.overflow?(elem(GradScaler.unscale(big, GradScaler.new("none")), 1))
    end

    test "each gradient has a report of its own, in the same pass" do
      scaler = GradScaler.new("static", init_scale: 2.0)
      grads = %{a: f32([6.0, 8.0]), b: [@nan_f32, f16([2.0])]}
      {_, report} = GradScaler.unscale(grads, scaler, want: [:norm, :amax])

      assert [{[:a], a}, {[:b, 0], b}, {[:b, 1], c}] = GradScaler.per_tensor(report)
      assert {GradScaler.norm(a), a.amax, a.overflow} == {5.0, 4.0, false}
      assert {b.nan_count, b.overflow, b.first_element} == {1, true, 0}
      assert {GradScaler.norm(c), c.elements} == {1.0, 1}
      parts = for {_path, part} <- GradScaler.per_tensor(report), do: part
      merged = GradScaler.merge(parts, :shards)
      expected = %{report | kind: :merged, first_tensor: merged.first_tensor}
      assert Report.encode(merged) == Report.encode(expected)
    end

    test "a report that was made of bytes does not know its paths, and says so" do
      {_, report} = GradScaler.unscale([{:f32, <<0x7FC00000::little-32>>}], GradScaler.new())
      report = GradScaler.merge([Report.decode(Report.encode(report))], :shards)

      assert_raise ArgumentError, ~r/decoded from bytes/, fn ->
        GradScaler.first_overflow(report)
      end
    end

    test "merged reports know what they are of, and judge by the scaler's policy" do
      scaler = GradScaler.new("fairseq")
      large = GradScaler.measure(f32([1.5e19]), GradScaler.new("none"), want: :norm)
      merged = GradScaler.merge([large, large], :shards)
      assert_in_delta GradScaler.norm(merged), 2.1e19, 1.0e18
      refute GradScaler.overflow?(merged)
      assert GradScaler.overflow?(GradScaler.merge([large, large], :shards, scaler))
      summed = GradScaler.merge([large, large], :addends)
      assert_raise ArgumentError, ~r/no norm/, fn -> GradScaler.norm(summed) end
      assert {large.kind, merged.kind} == {:tensors, :merged}
      number = GradScaler.number_report(-3.0)
      assert {number.kind, number.measured, number.number} == {:number, [:amax], -3.0}
    end

    test "ranks send reports as bytes, and a failed one stops all" do
      scaler = GradScaler.new("torch")
      report = GradScaler.measure(f32([3.0]), scaler, want: :norm)
      sent = Report.encode(report)
      assert byte_size(sent) == 256
      assert Report.decode(sent) == %{report | per_tensor: nil, paths: nil}
      merged = GradScaler.merge([Report.decode(sent), GradScaler.failed_report()], :shards)

      assert {GradScaler.overflow?(merged), merged.overflow, merged.status} ==
               {true, true, :device}

      # A float says it as well as a flag.
      for first <- [1.0, 0.5], rest = binary_part(sent, 8, 248) do
        told = Report.decode(<<first::little-float-32, 0::32, rest::binary>>)
        assert <<1.0::little-float-32, 1::little-32, ^rest::binary>> = Report.encode(told)
      end

      assert_raise ArgumentError, "report.overflow is 1: it must be true or false", fn ->
        Report.encode(%Report{overflow: 1})
      end
    end

    test "a loss of a narrow type, or of integers, is scaled into float32" do
      scaler = GradScaler.new("torch")
      scaled = f32([131_072.0])
      assert scaled == GradScaler.scale_loss(f16([2.0]), scaler)
      assert GradScaler.scale_loss(f16([0.5]), scaler, type: :same) == f16([32768.0])
      assert GradScaler.scale_loss(3, scaler) == 196_608.0
      assert GradScaler.scale_loss(-1.0e308, scaler) == :neg_infinity
      assert {:f64, _} = GradScaler.scale_loss({:f64, <<1.0::little-float-64>>}, scaler)
    end

    test "a scale that has become infinite is :infinity, and says so when it is used" do
      scaler = GradScaler.new("keras", init_scale: 2.0 ** 127, growth_interval: 1)
      grown = GradScaler.update(scaler, false)
      assert GradScaler.loss_scale(grown) == :infinity
      message = ~r/factor\.scale is inf: it must be finite: it grew without a ceiling/
      assert_raise ArgumentError, message, fn -> GradScaler.scale_loss(1.0, grown) end
      assert_raise ArgumentError, message, fn -> GradScaler.unscale(f32([1.0]), grown) end
    end

    test "what is passed is never written" do
      grads = for _ <- 1..3, do: f32(Enum.map(1..100, &(&1 * 1.0)))
      copies = for {dtype, binary} <- grads, do: {dtype, :binary.copy(binary)}
      GradScaler.unscale(grads, GradScaler.new())
      assert grads == copies
    end

    test "parts of binaries are read where they lie, at any offset" do
      <<_::24, part::binary>> = <<0::24, 6.0::little-float-32>>
      <<_::3, bits::bitstring>> = <<0::3, 6.0::little-float-32>>
      three = f32([3.0])
      scaler = GradScaler.new("static", init_scale: 2.0)
      assert {{^three, ^three}, _} = GradScaler.unscale({{:f32, part}, {:f32, bits}}, scaler)
    end
  end

  test "info tells whether there is CUDA, or why not" do
    GradScaler.on_device(GradScaler.new(), :cuda)
    assert GradScaler.info().cuda == "available"
  rescue
    error in GradScaler.Error -> assert error.message =~ GradScaler.info().cuda
  end

  describe "a scaler" do
    test "is saved and loaded in the bytes of every language" do
      scaler = GradScaler.new("megatron") |> GradScaler.update(true) |> GradScaler.update(false)
      assert "GSCSTATE" <> _ = bytes = GradScaler.save(scaler)
      assert GradScaler.load(bytes) == scaler
    end

    test "takes another scale and keeps its counts" do
      scaler = GradScaler.new("torch") |> GradScaler.update(false) |> GradScaler.set_scale(4)
      assert {GradScaler.loss_scale(scaler), GradScaler.state(scaler).good_steps} == {4.0, 1}
      assert GradScaler.loss_scale(GradScaler.set_scale(scaler, :infinity)) == :infinity
      assert GradScaler.loss_scale(GradScaler.set_scale(scaler, 0)) == 0.0
    end

    test "is made of a scale and counts" do
      counts = [
        good_steps: 7,
        steps_since_change: 9,
        overflows_since_reset: 1,
        total_overflows: 2,
        total_growths: 3,
        total_backoffs: 4
      ]

      scaler = GradScaler.put_state(GradScaler.new("megatron"), [scale: 16.0] ++ counts)
      assert GradScaler.loss_scale(scaler) == 16.0

      assert Keyword.new(counts, fn {name, _} ->
               {name, Map.fetch!(GradScaler.state(scaler), name)}
             end) == counts
    end

    test "takes fields without a preset" do
      for fields <- [[growth_interval: 5], %{growth_interval: 5}],
          do: assert(GradScaler.policy(GradScaler.new(fields)).growth_interval == 5)

      assert GradScaler.new([]) == GradScaler.new()
      assert_raise ArgumentError, ~r/fields is 5/, fn -> GradScaler.new("torch", 5) end
    end

    test "shows what matters" do
      assert inspect(GradScaler.new("torch")) ==
               "#GradScaler<scale 65536.0, 0 good steps, 0 overflows, 0 growths, 0 backoffs>"
    end

    test "tells what it did with the report's numbers, and names the tensor" do
      scaler = GradScaler.new("torch", guard_norm: 100.0, init_scale: 1.0)
      grads = %{a: {:f32, <<3.0::little-float-32>>}, b: {:f32, <<0x7FC00000::little-32>>}}
      {_, report} = GradScaler.unscale(grads, scaler, want: [:norm])
      scaler = GradScaler.update(scaler, report)
      metrics = GradScaler.metrics(scaler, report)
      assert metrics[:overflow] and metrics[:nan_count] == 1 and metrics[:norm] == nil
      refute Keyword.has_key?(GradScaler.metrics(scaler), :nan_count)

      assert [%{kind: :not_finite, entry: 1}, %{kind: :never_grows}] =
               GradScaler.diagnose(scaler, report, planned_steps: 100)
    end

    test "sends an event for each update, where somebody listens" do
      scaler = GradScaler.update(GradScaler.new("torch"), false)
      refute_received {:event, _, _, _}
      test = self()

      send_it = fn event, measurements, metadata, _ ->
        send(test, {:event, event, measurements, metadata})
      end

      :telemetry.attach("listener", [:grad_scaler, :update], send_it, nil)
      scaler = GradScaler.update(scaler, true)
      :telemetry.detach("listener")
      assert_received {:event, [:grad_scaler, :update], measurements, %{scaler: ^scaler}}
      assert measurements.total_overflows == 1
    end

    test "knows all presets" do
      for {name, summary} <- GradScaler.presets() do
        assert %GradScaler{} = GradScaler.new(name)
        assert summary != ""
      end
    end
  end
end
