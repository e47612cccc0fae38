// Reads what a GPU would only ask for, so that an address outside the tensors may be found.
#pragma once

namespace customconv::ptx {

inline void prefetch_line(const void* at) {
  static_cast<void>(*static_cast<const volatile char*>(at));
}

}  // namespace customconv::ptx
