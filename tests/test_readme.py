"""What README and docs tell users to paste: Python snippets run, and commands and options exist."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import customconv
from customconv import compiler, run

ROOT = Path(__file__).resolve().parent.parent
WITH_PYTHON = [
    "README.md", "docs/compile.md", "docs/routing.md", "docs/how/batch_invariance.md",
    "docs/how/tuning.md",
]  # fmt: skip
DOCUMENTS = [
    str(path.relative_to(ROOT))
    for path in sorted(
        [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/how/*.md"),
         *ROOT.glob("examples/*.md")]
    )
]  # fmt: skip


class Snippet(NamedTuple):
    """A block of code: where it begins, and its text."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def needs_cuda(self) -> bool:
        return 'device="cuda"' in self.text


def snippets(language: str, files: list[str]) -> Iterator[Snippet]:
    """The blocks of a language in these files."""
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8")
        for found in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, found.start(1)) + 1
            yield Snippet(file, line, found.group(1))


PYTHON = list(snippets("python", WITH_PYTHON))
SHELL = list(snippets("sh", DOCUMENTS))
ON_CPU = [each for each in PYTHON if not each.needs_cuda]


class Pipeline:
    """Has the parts of a diffusers pipeline that a snippet uses, with a convolution in each."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.unet: nn.Module = nn.Conv2d(4, 4, 3, padding=1, dtype=dtype)
        self.vae = nn.Module()
        self.vae.decoder = nn.ConvTranspose2d(4, 3, 8, stride=8, dtype=dtype)
        self.vae.decode = self.vae.decoder.forward

    @classmethod
    def from_pretrained(cls, name: str, torch_dtype: torch.dtype) -> Pipeline:
        assert "/" in name
        return cls(torch_dtype)

    def to(self, device: str) -> Pipeline:
        self.unet.to(device)
        self.vae.to(device)
        return self

    @torch.no_grad()
    def __call__(self, prompt: str) -> SimpleNamespace:
        weight: Tensor = self.vae.decoder.weight
        latents = torch.zeros(1, 4, 8, 8, dtype=weight.dtype, device=weight.device)
        return SimpleNamespace(images=list(self.vae.decode(self.unet(latents))))


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Somebody who pastes a snippet: in a folder of theirs, with the package installed.

    What Inductor makes of a graph is left out, because it takes long; tests/compiler has it.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("customconv.measure.BUDGET_S", 0.0)  # the fewest turns of tuning
    diffusers = ModuleType("diffusers")
    diffusers.StableDiffusionPipeline = Pipeline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "diffusers", diffusers)
    compile_fx = importlib.import_module("torch._inductor.compile_fx")
    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, _, **options: graph.forward)
    torch._dynamo.reset()
    if "customconv" not in torch._dynamo.list_backends(None):  # as the entry point of a wheel does
        torch._dynamo.register_backend(compiler.backend, "customconv")
    yield
    torch._dynamo.reset()
    while customconv.is_enabled():
        customconv.disable()
    customconv.clear_plans()


def paste(snippet: Snippet) -> None:
    if "torchvision" in snippet.text:
        pytest.importorskip("torchvision")
    exec(compile(snippet.text, str(snippet), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("snippet", ON_CPU, ids=str)
def test_a_snippet_runs_on_a_cpu(snippet, reader, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    paste(snippet)


@pytest.mark.gpu
@pytest.mark.parametrize("snippet", PYTHON, ids=str)
def test_a_snippet_runs_on_a_gpu(snippet, reader):
    paste(snippet)


def test_snippets_are_found_and_most_run_on_a_cpu():
    in_readme = [each for each in PYTHON if each.file == "README.md"]
    assert len(in_readme) >= 10
    assert len(ON_CPU) > 2 * len(PYTHON) / 3


def commands(snippet: Snippet) -> Iterator[list[str]]:
    """The words of each command in a block, without comments and settings of the environment."""
    for line in snippet.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if words:
            yield words


LISTED = [(each, words) for each in SHELL for words in commands(each)]


def of_module(words: list[str]) -> tuple[str, list[str]] | None:
    """The module that a command runs, and its arguments; None for other commands."""
    for index, (word, following) in enumerate(itertools.pairwise(words)):
        if word == "-m" and following.partition(".")[0] in ("customconv", "bench"):
            return following, words[index + 2 :]
    return None


MODULES = [
    pytest.param(*found, id=f"{where}: {' '.join(words)}"[:90])
    for where, words in LISTED
    if (found := of_module(words))
]


@pytest.mark.parametrize(("module", "arguments"), MODULES)
def test_a_command_and_its_options_exist(module, arguments, capsys):
    if module == "bench":
        commands = importlib.import_module("bench.__main__").COMMANDS
        assert arguments[0] in commands
        parser = argparse.ArgumentParser()
        importlib.import_module(f"bench.{commands[arguments[0]][0]}").add_arguments(parser)
        parser.parse_args(arguments[1:])
    elif module == "customconv" and arguments[0] in ("run", "tune"):
        with pytest.raises(SystemExit):
            run.main(["--help"], arguments[0])
        assert set(own_options(arguments[1:])) <= set(capsys.readouterr().out.split())
    elif module == "customconv":
        assert arguments in (["demo"], ["info"])
    else:
        assert importlib.util.find_spec(module)


def own_options(arguments: list[str]) -> Iterator[str]:
    """The options in front of the program."""
    skipped = False
    for word in arguments:
        if word.startswith("--"):
            yield word
            skipped = word == "--save"
        elif not skipped:
            return
        else:
            skipped = False


def test_make_has_the_targets_that_are_named():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for _, words in LISTED if words[0] == "make" for word in words[1:]}
    named = {word for word in named if "=" not in word and word != "#"}
    assert {"demo", "test"} <= named <= targets


def test_scripts_that_commands_name_exist():
    folders = ("tests/", "tools/", "bench/", "examples/", ".ci/")
    named = {word for _, words in LISTED for word in words if word.startswith(folders)}
    assert len(named) > 3
    assert [path for path in named if not (ROOT / path).exists()] == []
