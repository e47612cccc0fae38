#include "torch/problem.h"

#include <ATen/Context.h>
#include <ATen/native/ConvUtils.h>
#include <torch/version.h>

#include <algorithm>

#include "torch/convolve.h"
#include "torch/core.h"

namespace customconv::torch_layer {

namespace {

struct Triple {
  int64_t d, h, w;
};

// One number for all dimensions, or one for each. Images, which have no depth, get the least there.
std::optional<Triple> triple_of(at::IntArrayRef values, int64_t dims, int64_t least) {
  const auto count = static_cast<int64_t>(values.size());
  if (count != 1 && count != dims) return std::nullopt;
  const Triple all{dims == 3 ? values.front() : least, count == 3 ? values[1] : values.front(),
                   values.back()};
  if (all.d < least || all.h < least || all.w < least) return std::nullopt;
  return all;
}

bool is_plain(const at::Tensor& t) { return t.layout() == at::kStrided && !t.is_quantized(); }

// Only cuDNN is channels-last on CUDA, and in no double precision.
bool is_only_contiguous(const at::Tensor& input) {
  return input.is_cuda() &&
         (input.scalar_type() == at::kDouble || !at::globalContext().userEnabledCuDNN());
}

// What a tensor's strides suggest once it is in a format; `copied` says whether it had to be.
at::MemoryFormat suggestion(const at::Tensor& t, at::MemoryFormat format, bool copied) {
  if (!copied) return t.suggest_memory_format();
  c10::SymInt values = 1;
  for (int64_t i = 1; i < t.dim(); ++i) values *= t.sym_size(i);
  const bool is_one_value = values == 1;
  return is_one_value ? at::MemoryFormat::Contiguous : format;
}

// One operand in channels-last makes the result channels-last.
at::MemoryFormat format_of_both(at::MemoryFormat a, at::MemoryFormat b) {
  return is_channels_last(a) ? a : b;
}

// A tensor's strides; those of its format if it is dense and batches are invariant. PyTorch leaves
// the strides of sizes of one open, and they could tell an image from a batch.
Shape5 known_strides(const at::Tensor& t, const Convolution& conv) {
  if (conv.problem.batch_invariant && t.is_contiguous(conv.format)) {
    return dense_strides(shape_of(t.sizes()), layout_of(conv.format));
  }
  return strides_of(t);
}

// What a convolution and a transposed one have in common: all but the sizes of images, and what
// follows from them.
OrFallback<Convolution> describe_weight(const at::Tensor& input, const at::Tensor& weight,
                                        const Geometry& geometry, bool tf32) {
  if (!is_kernel_dtype(input.scalar_type())) return Fallback::kDtype;
  if (!is_plain(input) || !is_plain(weight)) return Fallback::kLayout;
  const int64_t dims = geometry.dims;
  if (weight.dim() != dims + 2 || (input.dim() != dims + 1 && input.dim() != dims + 2) ||
      weight.scalar_type() != input.scalar_type() || weight.device() != input.device()) {
    return Fallback::kArguments;
  }
  const auto step = triple_of(geometry.stride, dims, 1);
  const auto pad = triple_of(geometry.padding, dims, 0);
  const auto dilate = triple_of(geometry.dilation, dims, 1);
  if (!step || !pad || !dilate || geometry.groups < 1) return Fallback::kArguments;
  if (input.numel() == 0 || weight.numel() == 0) return Fallback::kEmpty;
  if (weight.size(0) % geometry.groups != 0) return Fallback::kArguments;
  const bool batched = input.dim() == weight.dim();
  Convolution conv{
      batched ? input : input.unsqueeze(0), weight, batched, at::MemoryFormat::Contiguous, {}};
  const Shape5 sizes = shape_of(weight.sizes());
  if (dense_layout(sizes, strides_of(weight)) == Layout::kOther) conv.weight = weight.contiguous();

  ConvProblem& p = conv.problem;
  p.dtype = dtype_of(input.scalar_type());
  p.tf32 = p.dtype == DType::kFloat32 && tf32;
  p.batch_invariant = wants_batch_invariance();
  p.N = conv.input.size(0);
  p.C = sizes[1] * geometry.groups;
  p.K = sizes[0];
  p.R = sizes[2];
  p.S = sizes[3];
  p.T = sizes[4];
  p.groups = geometry.groups;
  p.stride_h = step->h;
  p.stride_w = step->w;
  p.stride_d = step->d;
  p.pad_h = pad->h;
  p.pad_w = pad->w;
  p.pad_d = pad->d;
  p.dilation_h = dilate->h;
  p.dilation_w = dilate->w;
  p.dilation_d = dilate->d;
  conv.transposed = geometry.transposed;
  return conv;
}

// Whether there is none, or one number for each channel.
bool is_bias(const std::optional<at::Tensor>& bias, int64_t channels, const at::Tensor& input) {
  if (!bias.has_value() || !bias->defined()) return true;
  return bias->dim() == 1 && bias->size(0) == channels && is_plain(*bias) &&
         bias->scalar_type() == input.scalar_type() && bias->device() == input.device();
}

// Pixels along one dimension of a transposed convolution's output.
int64_t transposed_size(int64_t size, int64_t pad, int64_t dilation, int64_t taps, int64_t stride,
                        int64_t output_padding) {
  return (size - 1) * stride - 2 * pad + dilation * (taps - 1) + output_padding + 1;
}

// Adds the images' sizes, or says why there are none.
std::optional<Fallback> add_images(Convolution& conv, const std::optional<at::Tensor>& bias) {
  const at::Tensor& x = conv.input;
  ConvProblem& p = conv.problem;
  if (x.size(1) != p.C || !is_bias(bias, p.K, x)) return Fallback::kArguments;
  const Shape5 sizes = shape_of(x.sizes());
  p.H = sizes[2];
  p.W = sizes[3];
  p.D = sizes[4];
  p.P = output_size(p.H, p.pad_h, p.dilation_h, p.R, p.stride_h);
  p.Q = output_size(p.W, p.pad_w, p.dilation_w, p.S, p.stride_w);
  p.O = output_size(p.D, p.pad_d, p.dilation_d, p.T, p.stride_d);
  if (p.P < 1 || p.Q < 1 || p.O < 1) return Fallback::kArguments;
  return std::nullopt;
}

std::optional<Fallback> add_transposed_images(Convolution& conv,
                                              const std::optional<at::Tensor>& bias,
                                              const std::optional<Triple>& extra) {
  const at::Tensor& y = conv.input;
  ConvProblem& p = conv.problem;
  if (!extra || y.size(1) != p.K || !is_bias(bias, p.C, y)) return Fallback::kArguments;
  // Then the convolution would have more output pixels than this one has input pixels.
  if (extra->h >= p.stride_h || extra->w >= p.stride_w || extra->d >= p.stride_d) {
    return Fallback::kOutputPadding;
  }
  const Shape5 sizes = shape_of(y.sizes());
  p.P = sizes[2];
  p.Q = sizes[3];
  p.O = sizes[4];
  p.H = transposed_size(p.P, p.pad_h, p.dilation_h, p.R, p.stride_h, extra->h);
  p.W = transposed_size(p.Q, p.pad_w, p.dilation_w, p.S, p.stride_w, extra->w);
  p.D = transposed_size(p.O, p.pad_d, p.dilation_d, p.T, p.stride_d, extra->d);
  if (p.H < 1 || p.W < 1 || p.D < 1) return Fallback::kArguments;
  return std::nullopt;
}

// The format of what a call writes. Which of its functions PyTorch calls for volumes, and in which
// format that writes, depends on the GPU's cuDNN, the dtype, the groups and more.
void add_format(Convolution& conv, const at::Tensor& weight, const Triple& output_padding) {
  const at::Tensor& input = conv.input;
  conv.only_contiguous = is_only_contiguous(input);
  if (weight.dim() == 4 || !input.is_cuda()) {
    conv.format = memory_format(input, weight);
    return;
  }
  using at::native::ConvBackend;
  const ConvProblem& p = conv.problem;
  using Numbers = std::array<c10::SymInt, 3>;
  const ConvBackend backend = at::native::select_conv_backend(
      input, weight, /*bias_opt=*/std::nullopt, Numbers{p.stride_d, p.stride_h, p.stride_w},
      Numbers{p.pad_d, p.pad_h, p.pad_w}, Numbers{p.dilation_d, p.dilation_h, p.dilation_w},
      conv.transposed, Numbers{output_padding.d, output_padding.h, output_padding.w}, p.groups,
      /*bias_sizes_opt=*/std::nullopt);
  conv.format = at::native::_determine_backend_memory_format(input, weight, backend);
  conv.only_contiguous = conv.only_contiguous ||
                         (backend != ConvBackend::Cudnn && backend != ConvBackend::CudnnTranspose);
}

// Adds how operands lie.
void add_strides(Convolution& conv) {
  ConvProblem& p = conv.problem;
  const Layout layout = layout_of(conv.format);
  p.w_aligned = is_aligned(conv.weight);
  p.w_strides = known_strides(conv.weight, conv);
  p.y_strides = dense_strides(p.y_sizes(), layout);
  if (conv.transposed) {
    p.x_strides = dense_strides(p.x_sizes(), layout);
    p.y_aligned = is_aligned_in(conv.input, conv.format);
  } else {
    p.x_strides = known_strides(conv.input, conv);
    p.x_aligned = is_aligned(conv.input);
  }
}

}  // namespace

at::DimVector in_torch_order(const Shape5& numbers, int64_t dims) {
  const auto [n, c, h, w, d] = numbers;
  return dims == 5 ? at::DimVector{n, c, d, h, w} : at::DimVector{n, c, h, w};
}

Shape5 shape_of(at::IntArrayRef s) {
  return s.size() == 5 ? Shape5{s[0], s[1], s[3], s[4], s[2]} : Shape5{s[0], s[1], s[2], s[3], 1};
}

Shape5 strides_of(const at::Tensor& t) {
  Shape5 strides = shape_of(t.strides());
  if (t.dim() == 4 || t.size(2) == 1) strides[4] = 0;
  return strides;
}

Shape5 rows_of_slices(const Shape5& v) { return {v[0], v[1], v[2] * v[4], v[3], 1}; }

at::IntArrayRef all_but_channels(int64_t dims) {
  static constexpr int64_t kDims[] = {0, 2, 3, 4};
  return at::IntArrayRef(kDims, static_cast<size_t>(dims - 1));
}

at::MemoryFormat channels_last_of(int64_t dims) {
  return dims == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

bool is_channels_last(at::MemoryFormat format) {
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

Layout layout_of(at::MemoryFormat format) {
  return is_channels_last(format) ? Layout::kNhwc : Layout::kNchw;
}

bool is_aligned(const at::Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}

bool is_aligned_in(const at::Tensor& t, at::MemoryFormat format) {
  return !t.is_contiguous(format) || is_aligned(t);
}

at::Tensor dense_and_aligned(const at::Tensor& t, at::MemoryFormat format) {
  const at::Tensor dense = t.contiguous(format);
  return is_aligned(dense) ? dense : dense.clone();
}

bool allows_tf32() {
  const auto& context = at::globalContext();
  // Without cuDNN PyTorch computes in IEEE float32, whatever cuDNN would be allowed.
  if (!context.userEnabledCuDNN()) return false;
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 10
  return context.allowTF32CuDNN("conv");
#else
  return context.allowTF32CuDNN(at::Float32Op::CONV);
#endif
}

DType dtype_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return DType::kFloat64;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    default:
      return DType::kFloat32;
  }
}

bool is_kernel_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16 ||
         dtype == at::kDouble;
}

at::MemoryFormat memory_format(const at::Tensor& input, const at::Tensor& weight) {
  if (is_only_contiguous(input)) return at::MemoryFormat::Contiguous;
  return format_of_both(input.suggest_memory_format(), weight.suggest_memory_format());
}

namespace {

// The gradients' formats where the output is in `format`.
GradientFormats formats_of_gradients(const at::Tensor& grad_output, const at::Tensor& input,
                                     const at::Tensor& weight, at::MemoryFormat format,
                                     bool only_contiguous, bool transposed,
                                     std::array<bool, 3> mask) {
  if (!input.is_cuda() || only_contiguous) return {format, format};
  // As at::native::convolution_backward and its functions for cuDNN convert the operands.
  const at::MemoryFormat of_input =
      suggestion(input, format, mask[1] && !input.is_contiguous(format));
  const bool copies_grad = transposed ? !grad_output.is_contiguous(of_input)
                                      : grad_output.suggest_memory_format() != of_input;
  const at::MemoryFormat of_grad = suggestion(grad_output, of_input, copies_grad);
  return {format_of_both(of_grad, weight.suggest_memory_format()),
          format_of_both(of_input, of_grad)};
}

}  // namespace

GradientFormats gradient_formats(const at::Tensor& grad_output, const Convolution& conv,
                                 const at::Tensor& weight, std::array<bool, 3> mask) {
  return formats_of_gradients(grad_output, conv.input, weight, conv.format, conv.only_contiguous,
                              conv.transposed, mask);
}

GradientFormats gradient_formats(const at::Tensor& grad_output, const at::Tensor& input,
                                 const at::Tensor& weight, bool transposed,
                                 std::array<bool, 3> mask) {
  return formats_of_gradients(grad_output, input, weight, memory_format(input, weight),
                              is_only_contiguous(input), transposed, mask);
}

OrFallback<Convolution> describe(const at::Tensor& input, const at::Tensor& weight,
                                 const std::optional<at::Tensor>& bias, const Geometry& geometry,
                                 bool tf32, std::optional<at::MemoryFormat> format) {
  OrFallback<Convolution> conv = describe_weight(input, weight, geometry, tf32);
  if (!conv) return conv;
  std::optional<Triple> extra = Triple{};
  if (geometry.transposed) extra = triple_of(geometry.output_padding, geometry.dims, 0);
  const std::optional<Fallback> why =
      geometry.transposed ? add_transposed_images(*conv, bias, extra) : add_images(*conv, bias);
  if (why) return *why;
  ConvProblem& p = conv->problem;
  p.has_bias = bias.has_value() && bias->defined();
  if (format) {
    conv->format = *format;
  } else {
    add_format(*conv, weight, *extra);
  }
  if (!p.is_deep()) p.stride_d = p.dilation_d = 1;  // those of images
  add_strides(*conv);
  return conv;
}

Image image_of(const Convolution& part, const Whole& whole) {
  const ConvProblem& p = part.problem;
  const Triple pad = triple_of(whole.padding, 2, 0).value();
  const Triple extra = triple_of(whole.output_padding, 2, 0).value();
  const int64_t h = whole.sizes.front(), w = whole.sizes.back();
  if (!part.transposed) {
    return {h,
            w,
            output_size(h, pad.h, p.dilation_h, p.R, p.stride_h),
            output_size(w, pad.w, p.dilation_w, p.S, p.stride_w),
            pad.h,
            pad.w};
  }
  return {transposed_size(h, pad.h, p.dilation_h, p.R, p.stride_h, extra.h),
          transposed_size(w, pad.w, p.dilation_w, p.S, p.stride_w, extra.w),
          h,
          w,
          pad.h,
          pad.w};
}

ConvProblem Convolution::problem_of(Pass pass, at::MemoryFormat written) const {
  if (pass == Pass::kFprop && !transposed) return problem;
  ConvProblem p = problem;
  p.has_bias = p.has_bias && pass == Pass::kFprop;
  p.pass = pass;
  if (transposed && pass == Pass::kFprop) p.pass = Pass::kDgrad;
  if (transposed && pass == Pass::kDgrad) p.pass = Pass::kFprop;
  const Layout layout = layout_of(written);
  if (p.pass == Pass::kDgrad) p.x_strides = dense_strides(p.x_sizes(), layout);
  if (p.pass == Pass::kFprop) p.y_strides = dense_strides(p.y_sizes(), layout);
  if (p.pass == Pass::kWgrad) p.w_strides = dense_strides(p.w_sizes(), layout);
  // A gradient is a new tensor, which is aligned whether the operand is or not.
  if (pass == Pass::kDgrad) (transposed ? p.y_aligned : p.x_aligned) = true;
  if (pass == Pass::kWgrad) p.w_aligned = true;
  return p;
}

Algorithm algorithm_named(std::string_view name) {
  if (name == "auto") return Algorithm::kAuto;
  try {
    return parse_algorithm(std::string(name));
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

void check_runs_on(std::string_view algorithm, const at::Tensor& input) {
  const Algorithm wanted = algorithm_named(algorithm);
  if (wanted == Algorithm::kAuto || wanted == Algorithm::kAten) return;
  TORCH_CHECK(is_kernel_dtype(input.scalar_type()), "algorithm '", algorithm,
              "' computes float64, float32, float16 and bfloat16, not ", input.scalar_type());
  TORCH_CHECK(kHasCuda || !input.is_cuda(), "algorithm '", algorithm,
              "' needs CUDA kernels, and customconv was built without them");
  const bool have_kernels = (kHasCuda && input.is_cuda()) || input.is_meta();
  TORCH_CHECK(have_kernels, "algorithm '", algorithm, "' runs on CUDA tensors, not on ",
              input.device(), "; move them to CUDA, or use algorithm 'auto'");
}

}  // namespace customconv::torch_layer
