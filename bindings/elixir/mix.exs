defmodule Mix.Tasks.Compile.Gradscaler do
  @moduledoc """
  Builds the NIF with make. The variables are elixir_make's, so that its compiler can take over.
  """
  use Mix.Task.Compiler

  @impl true
  def run(_args) do
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
    System.cmd("make", ["--silent" | targets], options)
  end
end

defmodule GradScaler.MixProject do
  use Mix.Project

  def project do
    [
      app: :gradscaler,
      version: "0.1.0",
      elixir: "~> 1.14",
      description: "Loss scaling for mixed-precision training",
      compilers: [:gradscaler | Mix.compilers()],
      # An Nx of ERL_LIBS is no dependency; newer Mix would hide it.
      prune_code_paths: false,
      # Tests define containers of their own.
      consolidate_protocols: Mix.env() != :test,
      xref: [exclude: [Nx, Nx.BinaryBackend, Nx.Container, Nx.Type]],
      deps: nx()
    ]
  end

  def application, do: [extra_applications: [:logger]]

  # Nx is optional: as it is found (ERL_LIBS), from a checkout (NX_PATH), from Hex, or not at all.
  defp nx do
    cond do
      Code.ensure_loaded?(Nx) -> []
      path = System.get_env("NX_PATH") -> [{:nx, path: path, optional: true}]
      Code.ensure_loaded?(Hex) -> [{:nx, "~> 0.7", optional: true}]
      true -> []
    end
  end
end
