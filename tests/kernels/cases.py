"""Convolutions that kernels get wrong, each with the reason why it is here."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from reference import Problem, layout_of
from torch import Tensor


@dataclass(frozen=True)
class Case(Problem):
    """A problem, and how its tensors lie in memory."""

    view: str = "plain"  # of the input: a name that `place` knows
    weight_view: str = "plain"
    other_weight_layout: bool = False  # the weight is channels_last where the input is not
    large: bool = False  # for the CPU and for sanitizers


def case(input: tuple[int, ...], weight: tuple[int, ...], **others: object) -> Case:
    arguments = {
        name: (value,) * (len(weight) - 2) if name in Case.DEFAULTS and isinstance(value, int)
        else value
        for name, value in others.items()
    }  # fmt: skip
    return Case(input, weight, **arguments)  # type: ignore[arg-type]


CASES = {
    # Tiles and their tails.
    "one_of_everything": case((1, 1, 1, 1), (1, 1, 1, 1)),
    "tails": case((3, 5, 13, 11), (7, 5, 3, 3), padding=1),  # no size fills a tile
    "whole_tiles": case((2, 16, 16, 64), (64, 16, 3, 3), padding=1),  # every size fills them
    "one_past_tiles": case((1, 17, 17, 65), (65, 17, 3, 3), padding=1),
    "many_channels": case((2, 40, 9, 10), (136, 40, 3, 3), padding=1),  # several chunks, with tails
    "few_outputs": case((1, 300, 5, 5), (3, 300, 5, 5)),  # one pixel, a long sum
    "many_images": case((67, 3, 4, 4), (5, 3, 3, 3), padding=1),  # images share a tile
    "no_bias": case((2, 4, 9, 8), (6, 4, 3, 3), padding=1, bias=False),
    # Kernels of every kind, one for each walk over the taps.
    "pointwise": case((2, 24, 7, 9), (20, 24, 1, 1)),  # the input is its own column matrix
    "pointwise_images": case((41, 24, 1, 1), (33, 24, 1, 1)),  # a linear layer
    "pointwise_strided": case((2, 6, 9, 11), (10, 6, 1, 1), stride=(2, 3)),
    "pointwise_padded": case((2, 6, 5, 6), (10, 6, 1, 1), padding=(1, 2)),  # a rim of bias alone
    "pointwise_thin": case((2, 6, 9, 17), (3, 6, 1, 1)),
    # Enough tiles for every multiprocessor, of each size that tensor cores take.
    "pointwise_64": case((64, 8, 16, 16), (64, 8, 1, 1)),
    "pointwise_256": case((33, 8, 16, 16), (256, 8, 1, 1)),
    "pointwise_256_deep": case((33, 256, 16, 16), (256, 256, 1, 1)),
    "row": case((2, 5, 6, 21), (9, 5, 1, 3), padding=(0, 1)),
    "column": case((2, 5, 21, 6), (9, 5, 3, 1), padding=(1, 0)),
    "2x2": case((2, 5, 8, 9), (6, 5, 2, 2)),  # even: no middle tap
    "4x4": case((2, 5, 9, 12), (9, 5, 4, 4), stride=2, padding=1),
    "3x3_thin": case((2, 9, 9, 18), (4, 9, 3, 3), padding=1),
    "5x5": case((2, 5, 12, 19), (9, 5, 5, 5), padding=2),
    "7x7": case((1, 3, 14, 22), (12, 3, 7, 7), padding=3),
    "7x7_strided": case((2, 3, 23, 30), (16, 3, 7, 7), stride=2, padding=3),  # of many networks
    "5x9": case((2, 4, 11, 19), (12, 4, 5, 9), padding=(2, 4)),
    "5x7": case((2, 8, 11, 19), (16, 8, 5, 7), padding=(2, 3)),
    "6x6_thin": case((2, 5, 9, 12), (3, 5, 6, 6), padding=2),
    "11x11": case((1, 2, 19, 23), (6, 2, 11, 11), padding=5),
    "long_row": case((1, 2, 3, 70), (9, 2, 1, 33), padding=(0, 16)),
    "101x101": case((1, 2, 104, 103), (5, 2, 101, 101)),  # taps that fit no shared memory
    # Strides.
    "stride_over_kernel": case((2, 4, 17, 19), (6, 4, 2, 2), stride=(4, 5)),  # dx has holes of zero
    "stride_unused_end": case((2, 4, 12, 14), (6, 4, 3, 3), stride=4),  # dx ends in zeros
    "stride_over_image": case((2, 4, 5, 6), (6, 4, 3, 3), stride=50, padding=1),
    "stride_2": case((2, 9, 15, 33), (12, 9, 3, 3), stride=2, padding=1),
    "stride_1_2": case((2, 4, 9, 15), (9, 4, 3, 3), stride=(1, 2), padding=1),
    "stride_3_1": case((2, 4, 14, 9), (9, 4, 3, 4), stride=(3, 1), padding=1),
    "stride_3": case((2, 4, 14, 25), (9, 4, 5, 5), stride=3, padding=2),
    # Dilation.
    "dilated": case((2, 6, 14, 19), (9, 6, 3, 3), padding=2, dilation=2),
    "dilated_column": case((2, 4, 14, 19), (9, 4, 3, 2), padding=(3, 0), dilation=(3, 1)),
    "dilated_thin": case((2, 4, 14, 19), (3, 4, 3, 3), padding=(2, 3), dilation=(2, 3)),
    "dilated_strided": case((2, 4, 15, 22), (9, 4, 3, 3), stride=2, padding=3, dilation=3),
    # Pixels of 68 bytes, and taps that reach far: implicit_gemm has no tile for the input gradient.
    "dilated_far": case((5, 10, 3, 125), (34, 10, 7, 1), stride=(3, 1), padding=(9, 0),
                        dilation=(3, 1)),
    "dilated_odd": case((2, 4, 15, 22), (6, 4, 3, 4), stride=(3, 2), padding=(4, 1),
                        dilation=(2, 3)),
    # Only the middle tap ever meets the image.
    "dilated_past_image": case((2, 4, 5, 5), (6, 4, 3, 3), padding=7, dilation=7),
    # A halo that fits no shared memory.
    "dilated_200": case((1, 3, 404, 409), (9, 3, 3, 3), dilation=200),
    # Padding.
    "padding_over_kernel": case((1, 3, 4, 5), (6, 3, 2, 2), padding=(5, 4)),  # windows of zeros
    "padding_strided": case((2, 3, 4, 5), (6, 3, 2, 3), stride=(3, 2), padding=(6, 5)),
    "one_pixel": case((2, 4, 1, 1), (6, 4, 3, 3), padding=1),
    "one_pixel_padded": case((2, 4, 1, 1), (6, 4, 3, 3), padding=4),
    "kernel_is_image": case((3, 4, 6, 7), (9, 4, 6, 7)),
    "kernel_over_image": case((2, 4, 4, 5), (9, 4, 7, 7), padding=3),
    # Groups.
    "groups": case((2, 6, 9, 10), (27, 2, 3, 3), padding=1, groups=3),
    "groups_of_4": case((2, 32, 7, 9), (32, 4, 3, 3), padding=1, groups=8),  # ResNeXt's
    "groups_strided": case((2, 8, 15, 13), (12, 2, 3, 3), stride=2, padding=1, groups=4),
    "groups_dilated": case((2, 8, 15, 13), (12, 2, 3, 3), padding=2, dilation=2, groups=4),
    "groups_pointwise": case((2, 24, 7, 9), (36, 8, 1, 1), groups=3),
    "groups_to_one": case((2, 12, 9, 10), (4, 3, 3, 3), padding=1, groups=4),  # one output each
    "groups_wide": case((1, 36, 7, 9), (40, 18, 3, 3), padding=1, groups=2),
    "groups_of_40": case((2, 80, 6, 7), (10, 40, 3, 3), padding=1, groups=2),  # several chunks
    "groups_of_100_strided": case((1, 200, 7, 9), (200, 100, 3, 3), stride=2, padding=1, groups=2),
    # As wide as a chunk of 16-bit channels and a tile.
    "groups_of_64": case((2, 128, 9, 10), (128, 64, 3, 3), padding=1, groups=2),
    "groups_of_64_pointwise": case((3, 192, 4, 6), (384, 64, 1, 1), groups=3),
    "groups_of_64_strided": case((2, 128, 9, 10), (128, 64, 3, 2), stride=2, padding=1, groups=2,
                                 other_weight_layout=True),
    # Phases of an input gradient with one tap and with two, groups that end within eight bytes.
    "groups_of_6_to_5": case((2, 18, 11, 13), (15, 6, 3, 4), stride=(2, 3), padding=(1, 2),
                             groups=3),
    "groups_many": case((2, 70, 5, 6), (70, 2, 3, 3), padding=1, groups=35),
    "depthwise": case((2, 37, 9, 19), (37, 1, 3, 3), padding=1, groups=37),
    "depthwise_5x5": case((2, 20, 9, 19), (20, 1, 5, 5), padding=2, groups=20),
    "depthwise_7x7": case((2, 20, 15, 19), (20, 1, 7, 7), padding=3, groups=20),
    "depthwise_9x9": case((1, 10, 15, 19), (10, 1, 9, 9), padding=4, groups=10),
    "depthwise_strided": case((2, 20, 15, 19), (20, 1, 3, 3), stride=2, padding=1, groups=20),
    "depthwise_dilated": case((2, 20, 15, 19), (20, 1, 3, 3), padding=2, dilation=2, groups=20),
    # Whole 16 bytes of channels, and of rows.
    "depthwise_whole": case((2, 24, 15, 16), (24, 1, 3, 3), padding=1, groups=24),
    "depthwise_whole_7x7": case((2, 16, 15, 16), (16, 1, 7, 7), padding=3, groups=16),
    "depthwise_whole_strided": case((2, 16, 15, 16), (16, 1, 3, 3), stride=2, padding=1, groups=16),
    "depthwise_pointwise": case((2, 20, 5, 9), (20, 1, 1, 1), groups=20),  # a scale
    "depthwise_2": case((2, 9, 9, 13), (18, 1, 3, 3), padding=1, groups=9),  # a multiplier of two
    "depthwise_9": case((2, 3, 9, 13), (27, 1, 3, 3), padding=1, groups=3),  # of more than a tile
    # Sizes of one, which make layouts ambiguous.
    "one_channel": case((2, 1, 9, 18), (8, 1, 3, 3), padding=1),
    "one_output": case((2, 8, 9, 18), (1, 8, 3, 3), padding=1),
    "one_to_one": case((2, 1, 9, 18), (1, 1, 5, 5), padding=2),
    "one_image_row": case((2, 4, 1, 37), (9, 4, 1, 5), padding=(0, 2)),  # audio
    "one_image_column": case((2, 4, 37, 1), (9, 4, 5, 1), padding=(2, 0)),
    "one_row_of_three": case((2, 4, 1, 37), (9, 4, 3, 3), padding=1),
    # Odd and long rows.
    "959_wide": case((1, 2, 3, 959), (9, 2, 3, 3), padding=1),
    "959_high": case((1, 2, 959, 2), (9, 2, 3, 2), padding=(1, 0)),
    "959_strided": case((1, 3, 5, 959), (4, 3, 5, 5), stride=2, padding=2),
    # How tensors lie in memory.
    "unaligned": case((2, 8, 9, 16), (8, 8, 3, 3), padding=1, view="unaligned",
                      weight_view="unaligned"),
    "unaligned_pointwise": case((2, 8, 9, 16), (8, 8, 1, 1), view="unaligned",
                                weight_view="unaligned"),
    "sliced": case((2, 5, 9, 10), (9, 5, 3, 3), padding=1, view="sliced", weight_view="sliced"),
    "sliced_pointwise": case((2, 8, 6, 7), (9, 8, 1, 1), view="sliced"),  # columns not in place
    "stepped": case((2, 5, 9, 10), (9, 5, 3, 3), padding=1, view="stepped"),
    "transposed": case((2, 5, 9, 10), (9, 5, 3, 3), padding=1, view="transposed",
                       weight_view="transposed"),
    "images_inside": case((3, 5, 9, 10), (9, 5, 3, 3), padding=1, view="images_inside"),
    "expanded_images": case((3, 5, 9, 10), (9, 5, 3, 3), padding=1, view="expanded_images"),
    "expanded_channels": case((2, 6, 9, 10), (8, 3, 3, 3), padding=1, groups=2,
                              view="expanded_channels", weight_view="expanded_channels"),
    "expanded_pointwise": case((3, 6, 5, 6), (9, 6, 1, 1), view="expanded_images"),
    "other_weight_layout": case((2, 6, 9, 10), (8, 3, 3, 2), padding=1, groups=2,
                                other_weight_layout=True),
    "other_weight_layout_strided": case((2, 5, 9, 10), (9, 5, 3, 2), stride=2,
                                        other_weight_layout=True),
    # Sums over pixels that direct cuts into parts.
    "many_pixels": case((3, 2, 201, 203), (3, 2, 3, 3), padding=1),
    "many_pixels_strided": case((9, 1, 301, 203), (2, 1, 3, 3), stride=2, padding=1),
    # Long sums of few rows and columns, of which cuBLAS leaves out the last terms.
    "long_sums": case((8, 8, 41, 41), (16, 8, 7, 7), padding=3),
    "long_sums_pointwise": case((8, 16, 41, 41), (48, 16, 1, 1)),
    "long_sums_of_channels": case((1, 2945, 8, 8), (200, 2945, 1, 1)),
    # Over 2^27 entries of columns: several chunks of im2col's workspace in any dtype.
    "chunks_of_images": case((380, 10, 64, 64), (4, 10, 3, 3), padding=1, large=True),
    "chunks_of_images_grouped": case((250, 16, 64, 64), (4, 8, 3, 3), padding=1, groups=2,
                                     large=True),
    "bands": case((2, 16, 590, 600), (4, 16, 5, 5), padding=2, large=True),
    "bands_strided": case((1, 8, 931, 905), (4, 8, 9, 9), stride=2, padding=3, large=True),
    "bands_with_holes": case((1, 64, 781, 458), (4, 64, 2, 9), stride=(3, 1), large=True),
    "bands_dilated": case((1, 16, 590, 600), (4, 16, 5, 5), padding=(18, 2), dilation=(9, 1),
                          large=True),
}  # fmt: skip


# Volumes have sizes (N, C, D, H, W) and filters (K, C, T, R, S).
VOLUMES = {
    # Tiles and their tails.
    "one_of_everything": case((1, 1, 2, 1, 1), (1, 1, 2, 1, 1)),
    "tails": case((3, 5, 5, 7, 11), (7, 5, 3, 3, 3), padding=1),
    "whole_tiles": case((2, 16, 4, 8, 32), (64, 16, 3, 3, 3), padding=1),
    "one_past_tiles": case((1, 17, 5, 9, 33), (65, 17, 3, 3, 3), padding=1),
    "many_channels": case((2, 40, 3, 6, 10), (136, 40, 3, 3, 3), padding=1),
    "few_outputs": case((1, 150, 3, 4, 5), (3, 150, 3, 4, 5)),  # one pixel, a long sum
    "many_volumes": case((37, 3, 2, 4, 4), (5, 3, 3, 3, 3), padding=1),
    "no_bias": case((2, 4, 4, 5, 8), (6, 4, 3, 3, 3), padding=1, bias=False),
    # Widths of decoders of video, whose rim is cut off before: 8 k + 2.
    "three_slices": case((1, 24, 3, 10, 18), (32, 24, 3, 3, 3)),  # one of results
    "four_slices": case((1, 32, 4, 18, 26), (40, 32, 3, 3, 3)),
    "six_slices": case((1, 16, 6, 10, 34), (16, 16, 3, 3, 3)),
    "three_to_many": case((1, 3, 3, 10, 18), (40, 3, 3, 3, 3)),
    "many_to_three": case((1, 40, 4, 10, 18), (3, 40, 3, 3, 3)),
    # Each dimension unlike the others.
    "uneven_taps": case((2, 5, 6, 9, 12), (9, 5, 2, 3, 4), padding=(1, 0, 2)),
    "uneven_paddings": case((2, 9, 4, 6, 8), (12, 9, 3, 3, 3), padding=(0, 1, 2)),
    "uneven_strides": case((2, 9, 7, 8, 11), (12, 9, 3, 3, 3), stride=(1, 2, 3), padding=1),
    "uneven_dilations": case((1, 9, 9, 9, 14), (12, 9, 3, 3, 3), padding=(1, 2, 3),
                             dilation=(1, 2, 3)),
    # What is 2-D in memory.
    "one_slice": case((2, 8, 1, 9, 10), (12, 8, 1, 3, 3), padding=(0, 1, 1)),
    "one_slice_padded": case((2, 8, 1, 9, 10), (12, 8, 3, 3, 3), padding=1),
    "slices": case((2, 8, 5, 7, 10), (12, 8, 1, 3, 3), padding=(0, 1, 1)),
    "slices_of_one_volume": case((1, 8, 5, 7, 10), (12, 8, 1, 3, 3), padding=(0, 1, 1)),
    "slices_skipped": case((1, 8, 7, 7, 10), (12, 8, 1, 3, 3), stride=(3, 1, 2), padding=(0, 1, 1)),
    "slices_padded": case((1, 8, 3, 7, 10), (12, 8, 1, 3, 3), padding=1),
    "column": case((2, 8, 9, 5, 6), (12, 8, 3, 1, 1), padding=(1, 0, 0)),
    "column_strided": case((2, 8, 9, 5, 6), (12, 8, 3, 1, 1), stride=(2, 1, 1), padding=(1, 0, 0)),
    "column_dilated": case((2, 8, 9, 5, 6), (12, 8, 3, 1, 1), padding=(2, 0, 0),
                           dilation=(2, 1, 1)),
    "column_skipping_pixels": case((2, 8, 9, 5, 6), (12, 8, 3, 1, 1), stride=(1, 2, 1)),
    "pointwise": case((2, 24, 3, 5, 7), (20, 24, 1, 1, 1)),
    "pointwise_volumes": case((41, 24, 1, 1, 1), (33, 24, 1, 1, 1)),
    "pointwise_strided": case((2, 6, 5, 7, 9), (10, 6, 1, 1, 1), stride=(2, 3, 2)),
    "pointwise_padded": case((2, 6, 3, 4, 5), (10, 6, 1, 1, 1), padding=(1, 2, 1)),
    "patches": case((2, 3, 4, 12, 16), (24, 3, 2, 4, 4), stride=(2, 4, 4)),
    "patches_left_over": case((2, 3, 5, 13, 18), (24, 3, 2, 4, 4), stride=(2, 4, 4)),
    "patch_is_volume": case((37, 3, 2, 7, 7), (40, 3, 2, 7, 7)),
    "patch_is_volume_of_groups": case((5, 6, 2, 4, 4), (8, 3, 2, 4, 4), groups=2),
    # Filters.
    "2x2x2": case((2, 5, 4, 8, 9), (6, 5, 2, 2, 2)),
    "4x4x4": case((1, 5, 6, 9, 12), (9, 5, 4, 4, 4), stride=2, padding=1),
    "5x5x5": case((1, 5, 7, 8, 11), (9, 5, 5, 5, 5), padding=2),
    "7x7x7": case((1, 3, 8, 9, 14), (12, 3, 7, 7, 7), stride=2, padding=3),
    "17x1x2": case((1, 4, 20, 3, 9), (9, 4, 17, 1, 2), padding=(8, 0, 1)),
    "1x1x9": case((2, 4, 3, 3, 37), (9, 4, 1, 1, 9), padding=(0, 0, 4)),
    "3x7x1": case((2, 4, 5, 11, 6), (9, 4, 3, 7, 1), padding=(1, 3, 0)),
    # Strides.
    "stride_2": case((2, 9, 6, 7, 13), (12, 9, 3, 3, 3), stride=2, padding=1),
    "stride_is_kernel": case((2, 8, 4, 6, 8), (12, 8, 2, 2, 2), stride=2),  # of medical networks
    "stride_over_kernel": case((2, 4, 9, 11, 13), (6, 4, 2, 2, 2), stride=(3, 4, 5)),
    "stride_unused_end": case((2, 4, 8, 12, 14), (6, 4, 3, 3, 3), stride=4),
    "stride_over_volume": case((2, 4, 3, 5, 6), (6, 4, 3, 3, 3), stride=50, padding=1),
    # Dilation.
    "dilated": case((1, 6, 6, 9, 14), (9, 6, 3, 3, 3), padding=2, dilation=2),
    "dilated_strided": case((1, 4, 9, 11, 15), (9, 4, 3, 3, 3), stride=2, padding=3, dilation=3),
    "dilated_far": case((1, 10, 4, 5, 60), (34, 10, 3, 3, 1), stride=(1, 3, 1), padding=(9, 9, 0),
                        dilation=(9, 3, 1)),
    "dilated_past_volume": case((2, 4, 3, 5, 5), (6, 4, 3, 3, 3), padding=7, dilation=7),
    # Padding.
    "padding_over_kernel": case((1, 3, 2, 4, 5), (6, 3, 2, 2, 2), padding=(4, 5, 3)),
    "padding_of_depth": case((2, 8, 3, 6, 9), (12, 8, 3, 1, 1), padding=(5, 0, 0)),
    "padding_strided": case((1, 3, 3, 4, 5), (6, 3, 2, 2, 3), stride=(2, 3, 2), padding=(4, 6, 5)),
    "one_pixel": case((2, 4, 1, 1, 1), (6, 4, 3, 3, 3), padding=1),
    "kernel_over_volume": case((2, 4, 2, 4, 5), (9, 4, 5, 7, 7), padding=(2, 3, 3)),
    # Groups.
    "groups": case((2, 6, 4, 6, 10), (27, 2, 3, 3, 3), padding=1, groups=3),
    "groups_of_4": case((2, 32, 3, 5, 9), (32, 4, 3, 3, 3), padding=1, groups=8),
    "groups_of_40": case((1, 80, 3, 5, 7), (10, 40, 3, 3, 3), padding=1, groups=2),
    "groups_of_64": case((1, 128, 4, 5, 10), (128, 64, 3, 3, 3), padding=1, groups=2),
    "groups_strided": case((2, 8, 5, 9, 13), (12, 2, 3, 3, 3), stride=2, padding=1, groups=4),
    "groups_pointwise": case((2, 24, 3, 5, 6), (36, 8, 1, 1, 1), groups=3),
    "groups_in_slices": case((2, 32, 3, 6, 9), (32, 8, 1, 3, 3), padding=(0, 1, 1), groups=4),
    "depthwise": case((2, 37, 4, 7, 11), (37, 1, 3, 3, 3), padding=1, groups=37),
    "depthwise_5x5x5": case((1, 20, 6, 7, 11), (20, 1, 5, 5, 5), padding=2, groups=20),
    "depthwise_strided": case((1, 20, 5, 9, 13), (20, 1, 3, 3, 3), stride=(1, 2, 2), padding=1,
                              groups=20),
    "depthwise_in_slices": case((2, 24, 3, 9, 16), (24, 1, 1, 3, 3), padding=(0, 1, 1), groups=24),
    "depthwise_column": case((2, 24, 7, 4, 6), (24, 1, 3, 1, 1), padding=(1, 0, 0), groups=24),
    "depthwise_2": case((1, 9, 4, 7, 9), (18, 1, 3, 3, 3), padding=1, groups=9),
    # Sizes of one, which make layouts ambiguous.
    "one_channel": case((2, 1, 4, 7, 18), (8, 1, 3, 3, 3), padding=1),
    "one_output": case((2, 8, 4, 7, 18), (1, 8, 3, 3, 3), padding=1),
    "one_row": case((2, 4, 5, 1, 18), (9, 4, 3, 1, 5), padding=(1, 0, 2)),
    "one_column": case((2, 4, 5, 18, 1), (9, 4, 3, 5, 1), padding=(1, 2, 0)),
    "one_line_of_depth": case((2, 4, 37, 1, 1), (9, 4, 5, 1, 1), padding=(2, 0, 0)),
    # Odd and long sides.
    "131_slices": case((1, 4, 131, 3, 5), (9, 4, 3, 3, 3), padding=1),
    "959_wide": case((1, 2, 2, 3, 959), (9, 2, 3, 3, 3), padding=1),
    # How tensors lie in memory.
    "unaligned": case((2, 8, 4, 6, 16), (8, 8, 3, 3, 3), padding=1, view="unaligned",
                      weight_view="unaligned"),
    "sliced": case((2, 5, 4, 6, 10), (9, 5, 3, 3, 3), padding=1, view="sliced",
                   weight_view="sliced"),
    "sliced_pointwise": case((2, 8, 3, 5, 7), (9, 8, 1, 1, 1), view="sliced"),
    "sliced_in_slices": case((2, 8, 3, 5, 7), (9, 8, 1, 3, 3), padding=(0, 1, 1), view="sliced"),
    "sliced_patches": case((3, 3, 2, 4, 4), (9, 3, 2, 4, 4), view="sliced"),
    "stepped": case((2, 5, 4, 6, 10), (9, 5, 3, 3, 3), padding=1, view="stepped"),
    "transposed": case((2, 5, 4, 6, 10), (9, 5, 3, 3, 3), padding=1, view="transposed",
                       weight_view="transposed"),
    "images_inside": case((3, 5, 4, 6, 10), (9, 5, 3, 3, 3), padding=1, view="images_inside"),
    "depth_inside": case((2, 5, 4, 6, 10), (9, 5, 3, 3, 3), padding=1, view="depth_inside",
                         weight_view="depth_inside"),
    "depth_inside_column": case((2, 8, 9, 5, 6), (12, 8, 3, 1, 1), padding=(1, 0, 0),
                                view="depth_inside"),
    "frames": case((2, 5, 4, 6, 10), (9, 5, 3, 3, 3), padding=1, view="frames"),
    "frames_in_slices": case((2, 8, 4, 6, 10), (9, 8, 1, 3, 3), padding=(0, 1, 1), view="frames"),
    "expanded_images": case((3, 5, 4, 6, 10), (9, 5, 3, 3, 3), padding=1, view="expanded_images"),
    "expanded_channels": case((2, 6, 4, 6, 10), (8, 3, 3, 3, 3), padding=1, groups=2,
                              view="expanded_channels", weight_view="expanded_channels"),
    "other_weight_layout": case((2, 6, 4, 6, 10), (8, 3, 3, 3, 2), padding=1, groups=2,
                                other_weight_layout=True),
    "other_weight_layout_strided": case((2, 5, 4, 6, 10), (9, 5, 3, 3, 2), stride=2,
                                        other_weight_layout=True),
    # Sums over pixels that direct cuts into parts.
    "many_pixels": case((2, 2, 21, 41, 43), (3, 2, 3, 3, 3), padding=1),
    # Long sums.
    "long_sums": case((4, 8, 6, 21, 23), (16, 8, 5, 5, 5), padding=2),
    "long_sums_of_channels": case((1, 1945, 3, 4, 5), (40, 1945, 1, 1, 1)),
    # Over 2^27 entries of columns.
    "chunks_of_columns": case((2, 16, 30, 100, 101), (4, 16, 3, 3, 3), padding=1, large=True),
}  # fmt: skip
CASES |= {f"volume_{name}": volume for name, volume in VOLUMES.items()}


@dataclass(frozen=True)
class Tensors:
    x: Tensor
    w: Tensor
    bias: Tensor | None
    dy: Tensor


def make_integers(case: Case, seed: int = 0) -> Tensors:
    """Small integers in float64 on the CPU: every sum of their products is exact in float32."""
    generator = torch.Generator().manual_seed(seed)

    def integers(shape: tuple[int, ...]) -> Tensor:
        return torch.randint(-3, 4, shape, generator=generator, dtype=torch.float64)

    def repeated(t: Tensor, view: str) -> Tensor:
        if view == "expanded_images":
            return t[:1].expand_as(t)
        return t[:, :1].expand_as(t) if view == "expanded_channels" else t

    x = repeated(integers(case.input), case.view)
    w = repeated(integers(case.weight), case.weight_view)
    bias = integers(case.weight[:1]) if case.bias else None
    return Tensors(x, w, bias, integers(output_shape(case)))


def output_shape(problem: Problem) -> tuple[int, ...]:
    """(N, K, P, Q) of a batched problem, or (N, K, O, P, Q)."""
    ends = (
        (size + 2 * pad - dilation * (taps - 1) - 1) // stride + 1
        for size, taps, stride, pad, dilation in zip(
            problem.input[2:], problem.weight[2:], problem.stride, problem.padding,
            problem.dilation, strict=True,
        )
    )  # fmt: skip
    return (problem.input[0], problem.weight[0], *ends)


# Along depth, height and width: what a slice leaves around it and where it begins,
# and how far apart elements are.
MARGINS, STARTS, STEPS = (2, 3, 5), (1, 2, 3), (2, 2, 3)


def place(t: Tensor, layout: torch.memory_format, view: str = "plain") -> Tensor:
    """The same values, laid out as the name says, with NaN in what lies around them."""
    layout = layout_of(layout, t.ndim)
    dims = t.ndim - 2
    nan = float("nan")
    if view in ("plain", "unaligned"):
        # Allocations are aligned to more than 16 bytes: so is "plain".
        offset = 16 if view == "plain" else 17
        strides = torch.empty(t.shape, device="meta").to(memory_format=layout).stride()
        buffer = t.new_full((prod(t.shape) + 2 * offset,), nan)
        return buffer.as_strided(t.shape, strides, offset).copy_(t)
    if view == "expanded_images":
        return place(t[:1], layout).expand_as(t)
    if view == "expanded_channels":
        return place(t[:, :1], layout).expand_as(t)
    if view == "sliced":
        margins, starts = (1, 2, *MARGINS[-dims:]), (1, 1, *STARTS[-dims:])
        shape = [size + more for size, more in zip(t.shape, margins, strict=True)]
        index = [slice(at, at + size) for size, at in zip(t.shape, starts, strict=True)]
        inside = lambda b: b[tuple(index)]  # noqa: E731
    elif view == "stepped":
        steps = (1, 1, *STEPS[-dims:])
        shape = [size * step for size, step in zip(t.shape, steps, strict=True)]
        inside = lambda b: b[tuple(slice(step - 1, None, step) for step in steps)]  # noqa: E731
    else:
        order = {
            "transposed": (0, 1, *range(2, dims), dims + 1, dims),
            "images_inside": (1, 0, *range(2, t.ndim)),
            "depth_inside": (0, 1, 3, 4, 2),
            "frames": (0, 2, 1, 3, 4),  # a batch of videos, each of images
        }[view]
        shape = [t.shape[dimension] for dimension in order]
        inside = lambda b: b.permute([order.index(i) for i in range(t.ndim)])  # noqa: E731
    buffer = torch.full(shape, nan, dtype=t.dtype, device=t.device).to(memory_format=layout)
    return inside(buffer).copy_(t)


def place_all(
    case: Case,
    values: Tensors,
    device: str,
    dtype: torch.dtype,
    layout: torch.memory_format,
) -> Tensors:
    """A case's tensors on a device, as the case wants them to lie there."""
    other = torch.contiguous_format if layout == torch.channels_last else torch.channels_last
    to = lambda t: t.to(device, dtype)  # noqa: E731
    return Tensors(
        place(to(values.x), layout, case.view),
        place(to(values.w), other if case.other_weight_layout else layout, case.weight_view),
        None if values.bias is None else to(values.bias),
        place(to(values.dy), layout, "unaligned" if case.view == "unaligned" else "plain"),
    )
