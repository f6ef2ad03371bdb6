"""What an installed copy holds, and that its command works outside this repository.

The list of packages in pyproject.toml is explicit, so a forgotten one builds without a word
and is missing. The new environment borrows the libraries of this one through a .pth line:
.pth files found there are not read again, so the editable install of flashcheck stays out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
MOUNTED = {
    "flashcheck": "flashcheck",
    "kernels": "flashcheck/kernels",
    "properties": "flashcheck/properties",
}
SOURCES = (*MOUNTED, "pyproject.toml", "README.md", "LICENSE")

KERNEL = """
    def attention(query, key, value):
        keys = key.shape[-2]{drop}
        scores = query.double() @ key[..., :keys, :].double().mT
        weights = (scores / query.shape[-1] ** 0.5).softmax(-1)
        return (weights @ value[..., :keys, :].double()).to(query.dtype)
"""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a user does who never saw this repository."""
    environment = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL"))
    }
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: setuptools leaves a build/ that a later build picks up."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps")
    built = run(*pip, "--no-build-isolation", "--no-index", "--wheel-dir", folder, ".", cwd=source)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_only_import_name_is_flashcheck(names: set[str], wheel: Path) -> None:
    metadata = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    assert {name.split("/")[0] for name in names} == {"flashcheck", metadata}


def test_every_module_is_inside_and_no_self_test(names: set[str]) -> None:
    expected = {
        f"{mounted}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, mounted in MOUNTED.items()
        for path in (ROOT / folder).rglob("*.py")
        if "selftest" not in path.parts
    }
    assert {name for name in names if name.endswith(".py")} == expected


def test_data_files_are_inside(names: set[str]) -> None:
    regressions = {
        f"flashcheck/properties/regressions/{path.name}"
        for path in (ROOT / "properties" / "regressions").glob("*")
        if path.suffix in (".json", ".safetensors")
    }
    data = {name for name in names if not name.endswith(".py") and ".dist-info/" not in name}
    files = ("py.typed", "reporting/schema.json", "kernels/faults/witnesses.jsonl")
    assert data == {f"flashcheck/{name}" for name in files} | regressions


@dataclass(frozen=True)
class Installed:
    """A new environment that holds the wheel, and an empty folder to work in."""

    prefix: Path
    cwd: Path

    def run(self, command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return run(self.prefix / "bin" / command, *arguments, cwd=self.cwd)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    environment = Installed(folder / "venv", folder / "work")
    environment.cwd.mkdir()
    venv.create(environment.prefix, symlinks=True, with_pip=False)
    python = environment.prefix / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    done = run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (site_packages,) = environment.prefix.glob("lib/python*/site-packages")
    (site_packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


def test_installed_copy_is_the_one_imported(installed: Installed) -> None:
    code = (
        "import flashcheck, flashcheck.kernels, flashcheck.properties, importlib.util, torch\n"
        "print(flashcheck.__file__, flashcheck.kernels.__file__, flashcheck.properties.__file__)\n"
        "print(importlib.util.find_spec('flashcheck.properties.selftest'))"
    )
    shown = installed.run("python", "-c", code)
    assert shown.returncode == 0, shown.stderr
    files, selftest = shown.stdout.splitlines()
    assert all(Path(file).is_relative_to(installed.prefix) for file in files.split())
    assert selftest == "None"


@pytest.mark.parametrize(
    ("drop", "expected"),
    [("", 0), (" // 16 * 16 or key.shape[-2]", 1)],
    ids=["correct", "last_block_dropped"],
)
def test_gates_a_kernel_outside_the_repository(
    installed: Installed, drop: str, expected: int
) -> None:
    file = installed.cwd / f"user_kernel_{expected}.py"
    file.write_text(textwrap.dedent(KERNEL.format(drop=drop)))
    examples = installed.cwd / f"examples_{expected}"
    options = ("--dtype", "float32", "--budget", "smoke", "--seed", "0", "--examples", examples)
    gate = installed.run("flashcheck", "gate", f"{file}:attention", *options)
    assert gate.returncode == expected, gate.stdout + gate.stderr
    # A traceback exits with 1 too; a finding leaves an example.
    assert bool(list(examples.glob("*.json"))) == (expected == 1), gate.stdout + gate.stderr
