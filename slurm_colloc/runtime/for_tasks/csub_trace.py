# SPDX-License-Identifier: Apache-2.0
"""Runs a PyTorch program with no GPU and no data on it, and says how much GPU memory its tensors would hold.

It stands alone, for the Python of the user, and keeps to what torch 1.13 to 2.15 share. What the program puts on a GPU
becomes a tensor of the device "meta": it has a shape and a storage of some size, and no bytes. FakeTensorMode itself
did not do: without a GPU the builds that were tried (1.13 without CUDA, 2.15 with it) moved no module to one. Tensors
of the host are real, but those of many numbers hold arbitrary ones. It ends with the second step of the optimizer, or
without one with the second pass through a module.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import resource
import runpy
import sys
from typing import Any, Iterable, Iterator, NoReturn  # noqa: UP035

MIB = 1024 * 1024
# The allocator hands out multiples of it.
_BLOCK_BYTES = 512
# From so many numbers on a tensor of the host is left as it is found: a model's weights need no values.
_MANY = 1024 * 1024
_STEPS = 2
_MOST_STEPS = 8

# Loaded with the program, whose end it may be.
torch: Any = None
csub_pretend: Any = None


class Memory:
    """How many bytes the storages that live on the GPU have, and had at most.

    A storage tells nobody when it goes; those that have gone are looked for only where there would be a new peak.
    """

    def __init__(self) -> None:
        self._live: dict[int, tuple[int, int]] = {}
        self._total = 0
        self.peak = 0

    def add(self, tensor: Any) -> None:
        storage = _storage(tensor)
        key = storage._cdata
        if key in self._live:
            return
        size = -(-storage.nbytes() // _BLOCK_BYTES) * _BLOCK_BYTES
        self._live[key] = (storage._weak_ref(), size)
        self._total += size
        if self._total > self.peak:
            self._forget()
            self.peak = max(self.peak, self._total)

    def _forget(self) -> None:
        kind = torch.UntypedStorage
        for key, (ref, size) in list(self._live.items()):
            if kind._expired(ref):
                kind._free_weak_ref(ref)
                del self._live[key]
                self._total -= size


def _storage(tensor: Any) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage().untyped()


def size_of(tensors: Iterable[Any]) -> int:
    """Return how many bytes those of some tensors hold that are on the GPU, each storage once."""
    storages = [_storage(one) for one in tensors if isinstance(one, torch.Tensor) and one.is_meta]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


class Trace:
    """What was seen so far, and where to say it."""

    def __init__(self, out: str) -> None:
        self._out = out
        self.memory = Memory()
        self.steps: dict[int, int] = {}
        self.passes: dict[int, int] = {}
        self.parts = {"parameters": 0, "gradients": 0, "optimizer": 0}

    def done(self, why_not: str = "") -> NoReturn:
        """Write the result and end this process, whatever else the program would have done."""
        steps, passes = sum(self.steps.values()), sum(self.passes.values())
        if not why_not and not self.memory.peak:
            why_not = "the program put nothing on a GPU"
        if not why_not and not steps + passes:
            why_not = "the program ended before it had trained or inferred anything"
        found: dict[str, Any] = {"why_not": why_not, "torch": str(torch.__version__) if torch else ""}
        if not why_not:
            what = f"{steps} optimizer steps" if steps else f"{passes} forward passes"
            rest = self.memory.peak - sum(self.parts.values())
            parts = {**self.parts, "activations": max(0, rest), "peak": self.memory.peak}
            found.update({f"{name}_mib": round(size / MIB, 2) for name, size in parts.items()}, what=what)
        temporary = self._out + ".part"
        with open(temporary, "w") as stream:
            json.dump(found, stream)
        os.replace(temporary, self._out)
        os._exit(0)

    def stepped(self, optimizer: Any) -> None:
        groups = [list(group["params"]) for group in optimizer.param_groups]
        state = [value for one in optimizer.state.values() for value in one.values()]
        self.parts["optimizer"] = max(self.parts["optimizer"], size_of(state))
        self.parts["parameters"] = max(self.parts["parameters"], size_of(one for group in groups for one in group))
        self.steps[id(optimizer)] += 1
        if min(self.steps.values()) >= _STEPS or max(self.steps.values()) >= _MOST_STEPS:
            self.done()

    def about_to_step(self, optimizer: Any) -> None:
        gradients = [one.grad for group in optimizer.param_groups for one in group["params"]]
        self.parts["gradients"] = max(self.parts["gradients"], size_of(gradients))

    def passed(self, module: Any) -> None:
        size = size_of(module.parameters()) + size_of(module.buffers())
        if not size or self.steps:
            return
        self.parts["parameters"] = max(self.parts["parameters"], size)
        self.passes[id(module)] = self.passes.get(id(module), 0) + 1
        if self.passes[id(module)] >= _STEPS:
            self.done()


# --- what the program's operations do ---


_NEW = ("zeros", "ones", "rand", "randn", "full")
_IN_PLACE = ("normal_", "uniform_", "zero_", "fill_", "mul_", "add_", "div_", "clamp_", "erfinv_", "copy_", "sub_")


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _flat(one)


def _on_host(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operation whose values nobody needs; None where it is to be done."""
    first: Any = args[0] if args else None
    if name == "copy_" and not first.is_meta and args[1].is_meta:
        return first
    if name == "_to_copy" and first.is_meta and csub_pretend.kind_of(kwargs.get("device")) == "cpu":
        return torch.zeros(first.shape, dtype=kwargs.get("dtype") or first.dtype)
    if name in _IN_PLACE and not first.is_meta and first.numel() >= _MANY and first.is_floating_point():
        return first
    if name in _NEW and isinstance(first, (tuple, list)) and csub_pretend.kind_of(kwargs.get("device")) in ("", "cpu"):
        numbers = functools.reduce(lambda a, b: a * b, first, 1)
        kind = kwargs.get("dtype") or torch.get_default_dtype()
        if numbers >= _MANY and kind.is_floating_point:
            return torch.empty(list(first), dtype=kind)
    return None


def _by_values(name: str, args: tuple[Any, ...]) -> Any:
    """Return the largest result of an operation whose size follows from values on the GPU; None of any other."""
    first: Any = args[0] if args else None
    if not isinstance(first, torch.Tensor) or not first.is_meta:
        return None
    if name == "_local_scalar_dense":
        return False if first.dtype == torch.bool else 0.0 if first.is_floating_point() else 0
    if name == "equal":
        return True
    if name == "convolution_backward":  # torch 1.13 knows no shapes of it
        bias = torch.empty((first.shape[1],), dtype=first.dtype, device="meta")
        made = (torch.empty_like(args[1]), torch.empty_like(args[2]), bias)
        return tuple(one if wanted else None for one, wanted in zip(made, args[-1]))  # noqa: B905 - Python 3.9 knows no strict
    if name == "nonzero":
        return torch.empty((first.numel(), first.dim()), dtype=torch.int64, device="meta")
    if name == "masked_select":
        return torch.empty((first.numel(),), dtype=first.dtype, device="meta")
    masks = name in ("index", "index_put_", "index_put") and [one for one in args[1] if _is_mask(one)]
    if not masks:
        return None
    if name != "index":
        return first if name == "index_put_" else torch.empty_like(first)
    indices: list[Any] = []
    for one in args[1]:
        positions = torch.empty((one.numel() if one is not None else 0,), dtype=torch.int64, device="meta")
        indices += [positions] * one.dim() if _is_mask(one) else [one]
    return torch.ops.aten.index.Tensor(first, indices)


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _watch(memory: Memory) -> Any:
    """Return the mode in which every operation's results are counted."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            name = func.__name__.partition(".")[0]
            csub_pretend.inside.append(name)
            try:
                found = _by_values(name, args)
                if found is None:
                    found = _on_host(name, args, kwargs)
                if found is None:
                    found = func(*args, **kwargs)
                for one in _flat(found):
                    if one.is_meta:
                        memory.add(one)
            finally:
                csub_pretend.inside.pop()
            return found

    return Watch()


# --- what the program is watched by ---


def _patch_training(trace: Trace) -> None:
    kind = torch.optim.Optimizer
    begin = kind.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        trace.steps.setdefault(id(self), 0)
        for group in (self.defaults, *self.param_groups):
            if group.get("fused"):
                group.update(fused=None, foreach=True)
        step = type(self).step
        if not hasattr(step, "watched"):
            type(self).step = watched(step)

    def watched(step: Any) -> Any:
        @functools.wraps(step)
        def stepping(self: Any, *args: Any, **kwargs: Any) -> Any:
            trace.about_to_step(self)
            found = step(self, *args, **kwargs)
            trace.stepped(self)
            return found

        stepping.watched = stepping.hooked = True  # type: ignore[attr-defined]
        return stepping

    kind.__init__ = made
    call = torch.nn.Module.__call__
    depth = [0]

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        depth[0] += 1
        try:
            found = call(self, *args, **kwargs)
        finally:
            depth[0] -= 1
        if not depth[0]:
            trace.passed(self)
        return found

    torch.nn.Module.__call__ = called


def prepare(trace: Trace) -> Any:
    """Change the torch of this process, and return the mode in which the program is to run."""
    global torch, csub_pretend
    import csub_pretend as replaced  # type: ignore[import-not-found]
    import torch as imported

    torch, csub_pretend = imported, replaced
    with contextlib.suppress(ImportError):
        import torch._meta_registrations
    replaced.patch_all()
    _patch_training(trace)
    return _watch(trace.memory)


def main(argv: list[str]) -> NoReturn:
    """Run the program that ``argv`` names; what was found, or why nothing was, is written to --out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--memory-mib", type=int, required=True)
    parser.add_argument("--folder", default=".")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    given = parser.parse_args(argv)
    os.nice(10)
    os.chdir(given.folder)
    for limit, most in (
        (resource.RLIMIT_CPU, given.seconds),
        (resource.RLIMIT_AS, given.memory_mib * MIB),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))
    trace = Trace(given.out)
    program = given.program[1:] if given.program[:1] == ["--"] else given.program
    try:
        mode = prepare(trace)
        with mode:
            _run(program)
    except SystemExit as error:
        trace.done("" if not error.code else f"the program ended with {error.code!r}"[:300])
    except ImportError as error:
        trace.done(f"a module is missing in its Python: {error}"[:300])
    except MemoryError:
        trace.done(f"it needed more than {given.memory_mib} MiB on this machine")
    except BaseException as error:  # noqa: BLE001 - whatever the program raises is its end
        trace.done(f"{type(error).__name__}: {error}".partition("\n")[0][:300])
    trace.done()


def _run(program: list[str]) -> None:
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
