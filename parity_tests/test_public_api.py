"""One public surface: the two packages differ in their frameworks and in nothing else.

Names, signatures, fields, docstrings and the order of the helpers are compared as text,
after the differences that are meant (an array's type, the order of its axes) are
written alike. Every other difference needs a row, with a reason, in a table below; a
row that is no longer needed fails too.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import posenc_jax
import posenc_torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

PACKAGES = {"torch": posenc_torch, "jax": posenc_jax}
FOLDERS = {name: Path(p.__file__).parent for name, p in PACKAGES.items()}

# Modules of one package, with the reason that the other has no file of this name.
ONE_SIDED_MODULES = {
    "modules": "torch has one module system, at top level",
    "nnx": "JAX has two module systems, each in a file of its own",
    "linen": "JAX has two module systems, each in a file of its own",
    "_flax_attention": "what the two module systems share",
    "ring": "JAX has one way across devices",
}
MODULE_CLASSES = {
    "AlibiPositionEmbedding",
    "LearnedPositionalEncoding",
    "RotaryPositionEmbedding",
    "SinusoidalPositionalEncoding",
}
# What only JAX exports, with the reason.
ONLY_JAX = {"ring_attention": "torch has context parallelism of its own"}
# (function, parameter): reason that it exists on one side only.
ONE_SIDED_PARAMETERS = {
    ("init_position_table", "key"): "JAX draws from a key, passed first",
    ("init_position_table", "generator"): "torch draws from a state, by keyword",
}
# (file, definition): reason that it exists on one side only.
ONE_SIDED_DEFINITIONS = {
    ("_checks", "is_floating"): "a method of a torch tensor",
    ("rope", "_rotate_by_matrix"): "a TPU swaps by its matrix unit",
    ("positions", "_check_end"): "without x64, JAX wraps at 2 ** 31",
    ("rope", "_computed_once"): "XLA on a CPU would compute a table for every head",
    (
        "attention",
        "_checked",
    ): "ring attention, which JAX has, takes the same arguments",
    (
        "_scores",
        "_broadcast",
    ): "what is known is NumPy's, and must not be multiplied there",
}
# (object, section or argument): reason that the sentences differ.
DIFFERENT_TEXTS = {
    ("alibi_slopes", "Returns"): "a NumPy constant in JAX, a tensor in torch",
    ("apply_rope", "Returns"): "what a TPU does with inf and NaN",
    ("dot_product_attention", "implementation"): "torch has the reference alone",
    ("grid_positions", "Returns"): "a NumPy constant in JAX, a tensor in torch",
    ("init_position_table", "key"): "JAX only",
    ("init_position_table", "generator"): "torch only",
    ("learned_position_encoding", "out_of_range"): "traced, or inside torch.compile",
    ("patch_centres", "Returns"): "a NumPy constant in JAX, a tensor in torch",
    ("permute_rope_weights", "weight"): "Dense holds [in, out], Linear [out, in]",
    ("position_range", "offset"): "only JAX traces it",
    ("shard_positions", "shard"): "only JAX traces it",
}


# Files without an array in them.
SAME_TEXT = ("_hf", "_hf_models", "_presets", "_progression", "_resize", "rope_axes")


def stems(package: str) -> set[str]:
    return {path.stem for path in FOLDERS[package].glob("*.py")}


# What the modules share has a test file of its own, with them.
TWINS = sorted(stems("torch") & stems("jax") - {"__init__", "_modules"})
PUBLIC_TWINS = [name for name in TWINS if not name.startswith("_")]
SHARED = sorted(set(posenc_torch.__all__) & set(posenc_jax.__all__))
FUNCTIONS = [n for n in SHARED if not inspect.isclass(getattr(posenc_torch, n))]
CLASSES = [n for n in SHARED if inspect.isclass(getattr(posenc_torch, n))]
METHODS = [
    f"{name}.{method}"
    for name in CLASSES
    for method, value in vars(getattr(posenc_torch, name)).items()
    if not method.startswith("_")
    and (inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod)))
]


def find(package: str, dotted: str) -> Any:
    found: Any = PACKAGES[package]
    for name in dotted.split("."):
        found = getattr(found, name)
    return found


def module(package: str, name: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGES[package].__name__}.{name}")


def syntax(package: str, name: str) -> ast.Module:
    return ast.parse((FOLDERS[package] / f"{name}.py").read_text("utf-8"))


def definitions(package: str, name: str) -> list[str]:
    """Every name that a file defines, in its order."""
    names = []
    for node in syntax(package, name).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names += [t.id for t in targets if isinstance(t, ast.Name)]
    return names


def alike(text: str) -> str:
    """Text with an array's type and the order of its axes written one way.

    Axes are sorted inside every bracket and every quoted shape, so a wrong order is not
    seen here: errors and values, in the other files, see it.
    """
    text = text.replace("Tensor", "Array").replace("np.ndarray | Array", "Array")
    text = text.replace("np.ndarray", "Array")
    text = re.sub(r"torch\.(float\d+)|jnp\.(float\d+)", r"\1\2", text)
    text = re.sub(r"\[([^\[\]]*)\]", lambda m: f"[{ordered(m[1], ', ')}]", text)
    return re.sub(r"'([^']*)'", lambda m: f"'{ordered(m[1], ' ')}'", text)


def ordered(text: str, separator: str) -> str:
    return separator.join(sorted(text.strip().split(separator)))


def default_name(value: Any) -> Any:
    """A default, with a dtype under its name in both frameworks."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    is_class = inspect.isclass(value) and value is not inspect.Parameter.empty
    return np.dtype(value).name if is_class else value


def parameters(function: Callable, name: str) -> list[tuple[Any, ...]]:
    """Name, kind, default and annotation of each parameter that both sides have."""
    return [
        (p.name, p.kind.name, default_name(p.default), alike(str(p.annotation)))
        for p in inspect.signature(function).parameters.values()
        if (name, p.name) not in ONE_SIDED_PARAMETERS
    ]


def sections(documented: object) -> dict[str, str]:
    """A docstring by section; text before the first one is "summary"."""
    found, current = {"summary": ""}, "summary"
    for line in (inspect.getdoc(documented) or "").splitlines():
        header = re.fullmatch(r"([A-Z][a-z]+):", line)
        if header:
            current = header[1]
            found[current] = ""
        else:
            found[current] += line + "\n"
    return found


def arguments(text: str) -> dict[str, str]:
    """The entries of an Args section: {"q, k": "Queries and keys; ..."}."""
    entries = re.findall(r"^ {4}([\w, ]+): (.*(?:\n {8}.*)*)", text, re.M)
    return dict(entries)


def entries(dotted: str, package: str) -> dict[str, str]:
    """Sections and arguments of a docstring, each as one text, written alike."""
    found = sections(find(package, dotted))
    found |= arguments(found.pop("Args", ""))
    return {name: alike(text) for name, text in found.items()}


def documented_names(dotted: str, package: str) -> list[str]:
    named = arguments(sections(find(package, dotted)).get("Args", ""))
    return [name for entry in named for name in entry.split(", ")]


def test_packages_are_not_empty():
    assert {"rope", "sinusoidal", "learned", "alibi", "attention"} <= set(TWINS)
    assert len(FUNCTIONS) >= 20
    assert {"RopeConfig", "Scaling", "YarnScaling"} <= set(CLASSES)
    assert {"RopeConfig.inv_freq", "RopeConfig.from_hf"} <= set(METHODS)


def test_packages_have_the_same_modules():
    assert stems("torch") ^ stems("jax") <= set(ONE_SIDED_MODULES)


def test_packages_export_the_same_names():
    assert set(posenc_torch.__all__) - set(posenc_jax.__all__) == MODULE_CLASSES
    assert set(posenc_jax.__all__) - set(posenc_torch.__all__) == set(ONLY_JAX)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_exports_what_its_modules_export(package):
    exported = {name for twin in PUBLIC_TWINS for name in module(package, twin).__all__}
    one_sided = MODULE_CLASSES | set(ONLY_JAX)
    assert set(PACKAGES[package].__all__) - one_sided == exported


@pytest.mark.parametrize("package", PACKAGES)
def test_package_all_is_sorted_and_importable(package):
    exported = PACKAGES[package].__all__
    assert exported == sorted(set(exported))
    assert all(callable(getattr(PACKAGES[package], name)) for name in exported)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("twin", PUBLIC_TWINS)
def test_module_all_is_sorted_and_complete(twin, package):
    public = {
        node.name
        for node in syntax(package, twin).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and not node.name.startswith("_")
    }
    exported = module(package, twin).__all__
    assert exported == sorted(public)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_init_only_imports(package):
    kinds = {type(node) for node in syntax(package, "__init__").body}
    assert kinds == {ast.Expr, ast.ImportFrom, ast.Assign}


@pytest.mark.parametrize("twin", TWINS)
def test_module_defines_the_same_names_in_the_same_order(twin):
    torch_names, jax_names = (
        [
            n
            for n in definitions(package, twin)
            if (twin, n) not in ONE_SIDED_DEFINITIONS
        ]
        for package in PACKAGES
    )
    assert torch_names == jax_names


def test_module_definitions_on_one_side_are_listed():
    differing = {
        (twin, name)
        for twin in TWINS
        for name in set(definitions("torch", twin)) ^ set(definitions("jax", twin))
    }
    assert differing == set(ONE_SIDED_DEFINITIONS)


@pytest.mark.parametrize("twin", SAME_TEXT)
def test_module_is_the_same_file_in_both(twin):
    texts = [(FOLDERS[package] / f"{twin}.py").read_bytes() for package in PACKAGES]
    assert texts[0] == texts[1]
    assert all(word not in texts[0] for word in (b"import torch", b"import jax"))


def test_modules_of_the_same_text_are_listed():
    """Any other file that is the same in both belongs to them, so that it stays so."""
    same = {
        twin
        for twin in TWINS
        if len({(FOLDERS[p] / f"{twin}.py").read_bytes() for p in PACKAGES}) == 1
    }
    assert same == set(SAME_TEXT)


@pytest.mark.parametrize("twin", PUBLIC_TWINS)
def test_module_docstring_matches(twin):
    torch_text, jax_text = (module(p, twin).__doc__ for p in PACKAGES)
    assert alike(torch_text) == alike(jax_text)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("other", PACKAGES)
def test_package_never_imports_the_other_framework(package, other):
    text = "\n".join(p.read_text("utf-8") for p in FOLDERS[package].rglob("*.py"))
    names = {"torch": r"posenc_torch|torch", "jax": r"posenc_jax|jax|flax"}[other]
    imported = re.findall(rf"^\s*(?:from|import) (?:{names})\b", text, re.M)
    assert bool(imported) == (package == other)


@pytest.mark.parametrize("name", FUNCTIONS + METHODS)
def test_function_parameters_match(name):
    torch_side, jax_side = (parameters(find(p, name), name) for p in PACKAGES)
    assert torch_side == jax_side


@pytest.mark.parametrize("name", FUNCTIONS + METHODS)
def test_function_return_annotation_matches(name):
    torch_side, jax_side = (
        alike(str(inspect.signature(find(p, name)).return_annotation)) for p in PACKAGES
    )
    assert torch_side == jax_side
    assert "Signature.empty" not in torch_side


def test_function_parameters_on_one_side_are_listed():
    differing = {
        (name, parameter)
        for name in FUNCTIONS
        for parameter in set(inspect.signature(find("torch", name)).parameters)
        ^ set(inspect.signature(find("jax", name)).parameters)
    }
    assert differing == set(ONE_SIDED_PARAMETERS)


@pytest.mark.parametrize("name", CLASSES)
def test_class_fields_match(name):
    torch_side, jax_side = (
        [
            (f.name, alike(str(f.type)), f.default, f.kw_only, f.compare, f.init)
            for f in dataclasses.fields(find(p, name))
        ]
        for p in PACKAGES
    )
    assert torch_side == jax_side


@pytest.mark.parametrize("name", CLASSES)
def test_class_members_match(name):
    torch_side, jax_side = (
        # Copying an instance leaves a note of its slots on the class.
        [member for member in vars(find(p, name)) if member != "__slotnames__"]
        for p in PACKAGES
    )
    assert torch_side == jax_side


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", CLASSES)
def test_class_is_frozen(name, package):
    made = find(package, name)
    assert made.__dataclass_params__.frozen
    assert made.__dataclass_params__.eq


@pytest.mark.parametrize("package", PACKAGES)
def test_rope_config_is_hashed_by_value(package):
    config = PACKAGES[package].RopeConfig
    one, same = config(64, base=500_000.0), config(64, rotary_dim=64, base=500_000.0)
    assert {one: "found"}[same] == "found"
    assert one != config(64)


@pytest.mark.parametrize("package", PACKAGES)
def test_rope_config_fields_cannot_be_set(package):
    config = PACKAGES[package].RopeConfig(64)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.base = 1.0


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_docstring_has_its_sections_in_order(name, package):
    found = list(sections(find(package, name)))
    wanted = ["summary", "Args", "Returns", "Raises", "Source", "Example"]
    assert found == [section for section in wanted if section in found]
    assert {"summary", "Args", "Returns", "Raises"} <= set(found)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", METHODS)
def test_method_docstring_has_sections_for_what_it_takes_and_gives(name, package):
    takes = bool(parameters(find(package, name), name)[1:])
    found = set(sections(find(package, name)))
    assert "Returns" in found
    assert ("Args" in found) == takes


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_docstring_names_every_parameter_in_order(name, package):
    expected = list(inspect.signature(find(package, name)).parameters)
    assert documented_names(name, package) == expected


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", METHODS)
def test_method_docstring_names_every_parameter_in_order(name, package):
    expected = list(inspect.signature(find(package, name)).parameters)
    assert documented_names(name, package) == [p for p in expected if p != "self"]


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", CLASSES)
def test_class_docstring_names_every_field_in_order(name, package):
    expected = [field.name for field in dataclasses.fields(find(package, name))]
    assert documented_names(name, package) == expected
    # What takes nothing has nothing to refuse.
    assert ("Raises" in sections(find(package, name))) == bool(expected)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", FUNCTIONS + CLASSES + METHODS)
def test_docstring_opens_with_one_sentence(name, package):
    first, second, *_ = (inspect.getdoc(find(package, name)) + "\n\n").splitlines()
    assert first[0].isupper()
    assert first.endswith(".")
    assert second == ""


@pytest.mark.parametrize("name", FUNCTIONS + CLASSES + METHODS)
def test_docstring_texts_match(name):
    torch_side, jax_side = (
        {
            entry: text
            for entry, text in entries(name, package).items()
            if (name, entry) not in DIFFERENT_TEXTS
        }
        for package in PACKAGES
    )
    assert torch_side == jax_side


def test_docstring_texts_that_differ_are_listed():
    differing = {
        (name, entry)
        for name in FUNCTIONS + CLASSES + METHODS
        for entry in entries(name, "torch").keys() | entries(name, "jax").keys()
        if entries(name, "torch").get(entry) != entries(name, "jax").get(entry)
    }
    assert differing == set(DIFFERENT_TEXTS)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("twin", TWINS)
def test_module_holds_no_state(twin, package):
    """Constants are tuples, strings, numbers or types: nothing that a call can fill."""
    made = module(package, twin)
    names = [n for n in definitions(package, twin) if not n.startswith("__")]
    mutable = [n for n in names if isinstance(getattr(made, n), (dict, list, set))]
    assert mutable == []


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_no_cache_decorators(package):
    text = "\n".join(p.read_text("utf-8") for p in FOLDERS[package].rglob("*.py"))
    assert (
        re.findall(r"lru_cache|functools\.cache|^@cache|^\s*global ", text, re.M) == []
    )
