// im2col: the columns of a chunk of output pixels are written out and multiplied by the weights.
#include <algorithm>
#include <cstdint>

#include "kernels/im2col/columns.h"

namespace customconv::im2col {

namespace {

// Measured on an H100, see docs/how/im2col.md.
constexpr double kMatrixEfficiency = 0.75;  // of the library's product, at full tiles
constexpr double kColumnBandwidth = 0.65;   // of device memory, where columns are written and read
constexpr double kWgradBandwidth = 0.50;    // in 16 bits, of the columns that sums are formed from
constexpr double kDgradBandwidth = 0.40;    // where they are written and gathered from,
constexpr double kStridedBandwidth = 0.24;  // with strides
// Of the product's rate, where rows of columns are not whole 8 bytes.
constexpr double kUnalignedShare = 0.075;         // 16-bit,
constexpr double kUnalignedGradientShare = 0.15;  // the same of input gradients: rows of dy
constexpr double kUnalignedWideShare = 0.25;      // wider
// Where the library's product is all there is.
constexpr double kProductBandwidth = 0.85;
constexpr double kWideShare = 0.6;   // of the product's rate, of 32 bits
constexpr double kTf32Share = 0.85;  // of its bytes' time, which TF32's product does not hide
constexpr double kSumsShare = 1.15;  // of sums over pixels, which it cuts up, times all of that
constexpr double kPlanesLaunchMs = 0.0007;  // more where it is a batch of images' products
constexpr double kLaunchMs = 0.005;
constexpr double kHostMs = 0.010;    // of the library's calls, more than a single launch takes
constexpr int64_t kMatrixTile = 64;  // rows and columns that a product is rounded up to

int64_t round_up(int64_t a, int64_t b) { return ceil_divide(a, b) * b; }

// Share of a product's tiles that does useful work.
double tile_fill(int64_t rows, int64_t columns) {
  return static_cast<double>(rows) / static_cast<double>(round_up(rows, kMatrixTile)) *
         static_cast<double>(columns) / static_cast<double>(round_up(columns, kMatrixTile));
}

int64_t image_columns(const ConvProblem& p) { return p.P * p.Q; }

// Most columns of an image that the bound leaves room for; whole packs, so that lines of them fit.
int64_t columns_within_bound(const ConvProblem& p) {
  constexpr int64_t kWhole = 8;
  const int64_t columns = kWorkspaceBound / chunk_bytes(p, kWhole) * kWhole;
  return columns > 0 ? columns : kWorkspaceBound / chunk_bytes(p, 1);
}

const char* can_implement(const ConvProblem& p, const DeviceProperties&) {
  if (!has_int32_coordinates(p)) return "image coordinates pass 2^31";
  if (p.P * p.Q > INT32_MAX || p.H * p.W > INT32_MAX) return "an image passes 2^31 pixels";
  if (dense_layout(p.w_sizes(), p.w_strides) == Layout::kOther) return "the weight is not dense";
  if (dense_layout(p.y_sizes(), p.y_strides) == Layout::kOther) return "the output is not dense";
  if (p.K > INT32_MAX || p.C * p.R * p.S > INT32_MAX) return "a matrix dimension passes 2^31";
  if (chunk_bytes(p, 1) == 0) return nullptr;
  if (p.pass == Pass::kDgrad && p.C * p.W > INT32_MAX) return "an image row passes 2^31 elements";
  const int64_t least = p.pass == Pass::kDgrad ? band_columns(p, 1) : 1;
  if (columns_within_bound(p) < least) return "the workspace bound holds too few columns";
  return nullptr;
}

// Cuts the batch into chunks of whole images or an image into chunks of pixels (dgrad: of rows).
void choose_chunk(const ConvProblem& p, ConvPlan& plan) {
  const bool dgrad = p.pass == Pass::kDgrad;
  const int64_t image_bytes = chunk_bytes(p, image_columns(p));
  // Kernels count a chunk's part of dx, which can be larger than its columns, in 32 bits.
  const int64_t image_elements = dgrad ? p.C * p.H * p.W : 1;
  if (image_bytes == 0 || (image_bytes <= kWorkspaceBound && image_elements <= INT32_MAX)) {
    plan.chunk_images = p.N;
    if (image_bytes > 0) {
      plan.chunk_images =
          std::min({p.N, kWorkspaceBound / image_bytes, INT32_MAX / image_elements});
    }
    plan.chunk_pixels = dgrad ? p.H : image_columns(p);
    return;
  }
  const int64_t room = columns_within_bound(p);
  plan.chunk_images = 1;
  if (!dgrad) {
    // Even chunks, in whole warps: a last one of a few pixels would be all overhead.
    const int64_t chunks = ceil_divide(image_columns(p), room);
    plan.chunk_pixels = std::min(room, round_up(ceil_divide(image_columns(p), chunks), 32));
    return;
  }
  const int64_t most_rows = std::min(p.H, INT32_MAX / (p.C * p.W));
  int64_t rows = 1;
  for (int64_t step = most_rows; step > 0; step /= 2) {
    while (rows + step <= most_rows && band_columns(p, rows + step) <= room) rows += step;
  }
  plan.chunk_pixels = rows;
}

ConvPlan propose(const ConvProblem& p, const DeviceProperties& device) {
  ConvPlan plan;
  plan.uses_blas = true;
  plan.block = kBlock;
  plan.wide_index = needs_wide_index(p);
  choose_chunk(p, plan);
  const bool dgrad = p.pass == Pass::kDgrad;
  const bool in_place = columns_are_in_place(p);
  const bool whole_images = plan.chunk_pixels == (dgrad ? p.H : image_columns(p));
  plan.variant = in_place ? "pointwise" : whole_images ? "images" : "bands";

  const int64_t chunk_pixels = dgrad ? band_columns(p, plan.chunk_pixels) : plan.chunk_pixels;
  const int64_t room = columns_room(p, plan);
  plan.grid[0] = std::max<int64_t>(ceil_divide(room / 16, kBlock), 1);
  plan.workspace_bytes = room + plan.chunk_images * products_bytes(p, chunk_pixels) +
                         weight_sum_bytes(p) + parts_bytes(p, plan);

  const int64_t chunks = ceil_divide(p.N, plan.chunk_images) *
                         ceil_divide(dgrad ? p.H : image_columns(p), plan.chunk_pixels);
  const bool channels_last = is_channels_last(p);
  // Products in a chunk: one where the images of a chunk, or the groups, make a batch.
  int64_t products =
      channels_last || (p.groups == 1 && p.pass != Pass::kWgrad) ? 1 : plan.chunk_images;
  const int64_t size = element_size(p.dtype);
  double traffic =
      2.0 * static_cast<double>(p.N) * static_cast<double>(chunk_bytes(p, image_columns(p)));
  if (sums_in_parts(p)) {
    const int64_t parts = weight_parts(p, plan.chunk_images, plan.chunk_pixels).count;
    products = 3 * (1 + ceil_divide(parts, parts_at_once(p, plan)));
    traffic += 2.0 * static_cast<double>(chunks * parts) * static_cast<double>(weight_sum_bytes(p));
  }
  double bandwidth = kColumnBandwidth * device.bandwidth_gb_s;
  if (dgrad) {
    bandwidth =
        (p.stride_h * p.stride_w > 1 ? kStridedBandwidth : kDgradBandwidth) * device.bandwidth_gb_s;
  } else if (p.pass == Pass::kWgrad && size == 2) {
    bandwidth = kWgradBandwidth * device.bandwidth_gb_s;
  }
  const double bytes_ms = 1e-6 * (traffic + p.least_bytes()) / bandwidth;
  const int64_t tap_rows = p.group_C() * p.R * p.S;
  // NHWC joins the pixels of a chunk's images into one dimension.
  const int64_t pixels = channels_last ? plan.chunk_images * chunk_pixels : chunk_pixels;
  const double fill = dgrad                    ? tile_fill(tap_rows, pixels)
                      : p.pass == Pass::kFprop ? tile_fill(p.group_K(), pixels)
                                               : tile_fill(p.group_K(), tap_rows);
  const bool by_tensor_cores = size == 2 || (p.dtype == DType::kFloat32 && p.tf32);
  const int64_t row = dgrad ? image_columns(p) : chunk_pixels;
  const bool aligned = channels_last || (dgrad && !by_tensor_cores) || row * size % 8 == 0;
  const double share = aligned     ? 1
                       : size != 2 ? kUnalignedWideShare
                       : dgrad     ? kUnalignedGradientShare
                                   : kUnalignedShare;
  const double rate = kMatrixEfficiency * fill * share * device.matrix_flops(p.dtype, p.tf32);
  const double math_ms = 2e3 * p.macs() / rate;
  // Of planes of whole 16 bytes: others are slow.
  const bool fast_planes =
      !channels_last && p.pass != Pass::kWgrad && by_tensor_cores && p.P * p.Q * size % 16 == 0;
  if (in_place && ((dgrad && channels_last) || fast_planes || is_single_product(p))) {
    // A single product, as fast as its bytes or nearly.
    const double moved_ms = 1e-6 * p.least_bytes() / (kProductBandwidth * device.bandwidth_gb_s);
    const double product_ms = math_ms / (p.dtype == DType::kFloat32 ? kWideShare : 1);
    plan.predicted_ms = kLaunchMs + std::max(moved_ms, product_ms) +
                        0.25 * std::min(moved_ms, product_ms) + (fast_planes ? kPlanesLaunchMs : 0);
    if (p.dtype == DType::kFloat32 && p.tf32) {
      plan.predicted_ms = kLaunchMs + product_ms + kTf32Share * moved_ms;
    }
    if (p.pass == Pass::kWgrad) plan.predicted_ms *= kSumsShare;
    return plan;
  }
  plan.predicted_ms = kHostMs + bytes_ms + math_ms +
                      static_cast<double>(chunks * (products + (in_place ? 0 : 1)) + 1) * kLaunchMs;
  return plan;
}

}  // namespace

extern const Family family;
const Family family{"im2col", can_implement, propose};

}  // namespace customconv::im2col
