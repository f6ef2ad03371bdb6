"""The README is true: its commands are run in order, its files written, its claims compared."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

import flashcheck
from flashcheck import config
from flashcheck.cli import main

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SEED_OF_BLOCK = re.compile(r"whole run: flashcheck gate (\S+) --seed (\d+)")


@dataclass(frozen=True)
class Block:
    """A fenced block: ```language about, and its lines."""

    language: str
    about: str
    text: str

    @property
    def commands(self) -> list[str]:
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line[:2] == "$ "]

    @property
    def exit_code(self) -> int:
        return int(self.about.removeprefix("exit=") or 0)


def blocks(*languages: str) -> list[Block]:
    found = re.findall(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [Block(*parts) for parts in found if parts[0] in languages]


def environment() -> dict[str, str]:
    """That of a user who activated the virtual environment."""
    ours = ("PYTEST", "MAKE", "MFLAGS", "GITHUB_", "PYTHONPATH", "FLASHCHECK")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, shell=True, cwd=folder, env=environment(), text=True, timeout=300, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def replace_hunk(file: Path, diff: str) -> None:
    """Apply the lines of a diff without context: those with - are replaced by those with +."""
    old, new = (
        "".join(line[1:] for line in diff.splitlines(keepends=True) if line.startswith(sign))
        for sign in "-+"
    )
    text = file.read_text()
    assert text.count(old) == 1, f"the diff does not fit {file.name}"
    file.write_text(text.replace(old, new))


def test_commands(tmp_path: Path) -> None:
    """Every command, in a folder that holds what the README has written so far."""
    ran, quoted = 0, quoted_output()
    assert quoted
    for block in blocks("python", "diff", "console"):
        if block.language == "python":
            (tmp_path / block.about).write_text(block.text)
        elif block.language == "diff":
            replace_hunk(tmp_path / block.about, block.text)
        for command in block.commands if block.language == "console" else ():
            if command.startswith("make "):
                done = shell(f"make -n {command.removeprefix('make ')}", ROOT)
            else:
                done = shell(command, tmp_path)
            assert done.returncode == block.exit_code, f"$ {command}\n{done.stdout[-3000:]}"
            assert "Traceback" not in done.stdout, f"$ {command}\n{done.stdout[-3000:]}"
            if command in quoted:
                said = "\n".join(quoted.pop(command))
                assert without_figures(said) == without_figures(done.stdout.strip("\n")), command
            ran += 1
    assert ran >= 10, "the README's console blocks were not found"
    assert not quoted, "output is quoted of a command that was not run"


def test_languages() -> None:
    """Every fenced block is one of those that are checked here."""
    opened = re.findall(r"^```(\w.*)$", README, re.MULTILINE)
    checked = blocks("python", "diff", "console", "toml", "yaml")
    assert len(opened) == len(checked)
    assert all(block.commands for block in blocks("console"))


def indented(text: str) -> list[str]:
    """From the first indented line to the last."""
    lines = text.splitlines()
    found = [i for i, line in enumerate(lines) if line.startswith("    ")]
    return [line[4:] for line in lines[found[0] : found[-1] + 1]]


def quoted_failure() -> list[str]:
    """The indented block under `What a failure looks like`."""
    return indented(README.split("\n## What a failure looks like\n")[1].split("\n## ")[0])


def quoted_output() -> dict[str, list[str]]:
    """By command, the indented block that follows its console block."""
    found = re.findall(
        r"^```console[^\n]*\n\$ ([^\n]*)\n```\n\n((?:(?:    [^\n]*)?\n)+)", README, re.MULTILINE
    )
    return {command: indented(text) for command, text in found if text.strip()}


def without_figures(text: str) -> str:
    """What a drawn problem decides may differ: counts and shares, not lines of a file."""
    return re.sub(r"(?<![:\w])\d[\d.,]*(e[+-]\d+)?", "#", text)


def without_id(lines: list[str]) -> list[str]:
    """Without what may differ: the id, and on how many problems a cause was confirmed in time."""
    text = re.sub(r"fc-[a-z2-7]{8}", "fc-........", "\n".join(lines))
    text = re.sub(r"on \d+ other problems?", "on others", text)
    return [line.rstrip() for line in text.splitlines()]


def test_failure_is_what_the_gate_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quoted = quoted_failure()
    match = SEED_OF_BLOCK.search("\n".join(quoted))
    assert match is not None
    spec = match[1]
    name = spec.partition(":")[0]
    source = next(b.text for b in blocks("python") if b.about == name)
    (tmp_path / name).write_text(source)
    monkeypatch.chdir(tmp_path)
    result = flashcheck.gate([spec], seed=int(match[2]), isolate=False)
    assert result.exit_code == 1
    assert result.failures
    said = result.failures[0].text.strip("\n").splitlines()
    assert without_id(said) == without_id(quoted)


def test_settings(tmp_path: Path) -> None:
    """Each toml block is a configuration that flashcheck takes, each key a known one."""
    found = blocks("toml")
    assert found
    for number, block in enumerate(found):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "pyproject.toml").write_text(block.text)
        settings = config.load(folder)
        assert settings == tomllib.loads(block.text)["tool"]["flashcheck"]
        assert settings


def options_of(command: str) -> set[str]:
    done = CliRunner().invoke(main, [command, "--help"])
    assert done.exit_code == 0, f"there is no command {command!r}"
    return set(re.findall(r"--[a-z][a-z-]*", done.output))


def commands_in_yaml() -> list[list[str]]:
    lines = re.findall(r"- run: (flashcheck .*)", "".join(b.text for b in blocks("yaml")))
    return [shlex.split(line) for line in lines]


def commands_in_prose() -> list[list[str]]:
    """Inline code that begins with `flashcheck COMMAND`."""
    return [shlex.split(text) for text in re.findall(r"`(flashcheck [a-z][^`]*)`", README)]


@pytest.mark.parametrize("words", commands_in_yaml() + commands_in_prose(), ids=" ".join)
def test_commands_that_are_not_run(words: list[str]) -> None:
    """Their command and options exist."""
    known = options_of(words[1])
    assert {w.partition("=")[0] for w in words[2:] if w.startswith("--")} <= known


def test_yaml_has_a_command() -> None:
    assert commands_in_yaml()


def test_exit_codes() -> None:
    """The table lists the exit codes of the contract."""
    table = README.split("| exit code | meaning |")[1].split("\n\n")[0]
    assert re.findall(r"^\| (\d+) \|", table, re.MULTILINE) == ["0", "1", "2", "3", "130"]


def links() -> list[str]:
    targets = re.findall(r"\]\(([^)#\s]+)", README)
    return sorted({t for t in targets if "://" not in t and not t.startswith("mailto:")})


@pytest.mark.parametrize("target", links())
def test_links(target: str) -> None:
    assert (ROOT / target).exists()


def test_names() -> None:
    """Budgets, make targets and kernels that the prose names exist."""
    for target in re.findall(r"`make ([a-z]+)`", README):
        assert shell(f"make -n {target}", ROOT).returncode == 0
    listed = CliRunner().invoke(main, ["list", "kernels"]).output.split()
    table = README.split("| kernel | what it is |")[1].split("\n\n")[0]
    for name in re.findall(r"^\| `([a-z0-9_]+)", table, re.MULTILINE):
        assert name in listed
