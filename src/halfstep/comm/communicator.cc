#include "halfstep/comm/communicator.h"

#include <cstring>
#include <utility>
#include <vector>

namespace halfstep::comm {
namespace {

void wait_and_drop_error(std::unique_ptr<Work::State> state) noexcept {
  if (!state) return;
  try {
    state->wait();
  } catch (const std::exception&) {
    // Whoever gave up on this operation has an error of its own on the way.
  }
}

int64_t bytes(size_t size) { return static_cast<int64_t>(size); }

}  // namespace

Work::Work(std::unique_ptr<State> state) : state_(std::move(state)) {}

Work& Work::operator=(Work&& other) {
  wait_and_drop_error(std::exchange(state_, std::move(other.state_)));
  return *this;
}

Work::~Work() { wait_and_drop_error(std::move(state_)); }

bool Work::done() { return !state_ || state_->done(); }

void Work::wait() {
  if (const auto state = std::exchange(state_, nullptr)) state->wait();
}

Communicator::Communicator(int rank, int size) : rank_(rank), size_(size) {
  check(size >= 1 && rank >= 0 && rank < size, "communicator: rank outside the group");
}

Work Communicator::all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) {
  check(send.size() == receive.size() && send.size() % size_ == 0, "all_to_all: unequal parts");
  traffic_.all_to_all += bytes(send.size()) / size_ * (size_ - 1);
  return do_all_to_all(send, receive);
}

Work Communicator::all_gather_in_place(std::span<std::byte> all) {
  check(all.size() % size_ == 0, "all_gather: unequal parts");
  traffic_.all_gather += bytes(all.size()) / size_ * (size_ - 1);
  return do_all_gather_in_place(all);
}

Work Communicator::broadcast(std::span<std::byte> data, int root) {
  check(root >= 0 && root < size_, "broadcast: no such rank");
  if (root == rank_) traffic_.broadcast += bytes(data.size()) * (size_ - 1);
  return do_broadcast(data, root);
}

Work Communicator::send(std::span<const std::byte> data, int to) {
  check(to >= 0 && to < size_ && to != rank_, "send: no such other rank");
  traffic_.send += bytes(data.size());
  return do_send(data, to);
}

Work Communicator::receive(std::span<std::byte> data, int from) {
  check(from >= 0 && from < size_ && from != rank_, "receive: no such other rank");
  return do_receive(data, from);
}

void Communicator::all_reduce_sum(std::span<double> values) {
  if (size_ == 1) return;
  const size_t n = values.size();
  std::vector<double> all(n * size_);
  std::memcpy(all.data() + n * rank_, values.data(), n * sizeof(double));
  traffic_.control += bytes(n * sizeof(double)) * (size_ - 1);
  do_all_gather_in_place(std::as_writable_bytes(std::span(all))).wait();
  for (size_t i = 0; i < n; ++i) {
    double sum = all[i];
    for (int r = 1; r < size_; ++r) sum += all[n * r + i];
    values[i] = sum;
  }
}

void Communicator::barrier() {
  double nothing = 0;
  all_reduce_sum({&nothing, 1});
}

}  // namespace halfstep::comm
