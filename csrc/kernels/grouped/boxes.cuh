// Forward and input gradient by boxes of pixels: rows of 128 bytes of channels, with the 128-byte
// swizzle, that TMA brings; of planes of pixels those that multiply make them of strips
// that it brings, or threads bring them. Warps multiply them where they lie: the pixels are the
// rows of the matrix instruction, output channels its columns.
//
// What a block multiplies as one are sets of groups. Where a set has several, the weights between
// one group's input and another's output are zeros. A NaN or an infinity times zero is a NaN, so
// sums that are not finite are summed again, group by group, the others' channels masked.
#pragma once

#include <cstdint>

#include "kernels/grouped/block.cuh"
#include "kernels/grouped/products.cuh"
#include "kernels/grouped/results.cuh"
#include "kernels/grouped/weights.cuh"

namespace customconv::grouped {

template <typename T>
__device__ inline RunPlace run_place(const BoxParams<T>& p, const Place& at) {
  return {p.strip_box, at.h * p.tile.h.step + p.tile.h.first,
          at.w * p.tile.w.step + p.tile.w.first};
}

// Whole warps, so that the compiler keeps what they count in uniform registers; one of the threads
// starts the copies.
template <typename T, bool kStrips>
__device__ inline void load_boxes(const BoxParams<T>& p, const BoxMemory& memory, int first_set,
                                  int first_tile) {
  const bool elected = ptx::elect_one();
  const int channel = first_set * p.work.C;
  ptx::PipelineState state;
  for (int tile = first_tile; tile < p.tile.tiles; tile += p.tile_blocks) {
    const Place at = place_of(p.tile, tile);
    ptx::Barrier* full = &memory.full[state.stage];
    ptx::wait(&memory.empty[state.stage], state.parity ^ 1);
    if (elected) {
      ptx::arrive_and_expect_tx(full, p.brought_bytes);
      char* const to = memory.stages + state.stage * p.stage_bytes;
      if constexpr (kStrips) {
        bring_strips<T>(p.strip_box, p.in, full, channel, at.n, run_place(p, at), to);
      } else {
        bring_tile<T>(p.tile, p.in, full, channel, at, p.work.boxes, p.work.box_bytes, to);
      }
    }
    if (tile == first_tile) await_start(p);  // see start_boxes
    state.advance(p.work.stages);
  }
}

// The same by threads.
template <typename T>
__device__ inline void load_planes(const BoxParams<T>& p, const BoxMemory& memory, int first_set,
                                   int first_tile) {
  const Crew crew = producers(kMostThreads);
  const PlaneCopies<T> copies(crew, p.image, p.box, first_set * p.work.C,
                              p.work.sets * p.work.pieces, p.work.box_bytes);
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = first_tile; tile < p.tile.tiles; tile += p.tile_blocks) {
    const Place at = place_of(p.tile, tile);
    crew.sync();  // the list of the tile before is no longer read
    find_vectors(crew, p.box, p.image, p.tile.h.in, p.tile.w.in, p.tile.N, at.n,
                 at.h * p.tile.h.step + p.tile.h.first, at.w * p.tile.w.step + p.tile.w.first,
                 memory.brought());
    crew.sync();
    if (tile == first_tile) await_start(p);
    ptx::wait(&memory.empty[state.stage], state.parity ^ 1);
    copies.bring(memory.brought(), memory.stages + state.stage * p.stage_bytes);
    ptx::arrive(&memory.full[state.stage]);
    state.advance(p.work.stages);
  }
}

template <typename T, int kPixels, int kChannels, bool kStrips>
__device__ inline void multiply_boxes(const Crew& crew, const BoxParams<T>& p,
                                      const BoxMemory& memory, int first_set, int part,
                                      int first_tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int32_t warp = static_cast<int>(threadIdx.x) / 32;
  const int pixel_warp = p.by_pixel_warps.split(warp);
  const int first_pixel = pixel_warp * kPixels * kBoxPixelTile;
  int32_t set = warp;
  const int column = p.by_column_warps.split(set);
  constexpr int kStepBytes = kStepWeights * kChannels;
  const uint32_t own_weights = ptx::shared_address(memory.weights) + warp * p.work.weight_bytes;
  const uint32_t weights = own_weights + lane % (kChannels == 1 ? 16 : 32) * kPieceBytes;
  const int* table = memory.table + set * p.work.steps * 2 + lane / 16;
  const int in_part = column * kChannels * kBoxChannelTile + lane % 4 * 2;
  const int first_channel = (part * p.work.column_warps + column) * kChannels * kBoxChannelTile;
  uint32_t row[kPixels];
  fill_weights<T, kChannels>(
      p, first_set + set, first_channel, pixel_warp, own_weights, [&](bool more) {
        if (more) prefetch_weights(crew, p, first_set);
        start_boxes(p);
        if (threadIdx.x == 0 && p.work.out_boxes > 0) {
          for (int i = 0; i < p.tile.h.phases * p.tile.w.phases; ++i)
            ptx::prefetch_tma_descriptor(&p.out_of[i]);
        }
        list_pieces(crew, p, memory);
        if constexpr (kStrips) {
          list_strips<T>(crew, p.strip_box, {memory.list + kNowhereBytes, p.strip_box});
          clear_boxes(crew, memory.boxes, p.work.boxes * p.work.box_bytes);
        }
        // Without these TMA can do.
        if (p.work.out_boxes == 0 || p.epilogue.residual != nullptr) {
          list_positions(crew, p.tile, p.out_n, p.tile.h.phases * p.out_h,
                         p.tile.w.phases * p.out_w, p.pixel_warps * kPixels * kBoxPixelTile,
                         memory.spots);
        }
#pragma unroll
        for (int i = 0; i < kPixels; i += 2) {
          // Each lane finds one of two instructions' pixels, and passes it to others.
          const int pixel = first_pixel + i * kBoxPixelTile + lane;
          const int own = pixel < p.tile.pixels ? box_row(p.tile, pixel) * kBoxRowBytes : 0;
          row[i] = __shfl_sync(~0u, own, lane % 16);
          row[i + 1] = __shfl_sync(~0u, own, 16 + lane % 16);
        }
      });
  LaneChannels channels;
  channels.in_set = first_channel + lane % 4 * 2;
  channels.first = (first_set + set) * p.work.K + channels.in_set;
  channels.in_block = set * p.work.K + in_part;
  channels.set_end = p.work.K;
  channels.end = p.all_K;
  const int in_set =
      part * p.work.column_warps * kChannels * kBoxChannelTile;  // the block's first one
  const int block_first = first_set * p.work.K + in_set;
  const int stored =
      min(min(p.work.stored, p.work.sets * p.work.K - in_set), p.all_K - block_first);
  const uint32_t stages = ptx::shared_address(memory.stages);
  const uint32_t boxes = ptx::shared_address(memory.boxes);
  const Spot* spots = memory.spots + first_pixel + lane / 4;
  char* staging = memory.staging;
  char* next_staging = staging + p.work.out_boxes * p.work.out_box_bytes;
  await_stages(p.loaders, p.work.warps);  // and the weights and lists
  const int last_phase = p.tile.h.phases * p.tile.w.phases - 1;
  ptx::PipelineState state;
#pragma unroll 1
  for (int tile = first_tile; tile < p.tile.tiles; tile += p.tile_blocks) {
    const Place at = place_of(p.tile, tile);
    ptx::wait(&memory.full[state.stage], state.parity);
    if constexpr (kStrips) {
      crew.sync();  // the boxes of the tile before are no longer read
      turn_strips<T>(crew, p.strip_box, {memory.list + kNowhereBytes, p.strip_box},
                     run_place(p, at), stages + state.stage * p.stage_bytes, boxes,
                     ptx::shared_address(memory.list));
      __syncwarp();
      if (lane == 0) ptx::arrive(&memory.empty[state.stage]);
      crew.sync();
    }
    uint32_t pixel[kPixels];
#pragma unroll
    for (int i = 0; i < kPixels; ++i)
      pixel[i] = row[i] + (kStrips ? boxes : stages + state.stage * p.stage_bytes);
    int step = 0;  // the first one of a phase
    int h = 0, w = 0;
#pragma unroll 1
    for (int phase = 0; phase <= last_phase; ++phase, ++w) {
      if (w == p.tile.w.phases) {
        w = 0;
        ++h;
      }
      const int pieces = p.tile.h.taps[h].count * p.tile.w.taps[w].count * p.work.pieces;
      const uint32_t filter = weights + step * kStepBytes;
      float sum[kPixels][kChannels][4] = {};
      add_boxes<T>(pixel, table + step * 2, filter, pieces, AllGroups{}, sum);
      if (p.work.pack > 1 && any_is_not_finite(sum)) {
        add_groups(p, pixel, table + step * 2, filter, pieces, channels, sum);
      }
      step += (pieces + 1) / 2;
      if (!kStrips && phase == last_phase) {
        __syncwarp();
        if (lane == 0) ptx::arrive(&memory.empty[state.stage]);
      }
      const Rest rest = rest_of(p, at, h, w);
      if (p.finishes) finish_sums<T>(p.epilogue, rest, spots, channels, p.out_c, sum);
      if (p.work.out_pitch > 0) {
        crew.sync();  // the results before these are stored
        stage_planes(p, staging, first_pixel, channels, sum);
        crew.sync();
        store_planes(p, rest, memory.spots, block_first, stored, staging, crew.threads);
        continue;
      }
      if (p.work.out_boxes == 0) {
        store_sums(p, rest, spots, channels, sum);
        continue;
      }
      stage_sums(p, staging, first_pixel, channels, sum);
      ptx::fence_shared_writes();
      // The results before these have been read, so that their place can be filled again.
      if (threadIdx.x == 0) ptx::tma_store_wait();
      crew.sync();
      if (threadIdx.x == 0 && rest.h > 0 && rest.w > 0) {
        const int apart = p.work.out_row_bytes / static_cast<int>(sizeof(T));
#pragma unroll 1
        for (int box = 0; box < p.work.out_boxes; ++box) {
          ptx::tma_store(&p.out_of[phase], staging + box * p.work.out_box_bytes,
                         block_first + box * apart, at.w, at.h, at.n);
        }
        ptx::tma_store_arrive();
      }
      char* const filled = staging;
      staging = next_staging;
      next_staging = filled;
    }
    state.advance(p.work.stages);
  }
  if (threadIdx.x == 0) ptx::tma_store_wait();
}

template <typename T, int kIndex, Loading kLoading>
__global__ void __launch_bounds__(kMostThreads + box_loaders(kLoading, sizeof(T)),
                                  kBoxKernels[kIndex].blocks())
    convolve_boxes(const __grid_constant__ BoxParams<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char boxes[];
  const BoxMemory memory(p, boxes);
  int32_t tile = static_cast<int32_t>(blockIdx.x);
  int32_t set = p.slices.split(tile);
  const int part = p.parts.split(set);
  set *= p.work.sets;
  // The same for all threads of a warp, and the compiler is told so.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  constexpr int kPixels = kBoxKernels[kIndex].pixels, kChannels = kBoxKernels[kIndex].channels;
  constexpr bool kPlanes = kLoading == Loading::kThreads, kStrips = kLoading == Loading::kStrips;
  constexpr int kLoaders = box_loaders(kLoading, sizeof(T));
  using Registers = BoxRegisters<box_producers(sizeof(T)), kBoxKernels[kIndex].blocks()>;
  const int first_loader = kPlanes ? kMostThreads / 32 : p.work.warps;
  if (warp >= first_loader) {
    init_stages(memory.full, memory.empty, threadIdx.x == first_loader * 32, kLoaders,
                kPlanes ? kLoaders : 1, p.work.warps);
    if constexpr (kPlanes) {
      Registers::give();
      load_planes(p, memory, set, tile);
    } else {
      load_boxes<T, kStrips>(p, memory, set, tile);
    }
    return;
  }
  if constexpr (kPlanes) Registers::take();
  if (warp >= p.work.warps) return;
  const Crew crew = consumers(p.work.warps * 32);
  multiply_boxes<T, kPixels, kChannels, kStrips>(crew, p, memory, set, part, tile);
#endif
}

}  // namespace customconv::grouped
