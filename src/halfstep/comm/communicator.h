// What halfstep needs of a group of ranks: collectives over plain bytes. One implementation runs
// ranks as threads of a process (thread_group.h: tests, simulated links), one runs over c10d
// (dist/c10d_communicator.h); buckets, the optimizer and the training loop see only this.
//
// Guarantees. Ranks call the same operations in the same order; operations of one communicator are
// carried out in that order. The starting calls return at once; memory that they were given must
// stay as it is until wait() has returned (send buffers may be read until then, receive buffers
// written). No operation reduces in flight: sums are made here or by kernels::sum_ranks, in rank
// order, so every rank gets the same bits.
//
// Errors. CommError from any call means that this communicator is dead: what was being received is
// undefined, everything else in the process is intact. The first cause is in its text where known.
// A communicator is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "halfstep/core/error.h"

namespace halfstep::comm {

class CommError : public Error {
 public:
  explicit CommError(const std::string& what, std::string hint = {})
      : Error(ExitCode::kCommunication, what, std::move(hint)) {}
};

// A started operation. Destroying it without wait() waits too, and drops the error.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    // Without blocking. Also true after a failure, which wait() throws. An implementation that
    // cannot tell says false, so wait for it only with wait().
    virtual bool done() = 0;
    virtual void wait() = 0;  // throws CommError; called at most once
  };

  Work() = default;  // nothing: done
  explicit Work(std::unique_ptr<State> state);
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other);
  ~Work();

  bool done();
  void wait();

 private:
  std::unique_ptr<State> state_;
};

// Payload bytes that this rank has handed to the wire for other ranks, by operation: what
// docs/distributed.md counts. An all-gather counts the own part (size − 1) times, as every other
// rank gets it, an all-to-all the parts for others.
struct Traffic {
  int64_t all_to_all = 0, all_gather = 0, broadcast = 0, send = 0, control = 0;
  int64_t total() const { return all_to_all + all_gather + broadcast + send + control; }
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Traffic& traffic() const { return traffic_; }

  // Part j of `send` goes to rank j; part i of `receive` comes from rank i, the own one included.
  // Both are size() equal parts and do not overlap.
  Work all_to_all(std::span<const std::byte> send, std::span<std::byte> receive);
  // Fills `all`, size() equal parts, with every rank's part; the own part is already in its place.
  Work all_gather_in_place(std::span<std::byte> all);
  Work broadcast(std::span<std::byte> data, int root);
  Work send(std::span<const std::byte> data, int to);
  Work receive(std::span<std::byte> data, int from);

  // Σ over ranks, in rank order from rank 0's value: the same bits on every rank. For numbers of
  // control (norms, losses, counts, votes), not for gradients.
  void all_reduce_sum(std::span<double> values);
  void barrier();

  // Another communicator over the same ranks, for another thread: its operations, their order and
  // its traffic are its own. Called by every rank, like an operation. A rank that is gone is an
  // error of both; after any other failure of one, the other may be dead as well.
  virtual std::unique_ptr<Communicator> duplicate() = 0;

 protected:
  Communicator(int rank, int size);

 private:
  virtual Work do_all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) = 0;
  virtual Work do_all_gather_in_place(std::span<std::byte> all) = 0;
  virtual Work do_broadcast(std::span<std::byte> data, int root) = 0;
  virtual Work do_send(std::span<const std::byte> data, int to) = 0;
  virtual Work do_receive(std::span<std::byte> data, int from) = 0;

  const int rank_, size_;
  Traffic traffic_;
};

}  // namespace halfstep::comm
