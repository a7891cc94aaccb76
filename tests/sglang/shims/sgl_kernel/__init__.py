"""Stands for the package of SGLang's kernels, which exists for GPUs and for CPUs with AMX only.

SGLang imports names from it when its modules are loaded. What a dense model without speculation computes on a CPU, it
computes with torch and calls none of them; one that is called after all says so. There are no submodules: where SGLang
has a way without one, it takes it because the import fails.
"""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_arguments, **_more):
        raise NotImplementedError(f"sgl_kernel.{name} was called, and there are no kernels here")

    return missing
