"""A program by its name: FILE.py:NAME or MODULE:NAME, a function, a module, or a class that makes one."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["loaded", "made", "named", "options_of"]


def loaded(text: str) -> Any:
    """What is named, made if it is a class."""
    return made(named(text), {})


def named(text: str) -> Any:
    """What has this name.

    Raises:
        ValueError: if it is not a name of a program, or there is none of this name.
    """
    module, _, name = text.rpartition(":")
    if not module:
        raise ValueError(
            f"a program must be FILE.py:NAME or MODULE:NAME, got {text!r}."
        )
    namespace = _imported(module)
    if not hasattr(namespace, name):
        raise ValueError(f"there is no {name} in {module}.")
    return getattr(namespace, name)


def made(thing: Any, options: Mapping[str, Any]) -> Any:
    """A program, with those of the options that it has a parameter for; its own weights are the same every time."""
    names = options_of(thing)
    taken = {name: value for name, value in options.items() if name in names}
    if not inspect.isclass(thing):
        return partial(thing, **taken) if taken else thing
    if "rngs" in names:
        from flax import nnx

        taken["rngs"] = nnx.Rngs(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    return thing(**taken)


def options_of(thing: Any) -> set[str]:
    """The names of what it takes."""
    try:
        # Flax's classes hide it behind a metaclass.
        made_by = thing.__init__ if inspect.isclass(thing) else thing
        return {*inspect.signature(made_by).parameters}
    except (TypeError, ValueError):  # Of a builtin, or of nothing that is called.
        return set()


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
