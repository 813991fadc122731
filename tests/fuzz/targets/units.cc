// Numbers as people write them: what is accepted is a whole non-negative number of bytes, or a
// finite number, and is read again from how it is printed.
#include "halfstep/io/units.h"

#include <fmt/format.h>

#include <cmath>

#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  const std::string_view text = fuzz::text_of(data, size);
  if (const auto bytes = fuzz::accepted([&] { return io::parse_bytes(text, "--x"); })) {
    check(*bytes >= 0, "no size is negative");
    check(io::parse_bytes(fmt::format("{}", *bytes), "") == *bytes, "plain digits are exact");
    check(io::parse_bytes(fmt::format("{} B", *bytes), "") == *bytes, "with a unit too");
    check(!io::format_bytes(*bytes).empty(), "a size is shown");
  }
  if (const auto number = fuzz::accepted([&] { return io::parse_number(text, "--x"); })) {
    check(std::isfinite(*number), "a number is finite");
    check(io::parse_number(fmt::format("{}", *number), "") == *number, "a number round-trips");
    check(!io::has_byte_unit(text), "a plain number has no unit");
  }
  return 0;
}
