// Writes what a function makes of rows of a table.
#include <cstdio>

struct Rows {
  float factor[64], made[64], table[8 * 64];
  int size;
};

static __attribute__((noinline)) void make(Rows& rows) {
  for (int k = 0; k < rows.size; ++k) {
    float row[8];
    for (int m = 0; m < 8; ++m) row[m] = rows.table[8 * k + m];
    rows.made[k] = rows.factor[k] * (row[0] + rows.factor[k] * (row[1] + row[2] * row[5]));
  }
}

static Rows rows;

int main() {
  rows.size = 4;
  for (int k = 0; k < 64; ++k) rows.factor[k] = k + 1;
  for (int k = 0; k < 8 * 64; ++k) rows.table[k] = k;
  Rows* volatile given = &rows;
  make(*given);
  std::printf("%g %g\n", given->made[0], given->made[1]);
}
