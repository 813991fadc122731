#include "halfstep/checkpoint/retention.h"

#include <algorithm>

namespace halfstep::checkpoint {

std::vector<int64_t> retention(std::vector<int64_t> iterations, int64_t saved,
                               const RetentionPolicy& policy) {
  if (policy.keep_last <= 0) return {};
  std::sort(iterations.begin(), iterations.end());
  std::vector<int64_t> older;
  for (const int64_t iteration : iterations) {
    if (iteration < saved) older.push_back(iteration);
  }
  const auto num_older = static_cast<int64_t>(older.size());
  older.resize(static_cast<size_t>(std::max<int64_t>(0, num_older - (policy.keep_last - 1))));
  std::erase_if(older, [&](int64_t iteration) {
    return policy.keep_every > 0 && iteration % policy.keep_every == 0;
  });
  return older;
}

}  // namespace halfstep::checkpoint
