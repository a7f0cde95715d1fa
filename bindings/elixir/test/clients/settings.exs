defmodule Settings do
  @moduledoc "Scalers by the words of tests/replay: a preset, its framework's settings as `name=value,name=value` or `-`."

  def scaler(preset, settings) do
    {scaler, _notes} = GradScaler.Checkpoint.settings(mapping(settings), preset)
    scaler
  end

  def mapping("-"), do: %{}

  def mapping(words) do
    for item <- String.split(words, ","), into: %{} do
      [key, text] = String.split(item, "=")
      {key, value(text)}
    end
  end

  defp value("null"), do: nil
  defp value("inf"), do: :infinity
  defp value("nan"), do: :nan

  defp value(text) do
    case Float.parse(text) do
      {number, ""} -> number
      _ -> text
    end
  end
end
