"""pytest: run the properties against a kernel with `pytest ... --flashcheck-kernel TARGET`.

The properties are ordinary Hypothesis tests that take the fixture `kernel`, a Subject: one
kernel in one dtype, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pytest

if TYPE_CHECKING:
    import hypothesis

    from flashcheck.law import Subject

DEFAULT_KERNELS = ("numpy_online",)
DEFAULT_DTYPES = ("float32", "bfloat16")
EXAMPLES = {"smoke": 10, "pr": 100, "nightly": 5000}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("flashcheck", "numerical correctness of attention kernels")
    group.addoption(
        "--flashcheck-kernel", action="append", metavar="TARGET",
        help="kernel to check: a registered name, module:attribute or file.py:attribute; "
        "repeatable",
    )  # fmt: skip
    group.addoption(
        "--flashcheck-dtype", action="append", metavar="D[,D]", help="dtypes to check it in"
    )
    group.addoption("--flashcheck-device", metavar="cpu|cuda[:i]", help="where to run it")
    group.addoption(
        "--flashcheck-budget", default="smoke", metavar="smoke|pr|nightly|N",
        help="problems for each property [smoke: 10]",
    )  # fmt: skip
    group.addoption("--flashcheck-seed", type=int, metavar="N", help="seed of the problems")
    group.addoption(
        "--flashcheck-no-isolate", action="store_true",
        help="run the kernel in pytest's own process, for debuggers and for coverage; a crash "
        "of the kernel ends pytest",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Register Hypothesis profiles only where flashcheck was asked for."""
    budget = config.getoption("--flashcheck-budget")
    try:
        count = EXAMPLES.get(budget) or int(budget)
    except ValueError:
        raise pytest.UsageError(
            f"--flashcheck-budget: {budget!r} is none of {', '.join(EXAMPLES)} or a number"
        ) from None
    config.stash[_COUNT] = count


_COUNT = pytest.StashKey[int]()
_SETTLED: WeakKeyDictionary[Callable[..., None], tuple[int, int | None]] = WeakKeyDictionary()
"""Budget and seed of the properties that were collected."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each kernel and dtype."""
    if "kernel" not in metafunc.fixturenames or not _is_property(metafunc.module):
        return
    config = metafunc.config
    kernels = config.getoption("--flashcheck-kernel") or list(DEFAULT_KERNELS)
    given = config.getoption("--flashcheck-dtype") or [",".join(DEFAULT_DTYPES)]
    dtypes = [d.strip() for item in given for d in item.split(",")]
    pairs = [(k, d) for k in kernels for d in dtypes]
    metafunc.parametrize(
        "kernel", pairs, indirect=True, scope="session", ids=[f"{k}-{d}" for k, d in pairs]
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each property its budget and seed; every field that CI would change is set."""
    properties = [i for i in items if isinstance(i, pytest.Function) and _is_property(i.module)]
    if not properties:
        return
    for item in properties:
        # By this mark Hypothesis tells what it saved for one kernel from another's.
        pair = item.callspec.params["kernel"]
        item.add_marker(pytest.mark.parametrize("kernel", [pair], indirect=True))
    import hypothesis

    seed = config.getoption("--flashcheck-seed")
    chosen = (config.stash[_COUNT], seed)
    for function in {item.obj for item in properties if hypothesis.is_hypothesis_test(item.obj)}:
        # HypoFuzz collects twice in one process; Hypothesis decorates a function but once.
        if _SETTLED.get(function) == chosen:
            continue
        _SETTLED[function] = chosen
        _settings(config)(function)
        if seed is not None:
            hypothesis.seed(seed)(function)


def _settings(config: pytest.Config) -> hypothesis.settings:
    import hypothesis
    from hypothesis import HealthCheck, Phase

    # Without Phase.explain, which names lines of flashcheck itself. What a seed draws depends
    # on nothing that an earlier run saved.
    phases = [Phase.explicit, Phase.generate, Phase.shrink]
    if config.getoption("--flashcheck-seed") is None:
        phases.append(Phase.reuse)
    # HypoFuzz takes the tests that keep Hypothesis's database and this one health check.
    return hypothesis.settings(
        max_examples=config.stash[_COUNT],
        deadline=None,
        derandomize=False,
        phases=phases,
        suppress_health_check=set(HealthCheck) - {HealthCheck.nested_given},
    )


# In the repository the properties lie beside the package, in an installed copy inside it.
_HERE = Path(__file__).resolve().parent
_FOLDERS = (_HERE / "properties", _HERE.parent / "properties")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect the properties, whose files are named after laws and not test_*.py."""
    if file_path.suffix != ".py" or file_path.name.startswith(("_", "test_")):
        return None
    if file_path.parent not in _FOLDERS or parent.session.isinitpath(file_path):
        return None
    return pytest.Module.from_parent(parent, path=file_path)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A clone has flashcheck's own tests below its properties: no user's kernel needs them."""
    own = bool(config.getoption("--flashcheck-kernel")) and collection_path.name == "selftest"
    return True if own and collection_path.parent in _FOLDERS else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Skip a law that is about an option that the kernel does not take."""
    subject = pyfuncitem.funcargs.get("kernel")
    if subject is None or not _is_property(pyfuncitem.module):
        return
    from flashcheck.law import Law, Subject

    for law in vars(pyfuncitem.module).values():
        if isinstance(law, Law) and isinstance(subject, Subject) and not law.possible(subject):
            pytest.skip(f"{law.name} is about what {subject.target.name} does not take")


def _is_property(module: Any) -> bool:
    return Path(module.__file__ or "").resolve().parent in _FOLDERS


@pytest.fixture(scope="session")
def kernel(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """A Subject: the kernel named on the command line, in one dtype, ready to be checked."""
    from flashcheck.kernel import TargetError
    from flashcheck.law import Subject
    from flashcheck.probe import probe
    from flashcheck.worker import InProcess, Worker

    target, dtype = request.param
    home = InProcess if request.config.getoption("--flashcheck-no-isolate") else Worker
    with home(target, request.config.getoption("--flashcheck-device")) as runner:
        refusal = ""
        try:
            found = runner.start()
            probed = probe(runner, found, (dtype,))
        except TargetError as error:
            refusal = str(error)
        if refusal:
            # Outside of the handler: pytest would print the exception in flight too.
            pytest.fail(refusal, pytrace=False)
        if dtype not in probed.spaces:
            pytest.skip(f"{target} refuses {dtype}: {probed.refused[0][1]}")
        yield Subject(runner, found, probed.spaces[dtype], runner.device)


@pytest.fixture(scope="session")
def run_machine(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], None]:
    """Runs a Hypothesis state machine, made by a function, with the budget and seed of the run."""
    from hypothesis import seed
    from hypothesis.stateful import run_state_machine_as_test

    chosen = request.config.getoption("--flashcheck-seed")

    def run(make: Callable[[], Any]) -> None:
        made: Any = make if chosen is None else seed(chosen)(make)
        run_state_machine_as_test(made, settings=_settings(request.config))

    return run
