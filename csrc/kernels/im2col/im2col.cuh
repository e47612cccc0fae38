// The family's loop over chunks: columns, products, sums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/common/check.h"
#include "kernels/im2col/columns.cuh"
#include "kernels/im2col/gemm.h"
#include "kernels/im2col/volumes.cuh"
#include "kernels/launch.h"

namespace customconv::im2col {

inline unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>(std::min<int64_t>((count + kBlock - 1) / kBlock, 1 << 20));
}

// One pass over the chunks of a problem. Strides of matrices are named after what they step over.
template <typename T, typename Index, bool kDeep>
class ChunkedPass {
 public:
  using Acc = Accumulator<T>;
  using Columned = std::conditional_t<kDeep, VolumeGeometry, Geometry<Index>>;
  static constexpr bool kNarrow = sizeof(T) == 2;

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
        channels_last_(is_channels_last(problem)),
        in_place_(columns_are_in_place(problem)),
        rows_(column_rows(problem)),
        group_rows_(rows_ / problem.groups),
        image_pixels_(image_columns(problem)) {}

  void fprop() {
    if (keeps_products(p_)) {
      for_each_chunk([&](const Chunk& chunk) {
        auto* products = behind_columns();
        multiply_forward(chunk, columns_of(chunk), products, chunk.pixels, false);
        round_products(chunk, products);
      });
      return;
    }
    if (copies_weight(p_)) return fprop_with_copy();
    const bool fills = bias_ != nullptr && !is_linear(p_);
    if (fills) {
      const int64_t inner = channels_last_ ? 1 : image_pixels_;
      fill_bias<T><<<blocks_for(p_.y_count()), kBlock, 0, context_.stream>>>(p_.y_count(), inner,
                                                                             p_.K, bias_, y_);
      check_launch("im2col fill_bias");
    }
    for_each_chunk([&](const Chunk& chunk) {
      multiply_forward(chunk, columns_of(chunk), y_at(chunk), image_pixels_, fills);
    });
  }

  void dgrad() {
    if (!has_bands(p_)) return dgrad_of_patches();
    const auto images = plan_.images, height = plan_.pixels;
    for (int64_t image = 0; image < p_.N; image += images) {
      const int64_t batch = std::min(images, p_.N - image);
      if constexpr (kDeep) {
        dgrad_slices(image, batch);
      } else {
        for (int64_t first = 0; first < p_.H; first += height) {
          dgrad_band(image, batch, first, std::min(height, p_.H - first));
        }
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
    if constexpr (kDeep && kNarrow) {
      if (sums_apart(p_)) {
        add_sums<T><<<blocks_for(p_.w_count()), kBlock, 0, context_.stream>>>(p_.w_count(),
                                                                              plan_.parts, sum, w_);
        return check_launch("im2col add_sums");
      }
    }
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
    if (kDeep || channels_last_) return {data, leading, pixels * leading, group_rows_};
    return {data, leading, rows_ * leading, group_rows_ * leading};
  }

  Columns columns_of(const Chunk& chunk) {
    if (in_place_) {
      const int64_t pixel_stride = channels_last_ ? p_.C : 1;
      return layout(x_ + chunk.image * p_.C * p_.H * p_.W + chunk.pixel * pixel_stride,
                    channels_last_ ? rows_ : image_pixels_, image_pixels_);
    }
    constexpr int kPack = Pack<T>::kSize;
    auto* columns = static_cast<T*>(context_.workspace);
    if constexpr (kDeep) {
      const Lines lines = lines_of(chunk);
      write_volume_columns<T><<<blocks_for(lines.count), kBlock, 0, context_.stream>>>(
          geometry_, chunk, lines, unit_bytes(p_, x_), copies_weight(p_) && bias_ != nullptr, x_,
          columns);
      check_launch("im2col write_volume_columns");
      return layout(columns, line_leading(), chunk.pixels);
    } else {
      const int64_t lines = channels_last_ ? chunk.pixels : rows_;
      const int64_t packs = packs_of(p_, channels_last_ ? rows_ : chunk.pixels);
      const int64_t count = chunk.images * lines * packs;
      write_columns<T, Index><<<blocks_for(count), kBlock, 0, context_.stream>>>(
          geometry_, static_cast<int>(rows_), chunk, Divider<int32_t>(packs),
          Divider<int32_t>(lines), static_cast<int>(count), loads_packs(), x_, columns);
      check_launch("im2col write_columns");
      return layout(columns, packs * kPack, chunk.pixels);
    }
  }

  // Elements from one line of a volume's columns to the next, where lines are whole packs.
  int64_t line_leading() const { return packs_of(p_, line_terms(p_)) * Pack<T>::kSize; }

  Lines lines_of(const Chunk& chunk) const {
    const int64_t packs = packs_of(p_, line_terms(p_));
    return {Divider<int32_t>(packs), Divider<int32_t>(chunk.pixels),
            static_cast<int>(chunk.images * chunk.pixels * packs)};
  }

  // True where a pack of channels of a pixel can be loaded at once.
  bool loads_packs() const {
    constexpr int kPack = Pack<T>::kSize;
    const auto whole = [](int64_t elements) { return elements % kPack == 0; };
    return channels_last_ && geometry_.taps_first && geometry_.x_c == 1 &&
           whole(geometry_.group_C) && whole(geometry_.x_n) && whole(geometry_.x_h) &&
           whole(geometry_.x_w) && reinterpret_cast<uintptr_t>(x_) % sizeof(Pack<T>) == 0;
  }

  T* y_at(const Chunk& chunk) const {
    const int64_t pixel_stride = channels_last_ ? p_.K : 1;
    return y_ + chunk.image * p_.K * image_pixels_ + chunk.pixel * pixel_stride;
  }

  template <typename Out>
  void multiply(const Product<T, Out>& product) {
    im2col::multiply(context_.blas, product, p_.tf32);
  }

  // The bias is a term of the sums.
  void fprop_with_copy() {
    if constexpr (kDeep && kNarrow) {
      const int64_t terms = line_terms(p_);
      T* copy = reinterpret_cast<T*>(behind_columns());
      copy_weight<T><<<blocks_for(p_.K * terms), kBlock, 0, context_.stream>>>(
          p_.K * terms, Divider<int64_t>(terms), rows_, w_, bias_, copy);
      check_launch("im2col copy_weight");
      for_each_chunk([&](const Chunk& chunk) {
        multiply_forward(chunk, columns_of(chunk), y_at(chunk), image_pixels_, false, copy, terms);
      });
    }
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

  template <typename Out>
  void multiply_forward(const Chunk& chunk, const Columns& columns, Out* out, int64_t pixels,
                        bool accumulate) {
    multiply_forward(chunk, columns, out, pixels, accumulate, w_, group_rows_);
  }

  // out = columns x weight, of so many terms; an NCHW image's lines in `out` are `pixels` long.
  template <typename Out>
  void multiply_forward(const Chunk& chunk, const Columns& columns, Out* out, int64_t pixels,
                        bool accumulate, const T* weight, int64_t terms) {
    const int64_t K = p_.group_K(), weights = K * terms;
    Product<T, Out> product{};
    product.inner = terms;
    product.c = out;
    product.batch = p_.groups;
    product.accumulate = accumulate;
    if (channels_last_) {
      product.rows = chunk.images * chunk.pixels;
      product.columns = K;
      product.a = columns.data;
      product.a_leading = columns.leading;
      product.a_stride = columns.group_stride;
      product.b = weight;
      product.b_leading = terms;
      product.b_transposed = true;
      product.b_stride = weights;
      product.c_leading = p_.K;
      product.c_stride = K;
      if constexpr (kNarrow && std::is_same_v<T, Out>) {
        if (is_linear(p_)) {
          return multiply_linear(context_.blas, product, bias_, context_.stream);
        }
      }
      multiply(product);
      return;
    }
    product.rows = K;
    product.columns = chunk.pixels;
    product.a = weight;
    product.a_leading = terms;
    product.a_stride = weights;
    product.b = columns.data;
    product.b_leading = columns.leading;
    product.b_transposed = kDeep;
    product.b_stride = columns.group_stride;
    product.c_leading = pixels;
    product.c_stride = K * pixels;
    multiply_images(product, chunk.images, 0, columns.image_stride, p_.K * pixels, false);
  }

  void round_products(const Chunk& chunk, const Acc* products) {
    const int64_t count = chunk.images * chunk.pixels * p_.K;
    const bool channels_last = channels_last_;
    add_bias<T><<<blocks_for(count), kBlock, 0, context_.stream>>>(
        count, Divider<int64_t>(channels_last ? p_.K : chunk.pixels),
        channels_last ? p_.K : image_pixels_, channels_last, p_.K, products, bias_, y_at(chunk));
    check_launch("im2col add_bias");
  }

  // sum = dy^T x columns, of all groups, for the first image of a chunk; in NHWC for the chunk.
  template <typename Out>
  Product<T, Out> weight_product(const Chunk& chunk, const Columns& columns, Out* sum) const {
    const int64_t K = p_.group_K();
    const bool channels_last = channels_last_;
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
    product.b_transposed = !kDeep && !channels_last;
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
    if (channels_last_) return multiply(product);
    const int64_t dy_image = p_.K * image_pixels_;
    if (!sums_apart(p_)) {
      return multiply_images(product, chunk.images, dy_image, columns.image_stride, 0, true);
    }
    product.a_stride = dy_image;
    product.b_stride = columns.image_stride;
    product.c_stride = p_.w_count();
    for (int64_t image = 0; image < chunk.images; image += plan_.parts) {
      product.batch = std::min(plan_.parts, chunk.images - image);
      multiply(product);
      product.a += product.batch * product.a_stride;
      product.b += product.batch * product.b_stride;
      product.accumulate = true;
    }
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
      const bool channels_last = channels_last_;
      const Operand<const T> dy{product.a, p_.K * image_pixels_, channels_last ? p_.K : 1,
                                product.a_stride};
      const Operand<const T> pixels{product.b, columns.image_stride,
                                    kDeep || channels_last ? columns.leading : 1, product.b_stride};
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

  // out = dy x weight, or weight^T x dy: the columns of a chunk, in lines of `pixels` for NCHW, and
  // of the rows or more, `leading`, where pixels are the lines.
  template <typename Out>
  void multiply_columns(const Chunk& chunk, Out* out, int64_t pixels, int64_t leading) {
    const int64_t K = p_.group_K(), weights = K * group_rows_;
    const T* dy = y_at(chunk);
    Product<T, Out> product{};
    product.inner = K;
    product.c = out;
    product.batch = p_.groups;
    if (channels_last_) {
      product.rows = chunk.images * chunk.pixels;
      product.columns = group_rows_;
      product.a = dy;
      product.a_leading = p_.K;
      product.a_stride = K;
      product.b = w_;
      product.b_leading = group_rows_;
      product.b_stride = weights;
      product.c_leading = leading;
      product.c_stride = group_rows_;
      multiply(product);
      return;
    }
    if constexpr (kDeep) {
      product.rows = chunk.pixels;
      product.columns = group_rows_;
      product.a = dy;
      product.a_leading = image_pixels_;
      product.a_transposed = true;
      product.a_stride = K * image_pixels_;
      product.b = w_;
      product.b_leading = group_rows_;
      product.b_stride = weights;
      product.c_leading = leading;
      product.c_stride = group_rows_;
      multiply_images(product, chunk.images, p_.K * image_pixels_, 0, leading * pixels, false);
    } else {
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
  }

  // Elements that no patch has are zeros.
  void dgrad_of_patches() {
    if constexpr (kDeep && sizeof(T) <= 4) {
      if (p_.O * p_.T != p_.D || p_.P * p_.R != p_.H || p_.Q * p_.S != p_.W) {
        check_cuda(
            cudaMemsetAsync(x_, 0, static_cast<size_t>(p_.x_count()) * sizeof(T), context_.stream),
            "im2col zeros");
      }
      auto* columns = static_cast<T*>(context_.workspace);
      for_each_chunk([&](const Chunk& chunk) {
        multiply_columns(chunk, columns, chunk.pixels, line_leading());
        const Lines lines = lines_of(chunk);
        scatter_columns<T><<<blocks_for(lines.count), kBlock, 0, context_.stream>>>(
            geometry_, chunk, lines, unit_bytes(p_, x_), columns, x_);
        check_launch("im2col scatter_columns");
      });
    }
  }

  // The output's pixels along one dimension that reach the input's [first, first + size).
  struct Reach {
    int64_t first, size;
  };
  static Reach reach_of(int64_t first, int64_t size, int64_t in, int64_t out, int64_t taps,
                        int64_t stride, int64_t pad, int64_t dilation) {
    if (size == in) return {0, out};
    const int64_t low = std::max<int64_t>(first + pad - (taps - 1) * dilation, 0);
    const int64_t high = first + size - 1 + pad;
    const int64_t begin = std::min((low + stride - 1) / stride, out);
    const int64_t end = high < 0 ? begin : std::clamp(high / stride + 1, begin, out);
    return {begin, end - begin};
  }

  // A volume's bands: whole slices, or rows of one.
  void dgrad_slices(int64_t image, int64_t images) {
    const int64_t depth = std::max<int64_t>(plan_.pixels / p_.H, 1);
    const int64_t height = std::min(plan_.pixels, p_.H);
    for (int64_t d = 0; d < p_.D; d += depth) {
      for (int64_t h = 0; h < p_.H; h += height) {
        dgrad_box(image, images, d, std::min(depth, p_.D - d), h, std::min(height, p_.H - h));
      }
    }
  }

  void dgrad_box(int64_t image, int64_t images, int64_t d, int64_t depth, int64_t h,
                 int64_t height) {
    const Reach slices = reach_of(d, depth, p_.D, p_.O, p_.T, p_.stride_d, p_.pad_d, p_.dilation_d);
    const Reach lines = reach_of(h, height, p_.H, p_.P, p_.R, p_.stride_h, p_.pad_h, p_.dilation_h);
    auto* columns = static_cast<Acc*>(context_.workspace);
    // Slices lie together only as a whole.
    const bool joined = lines.size == p_.P;
    const int64_t pixels = (joined ? slices.size : 1) * lines.size * p_.Q;
    for (int64_t i = 0; i < (joined ? 1 : slices.size) && pixels > 0; ++i) {
      const Chunk chunk{image, images,
                        static_cast<int>(((slices.first + i) * p_.P + lines.first) * p_.Q),
                        static_cast<int>(pixels)};
      multiply_columns(chunk, columns + i * pixels * rows_, pixels, rows_);
    }
    const auto number = [](int64_t value) { return static_cast<int>(value); };
    const Band band{image,
                    number(d),
                    number(depth),
                    number(h),
                    number(height),
                    number(slices.first),
                    number(slices.size),
                    number(lines.first),
                    number(lines.size),
                    p_.x_strides[1] == 1,
                    Divider<int32_t>(p_.C),
                    Divider<int32_t>(p_.group_C()),
                    Divider<int32_t>(p_.W),
                    Divider<int32_t>(height),
                    Divider<int32_t>(depth)};
    const int64_t count = images * p_.C * depth * height * p_.W;
    sum_volume_columns<T><<<blocks_for(count), kBlock, 0, context_.stream>>>(VolumeAxes(p_), band,
                                                                             count, columns, x_);
    check_launch("im2col sum_volume_columns");
  }

  void dgrad_band(int64_t image, int64_t images, int64_t first, int64_t height) {
    if (in_place_) {
      const Chunk chunk{image, images, 0, static_cast<int>(image_pixels_)};
      multiply_columns(chunk, x_ + image * p_.C * p_.H * p_.W, image_pixels_, rows_);
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
    if (chunk.pixels > 0) multiply_columns(chunk, columns, chunk.pixels, rows_);
    const int64_t count = images * p_.C * height * p_.W;
    sum_columns<T, Index><<<blocks_for(count), kBlock, 0, context_.stream>>>(
        geometry_, static_cast<int>(rows_), chunk, static_cast<int>(first),
        static_cast<int>(height), Divider<int32_t>(height), count, columns, x_);
    check_launch("im2col sum_columns");
  }

  const ConvProblem& p_;
  const Im2colPlan plan_;
  const Columned geometry_;
  const LaunchContext& context_;
  T* x_;
  T* w_;
  T* y_;
  const T* bias_;
  const bool channels_last_, in_place_;
  const int64_t rows_, group_rows_, image_pixels_;
};

template <typename T, typename Index, bool kDeep>
void launch_indexed(const ConvProblem& problem, const ConvPlan& plan, const Operands& operands,
                    const LaunchContext& context) {
  const ExactMathMode exact(context.blas);
  ChunkedPass<T, Index, kDeep> pass(problem, plan, operands, context);
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
  if (problem.is_deep()) {
    launch_indexed<T, int64_t, true>(problem, plan, operands, context);
  } else if (plan.payload.as<Im2colPlan>().wide) {
    launch_indexed<T, int64_t, false>(problem, plan, operands, context);
  } else {
    launch_indexed<T, int32_t, false>(problem, plan, operands, context);
  }
}

}  // namespace customconv::im2col
