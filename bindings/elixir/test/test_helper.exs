# Tests of Nx and Axon run where ERL_LIBS or a dependency provides them; where not, that is said and not passed over.
excluded =
  for {application, module, tag} <- [{:nx, Nx, :nx}, {:axon, Axon, :axon}],
      not Code.ensure_loaded?(module) do
    IO.puts(:stderr, """

    ************************************************************************
    * #{module |> inspect() |> String.pad_trailing(4)} WAS NOT FOUND: the tests tagged :#{tag} DID NOT RUN.
    * Name its compiled application in ERL_LIBS, or Nx's checkout in NX_PATH.
    ************************************************************************
    """)

    {application, tag}
  end

for application <- [:nx, :axon], not List.keymember?(excluded, application, 0) do
  {:ok, _} = Application.ensure_all_started(application)
end

ExUnit.start(exclude: [:measure | Keyword.values(excluded)])
