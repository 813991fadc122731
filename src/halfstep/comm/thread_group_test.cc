#include "halfstep/comm/thread_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>

#include "halfstep/comm/communicator_checks.h"

namespace halfstep::comm {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr auto kAnHour = LinkModel{.latency_seconds = 3600};

class Sizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(ThreadGroup, Sizes, testing::Values(1, 2, 3, 5, 8),
                         testing::PrintToStringParamName());

TEST_P(Sizes, CarriesTheRightBytes) { run_ranks(GetParam(), check_communicator); }

TEST_P(Sizes, CarriesTheRightBytesOverALink) {
  run_ranks(GetParam(), check_communicator, {.bytes_per_second = 1e9, .latency_seconds = 1e-5});
}

TEST(ThreadGroup, ManyRanks) {
  run_ranks(384, [](Communicator& c) {
    check_all_to_all(c, 3);
    check_all_gather(c, 3);
    check_send_receive(c, 3);
    double one = 1;
    c.all_reduce_sum({&one, 1});
    EXPECT_EQ(one, 384);
  });
}

// The memory contract of communicator.h: a program that breaks it sees so.
TEST(ThreadGroup, ReceiveBuffersArePoisonedUntilTheyArrive) {
  std::latch looked(1);
  run_ranks(2, [&](Communicator& c) {
    if (c.rank() == 1) looked.wait();  // until then nothing can have arrived
    Bytes send(8), receive(8);
    Work work = c.all_to_all(send, receive);
    if (c.rank() == 0) {
      for (const std::byte b : receive) EXPECT_EQ(b, std::byte{0xff});
      EXPECT_FALSE(work.done());
      looked.count_down();
    }
    work.wait();
    for (const std::byte b : receive) EXPECT_EQ(b, std::byte{0});
  });
}

TEST(ThreadGroup, SendBuffersAreReadAsLateAsWait) {
  std::latch changed(1);
  run_ranks(2, [&](Communicator& c) {
    Bytes send(2, std::byte{1}), receive(2);
    if (c.rank() == 1) changed.wait();
    Work work = c.all_to_all(send, receive);
    if (c.rank() == 0) {
      send[1] = std::byte{2};  // the fault
      changed.count_down();
    }
    work.wait();
    EXPECT_EQ(receive[0], c.rank() == 0 ? std::byte{1} : std::byte{2});
  });
}

// Each rank runs `operation`, rank 1 throws first. All must end, the cause is the one rethrown, and
// the others have seen it, in what they waited for and in what they try afterwards.
void expect_cause_reaches_all(const std::function<void(Communicator&)>& operation,
                              LinkModel link = {}) {
  std::atomic<int> told = 0;
  const auto body = [&](Communicator& c) {
    if (c.rank() == 1) throw InputError("bad token file");
    const auto names_the_cause = ThrowsMessage<CommError>("rank 1 failed: bad token file");
    EXPECT_THAT([&] { operation(c); }, names_the_cause);
    EXPECT_THAT([&] { c.barrier(); }, names_the_cause);
    ++told;
  };
  EXPECT_THAT([&] { run_ranks(3, body, link); }, ThrowsMessage<InputError>("bad token file"));
  EXPECT_EQ(told, 2);
}

TEST(ThreadGroupFailure, ReachesCollectives) {
  expect_cause_reaches_all([](Communicator& c) { check_all_to_all(c, 5); });
  expect_cause_reaches_all([](Communicator& c) { check_all_gather(c, 5); });
  expect_cause_reaches_all([](Communicator& c) { c.barrier(); });
  expect_cause_reaches_all([](Communicator& c) {
    Bytes data(3);
    c.broadcast(data, 1).wait();
  });
}

TEST(ThreadGroupFailure, ReachesMessages) {
  expect_cause_reaches_all([](Communicator& c) {
    Bytes data(3);
    c.receive(data, 1).wait();
  });
  expect_cause_reaches_all([](Communicator& c) {
    Bytes data(3);
    c.send(data, 1).wait();
  });
  expect_cause_reaches_all(
      [](Communicator& c) {  // both partners live, the wire is slow
        Bytes data(3);
        (c.rank() == 0 ? c.send(data, 2) : c.receive(data, 0)).wait();
        if (c.rank() == 0) c.barrier();
      },
      kAnHour);
}

// A rank that fails with an operation under way does not wait for the others, who wait for it in
// something else, and nobody writes to its memory after it has gone.
TEST(ThreadGroupFailure, ARankThatFailsDoesNotWaitForItsOperations) {
  const auto body = [](Communicator& c) {
    Bytes send(2), receive(2);
    if (c.rank() == 1) {
      Work work = c.all_to_all(send, receive);
      throw InputError("bad token file");
    }
    EXPECT_THAT([&] { c.receive(send, 1).wait(); },
                ThrowsMessage<CommError>("rank 1 failed: bad token file"));
    EXPECT_THROW(c.all_to_all(send, receive), CommError);
  };
  EXPECT_THAT([&] { run_ranks(2, body); }, ThrowsMessage<InputError>("bad token file"));
}

TEST(ThreadGroupFailure, LeavesMemoryAloneAfterwards) {
  const auto body = [&](Communicator& c) {
    Bytes send(2), receive(2);
    Work work = c.all_to_all(send, receive);
    if (c.rank() == 0) throw InputError("out of data");
    EXPECT_THROW(work.wait(), CommError);
    EXPECT_EQ(receive[0], std::byte{0xff});
  };
  EXPECT_THROW(run_ranks(2, body, kAnHour), InputError);
}

// A thread that works beside the ranks' own learns of a rank's failure as well.
TEST(ThreadGroupFailure, ReachesDuplicates) {
  const auto body = [](Communicator& c) {
    const auto other = c.duplicate();
    c.barrier();
    if (c.rank() == 1) throw InputError("bad token file");
    std::thread([&] {
      EXPECT_THAT([&] { other->barrier(); }, ThrowsMessage<CommError>(HasSubstr("rank 1 ")));
    }).join();
    EXPECT_THAT([&] { c.barrier(); }, ThrowsMessage<CommError>("rank 1 failed: bad token file"));
    EXPECT_THROW(c.duplicate(), CommError);
  };
  EXPECT_THAT([&] { run_ranks(3, body); }, ThrowsMessage<InputError>("bad token file"));
}

TEST(ThreadGroupFailure, AnErrorCaughtWithAnOperationGivenUpIsNoHang) {
  const auto body = [](Communicator& c) {
    Bytes send(2), receive(2);
    if (c.rank() == 0) {
      try {
        Work work = c.all_to_all(send, receive);
        throw InputError("dropped");
      } catch (const InputError&) {
        return;
      }
    }
    c.all_to_all(send, receive).wait();
  };
  EXPECT_THAT([&] { run_ranks(2, body); }, ThrowsMessage<CommError>("rank 0 gave up an operation"));
}

TEST(ThreadGroupFailure, ARankThatEndsEarlyIsNamed) {
  const auto body = [](Communicator& c) {
    if (c.rank() != 2) check_all_to_all(c, 6);
  };
  EXPECT_THAT([&] { run_ranks(3, body); },
              ThrowsMessage<CommError>(
                  "rank 2 ended, but others wait for it in all_to_all of 6 bytes per rank"));
}

TEST(ThreadGroupFailure, DifferentOperationsAreNamed) {
  const auto body = [](Communicator& c) {
    c.rank() == 0 ? check_all_to_all(c, 6) : check_all_gather(c, 4);
  };
  EXPECT_THAT(
      [&] { run_ranks(2, body); },
      ThrowsMessage<CommError>(AllOf(HasSubstr("all_to_all of 6"), HasSubstr("all_gather of 4"))));
  const auto sizes = [](Communicator& c) { check_broadcast(c, 5 + c.rank()); };
  EXPECT_THAT([&] { run_ranks(2, sizes); },
              ThrowsMessage<CommError>(HasSubstr("broadcast of 6 bytes per rank from rank 0")));
}

TEST(ThreadGroup, CallsThatCannotBeRightAreOurFault) {
  run_ranks(2, [](Communicator& c) {
    Bytes three(3), four(4), two(2);
    EXPECT_THROW(c.all_to_all(three, three), InternalError);
    EXPECT_THROW(c.all_to_all(four, two), InternalError);
    EXPECT_THROW(c.all_gather_in_place(three), InternalError);
    EXPECT_THROW(c.broadcast(two, 2), InternalError);
    EXPECT_THROW(c.send(two, c.rank()), InternalError);
    EXPECT_THROW(c.receive(two, -1), InternalError);
    c.barrier();
  });
}

// A transfer goes on while its rank does something else: it is done without having been waited for.
TEST(ThreadGroupLink, WorksWhileTheRankComputes) {
  constexpr auto kLatency = std::chrono::milliseconds(30);
  run_ranks(2,
            [&](Communicator& c) {
              Bytes send(2), receive(2);
              c.barrier();
              Work work = c.all_to_all(send, receive);
              const auto started = std::chrono::steady_clock::now();
              c.barrier();  // both have started it; takes kLatency itself
              while (!work.done()) std::this_thread::yield();
              EXPECT_GE(std::chrono::steady_clock::now() - started, kLatency);
              work.wait();
            },
            {.latency_seconds = std::chrono::duration<double>(kLatency).count()});
}

TEST(ThreadGroupLink, IsNotDoneBeforeItsTime) {
  const auto body = [](Communicator& c) {
    Bytes send(2), receive(2);
    Work work = c.all_to_all(send, receive);
    if (c.rank() == 1) c.receive(send, 0).wait();  // never sent; until rank 0 has looked
    EXPECT_FALSE(work.done());
    throw InputError("seen enough");
  };
  EXPECT_THROW(run_ranks(2, body, kAnHour), InputError);
}

}  // namespace
}  // namespace halfstep::comm
