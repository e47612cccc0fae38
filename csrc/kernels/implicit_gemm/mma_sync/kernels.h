// The tables of kernels, which take long to compile: those of each type have a file of their own.
#pragma once

#include "kernels/implicit_gemm/mma_sync/work.cuh"

namespace customconv::implicit_gemm::mma_sync {

template <typename T>
using KernelOf = void (*)(Params<T>);

// The kernel that a tile is for, with or without an epilogue.
template <typename T>
KernelOf<T> kernel_of(const Tile& tile);
// What adds up its splits.
template <typename T>
KernelOf<T> adder_of(const Tile& tile);

}  // namespace customconv::implicit_gemm::mma_sync
