#include "transport/nixl_library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "test/nixl_fake.h"
#include "transport/nixl_environment.h"
#include "transport/nixl_search.h"

namespace kvt::nixl {
namespace {

namespace fs = std::filesystem;

// Sets variables for one test and puts them back.
class ScopedEnvironment {
 public:
  void set(const char* name, const char* value) {
    const char* before = std::getenv(name);
    saved_.emplace_back(name, before == nullptr ? std::optional<std::string>{} : std::string(before));
    if (value == nullptr) {
      ::unsetenv(name);
    } else {
      ::setenv(name, value, 1);
    }
  }
  ~ScopedEnvironment() {
    for (auto it = saved_.rbegin(); it != saved_.rend(); ++it) {
      if (it->second.has_value()) {
        ::setenv(it->first.c_str(), it->second->c_str(), 1);
      } else {
        ::unsetenv(it->first.c_str());
      }
    }
  }

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> saved_;
};

class NixlSearch : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "kvt-nixl-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    for (const char* name : {"KV_TRANSCEIVER_NIXL_LIB", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYENV_VERSION"}) {
      environment_.set(name, nullptr);
    }
    environment_.set("HOME", root_.c_str());
    environment_.set("PATH", root_.c_str());
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string touch(const fs::path& relative) {
    const fs::path path = root_ / relative;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "x";
    return path.string();
  }

  std::vector<std::string> found(const NixlOptions& options, CudaMajor major = CudaMajor::k13) {
    std::vector<std::string> paths;
    for (const Candidate& candidate : library_candidates(options, major)) {
      if (candidate.path.starts_with(root_.string())) paths.push_back(candidate.path);
    }
    return paths;
  }

  fs::path root_;
  ScopedEnvironment environment_;
};

constexpr const char* kCu13 = ".nixl_cu13.mesonpy.libs/libnixl_capi.so";
constexpr const char* kCu12 = ".nixl_cu12.mesonpy.libs/libnixl_capi.so";

TEST_F(NixlSearch, OrderIsPackageThenPythonThenLoader) {
  const std::string package = touch(fs::path(".nixl/nixl-cu13-1.5.1") / kCu13);
  const std::string python = touch(fs::path("venv/lib/python3.11/site-packages") / kCu13);
  environment_.set("VIRTUAL_ENV", (root_ / "venv").c_str());
  const NixlOptions options{.agent_name = "a", .library_path = "", .package_tree = (root_ / ".nixl").string()};
  EXPECT_EQ(found(options), (std::vector<std::string>{package, python}));
  EXPECT_EQ(library_candidates(options, CudaMajor::k13).back().origin, "loader path");
}

TEST_F(NixlSearch, TheDriversCudaDecidesBetweenTwoWheels) {
  const std::string cu12 = touch(fs::path("venv/lib/python3.11/site-packages") / kCu12);
  const std::string cu13 = touch(fs::path("venv/lib/python3.11/site-packages") / kCu13);
  environment_.set("VIRTUAL_ENV", (root_ / "venv").c_str());
  EXPECT_EQ(found({}, CudaMajor::k13), (std::vector<std::string>{cu13, cu12}));
  EXPECT_EQ(found({}, CudaMajor::k12), (std::vector<std::string>{cu12, cu13}));
}

TEST_F(NixlSearch, FollowsThePythonOnThePathAndPrefersNewerVersions) {
  touch("prefix/bin/python3");
  const std::string older = touch(fs::path("prefix/lib/python3.9/site-packages") / kCu13);
  const std::string newer = touch(fs::path("prefix/lib/python3.11/site-packages") / kCu13);
  environment_.set("PATH", (root_ / "prefix/bin").c_str());
  EXPECT_EQ(found({}), (std::vector<std::string>{newer, older}));
}

TEST_F(NixlSearch, ResolvesAPyenvShim) {
  touch("pyenv/shims/python3");
  std::ofstream(root_ / "pyenv/version") << "3.11.7\n";
  const std::string library = touch(fs::path("pyenv/versions/3.11.7/lib/python3.11/site-packages") / kCu13);
  environment_.set("PATH", (root_ / "pyenv/shims").c_str());
  EXPECT_EQ(found({}), (std::vector<std::string>{library}));
}

TEST_F(NixlSearch, AnExplicitChoiceIsTheOnlyOne) {
  touch(fs::path(".nixl/nixl-cu13-1.5.1") / kCu13);
  NixlOptions options{
      .agent_name = "a", .library_path = "/opt/x/libnixl_capi.so", .package_tree = (root_ / ".nixl").string()};
  std::vector<Candidate> candidates = library_candidates(options, CudaMajor::k13);
  ASSERT_EQ(candidates.size(), 1u);
  EXPECT_EQ(candidates[0].path, "/opt/x/libnixl_capi.so");
  EXPECT_EQ(candidates[0].origin, "configuration");

  environment_.set("KV_TRANSCEIVER_NIXL_LIB", root_.c_str());
  candidates = library_candidates(options, CudaMajor::k13);
  ASSERT_EQ(candidates.size(), 1u);
  EXPECT_EQ(candidates[0].path, (root_ / "libnixl_capi.so").string());
  EXPECT_EQ(candidates[0].origin, "KV_TRANSCEIVER_NIXL_LIB");
}

TEST_F(NixlSearch, TheCudaRuntimeIsLoadedFromCudaHomeAndSaidSo) {
  fs::create_directories(root_ / "lib64");
  // Any library will do: what counts is where it is looked for.
  fs::copy_file(KVT_NIXL_FAKE_PARTIAL, root_ / "lib64/libcudart.so.13");
  environment_.set("CUDA_HOME", root_.c_str());
  std::vector<std::string> notes;
  const std::string why =
      preload_cuda_runtime(CudaMajor::k13, "/somewhere/.nixl_cu13.mesonpy.libs/libnixl_capi.so", &notes);
  EXPECT_EQ(why, "");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0], "libcudart.so.13 loaded from " + (root_ / "lib64/libcudart.so.13").string());
}

TEST(NixlEnvironment, SetsWhatIsUnsetAndReplacesOnlyWhatWouldBreakNode) {
  ScopedEnvironment environment;
  environment.set("UCX_HANDLE_ERRORS", nullptr);
  environment.set("UCX_ERROR_SIGNALS", nullptr);
  environment.set("UCX_MEM_EVENTS", nullptr);
  environment.set("NIXL_UCX_DEEPBIND", "1");
  std::vector<std::string> notes;
  prepare_ucx_environment(&notes);
  EXPECT_STREQ(std::getenv("UCX_HANDLE_ERRORS"), "none");
  EXPECT_STREQ(std::getenv("UCX_ERROR_SIGNALS"), "");
  EXPECT_STREQ(std::getenv("UCX_MEM_EVENTS"), "n");
  EXPECT_EQ(std::getenv("NIXL_UCX_DEEPBIND"), nullptr);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("NIXL_UCX_DEEPBIND"), std::string::npos);

  environment.set("UCX_HANDLE_ERRORS", "bt");
  environment.set("UCX_ERROR_SIGNALS", "SIGFPE");
  notes.clear();
  prepare_ucx_environment(&notes);
  EXPECT_STREQ(std::getenv("UCX_HANDLE_ERRORS"), "bt");
  EXPECT_STREQ(std::getenv("UCX_ERROR_SIGNALS"), "SIGFPE");
  EXPECT_TRUE(notes.empty());

  environment.set("UCX_ERROR_SIGNALS", "ILL,SEGV");
  environment.set("UCX_MEM_EVENTS", "y");
  prepare_ucx_environment(&notes);
  EXPECT_STREQ(std::getenv("UCX_ERROR_SIGNALS"), "");
  EXPECT_STREQ(std::getenv("UCX_MEM_EVENTS"), "n");
  EXPECT_EQ(notes.size(), 2u);
}

TEST(NixlLibrary, RefusesAnAbsentFileWithTheLoadersWords) {
  std::string problem;
  EXPECT_EQ(Library::open("/nonexistent/libnixl_capi.so", &problem), nullptr);
  EXPECT_NE(problem.find("/nonexistent/libnixl_capi.so"), std::string::npos);
}

TEST(NixlLibrary, RefusesTheStub) {
  std::string problem;
  EXPECT_EQ(Library::open(KVT_NIXL_FAKE_STUB, &problem), nullptr);
  EXPECT_NE(problem.find("stub"), std::string::npos);
}

TEST(NixlLibrary, NamesTheFunctionsThatAreMissing) {
  std::string problem;
  EXPECT_EQ(Library::open(KVT_NIXL_FAKE_PARTIAL, &problem), nullptr);
  EXPECT_NE(problem.find("nixl_capi_post_xfer_req"), std::string::npos);
  EXPECT_NE(problem.find("nixl_capi_get_notifs"), std::string::npos);
  EXPECT_EQ(problem.find("nixl_capi_is_stub"), std::string::npos);
}

// The sync mode is where the two layouts differ without changing size: a number above NONE would have NIXL take locks,
// and a listen port in its place would do worse.
TEST(NixlLibrary, WritesTheConfigurationInTheLayoutOfTheLibrary) {
  for (const char* path : {KVT_NIXL_FAKE_SCRIPTED, KVT_NIXL_FAKE_VERSIONED}) {
    std::string problem;
    const std::unique_ptr<Library> library = Library::open(path, &problem);
    ASSERT_NE(library, nullptr) << problem;
    Agent agent = nullptr;
    ASSERT_EQ(library->create_agent("a", &agent), kSuccess);
    void* handle = ::dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    const auto fake = reinterpret_cast<test::FakeNixlGetter>(::dlsym(handle, "fake_nixl"))();
    const std::vector<unsigned char>& config = fake->agent_config;
    ASSERT_EQ(config.size(), 40u);
    EXPECT_EQ(config[0], 0) << "progress thread";
    EXPECT_EQ(config[1], 0) << "listen thread";
    const auto field = [&](std::size_t at) {
      std::uint32_t value = 0;
      std::memcpy(&value, config.data() + at, sizeof(value));
      return value;
    };
    const bool is_versioned = path == std::string(KVT_NIXL_FAKE_VERSIONED);
    if (is_versioned) {
      EXPECT_EQ(field(0) >> 16, 0u) << "listen port";
    } else {
      EXPECT_EQ(field(4), 0u) << "listen port";
    }
    EXPECT_EQ(field(is_versioned ? 4 : 8), 0u) << "sync mode NONE in " << path;
    EXPECT_EQ(field(is_versioned ? 8 : 12), 1u) << "workers in " << path;
    EXPECT_EQ(config[32], 0) << "telemetry";
  }
}

TEST(NixlLibrary, TellsTheVersionFromTheFunctions) {
  std::string problem;
  EXPECT_EQ(Library::open(KVT_NIXL_FAKE_SCRIPTED, &problem)->version(), "1.0 to 1.4");
  EXPECT_EQ(Library::open(KVT_NIXL_FAKE_VERSIONED, &problem)->version(), "later than 1.5");
}

}  // namespace
}  // namespace kvt::nixl
