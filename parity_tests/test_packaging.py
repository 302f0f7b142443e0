"""What is shipped: which package imports what, what each exports, and what the metadata says.

Holds for a checkout, for an editable install and for an installed wheel.
"""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).parents[
    1
]  # or the site-packages folder of an installed wheel
PYPROJECT = CHECKOUT / "pyproject.toml"

FLAX_MODULES = ("posenc_jax.nnx", "posenc_jax.linen")
FILES = [
    path.relative_to(CHECKOUT)
    for package in ("posenc_torch", "posenc_jax")
    for path in sorted((CHECKOUT / package).rglob("*.py"))
]
PUBLIC_MODULES = [
    ".".join(path.with_suffix("").parts)
    for path in FILES
    if not any(part.startswith("_") for part in path.parts)
]


def test_there_is_something_to_check():
    assert set(FLAX_MODULES) < set(PUBLIC_MODULES)
    assert {"posenc_torch.rope", "posenc_jax.rope"} < set(PUBLIC_MODULES)


# Imports


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("posenc_torch", "posenc_jax parity_tests jax jaxlib flax jaxtyping"),
        ("posenc_jax", "posenc_torch parity_tests torch flax jaxtyping"),
        (" ".join(FLAX_MODULES), "posenc_torch parity_tests torch jaxtyping"),
    ],
    ids=["torch", "jax", "flax"],
)
def test_import_works_without(modules, absent):
    program = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({absent.split()}))\n"  # None: not importable
        f"for module in map(importlib.import_module, {modules.split()}):\n"
        "    assert all(hasattr(module, name) for name in module.__all__)\n"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("path", FILES, ids=str)
def test_source_imports_only_its_framework(path):
    allowed = {"numpy", {"posenc_torch": "torch", "posenc_jax": "jax"}[path.parts[0]]}
    if ".".join(path.with_suffix("").parts) in FLAX_MODULES:
        allowed.add("flax")
    tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
    roots = {name.partition(".")[0] for name in imported(tree)}
    assert roots - sys.stdlib_module_names <= allowed


def imported(node: ast.AST) -> Iterator[str]:
    """Names of the modules that are imported at run time, anywhere in the file, relative imports aside."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        yield node.module or ""
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


# Exports


@pytest.mark.parametrize("name", ["posenc_torch", "posenc_jax"])
def test_package_exports_its_modules_names_and_no_others(name):
    package = importlib.import_module(name)
    modules = [module for module in PUBLIC_MODULES if module.startswith(f"{name}.")]
    exported = [
        public
        for module in set(modules) - set(FLAX_MODULES)
        # Implementations of one public function.
        if not module.startswith("posenc_jax.kernels")
        for public in importlib.import_module(module).__all__
    ]
    assert package.__all__ == sorted(exported)
    visible = {
        public
        for public, value in vars(package).items()
        if not (public.startswith("_") or isinstance(value, ModuleType))
    }
    assert visible == set(package.__all__)


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_module_exports_what_it_defines(name):
    module = importlib.import_module(name)
    callables = {
        public: getattr(value, "__module__", "")
        for public, value in vars(module).items()
        if callable(value) and not public.startswith("_")
    }
    private = f"{name.partition('.')[0]}._"  # shared by nnx and linen
    defined = {public for public, home in callables.items() if home == name}
    assert module.__all__ == sorted(module.__all__)
    assert defined <= set(module.__all__)
    for public in module.__all__:
        home = callables[public]
        assert home == name or home.startswith(private), f"{public} is from {home}"


# Metadata


def declared() -> Iterator[tuple[str, str, str, set[str], set[str]]]:
    """Version, Python, licence, dependencies and extras, wherever they are said."""
    if PYPROJECT.is_file():
        project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
        yield (
            project["version"],
            project["requires-python"],
            project["license"],
            set(project["dependencies"]),
            set(project["optional-dependencies"]),
        )
    try:
        installed = metadata("posenc")
    except PackageNotFoundError:
        return
    requirements = installed.get_all("Requires-Dist", [])
    yield (
        installed["Version"],
        installed["Requires-Python"],
        installed["License-Expression"],
        {line for line in requirements if "extra ==" not in line},
        set(installed.get_all("Provides-Extra", [])),
    )


def test_metadata():
    found = list(declared())
    assert found
    for version, python, licence, dependencies, extras in found:
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
        assert version == found[0][0], "reinstall: the installed version is another one"
        assert python == ">=3.11"
        assert licence == "Apache-2.0"
        assert [re.split(r"\W", line)[0] for line in dependencies] == ["numpy"]
        assert extras == {"jax", "flax", "torch", "examples", "test", "dev"}


@pytest.mark.parametrize("package", ["posenc_torch", "posenc_jax", "parity_tests"])
def test_annotations_are_shipped(package):
    assert (CHECKOUT / package / "py.typed").is_file()
