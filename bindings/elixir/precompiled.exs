defmodule GradScaler.Precompiled do
  @moduledoc """
  The NIF as a file that somebody else compiled: in the place that GRADSCALER_PRECOMPILED or
  `config :gradscaler, precompiled: PLACE` names, a folder or the beginning of a URL. The package has
  the checksums of the files of its release; nothing else is taken.

  Used by mix.exs, before anything is compiled.
  """

  @checksums Path.join(__DIR__, "checksums.exs")

  @doc "Where to look, or nil: the NIF is compiled here."
  def place do
    case System.get_env("GRADSCALER_PRECOMPILED") || Application.get_env(:gradscaler, :precompiled) do
      none when none in [nil, false, ""] -> nil
      place -> place
    end
  end

  @doc """
  Puts the file for this machine where the NIF is loaded from, unless it is there. `:none`, with the
  reason, where there is none for this machine; anything else that goes wrong raises, and what was
  there stays.
  """
  def install(place, app_path, version) do
    name = "gradscaler-nif-2.16-#{target()}-#{version}#{extension()}"

    case checksums() do
      %{^name => checksum} ->
        unless checksum(installed(app_path)) == checksum do
          bytes = read(place, name)
          check!(sha256(bytes), checksum, "#{place}/#{name}")
          File.mkdir_p!(Path.dirname(installed(app_path)))
          # Moved into place: a library that a running node has mapped is not written into.
          File.write!(installed(app_path) <> ".new", bytes)
          File.rename!(installed(app_path) <> ".new", installed(app_path))
        end

        :ok

      none when none == %{} ->
        {:none, "a checkout has no checksums of precompiled files"}

      _others ->
        {:none, "there is no #{name}"}
    end
  end

  @doc "Removes a precompiled file before another is compiled in its place."
  def remove(app_path) do
    if checksum(installed(app_path)) in Map.values(checksums()), do: File.rm!(installed(app_path))
  end

  # As elixir_make has it: for another machine TARGET_ARCH, TARGET_OS and TARGET_ABI say which.
  defp target do
    {arch, os, abi} = here()
    parts = [{"TARGET_ARCH", arch}, {"TARGET_OS", os}, {"TARGET_ABI", abi}]
    parts = for {name, own} <- parts, do: System.get_env(name) || own
    parts |> Enum.reject(&(&1 in [nil, ""])) |> Enum.join("-")
  end

  defp here do
    architecture = to_string(:erlang.system_info(:system_architecture))

    case {:os.type(), String.split(architecture, "-")} do
      {{:win32, _}, _} -> {"x86_64", "windows", nil}
      {{:unix, :darwin}, ["arm" | _]} -> {"aarch64", "macos", nil}
      {{:unix, :darwin}, [arch | _]} -> {arch, "macos", nil}
      {{:unix, os}, [arch | rest]} -> {arch, to_string(os), List.last(rest)}
    end
  end

  defp extension, do: if(match?({:win32, _}, :os.type()), do: ".dll", else: ".so")
  defp installed(app_path), do: Path.join(app_path, "priv/gradscaler_nif#{extension()}")

  defp checksums do
    if File.exists?(@checksums), do: @checksums |> Code.eval_file() |> elem(0), else: %{}
  end

  defp checksum(file) do
    case File.read(file) do
      {:ok, bytes} -> sha256(bytes)
      {:error, _} -> nil
    end
  end

  defp sha256(bytes), do: "sha256:" <> Base.encode16(:crypto.hash(:sha256, bytes), case: :lower)

  defp check!(checksum, checksum, _from), do: :ok

  defp check!(found, expected, from) do
    Mix.raise("""
    #{from} is not the file of this release: it has #{found}, and checksums.exs of the package says \
    #{expected}. Nothing was changed. Get the file again, or compile the NIF here: unset \
    GRADSCALER_PRECOMPILED and config :gradscaler, :precompiled.\
    """)
  end

  defp read("http" <> _ = place, name) do
    for application <- [:inets, :ssl], do: {:ok, _} = Application.ensure_all_started(application)

    ssl = [
      verify: :verify_peer,
      cacerts: :public_key.cacerts_get(),
      customize_hostname_check: [match_fun: :public_key.pkix_verify_hostname_match_fun(:https)]
    ]

    request = {String.to_charlist("#{place}/#{name}"), []}
    http = if String.starts_with?(place, "https:"), do: [ssl: ssl], else: []

    case :httpc.request(:get, request, [timeout: 300_000] ++ http, body_format: :binary) do
      {:ok, {{_, 200, _}, _, bytes}} -> bytes
      {:ok, {{_, status, reason}, _, _}} -> missing!(place, name, "status #{status} #{reason}")
      {:error, reason} -> missing!(place, name, inspect(reason))
    end
  end

  defp read(place, name) do
    case File.read(Path.join(place, name)) do
      {:ok, bytes} -> bytes
      {:error, reason} -> missing!(place, name, :file.format_error(reason))
    end
  end

  defp missing!(place, name, why) do
    Mix.raise("""
    #{place}/#{name}, a precompiled NIF, cannot be read: #{why}. Nothing was changed. Put it there, or \
    compile the NIF here: unset GRADSCALER_PRECOMPILED and config :gradscaler, :precompiled.\
    """)
  end
end
