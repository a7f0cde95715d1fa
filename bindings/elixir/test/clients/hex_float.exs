defmodule HexFloat do
  @moduledoc "Doubles as C's %a writes them and strtod reads them."

  @doc ~S'1.5 for "0x1.8p+0", and for "1.5"; infinities and NaN as atoms.'
  def parse("-" <> rest), do: negate(parse(rest))
  def parse("inf"), do: :infinity
  def parse("nan"), do: :nan

  def parse("0x" <> rest) do
    [mantissa, exponent] = String.split(rest, "p")
    {whole, fraction} = split_point(mantissa)
    digits = String.to_integer(whole <> fraction, 16)
    scale(digits, String.to_integer(exponent) - 4 * String.length(fraction))
  end

  def parse(decimal) do
    {number, ""} = Float.parse(decimal)
    number
  end

  defp split_point(mantissa) do
    case String.split(mantissa, ".") do
      [whole] -> {whole, ""}
      [whole, fraction] -> {whole, fraction}
    end
  end

  # Exact integers, divided once: the quotient of integers is rounded correctly.
  defp scale(0, _exponent), do: 0.0
  defp scale(digits, exponent) when exponent >= 0, do: digits * Integer.pow(2, exponent) * 1.0

  # In two steps where 2^-exponent alone is more than a double can hold.
  defp scale(digits, exponent) when exponent < -1000,
    do: scale(digits, exponent + 600) * :math.pow(2, -600)

  defp scale(digits, exponent), do: digits / Integer.pow(2, -exponent)

  defp negate(:infinity), do: :neg_infinity
  defp negate(x), do: -x

  @doc "As %a, except for the number of digits."
  def format(:infinity), do: "inf"
  def format(:neg_infinity), do: "-inf"
  def format(:nan), do: "nan"

  def format(x) do
    <<sign::1, exponent::11, fraction::52>> = <<x::float-64>>
    {whole, exponent} = if exponent == 0, do: {0, -1022}, else: {1, exponent - 1023}
    digits = fraction |> Integer.to_string(16) |> String.pad_leading(13, "0")
    "#{if sign == 1, do: "-"}0x#{whole}.#{digits}p#{exponent}"
  end
end
