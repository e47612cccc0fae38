// Every problem as a forward convolution: the phases of input gradients, and where the kernels find
// their weights.
#pragma once

#include <cstdint>

#include "plan/device.h"
#include "plan/problem.h"

namespace customconv::implicit_gemm {

constexpr int kMostPhases = 4;

inline int64_t round_up(int64_t value, int64_t unit) { return ceil_divide(value, unit) * unit; }

// Output pixels that the same taps meet: those of an input gradient that are whole strides apart.
// Other problems have one phase, of all pixels.
struct Phase {
  int R, S;                // taps
  int first_tap;           // of all, as the weight has them
  int tap_h, tap_w;        // from one to the next
  int turned_r, turned_s;  // the first, where all of them are turned and in order
  int row, column;         // of its first tap, in a plane
  int P, Q;                // pixels
  int64_t offset;          // of its first pixel
  int place;               // among all, also those without taps: row by row
};

// What the kernels compute. An input gradient is a forward convolution too: of the output's
// gradient, with the channels of a group exchanged and the taps turned. For each phase of its
// pixels it is one of stride 1. They all read the same pixels, with a halo for all of them. Of
// volumes, a phase's rows and its rows of taps are those of all slices; input gradients of volumes
// have strides of 1, and so one phase.
struct Forward : ConvProblem {
  bool gradient = false;
  int64_t w_first = 0;             // where the weight's first element is, after turning
  int64_t w_group = 0;             // elements of the weight from one group to the next
  int64_t taps_h = 1, taps_w = 1;  // of all phases
  // Where taps are channels too, channels of one tap, and taps of a row; else 0 and 1.
  int64_t tap_channels = 0, row_taps = 1;
  int64_t period_h = 1, period_w = 1;  // taps from one of a phase to the next
  int64_t step_h = 1, step_w = 1;      // pixels of the output from one of a phase to the next
  // Elements of phases that are stored apart, then woven into planes of pixels: to store single
  // pixels of a row between others would take longer.
  int64_t woven = 0;
  // Whether phases are output channels instead: (row, column, channel) of what lies within a
  // stride. They are stored apart, then spread over the image.
  bool joins_phases = false;
  int phases = 1;
  Phase phase[kMostPhases] = {};  // those with the most taps come first

  // Rows of what is computed and of taps, those of all slices: a slice's come behind those of the
  // one in front.
  int64_t rows() const { return O * P; }
  int64_t filter_rows() const { return T * R; }
  // Whether a phase does not have all taps.
  bool has_phases() const { return phases > 1 || phase[0].R * phase[0].S != taps_h * taps_w; }
};
Forward as_forward(const ConvProblem& problem);
// An input gradient with its phases as channels, and whether it can be computed so.
Forward join_phases(const ConvProblem& problem);
bool can_join_phases(const ConvProblem& problem);
int64_t count_phases(const ConvProblem& problem);
// Bytes that the kernel moves which brings phases that are stored apart to their places.
double weave_bytes(const Forward& problem);
// A pointwise convolution of dense images is one of a single row: of all their pixels where those
// are channels-last, else of each image's; any other problem stays as it is.
Forward as_one_row(Forward problem);

// Whether pixels with all their channels side by side can be read 16 bytes at a time: they are
// whole 16 bytes apart.
bool input_is_legal(const Forward& problem);

// The order of a row's channels. In each part of `residues` times `run` channels, those whose
// number is a multiple of `residues` come first, then the next ones. Both are powers of two. If
// values are halved (halves.cuh), runs of 2^half_bits channels come as their high halves and then
// as their low ones, and nothing else changes the order.
struct ChannelOrder {
  int residue_bits = 0, run_bits = 0;
  int half_bits = 0;

  constexpr int part() const { return 1 << (residue_bits + run_bits); }
  constexpr bool is_low(int place) const { return half_bits > 0 && (place >> half_bits & 1) != 0; }
  // Where a channel is, if they are halved: its high half.
  constexpr int place(int channel) const {
    return half_bits == 0 ? channel : (channel >> half_bits << half_bits) + channel;
  }
  constexpr int channel(int place) const {
    if (half_bits > 0) {
      return (place >> (half_bits + 1) << half_bits) | (place & ((1 << half_bits) - 1));
    }
    const int own = place & (part() - 1);
    return place - own + ((own & ((1 << run_bits) - 1)) << residue_bits) + (own >> run_bits);
  }
};

// The weight as a kernel reads it. A matrix has rows (k, r, s) of channels, whole 16 bytes; if
// transposed, rows (c, r, s) of output channels, as the weight of an input gradient has them.
struct PackedWeight {
  int64_t rows, row;  // of elements
  bool in_place;      // the weight is so already
  ChannelOrder order = {};
};
PackedWeight packed_matrix(const Forward& problem, bool transposed);
// The phases, with their taps where a matrix has them.
void place_taps(const Forward& problem, bool transposed, Phase (&phases)[kMostPhases]);

}  // namespace customconv::implicit_gemm
