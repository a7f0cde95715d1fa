# SPDX-License-Identifier: MIT
# elixir.exs EBIN OUT writes the documentation that compiled modules carry, OUT/<Module>.md of each that has a @moduledoc.

defmodule Pages do
  def write(ebin, out) do
    File.mkdir_p!(out)

    modules =
      for beam <- Enum.sort(Path.wildcard("#{ebin}/Elixir.GradScaler*.beam")),
          {:docs_v1, _, _, _, %{"en" => about}, _, items} <- [Code.fetch_docs(beam)] do
        documented = for {_, _, _, %{"en" => _}, _} = item <- items, do: item

        {Path.basename(beam, ".beam") |> String.replace_prefix("Elixir.", ""), about, documented,
         beam}
      end

    # A link can name modules, and functions by each of their arities.
    functions =
      for {module, _, items, _} <- modules,
          {{:function, name, arity}, _, _, _, metadata} <- items,
          shown <- (arity - Map.get(metadata, :defaults, 0))..arity,
          into: %{},
          do: {"#{module}.#{name}/#{shown}", "elixir-#{module}.#{name}-#{arity}"}

    targets = for {module, _, _, _} <- modules, into: functions, do: {module, "elixir-#{module}"}

    for {module, _, _, _} = found <- modules,
        do: File.write!("#{out}/#{module}.md", page(found, targets))
  end

  defp page({module, about, items, beam}, targets) do
    specs = specs(beam)
    source = source(beam)

    types =
      for {{:type, name, arity}, _, _, %{"en" => doc}, _} <- items,
          do: "- `#{name}/#{arity}`: #{text(doc, module, targets)}"

    functions =
      for {{kind, name, arity}, at, signature, %{"en" => doc}, _} <- items,
          kind in [:function, :macro] do
        """
        (elixir-#{module}.#{name}-#{arity})=
        ### #{String.replace("#{name}", "_", "\\_")}/#{arity}

        ```elixir
        #{Enum.join(signature ++ Map.get(specs, {name, arity}, []), "\n")}
        ```

        <a class="viewcode-link" href="#{source}#L-#{:erl_anno.line(at)}">[source]</a>

        #{text(doc, module, targets)}
        """
      end

    """
    (elixir-#{module})=
    # Elixir: #{module}

    #{text(about, module, targets)}
    """ <> section("Types", types) <> section("Functions", functions)
  end

  defp section(_title, []), do: ""
  defp section(title, entries), do: "\n## #{title}\n\n#{Enum.join(entries, "\n")}\n"

  defp text(doc, module, targets) do
    doc |> fence() |> then(&Regex.replace(~r/(?<!`)`([^`\n]+)`(?!`)/, &1, link(module, targets)))
  end

  # A name in code that is documented here becomes a link.
  defp link(module, targets) do
    fn whole, name ->
      target = targets[name] || targets["#{module}.#{name}"]
      if target && target != "elixir-#{module}", do: "[#{whole}](##{target})", else: whole
    end
  end

  # Indented code says its language, so that it is coloured.
  defp fence(doc) do
    Regex.replace(~r/(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+/, doc <> "\n", fn block ->
      language = if block =~ "iex>", do: "iex", else: "elixir"
      code = Regex.replace(~r/^ {4}/m, String.trim_trailing(block), "")
      "```#{language}\n#{code}\n```\n"
    end)
  end

  defp source(beam) do
    {:ok, {_, [compile_info: info]}} = :beam_lib.chunks(String.to_charlist(beam), [:compile_info])
    "../../source/#{Path.relative_to_cwd("#{info[:source]}")}.html"
  end

  defp specs(beam) do
    case Code.Typespec.fetch_specs(File.read!(beam)) do
      {:ok, specs} ->
        for {of, forms} <- specs, into: %{}, do: {of, Enum.map(forms, &spec(of, &1))}

      :error ->
        %{}
    end
  end

  defp spec({name, _arity}, form),
    do: "@spec " <> Macro.to_string(Code.Typespec.spec_to_quoted(name, form))
end

[ebin, out] = System.argv()
Pages.write(ebin, out)
