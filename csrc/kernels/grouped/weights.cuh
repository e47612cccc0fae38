// The weights of a block, from the filter as it lies in memory: matrices of eight output channels
// by a piece of a tap's input channels, in the order of steps.
#pragma once

#include <cstdint>

#include "kernels/grouped/block.cuh"
#include "kernels/grouped/pack.cuh"
#include "kernels/ptx/prefetch.cuh"
#include "kernels/ptx/shared.cuh"

namespace customconv::grouped {

// Brings the weights of a block's groups near, where its warps fetch them in several turns, each of
// which would wait for memory.
template <typename T>
__device__ inline void prefetch_weights(const Crew& crew, const BoxParams<T>& p, int first_set) {
  constexpr int kLine = 128;
  const int group = first_set * p.work.pack,
            groups = min(p.work.sets * p.work.pack, p.groups - group);
  const auto* first = reinterpret_cast<const char*>(p.weights) + int64_t{group} * p.group_weights;
  for (int i = crew.thread * kLine; i < groups * p.group_weights; i += crew.threads * kLine) {
    ptx::prefetch_line(first + i);
  }
}

// Where a piece is in the filter. Every step has two; if a phase has an odd number of pieces, its
// last one has none beside it.
template <typename T>
__device__ inline FilterPiece filter_piece(const BoxParams<T>& p, int number) {
  const PhaseTaps phase = phase_of(p.tile.h, p.tile.w, p.work.pieces, 2, number, 2);
  int32_t r = phase.place;
  const int piece = p.by_pieces.split(r), s = phase.by_w.split(r);
  const int channel = piece * (kPieceBytes / static_cast<int>(sizeof(T)));
  return {(phase.h.first + r * phase.h.step) * p.weight_r +
              (phase.w.first + s * phase.w.step) * p.weight_s + channel * p.weight_c,
          phase.place < phase.count * p.work.pieces ? channel : kNoPiece};
}
// The one that another lane found.
__device__ inline FilterPiece piece_of_lane(const FilterPiece& own, int lane) {
  return {__shfl_sync(~0u, own.offset, lane), __shfl_sync(~0u, own.channel, lane)};
}

// Lists how far pieces are from a pixel's row in a tile's boxes, of each set and step two.
template <typename T>
__device__ inline void list_pieces(const Crew& crew, const BoxParams<T>& p,
                                   const BoxMemory& memory) {
#pragma unroll 1
  for (int i = crew.thread; i < p.work.sets * p.by_set.divisor(); i += crew.threads) {
    int32_t set = i;
    const PhaseTaps phase = phase_of(p.tile.h, p.tile.w, p.work.pieces, 2, p.by_set.split(set), 2);
    int32_t r = min(phase.place, phase.count * p.work.pieces - 1);
    const int piece = p.by_pieces.split(r), s = phase.by_w.split(r);
    const int h = phase.h.offset + r * phase.h.offset_step;
    const int w = phase.w.offset + s * phase.w.offset_step;
    memory.table[i] = piece_place(set * p.work.pieces + piece, p.work.box_bytes) +
                      rows_between(p.tile, h, w) * kBoxRowBytes;
  }
}

// An output channel's weights of a set's pieces.
template <typename T>
struct WeightRow {
  const T* from;  // where those of the set's first channel were
  int first;      // channel of its group, seen from the set's first one
  int count;      // channels of the group

  // A piece, zeros where the channels are another group's. `Vector`: what is read at once.
  template <typename Vector>
  __device__ uint4 piece(const FilterPiece& piece, int64_t apart) const {
    constexpr int kVectors = kPieceBytes / static_cast<int>(sizeof(Vector));
    constexpr int kElements = kPieceBytes / static_cast<int>(sizeof(T));
    alignas(kPieceBytes) T values[kElements] = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int own = i * (kElements / kVectors), channel = piece.channel - first + own;
      if (static_cast<unsigned>(channel) < static_cast<unsigned>(count)) {
        reinterpret_cast<Vector*>(values)[i] =
            *reinterpret_cast<const Vector*>(from + piece.offset + own * apart);
      }
    }
#pragma unroll
    for (int e = 0; e < kElements; ++e) values[e] = operand(values[e]);
    return *reinterpret_cast<const uint4*>(values);
  }
};

// The first weights are on their way to the block before the first boxes, which would keep them
// waiting.
constexpr int kWeightsAsked = 4;  // a barrier of all threads
template <typename T>
__device__ inline void start_boxes(const BoxParams<T>& p) {
  ptx::named_barrier_arrive(kWeightsAsked, p.work.warps * 32 + p.loaders);
}
template <typename T>
__device__ inline void await_start(const BoxParams<T>& p) {
  ptx::named_barrier_sync(kWeightsAsked, p.work.warps * 32 + p.loaders);
}

// Fetches the weights of a warp's channels, together with the warps that share these: a lane a row
// of a matrix. `channel`: the first one of the set's. `kTransposed`: where output channels are the
// neighbours in memory, rows are input channels at first; a set is one group then. `meanwhile`:
// what to do while the first ones are on their way; it is told whether there are more.
template <typename T, int kChannels, typename Vector, bool kTransposed, typename Meanwhile>
__device__ inline void fill_weights(const BoxParams<T>& p, int set, int channel, int warp,
                                    uint32_t to, const Meanwhile& meanwhile) {
  // Four matrices at a time: both pieces of two instructions, of one step or of two.
  constexpr int kSteps = kChannels == 1 ? 2 : 1, kTurns = kChannels * kSteps / 2;
  // On their way together.
  constexpr int kPieces = sizeof(Vector) < 16 ? sizeof(Vector) == 8 ? 4 : 2
                          : kChannels == 1    ? 6
                          : kChannels == 2    ? 8
                                              : 12;
  constexpr int kAtOnce = kPieces / kTurns;
  static_assert(kAtOnce * kSteps * 2 <= 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int apart = kSteps * p.pixel_warps;  // from one turn's first step to the next one's
  WeightRow<T> row[kTurns];
#pragma unroll
  for (int j = 0; j < kTurns; ++j) {
    const int instruction = j * 2 + (kSteps == 1 ? lane / 16 : 0);
    const int first_k = channel + instruction * kBoxChannelTile;
    const int k = first_k + (kTransposed ? 0 : lane % 8);
    int32_t own = k;
    const int group_k = p.by_K.split(own);
    const int64_t group = int64_t{set} * p.work.pack + own;
    row[j].first = own * p.group_C;
    row[j].count = k < p.work.K && group < p.groups ? p.group_C : 0;
    row[j].from = p.weights + group * p.weight_group + group_k * p.weight_k +
                  ((kTransposed ? lane % 8 : 0) - row[j].first) * p.weight_c;
  }
  int first = warp * kSteps;
  const int begin = first;
#pragma unroll 1
  do {
    // Each lane finds one of the pieces.
    const int found =
        min(first + lane / (2 * kSteps) * apart + lane / 2 % kSteps, p.work.steps - 1);
    const FilterPiece own = filter_piece(p, found * 2 + lane % 2);
    uint4 pieces[kAtOnce][kTurns];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int sub_step = kSteps == 1 ? 0 : lane / 16;
      const FilterPiece piece = piece_of_lane(own, (i * kSteps + sub_step) * 2 + lane / 8 % 2);
#pragma unroll
      for (int j = 0; j < kTurns; ++j) {
        pieces[i][j] = row[j].template piece<Vector>(piece, p.weight_c);
      }
    }
    if (first == begin) meanwhile(/*more=*/first + kAtOnce * apart < p.work.steps);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int step = first + i * apart;
      if (step >= p.work.steps) break;
#pragma unroll
      for (int j = 0; j < kTurns; ++j) {
        const uint32_t matrices =
            to + (step * kChannels + j * 2) * kStepWeights + lane * kPieceBytes;
        ptx::store_shared(matrices, pieces[i][j]);
        if constexpr (kTransposed) {
          uint32_t transposed[4];
          __syncwarp();
          ptx::load_transposed_matrices(matrices, transposed);
          ptx::store_matrices(matrices, transposed[0], transposed[1], transposed[2], transposed[3]);
        }
      }
    }
    first += kAtOnce * apart;
  } while (first < p.work.steps);
}
template <typename T, int kChannels, typename Meanwhile>
__device__ inline void fill_weights(const BoxParams<T>& p, int set, int channel, int warp,
                                    uint32_t to, const Meanwhile& meanwhile) {
  if constexpr (sizeof(T) == 2) {
    if (p.weight_transposed) {
      fill_weights<T, kChannels, uint4, true>(p, set, channel, warp, to, meanwhile);
      return;
    }
  }
  switch (p.weight_vector) {
    case 16:
      fill_weights<T, kChannels, uint4, false>(p, set, channel, warp, to, meanwhile);
      break;
    case 8:
      fill_weights<T, kChannels, uint2, false>(p, set, channel, warp, to, meanwhile);
      break;
    default:
      fill_weights<T, kChannels, T, false>(p, set, channel, warp, to, meanwhile);
  }
}

}  // namespace customconv::grouped
