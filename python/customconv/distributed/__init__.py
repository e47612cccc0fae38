"""Convolutions that several GPUs share."""

from .styles import ColwiseConv, RowwiseConv

__all__ = ["ColwiseConv", "RowwiseConv"]
