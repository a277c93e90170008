! energy.c in Fortran (docs/reference/core.md).
!
!     gfortran $(mdops core --include)/mdops.f90 energy.f90 $(mdops core --libs) -o energy
!     ./energy model.safetensors float64 < system.txt
program energy
  use mdops
  implicit none
  type(mdops_options) :: options
  type(mdops_input) :: input
  type(mdops_output) :: output
  type(c_ptr) :: model
  integer(c_int32_t), allocatable, target :: types(:)
  real(c_double), allocatable, target :: positions(:, :), forces(:, :)
  real(c_double), target :: cell(3, 3)
  character(4096) :: path, precision
  integer :: n, i

  call get_command_argument(1, path)
  call get_command_argument(2, precision)
  read (*, *) n
  read (*, *) cell  ! lattice vectors are columns here, and rows in C
  allocate (types(n), positions(3, n), forces(3, n))
  do i = 1, n
    read (*, *) types(i), positions(:, i)
  end do

  if (precision == 'float64') options%precision = mdops_float64
  call require(mdops_load(path, options, model))
  input%atoms = n
  input%types = c_loc(types)
  input%positions = c_loc(positions)
  input%cell = c_loc(cell)
  output%forces = c_loc(forces)
  call require(mdops_compute(model, input, output))

  print '(a, es25.17e3)', 'energy', output%energy
  print '(a, 9es26.17e3)', 'virial', output%virial
  do i = 1, n
    print '(a, 3es26.17e3)', 'force', forces(:, i)
  end do
  call mdops_free(model)

contains

  subroutine require(status)
    integer(c_int), intent(in) :: status
    if (status == mdops_ok) return
    write (0, '(a)') mdops_message()
    stop 1
  end subroutine

end program
