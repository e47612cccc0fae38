"""Makes the one wheel that serves every PyTorch and every Python, or parts of it.

    python tools/make_wheel.py wheel --torch 2.9.1 2.14.1 --python python3.10 python3.13
    python tools/make_wheel.py operators --torch 2.9.1 --out parts
    python tools/make_wheel.py wheel --python python3.10 --parts parts

It is the wheel of this environment, with the operators for more versions of PyTorch, compiled from
the headers in their wheels, and with the module for more Pythons. Operators and kernels for other
architectures may have been built elsewhere (``--parts``). It prints the size of each part.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import build_config as config

HEADERS = config.ROOT / "build/torch-headers"
MIB = 1 << 20


def run(*command: str | Path, **settings: Any) -> str:
    """Runs a command; what it prints."""
    words = [str(word) for word in command]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, **settings)
    return str(done.stdout)


def own_wheel(folder: Path) -> Path:
    """Builds the wheel of this environment."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, config.ROOT)
    (wheel,) = folder.glob("customconv-*.whl")
    return wheel


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpacks a wheel; the folder that it fills."""
    run(sys.executable, "-m", "wheel", "unpack", "--dest", folder, wheel)
    (unpacked,) = folder.iterdir()
    return unpacked


def torch_headers(release: str) -> Path:
    """The headers of a PyTorch: the installed one, or from its wheel on PyPI."""
    import torch

    if torch.__version__.partition("+")[0] == release:
        return Path(torch.__file__).parent / "include"
    folder = HEADERS / release
    if not (folder / "torch/include").exists():
        HEADERS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=HEADERS) as downloaded:
            run(
                sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--quiet",
                "--dest", downloaded, f"torch=={release}",
            )  # fmt: skip
            (wheel,) = Path(downloaded).glob("torch-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                wanted = [n for n in archive.namelist() if n.startswith("torch/include/")]
                archive.extractall(Path(downloaded, release), wanted)
            Path(downloaded, release).rename(folder)  # never half of them
    return folder / "torch/include"


def cuda_headers() -> tuple[Path, ...]:
    """Folders with headers of CUDA: which version does not matter to the operators."""
    import torch

    if torch.version.cuda is None:
        raise config.ConfigError(
            "this environment has no PyTorch with CUDA, whose headers it needs"
        )
    found: tuple[Path, ...] = config.operators.headers_of_cuda(torch.version.cuda)
    return found


def add_operators(folder: Path, release: str, compiler: Sequence[str]) -> None:
    """Compiles the operators for a version of PyTorch, with CUDA and without."""
    minor = config.operators.torch_minor(release)
    if minor is None:
        raise config.ConfigError(f"{release!r} is no version of PyTorch")
    operators = config.operators.Operators(
        csrc=config.ROOT / "csrc",
        build=config.hash_of_interface(),
        minor=minor,
        torch_include=torch_headers(release),
        cuda_include=cuda_headers(),
    )
    jobs = config.operators.jobs(os.environ)
    operators.compile(folder, [True, False], compiler, jobs)


def add_module(package: Path, python: str, include: Path, compiler: Sequence[str]) -> None:
    """Compiles the module for another Python; PyTorch's headers bring pybind11."""
    ask = "import sysconfig as s; print(s.get_path('include'), s.get_config_var('EXT_SUFFIX'))"
    headers, suffix = run(python, "-c", ask).split()
    flags = [*config.BINDING_FLAGS, "-DNDEBUG", "-fPIC"]
    flags += [f"-I{config.ROOT / 'csrc'}", f"-isystem{include}", f"-isystem{headers}"]
    with tempfile.TemporaryDirectory() as folder:
        told = config.operators.build_header(Path(folder), config.hash_of_interface()).parent
        objects = []
        for number, source in enumerate(config.binding_sources()):
            objects.append(str(Path(folder, f"{number}.o")))
            command = [*compiler, *flags, f"-I{told}", "-c", source, "-o", objects[-1]]
            run(*command, cwd=config.ROOT)
        link = ["-shared", "-s", *config.link_flags("bind"), f"{package}/lib/libcustomconv.so"]
        run(*compiler, *objects, *link, "-o", package / f"_bind{suffix}")


def add_sources(package: Path) -> None:
    """Adds what ``python -m customconv build`` compiles."""
    csrc = config.ROOT / "csrc"
    for pattern in config.operators.SHIPPED:
        for path in csrc.glob(pattern):
            target = package / "csrc" / path.relative_to(csrc)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def add_parts(package: Path, folders: Iterable[Path]) -> None:
    """Adds libraries that were built elsewhere.

    Raises:
        ConfigError: one of them is of another build.
    """
    build = config.hash_of_interface().encode()
    for folder in folders:
        for path in sorted(folder.rglob("*.so")):
            place = package if path.name.startswith("_bind.") else package / "lib"
            if build not in path.read_bytes():
                raise config.ConfigError(f"{path} is of another build than {build.decode()}")
            if path.name != "libcustomconv.so":  # each machine makes it, all of them the same
                shutil.copy(path, place)


def note(package: Path) -> None:
    """Notes what the wheel was built for, where the package reads it."""
    record = json.loads((package / "_build.json").read_text())
    names = [path.stem.removeprefix("libcustomconv_sm") for path in package.glob("lib/*_sm*.so")]
    built = {config.library_of(arch)[2:]: arch for arch in known_architectures()}
    record["arch_list"] = [built.get(name, name) for name in sorted(names, key=_number)]
    record["torch"] = config.operators.listed(config.operators.supported_torch(package))
    record["python"] = config.operators.listed(config.operators.supported_python(package))
    (package / "_build.json").write_text(json.dumps(record, indent=2) + "\n")


def between(first: tuple[int, int], last: tuple[int, int]) -> list[tuple[int, int]]:
    """The minor versions from the first to the last, of one major version."""
    return [(first[0], minor) for minor in range(first[1], last[1] + 1)]


def check_complete(package: Path) -> None:
    """Refuses a wheel without some of what a release has.

    Raises:
        ConfigError: names what is missing.
    """
    names = [
        f"libcustomconv_{config.library_of(arch)}"
        for arch in config.RELEASE_ARCHITECTURES.split(";")
    ]
    names += [
        config.operators.library_name(minor, with_cuda)
        for minor in between(*config.TESTED_TORCH)
        for with_cuda in (True, False)
    ]
    paths = (f"lib/{name}.so" for name in names)
    missing = [path for path in paths if not (package / path).exists()]
    there = config.operators.supported_python(package)
    lacking = (each for each in between(*config.TESTED_PYTHON) if each not in there)
    missing += [f"a module for Python {config.operators.listed([each])}" for each in lacking]
    if missing:
        raise config.ConfigError(f"a release lacks {', '.join(missing)}")


def known_architectures() -> list[str]:
    """Those of a release, and those that this environment was asked for."""
    named = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    return [*config.RELEASE_ARCHITECTURES.split(";"), *named]


def _number(name: str) -> int:
    return int("".join(c for c in name if c.isdigit()))


def platform() -> str:
    """The tag of the machine that built it: its C library is the oldest that will do."""
    version = os.confstr("CS_GNU_LIBC_VERSION") or ""
    return f"manylinux_{version.split()[-1].replace('.', '_')}_x86_64"


def sizes(wheel: Path) -> str:
    """A table of the parts: how large they are, and how much of the wheel they take."""
    with zipfile.ZipFile(wheel) as archive:
        files = archive.infolist()
    rows = [
        (info.filename.partition("/")[2], info.file_size, info.compress_size)
        for info in files
        if info.filename.endswith(".so")
    ]
    others = [info for info in files if not info.filename.endswith(".so")]
    total = sum(info.file_size for info in files)
    rows.append(
        ("everything else", sum(i.file_size for i in others), sum(i.compress_size for i in others))
    )
    rows.append((wheel.name, total, wheel.stat().st_size))
    width = max(len(name) for name, _, _ in rows)
    lines = [f"{'':{width}}  {'MiB':>7}  {'packed':>7}"]
    lines += [f"{name:{width}}  {a / MIB:7.2f}  {b / MIB:7.2f}" for name, a, b in rows]
    return "\n".join(lines)


def make(options: argparse.Namespace, compiler: Sequence[str]) -> Path:
    """Builds, adds and packs."""
    import torch

    own = torch.__version__.partition("+")[0]
    with tempfile.TemporaryDirectory() as folder:
        unpacked = unpack(own_wheel(Path(folder, "own")), Path(folder, "unpacked"))
        package = unpacked / "customconv"
        add_sources(package)
        for release in sorted({own, *options.torch}):
            add_operators(package / "lib", release, compiler)
        include = Path(torch.__file__).parent / "include"
        for python in options.python:
            add_module(package, python, include, compiler)
        add_parts(package, options.parts)
        note(package)
        if options.release:
            check_complete(package)
        options.out.mkdir(parents=True, exist_ok=True)
        packed = Path(folder, "packed")
        packed.mkdir()
        run(sys.executable, "-m", "wheel", "pack", "--dest-dir", packed, unpacked)
        (wheel,) = packed.glob("*.whl")
        tags = ["--python-tag", "py3", "--abi-tag", "none", "--platform-tag", options.platform]
        run(sys.executable, "-m", "wheel", "tags", "--remove", *tags, wheel)
        (wheel,) = packed.glob("*.whl")
        return Path(shutil.copy(wheel, options.out))


def main() -> None:
    """Makes a wheel and prints sizes, or makes operators."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("wheel", "operators"):
        command = commands.add_parser(name)
        command.add_argument("--torch", nargs="*", default=[], metavar="VERSION")
        command.add_argument("--out", type=Path, default=config.ROOT / "dist")
        if name == "wheel":
            command.add_argument("--python", nargs="*", default=[], metavar="PYTHON")
            command.add_argument("--parts", nargs="*", type=Path, default=[], metavar="FOLDER")
            command.add_argument(
                "--release", action="store_true", help="refuse to leave a part out"
            )
            command.add_argument("--platform", default=platform(), help="default: %(default)s")
    options = parser.parse_args()
    config.use_ccache(os.environ)
    compiler = os.environ.get("CXX", "c++").split()
    if options.command == "wheel":
        print(sizes(make(options, compiler)))
        return
    for release in options.torch:
        add_operators(options.out, release, compiler)


if __name__ == "__main__":
    try:
        main()
    except (config.ConfigError, config.operators.BuildError) as error:
        sys.exit(f"customconv: {error}")
