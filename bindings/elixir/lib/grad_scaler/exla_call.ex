# A file of its own: whether EXLA is there is asked when it is compiled.
if Code.ensure_loaded?(:"Elixir.EXLA.CustomCall") do
  defimpl EXLA.CustomCall, for: GradScaler.EXLA.Unscale do
    def call(block, _out, _args, client), do: GradScaler.EXLA.lower(block, client)
  end
end
