// The halo loader: a stage of pixels holds what all taps meet; weights have stages of their own.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/weights.cuh"
#include "kernels/ptx/im2col.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/uniform.cuh"

namespace customconv::implicit_gemm::sm90 {

// By one warp.
__device__ inline void load_halo(const Params& p, const Memory& memory, const Work& work,
                                 ptx::PipelineState& state, int lane) {
  if (work.taps == 0) return;
  // One image ahead, so that no position is negative.
  const int first = work.position - p.halo + p.image;
  const Place place(p, first + (p.copies_strips ? 0 : lane * p.copy_positions));
  const int copy_bytes = p.copy_rows * p.pixel_row_bytes;
  for (int chunk = work.first; chunk < work.last; ++chunk) {
    ptx::Barrier* full = (p.halves_pixels ? memory.float_full : memory.x_full) + state.stage;
    ptx::wait(memory.x_empty + state.stage, state.parity ^ 1);
    if (lane == 0) ptx::arrive_and_expect_tx(full, p.copies * copy_bytes);
    __syncwarp();
    const int c = pixel_channel(p, work, chunk);
    char* const stage = memory.pixels + state.stage * p.x_bytes;
    if (p.copies_strips) {
      int n = ptx::uniform(place.n), row = ptx::uniform(place.row);
      int column = ptx::uniform(place.first_column);
#pragma unroll 1
      for (int i = 0; i < p.copies; ++i) {
        if (lane == 0) {
          ptx::tma_load(stage + i * copy_bytes, &p.x, full, c, column - p.pad_w, row, n - 1);
        }
        if (++row == p.by_period.divisor()) {
          const Place next(p, first + (i + 1) * p.copy_positions);
          n = ptx::uniform(next.n);
          row = ptx::uniform(next.row);
          column = ptx::uniform(next.first_column);
        }
      }
    } else if (lane < p.copies) {
      ptx::tma_load_im2col(stage + lane * copy_bytes, &p.x, full, c, place.column, place.row,
                           place.n - 1, 0, 0);
    }
    state.advance(p.x_stages);
  }
}

// By another warp.
template <int kN, bool kAsStored>
__device__ inline void load_halo_weights(const Params& p, const Memory& memory, const Work& work,
                                         ptx::PipelineState& state, int lane) {
  const Phase& phase = p.phase[work.phase];
  if (work.taps == 0) return;
  const int copies = weight_copies(p, work, kN);
  for (int chunk = work.first; chunk < work.last; ++chunk) {
    for (int r = 0; r < phase.R; ++r) {
      for (int s = 0; s < phase.S; ++s) {
        ptx::Barrier* full = memory.w_full + state.stage;
        ptx::wait(memory.w_empty + state.stage, state.parity ^ 1);
        if (lane == 0) ptx::arrive_and_expect_tx(full, copies * p.w_copy_bytes);
        __syncwarp();
        if (lane < copies) {
          copy_weights<kAsStored>(p, work, memory.weights + state.stage * p.w_bytes, full, chunk,
                                  phase.first_tap + r * phase.tap_h + s * phase.tap_w, lane);
        }
        state.advance(p.w_stages);
      }
    }
  }
}

}  // namespace customconv::implicit_gemm::sm90
