"""Lets SGLang's Python be imported where torch has no CUDA. Python runs this by itself from a folder on PYTHONPATH.

torchvision's wheel brings operators that need the CUDA build of torch: they do not load, and then the registration of
their Python halves fails. Two schemas under the operators' names are enough for that; nothing here looks at images.

Prefill engines that hand pages over through Mooncake, and engines with adapters, take CUDA's events and pinned memory
for granted, also on a CPU, where there is nothing to wait for and nothing to pin.
"""

import importlib.abc
import importlib.machinery
import sys

OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
FOR_CUDA = (
    "sglang.srt.disaggregation.prefill",
    "sglang.srt.lora.layers",
    "sglang.srt.lora.backend.torch_backend",
)


class TorchOfCpu:
    """What these modules find under the name torch."""

    def __init__(self, torch):
        self._torch = torch
        self.cuda = torch.cpu

    def __getattr__(self, name):
        return getattr(self._torch, name)

    def empty(self, *shape, pin_memory=False, **more):
        return self._torch.empty(*shape, **more)

    def tensor(self, data, pin_memory=False, **more):
        return self._torch.tensor(data, **more)

    def zeros(self, *shape, pin_memory=False, **more):
        return self._torch.zeros(*shape, **more)


class AtImport(importlib.abc.MetaPathFinder):
    """Does what a module needs when somebody is about to import it, so that nobody else pays for torch."""

    def __init__(self):
        self._library = None  # what it defines goes with it

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision" and self._library is None:
            import torch

            self._library = torch.library.Library("torchvision", "DEF")
            for operator in OPERATORS:
                self._library.define(operator + SCHEMA)
        return self._for_cpu(name, path) if name in FOR_CUDA else None

    @staticmethod
    def _for_cpu(name, path):
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            torch = module.torch
            if not torch.cuda.is_available():
                torch.Tensor.pin_memory = lambda tensor, *_device: tensor
                module.torch = TorchOfCpu(torch)

        spec.loader.exec_module = exec_module
        return spec


if not any(type(finder).__name__ == AtImport.__name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, AtImport())
