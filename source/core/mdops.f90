! mdops.h for Fortran: the same functions, types and codes, described there.
module mdops
  use, intrinsic :: iso_c_binding
  implicit none

  integer(c_int), parameter :: mdops_api_version_of_module = 4
  integer(c_int), parameter :: mdops_ok = 0, mdops_invalid = 1, mdops_file = 2, mdops_unsupported = 3, &
                               mdops_neighbors_wrong = 4, mdops_memory = 5, mdops_internal = 6, mdops_device = 7
  integer(c_int32_t), parameter :: mdops_float32 = 0, mdops_float64 = 1, mdops_refuse = 0, mdops_extend = 1, &
                                   mdops_whole = 0, mdops_short_range = 1, mdops_dipoles = 2, &
                                   mdops_to_ghosts = 0, mdops_from_ghosts = 1, mdops_done = 2, mdops_failed = 3

  ! Each type begins with its size, by which the library knows what of it there is: it stays as it is.
  type, bind(c) :: mdops_options
    integer(c_size_t) :: struct_size = 56
    integer(c_int32_t) :: precision = mdops_float32, overflow = mdops_refuse, threads = 0
    type(c_ptr) :: device = c_null_ptr  ! of a text that ends in c_null_char
    integer(c_int32_t) :: part = mdops_whole
    type(c_ptr) :: python = c_null_ptr, charge_spin = c_null_ptr
  end type

  type, bind(c) :: mdops_info
    integer(c_size_t) :: struct_size = 128
    real(c_double) :: cutoff = 0, shortest = 0
    integer(c_int32_t) :: ntypes = 0, fparam = 0, aparam = 0, needs_fparam = 0, precision = 0, threads = 0, &
                          gpu = -1
    type(c_ptr) :: names = c_null_ptr, has_dipole = c_null_ptr, charges = c_null_ptr, dipole_charges = c_null_ptr
    real(c_double) :: beta = 0
    integer(c_int32_t) :: lacks_charges = 0, in_python = 0, passes_messages = 0
    type(c_ptr) :: magnetic = c_null_ptr
    real(c_double) :: virtual_scale = 0
  end type

  type, bind(c) :: mdops_exchange
    integer(c_size_t) :: struct_size = 48
    integer(c_int64_t) :: border = 0
    type(c_ptr) :: atoms = c_null_ptr
    integer(c_int64_t) :: rows = 0
    type(c_funptr) :: call = c_null_funptr
    type(c_ptr) :: context = c_null_ptr
  end type

  type, bind(c) :: mdops_neighbors
    integer(c_size_t) :: struct_size = 72
    integer(c_int64_t) :: atoms = 0, ghosts = 0
    type(c_ptr) :: types = c_null_ptr, counts = c_null_ptr, rows = c_null_ptr
    integer(c_int32_t) :: mask = 0
    type(c_ptr) :: sources = c_null_ptr, exchange = c_null_ptr
  end type

  type, bind(c) :: mdops_input
    integer(c_size_t) :: struct_size = 96
    integer(c_int64_t) :: atoms = 0, ghosts = 0
    type(c_ptr) :: types = c_null_ptr, positions = c_null_ptr, cell = c_null_ptr, periodic = c_null_ptr, &
                   list = c_null_ptr, fparam = c_null_ptr, aparam = c_null_ptr, field = c_null_ptr, &
                   spins = c_null_ptr
  end type

  type, bind(c) :: mdops_output
    integer(c_size_t) :: struct_size = 144
    real(c_double) :: energy = 0, virial(3, 3) = 0, nearest = 0
    integer(c_int64_t) :: atom = -1
    type(c_ptr) :: forces = c_null_ptr, atom_energy = c_null_ptr, atom_virial = c_null_ptr, &
                   dipole = c_null_ptr, magnetic_forces = c_null_ptr
  end type

  interface
    integer(c_int) function mdops_api_version() bind(c)
      import
    end function

    integer(c_int) function mdops_gpu_count() bind(c)
      import
    end function

    type(c_ptr) function mdops_message_c() bind(c, name="mdops_message")
      import
    end function

    integer(c_int) function mdops_load_c(path, options, model) bind(c, name="mdops_load")
      import
      character(kind=c_char), intent(in) :: path(*)
      type(mdops_options), intent(in) :: options
      type(c_ptr), intent(out) :: model
    end function

    subroutine mdops_free(model) bind(c)
      import
      type(c_ptr), value :: model
    end subroutine

    integer(c_int) function mdops_describe(model, info) bind(c)
      import
      type(c_ptr), value :: model
      type(mdops_info), intent(inout) :: info
    end function

    integer(c_int) function mdops_set_threads(model, threads) bind(c)
      import
      type(c_ptr), value :: model
      integer(c_int32_t), value :: threads
    end function

    integer(c_int) function mdops_list_fill(neighbors, ntypes, list) bind(c)
      import
      type(mdops_neighbors), intent(in) :: neighbors
      integer(c_int32_t), value :: ntypes
      type(c_ptr), intent(inout) :: list
    end function

    integer(c_int) function mdops_list_search(model, input, skin, list) bind(c)
      import
      type(c_ptr), value :: model
      type(mdops_input), intent(in) :: input
      real(c_double), value :: skin
      type(c_ptr), intent(inout) :: list
    end function

    subroutine mdops_list_free(list) bind(c)
      import
      type(c_ptr), value :: list
    end subroutine

    integer(c_int) function mdops_compute(model, input, output) bind(c)
      import
      type(c_ptr), value :: model
      type(mdops_input), intent(in) :: input
      type(mdops_output), intent(inout) :: output
    end function

    integer(c_int) function mdops_deviation(values, models, rows, width, deviation) bind(c)
      import
      type(c_ptr), intent(in) :: values(*)
      integer(c_int32_t), value :: models
      integer(c_int64_t), value :: rows
      integer(c_int32_t), value :: width
      real(c_double), intent(out) :: deviation(*)
    end function

    integer(c_size_t) function c_length(text) bind(c, name="strlen")
      import
      type(c_ptr), value :: text
    end function
  end interface

  private :: mdops_message_c, mdops_load_c, c_length

contains

  ! mdops_load, with a path of Fortran's.
  integer(c_int) function mdops_load(path, options, model)
    character(*), intent(in) :: path
    type(mdops_options), intent(in) :: options
    type(c_ptr), intent(out) :: model
    mdops_load = mdops_load_c(trim(path) // c_null_char, options, model)
  end function

  ! Why the last function that failed did so.
  function mdops_message() result(text)
    character(:), allocatable :: text
    character(kind=c_char), pointer :: from(:)
    integer :: k
    call c_f_pointer(mdops_message_c(), from, [c_length(mdops_message_c())])
    allocate (character(size(from)) :: text)
    do k = 1, size(from)
      text(k:k) = from(k)
    end do
  end function

end module
