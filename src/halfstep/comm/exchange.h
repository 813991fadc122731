// One operation of a ThreadGroup: who takes part, which memory they brought, and the copies between
// them. Internal to comm.
//
// Any member may make a copy that it sends or receives, whoever waits first, so no wait depends on
// another rank's wait and no thread works in the background. A once_flag per copy keeps it single,
// and lets a member that gives up forbid the copies that touch its memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "halfstep/comm/thread_group.h"

namespace halfstep::comm {

using Clock = std::chrono::steady_clock;

// What all members must agree on.
struct Signature {
  const char* name;
  size_t part;  // bytes of one copy
  int root;     // the only member that sends, or -1: all do
  bool operator==(const Signature&) const = default;
  std::string text() const;
};

// The memory of one member: what it sends to member j lies at send + j · send_stride, what it
// receives from member i at receive + i · receive_stride. Null: it takes no part in that half.
struct Buffers {
  const std::byte* send = nullptr;
  size_t send_stride = 0;
  std::byte* receive = nullptr;
  size_t receive_stride = 0;
};

class Exchange {
 public:
  Exchange(std::vector<int> ranks, Signature signature);

  const std::vector<int>& ranks() const { return ranks_; }
  const Signature& signature() const { return signature_; }
  bool joined(int member) const { return joined_[member]; }
  bool complete() const { return num_joined_ == ranks_.size(); }
  // When everything that `member` sends has left and everything that it receives has arrived.
  Clock::time_point ready(int member) const { return ready_[member]; }

  // These two under the group's lock; schedule() once complete. `link_free`: per rank of the group,
  // when its link has sent what was queued before.
  void join(int member, const Buffers& buffers);
  void schedule(const LinkModel& link, Clock::time_point now,
                std::vector<Clock::time_point>& link_free);

  // Makes the copies of `member` that no one has made yet. Needs a complete exchange.
  void copy(int member) { settle(member, true); }
  // Forbids them: when it returns, nobody touches the memory of `member` any more.
  void withdraw(int member) { settle(member, false); }

 private:
  bool sends(int member) const { return signature_.root < 0 || signature_.root == member; }
  void settle(int member, bool copy);
  void settle_one(int from, int to, bool copy);

  const std::vector<int> ranks_;
  const Signature signature_;
  std::vector<Buffers> buffers_;
  std::vector<bool> joined_;
  size_t num_joined_ = 0;
  std::vector<Clock::time_point> ready_;
  std::unique_ptr<std::once_flag[]> settled_;  // [from][to], or [to] where one member sends
};

}  // namespace halfstep::comm
