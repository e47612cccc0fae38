// The CUDA devices of this process, asked for by number from the driver that it has loaded: no
// struct of a CUDA toolkit's, whose layout differs from one version to the next. And the libraries
// of kernels beside this library, of which those that a device needs are loaded.
#pragma once

#include <string>
#include <vector>

#include "kernels/library.h"
#include "plan/device.h"

namespace customconv {

// Both are found out once for each device, safely from any thread. Throws std::invalid_argument
// where CUDA has no such device.
const DeviceProperties& properties_of(int device);

struct Kernels {
  const KernelLibrary* library = nullptr;
  std::string why_not;  // where there is none
};
const Kernels& kernels_of(int device);

// Whether there is a cuBLAS to call; none unless this is said.
void use_blas(bool exists);

// The latest version of CUDA that the driver can run: 1000 times the major number, plus 10 times
// the minor one; 0 without a driver.
int driver_version();

// Of the libraries of kernels beside this library, what is in their names: "sm90a", "sm120_ptx".
std::vector<std::string> kernel_libraries();
// Their files that are loaded.
std::vector<std::string> loaded_kernel_libraries();

// The library among `names` whose code a GPU of this compute capability runs best; empty where
// there is none. Machine code of another minor version runs if it is of an earlier one, and PTX on
// all later GPUs. Code of an architecture with an "a" runs on no other.
std::string library_for(int major, int minor, const std::vector<std::string>& names);

}  // namespace customconv
