// The group of a process that is alone: what runs on one rank needs no other path than what runs on
// many.
#pragma once

#include "halfstep/comm/communicator.h"

namespace halfstep::comm {

class SingleRank final : public Communicator {
 public:
  SingleRank() : Communicator(0, 1) {}
  std::unique_ptr<Communicator> duplicate() override { return std::make_unique<SingleRank>(); }

 private:
  Work do_all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override;
  Work do_all_gather_in_place(std::span<std::byte>) override { return {}; }
  Work do_broadcast(std::span<std::byte>, int) override { return {}; }
  // There is no other rank to send to: Communicator has refused it.
  Work do_send(std::span<const std::byte>, int) override { return {}; }
  Work do_receive(std::span<std::byte>, int) override { return {}; }
};

}  // namespace halfstep::comm
