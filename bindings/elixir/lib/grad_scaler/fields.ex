defmodule GradScaler.Fields do
  @moduledoc false
  # Fields of structs as bytes, for the generated structs.ex. Erlang's floats are finite; Inf and NaN are atoms.

  alias GradScaler.{Constants, Error, Native}

  @doc "Returns the number in 4 or 8 bytes."
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

  for {name, bits, c_name, infinity, nan} <- [
        {:f64, 64, "double", 0x7FF0000000000000, 0x7FF8000000000000},
        {:f32, 32, "float", 0x7F800000, 0x7FC00000}
      ] do
    @doc "Returns a number or an atom as #{div(bits, 8)} bytes."
    def unquote(name)(:infinity, _label), do: <<unquote(infinity)::little-unquote(bits)>>

    def unquote(name)(:neg_infinity, _label),
      do: <<unquote(infinity + 2 ** (bits - 1))::little-unquote(bits)>>

    def unquote(name)(:nan, _label), do: <<unquote(nan)::little-unquote(bits)>>

    def unquote(name)(x, label) when is_number(x) do
      <<x::little-float-unquote(bits)>>
    rescue
      ArgumentError -> refuse(label, x, unquote("a number that a #{c_name} can hold"))
    end

    def unquote(name)(x, label), do: refuse(label, x, "a number")
  end

  @doc "Returns what a guard judges: `:infinity` for an integer past the largest double, such as 10 ** 400."
  def judged(integer) when is_integer(integer) do
    integer / 1
  rescue
    ArithmeticError -> :infinity
  end

  def judged(number), do: number

  @doc "Returns an integer as bytes. If it does not fit, the error names the field."
  def u8(x, label), do: integer(x, 0, 0xFF, 8, label)
  def u16(x, label), do: integer(x, 0, 0xFFFF, 16, label)
  def u32(x, label), do: integer(x, 0, 0xFFFFFFFF, 32, label)
  def u64(x, label), do: integer(x, 0, 0xFFFFFFFFFFFFFFFF, 64, label)
  def s8(x, label), do: integer(x, -0x80, 0x7F, 8, label)
  def s16(x, label), do: integer(x, -0x8000, 0x7FFF, 16, label)
  def s32(x, label), do: integer(x, -0x80000000, 0x7FFFFFFF, 32, label)
  def s64(x, label), do: integer(x, -0x8000000000000000, 0x7FFFFFFFFFFFFFFF, 64, label)

  @doc "Returns 1 for true, 0 for false."
  def bit(true, _label), do: 1
  def bit(false, _label), do: 0
  def bit(other, label), do: refuse(label, other, "true or false")

  @doc "Returns a list of `count` numbers as bytes."
  def list(encode, list, count, label) when is_list(list) and length(list) == count,
    do: for(x <- list, into: <<>>, do: encode.(x, label))

  def list(_encode, other, count, label), do: refuse(label, other, "a list of #{count} numbers")

  @doc "Returns a constant of a group as bytes: a name, a list of names, or a number."
  def named(group, value, label, encode),
    do: encode.(Constants.number(group, value, label), label)

  @doc "Returns the text before the first zero."
  def string(bytes), do: bytes |> :binary.split(<<0>>) |> hd()

  @doc "Returns a text as `size` bytes, filled up with zeros."
  def chars(text, size, _label) when is_binary(text) and byte_size(text) < size,
    do: text <> <<0::size((size - byte_size(text)) * 8)>>

  def chars(text, size, label), do: refuse(label, text, "a binary below #{size} bytes")

  defp integer(x, low, high, bits, _label) when is_integer(x) and x >= low and x <= high,
    do: <<x::little-size(bits)>>

  defp integer(x, low, high, _bits, label),
    do: refuse(label, x, "an integer from #{low} to #{high}")

  @doc "Returns a list of the library as a map of names and summaries; it ends at the first index without a name."
  def listed(name, summary) do
    0
    |> Stream.iterate(&(&1 + 1))
    |> Stream.map(&{name.(&1), summary.(&1)})
    |> Enum.take_while(fn {name, _summary} -> name end)
    |> Map.new()
  end

  @doc "Raises the library's error about what a candidate before 0.10 saved, such as a policy of 8 bytes."
  @spec refuse_candidate(binary) :: no_return
  def refuse_candidate(label),
    do: Error.check!(Native.policy_check(<<8::little-32, 0::32>>), %{"policy" => label})

  @doc "Raises an error that names the refused argument."
  @spec refuse(binary, term, binary) :: no_return
  def refuse(label, x, expected),
    do: raise(ArgumentError, "#{label} is #{inspect(x, limit: 5)}: it must be #{expected}")
end
