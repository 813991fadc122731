#include "halfstep/checkpoint/async_saver.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "halfstep/checkpoint/stream_copy.h"
#include "halfstep/core/error.h"
#include "halfstep/core/thread_pool.h"

namespace halfstep::checkpoint {
namespace {

// Large enough to be worth a task, small enough to share one tensor among threads.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

struct Piece {
  const std::byte* from;
  std::byte* to;
  size_t bytes;
};

// Copies all data into `copy`, one slice behind the other, and returns the slices that lie there.
std::vector<TensorSlice> copy_slices(std::span<const TensorSlice> slices,
                                     std::span<std::byte> copy) {
  std::vector<TensorSlice> copies(slices.begin(), slices.end());
  std::vector<Piece> pieces;
  size_t used = 0;
  for (TensorSlice& slice : copies) {
    const auto bytes = static_cast<size_t>(slice.bytes());
    check(bytes <= copy.size() - used, "async save: the slices are larger than their copy");
    check(!slice.produce, "async save: a slice that is not in memory");
    const auto* from = static_cast<const std::byte*>(slice.data);
    std::byte* const to = copy.data() + used;
    for (size_t done = 0; done < bytes; done += kPieceBytes) {
      pieces.push_back({from + done, to + done, std::min<size_t>(kPieceBytes, bytes - done)});
    }
    slice.data = to;
    used += bytes;
  }
  ThreadPool::global().parallel_for(std::ssize(pieces), [&](int64_t i) {
    const Piece& piece = pieces[static_cast<size_t>(i)];
    stream_copy(piece.to, piece.from, piece.bytes);
  });
  return copies;
}

}  // namespace

AsyncSaver::AsyncSaver(std::unique_ptr<comm::Communicator> ranks, std::span<std::byte> copy,
                       SaveOptions options)
    : ranks_(std::move(ranks)), copy_(copy), options_(std::move(options)) {
  options_.give_up = &give_up_;
  thread_ = std::thread([this] { work(); });
}

AsyncSaver::~AsyncSaver() {
  give_up_ = true;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool AsyncSaver::done() const {
  return result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

SaveResult AsyncSaver::wait() { return result_.get(); }

void AsyncSaver::start(std::filesystem::path dir, TrainState state,
                       std::span<const TensorSlice> slices, const RetentionPolicy& policy) {
  check(!under_way(), "async save: the one before has not been waited for");
  std::packaged_task<SaveResult()> task(
      [this, dir = std::move(dir), state = std::move(state), copies = copy_slices(slices, copy_),
       policy] { return save_checkpoint(dir, state, copies, policy, *ranks_, options_); });
  result_ = task.get_future();
  {
    std::lock_guard lock(mutex_);
    task_ = std::move(task);
  }
  changed_.notify_all();
}

void AsyncSaver::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || task_.valid(); });
    if (!task_.valid()) return;
    auto task = std::exchange(task_, {});
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace halfstep::checkpoint
