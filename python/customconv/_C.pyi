from collections.abc import Sequence
from typing import TypedDict

from torch import Tensor

class _BuildInfo(TypedDict):
    version: str
    torch: str
    cuda: str
    arch_list: str
    compiler: str
    with_cuda: bool

class ConvProblem:
    def __init__(
        self,
        *,
        op: str = "fprop",
        dtype: str = "float32",
        input: Sequence[int],
        weight: Sequence[int],
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        channels_last: bool = False,
        bias: bool = False,
        tf32: bool = False,
        epilogue_passes: int = 0,
        residual: bool = False,
    ) -> None: ...
    @property
    def output(self) -> tuple[int, int, int, int]: ...
    @property
    def macs(self) -> float: ...
    @property
    def least_bytes(self) -> float: ...
    @property
    def needs_wide_index(self) -> bool: ...

class DeviceProperties:
    def __init__(
        self,
        *,
        capability: Sequence[int] = (9, 0),
        sm_count: int = 132,
        clock_ghz: float = 1.98,
        bandwidth_gb_s: float = 3352.0,
        l2_bytes: int = 52428800,
        shared_bytes_block: int = 232448,
    ) -> None: ...
    def vector_flops(self, dtype: str) -> float: ...
    def matrix_flops(self, dtype: str, tf32: bool) -> float: ...

class ConvPlan:
    @property
    def family(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def grid(self) -> tuple[int, int, int]: ...
    @property
    def variant_index(self) -> int: ...
    @property
    def block(self) -> int: ...
    @property
    def tile(self) -> tuple[int, int, int]: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def wide_index(self) -> bool: ...
    @property
    def fuses(self) -> bool: ...
    @property
    def splits(self) -> int: ...
    @property
    def chunk_images(self) -> int: ...
    @property
    def chunk_pixels(self) -> int: ...
    @property
    def predicted_ms(self) -> float: ...

class Candidate:
    @property
    def family(self) -> str: ...
    @property
    def plan(self) -> ConvPlan | None: ...
    @property
    def reason(self) -> str: ...

class Explanation:
    @property
    def problem(self) -> ConvProblem | None: ...
    @property
    def plan(self) -> ConvPlan | None: ...
    @property
    def candidates(self) -> list[Candidate]: ...
    @property
    def fallback(self) -> str: ...

def build_info() -> _BuildInfo: ...
def install_routing_on_cpu() -> None: ...
def begin_routing() -> None: ...
def end_routing() -> bool: ...
def is_routing() -> bool: ...
def stats(reset: bool) -> tuple[dict[tuple[str, str], int], dict[str, int]]: ...
def plan(
    problem: ConvProblem, device: DeviceProperties = ..., algorithm: str = "auto"
) -> ConvPlan: ...
def computes_in_tf32(problem: ConvProblem, device: DeviceProperties = ...) -> bool: ...
def candidates(
    problem: ConvProblem, device: DeviceProperties = ..., algorithm: str = "auto"
) -> list[Candidate]: ...
def explain(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    op: str,
    algorithm: str,
    transposed: bool = False,
    output_padding: Sequence[int] = (0, 0),
) -> Explanation: ...
def variants(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    op: str,
    transposed: bool = False,
    output_padding: Sequence[int] = (0, 0),
) -> list[ConvPlan]: ...
def force_plan(plan: ConvPlan | None) -> None: ...
