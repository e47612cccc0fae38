#include "torch/problem.h"

#include <ATen/Context.h>
#include <torch/version.h>

#include <algorithm>

#include "torch/convolve.h"
#include "torch/core.h"

namespace customconv::torch_layer {

namespace {

struct Pair {
  int64_t h, w;
};

std::optional<Pair> pair_of(at::IntArrayRef values, int64_t least) {
  if (values.size() != 1 && values.size() != 2) return std::nullopt;
  const Pair pair{values.front(), values.back()};
  if (pair.h < least || pair.w < least) return std::nullopt;
  return pair;
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
  const bool is_one_value = t.sym_size(1) * t.sym_size(2) * t.sym_size(3) == 1;
  return is_one_value ? at::MemoryFormat::Contiguous : format;
}

// One operand in channels-last makes the result channels-last.
at::MemoryFormat format_of_both(at::MemoryFormat a, at::MemoryFormat b) {
  return a == at::MemoryFormat::ChannelsLast ? a : b;
}

// A tensor's strides; those of its format if it is dense and batches are invariant. PyTorch leaves
// the strides of sizes of one open, and they could tell an image from a batch.
Shape4 strides_of(const at::Tensor& t, const Convolution& conv) {
  if (conv.problem.batch_invariant && t.is_contiguous(conv.format)) {
    return dense_strides(shape4(t.sizes()), layout_of(conv.format));
  }
  return shape4(t.strides());
}

// What a convolution and a transposed one have in common: all but the sizes and strides of images.
OrFallback<Convolution> describe_weight(const at::Tensor& input, const at::Tensor& weight,
                                        const Geometry& geometry, bool tf32,
                                        std::optional<at::MemoryFormat> format) {
  if (!is_kernel_dtype(input.scalar_type())) return Fallback::kDtype;
  if (!is_plain(input) || !is_plain(weight)) return Fallback::kLayout;
  if (weight.dim() != 4 || (input.dim() != 3 && input.dim() != 4) ||
      weight.scalar_type() != input.scalar_type() || weight.device() != input.device()) {
    return Fallback::kArguments;
  }
  const auto step = pair_of(geometry.stride, 1);
  const auto pad = pair_of(geometry.padding, 0);
  const auto dilate = pair_of(geometry.dilation, 1);
  if (!step || !pad || !dilate || geometry.groups < 1) return Fallback::kArguments;
  if (input.numel() == 0 || weight.numel() == 0) return Fallback::kEmpty;
  if (weight.size(0) % geometry.groups != 0) return Fallback::kArguments;
  const bool batched = input.dim() == 4;
  Convolution conv{
      batched ? input : input.unsqueeze(0), weight, batched, at::MemoryFormat::Contiguous, {}};
  if (dense_layout(shape4(weight.sizes()), shape4(weight.strides())) == Layout::kOther) {
    conv.weight = weight.contiguous();
  }
  conv.format = format ? *format : memory_format(conv.input, weight);

  ConvProblem& p = conv.problem;
  p.dtype = dtype_of(input.scalar_type());
  p.tf32 = p.dtype == DType::kFloat32 && tf32;
  p.batch_invariant = wants_batch_invariance();
  p.N = conv.input.size(0);
  p.C = weight.size(1) * geometry.groups;
  p.K = weight.size(0);
  p.R = weight.size(2);
  p.S = weight.size(3);
  p.groups = geometry.groups;
  p.stride_h = step->h;
  p.stride_w = step->w;
  p.pad_h = pad->h;
  p.pad_w = pad->w;
  p.dilation_h = dilate->h;
  p.dilation_w = dilate->w;
  p.w_aligned = is_aligned(conv.weight);
  p.w_strides = strides_of(conv.weight, conv);
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

// Adds the images' sizes and strides, or says why there are none.
std::optional<Fallback> describe_images(Convolution& conv, const std::optional<at::Tensor>& bias) {
  const at::Tensor& x = conv.input;
  ConvProblem& p = conv.problem;
  if (x.size(1) != p.C || !is_bias(bias, p.K, x)) return Fallback::kArguments;
  p.has_bias = bias.has_value() && bias->defined();
  p.H = x.size(2);
  p.W = x.size(3);
  p.P = output_size(p.H, p.pad_h, p.dilation_h, p.R, p.stride_h);
  p.Q = output_size(p.W, p.pad_w, p.dilation_w, p.S, p.stride_w);
  if (p.P < 1 || p.Q < 1) return Fallback::kArguments;
  p.x_strides = strides_of(x, conv);
  p.x_aligned = is_aligned(x);
  p.y_strides = dense_strides(p.y_sizes(), layout_of(conv.format));
  return std::nullopt;
}

std::optional<Fallback> describe_transposed_images(Convolution& conv,
                                                   const std::optional<at::Tensor>& bias,
                                                   at::IntArrayRef output_padding) {
  const at::Tensor& y = conv.input;
  ConvProblem& p = conv.problem;
  const auto extra = pair_of(output_padding, 0);
  if (!extra || y.size(1) != p.K || !is_bias(bias, p.C, y)) return Fallback::kArguments;
  // Then the convolution would have more output pixels than this one has input pixels.
  if (extra->h >= p.stride_h || extra->w >= p.stride_w) return Fallback::kOutputPadding;
  p.P = y.size(2);
  p.Q = y.size(3);
  p.H = transposed_size(p.P, p.pad_h, p.dilation_h, p.R, p.stride_h, extra->h);
  p.W = transposed_size(p.Q, p.pad_w, p.dilation_w, p.S, p.stride_w, extra->w);
  if (p.H < 1 || p.W < 1) return Fallback::kArguments;
  p.has_bias = bias.has_value() && bias->defined();
  p.x_strides = dense_strides(p.x_sizes(), layout_of(conv.format));
  p.y_strides = dense_strides(p.y_sizes(), layout_of(conv.format));
  p.y_aligned = is_aligned_in(y, conv.format);
  conv.transposed = true;
  return std::nullopt;
}

}  // namespace

Shape4 shape4(at::IntArrayRef values) { return {values[0], values[1], values[2], values[3]}; }

Layout layout_of(at::MemoryFormat format) {
  return format == at::MemoryFormat::ChannelsLast ? Layout::kNhwc : Layout::kNchw;
}

bool is_aligned(const at::Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}

bool is_aligned_in(const at::Tensor& t, at::MemoryFormat format) {
  return !t.is_contiguous(format) || is_aligned(t);
}

at::Tensor dense_and_aligned(const at::Tensor& t, at::MemoryFormat format) {
  const at::Tensor dense =
      t.dim() == 4 ? t.contiguous(format) : t.unsqueeze(0).contiguous(format).squeeze(0);
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

GradientFormats gradient_formats(const at::Tensor& grad_output, const at::Tensor& input,
                                 const at::Tensor& weight, bool transposed,
                                 std::array<bool, 3> mask) {
  const at::MemoryFormat format = memory_format(input, weight);
  if (!input.is_cuda() || is_only_contiguous(input)) return {format, format};
  // As at::native::convolution_backward and its functions for cuDNN convert the operands.
  const at::MemoryFormat of_input =
      suggestion(input, format, mask[1] && !input.is_contiguous(format));
  const bool copies_grad = transposed ? !grad_output.is_contiguous(of_input)
                                      : grad_output.suggest_memory_format() != of_input;
  const at::MemoryFormat of_grad = suggestion(grad_output, of_input, copies_grad);
  return {format_of_both(of_grad, weight.suggest_memory_format()),
          format_of_both(of_input, of_grad)};
}

OrFallback<Convolution> describe(const at::Tensor& input, const at::Tensor& weight,
                                 const std::optional<at::Tensor>& bias, const Geometry& geometry,
                                 bool tf32, std::optional<at::MemoryFormat> format) {
  OrFallback<Convolution> conv = describe_weight(input, weight, geometry, tf32, format);
  if (!conv) return conv;
  const std::optional<Fallback> why =
      geometry.transposed ? describe_transposed_images(*conv, bias, geometry.output_padding)
                          : describe_images(*conv, bias);
  if (why) return *why;
  return conv;
}

Image image_of(const Convolution& part, const Whole& whole) {
  const ConvProblem& p = part.problem;
  const Pair pad = pair_of(whole.padding, 0).value();
  const Pair extra = pair_of(whole.output_padding, 0).value();
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
