// Which old checkpoints go after a save (--keep-last, --keep-every). A pure function; the writer
// deletes what it returns.
#pragma once

#include <cstdint>
#include <vector>

namespace halfstep::checkpoint {

struct RetentionPolicy {
  int64_t keep_last = 0;   // this many newest ones stay, the one just saved included; 0: all
  int64_t keep_every = 0;  // those whose iteration is a multiple of it stay for good; 0: none
};

// The iterations to delete, ascending. `saved` was just written and always stays; so do later ones
// (another branch of the run, resumed from an earlier checkpoint).
std::vector<int64_t> retention(std::vector<int64_t> iterations, int64_t saved,
                               const RetentionPolicy& policy);

}  // namespace halfstep::checkpoint
