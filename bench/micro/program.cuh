// What the programs share: what a program tells its caller.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <exception>

#include "kernels/common/check.h"

namespace customconv::micro {

constexpr int kFailed = 1;         // stderr says why
constexpr int kDoesNotFit = 2000;  // a variant does not compute this problem

// Returns the function's status, or kFailed if it throws.
template <typename Function>
int guarded(Function function) {
  try {
    return function();
  } catch (const std::exception& error) {
    cudaGetLastError();  // so that the next call does not report it
    std::fprintf(stderr, "%s\n", error.what());
    return kFailed;
  }
}

}  // namespace customconv::micro
