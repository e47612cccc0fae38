// A stream of CUDA's, without CUDA's headers.
#pragma once

struct CUstream_st;

namespace customconv {

using Stream = CUstream_st*;  // cudaStream_t

}  // namespace customconv
