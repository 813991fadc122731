#include "halfstep/data/pipe_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "halfstep/core/error.h"

namespace halfstep::data {
namespace {

constexpr std::string_view kMagic = "hstk";
constexpr size_t kHeaderBytes = 13;
constexpr uint32_t kVersion = 3;
constexpr uint8_t kEncode = 1, kDecode = 2, kChat = 3, kPrompt = 4;
enum Answer : uint8_t { kOk = 0, kBadRequest = 1, kMissingPackage = 2 };
// Loading a big tokenizer.json on a busy machine takes seconds; this only has to be finite.
constexpr Subprocess::Duration kPatience{300'000};
constexpr uint64_t kBytesPerMillisecond = 100;
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
// No honest answer is longer: an id of four bytes stands for a text of some hundred at most.
constexpr uint64_t kAnswerBytes = uint64_t{64} << 20, kAnswerBytesPerRequestByte = 256;

// The one that was named, that of the checkout in which the program was built, or any.
std::string default_python() {
  const char* named = std::getenv("HALFSTEP_PYTHON");
  if (named && *named) return named;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = program.parent_path().parent_path() / ".venv/bin/python";
  return std::filesystem::exists(beside, error) ? beside.string() : "python3";
}

std::vector<std::string> default_argv(const std::string& folder) {
  return {default_python(), "-m", "halfstep.tokenize", folder};
}

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Takes a T off the front of `in`; false if it is too short.
template <typename T>
bool take(std::string_view& in, T* value) {
  if (in.size() < sizeof *value) return false;
  std::memcpy(value, in.data(), sizeof *value);
  in.remove_prefix(sizeof *value);
  return true;
}

std::string request_of(std::span<const std::string_view> texts) {
  std::string request;
  append(request, static_cast<uint64_t>(texts.size()));
  for (const std::string_view text : texts) {
    append(request, static_cast<uint64_t>(text.size()));
    request += text;
  }
  return request;
}

}  // namespace

template <typename Talk>
auto PipeTokenizer::guarded(Talk&& talk) {
  try {
    return talk();
  } catch (const SubprocessError& error) {
    throw InputError(
        fmt::format("tokenizer '{}': {}", folder_, error.what()),
        "HALFSTEP_PYTHON must be a Python that has the packages halfstep and tokenizers");
  }
}

PipeTokenizer::PipeTokenizer(const std::string& folder)
    : PipeTokenizer(folder, default_argv(folder), kPatience) {}

PipeTokenizer::PipeTokenizer(const std::string& folder, std::vector<std::string> argv,
                             Subprocess::Duration patience)
    : folder_(folder), patience_(patience) {
  guarded([&] {
    child_ = std::make_unique<Subprocess>(std::move(argv));
    hello();
  });
}

void PipeTokenizer::garbage(const std::string& what) {
  child_->fail(fmt::format("the tokenizer process sent {}", what));
}

void PipeTokenizer::hello() {
  const std::string payload = receive_answer(0);
  std::string_view in = payload;
  uint32_t version = 0;
  if (!take(in, &version) || !take(in, &vocab_size_) || !take(in, &eod_) || version != kVersion ||
      vocab_size_ < 1 || eod_ < -1 || eod_ >= vocab_size_) {
    garbage(fmt::format("a greeting that is not of protocol version {}", kVersion));
  }
  prefix_ = take_ids(in);
  if (!in.empty()) garbage("more than a greeting");
}

std::vector<int32_t> PipeTokenizer::take_ids(std::string_view& in) {
  uint64_t count = 0;
  if (!take(in, &count) || count > in.size() / sizeof(int32_t)) garbage("a truncated answer");
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) {
    take(in, &id);
    if (id < 0 || id >= vocab_size_) {
      garbage(fmt::format("the id {}, which is not in its vocabulary", id));
    }
  }
  return ids;
}

std::string PipeTokenizer::receive_answer(size_t request_bytes) {
  const Subprocess::Duration limit =
      patience_ + Subprocess::Duration(static_cast<int64_t>(request_bytes / kBytesPerMillisecond));
  char header[kHeaderBytes];
  child_->receive(std::as_writable_bytes(std::span(header)), limit);
  if (std::string_view(header, kMagic.size()) != kMagic) garbage("something that is no answer");
  const auto code = static_cast<uint8_t>(header[4]);
  uint64_t bytes = 0;
  std::memcpy(&bytes, header + 5, sizeof bytes);
  if (bytes > kAnswerBytes + kAnswerBytesPerRequestByte * request_bytes) {
    garbage(fmt::format("an answer of {} bytes to a request of {}", bytes, request_bytes));
  }

  // In pieces, so that a length that is a lie ends in "did not answer" and not in an allocation.
  std::string payload;
  while (payload.size() < bytes) {
    const size_t have = payload.size();
    payload.resize(have + std::min(kPieceBytes, bytes - have));
    child_->receive(std::as_writable_bytes(std::span(payload).subspan(have)), limit);
  }
  switch (code) {
    case kOk:
      return payload;
    case kBadRequest:
      throw InputError(fmt::format("tokenizer '{}': {}", folder_, payload));
    case kMissingPackage:
      throw InputError(fmt::format("tokenizer '{}': {}", folder_, payload),
                       "pip install tokenizers jinja2");
    default:
      garbage(fmt::format("the unknown answer {}", code));
  }
}

std::string PipeTokenizer::ask(uint8_t code, const std::string& payload) {
  std::string header(kMagic);
  append(header, code);
  append(header, static_cast<uint64_t>(payload.size()));
  const Subprocess::Duration limit =
      patience_ + Subprocess::Duration(static_cast<int64_t>(payload.size() / kBytesPerMillisecond));
  child_->send(std::as_bytes(std::span(header)), limit);
  child_->send(std::as_bytes(std::span(payload)), limit);
  return receive_answer(payload.size());
}

std::vector<std::vector<int32_t>> PipeTokenizer::encode_batch(
    std::span<const std::string_view> texts) {
  return guarded([&] {
    const std::string answer = ask(kEncode, request_of(texts));
    std::string_view in = answer;
    std::vector<std::vector<int32_t>> all(texts.size());
    for (auto& ids : all) ids = take_ids(in);
    if (!in.empty()) garbage("more than was asked for");
    return all;
  });
}

std::vector<Example> PipeTokenizer::encode_chats(std::span<const std::string_view> conversations) {
  return guarded([&] {
    const std::string answer = ask(kChat, request_of(conversations));
    std::string_view in = answer;
    std::vector<Example> all(conversations.size());
    for (Example& example : all) {
      example.tokens = take_ids(in);
      example.learned.resize(example.tokens.size());
      for (uint8_t& learned : example.learned) {
        if (!take(in, &learned) || learned > 1) garbage("an answer without what is learned");
      }
    }
    if (!in.empty()) garbage("more than was asked for");
    return all;
  });
}

ChatPrompt PipeTokenizer::chat_prompt(std::string_view message) {
  return guarded([&] {
    const std::string answer = ask(kPrompt, request_of({&message, 1}));
    std::string_view in = answer;
    ChatPrompt prompt{.tokens = take_ids(in)};
    if (!take(in, &prompt.end) || prompt.end < -1 || prompt.end >= vocab_size_ || !in.empty()) {
      garbage("no token that ends the answer");
    }
    return prompt;
  });
}

std::vector<std::string> PipeTokenizer::decode_batch(std::span<const std::vector<int32_t>> texts) {
  std::string request;
  append(request, static_cast<uint64_t>(texts.size()));
  for (const std::vector<int32_t>& ids : texts) {
    append(request, static_cast<uint64_t>(ids.size()));
    request.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
  }
  return guarded([&] {
    const std::string answer = ask(kDecode, request);
    std::string_view in = answer;
    std::vector<std::string> all(texts.size());
    for (std::string& text : all) {
      uint64_t bytes = 0;
      if (!take(in, &bytes) || bytes > in.size()) garbage("a truncated answer");
      text = in.substr(0, bytes);
      in.remove_prefix(bytes);
    }
    if (!in.empty()) garbage("more than was asked for");
    return all;
  });
}

}  // namespace halfstep::data
