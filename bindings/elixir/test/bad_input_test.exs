defmodule GradScaler.BadInputTest do
  # Wrong arguments raise ArgumentError and name the argument; at the native layer they are tuples. Nothing crashes.
  use ExUnit.Case, async: true

  alias GradScaler.{Binaries, Native}

  defp one, do: elem(Native.factor_init(1.0), 1)
  defp torch, do: GradScaler.new("torch")

  test "friendly calls raise ArgumentError that names what was wrong" do
    pair = {:f32, <<0::32>>}

    cases = [
      {~r/no preset is named "torsh"/, fn -> GradScaler.new("torsh") end},
      {~r/no field :growth/, fn -> GradScaler.new("torch", growth: 1) end},
      {~r/policy.backoff_factor is 1.5: it must be from 0 to 1/,
       fn -> GradScaler.new("torch", backoff_factor: 1.5) end},
      {~r/policy.growth_interval is 1.5: it must be an integer/,
       fn -> GradScaler.new("torch", growth_interval: 1.5) end},
      {~r/policy.hysteresis is 4294967296/,
       fn -> GradScaler.new("torch", hysteresis: 2 ** 32) end},
      {~r/policy.growth_rule is :sometimes, not one of \[:reached/,
       fn -> GradScaler.new("torch", growth_rule: :sometimes) end},
      {~r/policy.init_scale is "big": it must be a number/,
       fn -> GradScaler.new("torch", init_scale: "big") end},
      {~r/policy.init_scale is .*: it must be/,
       fn -> GradScaler.new("torch", init_scale: :nan) end},
      {~r/policy.max_scale is 1000.*: it must be a number that a double/,
       fn -> GradScaler.new("torch", max_scale: 10 ** 400) end},
      {~r/\[:w\]\[1\] is 5: expected a tensor/,
       fn -> GradScaler.unscale(%{w: [pair, 5]}, torch()) end},
      {~r/the tree is nil: expected a tensor/, fn -> GradScaler.unscale(nil, torch()) end},
      {~r/\[0\] is ~D\[2020-01-01\]: expected/,
       fn -> GradScaler.unscale([~D[2020-01-01]], torch()) end},
      {~r/the tree is 1: expected/, fn -> GradScaler.unscale([pair | 1], torch()) end},
      {~r/\[:w\] has the dtype :f8, not one of/,
       fn -> GradScaler.unscale(%{w: {:f8, "x"}}, torch()) end},
      {~r/tensors\[1\] has 3 bytes, which is no multiple of the 4/,
       fn -> GradScaler.unscale([pair, {:f32, "abc"}], torch()) end},
      {~r/type is {:f, 4}, not one of/, fn -> GradScaler.cast_params(pair, {:f, 4}) end},
      {~r/one is complex: make both or none/, fn -> GradScaler.cast_params(pair, {:c, 64}) end},
      {~r/limit is 0: it must be finite and above 0/,
       fn -> GradScaler.clip_value(pair, torch(), 0) end},
      {~r/limit is not a number/, fn -> GradScaler.clip_value(pair, torch(), nil) end},
      {~r/sums is a tree of another shape/,
       fn -> GradScaler.accumulate(%{w: pair}, %{v: pair}, torch()) end},
      {~r/out\[0\] has 2 elements, its tensor 1/,
       fn -> GradScaler.accumulate({:f32, <<0::64>>}, pair, torch()) end},
      {~r/one is complex/,
       fn -> GradScaler.accumulate({:complex64, <<0::64>>}, pair, torch()) end},
      {~r/unknown keys \[:type\]/,
       fn -> GradScaler.accumulate(pair, pair, torch(), type: :f32) end},
      {~r/report.histogram is \[1\]: it must be a list of 16 numbers/,
       fn -> GradScaler.update(torch(), %GradScaler.Report{histogram: [1]}) end},
      {~r/want is :everything, not one of \[:counts/,
       fn -> GradScaler.unscale(pair, torch(), want: :everything) end},
      {~r/unknown keys \[:typ\]/, fn -> GradScaler.unscale(pair, torch(), typ: :f32) end},
      {~r/factor is 2.0, not a GradScaler.Factor/,
       fn -> GradScaler.unscale(pair, torch(), factor: 2.0) end},
      {~r/factor.scale is 0/,
       fn -> GradScaler.unscale(pair, torch(), factor: %GradScaler.Factor{}) end},
      {~r/report is :overflow: expected a GradScaler.Report/,
       fn -> GradScaler.update(torch(), :overflow) end},
      {~r/reports holds 1/, fn -> GradScaler.update(torch(), [%GradScaler.Report{}, 1]) end},
      {~r/report has no norm/,
       fn -> GradScaler.norm(elem(GradScaler.unscale(pair, torch()), 1)) end},
      {~r/report.sum_squares.*GSC_WANT_NORM|no norm/,
       fn -> GradScaler.clip_factor(elem(GradScaler.unscale(pair, torch()), 1), torch(), 1.0) end},
      {~r/scale is 0/, fn -> GradScaler.set_scale(torch(), 0) end},
      {~r/scale is not a number/, fn -> GradScaler.set_scale(torch(), "1") end},
      {~r/amax/, fn -> GradScaler.update(GradScaler.new("openseq2seq_logmax"), true) end},
      {~r/bytes/, fn -> GradScaler.load("nothing") end},
      {~r/bytes is not a binary/, fn -> GradScaler.load(:nothing) end},
      {~r/dtype is 1, not one of/, fn -> Binaries.scale(one(), [{1, ""}], [:f32]) end}
    ]

    for {message, call} <- cases, do: assert_raise(ArgumentError, message, call)
  end

  test "saved bytes that are cut or changed anywhere are refused" do
    bytes = GradScaler.save(torch())

    for i <- 0..(byte_size(bytes) - 1) do
      <<head::binary-size(i), byte, tail::binary>> = bytes
      assert_raise ArgumentError, fn -> GradScaler.load(head) end

      assert_raise ArgumentError, fn ->
        GradScaler.load(<<head::binary, Bitwise.bxor(byte, 1), tail::binary>>)
      end
    end
  end

  test "native calls return status, argument, index, name and message" do
    tensor = {1, <<0::32>>}

    cases = [
      {{-3, 0, -1, "name"}, Native.policy_preset("nothing")},
      {{-8, 0, -1, "name"}, Native.policy_preset(:torch)},
      {{-8, 0, -1, "name"}, Native.policy_preset(String.duplicate("x", 64))},
      {{-8, 0, -1, "name"}, Native.policy_preset("a\0b")},
      {{-2, 0, -1, "policy"}, Native.policy_check("short")},
      {{-2, 0, -1, "policy"}, Native.policy_check(<<152::little-32, 0::size(160 * 8)>>)},
      {{-2, 1, -1, "factor"}, Native.unscale("", [], [], 0)},
      {{-8, 1, -1, "factor"}, Native.factor_multiply(nil, 2.0)},
      {{-8, 2, -1, "tensors"}, Native.unscale(one(), tensor, [1], 0)},
      {{-8, 2, -1, "tensors"}, Native.unscale(one(), [tensor | tensor], [1], 0)},
      {{-8, 2, 1, "tensors[1]"}, Native.unscale(one(), [tensor, {1, :x}], [1, 1], 0)},
      {{-8, 2, 0, "tensors[0]"}, Native.unscale(one(), [{-1, ""}], [1], 0)},
      {{-9, 2, 0, "tensors[0]"}, Native.unscale(one(), [{99, ""}], [1], 0)},
      {{-10, 2, 0, "tensors[0]"}, Native.unscale(one(), [{2, <<0::32>>}], [1], 0)},
      {{-10, 3, -1, "out"}, Native.unscale(one(), [tensor], [], 0)},
      {{-8, 3, -1, "out"}, Native.unscale(one(), [tensor], 1, 0)},
      {{-9, 3, 0, "out[0]"}, Native.unscale(one(), [tensor], [99], 0)},
      {{-8, 5, -1, "want"}, Native.unscale(one(), [tensor], [1], -1)},
      {{-12, 5, -1, "want"}, Native.unscale(one(), [tensor], [1], 1024)},
      {{-8, 3, -1, "out"}, Native.accumulate(one(), [tensor], 1, 0)},
      {{-10, 3, -1, "out"}, Native.accumulate(one(), [tensor], [], 0)},
      {{-8, 3, 0, "out[0]"}, Native.accumulate(one(), [tensor], [1], 0)},
      {{-10, 3, 0, "out[0]"}, Native.accumulate(one(), [tensor], [{1, ""}], 0)},
      {{-8, 2, -1, "limit"}, Native.clip_value(one(), :infinity, [tensor], [1], 0)},
      {{-8, 0, -1, "dtype"}, Native.dtype_size(2 ** 32)},
      {{-8, 0, -1, "scale"}, Native.factor_init(:nan)},
      {{-8, 0, -1, "scale"}, Native.factor_init(:other)}
    ]

    for {expected, result} <- cases do
      assert {:error, {status, argument, index, name, message}} = result
      assert {status, argument, index, name} == expected
      assert message =~ ~r/\w/
    end
  end

  test "no function crashes on any term" do
    terms = [
      nil,
      :nan,
      0,
      -1,
      2 ** 70,
      1.5,
      "",
      <<1::3>>,
      [],
      [1],
      [{1, ""} | 2],
      {},
      {1},
      %{},
      self(),
      make_ref()
    ]

    functions = Native.__info__(:functions) -- [load: 0]

    for {name, arity} <- functions, arity > 0, _ <- 1..200 do
      result = apply(Native, name, for(_ <- 1..arity, do: Enum.random(terms)))

      assert result == nil or is_integer(result) or is_binary(result) or
               elem(result, 0) in [:ok, :error]
    end
  end
end
