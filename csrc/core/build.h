// What a library was built from: each has this for itself.
#pragma once

namespace customconv {

// The same in all libraries that fit together: a hash of what passes between them.
extern const char* const kBuild;
// That its kernels were compiled for, as TORCH_CUDA_ARCH_LIST writes it; empty where it has none.
extern const char* const kArchitecture;

}  // namespace customconv
