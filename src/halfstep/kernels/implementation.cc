#include "halfstep/kernels/implementation.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>

#include "halfstep/core/error.h"
#include "halfstep/kernels/cpu/simd_tables.h"
#include "halfstep/kernels/kernel_table.h"

namespace halfstep::kernels {
namespace {

struct Entry {
  const KernelTable* table;
  bool supported;
  std::string reason;
};

// Fastest first; the reference is last and always supported.
const std::vector<Entry>& entries() {
  static const std::vector<Entry> list = [] {
    std::vector<Entry> all;
    for (const SimdImplementation& simd : simd_implementations()) {
      all.push_back({simd.table, simd.supported,
                     simd.supported ? "" : fmt::format("this CPU lacks {}", simd.needs)});
    }
    all.push_back({&reference_table(), true, ""});
    return all;
  }();
  return list;
}

const KernelTable* fastest() {
  for (const Entry& entry : entries()) {
    if (entry.supported) return entry.table;
  }
  return &reference_table();
}

// `asked_by` names who asked, for the message.
const KernelTable* named(std::string_view name, std::string_view asked_by) {
  std::string choices;
  for (const Entry& entry : entries()) {
    if (entry.table->name == name && entry.supported) return entry.table;
    if (entry.supported)
      choices += fmt::format("{}{}", choices.empty() ? "" : ", ", entry.table->name);
  }
  std::string why = "no such implementation";
  for (const Entry& entry : entries()) {
    if (entry.table->name == name) why = entry.reason;
  }
  throw UsageError(
      fmt::format("{}: kernels '{}': {}; expected one of: {}", asked_by, name, why, choices),
      "`halfstep info` lists the implementations and why some cannot run here");
}

const KernelTable* from_environment() {
  const char* name = std::getenv("HALFSTEP_KERNELS");
  return name && *name ? named(name, "HALFSTEP_KERNELS") : fastest();
}

std::atomic<const KernelTable*>& current() {
  static std::atomic<const KernelTable*> table{from_environment()};
  return table;
}

}  // namespace

std::vector<ImplementationInfo> implementations() {
  std::vector<ImplementationInfo> infos;
  for (const Entry& entry : entries()) {
    infos.push_back({std::string(entry.table->name), entry.supported, entry.reason});
  }
  return infos;
}

std::string_view chosen_implementation() { return current_table().name; }

void force_implementation(std::string_view name) {
  current() = named(name, "force_implementation");
}

const KernelTable& current_table() { return *current().load(std::memory_order_relaxed); }

}  // namespace halfstep::kernels
