defmodule GradScaler.WarningTest do
  # A captured log has the lines of all processes, so no other test runs beside it.
  use ExUnit.Case, async: false

  import ExUnit.CaptureLog

  test "a step without gradients is warned of once, until a step has gradients" do
    good = GradScaler.measure({:f32, <<1.0::little-float-32>>}, GradScaler.new())
    empty = for tree <- [[], {:f32, ""}], do: GradScaler.measure(tree, GradScaler.new())
    merge = &GradScaler.merge(&1, :shards)

    for {steps, warnings} <- [
          {[good | empty] ++ empty, 1},
          {[merge.(empty)], 1},
          {[merge.([good | empty]), good, true, false], 0}
        ] do
      update = &GradScaler.update(&2, &1)
      log = capture_log(fn -> Enum.reduce(steps, GradScaler.new(), update) end)
      assert length(String.split(log, "this step had no gradients")) == warnings + 1
    end
  end
end
