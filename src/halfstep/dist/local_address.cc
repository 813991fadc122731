#include "halfstep/dist/local_address.h"

#include <fmt/core.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "halfstep/comm/communicator.h"

namespace halfstep::dist {
namespace {

// "" if no address of `host` can be reached; `error` then says why.
std::string source_address(const std::string& host, uint16_t port, std::string& error) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    error = gai_strerror(status);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    const int fd = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, to->ai_protocol);
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    char text[NI_MAXHOST] = "";
    // Connecting a datagram socket only chooses the route.
    const bool ok = fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
                    getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
                    getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof text, nullptr,
                                0, NI_NUMERICHOST) == 0;
    if (!ok) error = std::strerror(errno);
    if (fd >= 0) close(fd);
    if (ok) return text;
  }
  return {};
}

}  // namespace

std::string local_address_towards(const std::string& host, uint16_t port, bool others_elsewhere) {
  std::string error;
  const std::string address = source_address(host, port, error);
  if (address.empty()) {
    throw comm::CommError(fmt::format("no way to {}: {}", host, error),
                          "is MASTER_ADDR the address of rank 0's machine as seen from here?");
  }
  const bool loopback = address.starts_with("127.") || address == "::1";
  if (!loopback || !others_elsewhere) return address;
  // An address set aside for documentation: nobody has it, so it is reached by the default route.
  const std::string on_default_route = source_address("192.0.2.1", port, error);
  return on_default_route.empty() ? address : on_default_route;
}

}  // namespace halfstep::dist
