defmodule GradScaler.BadInputTest do
  # Wrong arguments raise ArgumentError and name the argument; at the native layer they are tuples. Nothing crashes.
  use ExUnit.Case, async: true

  alias GradScaler.Native

  defp one, do: elem(Native.factor_init(1.0), 1)
  defp torch, do: GradScaler.new("torch")

  test "friendly calls raise ArgumentError that names what was wrong, in no words of C" do
    pair = {:f32, <<0::32>>}

    cases = [
      {~r/preset is "torsh", which is no preset: did you mean "torch"\?/,
       fn -> GradScaler.new("torsh") end},
      {~r/preset is {:torch}: it must be a name/, fn -> GradScaler.new({:torch}) end},
      {~r/preset is .*torch.*: it must be a name/, fn -> GradScaler.new(~c"torch") end},
      {~r/fields holds 5: they must be names/, fn -> GradScaler.new("torch", [5]) end},
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
      {~r/policy.init_scale is 0: it must be above 0/,
       fn -> GradScaler.new("torch", init_scale: 0.0) end},
      {~r/options.want is "norm", not one of \[:norm/,
       fn -> GradScaler.unscale(pair, torch(), want: "norm") end},
      {~r/policy.max_scale is 1000.*: it must be a number that a double/,
       fn -> GradScaler.new("torch", max_scale: 10 ** 400) end},
      {~r/\[:w\]\[1\] is 5: expected a tensor/,
       fn -> GradScaler.unscale(%{w: [pair, 5]}, torch()) end},
      {~r/the tree is nil: expected a tensor/, fn -> GradScaler.unscale(nil, torch()) end},
      {~r/\[0\] is ~D\[2020-01-01\]: expected/,
       fn -> GradScaler.unscale([~D[2020-01-01]], torch()) end},
      {~r/the tree is 2: expected/, fn -> GradScaler.unscale([pair | 2], torch()) end},
      {~r/\[:w\] has the dtype :f8, not one of/,
       fn -> GradScaler.unscale(%{w: {:f8, "x"}}, torch()) end},
      {~r/\[1\] has 3 bytes, which is no multiple of the 4/,
       fn -> GradScaler.unscale([pair, {:f32, "abc"}], torch()) end},
      {~r/type is {:f, 4}, not one of/, fn -> GradScaler.cast_params(pair, {:f, 4}) end},
      {~r/^the result of the tensor cannot be :complex64, as one of it and its tensor of :f32 is complex$/,
       fn -> GradScaler.cast_params(pair, {:c, 64}) end},
      {~r/clamp is 0: it must be a number above 0/,
       fn -> GradScaler.unscale(pair, torch(), clamp: 0) end},
      {~r/clamp is "1": it must be a number/,
       fn -> GradScaler.cast_params(pair, :f16, clamp: "1") end},
      {~r/unknown keys \[:clamp\]/, fn -> GradScaler.measure(pair, torch(), clamp: 1) end},
      {~r/sums has other keys/,
       fn -> GradScaler.unscale_accumulate(%{w: pair}, %{v: pair}, torch()) end},
      {~r/the result of the tensor has 2 elements, its tensor 1/,
       fn -> GradScaler.unscale_accumulate({:f32, <<0::64>>}, pair, torch()) end},
      {~r/^the result of the tensor cannot be :complex64/,
       fn -> GradScaler.unscale_accumulate({:complex64, <<0::64>>}, pair, torch()) end},
      {~r/unknown keys \[:type\]/,
       fn -> GradScaler.unscale_accumulate(pair, pair, torch(), type: :f32) end},
      {~r/report.elements is 1.5: it must be an integer/,
       fn -> GradScaler.update(torch(), %GradScaler.Report{elements: 1.5}) end},
      {~r/report is ".*: it must be 256 bytes, the reserved ones 0/,
       fn -> GradScaler.Report.decode("short") end},
      {~r/report is .*: it must be 256 bytes, the reserved ones 0/,
       fn -> GradScaler.Report.decode(<<0::2040, 1>>) end},
      {~r/options.want is :everything, not one of \[:norm/,
       fn -> GradScaler.unscale(pair, torch(), want: :everything) end},
      {~r/unknown keys \[:typ\]/, fn -> GradScaler.unscale(pair, torch(), typ: :f32) end},
      {~r/factor is 2.0, not a GradScaler.Factor/,
       fn -> GradScaler.unscale(pair, torch(), factor: 2.0) end},
      {~r/factor.scale is 0/,
       fn -> GradScaler.unscale(pair, torch(), factor: %GradScaler.Factor{}) end},
      {~r/report is :overflow: expected a GradScaler.Report/,
       fn -> GradScaler.update(torch(), :overflow) end},
      {~r/report is a list: merge it with GradScaler.merge/,
       fn -> GradScaler.update(torch(), [%GradScaler.Report{}]) end},
      {~r/reports holds 1/, fn -> GradScaler.merge([%GradScaler.Report{}, 1], :shards) end},
      {~r/kind is :sum, not one of \[:shards, :addends\]/, fn -> GradScaler.merge([], :sum) end},
      {~r/has no reports of gradients/, fn -> GradScaler.overflows(%GradScaler.Report{}) end},
      {~r/report has no norm/,
       fn -> GradScaler.norm(elem(GradScaler.unscale(pair, torch()), 1)) end},
      {~r/report/,
       fn -> GradScaler.clip_factor(torch(), elem(GradScaler.unscale(pair, torch()), 1), 1.0) end},
      {~r/^the new state: factor.scale is -1/, fn -> GradScaler.set_scale(torch(), -1) end},
      {~r/factor.scale is "1": it must be a number/,
       fn -> GradScaler.set_scale(torch(), "1") end},
      {~r/a state has no field :events to set/,
       fn -> GradScaler.put_state(torch(), events: []) end},
      {~r/state.good_steps is 1.5: it must be an integer/,
       fn -> GradScaler.put_state(torch(), good_steps: 1.5) end},
      {~r/report.status is/, fn -> GradScaler.update(torch(), GradScaler.failed_report()) end},
      {~r/kind is 0: no call wrote the report/,
       fn -> GradScaler.set_rank(%GradScaler.Report{}, torch(), 0) end},
      {~r/amax/, fn -> GradScaler.update(GradScaler.new("openseq2seq_logmax"), false) end},
      {~r/^the number of bytes is 7: too few/, fn -> GradScaler.load("nothing") end},
      {~r/bytes is not a binary/, fn -> GradScaler.load(:nothing) end},
      {~r/a device is :cuda, {:cuda, ordinal} or {:cpu, threads}, not :gpu/,
       fn -> GradScaler.on_device(torch(), :gpu) end}
    ]

    for {message, call} <- cases do
      error = assert_raise(ArgumentError, call)
      assert error.message =~ message
      refute error.message =~ ~r/GSC_|gsc_|NULL/
    end
  end

  test "native calls return status, argument, index, name and message" do
    tensor = {1, <<0::32>>}

    none = {0, nil, 0.0, false, false}
    unscale = &Native.unscale(nil, one(), &1, &2, &3)
    accumulate = &Native.unscale_accumulate(nil, one(), [tensor], &1, none)
    torch = elem(Native.policy_preset("torch"), 1)

    cases = [
      {{-3, 0, -1, "name", ""}, Native.policy_preset("nothing")},
      {{-8, 0, -1, "name", ""}, Native.policy_preset(:torch)},
      {{-8, 0, -1, "name", ""}, Native.policy_preset(String.duplicate("x", 160))},
      {{-8, 0, -1, "name", ""}, Native.policy_preset("a\0b")},
      {{-2, 0, -1, "policy", ""}, Native.policy_check("short")},
      {{-2, 0, -1, "policy", "struct_size"}, Native.policy_check("")},
      {{-2, 0, -1, "policy", ""}, Native.policy_check(<<152::little-32, 0::size(160 * 8)>>)},
      {{-4, 0, -1, "policy", "min_scale"},
       Native.policy_check(GradScaler.Policy.encode(%GradScaler.Policy{min_scale: -1}))},
      {{-8, 0, -1, "exec", ""}, Native.unscale(1, one(), [tensor], [1], none)},
      {{-2, 1, -1, "factor", ""}, Native.unscale(nil, "", [], [], none)},
      {{-8, 1, -1, "factor", ""}, Native.factor_multiply(nil, nil, 2.0)},
      {{-8, 2, -1, "tensors", ""}, unscale.(tensor, [1], none)},
      {{-8, 2, -1, "tensors", ""}, unscale.([tensor | tensor], [1], none)},
      {{-8, 2, 1, "tensors", ""}, unscale.([tensor, {1, :x}], [1, 1], none)},
      {{-8, 2, 0, "tensors", ""}, unscale.([{-1, ""}], [1], none)},
      {{-8, 2, 0, "tensors", ""}, unscale.([{1, make_ref(), 0, 0}], [1], none)},
      {{-9, 2, 0, "tensors", ""}, unscale.([{99, ""}], [1], none)},
      {{-10, 2, 0, "tensors", ""}, unscale.([{2, <<0::32>>}], [1], none)},
      {{-10, 3, -1, "out", ""}, unscale.([tensor], [], none)},
      {{-8, 3, -1, "out", ""}, unscale.([tensor], 1, none)},
      {{-9, 3, 0, "out", ""}, unscale.([tensor], [99], none)},
      {{-9, 3, 0, "out", "dtype"}, unscale.([tensor], [8], none)},
      {{-8, 5, -1, "options", ""}, unscale.([tensor], [1], {})},
      {{-8, 5, -1, "options", "want"}, unscale.([tensor], [1], put_elem(none, 0, -1))},
      {{-8, 5, -1, "options", "want"}, unscale.([tensor], [1], put_elem(none, 0, 1024))},
      {{-2, 5, -1, "policy", "struct_size"}, unscale.([tensor], [1], put_elem(none, 1, ""))},
      {{-8, 5, -1, "options", "clamp"}, unscale.([tensor], [1], put_elem(none, 2, nil))},
      {{-8, 5, -1, "options", "clamp"}, unscale.([tensor], [1], put_elem(none, 2, :infinity))},
      {{-8, 5, -1, "options", "per_tensor"}, unscale.([tensor], [1], put_elem(none, 3, 1))},
      {{-8, 5, -1, "options", "histogram"}, unscale.([tensor], [1], put_elem(none, 4, nil))},
      {{-8, 3, -1, "out", ""}, accumulate.(1)},
      {{-10, 3, -1, "out", ""}, accumulate.([])},
      {{-8, 3, 0, "out", ""}, accumulate.([1])},
      {{-10, 3, 0, "out", ""}, accumulate.([{1, ""}])},
      {{-2, 1, -1, "reports", ""}, Native.report_merge(nil, "short", 0, nil)},
      {{-8, 3, -1, "kind", ""}, Native.report_merge(nil, "", 2, nil)},
      {{-8, 0, -1, "dtype", ""}, Native.dtype_size(2 ** 32)},
      {{-8, 0, -1, "scale", ""}, Native.factor_init(:nan)},
      {{-8, 0, -1, "scale", ""}, Native.factor_init(:other)},
      {{-5, 2, -1, "state", "reserved"},
       Native.state_update(nil, torch, binary_part(torch().state, 0, 383) <> <<1>>, <<0::2048>>)},
      {{-8, 0, -1, "options", "threads"}, Native.context_create_cpu(0)},
      {{-8, 0, -1, "options", "device"}, Native.context_create_cuda(:first)},
      {{-8, 0, -1, "context", ""}, Native.memory_create(nil, 1)},
      {{-8, 1, -1, "memory", ""}, Native.memory_destroy(nil)},
      {{-8, 1, -1, "to", ""}, Native.memory_write(make_ref(), [])},
      {{-8, 2, -1, "from", ""}, Native.memory_read("", [])}
    ]

    for {{expected, result}, number} <- Enum.with_index(cases) do
      assert {:error, error} = result
      length = error.subject_length
      got = {error.status, error.argument, error.index, error.name, error.field}
      assert {number, got} == {number, expected}
      <<_::binary-size(length), rest::binary>> = error.message
      assert rest =~ ~r/\w/
    end

    {:error, %{value: -1.0, low: low, high: :infinity}} =
      Native.policy_check(GradScaler.Policy.encode(%GradScaler.Policy{min_scale: -1}))

    assert low == 0
  end

  test "no function crashes on any term" do
    for {:ok, device} <- [Native.context_create_cpu(2), Native.context_create_cuda(0)],
        do: call_with_anything(device)
  end

  defp call_with_anything(device) do
    {:ok, memory} = Native.memory_create(device, 8)

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
      make_ref(),
      device,
      memory,
      {1, memory, 0, 8},
      [{1, memory, 0, 4}, {3, memory, 2, 2}],
      [{0, memory, 0, 8}, {4, "abcd"}],
      [{0, 8}]
    ]

    functions = Native.__info__(:functions) -- [load: 0]

    for {name, arity} <- functions, arity > 0, _ <- 1..200 do
      result = apply(Native, name, for(_ <- 1..arity, do: Enum.random(terms)))

      assert result in [nil, :ok] or is_integer(result) or is_binary(result) or
               elem(result, 0) in [:ok, :error]
    end
  end
end
