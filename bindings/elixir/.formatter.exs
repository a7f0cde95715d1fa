[
  inputs: ["{mix,.formatter}.exs", "{lib,test,examples}/**/*.{ex,exs}"],
  locals_without_parens: [deftransform: 2]
]
