// Which implementation of the kernels runs. They are listed from the fastest to the reference, which
// ships and supports everything; all write the same bits. The first one that the machine supports is
// taken, or the one named by HALFSTEP_KERNELS (reference, sse4, avx2, avx512), read at first use.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halfstep::kernels {

struct ImplementationInfo {
  std::string name;
  bool supported = false;  // by this machine
  std::string reason;      // if not supported, why
};

// All implementations in this build, fastest first, `reference` last.
std::vector<ImplementationInfo> implementations();
// The one in use.
std::string_view chosen_implementation();
// Forces one by name from here on (tests, benches). Throws UsageError naming the choices if it is
// unknown or not supported here.
void force_implementation(std::string_view name);

}  // namespace halfstep::kernels
