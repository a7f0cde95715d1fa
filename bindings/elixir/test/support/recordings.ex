defmodule GradScaler.Recordings do
  @moduledoc "The recordings of tests/traces, as tests/replay/replay.py reads them: it knows what a peer's settings mean."

  @root Path.expand("../../../..", __DIR__)
  @script """
  import json, pathlib, sys
  sys.path.insert(0, sys.argv[1] + "/tests/replay")
  import replay
  for path in sorted(pathlib.Path(sys.argv[1], "tests/traces").glob("*.json")):
      if path.name != "checkpoints.json":
          recording = json.loads(path.read_text())
          for trace in recording["traces"]:
              if ("norm" in trace) != (sys.argv[2] == "guards"):
                  continue
              scales = ",".join(float(scale).hex() for scale in trace.get("scale", [0]))
              print(replay.request(recording["preset"], trace), scales, recording.get("tolerance", 0), trace["name"])
  """

  def root, do: @root

  @doc "All recordings of scales, or those of one preset; those of guards, whose steps are norms."
  def all(of \\ "scales") do
    {lines, 0} = System.cmd("python3", ["-B", "-c", @script, @root, of])
    for line <- String.split(lines, "\n", trim: true), do: parse(line)
  end

  def guards, do: all("guards")
  def of(preset), do: Enum.filter(all(), &(&1.preset == preset))

  defp parse(line) do
    [preset, settings, steps, scales, tolerance, name] = String.split(line, " ", parts: 6)

    %{
      preset: preset,
      name: name,
      scaler: Settings.scaler(preset, settings),
      steps: String.split(steps, ","),
      scales: for(scale <- String.split(scales, ","), do: HexFloat.parse(scale)),
      tolerance: tolerance |> Float.parse() |> elem(0)
    }
  end
end
