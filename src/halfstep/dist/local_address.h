// Which address of this machine the others can reach it by.
#pragma once

#include <cstdint>
#include <string>

namespace halfstep::dist {

// The local address from which packets to `host` would leave, in numbers: on a machine with several
// interfaces, and inside a network namespace, that is the one on the way to `host`. Sends nothing.
// If that is loopback, as when `host` names this machine, and `others_elsewhere`, the address on
// the default route. CommError if `host` is unknown or unreachable.
std::string local_address_towards(const std::string& host, uint16_t port, bool others_elsewhere);

}  // namespace halfstep::dist
