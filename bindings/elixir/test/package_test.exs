defmodule GradScaler.PackageTest do
  # What a package would hold builds without the repository around it: mix hex.build adds the C sources to it.
  use ExUnit.Case, async: false

  test "the files of the package are all that make needs" do
    folder = Path.join(System.tmp_dir!(), "gradscaler-package-#{System.pid()}")
    on_exit(fn -> File.rm_rf!(folder) end)
    File.mkdir_p!(folder)
    config = Mix.Project.config()

    GradScaler.MixProject.add_sources()

    try do
      for file <- config[:package][:files] do
        File.mkdir_p!(Path.dirname(Path.join(folder, file)))
        File.cp!(file, Path.join(folder, file))
      end
    after
      GradScaler.MixProject.remove_sources()
    end

    environment = [
      {"MIX_APP_PATH", folder},
      {"ERTS_INCLUDE_DIR", folder},
      {"GRADSCALER_SOURCE", nil},
      {"GRADSCALER_LIB_DIR", nil}
    ]

    {commands, 0} = System.cmd("make", ["-n"], cd: folder, env: environment)
    assert commands =~ " source/core/tensors.c"
    refute commands =~ "../.."
    assert File.exists?(Path.join(folder, "source/include/gradscaler.h"))
    assert File.read!(Path.join(folder, "LICENSE")) =~ "MIT"
    assert {config[:package][:licenses], is_binary(config[:description])} == {["MIT"], true}
    refute File.exists?("source")
  end

  test "what goes wrong in hex.build leaves nothing behind" do
    # Without Hex there is no such task, with it no such option.
    assert %{__exception__: true} = catch_error(Mix.Task.run("hex.build", ["--unheard-of"]))
    for added <- ["source", "LICENSE"], do: refute(File.exists?(added))
  end

  test "in a package that is unpacked nothing is removed" do
    folder = Path.join(System.tmp_dir!(), "gradscaler-unpacked-#{System.pid()}")
    on_exit(fn -> File.rm_rf!(folder) end)
    unpacked = Path.join(folder, "deps/gradscaler")
    files = for name <- ["source/core/scaler.c", "LICENSE"], do: Path.join(unpacked, name)
    for file <- files, do: File.mkdir_p!(Path.dirname(file))
    for file <- files, do: File.write!(file, "its own")

    Mix.Task.reenable("hex.build")

    for task <- [
          &GradScaler.MixProject.add_sources/0,
          &GradScaler.MixProject.remove_sources/0,
          fn -> Mix.Task.run("hex.build") end
        ] do
      assert_raise Mix.Error, ~r/no clone of the repository/, fn -> File.cd!(unpacked, task) end
    end

    for file <- files, do: assert(File.read!(file) == "its own")
  end
end
