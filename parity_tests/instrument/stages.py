"""Every array on the way from inputs to outputs, on both sides, and the first that has no counterpart on the other.

Nobody has to mark anything: PyTorch's operations are recorded as they are dispatched, JAX's as the equations of the
traced program, each with the line of the user's code. Two stages are counterparts if they hold the same numbers, in
any order of axes. Right programs may compute the same in other ways, so a stage without a counterpart is no fault; but
where an output is wrong, some stage between it and the last counterparts before it is.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from jax.extend import core
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from .frameworks import from_torch
from .tolerances import HUGE, STAGE_SHARE

__all__ = [
    "Recording",
    "Region",
    "Stage",
    "diverging",
    "near",
    "record_jax",
    "record_torch",
    "replayed_torch",
    "same_numbers",
]

# Whose lines are not the user's.
LIBRARIES = (
    *(f"{Path(file).parent}/" for file in (jax.__file__, torch.__file__)),
    *("/flax/", "/jaxlib/", "<"),
)
HERE = f"{Path(__file__).parent}/"
# Axes whose orders are all tried, and numbers of an array that are compared with others.
MOST_AXES, MOST_NUMBERS = 5, 2**20


@dataclass(frozen=True, eq=False)
class Stage:
    """An array on the way: what made it, of which stages, and where in the code."""

    operation: str
    value: np.ndarray
    parents: tuple[int, ...]
    where: str

    @cached_property
    def sorted(self) -> np.ndarray:
        return np.sort(self.value, axis=None)

    @cached_property
    def tells(self) -> bool:
        """Whether it holds enough to be told from another: several numbers, and more than two different ones."""
        if self.value.dtype.kind == "b" or not 3 <= self.value.size <= MOST_NUMBERS:
            return False
        inside = self.value[
            (self.value > self.value.min()) & (self.value < self.value.max())
        ]
        return inside.size > 0


@dataclass(frozen=True)
class Recording:
    """All stages of a call, each after those it was computed from, and which of them are its outputs."""

    stages: tuple[Stage, ...]
    outputs: dict[str, int]


@dataclass(frozen=True)
class Region:
    """Where a side goes wrong, by the numbers of its stages, each in the order of the program.

    Args:
        known: The last stages that have counterparts on the other side.
        parting: All on the way from there to the outputs.
    """

    known: tuple[int, ...]
    parting: tuple[int, ...]


# ------------------------------------------------------------------------------ records


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
    return {name: _wide(from_torch(x.detach())) for name, x in outputs.items()}


class _Recorder(TorchDispatchMode):
    def __init__(self, arrays: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.stages: list[Any] = []
        self.index: dict[int, int] = {}
        self.alive: list[torch.Tensor] = []  # So that no two have one id.
        for name, tensor in arrays.items():
            self._add(name, self._kept(tensor, in_place=True), (), "")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
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
        return _line(_python_frames())

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
        value = _wide(from_torch(tensor.detach().clone().contiguous()))
        return Stage(name, value, parents, where)

    def _refresh(self, written: torch.Tensor, name: str, at: int, where: str) -> None:
        """What shares the memory that was written."""
        memory = written.untyped_storage().data_ptr()
        for tensor in {id(x): x for x in self.alive}.values():
            shares = tensor.untyped_storage().data_ptr() == memory
            if shares and tensor is not written:
                self._add(name, tensor, (self.index[id(tensor)], at), where)


class _Replay(_Recorder):
    """Changes stages by the numbers that they and others have in this run; keeps tensors in place of stages."""

    def __init__(self, arrays: dict[str, Any], instead: dict[int, Any]) -> None:
        self.instead = instead
        super().__init__(arrays)

    def _stage(self, name: str, tensor: Any, parents: Any, where: str) -> Any:
        return tensor

    def _where(self) -> str:
        return ""

    def _kept(self, tensor: torch.Tensor, *, in_place: bool) -> torch.Tensor:
        change = self.instead.get(len(self.stages))
        if change is None:
            return tensor
        given = (
            self.stages[at] if at < len(self.stages) else tensor for at in change.of
        )
        new = change.apply(*(_wide(from_torch(x.detach())) for x in given))
        value = torch.from_numpy(np.ascontiguousarray(new))
        if in_place:
            return tensor.copy_(value)
        # Not into a view, which would change what it is a view of; but in the same order in memory, on which it
        # depends which operations follow.
        return torch.empty_like(tensor).copy_(value)


def record_jax(
    function: Callable[..., dict[str, Any]], arrays: dict[str, Any]
) -> Recording:
    """Of a call of `function(arrays)`, which names its outputs."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(arrays)
    stages: list[Stage] = []

    def add(name: str, value: Any, parents: tuple[int, ...], where: str) -> int | None:
        if not _is_array(value):
            return None
        stages.append(Stage(name, _wide(np.asarray(value)), parents, where))
        return len(stages) - 1

    def run(program: Any, given: Sequence[Any], outer: str) -> list[Any]:
        """Values and their stages, of a program whose inputs are such pairs."""
        jaxpr = program.jaxpr
        known = dict(zip(jaxpr.invars, given, strict=True))
        for var, value in zip(jaxpr.constvars, program.consts, strict=True):
            known[var] = value, add("constant", value, (), outer)

        def read(atom: Any) -> Any:
            return (atom.val, None) if isinstance(atom, core.Literal) else known[atom]

        for eqn in jaxpr.eqns:
            read_in = [read(atom) for atom in eqn.invars]
            where = _line(_frames_of(eqn)) or outer
            inner = _inner(eqn)
            if inner is not None:
                results = run(inner, read_in, where)
            else:
                bound = eqn.primitive.get_bind_params(eqn.params)
                # A pair in JAX before 0.10.
                functions, params = bound if isinstance(bound, tuple) else ((), bound)
                out = eqn.primitive.bind(*functions, *(v for v, _ in read_in), **params)
                parents = tuple(at for _, at in read_in if at is not None)
                results = [
                    (value, add(eqn.primitive.name, value, parents, where))
                    for value in (out if eqn.primitive.multiple_results else [out])
                ]
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    # As JAX flattens a dict: in the order of its keys.
    given = [(arrays[name], add(name, arrays[name], (), "")) for name in sorted(arrays)]
    results = run(closed, given, "")
    return Recording(
        tuple(stages),
        {name: at for name, (_, at) in zip(sorted(shapes), results, strict=True)},
    )


def _inner(eqn: Any) -> Any:
    """The program that an equation only calls: of `jit`, custom derivatives, checkpoints."""
    if eqn.primitive.name in ("scan", "while", "cond", "pallas_call", "shard_map"):
        return None
    programs = [
        x for x in eqn.params.values() if isinstance(x, (core.ClosedJaxpr, core.Jaxpr))
    ]
    if len(programs) != 1:
        return None
    program = programs[0]
    if isinstance(program, core.Jaxpr):
        program = core.ClosedJaxpr(program, ())
    return program if len(program.jaxpr.invars) == len(eqn.invars) else None


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and not jax.dtypes.issubdtype(
        value.dtype, jax.dtypes.extended
    )


def _wide(value: np.ndarray) -> np.ndarray:
    """In float64. What is beyond HUGE stands for minus infinity, as which some write the least number there is."""
    if value.dtype.kind == "b":
        return value
    value = value.astype(np.float64)
    return np.where(np.abs(value) > HUGE, np.copysign(np.inf, value), value)


def _python_frames() -> Iterator[tuple[str, int]]:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name != "__torch_dispatch__":  # One may be within another.
            yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def _frames_of(eqn: Any) -> Iterator[tuple[str, int]]:
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback else ():
        yield (
            frame.file_name,
            frame.start_line if hasattr(frame, "start_line") else frame.line_num,
        )


def _line(frames: Iterable[tuple[str, int]]) -> str:
    """The innermost line that is the user's; none where this package does something itself."""
    for file, line in itertools.dropwhile(
        lambda frame: frame[0].startswith(HERE), frames
    ):
        if file.startswith(HERE):
            return ""
        if not any(library in file for library in LIBRARIES):
            return f"{Path(file).name}:{line}"
    return ""


# --------------------------------------------------------------------------- comparison


def same_numbers(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are one, up to rounding, in some order of their axes and however these are split."""
    if a.size != b.size or a.size == 0:
        return False
    flat, x = b.reshape(-1), a.squeeze()
    orders = (
        itertools.permutations(range(x.ndim))
        if x.ndim <= MOST_AXES
        else [range(x.ndim)]
    )
    return any(near(x.transpose(order).reshape(-1), flat) for order in orders)


def near(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal but for STAGE_SHARE of the largest number."""
    sizes = np.abs(b[np.isfinite(b)])
    share = STAGE_SHARE * (sizes.max() if sizes.size else 0.0)
    with np.errstate(invalid="ignore"):
        return bool(((a == b) | (np.abs(a - b) <= share)).all())


def diverging(
    a: Recording, b: Recording, outputs: Iterable[str]
) -> tuple[Region, Region]:
    """Where the two sides part on the way to these outputs."""
    pairs = [
        (i, j)
        for i, j in itertools.product(range(len(a.stages)), range(len(b.stages)))
        if _alike(a.stages[i], b.stages[j])
    ]
    outputs = list(outputs)
    return (
        _region(a, {i for i, _ in pairs}, outputs),
        _region(b, {j for _, j in pairs}, outputs),
    )


def _alike(a: Stage, b: Stage) -> bool:
    if not (a.tells and b.tells) or a.value.size != b.value.size:
        return False
    return near(a.sorted, b.sorted) and same_numbers(a.value, b.value)


def _region(recording: Recording, matched: set[int], outputs: Iterable[str]) -> Region:
    """Walk back from the outputs as far as nothing has a counterpart."""
    known: set[int] = set()
    parts: dict[int, bool] = {}

    def walk(at: int) -> bool:
        """Whether it, or something before it, has no counterpart."""
        if at in matched:
            known.add(at)
            return False
        if at not in parts:
            stage, parts[at] = recording.stages[at], True
            before = [walk(parent) for parent in stage.parents]
            parts[at] = stage.tells or any(before)
        return parts[at]

    for name in outputs:
        walk(recording.outputs[name])
    parting = (at for at, does in parts.items() if does)
    return Region(tuple(sorted(known)), tuple(sorted(parting)))
