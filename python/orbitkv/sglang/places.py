"""Where in its prompt a page is, which SGLang does not tell its linkers.

The Manager keeps blocks as a tree and evicts its leaves first, joins the parts of a block by its depth, and finds on
disk what is at the depth that is asked for. SGLang's wrapper around a linker knows depth and parent, so its two methods
that lead to `lookup` and `offload` are wrapped in their class, once for each process, and say it before they go on.

Threads: SGLang's scheduler thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from orbitkv.sglang.errors import refuse
from orbitkv.wrap_once import wrap_once


class Place(NamedTuple):
    """`depth`: pages before it; `parent`: the hash of the last one of these, where that is known."""

    depth: int = 0
    parent: str = ""


BEGIN = Place()


def follow(wrapper_class: Any) -> None:
    """Has the wrappers of this class tell their linkers from now on, those that have a `place`.

    Raises:
        UnsupportedError: this SGLang's wrapper has other methods.
    """
    for name, telling in (("match", _matching), ("_offload_node", _offloading)):
        if not wrap_once(wrapper_class, name, telling):
            raise refuse(f"an SGLang whose cache drives linkers in another way ({wrapper_class.__name__}.{name})")


def _tell(wrapper: Any, place: Callable[[], Place]) -> None:
    linker = wrapper.cache_linker
    if hasattr(linker, "place"):
        linker.place = place()


def _matching(original: Any) -> Any:
    def match(self: Any, key: Any, req: Any, result: Any) -> Any:
        _tell(self, lambda: Place(int(result.device_prefix_len) // int(self.cache.page_size)))
        return original(self, key, req, result)

    return match


def _offloading(original: Any) -> Any:
    def offload_node(self: Any, node_id: Any, transfers: Any) -> Any:
        _tell(self, lambda: _of_node(self.cache, node_id))
        return original(self, node_id, transfers)

    return offload_node


def _of_node(cache: Any, node_id: Any) -> Place:
    path = cache.tree_core.collect_path_info([node_id])[0]
    node = path[-1]
    depth = int(node.path_start) // int(cache.page_size)
    return Place(depth, str(cache.tree_core.get_last_hash_value(node.parent_id) or "") if depth else "")
