#include "halfstep/comm/together.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>

namespace halfstep::comm {
namespace {

// As much of a message as others are told.
struct Failure {
  int32_t code = 0;
  std::array<char, 1020> what{};
};

Failure describe(const std::exception_ptr& error) {
  Failure failure{.code = static_cast<int32_t>(ExitCode::kInternal)};
  std::string text;
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    failure.code = static_cast<int32_t>(e.code());
    text = e.what();
  } catch (const std::exception& e) {
    text = e.what();
  }
  text.copy(failure.what.data(), failure.what.size() - 1);
  return failure;
}

}  // namespace

void together(Communicator& ranks, const std::function<void()>& body) {
  std::exception_ptr error;
  try {
    body();
  } catch (const CommError&) {
    throw;
  } catch (...) {
    error = std::current_exception();
  }
  const std::vector<double> failed = gather(ranks, std::array{error ? 1.0 : 0.0});
  const auto first = std::ranges::find(failed, 1.0);
  if (first == failed.end()) return;
  const int culprit = static_cast<int>(first - failed.begin());
  Failure failure;
  if (culprit == ranks.rank()) failure = describe(error);
  ranks.broadcast(std::as_writable_bytes(std::span(&failure, 1)), culprit).wait();
  if (error) std::rethrow_exception(error);
  throw Error(static_cast<ExitCode>(failure.code),
              "rank " + std::to_string(culprit) + ": " + failure.what.data());
}

std::vector<std::string> gather_texts(Communicator& ranks, std::string_view text) {
  const std::vector<double> sizes = gather(ranks, std::array{static_cast<double>(text.size())});
  if (ranks.rank() != 0) {
    if (!text.empty()) ranks.send(std::as_bytes(std::span(text)), 0).wait();
    return {};
  }
  std::vector<std::string> texts{std::string(text)};
  for (int r = 1; r < ranks.size(); ++r) {
    texts.emplace_back(static_cast<size_t>(sizes[r]), '\0');
    if (texts.back().empty()) continue;
    ranks.receive(std::as_writable_bytes(std::span(texts.back())), r).wait();
  }
  return texts;
}

std::vector<double> gather(Communicator& ranks, std::span<const double> own) {
  // Each rank's numbers stand in a place of their own, where the others add 0.
  std::vector<double> all(own.size() * ranks.size(), 0.0);
  std::ranges::copy(own, all.begin() + std::ssize(own) * ranks.rank());
  ranks.all_reduce_sum(all);
  return all;
}

}  // namespace halfstep::comm
