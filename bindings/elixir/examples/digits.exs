# Shows what loss scaling does, without any other package: a small network learns to read handwritten digits.
#
#     mix run examples/digits.exs DIGITS
#
# DIGITS holds 1,797 records of 64 bytes, the pixels from 0 to 16, and a byte for the digit. The network trains three
# times from the same start: in float32; with float16 weights, activations and gradients; and in float16 with GradScaler.
# The loss is weighted 1e-5, as for an auxiliary head, so most gradients are too small for float16, which rounds them to
# zero; the weight was chosen to show this. The exit status is 1 if float16 does not fail without scaling or does not
# match float32 with it.
#
# Sums are taken in doubles and results are rounded, as the matrix units of accelerators round their longer sums. Erlang
# has no Inf: where a layer's gradient overflows, those that follow from it are filled with Inf as bytes.
defmodule Digits.Matrix do
  @moduledoc "Matrices as lists of rows, and their rounding to a type by way of {dtype, binary} pairs."

  def dot(a, b), do: dot(a, b, 0.0)
  defp dot([x | a], [y | b], sum), do: dot(a, b, sum + x * y)
  defp dot([], [], sum), do: sum

  @doc "Rows of `a` times rows of `b`: a product with the second matrix transposed."
  def times(a, b), do: for(row <- a, do: for(column <- b, do: dot(row, column)))

  def transpose(rows), do: Enum.zip_with(rows, & &1)

  @doc "Sums of the columns, as one row."
  def column_sums(rows), do: [Enum.zip_with(rows, &Enum.sum/1)]

  @doc "The elements as float32: what a computation leaves before it is stored."
  def single(rows), do: {:f32, for(row <- rows, x <- row, into: <<>>, do: <<x::little-float-32>>)}

  @doc "The elements as they are stored in a type."
  def store(rows, dtype), do: GradScaler.cast_params(single(rows), dtype)

  @doc "The rows of what was stored, which must be finite."
  def rows({:f32, binary}, width), do: chunk(for(<<x::little-float-32 <- binary>>, do: x), width)
  def rows({:f16, binary}, width), do: chunk(for(<<x::little-float-16 <- binary>>, do: x), width)

  defp chunk(elements, width), do: Enum.chunk_every(elements, width)

  def round_to(rows, dtype), do: rows |> store(dtype) |> rows(length(hd(rows)))
end

defmodule Digits.Adam do
  @moduledoc "Adam on matrices; the moments are kept beside the weights, element by element."

  # Adam divides gradients by their size, so the loss weight cancels out; an epsilon that carries the weight too leaves
  # float16's rounding as the only difference between the runs.
  def new(weights, epsilon),
    do: %{epsilon: epsilon, count: 0, moments: Map.new(weights, &zeros/1)}

  defp zeros({name, rows}), do: {name, for(row <- rows, do: for(_ <- row, do: {0.0, 0.0}))}

  def step(adam, weights, gradients, rate) do
    count = adam.count + 1
    corrections = {1 - 0.9 ** count, 1 - 0.999 ** count, rate, adam.epsilon}

    updated =
      for {name, rows} <- weights,
          do: {name, update(rows, gradients[name], adam.moments[name], corrections)}

    weights = Map.new(updated, fn {name, rows} -> {name, map(rows, &elem(&1, 0))} end)
    moments = Map.new(updated, fn {name, rows} -> {name, map(rows, &elem(&1, 1))} end)
    {%{adam | count: count, moments: moments}, weights}
  end

  defp map(rows, fun), do: for(row <- rows, do: Enum.map(row, fun))

  defp update(rows, gradients, moments, corrections) do
    Enum.zip_with([rows, gradients, moments], fn [row, gradient, moment] ->
      Enum.zip_with([row, gradient, moment], fn [w, g, m] -> element(w, g, m, corrections) end)
    end)
  end

  defp element(weight, gradient, {mean, square}, {first, second, rate, epsilon}) do
    mean = mean + 0.1 * (gradient - mean)
    square = square + 0.001 * (gradient * gradient - square)
    {weight - rate * (mean / first) / (:math.sqrt(square / second) + epsilon), {mean, square}}
  end
end

defmodule Digits do
  alias Digits.{Adam, Matrix}

  @pixels 64
  @hidden 32
  @classes 10
  @train 1280
  @batch 64
  @epochs 12
  @rate 0.01
  @loss_weight 1.0e-5

  # ---- data ----

  def load(path) do
    records =
      for <<pixels::binary-size(@pixels), digit <- File.read!(path)>>,
        do: {normalise(pixels), digit}

    :rand.seed(:exsss, {1, 2, 3})
    records |> Enum.shuffle() |> Enum.split(@train)
  end

  defp normalise(pixels), do: for(<<pixel <- pixels>>, do: pixel / 16)

  # ---- network ----

  defp start do
    :rand.seed(:exsss, {4, 5, 6})

    %{
      w1: random(@hidden, @pixels),
      b1: [List.duplicate(0.0, @hidden)],
      w2: random(@classes, @hidden),
      b2: [List.duplicate(0.0, @classes)]
    }
  end

  defp random(outputs, inputs) do
    limit = :math.sqrt(6 / (outputs + inputs))
    for _ <- 1..outputs, do: for(_ <- 1..inputs, do: (2 * :rand.uniform() - 1) * limit)
  end

  # {hidden activations, logits}, as stored in the type.
  defp forward(weights, images, dtype) do
    weights = Map.new(weights, fn {name, rows} -> {name, Matrix.round_to(rows, dtype)} end)
    hidden = images |> layer(weights.w1, weights.b1) |> activate() |> Matrix.round_to(dtype)
    {weights, hidden, hidden |> layer(weights.w2, weights.b2) |> Matrix.round_to(dtype)}
  end

  defp layer(inputs, weights, [bias]) do
    for row <- Matrix.times(inputs, weights), do: Enum.zip_with(row, bias, &(&1 + &2))
  end

  defp activate(rows), do: for(row <- rows, do: for(z <- row, do: (:math.tanh(z / 2) + 1) / 2))

  # d loss / d logits of loss_weight times the mean cross-entropy.
  defp loss_gradient(logits, labels) do
    for {row, label} <- Enum.zip(logits, labels) do
      top = Enum.max(row)
      exponentials = for z <- row, do: :math.exp(z - top)
      sum = Enum.sum(exponentials)

      for {e, class} <- Enum.with_index(exponentials) do
        (e / sum - if(class == label, do: 1.0, else: 0.0)) * @loss_weight / length(labels)
      end
    end
  end

  # The gradients of the weights as they are stored, from the stored gradient of the logits.
  defp backward(delta, {weights, hidden}, images, dtype) do
    with {:ok, delta2} <- finite_rows(delta, @classes),
         delta1 = back_through(delta2, weights.w2, hidden),
         {:ok, delta1} <- delta1 |> Matrix.store(dtype) |> finite_rows(@hidden) do
      %{
        w1: Matrix.times(Matrix.transpose(delta1), Matrix.transpose(images)),
        b1: Matrix.column_sums(delta1),
        w2: Matrix.times(Matrix.transpose(delta2), Matrix.transpose(hidden)),
        b2: Matrix.column_sums(delta2)
      }
      |> Map.new(fn {name, rows} -> {name, Matrix.store(rows, dtype)} end)
    else
      :overflow -> Map.new(weights, fn {name, rows} -> {name, infinite(rows)} end)
    end
  end

  defp back_through(delta, weights, hidden) do
    for {row, activations} <- Enum.zip(Matrix.times(delta, Matrix.transpose(weights)), hidden) do
      Enum.zip_with(row, activations, fn d, a -> d * a * (1 - a) end)
    end
  end

  defp finite_rows(stored, width) do
    if GradScaler.finite?(stored), do: {:ok, Matrix.rows(stored, width)}, else: :overflow
  end

  defp infinite(rows), do: {:f16, :binary.copy(<<0x7C00::little-16>>, length(List.flatten(rows)))}

  # ---- training ----

  def train(name, dtype, {train, test}, scaler \\ nil) do
    weights = start()

    run = %{
      weights: weights,
      adam: Adam.new(weights, 1.0e-8 * @loss_weight),
      scaler: scaler,
      dtype: dtype
    }

    {time, run} =
      :timer.tc(fn -> Enum.reduce(1..@epochs, run, fn _, run -> epoch(run, train) end) end)

    accuracy = accuracy(run, test)

    IO.puts(
      "#{String.pad_trailing(name, 22)} #{percent(accuracy)} in #{div(time, 1_000_000)} s  #{story(run.scaler)}"
    )

    accuracy
  end

  defp epoch(run, train) do
    train |> Enum.shuffle() |> Enum.chunk_every(@batch) |> Enum.reduce(run, &step(&2, &1))
  end

  defp step(run, batch) do
    {images, labels} = Enum.unzip(batch)
    {weights, hidden, logits} = forward(run.weights, images, run.dtype)

    delta =
      logits
      |> loss_gradient(labels)
      |> Matrix.single()
      |> scale(run.scaler)
      |> GradScaler.cast_params(run.dtype)

    delta |> backward({weights, hidden}, images, run.dtype) |> optimize(run)
  end

  defp scale(delta, nil), do: delta
  defp scale(delta, scaler), do: GradScaler.scale_loss(delta, scaler)

  defp optimize(gradients, %{scaler: nil} = run),
    do: apply_gradients(run, GradScaler.accumulate_grad(gradients))

  # The whole of loss scaling: unscale, skip or step, update.
  defp optimize(gradients, run) do
    {gradients, report} = GradScaler.unscale(gradients, run.scaler)
    run = %{run | scaler: GradScaler.update(run.scaler, report)}
    if GradScaler.skip?(run.scaler), do: run, else: apply_gradients(run, gradients)
  end

  defp apply_gradients(run, gradients) do
    gradients =
      Map.new(gradients, fn {name, pair} ->
        {name, Matrix.rows(pair, length(hd(run.weights[name])))}
      end)

    {adam, weights} = Adam.step(run.adam, run.weights, gradients, @rate)
    %{run | adam: adam, weights: weights}
  end

  defp accuracy(run, test) do
    {images, labels} = Enum.unzip(test)
    {_weights, _hidden, logits} = forward(run.weights, images, run.dtype)

    right =
      for {row, label} <- Enum.zip(logits, labels),
          Enum.at(row, label) == Enum.max(row),
          do: label

    length(right) / length(labels)
  end

  defp percent(share), do: "#{:erlang.float_to_binary(share * 100, decimals: 1)}%"

  defp story(nil), do: ""

  defp story(scaler) do
    state = GradScaler.state(scaler)

    "#{state.total_overflows} steps skipped, scale grew #{state.total_growths} times, now #{inspect(state.factor.scale)}"
  end

  # ---- promises ----

  def main([path]) do
    data = load(path)
    # It starts too high on purpose and grows often, so that a few hundred steps show both.
    scaler = GradScaler.new("torch", init_scale: 2.0 ** 40, growth_interval: 25)
    float32 = train("float32", :f32, data)
    float16 = train("float16", :f16, data)
    scaled = train("float16 + GradScaler", :f16, data, scaler)

    if float16 > float32 - 0.10,
      do: fail("float16 without scaling is not 10 points below float32")

    if abs(scaled - float32) > 0.02,
      do: fail("float16 with GradScaler is not within two points of float32")
  end

  def main(_), do: fail("usage: mix run examples/digits.exs DIGITS")

  defp fail(text) do
    IO.puts(:stderr, text)
    System.halt(1)
  end
end

Digits.main(System.argv())
