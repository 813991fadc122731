// The key-value store that the ranks of a run share: where they find each other, and where the
// watchdog's heartbeats go. c10d's TCPStore across processes, an in-process one for tests.
//
// A connection serves one thread at a time. A call may block for as long as the server does not
// answer, so nothing that has to end in time calls it directly: see watchdog.h. Every failure is
// CommError.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace c10d {
class Store;
}

namespace halfstep::dist {

class Store {
 public:
  virtual ~Store() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits for the key to be set.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  virtual bool exists(const std::string& key) = 0;
  // Adds to a counter, 0 at first, and returns the sum: add(key, 0) reads it.
  virtual int64_t add(const std::string& key, int64_t delta) = 0;
  // Sets the key unless somebody has: returns what it then holds.
  virtual std::string set_if_absent(const std::string& key, const std::string& value) = 0;
  // A connection of its own to the same keys, for another thread.
  virtual std::unique_ptr<Store> another() = 0;
  // For c10d's process groups.
  virtual c10d::Store& c10d_store() = 0;
};

struct StoreAddress {
  std::string host;
  uint16_t port = 0;
  bool serve = false;  // this process serves the store, as well as using it
};

// Connects, retrying until `timeout`. All keys get `prefix`.
std::unique_ptr<Store> connect_store(const StoreAddress& address, const std::string& prefix,
                                     std::chrono::milliseconds timeout);

// For threads of this process; another() shares the keys.
std::unique_ptr<Store> in_process_store();

}  // namespace halfstep::dist
