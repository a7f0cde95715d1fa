defmodule GradScaler.MeasureTest do
  # Prints times and asserts none: they are the machine's as much as ours.
  use ExUnit.Case, async: false

  alias GradScaler.{Constants, Native}

  test "times" do
    IO.puts("\n")
    tiny_tree()
    thousand_tensors()
    longest_normal_call()
  end

  defp tiny_tree do
    scaler = GradScaler.new("torch")
    tiny = %{w: {:f16, <<0::128>>}, b: {:f16, <<0::64>>}}

    say(
      "tree of 2 small tensors, unscale",
      best(1000, fn -> GradScaler.unscale(tiny, scaler) end)
    )

    report = GradScaler.measure(tiny, scaler)
    say("  and update", best(1000, fn -> GradScaler.update(scaler, report) end))
  end

  # The C time is that of the library's own loop: measure, which reads, writes nothing and makes no results, is a lower
  # bound for it; ci/bench has the rest.
  defp thousand_tensors do
    scaler = GradScaler.new("torch")
    tensors = for i <- 1..1000, do: {1, :binary.copy(<<i * 1.0::little-float-32>>, 1000)}
    pairs = for {1, binary} <- tensors, do: {:f32, binary}
    out = List.duplicate(1, 1000)
    factor = binary_part(scaler.state, 0, 32)

    say(
      "1,000 tensors of 1,000 f32, measure",
      best(1, fn -> Native.measure(nil, factor, tensors, nil) end)
    )

    say(
      "  unscale, native call",
      best(1, fn -> Native.unscale(nil, factor, tensors, out, nil) end)
    )

    say("  unscale, tree", best(1, fn -> GradScaler.unscale(pairs, scaler) end))
  end

  # The largest lists that stay on a normal scheduler (terms.h), of the worst contents.
  defp longest_normal_call do
    {:ok, factor} = Native.factor_init(2.0 ** 10)
    slowness = if GradScaler.info().cpu == "scalar", do: 12, else: 1
    dtypes = Constants.all(:dtype)
    complex = [:complex64, :complex128]
    all = {7, nil, 0, true, true}
    clamp = put_elem(all, 2, 1.0)

    cases =
      for {name, dtype} <- dtypes,
          {what, bits} <- [nan: -1, tiny: 1],
          out <- Enum.uniq([if(name in complex, do: dtypes[:complex64], else: 1), dtype]),
          operation <- [:unscale, :clamp, :unscale_accumulate] do
        count = div(879_000, slowness * if(name in [:f64 | complex], do: 72, else: 24))
        size = Native.dtype_size(dtype)
        data = :binary.copy(<<bits::little-size(size)-unit(8)>>, count)
        sums = <<0::size(Native.dtype_size(out) * count)-unit(8)>>

        call =
          case operation do
            :unscale ->
              fn -> Native.unscale(nil, factor, [{dtype, data}], [out], all) end

            :clamp ->
              fn -> Native.unscale(nil, factor, [{dtype, data}], [out], clamp) end

            :unscale_accumulate ->
              fn ->
                Native.unscale_accumulate(nil, factor, [{dtype, data}], [{out, sums}], all)
              end
          end

        {"#{operation} of #{what} #{name} into #{out}", call}
      end

    # Neighbours of other dtypes, for each of which the limits of the histogram are found anew.
    mixed = for i <- 1..44, do: {1 + rem(i, 2), <<i::64>>}
    outs = for i <- 1..44, do: 1 + rem(div(i, 2), 7)
    empty = {List.duplicate({1, ""}, 1800), List.duplicate(1, 1800)}

    lists = [
      {"44 tensors", fn -> Native.unscale(nil, factor, mixed, outs, all) end},
      {"1,800 empty tensors",
       fn ->
         Native.unscale(nil, factor, elem(empty, 0), elem(empty, 1), {3, nil, 0, false, false})
       end}
    ]

    {time, name} = Enum.max(for {name, call} <- lists ++ cases, do: {best(1, call), name})
    say("longest call on a normal scheduler (#{name})", time)
  end

  defp best(repeats, call) do
    Enum.min(for _ <- 1..50, do: elem(:timer.tc(fn -> repeat(repeats, call) end), 0)) / repeats
  end

  defp repeat(0, _call), do: :ok

  defp repeat(n, call) do
    call.()
    repeat(n - 1, call)
  end

  defp say(what, microseconds) do
    IO.puts(
      "    #{String.pad_trailing(what, 70)} #{:erlang.float_to_binary(microseconds * 1.0, decimals: 2)} us"
    )
  end
end
