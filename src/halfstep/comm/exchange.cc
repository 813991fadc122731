#include "halfstep/comm/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace halfstep::comm {

std::string Signature::text() const {
  std::string text = std::string(name) + " of " + std::to_string(part) + " bytes per rank";
  if (root >= 0) text += " from rank " + std::to_string(root);
  return text;
}

Exchange::Exchange(std::vector<int> ranks, Signature signature)
    : ranks_(std::move(ranks)),
      signature_(signature),
      buffers_(ranks_.size()),
      joined_(ranks_.size()),
      ready_(ranks_.size()),
      settled_(new std::once_flag[ranks_.size() * (signature.root < 0 ? ranks_.size() : 1)]) {}

void Exchange::join(int member, const Buffers& buffers) {
  buffers_[member] = buffers;
  joined_[member] = true;
  ++num_joined_;
}

void Exchange::schedule(const LinkModel& link, Clock::time_point now,
                        std::vector<Clock::time_point>& link_free) {
  const auto seconds = [](double s) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
  };
  const int num_members = static_cast<int>(ranks_.size());
  std::fill(ready_.begin(), ready_.end(), now);
  for (int from = 0; from < num_members && num_members > 1; ++from) {
    if (!sends(from)) continue;
    const double wire_bytes = static_cast<double>(signature_.part) * (num_members - 1);
    Clock::time_point& free = link_free[ranks_[from]];
    const Clock::time_point left =
        std::max(now, free) + seconds(wire_bytes / link.bytes_per_second);
    free = left;
    for (int to = 0; to < num_members; ++to) {
      const auto done = to == from ? left : left + seconds(link.latency_seconds);
      ready_[to] = std::max(ready_[to], done);
    }
  }
}

void Exchange::settle(int member, bool copy) {
  for (int other = 0; other < static_cast<int>(ranks_.size()); ++other) {
    if (sends(other)) settle_one(other, member, copy);
    if (sends(member)) settle_one(member, other, copy);
  }
}

void Exchange::settle_one(int from, int to, bool copy) {
  const size_t row = signature_.root < 0 ? static_cast<size_t>(from) * ranks_.size() : 0;
  std::call_once(settled_[row + to], [&] {
    if (!copy || buffers_[to].receive == nullptr || signature_.part == 0) return;
    const std::byte* source = buffers_[from].send + buffers_[from].send_stride * to;
    std::byte* target = buffers_[to].receive + buffers_[to].receive_stride * from;
    if (source != target) std::memcpy(target, source, signature_.part);
  });
}

}  // namespace halfstep::comm
