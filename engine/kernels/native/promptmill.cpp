// The C interface: a program of operations, recorded once with fixed buffers and run each step.
//
// Recording takes addresses, so whoever records must keep every buffer alive and in place. What
// changes between steps is the content of buffers and the three counts given to pm_run. A program
// is run by one thread at a time. element: 0 for float32, 1 for bfloat16.
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "attention.h"
#include "attention_bytes.h"
#include "attention_words.h"
#include "cache.h"
#include "experts.h"
#include "linear.h"
#include "pool.h"
#include "rows.h"

#if defined(__linux__)
#include <malloc.h>
#include <sys/mman.h>
#endif

using namespace promptmill;

namespace {

struct Counts {
  int num_rows;
  int num_sequences;
  int num_sampled;
};

// The step's index arrays, as RaggedBatch describes them.
struct Batch {
  const int32_t* token_ids;
  const int32_t* positions;
  const int32_t* slots;
  const int32_t* row_starts;
  const int32_t* context_lengths;
  const int32_t* block_starts;
  const int32_t* block_ids;
  const int32_t* sampled_rows;
};

struct Operation {
  int kind;
  std::function<void(const Counts&)> run;
};

constexpr int kNumKinds = 4;

struct Program {
  Program(int element, int num_threads) : element(element), pool(num_threads) {}

  int element;
  Pool pool;
  Batch batch{};
  std::vector<Operation> operations;
  double seconds[kNumKinds] = {};
  std::vector<uint8_t> quantised;  // rows of the product that is being computed
  std::vector<float> row_scales;
  ExpertGroups groups;  // of the layer that is being computed, as all that follows
  std::vector<float> expert_scores;
  std::vector<int> chosen;
  std::vector<float> shares;
  std::vector<uint32_t> expert_rows;  // of one expert, and what is between its halves
  std::vector<uint32_t> gated_rows;
};

enum Kind { kLinear, kAttention, kRows, kHead };

constexpr int kRowsPerTask = 8;

template <class Work>
void share_rows(Pool& pool, int num_rows, const Work& work) {
  pool.share(ceil_div(num_rows, kRowsPerTask), [&](int task, int) {
    const int end = std::min(num_rows, (task + 1) * kRowsPerTask);
    for (int row = task * kRowsPerTask; row < end; ++row) work(row);
  });
}

template <class Element>
void record_embed(Program& program, const PackedWeight& table, float scale, float* residual) {
  const size_t width = size_t(table.num_in_words) * Element::kPerWord;
  program.operations.push_back({kRows, [=, &program](const Counts& counts) {
    share_rows(program.pool, counts.num_rows, [&](int row) {
      embed_row<Element>(table, program.batch.token_ids[row], scale, residual + row * width);
    });
  }});
}

template <class Element>
void record_norm(Program& program, const float* x, const float* weight, int width, float eps,
                 bool is_sampled, void* out) {
  auto* to = static_cast<typename Element::Stored*>(out);
  program.operations.push_back({kRows, [=, &program](const Counts& counts) {
    const int num_rows = is_sampled ? counts.num_sampled : counts.num_rows;
    share_rows(program.pool, num_rows, [&](int row) {
      const int from = is_sampled ? program.batch.sampled_rows[row] : row;
      normalise_row<Float32, Element>(x + size_t(from) * width, weight, width, eps,
                                      to + size_t(row) * width);
    });
  }});
}

// Normalise `count` neighbouring parts of each row, which is `stride` long, where they are.
template <class Element>
void record_norm_parts(Program& program, void* first_part, int stride, int count,
                       const float* weight, int width, float eps) {
  auto* rows = static_cast<typename Element::Stored*>(first_part);
  program.operations.push_back({kRows, [=, &program](const Counts& counts) {
    share_rows(program.pool, counts.num_rows, [&](int row) {
      for (int part = 0; part < count; ++part) {
        auto* at = rows + size_t(row) * stride + size_t(part) * width;
        normalise_row<Element, Element>(at, weight, width, eps, at);
      }
    });
  }});
}

template <class Element>
void record_norm_add(Program& program, const void* x, const float* weight, int width, float eps,
                     float* residual) {
  const auto* rows = static_cast<const typename Element::Stored*>(x);
  program.operations.push_back({kRows, [=, &program](const Counts& counts) {
    share_rows(program.pool, counts.num_rows, [&](int row) {
      add_normalised_row<Element>(rows + size_t(row) * width, weight, width, eps,
                                  residual + size_t(row) * width);
    });
  }});
}

template <class Element>
void record_narrow(Program& program, const float* x, int width, void* out) {
  auto* to = static_cast<typename Element::Stored*>(out);
  program.operations.push_back({kRows, [=, &program](const Counts& counts) {
    share_rows(program.pool, counts.num_rows, [&](int row) {
      narrow_row<Element>(x + size_t(row) * width, width, to + size_t(row) * width);
    });
  }});
}

// Rotate queries and keys of each row in place, then store its keys and values.
template <class Element, class Cache>
void record_rotate(Program& program, void* qkv, const float* cosines, const float* sines, int half,
                   int num_heads, const Cache& cache) {
  auto* rows = static_cast<typename Element::Stored*>(qkv);
  program.operations.push_back({kRows, [=, &program](const Counts& counts) {
    const Batch& batch = program.batch;
    const int num_kv = cache.num_kv_heads, dim = cache.head_dim;
    share_rows(program.pool, counts.num_rows, [&](int row) {
      auto* heads = rows + size_t(row) * (num_heads + 2 * num_kv) * dim;
      const size_t angle = size_t(batch.positions[row]) * half;
      for (int head = 0; head < num_heads + num_kv; ++head) {
        rotate_head<Element>(heads + head * dim, cosines + angle, sines + angle, half);
      }
      for (int head = 0; head < num_kv; ++head) {
        cache.store(batch.slots[row], head, heads + (num_heads + head) * dim,
                    heads + (num_heads + num_kv + head) * dim);
      }
    });
  }});
}

// Tiles of one sequence and key head: which rows they hold.
struct TileRange {
  int sequence;
  int first;  // the first of token * group + head within the group
};

template <int kRows, class Element, class Products>
void run_tile(const Attention<Element, Products>& attention, const Tile<Element>& tile,
              int num_rows, float* scratch) {
  if constexpr (kRows > 1) {
    if (num_rows < kRows) {
      run_tile<kRows - 1>(attention, tile, num_rows, scratch);
      return;
    }
  }
  attention.template run<kRows>(tile, scratch);
}

template <class Element, class Products>
void record_attend(Program& program, const void* qkv,
                   const Attention<Element, Products>& attention, void* out) {
  using Stored = typename Element::Stored;
  const auto* rows = static_cast<const Stored*>(qkv);
  auto* to = static_cast<Stored*>(out);
  auto tiles = std::make_shared<std::vector<TileRange>>();
  program.operations.push_back({kAttention, [=, &program](const Counts& counts) {
    const Batch& batch = program.batch;
    const auto& cache = attention.products.cache;
    const int num_heads = attention.num_heads, num_kv = cache.num_kv_heads;
    const int dim = cache.head_dim, group = num_heads / num_kv;
    tiles->clear();
    for (int sequence = 0; sequence < counts.num_sequences; ++sequence) {
      const int num_tokens = batch.row_starts[sequence + 1] - batch.row_starts[sequence];
      for (int first = 0; first < num_tokens * group; first += kQueryRows) {
        tiles->push_back({sequence, first});
      }
    }
    program.pool.share(static_cast<int>(tiles->size()) * num_kv, [&](int task, int) {
      const TileRange& range = (*tiles)[task / num_kv];
      const int start = batch.row_starts[range.sequence];
      const int num_tokens = batch.row_starts[range.sequence + 1] - start;
      const int context = batch.context_lengths[range.sequence];
      Tile<Element> tile;
      tile.blocks = batch.block_ids + batch.block_starts[range.sequence];
      tile.head = task % num_kv;
      tile.context = context;
      const int next_task = std::min(task + program.pool.num_threads(),
                                     static_cast<int>(tiles->size()) * num_kv - 1);
      const int next_sequence = (*tiles)[next_task / num_kv].sequence;
      tile.next_blocks = batch.block_ids + batch.block_starts[next_sequence];
      tile.num_next_blocks =
          batch.block_starts[next_sequence + 1] - batch.block_starts[next_sequence];
      tile.next_head = next_task % num_kv;
      const int num_rows = std::min(kQueryRows, num_tokens * group - range.first);
      for (int row = 0; row < num_rows; ++row) {
        const int token = (range.first + row) / group;
        const int head = tile.head * group + (range.first + row) % group;
        tile.queries[row] = rows + (size_t(start + token) * (num_heads + 2 * num_kv) + head) * dim;
        tile.outs[row] = to + (size_t(start + token) * num_heads + head) * dim;
        tile.positions[row] = context - num_tokens + token;
      }
      alignas(64) float scratch[kQueryRows * kLargestHead];
      run_tile<kQueryRows>(attention, tile, num_rows, scratch);
    });
  }});
}

// Multiply rows with a weight, quantising them first if the weight is; grain 0: choose it.
template <class Element, class Sink>
void multiply_any(Program& program, const void* x, const PackedWeight& weight, int num_rows,
                  int grain, const Sink& sink) {
  if (grain == 0) grain = panels_per_task(program.pool, weight, num_rows);
  if (weight.scales == nullptr) {
    multiply<Element>(program.pool, x, weight, num_rows, grain, sink);
    return;
  }
  if (weight.group_size > 0) {
    multiply_halves<Element>(program.pool, x, weight, num_rows, grain, sink);
    return;
  }
  const int width = weight.num_in_words * Int8::kPerWord;
  if (program.row_scales.size() < size_t(num_rows)) program.row_scales.resize(num_rows);
  if (program.quantised.size() < size_t(num_rows) * width) {
    program.quantised.resize(size_t(num_rows) * width);
  }
  const auto* rows = static_cast<const typename Element::Stored*>(x);
  share_rows(program.pool, num_rows, [&](int row) {
    program.row_scales[row] = quantise_row<Element>(
        rows + size_t(row) * width, width, program.quantised.data() + size_t(row) * width);
  });
  multiply<Int8>(program.pool, program.quantised.data(), weight, num_rows, grain,
                 Dequantise<Sink>{sink, program.row_scales.data(), weight.scales, weight.offsets});
}

template <class Element>
void record_linear(Program& program, const void* x, const PackedWeight& weight, const float* bias,
                   void* out) {
  const WriteElements<Element> sink{static_cast<typename Element::Stored*>(out), bias,
                                    weight.num_out};
  program.operations.push_back({kLinear, [=, &program](const Counts& counts) {
    multiply_any<Element>(program, x, weight, counts.num_rows, 0, sink);
  }});
}

template <class Element>
void record_linear_add(Program& program, const void* x, const PackedWeight& weight,
                       float* residual) {
  const AddToResidual sink{residual, weight.num_out};
  program.operations.push_back({kLinear, [=, &program](const Counts& counts) {
    multiply_any<Element>(program, x, weight, counts.num_rows, 0, sink);
  }});
}

template <class Element, bool kIsGelu>
void record_linear_gated(Program& program, const void* x, const PackedWeight& weight, void* out) {
  const WriteGated<Element, kIsGelu> sink{static_cast<typename Element::Stored*>(out),
                                          weight.num_out / 2};
  program.operations.push_back({kLinear, [=, &program](const Counts& counts) {
    multiply_any<Element>(program, x, weight, counts.num_rows, 0, sink);
  }});
}

// Score the experts for each row, choose, and group the rows.
template <class Element>
void group_rows(Program& program, const void* x, const PackedWeight& router,
                const ExpertChoice& choice, int num_rows) {
  const size_t num_places = choice.num_places();
  program.expert_scores.resize(size_t(num_rows) * choice.num_experts);
  program.chosen.resize(num_rows * num_places);
  program.shares.resize(num_rows * num_places);
  float* scores = program.expert_scores.data();
  multiply_any<Element>(program, x, router, num_rows, 0,
                        WriteScores{scores, choice.num_experts, 0});
  share_rows(program.pool, num_rows, [&](int row) {
    choose_experts(choice, scores + size_t(row) * choice.num_experts,
                   program.chosen.data() + row * num_places,
                   program.shares.data() + row * num_places);
  });
  program.groups.fill(choice, num_rows, program.chosen.data(), program.shares.data());
}

template <class Element, bool kIsGelu>
void record_experts_add(Program& program, const void* x, const PackedWeight& router,
                        const Expert* experts, const ExpertChoice& choice, float* residual) {
  const std::vector<Expert> all(experts, experts + choice.num_experts);
  const auto* words = static_cast<const uint32_t*>(x);
  program.operations.push_back({kLinear, [=, &program](const Counts& counts) {
    group_rows<Element>(program, x, router, choice, counts.num_rows);
    const ExpertGroups& groups = program.groups;
    for (int index = 0; index < choice.num_experts; ++index) {
      const auto& [gate_up, down] = all[index];
      const int start = groups.starts[index], num_rows = groups.starts[index + 1] - start;
      const size_t num_words = router.num_in_words;
      program.expert_rows.resize(std::max(program.expert_rows.size(), num_rows * num_words));
      program.gated_rows.resize(
          std::max(program.gated_rows.size(), size_t(num_rows) * down.num_in_words));
      share_rows(program.pool, num_rows, [&](int row) {
        std::copy_n(words + groups.rows[start + row] * num_words, num_words,
                    program.expert_rows.data() + row * num_words);
      });
      auto* gated = reinterpret_cast<typename Element::Stored*>(program.gated_rows.data());
      multiply_any<Element>(program, program.expert_rows.data(), gate_up, num_rows, 0,
                            WriteGated<Element, kIsGelu>{gated, gate_up.num_out / 2});
      multiply_any<Element>(program, gated, down, num_rows, 0,
                            AddShare{{residual, down.num_out}, groups.rows.data() + start,
                                     groups.shares.data() + start});
    }
  }});
}

template <class Element>
void record_scores(Program& program, const void* x, const PackedWeight& weight, float softcap,
                   float* out) {
  const WriteScores sink{out, weight.num_out, softcap};
  program.operations.push_back({kHead, [=, &program](const Counts& counts) {
    multiply_any<Element>(program, x, weight, counts.num_sampled, 0, sink);
  }});
}

template <class Element>
void record_best(Program& program, const void* x, const PackedWeight& weight, int max_rows,
                 int32_t* out) {
  const int num_tasks = ceil_div(ceil_div(weight.num_out, kPanel), KeepBest::kPanelsPerTask);
  const auto best =
      std::make_shared<std::vector<KeepBest::Best>>(size_t(num_tasks) * max_rows * kVectors);
  program.operations.push_back({kHead, [=, &program](const Counts& counts) {
    const int num_rows = counts.num_sampled;
    const KeepBest sink{best->data(), num_rows, weight.num_out};
    multiply_any<Element>(program, x, weight, num_rows, KeepBest::kPanelsPerTask, sink);
    for (int row = 0; row < num_rows; ++row) out[row] = sink.best_column(row, num_tasks);
  }});
}

// A layer's cache, before its types are known.
struct CachePlace {
  void* keys;
  void* values;
  float* scales;  // null: keys and values are of the model's type
  int num_kv_heads;
  int head_dim;
  int block_size;
};

template <class Element, class Use>
void with_cache_of(const CachePlace& place, const Use& use) {
  using Stored = typename Element::Stored;
  if (place.scales != nullptr) {
    use(ByteCache<Element>{static_cast<int8_t*>(place.keys), static_cast<int8_t*>(place.values),
                           place.scales, place.num_kv_heads, place.head_dim, place.block_size},
        Element{});
  } else {
    use(WordCache<Element>{static_cast<Stored*>(place.keys), static_cast<Stored*>(place.values),
                           place.num_kv_heads, place.head_dim, place.block_size},
        Element{});
  }
}

template <class Use>
void with_cache(const Program& program, const CachePlace& place, const Use& use) {
  program.element == 0 ? with_cache_of<Float32>(place, use) : with_cache_of<Bfloat16>(place, use);
}

template <class Element>
WordProducts<Element> products_with(const WordCache<Element>& cache) {
  return {cache};
}

template <class Element>
ByteProducts<Element> products_with(const ByteCache<Element>& cache) {
  return {cache};
}

}  // namespace

extern "C" {

Program* pm_create(int element, int num_threads) { return new Program(element, num_threads); }

void pm_destroy(Program* program) { delete program; }

void pm_set_batch(Program* program, const Batch* batch) { program->batch = *batch; }

int pm_num_operations(const Program* program) { return static_cast<int>(program->operations.size()); }

// Run the operations from first up to last.
void pm_run(Program* program, int first, int last, int num_rows, int num_sequences,
            int num_sampled) {
  using Clock = std::chrono::steady_clock;
  const Counts counts{num_rows, num_sequences, num_sampled};
  auto before = Clock::now();
  for (int index = first; index < last; ++index) {
    program->operations[index].run(counts);
    const auto after = Clock::now();
    program->seconds[program->operations[index].kind] +=
        std::chrono::duration<double>(after - before).count();
    before = after;
  }
}

// Seconds spent so far in linear layers, attention, single rows and the head.
void pm_seconds(const Program* program, double* seconds) {
  std::copy(program->seconds, program->seconds + kNumKinds, seconds);
}

size_t pm_packed_words(int num_out, int num_in_words) { return packed_words(num_out, num_in_words); }

void pm_pack(const uint32_t* weight, int num_out, int num_in_words, int is_gated,
             uint32_t* packed) {
  pack(weight, num_out, num_in_words, is_gated != 0, packed);
}

int pm_panel() { return kPanel; }

// Let large memory go back to the system when it is freed: loading a model frees much of it, and
// the allocator would otherwise keep it for allocations that never come. What steps allocate is
// smaller and is kept: given back each time, it would be new pages at every step.
void pm_return_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 8 << 20);
#endif
}

// Ask for large pages where memory is read from end to end: fewer address translations.
void pm_use_large_pages(void* memory, size_t size) {
#if defined(__linux__)
  constexpr uintptr_t kLargePage = 2 << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + kLargePage - 1) & ~(kLargePage - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + size) & ~(kLargePage - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

#define PM_DISPATCH(function, ...)                    \
  (program->element == 0 ? function<Float32>(__VA_ARGS__) : function<Bfloat16>(__VA_ARGS__))

void pm_embed(Program* program, const PackedWeight* table, float scale, float* residual) {
  PM_DISPATCH(record_embed, *program, *table, scale, residual);
}

void pm_norm(Program* program, const float* x, const float* weight, int width, float eps,
             int is_sampled, void* out) {
  PM_DISPATCH(record_norm, *program, x, weight, width, eps, is_sampled != 0, out);
}

void pm_norm_parts(Program* program, void* first_part, int stride, int count, const float* weight,
                   int width, float eps) {
  PM_DISPATCH(record_norm_parts, *program, first_part, stride, count, weight, width, eps);
}

void pm_norm_add(Program* program, const void* x, const float* weight, int width, float eps,
                 float* residual) {
  PM_DISPATCH(record_norm_add, *program, x, weight, width, eps, residual);
}

void pm_narrow(Program* program, const float* x, int width, void* out) {
  PM_DISPATCH(record_narrow, *program, x, width, out);
}

void pm_linear(Program* program, const void* x, const PackedWeight* weight, const float* bias,
               void* out) {
  PM_DISPATCH(record_linear, *program, x, *weight, bias, out);
}

void pm_linear_add(Program* program, const void* x, const PackedWeight* weight,
                   float* residual) {
  PM_DISPATCH(record_linear_add, *program, x, *weight, residual);
}

void pm_linear_gated(Program* program, const void* x, const PackedWeight* weight, int is_gelu,
                     void* out) {
  const PackedWeight& packed = *weight;
  if (program->element == 0) {
    is_gelu ? record_linear_gated<Float32, true>(*program, x, packed, out)
            : record_linear_gated<Float32, false>(*program, x, packed, out);
  } else {
    is_gelu ? record_linear_gated<Bfloat16, true>(*program, x, packed, out)
            : record_linear_gated<Bfloat16, false>(*program, x, packed, out);
  }
}

// experts: as many as the router has outputs. is_gelu: else SiLU.
void pm_experts_add(Program* program, const void* x, const PackedWeight* router,
                    const Expert* experts, int num_chosen, int is_renormalised, int has_shared,
                    int is_gelu, float* residual) {
  const ExpertChoice choice{router->num_out, num_chosen, is_renormalised != 0, has_shared != 0};
  if (program->element == 0) {
    is_gelu ? record_experts_add<Float32, true>(*program, x, *router, experts, choice, residual)
            : record_experts_add<Float32, false>(*program, x, *router, experts, choice, residual);
  } else {
    is_gelu ? record_experts_add<Bfloat16, true>(*program, x, *router, experts, choice, residual)
            : record_experts_add<Bfloat16, false>(*program, x, *router, experts, choice, residual);
  }
}

// scales: null where the cache is of the model's type, else it holds bytes.
void pm_rotate(Program* program, void* qkv, const float* cosines, const float* sines, int half,
               int num_heads, int num_kv_heads, int head_dim, void* keys, void* values,
               float* scales, int block_size) {
  const CachePlace place{keys, values, scales, num_kv_heads, head_dim, block_size};
  with_cache(*program, place, [&](const auto& cache, auto element) {
    record_rotate<decltype(element)>(*program, qkv, cosines, sines, half, num_heads, cache);
  });
}

void pm_attend(Program* program, const void* qkv, int num_heads, int num_kv_heads, int head_dim,
               float scale, int window, float softcap, void* keys, void* values, float* scales,
               int block_size, void* out) {
  const CachePlace place{keys, values, scales, num_kv_heads, head_dim, block_size};
  with_cache(*program, place, [&](const auto& cache, auto element) {
    using Element = decltype(element);
    const auto products = products_with(cache);
    const Attention<Element, std::decay_t<decltype(products)>> attention{
        products, num_heads, scale, window, softcap};
    record_attend(*program, qkv, attention, out);
  });
}

void pm_scores(Program* program, const void* x, const PackedWeight* weight, float softcap,
               float* out) {
  PM_DISPATCH(record_scores, *program, x, *weight, softcap, out);
}

void pm_best(Program* program, const void* x, const PackedWeight* weight, int max_rows,
             int32_t* out) {
  PM_DISPATCH(record_best, *program, x, *weight, max_rows, out);
}

}  // extern "C"
