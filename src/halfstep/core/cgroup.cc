#include "halfstep/core/cgroup.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

namespace halfstep {
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

// The quota of one cgroup in CPUs; version 2 says "max 100000", version 1 "-1", where there is
// none.
double quota_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period && quota > 0 && period > 0 ? quota / period : kNoQuota;
}
double quota_v1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"),
      period_file(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? quota / period
                                                                                 : kNoQuota;
}

// The least quota from `path` up to the root, which is the empty path.
double least_quota(const std::string& mount, std::string path,
                   double (*quota)(const std::string&)) {
  double least = quota(mount);
  while (!path.empty() && path != "/") {
    least = std::min(least, quota(mount + path));
    const size_t slash = path.rfind('/');
    path.erase(slash == std::string::npos ? 0 : slash);
  }
  return least;
}

}  // namespace

int cgroup_cpus(const std::string& membership, const std::string& mount) {
  double least = kNoQuota;
  std::ifstream file(membership);
  // id:controllers:path; version 2 has no controllers here.
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min(least, least_quota(mount, path, quota_v2));
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      least = std::min(least, least_quota(mount + "/cpu", path, quota_v1));
    }
  }
  return least < 1e6 ? static_cast<int>(std::ceil(least)) : 0;
}

}  // namespace halfstep
