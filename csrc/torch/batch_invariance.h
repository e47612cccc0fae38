// Whether what an image gets may depend on the rest of its batch.
#pragma once

#include "core/fallback.h"

namespace customconv::torch_layer {

// Counts a call that PyTorch computes. Throws instead while batch invariance is wanted, unless
// PyTorch raises an error of its own, or there is no image.
void fall_back(Fallback why);

}  // namespace customconv::torch_layer
