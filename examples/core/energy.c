/* Energy, virial and forces of a system, by the C core (docs/core.md).
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

int main(int argc, char **argv) {
  long n;
  double cell[9];
  if (argc != 3) return fail("usage: energy MODEL float32|float64 < SYSTEM");
  if (scanf("%ld", &n) != 1 || n < 0 || n > 1000000) return fail("the system has no number of atoms");
  for (int k = 0; k < 9; ++k)
    if (scanf("%lf", &cell[k]) != 1) return fail("the system has no cell");
  int32_t *types = malloc((n + 1) * sizeof(int32_t));
  double *positions = malloc((n + 1) * 3 * sizeof(double)), *forces = malloc((n + 1) * 3 * sizeof(double));
  if (!types || !positions || !forces) return fail("there is no memory");
  for (long i = 0; i < n; ++i)
    if (scanf("%d %lf %lf %lf", &types[i], &positions[3 * i], &positions[3 * i + 1], &positions[3 * i + 2]) != 4)
      return fail("the system has fewer atoms than it says");

  mdops_options options = {0};
  options.precision = strcmp(argv[2], "float64") == 0 ? MDOPS_FLOAT64 : MDOPS_FLOAT32;
  mdops_model *model = NULL;
  if (mdops_load(argv[1], &options, &model) != MDOPS_OK) return fail(mdops_message());

  mdops_input input = {0};
  input.atoms = n;
  input.types = types;
  input.positions = positions;
  input.cell = cell;
  mdops_output output = {0};
  output.forces = forces;
  if (mdops_compute(model, &input, &output) != MDOPS_OK) return fail(mdops_message());

  printf("energy %.17g\nvirial", output.energy);
  for (int k = 0; k < 9; ++k) printf(" %.17g", output.virial[k]);
  printf("\n");
  for (long i = 0; i < n; ++i)
    printf("force %.17g %.17g %.17g\n", forces[3 * i], forces[3 * i + 1], forces[3 * i + 2]);
  mdops_free(model);
  free(types);
  free(positions);
  free(forces);
  return 0;
}
