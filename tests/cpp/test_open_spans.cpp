// test_open_spans.cpp: the stack of open spans: parents, depths, ends out of order, scopes of
// tasks.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support.h"

namespace stagespan {
namespace {

using test::count_of;
using test::figures_of;
using test::lost;
using test::Random;
using test::spans_of;

constexpr auto relaxed = std::memory_order_relaxed;

class OpenSpans : public test::OpenSpansTest {};

TEST_F(OpenSpans, NestedSpansAreChildrenOfEachOther) {
  const std::uint32_t stages[] = {recorder().intern("nest.0"), recorder().intern("nest.1"),
                                  recorder().intern("nest.2")};
  OpenFrame& a = open(stages[0]);
  OpenFrame& b = open(stages[1]);
  OpenFrame& c = open(stages[2]);
  const std::vector<OpenCopy> open_now = own_open();
  ASSERT_EQ(open_now.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(open_now[i].stage, stages[i]);
    EXPECT_EQ(open_now[i].depth, i);
    EXPECT_EQ(open_now[i].parent, i == 0 ? 0 : open_now[i - 1].id);
    EXPECT_EQ(open_now[i].ident, static_cast<std::uint64_t>(pthread_self()));
    EXPECT_FALSE(open_now[i].detached);
  }
  EXPECT_LE(open_now[0].begin_ticks, open_now[1].begin_ticks);
  close(c);
  close(b);
  close(a);
  EXPECT_TRUE(own_open().empty());
  for (std::size_t i = 0; i < 3; ++i) {
    const std::vector<SpanCopy> spans = spans_of(stages[i]);
    ASSERT_EQ(spans.size(), 1U);
    EXPECT_EQ(spans[0].id, open_now[i].id);
    EXPECT_EQ(spans[0].parent, open_now[i].parent);
    EXPECT_EQ(spans[0].depth, i);
    EXPECT_EQ(spans[0].begin_ticks, open_now[i].begin_ticks);
    EXPECT_EQ(spans[0].thread, thread().thread);
  }
  EXPECT_EQ(figures_of(stages[0]).parents.begin()->first, kNoStage);
  EXPECT_EQ(figures_of(stages[1]).parents.begin()->first, stages[0]);
  EXPECT_EQ(figures_of(stages[2]).parents.begin()->first, stages[1]);
}

TEST_F(OpenSpans, AParentIsChargedExactlyTheTimeOfItsOwnChildren) {
  const std::uint32_t outer = recorder().intern("charge.outer");
  const std::uint32_t middle = recorder().intern("charge.middle");
  const std::uint32_t inner = recorder().intern("charge.inner");
  for (int i = 0; i < 10; ++i) {
    const ScopedTimer a(outer);
    for (int k = 0; k < 5; ++k) {
      const ScopedTimer b(middle);
      for (int m = 0; m < 3; ++m) const ScopedTimer c(inner);
    }
  }
  EXPECT_EQ(figures_of(outer).children_ticks, figures_of(middle).host.sum_ticks);
  EXPECT_EQ(figures_of(middle).children_ticks, figures_of(inner).host.sum_ticks);
  EXPECT_EQ(figures_of(inner).children_ticks, 0U);
  // THEN no parent's children took longer than it did
  EXPECT_LE(figures_of(outer).children_ticks, figures_of(outer).host.sum_ticks);
}

TEST_F(OpenSpans, RecursionIsItsOwnParent) {
  const std::uint32_t stage = recorder().intern("recursion");
  // GIVEN a stage that calls itself 50 deep
  const auto recurse = [&](auto&& self, int left) -> void {
    const ScopedTimer timer(stage);
    if (left > 1) self(self, left - 1);
  };
  recurse(recurse, 50);
  // THEN one run is at top level, and all others are below the stage itself
  const StageFigures figures = figures_of(stage);
  EXPECT_EQ(figures.host.count, 50U);
  EXPECT_EQ(figures.parents.at(kNoStage).count, 1U);
  EXPECT_EQ(figures.parents.at(stage).count, 49U);
  const std::vector<SpanCopy> spans = spans_of(stage);
  for (std::size_t i = 1; i < spans.size(); ++i) EXPECT_EQ(spans[i].parent, spans[i - 1].id);
  EXPECT_EQ(spans.back().depth, 49);
}

TEST_F(OpenSpans, ASpanThatEndsBeforeItsChildStaysItsParentAndTheirTimeIsChargedOnce) {
  const std::uint32_t outer = recorder().intern("middle.outer");
  const std::uint32_t middle = recorder().intern("middle.middle");
  const std::uint32_t inner = recorder().intern("middle.inner");
  const std::uint32_t late = recorder().intern("middle.late");
  // GIVEN three nested spans
  OpenFrame& a = open(outer);
  OpenFrame& b = open(middle);
  OpenFrame& c = open(inner);
  const std::uint64_t b_id = b.id.load(relaxed);
  const std::uint64_t b_begin = b.begin_ticks.load(relaxed);
  close(b);
  ASSERT_EQ(own_open().size(), 2U);
  EXPECT_EQ(own_open()[1].stage, inner);
  OpenFrame& d = open(late);
  EXPECT_EQ(d.parent.load(relaxed), c.id.load(relaxed));
  close(d);
  close(c);
  EXPECT_EQ(a.child_ticks.load(relaxed), spans_of(inner)[0].end_ticks - b_begin);
  EXPECT_EQ(spans_of(inner)[0].parent, b_id);
  EXPECT_EQ(figures_of(inner).parents.begin()->first, middle);
  EXPECT_EQ(spans_of(inner)[0].flags, 0);
  close(a);
  EXPECT_TRUE(own_open().empty());
}

TEST_F(OpenSpans, AnyOrderOfEndsKeepsParentsDepthsAndCharges) {
  Random random(4401);
  SCOPED_TRACE(random.trace());
  const std::uint32_t stages[] = {recorder().intern("order.0"), recorder().intern("order.1"),
                                  recorder().intern("order.2"), recorder().intern("order.3")};
  // A model of the stack: the open spans, from the bottom up.
  struct Entry {
    OpenFrame* frame;
    bool active;
    std::uint64_t id;
    std::uint16_t depth;
  };
  for (int round = 0; round < 50; ++round) {
    std::vector<Entry> model;
    std::uint64_t finished_spans = 0;
    for (int step = 0; step < 400; ++step) {
      const auto innermost = std::find_if(model.rbegin(), model.rend(), [](const Entry& e) { return e.active; });
      if (model.empty() || (random.chance(2) && model.size() < 40)) {
        // GIVEN spans that open, some of them while the recorder is off
        const bool active = !random.chance(3);
        OpenFrame* const frame = active ? &open(stages[random.below(4)]) : open_inactive(thread(), nullptr);
        ASSERT_NE(frame, nullptr);
        const std::uint16_t depth = innermost == model.rend() ? 0 : static_cast<std::uint16_t>(innermost->depth + 1);
        if (active) {
          ASSERT_EQ(frame->parent.load(relaxed), innermost == model.rend() ? 0 : innermost->id);
          ASSERT_EQ(frame->depth.load(relaxed), depth);
        }
        model.push_back({frame, active, frame->id.load(relaxed), depth});
      } else {
        const std::size_t at = random.chance(2) ? model.size() - 1 : random.below(model.size());
        const Entry entry = model[at];
        model.erase(model.begin() + static_cast<std::ptrdiff_t>(at));
        if (entry.active) {
          // THEN its time is charged to the nearest active one below it, minus the time it shares with the one above
          // it, which will also be charged there; and to no other
          std::map<std::uint64_t, std::uint64_t> before;
          for (const Entry& e : model)
            if (e.active) before[e.id] = e.frame->child_ticks.load(relaxed);
          std::uint64_t charged_to = 0;
          for (std::size_t i = 0; i < at; ++i)
            if (model[i].active) charged_to = model[i].id;
          std::uint64_t above_begin = 0;
          for (std::size_t i = model.size(); i > at; --i)
            if (model[i - 1].active) above_begin = model[i - 1].frame->begin_ticks.load(relaxed);
          close(*entry.frame);
          ++finished_spans;
          const SpanRecord& record = arena().ring(thread().slot_index)[(thread().head - 1) & thread().ring_mask];
          ASSERT_EQ(record.id.load(), entry.id);
          const std::uint64_t charged_until = above_begin != 0 ? above_begin : record.end_ticks.load();
          const std::uint64_t ticks = charged_until - record.begin_ticks.load();
          for (const Entry& e : model) {
            if (!e.active) continue;
            ASSERT_EQ(e.frame->child_ticks.load(relaxed), before[e.id] + (e.id == charged_to ? ticks : 0));
          }
        } else {
          drop_frame(thread(), *entry.frame);
        }
      }
      // THEN readers see the spans that are open and active
      if (step % 20 == 0) {
        const std::vector<OpenCopy> seen = own_open();
        std::vector<std::uint64_t> seen_ids, model_ids;
        for (const OpenCopy& copy : seen) seen_ids.push_back(copy.id);
        for (const Entry& e : model)
          if (e.active) model_ids.push_back(e.id);
        std::sort(seen_ids.begin(), seen_ids.end());
        std::sort(model_ids.begin(), model_ids.end());
        ASSERT_EQ(seen_ids, model_ids);
      }
    }
    while (!model.empty()) {
      if (model.back().active)
        close(*model.back().frame);
      else
        drop_frame(thread(), *model.back().frame);
      finished_spans += model.back().active;
      model.pop_back();
    }
    ASSERT_TRUE(own_open().empty());
    ASSERT_EQ(thread().scope->top, thread().scope->root);
    std::uint64_t counted = 0;
    for (const std::uint32_t stage : stages) counted += count_of(stage);
    ASSERT_EQ(counted, finished_spans);
    recorder().reset();
  }
}

/// Opens spans of a stage, each inside the one before.
std::vector<OpenFrame*> open_many(std::uint32_t stage, std::size_t count) {
  Recorder::get().this_thread();
  std::vector<OpenFrame*> frames;
  while (frames.size() < count) frames.push_back(open_frame(*t_state, stage, nullptr));
  return frames;
}

TEST_F(OpenSpans, SpansBeyondTheFramesOfTheirThreadAreTimedButNotShown) {
  const std::uint32_t stage = recorder().intern("many");
  constexpr std::size_t kHidden = 3000;
  std::vector<OpenFrame*> frames = open_many(stage, kMaxFrames - 1 + kHidden);
  EXPECT_EQ(lost(kLostOpen), kHidden);
  EXPECT_EQ(own_open().size(), kMaxFrames - 1);
  OpenFrame* const inactive = open_inactive(thread(), nullptr);
  ASSERT_NE(inactive, nullptr);
  const std::uint64_t parent = frames.back()->id.load(relaxed);
  {
    const ScopedTimer timer(stage);
    const OpenFrame& innermost = thread().frames[thread().scope->top];
    EXPECT_EQ(innermost.parent.load(relaxed), parent);
    EXPECT_EQ(innermost.depth.load(relaxed), kMaxFrames - 1 + kHidden);
  }
  drop_frame(thread(), *inactive);
  EXPECT_EQ(lost(kLostOpen), kHidden + 1);
  EXPECT_EQ(count_of(stage), 1U);
  const std::size_t opened = frames.size();
  while (!frames.empty()) {
    close(*frames.back());
    frames.pop_back();
  }
  // THEN each was counted once, and later spans are shown again
  EXPECT_EQ(count_of(stage), opened + 1);
  EXPECT_EQ(thread().scope->top, thread().scope->root);
  frames = open_many(stage, kMaxFrames - 1);
  EXPECT_EQ(own_open().size(), kMaxFrames - 1);
  EXPECT_EQ(lost(kLostOpen), kHidden + 1);
  while (!frames.empty()) {
    close(*frames.back());
    frames.pop_back();
  }
}

TEST_F(OpenSpans, AThreadThatLeavesGivesItsHiddenFramesBack) {
  const std::uint32_t stage = recorder().intern("hidden");
  constexpr std::size_t kHidden = 100;
  for (int round = 0; round < 3; ++round)
    test::in_thread([&] {
      std::vector<OpenFrame*> frames = open_many(stage, kMaxFrames - 1 + kHidden);
      for (std::size_t i = 0; i < kHidden / 2; ++i) {
        close(*frames.back());
        frames.pop_back();
      }
    });
  EXPECT_EQ(lost(kLostAbandoned), 3 * (kMaxFrames - 1 + kHidden / 2));
  EXPECT_EQ(count_of(stage), 3 * kHidden / 2);
  EXPECT_TRUE(read_open(arena()).empty());
}

TEST_F(OpenSpans, AHiddenSpanCanBeEndedByAnotherThread) {
  const std::uint32_t stage = recorder().intern("elsewhere");
  std::vector<OpenFrame*> frames = open_many(stage, kMaxFrames);
  int key = 0;
  ASSERT_NE(open_frame(thread(), stage, &key), nullptr);
  test::in_thread([&] {
    const FoundFrame found = recorder().find_elsewhere(&key);
    ASSERT_TRUE(found);
    EXPECT_TRUE(recorder().close_away(found, 0));
    EXPECT_FALSE(recorder().find_elsewhere(&key));
  });
  EXPECT_EQ(count_of(stage), 1U);
  frames.push_back(open_frame(thread(), stage, nullptr));
  while (!frames.empty()) {
    close(*frames.back());
    frames.pop_back();
  }
  EXPECT_EQ(thread().scope->top, thread().scope->root);
  EXPECT_EQ(count_of(stage), kMaxFrames + 2);
}

TEST_F(OpenSpans, AThreadThatLeavesWithOpenSpansAbandonsThem) {
  const std::uint32_t stage = recorder().intern("abandoned");
  test::in_thread([&] {
    open(stage);
    open(stage);
    open(stage);
    open_inactive(thread(), nullptr);
  });
  EXPECT_EQ(lost(kLostAbandoned), 3U);
  EXPECT_TRUE(read_open(arena()).empty());
  EXPECT_EQ(count_of(stage), 0U);
  // THEN the next thread of the slot starts with an empty stack
  test::in_thread([&] {
    const ScopedTimer timer(stage);
    EXPECT_EQ(own_open().size(), 1U);
    EXPECT_EQ(own_open()[0].depth, 0);
  });
}

// --- scopes of tasks ------------------------------------------------------------------------------------

TEST_F(OpenSpans, TasksThatTakeTurnsAreNotEachOthersChildren) {
  const std::uint32_t outer = recorder().intern("task.outer");
  const std::uint32_t work[] = {recorder().intern("task.0"), recorder().intern("task.1"), recorder().intern("task.2")};
  const std::uint32_t step = recorder().intern("task.step");
  OpenFrame& around = open(outer);
  const ParentLink link{around.id.load(relaxed), 9, outer, 1};
  Scope scopes[3];
  OpenFrame* frames[3];
  for (Scope& scope : scopes) {
    scope.is_task = true;
    scope.root = scope.top = take_frame(thread());
    ASSERT_NE(scope.root, 0U);
    make_root(thread(), scope.root, link);
    scope.request = link.request;
  }
  for (int i = 0; i < 3; ++i) {
    thread().scope = &scopes[i];
    frames[i] = &open(work[i]);
  }
  for (int turn = 0; turn < 5; ++turn) {
    for (Scope& scope : scopes) {
      thread().scope = &scope;
      OpenFrame& frame = open(step);
      // THEN the step's parent is its own task's span
      ASSERT_EQ(frame.parent.load(relaxed), frames[&scope - scopes]->id.load(relaxed));
      ASSERT_EQ(frame.depth.load(relaxed), 2);
      close(frame);
    }
  }
  // THEN ends in any order charge only the task's own spans
  for (const int i : {1, 0, 2}) {
    thread().scope = &scopes[i];
    close(*frames[i]);
    EXPECT_EQ(scopes[i].top, scopes[i].root);
    give_frame(thread(), scopes[i].root);
  }
  thread().scope = &thread().base;
  EXPECT_EQ(around.child_ticks.load(relaxed), 0U);
  close(around);
  for (const std::uint32_t stage : work) {
    const std::vector<SpanCopy> spans = spans_of(stage);
    ASSERT_EQ(spans.size(), 1U);
    EXPECT_EQ(spans[0].parent, link.id);
    EXPECT_EQ(spans[0].depth, 1);
    EXPECT_EQ(spans[0].request, 9U);
    EXPECT_EQ(figures_of(stage).parents.begin()->first, outer);
  }
  EXPECT_EQ(figures_of(step).host.count, 15U);
}

TEST_F(OpenSpans, ASpanKeepsTheRequestItWasOpenedIn) {
  const std::uint32_t stage = recorder().intern("request");
  thread().scope->request = 5;
  OpenFrame& frame = open(stage);
  thread().scope->request = 6;
  close(frame);
  thread().scope->request = 0;
  EXPECT_EQ(spans_of(stage)[0].request, 5U);
}

}  // namespace
}  // namespace stagespan
