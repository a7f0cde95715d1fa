# SPDX-License-Identifier: MIT
"""Sparse arrays of jax.experimental: their values are the gradient only if no index is there twice."""

from __future__ import annotations

import sys
from typing import Any

import jax
from jax.tree_util import GetAttrKey, keystr

_PARTS = "data", "indices", "indptr"


def checked(paths: list[tuple[Any, Any]], tree: Any, what: str) -> list[tuple[Any, Any]]:
    """Returns the paths and leaves of a tree with names for the parts of sparse arrays; refuses repeated indices."""
    sparse = sys.modules.get("jax.experimental.sparse")
    if sparse is None:
        return paths
    arrays, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, sparse.JAXSparse))
    inside = set()
    for path, array in arrays:
        if not isinstance(array, sparse.JAXSparse):
            continue
        if not getattr(array, "unique_indices", False):
            remedy = "sum_duplicates()" if isinstance(array, sparse.BCOO) else "todense()"
            remedy += ", or say unique_indices=True" if hasattr(array, "unique_indices") else ""
            raise ValueError(
                f"{what}{keystr(path)} is a {type(array).__name__} that can have an index twice, so its values are no "
                f"gradients: pass its {remedy}"
            )
        inside.add(path)
    return [
        ((*path[:-1], GetAttrKey(_PARTS[path[-1].key])) if path[:-1] in inside else path, leaf) for path, leaf in paths
    ]
