// Times saves and loads of a state in memory against plain files of the same bytes on the same
// disk, in rounds that interleave them. Prints one JSON document; checkpoint.py reads it.
//   checkpoint_bench FOLDER MEBIBYTES ROUNDS
// Reads are timed cold (the file's pages dropped before) and warm. FOLDER is left empty.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "halfstep/checkpoint/async_saver.h"
#include "halfstep/checkpoint/folder.h"
#include "halfstep/checkpoint/reader.h"
#include "halfstep/checkpoint/writer.h"
#include "halfstep/comm/single_rank.h"
#include "halfstep/core/error.h"
#include "halfstep/core/stopwatch.h"
#include "halfstep/io/file.h"

namespace halfstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// Split-master O2 state, 8 bytes per parameter, in matrices of up to 16 Mi elements.
struct State {
  explicit State(int64_t mebibytes) {
    int64_t left = (mebibytes << 20) / 8;
    for (int i = 0; left > 0; ++i) {
      const int64_t numel = std::min(left, int64_t{16} << 20);
      left -= numel;
      for (const auto& [kind, dtype] : {std::pair{TensorKind::kWeight, Dtype::kBF16},
                                        {TensorKind::kRemainder, Dtype::kI16},
                                        {TensorKind::kExpAvg, Dtype::kBF16},
                                        {TensorKind::kExpAvgSq, Dtype::kUE6M10}}) {
        MutableSlice slice;
        static_cast<Slice&>(slice) = whole_slice(kind, fmt::format("w{}", i), {numel}, dtype);
        slices.push_back(slice);
        bytes += slice.bytes();
      }
    }
    memory.resize(static_cast<size_t>(bytes));
    uint64_t x = 1;
    for (size_t i = 0; i < memory.size(); i += 8) {  // no two pages alike, no element infinite
      x = x * 6364136223846793005u + 1442695040888963407u;
      const uint64_t bits = (x >> 8) & 0x3FFF3FFF3FFF3FFFu;
      std::memcpy(&memory[i], &bits, std::min<size_t>(8, memory.size() - i));
    }
    int64_t offset = 0;
    for (MutableSlice& slice : slices) {
      slice.data = memory.data() + offset;
      offset += slice.bytes();
    }
  }

  std::vector<TensorSlice> to_save() const {
    std::vector<TensorSlice> out;
    for (const MutableSlice& slice : slices) out.push_back({slice, slice.data});
    return out;
  }

  std::vector<MutableSlice> slices;
  std::vector<std::byte> memory;
  int64_t bytes = 0;
};

TrainState at_iteration(int64_t iteration) {
  TrainState state;
  state.iteration = iteration;
  state.storage.gradient = Dtype::kBF16;
  state.storage.master = MasterMode::kSplit;
  return state;
}

// The plainest way to put bytes on a disk and to get them back: as large pieces as a chunk.
void write_plain(const fs::path& path, std::span<const std::byte> data) {
  const io::FileDescriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  for (; !data.empty(); data = data.subspan(std::min<size_t>(data.size(), kChunkBytes))) {
    file.write_all(data.first(std::min<size_t>(data.size(), kChunkBytes)));
  }
  file.sync();
}

void read_plain(const fs::path& path, std::span<std::byte> out) {
  const io::FileDescriptor file(path, O_RDONLY);
  for (size_t done = 0; done < out.size(); done += kChunkBytes) {
    file.read_at(static_cast<int64_t>(done),
                 out.subspan(done, std::min<size_t>(out.size() - done, kChunkBytes)));
  }
}

void drop_pages(const fs::path& path) {
  const io::FileDescriptor file(path, O_RDONLY);
  check(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
}

nlohmann::json measure(const fs::path& folder, State& state, int rounds) {
  const fs::path plain = folder / "plain", dir = folder / "run";
  comm::SingleRank ranks;
  std::vector<std::byte> copy(state.memory.size(), std::byte{1});
  AsyncSaver async(ranks.duplicate(), copy);
  std::map<std::string, std::vector<double>> times;
  int64_t iteration = 0;
  fs::path shard;
  const auto timed = [&](const std::string& name, const std::function<void()>& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    times[name].push_back(milliseconds_since(start));
  };
  const auto cleared = [&] {
    fs::remove_all(dir);
    fs::remove(plain);
    ::sync();  // nothing of what came before is still on its way to the disk
  };
  const std::vector<std::function<void()>> writes{
      [&] { timed("plain_write_ms", [&] { write_plain(plain, state.memory); }); },
      [&] {
        timed("save_ms",
              [&] { save_checkpoint(dir, at_iteration(++iteration), state.to_save(), {}, ranks); });
      },
      [&] {
        timed("async_stall_ms",
              [&] { async.start(dir, at_iteration(++iteration), state.to_save(), {}); });
        times["async_write_ms"].push_back(async.wait().milliseconds);
      }};
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < writes.size(); ++i) {  // no one is always the first
      cleared();
      writes[(i + static_cast<size_t>(round)) % writes.size()]();
    }
    // What no copy can be much faster than, however fast the disk.
    timed("plain_copy_ms",
          [&] { std::memcpy(copy.data(), state.memory.data(), state.memory.size()); });
    cleared();
    write_plain(plain, state.memory);
    const SaveResult saved =
        save_checkpoint(dir, at_iteration(++iteration), state.to_save(), {}, ranks);
    shard = saved.directory / shard_name(0, 1);
    const std::vector<std::function<void(const std::string&)>> reads{
        [&](const std::string& how) {
          timed("plain_read_" + how + "_ms", [&] { read_plain(plain, state.memory); });
        },
        [&](const std::string& how) {
          timed("load_" + how + "_ms", [&] { CheckpointReader(dir).load(state.slices); });
        }};
    for (const std::string how : {"cold", "warm"}) {
      if (how == "cold") {
        drop_pages(plain);
        drop_pages(shard);
      }
      for (size_t i = 0; i < 2; ++i) reads[(i + static_cast<size_t>(round)) % 2](how);
    }
  }
  cleared();
  return {{"bytes", state.bytes}, {"rounds", rounds}, {"times", times}};
}

}  // namespace
}  // namespace halfstep::checkpoint

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: checkpoint_bench FOLDER MEBIBYTES ROUNDS\n");
    return 2;
  }
  try {
    halfstep::checkpoint::State state(std::atoll(argv[2]));
    fmt::print("{}\n", halfstep::checkpoint::measure(argv[1], state, std::atoi(argv[3])).dump());
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "checkpoint_bench: {}\n", error.what());
    return 1;
  }
}
