"""Counts the kernels of a built customconv by family and pass, with their code.

    python tools/count_kernels.py [python/customconv/lib/libcustomconv_sm90a.so]

It disassembles all of them by ``cuobjdump``, of the CUDA toolkit or of Triton, which takes minutes.
It says how many are for weight gradients alone, and how many multiply by matrix instructions.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# A kernel's mangled name: customconv, a family's namespace, perhaps others, the name itself.
FAMILY = re.compile(r"_ZN10customconv(\d+)")
# What kernels of weight gradients are called, or their namespace.
WGRAD = re.compile(r"5wgrad|11sum_weights|9sum_boxes|12wgrad_reduce")
INSTRUCTION = re.compile(r"\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@!?U?P\d+ )?(?P<name>[A-Z0-9]+)")
BYTES = 16  # of an instruction


@dataclass
class Kernel:
    """One compiled kernel.

    Attributes:
        name: As it is mangled.
        architecture: As nvcc names it.
        code: Bytes of instructions.
        wgmma: Whether warpgroups multiply in it.
        mma: Whether warps do.
    """

    name: str
    architecture: str
    code: int = 0
    wgmma: bool = False
    mma: bool = False

    @property
    def is_wgrad(self) -> bool:
        """Whether it is for weight gradients alone."""
        return WGRAD.search(self.name) is not None

    @property
    def family(self) -> str:
        """The namespace within customconv, or "common" if there is no named one."""
        found = FAMILY.match(self.name)
        if found is None:
            return "other"
        end = found.end() + int(found[1])
        name, after = self.name[found.end() : end], self.name[end : end + 1]
        return name if after.isdigit() and not name.startswith("_GLOBAL_") else "common"


def kernels_of(lines: Iterable[str]) -> Iterator[Kernel]:
    """Yields the kernels of ``cuobjdump -sass``."""
    kernel, architecture = None, ""
    for line in lines:
        if line.startswith("arch = "):
            architecture = line.removeprefix("arch = sm_").strip()
        elif "Function :" in line:
            if kernel is not None:
                yield kernel
            kernel = Kernel(line.split(":", 1)[1].strip(), architecture)
        elif kernel is not None and (found := INSTRUCTION.match(line)):
            kernel.code = int(found["address"], 16) + BYTES
            kernel.wgmma |= found["name"] in ("HGMMA", "QGMMA", "IGMMA", "BGMMA")
            kernel.mma |= found["name"] in ("HMMA", "IMMA", "DMMA")
    if kernel is not None:
        yield kernel


def table(kernels: Iterable[Kernel]) -> Iterator[str]:
    """Formats counts for each architecture and family, and their sums, in lines."""
    groups: dict[tuple[str, str], list[Kernel]] = collections.defaultdict(list)
    for kernel in kernels:
        groups[kernel.architecture, kernel.family].append(kernel)
        groups[kernel.architecture, "all"].append(kernel)
    yield (
        f"{'architecture':12}  {'family':16}{'kernels':>8}{'wgrad':>7}{'wgmma':>7}{'mma':>6}"
        f"{'code, KB':>10}"
    )
    for (architecture, family), found in sorted(groups.items(), key=lambda i: (i[0][0], len(i[1]))):
        wgrad, wgmma, mma = (
            sum(getattr(kernel, name) for kernel in found) for name in ("is_wgrad", "wgmma", "mma")
        )
        code = sum(kernel.code for kernel in found) / 1024
        yield f"{architecture:12}  {family:16}{len(found):8}{wgrad:7}{wgmma:7}{mma:6}{code:10.0f}"


def disassembler() -> str | None:
    """The path of ``cuobjdump``, or None."""
    if found := shutil.which("cuobjdump"):
        return found
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    bundled = Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump"
    return str(bundled) if bundled.exists() else None


def main() -> int:
    """Prints the table; the exit status is 2 if there is nothing to read or to read with."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    built = sorted(ROOT.glob("python/customconv/lib/libcustomconv_sm*.so"))
    parser.add_argument("library", nargs="?", type=Path, default=built[0] if built else None)
    library = parser.parse_args().library
    program = disassembler()
    if library is None or program is None:
        print("no built extension" if library is None else "no cuobjdump", file=sys.stderr)
        return 2
    command = [program, "-sass", str(library)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        lines = list(table(kernels_of(process.stdout)))
    print("\n".join(lines))
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
