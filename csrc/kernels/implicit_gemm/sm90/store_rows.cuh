// Channels-last results that TMA stores while the next tile is summed.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/sm90/slab.cuh"
#include "kernels/implicit_gemm/sm90/statistics.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm::sm90 {

// A warpgroup's stores. With `kFused`, a residual comes into the slabs before results are written
// there: the first ones of a tile while it is summed.
template <typename T, int kSpans, int kBlocks, int kN, bool kFused>
class RowStore {
  using S = Slabs<T, kN>;

 public:
  // `own_k`: of the tile, the warpgroup's first channel.
  __device__ RowStore(const Params& p, ptx::Barrier* residual_full, char* slabs, int own_k,
                      int barrier, bool leads)
      : p_(p),
        full_(residual_full),
        slabs_(slabs),
        own_k_(own_k),
        barrier_(barrier),
        leads_(leads),
        adds_(kFused && p.epilogue.residual != nullptr) {}

  __device__ void begin(Work work, int own_pixel) {
    work.position += own_pixel;
    if (adds_) fetch(work, 0, 0);
  }

  __device__ void store(const Work& work, float (&sum)[kBlocks][kN / 2]) {
    if constexpr (kFused) {
      finish<T, kSpans>(p_, work, work.k + own_k_, sum);
      store_statistics<T, kSpans>(p_, work, work.k + own_k_, sum);
    }
    const uint32_t slabs = ptx::shared_address(slabs_);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int round = 0; round < S::kRounds; ++round) {
        if (adds_) {
          if (b > 0 || round > 0) fetch(work, b, round);
          ptx::wait(full_, parity_);
          parity_ ^= 1;
          S::add(p_.epilogue, slabs, round, sum[b]);
        } else {
          if (leads_) ptx::tma_store_wait();
          ptx::named_barrier_sync<128>(barrier_);
        }
        S::write(slabs, round, sum[b]);
        ptx::fence_shared_writes();
        ptx::named_barrier_sync<128>(barrier_);
        if (leads_) {
          each(work, b, round, [&](int i, int k, int position) {
            ptx::tma_store(&p_.y, slabs_ + i * S::kBytes, k, position, 0, 0);
          });
          ptx::tma_store_arrive();
        }
      }
    }
  }

  __device__ void await() {
    if (leads_) ptx::tma_store_wait();
  }

 private:
  // Calls `move` with the slabs of a round that are of the tile's group.
  template <typename Move>
  __device__ void each(const Work& work, int b, int round, Move move) {
#pragma unroll
    for (int i = 0; i < S::kCount; ++i) {
      const int k = work.k + own_k_ + b / kSpans * kBlockChannels + S::channel(i);
      if (k < work.last_k) move(i, k, work.position + b % kSpans * kN + S::position(round, i));
    }
  }
  __device__ void fetch(const Work& work, int b, int round) {
    if (!leads_) return;
    ptx::wait_on_dependent_grids();
    ptx::tma_store_wait();
    int bytes = 0;
    each(work, b, round, [&](int, int, int) { bytes += S::kBytes; });
    ptx::arrive_and_expect_tx(full_, bytes);
    each(work, b, round, [&](int i, int k, int position) {
      ptx::tma_load(slabs_ + i * S::kBytes, &p_.residual, full_, k, position, 0, 0);
    });
  }

  const Params& p_;
  ptx::Barrier* full_;
  char* slabs_;
  int own_k_, barrier_;
  bool leads_, adds_;
  uint32_t parity_ = 0;
};

}  // namespace customconv::implicit_gemm::sm90
