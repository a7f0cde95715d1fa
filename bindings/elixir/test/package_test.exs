defmodule GradScaler.PackageTest do
  # The files of a package build without the repository around them: mix hex.build adds the C sources.
  use ExUnit.Case, async: false
  alias GradScaler.MixProject

  defp folder(name) do
    folder = Path.join(System.tmp_dir!(), "gradscaler-#{name}-#{System.pid()}")
    on_exit(fn -> File.rm_rf!(folder) end)
    File.mkdir_p!(folder)
    folder
  end

  test "the files of the package are all that make needs" do
    folder = folder("package")
    config = Mix.Project.config()
    MixProject.add_sources()

    try do
      for file <- config[:package][:files] do
        File.mkdir_p!(Path.dirname(Path.join(folder, file)))
        File.cp!(file, Path.join(folder, file))
      end
    after
      MixProject.remove_sources()
    end

    set = for name <- ["MIX_APP_PATH", "ERTS_INCLUDE_DIR"], do: {name, folder}
    unset = for name <- ["GRADSCALER_SOURCE", "GRADSCALER_LIB_DIR"], do: {name, nil}
    {commands, 0} = System.cmd("make", ["-n"], cd: folder, env: set ++ unset)
    assert commands =~ " source/core/tensors.c"
    refute commands =~ "../.."
    assert File.exists?(Path.join(folder, "source/include/gradscaler.h"))
    assert File.read!(Path.join(folder, "LICENSE")) =~ "MIT"
    assert {config[:package][:licenses], is_binary(config[:description])} == {["MIT"], true}
    refute File.exists?("source")
  end

  test "without a priv folder, as in an escript, the error says so" do
    folder = Path.join(folder("escript"), "beams")
    File.mkdir_p!(folder)

    for beam <- Path.wildcard(Application.app_dir(:gradscaler, "ebin/*.beam")),
        do: File.cp!(beam, Path.join(folder, Path.basename(beam)))

    arguments = ["-pa", folder, "-e", "GradScaler.new()"]
    assert {said, 1} = System.cmd("elixir", arguments, stderr_to_stdout: true)

    assert said =~
             "(GradScaler.Error) the library cannot be loaded, because an escript has no priv"
  end

  test "what goes wrong in hex.build leaves nothing behind" do
    # Without Hex there is no such task, with it no such option.
    assert %{__exception__: true} = catch_error(Mix.Task.run("hex.build", ["--unheard-of"]))
    for added <- ["source", "LICENSE"], do: refute(File.exists?(added))
  end

  test "in a package that is unpacked nothing is removed" do
    unpacked = folder("unpacked/deps/gradscaler")
    files = for name <- ["source/core/scaler.c", "LICENSE"], do: Path.join(unpacked, name)
    File.mkdir_p!(Path.join(unpacked, "source/core"))
    for file <- files, do: File.write!(file, "its own")
    Mix.Task.reenable("hex.build")
    build = fn -> Mix.Task.run("hex.build") end

    for task <- [&MixProject.add_sources/0, &MixProject.remove_sources/0, build],
        message = ~r/no clone of the repository/,
        do: assert_raise(Mix.Error, message, fn -> File.cd!(unpacked, task) end)

    for file <- files, do: assert(File.read!(file) == "its own")
  end
end
