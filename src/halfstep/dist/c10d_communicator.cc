#include "halfstep/dist/c10d_communicator.h"

#include <ATen/ops/from_blob.h>

#include <exception>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "halfstep/dist/c10d_errors.h"

namespace halfstep::dist {
namespace {

using comm::Work;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using C10dWork = c10::intrusive_ptr<c10d::Work>;
using Works = std::vector<C10dWork>;
using Tensors = std::vector<at::Tensor>;

// Messages of the user and those of all-gathers are told apart by their tag; within a tag they
// arrive in the order of their start, which is the same on all ranks.
constexpr int kMessageTag = 0;
constexpr int kGatherTag = 1;

// One operation made of several of c10d's. The tensors are views of the caller's memory.
class C10dWorks final : public Work::State {
 public:
  C10dWorks(const char* name, Works works)
      : name_(name),
        works_(std::move(works)),
        made_of_messages_(works_.empty() || c10d::isP2POp(works_[0]->retrieveOpType())) {}

  bool done() override {
    for (const C10dWork& work : works_) {
      if (!work->isCompleted()) return false;
    }
    return true;
  }

  void wait() override {
    // A rank whose stack is being unwound must not wait for others, who may be waiting for it. A
    // message can be dropped, and nobody touches its memory any more; a collective cannot.
    if (made_of_messages_ && std::uncaught_exceptions() > 0) return works_.clear();
    as_comm_error(name_, [&] {
      for (const C10dWork& work : works_) {
        if (!work->wait()) throw comm::CommError(std::string(name_) + ": aborted");
      }
    });
  }

 private:
  const char* name_;
  Works works_;
  const bool made_of_messages_;
};

class C10dCommunicator final : public comm::Communicator {
 public:
  // `device`: where the memory lies that the operations are given. `connect` makes the group of a
  // duplicate whose ranks meet under the keys of a store.
  using Connect = std::function<BackendPtr(const StorePtr&)>;
  C10dCommunicator(StorePtr store, Connect connect, at::Device device)
      : C10dCommunicator(connect(store), store, connect, device) {}

  std::unique_ptr<comm::Communicator> duplicate() override {
    return as_comm_error("the ranks cannot be connected once more", [&] {
      auto keys = c10::make_intrusive<c10d::PrefixStore>(
          "duplicate/" + std::to_string(num_duplicates_++), store_);
      return std::make_unique<C10dCommunicator>(std::move(keys), connect_, device_);
    });
  }

 private:
  C10dCommunicator(BackendPtr backend, StorePtr store, Connect connect, at::Device device)
      : Communicator(backend->getRank(), backend->getSize()),
        store_(std::move(store)),
        connect_(std::move(connect)),
        backend_(std::move(backend)),
        device_(device) {}

  at::Tensor view(const std::byte* data, size_t size) const {
    return at::from_blob(const_cast<std::byte*>(data), {static_cast<int64_t>(size)},
                         at::TensorOptions().dtype(at::kByte).device(device_));
  }

  // `start` returns the works of an operation. Nothing is sent where there is nothing to send: all
  // ranks agree on the size.
  template <typename Start>
  Work begin(const char* name, size_t size, Start&& start) {
    if (size == 0) return Work();
    return Work(
        as_comm_error(name, [&] { return std::make_unique<C10dWorks>(name, Works(start())); }));
  }

  Work do_all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override {
    return begin("all_to_all", send.size(), [&]() -> Works {
      at::Tensor in = view(send.data(), send.size());
      at::Tensor out = view(receive.data(), receive.size());
      std::vector<int64_t> equal_parts;
      return {backend_->alltoall_base(out, in, equal_parts, equal_parts)};
    });
  }

  Work do_all_gather_in_place(std::span<std::byte> all) override {
    const size_t part = all.size() / size();
    const auto of = [&](int r) { return Tensors{view(all.data() + part * r, part)}; };
    return begin("all_gather", all.size(), [&] {
      Works works;
      // Each rank starts with another partner, so that no one is everybody's first.
      for (int i = 1; i < size(); ++i) {
        const int from = (rank() + size() - i) % size();
        Tensors theirs = of(from);
        works.push_back(backend_->recv(theirs, from, kGatherTag));
      }
      for (int i = 1; i < size(); ++i) {
        Tensors own = of(rank());
        works.push_back(backend_->send(own, (rank() + i) % size(), kGatherTag));
      }
      return works;
    });
  }

  Work do_broadcast(std::span<std::byte> data, int root) override {
    return begin("broadcast", data.size(), [&]() -> Works {
      Tensors tensors{view(data.data(), data.size())};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return {backend_->broadcast(tensors, options)};
    });
  }

  Work do_send(std::span<const std::byte> data, int to) override {
    return begin("send", data.size(), [&]() -> Works {
      Tensors tensors{view(data.data(), data.size())};
      return {backend_->send(tensors, to, kMessageTag)};
    });
  }

  Work do_receive(std::span<std::byte> data, int from) override {
    return begin("receive", data.size(), [&]() -> Works {
      Tensors tensors{view(data.data(), data.size())};
      return {backend_->recv(tensors, from, kMessageTag)};
    });
  }

  const StorePtr store_;
  const Connect connect_;
  const BackendPtr backend_;
  const at::Device device_;
  int num_duplicates_ = 0;
};

}  // namespace

std::unique_ptr<comm::Communicator> connect_gloo(Store& store, int rank, int size,
                                                 const GlooOptions& options) {
  return as_comm_error("Gloo cannot connect the ranks", [&] {
    using c10d::ProcessGroupGloo;
    const auto connect = [rank, size, options](const StorePtr& keys) -> BackendPtr {
      auto gloo = ProcessGroupGloo::Options::create(options.timeout);
      gloo->devices.push_back(options.interface.empty()
                                  ? ProcessGroupGloo::createDeviceForHostname(options.address)
                                  : ProcessGroupGloo::createDeviceForInterface(options.interface));
      return c10::make_intrusive<ProcessGroupGloo>(keys, rank, size, gloo);
    };
    return std::make_unique<C10dCommunicator>(StorePtr::reclaim_copy(&store.c10d_store()), connect,
                                              at::kCPU);
  });
}

}  // namespace halfstep::dist
