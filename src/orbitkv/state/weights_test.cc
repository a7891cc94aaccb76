#include "orbitkv/state/weights.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include "orbitkv/os/file.h"
#include "orbitkv/os/thread.h"
#include "orbitkv/state/digest.h"
#include "orbitkv/testing/temporary_directory.h"

namespace orbitkv::state {
namespace {

namespace fs = std::filesystem;

class WeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = root_ / "model";
    fs::create_directories(model_);
    Write(model_ / "model.safetensors", std::string(10'000, 'w'));
    Write(model_ / "config.json", "{}");
  }

  static void Write(const fs::path& path, const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }
  WeightsOptions Options(const fs::path& model) const {
    WeightsOptions options;
    options.path = model.string();
    options.cache_dir = (root_ / "cache").string();
    options.piece_bytes = 1000;
    return options;
  }
  WeightsIdentity Identify(const fs::path& model) const {
    const Result<WeightsIdentity> identity = IdentifyWeights(Options(model));
    EXPECT_TRUE(identity) << ToString(identity.error());
    return identity.value_or(WeightsIdentity{});
  }
  fs::path Copy(const std::string& name) const {
    fs::copy(model_, root_ / name, fs::copy_options::recursive);
    return root_ / name;
  }
  // The only entry of the cache (lock files aside).
  fs::path Entry() const {
    for (const auto& file : fs::directory_iterator(root_ / "cache" / "weights")) {
      if (file.path().extension() != ".lock") return file.path();
    }
    return {};
  }

  const ::orbitkv::testing::TemporaryDirectory directory_;
  const fs::path root_ = directory_.path();
  fs::path model_;
};

TEST_F(WeightsTest, TwoFineTunesThatDifferInOneByteDiffer) {
  const fs::path copy = Copy("copy");
  const fs::path tuned = Copy("tuned");
  std::string content(10'000, 'w');
  content[7'654] = 'v';
  Write(tuned / "model.safetensors", content);
  EXPECT_EQ(Identify(model_).text, Identify(copy).text);
  EXPECT_NE(Identify(model_).text, Identify(tuned).text);
  // Frozen: stored blocks are found again only while this stays.
  EXPECT_EQ(Identify(model_).text, "sha256:34546e8159374a68ca02aedc6730f144942f8d397a195913bb9759cd4a42fbdc");
}

TEST_F(WeightsTest, NamesAndEveryFileCount) {
  const std::string one = Identify(model_).text;
  const fs::path renamed = Copy("renamed");
  fs::rename(renamed / "model.safetensors", renamed / "other.safetensors");
  EXPECT_NE(Identify(renamed).text, one);
  const fs::path more = Copy("more");
  Write(more / "model.safetensors.index.json", "{}");
  EXPECT_NE(Identify(more).text, one);
  const fs::path code = Copy("code");
  Write(code / "modeling.py", "x");
  EXPECT_NE(Identify(code).text, one);
  const fs::path other_config = Copy("config");
  Write(other_config / "config.json", "{\"a\":1}");
  EXPECT_EQ(Identify(other_config).text, one) << "the configuration is an ingredient of its own";
}

TEST_F(WeightsTest, ContentIsReadOncePerHostAndAgainAfterATouch) {
  const WeightsIdentity first = Identify(model_);
  EXPECT_EQ(first.bytes_read, 10'000U);
  const WeightsIdentity again = Identify(model_);
  EXPECT_EQ(again.bytes_read, 0U);
  EXPECT_EQ(again.hashes_known, 1U);
  EXPECT_EQ(again.text, first.text);
  const fs::path file = model_ / "model.safetensors";
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(5));
  const WeightsIdentity touched = Identify(model_);
  EXPECT_EQ(touched.bytes_read, 10'000U);
  EXPECT_EQ(touched.text, first.text);
}

TEST_F(WeightsTest, ADamagedEntryIsReadAgainAndRepaired) {
  const WeightsIdentity first = Identify(model_);
  std::string entry = os::ReadFile(Entry().string(), 4096).value();
  std::string forged = entry;
  const std::size_t hash = forged.rfind(' ') - 10;
  forged[hash] = forged[hash] == '0' ? '1' : '0';
  for (const std::string& bad : {std::string(), std::string("rubbish"), entry.substr(0, 40), forged}) {
    Write(Entry(), bad);
    const WeightsIdentity repaired = Identify(model_);
    EXPECT_EQ(repaired.text, first.text);
    EXPECT_EQ(repaired.bytes_read, 10'000U) << bad;
    EXPECT_EQ(os::ReadFile(Entry().string(), 4096).value(), entry);
  }
}

TEST_F(WeightsTest, AnUnusableCacheFolderCostsOnlyTime) {
  WeightsOptions options = Options(model_);
  Write(root_ / "file", "");
  options.cache_dir = (root_ / "file").string();
  const auto identity = IdentifyWeights(options);
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->text, Identify(model_).text);
  EXPECT_EQ(identity->bytes_read, 10'000U);
}

TEST_F(WeightsTest, HuggingFaceBlobsAreIdentifiedWithoutReading) {
  Sha256 sha;
  const std::string content(10'000, 'w');
  sha.Update(std::as_bytes(std::span(content)));
  const std::string hex = ToHex(sha.Finish());
  const fs::path repo = root_ / "hub" / "models--a--b";
  const fs::path snapshot = repo / "snapshots" / "rev";
  fs::create_directories(snapshot);
  fs::create_directories(repo / "blobs");
  Write(repo / "blobs" / hex, content);
  fs::create_symlink(fs::path("../../blobs") / hex, snapshot / "model.safetensors");
  const WeightsIdentity identity = Identify(snapshot);
  EXPECT_EQ(identity.bytes_read, 0U);
  EXPECT_EQ(identity.hashes_known, 1U);
  EXPECT_EQ(identity.text, Identify(model_).text) << "the same content in a plain folder";

  // A link to a blob that is not there, or to another place, is no name to trust.
  fs::remove(repo / "blobs" / hex);
  EXPECT_FALSE(IdentifyWeights(Options(snapshot)));
  fs::remove(snapshot / "model.safetensors");
  Write(root_ / hex, content);
  fs::create_symlink(root_ / hex, snapshot / "model.safetensors");
  EXPECT_EQ(Identify(snapshot).bytes_read, 10'000U);
}

TEST_F(WeightsTest, WhatIsNotLocalNeedsAModelId) {
  for (const char* format : {"dummy", "tensorizer", "runai_streamer", "remote"}) {
    WeightsOptions options = Options(model_);
    options.load_format = format;
    const auto refused = IdentifyWeights(options);
    ASSERT_FALSE(refused) << format;
    EXPECT_EQ(refused.error().code, Code::kRefused);
    options.model_id = "mine";
    EXPECT_EQ(IdentifyWeights(options)->text, "model_id:mine");
  }
  WeightsOptions remote = Options("s3://bucket/model");
  EXPECT_EQ(IdentifyWeights(remote).error().code, Code::kRefused);
  WeightsOptions missing = Options(root_ / "nowhere");
  EXPECT_EQ(IdentifyWeights(missing).error().code, Code::kNotFound);
  fs::create_directories(root_ / "empty");
  Write(root_ / "empty" / "modeling.py", "x");
  EXPECT_EQ(IdentifyWeights(Options(root_ / "empty")).error().code, Code::kNotFound);
}

TEST_F(WeightsTest, CancellingEndsReadingAndWaiting) {
  std::atomic<bool> cancel{true};
  WeightsOptions options = Options(model_);
  options.cancel = &cancel;
  EXPECT_EQ(IdentifyWeights(options).error().code, Code::kCancelled);

  // Another process holds the lock: the waiter ends when it is cancelled, and takes the result when there is one.
  cancel = false;
  const WeightsIdentity first = Identify(model_);
  const std::string entry = os::ReadFile(Entry().string(), 4096).value();
  const fs::path path = Entry();
  fs::remove(path);
  auto lock = os::FileLock::TryAcquire(path.string() + ".lock");
  ASSERT_TRUE(lock && *lock);
  Result<WeightsIdentity> waited = WeightsIdentity{};
  os::Thread waiter;
  ASSERT_TRUE(waiter.Start("waiter", [&] { waited = IdentifyWeights(options); }));
  cancel = true;
  waiter.Join();
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, Code::kCancelled);

  cancel = false;
  os::Thread second;
  ASSERT_TRUE(second.Start("second", [&] { waited = IdentifyWeights(options); }));
  Write(path, entry);
  lock->reset();
  second.Join();
  ASSERT_TRUE(waited);
  EXPECT_EQ(waited->text, first.text);
  EXPECT_EQ(waited->bytes_read, 0U);
}

}  // namespace
}  // namespace orbitkv::state
