#include "kernels/ptx/wgmma.cuh"

namespace customconv::ptx {

namespace {

constexpr int kRows = 64, kProductBytes = 32;

int bytes_of(Element element) { return element == Element::kTf32 ? 4 : 2; }

float widened(Element element, const char* from) {
  if (element == Element::kTf32) {
    uint32_t bits;
    std::memcpy(&bits, from, sizeof(bits));
    return __uint_as_float(bits >> 13 << 13);
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  if (element == Element::kBfloat16) return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  __half half;
  std::memcpy(&half, &bits, sizeof(half));
  return __half2float(half);
}

// An element of an operand in shared memory: of a row or column `line`, the one that is multiplied
// as the `i`-th.
float load(const Operation& operation, uint64_t descriptor, bool transposed, int line, int i) {
  const auto field = [&](int shift) {
    return static_cast<uint32_t>(descriptor >> shift & 0x3FFF) << 4;
  };
  const uint32_t start = field(0), leading = field(16), stride = field(32);
  const auto offset = [](int count, uint32_t bytes) {
    return static_cast<uint32_t>(count) * bytes;
  };
  const auto bytes = static_cast<uint32_t>(bytes_of(operation.element));
  uint32_t address = start;
  const int swizzle = swizzle_of(descriptor);
  if (swizzle == 0) {
    const int at = i * bytes_of(operation.element);
    address += offset(line / 8, stride) + offset(line % 8, 16) + offset(at / 16, leading) +
               static_cast<uint32_t>(at % 16);
    return widened(operation.element, emulation::at(address));
  }
  if (transposed) {
    address += offset(line / 64, leading) + offset(line % 64, bytes) + offset(i / 8, stride) +
               offset(i % 8, 128);
  } else {
    const auto row = static_cast<uint32_t>(swizzle);
    address += offset(line / 8, stride) + offset(line % 8, row) + offset(i, bytes);
  }
  return widened(operation.element, emulation::at(swizzled(address, swizzle)));
}

// The same of the first operand in registers.
float load(const emulation::StartedProduct& product, int row, int i) {
  const int bytes = bytes_of(product.operation.element), of_word = 4 / bytes;
  const int half = i / (4 * of_word), lane = row % 8 * 4 + i / of_word % 4;
  const uint32_t word = product.x[row / 16 * 32 + lane][half * 2 + row % 16 / 8];
  return widened(product.operation.element,
                 reinterpret_cast<const char*>(&word) + i % of_word * bytes);
}

void multiply(const emulation::StartedProduct& product) {
  const Operation& o = product.operation;
  const int length = kProductBytes / bytes_of(o.element);
  const auto all = static_cast<size_t>(length);
  std::vector<float> x(kRows * all), y(static_cast<size_t>(o.columns) * all);
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < length; ++i) {
      x[static_cast<size_t>(row) * all + static_cast<size_t>(i)] =
          o.x_in_registers ? load(product, row, i) : load(o, o.x, o.x_transposed, row, i);
    }
  }
  for (int column = 0; column < o.columns; ++column) {
    for (int i = 0; i < length; ++i) {
      y[static_cast<size_t>(column) * all + static_cast<size_t>(i)] =
          load(o, o.y, o.y_transposed, column, i);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < o.columns; ++column) {
      const float* const a = &x[static_cast<size_t>(row) * all];
      const float* const b = &y[static_cast<size_t>(column) * all];
      float sum = 0;
      for (size_t i = 0; i < all; ++i) sum += a[i] * b[i];
      const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
      float& to = product.sums[thread][column / 8 * 4 + row % 16 / 8 * 2 + column % 2];
      to = o.accumulates ? to + sum : sum;
    }
  }
}

}  // namespace

void start_product(const Operation& operation, float* sums, const uint32_t* x) {
  emulation::Thread& thread = emulation::here();
  emulation::Products& all = *thread.products;
  const auto place = static_cast<size_t>(thread.started++ - all.done);
  if (place == all.under_way.size()) {
    all.under_way.push_back({operation, thread.committed, {}, {}});
  }
  emulation::StartedProduct& own = all.under_way[place];
  if (own.operation.x != operation.x || own.operation.y != operation.y ||
      own.group != thread.committed) {
    emulation::fail("threads of a warpgroup start different products");
  }
  own.sums[thread.number % 128] = sums;
  if (x != nullptr) std::memcpy(own.x[thread.number % 128], x, sizeof(own.x[0]));
}

void await_all_but(int groups) {
  const emulation::Thread& thread = emulation::here();
  emulation::Products& all = *thread.products;
  const int last = thread.committed - groups;
  emulation::meet(all.meeting, 128, [&all, last] {
    while (!all.under_way.empty() && all.under_way.front().group < last) {
      multiply(all.under_way.front());
      all.under_way.pop_front();
      ++all.done;
    }
  });
}

}  // namespace customconv::ptx
