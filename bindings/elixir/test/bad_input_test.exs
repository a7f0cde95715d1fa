defmodule GradScaler.BadInputTest do
  # Wrong arguments raise ArgumentError and name the argument; at the native layer they are tuples. Nothing crashes.
  use ExUnit.Case, async: true

  import GradScaler
  import GradScaler.Wording
  alias GradScaler.{Factor, Native, Policy, Report}

  @pair {:f32, <<0::32>>}

  defp one, do: elem(Native.factor_init(1.0), 1)
  defp torch, do: new("torch")

  # The message holds these words, and none of C.
  defp refused(words, call) do
    error = assert_raise(ArgumentError, call)
    assert error.message =~ words
    assert String.valid?(error.message)
    refute error.message =~ ~r/GSC_|gsc_|NULL/
  end

  test "a preset or a field that cannot be is named" do
    for {preset, fields, words} <- [
          {{:torch}, [], "preset is {:torch}: it must be a name"},
          {~c"torch", [], ~r/preset is .*torch.*: it must be a name/},
          {"torch", 5, "fields is 5"},
          {"torch", [5], "fields holds 5: they must be names"},
          {String.duplicate("\u00e9", 79), [],
           "preset " <> wording(~s(is "#{String.duplicate("\u00e9", 79)}", which is no preset))},
          {"torch", [growth: 1], "a policy has no field :growth"},
          {"torch", [growth_interval: 1.5],
           "policy.growth_interval is 1.5: it must be an integer"},
          {"torch", [hysteresis: 2 ** 32], "policy.hysteresis is 4294967296"},
          {"torch", [growth_rule: :at], "policy.growth_rule is :at, not one of [:reached"},
          {"torch", [init_scale: "big"], ~s(policy.init_scale is "big": it must be a number)},
          {"torch", [init_scale: :nan], "policy.init_scale " <> wording("is nan: it must be")},
          {"torch", [init_scale: 0.0], "policy.init_scale is 0: it must be above 0"},
          {"recommended", [init_scale: 2.0 ** 25],
           "policy.init_scale " <>
             wording("is 33554432: it must be at most max_scale, which is 16777216")},
          {"torch", [bad_loss_rule: :hold],
           "policy.max_failed_backoffs " <> wording("is 0: it must be above 0")},
          {"torch", [max_scale: 10 ** 400],
           ~r/max_scale is 10+: it must be a number that a double/}
        ] do
      refused(words, fn -> new(preset, fields) end)
    end
  end

  test "a tree or an option that cannot be is named" do
    for {tree, options, words} <- [
          {%{w: [@pair, 5]}, [], "[:w][1] is 5: expected a tensor"},
          {nil, [], "the tree is nil: expected a tensor"},
          {[~D[2020-01-01]], [], "[0] is ~D[2020-01-01]: expected"},
          {[@pair | 2], [], "the tree is 2: expected"},
          {%{w: {:f8, "x"}}, [], "[:w] has the dtype :f8, not one of"},
          {[@pair, {:f32, "abc"}], [], "[1] has 3 bytes, which is no multiple of the 4"},
          {@pair, [want: "norm"], ~s(options.want is "norm", not one of [:norm)},
          {@pair, [want: :everything], "options.want is :everything, not one of [:norm"},
          {@pair, [clamp: 0], "clamp is 0: it must be a number above 0"},
          {@pair, [typ: :f32], "unknown keys [:typ]"},
          {@pair, [factor: 2.0], "factor is 2.0, not a GradScaler.Factor"},
          {@pair, [factor: %Factor{}], "factor.scale " <> wording("is 0")},
          {@pair, [loss: {:f8, ""}], "the tensor has the dtype :f8, not one of"},
          {@pair, [loss: {:f32, "abc"}],
           "options.loss has 3 bytes, which is no multiple of the 4"},
          {@pair, [loss: {:complex64, <<0::64>>}],
           "options.loss " <> wording("is complex64: a loss is real")},
          {@pair, [loss: [@pair, {:complex64, <<0::64>>}]],
           "options.loss " <> wording("is complex64")},
          {@pair, [loss: "0.5"], ~s(the tree is "0.5": expected a tensor)},
          {@pair, [loss: 10 ** 400], ~r/options.loss is 10+: it must be a number that a double/}
        ] do
      refused(words, fn -> unscale(tree, torch(), options) end)
    end
  end

  test "other calls name what was wrong" do
    torch = torch()
    {_, without_norm} = unscale(@pair, torch)
    add = &unscale_accumulate(&1, &2, torch)
    [two, complex] = for dtype <- [:f32, :complex64], do: {dtype, <<0::64>>}
    encode = &Report.encode(struct!(Report, &1))
    decode = &Report.decode/1

    for {words, call} <- [
          {"type is {:f, 4}, not one of", fn -> cast_params(@pair, {:f, 4}) end},
          {~r/^the result of the tensor cannot be :complex64, as one of it and its tensor of :f32 is complex$/,
           fn -> cast_params(@pair, {:c, 64}) end},
          {~s(clamp is "1"), fn -> cast_params(@pair, :f16, clamp: "1") end},
          {"unknown keys [:clamp]", fn -> measure(@pair, torch, clamp: 1) end},
          {"sums has other keys", fn -> add.(%{w: @pair}, %{v: @pair}) end},
          {"the result of the tensor has 2 elements, its tensor 1", fn -> add.(two, @pair) end},
          {~r/^the result of the tensor cannot be :complex64/, fn -> add.(complex, @pair) end},
          {"unknown keys [:type]", fn -> unscale_accumulate(@pair, @pair, torch, type: :f32) end},
          {"report.elements is 1.5: it must be an integer", fn -> encode.(elements: 1.5) end},
          {"report.overflow is 1: it must be true or false", fn -> encode.(overflow: 1) end},
          {~s(report is "short": it must be 256 bytes, the reserved), fn -> decode.("short") end},
          {"256 bytes, the reserved ones 0", fn -> decode.(<<0::2040, 1>>) end},
          {"256 bytes, the reserved ones 0", fn -> decode.(encode.([]) <> <<0>>) end},
          {"report is :overflow: expected a GradScaler.Report",
           fn -> update(torch, :overflow) end},
          {"report is a list: merge it with GradScaler.merge",
           fn -> update(torch, [%Report{}]) end},
          {"report.status " <> wording("is"), fn -> update(torch, failed_report()) end},
          {"reports holds 1", fn -> merge([%Report{}, 1], :shards) end},
          {"kind is :sum, not one of [:shards, :addends]", fn -> merge([], :sum) end},
          {"has no reports of gradients", fn -> overflows(%Report{}) end},
          {"report has no norm", fn -> norm(without_norm) end},
          {"report", fn -> clip_factor(torch, without_norm, 1.0) end},
          {"report.kind " <> wording("is 0: no call wrote"),
           fn -> set_rank(%Report{}, torch, 0) end},
          {"unknown keys [:name]", fn -> reason(torch, nil, name: []) end},
          {"names has 1 entries, not 2",
           fn -> reason(torch, measure([@pair, @pair], torch), names: ["w"]) end},
          {"order is 1.5: it must be an integer", fn -> reason(torch, nil, order: [1.5]) end},
          {~r/^order\[0\] #{wording("is 1")}/, fn -> reason(torch, nil, order: [1]) end},
          {"unknown keys [:loss]", fn -> reason(torch, nil, evidence: [loss: 1]) end},
          {"evidence.loss_dtype is :f15, not one of",
           fn -> reason(torch, nil, evidence: [loss_dtype: :f15]) end},
          {~r/^evidence.bad_loss #{wording("is 1")}/,
           fn -> reason(torch, nil, evidence: [bad_loss: 1]) end},
          {"report.has_flag is 1: it must be true or false", fn -> encode.(has_flag: 1) end},
          {"report.found_inf is 1: it must be true or false", fn -> encode.(found_inf: 1) end},
          {"report.loss is :bad, not one of [:unknown, :finite", fn -> encode.(loss: :bad) end},
          {~r/^the new state: factor.scale #{wording("is -1")}/, fn -> set_scale(torch, -1) end},
          {~s(factor.scale is "1": it must be a number), fn -> set_scale(torch, "1") end},
          {"a state has no field :events to set", fn -> put_state(torch, events: []) end},
          {"state.good_steps is 1.5: it must be", fn -> put_state(torch, good_steps: 1.5) end},
          {~r/^the number of bytes #{wording("is 7: too few")}/, fn -> load("nothing") end},
          {"bytes is not a binary", fn -> load(:nothing) end},
          {"a device is :cuda, {:cuda, ordinal} or {:cpu, threads}, not :gpu",
           fn -> on_device(torch, :gpu) end}
        ] do
      refused(words, call)
    end
  end

  test "native calls return status, argument, index, name and message" do
    tensor = {1, <<0::32>>}
    none = {0, nil, 0.0, false, false, nil}
    unscale = &Native.unscale(nil, one(), &1, &2, &3)
    reason = &Native.state_reason(torch().state, nil, &1, &2, &3, &4)
    option = &unscale.([tensor], [1], put_elem(none, &1, &2))
    accumulate = &Native.unscale_accumulate(nil, one(), [tensor], &1, none)
    negative = Policy.encode(%Policy{min_scale: -1})
    %{policy: torch, state: state} = torch()
    reserved = binary_part(state, 0, 383) <> <<1>>

    cases = [
      {{-3, 0, -1, "name", ""}, Native.policy_preset("nothing")},
      {{-8, 0, -1, "name", ""}, Native.policy_preset(:torch)},
      {{-8, 0, -1, "name", ""}, Native.policy_preset(String.duplicate("x", 160))},
      {{-8, 0, -1, "name", ""}, Native.policy_preset("a\0b")},
      {{-2, 0, -1, "policy", ""}, Native.policy_check("short")},
      {{-2, 0, -1, "policy", "struct_size"}, Native.policy_check("")},
      {{-2, 0, -1, "policy", ""}, Native.policy_check(<<152::little-32, 0::size(1280)>>)},
      {{-14, 0, -1, "policy", ""}, Native.policy_check(<<152::little-32, 0::size(1184)>>)},
      {{-14, 0, -1, "policy", ""}, Native.policy_check(<<1024::little-32, 0::size(8160)>>)},
      {{-4, 0, -1, "policy", "min_scale"}, Native.policy_check(negative)},
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
      {{-8, 5, -1, "options", "want"}, option.(0, -1)},
      {{-8, 5, -1, "options", "want"}, option.(0, 1024)},
      {{-2, 5, -1, "policy", "struct_size"}, option.(1, "")},
      {{-8, 5, -1, "options", "clamp"}, option.(2, nil)},
      {{-8, 5, -1, "options", "clamp"}, option.(2, :infinity)},
      {{-8, 5, -1, "options", "per_tensor"}, option.(3, 1)},
      {{-8, 5, -1, "options", "histogram"}, option.(4, nil)},
      {{-8, 5, -1, "options", "loss"}, option.(5, 0.5)},
      {{-9, 5, -1, "options", "loss"}, option.(5, {99, ""})},
      {{-9, 5, -1, "options", "loss"}, option.(5, {8, <<0::64>>})},
      {{-10, 5, -1, "options", "loss"}, option.(5, {1, "abc"})},
      {{-2, 2, -1, "evidence", ""}, reason.("short", nil, nil, nil)},
      {{-2, 3, -1, "per_tensor", ""}, reason.(nil, "short", nil, nil)},
      {{-8, 4, -1, "names", ""}, reason.(nil, nil, "name", nil)},
      {{-8, 4, -1, "names", ""}, reason.(nil, nil, ["name" | "name"], nil)},
      {{-8, 4, 1, "names", ""}, reason.(nil, nil, [nil, :name], nil)},
      {{-8, 4, 0, "names", ""}, reason.(nil, nil, ["a\0b"], nil)},
      {{-10, 4, -1, "names", ""}, reason.(nil, <<>>, ["name"], nil)},
      {{-2, 5, -1, "order", ""}, reason.(nil, nil, nil, "short")},
      {{-10, 5, -1, "order", ""}, reason.(nil, nil, ["name"], <<0::128>>)},
      {{-8, 5, 0, "order", ""}, reason.(nil, nil, ["name"], <<1::little-64>>)},
      {{-8, 3, -1, "out", ""}, accumulate.(1)},
      {{-10, 3, -1, "out", ""}, accumulate.([])},
      {{-8, 3, 0, "out", ""}, accumulate.([1])},
      {{-10, 3, 0, "out", ""}, accumulate.([{1, ""}])},
      {{-2, 1, -1, "reports", ""}, Native.report_merge(nil, "short", 0, nil)},
      {{-8, 3, -1, "kind", ""}, Native.report_merge(nil, "", 2, nil)},
      {{-8, 0, -1, "dtype", ""}, Native.dtype_size(2 ** 32)},
      {{-8, 0, -1, "scale", ""}, Native.factor_init(:nan)},
      {{-8, 0, -1, "scale", ""}, Native.factor_init(:other)},
      {{-5, 2, -1, "state", "reserved"}, Native.state_update(nil, torch, reserved, <<0::2048>>)},
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

    {:error, error} = Native.policy_check(negative)
    assert {error.value, error.low, error.high} == {-1.0, 0.0, :infinity}
  end

  test "no function crashes on any term" do
    for {:ok, device} <- [Native.context_create_cpu(2), Native.context_create_cuda(0)],
        do: call_with_anything(device)
  end

  defp call_with_anything(device) do
    {:ok, memory} = Native.memory_create(device, 8)

    plain = [nil, :nan, 0, -1, 2 ** 70, 1.5, "", <<1::3>>, %{}, self(), make_ref()]
    nested = [[], [1], [{1, ""} | 2], {}, {1}, [{0, 8}], {1, memory, 0, 8}]
    parts = [[{1, memory, 0, 4}, {3, memory, 2, 2}], [{0, memory, 0, 8}, {4, "abcd"}]]
    terms = [device, memory] ++ plain ++ nested ++ parts

    functions = Native.__info__(:functions) -- [load: 0]

    for {name, arity} <- functions, arity > 0, _ <- 1..200 do
      result = apply(Native, name, for(_ <- 1..arity, do: Enum.random(terms)))

      assert result in [nil, :ok] or is_integer(result) or is_binary(result) or
               elem(result, 0) in [:ok, :error]
    end
  end
end
