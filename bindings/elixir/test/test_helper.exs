# If the library :telemetry is missing: the functions of it that GradScaler.update uses, for this process.
unless Code.ensure_loaded?(:telemetry) do
  defmodule :telemetry do
    def attach(_id, event, handler, _config), do: Process.put({__MODULE__, event}, handler)
    def detach(_id), do: Process.delete({__MODULE__, [:grad_scaler, :update]})
    def list_handlers(event), do: List.wrap(Process.get({__MODULE__, event}))

    def execute(event, measurements, metadata),
      do: Process.get({__MODULE__, event}).(event, measurements, metadata, nil)
  end
end

# `mix test --exclude wording` is for a library that was built with -DGSC_SCRAMBLE_SENTENCES in CFLAGS: the sentences of the
# library are nonsense then. What still passes needs no words.
defmodule GradScaler.Wording do
  @doc "Returns words of a sentence of the library, to look for them; with `--exclude wording` nothing."
  def wording(words),
    do: if(:wording in ExUnit.configuration()[:exclude], do: "", else: words)
end

# Tests of Nx, Axon and CUDA run where these are; where not, that is said and not passed over.
excluded =
  for {application, module} <- [nx: Nx, axon: Axon],
      not Code.ensure_loaded?(module) do
    IO.puts(:stderr, """

    ************************************************************************
    * #{inspect(module)} WAS NOT FOUND: the tests tagged :#{application} DID NOT RUN.
    * Name its compiled application in ERL_LIBS, or Nx's checkout in NX_PATH.
    ************************************************************************
    """)

    application
  end

# GradScaler.Defn.update calls the library through it; where it lacks, one test says so.
runtime_call =
  if Code.ensure_loaded?(Nx) and function_exported?(Nx, :runtime_call, 4) do
    [:nx_without_runtime_call]
  else
    IO.puts(:stderr, "the tests tagged :nx_runtime_call did not run: Nx is not 0.12 or newer")
    [:nx_runtime_call]
  end

for application <- [:nx, :axon] -- excluded,
    do: {:ok, _} = Application.ensure_all_started(application)

without_cuda =
  try do
    GradScaler.on_device(GradScaler.new(), :cuda)
    []
  rescue
    error in GradScaler.Error ->
      IO.puts(:stderr, "the tests tagged :cuda did not run: #{Exception.message(error)}")
      [:cuda]
  end

# A sanitizer on a busy machine takes minutes for what takes seconds. Warnings are shown of tests that fail.
exclude = excluded ++ runtime_call ++ without_cuda
ExUnit.start(exclude: exclude, timeout: 600_000, capture_log: true)
