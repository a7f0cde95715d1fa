defmodule GradScaler.Fields do
  @moduledoc false
  # Fields of structs as bytes, for the generated structs.ex. Erlang's floats are finite; what is not, is an atom.

  alias GradScaler.Constants

  @doc "The number that 4 or 8 bytes hold."
  def real(<<x::little-float-64>>), do: x
  def real(<<x::little-float-32>>), do: x
  def real(<<_::64>> = bytes), do: infinity(bytes, 64)
  def real(<<_::32>> = bytes), do: infinity(bytes, 32)

  defp infinity(bytes, bits) do
    <<number::little-size(bits)>> = bytes
    magnitude_bits = bits - 1
    <<sign::1, magnitude::size(magnitude_bits)>> = <<number::size(bits)>>

    case {sign, magnitude} do
      {0, m} when m in [0x7FF0000000000000, 0x7F800000] -> :infinity
      {1, m} when m in [0x7FF0000000000000, 0x7F800000] -> :neg_infinity
      _ -> :nan
    end
  end

  @doc "8 bytes of a number or an atom."
  def f64(:infinity, _label), do: <<0x7FF0000000000000::little-64>>
  def f64(:neg_infinity, _label), do: <<0xFFF0000000000000::little-64>>
  def f64(:nan, _label), do: <<0x7FF8000000000000::little-64>>

  def f64(x, label) when is_number(x) do
    <<x::little-float-64>>
  rescue
    ArgumentError -> refuse(label, x, "a number that a double can hold")
  end

  def f64(x, label), do: refuse(label, x, "a number")

  @doc "4 bytes of a number or an atom."
  def f32(:infinity, _label), do: <<0x7F800000::little-32>>
  def f32(:neg_infinity, _label), do: <<0xFF800000::little-32>>
  def f32(:nan, _label), do: <<0x7FC00000::little-32>>

  def f32(x, label) when is_number(x) do
    <<x::little-float-32>>
  rescue
    ArgumentError -> refuse(label, x, "a number that a float can hold")
  end

  def f32(x, label), do: refuse(label, x, "a number")

  @doc "Integers that fit, else an error that names the field."
  def u32(x, label), do: integer(x, 0, 0xFFFFFFFF, 32, label)
  def u64(x, label), do: integer(x, 0, 0xFFFFFFFFFFFFFFFF, 64, label)
  def s32(x, label), do: integer(x, -0x80000000, 0x7FFFFFFF, 32, label)
  def s64(x, label), do: integer(x, -0x8000000000000000, 0x7FFFFFFFFFFFFFFF, 64, label)

  @doc "The bytes of a list of so many numbers."
  def list(encode, list, count, label) when is_list(list) and length(list) == count,
    do: for(x <- list, into: <<>>, do: encode.(x, label))

  def list(_encode, other, count, label), do: refuse(label, other, "a list of #{count} numbers")

  @doc "A name, names, or a number of a group of constants, as 4 bytes."
  def named(group, value, label), do: u32(Constants.number(group, value, label), label)

  defp integer(x, low, high, bits, _label) when is_integer(x) and x >= low and x <= high,
    do: <<x::little-size(bits)>>

  defp integer(x, low, high, _bits, label),
    do: refuse(label, x, "an integer from #{low} to #{high}")

  defp refuse(label, x, what),
    do: raise(ArgumentError, "#{label} is #{inspect(x)}: it must be #{what}")
end
