# SPDX-License-Identifier: MIT
# A training loop. Its gradient passes through f16; its loss is so small that without scaling f16 holds only zeros: then w
# stays 0.
#
#     mix run examples/train_step.exs

step = fn _step, {w, scaler} ->
  # of the loss 1e-9 (w - 3)^2
  gradient = {:f32, <<2.0e-9 * (w - 3)::little-float-32>>}
  stored = gradient |> GradScaler.scale_loss(scaler) |> GradScaler.cast_params(:f16)
  {{:f32, <<gradient::little-float-32>>}, report} = GradScaler.unscale(stored, scaler)
  scaler = GradScaler.update(scaler, report)
  {if(GradScaler.skip?(scaler), do: w, else: w - 1.0e8 * gradient), scaler}
end

{w, scaler} = Enum.reduce(1..100, {0.0, GradScaler.new("recommended")}, step)
true = abs(w - 3) < 0.1
scale = GradScaler.loss_scale(scaler)
skipped = GradScaler.state(scaler).total_overflows
IO.puts("w = #{Float.round(w, 3)}, 3 is right; scale #{scale}, #{skipped} steps skipped")
