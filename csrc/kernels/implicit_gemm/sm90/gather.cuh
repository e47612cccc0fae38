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

// A warp that gathers for 32 positions of each tile: all terms, or a part of them, or all terms of
// a part of the positions. Lanes are positions or neighbouring terms, whichever lie in fewer lines
// of memory.
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
        first_row_(warp / kShare * 32),
        share_(warp % kShare),
        warp_(warp),
        lane_(lane) {}

  // The stages of a tile. The first warp starts the copies of weights.
  __device__ void load(const Work& work, bool loads_weights) {
    const Gather& gather = p_.gather;
    const Place place(p_, work.position + first_row_ + lane_);
    const int h = place.row * gather.stride_h - gather.pad_h;
    const int w = place.column * gather.stride_w - gather.pad_w;
    const auto* const first =
        static_cast<const Bits*>(gather.x) + place.n * gather.n + h * gather.h + w * gather.w;
    Pixel pixel{reinterpret_cast<const char*>(first), 0, 0};
    if (place.n < p_.N) {
      pixel.rows = in_range(h, gather.dilation_h, gather.R, gather.H);
      pixel.columns = in_range(w, gather.dilation_w, gather.S, gather.W);
    }
    const bool meets_all = __all_sync(~0u, pixel.rows == (2u << (gather.R - 1)) - 1 &&
                                               pixel.columns == (2u << (gather.S - 1)) - 1);
    const int w_copies = loads_weights ? weight_copies(p_, work, kTile.channels) : 0;
    for (int chunk = 0; chunk < work.last; ++chunk) {
      ptx::wait(memory_.x_empty + turn_.stage, turn_.parity ^ 1);
      if (warp_ == 0 && lane_ == 0) copy(work, chunk, w_copies);
      const uint32_t stage = ptx::shared_address(memory_.pixels) + turn_.stage * p_.x_bytes;
      const uint32_t terms = terms_ + chunk * p_.row_channels * kTermBytes;
      if (gather.by_terms) {
        meets_all ? fill_by_terms<true>(pixel, terms, stage)
                  : fill_by_terms<false>(pixel, terms, stage);
      } else if (meets_all && (chunk + 1) * p_.row_channels <= gather.terms) {
        fill_by_pixels<true>(pixel, terms, stage);
      } else {
        fill_by_pixels<false>(pixel, terms, stage);
      }
      ptx::fence_shared_writes();
      __syncwarp();
      if (lane_ == 0) ptx::arrive(memory_.x_full + turn_.stage);
      turn_.advance(p_.x_stages);
    }
  }

 private:
  static constexpr int kLaneTerms = 4 / static_cast<int>(sizeof(T));
  // An output pixel: what its first tap meets in channel 0, and which of the filter's rows and
  // columns meet the image.
  struct Pixel {
    const char* first;
    uint32_t rows, columns;
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
    ptx::Barrier* full = memory_.x_full + turn_.stage;
    ptx::arrive_expecting(full, copies * p_.w_copy_bytes);
    char* const to = memory_.weights + (p_.keeps_weights ? chunk : turn_.stage) * p_.w_bytes;
#pragma unroll 1
    for (int i = 0; i < copies; ++i) copy_weights<false>(p_, work, to, full, chunk, 0, i);
  }

  template <bool kExist>
  __device__ static uint32_t fetch(const Pixel& pixel, const Term& term) {
    const bool exists =
        kExist || (pixel.rows >> (term.tap & 31) & pixel.columns >> (term.tap >> 8 & 31) & 1 &
                   ~(term.tap >> 16)) != 0;
    return exists ? *reinterpret_cast<const Bits*>(pixel.first + term.offset) : Bits{0};
  }
  __device__ static Term term_at(uint32_t at) {
    const uint2 term = ptx::load_shared<uint2>(at);
    return {static_cast<int32_t>(term.x), term.y};
  }
  __device__ uint32_t swizzle(int row) const {
    return row * p_.row_bytes >> 3 & (p_.row_bytes - 16);
  }

  // A lane has a position.
  template <bool kExist>
  __device__ void fill_by_pixels(const Pixel& pixel, uint32_t terms, uint32_t stage) const {
    const int row = first_row_ + lane_, units = p_.row_bytes / 16 / kShare;
    fill_units<kExist, kGatherLoads / kUnit>(pixel, terms, stage + row * p_.row_bytes, swizzle(row),
                                             share_ * units, units);
  }
  // Units of 16 bytes, of which `kUnits` are on their way at a time.
  template <bool kExist, int kUnits>
  __device__ void fill_units(const Pixel& pixel, uint32_t terms, uint32_t to, uint32_t swizzle,
                             int first, int units) const {
    if constexpr (kUnits > 1) {
      if (units % kUnits != 0) {
        return fill_units<kExist, kUnits / 2>(pixel, terms, to, swizzle, first, units);
      }
    }
    for (int unit = first; unit < first + units; unit += kUnits) {
      uint32_t bits[kUnits * kUnit];
#pragma unroll
      for (int i = 0; i < kUnits * kUnit; ++i) {
        bits[i] = fetch<kExist>(pixel, term_at(terms + (unit * kUnit + i) * kTermBytes));
      }
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        ptx::store_shared(to + ((unit + i) * 16 ^ swizzle), pack(bits + i * kUnit));
      }
    }
  }

  // A lane has terms of four bytes, and lanes side by side those of a position: so many lanes as
  // its row has words.
  template <bool kMeetsAll>
  __device__ void fill_by_terms(const Pixel& pixel, uint32_t terms, uint32_t stage) const {
    const int own = lane_ % (p_.row_bytes / 4) * kLaneTerms;
    Term lane_terms[kLaneTerms];
#pragma unroll
    for (int i = 0; i < kLaneTerms; ++i) lane_terms[i] = term_at(terms + (own + i) * kTermBytes);
    fill_words<kMeetsAll, kGatherLoads / kLaneTerms>(pixel, lane_terms, stage,
                                                     p_.row_bytes / 4 / kShare);
  }
  // Steps of 128 bytes, of which `kSteps` are on their way at a time.
  template <bool kMeetsAll, int kSteps>
  __device__ void fill_words(const Pixel& pixel, const Term* terms, uint32_t stage,
                             int steps) const {
    constexpr int kLeastSteps = kLeastRowBytes / 4 / kShare;
    if constexpr (kSteps > kLeastSteps) {
      if (steps % kSteps != 0) {
        return fill_words<kMeetsAll, kSteps / 2>(pixel, terms, stage, steps);
      }
    }
    const int lanes = p_.row_bytes / 4;  // of a position
    const int first = share_ * (32 / kShare) + lane_ / lanes, word = lane_ % lanes * 4;
    for (int step = 0; step < steps; step += kSteps) {
      uint32_t bits[kSteps][kLaneTerms];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const Pixel other = of_lane<kMeetsAll>(pixel, first + (step + i) * (32 / lanes));
#pragma unroll
        for (int j = 0; j < kLaneTerms; ++j) bits[i][j] = fetch<false>(other, terms[j]);
      }
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int row = first_row_ + first + (step + i) * (32 / lanes);
        ptx::store_shared(stage + row * p_.row_bytes + (word ^ swizzle(row)), pack_word(bits[i]));
      }
    }
  }
  // Another lane's pixel.
  template <bool kMeetsAll>
  __device__ static Pixel of_lane(const Pixel& pixel, int lane) {
    const auto address = reinterpret_cast<unsigned long long>(pixel.first);
    const auto* const first = reinterpret_cast<const char*>(__shfl_sync(~0u, address, lane));
    if (kMeetsAll) return {first, ~0u, ~0u};
    return {first, __shfl_sync(~0u, pixel.rows, lane), __shfl_sync(~0u, pixel.columns, lane)};
  }

  __device__ static uint32_t pack_word(const uint32_t* bits) {
    if constexpr (sizeof(T) == 2) {
      return bits[0] | bits[1] << 16;
    } else {
      return ptx::round_tf32(bits[0]);
    }
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
  int first_row_, share_, warp_, lane_;
  ptx::Turn turn_;
};

}  // namespace customconv::implicit_gemm::sm90
