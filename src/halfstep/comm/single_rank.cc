#include "halfstep/comm/single_rank.h"

#include <algorithm>

namespace halfstep::comm {

Work SingleRank::do_all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) {
  std::ranges::copy(send, receive.begin());
  return {};
}

}  // namespace halfstep::comm
