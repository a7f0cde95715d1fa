Code.require_file("precompiled.exs", __DIR__)

defmodule Mix.Tasks.Compile.Gradscaler do
  @moduledoc """
  Builds the NIF with make, or where it was asked to takes one that is precompiled. The variables are
  elixir_make's, so that its compiler can take over.
  """
  use Mix.Task.Compiler

  alias GradScaler.Precompiled

  @impl true
  def run(_args) do
    with place when place != nil <- Precompiled.place(),
         version = Mix.Project.config()[:version],
         {:none, reason} <- Precompiled.install(place, Mix.Project.app_path(), version) do
      Mix.shell().info("gradscaler: no precompiled NIF is taken: #{reason}; it is compiled here")
      build()
    else
      nil -> build()
      :ok -> {:ok, []}
    end
  end

  defp build do
    Precompiled.remove(Mix.Project.app_path())

    case make([]) do
      {_, 0} -> {:ok, []}
      {_, status} -> Mix.raise("make could not build the NIF (exit status #{status})")
    end
  end

  @impl true
  def clean, do: make(["clean"])

  defp make(targets) do
    erts = Path.join([:code.root_dir(), "erts-#{:erlang.system_info(:version)}", "include"])

    environment = [
      {"MIX_APP_PATH", Mix.Project.app_path()},
      {"ERTS_INCLUDE_DIR", System.get_env("ERTS_INCLUDE_DIR", erts)}
    ]

    File.mkdir_p!(Mix.Project.app_path())
    options = [env: environment, cd: __DIR__, into: IO.stream(), stderr_to_stdout: true]
    System.cmd("make", ["--silent", "--jobs=#{System.schedulers_online()}" | targets], options)
  end
end

defmodule GradScaler.MixProject do
  use Mix.Project

  def project do
    [
      app: :gradscaler,
      version: "0.10.0",
      elixir: "~> 1.14",
      description:
        "Loss scaling for mixed-precision training: the rules of every framework, bit for bit",
      package: package(),
      aliases: aliases(),
      compilers: [:gradscaler | Mix.compilers()],
      # An Nx of ERL_LIBS is no dependency; newer Mix would hide it.
      prune_code_paths: false,
      test_ignore_filters: [&String.starts_with?(&1, "test/clients/")],
      # Tests define containers of their own.
      consolidate_protocols: Mix.env() != :test,
      xref: [exclude: [Nx, Nx.BinaryBackend, Nx.Container, Nx.Type]],
      deps: nx() ++ ex_doc(),
      docs: [
        main: "readme",
        extras: ["README.md"],
        groups_for_modules: ["For other libraries": ~r/Axon|MixedPrecision/]
      ]
    ]
  end

  def application, do: [extra_applications: [:logger]]

  defp package do
    [
      licenses: ["MIT"],
      links: %{},
      files: files()
    ]
  end

  # The package also has the C sources, from a folder that exists while the package is built, and in a release the
  # checksums of the precompiled NIFs. Each file is named: Hex packs the files of a folder in the order of the disk.
  @sources ["core", "include"]
  @own ~w(lib c_src Makefile mix.exs precompiled.exs checksums.exs .formatter.exs README.md)
  defp files do
    sources = for path <- regular("../../", @sources), do: Path.join("source", path)
    regular("", @own) ++ sources ++ ["LICENSE"]
  end

  defp regular(base, names) do
    for name <- names,
        path <- [base <> name | Path.wildcard(base <> name <> "/**")],
        File.regular?(path),
        do: String.replace_prefix(path, base, "")
  end

  defp aliases do
    for task <- ["hex.build", "hex.publish"], do: {String.to_atom(task), &with_sources(task, &1)}
  end

  # Whatever becomes of the task, the checkout is then as it was.
  defp with_sources(task, arguments) do
    add_sources()
    Mix.Task.run(task, arguments)
  after
    remove_sources()
  end

  def add_sources do
    remove_sources()

    for folder <- @sources do
      File.mkdir_p!(Path.join("source", Path.dirname(folder)))
      File.cp_r!(Path.join("../..", folder), Path.join("source", folder))
    end

    File.cp!("../../LICENSE", "LICENSE")
  end

  # In a package that is unpacked these are no copies.
  def remove_sources do
    File.exists?("../../include/gradscaler.toml") ||
      Mix.raise(
        "this is no clone of the repository: the package can only be built in bindings/elixir of one"
      )

    for added <- ["source", "LICENSE"], do: File.rm_rf!(added)
  end

  # Nx is optional: as it is found (ERL_LIBS), from a checkout (NX_PATH), from Hex, or not at all.
  defp nx do
    cond do
      Code.ensure_loaded?(Nx) -> []
      path = System.get_env("NX_PATH") -> [{:nx, path: path, optional: true}]
      Code.ensure_loaded?(Hex) -> [{:nx, "~> 0.7", optional: true}]
      true -> []
    end
  end

  # For mix docs.
  defp ex_doc do
    if Code.ensure_loaded?(Hex), do: [{:ex_doc, "~> 0.30", only: :dev, runtime: false}], else: []
  end
end
