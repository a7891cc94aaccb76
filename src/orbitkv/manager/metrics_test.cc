#include "orbitkv/manager/metrics.h"

#include <gtest/gtest.h>

namespace orbitkv::manager {
namespace {

TEST(Metrics, CollectsCurrentValuesInOrder) {
  Metrics metrics;
  double hits = 1;
  metrics.AddSource([&](MetricSink& sink) { sink.Counter("orbitkv_hits_total", "Hits.", hits, {{"instance", "a"}}); });
  metrics.AddSource([&](MetricSink& sink) { sink.Gauge("orbitkv_used_bytes", "Used.", 3); });
  hits = 2;
  const auto samples = metrics.Collect();
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_EQ(samples[0].name, "orbitkv_hits_total");
  EXPECT_EQ(samples[0].value, 2);
  EXPECT_TRUE(samples[0].is_counter);
  EXPECT_EQ(samples[0].labels.at(0).second, "a");
  EXPECT_EQ(samples[1].value, 3);
  EXPECT_FALSE(samples[1].is_counter);
  EXPECT_EQ(metrics.Collect().size(), 2U);
}

TEST(MetricsDeathTest, NamesFollowTheConventions) {
  const auto collect = [](const Metrics::Source& source) {
    Metrics metrics;
    metrics.AddSource(source);
    static_cast<void>(metrics.Collect());
  };
  EXPECT_DEATH(collect([](MetricSink& sink) { sink.Counter("orbitkv_hits", "x", 1); }), "_total");
  EXPECT_DEATH(collect([](MetricSink& sink) { sink.Gauge("orbitkv_a_total", "x", 1); }), "_total");
  EXPECT_DEATH(collect([](MetricSink& sink) { sink.Gauge("used_bytes", "x", 1); }), "orbitkv_");
  EXPECT_DEATH(collect([](MetricSink& sink) {
                 sink.Gauge("orbitkv_a", "x", 1);
                 sink.Gauge("orbitkv_a", "x", 2);
               }),
               "none_of");
}

}  // namespace
}  // namespace orbitkv::manager
