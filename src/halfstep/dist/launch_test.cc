#include "halfstep/dist/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "halfstep/core/error.h"

namespace halfstep::dist {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Variables = std::map<std::string, std::string>;

Launch read(const Variables& variables) {
  return read_launch([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

void expect_ranks(const Launch& launch, int rank, int world_size, int local_rank,
                  int local_world_size) {
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.world_size, world_size);
  EXPECT_EQ(launch.local_rank, local_rank);
  EXPECT_EQ(launch.local_world_size, local_world_size);
}

void expect_store(const Launch& launch, const std::string& address, int port) {
  EXPECT_EQ(launch.address, address);
  EXPECT_EQ(launch.port, port);
}

Variables torchrun() {
  return {{"RANK", "5"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"MASTER_ADDR", "node0"},
          {"MASTER_PORT", "1234"},
          {"TORCHELASTIC_RUN_ID", "none"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RESTART_COUNT", "2"}};
}

// `variables` with one set to another value, or removed.
Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(Launch, WithoutALauncherThereIsOneRank) {
  expect_ranks(read({}), 0, 1, 0, 1);
  expect_ranks(read({{"MASTER_ADDR", "node0"}, {"LOCAL_RANK", "3"}}), 0, 1, 0, 1);
}

TEST(Launch, Torchrun) {
  const Launch launch = read(torchrun());
  expect_ranks(launch, 5, 8, 1, 4);
  expect_store(launch, "node0", 1234);
  EXPECT_TRUE(launch.launcher_serves_store);
  EXPECT_EQ(launch.attempt, "2");
}

TEST(Launch, AnyLauncherWithFourVariables) {
  const Variables four{
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}};
  const Launch launch = read(four);
  expect_ranks(launch, 1, 2, 0, 1);
  expect_store(launch, "10.0.0.1", 1234);
  EXPECT_FALSE(launch.launcher_serves_store);
  EXPECT_EQ(launch.attempt, "0");
  // On the loopback all ranks are here.
  expect_ranks(read(with(four, "MASTER_ADDR", "127.0.0.1")), 1, 2, 1, 2);
  expect_ranks(read(with(four, "MASTER_ADDR", "localhost")), 1, 2, 1, 2);
}

TEST(Launch, TheInterfaceThatGlooIsToldToUse) {
  EXPECT_EQ(read(torchrun()).interface, "");
  EXPECT_EQ(read(with(torchrun(), "GLOO_SOCKET_IFNAME", "eth1")).interface, "eth1");
}

TEST(Launch, OneRankNeedsNoAddress) {
  expect_ranks(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), 0, 1, 0, 1);
}

TEST(Launch, HalfSetOrContradictoryVariablesAreNamed) {
  const auto expect_error = [](const Variables& variables, const std::string& text) {
    EXPECT_THAT([&] { read(variables); }, ThrowsMessage<UsageError>(HasSubstr(text)));
  };
  expect_error({{"RANK", "0"}}, "RANK is set but WORLD_SIZE is not");
  expect_error({{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set but RANK is not");
  expect_error(without(torchrun(), "MASTER_ADDR"), "rank 5 of 8: MASTER_ADDR is not set");
  expect_error(with(torchrun(), "RANK", "8"), "RANK is '8', expected an integer from 0 to 7");
  expect_error(with(torchrun(), "RANK", "-1"), "RANK is '-1'");
  expect_error(with(torchrun(), "RANK", "1x"), "RANK is '1x'");
  expect_error(with(torchrun(), "WORLD_SIZE", "0"), "WORLD_SIZE is '0'");
  expect_error(with(torchrun(), "WORLD_SIZE", "99999999999999999999"), "WORLD_SIZE is '999");
  expect_error(with(torchrun(), "LOCAL_RANK", "4"),
               "LOCAL_RANK is '4', expected an integer from 0 to 3");
  expect_error(with(torchrun(), "LOCAL_WORLD_SIZE", "9"), "LOCAL_WORLD_SIZE is '9'");
  expect_error(with(torchrun(), "RANK", "0"), "LOCAL_RANK=1 is greater than RANK=0");
  expect_error(with(torchrun(), "MASTER_PORT", "70000"), "MASTER_PORT is '70000'");
  expect_error(
      {{"RANK", "0"},
       {"WORLD_SIZE", "4"},
       {"OMPI_COMM_WORLD_RANK", "3"},
       {"OMPI_COMM_WORLD_SIZE", "4"}},
      "RANK=0 WORLD_SIZE=4 but Open MPI says OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4");
}

TEST(Launch, TorchrunUnderAnotherLauncherIsTorchruns) {
  Variables variables = torchrun();
  variables.insert({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}});
  expect_ranks(read(variables), 5, 8, 1, 4);
}

TEST(Launch, OpenMpi) {
  const Variables mpirun{{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_THAT([&] { read(mpirun); },
              ThrowsMessage<UsageError>(HasSubstr("MASTER_ADDR is not set")));
  const Launch launch = read(with(mpirun, "MASTER_ADDR", "node0"));
  expect_ranks(launch, 3, 4, 1, 2);
  expect_store(launch, "node0", 29500);
  const Launch one_machine = read(
      with(with(mpirun, "OMPI_COMM_WORLD_LOCAL_SIZE", "4"), "OMPI_COMM_WORLD_LOCAL_RANK", "3"));
  expect_ranks(one_machine, 3, 4, 3, 4);
  expect_store(one_machine, "127.0.0.1", 29500);
}

TEST(Launch, MpichInsideASlurmStep) {
  const Launch launch = read({{"PMI_RANK", "1"},
                              {"PMI_SIZE", "2"},
                              {"MPI_LOCALRANKID", "1"},
                              {"MPI_LOCALNRANKS", "2"},
                              {"SLURM_PROCID", "0"},  // of the step that runs mpirun's daemon
                              {"SLURM_NTASKS", "1"},
                              {"SLURM_STEP_ID", "0"}});
  expect_ranks(launch, 1, 2, 1, 2);
  expect_store(launch, "127.0.0.1", 29500);
}

Variables srun() {
  return {{"SLURM_PROCID", "5"},
          {"SLURM_NTASKS", "8"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NNODES", "2"},
          {"SLURM_JOB_ID", "77"},
          {"SLURM_STEP_ID", "3"},
          {"SLURM_LAUNCH_NODE_IPADDR", "10.1.2.3"}};
}

TEST(Launch, Slurm) {
  const Launch launch = read(srun());
  expect_ranks(launch, 5, 8, 1, 2);
  expect_store(launch, "10.1.2.3", 20000 + 77 * 16 + 3);
  expect_store(read(with(with(srun(), "MASTER_ADDR", "node7"), "MASTER_PORT", "99")), "node7", 99);
  EXPECT_THAT([&] { read(without(srun(), "SLURM_LAUNCH_NODE_IPADDR")); },
              ThrowsMessage<UsageError>(HasSubstr("MASTER_ADDR is not set")));
}

TEST(Launch, SlurmOnOneNode) {
  const Launch launch = read(with(srun(), "SLURM_NNODES", "1"));
  EXPECT_EQ(launch.address, "127.0.0.1");
  EXPECT_EQ(launch.local_world_size, 8);
  // A step of one node in a larger job.
  EXPECT_EQ(read(with(srun(), "SLURM_STEP_NUM_NODES", "1")).address, "127.0.0.1");
}

TEST(Launch, ABatchScriptWithoutSrunIsOneProcess) {
  expect_ranks(read(without(srun(), "SLURM_STEP_ID")), 0, 1, 0, 1);
  expect_ranks(read(with(srun(), "SLURM_STEP_ID", "4294967291")), 0, 1, 0, 1);
}

}  // namespace
}  // namespace halfstep::dist
