defmodule GradScaler.Error do
  @moduledoc """
  The error of a correct call that failed: no device, no memory, a failure of a driver. Wrong arguments
  raise `ArgumentError` with the same message.

    * `:status` - the kind of error, such as `:unavailable`, `:memory`, `:device`
    * `:message` - a sentence; its words can change in any version
    * `:details` - the fields of C's `gsc_error` as a map: argument, index, field, value, limits
  """

  alias GradScaler.Constants

  defexception [:status, :message, details: %{}]

  @type t :: %__MODULE__{status: atom | integer, message: binary, details: map}

  # The statuses that no argument causes.
  @external_statuses [:unavailable, :memory, :device]

  @doc false
  # Returns a result, or raises its error. `names` has the caller's names of arguments: a map from the library's name, or a
  # function of that name and the index of an entry, -1 for none, which returns a name or nil.
  @spec check!(term, map | (binary, integer -> binary | nil)) :: term
  def check!(result, names \\ %{})

  def check!({:error, details}, names) when is_map(details) do
    case new(details, names) do
      %{status: status} = error when status in @external_statuses -> raise error
      %{message: message} -> raise ArgumentError, message
    end
  end

  def check!(result, _names), do: result

  @doc false
  # Returns the one result of a call.
  def ok!(result, names \\ %{}) do
    {:ok, value} = check!(result, names)
    value
  end

  @doc false
  def new(details, names \\ %{}) do
    status = Constants.name(:status, details.status)
    %__MODULE__{status: status, message: sentence(details, names), details: details}
  end

  defp sentence(%{message: message, subject_length: length} = details, names) do
    case name(names, details.name, details.index) do
      nil ->
        message

      where ->
        <<_::binary-size(length), rest::binary>> = message
        "#{where}#{if details.field != "", do: ": " <> details.field} #{rest}"
    end
  end

  @doc false
  def name(names, name, _index) when is_map(names), do: names[name]
  def name(names, name, index), do: names.(name, index)
end
