"""Commands of the instrument: `python -m parity_tests compare PORT ORIGINAL` and others.

    python -m parity_tests compare flax_port.py:Attention model.py:Attention --input x=float:2,16,48

says whether a port in JAX is its original in PyTorch up to rounding, and if not, where they part and why. `record` and
`replay` do it in two steps, of which the second needs no PyTorch. `check` and `lint` look at one program that has no
twin, `explain` at two files of results. `doctor` says whether this machine can compare at all; `mutants` plants faults
in copies of this project's packages.

A program is FILE.py:NAME or MODULE:NAME: a function, a module, or a class that makes one. A command ends with 0 if all
is right, with 1 if something is not, and with 2 if it could not be done.
"""

from __future__ import annotations

import argparse
import ast
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .instrument.draws import Draw, booleans, normal, positions, tokens
from .instrument.programs import made, named, options_of
from .instrument.reports import check_path
from .instrument.session import Baseline
from .instrument.verdicts import Report
from .instrument.weights import WeightMap

WRITES = ("--report", "--baseline")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return how it ends."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(arguments)
    try:
        for path in getattr(options, "report", ()):
            check_path(path)
        return options.run(options, arguments)
    except Exception as error:  # Anybody's code runs here.
        said = "; ".join([str(error), *getattr(error, "__notes__", ())])
        print(
            f"could not {arguments[0]}: {type(error).__name__}: {said}", file=sys.stderr
        )
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m parity_tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., int], text: str, *parts: Any) -> None:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        for part in parts:
            part(made)

    port = partial(_positional, name="port", text="in JAX: FILE.py:NAME or MODULE:NAME")
    original = partial(_positional, name="original", text="in PyTorch: likewise")
    program = partial(_positional, name="program", text="in JAX or in PyTorch")
    file = partial(_positional, name="file", text="of `record`, .npz", kind=Path)
    command(
        "compare",
        _compare,
        "a port in JAX with its original in PyTorch",
        *(port, original, _inputs, _runs, _weights, _reports),
    )
    command(
        "record",
        _record,
        "what a port is judged by, into a file",
        *(original, file, _inputs, _runs),
    )
    command(
        "replay",
        _replay,
        "a port with what was recorded; needs no PyTorch",
        *(port, file, _made, _weights, _reports),
    )
    command(
        "explain",
        _explain,
        "two files of results: is their difference rounding, and if not, what?",
        partial(
            _positional, name="actual", text="what is in question, .npz", kind=Path
        ),
        partial(_positional, name="expected", text="what is right, .npz", kind=Path),
        _truth,
        _reports,
    )
    command(
        "check",
        _check,
        "laws that an encoding obeys, without a twin",
        *(program, _inputs, _laws, _reports),
    )
    command(
        "lint",
        _lint,
        "what a function in JAX does that costs precision or compiles again",
        *(port, _inputs, _reports),
    )
    command("doctor", _doctor, "can this machine compare at all?")
    command("mutants", _mutants, "are planted faults seen?")
    return parser


def _positional(
    command: argparse.ArgumentParser, *, name: str, text: str, kind: type = str
) -> None:
    command.add_argument(name, metavar=name.upper(), help=text, type=kind)


def _inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--input",
        action="append",
        default=[],
        required=True,
        metavar="NAME=KIND:SIZES",
        help="KIND is float (normal numbers), positions (0, 1, 2, ... along the last axis), positions/PROFILE, bool or "
        "tokens/N (below N), SIZES as 2,16,48; or NAME=FILE.npy; once for every input, in the order of the call",
    )
    _made(command)
    command.add_argument("--seed", type=int, default=0, help="of inputs and weights")


def _made(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what programs are made with, or an option of a function, such as width=48",
    )


def _runs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--dtype",
        action="append",
        default=[],
        choices=("bfloat16", "float16"),
        help="judge in this one too",
    )
    command.add_argument(
        "--tap",
        action="append",
        default=[],
        metavar="NAME=MODULE",
        help="what a Flax module sows, and the module of PyTorch whose output it is: compared too, the first one first",
    )
    oracle = command.add_mutually_exclusive_group()
    oracle.add_argument(
        "--oracle",
        metavar="PROGRAM",
        help="gives the right outputs, of inputs by name, in float64 NumPy",
    )
    oracle.add_argument(
        "--scheme",
        choices=("rope", "sinusoidal", "alibi"),
        help="whose right outputs are known here",
    )


def _weights(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--weights",
        type=Path,
        metavar="FILE.json",
        help='{"JAX\'s name": ["PyTorch\'s name", "same" or "transpose"]}; by default they are guessed',
    )


def _reports(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--report",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="write it there too: .html with pictures, .json, .xml (JUnit), .txt, or .py, a script that runs it again",
    )
    command.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE.json",
        help="errors that may not grow; what is not in it is added",
    )


def _truth(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--truth", type=Path, metavar="FILE.npz", help="the right numbers, in float64"
    )


def _laws(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--that",
        action="append",
        default=[],
        metavar="LAW",
        help="such as shift, norm or composition; by default those that every encoding obeys",
    )


# ---------------------------------------------------------------------------- commands


def _compare(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from .instrument import compare

    texts = (options.port, options.original, *_oracle(options))
    port, original, *oracle = _programs(options, *texts)
    how = _how(options, oracle)
    report = compare(port, original, _drawn(options), weights=_map(options), **how)
    return _ended(options, arguments, report)


def _record(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from .instrument import record

    original, *oracle = _programs(options, options.original, *_oracle(options))
    record(original, _drawn(options), options.file, **_how(options, oracle))
    print(f"wrote {options.file}")
    return 0


def _replay(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from .instrument import replay

    (port,) = _programs(options, options.port)
    report = replay(port, options.file, weights=_map(options))
    return _ended(options, arguments, report)


def _explain(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from .instrument import explain

    actual, expected = (_arrays(path) for path in (options.actual, options.expected))
    truth = _arrays(options.truth) if options.truth else None
    return _ended(options, arguments, explain(actual, expected, truth=truth))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def _check(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from .instrument import check_invariants

    (program,) = _programs(options, options.program)
    laws = {"invariants": tuple(options.that)} if options.that else {}
    report = check_invariants(program, _drawn(options), **laws)
    return _ended(options, arguments, report)


def _lint(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from .instrument import lint

    (port,) = _programs(options, options.port)
    return _ended(options, arguments, lint(port, _drawn(options)))


def _doctor(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from . import doctor
    from .instrument.environment import environment

    for name, value in environment().items():
        print(f"{name:<26} {value}")
    faults = list(doctor.faults())
    for fault in faults or ["nothing is wrong"]:
        print(fault)
    return 1 if faults else 0


def _mutants(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from . import mutants

    return mutants.main()


def _ended(
    options: argparse.Namespace, arguments: Sequence[str], report: Report
) -> int:
    """Print the report and write it where it is wanted."""
    report = replace(report, again=tuple(_without_files(arguments)))
    if options.baseline:
        baseline = Baseline(options.baseline)
        report = baseline.held(report, shlex.join(report.again))
        baseline.write()
    for path in options.report:  # First, as what is printed may be cut off.
        report.save(path)
    print(report)
    return 0 if report.passed else 1


def _without_files(arguments: Sequence[str]) -> Iterator[str]:
    """What makes the report, without where it is written."""
    rest = iter(arguments)
    for argument in rest:
        if argument in WRITES:
            next(rest)
        elif argument.partition("=")[0] not in WRITES:
            yield argument


# --------------------------------------------------------------------------- arguments


def _programs(options: argparse.Namespace, *texts: str) -> list[Any]:
    """What these name, made with the options that they have parameters for."""
    given = _once("--option", map(_value, options.option))
    found = [named(text) for text in texts]
    unknown = given.keys() - {name for thing in found for name in options_of(thing)}
    if unknown:
        raise ValueError(
            f"`--option` must name a parameter of {', '.join(texts)}; {', '.join(sorted(unknown))} is of none."
        )
    return [made(thing, given) for thing in found]


def _oracle(options: argparse.Namespace) -> list[str]:
    if options.scheme:
        return [f"{__package__}.instrument.known:{options.scheme}"]
    return [options.oracle] if options.oracle else []


def _how(options: argparse.Namespace, oracle: list[Any]) -> dict[str, Any]:
    dtypes = ("float32", *options.dtype)
    return {
        "oracle": oracle[0] if oracle else None,
        "taps": _once("--tap", map(_tap, options.tap)),
        "dtypes": dtypes,
        "seed": options.seed,
    }


def _drawn(options: argparse.Namespace) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(options.seed)
    return _once("--input", (_input(text, rng) for text in options.input))


def _once(option: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"`{option}` must name {name} once, got it twice.")
        found[name] = value
    return found


def _input(text: str, rng: np.random.Generator) -> tuple[str, np.ndarray]:
    name, _, what = text.partition("=")
    if what.endswith(".npy"):
        return name, np.load(what, allow_pickle=False)
    kind, _, sizes = what.partition(":")
    axes = sizes.replace(",", " ")
    kind, _, rest = kind.partition("/")
    kinds: dict[str, Callable[[], Draw]] = {
        "float": lambda: normal(axes),
        "positions": lambda: positions(axes, *filter(None, [rest])),
        "tokens": lambda: tokens(axes, int(rest)),
        "bool": lambda: booleans(axes),
    }
    numbered = kind != "tokens" or rest.isdigit()
    if (
        not name
        or kind not in kinds
        or not numbered
        or not all(n.isdigit() for n in axes.split())
    ):
        raise ValueError(
            "`--input` must be NAME=KIND:SIZES, of a kind float, positions, positions/PROFILE, tokens/N or bool, "
            f"or NAME=FILE.npy, got {text!r}."
        )
    return name, kinds[kind]().array(rng)


def _tap(text: str) -> tuple[str, str]:
    name, _, module = text.partition("=")
    if not (name and module):
        raise ValueError(f"`--tap` must be NAME=MODULE, got {text!r}.")
    return name, module


def _value(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found:
        raise ValueError(f"`--option` must be NAME=VALUE, got {text!r}.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _map(options: argparse.Namespace) -> WeightMap | None:
    if not options.weights:
        return None
    return {
        a: (b, how) for a, (b, how) in json.loads(options.weights.read_text()).items()
    }


if __name__ == "__main__":
    sys.exit(main())
