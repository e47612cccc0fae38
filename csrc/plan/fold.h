// Problems of volumes that are ones of images in memory.
#pragma once

#include "plan/problem.h"

namespace customconv {

// The problem of images that a problem of volumes is, where there is one: its operands are the same
// elements in the same places. It is written to `room`. Any other problem is returned as it is.
//
// 1x1x1 and Tx1x1: a volume's slices are rows, and their pixels are those of a row. 1xRxS: slices
// are images, or the rows of one. A filter as large as the volume: all its taps are channels.
const ConvProblem& folded(const ConvProblem& problem, ConvProblem& room);

}  // namespace customconv
