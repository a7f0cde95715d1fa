defmodule GradScaler.ReplayTest do
  # What the clients of tests/replay and tests/parity read and write.
  use ExUnit.Case, async: true

  test "%a and %.17g are C's" do
    for {number, text} <- [
          {65536.0, "65536"},
          {0.1, "0.10000000000000001"},
          {6.1035e-5, "6.1035000000000001e-05"},
          {1.0e17, "1e+17"},
          {123_456_789.5, "123456789.5"},
          {0.0, "0"},
          {:infinity, "inf"}
        ] do
      assert HexFloat.decimal(number) == text
      assert number |> HexFloat.format() |> HexFloat.parse() == number
    end

    assert HexFloat.parse("0x0.0000000000001p-1022") == 5.0e-324
    assert HexFloat.parse("-0x1.8p+1") == -3.0
  end
end
