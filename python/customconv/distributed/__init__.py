"""Convolutions that several GPUs share."""

from .images.model import spatial, spatial_report
from .styles import ColwiseConv, RowwiseConv

__all__ = ["ColwiseConv", "RowwiseConv", "spatial", "spatial_report"]
