// Channels-first input of a single tap: the copy engine brings slabs, 128 bytes of pixels of each
// of a stage's channels, with the swizzle. Images are rows of pixels that follow each other.
//
// A box can't go from one image to the next. Where a slab does, its pixels of the next image come
// in a slab of their own, in the same columns.
#pragma once

#include "kernels/implicit_gemm/work.cuh"
#include "kernels/ptx/tma.cuh"

namespace customconv::implicit_gemm {

template <typename T>
inline constexpr int kSlabPixels = kRowBytes / static_cast<int>(sizeof(T));

// Where a tile's pixels are in a stage.
template <typename T>
class SlabPlaces {
 public:
  __device__ SlabPlaces(const RowSource<T>& source, int first_pair)
      : source_(source), first_(first_pair * 2), image_(image_of(first_)) {}

  // The slab of the pixel that is so many behind the first; any, where there is no such pixel.
  __device__ int slab_of(int pixel) const {
    const int slab = pixel / kSlabPixels<T>;
    const int image = image_of(first_ + pixel);
    if (image == image_of(first_ + slab * kSlabPixels<T>)) return slab;
    return source_.row.slabs + min(image - image_, source_.row.more_slabs) - 1;
  }

  // The box of a slab, by number: an image and its column, which may lie in front of the image.
  struct Box {
    bool exists;
    int image, column;
  };
  __device__ Box box_of(int number) const {
    const Rows& row = source_.row;
    if (number < row.slabs) {
      const int at = first_ + number * kSlabPixels<T>, image = image_of(at);
      return {true, image, at - image * source_.image_pixels};
    }
    const int image = image_ + 1 + number - row.slabs;
    const int begins = image * source_.image_pixels - first_;
    const int within = begins % kSlabPixels<T>;
    const bool exists =
        number < row.slabs + row.more_slabs && within != 0 && begins < row.slabs * kSlabPixels<T>;
    return {exists, image, -within};
  }

 private:
  __device__ int image_of(int pixel) const { return source_.columns.quotient(pixel); }

  const RowSource<T>& source_;
  int first_, image_;
};

// Called by a warp, whose threads copy a slab each.
template <typename T>
__device__ inline void load_slabs(const Params<T>& p, const Shared& shared, Walk<T> walk) {
  constexpr int kPiece = kPieceBytes / static_cast<int>(sizeof(T));
  const int lane = threadIdx.x % 32;
  const RowSource<T>& s = p.source;
  typename SlabPlaces<T>::Box box{};
  int bytes = 0;
  Place x;
  for (; !walk.is_over(); walk.advance()) {
    if (walk.is_new_tile()) {
      box = SlabPlaces<T>(s, walk.work.at.pair).box_of(lane);
      bytes = __popc(__ballot_sync(~0u, box.exists)) * s.row.slab_bytes;
    }
    ptx::Barrier* full = &shared.x_full[x.stage];
    char* to = shared.input + x.stage * p.stage_bytes + lane * s.row.slab_bytes;
    const int c = walk.work.at.c + walk.step.chunk * p.chunk * kPiece;
    ptx::wait(&shared.x_empty[x.stage], x.parity ^ 1);
    if (lane == 0) ptx::arrive_expecting(full, bytes);
    __syncwarp();
    if (box.exists) {
      if constexpr (sizeof(T) == 4) {
        ptx::copy_box(to, &p.x, full, box.column, 0, 0, box.image * (s.C / 8) + c / 8);
      } else {
        ptx::copy_box(to, &p.x, full, box.column, 0, c, box.image);
      }
    }
    x.advance(p.x_stages);
  }
}

}  // namespace customconv::implicit_gemm
