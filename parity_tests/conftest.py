"""How a run is set up: levels, strictness, and a compilation cache, the same from a checkout and from an install."""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections import Counter
from collections.abc import Iterator

import jax
import pytest
import torch

import posenc_jax
import posenc_torch

from .instrument import DTYPES, Pair, Report, causes, run
from .schemes import pairs

LEVELS = ("quick", "default", "full")
LONG, QUICK_SHARE = 8, 12
HALVES = ("bfloat16", "float16")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--level",
        choices=LEVELS,
        default=os.environ.get("PARITY_LEVEL", "default"),
        help="quick: about a minute, for a working loop; full: ten drawings of every "
        "case, every dtype with and without jit, every feature of attention by the "
        "kernels of others, and TPU v6e beside v5e. The environment variable "
        "PARITY_LEVEL sets it too, for `--pyargs`.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("level") not in LEVELS:
        raise pytest.UsageError(f"PARITY_LEVEL must be one of {', '.join(LEVELS)}")
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line("markers", "full: runs at the level `full` alone")
    jax.config.update("jax_default_matmul_precision", "highest")
    torch.set_float32_matmul_precision("highest")
    # Tensors this small are done before a second thread is awake; on a busy machine it costs a hundredfold.
    torch.set_num_threads(1)
    # Nor is NumPy's, which the workers that pytest starts read as they load it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Around every phase of a test it attaches handlers to torch's fifty loggers: a millisecond a test, and none reads a
    # log.
    config.pluginmanager.set_blocked("logging-plugin")
    # For every error that passes through JAX it looks up the file of every frame, to hide its own.
    jax.config.update("jax_traceback_filtering", "off")
    # Compiling is most of a first run; later ones, and workers beside each other, read it back.
    if hasattr(config, "cache"):
        jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture
def compiled_quickly() -> Iterator[None]:
    """For tests of what a call does, not of how it is rounded: their programs run once, and compiling is most of it."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def first_cause_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of a cause: whether others explain a fault too is looked for in vain there, for seconds."""
    monkeypatch.setattr(causes, "MORE_SECONDS", 0.3)


@dataclasses.dataclass(frozen=True)
class Case:
    """One run of one pair."""

    pair: Pair
    dtype: str
    profile: str
    seed: int
    jit: bool

    def __str__(self) -> str:
        mode = "jit" if self.jit else "eager"
        return f"{self.pair.name}-{self.dtype}-{mode}-{self.profile}-{self.seed}"

    def run(self) -> Report:
        return run(
            self.pair,
            dtype=self.dtype,
            profile=self.profile,
            seed=self.seed,
            jit=self.jit,
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `parity_case` runs on every case of the pairs that its module names in `PARITY`."""
    if "parity_case" in metafunc.fixturenames:
        level = metafunc.config.getoption("level")
        cases = list(_cases(metafunc.module.PARITY, level))
        if not cases:
            raise pytest.UsageError(f"no pair is named {metafunc.module.PARITY}")
        metafunc.parametrize("parity_case", cases, ids=str)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """At the quick level, of long parametrisations one case in QUICK_SHARE, always the same ones."""
    level = config.getoption("level")
    sizes = Counter(_function(item) for item in items)
    dropped = [
        item
        for item in items
        if (level != "full" and item.get_closest_marker("full"))
        or (
            level == "quick"
            and sizes[_function(item)] > LONG
            and zlib.crc32(item.name.encode()) % QUICK_SHARE
            and "parity_case" not in getattr(item, "fixturenames", ())
        )
    ]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in set(dropped)]


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _cases(prefixes: tuple[str, ...], level: str) -> Iterator[Case]:
    chosen = [
        pair
        for name, pair in pairs(posenc_jax, posenc_torch).items()
        if name.startswith(prefixes)
    ]
    for pair in chosen:
        if level == "quick":
            # Another dtype and profile for every pair, the same ones in every run.
            lot = zlib.crc32(pair.name.encode())
            dtype = ("bfloat16", "float16", "float32")[lot % 3]
            yield Case(pair, "float64", _far(pair), 0, jit=True)
            yield Case(
                pair, dtype, pair.profiles[lot % len(pair.profiles)], 0, jit=True
            )
            continue
        if level == "default":
            yield from _default(pair)
            continue
        for dtype in DTYPES:
            yield Case(pair, dtype, _far(pair), 0, jit=False)
            for seed in range(10):
                for profile in pair.profiles:
                    yield Case(pair, dtype, profile, seed, jit=True)


def _default(pair: Pair) -> Iterator[Case]:
    """Every pair in one of the two half precisions."""
    half = HALVES[zlib.crc32(pair.name.encode()) % 2]
    for dtype in ("float64", "float32", half):
        for profile in pair.profiles:
            yield Case(pair, dtype, profile, 0, jit=True)


def _far(pair: Pair) -> str:
    """The profile that shows most faults, if the pair has it."""
    return "sparse" if "sparse" in pair.profiles else pair.profiles[0]
