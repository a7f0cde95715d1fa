# SPDX-License-Identifier: MIT
# Resumes, logs, says why it skips, diagnoses, saves. Step 100 has a NaN in its data, step 200 a wrong label.
#
#     mix run examples/loop.exs STEPS

defmodule Loop do
  # With Nx, gradients are tensors, from Nx.Defn.grad; these functions stay the same.
  def f32(:nan), do: {:f32, <<0x7FC00000::little-32>>}
  def f32(number), do: {:f32, <<number::little-float-32>>}

  def backward(_params, :nan, _label),
    do: {:nan, %{first: f32(:nan), second: f32(:nan)}}

  def backward(%{first: first, second: second}, x, label) do
    error = second * first * x - label
    grads = %{first: f32(0.02 * error * second * x), second: f32(0.02 * error * first * x)}
    {0.01 * error * error, grads}
  end

  def step(step, {params, scaler}) do
    x = if step == 100, do: :nan, else: 1.0
    {loss, grads} = backward(params, x, if(step == 200, do: 30.0, else: 3.0))
    narrow = grads |> GradScaler.scale_loss(scaler) |> GradScaler.cast_params(:f16)
    {grads, report} = GradScaler.unscale(narrow, scaler, loss: loss)
    scaler = GradScaler.update(scaler, report)
    File.write!("run.jsonl", GradScaler.history_line(scaler, report, step: step), [:append])
    # The backward pass begins at the last layer.
    if reason = GradScaler.reason(scaler, report, order: [1, 0]),
      do: IO.puts("step #{step} #{reason}")

    {if(GradScaler.skip?(scaler), do: params, else: subtract(params, grads)), scaler}
  end

  defp subtract(params, grads) do
    Map.new(params, fn {name, weight} ->
      {:f32, <<gradient::little-float-32>>} = grads[name]
      {name, weight - gradient}
    end)
  end
end

{params, scaler} =
  case File.read("run.checkpoint") do
    {:ok, saved} ->
      {params, scaler} = :erlang.binary_to_term(saved)
      {params, GradScaler.load(scaler)}

    {:error, :enoent} ->
      {%{first: 0.1, second: 3.0}, GradScaler.new("recommended")}
  end

[steps] = System.argv()
start = GradScaler.state(scaler).total_updates + 1
File.write!("run.jsonl", GradScaler.history_start(scaler, step: start), [:append])
range = start..(start + String.to_integer(steps) - 1)
{params, scaler} = Enum.reduce(range, {params, scaler}, &Loop.step/2)
File.write!("run.checkpoint", :erlang.term_to_binary({params, GradScaler.save(scaler)}))
IO.puts("y = #{Float.round(params.first * params.second, 3)} x, #{inspect(scaler)}")
for finding <- GradScaler.diagnose(scaler), do: IO.puts(finding.message)
