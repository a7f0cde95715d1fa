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
      {:ok, state} = Native.state_init(policy)
      {:ok, factor} = Native.factor_init(3.0)
      {:ok, report} = Native.check(factor, [{1, <<0x7F800000::little-32, 5::32>>}], 63)

      for {module, binary} <- [
            {Policy, policy},
            {State, state},
            {Factor, factor},
            {Report, report}
          ] do
        assert module.encode(module.decode(binary)) == binary
      end
    end

    test "bits and rules have names" do
      policy = GradScaler.policy(GradScaler.new("fairscale"))
      assert policy.quirks == [:tolerate_below, :overflow_counts]
      assert policy.floor_rule == :stop
    end

    test "infinities and NaN are atoms" do
      for number <- [:infinity, :neg_infinity, :nan] do
        encoded = Factor.encode(%Factor{scale: number, scale_f32: number})
        assert %Factor{scale: ^number, scale_f32: ^number} = Factor.decode(encoded)
      end
    end

    test "a policy of an older version is read" do
      older = binary_part(Policy.encode(GradScaler.policy(GradScaler.new("torch"))), 0, 120)
      older = <<120::little-32, binary_part(older, 4, 116)::binary>>
      assert {:ok, _state} = Native.state_init(older)
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
      assert GradScaler.overflows(grads, scaler) == [["dense", 1, 0], ["dense", 1, 1, 1]]
    end

    test "an empty tree is no overflow" do
      assert {%{}, report} = GradScaler.unscale(%{}, GradScaler.new())
      refute GradScaler.has_overflow?(report)
    end

    test "an overflow that unscaling makes is found" do
      scaler = GradScaler.new("static", init_scale: 2.0 ** -10)
      {_, report} = GradScaler.unscale(f16([60000.0]), scaler, type: :same)
      assert GradScaler.has_overflow?(report)
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
      report = GradScaler.check(grads, scaler, want: [:norm])
      assert GradScaler.norm(report) == 5.0
      factor = GradScaler.clip_factor(report, scaler, 1.0)
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
      report = GradScaler.check(grads, scaler, want: :histogram)
      assert report.histogram == [1 | List.duplicate(0, 11)] ++ [2, 0, 0, 1]
      assert {report.histogram_elements, :histogram in report.absent} == {5, false}
      merged = GradScaler.merge([report, report])
      assert Enum.at(merged.histogram, 12) == 4
      assert :histogram in GradScaler.check(grads, scaler).absent
    end

    test "clipping by value clamps what overflows, and tells it" do
      scaler = GradScaler.new("static", init_scale: 2.0)
      grads = [f32([8.0, -8.0, 1.0]), @infinite_f16]
      {clipped, report} = GradScaler.clip_value(grads, scaler, 2.0, want: :amax)
      assert clipped == [f32([2.0, -2.0, 0.5]), f32([2.0])]
      assert {GradScaler.has_overflow?(report), report.amax} == {true, 4.0}
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

      {added, report} = GradScaler.accumulate(sums, grads, scaler, want: :norm)

      assert added == %{
               small: [f32([2.0]), f32([3.0]), f32([4.0])],
               double: {:f64, <<2.0::little-float-64>>},
               part: f32([2.0]),
               none: f32([])
             }

      assert GradScaler.norm(report) == :math.sqrt(5)
      {kept, report} = GradScaler.accumulate(added, %{grads | part: @nan_f32}, scaler)
      assert {kept, GradScaler.has_overflow?(report)} == {added, true}
      assert :erlang.term_to_binary(sums) == copy
    end

    test "reports of micro-batches count as one step" do
      scaler = GradScaler.new("torch")
      {_, good} = GradScaler.unscale(f32([1.0]), scaler)
      {_, bad} = GradScaler.unscale(@nan_f32, scaler)
      updated = GradScaler.update(scaler, [good, bad, good])
      assert {GradScaler.loss_scale(updated), GradScaler.state(updated).skipped} == {32768.0, 1}
    end

    test "a policy that judges by amax or the norm gets it without being asked" do
      scaler = GradScaler.new("openseq2seq_logmax")
      {_, report} = GradScaler.unscale(f32([4.0]), scaler)
      assert report.amax > 0

      assert GradScaler.loss_scale(GradScaler.update(scaler, report)) !=
               GradScaler.loss_scale(scaler)
    end

    test "a scale that has become infinite is :infinity, and says so when it is used" do
      scaler = GradScaler.new("keras", init_scale: 2.0 ** 127, growth_interval: 1)
      grown = GradScaler.update(scaler, false)
      assert GradScaler.loss_scale(grown) == :infinity
      message = ~r/factor\.scale is inf after 1 updates: it grew without a ceiling/
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

  describe "a scaler" do
    test "is saved and loaded in the bytes of every language" do
      scaler = GradScaler.new("megatron") |> GradScaler.update(true) |> GradScaler.update(false)
      assert "GSCSTATE" <> _ = bytes = GradScaler.save(scaler)
      assert GradScaler.load(bytes) == scaler
    end

    test "takes another scale and starts counting anew" do
      scaler = GradScaler.new("torch") |> GradScaler.update(false) |> GradScaler.set_scale(4)
      assert {GradScaler.loss_scale(scaler), GradScaler.state(scaler).good} == {4.0, 0}
    end

    test "shows what matters" do
      assert inspect(GradScaler.new("torch")) ==
               "#GradScaler<scale 65536.0, 0 good steps, 0 skipped, 0 growths, 0 backoffs>"
    end

    test "knows all presets" do
      for {name, summary} <- GradScaler.presets() do
        assert %GradScaler{} = GradScaler.new(name)
        assert summary != ""
      end
    end
  end
end
