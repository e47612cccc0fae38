// Runs kernels on the CPU, so that their logic can be tested where there is no GPU.
//
// Threads of a cluster take turns, each until it waits for others. What hardware does on its own,
// copies and matrix products, happens at some later moment, within what the waiting allows. That
// finds wrong indices, missing or superfluous arrivals and deadlocks; memory models and races of
// plain accesses it does not have.
//
// Headers in kernels/ stand in for those of the same names in csrc/, whose sources are compiled
// for the CPU as they are.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#undef __shared__
#undef __grid_constant__
#undef __launch_bounds__
#define __shared__ static  // where there are no clusters, one thread block runs at a time
#define __grid_constant__
#define __launch_bounds__(...)

namespace emulation {

constexpr uint32_t kFirstAddress = 1024;  // of a block's shared memory: no address is 0
constexpr uint32_t kSharedBytes = 227 << 10;

// Where some threads wait for each other, over and over.
struct Meeting {
  int arrived = 0;
  unsigned round = 0;
};

struct Block;
struct Warp {
  Meeting meeting;
  uint64_t exchanged[32];
};
struct Products;  // of a warpgroup, under way
using Copies = std::vector<std::function<void()>>;

struct Thread {
  int number;
  Block* block;
  Warp* warp;
  Products* products;
  int started = 0, committed = 0;  // its products, and groups of them
  std::deque<Copies> copies{1};    // of its own that are under way, in groups
};

struct Block {
  int number, rank;
  char* memory;
  std::vector<Block>* cluster;
  int threads;            // that have not returned
  Meeting barriers[16];   // 0 is __syncthreads's
  Meeting cluster_meets;  // of the first block
};

// The thread that runs.
Thread& here();

// Ends the launch, which throws. Does not return.
[[noreturn]] void fail(const std::string& what);

// Lets other threads run until it is so.
void wait_until(const std::function<bool()>& is_so);

// Does it some time later, as the same thread.
void later(std::function<void()> action);

// Waits for so many threads; the last does `action` before they go on.
void meet(Meeting& meeting, int threads, const std::function<void()>& action = {});
// The same without waiting; true for the last of them.
bool arrive(Meeting& meeting, int threads, const std::function<void()>& action = {});
void meet_cluster();

void launch(int64_t blocks, int threads, int cluster, int shared_bytes,
            const std::function<void()>& kernel);

// Shared memory by its 32-bit addresses: of the own block, or with a rank of its cluster.
constexpr int kRankShift = 24;
char* at(uint32_t address);

struct Index {
  int x;
};
extern Index thread_index, block_index, grid_size;

}  // namespace emulation

#define threadIdx (emulation::thread_index)
#define blockIdx (emulation::block_index)
inline emulation::Index& gridDim = emulation::grid_size;  // a member has this name, too

inline void __syncthreads() {
  emulation::Block& block = *emulation::here().block;
  emulation::meet(block.barriers[0], block.threads);
}
inline void __syncwarp() { emulation::meet(emulation::here().warp->meeting, 32); }

template <typename T>
T __shfl_sync(uint32_t, T value, int lane) {
  emulation::Warp& warp = *emulation::here().warp;
  std::memcpy(&warp.exchanged[threadIdx.x % 32], &value, sizeof(T));
  __syncwarp();
  std::memcpy(&value, &warp.exchanged[lane % 32], sizeof(T));
  __syncwarp();
  return value;
}

template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes) {
  return __shfl_sync(mask, value, threadIdx.x % 32 ^ lanes);
}
inline uint32_t __ballot_sync(uint32_t mask, bool is_so) {
  uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane) {
    bits |= static_cast<uint32_t>(__shfl_sync(mask, is_so, lane)) << lane;
  }
  return bits;
}
inline bool __all_sync(uint32_t mask, bool is_so) { return __ballot_sync(mask, is_so) == ~0u; }
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }

using std::isfinite, std::isinf;
template <typename T>
T __ldg(const T* from) {
  return *from;
}
inline int min(int a, int b) { return std::min(a, b); }
inline int max(int a, int b) { return std::max(a, b); }
inline int64_t min(int64_t a, int64_t b) { return std::min(a, b); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
}
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline uint32_t __float_as_uint(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float v;
  std::memcpy(&v, &bits, sizeof(v));
  return v;
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t bits) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (bits & 31));
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t select) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> (select >> i * 4 & 7) * 8 & 0xFF) << i * 8;
  }
  return result;
}

namespace emulation {

// A launch by <<<...>>>.
struct Plain {
  unsigned blocks;
  int threads;
  int shared_bytes = 0;
  cudaStream_t stream = nullptr;

  template <typename... P, typename... A>
  void operator()(void (*kernel)(P...), A... arguments) const {
    launch(blocks, threads, 1, shared_bytes, [=] { kernel(P(arguments)...); });
  }
};

}  // namespace emulation

// Launches, as launchers of csrc/ ask for them.
template <typename... P>
cudaError_t cudaFuncSetAttribute(void (*)(P...), cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <typename... P>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                               const P&... arguments) {
  int cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      cluster = static_cast<int>(attribute.val.clusterDim.x);
    }
  }
  emulation::launch(config->gridDim.x, static_cast<int>(config->blockDim.x), cluster,
                    static_cast<int>(config->dynamicSmemBytes), [&] { kernel(arguments...); });
  return cudaSuccess;
}
