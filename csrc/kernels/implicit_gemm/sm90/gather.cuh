// The gather loader: of few channels, a stage has what some taps of each output pixel meet, side by
// side. Warps fetch it element by element from where the input is, so that nothing is packed
// before.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/weights.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm::sm90 {

// Lists where a pixel's terms are, from the one that its first tap meets: bytes, and the tap's row
// and column as the bits of masks. What a row has behind the last term is nowhere.
template <typename T>
__device__ inline void list_terms(const Gather& gather, Term* terms, int thread, int threads) {
  for (int i = thread; i < gather.padded_terms; i += threads) {
    int32_t r = i;
    const int c = gather.by_C.split(r), s = gather.by_S.split(r);
    const bool exists = i < gather.terms;
    const int offset = c * gather.c + r * gather.tap_h + s * gather.tap_w;
    terms[i] = {offset * static_cast<int>(sizeof(T)),
                exists ? static_cast<uint32_t>(r | s << 8) : kNoTap};
  }
}

// A warp that gathers: for 32 positions of each tile, a lane each, all terms or a part of them.
template <typename T, int kShape>
class GatherLoader {
  static constexpr TileShape kTile = kTileShapes[kShape];
  static constexpr int kWarps = 4 * kTile.loaders(true), kGroups = kTile.pixels / 32;
  static constexpr int kShare = kWarps / kGroups;  // warps of the same positions
  static_assert(kShare >= 1 && kWarps % kGroups == 0);
  static constexpr int kUnit = 16 / static_cast<int>(sizeof(T));
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;

 public:
  __device__ GatherLoader(const Params& p, const Memory& memory, int warp, int lane)
      : p_(p),
        memory_(memory),
        terms_(ptx::shared_address(memory.terms)),
        row_(warp / kShare * 32 + lane),
        share_(warp % kShare),
        warp_(warp),
        lane_(lane) {}

  // The stages of a tile. The first warp starts the copies of weights.
  __device__ void load(const Work& work, bool loads_weights) {
    const Gather& gather = p_.gather;
    const Place place(p_, work.position + row_);
    const int h = place.row * gather.stride_h - gather.pad_h;
    const int w = place.column * gather.stride_w - gather.pad_w;
    const auto* const pixel =
        static_cast<const Bits*>(gather.x) + place.n * gather.n + h * gather.h + w * gather.w;
    const auto* const bytes = reinterpret_cast<const char*>(pixel);
    uint32_t rows = 0, columns = 0;  // of the filter, that meet the image
    if (place.n < p_.N) {
      rows = in_range(h, gather.dilation_h, gather.R, gather.H);
      columns = in_range(w, gather.dilation_w, gather.S, gather.W);
    }
    const bool meets_all = __all_sync(
        ~0u, rows == (2u << (gather.R - 1)) - 1 && columns == (2u << (gather.S - 1)) - 1);
    const int w_copies = loads_weights ? weight_copies(p_, work, kTile.channels) : 0;
    const int units = p_.row_bytes / 16 / kShare;  // of the warp
    const uint32_t swizzle = row_ * p_.row_bytes >> 3 & (p_.row_bytes - 16);
    for (int chunk = 0; chunk < work.last; ++chunk) {
      ptx::wait(memory_.x_empty + state_.stage, state_.parity ^ 1);
      if (warp_ == 0 && lane_ == 0) copy(work, chunk, w_copies);
      const uint32_t to =
          ptx::shared_address(memory_.pixels) + state_.stage * p_.x_bytes + row_ * p_.row_bytes;
      const int last_term = (chunk + 1) * p_.row_channels;
      const Row row{bytes,  terms_ + chunk * p_.row_channels * kTermBytes, rows, columns, to,
                    swizzle};
      if (meets_all && last_term <= gather.terms) {
        fill<true, kBatch>(row, share_ * units, units);
      } else {
        fill<false, kBatch>(row, share_ * units, units);
      }
      ptx::fence_shared_writes();
      __syncwarp();
      if (lane_ == 0) ptx::arrive(memory_.x_full + state_.stage);
      state_.advance(p_.x_stages);
    }
  }

 private:
  static constexpr int kBatch = kGatherLoads / kUnit;
  // Where a pixel's terms of a stage come from, and go to.
  struct Row {
    const char* pixel;
    uint32_t terms;
    uint32_t rows, columns;  // of the filter, that meet the image
    uint32_t to, swizzle;
  };

  // Taps of an axis whose pixels are in [0, size), of which the first one's is `first`.
  static __device__ uint32_t in_range(int first, int dilation, int taps, int size) {
    uint32_t mask = 0;
    for (int i = 0; i < taps; ++i, first += dilation) {
      mask |= static_cast<uint32_t>(static_cast<unsigned>(first) < static_cast<unsigned>(size))
              << i;
    }
    return mask;
  }

  // Weights of a stage.
  __device__ void copy(const Work& work, int chunk, int copies) {
    ptx::Barrier* full = memory_.x_full + state_.stage;
    ptx::arrive_and_expect_tx(full, copies * p_.w_copy_bytes);
    char* const to = memory_.weights + (p_.keeps_weights ? chunk : state_.stage) * p_.w_bytes;
#pragma unroll 1
    for (int i = 0; i < copies; ++i) copy_weights<false>(p_, work, to, full, chunk, 0, i);
  }

  // Units of 16 bytes, of which so many are on their way at a time.
  template <bool kExist, int kUnits>
  __device__ void fill(const Row& row, int first, int units) const {
    if constexpr (kUnits > 1) {
      if (units % kUnits != 0) return fill<kExist, kUnits / 2>(row, first, units);
    }
    for (int unit = first; unit < first + units; unit += kUnits) {
      uint32_t bits[kUnits * kUnit];
#pragma unroll
      for (int i = 0; i < kUnits * kUnit; ++i) {
        bits[i] = fetch<kExist>(row, row.terms + (unit * kUnit + i) * kTermBytes);
      }
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        ptx::store_shared(row.to + ((unit + i) * 16 ^ row.swizzle), pack(bits + i * kUnit));
      }
    }
  }

  template <bool kExist>
  __device__ static uint32_t fetch(const Row& row, uint32_t at) {
    const uint2 term = ptx::load_shared<uint2>(at);
    const bool exists = kExist || (row.rows >> (term.y & 31) & row.columns >> (term.y >> 8 & 31) &
                                   1 & ~(term.y >> 16)) != 0;
    return exists ? *reinterpret_cast<const Bits*>(row.pixel + static_cast<int>(term.x)) : Bits{0};
  }

  __device__ static uint4 pack(const uint32_t* bits) {
    if constexpr (sizeof(T) == 2) {
      return make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16,
                        bits[6] | bits[7] << 16);
    } else {
      return make_uint4(ptx::round_tf32(bits[0]), ptx::round_tf32(bits[1]),
                        ptx::round_tf32(bits[2]), ptx::round_tf32(bits[3]));
    }
  }

  const Params& p_;
  const Memory& memory_;
  uint32_t terms_;
  int row_, share_, warp_, lane_;
  ptx::PipelineState state_;
};

}  // namespace customconv::implicit_gemm::sm90
