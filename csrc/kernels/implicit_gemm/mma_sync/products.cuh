// Sums of products: operands pass through registers.
#pragma once

#include <type_traits>

#include "kernels/implicit_gemm/mma_sync/fragments.cuh"
#include "kernels/ptx/mma.cuh"

namespace customconv::implicit_gemm::mma_sync {

// From a product's weights to those of the next.
template <int kChannels, Fetch kFetch>
inline constexpr int kUnitBytes = has_matrix(kFetch) ? kPieceBytes : kChannels * kPieceBytes;

// The products of a warp's sixteen pixels, or of as many of several blocks.
template <typename T, int kChannels, Fetch kFetch>
class Products {
 public:
  static constexpr int kUnit = kUnitBytes<kChannels, kFetch>;

  // A lane points at one half of a piece, in a row of one of two blocks of eight channels.
  __device__ explicit Products(uint32_t weights) {
    const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8;
    half_ = lane / 8 % 2;
    weights_ = weights + row * kPitch + (kMatrix ? 0 : half_ * kChannels * 16);
  }

  // Adds a product of each block; its weights are at `first`.
  template <int kBlocks>
  __device__ void add_to_blocks(float (&sum)[kBlocks][kChannels / 2],
                                const uint32_t (&operand)[kBlocks][4], int first) const {
    uint32_t from = weights_ + first;
    if constexpr (kMatrix) {
      from = swizzled(weights_ + first / kRowBytes * kRowBytes, first % kRowBytes / 16 + half_);
    }
#pragma unroll
    for (int j = 0; j < kChannels / 16; ++j) {
      uint32_t filters[4];
      ptx::load_matrices(from + j * 16 * kPitch, filters);
      if constexpr (kMatrix && sizeof(T) == 4) {  // units are rounded already
#pragma unroll
        for (uint32_t& bits : filters) bits = ptx::round_tf32(bits);
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        ptx::multiply_add<T>(&sum[b][j * 8], operand[b], filters[0], filters[1]);
        ptx::multiply_add<T>(&sum[b][j * 8 + 4], operand[b], filters[2], filters[3]);
      }
    }
  }
  // Adds kCount products of a block.
  template <int kCount>
  __device__ void add(float (&sum)[kChannels / 2], const uint32_t (&operand)[kCount][4],
                      int first) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      add_to_blocks<1>(reinterpret_cast<float (&)[1][kChannels / 2]>(sum),
                       reinterpret_cast<const uint32_t (&)[1][4]>(operand[i]), first + i * kUnit);
    }
  }

 private:
  static constexpr bool kMatrix = has_matrix(kFetch);
  static constexpr int kPitch = kMatrix ? kRowBytes : 16;  // from a channel to the next
  uint32_t weights_;
  int half_;
};

// The sums of one item of work, of planes. `x` and `w` go on from one item to the next.
template <typename T, int kChannels, int kBlocks>
__device__ inline void multiply_planes(const Params<T>& p, const Shared& shared, const Work& work,
                                       int warpgroup, Place& x, Place& w,
                                       float (&sum)[kBlocks][kChannels / 2]) {
  constexpr int kWeightBytes = kChannels * kRowBytes;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const Products<T, kChannels, Fetch::kShared> products(ptx::shared_address(shared.weights));
  const int row_bytes = p.h.step * p.pitch * kRowBytes, tap_bytes = p.w_axis.step * kRowBytes;
  // Rows of the instruction that are no pixels read the first one's: behind the plane other threads
  // write.
  const uint32_t end = p.source.vectors * kRowBytes - (p.R - 1) / p.h.planes * row_bytes -
                       (p.S - 1) / p.w_axis.planes * tap_bytes;
  uint32_t pixel[kBlocks];  // whose half of a piece a lane reads
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const uint32_t at = p.block_at[warpgroup * kBlocks + b] +
                        (warp * 2 + lane / 8 % 2) * p.group_bytes + lane % 8 * kRowBytes;
    pixel[b] = ptx::shared_address(shared.input) + (at < end ? at : 0);
#pragma unroll
    for (float& s : sum[b]) s = 0.0f;
  }
  Step step(p, work.first);
#pragma unroll 1
  for (int i = work.first; i < work.last; ++i, step.advance(p)) {
    const int pieces = step.pieces(p);
    int row = x.stage * p.stage_bytes;
    ptx::wait(&shared.x_full[x.stage], x.parity);
#pragma unroll 1
    for (int r = step.plane_h; r < p.R; r += p.h.planes, row += row_bytes) {
      int tap = row;
#pragma unroll 1
      for (int s = step.plane_w; s < p.S; s += p.w_axis.planes, tap += tap_bytes) {
        ptx::wait(&shared.w_full[w.stage], w.parity);
#pragma unroll 2
        for (int piece = 0; piece < pieces; ++piece) {
          uint32_t operand[kBlocks][4];
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) {
            ptx::load_matrices(swizzled(pixel[b] + tap, piece * 2 + lane / 16), operand[b]);
            if constexpr (sizeof(T) == 4) {
#pragma unroll
              for (uint32_t& bits : operand[b]) bits = ptx::round_tf32(bits);
            }
          }
          products.add_to_blocks(sum, operand, w.stage * kWeightBytes + piece * kPieceBytes);
        }
        ptx::arrive(&shared.w_empty[w.stage]);
        w.advance(p.w_stages);
      }
    }
    ptx::arrive(&shared.x_empty[x.stage]);
    x.advance(p.x_stages);
  }
}

// The same of rows, of a warpgroup's block.
template <typename T, int kChannels, Fetch kFetch>
__device__ inline void multiply_rows(const Params<T>& p, const Shared& shared, const Work& work,
                                     int block, Place& x, Place& w, float (&sum)[kChannels / 2]) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  constexpr int kPiece = kPieceBytes / kSize;
  constexpr int kGroup = group_products(kFetch);
  constexpr int kWeightBytes = kGroup * kChannels * kPieceBytes;
  const RowSource<T>& source = p.source;
  const int lane = threadIdx.x % 32;

  // Where the thread's first pixel is, in bytes from the beginning of a stage.
  const int pair = block * (kBlockPixels / 2) + threadIdx.x % 128 / 32 * 8 + lane / 4;
  int position = pair * 2;
  if constexpr (kFetch != Fetch::kPieces) {
    const Spot spot = locate(source, min(work.at.pair + pair, source.last_pair));
    const int odd = kFetch == Fetch::kOddTaps;
    const int row = plane_row(source, spot) - plane_row(source, locate(source, work.at.pair));
    position = row * p.pitch + source.row.slack - odd + spot.pair * 2 * p.stride_w;
  }
  const int channel_bytes = source.row.channel_bytes;
  uint32_t pixel = ptx::shared_address(shared.input) + position * kSize;
  if constexpr (kFetch != Fetch::kFlat) {
    pixel += Elements<T>::first_channel(lane) * channel_bytes;
  }
  const Distances distances = {channel_bytes, p.stride_w * kSize, p.w_axis.step * kSize};
  const int row_bytes = p.h.step * p.pitch * kSize;
  const int taps_h = p.R / p.h.planes, taps_w = p.S / p.w_axis.planes;
  const Products<T, kChannels, kFetch> products(ptx::shared_address(shared.weights));

  // The products of operands, by the stage of weights from `first` bytes on.
  const auto add = [&](const auto& operand, int first) {
    if constexpr (!has_matrix(kFetch)) ptx::wait(&shared.w_full[w.stage], w.parity);
    products.add(sum, operand, w.stage * kWeightBytes + first);
  };
  // So many, whose pixels are at `at`.
  const auto multiply = [&](auto number, uint32_t at, const int32_t* flat = nullptr,
                            int first = 0) {
    constexpr int kCount = decltype(number)::value;
    uint32_t operand[kCount][4];
    fetch<T, kFetch, kCount>(operand, at, distances, flat);
    add(operand, first);
  };
  const auto release_weights = [&] {
    ptx::arrive(&shared.w_empty[w.stage]);
    w.advance(p.w_stages);
  };
  constexpr std::integral_constant<int, 1> kOne;
  constexpr std::integral_constant<int, 2> kTwo;
  constexpr std::integral_constant<int, 3> kThree;

  // The steps of the item, `multiply_step` does one.
  const auto walk = [&](auto multiply_step) {
    Step step(p, work.first);
#pragma unroll 1
    for (int i = work.first; i < work.last; ++i, step.advance(p)) {
      ptx::wait(&shared.x_full[x.stage], x.parity);
      multiply_step(step, pixel + x.stage * p.stage_bytes);
      ptx::arrive(&shared.x_empty[x.stage]);  // each thread has read what it needs
      x.advance(p.x_stages);
    }
  };

#pragma unroll
  for (float& s : sum) s = 0.0f;
  if constexpr (has_matrix(kFetch)) {
    walk([&](const Step& step, uint32_t at) {
      ptx::wait(&shared.w_full[w.stage], w.parity);
      int left = step.pieces(p), first = 0;
#pragma unroll 1
      for (; left >= 2; left -= 2, first += 2 * Products<T, kChannels, kFetch>::kUnit) {
        multiply(kTwo, at, nullptr, first);
        at += 2 * kPiece * distances.channel;
      }
      if (left > 0) multiply(kOne, at, nullptr, first);
      release_weights();
    });
  } else if constexpr (kFetch == Fetch::kFlat) {
    walk([&](const Step&, uint32_t at) {
      const int32_t* flat = shared.flat;
#pragma unroll 1
      for (int left = p.pieces; left > 0; left -= 2, flat += 2 * kPiece) {
        if (left >= 2) {
          multiply(kTwo, at, flat);
        } else {
          multiply(kOne, at, flat);
        }
        release_weights();
      }
    });
  } else {
    // Rows of taps, in groups of so many.
    const auto walk_rows = [&](auto group) {
      constexpr int kTaps = decltype(group)::value;
      walk([&](const Step&, uint32_t at) {
#pragma unroll 1
        for (int r = 0; r < taps_h; ++r, at += row_bytes) {
          uint32_t tap = at;
#pragma unroll 1
          for (int left = taps_w; left > 0; left -= kTaps, tap += kTaps * distances.tap) {
            if (kTaps < 3 && left < kTaps) {
              multiply(kOne, tap);
            } else {
              multiply(group, tap);
            }
            release_weights();
          }
        }
      });
    };
    const int group = taps_of_group(kFetch, taps_w);
    if (kGroup == 3 && group == 3) {
      walk_rows(kThree);
    } else if (group == 2) {
      walk_rows(kTwo);
    } else {
      walk_rows(kOne);
    }
  }
}

}  // namespace customconv::implicit_gemm::mma_sync
