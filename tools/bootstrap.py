"""Sets up ``.venv`` (or ``VENV``) with torch, the development tools and a built customconv.

Needs Python >= 3.10 and a C++ compiler, nothing else. Where nothing has changed it does nothing.
``TORCH`` names another release of torch, as 2.14.1 or 2.14, whose environment is
``.venv-torch2.14.1``. The environments share the checkout: the extension in it is of the one that
was built last, and the next run for another links it again from the objects of that one.
With ``--here`` it installs what a build needs into the running Python instead, and builds nothing:
for a machine that makes wheels.
"""

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

if sys.version_info < (3, 10):
    sys.exit("customconv needs Python 3.10 or newer: make PYTHON=/path/to/python3")

import build_config as config

ASKED = os.environ.get("TORCH")
TORCH = ASKED or "2.11.0"
BUILD_TOOLS = ["setuptools>=77,<82", "ninja"]
VENV = config.ROOT / os.environ.get("VENV", f".venv-torch{ASKED}" if ASKED else ".venv")
STAMP = VENV / "customconv-build-stamp"
RECORD = config.ROOT / "python/customconv/_build.json"  # setup.py writes it with each extension
ENVIRONMENT = ("CUSTOMCONV_CUDA", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CUDA_PATH", "CXX")


def run(*command: str) -> None:
    """Runs a command that must succeed, and shows it."""
    print("+", " ".join(command), flush=True)
    subprocess.run(command, cwd=config.ROOT, check=True)


def pip_install(python: str, *arguments: str) -> None:
    """Installs with pip, silently after the first time."""
    quiet = ["--quiet"] if STAMP.exists() else []
    run(python, "-m", "pip", "install", *quiet, *arguments)


def torch_requirement() -> str:
    """What pip is asked for; a warning where its tests have not been run with that one."""
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", TORCH):
        raise config.ConfigError(f"TORCH is {TORCH!r}: set it to a release, as 2.14.1 or 2.14")
    if warning := config.check_torch(TORCH):
        print(f"customconv: warning: {warning}", file=sys.stderr)
    return f"torch=={TORCH}" if TORCH.count(".") == 2 else f"torch=={TORCH}.*"


def check_machine() -> None:
    """Refuses a machine on which the rest would fail less clearly."""
    config.compiler_version(os.environ)
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise config.ConfigError("Python's headers are missing: install python3-dev or the like")


def create_venv() -> Path:
    """The Python of ``.venv``, made if need be."""
    python = VENV / "bin/python"
    if not python.exists():
        try:
            run(sys.executable, "-m", "venv", str(VENV))
        except subprocess.CalledProcessError:
            raise config.ConfigError(
                "cannot make a virtual environment: install python3-venv or the like"
            ) from None
    return python


def last_build() -> str:
    """Names the build that lies in the checkout, by its time; nothing where there is none."""
    built = any(RECORD.parent.glob(f"_bind.{sys.implementation.cache_tag}*.so"))
    return str(RECORD.stat().st_mtime_ns) if built and RECORD.exists() else ""


INPUTS = ("setup.py", "pyproject.toml", "tools", "csrc", "python/customconv/build.py")


def inputs() -> str:
    """A digest of everything that decides what a build gives."""
    digest = hashlib.sha256()
    digest.update(f"TORCH={TORCH}\n".encode())
    for name in ENVIRONMENT:
        digest.update(f"{name}={os.environ.get(name)}\n".encode())
    digest.update(f"gpu={config.gpu_in_sight()}\n".encode())
    for top in (config.ROOT / name for name in INPUTS):
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and path.suffix != ".pyc":
                digest.update(str(path.relative_to(config.ROOT)).encode() + b"\0")
                digest.update(path.read_bytes())
    return digest.hexdigest()


def install_requirements(python: str, torch: str) -> None:
    """Installs torch, build tools and, where CUDA is built without a toolkit, compiler wheels."""
    pip_install(python, *BUILD_TOOLS, torch)
    ask = "import torch; print(torch.version.cuda or '')"
    said = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    torch_cuda = said.stdout.strip() or None
    if not config.wants_cuda(os.environ, torch_cuda):
        if warning := config.left_out_warning(os.environ, torch_cuda):
            print(f"customconv: warning: {warning}", file=sys.stderr)
    elif torch_cuda:
        try:
            config.find_cuda_home(os.environ, torch_cuda)
        except config.ConfigError:
            if os.environ.get("CUDA_HOME") or int(torch_cuda.split(".")[0]) < 13:
                raise  # a wrong choice of the user's; before 13 the wheels hold no whole compiler
            pip_install(python, config.compiler_requirement(torch_cuda))


def main() -> None:
    """Brings the environment up to date."""
    check_machine()
    torch = torch_requirement()
    if sys.argv[1:] == ["--here"]:
        install_requirements(sys.executable, torch)
        return
    if sys.argv[1:]:
        raise config.ConfigError(f"unknown arguments: {' '.join(sys.argv[1:])}")
    python = create_venv()
    wanted = inputs()
    if last_build() and STAMP.exists() and STAMP.read_text() == f"{wanted} {last_build()}":
        return
    install_requirements(str(python), torch)
    # With torch, which torchvision would else replace by the one that it was made for.
    pip_install(str(python), "--no-build-isolation", "-e", ".[dev,demo,bench]", torch)
    STAMP.write_text(f"{wanted} {last_build()}")


if __name__ == "__main__":
    try:
        main()
    except config.ConfigError as error:
        sys.exit(f"customconv: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
