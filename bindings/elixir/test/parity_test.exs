defmodule GradScaler.ParityTest do
  # That tests/parity can run its client: the digest itself is compared there, with those of other languages.
  use ExUnit.Case, async: true

  @examples Path.expand("../examples", __DIR__)

  test "the client reads a file and answers with digest, overflows and scale" do
    data = [<<2::little-16, 0x7C00::little-16>>, <<2.5::little-float-64>>]

    shapes = [
      <<3::little-32, 0::32, 2::little-64>>,
      <<2::little-32, 0::32, 1::little-64>>,
      <<1::little-32, 0::96>>
    ]

    body = [<<4::little-32, 3::little-32>>, shapes, List.duplicate(data, 4)]
    path = Path.join(System.tmp_dir!(), "gradscaler-parity-#{System.pid()}")
    on_exit(fn -> File.rm!(path) end)

    for {settings, scale} <- [
          {"growth_interval=0x1p+1,init_scale=0x1.8p+4", "1.5"},
          {"init_scale=65536", "4096"}
        ] do
      File.write!(path, ["torch ", settings, "\n", body])
      arguments = ["-pa", Mix.Project.compile_path(), Path.join(@examples, "parity.exs"), path]
      assert {output, 0} = System.cmd("elixir", arguments)
      assert [digest, "4", ^scale] = String.split(output)
      assert digest =~ ~r/^[0-9a-f]{64}$/
    end
  end
end
