// Channels-first weight gradients: rows of x and slabs of dy come to shared memory, warpgroups
// fetch operands from the rows, as each tap needs them, and multiply them by the slabs.
#pragma once

#include "kernels/implicit_gemm/weight/output.cuh"
#include "kernels/implicit_gemm/weight/planes/geometry.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace customconv::implicit_gemm::weight::planes {

template <typename T>
struct Params : Output<T> {
  CUtensorMap x_map, y_map;
  const T *x, *y;
  int64_t x_n, x_c, x_h, y_n, y_k, y_p;  // strides
  // Of each step where its units are in x, bytes from a stage's first pixel, and where in dy.
  int32_t unit_at[kMostSteps][2], slab_at[kMostSteps];
  int steps, slab_bytes;
  int along_p;                                     // see Tile
  int blocks;                                      // thread blocks of a split
  int x_channel, x_row, x_image, x_block, step_h;  // see Tile
  int y_columns;                                   // a slab's first pixels apart
  int x_at, stage_bytes, stages, brought_x, brought_y;
  int images, rows, columns, row_units, tiles;
  int N, H, W, P, Q;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  Divider<int32_t> by_tiles_q, by_tiles_p;
  // Of threads that load: how many places x and dy have in a tile.
  int x_inner, y_inner, vector;
  int first_row, first_unit;  // of x, that are inside of the image
  bool has_zeros;             // others are not
  Divider<int32_t> by_x_units, by_x_rows, by_row_units, by_rows;
  bool boxed, staged;
  int raw_at, raw_bytes, raw_y;  // where images lie as they are, x behind dy
  int align;                     // pixels: where rows may begin in shared memory
  // Of runs, see Tile; `pixels` are those of a plane of dy.
  bool runs;
  int x_classes, y_classes, y_channel, pixels, slabs, x_runs, x_boxes, box_step;
  int table_at, table_bytes, table_units;
  Divider<int32_t> by_table_units, by_y_inner, by_Q, by_box_step;
  // Where rows of the instruction are channels and taps, three numbers count them: how many of the
  // first two there are, and bytes of x from one to the next of each.
  bool flat;
  int channels;  // of x together
  Divider<int32_t> by_flat[2];
  int flat_bytes[3];
};

template <typename T>
inline constexpr int kUnit = kUnitBytes / static_cast<int>(sizeof(T));  // pixels

struct Memory {
  template <typename T>
  __device__ Memory(const Params<T>& p, char* memory)
      : stages(memory),
        raw(memory + p.raw_at),
        full(reinterpret_cast<ptx::Barrier*>(raw + kRawStages * p.raw_bytes)),
        empty(full + kMostStages),
        raw_full(empty + kMostStages) {}

  char *stages, *raw;
  ptx::Barrier *full, *empty, *raw_full;
};

// A tile's first pixel.
struct Origin {
  int n, p, q;

  template <typename T>
  __device__ Origin(const Params<T>& params, int32_t tile) {
    q = params.by_tiles_q.split(tile) * params.columns;
    p = params.by_tiles_p.split(tile) * params.rows;
    n = tile * params.images;
  }
};

// The column of x where a thread block's rows begin, and how much later its first tap does.
struct Begin {
  int column, slack;  // of a tile's whose first column is 0

  template <typename T>
  __device__ Begin(const Params<T>& p, int first_tap) {
    const int first = first_tap * p.dilation_w - p.pad_w;
    column = first & -p.align;
    slack = first - column;
  }
};

template <typename T>
__device__ inline int first_channel(const Params<T>& p, const Share& share) {
  return p.flat ? share.group * p.channels : share.group * p.group_C + share.c;
}

// A pixel of dy, and of x what the first of a thread block's taps meets there.
struct Meeting {
  int p, q, h, w;

  template <typename T>
  __device__ Meeting(const Params<T>& params, const Share& share, int first, int32_t pixel) {
    q = params.by_Q.split(pixel);
    p = pixel;
    h = p * params.stride_h + share.r * params.dilation_h - params.pad_h;
    w = q * params.stride_w + first * params.dilation_w - params.pad_w;
  }
};

// The pixel of a plane where a tile's run of x begins.
template <typename T>
__device__ inline int begin_of_run(const Params<T>& p, const Meeting& first, int run) {
  return (first.h + run * p.dilation_h) * p.W + first.w;
}

// The class of a channel in memory, and how many pixels after whole 16 bytes its planes begin.
template <typename T>
__device__ inline int slack_of(int number, int64_t stride) {
  return number * static_cast<int>(stride) & (kUnit<T> - 1);
}
template <typename T>
__device__ inline int begin_of_class(int number, int64_t stride) {
  return number * static_cast<int>(stride) & -kUnit<T>;
}

// A whole warp; each thread starts the copies of a class, as to start one takes a hundred clocks.
// Runs of dy that come in classes are brought by others.
template <typename T, int kKernel>
__device__ inline void load_runs(const Params<T>& p, const Memory& memory, const Share& share,
                                 int lane) {
  constexpr Kernel kKind = kKernels[kKernel];
  const int tap = first_tap(p, share.chunk, kKind.taps);
  const int k = share.group * p.group_K + share.k;
  const int c = (share.group * p.group_C + share.c) / p.x_classes;
  const int bytes = p.brought_y + share.boxes_c * p.brought_x;
  const int channels = kBlock / p.x_classes;
  const int own = begin_of_class<T>(lane, p.x_c);
  ptx::Turn turn;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    const Origin at(p, tile);
    const Meeting first(p, share, tap, at.q);
    ptx::Barrier* full = &memory.full[turn.stage];
    char* const y = memory.stages + turn.stage * p.stage_bytes;
    char* x = y + p.x_at + lane * channels * p.x_channel;
    ptx::wait(&memory.empty[turn.stage], turn.parity ^ 1);
    if (lane == 0) ptx::arrive_expecting(full, bytes);
    __syncwarp();
    if (p.y_classes == 1 && lane < p.slabs) {
      ptx::copy_box(y + lane * p.slab_bytes, &p.y_map, full, at.q + lane * p.y_columns, k, at.n);
    }
    if (lane < p.x_classes) {
#pragma unroll 1
      for (int block = 0; block < share.boxes_c; ++block) {
#pragma unroll 1
        for (int run = 0; run < p.x_runs; ++run) {
          const int begin = (begin_of_run(p, first, run) & -kUnit<T>)+own;
#pragma unroll 1
          for (int box = 0; box < p.x_boxes; ++box, x += kBlock * p.x_channel) {
            ptx::copy_box(x, &p.x_map, full, begin + box * p.box_step, c + block * channels, at.n);
          }
        }
      }
    }
    turn.advance(p.stages);
  }
}

// A whole warp; one of the threads starts the copies.
template <typename T, int kKernel>
__device__ inline void load_boxes(const Params<T>& p, const Memory& memory, const Share& share) {
  constexpr Kernel kKind = kKernels[kKernel];
  const bool elected = ptx::elect_one();
  const int k = share.group * p.group_K + share.k, c = first_channel(p, share);
  const int boxes_c = p.flat ? 1 : share.boxes_c;
  const int bytes = p.brought_y + boxes_c * p.brought_x;
  const int first_h = share.r * p.dilation_h - p.pad_h;
  const int first_w = Begin(p, first_tap(p, share.chunk, kKind.taps)).column;
  ptx::Turn turn;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    const Origin at(p, tile);
    ptx::Barrier* full = &memory.full[turn.stage];
    char* y = memory.stages + turn.stage * p.stage_bytes;
    char* x = y + p.x_at;
    ptx::wait(&memory.empty[turn.stage], turn.parity ^ 1);
    if (elected) {
      ptx::arrive_expecting(full, bytes);
#pragma unroll 1
      for (int q = 0; q < p.columns; q += p.y_columns) {
        ptx::copy_box(y, &p.y_map, full, at.q + q, k, at.p, at.n);
        y += p.images * p.rows * p.slab_bytes;
      }
#pragma unroll 1
      for (int i = 0; i < boxes_c; ++i, x += p.x_block) {
        ptx::copy_box(x, &p.x_map, full, at.q * p.stride_w + first_w, c + i * kBlock,
                      at.p * p.stride_h + first_h, at.n);
      }
    }
    turn.advance(p.stages);
  }
}

__device__ inline uint4 round_all(uint4 v) {
  return make_uint4(ptx::round_tf32(v.x), ptx::round_tf32(v.y), ptx::round_tf32(v.z),
                    ptx::round_tf32(v.w));
}

// Sixteen bytes of pixels of a row that may begin anywhere. Those from `first` on, before `last`,
// exist; the others are zeros.
template <typename T>
__device__ inline uint4 load_unit(const T* at, int first, int last) {
  uint32_t word[5] = {};
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= first && i < last) {
        word[i] = reinterpret_cast<const uint32_t*>(at)[i];
      }
    }
  } else {
    // Words that are aligned and hold such a pixel; they are shifted by half of one.
    const int shift = static_cast<int>(reinterpret_cast<uint64_t>(at) >> 1 & 1);
    const auto* words = reinterpret_cast<const uint32_t*>(at - shift);
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      const int pixel = i * 2 - shift;
      if (max(pixel, first) < min(pixel + 2, last)) word[i] = words[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      word[i] = __funnelshift_r(word[i], word[i + 1], shift * 16);
      if (i * 2 < first || i * 2 >= last) word[i] &= 0xFFFF0000;
      if (i * 2 + 1 < first || i * 2 + 1 >= last) word[i] &= 0xFFFF;
    }
  }
  const uint4 unit = make_uint4(word[0], word[1], word[2], word[3]);
  return sizeof(T) == 4 ? round_all(unit) : unit;
}

// Of a unit's words, ones where a pixel exists.
template <typename T>
__device__ inline uint4 mask_of(int first, int last) {
  constexpr int kPixels = 4 / static_cast<int>(sizeof(T));  // of a word
  uint32_t word[4] = {};
#pragma unroll
  for (int i = 0; i < kUnit<T>; ++i) {
    const uint32_t pixel = sizeof(T) == 4 ? ~0u : 0xFFFFu << i % kPixels * 16;
    if (i >= first && i < last) word[i / kPixels] |= pixel;
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// The same unit of images in shared memory, where words may be read that hold none of its pixels.
template <typename T>
__device__ inline uint4 load_unit(const T* at, const uint4& mask) {
  const uint32_t address = ptx::shared_address(at), words = address & ~3u;
  uint32_t word[5] = {};
#pragma unroll
  for (int i = 0; i < (sizeof(T) == 4 ? 4 : 5); ++i) {
    word[i] = ptx::load_shared<uint32_t>(words + i * 4);
  }
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      word[i] = __funnelshift_r(word[i], word[i + 1], address % 4 * 8);
    }
  }
  const uint4 unit =
      make_uint4(word[0] & mask.x, word[1] & mask.y, word[2] & mask.z, word[3] & mask.w);
  return sizeof(T) == 4 ? round_all(unit) : unit;
}

// Of dy, where a channel's unit belongs in a stage.
template <typename T>
__device__ inline char* in_slab(const Params<T>& p, char* stage, int unit, int k) {
  return stage + unit / kSlabUnits * p.slab_bytes + k * (kSlabUnits * kUnitBytes) +
         ((unit ^ k) & (kSlabUnits - 1)) * kUnitBytes;
}

// Calls it for each of so many places that is this thread's, with the first of its channels and how
// far apart they are.
template <typename Load>
__device__ inline void each_place(int count, int thread, int threads, const Load& load) {
#pragma unroll 1
  for (int done = 0; done < count; done += threads) {
    const int places = min(count - done, threads), apart = threads / places;
    const int channel = thread / places;
    if (channel < apart) load(done + thread % places, channel, apart);
  }
}

// Sixteen bytes that begin `bytes` after those of the first, less than sixteen.
__device__ inline uint4 shifted(const uint4& first, const uint4& second, int bytes) {
  uint32_t word[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) word[i] = bytes & 8 ? word[i + 2] : word[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) word[i] = bytes & 4 ? word[i + 1] : word[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) word[i] = __funnelshift_r(word[i], word[i + 1], (bytes & 3) * 8);
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// Puts a run of dy that came in classes in order.
template <typename T, int kKernel>
__device__ inline void order_classes(const Params<T>& p, const char* raw, char* stage, int first,
                                     int thread, int threads) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kChannels = kKind.k_blocks * kBlock, kBatch = kKind.has_threads() ? 4 : 2;
  const int of_class = kChannels / p.y_classes;
  each_place(p.y_inner, thread, threads, [&](int unit, int batch, int apart) {
    const uint4 mask = mask_of<T>(0, p.pixels - first - unit * kUnit<T>);
#pragma unroll 1
    for (int row = batch * kBatch; row < kChannels; row += apart * kBatch) {
      const int number = row / of_class;  // of all of them
      const int slack = slack_of<T>(number, p.y_k) * static_cast<int>(sizeof(T));
      const char* from = raw + row * p.y_channel + unit * kUnitBytes;
      uint4 own[kBatch][2];
#pragma unroll
      for (int i = 0; i < kBatch * 2; ++i) {
        own[i / 2][i % 2] =
            *reinterpret_cast<const uint4*>(from + i / 2 * p.y_channel + i % 2 * kUnitBytes);
      }
      int k = (row - number * of_class) * p.y_classes + number;
#pragma unroll
      for (int i = 0; i < kBatch; ++i, k += p.y_classes) {
        const uint4 found = shifted(own[i][0], own[i][1], slack);
        *reinterpret_cast<uint4*>(in_slab(p, stage, unit, k)) =
            make_uint4(found.x & mask.x, found.y & mask.y, found.z & mask.z, found.w & mask.w);
      }
    }
  });
}

// Of a tile of runs, what four lanes of each step need: the places of their first pixel, or two, in
// elements, and ones for each tap that is inside of the image there.
template <typename T, int kKernel>
__device__ inline void fill_table(const Params<T>& p, const Share& share, char* table, int begin,
                                  int thread, int threads) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kPixels = kUnit<T> / 4, kBits = 32 / kPixels;
  const int first = first_tap(p, share.chunk, kKind.taps);
  const int box_elements = kBlock * p.x_channel / static_cast<int>(sizeof(T));
  const Meeting at(p, share, first, begin);
#pragma unroll 1
  for (int i = thread; i < p.filter_rows * p.table_units * 4; i += threads) {
    int32_t row = i / 4;
    const int unit = p.by_table_units.split(row);
    const int run = p.x_runs > 1 ? row : 0;
    const int slack = begin_of_run(p, at, run) & (kUnit<T> - 1);
    uint32_t places = 0, masks[kKind.taps] = {};
#pragma unroll
    for (int j = 0; j < kPixels; ++j) {
      const int pixel = begin + unit * kUnit<T> + i % 4 * kPixels + j;
      const bool exists = pixel < p.pixels;
      const Meeting own(p, share, first, exists ? pixel : begin);
      const int h = own.h + row * p.dilation_h;
      int32_t place = (h - at.h - run * p.dilation_h) * p.W + own.w - at.w;
      const int box = min(p.by_box_step.quotient(place), p.x_boxes - 1);
      place += box * (box_elements - p.box_step) + slack;
      places |= static_cast<uint32_t>(place) << j * kBits;
#pragma unroll
      for (int tap = 0; tap < kKind.taps; ++tap) {
        const int w = own.w + tap * p.dilation_w;
        const bool inside = exists && h >= 0 && h < p.H && w >= 0 && w < p.W;
        if (inside) masks[tap] |= ~0u >> (32 - kBits) << j * kBits;
      }
    }
    const uint32_t to = ptx::shared_address(table);
    if constexpr (kKind.taps == 1) {
      ptx::store_shared(to + i * 8, make_uint2(places, masks[0]));
    } else {
      static_assert(kKind.taps == 3);
      ptx::store_shared(to + i * 16, make_uint4(places, masks[0], masks[1], masks[2]));
    }
  }
}

// Threads beside the one that loads runs: they fill in the table of each tile. Where dy comes in
// classes they bring it, two tiles at a time, and put it in order.
template <typename T, int kKernel>
__device__ inline void arrange_runs(const Params<T>& p, const Memory& memory, const Share& share,
                                    int thread) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kThreads = kKind.loaders - 32, kChannels = kKind.k_blocks * kBlock;
  const bool has_classes = p.y_classes > 1;
  const auto raw_of = [&](int turn) { return memory.raw + turn * p.raw_bytes; };
  const int of_class = kChannels / p.y_classes;
  const int k = (share.group * p.group_K + share.k) / p.y_classes;
  // The first threads start the copy of a class each.
  const auto bring = [&](int tile, int turn) {
    if (thread >= p.y_classes || !has_classes || tile >= p.tiles) return;
    const Origin at(p, tile);
    ptx::Barrier* full = &memory.raw_full[turn];
    if (thread == 0) ptx::arrive_expecting(full, kChannels * p.y_channel);
    ptx::copy_box(raw_of(turn) + thread * of_class * p.y_channel, &p.y_map, full,
                  at.q + begin_of_class<T>(thread, p.y_k), k, at.n);
  };
  bring(share.split, 0);
  bring(share.split + p.splits, 1);
  ptx::Turn turn, raw;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    const Origin at(p, tile);
    char* const stage = memory.stages + turn.stage * p.stage_bytes;
    ptx::wait(&memory.empty[turn.stage], turn.parity ^ 1);
    // Of whole planes tables are alike.
    if (p.by_tiles_q.divisor() > 1 || tile < share.split + p.stages * p.splits) {
      fill_table<T, kKernel>(p, share, stage + p.table_at, at.q, thread, kThreads);
    }
    if (has_classes) {
      ptx::wait(&memory.raw_full[raw.stage], raw.parity);
      order_classes<T, kKernel>(p, raw_of(raw.stage), stage, at.q, thread, kThreads);
      ptx::fence_shared_writes();
    }
    ptx::arrive(&memory.full[turn.stage]);
    turn.advance(p.stages);
    if (has_classes) {
      ptx::sync_threads<kThreads>(1);  // all have read it
      bring(tile + kRawStages * p.splits, raw.stage);
      raw.advance(kRawStages);
    }
  }
}

// The same unit of channels, so many `apart`; `to` says where a channel's belongs. kVector: bytes
// that are inside the row or outside it together, and are copied; else pixels go through registers.
// Where none is inside, `from` is any of the tensor. kStaged: it is in shared memory.
template <int kVector, bool kStaged, typename T, typename To>
__device__ inline void load_channels(const T* from, int first, int last, int64_t stride,
                                     int channel, int count, int apart, To to) {
  from += channel * stride;
  const int64_t step = apart * stride;
  if constexpr (kVector == 0) {
    constexpr int kBatch = 4;
    const uint4 mask = mask_of<T>(first, last);
#pragma unroll 1
    for (; channel < count; channel += kBatch * apart, from += kBatch * step) {
      uint4 unit[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const bool exists = channel + i * apart < count;
        if constexpr (kStaged) {
          unit[i] = load_unit(exists ? from + i * step : from, mask);
        } else {
          unit[i] = load_unit(from + i * step, first, exists ? last : 0);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int own = channel + i * apart;
        if (own < count) *reinterpret_cast<uint4*>(to(own)) = unit[i];
      }
    }
  } else {
    constexpr int kCount = kUnitBytes / kVector;
    constexpr int kPixels = kVector / static_cast<int>(sizeof(T));
    int offset[kCount];
    bool exists[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      exists[i] = i * kPixels >= first && i * kPixels < last;
      offset[i] = exists[i] ? i * kPixels : first < last ? first : 0;
    }
#pragma unroll 4
    for (; channel < count; channel += apart, from += step) {
      const uint32_t unit = ptx::shared_address(to(channel));
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        ptx::copy_async<kVector>(unit + i * kVector, from + offset[i], exists[i]);
      }
    }
  }
}

// Threads of their own load tensors that the copy engine can't cut into boxes. Each has a place in
// the image, or some, and goes through the channels. kStaged: whole images are brought as they are,
// two tiles at a time, and loaded from there.
template <typename T, int kKernel, int kVector, bool kStaged>
__device__ inline void load_rows(const Params<T>& p, const Memory& memory, const Share& share,
                                 int thread) {
  constexpr Kernel kKind = kKernels[kKernel];
  constexpr int kLoaders = kKind.loaders;
  const int channels_k = min(p.group_K - share.k, kKind.k_blocks * kBlock);
  const int channels_c = p.flat ? p.channels : min(p.group_C - share.c, share.boxes_c * kBlock);
  const T* const all_y = p.y + (share.group * p.group_K + share.k) * p.y_k;
  const T* const all_x = p.x + first_channel(p, share) * p.x_c;
  const int first_h = share.r * p.dilation_h - p.pad_h;
  const int first_w = Begin(p, first_tap(p, share.chunk, kKind.taps)).column;
  const int64_t image_y = kStaged ? channels_k * p.y_k : p.y_n;
  const int64_t image_x = kStaged ? channels_c * p.x_c : p.x_n;
  const auto raw_of = [&](int turn) { return memory.raw + turn * p.raw_bytes; };
  const auto bring = [&](int tile, int turn) {
    if (thread > 0 || tile >= p.tiles) return;
    const int n = tile * p.images, images = min(p.images, p.N - n);
    const int bytes_y = static_cast<int>(image_y * sizeof(T));
    const int bytes_x = static_cast<int>(image_x * sizeof(T));
    ptx::Barrier* full = &memory.raw_full[turn];
    ptx::arrive_expecting(full, images * (bytes_y + bytes_x));
#pragma unroll 1
    for (int i = 0; i < images; ++i) {
      ptx::copy_bytes(raw_of(turn) + i * bytes_y, all_y + (n + i) * p.y_n, bytes_y, full);
      ptx::copy_bytes(raw_of(turn) + p.raw_y + i * bytes_x, all_x + (n + i) * p.x_n, bytes_x, full);
    }
  };
  if constexpr (kStaged) {
    bring(share.split, 0);
    bring(share.split + p.splits, 1);
  }
  const auto deliver = [&](int number) {
    if constexpr (kVector > 0 && sizeof(T) == 4) {
      // Tensor cores would cut dy.
      char* const stage = memory.stages + number * p.stage_bytes;
      each_place(p.y_inner, thread, kLoaders, [&](int place, int channel, int apart) {
#pragma unroll 4
        for (; channel < channels_k; channel += apart) {
          auto* unit = reinterpret_cast<uint4*>(in_slab(p, stage, place, channel));
          *unit = round_all(*unit);
        }
      });
    }
    ptx::fence_shared_writes();
    ptx::arrive(&memory.full[number]);
  };
  // With stages enough, the next tile's copies are started before a tile's are awaited.
  const bool runs_ahead = kVector > 0 && p.stages > 2;
  ptx::Turn turn, raw, delivered;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    const Origin at(p, tile);
    char* const stage = memory.stages + turn.stage * p.stage_bytes;
    if constexpr (kStaged) ptx::wait(&memory.raw_full[raw.stage], raw.parity);
    const T* const y =
        kStaged ? reinterpret_cast<const T*>(raw_of(raw.stage)) : all_y + at.n * p.y_n;
    const T* const x =
        kStaged ? reinterpret_cast<const T*>(raw_of(raw.stage) + p.raw_y) : all_x + at.n * p.x_n;
    ptx::wait(&memory.empty[turn.stage], turn.parity ^ 1);
    each_place(p.y_inner, thread, kLoaders, [&](int place, int channel, int apart) {
      int32_t rest = place;
      const int q = at.q + p.by_row_units.split(rest) * kUnit<T>;
      const int row = at.p + p.by_rows.split(rest);
      const bool exists = rest < p.images && at.n + rest < p.N && row < p.P && q < p.Q;
      load_channels<kVector, kStaged>(
          exists ? y + rest * image_y + row * p.y_p + q : y, 0, exists ? min(kUnit<T>, p.Q - q) : 0,
          p.y_k, channel, channels_k, apart, [&](int k) { return in_slab(p, stage, place, k); });
    });
    each_place(p.x_inner, thread, kLoaders, [&](int place, int channel, int apart) {
      int32_t rest = place;
      const int unit = p.first_unit + p.by_x_units.split(rest);
      const int row = p.first_row + p.by_x_rows.split(rest);
      char* const to = stage + p.x_at + rest * p.x_image + row * p.x_row + unit * kUnitBytes;
      const int w = at.q * p.stride_w + first_w + unit * kUnit<T>;
      const int h = at.p * p.stride_h + first_h + row * p.step_h;
      const bool exists = at.n + rest < p.N && h >= 0 && h < p.H && w > -kUnit<T> && w < p.W;
      load_channels<kVector, kStaged>(exists ? x + rest * image_x + h * p.x_h + w : x, max(0, -w),
                                      exists ? min(kUnit<T>, p.W - w) : 0, p.x_c, channel,
                                      channels_c, apart,
                                      [&](int c) { return to + c * p.x_channel; });
    });
    if constexpr (kVector > 0) {
      ptx::commit_copies();
      if (!runs_ahead) {
        ptx::await_groups<0>();
        deliver(turn.stage);
      } else if (tile != share.split) {
        ptx::await_groups<1>();
        deliver(delivered.stage);
        delivered.advance(p.stages);
      }
    } else {
      deliver(turn.stage);
    }
    turn.advance(p.stages);
    if constexpr (kStaged) {
      ptx::sync_threads<kLoaders>(1);  // all have read the images
      bring(tile + kRawStages * p.splits, raw.stage);
      raw.advance(kRawStages);
    }
  }
  if (runs_ahead && share.split < p.tiles) {
    ptx::await_groups<0>();
    deliver(delivered.stage);
  }
}

// Where a thread's two rows of x are in a stage.
struct Rows {
  // Of the first tap the pixel of the first unit, or the word that holds it. Of runs their begin.
  uint32_t at[2];
  uint32_t shift[2];  // bits, to a run's first pixel
  uint32_t table;     // the lane's first entry
};

// What a thread holds of the first operands of a step: rows lane / 4 and lane / 4 + 8, of either
// unit the pixels at lane % 4, for each of some taps.
template <typename T, Fetch kFetch, bool kOdd, int kTaps>
class Fetched {
 public:
  __device__ void load(const Params<T>& p, uint32_t stage, const Rows& rows, int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t from = rows.at[i % 2] + stage + p.unit_at[step][i / 2];
      if constexpr (kFetch != Fetch::kElements) {
#pragma unroll
        for (int j = 0; j < kWords; ++j) word_[i][j] = ptx::load_shared<uint32_t>(from + j * 4);
      } else {
#pragma unroll
        for (int j = 0; j < kTaps; ++j) {
          const uint32_t tap = from + j * p.dilation_w * kSize;
          if constexpr (kSize == 4) {
            word_[i][j] = ptx::load_shared<uint32_t>(tap);
          } else {
            word_[i][j] = __byte_perm(ptx::load_shared<uint16_t>(tap),
                                      ptx::load_shared<uint16_t>(tap + p.stride_w * kSize), 0x5410);
          }
        }
      }
    }
  }

  __device__ void join(const Rows&, uint32_t (&operand)[kTaps][4]) const {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      const int first = tap + kOdd;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kFetch == Fetch::kPairs) {
          operand[tap][i] = first % 2 == 0
                                ? word_[i][first / 2]
                                : __byte_perm(word_[i][first / 2], word_[i][first / 2 + 1], 0x5432);
        } else if constexpr (kFetch == Fetch::kHalves) {
          operand[tap][i] = __byte_perm(word_[i][first / 2], word_[i][first / 2 + 1],
                                        first % 2 == 0 ? 0x5410 : 0x7632);
        } else {
          // Copies by threads do not round.
          operand[tap][i] = kSize == 4 ? ptx::round_tf32(word_[i][tap]) : word_[i][tap];
        }
      }
    }
  }

 private:
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kWords = kFetch == Fetch::kPairs    ? (kTaps + kOdd) / 2 + 1
                                : kFetch == Fetch::kHalves ? (kTaps + kOdd - 1) / 2 + 2
                                                           : kTaps;
  uint32_t word_[4][kWords];
};

// The same of runs. A pixel, or the word that holds it and one more, is where the table says.
template <typename T, Fetch kFetch, int kTaps>
class LookedUp {
 public:
  __device__ void load(const Params<T>& p, uint32_t stage, const Rows& rows, int step) {
    uint32_t places[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t entry = rows.table + stage;
      if constexpr (kTaps == 1) {
        const auto found = ptx::load_shared<uint2>(entry + (step * 2 + i) * 32);
        places[i] = found.x;
        mask_[i][0] = found.y;
      } else {
        static_assert(kTaps == 3);
        const auto found = ptx::load_shared<uint4>(entry + (step * 2 + i) * 64);
        places[i] = found.x;
        mask_[i][0] = found.y;
        mask_[i][1] = found.z;
        mask_[i][2] = found.w;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t run = rows.at[i % 2] + stage, place = places[i / 2];
      const uint32_t first = run + (kSize == 4 ? place : place & 0xFFFF) * kSize;
      if constexpr (kPairs) {
#pragma unroll
        for (int j = 0; j < kWords; ++j) word_[i][j] = ptx::load_shared<uint32_t>(first + j * 4);
      } else {
        const uint32_t second = run + (place >> 16) * kSize;
#pragma unroll
        for (int j = 0; j < kTaps; ++j) {
          const uint32_t tap = j * p.dilation_w * kSize;
          if constexpr (kSize == 4) {
            word_[i][j] = ptx::load_shared<uint32_t>(first + tap);
          } else {
            word_[i][j] = __byte_perm(ptx::load_shared<uint16_t>(first + tap),
                                      ptx::load_shared<uint16_t>(second + tap), 0x5410);
          }
        }
      }
    }
  }

  __device__ void join(const Rows& rows, uint32_t (&operand)[kTaps][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t word[kWords];
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        word[j] = kPairs && j + 1 < kWords
                      ? __funnelshift_r(word_[i][j], word_[i][j + 1], rows.shift[i % 2])
                      : word_[i][j];
      }
#pragma unroll
      for (int tap = 0; tap < kTaps; ++tap) {
        const uint32_t own = !kPairs        ? word[tap]
                             : tap % 2 == 0 ? word[tap / 2]
                                            : __byte_perm(word[tap / 2], word[tap / 2 + 1], 0x5432);
        operand[tap][i] = own & mask_[i / 2][tap];
      }
    }
  }

 private:
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr bool kPairs = kFetch == Fetch::kTablePairs;
  static constexpr int kWords = kPairs ? kTaps / 2 + 2 : kTaps;
  uint32_t word_[4][kWords], mask_[2][kTaps];
};

// The sums of a warpgroup.
template <typename T, int kKernel, Fetch kFetch, bool kOdd>
__device__ inline void multiply(
    const Params<T>& p, const Memory& memory, const Share& share, const Rows& rows, int first_step,
    float (&sum)[kKernels[kKernel].taps][kKernels[kKernel].k_blocks * 32]) {
  constexpr Kernel kKind = kKernels[kKernel];
  const uint64_t slabs = ptx::describe_rows(ptx::shared_address(memory.stages), 1024);
  ptx::Turn turn;
#pragma unroll 1
  for (int tile = share.split; tile < p.tiles; tile += p.splits) {
    ptx::wait(&memory.full[turn.stage], turn.parity);
    const uint32_t stage = turn.stage * p.stage_bytes;
    std::conditional_t<has_table(kFetch), LookedUp<T, kFetch, kKind.taps>,
                       Fetched<T, kFetch, kOdd, kKind.taps>>
        fetched;
    uint32_t operand[kKind.taps][4];
    fetched.load(p, stage, rows, first_step);
    fetched.join(rows, operand);
#pragma unroll 1
    for (int step = first_step; step < p.steps; step += p.along_p) {
      // The next operands are on their way while these are multiplied. They are asked for first, so
      // that they need registers of their own: the compiler takes those that products under way
      // still read for free.
      fetched.load(p, stage, rows, min(step + p.along_p, p.steps - 1));
      ptx::begin_products();
#pragma unroll
      for (int tap = 0; tap < kKind.taps; ++tap) {
        ptx::Product<T, kKind.k_blocks * kBlock>::add(
            sum[tap], operand[tap], ptx::advance(slabs, stage + p.slab_at[step]), 1);
      }
      ptx::commit_products();
      ptx::await_products<0>();
      fetched.join(rows, operand);
    }
    ptx::arrive(&memory.empty[turn.stage]);
    turn.advance(p.stages);
  }
}

template <typename T, int kKernel, Fetch kFetch>
__global__ void __launch_bounds__(kKernels[kKernel].threads(), 1)
    sum_planes(const __grid_constant__ Params<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr Kernel kKind = kKernels[kKernel];
  extern __shared__ __align__(1024) char stages[];
  const Memory memory(p, stages);
  const Share share(p, static_cast<int32_t>(blockIdx.x));
  // The same for all threads of a warp, and the compiler is told so.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ptx::start_dependents();
  if (threadIdx.x < kMostStages) {
    // Of a warp that loads one thread arrives.
    const int arrive = has_table(kFetch) ? kKind.loaders - 31 : p.boxed ? 1 : kKind.loaders;
    ptx::init_barrier(&memory.full[threadIdx.x], arrive);
    ptx::init_barrier(&memory.empty[threadIdx.x], p.along_p * share.boxes_c * share.boxes_r * 128);
    if (threadIdx.x < kRawStages) ptx::init_barrier(&memory.raw_full[threadIdx.x], 1);
    ptx::fence_barrier_init();
  }
  if (p.has_zeros) {  // of x, that nobody loads
    for (int i = 0; i < p.stages; ++i) {
      char* const x = stages + i * p.stage_bytes + p.x_at;
      for (int at = threadIdx.x * kUnitBytes; at < p.stage_bytes - p.x_at;
           at += kKind.threads() * kUnitBytes) {
        *reinterpret_cast<uint4*>(x + at) = make_uint4(0, 0, 0, 0);
      }
    }
  }
  __syncthreads();
  if (warp >= kKind.warpgroups * 4) {
    ptx::give_registers<kKind.loader_registers>();
    const int thread = static_cast<int>(threadIdx.x) - kKind.warpgroups * 128;
    if constexpr (has_table(kFetch)) {
      if (thread < 32) {
        load_runs<T, kKernel>(p, memory, share, lane);
      } else {
        arrange_runs<T, kKernel>(p, memory, share, thread - 32);
      }
    } else if (p.boxed) {
      if (thread < 32) load_boxes<T, kKernel>(p, memory, share);
    } else if constexpr (kKind.has_threads()) {
      if (p.staged) {
        load_rows<T, kKernel, 0, true>(p, memory, share, thread);
      } else if (p.vector == 8) {
        load_rows<T, kKernel, 8, false>(p, memory, share, thread);
      } else if (p.vector == 4) {
        load_rows<T, kKernel, 4, false>(p, memory, share, thread);
      } else {
        load_rows<T, kKernel, 0, false>(p, memory, share, thread);
      }
    }
    return;
  }
  const int warpgroup = warp / 4;
  const int first_step = p.along_p > 1 ? warpgroup : 0, place = warpgroup - first_step;
  const int box_c = p.along_rows > 1 ? place : 0, filter_row = place - box_c;
  if (box_c >= share.boxes_c || filter_row >= share.boxes_r) return;
  ptx::take_registers<kKind.math_registers>();
  float sum[kKind.taps][kKind.k_blocks * 32] = {};
  constexpr int kSize = static_cast<int>(sizeof(T));
  constexpr int kPixels = kUnit<T> / 4;  // of a thread
  const int first = first_tap(p, share.chunk, kKind.taps);
  const uint32_t x = ptx::shared_address(stages) + p.x_at + (p.flat ? 0 : box_c * p.x_block);
  Rows rows;
  bool odd = false;
  if constexpr (has_table(kFetch)) {
    const int run = p.x_runs > 1 ? filter_row : 0;
    rows.table = ptx::shared_address(stages) + p.table_at + filter_row * p.table_bytes +
                 lane % 4 * (kKind.taps > 1 ? 16 : 8);
    // Pixels of words are as far from those of dy in all tiles.
    const int begin = (Meeting(p, share, first, 0).h + filter_row * p.dilation_h) * p.W +
                      Meeting(p, share, first, 0).w;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = place_of_row(warp % 4 * 16 + lane / 4 + i * 8, p.row_classes);
      const int slack = slack_of<T>(row / (kBlock / p.x_classes), p.x_c);
      const int half = kFetch == Fetch::kTablePairs ? (begin + slack) & 1 : 0;
      rows.at[i] = x + run * p.x_row + row * p.x_channel + (slack - half) * kSize;
      rows.shift[i] = half * 16;
    }
  } else {
    const int slack = Begin(p, first).slack;
    odd = kFetch != Fetch::kElements && slack % 2 != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp % 4 * 16 + lane / 4 + i * 8;
      rows.at[i] = x + (slack + lane % 4 * kPixels * p.stride_w) * kSize - (odd ? kSize : 0);
      if (p.flat) {
        int32_t rest = min(share.c + box_c * kBlock + row, p.group_C - 1);
#pragma unroll
        for (int j = 0; j < 2; ++j) rows.at[i] += p.by_flat[j].split(rest) * p.flat_bytes[j];
        rows.at[i] += rest * p.flat_bytes[2];
      } else {
        rows.at[i] += filter_row * p.dilation_h * p.x_row + row * p.x_channel;
      }
    }
  }
  if (odd) {
    constexpr bool kCanBeOdd = kFetch != Fetch::kElements && !has_table(kFetch);
    multiply<T, kKernel, kFetch, kCanBeOdd>(p, memory, share, rows, first_step, sum);
  } else {
    multiply<T, kKernel, kFetch, false>(p, memory, share, rows, first_step, sum);
  }
  constexpr int kVectors = kKind.blocks() * 8;
  const auto sums_of = [&](int i) {
    return &sum[i / (kKind.k_blocks * 8)][i % (kKind.k_blocks * 8) * 4];
  };
  if (p.partial == nullptr) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float* own = sums_of(i);
      const Spot at(p, share, kKind.taps, 1, warp, lane, i);
      if (at.exists) store(p, share, at, {own[0], own[1], own[2], own[3]});
    }
    return;
  }
  // Parts are one behind the other.
  const int block = static_cast<int>(blockIdx.x) - share.split * p.blocks;
  const int64_t part = int64_t{share.split} * p.along_p + first_step;
  const int64_t number = (part * p.blocks + block) * (kKind.warpgroups / p.along_p) + place;
  float4* const to = p.partial + (number * 4 + warp % 4) * kVectors * 32 + lane;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float* own = sums_of(i);
    to[i * 32] = make_float4(own[0], own[1], own[2], own[3]);
  }
#endif
}

}  // namespace customconv::implicit_gemm::weight::planes
