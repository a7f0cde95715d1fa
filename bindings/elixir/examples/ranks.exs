# SPDX-License-Identifier: MIT
# Training on several nodes of distributed Erlang: all of them step, or none, with the same bits.
#
#     elixir -pa _build/prod/lib/gradscaler/ebin examples/ranks.exs DIGITS
#
# DIGITS is the file of digits.exs: 64 bytes of pixels and a byte of label each. A linear classifier with float16 weights
# and gradients learns them twice: on one node, and on four that this one starts, each with weights and a scaler of its
# own. A step is two rounds of :erpc: every node makes the gradients of its parts of the batch and a report of them, and
# every node merges the reports of all and steps, or none does. Sums are made in the order of the parts, so both runs end
# with the same weights. At the end a node goes on from another state, and one dies: nobody steps, and the message names it.
{:module, Rank, code, _} =
  defmodule Rank do
    @moduledoc "What a node of the training holds, and does when it is asked to."

    @parts 4
    @classes 10

    def start(rank, ranks, policy) do
      :persistent_term.put(__MODULE__, {rank, ranks})
      weights = List.duplicate(List.duplicate(0.0, 64), @classes)

      {:ok, _} =
        Agent.start(fn -> {weights, GradScaler.new("torch", policy)} end, name: __MODULE__)
    end

    def drift,
      do:
        Agent.update(__MODULE__, fn {weights, scaler} ->
          {weights, GradScaler.update(scaler, false)}
        end)

    @doc "The gradients of this node's parts of a batch, each with its report, with the rank set."
    def gradients(batch) do
      {rank, ranks} = :persistent_term.get(__MODULE__)
      {weights, scaler} = Agent.get(__MODULE__, & &1)
      own = div(@parts, ranks)

      for part <-
            batch |> Enum.chunk_every(div(length(batch), @parts)) |> Enum.slice(rank * own, own) do
        {gradient, report} =
          part |> backward(weights, scaler, length(batch)) |> GradScaler.unscale(scaler)

        {gradient, GradScaler.set_rank(report, scaler, rank)}
      end
    end

    @doc "Steps by what all nodes answered: raises where a node failed, or has another state, and has stepped nowhere then."
    def step(answers, rate) do
      {weights, scaler} = Agent.get(__MODULE__, & &1)

      report = GradScaler.merge(for({_gradient, report} <- answers, do: report), :addends, scaler)

      updated = GradScaler.update(scaler, report)

      weights =
        if GradScaler.skip?(updated),
          do: weights,
          else:
            answers
            |> Enum.map(fn {%{weights: pair}, _report} -> rows(pair) end)
            |> descend(weights, rate)

      Agent.update(__MODULE__, fn _ -> {weights, updated} end)
      {:crypto.hash(:sha256, :erlang.term_to_binary(weights)), report, updated}
    end

    def accuracy(test) do
      {weights, _scaler} = Agent.get(__MODULE__, & &1)

      right =
        for {pixels, label} <- test,
            logits = logits(weights, pixels),
            Enum.at(logits, label) == Enum.max(logits),
            do: 1

      length(right) / length(test)
    end

    # The scaled gradient of the mean cross-entropy of a batch for its part `part`, as float16.
    defp backward(part, weights, scaler, batch) do
      zeros = List.duplicate(List.duplicate(0.0, 64), @classes)

      sum =
        for {pixels, label} <- part, reduce: zeros do
          sum ->
            exponentials = weights |> logits(pixels) |> Enum.map(&:math.exp/1)
            total = Enum.sum(exponentials)

            for {{row, e}, class} <- sum |> Enum.zip(exponentials) |> Enum.with_index() do
              delta = (e / total - if(class == label, do: 1.0, else: 0.0)) / batch
              Enum.zip_with(row, pixels, fn s, x -> s + delta * x end)
            end
        end

      scaled =
        GradScaler.scale_loss(
          {:f32, for(row <- sum, x <- row, into: <<>>, do: <<x::little-float-32>>)},
          scaler
        )

      %{weights: GradScaler.cast_params(scaled, :f16)}
    end

    defp logits(weights, pixels),
      do: for(row <- weights, do: row |> Enum.zip_with(pixels, &(&1 * &2)) |> Enum.sum())

    defp rows({:f32, binary}),
      do: for(<<x::little-float-32 <- binary>>, do: x) |> Enum.chunk_every(64)

    defp descend(gradients, weights, rate) do
      Enum.reduce(gradients, weights, fn gradient, weights ->
        Enum.zip_with(weights, gradient, fn row, g -> Enum.zip_with(row, g, &(&1 - rate * &2)) end)
      end)
    end
  end

:persistent_term.put(:code_of_rank, code)

defmodule Ranks do
  @moduledoc "What the node that started the others does."

  @train 1280
  @batch 256
  @epochs 20
  @rate 0.5
  @timeout 60_000

  def main([path]) do
    # It answers a moment after `epmd -daemon` has ended.
    epmd = "epmd -daemon; for i in $(seq 100); do epmd -names && exit; sleep 0.1; done; exit 1"
    {_, 0} = System.cmd("sh", ["-c", epmd], stderr_to_stdout: true)
    {:ok, _} = :net_kernel.start([:"gradscaler_#{System.pid()}@127.0.0.1", :longnames])

    records =
      for <<pixels::binary-64, digit <- File.read!(path)>>,
        do: {for(<<p <- pixels>>, do: p / 16), digit}

    data = Enum.split(records, @train)
    one = train([node()], data)
    nodes = for rank <- 0..3, do: peer(rank)
    four = train(nodes, data)
    if one != four, do: fail("four nodes have other weights than one")

    :erpc.call(Enum.at(nodes, 2), Rank, :drift, [])
    refused(nodes, data, "rank 2 has another policy or state than rank 0")
    for rank <- [0, 1, 3], do: :erpc.call(Enum.at(nodes, rank), Rank, :drift, [])
    kill(Enum.at(nodes, 3))
    refused(nodes, data, "status is an error that rank 3 met")
  end

  defp kill(node) do
    Node.monitor(node, true)
    :erpc.cast(node, System, :halt, [1])

    receive do
      {:nodedown, ^node} -> :ok
    end
  end

  # A node on this machine, with the code of this one.
  defp peer(rank) do
    paths = for path <- :code.get_path(), argument <- [~c"-pa", path], do: argument

    options = %{
      name: :"rank#{rank}_#{System.pid()}",
      host: ~c"127.0.0.1",
      longnames: true,
      args: paths
    }

    {:ok, _, node} = :peer.start_link(options)

    {:module, Rank} =
      :erpc.call(node, :code, :load_binary, [
        Rank,
        ~c"ranks.exs",
        :persistent_term.get(:code_of_rank)
      ])

    node
  end

  # The digest of the weights, which all nodes share.
  defp train(nodes, {train, test}) do
    for {node, rank} <- Enum.with_index(nodes),
        do:
          :erpc.call(node, Rank, :start, [
            rank,
            length(nodes),
            [init_scale: 2.0 ** 40, growth_interval: 5]
          ])

    steps = for _ <- 1..@epochs, batch <- Enum.chunk_every(train, @batch), do: step(nodes, batch)
    {digest, _report, scaler} = List.last(steps)
    accuracy = :erpc.call(hd(nodes), Rank, :accuracy, [test])
    state = GradScaler.state(scaler)

    IO.puts(
      "#{length(nodes)} nodes: accuracy #{round(accuracy * 1000) / 10}%, skipped #{state.total_overflows}, growths " <>
        "#{state.total_growths}, scale #{state.factor.scale}, digest #{digest |> Base.encode16() |> String.slice(0, 16)}"
    )

    if accuracy < 0.85 or state.total_overflows == 0, do: fail("that is not what one node learns")
    digest
  end

  # One step of all nodes: what it came to, the same on each.
  defp step(nodes, batch) do
    answers = nodes |> :erpc.multicall(Rank, :gradients, [batch], @timeout) |> Enum.with_index()
    answers = Enum.flat_map(answers, &answer/1)
    results = :erpc.multicall(nodes, Rank, :step, [answers, @rate], @timeout)

    case Enum.uniq(results) do
      [{:ok, {_digest, report, scaler} = result}] ->
        if reason = GradScaler.reason(scaler, report), do: IO.puts(:stderr, reason)
        result

      different ->
        {:refused, different}
    end
  end

  defp answer({{:ok, parts}, _rank}), do: parts

  # A node that raised, is gone or too late: a report in its name, so that nobody steps.
  defp answer({{_class, reason}, rank}) do
    IO.puts(:stderr, "rank #{rank}: #{inspect(reason, limit: 5)}")

    [
      {nil,
       %{
         GradScaler.failed_report(:unavailable)
         | status_rank_plus_1: rank + 1,
           first_rank_plus_1: rank + 1,
           last_rank_plus_1: rank + 1
       }}
    ]
  end

  # No node steps, and each says why; one that is gone says nothing.
  defp refused(nodes, {train, _test}, why) do
    {:refused, results} = step(nodes, Enum.take(train, @batch))
    said = for {:error, {:exception, %{message: message}, _}} <- results, do: message
    IO.puts("refused: #{hd(said)}")

    if said == [] or not Enum.all?(said, &(&1 =~ why)),
      do: fail("expected #{why}: #{inspect(results)}")

    if Enum.any?(results, &match?({:ok, _}, &1)), do: fail("a node stepped alone")
  end

  defp fail(text) do
    IO.puts(:stderr, text)
    System.halt(1)
  end
end

Ranks.main(System.argv())
