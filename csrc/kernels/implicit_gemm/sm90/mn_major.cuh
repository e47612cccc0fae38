// The mn_major loader: channels-first input of 16 bits as it is. A stage has some rows of a strip,
// moved by a column of the filter: of each row all channels of a chunk, and of each channel the
// row's pixels. The instruction takes such an operand MN-major, and the rows of the filter are a
// row of the stage apart.
#pragma once

#include "kernels/implicit_gemm/sm90/halo.cuh"
#include "kernels/implicit_gemm/sm90/work.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm::sm90 {

// By one thread. A step of the work is a column of the filter, for a chunk of channels.
__device__ inline void load_mn_major(const Params& p, const Memory& memory, const Work& work,
                                     ptx::Turn& turn) {
  if (work.taps == 0) return;
  const Phase& phase = p.phase[work.phase];
  const Place place(p, work.position);
  const int row = place.row - p.pad_h + phase.row;
  const int column = place.first_column - p.pad_w + phase.column;
  for (int chunk = 0; chunk < p.chunks; ++chunk) {
    for (int s = 0; s < phase.S; ++s) {
      ptx::Barrier* full = memory.x_full + turn.stage;
      ptx::wait(memory.x_empty + turn.stage, turn.parity ^ 1);
      ptx::arrive_expecting(full, p.x_bytes);
      ptx::copy_box(memory.pixels + turn.stage * p.x_bytes, &p.x, full, column + s * p.dilation_w,
                    work.c + chunk * p.row_channels, row, place.n);
      turn.advance(p.x_stages);
    }
  }
}

// By another warp.
template <int kN>
__device__ inline void load_mn_major_weights(const Params& p, const Memory& memory,
                                             const Work& work, ptx::Turn& turn, int lane) {
  const Phase& phase = p.phase[work.phase];
  if (work.taps == 0) return;
  const int copies = weight_copies(p, work, kN);
  for (int chunk = 0; chunk < p.chunks; ++chunk) {
    for (int s = 0; s < phase.S; ++s) {
      for (int r = 0; r < phase.R; ++r) {
        const int tap = phase.first_tap + r * phase.tap_h + s * phase.tap_w;
        load_tap_weights<false>(p, memory, work, turn, lane, copies, chunk, tap);
      }
    }
  }
}

}  // namespace customconv::implicit_gemm::sm90
