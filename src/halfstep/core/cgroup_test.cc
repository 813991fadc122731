#include "halfstep/core/cgroup.h"

#include <gtest/gtest.h>

#include <string>

#include "halfstep/core/test_folder.h"

namespace halfstep {
namespace {

class Cgroup : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) { folder_.write(path, text); }
  int cpus() { return cgroup_cpus(folder_ / "membership", folder_ / "mount"); }

  TestFolder folder_;
};

TEST_F(Cgroup, NoneGrantsNoNumber) {
  EXPECT_EQ(cpus(), 0);
  write("membership", "0::/user.slice\n");
  EXPECT_EQ(cpus(), 0);
  write("mount/user.slice/cpu.max", "max 100000\n");
  EXPECT_EQ(cpus(), 0);
}

TEST_F(Cgroup, TheLeastQuotaUpToTheRootCountsRoundedUp) {
  write("membership", "0::/a/b\n");
  write("mount/a/b/cpu.max", "800000 100000\n");
  EXPECT_EQ(cpus(), 8);
  write("mount/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(cpus(), 3);
  write("mount/cpu.max", "100000 100000\n");
  EXPECT_EQ(cpus(), 1);
}

TEST_F(Cgroup, APathOutsideTheMountLeavesItsRoot) {
  write("membership", "0::/../other\n");
  write("mount/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpus(), 1);
  write("membership", "nonsense\n0::nonsense\n");
  EXPECT_EQ(cpus(), 1);
}

TEST_F(Cgroup, VersionOneNamesItsController) {
  write("membership", "5:cpuset:/x\n4:cpu,cpuacct:/job\n0::/\n");
  write("mount/cpu/job/cpu.cfs_quota_us", "400000\n");
  write("mount/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpus(), 4);
  write("mount/cpu/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cpus(), 0);
}

}  // namespace
}  // namespace halfstep
