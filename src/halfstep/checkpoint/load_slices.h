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

}  // namespace halfstep::checkpoint
