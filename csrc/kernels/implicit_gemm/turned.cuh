// Small images of channels-first input: bulk copies bring them as they are, and threads put their
// channels side by side, in planes as boxes have them. What lies around an image stays zero.
#pragma once

#include "kernels/implicit_gemm/finish.cuh"
#include "kernels/implicit_gemm/work.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm {

constexpr int kTurnedThreads = 256;  // that multiply
constexpr int kTurnedBarrier = 14;   // of theirs

// Called by all threads.
template <typename T>
__device__ inline void clear_planes(const Params<T>& p, const Shared& shared) {
  const uint32_t to = ptx::shared_address(shared.input);
  for (int i = threadIdx.x * 16; i < p.x_stages * p.stage_bytes; i += blockDim.x * 16) {
    ptx::store_shared(to + i, make_uint4(0, 0, 0, 0));
  }
  ptx::fence_shared_writes();
}

// 16 bytes of a pixel's channels, which are `channel_bytes` apart.
template <typename T>
struct TurnedUnit {
  static constexpr int kChannels = 16 / static_cast<int>(sizeof(T));
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;

  __device__ void load(uint32_t from, int channel_bytes) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) bits[i] = ptx::load_shared<Bits>(from + i * channel_bytes);
  }
  __device__ uint4 packed() const {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 2) {
        word[i] = bits[i * 2] | static_cast<uint32_t>(bits[i * 2 + 1]) << 16;
      } else {
        word[i] = ptx::round_tf32(bits[i]);
      }
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
  }

  Bits bits[kChannels];
};

// The images of a step, as they come; called by a warp.
template <typename T, int kChannels, Mode kMode>
__device__ inline void load_raw_images(const Params<T>& p, const Shared& shared,
                                       Walk<T, kMode> walk) {
  constexpr int kPiece = kPieceBytes / static_cast<int>(sizeof(T));
  const RowSource<T>& s = p.source;
  const bool elected = ptx::elect_one();
  Place raw;
  for (; !walk.is_over(); walk.advance()) {
    const int bytes = walk.step.pieces(p) * kPiece * s.row.channel_bytes;
    const int images = min(p.images, s.N - walk.work.at.n);
    const int c = walk.work.at.c + walk.step.chunk * p.chunk * kPiece;
    const T* from = s.x + walk.work.at.n * s.n + c * s.c;
    char* to = shared.raw + raw.stage * p.raw_bytes;
    ptx::Barrier* full = &shared.raw_full[raw.stage];
    ptx::wait(&shared.raw_empty[raw.stage], raw.parity ^ 1);
    if (elected) {
      ptx::arrive_expecting(full, images * bytes);
#pragma unroll 1
      for (int i = 0; i < images; ++i, from += s.n, to += s.image_bytes) {
        ptx::copy_bytes(to, from, bytes, full);
      }
    }
    raw.advance(kRawStages);
  }
}

// Puts them in planes; called by kSpareWarps, each of which has its share of a pixel's channels.
// Of a step with fewer channels nobody reads the others.
template <typename T, int kChannels, Mode kMode>
__device__ inline void turn_images(const Params<T>& p, const Shared& shared, int warp,
                                   Walk<T, kMode> walk) {
  constexpr int kUnits = kRowBytes / 16 / kSpareWarps;
  const RowSource<T>& s = p.source;
  const int image_pixels = s.H * s.W, lane = threadIdx.x % 32;
  // Of each pixel of a stage, where its first channel is, and the pixel in the plane.
  auto* const places = static_cast<int2*>(shared.copies);
  for (int i = warp * 32 + lane; i < p.images * image_pixels; i += kSpareWarps * 32) {
    const int image = i / image_pixels, pixel = i % image_pixels;
    const int row = pixel / s.W + p.pad_h, column = pixel % s.W + p.pad_w;
    const bool inside = row >= 0 && row < s.plane_rows && column >= 0 && column < p.pitch;
    places[i] = make_int2(image * s.image_bytes + pixel * static_cast<int>(sizeof(T)),
                          inside ? (image * s.plane_rows + row) * p.pitch + column : -1);
  }
  ptx::sync_threads<kSpareWarps * 32>(kRowBarrier);

  const int first_unit = warp * kUnits;
  const int unit_bytes = TurnedUnit<T>::kChannels * s.row.channel_bytes;
  Place raw, x;
  for (; !walk.is_over(); walk.advance()) {
    const uint32_t images = ptx::shared_address(shared.raw + raw.stage * p.raw_bytes);
    const uint32_t plane = ptx::shared_address(shared.input + x.stage * p.stage_bytes);
    const int pixels = min(p.images, s.N - walk.work.at.n) * image_pixels;
    ptx::wait(&shared.raw_full[raw.stage], raw.parity);
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
#pragma unroll 1
    for (int pixel = lane; pixel < pixels; pixel += 32) {
      const int2 place = places[pixel];
      const uint32_t from = images + place.x + first_unit * unit_bytes;
      TurnedUnit<T> unit[kUnits];
#pragma unroll
      for (int i = 0; i < kUnits; ++i) unit[i].load(from + i * unit_bytes, s.row.channel_bytes);
      if (place.y < 0) continue;
      const uint32_t to = plane + place.y * kRowBytes;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        ptx::store_shared(to + ((first_unit + i) ^ place.y % 8) * 16, unit[i].packed());
      }
    }
    ptx::arrive(&shared.raw_empty[raw.stage]);
    ptx::fence_shared_writes();
    ptx::arrive(&shared.x_full[x.stage]);
    raw.advance(kRawStages);
    x.advance(p.x_stages);
  }
}

// Stores whole images in planes, from blocks that are squares. Those of 16 bits pass through shared
// memory, where they lie as in the output, and bulk copies store them while the next tile is
// summed.
template <typename T, int kColumns, int kBlocks>
__device__ inline void store_images(const Params<T>& p, const Corner& at,
                                    const float (&sum)[kBlocks][kColumns / 2], int warpgroup,
                                    char* staging) {
  constexpr bool kStaged = sizeof(T) == 2;
  const Output<T>& out = p.out;
  const Phase& phase = out.phase[at.phase];
  const int pixels = phase.P * phase.Q;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const bool leads = leads_warpgroup() && warpgroup == 0;
  if constexpr (kStaged) {
    if (leads) ptx::await_store_reads();
    ptx::sync_threads<kTurnedThreads>(kTurnedBarrier);
  }
  const int first_k = lane % 4 * 2;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    int32_t n = warpgroup * kBlocks + b;
    const int first_column = out.squares_w.split(n) * 8, first_row = out.squares_h.split(n) * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + warp * 2 + half, column = first_column + lane / 4;
      if (row >= phase.P || column >= phase.Q || at.n + n >= out.N) continue;
      const int pixel = row * phase.Q + column;
      const int64_t first = phase.offset + (at.n + n) * out.n + (at.k + first_k) * out.k + pixel;
      const uint32_t to = ptx::shared_address(staging) +
                          ((n * kColumns + first_k) * pixels + pixel) * static_cast<int>(sizeof(T));
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int k = j * 8 + i;
          const float value = sum[b][j * 4 + half * 2 + i];
          if constexpr (kStaged) {
            const T narrowed = narrow<T>(value);
            ptx::store_shared(to + k * pixels * 2, *reinterpret_cast<const uint16_t*>(&narrowed));
          } else {
            if (at.k + first_k + k < out.K) out.data[first + k * out.k] = value;
          }
        }
      }
    }
  }
  if constexpr (kStaged) {
    ptx::fence_shared_writes();
    ptx::sync_threads<kTurnedThreads>(kTurnedBarrier);
    if (!leads) return;
    const int channels = min(kColumns, out.K - at.k);
    for (int n = 0; n < p.images && at.n + n < out.N; ++n) {
      ptx::store_bytes(out.data + phase.offset + (at.n + n) * out.n + at.k * out.k,
                       staging + n * kColumns * pixels * 2, channels * pixels * 2);
    }
    ptx::commit_stores();
  }
}

}  // namespace customconv::implicit_gemm
