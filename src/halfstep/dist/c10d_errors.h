// Turns what c10d throws into CommError. Internal to dist.
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "halfstep/comm/communicator.h"

namespace halfstep::dist {

// The first line of an exception's text: c10d appends stack traces.
inline std::string first_line(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// Calls `body`; whatever it throws becomes CommError("`what`: …").
template <typename Body>
auto as_comm_error(const std::string& what, Body&& body) {
  try {
    return body();
  } catch (const comm::CommError&) {
    throw;
  } catch (const std::exception& error) {
    throw comm::CommError(what + ": " + first_line(error));
  }
}

}  // namespace halfstep::dist
