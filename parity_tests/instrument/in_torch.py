"""PyTorch's side: run a function, make a side of a program, record what it does. `in_jax.py` is the twin.

A run takes NumPy's arrays and gives a dict of them: the outputs under their names and the gradient with respect to
input x under "d_x".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from .dtypes import Arrays, Function
from .sides import NO_TAPS, Side, bound, called, source_of
from .stages import Recording, Stage, line_of, wide

__all__ = [
    "from_torch",
    "record_torch",
    "replayed_torch",
    "run_torch",
    "to_torch",
    "torch_side",
]


def run_torch(
    function: Function, inputs: Arrays, cotangents: Arrays, wrt: tuple[str, ...]
) -> dict[str, np.ndarray]:
    tensors = {name: to_torch(array) for name, array in inputs.items()}
    for name in wrt:
        tensors[name].requires_grad_()
    with torch.inference_mode(False):  # Which turns gradients on too.
        outputs = function(**tensors)
    reached = [name for name, tensor in outputs.items() if tensor.requires_grad]
    gradients = ()
    if wrt:
        gradients = torch.autograd.grad(
            [outputs[name] for name in reached],
            [tensors[name] for name in wrt],
            [to_torch(cotangents[name]) for name in reached],
            allow_unused=True,
            materialize_grads=True,
        )
    results = {name: from_torch(tensor.detach()) for name, tensor in outputs.items()}
    named = zip(wrt, gradients, strict=True)
    return {**results, **{f"d_{name}": from_torch(grad) for name, grad in named}}


def to_torch(array: np.ndarray) -> torch.Tensor:
    """bfloat16 travels as bits: NumPy's extension type is unknown to torch, and no value may change on the way."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def from_torch(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        bits = tensor.contiguous().view(torch.int16)
        return bits.numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


# ------------------------------------------------------------------------------- sides


def torch_side(program: Any, taps: Mapping[str, str] = NO_TAPS) -> Side:
    """Of a function or a module, whose parameters are its weights and whose buffers are not.

    Taps are the outputs of modules in it, such as "h.0.attn".
    """
    if not isinstance(program, torch.nn.Module):
        if not callable(program):
            raise TypeError(
                f"the PyTorch side must be a function or a `torch.nn.Module`, got {type(program).__name__}."
            )

        def plain(_: Any, given: dict[str, Any], dtype: str) -> Any:
            with _in_float64(dtype):
                return called(program, given), {}

        return _side({}, plain, source_of(program), taps)
    weights, buffers = (
        {name: from_torch(x.detach()) for name, x in named}
        for named in (program.named_parameters(), program.named_buffers())
    )

    def call(weights: dict[str, Any], given: dict[str, Any], dtype: str) -> Any:
        arguments = bound(program.forward, given)
        training = {module: module.training for module in program.modules()}
        program.eval()
        try:
            with _in_float64(dtype), _tapped(program, taps) as tapped:
                outputs = torch.func.functional_call(
                    program, weights, arguments.args, arguments.kwargs
                )
            return outputs, tapped
        finally:
            for module, was in training.items():
                module.training = was

    side = _side(weights, call, source_of(type(program)), taps)
    frozen = {n for n, weight in program.named_parameters() if not weight.requires_grad}
    return replace(side, buffers=buffers, frozen=frozenset(frozen))


@contextmanager
def _tapped(
    program: torch.nn.Module, taps: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """The outputs of modules, of the last call, the first where there are several."""
    found: dict[str, Any] = {}
    modules = dict(program.named_modules())
    for name in {*taps.values()} - {*modules}:
        there = ", ".join(filter(None, modules))
        raise ValueError(
            f"`taps` must name what {source_of(type(program))} has, {there}; got {name!r}."
        )

    def tap(name: str, module: torch.nn.Module) -> Any:
        def keep(_: Any, __: Any, output: Any) -> None:
            found[name] = tree_leaves(output)[0].clone()  # Which may be written into.

        return module.register_forward_hook(keep)

    hooks = [tap(name, modules[name]) for name in {*taps.values()}]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _side(
    weights: Arrays, call: Callable[..., Any], source: str, taps: Mapping[str, str]
) -> Side:
    def cast(x: Any, dtype: str) -> Any:
        return torch.as_tensor(x).to(getattr(torch, dtype))

    return Side(weights, call, source, cast, _run_program, taps)


def _run_program(
    function: Function, inputs: Arrays, cotangents: Arrays, wrt: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """On copies, which may be written into; a gradient may compute anew what its function did."""

    def copied(**tensors: torch.Tensor) -> dict[str, Any]:
        return function(**{name: x.clone() for name, x in tensors.items()})

    floating = (*inputs.values(), *cotangents.values())
    double = any(array.dtype == np.float64 for array in floating)
    with _in_float64("float64" if double else "float32"):
        return run_torch(copied, inputs, cotangents, wrt)


@contextmanager
def _in_float64(dtype: str) -> Iterator[None]:
    """In a float64 run PyTorch's side computes in float64 what it says is to be in float32, so that it is the truth."""
    wide, before = dtype == "float64", torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if wide else torch.float32)
    try:
        if wide:
            with _NoFloat32(), _Promotes():
                yield
        else:
            yield
    finally:
        torch.set_default_dtype(before)


class _NoFloat32(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


class _Promotes(TorchFunctionMode):
    """Products too, as sums do: of what a program holds in float32, such as a table that is no buffer."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            tensors = [x for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)]
            mixed = {torch.float32, torch.float64} <= {x.dtype for x in tensors}
            if not mixed or _writes(func, kwargs):
                raise
            args, kwargs = tree_map_only(torch.Tensor, _in_double, (args, kwargs))
            return func(*args, **kwargs)


def _writes(func: Any, kwargs: dict[str, Any]) -> bool:
    """Into what it was given, which a copy in float64 would not be."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name == "__setitem__" or kwargs.get("out") is not None


def _in_double(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.dtype == torch.float32 else x


# ------------------------------------------------------------------------------ stages


def record_torch(
    function: Callable[..., dict[str, Any]], arrays: dict[str, torch.Tensor]
) -> Recording:
    """Of a call of `function(arrays)`, which names its outputs."""
    recorder = _Recorder(arrays)
    with torch.no_grad(), recorder:
        outputs = function(arrays)
    found = {name: recorder.index[id(x)] for name, x in outputs.items()}
    return Recording(tuple(recorder.stages), found)


def replayed_torch(
    function: Callable[..., dict[str, Any]],
    arrays: dict[str, torch.Tensor],
    instead: dict[int, Any],
) -> dict[str, np.ndarray]:
    """The outputs with other numbers in these stages, each a `Change`."""
    with torch.no_grad(), _Replay(arrays, instead):
        outputs = function(arrays)
    return {name: _numbers(x) for name, x in outputs.items()}


def _numbers(tensor: torch.Tensor) -> np.ndarray:
    """A copy. What PyTorch only marks as conjugate or negative is so here."""
    tensor = tensor.detach().clone().contiguous().resolve_conj().resolve_neg()
    return wide(from_torch(tensor))


class _Recorder(TorchDispatchMode):
    def __init__(self, arrays: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.stages: list[Any] = []
        self.index: dict[int, int] = {}
        self.alive: list[torch.Tensor] = []  # So that no two have one id.
        self.line = ""  # Of what is recorded as what it is made of.
        for name, tensor in arrays.items():
            self._add(name, self._kept(tensor, in_place=True), (), "")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in MADE_OF:
            self.line = self._where()
            with self:
                results = MADE_OF[func](*args, **kwargs)
            self.line = ""
            return results
        parents = tuple(
            self._of(x)
            for x in tree_leaves((args, kwargs))
            if isinstance(x, torch.Tensor)
        )
        name, where = func.overloadpacket.__name__, self._where()
        in_place = func._schema.is_mutable

        def kept(x: torch.Tensor) -> torch.Tensor:
            x = self._kept(x, in_place=in_place)
            at = self._add(name, x, parents, where)
            if in_place:
                self._refresh(x, name, at, where)
            return x

        return tree_map_only(torch.Tensor, kept, func(*args, **kwargs))

    def _kept(self, tensor: torch.Tensor, *, in_place: bool) -> torch.Tensor:
        """What is to go on as the next stage."""
        return tensor

    def _where(self) -> str:
        return self.line or line_of(_python_frames())

    def _of(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self.index:
            return self._add("constant", tensor, (), "")
        return self.index[id(tensor)]

    def _add(self, name: str, tensor: Any, parents: tuple[int, ...], where: str) -> int:
        self.alive.append(tensor)
        self.index[id(tensor)] = len(self.stages)
        self.stages.append(self._stage(name, tensor, parents, where))
        return len(self.stages) - 1

    def _stage(self, name: str, tensor: Any, parents: Any, where: str) -> Any:
        return Stage(name, _numbers(tensor), parents, where)

    def _refresh(self, written: torch.Tensor, name: str, at: int, where: str) -> None:
        """What shares the memory that was written."""
        memory = written.untyped_storage().data_ptr()
        for tensor in {id(x): x for x in self.alive}.values():
            shares = tensor.untyped_storage().data_ptr() == memory
            if shares and tensor is not written:
                self._add(name, tensor, (self.index[id(tensor)], at), where)


class _Replay(_Recorder):
    """Changes stages by the numbers that they and others have in this run."""

    def __init__(self, arrays: dict[str, Any], instead: dict[int, Any]) -> None:
        self.instead = instead
        self.needed = {at for change in instead.values() for at in change.of}
        super().__init__(arrays)

    def _stage(self, name: str, tensor: Any, parents: Any, where: str) -> Any:
        """The numbers, as they are before anything is written into them."""
        return _numbers(tensor) if len(self.stages) in self.needed else None

    def _where(self) -> str:
        return ""

    def _kept(self, tensor: torch.Tensor, *, in_place: bool) -> torch.Tensor:
        change = self.instead.get(len(self.stages))
        if change is None:
            return tensor
        given = (
            self.stages[at] if at < len(self.stages) else _numbers(tensor)
            for at in change.of
        )
        with np.errstate(all="ignore"):  # Of infinities, by which something is masked.
            value = torch.from_numpy(np.ascontiguousarray(change.apply(*given)))
        if in_place:
            return tensor.copy_(value)
        # Not into a view, which would change what it is a view of; but in the same order in memory, on which it
        # depends which operations follow.
        return torch.empty_like(tensor).copy_(value)


# ------------------------------------- operations that are recorded as what they are made of


def _layer_norm(
    x: torch.Tensor,
    shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    axes = tuple(range(-len(shape), 0))
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    inverse = torch.rsqrt((centred**2).mean(axes, keepdim=True) + eps)
    out = centred * inverse
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean, inverse


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """Without dropout, as a model in evaluation is."""
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    total = torch.logsumexp(scores, -1)
    weights = torch.softmax(scores, -1)
    if torch.isneginf(total).any():  # A query that sees no key gets zeros.
        weights = weights.masked_fill(torch.isneginf(total)[..., None], 0)
    return weights @ v, total


MADE_OF: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_layer_norm.default: _layer_norm,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
}


MODES = ("__torch_dispatch__", "__torch_function__")


def _python_frames() -> Iterator[tuple[str, int]]:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name not in MODES:  # One may be within another.
            yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
