// Arenas beyond 2^31 and 2^32 elements: mappings that reserve no memory, of which only what lies at
// the boundary is touched. And noise addresses beyond 2^35 elements, where the second counter word
// changes.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "halfstep/kernels/vector_ops.h"
#include "lab.h"

namespace halfstep::kernels {
namespace {

// `elements` elements of address space; pages come into being, as zeros, when they are touched.
class Reservation {
 public:
  Reservation(Dtype dtype, int64_t elements)
      : dtype_(dtype),
        bytes_(static_cast<size_t>(elements * dtype_bytes(dtype))),
        base_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (base_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Reservation() { munmap(base_, bytes_); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  char* at(int64_t element) { return static_cast<char*>(base_) + element * dtype_bytes(dtype_); }
  std::vector<char> copy(int64_t from, int64_t count) { return {at(from), at(from + count)}; }

 private:
  Dtype dtype_;
  size_t bytes_;
  void* base_;
};

constexpr AdamwFormat kFormat{.master = MasterMode::kSplit,
                              .grad = Dtype::kBF16,
                              .exp_avg = Dtype::kBF16,
                              .exp_avg_sq = Dtype::kUE6M10,
                              .exp_avg_rounding = Rounding::kStochastic,
                              .exp_avg_sq_rounding = Rounding::kStochastic};

// A step over elements [from, from + n) of a parameter, stored from `offset` on in arenas of
// `elements`; gives all stored bytes.
std::vector<char> step_at(int64_t elements, int64_t offset, int64_t from, int64_t n) {
  Reservation weight(Dtype::kBF16, elements), master(Dtype::kI16, elements),
      grad(Dtype::kBF16, elements), exp_avg(Dtype::kBF16, elements),
      exp_avg_sq(Dtype::kUE6M10, elements);
  ThreadPool pool(2);
  init_normal(weight.at(offset), Dtype::kBF16, n, 1,
              {.stream = {.seed = 1, .purpose = NoisePurpose::kInit}, .first = from}, pool);
  init_normal(grad.at(offset), Dtype::kBF16, n, 1,
              {.stream = {.seed = 2, .purpose = NoisePurpose::kInit}, .first = from}, pool);
  const AdamwScalars scalars = adamw_scalars({}, 3, 1);
  const AdamwSlice slice{.weight = weight.at(offset),
                         .master = master.at(offset),
                         .grad = grad.at(offset),
                         .exp_avg = exp_avg.at(offset),
                         .exp_avg_sq = exp_avg_sq.at(offset),
                         .rows = 1,
                         .cols = n,
                         .global_col0 = from,
                         .global_cols = from + n,
                         .name_hash = 17,
                         .t = 3,
                         .scalars = &scalars};
  adamw_step(kFormat, {&slice, 1}, 7, pool);
  std::vector<char> stored;
  for (Reservation* r : {&weight, &master, &exp_avg, &exp_avg_sq}) {
    const std::vector<char> bytes = r->copy(offset, n);
    stored.insert(stored.end(), bytes.begin(), bytes.end());
    // Nothing beside the slice was written.
    for (char byte : r->copy(offset - 64, 64)) EXPECT_EQ(byte, 0);
    for (char byte : r->copy(offset + n, 64)) EXPECT_EQ(byte, 0);
  }
  return stored;
}

// The same elements, once at the start of a small arena and once across the boundary of a large
// one.
TEST(LargeArena, StepAcross2To31And2To32) {
  constexpr int64_t kN = 100'003;
  for (int64_t boundary : {int64_t{1} << 31, int64_t{1} << 32}) {
    const int64_t from = boundary - kN / 2;
    const auto large = step_at(boundary + (1 << 20), from, from, kN);
    const auto small = step_at(kN + 128, 64, from, kN);
    EXPECT_EQ(large, small) << boundary;
    EXPECT_TRUE(std::any_of(large.begin(), large.end(), [](char c) { return c != 0; }));
  }
}

// A 2-D slice whose row number times columns passes 2^32 inside the parameter.
TEST(LargeArena, RowsBeyond2To32Elements) {
  constexpr int64_t kCols = 40'000, kRow = 107'373;  // rows 107 373 and on straddle 2^32
  const int64_t from = kRow * kCols;
  ASSERT_LT(from, int64_t{1} << 32);
  ASSERT_GT(from + 2 * kCols, int64_t{1} << 32);
  Lab rows(kFormat, 2 * kCols, 1.0f), flat(kFormat, 2 * kCols, 1.0f);
  const std::vector<uint16_t> grad(2 * kCols, bf16_nearest(0.3f));
  ThreadPool pool(1);
  AdamwSlice slice = rows.next_slice(nullptr, {});
  slice.grad = grad.data();
  slice.rows = 2;
  slice.cols = slice.global_cols = kCols;
  slice.global_row0 = kRow;
  adamw_step(kFormat, {&slice, 1}, 7, pool);
  slice = flat.next_slice(nullptr, {});
  slice.grad = grad.data();
  slice.global_col0 = from;
  slice.global_cols = from + 2 * kCols;
  adamw_step(kFormat, {&slice, 1}, 7, pool);
  EXPECT_EQ(rows.exp_avg_sq().bytes(), flat.exp_avg_sq().bytes());
  EXPECT_EQ(rows.exp_avg().bytes(), flat.exp_avg().bytes());
}

// Across 2^35 elements (2^32 blocks) every element still takes the noise of its own address.
TEST(LargeArena, NoiseAcross2To35) {
  constexpr int64_t kN = 4099;
  const int64_t from = (int64_t{1} << 35) - 2050;
  const NoiseRun noise{.stream = {.seed = 3, .name_hash = 5, .step = 1}, .first = from};
  const std::vector<float> x(kN, 1.0f + 0x1p-8f);
  std::vector<uint16_t> codes(kN);
  convert(codes.data(), Dtype::kBF16, x.data(), Dtype::kF32, kN, Rounding::kStochastic, noise);
  for (int64_t i = 0; i < kN; ++i) {
    const auto at = static_cast<size_t>(i);
    ASSERT_EQ(codes[at], bf16_stochastic(x[at], noise.stream.bits16(from + i))) << i;
  }
}

// Reading is possible over the whole length: pages never written are all the same page of zeros.
TEST(LargeArena, SumOfSquaresBeyond2To31) {
  const int64_t n = (int64_t{1} << 31) + 4096 + 5;
  Reservation x(Dtype::kBF16, n);
  const uint16_t three = bf16_nearest(3.0f), four = bf16_nearest(4.0f);
  std::memcpy(x.at(0), &three, 2);
  std::memcpy(x.at(n - 1), &four, 2);
  EXPECT_EQ(sum_squares(x.at(0), Dtype::kBF16, n), 25.0);
}

}  // namespace
}  // namespace halfstep::kernels
