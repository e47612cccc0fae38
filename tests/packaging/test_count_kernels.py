"""What tools/count_kernels.py makes of a disassembly."""

from __future__ import annotations

import pytest

import count_kernels
from count_kernels import Kernel

SASS = """\
Fatbin elf code:
arch = sm_90a
		Function : _ZN10customconv13implicit_gemm8convolveI6__halfLi0EEEvNS0_6ParamsIT_EE
	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED"
        /*0000*/                   LDC R1, c[0x0][0x28] ;            /* 0x00000a00ff017b82 */
                                                                     /* 0x000fe20000000800 */
        /*0010*/              @!P1 HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;
        /*0fa0*/                   EXIT ;
		Function : _ZN10customconv7grouped4moveEv
        /*0000*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0010*/                   EXIT ;
		Function : _ZN10customconv36_GLOBAL__N__8f9806b8_7_bias_cu_2d2c53addEv
        /*0000*/                   EXIT ;
"""


def test_kernels_are_read_with_their_code_and_instructions():
    convolve, move, add = count_kernels.kernels_of(SASS.splitlines())
    assert (convolve.architecture, convolve.family) == ("90a", "implicit_gemm")
    assert (convolve.code, convolve.wgmma, convolve.mma) == (0xFA0 + 16, True, False)
    assert (move.family, move.code, move.wgmma, move.mma) == ("grouped", 32, False, True)
    assert (add.family, add.code, add.wgmma, add.mma) == ("common", 16, False, False)


def test_the_table_sums_up():
    kernels = [Kernel("_ZN10customconv7grouped1aEv", "90a", 1024)] * 3
    kernels += [Kernel("_ZN10customconv6direct5wgradEv", "90a", 2048, mma=True)]
    kernels += [Kernel("f", "80", 0)]
    rows = [line.split() for line in count_kernels.table(kernels)][1:]
    assert rows == [
        ["80", "other", "1", "0", "0", "0", "0"],
        ["80", "all", "1", "0", "0", "0", "0"],
        ["90a", "direct", "1", "1", "0", "1", "2"],
        ["90a", "grouped", "3", "0", "0", "0", "3"],
        ["90a", "all", "4", "1", "0", "1", "5"],
    ]


@pytest.mark.parametrize("name", ["cuobjdump", "triton", "neither"])
def test_the_disassembler_is_the_toolkits_or_tritons(name, monkeypatch, tmp_path):
    monkeypatch.setattr(
        count_kernels.shutil, "which", lambda _: "/bin/cuobjdump" if name == "cuobjdump" else None
    )
    bundled = tmp_path / "backends/nvidia/bin/cuobjdump"
    bundled.parent.mkdir(parents=True)
    if name == "triton":
        bundled.touch()
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr(count_kernels.importlib.util, "find_spec", lambda _: spec)
    expected = {"cuobjdump": "/bin/cuobjdump", "triton": str(bundled), "neither": None}
    assert count_kernels.disassembler() == expected[name]
