# SPDX-License-Identifier: MIT
# Prints the documentation that the modules of a folder of .beam files carry, as lines of terms in JSON-like Markdown:
# elixir.exs EBIN OUT writes OUT/<Module>.md of each module that has a @moduledoc.

defmodule Pages do
  def write(ebin, out) do
    File.mkdir_p!(out)

    modules =
      for beam <- Enum.sort(Path.wildcard("#{ebin}/Elixir.GradScaler*.beam")),
          {:docs_v1, _, :elixir, _, %{"en" => about}, _, items} <- [Code.fetch_docs(beam)] do
        {beam |> Path.basename(".beam") |> String.replace_prefix("Elixir.", ""), about, items,
         beam}
      end

    known =
      for {module, _, items, _} <- modules,
          {{:function, name, arity}, _, _, doc, _} <- items,
          shown?(doc),
          do: {module, name, arity}

    for {module, about, items, beam} <- modules do
      specs = specs(beam)

      types =
        for {{:type, name, arity}, _, _, doc, _} <- items, shown?(doc), do: {name, arity, doc}

      functions =
        for {{kind, name, arity}, _, signature, doc, _} <- items,
            kind in [:function, :macro],
            shown?(doc) do
          """
          (elixir-#{module}.#{name}-#{arity})=
          ### #{title(name, arity)}

          ```elixir
          #{Enum.join(signature, "\n")}
          #{Map.get(specs, {name, arity}, "")}
          ```

          #{text(doc, module, known)}
          """
        end

      types =
        for {name, arity, doc} <- types, do: "- `#{name}/#{arity}`: #{text(doc, module, known)}"

      File.write!("#{out}/#{module}.md", """
      (elixir-#{module})=
      # #{module}

      #{text(%{"en" => about}, module, known)}

      #{if types != [], do: "## Types\n\n#{Enum.join(types, "\n")}"}

      #{if functions != [], do: "## Functions\n\n#{Enum.join(functions, "\n")}"}
      """)
    end
  end

  defp shown?(%{"en" => _}), do: true
  defp shown?(_), do: false

  defp title(name, arity), do: "#{name |> to_string() |> String.replace("_", "\\_")}/#{arity}"

  # What is named in code and documented here becomes a link.
  defp text(%{"en" => doc}, module, known) do
    Regex.replace(~r/(?<!`)`((?:[A-Z][\w.]*\.)?)([a-z_]\w*[?!]?)\/(\d)`(?!`)/, doc, fn whole,
                                                                                       of,
                                                                                       name,
                                                                                       arity ->
      of = if of == "", do: module, else: String.trim_trailing(of, ".")

      if Enum.any?(known, fn {m, n, a} -> {m, "#{n}", "#{a}"} == {of, name, arity} end),
        do: "[#{whole}](#elixir-#{of}.#{name}-#{arity})",
        else: whole
    end)
  end

  defp specs(beam) do
    case Code.Typespec.fetch_specs(File.read!(beam)) do
      {:ok, specs} ->
        for {{name, arity}, of} <- specs, into: %{} do
          {{name, arity},
           Enum.map_join(
             of,
             "\n",
             &("@spec " <> Macro.to_string(Code.Typespec.spec_to_quoted(name, &1)))
           )}
        end

      :error ->
        %{}
    end
  end
end

[ebin, out] = System.argv()
Pages.write(ebin, out)
