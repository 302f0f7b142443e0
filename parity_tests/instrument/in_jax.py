"""JAX's side: run a function, make a side of a program, record what it does. `in_torch.py` is the twin.

A run takes NumPy's arrays and gives a dict of them: the outputs under their names and the gradient with respect to
input x under "d_x".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from .dtypes import DTYPES, Arrays, Function
from .sides import NO_TAPS, Side, bound, called, is_module, source_of
from .stages import Recording, Stage, line_of, wide

__all__ = [
    "anew",
    "frames_of",
    "in_order",
    "jax_side",
    "record_jax",
    "run_jax",
    "unstacked",
]

# Of a loop that is recorded step by step: layers, not tokens.
MOST_STEPS = 128


def run_jax(
    function: Function,
    inputs: Arrays,
    cotangents: Arrays,
    wrt: tuple[str, ...],
    *,
    jit: bool,
) -> dict[str, np.ndarray]:
    """With `jit` false, operation by operation."""
    floating = (*inputs.values(), *cotangents.values())
    double = any(array.dtype == np.float64 for array in floating)
    with jax.enable_x64(double):
        arrays = {name: jnp.asarray(array) for name, array in inputs.items()}
        cots = {name: jnp.asarray(array) for name, array in cotangents.items()}
        run = _compiled if jit else _outputs_and_gradients
        results = run(function, wrt, arrays, cots)
        return {name: np.asarray(array) for name, array in results.items()}


def _outputs_and_gradients(
    function: Function, wrt: tuple[str, ...], inputs: Any, cotangents: Any
) -> dict[str, Any]:
    def forward(differentiated: Any) -> Any:
        return function(**{**inputs, **differentiated})

    outputs, vjp = jax.vjp(forward, {name: inputs[name] for name in wrt})
    (gradients,) = vjp({name: cotangents[name] for name in outputs})
    return {**outputs, **{f"d_{name}": grad for name, grad in gradients.items()}}


_compiled = jax.jit(_outputs_and_gradients, static_argnums=(0, 1))


# ------------------------------------------------------------------------------- sides


def jax_side(
    program: Any, inputs: Mapping[str, np.ndarray], taps: Mapping[str, str] = NO_TAPS
) -> Side:
    """Of a function, an nnx module, or a linen module, which is initialised for these inputs.

    Taps are what a module sows, such as "attn/q_rot"; a linen module's own outputs are "attn/__call__".
    """
    side = _side_of(program, inputs, taps)

    def call(weights: dict[str, Any], given: dict[str, Any], dtype: str) -> Any:
        return side.call(weights, in_order(given, inputs), dtype)

    return replace(side, call=call)


def in_order(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """As they were given: a program that is traced gets them in the order of their names."""
    return {name: given[name] for name in names if name in given}


def _side_of(
    program: Any, inputs: Mapping[str, np.ndarray], taps: Mapping[str, str]
) -> Side:
    if is_module(program, "flax.nnx"):
        return _nnx_side(program, taps)
    if is_module(program, "flax.linen"):
        return _linen_side(program, inputs, taps)
    if is_module(program, "torch.nn") or not callable(program):
        raise TypeError(
            f"the port, which comes first, must be a function of JAX or a Flax module, got {type(program).__name__}."
        )

    def call(_: Any, given: dict[str, Any], __: str) -> Any:
        return called(program, given), {}

    return _side({}, call, source_of(program), taps)


def _side(
    weights: Arrays, call: Callable[..., Any], source: str, taps: Mapping[str, str]
) -> Side:
    def cast(x: Any, dtype: str) -> Any:
        return jnp.asarray(x).astype(DTYPES[dtype])

    return Side(weights, call, source, cast, _run_program, taps)


def _run_program(
    function: Function, inputs: Arrays, cotangents: Arrays, wrt: tuple[str, ...]
) -> dict[str, np.ndarray]:
    with anew():
        return run_jax(function, inputs, cotangents, wrt, jit=True)


@contextmanager
def anew(*, double: bool = False) -> Iterator[None]:
    """A run of a program, with float64 or without.

    JAX remembers float64 constants of NumPy from a run before, in the dtype that they had in that one.
    """
    jax.clear_caches()
    with jax.enable_x64(double):
        yield


def _nnx_side(module: Any, taps: Mapping[str, str]) -> Side:
    from flax import nnx

    # As PyTorch's side: without dropout, with the statistics that were gathered.
    module = nnx.clone(module)
    module.eval()
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    paths = {_joined(path): path for path, _ in nnx.to_flat_state(params)}
    flat = dict(nnx.to_flat_state(params))
    weights = {name: np.asarray(flat[path][...]) for name, path in paths.items()}

    def call(weights: dict[str, Any], given: dict[str, Any], dtype: str) -> Any:
        filled = nnx.from_flat_state(
            [(path, flat[path].replace(weights[name])) for name, path in paths.items()]
        )
        merged = nnx.merge(graph, filled, _widened(rest, dtype))
        if not taps:
            return called(merged, given), {}
        arguments = bound(merged, given)
        run = nnx.capture(merged, nnx.Intermediate)
        outputs, sown = run(*arguments.args, **arguments.kwargs)
        leaves = nnx.to_flat_state(sown)
        return outputs, {_joined(p): _last_sown(leaf.get_value()) for p, leaf in leaves}

    return _side(weights, call, source_of(type(module)), taps)


def _linen_side(
    module: Any, inputs: Mapping[str, np.ndarray], taps: Mapping[str, str]
) -> Side:
    from flax.core.meta import unbox
    from flax.traverse_util import flatten_dict, unflatten_dict

    given = {name: jnp.asarray(array) for name, array in inputs.items()}
    arguments = bound(type(module).__call__.__get__(module), given)
    variables = module.init(jax.random.key(0), *arguments.args, **arguments.kwargs)
    # In the order in which they were made.
    params = flatten_dict(unbox(variables.get("params", {})), sep="/")
    weights = {name: np.asarray(leaf) for name, leaf in params.items()}
    rest = {
        name: tree
        for name, tree in variables.items()
        if name not in ("params", "intermediates")
    }

    def call(weights: dict[str, Any], given: dict[str, Any], dtype: str) -> Any:
        arguments = bound(type(module).__call__.__get__(module), given)
        params = unflatten_dict(weights, sep="/")
        state = {"params": params, **_widened(rest, dtype)}
        if not taps:
            return module.apply(state, *arguments.args, **arguments.kwargs), {}
        outputs, sown = module.apply(
            state,
            *arguments.args,
            **arguments.kwargs,
            capture_intermediates=True,
            mutable="intermediates",
        )
        leaves = flatten_dict(sown["intermediates"], sep="/")
        return outputs, {name: _last_sown(leaf) for name, leaf in leaves.items()}

    return _side(weights, call, source_of(type(module)), taps)


def unstacked(side: Side, number: int) -> Iterator[Side]:
    """With the layers of a module that is scanned over as weights of their own, "layers/0/kernel", so many in all.

    They are stacked along the first axis, as Flax does it, or along the second, as MaxText does. Which module
    it is, only the other side tells.
    """
    prefixes = {
        name[: slash.start() + 1]
        for name in side.weights
        for slash in re.finditer("/", name)
    }
    for prefix, axis in itertools.product(sorted(prefixes, key=len), (0, 1)):
        inside = [name for name in side.weights if name.startswith(prefix)]
        sizes = {side.weights[name].shape[axis : axis + 1] for name in inside}
        layers = max(sizes)[0] if len(sizes) == 1 and max(sizes) else 0
        if layers > 1 and len(side.weights) + len(inside) * (layers - 1) == number:
            yield _unstacked(side, prefix, inside, axis, layers)


def _unstacked(
    side: Side, prefix: str, inside: list[str], axis: int, layers: int
) -> Side:
    def of_layer(name: str, layer: int) -> str:
        return f"{prefix}{layer}/{name.removeprefix(prefix)}"

    weights: dict[str, np.ndarray] = {}
    for name, x in side.weights.items():
        if name == inside[0]:  # Layer by layer, as in a list.
            for i, other in itertools.product(range(layers), inside):
                weights[of_layer(other, i)] = side.weights[other].take(i, axis)
        elif name not in inside:
            weights[name] = x

    def call(given: dict[str, Any], inputs: dict[str, Any], dtype: str) -> Any:
        stacked = {
            name: jnp.stack([given[of_layer(name, i)] for i in range(layers)], axis)
            for name in inside
        }
        rest = {name: given[name] for name in side.weights if name not in inside}
        return side.call(rest | stacked, inputs, dtype)

    return replace(side, weights=weights, call=call)


def _last_sown(sown: Any) -> Any:
    """Every call adds one to a tuple, if the module does not reduce them itself; the first array of several."""
    return jax.tree.leaves(sown[-1] if isinstance(sown, tuple) else sown)[0]


def _joined(path: Sequence[Any]) -> str:
    return "/".join(str(getattr(key, "key", key)) for key in path)


def _widened(tree: Any, dtype: str) -> Any:
    """Other state, such as tables that were made when the module was."""

    def widened(x: Any) -> Any:
        floating = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.asarray(x, DTYPES[dtype]) if floating else x

    return jax.tree.map(widened, tree)


# ------------------------------------------------------------------------------ stages


def record_jax(
    function: Callable[..., dict[str, Any]], arrays: dict[str, Any]
) -> Recording:
    """Of a call of `function(arrays)`, which names its outputs."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(arrays)
    stages: list[Stage] = []

    def add(name: str, value: Any, parents: tuple[int, ...], where: str) -> int | None:
        if not _is_array(value):
            return None
        stages.append(Stage(name, wide(np.asarray(value)), parents, where))
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
            where = line_of(frames_of(eqn)) or outer
            inner = _inner(eqn)
            if inner is not None:
                results = run(inner, read_in, where)
            elif eqn.primitive.name == "cond":
                index, *operands = read_in
                branches = eqn.params["branches"]
                taken = min(max(int(index[0]), 0), len(branches) - 1)
                results = run(branches[taken], operands, where)
            elif (
                eqn.primitive.name == "scan" and 0 < eqn.params["length"] <= MOST_STEPS
            ):
                results = scan(read_in, where, **eqn.params)
            else:
                bound = eqn.primitive.get_bind_params(eqn.params)
                # A pair in JAX before 0.10.
                functions, params = bound if isinstance(bound, tuple) else ((), bound)
                out = eqn.primitive.bind(*functions, *(v for v, _ in read_in), **params)
                parents = _parents([at for _, at in read_in])
                results = [
                    (value, add(eqn.primitive.name, value, parents, where))
                    for value in (out if eqn.primitive.multiple_results else [out])
                ]
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def scan(
        given: list[Any],
        where: str,
        *,
        jaxpr: Any,
        length: int,
        reverse: bool,
        num_consts: int,
        num_carry: int,
        **_: Any,
    ) -> list[Any]:
        """Step by step, as if it were written so."""
        constants, rest = given[:num_consts], given[num_consts:]
        carry, xs = rest[:num_carry], rest[num_carry:]
        steps: dict[int, list[Any]] = {}
        for step in range(length)[:: -1 if reverse else 1]:
            at_step = [
                (x[step], add("scan_slice", x[step], _parents([at]), where))
                for x, at in xs
            ]
            results = run(jaxpr, [*constants, *carry, *at_step], where)
            carry, steps[step] = results[:num_carry], results[num_carry:]
        stacked = []
        for ys in zip(*(steps[step] for step in range(length)), strict=True):
            value = jnp.stack([value for value, _ in ys])
            parents = _parents([at for _, at in ys])
            stacked.append((value, add("scan_stack", value, parents, where)))
        return [*carry, *stacked]

    # As JAX flattens a dict: in the order of its keys.
    given = [(arrays[name], add(name, arrays[name], (), "")) for name in sorted(arrays)]
    results = run(closed, given, "")
    outputs = {
        name: add("constant", value, (), "") if at is None else at
        for name, (value, at) in zip(sorted(shapes), results, strict=True)
    }
    return Recording(tuple(stages), outputs)


def _parents(stages: list[int | None]) -> tuple[int, ...]:
    """But for literals, which are none."""
    return tuple(at for at in stages if at is not None)


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


def frames_of(eqn: Any) -> Iterator[tuple[str, int]]:
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback else ():
        yield (
            frame.file_name,
            frame.start_line if hasattr(frame, "start_line") else frame.line_num,
        )
