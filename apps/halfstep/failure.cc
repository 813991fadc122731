#include "failure.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string_view>

namespace halfstep::apps {
namespace {

Failure out_of_memory(std::string what) {
  return {ExitCode::kOutOfMemory, std::move(what),
          "see docs/memory.md for what to switch on, or lower --micro-batch-size"};
}

// torch and oneDNN have several ways to say that there is not enough memory, the last two of these
// for a size that no 64-bit number of bytes can hold.
bool is_about_memory(std::string_view text) {
  for (const std::string_view phrase :
       {"allocate memory", "out of memory", "not enough memory", "could not create a memory",
        "Storage size calculation overflowed", "numel: integer multiplication overflow"}) {
    if (text.find(phrase) != std::string_view::npos) return true;
  }
  return false;
}

// A failure inside a library, whose text goes on for pages. What a user gives has been checked
// before it gets there, so it is memory or our fault.
Failure library_failed(std::string_view library, std::string_view text) {
  std::string line(text.substr(0, text.find('\n')));
  if (is_about_memory(text)) return out_of_memory(std::move(line));
  return {ExitCode::kInternal, std::string(library) + line,
          "this is a fault in halfstep; please report it with what HALFSTEP_BACKTRACE=1 prints"};
}

// Of errors that say all that is known about their cause.
std::string general_hint(ExitCode code) {
  switch (code) {
    case ExitCode::kUsage:
      return "all flags and what they take: halfstep COMMAND --help";
    case ExitCode::kBadInput:
      return "is it the right file, and complete? See what is in it with halfstep inspect";
    default:
      return {};
  }
}

}  // namespace

Failure describe_failure(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return {e.code(), e.what(), e.hint().empty() ? general_hint(e.code()) : e.hint()};
  } catch (const c10::OutOfMemoryError& e) {
    return out_of_memory(e.what_without_backtrace());
  } catch (const c10::Error& e) {
    return library_failed("torch: ", e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return out_of_memory("out of memory");
  } catch (const std::length_error&) {  // more elements than any vector can have
    return out_of_memory("out of memory");
  } catch (const std::filesystem::filesystem_error& e) {
    return {ExitCode::kBadInput, e.what(), "check the path and its rights"};
  } catch (const std::exception& e) {
    return library_failed("", e.what());
  }
}

}  // namespace halfstep::apps
