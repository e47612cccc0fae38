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

// Called by kRowThreads.
template <typename T, int kChannels, bool kGradient>
__device__ inline void load_turned(const Params<T>& p, const Shared& shared, int thread) {
  constexpr int kPiece = kPieceBytes / static_cast<int>(sizeof(T));
  constexpr int kBatch = 2;  // units of a thread that are under way at the same time
  using Unit = TurnedUnit<T>;
  const RowSource<T>& s = p.source;
  const int image_pixels = s.H * s.W;
  // Of each pixel of a stage, where it is in an image's first channel, and in the plane.
  auto* const places = static_cast<int2*>(shared.copies);
  for (int i = thread; i < p.images * image_pixels; i += kRowThreads) {
    const int image = i / image_pixels, pixel = i % image_pixels;
    const int row = pixel / s.W + p.pad_h, column = pixel % s.W + p.pad_w;
    const bool inside = row >= 0 && row < s.plane_rows && column >= 0 && column < p.pitch;
    places[i] = make_int2(image * s.image_bytes + pixel * static_cast<int>(sizeof(T)),
                          inside ? (image * s.plane_rows + row) * p.pitch + column : -1);
  }

  Walk<T, kGradient> ahead(p, kChannels);
  Place next, raw, x;
  const auto existing = [&](const Work& work) { return min(p.images, s.N - work.at.n); };
  // Starts the copy of the step that comes next.
  const auto bring = [&] {
    if (ahead.is_over()) return;
    if (thread == 0) {
      const int bytes = ahead.step.pieces(p) * kPiece * s.row.channel_bytes;
      const int images = existing(ahead.work);
      const int c = ahead.work.at.c + ahead.step.chunk * p.chunk * kPiece;
      const T* from = s.x + ahead.work.at.n * s.n + c * s.c;
      char* to = shared.raw + next.stage * p.raw_bytes;
      ptx::arrive_expecting(&shared.raw_full[next.stage], images * bytes);
      for (int i = 0; i < images; ++i, from += s.n, to += s.image_bytes) {
        ptx::copy_bytes(to, from, bytes, &shared.raw_full[next.stage]);
      }
    }
    next.advance(kRawStages);
    ahead.advance();
  };
  bring();
  for (Walk<T, kGradient> walk(p, kChannels); !walk.is_over(); walk.advance()) {
    ptx::sync_threads<kRowThreads>(kRowBarrier);  // the step in front has read its images
    bring();
    const uint32_t images = ptx::shared_address(shared.raw + raw.stage * p.raw_bytes);
    const uint32_t plane = ptx::shared_address(shared.input + x.stage * p.stage_bytes);
    const int pixels = existing(walk.work) * image_pixels;
    const int units = walk.step.pieces(p) * (kPieceBytes / 16);
    ptx::wait(&shared.raw_full[raw.stage], raw.parity);
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    int pixel = thread, unit = 0;
    while (unit < units) {
      Unit turned[kBatch];
      uint32_t to[kBatch];
      bool exists[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b, pixel += kRowThreads) {
        for (; pixel >= pixels; pixel -= pixels) ++unit;
        const int2 place = places[pixel];
        exists[b] = unit < units && place.y >= 0;
        to[b] = plane + place.y * kRowBytes + (unit ^ place.y % 8) * 16;
        const uint32_t from = images + place.x + unit * Unit::kChannels * s.row.channel_bytes;
        if (exists[b]) turned[b].load(from, s.row.channel_bytes);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (exists[b]) ptx::store_shared(to[b], turned[b].packed());
      }
    }
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
