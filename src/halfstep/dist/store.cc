#include "halfstep/dist/store.h"

#include <c10/util/Logging.h>
#include <fmt/core.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "halfstep/dist/c10d_errors.h"

namespace halfstep::dist {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

class C10dStore final : public Store {
 public:
  C10dStore(StorePtr store, std::string name) : store_(std::move(store)), name_(std::move(name)) {}

  void set(const std::string& key, const std::string& value) override {
    as_comm_error(name_, [&] { store_->set(key, value); });
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return as_comm_error(name_, [&] {
      store_->wait({key}, timeout);
      return store_->get_to_str(key);
    });
  }

  bool exists(const std::string& key) override {
    return as_comm_error(name_, [&] { return store_->check({key}); });
  }

  int64_t add(const std::string& key, int64_t delta) override {
    return as_comm_error(name_, [&] { return store_->add(key, delta); });
  }

  std::string set_if_absent(const std::string& key, const std::string& value) override {
    return as_comm_error(name_, [&] { return store_->compareSet(key, std::string(), value); });
  }

  std::unique_ptr<Store> another() override {
    return as_comm_error(name_,
                         [&] { return std::make_unique<C10dStore>(store_->clone(), name_); });
  }

  c10d::Store& c10d_store() override { return *store_; }

 private:
  const StorePtr store_;
  const std::string name_;
};

// c10d logs what it is about to throw, with a stack trace. The user hears of it from us, in one
// line.
void quiet_c10d() {
  if (std::getenv("HALFSTEP_BACKTRACE") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
}

}  // namespace

std::unique_ptr<Store> connect_store(const StoreAddress& address, const std::string& prefix,
                                     std::chrono::milliseconds timeout) {
  const std::string name = fmt::format("store at {}:{}", address.host, address.port);
  quiet_c10d();
  c10d::TCPStoreOptions options;
  options.port = address.port;
  options.isServer = address.serve;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(address.host, options);
    return std::make_unique<C10dStore>(c10::make_intrusive<c10d::PrefixStore>(prefix, store), name);
  } catch (const std::exception& error) {
    throw comm::CommError(
        fmt::format("{}: {}", name, first_line(error)),
        address.serve ? "is the port free on this machine? Choose another MASTER_PORT"
                      : "does rank 0 run, and is MASTER_ADDR its address as seen from here?");
  }
}

std::unique_ptr<Store> in_process_store() {
  return std::make_unique<C10dStore>(c10::make_intrusive<c10d::HashStore>(), "in-process store");
}

}  // namespace halfstep::dist
