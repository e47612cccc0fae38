"""Exports a network with AOTInductor, and calls the result from Python and from a C++ program.

    python examples/export/export.py

Routing is switched on in Python, so a C++ program cannot use it. The operators of this package
need no routing: convert the model with ``customconv.convert``, then export it, and the generated
code calls them through the dispatcher. The C++ program, ``run.cpp``, loads the library of this
package that registers the operators, which needs PyTorch's libraries and no Python.
"""

import json
import os
import subprocess
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils import cpp_extension

import customconv


def network() -> nn.Module:
    """A few convolutions, one of them transposed."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 5, stride=2, padding=2, groups=16), nn.Conv2d(16, 32, 1), nn.SiLU(),
        nn.ConvTranspose2d(32, 8, 4, stride=2, padding=1),
    )  # fmt: skip


def called_operators(package: Path) -> Counter[str]:
    """Counts the operators that the generated code calls through the dispatcher."""
    called: Counter[str] = Counter()
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                nodes = json.loads(archive.read(name)).get("nodes", [])
                called.update(node["node"]["target"] for node in nodes)
    return called


def build(program: Path) -> None:
    """Compiles ``run.cpp``, which uses only PyTorch."""
    folders = cpp_extension.library_paths()
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-o", str(program)]
    command += [str(Path(__file__).with_name("run.cpp"))]
    command += [f"-isystem{folder}" for folder in cpp_extension.include_paths()]
    command += [f"-L{folder}" for folder in folders]
    command += [f"-Wl,-rpath,{folder}" for folder in folders]
    # libtorch pulls in libtorch_cuda, although the program names none of its symbols.
    command += ["-Wl,--no-as-needed,--allow-shlib-undefined", "-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True)


def run(program: Path, package: Path, x: Tensor, like: Tensor) -> Tensor:
    """Runs the C++ program and returns what it computes."""
    input, output = package.with_name("input"), package.with_name("output")
    input.write_bytes(bytes(x.cpu().untyped_storage()))
    library = customconv.build_info()["operators"]
    subprocess.run([program, library, package, input, output, *map(str, x.shape)], check=True)
    result = torch.frombuffer(bytearray(output.read_bytes()), dtype=torch.float32)
    return result.reshape(like.shape).to(like.device)


@torch.no_grad()
def main() -> None:
    """Exports, and compares what each caller gets with PyTorch's result."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network().to(device).eval()
    x = torch.randn(4, 3, 32, 32, device=device)
    expected = model(x)

    converted, report = customconv.convert(model, fold_batchnorm=True)
    print(report)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(converted, (x,), dynamic_shapes=({0: batch},))

    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "model.pt2")
        torch._inductor.aoti_compile_and_package(exported, package_path=str(package))
        called = called_operators(package)
        print("called through the dispatcher:", dict(called))
        if called != {"customconv::conv2d": 3, "customconv::conv_transpose2d": 1}:
            raise SystemExit("the package does not hold the operators of the model")

        results = {"Python": torch._inductor.aoti_load_package(str(package))(x)}
        program = Path(folder, "run")
        build(program)
        results["C++"] = run(program, package, x, expected)

    for caller, result in results.items():
        difference = float((result - expected).abs().max() / expected.abs().max())
        print(f"{caller}: largest difference from PyTorch's result: {difference:.1e}")
        if not difference < (1e-2 if device == "cuda" else 1e-5):
            raise SystemExit("the results disagree")


if __name__ == "__main__":
    main()
