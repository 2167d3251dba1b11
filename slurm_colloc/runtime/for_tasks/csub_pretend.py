# SPDX-License-Identifier: Apache-2.0
"""What a program finds in torch while csub_trace.py watches it: a GPU that is there, and holds tensors without bytes.

It stands alone, beside csub_trace.py, for the Python of the user. Functions are replaced rather than overridden by a
mode: a mode is off inside the function that it was called for.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from typing import Any, Callable, ClassVar  # noqa: UP035

import torch
import torch.utils.data

_GPU_BYTES = 80 * 1024**3
# The operations that are being done: what torch itself asks of a tensor there, it is told as it is.
inside: list[str] = []


def kind_of(device: Any) -> str:
    """Return "cuda", "cpu" or another kind of device; empty for none."""
    if device is None:
        return ""
    if isinstance(device, int):
        return "cuda"
    return str(device.type if hasattr(device, "type") else device).partition(":")[0]


def _there(device: Any) -> Any:
    """Return the device that stands for one; any GPU is "meta"."""
    is_device = isinstance(device, (str, torch.device)) or (isinstance(device, int) and not isinstance(device, bool))
    return torch.device("meta") if is_device and kind_of(device) == "cuda" else device


def _put(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put in place of an attribute what ``make`` makes of it; of what this torch lacks nothing."""
    if hasattr(owner, name):
        setattr(owner, name, make(getattr(owner, name)))


def _placing(function: Any) -> Any:
    """Return a function that makes tensors, on "meta" where on a GPU is said."""

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _there(kwargs["device"])
            if kind_of(kwargs["device"]) == "meta":
                kwargs.pop("generator", None)
                kwargs.pop("pin_memory", None)
                # What is made of numbers is made on the host first.
                if function.__name__ in ("tensor", "as_tensor", "asarray"):
                    return function(*args, **{**kwargs, "device": "cpu"}).to("meta")
        return function(*args, **kwargs)

    return made


def _emptied(tensor: Any) -> Any:
    """Return on the host what the program reads of a tensor on the GPU: zeros."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def _patch_tensor() -> None:
    kind, base = torch.Tensor, torch._C._TensorBase if hasattr(torch._C, "_TensorBase") else torch._C.TensorBase
    device, is_cuda, to = base.device, base.is_cuda, kind.to

    def move(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_there, args))
        kwargs = {name: _there(value) if name == "device" else value for name, value in kwargs.items()}
        wanted = [*args, kwargs.get("device")]
        if tensor.is_meta and any(isinstance(one, (str, torch.device)) and kind_of(one) == "cpu" for one in wanted):
            tensor = _emptied(tensor)
        return to(tensor, *args, **kwargs)

    def copied(tensor: Any, memo: dict[int, Any]) -> Any:
        if not tensor.is_meta:
            return deepcopy(tensor, memo)
        if id(tensor) not in memo:
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    def read(name: str) -> None:
        if not hasattr(kind, name):
            return
        real = getattr(kind, name)

        @functools.wraps(real)
        def reading(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return real(_emptied(tensor) if tensor.is_meta else tensor, *args, **kwargs)

        setattr(kind, name, reading)

    deepcopy = kind.__deepcopy__
    kind.__deepcopy__ = copied
    kind.to = move
    kind.cuda = lambda tensor, *args, **kwargs: to(tensor, "meta")
    kind.cpu = lambda tensor, *args, **kwargs: move(tensor, "cpu")
    kind.pin_memory = lambda tensor, *args, **kwargs: tensor
    kind.record_stream = lambda tensor, stream: None
    kind.get_device = lambda tensor: 0 if tensor.is_meta else -1
    for name in ("item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__", "__format__"):
        read(name)
    gpu = torch.device("cuda", 0)
    kind.device = property(lambda tensor: gpu if tensor.is_meta and not inside else device.__get__(tensor))
    kind.is_cuda = property(lambda tensor: (tensor.is_meta and not inside) or is_cuda.__get__(tensor))
    for name in ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"):
        _put(kind, name, _placing)


def _patch_makers() -> None:
    names = "empty zeros ones full rand randn randint arange linspace logspace eye randperm tensor as_tensor asarray"
    names += " empty_strided empty_permuted empty_like zeros_like ones_like full_like rand_like randn_like normal"
    for name in names.split():
        _put(torch, name, _placing)
    _put(torch, "set_default_device", lambda real: lambda device: real(_there(device)))
    if hasattr(torch.utils, "_device"):
        made = torch.utils._device.DeviceContext.__init__
        torch.utils._device.DeviceContext.__init__ = lambda self, device: made(self, _there(device))
    generator = torch.Generator

    class Generator(generator):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            return generator("cpu" if kind_of(device) == "cuda" else device)

    torch.Generator = Generator
    real_load = torch.load

    def load(*args: Any, **kwargs: Any) -> Any:
        return real_load(*args[:1], **{**kwargs, "map_location": "cpu"})

    torch.load, torch.save = load, lambda *args, **kwargs: None
    _put(torch, "compile", lambda real: lambda model=None, *args, **kwargs: model or (lambda one: one))


class _Idle:
    """A stream, an event, a device: whatever there is to wait for has happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.cuda_stream, self.device = 0, torch.device("cuda", 0)

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *args: object) -> None:
        return None

    def elapsed_time(self, *args: Any) -> float:
        return 1.0

    def query(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _always(value: Any, real: Any) -> Any:
    """Return a function that returns ``value``, in place of the real one."""
    return lambda *args, **kwargs: value


def _patch_cuda() -> None:
    cuda = torch.cuda
    says: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": "GPU",
        "get_device_capability": (8, 0),
        "mem_get_info": (_GPU_BYTES, _GPU_BYTES),
        "is_bf16_supported": True,
        "get_device_properties": types.SimpleNamespace(
            name="GPU", total_memory=_GPU_BYTES, multi_processor_count=108, major=8, minor=0
        ),
        "is_current_stream_capturing": False,
        "memory_stats": {},
        "memory_summary": "",
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": [torch.zeros(16, dtype=torch.uint8)],
    }
    silent = "_lazy_init init synchronize empty_cache ipc_collect set_device manual_seed manual_seed_all seed seed_all"
    silent += " reset_peak_memory_stats reset_max_memory_allocated set_rng_state set_rng_state_all set_stream"
    silent += " set_per_process_memory_fraction"
    sizes = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved utilization"
    says.update(dict.fromkeys(silent.split()))
    says.update(dict.fromkeys(sizes.split(), 0))
    for name, value in says.items():
        _put(cuda, name, functools.partial(_always, value))
    if hasattr(torch, "accelerator"):
        gpu = torch.device("cuda", 0)
        known: dict[str, Any] = {
            "is_available": True,
            "device_count": 1,
            "current_device_index": 0,
            "current_accelerator": gpu,
        }
        known.update({"synchronize": None, "empty_cache": None, "set_device_index": None, "set_stream": None})
        for name, value in known.items():
            _put(torch.accelerator, name, functools.partial(_always, value))
        torch.accelerator.current_stream = _Idle
    for name in ("Stream", "Event", "stream", "device", "device_of"):
        setattr(cuda, name, _Idle)
    cuda.current_stream = cuda.default_stream = _Idle
    cuda.nvtx = _Idle()


def _patch_kernels() -> None:
    """Have those operations keep for backward what they keep on a GPU, where they would do otherwise here."""
    functional = torch.nn.functional

    class Attention(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
            out = query.new_empty((*query.shape[:-1], value.shape[-1]))
            sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
            ctx.save_for_backward(query, key, value, out, sums)
            return out

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return tuple(torch.empty_like(one) for one in ctx.saved_tensors[:3])

    class Dropout(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, values: Any) -> Any:
            ctx.save_for_backward(torch.empty_like(values, dtype=torch.bool))
            return torch.empty_like(values)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return torch.empty_like(gradients[0])

    def attention(real: Any) -> Any:
        def attended(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            if not query.is_meta:
                return real(query, key, value, *args, **kwargs)
            # What is broadcast or shared among heads is not repeated by the kernels.
            return Attention.apply(query, key, value)

        return attended

    def dropout(real: Any) -> Any:
        def dropped(values: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if values.is_meta and not inplace and p and training:
                return Dropout.apply(values)
            return real(values, p, training, inplace)

        return dropped

    _put(functional, "scaled_dot_product_attention", attention)
    _put(functional, "dropout", dropout)


# --- mixed precision: on a GPU autocast chooses the numbers' width; of "meta" it knows nothing ---

_NARROW = "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d bilinear"
_NARROW_TORCH = "matmul mm bmm addmm baddbmm addbmm einsum mv conv1d conv2d conv3d"
_WIDE = "layer_norm softmax log_softmax cross_entropy nll_loss mse_loss l1_loss cosine_similarity group_norm"


class Autocast(contextlib.ContextDecorator):
    """torch.autocast, of which torch knows nothing."""

    width: Any = None
    _kept: ClassVar[dict[int, tuple[Any, Any]]] = {}

    def __init__(
        self, device_type: str = "cuda", dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
    ) -> None:
        narrow = dtype or (torch.bfloat16 if device_type == "cpu" else torch.float16)
        self._width = narrow if enabled else None
        self._before: list[Any] = []

    def __enter__(self) -> Autocast:
        self._before.append(Autocast.width)
        Autocast.width = self._width
        return self

    def __exit__(self, *args: object) -> None:
        Autocast.width = self._before.pop()
        if Autocast.width is None:
            Autocast._kept.clear()

    @classmethod
    def cast(cls, value: Any, width: Any) -> Any:
        """Return a value as numbers of that width; weights are kept so until autocast ends."""
        if isinstance(value, (tuple, list)):
            return type(value)(cls.cast(one, width) for one in value)
        if not isinstance(value, torch.Tensor) or not value.is_meta or not value.is_floating_point():
            return value
        if value.dtype == width or value.dtype == torch.float64:
            return value
        if not (value.is_leaf and value.requires_grad and width is cls.width):
            return value.to(width)
        if id(value) not in cls._kept:
            cls._kept[id(value)] = (value, value.to(width))
        return cls._kept[id(value)][1]


def _patch_autocast() -> None:
    def casting(wide: bool) -> Callable[[Any], Any]:
        def put(real: Any) -> Any:
            @functools.wraps(real)
            def cast(*args: Any, **kwargs: Any) -> Any:
                if Autocast.width is None:
                    return real(*args, **kwargs)
                width = torch.float32 if wide else Autocast.width
                changed = {name: Autocast.cast(value, width) for name, value in kwargs.items()}
                return real(*Autocast.cast(args, width), **changed)

            return cast

        return put

    for owner, names, wide in (
        (torch.nn.functional, _NARROW, False),
        (torch.nn.functional, "scaled_dot_product_attention", False),
        (torch, _NARROW_TORCH, False),
        (torch.Tensor, "matmul __matmul__ __rmatmul__ mm bmm addmm baddbmm", False),
        (torch.nn.functional, _WIDE, True),
        (torch, "softmax log_softmax", True),
        (torch.Tensor, "softmax log_softmax", True),
    ):
        for name in names.split():
            _put(owner, name, casting(wide))

    def of_cuda(enabled: bool = True, dtype: Any = None, cache_enabled: Any = None) -> Autocast:
        return Autocast("cuda", dtype, enabled)

    torch.autocast = Autocast
    for owner in filter(None, (getattr(torch, "amp", None), getattr(torch, "autocast_mode", None))):
        _put(owner, "autocast", lambda real: Autocast)
    torch.cuda.amp.autocast = of_cuda
    for owner in (torch.cuda.amp, getattr(torch, "amp", None)):
        if owner is not None and hasattr(owner, "GradScaler"):
            owner.GradScaler = _unscaled(owner.GradScaler)


def _unscaled(kind: Any) -> Any:
    class GradScaler(kind):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(enabled=False)

    return GradScaler


def _patch_data() -> None:
    loader = torch.utils.data.DataLoader
    begin = loader.__init__
    signature = inspect.signature(begin)
    here: dict[str, Any] = {"num_workers": 0, "pin_memory": False, "persistent_workers": False, "prefetch_factor": None}
    here.update({"timeout": 0, "multiprocessing_context": None, "pin_memory_device": ""})
    if signature.parameters["prefetch_factor"].default is not None:
        here["prefetch_factor"] = signature.parameters["prefetch_factor"].default

    @functools.wraps(begin)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.arguments.update({name: value for name, value in here.items() if name in given.arguments})
        begin(*given.args, **given.kwargs)

    loader.__init__ = made


def patch_all() -> None:
    """Replace what of torch a program without a GPU would fail in, or would use less memory by than on a GPU."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch.set_num_threads(1)
    for patch in (_patch_cuda, _patch_makers, _patch_tensor, _patch_kernels, _patch_autocast, _patch_data):
        patch()
