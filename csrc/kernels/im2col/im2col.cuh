// The family's loop over chunks: columns, products, sums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/common/check.h"
#include "kernels/im2col/columns.cuh"
#include "kernels/im2col/gemm.h"
#include "kernels/launch.h"

namespace customconv::im2col {

inline unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>(std::min<int64_t>((count + kBlock - 1) / kBlock, 1 << 20));
}

// One pass over the chunks of a problem. Strides of matrices are named after what they step over.
template <typename T, typename Index>
class ChunkedPass {
 public:
  using Acc = Accumulator<T>;

  ChunkedPass(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
              const LaunchContext& context)
      : p_(problem),
        plan_(plan.payload.as<Im2colPlan>()),
        geometry_(problem),
        context_(context),
        x_(static_cast<T*>(operands.x)),
        w_(static_cast<T*>(operands.w)),
        y_(static_cast<T*>(operands.y)),
        bias_(static_cast<const T*>(operands.epilogue.bias)),
        in_place_(columns_are_in_place(problem)),
        rows_(column_rows(problem)),
        group_rows_(problem.group_C() * problem.R * problem.S),
        image_pixels_(problem.P * problem.Q) {}

  void fprop() {
    if (keeps_products(p_)) {
      for_each_chunk([&](const Chunk& chunk) {
        auto* products = behind_columns();
        multiply_forward(chunk, columns_of(chunk), products, chunk.pixels, false);
        round_products(chunk, products);
      });
      return;
    }
    if (bias_ != nullptr) {
      const int64_t inner = geometry_.channels_last ? 1 : image_pixels_;
      fill_bias<T><<<blocks_for(p_.y_count()), kBlock, 0, context_.stream>>>(p_.y_count(), inner,
                                                                             p_.K, bias_, y_);
      check_launch("im2col fill_bias");
    }
    for_each_chunk([&](const Chunk& chunk) {
      multiply_forward(chunk, columns_of(chunk), y_at(chunk), image_pixels_, bias_ != nullptr);
    });
  }

  void dgrad() {
    const auto images = plan_.images, height = plan_.pixels;
    for (int64_t image = 0; image < p_.N; image += images) {
      for (int64_t first = 0; first < p_.H; first += height) {
        dgrad_band(image, std::min(images, p_.N - image), first, std::min(height, p_.H - first));
      }
    }
  }

  void wgrad() {
    if (is_single_product(p_)) {
      const Chunk all{0, p_.N, 0, static_cast<int>(image_pixels_)};
      return multiply(weight_product(all, columns_of(all), w_));
    }
    Acc* sum = behind_columns();
    bool first = true;
    for_each_chunk([&](const Chunk& chunk) {
      if (sums_in_parts(p_)) {
        multiply_weight_in_parts(chunk, columns_of(chunk), sum, first);
      } else {
        multiply_weight(chunk, columns_of(chunk), sum, first);
      }
      first = false;
    });
    narrow_sum<T><<<blocks_for(p_.w_count()), kBlock, 0, context_.stream>>>(p_.w_count(), sum, w_);
    check_launch("im2col narrow_sum");
  }

 private:
  // A chunk's columns and how they are laid out: in the workspace, or x itself.
  struct Columns {
    const T* data;
    int64_t leading, image_stride, group_stride;
  };

  template <typename Body>
  void for_each_chunk(Body body) {
    const auto images = plan_.images, pixels = plan_.pixels;
    for (int64_t image = 0; image < p_.N; image += images) {
      for (int64_t pixel = 0; pixel < image_pixels_; pixel += pixels) {
        body(Chunk{image, std::min(images, p_.N - image), static_cast<int>(pixel),
                   static_cast<int>(std::min(pixels, image_pixels_ - pixel))});
      }
    }
  }

  Acc* behind_columns() const {
    return reinterpret_cast<Acc*>(static_cast<char*>(context_.workspace) + columns_room(p_, plan_));
  }

  // Elements between lines, images and groups of a chunk's column matrix.
  Columns layout(const T* data, int64_t leading, int64_t pixels) const {
    if (geometry_.channels_last) return {data, leading, pixels * leading, group_rows_};
    return {data, leading, rows_ * leading, group_rows_ * leading};
  }

  Columns columns_of(const Chunk& chunk) {
    if (in_place_) {
      const int64_t pixel_stride = geometry_.channels_last ? p_.C : 1;
      return layout(x_ + chunk.image * p_.C * p_.H * p_.W + chunk.pixel * pixel_stride,
                    geometry_.channels_last ? rows_ : image_pixels_, image_pixels_);
    }
    constexpr int kPack = Pack<T>::kSize;
    const int64_t lines = geometry_.channels_last ? chunk.pixels : rows_;
    const int64_t packs = packs_of(p_, geometry_.channels_last ? rows_ : chunk.pixels);
    const int64_t count = chunk.images * lines * packs;
    auto* columns = static_cast<T*>(context_.workspace);
    write_columns<T, Index><<<blocks_for(count), kBlock, 0, context_.stream>>>(
        geometry_, static_cast<int>(rows_), chunk, Divider<int32_t>(packs), Divider<int32_t>(lines),
        static_cast<int>(count), loads_packs(), x_, columns);
    check_launch("im2col write_columns");
    return layout(columns, packs * kPack, chunk.pixels);
  }

  // True where a pack of channels of a pixel can be loaded at once.
  bool loads_packs() const {
    constexpr int kPack = Pack<T>::kSize;
    const auto whole = [](int64_t elements) { return elements % kPack == 0; };
    return geometry_.channels_last && geometry_.taps_first && geometry_.x_c == 1 &&
           whole(geometry_.group_C) && whole(geometry_.x_n) && whole(geometry_.x_h) &&
           whole(geometry_.x_w) && reinterpret_cast<uintptr_t>(x_) % sizeof(Pack<T>) == 0;
  }

  T* y_at(const Chunk& chunk) const {
    const int64_t pixel_stride = geometry_.channels_last ? p_.K : 1;
    return y_ + chunk.image * p_.K * image_pixels_ + chunk.pixel * pixel_stride;
  }

  template <typename Out>
  void multiply(const Product<T, Out>& product) {
    im2col::multiply(context_.blas, product, p_.tf32);
  }

  // Issues one NCHW product for each image and group, batched over whichever there are more of.
  template <typename Out>
  void multiply_images(Product<T, Out> product, int64_t images, int64_t a_image, int64_t b_image,
                       int64_t c_image, bool sum_over_images) {
    if (p_.groups == 1 && !sum_over_images) {
      product.batch = images;
      product.a_stride = a_image;
      product.b_stride = b_image;
      product.c_stride = c_image;
      multiply(product);
      return;
    }
    for (int64_t n = 0; n < images; ++n) {
      multiply(product);
      product.a += a_image;
      product.b += b_image;
      product.c += c_image;
      if (sum_over_images) product.accumulate = true;
    }
  }

  // out = columns x weight; an NCHW image's lines in `out` are `pixels` long.
  template <typename Out>
  void multiply_forward(const Chunk& chunk, const Columns& columns, Out* out, int64_t pixels,
                        bool accumulate) {
    const int64_t K = p_.group_K(), weights = K * group_rows_;
    Product<T, Out> product{};
    product.inner = group_rows_;
    product.c = out;
    product.batch = p_.groups;
    product.accumulate = accumulate;
    if (geometry_.channels_last) {
      product.rows = chunk.images * chunk.pixels;
      product.columns = K;
      product.a = columns.data;
      product.a_leading = columns.leading;
      product.a_stride = columns.group_stride;
      product.b = w_;
      product.b_leading = group_rows_;
      product.b_transposed = true;
      product.b_stride = weights;
      product.c_leading = p_.K;
      product.c_stride = K;
      multiply(product);
      return;
    }
    product.rows = K;
    product.columns = chunk.pixels;
    product.a = w_;
    product.a_leading = group_rows_;
    product.a_stride = weights;
    product.b = columns.data;
    product.b_leading = columns.leading;
    product.b_stride = columns.group_stride;
    product.c_leading = pixels;
    product.c_stride = K * pixels;
    multiply_images(product, chunk.images, 0, columns.image_stride, p_.K * pixels, false);
  }

  void round_products(const Chunk& chunk, const Acc* products) {
    const int64_t count = chunk.images * chunk.pixels * p_.K;
    const bool channels_last = geometry_.channels_last;
    add_bias<T><<<blocks_for(count), kBlock, 0, context_.stream>>>(
        count, Divider<int64_t>(channels_last ? p_.K : chunk.pixels),
        channels_last ? p_.K : image_pixels_, channels_last, p_.K, products, bias_, y_at(chunk));
    check_launch("im2col add_bias");
  }

  // sum = dy^T x columns, of all groups, for the first image of a chunk; in NHWC for the chunk.
  template <typename Out>
  Product<T, Out> weight_product(const Chunk& chunk, const Columns& columns, Out* sum) const {
    const int64_t K = p_.group_K();
    const bool channels_last = geometry_.channels_last;
    Product<T, Out> product{};
    product.rows = K;
    product.columns = group_rows_;
    product.inner = channels_last ? chunk.images * chunk.pixels : chunk.pixels;
    product.a = y_at(chunk);
    product.a_leading = channels_last ? p_.K : image_pixels_;
    product.a_transposed = channels_last;
    product.a_stride = channels_last ? K : K * image_pixels_;
    product.b = columns.data;
    product.b_leading = columns.leading;
    product.b_transposed = !channels_last;
    product.b_stride = columns.group_stride;
    product.c = sum;
    product.c_leading = group_rows_;
    product.c_stride = K * group_rows_;
    product.batch = p_.groups;
    return product;
  }

  // sum (+)= dy^T x columns.
  void multiply_weight(const Chunk& chunk, const Columns& columns, Acc* sum, bool first) {
    Product<T, Acc> product = weight_product(chunk, columns, sum);
    product.accumulate = !first;
    if (geometry_.channels_last) return multiply(product);
    multiply_images(product, chunk.images, p_.K * image_pixels_, columns.image_stride, 0, true);
  }

  // The same, the sums over pixels formed in parts. Only float32 is instantiated.
  void multiply_weight_in_parts(const Chunk& chunk, const Columns& columns, Acc* sum, bool first) {
    if constexpr (std::is_same_v<T, float>) {
      const WeightParts parts = weight_parts(p_, chunk.images, chunk.pixels);
      const int64_t most = plan_.parts;
      const int64_t weights = p_.w_count();
      // Behind the sum: the operands' places, then the sums of the parts.
      auto** dy_list =
          reinterpret_cast<const T**>(reinterpret_cast<char*>(sum) + weight_sum_bytes(p_));
      auto** columns_list = dy_list + most * p_.groups;
      auto** sums_list = const_cast<T**>(columns_list + most * p_.groups);
      T* sums = reinterpret_cast<T*>(sums_list + most * p_.groups);

      Product<T, T> product = weight_product(chunk, columns, sum);
      const bool channels_last = geometry_.channels_last;
      const Operand<const T> dy{product.a, p_.K * image_pixels_, channels_last ? p_.K : 1,
                                product.a_stride};
      const Operand<const T> pixels{product.b, columns.image_stride,
                                    channels_last ? columns.leading : 1, product.b_stride};
      const int64_t full = parts.count - parts.lines;  // and one tail a line
      for (int64_t part = 0; part < parts.count; part += product.batch / p_.groups) {
        const bool tail = part >= full;
        const int64_t count = std::min(most, (tail ? parts.count : full) - part);
        product.inner = tail ? parts.tail : parts.length;
        product.batch = count * p_.groups;
        list_parts<T><<<blocks_for(product.batch), kBlock, 0, context_.stream>>>(
            part, count, parts.lines, parts.length, p_.groups, dy, pixels, sums, weights, dy_list,
            columns_list, sums_list);
        check_launch("im2col list_parts");
        multiply_listed(context_.blas, product, dy_list, columns_list, sums_list);
        add_parts<T><<<blocks_for(weights * (kBlock / 32)), kBlock, 0, context_.stream>>>(
            weights, count, first, sums, sum);
        check_launch("im2col add_parts");
        first = false;
      }
    }
  }

  // out = dy x weight, or weight^T x dy: the columns of a chunk, in lines of `pixels` for NCHW.
  template <typename Out>
  void multiply_columns(const Chunk& chunk, Out* out, int64_t pixels) {
    const int64_t K = p_.group_K(), weights = K * group_rows_;
    const T* dy = y_at(chunk);
    Product<T, Out> product{};
    product.inner = K;
    product.c = out;
    product.batch = p_.groups;
    if (geometry_.channels_last) {
      product.rows = chunk.images * chunk.pixels;
      product.columns = group_rows_;
      product.a = dy;
      product.a_leading = p_.K;
      product.a_stride = K;
      product.b = w_;
      product.b_leading = group_rows_;
      product.b_stride = weights;
      product.c_leading = rows_;
      product.c_stride = group_rows_;
      multiply(product);
      return;
    }
    product.rows = group_rows_;
    product.columns = chunk.pixels;
    product.a = w_;
    product.a_leading = group_rows_;
    product.a_transposed = true;
    product.a_stride = weights;
    product.b = dy;
    product.b_leading = image_pixels_;
    product.b_stride = K * image_pixels_;
    product.c_leading = pixels;
    product.c_stride = group_rows_ * pixels;
    multiply_images(product, chunk.images, 0, p_.K * image_pixels_, rows_ * pixels, false);
  }

  void dgrad_band(int64_t image, int64_t images, int64_t first, int64_t height) {
    if (in_place_) {
      const Chunk chunk{image, images, 0, static_cast<int>(image_pixels_)};
      multiply_columns(chunk, x_ + image * p_.C * p_.H * p_.W, image_pixels_);
      return;
    }
    // Output rows whose taps reach input rows [first, first + height); all of them for whole
    // images, whose columns are one matrix.
    const int64_t reach = (p_.R - 1) * p_.dilation_h;
    const int64_t low = std::max<int64_t>(first + p_.pad_h - reach, 0);
    const int64_t high = first + height - 1 + p_.pad_h;
    const bool whole = height == p_.H;
    const int64_t top = whole ? 0 : std::min((low + p_.stride_h - 1) / p_.stride_h, p_.P);
    const int64_t bottom = whole ? p_.P : std::clamp(high / p_.stride_h + 1, top, p_.P);
    const Chunk chunk{image, images, static_cast<int>(top * p_.Q),
                      static_cast<int>((bottom - top) * p_.Q)};
    auto* columns = static_cast<Acc*>(context_.workspace);
    // A band that no output reaches has no columns; its sums are 0 all the same.
    if (chunk.pixels > 0) multiply_columns(chunk, columns, chunk.pixels);
    const int64_t count = images * p_.C * height * p_.W;
    sum_columns<T, Index><<<blocks_for(count), kBlock, 0, context_.stream>>>(
        geometry_, static_cast<int>(rows_), chunk, static_cast<int>(first),
        static_cast<int>(height), Divider<int32_t>(height), count, columns, x_);
    check_launch("im2col sum_columns");
  }

  const ConvProblem& p_;
  const Im2colPlan plan_;
  const Geometry<Index> geometry_;
  const LaunchContext& context_;
  T* x_;
  T* w_;
  T* y_;
  const T* bias_;
  const bool in_place_;
  const int64_t rows_, group_rows_, image_pixels_;
};

template <typename T, typename Index>
void launch_indexed(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                    const LaunchContext& context) {
  const ExactMathMode exact(context.blas);
  ChunkedPass<T, Index> pass(problem, plan, operands, context);
  switch (problem.pass) {
    case Pass::kFprop:
      return pass.fprop();
    case Pass::kDgrad:
      return pass.dgrad();
    case Pass::kWgrad:
      return pass.wgrad();
  }
}

template <typename T>
void launch(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
            const LaunchContext& context) {
  if (plan.payload.as<Im2colPlan>().wide) {
    launch_indexed<T, int64_t>(problem, plan, operands, context);
  } else {
    launch_indexed<T, int32_t>(problem, plan, operands, context);
  }
}

}  // namespace customconv::im2col
