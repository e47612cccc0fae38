// The walk along both axes, and how big tiles are.
#include "kernels/depthwise/planes/geometry.h"

#include <algorithm>

#include "plan/plan.h"

namespace customconv::depthwise::planes {

bool find_walk(const depthwise::Geometry& g, Pass pass, Walk* walk) {
  if (g.step_h != g.step_w || g.step_h > 2) return false;
  *walk = g.step_h == 2 ? Walk::kSecond : pass == Pass::kDgrad ? Walk::kBack : Walk::kNext;
  if (g.transposed) {
    if ((g.pad_h - g.pad_w) % 2 != 0) return false;
    *walk = g.pad_h % 2 == 0 ? Walk::kHalf : Walk::kHalfOdd;
  }
  return true;
}

Variant variant_of(const PlanesPlan& plan, int element_size) {
  Variant v{plan.walk, 0, 0, 0};
  while (kTaps[v.taps] != plan.taps) ++v.taps;
  while (v.columns(element_size) != plan.strip[1]) ++v.width;
  while (kRows[v.rows] != plan.strip[0]) ++v.rows;
  return v;
}

Tile tile_of(const depthwise::Geometry& g, const PlanesPlan& plan) {
  const int kept = plan.strip[0], columns = plan.strip[1];
  const int planes = plan.tile[0], rows = plan.tile[1], images = plan.tile[2];
  Tile t{};
  t.planes = planes;
  t.rows = rows;
  t.images = images;
  t.bands = static_cast<int>(ceil_divide(g.P, rows));
  t.row_strips = static_cast<int>(ceil_divide(std::min<int64_t>(rows, g.P), kept));
  t.column_strips = static_cast<int>(ceil_divide(g.Q, columns));
  t.items = int64_t{images} * planes * t.row_strips * t.column_strips;
  t.count = g.of_weights ? ceil_divide(g.K, planes) : ceil_divide(g.N * g.K, planes) * t.bands;
  t.steps = ceil_divide(g.N, images) * t.bands;
  const int64_t reach =
      input_of(plan.walk, (t.row_strips - 1) * kept, reach_of(plan.walk, plan.taps, kept));
  t.in_elements = planes * (t.bands == 1 ? g.H : std::min(reach, g.H)) * g.W;
  t.out_elements = planes * std::min<int64_t>(rows, g.P) * g.Q;
  return t;
}

int64_t run_bytes(int64_t elements, int element_size) {
  constexpr int64_t kUnit = 16;
  return (ceil_divide(elements * element_size, kUnit) + 1) * kUnit;
}
Places places_of(const depthwise::Geometry& g, const Tile& t, int stages, int element_size) {
  const auto window_bytes = [&](int64_t elements) {
    return kFrontBytes + t.images * run_bytes(elements, element_size) + kBackBytes;
  };
  Places places{};
  places.stage = window_bytes(t.in_elements);
  if (g.of_weights) {
    places.out = places.stage + kFrontBytes;
    places.stage += window_bytes(t.out_elements);
    places.zeros = stages * places.stage;
  } else {
    places.out = stages * places.stage;
    places.a_out = run_bytes(t.out_elements, element_size);
    places.zeros = places.out + std::min(stages, 2) * places.a_out;
  }
  places.all = places.zeros + kZeroBytes;
  return places;
}

LaunchShape shape_of(const ConvProblem& p, const depthwise::Geometry& g, const Tile& t, int stages,
                     int64_t splits) {
  const int64_t threads = ceil_divide(t.items, 32) * 32;
  // Sums take the place of tiles.
  const int64_t sums = g.of_weights ? threads * g.R * g.S * 4 : 0;
  const int64_t shared = places_of(g, t, stages, static_cast<int>(element_size(p.dtype))).all;
  return {t.count * splits, static_cast<int>(threads), static_cast<int>(std::max(shared, sums)),
          parts_bytes(p, splits)};
}

}  // namespace customconv::depthwise::planes
