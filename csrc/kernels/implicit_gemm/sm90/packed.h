// A problem as the main loop computes it: its input may be packed into a workspace first, a part of
// the problem after the other.
#pragma once

#include <cstdint>

#include "kernels/implicit_gemm/forward.h"

namespace customconv::implicit_gemm::sm90 {

// What the main loop reads.
enum class Packing : uint8_t {
  kNone,     // the input, where it is
  kPixels,   // its pixels, each with its channels side by side, padded to whole 16 bytes
  kPatches,  // of few channels: pixels of the output, each with what all taps meet
  kImages,   // pixels, each with what all images have there: of weight gradients
  // As patches, which the kernel gathers itself: nothing is packed. No plan has this word.
  kGathered,
};

// The forward convolution that a problem is computed as.
struct Form {
  Packing packing = Packing::kNone;
  bool joins_phases = false;  // of an input gradient
  bool halves = false;        // of float32, see ../halves.cuh: packed so, or made so from planes
};

struct Packed : Forward {
  Packing packing = Packing::kNone;
  ConvProblem source = {};  // what is packed: a forward convolution too
  int64_t channels = 0;     // of a group of it, or of all taps, as they are before they are halved
  int half_bits = 0;        // see ChannelOrder: then there are twice as many channels
  bool is_packed() const { return packing != Packing::kNone && packing != Packing::kGathered; }
  int64_t packed() const { return is_packed() ? N * x_strides[0] : 0; }  // elements
};

// `asked` in this form; with its input unpacked, if to pack it is not possible or does not help.
Packed forward_of(const ConvProblem& asked, Form form);

// How a weight gradient is summed: its images in so many groups, whose sums are apart, and cut into
// pieces, of so many bands of rows of the output.
struct Exchange {
  int64_t groups = 1, bands = 1;
};
// The pieces of an image: how many, and of each the output's rows and columns and the input's.
struct Pieces {
  int64_t bands, columns;
  int64_t P, Q, H, W;
};
Pieces pieces_of(const ConvProblem& asked, const Exchange& exchange);
// A weight gradient as a forward convolution of halves: pieces of images are its input channels,
// channels its images, and a piece's output pixels its taps. Its output channels are (group, k).
Packed exchanged_of(const ConvProblem& asked, const Exchange& exchange);
bool can_exchange(const ConvProblem& asked);

// Elements from one pixel of the input to the next.
int64_t input_pixel_stride(const ConvProblem& problem);
// Whether pixels follow each other, in planes or with their channels side by side, so that they are
// packed many at a time. Volumes are packed in no other way.
bool input_follows(const ConvProblem& problem);

// Whether TMA reads planes of pixels: only images must be whole 16 bytes apart.
bool planes_are_legal(const Forward& problem);

// How much of a problem is computed at a time: images, or rows of what is computed of one image;
// columns where images are a single row, and slices of a volume. All of it if there are no
// `images`.
struct Chunk {
  int64_t images = 0, pixels = 0;
};
// Chunks whose workspace stays in the second-level cache, but for those of large volumes. False if
// there are none.
bool choose_chunk(const ConvProblem& asked, Form form, Chunk& chunk);
int64_t count_parts(const ConvProblem& asked, const Chunk& chunk);

// A part of a problem is a problem of its own, whose tensors begin some elements further on.
struct Part {
  ConvProblem problem;
  int64_t x, y;
};
Part part_of(const ConvProblem& asked, const Chunk& chunk, int64_t index);
// The part of the first image that reads most: rows at an edge read less of the image.
int64_t widest_part(const ConvProblem& asked, const Chunk& chunk);
// Bytes of a part's workspace: the packed input, and phases of the output that are stored apart.
int64_t packed_bytes(const Packed& part);
int64_t woven_bytes(const Packed& part);
// The most of both, of all parts.
int64_t workspace_bytes(const ConvProblem& asked, const Chunk& chunk, Form form);

constexpr int64_t kAlignment = 256;  // of the parts of a workspace

}  // namespace customconv::implicit_gemm::sm90
