// The im2col loader: a stage is one tap, of pixels and of weights; weights that stay come with the
// first tile's pixels, and have stages of their own.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/weights.cuh"
#include "kernels/ptx/im2col.cuh"

namespace customconv::implicit_gemm::sm90 {

// By one warp. `kDeep`: of volumes.
template <int kN, bool kAsStored, bool kDeep>
__device__ inline void load_taps_of(const Params& p, const Memory& memory, const Work& work,
                                    ptx::PipelineState& state, bool loads_weights, int lane) {
  const Phase& phase = p.phase[work.phase];
  const Place place(p, work.position);
  int32_t o = 0;
  int row = place.row;
  if constexpr (kDeep) {
    o = row;
    row = p.depth.by_rows.split(o);
  }
  const int w = place.column * p.stride_w - p.pad_w, h = row * p.stride_h - p.pad_h;
  int chunk = work.first / work.taps;
  int s = work.first - chunk * work.taps;
  int r = s / phase.S;
  s -= r * phase.S;
  const int first_row = kDeep ? work.first_row : 0;
  const int end_row = kDeep ? first_row + work.taps / phase.S : phase.R;
  r += first_row;
  int t = kDeep ? r / p.depth.filter_rows : 0;
  const int w_copies = loads_weights ? weight_copies(p, work, kN) : 0;
  const int w_bytes = w_copies * p.w_copy_bytes;
  for (int i = work.first; i < work.last; ++i) {
    ptx::Barrier* full = memory.x_full + state.stage;
    ptx::wait(memory.x_empty + state.stage, state.parity ^ 1);
    if (lane == 0) {
      const int bytes = p.copy_rows * p.pixel_row_bytes;
      ptx::Barrier* x_full = full;
      if (p.halves_pixels) {
        x_full = memory.float_full + state.stage;
        ptx::arrive_and_expect_tx(x_full, bytes);
        ptx::arrive_and_expect_tx(full, w_bytes);
      } else {
        ptx::arrive_and_expect_tx(full, bytes + w_bytes);
      }
      char* const pixels = memory.pixels + state.stage * p.x_bytes;
      const int channel = pixel_channel(p, work, chunk);
      const int offset_w = phase.column + s * p.dilation_w;
      if constexpr (kDeep) {
        const int filter_row = r - t * p.depth.filter_rows;
        ptx::tma_load_im2col(pixels, &p.x, x_full, channel, w, h, o * p.depth.stride - p.depth.pad,
                             place.n, offset_w, filter_row * p.dilation_h, t * p.depth.dilation);
      } else {
        ptx::tma_load_im2col(pixels, &p.x, x_full, channel, w, h, place.n, offset_w,
                             phase.row + r * p.dilation_h);
      }
    }
    __syncwarp();
    if (lane < w_copies) {
      const int stage = p.keeps_weights ? i - work.first : state.stage;
      copy_weights<kAsStored>(p, work, memory.weights + stage * p.w_bytes, full, chunk,
                              phase.first_tap + r * phase.tap_h + s * phase.tap_w, lane);
    }
    state.advance(p.x_stages);
    if (++s < phase.S) continue;
    s = 0;
    ++r;
    if (kDeep && r == (t + 1) * p.depth.filter_rows) ++t;
    if (r < end_row) continue;
    r = first_row;
    if (kDeep) t = r / p.depth.filter_rows;
    ++chunk;
  }
}

template <int kN, bool kAsStored>
__device__ inline void load_taps(const Params& p, const Memory& memory, const Work& work,
                                 ptx::PipelineState& state, bool loads_weights, int lane) {
  if (work.first >= work.last) return;
  if (p.depth.is_deep) {
    load_taps_of<kN, kAsStored, true>(p, memory, work, state, loads_weights, lane);
  } else {
    load_taps_of<kN, kAsStored, false>(p, memory, work, state, loads_weights, lane);
  }
}

}  // namespace customconv::implicit_gemm::sm90
