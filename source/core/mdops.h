/* mdops.h: Deep Potential models for programs in C, C++ and Fortran.
 *
 * This header is the whole interface of libmdops_core, which needs neither PyTorch nor Python. A model file
 * is made by `mdops convert IN OUT.safetensors`.
 *
 *     mdops_model *model = NULL;
 *     if (mdops_load("water.safetensors", NULL, &model) != MDOPS_OK)
 *       fprintf(stderr, "%s\n", mdops_message());
 *     mdops_input input = {.struct_size = sizeof(input), .atoms = n, .types = types, .positions = positions,
 *                          .cell = cell};
 *     mdops_output output = {.struct_size = sizeof(output), .forces = forces};
 *     if (mdops_compute(model, &input, &output) != MDOPS_OK) ...
 *     mdops_free(model);
 *
 * Units: A, eV, eV/A. Numbers at the interface are float64, whatever a model computes in. Arrays are in C's
 * order: (N, 3) is x, y, z of atom 0, then those of atom 1, and so on.
 *
 * Every function that can fail returns MDOPS_OK or one of the codes below; mdops_message() then says why. No
 * C++ exception leaves the library, and nothing in it ends the process. Different threads may use different
 * models, or wait for each other at the same one. What a function was given stays the caller's; nothing keeps
 * a pointer to it.
 *
 * Each struct begins with `struct_size`, its sizeof, which the caller sets. Later versions of this library
 * add fields at the ends of structs. From the size they know which fields an older program has, and take the
 * others as zero. So such a program still works with a newer version of the library.
 */
#ifndef MDOPS_H
#define MDOPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MDOPS_API __attribute__((visibility("default")))
#else
#define MDOPS_API
#endif

/* Of this header. It grows where a compiled program would no longer work; the library's name ends in it
 * (libmdops_core.so.4), so that the loader finds no other. New functions, and fields at the end of a struct,
 * leave it as it is. */
#define MDOPS_API_VERSION 4

/* That of the library: for programs that open it by dlopen. */
MDOPS_API int mdops_api_version(void);

/* What functions return. */
enum {
  MDOPS_OK = 0,
  MDOPS_INVALID =
      1,          /* an invalid argument: a null pointer, a type that the model does not have, a flat cell */
  MDOPS_FILE = 2, /* the file is absent, damaged, or no model for this library */
  MDOPS_UNSUPPORTED = 3, /* a model that this library does not evaluate, or not in this precision */
  MDOPS_NEIGHBORS = 4,   /* two atoms at one place, or more neighbours than the model has places for */
  MDOPS_MEMORY = 5,      /* no memory, or no threads */
  MDOPS_INTERNAL = 6,    /* anything else: please report it */
  MDOPS_DEVICE = 7       /* CUDA refused: no such GPU, or an error on it */
};

/* Why the last function of this thread that failed did so, in English; "" before any did. The text stays
 * until the next failure in this thread. */
MDOPS_API const char* mdops_message(void);

/* ---- Models ---- */

typedef struct mdops_model mdops_model;

/* What a model computes in. The file must have been made for it (`mdops convert --core`). */
enum { MDOPS_FLOAT32 = 0, MDOPS_FLOAT64 = 1 };

/* What happens where an atom has more neighbours within the cutoff than the model has places for (its `sel`).
 */
enum {
  MDOPS_REFUSE = 0, /* MDOPS_NEIGHBORS */
  MDOPS_EXTEND = 1  /* all of them count */
};

/* The part of a file to load. A model of DeePMD-kit's DPLR has two parts: energies, which lack those of
 * charges beyond the cutoff, and the dipoles that say where half of these charges are (mdops_info). */
enum {
  MDOPS_WHOLE = 0,       /* all of a model of energies; one with charges is refused */
  MDOPS_SHORT_RANGE = 1, /* a model of energies, without its charges: the program adds them */
  MDOPS_DIPOLES = 2      /* a model of dipoles, alone or of charges */
};

/* How a model is loaded; all zero but for its size is the default. */
typedef struct mdops_options {
  size_t struct_size; /* sizeof(mdops_options) */
  int32_t precision;  /* MDOPS_FLOAT32 or MDOPS_FLOAT64 */
  int32_t overflow;   /* MDOPS_REFUSE or MDOPS_EXTEND */
  /* Threads to compute with; 0: OMP_NUM_THREADS, or as many as there are processors for this process. On a
   * GPU they copy from and to the host's memory; 0: four at most. */
  int32_t threads;
  /* "cpu", or "cuda:N" for GPU N, "cuda" being the first; null: "cpu". Layers of attention compute in float32
   * alone on a GPU (docs/reference/core.md); see "GPUs" below. */
  const char* device;
  int32_t part; /* MDOPS_WHOLE, MDOPS_SHORT_RANGE or MDOPS_DIPOLES */
  /* A program, a Python that has mdops. A process of it runs beside this one, and evaluates models whose file
   * has no part for this library: of any format, also those that pass messages. Null: that of the
   * environment's MDOPS_PYTHON; where that is not set, such a file is refused. */
  const char* python;
  /* (2,): the system's charge, e, and multiplicity, for models with an embedding of these; null: the model's
   * default. */
  const double* charge_spin;
} mdops_options;

/* GPUs that this process sees; 0 where there is none, or the library was built without CUDA. */
MDOPS_API int mdops_gpu_count(void);

/* Reads a model from a file. `options` may be null. On success *model is to be freed; otherwise it is null.
 * MDOPS_INVALID, MDOPS_FILE, MDOPS_UNSUPPORTED, MDOPS_MEMORY, MDOPS_DEVICE. */
MDOPS_API int mdops_load(const char* path, const mdops_options* options, mdops_model** model);

/* Frees a model; does nothing with null. */
MDOPS_API void mdops_free(mdops_model* model);

/* What a model is. */
typedef struct mdops_info {
  size_t struct_size;       /* sizeof(mdops_info), from the caller */
  double cutoff;            /* A: neighbours farther away do not count */
  double shortest;          /* A: nearer pairs go on smoothly, but the forces there are not the model's */
  int32_t ntypes;           /* types are 0 .. ntypes - 1 */
  int32_t fparam, aparam;   /* how many parameters it takes, of the frame and of each atom */
  int32_t needs_fparam;     /* 0: the model has frame parameters of its own, for where none are given */
  int32_t precision;        /* MDOPS_FLOAT32 or MDOPS_FLOAT64 */
  int32_t threads;          /* that it computes with, or on a GPU copies with */
  int32_t gpu;              /* which one computes; -1: the CPU */
  const char* const* names; /* (ntypes,): the element of each type; they stay until the model is freed */
  /* (ntypes,): 1 for types whose atoms have a dipole, 0 for the others; null of models of energies. Arrays of
   * this struct stay until the model is freed. */
  const int32_t* has_dipole;
  /* (ntypes,), e: of a file with charges, for MDOPS_DIPOLES: the charge at the atoms of each type, and that
   * at the ends of their dipoles, 0 where there are none; otherwise null. */
  const double *charges, *dipole_charges;
  double beta;             /* 1/A: their Gaussians are exp(-beta^2 r^2); 0 without charges */
  int32_t lacks_charges;   /* 1: the energies are those of MDOPS_SHORT_RANGE, of a file with charges */
  int32_t in_python;       /* 1: a process of Python evaluates it; arrays are in the host's memory */
  int32_t passes_messages; /* 1: of ghosts it needs mdops_neighbors.sources */
  /* (ntypes,): 1 for types whose atoms have magnetic moments, 0 for the others; null of models without. */
  const int32_t* magnetic;
  /* A for a moment of one: the largest distance of a virtual atom, which some models have for each moment.
   * Ghosts are then needed up to the cutoff plus twice this times the largest moment. 0: there are none. */
  double virtual_scale;
} mdops_info;

/* Fills *info, but for its size. MDOPS_INVALID. */
MDOPS_API int mdops_describe(const mdops_model* model, mdops_info* info);

/* Changes the number of threads, as in `mdops_options.threads`. The last bits of results depend on the
 * number. MDOPS_INVALID, MDOPS_MEMORY. */
MDOPS_API int mdops_set_threads(mdops_model* model, int32_t threads);

/* Host memory that the model's device reads and writes fastest: pinned, for a model on a GPU. It is meant for
 * positions and results of every step; other memory works, too. It is released before the model is freed.
 * MDOPS_INVALID, MDOPS_MEMORY, MDOPS_DEVICE; *memory is null then. */
MDOPS_API int mdops_allocate(mdops_model* model, int64_t bytes, void** memory);

/* Gives such memory back; does nothing with null. */
MDOPS_API void mdops_release(mdops_model* model, void* memory);

/* ---- Neighbour lists of the caller's ----
 * For programs that have a list, as LAMMPS does; without one, a model searches for itself. */

typedef struct mdops_list mdops_list;
typedef struct mdops_input mdops_input;

/* What processes that share a system exchange while a model that passes messages computes: rows of numbers
 * of the atoms that others have as ghosts. */
enum {
  MDOPS_TO_GHOSTS = 0,   /* rows of the border go to the processes that have these atoms as ghosts */
  MDOPS_FROM_GHOSTS = 1, /* rows of atoms of other processes go back to these */
  MDOPS_DONE = 2,        /* this process has its results */
  MDOPS_FAILED = 3       /* it has none: nobody may wait for it */
};

typedef struct mdops_exchange {
  size_t struct_size;   /* sizeof(mdops_exchange) */
  int64_t border;       /* B, atoms here that others have as ghosts, as often as there are such processes */
  const int32_t* atoms; /* (B,): which */
  int64_t rows;         /* H, atoms of others that are ghosts here, each once */
  /* mdops_compute calls it, in all processes equally often and in the same order. MDOPS_TO_GHOSTS: `from` has
   * (B, width) numbers of the border, `to` takes (H, width); MDOPS_FROM_GHOSTS: the other way. The last call
   * is MDOPS_DONE or MDOPS_FAILED, without arrays. Returns 0, or another number where a process has failed:
   * mdops_compute then ends with MDOPS_INTERNAL. */
  int (*call)(void* context, int32_t what, const double* from, double* to, int64_t width);
  void* context;
} mdops_exchange;

/* The neighbours of each atom, as a program for molecular dynamics has them. */
typedef struct mdops_neighbors {
  size_t struct_size; /* sizeof(mdops_neighbors) */
  int64_t atoms;      /* N, those that have an energy: the first of all */
  int64_t ghosts;     /* M, the others: periodic images, and atoms of other processes */
  /* (N + M,): types below the model's ntypes; -1: a virtual atom, nobody's neighbour and without energy. */
  const int32_t* types;
  const int32_t* counts; /* (N,): the length of each row */
  /* (N,): the neighbours of each atom, 0 .. N + M - 1. The list is a full one: a pair of two of the N atoms
   * is in both rows. Pairs beyond the cutoff may be there and do not count. */
  const int32_t* const* rows;
  int32_t mask; /* the bits of an entry that are the index, as LAMMPS' NEIGHMASK; 0: all of them */
  /* For models that pass messages, otherwise null. (M,): of each ghost the atom that it is an image of, below
   * N, or N + h for that of row h of `exchange`. */
  const int32_t* sources;
  /* Null where all ghosts are images of the N atoms. It is copied; its function serves as long as the list.
   */
  const mdops_exchange* exchange;
} mdops_neighbors;

/* Copies the neighbours, for models of so many types, into a list that serves until they change. If *list is
 * not null, that one is filled anew. It is to be freed.
 * MDOPS_INVALID (a type or an index that is none), MDOPS_MEMORY; the list is empty then. */
MDOPS_API int mdops_list_fill(const mdops_neighbors* neighbors, int32_t ntypes, mdops_list** list);

/* Fills a list with the neighbours of the first N of `input`'s N + M atoms, which the model finds on its
 * device: those within the cutoff and `skin`, A, and of a cell the periodic images. The list serves while no
 * atom has moved by more than half the skin, for models on the same device with the same or a shorter cutoff.
 * Of `input` atoms, ghosts, positions, types, cell and periodic are read. Otherwise as mdops_list_fill.
 * MDOPS_INVALID, MDOPS_MEMORY, MDOPS_DEVICE. */
MDOPS_API int mdops_list_search(mdops_model* model, const mdops_input* input, double skin, mdops_list** list);

/* Frees a list; does nothing with null. */
MDOPS_API void mdops_list_free(mdops_list* list);

/* ---- Energies and forces ---- */

/* A system; all zero but for its size and what it has. */
struct mdops_input {
  size_t struct_size; /* sizeof(mdops_input) */
  int64_t atoms;      /* N */
  int64_t ghosts;     /* M; 0 without a list */
  /* (N,), -1 is a virtual atom. Not used with a list, which holds the types already. */
  const int32_t* types;
  const double* positions; /* (N + M, 3), A; they may lie outside of the cell */
  /* (3, 3), A: rows are lattice vectors; null: nothing is periodic. With a list: the cell that it was
   * searched in, with the same periodic directions; null with one that was filled, which has ghosts in the
   * place of images. */
  const double* cell;
  const int32_t* periodic; /* (3,): whether each direction is periodic; null: all are, if there is a cell */
  const mdops_list* list;  /* null: the model searches for the neighbours, at each call */
  const double* fparam;    /* (info.fparam,); null where the model takes none, or has its own */
  const double* aparam;    /* (N, info.aparam); null where the model takes none */
  /* (N, 3), for models of dipoles mu: fields F, or forces on the ends of the dipoles. The energy is then
   * U = -sum F . mu, and forces and virial are U's; null: there are none of these. */
  const double* field;
  /* (N + M, 3): magnetic moments, in the unit of the model's data; those of types without are not used. Null
   * where the model takes none. */
  const double* spins;
};

/* The answers. Null pointers are not filled; arrays are written, not added to. After an error they may hold
 * anything. */
typedef struct mdops_output {
  size_t struct_size;  /* sizeof(mdops_output), from the caller */
  double energy;       /* eV: the sum over the N atoms */
  double virial[9];    /* (3, 3), eV: W = -dE/d(strain), the sum over all pairs of -dE/dd (x) d */
  double nearest;      /* A: the smallest distance of two atoms; the cutoff where there is none within it */
  int64_t atom;        /* the atom that MDOPS_NEIGHBORS is about; -1 otherwise */
  double* forces;      /* (N + M, 3), eV/A: those on ghosts belong to the atoms that they are images of */
  double* atom_energy; /* (N,), eV */
  /* (N + M, 3, 3), eV: -dE_i/dd (x) d summed over the pairs d from atoms i to this one: a pair's virial is
   * booked on the neighbour, as in DeePMD-kit. If messages are passed, dE_i/dd is over all i that they reach,
   * and either all processes that share a system ask for it or none (a process without atoms, by any
   * address). */
  double* atom_virial;
  double* dipole; /* (N, 3), of a model of dipoles; zero for atoms that have none. Null of other models */
  /* (N + M, 3), -dE/d(spins): those of ghosts belong to the atoms that they are images of. Null of models
   * without magnetic moments. */
  double* magnetic_forces;
} mdops_output;

/* MDOPS_INVALID, MDOPS_NEIGHBORS, MDOPS_MEMORY, MDOPS_DEVICE. Positions that are NaN are refused where the
 * model searches, and give NaN with a list.
 *
 * GPUs: positions, types, aparam, forces, atom_energy and atom_virial may be in the model's GPU's memory; the
 * rest is not. The call waits for its results. What the caller's kernels write must be there, or come in the
 * default stream. Sums are of integers: the same bits in every run; in float32 a pair's force beyond 131,072
 * eV/A makes all answers NaN. The current device of the thread is what it was before. */
MDOPS_API int mdops_compute(mdops_model* model, const mdops_input* input, mdops_output* output);

/* ---- Several models ---- */

/* The deviation of several models, deviation[i] = sqrt(mean over the models of |x_i - mean of x_i|^2), of
 * forces (width 3), of energies or of a virial's numbers (width 1).
 *
 *   values     (models,): of each model an array (rows, width)
 *   deviation  (rows,)
 *
 * MDOPS_INVALID. */
MDOPS_API int mdops_deviation(const double* const* values, int32_t models, int64_t rows, int32_t width,
                              double* deviation);

#ifdef __cplusplus
}
#endif

#endif
