// Carries out a load plan: moves bytes from verified chunks to the caller's memory, by way of FP32
// pieces where something is converted.
#pragma once

#include "halfstep/checkpoint/chunk_reader.h"
#include "halfstep/checkpoint/load_plan.h"
#include "halfstep/checkpoint/reader.h"

namespace halfstep::checkpoint {

// Fills one slice. Adds to report.split_ties. `where` names the checkpoint in messages.
void load_slice(const PlannedSlice& planned, const StoredTensors& stored, ChunkReader& chunks,
                const std::string& where, LoadReport& report);

// A weight of ±0 with a negative remainder would join to NaN; split never writes it
// (docs/numerics.md §6). Throws InputError for one that was loaded. Slices of a weight and its
// remainder are matched by name and place.
void check_split_weights(std::span<const MutableSlice> slices, const std::string& where);

// ue6m10 has no sign. Throws InputError for the first negative value, naming the tensor and the
// element, of which values[0] is number `first`. `where`, if any, stands in front.
void check_ue6m10_values(std::span<const float> values, TensorKind kind, std::string_view name,
                         int64_t first, const std::string& where);

}  // namespace halfstep::checkpoint
