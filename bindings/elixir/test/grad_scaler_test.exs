defmodule GradScalerTest do
  use ExUnit.Case, async: true

  import GradScaler.Wording

  doctest GradScaler, except: [new: 2, reason: 3, set_rank: 3]
  doctest GradScaler.Binaries
  doctest GradScaler.MixedPrecision

  alias GradScaler.{Factor, Native, Policy, Report, State}

  defp f64(values), do: {:f64, for(x <- values, into: <<>>, do: <<x::little-float-64>>)}
  defp f32(values), do: {:f32, for(x <- values, into: <<>>, do: <<x::little-float-32>>)}
  defp f16(values), do: {:f16, for(x <- values, into: <<>>, do: <<x::little-float-16>>)}

  # Divides by 2.
  defp half, do: GradScaler.new("static", init_scale: 2.0)

  @infinite_f16 {:f16, <<0x7C00::little-16>>}
  @nan_f32 {:f32, <<0x7FC00000::little-32>>}

  describe "structs" do
    test "every struct survives being decoded and encoded" do
      {:ok, policy} = Native.policy_preset("fairscale")
      {:ok, state} = Native.state_init(nil, policy)
      {:ok, factor} = Native.factor_init(3.0)
      tensor = {1, <<0x7F800000::little-32, 5::32>>}

      {:ok, report, nil, nil} =
        Native.measure(nil, factor, [tensor], {7, nil, 0, false, false, nil})

      structs = [{Policy, policy}, {State, state}, {Factor, factor}, {Report, report}]
      for {module, binary} <- structs, do: assert(module.encode(module.decode(binary)) == binary)
    end

    test "infinities and NaN are atoms, bits and rules have names, other bits are numbers" do
      for number <- [:infinity, :neg_infinity, :nan] do
        encoded = Factor.encode(%Factor{scale: number, scale_f32: number})
        assert %Factor{scale: ^number, scale_f32: ^number} = Factor.decode(encoded)
      end

      report = %Report{measured: [:amax, 64]}
      assert Report.decode(Report.encode(report)).measured == report.measured
      policy = GradScaler.policy(GradScaler.new("fairscale"))
      assert policy.quirks == [:tolerance_exclusive, :overflow_is_good]
      assert policy.floor_rule == :stop
    end

    # An Elixir term that 0.9 saved, of a scaler with the preset "torch", init_scale 1024, a good step and an overflow.
    @saved_by_0_9 Path.join(__DIR__, "saved_by_0.9.etf")
    @sentence "cannot be read by this version (#{Mix.Project.config()[:version]}): 0.9 or an earlier candidate saved this; " <>
                "start anew, and set the old scale"

    test "what 0.9 saved is refused by one sentence, except the scale" do
      saved = @saved_by_0_9 |> File.read!() |> :erlang.binary_to_term()
      %{policy: policy, state: state} = scaler = saved.scaler
      assert {byte_size(policy), byte_size(state)} == {216, 384}
      grads = f32([1.0])
      report = GradScaler.measure(grads, GradScaler.new())

      calls = [
        {"bytes", fn -> GradScaler.load(saved.bytes) end},
        {"log2_mean", fn -> GradScaler.Checkpoint.read(saved.map) end},
        {"log2_mean", fn -> GradScaler.Checkpoint.read(saved.map, GradScaler.new()) end},
        {"a.log2_mean", fn -> GradScaler.Checkpoint.read(%{a: saved.map}) end},
        {"state", fn -> GradScaler.state(scaler) end},
        {"state", fn -> GradScaler.events(scaler) end},
        {"state", fn -> GradScaler.reason(scaler) end},
        {"state", fn -> GradScaler.set_scale(scaler, 1.0) end},
        {"state", fn -> GradScaler.combine_decisions(scaler, GradScaler.new()) end},
        {"other", fn -> GradScaler.combine_decisions(GradScaler.new(), scaler) end},
        {"policy", fn -> GradScaler.policy(scaler) end},
        {"policy", fn -> GradScaler.traits(scaler) end},
        {"policy", fn -> GradScaler.update(scaler, report) end},
        {"policy", fn -> GradScaler.save(scaler) end},
        {"policy", fn -> GradScaler.metrics(scaler) end},
        {"policy", fn -> GradScaler.set_rank(report, scaler, 0) end},
        {"policy", fn -> GradScaler.merge([report], :shards, scaler) end},
        {"policy", fn -> GradScaler.Checkpoint.write(scaler, "torch") end},
        {"options.policy", fn -> GradScaler.unscale(grads, scaler) end},
        {"policy", fn -> Policy.encode(saved.policy) end},
        {"state", fn -> State.encode(saved.state) end},
        {"report", fn -> GradScaler.update(GradScaler.new(), saved.report) end}
      ]

      sentences =
        for {name, call} <- calls do
          error = assert_raise ArgumentError, call
          assert [^name, sentence] = String.split(error.message, " ", parts: 2)
          sentence
        end

      assert [sentence] = Enum.uniq(sentences)
      assert wording(sentence) == wording(@sentence)
      assert GradScaler.loss_scale(scaler) == 512.0
    end

    test "a state or a policy of 0.2 to 0.8 is refused" do
      %{state: <<front::binary-size(88), _::binary>>} = GradScaler.new("torch")

      for size <- [256, 384] do
        older =
          <<front::binary, 1.0::little-float-64, 1.0::little-float-64, 0::size((size - 104) * 8)>>

        assert_raise ArgumentError, ~r/^state /, fn -> State.decode(older) end
        assert {:error, %{status: status}} = Native.state_reason(older, nil, nil, nil, nil, nil)
        assert status == if(size == 384, do: -14, else: -2)
      end

      for size <- [120, 160, 216], older = <<size::little-32, 0::size((size - 4) * 8)>> do
        assert {:error, %{status: -14}} = Native.state_init(nil, older)
        error = assert_raise ArgumentError, fn -> Policy.decode(older) end
        assert error.message =~ "policy " <> wording(@sentence)
      end
    end
  end

  describe "a step" do
    test "narrow dtypes are unscaled into float32, others into themselves; the type can be chosen" do
      for {dtype, _six} = pair <- [
            f8_e4m3fn: <<0x4C>>,
            f8_e5m2: <<0x46>>,
            cb16: <<0x5900::little-16>>,
            f16: <<6.0::little-float-16>>,
            bf16: <<0x40C0::little-16>>
          ] do
        assert elem(GradScaler.unscale(pair, half()), 0) == f32([3.0])
        assert GradScaler.cast_params(f32([6.0]), dtype) == pair
      end

      for {dtype, bits} <- [complex64: 32, complex128: 64] do
        pair = &{dtype, <<&1::little-float-size(bits), &2::little-float-size(bits)>>}
        {unscaled, report} = GradScaler.unscale(pair.(6.0, -2.0), half(), want: [:amax])
        assert {unscaled, report.elements, report.amax} == {pair.(3.0, -1.0), 1, 3.0}
      end

      for {options, expected} <- [
            {[], {f32([1.0]), f64([1.0])}},
            {[type: :same], {f16([1.0]), f64([1.0])}},
            {[type: {:f, 64}], {f64([1.0]), f64([1.0])}}
          ] do
        assert elem(GradScaler.unscale({f16([2.0]), f64([2.0])}, half(), options), 0) == expected
      end
    end

    test "nested trees keep their shape, and the overflows have paths" do
      scaler = GradScaler.new("torch")
      grads = %{"dense" => [f32([1.0]), {@nan_f32, %{1 => @infinite_f16}}], "empty" => {:f32, ""}}
      {unscaled, report} = GradScaler.unscale(grads, scaler)

      assert %{"dense" => [{:f32, _}, {{:f32, _}, %{1 => {:f32, _}}}]} = unscaled
      assert unscaled["empty"] == {:f32, ""}
      assert {report.nan_count, report.inf_count} == {1, 1}
      assert GradScaler.first_overflow(report) == {["dense", 1, 0], 0}

      for report <- [report, GradScaler.measure(grads, scaler)],
          do: assert(GradScaler.overflows(report) == [["dense", 1, 0], ["dense", 1, 1, 1]])
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

    test "a factor can be an earlier step's, or can also clip" do
      scaler = GradScaler.new("torch", init_scale: 2.0)
      later = GradScaler.update(scaler, true)
      grads = f32([6.0, 8.0])
      report = GradScaler.measure(grads, later, factor: GradScaler.factor(scaler), want: [:norm])
      assert GradScaler.norm(report) == 5.0
      factor = GradScaler.clip_factor(scaler, report, 1.0)
      {_, clipped} = GradScaler.unscale(grads, later, factor: factor, want: [:norm])
      assert_in_delta GradScaler.norm(clipped), 1.0, 1.0e-6
    end

    test "the histogram counts magnitudes after unscaling, where it is wanted" do
      grads = f32([2.0, -2.0, 0.0, 2.0e-30, 1.0e30])
      report = GradScaler.measure(grads, half(), histogram: true)
      assert report.histogram == [1 | List.duplicate(0, 11)] ++ [2, 0, 0, 1, 5]
      doubled = Enum.map(report.histogram, &(2 * &1))
      assert GradScaler.merge([report, report], :shards).histogram == doubled
      without = GradScaler.measure(grads, half())
      assert without.histogram == nil
      assert GradScaler.merge([report, without], :shards).histogram == nil
    end

    test "clamping clamps what overflows, counts it, and tells the overflow" do
      grads = [f32([8.0, -8.0, 1.0]), @infinite_f16]
      {clamped, report} = GradScaler.unscale(grads, half(), clamp: 2.0, want: :amax)
      assert clamped == [f32([2.0, -2.0, 0.5]), f32([2.0])]
      assert {report.clamped, report.overflow, report.amax} == {3, true, 4.0}
    end

    test "a micro-batch is added as a whole or not at all, whatever the sums are made of" do
      <<_::24, part::binary>> = <<0::24, 1.0::little-float-32>>

      small = [f32([1.0]), f32([2.0])]
      sums = %{small: small, f64: f64([1.0]), part: {:f32, part}, none: f32([])}
      copy = :erlang.term_to_binary(sums)
      one = f16([2.0])
      grads = %{small: [one, one], f64: one, part: one, none: f16([])}

      {added, report} = GradScaler.unscale_accumulate(sums, grads, half(), want: :norm)
      small = [f32([2.0]), f32([3.0])]
      assert added == %{small: small, f64: f64([2.0]), part: f32([2.0]), none: f32([])}
      assert GradScaler.norm(report) == 2.0
      {kept, report} = GradScaler.unscale_accumulate(added, %{grads | part: @nan_f32}, half())
      assert {kept, GradScaler.overflow?(report)} == {added, true}
      assert :erlang.term_to_binary(sums) == copy
    end

    test "the verdict of a policy that judges by the norm is there before the step" do
      big = f32([1.0e19, 1.0e20])
      scaler = GradScaler.new("fairseq", init_scale: 1.0)
      {_, report} = GradScaler.unscale(big, scaler)
      assert GradScaler.overflow?(report)
      assert <<1.0::little-float-32, 1::little-32, _::binary>> = Report.encode(report)
      assert {GradScaler.overflows(report), GradScaler.first_overflow(report)} == {[], nil}
      assert GradScaler.skip?(GradScaler.update(scaler, report))
      assert GradScaler.overflow?(GradScaler.measure(big, scaler))
      refute GradScaler.overflow?(GradScaler.measure(big, GradScaler.new("none")))
    end

    test "each gradient has a report of its own, in the same pass" do
      grads = %{a: f32([6.0, 8.0]), b: [@nan_f32, f16([2.0])]}
      {_, report} = GradScaler.unscale(grads, half(), want: [:norm, :amax])

      assert [{[:a], a}, {[:b, 0], b}, {[:b, 1], c}] = GradScaler.per_tensor(report)
      assert {GradScaler.norm(a), a.amax, a.overflow} == {5.0, 4.0, false}
      assert {b.nan_count, b.overflow, b.first_element} == {1, true, 0}
      assert {GradScaler.norm(c), c.elements} == {1.0, 1}
      merged = GradScaler.merge([a, b, c], :shards)
      assert Report.encode(merged) == Report.encode(%{report | kind: :merged})
    end

    test "merged reports are judged by the scaler's policy, and a number is a report of its own" do
      large = GradScaler.measure(f32([1.5e19]), GradScaler.new("none"), want: :norm)
      assert %{kind: :merged, overflow: false} = GradScaler.merge([large, large], :shards)
      assert GradScaler.merge([large, large], :shards, GradScaler.new("fairseq")).overflow

      assert %{kind: :number, measured: [:amax], number: -3.0} = GradScaler.number_report(-3.0)

      for number <- [10 ** 400, -(10 ** 400), 1.0e151, :neg_infinity],
          do: assert(GradScaler.number_report(number) == GradScaler.number_report(:infinity))

      assert %{overflow: false, number: 18_446_744_073_709_551_616.0} =
               GradScaler.number_report(2 ** 64)
    end

    test "ranks send reports as bytes, which have no paths, and a failed one stops all" do
      report = GradScaler.measure(@nan_f32, GradScaler.new("torch"), want: :norm)

      sent = Report.encode(report)
      <<1.0::little-float-32, 1::little-32, rest::binary-size(248)>> = sent
      decoded = Report.decode(sent)
      assert decoded == %{report | per_tensor: nil, paths: nil, last_paths: nil}
      merged = GradScaler.merge([decoded, GradScaler.failed_report()], :shards)
      assert {merged.overflow, merged.status} == {true, :device}
      assert GradScaler.skip?(merged) and GradScaler.skip?(GradScaler.failed_report())
      message = ~r/decoded from bytes/
      assert_raise ArgumentError, message, fn -> GradScaler.first_overflow(merged) end

      # A float says it as well as a flag.
      for first <- [1.0, 0.5] do
        told = Report.decode(<<first::little-float-32, 0::32, rest::binary>>)
        assert Report.encode(told) == sent
      end
    end

    test "a loss of a narrow type, or of integers, is scaled into float32" do
      for {loss, options, scaled} <- [
            {f16([2.0]), [], f32([131_072.0])},
            {f16([0.5]), [type: :same], f16([32768.0])},
            {f64([1.0]), [], f64([65536.0])},
            {3, [], 196_608.0},
            {-1.0e308, [], :neg_infinity}
          ] do
        assert GradScaler.scale_loss(loss, GradScaler.new("torch"), options) == scaled
      end
    end

    test "a scale that has become infinite is :infinity, and says so when it is used" do
      scaler = GradScaler.new("keras", init_scale: 2.0 ** 127, growth_interval: 1)
      grown = GradScaler.update(scaler, false)
      assert GradScaler.loss_scale(grown) == :infinity

      message =
        ~r/factor\.scale #{wording("is inf: it must be finite: it grew without a ceiling")}/

      assert_raise ArgumentError, message, fn -> GradScaler.scale_loss(1.0, grown) end
      assert_raise ArgumentError, message, fn -> GradScaler.unscale(f32([1.0]), grown) end
    end

    test "parts of binaries are read where they lie, at any offset, and never written" do
      <<_::24, part::binary>> = <<0::24, 6.0::little-float-32>>
      <<_::3, bits::bitstring>> = <<0::3, 6.0::little-float-32>>
      three = f32([3.0])

      for _ <- 1..2 do
        grads = {{:f32, part}, {:f32, bits}, f32([6.0])}
        assert {{^three, ^three, ^three}, _} = GradScaler.unscale(grads, half())
      end
    end
  end

  describe "a loss that is not finite" do
    defp with_loss(loss, scaler \\ GradScaler.new(), grads \\ f32([1.0])) do
      {_, report} = GradScaler.unscale(grads, scaler, loss: loss, want: :norm)
      {report, GradScaler.update(scaler, report)}
    end

    test "holds the scale, and the count of good steps goes on after it" do
      good = GradScaler.update(GradScaler.new(), elem(with_loss(0.5), 0))

      for grads <- [f32([1.0]), @nan_f32], preset <- ["recommended", "guard"] do
        {report, held} = with_loss(:nan, %{good | policy: GradScaler.new(preset).policy}, grads)

        assert {report.loss, report.found_inf, GradScaler.skip?(report)} ==
                 {:not_finite, true, true}

        assert GradScaler.overflow?(report) == (grads == @nan_f32)
        assert GradScaler.events(held) == [:skipped, :bad_loss]
        assert {GradScaler.skip?(held), GradScaler.multiplier(held)} == {true, 0.0}
        state = GradScaler.state(held)
        assert {state.factor.scale, state.good_steps, state.steps_since_change} == {65536.0, 1, 1}

        assert {state.bad_losses_in_a_row, state.total_bad_losses, state.total_overflows} ==
                 {1, 1, 0}

        assert GradScaler.state(GradScaler.update(held, true)).bad_losses_in_a_row == 1
        assert %{bad_losses_in_a_row: 0} = GradScaler.state(elem(with_loss(1, held), 1))
        metrics = GradScaler.metrics(held, report)
        assert metrics[:bad_loss] and metrics[:skip] and not metrics[:overflow]
        assert metrics[:total_bad_losses] == 1
        refute Keyword.has_key?(GradScaler.metrics(held), :bad_loss)
        assert held |> GradScaler.save() |> GradScaler.load() == held
      end
    end

    test "can be a number, a tensor of any real dtype and length, or a tree of them" do
      for {loss, expected} <- [
            {nil, :unknown},
            {[], :unknown},
            {{:f32, ""}, :unknown},
            {3, :finite},
            {-2.5, :finite},
            {:neg_infinity, :not_finite},
            {f16([1.0, 2.0]), :finite},
            {@infinite_f16, :not_finite},
            {f64([1.0e308, -1.0e308]), :finite},
            {{:bf16, <<0x3F80::little-16, 0xFF80::little-16>>}, :not_finite},
            {{:f8_e4m3fn, <<0x7E>>}, :finite},
            {{:f8_e4m3fn, <<0x7F>>}, :not_finite},
            {{:f8_e5m2, <<0x7C>>}, :not_finite},
            {{:cb16, <<0x5900::little-16>>}, :finite},
            {[f16([1.0]), f64([1.0])], :finite},
            {%{a: f64([1.0]), b: [@nan_f32]}, :not_finite}
          ] do
        assert {loss, elem(with_loss(loss), 0).loss} == {loss, expected}
      end

      <<_::3, bits::bitstring>> = <<0::3, 0x7FC00000::little-32>>
      assert elem(with_loss({:f32, bits}), 0).loss == :not_finite
      assert %{loss: :unknown} = GradScaler.number_report(1.0)
    end

    test "is known of micro-batches, of clipped gradients, and beside a histogram" do
      scaler = GradScaler.new()
      measured = GradScaler.measure(f32([3.0]), scaler, loss: :nan, want: :norm, histogram: true)
      assert {measured.loss, Enum.sum(measured.histogram)} == {:not_finite, 2}
      assert Enum.map(GradScaler.per_tensor(measured), &elem(&1, 1).loss) == [:unknown]
      factor = GradScaler.clip_factor(scaler, measured, 1.0)
      {_, clipped} = GradScaler.unscale(f32([3.0]), scaler, factor: factor, loss: f32([0.0]))
      assert clipped.loss == :finite

      {sums, report} = GradScaler.unscale_accumulate(f32([1.0]), f16([0.0]), scaler, loss: :nan)
      assert {sums, report.loss, report.overflow} == {f32([1.0]), :not_finite, false}
    end

    test "is in a merged report, and in its bytes" do
      for {preset, skips} <- [{"recommended", true}, {"torch", false}] do
        scaler = GradScaler.new(preset)
        reports = [elem(with_loss(:nan, scaler), 0), %Report{kind: :flag}]
        merged = GradScaler.merge(reports, :addends, scaler)
        assert {merged.loss, merged.has_flag} == {:not_finite, true}
        assert GradScaler.skip?(merged) == skips
        assert Report.decode(Report.encode(merged)) == %{merged | paths: nil, last_paths: nil}
      end
    end
  end

  describe "the reason of a skip" do
    defp skipped do
      scaler = GradScaler.new("torch")
      grads = %{"layers" => [f32([1.0]), @infinite_f16, {@nan_f32, f32([2.0])}]}
      {_, report} = GradScaler.unscale(grads, scaler)
      {report, GradScaler.update(scaler, report)}
    end

    @tag :wording
    test "names the last bad gradient" do
      {report, updated} = skipped()
      assert GradScaler.reason(updated) == "skipped: overflow"
      reason = GradScaler.reason(updated, report)
      assert reason =~ "1 NaN and 1 Inf in 2 of 4 tensors"
      assert reason =~ ~s("layers.2.0")
      named = GradScaler.reason(updated, report, names: [nil, "a", "b", nil])
      assert named == String.replace(reason, "layers.2.0", "b")
      indexed = GradScaler.reason(updated, report, names: nil)
      assert indexed == String.replace(reason, ~s("layers.2.0"), "tensor 2")

      measured = GradScaler.measure(@nan_f32, GradScaler.new("torch"))
      assert GradScaler.reason(updated, measured) == "skipped: 1 NaN in tensor 0 alone"
      odd = GradScaler.measure(%{{1, :a} => @nan_f32}, GradScaler.new("torch"))
      assert GradScaler.reason(updated, odd) =~ ~s("{1, :a}")
    end

    test "has the numbers of the last bad gradient" do
      {report, updated} = skipped()
      assert {report.first_tensor, report.last_tensor} == {1, 2}
      assert GradScaler.last_overflow(report) == ["layers", 2, 0]
      expected = %{outcome: :skipped, cause: :overflow, nan_count: 1, inf_count: 1}
      decision = GradScaler.decision(updated, report)
      assert Map.take(decision, Map.keys(expected)) == expected
      assert {decision.bad_tensors, decision.tensor, decision.rank} == {2, 2, nil}
      assert %{bad_tensors: 0, tensor: nil} = GradScaler.decision(updated)

      long = List.duplicate("n" <> String.duplicate("\u00e9", 100), 4)
      assert String.valid?(GradScaler.reason(updated, report, names: long))
      refute GradScaler.reason(GradScaler.update(updated, false))
      assert GradScaler.last_overflow(%Report{}) == nil
    end

    test "asks for the cause by the evidence, and finds the first bad gradient of an order" do
      {report, updated} = skipped()

      known = [
        {[], :overflow, 1, 0},
        {[scale: 65_536, loss_dtype: :f16], :loss_dtype, 1, 0},
        {[losses: 2, bad_loss: 2, scale: 65_536, loss_dtype: :f16], :bad_loss, 1, 0},
        {[bad_parameters: 1, parameter_plus_1: 4, losses: 2, bad_loss: 2], :parameter, 3, nil}
      ]

      for {evidence, cause, tensor, before} <- known do
        options = [order: [3, 0, 1, 2], evidence: evidence]
        decision = GradScaler.decision(updated, report, options)
        found = {decision.cause, decision.tensor, decision.tensor_before}
        assert found == {cause, tensor, before}
      end

      ordered = GradScaler.reason(updated, report, order: [3, 0, 1, 2])
      assert wording(ordered) =~ wording(~s("layers.0", made just before, is finite))
    end

    test "names the rank, and of merged reports the gradient of the last" do
      scaler = GradScaler.new("torch")

      reports =
        for {grads, rank} <- [
              {%{a: @nan_f32, b: f32([1.0])}, 0},
              {[f32([1.0]), @nan_f32], 1},
              {[], 2}
            ],
            do: GradScaler.set_rank(GradScaler.measure(grads, scaler), scaler, rank)

      merged = GradScaler.merge(reports, :shards, scaler)

      assert {GradScaler.first_overflow(merged), GradScaler.last_overflow(merged)} ==
               {{[:a], 0}, [1]}

      assert GradScaler.ranks(merged) == %{first: 0, last: 1, loss: nil, failed: nil}
      updated = GradScaler.update(scaler, merged)
      words = ~r/^skipped: 2 NaN.* in "1" on rank 1/
      assert wording(GradScaler.reason(updated, merged)) =~ wording(words)
      assert %{rank: 1, tensor: 1, bad_tensors: 0} = GradScaler.decision(updated, merged)

      sent = merged |> Report.encode() |> Report.decode()
      assert GradScaler.reason(updated, sent) =~ wording("in tensor 1 on rank 1")
      assert_raise ArgumentError, ~r/decoded from bytes/, fn -> GradScaler.last_overflow(sent) end
    end
  end

  test "info tells whether there is CUDA, or why not" do
    GradScaler.on_device(GradScaler.new(), :cuda)
    assert GradScaler.info().cuda == "available"
  rescue
    error in GradScaler.Error -> assert error.message =~ GradScaler.info().cuda
  end

  describe "a scaler" do
    test "takes another scale and keeps its counts" do
      good = GradScaler.update(GradScaler.new("torch"), false)

      for {scale, expected} <- [{4, 4.0}, {:infinity, :infinity}, {0, 0.0}] do
        scaler = GradScaler.set_scale(good, scale)
        assert GradScaler.loss_scale(scaler) == expected
        assert GradScaler.state(scaler).good_steps == 1
      end
    end

    test "takes fields without a preset" do
      assert GradScaler.policy(GradScaler.new(%{growth_interval: 5})).growth_interval == 5
      assert GradScaler.new([]) == GradScaler.new()
    end

    test "shows what matters" do
      assert inspect(GradScaler.new("torch")) ==
               "#GradScaler<scale 65536.0, 0 good steps, 0 overflows, 0 growths, 0 backoffs>"
    end

    test "tells what it did with the report's numbers, and names the tensor" do
      scaler = GradScaler.new("torch", guard_norm: 100.0, init_scale: 1.0)
      report = GradScaler.measure(%{a: f32([3.0]), b: @nan_f32}, scaler, want: [:norm])
      scaler = GradScaler.update(scaler, report)
      metrics = GradScaler.metrics(scaler, report)
      assert metrics[:overflow] and metrics[:nan_count] == 1 and metrics[:norm] == nil
      refute Keyword.has_key?(GradScaler.metrics(scaler), :nan_count)

      scaler = scaler |> GradScaler.update(report) |> GradScaler.update(report)

      assert [%{kind: :not_finite, entry: 1}, %{kind: :never_grows}] =
               GradScaler.diagnose(scaler, report, planned_steps: 100)
    end

    test "sends an event for each update, where somebody listens" do
      scaler = GradScaler.update(GradScaler.new("torch"), false)
      refute_received {:event, _, _, _}
      test = self()
      send_it = fn event, numbers, about, _ -> send(test, {:event, event, numbers, about}) end
      :telemetry.attach("listener", [:grad_scaler, :update], send_it, nil)
      scaler = GradScaler.update(scaler, true)
      :telemetry.detach("listener")
      assert_received {:event, [:grad_scaler, :update], numbers, %{scaler: ^scaler}}
      assert numbers.total_overflows == 1
    end
  end
end
