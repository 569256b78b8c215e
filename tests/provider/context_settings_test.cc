#include "provider/context_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "base/error.h"

namespace tenon::provider {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(ContextSettingsTest, AreTheRuntimesKeys) {
  const ContextSettings none = context_settings({});
  EXPECT_FALSE(none.enable || none.embed || none.compile_only);
  const ContextSettings all = context_settings({{"ep.context_enable", "1"},
                                                {"ep.context_embed_mode", "1"},
                                                {"ep.context_file_path", "a/b.onnx"},
                                                {"ep.context_node_name_prefix", "left_"},
                                                {"session.compile_only", "1"},
                                                {"ep.share_ep_contexts", "1"},
                                                {"ep.stop_share_ep_contexts", "1"}});
  EXPECT_TRUE(all.enable && all.embed && all.compile_only && all.share && all.stop_sharing);
  EXPECT_EQ(all.model_path, "a/b.onnx");
  EXPECT_EQ(all.name_prefix, "left_");
  EXPECT_THAT(refusal([] {
                context_settings({{"ep.context_enable", "yes"}});
              }),
              HasSubstr("ep.context_enable='yes'"));
}

TEST(ContextSettingsTest, SeveralKeysLeaveWeightsOutside) {
  const auto outside = [](const std::map<std::string, std::string>& entries) {
    return context_settings(entries).weights_outside;
  };
  EXPECT_FALSE(outside({}));
  EXPECT_TRUE(outside({{"ep.enable_weightless_ep_context_nodes", "1"}}));
  EXPECT_TRUE(outside({{"ep.enable_weightless", "1"}}));
  EXPECT_TRUE(outside({{"ep.enable_weightless_mode", "1"}}));
  // The newest key decides.
  EXPECT_FALSE(outside({{"ep.enable_weightless_mode", "0"}, {"ep.enable_weightless", "1"}}));
  EXPECT_THAT(refusal([&] {
                outside({{"ep.enable_weightless_mode", "2"}});
              }),
              HasSubstr("more than Tenon can"));
  for (const char* key : {"ep.enable_weightless_ep_context_nodes", "ep.enable_weightless",
                          "ep.enable_weightless_mode"}) {
    EXPECT_THAT(refusal([&] { outside({{key, "3"}}); }), HasSubstr(key));
  }
}

TEST(ContextSettingsTest, TheDataStandsBesideTheContextModel) {
  EXPECT_EQ(context_model_path({}, "folder/model.onnx"), "folder/model_ctx.onnx");
  EXPECT_EQ(context_model_path({}, ""), "");
  ContextSettings given;
  given.model_path = "x/c.onnx";
  EXPECT_EQ(context_model_path(given, "folder/model.onnx"), "x/c.onnx");
  EXPECT_EQ(data_file_name("folder/model_ctx.onnx", Digest{0x01, 0x23, 0xab}),
            "model_ctx_tenon_0123ab0000000000.bin");
}

class DataFilePathTest : public ::testing::Test {
 protected:
  DataFilePathTest() {
    std::string name = (fs::temp_directory_path() / "context-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    fs::create_directories(root_ / "model" / "below");
    std::ofstream(root_ / "model" / "data.bin") << "x";
    std::ofstream(root_ / "model" / "below" / "data.bin") << "x";
    std::ofstream(root_ / "outside.bin") << "x";
  }
  ~DataFilePathTest() override { fs::remove_all(root_); }
  std::string of(const std::string& name) const {
    return data_file_path((root_ / "model").string(), name);
  }
  std::string refused(const std::string& name) const {
    return refusal([&] { of(name); });
  }
  fs::path root_;
};

TEST_F(DataFilePathTest, StaysInTheModelsFolder) {
  EXPECT_EQ(of("data.bin"), (root_ / "model" / "data.bin").string());
  EXPECT_EQ(of("below/data.bin"), (root_ / "model" / "below/data.bin").string());
  EXPECT_THAT(refused((root_ / "model" / "data.bin").string()), HasSubstr("absolute"));
  EXPECT_THAT(refused("../outside.bin"), HasSubstr("leaves the model's folder"));
  EXPECT_THAT(refused("below/../data.bin"), HasSubstr("leaves the model's folder"));
  EXPECT_THAT(refused("absent.bin"), HasSubstr("keep both files together"));
  EXPECT_THAT(refused(""), HasSubstr("no file name"));
  EXPECT_THAT(refused(std::string("data.bin\0x", 10)), HasSubstr("no file name"));
}

TEST_F(DataFilePathTest, WeightFilesStayThereAsWell) {
  const auto refused = [&](const std::string& name) {
    return refusal([&] { weight_file_path((root_ / "model").string(), name); });
  };
  EXPECT_EQ(weight_file_path((root_ / "model").string(), "below/data.bin"),
            (root_ / "model" / "below/data.bin").string());
  for (const auto& [name, reason] : std::map<std::string, std::string>{
           {(root_ / "model" / "data.bin").string(), "is an absolute path"},
           {"../outside.bin", "leaves the model's folder"},
           {"below/../data.bin", "leaves the model's folder"},
           {"", "is no file name"},
           {"absent.bin", "put the file there that the model was compiled with"}}) {
    EXPECT_THAT(refused(name), HasSubstr("weight file '" + name + "'"));
    EXPECT_THAT(refused(name), HasSubstr(reason));
  }
  fs::create_symlink(root_ / "outside.bin", root_ / "model" / "link.bin");
  EXPECT_THAT(refused("link.bin"), HasSubstr("link that leaves"));
}

TEST_F(DataFilePathTest, LinksMustNotLeadOut) {
  fs::create_symlink(root_ / "outside.bin", root_ / "model" / "link.bin");
  fs::create_directory_symlink(root_, root_ / "model" / "up");
  EXPECT_THAT(refused("link.bin"), HasSubstr("link that leaves"));
  EXPECT_THAT(refused("up/outside.bin"), HasSubstr("link that leaves"));
}

}  // namespace
}  // namespace tenon::provider
