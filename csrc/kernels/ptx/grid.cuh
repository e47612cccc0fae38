// Kernels that begin before the one in front of them has ended (programmatic dependent launch).
#pragma once

namespace customconv::ptx {

// The next kernel may begin, where there is room and it was launched so.
__device__ inline void start_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// Waits until the kernel in front has ended and its writes are seen.
__device__ inline void await_dependency() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace customconv::ptx
