// For tests of this module: the message of an error.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "halfstep/core/error.h"

namespace halfstep::data {

// The message of the InputError that body() must throw.
template <typename Body>
std::string input_error_of(Body&& body) {
  try {
    body();
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an InputError";
  return {};
}

}  // namespace halfstep::data
