// libcustomconv as this library sees it: failures become exceptions, in PyTorch's words.
#pragma once

#include <c10/util/Exception.h>

#include "core/interface.h"

namespace customconv::torch_layer {

inline void check(Failure failure) { TORCH_CHECK(failure == nullptr, failure); }

inline void count(Pass pass, FamilyId family) { customconv_counters()->count(pass, family); }
inline void count(Fallback reason) { customconv_counters()->count(reason); }

inline bool is_routing() { return customconv_switches()->routes(); }
inline bool wants_batch_invariance() { return customconv_switches()->wants_batch_invariance(); }

}  // namespace customconv::torch_layer
