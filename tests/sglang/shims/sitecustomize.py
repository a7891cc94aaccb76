"""Lets SGLang's Python be imported where torch has no CUDA. Python runs this by itself from a folder on PYTHONPATH.

torchvision's wheel brings operators that need the CUDA build of torch: they do not load, and then the registration of
their Python halves fails. Two schemas under the operators' names are enough for that; nothing here looks at images.
"""

import importlib.abc
import sys

OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Defines the operators when somebody is about to import torchvision, so that nobody else pays for torch."""

    def __init__(self):
        self._library = None  # what it defines goes with it

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision" and self._library is None:
            import torch

            self._library = torch.library.Library("torchvision", "DEF")
            for operator in OPERATORS:
                self._library.define(operator + SCHEMA)


if not any(type(finder).__name__ == BeforeTorchvision.__name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, BeforeTorchvision())
