/* Inner loops of learning and answering, called from Python through ctypes.

   Every function has a NumPy twin that is used where this file was not compiled. Matrix products
   are BLAS's: the caller hands over SciPy's dgemm and sgemm. */

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif
/* Of the sources this was compiled from (see build.py). */
const char *source_digest(void) { return SOURCE_DIGEST; }

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
/* One copy for each generation of processors; the loader takes the one that fits. */
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CLONES
#endif

/* Into every clone of the caller: a function of its own would be the oldest processor's. */
#define INLINE static inline __attribute__((always_inline))

/* e^x to a few units in the last place for x <= 0, written so that compilers vectorise it. */
INLINE double exp_below_zero(double x) {
  const double log2e = 1.4426950408889634, high = 6.93147180369123816490e-01,
               low = 1.90821492927058770002e-10;
  x = x < -700 ? -700 : x;
  double k = __builtin_rint(x * log2e);
  double r = (x - k * high) - k * low;
  double p = 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1;
  p = p * r + 1;
  union {
    double value;
    int64_t bits;
  } scaled = {p};
  scaled.bits += (int64_t)k << 52;
  return scaled.value;
}

/* log x to a few units in the last place for x above zero, subnormal ones excepted. */
INLINE double log_above_zero(double x) {
  const double high = 6.93147180369123816490e-01, low = 1.90821492927058770002e-10;
  union {
    double value;
    int64_t bits;
  } part = {x};
  const int64_t k = (part.bits - 0x3fe6a09e667f3bcd) >> 52; /* to between sqrt(1/2) and sqrt(2) */
  part.bits -= (int64_t)((uint64_t)k << 52);
  const double f = part.value - 1, s = f / (2 + f), z = s * s, power = (double)k;
  double p = 1.0 / 23;
  p = p * z + 1.0 / 21;
  p = p * z + 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  return power * high + (2 * s + (2 * s * z * p + power * low));
}

/* The cells of a row as numbers of states over all columns, in `cells` (D); a missing one counts as
   the column's first: callers leave such rows out.

   codes (n, D) of one, two or four bytes; layout: bytes of a code, D, first state of every column. */
INLINE void row_cells(const void *codes, const int64_t *layout, int64_t row, int32_t *restrict cells) {
  const int64_t D = layout[1], *restrict first = layout + 2;
#define ADD(TYPE)                                      \
  for (int64_t j = 0; j < D; j++) {                    \
    const int32_t code = ((const TYPE *)codes)[row * D + j]; \
    cells[j] = (int32_t)first[j] + (code > 0 ? code : 0); \
  }
  if (layout[0] == 1) { ADD(int8_t) }
  else if (layout[0] == 2) { ADD(int16_t) }
  else { ADD(int32_t) }
#undef ADD
}

/* Numbers of two classes side by side. */
typedef double two_doubles __attribute__((vector_size(16), aligned(8), may_alias));

/* Of m rows from `begin` on and two classes: one and two (m) get c and the tilts (cells, 2) of the
   row's cells, which are found as in row_cells. */
INLINE void two_class_sums(const void *codes, const int64_t *layout, int64_t begin, int64_t m,
                           const double *c, const double *tilts, double *restrict one,
                           double *restrict two) {
  const int64_t D = layout[1], *restrict first = layout + 2;
#define SUM(TYPE)                                                                  \
  for (int64_t i = 0; i < m; i++) {                                                \
    const TYPE *restrict row = (const TYPE *)codes + (begin + i) * D;              \
    two_doubles sum = *(const two_doubles *)c;                                     \
    for (int64_t j = 0; j < D; j++)                                                \
      sum += *(const two_doubles *)(tilts + 2 * (first[j] + (row[j] > 0 ? row[j] : 0))); \
    one[i] = sum[0], two[i] = sum[1];                                              \
  }
  if (layout[0] == 1) { SUM(int8_t) }
  else if (layout[0] == 2) { SUM(int16_t) }
  else { SUM(int32_t) }
#undef SUM
}

/* The way back: adds one and two (m) of the rows to c and to the sums (cells, 2) of their cells. */
INLINE void add_two_classes(const void *codes, const int64_t *layout, int64_t begin, int64_t m,
                            const double *one, const double *two, double *c, double *cells) {
  const int64_t D = layout[1], *restrict first = layout + 2;
#define ADD(TYPE)                                                                  \
  for (int64_t i = 0; i < m; i++) {                                                \
    const TYPE *restrict row = (const TYPE *)codes + (begin + i) * D;              \
    const two_doubles more = {one[i], two[i]};                                     \
    *(two_doubles *)c += more;                                                     \
    for (int64_t j = 0; j < D; j++)                                                \
      *(two_doubles *)(cells + 2 * (first[j] + (row[j] > 0 ? row[j] : 0))) += more; \
  }
  if (layout[0] == 1) { ADD(int8_t) }
  else if (layout[0] == 2) { ADD(int16_t) }
  else { ADD(int32_t) }
#undef ADD
}

#include "parallel.inc"

/* Rows of a chunk whose classes are worked on together, at most. */
enum { MOST_CHUNK = 128 };

/* Widths of the kernels that spread counts over bins (see tree/along_axis.py). */
enum { N_WIDTHS = 10 };

#include "table_penalties.inc"
#include "small_gemm.inc"

/* Rows of a latent whose last rescaling is booked together (tree_pass.inc). */
enum { BOOKED_AT_ONCE = 64 };

#define REAL float
#define NAME(stem) stem##_f32
typedef void (*gemm_f32)(const char *, const char *, int *, int *, int *, float *, const float *,
                         int *, const float *, int *, float *, float *, int *);
#include "tree_pass.inc"
#include "tilt_rows.inc"
#undef REAL
#undef NAME

#define REAL double
#define NAME(stem) stem##_f64
typedef void (*gemm_f64)(const char *, const char *, int *, int *, int *, double *, const double *,
                         int *, const double *, int *, double *, double *, int *);
#include "tree_pass.inc"
#include "tilt_rows.inc"
#include "normaliser.inc"
#include "tilt_objective.inc"
#undef REAL
#undef NAME

#define REAL float
#define NAME(stem) stem##_f32
#include "tilt_objective.inc"
#undef REAL
#undef NAME

/* One step of Adam on rows (n, width) of logits whose softmax (with a floor) is `chances`.

   gradient: with respect to the logs of the chances, taken as free numbers. */
INLINE void adam_table(int64_t n, int64_t width, const double *gradient, double *first,
                      double *second, double *logits, double *chances, double step,
                      double first_scale, double second_scale, double floor) {
  for (int64_t i = 0; i < n; i++) {
    const double *restrict g = gradient + i * width;
    double *restrict m = first + i * width, *restrict v = second + i * width;
    double *restrict x = logits + i * width, *restrict p = chances + i * width;
    double sum = 0, top = -INFINITY, total = 0;
    for (int64_t k = 0; k < width; k++) sum += g[k];
    for (int64_t k = 0; k < width; k++) {
      double d = g[k] - p[k] * sum;
      m[k] += 0.1 * (d - m[k]);
      v[k] += 0.01 * (d * d - v[k]);
      x[k] -= step * (m[k] * first_scale) / (sqrt(v[k] * second_scale) + 1e-8);
    }
    for (int64_t k = 0; k < width; k++) top = x[k] > top ? x[k] : top;
    for (int64_t k = 0; k < width; k++) p[k] = exp_below_zero(x[k] - top) + floor;
    for (int64_t k = 0; k < width; k++) total += p[k];
    for (int64_t k = 0; k < width; k++) p[k] /= total;
  }
}

/* out (n, k): largest values[i, j] * weights[j, c] over j, of values (n, r) and weights (r, k). */
CLONES void max_times(int64_t n, int64_t r, int64_t k, const double *values,
                      const double *weights, double *out) {
  for (int64_t i = 0; i < n; i++) {
    double *restrict best = out + i * k;
    for (int64_t c = 0; c < k; c++) best[c] = 0;
    for (int64_t j = 0; j < r; j++) {
      double value = values[i * r + j];
      const double *restrict row = weights + j * k;
      for (int64_t c = 0; c < k; c++) {
        double found = value * row[c];
        best[c] = found > best[c] ? found : best[c];
      }
    }
  }
}

/* Logits of rows under a tilt, class after class: logits (Y, n) gets the sum of the tilts of a
   row's cells, mixed (Y, n) its evidence weighted by the class's root weights.

   codes and layout: as row_cells takes them; own (D): space. Rows with missing cells are wrong.
   evidence: (n, H) for all classes where stride is 0, else (Y, n, H) with stride n * H. */
CLONES void tilt_logits(int64_t n, int64_t Y, int64_t H, const void *codes,
                        const int64_t *layout, int32_t *own, const double *tilts,
                        const float *evidence, int64_t stride, const float *root, double *logits,
                        double *mixed) {
  for (int64_t i = 0; i < n; i++) {
    row_cells(codes, layout, i, own);
    for (int64_t y = 0; y < Y; y++) {
      const float *restrict row = evidence + y * stride + i * H;
      const float *restrict weight = root + y * H;
      float sum = 0;
      for (int64_t h = 0; h < H; h++) sum += row[h] * weight[h];
      mixed[y * n + i] = sum;
      double total = 0;
      for (int64_t j = 0; j < layout[1]; j++) total += tilts[(int64_t)own[j] * Y + y];
      logits[y * n + i] = total;
    }
  }
}

/* How many of m sorted numbers are at most x (or below x, where strictly). */
static inline int64_t count_below(int64_t m, const double *sorted, double x, int strictly) {
  int64_t low = 0, high = m;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (strictly ? sorted[middle] < x : sorted[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* States of values on a grid, -1 for none, and log-densities within them; tails are left at 0.

   ends: numbers of edges m, atoms k, states, whether whole numbers, state of "missing" or -1,
   states of the tails or -1. in_tails: how many values are there.
   of_atom (k), of_interval (m + 1): states; start (states + 1), ramp (3, states + 1): log-density at
   the start of a bin and its tilt, lower and upper end, last for no state. */
void grid_locate(int64_t n, const double *x, const int64_t *ends, const double *edges,
                 const double *atoms, const int64_t *of_atom, const int64_t *of_interval,
                 const double *start, const double *ramp, int64_t *states, double *within,
                 int64_t *in_tails) {
  const int64_t m = ends[0], k = ends[1], n_states = ends[2], whole = ends[3], missing = ends[4];
  const double *tilt = ramp, *low = ramp + n_states + 1, *high = low + n_states + 1;
  for (int64_t i = 0; i < n; i++) {
    const double value = x[i];
    int64_t at = count_below(m, edges, value, 0), state;
    if (isnan(value)) at = m; /* as NumPy sorts it */
    if (m > 1 && value == edges[m - 1]) at = m - 1;
    state = of_interval[at];
    if (k) {
      at = count_below(k, atoms, value, 1);
      if (at < k && atoms[at] == value) state = of_atom[at];
    }
    if (whole && !(value == floor(value) || isinf(value))) state = -1;
    if (isinf(value) && value > 0) state = missing;
    states[i] = state;
    at = state < 0 ? n_states : state;
    double level = start[at];
    if (tilt[at] != 0) {
      const double unit = isinf(high[at] - low[at]) ? 0.5 : 1.0;
      level += tilt[at] * ((value * unit - low[at] * unit) / (high[at] * unit - low[at] * unit));
    }
    within[i] = level;
    *in_tails += state >= 0 && (state == ends[5] || state == ends[6] || value < edges[0]);
  }
}

/* The same for G columns of rows (n, D) at once, before tails: cells and within (groups, n) of group
   at[g] are written; grids (G, 7): where ends to ramp of each lie; in_tails (G): how many values of
   each lie in tails; work and states: n numbers each. */
void grids_locate(int64_t n, int64_t D, int64_t G, const double *values, const int64_t *column,
                  const int64_t *at, void *const *grids, int32_t *cells, double *within,
                  int64_t *in_tails, double *work, int64_t *states) {
  for (int64_t g = 0; g < G; g++) {
    void *const *grid = grids + 7 * g;
    for (int64_t i = 0; i < n; i++) work[i] = values[i * D + column[g]];
    grid_locate(n, work, grid[0], grid[1], grid[2], grid[3], grid[4], grid[5], grid[6], states,
                within + at[g] * n, in_tails + g);
    for (int64_t i = 0; i < n; i++) cells[at[g] * n + i] = (int32_t)states[i];
  }
}

#define REAL float
#define NAME(stem) stem##_f32
#include "em.inc"
#include "transitions.inc"
#undef REAL
#undef NAME

#define REAL double
#define NAME(stem) stem##_f64
#include "em.inc"
#include "transitions.inc"
#undef REAL
#undef NAME

#include "additive.inc"
#include "wide_trees.inc"
#include "trees.inc"
#include "boost.inc"
#include "boost_steps.inc"
#include "circuit_values.inc"
#include "circuit_pass.inc"
#include "grouping.inc"
#include "pairs.inc"
#include "patterns.inc"
