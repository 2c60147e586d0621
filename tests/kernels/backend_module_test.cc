// Files that are, or are not, the module of a backend. The modules of other builds are compiled by
// CMakeLists.txt.

#include "kernels/backend_module.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/backend_registry.h"

namespace quire::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::filesystem::path kModules = TEST_MODULES;

class BackendModuleTest : public ::testing::Test {
 protected:
  BackendModuleTest() { std::filesystem::create_directories(folder_); }
  ~BackendModuleTest() override { std::filesystem::remove_all(folder_); }

  absl::Status Open(const std::string& backend) const {
    return OpenBackendModule(backend, {folder_}).status();
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / "quire_backend_module_test";
};

TEST_F(BackendModuleTest, AMissingFileIsNamedWithTheFoldersAndTheCure) {
  const absl::Status status = OpenBackendModule("cuda", {folder_, "/elsewhere"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("backend cuda: want libquire-cuda.so"),
                    HasSubstr(folder_.string() + " or /elsewhere, got no such file; install"),
                    HasSubstr("--backend cpu")));
}

TEST_F(BackendModuleTest, AFileThatIsNoLibraryIsRefused) {
  std::ofstream(folder_ / "libquire-cuda.so") << "no library";
  const absl::Status status = Open("cuda");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("want a module that can be opened, got: "),
                    HasSubstr((folder_ / "libquire-cuda.so").string())));
}

TEST_F(BackendModuleTest, ALibraryWithoutTheFunctionIsRefused) {
  std::filesystem::copy(kModules / "libquire-no_module.so", folder_ / "libquire-cuda.so");
  const absl::Status status = Open("cuda");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("want a backend module, got another library: "));
}

// The module differs from a good one in one character of its build id.
TEST_F(BackendModuleTest, AModuleOfAnotherBuildIsRefusedBeforeItIsCalled) {
  const absl::Status status = OpenBackendModule("other_build", {kModules}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(std::string("want the module of build ") + BuildId()),
                    HasSubstr(std::string("got ") + BuildId() + "x; install program and module")));
}

TEST_F(BackendModuleTest, TheFirstFolderWins) {
  const auto module = OpenBackendModule("this_build", {kModules, folder_});
  ASSERT_TRUE(module.ok()) << module.status();
  static std::string line;
  const auto called =
      (*module)->create({.num_threads = 7}, [](std::string_view message) { line = message; });
  EXPECT_EQ(called.status().message(), "called with 7 threads");
  EXPECT_EQ(line, "a line of the module");
  std::filesystem::copy(kModules / "libquire-no_module.so", folder_ / "libquire-this_build.so");
  EXPECT_TRUE(OpenBackendModule("this_build", {kModules, folder_}).ok());
  EXPECT_FALSE(OpenBackendModule("this_build", {folder_, kModules}).ok());
}

TEST(BackendNameTest, TheNumberOfAGpuHasBounds) {
  const auto message = [](const char* name) {
    return std::string(CreateBackend({.name = name}).status().message());
  };
  for (const char* const name : {"cuda:", "cuda:-1", "cuda:64", "cuda:+1", "cuda: 1", "cuda:1x",
                                 "cuda:000", "cuda:0:0", "cuda-emulated:64"}) {
    EXPECT_THAT(message(name), HasSubstr("want a GPU in 0..63 after the colon, got \"")) << name;
  }
  for (const char* const name : {"cuda:0", "cuda:63"}) {
    EXPECT_THAT(message(name), Not(HasSubstr("after the colon"))) << name;
  }
  for (const char* const name : {"cpu:0", "auto:0", "", ":1", "CUDA", "cuda-emulatedx"}) {
    EXPECT_THAT(message(name), StartsWith("backend: want auto, cpu, cuda or cuda:n, got ")) << name;
  }
}

TEST(CudaExperimentsTest, AreReadByNames) {
  EXPECT_EQ(*ReadCudaExperiments(""), CudaExperiments{});
  EXPECT_EQ(*ReadCudaExperiments("wgmma_attention"), CudaExperiments{.wgmma_attention = true});
  EXPECT_EQ(*ReadCudaExperiments("wgmma_experts,shared_prefix"),
            (CudaExperiments{.wgmma_experts = true, .shared_prefix = true}));
  EXPECT_EQ(*ReadCudaExperiments("alibi_skip,fp8_products,alibi_skip"),
            (CudaExperiments{.fp8_products = true, .alibi_skip = true}));
  for (const char* list : {"fa3", "wgmma", ",", "shared_prefix,", " shared_prefix"}) {
    const absl::Status status = ReadCudaExperiments(list).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << list;
  }
  EXPECT_EQ(ReadCudaExperiments("shared_prefix,fa3").status().message(),
            "cuda_experiments: want names of wgmma_attention, wgmma_experts, shared_prefix, "
            "fp8_products and alibi_skip with commas between them, got \"fa3\"");
}

// The folder of a test has no module beside it, so a test of this build has it from ../lib/quire.
TEST(BackendNameTest, AutoIsTheCpuWithoutAModule) {
  if (OpenBackendModule("cuda", ModuleFolders()).ok()) GTEST_SKIP() << "this build has a module";
  const auto backend = CreateBackend({.name = "auto", .num_threads = 1});
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->info().name, "cpu");
}

}  // namespace
}  // namespace quire::kernels
