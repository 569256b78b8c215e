// Compares base/convert with ml_dtypes and onnx.reference, whose tables golden_conversions.py
// writes when the test starts.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/convert.h"

namespace tenon {
namespace {

namespace fs = std::filesystem;

const char* const kPython = ".venv/bin/python";
const char* const kGenerator = "tests/base/golden_conversions.py";

class ConvertGolden : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("tenon_golden_" + std::to_string(getpid()));
    const std::string command =
        std::string(kPython) + " " + kGenerator + " " + folder_.string() + " 2>&1";
    generated_ = fs::exists(kPython) && std::system(command.c_str()) == 0;
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  void SetUp() override {
    if (!fs::exists(kPython)) GTEST_SKIP() << "no " << kPython << ": run scripts/setup.sh";
    ASSERT_TRUE(generated_) << kGenerator << " failed";
  }

  // Files named `kind`.<dtype>…, as (dtype, rule, words).
  struct Table {
    DType dtype;
    std::string rule;
    std::vector<uint64_t> words;
  };
  static std::vector<Table> tables(const std::string& kind) {
    std::vector<Table> found;
    for (const fs::directory_entry& file : fs::directory_iterator(folder_)) {
      const std::string name = file.path().filename();
      if (name.rfind(kind + ".", 0) != 0) continue;
      const std::string rest = name.substr(kind.size() + 1);
      const size_t dot = rest.find('.');
      Table table{parse_dtype(rest.substr(0, dot)).value(),
                  dot == std::string::npos ? "" : rest.substr(dot + 1),
                  std::vector<uint64_t>(fs::file_size(file) / sizeof(uint64_t))};
      std::ifstream stream(file.path(), std::ios::binary);
      stream.read(reinterpret_cast<char*>(table.words.data()),
                  static_cast<std::streamsize>(table.words.size() * sizeof(uint64_t)));
      found.push_back(std::move(table));
    }
    return found;
  }

  static EncodeRule rule(const std::string& text) {
    EncodeRule rule;
    rule.saturate = text.find("saturate") != std::string::npos;
    if (text.find("up") != std::string::npos) rule.round = RoundMode::kUp;
    if (text.find("down") != std::string::npos) rule.round = RoundMode::kDown;
    return rule;
  }

  // Codes are equal, or both are NaN: which of several NaNs comes out is nobody's promise.
  static bool same(DType dtype, uint64_t code, uint64_t expected) {
    return code == expected ||
           (std::isnan(decode(dtype, code)) && std::isnan(decode(dtype, expected)));
  }

  static inline fs::path folder_;
  static inline bool generated_ = false;
};

double as_double(uint64_t bits) {
  double value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

TEST_F(ConvertGolden, EveryCodeDecodesAsInMlDtypes) {
  const std::vector<Table> all = tables("decode");
  EXPECT_EQ(all.size(), 16u);
  for (const Table& table : all) {
    ASSERT_EQ(table.words.size(), size_t{1} << bit_width(table.dtype)) << name(table.dtype);
    for (uint64_t code = 0; code < table.words.size(); ++code) {
      const double expected = as_double(table.words[code]);
      const double decoded = decode(table.dtype, code);
      const bool equal = std::isnan(expected) ? std::isnan(decoded)
                                              : decoded == expected &&
                                                    std::signbit(decoded) == std::signbit(expected);
      ASSERT_TRUE(equal) << name(table.dtype) << " code " << code << ": " << decoded
                         << ", ml_dtypes says " << expected;
    }
  }
}

TEST_F(ConvertGolden, CastEncodesAsInOnnxReference) {
  const std::vector<Table> all = tables("cast");
  EXPECT_EQ(all.size(), 7u * 2 + 6 + 12);
  for (const Table& table : all) {
    ASSERT_GT(table.words.size(), 10000u);
    for (size_t i = 0; i < table.words.size(); i += 2) {
      const double value = as_double(table.words[i]);
      const uint64_t code = encode(table.dtype, value, rule(table.rule));
      ASSERT_TRUE(same(table.dtype, code, table.words[i + 1]))
          << name(table.dtype) << " " << table.rule << " of " << value << ": " << code
          << ", onnx.reference says " << table.words[i + 1];
    }
  }
}

TEST_F(ConvertGolden, QuantizeEncodesAsInOnnxReference) {
  const std::vector<Table> all = tables("quantize");
  EXPECT_EQ(all.size(), 5u * 2 + 8);
  for (const Table& table : all) {
    ASSERT_GT(table.words.size(), 10000u);
    for (size_t i = 0; i < table.words.size(); i += 3) {
      const double value = as_double(table.words[i]), zero = as_double(table.words[i + 1]);
      const uint64_t code = quantize(table.dtype, value, zero, rule(table.rule));
      ASSERT_TRUE(same(table.dtype, code, table.words[i + 2]))
          << name(table.dtype) << " " << table.rule << " of " << value << " + " << zero << ": "
          << code << ", onnx.reference says " << table.words[i + 2];
    }
  }
}

}  // namespace
}  // namespace tenon
