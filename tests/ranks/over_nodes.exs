# SPDX-License-Identifier: MIT
# The rank program of steps.py, on nodes of distributed Erlang.
#
#     elixir -pa .../gradscaler/ebin over_nodes.exs SIZE DIRECTORY FAULT SECONDS    RANKS_TIMEOUT: of :erpc, seconds
{:module, Rank, code, _} =
  defmodule Rank do
    @moduledoc "What a node does when it is asked to; it knows its rank."

    @bad_step 3
    @bad_rank 1

    def start(rank, directory, fault) do
      scale = if {fault, rank} == {"drift", @bad_rank}, do: 2.0, else: 4.0
      scaler = GradScaler.new("torch", init_scale: scale, growth_interval: 2)
      put(%{rank: rank, directory: directory, scaler: scaler, fault: fault})
      File.write!(log(rank, directory), "")
    end

    defp put(mine), do: :persistent_term.put(__MODULE__, mine)
    defp log(rank, directory), do: Path.join(directory, Integer.to_string(rank))

    @doc "The report of this node's gradients in a step, with its rank."
    def report(step, seconds) do
      %{rank: rank, scaler: scaler, fault: fault} = :persistent_term.get(__MODULE__)
      bad = {step, rank} == {@bad_step, @bad_rank} and fault
      if bad, do: Process.sleep(1000 * seconds)
      scale = GradScaler.loss_scale(scaler)

      [weight, bias] =
        for size <- [8, 4] do
          for i <- 0..(size - 1), into: <<>>, do: <<(1 + rem(step + rank + i, 7)) * scale::little-float-32>>
        end

      weight =
        case bad do
          "nan" -> binary_part(weight, 0, 8) <> <<0x7FC00000::little-32>> <> binary_part(weight, 12, 20)
          "fails" -> binary_part(weight, 0, 31)
          _ -> weight
        end

      report =
        try do
          grads = %{weight: {:f32, weight}, bias: {:f32, bias}}
          {_, report} = GradScaler.unscale(grads, scaler, want: :norm)
          report
        rescue
          _ in ArgumentError -> GradScaler.failed_report(:dtype)
        end

      if bad == "dies", do: System.cmd("kill", ["-KILL", System.pid()])
      GradScaler.set_rank(report, scaler, rank)
    end

    @doc "Merges what the nodes answered, and updates; a line says what came of it. Whether to go on."
    def step(step, reports) do
      %{rank: rank, scaler: scaler, directory: directory} = mine = :persistent_term.get(__MODULE__)

      {line, scaler} =
        try do
          report = GradScaler.merge(reports, :shards, scaler)
          updated = GradScaler.update(scaler, report)
          said = if GradScaler.skip?(report), do: "skipped", else: "stepped"
          reason = GradScaler.reason(updated, report)
          {"#{said} #{GradScaler.norm(report)} #{GradScaler.loss_scale(updated)} #{reason}", updated}
        rescue
          error in ArgumentError -> {"refused #{error.message}", nil}
        end

      File.write!(log(rank, directory), "#{step} #{String.trim(line)}\n", [:append])
      if scaler, do: put(%{mine | scaler: scaler})
      scaler != nil
    end
  end

:persistent_term.put(:code_of_rank, code)

defmodule Ranks do
  @moduledoc "What the node that started the others does."

  def main([size, directory, fault, seconds]) do
    nodes = nodes(String.to_integer(size))
    timeout = 1000 * String.to_integer(System.get_env("RANKS_TIMEOUT", "60"))

    for {node, rank} <- Enum.with_index(nodes),
        do: :erpc.call(node, Rank, :start, [rank, directory, fault])

    seconds = String.to_integer(seconds)
    went_on = Enum.take_while(0..5, &step(nodes, &1, seconds, timeout))
    System.halt(if length(went_on) == 6, do: 0, else: 1)
  end

  defp nodes(size) do
    # It answers a moment after `epmd -daemon` has ended.
    epmd = "epmd -daemon; for i in $(seq 100); do epmd -names && exit; sleep 0.1; done; exit 1"
    {_, 0} = System.cmd("sh", ["-c", epmd], stderr_to_stdout: true)
    {:ok, _} = :net_kernel.start([:"ranks_#{System.pid()}@127.0.0.1", :longnames])
    for rank <- 0..(size - 1), do: peer(rank)
  end

  # It is not linked: its end is not the end of this one.
  defp peer(rank) do
    paths = for path <- :code.get_path(), argument <- [~c"-pa", path], do: argument

    name = :"rank#{rank}_#{System.pid()}"
    {:ok, _, node} = :peer.start(%{name: name, host: ~c"127.0.0.1", longnames: true, args: paths})
    code = :persistent_term.get(:code_of_rank)
    {:module, Rank} = :erpc.call(node, :code, :load_binary, [Rank, ~c"over_nodes.exs", code])
    node
  end

  defp step(nodes, step, seconds, timeout) do
    answers = :erpc.multicall(nodes, Rank, :report, [step, seconds], timeout)
    reports = answers |> Enum.with_index() |> Enum.map(&report/1)
    results = :erpc.multicall(nodes, Rank, :step, [step, reports], timeout)
    Enum.all?(results, &(&1 == {:ok, true}))
  end

  defp report({{:ok, report}, _rank}), do: report

  # A node that is gone, or later than the time-out: a report in its name.
  defp report({_, rank}) do
    rank = rank + 1
    failed = GradScaler.failed_report(:unavailable)
    %{failed | status_rank_plus_1: rank, first_rank_plus_1: rank, last_rank_plus_1: rank}
  end
end

Ranks.main(System.argv())
