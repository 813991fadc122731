// The checks that ranks as threads pass (comm/communicator_checks.h), over Gloo; ranks are threads
// here too, which meet in an in-process store. Over processes: tests/dist.
#include "halfstep/dist/c10d_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <latch>
#include <thread>
#include <vector>

#include "halfstep/comm/communicator_checks.h"

namespace halfstep::dist {
namespace {

using comm::Bytes;
using comm::CommError;
using comm::Communicator;
using comm::Work;

// As comm::run_ranks, over Gloo. A rank that throws closes its connections, as a process would.
void run_gloo_ranks(int size, const std::function<void(Communicator&)>& body,
                    const GlooOptions& options = {.timeout = std::chrono::minutes(1)}) {
  const auto store = in_process_store();
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto own_store = store->another();
        const auto communicator = connect_gloo(*own_store, rank, size, options);
        body(*communicator);
        communicator->barrier();  // nobody leaves while a neighbour still reads from it
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

class Sizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Gloo, Sizes, testing::Values(1, 2, 3, 5, 8),
                         testing::PrintToStringParamName());

TEST_P(Sizes, CarriesTheRightBytes) { run_gloo_ranks(GetParam(), comm::check_communicator); }

// The result of an all-gather lies where its input lay, and the own part is never written: a rank
// may read its own part meanwhile.
TEST(Gloo, AllGatherLeavesTheOwnPartAlone) {
  run_gloo_ranks(3, [](Communicator& c) {
    comm::Started s = comm::start_all_gather(c, 7, 1000);
    comm::require_pattern(std::span(s.receive).subspan(1000 * c.rank(), 1000), 7, c.rank(), 0);
    comm::finish_all_gather(c, 7, s);
  });
}

// What the reducer asks, to sum a bucket as soon as it has arrived.
TEST(Gloo, AllToAllIsDoneWithoutBeingWaitedFor) {
  run_gloo_ranks(2, [](Communicator& c) {
    comm::Started s = comm::start_all_to_all(c, 8, 100);
    while (!s.work.done()) std::this_thread::yield();
    comm::finish_all_to_all(c, 8, s);
  });
}

TEST(GlooFailure, ARankThatEndsIsAnErrorOfTheOthers) {
  const auto body = [](Communicator& c) {
    if (c.rank() == 1) throw InputError("bad token file");
    Bytes all(3), send(3), receive(3);
    EXPECT_THROW(c.all_gather_in_place(all).wait(), CommError);
    EXPECT_THROW(c.all_to_all(send, receive).wait(), CommError);
    EXPECT_THROW(c.receive(all, 1).wait(), CommError);
    throw InternalError("seen");  // the barrier of run_gloo_ranks would fail too
  };
  EXPECT_THROW(run_gloo_ranks(3, body), InternalError);
}

// As in comm/thread_group_test.cc: rank 1 fails with messages under way, while rank 0 waits for
// it in something else; and its memory, which its stack takes with it, is not touched any more.
TEST(GlooFailure, ARankThatFailsDoesNotWaitForItsMessages) {
  constexpr size_t kSize = 1 << 22;  // more than the sockets hold: the transfer is under way
  const auto body = [](Communicator& c) {
    if (c.rank() == 1) {
      Bytes all(kSize), more(kSize);
      Work gather = c.all_gather_in_place(all), sent = c.send(more, 0);
      throw InputError("bad token file");
    }
    Bytes send(2), receive(2);
    EXPECT_THROW(c.all_to_all(send, receive).wait(), CommError);
  };
  for (int i = 0; i < 10; ++i) EXPECT_ANY_THROW(run_gloo_ranks(2, body));
}

TEST(GlooFailure, AnOperationThatTakesTooLongIsAnError) {
  std::latch over(1);
  const auto body = [&](Communicator& c) {
    if (c.rank() == 1) {
      over.wait();
      throw InputError("came too late");
    }
    Bytes send(2), receive(2);
    try {
      c.all_to_all(send, receive).wait();
      ADD_FAILURE() << "rank 1 has never taken part";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("all_to_all: "));
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
    over.count_down();
    throw InternalError("seen");
  };
  EXPECT_THROW(run_gloo_ranks(2, body, {.timeout = std::chrono::milliseconds(300)}), InternalError);
}

TEST(GlooFailure, AnAddressThatIsNotOursIsNamed) {
  const auto store = in_process_store();
  EXPECT_THAT(
      [&] { connect_gloo(*store, 0, 1, {.address = "192.0.2.1"}); },
      testing::ThrowsMessage<CommError>(testing::HasSubstr("Gloo cannot connect the ranks")));
}

}  // namespace
}  // namespace halfstep::dist
