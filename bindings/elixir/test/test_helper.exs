# Tests of Nx and Axon run where ERL_LIBS or a dependency provides them; where not, that is said and not passed over.
excluded =
  for {application, module} <- [nx: Nx, axon: Axon], not Code.ensure_loaded?(module) do
    IO.puts(:stderr, """

    ************************************************************************
    * #{inspect(module)} WAS NOT FOUND: the tests tagged :#{application} DID NOT RUN.
    * Name its compiled application in ERL_LIBS, or Nx's checkout in NX_PATH.
    ************************************************************************
    """)

    application
  end

for application <- [:nx, :axon] -- excluded,
    do: {:ok, _} = Application.ensure_all_started(application)

for file <- ["hex_float.exs", "settings.exs"],
    do: Code.require_file("../examples/#{file}", __DIR__)

Code.require_file("support/recordings.ex", __DIR__)

ExUnit.start(exclude: excluded)
