defmodule GradScaler.Transform do
  @moduledoc false
  # Nx's `deftransform`, which makes functions that a defn may call; without Nx a plain `def`.

  defmacro __using__(_options) do
    module = if Code.ensure_loaded?(Nx.Defn), do: Nx.Defn, else: __MODULE__
    quote do: import(unquote(module), only: [deftransform: 2])
  end

  defmacro deftransform(call, block), do: quote(do: def(unquote(call), unquote(block)))
end
