// The im2col loader: a stage is one tap, of pixels and of weights; weights that stay come with the
// first tile's pixels, and have stages of their own.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/weights.cuh"
#include "kernels/ptx/im2col.cuh"

namespace customconv::implicit_gemm::sm90 {

// By one warp.
template <int kN, bool kAsStored>
__device__ inline void load_taps(const Params& p, const Memory& memory, const Work& work,
                                 ptx::PipelineState& state, bool loads_weights, int lane) {
  if (work.first >= work.last) return;
  const Phase& phase = p.phase[work.phase];
  const Place place(p, work.position);
  const int w = place.column * p.stride_w - p.pad_w, h = place.row * p.stride_h - p.pad_h;
  int chunk = work.first / work.taps;
  int s = work.first - chunk * work.taps;
  int r = s / phase.S;
  s -= r * phase.S;
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
      ptx::tma_load_im2col(memory.pixels + state.stage * p.x_bytes, &p.x, x_full,
                           pixel_channel(p, work, chunk), w, h, place.n,
                           phase.column + s * p.dilation_w, phase.row + r * p.dilation_h);
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
    if (++r < phase.R) continue;
    r = 0;
    ++chunk;
  }
}

}  // namespace customconv::implicit_gemm::sm90
