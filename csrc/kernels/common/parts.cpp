#include "kernels/common/parts.h"

#include <cmath>

#include "plan/hardware.h"
#include "plan/price.h"
#include "plan/problem.h"

namespace customconv {

Work adding_up(int64_t count, int64_t parts, const DeviceProperties& device) {
  constexpr double kAtOnce = 8;                    // parts that a thread loads before it waits
  constexpr double kInstructions = 30, kEach = 4;  // of a thread: once, and for each part
  const int sharers = sharers_of(parts);
  const auto own = static_cast<double>(ceil_divide(parts, sharers));
  Work work;
  work.row = price_row(PriceKind::kAddParts, 0);
  work.blocks = static_cast<float>(ceil_divide(count * sharers, kPartThreads));
  work.sms = static_cast<float>(device.sm_count);
  work.resident = 8;
  work.busy = static_cast<float>(
      busiest({kPartThreads / 32 * (kInstructions + kEach * own) / hardware::kSchedulers,
               kPartThreads * own * sizeof(float) / hardware::kL2BytesPerClock}));
  work.waits = static_cast<float>(1 + std::ceil(own / kAtOnce) + (sharers > 1 ? 1 : 0));
  return work;
}

}  // namespace customconv
