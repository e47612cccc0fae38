// Forward and input gradient of channels-last images: the copy engine brings boxes of pixels, rows
// of 128 bytes of channels with the 128-byte swizzle, and warps multiply them where they lie. The
// pixels are the rows of the matrix instruction, output channels its columns.
//
// What a block multiplies as one are sets of groups. Where a set has several, the weights between
// one group's input and another's output are zeros. A NaN or an infinity times zero is a NaN, so
// sums that are not finite are summed again, group by group, the others' channels masked.
#pragma once

#include <type_traits>

#include "kernels/grouped/box.cuh"
#include "kernels/grouped/input.cuh"
#include "kernels/grouped/output.cuh"
#include "kernels/grouped/pack.cuh"
#include "kernels/grouped/planes.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/prefetch.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::grouped {

template <typename T>
struct BoxParams {
  CUtensorMap in, out_of[kMostBoxPhases];
  Image<T> image;  // what `in` is of
  PlaneBox box;    // where threads bring it
  TileParams tile;
  T* out;
  int64_t out_n, out_c, out_h, out_w;
  const T* weights;
  int64_t weight_group, weight_k, weight_c, weight_r, weight_s;
  int group_weights;  // bytes of a group's, where groups follow each other; else 0
  bool weight_pairs;  // two channels are neighbours in memory, of which both are a group's or none
  Epilogue epilogue;
  int pack, C, K;  // groups of a set, and its channels
  int groups;
  int all_K;                                                                 // of all groups
  int sets, pieces, column_warps, pixel_warps, warps, boxes, steps, stages;  // see BoxWork
  int box_bytes, stage_bytes, brought_bytes;
  int out_boxes, out_box_bytes, out_row_bytes, out_pitch, stored;
  int store_bytes;              // of a plane, that are stored at once
  Divider<int32_t> by_vectors;  // of so many bytes, of a tile's plane
  // In shared memory:
  int weights_at, staging_at, spots_at, filter_at, table_at, barriers_at, list_at;
  bool finishes;  // there is an epilogue
  int tiles, tile_blocks;
  Divider<int32_t> slices, parts;
};

// A piece of a tap's channels, in the filter.
struct alignas(16) FilterPiece {
  int64_t offset;  // from an output channel's weight of the first tap and channel
  int channel;     // the piece's first one of the set's; kNoPiece where there is no piece
};
constexpr int kNoPiece = INT32_MIN / 2;
static_assert(sizeof(FilterPiece) == kFilterPieceBytes);

// A block's shared memory.
struct BoxMemory {
  template <typename T>
  __device__ BoxMemory(const BoxParams<T>& p, char* memory)
      : stages(memory),
        weights(memory + p.weights_at),
        staging(memory + p.staging_at),
        spots(reinterpret_cast<Spot*>(memory + p.spots_at)),
        filter(reinterpret_cast<FilterPiece*>(memory + p.filter_at)),
        table(reinterpret_cast<int*>(memory + p.table_at)),
        full(reinterpret_cast<ptx::Barrier*>(memory + p.barriers_at)),
        empty(full + kMostStages),
        list(reinterpret_cast<Brought*>(memory + p.list_at)) {}

  char* stages;
  char* weights;        // of each warp of channels, phase and step what all lanes multiply
  char* staging;        // of results
  Spot* spots;          // of a tile's positions
  FilterPiece* filter;  // of each phase and step two
  int* table;  // of each set, phase and step: how far from a pixel's row its two pieces are
  ptx::Barrier *full, *empty;  // of the stages
  Brought* list;               // where threads bring boxes
};

template <typename T>
__device__ inline void list_pieces(const Crew& crew, const BoxParams<T>& p,
                                   const BoxMemory& memory) {
  for (int i = crew.thread; i < p.sets * p.steps * 2; i += crew.threads) {
    const int set = i / (p.steps * 2);
    const PhaseTaps phase = phase_of(p.tile.h, p.tile.w, p.pieces, 2, i % (p.steps * 2), 2);
    // Of an odd number of pieces the last has none beside it, which nothing will read.
    const int place = min(phase.place, phase.count * p.pieces - 1);
    const int tap = place / p.pieces, piece = place % p.pieces;
    const int r = tap / phase.w.count, s = tap % phase.w.count;
    const int h = phase.h.offset + r * phase.h.offset_step;
    const int w = phase.w.offset + s * phase.w.offset_step;
    memory.table[i] = piece_place(set * p.pieces + piece, p.box_bytes) +
                      rows_between(p.tile, h, w) * kBoxRowBytes;
    if (set > 0) continue;
    const int channel = piece * (kPieceBytes / static_cast<int>(sizeof(T)));
    memory.filter[i] = {(phase.h.first + r * phase.h.step) * p.weight_r +
                            (phase.w.first + s * phase.w.step) * p.weight_s + channel * p.weight_c,
                        place == phase.place ? channel : kNoPiece};
  }
}

constexpr int kLaneWeights = 2 * 4 * 32;  // bytes, of an instruction

// Where a lane's weights of an output channel are: of every piece four bytes.
template <typename T>
struct WeightRow {
  const T* from;     // those of the set's first piece
  int first, count;  // channel of these, seen from the group's first one, and the group's channels

  // Zeros where the channels are another group's.
  template <bool kPairs>
  __device__ uint32_t word(const FilterPiece& piece, int64_t apart) const {
    constexpr int kElements = 4 / static_cast<int>(sizeof(T));
    const T* at = from + piece.offset;
    const auto exists = [&](int e) {
      return static_cast<unsigned>(piece.channel + first + e) < static_cast<unsigned>(count);
    };
    if constexpr (kPairs) return exists(0) ? *reinterpret_cast<const uint32_t*>(at) : 0;
    alignas(4) T values[kElements] = {};
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (exists(e)) values[e] = operand(at[e * apart]);
    }
    return *reinterpret_cast<const uint32_t*>(values);
  }
};

// Writes the weights of a warp's channels, together with the warps that share these.
// `channel`: the first one of the set's.
template <typename T, int kChannels, bool kPairs>
__device__ inline void fill_weights(const BoxParams<T>& p, const FilterPiece* filter, int set,
                                    int channel, int warp, char* to) {
  constexpr int kElements = 4 / static_cast<int>(sizeof(T));
  constexpr int kAtOnce = 8 / kChannels;  // steps
  const int lane = static_cast<int>(threadIdx.x) % 32, own_C = p.C / p.pack, own_K = p.K / p.pack;
  WeightRow<T> row[kChannels];
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    const int k = channel + j * kBoxChannelTile + lane / 4, own = k / own_K;
    const int64_t group = int64_t{set} * p.pack + own;
    row[j].first = lane % 4 * kElements - own * own_C;
    row[j].count = k < p.K && group < p.groups ? own_C : 0;
    row[j].from = p.weights + group * p.weight_group + (k - own * own_K) * p.weight_k +
                  row[j].first * p.weight_c;
  }
#pragma unroll 1
  for (int first = warp; first < p.steps; first += kAtOnce * p.pixel_warps) {
    uint2 words[kAtOnce][kChannels];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const FilterPiece* pieces = filter + min(first + i * p.pixel_warps, p.steps - 1) * 2;
      const FilterPiece near = pieces[0], far = pieces[1];
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        words[i][j] = {row[j].template word<kPairs>(near, p.weight_c),
                       row[j].template word<kPairs>(far, p.weight_c)};
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int step = first + i * p.pixel_warps;
      if (step >= p.steps) break;
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        *reinterpret_cast<uint2*>(to + (step * kChannels + j) * kLaneWeights + lane * 8) =
            words[i][j];
      }
    }
  }
}

// Whole warps, so that the compiler keeps what they count in uniform registers; one of the threads
// starts the copies.
template <typename T>
__device__ inline void load_boxes(const BoxParams<T>& p, const BoxMemory& memory, int first_set,
                                  int first_tile) {
  const bool elected = ptx::elect_one();
  const int channel = first_set * p.C;
  Turn turn;
  for (int tile = first_tile; tile < p.tiles; tile += p.tile_blocks) {
    const Place at = place_of(p.tile, tile);
    ptx::Barrier* full = &memory.full[turn.stage];
    ptx::wait(&memory.empty[turn.stage], turn.parity ^ 1);
    if (elected) {
      ptx::arrive_expecting(full, p.brought_bytes);
      bring_tile<T>(p.tile, p.in, full, channel, at, p.boxes, p.box_bytes,
                    memory.stages + turn.stage * p.stage_bytes);
    }
    turn.advance(p.stages);
  }
}

// The same by threads.
template <typename T>
__device__ inline void load_planes(const BoxParams<T>& p, const BoxMemory& memory, int first_set,
                                   int first_tile) {
  const Crew crew = producers(kMostThreads);
  const PlaneCopies<T> copies(crew, p.image, p.box, first_set * p.C, p.sets * p.pieces,
                              p.box_bytes);
  Turn turn;
#pragma unroll 1
  for (int tile = first_tile; tile < p.tiles; tile += p.tile_blocks) {
    const Place at = place_of(p.tile, tile);
    crew.sync();  // the list of the tile before is no longer read
    find_vectors(crew, p.box, p.image, p.tile.h.in, p.tile.w.in, p.tile.N, at.n,
                 at.h * p.tile.h.step + p.tile.h.first, at.w * p.tile.w.step + p.tile.w.first,
                 memory.list);
    crew.sync();
    ptx::wait(&memory.empty[turn.stage], turn.parity ^ 1);
    copies.bring(memory.list, memory.stages + turn.stage * p.stage_bytes);
    ptx::arrive(&memory.full[turn.stage]);
    turn.advance(p.stages);
  }
}

// What a lane multiplies of all groups of a set, and of one alone.
struct AllGroups {
  template <int kWords>
  __device__ void apply(int, uint32_t (&)[kWords]) const {}
};
template <typename T>
struct OneGroup {
  int group, C;  // of the set, and its channels
  int pieces;

  template <int kWords>
  __device__ void apply(int step, uint32_t (&words)[kWords]) const {
    constexpr int kElements = 4 / static_cast<int>(sizeof(T)), kBits = 32 / kElements;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int word = (step * 2 + i / 2) % pieces * 4 + static_cast<int>(threadIdx.x) % 4;
      uint32_t mask = 0;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if ((word * kElements + e) / C == group) mask |= (~0u >> (32 - kBits)) << e * kBits;
      }
      words[i] &= mask;
    }
  }
};

// Adds so many pieces of taps' channels, two a step. `pixel`: the addresses of the rows of a lane's
// pixels.
template <typename T, int kPixels, int kChannels, typename Groups>
__device__ inline void add_boxes(const uint32_t (&pixel)[kPixels], const int* table,
                                 const char* weights, int pieces, const Groups& groups,
                                 float (&sum)[kPixels][kChannels][4]) {
  const auto load_filter = [&](int step, uint2(&filter)[kChannels]) {
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      filter[j] = *reinterpret_cast<const uint2*>(weights + (step * kChannels + j) * kLaneWeights);
    }
  };
#pragma unroll 2
  for (int step = 0; step < pieces / 2; ++step) {
    const int at = table[step * 2];
    uint2 filter[kChannels];
    uint32_t operand[kPixels][4];
    load_filter(step, filter);
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      ptx::load_matrices(swizzle(pixel[i] + at), operand[i]);
      groups.apply(step, operand[i]);
    }
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        ptx::multiply_add<T>(sum[i][j], operand[i], filter[j].x, filter[j].y);
      }
    }
  }
  if (pieces % 2 == 0) return;
  const int at = table[pieces - 1];
  uint2 filter[kChannels];
  load_filter(pieces / 2, filter);
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    uint32_t operand[2];
    ptx::load_matrices(swizzle(pixel[i] + at), operand);
    groups.apply(pieces / 2, operand);
#pragma unroll
    for (int j = 0; j < kChannels; ++j) ptx::multiply_add<T>(sum[i][j], operand, filter[j].x);
  }
}

// What a lane computes: of every instruction two neighbouring channels.
struct LaneChannels {
  int first, in_set;  // of all, and of the set's
  int in_block;       // of those that the block stores
  int set_end, end;   // behind the last one of the set's, and of all

  // The channels of an instruction of which so many exist.
  __device__ int count(int instruction) const {
    const int further = instruction * kBoxChannelTile;
    return min(set_end - in_set, end - first) - further;
  }
};

template <typename T, int kPixels, int kChannels>
__device__ inline void finish_sums(const Epilogue& e, const Rest& rest, const Spot* spots,
                                   const LaneChannels& channels, int64_t out_c,
                                   float (&sum)[kPixels][kChannels][4]) {
  const auto add_residual = [&] {
#pragma unroll
    for (int i = 0; i < kPixels * 2; ++i) {
      const Spot spot = spots[i * 8];
      if (!rest.has(spot)) continue;
      const T* from =
          static_cast<const T*>(e.residual) + rest.offset + spot.offset + channels.first * out_c;
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (k < channels.count(j)) {
            sum[i / 2][j][i % 2 * 2 + k] += widen(from[(j * kBoxChannelTile + k) * out_c]);
          }
        }
      }
    }
  };
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    const Affine<2, T> affine(e, channels.first + j * kBoxChannelTile, channels.count(j));
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        sum[i][j][k] = fmaf(sum[i][j][k], affine.scale[k % 2], affine.bias[k % 2]);
      }
    }
  }
  if (e.residual != nullptr && !e.residual_last) add_residual();
  activate<kPixels * kChannels * 4>(&sum[0][0][0], e.activation, e.negative_slope);
  if (e.residual != nullptr && e.residual_last) add_residual();
}

// Puts sums where the copy engine finds them: rows of a pixel's channels. Those of 128 bytes are
// swizzled as boxes are; shorter ones cannot be.
template <typename T, int kPixels, int kChannels>
__device__ inline void stage_sums(const BoxParams<T>& p, char* staging, int pixel,
                                  const LaneChannels& channels,
                                  const float (&sum)[kPixels][kChannels][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t to = ptx::shared_address(staging) + (pixel + lane / 4) * p.out_row_bytes;
  const uint32_t swizzled = p.out_row_bytes == kBoxRowBytes ? kSwizzled : 0;
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    if (channels.count(j) <= 0) break;
    const int bytes = (channels.in_block + j * kBoxChannelTile) * static_cast<int>(sizeof(T));
    const int box = bytes / p.out_row_bytes;
    const uint32_t place = to + box * p.out_box_bytes + bytes - box * p.out_row_bytes;
#pragma unroll
    for (int i = 0; i < kPixels * 2; ++i) {
      if (pixel + i * 8 + lane / 4 >= p.tile.pixels) break;
      const float* pair = &sum[i / 2][j][i % 2 * 2];
      const uint32_t address = swizzle(place + i * 8 * p.out_row_bytes, swizzled);
      if constexpr (sizeof(T) == 4) {
        ptx::store_shared(address, pair[0], pair[1]);
      } else {
        ptx::store_shared(address, pack_pair<T>(pair[0], pair[1]));
      }
    }
  }
}

// The same in planes of pixels.
template <typename T, int kPixels, int kChannels>
__device__ inline void stage_planes(const BoxParams<T>& p, char* staging, int pixel,
                                    const LaneChannels& channels,
                                    const float (&sum)[kPixels][kChannels][4]) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t to = ptx::shared_address(staging) + pixel * kSize;
  if constexpr (kSize == 2) {
    if (p.K % kBoxChannelTile == 0) {
      // Matrices: the pixels of two instructions, eight by eight, by the same channels.
      const int own = lane % 4 * 2;
      const uint32_t place =
          to + (channels.in_block - own + lane % 8) * p.out_pitch + lane / 8 * 16;
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        if (channels.in_set - own + j * kBoxChannelTile >= p.K) break;
#pragma unroll
        for (int i = 0; i < kPixels; i += 2) {
          const float (&a)[4] = sum[i][j];
          const float (&b)[4] = sum[i + 1][j];
          ptx::store_transposed_matrices(place + j * kBoxChannelTile * p.out_pitch + i * 32,
                                         pack_pair<T>(a[0], a[1]), pack_pair<T>(a[2], a[3]),
                                         pack_pair<T>(b[0], b[1]), pack_pair<T>(b[2], b[3]));
        }
      }
      return;
    }
  }
  char* own = staging + (pixel + lane / 4) * kSize + channels.in_block * p.out_pitch;
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (k >= channels.count(j)) continue;
      char* line = own + (j * kBoxChannelTile + k) * p.out_pitch;
#pragma unroll
      for (int i = 0; i < kPixels * 2; ++i) {
        *reinterpret_cast<T*>(line + i * 8 * kSize) = narrow<T>(sum[i / 2][j][i % 2 * 2 + k]);
      }
    }
  }
}

// Stores staged planes. `first`, `count`: of all channels those of the block.
template <typename Vector, typename T>
__device__ inline void store_planes(const BoxParams<T>& p, const Rest& rest, const Spot* spots,
                                    int first, int count, const char* staging, int threads) {
  const int vectors = p.by_vectors.divisor();
  for (int i = threadIdx.x; i < count * vectors; i += threads) {
    int32_t channel = i;
    const int at = p.by_vectors.split(channel) * static_cast<int>(sizeof(Vector));
    const Spot spot = spots[at / static_cast<int>(sizeof(T))];
    if (!rest.has(spot)) continue;
    T* to = p.out + rest.offset + spot.offset + (first + channel) * p.out_c;
    *reinterpret_cast<Vector*>(to) =
        *reinterpret_cast<const Vector*>(staging + channel * p.out_pitch + at);
  }
}
template <typename T>
__device__ inline void store_planes(const BoxParams<T>& p, const Rest& rest, const Spot* spots,
                                    int first, int count, const char* staging, int threads) {
  switch (p.store_bytes) {
    case 16:
      store_planes<uint4>(p, rest, spots, first, count, staging, threads);
      break;
    case 8:
      store_planes<uint2>(p, rest, spots, first, count, staging, threads);
      break;
    case 4:
      store_planes<uint32_t>(p, rest, spots, first, count, staging, threads);
      break;
    default:
      store_planes<uint16_t>(p, rest, spots, first, count, staging, threads);
  }
}

// Stores sums one by one.
template <typename T, int kPixels, int kChannels>
__device__ inline void store_sums(const BoxParams<T>& p, const Rest& rest, const Spot* spots,
                                  const LaneChannels& channels,
                                  const float (&sum)[kPixels][kChannels][4]) {
#pragma unroll
  for (int i = 0; i < kPixels * 2; ++i) {
    const Spot spot = spots[i * 8];
    if (!rest.has(spot)) continue;
    T* to = p.out + rest.offset + spot.offset + channels.first * p.out_c;
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (k >= channels.count(j)) continue;
        to[(j * kBoxChannelTile + k) * p.out_c] = narrow<T>(sum[i / 2][j][i % 2 * 2 + k]);
      }
    }
  }
}

template <int kPixels, int kChannels>
__device__ inline bool any_is_not_finite(const float (&sum)[kPixels][kChannels][4]) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) zero = fmaf(sum[i][j][e], 0.0f, zero);
    }
  }
  return __any_sync(~0u, zero != 0);
}

// Sums again, group by group of a set.
template <typename T, int kPixels, int kChannels>
__device__ inline void add_groups(const BoxParams<T>& p, const uint32_t (&pixel)[kPixels],
                                  const int* table, const char* weights, int pieces,
                                  const LaneChannels& channels,
                                  float (&sum)[kPixels][kChannels][4]) {
  const int own_K = p.K / p.pack;
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    const uint32_t one[1] = {pixel[i]};
#pragma unroll 1
    for (int group = 0; group < p.pack; ++group) {
      float own[1][kChannels][4] = {};
      add_boxes<T>(one, table, weights, pieces, OneGroup<T>{group, p.C / p.pack, p.pieces}, own);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int k = channels.in_set + j * kBoxChannelTile + e % 2;
          if (k / own_K == group) sum[i][j][e] = own[0][j][e];
        }
      }
    }
  }
}

template <typename T, int kPixels, int kChannels>
__device__ inline void multiply_boxes(const Crew& crew, const BoxParams<T>& p,
                                      const BoxMemory& memory, int first_set, int part,
                                      int first_tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int warp = static_cast<int>(threadIdx.x) / 32;
  const int pixel_warp = warp % p.pixel_warps;
  const int first_pixel = pixel_warp * kPixels * kBoxPixelTile;
  warp /= p.pixel_warps;
  const int column = warp % p.column_warps, set = warp / p.column_warps;
  constexpr int kStepBytes = kLaneWeights * kChannels;
  char* const own_weights = memory.weights + warp * p.steps * kStepBytes;
  const char* weights = own_weights + lane * 8;
  const int* table = memory.table + set * p.steps * 2 + lane / 16;
  const int in_part = column * kChannels * kBoxChannelTile + lane % 4 * 2;
  const int first_channel = (part * p.column_warps + column) * kChannels * kBoxChannelTile;
  if (sizeof(T) == 2 && p.weight_pairs) {
    fill_weights<T, kChannels, true>(p, memory.filter, first_set + set, first_channel, pixel_warp,
                                     own_weights);
  } else {
    fill_weights<T, kChannels, false>(p, memory.filter, first_set + set, first_channel, pixel_warp,
                                      own_weights);
  }
  crew.sync();
  LaneChannels channels;
  channels.in_set = first_channel + lane % 4 * 2;
  channels.first = (first_set + set) * p.K + channels.in_set;
  channels.in_block = set * p.K + in_part;
  channels.set_end = p.K;
  channels.end = p.all_K;
  const int in_set = part * p.column_warps * kChannels * kBoxChannelTile;  // the block's first one
  const int block_first = first_set * p.K + in_set;
  const int stored = min(min(p.stored, p.sets * p.K - in_set), p.all_K - block_first);
  const uint32_t stages = ptx::shared_address(memory.stages);
  uint32_t row[kPixels];
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    const int pixel = first_pixel + i * kBoxPixelTile + lane % 16;
    row[i] = pixel < p.tile.pixels ? box_row(p.tile, memory.spots[pixel]) * kBoxRowBytes : 0;
  }
  const Spot* spots = memory.spots + first_pixel + lane / 4;
  const int phases = p.tile.h.phases * p.tile.w.phases;
  char* staging = memory.staging;
  char* next_staging = staging + p.out_boxes * p.out_box_bytes;
  Turn turn;
#pragma unroll 1
  for (int tile = first_tile; tile < p.tiles; tile += p.tile_blocks) {
    const Place at = place_of(p.tile, tile);
    ptx::wait(&memory.full[turn.stage], turn.parity);
    uint32_t pixel[kPixels];
#pragma unroll
    for (int i = 0; i < kPixels; ++i) pixel[i] = row[i] + stages + turn.stage * p.stage_bytes;
    int step = 0;  // the first one of a phase
#pragma unroll 1
    for (int phase = 0; phase < phases; ++phase) {
      const int h = phase / p.tile.w.phases, w = phase % p.tile.w.phases;
      const int pieces = p.tile.h.taps[h].count * p.tile.w.taps[w].count * p.pieces;
      const char* filter = weights + step * kStepBytes;
      float sum[kPixels][kChannels][4] = {};
      add_boxes<T>(pixel, table + step * 2, filter, pieces, AllGroups{}, sum);
      if (p.pack > 1 && any_is_not_finite(sum)) {
        add_groups(p, pixel, table + step * 2, filter, pieces, channels, sum);
      }
      step += (pieces + 1) / 2;
      if (phase + 1 == phases) {
        __syncwarp();
        if (lane == 0) ptx::arrive(&memory.empty[turn.stage]);
      }
      const Rest rest = rest_of(p, at, h, w);
      if (p.finishes) finish_sums<T>(p.epilogue, rest, spots, channels, p.out_c, sum);
      if (p.out_pitch > 0) {
        crew.sync();  // the results before these are stored
        stage_planes(p, staging, first_pixel, channels, sum);
        crew.sync();
        store_planes(p, rest, memory.spots, block_first, stored, staging, crew.threads);
        continue;
      }
      if (p.out_boxes == 0) {
        store_sums(p, rest, spots, channels, sum);
        continue;
      }
      stage_sums(p, staging, first_pixel, channels, sum);
      ptx::fence_shared_writes();
      // The results before these have been read, so that their place can be filled again.
      if (threadIdx.x == 0) ptx::await_store_reads();
      crew.sync();
      if (threadIdx.x == 0 && rest.h > 0 && rest.w > 0) {
        const int apart = p.out_row_bytes / static_cast<int>(sizeof(T));
#pragma unroll 1
        for (int box = 0; box < p.out_boxes; ++box) {
          ptx::store_box(&p.out_of[phase], staging + box * p.out_box_bytes,
                         block_first + box * apart, at.w, at.h, at.n);
        }
        ptx::commit_stores();
      }
      char* const filled = staging;
      staging = next_staging;
      next_staging = filled;
    }
    turn.advance(p.stages);
  }
  if (threadIdx.x == 0) ptx::await_store_reads();
}

// `kPlanes`: threads bring the boxes.
template <typename T, int kIndex, bool kPlanes>
__global__ void __launch_bounds__(kMostThreads + (kPlanes ? box_producers(sizeof(T)) : 32),
                                  kBoxKernels[kIndex].blocks())
    convolve_boxes(const __grid_constant__ BoxParams<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char boxes[];
  const BoxMemory memory(p, boxes);
  int32_t tile = static_cast<int32_t>(blockIdx.x);
  int32_t set = p.slices.split(tile);
  const int part = p.parts.split(set);
  set *= p.sets;
  // The same for all threads of a warp, and the compiler is told so.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  // Warps fill in the weights in turns, each of which would wait for memory.
  const int group = set * p.pack;
  const int weights = min(p.sets * p.pack, p.groups - group) * p.group_weights;
  const auto* first_weight =
      reinterpret_cast<const char*>(p.weights) + int64_t{group} * p.group_weights;
  constexpr int kLine = 128;
  for (int i = static_cast<int>(threadIdx.x) * kLine; i < weights; i += blockDim.x * kLine) {
    ptx::prefetch_line(first_weight + i);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMostStages; ++i) {
      ptx::init_barrier(&memory.full[i], kPlanes ? box_producers(sizeof(T)) : 1);
      ptx::init_barrier(&memory.empty[i], p.warps);
    }
    ptx::fence_barrier_init();
    if (!kPlanes) ptx::prefetch_map(&p.in);
  }
  constexpr int kPixels = kBoxKernels[kIndex].pixels, kChannels = kBoxKernels[kIndex].channels;
  __syncthreads();
  using Registers = BoxRegisters<box_producers(sizeof(T)), kBoxKernels[kIndex].blocks()>;
  if (warp >= (kPlanes ? kMostThreads / 32 : p.warps)) {
    if constexpr (kPlanes) {
      Registers::give();
      load_planes(p, memory, set, tile);
    } else {
      load_boxes(p, memory, set, tile);
    }
    return;
  }
  if constexpr (kPlanes) Registers::take();
  if (warp >= p.warps) return;
  // While the first boxes are on their way.
  const Crew crew = consumers(p.warps * 32);
  list_pieces(crew, p, memory);
  list_positions(crew, p.tile, p.out_n, p.tile.h.phases * p.out_h, p.tile.w.phases * p.out_w,
                 p.pixel_warps * kPixels * kBoxPixelTile, memory.spots);
  crew.sync();
  multiply_boxes<T, kPixels, kChannels>(crew, p, memory, set, part, tile);
#endif
}

}  // namespace customconv::grouped
