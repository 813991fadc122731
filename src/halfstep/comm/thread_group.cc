#include "halfstep/comm/thread_group.h"

#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "halfstep/comm/exchange.h"

namespace halfstep::comm {
namespace {

constexpr int kPoison = 0xff;

void poison(std::byte* data, size_t size) {
  if (size > 0) std::memset(data, kPoison, size);
}

}  // namespace

// What the ranks share. One lock and one condition for the group: operations are few and large.
class ThreadGroup::State {
 public:
  // Which exchange: the n-th collective of the group (from = to = -1), or the n-th message of a
  // pair.
  using Key = std::tuple<int, int, uint64_t>;

  State(int size, LinkModel link) : link_(link), link_free_(size), ended_(size) {}

  int size() const { return static_cast<int>(ended_.size()); }

  std::shared_ptr<Exchange> join(const Key& key, const std::vector<int>& ranks, int member,
                                 const Signature& signature, const Buffers& buffers) {
    std::lock_guard lock(mutex_);
    throw_if_failed();
    std::shared_ptr<Exchange>& open = open_[key];
    if (!open) open = std::make_shared<Exchange>(ranks, signature);
    const std::shared_ptr<Exchange> exchange = open;
    if (exchange->signature() != signature) {
      fail_locked("rank " + std::to_string(ranks[member]) + " called " + signature.text() +
                  " where another rank called " + exchange->signature().text());
      throw_if_failed();
    }
    for (size_t other = 0; other < ranks.size(); ++other) {
      if (ended_[ranks[other]] && !exchange->joined(other))
        fail_because_ended(ranks[other], *exchange);
    }
    throw_if_failed();
    exchange->join(member, buffers);
    if (exchange->complete()) {
      exchange->schedule(link_, Clock::now(), link_free_);
      open_.erase(key);
      changed_.notify_all();
    }
    return exchange;
  }

  bool done(const Exchange& exchange, int member) {
    std::lock_guard lock(mutex_);
    return stopped() || (exchange.complete() && Clock::now() >= exchange.ready(member));
  }

  void wait(Exchange& exchange, int member) {
    {
      std::unique_lock lock(mutex_);
      // A rank whose stack is being unwound must not wait for others, who may be waiting for it.
      // The others learn the cause when the exception has been caught, by fail().
      const bool unwinding = std::uncaught_exceptions() > 0;
      if (unwinding && !stopped()) {
        abandoned_by_ = exchange.ranks()[member];
        changed_.notify_all();
      }
      changed_.wait(lock, [&] { return stopped() || exchange.complete(); });
      if (!stopped()) changed_.wait_until(lock, exchange.ready(member), [&] { return stopped(); });
      if (stopped()) {
        exchange.withdraw(member);
        if (unwinding) return;
        changed_.wait(lock, [&] { return failed_; });
        throw_if_failed();
      }
    }
    exchange.copy(member);
  }

  void end(int rank) {
    std::lock_guard lock(mutex_);
    ended_[rank] = true;
    if (abandoned_by_ == rank)
      fail_locked("rank " + std::to_string(rank) + " gave up an operation");
    for (const auto& [key, exchange] : open_) {
      for (size_t member = 0; member < exchange->ranks().size(); ++member) {
        if (exchange->ranks()[member] == rank && !exchange->joined(member)) {
          fail_because_ended(rank, *exchange);
        }
      }
    }
  }

  void fail(int rank, const std::string& cause) {
    std::lock_guard lock(mutex_);
    fail_locked("rank " + std::to_string(rank) + " failed: " + cause);
  }

  // The group in which the n-th duplicates of all ranks meet.
  std::shared_ptr<State> duplicate(size_t n) {
    std::lock_guard lock(mutex_);
    throw_if_failed();
    while (duplicates_.size() <= n) duplicates_.push_back(std::make_shared<State>(size(), link_));
    return duplicates_[n];
  }

 private:
  bool stopped() const { return failed_ || abandoned_by_ >= 0; }

  void throw_if_failed() const {
    if (failed_) throw CommError(cause_);
  }

  void fail_locked(const std::string& cause) {
    if (failed_) return;
    failed_ = true;
    cause_ = cause;
    changed_.notify_all();
    for (const auto& duplicate : duplicates_) {
      std::lock_guard lock(duplicate->mutex_);
      duplicate->fail_locked(cause);
    }
  }

  void fail_because_ended(int rank, const Exchange& exchange) {
    fail_locked("rank " + std::to_string(rank) + " ended, but others wait for it in " +
                exchange.signature().text());
  }

  const LinkModel link_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Clock::time_point> link_free_;  // per rank
  std::vector<bool> ended_;
  std::map<Key, std::shared_ptr<Exchange>> open_;  // those that some member has yet to join
  bool failed_ = false;
  int abandoned_by_ = -1;  // the rank that is being unwound; its failure is about to be told
  std::string cause_;
  std::vector<std::shared_ptr<State>> duplicates_;  // locked after this one
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup::State> group, int rank)
      : Communicator(rank, group->size()),
        group_(std::move(group)),
        everyone_(size()),
        num_sent_(size()),
        num_received_(size()) {
    std::iota(everyone_.begin(), everyone_.end(), 0);
  }

  ~ThreadCommunicator() override { group_->end(rank()); }

  std::unique_ptr<Communicator> duplicate() override {
    return std::make_unique<ThreadCommunicator>(group_->duplicate(num_duplicates_++), rank());
  }

 private:
  class ExchangeWork final : public Work::State {
   public:
    ExchangeWork(std::shared_ptr<ThreadGroup::State> group, std::shared_ptr<Exchange> exchange,
                 int member)
        : group_(std::move(group)), exchange_(std::move(exchange)), member_(member) {}
    bool done() override { return group_->done(*exchange_, member_); }
    void wait() override { group_->wait(*exchange_, member_); }

   private:
    const std::shared_ptr<ThreadGroup::State> group_;
    const std::shared_ptr<Exchange> exchange_;
    const int member_;
  };

  Work start(const ThreadGroup::State::Key& key, const std::vector<int>& ranks, int member,
             const Signature& signature, const Buffers& buffers) {
    return Work(std::make_unique<ExchangeWork>(
        group_, group_->join(key, ranks, member, signature, buffers), member));
  }

  Work collective(const Signature& signature, const Buffers& buffers) {
    return start({-1, -1, num_collectives_++}, everyone_, rank(), signature, buffers);
  }

  Work do_all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override {
    const size_t part = send.size() / size();
    poison(receive.data(), receive.size());
    return collective({"all_to_all", part, -1}, {send.data(), part, receive.data(), part});
  }

  Work do_all_gather_in_place(std::span<std::byte> all) override {
    const size_t part = all.size() / size(), own = part * rank();
    poison(all.data(), own);
    poison(all.data() + own + part, all.size() - own - part);
    return collective({"all_gather", part, -1}, {all.data() + own, 0, all.data(), part});
  }

  Work do_broadcast(std::span<std::byte> data, int root) override {
    const Signature signature{"broadcast", data.size(), root};
    if (rank() == root) return collective(signature, {data.data(), 0, nullptr, 0});
    poison(data.data(), data.size());
    return collective(signature, {nullptr, 0, data.data(), 0});
  }

  // A message is an exchange of two members: 0 sends, 1 receives.
  Work do_send(std::span<const std::byte> data, int to) override {
    return start({rank(), to, num_sent_[to]++}, {rank(), to}, 0, {"send", data.size(), 0},
                 {data.data(), 0, nullptr, 0});
  }

  Work do_receive(std::span<std::byte> data, int from) override {
    poison(data.data(), data.size());
    return start({from, rank(), num_received_[from]++}, {from, rank()}, 1, {"send", data.size(), 0},
                 {nullptr, 0, data.data(), 0});
  }

  const std::shared_ptr<ThreadGroup::State> group_;
  std::vector<int> everyone_;
  uint64_t num_collectives_ = 0;
  size_t num_duplicates_ = 0;
  std::vector<uint64_t> num_sent_, num_received_;  // per peer
};

ThreadGroup::ThreadGroup(int size, LinkModel link) : state_(std::make_shared<State>(size, link)) {}
ThreadGroup::~ThreadGroup() = default;

std::unique_ptr<Communicator> ThreadGroup::communicator(int rank) {
  return std::make_unique<ThreadCommunicator>(state_, rank);
}

void ThreadGroup::fail(int rank, const std::string& cause) { state_->fail(rank, cause); }

void run_ranks(int size, const std::function<void(Communicator&)>& body, LinkModel link) {
  ThreadGroup group(size, link);
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto failed = [&](int rank, const char* cause) {
    {
      std::lock_guard lock(mutex);
      if (!first_error) first_error = std::current_exception();
    }
    group.fail(rank, cause);
  };

  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < size; ++rank) communicators.push_back(group.communicator(rank));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    try {
      threads.emplace_back([&, rank] {
        try {
          body(*communicators[rank]);
        } catch (const std::exception& error) {
          failed(rank, error.what());
        } catch (...) {
          failed(rank, "an exception that is no std::exception");
        }
        communicators[rank].reset();
      });
    } catch (const std::exception& error) {  // the process has as many threads as it may
      failed(rank, error.what());
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace halfstep::comm
