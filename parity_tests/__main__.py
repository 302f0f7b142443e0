"""Commands of the instrument: `python -m parity_tests compare PORT ORIGINAL`, `doctor` and `mutants`.

    python -m parity_tests compare flax_port.py:Attention model.py:Attention --input x=float:2,16,48

says whether a port in JAX is its original in PyTorch up to rounding, and if not, where they part and why. A program is
FILE.py:NAME or MODULE:NAME: a function, a module, or a class that makes one, of what --make says and it has a parameter
for. It ends with 0 if they agree, with 1 if they do not and with 2 if they could not be compared.

    python -m parity_tests doctor

says whether this machine can compare at all, and ends with 1 if it cannot.

    python -m parity_tests mutants

plants faults in copies of this project's packages, and ends with 1 if one is not seen.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from . import doctor
from .instrument import compare
from .instrument.environment import environment


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return how it ends."""
    parser = argparse.ArgumentParser(
        prog="python -m parity_tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("doctor", help="can this machine compare at all?")
    command.set_defaults(run=_doctor)
    command = commands.add_parser("mutants", help="are planted faults seen?")
    command.set_defaults(run=_mutants)
    command = commands.add_parser(
        "compare", help="a port in JAX with its original in PyTorch"
    )
    command.set_defaults(run=_compare)
    command.add_argument(
        "port", metavar="PORT", help="in JAX: FILE.py:NAME or MODULE:NAME"
    )
    command.add_argument("original", metavar="ORIGINAL", help="in PyTorch: likewise")
    command.add_argument(
        "--input",
        action="append",
        default=[],
        required=True,
        metavar="NAME=KIND:SIZES",
        help="KIND is float (normal numbers), positions (0, 1, 2, ... along the last axis) or "
        "tokens/N (below N), SIZES as 2,16,48; once for every input, in the order of the call",
    )
    command.add_argument(
        "--make",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what the sides are made with, such as width=48",
    )
    command.add_argument(
        "--dtype",
        action="append",
        default=[],
        choices=("bfloat16", "float16"),
        help="judge the sides in this one too",
    )
    command.add_argument("--seed", type=int, default=0, help="of inputs and weights")
    command.add_argument(
        "--json", type=Path, metavar="FILE", help="write the report there"
    )
    options = parser.parse_args(arguments)
    return options.run(options)


def _doctor(options: argparse.Namespace) -> int:
    for name, value in environment().items():
        print(f"{name:<26} {value}")
    faults = list(doctor.faults())
    for fault in faults or ["nothing is wrong"]:
        print(fault)
    return 1 if faults else 0


def _mutants(options: argparse.Namespace) -> int:
    from . import mutants

    return mutants.main()


def _compare(options: argparse.Namespace) -> int:
    try:
        rng = np.random.default_rng(options.seed)
        inputs = dict(_drawn(text, rng) for text in options.input)
        made = dict(_value(text) for text in options.make)
        port, original = (
            _program(text, made) for text in (options.port, options.original)
        )
        dtypes = ("float32", *options.dtype)
        report = compare(port, original, inputs, dtypes=dtypes, seed=options.seed)
    except Exception as error:  # Anybody's code runs here.
        print(f"could not compare: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(report)
    if options.json:
        found = {
            "verdict": report.verdict,
            **dataclasses.asdict(report),
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if report.passed else 1


def _drawn(text: str, rng: np.random.Generator) -> tuple[str, np.ndarray]:
    name, _, what = text.partition("=")
    kind, _, sizes = what.partition(":")
    try:
        shape = tuple(int(size) for size in sizes.split(",")) if sizes else ()
    except ValueError:
        raise ValueError(f"`--input` must be NAME=KIND:SIZES, got {text!r}.") from None
    if kind == "float":
        return name, rng.normal(size=shape)
    if kind == "positions":
        return name, np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape).copy()
    if kind.startswith("tokens/"):
        return name, rng.integers(0, int(kind.removeprefix("tokens/")), shape).astype(
            np.int32
        )
    raise ValueError(
        f"`--input` must be of kind float, positions or tokens/N, got {text!r}."
    )


def _value(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found:
        raise ValueError(f"`--make` must be NAME=VALUE, got {text!r}.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _program(text: str, made: dict[str, Any]) -> Any:
    """What is named, made if it is a class or has a name like `make_model`."""
    module, _, name = text.rpartition(":")
    if not module:
        raise ValueError(
            f"a program must be FILE.py:NAME or MODULE:NAME, got {text!r}."
        )
    thing = getattr(_imported(module), name)
    if inspect.isclass(thing):
        parameters = inspect.signature(thing.__init__).parameters
        options = {key: value for key, value in made.items() if key in parameters}
        if "rngs" in parameters:
            from flax import nnx

            options["rngs"] = nnx.Rngs(0)
        return thing(**options)
    return thing


def _imported(module: str) -> Any:
    if not module.endswith(".py"):
        return importlib.import_module(module)
    path = Path(module)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise ValueError(f"there is no file {module}.")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(loaded)
    return loaded


if __name__ == "__main__":
    sys.exit(main())
