// Programs whose weights stay in the model's file: packed anew, they give the same bits.
#include "kernels/outside_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kernels/running/compiled_kernels.h"
#include "kernels/saved_program.h"
#include "tests/kernels/program_samples.h"
#include "tests/kernels/tuning_samples.h"

namespace tenon::kernels {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr size_t kFileStart = 100;  // so that nothing is aligned there

// A graph whose constants lie in a file, one behind the other.
class OutsideWeightsFixture {
 public:
  explicit OutsideWeightsFixture(const Sample& sample) : sample_(sample) {
    std::string name = fs::temp_directory_path() / "tenon-outside-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    graph_ = ir::parse(sample.graph);
    std::string content(kFileStart, '?');
    for (size_t id = 0; id < graph_.value_count(); ++id) {
      const ir::TensorPtr& tensor = graph_.value(static_cast<ir::ValueId>(id)).constant;
      if (tensor == nullptr) continue;
      const std::span<const std::byte> bytes(tensor->data, tensor->bytes);
      files_.push_back({bytes, "w.data", content.size()});
      content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    write(content);
  }
  ~OutsideWeightsFixture() { fs::remove_all(folder_); }

  std::string path() const { return (folder_ / "w.data").string(); }
  std::string content() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& content) const {
    std::ofstream(path(), std::ios::binary) << content;
  }
  Program program(const Settings& settings) {
    fused_.push_back(std::make_unique<ir::Graph>(fused(graph_, settings)));
    return make_program(*fused_.back(), settings);
  }
  // As compiled for each target.
  std::string saved(const std::vector<Settings>& targets) {
    const auto writer = ContextWriter::to_memory();
    for (const Settings& settings : targets) {
      save_program(program(settings), "part/0", settings, *writer,
                   {SavedWeights::kOutside, files_});
    }
    writer->finish();
    return writer->take();
  }
  OpenedProgram opened(std::string_view bytes, const Settings& settings) const {
    return open_program(
        ContextFile::from_bytes(bytes), "part/0", settings,
        [&](const std::string& name) { return std::make_shared<const WeightFile>(path(), name); });
  }

  const Sample sample_;
  fs::path folder_;
  ir::Graph graph_;
  std::vector<BytesOfFile> files_;
  std::vector<std::unique_ptr<ir::Graph>> fused_;
};

// ---- on the host

class OutsideWeightsTest : public testing::TestWithParam<Sample> {};

TEST_P(OutsideWeightsTest, GiveTheSameBitsOnTheHost) {
  OutsideWeightsFixture model(GetParam());
  const Settings settings = host_settings();
  const auto expected = run_host(model.program(settings), model.sample_);
  const std::string bytes = model.saved({settings});
  forget_compiled_kernels();
  std::unique_ptr<Executable> executable;
  {
    OpenedProgram again = model.opened(bytes, settings);
    EXPECT_EQ(again.recompiled, "");
    executable = run_on_host(std::move(again.program), 2);
  }
  fs::remove(model.path());
  TestContext context(ir::parse(model.sample_.graph), model.sample_.inputs);
  executable->run(context);
  expect_same_bits(context.take_outputs(), expected);
}

// Plans depend on how many cores there are: it is those of the writer that count.
TEST_P(OutsideWeightsTest, OpenWithAnotherNumberOfThreads) {
  OutsideWeightsFixture model(GetParam());
  Settings settings = host_settings();
  settings.host.threads = 48;
  const std::string bytes = model.saved({settings});
  settings.host.threads = 1;
  const auto expected = run_host(model.program(settings), model.sample_);
  expect_same_bits(run_host(model.opened(bytes, settings).program, model.sample_), expected);
}

// Weights are packed for the kernels that records chose, whatever this session has.
TEST_P(OutsideWeightsTest, OpenAsTheirTuningRecordsSay) {
  OutsideWeightsFixture model(GetParam());
  const Settings settings = host_settings();
  const ir::Graph graph = fused(model.graph_, settings);
  const std::vector<TuningRecord> records = last_plans(tunable_fusions(graph, settings));
  const Settings tuned = with_records(settings, records);
  const std::string bytes = model.saved({tuned});
  expect_same_bits(run_host(model.opened(bytes, settings).program, model.sample_),
                   run_host(model.program(tuned), model.sample_));
}

TEST_P(OutsideWeightsTest, ConstantsInNoFileAreStored) {
  OutsideWeightsFixture model(GetParam());
  model.files_.clear();
  const Settings settings = host_settings();
  const std::string bytes = model.saved({settings});
  fs::remove(model.path());
  EXPECT_TRUE(saved_programs(*ContextFile::from_bytes(bytes)).at(0).files.empty());
  expect_same_bits(run_host(model.opened(bytes, settings).program, model.sample_),
                   run_host(model.program(settings), model.sample_));
}

INSTANTIATE_TEST_SUITE_P(Samples, OutsideWeightsTest, testing::ValuesIn(samples()),
                         [](const auto& sample) { return std::string(sample.param.name); });

const Sample& int4() {
  static const Sample* const sample = new Sample(samples()[2]);
  return *sample;
}

TEST(OutsideWeights, NamesTheFilesThatItNeeds) {
  OutsideWeightsFixture model(int4());
  const auto file = ContextFile::from_bytes(model.saved({host_settings()}));
  const SavedProgram program = saved_programs(*file).at(0);
  EXPECT_EQ(program.weights, SavedWeights::kOutside);
  ASSERT_EQ(program.files.size(), 1u);
  EXPECT_EQ(program.files[0].name, "w.data");
  EXPECT_EQ(program.files[0].bytes, 4096u + 1024u);
  EXPECT_EQ(program.files[0].end, kFileStart + 4096u + 1024u);
  for (const std::string_view name : file->names()) EXPECT_FALSE(file->has_data(name)) << name;
}

TEST(OutsideWeights, AChangedByteIsAnErrorThatNamesTheFile) {
  OutsideWeightsFixture model(int4());
  const std::string bytes = model.saved({host_settings()}), content = model.content();
  for (const size_t place : {kFileStart, kFileStart + 4095, content.size() - 1}) {
    std::string changed = content;
    changed[place] ^= 1;
    model.write(changed);
    const std::string error = error_of([&] { (void)model.opened(bytes, host_settings()); });
    EXPECT_THAT(error, HasSubstr("weight file 'w.data': bytes"));
    EXPECT_THAT(error, HasSubstr("SHA-256 differs"));
  }
  std::string before = content;
  before[kFileStart - 1] ^= 1;  // no weight is there
  model.write(before);
  EXPECT_EQ(error_of([&] { (void)model.opened(bytes, host_settings()); }), "");
}

TEST(OutsideWeights, AFileThatWasCutIsAnError) {
  OutsideWeightsFixture model(int4());
  const std::string bytes = model.saved({host_settings()}), content = model.content();
  model.write(content.substr(0, content.size() - 1));
  EXPECT_THAT(error_of([&] { (void)model.opened(bytes, host_settings()); }),
              HasSubstr("it was cut"));
  model.write("");
  EXPECT_THAT(error_of([&] { (void)model.opened(bytes, host_settings()); }),
              HasSubstr("it is empty"));
  fs::remove(model.path());
  EXPECT_THAT(error_of([&] { (void)model.opened(bytes, host_settings()); }),
              HasSubstr("cannot read the weight file"));
}

// Of a version that packs in another way: the layout that was stored is not the one that is made.
TEST(OutsideWeights, AnotherPackingIsRefused) {
  OutsideWeightsFixture model(int4());
  const Settings settings = host_settings();
  Program program = model.program(settings);
  program.texts->lowering[0] ^= 1;
  const auto writer = ContextWriter::to_memory();
  save_program(program, "part/0", settings, *writer, {SavedWeights::kOutside, model.files_});
  writer->finish();
  EXPECT_THAT(error_of([&] { (void)model.opened(writer->take(), settings); }),
              HasSubstr("packs the weights in another way"));
}

TEST(OutsideWeights, BytesAreReadOrRefused) {
  OutsideWeights weights;
  weights.files = {"a", "below/b"};
  weights.weights = {{"0123", 1, 4096, kContextChunkBytes + 1, {Digest{1}, Digest{2}}}};
  weights.packed = {{3, Digest{4}}};
  const std::string bytes = weights.to_bytes();
  EXPECT_EQ(OutsideWeights::from_bytes(bytes).to_bytes(), bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(error_of([&] { (void)OutsideWeights::from_bytes(bytes.substr(0, size)); }), "");
  }
  const auto refused = [](OutsideWeights changed, const auto& change) {
    change(changed.weights[0]);
    return error_of([&] { (void)OutsideWeights::from_bytes(changed.to_bytes()); });
  };
  EXPECT_THAT(refused(weights, [](auto& weight) { weight.file = 2; }), HasSubstr("in no file"));
  EXPECT_THAT(refused(weights, [](auto& weight) { weight.bytes = 1; }), HasSubstr("digests"));
  EXPECT_THAT(refused(weights, [](auto& weight) { weight.digests.clear(); }), HasSubstr("digests"));
  EXPECT_NE(refused(weights, [](auto& weight) { weight.offset = uint64_t{1} << 63; }), "");
}

// A sum past 64 bits must not look like a place in the file.
TEST(OutsideWeights, PlacesOutsideOfAFileAreRefused) {
  OutsideWeightsFixture model(int4());
  const WeightFile file(model.path(), "w.data");
  const uint64_t size = model.content().size();
  EXPECT_EQ(file.bytes(1, size - 1).size(), size - 1);
  for (const auto& [offset, count] : {std::pair<uint64_t, uint64_t>{1, size},
                                      {size + 1, 0},
                                      {~uint64_t{0}, 2},
                                      {2, ~uint64_t{0}}}) {
    EXPECT_THAT(error_of([&, offset = offset, count = count] { (void)file.bytes(offset, count); }),
                HasSubstr("w.data"));
  }
}

// ---- on a GPU, which the stub is

class OutsideOnGpuTest : public StubGpuTest {};

TEST_F(OutsideOnGpuTest, GiveTheSameBits) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.name);
    OutsideWeightsFixture model(sample);
    const auto expected = run(model.program(settings_), sample);
    const std::string bytes = model.saved({settings_, gpu_settings("sm_80")});
    OpenedProgram again = model.opened(bytes, settings_);
    EXPECT_EQ(again.recompiled, "");
    expect_same_bits(run(std::move(again.program), sample), expected);
  }
}

TEST_F(OutsideOnGpuTest, KernelsOfAnotherArchitectureAreCompiledAgain) {
  const std::string other = settings_.gpu->arch == "sm_80" ? "sm_89" : "sm_80";
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.name);
    OutsideWeightsFixture model(sample);
    const auto expected = run(model.program(gpu_settings(other)), sample);
    OpenedProgram again = model.opened(model.saved({gpu_settings(other)}), settings_);
    EXPECT_THAT(again.recompiled, HasSubstr(other));
    expect_same_bits(run(std::move(again.program), sample), expected);
  }
}

TEST_F(OutsideOnGpuTest, AChangedByteFailsTheSession) {
  OutsideWeightsFixture model(int4());
  const std::string bytes = model.saved({settings_});
  std::string changed = model.content();
  changed[kFileStart + 7] ^= 1;
  model.write(changed);
  const std::string error = error_of([&] {
    OpenedProgram again = model.opened(bytes, settings_);
    (void)run_on_device(std::move(again.program), *settings_.gpu, device_, {});
  });
  EXPECT_THAT(error, HasSubstr("weight file 'w.data'"));
  EXPECT_THAT(error, HasSubstr("SHA-256 differs"));
}

// What sessions share: slots are told apart by what they hold, wherever that came from.
TEST_F(OutsideOnGpuTest, SlotsHaveTheContentsOfPackedWeights) {
  OutsideWeightsFixture model(int4());
  const auto writer = ContextWriter::to_memory();
  save_program(model.program(settings_), "part/0", settings_, *writer);
  writer->finish();
  const OpenedProgram inside =
      open_program(ContextFile::from_bytes(writer->take()), "part/0", settings_);
  const OpenedProgram outside = model.opened(model.saved({settings_}), settings_);
  ASSERT_EQ(inside.program.slots.size(), outside.program.slots.size());
  size_t known = 0;
  for (size_t i = 0; i < inside.program.slots.size(); ++i) {
    EXPECT_EQ(inside.program.slots[i].content, outside.program.slots[i].content);
    known += inside.program.slots[i].content ? 1 : 0;
  }
  EXPECT_GT(known, 0u);
}

}  // namespace
}  // namespace tenon::kernels
