// What a warpgroup multiplies: weights by pixels, both where they lie in shared memory. Output
// channels are the rows of the instruction and pixels its columns, of which it takes up to 256: so
// it reads less of shared memory for each product than the other way round. Of fewer channels than
// an instruction has rows, they are the columns.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/implicit_gemm/promotion.cuh"
#include "kernels/implicit_gemm/sm90/weights.cuh"
#include "kernels/ptx/uniform.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm::sm90 {

constexpr int kOrderBarrier = 8;  // of the first team, or the first warpgroup of halves

// Operands may be halves of float32 (../halves.cuh): a row of weights has those of some channels,
// first the high ones. The sums of each stage are promoted (../promotion.cuh). A stage's small
// products come first, high by low and low by high. Tensor cores truncate when they add high by
// high, and then they do so for half a row's channels alone.
template <typename T, int kShape, int kSpans, int kBlocks, int kN, Loader kLoader, bool kAsStored>
class Products {
  static constexpr bool kHalves = kTileShapes[kShape].halves;
  static constexpr bool kPixelRows = kTileShapes[kShape].has_pixel_rows();
  static constexpr bool kIsOrdered = kTileShapes[kShape].is_ordered();

 public:
  // `own`: which of the tile's warpgroups it is; `own_k`, `own_pixel`: its first channel and pixel.
  __device__ Products(const Params& p, const Memory& memory, int own, int own_k, int own_pixel)
      : p_(p),
        memory_(memory),
        pixels_(ptx::describe_swizzled(
            ptx::shared_address(memory.pixels) + own_pixel / 8 * pixel_group_bytes(p),
            static_cast<uint32_t>(p.pixel_row_bytes), pixel_group_bytes(p))),
        own_(own),
        tells_(threadIdx.x % 128 == 0) {
    if (kIsOrdered && own == 1) ptx::named_barrier_arrive(kOrderBarrier, kOrderThreads);
    const uint32_t weights = ptx::shared_address(memory.weights);
    if constexpr (kAsStored) {
      const auto slab = static_cast<uint32_t>(p.row_channels * kSlabRowBytes);
      weights_ = ptx::describe_transposed(weights + own_k / kSlabChannels * slab, slab);
    } else {
      const auto row = static_cast<uint32_t>(p.row_bytes);
      weights_ = ptx::describe_swizzled(weights + own_k * row, row, 8 * row);
    }
  }

  // Calls `issued` when no more stages will be waited for.
  template <typename Issued>
  __device__ void multiply(const Work& work, float (&sum)[kBlocks][kN / 2], const Issued& issued) {
    if (work.first >= work.last) {  // no tap meets these pixels
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) sum[b][i] = 0;
      }
      issued();
    } else if constexpr (kHalves) {
      if (p_.row_bytes == kMostRowBytes) {
        multiply_halves<4>(work, sum, issued);
      } else {
        multiply_halves<2>(work, sum, issued);
      }
    } else if (p_.row_bytes == kMostRowBytes) {
      multiply_rows<4>(work, sum, issued);
    } else if (p_.row_bytes == kMostRowBytes / 2) {
      multiply_rows<2>(work, sum, issued);
    } else {
      multiply_rows<1>(work, sum, issued);
    }
  }

  // Passes over the stages of a tile that others multiply.
  __device__ void skip(const Work& work) {
    if (work.first >= work.last) return;
    const int steps = work.last - work.first;
    x_.advance(steps, p_.by_x_stages);
    if (kLoader == Loader::kHalo) w_.advance(steps * work.taps, p_.by_w_stages);
  }

 private:
  // From eight positions of a stage to the next eight of the tile.
  static __device__ uint32_t pixel_group_bytes(const Params& p) {
    return kLoader == Loader::kHalo ? p.group_bytes : 8 * p.pixel_row_bytes;
  }

  static constexpr int kOrderThreads = 2 * 128;  // of a warpgroup that waits and one that arrives

  // A row is `kPieces` times 32 bytes.
  template <int kPieces, typename Issued>
  __device__ void multiply_rows(const Work& work, float (&sum)[kBlocks][kN / 2],
                                const Issued& issued) {
    int accumulate = 0;
    each_tap(work, [&](int at, int w_stage, bool) {
      add<kPieces>(sum, at, w_stage, accumulate);
      accumulate = 1;
      release();
    });
    issued();
    ptx::warpgroup_wait<0>();
    release();
  }

  // The same of halves.
  template <int kPieces, typename Issued>
  __device__ void multiply_halves(const Work& work, float (&sum)[kBlocks][kN / 2],
                                  const Issued& issued) {
    static_assert(kBlocks == 1);
    Promotion<kN / 2> promotion;
    each_tap(work, [&](int at, int w_stage, bool is_last) {
      add_halves<kPieces>(promotion, at, w_stage, [&] {
        if (is_last) issued();
      });
    });
    promotion.finish(sum[0]);
  }

  // Waits for the stages of each tap, and calls `multiply` with the place of the tap's pixels, the
  // stage of its weights, and whether it is the tile's last tap.
  template <typename Multiply>
  __device__ void each_tap(const Work& work, const Multiply& multiply) {
    const Phase& phase = p_.phase[work.phase];
#pragma unroll 1
    for (int i = work.last - work.first; i > 0; --i) {
      ptx::wait(memory_.x_full + x_.stage, x_.parity);
      int at = x_.stage * p_.x_bytes;
      if constexpr (is_one_tap(kLoader)) {
        multiply(at, p_.keeps_weights ? work.last - work.first - i : x_.stage, i == 1);
      } else {
        at += first_position(work, phase) * p_.pixel_row_bytes;
        int left = work.taps;
#pragma unroll 1
        for (int r = 0; r < phase.R; ++r, at += p_.tap_h) {
          int tap = at;
#pragma unroll 1
          for (int s = 0; s < phase.S; ++s, tap += p_.tap_w) {
            // Weights that stay arrive once.
            ptx::wait(memory_.w_full + w_.stage, p_.keeps_weights ? 0 : w_.parity);
            multiply(tap, w_.stage, i == 1 && --left == 0);
            w_read_ = w_.stage;
            if (kHalves) release();
            w_.advance(p_.w_stages);
          }
        }
      }
      x_read_ = x_.stage;
      if (kHalves) release();
      x_.advance(p_.x_stages);
    }
  }

  // The position of a stage that the first tap meets, for the tile's first position.
  __device__ int first_position(const Work& work, const Phase& phase) const {
    return work.lead + phase.row * p_.stage_pitch + phase.column;
  }

  // The products of a tap, promoted. They are complete then.
  template <int kPieces, typename Issued>
  __device__ void add_halves(Promotion<kN / 2>& promotion, int at, int w_stage,
                             const Issued& issued) {
    constexpr int kHalf = kPieces / 2, kPiece = kLeastRowBytes;
    const uint64_t weights = ptx::uniform(ptx::advance(weights_, w_stage * p_.w_bytes));
    const uint64_t first = ptx::uniform(ptx::advance(pixels_, at));
    const auto add_piece = [&](int pixels, int piece, int accumulate) {
      ptx::Product<T, kN>::add(promotion.part, ptx::advance(weights, piece * kPiece),
                               ptx::advance(first, pixels), accumulate);
    };
    if constexpr (kIsOrdered) ptx::named_barrier_sync(kOrderBarrier + own_, kOrderThreads);
    ptx::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
      add_piece(k * kPiece + p_.low_bytes, k, k > 0);
      add_piece(k * kPiece, kHalf + k, 1);
    }
    ptx::warpgroup_commit_batch();
#pragma unroll
    for (int k = 0; k < kHalf; ++k) add_piece(k * kPiece, k, 1);
    ptx::warpgroup_commit_batch();
    issued();
    if constexpr (kIsOrdered) {
      ptx::warpgroup_wait<1>();
      ptx::named_barrier_arrive(kOrderBarrier + 1 - own_, kOrderThreads);
    }
    ptx::warpgroup_wait<0>();
    promotion.promote();
  }

  // The products of a tap; those before the last ones are complete then.
  template <int kPieces>
  __device__ void add(float (&sum)[kBlocks][kN / 2], int at, int w_stage, int accumulate) {
    using Product = std::conditional_t<kAsStored, ptx::TransposedFirst<T, kN>, ptx::Product<T, kN>>;
    constexpr int kPiece = kLeastRowBytes;
    constexpr int kChannels = kPieces * kPiece / static_cast<int>(sizeof(T));  // of a row
    constexpr int kWeightPiece =
        kAsStored ? kPiece / static_cast<int>(sizeof(T)) * kSlabRowBytes : kPiece;
    constexpr int kBlockBytes =
        kAsStored ? kChannels * kSlabRowBytes : kInstructionRows * kPieces * kPiece;
    const uint64_t weights = ptx::uniform(ptx::advance(weights_, w_stage * p_.w_bytes));
    const uint64_t pixels = ptx::uniform(ptx::advance(pixels_, at));
    ptx::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int w_block = kPixelRows ? 0 : b / kSpans * kBlockBytes;
        const int x_groups = kPixelRows ? b * (kInstructionRows / 8) : b % kSpans * (kN / 8);
        const uint64_t w = ptx::advance(weights, w_block + k * kWeightPiece);
        const uint64_t x = ptx::advance(pixels, x_groups * pixel_group_bytes(p_) + k * kPiece);
        Product::add(sum[b], kPixelRows ? x : w, kPixelRows ? w : x, k > 0 || accumulate);
      }
    }
    ptx::warpgroup_commit_batch();
    ptx::warpgroup_wait<1>();
  }

  // Gives back the stages that completed products have read.
  __device__ void release() {
    if (kLoader == Loader::kHalo && tells_ && w_read_ >= 0) ptx::arrive(memory_.w_empty + w_read_);
    if (tells_ && x_read_ >= 0) ptx::arrive(memory_.x_empty + x_read_);
    x_read_ = w_read_ = -1;
  }

  const Params& p_;
  const Memory& memory_;
  uint64_t pixels_, weights_;
  int own_;
  bool tells_;
  int x_read_ = -1, w_read_ = -1;  // stages that products under way still read
  ptx::PipelineState x_, w_;
};

}  // namespace customconv::implicit_gemm::sm90
