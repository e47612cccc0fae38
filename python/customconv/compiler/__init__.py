"""Models compiled with fused convolutions: a backend of ``torch.compile``."""

from .dynamo import backend, compile, explain_compile
from .report import CompiledConvolution, CompileReport

__all__ = ["CompileReport", "CompiledConvolution", "backend", "compile", "explain_compile"]
