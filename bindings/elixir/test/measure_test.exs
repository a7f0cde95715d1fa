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

    say("  and update", best(1000, fn -> GradScaler.update(scaler, %GradScaler.Report{}) end))
  end

  # The C time is that of the library's own loop: check, which reads, writes nothing and makes no results, is a lower
  # bound for it; ci/bench has the rest.
  defp thousand_tensors do
    scaler = GradScaler.new("torch")
    tensors = for i <- 1..1000, do: {1, :binary.copy(<<i * 1.0::little-float-32>>, 1000)}
    pairs = for {1, binary} <- tensors, do: {:f32, binary}
    out = List.duplicate(1, 1000)
    factor = binary_part(scaler.state, 0, 32)
    say("1,000 tensors of 1,000 f32, check", best(1, fn -> Native.check(factor, tensors, 3) end))
    say("  unscale, native call", best(1, fn -> Native.unscale(factor, tensors, out, 3) end))
    say("  unscale, tree", best(1, fn -> GradScaler.unscale(pairs, scaler) end))
  end

  # The largest lists that stay on a normal scheduler (terms.h), of the worst contents.
  defp longest_normal_call do
    {:ok, factor} = Native.factor_init(2.0 ** 10)
    slowness = if GradScaler.info().cpu == "scalar", do: 4, else: 1

    cases =
      for {wanted, ns} <- [{3, 8}, {15, 16}, {31, 32}],
          {name, dtype} <- Constants.all(:dtype),
          {what, bits} <- [nan: -1, tiny: 1],
          out <- [1, dtype] do
        size = Native.dtype_size(dtype)
        data = :binary.copy(<<bits::little-size(size)-unit(8)>>, div(599_000, ns * slowness))
        {"#{what} #{name} into #{out}, want #{wanted}", [{dtype, data}], [out], wanted}
      end

    many = {"1,200 empty tensors", List.duplicate({1, ""}, 1200), List.duplicate(1, 1200), 31}

    {time, name} =
      Enum.max(
        for {name, tensors, out, want} <- [many | cases] do
          {best(1, fn -> Native.unscale(factor, tensors, out, want) end), name}
        end
      )

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
