#include <algorithm>

#include "kernels/bias/bias.h"

namespace customconv {

BiasGradient::BiasGradient(Layout lies, const Shape4& sizes, int element_bytes)
    : layout(sizes[2] * sizes[3] == 1 ? Layout::kNhwc : lies),
      channels(sizes[1]),
      pixels(sizes[2] * sizes[3]) {
  constexpr int kVectorBytes = 16;
  constexpr int kMostAcross = 32;
  constexpr int64_t kBlocks = 512;  // of which an H100 has room for 528 at once
  const bool channels_last = layout == Layout::kNhwc;
  const int64_t run = channels_last ? channels : pixels;
  for (vector = kVectorBytes / element_bytes; run % vector != 0;) vector /= 2;
  count = sizes[0] * (channels_last ? pixels : pixels / vector);
  columns = channels_last ? channels / vector : channels;
  across = 1;
  while (channels_last && across < std::min<int64_t>(columns, kMostAcross)) across *= 2;
  down = kThreads / across;
  const int64_t most = ceil_divide(count, int64_t{down} * kUnroll);
  share = ceil_divide(count, std::min(most, ceil_divide(kBlocks, ceil_divide(columns, across))));
  splits = ceil_divide(count, share);
}

}  // namespace customconv
