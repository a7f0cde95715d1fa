# The Elixir client of tests/replay/replay.py, which says what is read and written: one line per recording.
Code.require_file("settings.exs", __DIR__)

defmodule Replay do
  alias GradScaler.Report

  @report %Report{kind: :tensors, elements: 1, measured: [:norm, :amax, :underflow]}

  def run do
    for line <- IO.stream(:stdio, :line), do: line |> answer() |> IO.puts()
  end

  def answer(line) do
    [preset, settings, steps | checkpoint] = String.split(line)
    scaler = Enum.reduce(checkpoint, Settings.scaler(preset, settings), &load(&2, &1, preset))
    replay(scaler, String.split(steps, ","))
  rescue
    error -> "error #{error |> Exception.message() |> String.replace("\n", " ")}"
  end

  defp load(scaler, words, preset) do
    {scaler, _notes} = GradScaler.Checkpoint.read(Settings.mapping(words), scaler, format: preset)
    scaler
  end

  defp replay(scaler, steps) do
    {scaler, answers} =
      Enum.reduce(steps, {scaler, []}, fn step, {scaler, answers} ->
        updated = GradScaler.update(scaler, report(step))

        {updated,
         ["#{GradScaler.loss_scale(scaler)}/#{events(updated)}#{guard(step, updated)} " | answers]}
      end)

    "#{Enum.reverse(answers)}#{GradScaler.loss_scale(scaler)}"
  end

  defp report("0"), do: @report
  defp report("1"), do: %{@report | overflow: true}

  defp report("n" <> norm) do
    {norm, ""} = Float.parse(norm)
    %{@report | sum_squares: norm * norm}
  end

  defp guard("n" <> _norm, scaler) do
    state = GradScaler.state(scaler)
    numbers = [state.guard_multiplier, state.guard_mean, state.guard_variance]
    for number <- numbers, do: "/#{number}"
  end

  defp guard(_step, _scaler), do: ""

  defp events(scaler) do
    GradScaler.Constants.number(:event, GradScaler.events(scaler), "events")
  end
end

Replay.run()
