// Forward and input gradient. A block has some groups and goes through tiles of positions; a warp
// has some pixels and channels of a group, and multiplies unit by unit: what a lane needs for a
// product is a unit of one pixel, so that an instruction may take any four taps and channels.
#pragma once

#include "kernels/grouped/input.cuh"
#include "kernels/grouped/output.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/mma.cuh"

namespace customconv::grouped {

template <typename T>
struct Params {
  TileParams tile;
  Image<T> in;
  T* out;
  int64_t out_n, out_c, out_h, out_w;
  const uint4* weights;
  const int* table;  // of every phase and step, where the units of a pixel lie
  Epilogue epilogue;
  int K;  // channels of a group that are computed
  Work work;
  int pixel_warps, passes;
  bool finishes;    // there is an epilogue
  bool planar;      // neighbouring threads store neighbouring pixels, not channels
  int store_width;  // channels that are stored at once
  int store_shift;  // threads that share a pixel, by their logarithm
  int tile_blocks;
  Divider<int32_t> slices, parts;
};

// What a block computes.
struct Block {
  int slice, group, first_k;
  int tile;  // the first one
};
template <typename T>
__device__ inline Block block_of(const Params<T>& p) {
  Block block;
  block.tile = static_cast<int>(blockIdx.x);
  block.slice = p.slices.split(block.tile);
  int32_t group = block.slice;
  block.first_k = p.parts.split(group) * p.work.channel_tiles * kChannelTile;
  block.group = group * p.work.groups;
  return block;
}

// Steps of a phase for a chunk of channels.
template <typename T>
__device__ inline int steps_of(const Params<T>& p, int phase_h, int phase_w) {
  const int taps = p.tile.h.taps[phase_h].count * p.tile.w.taps[phase_w].count;
  return (taps * p.work.units + kStepUnits - 1) / kStepUnits;
}

// Adds `count` steps, of pixels whose first units are so many bytes into shared memory. Only units
// of the last step may not exist.
template <typename T, int kPixels, int kChannels>
__device__ inline void add_steps(const char* memory, const int (&pixel)[kPixels], const int* table,
                                 const uint4* weights, int step_lanes, int count,
                                 float (&sum)[kPixels][kChannels][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  table += lane % kStepUnits;
  weights += lane;
  const auto add = [&](int at, bool exists) {
    uint32_t filter[kChannels][4];
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      *reinterpret_cast<uint4*>(filter[j]) = weights[j * 32];
    }
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      uint2 unit = *reinterpret_cast<const uint2*>(memory + pixel[i] + at);
      if (!exists) unit = uint2{};
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        ptx::multiply_add<T>(sum[i][j], filter[j], unit.x, unit.y);
      }
    }
    table += kStepUnits;
    weights += step_lanes;
  };
#pragma unroll 2
  for (int step = 1; step < count; ++step) add(*table, true);
  const int last = *table;
  add(max(last, 0), last >= 0);
}

// The channels of a block: those of its groups follow each other.
struct Channels {
  int first, count;
};
template <typename T>
__device__ inline Channels channels_of(const Params<T>& p, const Block& block) {
  const int first = block.group * p.K + block.first_k;
  const int of_groups = min(p.work.groups, p.in.sets - block.group) * p.K;
  return {first, p.parts.divisor() > 1
                     ? min(p.work.channel_tiles * kChannelTile, p.K - block.first_k)
                     : of_groups};
}

// Stores sums that lie by pixels, sixteen bytes of channels a thread.
template <int kWidth, typename T>
__device__ inline void store_pixels(const Crew& crew, const Params<T>& p, const Channels& channels,
                                    const Rest& rest, const Spot* spots, const float* sums) {
  // Threads of a pixel, a power of two.
  const int width = 1 << p.store_shift, apart = crew.threads >> p.store_shift;
  for (int channel = (crew.thread & (width - 1)) * kWidth; channel < channels.count;
       channel += width * kWidth) {
    const int64_t offset = rest.offset + (channels.first + channel) * p.out_c;
    for (int pixel = crew.thread >> p.store_shift; pixel < p.tile.pixels; pixel += apart) {
      const Spot spot = spots[pixel];
      if (!rest.has(spot)) continue;
      alignas(16) float value[kWidth];
      const float* from = sums + pixel * p.work.staged_pitch + channel;
      if constexpr (kWidth == 1) {
        value[0] = *from;
      } else {
#pragma unroll
        for (int i = 0; i < kWidth; i += 4) {
          *reinterpret_cast<float4*>(value + i) = *reinterpret_cast<const float4*>(from + i);
        }
      }
      const int64_t to = offset + spot.offset;
      if (p.finishes) finish<kWidth, T>(p.epilogue, channels.first + channel, to, value);
      alignas(16) T rounded[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) rounded[i] = narrow<T>(value[i]);
      if constexpr (kWidth == 1) {
        p.out[to] = rounded[0];
      } else {
        *reinterpret_cast<uint4*>(p.out + to) = *reinterpret_cast<const uint4*>(rounded);
      }
    }
  }
}

// Stores sums that lie by channels, a warp neighbouring pixels of a channel.
template <typename T>
__device__ inline void store_planes(const Crew& crew, const Params<T>& p, const Channels& channels,
                                    const Rest& rest, const Spot* spots, const float* sums) {
  const int lane = crew.thread % 32, warp = crew.thread / 32, warps = crew.threads / 32;
  for (int pixel = lane; pixel < p.tile.pixels; pixel += 32) {
    const Spot spot = spots[pixel];
    if (!rest.has(spot)) continue;
    int64_t to = rest.offset + spot.offset + (channels.first + warp) * p.out_c;
    const float* from = sums + warp * p.work.staged_pitch + pixel;
#pragma unroll 4
    for (int i = warp; i < channels.count; i += warps) {
      float value[1] = {*from};
      if (p.finishes) finish<1, T>(p.epilogue, channels.first + i, to, value);
      p.out[to] = narrow<T>(value[0]);
      to += warps * p.out_c;
      from += warps * p.work.staged_pitch;
    }
  }
}

// A warp's place among those of its block.
struct Own {
  int group, tile, pixel;
};
template <int kPixels, int kChannels, typename T>
__device__ inline Own own_of(const Params<T>& p) {
  int warp = static_cast<int>(threadIdx.x) / 32;
  Own own;
  own.pixel = warp % p.pixel_warps * kPixels * kPixelTile;
  warp /= p.pixel_warps;
  own.tile = warp % p.work.channel_warps * kChannels;
  own.group = warp / p.work.channel_warps;
  return own;
}

// Puts a warp's sums where the threads that store find them. `count`: channels of a group.
template <typename T, int kPixels, int kChannels>
__device__ inline void stage_sums(const Params<T>& p, const Own& own, int count,
                                  const float (&sum)[kPixels][kChannels][4], float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pixel = own.pixel + lane % 4 * 2, k = own.tile * kChannelTile + lane / 4;
  const int channel = own.group * count + k;
#pragma unroll
  for (int j = 0; j < kChannels * 2; ++j) {  // eight channels
    if (k + j * 8 >= count) break;
    const int own_channel = channel + j * 8;
    if (p.planar) {
      float* line = sums + own_channel * p.work.staged_pitch + pixel;
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        const float* pair = &sum[i][j / 2][j % 2 * 2];
        *reinterpret_cast<float2*>(line + i * kPixelTile) = {pair[0], pair[1]};
      }
    } else {
      float* place = sums + pixel * p.work.staged_pitch + own_channel;
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        const float* pair = &sum[i][j / 2][j % 2 * 2];
        place[i * kPixelTile * p.work.staged_pitch] = pair[0];
        place[(i * kPixelTile + 1) * p.work.staged_pitch] = pair[1];
      }
    }
  }
}

// A block's shared memory.
struct Memory {
  template <typename T>
  __device__ Memory(const Params<T>& p, char* memory, int pixels)
      : full(reinterpret_cast<ptx::Barrier*>(memory)),
        empty(full + 2),
        slots(reinterpret_cast<Spot*>(memory + kBarrierBytes)),
        positions(slots + p.tile.slots),
        list(reinterpret_cast<int64_t*>(memory + p.work.list_at)),
        table(reinterpret_cast<int*>(memory + p.work.table_at)),
        pixels(table - pixels),  // the list ends where the table begins
        input(memory + p.work.input_at),
        weights(reinterpret_cast<const uint4*>(memory + p.work.weights_at)),
        sums(reinterpret_cast<float*>(memory + p.work.sums_at)) {}

  ptx::Barrier *full, *empty;  // of both tiles of input
  Spot *slots, *positions;
  int64_t* list;  // where the slots of a tile come from
  int* table;     // of steps
  int* pixels;    // of each of a tile, how far into the input its first unit lies
  char* input;
  const uint4* weights;
  float* sums;
};

// Brings the weights of `count` steps, and where their units lie.
template <typename T>
__device__ inline void bring_steps(const Crew& crew, const Params<T>& p, const uint4* packed,
                                   const int* table, int count, const Memory& memory) {
  const int step_lanes = p.work.groups * p.work.channel_tiles * 32;  // of 16 bytes
  const uint32_t to = ptx::shared_address(memory.weights);
  for (int i = crew.thread; i < count * step_lanes; i += crew.threads) {
    ptx::copy_async<16>(to + i * 16, packed + i, true);
  }
  const uint32_t list = ptx::shared_address(memory.table);
  for (int i = crew.thread; i < count; i += crew.threads) {
    ptx::copy_async<16>(list + i * 16, table + i * kStepUnits, true);
  }
}

template <typename T, int kPixels, int kChannels>
class Multiplier {
 public:
  __device__ Multiplier(const Params<T>& p, const Memory& memory, const Block& block)
      : p_(p),
        memory_(memory),
        own_(own_of<kPixels, kChannels>(p)),
        step_lanes_(p.work.groups * p.work.channel_tiles * 32),
        count_(min(p.K - block.first_k, p.work.channel_tiles * kChannelTile)),
        input_(memory.input + own_.group * p.work.units * p.work.plane * kUnitBytes),
        weights_(memory.weights + (own_.group * p.work.channel_tiles + own_.tile) * 32) {}

  // Sums of all passes, by weights that are all there, from step `first` on, of the input that is
  // so many bytes further on.
  __device__ void sum_at_once(int first, int steps, int bytes) const {
    Own own = own_;
#pragma unroll 1
    for (int pass = 0; pass < p_.passes; ++pass) {
      int pixel[kPixels];
      find(own.pixel, pixel);
      float sum[kPixels][kChannels][4] = {};
      if (steps > 0) {
        add_steps<T, kPixels, kChannels>(input_ + bytes, pixel, memory_.table + first * kStepUnits,
                                         weights_ + first * step_lanes_, step_lanes_, steps, sum);
      }
      stage_sums(p_, own, count_, sum, memory_.sums);
      own.pixel += p_.pixel_warps * kPixels * kPixelTile;
    }
  }

  // The same of one pass, by weights that come some steps at a time, from `packed` and `table` on.
  // `bring_input`: a chunk of channels.
  template <typename Bring>
  __device__ void sum_in_turns(const uint4* packed, const int* table, int steps,
                               const Bring& bring_input) const {
    int pixel[kPixels];
    find(own_.pixel, pixel);
    float sum[kPixels][kChannels][4] = {};
#pragma unroll 1
    for (int chunk = 0; chunk < p_.work.chunks; ++chunk) {
      bring_input(chunk);
#pragma unroll 1
      for (int first = 0; first < steps; first += p_.work.steps) {
        const int count = min(p_.work.steps, steps - first);
        if (first > 0) __syncthreads();
        bring_steps(whole_block(), p_, packed + int64_t{first} * step_lanes_,
                    table + first * kStepUnits, count, memory_);
        ptx::await_copies();
        __syncthreads();
        add_steps<T, kPixels, kChannels>(input_, pixel, memory_.table, weights_, step_lanes_, count,
                                         sum);
      }
      packed += int64_t{steps} * step_lanes_;
      __syncthreads();  // neither input nor weights are read any more
    }
    stage_sums(p_, own_, count_, sum, memory_.sums);
  }

 private:
  __device__ void find(int first, int (&pixel)[kPixels]) const {
    const int* own = memory_.pixels + first + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int i = 0; i < kPixels; ++i) pixel[i] = own[i * kPixelTile];
  }

  const Params<T>& p_;
  const Memory& memory_;
  const Own own_;
  const int step_lanes_, count_;
  const char* input_;
  const uint4* weights_;
};

template <typename T>
__device__ inline void store_sums(const Crew& crew, const Params<T>& p, const Channels& channels,
                                  const Rest& rest, const Memory& memory) {
  if (p.planar) {
    store_planes(crew, p, channels, rest, memory.positions, memory.sums);
  } else if (p.store_width == 1) {
    store_pixels<1>(crew, p, channels, rest, memory.positions, memory.sums);
  } else {
    store_pixels<16 / static_cast<int>(sizeof(T))>(crew, p, channels, rest, memory.positions,
                                                   memory.sums);
  }
}

// Blocks whose weights are all there: producers bring the next tile while the others multiply.
template <typename T, int kPixels, int kChannels>
__device__ inline void convolve_resident(const Params<T>& p, const Memory& memory,
                                         const Block& block) {
  const bool produces = static_cast<int>(threadIdx.x) >= p.work.threads;
  const Crew crew = produces ? producers(p.work.threads) : consumers(p.work.threads);
  const UnitCopies<T, 8> copies(crew, p.in, block.group, p.work.groups, p.work.units,
                                p.work.slot_bytes, p.work.plane);
  const Channels channels = channels_of(p, block);
  const Multiplier<T, kPixels, kChannels> multiplier(p, memory, block);
  if (!produces) {
    const int step_lanes = p.work.groups * p.work.channel_tiles * 32;
    ptx::wait_on_dependent_grids();  // the weights are packed
    bring_steps(crew, p, p.weights + block.slice * p.work.packed_steps * step_lanes, p.table,
                static_cast<int>(p.work.packed_steps), memory);
    ptx::await_copies();
  }
  int stage = 0;  // of input, and the parity of the round
  uint32_t parity = 0;
#pragma unroll 1
  for (int tile = block.tile; tile < p.tile.tiles; tile += p.tile_blocks) {
    const Place at = place_of(p.tile, tile);
    if (produces) {
      crew.sync();  // the list of the tile before is no longer read
      find_pixels(crew, p.tile, p.in, at, memory.slots, memory.list);
      crew.sync();
      ptx::wait(&memory.empty[stage], parity ^ 1);
      copies.bring(0, memory.list, p.tile.slots, memory.input + stage * p.work.input_bytes);
      ptx::arrive(&memory.full[stage]);
    } else {
      ptx::wait(&memory.full[stage], parity);
      int done = 0;  // steps of the phases before
#pragma unroll 1
      for (int phase = 0; phase < p.tile.h.phases * p.tile.w.phases; ++phase) {
        const int h = phase / p.tile.w.phases, w = phase % p.tile.w.phases;
        const int steps = steps_of(p, h, w);
        crew.sync();  // the sums before are stored, and the weights are there
        multiplier.sum_at_once(done, steps, stage * p.work.input_bytes);
        if (phase + 1 == p.tile.h.phases * p.tile.w.phases) ptx::arrive(&memory.empty[stage]);
        crew.sync();
        store_sums(crew, p, channels, rest_of(p, at, h, w), memory);
        done += steps;
      }
    }
    stage ^= 1;
    if (stage == 0) parity ^= 1;
  }
}

// Others bring chunks of channels and weights in turns.
template <typename T, int kPixels, int kChannels>
__device__ inline void convolve_in_turns(const Params<T>& p, const Memory& memory,
                                         const Block& block) {
  const Crew crew = whole_block();
  const Channels channels = channels_of(p, block);
  const Multiplier<T, kPixels, kChannels> multiplier(p, memory, block);
  const UnitCopies<T, 4> copies(crew, p.in, block.group, p.work.groups, p.work.units,
                                p.work.slot_bytes, p.work.plane);
  const auto bring_chunk = [&](int chunk) {
    copies.bring(chunk * p.work.units, memory.list, p.tile.slots, memory.input);
  };
  const int step_lanes = p.work.groups * p.work.channel_tiles * 32;
  const uint4* packed = p.weights + block.slice * p.work.packed_steps * step_lanes;
  ptx::wait_on_dependent_grids();  // the weights are packed
#pragma unroll 1
  for (int tile = block.tile; tile < p.tile.tiles; tile += p.tile_blocks) {
    const Place at = place_of(p.tile, tile);
    __syncthreads();  // the sums may lie where the input will
    find_pixels(crew, p.tile, p.in, at, memory.slots, memory.list);
    __syncthreads();
    if (p.work.chunks == 1) bring_chunk(0);
    int done = 0;
#pragma unroll 1
    for (int phase = 0; phase < p.tile.h.phases * p.tile.w.phases; ++phase) {
      const int h = phase / p.tile.w.phases, w = phase % p.tile.w.phases;
      const int steps = steps_of(p, h, w);
      __syncthreads();  // the input is there, and the sums before are stored
      multiplier.sum_in_turns(packed + int64_t{done} * p.work.chunks * step_lanes,
                              p.table + done * kStepUnits, steps, [&](int chunk) {
                                if (p.work.chunks > 1) bring_chunk(chunk);
                              });
      __syncthreads();
      store_sums(crew, p, channels, rest_of(p, at, h, w), memory);
      done += steps;
    }
  }
}

template <typename T, int kIndex>
__global__ void __launch_bounds__(kKernels[kIndex].threads(), kKernels[kIndex].blocks())
    convolve(const __grid_constant__ Params<T> p) {
#if __CUDA_ARCH__ >= 800
  constexpr int kPixels = kKernels[kIndex].pixels, kChannels = kKernels[kIndex].channels;
  extern __shared__ __align__(16) char bytes[];
  const int pixels = p.passes * p.pixel_warps * kPixels * kPixelTile;
  const Memory memory(p, bytes, pixels);
  const Block block = block_of(p);
  const Crew crew = whole_block();
  if (threadIdx.x == 0) {
    ptx::init_barriers(memory.full, 2, kProducers);
    ptx::init_barriers(memory.empty, 2, p.work.threads);
  }
  list_slots(crew, p.tile, p.in, memory.slots);
  list_positions(crew, p.tile, p.out_n, p.tile.h.phases * p.out_h, p.tile.w.phases * p.out_w,
                 pixels, memory.positions);
  __syncthreads();
  for (int i = crew.thread; i < pixels; i += crew.threads) {
    memory.pixels[i] =
        i < p.tile.pixels ? slot_of(p.tile, memory.positions[i]) * p.work.slot_bytes : 0;
  }
  if constexpr (kKernels[kIndex].has_producers()) {
    if (p.work.resident) {
      convolve_resident<T, kPixels, kChannels>(p, memory, block);
      return;
    }
  }
  convolve_in_turns<T, kPixels, kChannels>(p, memory, block);
#endif
}

}  // namespace customconv::grouped
