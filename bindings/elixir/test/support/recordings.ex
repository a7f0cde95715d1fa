defmodule GradScaler.Recordings do
  @moduledoc "The recordings of tests/traces, as tests/replay/replay.py reads them: it knows what a peer's settings mean."

  @root Path.expand("../../../..", __DIR__)
  @script """
  import json, pathlib, sys
  sys.path.insert(0, sys.argv[1] + "/tests/replay")
  import replay
  recording = json.loads(pathlib.Path(sys.argv[1], "tests/traces", sys.argv[2] + ".json").read_text())
  for trace in recording["traces"]:
      scales = ",".join(float(scale).hex() for scale in trace["scale"])
      print(replay.request(recording["preset"], trace), scales, trace["name"])
  """

  @doc "The recordings of a preset."
  def of(preset) do
    {lines, 0} = System.cmd("python3", ["-B", "-c", @script, @root, preset])

    for line <- String.split(lines, "\n", trim: true) do
      [preset, settings, steps, scales, name] = String.split(line, " ", parts: 5)

      %{
        name: name,
        scaler: Settings.scaler(preset, settings),
        steps: String.split(steps, ","),
        scales: for(scale <- String.split(scales, ","), do: HexFloat.parse(scale))
      }
    end
  end
end
