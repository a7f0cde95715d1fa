defmodule Settings do
  @moduledoc "Scalers by the words of tests/replay: a preset, and fields as `name=value,name=value` or `-`."

  def scaler(preset, settings), do: GradScaler.new(preset, fields(settings))

  defp fields("-"), do: []
  defp fields(settings), do: for(item <- String.split(settings, ","), do: field(item))

  defp field(item) do
    [name, value] = String.split(item, "=")
    known = Map.keys(%GradScaler.Policy{})
    name = Enum.find(known, name, &(to_string(&1) == name))
    {name, value(name, HexFloat.parse(value))}
  end

  # Numbers come as hex floats; a field that is no float takes whole ones.
  defp value(name, x) when is_float(x) do
    if is_float(Map.get(%GradScaler.Policy{}, name)), do: x, else: trunc(x)
  end

  defp value(_name, x), do: x
end
