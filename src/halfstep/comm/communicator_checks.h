// What every Communicator must do, as functions that each rank of a group runs and that throw at
// the first wrong byte: one set for ranks as threads, c10d in one process and c10d in many. Tests
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "halfstep/comm/communicator.h"

namespace halfstep::comm {

using Bytes = std::vector<std::byte>;

// Byte `i` of what `from` has for `to` in operation `op`: no two messages look alike.
inline std::byte pattern(int op, int from, int to, size_t i) {
  uint64_t x = (op * 1009 + from) * 1013 + to + i * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<std::byte>(x >> 56);
}

inline void fill(std::span<std::byte> data, int op, int from, int to) {
  for (size_t i = 0; i < data.size(); ++i) data[i] = pattern(op, from, to, i);
}

inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::logic_error(what);
}

inline void require_pattern(std::span<const std::byte> data, int op, int from, int to) {
  for (size_t i = 0; i < data.size(); ++i) {
    if (data[i] == pattern(op, from, to, i)) continue;
    throw std::logic_error("operation " + std::to_string(op) + ": byte " + std::to_string(i) +
                           " from rank " + std::to_string(from) + " for rank " +
                           std::to_string(to) + " is wrong");
  }
}

// One started operation with its memory, and what must be there after wait().
struct Started {
  Bytes send, receive;
  Work work;
};

inline Started start_all_to_all(Communicator& c, int op, size_t part) {
  Started s{Bytes(part * c.size()), Bytes(part * c.size()), {}};
  for (int to = 0; to < c.size(); ++to)
    fill(std::span(s.send).subspan(part * to, part), op, c.rank(), to);
  s.work = c.all_to_all(s.send, s.receive);
  return s;
}

inline void finish_all_to_all(Communicator& c, int op, Started& s) {
  s.work.wait();
  const size_t part = s.receive.size() / c.size();
  for (int r = 0; r < c.size(); ++r) {
    require_pattern(std::span(s.receive).subspan(part * r, part), op, r, c.rank());
    require_pattern(std::span(s.send).subspan(part * r, part), op, c.rank(), r);  // only read
  }
}

inline Started start_all_gather(Communicator& c, int op, size_t part) {
  Started s{{}, Bytes(part * c.size()), {}};
  fill(std::span(s.receive).subspan(part * c.rank(), part), op, c.rank(), 0);
  s.work = c.all_gather_in_place(s.receive);
  return s;
}

inline void finish_all_gather(Communicator& c, int op, Started& s) {
  s.work.wait();
  const size_t part = s.receive.size() / c.size();
  for (int r = 0; r < c.size(); ++r) {
    require_pattern(std::span(s.receive).subspan(part * r, part), op, r, 0);
  }
}

inline void check_all_to_all(Communicator& c, size_t part) {
  Started s = start_all_to_all(c, 1, part);
  finish_all_to_all(c, 1, s);
}

inline void check_all_gather(Communicator& c, size_t part) {
  Started s = start_all_gather(c, 2, part);
  finish_all_gather(c, 2, s);
}

inline void check_broadcast(Communicator& c, size_t size) {
  for (int root = 0; root < c.size(); ++root) {
    Bytes data(size);
    if (c.rank() == root) fill(data, 3, root, 0);
    c.broadcast(data, root).wait();
    require_pattern(data, 3, root, 0);
  }
}

// A ring, two messages of unequal size in flight per pair: they arrive in the order of their start.
inline void check_send_receive(Communicator& c, size_t size) {
  if (c.size() == 1) return;
  const int next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
  Bytes out1(size), out2(size + 5), in1(size), in2(size + 5);
  fill(out1, 4, c.rank(), next);
  fill(out2, 5, c.rank(), next);
  Work s1 = c.send(out1, next), s2 = c.send(out2, next);
  Work r1 = c.receive(in1, previous), r2 = c.receive(in2, previous);
  r2.wait();
  r1.wait();
  s1.wait();
  s2.wait();
  require_pattern(in1, 4, previous, c.rank());
  require_pattern(in2, 5, previous, c.rank());
}

// Values whose sum depends on the order of additions, so that another order shows.
inline void check_all_reduce_sum(Communicator& c) {
  const auto value = [](int rank, int i) {
    return (rank % 2 ? -1e16 : 1e16) / (i + 1) + 1.0 / (rank + 3 + i);
  };
  std::vector<double> values(9);
  for (int i = 0; i < 9; ++i) values[i] = value(c.rank(), i);
  c.all_reduce_sum(values);
  for (int i = 0; i < 9; ++i) {
    double sum = value(0, i);
    for (int r = 1; r < c.size(); ++r) sum += value(r, i);
    require(values[i] == sum, "all_reduce_sum is not the sum in rank order");
  }
}

// Several operations at once, waited for in the reverse order, one not at all.
inline void check_many_in_flight(Communicator& c) {
  constexpr int kOperations = 12;
  std::vector<Started> started;
  for (int op = 0; op < kOperations; ++op) {
    const size_t part = 1 + 977 * (op % 5);
    started.push_back(op % 2 ? start_all_gather(c, op, part) : start_all_to_all(c, op, part));
  }
  { Started dropped = start_all_to_all(c, kOperations, 33); }
  for (int op = kOperations - 1; op >= 0; --op) {
    op % 2 ? finish_all_gather(c, op, started[op]) : finish_all_to_all(c, op, started[op]);
    require(started[op].work.done(), "a finished operation is not done");
  }
}

// What each operation adds to traffic(), to the byte.
inline void check_traffic(Communicator& c) {
  const Traffic before = c.traffic();
  const int64_t others = c.size() - 1;
  check_all_to_all(c, 11);
  check_all_gather(c, 7);
  check_broadcast(c, 5);
  check_send_receive(c, 3);
  std::vector<double> values(4);
  c.all_reduce_sum(values);
  const Traffic after = c.traffic();
  require(after.all_to_all - before.all_to_all == 11 * others, "traffic of all_to_all");
  require(after.all_gather - before.all_gather == 7 * others, "traffic of all_gather");
  require(after.broadcast - before.broadcast == 5 * others, "traffic of broadcast");
  require(after.send - before.send == (c.size() > 1 ? 3 + 8 : 0), "traffic of send");
  require(after.control - before.control == 4 * 8 * others, "traffic of all_reduce_sum");
}

// Operations of equal size on both, begun in another order by every second rank: if the two shared
// an order, the bytes would be exchanged. Then both at once, by two threads.
inline void check_duplicate(Communicator& c) {
  const std::unique_ptr<Communicator> other = c.duplicate();
  require(other->rank() == c.rank() && other->size() == c.size(), "a duplicate has other ranks");
  require(other->traffic().total() == 0, "a duplicate begins with traffic");
  {
    Communicator& first = c.rank() % 2 ? c : *other;
    Communicator& second = c.rank() % 2 ? *other : c;
    const auto op = [&](const Communicator& which) { return &which == &c ? 20 : 21; };
    Started a = start_all_to_all(first, op(first), 100);
    Started b = start_all_to_all(second, op(second), 100);
    finish_all_to_all(second, op(second), b);
    finish_all_to_all(first, op(first), a);
  }
  std::exception_ptr error;
  std::thread beside([&] {
    try {
      for (int i = 0; i < 10; ++i) check_many_in_flight(*other);
      other->barrier();
    } catch (...) {
      error = std::current_exception();
    }
  });
  try {
    for (int i = 0; i < 10; ++i) check_traffic(c);
  } catch (...) {
    beside.join();
    throw;
  }
  beside.join();
  if (error) std::rethrow_exception(error);
  c.barrier();  // nobody leaves while another rank still reads from it
}

inline constexpr size_t kPartSizes[] = {0, 1, 7, 4096, 1'000'003};

inline void check_communicator(Communicator& c) {
  for (const size_t part : kPartSizes) {
    check_all_to_all(c, part);
    check_all_gather(c, part);
    check_broadcast(c, part);
    check_send_receive(c, part);
  }
  check_all_reduce_sum(c);
  check_many_in_flight(c);
  check_traffic(c);
  check_duplicate(c);
  c.barrier();
}

}  // namespace halfstep::comm
