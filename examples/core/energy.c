/* Energy, virial and forces of a system, with the C core (docs/reference/core.md).
 *
 *     cc energy.c $(mdops core --cflags --libs) -o energy
 *     ./energy model.safetensors float64 < system.txt
 *
 * The system: the number of atoms; the cell, nine numbers, A; for each atom its type and position, A.
 */
#include <mdops.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *why) {
  fprintf(stderr, "%s\n", why);
  return 1;
}

/* Fills the output. Returns 0, or 1 after it printed an error. */
static int compute(const char *path, const char *precision, const mdops_input *input, mdops_output *output) {
  mdops_options options = {.struct_size = sizeof(options)};
  options.precision = strcmp(precision, "float64") == 0 ? MDOPS_FLOAT64 : MDOPS_FLOAT32;
  mdops_model *model = NULL;
  int failed = mdops_load(path, &options, &model) != MDOPS_OK || mdops_compute(model, input, output) != MDOPS_OK;
  if (failed) fail(mdops_message());
  mdops_free(model); /* NULL, too */
  return failed;
}

static int read_atoms(long n, int32_t *types, double *x) {
  for (long i = 0; i < n; ++i, x += 3)
    if (scanf("%d %lf %lf %lf", &types[i], &x[0], &x[1], &x[2]) != 4)
      return fail("the system has fewer atoms than it says");
  return 0;
}

int main(int argc, char **argv) {
  long n;
  double cell[9];
  if (argc != 3) return fail("usage: energy MODEL float32|float64 < SYSTEM");
  if (scanf("%ld", &n) != 1 || n < 0 || n > 1000000) return fail("the system has no number of atoms");
  for (int k = 0; k < 9; ++k)
    if (scanf("%lf", &cell[k]) != 1) return fail("the system has no cell");
  int32_t *types = malloc((n + 1) * sizeof(int32_t));
  double *positions = malloc((n + 1) * 3 * sizeof(double)), *forces = malloc((n + 1) * 3 * sizeof(double));

  mdops_input input = {.struct_size = sizeof(input)};
  input.atoms = n;
  input.types = types;
  input.positions = positions;
  input.cell = cell;
  mdops_output output = {.struct_size = sizeof(output)};
  output.forces = forces;
  int failed = !types || !positions || !forces ? fail("there is no memory") : read_atoms(n, types, positions);
  if (!failed) failed = compute(argv[1], argv[2], &input, &output);
  if (!failed) {
    printf("energy %.17g\nvirial", output.energy);
    for (int k = 0; k < 9; ++k) printf(" %.17g", output.virial[k]);
    printf("\n");
    for (long i = 0; i < n; ++i)
      printf("force %.17g %.17g %.17g\n", forces[3 * i], forces[3 * i + 1], forces[3 * i + 2]);
  }
  free(types);
  free(positions);
  free(forces);
  return failed;
}
