// What a kernel is told that computes by boxes, and a block's shared memory: forward and input
// gradient.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/common/divide.cuh"
#include "kernels/epilogue.h"
#include "kernels/grouped/box.cuh"
#include "kernels/grouped/input.cuh"
#include "kernels/grouped/planes.cuh"
#include "kernels/grouped/strips.cuh"
#include "kernels/ptx/barrier.cuh"

namespace customconv::grouped {

// A piece of a tap's channels, in the filter.
struct FilterPiece {
  int64_t offset;  // from an output channel's weight of the first tap and channel
  int channel;     // the piece's first one of the set's; kNoPiece where there is no piece
};
constexpr int kNoPiece = INT32_MIN / 2;

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
  int group_weights;       // bytes of a group's, where groups follow each other; else 0
  int weight_vector;       // bytes of an output channel's that are read at once
  bool weight_transposed;  // sixteen bytes of an input channel's are
  Epilogue epilogue;
  BoxWork work;
  int groups, group_C;
  int all_K;  // of all groups
  int pixel_warps;
  int loaders;  // threads that bring boxes
  int stage_bytes, brought_bytes;
  int store_bytes;              // of a plane, that are stored at once
  Divider<int32_t> by_vectors;  // of so many bytes, of a tile's plane
  bool finishes;                // there is an epilogue
  int tile_blocks;
  Divider<int32_t> slices, parts;
  Divider<int32_t> by_K, by_pieces, by_set;  // of a group, a tap, and a set: pieces of its steps
  Divider<int32_t> by_pixel_warps, by_column_warps, by_row_bytes;
  StripBox strip_box;  // where it is made of strips; in front, it cost other kernels registers
};

// A block's shared memory.
struct BoxMemory {
  template <typename T>
  __device__ BoxMemory(const BoxParams<T>& p, char* memory)
      : stages(memory),
        boxes(memory + p.work.boxes_at),
        weights(memory + p.work.weights_at),
        staging(memory + p.work.staging_at),
        spots(reinterpret_cast<Spot*>(memory + p.work.spots_at)),
        table(reinterpret_cast<int*>(memory + p.work.table_at)),
        full(reinterpret_cast<ptx::Barrier*>(memory + p.work.barriers_at)),
        empty(full + kMostStages),
        list(memory + p.work.list_at) {}

  char* stages;
  char* boxes;    // where they are made of strips
  char* weights;  // of each warp of channels, phase and step what it multiplies
  char* staging;  // of results
  Spot* spots;    // of a tile's positions
  int* table;     // of each set, phase and step: how far from a pixel's row its two pieces are
  ptx::Barrier *full, *empty;  // of the stages
  char* list;                  // how boxes are brought, where TMA does not

  __device__ Brought* brought() const { return reinterpret_cast<Brought*>(list); }
};

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

}  // namespace customconv::grouped
