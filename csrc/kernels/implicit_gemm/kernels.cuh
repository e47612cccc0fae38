// The tables of kernels. Those with an epilogue take as long to compile as all others: each table
// has a file of its own.
#pragma once

#include "kernels/implicit_gemm/work.cuh"

namespace customconv::implicit_gemm {

template <typename T>
using KernelOf = void (*)(Params<T>);

template <typename T, bool kFused>
KernelOf<T> kernel_of(const Tile& tile);
// The same of an input gradient, for weights of 16 bits that the instruction transposes.
template <typename T>
KernelOf<T> kernel_of_gradient(const Tile& tile);
// The same where warps multiply; with or without an epilogue.
template <typename T>
KernelOf<T> kernel_by_warps(const Tile& tile);
// What adds up its splits.
template <typename T, bool kFused>
KernelOf<T> reducer_of(const Tile& tile);

}  // namespace customconv::implicit_gemm
