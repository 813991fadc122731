// One parameter updated whole, as 3 and as 7 slices, by rows, by columns and both, over several
// steps, with stochastic rounding on: the same bits, for any number of threads (docs/numerics.md
// §9.7).
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "lab.h"

namespace halfstep::kernels {
namespace {

constexpr int64_t kRows = 97, kCols = 1021;  // no multiple of a noise block of 8
constexpr size_t kN = static_cast<size_t>(kRows * kCols);
constexpr int kSteps = 5;

// A rectangle of the parameter with storage of its own.
struct Piece {
  int64_t row0, rows, col0, cols;
  Array weight, master, grad, exp_avg, exp_avg_sq, max_exp_avg_sq;

  Piece(const AdamwFormat& f, int64_t first_row, int64_t last_row, int64_t first_col,
        int64_t last_col)
      : row0(first_row),
        rows(last_row - first_row),
        col0(first_col),
        cols(last_col - first_col),
        weight(f.weight, size()),
        master(f.master == MasterMode::kSplit ? Dtype::kI16 : Dtype::kF32, size()),
        grad(f.grad, size()),
        exp_avg(f.exp_avg, size()),
        exp_avg_sq(f.exp_avg_sq, size()),
        max_exp_avg_sq(f.exp_avg_sq, size()) {}
  size_t size() const { return static_cast<size_t>(rows * cols); }
};

struct Tensors {
  std::vector<std::byte> bytes[5];
  friend bool operator==(const Tensors&, const Tensors&) = default;
};

// Copies a piece's rows to where they stand in the whole parameter.
void gather(std::vector<std::byte>& whole, const Array& piece, const Piece& place) {
  const size_t width = static_cast<size_t>(dtype_bytes(piece.dtype()));
  whole.resize(kN * width);
  for (int64_t row = 0; row < place.rows; ++row) {
    std::memcpy(whole.data() + static_cast<size_t>((place.row0 + row) * kCols + place.col0) * width,
                piece.bytes().data() + static_cast<size_t>(row * place.cols) * width,
                static_cast<size_t>(place.cols) * width);
  }
}

// Runs the steps on the parameter cut at the given rows and columns.
Tensors run(const AdamwFormat& format, const std::vector<int64_t>& row_cuts,
            const std::vector<int64_t>& col_cuts, int threads) {
  ThreadPool pool(threads);
  std::vector<Piece> pieces;
  for (size_t r = 0; r + 1 < row_cuts.size(); ++r) {
    for (size_t c = 0; c + 1 < col_cuts.size(); ++c) {
      pieces.emplace_back(format, row_cuts[r], row_cuts[r + 1], col_cuts[c], col_cuts[c + 1]);
    }
  }
  const auto for_each = [&](auto&& body) {
    for (Piece& p : pieces) {
      for (size_t i = 0; i < p.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) / p.cols,
                      col = static_cast<int64_t>(i) % p.cols;
        body(p, i, static_cast<size_t>((p.row0 + row) * kCols + p.col0 + col));
      }
    }
  };
  std::mt19937 gen(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(kN);
  for (float& x : values) x = normal(gen);
  for_each([&](Piece& p, size_t i, size_t global) {
    p.weight.set(i, values[global]);
    if (format.master == MasterMode::kFp32) p.master.set(i, values[global]);
  });
  for (int64_t t = 1; t <= kSteps; ++t) {
    for (float& x : values) x = normal(gen);
    for_each([&](Piece& p, size_t i, size_t global) { p.grad.set(i, values[global]); });
    const AdamwScalars scalars = adamw_scalars({.beta2 = 0.999}, t, 1);
    std::vector<AdamwSlice> slices;
    for (Piece& p : pieces) {
      slices.push_back({.weight = p.weight.data(),
                        .master = p.master.data(),
                        .grad = p.grad.data(),
                        .exp_avg = p.exp_avg.data(),
                        .exp_avg_sq = p.exp_avg_sq.data(),
                        .max_exp_avg_sq = p.max_exp_avg_sq.data(),
                        .rows = p.rows,
                        .cols = p.cols,
                        .global_row0 = p.row0,
                        .global_col0 = p.col0,
                        .global_cols = kCols,
                        .name_hash = fnv1a("w"),
                        .t = t,
                        .scalars = &scalars});
    }
    adamw_step(format, slices, 99, pool);
  }
  Tensors result;
  for (const Piece& p : pieces) {
    const Array* arrays[] = {&p.weight, &p.master, &p.exp_avg, &p.exp_avg_sq, &p.max_exp_avg_sq};
    for (size_t i = 0; i < 5; ++i) gather(result.bytes[i], *arrays[i], p);
  }
  return result;
}

TEST(Cuts, GiveTheSameBits) {
  const std::vector<int64_t> whole_rows = {0, kRows}, whole_cols = {0, kCols};
  const std::vector<int64_t> three_rows = {0, 31, 64, kRows}, three_cols = {0, 333, 700, kCols};
  const std::vector<int64_t> seven_rows = {0, 1, 15, 16, 47, 80, 96, kRows};
  const std::vector<int64_t> seven_cols = {0, 1, 9, 16, 511, 1000, 1013, kCols};
  for (MasterMode master : {MasterMode::kFp32, MasterMode::kSplit, MasterMode::kNone}) {
    for (Dtype exp_avg_sq : {Dtype::kBF16, Dtype::kUE6M10}) {
      const AdamwFormat format{.master = master,
                               .grad = Dtype::kBF16,
                               .exp_avg = Dtype::kBF16,
                               .exp_avg_sq = exp_avg_sq,
                               .exp_avg_rounding = Rounding::kStochastic,
                               .exp_avg_sq_rounding = Rounding::kStochastic,
                               .amsgrad = master == MasterMode::kNone};
      const Tensors whole = run(format, whole_rows, whole_cols, 1);
      EXPECT_EQ(run(format, whole_rows, whole_cols, 3), whole);
      EXPECT_EQ(run(format, three_rows, whole_cols, 2), whole);
      EXPECT_EQ(run(format, seven_rows, whole_cols, 2), whole);
      EXPECT_EQ(run(format, whole_rows, three_cols, 2), whole);
      EXPECT_EQ(run(format, whole_rows, seven_cols, 2), whole);
      EXPECT_EQ(run(format, seven_rows, three_cols, 3), whole);
    }
  }
}

}  // namespace
}  // namespace halfstep::kernels
