// The halo loader: a stage of pixels holds what all taps meet; weights have stages of their own.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/weights.cuh"
#include "kernels/ptx/im2col.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm::sm90 {

// By one warp.
__device__ inline void load_halo(const Params& p, const Memory& memory, const Work& work,
                                 ptx::Turn& turn, int lane) {
  if (work.taps == 0) return;
  // One image ahead, so that no position is negative.
  const int first = work.position - p.halo + p.image;
  const Place place(p, first + lane * p.copy_rows);
  const int copy_bytes = p.copy_rows * p.pixel_row_bytes;
#pragma unroll 1
  for (int i = 0; i < work.chunks; ++i) {
    ptx::Barrier* full = (p.halves_pixels ? memory.float_full : memory.x_full) + turn.stage;
    ptx::wait(memory.x_empty + turn.stage, turn.parity ^ 1);
    if (lane == 0) ptx::arrive_expecting(full, p.copies * copy_bytes);
    __syncwarp();
    if (lane < p.copies) {
      char* to = memory.pixels + turn.stage * p.x_bytes + lane * copy_bytes;
      const int c = pixel_channel(p, work, work.chunk + i);
      if (p.copies_strips) {
        ptx::copy_box(to, &p.x, full, c, place.first_column - p.pad_w, place.row, place.n - 1);
      } else {
        ptx::copy_im2col(to, &p.x, full, c, place.column, place.row, place.n - 1, 0, 0);
      }
    }
    turn.advance(p.x_stages);
  }
}

// By another warp.
template <int kN, bool kAsStored>
__device__ inline void load_halo_weights(const Params& p, const Memory& memory, const Work& work,
                                         ptx::Turn& turn, int lane) {
  if (work.taps == 0) return;
  const Phase& phase = p.phase[work.phase];
  const int copies = weight_copies(p, work, kN);
  int chunk = work.chunk, r, s;
  work.first_tap(phase.S, r, s);
#pragma unroll 1
  for (int i = 0; i < work.steps; ++i) {
    ptx::Barrier* full = memory.w_full + turn.stage;
    ptx::wait(memory.w_empty + turn.stage, turn.parity ^ 1);
    if (lane == 0) ptx::arrive_expecting(full, copies * p.w_copy_bytes);
    __syncwarp();
    if (lane < copies) {
      copy_weights<kAsStored>(p, work, memory.weights + turn.stage * p.w_bytes, full, chunk,
                              phase.first_tap + r * phase.tap_h + s * phase.tap_w, lane);
    }
    turn.advance(p.w_stages);
    if (++s < phase.S) continue;
    s = 0;
    if (++r < phase.R) continue;
    r = 0;
    ++chunk;
  }
}

}  // namespace customconv::implicit_gemm::sm90
