// Whether what an image gets may depend on the rest of its batch.
#pragma once

#include "torch/fallback.h"

namespace customconv::torch_layer {

// The switch, of the whole process. Returns how it was set before, whatever was begun.
bool set_batch_invariant(bool enabled);
// It counts as on, in all threads, while more were begun than ended.
void begin_batch_invariance();
void end_batch_invariance();
bool wants_batch_invariance();

// Counts a call that PyTorch computes. Throws instead while the switch is on, unless PyTorch raises
// an error of its own, or there is no image.
void fall_back(Fallback why);

}  // namespace customconv::torch_layer
