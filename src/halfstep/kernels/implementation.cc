#include "halfstep/kernels/implementation.h"

#include "halfstep/core/error.h"
#include "halfstep/kernels/kernel_table.h"

namespace halfstep::kernels {

std::vector<ImplementationInfo> implementations() {
  return {{.name = std::string(reference_table().name), .supported = true, .reason = {}}};
}

std::string_view chosen_implementation() { return current_table().name; }

void force_implementation(std::string_view name) {
  if (name != reference_table().name) {
    throw UsageError("kernels: no implementation '" + std::string(name) + "'; there is: reference");
  }
}

const KernelTable& current_table() { return reference_table(); }

}  // namespace halfstep::kernels
