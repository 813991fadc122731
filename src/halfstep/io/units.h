// Numbers as people write them on a command line or in a config, and sizes as they read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace halfstep::io {

// "4096", "4KiB", "1.5GiB", "80GB", "2e9": a whole, non-negative number of bytes. KiB, MiB, GiB,
// TiB are powers of 1024; kB (or KB), MB, GB, TB powers of 1000. Throws UsageError otherwise;
// `what` names the flag or key in the message.
int64_t parse_bytes(std::string_view text, std::string_view what);

// True if the text ends in a unit (--ddp-bucket-size means elements without one, bytes with one).
bool has_byte_unit(std::string_view text);

// A finite decimal number such as "1e-4", all of the text. Throws UsageError otherwise.
double parse_number(std::string_view text, std::string_view what);

// "1.95 GiB", "512 B": three significant digits.
std::string format_bytes(int64_t bytes);

}  // namespace halfstep::io
